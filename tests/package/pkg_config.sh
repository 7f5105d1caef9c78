#!/usr/bin/env bash
# A program built with the flags of `pkg-config llmk_cl` runs, in C and C++, shared and static,
# against an install that was moved to another folder, on a system that describes no other library
# than OpenCL to pkg-config. Usage: pkg_config.sh BUILD_DIR WORK_DIR LIBDIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
build=$1 work=$2 libdir=$3
command -v pkg-config >/dev/null || skip "no pkg-config"
command -v c++ >/dev/null || skip "no C++ compiler"

stage "$build" "$work/staged"
rm -rf "$work/moved"
mv "$work/staged" "$work/moved"
prefix=$work/moved
rm -rf "$work/modules"
mkdir -p "$work/modules"
opencl=$(pkg-config --variable=pcfiledir OpenCL) || skip "no OpenCL.pc"
cp "$opencl/OpenCL.pc" "$work/modules"
export PKG_CONFIG_LIBDIR=$prefix/$libdir/pkgconfig:$work/modules
unset PKG_CONFIG_PATH
version=$(pkg-config --modversion llmk_cl)
printf 'llmk_cl.pc: version %s\n' "$version"

warnings=(-pedantic -Wall -Wextra -Werror)
read -r -a cflags <<<"$(pkg-config --cflags llmk_cl)"
read -r -a libs <<<"$(pkg-config --libs llmk_cl)"
read -r -a static_libs <<<"$(pkg-config --static --libs llmk_cl)"
printf 'static: %s\n' "${static_libs[*]}"
[[ " ${static_libs[*]} " != *" -ldl "* ]] || fail "the static library does not need -ldl"
static_libs=("${static_libs[@]/#-lllmk_cl/-l:libllmk_cl.a}")
cc -std=c99 "${warnings[@]}" "${cflags[@]}" "$here/consumer/consumer.c" -o "$work/c_shared" "${libs[@]}"
c++ -std=c++11 "${warnings[@]}" "${cflags[@]}" "$here/consumer/consumer.cpp" -o "$work/cxx_shared" "${libs[@]}"
cc -std=c99 "${warnings[@]}" "${cflags[@]}" "$here/consumer/consumer.c" -o "$work/c_static" "${static_libs[@]}"
c++ -std=c++11 "${warnings[@]}" "${cflags[@]}" "$here/consumer/consumer.cpp" -o "$work/cxx_static" "${static_libs[@]}"
run_all "$prefix/$libdir" "$work"/{c,cxx}_{shared,static}

# The line of README.md serves the examples as they are.
line='cc app.c $(pkg-config --cflags --libs llmk_cl)'
grep -qF "$line" "$here/../../README.md" || fail "README.md has no longer the line: $line"
mkdir -p "$work/app"
cd "$work/app"
for example in "$here"/../../examples/*.c; do
    cp "$example" app.c
    eval "$line"
    run_all "$prefix/$libdir" ./a.out
done
