#!/usr/bin/env bash
# Version, completions in bash and zsh, explanations of requests, manual pages in man, and `weir check` against the playground's API server.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk bash groff jq man openssl zsh

# completed WORD...: what bash offers for the last word of this line, sorted. A bash of its own reads the script.
completed() {
    # shellcheck disable=SC2016 # for that bash
    bash --norc --noprofile -euo pipefail -c '
        script=$1
        shift
        source "$script"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        specification=$(complete -p weir)
        [[ $specification =~ -F\ ([^ ]+) ]]
        "${BASH_REMATCH[1]}" weir "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf "%s\n" "${COMPREPLY[@]}" | sort
    ' bash "$WORK/weir.bash" "$@" 2>&1
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml" | head -n 1)
check 'weir version: the first line is that of --version' "$("$WEIR" --version)" "$("$WEIR" version | head -n 1)"
check 'weir version: that of the manifest' "weir $version" "$("$WEIR" version | head -n 1)"
check 'weir version -o json' "$version" "$("$WEIR" version -o json | jq -r .version)"
check_match 'weir version: features' '^features: .*playground' "$("$WEIR" version | grep '^features')"
check_ok 'a reader that closes its pipe early is no failure' bash -o pipefail -c "'$WEIR' completions zsh | head -c 1"
code=0
"$WEIR" version >/dev/full 2>"$WORK/said" || code=$?
check 'a full disk is: exit code' 1 "$code"
check_match '... and says so' 'cannot write to the standard output' "$(<"$WORK/said")"

for shell in bash elvish fish powershell zsh; do
    check_ok "completions $shell" bash -c "'$WEIR' completions $shell >'$WORK/weir.$shell'"
    check_match "$shell: names a flag" 'max-requests-inflight' "$(<"$WORK/weir.$shell")"
done
code=0
"$WEIR" completions tcsh >"$WORK/said" 2>&1 || code=$?
check 'a shell that is not known: exit code' 2 "$code"
check_ok 'bash reads its script' bash -n "$WORK/weir.bash"
check_ok 'zsh reads its script' zsh --no-rcs -n "$WORK/weir.zsh"

commands=$("$WEIR" --help | awk '/^Commands:/ {on = 1; next} on && !NF {exit} on && /^  [a-z]/ {print $1}' | sort)
check_match 'help lists commands' 'serve' "$commands"
for command in $commands; do
    check_match "bash offers $command" "(^|"$'\n'")$command($|"$'\n'")" "$(completed weir '')"
done
check 'bash completes a command' 'playground' "$(completed weir pl)"
check 'bash completes a flag of serve' \
    "$("$WEIR" serve --help | grep -o '^ *--max-[a-z0-9-]*' | tr -d ' ' | sort -u)" "$(completed weir serve --max-)"
check 'bash completes a value' $'json\ntext' "$(completed weir serve --logging-format '')"
check 'bash completes a shell' 'fish' "$(completed weir completions 'fi')"
check 'bash completes nothing where nothing fits' '' "$(completed weir serve --no-such)"

explained=$("$WEIR" explain GET /api/v1/pods --user alice --group devs)
check_match 'explain: the schema' 'flow schema: global-default' "$explained"
check_match '... and why the others do not match' 'exempt: no subject is this user' "$explained"
check '... within 80 columns' '' "$(LC_ALL=C.UTF-8 grep -E '.{81}' <<<"$explained")"
check '... without colours in a pipe' '' "$(grep $'\e' <<<"$explained")"
check 'explain -o json' 'system-nodes' \
    "$("$WEIR" explain GET /api/v1/pods --user a --group system:nodes -o json | jq -r .flow_schema_match.flow_schema)"
cat >"$WORK/schema.yaml" <<'END'
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: mine}
spec:
  priorityLevelConfiguration: {name: workload-low}
  matchingPrecedence: 2
  distinguisherMethod: {type: ByNamespace}
  rules:
  - subjects: [{kind: User, user: {name: alice}}]
    resourceRules: [{verbs: [list], apiGroups: [''], resources: [pods], clusterScope: true, namespaces: ['*']}]
END
printf 'flowcontrolConfig: [%s]\nmaxRequestsInflight: 40\ntlsCertFile: /nowhere\n' "$WORK/schema.yaml" >"$WORK/weir.yaml"
check 'explain reads the settings of serve, and no certificates' 'mine' \
    "$("$WEIR" explain GET /api/v1/pods --user alice --config "$WORK/weir.yaml" -o json | jq -r .flow_schema_match.flow_schema)"
code=0
"$WEIR" explain GET /api/v1/pods --flowcontrol-config "$WORK/nowhere" >"$WORK/said" 2>&1 || code=$?
check 'explain with a file that is not there: exit code' 2 "$code"
code=0
printf '{"method":"GET","url":"/healthz"}\nno request\n{"method":"GET","url":"/version"}\n' |
    "$WEIR" explain --batch >"$WORK/lines" || code=$?
