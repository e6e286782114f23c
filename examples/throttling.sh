#!/usr/bin/env bash
# How many requests were refused? What Prometheus says, against what the clients saw: wrk with 700 connections, and h2load with a
# fixed number of requests, through weir with max-in-flight limits, in front of the playground's API server. Prometheus looks each
# second. h2load's refusals are counted to the request; wrk throws away the answers that are under way when it ends, at most one
# for each connection, and weir counts those as well. At last, the audit log of a few more.
#
# Usage: examples/throttling.sh [seconds of wrk, default 10] [requests of h2load, default 50000]
# LIMIT: --max-requests-inflight (default 400)
# Needs: wrk, h2load, prometheus, curl, jq, awk, and weir (WEIR, or on the PATH, or built here by `cargo build --release`).
set -euo pipefail

seconds=${1:-10}
requests=${2:-50000}
limit=${LIMIT:-400}
connections=700
here=$(cd "$(dirname "$0")/.." && pwd)
weir=${WEIR:-$(command -v weir || echo "$here/target/release/weir")}
for tool in wrk h2load prometheus curl jq awk "$weir"; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done

dir=$(mktemp -d)
pids=()
finish() {
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

until_true() { # command ...
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "$* in vain; $(tail -n 3 "$dir"/*.err)" >&2; exit 1; }
        sleep 0.05
    done
}

# --- weir in front of an API server, and Prometheus ---------------------------------------------------------------------

# front NAME FLAG...: sets url, admin and alice.
front() {
    local name=$1
    shift
    "$weir" playground --dir "$dir/$name" --secure-port 0 --admin-address 127.0.0.1:0 --service-time 50ms --capacity "$limit" \
        --enable-priority-and-fairness=false --max-requests-inflight "$limit" --rejection-hold 0s "$@" \
        >"$dir/$name.out" 2>"$dir/$name.err" &
    pids+=($!)
    until_true test -e "$dir/$name/ready"
    url=https://$(<"$dir/$name/address")/api/v1/nodes
    admin=$(<"$dir/$name/admin-address")
    alice="Authorization: Bearer $(awk -F, '$2 == "alice" {print $1}' "$dir/$name/tokens.csv")"
}
front weir

cat >"$dir/prometheus.yaml" <<END
global: {scrape_interval: 1s}
scrape_configs: [{job_name: weir, static_configs: [{targets: ["$admin"]}]}]
END
prometheus --config.file "$dir/prometheus.yaml" --storage.tsdb.path "$dir/tsdb" --web.listen-address 127.0.0.1:0 \
    >"$dir/prometheus.out" 2>"$dir/prometheus.err" &
pids+=($!)
until_true grep -q 'msg="Listening on"' "$dir/prometheus.err"
prometheus=$(sed -n 's/.*msg="Listening on".* address=\([0-9.:]*\).*/\1/p' "$dir/prometheus.err")

# value QUERY: the one number that it is, or nothing.
value() {
    curl -sS --max-time 30 --data-urlencode "query=$1" "http://$prometheus/api/v1/query" | jq -r '.data.result[0].value[1] // empty'
}

# shellcheck disable=SC2317,SC2329 # called by `until_true`
scraped_after() { # milliseconds
    [[ $(value "(timestamp(up) > bool $1 / 1000) * up") == 1 ]]
}

# shellcheck disable=SC2317,SC2329 # called by `until_true`
nobody_there() {
    curl -sS "http://$admin/metrics" | grep -x 'weir_client_connections 0'
}

# scraped: what weir counts now is in Prometheus.
scraped() {
    # Prometheus writes regular times where the true ones differ by some milliseconds.
    until_true scraped_after $(($(date +%s%3N) + 100))
}

# --- the reckoning -------------------------------------------------------------------------------------------------------

# What grows, and how: the rows of the table.
counters=(
    'apiserver_request_terminations_total{code="429"}'
    'apiserver_request_total{code="429"}'
    'apiserver_dropped_requests_total'
    'apiserver_request_total{code="200"}'
)
declare -A before=() grew=()

# total COUNTER: the query for it; a look that failed does not make it nothing.
total() {
    echo "sum(last_over_time(${1}[1m])) or vector(0)"
}

# run CLIENT COMMAND...: how far each counter comes by it, and the most that was in flight.
run() {
    local client=$1 counter since
    shift
    scraped
    since=$(date +%s)
    for counter in "${counters[@]}"; do before[$counter]=$(value "$(total "$counter")"); done
    "$@" >"$dir/$client" 2>"$dir/$client.err"
    until_true nobody_there
    scraped
    for counter in "${counters[@]}"; do
        grew[$client $counter]=$(($(value "$(total "$counter")") - before[$counter]))
    done
    grew[$client peak]=$(value "max_over_time(apiserver_current_inflight_requests{request_kind=\"readOnly\"}[$(($(date +%s) - since + 1))s])")
}

run wrk wrk -c "$connections" -t 2 -d "${seconds}s" -H "$alice" "$url"
run h2load h2load -n "$requests" -c 100 -m 10 -H "$alice" "$url"

grew[wrk refused]=$(awk '/Non-2xx or 3xx responses:/ {n = $NF} END {print n + 0}' "$dir/wrk")
grew[wrk served]=$(awk -v refused="${grew[wrk refused]}" '/requests in/ {print $1 - refused}' "$dir/wrk")
grew[h2load refused]=$(sed -n 's/^status codes:.* \([0-9]*\) 4xx.*/\1/p' "$dir/h2load")
grew[h2load served]=$(sed -n 's/^status codes: \([0-9]*\) 2xx.*/\1/p' "$dir/h2load")

row() { # WHAT KEY
    printf '| %-52s | %12s | %15s |\n' "$1" "${grew[wrk $2]}" "${grew[h2load $2]}"
}
printf '| %-52s | %12s | %15s |\n' '' "wrk -c $connections" "h2load -n $requests"
printf '|%s|%s:|%s:|\n' "$(printf -- '-%.0s' {1..54})" "$(printf -- '-%.0s' {1..13})" "$(printf -- '-%.0s' {1..16})"
row 'refused: what the client counted' refused
row 'apiserver_request_terminations_total{code="429"}' "${counters[0]}"
row 'apiserver_request_total{code="429"}' "${counters[1]}"
row 'apiserver_dropped_requests_total' "${counters[2]}"
row 'served: what the client counted' served
row 'apiserver_request_total{code="200"}' "${counters[3]}"
row "apiserver_current_inflight_requests, at most ($limit)" peak

# --- and who was it? -----------------------------------------------------------------------------------------------------

printf '\nwho was refused most, in the last five minutes:\n'
curl -sS "http://$admin/debug/top_talkers?window=5m&by=user&sort=rejections&limit=3" |
    jq -r '.rows[] | "\(.name): \(.rejections) of \(.requests) requests (and at most \(.error.rejections) more)"'

# An audit log of each of hundreds of thousands of refusals would be hundreds of megabytes: a few are enough.
front audited --audit-log-path "$dir/audit.log"
h2load -n 5000 -c 100 -m 10 -H "$alice" "$url" >"$dir/few"
kill "${pids[-1]}" # what is written, is written by its end
wait "${pids[-1]}" || true
unset 'pids[-1]'
printf '\nthe audit log, of %s more requests of which h2load counted %s refused:\n' 5000 \
    "$(sed -n 's/^status codes:.* \([0-9]*\) 4xx.*/\1/p' "$dir/few")"
jq -r 'select(.stage == "ResponseComplete") | "\(.user.username): code \(.responseStatus.code)"' "$dir/audit.log" | sort | uniq -c
