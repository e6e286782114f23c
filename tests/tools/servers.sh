#!/usr/bin/env bash
# Three API servers: each is killed and restarted in turn under load, and one is stopped with SIGSTOP.
# Clients see an error only for what was in flight on the dying server, and a server that returns gets
# requests within 10 s. All down and back: watches are admitted at a growing pace.
#
# NIGHTLY=1: longer, and the most loaded server must have at most 1.2 times the requests of the least loaded.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl wrk

CONNECTIONS=30
# Requests in flight on one of three servers. Least requests of two keeps each near a third.
IN_FLIGHT=$((CONNECTIONS / 2))
RETURN=10
SPREAD=3
nightly && SPREAD=20
SERVERS=(one two three)
declare -A PORTS=()

# server NAME [PORT]: an API server with the certificates of the first one.
server() {
    if [[ $1 != one && ! -d $WORK/$1 ]]; then cp -r "$WORK/one" "$WORK/$1"; fi
    apiserver "$1" "${2:-0}" --service-time 20ms
    PORTS[$1]=${ADDRESS##*:}
}

# sent NAME: the requests that weir has sent to it.
sent() {
    metric "weir_upstream_server_requests_total{kind=\"short\",server=\"127.0.0.1:${PORTS[$1]}\"}"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
healthy() {
    [[ $(metric "weir_upstream_server_healthy{server=\"127.0.0.1:${PORTS[$1]}\"}") == "$2" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
more() {
    (($(sent "$1") > $2))
}

# load NAME: wrk through weir, until it is stopped.
load() {
    start "$1" wrk -t 1 -c "$CONNECTIONS" -d 600s --timeout 60s -H "$(bearer alice)" "$URL/api/v1/namespaces/default"
}

# errors NAME: stops wrk, and prints how many requests got an error.
errors() {
    signal "$1" INT
    finish "$1"
    # A last answer that wrk does not wait for is no error.
    awk '/Socket errors:/ {n += $4 + $6 + $8 + $10} /Non-2xx/ {n += $NF} END {print n + 0}' "$WORK/$1.out"
}

# returned NAME: requests reach it within 10 s.
returned() {
    local before
    before=$(sent "$1")
    check_ok "$1: traffic within $RETURN s of its return" within "$RETURN" more "$1" "$((before + 10))"
}

killed() {
    local name=$1 before
    before=$(sent "$name")
    load "load-$name"
    check_ok "$name: has traffic" within "$LIMIT" more "$name" "$((before + 50))"
    signal "$name" KILL
    finish "$name"
    check_ok "$name: is found to be gone" within "$LIMIT" healthy "$name" 0
    check "$name: weir is ready without it" 200 \
        "$(curl -sS -o /dev/null -w '%{http_code}' "http://$ADMIN/readyz")"
    before_admin=$ADMIN before_url=$URL before_dir=$DIR
    server "$name" "${PORTS[$name]}"
    ADMIN=$before_admin URL=$before_url DIR=$before_dir
    returned "$name"
    check_between "$name: errors, at most the requests in flight on it" 0 "$IN_FLIGHT" "$(errors "load-$name")"
}

stopped_server() {
    load load-stopped
    signal two STOP
    check_ok 'stopped: is found to hang' within "$LIMIT" healthy two 0
    local others
    others=$(sent one)
    check_ok 'stopped: requests go on elsewhere' within 5 more one "$((others + 50))"
    signal two CONT
    returned two
    check_between 'stopped: errors' 0 "$IN_FLIGHT" "$(errors load-stopped)"
}

spread() {
    local name before=() after least=0 most=0 n
    sleep_until_warm
    load load-spread
    for name in "${SERVERS[@]}"; do before+=("$(sent "$name")"); done
    local end=$((SECONDS + SPREAD))
    while ((SECONDS < end)); do sleep 0.1; done
    for name in "${SERVERS[@]}"; do
        after=$(sent "$name")
        n=$((after - before[0]))
        before=("${before[@]:1}")
        if ((least == 0 || n < least)); then least=$n; fi
        if ((n > most)); then most=$n; fi
    done
    check 'no server down: no error' 0 "$(errors load-spread)"
    local ratio
    ratio=$(awk -v most="$most" -v least="$least" 'BEGIN {printf "%d", least ? 100 * most / least : 9999}')
    printf 'most to least loaded: %s and %s requests, %s %%\n' "$most" "$least" "$ratio"
    if nightly; then check_between 'most to least loaded, in per cent' 100 120 "$ratio"; fi
}

# shellcheck disable=SC2317,SC2329 # called by `within`
warm() {
    ((SECONDS >= $1))
}

# The slow start of a server lasts 10 s.
sleep_until_warm() {
    within "$LIMIT" warm "$((SECONDS + 11))"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
answers() {
    [[ $(get -o /dev/null -w '%{http_code}' -H "$(bearer alice)" /api/v1/namespaces/default 2>/dev/null) == "$1" ]]
}

all_down() {
    local name
    for name in "${SERVERS[@]}"; do
        signal "$name" KILL
        finish "$name"
    done
    check_ok 'all down: 503' within "$LIMIT" answers 503
    check_match 'all down: Retry-After' 'retry-after: 1' \
        "$(get -D - -o /dev/null -H "$(bearer alice)" /api/v1/namespaces/default)"
    # An outage is at least a second long.
    within "$LIMIT" warm "$((SECONDS + 2))"
    local dir=$DIR url=$URL admin=$ADMIN
    server three "${PORTS[three]}"
    DIR=$dir URL=$url ADMIN=$admin
    check_ok 'one is back: at once' within 2 answers 200
    # In one process and on few connections, so that they arrive together: 200 take two seconds to be admitted.
    check 'the lists of many clients are all answered' '200 200' "$(get -Z --parallel-max 200 -H "$(bearer alice)" \
        -o /dev/null -w '%{http_code}\n' "/api/v1/namespaces/default/configmaps?n=[1-200]" | sort | uniq -c | awk '{print $1, $2}')"
    check_between 'most of them waited for their turn' 1 200 "$(metric weir_upstream_recovery_delayed_total)"
}

for name in "${SERVERS[@]}"; do server "$name"; done
DIR=$WORK/one
weir front "127.0.0.1:${PORTS[one]}" --upstream "https://127.0.0.1:${PORTS[two]}" \
    --upstream "https://127.0.0.1:${PORTS[three]}"
for name in "${SERVERS[@]}"; do
    check_ok "$name: is ready" within "$LIMIT" healthy "$name" 1
    killed "$name"
done
stopped_server
spread
all_down
stopped front
summary
