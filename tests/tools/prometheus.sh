#!/usr/bin/env bash
# What deploy/ has for Prometheus and Grafana: the rules are sound and fire when they should, all names exist, and every query of
# the dashboard is answered; and Prometheus scrapes by a service account's token, if the API server allows it. That a Prometheus
# which looks each second says what wrk and h2load saw, throttling.sh shows.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl h2load jq prometheus promtool

DASHBOARD=$ROOT/deploy/grafana-dashboard.json
RULES=$ROOT/deploy/prometheus-rules.yaml
CONFIG=$ROOT/deploy/prometheus.yaml
ALERTS=$ROOT/tests/tools/prometheus/alerts.yaml

LIMIT_IN_FLIGHT=40
REQUESTS=50000

# What promtool has against names that are kube-apiserver's own.
UPSTREAMS_OWN='apiserver_flowcontrol_latest_s metric names should not contain abbreviated units
apiserver_flowcontrol_next_discounted_s_bounds metric names should not contain abbreviated units
apiserver_flowcontrol_next_s_bounds metric names should not contain abbreviated units'
UPSTREAMS_OWN_ALWAYS='authenticated_user_requests counter metrics should have "_total" suffix
authentication_attempts counter metrics should have "_total" suffix'

# What Prometheus itself says about a scrape.
PROMETHEUS_OWN='scrape_duration_seconds up'

# --- by themselves -------------------------------------------------------------------------------------------------------

