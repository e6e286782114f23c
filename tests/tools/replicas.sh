#!/usr/bin/env bash
# Three weirs divide a total of 60 slots, with Leases in the playground's API server and peer connections through a relay that can be
# stopped. A skewed load moves the shares; one weir is killed and one stopped, the connections and the Leases are taken away. At the API
# server there are never more requests in flight than the total and what docs/replicas.md states. Any replica shows all of them.
#
# NIGHTLY=1: each state lasts longer, and what is to come within some seconds has to.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk chromium curl jq openssl python3 wrk
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import websocket' || die 'python3-websocket is missing (.ci/run installs it)'

TOTAL=60
LEASE=6 # seconds
# The replicas' own requests count at the API server, too: a Lease, a list and a probe each.
OWN=9
HOLD=3
nightly && HOLD=60
declare -A ADMINS=() URLS=() PORTS=()
REPLICAS=(one two three)

# Credentials whose token can be spoilt: the API server then refuses the Leases, and everything else of weir's own.
credentials() {
    token admin >"$WORK/own-token"
    cat >"$WORK/own.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: play, cluster: {server: "https://$UPSTREAM", certificate-authority: "$DIR/ca.crt"}}]
contexts: [{name: play, context: {cluster: play, user: own}}]
current-context: play
users: [{name: own, user: {tokenFile: "$WORK/own-token"}}]
END
}

# replica NAME: a weir. It listens for its peers on 127.0.0.1, and they reach it by the relay on 127.0.0.2.
replica() {
    local name=$1
    start "$name" "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" --workers 1 \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" \
        --kubeconfig "$WORK/own.kubeconfig" --enable-priority-and-fairness=false --rejection-hold 0s \
        --max-requests-inflight "$TOTAL" --max-mutating-requests-inflight 30 --object-count-poll-period 0s \
        --replica-membership leases --replica-namespace kube-system --replica-name "$name" --replica-lease-duration "${LEASE}s" \
        --peer-bind-address 127.0.0.1 --peer-secure-port "${PORTS[$name]}" --peer-advertise-address 127.0.0.2 \
        --peer-cert-file "$WORK/peer.crt" --peer-key-file "$WORK/peer.key" --peer-ca-file "$WORK/peer-ca.crt" \
        --peer-allowed-names weir-peer
    fronting "$name"
    ADMINS[$name]=$ADMIN
    URLS[$name]=$URL
}

# relay: carries connections from 127.0.0.2 to the same port of 127.0.0.1.
relay() {
    start relay python3 -c '
import asyncio, sys

async def pipe(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    writer.close()

def carry(port):
    async def one(reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))
    return one

async def main():
    for port in sys.argv[1:]:
        await asyncio.start_server(carry(int(port)), "127.0.0.2", int(port))
    print("relays", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())' "${PORTS[@]}"
}

# of NAME SERIES: a metric of a replica.
of() {
    ADMIN=${ADMINS[$1]} metric "$2"
}

share() {
    of "$1" 'weir_replica_share_seats{pool="read-only"}'
}

