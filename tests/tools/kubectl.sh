#!/usr/bin/env bash
# Unmodified kubectl through weir: the version of this machine and Debian's, with a certificate and
# with a token.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk

kubectl=
# k CONTEXT ARGUMENT...
k() {
    local context=$1
    shift
    timeout "$LIMIT" "$kubectl" --kubeconfig "$DIR/kubeconfig" --context "$context" "$@"
}

# started NAME CONTEXT ARGUMENT...: k, beside.
started() {
    start "$1" "$kubectl" --kubeconfig "$DIR/kubeconfig" --context "$2" "${@:3}"
}

# manifest NAME VALUE: a ConfigMap.
manifest() {
    printf 'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\ndata:\n  value: %s\n' "$1" "$2"
}

pod_manifests() {
    local n
    for n in $(seq "$1"); do
        printf -- '---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: new-%s\n' "$n"
        printf 'spec:\n  containers:\n  - name: app\n    image: none\n'
    done
}

# shellcheck disable=SC2317,SC2329 # called by `within`
lines() {
    (($(grep -c "$2" "$WORK/$1.out") >= $3))
}

reads() {
    local context=$1 user=${1%-token}
    check "$context: get nodes" 3 "$(k "$context" get nodes --no-headers | grep -c ' Ready ')"
    check_match "$context: get nodes prints the server's columns" 'NAME +STATUS +ROLES +AGE +VERSION' \
        "$(k "$context" get nodes)"
    check_match "$context: describe node" 'Name: +node-[0-9]+' "$(k "$context" describe nodes)"
    check_match "$context: get -o yaml" 'kind: Namespace' "$(k "$context" get namespace default -o yaml)"
    if [[ $user == admin ]]; then
        check_ok "$context: kube-system" k "$context" get pods -n kube-system
    else
        check_match "$context: kube-system is forbidden" "Forbidden.*User \"$user\" cannot list resource \"pods\"" \
            "$(k "$context" get pods -n kube-system 2>&1)"
    fi
}

writes() {
    local context=$1 map=map-of-$1
    check "$context: apply creates" "configmap/$map created" "$(manifest "$map" 1 | k "$context" apply -f -)"
    check "$context: apply changes" "configmap/$map configured" "$(manifest "$map" 2 | k "$context" apply -f -)"
    check "$context: apply leaves alone" "configmap/$map unchanged" "$(manifest "$map" 2 | k "$context" apply -f -)"
    check "$context: what was applied is there" 2 "$(k "$context" get configmap "$map" -o 'jsonpath={.data.value}')"
    check_match "$context: create refuses what exists" 'AlreadyExists' \
        "$(manifest "$map" 3 | k "$context" create -f - 2>&1)"
    check "$context: patch" "configmap/$map patched" \
        "$(k "$context" patch configmap "$map" --type merge -p '{"data":{"value":"4"}}')"
    check "$context: label" "configmap/$map labeled" "$(k "$context" label configmap "$map" kind=tried)"
    check "$context: a selector finds it" "configmap/$map" "$(k "$context" get configmaps -l kind=tried -o name)"
    check "$context: delete" "configmap \"$map\" deleted" "$(k "$context" delete configmap "$map")"
    check_match "$context: what was deleted is gone" 'NotFound' "$(k "$context" get configmap "$map" 2>&1)"
}

watches() {
    local context=$1 before
    before=$(k "$context" get pods -A --no-headers | wc -l)
    started watch "$context" get pods -A -w --no-headers --output-watch-events
    within "$LIMIT" lines watch . "$before" || true
    pod_manifests 20 | k bob create -n default -f - >"$WORK/created"
    check "$context: another shell creates pods" 20 "$(grep -c created "$WORK/created")"
    check_ok "$context: the watch tells of all of them" within "$LIMIT" lines watch '^ADDED .*new-' 20
    check "$context: and of each once" 20 "$(awk '/^ADDED .*new-/ {print $3}' "$WORK/watch.out" | sort | uniq -u | wc -l)"
    k bob delete -n default pods $(seq -f 'new-%g' 20) --wait=false >/dev/null
    check_ok "$context: the watch goes on to the deletions" within "$LIMIT" lines watch '^DELETED .*new-' 20
    signal watch TERM
    finish watch
}

logs() {
    local context=$1 pod=$2 now
    now=$(k "$context" logs "$pod" | wc -l)
    check_between "$context: logs" 1 1000 "$now"
    started log "$context" logs -f "$pod"
    check_ok "$context: logs -f goes on" within "$LIMIT" lines log . $((now + 2))
    signal log TERM
    finish log
}

tunnels() {
    local context=$1 pod=$2
    check "$context: exec -i" hello "$(k "$context" exec -i "$pod" -- cat <<<hello)"
    check_match "$context: exec" 'ls -l$' "$(k "$context" exec "$pod" -- ls -l </dev/null)"
    check "$context: attach -i" 'over here' "$(k "$context" attach -i "$pod" <<<'over here' 2>/dev/null)"
    head -c 3000000 /dev/urandom >"$WORK/sent"
    k "$context" exec -i "$pod" -- cat <"$WORK/sent" >"$WORK/received"
    check_ok "$context: exec -i carries 3 MB both ways" cmp "$WORK/sent" "$WORK/received"
}

mapfile -t all < <(kubectls)
newest=0
for kubectl in "${all[@]}"; do
    version=$(minor "$kubectl")
    if ((version > newest)); then newest=$version; fi
    printf '=== %s\n' "$("$kubectl" version --client --short 2>/dev/null || "$kubectl" version --client | sed -n 1p)"
    playground "kubectl-1.$version"
    pod=$(k admin get pods -n default -o name | sed -n 1p)
    for context in admin admin-token alice alice-token bob bob-token; do
        reads "$context"
        writes "$context"
    done
    for context in alice alice-token; do
        watches "$context"
        logs "$context" "$pod"
        check_match "$context: describe pod" "Name: +${pod#pod/}" "$(k "$context" describe "$pod")"
        # The playground speaks WebSocket only; for SPDY see spdy.sh.
        if ((version >= 31)); then tunnels "$context" "$pod"; fi
    done
    stopped "kubectl-1.$version"
done
if ((newest < 31)); then
    printf 'no kubectl 1.31 or newer is here: exec over WebSocket is shown by tests/clients alone\n'
fi
summary
