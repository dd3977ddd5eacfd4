#!/usr/bin/env python3

"""QUIC-LB connection IDs (draft-ietf-quic-load-balancers).

An implementation of its own, apart from the one in src/core: what the test
servers issue must not share a mistake with what the balancer decodes.

Library:

    config = Config(config_id=0, server_id_length=3, nonce_length=4, key=None)
    cid = config.encode(server_id, nonce)   # bytes in, bytes out
    server_id, nonce = config.decode(cid)   # ValueError: not of this config

Command line, one line of hex per result:

    quic_lb.py encode CONFIG_ID KEY|- SERVER_ID NONCE
    quic_lb.py decode CONFIG_ID KEY|- SERVER_ID_LENGTH NONCE_LENGTH CID
"""

import os
import sys

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

FAILOVER_CONFIG_ID = 7


class Config:
    """One QUIC-LB configuration: codepoint, layout, and key.

    |key| is 16 octets, or None for plaintext connection IDs.
    |self_length| puts the length into the low bits of the first octet, which
    are random otherwise.  |extra| random octets are appended to every
    connection ID, as the draft lets servers do.
    """

    def __init__(self, config_id, server_id_length, nonce_length, key=None,
                 self_length=True, extra=0):
        size = server_id_length + nonce_length

        if not 0 <= config_id < FAILOVER_CONFIG_ID:
            raise ValueError("config ID must be 0 to 6")

        if server_id_length < 1 or nonce_length < 4 or size > 19:
            raise ValueError("server ID or nonce length out of range")

        if key is not None and len(key) != 16:
            raise ValueError("key must be 16 octets")

        if extra < 0 or 1 + size + extra > 20:
            raise ValueError("connection ID longer than 20 octets")

        self.config_id = config_id
        self.server_id_length = server_id_length
        self.size = size
        self.key = key
        self.self_length = self_length
        self.extra = extra

    @property
    def cid_length(self):
        return 1 + self.size + self.extra

    @property
    def nonce_length(self):
        return self.size - self.server_id_length

    def encode(self, server_id, nonce):
        if len(server_id) != self.server_id_length \
                or len(nonce) != self.nonce_length:
            raise ValueError("server ID or nonce of the wrong length")

        block = server_id + nonce

        if self.key is not None:
            block = self._encrypt(block)

        return self._first_octet() + block + os.urandom(self.extra)

    def decode(self, cid):
        if len(cid) < 1 + self.size:
            raise ValueError("connection ID too short")

        if cid[0] >> 5 != self.config_id:
            raise ValueError("connection ID of another configuration")

        block = cid[1:1 + self.size]

        if self.key is not None:
            block = self._decrypt(block)

        return block[:self.server_id_length], block[self.server_id_length:]

    def _first_octet(self):
        low = self.cid_length - 1 if self.self_length else os.urandom(1)[0]
        return bytes([self.config_id << 5 | low & 0x1f])

    def _encrypt(self, block):
        if self.size == 16:
            return self._aes().encryptor().update(block)

        left, right = self._split(block)
        right = self._round(right, left, 1, 0)
        left = self._round(left, right, 2, -1)
        right = self._round(right, left, 3, 0)
        left = self._round(left, right, 4, -1)

        return self._join(left, right)

    def _decrypt(self, block):
        if self.size == 16:
            return self._aes().decryptor().update(block)

        left, right = self._split(block)
        left = self._round(left, right, 4, -1)
        right = self._round(right, left, 3, 0)
        left = self._round(left, right, 2, -1)
        right = self._round(right, left, 1, 0)

        return self._join(left, right)

    def _split(self, block):
        """Two halves; an odd size shares the middle octet among them."""
        half = (self.size + 1) // 2
        left = bytearray(block[:half])
        right = bytearray(block[self.size - half:])

        if self.size % 2:
            left[-1] &= 0xf0
            right[0] &= 0x0f

        return left, right

    def _join(self, left, right):
        if self.size % 2 == 0:
            return bytes(left + right)

        middle = bytes([left[-1] | right[0]])
        return bytes(left[:-1]) + middle + bytes(right[1:])

    def _round(self, half, other, number, shared):
        """|half| XOR AES(|other|), the foreign nibble at |shared| cleared."""
        block = bytes(other).ljust(14, b"\0") + bytes([self.size, number])
        stream = self._aes().encryptor().update(block)
        result = bytearray(a ^ b for a, b in zip(half, stream))

        if self.size % 2:
            result[shared] &= 0x0f if shared == 0 else 0xf0

        return result

    def _aes(self):
        return Cipher(algorithms.AES(self.key), modes.ECB())


class RoutableIds:
    """Source of connection IDs that name |server_id|."""

    renewable = True

    def __init__(self, config, server_id):
        self.config = config
        self.server_id = server_id
        self.length = config.cid_length

    def generate(self):
        return self.config.encode(self.server_id,
                                  os.urandom(self.config.nonce_length))


class RandomIds:
    """Source of random connection IDs: a server that knows no QUIC-LB."""

    renewable = True

    def __init__(self, length=8):
        self.length = length

    def generate(self):
        return os.urandom(self.length)


class FailoverIds:
    """Source of 0b111 connection IDs: a server waiting for its config.

    Not renewable: such a server should send no NEW_CONNECTION_ID.
    """

    renewable = False

    def __init__(self, length=8):
        if not 8 <= length <= 20:
            raise ValueError("0b111 connection IDs have 8 to 20 octets")

        self.length = length

    def generate(self):
        cid = bytearray(os.urandom(self.length))
        cid[0] |= FAILOVER_CONFIG_ID << 5
        return bytes(cid)


def parse_key(text):
    return None if text in (None, "-") else bytes.fromhex(text)


def main(argv):
    if len(argv) == 6 and argv[1] == "encode":
        server_id, nonce = bytes.fromhex(argv[4]), bytes.fromhex(argv[5])
        config = Config(int(argv[2]), len(server_id), len(nonce),
                        parse_key(argv[3]))
        print(config.encode(server_id, nonce).hex())
        return 0

    if len(argv) == 7 and argv[1] == "decode":
        config = Config(int(argv[2]), int(argv[4]), int(argv[5]),
                        parse_key(argv[3]))
        server_id, nonce = config.decode(bytes.fromhex(argv[6]))
        print(server_id.hex(), nonce.hex())
        return 0

    sys.stderr.write(__doc__)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv))

    except ValueError as exc:
        sys.exit(f"quic_lb.py: {exc}")
