"""A TCP load balancer: new connections go to the backends whose /readyz succeeds, in turn. Connections that are open stay.

Usage: balancer.py BACKENDS

Each line of the file BACKENDS is the address of a backend and that of its probes. The file is read again before each round of
probes. Prints the address that it listens on.
"""

import asyncio
import itertools
import sys

BACKENDS = sys.argv[1]
INTERVAL = 0.2  # seconds between two rounds of probes
PROBE_TIMEOUT = 10  # seconds

ready = []
turns = itertools.count()


async def probe(backend):
    address, health = backend
    host, port = health.rsplit(":", 1)
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        status = await reader.readuntil(b"\r\n")
        writer.close()
        return address if b" 200 " in status else None
    except (OSError, EOFError):
        return None


async def look():
    with open(BACKENDS, encoding="utf-8") as lines:
        backends = [line.split() for line in lines if line.strip()]
    probes = (asyncio.wait_for(probe(backend), PROBE_TIMEOUT) for backend in backends)
    results = await asyncio.gather(*probes, return_exceptions=True)
    ready[:] = [address for address in results if isinstance(address, str)]


async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def forward(reader, writer):
    if not ready:
        writer.transport.abort()
        return
    host, port = ready[next(turns) % len(ready)].rsplit(":", 1)
    try:
        upstream, to_upstream = await asyncio.open_connection(host, int(port))
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(copy(reader, to_upstream), copy(upstream, writer))
    writer.close()
    to_upstream.close()


async def main():
    await look()
    server = await asyncio.start_server(forward, "127.0.0.1", 0, backlog=1024)
    print("{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    while True:
        await asyncio.sleep(INTERVAL)
        await look()


asyncio.run(main())
