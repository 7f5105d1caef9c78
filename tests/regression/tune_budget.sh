#!/usr/bin/env bash
# llmk-tune as users run it, for a minute, with the real timer and the cases of all models: it ends in
# time, nothing is dropped, and the library takes every row of its file. Usage: tune_budget.sh BUILD_DIR WORK_DIR
set -euo pipefail
build=$1 work=$2 budget=60
rm -rf "$work"
mkdir -p "$work"
cd "$work"
unset LLMK_TUNE_DB LLMK_VARIANT
export LLMK_DEVICE=${LLMK_DEVICE:-cpu}
fail() {
    printf 'FAILED: %s\n' "$*"
    cat out
    exit 1
}

started=$SECONDS
"$build/llmk-tune" --db rows.json --budget $budget >out 2>&1 || fail "exit status $?"
took=$((SECONDS - started))
cat out
[ "$took" -le $((budget + 15)) ] || fail "a budget of $budget s took $took s"
grep -q ' 0 candidates dropped' out || fail "candidates were dropped"
[ -e rows.json ] || { # a very busy machine gets nowhere
    grep -q '^0 of ' out || fail "cases were measured, and no file written"
    exit 0
}
"$build/llmk-tune" --db rows.json --list >listed
[ "$(sed '/^Rows in the library/,$d; /^Configurations/,$d' listed | grep -c ' used$')" -eq "$(grep -c '"op":' rows.json)" ] || {
    cat listed
    fail "rows of rows.json are not used"
}
LLMK_TUNE_DB=$work/rows.json LLMK_LOG=warn "$build/llmk-info" add >info 2>&1
! grep 'rows.json' info || fail "the library complains about the file"
