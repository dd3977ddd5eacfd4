#!/usr/bin/env python3

"""ECN marks of the UDP datagrams to and from a port, on the loopback interface.

    marks.py PORT...

prints "ready", counts until its standard input ends or has a line, and prints
one line of JSON: for each port "to" and "from", each a list of how many had the
marks 0 to 3 (RFC 3168, 5).  A train counts as one.
"""

import json
import select
import socket
import sys

UDP = 17
ETH_P_ALL = 3
ETHERNET = 14


def parse(frame):
    """(source port, destination port, mark), or None: not UDP."""
    packet = frame[ETHERNET:]

    if packet[0] >> 4 == 4 and packet[9] == UDP:
        mark, payload = packet[1] & 3, packet[(packet[0] & 15) * 4:]

    elif packet[0] >> 4 == 6 and packet[6] == UDP:
        mark, payload = packet[1] >> 4 & 3, packet[40:]

    else:
        return None

    return (int.from_bytes(payload[:2], "big"),
            int.from_bytes(payload[2:4], "big"), mark)


def main(ports):
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW,
                            socket.htons(ETH_P_ALL))
    sniffer.bind(("lo", 0))
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    counts = {port: {"to": [0] * 4, "from": [0] * 4} for port in ports}
    print("ready", flush=True)

    while True:
        readable, _, _ = select.select([sniffer, sys.stdin], [], [])

        if sniffer not in readable:
            break

        frame, (_, _, kind, *_) = sniffer.recvfrom(65535)
        found = parse(frame) if kind == socket.PACKET_HOST else None

        if found is None:
            continue

        source, destination, mark = found

        if destination in counts:
            counts[destination]["to"][mark] += 1

        if source in counts:
            counts[source]["from"][mark] += 1

    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
