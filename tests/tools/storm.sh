#!/usr/bin/env bash
# A storm of clients that never back off does not cost the good work: examples/storm.sh, and what it must show.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk wrk

# good ROW: the good answers a second of a row, counted from the first below the table's head.
good() {
    awk -F'|' -v row="$(($1 + 2))" 'NR == row {print $3 + 0}' "$WORK/table"
}

# Whatever else the machine does meanwhile can spoil one table, hardly two; a weir that does not keep the storm away
# spoils both.
for _ in 1 2; do
    check_ok 'the example runs' env WEIR="$WEIR" bash -c "'$ROOT/examples/storm.sh' >'$WORK/table'"
    cat "$WORK/table"
    capacity=$(good 1) alone=$(good 2) calm=$(good 3) held=$(good 5)
    through=$((calm * 85 / 100)) without=$((capacity * 75 / 100))
    if ((held >= through && held >= without && held >= 3 * alone)); then break; fi
done
check_between 'held: at least 85 % of what 16 connections get through weir' "$through" 1000000 "$held"
check_between 'held: at least 75 % of what they get without weir' "$without" 1000000 "$held"
check_between 'held: at least 3 times the storm without weir' $((3 * alone)) 1000000 "$held"
summary
