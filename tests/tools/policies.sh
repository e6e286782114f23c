#!/usr/bin/env bash
# The policies of examples/policies with unmodified kubectl, first as a dry run, then enforced; and the flow schemas of
# examples/flowcontrol/safe-lanes.yaml under a flood.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq wrk

kubectl=$(kubectls | head -n 1)
version=$(minor "$kubectl")

# k CONTEXT ARGUMENT...
k() {
    local context=$1
    shift
    timeout "$LIMIT" "$kubectl" --kubeconfig "$DIR/kubeconfig" --context "$context" "$@"
}

# direct ARGUMENT...: an administrator's kubectl, to the API server itself.
direct() {
    timeout "$LIMIT" "$kubectl" --kubeconfig "$WORK/cluster.kubeconfig" --context admin "$@"
}

# said CONTEXT ARGUMENT...: what it prints, errors as well.
said() {
    k "$@" 2>&1 || true
}

# configured NAME [DryRun]: weir before the cluster with the policies of the example of that name.
configured() {
    local name=$1
    # The playground has a token of one service account, default of the namespace default.
    sed "s/^- name: .*/&\n  enforcement: ${2:-Enforce}/; s/namespace: ci,/namespace: default,/" \
        "$ROOT/examples/policies/$name.yaml" >"$WORK/$name.yaml"
    weir "$name" "$UPSTREAM" --config "$WORK/$name.yaml" --audit-log-path "$WORK/$name.log" "${accounts[@]}"
}

