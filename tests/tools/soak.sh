#!/usr/bin/env bash
# Load for three minutes, and for an hour by night: at 70 % of what the API server can do, requests of all verbs, watches, tunnels,
# aborted requests and slow readers; meanwhile reloads, levers, restarts of the API server and hand-overs. Memory, descriptors, tasks
# and series stay flat, and each answer that the clients received is in the audit log and in the metrics, by its code.
#
# NIGHTLY=1: an hour, memory grows by less than 1 MiB in ten minutes, and the plots are written to docs/soak.svg.
# SOAK_MINUTES, SOAK_PLOT: another duration, another file for the plots.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq mkfifo python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import hpack' || die 'hpack is missing (python3-h2 brings it; .ci/run installs it)'

MINUTES=3 PLOT=
if nightly; then MINUTES=60 PLOT=$ROOT/docs/soak.svg; fi
MINUTES=${SOAK_MINUTES:-$MINUTES} PLOT=${SOAK_PLOT:-$PLOT}

# The API server serves so many requests at once, in this time each. Beyond it they take longer.
CAPACITY=4
SERVICE_MS=40
RATE=$((CAPACITY * 1000 * 70 / 100 / SERVICE_MS))
SAMPLE=2     # seconds between two samples
RESTART=45   # samples between two restarts of the API server; by night 150
WARM=60      # seconds from the last hand-over until memory counts; by night 300
RANGE=128    # MiB between the least and the most memory, after that
SLOPE=1024   # KiB in ten minutes, by night
NEW='the new process serves'
if nightly; then WARM=300 RESTART=150; fi

# main_process: the process that serves.
main_process() {
    local line
    line=$(grep "$NEW" "$WORK/front.err" | tail -n 1)
    if [[ $line =~ pid=([0-9]+) ]]; then printf '%s' "${BASH_REMATCH[1]}"; else printf '%s' "${PIDS[front]}"; fi
}

# shellcheck disable=SC2317,SC2329 # called by `within`
handed_over() {
    (($(grep -c "$NEW" "$WORK/front.err") == $1))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
alone() {
    (($(grep -c 'the old process has ended' "$WORK/front.err") == $1))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
said() {
    (($(grep -c "^$1" "$WORK/load.out") > $2))
}

# tell COMMAND ANSWER: the clients obey. SAID is what they say then.
tell() {
    local before
    before=$(grep -c "^$2" "$WORK/load.out" || true)
    printf '%s\n' "$1" >&7
    within 120 said "$2" "$before" || die "the clients do not obey $1: $(tail -n 3 "$WORK/load.err")"
    SAID=$(grep "^$2" "$WORK/load.out" | tail -n 1)
    SAID=${SAID#"$2"}
}

metrics() {
    curl -sS --max-time 20 "http://$ADMIN/metrics"
}

# counted: alice's answers by code, as weir's metrics have them, as JSON.
counted() {
    metrics | sed -n 's/^apiserver_request_total{\(.*resource="\(configmaps\|nodes\)".*\)} \(.*\)$/\1 \3/p' |
        sed 's/.*code="\([0-9]*\)".* \([0-9]*\)$/\1 \2/' |
        awk '{n[$1] += $2} END {for (code in n) printf "%s %s\n", code, n[code]}' | codes
}

# codes: lines with a code and a number, as JSON.
codes() {
    jq -cSR -n '[inputs | split(" ") | {(.[0]): (.[1] | tonumber)}] | add // {}'
}

# audited: alice's answers by code, as the audit log has them.
audited() {
    # Levers have events, too.
    cat "$WORK"/audit*.log | grep '"username":"alice"' | grep -o '"code":[0-9]*},"requestReceivedTimestamp"' | tr -dc '0-9\n' | sort | uniq -c | awk '{print $2, $1}' | codes
}

# less MORE LESS: the difference of two such objects, without zeros.
less() {
    jq -cSn --argjson more "$1" --argjson less "$2" '$more | with_entries(.value -= ($less[.key] // 0)) | with_entries(select(.value != 0))'
}

# shellcheck disable=SC2317,SC2329 # called by `within`
audit_is() {
    [[ $(audited) == "$1" ]]
}

# sample: one line of $WORK/samples: seconds, KiB, descriptors, tasks, series.
sample() {
    local pid
    pid=$(main_process)
    metrics >"$WORK/metrics"
    printf '%s %s %s %s %s\n' "$((SECONDS - BEGAN))" "$(awk '/^VmRSS/ {print $2}' "/proc/$pid/status")" \
        "$(find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l)" \
        "$(awk '/^weir_worker_tasks/ {n += $NF} END {print n + 0}' "$WORK/metrics")" "$(grep -vc '^#' "$WORK/metrics")" >>"$WORK/samples"
}

# elapsed SECONDS: so long after the start.
elapsed() {
    ((SECONDS - BEGAN >= $1))
}

# soak SECONDS: disturbed load until so long after the start.
soak() {
    local lever
    until elapsed "$1"; do
        sample
        TICK=$((TICK + 1))
        case $((TICK % 10)) in
            2) printf 'maxRequestsInflight: %s\n' "$((300 + TICK / 10 % 2))" >"$WORK/weir.yaml.new" && mv "$WORK/weir.yaml.new" "$WORK/weir.yaml" ;;
            4) "$WEIR" ctl limit --user nobody --qps 10 --for 5m >"$WORK/lever" ;;
            6) "$WEIR" ctl total 200 --for 1m >/dev/null ;;
            8)
                lever=$(sed -n 's/^lever \([0-9]*\) .*/\1/p' "$WORK/lever")
                "$WEIR" ctl undo "$lever" >/dev/null
                ;;
        esac
        if ((TICK % RESTART == 15)); then restart_api_server; fi
        within "$SAMPLE" elapsed $((SECONDS - BEGAN + SAMPLE)) || true
    done
}

