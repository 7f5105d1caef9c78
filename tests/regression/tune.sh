#!/usr/bin/env bash
# llmk-tune: candidates that do harm are dropped and said; whenever it is killed its file is whole; an
# interruption keeps what was found, and the next run goes on; a timer that pretends (LLMK_TUNE_TEST)
# never makes it keep what is slower; the library uses what it found. Usage: tune.sh BUILD_DIR WORK_DIR
set -euo pipefail
build=$1 work=$2
tune=$build/llmk-tune info=$build/llmk-info
python=$(command -v "${PYTHON:-python3}" || true)
compare=$(cd "$(dirname "$0")/../../bench" && pwd)/tune_compare
rm -rf "$work"
mkdir -p "$work"
cd "$work"
unset LLMK_TUNE_DB LLMK_VARIANT
export LLMK_DEVICE=${LLMK_DEVICE:-cpu}
failures=0
fail() {
    printf 'FAILED: %s\n' "$*"
    failures=$((failures + 1))
}
# expect STATUS TEXT COMMAND...: the exit status, and TEXT somewhere in what it says.
expect() {
    local wanted=$1 text=$2 status=0
    shift 2
    "$@" >out 2>&1 || status=$?
    if [ "$status" -ne "$wanted" ] || { [ -n "$text" ] && ! grep -qF -- "$text" out; }; then
        fail "$*: exit status $status, expected $wanted and \"$text\""
        sed 's/^/    /' out
    fi
}
rows() { grep -c '"op":' "$1" || true; }
# The file is whole: llmk-tune reads it, and no row of it is ignored.
whole() {
    "$tune" --db "$1" --list >listed 2>&1 || return 1
    [ "$(sed '/^Rows in the library/,$d' listed | grep -c ' used$')" -eq "$(rows "$1")" ]
}

# --- sentences
expect 2 'there is no operator "attention"' "$tune" --db a.json attention --shape 1
expect 2 'operator quantize is not tuned' "$tune" --db a.json quantize --shape 1
expect 2 '--shape has more than the 3 sizes of linear' "$tune" --db a.json linear --shape 1,2,3,4
expect 2 '--budget is a number of seconds, not "soon"' "$tune" --budget soon
expect 2 '--tokens are up to 16 whole numbers' "$tune" --tokens 1,0
expect 2 '--level is device, architecture or vendor' "$tune" --level world
expect 2 'there is no home folder' env -u HOME -u XDG_CONFIG_HOME "$tune"
expect 2 'the name of the file to keep rows in is too long' env LLMK_TUNE_DB="$(printf '%04096d' 0)" "$tune" add
expect 2 'LLMK_TUNE_DB is off: name a file' env LLMK_TUNE_DB=off "$tune" add
expect 2 'llmk-tune: --db is off: name a file' "$tune" --db off add
expect 2 'no model "unknown"' "$tune" --db a.json --model unknown
echo '{"name": "package"}' >foreign.json
expect 1 'no file of tuned rows; move it away' "$tune" --db foreign.json linear --shape 1,64,64
expect 2 '--list takes no cases, such as "extra"' "$tune" --db a.json --list extra words
expect 2 '--export takes no cases' "$tune" --db a.json --export out.json add
expect 2 '--for goes with --export' "$tune" --db a.json --for sm_80 --list
for other in pocl sm_ sm_80/ gfx942,gfx90a $'\xff'; do
    expect 2 '--for is an architecture, such as sm_80 or gfx942, not "' "$tune" --db a.json --export other.json --for "$other"
done
[ ! -e other.json ] || fail "rows for no architecture were written"
expect 2 '--level and --for do not go together' "$tune" --db a.json --export other.json --for sm_80 --level device
expect 2 '--level goes with --export' "$tune" --db a.json --level device add
for option in db export for lists model shape format tokens budget seconds seed level device; do
    expect 2 "--$option is empty" "$tune" --db a.json "--$option" '' add
