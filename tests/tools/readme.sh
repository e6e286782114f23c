#!/usr/bin/env bash
# Every command that the README gives a newcomer: its blocks marked `sh ci`, in order, each in a shell of its own at the top
# of the checkout. A playground runs in the background until the end; the one block that runs the tests is CI's own.
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"
need cargo curl kubectl wrk

cd "$ROOT"
awk -v work="$WORK" '
    /^```sh ci$/ { n++; inside = 1; next }
    /^```$/ { inside = 0 }
    inside { print > sprintf("%s/block-%02d", work, n) }
' README.md

for block in "$WORK"/block-*; do
    name="README block ${block##*-}: $(head -n 1 "$block")"
    if grep -q 'playground --dir' "$block"; then
        dir=$(grep -o -- '--dir [^ ]*' "$block" | cut -d' ' -f2)
        rm -rf "$dir"
        HOME=$(getent passwd "$(id -u)" | cut -d: -f6) bash -euo pipefail "$block" >"$block.out" 2>"$block.err" &
        PIDS[$block]=$!
        for _ in $(seq 1200); do
            [ -f "$dir/ready" ] && break
            kill -0 "${PIDS[$block]}" 2>/dev/null || break
            sleep 0.5
        done
        check "$name" ready "$(test -f "$dir/ready" && echo ready)"
    elif [ "$(cat "$block")" = "cargo test --locked" ]; then
        check "$name" "what CI runs" "$(grep -q 'cargo test --locked$' .ci/run && echo 'what CI runs')"
    else
        if timeout 60 bash -euo pipefail "$block" >"$block.out" 2>"$block.err"; then
            pass "$name"
        else
            fail "$name" "exit code 0" "$? $(tail -n 5 "$block.err")"
        fi
    fi
done
summary