restart_api_server() {
    local admin=$ADMIN url=$URL address=$ADDRESS
    signal cluster KILL
    finish cluster 2>/dev/null
    api_server
    ADMIN=$admin URL=$url ADDRESS=$address
    RESTARTS=$((RESTARTS + 1))
}

api_server() {
    apiserver cluster "$PORT" --pods 500 --capacity "$CAPACITY" --service-time "${SERVICE_MS}ms"
}

hand_over() {
    HANDOVERS=$((HANDOVERS + 1))
    kill -USR2 "$(main_process)"
    within 60 handed_over "$HANDOVERS" || die "hand-over $HANDOVERS fails: $(tail -n 5 "$WORK/front.err")"
    PIDS[front$HANDOVERS]=$(main_process) # so that the cleanup ends it
}

# slope FROM TO: KiB in ten minutes by which memory grows between these seconds, as a straight line through the samples.
slope() {
    awk -v from="$1" -v to="$2" '$1 >= from && $1 <= to {n++; x += $1; y += $2; xx += $1 * $1; xy += $1 * $2}
        END {d = n * xx - x * x; printf "%d", d ? (n * xy - x * y) / d * 600 : 0}' "$WORK/samples"
}

# column N FROM TO: least and most of a column of the samples between these seconds.
column() {
    awk -v n="$1" -v from="$2" -v to="$3" '$1 >= from && $1 <= to {if (!c++ || $n < l) l = $n; if ($n > m) m = $n}
        END {print l + 0, m + 0}' "$WORK/samples"
}

