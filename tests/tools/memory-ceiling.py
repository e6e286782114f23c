"""A flood of responses that are not read, beside a client that waits as Retry-After says.

Usage: memory-ceiling.py HOST:PORT FOLDER PID MIB SECONDS memory UNTIL
       memory-ceiling.py HOST:PORT FOLDER PID MIB SECONDS requests NUMBER

FOLDER is a playground's, PID is weir's. The flood asks for MIB of responses in all, each short enough
that weir has all of it before the client reads, on HTTP/2 connections with open windows; when one
ends, the flood opens another. It goes on until weir has taken UNTIL MiB, or until the other client has
made NUMBER requests after the flood got its first 429 and the flood has got NUMBER of them. How long
that takes depends on the machine; more than SECONDS is a failure.

Prints weir's most memory in MiB; how many responses the flood got, and how many were 429; how many
requests the other client sent after the first of these, how many of them got a 429 at first, and how
many of its requests failed.

The other client is alice, from 127.0.0.1. As client-go does, it repeats a request after its
Retry-After, ten times at most. The flood is bob's, from 127.0.0.2, in a process of its own. It reads
the heads of the first responses of each connection and nothing else.
"""

import http.client
import json
import multiprocessing
import socket
import ssl
import struct
import sys
import time

import hpack
import http2

NAMESPACE = "/api/v1/namespaces/default"
SIZE = 60 * 1024  # of a response
STREAMS = 100  # of a connection
SOURCE = "127.0.0.2"
RETRIES = 10
TICK = 0.05  # seconds between two requests of the other client
TIMEOUT = 60  # seconds for one response, with the flood on the same core
OBJECT = "memory-ceiling"


def tokens(folder):
    with open(f"{folder}/tokens.csv", encoding="ascii") as lines:
        return {line.split(",")[1]: line.split(",")[0] for line in lines}


def tls(folder, protocol):
    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    context.set_alpn_protocols([protocol])
    return context


class Client:
    """alice, who retries as client-go does."""

    def __init__(self, host, port, folder):
        self.host, self.port = host, port
        self.tls = tls(folder, "http/1.1")
        self.headers = {"Authorization": f"Bearer {tokens(folder)['alice']}", "Content-Type": "application/json"}
        self.connection = None
        self.requests = self.rejected = 0
        self.failures = []

    def once(self, method, path, body=None):
        for _ in range(2):  # a connection may be closed while it is idle
            fresh = self.connection is None
            if fresh:
                self.connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT, context=self.tls)
            try:
                self.connection.request(method, path, body, self.headers)
                response = self.connection.getresponse()
                return response.status, response.headers, response.read()
            except (OSError, http.client.HTTPException):
                self.connection.close()
                self.connection = None
                if fresh:
                    raise
        raise AssertionError("unreachable")

    def ask(self, method, path, body=None):
        self.requests += 1
        status = content = None
        for attempt in range(RETRIES):
            try:
                status, headers, content = self.once(method, path, body)
            except (OSError, http.client.HTTPException) as why:
                # Closed at once: memory is far above the limit. client-go dials again.
                status, content = type(why).__name__, str(why)
                time.sleep(1)
                continue
            if status != 429:
                break
            if b"weir/memory-limit" not in content:
                self.failures.append(f"another 429: {content[:200]!r}")
            if attempt == 0:
                self.rejected += 1
            time.sleep(int(headers["Retry-After"]))
        if status not in (200, 201, 409):
            self.failures.append(f"{method} {path}: {status} {content[:100]!r}")


def connect(address, host, port, context):
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(TIMEOUT)
    plain.bind((SOURCE, 0))
    plain.connect((host, port))
    stream = context.wrap_socket(plain, server_hostname=host)
    stream.sendall(
        http2.PREFACE
        + http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HL", http2.INITIAL_WINDOW_SIZE, http2.LARGE))
        + http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">L", http2.LARGE))
    )
    return stream


