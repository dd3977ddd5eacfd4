"""Both ends of a relayed QUIC connection, for tests of the relay.

    ends = await Ends.open(Options(...))        # client, relay, server
    pair = await ends.connect()                 # a client and its upstream end
    stream = pair.client.open(unidirectional=False)
    stream.send(1000, fin=True)
    await pair.upstream.until(lambda: pair.upstream.stream(stream.id).fin)
    ends.close()

Client and server live in one process, so that a test sees what one end does
and what arrives at the other.  A stream carries the test pattern, from a
place of its own on (Stream.base); what arrives is compared with it.  A Peer
takes what it gets at once, or no faster than |rate| octets a second of each
stream, with at most |window| octets of credit.
"""

import asyncio
import socket
import ssl

import aioquic.asyncio.server
from aioquic.buffer import Buffer
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic import events, stream as quic_stream
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionId
from aioquic.quic.packet import (QuicFrameType, pull_ack_frame,
                                 pull_quic_transport_parameters)
from aioquic.tls import Epoch

import quic_recovery  # noqa: F401
from quic_net import PERIOD, parse_address, pattern, udp_socket

PATIENCE = 120.0
MAX_DATAGRAM_FRAME = 1200

# what QUIC holds of a source: more would only be copied about
BACKLOG = 256 * 1024
CHUNK = 64 * 1024

READ_INTERVAL = 0.05

# RFC 3168, 5: the mark of senders that know of ECN
ECT0 = 2

# Linux; not in Python's socket module
SOL_UDP = 17
UDP_SEGMENT = 103

# datagrams of one send
TRAIN = 40


class Failure(Exception):
    """What a test found wrong."""


class Sender(quic_stream.QuicStreamSender):
    """aioquic's, mended.

    It does not stand being reset twice, as a repeated STOP_SENDING does, or
    one that crosses a reset; and it forgets a FIN that has no room in a packet
    any more.
    """

    def get_frame(self, max_size, max_offset=None):
        if max_size < 0:
            return None

        return super().get_frame(max_size, max_offset)

    def reset(self, error_code):
        if self._reset_error_code is None:
            super().reset(error_code)


quic_stream.QuicStreamSender = Sender


class Trains:
    """A transport that sends adjacent datagrams of one size at once.

    The last one of a train may be shorter.
    """

    def __init__(self, transport):
        self.transport = transport
        self.address = None
        self.train = []

    def sendto(self, data, address):
        if self.train and (address != self.address
                           or len(data) > len(self.train[0])
                           or len(self.train[-1]) < len(self.train[0])
                           or len(self.train) == TRAIN):
            self.flush()

        self.address = address
        self.train.append(data)

    def flush(self):
        if not self.train:
            return

        sock = self.transport.get_extra_info("socket")
        size = len(self.train[0]) if len(self.train) > 1 else 0
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, size)
        self.transport.sendto(b"".join(self.train), self.address)
        self.train = []


