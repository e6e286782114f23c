#!/usr/bin/env bash
# The status page in a real browser (Debian's chromium, without a screen): it loads and complains of nothing, asks nobody
# else, shows a flood, holds 50 levels, is dark and light, works by keyboard, and says when weir is gone. What clients call
# themselves stays text. Then its data as programs read them. Then each incident: requests that wait, 429s, an API server that
# hangs, a lever, a reload.
#
# PICTURES   a folder for pictures of what is seen (default: none are kept)

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need chromium curl jq python3 wrk
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import websocket' || die 'python3-websocket is missing (.ci/run installs it)'

PICTURES=${PICTURES:-$WORK}
# Most who listen at a time.
LISTENERS=16
# The level of the flood: twenty may wait. Even if it borrows all 150 seats, most connections are rejected.
FLOODED=team-07
CONNECTIONS=400

levels() {
    jq -n --arg flooded "$FLOODED" '
        {apiVersion: "flowcontrol.apiserver.k8s.io/v1"} as $api
        # One is named as a member of every object of JavaScript.
        | [range(50) | (if . == 49 then "constructor" else "team-" + (100 + . | tostring)[1:] end) as $name
            | $api + {kind: "PriorityLevelConfiguration", metadata: {name: $name}, spec: {type: "Limited", limited: {
                nominalConcurrencyShares: 10, lendablePercent: 50,
                limitResponse: {type: "Queue", queuing: {queues: 16, handSize: 4, queueLengthLimit: 5}}}}},
              $api + {kind: "FlowSchema", metadata: {name: $name}, spec: {
                priorityLevelConfiguration: {name: $name}, matchingPrecedence: 500, distinguisherMethod: {type: "ByUser"},
                rules: [{subjects: [{kind: "User", user: {name: (if $name == $flooded then "alice" else $name end)}}],
                    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]}]}}
        ] | {apiVersion: "v1", kind: "List", items: .}'
}

levels >"$WORK/levels.json"
playground front --flowcontrol-config "$WORK/levels.json" --max-requests-inflight 100 --max-mutating-requests-inflight 50 \
    --service-time 20ms
PAGE=http://$ADMIN/
AGENT='<script>document.title = "owned"</script><img src=x onerror=alert(1)>'

# --- in a browser --------------------------------------------------------------------------------------------------------

