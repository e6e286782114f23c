#!/usr/bin/env bash
# FlowSchemas of the cluster: changed at the API server, in force in weir within a second; a thousand changes leave nothing
# behind; the last known set stays while the API server is away, also over a restart.
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"
need curl awk

GROUP=/apis/flowcontrol.apiserver.k8s.io/v1

# schema NAME PRECEDENCE LEVEL: a FlowSchema for alice.
schema() {
    printf '{"metadata": {"name": "%s"}, "spec": {"matchingPrecedence": %s, "priorityLevelConfiguration": {"name": "%s"},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "alice"}}], "resourceRules": [{"verbs": ["*"],
        "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}]}]}}' "$1" "$2" "$3" | tr -d '\n'
}

# api METHOD PATH [BODY]: as the admin, to the API server itself. Prints the code.
api() {
    curl -sS --max-time "$LIMIT" --cacert "$DIR/ca.crt" -o "$WORK/body" -w '%{http_code}' -X "$1" -H "$(bearer admin)" \
        -H 'Content-Type: application/json' ${3:+--data "$3"} "https://$SERVER$2"
}

objects() {
    curl -sS --max-time 10 "http://$ADMIN/debug/api_priority_and_fairness/objects"
}

# shellcheck disable=SC2317,SC2329 # called by `within` and `took`
in_force() {
    [[ $(objects) == *"\"name\":\"$1\",\"origin\":\"cluster\""* ]]
}

# shellcheck disable=SC2317,SC2329
gone() {
    [[ $(objects) != *"\"name\":\"$1\""* && $(objects) == *'"name":"exempt"'* ]]
}

# shellcheck disable=SC2317,SC2329
alice_is_of() {
    get -H "$(bearer alice)" -o /dev/null -D - /api/v1/namespaces/default/pods | grep -qi "^x-weir-flow-schema: $1.\$"
}

# shellcheck disable=SC2317,SC2329
synced() {
    [[ $(metric weir_flowcontrol_cluster_synced) == "$1" ]]
}

# took COMMAND...: milliseconds until it succeeds. Sets TOOK.
took() {
    local start
    start=$(date +%s%N)
    within "$LIMIT" "$@" || die "$* is not so after $LIMIT s"
    TOOK=$((($(date +%s%N) - start) / 1000000))
}

# front NAME FLAG...: weir with credentials of its own before the API server.
front() {
    local name=$1
    shift
    start "$name" "$WEIR" serve --bind-address 127.0.0.1 --secure-port 0 --admin-address 127.0.0.1:0 \
        --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
        --client-ca-file "$DIR/ca.crt" --token-auth-file "$DIR/tokens.csv" --kubeconfig "$DIR/kubeconfig" \
        --explain-responses --state-dir "$WORK/state" "$@"
    fronting "$name"
}

apiserver api 0
SERVER=$ADDRESS
PORT=${SERVER##*:}
front first
within "$LIMIT" synced 1 || die 'weir does not watch'
check_match 'the table says where objects come from' 'exempt +cluster' "$("$WEIR" flowcontrol show --admin "http://$ADMIN")"

printf -- '--- within a second\n'
check 'the API server takes a new schema' 201 "$(api POST "$GROUP/flowschemas" "$(schema crowd 500 workload-high)")"
took in_force crowd
check_between 'a new schema is in force, ms' 0 1000 "$TOOK"
took alice_is_of crowd
check_between 'and requests are classified by it, ms' 0 1000 "$TOOK"
check 'it takes a bad one back' 422 "$(api POST "$GROUP/flowschemas" "$(schema bad 1 workload-high)")"
check_match 'with the reason' "only the schema named 'exempt' may have matchingPrecedence 1" "$(<"$WORK/body")"
check 'it takes the schema away' 200 "$(api DELETE "$GROUP/flowschemas/crowd")"
took gone crowd
check_between 'a deleted schema is no longer in force, ms' 0 1000 "$TOOK"
check_ok 'requests are classified as before' within "$LIMIT" alice_is_of global-default

printf -- '--- a thousand changes in a row\n'
# changes FIRST LAST: for each number a level and a schema are created and deleted: four changes, on one connection.
changes() {
    local n next='' level
    for ((n = $1; n <= $2; n++)); do
        level="{\"metadata\": {\"name\": \"level-$n\"}, \"spec\": {\"type\": \"Limited\", \"limited\": {\"limitResponse\": {\"type\": \"Reject\"}}}}"
        for step in "POST prioritylevelconfigurations $level" "POST flowschemas $(schema "schema-$n" 400 "level-$n")" \
            "DELETE flowschemas/schema-$n" "DELETE prioritylevelconfigurations/level-$n"; do
            printf '%s' "$next"
            next=$'next\n'
            local method=${step%% *} rest=${step#* }
            printf 'url = "https://%s%s/%s"\nrequest = "%s"\nsilent\noutput = "/dev/null"\nwrite-out = "%%{http_code}\\n"\ncacert = "%s/ca.crt"\nheader = "%s"\nheader = "Content-Type: application/json"\n' \
                "$SERVER" "$GROUP" "${rest%% *}" "$method" "$DIR" "$(bearer admin)"
            if [[ $method == POST ]]; then
                rest=${rest#* }
                printf 'data = "%s"\n' "${rest//\"/\\\"}"
            fi
        done
    done >"$WORK/changes.curl"
    curl --max-time 300 -K "$WORK/changes.curl" | sort | uniq -c | tr -s ' \n' ' '
}
memory() {
    awk '/^VmRSS/ {print $2}' "/proc/${PIDS[first]}/status"
}
lines() {
    curl -sS --max-time 10 "http://$ADMIN/metrics" | wc -l
}
check 'the first two hundred succeed' ' 100 200 100 201 ' "$(changes 1 50)"
check_ok 'and are over' within "$LIMIT" gone level-50
before_memory=$(memory) before_lines=$(lines)
check 'a thousand more succeed' ' 500 200 500 201 ' "$(changes 51 300)"
took gone level-300
check_between 'weir has followed all of them, ms' 0 1000 "$TOOK"
grown=$(($(memory) - before_memory))
check_between 'memory has grown by at most 8 MiB, in KiB' 0 8192 "$((grown < 0 ? 0 : grown))"
more=$(($(lines) - before_lines))
check_between 'and the metrics by at most 200 lines' 0 200 "$((more < 0 ? 0 : more))"
check 'the built-in objects are all that is left' 19 "$(metric 'weir_flowcontrol_objects{origin="cluster"}')"

printf -- '--- an API server that is away\n'
check 'a schema to remember' 201 "$(api POST "$GROUP/flowschemas" "$(schema kept 500 workload-high)")"
check_ok 'it is in force' within "$LIMIT" in_force kept
check_ok 'and in the file' within "$LIMIT" grep -q '"kept"' "$WORK/state/flowcontrol.json"
check 'which only its owner reads' 600 "$(stat -c %a "$WORK/state/flowcontrol.json")"
stopped api
check_ok 'weir notices' within "$LIMIT" synced 0
check_ok 'and keeps the schema' in_force kept
stopped first
front second
check_ok 'so does a weir that has just started' in_force kept
second=$ADMIN
apiserver api "$PORT"
ADMIN=$second # `apiserver` has none
check_ok 'it watches as soon as the API server is back' within "$LIMIT" synced 1
check_ok 'whose objects count' within "$LIMIT" gone kept
stopped second
stopped api
summary
