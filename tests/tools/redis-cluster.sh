#!/usr/bin/env bash
# Rate limits that two replicas share through a cluster of three members, with clients at full speed: a member that has no key does
# not answer, the one that has the limit's bucket is killed, the bucket moves to another member, and a member's own replica takes
# over. Then what weir says of clusters that it cannot use.
#
# What it can be told: see shared-limits/common.sh.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl redis-cli wrk
# shellcheck source-path=SCRIPTDIR source=shared-limits/common.sh
source "$ROOT/tests/tools/shared-limits/common.sh"

declare -A PORTS=()

# member NAME [LINE...]: one that has no slot yet. It keeps what it knows of the others.
member() {
    local name=$1
    shift
    mkdir -p "$WORK/$name"
    PORTS[$name]=$(free_port)
    printf '%s\n' "port ${PORTS[$name]}" "cluster-port $(free_port)" 'cluster-enabled yes' 'cluster-node-timeout 1000' \
        'cluster-require-full-coverage no' 'cluster-replica-validity-factor 0' "save ''" 'protected-mode no' \
        "dir $WORK/$name" 'repl-diskless-sync-delay 0' "$@" >"$WORK/$name.conf"
    member_again "$name"
}

member_again() {
    start "$1" "$REDIS_SERVER" "$WORK/$1.conf"
    check_ok "$1 answers" within "$LIMIT" on "$1" ping
}

