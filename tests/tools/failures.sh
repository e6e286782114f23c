#!/usr/bin/env bash
# docs/failures.md, row by row, with the real program: an API server that fails in each way of `weir playground --fault`, full disks, a
# name that no longer resolves, a clock that jumps, and too few files. Each time: what a client gets, what an operator sees, and
# that it is over when its cause is.
#
# The disks and the name need a mount namespace: root with CAP_SYS_ADMIN, or a kernel that lets users make user namespaces.
#
# NIGHTLY=1: a machine without that right is a failure.
#
# Usage: failures.sh [faults] [clock] [files] [disks] [names]

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk cc curl jq prlimit unshare

# Runs this script again in a mount namespace of its own.
isolated() {
    local user
    for user in '' '--user --map-root-user'; do
        # shellcheck disable=SC2086 # no argument, or two
        if unshare $user --mount mount -t tmpfs none /mnt 2>/dev/null; then
            rm -rf "$WORK"
            # shellcheck disable=SC2086
            exec unshare $user --mount env WEIR_TEST_MOUNTS=1 "$0" "$@"
        fi
    done
}
if [[ -z ${WEIR_TEST_MOUNTS:-} ]]; then isolated "$@"; fi

NODES=/api/v1/nodes
NAMESPACE=/api/v1/namespaces/default
CONFIGMAPS=$NAMESPACE/configmaps
# Shorter than any of this script's limits, and longer than what etcd takes when it is slow.
TIMEOUT=4s

