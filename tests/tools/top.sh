#!/usr/bin/env bash
# `weir top` in a real terminal (tmux) and without one: it displays a flood, handles keys, survives
# a restart of weir, and restores the terminal.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need jq tmux wrk

export LC_ALL=C.UTF-8 TERM=xterm-256color
TMUX_SOCKET=$WORK/tmux
tm() {
    tmux -S "$TMUX_SOCKET" -f /dev/null "$@"
}
screen() {
    tm capture-pane -p -t top
}
# shellcheck disable=SC2317,SC2329 # called by `within`
screen_has() {
    screen | grep -qE -- "$1"
}
# sees WHAT REGEX: a line of the screen matches, sooner or later.
sees() {
    if within "$LIMIT" screen_has "$2"; then pass "$1"; else fail "$1" "a line like $2" "$(screen)"; fi
}
keys() {
    tm send-keys -t top "$@"
}

cat >"$WORK/limits.yaml" <<'LIMITS'
clientLimits:
- name: tried-out
  dryRun: true
  rules:
  - subjects: [{kind: User, user: {name: alice}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]
LIMITS
playground front --enable-priority-and-fairness=false --max-requests-inflight 4 --service-time 20ms --config "$WORK/limits.yaml"
FIRST=$ADMIN
start flood wrk -t 1 -c 64 -d 300 -H "$(bearer alice)" "$URL/api/v1/nodes"

# --- status --------------------------------------------------------------------------------------------------------------

# Its exit code is about alarms; 2 is also a wrong flag.
once() {
    local code=0
    "$WEIR" status --admin "http://$FIRST" "$@" || code=$?
    ((code < 2)) || return "$code"
}
# shellcheck disable=SC2317,SC2329 # called by `within`
flooded() {
    once -o json | jq -e '.rejections["max-in-flight"] > 0 and .levels[0].seatsInUse == 4 and
        ([.talkers[] | select(.by == "user")][0].rows[0].name == "alice")'
}
check_ok 'once, as JSON' within "$LIMIT" flooded
# The flood is held, so that there are moments when fewer seats are taken: one table has all of it, sooner or later.
# shellcheck disable=SC2317,SC2329 # called by `within`
full_table() {
    table=$(once)
    [[ $table =~ $1 ]]
}
level=$'\n''readOnly +4/4 +- +0 +- +[0-9.k]+ +[1-9][0-9.k]* +[0-9]+'$'\n'
within "$LIMIT" full_table "$level" || true
check_match 'once, as a table: the level' "$level" "$table"
check_match '... and who it is' $'\n''alice +[0-9]+ ' "$table"
check_match '... and the limit that is tried out' $'\n''clientLimits/tried-out \(dry run\) +each user: .*alice \([1-9]' "$table"
check_match 'talkers by something else, over another time' $'\n''USERAGENT \(5m\) ' "$(once --by userAgent --window 5m --sort bytes)"
# shellcheck disable=SC2317,SC2329 # called by `check_ok`
chosen() {
    once -o json --by namespace --window 60m | jq -e '(.rateLimits[0].dryRun) and (.talkers | length == 1 and
        .[0].by == "namespace" and .[0].windowSeconds == 3600)'
}
check_ok '... as JSON, with the limit' chosen
code=0
said=$(once --by agent 2>&1) || code=$?
check_match 'a wrong name is told with the right ones' '^2 .*user, userAgent, sourceAddress, namespace, resource, flow' "$code $said"
code=0
said=$("$WEIR" status --admin http://127.0.0.1:9 2>&1) || code=$?
check 'where nobody is it says so, and fails' '3 weir: http://127.0.0.1:9 is not reachable: Connection refused (os error 111)' "$code $said"
code=0
said=$("$WEIR" status --admin ftp://127.0.0.1:9 2>&1) || code=$?
check_match 'a wrong address is told with the right form' '^2 .*http://127.0.0.1:6480' "$code $said"
code=0
said=$("$WEIR" top --admin "http://$FIRST" 2>&1 </dev/null | cat; exit "${PIPESTATUS[0]}") || code=$?
check_match 'without a terminal it says what to do' '^2 .*weir status' "$code $said"

# --- live ----------------------------------------------------------------------------------------------------------------

tm new-session -d -s top -x 140 -y 40 "bash --norc --noprofile"
keys "PS1='back> '; clear; $WEIR top --admin http://$FIRST" Enter
sees 'it shows that weir is ready' '^weir [0-9.]+ +up .* ready '
sees 'it shows the flood' '^rejections +[1-9][0-9.k]*/s +max-in-flight'
sees 'it shows the level' '^readOnly +█{10} 4/4 .* [1-9]'
sees 'it shows who it is' '^alice .* [1-9]'
sees 'it shows the limit' '^clientLimits/tried-out \(dry run\) '
keys b w
sees 'keys choose other talkers' 'top talkers by userAgent, 5m'
# shellcheck disable=SC2317,SC2329 # called by `check_ok`
first_level() {
    [[ $(screen | sed -nE 's/^(mutating|readOnly) .*/\1/p') == "$1"$'\n'* ]]
}
check_ok 'by rejections, readOnly first' within "$LIMIT" first_level readOnly
keys 1
check_ok 'a key sorts: by name, mutating first' within "$LIMIT" first_level mutating
keys '/' readonly Enter
sees 'a filter leaves one' 'max in flight 1/2'
keys Escape
sees 'Escape clears it' 'max in flight 2/2'
keys Space
sees 'it can be frozen' FROZEN
keys Space
keys '?'
sees 'it shows its keys' 'sort levels by that column'
keys x
tm resize-window -t top -x 60 -y 12
sees 'a small terminal has the most important' '^readOnly █{5} 4/4 +0 +[1-9]'
tm resize-window -t top -x 140 -y 40
signal flood KILL
signal front KILL
{ wait "${PIDS[flood]}" "${PIDS[front]}" || true; } 2>/dev/null
sees 'it says when weir has gone' 'not reachable: .*trying again'
start again "$WEIR" playground --dir "$WORK/again" --secure-port 0 --admin-address "$FIRST" --flowcontrol-enforcement DryRun
serving again
sees 'it finds the next one' '^weir [0-9.]+ +up [0-9]s'
sees '... with its levels' 'priority levels 8/8'
sees '... and that it refuses nothing' 'DRY RUN: LEVELS REJECT NOTHING'
keys q
sees 'it gives the terminal back' '^back> *$'
check_no_match '... as it was' 'priority levels' "$(screen)"
tm kill-server
stopped again
summary
