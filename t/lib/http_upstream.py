#!/usr/bin/env python3

"""Upstreams that tell what they have seen of each request.

    http_upstream.py KIND[:RCVBUF]...

KIND is http, fastcgi, uwsgi, scgi or grpc.  Each listens on a port of its own
on 127.0.0.1; the first line printed is "ready PORT...".  Each further line of
standard input is answered by a JSON object:

    "active"    connections with a request that has not ended
    "requests"  those that have: "kind", "path", "length" (octets of the body),
                "sha256", "complete" (whether the end was seen, as the
                protocol tells it), "declared" (Content-Length or null),
                "chunked", "connection" (number)

and, after "forget", forgotten.

What is done is the first part of the path (grpc: always "len"):

    /len            reads the body, answers 200 with its length
    /status/N       reads the body, answers N
    /bytes/N        answers N octets of the pattern, with Content-Length
    /stream/N       the same without a length
    /drip/N         N octets, one each 50 ms, without a length
    /early/N        answers N with Content-Length, then reads on
    /refuse/N       answers N and closes, reads nothing more of the body
    /deaf/N         answers N octets at 100 KB/s, reads nothing more
    /echo           sends the body back while it comes
    /slow/N         reads N octets a second
    /close          closes after the header
"""

import asyncio
import hashlib
import json
import socket
import struct
import sys

from quic_net import pattern


class Aborted(Exception):
    """The connection ended within a request."""


class Corked:
    """A writer that only collects."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


class Request:
    """What all protocols have; |body| yields the body's pieces."""

    def __init__(self, kind, server):
        self.kind = kind
        self.server = server
        self.path = "/len"
        self.declared = None
        self.chunked = False
        self.length = 0
        self.digest = hashlib.sha256()
        self.complete = False

    def add(self, data):
        self.length += len(data)
        self.digest.update(data)

    def record(self, number):
        return {"kind": self.kind, "path": self.path, "length": self.length,
                "sha256": self.digest.hexdigest(),
                "complete": self.complete, "declared": self.declared,
                "chunked": self.chunked, "connection": number}


class Peer:
    """One connection; subclasses are protocols."""

    kind = None

    def __init__(self, server, reader, writer):
        self.server = server
        self.reader = reader
        self.writer = writer

    async def exactly(self, size):
        try:
            return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise Aborted
        except ConnectionError:
            raise Aborted

    async def until(self, mark):
        try:
            return await self.reader.readuntil(mark)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Aborted

    async def pieces(self, size):
        """The next |size| octets, as they come."""
        while size:
            try:
                data = await self.reader.read(min(size, 65536))
            except ConnectionError:
                raise Aborted
            if not data:
                raise Aborted
            size -= len(data)
            yield data

    # what a protocol has to define; the first raises Aborted at the end

    async def header(self, request):
        raise NotImplementedError

    async def body(self, request):
        raise NotImplementedError

    def begin(self, status, length):
        raise NotImplementedError

    def send(self, data):
        raise NotImplementedError

    def finish(self):
        raise NotImplementedError

    keepalive = False

    # actions

    async def flush(self):
        try:
            await self.writer.drain()
        except ConnectionError:
            raise Aborted

    async def consume(self, request, rate=None):
        async for data in self.body(request):
            request.add(data)

            if rate:
                await asyncio.sleep(len(data) / rate)

        request.complete = True

    async def answer(self, status, data, length=True):
        self.begin(status, len(data) if length else None)

        for i in range(0, len(data), 16384):
            self.send(data[i:i + 16384])
            await self.flush()

        self.finish()
        await self.flush()

    async def answer_at_once(self, status, data):
        """In one piece: a close that resets may overtake what comes later."""
        writer, self.writer = self.writer, Corked()
        self.begin(status, len(data))
        self.send(data)
        self.finish()
        writer.write(self.writer.data)
        self.writer = writer
        await self.flush()

    async def act(self, request):
        _, action, *rest = request.path.split("?")[0].split("/")
        number = int(rest[0]) if rest else None

        if action == "early":
            await self.answer(number, b"early")
            await self.consume(request)

        elif action == "refuse":
            await self.answer_at_once(number, b"refused")
            raise Aborted

        elif action == "deaf":
            self.begin(200, number)
            for i in range(0, number, 10000):
                self.send(pattern(i, min(10000, number - i)))
                await self.flush()
                await asyncio.sleep(0.1)
            self.finish()
            await self.flush()
            raise Aborted

        elif action == "echo":
            self.begin(200, None)
            await self.flush()
            async for data in self.body(request):
                request.add(data)
                self.send(data)
                await self.flush()
            request.complete = True
            self.finish()
            await self.flush()

        elif action == "close":
            raise Aborted

        else:
            await self.consume(request,
                               number if action == "slow" else None)
            await self.respond(request, action, number)

    async def respond(self, request, action, number):
        if action == "bytes" or action == "stream":
            self.begin(200, number if action == "bytes" else None)
            for i in range(0, number, 65521):
                self.send(pattern(i, min(65521, number - i)))
                await self.flush()
            self.finish()
            await self.flush()

        elif action == "drip":
            self.begin(200, None)
            for i in range(number):
                self.send(pattern(i, 1))
                await self.flush()
                await asyncio.sleep(0.05)
            self.finish()
            await self.flush()

        elif action == "status":
            await self.answer(number, b"status")

        else:
            await self.answer(200, b"%d" % request.length)

    async def run(self):
        number = self.server.connections
        self.server.connections += 1

        try:
            while await self.one(number) and self.keepalive:
                pass

        finally:
            self.writer.close()

    async def one(self, number):
        """A request; whether another may follow."""
        request = Request(self.kind, self.server)

        try:
            await self.header(request)
        except Aborted:
            return False

        self.server.active += 1

        try:
            await self.act(request)
            return True

        except Aborted:
            return False

        finally:
            self.server.active -= 1
            self.server.requests.append(request.record(number))


