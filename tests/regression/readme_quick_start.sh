#!/usr/bin/env bash
# The first C example under "Quick start" in README.md compiles without a warning and runs.
# Usage: readme_quick_start.sh SOURCE_DIR BUILD_DIR WORK_DIR
set -euo pipefail
source=$1 build=$2 work=$3
readme=$source/README.md
if [ ! -f "$readme" ]; then
    echo "skipped: no README.md"
    exit 77
fi
mkdir -p "$work"
awk '
    /^#+ / && !inside { section = tolower($0) ~ /^#+ +quick start/ }
    section && /^```c[ \t]*$/ && !done { inside = 1; next }
    inside && /^```/ { inside = 0; done = 1 }
    inside
' "$readme" >"$work/quick_start.c"
if [ ! -s "$work/quick_start.c" ]; then
    echo 'FAILED: README.md has no ```c block under a heading "Quick start"' >&2
    exit 1
fi
cc -std=c11 -Wall -Wextra -Werror -I"$source/include" "$work/quick_start.c" -o "$work/quick_start" \
    -L"$build" -lllmk_cl -lOpenCL -Wl,-rpath,"$build"
cd "$work"
./quick_start
