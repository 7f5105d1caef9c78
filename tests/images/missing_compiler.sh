#!/usr/bin/env bash
# A build whose compilers are missing says so, and makes a library without those images that works.
#   missing_compiler.sh SOURCE_DIR WORK_DIR
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work"

# A tool that is set to nothing counts as not found.
configure() { # OPTION...
    cmake -S "$source" -B "$work/build" -DLLMK_BUILD_TESTS=OFF -DLLMK_INSTALL=OFF "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    grep -E ' (SPIR-V images|Coop. matrix|PTX images|Cubins|AMD images) ' "$work/log"
}
expect() { # LINE STATUS
    grep -qF -- "$1" "$work/log" || {
        echo "FAILED: the summary has no line \"$1\""
        exit 1
    }
}

configure -DLLMK_PTXAS= -DLLMK_LLD= -DLLMK_SPIRV_VAL= -DLLMK_CLANG_19= -DLLMK_LLVM_SPIRV_19=
expect "SPIR-V images off (not found: spirv-tools)"
expect "Coop. matrix  off (not found: clang-19)"
expect "PTX images    off (not found: clang-19)"
expect "Cubins        off (not found: clang-19)"
expect "AMD images    off (not found: clang-19)"
cmake --build "$work/build" --target llmk-info >"$work/log" 2>&1 || {
    tail -n 20 "$work/log"
    exit 1
}
"$work/build/llmk-info" --version | grep -q 'images: source$' || {
    echo "FAILED: $("$work/build/llmk-info" --version)"
    exit 1
}
if "$work/build/llmk-info" --images | grep -E '^(spirv|ptx|cubin|gfx942)'; then
    echo "FAILED: there are images"
    exit 1
fi

configure -ULLMK_CLANG_19 -ULLMK_SPIRV_VAL
expect "Coop. matrix  off (not found: llvm-spirv-19, of Debian 13)"
expect "Cubins        off (not found: ptxas"
expect "AMD images    off (not found: lld-19)"

# Of CUDA 11.8, say: there is PTX, and nothing asks this one for cubins.
cat >"$work/ptxas" <<'END'
#!/bin/sh
[ "$1" = --version ] && cat "$0.version" && exit
echo "ptxas trial.ptx, line 1; fatal   : Unsupported .version 8.3; current version is '7.8'"
exit 255
END
chmod +x "$work/ptxas"
echo "V11.8.89" >"$work/ptxas.version"
configure -DLLMK_PTXAS="$work/ptxas"
expect "PTX images    on"
expect "Cubins        off (ptxas $work/ptxas is older than CUDA 12.3)"
list=$work/build/images/list
grep -q '\.sm_80\.ptx$' "$list" && ! grep -q cubin "$list" || {
    echo "FAILED: the list of images has no PTX, or cubins"
    exit 1
}

# Another version of a tool in the same place makes all images anew.
cp "$work/build/images/tools.json" "$work/tools.json"
configure
cmp "$work/build/images/tools.json" "$work/tools.json"
echo "V11.8.90" >"$work/ptxas.version"
configure
if cmp -s "$work/build/images/tools.json" "$work/tools.json"; then
    echo "FAILED: tools.json is the same for another version of ptxas"
    exit 1
fi

configure -DLLMK_IMAGES=
expect "SPIR-V images off (LLMK_IMAGES=)"
for words in nvidia,spriv , spirv, ,spirv; do
    if (configure "-DLLMK_IMAGES=$words") >"$work/refused" 2>&1; then
        echo "FAILED: LLMK_IMAGES=$words is accepted"
        exit 1
    fi
    grep -qE '"(spriv)?" is no kind of image' "$work/refused" || {
        echo "FAILED: no sentence about LLMK_IMAGES=$words"
        cat "$work/refused"
        exit 1
    }
done
configure -DLLMK_IMAGES=spirv -DLLMK_ZSTD=
expect "SPIR-V images off (not found: zstd)"
expect "PTX images    off (LLMK_IMAGES=spirv)"
