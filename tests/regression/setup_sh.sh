#!/usr/bin/env bash
# setup.sh with stand-ins for cmake and ctest: what it passes on, and what it refuses before it
# installs or builds anything. Usage: setup_sh.sh SOURCE_DIR WORK_DIR
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work/bin"
cp "$source/setup.sh" "$work"
for name in cmake ctest; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\n' "$name" "$work" >"$work/bin/$name"
done
# Nothing is installed by a test.
for name in apt-get sudo; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\nexit 1\n' "$name" "$work" >"$work/bin/$name"
done
chmod +x "$work"/bin/*
unset LLMK_IMAGES LLMK_PRESET
failures=0

# setup STATUS ENV... -- ARGUMENT: leaves the calls in $calls, what was said in $said.
setup() {
    local wanted=$1 status=0 env=()
    shift
    while [ "$1" != -- ]; do
        env+=("$1")
        shift
    done
    shift
    : >"$work/calls"
    said=$(env "${env[@]}" PATH="$work/bin:$PATH" "$work/setup.sh" "$@" 2>&1) || status=$?
    calls=$(cat "$work/calls")
    if grep -q '^\(apt-get\|sudo\)' <<<"$calls"; then
        echo "skipped: something that setup.sh needs is not installed"
        exit 77
    fi
    [ "$status" -eq "$wanted" ] || complain "exit status $status, expected $wanted"
}
complain() {
    printf 'FAILED: %s\n  calls: %s\n  said: %s\n' "$1" "$calls" "$said"
    failures=$((failures + 1))
}
has() { grep -qF -- "$1" <<<"$calls" || complain "\"$1\" is not passed on"; }
has_not() { ! grep -qF -- "$1" <<<"$calls" || complain "\"$1\" is passed on"; }

setup 1 LLMK_PRESET=release -- test
[ -z "$calls" ] || complain "something ran although the preset has no tests"
grep -q "preset release builds no tests" <<<"$said" || complain "it is not said why"
setup 0 LLMK_PRESET=release -- build
has "cmake --preset release"
setup 0 -- build
has "cmake --preset dev"
has_not LLMK_IMAGES
has_not "-G " # the presets say which
mkdir "$work/build"
echo "CMAKE_GENERATOR:INTERNAL=Unix Makefiles" >"$work/build/CMakeCache.txt"
setup 0 -- build
has "-G Unix Makefiles"
setup 0 LLMK_IMAGES= -- build
has "-DLLMK_IMAGES="
has_not "-DLLMK_IMAGES=s"
setup 0 LLMK_IMAGES=spirv,nvidia -- test
has "-DLLMK_IMAGES=spirv,nvidia"
has "ctest --test-dir build -L quick"
setup 0 -- help
grep -q LLMK_IMAGES <<<"$said" || complain "the help does not tell of LLMK_IMAGES"

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
