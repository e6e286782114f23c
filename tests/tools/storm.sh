#!/usr/bin/env bash
# A storm of clients that never back off does not cost the good work: examples/storm.sh, and what it must show.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk wrk

check_ok 'the example runs' env WEIR="$WEIR" bash -c "'$ROOT/examples/storm.sh' 6 3 >'$WORK/table'"
cat "$WORK/table"

# good ROW: the good answers a second of a row, counted from the first below the table's head.
good() {
    awk -F'|' -v row="$(($1 + 2))" 'NR == row {print $3 + 0}' "$WORK/table"
}
capacity=$(good 1) alone=$(good 2) calm=$(good 3) held=$(good 5)
check_between 'held: at least 85 % of what 16 connections get through weir' $((calm * 85 / 100)) 1000000 "$held"
check_between 'held: at least 75 % of what they get without weir' $((capacity * 75 / 100)) 1000000 "$held"
check_between 'held: at least 3 times the storm without weir' $((3 * alone)) 1000000 "$held"
summary
