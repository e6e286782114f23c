#!/usr/bin/env bash
# An API server whose memory ends when too many lists are served at a time. Without weir 40 clients that list everything at once end
# it; behind weir with a budget of bytes each is served, and small reads beside them.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq wrk

CLIENTS=40
# For 14 lists of 4.6 MB at a time.
MEMORY=64Mi
server=(--pods 3000 --list-memory-limit "$MEMORY")

# list_all USER [HEADER]: as many clients as there are list all pods at once; their codes are in $WORK/codes.
list_all() {
    local client clients=()
    for ((client = 0; client < CLIENTS; client++)); do
        get -o /dev/null -w '%{http_code} %{size_download}\n' -H "$(bearer "$1")" /api/v1/pods >"$WORK/code.$client" 2>/dev/null &
        clients+=($!)
    done
    wait "${clients[@]}" || true
    cat "$WORK"/code.* >"$WORK/codes"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
lists_wait() {
    (($(metric weir_list_bytes_waiting) > 0))
}

# All are there before the first one has ended, also on a slow machine.
apiserver alone 0 "${server[@]}" --service-time 3s
check 'one list alone is served' 200 "$(get -o "$WORK/list" -w '%{http_code}' -H "$(bearer alice)" /api/v1/pods)"
bytes=$(stat -c %s "$WORK/list")
check_between 'nine of them have room, 40 have not' 1700000 7400000 "$bytes"
list_all alice
finish alone
check 'without weir the API server dies' 137 "$STATUS"
check_ok '... and says why' grep -q 'out of memory: the lists take' "$WORK/alone.err"

apiserver behind 0 "${server[@]}" --service-time 500ms
# So many seats that nothing waits for one.
start weir "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" \
    --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" \
    --kubeconfig "$DIR/kubeconfig" --api-server-memory "$MEMORY" --max-list-bytes-inflight 25% \
    --request-timeout 4m --max-requests-inflight 2000 --max-mutating-requests-inflight 1000
fronting weir
check 'a quarter of its memory is the budget: three lists' $((16 << 20)) "$(metric weir_list_bytes_limit)"
within "$LIMIT" logged_or_ended weir "seats are estimated by the API server's own object counts" || die 'no object counts'

# 100 clients of 500 ms each: 200 reads a second.
start reads wrk --latency --timeout 30s -c 100 -t 1 -d 600s -H "$(bearer bob)" "$URL/api/v1/namespaces/default"
list_all alice &
listing=$!
check_ok 'lists wait for bytes' within "$LIMIT" lists_wait
wait "$listing"
check 'behind weir each of them is served, whole' "$CLIENTS 200 $bytes" "$(sort "$WORK/codes" | uniq -c | awk '{print $1, $2, $3}')"
check 'the API server lives' 200 "$(get -o /dev/null -w '%{http_code}' -H "$(bearer alice)" /api/v1/namespaces/default)"
check 'nothing is in flight at the end' '0 0' "$(metric weir_list_bytes_inflight) $(metric weir_list_bytes_waiting)"
check_between 'they have waited' 1 "$CLIENTS" "$(metric weir_list_bytes_wait_seconds_count)"
signal reads INT
finish reads
check_ok 'no small read beside them was rejected' bash -c "! grep -E 'Non-2xx|Socket errors' '$WORK/reads.out'"
cat "$WORK/reads.out"
stopped weir
summary
