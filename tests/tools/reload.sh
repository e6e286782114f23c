#!/usr/bin/env bash
# Changes without a restart, under load: files of every kind are replaced, good and bad ones in turn, while wrk and h2load send
# requests and watches are open. No request fails, no watch is cut, a good file is in force within two seconds, and a bad one
# changes nothing.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl h2load openssl python3 wrk xxd

WATCHES=200
ROUNDS=1 # of two changes of each kind, which take up to two seconds each
if nightly; then
    ROUNDS=15
fi

# Milliseconds after which a good change must be in force: two looks at the files, and the reading under load. Printed by day,
# judged by night.
MOST_MS=2500

KINDS=(serving client-ca front-proxy tokens authentication settings fairness events clients audit kubeconfig mode)

# issued CA NAME COMMON_NAME USAGE: a certificate and its key in $WORK/pki/NAME.{crt,key}.
issued() {
    local pki=$WORK/pki
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$3" \
        -keyout "$pki/$2.key" -out "$pki/$2.csr" 2>/dev/null
    printf 'extendedKeyUsage=%s\nsubjectAltName=IP:127.0.0.1\n' "$4" >"$pki/$2.ext"
    openssl x509 -req -in "$pki/$2.csr" -CA "$pki/$1.crt" -CAkey "$pki/$1.key" -CAcreateserial -days 2 \
        -extfile "$pki/$2.ext" -out "$pki/$2.crt" 2>/dev/null
}

# authority NAME
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" \
        -addext basicConstraints=critical,CA:TRUE -keyout "$WORK/pki/$1.key" -out "$WORK/pki/$1.crt" 2>/dev/null
}

certificates() {
    local n
    mkdir "$WORK/pki"
    authority servers
    authority proxies
    authority others
    for n in 0 1; do
        issued servers "serving$n" weir serverAuth
        issued proxies "proxy$n" front-proxy-client clientAuth
    done
}

# put NAME: replaces $WORK/etc/NAME by the standard input, by rename.
put() {
    cat >"$WORK/etc/.new"
    mv "$WORK/etc/.new" "$WORK/etc/$1"
}

# settings: the --config file.
settings() {
    if $fairness; then
        printf 'flowcontrolConfig: [fairness]\n'
    else
        printf 'enablePriorityAndFairness: false\n'
    fi
    printf 'maxRequestsInflight: %s\nclientLimits:\n- name: everybody\n  maxReconcileRate: %s\n  rules:\n' \
        "$((4000 + ${n_settings:-0}))" "$((10000 + ${n_clients:-0}))"
    printf '  - subjects: [{kind: Group, group: {name: "*"}}]\n'
    printf '    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]\n'
}

# good KIND N: the N-th good state of its files.
good() {
    local n=$2
    case $1 in
    serving)
        put tls.crt <"$WORK/pki/serving$((n % 2)).crt"
        put tls.key <"$WORK/pki/serving$((n % 2)).key"
        ;;
    client-ca)
        { cat "$DIR/ca.crt" && if ((n % 2)); then cat "$WORK/pki/others.crt"; fi; } | put client-ca.crt
        ;;
    front-proxy)
        put proxy.crt <"$WORK/pki/proxy$((n % 2)).crt"
        put proxy.key <"$WORK/pki/proxy$((n % 2)).key"
        ;;
    tokens) { cat "$DIR/tokens.csv" && printf 'made-up-%s,nobody,u-%s,dev\n' "$n" "$n"; } | put tokens.csv ;;
    authentication)
        printf '{"keys":[{"kty":"RSA","kid":"%s","alg":"RS256","use":"sig","n":"%s","e":"AQAB"}]}' "$n" "$MODULUS" | put keys.json
        ;;
    settings) n_settings=$n && settings | put weir.yaml ;;
    clients) n_clients=$n && settings | put weir.yaml ;;
    fairness) schema "$((1000 + n))" | put fairness/extra.yaml ;;
    events)
        printf 'apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n%s\n' \
            "limits: [{type: Server, qps: $((100000 + n)), burst: 100000}]" | put events.yaml
        ;;
    audit) policy "$((n % 2 ? 1 : 0))" | put audit.yaml ;;
    kubeconfig) kubeconfig "$(token "$( ((n % 2)) && printf admin || printf bob)")" | put kubeconfig ;;
    mode) # the other one
        if $fairness; then fairness=false; else fairness=true; fi
        settings | put weir.yaml
        ;;
    esac
}

