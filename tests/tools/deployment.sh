#!/usr/bin/env bash
# What deploy/ has for a cluster: kubectl renders the kustomize base and each overlay, weir serves in a Pod's environment with the
# base's settings, and the systemd unit is as closed as it says. That the objects are valid, tests/manifests.rs shows.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl diff systemd-analyze unshare

KUSTOMIZE=$ROOT/deploy/kustomize
POD=/run/secrets/kubernetes.io/serviceaccount

# kinds: what kinds of objects are in the YAML that is read, and how many of each.
kinds() {
    sed -n 's/^kind: //p' | sort | uniq -c | awk '{printf "%s%s=%s", sep, $2, $1; sep = " "}'
}

# modern KUBECTL: it has kustomize 4 or newer; 1.20 has 2.0.
modern() {
    (($(minor "$1") >= 21))
}

# for_old_kustomize FOLDER: the overlays there, in the words of kustomize 2.0, which has no other folders in `resources`, and
# patches by their files only.
for_old_kustomize() {
    sed -i 's#^resources:#bases:\n  - ../../base\n&#; \#^  - \.\./\.\./base$#d; s#^patches:#patchesStrategicMerge:#; s#^  - path: #  - #' \
        "$1"/overlays/*/kustomization.yaml
}

rendered() {
    local kubectl=$1 folder=$2 overlay
    declare -A expected=(
        [base]='ClusterRole=3 ClusterRoleBinding=1 ConfigMap=1 Deployment=1 Namespace=1 NetworkPolicy=1 PodDisruptionBudget=1 Role=2 RoleBinding=2 Service=1 ServiceAccount=1'
    )
    expected[client-certificates]=${expected[base]}
    expected[load-balancer]=${expected[base]}
    expected[endpoint-slices]="${expected[base]/Role=2 RoleBinding=2 Service/Role=3 RoleBinding=3 Service}"
    expected[replicas]="${expected[base]/NetworkPolicy=1/NetworkPolicy=2}"
    expected[prometheus-operator]="${expected[base]/NetworkPolicy=1/NetworkPolicy=2}"
    expected[prometheus-operator]="${expected[prometheus-operator]/ClusterRole=3 ClusterRoleBinding=1/ClusterRole=5 ClusterRoleBinding=4}"
    expected[prometheus-operator]="${expected[prometheus-operator]/ Role=2 RoleBinding=2 Service=1 ServiceAccount=1/ PrometheusRule=1 Role=2 RoleBinding=2 Service=2 ServiceAccount=1 ServiceMonitor=1}"
    expected[shared-limits]="${expected[base]/Deployment=1 Namespace=1 NetworkPolicy=1/Deployment=2 Namespace=1 NetworkPolicy=3}"
    expected[shared-limits]="${expected[shared-limits]/ Service=1/ Service=2}"
    check_ok "kubectl 1.$(minor "$kubectl") renders the base" \
        bash -c "'$kubectl' kustomize '$folder/base' >'$WORK/base.yaml'"
    check 'the base: objects' "${expected[base]}" "$(kinds <"$WORK/base.yaml")"
    for overlay in "$folder"/overlays/*/; do
        overlay=$(basename "$overlay")
        check_ok "kubectl 1.$(minor "$kubectl") renders $overlay" \
            bash -c "'$kubectl' kustomize '$folder/overlays/$overlay' >'$WORK/$overlay.yaml' 2>'$WORK/said'"
        check "$overlay: no warnings" '' "$(<"$WORK/said")"
        check "$overlay: objects" "${expected[$overlay]:-unknown}" "$(kinds <"$WORK/$overlay.yaml")"
        check_no_match "$overlay: changes the base" '^$' "$(diff "$WORK/base.yaml" "$WORK/$overlay.yaml" || true)"
    done
    check_match 'the image has its tag' 'image: weir:[0-9]' "$(<"$WORK/base.yaml")"
    check_match 'the settings are in the ConfigMap by its plain name' 'name: weir' "$(grep -A 5 'kind: ConfigMap' "$WORK/base.yaml")"
    check_match 'client-certificates: its flags' '- --proxy-client-cert-file' "$(<"$WORK/client-certificates.yaml")"
    check_match 'client-certificates: the volumes of the base stay' 'secretName: weir-tls' "$(<"$WORK/client-certificates.yaml")"
    check_match 'endpoint-slices: its flag' '- --upstream-endpoint-slices' "$(<"$WORK/endpoint-slices.yaml")"
    check_match 'endpoint-slices: the Role stays in its namespace' 'namespace: default' "$(<"$WORK/endpoint-slices.yaml")"
    check_match 'replicas: their number' 'replicas: 3' "$(<"$WORK/replicas.yaml")"
    check_match 'replicas: the volumes of the base stay' 'secretName: weir-tls' "$(<"$WORK/replicas.yaml")"
    check_match 'prometheus-operator: the API server decides' '- --admin-authorization-mode=Webhook' "$(<"$WORK/prometheus-operator.yaml")"
    check_match 'prometheus-operator: the volumes of the base stay' 'secretName: weir-tls' "$(<"$WORK/prometheus-operator.yaml")"
    check_match 'prometheus-operator: the ports of the base stay' 'containerPort: 6443' "$(<"$WORK/prometheus-operator.yaml")"
    check_match 'load-balancer: its type' 'type: LoadBalancer' "$(<"$WORK/load-balancer.yaml")"
}

