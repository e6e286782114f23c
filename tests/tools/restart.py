"""Clients that stay while one process of weir hands over to the next.

Usage: restart.py ADDRESS DIR WATCHES PARTS STOP

DIR has the playground's CA and tokens.csv. The slow upload has at most PARTS parts, one each half second. Prints `watching` once
all watches are open. When the file STOP exists, finishes the upload, stops the clients and prints what was counted:

fresh      requests on new connections: one after the other, each on a connection of its own
refused    connections that were refused or reset before TLS was up
http1      requests on kept-alive HTTP/1.1 connections
told       connections that ended behind a response with Connection: close
untold     connections that ended without one
http2      requests on HTTP/2 connections
goaways    connections that ended by GOAWAY
failed     requests that got no response, or another than 200
ended      watches that ended cleanly
cut        watches that ended otherwise
upload     the status of the slow upload

A second line lists when watches ended, in milliseconds from the start.
"""

import asyncio
import json
import os
import ssl
import sys
import time

import http2

ADDRESS, DIR, WATCHES, PARTS, STOP = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
HOST, PORT = ADDRESS.rsplit(":", 1)
NAMESPACE = "/api/v1/namespaces/default"
CONFIGMAPS = f"{NAMESPACE}/configmaps"
BEGAN = time.monotonic()
PAUSE = 0.01  # seconds between two requests of a client
CLIENTS = 4  # of each kind, but one of those with fresh connections
UPLOAD_TICK = 0.5  # seconds between two parts of the slow upload


names = "fresh refused http1 told untold http2 goaways failed ended cut".split()
counts = dict.fromkeys(names, 0)
ends = []
closing = []
reasons = set()


def token_of(user):
    with open(f"{DIR}/tokens.csv", encoding="utf-8") as lines:
        for line in lines:
            token, name, *_ = line.split(",")
            if name == user:
                return token
    raise SystemExit(f"no token of {user}")


TOKEN = token_of("alice")


def tls(protocol):
    context = ssl.create_default_context(cafile=f"{DIR}/ca.crt")
    context.set_alpn_protocols([protocol])
    return context


HTTP1, HTTP2 = tls("http/1.1"), tls("h2")


def failed(what):
    counts["failed"] += 1
    reasons.add(what)


async def connect(context):
    """A connection. One that is refused, or that ends before TLS is up, is counted, and made again."""
    while True:
        try:
            return await asyncio.open_connection(HOST, int(PORT), ssl=context)
        except OSError as why:
            counts["refused"] += 1
            reasons.add(f"a connection: {why!r}")
            await asyncio.sleep(PAUSE)


def head(method, target, *lines):
    fields = [f"{method} {target} HTTP/1.1", "Host: weir", f"Authorization: Bearer {TOKEN}", *lines]
    return ("\r\n".join(fields) + "\r\n\r\n").encode()


async def response_head(reader):
    text = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = text.lower().split("\r\n")[1:]
    return int(text.split(" ", 2)[1]), dict(line.split(": ", 1) for line in lines if ": " in line)


async def chunk(reader):
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    data = await reader.readexactly(size + 2)
    return data[:-2]


async def body(reader, headers):
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    whole = b""
    while part := await chunk(reader):
        whole += part
    return whole


async def fresh(stop):
    while not stop.is_set():
        reader, writer = await connect(HTTP1)
        try:
            writer.write(head("GET", NAMESPACE))
            status, headers = await response_head(reader)
            await body(reader, headers)
            counts["fresh"] += 1
            if status != 200:
                failed(f"a request on a new connection: {status}")
        except (OSError, EOFError) as why:
            failed(f"a request on a new connection: {why!r}")
        writer.close()
        await asyncio.sleep(PAUSE)


async def http1(stop):
    """Requests on one connection, until a response says that it ends."""
    while not stop.is_set():
        reader, writer = await connect(HTTP1)
        first = True
        while not stop.is_set():
            try:
                writer.write(head("GET", NAMESPACE))
                status, headers = await response_head(reader)
                await body(reader, headers)
            except (OSError, EOFError) as why:
                counts["untold"] += 1
                failed(f"a request on a {'new' if first else 'kept'} HTTP/1.1 connection: {why!r}")
                break
            first = False
            counts["http1"] += 1
            if status != 200:
                failed(f"a request over HTTP/1.1: {status}")
            if headers.get("connection") == "close":
                counts["told"] += 1
                break
            await asyncio.sleep(PAUSE)
        writer.close()


async def over_http2(stop):
    while not stop.is_set():
        connection = http2.Connection(*await connect(HTTP2), TOKEN)
        while not stop.is_set() and not connection.ends:
            try:
                status = await connection.request("GET", NAMESPACE)
            except (OSError, EOFError) as why:
                failed(f"a request over HTTP/2: {why!r}")
                break
            counts["http2"] += 1
            if status != 200:
                failed(f"a request over HTTP/2: {status}")
            await asyncio.sleep(PAUSE)
        if connection.ends:
            counts["goaways"] += 1
            closing.append(asyncio.create_task(connection.close()))


async def watch(opened, stop):
    first = True
    while not stop.is_set():
        reader, writer = await connect(HTTP1)
        try:
            writer.write(head("GET", f"{CONFIGMAPS}?watch=true&timeoutSeconds=3600"))
            status, _ = await response_head(reader)
            if status != 200:
                failed(f"a watch got {status}")
            if first:
                opened.release()
                first = False
            while await chunk(reader):
                pass
            counts["ended"] += 1
            ends.append(round((time.monotonic() - BEGAN) * 1000))
        except (OSError, EOFError) as why:
            counts["cut"] += 1
            reasons.add(f"a watch: {why!r}")
        writer.close()


async def upload(stop):
    """A ConfigMap whose bytes come one after the other, and the last one at the end."""
    name = f"slow-{os.getpid()}"
    data = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).encode()
    reader, writer = await connect(HTTP1)
    fields = ["Content-Type: application/json", f"Content-Length: {len(data) + PARTS}"]
    writer.write(head("POST", CONFIGMAPS, *fields) + data)
    sent = 0
    while not stop.is_set() and sent < PARTS - 1:
        writer.write(b" ")
        sent += 1
        await asyncio.sleep(UPLOAD_TICK)
    try:
        writer.write(b" " * (PARTS - sent))
        status, headers = await response_head(reader)
        await body(reader, headers)
        counts["upload"] = status
    except (OSError, EOFError) as why:
        counts["upload"] = "failed"
        reasons.add(f"the upload: {why!r}")


async def main():
    opened, stop = asyncio.Semaphore(0), asyncio.Event()
    watches = [asyncio.create_task(watch(opened, stop)) for _ in range(WATCHES)]
    for _ in range(WATCHES):
        await asyncio.wait_for(opened.acquire(), 60)
    clients = [fresh(stop), upload(stop)] + [kind(stop) for kind in (http1, over_http2) for _ in range(CLIENTS)]
    clients = [asyncio.create_task(client) for client in clients]
    print("watching", flush=True)
    while not os.path.exists(STOP):
        await asyncio.sleep(0.1)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    for task in watches:
        task.cancel()
    for why in sorted(reasons):
        print(why)
    print(" ".join(f"{name}={count}" for name, count in counts.items()))
    print("ends:", *ends)


asyncio.run(main())
