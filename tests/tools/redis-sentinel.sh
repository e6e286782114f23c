#!/usr/bin/env bash
# Rate limits that two replicas share through a primary that three Sentinels watch, with clients at full speed: the primary dies
# together with a Sentinel, a Sentinel moves the primary, and what weir says of Sentinels that it cannot use. A Sentinel that
# does not answer is one that is stopped, as on a machine that has died.
#
# What it can be told: see shared-limits/common.sh.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl redis-cli wrk
# shellcheck source-path=SCRIPTDIR source=shared-limits/common.sh
source "$ROOT/tests/tools/shared-limits/common.sh"

A=$(free_port) B=$(free_port)
SENTINELS=("$(free_port)" "$(free_port)" "$(free_port)")
PASSWORD='correct horse'

# sentinel NAME PORT LINE...: one that watches the primary `main`.
sentinel() {
    local name=$1 port=$2
    shift 2
    printf '%s\n' "$@" >"$WORK/$name.conf"
    start "$name" "$REDIS_SERVER" "$WORK/$name.conf" --sentinel --port "$port" --protected-mode no --dir "$WORK"
}

# watching PORT: what a Sentinel needs in order to watch the primary at the port.
watching() {
    printf '%s\n' "sentinel monitor main 127.0.0.1 $1 2" 'sentinel down-after-milliseconds main 500' \
        'sentinel failover-timeout main 1000'
}

# asked N COMMAND...: what the Nth Sentinel answers, a line an entry.
asked() {
    redis-cli -p "${SENTINELS[$1]}" --raw sentinel "${@:2}" 2>&1
}

# field NAME: of the entries that are read.
field() {
    awk -v name="$1" 'found {print; exit} $0 == name {found = 1}'
}

# shellcheck disable=SC2317,SC2329 # called by `within`
know_each_other() {
    local n
    for n in 0 1 2; do
        [[ $(asked "$n" masters | field num-other-sentinels) == 2 ]] || return 1
        [[ $(asked "$n" masters | field num-slaves) == 1 ]] || return 1
        [[ $(asked "$n" replicas main | field master-link-status) == ok ]] || return 1
    done
}