check 'explain --batch with a line that is no request: exit code' 1 "$code"
check '... and a line for each' $'/healthz\n2\n/version' "$(jq -r '.line // .request_info.path' "$WORK/lines")"
seq 10000 | sed 's|.*|{"method":"GET","url":"/version?&"}|' >"$WORK/many"
check 'explain --batch: every line' 10000 "$("$WEIR" explain --batch <"$WORK/many" | wc -l)"
check_ok '... a reader that closes its pipe early is no failure' bash -o pipefail -c \
    "'$WEIR' explain --batch <'$WORK/many' | head -n 1"

check_ok 'manual pages' "$WEIR" man "$WORK/man/man1"
check 'a page for the program, and one for each command' \
    "$( (echo weir.1; for command in $commands ctl-{block,bypass,disconnect,drain,dry-run,limit,list,talkers,total,undo} flowcontrol-show; do [[ $command == help ]] || echo "weir-$command.1"; done) | sort)" \
    "$(find "$WORK/man/man1" -name '*.1' -printf '%f\n' | sort)"
for page in "$WORK"/man/man1/*.1; do
    check "$(basename "$page"): groff warns of nothing" '' "$(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null)"
done
shown=$(MANPATH=$WORK/man MANWIDTH=100 man weir-serve 2>"$WORK/said")
check_match 'man shows a flag' '--max-requests-inflight' "$shown"
for flag in $("$WEIR" serve --help | grep -o '^ *--[a-z0-9-]*'); do
    if [[ $shown != *"$flag"* ]]; then fail "man shows $flag" "$flag" 'a page without it'; fi
done
touch "$WORK/file"
code=0
"$WEIR" man "$WORK/file/man1" >"$WORK/said" 2>&1 || code=$?
check 'a folder that cannot be made: exit code' 1 "$code"
check_match '... and says which' "cannot write manual pages to $WORK/file/man1" "$(<"$WORK/said")"

# checked FLAG...: weir check with the playground's files. CODE is its exit code, REPORT its JSON.
checked() {
    CODE=0
    REPORT=$(timeout 20 "$WEIR" check -o json --tls-cert-file "$DIR/tls.crt" --tls-private-key-file "$DIR/tls.key" \
        --token-auth-file "$DIR/tokens.csv" "$@") || CODE=$?
}

# errors: flag and message of each error.
errors() {
    jq -r '.errors[] | "\(.flag): \(.message)"' <<<"$REPORT"
}

apiserver checked 0
direct=(--upstream "https://$ADDRESS" --upstream-ca-file "$DIR/ca.crt")
proxy=(--client-ca-file "$DIR/ca.crt" --proxy-client-cert-file "$DIR/front-proxy-client.crt"
    --proxy-client-key-file "$DIR/front-proxy-client.key")
checked "${direct[@]}" "${proxy[@]}" --online
check 'weir check --online: exit code' 0 "$CODE"
check '... finds nothing wrong' '' "$(errors)"
check '... names the serving certificate' localhost "$(jq -r '.servingCertificate.names[0]' <<<"$REPORT")"
check_match '... and the version of the API server' '^v1\.' "$(jq -r .apiServer.version <<<"$REPORT")"

checked --kubeconfig "$DIR/kubeconfig" --context admin --assert-by=impersonation --online
check 'a user with all rights: exit code' 0 "$CODE"
check '... is named' admin "$(jq -r .apiServer.user <<<"$REPORT")"
checked --kubeconfig "$DIR/kubeconfig" --context alice --assert-by=impersonation --online
check 'a user who may not impersonate: exit code' 1 "$CODE"
check_match '... the rule that is missing' \
    'kubeconfig: .*rule \{apiGroups: \[""\], resources: \[users\], verbs: \[impersonate\]\}' "$(errors)"

checked --upstream "https://$ADDRESS" --upstream-ca-file "$DIR/front-proxy-ca.crt" --online
check 'a wrong CA: exit code' 1 "$CODE"
check_match '... says which flag and why' '^upstream: .*UnknownIssuer; give the CA' "$(errors)"

checked "${direct[@]}" --client-ca-file "$DIR/ca.crt" --proxy-client-cert-file "$DIR/alice.crt" \
    --proxy-client-key-file "$DIR/alice.key" --online
check 'a front-proxy certificate that is refused: exit code' 1 "$CODE"
check_match '... says what it must be' '^proxy-client-cert-file: .*--requestheader-client-ca-file' "$(errors)"

checked --upstream https://127.0.0.1:1 --upstream-ca-file "$DIR/ca.crt" --online
check 'an API server that is away: exit code' 1 "$CODE"
check_match '... is named' '^upstream: the API server at 127.0.0.1:1 does not respond' "$(errors)"
checked --upstream https://127.0.0.1:1 --upstream-ca-file "$DIR/ca.crt"
check 'without --online no API server is asked' 0 "$CODE"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3 -subj /CN=nameless \
    -keyout "$WORK/nameless.key" -out "$WORK/nameless.crt" 2>/dev/null
code=0
said=$("$WEIR" check "${direct[@]}" --tls-cert-file "$WORK/nameless.crt" --tls-private-key-file "$WORK/nameless.key") || code=$?
check 'a certificate without names: exit code' 1 "$code"
check_match '... the file before the flag' "^$WORK/nameless.crt: error: --tls-cert-file: .*subject alternative name" "$said"
check_match '... and a summary' 'not valid: 1 error' "$(tail -n 1 <<<"$said")"
stopped checked
summary
