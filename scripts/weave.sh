# Sourced by scripts/mutants and scripts/simulate, after prelude.sh: patches are woven into one copy of the tree, which
# does what one of them does if it is told so when it starts.

# What a patch says of itself: its rule, or its tests.
header() { sed -n "s/^# $1: *//p" "$2" | head -n 1; }

# Copies the tree to a folder, and weaves patches into the copy.
weave() {
    local tree=$1
    shift
    rm -rf "$tree"
    mkdir -p "$tree"
    # The files get the time of the copy (-m). With older times, cargo could
    # consider what an interrupted run built from other patches up to date.
    git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do
            if [[ -f $file ]]; then printf '%s\0' "$file"; fi
        done |
        tar --null -T - -cf - | tar -xmf - -C "$tree"
    cargo run --locked --quiet -p redlatch-mutants -- "$tree" "$@" || fail "the patches above do not fit the tree"
}

# Has programs that are started from here on do what the patch with this name does; without a name, what the tree does.
choose() {
    export REDLATCH_MUTANT=$2
    unset REDLATCH_LUA
    [[ ! -d $1/woven/$2/lua ]] || export REDLATCH_LUA=$1/woven/$2/lua
}
