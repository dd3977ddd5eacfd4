#!/usr/bin/env python3

"""A UDP server that is no QUIC server.

    udp_garbage.py ADDR:PORT KIND

KIND is echo, or negotiation: Version Negotiation with the connection IDs the
wrong way round.  Prints "ready PORT", then answers each datagram; ends with
its standard input.
"""

import select
import sys

from quic_net import parse_address, udp_socket


def answer(data, kind):
    if kind == "echo":
        return data

    dcid_end = 6 + data[5]
    scid_end = dcid_end + 1 + data[dcid_end]

    return b"\xc0" + bytes(4) + data[5:scid_end] + bytes([0, 0, 0, 1])


def main():
    sock = udp_socket(parse_address(sys.argv[1]))
    print("ready", sock.getsockname()[1], flush=True)

    while True:
        readable, _, _ = select.select([sock, sys.stdin], [], [])

        if sys.stdin in readable:
            return

        data, peer = sock.recvfrom(65536)
        sock.sendto(answer(data, sys.argv[2]), peer)


main()
