"""The load of soak.sh, and its plots.

Usage: soak.py load ADDRESS DIR RATE COMMANDS
       soak.py plot SAMPLES FILE

`load` sends RATE requests a second to ADDRESS, with the CA and the tokens of the playground's DIR, and obeys the lines of the FIFO
COMMANDS. Its own lines go to the standard output:

  pause     no request of alice is under way any more: `paused` and her answers by code, as JSON
  resume    she goes on: `resumed`
  stop      all connections are closed: `stopped` and what was counted, as JSON

alice asks for ConfigMaps and Nodes, over both versions of HTTP, and counts each answer. bob has watches, tunnels (exec over
WebSocket), requests that he aborts and responses that he reads slowly, and counts nothing but how many.

`plot` draws the lines of SAMPLES (seconds, KiB, descriptors, tasks, series) into the SVG FILE.
"""

import asyncio
import base64
import collections
import contextlib
import json
import os
import random
import ssl
import sys

import http2

NAMESPACE = "/api/v1/namespaces/default"
CONFIGMAPS = f"{NAMESPACE}/configmaps"
PODS = "/api/v1/pods"
CLIENTS = 12  # of alice, by version of HTTP
WATCHES = 20
TUNNELS = 4
PATIENCE = 90  # seconds for an answer, longer than any limit of weir



class Http1:
    """A connection with one request at a time."""

    protocol = "http/1.1"

    def __init__(self, reader, writer, token):
        self.reader, self.writer, self.token = reader, writer, token
        self.ends = False

    def send(self, method, target, body=b"", *lines):
        fields = [f"{method} {target} HTTP/1.1", "Host: weir", f"Authorization: Bearer {self.token}", *lines]
        if body:
            fields += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.writer.write(("\r\n".join(fields) + "\r\n\r\n").encode() + body)

    async def head(self):
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        lines = text.lower().split("\r\n")[1:]
        return int(text.split(" ", 2)[1]), dict(line.split(": ", 1) for line in lines if ": " in line)

    async def chunk(self):
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def request(self, method, target, body=b""):
        self.send(method, target, body)
        status, headers = await self.head()
        self.ends = headers.get("connection") == "close"
        try:
            if "content-length" in headers:
                await self.reader.readexactly(int(headers["content-length"]))
            elif "transfer-encoding" in headers:
                while await self.chunk():
                    pass
        except (OSError, EOFError):
            self.ends = True  # the answer was cut off; it is counted
        return status

    async def close(self):
        self.writer.close()


class Http2(http2.Connection):
    """A connection with one request at a time, to its GOAWAY."""

    protocol = "h2"

    async def request(self, method, target, body=b""):
        try:
            return await super().request(method, target, body)
        except (OSError, EOFError):
            self.ends = True
            if self.status is None:
                raise
            return self.status  # the answer was cut off; it is counted

    async def close(self):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(super().close(), PATIENCE if self.ends else 0)
        self.writer.close()


