"""UDP sockets, addresses and the verifiable body of the test programs.

    address = parse_address("127.0.0.1:443")    # or "[::1]:443"
    sock = udp_socket(address)                  # bound, non-blocking
    pattern(offset, size)                       # the body's octets there
"""

import hashlib
import socket

# Large enough for a burst of many connections on a busy machine.
RECEIVE_BUFFER = 4 * 1024 * 1024

# A prime period: a lost, repeated or moved piece of a body never matches.
PERIOD = 65521

# Not in Python's socket module; the number is Linux's.
SO_RCVBUFFORCE = 33

_block = hashlib.shake_128(b"ngx-quic-lb").digest(PERIOD) * 2


def parse_address(text):
    """(host, port) of "host:port" or "[host]:port"; host is a literal."""
    host, colon, port = text.rpartition(":")

    if not colon or not port.isdigit():
        raise ValueError("address must be host:port: " + text)

    return host.strip("[]"), int(port)


def format_address(address):
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def udp_socket(address):
    host, port = address[:2]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)

    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

        _grow_receive_buffer(sock)
        sock.setblocking(False)
        sock.bind((host, port))

    except OSError:
        sock.close()
        raise

    return sock


def pattern(offset, size):
    """|size| octets of the endless test pattern from |offset| on."""
    start = offset % PERIOD

    if size <= PERIOD:
        return _block[start:start + size]

    repeat = (start + size) // PERIOD + 1
    return (_block[:PERIOD] * repeat)[start:start + size]


def _grow_receive_buffer(sock):
    try:
        # past net.core.rmem_max; needs CAP_NET_ADMIN
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)

    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