# effects POLICY ACTION [DryRun]
effects() {
    metric "weir_policy_effects_total{action=\"$2\",enforcement=\"${3:-Enforce}\",policy=\"$1\"}"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
has_effects() {
    (($(effects "$@") > 0))
}

# annotation NAME KEY: the values in the audit log of the example.
annotation() {
    jq -r --arg key "$2" '.annotations[$key] // empty' "$WORK/$1.log" | sort -u | tr '\n' ' '
}

# shellcheck disable=SC2317,SC2329 # called by `within`
has_annotation() {
    [[ $(annotation "$1" "$2") == "$3 " ]]
}

full_lists() {
    configured full-lists DryRun
    check 'full-lists, dry run: a list without pages passes' 0 \
        "$(code=0; k alice get pods -A --chunk-size=0 >"$WORK/said" 2>&1 || code=$?; echo "$code")"
    check 'and is counted' 1 "$(effects no-full-lists deny DryRun)"
    check_ok 'and is in the audit log' within "$LIMIT" has_annotation full-lists weir/dry-run policy/no-full-lists
    stopped full-lists
    configured full-lists
    check_ok 'full-lists: kubectl lists in pages' k alice get pods -A
    check_ok 'a namespace is listed' k alice get pods -n default --chunk-size=0
    check_match 'a list without pages is denied' 'Forbidden.*list pods in pages .limit=500.' \
        "$(said alice get pods -A --chunk-size=0)"
    check_match 'nodes as well' 'Forbidden' "$(said alice get nodes --chunk-size=0)"
    check_ok 'from the watch cache it is not' k alice get --raw '/api/v1/pods?resourceVersion=0'
    check_match 'a raw one without parameters is' 'list pods in pages' "$(said alice get --raw /api/v1/pods)"
    check_ok 'that of an administrator is not' k admin get pods -A --chunk-size=0
    check 'each is counted' 3 "$(effects no-full-lists deny)"
    check_ok 'the audit log has them' within "$LIMIT" has_annotation full-lists weir/policy no-full-lists
    stopped full-lists
}

secrets() {
    configured secrets-of-people DryRun
    check_ok 'secrets, dry run: a list passes' k alice get secrets -n default
    check_ok 'and is counted' has_effects secrets-of-people deny DryRun
    stopped secrets-of-people
    configured secrets-of-people
    check_match 'secrets: a list is denied' 'Forbidden.*alice may not list secrets; kubectl get secret NAME' \
        "$(said alice get secrets -n default)"
    check_match 'in all namespaces, too' 'alice may not list secrets' "$(said alice get secrets -A)"
    check_match 'a watch as well' 'may not list secrets' "$(said alice get --raw '/api/v1/secrets?watch=1')"
    check_ok 'one is created' k alice create secret generic one -n default --from-literal=a=b
    check_ok 'and read' k alice get secret one -n default
    check_ok 'an administrator lists them' k admin get secrets -A
    check_ok 'and a service account' k "$account" get secrets -A
    stopped secrets-of-people
}

# shellcheck disable=SC2317,SC2329 # called by `within`
greeted() {
    [[ -s $WORK/$1.out ]]
}

# session NAME: a shell of alice's that stays open, until its input ends.
session() {
    mkfifo "$WORK/$1.in"
    start "$1" bash -c "exec '$kubectl' --kubeconfig '$DIR/kubeconfig' --context alice exec -i -n default '$pod' -- cat <'$WORK/$1.in'"
    exec {fd}>"$WORK/$1.in"
    FDS[$1]=$fd
    printf 'hello\n' >&"$fd"
}

# closed NAME: the session is ended.
closed() {
    local fd=${FDS[$1]}
    signal "$1" TERM
    finish "$1"
    exec {fd}>&-
}

declare -A FDS=()

# shellcheck disable=SC2317,SC2329 # called by `within`
one_more() {
    [[ $(k alice exec -i -n default "$pod" -- cat <<<more) == more ]]
}

sessions() {
    if ((version < 31)); then
        printf 'no kubectl 1.31 or newer is here: exec over WebSocket is not tried\n'
        return
    fi
    configured exec-sessions
    session first
    check_ok 'exec-sessions: one is open' within "$LIMIT" greeted first
    session second
    check_ok 'a second one, too' within "$LIMIT" greeted second
    check_match 'a third one is not' 'alice has two sessions' "$(said alice exec -i -n default "$pod" -- cat <<<third)"
    check 'another user has its own' bob "$(k bob exec -i -n default "$pod" -- cat <<<bob)"
    check_ok 'and its lists pass' k alice get pods -n default
    closed first
    check_ok 'when one is closed, there is room' within "$LIMIT" one_more
    closed second
    stopped exec-sessions
    configured exec-sessions DryRun
    session third
    check_ok 'exec-sessions, dry run: one is open' within "$LIMIT" greeted third
    session fourth
    check_ok 'a second one' within "$LIMIT" greeted fourth
    check 'a third one passes' third "$(k alice exec -i -n default "$pod" -- cat <<<third)"
    check_ok 'and is counted' has_effects exec-sessions limit DryRun
    closed third
    closed fourth
    stopped exec-sessions
}

# maps: as many ConfigMaps in prod.
maps() {
    local n
    for n in $(seq 40); do
        printf -- '---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: map-%s\n  namespace: prod\n' "$n"
    done | direct create -f - >"$WORK/created"
}

left() {
    direct get configmaps -n prod -o name | grep -c /map-
}

deletions() {
    direct create namespace prod >"$WORK/created"
    maps
    configured protected-namespaces
    check_match 'protected: a collection is not deleted' 'all configmaps of prod at once are not deleted' \
        "$(curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -X DELETE -H "$(bearer alice)" "$URL/api/v1/namespaces/prod/configmaps")"
    start deletion "$kubectl" --kubeconfig "$DIR/kubeconfig" --context alice delete configmaps --all -n prod --wait=false
    check_ok 'kubectl delete --all begins' within "$LIMIT" has_effects deletions limit
    signal deletion TERM
    finish deletion
    check_between 'there is time to stop it: of 40, there are' 20 38 "$(left)"
    check_ok 'one is deleted by its name' k bob delete configmap map-40 -n prod
    check_ok 'a service account deletes what it likes' \
        curl -sSf --max-time "$LIMIT" --cacert "$DIR/ca.crt" -X DELETE -H "Authorization: Bearer $account_token" \
        "$URL/api/v1/namespaces/prod/configmaps"
    stopped protected-namespaces
    maps
    configured protected-namespaces DryRun
    check_ok 'protected, dry run: kubectl delete --all' k alice delete configmaps --all -n prod --wait=false
    check_ok 'is counted' has_effects deletions limit DryRun
    check 'and deletes all' 0 "$(left || true)"
    stopped protected-namespaces
}

ci() {
    configured ci-share
    check_ok 'ci-share: kubectl of the CI system' k "$account" get pods -n default
    timeout "$LIMIT" wrk -c 20 -t 1 -d 2s -H "Authorization: Bearer $account_token" "$URL/api/v1/namespaces/default/pods" >"$WORK/wrk"
    check_ok 'is limited' has_effects ci-share limit
    check_match 'and told so' "the CI system's share is used up" \
        "$(curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -H "Authorization: Bearer $account_token" \
            "$URL/api/v1/namespaces/default/[1-60]" | tr '\n' ' ')"
    check_ok 'others are not' k alice get pods -n default
    check_ok 'its tag is in the audit log' within "$LIMIT" has_annotation ci-share weir/policy-tags ci
    check_ok 'and among the talkers' within "$LIMIT" tag_is_counted
    stopped ci-share
}

# shellcheck disable=SC2317,SC2329 # called by `within`
tag_is_counted() {
    curl -sS "http://$ADMIN/debug/top_talkers?by=tag" | jq -e '.rows[] | select(.name == "ci")'
}

event_manifests() {
    local n
    for n in $(seq "$1"); do
        printf -- '---\napiVersion: v1\nkind: Event\nmetadata:\n  name: %s-%s\n  namespace: default\n' "$2" "$n"
        printf 'involvedObject: {kind: Pod, namespace: default, name: a}\nreason: Test\nmessage: again\ntype: Normal\n'
        printf 'source: {component: test}\n'
    done
}

hammering() {
    configured events
    event_manifests 30 alice | said alice create -f - >"$WORK/events"
    check_ok 'events: kubectl writes 30 and is slowed down' has_effects events limit
    check 'it repeats those that were rejected' 30 "$(grep -c created "$WORK/events")"
    event_manifests 1 bob >"$WORK/bob.yaml"
    check_ok 'another user writes one' k bob create -f "$WORK/bob.yaml"
    stopped events
    configured events DryRun
    event_manifests 30 again | k alice create -f - >"$WORK/events"
    check_ok 'events, dry run: it is counted' has_effects events limit DryRun
    stopped events
}

# lanes: heartbeats and reviews while alice floods 30 seats with five times as many requests.
lanes() {
    local n lost=0 slow=0 took
    apiserver lanes 0 --capacity 30 --service-time 20ms
    account_token=$(<"$DIR/service-account.token")
    weir safe "$ADDRESS" --flowcontrol-config "$ROOT/examples/flowcontrol/safe-lanes.yaml" --flowcontrol-source=files \
        --max-requests-inflight 20 --max-mutating-requests-inflight 10 --service-account-key-file "$DIR/service-account.pub" \
        --service-account-issuer https://kubernetes.default.svc
    get -X POST -H "Authorization: Bearer $account_token" -H 'Content-Type: application/json' -o "$WORK/body" \
        --data '{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"leader"},"spec":{"holderIdentity":"a"}}' \
        /apis/coordination.k8s.io/v1/namespaces/default/leases
    start flood wrk -c 150 -t 1 -d 600s -H "$(bearer alice)" "$URL/api/v1/namespaces/default/pods"
    check_ok 'safe lanes: the flood waits' within "$LIMIT" flood_waits
    for n in $(seq 50); do
        took=$(get -X PATCH -H "Authorization: Bearer $account_token" -H 'Content-Type: application/merge-patch+json' \
            --data "{\"spec\":{\"leaseTransitions\":$n}}" -o "$WORK/body" -w '%{http_code} %{time_starttransfer} %{time_appconnect}' \
            /apis/coordination.k8s.io/v1/namespaces/default/leases/leader)
        [[ $took == 200* ]] || lost=$((lost + 1))
        if awk '{exit !($2 - $3 > 0.1)}' <<<"$took"; then slow=$((slow + 1)); fi
    done
    check 'no renewal of a Lease is lost' 0 "$lost"
    printf 'renewals of a Lease that took more than 100 ms: %s of 50\n' "$slow"
    if nightly; then check 'none takes more than 100 ms' 0 "$slow"; fi
    lost=0
    for n in $(seq 50); do
        [[ $(get -X POST -H "Authorization: Bearer $account_token" -H 'Content-Type: application/json' -o "$WORK/body" \
            -w '%{http_code}' --data '{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"x"}}' \
            /apis/authentication.k8s.io/v1/tokenreviews) == 201 ]] || lost=$((lost + 1))
    done
    check 'no review is lost' 0 "$lost"
    check_between 'they have a lane of their own' 50 100 "$(served_by safe-reviews)"
    check_between 'and so have Leases' 50 100 "$(served_by safe-leases)"
    signal flood TERM
    finish flood
    stopped safe
    stopped lanes
}

# shellcheck disable=SC2317,SC2329 # called by `within`
flood_waits() {
    (($(curl -sS --max-time 10 "http://$ADMIN/metrics" |
        awk '/^apiserver_flowcontrol_current_inqueue_requests\{/ {sum += $NF} END {print sum + 0}') > 20))
}

# served_by LANE: the requests that its priority level has executed.
served_by() {
    metric "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"$1\",priority_level=\"$1\"}"
}

apiserver cluster 0
UPSTREAM=$ADDRESS
accounts=(--service-account-key-file "$DIR/service-account.pub" --service-account-issuer https://kubernetes.default.svc)
account_token=$(<"$DIR/service-account.token")
account=ci
cp "$DIR/kubeconfig" "$WORK/cluster.kubeconfig"
"$kubectl" --kubeconfig "$DIR/kubeconfig" config set-credentials ci --token="$account_token" >"$WORK/created"
"$kubectl" --kubeconfig "$DIR/kubeconfig" config set-context ci --user=ci \
    --cluster="$("$kubectl" --kubeconfig "$DIR/kubeconfig" config view -o 'jsonpath={.clusters[0].name}')" >"$WORK/created"
pod=$(k admin get pods -n default -o 'jsonpath={.items[0].metadata.name}')
printf '=== kubectl 1.%s\n' "$version"

check 'weir check finds nothing to say' 0 \
    "$(code=0; "$WEIR" check "$ROOT/examples/policies" "$ROOT/examples/flowcontrol" >"$WORK/check" 2>&1 || code=$?; echo "$code")"
full_lists
secrets
sessions
deletions
ci
hammering
stopped cluster
lanes
summary
