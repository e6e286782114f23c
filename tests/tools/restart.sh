#!/usr/bin/env bash
# Restarts that no client notices: under wrk, h2load, watches, a slow upload and clients that count each request, weir hands over to
# a new process, ten times in a row. No connection is refused, no request fails, and watches end cleanly, spread over the grace
# period. A new process that cannot start changes nothing.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl h2load python3 systemd-socket-activate wrk

RESTARTS=10
WATCHES=200
GRACE=2 # seconds over which watches end
NAMESPACE=/api/v1/namespaces/default
NEW='the new process serves'

# An earlier copy of python3 may lack the libraries of Debian's.
PATH=/usr/bin:$PATH

# The file that is started again, and that is replaced in between.
PROGRAM=$WORK/program/weir
mkdir "$WORK/program"
cp "$WEIR" "$PROGRAM"
WEIR=$PROGRAM

# handed_over NAME N: N processes have taken over.
# shellcheck disable=SC2317,SC2329 # called by `within`
handed_over() {
    (($(grep -c "$NEW" "$WORK/$1.err") >= $2))
}

# main_process NAME: the process that serves.
main_process() {
    local line
    line=$(grep "$NEW" "$WORK/$1.err" | tail -n 1)
    if [[ $line =~ pid=([0-9]+) ]]; then printf '%s' "${BASH_REMATCH[1]}"; else printf '%s' "${PIDS[$1]}"; fi
}

# restart NAME N: the N-th hand-over.
restart() {
    kill -USR2 "$(main_process "$1")"
    within "$LIMIT" handed_over "$1" "$2" || die "restart $2 fails: $(tail -n 5 "$WORK/$1.err")"
    PIDS[$1$2]=$(main_process "$1") # so that the cleanup ends it
}

# shellcheck disable=SC2317,SC2329 # called by `within`
watches_open() {
    (($(curl -sS --max-time 5 "http://$ADMIN/metrics" | awk '/^apiserver_longrunning_requests/ {n += $NF} END {print n + 0}') >= WATCHES))
}

# requests_of_bob: how many the audit log has.
requests_of_bob() {
    grep '"username":"bob"' "$WORK/audit.log" | grep -c '"stage":"ResponseComplete"'
}

# shellcheck disable=SC2317,SC2329 # called by `within`
audited() {
    [[ $(requests_of_bob) == "$1" ]]
}

# http2_load URL: one run of h2load after the other, until there is $WORK/stop. A run ends at a GOAWAY: h2load does not connect again.
http2_load() {
    while [[ ! -e $WORK/stop ]]; do
        h2load -t1 -c2 -m4 -n 1000 -H "$(bearer bob)" "$1" || true
    done
}

# notified FILE: a service manager that writes what it is told to FILE. Sets NOTIFY_SOCKET.
notified() {
    export NOTIFY_SOCKET=$WORK/notify
    start notify python3 -c '
import socket, sys
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.bind(sys.argv[1])
with open(sys.argv[2], "w", encoding="utf-8") as told:
    while True:
        print(manager.recv(4096).decode().replace("\n", " "), file=told, flush=True)
' "$NOTIFY_SOCKET" "$1"
    within "$LIMIT" test -e "$NOTIFY_SOCKET" || die 'no socket for notifications'
}

# field NAME LINE: the value of NAME=VALUE.
field() {
    sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" <<<"$2"
}

# The newest process answers a second after the one before it accepts no more.
# shellcheck disable=SC2317,SC2329 # called by `within`
lever_kept() {
    "$WEIR" ctl list | grep -q '^1 .*user=nobody .*over all of them$'
}

under_load() {
    local n
    printf 'maxRequestsInflight: 4000\n' >"$WORK/weir.yaml"
    apiserver cluster 0
    notified "$WORK/told"
    weir main "$ADDRESS" --config "$WORK/weir.yaml" --shutdown-watch-termination-grace-period "${GRACE}s" \
        --request-timeout 5m --audit-log-path "$WORK/audit.log" --audit-log-maxsize 4000 "${dawdling[@]}"
    start clients python3 "$ROOT/tests/tools/restart.py" "$ADDRESS" "$DIR" "$WATCHES" 1000 "$WORK/stop"
    within "$LIMIT" grep -q watching "$WORK/clients.out" || die "the watches do not open: $(tail -n 3 "$WORK/clients.err")"
    start wrk wrk -t1 -c8 -d900s --timeout 60s -H "$(bearer alice)" "$URL$NAMESPACE"
    start h2load http2_load "$URL$NAMESPACE"
    "$WEIR" ctl block --user nobody --for 1h --reason 'over all of them' >"$WORK/block"
    for ((n = 1; n <= RESTARTS; n++)); do
        restart main "$n"
        within "$LIMIT" watches_open || die "the watches do not come back: $(tail -n 5 "$WORK/main.err")"
    done
    check_ok 'a lever is in force after all of them' within "$LIMIT" lever_kept
}

