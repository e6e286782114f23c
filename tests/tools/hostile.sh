#!/usr/bin/env bash
# Attacks on weir in front of the API server, each beside a polite client: none of its requests
# fails, its watch continues, and weir's memory stays within bounds. The effect of the attack on
# latencies is printed.
#
# hostile.sh [NAME...]   only attacks with these name prefixes (h1, h2-watch)
# LONG=1                 longer attacks
# NIGHTLY=1              three rounds each, with CONTROL=1; the median p99 under attack is at most three times that of the control
# CONTROL=1              with a control after each attack: a client that behaves well sends as many requests a second on as many
#                        connections. What it costs the polite client is what the requests cost, however they are sent. Then the
#                        attack once more, while the polite client sends its requests to the API server itself, around weir

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import hpack' || die 'hpack is missing (python3-h2 brings it; .ci/run installs it)'

ATTACKS=(
    h1-anonymous h1-tokens h1-certificate h1-length h1-chunked h1-trickle
    h2-readyz h2-livez h2-watch
    h3-log h3-websocket
    s1-trailers
    m3-tokens m4-protocol m5-heads m5-hpack m5-fields m6-readyz m7-lists
)
MEMORY=200 # MiB that an attack may cost weir
RATIO=3    # of p99 under attack to p99 of the control, where it is judged
FILES=600  # open files, where places are to be few
CONNECTIONS=$((60 + ${LONG:-0} * 40))
SEATS=6    # of weir, where they are to be fewer than what the attack wants

seconds=3 rounds=1
if [[ ${LONG:-} == 1 ]]; then seconds=15; fi
if nightly; then rounds=3 seconds=$((seconds > 6 ? seconds : 6)); fi

# The program with few open files: it takes as many as it may have.
program=$WEIR
cat >"$WORK/few-files" <<EOF
#!/usr/bin/env bash
ulimit -n $FILES
exec "$program" "\$@"
EOF
chmod +x "$WORK/few-files"

# before BACK...: the API server's flags.
before() {
    apiserver back 0 "$@"
    BACK=$ADDRESS
    cp "$DIR/kubeconfig" "$WORK/kubeconfig"
}

# by_kubeconfig FLAG...: weir with credentials of its own.
by_kubeconfig() {
    start front "$WEIR" serve --kubeconfig "$WORK/kubeconfig" --bind-address 127.0.0.1 "${anywhere[@]}" \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
        --client-ca-file "$DIR/ca.crt" --token-auth-file "$DIR/tokens.csv" "$@"
    fronting front
}

# with_few_files: weir, whose places are few.
with_few_files() {
    WEIR=$WORK/few-files weir front "$BACK"
}

# ready_for ATTACK: the API server and weir as this attack wants them. PATIENCE is how long the polite user waits for an answer,
# in seconds: far longer than without the attack.
ready_for() {
    PATIENCE=2
    case $1 in
    h1-certificate)
        before
        by_kubeconfig --assert-by=impersonation
        ;;
    h1-length | h1-chunked | s1-*) # a connection each: fewer seats, so that some hundred are enough
        before
        weir front "$BACK" --max-requests-inflight=100 --max-mutating-requests-inflight=50
        ;;
    h2-*) # handlers that take as long as kube-apiserver's
        before --service-cpu 150us
        weir front "$BACK"
        ;;
    h3-* | m6-*)
        before
        with_few_files
        ;;
    m3-*) # tokens that take a while to be refused, and weir with credentials to verify them: where it has none, each is a flow
        before --service-time 20ms
        by_kubeconfig --max-requests-inflight=20 --max-mutating-requests-inflight=10
        ;;
    m5-hpack | m5-fields) # reviews that are waited for
        before
        by_kubeconfig --token-reviews-per-second=1
        ;;
    m7-*)
        PATIENCE=10
        before --service-time 60ms
        weir front "$BACK" --max-requests-inflight=4 --max-mutating-requests-inflight=$((SEATS - 4))
        ;;
    *)
        before
        weir front "$BACK"
        ;;
    esac
}

# counted NAME: one of the API server's own counters.
counted() {
    curl -sS --max-time 10 --cacert "$DIR/ca.crt" -H "$(bearer admin)" "https://$BACK/metrics" | series "playground_$1"
}

# gone NAME: it is killed, without a word from bash.
gone() {
    signal "$1" KILL
    { wait "${PIDS[$1]}" || true; } 2>/dev/null
    unset "PIDS[$1]"
}

# median FILE
median() {
    sort -n "$1" | awk '{value[NR] = $1} END {print value[int((NR + 1) / 2)]}'
}

# milliseconds MICROSECONDS
milliseconds() {
    awk -v micros="$1" 'BEGIN {printf "%.1f", micros / 1000}'
}

# run_attack ATTACK USED [RATE]: the polite client, whose requests go to this address, beside an attack, or beside its control of
# so many requests a second. Sets MEASURED to what hostile.py prints.
run_attack() {
    python3 "$ROOT/tests/tools/hostile.py" "$1" "$ADDRESS" "$2" "$DIR" "${PIDS[front]}" "$seconds" "$PATIENCE" "${@:3}" \
        >"$WORK/said" 2>"$WORK/failures" || die "$1: $(tail -n 3 "$WORK/failures")"
    read -ra MEASURED <"$WORK/said"
}

