#!/usr/bin/env python3

"""QUIC and HTTP/3 test servers that issue QUIC-LB connection IDs.

    quic_server.py --cert FILE --key FILE --server NAME,ADDR:PORT,SERVER_ID...

One process hosts any number of named servers; port 0 takes a free one.
SERVER_ID is hex; "-" means random connection IDs (no QUIC-LB), "failover"
0b111 ones.

    --config-id N        codepoint 0 to 6 (0)
    --nonce-length N     octets (4)
    --lb-key HEX         QUIC-LB key; none: plaintext connection IDs
    --no-self-length     random low bits in the first octet, not the length
    --extra N            random octets appended to connection IDs (0)
    --random-length N    length of "-" and "failover" connection IDs (8)
    --idle-timeout SEC   QUIC idle timeout (60)
    --host-key FILE      take only Initials with a token of nginx's Retry that
                         is made with this "quic_host_key"
    --log FILE           event log, appended; default none

HTTP/3 (ALPN h3), every response with a "server-name" header:

    GET /name                   "NAME\\n"
    GET /bytes/N[?rate=R]       N octets of the test pattern (quic_net.py),
                                at R octets per second if given
    POST /echo                  "LENGTH SHA256\\n" of the request body

ALPN echo: bidirectional streams and DATAGRAM frames are echoed; a
unidirectional one is answered by a unidirectional one with NAME.

Standard output: one line "ready NAME PORT" per server.  Standard input takes
(when a pipe) commands, one a line, each answered by "ok COMMAND" or "error
COMMAND":

    pause NAME      read and log datagrams, but do not answer (a black hole)
    resume NAME
    close NAME      close the socket: datagrams meet ICMP port unreachable

SIGUSR1 pauses all servers, or resumes them when paused; SIGTERM ends.

The event log has one JSON object a line, with "event", "server", "time":

    datagram   every one received: peer, size, first (octet, hex), form
               ("long", "short", "bad"), type (of long ones), dcid, known
               ("issued" or "initial" here, else null), connection (original
               DCID, by the IDs of all servers of the process; else null),
               paused
    issued     a connection ID issued: cid, connection
    connected  handshake completed: connection, peer, alpn, version
    request    connection, method, path
    closed     connection, code, reason
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import signal
import stat
import sys
import time
from urllib.parse import parse_qs, urlsplit

import aioquic.asyncio.server
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

import quic_recovery  # noqa: F401
from quic_lb import Config, FailoverIds, RandomIds, RoutableIds, parse_key
from quic_net import format_address, parse_address, pattern, udp_socket
from quic_tokens import ServerTokens

LONG_TYPES = {
    1: ["initial", "0rtt", "handshake", "retry"],
    0x6b3343cf: ["retry", "initial", "0rtt", "handshake"],
}

MAX_DATAGRAM_FRAME = 65536

# A body waits in the application until QUIC has room for more of it.
SEND_BACKLOG = 256 * 1024
PACE_INTERVAL = 0.05

# aioquic sends a PATH_CHALLENGE once, and never again when it is lost.
CHALLENGE_INTERVAL = 0.5

# Any packet that only acknowledges fits in, and any probe.
SMALL_PACKET = 200


class EventLog:
    """The log, and whose every connection ID of this process is."""

    def __init__(self, file):
        self.file = file
        self.ids = {}                   # cid: (server name, connection, kind)

    def write(self, server, event, **fields):
        if self.file is None:
            return

        record = {"event": event, "server": server,
                  "time": round(time.time(), 6), **fields}
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def learn(self, cid, server, connection, kind):
        self.ids.setdefault(cid, (server, connection, kind))

    def owner(self, cid, server):
        """(known, connection) of |cid|, as the |server| sees it."""
        name, connection, kind = self.ids.get(cid, (None, None, None))
        return kind if name == server else None, connection


class Site:
    """One named server: its connection IDs, its socket, its part of log."""

    def __init__(self, name, ids, log):
        self.name = name
        self.ids = ids
        self.log = log
        self.paused = False
        self.server = None

    def issue(self, connection):
        """A new connection ID for the |connection| (its original DCID)."""
        cid = self.ids.generate()

        while cid in self.log.ids:
            cid = self.ids.generate()

        self.log.learn(cid, self.name, connection.hex(), "issued")
        self.event("issued", cid=cid.hex(), connection=connection.hex())
        return cid

    def event(self, event, **fields):
        self.log.write(self.name, event, **fields)

    def log_datagram(self, data, peer):
        form, kind, dcid = parse_header(data, self.ids.length)
        known = connection = None

        if dcid is not None:
            if kind == "initial":
                # whoever sees it first; a second server shows as not known
                self.log.learn(dcid, self.name, dcid.hex(), "initial")

            known, connection = self.log.owner(dcid, self.name)

        self.event("datagram", peer=format_address(peer), size=len(data),
                   first=data[:1].hex(), form=form, type=kind,
                   dcid=None if dcid is None else dcid.hex(),
                   known=known, connection=connection, paused=self.paused)


def parse_header(data, cid_length):
    """(form, type, dcid) of a datagram's first packet."""
    if data and not data[0] & 0x80 and len(data) > cid_length:
        return "short", None, data[1:1 + cid_length]

    if len(data) < 7 or not data[0] & 0x80 or len(data) < 6 + data[5]:
        return "bad", None, None

    version = int.from_bytes(data[1:5], "big")
    types = LONG_TYPES.get(version)
    kind = types[data[0] >> 4 & 3] if types else "unknown"

    return "long", kind, data[6:6 + data[5]]