done
expect 2 '--tokens are up to 16 whole numbers' "$tune" --tokens 1,
for option in model tokens lists; do # what would change nothing
    expect 2 "--$option does not go with a case" "$tune" --db a.json "--$option" 1 add
done
expect 2 '--seed does not go with --list' "$tune" --db a.json --seed 3 --list
expect 2 '--again does not go with --export' "$tune" --db a.json --export out.json --again
expect 2 'names of models have no slash' "$tune" --db a.json --model ../../etc/passwd
expect 1 'a.json has no rows that hold on ' "$tune" --db a.json --export nothing.json
grep -q ': there is no such file' out && [ ! -e nothing.json ] || fail "rows of no file: $(cat out)"
expect 0 'none: there is no such file yet' "$tune" --db a.json --list
expect 1 'folder/ is a folder'"'"'s name' "$tune" --db folder/ add
[ ! -e folder ] || fail "a folder was made for no file"
expect 1 'its folder cannot be made: ' "$tune" --db /proc/none/deeper/a.json add
grep -q package foreign.json || fail "a foreign file was written to"
expect 1 'cannot be written' "$tune" --db /proc/none/a.json --seconds 0.01 add --shape 1,64
! grep -q 'cases measured' out || fail 'cases were measured for a file that cannot be written'

# --- images that the device does not take: one sentence why nothing is measured
case $LLMK_DEVICE in
cpu)
    for cases in 'add rows=2 cols=512' '--model=smollm2-135m'; do
        expect 1 'LLMK_IMAGE is "sm_80": no such image is made for this device' \
            env LLMK_IMAGE=sm_80 "$tune" --db a.json "$cases"
        [ "$(grep -c '^llmk-tune: ' out)" -eq 1 ] || fail "not one sentence: $(cat out)"
    done
    ;;
esac

# --- a folder that is lost on the way; a lock that another process keeps; standard streams that are closed
mkdir lost
LLMK_TUNE_TEST=timer=1 "$tune" --db lost/rows.json --model smollm2-135m --tokens 1,2,3,4,5,6,7,8 --seconds 0.01 >out 2>&1 &
pid=$!
for _ in $(seq 1200); do
    [ ! -e lost/rows.json ] || break
    sleep 0.05
done
until mv lost "lost$RANDOM" 2>/dev/null && { : >lost; } 2>/dev/null; do :; done
status=0
wait $pid || status=$?
[ "$status" -eq 1 ] && grep -q 'measured until a row could not be kept' out && grep -q 'lost/rows.json cannot be written' out ||
    fail "a folder that is lost: $status, $(cat out)"
for streams in '<&-' '2>&-' '<&- 2>&-'; do
    LLMK_TUNE_TEST=timer=1 bash -c '"$0" --db streams.json --again --seconds 0.01 add '"$streams" "$tune" >out ||
        fail "$streams: $(cat out)"
    grep -q ' measured=1 ' out || fail "$streams: $(cat out)"
done
if [ -n "$python" ]; then
    "$python" -c 'import fcntl, time
