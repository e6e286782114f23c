#!/usr/bin/env bash
# Instruction counts of fixed work (benches/instructions.rs) beside those of the last release. Judges nothing: a change of a few
# per cent may be the compiler's, which inlines differently. Two runs of one build have the same counts; those of the replay differ
# by up to 0.1 %, since rejections are rendered again with each second of a clock that is read by a system call.
#
# Usage: benches/instructions.sh [--write] [flag of cargo bench ...]
# --write  also makes these counts those of the release, in benches/instructions.json; then run `just tables` (RELEASING.md)
# Needs: valgrind, jq, cc, and gungraun-runner: cargo install --locked gungraun-runner@0.20.0
set -euo pipefail
cd "$(dirname "$0")/.."

known=benches/instructions.json
write=
if [[ ${1:-} == --write ]]; then
    write=1
    shift
fi
for tool in valgrind jq cc gungraun-runner; do
    command -v "$tool" >/dev/null || { echo "instructions.sh: $tool is missing (the first lines of $0 say where it is from)" >&2; exit 2; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
said=$work/said

# What benches/instructions.rs calls FIXED_LIBC.
cc -shared -fPIC -O2 -o "$work/libc.so" -x c - <<'END'
#include <sys/types.h>
#include <time.h>

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    static unsigned char next;
    (void)flags;
    for (size_t n = 0; n < length; n++) ((unsigned char *)buffer)[n] = next += 89;
    return (ssize_t)length;
}

/* Each call is a microsecond later than the one before. */
int clock_gettime(clockid_t clock, struct timespec *time) {
    static long calls;
    (void)clock;
    calls++;
    time->tv_sec = 1767225600 + calls / 1000000;
    time->tv_nsec = calls % 1000000 * 1000;
    return 0;
}
END

FIXED_LIBC=$work/libc.so cargo bench --locked --bench instructions "$@" -- --output-format=json >"$said"
counts=$(jq -s '
    [.[] | {key: ((.module_path | sub("^instructions::"; "")) + if .id then " \(.id)" else "" end),
            value: ([.profiles[] | select(.tool == "Callgrind") | .data.total.metrics.Ir.values.new] | first)}]
    | sort_by(.key) | from_entries' "$said")
[[ $(jq '[.[] | select(. == null)] | length' <<<"$counts") == 0 && $counts != '{}' ]] ||
    { echo 'instructions.sh: gungraun-runner counted nothing' >&2; head -c 2000 "$said" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
rustc=$(rustc --version)
jq -rn --argjson now "$counts" --arg rustc "$rustc" --slurpfile known "$known" '
    $known[0] as $release
    | "instructions, beside \($release.of), by \($release.rustc) (now \($rustc))",
      ($now | to_entries[] | .value as $count | $release.counts[.key] as $before
        | "\(.key): \($count)" + if $before then ", \((($count - $before) / $before * 1000 | round / 10) + 0) % from \($before)" else ", new" end),
      ($release.counts | keys - ($now | keys) | .[] | "\(.): no longer counted")'
if [[ -n $write ]]; then
    jq -n --arg of "weir $version" --arg rustc "$rustc" --argjson counts "$counts" '{of: $of, rustc: $rustc, counts: $counts}' >"$known"
    echo "written to $known"
fi
