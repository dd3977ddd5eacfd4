"""One QUIC test client connection, which can move while it transfers.

    options = Options(parse_address("127.0.0.1:443"), alpn="echo")
    errors = []
    connection = Connection(0, options, errors)
    await connection.open()             # from a socket of its own, or
    await connection.open(endpoint)     # from an Endpoint shared with others
    await connection.transfer(100000, ["rebind", "migrate"])
    await connection.finish()
    connection.shut()

A Connection raises Failure when something is not as it should be; |errors|
collects what no connection can be blamed for.  What it may do: get(), post(),
name(), transfer(), datagrams(), ping(), rebind(), change(), migrate(), tick().
What happened is in its |report|, described in quic_client.py.
"""

import asyncio
import hashlib
import os
import ssl

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

import quic_recovery  # noqa: F401
from quic_net import PERIOD, format_address, pattern, udp_socket

VERSIONS = {
    "1": (None, [1]),
    "2": (None, [0x6b3343cf]),
    "upgrade": (1, [0x6b3343cf, 1]),
}

FIRST_DCID_LENGTH = 8
MAX_DATAGRAM_FRAME = 65536

# octets of a response before a download tells how many it may have
FIRST_CREDIT = 2048

CHUNK = 16 * 1024
WINDOW = 4 * CHUNK                      # unechoed octets of a transfer
TICK_CHUNK = 600
TICK_DOWNLOAD = 2000
DATAGRAM_SIZE = 200
DATAGRAM_GAP = 0.01

# The ports of all clients of a test, one a line, if there are others.
PORTS = os.environ.get("QUIC_LB_PORTS", "")

# How long to wait for echoes of the last DATAGRAM frames: none may come.
DATAGRAM_PATIENCE = 2.0


class Failure(Exception):
    """What a test of the connection found wrong."""


class ClientQuic(QuicConnection):
    """aioquic's client, able to move, and to have a zero-length ID.

    aioquic gives the first DCID the length of the client's own ID.
    """

    def __init__(self, *, configuration, dcid=None):
        super().__init__(configuration=configuration)

        dcid = dcid or os.urandom(FIRST_DCID_LENGTH)
        self._peer_cid.cid = dcid
        self._original_destination_connection_id = dcid
        self.credits = {}               # stream ID: function, octets

    def begin_move(self):
        """Send at once, even when the congestion window is full."""
        self._send_probe()

    def _write_ping_frame(self, builder, uids=(), comment=""):
        super()._write_ping_frame(builder, uids, comment)

        # The server may send three times what it has received on a new path
        # (RFC 9000, 9.3), too little for an ACK when that is a PING.  Also
        # where a balancer has changed the path, as for one after a pause.
        builder._datagram_needs_padding = True

    def _write_stream_limits(self, builder, space, stream):
        credit = self.credits.get(stream.stream_id)

        if credit is None:
            super()._write_stream_limits(builder, space, stream)
            return

        # aioquic doubles the credit by itself, unless there is no need to
        receiver = stream.receiver
        seen, receiver.highest_offset = receiver.highest_offset, 0
        stream.max_stream_data_local = max(stream.max_stream_data_local,
                                           credit())
        super()._write_stream_limits(builder, space, stream)
        receiver.highest_offset = seen

    def _replenish_connection_ids(self):
        if self._configuration.connection_id_length:
            super()._replenish_connection_ids()

    @property
    def peer_cid(self):
        return self._peer_cid.cid

    def has_spare_cid(self):
        return bool(self._peer_cid_available)


