#!/usr/bin/env bash
# deploy/kind.sh against the playground's kubeconfig, and with a stand-in for `kind get kubeconfig`: no cluster can run here.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl openssl ps
command -v kubectl >/dev/null || export PATH=$PATH:$TOOLS
need kubectl
export WEIR

STATE=$HOME/.local/state/weir-kind

# kind_sh ARGUMENT...: the script; what it says is in $WORK/said, its exit code in CODE.
kind_sh() {
    CODE=0
    timeout 120 "$ROOT/deploy/kind.sh" "$@" >"$WORK/said" 2>&1 || CODE=$?
}

# printed NAME: the kubeconfig that it says to use.
printed() {
    sed -n 's/^  export KUBECONFIG=//p' "$WORK/said"
}

in_front_of_the_playground() {
    local own pid
    own=$(sha256sum <"$DIR/kubeconfig")
    kind_sh start --name one --kubeconfig "$DIR/kubeconfig" --port 0 --admin-port 0 -- --explain-responses
    check 'start: exit code' 0 "$CODE"
    check 'start: the kubeconfig that it prints' "$STATE/one/kubeconfig" "$(printed)"
    pid=$(<"$STATE/one/pid")
    PIDS[one]=$pid
    check_match 'kubectl works through weir' 'node-' "$(kubectl --kubeconfig "$STATE/one/kubeconfig" get nodes 2>&1)"
    check_match 'as the user of its certificate' 'x-weir-flow-schema: exempt' \
        "$(curl -sSi --max-time "$LIMIT" --cacert "$STATE/one/weir-ca.crt" --cert "$DIR/admin.crt" --key "$DIR/admin.key" \
            "$(sed -n 's/ *server: //p' "$STATE/one/kubeconfig")/api/v1/nodes" | tr '[:upper:]' '[:lower:]')"
    check 'its files are for their owner only' '' "$(find "$STATE/one" -perm /077)"
    check_ok 'the CA has no key that could sign another certificate' test ! -e "$STATE/one/ca.key"
    kind_sh start --name one --kubeconfig "$DIR/kubeconfig" --port 0 --admin-port 0
    check 'a second start is refused' 1 "$CODE"
    check_match 'and says what to do' 'stop --name one' "$(<"$WORK/said")"
    check_ok 'and the first one still runs' kill -0 "$pid"
    kind_sh stop --name one
    check 'stop: exit code' 0 "$CODE"
    check_match 'stop: weir is gone' '^$|^Z' "$(ps -o stat= -p "$pid" || true)" # or its parent has not asked yet
    unset 'PIDS[one]'
    check_ok 'stop: its files are gone' test ! -e "$STATE/one"
    check 'the cluster'"'"'s kubeconfig stays as it is' "$own" "$(sha256sum <"$DIR/kubeconfig")"
    kind_sh stop --name one
    check 'stop again: nothing to do' 0 "$CODE"
}

with_kind() {
    mkdir "$WORK/bin"
    # shellcheck disable=SC2016 # for that script
    printf '#!/bin/sh\n[ "$*" = "get kubeconfig --name two" ] && cat %s\n' "$DIR/kubeconfig" >"$WORK/bin/kind"
    chmod +x "$WORK/bin/kind"
    PATH=$WORK/bin:$PATH kind_sh start --name two --port 0 --admin-port 0
    check 'by the name of a kind cluster: exit code' 0 "$CODE"
    check_match 'kubectl works through weir, too' 'node-' "$(kubectl --kubeconfig "$(printed)" get nodes 2>&1)"
    kind_sh stop --name two
    check 'and it is undone' 0 "$CODE"
}

what_fails_leaves_nothing() {
    PATH=$WORK/bin:$PATH kind_sh start --name three --port 0 --admin-port 0
    check_match 'a cluster that kind does not know: exit code' '^[1-9]' "$CODE"
    kind_sh start --name four --kubeconfig "$DIR/kubeconfig" --port 0 --admin-port 0 -- --no-such-flag
    check 'a flag that weir does not have: exit code' 1 "$CODE"
    check_match 'weir'"'"'s own words are shown' 'no-such-flag' "$(<"$WORK/said")"
    stopped cluster
    kind_sh start --name five --kubeconfig "$DIR/kubeconfig" --port 0 --admin-port 0
    check 'a cluster that is away: exit code' 1 "$CODE"
    check 'nothing is left of any of them' '' "$(find "$STATE" -mindepth 1)"
    kind_sh begin
    check 'another word than start and stop: exit code' 2 "$CODE"
    check_match 'and how to use it' 'deploy/kind.sh start' "$(<"$WORK/said")"
}

apiserver cluster 0
in_front_of_the_playground
with_kind
what_fails_leaves_nothing
summary
