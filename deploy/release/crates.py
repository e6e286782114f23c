#!/usr/bin/env python3
"""The crates that a build of weir links: their licence texts, and the SBOM (CycloneDX, JSON).

Usage: crates.py licences|sbom --target TRIPLE [flag of cargo tree ...]

The list is that of `cargo tree`, which knows the features of each crate. (`cargo metadata`, and
what is built on it, also names optional crates that no feature brings in, such as ring, which weir
excludes.) A crate without a licence text stops the release. The output
depends on Cargo.lock, the target and the features alone: two runs print the same bytes.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

LEGAL = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)([-_.].*)?$", re.IGNORECASE)
CODE = {".rs", ".py", ".go", ".c", ".h", ".sh"}
ROOT = "weir"


def run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def linked(target, flags):
    """What the build links, of `cargo metadata`'s packages; and what each of it needs."""
    tree = run(
        "cargo",
        "tree",
        "--locked",
        "--package",
        ROOT,
        "--target",
        target,
        "--edges",
        "normal",
        "--prefix",
        "depth",
        "--no-dedupe",
        "--format",
        " {p}",
        *flags,
    )
    needs, path = {}, []
    for line in tree.splitlines():
        depth, name, version = line.split(" ")[:3]
        crate = (name, version.removeprefix("v"))
        del path[int(depth) :]
        needs.setdefault(crate, set())
        if path:
            needs[path[-1]].add(crate)
        path.append(crate)
    metadata = json.loads(
        run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target)
    )
    packages = {(one["name"], one["version"]): one for one in metadata["packages"]}
    # The other crates of this workspace are parts of weir.
    root = next(crate for crate in needs if crate[0] == ROOT)
    parts = {crate for crate in needs if packages[crate]["source"] is None} - {root}
    for part in parts:
        needs[root] |= needs.pop(part)
    for each in needs.values():
        each -= parts
    return {crate: packages[crate] for crate in sorted(needs)}, needs


def texts_of(package):
    """The legal files of a crate, and of the code of others in it, by their paths."""
    folder = Path(package["manifest_path"]).parent
    if package["name"] == ROOT:
        return {"LICENSE": (folder / "LICENSE").read_text(encoding="utf-8")}
    found = {
        path
        for path in folder.rglob("*")
        if path.is_file() and LEGAL.match(path.name) and path.suffix not in CODE
    }
    if package.get("license_file"):
        found.add(folder / package["license_file"])
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(found)
    }


def expression(package):
    """Its licence as SPDX writes it today: `MIT/Apache-2.0` is an older form of `OR`."""
    return (package.get("license") or "").replace("/", " OR ")


def standard_library():
    """What rustc ships about the licences of the standard library, which every program links."""
    about = (
        Path(run("rustc", "--print", "sysroot").strip()) / "share/doc/rust/COPYRIGHT-library.html"
    )
    release = run("rustc", "--version").strip()
    if not about.exists():
        sys.exit(
            f"the toolchain has no {about}: reinstall it (its component rustc brings this file)"
        )
    text = re.sub(
        r"<(style|script).*?</\1>", "", about.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    text = re.sub(r"<[^>]*>", "", text)
    for entity, plain in (
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", '"'),
        ("&#34;", '"'),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ):
        text = text.replace(entity, plain)
    return f"Rust's standard library, of {release}", re.sub(r"\n\s*\n\s*\n+", "\n\n", text)


def licences(packages):
    """Every crate with its licence, then every text once with the crates that it belongs to."""
    texts, missing = {}, []
    for (name, version), package in packages.items():
        own = texts_of(package)
        if not own:
            # Its text is at the top of its workspace: another crate of that has it.
            for other in packages.values():
                same = other.get("repository") == package.get("repository") is not None
                if same and expression(other) == expression(package):
                    own = own or texts_of(other)
        if not own and "Apache-2.0" in expression(package).split(" OR "):
            # This licence has one text for all, without a name or a year: weir's own copy is it.
            own = {"no file; the Apache License 2.0": Path("LICENSE").read_text(encoding="utf-8")}
        if not own:
            missing.append(f"{name} {version} ({expression(package)}, {package.get('repository')})")
        for path, text in own.items():
            text = "\n".join(line.rstrip() for line in text.strip().splitlines())
            _, users = texts.setdefault(hashlib.sha256(text.encode()).hexdigest(), (text, []))
            users.append(f"{name} {version}: {path}")
    if missing:
        sys.exit(
            "no licence text in these crates, nor in another of the same repository and licence: "
            + ", ".join(missing)
        )
    library, library_text = standard_library()
    print(
        "weir contains the crates of this list. The text of each licence follows, with the crates\n"
        "that it is from.\n"
    )
    for (name, version), package in packages.items():
        print(
            f"{name} {version}  {expression(package)}  {package.get('repository') or ''}".rstrip()
        )
    print(library)
    for text, users in sorted(texts.values(), key=lambda one: one[1]):
        print("\n" + "-" * 80)
        print("\n".join(sorted(users)), end="\n\n")
        print(text)
    print("\n" + "-" * 80)
    print(library, end="\n\n")
    print(library_text.strip())


def checksums():
    """SHA-256 of each crate's archive, from Cargo.lock."""
    lock = Path("Cargo.lock").read_text(encoding="utf-8")
    entry = re.compile(r'name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"')
    return {(name, version): digest for name, version, digest in entry.findall(lock)}


def sbom(packages, needs, target, flags):
    digests = checksums()

    def purl(crate):
        return f"pkg:cargo/{crate[0]}@{crate[1]}"

    def component(crate):
        package = packages[crate]
        one = {
            "type": "application" if crate[0] == ROOT else "library",
            "bom-ref": purl(crate),
            "name": crate[0],
            "version": crate[1],
            "purl": purl(crate),
            "licenses": [{"expression": expression(package)}],
        }
        if package.get("description"):
            one["description"] = " ".join(package["description"].split())
        if crate in digests:
            one["hashes"] = [{"alg": "SHA-256", "content": digests[crate]}]
        if package.get("repository"):
            one["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return one

    weir = next(crate for crate in packages if crate[0] == ROOT)
    stamp = run(
        "date", "--utc", "--date", f"@{os.environ['SOURCE_DATE_EPOCH']}", "+%Y-%m-%dT%H:%M:%SZ"
    ).strip()
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": stamp,
            "component": component(weir),
            "properties": [
                {"name": "cargo:target", "value": target},
                {"name": "cargo:flags", "value": " ".join(flags)},
                {"name": "rustc", "value": run("rustc", "--version").strip()},
            ],
        },
        "components": [component(crate) for crate in packages if crate != weir],
        "dependencies": [
            {"ref": purl(crate), "dependsOn": [purl(one) for one in sorted(needs[crate])]}
            for crate in packages
        ],
    }
    # A serial number is required to be unique for each content: it is made from the content.
    name = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}"
    print(json.dumps(document, indent=2, sort_keys=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["licences", "sbom"])
    parser.add_argument("--target", required=True)
    arguments, flags = parser.parse_known_args()
    os.chdir(Path(__file__).resolve().parents[2])
    packages, needs = linked(arguments.target, flags)
    if arguments.what == "licences":
        licences(packages)
    else:
        sbom(packages, needs, arguments.target, flags)


if __name__ == "__main__":
    main()