# judged FROM TO: samples of one process.
judged() {
    local least most grown
    grown=$(slope "$1" "$2")
    read -r least most < <(column 2 "$1" "$2")
    printf 'seconds %s to %s: memory %s to %s MiB, %s KiB in ten minutes\n' "$1" "$2" $((least / 1024)) $((most / 1024)) "$grown"
    check_between 'MiB between the least and the most memory' 0 "$RANGE" $(((most - least) / 1024))
    if nightly; then check_between 'KiB in ten minutes: less than 1 MiB' 0 $((SLOPE - 1)) "$((grown > 0 ? grown : 0))"; fi
    # Watches and tunnels open and close.
    read -r least most < <(column 3 "$1" "$2")
    check_between 'open files, at most' 1 1000 "$most"
    read -r least most < <(column 4 "$1" "$2")
    check_between 'tasks, at most' 1 2000 "$most"
    read -r least most < <(column 5 "$1" "$2")
    check_between 'series that come in addition' 0 300 $((most - least))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
at_rest() {
    (($(metrics | awk '/^weir_client_connections /{n += $NF} /^apiserver_(current_inflight|longrunning)_requests{/ {n += $NF} END {print n + 0}') == 0))
}

PORT=$(free_port)
RESTARTS=0 HANDOVERS=0 TICK=0
api_server
printf 'maxRequestsInflight: 300\n' >"$WORK/weir.yaml"
printf '{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata","users":["alice"]},{"level":"None"}]}\n' \
    >"$WORK/policy.json"
weir front "$ADDRESS" --config "$WORK/weir.yaml" --audit-log-path "$WORK/audit.log" --audit-log-maxsize 4000 \
    --audit-policy-file "$WORK/policy.json" --shutdown-watch-termination-grace-period 2s --min-transfer-rate 0
mkfifo "$WORK/commands"
exec 7<>"$WORK/commands"
BEGAN=$SECONDS
start load python3 "$ROOT/tests/tools/soak.py" load "$ADDRESS" "$DIR" "$RATE" "$WORK/commands"
within "$LIMIT" grep -q started "$WORK/load.out" || die "the clients do not start: $(tail -n 3 "$WORK/load.err")"

ALL=$((MINUTES * 60))
# The last process stays for long enough to see whether its memory grows.
AT=($((ALL / 3)))
if nightly; then AT=($((ALL / 15)) $((ALL * 2 / 15)) $((ALL / 5))); fi
for at in "${AT[@]}"; do
    soak "$at"
    hand_over
done
FROM=$((SECONDS - BEGAN))

# What the last process counts is compared. Until it is the only one, the one before answers what comes on its connections.
within 120 alone "$HANDOVERS" || die "an old process does not end: $(tail -n 5 "$WORK/front.err")"
tell pause paused
ANSWERS=$SAID COUNTED=$(counted)
tell resume resumed
soak "$ALL"
tell pause paused
check 'the metrics have each answer, by code' "$(less "$SAID" "$ANSWERS")" "$(less "$(counted)" "$COUNTED")"
within "$LIMIT" audit_is "${SAID# }" || true # the last lines are on their way
check 'the audit log has each answer, by code' "$(less "$SAID" '{}')" "$(audited)"
WARM_FROM=$((FROM + WARM))
if ((WARM_FROM > ALL - 20)); then WARM_FROM=$((ALL - 20)); fi
judged "$WARM_FROM" "$ALL"
tell stop stopped
printf 'clients: %s\n' "$SAID"
grep '^unanswered' "$WORK/load.out" || true
check 'requests of alice without an answer' 0 "$(jq -n "${SAID} | .unanswered // 0")"
for what in watches tunnels aborted 'read slowly'; do
    check_between "$what" 1 1000000 "$(jq -n "$SAID | .[\"$what\"] // 0")"
done
check_between 'restarts of the API server' 1 1000 "$RESTARTS"
check_between 'hand-overs' 1 1000 "$HANDOVERS"
finish load
check_ok 'at the end no connection and no request is left' within 90 at_rest
check 'no panic' 0 "$(metric weir_panics_total)"
if [[ -n $PLOT ]]; then python3 "$ROOT/tests/tools/soak.py" plot "$WORK/samples" "$PLOT"; fi
kill -TERM "$(main_process)"
summary
