#!/usr/bin/env bash
# What weir logs: refusals, ten a second of each reason and one line for the others; a line for each request for who asks for
# it while weir runs; and what is no filter changes nothing.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need curl h2load jq

# level [CURL'S ARGUMENT...]: what the admin listener says, and the code.
level() {
    curl -sS --max-time "$LIMIT" -w '%{http_code}' "$@" "http://$ADMIN/debug/log_level"
}

# lines TARGET: the lines of that part of weir, as objects.
lines() {
    jq -cR --arg target "$1" 'fromjson? | select(.target == $target)' "$WORK/play.err"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
seen() {
    [[ $(lines "$1" | wc -l) == "$2" ]]
}

# shellcheck disable=SC2317,SC2329 # called by `within`
all_told() {
    [[ $(told) == "$1" ]]
}

# told: the refusals that the log tells of, written down or summed up.
told() {
    lines weir::rejections | jq -s 'map(.fields.more // 1) | add // 0'
}

flood() {
    start flood h2load -n 20000 -c 50 -m 10 -H "$ALICE" "$URL/api/v1/nodes"
    finish flood 120
    check 'a flood ends' 0 "$STATUS"
    REFUSED=$(sed -n 's/^status codes:.* \([0-9]*\) 4xx.*/\1/p' "$WORK/flood.out")
    check_between 'many are refused' 1000 20000 "$REFUSED"
    check_ok 'the log tells of each, written down or summed up' within "$LIMIT" all_told "$REFUSED"
    check_between 'in few lines' 11 $(((SECONDS + 2) * 11)) "$(lines weir::rejections | wc -l)"
    check 'a line says who, what and which limit' '["alice","GET","/api/v1/nodes","max-in-flight"]' \
        "$(lines weir::rejections | jq -sc 'first(.[] | select(.fields.message == "rejected")) | .fields
            | [.user, .method, .uri, .reason]')"
    check 'and has an id of its own' "$(lines weir::rejections | jq -s '[.[] | select(.fields.message == "rejected")] | length')" \
        "$(lines weir::rejections | jq -s '[.[] | select(.fields.message == "rejected") | .fields.audit_id | strings] | unique | length')"
    check_match 'and the others are a line' \
        '^[0-9]+ more rejections by max-in-flight in the last second, most from user "alice"$' \
        "$(lines weir::rejections | jq -sr '[.[] | select(.fields.more)][0].fields.message')"
}

asked_for() {
    check 'what is logged can be seen' $'info\n200' "$(level)"
    check 'requests are not, unless it is asked for' 0 "$(lines weir::access | wc -l)"
    check 'it can be changed' $'weir::access=debug,info\n200' "$(level -X PUT -d 'weir::access=debug,info')"
    get -o /dev/null -D "$WORK/told" -A teller/1.0 -H "$ALICE" '/api/v1/nodes?limit=2'
    check_ok 'a request is a line then' within "$LIMIT" seen weir::access 1
    check 'which says what became of it' '["LIST","/api/v1/nodes?limit=2","alice","teller/1.0",200]' \
        "$(lines weir::access | jq -sc '.[0].fields | [.verb, .URI, .user, .userAgent, .resp]')"
    check 'and has the id that the client was told' "$(tr -d '\r' <"$WORK/told" | awk 'tolower($1) == "audit-id:" { print $2 }')" \
        "$(lines weir::access | jq -sr '.[0].fields["audit-ID"]')"
    check 'what is no filter is refused' '400' "$(level -o /dev/null -X PUT -d 'weir=loud')"
    check_match 'and it says what would be one' '"weir=loud" is no filter: give LEVEL or MODULE=LEVEL' \
        "$(level -X PUT -d 'weir=loud')"
    check 'nothing has changed by it' $'weir::access=debug,info\n200' "$(level)"
    check 'and back' $'info\n200' "$(level -X PUT -d info)"
    get -o /dev/null -H "$ALICE" /api/v1/nodes
    check_ok 'the change itself is logged' within "$LIMIT" seen weir::observe::admin::log_level 2
    check 'there are no more lines' 1 "$(lines weir::access | wc -l)"
}

playground play --logging-format json --enable-priority-and-fairness=false --max-requests-inflight 5 --capacity 5 \
    --service-time 5ms --rejection-hold 0s
ALICE=$(bearer alice)
SECONDS=0
asked_for
flood
summary
