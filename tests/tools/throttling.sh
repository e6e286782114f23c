#!/usr/bin/env bash
# Rejections in Prometheus equal those that clients received: examples/throttling.sh and its
# expected results.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl h2load jq prometheus wrk

CONNECTIONS=700
REQUESTS=50000
export LIMIT=400

check_ok 'the example runs' env WEIR="$WEIR" bash -c "'$ROOT/examples/throttling.sh' 10 $REQUESTS >'$WORK/table'"
cat "$WORK/table"

# said ROW COLUMN: a number of the table, rows counted from the first below its head; column 1 is wrk's, 2 is h2load's.
said() {
    awk -F'|' -v row="$(($1 + 2))" -v column="$(($2 + 2))" 'NR == row {print $column + 0}' "$WORK/table"
}

refused=$(said 1 1)
check_between 'wrk: some are refused' 1000 100000000 "$refused"
# wrk throws away the answers that are under way when it ends, one for each connection.
check_between "wrk: terminations, against the $refused that it counted" "$refused" $((refused + CONNECTIONS)) "$(said 2 1)"
check 'wrk: requests with code 429 are the same' "$(said 2 1)" "$(said 3 1)"
check 'wrk: dropped are the same' "$(said 2 1)" "$(said 4 1)"
check 'wrk: what is in flight touches the limit and never passes it' "$LIMIT" "$(said 7 1)"

refused=$(said 1 2)
check_between 'h2load: some are refused' 100 "$REQUESTS" "$refused"
check 'h2load: every request is answered' "$REQUESTS" $((refused + $(said 5 2)))
check 'h2load: terminations are what it counted' "$refused" "$(said 2 2)"
check 'h2load: so are requests with code 429' "$refused" "$(said 3 2)"
check 'h2load: and dropped ones' "$refused" "$(said 4 2)"
check 'h2load: and requests with code 200' "$(said 5 2)" "$(said 6 2)"
check_between 'h2load: what is in flight never passes the limit' 1 "$LIMIT" "$(said 7 2)"

least=0 more=0
read -r least more < <(sed -n 's/^alice: \([0-9]*\) of .* at most \([0-9]*\) more.*/\1 \2/p' "$WORK/table") || true
check_between 'alice is named, as exactly as is said' "$least" $((least + more)) $(($(said 2 1) + $(said 2 2)))
check_between '... which is to one in a hundred' 0 $((least / 100)) "$more"
refused=$(sed -n 's/^the audit log, .* counted \([0-9]*\) refused:$/\1/p' "$WORK/table")
check_between 'some of a few more are refused' 100 5000 "$refused"
check 'the audit log names alice and code 429 as often' "$refused alice: code 429" \
    "$(grep 'code 429$' "$WORK/table" | sed 's/^ *//')"
summary
