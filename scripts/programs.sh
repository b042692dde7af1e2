# Sourced by scripts/test and scripts/mutants, after prelude.sh: the test programs are built once, and run several at a
# time.

# A folder with a script for each program, by its package and its name, which runs the program as cargo does.
programs=$PWD/target/programs
# What each took: seconds of the clock, of the processors for it and for the system, and a name.
times=$PWD/target/times

# All features but one, whose library in C takes a tenth of the build. scripts/features and scripts/providers have it.
features=$(sed -n '/^\[features\]/,/^\[dep/ s/^\([a-z][a-z0-9-]*\) = .*/\1/p' Cargo.toml |
    grep -vx 'default\|tls-aws-lc-rs' | paste -sd ,)
# As an argument of cargo, also of that which the test of the public API runs.
export REDLATCH_FEATURES=--features=$features

# Most tests spend most of their time waiting for a lease or a message.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-8}

# Builds the programs of `cargo test` with these arguments, and fills the folder.
build_programs() {
    cargo test --locked "$@" --no-run
    rm -rf "$programs"
    mkdir -p "$programs"
    REDLATCH_PROGRAMS=$programs cargo --config "target.'cfg(all())'.runner = '$PWD/scripts/later'" \
        test --locked --quiet "$@"
}

# Runs a command, and notes under a name what time it takes.
timed() {
    local TIMEFORMAT="%0R %0U %0S $1"
    { time "${@:2}" 2>&3; } 3>&2 2>>"$times"
}