# spread: the number of groups of watches that ended together, and the shortest, the median and the longest time that a group took to
# end. A group ends where no watch ends for half a second: a pause of the machine divides one.
spread() {
    tr ' ' '\n' <<<"${1#ends: }" | sort -n | awk '
        NR == 1 {from = $1}
        NR > 1 && $1 - last > 500 {print last - from; from = $1}
        {last = $1}
        END {print last - from}' | sort -n | awk '
        {took[NR] = $1}
        END {print NR, took[1], took[int((NR + 1) / 2)], took[NR]}'
}

# counted GOAWAYS: what the clients have counted. Sets LINE.
counted() {
    : >"$WORK/stop"
    finish clients 90
    LINE=$(grep '^fresh=' "$WORK/clients.out") || die "the clients count nothing: $(tail -n 5 "$WORK/clients.err")"
    grep -v '^ends:\|^watching' "$WORK/clients.out"
    check 'no connection was refused' 0 "$(field refused "$LINE")"
    check 'no request failed' 0 "$(field failed "$LINE")"
    check 'every HTTP/1.1 connection that ended was announced by Connection: close' 0 "$(field untold "$LINE")"
    check_between 'HTTP/1.1 clients were told' "$1" 1000000 "$(field told "$LINE")"
    check_between 'HTTP/2 clients got GOAWAY' "$1" 1000000 "$(field goaways "$LINE")"
    check 'no watch was cut' 0 "$(field cut "$LINE")"
}

# loaded: what wrk and h2load saw.
loaded() {
    grep -E 'Requests/sec|requests in' "$WORK/wrk.out"
    check_no_match 'wrk: no request failed' 'Non-2xx|Socket errors' "$(<"$WORK/wrk.out")"
    check_match 'h2load: answers came' '^status codes: [1-9]' "$(grep -E '^status codes:' "$WORK/h2load.out" | head -n 1)"
    check 'h2load: every answer is a 2xx' '' \
        "$(grep -E '^status codes:' "$WORK/h2load.out" | grep -vE ' 0 3xx, 0 4xx, 0 5xx' || true)"
}

results() {
    local groups shortest median longest succeeded
    signal wrk INT
    finish wrk
    counted "$RESTARTS"
    finish h2load
    check_between 'every watch ended cleanly with its process' "$((RESTARTS * WATCHES - WATCHES))" 1000000 "$(field ended "$LINE")"
    check 'the slow upload succeeded' 201 "$(field upload "$LINE")"
    read -r groups shortest median longest < <(spread "$(grep '^ends:' "$WORK/clients.out")")
    printf 'watches ended in %s groups, each within %s to %s ms\n' "$groups" "$shortest" "$longest"
    check_between 'watches ended spread over time, in ms (median)' 300 $((GRACE * 1000 * RESTARTS)) "$median"
    loaded
    # h2load counts as failed what it could not send behind a GOAWAY. weir's audit log has what was sent.
    succeeded=$(awk '/^requests:/ {n += $8} END {print n + 0}' "$WORK/h2load.out")
    check_between 'h2load sent requests' 1000 100000000 "$succeeded"
    within "$LIMIT" audited "$succeeded" || true # the last lines of the log may be on their way
    check 'h2load: every request that weir received succeeded' "$succeeded" "$(requests_of_bob)"
}

told() {
    check_between 'the service manager was told the new main process' "$RESTARTS" "$RESTARTS" "$(grep -c MAINPID= "$WORK/told")"
    check 'and that it is ready, each time' "$((RESTARTS + 1))" "$(grep -c READY=1 "$WORK/told")"
}

# refused WHAT PATTERN: a hand-over that fails says PATTERN, and the same process goes on.
refused() {
    local before after
    before=$(main_process main)
    kill -USR2 "$before"
    check_ok "$1: it is in the log" within "$LIMIT" grep -Eq "$2" "$WORK/main.err"
    after=$(main_process main)
    check "$1: the same process serves" "$before" "$after"
    check "$1: requests succeed" 200 "$(get -o /dev/null -w '%{http_code}' -H "$(bearer alice)" "$NAMESPACE")"
}

failures() {
    mv "$PROGRAM" "$PROGRAM.good"
    printf '#!/bin/sh\nexit 7\n' >"$PROGRAM"
    chmod +x "$PROGRAM"
    refused 'a program that ends' 'no hand-over: .*exit status: 7'
    printf 'no program' >"$PROGRAM"
    refused 'a file that is no program' 'no hand-over: .*cannot be started'
    rm "$PROGRAM"
    mv "$PROGRAM.good" "$PROGRAM"
    cp "$WORK/weir.yaml" "$WORK/weir.yaml.good"
    printf 'requestTimeout: soon\n' >"$WORK/weir.yaml"
    refused 'an invalid configuration' 'no hand-over: .*exit status: 2'
    mv "$WORK/weir.yaml.good" "$WORK/weir.yaml"
    restart main "$((RESTARTS + 1))"
    pass 'and a good one takes over again'
}

