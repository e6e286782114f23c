"""A stand-in for an API server with a kubelet and Pods behind it, and a client that runs a command. For long-running.sh.

Usage: long-running.py serve FOLDER ADDRESS PROTOCOL...
       long-running.py exec WEIR FOLDER TOKEN PATH PAUSE

`serve` serves with the certificates of a playground's FOLDER, offers these ALPN protocols (h2, http/1.1), and writes its
address to the file ADDRESS. What it does depends on the path:

  /silent   the head comes after LATE seconds, as a kubelet sends it with the first line of a log
  /flood    FLOOD bytes
  /ragged   RAGGED bytes, and the connection ends without the end of the response
  /early    an answer to a request whose body is not read; the connection ends after it
  /reset    the same over HTTP/1.1, and the connection is reset at once
  /echo     the request's headers, as JSON
  /exec     101 after LATE seconds, then FLOOD bytes
  /stuck    101, and nothing is read for STUCK seconds; then the number of bytes that came
  a list    LIST bytes, unless it takes longer than PATIENCE seconds

`exec` asks WEIR (HOST:PORT) for a tunnel, reads nothing for PAUSE seconds, and prints how many bytes come.
"""

import asyncio
import json
import ssl
import sys

import h2.config
import h2.connection
import h2.events

LATE = 4
PATIENCE = 2
FLOOD = 16 << 20
LIST = 12 << 20
RAGGED = 100_000
PIECE = bytes(16 << 10)


class Http1:
    """A response over HTTP/1.1."""

    def __init__(self, writer):
        self.writer = writer

    async def head(self, status, headers=()):
        lines = [f"HTTP/1.1 {status} -", "Transfer-Encoding: chunked", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode())
        await self.writer.drain()

    async def send(self, data):
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self):
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def cut(self):
        self.writer.close()


class Http2:
    """A response over HTTP/2."""

    def __init__(self, session, stream):
        self.session = session
        self.stream = stream

    async def head(self, status, headers=()):
        fields = [(":status", str(status)), *(tuple(line.lower().split(": ", 1)) for line in headers)]
        self.session.h2.send_headers(self.stream, fields)
        await self.session.flush()

    async def send(self, data):
        while data:
            room = min(self.session.h2.local_flow_control_window(self.stream), self.session.h2.max_outbound_frame_size)
            if room <= 0:
                self.session.room.clear()
                await self.session.room.wait()
                continue
            self.session.h2.send_data(self.stream, data[:room])
            data = data[room:]
            await self.session.flush()

    async def end(self):
        self.session.h2.end_stream(self.stream)
        await self.session.flush()

    def cut(self):
        self.reset(2)

    def stop(self):
        """Nothing more of the request is needed."""
        self.reset(0)

    def reset(self, code):
        self.session.h2.reset_stream(self.stream, code)
        self.session.writer.write(self.session.h2.data_to_send())


async def answer(method, path, headers, response):
    """What the path asks for."""
    name = path.split("?")[0].rsplit("/", 1)[-1]
    if "/silent" in path:
        await asyncio.sleep(LATE)
        await response.head(200)
        await response.send(b"late\n")
    elif "/flood" in path:
        await response.head(200)
        for _ in range(FLOOD // len(PIECE)):
            await response.send(PIECE)
    elif "/ragged" in path:
        await response.head(200)
        await response.send(bytes(RAGGED))
        response.cut()
        return
    elif "/early" in path:
        await response.head(401)
        await response.send(b"early\n")
        await response.end()
        response.stop()
        return
    elif name == "echo":
        await response.head(200, ["Content-Type: application/json"])
        await response.send(json.dumps(headers).encode())
    elif path.startswith("/api/v1/pods") and "watch" not in path:
        await response.head(200, ["Content-Type: application/json"])
        try:
            async with asyncio.timeout(PATIENCE):
                for _ in range(LIST // len(PIECE)):
                    await response.send(PIECE)
        except TimeoutError:
            response.cut()
            return
    elif path.startswith("/readyz"):
        await response.head(200)
        await response.send(b"ok")
    else:
        await response.head(404, ["Content-Type: application/json"])
        await response.send(b'{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}')
    await response.end()


async def tunnel(path, reader, writer):
    if "/stuck" not in path:
        await asyncio.sleep(LATE)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
    if "/stuck" in path:
        await asyncio.sleep(LATE)
        received = 0
        while received < FLOOD:
            received += len(await reader.read(1 << 16))
        writer.write(b"%d" % received)
    else:
        for _ in range(FLOOD // len(PIECE)):
            writer.write(PIECE)
            await writer.drain()
    await writer.drain()
    writer.close()


async def http1(reader, writer):
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:] if line)}
        if "upgrade" in headers:
            await tunnel(path, reader, writer)
            return
        if "/early" in path or "/reset" in path:
            writer.write(b"HTTP/1.1 401 -\r\nContent-Length: 6\r\nConnection: close\r\n\r\nearly\n")
            await writer.drain()
            if "/reset" in path:
                writer.transport.abort()
                return
            if writer.can_write_eof():
                writer.write_eof()
            await asyncio.sleep(0.5)  # as long as Go's server
            writer.close()
            return
        await reader.readexactly(int(headers.get("content-length", 0)))
        await answer(method, path, headers, Http1(writer))


class Http2Session:
    """A connection of HTTP/2."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.room = asyncio.Event()
        self.tasks = set()

    async def flush(self):
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def run(self):
        self.h2.initiate_connection()
        await self.flush()
        while data := await self.reader.read(1 << 16):
            for event in self.h2.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    headers = dict(event.headers)
                    response = Http2(self, event.stream_id)
                    asked = answer(headers[":method"], headers[":path"], headers, response)
                    task = asyncio.ensure_future(asked)
                    self.tasks.add(task)
                    task.add_done_callback(self.tasks.discard)
                elif isinstance(event, h2.events.DataReceived):
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.ConnectionTerminated):
                    return
            self.room.set()
            await self.flush()


async def serve(folder, address, *protocols):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(f"{folder}/apiserver.crt", f"{folder}/apiserver.key")
    context.set_alpn_protocols(protocols)

    async def connected(reader, writer):
        try:
            if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                await Http2Session(reader, writer).run()
            else:
                await http1(reader, writer)
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    with open(address, "w", encoding="ascii") as file:
        host, port = server.sockets[0].getsockname()[:2]
        file.write(f"{host}:{port}")
    await server.serve_forever()


async def run_command(weir, folder, token, path, pause):
    host, port = weir.rsplit(":", 1)
    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    context.check_hostname = False
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {weir}",
        f"Authorization: Bearer {token}",
        "Connection: Upgrade",
        "Upgrade: SPDY/3.1",
        "Content-Length: 0",
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    status = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
    received = 0
    if status == b"101":
        if "/stuck" in path:
            for _ in range(FLOOD // len(PIECE)):
                writer.write(PIECE)
                await writer.drain()
            received = int(await reader.read(100))
        else:
            reader._transport.pause_reading()  # the streams have nothing for this
            await asyncio.sleep(float(pause))
            reader._transport.resume_reading()
            try:
                while data := await reader.read(1 << 16):
                    received += len(data)
            except OSError:
                pass
    print(status.decode(), received)


COMMANDS = {"serve": serve, "exec": run_command}
if __name__ == "__main__":
    try:
        asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
    except KeyboardInterrupt:
        pass