class Http(Peer):
    kind = "http"
    keepalive = True

    async def header(self, request):
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        request.path = lines[0].split(" ")[1]
        headers = dict(line.lower().split(": ", 1) for line in lines[1:-2])
        self.chunking = False

        if "content-length" in headers:
            request.declared = int(headers["content-length"])

        request.chunked = headers.get("transfer-encoding") == "chunked"
        self.keepalive = headers.get("connection") != "close"

    async def body(self, request):
        if not request.chunked:
            async for data in self.pieces(request.declared or 0):
                yield data
            return

        while True:
            size = int(await self.until(b"\r\n"), 16)
            async for data in self.pieces(size):
                yield data
            await self.exactly(2)
            if size == 0:
                return

    def begin(self, status, length):
        self.chunking = length is None and self.keepalive
        framing = ("Transfer-Encoding: chunked\r\n" if self.chunking else
                   "Content-Length: %d\r\n" % length if length is not None
                   else "")
        self.writer.write(b"HTTP/1.1 %d X\r\n%s\r\n"
                          % (status, framing.encode()))

    def send(self, data):
        if self.chunking:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        self.writer.write(data)

    def finish(self):
        if self.chunking:
            self.writer.write(b"0\r\n\r\n")


class Cgi(Peer):
    """The header of a response as CGI has it."""

    def begin(self, status, length):
        text = "Status: %d X\r\n" % status
        if length is not None:
            text += "Content-Length: %d\r\n" % length
        self.send((text + "\r\n").encode())

    def send(self, data):
        self.writer.write(data)

    def finish(self):
        pass

    def params(self, request, params):
        request.path = params[b"REQUEST_URI"].decode()
        if params.get(b"CONTENT_LENGTH"):
            request.declared = int(params[b"CONTENT_LENGTH"])

    async def body(self, request):
        async for data in self.pieces(request.declared or 0):
            yield data


class Fastcgi(Cgi):
    kind = "fastcgi"

    BEGIN, END, PARAMS, STDIN, STDOUT = 1, 3, 4, 5, 6

    async def record_header(self):
        _, kind, _, size, pad = struct.unpack("!BBHHBx", await self.exactly(8))
        return kind, size, pad

    async def header(self, request):
        data = b""

        while True:
            kind, size, pad = await self.record_header()
            piece = (await self.exactly(size + pad))[:size]

            if kind == self.PARAMS:
                data += piece
                if size == 0:
                    break

        self.params(request, dict(self.pairs(data)))

    @staticmethod
    def pairs(data):
        pos = 0

        def length(pos):
            if data[pos] < 128:
                return data[pos], pos + 1
            return struct.unpack_from("!L", data, pos)[0] & 2 ** 31 - 1, pos + 4

        while pos < len(data):
            n, pos = length(pos)
            v, pos = length(pos)
            yield data[pos:pos + n], data[pos + n:pos + n + v]
            pos += n + v

    async def body(self, request):
        while True:
            _, size, pad = await self.record_header()
            async for data in self.pieces(size):
                yield data
            await self.exactly(pad)
            if size == 0:
                return

    def out(self, kind, data):
        self.writer.write(struct.pack("!BBHHBB", 1, kind, 1, len(data), 0, 0)
                          + data)

    def send(self, data):
        for i in range(0, len(data), 65535):
            self.out(self.STDOUT, data[i:i + 65535])

    def finish(self):
        self.out(self.STDOUT, b"")
        self.out(self.END, bytes(8))


