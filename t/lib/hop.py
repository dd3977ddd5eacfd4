#!/usr/bin/env python3

"""The port hopping of a client: its datagrams go to one port after another.

    hop.py ADDR FIRST LAST EVERY

Takes the datagrams of clients at a port of its own, and sends them from a
socket for each client to ADDR, EVERY of them to a port between FIRST and LAST,
then to the next one.  Answers from any of these ports go back to the client.
Prints "ready PORT"; ends with its standard input, and prints how many ports
it has sent to, and how many have answered.
"""

import select
import socket
import sys

from quic_net import udp_socket


def main():
    host = sys.argv[1]
    first, last, every = (int(text) for text in sys.argv[2:])

    near = udp_socket(("127.0.0.1", 0))
    clients = {}                        # address: socket
    sent = 0
    used, answered = set(), set()

    print("ready", near.getsockname()[1], flush=True)

    while True:
        sockets = {sock: peer for peer, sock in clients.items()}
        readable, _, _ = select.select([near, sys.stdin, *sockets], [], [])

        if sys.stdin in readable:
            break

        for sock in readable:
            data, peer = sock.recvfrom(65536)

            if sock is not near:
                answered.add(peer[1])
                near.sendto(data, sockets[sock])
                continue

            if peer not in clients:
                clients[peer] = udp_socket(("0.0.0.0", 0))

            port = first + sent // every % (last - first + 1)
            sent += 1
            used.add(port)
            clients[peer].sendto(data, (host, port))

    print("ports", len(used), len(answered), flush=True)


try:
    main()

except socket.error as exc:
    sys.exit(f"hop: {exc}")
