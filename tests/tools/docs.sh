#!/usr/bin/env bash
# Every command in the README and in docs/. Blocks marked `sh ci` run as they are, in order, at the top of the checkout.
# Blocks marked `sh` are for a real cluster: the playground's API server stands in for it.
#
# A block that starts a playground runs beside the others until this script ends; the folder of its --dir is emptied first.
# Every other block has its own shell, and a minute.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk cargo curl wrk
command -v kubectl >/dev/null || export PATH=$PATH:$TOOLS
need kubectl
cd "$ROOT"

awk -v work="$WORK" '
    /^```sh ci$/ { n++; inside = 1; next }
    /^```/ { inside = 0 }
    /^```sh$/ { m++; serving = 1; next }
    /^```/ { serving = 0 }
    inside { print > sprintf("%s/block-%02d", work, n) }
    serving { print > sprintf("%s/serve-%02d", work, m) }
' README.md docs/*.md

beside=()
for block in "$WORK"/block-*; do
    name=$(basename "$block")
    title="$name: $(head -n 1 "$block")"
    if [[ $(<"$block") =~ ^cargo\ run.*\ playground.*--dir\ ([^[:space:]]+) ]]; then
        DIR=${BASH_REMATCH[1]}
        rm -rf "$DIR"
        # One command: nothing stands between its signals and the program.
        start "$name" bash -c "exec $(<"$block")"
        beside+=("$name")
        check_ok "$title" within 600 ready_or_ended "$name"
        check_ok "$title: serves" test -e "$DIR/ready"
    else
        start "$name" timeout 60 bash -euo pipefail "$block"
        finish "$name" 70
        check "$title: exit code" 0 "$STATUS"
        if [[ $STATUS != 0 ]]; then tail -n 20 "$WORK/$name.out" "$WORK/$name.err"; fi
    fi
done
check_between 'blocks that start a playground' 1 100 "${#beside[@]}"
for name in "${beside[@]}"; do
    stopped "$name"
done

cluster
cp "$DIR/tls.crt" "$WORK/bastion.crt"
cp "$DIR/tls.key" "$WORK/bastion.key"
cd "$WORK"
for block in "$WORK"/serve-*; do
    name=$(basename "$block")
    title="$name: $(sed -n '1,2s/ *\\$//p' "$block" | tr -s '\n ' ' ')"
    start "$name" bash -c "PATH=${WEIR%/*}:\$PATH; exec $(placed <"$block") ${anywhere[*]}"
    fronting "$name"
    check "$title: a token's nodes" 200 \
        "$(get -o "$WORK/body" -w '%{http_code}' -H "$(bearer alice)" /api/v1/nodes)"
    if grep -q -- --client-ca-file "$block"; then
        check "$title: a certificate's nodes" 200 \
            "$(get -o "$WORK/body" -w '%{http_code}' --cert "$DIR/alice.crt" --key "$DIR/alice.key" /api/v1/nodes)"
    fi
    stopped "$name"
done
check_between 'blocks for a cluster' 2 100 "$(find "$WORK" -name 'serve-??' | wc -l)"
summary
