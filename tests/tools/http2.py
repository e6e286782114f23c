"""HTTP/2 by hand, for clients that do what the libraries do not: they break rules, or use a connection to its GOAWAY."""

import struct

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
LARGE = 2**30  # bytes of a window that is never used up
CANCEL = struct.pack(">L", 8)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">LBL", len(payload) << 8 | kind, flags, stream) + payload


class Connection:
    """A connection with one request at a time, to its GOAWAY and the end of the stream that is under way then."""

    def __init__(self, reader, writer, token):
        self.reader, self.writer, self.token = reader, writer, token
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.stream, self.received = -1, 0
        self.status = None
        self.ends = False
        writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", LARGE)))

    async def request(self, method, target, body=b""):
        """Returns the status of the whole response. Where that is cut off, `status` has what came."""
        self.stream += 2
        self.status = None
        fields = [(":method", method), (":scheme", "https"), (":authority", "weir"), (":path", target)]
        fields += [("authorization", f"Bearer {self.token}")] + [("content-type", "application/json")] * bool(body)
        block = self.encoder.encode(fields)
        self.writer.write(frame(HEADERS, END_HEADERS | (0 if body else END_STREAM), self.stream, block))
        if body:
            self.writer.write(frame(DATA, END_STREAM, self.stream, body))
        while True:
            kind, flags, stream, payload = await self.next_frame()
            if kind == GOAWAY:
                last, error = struct.unpack(">LL", payload[:8])
                self.ends = True
                if error or last < self.stream:
                    raise OSError(f"GOAWAY {error} up to {last} of {self.stream}")
            elif kind == RST_STREAM and stream == self.stream:
                raise OSError(f"the stream was reset: {payload.hex()}")
            elif kind == HEADERS and stream == self.stream:
                self.status = int(dict(self.decoder.decode(payload)).get(":status", self.status))
            if kind in (HEADERS, DATA) and stream == self.stream and flags & END_STREAM:
                return self.status

    async def next_frame(self):
        length, kind, flags, stream = struct.unpack(">LBBL", b"\0" + await self.reader.readexactly(9))
        payload = await self.reader.readexactly(length)
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.writer.write(frame(kind, ACK, 0, payload if kind == PING else b""))
        if kind == DATA:
            self.received += length
            if self.received > 1 << 20:
                self.writer.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", self.received)))
                self.received = 0
        return kind, flags, stream, payload

    async def close(self):
        """Reads until weir closes the connection, as a client does that has received GOAWAY."""
        try:
            while True:
                await self.next_frame()
        except (OSError, EOFError):
            self.writer.close()
