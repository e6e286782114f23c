#!/usr/bin/env bash
# Rate limits that three replicas share through a real Redis, with clients at full speed: the accepted requests are one limit's,
# with one replica killed, one cut off, Redis stopped, emptied and killed. Then what weir says of a Redis that it cannot use.
#
# Each replica has a network namespace of its own, the clients, Redis and the API server are in this script's. Needs the right to
# make namespaces, as network-faults.sh does.
#
# NIGHTLY 1: as in shared-limits/common.sh, and a machine without that right is a failure.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl ip nsenter openssl redis-cli unshare wrk
# shellcheck source-path=SCRIPTDIR source=shared-limits/common.sh
source "$ROOT/tests/tools/shared-limits/common.sh"

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
    if [[ ${NIGHTLY:-} == 1 ]]; then die "$why"; fi
    printf 'NOT RUN: %s\n%s: 0 passed, 0 failed\n' "$why" "$SCRIPT"
    exit 0
}
if [[ ${WEIR_TEST_ISOLATED:-} != 1 ]]; then isolated; fi
ip link set lo up

REPLICAS=(one two three)
REDIS=10.202.0.1
API=10.202.0.2
# shellcheck disable=SC2317,SC2329 # called by `within`
apart() {
    [[ $(readlink "/proc/${PIDS[namespace-$1]}/ns/net") != "$(readlink /proc/self/ns/net)" ]] &&
        [[ $(<"/proc/${PIDS[namespace-$1]}/comm") == sleep ]]
}

# inside NAME COMMAND...
inside() {
    nsenter --net="/proc/${PIDS[namespace-$1]}/ns/net" "${@:2}"
}

# namespace NAME N: 10.201.N.2 there, 10.201.N.1 here.
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
    inside "$name" ip route add default via "$net.1"
}

# replica NAME N [FLAG...]
replica() {
    local name=$1 net=10.201.$2
    shift 2
    start "$name" nsenter --net="/proc/${PIDS[namespace-$name]}/ns/net" "$WEIR" serve \
        --config "$WORK/weir.yaml" --bind-address "$net.2" --secure-port 6443 --admin-address 127.0.0.1:6481 \
        --health-address "$net.2:6480" --health-metrics \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --client-ca-file "$DIR/ca.crt" \
        --token-auth-file "$DIR/tokens.csv" --kubeconfig "$WORK/api.kubeconfig" --rejection-hold 0s --workers 1 \
        --proxy-client-cert-file "$DIR/front-proxy-client.crt" --proxy-client-key-file "$DIR/front-proxy-client.key" \
        --shared-limits "redis://$REDIS:6379" --shared-key-file "$WORK/shared.key" --shared-limits-replicas 3 "$@"
    fronting "$name"
    ADMINS[$name]=$net.2:6480
    start "load-$name" wrk -t 1 -c 4 -d 600s -H "$(bearer alice)" "https://$net.2:6443/api/v1/nodes"
}
ip address add "$REDIS/32" dev lo
ip address add "$API/32" dev lo
redis redis 6379
check_ok 'Redis answers' within "$LIMIT" answers -p 6379
apiserver api 0 --bind-address "$API"
cat >"$WORK/api.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://$ADDRESS", certificate-authority: $DIR/ca.crt, tls-server-name: localhost}}]
users: [{name: u, user: {token: "$(token admin)"}}]
END
for n in 1 2 3; do
    namespace "${REPLICAS[n - 1]}" "$n"
    replica "${REPLICAS[n - 1]}" "$n"
done

check_ok 'three replicas count themselves' within "$LIMIT" counted 3
check_ok 'all share' within "$LIMIT" all_say +
check_ok 'the burst is spent' within "$LIMIT" all_reject
settle
calls=$(sum "$CALLS") began=$(date +%s%3N)
exact 'three replicas' "$LONG"
check_between 'calls a second, of each replica, at most' 1 20 \
    $((($(sum "$CALLS") - calls) * 1000 / ($(date +%s%3N) - began) / 3))
check_match 'names are hashes' '^weir:[0-9a-f]{32}$' "$(redis-cli --scan | head -n 1)"

inside three ip route add blackhole "$REDIS/32"
check_ok 'a replica that is cut off says so within a second' within "$(soon 1)" says three -
check_match '... and what it admits' 'each replica admits 1/3 of every rate' \
    "$(inside three curl -sS --max-time 10 'http://127.0.0.1:6481/readyz?verbose' | grep shared-limits)"
judged "$SHORT" 970 $((1030 * 4 / 3))
check_between 'with one of three cut off: at most a third more' 0 $((QPS * 1030 * 4 / 3)) "$LEAST"
check_between '... and no less than the limit' $((QPS * 970)) 1000000000 "$MOST"
inside three ip route del blackhole "$REDIS/32"
check_ok 'it is back within a second' within "$(soon 1)" says three +
settle
exact 'all are back' "$SHORT"