# bad KIND: a state of its files that cannot be used.
bad() {
    case $1 in
    serving) put tls.crt <<<'no certificate' ;;
    client-ca) put client-ca.crt <<<'no certificate' ;;
    front-proxy) put proxy.key <<<'no key' ;;
    tokens) put tokens.csv <<<'a-token-without-a-user' ;;
    authentication) put keys.json <<<'{"keys": 7}' ;;
    settings | mode) { settings && printf 'requestTimeout: soon\n'; } | put weir.yaml ;;
    clients) settings | sed 's/maxReconcileRate: .*/maxReconcileRate: -1/' | put weir.yaml ;;
    fairness) schema none | put fairness/extra.yaml ;;
    events) put events.yaml <<<'kind: Configuration' ;;
    audit) put audit.yaml <<<'kind: Policy' ;;
    kubeconfig) put kubeconfig <<<'current-context: nowhere' ;;
    esac
}

# schema PRECEDENCE
schema() {
    cat <<END
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: of-nobody}
spec:
  matchingPrecedence: $1
  priorityLevelConfiguration: {name: workload-low}
  rules:
  - subjects: [{kind: User, user: {name: nobody}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]
END
}

# policy N: logs nothing, or rejections.
policy() {
    printf 'apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: %s\n' "$( (($1)) && printf Metadata || printf None)"
    printf '  users: [nobody]\n- level: None\n'
}

# kubeconfig TOKEN
kubeconfig() {
    cat <<END
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://$UPSTREAM", certificate-authority: $DIR/ca.crt}}]
users: [{name: u, user: {token: "$1"}}]
END
}

# counted SERIES: from the last scrape.
counted() {
    series "$1" <"$WORK/metrics"
}

# shellcheck disable=SC2317,SC2329 # called by `until_counted`
scrape() {
    curl -sS --max-time 10 "http://$ADMIN/metrics" >"$WORK/metrics"
}

# until_counted SERIES VALUE: waits for it, at most $LIMIT s; MS is how long it took from $FROM on.
until_counted() {
    local end=$((SECONDS + LIMIT))
    until scrape && [[ $(counted "$1") == "$2" ]]; do
        if ((SECONDS > end)); then return 1; fi
        sleep 0.01
    done
    MS=$((($(date +%s%N) - FROM) / 1000000))
}

REFUSED='weir_config_reloads_total{result="refused"}'

# changed KIND N: a good change, then a bad one.
changed() {
    local generation refused
    scrape
    generation=$(counted weir_config_generation)
    refused=$(counted "$REFUSED")
    good "$1" "$2"
    FROM=$(date +%s%N)
    if until_counted weir_config_generation "$((generation + 1))"; then
        if ((MS > slowest)); then slowest=$MS; fi
        if ((MS > MOST_MS)); then late=$((late + 1)); fi
        applied=$((applied + 1))
    else
        fail "$1: a good change is in force" "generation $((generation + 1))" "$(counted weir_config_generation)"
    fi
    bad "$1"
    if until_counted "$REFUSED" "$((refused + 1))"; then
        refusals=$((refusals + 1))
    else
        fail "$1: a bad change is refused" "$((refused + 1))" "$(counted "$REFUSED")"
    fi
    check_unchanged "$1" "$((generation + 1))"
}

check_unchanged() {
    if [[ $(counted weir_config_generation) != "$2" ]]; then
        fail "$1: a bad change changes nothing" "generation $2" "$(counted weir_config_generation)"
    fi
}

prepare() {
    local kind
    certificates
    apiserver cluster 0
    stopped cluster
    # Its front proxies get a CA with which this script can issue certificates.
    cp "$WORK/pki/proxies.crt" "$DIR/front-proxy-ca.crt"
    apiserver cluster 0
    UPSTREAM=$ADDRESS
    MODULUS=$(openssl genrsa 2048 2>/dev/null | openssl rsa -noout -modulus 2>/dev/null | sed 's/Modulus=//' |
        xxd -r -p | base64 -w0 | tr '+/' '-_' | tr -d '=')
    mkdir -p "$WORK/etc/fairness"
    printf '%s\n' 'apiVersion: apiserver.config.k8s.io/v1' 'kind: AuthenticationConfiguration' 'jwt:' \
        '- issuer: {url: "https://issuer.example", audiences: [weir], jwksFile: keys.json}' \
        '  claimMappings: {username: {claim: sub, prefix: "oidc:"}}' | put authentication.yaml
    fairness=false # `good mode` turns it on
    for kind in "${KINDS[@]}"; do good "$kind" 0; done
}

