#!/usr/bin/env bash
# A hundred thousand users and as many user agents: weir shows the top ten of each, its memory stays
# within bounds, and it has no more series than before.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq python3 wrk

CROWD=100000
MOST_GROWTH=$((64 * 1024)) # KiB

# resident: KiB of weir now.
resident() {
    awk '/VmRSS/ {print $2}' "/proc/${PIDS[front]}/status"
}

# series_count: how many weir has.
series_count() {
    curl -sS --max-time 10 "http://$ADMIN/metrics" | grep -vc '^#'
}

# top PARAMETERS: those who do most in the last five minutes; the crowd needs less.
top() {
    curl -sS --max-time 10 "http://$ADMIN/debug/top_talkers?window=5m&$1"
}

# total: all requests of the last five minutes.
total() {
    top by=user | jq .total.requests
}

# check_top BY PREFIX: the ten that are shown are those who have sent most, in that order, and the counts are as exact as is said.
check_top() {
    local answer who sent name least most
    answer=$(top "by=$1&sort=requests&limit=11")
    # The first user, without a user agent, has sent more than any of them.
    jq -r '.rows[] | select(.name != "alice" and .name != "<none>")
        | "\(.name) \(.requests) \(.requests + .error.requests)"' <<<"$answer" | sed 's#/1.0 # #' | head -n 10 >"$WORK/shown"
    check "by $1: the true top 10 are the shown top 10" \
        "$(awk '/^sent hot-/ {print $3, $2}' "$WORK/crowd.out" | sort -rn | awk -v prefix="$2" '{print prefix $2}')" \
        "$(cut -d ' ' -f 1 "$WORK/shown")"
    while read -r name least most; do
        who=${name#"$2"}
        sent=$(awk -v who="$who" '$1 == "sent" && $2 == who {print $3}' "$WORK/crowd.out")
        check_between "by $1: $who has sent $least to $most" "$least" "$most" "$sent"
    done <"$WORK/shown"
    jq -c '{coveredSeconds, total: .total.requests, maxError: .maxError.requests}' <<<"$answer"
}

apiserver back 0
# With a total of its own weir does not look how long reads take, which has series from the first time on.
weir front "$ADDRESS" --requestheader-client-ca-file "$DIR/front-proxy-ca.crt" \
    --max-requests-inflight 400 --max-mutating-requests-inflight 200
# Connections, buffers and series come to be.
start warm wrk -c 16 -t 2 -d 5s -H "$(bearer alice)" "$URL/api/v1/namespaces/default"
finish warm
check 'a first user ends' 0 "$STATUS"
check_match 'and comes by a front proxy, too' '"kind":"Namespace"' "$(get --cert "$DIR/front-proxy-client.crt" \
    --key "$DIR/front-proxy-client.key" -H 'X-Remote-User: alice' -H 'User-Agent:' /api/v1/namespaces/default)"
check 'and is the first that is shown' alice "$(top 'by=user' | jq -r '.rows[0].name')"
# What weir asks by itself now and then has its series as well.
check 'the API server answers weir' 200 "$(curl -sS -o "$WORK/body" -w '%{http_code}' "http://$ADMIN/readyz")"
check_ok 'who was there has gone' within "$LIMIT" at_zero weir_client_connections
total=$(total)
series=$(series_count)
before=$(resident)
start crowd python3 "$ROOT/tests/tools/talkers.py" "$ADDRESS" "$DIR" "$CROWD"
finish crowd 200
after=$(resident)
check 'the crowd ends' 0 "$STATUS"
check 'all of them have been there' $((2 * CROWD)) $(($(total) - total))
# It may shrink, too, as the allocator gives back.
check_between 'memory grows by less than 64 MiB, in KiB' 0 "$MOST_GROWTH" "$((after > before ? after - before : 0))"
check 'the number of series does not grow' "$series" "$(series_count)"
check_top user ''
check_top userAgent agent-of-
stopped front
stopped back
summary