class LbConnection(QuicConnection):
    """A server's connection whose IDs come from its Site.

    It also mends how aioquic changes paths.
    """

    def __init__(self, *, configuration, **kwargs):
        super().__init__(configuration=configuration, **kwargs)
        self.site = configuration.site

        cid = self.site.issue(self.original_destination_connection_id)
        self._host_cids[0].cid = cid
        self._local_initial_source_connection_id = cid
        self.host_cid = cid
        self.challenged = 0.0

    def receive_datagram(self, data, addr, now):
        old = self._network_paths[:1]
        super().receive_datagram(data, addr, now)

        if old and self._handshake_complete:
            self._challenge(self._network_paths[0], old[0], now)

    def get_timer(self):
        """When to act next, be it only by giving up.

        Where an unvalidated path allows no more octets, only the client can
        change that (RFC 9002, 6.2.2.1); aioquic's timer would be in the past
        all the time and take the whole processor.
        """
        if not self._network_paths[0].can_send(SMALL_PACKET):
            return self._close_at

        return super().get_timer()

    def _challenge(self, path, old, now):
        """Validate a new path (RFC 9000, 9.3), until it answers.

        By a probe: it passes a congestion window full of what went to the
        old address, and its acknowledgment shows that all that is lost.
        """
        if path is old and (path.is_validated or now - self.challenged
                            < CHALLENGE_INTERVAL):
            return

        self.challenged = now
        path.local_challenge_sent = False
        self._send_probe()

    def _add_local_challenge(self, challenge, network_path):
        """Remember all challenges: any of them may be answered late.

        aioquic keeps five, though it adds one for each try to send, and
        closes the connection at the answer to one it has forgotten.
        """
        self._local_challenges[challenge] = network_path

    def _replenish_connection_ids(self):
        if not self.site.ids.renewable:
            return

        old = set(id(entry) for entry in self._host_cids)
        super()._replenish_connection_ids()

        for entry in self._host_cids:
            if id(entry) not in old:
                entry.cid = self.site.issue(
                    self.original_destination_connection_id)


# QuicServer makes its connections by this name
aioquic.asyncio.server.QuicConnection = LbConnection


class SiteServer(QuicServer):
    """Logs every datagram, and answers unless paused."""

    def __init__(self, site, tokens, **kwargs):
        super().__init__(**kwargs)
        self.site = site
        self._retry = tokens

    def datagram_received(self, data, addr):
        self.site.log_datagram(data, addr)

        if self._retry is not None:
            self._retry.dcid = parse_header(data, self.site.ids.length)[2]

        if not self.site.paused:
            super().datagram_received(data, addr)

    def shut(self):
        """Close the socket without a word to the peers."""
        for protocol in set(self._protocols.values()):
            protocol.abandon()

        self._protocols.clear()
        self._transport.abort()


class Body:
    """A response body still to be sent: |left| octets of the pattern."""

    def __init__(self, stream_id, size, rate, now):
        self.stream_id = stream_id
        self.size = size
        self.rate = rate
        self.start = now
        self.offset = 0

    def allowed(self, now):
        if self.rate is None:
            return self.size - self.offset

        due = min(self.size, int((now - self.start) * self.rate))
        return max(0, due - self.offset)


