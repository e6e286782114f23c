#!/usr/bin/env bash
# What a storm of clients that never back off leaves of an API server's good answers: alone, behind weir that refuses at
# once, and behind weir that holds its refusals back from those who do not wait. No cluster is needed: the API server is
# weir's playground, which works 400 us of CPU for an answer and 150 us for a refusal of its own, figures taken from a
# kube-apiserver 1.36.
#
# A run is long beside the second or so of processor time that 700 TLS handshakes take of its beginning.
#
# Usage: examples/storm.sh [seconds for each run, default 15] [rounds, default 3]
# Needs: wrk, awk, and weir (WEIR, or on the PATH, or built here by `cargo build --release`).
set -euo pipefail

seconds=${1:-15}
rounds=${2:-3}
here=$(cd "$(dirname "$0")/.." && pwd)
weir=${WEIR:-$(command -v weir || echo "$here/target/release/weir")}
for tool in wrk awk "$weir"; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done

calm=16 storm=700 path=/api/v1/namespaces/default
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

"$weir" playground --apiserver-only --dir "$dir/api" --secure-port 0 \
    --service-cpu 400us --refusal-cpu 150us --max-in-flight 400 >"$dir/api.out" 2>"$dir/api.err" &
pids+=($!)
until_there test -e "$dir/api/ready"
server=$(<"$dir/api/address")
alice=$(awk -F, '$2 == "alice" {print $1}' "$dir/api/tokens.csv")

# proxy NAME FLAG...: weir before the server; where it serves goes to $dir/NAME.address.
proxy() {
    local name=$1 files=$dir/api
    shift
    "$weir" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file "$files/tls.crt" --tls-private-key-file "$files/tls.key" \
        --client-ca-file "$files/ca.crt" --token-auth-file "$files/tokens.csv" \
        --upstream "https://$server" --upstream-ca-file "$files/ca.crt" "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
    pids+=($!)
    until_there grep -q 'serving clients=' "$dir/$name.err"
    sed -n 's/.*serving clients=\([^ ]*\) .*/\1/p' "$dir/$name.err" >"$dir/$name.address"
}
proxy at-once --rejection-hold=0
proxy held --rejection-hold=1s

# run CASE CONNECTIONS ADDRESS: notes good answers and refusals a second, and the p99 of all answers in milliseconds.
run() {
    wrk -t 2 -c "$2" -d "${seconds}s" --latency -H "Authorization: Bearer $alice" "https://$3$path" |
        awk -v seconds="$seconds" '/requests in/ {n = $1} /Non-2xx/ {bad = $NF} /99%/ {p99 = $2}
            function ms(t) { return t ~ /us$/ ? t / 1000 : t ~ /ms$/ ? t + 0 : t * 1000 }
            END { printf "%d %d %d\n", (n - bad) / seconds, bad / seconds, ms(p99) }' >>"$dir/$1.runs"
}
for ((round = 1; round <= rounds; round++)); do
    run capacity "$calm" "$server"
    run storm "$storm" "$server"
    run weir-capacity "$calm" "$(<"$dir/held.address")"
    run weir-at-once "$storm" "$(<"$dir/at-once.address")"
    run weir-held "$storm" "$(<"$dir/held.address")"
done

# median CASE COLUMN
median() { sort -n -k "$2,$2" "$dir/$1.runs" | awk -v c="$2" '{v[NR] = $c} END {print v[int((NR + 1) / 2)]}'; }
capacity=$(median capacity 1)
sed -n '/ of CPU for an answer/p' "$dir/api.out" # in the server's own words
row() { # CASE WHAT
    local good
    good=$(median "$1" 1)
    printf '| %-52s | %12s | %10s | %8s | %12s |\n' "$2" "$good" "$(median "$1" 2)" "$(median "$1" 3)" \
        "$((capacity == 0 ? 0 : 100 * good / capacity)) %"
}
printf '| %-52s | %12s | %10s | %8s | %12s |\n' 'in front of the API server' 'good/s' 'refused/s' 'p99 ms' 'of capacity'
printf '|%s|%s:|%s:|%s:|%s:|\n' "$(printf -- '-%.0s' {1..54})" "$(printf -- '-%.0s' {1..13})" \
    "$(printf -- '-%.0s' {1..11})" "$(printf -- '-%.0s' {1..9})" "$(printf -- '-%.0s' {1..13})"
row capacity "nothing; $calm connections: its capacity"
row storm "nothing; $storm connections that never back off"
row weir-capacity "weir; $calm connections"
row weir-at-once "weir; $storm, refused at once (--rejection-hold=0)"
row weir-held "weir; $storm, refusals held (--rejection-hold=1s)"
