#!/usr/bin/env bash
# A record of what passes: of a running weir by `weir record`, and by a setting that a reload changes. Names that are
# replaced, limits that hold, and nothing that is secret.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need curl gzip jq

# arrivals FILE [FILTER]: its requests.
arrivals() {
    jq -c "select(.at_ms) | ${2:-.}" "$1" 2>/dev/null
}

# shellcheck disable=SC2317,SC2329 # called by `within`
has_arrivals() {
    (($(arrivals "$1" | wc -l) >= $2))
}

# shellcheck disable=SC2317,SC2329 # called by `within`
is_recording() {
    [[ $(metric weir_record_active) == "$1" ]]
}

# settings LINE...: the --config file of weir.
settings() {
    printf '%s\n' 'maxRequestsInflight: 400' "$@" >"$WORK/.new"
    mv "$WORK/.new" "$WORK/weir.yaml"
}

requests() {
    local n
    for n in 1 2 3; do
        get -o /dev/null -H "$(bearer alice)" -A "recorder-test/$n" \
            "/api/v1/namespaces/default/pods?limit=$n&access_token=s3cr3t"
    done
}

by_command() {
    start record "$WEIR" record --admin "http://$ADMIN" -o "$WORK/record.jsonl" --source-addresses
    check_ok 'weir record connects' within "$LIMIT" is_recording 1
    requests
    check_ok 'what passes is in the record' within "$LIMIT" has_arrivals "$WORK/record.jsonl" 3
    signal record INT
    finish record
    check 'weir record ends with 0 on SIGINT' 0 "$STATUS"
    check_match 'and says what it has' '3 requests recorded, 0 missing, [0-9]+ bytes \(stopped\)' "$(<"$WORK/record.err")"
    check_ok 'nothing is recorded any more' within "$LIMIT" is_recording 0
    check 'an arrival has what a replay needs' \
        '["GET","/api/v1/namespaces/default/pods?limit=1&access_token=redacted","alice","127.0.0.1",200,"recorder-test/1"]' \
        "$(arrivals "$WORK/record.jsonl" '[.method, .url, .user, .source, .code, .user_agent]' | head -n 1)"
    check 'and times' true "$(arrivals "$WORK/record.jsonl" '.at_ms > 1e12 and .service_ms > 0' | sort -u)"
    check 'the last line says that it is whole' '{"dropped":0,"end":"stopped","lines":3}' \
        "$(tail -n 1 "$WORK/record.jsonl" | jq -Sc .record)"
    check_no_match 'no credential is in it' "s3cr3t|$(token alice)" "$(<"$WORK/record.jsonl")"
    check 'only its owner may read it' 600 "$(stat -c %a "$WORK/record.jsonl")"
}

limits() {
    start timed "$WEIR" record --admin "http://$ADMIN" --for 200ms
    finish timed
    check 'weir record ends after its time' '0 "max-duration"' "$STATUS $(tail -n 1 "$WORK/timed.out" | jq -c .record.end)"
    check_ok 'and is forgotten' within "$LIMIT" is_recording 0
    start nowhere "$WEIR" record --admin http://127.0.0.1:1 -o "$WORK/nowhere.jsonl"
    finish nowhere
    check 'without a weir it fails' 1 "$STATUS"
    check 'and leaves no file' no "$([[ -e $WORK/nowhere.jsonl ]] && echo yes || echo no)"
}

compressed() {
    start gzip "$WEIR" record --admin "http://$ADMIN" -o "$WORK/record.jsonl.gz"
    check_ok 'weir record connects for a compressed file' within "$LIMIT" is_recording 1
    requests
    signal gzip INT
    finish gzip
    check 'a compressed record is whole' '0 stopped' "$STATUS $(gzip -cd "$WORK/record.jsonl.gz" | tail -n 1 | jq -r .record.end)"
    check_ok 'and is over' within "$LIMIT" is_recording 0
    check 'it can be replayed' "$(gzip -cd "$WORK/record.jsonl.gz" | jq -c 'select(.at_ms)' | wc -l)" \
        "$("$WEIR" replay -o json "$WORK/record.jsonl.gz" | jq .input.arrivals)"
    head -c 100 "$WORK/record.jsonl.gz" >"$WORK/cut.gz"
    check 'one that is cut off is counted' 1 "$("$WEIR" replay -o json "$WORK/cut.gz" | jq .input.skipped.truncated)"
}

by_setting() {
    head -c 32 /dev/urandom | base64 >"$WORK/pseudonyms.key"
    settings "recordPath: $WORK/shared.jsonl" "recordPseudonymKeyFile: $WORK/pseudonyms.key"
    check_ok 'a reload begins a record' within "$LIMIT" is_recording 1
    requests
    check_ok 'what passes is in it' within "$LIMIT" has_arrivals "$WORK/shared.jsonl" 3
    settings
    check_ok 'a reload ends it' within "$LIMIT" is_recording 0
    check 'its last line says so' '"stopped"' "$(tail -n 1 "$WORK/shared.jsonl" | jq -c .record.end)"
    check_no_match 'names are replaced' 'alice|recorder-test|s3cr3t' "$(<"$WORK/shared.jsonl")"
    check 'a user has one pseudonym' 1 "$(arrivals "$WORK/shared.jsonl" .user | sort -u | wc -l)"
    check_match 'system: names stay' 'system:authenticated' "$(arrivals "$WORK/shared.jsonl" .groups)"
    check 'so do namespaces that every cluster has, and parameters that decide about the cost' \
        '["/api/v1/namespaces/default/pods","limit=1"]' \
        "$(arrivals "$WORK/shared.jsonl" '.url | split("?") | [.[0], (.[1] | split("&")[0])]' | head -n 1)"
    printf 'short\n' >"$WORK/short.key"
    check_match 'a key that could be tried is refused' 'shorter than 16 bytes' \
        "$("$WEIR" record --admin "http://$ADMIN" --pseudonym-key-file "$WORK/short.key" 2>&1 || true)"
}

settings
apiserver api 0
weir front "$ADDRESS" --config "$WORK/weir.yaml"
by_command
limits
compressed
by_setting
stopped front
summary
