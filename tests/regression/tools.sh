#!/usr/bin/env bash
# What the tools say and exit with where something is wrong: output that cannot be written, values
# and combinations of options that make no sense, more of a model than there is.
# Usage: tools.sh BUILD_DIR WORK_DIR
set -euo pipefail
build=$1 work=$2
docs=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../docs" && pwd)
rm -rf "$work"
mkdir -p "$work"
cd "$work"
failures=0

# expect STATUS TEXT COMMAND...: the exit status, and TEXT somewhere in stderr.
expect() {
    local wanted=$1 text=$2 status=0
    shift 2
    "$@" >out 2>err || status=$?
    if [ "$status" -ne "$wanted" ] || { [ -n "$text" ] && ! grep -qF -- "$text" err; }; then
        printf 'FAILED: %s\n  exit status %s, expected %s and "%s"; stderr:\n' "$*" "$status" "$wanted" "$text"
        sed 's/^/    /' err
        failures=$((failures + 1))
    fi
}
full() { "$@" >/dev/full; }
bench=$build/llmk-bench demo=$build/llmk-demo info=$build/llmk-info tune=$build/llmk-tune

# --- output that cannot be written
if [ -w /dev/full ]; then
    for option in --help --version; do
        expect 1 "llmk-bench: the output cannot be written" full "$bench" "$option"
        expect 1 "llmk-info: the output cannot be written" full "$info" "$option"
        expect 1 "llmk-demo: the output cannot be written" full "$demo" "$option"
    done
    expect 1 "llmk-tune: the output cannot be written" full "$tune" --help
    expect 1 "llmk-info: the output cannot be written" full "$info" --images
    expect 1 "llmk-demo: the output cannot be written" full "$demo" --generate made.gguf
    expect 2 "unrecognized option" full "$demo" --bogus # the first reason counts
fi

# --- a build outside of the source tree finds the model lists
mkdir far
cp "$bench" "$tune" far
expect 2 'no model "unknown" in ' far/llmk-bench --model unknown
expect 2 'no model "unknown" in ' env -u LLMK_TUNE_DB far/llmk-tune --db far.json --model unknown

# --- llmk-bench
expect 2 '--seconds is a number of at least 0, not "-1"' "$bench" --seconds -1 add
expect 2 '--seconds is a number of at least 0, not "soon"' "$bench" --seconds soon add
expect 2 '--sets is a whole number of at least 1, not "0"' "$bench" --sets 0 add
expect 2 '--sets is a whole number of at least 1, not "1.5"' "$bench" --sets 1.5 add
expect 2 '--tokens is a whole number of at least 1, not "0.5"' "$bench" --tokens 0.5 add
expect 2 'expected one of f32, f16, bf16' "$bench" add a=i8
expect 2 '--roofline is for timing' "$bench" --check --roofline roof add
expect 2 '--sustain is for timing' "$bench" --check --sustain 1 add
expect 2 '--stdin reads its cases' "$bench" --stdin add
expect 2 'no operator or model is named "nothing"' "$bench" --list nothing
expect 2 'no operator or model is named "llama"' "$bench" --list add llama
expect 0 '' "$bench" --list add llama-8b
{ grep -q '^  add$' out && grep -q '^    llama-8b ' out && [ "$(grep -c '^ *variants:' out)" -eq 1 ] &&
    ! grep -q 'llama-7b' out; } || {
    echo "FAILED: --list add llama-8b lists $(cat out)"
    failures=$((failures + 1))
}
expect 1 '--image is "ptz"; expected source, spirv, native, ptx, cubin or sm_80' "$bench" --image ptz add
expect 1 'LLMK_IMAGE is "ptz"' env LLMK_IMAGE=ptz "$bench" add
expect 1 'llmk-bench: --variant: no operator has a variant "fast"' "$bench" --variant fast add
for tool in "$bench add" "$info" "$demo --moe qwen1.5-moe" "$tune --db rows.json"; do
    expect 1 '--device is "99", which names none of' $tool --device 99
    expect 1 'LLMK_DEVICE is "99", which names none of' env LLMK_DEVICE=99 $tool
