#!/usr/bin/env bash
# What deploy/release.sh makes, as a new user meets it: checksums, tarball, licences and SBOM; the images, whose playground
# serves from its own files alone; and the .deb, installed, set up, started as its unit does, upgraded, removed and purged.
#
# By day the program under test is packaged as it is. By night the release is built twice, in two checkouts and with two
# target folders, and both have the same checksums; CARGO_PROFILE_DIST_... may make these builds cheaper.
#
# Nothing of this machine changes: the package is installed in an overlay of its root that is thrown away.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
export PATH=$TOOLS/bin:$TOOLS/python/bin:$PATH PYTHONPATH=$TOOLS/python
need cargo-deb chroot curl dpkg dpkg-deb gzip jq python3 readelf setpriv systemd-analyze tar unshare
((EUID == 0)) || die 'this script mounts an overlay and changes its root: run it as root'

VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml" | head -n 1)
TARGET=$(rustc -vV | sed -n 's/^host: //p')
NAME=weir-$VERSION-$TARGET
FILES=$WORK/files

# --- Files

tarball() {
    local folder=$WORK/unpacked/$NAME listed
    check_ok 'the checksums fit' bash -c "cd '$FILES' && sha256sum --check --strict SHA256SUMS"
    check '... and name every file' "$(cd "$FILES" && printf '%s\n' weir* | sort)" \
        "$(awk '{print $2}' "$FILES/SHA256SUMS" | sort)"
    mkdir -p "$WORK/unpacked"
    tar -xzf "$FILES/$NAME.tar.gz" -C "$WORK/unpacked"
    listed=$(tar --numeric-owner --full-time -tvzf "$FILES/$NAME.tar.gz")
    check 'the tarball: one owner and one time' 1 "$(awk '{print $2, $4, $5}' <<<"$listed" | sort -u | wc -l)"
    check '... sorted' "$(awk '{print $6}' <<<"$listed" | sort)" "$(awk '{print $6}' <<<"$listed")"
    check '... no time in its gzip header' 00000000 "$(od -An -tx1 -j4 -N4 "$FILES/$NAME.tar.gz" | tr -d ' ')"
    check '... its files' 'CHANGELOG.md LICENSE README.md THIRD-PARTY-LICENCES.txt completions deploy examples man systemd weir weir.cdx.json' \
        "$(cd "$folder" && printf '%s\n' * | sort | paste -sd ' ')"
    check_ok '... the files of docs/deployment-kubeadm.md' diff -r "$ROOT/deploy/kubeadm" "$folder/deploy/kubeadm"
    check '... its program' "weir $VERSION" "$("$folder/weir" --version)"
    check_no_match '... is stripped' '\.symtab|\.debug_line' "$(readelf --sections --wide "$folder/weir")"
    check_match '... and names its debug file' '\.gnu_debuglink' "$(readelf --sections --wide "$folder/weir")"
    check_match '... which is a tarball of its own' "^$NAME-debug/weir.debug$" \
        "$(tar -tzf "$FILES/$NAME-debug.tar.gz" | tail -n 1)"
    check '... a manual page for each' "$("$WEIR" man "$WORK/man" && cd "$WORK/man" && printf '%s ' ./*)" "$(cd "$folder/man" && printf '%s ' ./*)"
    for shell in weir.bash _weir weir.fish; do check_ok "... completions: $shell" test -s "$folder/completions/$shell"; done
}

# Each crate of the SBOM is one of Cargo.lock, by its checksum, and has its licences.
bill_of_materials() {
    local bill=$FILES/$NAME.cdx.json licences=$WORK/unpacked/$NAME/THIRD-PARTY-LICENCES.txt
    check 'the SBOM: its form' 'CycloneDX 1.5 weir' "$(jq -r '"\(.bomFormat) \(.specVersion) \(.metadata.component.name)"' "$bill")"
    check_between '... crates' 100 500 "$(jq '.components | length' "$bill")"
    check '... each with the checksum of Cargo.lock' '' \
        "$(jq -r '.components[] | .hashes[0].content // "none"' "$bill" | sort | comm -23 - <(sed -n 's/^checksum = "\(.*\)"$/\1/p' "$ROOT/Cargo.lock" | sort))"
    check '... each with a licence' 0 "$(jq '[.components[] | select(.licenses[0].expression == "")] | length' "$bill")"
    check '... only what is linked' 0 "$(jq '[.components[] | select(.name | . == "ring" or . == "json-patch" or . == "criterion")] | length' "$bill")"
    check '... each dependency is a component' '' \
        "$(jq -r '.dependencies[].dependsOn[]' "$bill" | sort -u | comm -23 - <(jq -r '.components[].purl' "$bill" | sort))"
    check 'each crate is among the licences' '' \
        "$(jq -r '.components[] | "\(.name) \(.version)"' "$bill" | sort | comm -23 - <(awk 'NF >= 2 {print $1, $2}' "$licences" | sort -u))"
    check_match '... with the texts of code in other languages' 'aws-lc-sys [0-9.]+: aws-lc/LICENSE' "$(<"$licences")"
    check_match '... and of the standard library' "Rust's standard library" "$(<"$licences")"
}

