#!/usr/bin/env python3

"""An HTTP/3 test client that sees what is on the wire, and may misbehave.

    h3_client.py [OPTION...] --connect ADDR:PORT burst PATH...
    h3_client.py [OPTION...] --connect ADDR:PORT load COUNT PATH
    h3_client.py [OPTION...] --connect ADDR:PORT script < ACTIONS

    --sni NAME           server name (localhost)
    --timeout SEC        for all of it (120)
    --parallel N         of load: requests under way at a time (20)
    --control-window N   octets of credit for the server's unidirectional
                         streams, and no more until "credit" (unlimited)
    --window N           octets of credit for a response at first (1 MB)
    --leave              of burst: close when all streams have ended, do not
                         wait for the server to do it

burst   GETs of all paths, sent at once on one connection; then waits until the
        server closes it.
load    COUNT GETs of PATH, each with its number in "x-number".  Those that are
        rejected, or not answered when a connection is closed although GOAWAY
        or H3_REQUEST_REJECTED allow to send them again, go to a new one.
script  a JSON array of actions, done in order; see below.

Each prints one JSON line.  burst and script print

    {"connections": [CONNECTION], "error": null or why it ended early}

and load adds "answers" ({number: how many}), "lost", "retried".  CONNECTION is

    {"goaways": [ID...], "close": {"code", "app", "reason"} or null (the
     server has not closed it), "control": hex of the control stream,
     "settings": {}, "streams": {ID: STREAM}, "log": [EVENT...]}

with all that happened in order in "log", and STREAM

    {"path", "status", "headers": [[name, value]...] without "date", "length"
     of the body, "sha256" of it, "fin", "reset": code or null,
     "stop": code of STOP_SENDING or null}

Actions of script are arrays; S names a stream, chosen by the script:

    ["get", S, PATH]                HEADERS and FIN
    ["headers", S, {name: value}, FIN]      what is not given is added: method
                                    GET, scheme, authority, path; null: left out
    ["data", S, LENGTH or "text", FIN]      a DATA frame
    ["raw", S, "hex", FIN]          octets of the stream as they are
    ["open", S]                     the stream's ID, before it has any data
    ["reset", S, CODE], ["stop", S, CODE]
    ["uni", S, "hex", FIN]          a new unidirectional stream
    ["control", "hex"], ["encoder", "hex"]      on the client's own streams
    ["stop_control"]                STOP_SENDING for the server's control stream
    ["wait", S]                     until it has ended, by FIN or reset
    ["wait_status", S]              until there are response headers
    ["wait_length", S, N]           until N octets of its body are here
    ["wait_stop", S]                until STOP_SENDING
    ["wait_goaway"], ["wait_close"]
    ["credit"]                      lifts --control-window
    ["hold", S], ["unhold", S]      no more credit for a response; again
    ["flush"]                       the actions so far leave now, together
    ["ping"]                        and wait for its acknowledgment
    ["sleep", SEC]
    ["say", "text"]                 print a line: {"say": "text"}
    ["read"]                        wait for a line of standard input
    ["close", CODE]
    ["reconnect"]                   a new connection; stream names start anew

Library: Client is one connection; Load many.
"""

import argparse
import asyncio
import hashlib
import json
import ssl
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer
from aioquic.h3.connection import FrameType, H3Connection, encode_frame
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (ConnectionTerminated, HandshakeCompleted,
                                 StopSendingReceived, StreamDataReceived,
                                 StreamReset)
from aioquic.quic.packet import QuicFrameType

import quic_recovery  # noqa: F401
from quic_net import parse_address, udp_socket

H3_NO_ERROR = 0x0100
H3_REQUEST_REJECTED = 0x010b

# Once more than any test sends.
UNLIMITED = 1 << 40


class Failure(Exception):
    """The test cannot go on."""