class PeerQuic(QuicConnection):
    """aioquic's connection, with credit as the reader takes, and raw frames.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.window = None              # of a slow reader's streams
        self.taken = {}                 # stream ID: octets
        self.raw_frames = []            # (type, octets) to be sent
        self.sent_datagrams = 0
        self.new_tokens = []            # of NEW_TOKEN frames
        self._token_handler = self.new_tokens.append
        self.preferred = None           # QuicPreferredAddress
        self.acked = set()              # 1-RTT packets, with ECN counts
        self.marks = [0, 0, 0]          # these: ECT(0), ECT(1), CE

    def _parse_transport_parameters(self, data, from_session_ticket=False):
        super()._parse_transport_parameters(data, from_session_ticket)
        self.preferred = pull_quic_transport_parameters(
            Buffer(data=data)).preferred_address

    def _handle_ack_frame(self, context, frame_type, buf):
        if (frame_type == QuicFrameType.ACK_ECN
                and context.epoch == Epoch.ONE_RTT):
            begin = buf.tell()
            ranges, _ = pull_ack_frame(buf)
            self.acked.update(*ranges)
            self.marks = [buf.pull_uint_var() for _ in self.marks]
            buf.seek(begin)

        super()._handle_ack_frame(context, frame_type, buf)

    def send_raw(self, frame_type, body):
        self.raw_frames.append((frame_type, body))
        self.send_ping(0)

    def _write_ping_frame(self, builder, uids=(), comment=""):
        super()._write_ping_frame(builder, uids, comment)

        for frame_type, body in self.raw_frames:
            buf = builder.start_frame(frame_type, capacity=len(body) + 8)
            buf.push_bytes(body)

        self.raw_frames.clear()

    def _write_stream_limits(self, builder, space, stream):
        if self.window is None or not stream.max_stream_data_local:
            super()._write_stream_limits(builder, space, stream)
            return

        # aioquic doubles the credit by itself, unless there is no need to
        receiver = stream.receiver
        seen, receiver.highest_offset = receiver.highest_offset, 0
        stream.max_stream_data_local = max(
            stream.max_stream_data_local_sent,
            self.taken.get(stream.stream_id, 0) + self.window)
        super()._write_stream_limits(builder, space, stream)
        receiver.highest_offset = seen


class Stream:
    """One stream as one end sees it: what it sends, and what it gets."""

    def __init__(self, peer, stream_id):
        self.peer = peer
        self.id = stream_id
        self.offset = 0                 # of what is sent, as far as QUIC has it
        self.total = 0                  # and as far as it is to be sent
        self.finish = False             # with a FIN behind it
        self.received = 0
        self.intact = True
        self.fin = False
        self.reset = None               # the code
        self.stopped = None

    def base(self, mine):
        """Where this half begins in the pattern: every one elsewhere."""
        return (self.id * 2 + mine) * 7919 % PERIOD

    def send(self, size, fin=False):
        self.total += size
        self.finish = self.finish or fin
        self.peer.fill(self)
        self.peer.flush()

    def send_bytes(self, data, fin=False):
        self.peer._quic.send_stream_data(self.id, data, end_stream=fin)
        self.peer.flush()

    def end_reset(self, code):
        self.peer.sources.pop(self.id, None)
        self.peer._quic.reset_stream(self.id, code)
        self.peer.flush()

    def stop(self, code):
        self.peer._quic.stop_stream(self.id, code)
        self.peer.flush()

    def take(self, data, fin):
        expected = pattern(self.base(not self.peer.is_client)
                           + self.received, len(data))
        self.intact = self.intact and data == expected
        self.received += len(data)
        self.fin = self.fin or fin

    def ends(self):
        """How the half that arrives here has ended, and the other."""
        return {"fin": self.fin, "reset": self.reset, "stopped": self.stopped}


class Peer(QuicConnectionProtocol):
    """One end of a connection."""

    def __init__(self, quic, stream_handler=None):
        super().__init__(quic)
        self.is_client = quic._is_client
        self.streams = {}
        self.sources = {}               # those with something left to send
        self.datagrams = []
        self.closed_by = None           # ConnectionTerminated
        self.rate = None
        self.on_event = None            # a test's own view of an event
        self.raw = False                # streams do not carry the pattern
        self.trains = False             # sends them
        self.changed = asyncio.Event()
        self.reader = None

    # streams

    def open(self, unidirectional=False):
        """A new stream; QUIC knows of it at once, the peer by a frame."""
        stream_id = self._quic.get_next_available_stream_id(unidirectional)
        made = self._quic._get_or_create_stream_for_send(stream_id)

        if unidirectional:
            # aioquic would keep it for ever
            made.receiver.is_finished = True

        return self.stream(stream_id)

    def stream(self, stream_id):
        if stream_id not in self.streams:
            self.streams[stream_id] = Stream(self, stream_id)

        return self.streams[stream_id]

    def forget(self, stream_id):
        self.streams.pop(stream_id, None)
        self._quic.taken.pop(stream_id, None)

    def fill(self, stream):
        """Hand as much to QUIC as it is to hold; True when it has all."""
        sender = self._quic._get_or_create_stream_for_send(stream.id).sender

        if sender._reset_error_code is not None:
            self.sources.pop(stream.id, None)
            return

        while stream.offset < stream.total:
            room = BACKLOG - (sender._buffer_stop - sender._buffer_start)
            size = min(room, CHUNK, stream.total - stream.offset)

            if size <= 0:
                self.sources[stream.id] = stream
                return

            last = stream.finish and stream.offset + size == stream.total
            data = pattern(stream.base(self.is_client) + stream.offset, size)
            self._quic.send_stream_data(stream.id, data, end_stream=last)
            stream.offset += size

        if stream.finish and sender._buffer_fin is None:
            self._quic.send_stream_data(stream.id, b"", end_stream=True)

        self.sources.pop(stream.id, None)

    def flush(self):
        self._transmit_soon()

    def sender(self, stream_id):
        return self._quic._streams[stream_id].sender

    def credit_left(self):
        """Octets that the other end's flow control still allows, by stream."""
        return [stream.max_stream_data_remote - stream.sender.highest_offset
                for stream in self._quic._streams.values()
                if stream.stream_id in self.sources]

    def read_slowly(self, rate, window):
        """From now on, until read_all()."""
        self.rate = rate
        self._quic.window = window
        self.reader = asyncio.get_running_loop().create_task(self._read())

    def read_all(self):
        self.rate = None
        self._quic.window = None

        for stream in self._quic._streams.values():
            if stream.max_stream_data_local:
                stream.max_stream_data_local = max(
                    2 * stream.receiver.highest_offset,
                    stream.max_stream_data_local)

        self.flush()

    def go_to_preferred(self):
        """To the server's preferred address (RFC 9000, 9.6.2)."""
        quic = self._quic
        offered = quic.preferred
        quic._peer_cid_available.insert(0, QuicConnectionId(
            cid=offered.connection_id, sequence_number=1,
            stateless_reset_token=offered.stateless_reset_token))
        quic.change_connection_id()
        quic._network_paths[0].addr = offered.ipv4_address
        self.flush()

    # waiting

    async def until(self, condition, what="condition", patience=PATIENCE):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience

        while not condition():
            left = deadline - loop.time()

            if left <= 0:
                raise Failure(f"not in time: {what}")

            self.changed.clear()

            try:
                await asyncio.wait_for(self.changed.wait(), min(left, 0.2))

            except asyncio.TimeoutError:
                pass

    async def wait_terminated(self):
        """(code, frame type, reason) of the CONNECTION_CLOSE received."""
        await self.until(lambda: self.closed_by is not None, "a close")
        return (self.closed_by.error_code, self.closed_by.frame_type,
                self.closed_by.reason_phrase)

    # aioquic's

    def quic_event_received(self, event):
        if isinstance(event, events.StreamDataReceived):
            if not self.raw:
                self.stream(event.stream_id).take(event.data,
                                                  event.end_stream)

        elif isinstance(event, events.StreamReset):
            self.stream(event.stream_id).reset = event.error_code

        elif isinstance(event, events.StopSendingReceived):
            self.stream(event.stream_id).stopped = event.error_code
            self.sources.pop(event.stream_id, None)

        elif isinstance(event, events.DatagramFrameReceived):
            self.datagrams.append(event.data)

        elif isinstance(event, events.ConnectionTerminated):
            self.closed_by = event

        if self.on_event is not None:
            self.on_event(self, event)

        self.changed.set()

    def transmit(self):
        for stream in list(self.sources.values()):
            self.fill(stream)

        if self.trains:
            transport, self._transport = self._transport, Trains(
                self._transport)
            super().transmit()
            self._transport.flush()
            self._transport = transport

        else:
            super().transmit()

        self.changed.set()

    def error_received(self, exc):
        """ICMP on an unconnected socket: QUIC ignores it, and so do we."""

    def abandon(self):
        """No more of it, without a word to the other end."""
        if self.reader is not None:
            self.reader.cancel()

        if self._timer is not None:
            self._timer.cancel()

    async def _read(self):
        loop = asyncio.get_running_loop()
        last = loop.time()

        while self.rate is not None:
            await asyncio.sleep(READ_INTERVAL)
            now = loop.time()
            share = (now - last) * (self.rate or 0)
            last = now

            for stream in self.streams.values():
                taken = self._quic.taken.get(stream.id, 0)
                self._quic.taken[stream.id] = min(stream.received,
                                                  taken + int(share))

            self.flush()