FLOOD="run wrk -t 1 -c $CONNECTIONS -d 300 -H '$(bearer alice)' -H 'User-Agent: $AGENT' $URL/api/v1/nodes"
cat >"$WORK/steps" <<STEPS
open light 1320x900
until $LIMIT document.querySelectorAll('#t-levels tbody tr').length === 58
until $LIMIT document.getElementById('ready').textContent === 'ready'
eval document.documentElement.scrollWidth <= innerWidth
eval getComputedStyle(document.documentElement).backgroundColor
eval document.getElementById('no-now').classList.contains('hot')
run curl -sSN --cacert '$DIR/ca.crt' -H '$(bearer alice)' '$URL/api/v1/nodes?watch=1'
until $LIMIT document.getElementById('t-places').textContent.includes('alice (1)')
eval document.querySelectorAll('#t-places tbody tr').length
stop
until $LIMIT !document.getElementById('t-places').textContent.includes('alice')
$FLOOD
until $LIMIT document.getElementById('no-now').classList.contains('hot')
stop
until $LIMIT !document.getElementById('no-now').classList.contains('hot')
$FLOOD
until $LIMIT document.getElementById('no-now').classList.contains('hot')
stop
until $LIMIT !document.getElementById('no-now').classList.contains('hot')
$FLOOD
until $LIMIT document.getElementById('no-now').classList.contains('hot')
until $LIMIT document.querySelector('#t-levels tbody th').textContent === '$FLOODED'
until $LIMIT document.getElementById('full').textContent === '$FLOODED'
until $LIMIT document.getElementById('who').textContent === 'alice'
until $LIMIT document.getElementById('who-agent').textContent.includes('<script>')
eval [...document.querySelectorAll('#by button')].find(b => b.textContent === 'Agent').click()
until $LIMIT document.querySelector('#t-talkers tbody th').textContent.includes('<img src=x')
eval [document.title, document.scripts.length, document.images.length]
picture $PICTURES/light.png
eval document.getElementById('freeze').click()
eval (window.at = document.getElementById('clock').textContent, document.querySelectorAll('#t-levels tbody tr').length)
eval (f => { f.value = 'team-0'; f.dispatchEvent(new Event('input')); return document.querySelectorAll('#t-levels tbody tr').length; })(document.getElementById('filter'))
eval (document.getElementById('idle').click(), [...document.querySelectorAll('#t-levels tbody th')].map(th => th.textContent))
eval ([...document.querySelectorAll('#window button')].at(-1).click(), document.querySelector('#window [aria-pressed=true]').textContent)
until $LIMIT snaps.at(-1).unixMs > frozen.now.unixMs + 2000
eval document.getElementById('clock').textContent === window.at
eval (f => { f.value = ''; f.dispatchEvent(new Event('input')); document.getElementById('idle').click(); document.getElementById('freeze').click(); return document.querySelectorAll('#t-levels tbody tr').length; })(document.getElementById('filter'))
eval document.getElementById('clock').textContent > window.at
eval (past => { source.dispatchEvent(new MessageEvent('history', { data: past })); source.dispatchEvent(new MessageEvent('snapshot', { data: JSON.stringify(Object.assign({}, window.old, { uptimeSeconds: 0.5 })) })); return [JSON.stringify(history) === past, snaps.length, document.getElementById('said').textContent]; })((window.old = snaps.at(-1), JSON.stringify(history)))
eval document.querySelector('#t-levels thead button').focus()
key Enter
until $LIMIT document.querySelector('#t-levels tbody th').textContent.startsWith('catch-all')
eval document.querySelector('#t-levels thead th').getAttribute('aria-sort')
key Enter
until $LIMIT document.querySelector('#t-levels tbody th').textContent.startsWith('workload-low')
eval document.querySelector('#t-levels thead th').getAttribute('aria-sort')
eval getComputedStyle(document.activeElement).outlineStyle
open dark 400x900
until $LIMIT document.querySelectorAll('#t-levels tbody tr').length === 58
eval getComputedStyle(document.documentElement).backgroundColor
eval document.documentElement.scrollWidth <= innerWidth
key Tab
eval [document.activeElement.className, document.activeElement.getBoundingClientRect().top >= 0]
key Enter
eval location.hash
until $LIMIT document.getElementById('no-now').classList.contains('hot')
picture $PICTURES/dark.png
errors
stop
run kill -STOP ${PIDS[front]}
until $LIMIT !document.getElementById('lost').hidden
run kill -CONT ${PIDS[front]}
until $LIMIT document.getElementById('lost').hidden
requests
STEPS
start browser python3 "$ROOT/tests/tools/page.py" "$PAGE" "$WORK/steps"
finish browser 240
kill -CONT "${PIDS[front]}"
check 'the browser comes to its end' 0 "$STATUS"
mapfile -t SAID <"$WORK/browser.out"
at=0
seen=()

# said WHAT REGEX: what the next step said.
said() {
    check_match "$1" "^($2)\$" "${SAID[at]:-nothing}"
    at=$((at + 1))
}
done_in='[0-9.]+'

said 'the page loads' "$done_in"
said 'it shows all levels' "$done_in"
said 'weir is ready' "$done_in"
said 'nothing stands over its edge' true
light=${SAID[at]:-nothing}
said 'it is light' '"rgb\((2[0-9]{2}(, )?){3}\)"'
said 'nothing is rejected yet' false
said 'a watch begins' true
said 'what holds a place is named' "$done_in"
said '... with the places of each kind' 4
said 'the watch ends' true
said '... and gives its place back' "$done_in"
for which in first second; do
    said "a $which flood begins" true
    seen+=("${SAID[at]:-null}")
    said "the $which flood is seen" "$done_in"
    said '... ends' true
    said '... and is seen to be over' "$done_in"
done
said 'a flood begins' true
seen+=("${SAID[at]:-null}")
said 'the flood is seen' "$done_in"
# A machine that stands still for a second takes one of them, hardly all.
check_ok "... within 2 s (${seen[*]})" jq -en "[${seen[0]}, ${seen[1]}, ${seen[2]}] | all(. != null) and min <= 2"
said 'its level is the first' "$done_in"
said 'its level is the fullest' "$done_in"
said 'who floods is named' "$done_in"
said 'what it calls itself is shown' "$done_in"
said 'talkers can be told apart by agent' null
said 'the agent is in the table' "$done_in"
said 'and it is text: no title, script or image came from it' '\["weir on [^"]*", 1, 0\]'
said 'a picture is taken' true
said 'the page is frozen' null
said '... with all levels' 58
said 'while it is, a filter leaves those that are wanted' 10
said '... idle ones are hidden' "\\[\"$FLOODED\"\\]"
said '... and talkers are over another time' '"60 min"'
said 'snapshots come meanwhile' "$done_in"
said '... and are not shown' true
said 'it goes on, with all levels' 58
said '... as they are now' true
said 'another weir with a history of its own: it is kept, nothing is counted from before, and nobody is alarmed' \
    '\[true, 1, "Requests are being rejected"\]'
