#!/usr/bin/env python3

"""Initials that begin a connection, for spoof.c.

    hellos.py COUNT ALPN NAME > FILE

Datagrams of 1200 octets, each the first one of another client of aioquic, with
a random DCID of 8 octets and a whole ClientHello.
"""

import sys

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

SIZE = 1200


def datagram(alpn, name):
    quic = QuicConnection(configuration=QuicConfiguration(
        is_client=True, alpn_protocols=[alpn], server_name=name))
    quic.connect(("127.0.0.1", 1), now=0)
    (data, _), *_ = quic.datagrams_to_send(now=0)
    assert len(data) == SIZE

    return data


for _ in range(int(sys.argv[1])):
    sys.stdout.buffer.write(datagram(*sys.argv[2:]))
