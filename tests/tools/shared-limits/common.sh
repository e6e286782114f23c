# shellcheck shell=bash
# Shared by the scripts about limits that replicas share: the limit, servers, and how much the replicas accept together. Sourced
# after lib.sh.
#
# QPS          the limit (1000)
# REDIS_SERVER the server (redis-server); a valkey-server does as well
# NIGHTLY      1: the windows are 30 s long, the first one is judged, what is to come within a second has to

QPS=${QPS:-1000}
REDIS_SERVER=${REDIS_SERVER:-redis-server}
need "$REDIS_SERVER"
# shellcheck disable=SC2034 # used by the scripts
LONG=5
SHORT=3
ATTEMPTS=6 # at a window: while the machine pauses, tokens are lost, or are kept and spent at once
if nightly; then LONG=30 SHORT=10 ATTEMPTS=1; fi
PASSED='weir_client_limit_requests_total{decision="passed",limit="",rule="shared"}'
REJECTED='weir_client_limit_requests_total{decision="rejected",limit="requests",rule="shared"}'
FAILED='weir_shared_limits_calls_total{result="failed"}'
CALLS='weir_shared_limits_calls_total{result="answered"}'
declare -A ADMINS=()

# With this one, and 1,000 requests a second, the bucket and the count of replicas are on two members of a cluster of three.
printf '%s\n' 0123456789abcdef0123456789abcde2 >"$WORK/shared.key"
cat >"$WORK/weir.yaml" <<END
clientLimits:
- name: shared
  rules:
  - subjects: [{kind: User, user: {name: alice}}]
    resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]
  requests: {qps: $QPS, burst: $QPS}
  writes: off
  objectBackoff: off
  concurrency: off
END

printf 'correct horse\n' >"$WORK/password"
printf 'battery staple\n' >"$WORK/wrong-password"

# What docs/replicas.md lets the server's user do.
# shellcheck disable=SC2034 # used by the scripts
read -ra RIGHTS < <(sed -n 's/^user weir //p' "$ROOT/docs/replicas.md")
RIGHTS=("${RIGHTS[@]/#>PASSWORD/>correct horse}")

# redis NAME PORT [FLAG...]: a server that keeps nothing on the disk.
redis() {
    local name=$1 port=$2
    shift 2
    start "$name" "$REDIS_SERVER" --port "$port" --save '' --appendonly no --dir "$WORK" --protected-mode no "$@"
}

# has_tls: whether the server was built with TLS. Debian's was.
has_tls() {
    local said
    said=$("$REDIS_SERVER" --port 0 --tls-port "$(free_port)" --tls-cert-file /nonexistent --dir "$WORK" 2>&1 || true) # it ends at once
    if [[ $said == *'TLS support'* ]]; then
        printf 'NOT RUN: %s has no TLS\n' "$REDIS_SERVER"
        return 1
    fi
}

# shellcheck disable=SC2317,SC2329 # called by `within`
answers() {
    [[ $(redis-cli "$@" ping 2>&1) == *PONG* ]]
}

# sum SERIES: over all replicas that run.
sum() {
    local name all=0
    for name in "${REPLICAS[@]}"; do
        all=$((all + $(ADMIN=${ADMINS[$name]} metric "$1")))
    done
    printf '%s\n' "$all"
}

# window SECONDS: sets LEAST and MOST, what was accepted in a thousand seconds, and DONE, what was accepted at all.
window() {
    local from to begun began ending ended
    began=$(date +%s%3N) from=$(sum "$PASSED") begun=$(date +%s%3N)
    sleep "$1" # the window
    ending=$(date +%s%3N) to=$(sum "$PASSED") ended=$(date +%s%3N)
    DONE=$((to - from))
    LEAST=$((DONE * 1000000 / (ended - began)))
    MOST=$((DONE * 1000000 / (ending - begun)))
}

# judged SECONDS LEAST MOST: a window in which the limit is kept, from so many to so many thousandths of it, or the last attempt.
judged() {
    local attempt
    for ((attempt = 1; attempt <= ATTEMPTS; attempt++)); do
        window "$1"
        if ((MOST >= QPS * $2 && LEAST <= QPS * $3)); then return; fi
    done
}

# exact WHAT SECONDS: the limit, within 3 %.
exact() {
    judged "$2" 970 1030
    check_between "$1: no more than the limit" 0 $((QPS * 1030)) "$LEAST"
    check_between '... and no less' $((QPS * 970)) 1000000000 "$MOST"
}

readyz() {
    curl -sS --max-time 10 "http://${ADMINS[$1]}/readyz?verbose" | grep shared-limits
}

# shellcheck disable=SC2317,SC2329 # called by `within`
all_say() {
    local name
    for name in "${REPLICAS[@]}"; do [[ $(readyz "$name") == "[$1]shared-limits"* ]] || return 1; done
}

# shellcheck disable=SC2317,SC2329 # called by `within`
says() {
    [[ $(readyz "$1") == "[$2]shared-limits"* ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
all_reject() {
    local name
    for name in "${REPLICAS[@]}"; do (($(ADMIN=${ADMINS[$name]} metric "$REJECTED") > 0)) || return 1; done
}

# shellcheck disable=SC2317,SC2329 # called by `within`
counted() {
    [[ $(ADMIN=${ADMINS[one]} metric weir_shared_limits_replicas) == "$1" ]]
}

# two_replicas: `one` and `two`, which share as the flags in SHARED say, with clients at full speed; until the limit is kept.
two_replicas() {
    local name
    REPLICAS=(one two)
    for name in "${REPLICAS[@]}"; do
        weir "$name" "$ADDRESS_OF_API" --config "$WORK/weir.yaml" --rejection-hold 0s --workers 1 --shared-limits-replicas 2 \
            --shared-key-file "$WORK/shared.key" "${SHARED[@]}"
        ADMINS[$name]=$ADMIN
        start "load-$name" wrk -t 1 -c 4 -d 600s -H "$(bearer alice)" "$URL/api/v1/nodes"
    done
    check_ok 'two replicas count themselves' within "$LIMIT" counted 2
    check_ok 'all share' within "$LIMIT" all_say +
    check_ok 'the burst is spent' within "$LIMIT" all_reject
    settle
    exact 'two replicas' "$SHORT"
}

# settle: the two seconds after which the limit is exact again.
settle() {
    sleep 2
}

# told NAME REGEX FLAG...: what a weir with these flags says of the server; `ok` for that it shares.
told() {
    local name=$1 regex=$2
    shift 2
    weir "$name" "$ADDRESS_OF_API" --kubeconfig "" --shared-key-file "$WORK/shared.key" "$@"
    ADMINS[$name]=$ADMIN
    if [[ $regex == ok ]]; then
        check_ok "$name: shared" within "$LIMIT" says "$name" +
    else
        check_ok "$name: not shared" within "$LIMIT" grep -q 'rate limits are not shared' "$WORK/$name.err"
        check_match '... the log' "$regex" "$(grep 'rate limits are not shared' "$WORK/$name.err")"
        check_match '... and /readyz?verbose say why' "$regex" "$(readyz "$name")"
    fi
    stopped "$name"
}