serve() {
    cd "$WORK/etc"
    start weir "$WEIR" serve --config weir.yaml --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file tls.crt --tls-private-key-file tls.key --client-ca-file client-ca.crt --token-auth-file tokens.csv \
        --authentication-config authentication.yaml --event-rate-limit-config events.yaml \
        --audit-log-path "$WORK/audit.log" --audit-policy-file audit.yaml --kubeconfig kubeconfig \
        --proxy-client-cert-file proxy.crt --proxy-client-key-file proxy.key
    fronting weir
}

under_load() {
    local n kind generation began=$SECONDS
    applied=0 refusals=0 late=0 slowest=0
    for ((n = 1; n <= ROUNDS; n++)); do
        for kind in "${KINDS[@]}"; do
            changed "$kind" "$n"
            scrape
            generation=$(counted weir_config_generation)
            good "$kind" "$n" # as it was, except for the mode: this one is not counted as a change
            if [[ $kind == mode ]]; then
                FROM=$(date +%s%N)
                until_counted weir_config_generation "$((generation + 1))" ||
                    fail 'the first mode is in force again' "generation $((generation + 1))" "$(counted weir_config_generation)"
            fi
        done
    done
    printf '%s good and %s bad changes in %s s; the slowest good one took %s ms\n' \
        "$applied" "$refusals" "$((SECONDS - began))" "$slowest"
}

# http2_load URL: one run of h2load after the other, until there is $WORK/stop.
http2_load() {
    while [[ ! -e $WORK/stop ]]; do
        h2load -t1 -c2 -m4 -n 2000 -H "$(bearer bob)" "$1"
    done
}

main() {
    local target=/api/v1/namespaces/default load=900
    prepare
    serve
    start watches python3 "$ROOT/tests/tools/reload.py" "$ADDRESS" "$DIR" "$WATCHES" "$WORK/stop"
    within "$LIMIT" grep -q watching "$WORK/watches.out" || die "the watches do not open: $(tail -n 3 "$WORK/watches.err")"
    start wrk wrk -t1 -c8 -d"${load}s" --timeout 60s -H "$(bearer alice)" "$URL$target"
    start h2load http2_load "$URL$target"
    under_load
    signal wrk INT
    : >"$WORK/stop"
    finish wrk
    finish h2load
    finish watches 120
    results
}

results() {
    local said
    if nightly; then check "good changes that took more than $MOST_MS ms" 0 "$late"; fi
    check "all good changes were applied" "$((applied > 0))" 1
    said=$(tail -n 1 "$WORK/watches.out")
    printf '%s\n' "$said"
    check_match 'no request of the other clients failed' ' failed=0 ' "$said"
    check_match 'no watch was cut' ' cut=0 ' "$said"
    check_match 'every watch received an event after all changes' " seen=$WATCHES\$" "$said"
    grep -E 'Requests/sec|requests in' "$WORK/wrk.out" || true
    check_no_match "wrk: no request failed" 'Non-2xx|Socket errors' "$(cat "$WORK/wrk.out")"
    check_match "wrk: it sent requests" 'requests in' "$(cat "$WORK/wrk.out")"
    said=$(grep -E '^requests:' "$WORK/h2load.out")
    check 'h2load: no request failed' '' "$(grep -vE ' 0 failed, 0 errored, 0 timeout' <<<"$said" || true)"
    check 'h2load: every answer is a 2xx' '' \
        "$(grep -E '^status codes:' "$WORK/h2load.out" | grep -vE ' 0 3xx, 0 4xx, 0 5xx' || true)"
    printf 'h2load: %s runs of 2000 requests\n' "$(wc -l <<<"$said")"
    scrape
    check 'weir answered no request with an error' 0 "$(awk '/^weir_panics_total/ {n += $NF} END {print n + 0}' "$WORK/metrics")"
    stopped weir
}

main
summary
