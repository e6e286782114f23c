# shellcheck shell=bash
# Shared by the scripts of this folder: playgrounds in their own folders, checks that print the
# expected and the actual value, and a cleanup that stops all started processes.
#
# A script sources this file, checks, and ends with `summary`, whose last line is `NAME: N passed, M
# failed`. Nothing sleeps for a fixed time: conditions are polled up to a limit. A missing tool ends
# the script as a failure.
#
# WEIR    the program under test (default: the release build of this checkout)
# NIGHTLY 1 also judges what compares two latencies, costs or rates: other load on the machine can spoil these (see `nightly`)
# TOOLS   where .ci/run puts Debian's kubectl and spdy-echo (default: target/tools)

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WEIR=${WEIR:-$ROOT/target/release/weir}
TOOLS=${TOOLS:-$ROOT/target/tools}
SCRIPT=$(basename "$0")
WORK=$(mktemp -d)

# Limit in seconds for everything. Whatever takes longer hangs.
LIMIT=30

passed=0
failed=0
declare -A PIDS=()

# kubectl keeps caches at home, and must not find anybody's own configuration. The toolchain stays where it is.
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
export HOME=$WORK
unset KUBECONFIG KUBERNETES_SERVICE_HOST HTTPS_PROXY RUNTIME_DIRECTORY XDG_STATE_HOME https_proxy
export XDG_RUNTIME_DIR=$WORK
export LC_ALL=C