class Transport(QuicConnection):
    """A QuicConnection whose credit for the server's streams is ours."""

    def __init__(self, *args, control_window=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.held = set()
        self.control_held = control_window is not None

        if self.control_held:
            self._local_max_stream_data_uni = control_window

    def credit(self):
        """For control and QPACK streams, of which nothing could come yet."""
        self.control_held = False
        self._local_max_stream_data_uni = UNLIMITED

        for number in (3, 7):
            stream = self._get_or_create_stream(QuicFrameType.STREAM_BASE,
                                                number)
            stream.max_stream_data_local = UNLIMITED
            stream.max_stream_data_local_sent = 0

    def _write_stream_limits(self, builder, space, stream):
        number = stream.stream_id

        if number in self.held or (self.control_held and number % 4 == 3):
            return

        super()._write_stream_limits(builder=builder, space=space,
                                     stream=stream)


class Http(H3Connection):
    """An H3Connection that tells of GOAWAY."""

    def __init__(self, quic, goaways):
        self.goaways = goaways
        super().__init__(quic)

    def _handle_control_frame(self, frame_type, frame_data):
        super()._handle_control_frame(frame_type, frame_data)

        if frame_type == FrameType.GOAWAY:
            self.goaways.append(Buffer(data=frame_data).pull_uint_var())


class Client(QuicConnectionProtocol):
    """One connection, and the record of it."""

    def __init__(self, quic, authority):
        super().__init__(quic)
        self.authority = authority
        self.changed = asyncio.Condition()
        self.up = False
        self.streams = {}
        self.digests = {}
        self.goaways = []
        self.control = bytearray()
        self.close_info = None
        self.log = []
        self.http = Http(quic, self.goaways)

    @classmethod
    async def open(cls, options):
        configuration = QuicConfiguration(
            is_client=True, alpn_protocols=["h3"], server_name=options.sni,
            verify_mode=ssl.CERT_NONE, idle_timeout=options.timeout * 2,
            max_stream_data=options.window)

        quic = Transport(configuration=configuration,
                         control_window=options.control_window)

        host, port = options.connect
        sock = udp_socket(("::" if ":" in host else "0.0.0.0", 0))
        loop = asyncio.get_running_loop()
        _, client = await loop.create_datagram_endpoint(
            lambda: cls(quic, f"{options.sni}:{port}"), sock=sock)

        client.connect((host, port))
        await client.wait(lambda: client.up or client.close_info)

        return client

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.up = True

        elif isinstance(event, StreamDataReceived):
            self._data(event)

        elif isinstance(event, StreamReset):
            self._stream(event.stream_id)["reset"] = event.error_code
            self.log.append(["reset", event.stream_id, event.error_code])

        elif isinstance(event, StopSendingReceived):
            self._stream(event.stream_id)["stop"] = event.error_code
            self.log.append(["stop", event.stream_id, event.error_code])

        elif isinstance(event, ConnectionTerminated):
            self.close_info = {"code": event.error_code,
                               "app": event.frame_type is None,
                               "reason": event.reason_phrase}
            self.log.append(["close", event.error_code])

        goaways = len(self.goaways)

        for found in self.http.handle_event(event):
            self._http(found)

        for number in self.goaways[goaways:]:
            self.log.append(["goaway", number])

        asyncio.ensure_future(self._notify())

    async def _notify(self):
        async with self.changed:
            self.changed.notify_all()

    def _stream(self, number):
        if number not in self.streams:
            self.digests[number] = hashlib.sha256()
            self.streams[number] = {
                "path": None, "status": None, "headers": [], "length": 0,
                "sha256": None, "fin": False, "reset": None, "stop": None}

        return self.streams[number]

    def _data(self, event):
        number = event.stream_id

        if number == 3:
            self.control += event.data

        if number % 4 == 0 and event.end_stream:
            self._stream(number)["fin"] = True
            self.log.append(["fin", number])

    def _http(self, event):
        stream = self._stream(event.stream_id)

        if isinstance(event, HeadersReceived):
            headers = [[name.decode(), value.decode()]
                       for name, value in event.headers]
            stream["headers"] += [pair for pair in headers
                                  if pair[0] != "date"]

            if stream["status"] is None:
                stream["status"] = int(dict(headers)[":status"])
                self.log.append(["status", event.stream_id,
                                 stream["status"]])

        elif isinstance(event, DataReceived):
            stream["length"] += len(event.data)
            digest = self.digests[event.stream_id]
            digest.update(event.data)
            stream["sha256"] = digest.hexdigest()

    # requests

    def open_stream(self):
        number = self._quic.get_next_available_stream_id()
        self._quic._get_or_create_stream_for_send(number)
        self._stream(number)

        return number

    def headers(self, number, fields, fin):
        found = {":method": "GET", ":scheme": "https",
                 ":authority": self.authority, ":path": "/"}
        found.update(fields)
        self._stream(number)["path"] = found[":path"]
        self.http.send_headers(
            number, [(name.encode(), str(value).encode())
                     for name, value in found.items() if value is not None],
            fin)

    def get(self, path, **fields):
        number = self.open_stream()
        self.headers(number, {":path": path, **fields}, True)

        return number

    def ended(self, number):
        stream = self._stream(number)

        return stream["fin"] or stream["reset"] is not None

    async def wait(self, condition):
        async with self.changed:
            await self.changed.wait_for(condition)

    async def wait_or_close(self, condition):
        await self.wait(lambda: condition() or self.close_info)

        if not condition():
            raise Failure(f"closed by the server: {self.close_info}")

    async def shut(self):
        if self.close_info is None:
            self.close(H3_NO_ERROR)
            self.close_info = None

        await asyncio.sleep(0)
        self._transport.close()

    def report(self):
        return {
            "goaways": self.goaways, "close": self.close_info,
            "control": bytes(self.control).hex(),
            "settings": self.http.received_settings or {},
            "streams": {number: stream
                        for number, stream in sorted(self.streams.items())
                        if number % 4 == 0},
            "log": self.log,
        }


class Load:
    """Requests over as many connections as it takes."""

    def __init__(self, options, count, path):
        self.options = options
        self.path = path
        self.waiting = list(range(count))
        self.under_way = {}             # stream: number, of this connection
        self.answers = {}
        self.lost = []
        self.retried = 0
        self.reports = []

    async def run(self):
        while self.waiting:
            client = await Client.open(self.options)

            try:
                await self._use(client)

            finally:
                self.reports.append(client.report())
                await client.shut()

        return {"connections": self.reports, "answers": self.answers,
                "lost": self.lost, "retried": self.retried}

    async def _use(self, client):
        """Until the server closes it, or nothing is left to do."""
        if not client.up:
            raise Failure("no handshake")

        while client.close_info is None:
            self._send(client)

            if not self.under_way and not self.waiting and not client.goaways:
                return

            seen = len(client.log)
            await client.wait(lambda: len(client.log) != seen)
            self._collect(client)

        for stream, number in self.under_way.items():
            if client.goaways and stream >= min(client.goaways):
                self._again(number)

            else:
                self.lost.append(number)

        self.under_way = {}

    def _send(self, client):
        """A client does not know of a GOAWAY on its way, and sends on."""
        if client.goaways:
            return

        while self.waiting and len(self.under_way) < self.options.parallel:
            number = self.waiting.pop(0)
            stream = client.get(self.path, **{"x-number": number})
            self.under_way[stream] = number

        client.transmit()

    def _collect(self, client):
        for stream, number in list(self.under_way.items()):
            if not client.ended(stream):
                continue

            del self.under_way[stream]
            found = client.streams[stream]

            if found["fin"]:
                self.answers[number] = self.answers.get(number, 0) + 1

            elif found["reset"] == H3_REQUEST_REJECTED:
                self._again(number)

            else:
                self.lost.append(number)

    def _again(self, number):
        self.retried += 1
        self.waiting.append(number)


class Script:
    """Actions of a script."""

    def __init__(self, options, actions):
        self.options = options
        self.actions = actions
        self.names = {}
        self.client = None
        self.reports = []

    async def run(self):
        error = None

        try:
            await self.reconnect()

            for name, *arguments in self.actions:
                result = getattr(self, name)(*arguments)

                if asyncio.iscoroutine(result):
                    self.client.transmit()
                    await result

            self.client.transmit()

        except (Failure, asyncio.CancelledError) as exc:
            error = str(exc) or "timeout"

        if self.client is not None:
            self.reports.append(self.client.report())
            await self.client.shut()

        return {"connections": self.reports, "error": error}

    async def reconnect(self):
        if self.client is not None:
            self.reports.append(self.client.report())
            await self.client.shut()

        self.names = {}
        self.client = await Client.open(self.options)

        if not self.client.up:
            raise Failure(f"no handshake: {self.client.close_info}")

    def open(self, name):
        self._number(name)

    def get(self, name, path):
        self.headers(name, {":path": path}, True)

    def headers(self, name, fields, fin=False):
        self.client.headers(self._number(name), fields, fin)

    def data(self, name, what, fin=False):
        body = b"x" * what if isinstance(what, int) else what.encode()
        self._send(self._number(name), encode_frame(FrameType.DATA, body), fin)

    def raw(self, name, text, fin=False):
        self._send(self._number(name), bytes.fromhex(text), fin)

    def reset(self, name, code):
        self.client._quic.reset_stream(self._number(name), code)

    def stop(self, name, code):
        self.client._quic.stop_stream(self._number(name), code)

    def uni(self, name, text, fin=False):
        quic = self.client._quic
        self.names[name] = quic.get_next_available_stream_id(True)
        self._send(self.names[name], bytes.fromhex(text), fin)

    def control(self, text):
        self._send(self.client.http._local_control_stream_id,
                   bytes.fromhex(text), False)

    def encoder(self, text):
        self._send(self.client.http._local_encoder_stream_id,
                   bytes.fromhex(text), False)

    def stop_control(self):
        self.client._quic.stop_stream(3, H3_NO_ERROR)

    def wait(self, name):
        return self._until(lambda: self.client.ended(self.names[name]))

    def wait_status(self, name):
        return self._until(lambda: self._stream(name)["status"] is not None)

    def wait_length(self, name, length):
        return self._until(lambda: self._stream(name)["length"] >= length)

    def wait_stop(self, name):
        return self._until(lambda: self._stream(name)["stop"] is not None)

    def wait_goaway(self):
        return self._until(lambda: self.client.goaways)

    def wait_close(self):
        return self.client.wait(lambda: self.client.close_info)

    def credit(self):
        self.client._quic.credit()

    def hold(self, name):
        self.client._quic.held.add(self._number(name))

    def unhold(self, name):
        self.client._quic.held.discard(self._number(name))

    async def flush(self):
        await asyncio.sleep(0)

    async def ping(self):
        if self.client.close_info is None:
            try:
                await self.client.ping()

            except ConnectionError:
                pass                    # closed meanwhile

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

    def say(self, text):
        print(json.dumps({"say": text}), flush=True)

    async def read(self):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.readline)

    async def close(self, code):
        self.client.close(code)
        await asyncio.sleep(0)

    def _number(self, name):
        if name not in self.names:
            self.names[name] = self.client.open_stream()

        return self.names[name]

    def _stream(self, name):
        return self.client._stream(self.names[name])

    def _send(self, number, data, fin):
        self.client._quic.send_stream_data(number, data, fin)

    def _until(self, condition):
        return self.client.wait_or_close(condition)


