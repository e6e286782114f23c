"""Clients, a relay and a name server for network-faults.sh. Only the standard library.

Usage:
  network-faults.py load ADDRESS DIR CLIENTS STOP
      Clients that send one request after the other until the file STOP exists. Prints a line for each request: when it began and
      when it ended (seconds), and the status or the error.
  network-faults.py watch ADDRESS DIR CLIENTS NAME
      Watches of ConfigMaps, each opened again when it ends, until each has received an object of this name. Prints
      `opened TIME`, `ended TIME` and `seen TIME`.
  network-faults.py upload ADDRESS DIR
      Sends the begin of a request body, prints `sent`, and waits.
  network-faults.py relay PORT TARGET DELAY STALL
      Forwards TCP connections. Each piece arrives DELAY seconds later, and one of twenty STALL seconds after that, with all that
      follow it: as after a loss.
  network-faults.py names PORT FILE
      Answers each DNS query over UDP for an IPv4 address with those in FILE, one in a line.
"""

import asyncio
import http.client
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time

SHORT = "/api/v1/namespaces/default"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"

# Longer than anything that weir promises: a client that waits this long has found a fault.
CLIENT_TIMEOUT = 120
PAUSE = 0.05
RETRY = 0.5

lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def token_of(folder, user):
    with open(f"{folder}/tokens.csv", encoding="utf-8") as lines:
        for line in lines:
            token, name, *_ = line.split(",")
            if name == user:
                return token
    raise SystemExit(f"no token of {user}")


class Client:
    def __init__(self, address, folder):
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.headers = {"Authorization": f"Bearer {token_of(folder, 'alice')}"}
        self.tls = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        self.tls.check_hostname = False  # the certificate names localhost

    def connect(self):
        return http.client.HTTPSConnection(self.host, self.port, timeout=CLIENT_TIMEOUT, context=self.tls)


def in_threads(count, target, *arguments):
    threads = [threading.Thread(target=target, args=arguments) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def load(client, stop):
    connection = None
    while not os.path.exists(stop):
        begin = time.time()
        try:
            connection = connection or client.connect()
            connection.request("GET", SHORT, headers=client.headers)
            response = connection.getresponse()
            response.read()
            status = response.status
            if response.will_close:
                connection = None
        except (OSError, http.client.HTTPException) as why:
            status = type(why).__name__
            connection = None
        say(f"{begin:.3f} {time.time():.3f} {status}")
        time.sleep(PAUSE)


def watch(client, name):
    while True:
        connection = client.connect()
        try:
            connection.request("GET", f"{CONFIGMAPS}?watch=true&timeoutSeconds=3600", headers=client.headers)
            response = connection.getresponse()
            if response.status == 200:
                say(f"opened {time.time():.3f}")
                if any(name in line for line in iter(response.readline, b"")):
                    say(f"seen {time.time():.3f}")
                    return
                say(f"ended {time.time():.3f}")
        except (OSError, http.client.HTTPException) as why:
            say(f"ended {time.time():.3f} {type(why).__name__}")
        connection.close()
        time.sleep(RETRY)


def upload(client):
    connection = client.connect()
    connection.putrequest("POST", CONFIGMAPS)
    for name, value in {**client.headers, "Content-Type": "application/json", "Content-Length": "1000000"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(b" " * 100_000)  # more than weir reads before the request takes a seat
    say("sent")
    time.sleep(CLIENT_TIMEOUT)


async def forward(reader, writer, delay, stall, rng):
    pieces = asyncio.Queue()

    async def receive():
        while piece := await reader.read(65536):
            extra = stall if rng.random() < 0.05 else 0
            await pieces.put((time.monotonic() + delay + extra, piece))
        await pieces.put((0, b""))

    receiver = asyncio.create_task(receive())
    try:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0, due - time.monotonic()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()
    finally:
        receiver.cancel()


async def relay(port, target, delay, stall):
    host, target_port = target.rsplit(":", 1)
    rng = random.Random(19)

    async def serve(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(target_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            forward(reader, far_writer, delay, stall, rng),
            forward(far_reader, writer, delay, stall, rng),
            return_exceptions=True,
        )
        writer.close()
        far_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    say("listening")
    await server.serve_forever()


def names(port, file):
    """The answer repeats the question; an address lives for no second."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", port))
    say("listening")
    while True:
        query, peer = udp.recvfrom(4096)
        end = 12
        while query[end]:
            end += query[end] + 1
        question = query[12 : end + 5]
        (kind,) = struct.unpack("!H", question[-4:-2])
        addresses = []
        if kind == 1:
            with open(file, encoding="utf-8") as lines:
                addresses = lines.read().split()
        answers = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(address) for address in addresses
        )
        udp.sendto(query[:2] + struct.pack("!HHHHH", 0x8180, 1, len(addresses), 0, 0) + question + answers, peer)


def main():
    command, *rest = sys.argv[1:]
    if command == "load":
        address, folder, clients, stop = rest
        in_threads(int(clients), load, Client(address, folder), stop)
    elif command == "watch":
        address, folder, clients, name = rest
        in_threads(int(clients), watch, Client(address, folder), name.encode())
    elif command == "upload":
        upload(Client(*rest))
    elif command == "relay":
        port, target, delay, stall = rest
        asyncio.run(relay(int(port), target, float(delay), float(stall)))
    elif command == "names":
        names(int(rest[0]), rest[1])
    else:
        raise SystemExit(__doc__)


main()
