#!/usr/bin/env bash
# An API server that is killed during a list, a watch and an upload: the client gets a visible
# error, nothing hangs, and once the API server is back the next request succeeds.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl

configmaps=/api/v1/namespaces/default/configmaps
json='Content-Type: application/json'

# code ARGUMENT... PATH
code() {
    get -o "$WORK/body" -w '%{http_code}' "$@" 2>/dev/null || true
}

admin_code() {
    curl -sS --max-time 10 -o "$WORK/ready" -w '%{http_code}' "http://$ADMIN/readyz" 2>/dev/null || true
}

# A list that no buffers on the way can hold.
PODS=30000

# slowly ARGUMENT... PATH: curl whose answer is read a little, and then only once $WORK/read-on is there.
# shellcheck disable=SC2317,SC2329 # called by `start`
slowly() {
    curl -sS --max-time 120 --cacert "$DIR/ca.crt" "${@:1:$#-1}" "$URL${*: -1}" | {
        head -c 100000
        touch "$WORK/begun"
        within "$LIMIT" test -e "$WORK/read-on" || echo "$WORK/read-on is not there after $LIMIT s" >&2
        cat
    }
}

# shellcheck disable=SC2317,SC2329 # called by `within`
writing() {
    [[ $(metric 'apiserver_current_inflight_requests{request_kind="mutating"}') == "$1" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
ready() {
    [[ $(admin_code) == "$1" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
refused() {
    [[ $(code "$@") == 503 ]]
}

# drip FIFO: the beginning of a ConfigMap, and then a little more again and again, as long as somebody reads.
# shellcheck disable=SC2317,SC2329 # called by `start`
drip() {
    exec >"$1"
    printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"never"},"data":{"a":"'
    while printf a; do sleep 0.05; done 2>/dev/null
}

# aside NAME ARGUMENT... PATH: curl, beside; its answer goes to $WORK/NAME.body.
aside() {
    start "$1" curl -sS -N --max-time 120 --cacert "$DIR/ca.crt" -o "$WORK/$1.body" -w '%{http_code}' \
        "${@:2:$#-2}" "$URL${*: -1}"
}

# broken NAME WHAT: the client has ended, with an error or an answer that says so.
broken() {
    finish "$1" 10
    local answered
    answered=$(<"$WORK/$1.out")
    if [[ $STATUS == 0 && $answered == 50[23] ]]; then
        check_match "$2: the answer is $answered and says why" '"reason":"weir/upstream-' "$(<"$WORK/$1.body")"
    else
        check_between "$2: curl reports an error" 1 99 "$STATUS"
    fi
}

killed_once() {
    local http=$1 version=$2
    rm -f "$WORK/begun" "$WORK/read-on"
    start list slowly "$http" -H "$(bearer alice)" /api/v1/pods
    aside watch "$http" -H "$(bearer alice)" "$configmaps?watch=1"
    mkfifo "$WORK/upload-$version"
    start drip drip "$WORK/upload-$version"
    aside upload "$http" -X POST -H "$(bearer alice)" -H "$json" -T "$WORK/upload-$version" "$configmaps"
    check_ok "$http: a list is under way" within "$LIMIT" test -e "$WORK/begun"
    check_ok "$http: an upload is under way" within "$LIMIT" writing 1
    name=seen-$version
    check "$http: something to watch" 201 "$(code -H "$(bearer bob)" -H "$json" \
        -d "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"$name\"}}" "$configmaps")"
    check_ok "$http: a watch is under way" within "$LIMIT" grep -q "$name" "$WORK/watch.body"

    signal upstream KILL
    finish upstream
    check "$http: the API server is killed" 137 "$STATUS"
    touch "$WORK/read-on"
    finish list 10
    check_between "$http: the list: curl reports an error" 1 99 "$STATUS"
    check_between "$http: the list was cut" 100000 $((whole - 1)) "$(wc -c <"$WORK/list.out")"
    broken watch "$http: the watch"
    check_no_match "$http: nothing was added to the watch" 'Failure' "$(<"$WORK/watch.body")"
    broken upload "$http: the upload"
    finish drip

    # The first may meet a connection whose end nobody has seen yet.
    check_ok "$http: requests are refused" within "$LIMIT" refused "$http" -H "$(bearer alice)" /api/v1/nodes
    check_match "$http: and told why" '"reason":"weir/upstream-connect"' "$(<"$WORK/body")"
    check_ok "$http: weir is not ready" within "$LIMIT" ready 500
    check_ok "$http: all places come free" within "$LIMIT" writing 0

    apiserver upstream "$port" --pods "$PODS"
    URL=https://$front ADMIN=$admin
    check "$http: the API server is back, and the next request succeeds" 200 \
        "$(code "$http" -H "$(bearer alice)" /api/v1/nodes)"
    check "$http: for a certificate as well" 200 \
        "$(code "$http" --cert "$DIR/alice.crt" --key "$DIR/alice.key" /api/v1/nodes)"
    check_ok "$http: weir is ready" within "$LIMIT" ready 200
}

apiserver upstream 0 --pods "$PODS"
port=${ADDRESS##*:}
weir front "$ADDRESS" "${dawdling[@]}"
front=$ADDRESS
admin=$ADMIN
whole=$(get -H "$(bearer alice)" /api/v1/pods | wc -c)
for version in 1.1 2; do
    killed_once "--http$version" "$version"
done
stopped front
stopped upstream
summary
