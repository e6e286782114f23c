#!/usr/bin/env python3
"""What weir leaves of an API server's best bare capacity, in calm and in a storm of clients that never back off.

All loads are connected once and then stopped (SIGSTOP). In each cycle, each runs alone for a while, in turn. So no
measured window has TLS handshakes in it, and the machine's drift hits all cases alike. Good answers are counted at the
origin; CPU is that of load, proxy and origin, for each good answer. Shares are of the best case without a proxy in the
same run. Beside each load, a `system:masters` GET each 40 ms through the same proxy: what urgent work waits for. The origin
(benches/peers/origin.go -filters) does what kube-apiserver does around an answer. Everything shares the same two cores;
compare within a run.

Needs: go, wrk, openssl, pgrep; nginx and haproxy where they shall be compared.
Environment: WEIR (default target/dist/weir), BEFORE (an earlier build, measured beside it as before-...).
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import measure
import peers

ORIGIN_PORT = 19443
PATH = "/api/v1/namespaces/default"
LISTS = "/api/v1/namespaces/default/pods"
TOKEN = "benchmark-0"
# Exempt: takes no seat, and waits nowhere but in the origin.
URGENT_TOKEN = "urgent"
URGENT_EVERY = 0.04
# A connection that has just been woken has a burst of its own: it is not measured.
SETTLE = 0.5
# A load that has been stopped for so long is woken for a moment: servers close connections that are idle for 90 s, and
# the handshakes would then be in its window.
WAKE_AFTER = 30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5, help="of each window (default 5)")
    parser.add_argument("--totals", default="300", help="of weir, by commas: numbers, auto (default 300)")
    parser.add_argument("--lists", action="store_true", help="the loads list 370 KB; the origin takes --list-cpu for each")
    parser.add_argument("--list-cpu", default="2500us", help="the origin's CPU time for a list (default 2500us)")
    parser.add_argument("--cpu", default="350us", help="the origin's CPU time for an answer (default 350us)")
    parser.add_argument("--calm", default="16,64,200", help="connections without a storm (default 16,64,200)")
    parser.add_argument("--storm", default="700,2000,5000", help="connections that never back off, weir only")
    parser.add_argument("--no-peers", action="store_true", help="no nginx and no HAProxy")
    parser.add_argument("--protocols", default="auto", help="of weir towards the origin, by commas: auto, http1, http2")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("target/storm.json"), help="where results go")
    return parser.parse_args()


def proxies(folder: pathlib.Path, options: argparse.Namespace) -> list[peers.Peer]:
    program = os.environ.get("WEIR", "target/dist/weir")
    builds = [("weir", program)]
    if before := os.environ.get("BEFORE"):
        builds.append(("before", before))
    found = [
        peers.nginx(folder, 19001, ORIGIN_PORT, 2),
        peers.haproxy(folder, 19002, ORIGIN_PORT, 2, "http/1.1"),
    ]
    if options.no_peers:
        found = []
    found = [peer for peer in found if subprocess.run(["which", peer.command[0]], capture_output=True, check=False).returncode == 0]
    port = 19010
    for name, build in builds:
        for total in options.totals.split(","):
            for protocol in options.protocols.split(","):
                peer = peers.weir(build, f"{name}-{protocol}-{total}", folder, port, ORIGIN_PORT, 2, "--upstream-protocol", protocol)
                found.append(peers.Peer(peer.name, port, limited(peer.command, total, folder)))
                port += 1
    return found


def limited(command: tuple[str, ...], total: str, folder: pathlib.Path) -> tuple[str, ...]:
    """With this total, and with credentials of weir's own for the reads by which it finds one."""
    command = list(command)
    upstream = command.index("--upstream")
    del command[upstream:upstream + 4]
    inflight = command.index("--max-requests-inflight")
    del command[inflight:inflight + 2]
    command += ["--kubeconfig", str(folder / "kubeconfig")]
    if total != "auto":
        # The total is the sum of both.
        mutating = int(total) // 3
        command += ["--max-requests-inflight", str(int(total) - mutating), "--max-mutating-requests-inflight", str(mutating)]
    return tuple(command)


def credentials(folder: pathlib.Path) -> None:
    """A user whose requests are exempt, and weir's own kubeconfig."""
    with (folder / "tokens.csv").open("a") as tokens:
        tokens.write(f"{URGENT_TOKEN},{URGENT_TOKEN},{URGENT_TOKEN},system:masters\n")
    (folder / "kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "origin",
        "clusters": [{"name": "origin", "cluster": {
            "server": f"https://localhost:{ORIGIN_PORT}", "certificate-authority": str(folder / "ca.crt")}}],
        "users": [{"name": "weir", "user": {"token": "weir"}}],
        "contexts": [{"name": "origin", "context": {"cluster": "origin", "user": "weir"}}],
    }))