# --- The images

# blob DESCRIPTOR: the file of what a descriptor names.
blob() {
    local digest
    digest=$(jq -r .digest <<<"$1")
    printf '%s/blobs/%s' "$LAYOUT" "${digest/://}"
}

# image TAG FOLDER: checks its configuration, and unpacks its layers into FOLDER.
image() {
    local tag=$1 folder=$2 manifest layer file configuration n=0
    manifest=$(jq -c --arg tag "$tag" '.manifests[] | select(.annotations["org.opencontainers.image.ref.name"] == $tag)' "$LAYOUT/index.json")
    manifest=$(<"$(blob "$manifest")")
    configuration=$(<"$(blob "$(jq -c .config <<<"$manifest")")")
    check "$tag: user" 65532:65532 "$(jq -r .config.User <<<"$configuration")"
    check "$tag: entry point" /usr/bin/weir "$(jq -r '.config.Entrypoint | join(" ")' <<<"$configuration")"
    check "$tag: its version is a label" "$VERSION" "$(jq -r '.config.Labels["org.opencontainers.image.version"]' <<<"$configuration")"
    check_match "$tag: packages of its libraries" 'libc6=[0-9]' "$(jq -r '.config.Labels["weir.debian-packages"]' <<<"$configuration")"
    check_match "$tag: how to ask for its health" 'readyz' "$(jq -r '.config.Labels["org.opencontainers.image.description"]' <<<"$configuration")"
    mkdir -p "$folder"
    while read -r layer; do
        file=$(blob "$layer")
        check "$tag: size of layer $n" "$(jq -r .size <<<"$layer")" "$(stat -c %s "$file")"
        check "$tag: digest of layer $n unpacked" "$(jq -r ".rootfs.diff_ids[$n]" <<<"$configuration")" \
            "sha256:$(gzip -dc "$file" | sha256sum | cut -d ' ' -f 1)"
        tar -xzf "$file" -C "$folder" --numeric-owner --same-owner --same-permissions
        n=$((n + 1))
    done < <(jq -c '.layers[]' <<<"$manifest")
    check "$tag: layers" 2 "$n"
    check "$tag: nothing runs with another's rights" '' "$(find "$folder" -perm /6000)"
    COMMAND=$(jq -r '(.config.Entrypoint + .config.Cmd) | join(" ")' <<<"$configuration")
}

