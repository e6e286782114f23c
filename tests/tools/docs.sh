#!/usr/bin/env bash
# Every command in the README and in docs/. Blocks marked `sh ci` run as they are, in order, at the top of the checkout.
# Blocks marked `sh` are for a real cluster: the playground's API server stands in for it. Blocks marked `sh node` are for a
# control-plane node: they find its files below another folder, and stand-ins for kubeadm and its ConfigMap. Blocks marked `sh log`
# have an audit log, configurations and a running weir; what lasts longer than 3 s is interrupted. Blocks marked `sh incident` are
# those of docs/incident.md: a client floods a small API server meanwhile, and weir's addresses are those of that playground.
#
# A block that starts a playground runs beside the others until this script ends; the folder of its --dir is emptied first. The
# README's first command is a build of its own, which fresh-root.sh tries by night: here the program that is there does the rest.
# Every other block has its own shell, and a minute.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk cargo curl jq openssl systemd-analyze wrk
command -v kubectl >/dev/null || export PATH=$PATH:$TOOLS
need kubectl
cd "$ROOT"

awk -v work="$WORK" '
    /^```sh ci$/ { n++; inside = 1; next }
    /^```/ { inside = 0 }
    /^```sh$/ { m++; serving = 1; next }
    /^```/ { serving = 0 }
    /^```sh node$/ { k++; node = 1; next }
    /^```/ { node = 0 }
    /^```sh log$/ { l++; log_ = 1; next }
    /^```/ { log_ = 0 }
    /^```sh incident$/ { i++; incident = 1; next }
    /^```/ { incident = 0 }
    incident { print > sprintf("%s/incident-%02d", work, i) }
    log_ { print > sprintf("%s/log-%02d", work, l) }
    inside { print > sprintf("%s/block-%02d", work, n) }
    serving { print > sprintf("%s/serve-%02d", work, m) }
    node { print > sprintf("%s/node-%02d", work, k) }
' README.md docs/*.md

beside=()
for block in "$WORK"/block-*; do
    name=$(basename "$block")
    title="$name: $(head -n 1 "$block")"
    if [[ $(<"$block") =~ ^cargo\ run.*\ playground.*--dir\ ([^[:space:]]+) ]]; then
        DIR=${BASH_REMATCH[1]}
        rm -rf "$DIR"
        # One command: nothing stands between its signals and the program.
        command=$(<"$block")
        if [[ $command == 'cargo run --no-default-features '* ]]; then command="$WEIR ${command#* -- }"; fi
        start "$name" bash -c "exec $command"
        beside+=("$name")
        check_ok "$title" within 600 ready_or_ended "$name"
        check_ok "$title: serves" test -e "$DIR/ready"
    else
        start "$name" timeout 60 bash -euo pipefail "$block"
        finish "$name" 70
        check "$title: exit code" 0 "$STATUS"
        if [[ $STATUS != 0 ]]; then tail -n 20 "$WORK/$name.out" "$WORK/$name.err"; fi
    fi
done
check_between 'blocks that start a playground' 1 100 "${#beside[@]}"

mkdir "$WORK/logs"
for n in 1 2 3; do
    printf '{"at_ms":%s,"method":"GET","url":"/api/v1/pods","user":"alice","groups":["system:authenticated"],"service_ms":40}\n' "$n"
