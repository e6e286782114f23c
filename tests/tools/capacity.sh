#!/usr/bin/env bash
# An API server that loses half of what it can do, gets it back, doubles and pauses, under a storm: what a total that weir finds by
# itself lets it answer in each phase, beside fixed totals, and that no node's Lease is ever rejected.
#
# PHASE  length of a phase in seconds (default: 8)
# TOTALS the totals, by spaces (default: auto 60)
# NIGHTLY=1: phases of 30 s, more totals one after the other, and `auto` answers at least 90 % of the best in each phase.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl wrk

if nightly; then
    PHASE=${PHASE:-30} TOTALS=${TOTALS:-auto 35 60 120 540} LEAST=90
else
    # Two at a time, beside whatever else the machine does.
    PHASE=${PHASE:-8} TOTALS=${TOTALS:-auto 60} LEAST=50
fi
# Levels borrow from each other each ten seconds: the first phase begins when they have.
WARM=12
PAUSE=2
NAMES=(normal half normal double normal pause after)
# When each phase begins; the last number is the end.
BEGINS=("$WARM")
for name in "${NAMES[@]}"; do
    length=$PHASE
    if [[ $name == pause ]]; then length=$PAUSE; fi
    BEGINS+=("$((BEGINS[-1] + length))")
done
CHANGES=${BEGINS[1]}s=10,${BEGINS[2]}s=20,${BEGINS[3]}s=40,${BEGINS[4]}s=20,${BEGINS[5]}s=0,${BEGINS[6]}s=20
LEASES=/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases
LEASE='{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node-1","namespace":"kube-node-lease"},"spec":{"holderIdentity":"node-1"}}'

# answered: what the API server has answered with 200, and when, ten times a second until the end.
answered() {
    local end=$((SECONDS + BEGINS[-1]))
    while ((SECONDS <= end)); do
        printf '%s %s\n' "$EPOCHREALTIME" "$(curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -H "$(bearer admin)" "$1/metrics" |
            series 'playground_responses_total{code="200"}')"
        sleep 0.1
    done
}

# as_node ARGUMENT...: a request as the kubelet of a node sends it. Prints the code and the time in seconds.
as_node() {
    get -o /dev/null -w '%{http_code} %{time_total}\n' --cert "$DIR/front-proxy-client.crt" --key "$DIR/front-proxy-client.key" \
        -H 'X-Remote-User: system:node:node-1' -H 'X-Remote-Group: system:nodes' -H 'Content-Type: application/json' --data "$LEASE" "$@"
}

# renewed: what becomes of a node's Lease, renewed until the end.
renewed() {
    local end=$((SECONDS + BEGINS[-1]))
    while ((SECONDS < end)); do
        as_node -X PUT "$LEASES/node-1"
        sleep 0.1
    done
}

# run TOTAL: its answers and Leases, in $WORK/TOTAL.answers and $WORK/TOTAL.leases.
run() {
    local total=$1 api flags=()
    if [[ $total != auto ]]; then flags=(--max-requests-inflight $((total - total / 3)) --max-mutating-requests-inflight $((total / 3))); fi
    apiserver "api-$total" 0 --capacity 20 --service-time 50ms --capacity-changes "$CHANGES"
    local began=$EPOCHREALTIME
    api=$URL
    start "weir-$total" "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" \
        --kubeconfig "$DIR/kubeconfig" --requestheader-client-ca-file "$DIR/front-proxy-ca.crt" \
        --proxy-client-cert-file "$DIR/front-proxy-client.crt" --proxy-client-key-file "$DIR/front-proxy-client.key" "${flags[@]}"
    fronting "weir-$total"
    check "a node makes its Lease, with a total of $total" 201 "$(as_node "$LEASES" | cut -d ' ' -f 1)"
    start "load-$total" wrk -t 1 -c 300 -d 900s -H "$(bearer alice)" "$URL/api/v1/namespaces/default"
    printf '%s\n' "$began" >"$WORK/$total.began"
    renewed >"$WORK/$total.leases" 2>&1 &
    RUNNING+=($!)
    answered "$api" >"$WORK/$total.answers" &
    RUNNING+=($!)
}

# rates TOTAL: answers a second in each phase.
rates() {
    awk -v began="$(<"$WORK/$1.began")" -v begins="${BEGINS[*]}" '
        function at(time,   n) {
            for (n = 2; n < count && when[n] < time; n++);
            return value[n - 1] + (value[n] - value[n - 1]) * (time - when[n - 1]) / (when[n] - when[n - 1])
        }
        { count++; when[count] = $1 - began; value[count] = $2 }
        END {
            phases = split(begins, begin, " ")
            for (phase = 1; phase < phases; phase++)
                printf "%d ", (at(begin[phase + 1]) - at(begin[phase])) / (begin[phase + 1] - begin[phase])
        }' "$WORK/$1.answers"
}

RUNNING=()
for total in $TOTALS; do
    run "$total"
    # By night each has the machine to itself.
    if nightly; then
        wait "${RUNNING[@]}"
        RUNNING=()
        signal "load-$total" INT
        finish "load-$total"
    fi
done
if ! nightly; then wait "${RUNNING[@]}"; fi

printf '| total | %s | %s | %s | %s | %s | %s | %s | Lease, p50 |\n|---|---|---|---|---|---|---|---|---|\n' "${NAMES[@]}"
declare -A RATES=()
for total in $TOTALS; do
    RATES[$total]=$(rates "$total")
    # shellcheck disable=SC2086 # one word for each phase
    printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s ms |\n' "$total" ${RATES[$total]} "$(cut -d ' ' -f 2 "$WORK/$total.leases" | sort -n |
        awk '{time[NR] = $1} END {print int(time[int((NR + 1) / 2)] * 1000)}')"
done
for total in $TOTALS; do
    check "a node's Lease is always answered, with a total of $total" 200 "$(cut -d ' ' -f 1 "$WORK/$total.leases" | sort -u | tr '\n' ' ' | sed 's/ $//')"
done
for phase in "${!NAMES[@]}"; do
    best=0
    read -ra own <<<"${RATES[auto]}"
    for total in $TOTALS; do
        read -ra other <<<"${RATES[$total]}"
        if ((other[phase] > best)); then best=${other[phase]}; fi
    done
    # A pause has nothing to compare.
    if [[ ${NAMES[phase]} == pause ]]; then continue; fi
    check_ok "phase $((phase + 1)), ${NAMES[phase]}: auto answers ${own[phase]} of $best a second" test $((own[phase] * 100)) -ge $((best * LEAST))
done
summary