class Endpoint(asyncio.DatagramProtocol):
    """A UDP socket; hands each datagram to the connection of its DCID.

    |errors| is the list that strange datagrams are reported to.
    """

    used_ports = None

    def __init__(self, remote, errors):
        self.remote = remote
        self.errors = errors
        self.users = {}                 # connection ID: Connection
        self.length = None              # of connection IDs
        self.transport = None
        self.strangers = set()

    @classmethod
    async def open(cls, remote, local, errors):
        loop = asyncio.get_running_loop()
        _, endpoint = await loop.create_datagram_endpoint(
            lambda: cls(remote, errors), sock=cls._fresh_socket(local))
        return endpoint

    @classmethod
    def _fresh_socket(cls, local):
        """A socket on a port that no closed one of this test had.

        To a balancer such a port would be an address it knows already.
        """
        if cls.used_ports is None:
            cls.used_ports = set(cls._ports_of_others())

        while True:
            sock = udp_socket((local, 0))
            port = sock.getsockname()[1]

            if port not in cls.used_ports:
                cls.used_ports.add(port)
                cls._tell_others(port)
                return sock

            sock.close()

    @classmethod
    def _ports_of_others(cls):
        if os.path.exists(PORTS):
            with open(PORTS) as file:
                yield from map(int, file)

    @classmethod
    def _tell_others(cls, port):
        if PORTS:
            with open(PORTS, "a") as file:
                file.write(f"{port}\n")

    def connection_made(self, transport):
        self.transport = transport

    @property
    def local(self):
        return format_address(self.transport.get_extra_info("sockname"))

    def add(self, cid, connection):
        """Route |cid| to |connection|, for as long as the socket lives.

        A retired ID stays: its last datagrams may come late.
        """
        if self.length not in (None, len(cid)):
            raise ValueError("connection IDs of one socket must be equally "
                             "long")

        if self.users.get(cid, connection) is not connection:
            raise ValueError("connection ID used twice on one socket")

        self.length = len(cid)
        self.users[cid] = connection

    def datagram_received(self, data, addr):
        if addr[:2] != self.remote:
            self._report(f"answer from {format_address(addr)}, "
                         f"asked {format_address(self.remote)}")
            return

        connection = self.users.get(self._dcid(data))

        if connection is None:
            self._report(f"datagram for no connection of {self.local}: "
                         + data[:24].hex())
            return

        connection.datagram_received(data, addr)

    def error_received(self, exc):
        """ICMP on an unconnected socket: QUIC ignores it, and so do we."""

    def close(self):
        self.transport.abort()

    def _dcid(self, data):
        if data and data[0] & 0x80:
            return data[6:6 + data[5]] if len(data) > 5 else None

        return data[1:1 + self.length]

    def _report(self, text):
        if text not in self.strangers:
            self.strangers.add(text)
            self.errors.append(text)


class Response:
    """An HTTP/3 response being received."""

    KEEP = 65536

    def __init__(self, sized, future):
        self.sized = sized              # the body is the test pattern
        self.future = future
        self.status = None
        self.headers = {}
        self.body = b""
        self.length = 0
        self.on_data = lambda length: None

    def event(self, item):
        if isinstance(item, HeadersReceived):
            self.headers = {name.decode(): value.decode()
                            for name, value in item.headers}
            self.status = int(self.headers[":status"])

        elif isinstance(item, DataReceived):
            self._data(item.data)

        if item.stream_ended and not self.future.done():
            self.future.set_result(self)

    def fail(self, text):
        if not self.future.done():
            self.future.set_exception(Failure(text))

    def _data(self, data):
        if self.sized and data != pattern(self.length, len(data)):
            self.fail(f"body differs from the pattern near {self.length}")

        if len(self.body) < self.KEEP:
            self.body += data

        self.length += len(data)
        self.on_data(len(data))


class EchoStream:
    """A stream whose echo must be what was sent, from |base| on."""

    def __init__(self, base):
        self.base = base
        self.sent = 0
        self.echoed = 0
        self.ended = False
        self.changed = asyncio.Event()

    def next(self, size):
        data = pattern(self.base + self.sent, size)
        self.sent += size
        return data

    def receive(self, data, ended):
        """False when |data| is not the echo awaited."""
        right = self.echoed + len(data) <= self.sent \
            and data == pattern(self.base + self.echoed, len(data))

        self.echoed += len(data)
        self.ended = self.ended or ended
        self.changed.set()
        return right


