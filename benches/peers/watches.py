#!/usr/bin/env python3
"""Idle watches behind weir: what they cost, how soon an event is at all of them, and how they come back after a restart.

Prints the resident memory for each watch, the CPU time of weir at one event a second to all, and the time until the last
watch has it; then the API server ends and starts again: how long until all watches are back, and the most watches that it
is asked to start in a second. All over HTTP/2, by users with a connection each and more where its streams are taken.

Needs: go, openssl. Environment: WEIR (default target/dist/weir).
"""

import argparse
import contextlib
import json
import os
import pathlib
import ssl
import subprocess
import tempfile
import time
import urllib.request

import measure
import peers

ORIGIN_PORT = 19443
PORT = 19001
GET = "/api/v1/namespaces/default"
WATCH = "/api/v1/namespaces/a/pods?watch=1&resourceVersion=1"
EVENTS = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000, help="watches (default 50000)")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--patience", type=float, default=600, help="seconds until all are open (default 600)")
    return parser.parse_args()


class Clients:
    """The clients' program, which says how many watches are open."""

    def __init__(self, folder: pathlib.Path, options: argparse.Namespace):
        command = [folder / "client", "come-back", "-http2", "-url", f"https://127.0.0.1:{PORT}{WATCH}", "-count", str(options.count),
                   "-users", str(options.users), "-trigger", f"https://127.0.0.1:{ORIGIN_PORT}/event"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.options = options

    def ask(self, line: str = "") -> dict:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def wait_for_all(self) -> tuple[float, float]:
        """The seconds until all are open, and the most that were started in a second."""
        begin, most, earlier = time.monotonic(), 0.0, (time.monotonic(), 0)
        # After a restart some are still thought to be open; the new origin has started none of them.
        while self.ask()["open"] < self.options.count or started() < self.options.count:
            if time.monotonic() - begin > self.options.patience:
                raise SystemExit(f"{self.ask()['open']} of {self.options.count} watches are open")
            time.sleep(0.25)
            now = (time.monotonic(), started())
            most, earlier = max(most, (now[1] - earlier[1]) / (now[0] - earlier[0])), now
        return time.monotonic() - begin, most


def started() -> int:
    """The watches that the origin has started."""
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{ORIGIN_PORT}/watches", context=ssl._create_unverified_context()) as answer:
            return int(answer.read().split()[1])
    except OSError:
        return 0


def main() -> None:
    options = arguments()
    folder = pathlib.Path(tempfile.mkdtemp())
    peers.certificates(folder)
    tokens = [f"benchmark-{n},bench-{n},{n}\n" for n in range(options.users)]
    (folder / "tokens.csv").write_text("".join(tokens))
    for program in ("origin", "client"):
        source = pathlib.Path(__file__).resolve().with_name(f"{program}.go")
        subprocess.run(["go", "build", "-o", folder / program, source], check=True, env=os.environ | {"GO111MODULE": "off"})
    log = folder / "log"

    def origin():
        command = (str(folder / "origin"), "-listen", f"127.0.0.1:{ORIGIN_PORT}", "-cert", f"{folder}/tls.crt", "-key", f"{folder}/tls.key")
        return measure.running("origin", command, ORIGIN_PORT, "0,1", log, lambda: (GET, "benchmark-0"))

    weir = peers.weir(os.environ.get("WEIR", "target/dist/weir"), "weir", folder, PORT, ORIGIN_PORT, 2)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(origin())
        pid = stack.enter_context(measure.running("weir", weir.command, PORT, "0,1", log, lambda: (GET, "benchmark-0"))).pid
        before = measure.resident_kib(pid)
        clients = Clients(folder, options)
        try:
            took, most = clients.wait_for_all()
            print(f"{options.count} watches of {options.users} users are open after {took:.1f} s; at most {most:.0f} a second")
            print(f"memory for each: {(measure.resident_kib(pid) - before) / options.count:.1f} KiB")
            cpu, begin, last = measure.cpu_us(pid), time.monotonic(), []
            for number in range(EVENTS):
                time.sleep(max(0, begin + number - time.monotonic()))
                last.append(clients.ask("event")["last_ms"])
            share = (measure.cpu_us(pid) - cpu) / 1e6 / (time.monotonic() - begin)
            print(f"an event a second to all: {share:.2f} cores; the last watch has it after {measure.percentile(sorted(last), 0.5)} ms "
                  f"(median of {EVENTS}; {max(last)} at most)")
            first.close()
            stack.enter_context(origin())
            took, most = clients.wait_for_all()
            print(f"a restart of the API server: all are back after {took:.1f} s; at most {most:.0f} watches start in a second")
        finally:
            clients.process.kill()


if __name__ == "__main__":
    main()