def flood(address, folder, mib, go, responses, rejected):
    host, port = address.rsplit(":", 1)
    context = tls(folder, "h2")
    token = tokens(folder)["bob"]
    go.wait()
    open_streams = []
    while True:
        try:
            stream = connect(address, host, int(port), context)
            encoder = hpack.Encoder()
            blocks = [
                encoder.encode(
                    [
                        (":method", "GET"),
                        (":scheme", "https"),
                        (":authority", address),
                        (":path", f"{NAMESPACE}/configmaps/{OBJECT}"),
                        ("authorization", f"Bearer {token}"),
                    ]
                )
                for _ in range(STREAMS)
            ]
            stream.sendall(
                b"".join(
                    http2.frame(http2.HEADERS, http2.END_STREAM | http2.END_HEADERS, 2 * number + 1, block) for number, block in enumerate(blocks)
                )
            )
            open_streams.append(stream)
            count_first(stream, responses, rejected)
        except OSError:
            time.sleep(0.02)
        # No more than are needed: the oldest go first. On a slow machine they may not have their responses yet: until a
        # response is 429, they stay.
        while len(open_streams) * STREAMS * SIZE > mib << 20:
            if rejected.value:
                open_streams.pop(0).close()
            else:
                time.sleep(TICK)


def count_first(stream, responses, rejected):
    """Reads up to the first response's head."""
    decoder = hpack.Decoder()
    reader = stream.makefile("rb", buffering=0)
    try:
        while True:
            head = b""
            while len(head) < 9:
                more = reader.read(9 - len(head))
                if not more:
                    return
                head += more
            length, flags, _ = struct.unpack(">LBL", head)
            kind, length = length & 255, length >> 8
            payload = b""
            while len(payload) < length:
                more = reader.read(length - len(payload))
                if not more:
                    return
                payload += more
            if kind == http2.HEADERS and flags & http2.END_HEADERS:
                status = dict(decoder.decode(payload)).get(":status")
                with responses.get_lock():
                    responses.value += 1
                    rejected.value += status == "429"
                return
    except (OSError, ValueError):
        return


def memory(pid, what):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) // 1024


def main():
    address, folder, pid, mib, seconds, what, number = sys.argv[1:]
    number = int(number)
    host, port = address.rsplit(":", 1)
    client = Client(host, int(port), folder)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OBJECT}, "data": {"a": "a" * SIZE}}
    client.ask("POST", f"{NAMESPACE}/configmaps", json.dumps(body))
    pod = json.loads(client.once("GET", f"{NAMESPACE}/pods?limit=1")[2])["items"][0]["metadata"]["name"]
    processes = multiprocessing.get_context("fork")
    go, responses, rejected = processes.Event(), processes.Value("q", 0), processes.Value("q", 0)
    attack = processes.Process(target=flood, args=(address, folder, int(mib), go, responses, rejected), daemon=True)
    attack.start()
    go.set()

    def is_over():
        if what == "memory":
            return memory(pid, "VmHWM") >= number
        return client.requests >= number and rejected.value >= number

    end = time.monotonic() + float(seconds)
    client.requests = client.rejected = 0
    while not is_over():
        if time.monotonic() > end:
            seen = f"{client.requests} requests, {rejected.value} of {responses.value} responses are 429"
            client.failures.append(f"not over after {seconds} s: {seen}")
            break
        if what == "requests" and not rejected.value:
            client.requests = client.rejected = 0
        client.ask("GET", f"{NAMESPACE}/pods/{pod}")
        time.sleep(TICK)
    if not attack.is_alive():
        client.failures.append("the flood has ended by itself")
    attack.kill()
    attack.join()
    for failure in client.failures:
        print(failure, file=sys.stderr)
    print(memory(pid, "VmHWM"), responses.value, rejected.value, client.requests, client.rejected, len(client.failures))


main()