class Connection(QuicConnectionProtocol):
    """One connection, and what a test wants to know about it.

    Its methods raise Failure when the connection does not do what it should.
    """

    def __init__(self, number, options, errors):
        super().__init__(ClientQuic(configuration=options.configuration(),
                                    dcid=options.dcid))
        self.number = number
        self.options = options
        self.errors = errors
        self.endpoint = None
        self.endpoints = []             # all of its own making
        self.h3 = None
        self.responses = {}             # stream ID: Response
        self.echoes = {}                # stream ID: EchoStream
        self.echoed_datagrams = set()
        self.names = []                 # futures of name() on ALPN echo
        self.name_parts = {}            # stream ID: octets so far
        self.stream = None              # hold's echo stream
        self.fault = None
        self.datagram_number = 0
        self.progress = asyncio.Event()
        # where this connection's data begins in the pattern: its own place
        self.base = int.from_bytes(os.urandom(4), "big") % PERIOD
        self.report = {
            "id": number, "ok": False, "error": None,
            "server": None, "server_end": None, "alpn": None, "version": None,
            "octets_sent": 0, "octets_received": 0,
            "datagrams_sent": 0, "datagrams_echoed": 0, "datagrams_lost": 0,
            "ticks": 0, "rebinds": 0, "migrations": 0, "changes": 0,
            "dcids": [], "locals": [],
        }
        self._connection_id_issued_handler = self._own_cid_issued

    # life

    async def open(self, endpoint=None):
        """Connect, from |endpoint| or a socket of its own; learn the name."""
        await self._use(endpoint or await self._new_endpoint())
        self.connect(self.options.remote)

        try:
            await self._within(self.wait_connected(), "handshake")

        except ConnectionError:
            raise Failure(self._why("handshake failed")) from None

        self.report["version"] = self._quic._version
        self.report["alpn"] = self._quic.tls.alpn_negotiated

        if self.report["alpn"] != self.options.alpn:
            raise Failure(f"ALPN {self.report['alpn']}")

        self.report["server"] = await self.name()

    async def finish(self):
        """Ask for the name again, and close; raises Failure."""
        self.report["server_end"] = await self.name()

        if self.report["server_end"] != self.report["server"]:
            raise Failure("server changed: " + self.report["server_end"])

        self._check()

    def shut(self):
        """Close the connection and its own sockets, whatever its state."""
        if self.endpoint is not None:
            self.close()

        if self._timer is not None:
            self._timer.cancel()

        for endpoint in self.endpoints:
            endpoint.close()

    def failed(self, reason):
        self.report["ok"] = False
        self.report["error"] = reason

    # what a connection can do

    async def name(self):
        """The server's name, asked by this very connection."""
        if self.options.alpn == "h3":
            response = await self.get("/name")
            name = response.body.decode().strip()

            if name != response.headers.get("server-name"):
                raise Failure("body and server-name header differ: " + name)

            return name

        self._check()
        future = self._loop.create_future()
        self.names.append(future)
        stream_id = self._quic.get_next_available_stream_id(
            is_unidirectional=True)
        self._quic.send_stream_data(stream_id, b"name", end_stream=True)
        self.transmit()

        return await self._within(future, "name")

    async def get(self, path, on_data=None, credit=None):
        response = self._request("GET", path, on_data, credit=credit)
        await self._within(response.future, "GET " + path, response)
        self._check_status(response, "GET " + path)

        size = path.partition("?")[0].removeprefix("/bytes/")

        if size.isdigit() and response.length != int(size):
            raise Failure(f"GET {path}: {response.length} octets")

        return response

    async def post(self, size):
        data = pattern(self.base, size)
        response = self._request("POST", "/echo", body=data)
        await self._within(response.future, "POST", response)
        self._check_status(response, "POST")

        wanted = f"{size} {hashlib.sha256(data).hexdigest()}\n"
        self.report["octets_sent"] += size

        if response.body.decode() != wanted:
            raise Failure("POST answered " + response.body.decode().strip())

    async def transfer(self, size, actions=()):
        """Move |size| octets and run |actions|, names, in their middle."""
        meter = Meter(size, len(actions))

        if self.options.alpn == "h3":
            rate = self.options.rate
            path = f"/bytes/{size}" + (f"?rate={rate}" if rate else "")
            credit = meter.credit if actions else None
            work = self.get(path, on_data=meter.add, credit=credit)
            meter.wake = self.transmit

        else:
            work = self._echo_transfer(size, meter)

        task = asyncio.create_task(work)

        try:
            for mark, action in zip(meter.marks, actions):
                reached = asyncio.create_task(mark.wait())
                await asyncio.wait({task, reached},
                                   return_when=asyncio.FIRST_COMPLETED)
                reached.cancel()

                if task.done():
                    task.result()       # the failure, when it is one
                    raise Failure("transfer ended before " + action)

                await getattr(self, action)()
                meter.action_done()

            await task

        finally:
            task.cancel()

    async def datagrams(self, count):
        """Send |count| DATAGRAM frames; return how many were echoed."""
        for _ in range(count):
            self._send_datagram()
            self.transmit()
            await asyncio.sleep(DATAGRAM_GAP)

        await self.wait_datagrams()
        return self.report["datagrams_echoed"]

    async def wait_datagrams(self):
        """Wait a while for the echoes that are still to come.

        After a round trip, which takes as long as the machine is busy.
        """
        if self._datagrams_missing():
            await self.ping()

        deadline = self._loop.time() + DATAGRAM_PATIENCE

        while self._datagrams_missing() and self._loop.time() < deadline:
            self._check()
            await asyncio.sleep(DATAGRAM_GAP)

        self.report["datagrams_lost"] = self._datagrams_missing()

    async def rebind(self):
        """A new port with the same connection ID: a NAT's new mapping.

        The old port is shut at once, so what is under way to it is lost.
        """
        old = self.endpoint
        await self._use(await self._new_endpoint())
        self.report["rebinds"] += 1

        if old in self.endpoints:
            self.endpoints.remove(old)
            old.close()

        await self._moved()

    async def change(self):
        """A new connection ID at the same port, and an answer to it."""
        await self._within(self._spare_cid(), "connection ID to change to")
        old = self._quic.peer_cid

        self._quic.change_connection_id()
        self.report["changes"] += 1

        if self._quic.peer_cid == old:
            raise Failure("connection ID did not change")

        await self.ping()

    async def migrate(self):
        """A new port and a new connection ID; the old port still listens."""
        await self._within(self._spare_cid(), "connection ID to migrate to")
        old = self._quic.peer_cid

        await self._use(await self._new_endpoint())
        self._quic.change_connection_id()
        self.report["migrations"] += 1

        if self._quic.peer_cid == old:
            raise Failure("connection ID did not change")

        await self._moved()

    async def ping(self):
        """Return when the server has acknowledged something new."""
        self._check()

        try:
            await self._within(super().ping(), "PING")

        except ConnectionError:
            raise Failure(self._why("PING")) from None

    async def tick(self):
        """One round of hold's continuous work."""
        if self.options.alpn == "h3":
            await self.get(f"/bytes/{TICK_DOWNLOAD}")

        else:
            await self._echo_tick()

        self.report["ticks"] += 1
        self.progress.set()

    # aioquic's hooks

    def quic_event_received(self, event):
        if isinstance(event, events.ProtocolNegotiated):
            if event.alpn_protocol == "h3":
                self.h3 = H3Connection(self._quic)

        elif isinstance(event, events.ConnectionTerminated):
            self._fail_all(f"connection ended: 0x{event.error_code:x} "
                           f"{event.reason_phrase}")

        elif isinstance(event, events.StreamReset):
            self._stream_reset(event)

        elif self.h3 is not None:
            self._h3_event(event)

        elif isinstance(event, events.DatagramFrameReceived):
            self._datagram_echoed(event.data)

        elif isinstance(event, events.StreamDataReceived):
            self._echo_received(event)

    def transmit(self):
        super().transmit()
        cid = self._quic.peer_cid.hex()

        if not self.report["dcids"] or self.report["dcids"][-1] != cid:
            self.report["dcids"].append(cid)

    # sockets and connection IDs

    async def _new_endpoint(self):
        endpoint = await Endpoint.open(self.options.remote, self.options.local,
                                       self.errors)
        self.endpoints.append(endpoint)
        return endpoint

    async def _moved(self):
        """Return when the server has answered on the new path."""
        self._quic.begin_move()
        await self.ping()

    async def _use(self, endpoint):
        for entry in self._quic._host_cids:
            endpoint.add(entry.cid, self)

        self.endpoint = endpoint
        self._transport = endpoint.transport
        self.report["locals"].append(endpoint.local)

    def _own_cid_issued(self, cid):
        for endpoint in {self.endpoint, *self.endpoints}:
            endpoint.add(cid, self)

    async def _spare_cid(self):
        while not self._quic.has_spare_cid():
            self._check()
            await asyncio.sleep(0.01)

    # HTTP/3

    def _request(self, method, path, on_data=None, body=None, credit=None):
        self._check()
        stream_id = self._quic.get_next_available_stream_id()
        response = Response(path.startswith("/bytes/"),
                            self._loop.create_future())

        if on_data is not None:
            response.on_data = on_data

        if credit is not None:
            self._quic.credits[stream_id] = credit

        self.responses[stream_id] = response
        self.h3.send_headers(stream_id, [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", self.options.sni.encode()),
            (b":path", path.encode()),
        ], end_stream=body is None)

        if body is not None:
            self.h3.send_data(stream_id, body, end_stream=True)

        self.transmit()
        return response

    def _h3_event(self, event):
        for item in self.h3.handle_event(event):
            response = self.responses.get(getattr(item, "stream_id", None))

            if response is None:
                continue

            if isinstance(item, DataReceived):
                self.report["octets_received"] += len(item.data)

            response.event(item)

            if item.stream_ended:
                del self.responses[item.stream_id]

    def _check_status(self, response, what):
        if response.status != 200:
            raise Failure(f"{what}: status {response.status}")

    # ALPN echo

    def _open_echo(self):
        stream_id = self._quic.get_next_available_stream_id()
        stream = self.echoes[stream_id] = EchoStream(self.base)
        return stream_id, stream

    def _send_echo(self, stream_id, stream, size, ended=False):
        self._quic.send_stream_data(stream_id, stream.next(size), ended)
        self.report["octets_sent"] += size
        self.transmit()

    async def _echo_transfer(self, size, meter):
        stream_id, stream = self._open_echo()
        start = self._loop.time()
        seen = 0
        meter.wake = stream.changed.set

        while not stream.ended:
            room = min(CHUNK, meter.limit() - stream.sent,
                       WINDOW - (stream.sent - stream.echoed))

            if room > 0 and not self._too_early(stream.sent, start):
                last = stream.sent + room == size
                self._send_echo(stream_id, stream, room, last)

            stream.changed.clear()
            await self._echo_change(stream, start)
            meter.add(stream.echoed - seen)
            seen = stream.echoed

        if stream.echoed != size:
            raise Failure(f"{stream.echoed} octets of {size} echoed")

    async def _echo_change(self, stream, start):
        """Wait for an echo, or until more may be sent."""
        if self._too_early(stream.sent, start):
            due = start + stream.sent / self.options.rate
            await asyncio.sleep(due - self._loop.time())
            self._check()
            return

        await self._within(stream.changed.wait(), "echo")
        self._check()

    def _too_early(self, sent, start):
        rate = self.options.rate
        return rate and self._loop.time() < start + sent / rate

    async def _echo_tick(self):
        if self.stream is None:
            self.stream = self._open_echo()

        stream_id, stream = self.stream
        self._send_datagram()
        self._send_echo(stream_id, stream, TICK_CHUNK)

        while stream.echoed < stream.sent:
            stream.changed.clear()
            await self._within(stream.changed.wait(), "echo")
            self._check()

    def _send_datagram(self):
        number = self.datagram_number
        self.datagram_number += 1
        self.report["datagrams_sent"] += 1
        self._quic.send_datagram_frame(self._datagram(number))

    def _datagram(self, number):
        """DATAGRAM frame |number|, which no other connection sends."""
        head = self._quic.original_destination_connection_id \
            + number.to_bytes(4, "big")
        return head + pattern(self.base + number, DATAGRAM_SIZE - len(head))

    def _datagram_echoed(self, data):
        at = len(self._quic.original_destination_connection_id)
        number = int.from_bytes(data[at:at + 4], "big")

        if number >= self.datagram_number or data != self._datagram(number):
            self._fault("DATAGRAM frame that was never sent")
            return

        if number in self.echoed_datagrams:
            self._fault("DATAGRAM frame echoed twice")
            return

        self.echoed_datagrams.add(number)
        self.report["datagrams_echoed"] += 1

    def _datagrams_missing(self):
        return self.report["datagrams_sent"] - self.report["datagrams_echoed"]

    def _echo_received(self, event):
        if event.stream_id & 2:
            self._name_received(event)
            return

        stream = self.echoes.get(event.stream_id)
        self.report["octets_received"] += len(event.data)

        if stream is None or not stream.receive(event.data, event.end_stream):
            self._fault("stream data that was never sent")

    def _name_received(self, event):
        name = self.name_parts.get(event.stream_id, b"") + event.data
        self.name_parts[event.stream_id] = name

        if event.end_stream and self.names:
            future = self.names.pop(0)

            if not future.done():
                future.set_result(name.decode())

    # failures

    async def _within(self, awaitable, what, response=None):
        """Await with the time limit, which is a failure naming |what|."""
        limit = self.options.timeout
        length = -1

        while True:
            task = asyncio.ensure_future(awaitable)

            try:
                return await asyncio.wait_for(asyncio.shield(task), limit)

            except asyncio.TimeoutError:
                # a long body is late only when nothing more of it comes
                if response is None or response.length == length:
                    task.cancel()
                    raise Failure(self._why(what + ": timeout")) from None

                length = response.length
                awaitable = task

    def _why(self, text):
        return f"{text} ({self.fault})" if self.fault else text

    def _fault(self, text):
        """Note the first fault; every waiter will meet it in _check()."""
        self.fault = self.fault or text
        self.progress.set()

        for stream in self.echoes.values():
            stream.changed.set()

    def _check(self):
        if self.fault is not None:
            raise Failure(self.fault)

    def _fail_all(self, text):
        self._fault(text)

        for response in self.responses.values():
            response.fail(text)

        for future in self.names:
            if not future.done():
                future.set_exception(Failure(text))

    def _stream_reset(self, event):
        text = f"stream {event.stream_id} reset: 0x{event.error_code:x}"
        response = self.responses.pop(event.stream_id, None)

        if response is not None:
            response.fail(text)

        else:
            self._fault(text)


