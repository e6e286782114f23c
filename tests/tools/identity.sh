#!/usr/bin/env bash
# Authentication in the real program: `weir serve --kubeconfig` without identity flags verifies a
# service account token with the API server's keys and an opaque token by TokenReview. Also
# impersonation in each mode.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl sed

json='Content-Type: application/json'
review='{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'

# front NAME [FLAG...]: weir before the API server, by its kubeconfig.
front() {
    local name=$1
    shift
    start "$name" "$WEIR" serve --kubeconfig "$WORK/kubeconfig" --bind-address 127.0.0.1 "${anywhere[@]}" \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" "$@"
    fronting "$name"
}

# whoami [ARGUMENT...]: whom the API server takes the caller for.
whoami() {
    get "$@" -H "$json" -d "$review" /apis/authentication.k8s.io/v1/selfsubjectreviews |
        sed -n 's/.*"username":"\([^"]*\)".*/\1/p'
}

# code [ARGUMENT...]: the code of an answer without a body to be sent, which this curl would rather complain about.
code() {
    get -o "$WORK/answer" -w '%{http_code}' "$@" /api/v1/nodes
}

# counted SERIES: the sum of these series of weir's.
counted() {
    curl -sS --max-time "$LIMIT" "http://$ADMIN/metrics" | awk -v series="$1" 'index($0, series) == 1 {sum += $NF} END {print sum + 0}'
}

# schema NAME: how many requests went by this flow schema.
schema() {
    counted "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"$1\""
}

by_token() {
    local version account
    account="Authorization: Bearer $(<"$DIR/service-account.token")"
    front front
    for version in 1.1 2; do
        check "HTTP/$version: a service account is who it is" 'system:serviceaccount:default:default' \
            "$(whoami "--http$version" -H "$account")"
        check "HTTP/$version: an opaque token is its user's" alice "$(whoami "--http$version" -H "$(bearer alice)")"
        check "HTTP/$version: an admin's is the admin's" admin "$(whoami "--http$version" -H "$(bearer admin)")"
        check "HTTP/$version: nobody's is refused" 401 \
            "$(code "--http$version" -H 'Authorization: Bearer system:masters')"
        check "HTTP/$version: who impersonates is judged by the API server" 403 \
            "$(code "--http$version" -H "$(bearer alice)" -H 'Impersonate-User: admin')"
    done
    check 'the service account has its class' 2 "$(schema service-accounts)"
    check 'by keys that were fetched once' 1 "$(counted 'weir_token_key_fetches_total{result="fetched"}')"
    check 'the opaque tokens were reviewed once each' 2 "$(counted 'weir_token_reviews_total{result="authenticated"}')"
    check 'the admin, and nobody else, is exempt' 2 "$(schema exempt)"
    check 'nobody was asked who may impersonate' 0 "$(counted weir_access_reviews_total)"
    stopped front
}

classified() {
    local n
    front classified --classify-impersonated
    for n in 1 2 3; do
        check "an admin impersonates the scheduler ($n)" system:kube-scheduler \
            "$(whoami -H "$(bearer admin)" -H 'Impersonate-User: system:kube-scheduler')"
    done
    check 'and has its class' 3 "$(schema kube-scheduler)"
    check 'after one review' 1 "$(counted 'weir_access_reviews_total{result="allowed"}')"
    check 'alice may not' 403 "$(code -H "$(bearer alice)" -H 'Impersonate-User: system:kube-scheduler')"
    check 'and has not' 3 "$(schema kube-scheduler)"
    stopped classified
}

# certificate USER: curl's arguments.
certificate() {
    arguments=(--cert "$DIR/$1.crt" --key "$DIR/$1.key")
}

by_impersonation() {
    local version
    front impersonating --assert-by=impersonation --client-ca-file "$DIR/ca.crt"
    for version in 1.1 2; do
        certificate alice
        check "HTTP/$version: a certificate's user is impersonated" alice "$(whoami "--http$version" "${arguments[@]}")"
        check "HTTP/$version: who may not impersonate hears it" 403 \
            "$(code "--http$version" "${arguments[@]}" -H 'Impersonate-User: bob')"
        check_match "HTTP/$version: in the API server's words" \
            'users \\"bob\\" is forbidden: User \\"alice\\" cannot impersonate resource \\"users\\" in API group' "$(<"$WORK/answer")"
        check "HTTP/$version: a wish that is unclear is none" 400 \
            "$(code "--http$version" "${arguments[@]}" -H 'Impersonate_User: bob')"
        certificate admin
        check "HTTP/$version: who may, does" bob "$(whoami "--http$version" "${arguments[@]}" -H 'Impersonate-User: bob')"
    done
    stopped impersonating
}

apiserver cluster 0
cp "$DIR/kubeconfig" "$WORK/kubeconfig"
by_token
classified
by_impersonation
summary