with_control() {
    nightly || [[ ${CONTROL:-} == 1 ]]
}

# compare ATTACK KIND [RATE]: one round of its control, or of the attack with the polite client around weir. Keeps its p50 and p99.
compare() {
    local used
    ready_for "$1"
    used=$ADDRESS
    if [[ $2 == around ]]; then used=$BACK; fi
    run_attack "$1" "$used" "${@:3}"
    printf '%s: %s: %s requests; polite p50 %s -> %s ms, p99 %s -> %s ms; %s of %s requests fail\n' "$1" "$2" \
        "${MEASURED[8]}" "$(milliseconds "${MEASURED[2]}")" "$(milliseconds "${MEASURED[4]}")" \
        "$(milliseconds "${MEASURED[3]}")" "$(milliseconds "${MEASURED[5]}")" "${MEASURED[1]}" "${MEASURED[0]}"
    keep "$1" "$2-p50" "${MEASURED[4]}"
    keep "$1" "$2-p99" "${MEASURED[5]}"
    gone front
    gone back
}

# keep ATTACK WHAT VALUE: for the median over the rounds.
keep() {
    echo "$3" >>"$WORK/values-$1-$2"
}

# kept ATTACK WHAT: the median.
kept() {
    median "$WORK/values-$1-$2"
}

# percent PART WHOLE
percent() {
    echo $(($1 * 100 / $2))
}

# columns ATTACK p50|p99: the medians of the rounds: alone, beside the control, under attack, and under attack around weir.
columns() {
    local name=$1 what=$2 alone control attack around
    alone=$(kept "$name" "alone-$what") attack=$(kept "$name" "attack-$what")
    if ! with_control; then
        printf '%s: %s alone %s, attack %s ms\n' "$name" "$what" "$(milliseconds "$alone")" "$(milliseconds "$attack")"
        return
    fi
    control=$(kept "$name" "control-$what") around=$(kept "$name" "around-$what")
    printf '%s: %s alone %s, control %s, attack %s, around weir %s ms; of alone: attack %s %%, control %s %%; attack/control %s %%, attack/around %s %%\n' \
        "$name" "$what" "$(milliseconds "$alone")" "$(milliseconds "$control")" "$(milliseconds "$attack")" \
        "$(milliseconds "$around")" "$(percent "$attack" "$alone")" "$(percent "$control" "$alone")" \
        "$(percent "$attack" "$control")" "$(percent "$attack" "$around")"
}

# attacked ATTACK: one round of it. Sets ATTACK_P99, in microseconds, and ATTACK_RATE, in streams or connections a second.
attacked() {
    local name=$1 said
    ready_for "$name"
    run_attack "$name" "$ADDRESS"
    said=("${MEASURED[@]}")
    local requests=${said[0]} failures=${said[1]} idle=${said[6]} most=${said[7]} opened=${said[8]}
    printf '%s: %s opened; polite p50 %s -> %s ms, p99 %s -> %s ms; weir %s -> %s MiB\n' "$name" "$opened" \
        "$(milliseconds "${said[2]}")" "$(milliseconds "${said[4]}")" \
        "$(milliseconds "${said[3]}")" "$(milliseconds "${said[5]}")" "$idle" "$most"
    head -n 3 "$WORK/failures" | cut -c 1-180 | sed 's/^/  /'
    check "$name: nothing of the polite user's fails ($requests requests)" 0 "$failures"
    check_between "$name: MiB that weir takes more" 0 $MEMORY $((most > idle ? most - idle : 0))
    case $name in
    h2-*)
        printf '%s: the API server ended %s connections with ENHANCE_YOUR_CALM\n' "$name" \
            "$(counted too_many_early_resets_total)"
        ;;
    m4-*) # some for each worker, and those of the polite user's execs and logs
        check_between "$name: connections that weir opens for $opened requests" 1 $CONNECTIONS "$(counted connections_total)"
        ;;
    m7-*)
        check_between "$name: most that the API server executes for $SEATS seats" 1 $((2 * SEATS)) \
            "$(counted inflight_requests_max)"
        ;;
    esac
    keep "$name" alone-p50 "${said[2]}"
    keep "$name" alone-p99 "${said[3]}"
    keep "$name" attack-p50 "${said[4]}"
    keep "$name" attack-p99 "${said[5]}"
    ATTACK_P99=${said[5]} ATTACK_RATE=${said[9]}
    gone front
    gone back
}

# wanted ATTACK NAME...: it is one of those that were asked for.
wanted() {
    local name
    for name in "${@:2}"; do
        if [[ $1 == "$name"* ]]; then return; fi
    done
    (($# == 1))
}

for attack in "${ATTACKS[@]}"; do
    if ! wanted "$attack" "$@"; then continue; fi
    for ((round = 1; round <= rounds; round++)); do
        attacked "$attack"
        if with_control; then
            compare "$attack" control "$ATTACK_RATE"
            keep "$attack" ratio "$(percent "$ATTACK_P99" "${MEASURED[5]}")"
            compare "$attack" around
        fi
    done
    columns "$attack" p50
    columns "$attack" p99
    if nightly; then
        check_between "$attack: p99 with the attack (% of the control's)" 0 $((RATIO * 100)) "$(kept "$attack" ratio)"
    fi
done
if ((passed + failed == 0)); then die "no attack has such a name: $*"; fi
summary
