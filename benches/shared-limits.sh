#!/usr/bin/env bash
# What sharing a rate costs an allowed request: p50 and CPU of a request with `clientLimits`, without and with --shared-limits.
# The two take turns, in ROUNDS rounds (5), each with SECONDS_EACH seconds (10) of one connection and of sixteen. Needs
# redis-server and wrk, and a quiet machine.
#
#   WEIR=target/dist/weir benches/shared-limits.sh

# shellcheck source-path=SCRIPTDIR source=../tests/tools/lib.sh
source "$(dirname "$0")/../tests/tools/lib.sh"
need awk curl redis-cli redis-server wrk

ROUNDS=${ROUNDS:-5}
SECONDS_EACH=${SECONDS_EACH:-10}
PORT=${PORT:-16379}

printf '%s\n' 0123456789abcdef0123456789abcdef >"$WORK/shared.key"
cat >"$WORK/weir.yaml" <<'END'
clientLimits:
- name: bench
  rules:
  - subjects: [{kind: User, user: {name: '*'}}]
    resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]
  requests: {qps: 1000000, burst: 1000000}
  writes: off
  objectBackoff: off
  concurrency: off
END

# shellcheck disable=SC2317,SC2329 # called by `within`
answers() {
    [[ $(redis-cli -p "$PORT" ping 2>&1) == *PONG* ]]
}

# seconds_of_cpu NAME: what the process has used.
seconds_of_cpu() {
    awk -v hz="$(getconf CLK_TCK)" '{sub(/.*\) /, ""); print ($12 + $13) / hz}' "/proc/${PIDS[$1]}/stat"
}

# measure NAME CONNECTIONS: prints p50, and the CPU time of a request.
measure() {
    local before after
    before=$(seconds_of_cpu "$1")
    wrk -t 1 -c "$2" -d "${SECONDS_EACH}s" --latency -H "$(bearer alice)" "$URL/api/v1/nodes" >"$WORK/wrk.out"
    after=$(seconds_of_cpu "$1")
    awk -v name="$1" -v connections="$2" -v cpu="$(awk "BEGIN {print $after - $before}")" '
        $1 == "50%" {p50 = $2}
        $2 == "requests" && $3 == "in" {n = $1}
        END {printf "%-8s %3d connections   p50 %8s   CPU %6.1f us a request   %d requests\n", name, connections, p50, cpu / n * 1e6, n}
    ' "$WORK/wrk.out"
}

start redis redis-server --port "$PORT" --save '' --appendonly no --dir "$WORK"
within "$LIMIT" answers || die 'Redis does not answer'
apiserver api 0
upstream=$ADDRESS
weir alone "$upstream" --config "$WORK/weir.yaml"
urls=("$URL")
weir shared "$upstream" --config "$WORK/weir.yaml" --shared-limits "redis://127.0.0.1:$PORT" --shared-key-file "$WORK/shared.key"
urls+=("$URL")
for ((round = 0; round < ROUNDS; round++)); do
    for connections in 1 16; do
        URL=${urls[0]} measure alone "$connections"
        URL=${urls[1]} measure shared "$connections"
    done
done
