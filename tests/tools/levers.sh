#!/usr/bin/env bash
# weir ctl in an incident: one user floods a small API server beside another. The top talkers name it, a block rejects all of it
# at once, also what waits, and the other one is served. Then the total, a dry run of all limits, a bypass, and the ends of watches.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
export LC_ALL=C.UTF-8 TERM=xterm-256color
need awk curl jq tmux wrk

# Requests of the flood at a time: many more than there are seats.
CONNECTIONS=200
PODS=/api/v1/namespaces/default/pods

# ctl ARGUMENT...: weir ctl, by the default path of the socket.
ctl() {
    "$WEIR" ctl "$@"
}

# levers: those of the status page's data.
levers() {
    curl -sS --max-time 10 "http://$ADMIN/status.json" | jq -c .levers
}

# waiting: the requests in queues.
waiting() {
    curl -sS --max-time 10 "http://$ADMIN/metrics" |
        awk '/^apiserver_flowcontrol_current_inqueue_requests\{/ {sum += $NF} END {print sum + 0}'
}

# shellcheck disable=SC2317,SC2329 # called by `within`
many_wait() {
    (($(waiting) > CONNECTIONS / 4))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
none_waits() {
    (($(waiting) == 0))
}

# More than the 30 seats. What limits that only count would do has queues of its own in the metrics of priority levels.
# shellcheck disable=SC2317,SC2329 # called by `within`
many_inside() {
    (($(get -H "$(bearer admin)" /metrics | series playground_inflight_requests) > CONNECTIONS / 2))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
flood_is_first() {
    ctl talkers --limit 1 | grep -q '^alice '
}

# watches N: so many watches are open.
# shellcheck disable=SC2317,SC2329 # called by `within`
watches() {
    (($(curl -sS --max-time 10 "http://$ADMIN/metrics" |
        awk '/^apiserver_longrunning_requests/ {sum += $NF} END {print sum + 0}') == $1))
}

# watch_by USER: until weir ends it.
watch_by() {
    start "watch-$1" curl -sSN --cacert "$DIR/ca.crt" -H "$(bearer "$1")" "$URL$PODS?watch=1"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
breaks_alice() {
    { "$WEIR" status --admin "http://$ADMIN" || true; } | grep -q '^would break 1 user: alice ('
}

tm() {
    tmux -S "$WORK/tmux" -f /dev/null "$@"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
screen_has() {
    tm capture-pane -p -t top | grep -qE -- "$1"
}

# flood: its requests never stop.
flood() {
    start flood wrk -c "$CONNECTIONS" -t 1 -d 600s -H "$(bearer alice)" "$URL$PODS"
}

# code USER PATH: of a response.
code() {
    get -o "$WORK/body" -w '%{http_code}' -H "$(bearer "$1")" "$2"
}

# Seats for a few of the flood's requests; the rest is queued.
playground front --capacity 4 --service-time 50ms --max-requests-inflight 20 --max-mutating-requests-inflight 10
socket=$XDG_RUNTIME_DIR/weir/control.sock
check 'only its owner can open the socket' 600 "$(stat -c %a "$socket")"
check 'there is no lever at the start' 'there is no lever in force' "$(ctl list)"

flood
check_ok 'the flood waits in queues' within "$LIMIT" many_wait
check_ok 'weir ctl talkers names it first' within "$LIMIT" flood_is_first
ctl block --user alice --dry-run >"$WORK/dry-run"
check_match 'a dry run says what it would hit' 'would have hit [1-9][0-9]* requests.*user +alice' "$(tr '\n' ' ' <"$WORK/dry-run")"
check 'and does nothing' '[]' "$(levers)"
check_match 'its victims wait with it' '^(200|429)$' "$(code bob "$PODS")"

began=$(date +%s%N)
blocked=$(ctl block --user alice --for 5m --reason 'lists in a loop' --as "$SCRIPT")
check_ok 'no request waits any more' within "$(soon 1)" none_waits
took=$((($(date +%s%N) - began) / 1000000))
check_match 'weir says what it does' 'lever 1 is in force for 5m0s: block user=alice' "$blocked"
if nightly; then check_between 'it took less than half a second, this script included, in ms' 0 500 "$took"; fi
printf 'from weir ctl to the last request that waits: %s ms\n' "$took"
slowest=$(for _ in {1..10}; do get -o "$WORK/body" -w '%{time_total}\n' -H "$(bearer bob)" "$PODS"; done | sort -n | tail -n 1)
printf 'the slowest of ten requests of another user after it: %s s\n' "$slowest"
if nightly; then check_ok 'others wait no more' awk -v slowest="$slowest" 'BEGIN {exit !(slowest < 0.5)}'; fi
check 'the flood gets 429' 429 "$(code alice "$PODS")"
check 'with the cause' weir/blocked "$(jq -r '.details.causes[0].reason' "$WORK/body")"
check_match 'and the reason' 'lists in a loop' "$(jq -r .message "$WORK/body")"
check 'the other user is served' 200 "$(code bob "$PODS")"
check_match 'the list has it' "^1 +block +user=alice .* as $SCRIPT +lists in a loop" "$(ctl list | tail -n 1)"
check 'so has the status page' block "$(levers | jq -r '.[0].action')"
check_match 'and weir status' 'lever: 1 block user=alice' "$("$WEIR" status --admin "http://$ADMIN" || true)"
check_match 'and the log' "a lever is in force id=1 .*uid=$(id -u) pid=[0-9]+" "$(<"$WORK/front.err")"
check 'one is in force' 1 "$(metric 'weir_levers{action="block"}')"

check 'a protected target is refused' 1 "$(code=0; ctl block --group system:masters 2>"$WORK/refused" || code=$?; echo "$code")"
check_match 'with a line that says which' 'system:masters' "$(<"$WORK/refused")"
check_match 'it ends when it is undone' 'lever 1 has ended' "$(ctl undo 1)"
check_ok 'and the flood waits again' within "$LIMIT" many_wait
ctl limit --user 'ali*' --inflight 2 --for 2s >"$WORK/limit"
check_ok 'a limit rejects what waits, too' within "$LIMIT" none_waits
check_ok 'and ends by itself' within "$LIMIT" many_wait
ctl total 5000 --reason 'there is room' >"$WORK/total"
check_match 'a total is in force at once' 'lever 3 is in force for 10m0s: total 5000' "$(<"$WORK/total")"
check 'so many seats are there' 5000 "$(metric weir_server_concurrency_limit_seats)"
check_ok 'what waited has a seat' within "$LIMIT" none_waits
check_match 'weir status shows it' 'lever: 3 total 5000 for another .*: there is room' "$("$WEIR" status --admin "http://$ADMIN" || true)"
check 'it has ended' 'lever 3 has ended: total 5000' "$(ctl undo 3)"
check 'with what is configured' 30 "$(metric weir_server_concurrency_limit_seats)"
check_ok 'and the flood waits again' within "$LIMIT" many_wait
ctl dry-run on >"$WORK/dry-run"
check_ok 'what waited is in the API server while limits only count' within "$LIMIT" many_inside
check_ok 'the log says whose requests would have been rejected' within "$LIMIT" logged_or_ended front \
    'would have been rejected: dry run.*user="alice"'
check_ok 'and weir status: whom it would break' within "$LIMIT" breaks_alice
check_match 'weir ctl talkers counts them by user' '^alice +[0-9]+ +[0-9]+ +[1-9][0-9]* ' "$(ctl talkers --sort wouldBeRejections --limit 1 | tail -n 1)"
check_match 'it has ended, too' 'lever 4 has ended: dry-run on' "$(ctl undo 4)"
check_ok 'and the flood waits' within "$LIMIT" many_wait
ctl bypass on >"$WORK/bypass"
check_match 'a bypass says what stays' 'what stays: authentication, levers' "$(<"$WORK/bypass")"
check_ok 'nothing waits without limits' within "$LIMIT" many_inside
ctl block --user alice >"$WORK/block"
check 'a block stays' 429 "$(code alice "$PODS")"
ctl undo 6 >"$WORK/undone"
check 'it has ended as well' 'lever 5 has ended: bypass on' "$(ctl bypass off)"
check_ok 'and the flood waits once more' within "$LIMIT" many_wait

# The same by keys of weir top, in a terminal.
tm new-session -d -s top -x 120 -y 40 "'$WEIR' top --admin http://$ADMIN --control-socket '$socket'"
check_ok 'weir top shows the flood' within "$LIMIT" screen_has '^.?alice '
tm send-keys -t top x
check_ok 'x shows the command that blocks it' within "$LIMIT" screen_has 'weir ctl block .*--user=alice'
check 'and does nothing yet' '[]' "$(levers)"
tm send-keys -t top Enter
check_ok 'Enter sends it' within "$LIMIT" screen_has 'lever 7 is in force'
check_ok 'and what waited is gone' within "$LIMIT" none_waits
tm send-keys -t top Escape
tm send-keys -t top u
check_ok 'u shows the command that ends it' within "$LIMIT" screen_has 'weir ctl undo 7'
tm send-keys -t top Enter
check_ok 'and ends it' within "$LIMIT" screen_has 'lever 7 has ended'
check_ok 'the flood waits again' within "$LIMIT" many_wait
tm kill-server
signal flood TERM
finish flood
watch_by alice
watch_by bob
check_ok 'two watches are open' within "$LIMIT" watches 2
ctl block --user alice >"$WORK/block"
check_ok 'a block leaves them' watches 2
began=$(date +%s%N)
ctl block --user alice --now --reason 'lists in a loop' >"$WORK/block"
check_ok 'with --now that of its target ends' within "$LIMIT" watches 1
printf 'from weir ctl to the end of the watch: %s ms\n' "$((($(date +%s%N) - began) / 1000000))"
ctl undo 8 9 >"$WORK/undone"
ctl disconnect --user bob --over 1s >"$WORK/disconnect"
check_match 'a disconnect is a lever' 'lever 10 is in force for 1s: disconnect user=bob' "$(<"$WORK/disconnect")"
check_ok 'the other one ends by it' within "$LIMIT" watches 0
check 'its user is served' 200 "$(code bob "$PODS")"
# shellcheck disable=SC2317,SC2329 # called by `within`
no_lever() { [[ $(ctl list) == 'there is no lever in force' ]]; }
check_ok 'there is no lever at the end' within "$LIMIT" no_lever
stopped front
check 'the socket is gone with weir' no "$([[ -e $socket ]] && echo yes || echo no)"

# --- whatever else happens -----------------------------------------------------------------------------------------------

# undo_block: ends the last one. The flood waits again.
undo_block() {
    ctl undo "$(sed -n 's/^lever \([0-9]*\) is in force.*/\1/p' "$WORK/block")" >"$WORK/undone"
    check_ok 'without the block the flood waits again' within "$LIMIT" many_wait
}

# none_of_alice WHEN: a block ends what waits at once.
none_of_alice() {
    ctl block --user alice >"$WORK/block"
    check_ok "$1: no request waits any more" within "$(soon 1)" none_waits
}

# shellcheck disable=SC2317,SC2329 # called by `within`
generation() {
    (($(metric weir_config_generation) == $1))
}

apiserver api 0 --capacity 4 --service-time 50ms
printf 'maxRequestsInflight: 20\nmaxMutatingRequestsInflight: 10\n' >"$WORK/weir.yaml"
weir one "$ADDRESS" --config "$WORK/weir.yaml"
flood
check_ok 'the flood waits in front of an API server' within "$LIMIT" many_wait
kill -STOP "${PIDS[api]}"
none_of_alice 'the API server is stopped'
kill -CONT "${PIDS[api]}"
undo_block
printf 'maxRequestsInflight: 21\nmaxMutatingRequestsInflight: 10\n' >"$WORK/weir.yaml"
none_of_alice 'a reload'
check_ok 'the configuration is in force' within "$LIMIT" generation 2
check 'and the block still' 429 "$(code alice "$PODS")"
undo_block
none_of_alice 'a hand-over'
kill -USR2 "${PIDS[one]}"
check_ok 'a new process serves' within "$LIMIT" logged_or_ended one 'the new process serves'
PIDS[two]=$(sed -n 's/.*the new process serves.*pid=\([0-9]*\).*/\1/p' "$WORK/one.err")
# shellcheck disable=SC2317,SC2329 # called by `within`
kept() { [[ $(ctl list) == *'user=alice'* ]]; }
check_ok 'it has the block' within "$LIMIT" kept
check 'the flood gets 429 from it' 429 "$(code alice "$PODS")"
check_ok 'and does not wait there' none_waits
check 'the other user is served' 200 "$(code bob "$PODS")"
undo_block
summary