lock = open("locked.json.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
open("held", "w")
time.sleep(60)' &
    pid=$!
    for _ in $(seq 200); do
        [ ! -e held ] || break
        sleep 0.05
    done
    expect 1 'another process holds the lock' "$tune" --db locked.json add
    kill $pid
    wait $pid 2>/dev/null || true
fi

# --- candidates that do harm
export LLMK_TUNE_TEST_LIMIT=2
LLMK_TUNE_TEST=oob,hang,crash expect 0 'test-oob is dropped: y: written before its start' \
    "$tune" --db harm.json --seconds 0.02 'add rows=2 cols=512'
grep -q 'test-hang is dropped: no answer within 2 s' out || fail "the hang is not told"
grep -q 'test-crash is dropped: the worker crashed: it ended with signal 11' out || fail "the crash is not told"
grep -q '1 of 1 cases measured' out || fail "the case was not finished: $(cat out)"
[ "$(rows harm.json)" -eq 1 ] && ! grep -q 'test-' harm.json || fail "harm.json: $(cat harm.json)"
# a signal that is for the tuner as well is nothing that the candidate did
LLMK_TUNE_TEST=hang "$tune" --db term.json --seconds 0.02 'add rows=2 cols=512' >out 2>&1 &
pid=$!
ignores_term() { # as workers do once they are up: bit 14 of the mask
    local mask
    mask=$(sed -n 's/^SigIgn:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ -n "$mask" ] && [ $((0x$mask & 0x4000)) -ne 0 ]
}
while kill -0 $pid 2>/dev/null; do
    for child in $(cat /proc/$pid/task/$pid/children 2>/dev/null); do
        ! ignores_term "$child" || kill -TERM "$child" 2>/dev/null || true
    done
    sleep 0.1
done
wait $pid || true
grep -q 'test-hang is dropped: no answer within 2 s' out && grep -q ' dropped=1 ' out ||
    fail "a worker was ended: $(cat out)"
unset LLMK_TUNE_TEST_LIMIT

# --- a timer that pretends: what is kept is faster than the default by it
for seed in 1 2; do
    LLMK_TUNE_TEST=timer=$seed expect 0 'cases measured' "$tune" --db "timer$seed.json" \
        --model smollm2-135m --tokens 1 --seconds 0.01
    awk -F'[:,]' '/"variant"/ { own = $2 ~ /default/ } /"us"/ { us = $2 } /"default_us"/ {
        if (own ? us + 0 != $2 + 0 : us + 0 > 0.98 * $2) exit 1 }' "timer$seed.json" ||
        fail "timer=$seed: a slower one was kept"
    [ "$(rows "timer$seed.json")" -ge 8 ] || fail "timer=$seed: $(cat out)"
done
grep -q '"config"' timer1.json || fail "nothing was tuned"

# --- a clock that falls under load: what a host does between cases, longer on one than on the other,
# decides neither what is kept nor its time, whether much is faster than the default, little or nothing
for seed in 1 2; do
    for idle in 20 500; do
        # the second visits come between the cases, or after them all
        LLMK_TUNE_TEST_LATER=$((idle == 20 ? 0 : 30)) LLMK_TUNE_TEST=timer=$seed,load=$idle \
            expect 0 'cases=6 measured=6 ' "$tune" --db "load$idle.json" --again --seconds 0.02 \
            grouped_linear 'moe_forward t=4 e=4 k=2 h=64 f=64' 'add rows=1 cols=1024' 'linear n=64 k=64' \
            'rmsnorm rows=2 h=64' 'gated_activation rows=64 d=64'
        grep -q ' revisited=6 ' out || fail "load=$idle: $(cat out)"
        [ "$(grep -c '"visits": 2' "load$idle.json")" -eq 6 ] || fail "$(cat "load$idle.json")"
    done
    [ -z "$python" ] || expect 0 'summary compared=6 only_first=0 only_second=0 same_kept=6 agree=6 by_their_spread=0 ' \
        "$compare" --noise 2 load20.json load500.json
done
# out of time between a first visit and the second: the row is there, and says so
LLMK_TUNE_TEST=timer=1,load=20 expect 0 'cases measured' "$tune" --db once.json --model smollm2-135m \
    --budget 1 --seconds 0.01
if [ -e once.json ]; then
    [ "$(grep -cE '"visits": [12]' once.json)" -eq "$(rows once.json)" ] || fail "$(cat once.json)"
fi

# --- where nothing is faster than a row in the library, that row still holds
case='linear m=2 n=64 k=64' # tuning/pocl.json has a row for it
chosen() { env LLMK_TUNE_DB="$1" "$info" "$case" | grep -F '* '; }
own=$(chosen built-in)
for seed in $(seq 40); do
    LLMK_TUNE_TEST=timer=$seed expect 0 '1 of 1 cases measured' "$tune" --db same.json --again --seconds 0.01 "$case"
    ! grep -q ' 0 of them tuned' out || break
done
grep -q ' 0 of them tuned' out || fail "no seed for which nothing is faster: $(cat out)"
[ "$(chosen "$work/same.json")" = "$own" ] || fail "tuning lost $own: $(chosen "$work/same.json")"

# --- killed at any moment, the file is whole
many() { # SEED FILE: some hundred rows, one after the other
    LLMK_TUNE_TEST=timer=$1 exec "$tune" --db "$2" --model smollm2-135m --tokens 1,2,3,4,5,6,7,8 \
        --seconds 0.01 --again >/dev/null 2>&1
}
now_ms() { date +%s%3N; }
began=$(now_ms)
(many 1 killed.json) &
for _ in $(seq 1200); do
    [ ! -e killed.json ] || break
    sleep 0.05
done
first_row=$(($(now_ms) - began))
kill -KILL $!
wait $! 2>/dev/null || true
kills=0
for i in $(seq 20); do
    (many "$i" killed.json) &
    ms=$((RANDOM % (first_row * 3 / 2 + 1)))
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
    kill -KILL $! 2>/dev/null && kills=$((kills + 1))
    wait $! 2>/dev/null || true
    whole killed.json || fail "after kill $i: $(cat killed.json)"
done
[ "$kills" -ge 15 ] || fail "only $kills of 20 runs were killed"
[ "$(rows killed.json)" -ge 1 ] || fail "no run got as far as a row"
: >killed.json.1234-0.tmp # as one that is killed while it writes leaves it
: >killed.json.1234-x.tmp # somebody's own
LLMK_TUNE_TEST=timer=1 expect 0 '' "$tune" --db killed.json --seconds 0.01 'add rows=2 cols=512'
[ "$(ls killed.json.*.tmp)" = killed.json.1234-x.tmp ] || fail "left behind: $(ls killed.json.*)"

# --- an interruption keeps what was found, and the next run goes on
LLMK_TUNE_TEST=timer=1 "$tune" --db stopped.json --model smollm2-135m --tokens 1 --seconds 0.01 >out 2>&1 &
pid=$!
for _ in $(seq 1200); do
    [ ! -e stopped.json ] || break
    sleep 0.05
done
kill -INT $pid
status=0
wait $pid || status=$?
# A job of a script without job control ignores SIGINT, and llmk-tune asks for it again.
[ "$status" -eq 130 ] || fail "interrupted: exit status $status: $(cat out)"
grep -q 'until the interruption' out || fail "interrupted: $(cat out)"
before=$(rows stopped.json)
LLMK_TUNE_TEST=timer=1 expect 0 'cases measured' "$tune" --db stopped.json --model smollm2-135m --tokens 1 --seconds 0.01
grep -q "; $before measured before" out || grep -Eq '; [1-9][0-9]* measured before' out || fail "it did not go on: $(cat out)"
[ "$(rows stopped.json)" -gt "$before" ] || fail "it did not go on: $(cat out)"

# --- a budget that is too short says so
expect 0 'the budget of 0.01 s ended before a case was done' "$tune" --db never.json --budget 0.01 'linear m=1 n=64 k=64'

# --- a short budget with the real timer; the library uses the rows
started=$SECONDS
expect 0 'rows: budget.json' "$tune" --db budget.json --budget 4 --model smollm2-135m --tokens 1,2
[ $((SECONDS - started)) -le 12 ] || fail "a budget of 4 s took $((SECONDS - started)) s"
[ ! -e budget.json ] || whole budget.json || fail "budget.json: $(cat listed)" # a busy machine gets nowhere
expect 0 '1 of 1 cases measured, 1 of them tuned' env LLMK_TUNE_TEST=timer=1 "$tune" --db used.json \
    --seconds 0.01 'linear n=576 k=576 w=q4_1'
expect 0 'as tuned' env LLMK_TUNE_DB="$work/used.json" "$info" 'linear n=576 k=576 w=q4_1'
wanted=$(sed -n 's/.*"variant": "\(.*\)",/\1/p' used.json)$(sed -n 's/.*"config": "\(.*\)",/@\1/p' used.json)
grep -qF "* $wanted" out || fail "the library does not use $wanted: $(grep '\*' out)"
expect 0 '' env LLMK_TUNE_DB=off "$info" 'linear n=576 k=576 w=q4_1'
! grep -q 'as tuned' out || fail "LLMK_TUNE_DB=off does not help"

# --- rows for the library
expect 1 'cannot be created' "$tune" --db used.json --export none/export.json
[ ! -e none ] || fail "--export made a folder"
expect 0 'wrote export.json: 1 rows' "$tune" --db used.json --export export.json --level vendor
grep -q '"vendor": "' export.json && ! grep -q '^      "device"' export.json || fail "$(cat export.json)"
expect 0 'wrote other.json: 1 rows' "$tune" --db used.json --export other.json --for sm_80
grep -q '"architecture": "sm_80"' other.json && grep -q '"measured": false' other.json &&
    grep -q '"from": ".* us"' other.json && ! grep -q '"device"' other.json || fail "$(cat other.json)"
expect 0 'for another device, not measured on such a device: ' "$tune" --db other.json --list
# The images are those of the measurement, not of the export; other ones are measured anew.
for images in source ''; do
    expect 0 ' 0 measured before' env ${images:+LLMK_IMAGE=$images} LLMK_TUNE_TEST=timer=1 "$tune" --db image.json \
        --seconds 0.01 'linear n=576 k=576'
    LLMK_IMAGE=native expect 0 'wrote image2.json: 1 rows' "$tune" --db image.json --export image2.json --for sm_80
    grep -q '"from": ".* us"' image2.json || fail "$(cat image2.json)"
    [ "$(sed -n 's/.*"from": ".*, images of \(.*\): .*/\1/p' image2.json)" = "$images" ] || fail "$(cat image2.json)"
done
expect 1 'used.json is the file that the rows are taken from' "$tune" --db used.json --export ./used.json
# A row of which nothing is known, and one that a terminal would obey.
if [ -n "$python" ]; then
    "$python" - used.json <<'END'
import json, sys
rows = json.load(open(sys.argv[1]))
rows["rows"][0]["measured"] = {}
json.dump(rows, open("empty.json", "w"))
rows["rows"][0]["from"] = "\u001b[31mred\n\u009b2J " + "\u00e9" * 300
json.dump(rows, open("evil.json", "w"))
END
    expect 0 'wrote empty2.json: 1 rows' "$tune" --db empty.json --export empty2.json --for sm_80
    grep -q '"from": "[^(][^"]*[^:"]"' empty2.json && ! grep -q null empty2.json || fail "$(cat empty2.json)"
    expect 0 'not measured on such a device:  [31mred' env LLMK_TUNE_DB="$work/evil.json" "$info" 'linear n=576 k=576 w=q4_1'
    ! grep -q $'\e\|\xc2\x9b' out && iconv -f UTF-8 -t UTF-8 out >/dev/null || fail "llmk-info prints a file's words as they are: $(cat -v out)"
fi
sed -i 's/"architecture": .*/"vendor": "pocl",/' other.json
case $LLMK_DEVICE in
cpu)
    expect 0 'as tuned, not measured on such a device: ' env LLMK_TUNE_DB="$work/other.json" "$info" 'linear n=576 k=576 w=q4_1'
    ;;
esac
echo '{"llmk_tuning": 1, "ro' >truncated.json
expect 1 'truncated.json: it is not JSON' "$tune" --db truncated.json --list

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
