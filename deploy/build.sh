#!/usr/bin/env bash
# weir as it is shipped: built once by Cargo's profile `dist`, watched at work for half a minute, and built again for what it
# does most (profile-guided optimization). A request costs a tenth to a sixth less than with `--profile dist` alone.
# Moving the finished program's blocks (BOLT 19) took 1 to 2 % more off a request and 1 % off a rejection: not worth a tool.
#
# Usage: deploy/build.sh [flag of cargo build ...]
# Makes target/guided/weir, and its completions and manual pages in target/guided/share.
# WATCHED_SECONDS: how long each of fourteen loads lasts (default 3).
# Needs: nginx, wrk, h2load (nghttp2-client), openssl, curl, and llvm-profdata: Debian's llvm-19 has it, and so has
# `rustup component add llvm-tools`. LLVM_PROFDATA names another.
set -euo pipefail

cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR source=../benches/origin.sh
source benches/origin.sh

guided=$PWD/target/guided
seconds=${WATCHED_SECONDS:-3}
profdata=${LLVM_PROFDATA:-}
# The plain name may be a distribution's older one, which does not read what this compiler writes.
for found in "$(rustc --print sysroot)"/lib/rustlib/*/bin/llvm-profdata llvm-profdata-{22,21,20,19} llvm-profdata; do
    [ -n "$profdata" ] || profdata=$(command -v "$found" || true)
done
for tool in nginx wrk h2load openssl curl "${profdata:-llvm-profdata}"; do
    command -v "$tool" >/dev/null || { echo "$tool is needed" >&2; exit 2; }
done

# build FLAGS FOLDER [flag of cargo build ...]: of the program alone, not of what runs while it is built.
machine=$(rustc -vV | sed -n 's/^host: //p')
build() {
    local flags=$1 folder=$2
    shift 2
    RUSTFLAGS="${RUSTFLAGS:-} $flags" cargo build --profile dist --locked --target "$machine" --target-dir "$folder" "$@"
}
rm -rf "$guided/seen"
build "-Cprofile-generate=$guided/seen" "$guided/watched" "$@"

origin 18443
one_seat "$dir/one-seat.yaml"
echo 'benchmark,bench,1' >"$dir/tokens.csv"
token='Authorization: Bearer benchmark'
pods=https://127.0.0.1:18444/api/v1/namespaces/a/pods

# at_work [FLAG...]: starts it with these flags; what it sees is written down when it ends.
at_work() {
    "$guided/watched/$machine/dist/weir" serve --upstream https://localhost:18443 --upstream-ca-file "$dir/ca.crt" \
        --tls-cert-file "$dir/tls.crt" --tls-private-key-file "$dir/tls.key" --token-auth-file "$dir/tokens.csv" \
        --bind-address 127.0.0.1 --secure-port 18444 --admin-address 127.0.0.1:0 --log-level error "$@" 2>"$dir/weir.log" &
    weir=$!
    pids+=("$weir")
    curl --silent --fail --insecure --retry 100 --retry-all-errors --retry-delay 1 --output "$dir/said" \
        --header "$token" "$pods/b"
}
over() {
    kill "$weir"
    wait "$weir" || true # 1 where it cut something off
}
http1() { wrk -t 1 -c 64 -d "${seconds}s" -H "$token" "$1" >"$dir/said"; }
http2() { h2load -c 8 -m 16 -D "$seconds" -H "$token" "$@" >"$dir/said"; }

# What goes through: reads of one and of many, writes; with room for all, and with a queue before it.
for flags in --max-requests-inflight=400 --max-requests-inflight=8; do
    at_work "$flags"
    for read in b all; do
        http1 "$pods/$read"
        http2 "$pods/$read"
    done
    http2 --data="$dir/root/api/v1/namespaces/a/pods/b" "$pods"
    over
done
# What is turned away: by fairness, and by max-in-flight.
for flags in "--max-requests-inflight=20 --max-mutating-requests-inflight=1 --flowcontrol-config=$dir/one-seat.yaml" \
    '--max-requests-inflight=1 --enable-priority-and-fairness=false'; do
    # shellcheck disable=SC2086 # the flags are words
    at_work --rejection-hold=0 $flags
    curl --silent --insecure --retry 100 --output "$dir/slow" --header "$token" "$pods/slow" & # has the only place
    slow=$!
    pids+=("$slow")
    for _ in $(seq 100); do
        code=$(curl --silent --insecure --output "$dir/said" --write-out '%{http_code}' --header "$token" "$pods/b")
        [ "$code" != 429 ] || break
        sleep 0.1
    done
    [ "$code" = 429 ] || { echo "nothing is turned away by $flags" >&2; exit 1; }
    http1 "$pods/b"
    http2 "$pods/b"
    kill "$slow" # it would be waited for
    over
done

seen=$guided/seen-$(date +%s).profdata # another name each time: cargo looks at names only
rm -f "$guided"/seen-*.profdata
"$profdata" merge --output="$seen" "$guided/seen"
build "-Cprofile-use=$seen" "$guided" "$@"
install -m 0755 "$guided/$machine/dist/weir" "$guided/weir"

share=$guided/share
rm -rf "$share"
mkdir -p "$share"/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
"$guided/weir" completions bash >"$share/bash-completion/completions/weir"
"$guided/weir" completions zsh >"$share/zsh/site-functions/_weir"
"$guided/weir" completions fish >"$share/fish/vendor_completions.d/weir.fish"
"$guided/weir" man "$share/man/man1"
"$guided/weir" version