# fault KIND: the API server has it from now on.
fault() {
    printf '%s\n' "$1" >"$DIR/fault.new"
    mv "$DIR/fault.new" "$DIR/fault"
    within "$LIMIT" has_fault "$1" || die "the API server does not take the fault $1: $(tail -n 3 "$WORK/cluster.err")"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
has_fault() {
    [[ $(tail -n 1 "$WORK/cluster.out") == "fault: $1" ]]
}

# front NAME FLAG...: `weir serve`. PREFIX is before its command.
PREFIX=()
front() {
    local name=$1
    shift
    start "$name" "${PREFIX[@]}" "$WEIR" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
        --client-ca-file "$DIR/ca.crt" --token-auth-file "$DIR/tokens.csv" \
        --request-timeout "$TIMEOUT" "$@"
    fronting "$name"
}

# before NAME URL FLAG...: weir before the API server at URL, by copies of its files: they may be replaced.
before() {
    rm -rf "$WORK/files"
    cp -r "$DIR" "$WORK/files"
    front "$1" --upstream "$2" --upstream-ca-file "$WORK/files/ca.crt" \
        --proxy-client-cert-file "$WORK/files/front-proxy-client.crt" \
        --proxy-client-key-file "$WORK/files/front-proxy-client.key" "${@:3}"
}

# ask ARGUMENT... PATH: as alice, by her token; with CERTIFICATE by that. Sets CODE; the head and the body are in $WORK/head and
# $WORK/body.
ask() {
    local by=(-H "$(bearer alice)")
    if [[ -n ${CERTIFICATE:-} ]]; then by=(--cert "$DIR/alice.crt" --key "$DIR/alice.key"); fi
    CODE=$(get -D "$WORK/head" -o "$WORK/body" -w '%{http_code}' "${by[@]}" "$@" 2>/dev/null) || CODE+=' and an error'
}

# gets CODE CAUSE ARGUMENT... PATH: that is the answer; without a cause it is the API server's own.
# shellcheck disable=SC2317,SC2329 # called by `within`
gets() {
    ask "${@:3}"
    [[ $CODE =~ ^$1$ ]] && case $2 in
        '') [[ $(<"$WORK/body") != *'"reason":"weir/'* ]] ;;
        *) [[ $(<"$WORK/body") =~ \"reason\":\"$2 ]] ;;
    esac
}

# expect WHAT CODE CAUSE ARGUMENT... PATH: the answer is that, soon.
expect() {
    if within "$LIMIT" gets "${@:2}"; then pass "$1"; else fail "$1" "$2 $3" "$CODE $(head -c 300 "$WORK/body")"; fi
}

# shellcheck disable=SC2317,SC2329 # called by `within`
calm() {
    "$WEIR" status --admin "http://$ADMIN"
}

# over NAME: requests are served, and no alarm is left.
over() {
    expect "$1 ends: requests are served" 200 '' "$NODES"
    check_ok "$1 ends: no alarm is left" within "$LIMIT" calm
}

# shellcheck disable=SC2317,SC2329 # called by `within`
logged() {
    grep -q -e "$2" "$WORK/$1.err"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
above() {
    (($(metric "$1") > $2))
}

# map NAME: a ConfigMap.
map() {
    printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"}}' "$1"
}

# create NAME: the arguments of curl that create it.
create() {
    CREATE=(-X POST -H 'Content-Type: application/json' -d "$(map "$1")" "$CONFIGMAPS")
}

unreachable() {
    fault refuse
    expect 'refuse: 503' 503 weir/upstream-connect "$NODES"
    check_match 'refuse: with Retry-After' 'retry-after: 1' "$(<"$WORK/head")"
    check_alarm refuse 'critical upstream'
    check_ok 'refuse: a log line names the cause' logged front 'no response from the API server.*weir/upstream-connect'
    fault none
    over refuse

    fault hang
    expect 'hang: 504 at the deadline' 504 weir/request-timeout "$NODES"
    check_alarm hang 'critical upstream'
    fault none
    over hang

    fault reset
    create reset
    expect 'reset: 502, since it may have been executed' 502 weir/upstream-reset "${CREATE[@]}"
    expect 'reset: then 503, until its /readyz passes' 503 weir/upstream-not-ready "$NODES"
    check_alarm reset 'critical upstream'
    fault none
    over reset

    fault garbage
    expect 'garbage: 503 or 502' 50[23] 'weir/upstream-' "$NODES"
    check_alarm garbage 'critical upstream'
    fault none
    over garbage
}

# The server answers its health checks: no alarm.
misbehaving() {
    local before
    fault hang-after-head
    ask "$NODES"
    check 'hang-after-head: the response is cut off at the deadline' '200 and an error' "$CODE"
    check_ok 'hang-after-head: a log line says so' within "$LIMIT" logged front 'a response ended early'
    fault none
    over hang-after-head

    fault no-streams
    create no-streams
    expect 'no-streams: 503' 503 weir/upstream-refused "${CREATE[@]}"
    expect 'no-streams: reads go on over HTTP/1.1' 200 '' "$NODES"
    fault none
    expect 'no-streams ends: writes are served' 201 '' "${CREATE[@]}"
    over no-streams

    before=$(metric weir_upstream_limit_rejections_total)
    fault 429
    expect '429: the answer passes' 429 '' "$NODES"
    check_match '429: with its Retry-After' 'retry-after: 1' "$(<"$WORK/head")"
    check_ok '429: the metric counts it' above weir_upstream_limit_rejections_total "$before"
    fault none
    over 429

    before=$(metric 'weir_upstream_responses_total{code="500"}')
    fault 500
    expect '500: the answer passes' 500 '' "$NODES"
    check_ok '500: the metric counts it' above 'weir_upstream_responses_total{code="500"}' "$before"
    fault none
    over 500

    fault slow-etcd
    create slow-etcd
    expect 'slow-etcd: a write takes longer' 201 '' "${CREATE[@]}"
    expect 'slow-etcd: reads from the watch cache do not' 200 '' --max-time 2 "$NODES?resourceVersion=0"
    fault none
    over slow-etcd
}

# It fails its /readyz, and serves.
shutting_down() {
    local before probes="weir_upstream_server_probes_total{result=\"not-ready\",server=\"$UPSTREAM\"}"
    before=$(metric "$probes")
    fault not-ready
    check_ok 'not-ready: a metric counts the probes' within "$LIMIT" above "$probes" "$before"
    expect 'not-ready: a single server is used' 200 '' "$NODES"
    fault none
    over not-ready

    fault shutdown
    local codes=''
    until [[ $codes == *503* || $codes == *502* ]]; do
        ask "$NODES"
        if [[ $codes != *"$CODE" ]]; then codes+=" $CODE"; fi
    done
    check 'shutdown: 200 until it has ended, then 503' ' 200 503' "$codes"
    check_alarm shutdown 'critical upstream'
    fault none
    over shutdown
}

certificates() {
    fault certificate-expired
    expect 'certificate-expired: 503' 503 weir/upstream-tls "$NODES"
    check_match 'certificate-expired: the message says so' 'Expired' "$(<"$WORK/body")"
    check_no_match 'certificate-expired: no Retry-After' 'retry-after' "$(<"$WORK/head")"
    check_alarm certificate-expired 'critical upstream'
    fault none
    over certificate-expired

    fault ca-changed
    expect 'ca-changed: 503' 503 weir/upstream-tls "$NODES"
    check_alarm ca-changed 'critical upstream'
    cat "$DIR/changed-ca.crt" >>"$WORK/files/ca.crt"
    over 'ca-changed, with the new CA in the file,'
    fault none
    over ca-changed
}

# A disk that is full for the audit log, the record and the state.
disks() {
    local disk=/mnt
    mount -t tmpfs -o size=1m none "$disk"
    front full --kubeconfig "$DIR/kubeconfig" --audit-log-path "$disk/audit.log" --record-path "$disk/record" --state-dir "$disk/state"
    check_ok 'disks: the state is kept' within "$LIMIT" grep -q '"exempt"' "$disk/state/flowcontrol.json"
    cat /dev/zero >"$disk/filler" 2>/dev/null || true
    # More than what is left of the last pages of the files.
    check 'a full disk: requests are served' '100 200' "$(get -Z -H "$(bearer alice)" -o /dev/null -w '%{http_code}\n' "$NODES?n=[1-100]" 2>/dev/null |
        sort | uniq -c | awk '{print $1, $2}')"
    check_alarm 'a full disk' 'warning audit-log'
    check_alarm 'a full disk' 'warning record'
    check_between 'a full disk: a metric counts lost events' 1 1000000 "$(metric 'apiserver_audit_error_total{plugin="log"}')"
    check 'a full disk: the record has ended' 1 "$(metric weir_record_failures_total)"
    check 'a full disk: a new level' 201 "$(level full)"
    check_ok 'a full disk: the log says that the state is not kept' within "$LIMIT" logged full '--state-dir: cannot save'
    check_no_match 'a full disk: the state of before stays' '"full"' "$(<"$disk/state/flowcontrol.json")"
    rm "$disk/filler"
    expect 'the disk is free: requests are served' 200 '' "$NODES?n=free"
    check_ok 'the disk is free: they are in the audit log' within "$LIMIT" grep -q 'n=free' "$disk/audit.log"
    check_ok 'the disk is free: the state is kept' within "$LIMIT" grep -q '"full"' "$disk/state/flowcontrol.json"
    stopped full
    umount "$disk"
}

# level NAME: creates a priority level, at the API server itself.
level() {
    curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -o /dev/null -w '%{http_code}' -H "$(bearer admin)" \
        -H 'Content-Type: application/json' \
        -d "{\"metadata\": {\"name\": \"$1\"}, \"spec\": {\"type\": \"Limited\", \"limited\": {\"limitResponse\": {\"type\": \"Reject\"}}}}" \
        "https://$UPSTREAM/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
}

# The name of the API server no longer resolves.
names() {
    printf '127.0.0.1 localhost kubernetes\n' >"$WORK/hosts"
    printf 'hosts: files\n' >"$WORK/nsswitch.conf"
    mount --bind "$WORK/hosts" /etc/hosts
    mount --bind "$WORK/nsswitch.conf" /etc/nsswitch.conf
    before named "https://kubernetes:${UPSTREAM##*:}"
    over 'a name'
    printf '127.0.0.1 localhost\n' >"$WORK/hosts"
    fault refuse
    expect 'no DNS: 503 while the API server is away, too' 503 weir/upstream-connect "$NODES"
    check_ok 'no DNS: the log says so' within "$LIMIT" logged named 'the name of an API server does not resolve'
    fault none
    over 'no DNS, and the outage'
    stopped named
    umount /etc/hosts /etc/nsswitch.conf
}

# jump SECONDS: the wall clock of weir is so far from the machine's.
jump() {
    printf '%s\n' "$1" >"$WORK/clock.new"
    mv "$WORK/clock.new" "$WORK/clock"
}

# The clock of one process, by a library in front of the system's. The coarse clock, by which weir looks whether a client's
# certificate has expired, has none.
clock() {
    cat >"$WORK/clock.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *time) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, time);
    char text[32] = "";
    int file = id == CLOCK_REALTIME && code == 0 ? open(getenv("CLOCK_OFFSET"), O_RDONLY) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) time->tv_sec += atoll(text);
        close(file);
    }
    return code;
}
C
    cc -shared -fPIC -o "$WORK/clock.so" "$WORK/clock.c" -ldl
    jump 0
    LD_PRELOAD=$WORK/clock.so CLOCK_OFFSET=$WORK/clock before clock "https://$UPSTREAM"
    local by
    over 'clock: the start'
    for by in 7200 -7200; do
        jump "$by"
        expect "clock: $by s off: a token" 200 '' "$NODES"
        CERTIFICATE=yes expect "clock: $by s off: a certificate" 200 '' "$NODES"
        check_ok "clock: $by s off: no alarm" within "$LIMIT" calm
    done
    jump $((400 * 86400))
    check_alarm 'clock: 400 days ahead' 'critical certificates'
    jump 0
    CERTIFICATE=yes expect 'clock: right again: a certificate' 200 '' "$NODES"
    over 'clock: right again'
    stopped clock
}

