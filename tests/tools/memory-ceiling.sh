#!/usr/bin/env bash
# A flood of responses that no client reads, with a memory limit and without: with it, the flood ends in
# 429, weir lives, and a client that holds nothing is served. It ends on counts, however long they take.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl jq python3
PATH=/usr/bin:$PATH # Debian's python, which has Debian's packages
python3 -c 'import hpack' || die 'hpack is missing (python3-h2 brings it; .ci/run installs it)'

LIMIT_MIB=256
FLOOD_MIB=2048 # of responses that the flood asks for
OVER_MIB=96    # above the limit: what comes between two samples, and what still runs when it is reached
REQUESTS=100   # of the other client, after the flood was first rejected
MOST_SECONDS=240

apiserver back 0
BACK=$ADDRESS

# flooded NAME LIMIT WHAT NUMBER: the flood against a weir with this memory limit, until there is this much. Clients need no
# minimum rate, which would end the flood's connections one by one. Sets SAID to what memory-ceiling.py prints.
flooded() {
    local name=$1
    weir "$name" "$BACK" --memory-limit="$2" --min-transfer-rate=0
    python3 "$ROOT/tests/tools/memory-ceiling.py" "$ADDRESS" "$DIR" "${PIDS[$name]}" "$FLOOD_MIB" "$MOST_SECONDS" "${@:3}" \
        >"$WORK/said" 2>"$WORK/failures" || die "$name: $(tail -n 3 "$WORK/failures")"
    read -ra SAID <"$WORK/said"
    printf '%s: weir took at most %s MiB; of the flood %s responses and %s of 429; %s requests of the other client, %s of them 429 at first, %s failed\n' \
        "$name" "${SAID[0]}" "${SAID[1]}" "${SAID[2]}" "${SAID[3]}" "${SAID[4]}" "${SAID[5]}"
    head -n 3 "$WORK/failures" | cut -c 1-180 | sed 's/^/  /'
}

flooded unlimited 0 memory $((FLOOD_MIB * 3 / 4))
check 'no request of the other client fails without a limit' 0 "${SAID[5]}"
check_between 'without a limit, MiB that weir takes' $((FLOOD_MIB * 3 / 4)) $((FLOOD_MIB * 2)) "${SAID[0]}"
stopped unlimited

# Where the machine pauses the thread that samples, and not those that answer, more comes between two samples: then once more.
for attempt in 1 2 3; do
    flooded limited ${LIMIT_MIB}Mi requests "$REQUESTS"
    if ((SAID[0] <= LIMIT_MIB + OVER_MIB || attempt == 3)); then break; fi
    stopped limited
done
check_between 'with a limit, MiB that weir takes at most' 1 $((LIMIT_MIB + OVER_MIB)) "${SAID[0]}"
check_between '429s of the flood' "$REQUESTS" 1000000000 "${SAID[2]}"
check_between 'requests of the other client' "$REQUESTS" 1000000 "${SAID[3]}"
check_between 'of these, rejected at first: few, as it holds nothing' 0 $((REQUESTS / 4)) "${SAID[4]}"
check 'none of them fails' 0 "${SAID[5]}"
check_between 'rejections that the metric counts' 1 1000000000 "$(metric weir_memory_limit_rejected_total)"
check 'the limit is a metric' $((LIMIT_MIB << 20)) "$(metric weir_memory_limit_bytes)"
check_between 'connections that were closed because memory was scarce' 1 1000000 \
    "$(metric 'weir_client_connections_closed_total{reason="memory"}')"
check_ok 'probes of weir itself are answered' curl -fsS --max-time 10 "http://$ADMIN/livez"
check_ok 'memory is not scarce after the flood' within "$LIMIT" at_zero weir_memory_pressure
check_alarm 'the flood' 'critical memory'
check_match 'the log names the holder' 'memory is scarce.*user .*bob' "$(<"$WORK/limited.err")"
stopped limited
summary