async def burst(options, paths):
    error = None
    client = await Client.open(options)
    numbers = [client.get(path) for path in paths]
    client.transmit()

    def over():
        return (client.close_info is not None
                or (options.leave and all(map(client.ended, numbers))))

    try:
        await asyncio.wait_for(client.wait(over), options.timeout)

    except asyncio.TimeoutError:
        error = "timeout"

    report = client.report()
    await client.shut()

    return {"connections": [report], "error": error}


def parse_options(argv):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--connect", required=True, type=parse_address)
    parser.add_argument("--sni", default="localhost")
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--parallel", type=int, default=20)
    parser.add_argument("--control-window", type=int)
    parser.add_argument("--window", type=int, default=1048576)
    parser.add_argument("--leave", action="store_true")
    parser.add_argument("mode", choices=["burst", "load", "script"])
    parser.add_argument("argument", nargs="*")

    return parser.parse_args(argv)


async def run(options):
    if options.mode == "burst":
        return await burst(options, options.argument)

    if options.mode == "load":
        count, path = options.argument
        load = Load(options, int(count), path)
        return await asyncio.wait_for(load.run(), options.timeout)

    # the first line: others may answer a "read"
    script = Script(options, json.loads(sys.stdin.readline()))
    task = asyncio.ensure_future(script.run())
    await asyncio.wait([task], timeout=options.timeout)
    task.cancel()

    return await task


def main(argv):
    print(json.dumps(asyncio.run(run(parse_options(argv)))), flush=True)

    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
