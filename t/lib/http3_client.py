#!/usr/bin/env python3

"""An HTTP/3 client that sends requests octet by octet, and cuts them.

    http3_client.py [--timeout SEC] [--hold] ADDR:PORT

The first line of standard input is a JSON list of requests, all begun at once:

    {"method": "POST",          (GET)
     "path": "/",
     "headers": [["name", "value"], ...],
     "send": [STEP, ...],       after the header (only its end)
     "connection": N,           requests of one number share one (0)
     "after": N,                begins when request N of the list is over
     "read": N,                 reads N octets of the response a second
     "ignore_stop": true,       goes on to send after STOP_SENDING
     "flight": N}               at first N octets need no acknowledgment

    STEP: {"hex": "0005..."}    octets of the stream
          {"data": N}           a DATA frame with N octets of the pattern
          {"wait": SEC}         nothing for so long
          {"wait_header": true} nothing until the response begins
          {"wait_length": N}    nothing until it has N octets
          {"wait_stop": true}   nothing until STOP_SENDING
          {"fin": true}         the end of the stream
          {"reset": CODE}       RESET_STREAM

Steps with no wait between them leave at once.

Prints a JSON list, for each request its "status", "headers", "length" and
"sha256" of the response, "body" when it is short, "fin", "reset" (code),
"stop" (code of STOP_SENDING), "sent" (octets of the stream), "began" and
"over": when the response came, in seconds after the request.

It ends when all requests are over, or after --timeout seconds (120).  With
--hold it goes on until the end of standard input, or a line "stop"; each other
line there is answered by the list.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
import pylsqpack

import quic_recovery  # noqa: F401
from quic_net import parse_address, pattern, udp_socket

DATA, HEADERS, SETTINGS = 0, 1, 4

# what is given to the QUIC stack ahead of what has been acknowledged
AHEAD = 128 * 1024

# a slow reader's flow control window
WINDOW = 16 * 1024

# a body of at most so many octets is in the report
SHORT = 4096


class Connection(QuicConnection):
    """Does not answer STOP_SENDING and gives credit by the reader's rate."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.requests = {}

    def _handle_stop_sending_frame(self, context, frame_type, buf):
        stream_id = buf.pull_uint_var()
        code = buf.pull_uint_var()
        self.requests[stream_id].on_stop(code)

    def _write_stream_limits(self, builder, space, stream):
        request = self.requests.get(stream.stream_id)

        if request is None or request.rate is None:
            super()._write_stream_limits(builder, space, stream)
            return

        stream.max_stream_data_local = max(stream.max_stream_data_local,
                                           request.credit())

        # the stack doubles what is used up by half
        highest = stream.receiver.highest_offset
        stream.receiver.highest_offset = 0
        super()._write_stream_limits(builder, space, stream)
        stream.receiver.highest_offset = highest


class Protocol(QuicConnectionProtocol):

    def quic_event_received(self, event):
        if isinstance(event, events.StreamDataReceived):
            request = self._quic.requests.get(event.stream_id)

            if request:
                request.on_data(event.data, event.end_stream)

        elif isinstance(event, events.StreamReset):
            request = self._quic.requests.get(event.stream_id)

            if request:
                request.on_reset(event.error_code)

        elif isinstance(event, events.ConnectionTerminated):
            for request in self._quic.requests.values():
                request.on_closed(event.error_code)


