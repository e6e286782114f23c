"""The cases. Each measures one proxy for one round and returns figures by name."""

import json
import pathlib
import subprocess
import time

import measure

WATCH = "/api/v1/namespaces/a/pods?watch=1"
# Requests a second of the sparse cases, over this many connections.
RATES = (500, 1500, 3000)
CONNECTIONS = 16
# h2load's 0 is a status line without a reason, as HAProxy makes of HTTP/2; it has -1 for a request that failed.
GOOD = {"200", "0"}


class Bench:
    """What a round needs: the folder with programs and files, the running processes, and how long it lasts."""

    def __init__(self, folder: pathlib.Path, cores: str, seconds: float, count: int):
        self.folder, self.cores, self.seconds, self.count = folder, cores, seconds, count
        self.origin_port = 0
        self.origin_pid = 0
        # A request that the origin answers with 200.
        self.path, self.token = "/api/v1/namespaces/a/pods/b", "benchmark-0"

    def probe(self) -> tuple[str, str]:
        return self.path, self.token

    def header(self) -> str:
        return f"Authorization: Bearer {self.token}"

    def client(self, *arguments: str) -> list[str]:
        return ["taskset", "-c", self.cores, str(self.folder / "client"), *arguments]


def paced(bench: Bench, peer, pid, protocol: str, rate: int) -> dict:
    """CPU time for each request at a fixed rate, of the proxy and of the origin, and latency."""
    times = bench.folder / "times"
    times.unlink(missing_ok=True)
    command = ["taskset", "-c", bench.cores, "h2load", "-c", str(CONNECTIONS), "-m", "1", f"--rps={rate / CONNECTIONS}",
               "-D", str(bench.seconds), f"--log-file={times}", "-H", bench.header()]
    if protocol == "h1":
        command.append("--h1")
    before, origin_before = measure.cpu_us(pid) if pid else 0, measure.cpu_us(bench.origin_pid)
    subprocess.run([*command, f"https://127.0.0.1:{peer.port}{bench.path}"], check=True, stdout=subprocess.DEVNULL)
    proxy, origin = (measure.cpu_us(pid) if pid else 0) - before, measure.cpu_us(bench.origin_pid) - origin_before
    # Start, status, and microseconds until the end of the response.
    lines = [line.split() for line in times.read_text().splitlines()]
    latencies = sorted(int(fields[2]) for fields in lines if fields[1] in GOOD)
    if not latencies:
        raise SystemExit(f"{peer.name}: no answer")
    return {
        "proxy_us": proxy / len(latencies), "origin_us": origin / len(latencies),
        "sum_us": (proxy + origin) / len(latencies), "rate": len(latencies) / bench.seconds,
        "p50_us": measure.percentile(latencies, 0.5), "p99_us": measure.percentile(latencies, 0.99),
        "failed": len(lines) - len(latencies),
    }


def hot(bench: Bench, peer, pid, protocol: str) -> dict:
    """As many requests as possible on 64 connections (HTTP/2: 8 with 16 streams): for workers."""
    width = ["-c", "64", "-m", "1", "--h1"] if protocol == "h1" else ["-c", "8", "-m", "16"]
    before = measure.cpu_us(pid) if pid else 0
    command = ["taskset", "-c", bench.cores, "h2load", *width, "-D", str(bench.seconds), "-H", bench.header()]
    url = f"https://127.0.0.1:{peer.port}{bench.path}"
    run = subprocess.run([*command, url], check=True, capture_output=True, text=True)
    cpu = (measure.cpu_us(pid) if pid else 0) - before
    lines = {line.split(":")[0]: line.replace(",", "").split() for line in run.stdout.splitlines() if ":" in line}
    # "requests: 997 total, 997 started, 997 done, ...": those that ended, without 3xx to 5xx (see GOOD).
    good = int(lines["requests"][5]) - sum(int(lines["status codes"][at]) for at in (4, 6, 8))
    return {"rate": good / bench.seconds, "proxy_us": cpu / max(good, 1)}


