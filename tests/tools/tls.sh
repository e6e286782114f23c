#!/usr/bin/env bash
# What testssl.sh finds about the TLS of the clients' port and of the admin address: protocols, suites, curves, certificates; by
# night also each known vulnerability and what 40 clients negotiate.
#
# NIGHTLY=1: all of its checks, some minutes long.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need jq testssl

# Findings that say nothing about weir, or that it wants so:
# - cert_revocation, DNS_CAArecord: a cluster's CA has neither, nor has kube-apiserver;
# - cipher_order: every suite has forward secrecy and authenticates, so that the client may choose the one that its machine is fast
#   with;
# - HSTS and the other headers for browsers: the API is no web site.
EXPECTED='cert_revocation DNS_CAArecord cipher_order HSTS HSTS_time security_headers'
SCOPE=(--protocols --pfs --server-defaults)
if nightly; then SCOPE=(); fi

# scanned NAME ADDRESS CA: every finding but those is a failure. A warning is one of testssl.sh's own: it could not try something.
scanned() {
    local name=$1 address=$2 ca=$3 found=$WORK/$1.json
    testssl --warnings off --color 0 --add-ca "$ca" "${SCOPE[@]}" --jsonfile "$found" "$address" >"$WORK/$name.out" 2>&1 || true
    check_match "$name: testssl.sh comes to its end" 'Done' "$(grep -o '^ Done' "$WORK/$name.out" | tail -n 1)"
    check "$name: TLS 1.2 and 1.3 are offered, and nothing older" 'SSLv2 OK, SSLv3 OK, TLS1 INFO, TLS1_1 INFO, TLS1_2 OK, TLS1_3 OK' \
        "$(jq -r '[.[] | select(.id | test("^(SSLv[23]|TLS1(_[123])?)$")) | "\(.id) \(.severity)"] | join(", ")' "$found")"
    check_match "$name: with forward secrecy" 'offered' "$(jq -r '.[] | select(.id | test("^P?FS$")) | .finding' "$found")"
    check "$name: nothing is found that should not be" '' "$(jq -r --arg expected "$EXPECTED" '
        .[] | select(.severity | IN("OK", "INFO", "WARN") | not) | select(.id | IN($expected | split(" ")[]) | not)
            | "\(.severity) \(.id): \(.finding)"' "$found")"
}

playground front
scanned clients "$ADDRESS" "$DIR/ca.crt"
stopped front
apiserver api 0
UPSTREAM=$ADDRESS
printf 'an-operator-s-token\n' >"$WORK/admin-tokens"
start admin "$WEIR" serve --upstream "https://$UPSTREAM" --upstream-ca-file "$DIR/ca.crt" --bind-address 127.0.0.1 "${anywhere[@]}" \
    --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --admin-tls-cert-file "$DIR/tls.crt" \
    --admin-tls-private-key-file "$DIR/tls.key" --admin-token-file "$WORK/admin-tokens"
fronting admin
scanned admin "$ADMIN" "$DIR/ca.crt"
stopped admin
stopped api
summary