signal redis STOP
check_ok 'Redis is stopped: all say so within a second' within "$(soon 1)" all_say -
exact 'the shares are the limit' "$SHORT"
signal redis CONT
check_ok 'all are back within a second' within "$(soon 1)" all_say +
settle
exact 'after that' "$SHORT"

for ((attempt = 1; attempt <= ATTEMPTS; attempt++)); do
    began=$(date +%s%3N) from=$(sum "$PASSED")
    redis-cli flushall >/dev/null
    sleep 2 # the window
    accepted=$(($(sum "$PASSED") - from))
    most=$((QPS + QPS * 1030 * ($(date +%s%3N) - began) / 1000000))
    if ((accepted <= most)); then break; fi
    settle
done
check_between 'Redis is emptied: at most one burst more' 0 "$most" "$accepted"
settle
exact 'after that' "$SHORT"

failures=$(sum "$FAILED")
for key in $(redis-cli --scan --pattern 'weir:*'); do
    if [[ $(redis-cli type "$key") == string ]]; then redis-cli set "$key" nonsense >/dev/null; fi
done
settle
exact 'values of another program count as none' "$SHORT"
check '... and no call fails' "$failures" "$(sum "$FAILED")"

signal redis KILL
finish redis
check_ok 'Redis is killed: all say so within a second' within "$(soon 1)" all_say -
judged "$SHORT" 0 1030
check_between 'the shares are the limit' 0 $((QPS * 1030)) "$LEAST"
redis redis 6379
check_ok 'all are back within a second of its start' within "$(soon 2)" all_say +
settle
exact 'after that' "$SHORT"

signal three KILL
finish three
signal load-three KILL
REPLICAS=(one two)
exact 'one replica is killed' "$LONG"
check_ok 'the others count themselves' within "$LIMIT" counted 2
for name in one two; do
    signal "load-$name" KILL
    check "$name has logged each change once" '' \
        "$(grep -o 'rate limits are \(not \)\?shared' "$WORK/$name.err" | uniq -d)"
    stopped "$name"
done

# What weir says of a Redis that it cannot use. One at a time: each needs a start only.
ADDRESS_OF_API=$(sed -n 's#.*server: "https://\([^"]*\)".*#\1#p' "$WORK/api.kubeconfig")
if has_tls; then
    openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=other -days 1 -keyout "$WORK/other.key" -out "$WORK/other.crt" 2>/dev/null
    redis secure 0 --tls-port 6380 --tls-cert-file "$DIR/tls.crt" --tls-key-file "$DIR/tls.key" --tls-ca-cert-file "$DIR/ca.crt" \
        --tls-auth-clients no --requirepass 'correct horse'
    check_ok 'Redis with TLS answers' within "$LIMIT" answers -p 6380 --tls --cacert "$DIR/ca.crt" -a 'correct horse'
    secure=(--shared-limits rediss://127.0.0.1:6380)
    told tls ok "${secure[@]}" --shared-limits-ca-file "$DIR/ca.crt" --shared-limits-password-file "$WORK/password"
    told password 'rejects the user or the password' "${secure[@]}" --shared-limits-ca-file "$DIR/ca.crt" \
        --shared-limits-password-file "$WORK/wrong-password"
    told ca 'its CA is not that of --shared-limits-ca-file' "${secure[@]}" --shared-limits-ca-file "$WORK/other.crt" \
        --shared-limits-password-file "$WORK/password"
fi
told plain 'has to be a port with TLS' --shared-limits rediss://127.0.0.1:6379 --shared-limits-ca-file "$DIR/ca.crt"
told nothing 'nothing listens there' --shared-limits redis://127.0.0.1:6399
redis-cli -p 6379 acl setuser narrow on '>correct horse' '~weir:*' +@scripting +@connection +time +zadd +zcard \
    +zremrangebyscore +expire >/dev/null
told narrow 'may not run scripts|ACL' --shared-limits redis://127.0.0.1:6379 --shared-limits-user narrow \
    --shared-limits-password-file "$WORK/password"
check '... and it never says that rates are shared' '' "$(grep 'rate limits are shared' "$WORK/narrow.err")"
redis reader 6381 --replicaof 127.0.0.1 6379
check_ok 'the reader answers' within "$LIMIT" answers -p 6381
told read-only 'it is read-only: name the primary|it is loading' --shared-limits redis://127.0.0.1:6381
redis full-server 6382 --maxmemory 1 --maxmemory-policy noeviction
check_ok 'the full one answers' within "$LIMIT" answers -p 6382
told full 'its memory is full' --shared-limits redis://127.0.0.1:6382

summary