# shellcheck disable=SC2317,SC2329 # called by `within`
closed() {
    ! curl -s --max-time 5 --cacert "$DIR/ca.crt" "$URL/version"
}

ending() {
    kill -TERM "$(main_process main)"
    check_ok 'SIGTERM ends the last process' within "$LIMIT" closed
}

# backend NAME: a weir of its own, which the balancer gets from now on.
backend() {
    weir "$1" "$UPSTREAM" --shutdown-delay-duration 10s --shutdown-watch-termination-grace-period "${GRACE}s" "${dawdling[@]}"
    printf '%s %s\n' "$ADDRESS" "$ADMIN" >>"$WORK/backends"
    check_ok "$1 is ready" within "$LIMIT" curl -fsS --max-time 5 "http://$ADMIN/readyz"
}

# Two replicas, of which each is replaced by a new one: first there is one more, then one less (maxUnavailable: 0).
replicas() {
    local UPSTREAM n
    unset NOTIFY_SOCKET
    rm -f "$WORK/stop"
    apiserver replicated 0
    UPSTREAM=$ADDRESS
    backend replica1
    backend replica2
    start balancer python3 "$ROOT/tests/tools/balancer.py" "$WORK/backends"
    within "$LIMIT" grep -q : "$WORK/balancer.out" || die "the balancer does not start: $(tail -n 3 "$WORK/balancer.err")"
    start clients python3 "$ROOT/tests/tools/restart.py" "$(<"$WORK/balancer.out")" "$DIR" 20 10 "$WORK/stop"
    within "$LIMIT" grep -q watching "$WORK/clients.out" || die "the watches do not open: $(tail -n 3 "$WORK/clients.err")"
    start wrk wrk -t1 -c8 -d900s --timeout 60s -H "$(bearer alice)" "https://$(<"$WORK/balancer.out")$NAMESPACE"
    start h2load http2_load "https://$(<"$WORK/balancer.out")$NAMESPACE"
    for ((n = 1; n <= 2; n++)); do
        backend "replica$((n + 2))"
        stopped "replica$n"
    done
    signal wrk INT
    finish wrk
    counted 1
    finish h2load
    loaded
}

# flags: FLAGS of a weir before the API server that was started last, but for its port.
flags() {
    FLAGS=(--bind-address 127.0.0.1 --admin-address 127.0.0.1:0 --upstream "https://$ADDRESS" --upstream-ca-file "$DIR/ca.crt"
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv"
        --proxy-client-cert-file "$DIR/front-proxy-client.crt" --proxy-client-key-file "$DIR/front-proxy-client.key")
}

# answers: whether a new connection is served.
# shellcheck disable=SC2317,SC2329 # called by `within`
answers() {
    curl -s -o /dev/null --max-time 5 --cacert "$DIR/ca.crt" "$URL/version"
}

# milliseconds: the time.
milliseconds() {
    date +%s%3N
}

# A stop and a start, as of a static pod: no new process can take over from one that is process 1. The port is closed in between. The
# bound is generous: it finds a wait that should not be there.
gap() {
    local port before closed_at took
    apiserver alone 0
    flags
    port=$(free_port)
    start alone1 "$WEIR" serve --secure-port "$port" "${FLAGS[@]}"
    fronting alone1
    before=$(milliseconds)
    stopped alone1
    check 'the port is closed' closed "$(answers && echo open || echo closed)"
    closed_at=$(milliseconds)
    start alone2 "$WEIR" serve --secure-port "$port" "${FLAGS[@]}"
    fronting alone2
    check_ok 'a new process serves' answers
    took=$(($(milliseconds) - before))
    printf 'stop and start without a hand-over: the stop took %s ms, and the port was closed for at most %s ms\n' \
        "$((closed_at - before))" "$took"
    check_between 'stop and start without a hand-over, in ms' 1 30000 "$took"
    stopped alone2
}

# A socket that systemd opens is open before weir runs and while it starts.
activated() {
    local port
    apiserver socket 0
    flags
    port=$(free_port)
    start activated systemd-socket-activate --listen "127.0.0.1:$port" --fdname main \
        "$WEIR" serve --secure-port 6443 "${FLAGS[@]}"
    URL=https://127.0.0.1:$port
    check_ok 'the first connection starts weir and is served' within "$LIMIT" answers
    check_ok 'it says that it uses that socket' within "$LIMIT" grep -q "clients=127.0.0.1:$port" "$WORK/activated.err"
    stopped activated
}

under_load
results
told
failures
ending
replicas
gap
activated
summary
