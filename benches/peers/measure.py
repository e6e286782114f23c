"""Processes and their cost: CPU time, memory, and the statistics of rounds."""

import contextlib
import http.client
import os
import pathlib
import signal
import ssl
import statistics
import subprocess
import time

# A proxy that does not serve by then does not start at all.
START_TIMEOUT = 20


def family(pid: int) -> list[int]:
    """A process and its children (nginx has workers)."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [pid, *map(int, found.stdout.split())]


def cpu_us(pid: int) -> float:
    """The CPU time of a process and its children, in microseconds, to the nanosecond: the clock ticks of
    /proc/PID/stat are 10 ms each, too coarse for 500 requests a second. Threads that have ended are missing."""
    total = 0
    for member in family(pid):
        for task in pathlib.Path(f"/proc/{member}/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int(task.read_text().split()[0])
    return total / 1000


def resident_kib(pid: int) -> int:
    """The resident memory of a process and its children."""
    total = 0
    for member in family(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in pathlib.Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
    return total


def answers(port: int, path: str, token: str) -> bool:
    """Whether a GET through this port gets 200."""
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def running(name, command, port, cores, log, probe):
    """Starts a program on these cores; yields its process once it answers, and ends it afterwards. `probe` returns
    the path and the token of a request that gets 200."""
    with open(log, "ab") as out:
        process = subprocess.Popen(["taskset", "-c", cores, *command], stdout=out, stderr=out)
    try:
        end = time.monotonic() + START_TIMEOUT
        while not answers(port, *probe()):
            if process.poll() is not None or time.monotonic() > end:
                tail = pathlib.Path(log).read_text(errors="replace")[-1000:]
                raise SystemExit(f"{name} does not serve:\n{tail}")
            time.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill() # it still has watches
            process.wait()


def summary(values: list[float]) -> dict:
    """Median and quartiles. The values are kept, in the order of the rounds."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    rounded = [round(value, 3) for value in values]
    return {"median": round(quartiles[1], 3), "q1": round(quartiles[0], 3), "q3": round(quartiles[2], 3), "rounds": rounded}


def percentile(ordered: list[float], fraction: float) -> float:
    """The value below which this fraction of sorted values lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