# on MEMBER COMMAND...
on() {
    redis-cli -p "${PORTS[$1]}" --raw "${@:2}"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
whole() {
    local name
    for name in "$@"; do
        [[ $(on "$name" cluster info) == *cluster_state:ok* ]] || return 1
        [[ $(on "$name" cluster info) == *cluster_slots_ok:16384* ]] || return 1
        [[ $(on "$name" cluster nodes | grep -c ' connected') == "$(on "$1" cluster nodes | grep -vc noaddr)" ]] || return 1
    done
}

id() {
    on "$1" cluster myid
}

# shellcheck disable=SC2317,SC2329 # called by `within`
follows() {
    [[ $(on "$1" info replication) == *master_link_status:up* ]] && on "$3" cluster slots | grep -q "^$(id "$1")" &&
        [[ $(on "$1" cluster nodes | grep -c "slave $(id "$2")") == 1 ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
is_primary() {
    [[ $(on "$1" role | head -n 1) == master ]] && [[ $(on "$1" cluster info) == *cluster_state:ok* ]]
}

# keys MEMBER TYPE: the names of weir's keys of this type.
keys() {
    local key
    for key in $(on "$1" --scan --pattern 'weir:*'); do
        if [[ $(on "$1" type "$key") == "$2" ]]; then printf '%s\n' "$key"; fi
    done
}

# no_call_fails: none has since `failures` was set. By night only: a machine that pauses makes calls late.
no_call_fails() {
    if nightly; then check '... and no call fails' "$failures" "$(sum "$FAILED")"; fi
    check_ok '... and all share' within "$LIMIT" all_say +
}

# said_shared: how often the replicas have logged that rates are shared.
said_shared() {
    cat "$WORK/one.err" "$WORK/two.err" | grep -c 'rate limits are shared'
}

for name in x y z; do member "$name"; done
redis-cli --cluster create "127.0.0.1:${PORTS[x]}" "127.0.0.1:${PORTS[y]}" "127.0.0.1:${PORTS[z]}" --cluster-yes >"$WORK/create.out"
check_ok 'there is a cluster' within "$LIMIT" whole x y z

apiserver api 0
ADDRESS_OF_API=$ADDRESS
SHARED=(--shared-limits "redis+cluster://127.0.0.1:${PORTS[x]},127.0.0.1:${PORTS[y]},127.0.0.1:${PORTS[z]}")
two_replicas

# Which member has what follows from the key in shared-limits/common.sh.
BUCKET='' COUNT='' NONE=''
for name in x y z; do
    if [[ -n $(keys "$name" zset) ]]; then
        COUNT=$name
    elif [[ -n $(keys "$name" string) ]]; then
        BUCKET=$name
    else
        NONE=$name
    fi
done
[[ -n $BUCKET && -n $COUNT && -n $NONE ]] ||
    die "the bucket, the count of replicas and nothing are on one member each: $BUCKET, $COUNT, $NONE"
key=$(keys "$BUCKET" string)

failures=$(sum "$FAILED")
# A member that has no key does not answer, and the others do not know the scripts.
signal "$NONE" STOP
for name in "$BUCKET" "$COUNT"; do on "$name" script flush >/dev/null; done
told late ok "${SHARED[@]}"
check_ok 'two replicas count themselves again' within "$LIMIT" counted 2
exact 'one member does not answer' "$SHORT"
no_call_fails
signal "$NONE" CONT
check_ok 'it is back' within "$LIMIT" whole x y z

signal "$BUCKET" KILL
finish "$BUCKET"
check_ok 'the member that has the bucket is killed: all say so within a second' within "$(soon 1)" all_say -
check_match '... and why' 'the member of the cluster that has a key cannot be reached|nothing listens there|the connection was closed' \
    "$(readyz one)"
said=$(said_shared)
judged "$SHORT" 970 1030
check_between 'the shares are the limit' 0 $((QPS * 1030)) "$LEAST"
check_between '... and no less' $((QPS * 970)) 1000000000 "$MOST"
check 'nobody says meanwhile that rates are shared' "$said" "$(said_shared)"
member_again "$BUCKET"
check_ok 'it serves its slots again' within "$LIMIT" whole x y z
check_ok 'all are back within a second' within "$(soon 1)" all_say +
settle
exact 'after that' "$SHORT"

# The bucket's slot moves to the member that has none.
failures=$(sum "$FAILED")
slot=$(on "$BUCKET" cluster keyslot "$key")
on "$NONE" cluster setslot "$slot" importing "$(id "$BUCKET")" >/dev/null
on "$BUCKET" cluster setslot "$slot" migrating "$(id "$NONE")" >/dev/null
# shellcheck disable=SC2317,SC2329 # called by `within`
emptied() {
    on "$BUCKET" migrate 127.0.0.1 "${PORTS[$NONE]}" "$key" 0 1000 >/dev/null
    on "$NONE" cluster setslot "$slot" node "$(id "$NONE")" | grep -q OK && on "$BUCKET" cluster setslot "$slot" node "$(id "$NONE")" | grep -q OK
}
check_ok 'the bucket moves to another member' within "$LIMIT" emptied
# shellcheck disable=SC2317,SC2329 # called by `within`
is_there() {
    [[ $(keys "$NONE" string) == "$key" ]]
}
check_ok '... and is there' within "$LIMIT" is_there
settle
exact 'after that' "$SHORT"
no_call_fails

# The member that has the bucket now does not answer, and has a replica.
member spare
redis-cli --cluster add-node "127.0.0.1:${PORTS[spare]}" "127.0.0.1:${PORTS[$COUNT]}" --cluster-slave \
    --cluster-master-id "$(id "$NONE")" >"$WORK/add.out"
check_ok 'the member has a replica' within "$LIMIT" follows spare "$NONE" "$COUNT"
signal "$NONE" STOP
check_ok 'the member does not answer: all say so within a second' within "$(soon 1)" all_say -
check_ok 'its replica takes over' within "$LIMIT" is_primary spare
check_ok 'all are back within a second' within "$(soon 1)" all_say +
settle
exact 'after that' "$SHORT"
signal "$NONE" KILL
finish "$NONE"

for name in "${REPLICAS[@]}"; do
    signal "load-$name" KILL
    stopped "$name"
done

member empty
told no-slots 'the cluster does not serve all of its slots' --shared-limits "redis+cluster://127.0.0.1:${PORTS[empty]}"
A=$(free_port)
redis single "$A"
check_ok 'a single server answers' within "$LIMIT" answers -p "$A"
told one-server 'it is not a cluster' --shared-limits "redis+cluster://127.0.0.1:$A"
told nothing 'nothing listens there' --shared-limits "redis+cluster://127.0.0.1:$(free_port)"
if has_tls; then
    TLS=$(free_port)
    member secure 'tls-cluster yes' "tls-port $TLS" "tls-cert-file $DIR/tls.crt" "tls-key-file $DIR/tls.key" \
        "tls-ca-cert-file $DIR/ca.crt" 'tls-auth-clients no' 'requirepass "correct horse"'
    redis-cli -p "${PORTS[secure]}" -a 'correct horse' --no-auth-warning cluster addslotsrange 0 16383 >/dev/null
    secure=(--shared-limits "rediss+cluster://127.0.0.1:$TLS" --shared-limits-ca-file "$DIR/ca.crt" --shared-limits-password-file)
    told tls ok "${secure[@]}" "$WORK/password"
    # The rights of docs/replicas.md.
    redis-cli -p "${PORTS[secure]}" -a 'correct horse' --no-auth-warning acl setuser weir "${RIGHTS[@]}" '+cluster|slots' >/dev/null
    told rights ok "${secure[@]}" "$WORK/password" --shared-limits-user weir
    told wrong-password 'rejects the user or the password' "${secure[@]}" "$WORK/wrong-password"
fi

summary
