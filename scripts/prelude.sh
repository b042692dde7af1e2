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