done
expect 2 '--roofline: /proc/none/roof.dat cannot be created' "$bench" --seconds 0.01 --roofline /proc/none/roof 'add rows=4 cols=64'
[ ! -s out ] || { echo "FAILED: measured for a figure that cannot be written"; failures=$((failures + 1)); }
expect 2 '--roofline: the name is too long' "$bench" --roofline "$(printf '%01100d' 0)" 'add rows=4 cols=64'
[ ! -s out ] || { echo "FAILED: measured for a figure that cannot be written"; failures=$((failures + 1)); }
expect 1 'weights have rows of 128; expected a multiple of 256 for w=q4_k' "$bench" --check 'moe_forward e=4 k=2 h=128 f=256 t=1 w=q4_k'
expect 1 'no case gave a point' "$bench" --seconds 0.01 --roofline roof 'add rows=0 cols=64'
expect 0 '' "$bench" --seconds 0.01 --roofline roof 'add rows=4 cols=64' 'linear m=2 n=96 k=128' 'linear m=1 n=96 k=128'
[ "$(grep -c '^"' roof.dat)" -eq 3 ] && [ "$(grep -c '^# [a-z_]*$' roof.dat)" -eq 2 ] || {
    echo "FAILED: $(cat roof.dat)"
    failures=$((failures + 1))
}
# 2 m n k FLOPs on f16 tensors, each counted once.
grep -Eq '^"linear m=2 n=96 k=128" [a-z]+ 25472 49152 1\.93 ' roof.dat || {
    echo "FAILED: bytes and FLOPs: $(cat roof.dat)"
    failures=$((failures + 1))
}
if command -v gnuplot >/dev/null; then
    grep -q '<svg' roof.svg && [ -s roof.png ] || {
        echo "FAILED: gnuplot made no figures of roof.gp"
        failures=$((failures + 1))
    }
fi
# Many points have their numbers in the data for names.
cases=()
for n in $(seq 2 18); do cases+=("add rows=$n cols=64"); done
expect 0 '' "$bench" --seconds 0.001 --roofline many "${cases[@]}" 'linear m=2 n=96 k=128'
grep -q 'index 1 using 5:9:(sprintf(.%d., $0 + 18)) with labels' many.gp && ! grep -q ':9:1 ' many.gp || {
    echo "FAILED: names of many points: $(cat many.gp)"
    failures=$((failures + 1))
}
! command -v gnuplot >/dev/null || grep -q '<svg' many.svg || {
    echo "FAILED: gnuplot made no figure of many.gp"
    failures=$((failures + 1))
}
expect 0 'gnuplot is not installed: bare.gp makes the figures' env PATH=/nonexistent "$bench" --seconds 0.01 --roofline bare 'add rows=4 cols=64'

# --- llmk-info
expect 2 '--time takes one case, and "rmsnorm" is another' "$info" --time add rmsnorm
expect 0 '' "$info" --time 'add rows=2'
expect 2 '--list takes no cases, such as "add"' "$info" --list add
expect 2 '--images takes no cases, such as "add"' "$info" --images add

# --- docs/tools.md has every option, and no other; what it leaves to docs/tuning.md is there
options() { grep -oE -- '(^|[^-[:alnum:]])--[a-z][a-z-]+' "$@" | grep -oE -- '--[a-z-]+' | sort -u; }
for tool in "$bench" "$demo" "$info" "$tune"; do "$tool" --help; done >helps
comm -23 <(options helps) <(cat "$docs/tools.md" "$docs/tuning.md" | options) >undocumented
comm -13 <(options helps) <(options "$docs/tools.md") >unknown
[ ! -s undocumented ] && [ ! -s unknown ] || {
    echo "FAILED: options that docs/tools.md lacks: $(paste -sd ' ' undocumented); that no tool has: $(paste -sd ' ' unknown)"
    failures=$((failures + 1))
}