check_ok 'the rules are sound' promtool check rules "$RULES"
check_ok 'the configuration is sound' promtool check config "$CONFIG"
check_ok 'alerts fire when they should, and only then' promtool test rules "$ALERTS"
check 'and each of them is seen to fire' "$(sed -n 's/.*- alert: //p' "$RULES" | sort)" \
    "$(grep -oP 'alertname="\K[A-Za-z]+(?=", alertstate="firing")' "$ALERTS" | sort -u)"

# --- three weirs, and a Prometheus ---------------------------------------------------------------------------------------

# scraped: what all of them show now is in Prometheus.
scraped() {
    local now
    # Prometheus writes regular times where the true ones differ by some milliseconds.
    now=$(($(date +%s%3N) + 100))
    within "$LIMIT" seen_after "$now" || die "Prometheus has not looked at all of them for $LIMIT s"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
seen_after() {
    [[ $(value "count(timestamp(up{job=\"weir\"}) > $1 / 1000 and up{job=\"weir\"} == 1)") == 3 ]]
}

# ask QUERY [TIME]: Prometheus' answer.
ask() {
    curl -sS --max-time "$LIMIT" --data-urlencode "query=$1" ${2:+--data-urlencode "time=$2"} "http://$PROMETHEUS/api/v1/query"
}

# value QUERY [TIME]: the one number that it is.
value() {
    ask "$@" | jq -r 'if .data.result | length == 1 then .data.result[0].value[1] else tojson end'
}

# comes_to QUERY NUMBER: GOT is what it is in the end; a look that failed leaves nothing to see for a moment.
comes_to() {
    # shellcheck disable=SC2317,SC2329 # called by `within`
    is() {
        GOT=$(value "$1")
        [[ $GOT == "$2" ]]
    }
    within "$LIMIT" is "$1" "$2" || true
}

# shellcheck disable=SC2317,SC2329 # called by `within`
listening() {
    PROMETHEUS=$(sed -n 's/.*msg="Listening on".* address=\([0-9.:]*\).*/\1/p' "$WORK/prometheus.err")
    [[ -n $PROMETHEUS ]]
}

# The configuration as it is, with these targets, and a look each second.
watching() {
    mkdir "$WORK/etc"
    sed "s#targets: \[127.0.0.1:6480\]#targets: [$1, $2, $3]#; s/^    scrape_interval: 15s/    scrape_interval: 1s/
        s/^    scrape_timeout: 10s/    scrape_timeout: 1s/" "$CONFIG" >"$WORK/etc/prometheus.yaml"
    cp "$RULES" "$WORK/etc/"
    authorized >>"$WORK/etc/prometheus.yaml"
    start prometheus prometheus --config.file "$WORK/etc/prometheus.yaml" --storage.tsdb.path "$WORK/tsdb" \
        --web.listen-address 127.0.0.1:0
    within "$LIMIT" listening || die 'Prometheus does not listen'
    scraped
}

# authorized: scrapes over TLS, by a service account's token and without one, of the weir whose API server decides about them.
authorized() {
    local job
    for job in with-token without-token; do
        cat <<END
  - job_name: $job
    scheme: https
    scrape_interval: 1s
    scrape_timeout: 1s
    tls_config: {ca_file: $DELEGATED_DIR/ca.crt}
    static_configs: [{targets: ["$DELEGATED"]}]
END
        [[ $job == without-token ]] || printf '    authorization: {credentials_file: %s}\n' "$DELEGATED_DIR/service-account.token"
    done
}

# with_authorization: who is let in is Prometheus' to say, and curl's.
with_authorization() {
    local url=https://$DELEGATED
    comes_to 'up{job="with-token"}' 1
    check 'Prometheus scrapes over TLS by the token of a service account' 1 "$GOT"
    comes_to 'up{job="without-token"}' 0
    check 'and not without a token' 0 "$GOT"
    comes_to '0 < bool weir_admin_reviews_total{job="with-token",kind="SubjectAccessReview",result="allowed"}' 1
    check 'because the API server allows it' 1 "$GOT"
    # shellcheck disable=SC2317,SC2329 # called by `check`
    code() { curl -sS -o "$WORK/body" -w '%{http_code}' --max-time "$LIMIT" --cacert "$DELEGATED_DIR/ca.crt" "$@"; }
    check 'a made-up token is no credential' 401 "$(code -H 'Authorization: Bearer made-up' "$url/metrics")"
    check_match 'which is said' 'the bearer token is not valid' "$(<"$WORK/body")"
    check 'an administrator may see the page' 200 "$(code -H "$DELEGATED_ADMIN" "$url/")"
    check_match 'weir status asks with a token' '"version"' "$("$WEIR" status -o json --admin "$url" \
        --certificate-authority "$DELEGATED_DIR/ca.crt" --token-file "$DELEGATED_DIR/service-account.token" 2>&1)"
    check 'probes need no token' 200 "$(code "$url/livez")"
}

# cut_off: a request that finds no API server, at the weir that has none.
cut_off() {
    local code
    code=$(curl -sS -o /dev/null -w '%{http_code}' --max-time "$LIMIT" --cacert "$CUT_OFF_DIR/ca.crt" "$CUT_OFF_URL/api")
    [[ $code == 503 ]]
}

# --- with max-in-flight limits --------------------------------------------------------------------------------------------

with_limits() {
    local refused
    start h2load h2load -n "$REQUESTS" -c 100 -m 10 -H "$ALICE" "$PLAY_URL/api/v1/nodes"
    finish h2load 120
    check 'h2load ends' 0 "$STATUS"
    scraped
    refused=$(sed -n 's/^status codes:.* \([0-9]*\) 4xx.*/\1/p' "$WORK/h2load.out")
    comes_to "sum(apiserver_request_terminations_total{instance=\"$PLAY\",code=\"429\"})" "$refused"
    check "Prometheus has h2load's refusals" "$refused" "$GOT"
}

# --- with fairness -------------------------------------------------------------------------------------------------------

# shellcheck disable=SC2317,SC2329 # called by `within`
watched() {
    curl -sS "http://$FAIR/metrics" | grep '^apiserver_longrunning_requests{.*verb="WATCH"'
}

# Fills the queues of a level, so that some are refused and these are held back; and opens a watch.
with_fairness() {
    local refused
    start watch curl -sSN --cacert "$FAIR_DIR/ca.crt" -H "$FAIR_ALICE" "$FAIR_URL/api/v1/nodes?watch=1"
    check_ok 'a watch is open' within "$LIMIT" watched
    start flood h2load -n 5000 -c 100 -m 10 -H "$FAIR_ALICE" "$FAIR_URL/api/v1/nodes"
    finish flood 120
    check 'a flood ends' 0 "$STATUS"
    check_ok 'a request finds no API server' cut_off
    scraped
    refused=$(sed -n 's/^status codes:.* \([0-9]*\) 4xx.*/\1/p' "$WORK/flood.out")
    comes_to "sum(apiserver_flowcontrol_rejected_requests_total{instance=\"$FAIR\"})" "$refused"
    check "Prometheus has the flood's refusals" "$refused" "$GOT"
    comes_to "0 < bool sum(weir_rejection_holds_total{instance=\"$FAIR\"})" 1
    check_between 'some of them were held back' 1 5000 "$(value "sum(weir_rejection_holds_total{instance=\"$FAIR\"})")"
}

# --- names, and what is asked with them ----------------------------------------------------------------------------------

# shows NAME ADMIN EXPECTED: a scrape, to $WORK/NAME.scrape, and what promtool has against it.
shows() {
    curl -sS "http://$2/metrics" >"$WORK/$1.scrape"
    check "promtool has nothing against the metrics of $1 but upstream's own names" "$3" \
        "$(promtool check metrics <"$WORK/$1.scrape" 2>&1 | sort)"
}

# Samples, and histograms by their own name; and what has no sample before it happens, which the table in docs/reference/metrics.md has from the program.
exposed() {
    sed -nE 's/^\| .((apiserver|weir)_[a-z_]+). \| .*/\1/p' "$ROOT/docs/reference/metrics.md"
    sed -nE 's/^# HELP ([a-z_]+) .*/\1/p; s/^([a-z_]+)[{ ].*/\1/p' "$WORK"/*.scrape
    tr ' ' '\n' <<<"$PROMETHEUS_OWN"
    sed -n 's/.*- record: //p' "$RULES"
}

# Metrics that are named anywhere, in queries or in words.
named() {
    grep -ohE '\b(apiserver|process|scrape|weir)_[a-z_0-9]+|\bweir:[a-z_:0-9]+|\bup\{' "$DASHBOARD" "$RULES" | tr -d '{' | sort -u
}

check_names() {
    check_between 'the dashboard and the rules name metrics' 30 1000 "$(named | wc -l)"
    check 'all of them exist' '' "$(comm -23 <(named) <(exposed | sort -u))"
}

# Every query of the dashboard, as Grafana would send it, has an answer with something in it.
check_dashboard() {
    local query asked=0
    # shellcheck disable=SC2317,SC2329 # called by `within`
    answered() {
        ANSWER=$(ask "$1" |
            jq -r 'if .status != "success" then .error elif .data.result == [] then "nothing" else "something" end')
        [[ $ANSWER == something ]]
    }
    while read -r query; do
        asked=$((asked + 1))
        within "$LIMIT" answered "$query" || fail "the dashboard asks $query" something "$ANSWER"
    done < <(jq -r '.panels[].targets[]?.expr | gsub("\\$__rate_interval"; "1m") | gsub("\\$job"; "weir")
        | gsub("\\$(instance|priority_level)"; ".*")' "$DASHBOARD")
    check_between 'the dashboard has its queries answered' 50 500 "$asked"
    check 'panels have ids and titles of their own, and a place in the grid' '' "$(jq -r '
        ([.panels[].id] | group_by(.)[] | select(length > 1) | "id \(.[0])"),
        (.panels[] | select(.type != "row") | select((.title // "") == "" or .gridPos.x + .gridPos.w > 24) | "panel \(.id)")' "$DASHBOARD")"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
evaluated() {
    curl -sS "http://$PROMETHEUS/api/v1/rules" >"$WORK/rules.json"
    jq -e '[.data.groups[].rules[].health] | length > 0 and all(. != "unknown")' "$WORK/rules.json"
}

# shellcheck disable=SC2317,SC2329 # called by `within`
pending() {
    cut_off # again, for what is still the case
    curl -sS "http://$PROMETHEUS/api/v1/alerts" |
        jq -e --arg name "$1" --arg instance "$2" '.data.alerts[].labels | select(.alertname == $name and .instance == $instance)'
}

check_rules() {
    check_ok 'all rules are evaluated' within 60 evaluated
    check 'and none fails' '' "$(jq -r '.data.groups[].rules[] | select(.health != "ok") | "\(.name): \(.lastError)"' "$WORK/rules.json")"
    # Once more: what was over between two looks has no rate.
    start again h2load -n 2000 -c 100 -m 10 -H "$ALICE" "$PLAY_URL/api/v1/nodes"
    finish again 120
    check_ok 'the flood is noticed' within 60 pending WeirRefuses "$PLAY"
    check_ok 'an API server that is away is noticed' within 60 pending WeirUpstreamDown "$CUT_OFF"
}

# Limits that are there, so that they are shown, and that nobody reaches.
cat >"$WORK/events.yaml" <<END
apiVersion: eventratelimit.admission.k8s.io/v1alpha1
kind: Configuration
limits:
- {type: Server, qps: 1000, burst: 1000}
END
cat >"$WORK/clients.yaml" <<END
clientLimits:
- name: nobody
  rules:
  - subjects: [{kind: User, user: {name: nobody}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]
END
playground play --enable-priority-and-fairness=false --max-requests-inflight "$LIMIT_IN_FLIGHT" --capacity "$LIMIT_IN_FLIGHT" \
    --service-time 50ms --rejection-hold 0s
PLAY=$ADMIN PLAY_URL=$URL ALICE=$(bearer alice)
playground fair --service-time 50ms --config "$WORK/clients.yaml" --event-rate-limit-config "$WORK/events.yaml"
FAIR=$ADMIN FAIR_URL=$URL FAIR_DIR=$DIR FAIR_ALICE=$(bearer alice)
# Nobody listens at the API server's address, nor at that of the shared limits. It is one of several replicas that sees no other.
printf '%s\n' 0123456789abcdef0123456789abcdef >"$WORK/shared.key"
cat >"$WORK/away.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: away, cluster: {server: "https://127.0.0.1:1", certificate-authority: "$DIR/ca.crt"}}]
contexts: [{name: away, context: {cluster: away, user: own}}]
current-context: away
users: [{name: own, user: {token: "$(token admin)"}}]
END
start cut-off "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" --tls-cert-file "$DIR/tls.crt" \
    --tls-private-key-file "$DIR/tls.key" --token-auth-file "$DIR/tokens.csv" --kubeconfig "$WORK/away.kubeconfig" \
    --replica-membership leases --replica-namespace kube-system --shared-limits redis://127.0.0.1:1 --shared-key-file "$WORK/shared.key"
fronting cut-off
CUT_OFF=$ADMIN CUT_OFF_URL=$URL CUT_OFF_DIR=$DIR
apiserver delegated 0
DELEGATED_DIR=$DIR DELEGATED_ADMIN=$(bearer admin)
start delegated-weir "$WEIR" serve --bind-address 127.0.0.1 "${anywhere[@]}" --tls-cert-file "$DIR/tls.crt" \
    --tls-private-key-file "$DIR/tls.key" --kubeconfig "$DIR/kubeconfig" --admin-tls-cert-file "$DIR/tls.crt" \
    --admin-tls-private-key-file "$DIR/tls.key" --admin-authorization-mode Webhook
fronting delegated-weir
DELEGATED=$ADMIN
watching "$PLAY" "$FAIR" "$CUT_OFF"
with_authorization
with_limits
with_fairness
shows play "$PLAY" "$UPSTREAMS_OWN_ALWAYS"
shows fair "$FAIR" "$UPSTREAMS_OWN"$'\n'"$UPSTREAMS_OWN_ALWAYS"
check_names
check_rules
check_dashboard
summary
