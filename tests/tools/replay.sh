#!/usr/bin/env bash
# `weir replay` and the live proxy agree: a log of weir under load, replayed under the policies that were in force, has the
# rejections that the clients saw.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk gzip jq script wrk

STORM=700
ulimit -n "$(ulimit -H -n)" || true

# storm NAME SECONDS: wrk with many connections. Sets REJECTED: the answers that are not 2xx, as wrk saw them.
storm() {
    wrk -t2 -c$STORM -d"$2s" --timeout 30s -H "$(bearer alice)" \
        "$URL/api/v1/namespaces/default/configmaps" >"$WORK/$1.wrk" 2>&1 || die "wrk: $(<"$WORK/$1.wrk")"
    REJECTED=$(awk '/Non-2xx/ {print $NF}' "$WORK/$1.wrk")
    REJECTED=${REJECTED:-0}
}

# runs FILE...: the outcomes of the report.
runs() {
    "$WEIR" replay -o json "$@" | jq .runs
}

# within_percent WHAT PERCENT EXPECTED GOT
within_percent() {
    local slack=$(($3 * $2 / 100 + 1))
    check_between "$1: $3 within $2 %" $(($3 - slack)) $(($3 + slack)) "$4"
}

# agree NAME FLAG...: a playground with these limits, a storm, and the replay of weir's audit log.
agree() {
    local name=$1 log=$WORK/$1.log report replayed recorded
    shift
    playground "$name" --service-time 500ms --rejection-hold 0s --audit-log-path "$log" --audit-log-maxsize 4000 "$@"
    storm "$name" 6
    stopped "$name"
    check_between "$name: wrk saw rejections" 100 100000000 "$REJECTED"
    report=$("$WEIR" replay -o json "$log" "$@")
    # What wrk saw, and what the log says: requests that wrk cut off at its end are in the log only.
    recorded=$(jq .input.recorded_rejected <<<"$report")
    check_between "$name: recorded rejections, $REJECTED seen" "$REJECTED" $((REJECTED + STORM)) "$recorded"
    replayed=$(jq '.runs[0].total.rejected' <<<"$report")
    printf '        rejections of %s: wrk saw %s, replayed %s\n' "$name" "$REJECTED" "$replayed"
    # Waits end when the machine comes to wake a request, and times are taken before decisions: other load on it makes the
    # log's times too short.
    if nightly; then
        within_percent "$name: replayed rejections" 2 "$REJECTED" "$replayed"
    elif [[ $name == max-in-flight ]]; then
        within_percent "$name: replayed rejections" 5 "$recorded" "$replayed"
    fi
    check "$name: each request has an outcome" true \
        "$(jq '.runs[0].total | .arrivals == .executed + .rejected + .cancelled + .unfinished' <<<"$report")"
    printf '        waits of %s: recorded %s s, replayed %s s\n' "$name" \
        "$(jq .input.recorded_wait_s <<<"$report")" "$(jq '.runs[0].total.wait.total_s' <<<"$report")"
    check "$name: the same again" "$report" "$("$WEIR" replay -o json "$log" "$@")"
    gzip -c "$log" >"$log.gz"
    check "$name: compressed" "$(jq .runs <<<"$report")" "$(runs "$log.gz" "$@")"
    check "$name: from a pipe" "$(jq .runs <<<"$report")" "$(runs - "$@" <"$log")"
}

# narrow LENDABLE BORROWING: objects by which alice and the anonymous users share a level with short queues. It lends and borrows
# so many per cent of its seats.
narrow() {
    jq -n --argjson lendable "$1" --argjson borrowing "$2" '{apiVersion: "flowcontrol.apiserver.k8s.io/v1"} as $api | {apiVersion: "v1", kind: "List", items: [
        $api + {kind: "PriorityLevelConfiguration", metadata: {name: "narrow"}, spec: {type: "Limited", limited: {
            nominalConcurrencyShares: 100, lendablePercent: $lendable, borrowingLimitPercent: $borrowing,
            limitResponse: {type: "Queue", queuing: {queues: 16, handSize: 3, queueLengthLimit: 20}}}}},
        $api + {kind: "FlowSchema", metadata: {name: "narrow"}, spec: {matchingPrecedence: 500,
            priorityLevelConfiguration: {name: "narrow"}, distinguisherMethod: {type: "ByUser"},
            rules: [{subjects: [{kind: "User", user: {name: "*"}}],
                resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}],
                nonResourceRules: [{verbs: ["*"], nonResourceURLs: ["*"]}]}]}}]}'
}

