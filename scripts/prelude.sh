# Sourced by the other scripts: how they report, and how they install something.

say() { echo "scripts/${0##*/}: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif has sudo && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# What the results in RELIABILITY.md are about.
sources=(src lua macros/src memory/src cli/src)

# Replaces a part of RELIABILITY.md by the input, below a line that says when it was run, and on which commit.
record() {
    local page=RELIABILITY.md part=$1 commit text
    commit=$(git log -1 --format=%h -- "${sources[@]}")
    git diff --quiet HEAD -- "${sources[@]}" || commit+=" with changes"
    text="On $(date -u +%F), at commit $commit, on $(nproc) processors:"$'\n\n'$(cat)
    grep -q "^<!-- begin $part -->" "$page" || fail "$page has no part $part"
    PART=$part TEXT=$text awk '
        $0 == "<!-- end " ENVIRON["PART"] " -->" { inside = 0 }
        !inside
        $0 == "<!-- begin " ENVIRON["PART"] " -->" { print "\n" ENVIRON["TEXT"] "\n"; inside = 1 }' "$page" >"$page.new"
    mv "$page.new" "$page"
}
