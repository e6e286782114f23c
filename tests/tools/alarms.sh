#!/usr/bin/env bash
# Each alarm of docs/reference/alarms.md, by the trouble that it is about, with the real program: `weir status`, /status.json,
# /readyz?verbose and /metrics show it by the same name. Those whose trouble other scripts make are checked there.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq openssl

apiserver cluster 0 --apiserver-concurrency-limit 600
UPSTREAM=$URL
NOBODY=127.0.0.1:$(free_port)

# front NAME FLAG...: `weir serve` on $PORT, by $RUN where it is set.
PORT=0
RUN=()
front() {
    local name=$1
    shift
    start "$name" "${RUN[@]}" "$WEIR" serve --bind-address 127.0.0.1 --secure-port "$PORT" --admin-address 127.0.0.1:0 \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" "$@"
    fronting "$name"
}

# own TOKEN: $WORK/own.kubeconfig has it.
own() {
    cat >"$WORK/own.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: play, cluster: {server: "$UPSTREAM", certificate-authority: "$DIR/ca.crt"}}]
contexts: [{name: play, context: {cluster: play, user: own}}]
current-context: play
users: [{name: own, user: {token: "$1"}}]
END
}

# replica NAME TOTAL: one of those that divide a total by Leases.
replica() {
    front "$1" --kubeconfig "$WORK/own.kubeconfig" --max-requests-inflight "$2" --max-mutating-requests-inflight 20 \
        --replica-membership leases --replica-namespace kube-system --replica-name "$1" --replica-lease-duration 6s \
        --peer-bind-address 127.0.0.1 --peer-secure-port "$(free_port)" --peer-advertise-address 127.0.0.1 \
        --peer-cert-file "$WORK/peer.crt" --peer-key-file "$WORK/peer.key" --peer-ca-file "$WORK/peer-ca.crt" \
        --peer-allowed-names weir-peer
}

# to ADDRESS...: flags for these API servers.
to() {
    TO=(--upstream "$1" --upstream-ca-file "$DIR/ca.crt")
}

to "$UPSTREAM"
: >"$WORK/weir.yaml"
front config "${TO[@]}" --config "$WORK/weir.yaml"
printf 'maxRequestsInflight: -1\n' >"$WORK/weir.yaml"
check_alarm 'a configuration that is refused' 'warning config'
stopped config

# The certificate is one of the cluster's, but not of a front proxy.
front certificate "${TO[@]}" --client-ca-file "$DIR/ca.crt" --proxy-client-cert-file "$DIR/alice.crt" --proxy-client-key-file "$DIR/alice.key"
check_alarm 'a front-proxy certificate that is none' 'critical front-proxy'
stopped certificate

own not-a-token
front stranger --kubeconfig "$WORK/own.kubeconfig"
check_alarm 'a token that the API server does not know' 'critical own-credential'
check_alarm 'a token that the API server does not know' 'warning flowcontrol-source'
stopped stranger

own "$(token admin)"
front total --kubeconfig "$WORK/own.kubeconfig" --max-requests-inflight 2000
check_alarm 'more seats than the API server has' 'warning total'
stopped total

peer_certificates weir-peer
replica one 40
replica two 60
check_alarm 'replicas with other totals' 'warning replica-totals'
signal one KILL
finish one 2>/dev/null
check_alarm 'a replica that is gone' 'warning replicas'
stopped two

to "$UPSTREAM,https://$NOBODY"
front servers "${TO[@]}"
check_alarm 'one of two API servers is away' 'warning servers'
stopped servers

PORT=$(free_port)
to "https://127.0.0.1:$PORT"
front loop "${TO[@]}"
PORT=0
check_alarm 'an upstream that is weir itself' 'critical loop'
stopped loop

openssl rand -hex 32 >"$WORK/shared.key"
to "$UPSTREAM"
front redis "${TO[@]}" --shared-limits "redis://$NOBODY" --shared-key-file "$WORK/shared.key" --shared-limits-replicas 2
check_alarm 'Redis is away' 'warning shared-limits'
stopped redis

# Nothing reads the log once weir serves. Each request writes a line.
# shellcheck disable=SC2016 # expanded by the shell that has the pipe
RUN=(bash -c '"$@" 2> >(sed -u "/serving clients=/q" >&2)' -)
front log "${TO[@]}" --log-level debug
RUN=()
# shellcheck disable=SC2317,SC2329 # called by `within`
asked_and_alarmed() {
    get -H "$(bearer alice)" -o /dev/null /api/v1/nodes
    alarmed "$1"
}
within "$LIMIT" asked_and_alarmed 'warning log' || true
check_alarm 'nobody reads the log' 'warning log'

# shellcheck disable=SC2016 # Markdown
check 'each alarm of the list is here or in a script that makes its trouble' \
    "$(sed -n 's/^| `\([a-z-]*\)` |.*/\1/p' "$ROOT/docs/reference/alarms.md")" \
    "$(sed -nE "s/^ *check_alarm .*'(warning|critical) ([a-z-]*)'$/\2/p" "$ROOT"/tests/tools/*.sh | sort -u)"
summary
