#!/usr/bin/env bash
# Runs the loop of spirv/coopmat.ll on this machine: its matrices become pointers, and the functions
# on them those of coopmat_loop.c.
#   coopmat_loop.sh CLANG SOURCE_DIR WORK_DIR
set -euo pipefail
clang=$1 source=$2 work=$3
mkdir -p "$work"
sed -E -e '/^target (datalayout|triple)/d' -e 's/target\("spirv\.CooperativeMatrixKHR"[^)]*\)/ptr/g' \
    -e 's/ addrspace\(3\)//g' -e 's/ spir_func//g' "$source/spirv/coopmat.ll" >"$work/loop.ll"
"$clang" -O1 -Wno-override-module -c "$work/loop.ll" -o "$work/loop.o"
"$clang" -O1 -Wall -Werror "$source/tests/images/coopmat_loop.c" "$work/loop.o" -o "$work/loop"
"$work/loop"
