#!/usr/bin/env bash
# Long-running requests as kubelets and Pods answer them: heads that come late, clients that pause, responses that end
# raggedly, answers that come before the request's body; and a large list whose client is slow. Over both versions of HTTP
# on both sides, with a stand-in for the API server and what is behind it.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import h2' || die 'python3-h2 is missing (.ci/run installs it)'

LATE=4         # seconds until the stand-in sends a late head
FLOOD=16777216 # bytes that it sends to a client that pauses
LIST=12582912  # bytes of the list
RESETS=10      # uploads whose connection is reset after the answer: their writes fail
# Kilobytes of uploads that are answered before they end. Over HTTP/2, curl 7.88 takes the reset that RFC 9113 8.1 asks for after
# such an answer for a failure if it still waits for the window.
declare -A UPLOADS=([1.1]='60 200 900' [2]='60')
PODS=/api/v1/namespaces/default/pods
SERVICES=/api/v1/namespaces/default/services

# stand_in NAME PROTOCOL...: a stand-in with the certificates of $DIR. Sets STAND_IN to its address.
stand_in() {
    local name=$1
    shift
    start "$name" python3 "$ROOT/tests/tools/long-running.py" serve "$DIR" "$WORK/$name.address" "$@"
    within "$LIMIT" test -s "$WORK/$name.address" || die "$name does not serve: $(tail -n 3 "$WORK/$name.err")"
    STAND_IN=$(<"$WORK/$name.address")
}

# ask OUTPUT VERSION PATH [FLAG...]: what weir answers to alice, and `CODE BYTES EXIT` in OUTPUT.code.
ask() {
    local output=$1 version=$2 path=$3 code=0
    shift 3
    curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -H "$(bearer alice)" "--http$version" -o "$WORK/$output" \
        -w '%{http_code} %{size_download}' "$@" "$URL$path" >"$WORK/$output.said" 2>"$WORK/$output.err" || code=$?
    printf '%s %s' "$(<"$WORK/$output.said")" "$code" >"$WORK/$output.code"
}

# pause OUTPUT VERSION PATH SECONDS: the number of bytes that come to a client that reads nothing for so long first.
pause() {
    { curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -H "$(bearer alice)" "--http$2" "$URL$3" 2>"$WORK/$1.err" || true; } |
        (sleep "$4" && wc -c) >"$WORK/$1.bytes"
}

# exec_ OUTPUT PATH PAUSE: the status and the number of bytes of a tunnel.
exec_() {
    python3 "$ROOT/tests/tools/long-running.py" exec "$ADDRESS" "$DIR" "$(token alice)" "$2" "$3" >"$WORK/$1.bytes"
}

# bytes OUTPUT
bytes() {
    awk '{print $NF}' "$WORK/$1.bytes"
}

for kilobytes in 60 200 900 2500; do
    head -c "${kilobytes}000" /dev/zero >"$WORK/upload-$kilobytes"
