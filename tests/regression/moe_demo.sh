#!/bin/bash
# moe_demo.sh LLMK_DEMO - llmk-demo --moe: a preset made small is within its bound and every stage is
# timed; what does not exist is refused.
set -eu
demo=$1

out=$("$demo" --moe qwen1.5-moe --scale 16 --rows 9 --seconds 0.05 routing=zipf)
grep -q '^nmse=[0-9.e+-]* worst=0\.[0-9]* ok$' <<<"$out"
for stage in "shared router" "shared down" "router product" "dispatch" "gate, up, activation" \
    "combine"; do
    grep -q "^stage=\"$stage\" kernel=[a-z_]* us=[0-9.]* " <<<"$out" || {
        echo "no stage \"$stage\" in:"
        echo "$out"
        exit 1
    }
done
grep -q '^stage="whole layer" kernels=9 ' <<<"$out"

refuse() {
    status=0
    "$demo" "$@" >/dev/null 2>&1 || status=$?
    [ $status -eq 2 ] || {
        echo "llmk-demo $*: exit status $status, expected 2"
        exit 1
    }
}
refuse --moe no-such-model
refuse --moe mixtral-8x7b --scale 64 nonsense=1
refuse --moe mixtral-8x7b --scale 0
refuse --scale 2
