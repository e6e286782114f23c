#!/usr/bin/env bash
# A storm of clients that never back off does not reduce the throughput of other clients, and slows
# down when the API server is gone: examples/storm.sh and its expected results.
#
# NIGHTLY=1: three rounds of 15 s instead of one of 5 s, and the throughput that is left is checked.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk wrk

# Far less than any machine has without weir. Who hears only 401, or nothing, has no share of anything.
LEAST=500
STORM=700

# cell ROW COLUMN: a number of a row, counted from the first below the table's head; 0 where there is none.
cell() {
    awk -F'|' -v row="$(($1 + 2))" -v column="$(($2 + 2))" \
        '/^\|/ && ++n == row && $column ~ /^ *[0-9]+ *$/ {found = $column} END {print found + 0}' "$WORK/table"
}
good() { cell "$1" 1; }
refused() { cell "$1" 2; }

# Whatever else the machine does meanwhile can spoil one table, hardly two; a weir that does not keep the storm away
# spoils both.
seconds=5 rounds=1 tables=1
if nightly; then seconds=15 rounds=3 tables=2; fi
for ((table = 1; table <= tables; table++)); do
    check_ok 'the example runs' env WEIR="$WEIR" bash -c \
        "'$ROOT/examples/storm.sh' $STORM $seconds $rounds >'$WORK/table'"
    cat "$WORK/table"
    capacity=$(good 1) alone=$(good 2) fair=$(good 3) calm=$(good 4) at_once=$(good 5) held=$(good 6)
    gone_at_once=$(refused 8) gone_held=$(refused 9)
    through=$((calm * 85 / 100)) without=$((capacity * 75 / 100))
    if ((capacity >= LEAST && alone > 0 && held >= through && held >= without && held >= 3 * alone)); then break; fi
done
check_match 'the API server says what it works' '400µs of CPU for an answer, and 150µs for a refusal' "$(<"$WORK/table")"
check_between 'without weir: good answers' $LEAST 1000000 "$capacity"
check_between 'without weir: some in the storm' 1 1000000 "$alone"
check_between 'without weir, with priority and fairness: some in the storm' 1 1000000 "$fair"
check_between 'through weir: good answers' $LEAST 1000000 "$calm"
check_between 'refused at once: some' 1 1000000 "$at_once"
# A client gets its first 503 at once, and each of the others a second after the one before.
check_between 'API server gone, held: some answers, at most two a second for each client' 1 $((2 * STORM)) "$gone_held"
check_between 'API server gone, at once: far more' $((2 * STORM)) 10000000 "$gone_at_once"
# About six times as many where this was written.
check_between 'held: more than the storm without weir' $((alone + 1)) 1000000 "$held"
if nightly; then
    check_between 'held: at least 85 % of what 16 connections get through weir' "$through" 1000000 "$held"
    check_between 'held: at least 75 % of what they get without weir' "$without" 1000000 "$held"
    check_between 'held: at least 3 times the storm without weir' $((3 * alone)) 1000000 "$held"
fi
summary