# The limit of open files is too low.
files() {
    PREFIX=(prlimit --nofile=600:600)
    before few "https://$UPSTREAM" --max-connections-per-address 1000
    PREFIX=()
    check_alarm 'open files: 600' 'warning open-files'
    start crowd get -Z --parallel-immediate --parallel-max 300 -N --http1.1 -H "$(bearer alice)" -o /dev/null "$CONFIGMAPS?watch=1&n=[1-300]"
    check_alarm 'open files: gone' 'critical connections'
    check_ok 'open files: gone: the log says so' within "$LIMIT" logged few 'a connection was refused.*--max-connections'
    signal crowd KILL
    finish crowd 2>/dev/null
    expect 'open files: they are free again: requests are served' 200 '' "$NODES"
    stopped few
}

# One weir before an API server that fails.
faults() {
    before front "https://$UPSTREAM"
    over 'the start'
    unreachable
    misbehaving
    shutting_down
    certificates
    stopped front
}

apiserver cluster "$(free_port)"
UPSTREAM=$ADDRESS
sections=("$@")
if (($# == 0)); then sections=(faults clock files disks names); fi
for section in "${sections[@]}"; do
    if [[ $section =~ ^(disks|names)$ && -z ${WEIR_TEST_MOUNTS:-} ]]; then
        why='this machine refuses to make a mount namespace'
        if nightly; then fail "$section" 'they run' "$why"; else printf 'NOT RUN: %s: %s\n' "$section" "$why"; fi
        continue
    fi
    "$section"
done
summary
