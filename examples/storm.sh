#!/usr/bin/env bash
# What a storm of clients that never back off leaves of an API server's good answers: alone with max-in-flight, alone with
# API Priority and Fairness, and behind weir, which refuses at once or holds its refusals; and how many answers such clients
# get when the API server is gone. No cluster is needed: the API servers are weir's playground, which works 400 us of CPU for
# an answer and 150 us for a refusal of its own, figures taken from a kube-apiserver 1.36. Clients, servers and weir share
# the machine's cores: rows of one run can be compared, runs on different machines cannot.
#
# A level borrows the idle seats of others every 10 seconds, so a storm goes on for LEAD seconds before it is measured where
# priority and fairness decides.
#
# Usage: examples/storm.sh [connections, default 700] [seconds for each run, default 10] [rounds, default 3]
# Needs: wrk, awk, and weir (WEIR, or on the PATH, or built here by `cargo build --release`).
set -euo pipefail

storm=${1:-700}
seconds=${2:-10}
rounds=${3:-3}
here=$(cd "$(dirname "$0")/.." && pwd)
weir=${WEIR:-$(command -v weir || echo "$here/target/release/weir")}
for tool in wrk awk "$weir"; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done
# wrk does not raise it by itself; weir does.
ulimit -n "$(ulimit -H -n)" || true

calm=16 path=/api/v1/namespaces/default
LEAD=11
dir=$(mktemp -d)
pids=()
finish() {
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

until_there() { # command ...
    local end=$((SECONDS + 30))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "$* in vain; $(tail -n 3 "$dir"/*.err)" >&2; exit 1; }
        sleep 0.05
    done
}

# api NAME FLAG...: an API server; where it serves goes to $dir/NAME.address. All use the certificates and tokens of the first.
api() {
    local name=$1
    shift
    rm -f "$dir/api/ready"
    "$weir" playground --apiserver-only --dir "$dir/api" --secure-port 0 \
        --service-cpu 400us --refusal-cpu 150us "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
    pids+=($!)
    until_there test -e "$dir/api/ready"
    cp "$dir/api/address" "$dir/$name.address"
}
api max-in-flight --max-in-flight 400
api fairness --apiserver-concurrency-limit 600
alice=$(awk -F, '$2 == "alice" {print $1}' "$dir/api/tokens.csv")

# proxy NAME ADDRESS FLAG...: weir before the server at this address; where it serves goes to $dir/NAME.address.
proxy() {
    local name=$1 server=$2 files=$dir/api
    shift 2
    "$weir" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file "$files/tls.crt" --tls-private-key-file "$files/tls.key" \
        --client-ca-file "$files/ca.crt" --token-auth-file "$files/tokens.csv" \
        --upstream "https://$server" --upstream-ca-file "$files/ca.crt" "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
    pids+=($!)
    until_there grep -q 'serving clients=' "$dir/$name.err"
    sed -n 's/.*serving clients=\([^ ]*\) .*/\1/p' "$dir/$name.err" >"$dir/$name.address"
}
# Half of the server's seats, so that requests wait and are refused before weir and not behind it.
half=(--max-requests-inflight=200 --max-mutating-requests-inflight=100)
server=$(<"$dir/fairness.address")
proxy at-once "$server" "${half[@]}" --rejection-hold=0
proxy held "$server" "${half[@]}" --rejection-hold=1s
proxy same-total "$server" --rejection-hold=1s
# Nothing listens there.
proxy gone-at-once 127.0.0.1:1 "${half[@]}" --rejection-hold=0
proxy gone-held 127.0.0.1:1 "${half[@]}" --rejection-hold=1s

flood() { # CONNECTIONS SECONDS ADDRESS
    wrk -t 2 -c "$1" -d "$2s" --latency -H "Authorization: Bearer $alice" "https://$3$path"
}

# run CASE CONNECTIONS NAME [LEAD]: notes good answers and all others a second, and the p99 of all answers in milliseconds.
run() {
    local address
    address=$(<"$dir/$3.address")
    [ -z "${4:-}" ] || flood "$2" "$4" "$address" >/dev/null
    flood "$2" "$seconds" "$address" |
        awk -v seconds="$seconds" '/requests in/ {n = $1} /Non-2xx/ {bad = $NF} /99%/ {p99 = $2}
            function ms(t) { return t ~ /us$/ ? t / 1000 : t ~ /ms$/ ? t + 0 : t * 1000 }
            END { printf "%d %d %d\n", (n - bad) / seconds, bad / seconds, ms(p99) }' >>"$dir/$1.runs"
}
for ((round = 1; round <= rounds; round++)); do
    run capacity "$calm" fairness
    run storm-max-in-flight "$storm" max-in-flight
    run storm-fairness "$storm" fairness "$LEAD"
    run weir-capacity "$calm" held
    run weir-at-once "$storm" at-once "$LEAD"
    run weir-held "$storm" held "$LEAD"
    run weir-same-total "$storm" same-total "$LEAD"
    run gone-at-once "$storm" gone-at-once
    run gone-held "$storm" gone-held
done

# median CASE COLUMN
median() { sort -n -k "$2,$2" "$dir/$1.runs" | awk -v c="$2" '{v[NR] = $c} END {print v[int((NR + 1) / 2)]}'; }
capacity=$(median capacity 1)
sed -n '/ of CPU for an answer/p' "$dir/fairness.out" # in the server's own words
row() { # CASE WHAT
    local good
    good=$(median "$1" 1)
    printf '| %-63s | %7s | %9s | %7s | %11s |\n' "$2" "$good" "$(median "$1" 2)" "$(median "$1" 3)" \
        "$((capacity == 0 ? 0 : 100 * good / capacity)) %"
}
printf '| %-63s | %7s | %9s | %7s | %11s |\n' 'in front of the API server' 'good/s' 'refused/s' 'p99 ms' 'of capacity'
printf '|%s|%s:|%s:|%s:|%s:|\n' "$(printf -- '-%.0s' {1..65})" "$(printf -- '-%.0s' {1..8})" \
    "$(printf -- '-%.0s' {1..10})" "$(printf -- '-%.0s' {1..8})" "$(printf -- '-%.0s' {1..12})"
row capacity "nothing; $calm connections: its capacity"
row storm-max-in-flight "nothing; $storm that never back off, max-in-flight 400"
row storm-fairness "nothing; $storm, priority and fairness with 600 seats"
row weir-capacity "weir with 300 seats; $calm connections"
row weir-at-once "weir with 300 seats; $storm, refused at once (--rejection-hold=0)"
row weir-held "weir with 300 seats; $storm, refusals held (--rejection-hold=1s)"
row weir-same-total "weir with the server's 600 seats; $storm, refusals held"
row gone-at-once "weir, API server gone; $storm, 503 at once"
row gone-held "weir, API server gone; $storm, 503 held"
