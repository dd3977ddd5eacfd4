#!/usr/bin/env python3

"""Sends Initials with all kinds of tokens, and tells how each is answered.

    retry_probe.py --connect ADDR:PORT --key FILE [--version 1|2] CASE...

For each CASE one JSON line: {"case", "answer", "answers", "sent", "received"};
"answer" is "retry", "close CODE", "initial" (anything else of a server),
"negotiation" or null, "answers" how many there are; "sent" and "received" are
octets.  Each has a socket of its own.

    none            no token
    short           the same in 1199 octets
    dcid            the same with a DCID of 7 octets
    again           twice the same in a row
    0rtt            a 0-RTT packet alone
    unknown         an unknown version
    behind=HEX      no token, behind a short header with the connection ID HEX
    garbage         a random token of the balancer's length
    foreign         one of another length
    good            a token made here, with the key
    returned        the token of the Retry to an Initial before
    bit             the same with one bit flipped
    other           the same from another port
    expired         one that was good a second ago
    small           the same in 1199 octets
    bogus           an expired one in an Initial that is not encrypted
    key=FILE        a good one of another key

That there is no answer shows when a later Initial has one: Retry must be on.
"""

import argparse
import json
import os
import socket
import time

from aioquic.buffer import Buffer
from aioquic.quic.crypto import CryptoError, CryptoPair
from aioquic.quic.packet import QuicPacketType, pull_quic_header

from quic_net import parse_address
from quic_tokens import PERIOD, Keys

VERSIONS = {"1": 1, "2": 0x6b3343cf}
SIZE = 1200
PATIENCE = 50

# the types of the two versions, in the first octet
INITIAL = {1: 0xc0, 0x6b3343cf: 0xd0}
ZERO_RTT = {1: 0xd0, 0x6b3343cf: 0xe0}


class Probe:
    """An Initial of a client, and what came back to its socket."""

    def __init__(self, options):
        self.options = options
        self.version = VERSIONS[options.version]
        self.dcid = os.urandom(8)
        self.scid = os.urandom(8)
        self.size = SIZE
        self.plain = False
        self.sent = 0
        self.received = 0
        self.answers = []
        self.retry = None               # (token, SCID)
        self.socket = self.fresh()

    def fresh(self):
        sock = socket.socket(self.options.family, socket.SOCK_DGRAM)
        sock.connect(self.options.remote)
        sock.settimeout(PATIENCE)
        return sock

    def initial(self, token=b"", first=INITIAL, version=None):
        """A PING and PADDING; of other types only the header is right."""
        version = version or self.version
        header = bytes([first.get(version, 0xc0)]) \
            + version.to_bytes(4, "big") \
            + bytes([len(self.dcid)]) + self.dcid \
            + bytes([len(self.scid)]) + self.scid

        if first is INITIAL:
            header += (0x4000 | len(token)).to_bytes(2, "big") + token

        size = self.size - len(header) - 2
        header += (0x4000 | size).to_bytes(2, "big") + b"\0"
        payload = b"\1" + bytes(size - 1 - 16 - 1)

        if first is not INITIAL or version not in INITIAL or self.plain:
            return header + payload + bytes(16)

        crypto = CryptoPair()
        crypto.setup_initial(self.dcid, True, version)

        return crypto.encrypt_packet(header, payload, 0)

    def send(self, data):
        self.sent += len(data)
        self.socket.send(data)

    def wait(self, scid):
        """Read until the Initial of the client |scid| is answered."""
        while True:
            data = self.socket.recv(65536)

            if data[6:6 + data[5]] == scid:
                return

            self.received += len(data)
            self.answers.append(self.read(data))

    def read(self, data):
        header = pull_quic_header(Buffer(data=data), host_cid_length=8)

        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
            return "negotiation"

        if header.packet_type == QuicPacketType.RETRY:
            self.retry = header.token, header.source_cid
            return "retry"

        return self.read_initial(data)

    def read_initial(self, data):
        buf = Buffer(data=data)
        header = pull_quic_header(buf, host_cid_length=8)
        crypto = CryptoPair()
        crypto.setup_initial(self.dcid, True, self.version)

        try:
            _, payload, _ = crypto.decrypt_packet(data, buf.tell(), 0)

        except CryptoError:
            return "bogus"

        if payload[0] == 0x1c and header.source_cid == self.dcid:
            return f"close {payload[1]}"

        return "initial"

    def first(self):
        """Get a Retry, and go on as its client."""
        self.send(self.initial())
        self.answer()
        self.sent = self.received = 0
        self.answers = []

        token, self.dcid = self.retry
        return token

    def answer(self):
        data = self.socket.recv(65536)
        self.received += len(data)
        self.answers.append(self.read(data))

    def report(self, case, later):
        if later:
            self.answer()

        else:
            other = Probe(self.options)
            self.socket.send(other.initial())
            self.wait(other.scid)

        print(json.dumps({
            "case": case, "answer": self.answers[0] if self.answers else None,
            "answers": len(self.answers), "sent": self.sent,
            "received": self.received}), flush=True)


def minted(probe, secret, expires):
    """A token for the |probe|, which becomes the client of its Retry."""
    keys = Keys(secret)
    first, probe.dcid = probe.dcid, os.urandom(18)

    return keys.balancer_token(probe.socket.getsockname(), first, probe.dcid,
                               expires)


def run(case, options):
    probe = Probe(options)
    version = None
    first = INITIAL
    token = b""

    if case == "short":
        probe.size -= 1

    elif case == "dcid":
        probe.dcid = probe.dcid[:7]

    elif case == "again":
        probe.send(probe.initial())

    elif case == "0rtt":
        first = ZERO_RTT

    elif case == "unknown":
        version = 0x0a0a0a0a

    elif case.startswith("behind="):
        probe.socket.send(b"\x40" + bytes.fromhex(case[7:]) + bytes(100))

    elif case == "garbage":
        token = bytes([int(time.time()) // PERIOD & 0xff]) + os.urandom(90)

    elif case == "foreign":
        token = os.urandom(66)

    elif case == "good":
        token = minted(probe, options.secret, time.time() + 5)

    elif case == "returned":
        token = probe.first()

    elif case == "bit":
        token = bytearray(probe.first())
        token[40] ^= 1
        token = bytes(token)

    elif case == "other":
        token = probe.first()
        probe.socket = probe.fresh()

    elif case in ("expired", "small", "bogus"):
        token = minted(probe, options.secret, time.time() - 2)
        probe.size -= case == "small"
        probe.plain = case == "bogus"

    elif case.startswith("key="):
        with open(case[4:], "rb") as file:
            token = minted(probe, file.read(), time.time() + 5)

    probe.send(probe.initial(token, first, version))

    # what a server answers comes later than the balancer's own
    later = case in ("good", "returned", "unknown") \
        or case.startswith("key=")
    probe.report(case, later)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--version", choices=VERSIONS, default="1")
    parser.add_argument("case", nargs="+")
    options = parser.parse_args()
    options.remote = parse_address(options.connect)
    options.family = socket.AF_INET6 if ":" in options.remote[0] \
        else socket.AF_INET

    with open(options.key, "rb") as file:
        options.secret = file.read()

    for case in options.case:
        run(case, options)


if __name__ == "__main__":
    main()
