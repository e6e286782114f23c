#!/usr/bin/env python3
"""Lines of code of each crate, and of each module of weir: no tests, no comments, no blank lines.

Usage: tests/lines.py [COMMIT]     the working tree, or what a commit has
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INLINE_TESTS = re.compile(r"^#\[cfg\((?:all\()?test.*\)\]\n(?:#\[.*\]\n)*(?:pub(?:\(.*\))? )?mod \w+ \{$", re.MULTILINE)


def git(*command):
    return subprocess.run(["git", "-C", ROOT, *command], check=True, capture_output=True, text=True).stdout


def sources(commit):
    names = git("ls-tree", "-r", "--name-only", commit) if commit else git("ls-files")
    for name in names.splitlines():
        if re.match(r"(crates/[^/]+/)?src/.*\.rs$", name) and (commit or (ROOT / name).exists()):
            yield name, git("show", f"{commit}:{name}") if commit else (ROOT / name).read_text(encoding="utf-8")


def is_test(name):
    return any(part in ("tests", "tests.rs", "fuzzing", "fuzzing.rs", "loom.rs") or part.removesuffix(".rs").endswith("_tests") for part in name.split("/"))


def code(text):
    if begin := INLINE_TESTS.search(text):
        text = text[: begin.start()]
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else None
    counts = collections.Counter()
    for name, text in sources(commit):
        if not is_test(name):
            parts = name.split("/")
            crate, rest = (f"crates/{parts[1]}", parts[3:]) if parts[0] == "crates" else ("src", parts[1:])
            counts[crate] += code(text)
            if crate == "src" and len(rest) > 1:
                counts[f"  src/{rest[0]}"] += code(text)
    total = sum(count for name, count in counts.items() if not name.startswith(" "))
    for name, count in sorted(counts.items(), key=lambda one: (one[0].startswith(" "), -one[1])):
        print(f"{count:>8}  {name}")
    print(f"{total:>8}  in all")


main()
