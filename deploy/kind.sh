#!/usr/bin/env bash
# weir on this machine, in front of a kind cluster: docs/deployment.md.
#
# Usage: deploy/kind.sh start [--name CLUSTER] [--kubeconfig FILE] [--port PORT] [--admin-port PORT] [-- FLAG ...]
#        deploy/kind.sh stop [--name CLUSTER]
#
# start: runs `weir serve` with the FLAGs behind `--`, and writes a kubeconfig that leads through it. The cluster and your own
#        kubeconfig stay as they are.
#   --name        the kind cluster (default: kind)
#   --kubeconfig  the kubeconfig of a cluster that is not kind's; its current context counts
#   --port        where clients reach weir, on the loopback (default: 7443)
#   --admin-port  the status page (default: 7480)
# stop:  ends it and removes its files.
#
# WEIR: the program (default: weir of the PATH, or target/release/weir).
# Needs: kubectl, openssl, and kind unless --kubeconfig is given.
set -euo pipefail

name=kind
kubeconfig=
port=7443
admin_port=7480
flags=()

# fail WHAT
fail() {
    echo "deploy/kind.sh: $*" >&2
    exit 1
}

# usage: this file's own words.
usage() {
    sed -n '4,18s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

command=${1:-}
[[ $command == start || $command == stop ]] || usage
shift
while (($#)); do
    case $1 in
    --name | --kubeconfig | --port | --admin-port)
        (($# > 1)) || usage
        variable=${1#--}
        printf -v "${variable//-/_}" '%s' "$2"
        shift 2
        ;;
    --)
        shift
        flags=("$@")
        break
        ;;
    *) usage ;;
    esac
done
[[ $name =~ ^[a-z0-9.-]+$ ]] || fail "no name of a kind cluster: $name"
dir=${XDG_STATE_HOME:-$HOME/.local/state}/weir-kind/$name

# running: the weir of this folder is there. Its process id may be another program's by now.
running() {
    [[ -s $dir/pid ]] && ps -o args= -p "$(<"$dir/pid")" | grep -qF -- "--kubeconfig $dir/cluster.kubeconfig"
}

# ended WITHIN: it is gone within so many tenths of a second.
ended() {
    local left=$1
    while running; do
        ((left-- > 0)) || return 1
        sleep 0.1
    done
}

# stop: ends it, if it is there, and removes its files.
stop() {
    if running; then
        kill "$(<"$dir/pid")"
        if ! ended 100; then
            kill -KILL "$(<"$dir/pid")"
            ended 50 || fail "process $(<"$dir/pid") does not end"
        fi
    fi
    rm -rf "$dir"
}

# certificates: weir's own CA, of which only the certificate stays, and a certificate for this machine.
certificates() {
    local key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
    openssl req -x509 "${key[@]}" -days 365 -subj "/CN=weir-kind-$name" -keyout "$dir/ca.key" -out "$dir/weir-ca.crt"
    openssl req "${key[@]}" -subj /CN=localhost -keyout "$dir/tls.key" -out "$dir/tls.csr"
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' >"$dir/extensions"
    openssl x509 -req -days 365 -in "$dir/tls.csr" -CA "$dir/weir-ca.crt" -CAkey "$dir/ca.key" -set_serial 1 \
        -extfile "$dir/extensions" -out "$dir/tls.crt"
    rm "$dir/ca.key" "$dir/tls.csr" "$dir/extensions"
}

# of_cluster JSONPATH: of the cluster's kubeconfig.
of_cluster() {
    kubectl --kubeconfig "$dir/cluster.kubeconfig" config view --raw --output "jsonpath={$1}"
}

# serve: weir, in a session of its own, and the address that it serves at.
serve() {
    local left=300 line pid
    # A client with a certificate is asserted by impersonation: kind's administrator may, and no front proxy's key is needed.
    nohup "$weir" serve --kubeconfig "$dir/cluster.kubeconfig" \
        --bind-address 127.0.0.1 --secure-port "$port" --admin-address "127.0.0.1:$admin_port" \
        --tls-cert-file "$dir/tls.crt" --tls-private-key-file "$dir/tls.key" \
        --client-ca-file "$dir/cluster-ca.crt" --assert-by impersonation "${flags[@]}" >"$dir/log" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >"$dir/pid"
    until line=$(grep -o 'clients=[^ ]* admin=[^ ]*' "$dir/log"); do
        if ! kill -0 "$pid" 2>/dev/null || ((left-- <= 0)); then # `running` is false before it has been executed
            cat "$dir/log" >&2
            fail 'weir does not serve'
        fi
        sleep 0.1
    done
    [[ $line =~ clients=([^ ]+)\ admin=([^ ]+) ]]
    address=${BASH_REMATCH[1]}
    admin=${BASH_REMATCH[2]}
}

start() {
    local cluster
    running && fail "weir is already in front of $name: deploy/kind.sh stop --name $name"
    weir=${WEIR:-$(command -v weir || echo "$(dirname "$0")/../target/release/weir")}
    for tool in "$weir" kubectl openssl; do
        command -v "$tool" >/dev/null || fail "$tool is needed"
    done
    umask 077
    rm -rf "$dir"
    mkdir -p "$dir"
    trap 'stop' EXIT # what has begun is undone, unless it succeeds
    if [[ -n $kubeconfig ]]; then
        kubectl --kubeconfig "$kubeconfig" config view --raw --flatten --minify >"$dir/cluster.kubeconfig"
    else
        kind get kubeconfig --name "$name" >"$dir/cluster.kubeconfig"
    fi
    of_cluster '.clusters[0].cluster.certificate-authority-data' | base64 --decode >"$dir/cluster-ca.crt"
    certificates 2>"$dir/openssl.log" || { cat "$dir/openssl.log" >&2; fail 'no certificate'; }
    serve
    cp "$dir/cluster.kubeconfig" "$dir/kubeconfig"
    cluster=$(of_cluster '.clusters[0].name')
    kubectl --kubeconfig "$dir/kubeconfig" config set-cluster "$cluster" --server "https://$address" \
        --certificate-authority "$dir/weir-ca.crt" --embed-certs >"$dir/set-cluster.log"
    kubectl --kubeconfig "$dir/kubeconfig" get --raw /readyz >"$dir/readyz.log" 2>&1 ||
        { tail -n 5 "$dir/log" "$dir/readyz.log" >&2; fail 'the cluster does not answer through weir'; }
    trap - EXIT
    printf 'weir is in front of %s. Its status page: http://%s/, its log: %s\n\n' "$name" "$admin" "$dir/log"
    printf '  export KUBECONFIG=%s\n  kubectl get nodes\n\n' "$dir/kubeconfig"
    printf 'To undo it: deploy/kind.sh stop --name %s, and unset KUBECONFIG\n' "$name"
}

"$command"
