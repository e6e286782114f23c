#!/usr/bin/env python3
"""Makes an OCI image layout without a container engine, from files of this machine.

Usage: oci.py --output FILE.tar --version V --architecture amd64 --revision COMMIT
              --program WEIR --playground-program WEIR [--document FILE ...]

The layout (one tar archive) has two tags: V is weir alone, V-playground also has the API server in
memory. Both share a layer with what the program needs: its dynamic libraries and the CA certificates
of this machine's Debian packages, whose versions are a label. So there is no base image to trust or
to fetch. Each layer has sorted names, the user 0 and the time
SOURCE_DATE_EPOCH: two runs with the same packages make the same bytes.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

USER = 65532  # as the images named `nonroot` have it, and as deploy/ expects
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
MOZILLA = Path("/usr/share/ca-certificates/mozilla")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def add(archive, name, content=b"", mode=0o644, kind=tarfile.REGTYPE, target="", owner=0):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode, entry.mtime = kind, target, mode, EPOCH
    entry.uid = entry.gid = owner
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content) if content else None)


def tarball(files, owned=()):
    """A tar archive of {path: (content, mode)}, with the folders that the paths need."""
    folders = {
        str(parent)
        for path in [*files, *(f"{one}/x" for one in owned)]
        for parent in Path(path).parents
    } - {"."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(folders | files.keys()):
            if name in files:
                content, mode = files[name]
                add(archive, name, content, mode)
            else:
                mode = 0o1777 if name == "tmp" else 0o755
                add(
                    archive,
                    name,
                    mode=mode,
                    kind=tarfile.DIRTYPE,
                    owner=USER if name in owned else 0,
                )
    return buffer.getvalue()


def libraries(programs):
    """The dynamic libraries of `programs`, and the loader, by the paths where they are sought."""
    found = {}
    for program in programs:
        for line in run("ldd", program).splitlines():
            path = re.search(r"(/\S+) \(0x", line)
            if path:
                found[path[1].lstrip("/")] = (Path(path[1]).read_bytes(), 0o755)
    return found


def packages_of(paths):
    """The Debian packages of these files, with versions: {name: version}."""
    names = set()
    for path in paths:
        # dpkg may know a file of /usr/lib by its older name in /lib.
        for known in (
            f"/{path}",
            os.path.realpath(f"/{path}"),
            os.path.realpath(f"/{path}").removeprefix("/usr"),
        ):
            done = subprocess.run(
                ["dpkg-query", "--search", known], check=False, capture_output=True, text=True
            )
            if done.returncode == 0:
                names.add(done.stdout.split(":")[0])
                break
        else:
            raise SystemExit(f"no Debian package has /{path}: make the image on Debian")
    return {
        name: run("dpkg-query", "--show", "--showformat=${Version}\n", name).splitlines()[0]
        for name in sorted(names)
    }


def base_layer(programs):
    """Libraries, CA certificates, users, an empty home; and the packages that they are from."""
    files = libraries(programs)
    if not files:
        raise SystemExit("the program names no dynamic library: is it one for this machine?")
    versions = packages_of(files)
    # The package's own files, not /etc/ssl/certs: that also has what was added on this machine.
    certificates = sorted(MOZILLA.glob("*.crt"))
    if not certificates:
        raise SystemExit(f"no certificates in {MOZILLA}: install ca-certificates")
    versions |= packages_of([str(certificates[0]).lstrip("/")])
    files["etc/ssl/certs/ca-certificates.crt"] = (
        b"".join(one.read_bytes() for one in certificates),
        0o644,
    )
    files["etc/passwd"] = (
        b"root:x:0:0:root:/root:/sbin/nologin\n"
        + f"weir:x:{USER}:{USER}:weir:/home/weir:/sbin/nologin\n".encode(),
        0o644,
    )
    files["etc/group"] = (f"root:x:0:\nweir:x:{USER}:\n".encode(), 0o644)
    files["etc/nsswitch.conf"] = (b"passwd: files\ngroup: files\nhosts: files dns\n", 0o644)
    for name in versions:
        source = Path(f"/usr/share/doc/{name}/copyright")
        files[f"usr/share/doc/{name}/copyright"] = (source.read_bytes(), 0o644)
    return tarball(files, owned=("home/weir", "playground", "tmp")), versions


class Layout:
    """The blobs of an image layout, each under its digest."""

    def __init__(self):
        self.files = {"oci-layout": (b'{"imageLayoutVersion":"1.0.0"}', 0o644)}

    def blob(self, content, media_type):
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = (content, 0o644)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def json(self, document, kind):
        content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return self.blob(content, f"application/vnd.oci.image.{kind}.v1+json")

    def layer(self, content):
        """Its descriptor, and the digest of what it unpacks to."""
        packed = gzip.compress(content, compresslevel=9, mtime=0)
        diff = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return self.blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip"), diff

    def image(self, tag, architecture, layers, config, labels):
        created = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        document = {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": config
            | {"Labels": labels, "User": f"{USER}:{USER}", "WorkingDir": "/home/weir"},
            "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in layers]},
            "history": [
                {"created": created, "created_by": "deploy/release/oci.py"} for _ in layers
            ],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.json(document, "config"),
            "layers": [descriptor for descriptor, _ in layers],
            "annotations": labels,
        }
        platform = {"architecture": architecture, "os": "linux"}
        # The second one is the name that `docker load` gives the image.
        annotations = {
            "org.opencontainers.image.ref.name": tag,
            "io.containerd.image.name": f"docker.io/library/weir:{tag}",
        }
        return self.json(manifest, "manifest") | {"platform": platform, "annotations": annotations}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("output", "version", "architecture", "revision", "program", "playground-program"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--document", action="append", default=[], help="a file for /usr/share/doc/weir"
    )
    arguments = parser.parse_args()

    base, versions = base_layer([arguments.program, arguments.playground_program])
    documents = {
        f"usr/share/doc/weir/{Path(one).name}": (Path(one).read_bytes(), 0o644)
        for one in arguments.document
    }
    labels = {
        "org.opencontainers.image.title": "weir",
        "org.opencontainers.image.description": "A reverse proxy in front of kube-apiserver. No HEALTHCHECK: "
        "probe /livez and /readyz on --health-address.",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": arguments.version,
        "org.opencontainers.image.revision": arguments.revision,
        "weir.debian-packages": " ".join(f"{name}={version}" for name, version in versions.items()),
    }
    environment = [
        "PATH=/usr/bin",
        "HOME=/home/weir",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    ]
    serve = {
        "Env": environment,
        "Entrypoint": ["/usr/bin/weir"],
        "Cmd": ["serve"],
        "ExposedPorts": {"6443/tcp": {}},
        "StopSignal": "SIGTERM",
    }
    playground = serve | {
        "Cmd": [
            "playground",
            "--dir",
            "/playground",
            "--bind-address",
            "0.0.0.0",
            "--admin-address",
            "0.0.0.0:6480",
        ],
        "ExposedPorts": {"6443/tcp": {}, "6480/tcp": {}},
        "Volumes": {"/playground": {}},
    }

    layout = Layout()
    shared = layout.layer(base)
    manifests = []
    for suffix, program, config in (
        ("", arguments.program, serve),
        ("-playground", arguments.playground_program, playground),
    ):
        own = {"usr/bin/weir": (Path(program).read_bytes(), 0o755)} | documents
        layers = [shared, layout.layer(tarball(own))]
        manifests.append(
            layout.image(arguments.version + suffix, arguments.architecture, layers, config, labels)
        )
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }
    layout.files["index.json"] = (
        json.dumps(index, sort_keys=True, separators=(",", ":")).encode(),
        0o644,
    )
    Path(arguments.output).write_bytes(tarball(layout.files))


if __name__ == "__main__":
    main()