done
apiserver pki 0
stopped pki
for far in http/1.1 h2; do
    stand_in "far-${far%/*}" "$far" http/1.1
    weir "near-${far%/*}" "$STAND_IN" --request-timeout=2s --min-transfer-rate-grace=1s --logging-format text
    # All at once: each waits for a few seconds.
    asking=()
    for near in 1.1 2; do
        id=$near-${far%/*}
        ask "log-$id" $near "$PODS/silent/log?follow=true" & asking+=($!)
        ask "proxy-$id" $near "$PODS/p/proxy/silent" & asking+=($!)
        ask "service-$id" $near "$SERVICES/s/proxy/silent" & asking+=($!)
        ask "watch-$id" $near "/api/v1/namespaces/silent/pods?watch=1" & asking+=($!)
        ask "ragged-$id" $near "$PODS/ragged/log?follow=true" & asking+=($!)
        ask "list-$id" $near /api/v1/pods --limit-rate 2M & asking+=($!)
        for kilobytes in ${UPLOADS[$near]}; do
            ask "early-$kilobytes-$id" $near /api/v1/namespaces/early/configmaps -H 'Expect:' \
                -H 'Content-Type: application/json' --data-binary "@$WORK/upload-$kilobytes" & asking+=($!)
        done
        ask "host-$id" $near "$SERVICES/s/proxy/echo" -H 'Host: app.example' & asking+=($!)
        pause "pause-log-$id" $near "$PODS/flood/log?follow=true" $LATE & asking+=($!)
        pause "pause-proxy-$id" $near "$SERVICES/s/proxy/flood" $LATE & asking+=($!)
        pause "pause-watch-$id" $near "/api/v1/namespaces/flood/pods?watch=1" $LATE & asking+=($!)
    done
    exec_ "exec-${far%/*}" "$PODS/p/exec?command=sh" $LATE & asking+=($!)
    exec_ "stuck-${far%/*}" "$PODS/stuck/exec?command=sh" 0 & asking+=($!)
    wait "${asking[@]}"
    for near in 1.1 2; do
        id=$near-${far%/*}
        over="(HTTP/$near, $far upstream)"
        for what in log proxy service watch; do
            check "a late head: $what $over" "200 5 0" "$(<"$WORK/$what-$id.code")"
        done
        check_match "a log that ends raggedly: every byte, and no clean end $over" '^200 100000 [1-9]' "$(<"$WORK/ragged-$id.code")"
        check "a list whose client is slower than the server's patience $over" "200 $LIST 0" "$(<"$WORK/list-$id.code")"
        for kilobytes in ${UPLOADS[$near]}; do
            check_match "an answer before the end of an upload of $kilobytes KB $over" '^401 6 ' \
                "$(<"$WORK/early-$kilobytes-$id.code")"
        done
        check "an app is asked by the name that its client used $over" 'app.example app.example https' \
            "$(jq -r '"\(.host // .[":authority"]) \(."x-forwarded-host") \(."x-forwarded-proto")"' "$WORK/host-$id")"
        for what in log proxy watch; do
            check "a pause: $what $over" $FLOOD "$(bytes "pause-$what-$id")"
        done
    done
    check "a tunnel that begins late, and a pause ($far upstream)" "101 $FLOOD" "$(<"$WORK/exec-${far%/*}.bytes")"
    check "a command that does not read its input for a while ($far upstream)" "101 $FLOOD" "$(<"$WORK/stuck-${far%/*}.bytes")"
    if [[ $far == http/1.1 ]]; then
        for ((n = 0; n < RESETS; n++)); do
            ask reset 1.1 /api/v1/namespaces/reset/configmaps -H 'Expect:' --data-binary "@$WORK/upload-2500"
            cat "$WORK/reset.code"
            echo
        done >"$WORK/resets"
        check 'an answer before the end of an upload, and a reset' "$RESETS" "$(grep -c '^401 6 ' "$WORK/resets")"
    fi
    check 'nothing was cut off for its rate' 0 "$(metric 'weir_slow_transfers_ended_total{phase="response_body"}')"
    stopped "near-${far%/*}"
done

# What protects others is left: a client without a proven user has a deadline and a rate, and a pause has an end.
weir bounded "$STAND_IN" --request-timeout=2s --min-transfer-rate-grace=1s --long-running-pause-timeout=2s \
    --logging-format text
for near in 1.1 2; do
    code=$(curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" "--http$near" -o "$WORK/anonymous" -w '%{http_code}' \
        "$URL$PODS/silent/log") || true
    check "a late head without a user (HTTP/$near)" 504 "$code"
    pause "cut-$near" $near "$PODS/flood/log?follow=true" $LATE
    check_between "a pause that is too long (HTTP/$near)" 1 $((FLOOD - 1)) "$(bytes "cut-$near")"
done
check_match 'the log says whose, and which flag' \
    'path="?'"$PODS"'/flood/log"? user="?alice"? .*flag="?--long-running-pause-timeout' "$(<"$WORK/bounded.err")"
stopped bounded
summary