class Request:

    def __init__(self, spec):
        self.spec = spec
        self.rate = spec.get("read")
        self.start = None
        self.protocol = None
        self.stream_id = None
        self.buffer = b""
        self.type = None
        self.rest = 0
        self.digest = hashlib.sha256()
        self.short = b""
        self.stopped = False
        self.header = asyncio.Event()
        self.progress = asyncio.Event()
        self.stop = asyncio.Event()
        self.finished = asyncio.Event()
        self.result = {"status": None, "headers": [], "length": 0,
                       "fin": False, "reset": None, "stop": None,
                       "closed": None, "sent": 0, "began": None, "over": None}

    # sending

    async def run(self, protocol):
        self.protocol = protocol
        self.quic = protocol._quic
        self.stream_id = self.quic.get_next_available_stream_id()
        self.quic.requests[self.stream_id] = self
        self.start = time.monotonic()

        if "flight" in self.spec:
            self.widen(self.spec["flight"])

        self.write(self.header_frame())

        for step in self.spec.get("send", [{"fin": True}]):
            if self.stopped and "wait_stop" not in step:
                break
            await self.step(step)

        protocol.transmit()

        if self.rate is not None:
            asyncio.ensure_future(self.read_slowly())

    def widen(self, size):
        """The congestion window, lest the path pauses."""
        loss = self.quic._loss
        loss._cc.congestion_window = max(loss._cc.congestion_window, size)
        loss._pacer.update_rate(congestion_window=loss._cc.congestion_window,
                                smoothed_rtt=loss._rtt_smoothed)

    def header_frame(self):
        spec = self.spec
        headers = [(b":method", spec.get("method", "GET").encode()),
                   (b":scheme", b"https"),
                   (b":authority", b"localhost"),
                   (b":path", spec.get("path", "/").encode())]
        headers += [(name.encode(), value.encode())
                    for name, value in spec.get("headers", [])]

        _, block = pylsqpack.Encoder().encode(self.stream_id, headers)

        return encode_uint_var(HEADERS) + encode_uint_var(len(block)) + block

    async def step(self, step):
        if "hex" in step:
            self.write(bytes.fromhex(step["hex"]))

        elif "data" in step:
            await self.send_data(step["data"])

        elif "fin" in step:
            self.write(b"", True)

        else:
            # what was written before would be dropped by a reset
            self.protocol.transmit()
            await self.wait(step)

    async def wait(self, step):
        if "wait" in step:
            await asyncio.sleep(step["wait"])

        elif "wait_header" in step:
            await self.header.wait()

        elif "wait_length" in step:
            while self.result["length"] < step["wait_length"]:
                self.progress.clear()
                await self.progress.wait()

        elif "wait_stop" in step:
            await self.stop.wait()

        else:
            self.quic.reset_stream(self.stream_id, step["reset"])

    def write(self, data, end=False):
        self.quic.send_stream_data(self.stream_id, data, end)

    async def send_data(self, size):
        self.write(encode_uint_var(DATA) + encode_uint_var(size))
        sent = 0

        while sent < size and not self.stopped:
            sender = self.quic._streams[self.stream_id].sender
            room = AHEAD - len(sender._buffer)

            if room <= 0:
                self.protocol.transmit()
                await asyncio.sleep(0.01)
                continue

            piece = min(room, size - sent)
            self.write(pattern(sent, piece))
            sent += piece

    def octets_sent(self):
        stream = self.quic._streams.get(self.stream_id) if self.start else None

        if stream:
            # given to the stack, less what it could not send yet
            sender = stream.sender
            pending = sum(r.stop - r.start for r in sender._pending)
            self.result["sent"] = sender._buffer_stop - pending

        return self.result["sent"]

    # receiving

    def credit(self):
        return WINDOW + int(self.rate * (time.monotonic() - self.start))

    async def read_slowly(self):
        while not self.finished.is_set():
            await asyncio.sleep(0.1)
            self.protocol.transmit()

    def on_data(self, data, end):
        self.buffer += data

        while self.buffer:
            if self.rest:
                piece = self.buffer[:self.rest]
                self.buffer = self.buffer[len(piece):]
                self.rest -= len(piece)

                if self.type == DATA:
                    self.on_body(piece)
                continue

            if not self.next_frame():
                break

        if end:
            self.result["fin"] = True
            self.over()

    def next_frame(self):
        buf = Buffer(data=self.buffer)

        try:
            self.type = buf.pull_uint_var()
            size = buf.pull_uint_var()

            if self.type == HEADERS:
                self.on_header(buf.pull_bytes(size))
                size = 0

        except ValueError:
            return False

        self.buffer = self.buffer[buf.tell():]
        self.rest = size

        return True

    def on_header(self, block):
        _, headers = pylsqpack.Decoder(0, 0).feed_header(self.stream_id, block)
        headers = [(name.decode(), value.decode()) for name, value in headers]

        if self.result["status"] is None:
            self.result["status"] = int(dict(headers)[":status"])
            self.result["began"] = time.monotonic() - self.start

        self.result["headers"] += headers
        self.header.set()

    def on_body(self, data):
        self.digest.update(data)
        self.result["length"] += len(data)
        self.progress.set()

        if len(self.short) < SHORT:
            self.short += data

    def on_reset(self, code):
        self.result["reset"] = code
        self.over()

    def on_stop(self, code):
        self.result["stop"] = code
        self.stop.set()

        if not self.spec.get("ignore_stop"):
            self.stopped = True

    def on_closed(self, code):
        if not self.finished.is_set():
            self.result["closed"] = code
            self.stop.set()
            self.over()

    def over(self):
        self.octets_sent()
        self.stopped = True
        self.header.set()

        if not self.finished.is_set():
            self.result["over"] = time.monotonic() - self.start
            self.finished.set()

    def report(self):
        self.octets_sent()
        result = dict(self.result, sha256=self.digest.hexdigest())

        if result["length"] <= SHORT:
            result["body"] = self.short.decode("latin-1")

        return result


async def connect(address, slow):
    configuration = QuicConfiguration(alpn_protocols=["h3"], is_client=True,
                                      verify_mode=0,
                                      server_name="localhost",
                                      idle_timeout=600)

    if slow:
        configuration.max_stream_data = WINDOW

    quic = Connection(configuration=configuration)
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_datagram_endpoint(
        lambda: Protocol(quic), sock=udp_socket(("127.0.0.1", 0)))
    protocol.connect(address)
    await protocol.wait_connected()

    # the control stream
    stream_id = quic.get_next_available_stream_id(is_unidirectional=True)
    quic.send_stream_data(stream_id, bytes((0, SETTINGS, 0)))

    return protocol


async def start(requests, address):
    protocols = {}
    tasks = []

    for request in requests:
        number = request.spec.get("connection", 0)

        if number not in protocols:
            protocols[number] = await connect(address,
                                              request.rate is not None)

    async def run(request):
        if "after" in request.spec:
            await requests[request.spec["after"]].finished.wait()

        await request.run(protocols[request.spec.get("connection", 0)])
        await request.finished.wait()

    for request in requests:
        tasks.append(asyncio.ensure_future(run(request)))

    return protocols, tasks


async def read_lines():
    reader = asyncio.StreamReader(limit=2 ** 26)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    return reader


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("address", type=parse_address)
    options = parser.parse_args()

    lines = await read_lines()
    requests = [Request(spec) for spec in json.loads(await lines.readline())]

    def report():
        print(json.dumps([r.report() for r in requests]), flush=True)

    protocols, tasks = await start(requests, options.address)

    if options.hold:
        while (line := await lines.readline()) and line != b"stop\n":
            report()

    else:
        await asyncio.wait(tasks, timeout=options.timeout)
        report()

    for task in tasks:
        if task.done():
            task.result()
        else:
            task.cancel()

    for protocol in protocols.values():
        protocol.close()

    await asyncio.wait([asyncio.ensure_future(p.wait_closed())
                        for p in protocols.values()], timeout=2)


asyncio.run(main())