kustomized() {
    local kubectl folder newest=0
    while read -r kubectl; do
        folder=$KUSTOMIZE
        if modern "$kubectl"; then
            newest=1
        else
            cp -r "$KUSTOMIZE" "$WORK/kustomize"
            for_old_kustomize "$WORK/kustomize"
            folder=$WORK/kustomize
        fi
        rendered "$kubectl" "$folder"
    done < <(kubectls)
    ((newest)) || echo 'no kubectl of 1.21 or newer is here: the overlays were rendered in the words of 1.20'
}

# in_pod DIR COMMAND...: with the files of DIR as a Pod's service account. In a mount namespace of its own, where that is allowed;
# otherwise root can make the folder, where there is none.
in_pod() {
    local dir=$1
    shift
    # shellcheck disable=SC2016 # for the other shell
    local mounted='mount -t tmpfs none /run && mkdir -p "${0%/*}" && ln -s "$1" "$0" && shift && exec "$@"'
    if unshare --user --map-root-user --mount true 2>/dev/null; then
        exec unshare --user --map-root-user --mount bash -c "$mounted" "$POD" "$dir" "$@"
    elif unshare --mount true 2>/dev/null; then
        exec unshare --mount bash -c "$mounted" "$POD" "$dir" "$@"
    fi
    mkdir -p "${POD%/*}" && ln -s "$dir" "$POD" && exec "$@"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
generation() {
    [[ $(metric weir_config_generation) == "$1" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
ready() {
    [[ $(curl -sS -o "$WORK/body" -w '%{http_code}' "http://$ADMIN/readyz") == 200 ]]
}

# account: what the kubelet mounts, as it replaces it: files behind a link.
account() {
    local version=$WORK/account/..$1
    mkdir -p "$version"
    cp "$DIR/ca.crt" "$version/ca.crt"
    cp "$2" "$version/token"
    ln -s "..$1" "$WORK/account/..data.new"
    mv -T "$WORK/account/..data.new" "$WORK/account/..data"
    ln -sf ..data/token ..data/ca.crt "$WORK/account/"
}

in_a_pod() {
    cluster
    mkdir -p "$WORK/etc/weir/config"
    placed <"$KUSTOMIZE/base/config.yaml" >"$WORK/etc/weir/config/config.yaml"
    account 1 "$DIR/service-account.token"
    if [[ -e $POD ]]; then
        die "$POD is there: this is a Pod"
    fi
    start pod in_pod "$WORK/account" env KUBERNETES_SERVICE_HOST=127.0.0.1 "KUBERNETES_SERVICE_PORT=${UPSTREAM##*:}" \
        "$WEIR" serve --config "$WORK/etc/weir/config/config.yaml" --health-address 127.0.0.1:0 --shutdown-delay-duration 0s \
        "${anywhere[@]}"
    fronting pod
    check_ok 'in a Pod: weir is ready without a kubeconfig' within "$LIMIT" ready
    check 'in a Pod: a token is verified' 200 \
        "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
    check_match 'in a Pod: the API server is the one of the environment' "https://127.0.0.1:${UPSTREAM##*:}" \
        "$(curl -sS "http://$ADMIN/configz")"
    # The same account, another token: as after an hour.
    printf '%s' "$(token alice)" >"$WORK/renewed"
    account 2 "$WORK/renewed"
    check_ok 'in a Pod: a renewed token is used' within "$LIMIT" generation 2
    check_ok 'in a Pod: and weir is still ready' within "$LIMIT" ready
    stopped pod
    if [[ -L $POD && $(readlink "$POD") == "$WORK/account" ]]; then rm "$POD"; fi
    stopped cluster
}

# in_container ROOT COMMAND...: as the container of the Deployment runs: its root has the image's files only and cannot be written
# to, /run/weir is an emptyDir, and the user is the base's.
in_container() {
    local root=$1
    shift
    # shellcheck disable=SC2016 # for the other shell
    exec env -i "PATH=$PATH" unshare --mount bash -c '
        mount --bind "$0" "$0" && mount --bind "$1" "$0$1" && mount -o remount,ro,bind "$0" &&
            mount -t tmpfs -o mode=0777 none "$0/run/weir" && cd "$0" && root=$0 && shift &&
            exec chroot --userspec=65532:65532 "$root" "$@"' "$root" "$WORK" "$@"
}

# weir ctl in the Pod, as `kubectl exec` starts it: by the container's user, in its namespaces, with nothing of its environment.
exec_in_the_pod() {
    local root=$WORK/root library
    if ! unshare --mount true 2>/dev/null; then
        echo 'skipped: weir ctl in a container: this user may not mount'
        return
    fi
    cluster
    mkdir -p "$root"{"$WORK",/run/weir,/etc} && install -m 0755 "$WEIR" "$root/weir"
    ldd "$WEIR" | grep -o '/[^ )]*' | while read -r library; do install -D "$library" "$root$library"; done
    chmod -R go+rX "$WORK"
    start container in_container "$root" /weir serve --kubeconfig "$WORK/etc/weir/kubeconfig" \
        --tls-cert-file "$WORK/etc/weir/tls/tls.crt" --tls-private-key-file "$WORK/etc/weir/tls/tls.key" "${anywhere[@]}"
    fronting container
    in_it() { env -i nsenter --target "${PIDS[container]}" --mount --root --wd=/ --setgid 65532 --setuid 65532 /weir "$@"; }
    check 'weir ctl in the Pod: it finds the socket' 'there is no lever in force' "$(in_it ctl list 2>&1)"
    check_match 'weir ctl in the Pod: a lever is set' '^lever 1 is in force for 10m' "$(in_it ctl block --user alice 2>&1)"
    check 'weir ctl in the Pod: it is in force at once' 429 "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
    check_match 'weir ctl in the Pod: and ended' 'lever 1' "$(in_it ctl undo 1 2>&1)"
    check 'weir ctl in the Pod: which is in force, too' 200 "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
    check_match 'weir status in the Pod: it finds weir' 'now: ' "$(in_it status --admin "http://$ADMIN" 2>&1)"
    stopped container
    stopped cluster
}

unit() {
    local exposure
    check_ok 'the unit: systemd rates its exposure at 2.0 at most' \
        systemd-analyze security --offline=true --threshold=20 --no-pager "$ROOT/deploy/weir.service"
    exposure=$(systemd-analyze security --offline=true --no-pager "$ROOT/deploy/weir.service" | sed -n 's/.*exposure level for weir.service: \([0-9.]*\).*/\1/p')
    check_match "the unit: which is $exposure" '^[01]\.[0-9]$|^2\.0$' "$exposure"
}

kustomized
unit
in_a_pod
exec_in_the_pod
summary