cleanup() {
    local code=$? pid
    for pid in "${PIDS[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    if ((code != 0)); then
        printf -- '--- %s ended with %s; the last lines of what it ran:\n' "$SCRIPT" "$code"
        tail -n 15 "$WORK"/*.err 2>/dev/null || true
    fi
    rm -rf "$WORK"
}
trap cleanup EXIT

# die WHAT: ends the script as failed.
die() {
    printf '%s: %s\n' "$SCRIPT" "$*"
    printf '%s: %s passed, %s failed\n' "$SCRIPT" "$passed" "$((failed + 1))"
    exit 1
}

# need TOOL...: all of them are there.
need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || die "$tool is missing (.ci/run installs what is needed)"
    done
}

pass() {
    passed=$((passed + 1))
    printf 'ok      %s\n' "$1"
}

# fail WHAT EXPECTED GOT
fail() {
    failed=$((failed + 1))
    printf 'FAILED  %s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"
}

# check WHAT EXPECTED GOT: they are the same.
check() {
    if [[ $3 == "$2" ]]; then pass "$1"; else fail "$1" "$2" "$3"; fi
}

# check_match WHAT REGEX GOT: it matches, somewhere.
check_match() {
    if [[ $3 =~ $2 ]]; then pass "$1"; else fail "$1" "something like $2" "$3"; fi
}

# check_no_match WHAT REGEX GOT
check_no_match() {
    if [[ $3 =~ $2 ]]; then fail "$1" "nothing like $2" "$3"; else pass "$1"; fi
}

# check_between WHAT LEAST MOST GOT: a whole number within bounds.
check_between() {
    if [[ $4 =~ ^[0-9]+$ ]] && (($4 >= $2 && $4 <= $3)); then
        pass "$1 ($4)"
    else
        fail "$1" "$2 to $3" "$4"
    fi
}

# check_ok WHAT COMMAND...: it succeeds; prints what it said if not.
check_ok() {
    local what=$1 said code=0
    shift
    said=$("$@" 2>&1) || code=$?
    if ((code == 0)); then pass "$what"; else fail "$what" "success" "exit code $code: $said"; fi
}

# summary: the last line, and the exit code.
summary() {
    printf '%s: %s passed, %s failed\n' "$SCRIPT" "$passed" "$failed"
    ((failed == 0)) || exit 1
}

# within SECONDS COMMAND...: until the command succeeds; fails when the time is up.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > end)); then
            "$@" >/dev/null 2>&1 # once more: perhaps it was us who were not there
            return
        fi
        sleep 0.05
    done
}

# free_port: a port that nobody listens on. It is none of those that the system gives to connections and for port 0, so that
# nobody gets it by chance until it is used.
free_port() {
    local port
    until port=$((10000 + RANDOM % 20000)) && ! : 2>/dev/null <>"/dev/tcp/127.0.0.1/$port"; do :; done
    printf '%s' "$port"
}

# nightly: whether latencies, costs and rates are compared. They are measured and printed either way.
nightly() {
    [[ ${NIGHTLY:-} == 1 ]]
}

# soon SECONDS: how long to wait for what comes within so many seconds on a machine with nothing else to do.
soon() {
    if nightly; then printf '%s' "$1"; else printf '%s' "$(($1 + LIMIT))"; fi
}

# start NAME COMMAND...: runs it beside; what it says goes to $WORK/NAME.out and $WORK/NAME.err.
start() {
    local name=$1
    shift
    : >"$WORK/$name.out" # what an earlier one said is gone before anybody looks
    : >"$WORK/$name.err"
    "$@" >>"$WORK/$name.out" 2>>"$WORK/$name.err" </dev/null &
    PIDS[$name]=$!
}

# ended NAME: it runs no longer.
ended() {
    ! kill -0 "${PIDS[$1]}"
}

# finish NAME [SECONDS]: waits for its end; STATUS is its exit code, or says that it hangs.
finish() {
    if within "${2:-$LIMIT}" ended "$1"; then
        STATUS=0
        { wait "${PIDS[$1]}" || STATUS=$?; } 2>/dev/null
        unset "PIDS[$1]"
    else
        STATUS="still running after ${2:-$LIMIT} s"
    fi
}

# signal NAME SIGNAL
signal() {
    kill "-$2" "${PIDS[$1]}"
}

# playground NAME FLAG...: starts one in $WORK/NAME and waits until it serves. Sets DIR, ADDRESS, URL and ADMIN.
playground() {
    local name=$1
    shift
    DIR=$WORK/$name
    start "$name" "$WEIR" playground --dir "$DIR" --secure-port 0 --admin-address 127.0.0.1:0 "$@"
    serving "$name"
}

# apiserver NAME PORT [FLAG...]: only the API server. Sets DIR and ADDRESS.
apiserver() {
    local name=$1 port=$2
    shift 2
    DIR=$WORK/$name
    rm -f "$DIR/ready" # an earlier one's
    start "$name" "$WEIR" playground --apiserver-only --dir "$DIR" --secure-port "$port" "$@"
    serving "$name"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
ready_or_ended() {
    [[ -e $DIR/ready ]] || ended "$1"
}

serving() {
    within "$LIMIT" ready_or_ended "$1" || die "$1 is not ready after $LIMIT s"
    [[ -e $DIR/ready ]] || die "$1 has ended: $(tail -n 5 "$WORK/$1.err")"
    ADDRESS=$(<"$DIR/address")
    URL=https://$ADDRESS
    ADMIN=
    if [[ -e $DIR/admin-address ]]; then ADMIN=$(<"$DIR/admin-address"); fi
}

# shellcheck disable=SC2317,SC2329 # called by `within`
logged_or_ended() {
    grep -q "$2" "$WORK/$1.err" || ended "$1"
}

# weir NAME UPSTREAM [FLAG...]: `weir serve` before the API server at UPSTREAM, with the certificates of $DIR. Sets
# ADDRESS, URL and ADMIN, and makes $DIR/kubeconfig lead to it.
weir() {
    local name=$1 upstream=$2
    shift 2
    start "$name" "$WEIR" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
        --client-ca-file "$DIR/ca.crt" --token-auth-file "$DIR/tokens.csv" \
        --upstream "https://$upstream" --upstream-ca-file "$DIR/ca.crt" \
        --proxy-client-cert-file "$DIR/front-proxy-client.crt" \
        --proxy-client-key-file "$DIR/front-proxy-client.key" "$@"
    fronting "$name"
    sed -i "s#server: .*#server: \"$URL\"#" "$DIR/kubeconfig"
}

# fronting NAME: waits until the `weir serve` that was started by that name serves. Sets ADDRESS, URL and ADMIN.
fronting() {
    local line
    within "$LIMIT" logged_or_ended "$1" 'serving clients=' || die "$1 does not serve after $LIMIT s"
    line=$(grep 'serving clients=' "$WORK/$1.err") || die "$1 has ended: $(tail -n 5 "$WORK/$1.err")"
    [[ $line =~ clients=([^ ]+)\ admin=([^ ]+) ]] || die "$1 does not say where it serves: $line"
    ADDRESS=${BASH_REMATCH[1]/#0.0.0.0:/127.0.0.1:}
    ADMIN=${BASH_REMATCH[2]}
    URL=https://$ADDRESS
}

# cluster: the playground's API server, for a cluster of somebody's own, and its files in $WORK/etc under the names that
# the README and examples/ have for them. Sets DIR and UPSTREAM; `placed` makes the names real.
cluster() {
    local etc=$WORK/etc folder
    apiserver cluster 0
    UPSTREAM=$ADDRESS
    mkdir -p "$etc"/kubernetes/pki "$etc"/weir/{pki,tls} "$HOME/.kube"
    cp "$DIR"/{ca,apiserver,front-proxy-client}.crt "$DIR"/{apiserver,front-proxy-client}.key "$etc/kubernetes/pki/"
    cp "$DIR/service-account.pub" "$etc/kubernetes/pki/sa.pub"
    for folder in pki tls; do cp "$DIR"/tls.{crt,key} "$etc/weir/$folder/"; done
    sed 's/^\(- name\|current-context\): admin$/\1: prod/; s/user: admin$/user: prod/' "$DIR/kubeconfig" >"$HOME/.kube/config"
    cp "$HOME/.kube/config" "$etc/weir/kubeconfig"
}

# placed: what is read, with the paths and the address of `cluster`.
placed() {
    sed "s#/etc/\(kubernetes\|weir\)\([/ ]\|$\)#$WORK/etc/\1\2#g; s#127\.0\.0\.1:6443#$UPSTREAM#; s#192\.0\.2\.10#127.0.0.1#"
}

# anywhere: flags that leave ports and the form of the log to the script.
# shellcheck disable=SC2034 # used by the scripts
anywhere=(--secure-port 0 --admin-address 127.0.0.1:0 --logging-format text)

# dawdling: flags for clients that send nothing for a while on purpose: their bodies go on as they come, at any rate.
# shellcheck disable=SC2034 # used by the scripts
dawdling=(--request-body-buffer 0 --min-transfer-rate 0)

# stopped NAME: SIGTERM, and exit code 0.
stopped() {
    signal "$1" TERM
    finish "$1"
    check "$1 ends with 0 on SIGTERM" 0 "$STATUS"
}

# token USER
token() {
    awk -F, -v user="$1" '$2 == user {print $1}' "$DIR/tokens.csv"
}

# bearer USER: the header's line.
bearer() {
    printf 'Authorization: Bearer %s' "$(token "$1")"
}

# get [ARGUMENT...] PATH: curl, with the CA; the last argument is a path.
get() {
    curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" "${@:1:$#-1}" "$URL${*: -1}"
}

# series NAME{LABELS}: its value in the metrics that are read; 0 where it is not there yet.
series() {
    awk -v series="$1 " 'index($0, series) == 1 {found = $NF} END {print found + 0}'
}

# peer_certificates NAME: a CA and a certificate for all replicas, with this name, in $WORK.
peer_certificates() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=peers \
        -keyout "$WORK/peer-ca.key" -out "$WORK/peer-ca.crt" 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
        -keyout "$WORK/peer.key" -out "$WORK/peer.csr" 2>/dev/null
    printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$1" >"$WORK/peer.ext"
    openssl x509 -req -days 1 -in "$WORK/peer.csr" -CA "$WORK/peer-ca.crt" -CAkey "$WORK/peer-ca.key" -set_serial 1 \
        -extfile "$WORK/peer.ext" -out "$WORK/peer.crt" 2>/dev/null
}

# metric NAME{LABELS}: the value of one series now. Nothing, if the reference of metrics has no such name.
metric() {
    local name=${1%%\{*} family
    family=$(sed -E 's/_(bucket|sum|count)$//' <<<"$name")
    if ! grep -qE "^\| \`($name|$family)\` " "$ROOT/docs/reference/metrics.md"; then
        echo "weir has no metric $name" >&2
        return
    fi
    curl -sS --max-time 10 "http://$ADMIN/metrics" | series "$1"
}

# silent_about 'SEVERITY NAME': where this alarm does not show, of all places that show alarms.
silent_about() {
    local severity=${1% *} name=${1#* } nl=$'\n' said
    said=$nl$("$WEIR" status --admin "http://$ADMIN" 2>&1 || true)
    [[ $said =~ ${nl}"alarm: $1 "(of\ [^ ]+\ )?for ]] || printf 'weir status, '
    said=$(curl -sS --max-time 10 "http://$ADMIN/status.json" 2>&1 || true)
    jq -e --arg is "$1" 'any(.alarms[]; "\(.severity) \(.name)" == $is)' <<<"$said" >/dev/null 2>&1 || printf '/status.json, '
    said=$nl$(curl -sS --max-time 10 "http://$ADMIN/readyz?verbose" 2>&1 || true)
    [[ $said == *"${nl}[-]$name failed"* ]] || printf '/readyz, '
    [[ $(metric "weir_alarm{alarm=\"$name\",severity=\"$severity\"}") == 1 ]] || printf '/metrics, '
}

# shellcheck disable=SC2317,SC2329 # called by `within`
alarmed() {
    [[ -z $(silent_about "$1") ]]
}

# check_alarm WHAT 'SEVERITY NAME': weir status, /status.json, /readyz?verbose and /metrics show this alarm, soon.
check_alarm() {
    if within "$LIMIT" alarmed "$2"; then pass "$1: the alarm $2"; else fail "$1: the alarm $2" 'everywhere' "not in $(silent_about "$2")"; fi
}

# shellcheck disable=SC2317,SC2329 # called by `within`
at_zero() {
    [[ $(metric "$1") == 0 ]]
}

# kubectls: the kubectl of this machine, where there is one, and Debian's.
kubectls() {
    command -v kubectl || true
    [[ -x $TOOLS/kubectl ]] || die "$TOOLS/kubectl is missing (.ci/run unpacks it)"
    printf '%s\n' "$TOOLS/kubectl"
}

# minor KUBECTL: 20 for 1.20.
minor() {
    "$1" version --client -o json | sed -n 's/.*"gitVersion": *"v1\.\([0-9]*\).*/\1/p'
}
