#!/usr/bin/env bash
# A project that uses find_package(llmk) builds and runs, in C and C++, shared and static, against an
# install that was moved to another folder, where pkg-config knows no library.
# Usage: find_package.sh BUILD_DIR WORK_DIR LIBDIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
build=$1 work=$2 libdir=$3
command -v c++ >/dev/null || skip "no C++ compiler"

stage "$build" "$work/staged"
rm -rf "$work/moved" "$work/consumer"
mv "$work/staged" "$work/moved"
documented "$work/moved"
mkdir -p "$work/empty"
export PKG_CONFIG_LIBDIR=$work/empty
unset PKG_CONFIG_PATH
cmake -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_C_FLAGS="-std=c99 -pedantic -Wall -Wextra -Werror" \
    -DCMAKE_CXX_FLAGS="-std=c++11 -pedantic -Wall -Wextra -Werror" >"$work/configure.log" 2>&1 || {
    cat "$work/configure.log"
    fail "find_package(llmk) did not configure"
}
cmake --build "$work/consumer"
run_all "$work/moved/$libdir" "$work"/consumer/{c,cxx}_llmk_cl{,_static}
