#!/usr/bin/env bash
# Makes what a release consists of, in target/release-files:
#
#   weir-VERSION-TARGET.tar.gz         program, completions, manual pages, systemd units, examples, kubeadm files, licences, SBOM
#   weir-VERSION-TARGET-debug.tar.gz   the program's line tables, for gdb and for symbolized stacks
#   weir_VERSION-1_ARCHITECTURE.deb    the same for Debian and Ubuntu, with a user and /etc/weir/weir.yaml
#   weir-VERSION-TARGET-oci.tar        an OCI image layout: VERSION, and VERSION-playground with the API server in memory
#   weir-VERSION-TARGET.cdx.json       the SBOM (CycloneDX)
#   SHA256SUMS
#
# Usage: deploy/release.sh [--target TRIPLE] [--host-libc] [--program WEIR] [--playground-program WEIR] [--output FOLDER]
#
# Two runs at one commit, with the same tools, make the same bytes, whatever the checkout and the target folder are called
# (tests/tools/package.sh compares them by night). Then a user need not trust the machine that built a release, and two builders can
# compare. So paths are mapped, times are the commit's, and the program is not guided by a profile, which no two runs of
# deploy/build.sh have alike. RELEASING.md says what to do with the files.
#
# --target TRIPLE   default: this machine's
# --host-libc       link this machine's glibc instead of 2.28 by Zig: the program then needs this machine's or a newer one
# --program WEIR    package this program, built without the playground; nothing is compiled, and its glibc is not checked
# --playground-program WEIR   the same for the second image; default: that of --program, or built
# CARGO_PROFILE_DIST_...      changes the profile, such as CARGO_PROFILE_DIST_LTO=off for a trial
#
# Needs: python3, cargo-deb, dpkg-shlibdeps, objcopy (LLVM's for another architecture), readelf, xz; to build also cargo-zigbuild and Zig:
#   cargo install --locked cargo-deb@3.8.0
#   pip install --requirement deploy/release/requirements.txt
set -euo pipefail
cd "$(dirname "$0")/.."

# RHEL 8, Amazon Linux 2023 (2.34) and Ubuntu 20.04 (2.31) have this glibc or a newer one.
GLIBC=2.28
FEATURES=(--no-default-features --features 'otlp,shared-limits,tools')

target=$(rustc -vV | sed -n 's/^host: //p')
host=$target
output=$PWD/target/release-files
program='' playground_program='' host_libc=''

die() {
    printf 'release.sh: %s\n' "$*" >&2
    exit 2
}

while (($#)); do
    case $1 in
    --host-libc) host_libc=1 ;;
    --target | --program | --playground-program | --output)
        (($# > 1)) || die "$1 needs a value"
        case $1 in
        --target) target=$2 ;;
        --program) program=$(realpath "$2") ;;
        --playground-program) playground_program=$(realpath "$2") ;;
        --output) output=$(realpath -m "$2") ;;
        esac
        shift
        ;;
    *) die "unknown argument $1; usage: deploy/release.sh [--target TRIPLE] [--host-libc] [--program WEIR] [--playground-program WEIR] [--output FOLDER]" ;;
    esac
    shift
done
case $target in
x86_64-unknown-linux-gnu) architecture=amd64 ;;
aarch64-unknown-linux-gnu) architecture=arm64 ;;
*) die "cannot package for $target: x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu" ;;
esac

# The plain objcopy of binutils reads its own architecture only.
objcopy=${OBJCOPY:-}
for found in llvm-objcopy-19 llvm-objcopy objcopy; do
    [[ -n $objcopy ]] || objcopy=$(command -v "$found" || true)
done
for tool in python3 cargo-deb dpkg-shlibdeps readelf gzip xz "${objcopy:-objcopy}"; do
    command -v "$tool" >/dev/null || die "$tool is missing (the first lines of $0 say where it is from)"
done

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# What is neither in the commit nor ignored would be in the files without being in the tag.
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) || die 'no commit here: set SOURCE_DATE_EPOCH to the release'\''s time'
fi
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
if [[ -n $(git status --porcelain 2>/dev/null) ]]; then
    revision=$revision-dirty
    echo 'release.sh: the checkout has changes that are not committed: this is a trial, not a release' >&2
