#!/usr/bin/env bash
# Cancelled requests cost weir hardly more than rejections, whether they are cancelled at once or
# while their rejections are delayed. The table of delayed rejections keeps its bounds, for a
# connection and in total.
#
# NIGHTLY=1: measures seven rounds instead of one, and checks the costs.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import hpack' || die 'hpack is missing (python3-h2 brings it; .ci/run installs it)'

STREAMS=1000
CONNECTIONS=24
MOST=5000  # held at a time, of one user: half of all
ROUNDS=60  # for what they cost: CPU time is counted in hundredths of a second

# ticks NAME: CPU time of a weir, in hundredths of a second.
ticks() {
    awk '{print $14 + $15}' "/proc/${PIDS[$1]}/stat"
}

# asked WHAT STREAMS COUNT [ADMIN]: of the weir at ADDRESS; what the clients say is in SAID.
asked() {
    read -ra SAID < <(python3 "$ROOT/tests/tools/cancelled.py" "$ADDRESS" "$DIR/ca.crt" "$(token alice)" "$@")
    ((${#SAID[@]} > 0)) || die "the clients have failed: $*"
}

# cost NAME ADDRESS WHAT: COST is this weir's CPU time for a stream, in nanoseconds.
cost() {
    local before
    before=$(ticks "$1")
    ADDRESS=$2 asked "$3" $STREAMS $ROUNDS
    COST=$((($(ticks "$1") - before) * 10000000 / SAID[0]))
}

# ends END: how many were held and ended so.
ends() {
    metric "weir_rejection_holds_total{end=\"$1\"}"
}

# full NAME FLAG...: weir whose only place somebody has.
full() {
    weir "$1" "$(<"$DIR/address")" --enable-priority-and-fairness=false --max-requests-inflight=1 \
        --http2-max-streams-per-connection=$STREAMS --http2-max-resets-per-second=0 --request-timeout=10m "${@:2}"
    start "$1-holder" curl -sS --cacert "$DIR/ca.crt" -H "$(bearer bob)" "$URL/api/v1/nodes"
    check_ok "the only place is taken ($1)" within "$LIMIT" bash -c \
        "curl -sS http://$ADMIN/metrics | grep -q '^apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1'"
}

# emptied NAME
emptied() {
    signal "$1-holder" KILL
    stopped "$1"
}

# median FILE
median() {
    sort -n "$1" | awk '{value[NR] = $1} END {print value[int((NR + 1) / 2)]}'
}

apiserver back 0 --capacity 1 --service-time 10m
full at-once --rejection-hold=0
at_once=$ADDRESS at_once_admin=$ADMIN
full held
held=$ADDRESS

# Half of a round's streams is held and then given up, the other half is refused at once, for there is no more room.
rounds=20
# A machine that stands still for a second lets a round's holds end: hardly in three of three.
for _ in 1 2 3; do
    before=$(ends gone)
    asked hold $STREAMS $rounds "$ADMIN"
    read -r _ _ cancelled least most ever <<<"${SAID[*]}"
    gone=$(($(ends gone) - before))
    if ((least > 0 && cancelled >= rounds * STREAMS / 4 && gone >= cancelled * 9 / 10)); then break; fi
done
printf 'hold: %s rounds of %s streams, %s held and cancelled\n' $rounds $STREAMS "$cancelled"
check_between 'in each round some are held' 1 $((STREAMS / 2)) "$least"
check_between '... half of the streams at most' "$least" $((STREAMS / 2)) "$most"
check_between '... at any time' "$most" $((STREAMS / 2)) "$ever"
check_between 'most are cancelled before their time is over' $((rounds * STREAMS / 4)) $((rounds * STREAMS / 2)) "$cancelled"
# A few may end by themselves while it is on its way that they are given up.
check_between 'whoever gave up is counted as gone' $((cancelled * 9 / 10)) "$cancelled" "$gone"
check 'nothing is held any more' 0 "$(metric 'weir_rejection_holds')"
check 'and of no flow' 0 "$(metric 'weir_rejection_hold_flows')"
before=$(ends elapsed)
asked wait $STREAMS 2
check_between 'whoever waits is answered when the time is over' 1 $((2 * STREAMS)) $(($(ends elapsed) - before))

# What streams cost, in per cent of a refusal that is said at once. The two take turns, for the machine has moods.
turns=1
if nightly; then turns=7; fi
for ((turn = 1; turn <= turns; turn++)); do
    cost at-once "$at_once" wait
    refusal=$COST
    cost at-once "$at_once" cancel
    cancelled=$COST
    cost held "$held" hold
    given_up=$((2 * COST - refusal)) # the other half are refusals
    printf '%s: %s ns a refusal, %s cancelled at once, %s held and cancelled\n' "$turn" "$refusal" "$cancelled" "$given_up"
    echo $((cancelled * 100 / refusal)) >>"$WORK/cancelled"
    echo $((given_up * 100 / refusal)) >>"$WORK/given-up"
done
if nightly; then
    check_between 'a stream that is cancelled at once costs a refusal (%), a quarter allowed for noise' 1 125 \
        "$(median "$WORK/cancelled")"
    # A place in the table and a timer more, an answer less.
    check_between 'one that is held and cancelled too (%)' 1 125 "$(median "$WORK/given-up")"
fi
check_ok 'all connections end' within "$LIMIT" bash -c \
    "curl -sS http://$at_once_admin/metrics | grep -q '^weir_client_connections 1$'"
emptied at-once
emptied held

# As many wishes as there are streams: half of each connection's are for a place in the table, more than it has. A rate
# of nothing holds for a minute, so that nothing ends by itself meanwhile.
cat >"$WORK/limits.yaml" <<END
clientLimits:
- name: one
  rules:
  - subjects: [{kind: User, user: {name: alice}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]
  requests: {qps: 0}
  writes: off
  objectBackoff: off
  concurrency: off
END
weir front "$(<"$DIR/address")" --config "$WORK/limits.yaml" --rejection-hold=1m --request-timeout=10m \
    --http2-max-streams-per-connection=$STREAMS --http2-max-resets-per-second=0
asked fill $STREAMS $CONNECTIONS "$ADMIN" $MOST
read -r opened unanswered ever <<<"${SAID[*]}"
beyond=$(metric weir_rejection_holds_refused_total)
printf 'fill: %s streams on %s connections, %s beyond what one user may have\n' "$opened" $CONNECTIONS "$beyond"
check_between 'the user has its part of the table, and no more' $MOST $MOST "$ever"
wishes=$((CONNECTIONS * STREAMS / 2))
check 'whoever is held has no answer, and everybody else has' $MOST "$unanswered"
check_between 'what is beyond is answered at once' $(((wishes - MOST) / 2)) "$opened" "$beyond"
check 'and nothing is let go for it' 0 "$(ends let_go)"
check_ok 'nothing is held any more, long before its time' within "$LIMIT" at_zero 'weir_rejection_holds'
check 'and of no flow' 0 "$(metric 'weir_rejection_hold_flows')"
check_between 'whoever went away is counted as gone' $((MOST * 9 / 10)) $MOST "$(ends gone)"
stopped front
summary
