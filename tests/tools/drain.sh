#!/usr/bin/env bash
# SIGTERM: unready at once, otherwise served as usual for a while, then no new connections. Requests
# in flight finish, watches end cleanly, exit code 0.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl

configmaps=/api/v1/namespaces/default/configmaps
WRITING='apiserver_current_inflight_requests{request_kind="mutating"}'

# code ARGUMENT... PATH
code() {
    get -o "$WORK/body" -w '%{http_code}' "$@" 2>/dev/null || true
}

admin_code() {
    curl -sS --max-time 5 -o "$WORK/body" -w '%{http_code}' "http://$ADMIN$1" 2>/dev/null || true
}

# shellcheck disable=SC2317,SC2329 # called by `within`
not_ready() {
    [[ $(admin_code /readyz) == 500 ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
closed() {
    ! curl -s --max-time 5 --cacert "$DIR/ca.crt" "$URL/version"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
open_watches() {
    [[ $(curl -sS "http://$ADMIN/metrics" | grep -c '^apiserver_longrunning_requests.* 1$') == "$1" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
writing() {
    [[ $(metric "$WRITING") == "$1" ]]
}

# upload VERSION: begins one that goes on when something is written to $WORK/body$VERSION, and ends with that.
upload() {
    mkfifo "$WORK/body$1"
    start "upload$1" curl -sS --max-time 60 -o "$WORK/made$1" -w '%{http_code}' "--http$1" -X POST -T "$WORK/body$1" \
        --cacert "$DIR/ca.crt" -H "$(bearer alice)" -H 'Content-Type: application/json' "$URL$configmaps"
}

# map NAME: a ConfigMap.
map() {
    printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"}}' "$1"
}

in_order() {
    local version
    # What is held open here sends nothing for a while, on purpose.
    playground play --shutdown-delay-duration 10s --shutdown-watch-termination-grace-period 10s "${dawdling[@]}"
    start watch1.1 curl -sS -N --http1.1 --cacert "$DIR/ca.crt" -H "$(bearer alice)" "$URL$configmaps?watch=1"
    start watch2 curl -sS -N --http2 --cacert "$DIR/ca.crt" -H "$(bearer bob)" "$URL/api/v1/nodes?watch=1"
    check_ok 'two watches are open' within "$LIMIT" open_watches 2
    check 'ready: the admin port' 200 "$(admin_code /readyz)"
    check "ready: the clients' port" 200 "$(code /readyz)"
    # Two uploads, held open on both versions of HTTP.
    upload 1.1
    upload 2
    exec 5>"$WORK/body1.1" 6>"$WORK/body2"
    check_ok 'two uploads are under way' within "$LIMIT" writing 2

    signal play TERM
    check_ok 'not ready at once: the admin port' within 5 not_ready
    check "not ready at once: the clients' port" 500 "$(code --http2 /readyz)"
    check "not ready at once: the clients' port, over HTTP/1.1" 500 "$(code --http1.1 /readyz)"
    check 'alive still' 200 "$(admin_code /livez)"
    check 'requests are let in still' 200 "$(code -H "$(bearer alice)" /api/v1/nodes)"
    check_ok 'after the delay there are no new connections' within "$LIMIT" closed
    check_ok 'the uploads are under way still' writing 2
    check_ok 'and the watches are open' open_watches 2

    map made-by-1.1 >&5
    map made-by-2 >&6
    exec 5>&- 6>&-
    for version in 1.1 2; do
        finish "upload$version"
        check "an upload under way finishes: HTTP/$version" '0 201' "$STATUS $(<"$WORK/upload$version.out")"
        check_match "and is answered: HTTP/$version" "made-by-$version" "$(<"$WORK/made$version")"
        finish "watch$version"
        check "the watch ends cleanly: HTTP/$version" 0 "$STATUS"
    done
    check_match 'it has told of what there was' '"type":"ADDED".*"kind":"Node"' "$(head -n 1 "$WORK/watch2.out")"
    finish play
    check 'exit code 0' 0 "$STATUS"
}

at_once() {
    rm -f "$WORK/body1.1"
    playground hasty --shutdown-delay-duration 60s "${dawdling[@]}"
    upload 1.1
    exec 5>"$WORK/body1.1"
    check_ok 'an upload is under way' within "$LIMIT" writing 1
    signal hasty TERM
    check_ok 'the first signal' within "$LIMIT" not_ready
    signal hasty TERM
    finish hasty 10
    check 'a second signal ends it at once, and the exit code says so' 1 "$STATUS"
    exec 5>&- # this curl looks at the connection only when it is not waiting for input
    finish upload1.1 10
    check_between 'the client sees that' 1 99 "$STATUS"
}

in_order
at_once
summary