fi
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

# build FOLDER PROFILE [flag of cargo build ...]: sets `built`. Paths of this machine are named /weir, /target and /cargo in
# the program.
build() {
    local folder=$1 profile=$2 home=${CARGO_HOME:-$HOME/.cargo} old new paths flags='' tool=(cargo build) triple=$target
    shift 2
    # The compiler takes the last one that fits: the target folder may be in the checkout.
    paths=("$home=/cargo" "$PWD=/weir" "$folder=/target")
    for old in "${paths[@]}"; do
        flags+=" --remap-path-prefix=$old"
        new+=" -ffile-prefix-map=$old"
    done
    if [[ -z $host_libc ]]; then
        tool=(cargo zigbuild)
        triple=$target.$GLIBC
        # Zig's own objects depend on where it was first run, and would be kept in the user's cache.
        # A Python that has Zig would be preferred to the wrapper, which calls it.
        export CARGO_ZIGBUILD_PYTHON_PATH=/nonexistent
        export CARGO_ZIGBUILD_ZIG_PATH=$PWD/deploy/release/zig.sh CARGO_ZIGBUILD_CACHE_DIR=$folder/zigbuild
        export ZIG_GLOBAL_CACHE_DIR=$folder/zig ZIG_LOCAL_CACHE_DIR=$folder/zig
    fi
    CARGO_INCREMENTAL=0 RUSTFLAGS="${RUSTFLAGS:-}$flags" CFLAGS="${CFLAGS:-}$new" CXXFLAGS="${CXXFLAGS:-}$new" \
        "${tool[@]}" --locked --target "$triple" --target-dir "$folder" --profile "$profile" --bin weir "$@"
    built=$folder/$target/$profile/weir
}

# The newest glibc that a program asks for is at most GLIBC, and it needs no library but glibc's.
check_glibc() {
    local newest library
    newest=$(readelf --version-info --wide "$1" | grep -o 'GLIBC_[0-9.]*' | sort --unique --version-sort | tail -n 1)
    printf 'glibc: %s needs %s\n' "$(basename "$1")" "${newest#GLIBC_}"
    [[ -n $host_libc || $(printf '%s\n' "$GLIBC" "${newest#GLIBC_}" | sort --version-sort | tail -n 1) == "$GLIBC" ]] ||
        die "the program needs glibc ${newest#GLIBC_}; it may need $GLIBC at most"
    [[ -z $host_libc ]] || return 0
    while read -r library; do
        case $library in
        libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | ld-linux-*) ;;
        *) die "the program needs $library, which the package does not depend on" ;;
        esac
    done < <(readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p')
}

variant=()
if [[ -z $program ]]; then
    if [[ -z $host_libc ]]; then
        variant=(--variant oldest-glibc)
        grep -qF "\"libc6 (>= $GLIBC)," Cargo.toml || die "the variant oldest-glibc of Cargo.toml needs another glibc than $GLIBC"
        for tool in cargo-zigbuild zig; do
            command -v "$tool" >/dev/null || [[ $tool == zig && $(python3 -m ziglang version 2>/dev/null) ]] ||
                die "$tool is missing: pip install --requirement deploy/release/requirements.txt; or --host-libc"
        done
    fi
    folder=${CARGO_TARGET_DIR:-$PWD/target}/release-build
    build "$folder" dist "${FEATURES[@]}"
    program=$built
    check_glibc "$program"
    # For trying things out, and not measured by anyone: not worth the minutes of link-time optimization.
    if [[ -z $playground_program ]]; then
        build "$folder-playground" release --features otlp,playground,shared-limits,tools
        playground_program=$built
        check_glibc "$playground_program"
    fi
fi
playground_program=${playground_program:-$program}

rm -rf "$output" target/release-stage
mkdir -p "$output" target/release-stage
stage=$PWD/target/release-stage
name=weir-$version-$target

# --- The program, and its debug information in a file of its own, which gdb finds by the link.
"$objcopy" --only-keep-debug "$program" "$stage/weir.debug"
(cd "$stage" && "$objcopy" --strip-all --add-gnu-debuglink=weir.debug "$program" weir)
"$objcopy" --strip-all "$playground_program" "$stage/weir-playground"
chmod 755 "$stage/weir" "$stage/weir-playground"