class Pair:
    """A client and the end of the same connection behind the relay."""

    def __init__(self, client, upstream):
        self.client = client
        self.upstream = upstream

    def sides(self, client_first):
        pair = self.client, self.upstream
        return pair if client_first else pair[::-1]

    def close(self):
        self.client.close()


class Ends:
    """A test server, and clients that reach it through the relay."""

    def __init__(self, options):
        self.options = options
        self.accepted = asyncio.Queue()
        self.tickets = {}               # of TLS, that clients may come with
        self.transports = []
        self.peers = []

    @classmethod
    async def open(cls, options):
        self = cls(options)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: QuicServer(configuration=self._server_configuration(),
                               create_protocol=self._accept,
                               session_ticket_fetcher=self.tickets.get,
                               session_ticket_handler=self._add_ticket),
            sock=udp_socket(parse_address(options.listen)))
        self.transports.append(transport)
        self.port = transport.get_extra_info("sockname")[1]
        return self

    def _accept(self, quic, stream_handler=None):
        peer = Peer(quic)
        self.peers.append(peer)
        self.accepted.put_nowait(peer)
        return peer

    def socket(self):
        """Of a client."""
        sock = udp_socket(("127.0.0.1", 0))

        if self.options.marks:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECT0)

        return sock

    def _add_ticket(self, ticket):
        self.tickets[ticket.ticket] = ticket

    async def client(self, destination=None, **configuration):
        """A connected client; the upstream end is still to be taken.

        |destination|: the connection ID of its first packet, else random.
        """
        loop = asyncio.get_running_loop()
        transport, peer = await loop.create_datagram_endpoint(
            lambda: Peer(PeerQuic(configuration=self._client_configuration(
                **configuration))),
            sock=self.socket())
        self.transports.append(transport)
        self.peers.append(peer)
        peer.trains = self.options.trains

        if destination is not None:
            peer._quic._peer_cid.cid = destination
            peer._quic._original_destination_connection_id = destination

        peer.connect(parse_address(self.options.connect))

        try:
            await asyncio.wait_for(peer.wait_connected(), PATIENCE)

        except (ConnectionError, asyncio.TimeoutError):
            raise Failure(f"no connection: {peer.closed_by}") from None

        return peer

    async def connect(self, **configuration):
        client = await self.client(**configuration)
        upstream = await asyncio.wait_for(self.accepted.get(), PATIENCE)

        return Pair(client, upstream)

    def forget_accepted(self):
        """Upstream ends of clients that were refused."""
        while not self.accepted.empty():
            self.accepted.get_nowait()

    def close(self):
        for peer in self.peers:
            peer.transmit()
            peer.abandon()

        for transport in self.transports:
            transport.abort()

    def _server_configuration(self):
        options = self.options
        configuration = QuicConfiguration(
            is_client=False,
            alpn_protocols=(options.server_alpn or options.alpn).split(","),
            max_datagram_frame_size=options.max_datagram,
            max_stream_data=options.window, max_data=1 << 40)
        configuration.load_cert_chain(options.cert, options.key)

        return configuration

    def _client_configuration(self, **changes):
        options = self.options
        configuration = dict(
            is_client=True, alpn_protocols=options.alpn.split(","),
            server_name=options.server_name or None, verify_mode=ssl.CERT_NONE,
            max_datagram_frame_size=options.max_datagram,
            max_stream_data=options.window, max_data=1 << 40)
        configuration.update(changes)

        return QuicConfiguration(**configuration)


# QuicServer makes its connections by this name
aioquic.asyncio.server.QuicConnection = PeerQuic
