"""A front proxy with very many clients: each request has a user and a user agent of its own, but for every second one, which is
one of ten users' with one of ten agents; each of the ten sends fewer than the one before. Says how many each of them has sent.

Usage: talkers.py ADDRESS DIR CROWD
DIR has the front proxy's certificate and key, and the CA of the server.

Requests go in batches, each answered to its end before the next; on some connections at a time.
"""

import os
import re
import socket
import ssl
import sys

ADDRESS, DIR, CROWD = sys.argv[1], sys.argv[2], int(sys.argv[3])
CONNECTIONS = 8
BATCH = 50
HOT = 10

# The first of the ten 19 times a round, the last 10 times; spread, so that none of them comes at the beginning alone.
ROUND = [n for _, n in sorted((turn / (20 - n), n) for n in range(1, HOT + 1) for turn in range(1, 20 - n + 1))]


def request(user, agent):
    return (
        f"GET /api/v1/namespaces/default HTTP/1.1\r\nHost: weir\r\nX-Remote-User: {user}\r\nX-Remote-Group: dev\r\n"
        f"User-Agent: {agent}\r\n\r\n"
    ).encode()


def connect():
    host, port = ADDRESS.rsplit(":", 1)
    context = ssl.create_default_context(cafile=f"{DIR}/ca.crt")
    context.load_cert_chain(f"{DIR}/front-proxy-client.crt", f"{DIR}/front-proxy-client.key")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=30), server_hostname=host)


def answers(connection, many):
    """Reads so many answers; each must be a 200."""
    text = b""
    while True:
        heads = re.findall(rb"HTTP/1\.1 (\d+) ", text)
        if any(code != b"200" for code in heads):
            sys.exit(f"an answer is not 200: {text[:2000]!r}")
        # The last one's body is there as well.
        if len(heads) == many and complete(text[text.rindex(b"HTTP/1.1 ") :]):
            return
        more = connection.recv(1 << 18)
        if not more:
            sys.exit("the connection was closed")
        text += more


def complete(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return length is not None and len(body) == int(length[1])


def one_connection(number):
    connection = connect()
    batch = []
    for n in range(number, CROWD, CONNECTIONS):
        hot = ROUND[n // CONNECTIONS % len(ROUND)]
        batch.append(request(f"user-{n}", f"agent-{n}/1.0 (linux/amd64) one of very many"))
        batch.append(request(f"hot-{hot}", f"agent-of-hot-{hot}/1.0"))
        if len(batch) >= BATCH or n + CONNECTIONS >= CROWD:
            connection.sendall(b"".join(batch))
            answers(connection, len(batch))
            batch = []
    connection.close()


children = []
for number in range(CONNECTIONS):
    child = os.fork()
    if child == 0:
        one_connection(number)
        sys.exit(0)
    children.append(child)
if any(os.waitpid(child, 0)[1] != 0 for child in children):
    sys.exit("a connection failed")

counts = dict.fromkeys(range(1, HOT + 1), 0)
for n in range(CROWD):
    counts[ROUND[n // CONNECTIONS % len(ROUND)]] += 1
for hot, count in counts.items():
    print(f"sent hot-{hot} {count}")
