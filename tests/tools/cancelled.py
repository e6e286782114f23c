"""Many HTTP/2 requests at once on a connection, which are refused; what becomes of those that are given up.

Usage: cancelled.py HOST:PORT CA TOKEN wait|cancel STREAMS ROUNDS
           `wait` for all answers, or `cancel` each request in the write that has it.
           Prints how many streams were opened, and on how many connections.
       cancelled.py HOST:PORT CA TOKEN hold STREAMS ROUNDS [ADMIN]
           Cancels in each round what is held, once everything else is answered. Prints the same, and how many were
           cancelled; with ADMIN also the least and the most that weir_rejection_holds said then, and the most that it
           said at any time.
       cancelled.py HOST:PORT CA TOKEN fill STREAMS CONNECTIONS ADMIN MOST
           As `hold`, once, on all connections together, until no more than MOST have no answer; who goes away closes them.
           Prints how many streams were opened, how many had no answer in the end, and the most that weir_rejection_holds
           said.

The frames are made by hand: a library takes longer for a thousand requests than weir holds them.
"""

import http.client
import select
import socket
import ssl
import struct
import sys
import threading
import time

import hpack
import http2

PATH = "/api/v1/nodes"
LIMIT = 30  # seconds for anything



class Connection:
    """One of HTTP/2, and what its streams are waiting for."""

    def __init__(self, address, ca, token):
        host, port = address.rsplit(":", 1)
        tls = ssl.create_default_context(cafile=ca)
        tls.set_alpn_protocols(["h2"])
        self.socket = tls.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
        self.socket.settimeout(LIMIT)
        self.received = b""
        self.next = 1
        self.left = set()
        self.acknowledged = False
        head = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", address),
            (":path", PATH),
            ("authorization", f"Bearer {token}"),
        ]
        encoder = hpack.Encoder()
        # The second time everything is in the table, so that all that follow are the same bytes.
        self.head, self.again = encoder.encode(head), encoder.encode(head)
        self.socket.sendall(
            http2.PREFACE
            + http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HL", http2.INITIAL_WINDOW_SIZE, http2.LARGE))
            + http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">L", http2.LARGE))
        )

    def send(self, streams, cancelled=False):
        """So many requests in one write, and a PING, whose answer comes behind everything before it."""
        frames = []
        self.left = set()
        for _ in range(streams):
            frames.append(http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, self.next, self.head))
            if cancelled:
                frames.append(http2.frame(http2.RST_STREAM, 0, self.next, http2.CANCEL))
            self.head = self.again
            self.left.add(self.next)
            self.next += 2
        self.write(frames)

    def cancel(self):
        """Gives up whatever has no answer; how many these are."""
        left, self.left = self.left, set()
        self.write([http2.frame(http2.RST_STREAM, 0, stream, http2.CANCEL) for stream in left])
        return len(left)

    def write(self, frames):
        self.acknowledged = False
        self.socket.sendall(b"".join(frames) + http2.frame(http2.PING, 0, 0, b"12345678"))

    def read_until(self, left):
        """Until the PING is answered, and no more than `left` streams have no answer."""
        end = time.monotonic() + LIMIT
        while not self.acknowledged or len(self.left) > left:
            if time.monotonic() > end:
                waited = f"{len(self.left)} streams without an answer (at most {left})"
                raise TimeoutError(f"after {LIMIT} s: PING answered: {self.acknowledged}; {waited}")
            self.read()

    def read(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("closed")
        self.received += data
        at = 0
        while len(self.received) >= at + 9:
            length, flags, stream = struct.unpack_from(">LBL", self.received, at)
            kind, length = length & 255, length >> 8
            if len(self.received) < at + 9 + length:
                break
            at += 9 + length
            if kind == http2.PING and flags & http2.ACK:
                self.acknowledged = True
            elif kind == http2.SETTINGS and not flags & http2.ACK:
                self.socket.sendall(http2.frame(http2.SETTINGS, http2.ACK, 0))
            elif kind == http2.RST_STREAM or (kind in (http2.DATA, http2.HEADERS) and flags & http2.END_STREAM):
                self.left.discard(stream)
            elif kind == http2.GOAWAY:
                raise ConnectionError("told to go")
        self.received = self.received[at:]


class Gauge:
    """weir_rejection_holds, which is looked at all the time from a thread of its own."""

    def __init__(self, admin):
        self.admin = admin
        self.most = 0
        self.ended = threading.Event()
        self.watching = threading.Thread(target=self.watch, args=[http.client.HTTPConnection(admin, timeout=LIMIT)])
        self.asking = http.client.HTTPConnection(admin, timeout=LIMIT)
        self.watching.start()

    def watch(self, connection):
        while not self.ended.wait(0.01):
            self.most = max(self.most, self.read(connection))

    def read(self, connection):
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().splitlines():
            if line.startswith(b"weir_rejection_holds "):
                return int(line.split()[1])
        raise ValueError("no weir_rejection_holds")

    def now(self):
        value = self.read(self.asking)
        self.most = max(self.most, value)
        return value

    def is_zero(self):
        end = time.monotonic() + LIMIT
        while self.now() != 0:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.now()} are held after {LIMIT} s")

    def end(self):
        self.ended.set()
        self.watching.join()
        return self.most


def flood(connect, what, streams, rounds):
    opened = connections = 0
    connection = None
    for _ in range(rounds):
        if connection is None:
            connection = connect()
            connections += 1
        opened += streams
        try:
            connection.send(streams, what == "cancel")
            connection.read_until(0 if what == "wait" else streams)
        except (ConnectionError, ssl.SSLError):
            if what == "wait":
                raise
            connection = None  # weir has had enough of it
    print(opened, connections)


def hold(connect, streams, rounds, gauge):
    connection = connect()
    cancelled = 0
    held = []
    for _ in range(rounds):
        connection.send(streams)
        connection.read_until(streams // 2)
        if gauge:
            held.append(gauge.now())
        cancelled += connection.cancel()
        connection.read_until(0)
        if gauge:
            gauge.is_zero()
    print(streams * rounds, 1, cancelled, *([min(held), max(held), gauge.most] if gauge else []))


def fill(connect, streams, connections, gauge, most):
    all_of_them = [connect() for _ in range(connections)]
    for connection in all_of_them:
        connection.send(streams)
    readers = {connection.socket.fileno(): connection for connection in all_of_them}
    # What is not held is answered, and what is let go as well: until nothing comes any more that would.
    end = time.monotonic() + LIMIT
    while any(len(c.left) > streams // 2 for c in all_of_them) or sum(len(c.left) for c in all_of_them) > most:
        if time.monotonic() > end:
            break  # the numbers say so
        for ready in select.select(list(readers), [], [], 0.1)[0]:
            readers[ready].read()
    gauge.now()
    print(streams * connections, sum(len(c.left) for c in all_of_them), gauge.most)
    for connection in all_of_them:
        connection.socket.close()


def main():
    address, ca, token, what, streams, count, *others = sys.argv[1:]
    streams, count = int(streams), int(count)
    admin, most = others[:1], [int(most) for most in others[1:]]

    def connect():
        return Connection(address, ca, token)

    if what in ("wait", "cancel"):
        return flood(connect, what, streams, count)
    gauge = Gauge(*admin) if admin else None
    try:
        {"hold": hold, "fill": fill}[what](connect, streams, count, gauge, *most)
    finally:
        if gauge:
            gauge.end()


main()
