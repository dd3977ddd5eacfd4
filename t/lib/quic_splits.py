#!/usr/bin/env python3

"""Generated ClientHellos, sent through a balancer to servers of this process.

    quic_splits.py --connect ADDR:PORT --server NAME=ADDR:PORT...
                   [--connections N] [--sockets N] [--seed N]
                   [--whole]

    --server NAME=ADDR:PORT  binds this address; a ClientHello with the name
                         NAME.example.com must arrive there, or at another
                         server of the NAME; one with another name, or with
                         none, at "default"
    --connections N      (1000)
    --sockets N          client addresses, each with many connections (50)
    --seed N             of the generator (random, and told)
    --whole              each ClientHello in one frame and one datagram

Each ClientHello is cut into 1 to 40 CRYPTO frames, some of them twice, some
overlapping, in any order, among PING, ACK and PADDING frames, in 1 to 4
datagrams of 1 to 3 packets each; random connection IDs, version 1 or 2.
Prints one JSON report and exits 0 only if all datagrams of each connection
have come, in order, to its one server: {"seed", "connections", "arrived":
{NAME: connections}, "wrong", "wrong_count"}.
"""

import argparse
import json
import os
import random
import select
import socket
import sys

from quic_hello import Keys, client_hello, crypto_frame, initial
from quic_net import parse_address, udp_socket

BATCH = 8                               # connections on the way at a time
PATIENCE = 50                           # seconds
EXTRA = [b"\x00", b"\x01", b"\x02\x00\x00\x00\x00", b"\x00" * 30,
         b"\x06\x00\x00", b"\x03\x05\x00\x00\x02\x00\x00\x01\x00"]


def cut(rng, hello):
    """CRYPTO frames that have all of |hello|."""
    count = rng.randint(1, 40)
    marks = sorted({0, len(hello),
                    *(rng.randrange(len(hello)) for _ in range(count - 1))})
    frames = []

    for start, end in zip(marks, marks[1:]):
        if rng.random() < 0.2:          # overlaps the frames beside it
            start = max(0, start - rng.randint(0, 50))
            end = min(len(hello), end + rng.randint(0, 50))

        frames.append((start, end))

        if rng.random() < 0.1:
            frames.append((start, end))

    rng.shuffle(frames)

    return [crypto_frame(start, hello[start:end]) for start, end in frames]


def scatter(rng, items, count):
    """|items| in |count| lists, none of them empty if there are enough."""
    lists = [[] for _ in range(count)]

    for number, item in enumerate(items):
        lists[number if number < count else rng.randrange(count)].append(item)

    rng.shuffle(lists)

    return [found for found in lists if found]


def payload(rng, frames):
    parts = []

    for frame in frames:
        if rng.random() < 0.3:
            parts.append(rng.choice(EXTRA))

        parts.append(frame)

    return b"".join(parts) + bytes(16)


class Connection:
    """The datagrams of one ClientHello, and where they are to arrive."""

    def __init__(self, rng, names, whole):
        self.name = rng.choice(names)
        sni = {"default": rng.choice([None, "example.com"])}.get(
            self.name, self.name + ".example.com")
        hello = client_hello(sni, rng.choice([None, ["h3"]]),
                             rng.choice([0, 600, 1800, 4000]),
                             rng.choice([[], ["sni"], ["alpn"]]))

        version = rng.choice([1, 2])
        dcid = os.urandom(rng.randint(8, 20))
        scid = os.urandom(rng.choice([0, 8]))
        keys = Keys(version, dcid)
        number = rng.choice([0, 1, 1000])

        frames = [crypto_frame(0, hello)] if whole else cut(rng, hello)
        self.datagrams = []
        self.arrived = []               # (name, datagram)

        for group in scatter(rng, frames, 1 if whole else rng.randint(1, 4)):
            datagram = b""

            for packet in scatter(rng, group,
                                  1 if whole else rng.randint(1, 3)):
                datagram += initial(keys, payload(rng, packet), dcid=dcid,
                                    scid=scid, number=number, version=version)
                number += 1

            self.datagrams.append(datagram)

    def done(self):
        return len(self.arrived) >= len(self.datagrams)

    def right(self):
        """Early, with all that is asked for, they may come one by one."""
        return self.arrived == [(self.name, datagram)
                                for datagram in self.datagrams]


def run(options, rng):
    servers = {}

    for item in options.server:
        name, _, address = item.partition("=")
        servers[udp_socket(parse_address(address))] = name

    clients = []

    for _ in range(options.sockets):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(options.connect)
        clients.append(sock)

    report = {"connections": options.connections, "wrong": [],
              "wrong_count": 0,
              "arrived": {name: 0 for name in servers.values()}}

    for start in range(0, options.connections, BATCH):
        batch = [Connection(rng, list(servers.values()), options.whole)
                 for _ in range(min(BATCH, options.connections - start))]
        exchange(rng, batch, clients, servers)

        for connection in batch:
            if connection.right():
                report["arrived"][connection.name] += 1
                continue

            report["wrong_count"] += 1
            report["wrong"].append(
                {"name": connection.name,
                 "sent": [item.hex() for item in connection.datagrams],
                 "arrived": [(name, item.hex())
                             for name, item in connection.arrived]})

    del report["wrong"][3:]

    return report


def exchange(rng, batch, clients, servers):
    owners = {datagram: connection for connection in batch
              for datagram in connection.datagrams}

    # in order within a connection, the connections mixed
    waiting = [(rng.choice(clients), connection, list(connection.datagrams))
               for connection in batch]

    while waiting:
        client, connection, left = rng.choice(waiting)
        client.send(left.pop(0))
        waiting = [entry for entry in waiting if entry[2]]

    while not all(connection.done() for connection in batch):
        ready, _, _ = select.select(list(servers), [], [], PATIENCE)

        if not ready:
            return

        for sock in ready:
            datagram = sock.recv(65536)

            if datagram in owners:
                owners[datagram].arrived.append((servers[sock], datagram))


def main(argv):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--connect", required=True, type=parse_address)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--sockets", type=int, default=50)
    parser.add_argument("--seed", type=int,
                        default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args(argv)

    report = run(options, random.Random(options.seed))
    report["seed"] = options.seed
    print(json.dumps(report), flush=True)

    return 1 if report["wrong_count"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