class Load:
    """wrk with its connections, stopped except in its windows."""

    def __init__(self, proxy: str, pid: int, port: int, connections: int, path: str):
        self.name = f"{proxy} {connections}"
        self.proxy_pid = pid
        self.port = port
        self.windows: list[dict] = []
        self.urgent: list[float] = []
        threads = 2 if connections >= 2000 else 1
        command = ["wrk", f"-t{threads}", f"-c{connections}", "-d36000s", "-H", f"Authorization: Bearer {TOKEN}", f"https://127.0.0.1:{port}{path}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Connected: it has an answer on most connections by then, whatever they are.
        time.sleep(2 + connections / 500)
        self.stop()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = time.monotonic()

    def keep_connected(self) -> None:
        if time.monotonic() - self.stopped > WAKE_AFTER:
            self.process.send_signal(signal.SIGCONT)
            time.sleep(SETTLE)
            self.stop()

    def run(self, seconds: float, origin: int) -> None:
        self.process.send_signal(signal.SIGCONT)
        time.sleep(SETTLE)
        pids = {"load": self.process.pid, "origin": origin, "proxy": self.proxy_pid}
        before = {name: measure.cpu_us(pid) for name, pid in pids.items() if pid}
        answers, begin = count(), time.monotonic()
        self.urgent += urgent_times(self.port, begin + seconds)
        answers, took = count() - answers, time.monotonic() - begin
        window = {name: (measure.cpu_us(pids[name]) - cpu) / max(answers, 1) for name, cpu in before.items()}
        self.windows.append(window | {"rate": answers / took})
        self.stop()
        time.sleep(0.3)  # what was in flight ends


def urgent_times(port: int, end: float) -> list[float]:
    """How long an urgent GET takes, in milliseconds, each 40 ms until then."""
    times: list[float] = []
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=ssl._create_unverified_context())
    connection.connect()
    with contextlib.closing(connection):
        while (begin := time.monotonic()) < end:
            connection.request("GET", PATH, headers={"Authorization": f"Bearer {URGENT_TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise SystemExit(f"an urgent GET got {answer.status}")
            times.append((time.monotonic() - begin) * 1000)
            time.sleep(max(0, begin + URGENT_EVERY - time.monotonic()))
    return times


def count() -> int:
    """The good answers of the origin so far."""
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(f"https://127.0.0.1:{ORIGIN_PORT}/count", context=context) as answer:
        return int(answer.read())


def report(loads: list[Load]) -> dict:
    rows = {load.name: {key: measure.summary([window[key] for window in load.windows]) for key in load.windows[0]} for load in loads}
    best = max(row["rate"]["median"] for name, row in rows.items() if name.startswith("direct "))
    print(f"{'case':<24}{'share':>7}{'q1':>7}{'q3':>7}{'/s':>8}{'urgent p50':>12}{'p99 ms':>8}   CPU us an answer: load, origin, proxy")
    for load in loads:
        row = rows[load.name]
        urgent = sorted(load.urgent)
        row["urgent"] = {f"p{percent}": round(measure.percentile(urgent, percent / 100), 1) for percent in (50, 99)}
        share = [row["rate"][part] / best for part in ("median", "q1", "q3")]
        cpu = [f"{row[key]['median']:.0f}" if key in row else "-" for key in ("load", "origin", "proxy")]
        print(f"{load.name:<24}{share[0]:>7.1%}{share[1]:>7.1%}{share[2]:>7.1%}{row['rate']['median']:>8.0f}"
              f"{row['urgent']['p50']:>12.0f}{row['urgent']['p99']:>8.0f}   {', '.join(cpu)}")
    return rows


def main() -> None:
    options = arguments()
    folder = pathlib.Path(tempfile.mkdtemp())
    peers.certificates(folder)
    credentials(folder)
    origin_program = folder / "origin"
    source = pathlib.Path(__file__).resolve().parent / "peers/origin.go"
    subprocess.run(["go", "build", "-o", origin_program, source], check=True, env=os.environ | {"GO111MODULE": "off"})
    origin_command = (str(origin_program), "-listen", f"127.0.0.1:{ORIGIN_PORT}", "-cert", f"{folder}/tls.crt",
                      "-key", f"{folder}/tls.key", "-cpu", options.cpu, "-list-cpu", options.list_cpu, "-filters")
    path = LISTS if options.lists else PATH
    calm = [int(each) for each in options.calm.split(",") if each]
    storm = [int(each) for each in options.storm.split(",") if each]
    log = folder / "log"
    with contextlib.ExitStack() as stack:
        def start(name: str, command: tuple[str, ...], port: int) -> int:
            return stack.enter_context(measure.running(name, command, port, "0,1", log, lambda: (PATH, TOKEN))).pid

        origin = start("origin", origin_command, ORIGIN_PORT)
        loads = []

        def connect(name: str, pid: int, port: int, connections: list[int]) -> None:
            for number in connections:
                load = Load(name, pid, port, number, path)
                stack.callback(load.process.kill)
                loads.append(load)

        connect("direct", 0, ORIGIN_PORT, calm)
        for peer in proxies(folder, options):
            pid = start(peer.name, peer.command, peer.port)
            is_weir = peer.name.startswith(("weir", "before"))
            connect(peer.name, pid, peer.port, calm + (storm if is_weir else []))
        for cycle in range(options.cycles):
            for load in loads:
                for other in loads:
                    if other is not load:
                        other.keep_connected()
                load.run(options.seconds, origin)
            print(f"cycle {cycle + 1} of {options.cycles}", file=sys.stderr)
        rows = report(loads)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