# shellcheck disable=SC2086 # COMMAND is words
images() {
    local file root=$WORK/playground-image
    LAYOUT=$WORK/layout
    mkdir "$LAYOUT"
    tar -xf "$FILES/$NAME-oci.tar" -C "$LAYOUT"
    check 'the layout: its version' 1.0.0 "$(jq -r .imageLayoutVersion "$LAYOUT/oci-layout")"
    for file in "$LAYOUT"/blobs/sha256/*; do
        check "a blob has its digest for a name" "$(basename "$file")" "$(sha256sum <"$file" | cut -d ' ' -f 1)"
    done
    image "$VERSION" "$WORK/image"
    check 'the first image serves' '/usr/bin/weir serve' "$COMMAND"
    check 'it runs with what is in it' "weir $VERSION" \
        "$(chroot --userspec=65532:65532 "$WORK/image" /usr/bin/weir --version 2>&1)"
    check 'it has the CA certificates of the package' "$(cat /usr/share/ca-certificates/mozilla/*.crt | sha256sum)" \
        "$(sha256sum <"$WORK/image/etc/ssl/certs/ca-certificates.crt")"

    image "$VERSION-playground" "$root"
    # The ports of this machine may be taken. The rest is the image's own command.
    start image unshare --mount --propagation private sh -c "mkdir '$root/proc' && mount --rbind /proc '$root/proc' &&
        exec chroot --userspec=65532:65532 '$root' ${COMMAND/0.0.0.0:6480/0.0.0.0:0} --secure-port 0"
    DIR=$root/playground
    serving image
    check_match 'the playground is reached by the loopback, where its port is published' '^127\.0\.0\.1:[0-9]+$' "$ADDRESS"
    check '... its kubeconfig says so' "\"$URL\"" "$(awk '$1 == "server:" {print $2}' "$DIR/kubeconfig")"
    check '... it serves' NodeList "$(get -H "$(bearer alice)" /api/v1/nodes | jq -r .kind)"
    check_match '... and the status page answers' '<title>' "$(curl -sS --max-time 10 "http://$ADMIN/")"
    stopped image
}

# --- The package

# inside COMMAND...: in the overlay of this machine's root.
inside() {
    nsenter --mount="/proc/${PIDS[overlay]}/ns/mnt" chroot "$OVERLAY/root" "$@"
}

# overlay: a mount namespace that lives as long as the script, with this machine's root to write to.
overlay() {
    OVERLAY=$WORK/overlay
    mkdir "$OVERLAY"
    # An overlay cannot lie on another one: its own files are in memory. What started systemd is not to be asked.
    start overlay unshare --mount --propagation private sh -euc "
        mount -t tmpfs none '$OVERLAY'
        mkdir '$OVERLAY/upper' '$OVERLAY/work' '$OVERLAY/root'
        mount -t overlay overlay -o 'lowerdir=/,upperdir=$OVERLAY/upper,workdir=$OVERLAY/work' '$OVERLAY/root'
        mount --rbind /proc '$OVERLAY/root/proc'
        mount --rbind /dev '$OVERLAY/root/dev'
        mount -t tmpfs none '$OVERLAY/root/run'
        mkdir '$OVERLAY/root/run/lock'
        echo ready
        exec sleep infinity"
    within "$LIMIT" grep -q ready "$WORK/overlay.out" || die "no overlay: $(tail -n 3 "$WORK/overlay.err")"
    # What this machine has of weir itself is not to be in it.
    inside sh -c 'dpkg --purge weir >/dev/null 2>&1; userdel weir >/dev/null 2>&1; rm -rf /etc/weir /var/lib/weir /var/log/weir; true'
}

# configured: /etc/weir/weir.yaml as a user edits it, for the playground's API server.
configured() {
    local etc=$WORK/for-etc
    mkdir -p "$etc/pki"
    cp "$DIR"/tls.{crt,key} "$etc/pki/"
    cp "$DIR/kubeconfig" "$etc/kubeconfig"
    tar -C "$etc" -cf - . | inside sh -c 'tar -C /etc/weir --no-same-owner -xf - && chown -R root:weir /etc/weir && chmod -R u=rwX,g=rX,o= /etc/weir/pki /etc/weir/kubeconfig'
    inside sed -i 's/^securePort: .*/securePort: 0/; s/^adminAddress: .*/adminAddress: 127.0.0.1:0/; s/^healthAddress: .*/healthAddress: 127.0.0.1:0/
        s/^loggingFormat: .*/loggingFormat: text/; s/^shutdownDelayDuration: .*/shutdownDelayDuration: 0s/' /etc/weir/weir.yaml
}

# unit KEY: its value in the installed unit.
unit() {
    inside sed -n "s/^$1=//p" /usr/lib/systemd/system/weir.service
}