# --- llmk-demo
"$demo" --generate model.gguf >/dev/null
expect 1 "the embedding table has 64 rows; --rows is 5000" "$demo" model.gguf --rows 5000
expect 1 "the model has 4 layers; --layers is 99" "$demo" model.gguf -n 99
expect 1 "the embedding table has 64 rows; --rows is 65" "$demo" model.gguf -r 65 --slice slice.gguf
[ ! -e slice.gguf ] || { echo "FAILED: a slice was written"; failures=$((failures + 1)); }
expect 0 "" "$demo" model.gguf -r 64 -n 4 --slice slice.gguf
"$demo" slice.gguf -r 2 --slice two.gguf >/dev/null
expect 0 "" "$demo" two.gguf --slice all.gguf # 8 rows are only the default
grep -q "wrote all.gguf: 2 rows" out || { echo "FAILED: $(cat out)"; failures=$((failures + 1)); }
expect 2 '--rows is a whole number from 1 to 65536, not "0"' "$demo" model.gguf --rows 0
expect 2 '--layers is a whole number of at least 1, not "-1"' "$demo" model.gguf --layers -1
expect 2 '--dtype is f32, f16 or bf16, not "i8"' "$demo" model.gguf -t i8
expect 2 '--seconds is a number from 0 to 3600, not "-1"' "$demo" model.gguf --seconds -1
expect 2 "no model is given" "$demo"
expect 2 "one model at a time" "$demo" model.gguf model.gguf
expect 2 "--generate takes one file, and no model" "$demo" --generate a.gguf b.gguf
expect 2 "--generate does not go with --generate-safetensors" "$demo" --generate a.gguf --generate-safetensors awq b
expect 2 "--generate-safetensors takes a method and one folder" "$demo" --generate-safetensors awq
expect 2 '--generate-safetensors is gptq or awq, not "gptx"' "$demo" --generate-safetensors gptx a
expect 2 "--rows is for running a model" "$demo" --generate a.gguf --rows 8
expect 2 "--slice is for running a model" "$demo" --generate-safetensors awq a --slice b.gguf

# --- files: sentences name what was asked for, not the temporary file
expect 1 "/nonexistent/a.gguf cannot be created: No such file" "$demo" --generate /nonexistent/a.gguf
too_large() { (trap '' XFSZ && ulimit -f 8 && exec "$demo" --generate large.gguf); }
expect 1 "large.gguf cannot be written: File too large" too_large
[ -z "$(find . -name '*.tmp')" ] || { echo "FAILED: temporary files are left"; failures=$((failures + 1)); }

# --- what the test programs read of the environment
if [ -x "$build/tests/test_operators" ]; then
    for value in -1/0 +3/0 ' 3/0' 3/-1 3/3 0/0 3 3/ /0 3/0x 3//0 10000/0 18446744073709551617/0 soon; do
        expect 1 '' env LLMK_TEST_STEP="$value" "$build/tests/test_operators" add:ref
        grep -qF "LLMK_TEST_STEP is \"$value\"; expected STEP/FIRST" out || {
            echo "FAILED: LLMK_TEST_STEP=$value is not refused: $(cat out)"
            failures=$((failures + 1))
        }
    done
    expect 1 '' env LLMK_TEST_EMULATION=no "$build/tests/test_operators" add:ref
    grep -qF 'LLMK_TEST_EMULATION is "no"; expected off' out || {
        echo "FAILED: LLMK_TEST_EMULATION=no is not refused: $(cat out)"
        failures=$((failures + 1))
    }
    for value in -1 soon 5x 18446744073709551616; do
        expect 2 "LLMK_TEST_SEED is \"$value\"; expected a number" env LLMK_TEST_SEED="$value" "$build/tests/test_tensor"
    done
fi

# --- a sweep of a variant that this device has not is no pass
for selection in rmsnorm:nv linear:amd; do
    [ -x "$build/tests/test_operators" ] || break
    status=0
    "$build/tests/test_operators" "$selection" >out 2>err || status=$?
    wanted=0
    ! grep -q " 0 run " out || wanted=77
    [ "$status" -eq "$wanted" ] || {
        echo "FAILED: test_operators $selection: exit status $status, expected $wanted"
        failures=$((failures + 1))
    }
done

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
