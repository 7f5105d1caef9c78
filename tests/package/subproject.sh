#!/usr/bin/env bash
# A project that adds the library by add_subdirectory compiles the library and nothing of its tools
# and tests, and so does a build of our own that has both off. Usage: subproject.sh SOURCE_DIR WORK_DIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
source=$1 work=$2
command -v ninja >/dev/null || skip "no ninja"

# would_compile NAME CMAKE_ARGUMENT...: what a build of everything would do.
would_compile() {
    local name=$1
    shift
    rm -rf "${work:?}/$name"
    mkdir -p "$work"
    cmake -B "$work/$name" -DLLMK_IMAGES="" "$@" >"$work/$name.log" 2>&1 || {
        cat "$work/$name.log"
        fail "$name did not configure"
    }
    ninja -C "$work/$name" -t commands all >"$work/$name.out"
    grep -q 'src/core/context\.c' "$work/$name.out" || fail "$name: the library is not built"
    if grep -E '(src/formats|src/tools|tests/cases|tests/reference)/[a-z_]+\.c' "$work/$name.out" >"$work/$name.more"; then
        head -n 3 "$work/$name.more"
        fail "$name compiles more than the library"
    fi
}
would_compile inside -G Ninja -S "$here/subproject" -DLLMK_SOURCE="$source"
would_compile library -G Ninja -S "$source" -DLLMK_BUILD_TOOLS=OFF -DLLMK_BUILD_TESTS=OFF
echo "nothing but the library"