# --- What the program says about itself. One for another architecture cannot be asked.
weir=$stage/weir
if [[ $target != "$host" ]]; then weir=${WEIR:?for another architecture, WEIR names the same version for this machine}; fi
[[ $("$weir" --version) == "weir $version" ]] || die "$weir is not weir $version"
mkdir -p "$stage"/{completions,man,systemd,examples}
"$weir" completions bash >"$stage/completions/weir.bash"
"$weir" completions zsh >"$stage/completions/_weir"
"$weir" completions fish >"$stage/completions/weir.fish"
"$weir" man "$stage/man"

# --- What it is made of.
python3 deploy/release/crates.py licences --target "$target" "${FEATURES[@]}" >"$stage/THIRD-PARTY-LICENCES.txt"
python3 deploy/release/crates.py sbom --target "$target" "${FEATURES[@]}" >"$stage/weir.cdx.json"

# --- Files of the checkout.
cp README.md CHANGELOG.md LICENSE "$stage/"
cp deploy/weir.service deploy/weir.socket "$stage/systemd/"
cp examples/bastion.yaml "$stage/examples/"
# At the paths of the checkout, which docs/deployment-kubeadm.md has.
mkdir -p "$stage/deploy"
cp -r deploy/kubeadm "$stage/deploy/"

# packed FILE FOLDER [name=]: a tar archive of FOLDER/name that depends on its contents alone.
packed() {
    tar --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --mtime="@$SOURCE_DATE_EPOCH" \
        --directory "$2" "$3" | gzip --no-name --best >"$output/$1"
}

mkdir -p "$stage/tar/$name" "$stage/tar/$name-debug"
cp -r "$stage"/{weir,README.md,CHANGELOG.md,LICENSE,THIRD-PARTY-LICENCES.txt,weir.cdx.json,completions,man,systemd,examples,deploy} \
    "$stage/tar/$name/"
cp "$stage/weir.debug" "$stage/tar/$name-debug/"
packed "$name.tar.gz" "$stage/tar" "$name"
packed "$name-debug.tar.gz" "$stage/tar" "$name-debug"
cp "$stage/weir.cdx.json" "$output/$name.cdx.json"

# --- The .deb, from Cargo.toml's [package.metadata.deb]: paths of a package, and pages and texts compressed as Debian has them.
deb=$stage/deb
mkdir -p "$deb/man"
# Only comments and paths differ from deploy/weir.service: its first lines say how to install by hand.
sed -e '2,/^$/d' -e 's#/usr/local/bin/weir#/usr/bin/weir#; s#config\.yaml#weir.yaml#' \
    deploy/weir.service >"$deb/weir.service"
sed -e '2,/^$/d' deploy/weir.socket >"$deb/weir.socket"
sed 's#/etc/weir/config.yaml#/etc/weir/weir.yaml#; s#deploy/weir\.service#weir.service#' examples/bastion.yaml >"$deb/weir.yaml"
for page in "$stage"/man/*; do gzip --no-name --best --stdout "$page" >"$deb/man/$(basename "$page").gz"; done
gzip --no-name --best --stdout CHANGELOG.md >"$deb/changelog.gz"
gzip --no-name --best --stdout "$stage/THIRD-PARTY-LICENCES.txt" >"$deb/THIRD-PARTY-LICENCES.txt.gz"
find "$stage" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
cargo deb --quiet --compress-system --no-build --no-strip --target "$target" "${variant[@]}" --deb-revision 1 \
    --output "$output/weir_$version-1_$architecture.deb"

# --- The images. Their libraries are those of this machine's packages.
if [[ $target == "$host" ]]; then
    python3 deploy/release/oci.py --output "$output/$name-oci.tar" --version "$version" --architecture "$architecture" \
        --revision "$revision" --program "$stage/weir" --playground-program "$stage/weir-playground" \
        --document LICENSE --document "$stage/THIRD-PARTY-LICENCES.txt" --document "$stage/weir.cdx.json"
else
    echo 'release.sh: no image: run this on a machine of that architecture, whose libraries it takes' >&2
fi

(cd "$output" && sha256sum -- weir* >SHA256SUMS && cat SHA256SUMS)
