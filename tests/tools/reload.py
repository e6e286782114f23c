"""Clients that stay while weir's configuration changes: watches that must not be cut, and requests that must not fail.

Usage: reload.py ADDRESS DIR WATCHES STOP
DIR has the CA, the certificate of alice, and tokens.csv. Half of the watches use the certificate, half a token; and so do two
clients that send one request after the other, each on a connection of its own. Prints `watching` once all watches are open.
When the file STOP exists, makes a ConfigMap, waits until every watch has received it, and prints what was counted.
"""

import asyncio
import json
import os
import ssl
import sys

ADDRESS, DIR, WATCHES, STOP = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
HOST, PORT = ADDRESS.rsplit(":", 1)
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
EVENT_NAME = "seen-by-every-watch"

counts = {"requests": 0, "failed": 0, "cut": 0, "reconnects": 0}
reasons = set()


def token_of(user):
    with open(f"{DIR}/tokens.csv", encoding="utf-8") as lines:
        for line in lines:
            token, name, *_ = line.split(",")
            if name == user:
                return token
    raise SystemExit(f"no token of {user}")


def tls(certificate):
    context = ssl.create_default_context()
    # The serving certificate changes on purpose.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(f"{DIR}/alice.crt", f"{DIR}/alice.key")
    return context


CONTEXTS = {True: tls(True), False: tls(False)}
TOKEN = token_of("alice")


async def connect(certificate):
    return await asyncio.open_connection(HOST, int(PORT), ssl=CONTEXTS[certificate], server_hostname=None)


def head(certificate, method, target, body=b""):
    lines = [f"{method} {target} HTTP/1.1", "Host: weir", f"Content-Length: {len(body)}"]
    if not certificate:
        lines.append(f"Authorization: Bearer {TOKEN}")
    if body:
        lines.append("Content-Type: application/json")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def response_head(reader):
    text = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(text.split(" ", 2)[1])
    headers = dict(line.lower().split(": ", 1) for line in text.split("\r\n")[1:] if ": " in line)
    return status, headers


async def body(reader, headers):
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    whole = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        whole += await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            return whole


async def watch(certificate, opened, seen):
    reader, writer = await connect(certificate)
    writer.write(head(certificate, "GET", f"{CONFIGMAPS}?watch=true&timeoutSeconds=3600"))
    status, _ = await response_head(reader)
    if status != 200:
        raise SystemExit(f"a watch got {status}")
    opened.release()
    received = b""
    try:
        while EVENT_NAME.encode() not in received:
            part = await reader.read(65536)
            if not part:
                counts["cut"] += 1
                return
            received = received[-4096:] + part
        seen.release()
    except OSError as why:
        counts["cut"] += 1
        reasons.add(f"a watch: {why}")


async def requests(certificate, stop):
    """One after the other. A connection that weir has closed between two requests is opened anew, as every client does."""
    reader = writer = None
    while not stop.is_set():
        fresh = writer is None
        if fresh:
            reader, writer = await connect(certificate)
        try:
            writer.write(head(certificate, "GET", "/api/v1/namespaces/default"))
            await writer.drain()
            status, headers = await response_head(reader)
            await body(reader, headers)
        except (OSError, asyncio.IncompleteReadError) as why:
            empty = isinstance(why, asyncio.IncompleteReadError) and not why.partial
            if fresh or not empty:
                counts["failed"] += 1
                reasons.add(f"a request: {why}")
            counts["reconnects"] += 1
            writer = None
            continue
        counts["requests"] += 1
        if status != 200:
            counts["failed"] += 1
            reasons.add(f"a request: {status}")
        if headers.get("connection") == "close":
            writer = None


async def make_event():
    reader, writer = await connect(False)
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": EVENT_NAME}}
    writer.write(head(False, "POST", CONFIGMAPS, json.dumps(data).encode()))
    status, _ = await response_head(reader)
    if status != 201:
        raise SystemExit(f"the ConfigMap got {status}")


async def main():
    opened, seen, stop = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()
    watches = [asyncio.create_task(watch(n % 2 == 0, opened, seen)) for n in range(WATCHES)]
    for _ in range(WATCHES):
        await asyncio.wait_for(opened.acquire(), 60)
    print("watching", flush=True)
    clients = [asyncio.create_task(requests(certificate, stop)) for certificate in (True, False)]
    while not os.path.exists(STOP):
        await asyncio.sleep(0.1)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    await make_event()
    await asyncio.wait(watches, timeout=60)
    counts["seen"] = WATCHES - counts["cut"] - sum(not task.done() for task in watches)
    for why in sorted(reasons):
        print(why)
    print(" ".join(f"{name}={count}" for name, count in counts.items()))


asyncio.run(main())
