#!/usr/bin/env bash
# A watch continues while 700 connections overload everything else: each event arrives once, in
# order and soon.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl wrk

EVENTS=100
# Seconds; the requirement.
LATEST=5

configmaps=/api/v1/namespaces/default/configmaps
REFUSED='apiserver_dropped_requests_total{request_kind="readOnly"}'

# stamped ARGUMENT...: curl, with the time before each line that comes.
# shellcheck disable=SC2317,SC2329 # called by `start`
stamped() {
    curl -sS -N --cacert "$DIR/ca.crt" "$@" | while IFS= read -r line; do
        printf '%s %s\n' "$EPOCHREALTIME" "$line"
    done
}

# event NUMBER: makes a ConfigMap that says when it was sent.
event() {
    printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"event-%s"},"data":{"sent":"%s"}}' \
        "$1" "$EPOCHREALTIME" |
        get -o "$WORK/answer" -w '%{http_code}\n' -H "$(bearer alice)" -H 'Content-Type: application/json' \
            -d @- "$configmaps"
}

open_watches() {
    (($(metric 'apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"}') == $1))
}

overloaded() {
    (($(metric "$REFUSED") > 0))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
arrived() {
    (($(grep -c '"ADDED".*"event-' "$WORK/$1.out") >= EVENTS))
}

# reckon NAME: the numbers and the delays of its events, in the order in which they came.
reckon() {
    local name=$1
    check_ok "$name: every event arrives" within "$LIMIT" arrived "$name"
    sed -n 's/^\([0-9.]*\) {"type":"ADDED".*"name":"event-\([0-9]*\)".*/\1 \2 &/p' "$WORK/$name.out" |
        sed 's/^\([0-9.]* [0-9]*\) .*"sent":"\([0-9.]*\)".*/\1 \2/' |
        awk '{printf "%d %.3f\n", $2, $1 - $3}' >"$WORK/$name.events"
    check_ok "$name: once, and in order" cmp <(seq "$EVENTS") <(cut -d' ' -f1 "$WORK/$name.events")
    cut -d' ' -f2 "$WORK/$name.events" | sort -n >"$WORK/$name.delays"
    check "$name: none later than $LATEST s" 0 "$(awk -v most="$LATEST" '$1 > most' "$WORK/$name.delays" | wc -l)"
    awk -v name="$name" '{all[NR] = $1} END {
        printf "%s: delay of %d events: p50 %.3f s, p99 %.3f s, most %.3f s\n", \
            name, NR, all[int((NR + 1) / 2)], all[int(NR * 0.99 + 0.5)], all[NR]
    }' "$WORK/$name.delays"
}

playground play --enable-priority-and-fairness=false --max-requests-inflight 400 --capacity 100 --service-time 50ms
start watch-http1 stamped --http1.1 --cert "$DIR/alice.crt" --key "$DIR/alice.key" "$URL$configmaps?watch=1"
start watch-http2 stamped --http2 -H "$(bearer bob)" "$URL$configmaps?watch=1"
within "$LIMIT" open_watches 2 || die 'the watches are not open'
start wrk wrk -c 700 -t 2 -d 600s -H "$(bearer alice)" "$URL/api/v1/nodes"
within "$LIMIT" overloaded || die 'nothing is refused'
before=$(metric "$REFUSED")
for number in $(seq "$EVENTS"); do
    code=$(event "$number")
    [[ $code == 201 ]] || die "event $number was answered $code"
done
refused=$(($(metric "$REFUSED") - before))
signal wrk INT
finish wrk
check_between 'meanwhile requests are refused' 1000 1000000000 "$refused"
reckon watch-http1
reckon watch-http2
check_ok 'both watches are open still' open_watches 2
stopped play
finish watch-http1
check 'the watch over HTTP/1.1 ends cleanly' 0 "$STATUS"
finish watch-http2
check 'the watch over HTTP/2 ends cleanly' 0 "$STATUS"
summary