# shares NAME...: their sum.
shares() {
    local name sum=0
    for name in "$@"; do sum=$((sum + $(share "$name"))); done
    echo "$sum"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
states() {
    local state=$1 name
    shift
    for name in "$@"; do
        [[ $(of "$name" "weir_replica_state{state=\"$state\"}") == 1 ]] || return 1
    done
}

# shellcheck disable=SC2317,SC2329 # called by `within`
at_least() {
    local least=$1
    shift
    (($(shares "$@") >= least))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
at_most() {
    local most=$1
    shift
    (($(shares "$@") <= most))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
divided() {
    local sum
    sum=$(shares "${REPLICAS[@]}")
    ((sum >= $1 && sum <= TOTAL))
}

# shown BY WHICH: the status of `all` replicas or of one, as a replica shows it.
shown() {
    curl -sS --max-time "$LIMIT" "http://${ADMINS[$1]}/status.json?replicas=$2"
}

# shows BY WHICH FILTER: jq's filter is true for it.
# shellcheck disable=SC2317,SC2329 # called by `within`
shows() {
    shown "$1" "$2" | jq -e "$3"
}

# load REPLICA CONNECTIONS
load() {
    start "load-$1" wrk -t 1 -c "$2" -d 600s --timeout 60s -H "$(bearer alice)" "${URLS[$1]}/api/v1/namespaces/default"
}

# peak: the most requests in flight at the API server, ever.
peak() {
    curl -sS --max-time 10 --cacert "$DIR/ca.crt" -H "$(bearer admin)" "https://$UPSTREAM/metrics" |
        series playground_inflight_requests_max
}

sharing() {
    check_ok 'three replicas find each other' within "$LIMIT" states member "${REPLICAS[@]}"
    check_ok 'an idle total is divided evenly' within "$(soon 10)" at_least $((TOTAL / 3 - 1)) three
    # The floors of those that have just joined may be beyond it.
    check_ok 'an idle total: shares are within it' within "$(soon 5)" at_most "$TOTAL" "${REPLICAS[@]}"
    check_ok 'an idle total: all of it is shared' within "$(soon 10)" at_least $((TOTAL - 3)) "${REPLICAS[@]}"
    load one 90
    load two 5
    load three 5
    check_ok 'the busy replica has 45 slots within 3 s' within "$(soon 3)" at_least 45 one
    sleep "$HOLD" # under full load
    check_ok 'shares under load: all of the total, and no more' within "$(soon 1)" divided $((TOTAL - 6))
    check_between 'most requests in flight, with the own ones' 40 $((TOTAL + OWN)) "$(peak)"
    check_match 'readyz' '\[\+\]replicas ok' "$(curl -sS "http://${ADMINS[one]}/readyz?verbose")"
}

# lever_ids NAME: of the levers in force at a replica.
lever_ids() {
    curl -sS --max-time "$LIMIT" "http://${ADMINS[$1]}/status.json" | jq -c '[.levers[].id]'
}

# code_of NAME USER: of a response by a replica.
code_of() {
    curl -sS -o /dev/null -w '%{http_code}' --max-time "$LIMIT" --cacert "$DIR/ca.crt" -H "$(bearer "$2")" "${URLS[$1]}/api/v1/namespaces/default"
}

# A lever is in force at all of them, and says so. One of them has the control socket.
levers() {
    local name text
    text=$("$WEIR" ctl block --user alice --reason 'at all of them')
    check_match 'weir ctl reaches the other two' 'reached: 2 other replicas' "$text"
    for name in "${REPLICAS[@]}"; do
        check "$name has the lever" '[1]' "$(lever_ids "$name")"
        check "$name rejects the flood" 429 "$(code_of "$name" alice)"
        check "$name serves another user" 200 "$(code_of "$name" bob)"
    done
    text=$("$WEIR" ctl limit --user nobody --qps 6 --inflight 7)
    check_match 'a limit is divided' 'divided among 3 replicas, .*: 2.0/s, [23] at a time here' "$text"
    "$WEIR" ctl undo 1 2 >"$WORK/undone"
    for name in "${REPLICAS[@]}"; do check "$name has it no more" '[]' "$(lever_ids "$name")"; done
}

# Each replica has a client that the others do not see. `one` has at most 50 slots, so that a sum of the shares is larger.
one_view() {
    local name
    for name in "${REPLICAS[@]}"; do
        curl -sS -o /dev/null --max-time "$LIMIT" --cacert "$DIR/ca.crt" -A "agent-$name" -H "$(bearer alice)" "${URLS[$name]}/version"
    done
    for name in one three; do
        check_ok "$name shows the talkers of all" within "$LIMIT" shows "$name" all '
            (.view.chosen == "all") and ([.view.replicas[] | select(.counted).name] == ["one", "three", "two"]) and
            ([.talkers[] | select(.by == "userAgent" and .windowSeconds == 300).rows[].name]
                | contains(["agent-one", "agent-three", "agent-two"]))'
        check_ok "$name shows the levels of all" within "$LIMIT" shows "$name" all '
            .levels[] | select(.name == "readOnly") | .currentLimit > 50 and .seatsInUse > 30'
    done
    check_between 'the snapshots of the others are counted' 2 1000 "$(snapshots success)"
    check_ok 'one replica is picked out' within "$LIMIT" shows one three '
        [.talkers[] | select(.by == "userAgent" and .windowSeconds == 300).rows[].name]
            | contains(["agent-three"]) and (contains(["agent-one"]) | not)'
    check 'without a choice it is the one that is asked' null "$(curl -sS "http://${ADMINS[one]}/status.json" | jq .view)"
    check_match 'a wrong choice is told with the right ones' '^replicas: all or a name; .*A-b' "$(shown one A-b)"
    check_match 'events of all' '"chosen":"all"' \
        "$(curl -sSN --max-time "$LIMIT" "http://${ADMINS[one]}/status/events?replicas=all" 2>/dev/null | grep -m1 -o '"chosen":"all"')"
    check_ok 'events of one begin with its history' within "$LIMIT" has_history one two
    page
    check_match 'weir status shows all' $'\n''shown: all 3 replicas'$'\n' "$("$WEIR" status --admin "http://${ADMINS[one]}" || true)"
    check 'weir status shows one' two "$({ "$WEIR" status --admin "http://${ADMINS[one]}" -o json --replica two || true; } | jq -r .replicas.name)"
    check 'frames of later versions are skipped, and what is none ends the connection' 'snapshot ended ended ended' "$(frames)"
    check_ok 'frames: it goes on' states member one
}

# snapshots RESULT: how many of them `one` has requested.
snapshots() {
    of one "weir_replica_snapshots_total{result=\"$1\"}"
}

# misses BEFORE: `one` is asked for all, and has missed more snapshots than before.
# shellcheck disable=SC2317,SC2329 # called by `within`
misses() {
    shown one all >/dev/null
    (($(snapshots failure) > $1))
}

# has_history BY WHICH: the first event has rows.
# shellcheck disable=SC2317,SC2329 # called by `within`
has_history() {
    { curl -sSN --max-time "$LIMIT" "http://${ADMINS[$1]}/status/events?replicas=$2" 2>/dev/null || true; } |
        grep -m1 '"everySeconds"' | grep -q '"unixMs":\[[0-9]'
}

# The page in a browser: all replicas, and one picked out.
page() {
    local button="[...document.querySelectorAll('#replica button')]" facts="document.getElementById('facts').textContent"
    cat >"$WORK/steps" <<STEPS
open light
until $LIMIT $button.map(b => b.textContent).join() === 'All replicas,one,three,two'
until $LIMIT $facts.startsWith('3 of 3 replicas')
until $LIMIT document.getElementById('t-levels').textContent.includes('readOnly')
eval $button.find(b => b.textContent === 'two').click()
until $LIMIT $facts.startsWith('replica two') && snaps.at(-1).replicas.name === 'two'
eval $button.find(b => b.textContent === 'two').getAttribute('aria-pressed')
eval ${button}[0].click()
until $LIMIT $facts.startsWith('3 of 3 replicas')
errors
STEPS
    start browser python3 "$ROOT/tests/tools/page.py" "http://${ADMINS[one]}/" "$WORK/steps"
    finish browser 240
    check 'the page: the browser comes to its end' 0 "$STATUS"
    check 'the page: it shows all replicas and one' 'number number number number null number "true" null number []' \
        "$(sed -E 's/^[0-9.]+$/number/' "$WORK/browser.out" | tr '\n' ' ' | sed 's/ $//')"
}

# frames: what a replica answers to frames of a peer.
frames() {
    python3 - "${PORTS[one]}" "$WORK" <<'END'
import json, ssl, socket, struct, sys

port, work = int(sys.argv[1]), sys.argv[2]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.load_verify_locations(work + "/peer-ca.crt")
context.load_cert_chain(work + "/peer.crt", work + "/peer.key")

def answer(*frames):
    with socket.create_connection(("127.0.0.1", port), 30) as tcp, context.wrap_socket(tcp) as stream:
        reader = stream.makefile("rb")
        try:
            for frame in frames:
                stream.sendall(struct.pack(">I", len(frame)) + frame)
            head = reader.read(4)
        except (ConnectionError, ssl.SSLError):
            head = b""
        if len(head) < 4:
            return "ended"
        length = struct.unpack(">I", head)[0]
        assert length <= 256 << 10, length
        return json.loads(reader.read(length))["kind"]

request = b'{"kind":"snapshot-request","version":1}'
later = b'{"kind":"of-a-later-version","version":[7]}'
other = b'{"kind":"snapshot-request","version":2}'
print(answer(later, other, request), answer(b"[" * 60000), answer(b"\xff\x00"), answer(b"x" * (65 << 10)))
END
}

# The floor of one of three is 5.
killed() {
    signal load-two KILL
    signal two KILL
    finish two
    check_ok 'killed: its share goes to the others' within "$(soon $((3 * LEASE)))" at_least $((TOTAL - 6)) one three
    check_between 'killed: its floor is reserved' 1 $((TOTAL - 5)) "$(shares one three)"
    check_ok 'killed: it is shown as missing' within "$LIMIT" shows one all '
        .view.replicas[] | select(.name == "two") | (.counted | not) and .ageSeconds > 5 and .failure != null'
    check_ok 'killed: the others are shown' shows one all '([.view.replicas[] | select(.counted).name] == ["one", "three"]) and
        (.levels | length == 2)'
    check_ok 'killed: it is shown as it was' shows one two '.replicas.name == "two" and (.levels | length == 2)'
    check_match 'killed: weir top says so' 'shown: 2 of 3 replicas \(two missing for [0-9.]+s\)' \
        "$("$WEIR" status --admin "http://${ADMINS[one]}" || true)"
    replica two
    check_ok 'killed: it is back' within "$(soon 10)" states member "${REPLICAS[@]}"
    check_ok 'killed: it is shown again' within "$LIMIT" shows one all '[.view.replicas[].counted] == [true, true, true]'
    load two 30
    check_ok 'killed: it has its share again' within "$(soon 10)" at_least 20 two
    check_between 'killed: in flight' 40 $((TOTAL + OWN)) "$(peak)"
}

stopped_replica() {
    signal three STOP
    check_ok 'stopped: its share goes to the others' within "$(soon $((3 * LEASE)))" at_least $((TOTAL - 6)) one two
    signal three CONT
    check_ok 'stopped: it is back' within "$(soon 10)" states member "${REPLICAS[@]}"
    check_ok 'stopped: shares are within the total' within "$(soon 5)" at_most "$TOTAL" "${REPLICAS[@]}"
    # What it had in flight when it was stopped goes on at the API server.
    check_between 'stopped: in flight' 40 $((TOTAL + OWN + 20)) "$(peak)"
}

disconnected() {
    local before
    signal relay STOP
    check_ok 'peers cut: all wait' within "$(soon 10)" states waiting "${REPLICAS[@]}"
    before=$(shares "${REPLICAS[@]}")
    sleep $((LEASE + HOLD)) # longer than a lease
    check_ok 'peers cut: all still wait' states waiting "${REPLICAS[@]}"
    check_ok 'peers cut: snapshots that do not come are counted' within "$LIMIT" misses "$(snapshots failure)"
    check_between 'peers cut: shares stay' $((before - 8)) "$TOTAL" "$(shares "${REPLICAS[@]}")"
    signal relay CONT
    check_ok 'peers cut: all are back' within "$(soon 15)" states member "${REPLICAS[@]}"
}

refused() {
    local name
    printf 'spoilt' >"$WORK/own-token"
    # shellcheck disable=SC2016 # not expanded here
    for name in "${REPLICAS[@]}"; do
        signal "$name" HUP
        check_ok "Leases refused: $name knows" within "$(soon 20)" bash -c '
            curl -sS "http://$1/metrics" | grep "^weir_replica_lease_failures_total [1-9]"' _ "${ADMINS[$name]}"
    done
    sleep $((LEASE + HOLD)) # longer than a lease
    check_ok 'Leases refused: peers are enough' states member "${REPLICAS[@]}"
    check_match 'Leases refused: readyz' '\[-\]replicas failed, readiness not affected: .*40[13]' \
        "$(curl -sS "http://${ADMINS[one]}/readyz?verbose")"
    signal three KILL
    finish three
    check_ok 'Leases refused and one killed: the others fall to their floors' within "$(soon $((2 * LEASE)))" at_most 10 one two
    check_ok 'Leases refused and one killed: they say so' states cut-off one two
    token admin >"$WORK/own-token"
    for name in one two; do signal "$name" HUP; done
    check_ok 'Leases are back: so are the shares' within "$(soon $((4 * LEASE)))" at_least $((TOTAL - 6)) one two
    check_between 'Leases are back: within the total' 1 "$TOTAL" "$(shares one two)"
}

peer_certificates weir-peer
apiserver api 0 --service-time 100ms
UPSTREAM=$ADDRESS
credentials
for name in "${REPLICAS[@]}"; do PORTS[$name]=$(free_port); done
relay
for name in "${REPLICAS[@]}"; do replica "$name"; done
sharing
levers
one_view
killed
stopped_replica
disconnected
refused
signal two TERM
finish two
check 'a replica that ends deletes its Lease' 404 "$(curl -sS -o /dev/null -w '%{http_code}' --cacert "$DIR/ca.crt" \
    -H "$(bearer admin)" "https://$UPSTREAM/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/weir.two")"
summary