done >"$WORK/logs/audit.log"
gzip -k -S -1.log.gz "$WORK/logs/audit.log"
mv "$WORK/logs/audit.log-1.log.gz" "$WORK/logs/audit-1.log.gz"
for name in weir today proposed; do printf 'maxRequestsInflight: 40\n' >"$WORK/logs/$name.yaml"; done
for block in "$WORK"/log-??; do
    name=$(basename "$block")
    code=0
    (cd "$WORK/logs" && PATH=${WEIR%/*}:$PATH timeout --signal=INT 3 bash -euo pipefail "$block") >"$WORK/$name.out" 2>&1 || code=$?
    check_match "$name: $(head -n 1 "$block"): exit code" '^(0|124)$' "$code"
done
for name in "${beside[@]}"; do
    stopped "$name"
done

# An incident, as the one that the page expects. `weir status` ends with a code about alarms, of which there are some.
playground incident --capacity 4 --service-time 50ms --max-requests-inflight 20 --max-mutating-requests-inflight 10
start flood wrk -t 1 -c 100 -d 600s -H "$(bearer alice)" "$URL/api/v1/namespaces/default/pods"
# shellcheck disable=SC2317,SC2329 # called by `within`
waiting() { curl -sS "http://$ADMIN/status.json" | jq -e '[.levels[].waiting] | add > 10'; }
check_ok 'requests wait, as in an incident' within "$LIMIT" waiting
mkdir "$WORK/incident-bin"
cat >"$WORK/incident-bin/weir" <<END
#!/usr/bin/env bash
if [[ \$1 != status ]]; then exec "$WEIR" "\$@"; fi
"$WEIR" "\$@" --admin "http://$ADMIN" || ((\$? <= 2))
END
chmod +x "$WORK/incident-bin/weir"
for block in "$WORK"/incident-??; do
    name=$(basename "$block")
    sed -i "s#127\.0\.0\.1:6480#$ADMIN#g" "$block"
    start "$name" env PATH="$WORK/incident-bin:$PATH" KUBECONFIG="$DIR/kubeconfig" timeout 60 bash -euo pipefail "$block"
    finish "$name" 70
    check "$name: $(head -n 1 "$block"): exit code" 0 "$STATUS"
    if [[ $STATUS != 0 ]]; then tail -n 20 "$WORK/$name.out" "$WORK/$name.err"; fi
    check_ok "$name: prints something" test -s "$WORK/$name.out"
done
check_between 'blocks of an incident' 15 100 "$(find "$WORK" -name 'incident-??' | wc -l)"
check_match 'what hurts most is the wait, with the users' 'now: .* wait in [a-z-]+, .*alice' "$(tr '\n' ' ' <"$WORK/incident-01.out")"
signal flood TERM
finish flood
finish incident 60
check 'weir has drained' 0 "$STATUS"

cluster
cp "$DIR/tls.crt" "$WORK/bastion.crt"
cp "$DIR/tls.key" "$WORK/bastion.key"
cd "$WORK"
for block in "$WORK"/serve-*; do
    name=$(basename "$block")
    title="$name: $(sed -n '1,2s/ *\\$//p' "$block" | tr -s '\n ' ' ')"
    start "$name" bash -c "PATH=${WEIR%/*}:\$PATH; exec $(placed <"$block") ${anywhere[*]}"
    fronting "$name"
    check "$title: a token's nodes" 200 \
        "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
    if grep -q -- --client-ca-file "$block"; then
        check "$title: a certificate's nodes" 200 \
            "$(get -o "$WORK/body" -w '%{http_code}' --cert "$DIR/alice.crt" --key "$DIR/alice.key" /api/v1/nodes)"
    fi
    stopped "$name"
done
check_between 'blocks for a cluster' 2 100 "$(find "$WORK" -name 'serve-??' | wc -l)"

# The top of a checkout with a node's settings. The node's address stays the example's in kubeadm's file: so its manifest shows what
# the patch changes.
mkdir -p "$WORK/node/deploy" "$WORK/bin"
cp -r "$ROOT/deploy/kubeadm" "$WORK/node/deploy/"
placed <"$ROOT/deploy/kubeadm/config.yaml" >"$WORK/node/deploy/kubeadm/config.yaml"
sed -i "s#/etc/kubernetes/patches#$WORK&#" "$WORK/node/deploy/kubeadm/init-configuration.yaml"
sed 's/weir-playground/kubernetes/' "$DIR/kubeconfig" >"$WORK/etc/kubernetes/admin.conf"
rm "$WORK/etc/weir/kubeconfig"
check_ok "kubeadm's ConfigMap" kubectl -n kube-system create configmap kubeadm-config \
    "--from-file=ClusterConfiguration=$ROOT/deploy/kubeadm/cluster-configuration.yaml"

# kubeadm makes a kubeconfig, and the API server's manifest from one file: by its InitConfiguration, its ClusterConfiguration and the
# patches. It takes these arguments only.
cat >"$WORK/bin/kubeadm" <<'END'
#!/usr/bin/env bash
set -euo pipefail
folder=$(cd "$(dirname "$0")/../etc/kubernetes" && pwd)
case "$*" in
    'kubeconfig user --client-name=weir') exec cat "$folder/admin.conf" ;;
    "init phase control-plane apiserver --config $folder/kubeadm.yaml") ;;
    *) echo "can not mix '--config' with arguments: $*" >&2 && exit 1 ;;
esac
[[ $(sed -n 's/^kind: //p; s/^---$/&/p' "$folder/kubeadm.yaml" | tr '\n' ' ') == 'InitConfiguration --- ClusterConfiguration ' ]]
address=$(sed -n 's/^localAPIEndpoint: {advertiseAddress: \([0-9.]*\),.*/\1/p' "$folder/kubeadm.yaml")
patches=$(sed -n 's/^patches: {directory: \(.*\)}$/\1/p' "$folder/kubeadm.yaml")
bind=$(awk '/name: bind-address/ {getline; print $2}' "$folder/kubeadm.yaml")
mkdir -p "$folder/manifests"
{
    printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: kube-apiserver, namespace: kube-system}\nspec:\n  containers:\n'
    printf '  - name: kube-apiserver\n    command: [kube-apiserver, --advertise-address=%s, --bind-address=%s]\n' "$address" "$bind"
    for probe in liveness readiness startup; do
        printf '    %sProbe: {httpGet: {host: %s, path: /%s, port: 6443, scheme: HTTPS}}\n' "$probe" "$address" "$probe"
    done
} >"$folder/unpatched.yaml"
kubectl patch --local --type strategic -o yaml -f "$folder/unpatched.yaml" \
    -p "$(cat "$patches/kube-apiserver+strategic.yaml")" >"$folder/manifests/kube-apiserver.yaml"
END
chmod +x "$WORK/bin/kubeadm"
cd "$WORK/node"
for block in "$WORK"/node-*; do
    name=$(basename "$block")
    placed <"$block" >"$block.placed"
    start "$name" env PATH="$WORK/bin:${WEIR%/*}:$PATH" timeout 60 bash -euo pipefail "$block.placed"
    finish "$name" 70
    check "$name: $(head -n 1 "$block"): exit code" 0 "$STATUS"
    if [[ $STATUS != 0 ]]; then tail -n 20 "$WORK/$name.out" "$WORK/$name.err"; fi
done
check_between 'blocks for a node' 6 100 "$(find "$WORK" -name 'node-??' | wc -l)"
manifest=$WORK/etc/kubernetes/manifests/kube-apiserver.yaml
check "the API server's address and its probes are the loopback" 4 "$(grep -cE '(bind-address=|host: )127\.0\.0\.1$' "$manifest")"
check '... and its port and the address that it publishes stay' 4 "$(grep -cE 'port: 6443$|advertise-address=192\.0\.2\.10$' "$manifest")"
check 'the undo has no patches' 0 "$(grep -c '^patches:' "$WORK/etc/kubernetes/kubeadm.yaml" || true)"
check '... and both configurations' 2 "$(grep -cE '^kind: (Init|Cluster)Configuration$' "$WORK/etc/kubernetes/kubeadm.yaml")"
# What the kubelet would start.
read -ra arguments < <(placed <"$WORK/etc/kubernetes/manifests/weir.yaml" | sed -n 's/^ *args: \[\(.*\)\]/\1/p' | tr -d ,)
start static-pod "$WEIR" "${arguments[@]}" "${anywhere[@]}"
fronting static-pod
check "the static Pod: a token's nodes" 200 \
    "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
check "the static Pod: a certificate's nodes" 200 \
    "$(get -o "$WORK/body" -w '%{http_code}' --cert "$DIR/alice.crt" --key "$DIR/alice.key" /api/v1/nodes)"
while read -r probe; do
    check "the static Pod: $probe" 200 "$(curl -sS -o "$WORK/body" -w '%{http_code}' "http://$ADMIN$probe")"
done < <(sed -n 's/^ *path: \(\/[a-z]*z\)$/\1/p' "$WORK/etc/kubernetes/manifests/weir.yaml")
signal static-pod TERM
within "$LIMIT" logged_or_ended static-pod 'shutting down: ' || die 'the static Pod does not go'
signal static-pod TERM
finish static-pod
summary