said 'a heading can be focused' null
said 'Enter' true
said 'levels are sorted by name' "$done_in"
said '... which is said' '"ascending"'
said 'Enter again' true
said 'levels are sorted the other way round' "$done_in"
said '... which is said' '"descending"'
said 'where the focus is is seen' '"(solid|auto)"'
said 'it loads once more' "$done_in"
said 'on a narrow screen it shows all levels' "$done_in"
check_no_match 'it is dark' "$light" "${SAID[at]:-$light}"
said '... really' '"rgb\(([0-9]{1,2}(, )?){3}\)"'
said 'nothing stands over the edge' true
said 'Tab' true
said 'comes to a link that skips, and shows it' '\["skip", true\]'
said 'Enter' true
said 'it leads to the levels' '"#levels"'
said 'the flood is seen in the dark' "$done_in"
said 'a picture is taken' true
said 'the console says nothing' '\[\]'
said 'the flood ends' true
said 'weir stands still' true
said 'the page says so' "$done_in"
said 'weir goes on' true
said 'so does the page' "$done_in"
said 'it asks nobody else' '\[\]'

# --- what programs read --------------------------------------------------------------------------------------------------

curl -sS "${PAGE}status.json" >"$WORK/status.json"
check 'a snapshot names the flood' alice \
    "$(jq -r '[.talkers[] | select(.by == "user" and .windowSeconds == 60)][0].rows[0].name' "$WORK/status.json")"
check 'its level counts as metrics do' \
    "$(metric "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"$FLOODED\",priority_level=\"$FLOODED\",reason=\"queue-full\"}")" \
    "$(jq --arg level "$FLOODED" '.levels[] | select(.name == $level).rejected["queue-full"]' "$WORK/status.json")"
check '... and codes do' "$(metric 'weir_upstream_responses_total{code="200"}')" "$(jq '.requests.byCode["200"]' "$WORK/status.json")"
headers=$(curl -sSI "${PAGE}status")
check_match 'a strict policy goes with the page' "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';" "$headers"

start listener curl -sSN "${PAGE}status/events"
within "$LIMIT" eval "(( \$(grep -c '^event: snapshot' '$WORK/listener.out') >= 3 ))" || die 'no events come'
check 'events begin with the history, and snapshots follow' 'history snapshot snapshot' \
    "$(sed -n 's/^event: //p' "$WORK/listener.out" | head -n 3 | paste -sd ' ')"
# shellcheck disable=SC2016 # jq's variable
check_ok 'the history has a column for each level' jq -en --argjson history "$(sed -n '/^event: history/{n;s/^data: //p;q}' "$WORK/listener.out")" \
    '$history | .everySeconds == 5 and (.unixMs | length) > 0 and (.levels | length) == 58 and
        ([.levels[].seats, .codes[], .rejected | length] | unique) == [.unixMs | length]'

code() {
    curl -sS -o /dev/null -w '%{http_code}' --max-time 1 "$@" 2>/dev/null || true
}
check 'a page from elsewhere may not listen' 403 "$(code --max-time "$LIMIT" -H 'Sec-Fetch-Site: cross-site' "${PAGE}status/events")"
for n in $(seq 2 $LISTENERS); do start "listener-$n" curl -sSN "${PAGE}status/events"; done
# Before anybody else asks: who finds no place does not try again.
# shellcheck disable=SC2317,SC2329 # called by `within`
listening() {
    local n
    for n in $(seq 2 $LISTENERS); do grep -q '^event: history' "$WORK/listener-$n.out" || return 1; done
}
check_ok 'each has the history' within "$LIMIT" listening
# shellcheck disable=SC2317,SC2329 # called by `within`
no_place() { [[ $(code "${PAGE}status/events") == 503 ]]; }
# shellcheck disable=SC2317,SC2329 # called by `within`
a_place() { [[ $(code "${PAGE}status/events") == 200 ]]; }
check_ok 'so many listen, and one more is told so' within "$LIMIT" no_place
check 'everybody may still ask once' 200 "$(code --max-time "$LIMIT" "${PAGE}status.json")"
signal listener TERM
check_ok 'who goes leaves its place to another' within "$LIMIT" a_place
for n in $(seq 2 $LISTENERS); do signal "listener-$n" TERM; done
stopped front

