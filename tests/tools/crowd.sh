#!/usr/bin/env bash
# Thousands of connections that never back off: weir's memory stays within bounds and is released,
# and a second storm has the same effect as the first.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl wrk

# Half of weir's descriptors are for clients, the others for the API server. One address gets three quarters of the clients'. No
# more than 10000: where this was written the limit is 20000, so that how long a larger crowd takes is not known.
ulimit -n "$(ulimit -Hn)"
CROWD=$((($(ulimit -n) / 2 - 500) * 3 / 4))
CROWD=$((CROWD - CROWD % 2)) # wrk has two threads, which share them evenly
if ((CROWD > 10000)); then CROWD=10000; fi
if ((CROWD < 6000)); then die "the open-file limit allows $CROWD connections, and 6000 are needed"; fi

# highest: MiB that weir has had at most, since it was `forgotten` or began.
highest() {
    awk '/VmHWM/ {print int($2 / 1024)}' "/proc/${PIDS[front]}/status"
}

# forgotten: from here on the most that weir has had is counted from what it has now.
forgotten() {
    echo 5 >"/proc/${PIDS[front]}/clear_refs" || die 'what the most memory is counted from cannot be set anew'
}

# upstream: the connections to the API server, which stay open for 45 s after the last request. Each has a task.
upstream() {
    curl -sS --max-time 10 "http://$ADMIN/metrics" | awk '/^weir_upstream_connections{/ {sum += $NF} END {print sum + 0}'
}

# descriptors: how many weir has open, beside its connections to the API server.
descriptors() {
    local open
    open=$(find "/proc/${PIDS[front]}/fd" -mindepth 1 | wc -l)
    echo $((open - $(upstream)))
}

# tasks: of all workers, beside those of the connections to the API server.
tasks() {
    local all
    all=$(curl -sS --max-time 10 "http://$ADMIN/metrics" | awk '/^weir_worker_tasks{/ {sum += $NF} END {print sum + 0}')
    echo $((all - $(upstream)))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
at_least() {
    (($(metric "$1") >= $2))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
few_tasks() {
    (($(tasks) <= $1))
}

# What else stays open for a while.
KEPT=72

# storm NAME: PEAK is the most memory that weir has until all is over.
storm() {
    forgotten
    start "$1" wrk -c "$CROWD" -t 2 -d 600s --timeout 20s -H "$(bearer alice)" "$URL/api/v1/namespaces/default"
    check_ok "$1: $CROWD connections are open" within 200 at_least 'weir_client_connections' "$CROWD"
    check_ok "$1: refusals are held" within 200 at_least 'weir_rejection_holds' 1000
    check_between "$1: no more are held than may be" 0 10000 "$(metric 'weir_rejection_holds')"
    signal "$1" INT # its own end
    finish "$1"
    check "$1 ends" 0 "$STATUS"
    check_ok "$1: all connections end" within "$LIMIT" at_zero 'weir_client_connections'
    check_ok "$1: nothing is held any more" within "$LIMIT" at_zero 'weir_rejection_holds'
    check_ok "$1: no flow is held any more" within "$LIMIT" at_zero 'weir_rejection_hold_flows'
    check_ok "$1: tasks end" within "$LIMIT" few_tasks $((TASKS + KEPT))
    PEAK=$(highest)
    check_between "$1: descriptors are closed" 1 $((DESCRIPTORS + KEPT)) "$(descriptors)"
}

apiserver back 0 --service-cpu 400us --refusal-cpu 150us --max-in-flight 400
weir front "$ADDRESS"
get -H "$(bearer alice)" /api/v1/namespaces/default >/dev/null
TASKS=$(tasks)
DESCRIPTORS=$(descriptors)
storm first
first=$PEAK
check_between "memory of $CROWD connections, scaled to 20000, in MiB" 1 1023 $((first * 20000 / CROWD))
storm second
# What leaks takes more in the third as well.
if ((PEAK > first * 110 / 100)); then storm third; fi
check 'one address got all of its connections' 0 "$(metric weir_client_connections_share_refused_total)"
check_between 'another storm takes less than 10 % more, in MiB' 1 $((first * 110 / 100)) "$PEAK"
stopped front
stopped back
summary
