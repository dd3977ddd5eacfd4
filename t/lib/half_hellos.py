#!/usr/bin/env python3

"""Initials that each have the first half of a ClientHello, for spoof.c.

    half_hellos.py COUNT > FILE

Datagrams of 1200 octets, with a random DCID of 8 octets, that open with its
keys.  The ClientHello says that it has 1800 octets; about 1000 are there.
"""

import os
import sys

from aioquic.quic.crypto import CryptoPair

SIZE = 1200
HELLO = 1800


def hello(size):
    """The first |size| octets of a ClientHello with a large key share."""
    body = b"\3\3" + os.urandom(32) + b"\x20" + os.urandom(32) \
        + b"\0\6\x13\1\x13\2\x13\3" + b"\1\0"
    rest = HELLO - 4 - len(body) - 2
    body += rest.to_bytes(2, "big") + b"\0\x33" \
        + (rest - 4).to_bytes(2, "big")

    head = b"\1" + (HELLO - 4).to_bytes(3, "big") + body

    return head + os.urandom(size - len(head))


def datagram():
    dcid = os.urandom(8)
    header = b"\xc0\0\0\0\1\x08" + dcid + b"\x08" + os.urandom(8) + b"\0"
    length = SIZE - len(header) - 2
    header += (0x4000 | length).to_bytes(2, "big") + b"\0"

    # packet number, CRYPTO frame with offset and length, tag
    size = length - 1 - 4 - 16
    payload = b"\6\0" + (0x4000 | size).to_bytes(2, "big") + hello(size)

    crypto = CryptoPair()
    crypto.setup_initial(dcid, True, 1)

    return crypto.encrypt_packet(header, payload, 0)


for _ in range(int(sys.argv[1])):
    sys.stdout.buffer.write(datagram())