# --- each incident -------------------------------------------------------------------------------------------------------

# weir before an API server of its own, which can be stopped; its settings are reloaded.
apiserver api 0 --capacity 4 --service-time 50ms --apiserver-concurrency-limit 600
UPSTREAM_ADDRESS=$ADDRESS
printf 'maxRequestsInflight: 180\nmaxMutatingRequestsInflight: 70\n' >"$WORK/weir.yaml"
SOCKET=$WORK/control.sock
# With credentials, so that it may read the API server's own seats.
start incidents "$WEIR" serve --kubeconfig "$DIR/kubeconfig" --bind-address 127.0.0.1 "${anywhere[@]}" \
    --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" \
    --config "$WORK/weir.yaml" --control-socket "$SOCKET" --memory-limit 400Mi
fronting incidents
PAGE=http://$ADMIN/
PODS=$URL/api/v1/namespaces/default/pods
# headline EXPRESSION: until it is true of the headline's text.
headline() {
    printf 'until %s (text => %s)(document.getElementById("now-text").textContent)\n' "$LIMIT" "$1"
}
cat >"$WORK/steps" <<STEPS
open light 1320x900
$(headline "text === 'No request waits or is rejected'")
eval [document.getElementById('now').className, document.getElementById('ready').className]
until $LIMIT document.getElementById('total-now').textContent.startsWith('250of 60')
eval [document.getElementById('own-now').textContent.endsWith(' of 400 MiB'), document.getElementById('upstream').textContent.includes('--tls-cert-file in ')]
picture $PICTURES/idle.png whole
run wrk -t 1 -c 250 -d 300 -H '$(bearer alice)' $PODS
$(headline "/^[0-9]+ requests wait in global-default, [0-9.]+s \\(p99\\)\$/.test(text)")
eval [document.getElementById('now').className !== 'now calm', document.getElementById('ready').className !== 'state good', document.getElementById('no-now').textContent]
until $LIMIT /^waiting: alice [0-9]+; seats held by: alice [0-9]+ of [0-9]+\$/.test(document.getElementById('now-detail').textContent)
until $LIMIT Number(document.getElementById('wait-now').textContent) > 10
until $LIMIT document.querySelector('#wait-plot .area4').getAttribute('d') !== '' && document.querySelector('#wait-plot .line5').getAttribute('d') !== ''
until $LIMIT document.querySelector('#up-plot .line2').getAttribute('d') !== '' && document.querySelector('#up-plot').parentElement.querySelector('.top').textContent.endsWith('s')
picture $PICTURES/waiting.png whole
until $LIMIT document.querySelector('#t-talkers tbody button:not([hidden])') !== null
eval document.querySelector('#t-talkers tbody button:not([hidden])').click()
eval [document.getElementById('command').hidden, document.getElementById('command-limit').textContent, document.getElementById('command-block').textContent]
eval document.getElementById('copy-limit').click()
until $LIMIT document.getElementById('copy-limit').textContent !== 'Copy'
eval showCommand(targetOf('userAgent', "x'; id; '" + String.fromCharCode(92) + 'b'), 'x') || document.getElementById('command-limit').textContent
run '$WEIR' ctl --control-socket '$SOCKET' limit --user=alice --qps=10 --for=10m --reason 'lists in a loop'
until $LIMIT document.getElementById('levers').textContent.includes('lists in a loop')
$(headline "text.startsWith('Only levers reject: ')")
until $LIMIT document.getElementById('marks').textContent.includes('lever 1: limit to 10/s user=alice')
picture $PICTURES/lever.png whole
run '$WEIR' ctl --control-socket '$SOCKET' undo 1
until $LIMIT document.getElementById('marks').textContent.includes('lever 1 has ended')
run printf 'maxRequestsInflight: 181\nmaxMutatingRequestsInflight: 70\n' >'$WORK/weir.yaml'
until $LIMIT document.getElementById('marks').textContent.includes('configuration 2 is in force')
eval [document.querySelectorAll('#flags .reload').length, document.querySelectorAll('#plot .mark').length]
run wrk -t 1 -c 1200 -d 300 -H '$(bearer alice)' $URL/api/v1/nodes
$(headline "/^[0-9.]+ requests a second are rejected: queue-full\$/.test(text)")
eval [document.getElementById('now').className, document.getElementById('now-detail').textContent.startsWith('most by global-default')]
until $LIMIT document.getElementById('now-detail').textContent.endsWith('of alice')
picture $PICTURES/rejected.png whole
stop
run kill -STOP ${PIDS[api]}
$(headline "text === 'The API server does not answer'")
eval [document.getElementById('now').className, document.getElementById('ready').className]
until $LIMIT document.getElementById('marks').textContent.includes('$UPSTREAM_ADDRESS: ')
picture $PICTURES/hung.png whole
run kill -CONT ${PIDS[api]}
$(headline "text !== 'The API server does not answer'")
until $LIMIT document.getElementById('marks').textContent.includes('$UPSTREAM_ADDRESS answers again')
run wrk -t 1 -c 2 -d 300 -H '$(bearer alice)' $PODS
run printf 500 >'$DIR/fault'
$(headline "/^[0-9.]+ requests a second get 5xx\$/.test(text)")
eval [document.getElementById('now').className, / a second by the API server itself/.test(document.getElementById('now-detail').textContent)]
until $LIMIT /[1-9][^ ]* 5xx/.test(document.getElementById('codes').textContent)
picture $PICTURES/failing.png whole
run printf none >'$DIR/fault'
stop
$(headline "text === 'No request waits or is rejected'")
run printf 'maxRequestsInflight: many\n' >'$WORK/weir.yaml'
until $LIMIT document.getElementById('now-also').textContent.includes('alarm config')
until $LIMIT document.getElementById('marks').textContent.includes('refused')
run '$WEIR' ctl --control-socket '$SOCKET' bypass on --for=5m --reason 'is weir the cause?'
until $LIMIT document.getElementById('levers').textContent.includes('is weir the cause?')
picture $PICTURES/suspect.png whole
run '$WEIR' ctl --control-socket '$SOCKET' bypass off
run printf 'maxRequestsInflight: 181\nmaxMutatingRequestsInflight: 70\n' >'$WORK/weir.yaml'
until $LIMIT document.getElementById('now-also').hidden && !document.getElementById('levers').textContent.includes('is weir the cause?')
eval (past => { source.dispatchEvent(new MessageEvent('history', { data: past })); source.dispatchEvent(new MessageEvent('snapshot', { data: JSON.stringify(snaps.length ? snaps.at(-1) : window.last) })); return [document.getElementById('no-now').firstChild.textContent, document.getElementById('codes').textContent.startsWith('\u2013 2xx')]; })((window.last = snaps.at(-1), JSON.stringify(history)))
errors
STEPS
start browser python3 "$ROOT/tests/tools/page.py" "$PAGE" "$WORK/steps"
finish browser 240
kill -CONT "${PIDS[api]}"
check 'the browser comes to its end' 0 "$STATUS"
mapfile -t SAID <"$WORK/browser.out"
at=0
said 'the page loads' "$done_in"
said 'idle: nothing hurts' "$done_in"
said '... and both dots are green' '\["now calm", "state good"\]'
said "weir's total stands beside the API server's own" "$done_in"
said "so do its memory and its limit, and when certificates end" '\[true, true\]'
said 'a picture is taken' true
said 'one user sends more than there are seats' true
said 'waiting: the headline is the wait' "$done_in"
# On a slow machine some have waited for so long that they are rejected.
said '... no dot is green' '\[true, true, "[0-9.]+a second"\]'
said '... with the users that wait and those that hold the seats' "$done_in"
said '... their number has a card' "$done_in"
said '... and a plot, beside the wait' "$done_in"
said "... as has the API server's latency, with a number at its axis" "$done_in"
said 'a picture is taken' true
said 'a talker has a button' "$done_in"
said '... which is clicked' null
said '... and shows the commands' \
    '\[false, "weir ctl limit --user=alice --qps=10 --for=10m", "weir ctl block --user=alice --for=10m"\]'