# shellcheck disable=SC2046,SC2086 # ExecStart= is words
package() {
    local deb
    deb=$FILES/weir_$VERSION-1_$(dpkg --print-architecture).deb
    overlay
    inside mkdir -p "$WORK"
    cp "$deb" "$WORK/weir.deb"
    check '/etc/weir/weir.yaml is a configuration of the user' /etc/weir/weir.yaml "$(dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles conffiles 2>/dev/null)"
    if nightly; then
        # The glibc that the documentation promises, not that of this machine.
        check 'the package: what it needs' 'libc6 (>= 2.28), passwd' "$(dpkg-deb --field "$deb" Depends)"
    else
        check_match 'the package: what it needs of glibc' 'libc6 \(>= 2\.[0-9]+\)' "$(dpkg-deb --field "$deb" Depends)"
    fi
    check '... and the files of docs/deployment-kubeadm.md' "$(cd "$ROOT" && find deploy/kubeadm -type f | sort)" \
        "$(dpkg-deb --contents "$deb" | sed -n 's#^-.* \./usr/share/doc/weir/\(deploy/kubeadm/.*\)#\1#p' | sort)"
    nsenter --mount="/proc/${PIDS[overlay]}/ns/mnt" cp "$WORK/weir.deb" "$OVERLAY/root/weir.deb"
    check_ok 'it is installed' inside dpkg --install /weir.deb
    check 'weir is on the path' "weir $VERSION" "$(inside weir --version)"
    check_match 'its user has no shell' '^weir:.*:/var/lib/weir:/usr/sbin/nologin$' "$(inside getent passwd weir)"
    check_ok 'systemd accepts the units' inside systemd-analyze verify --man=no /usr/lib/systemd/system/weir.service /usr/lib/systemd/system/weir.socket
    check 'the unit starts what is installed' '/usr/bin/weir serve --config /etc/weir/weir.yaml' "$(unit ExecStart)"
    check 'it is neither enabled nor started' '' "$(inside sh -c 'ls /etc/systemd/system/*.wants/weir.* 2>/dev/null; true')"
    check_match 'the configuration is commented' '^# weir in front of a managed control plane' "$(inside cat /etc/weir/weir.yaml)"

    apiserver cluster 0
    configured
    check_ok 'weir check accepts what the user made of it' inside setpriv --reuid=weir --regid=weir --init-groups \
        weir check --config /etc/weir/weir.yaml
    inside install -d -o weir -g weir -m 0700 /var/lib/weir
    inside install -d -o weir -g weir -m 0750 /var/log/weir
    start installed nsenter --mount="/proc/${PIDS[overlay]}/ns/mnt" chroot "$OVERLAY/root" \
        setpriv --reuid="$(unit User)" --regid="$(unit Group)" --init-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
        env HOME=/var/lib/weir $(unit ExecStart)
    fronting installed
    check 'started as the unit does, it serves' NodeList "$(get -H "$(bearer alice)" /api/v1/nodes | jq -r .kind)"
    check_match 'its page answers' '<title>' "$(curl -sS --max-time 10 "http://$ADMIN/")"

    # systemd does not run here: what the package's scripts ask it is answered by hand. `kill` is the shell's own.
    inside sh -c "mkdir -p /run/systemd/system &&
        printf '#!/bin/sh\necho \"\$@\" >>/run/asked\n[ \"\$1\" != show ] || echo %s\n' ${PIDS[installed]} >/usr/local/bin/systemctl &&
        chmod +x /usr/local/bin/systemctl"
    check_ok 'it is installed again' inside dpkg --install /weir.deb
    check_match 'the configuration stays as the user made it' 'securePort: 0' "$(inside cat /etc/weir/weir.yaml)"
    check_ok 'the new program takes over' within "$LIMIT" grep -q 'the new process serves' "$WORK/installed.err"
    check 'through an open port' NodeList "$(get -H "$(bearer alice)" /api/v1/nodes | jq -r .kind)"
    finish installed
    check 'the old one ends with 0' 0 "$STATUS"
    [[ $(grep 'the new process serves' "$WORK/installed.err") =~ pid=([0-9]+) ]] || die 'the new process does not say which it is'
    PIDS[successor]=${BASH_REMATCH[1]}
    signal successor TERM
    finish successor
    check_ok 'the new one ends on SIGTERM, too' grep -q 'shut down: remaining connections are closed' "$WORK/installed.err"

    inside rm /run/asked
    check_ok 'it is removed' inside dpkg --remove weir
    check 'its units are stopped and disabled first' 'disable --now weir.socket weir.service' "$(inside head -n 1 /run/asked)"
    check_ok '... without the program' inside test ! -e /usr/bin/weir
    check_ok '... but not the configuration' inside test -e /etc/weir/weir.yaml
    check_ok 'it is purged' inside dpkg --purge weir
    check_ok '... with the configuration' inside test ! -e /etc/weir/weir.yaml
    check_ok '... and what weir has written' inside test ! -e /var/lib/weir -a ! -e /var/log/weir
    check_ok '... not with keys that a user put there' inside test -e /etc/weir/pki/tls.key
}

# --- The builds

# Two checkouts and two target folders of different names, one after the other.
built_twice() {
    local n
    for n in one another; do
        git -C "$ROOT" worktree prune
        git clone --quiet --shared "$ROOT" "$WORK/checkout-$n"
        check_ok "release build: $n" env CARGO_TARGET_DIR="$WORK/built-$n" "$WORK/checkout-$n/deploy/release.sh" --output "$WORK/files-$n"
        check_no_match "... names no folder of this machine" "$WORK|$CARGO_HOME" \
            "$(grep -aoE "($WORK|$CARGO_HOME)[a-z0-9/._-]*" "$WORK/built-$n/release-build/$TARGET/dist/weir" | head -n 3 || true)"
        rm -rf "$WORK/built-$n"
    done
    check 'two builds: the same bytes' "$(<"$WORK/files-one/SHA256SUMS")" "$(<"$WORK/files-another/SHA256SUMS")"
    FILES=$WORK/files-one
    check_ok 'the debug file has line tables' bash -c \
        "tar -xOzf '$FILES/$NAME-debug.tar.gz' '$NAME-debug/weir.debug' >'$WORK/weir.debug' && readelf --sections --wide '$WORK/weir.debug' | grep -q '\.debug_line'"
    tar -xOzf "$FILES/$NAME.tar.gz" "$NAME/weir" >"$WORK/released"
    chmod +x "$WORK/released"
    WEIR=$WORK/released
}

# shellcheck disable=SC2016 # for the other shell
if nightly; then
    program=$WEIR
    built_twice
    tarball
    WEIR=$program # the released one has no playground
else
    check_ok 'the program under test is packaged' "$ROOT/deploy/release.sh" --program "$WEIR" --output "$FILES"
    tarball
fi
bill_of_materials
images
package
summary
