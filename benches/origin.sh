# shellcheck shell=bash
# An origin behind a proxy, for benches/peers.sh and deploy/build.sh: nginx with TLS and HTTP/2 that
# answers /api/v1/namespaces/a/pods/b with 1 KiB, .../all with 11 KiB, and .../slow without end.
#
# The sourcing script has a folder, `dir`, and `pids`, the processes that end with the script.

dir=$(mktemp -d)
pids=()
finish() {
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

# origin PORT [COMMAND...]: makes the folder's certificates (ca.crt, tls.crt, tls.key) and starts nginx there, by the command.
origin() {
    local port=$1 pods=$dir/root/api/v1/namespaces/a/pods
    shift
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca \
            -keyout "$dir/ca.key" -out "$dir/ca.crt"
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost \
            -keyout "$dir/tls.key" -out "$dir/tls.csr"
        openssl x509 -req -days 2 -in "$dir/tls.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -CAcreateserial \
            -extfile <(echo 'subjectAltName=DNS:localhost,IP:127.0.0.1') -out "$dir/tls.crt"
    } 2>"$dir/openssl.log"
    mkdir -p "$pods"
    head -c 1024 /dev/zero | tr '\0' x >"$pods/b"
    head -c 11264 /dev/zero | tr '\0' x >"$pods/all"
    cp "$pods/all" "$pods/slow"
    chmod -R go+rX "$dir"
    cat >"$dir/origin.conf" <<END
worker_processes 1; daemon off; pid $dir/origin.pid; error_log $dir/origin.log;
events { worker_connections 8192; }
http {
    access_log off; keepalive_requests 1000000000; http2_max_concurrent_streams 1000;
    client_body_temp_path $dir/bodies; proxy_temp_path $dir/proxied; fastcgi_temp_path $dir/fastcgi;
    uwsgi_temp_path $dir/uwsgi; scgi_temp_path $dir/scgi;
    server {
        listen 127.0.0.1:$port ssl http2 backlog=4096;
        ssl_certificate $dir/tls.crt; ssl_certificate_key $dir/tls.key; ssl_protocols TLSv1.2 TLSv1.3;
        default_type application/json; root $dir/root; sendfile on; open_file_cache max=10;
        location = /api/v1/namespaces/a/pods/slow { limit_rate 1; }
    }
}
END
    "$@" nginx -c "$dir/origin.conf" &
    pids+=("$!")
}

# one_seat FILE: manifests that give user `bench` one seat and no queue.
one_seat() {
    cat >"$1" <<END
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: one-seat}
spec: {type: Limited, limited: {nominalConcurrencyShares: 1, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: one-seat}
spec:
  matchingPrecedence: 2
  priorityLevelConfiguration: {name: one-seat}
  rules:
  - subjects: [{kind: User, user: {name: bench}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
END
}