class H3Service:
    """HTTP/3 on one connection."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.quic = protocol._quic
        self.h3 = H3Connection(self.quic)
        self.uploads = {}               # stream ID: [length, hash]
        self.bodies = {}                # stream ID: Body
        self.timer = None

    def event(self, event):
        if isinstance(event, (events.StreamReset, events.StopSendingReceived)):
            self.uploads.pop(event.stream_id, None)
            self.bodies.pop(event.stream_id, None)

        for item in self.h3.handle_event(event):
            if isinstance(item, HeadersReceived):
                self._request(item)

            elif isinstance(item, DataReceived):
                self._upload(item)

    def fill(self):
        """Hand as much of the bodies to QUIC as there is room for."""
        now = self.protocol._loop.time()
        paced = False

        for body in list(self.bodies.values()):
            self._fill_body(body, now)
            paced = paced or body.rate is not None

        if paced and self.bodies and self.timer is None:
            self.timer = self.protocol._loop.call_later(PACE_INTERVAL,
                                                        self._tick)

    def close(self):
        self.bodies.clear()

        if self.timer is not None:
            self.timer.cancel()

    def _tick(self):
        self.timer = None
        self.protocol.transmit()

    def _fill_body(self, body, now):
        stream = self.quic._streams.get(body.stream_id)

        if stream is None:
            self.bodies.pop(body.stream_id, None)
            return

        room = SEND_BACKLOG - len(stream.sender._buffer)
        size = min(room, body.allowed(now))

        if size <= 0:
            return

        data = pattern(body.offset, size)
        body.offset += size
        last = body.offset == body.size
        self.h3.send_data(body.stream_id, data, end_stream=last)

        if last:
            del self.bodies[body.stream_id]

    def _request(self, item):
        headers = dict(item.headers)
        method = headers.get(b":method", b"").decode()
        path = headers.get(b":path", b"").decode()
        url = urlsplit(path)
        sized = re.fullmatch(r"/bytes/(\d+)", url.path)

        self.protocol.log("request", method=method, path=path)

        if method == "GET" and url.path == "/name":
            self._respond(item.stream_id, 200, self.protocol.site.name + "\n")

        elif method == "GET" and sized:
            rate = parse_qs(url.query).get("rate")
            self._respond_sized(item.stream_id, int(sized.group(1)),
                                int(rate[0]) if rate else None)

        elif method == "POST" and url.path == "/echo":
            self.uploads[item.stream_id] = [0, hashlib.sha256()]

            if item.stream_ended:
                self._respond_upload(item.stream_id)

        else:
            self._respond(item.stream_id, 404, "not found\n")

    def _upload(self, item):
        upload = self.uploads.get(item.stream_id)

        if upload is None:
            return

        upload[0] += len(item.data)
        upload[1].update(item.data)

        if item.stream_ended:
            self._respond_upload(item.stream_id)

    def _respond_upload(self, stream_id):
        length, digest = self.uploads.pop(stream_id)
        self._respond(stream_id, 200, f"{length} {digest.hexdigest()}\n")

    def _respond_sized(self, stream_id, size, rate):
        self._headers(stream_id, 200, size, end_stream=size == 0)

        if size:
            now = self.protocol._loop.time()
            self.bodies[stream_id] = Body(stream_id, size, rate, now)

    def _respond(self, stream_id, status, text):
        data = text.encode()
        self._headers(stream_id, status, len(data))
        self.h3.send_data(stream_id, data, end_stream=True)

    def _headers(self, stream_id, status, size, end_stream=False):
        self.h3.send_headers(stream_id, [
            (b":status", str(status).encode()),
            (b"content-length", str(size).encode()),
            (b"server-name", self.protocol.site.name.encode()),
        ], end_stream=end_stream)


class EchoService:
    """The echo ALPN on one connection."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.quic = protocol._quic

    def event(self, event):
        if isinstance(event, events.DatagramFrameReceived):
            self.quic.send_datagram_frame(event.data)

        elif isinstance(event, events.StreamReset):
            if event.stream_id & 2 == 0:
                self.quic.reset_stream(event.stream_id, event.error_code)

        elif isinstance(event, events.StreamDataReceived):
            self._stream_data(event)

    def fill(self):
        pass

    def close(self):
        pass

    def _stream_data(self, event):
        if event.stream_id & 2 == 0:
            self.quic.send_stream_data(event.stream_id, event.data,
                                       event.end_stream)

        elif event.end_stream:
            stream_id = self.quic.get_next_available_stream_id(
                is_unidirectional=True)
            self.quic.send_stream_data(stream_id,
                                       self.protocol.site.name.encode(), True)