# shellcheck disable=SC2317,SC2329 # called by `within`
primary_is() {
    [[ $(asked 1 get-master-addr-by-name main | tail -n 1) == "$1" ]] &&
        [[ $(redis-cli -p "$1" --raw role | head -n 1) == master ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
replica_is() {
    [[ $(redis-cli -p "$1" --raw info replication | tr -d '\r' | grep master_link_status) == *:up ]] && know_each_other
}

# shellcheck disable=SC2317,SC2329 # called by `within`
moved() {
    [[ $(asked 1 failover main) == OK ]]
}

# scripts PORT: how many calls of scripts a server has answered.
scripts() {
    redis-cli -p "$1" info commandstats | awk -F '[=,]' '$1 == "cmdstat_evalsha:calls" {calls = $2} END {print calls + 0}'
}

# shellcheck disable=SC2317,SC2329 # called by `within`
used() {
    (($(scripts "$1") > $2))
}

redis primary "$A"
redis replica "$B" --replicaof 127.0.0.1 "$A"
check_ok 'the servers answer' within "$LIMIT" answers -p "$A"
readarray -t lines < <(watching "$A")
for n in 0 1 2; do sentinel "sentinel-$n" "${SENTINELS[n]}" "${lines[@]}"; done
check_ok 'the Sentinels know each other, and the replica' within "$LIMIT" know_each_other

apiserver api 0
ADDRESS_OF_API=$ADDRESS
urls=$(printf ',127.0.0.1:%s' "${SENTINELS[@]}")
SHARED=(--shared-limits "redis+sentinel://${urls:1}/main")
two_replicas

# The first Sentinel of the list does not answer, and the primary is gone.
signal sentinel-0 STOP
began=$(date +%s%3N) from=$(sum "$PASSED")
signal primary KILL
finish primary
check_ok 'the primary is killed: all say so within a second' within "$(soon 1)" all_say -
check_match '... and why' 'nothing listens there|the connection was closed|the Sentinels know no primary' "$(readyz one)"
check_ok 'the Sentinels have another' within "$LIMIT" primary_is "$B"
check_ok 'all are back within a second, though a Sentinel does not answer' within "$(soon 1)" all_say +
accepted=$(($(sum "$PASSED") - from))
most=$((QPS + QPS * 1030 * ($(date +%s%3N) - began) / 1000000))
check_between 'until then at most one burst more' 0 "$most" "$accepted"
check_ok 'the other one is used' within "$LIMIT" used "$B" "$(scripts "$B")"
settle
exact 'after that' "$SHORT"

# A weir that starts now needs no more than one Sentinel that answers.
told late ok "${SHARED[@]}"

signal sentinel-0 CONT
redis primary "$A"
check_ok 'the Sentinels make the first one a replica' within "$LIMIT" replica_is "$A"
check_ok 'it is to be the primary again' within "$LIMIT" moved
check_ok '... and is' within "$LIMIT" primary_is "$A"
check_ok 'it is used' within "$LIMIT" used "$A" "$(scripts "$A")"
check_ok 'all share within a second' within "$(soon 1)" all_say +
settle
exact 'after that' "$SHORT"

for name in "${REPLICAS[@]}"; do
    signal "load-$name" KILL
    check "$name has logged each change once" '' \
        "$(grep -o 'rate limits are \(not \)\?shared' "$WORK/$name.err" | uniq -d)"
    stopped "$name"
done

told unknown 'the Sentinels know no primary of this name' --shared-limits "redis+sentinel://${urls:1}/other"
told no-sentinel 'it is not a Sentinel' --shared-limits "redis+sentinel://127.0.0.1:$A/main"
told nothing 'nothing listens there' --shared-limits "redis+sentinel://127.0.0.1:$(free_port)/main"
secret=(--shared-limits "redis+sentinel://${urls:1}/main" --shared-limits-password-file)
for n in 0 1 2; do asked "$n" set main auth-pass "$PASSWORD" >/dev/null; done
for port in "$A" "$B"; do
    redis-cli -p "$port" config set masterauth "$PASSWORD" >/dev/null
    redis-cli -p "$port" config set requirepass "$PASSWORD" >/dev/null
done
told primary-password ok "${secret[@]}" "$WORK/password"
# The rights of docs/replicas.md.
for port in "$A" "$B"; do redis-cli -p "$port" -a "$PASSWORD" --no-auth-warning acl setuser weir "${RIGHTS[@]}" +role >/dev/null; done
told rights ok "${secret[@]}" "$WORK/password" --shared-limits-user weir
told wrong-password 'rejects the user or the password' "${secret[@]}" "$WORK/wrong-password"
for n in 0 1 2; do redis-cli -p "${SENTINELS[n]}" acl setuser default resetpass ">$PASSWORD" >/dev/null; done
told both-passwords ok "${secret[@]}" "$WORK/password"
told wrong-passwords 'rejects the user or the password' "${secret[@]}" "$WORK/wrong-password"

if has_tls; then
    C=$(free_port) TLS_SENTINEL=$(free_port)
    tls=(--tls-cert-file "$DIR/tls.crt" --tls-key-file "$DIR/tls.key" --tls-ca-cert-file "$DIR/ca.crt" --tls-auth-clients no
        --tls-replication yes)
    redis secure 0 --tls-port "$C" "${tls[@]}"
    sentinel tls-sentinel 0 'sentinel monitor main 127.0.0.1 '"$C"' 1' "tls-port $TLS_SENTINEL" "tls-cert-file $DIR/tls.crt" \
        "tls-key-file $DIR/tls.key" "tls-ca-cert-file $DIR/ca.crt" 'tls-auth-clients no' 'tls-replication yes'
    check_ok 'the Sentinel with TLS answers' within "$LIMIT" answers -p "$TLS_SENTINEL" --tls --cacert "$DIR/ca.crt"
    told tls ok --shared-limits "rediss+sentinel://127.0.0.1:$TLS_SENTINEL/main" --shared-limits-ca-file "$DIR/ca.crt"
fi
told no-tls 'it has to be a port with TLS|it speaks no TLS' --shared-limits "rediss+sentinel://${urls:1}/main" \
    --shared-limits-ca-file "$DIR/ca.crt"

summary
