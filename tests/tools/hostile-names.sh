#!/usr/bin/env bash
# What weir writes for other tools about clients that chose their names to be more than names: PyYAML (a reader of YAML 1.1) and
# kubectl read the YAML, Python the JSON, and no text for a terminal has a character that controls it. The page of a replay in a
# browser is in replay-page.sh.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need jq python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import yaml' || die 'python3-yaml is missing (.ci/run installs it)'

names() {
    python3 "$ROOT/tests/tools/hostile-names.py" "$@"
}

OBJECTS=FlowSchema,PriorityLevelConfiguration
flags=(--max-requests-inflight 80 --max-mutating-requests-inflight 40)
log=$WORK/arrivals.jsonl
names arrivals >"$log"

# A log by which users get levels of their own, and the files about it.
check_ok 'a suggestion is written' "$WEIR" replay "$log" "${flags[@]}" --suggest --suggest-dir "$WORK/suggested"
"$WEIR" replay "$log" "${flags[@]}" --suggest >"$WORK/suggested.yaml"
for file in "$WORK"/suggested/*.yaml; do
    check_ok "PyYAML reads $(basename "$file")" names yaml "$OBJECTS,Configuration" "$file"
done
check_ok '... and what is printed' names yaml "$OBJECTS,Configuration" "$WORK/suggested.yaml"
check_ok 'weir reads them' "$WEIR" check "$WORK/suggested"
(cd / && "$WEIR" replay "$log" "${flags[@]}" --compare "$WORK/suggested/weir.yaml" -o json) >"$WORK/compared.json" 2>"$WORK/said" || true
check_ok '... from any folder' names json "$WORK/compared.json"
"$WEIR" replay "$log" "${flags[@]}" --suggest -o json >"$WORK/suggested.json"
check_ok 'Python reads a suggestion as JSON' names json "$WORK/suggested.json"
"$WEIR" replay "$log" "${flags[@]}" --search 'rejected < 90%' >"$WORK/found.txt"
check_ok 'a search is text' names text "$WORK/found.txt"
"$WEIR" replay "$log" "${flags[@]}" >"$WORK/report.txt"
check_ok 'a report is text' names text "$WORK/report.txt"
"$WEIR" replay "$log" "${flags[@]}" -o json >"$WORK/report.json"
check_ok '... and JSON' names json "$WORK/report.json"

# One request of each.
for ((n = 0; n < $(names count); n++)); do
    name=$(names name "$n"; printf x) && name=${name%x} # with its line breaks
    "$WEIR" explain GET /api/v1/pods "--user=$name" "--group=$name" "--user-agent=$name" >"$WORK/explained.$n.txt"
    "$WEIR" explain GET /api/v1/pods "--user=$name" "--group=$name" -o json >"$WORK/explained.$n.json"
    if ! names text "$WORK/explained.$n.txt" "$WORK/explained.$n.json" 2>"$WORK/said"; then
        fail "an explanation of name $n is text" 'printable' "$(<"$WORK/said")"
    fi
done
pass "explanations of $n names are text"
head -n 200 "$log" | jq -c '{method, url, user, groups}' | "$WEIR" explain --batch >"$WORK/batch.jsonl"
check_ok '... many of them, too' names text "$WORK/batch.jsonl"

# A file whose name is hostile: it stands in comments, tables and errors.
folder=$WORK/$'x\u2028---\u2028kind: ConfigMap\u2028---\u2028#\e[2J'
mkdir "$folder"
cp "$WORK/suggested/flowcontrol.yaml" "$folder/objects.yaml"
playground served --flowcontrol-config "$folder"
for format in table json yaml; do
    "$WEIR" flowcontrol show --admin "http://$ADMIN" -o "$format" >"$WORK/shown.$format"
done
check_ok 'PyYAML reads what is in force' names yaml "$OBJECTS" "$WORK/shown.yaml"
check_ok '... as a table and as JSON it is text' names text "$WORK/shown.table" "$WORK/shown.json"
printf 'kind: FlowSchema\napiVersion: flowcontrol.apiserver.k8s.io/v1\nspec: [\n' >"$folder/broken.yaml"
"$WEIR" check "$folder" >"$WORK/checked.txt" || true
"$WEIR" check -o json "$folder" >"$WORK/checked.json" || true
"$WEIR" serve --config "$folder/broken.yaml" 2>"$WORK/started.txt" || true
check_ok 'what a check and a start say is text' names text "$WORK/checked.txt" "$WORK/checked.json" "$WORK/started.txt"

# kubectl, with the playground as its cluster.
for kubectl in $(kubectls); do
    for file in "$WORK/suggested/flowcontrol.yaml" "$WORK/shown.yaml"; do
        said=$(timeout "$LIMIT" "$kubectl" --kubeconfig "$DIR/kubeconfig" create --dry-run=client --validate=false -o name -f "$file" 2>&1) || true
        check_match "kubectl $(minor "$kubectl") reads $(basename "$file")" 'flowschema' "$said"
        check '... and finds nothing else' '' "$(grep -vE '^(flowschema|prioritylevelconfiguration)\.flowcontrol\.apiserver\.k8s\.io/[a-z0-9-]+$' <<<"$said")"
    done
done
stopped served
summary
