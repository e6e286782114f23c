#!/usr/bin/env bash
# Everything that users copy: the commands that the playground prints, the configurations and wrk
# scripts of examples/, and the configuration of a control plane (deploy/kubeadm), with the playground's
# API server as the cluster. deployment.sh has what deploy/ has for a Pod.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq wrk
command -v kubectl >/dev/null || export PATH=$PATH:$TOOLS
need kubectl

# printed: each line that the playground gives to paste, wrk's for a second only.
printed() {
    local line code
    playground printing
    grep '^  ' "$WORK/printing.out" | sed 's/^ *//; s/-d 10s/-d 1s/' >"$WORK/lines"
    check 'the playground prints lines for kubectl, curl and wrk' 'curl curl kubectl kubectl wrk ' \
        "$(awk '{print $1}' "$WORK/lines" | sort | tr '\n' ' ')"
    while read -r line; do
        code=0
        timeout "$LIMIT" bash -c "$line" >"$WORK/said" 2>&1 </dev/null || code=$?
        check "the line for ${line%% *}: exit code" 0 "$code"
        check_match "the line for ${line%% *}: answers" 'node-|^NAME|# HELP|Requests/sec' "$(<"$WORK/said")"
    done <"$WORK/lines"
    stopped printing
}

# loaded: each wrk script, with limits that it reaches.
loaded() {
    local script
    playground loading --config "$ROOT/examples/load-test.yaml" --capacity 40 --service-time 20ms
    WEIR_TOKEN=$(token alice)
    export WEIR_TOKEN
    for script in "$ROOT"/examples/wrk/*.lua; do
        check_ok "$(basename "$script"): runs" timeout "$LIMIT" bash -c \
            "wrk -t 2 -c 200 -d 5s -s '$script' '$URL' >'$WORK/said' 2>&1"
        check_between "$(basename "$script"): requests that were served" 10 10000000 "$(awk '$1 == "ok" {print $2}' "$WORK/said")"
        check_between "$(basename "$script"): requests that were refused" 10 10000000 \
            "$(awk '$1 == "refused" {print $2}' "$WORK/said")"
        check "$(basename "$script"): anything else" 0 "$(awk '$1 == "other" {print $2}' "$WORK/said")"
    done
    check_match 'without a token a script says what it needs' 'set WEIR_TOKEN' \
        "$(env -u WEIR_TOKEN wrk -t 1 -c 1 -d 1s -s "$ROOT/examples/wrk/reads.lua" "$URL" 2>&1)"
    stopped loading
}

# shellcheck disable=SC2317,SC2329 # called by `within`
seen() {
    curl -sS "http://$ADMIN/debug/top_talkers?by=user" | jq -e --arg name "$1" '.rows[] | select(.name == $name)'
}

# served NAME CONFIGURATION [USER]: weir serves by it, those with tokens and, where it knows their CA, with certificates; it finds
# out that USER's token is his.
served() {
    local name=$1 answered
    placed <"$2" >"$WORK/$name.yaml"
    start "$name" "$WEIR" serve --config "$WORK/$name.yaml" --health-address 127.0.0.1:0 "${anywhere[@]}"
    fronting "$name"
    check "$name: a token's nodes" 200 "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
    answered=$(get -o "$WORK/body" -w '%{http_code}' --cert "$DIR/alice.crt" --key "$DIR/alice.key" /api/v1/nodes)
    if grep -q '^ *clientC[aA][aA]*File:' "$WORK/$name.yaml"; then
        check "$name: a certificate's nodes" 200 "$answered"
    else
        check "$name: a certificate alone is not accepted" 401 "$answered"
    fi
    if [[ -n ${3:-} ]]; then check_ok "$name: $3 is seen" within "$LIMIT" seen "$3"; fi
    check "$name: ready" 200 "$(curl -sS -o "$WORK/body" -w '%{http_code}' "http://$ADMIN/readyz")"
    # The examples' delay would be waited for: the second signal ends it at once.
    signal "$name" TERM
    within "$LIMIT" logged_or_ended "$name" 'shutting down: ' || die "$name does not go"
    signal "$name" TERM
    finish "$name"
}

printed
loaded
cluster
served control-plane "$ROOT/deploy/kubeadm/config.yaml" alice
served bastion "$ROOT/examples/bastion.yaml" alice
stopped cluster
summary
