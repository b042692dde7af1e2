# Homebrew's formula for the command. `scripts/publish` fills in VERSION and SHA256, those of the package on crates.io,
# and writes it to target/package/redlatch.rb, which goes to the tap.
class Redlatch < Formula
  desc "Run programs under a distributed lock on Redis or Valkey"
  homepage "https://github.com/redlatch/redlatch"
  url "https://static.crates.io/crates/redlatch-cli/redlatch-cli-VERSION.crate"
  sha256 "SHA256"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build

  def install
    system "cargo", "install", *std_cargo_args
    generate_completions_from_executable(bin/"redlatch", "completions")
    (man1/"redlatch.1").write Utils.safe_popen_read(bin/"redlatch", "man")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/redlatch --version")
    # Nothing listens on this port.
    shell_output("#{bin}/redlatch --url redis://127.0.0.1:1 ls", 69)
  end
end
