"""Many HTTP/2 requests on one connection: `wait` for their answers, or `cancel` each at once.

Usage: cancelled.py HOST:PORT CA TOKEN (wait|cancel) STREAMS ROUNDS
Prints how many streams were opened, and on how many connections.
"""

import socket
import ssl
import sys

import h2.config
import h2.connection
import h2.errors
import h2.events

PATH = "/api/v1/nodes"


def connect(address, ca):
    host, port = address.rsplit(":", 1)
    tls = ssl.create_default_context(cafile=ca)
    tls.set_alpn_protocols(["h2"])
    sock = tls.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
    sock.settimeout(30)
    http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    http.initiate_connection()
    http.increment_flow_control_window(2**30)
    sock.sendall(http.data_to_send())
    return sock, http


def main():
    address, ca, token, what, streams, rounds = sys.argv[1:]
    headers = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", address),
        (":path", PATH),
        ("authorization", f"Bearer {token}"),
    ]
    opened = connections = 0
    sock = None
    for _ in range(int(rounds)):
        if sock is None:
            sock, http = connect(address, ca)
            connections += 1
        left = set()
        for _ in range(int(streams)):
            stream = http.get_next_available_stream_id()
            http.send_headers(stream, headers, end_stream=True)
            left.add(stream)
            if what == "cancel":
                http.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        opened += len(left)
        http.ping(b"12345678")
        answered = False
        try:
            sock.sendall(http.data_to_send())
            # The answer to the PING comes behind everything before it.
            while not answered or (what == "wait" and left):
                data = sock.recv(1 << 20)
                if not data:
                    raise ConnectionError("closed")
                for event in http.receive_data(data):
                    if isinstance(event, h2.events.PingAckReceived):
                        answered = True
                    elif isinstance(event, h2.events.StreamEnded):
                        left.discard(event.stream_id)
                    elif isinstance(event, h2.events.ConnectionTerminated):
                        raise ConnectionError("told to go")
                sock.sendall(http.data_to_send())
        except (ConnectionError, ssl.SSLError):
            if what == "wait":
                raise
            sock = None  # weir has had enough of it
    print(opened, connections)


main()