class Meter:
    """Counts octets, and sets the marks that divide the way equally.

    It also keeps a sender from the next mark, or from the end, until the
    action of the last one is done: actions are to be in mid-transfer.
    """

    def __init__(self, size, count):
        self.total = 0
        self.marks = [asyncio.Event() for _ in range(count)]
        self.points = [size * (i + 1) // (count + 1) for i in range(count)]
        self.stops = self.points[1:] + [size]
        self.done = 0
        self.wake = lambda: None

    def add(self, length):
        self.total += length

        for point, mark in zip(self.points, self.marks):
            if self.total >= point:
                mark.set()

    def action_done(self):
        self.done += 1
        self.wake()

    def credit(self):
        """Octets of a response, with its header, that may come so far."""
        if self.done == len(self.points):
            return 2 * self.stops[-1] + FIRST_CREDIT

        return (self.points[self.done] + self.stops[self.done]) // 2

    def limit(self):
        if self.done == len(self.points):
            return self.stops[-1]

        return self.stops[self.done] - 1


class Options:
    """The settings of connections; attributes as on the command line."""

    def __init__(self, remote, local=None, sni="localhost", alpn="h3",
                 version="1", cafile=None, cid_length=8, dcid=None,
                 timeout=50.0, rate=None, connections=1, shared_socket=False,
                 concurrency=8, interval=0.2, moves=False):
        if shared_socket and cid_length == 0 and connections > 1:
            raise ValueError("connections that share a socket need "
                             "connection IDs")

        if dcid is not None and connections > 1:
            raise ValueError("one first DCID is for one connection")

        self.remote = remote
        self.local = local or ("::" if ":" in remote[0] else "0.0.0.0")
        self.sni = sni
        self.alpn = alpn
        self.version = version
        self.cafile = cafile
        self.cid_length = cid_length
        self.dcid = dcid
        self.timeout = timeout
        self.rate = rate
        self.connections = connections
        self.shared_socket = shared_socket
        self.concurrency = concurrency
        self.interval = interval
        self.moves = moves              # within transfers

    def configuration(self):
        original, supported = VERSIONS[self.version]
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=[self.alpn],
            connection_id_length=self.cid_length,
            max_datagram_frame_size=MAX_DATAGRAM_FRAME,
            original_version=original,
            supported_versions=supported,
            server_name=self.sni,
        )

        if self.moves and self.alpn == "h3":
            configuration.max_stream_data = FIRST_CREDIT

        if self.cafile is None:
            configuration.verify_mode = ssl.CERT_NONE

        else:
            configuration.load_verify_locations(self.cafile)

        return configuration
