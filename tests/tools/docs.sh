#!/usr/bin/env bash
# Every command in the README and in docs/. Blocks marked `sh ci` run as they are, in order, at the top of the checkout.
# Blocks marked `sh` are for a real cluster: the playground's API server stands in for it. Blocks marked `sh node` are for a
# control-plane node: they find its files below another folder, and a stand-in for kubeadm. Blocks marked `sh log` have an audit
# log, configurations and a running weir; what lasts longer than 3 s is interrupted.
#
# A block that starts a playground runs beside the others until this script ends; the folder of its --dir is emptied first.
# Every other block has its own shell, and a minute.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk cargo curl openssl systemd-analyze wrk
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
        start "$name" bash -c "exec $(<"$block")"
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

# The top of a checkout with a node's settings. kubeadm makes a kubeconfig, as on a node.
mkdir -p "$WORK/node/deploy" "$WORK/bin"
cp -r "$ROOT/deploy/kubeadm" "$WORK/node/deploy/"
placed <"$ROOT/deploy/kubeadm/config.yaml" >"$WORK/node/deploy/kubeadm/config.yaml"
sed 's/weir-playground/kubernetes/' "$DIR/kubeconfig" >"$WORK/etc/kubernetes/admin.conf"
# shellcheck disable=SC2016 # for that script
printf '#!/bin/sh\n[ "$*" = "kubeconfig user --client-name=weir" ] && cat %s\n' "$WORK/etc/kubernetes/admin.conf" >"$WORK/bin/kubeadm"
chmod +x "$WORK/bin/kubeadm"
rm "$WORK/etc/weir/kubeconfig"
cd "$WORK/node"
for block in "$WORK"/node-*; do
    name=$(basename "$block")
    placed <"$block" >"$block.placed"
    start "$name" env PATH="$WORK/bin:${WEIR%/*}:$PATH" timeout 60 bash -euo pipefail "$block.placed"
    finish "$name" 70
    check "$name: $(head -n 1 "$block"): exit code" 0 "$STATUS"
    if [[ $STATUS != 0 ]]; then tail -n 20 "$WORK/$name.out" "$WORK/$name.err"; fi
done
check_between 'blocks for a node' 3 100 "$(find "$WORK" -name 'node-??' | wc -l)"
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
