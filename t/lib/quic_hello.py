#!/usr/bin/env python3

"""QUIC Initial packets with a ClientHello in any pieces, made by hand.

    quic_hello.py

Reads commands, one JSON object a line, and answers each by one line, the list
of datagrams in hexadecimal:

    sni, alpn            of the ClientHello; a string and a list (none)
    size                 its least length, in octets, by a padding extension
    first                extensions before that: "alpn", "sni", in this order
    version              1 or 2 (1)
    dcid, scid, keys     in hexadecimal; keys: the DCID they follow from (dcid)
    datagrams            a list of lists of packets (one with all of it)

A packet is an object: "frames", a list of

    [OFFSET, LENGTH]             of the ClientHello, in a CRYPTO frame
    [OFFSET, LENGTH, XOR]        with other content
    "HEX"                        any frame

and "number" (counted), "broken" (the tag is wrong), "pad" (PADDING frames up to
so many octets of the packet), "token" (hexadecimal); or it has only "raw", the
packet itself in hexadecimal.

Library: client_hello(), Keys, initial(), crypto_frame().
"""

import json
import os
import sys

from aioquic.quic.crypto import INITIAL_CIPHER_SUITE, INITIAL_SALT_VERSION_1, \
    INITIAL_SALT_VERSION_2, derive_key_iv_hp
from aioquic.tls import cipher_suite_hash, hkdf_expand_label, hkdf_extract
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSIONS = {1: 0x00000001, 2: 0x6b3343cf}
SALTS = {1: INITIAL_SALT_VERSION_1, 2: INITIAL_SALT_VERSION_2}

# RFC 9000, 17.2; RFC 9369, 3.2
FIRST = {1: 0xc0, 2: 0xd0}

TAG = 16
NUMBER = 4


def varint(value, length=None):
    """RFC 9000, 16; of |length| octets, or the least."""
    if length is None:
        length = next(n for n in (1, 2, 4, 8) if value < 1 << (8 * n - 2))

    prefix = {1: 0, 2: 1, 4: 2, 8: 3}[length]
    return (value | prefix << (8 * length - 2)).to_bytes(length, "big")


def vector(data, length):
    return len(data).to_bytes(length, "big") + data


def extension(number, data):
    return number.to_bytes(2, "big") + vector(data, 2)


def sni_extension(name):
    return extension(0, vector(b"\0" + vector(name.encode("latin-1"), 2), 2))


def alpn_extension(protocols):
    return extension(16, vector(b"".join(vector(item.encode(), 1)
                                         for item in protocols), 2))


def client_hello(sni=None, alpn=None, size=0, first=()):
    """RFC 8446, 4.1.2, as a handshake message."""
    known = {}

    if sni is not None:
        known["sni"] = sni_extension(sni)

    if alpn:
        known["alpn"] = alpn_extension(alpn)

    before = b"".join(known.pop(name) for name in first if name in known)
    after = b"".join(known.values())

    fixed = b"\x03\x03" + os.urandom(32) + b"\0" + vector(b"\x13\x01", 2) \
        + vector(b"\0", 1)
    others = extension(43, b"\x02\x03\x04")

    missing = size - 4 - len(fixed) - 2 - len(before + after + others) - 4

    if size:
        others += extension(21, bytes(max(missing, 0)))

    body = fixed + vector(before + others + after, 2)

    return b"\x01" + len(body).to_bytes(3, "big") + body


def crypto_frame(offset, data):
    return b"\x06" + varint(offset) + varint(len(data)) + data


class Keys:
    """Of a client's Initial packets (RFC 9001, 5); longer ones than aioquic's.
    """

    def __init__(self, version, cid):
        algorithm = cipher_suite_hash(INITIAL_CIPHER_SUITE)
        secret = hkdf_expand_label(
            algorithm, hkdf_extract(algorithm, SALTS[version], cid),
            b"client in", b"", algorithm.digest_size)
        key, self.iv, hp = derive_key_iv_hp(
            cipher_suite=INITIAL_CIPHER_SUITE, secret=secret,
            version=VERSIONS[version])

        self.aead = AESGCM(key)
        self.mask = Cipher(algorithms.AES(hp), modes.ECB()).encryptor()

    def protect(self, header, payload, number):
        """|header| ends with the packet number, of NUMBER octets."""
        nonce = int.from_bytes(self.iv, "big") ^ number
        sealed = self.aead.encrypt(nonce.to_bytes(len(self.iv), "big"),
                                   payload, header)
        mask = self.mask.update(sealed[:16])

        packet = bytearray(header + sealed)
        packet[0] ^= mask[0] & 0x0f

        for i in range(NUMBER):
            packet[len(header) - NUMBER + i] ^= mask[1 + i]

        return bytes(packet)


def initial(keys, payload, *, dcid, scid, number=0, version=1, token=b"",
            pad=0):
    header = bytes([FIRST[version] | (NUMBER - 1)]) \
        + VERSIONS[version].to_bytes(4, "big") \
        + vector(dcid, 1) + vector(scid, 1) + varint(len(token)) + token

    missing = pad - len(header) - 2 - NUMBER - TAG - len(payload)
    payload += bytes(max(missing, 0))

    header += varint(NUMBER + len(payload) + TAG, 2) \
        + number.to_bytes(NUMBER, "big")

    return keys.protect(header, payload, number)


def make_frame(frame, hello):
    if isinstance(frame, str):
        return bytes.fromhex(frame)

    offset, length, *xor = frame
    data = hello[offset:offset + length]

    if xor:
        data = bytes(octet ^ xor[0] for octet in data)

    return crypto_frame(offset, data)


def make(command):
    hello = client_hello(command.get("sni"), command.get("alpn"),
                         command.get("size", 0), command.get("first", ()))

    version = command.get("version", 1)
    dcid = bytes.fromhex(command["dcid"])
    scid = bytes.fromhex(command.get("scid", ""))
    keys = Keys(version, bytes.fromhex(command.get("keys", command["dcid"])))

    number = 0
    datagrams = []

    for packets in command.get("datagrams",
                               [[{"frames": [[0, len(hello)]]}]]):
        datagram = b""

        for packet in packets:
            if "raw" in packet:
                datagram += bytes.fromhex(packet["raw"])
                continue

            number = packet.get("number", number)
            payload = b"".join(make_frame(frame, hello)
                               for frame in packet["frames"])
            data = initial(keys, payload, dcid=dcid, scid=scid, number=number,
                           version=version, pad=packet.get("pad", 0),
                           token=bytes.fromhex(packet.get("token", "")))
            number += 1

            if packet.get("broken"):
                data = data[:-1] + bytes([data[-1] ^ 1])

            datagram += data

        datagrams.append(datagram.hex())

    return datagrams


def main():
    for line in sys.stdin:
        print(json.dumps(make(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
