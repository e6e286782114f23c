#!/usr/bin/env bash
# A total that weir finds by itself: under a flood it shrinks until a small read takes about the target inside the API server, and
# a reload changes to a number and back. Three replicas agree on one, also while one of them is killed. Judges counts and states, no
# rate.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need curl jq openssl wrk

total() { curl -sS --max-time "$LIMIT" "http://$ADMIN/status.json" | jq -r ".total.$1"; }
# shellcheck disable=SC2317,SC2329 # called by `within`
total_at_most() { [[ $(total seats) =~ ^[0-9]+$ ]] && ((BASH_REMATCH[0] <= $1)); }
# shellcheck disable=SC2317,SC2329 # called by `within`
total_is() { [[ $(total seats) == "$1" ]]; }
# shellcheck disable=SC2317,SC2329 # called by `within`
read_within() { [[ $(total readMs) != null ]] && jq -en "$(total readMs) < $1" >/dev/null; }

# Servers with limits of their own: the bound is a share of the sum of what each of them publishes at its own address.
apiserver small 0 --apiserver-concurrency-limit 300
cp -r "$DIR" "$WORK/large"
servers=https://$ADDRESS
apiserver large 0 --apiserver-concurrency-limit 500
start both "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" \
    --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" \
    --kubeconfig "$DIR/kubeconfig" --upstream "$servers,$URL"
fronting both
# shellcheck disable=SC2317,SC2329 # called by `within`
most_between() { local most; most=$(total most) && ((most >= $1 && most <= $2)); }
# kube-apiserver rounds the seats of each level up.
check_ok 'two servers with 300 and 500 seats allow 0.9 of 800 together' within "$LIMIT" most_between 720 750
signal both KILL

# The API server works on ten requests at full speed, 50 ms each: with N inside, each takes 5 N ms. That is 200 requests a second,
# which also a machine with other load reaches, and with it the total depends on the API server alone.
apiserver api 0 --capacity 10 --service-time 50ms
API=$URL
: >"$WORK/weir.yaml"
start auto "$WEIR" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
    --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
    --token-auth-file "$DIR/tokens.csv" --kubeconfig "$DIR/kubeconfig" --config "$WORK/weir.yaml" --target-latency 500ms
fronting auto

check 'it begins at the bound, 0.9 of 600' '540 540' "$(total seats) $(total most)"
check 'it says why' 'the start: as much as there may be' "$(total reason)"

start flood wrk -t 2 -c 320 -d 600s -H "$(bearer alice)" "$URL/api/v1/nodes"
check_ok 'under a flood it shrinks to less than half' within "$(soon 60)" total_at_most 260
check_ok 'until a small read takes less than twice the target' within "$(soon 60)" read_within 1000
check 'the server was too slow' 'small reads are slower than the target' "$(total reason)"
check_between 'the levels have so many seats' 35 300 "$(metric weir_server_concurrency_limit_seats)"
check_ok 'the log says it' grep -q 'the total has changed' "$WORK/auto.err"
check_between 'its reads are counted' 5 1000000 "$(metric weir_server_probe_seconds_count)"

printf 'maxRequestsInflight: 40\nmaxMutatingRequestsInflight: 20\n' >"$WORK/weir.yaml"
check_ok 'a number takes over' within "$LIMIT" total_is null
check 'with so many seats' 60 "$(metric weir_server_concurrency_limit_seats)"
: >"$WORK/weir.yaml"
check_ok 'and auto again' within "$LIMIT" total_at_most 540

declare -A ADMINS=() URLS=() PORTS=()
for name in one two three; do PORTS[$name]=$(free_port); done
peer_certificates weir-peer

replica() {
    start "$1" "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" \
        --kubeconfig "$DIR/kubeconfig" --target-latency 500ms --replica-membership leases --replica-namespace kube-system --replica-name "$1" \
        --replica-lease-duration 6s --peer-bind-address 127.0.0.1 --peer-secure-port "${PORTS[$1]}" \
        --peer-advertise-address 127.0.0.1 --peer-cert-file "$WORK/peer.crt" --peer-key-file "$WORK/peer.key" \
        --peer-ca-file "$WORK/peer-ca.crt" --peer-allowed-names weir-peer
    fronting "$1"
    ADMINS[$1]=$ADMIN
    URLS[$1]=$URL
}

# shellcheck disable=SC2317,SC2329 # called by `within`
idle() {
    [[ $(curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -H "$(bearer admin)" "$API/metrics" | series playground_inflight_requests) == 0 ]]
}

# of NAME: its total.
of() {
    ADMIN=${ADMINS[$1]} total seats
}

share() {
    ADMIN=${ADMINS[$1]} metric 'weir_replica_share_seats{pool="seats"}'
}

# sum NAME...: of their shares.
sum() {
    local name sum=0
    for name in "$@"; do sum=$((sum + $(share "$name"))); done
    echo "$sum"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
agree() {
    local name total
    total=$(of "$1")
    [[ $total =~ ^[0-9]+$ ]] || return 1
    for name in "$@"; do [[ $(of "$name") == "$total" ]] || return 1; done
}

# divided NAME...: they have nearly all of the total, and no more.
# shellcheck disable=SC2317,SC2329 # called by `within`
divided() {
    local sum total
    sum=$(sum "$@")
    total=$(of "$1")
    ((sum <= total && sum * 10 >= total * 8))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
of_at_most() { (($(of "$1") <= $2)); }

signal flood KILL
signal auto KILL
# A read beside what is left of a flood would be taken for one of a server that is far away.
check_ok 'the API server is done with the flood' within "$LIMIT" idle
for name in one two three; do replica "$name"; done
check_ok 'three replicas agree on a total' within "$(soon 20)" agree one two three
check 'it is the bound, not three times that' 540 "$(of one)"
start flood-one wrk -t 1 -c 220 -d 600s -H "$(bearer alice)" "${URLS[one]}/api/v1/nodes"
start flood-two wrk -t 1 -c 150 -d 600s -H "$(bearer bob)" "${URLS[two]}/api/v1/nodes"
check_ok 'under floods at two of them it shrinks to less than half' within "$(soon 60)" of_at_most one 260
check_ok 'also at the one without load' within "$(soon 10)" of_at_most three 260
check_ok 'they divide it' within "$(soon 20)" divided one two three
printf 'before: total %s, shares %s %s %s\n' "$(of one)" "$(share one)" "$(share two)" "$(share three)"
signal three KILL
check_ok 'one is killed: the others have no more than the total' within "$LIMIT" of_at_most one 400
printf 'during: total %s, shares %s %s\n' "$(of one)" "$(share one)" "$(share two)"
check_ok 'when its Lease has ended they have all of it' within "$(soon 20)" divided one two
printf 'after: total %s, shares %s %s\n' "$(of one)" "$(share one)" "$(share two)"
replica three
check_ok 'it comes back and takes what the others have found' within "$(soon 20)" of_at_most three 400
check_ok 'all three divide it again' within "$(soon 20)" divided one two three
check_between 'a newcomer does not double it' 30 400 "$(of one)"
summary
