# Helpers of the scripts beside this file. Sourced, with `set -euo pipefail` in force.
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# Installs build folder $1 into $2, from scratch.
stage() {
    rm -rf "$2"
    cmake --install "$1" --prefix "$2" >/dev/null
}

# The documents that the installed header names are installed in $1.
documented() {
    local name
    for name in $(grep -rhoE 'docs/[a-z-]+\.md' "$1/include/llmk" | sort -u); do
        compgen -G "$1/share/doc/*/$name" >/dev/null || fail "llmk.h names $name, which is not installed"
    done
}

run_all() { # LIBRARY_PATH PROGRAM...
    local path=$1 program
    shift
    for program; do
        printf '%s: ' "$(basename "$program")"
        LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$program" ||
            fail "$program exited with $?"
    done
}
