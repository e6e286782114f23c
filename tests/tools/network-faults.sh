#!/usr/bin/env bash
# Network faults, in network namespaces of this script's own: an API server behind a partition, connections of which one end has
# vanished without a sign (half-open), a slow path that loses packets, and a name whose addresses change. No request hangs longer
# than the documented time-outs, and everything recovers without a restart.
#
# weir, its clients and the name server run in this script's namespace. Each API server, and the clients that vanish, have one
# more. A namespace ends with its last process, so nothing is left behind. Needs the right to make namespaces: root with
# CAP_NET_ADMIN and CAP_SYS_ADMIN, or a kernel that lets users make user namespaces.
#
# NIGHTLY=1: the partition lasts a minute longer, and a machine without that right is a failure.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl ip nsenter python3 unshare

# Runs this script again in namespaces of its own.
isolated() {
    local user
    for user in '' '--user --map-root-user'; do
        # shellcheck disable=SC2086 # no argument, or two
        if unshare $user --mount --net ip link set lo up 2>/dev/null; then
            rm -rf "$WORK"
            # shellcheck disable=SC2086
            exec unshare $user --mount --net env WEIR_TEST_ISOLATED=1 "$0"
        fi
    done
    local why='this machine refuses to make network namespaces: run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN (docker run --privileged)'
    # By night a machine with that right is a must. By day a contributor's container may lack it.
    if [[ ${NIGHTLY:-} == 1 ]]; then die "$why"; fi
    printf 'NOT RUN: %s\n%s: 0 passed, 0 failed\n' "$why" "$SCRIPT"
    exit 0
}
if [[ ${WEIR_TEST_ISOLATED:-} != 1 ]]; then isolated; fi

# A path that is dead without a sign ends a connection after 30 s of silence and 15 s without an answer. All else is slack.
BOUND=50
# By then no request goes to a server that does not answer its probes: two of 3 s each, 2 s apart.
NOTICED=12
# The slowest request on an API server that is well.
PROMPT=5
RETURN=10
# By day other scripts run beside this one.
if ! nightly; then BOUND=60 NOTICED=20 PROMPT=15 RETURN=30; fi
HELPER=$ROOT/tests/tools/network-faults.py
WATCHES=8
LOST=5

# namespace NAME N: a network namespace that a link connects with this one: 10.201.N.1 here, 10.201.N.2 there.
namespace() {
    local name=$1 net=10.201.$2
    start "namespace-$name" unshare --net sleep infinity
    within "$LIMIT" apart "$name" || die "there is no namespace for $name"
    ip link add "$name" type veth peer name eth0 netns "${PIDS[namespace-$name]}"
    ip address add "$net.1/24" dev "$name"
    ip link set "$name" up
    inside "$name" ip address add "$net.2/24" dev eth0
    inside "$name" ip link set lo up
    inside "$name" ip link set eth0 up
}

# shellcheck disable=SC2317,SC2329 # called by `within`
apart() {
    [[ $(readlink "/proc/${PIDS[namespace-$1]}/ns/net") != "$(readlink /proc/self/ns/net)" ]] &&
        [[ $(<"/proc/${PIDS[namespace-$1]}/comm") == sleep ]]
}

# inside NAME COMMAND...
inside() {
    nsenter --net="/proc/${PIDS[namespace-$1]}/ns/net" "${@:2}"
}

# server NAME N: an API server in the namespace of that name, with the certificates and tokens of the first one.
server() {
    local name=$1 net=10.201.$2
    if [[ $name != one && ! -d $WORK/$name ]]; then cp -r "$WORK/one" "$WORK/$name"; fi
    DIR=$WORK/$name
    rm -f "$DIR/ready"
    start "$name" nsenter --net="/proc/${PIDS[namespace-$name]}/ns/net" "$WEIR" playground --apiserver-only --dir "$DIR" \
        --bind-address "$net.2" --secure-port 6443
    serving "$name"
    DIR=$WORK/one
}

