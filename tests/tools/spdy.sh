#!/usr/bin/env bash
# exec, attach and port-forward over SPDY/3.1, all the way: kubectl, weir, and an upstream that speaks it (spdy/echo.go,
# which .ci/run builds; everything but upgrades it passes on to the playground's API server).

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl
[[ -x $TOOLS/spdy-echo ]] || die "$TOOLS/spdy-echo is missing (.ci/run builds it)"

kubectl=
# k CONTEXT ARGUMENT...
k() {
    local context=$1
    shift
    timeout "$LIMIT" "$kubectl" --kubeconfig "$DIR/kubeconfig" --context "$context" "$@"
}

upgraded() {
    wc -l <"$DIR/spdy-requests"
}

# tunnel WHAT CONTEXT BEFORE: one more upgraded request has come, as it should.
tunnel() {
    local head user=${2%-token}
    check "$1: over SPDY" "$(($3 + 1))" "$(upgraded)"
    head=$(tail -n 1 "$DIR/spdy-requests")
    check_match "$1: on HTTP/1.1" '"version":"HTTP/1.1"' "$head"
    check_match "$1: as a POST, unchanged" '"method":"POST"' "$head"
    check_match "$1: with every version that kubectl offers" "\"X-Stream-Protocol-Version\":\\[$4\\]" "$head"
    if [[ $2 == *-token ]]; then
        check_match "$1: the token goes on" "\"Authorization\":\\[\"Bearer $(token "$user")\"\\]" "$head"
        check_no_match "$1: and no name beside it" 'X-Remote-' "$head"
    else
        check_match "$1: the certificate's user is named" "\"X-Remote-User\":\\[\"$user\"\\]" "$head"
        check_no_match "$1: and no credential beside it" '"Authorization"' "$head"
    fi
}

exec_versions='"v4.channel.k8s.io","v3.channel.k8s.io","v2.channel.k8s.io","channel.k8s.io"'

runs() {
    local context=$1 before
    before=$(upgraded)
    check "$context: exec -i" hello "$(k "$context" exec -i "$pod" -- cat <<<hello)"
    tunnel "$context: exec -i" "$context" "$before" '("v5.channel.k8s.io",)?'"$exec_versions"
    check_match "$context: exec" 'ls -l$' "$(k "$context" exec "$pod" -- ls -l </dev/null)"
    check "$context: attach -i" 'over here' "$(k "$context" attach -i "$pod" <<<'over here' 2>/dev/null)"
    head -c 3000000 /dev/urandom >"$WORK/sent"
    k "$context" exec -i "$pod" -- cat <"$WORK/sent" >"$WORK/received"
    check_ok "$context: exec -i carries 3 MB both ways" cmp "$WORK/sent" "$WORK/received"
}

# echoed PORT TEXT: what comes back from there.
echoed() {
    local line=
    exec 7<>"/dev/tcp/127.0.0.1/$1"
    printf '%s\n' "$2" >&7
    read -rt "$LIMIT" line <&7 || true
    exec 7>&-
    printf '%s' "$line"
}

forwards() {
    local context=$1 before port
    before=$(upgraded)
    start forward "$kubectl" --kubeconfig "$DIR/kubeconfig" --context "$context" port-forward "$pod" :80
    within "$LIMIT" grep -q 'Forwarding from 127' "$WORK/forward.out" || die "no port-forward: $(<"$WORK/forward.err")"
    port=$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\).*/\1/p' "$WORK/forward.out")
    check "$context: port-forward" one "$(echoed "$port" one)"
    check "$context: port-forward, another connection" two "$(echoed "$port" two)"
    tunnel "$context: port-forward" "$context" "$before" '"portforward.k8s.io"'
    signal forward TERM
    finish forward
}

apiserver upstream 0
start echo "$TOOLS/spdy-echo" "$DIR"
within "$LIMIT" test -s "$DIR/spdy-address" || die "the echo does not serve: $(<"$WORK/echo.err")"
weir front "$(<"$DIR/spdy-address")"
mapfile -t all < <(kubectls)
for kubectl in "${all[@]}"; do
    printf '=== kubectl 1.%s\n' "$(minor "$kubectl")"
    # Newer ones speak WebSocket first; this tells them not to.
    export KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false
    pod=$(k admin get pods -n default -o name | sed -n 1p)
    for context in alice alice-token; do
        runs "$context"
        # Here they try WebSocket first, are refused by the API server, and fall back.
        forwards "$context"
    done
    if (($(minor "$kubectl") >= 31)); then
        before=$(upgraded)
        unset KUBECTL_REMOTE_COMMAND_WEBSOCKETS
        check 'exec -i over WebSocket through the same' hello "$(k alice exec -i "$pod" -- cat <<<hello)"
        check 'is not SPDY' "$before" "$(upgraded)"
    fi
done
stopped front
summary
