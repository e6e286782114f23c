#!/usr/bin/env bash
# How many instructions weir takes for a forwarded request and for a rejection, TLS included and the kernel not, counted by
# Valgrind (callgrind). Requests come one by one on one connection. The counts are of 2 N requests less those of N: a handshake
# does not count. Runs of one build differ by up to 0.5 %, since the kernel decides what one read finds.
#
# Valgrind has no SHA-NI and no VAES: AES-GCM and the hash of a flow cost more here than they do.
#
# Usage: benches/request-instructions.sh [CASE ...]   forwarded-h1 rejected-h1 forwarded-h2 rejected-h2 (default: all)
# WEIR: the program; target/dist/weir if not given. N: 1000 requests. KEEP: a folder for callgrind's files (callgrind_annotate).
# Needs: valgrind, nginx, h2load, curl and openssl. A profile of `cargo build --profile dist` has lines, too.
set -euo pipefail

cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(forwarded-h1 rejected-h1 forwarded-h2 rejected-h2)
here=$(cd "$(dirname "$0")/.." && pwd)
weir=${WEIR:-$here/target/dist/weir}
n=${N:-1000}
for tool in valgrind callgrind_control nginx h2load curl openssl; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done
[ -x "$weir" ] || { echo "cargo build --profile dist first" >&2; exit 2; }
# shellcheck source-path=SCRIPTDIR source=origin.sh
source "$here/benches/origin.sh"
origin 18443
echo 'benchmark,bench,1' >"$dir/tokens.csv"

holder=
url=https://127.0.0.1:18004/api/v1/namespaces/a/pods
credential='Authorization: Bearer benchmark'

# load PROTOCOL REQUESTS STATUS: sends them, and fails if an answer has another status class.
load() {
    h2load --clients 1 --max-concurrent-streams 1 --npn-list "$1" --requests "$2" --header "$credential" \
        --header 'User-Agent: kubectl/v1.36.0 (linux/amd64)' --header 'Accept: application/json' "$url/b" >"$dir/load.log"
    grep -q "$2 $3," "$dir/load.log" || { cat "$dir/load.log" >&2; exit 1; }
}

for case in "${cases[@]}"; do
    case $case in
        forwarded-*) status=2xx limits=(--max-requests-inflight=1000) ;;
        rejected-*) status=4xx limits=(--enable-priority-and-fairness=false --max-requests-inflight=1 --rejection-hold=0) ;;
        *) echo "$case is no case" >&2; exit 2 ;;
    esac
    case $case in *-h1) protocol=http/1.1 ;; *) protocol=h2 ;; esac
    counts=${KEEP:-$dir}/callgrind.$case
    rm -f "$counts".*
    valgrind --tool=callgrind --callgrind-out-file="$counts" "$weir" serve --upstream https://localhost:18443 \
        --upstream-ca-file "$dir/ca.crt" --tls-cert-file "$dir/tls.crt" --tls-private-key-file "$dir/tls.key" \
        --token-auth-file "$dir/tokens.csv" --bind-address 127.0.0.1 --secure-port 18004 --admin-address 127.0.0.1:0 \
        --workers 1 --log-level error "${limits[@]}" >"$dir/$case.log" 2>&1 &
    started=$!
    pids+=("$started")
    curl -sk -o "$dir/ready" --retry 100 --retry-delay 1 --retry-all-errors --fail -H "$credential" "$url/b"
    if [[ $status == 4xx ]]; then # holds weir's only place
        curl -sk -o "$dir/slow" -H "$credential" "$url/slow" &
        holder=$!
        pids+=("$holder")
        sleep 1
    fi
    load "$protocol" "$n" "$status" # until connections and caches are warm
    callgrind_control -z "$started" >>"$dir/control.log" 2>&1
    for requests in "$n" $((2 * n)); do
        load "$protocol" "$requests" "$status"
        callgrind_control -d "$started" >>"$dir/control.log" 2>&1
    done
    kill ${holder:+"$holder"} "$started"
    wait "$started" || true
    holder=
    count() { sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$counts.$1" | head -n 1; }
    echo "$case $((($(count 2) - $(count 1)) / n))"
done
