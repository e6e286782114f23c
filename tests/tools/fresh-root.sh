#!/usr/bin/env bash
# The README's two commands in a fresh Debian 12: a root that has nothing but the README's apt-get line and this machine's Rust
# toolchain. The commands and the line are read from the README, and the checkout is a copy without a build.
#
# By night only: it is a release build, and a build and a run of all tests. Needs root with CAP_SYS_ADMIN.
#
# Usage: fresh-root.sh [run] [tests]

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
if ! nightly; then
    printf 'NOT RUN: by night only (NIGHTLY=1)\n'
    summary
    exit
fi
need apt-config apt-get chroot debootstrap tar unshare

FRESH=$WORK/root
CHECKOUT=$FRESH/root/weir

# documented REGEX: the README's first line that begins so.
documented() {
    grep -m 1 -E "^$1" "$ROOT/README.md" || die "README.md has no line that begins with $1" >&2
}
APT=$(documented 'sudo apt-get install ')
RUN=$(documented 'cargo run ')
TEST=$(documented 'cargo test')

# inside COMMAND: becomes a line of the README, in the checkout. What is mounted is there for this command only: nothing of the
# machine is reachable for what deletes $WORK.
inside() {
    # shellcheck disable=SC2016 # expanded by the shell that has the mounts
    exec unshare --mount --pid --fork --kill-child bash -euc '
        mount --rbind /dev "$1/dev"
        mount -t proc proc "$1/proc"
        mount --bind "$CARGO_HOME" "$1/root/.cargo"
        mount --bind "$RUSTUP_HOME" "$1/root/.rustup"
        exec chroot "$1" env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive CARGO_TERM_COLOR=never \
            CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}" CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-0}" \
            ${RUSTUP_TOOLCHAIN:+RUSTUP_TOOLCHAIN="$RUSTUP_TOOLCHAIN"} PATH=/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            bash -euc "sudo() { \"\$@\"; }; cd /root/weir; $2"
    ' inside "$FRESH" "$1"
}

# The mirror, its proxy and the CAs are those of this machine.
debian() {
    local mirror
    # shellcheck disable=SC2016 # a field of apt-get's
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    debootstrap --variant=minbase bookworm "$FRESH" "${mirror:-https://deb.debian.org/debian}"
    mkdir -p "$CHECKOUT" "$FRESH"/root/.{cargo,rustup} "$FRESH/usr/local/share/ca-certificates"
    { apt-config dump | grep '^Acquire::'; echo 'APT::Get::Assume-Yes "true";'; } >"$FRESH/etc/apt/apt.conf"
    cp -r /usr/local/share/ca-certificates/. "$FRESH/usr/local/share/ca-certificates/"
    tar -C "$ROOT" --exclude=target --exclude=./.git -c . | tar -C "$CHECKOUT" -x
}

# shellcheck disable=SC2317,SC2329 # called by `within`
playground_is_ready() {
    [[ -e $DIR/ready ]] || ended run
}

run() {
    local from=$SECONDS
    DIR=$CHECKOUT/target/playground
    start run inside "$RUN"
    within 1800 playground_is_ready || true
    check_ok "it is ready after $((SECONDS - from)) s" test -e "$DIR/ready"
    if [[ ! -e $DIR/ready ]]; then
        tail -n 20 "$WORK/run.err"
        return
    fi
    URL=https://$(<"$DIR/address")
    check 'weir answers' 200 "$(get -H "$(bearer alice)" -o /dev/null -w '%{http_code}' /api/v1/nodes)"
}

# How many tests `cargo test` says that have PASSED, FAILED or been IGNORED.
counted() {
    awk -v what="$1;" '/^test result: / {for (i = 2; i <= NF; i++) if ($i == what) sum += $(i - 1)} END {print sum + 0}' "$WORK/test.out"
}

# The playground goes on, as with one who tries both commands. A test that lacks a tool fails by its name: none passes without
# having run.
tests() {
    local from=$SECONDS code=0
    (inside "$TEST") >"$WORK/test.out" 2>"$WORK/test.err" || code=$?
    printf 'cargo test: %s s: %s passed, %s failed, %s ignored\n' "$((SECONDS - from))" "$(counted passed)" "$(counted failed)" "$(counted ignored)"
    check 'cargo test ends with 0' 0 "$code"
    if ((code != 0)); then
        grep -E '^test .* FAILED$|panicked at' -A 2 "$WORK/test.out" | head -n 60 || true
        tail -n 20 "$WORK/test.err"
    fi
}

check_ok 'a fresh Debian 12' debian
check_ok 'its lists of packages' inside 'apt-get update -qq'
check_ok 'the README has all that it needs' inside "$APT"
sections=("$@")
if (($# == 0)); then sections=(run tests); fi
for section in "${sections[@]}"; do "$section"; done
summary
