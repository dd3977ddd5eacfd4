"""Tokens of a Retry, as nginx and as quic_passthrough_retry make them.

    keys = Keys(open("host.key", "rb").read())
    token = keys.balancer_token(address, dcid, scid, expires)
    dcid = keys.open_server_token(("127.0.0.1", 4433), token, time.time())

|address| is (host, port).  nginx's format is that of 1.26 to 1.31, on a
machine of little byte order and 64 bits.

Library: ServerTokens is what an aioquic QuicServer takes for its "_retry".
"""

import hashlib
import hmac
import ipaddress
import os
import socket
import struct
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

IV = 12
TAG = 16
PERIOD = 256                            # seconds that have one key
CID = 20


def hkdf(secret, label):
    """One block of HKDF-SHA256; nginx has no prefix before its labels."""
    prk = hmac.digest(b"ngx_quic", secret, "sha256")
    info = bytes([0, 32, len(label)]) + label + b"\0"

    return hmac.digest(prk, info + b"\1", "sha256")


def sockaddr(address):
    """A struct sockaddr_in or sockaddr_in6 of Linux."""
    host, port = address[:2]
    ip = ipaddress.ip_address(host)

    if ip.version == 4:
        return struct.pack("=H", socket.AF_INET) \
            + struct.pack(">H", port) + ip.packed + bytes(8)

    return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", port, 0) \
        + ip.packed + bytes(4)


class Keys:
    """What two ends with the same "quic_host_key" know."""

    def __init__(self, secret):
        self.server = AESGCM(hkdf(secret, b"av_token_key"))
        self.balancer = hkdf(secret, b"quic_lb_token_key")

    def balancer_token(self, address, dcid, scid, expires):
        host, port = address[:2]
        client = ipaddress.ip_address(host).packed + struct.pack(">H", port)

        plain = hashlib.sha1(client).digest()[:16] \
            + struct.pack(">IBB", int(expires), len(dcid), len(scid)) \
            + dcid.ljust(CID, b"\0") + scid.ljust(CID, b"\0")
        iv = os.urandom(IV)
        period = int(expires) // PERIOD
        key = hmac.digest(self.balancer, struct.pack(">I", period), "sha256")

        return bytes([period & 0xff]) + iv \
            + AESGCM(key).encrypt(iv, plain, b"")

    def open_server_token(self, address, token, now):
        """The DCID of the client's first Initial; or raises ValueError."""
        if not IV + 30 + TAG <= len(token) <= IV + 64 + TAG:
            raise ValueError("token length")

        try:
            plain = self.server.decrypt(token[:IV], token[IV:], b"")

        except InvalidTag:
            raise ValueError("not a token of this key") from None

        expires, is_retry, length = struct.unpack_from("=qBB", plain, 20)

        if plain[:20] != hashlib.sha1(sockaddr(address)).digest():
            raise ValueError("token of another address")

        if now > expires or is_retry != 1 or length > len(plain) - 30:
            raise ValueError("token fields")

        return plain[30:30 + length]


class ServerTokens:
    """Takes only what a balancer with the same key has let through."""

    def __init__(self, secret):
        self.keys = Keys(secret)
        self.dcid = None                # of the datagram with the token

    def create_token(self, address, dcid, scid):
        raise RuntimeError("an Initial without a token")

    def validate_token(self, address, token):
        dcid = self.keys.open_server_token(address, token, time.time())

        return dcid, self.dcid