class Scgi(Cgi):
    kind = "scgi"

    async def header(self, request):
        size = int((await self.until(b":"))[:-1])
        fields = (await self.exactly(size + 1))[:-2].split(b"\0")
        self.params(request, dict(zip(fields[::2], fields[1::2])))


class Uwsgi(Cgi):
    kind = "uwsgi"

    async def header(self, request):
        _, size, _ = struct.unpack("<BHB", await self.exactly(4))
        data = await self.exactly(size)
        params = {}
        pos = 0

        while pos < size:
            n, = struct.unpack_from("<H", data, pos)
            v, = struct.unpack_from("<H", data, pos + 2 + n)
            params[data[pos + 2:pos + 2 + n]] = \
                data[pos + 4 + n:pos + 4 + n + v]
            pos += 4 + n + v

        self.params(request, params)


class Grpc(Peer):
    """As much of HTTP/2 as one request needs; the header is not decoded."""

    kind = "grpc"

    DATA, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE = 0, 1, 3, 4, 8
    END_STREAM, ACK, END_HEADERS = 1, 1, 4

    def frame(self, kind, flags, stream, data=b""):
        self.writer.write(struct.pack("!LBL", len(data) << 8 | kind, flags,
                                      stream) + data)

    async def next_frame(self):
        head, flags, stream = struct.unpack("!LBL", await self.exactly(9))
        data = await self.exactly(head >> 8)

        if head & 255 == self.SETTINGS and not flags & self.ACK:
            self.frame(self.SETTINGS, self.ACK, 0)

        return head & 255, flags, stream, data

    async def header(self, request):
        await self.exactly(24)
        self.frame(self.SETTINGS, 0, 0)

        while True:
            kind, flags, self.stream, _ = await self.next_frame()
            if kind == self.HEADERS:
                break

        self.ended = flags & self.END_STREAM

    async def body(self, request):
        while not self.ended:
            kind, flags, _, data = await self.next_frame()

            if kind == self.RST_STREAM:
                raise Aborted

            if kind == self.DATA:
                if data:
                    size = struct.pack("!L", len(data))
                    self.frame(self.WINDOW_UPDATE, 0, 0, size)
                    self.frame(self.WINDOW_UPDATE, 0, self.stream, size)
                    yield data
                self.ended = flags & self.END_STREAM

    def begin(self, status, length):
        # ":status: 200" of the static table; content-type, which gRPC demands
        self.frame(self.HEADERS, self.END_HEADERS, self.stream,
                   b"\x88\x0f\x10\x10application/grpc")

    def send(self, data):
        self.frame(self.DATA, 0, self.stream, data)

    def finish(self):
        self.frame(self.DATA, self.END_STREAM, self.stream)

    async def one(self, number):
        await super().one(number)

        # closed by the client, lest what it sends yet cuts the answer off
        while await self.reader.read(65536):
            pass

        return False


class Server:

    def __init__(self):
        self.active = 0
        self.connections = 0
        self.requests = []

    async def listen(self, text):
        name, _, size = text.partition(":")
        peer = {p.kind: p for p in (Http, Fastcgi, Scgi, Uwsgi, Grpc)}[name]
        sock = socket.socket()

        if size:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, int(size))

        sock.bind(("127.0.0.1", 0))

        async def serve(reader, writer):
            try:
                await peer(self, reader, writer).run()
            except ConnectionError:
                pass

        await asyncio.start_server(serve, sock=sock, backlog=1000,
                                   limit=65536 if not size else int(size))

        return sock.getsockname()[1]

    def report(self, forget):
        print(json.dumps({"active": self.active, "requests": self.requests}),
              flush=True)

        if forget:
            self.requests = []


async def main():
    server = Server()
    ports = [await server.listen(text) for text in sys.argv[1:]]
    print("ready", *ports, flush=True)

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    while line := await reader.readline():
        server.report(line.strip() == b"forget")


asyncio.run(main())