class Load:
    def __init__(self, address, folder, rate):
        self.host, port = address.rsplit(":", 1)
        self.port, self.folder, self.rate = int(port), folder, rate
        self.codes = collections.Counter()
        self.others = collections.Counter()
        self.reasons = collections.Counter()
        self.going = asyncio.Event()
        self.stopped = False
        self.busy = 0
        self.idle = asyncio.Event()
        self.contexts = {}
        for protocol in ("http/1.1", "h2"):
            self.contexts[protocol] = ssl.create_default_context(cafile=f"{folder}/ca.crt")
            self.contexts[protocol].set_alpn_protocols([protocol])
        with open(f"{folder}/tokens.csv", encoding="utf-8") as lines:
            self.tokens = {name: token for token, name, *_ in (line.split(",") for line in lines)}

    async def connect(self, kind, user):
        context = self.contexts[kind.protocol]
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        return kind(reader, writer, self.tokens[user])

    async def alice(self, kind, number):
        """Objects that come and go, one after the other."""
        pause = 2 * CLIENTS / self.rate
        clock = asyncio.get_running_loop().time
        due = clock() + random.random() * pause
        connection, closing, turn = None, [], 0
        while not self.stopped:
            due = max(due + pause, clock() - pause)
            await asyncio.sleep(max(0, due - clock()))
            await self.going.wait()
            name = f"{kind.protocol.replace('/', '-')}-{number}-{turn // 7}"
            one, turn = turn % 7, turn + 1
            body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b" * 500}}).encode()
            request = [
                ("POST", CONFIGMAPS, body),
                ("GET", f"{CONFIGMAPS}/{name}"),
                ("GET", CONFIGMAPS),
                ("PUT", f"{CONFIGMAPS}/{name}", body),
                ("GET", "/api/v1/nodes"),
                ("GET", f"{CONFIGMAPS}/none"),
                ("DELETE", f"{CONFIGMAPS}/{name}"),
            ][one]
            self.busy += 1
            try:
                if connection is None or connection.ends:
                    if connection is not None:
                        closing.append(asyncio.create_task(connection.close()))
                        closing = [task for task in closing if not task.done()]
                    connection = await self.connect(kind, "alice")
                code = await asyncio.wait_for(connection.request(*request), PATIENCE)
                self.codes[str(code)] += 1
            except (OSError, EOFError, TimeoutError) as why:
                self.others["unanswered"] += 1
                self.reasons[f"{kind.protocol} {request[0]}: {why!r}"] += 1
                connection = None
            finally:
                self.busy -= 1
                if not self.busy:
                    self.idle.set()

    async def forever(self, what, pause, work):
        """bob does this again and again."""
        while not self.stopped:
            connection = None
            try:
                connection = await self.connect(Http1, "bob")
                await asyncio.wait_for(work(connection), PATIENCE)
                self.others[what] += 1
            except (OSError, EOFError, TimeoutError, ValueError, KeyError):
                self.others[f"{what} that failed"] += 1
            if connection is not None:
                connection.writer.close()
            await asyncio.sleep(pause * (0.5 + random.random()))

    async def watch(self, connection):
        connection.send("GET", f"{NAMESPACE}/pods?watch=true&timeoutSeconds={random.randint(2, 10)}")
        await connection.head()
        while await connection.chunk():
            pass

    async def tunnel(self, connection):
        """`cat` in a Pod, over WebSocket."""
        connection.send("GET", f"{NAMESPACE}/pods?limit=1")
        _, headers = await connection.head()
        if "content-length" in headers:
            text = await connection.reader.readexactly(int(headers["content-length"]))
        else:
            text = b""
            while part := await connection.chunk():
                text += part
        pod = json.loads(text)["items"][0]["metadata"]["name"]
        upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: v5.channel.k8s.io"]
        key = base64.b64encode(os.urandom(16)).decode()
        target = f"{NAMESPACE}/pods/{pod}/exec?command=cat&stdin=true&stdout=true"
        connection.send("GET", target, b"", *upgrade, f"Sec-WebSocket-Key: {key}")
        status, _ = await connection.head()
        if status != 101:
            raise OSError(status)
        for _ in range(random.randint(1, 50)):
            data = b"\0" + os.urandom(100)
            # A binary frame; its mask is zero.
            connection.writer.write(bytes([0x82, 0x80 | len(data)]) + bytes(4) + data)
            answer = await connection.reader.readexactly(2 + len(data))
            if answer[3:] != data[1:]:
                raise OSError("another echo")
            await asyncio.sleep(0.1)

    async def abort(self, connection):
        """Half a head, or a request whose answer is not read."""
        if random.random() < 0.3:
            connection.writer.write(b"GET /api/v1/pods HTTP/1.1\r\nHost: we")
        else:
            connection.send("GET", PODS)
            if random.random() < 0.5:
                await connection.reader.read(1)
        await connection.writer.drain()
        connection.writer.transport.abort()

    async def read_slowly(self, connection):
        connection.send("GET", PODS)
        await connection.head()
        for _ in range(random.randint(10, 100)):
            await connection.reader.read(512)
            await asyncio.sleep(0.05)

    async def run(self, commands):
        hundredth = 100 / self.rate
        tasks = [asyncio.create_task(self.alice(kind, n)) for kind in (Http1, Http2) for n in range(CLIENTS)]
        tasks += [asyncio.create_task(self.forever("watches", 1, self.watch)) for _ in range(WATCHES)]
        tasks += [asyncio.create_task(self.forever("tunnels", 1, self.tunnel)) for _ in range(TUNNELS)]
        tasks.append(asyncio.create_task(self.forever("aborted", hundredth, self.abort)))
        # Each takes some seconds.
        slow = [self.forever("read slowly", hundredth, self.read_slowly) for _ in range(max(1, round(3 / hundredth)))]
        tasks += [asyncio.create_task(one) for one in slow]
        self.going.set()
        print("started", flush=True)
        loop = asyncio.get_running_loop()
        with open(commands, encoding="utf-8") as lines:
            while line := await loop.run_in_executor(None, lines.readline):
                await self.obey(line.strip())
                if self.stopped:
                    break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def obey(self, command):
        if command == "resume":
            self.going.set()
            print("resumed", flush=True)
            return
        self.going.clear()
        self.idle.clear()
        while self.busy:
            await self.idle.wait()
            self.idle.clear()
        if command == "pause":
            print("paused", json.dumps(self.codes, sort_keys=True), flush=True)
            return
        self.stopped = True
        for why, count in self.reasons.most_common(5):
            print("unanswered", count, why, flush=True)
        print("stopped", json.dumps({**self.codes, **self.others}, sort_keys=True), flush=True)


def plot(samples, file):
    with open(samples, encoding="utf-8") as lines:
        rows = [[float(cell) for cell in line.split()] for line in lines]
    names = ["memory, MiB", "open files", "tasks", "series"]
    columns = list(zip(*rows))
    columns[1] = [kib / 1024 for kib in columns[1]]
    width, height, gap = 640, 90, 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 120}" height="{len(names) * (height + gap) + 20}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    end = max(columns[0][-1], 1)
    for n, (name, values) in enumerate(zip(names, columns[1:])):
        top, most = n * (height + gap) + 30, max(values) or 1
        points = " ".join(f"{60 + at / end * width:.1f},{top + height - value / most * height:.1f}" for at, value in zip(columns[0], values))
        out.append(f'<text x="60" y="{top - 8}">{name}: {min(values):.0f} to {most:.0f}, {values[-1]:.0f} at the end</text>')
        out.append(f'<path d="M60 {top}V{top + height}H{60 + width}" fill="none" stroke="#999"/>')
        out.append(f'<polyline points="{points}" fill="none" stroke="#06c"/>')
        out.append(f'<text x="{60 + width}" y="{top + height + 14}" text-anchor="end">{end / 60:.0f} min</text>')
    with open(file, "w", encoding="utf-8") as svg:
        svg.write("\n".join([*out, "</svg>", ""]))


if sys.argv[1] == "plot":
    plot(sys.argv[2], sys.argv[3])
else:
    asyncio.run(Load(sys.argv[2], sys.argv[3], float(sys.argv[4])).run(sys.argv[5]))