def handshakes(bench: Bench, peer, pid, resume: bool) -> dict:
    """Connections with one request each."""
    before = measure.cpu_us(pid) if pid else 0
    flags = ["-resume"] if resume else []
    command = bench.client("handshakes", "-url", f"https://127.0.0.1:{peer.port}{bench.path}", "-seconds", str(bench.seconds))
    run = subprocess.run([*command, *flags], check=True, capture_output=True, text=True)
    figures = json.loads(run.stdout)
    cpu = (measure.cpu_us(pid) if pid else 0) - before
    return {"rate": figures["count"] / figures["seconds"], "proxy_us": cpu / figures["count"],
            "resumed": figures["resumed"] / figures["count"]}


def memory(bench: Bench, peer, pid, kind: str) -> dict:
    """KiB for each idle watch or keep-alive connection: what `count` of them add to the resident memory."""
    if not pid:
        return {}
    path, flags = {
        "keep-alive": (bench.path, []),
        "watch-h1": (WATCH, ["-watch"]),
        "watch-h2": (WATCH, ["-watch", "-http2"]),
    }[kind]
    before = measure.resident_kib(pid)
    command = bench.client("idle", "-url", f"https://127.0.0.1:{peer.port}{path}", "-count", str(bench.count), *flags)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
        if not clients.stdout.readline():
            raise SystemExit(f"{peer.name}: {kind}: the clients failed")
        time.sleep(12) # weir gives buffers back when a connection has rested for 5 to 10 s
        after = measure.resident_kib(pid)
        clients.stdin.close()
        clients.wait()
    return {"kib_each": (after - before) / bench.count}


def fanout(bench: Bench, peer, pid, protocol: str) -> dict:
    """One event to all watches: from its request until the last watch has it."""
    flags = ["-http2"] if protocol == "h2" else []
    before = measure.cpu_us(pid) if pid else 0
    command = bench.client(
        "fanout", "-url", f"https://127.0.0.1:{peer.port}{WATCH}", "-count", str(bench.count),
        "-trigger", f"https://127.0.0.1:{bench.origin_port}/event", *flags)
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(run.stdout)
    cpu = (measure.cpu_us(pid) if pid else 0) - before
    # The first event also warms buffers.
    last, median = sorted(figures["last_ms"][1:]), sorted(figures["median_ms"][1:])
    return {"last_ms": measure.percentile(last, 0.5), "median_ms": measure.percentile(median, 0.5),
            "proxy_ms_all": cpu / 1000}


# Name: (workers, whether an origin burns CPU, figures of the table, function of a round). A fresh process for each round
# where memory is measured.
CASES = {}
for _protocol in ("h1", "h2"):
    for _rate in RATES:
        CASES[f"sparse-{_protocol}-{_rate}"] = (
            1, True, ("proxy_us", "origin_us", "sum_us", "rate", "p50_us", "p99_us"),
            lambda bench, peer, pid, p=_protocol, r=_rate: paced(bench, peer, pid, p, r))
    CASES[f"workers-{_protocol}"] = (
        2, False, ("rate", "proxy_us"), lambda bench, peer, pid, p=_protocol: hot(bench, peer, pid, p))
    CASES[f"fanout-{_protocol}"] = (
        1, False, ("last_ms", "median_ms", "proxy_ms_all"),
        lambda bench, peer, pid, p=_protocol: fanout(bench, peer, pid, p))
for _kind in ("keep-alive", "watch-h1", "watch-h2"):
    CASES[f"memory-{_kind}"] = (
        1, False, ("kib_each",), lambda bench, peer, pid, k=_kind: memory(bench, peer, pid, k))
for _resume in (False, True):
    CASES["handshakes-resumed" if _resume else "handshakes"] = (
        1, False, ("rate", "proxy_us", "resumed"),
        lambda bench, peer, pid, r=_resume: handshakes(bench, peer, pid, r))
