#!/usr/bin/env bash
# Requests that are given up at once cost weir no more than refusals, and the table of held refusals no room.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import h2' || die 'python3-h2 is missing (.ci/run installs it)'

STREAMS=1000

# ticks: CPU time of weir, in hundredths of a second.
ticks() {
    awk '{print $14 + $15}' "/proc/${PIDS[front]}/stat"
}

# many WHAT ROUNDS: COST is weir's CPU time for a stream, in nanoseconds.
many() {
    local before opened connections
    before=$(ticks)
    read -r opened connections < <(python3 "$ROOT/tests/tools/cancelled.py" "$ADDRESS" "$DIR/ca.crt" "$(token alice)" "$@")
    COST=$((($(ticks) - before) * 10000000 / opened))
    printf '%s: %s streams on %s connections, %s ns each\n' "$1" "$opened" "$connections" "$COST"
}

apiserver back 0 --capacity 1 --service-time 10m
weir front "$ADDRESS" --enable-priority-and-fairness=false --max-requests-inflight=1 \
    --http2-max-streams-per-connection=$STREAMS --request-timeout=10m "$@"
start holder curl -sS --cacert "$DIR/ca.crt" -H "$(bearer bob)" "$URL/api/v1/nodes"
check_ok 'the only place is taken' within "$LIMIT" bash -c \
    "curl -sS http://$ADMIN/metrics | grep -q '^apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1'"

# The first refusals of a connection's flow are said at once; those that follow wait, half of the streams at most.
many wait $STREAMS 5
held=$(metric 'weir_rejection_hold_seconds_count')
check_between 'of 5 rounds some are held, never more than half of the streams at a time' 1 $((5 * STREAMS / 2)) "$held"
check_ok 'nothing is held any more' within "$LIMIT" at_zero 'weir_rejection_holds'

signal holder KILL
stopped front
weir front "$(<"$DIR/address")" --enable-priority-and-fairness=false --max-requests-inflight=1 \
    --http2-max-streams-per-connection=$STREAMS --request-timeout=10m --rejection-hold=0
start another curl -sS --cacert "$DIR/ca.crt" -H "$(bearer bob)" "$URL/api/v1/nodes"
check_ok 'the only place is taken again' within "$LIMIT" bash -c \
    "curl -sS http://$ADMIN/metrics | grep -q '^apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1'"
many wait $STREAMS 60
refusal=$COST
many cancel $STREAMS 60
check_between "a cancelled stream costs no more than a refusal ($refusal ns), a quarter allowed for noise" \
    0 $((refusal * 5 / 4)) "$COST"
check_ok 'all connections end' within "$LIMIT" bash -c \
    "curl -sS http://$ADMIN/metrics | grep -q '^weir_client_connections 1$'"
signal another KILL
stopped front
summary