said 'one is copied' null
said '... or selected' "$done_in"
said 'what a client calls itself is one word of a shell' '"weir ctl limit .--user-agent=x.\\\\..; id; .\\\\..\\\\b. --qps=10 --for=10m"'
said 'an operator runs it' true
said 'a lever: it has a banner with its reason' "$done_in"
said '... what it rejects is no trouble' "$done_in"
said '... and it is marked' "$done_in"
said 'a picture is taken' true
said 'it is undone' true
said '... which is marked' "$done_in"
said 'the settings change' true
said 'a reload is marked' "$done_in"
said '... on the axis and in the plots' '\[1, 1\]'
said 'the user sends more than queues hold' true
said '429: the headline is the rejections' "$done_in"
said '... in red, with the level' '\["now critical", true\]'
said '... and the user' "$done_in"
said 'a picture is taken' true
said 'the flood ends' true
said 'the API server stands still' true
said 'hung: the headline says so' "$done_in"
said '... in red' '\["now critical", "state (hurt|bad)"\]'
said '... and it is marked' "$done_in"
said 'a picture is taken' true
said 'it goes on' true
said '... which the headline shows' "$done_in"
said '... and a mark' "$done_in"
said 'a client goes on' true
said 'the API server fails' true
said '5xx: the headline says so' "$done_in"
said "... and that they are the API server's own" '\["now (critical|warning)", true\]'
said '... as the codes do' "$done_in"
said 'a picture is taken' true
said 'it no longer fails' true
said 'the client ends' true
said '... and nothing hurts any more' "$done_in"
said 'settings are written that weir refuses' true
said 'weir itself: the alarm stands beside the headline' "$done_in"
said '... and the refusal is marked' "$done_in"
said 'an operator lifts all limits' true
said '... which has a banner' "$done_in"
said 'a picture is taken' true
said 'the limits are back' true
said 'so are the settings' true
said '... and nothing is left of it' "$done_in"
said 'before there is a rate there is no 0' '\["\\u2013", true\]'
said 'the console says nothing' '\[\]'
stopped incidents
stopped api

