#!/usr/bin/env bash
# Two builds of weir under the same load at the same time: CPU microseconds of each for a request, and the ratio.
#
# benches/peers.sh measures one proxy after the other, and what else happens on the machine meanwhile moves its figures by 5 to
# 20 %. Here both builds share one core for the whole time, and the origin and both loads the other, so that both have the same
# disturbance: the quartiles of the ratios are about 1 % apart.
#
# Usage: BEFORE=PROGRAM benches/builds.sh [seconds for each round, default 3] [case ...]
# The cases are those of benches/peers.sh; h1-429 and h2-429 are rejected by max-in-flight, h1-fair-429 and h2-fair-429 by
# priority and fairness.
# ROUNDS: rounds for each case (default 7). WEIR: the later build (default target/dist/weir). WEIR_FLAGS: flags for it alone,
# where its defaults are others.
# Needs: nginx, wrk, h2load (nghttp2-client), openssl, taskset; two cores.
set -euo pipefail

seconds=${1:-3}
shift || true
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(h1-4 h1-64 h1-700 h1-list h2 h2-list h1-429 h2-429 h1-fair-429 h2-fair-429)
here=$(cd "$(dirname "$0")/.." && pwd)
after=${WEIR:-$here/target/dist/weir}
read -ra after_flags <<<"${WEIR_FLAGS:-}"
for tool in nginx wrk h2load openssl taskset; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done
for program in "${BEFORE:-}" "$after"; do
    [ -x "$program" ] || { echo "BEFORE and WEIR are two builds of weir; this is none: ${program:-BEFORE}" >&2; exit 2; }
done
# shellcheck source-path=SCRIPTDIR source=origin.sh
source "$here/benches/origin.sh"
origin 18443 taskset -c 1
one_seat "$dir/one-seat.yaml"
echo 'benchmark,bench,1' >"$dir/tokens.csv"
auth="Authorization: Bearer benchmark"
pods=/api/v1/namespaces/a/pods

# serve NAME PORT PROGRAM FLAG...: a weir of one worker that has answered. Sets PID.
serve() {
    local name=$1 port=$2 program=$3
    taskset -c 0 "$program" serve --upstream https://localhost:18443 --upstream-ca-file "$dir/ca.crt" \
        --tls-cert-file "$dir/tls.crt" --tls-private-key-file "$dir/tls.key" --token-auth-file "$dir/tokens.csv" \
        --bind-address 127.0.0.1 --secure-port "$port" --admin-address 127.0.0.1:0 --workers 1 \
        --http2-max-streams-per-connection 1000 --log-level error "${@:4}" >"$dir/$name.log" 2>&1 &
    PID=$!
    pids+=("$PID")
    for _ in $(seq 100); do
        if curl -sk -o /dev/null -H "$auth" "https://127.0.0.1:$port$pods/b"; then return; fi
        sleep 0.1
    done
    echo "$name does not answer: $(tail -n 3 "$dir/$name.log")" >&2
    exit 1
}

# ticks PID: its CPU time.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

# requests CASE URL: how many have been answered in a round.
requests() {
    case $1 in
        h1-*)
            local connections=${1#h1-}
            case $connections in list | *429) connections=64 ;; esac
            taskset -c 1 wrk -t 1 -c "$connections" -d "${seconds}s" -H "$auth" "$2" | awk '/requests in/ { print $1 }'
            ;;
        h2*) taskset -c 1 h2load -c 8 -m 16 -D "$seconds" -H "$auth" "$2" | awk '/^requests:/ { print $6 }' ;;
    esac
}

# measure CASE NAME PORT PID: one round of one build.
measure() {
    local path=$pods/b from answered
    case $1 in
        *-list) path=$pods/all ;;
        *-429) path=/api/v1/namespaces/refused/pods/b ;;
    esac
    from=$(ticks "$4")
    answered=$(requests "$1" "https://127.0.0.1:$3$path")
    awk -v ticks=$(($(ticks "$4") - from)) -v n="$answered" -v hz="$(getconf CLK_TCK)" \
        'BEGIN { printf "%.3f\n", ticks / hz * 1e6 / n }' >>"$dir/$1.$2"
}

# quartiles: of the numbers in standard input: the median, and the first and third quartile.
quartiles() {
    sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[int((NR + 3) / 4)], v[int((3 * NR + 1) / 4)] }'
}

printf '%-11s %16s %16s %10s %16s\n' case 'before us/req' 'after us/req' ratio quartiles
for case in "${cases[@]}"; do
    flags=(--max-requests-inflight 100000)
    case $case in
        *-fair-429) flags=(--max-requests-inflight=20 --max-mutating-requests-inflight=1 --flowcontrol-config "$dir/one-seat.yaml" --rejection-hold=0) ;;
        *-429) flags=(--enable-priority-and-fairness=false --max-requests-inflight=1 --rejection-hold=0) ;;
    esac
    serve before 18011 "$BEFORE" "${flags[@]}"
    before=$PID
    serve after 18012 "$after" "${flags[@]}" "${after_flags[@]}"
    after_pid=$PID
    holders=()
    case $case in
        *-429) # holds the only place
            for port in 18011 18012; do
                curl -sk -o /dev/null -H "$auth" "https://127.0.0.1:$port$pods/slow" &
                holders+=("$!")
            done
            pids+=("${holders[@]}")
            sleep 0.5
            ;;
    esac
    for _ in $(seq "${ROUNDS:-7}"); do
        measure "$case" before 18011 "$before" &
        running=$!
        measure "$case" after 18012 "$after_pid"
        wait "$running"
    done
    read -r old _ <<<"$(quartiles <"$dir/$case.before")"
    read -r new _ <<<"$(quartiles <"$dir/$case.after")"
    read -r ratio low high <<<"$(paste "$dir/$case.before" "$dir/$case.after" | awk '{ print $2 / $1 }' | quartiles)"
    printf '%-11s %16.2f %16.2f %10.3f %9.3f to %.3f\n' "$case" "$old" "$new" "$ratio" "$low" "$high"
    kill "$before" "$after_pid" "${holders[@]}" 2>/dev/null || true
    wait "$before" "$after_pid" "${holders[@]}" 2>/dev/null || true
done
