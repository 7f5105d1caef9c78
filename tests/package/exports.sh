#!/usr/bin/env bash
# The shared library exports what the public headers declare with LLMK_API, all of it and nothing
# else, and has the SONAME that its ABI promises. The static library, whose internal functions its
# users' linkers see, defines names of llmk_ only. Usage: exports.sh LIBRARY HEADERS SONAME ARCHIVE
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
library=$1 headers=$2 soname=$3 archive=$4
command -v nm >/dev/null && command -v objdump >/dev/null || skip "no binutils"

exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort -u)
foreign=$(grep -v '^llmk_' <<<"$exported" || true)
[ -z "$foreign" ] || fail "exported, but not llmk_*:"$'\n'"$foreign"

declared=$(cat "$headers"/*.h | tr '\n' ' ' | sed 's/LLMK_API/\n&/g' |
    sed -nE 's/^LLMK_API [^(;{]*[ *](llmk_[a-z0-9_]+)\(.*/\1/p' | sort -u)
[ -n "$declared" ] || fail "no LLMK_API function was found in $headers"
undeclared=$(comm -13 <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"))
[ -z "$undeclared" ] || fail "exported, but not declared in a header:"$'\n'"$undeclared"
undefined=$(comm -23 <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"))
[ -z "$undefined" ] || fail "declared in a header, but not exported:"$'\n'"$undefined"

defined=$(nm -g --defined-only "$archive" | awk 'NF == 3 { print $3 }' | sort -u)
[ -n "$defined" ] || fail "nm finds no symbol in $archive"
foreign=$(grep -v '^llmk_' <<<"$defined" || true)
[ -z "$foreign" ] || fail "defined in the static library, but not llmk_*:"$'\n'"$foreign"

found=$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')
[ "$found" = "$soname" ] || fail "SONAME is '$found', expected '$soname'"
printf '%s functions exported, as declared; SONAME %s\n' "$(wc -l <<<"$exported")" "$found"
