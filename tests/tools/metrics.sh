#!/usr/bin/env bash
# The metrics of a weir that has seen some of everything: all that kube-apiserver has and a proxy can know, with its types,
# labels and buckets (prometheus/upstream.txt is the list), nothing that names a user, and the certificates' ends.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need curl h2load openssl promtool python3

LIST=$ROOT/tests/tools/prometheus/upstream.txt
SHAPES=$ROOT/tests/tools/prometheus/shapes.py

# What promtool has against names that are kube-apiserver's own.
UPSTREAMS_OWN='apiserver_flowcontrol_latest_s metric names should not contain abbreviated units
apiserver_flowcontrol_next_discounted_s_bounds metric names should not contain abbreviated units
apiserver_flowcontrol_next_s_bounds metric names should not contain abbreviated units
authenticated_user_requests counter metrics should have "_total" suffix
authentication_attempts counter metrics should have "_total" suffix'

# code ARGUMENT... PATH: the code of the answer.
code() {
    get -o /dev/null -w '%{http_code}' "$@"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
at_least() {
    (($(metric "$1") >= $2))
}

# One who writes, one who reads, one with a certificate, a stranger; a flood that queues, waits and is refused.
some_of_everything() {
    local configmap='{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}' json='Content-Type: application/json'
    check 'a list' 200 "$(code -H "$ALICE" /api/v1/nodes)"
    check 'a token that nobody knows' 401 "$(code -H 'Authorization: Bearer nobody' /version)"
    check 'a certificate' 200 "$(code --cert "$DIR/alice.crt" --key "$DIR/alice.key" /api/v1/nodes)"
    check 'a write' 201 "$(code -H "$ALICE" -H "$json" -d "$configmap" /api/v1/namespaces/default/configmaps)"
    check 'readiness' 200 "$(curl -sS -o /dev/null -w '%{http_code}' "http://$ADMIN/readyz")"
    start watch curl -sSN --cacert "$DIR/ca.crt" -H "$ALICE" \
        "$URL/api/v1/nodes?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    check_ok 'a watch has sent what there was' within "$LIMIT" at_least \
        'apiserver_watch_list_duration_seconds_count{group="",resource="nodes",scope="cluster",version="v1"}' 1
    start flood h2load -n 3000 -c 60 -m 10 -H "$ALICE" "$URL/api/v1/nodes"
    finish flood 120
    check 'a flood ends' 0 "$STATUS"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
refused() {
    [[ $(code -H "$ALICE" /api/v1/nodes) == 503 ]]
}

# The watch breaks off with its API server.
api_server_dies() {
    signal back KILL
    finish back
    finish watch
    check_ok 'an answer that breaks off is counted' within "$LIMIT" at_least \
        'apiserver_request_aborts_total{group="",resource="nodes",scope="cluster",subresource="",verb="WATCH",version="v1"}' 1
    # The first may meet a connection whose end nobody has seen yet.
    check_ok 'no request finds the API server' within "$LIMIT" refused
    # Nobody asks for it: weir does by itself.
    check_ok 'the metric of readiness says so' within "$LIMIT" at_zero weir_ready
    check 'and readiness itself' 500 "$(curl -sS -o /dev/null -w '%{http_code}' "http://$ADMIN/readyz")"
}

# ends FILE: when the certificate ends, in seconds since 1970.
ends() {
    date -d "$(openssl x509 -noout -enddate -in "$1" | cut -d= -f2)" +%s
}

apiserver back 0 --service-time 20ms
weir front "$ADDRESS" --max-requests-inflight 8 --max-mutating-requests-inflight 2 --rejection-hold 10ms
ALICE=$(bearer alice)
some_of_everything
check 'weir is ready' 1 "$(metric weir_ready)"
api_server_dies
curl -sS "http://$ADMIN/metrics" >"$WORK/scrape"
check "all that a proxy can know is there as upstream has it, and nothing else of upstream's" '' \
    "$(python3 "$SHAPES" "$LIST" "$WORK/scrape")"
check "promtool has nothing against it but upstream's own names" "$UPSTREAMS_OWN" \
    "$(promtool check metrics <"$WORK/scrape" 2>&1 | sort)"
check 'no user is named' 0 "$(grep -c alice "$WORK/scrape")"
for which in serving:tls front-proxy:front-proxy-client; do
    check "the end of the certificate ${which%:*}" "$(ends "$DIR/${which#*:}.crt")" \
        "$(metric "weir_certificate_expiration_timestamp_seconds{which=\"${which%:*}\"}")"
done
check 'the seats there are' 10 "$(metric weir_server_concurrency_limit_seats)"
check_between 'the processor time that was used, in ms' 1 600000 \
    "$(awk '$1 == "process_cpu_seconds_total" {print int($2 * 1000)}' "$WORK/scrape")"
summary
