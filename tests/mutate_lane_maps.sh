#!/usr/bin/env bash
# Changes each entry of each lane map of cl/common/fragment_maps.clh, one at a time, and shows that
# every mutant makes a product of the fragment test wrong. The emulator takes the maps as data, so
# that all mutants run in one process without compiling anything again.
#   tests/mutate_lane_maps.sh [TEST_FRAGMENT]     default: build/tests/test_fragment
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${1:-build/tests/test_fragment}" --mutate