class ServerProtocol(QuicConnectionProtocol):
    """One connection: picks the service by ALPN."""

    def __init__(self, quic, stream_handler=None):
        super().__init__(quic, stream_handler)
        self.site = quic.site
        self.service = None

    def log(self, event, **fields):
        odcid = self._quic.original_destination_connection_id
        self.site.event(event, connection=odcid.hex(), **fields)

    def quic_event_received(self, event):
        if isinstance(event, events.ProtocolNegotiated):
            echo = event.alpn_protocol == "echo"
            self.service = (EchoService if echo else H3Service)(self)

        elif isinstance(event, events.HandshakeCompleted):
            self.log("connected", alpn=event.alpn_protocol,
                     peer=format_address(self._quic._network_paths[0].addr),
                     version=self._quic._version)

        elif isinstance(event, events.ConnectionTerminated):
            self.log("closed", code=event.error_code,
                     reason=event.reason_phrase)

            if self.service is not None:
                self.service.close()

            return

        if self.service is not None:
            self.service.event(event)

    def transmit(self):
        if self.service is not None:
            self.service.fill()

        super().transmit()

    def abandon(self):
        if self._timer is not None:
            self._timer.cancel()

        if self.service is not None:
            self.service.close()


def connection_ids(options, server_id):
    if server_id == "-":
        return RandomIds(options.random_length)

    if server_id == "failover":
        return FailoverIds(options.random_length)

    server_id = bytes.fromhex(server_id)
    config = Config(options.config_id, len(server_id), options.nonce_length,
                    parse_key(options.lb_key),
                    self_length=not options.no_self_length,
                    extra=options.extra)

    return RoutableIds(config, server_id)


def quic_configuration(options, site):
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=["h3", "echo"],
        connection_id_length=site.ids.length,
        idle_timeout=options.idle_timeout,
        max_datagram_frame_size=MAX_DATAGRAM_FRAME,
    )
    configuration.load_cert_chain(options.cert, options.key)
    configuration.site = site

    return configuration


async def start(options, log, text):
    """The Site of one --server argument, listening."""
    name, address, server_id = text.split(",")
    site = Site(name, connection_ids(options, server_id), log)
    tokens = None

    if options.host_key is not None:
        with open(options.host_key, "rb") as file:
            tokens = ServerTokens(file.read())

    _, site.server = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: SiteServer(site, tokens,
                           configuration=quic_configuration(options, site),
                           create_protocol=ServerProtocol),
        sock=udp_socket(parse_address(address)))

    port = site.server._transport.get_extra_info("sockname")[1]
    print(f"ready {name} {port}", flush=True)

    return site


def run_command(sites, line):
    try:
        verb, name = line.split()
        site = sites[name]

        if verb == "close":
            site.server.shut()

        else:
            site.paused = {"pause": True, "resume": False}[verb]

    except (ValueError, KeyError):
        print("error", line, flush=True)
        return

    print("ok", line, flush=True)


def toggle_pause(sites):
    paused = not all(site.paused for site in sites.values())

    for site in sites.values():
        site.paused = paused


async def read_commands(sites):
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return                          # nobody there to give commands

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    while line := await reader.readline():
        run_command(sites, line.decode().strip())


async def serve(options):
    log = EventLog(open(options.log, "a") if options.log else None)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    sites = {}

    for text in options.server:
        site = await start(options, log, text)
        sites[site.name] = site

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, toggle_pause, sites)

    commands = asyncio.create_task(read_commands(sites))
    await stop.wait()
    commands.cancel()


def parse_options(argv):
    parser = argparse.ArgumentParser(
        usage=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--config-id", type=int, default=0)
    parser.add_argument("--nonce-length", type=int, default=4)
    parser.add_argument("--lb-key")
    parser.add_argument("--no-self-length", action="store_true")
    parser.add_argument("--extra", type=int, default=0)
    parser.add_argument("--random-length", type=int, default=8)
    parser.add_argument("--idle-timeout", type=float, default=60.0)
    parser.add_argument("--host-key")
    parser.add_argument("--log")

    return parser.parse_args(argv)


if __name__ == "__main__":
    asyncio.run(serve(parse_options(sys.argv[1:])))
