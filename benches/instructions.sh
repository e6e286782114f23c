#!/usr/bin/env bash
# Instruction counts of fixed work (benches/instructions.rs) beside those of the last release. Judges nothing: a change of a few
# per cent may be a new compiler's. Counts of one compiler and one profile differ by less than 1 % from run to run, since keys of
# hashes are random.
#
# Usage: benches/instructions.sh [--write] [flag of cargo bench ...]
# --write  also makes these counts those of the release, in benches/instructions.json (RELEASING.md)
# Needs: valgrind, jq, and gungraun-runner: cargo install --locked gungraun-runner@0.20.0
set -euo pipefail
cd "$(dirname "$0")/.."

known=benches/instructions.json
write=
if [[ ${1:-} == --write ]]; then
    write=1
    shift
fi
for tool in valgrind jq gungraun-runner; do
    command -v "$tool" >/dev/null || { echo "instructions.sh: $tool is missing (the first lines of $0 say where it is from)" >&2; exit 2; }
done

said=$(mktemp)
trap 'rm -f "$said"' EXIT
cargo bench --locked --bench instructions "$@" -- --output-format=json >"$said"
counts=$(jq -s '
    [.[] | {key: ((.module_path | sub("^instructions::"; "")) + if .id then " \(.id)" else "" end),
            value: ([.. | objects | select(has("Ir")) | .Ir.values.new | numbers] | max)}]
    | sort_by(.key) | from_entries' "$said")
[[ $(jq '[.[] | select(. == null)] | length' <<<"$counts") == 0 && $counts != '{}' ]] ||
    { echo 'instructions.sh: gungraun-runner counted nothing' >&2; head -c 2000 "$said" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
rustc=$(rustc --version)
jq -rn --argjson now "$counts" --arg rustc "$rustc" --slurpfile known "$known" '
    $known[0] as $release
    | "instructions, beside \($release.of), by \($release.rustc) (now \($rustc))",
      ($now | to_entries[] | .value as $count | $release.counts[.key] as $before
        | "\(.key): \($count)" + if $before then " (\(($count - $before) / $before * 1000 | round / 10) % of \($before))" else " (new)" end),
      ($release.counts | keys - ($now | keys) | .[] | "\(.): no longer counted")'
if [[ -n $write ]]; then
    jq -n --arg of "weir $version" --arg rustc "$rustc" --argjson counts "$counts" '{of: $of, rustc: $rustc, counts: $counts}' >"$known"
    echo "written to $known"
fi
