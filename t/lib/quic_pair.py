#!/usr/bin/env python3

"""A client's move in the worst case, in a time of its own.

    quic_pair.py CERT KEY

A test client's and a test server's connection, without sockets and clocks:
what only a busy machine would show is the same each time.  Round trips seem to
be long, and the client's answers to the first challenges come late.  Fails
when the move then takes long, keeps a processor busy, or ends the connection.
"""

import sys

from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

from quic_connection import ClientQuic, Options
from quic_lb import RandomIds
from quic_server import EventLog, LbConnection, Site

SERVER = "192.0.2.1", 443
OLD = "192.0.2.2", 1
NEW = "192.0.2.2", 2

BODY = 100000                           # far more than a congestion window
LATE_ANSWERS = 7                        # more than aioquic keeps in mind
LONG = 10.0                             # a round trip
PROMPT = 0.5
PATIENCE = 15.0

# A timer that is always in the past would make thousands of them.
MAX_STEPS = 1000


class Pair:

    def __init__(self, cert, key):
        self.now = 1000.0
        self.client = ClientQuic(
            configuration=Options(SERVER).configuration())
        self.server = make_server(cert, key, self.client)
        self.address = OLD              # the client's
        self.deaf = False               # the client receives nothing
        self.late = 0                   # how many answers to hold back
        self.held = []
        self.acknowledged = False       # the client's PING
        self.received = 0               # octets of the body

    def handshake(self):
        self.client.connect(SERVER, self.now)
        self.run(1.0)
        assert self.client._handshake_confirmed, "no handshake"

    def move(self):
        self.address = NEW
        self.late = LATE_ANSWERS
        self.client._loss._rtt_variance = LONG
        self.server._loss._rtt_variance = LONG
        self.client.begin_move()
        self.client.send_ping(1)

    def run(self, seconds):
        """Let time pass, until all is done at the latest."""
        end = self.now + seconds
        steps = 0

        while self.now < end and not self.done():
            self._to_server()
            self._to_client()
            self._advance(end)

            steps += 1
            assert steps < MAX_STEPS, "the timers spin"

    def done(self):
        return self.acknowledged and self.received == BODY

    def deliver_held(self):
        for data in self.held:
            self.server.receive_datagram(data, self.address, self.now)

    def _to_server(self):
        answer = self.late > 0 \
            and len(self.client._network_paths[0].remote_challenges) > 0
        self.late -= answer

        for data, _ in self.client.datagrams_to_send(self.now):
            if answer:
                self.held.append(data)

            else:
                self.server.receive_datagram(data, self.address, self.now)

    def _to_client(self):
        for data, peer in self.server.datagrams_to_send(self.now):
            if peer == self.address and not self.deaf:
                self.client.receive_datagram(data, SERVER, self.now)

        while (event := self.client.next_event()) is not None:
            if isinstance(event, events.PingAcknowledged):
                self.acknowledged = True

            elif isinstance(event, events.StreamDataReceived):
                self.received += len(event.data)

    def _advance(self, end):
        """Go on to the next timer: at least a little, at most to |end|."""
        peers = self.client, self.server
        due = min(end, *(peer.get_timer() for peer in peers))
        self.now = max(due, self.now + 0.0001)

        for peer in peers:
            if peer.get_timer() <= self.now:
                peer.handle_timer(self.now)


def make_server(cert, key, client):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(cert, key)
    configuration.site = Site("server", RandomIds(), EventLog(None))

    return LbConnection(configuration=configuration,
                        original_destination_connection_id=client
                        .original_destination_connection_id)


def send_body(peer):
    peer.send_stream_data(
        peer.get_next_available_stream_id(is_unidirectional=True),
        bytes(BODY))


def check_idle(pair):
    pair.move()
    pair.run(PROMPT)
    assert pair.acknowledged, "no answer before the path is validated"


def check_full_windows(pair):
    send_body(pair.server)
    send_body(pair.client)
    pair.deaf = True
    pair.run(0.01)
    pair.deaf = False

    pair.move()
    pair.run(PROMPT)
    assert pair.acknowledged, "no answer"
    assert pair.held, "no challenge"

    pair.run(PATIENCE)
    assert pair.done(), "the move takes too long"


def check_late_answers(pair):
    send_body(pair.server)
    pair.move()
    pair.run(PATIENCE)
    assert pair.done(), "the move takes too long"
    assert pair.late == 0, "too few challenges"

    pair.deliver_held()
    assert pair.server._close_event is None, "a late answer ends it all"


def main(certificate):
    for check in check_idle, check_full_windows, check_late_answers:
        pair = Pair(*certificate)
        pair.handshake()
        check(pair)


if __name__ == "__main__":
    main(sys.argv[1:])
