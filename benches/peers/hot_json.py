#!/usr/bin/env python3
"""The rounds of benches/peers.sh as JSON, with medians and quartiles: hot_json.py FOLDER FILE"""

import json
import pathlib
import sys

import measure

# The columns of FOLDER/CASE.PROXY.rounds.
FIGURES = ("proxy_us", "rate", "p50_ms", "p99_ms", "other_codes")


def main() -> None:
    folder, target = map(pathlib.Path, sys.argv[1:])
    cases = {}
    for path in sorted(folder.glob("*.rounds")):
        case, proxy = path.name.removesuffix(".rounds").split(".", 1)
        columns = zip(*(map(float, line.split()) for line in path.read_text().splitlines()), strict=True)
        figures = {name: measure.summary(list(values)) for name, values in zip(FIGURES, columns, strict=True)}
        cases.setdefault(case, {})[proxy] = figures
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