# --- a dry run -----------------------------------------------------------------------------------------------------------

playground paper --flowcontrol-config "$WORK/levels.json" --max-requests-inflight 100 --max-mutating-requests-inflight 50 \
    --service-time 20ms --flowcontrol-enforcement DryRun
cat >"$WORK/steps" <<STEPS
open light 1320x900
until $LIMIT document.querySelectorAll('#t-levels tbody tr').length === 58
eval document.getElementById('paper').textContent
eval document.getElementById('paper').hidden
run wrk -t 1 -c $CONNECTIONS -d 300 -H '$(bearer alice)' $URL/api/v1/nodes
until $LIMIT document.getElementById('no-maybe').textContent.includes('a second (queue-full')
until $LIMIT document.getElementById('no-maybe').textContent.includes('It would break 1 user: alice (')
until $LIMIT [...document.querySelectorAll('#t-talkers tbody tr')].some(r => r.textContent.includes('alice') && r.querySelector('td.warm'))
until $LIMIT document.querySelector('#t-levels tbody th').textContent === '$FLOODED'
eval [...document.querySelectorAll('#t-reasons tbody th span')].map(s => s.textContent)
eval document.querySelectorAll('#t-levels td.warm').length > 0
eval [document.getElementById('no-now').firstChild.textContent, document.querySelectorAll('.hot, .over').length, document.getElementById('said').textContent]
picture $PICTURES/paper.png
stop
errors
STEPS
start browser python3 "$ROOT/tests/tools/page.py" "http://$ADMIN/" "$WORK/steps"
finish browser 120
check 'the browser comes to its end' 0 "$STATUS"
mapfile -t SAID <"$WORK/browser.out"
at=0
said 'the page loads' "$done_in"
said 'it shows all levels' "$done_in"
said 'it says that nothing is rejected' '"Dry run: priority levels reject nothing"'
said '... for all to see' false
said 'a flood begins' true
said 'it says what would be rejected' "$done_in"
said '... and whose requests' "$done_in"
said '... as top talkers do' "$done_in"
said 'the level is the first' "$done_in"
said 'the reason is one that would be' '\["queue-full", "would be"\]'
said 'it stands out' true
said 'nothing is red, no rejection is counted, and nobody is alarmed' '\["0", 0, ""\]'
said 'a picture is taken' true
said 'the flood ends' true
said 'the console says nothing' '\[\]'
check 'its data say so' 'true {} true' \
    "$(curl -sS "http://$ADMIN/status.json" | jq -r '"\(.dryRun) \(.rejections) \(.wouldBeRejections["queue-full"] > 0)"')"
stopped paper
summary
