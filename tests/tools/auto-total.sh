#!/usr/bin/env bash
# A total that weir finds by itself: under a flood it shrinks until a small read takes about the target inside the API server, and
# a reload changes to a number and back. Judges counts and states, no rate.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need curl jq wrk

total() { curl -sS --max-time "$LIMIT" "http://$ADMIN/status.json" | jq -r ".total.$1"; }
# shellcheck disable=SC2317,SC2329 # called by `within`
total_at_most() { [[ $(total seats) =~ ^[0-9]+$ ]] && ((BASH_REMATCH[0] <= $1)); }
# shellcheck disable=SC2317,SC2329 # called by `within`
total_is() { [[ $(total seats) == "$1" ]]; }
# shellcheck disable=SC2317,SC2329 # called by `within`
read_within() { [[ $(total readMs) != null ]] && jq -en "$(total readMs) < $1" >/dev/null; }

# The API server works on ten requests at full speed, 10 ms each: with N inside, each takes N ms.
apiserver api 0 --capacity 10 --service-time 10ms
printf 'maxRequestsInflight: auto\n' >"$WORK/weir.yaml"
start auto "$WEIR" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
    --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
    --token-auth-file "$DIR/tokens.csv" --kubeconfig "$DIR/kubeconfig" --config "$WORK/weir.yaml"
fronting auto

check 'it begins at the bound, 0.9 of 600' '540 540' "$(total seats) $(total most)"
check 'it says why' 'the start: as much as there may be' "$(total reason)"

start flood wrk -t 2 -c 700 -d 600s -H "$(bearer alice)" "$URL/api/v1/nodes"
check_ok 'under a flood it shrinks to less than half' within "$(soon 60)" total_at_most 260
check_ok 'until a small read takes less than twice the target' within "$(soon 60)" read_within 200
check 'the server was too slow' 'small reads are slower than the target' "$(total reason)"
check_between 'the levels have so many seats' 35 300 "$(metric weir_server_concurrency_limit_seats)"
check_ok 'the log says it' grep -q 'the total has changed' "$WORK/auto.err"
check_between 'its reads are counted' 5 1000000 "$(metric weir_server_probe_seconds_count)"

printf 'maxRequestsInflight: 40\nmaxMutatingRequestsInflight: 20\n' >"$WORK/weir.yaml"
check_ok 'a number takes over' within "$LIMIT" total_is null
check 'with so many seats' 60 "$(metric weir_server_concurrency_limit_seats)"
printf 'maxRequestsInflight: auto\n' >"$WORK/weir.yaml"
check_ok 'and auto again' within "$LIMIT" total_at_most 540
summary
