"""Compares the metrics of a scrape with upstream's.

Usage: shapes.py LIST SCRAPE
Prints each difference in name, type, labels, buckets or stability; a metric that is not weir's own (weir_*) must be in the list.
"""

import re
import sys


def listed(path):
    """What should be there, by name, what of it may be missing, and what must not be there."""
    there, maybe, absent = {}, set(), set()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith("absent "):
                absent.add(line.split()[1].rstrip(":"))
                continue
            optional = line.startswith("maybe ")
            stability, name, kind, labels, *bounds = line.removeprefix("maybe ").split()
            if optional:
                maybe.add(name)
            labels = set() if labels == "-" else set(labels.split(","))
            there[name] = (stability, kind, labels, [float(bound) for bound in bounds])
    return there, maybe, absent


def shown(path):
    """What is there, by name."""
    found, name = {}, None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("# HELP "):
                _, _, name, text = line.rstrip("\n").split(" ", 3)
                mark = re.match(r"(?:EXPERIMENTAL: )?\[([A-Z]+)\] ", text)
                found[name] = [mark.group(1) if mark else "-", None, set(), []]
            elif line.startswith("# TYPE "):
                found[name][1] = line.split()[3]
            else:
                labels = dict(re.findall(r'([a-z_]+)="([^"]*)"', line))
                bound = labels.pop("le", "+Inf")
                if bound != "+Inf" and float(bound) not in found[name][3]:
                    found[name][3].append(float(bound))
                found[name][2] |= set(labels)
    return {name: tuple(shape) for name, shape in found.items()}


def main(path, scrape):
    there, maybe, absent = listed(path)
    found = shown(scrape)
    for name, shape in sorted(there.items()):
        if name not in found:
            if name not in maybe:
                print(f"{name} is missing")
        elif found[name] != shape:
            print(f"{name}: expected {shape}, got {found[name]}")
    for name in sorted(found):
        if name in absent:
            print(f"{name} is there, and the list says why it should not be")
        elif name not in there and not name.startswith("weir_"):
            print(f"{name} is not in the list")


main(*sys.argv[1:])
