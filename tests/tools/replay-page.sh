#!/usr/bin/env bash
# The page of `weir replay -o html` in a real browser (Debian's chromium, without a screen): it loads nothing, complains of
# nothing, has a plot of each level with both configurations, fits a phone, is dark and light, and what clients call themselves
# stays text.
#
# PICTURES   a folder for pictures of what is seen (default: none are kept)

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need chromium jq python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import websocket' || die 'python3-websocket is missing (.ci/run installs it)'

PICTURES=${PICTURES:-$WORK}
HOSTILE='<script>document.title = "owned"</script><img src=x onerror=alert(1)>'

# arrivals: a minute of two users, one of whom sends far too much.
arrivals() {
    jq -nc --arg agent "$HOSTILE" '
        range(6000) | {at_ms: (1795460400000 + 10 * .), method: "GET", url: "/api/v1/namespaces/default/pods?limit=5",
            user: (if . % 4 == 0 then "bob" else $agent end), groups: ["dev", "system:authenticated"], user_agent: $agent, source: "192.0.2.1",
            service_ms: (if . % 4 == 0 then 5 else 200 end)}'
}

arrivals >"$WORK/arrivals.jsonl"
printf 'maxRequestsInflight: 10\nmaxMutatingRequestsInflight: 5\n' >"$WORK/small.yaml"
printf 'maxRequestsInflight: 100\nmaxMutatingRequestsInflight: 50\n' >"$WORK/large.yaml"
check_ok 'a page is made' "$WEIR" replay --config "$WORK/small.yaml" --compare "$WORK/large.yaml" -o json "$WORK/arrivals.jsonl"
"$WEIR" replay --config "$WORK/small.yaml" --compare "$WORK/large.yaml" -o html "$WORK/arrivals.jsonl" >"$WORK/page.html"
REJECTED=$("$WEIR" replay --config "$WORK/small.yaml" -o json "$WORK/arrivals.jsonl" | jq '.runs[0].total.rejected')
check_between 'it is small enough for an attachment' 10000 2000000 "$(stat -c %s "$WORK/page.html")"

cat >"$WORK/steps" <<STEPS
open light 1320x900
eval document.title
eval [document.scripts.length, document.images.length]
eval document.documentElement.scrollWidth <= innerWidth
eval getComputedStyle(document.documentElement).backgroundColor
eval document.querySelectorAll('main svg').length > 5
eval document.querySelectorAll('svg .two').length > 0 && document.querySelectorAll('svg .two').length === document.querySelectorAll('svg .one').length
eval [...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().width > 200 && svg.getAttribute('aria-label'))
eval getComputedStyle(document.querySelector('svg .one')).stroke !== getComputedStyle(document.querySelector('svg .two')).stroke
eval document.querySelector('.answers .big').textContent
eval [...document.querySelectorAll('tbody th')].some(th => th.textContent.startsWith('<script>'))
eval document.querySelectorAll('details').length > 2 && !document.querySelector('details').open
eval (document.querySelector('summary').click(), document.querySelector('details').open)
eval [...document.querySelectorAll('dd')].map(dd => dd.textContent).join(' ').includes('--compare')
picture $PICTURES/replay-light.png whole
open dark 400x900
eval document.documentElement.scrollWidth <= innerWidth
eval getComputedStyle(document.documentElement).backgroundColor
picture $PICTURES/replay-dark.png
errors
requests
STEPS
start browser python3 "$ROOT/tests/tools/page.py" "file://$WORK/page.html" "$WORK/steps"
finish browser 120
check 'the browser comes to its end' 0 "$STATUS"
mapfile -t SAID <"$WORK/browser.out"
at=0

# grouped NUMBER: 12,345
grouped() {
    sed ':a; s/\B[0-9]\{3\}\>/,&/; ta' <<<"$1"
}

# said WHAT REGEX: what the next step said.
said() {
    check_match "$1" "^($2)\$" "${SAID[at]:-nothing}"
    at=$((at + 1))
}

said 'the page loads' '[0-9.]+'
said 'names are no markup' '"weir replay: two configurations"'
said 'nor scripts or pictures' '\[0, 0\]'
said 'it is not wider than the screen' true
said 'it is light' '"rgb\(250, 249, 246\)"'
said 'each level has plots' true
said 'with both configurations in each' true
said 'wide enough to be read, and with a text' true
said 'in two colours' true
said 'the cards have the numbers of the report' "\"$(grouped "$REJECTED") [^ ]+ [0-9,]+\""
said 'what a client calls itself stays text' true
said 'long tables are folded up' true
said 'and unfold without a script' true
said 'it says how it was made' true
said 'a picture' true
said 'it loads again' '[0-9.]+'
said 'it fits a phone' true
said 'it is dark' '"rgb\(19, 23, 26\)"'
said 'a picture' true
said 'the browser complains of nothing' '\[\]'
said 'and nothing else was loaded' '\[\]'
summary
