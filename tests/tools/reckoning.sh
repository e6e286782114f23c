#!/usr/bin/env bash
# The limit holds and every rejection is counted: weir's metrics against the results of wrk and
# h2load.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl h2load wrk

IN_FLIGHT='apiserver_current_inflight_requests{request_kind="readOnly"}'
DROPPED='apiserver_dropped_requests_total{request_kind="readOnly"}'
LABELS='group="",resource="nodes",scope="cluster",subresource="",verb="LIST",version="v1"'
TERMINATED="apiserver_request_terminations_total{code=\"429\",component=\"apiserver\",$LABELS}"
REFUSED="apiserver_request_total{code=\"429\",component=\"apiserver\",dry_run=\"\",$LABELS}"
SERVED="apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",$LABELS}"
COUNTERS=(DROPPED TERMINATED REFUSED SERVED)

declare -A GREW=()

note() {
    curl -sS "http://$ADMIN/metrics" >"$WORK/before"
}

# grown: how far each counter has come since `note`, once everybody has gone.
grown() {
    local name
    check_ok "$1: all connections end" within "$LIMIT" at_zero 'weir_client_connections'
    curl -sS "http://$ADMIN/metrics" >"$WORK/after"
    for name in "${COUNTERS[@]}"; do
        GREW[$name]=$(($(series "${!name}" <"$WORK/after") - $(series "${!name}" <"$WORK/before")))
    done
}

# sampled NAME: looks at the gauge several times a second until NAME has ended; the values go to $WORK/gauge.
sampled() {
    : >"$WORK/gauge"
    until ended "$1" 2>/dev/null; do
        metric "$IN_FLIGHT" >>"$WORK/gauge"
        sleep 0.1
    done
    finish "$1"
}

check_gauge() {
    check_between "$1: the gauge was looked at several times a second" 30 1000 "$(wc -l <"$WORK/gauge")"
    check "$1: the gauge touches the limit and never passes it" 400 "$(sort -n "$WORK/gauge" | tail -n 1)"
}

with_wrk() {
    local refused
    note
    start wrk wrk -c 700 -t 2 -d 20s -H "$(bearer alice)" "$URL/api/v1/nodes"
    sampled wrk
    grown wrk
    check 'wrk ends' 0 "$STATUS"
    check_gauge wrk
    refused=$(awk '/Non-2xx or 3xx responses:/ {print $NF}' "$WORK/wrk.out")
    check_between 'wrk: some are refused' 1000 100000000 "${refused:-0}"
    # wrk throws away the answers that are under way when it ends, one for each connection.
    check_between "wrk: dropped, against the $refused that wrk saw" "$refused" $((refused + 700)) "${GREW[DROPPED]}"
    check 'wrk: terminations are the same' "${GREW[DROPPED]}" "${GREW[TERMINATED]}"
    check 'wrk: requests with code 429 are the same' "${GREW[DROPPED]}" "${GREW[REFUSED]}"
    grep -E 'requests in|Non-2xx|Requests/sec|Socket errors' "$WORK/wrk.out" || true
}

# with_h2load WHAT FLAG...
with_h2load() {
    local what=$1 refused served
    shift
    note
    start h2load h2load -n 50000 -c 100 "$@" -H "$(bearer alice)" "$URL/api/v1/nodes"
    sampled h2load
    grown "$what"
    check "$what ends" 0 "$STATUS"
    served=$(sed -n 's/^status codes: \([0-9]*\) 2xx.*/\1/p' "$WORK/h2load.out")
    refused=$(sed -n 's/^status codes:.* \([0-9]*\) 4xx.*/\1/p' "$WORK/h2load.out")
    check "$what: every request is answered" 50000 $((served + refused))
    check_between "$what: some are refused" 100 50000 "$refused"
    check "$what: dropped" "$refused" "${GREW[DROPPED]}"
    check "$what: terminations" "$refused" "${GREW[TERMINATED]}"
    check "$what: requests with code 429" "$refused" "${GREW[REFUSED]}"
    check "$what: requests with code 200" "$served" "${GREW[SERVED]}"
    grep -E '^(finished|status codes)' "$WORK/h2load.out"
}

playground play --enable-priority-and-fairness=false --max-requests-inflight 400 --capacity 100 --service-time 50ms
with_wrk
check_ok 'wrk: all places come free' within "$LIMIT" at_zero "$IN_FLIGHT"
with_h2load 'h2load' -m 10
check 'h2load: the gauge touches the limit and never passes it' 400 "$(sort -n "$WORK/gauge" | tail -n 1)"
check_ok 'h2load: all places come free' within "$LIMIT" at_zero "$IN_FLIGHT"
stopped play
summary