# proxy NAME URL: `weir serve` before the API servers at URL, whose certificates name localhost. Sets ADDRESS and ADMIN.
proxy() {
    cat >"$WORK/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "$2", certificate-authority: $DIR/ca.crt, tls-server-name: localhost}}]
users: [{name: u, user: {token: "$(token admin)"}}]
END
    start "$1" "$WEIR" serve --bind-address 0.0.0.0 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --client-ca-file "$DIR/ca.crt" \
        --token-auth-file "$DIR/tokens.csv" --kubeconfig "$WORK/$1.kubeconfig" \
        --proxy-client-cert-file "$DIR/front-proxy-client.crt" --proxy-client-key-file "$DIR/front-proxy-client.key"
    fronting "$1"
    ADDRESSES[$1]=$ADDRESS
    ADMINS[$1]=$ADMIN
}
declare -A ADDRESSES=() ADMINS=()

# of NAME SERIES: a metric of that weir.
of() {
    ADMIN=${ADMINS[$1]} metric "$2"
}

# sent N: the requests that weir has sent to that API server of several.
sent() {
    of many "weir_upstream_server_requests_total{kind=\"short\",server=\"10.201.$1.2:6443\"}"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
healthy() {
    [[ $(of many "weir_upstream_server_healthy{server=\"10.201.$1.2:6443\"}") == "$2" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
more() {
    (($(sent "$1") > $2))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
amounts() {
    [[ $(of "$1" "$2") == "$3" ]]
}

now() {
    date +%s.%N
}

# since TIME: whole seconds.
since() {
    awk -v from="$1" -v now="$(now)" 'BEGIN {printf "%d", now - from}'
}

# left TIME: the seconds until BOUND after TIME, at least one.
left() {
    local n=$((BOUND - $(since "$1")))
    printf '%s' "$((n > 1 ? n : 1))"
}

# counted FILE CONDITION: the requests of a load for which it holds. It names `begin`, `end`, `status`, and the times of the test.
counted() {
    awk -v cut="$CUT" -v healed="${HEALED:-0}" -v noticed="$NOTICED" -v prompt="$PROMPT" -v back="$RETURN" \
        "{begin = \$1; end = \$2; status = \$3} $2 {n++} END {print n + 0}" "$WORK/$1.out"
}

# longest FILE: the longest request of a load in whole seconds, rounded up.
longest() {
    awk '$2 - $1 > most {most = $2 - $1} END {printf "%d", most + 0.999}' "$WORK/$1.out"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
lines() {
    (($(grep -c "$2" "$WORK/$1.out") >= $3))
}

# load NAME CLIENTS: requests through that weir, until finish_load.
load() {
    start "load-$1" python3 "$HELPER" load "${ADDRESSES[$1]}" "$DIR" "$2" "$WORK/stop-$1"
}

# finish_load NAME
finish_load() {
    : >"$WORK/stop-$1"
    finish "load-$1" "$BOUND"
    check "$1: the load ends" 0 "$STATUS"
}

# watches NAME CLIENTS OBJECT: through that weir, all open.
watches() {
    start "watches-$1" python3 "$HELPER" watch "${ADDRESSES[$1]}" "$DIR" "$2" "$3"
    within "$LIMIT" lines "watches-$1" ^opened "$2" || die "the watches do not open: $(tail -n 3 "$WORK/watches-$1.err")"
}

# created N NAME: a ConfigMap of that name, directly on an API server. Each has its own objects.
created() {
    curl -sS --max-time 10 -o /dev/null -w '%{http_code}' --cacert "$DIR/ca.crt" --resolve "localhost:6443:10.201.$1.2" \
        -H "$(bearer admin)" -H 'Content-Type: application/json' \
        -d "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"$2\"}}" \
        https://localhost:6443/api/v1/namespaces/default/configmaps
}

# addresses N...: the name of the API servers has these addresses.
addresses() {
    printf '10.201.%s.2\n' "$@" >"$WORK/addresses.new"
    mv "$WORK/addresses.new" "$WORK/addresses"
}

prepare() {
    local n=0 name
    ip link set lo up
    for name in one two three four lost; do namespace "$name" "$((n += 1))"; done
    n=0
    for name in one two three four; do server "$name" "$((n += 1))"; done
    addresses 1 2
    start names python3 "$HELPER" names 53 "$WORK/addresses"
    printf 'nameserver 127.0.0.1\n' >"$WORK/resolv.conf"
    mount --bind "$WORK/resolv.conf" /etc/resolv.conf || die 'cannot replace /etc/resolv.conf in a mount namespace of its own'
    within "$LIMIT" lines names listening 1 || die "the name server does not start: $(<"$WORK/names.err")"
    start relay python3 "$HELPER" relay 7443 10.201.1.2:6443 0.2 1
    within "$LIMIT" lines relay listening 1 || die "the relay does not start: $(<"$WORK/relay.err")"
    proxy many https://api.weir.test:6443
    proxy single https://10.201.3.2:6443
    proxy relayed https://127.0.0.1:7443
}

# Requests that write and hold a seat.
UPLOADS='apiserver_current_inflight_requests{request_kind="mutating"}'

# Clients in a namespace whose link goes down: watches on HTTP/2, and an upload that holds a seat. Their API server stays: only the
# time in which weir waits for the client counts.
lost_clients() {
    local n at=${ADDRESSES[relayed]##*:}
    PLACES=$(of relayed 'weir_upstream_places_taken{kind="watch"}')
    for ((n = 1; n <= LOST; n++)); do
        start "lost-$n" nsenter --net="/proc/${PIDS[namespace-lost]}/ns/net" curl -sS -N --http2 --cacert "$DIR/ca.crt" \
            --resolve "localhost:$at:10.201.5.1" -H "$(bearer bob)" \
            "https://localhost:$at/api/v1/namespaces/default/secrets?watch=true&timeoutSeconds=3600"
    done
    start upload nsenter --net="/proc/${PIDS[namespace-lost]}/ns/net" python3 "$HELPER" upload "10.201.5.1:$at" "$DIR"
    within "$LIMIT" lines upload sent 1 || die "the upload does not begin: $(<"$WORK/upload.err")"
    check_ok 'half-open clients: their watches are open' within "$LIMIT" \
        amounts relayed 'weir_upstream_places_taken{kind="watch"}' "$((PLACES + LOST))"
    check_ok 'half-open clients: the upload holds a seat' within "$LIMIT" \
        amounts relayed "$UPLOADS" 1
}


# From now on nothing arrives: at the second API server, from the third one, and from the clients that vanish. No end of a
# connection is told. The third API server ends while its link is down.
cut() {
    CONNECTIONS=$(($(of relayed weir_client_connections) - LOST - 1))
    CUT=$(now)
    inside two ip route add blackhole 10.201.2.1/32
    inside three ip link set eth0 down
    inside lost ip link set eth0 down
    signal three KILL
    finish three 2>/dev/null
}

heal() {
    server three 3
    HEALED=$(now)
    inside two ip route del blackhole 10.201.2.1/32
    inside three ip link set eth0 up
}

# While the faults last.
bounded() {
    local before
    check_ok 'partition: the API server is found to be gone' within "$NOTICED" healthy 2 0
    check 'partition: weir is ready without it' 200 \
        "$(curl -sS --max-time 10 -o /dev/null -w '%{http_code}' "http://${ADMINS[many]}/readyz")"
    check_ok 'half-open clients: the seat of the upload is free again' within "$(soon 15)" amounts relayed "$UPLOADS" 0
    addresses 1 2 4
    check_ok 'names: an address that is added is used' within "$(soon 35)" more 4 50
    check_ok 'half-open API server: its watches end in time' within "$(left "$CUT")" lines watches-single ^ended 2
    check_ok 'half-open clients: the places of their watches are free again in time' within "$(left "$CUT")" \
        amounts relayed 'weir_upstream_places_taken{kind="watch"}' "$PLACES"
    check_ok 'half-open clients: their connections are closed' within "$(left "$CUT")" \
        amounts relayed weir_client_connections "$CONNECTIONS"
    # The last requests that hang.
    within $((BOUND + 5)) later "$CUT" "$BOUND"
    if nightly; then within $((2 * BOUND + 30)) later "$CUT" $((BOUND + 60)); fi
    before=$(grep -c ^ended "$WORK/watches-many.out" || true)
    printf 'the partition ended %s of %s watches\n' "$before" "$WATCHES"
    check_between 'partition: watches on that API server ended' 1 "$WATCHES" "$before"
    check 'partition: none ended too late' '' "$(too_late watches-many)"
    check 'half-open API server: no watch ended too late' '' "$(too_late watches-single)"
    check_ok 'partition: all watches are open again' within "$RETURN" lines watches-many ^opened $((WATCHES + before))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
later() {
    (($(since "$1") >= $2))
}

# too_late NAME: the watches that ended later than they may.
too_late() {
    awk -v cut="$CUT" -v bound="$BOUND" '$1 == "ended" && $2 > cut + bound' "$WORK/$1.out"
}

# After the faults.
recovered() {
    local before
    before=$(sent 2)
    check_ok 'partition: the API server gets requests again' within "$RETURN" more 2 $((before + 10))
    check_ok 'half-open API server: it gets requests again' within "$RETURN" successes load-single 10
    # Each of several API servers has a part of the watches.
    for n in 1 2 4; do check "an object on API server $n" 201 "$(created "$n" seen-by-many)"; done
    check 'an object on the one that was restarted' 201 "$(created 3 seen-by-single)"
    finish watches-many
    check 'partition: every watch receives events' "0 $WATCHES" "$STATUS $(grep -c ^seen "$WORK/watches-many.out")"
    finish watches-single
    check 'half-open API server: every watch receives events' '0 2' "$STATUS $(grep -c ^seen "$WORK/watches-single.out")"
}

# successes FILE N: as many since the end of the faults.
# shellcheck disable=SC2317,SC2329 # called by `within`
successes() {
    (($(counted "$1" 'begin >= healed && status == 200') >= $2))
}

judged() {
    local name
    for name in many single; do
        finish_load "$name"
        check_between "$name: the longest request, in seconds" 0 "$BOUND" "$(longest "load-$name")"
        check "$name: no request fails once everything is back" 0 \
            "$(counted "load-$name" 'begin >= healed + back && status != 200')"
        check "$name: none fails before the faults" 0 "$(counted "load-$name" 'end < cut && status != 200')"
    done
    check_between 'many: at most one error for each client' 0 "$CLIENTS" "$(counted load-many 'status != 200')"
    check_between 'partition: requests once it is noticed' 100 1000000 \
        "$(counted load-many 'begin >= cut + noticed && begin < healed')"
    check 'partition: once it is noticed, none of them fails or is slow' 0 \
        "$(counted load-many 'begin >= cut + noticed && (status != 200 || end - begin > prompt)')"
    check_between 'single: a request fails while there is no API server' 1 1000000 \
        "$(counted load-single 'begin >= cut && begin < healed && status != 200')"
    finish_load relayed
    check_between 'slow path with losses: requests' 50 1000000 "$(counted load-relayed 1)"
    check 'slow path with losses: none fails' 0 "$(counted load-relayed 'status != 200')"
    check_between 'slow path with losses: the longest request, in seconds' 0 $((5 + PROMPT)) "$(longest load-relayed)"
    for name in many single relayed; do
        check "$name: no panic" 0 "$(of "$name" weir_panics_total)"
        stopped "$name"
    done
}

CLIENTS=8

main() {
    prepare
    watches many "$WATCHES" seen-by-many
    watches single 2 seen-by-single
    lost_clients
    load many "$CLIENTS"
    load single 4
    load relayed 8
    check_ok 'several addresses of a name: both are used' within "$LIMIT" both
    cut
    bounded
    heal
    recovered
    judged
}

# shellcheck disable=SC2317,SC2329 # called by `within`
both() {
    more 1 50 && more 2 50
}

main
summary