# recorded NAME SECONDS FLAG...: a playground with these limits, a storm of two users, and the replay of weir's own record.
# Of unauthenticated users the flow depends on their network, so it is in the record.
recorded() {
    local name=$1 seconds=$2 record=$WORK/$1.jsonl report live replayed tolerance percent=2
    shift 2
    playground "$name" --service-time 20ms --record-path "$record" --record-source-addresses "$@"
    start "$name-alice" wrk -t1 -c150 -d"${seconds}s" --timeout 30s -H "$(bearer alice)" "$URL/api/v1/namespaces/default/configmaps"
    wrk -t1 -c100 -d"${seconds}s" --timeout 30s "$URL/version" >"$WORK/$name.wrk" 2>&1 || die "wrk: $(<"$WORK/$name.wrk")"
    finish "$name-alice"
    check "$name: the storm of alice ends" 0 "$STATUS"
    stopped "$name"
    check "$name: the record is whole" 'stopped 0' "$(tail -n 1 "$record" | jq -r '.record | "\(.end) \(.dropped)"')"
    live=$(jq -s 'map(select(.at_ms)) | {
        executed: map(select(.rejected_by == null and .service_ms)) | length,
        rejected: map(select(.rejected_by)) | length,
        cancelled: map(select(.cancelled and .service_ms == null)) | length,
        waited: (map(select(.cancelled | not) | .wait_ms // 0) | add / 1000)}' "$record")
    report=$("$WEIR" replay -o json "$record" "$@")
    check_between "$name: requests were rejected" 100 100000000 "$(jq .rejected <<<"$live")"
    check "$name: every request of the record is replayed" "$(jq '.executed + .rejected + .cancelled' <<<"$live")" \
        "$(jq .input.arrivals <<<"$report")"
    # Times say when a request came and went: other load on the machine moves them.
    nightly || percent=5
    tolerance=$(($(jq .input.arrivals <<<"$report") * percent / 100))
    replayed=$(jq .runs[0].total.rejected <<<"$report")
    check_between "$name: as many are rejected, but for $percent % of the requests" \
        "$(jq ".rejected - $tolerance" <<<"$live")" "$(jq ".rejected + $tolerance" <<<"$live")" "$replayed"
    printf '        %s: live     %s\n        %s: replayed %s\n' "$name" "$(jq -c . <<<"$live")" "$name" \
        "$(jq -c '.runs[0].total | {executed, rejected, cancelled, waited: .wait.total_s, p99_ms: .wait.p99_ms}' <<<"$report")"
}

narrow 0 0 >"$WORK/narrow.json"
narrow 50 200 >"$WORK/borrowing.json"
recorded record-of-fairness 4 --max-requests-inflight 10 --max-mutating-requests-inflight 5 --flowcontrol-config "$WORK/narrow.json"
# Seats move between levels, every 10 s.
borrowing=(--max-requests-inflight 10 --max-mutating-requests-inflight 5 --flowcontrol-config "$WORK/borrowing.json")
recorded record-of-borrowing 24 "${borrowing[@]}"
check 'seats moved' true "$("$WEIR" replay -o json "$WORK/record-of-borrowing.jsonl" "${borrowing[@]}" |
    jq '.runs[0].levels[] | select(.name == "narrow") | .least_limit < .greatest_limit')"
recorded record-of-max-in-flight 4 --enable-priority-and-fairness=false --max-requests-inflight 40
agree max-in-flight --enable-priority-and-fairness=false --max-requests-inflight 400
agree fairness --max-requests-inflight 400 --max-mutating-requests-inflight 200

check_match 'a table' 'PRIORITY LEVEL +ARRIVED +EXECUTED +REJECTED' "$("$WEIR" replay "$WORK/fairness.log")"
printf 'maxRequestsInflight: 4000\nmaxMutatingRequestsInflight: 2000\n' >"$WORK/more.yaml"
compared=$("$WEIR" replay "$WORK/fairness.log" --max-requests-inflight 400 --compare "$WORK/more.yaml")
check_match 'with more seats alice fares better' 'BETTER than flags under .*more.yaml' "$compared"
check_match '... by name' $'\nalice ' "$compared"
code=0
head -c 5000 "$WORK/fairness.log" | "$WEIR" replay - --strict >"$WORK/said" 2>&1 || code=$?
check 'strict, with a line that is cut off: exit code' 1 "$code"
check_match '... and where' 'the standard input: line [0-9]+: ends in the middle' "$(<"$WORK/said")"
code=0
"$WEIR" replay "$WORK/nowhere" >"$WORK/said" 2>&1 || code=$?
check 'a log that is not there: exit code' 1 "$code"
check_match '... and which' 'nowhere: No such file' "$(<"$WORK/said")"

# A terminal shows how far the replay has come: here while it waits for its log. A pipe shows nothing.
mkfifo "$WORK/slow" "$WORK/screen"
TERM=xterm script -qefc "$WEIR replay $WORK/slow >$WORK/table" /dev/null </dev/null >"$WORK/screen" &
terminal=$!
exec 5<"$WORK/screen" 4>"$WORK/slow"
shown=''
while read -r -t 60 -d s -u 5 part; do
    shown+=$part
    if [[ $part == *B/ ]]; then break; fi
done
check_match 'on a terminal, a progress bar' ' 0 B ' "$shown"
printf '{"at_ms":1,"method":"GET","url":"/api/v1/pods","user":"alice","service_ms":4}\n' >&4
exec 4>&-
rest=$(cat <&5)
exec 5<&-
code=0
wait "$terminal" || code=$?
check '... and the replay ends' 0 "$code"
check_match '... which removes the bar' $'\e\\[2K$' "$rest"
check_match '... and prints its table' '^1 requests in 0 s' "$(<"$WORK/table")"
check 'in a pipe, none' '' "$("$WEIR" replay "$WORK/fairness.log" 2>&1 >"$WORK/table")"
check_match '... but the table' 'PRIORITY LEVEL' "$(<"$WORK/table")"

# Advice, over the record of two users who share a level.
record=$WORK/record-of-fairness.jsonl
flags=(--max-requests-inflight 10 --max-mutating-requests-inflight 5 --flowcontrol-config "$WORK/narrow.json")
search() {
    "$WEIR" replay "$record" "${flags[@]}" --search 'rejected(level=narrow) = 0' "$@"
}
found=$(search -o json)
check 'a search finds a total' true "$(jq '.found.total > 15 and .objectives[0].found.holds' <<<"$found")"
check '... at which a replay rejects nothing' 0 "$("$WEIR" replay -o json "$record" --flowcontrol-config "$WORK/narrow.json" \
    --max-requests-inflight "$(jq .found.max_requests_inflight <<<"$found")" \
    --max-mutating-requests-inflight "$(jq .found.max_mutating_requests_inflight <<<"$found")" |
    jq '.runs[0].levels[] | select(.name == "narrow") | .rejected')"
check '... the same again' "$found" "$(search -o json)"
check_match '... as a table' 'smallest total: [0-9]+ \(--max-requests-inflight=' "$(search)"
check '... and one for each fifth of the log' 5 "$(jq '.parts | length' <<<"$found")"
suggested=$("$WEIR" replay "$record" "${flags[@]}" --suggest --suggest-dir "$WORK/suggested" -o json)
check_ok 'a suggestion passes the check' "$WEIR" check "$WORK/suggested"
compared=$("$WEIR" replay -o json "$record" "${flags[@]}" --compare "$WORK/suggested/weir.yaml")
check '... and none of those whom it protects is worse' '[]' \
    "$(jq -c --argjson suggested "$suggested" '[.changes.losers[].user] | map(select(IN($suggested.protected[])))' <<<"$compared")"
code=0
"$WEIR" replay "$record" --search 'rejected(colour=a) = 0' >"$WORK/said" 2>&1 || code=$?
check 'an objective that cannot be read: exit code' 2 "$code"
check_match '... and why' 'expected level=NAME, schema=NAME' "$(<"$WORK/said")"
summary
