#!/usr/bin/env python3

"""What both ends of a relayed connection see, as one line of JSON.

    relay_ends.py OPTION... SCENARIO [ARGUMENT...]

    --connect ADDR:PORT  the relay
    --listen ADDR:PORT   where the relay's upstream is
    --cert FILE --key FILE
    --alpn NAME,...      (echo)
    --server-alpn NAME,...
                         of the upstream, if they are others
    --server-name NAME   that the client asks for (localhost); empty: none
    --window N           credit of each stream, octets (1 MB)
    --trains             the client sends what it can as trains, by
                         UDP_SEGMENT
    --marks              the client's packets have the ECN mark ECT(0);
                         "marks" of each: how many 1-RTT packets were
                         acknowledged, and as how many ECT(0), ECT(1), CE
    --max-datagram N     DATAGRAM frames up to that size, octets (1200)
    --worker PID         whose memory is measured

Scenarios, and what they report beside "ok" and "error":

    matrix               every way to end a half of a stream: "cells", each
                         with "name", and "fault" or null; one connection
    ids                  all four kinds of streams, opened out of order, keep
                         their IDs
    stall WAY STREAMS SIZE
                         STREAMS streams of SIZE octets each, "up" or "down",
                         to a reader of 10 kB/s; when the sender is out of
                         credit all get 256 kB more, and the reader hurries
    short COUNT          COUNT streams, finished and reset in turn, of both
                         ends; "rss": of the worker at 5000 and at the end
    datagrams COUNT [SIZE]
                         COUNT each way at once: "up" and "down", each with
                         "sent", "received", "altered", "disordered"
    queries COUNT        one per stream, answered with its own content
    refused [COUNT]      no connection comes about, COUNT times at once:
                         "code" of the close that the clients get
    abandon              a client writes "ready" when it has begun, and leaves
                         when it is told to
    close ACTOR CODE     "client" or "upstream" closes with the code: "code"
                         and "reason" that the other one gets
    vanish               the upstream falls silent: "code" that the client
                         gets, "fin": its stream has ended properly
    resume NAME...       a connection of one stream to each of the names in
                         turn: "resumed", whether that to the upstream is by a
                         TLS ticket, null if it is refused; at "+" it writes
                         "ready" and waits for a line, at "!" the server mixes
                         up its tickets
    resume_alpn NAME...  the same with a client that offers the protocol alone:
                         "chosen", what it gets
    wait                 writes "ready", then: "code" that both ends get
    rebind COUNT [new]   the client goes on from COUNT other ports in turn,
                         with a new connection ID each time; "intact"
    flood KIND           see FLOODS; "closed": the code; a second connection
                         works on all the time

and those of relay_workers.py.

Memory is in octets.  See relay_peer.py.
"""

import argparse
import asyncio
import itertools
import json
import logging
import os
import sys

import relay_workers
from relay_peer import Ends, Failure

from quic_net import pattern, udp_socket

CODES = [0, 1, 1 << 30, (1 << 62) - 1]
WHEN = ["before", "in", "after"]

# Two packets' worth arrives before an end "in" the data.
PART = 3000
SIZE = 40000

SLOW = 10 * 1000
CONCURRENT = 100
CHECKPOINT = 5000


def rss(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024


# the end matrix

class Cell:
    """One way to end one half of a stream.

    |actor| does it: a sender by FIN or RESET_STREAM, a receiver by
    STOP_SENDING.  |opener| is who has opened the stream.
    """

    def __init__(self, end, actor, when, kind, opener, code):
        self.end, self.actor, self.when = end, actor, when
        self.kind, self.opener, self.code = kind, opener, code
        self.name = f"{end} by the {actor}, {when} data, {kind}"

        if kind == "bidi":
            self.name += f" of the {opener}"

        if code is not None:
            self.name += f", code {code:#x}"

    @classmethod
    def all(cls):
        ends = [("FIN", None)]
        ends += itertools.product(["RESET", "STOP"], CODES)

        for (end, code), actor, when in itertools.product(
                ends, ["client", "upstream"], WHEN):
            other = "upstream" if actor == "client" else "client"
            sender = other if end == "STOP" else actor

            yield cls(end, actor, when, "uni", sender, code)
            yield cls(end, actor, when, "bidi", actor, code)
            yield cls(end, actor, when, "bidi", other, code)

    async def run(self, pair):
        """The fault, or None."""
        actor, other = pair.sides(self.actor == "client")
        opener, _ = pair.sides(self.opener == "client")
        sender, receiver = (other, actor) if self.end == "STOP" \
            else (actor, other)

        stream = opener.open(unidirectional=self.kind == "uni")
        mine, theirs = actor.stream(stream.id), other.stream(stream.id)

        try:
            await self._introduce(opener, sender, receiver, stream.id)
            amount = await self._data(sender, receiver, stream.id)
            await self._end(mine, theirs, amount)
            await self._other_half(sender, receiver, stream.id)

        except Failure as exc:
            return f"{exc}; actor {mine.ends()}, other {theirs.ends()}"

        return self._excess(sender.stream(stream.id),
                            receiver.stream(stream.id))

    async def _introduce(self, opener, sender, receiver, stream_id):
        """Let whoever has not opened the stream know of it.

        By the half that is not to be ended; else the end itself must do.
        """
        if self.kind == "bidi" and opener is receiver:
            receiver.stream(stream_id).send(PART)
            await sender.until(
                lambda: sender.stream(stream_id).received == PART,
                "introduction")

    async def _data(self, sender, receiver, stream_id):
        amount = {"before": 0, "in": PART, "after": SIZE}[self.when]

        if self.end == "STOP" and stream_id not in receiver._quic._streams:
            # an endpoint can only stop what it knows of
            amount = amount or 1

        if amount:
            sender.stream(stream_id).send(amount)
            await receiver.until(
                lambda: receiver.stream(stream_id).received == amount, "data")

        return amount

    async def _end(self, mine, theirs, amount):
        if self.end == "FIN":
            extra = PART if self.when == "in" else 0
            mine.send(extra, fin=True)
            await theirs.peer.until(lambda: theirs.fin, "FIN")

            if theirs.received != amount + extra:
                raise Failure(f"{theirs.received} octets before the FIN")

        elif self.end == "RESET":
            if self.when == "in":
                mine.send(SIZE)
                await asyncio.sleep(0)  # some of it is on its way

            mine.end_reset(self.code)
            await theirs.peer.until(lambda: theirs.reset is not None, "reset")

            if theirs.reset != self.code:
                raise Failure("another code")

        else:
            if self.when == "in":
                theirs.send(SIZE)
                await asyncio.sleep(0)

            mine.stop(self.code)
            await theirs.peer.until(lambda: theirs.stopped is not None,
                                    "STOP_SENDING")

            if theirs.stopped != self.code:
                raise Failure("another code")

    async def _other_half(self, sender, receiver, stream_id):
        """It still delivers, after the end has been seen."""
        if self.kind == "uni":
            return

        back = receiver.stream(stream_id)
        there = sender.stream(stream_id)

        back.send(SIZE, fin=True)
        await sender.until(lambda: there.fin, "the other half")

        if there.received != back.total:
            raise Failure(f"{there.received} of {back.total} octets of the "
                          "other half")

    def _excess(self, sent, got):
        """Nothing else has ended, and nothing was changed."""
        if not (sent.intact and got.intact):
            return "altered"

        if sent.reset is not None or got.stopped is not None:
            return "the other half ended, too"

        if self.end != "STOP" and sent.stopped is not None:
            return "a STOP_SENDING of nobody"

        if self.end != "FIN" and got.fin:
            return "a FIN of nobody"

        if self.end == "FIN" and got.reset is not None:
            return "a reset of nobody"

        return None


async def matrix(ends, options):
    pair = await ends.connect()
    cells = list(Cell.all())
    faults = await asyncio.gather(*(cell.run(pair) for cell in cells))
    pair.close()

    return {"cells": [{"name": cell.name, "fault": fault}
                      for cell, fault in zip(cells, faults)]}


# IDs

async def ids(ends, options):
    pair = await ends.connect()
    faults = []

    for peer, other in (pair.sides(True), pair.sides(False)):
        for unidirectional in (False, True):
            streams = [peer.open(unidirectional) for _ in range(20)]

            # the peer sees a high ID first: the lower ones are opened by it
            for stream in reversed(streams):
                stream.send(100 + stream.id, fin=True)
                await other.until(lambda: other.stream(stream.id).fin,
                                  f"stream {stream.id}")

            for stream in streams:
                seen = other.stream(stream.id)

                if not seen.intact or seen.received != 100 + stream.id:
                    faults.append(stream.id)

    pair.close()

    return {"faults": faults, "seen": len(pair.upstream.streams)}


# backpressure

async def stall(ends, options, way, count, size):
    """The sender stops for lack of credit, and what is held stays small."""
    count, size = int(count), int(size)
    pair = await ends.connect()
    sender, reader = pair.sides(way == "up")
    before = rss(options.worker)
    reader.read_slowly(SLOW, options.window)
    streams = [sender.open() for _ in range(count)]

    for stream in streams:
        stream.send(size)

    # the reader still takes a little, and so the credit is never quite 0
    await sender.until(
        lambda: len(sender.credit_left()) == count
        and max(sender.credit_left()) < options.window // 2
        and all(sender.sender(stream.id).highest_offset > 2 * options.window
                for stream in streams), "a sender without credit")

    # what the sender has got acknowledged and the reader has not got
    held = [sender.sender(stream.id).highest_offset
            - reader.stream(stream.id).received for stream in streams]
    full = rss(options.worker)

    # as it was, but to an end: the rest would take minutes
    for stream in streams:
        stream.total = stream.offset
        stream.send(256 * 1024, fin=True)

    reader.read_all()
    await reader.until(
        lambda: all(reader.stream(stream.id).fin for stream in streams),
        "all of it")
    pair.close()

    return {
        "held": max(held), "rss": [before, full],
        "faults": [stream.id for stream in streams
                   if not reader.stream(stream.id).intact
                   or reader.stream(stream.id).received != stream.total],
    }


# many streams on one connection

async def short(ends, options, count):
    count = int(count)
    pair = await ends.connect()
    gate = asyncio.Semaphore(CONCURRENT)
    numbers = iter(range(count))
    memory, faults = [], []

    def record():
        memory.append(rss(options.worker))

    async def work():
        for number in numbers:
            if number == min(CHECKPOINT, count // 2):
                record()

            fault = await short_stream(pair, number)

            if fault is not None:
                faults.append(fault)

    await asyncio.gather(*(work() for _ in range(CONCURRENT)))
    record()
    pair.close()

    return {"rss": memory, "faults": faults[:10]}


async def short_stream(pair, number):
    """In turn: a FIN and its answer, a reset, a STOP_SENDING, a uni one."""
    peer, other = pair.sides(number % 8 < 4)
    kind = number % 4
    mine = peer.open(unidirectional=kind == 3)
    theirs = other.stream(mine.id)
    fault = None

    try:
        mine.send(100, fin=kind in (0, 3))
        await other.until(lambda: theirs.received == 100, "data")

        if kind == 1:
            mine.end_reset(number)
            await other.until(lambda: theirs.reset == number, "reset")

        elif kind == 2:
            theirs.stop(number)
            await peer.until(lambda: mine.stopped == number, "STOP_SENDING")

        if kind != 3:
            theirs.send(50, fin=True)
            await peer.until(lambda: mine.fin and mine.received == 50,
                             "answer")

    except Failure as exc:
        fault = f"stream {mine.id}: {exc}"

    peer.forget(mine.id)
    other.forget(mine.id)

    return fault


# datagrams

def datagram(way, number, size):
    """Every one differs, and tells what it is."""
    head = way.encode() + number.to_bytes(4, "big")
    return head + pattern(number * 31, size - len(head))


async def datagrams(ends, options, count, size="100"):
    count, size = int(count), int(size)
    pair = await ends.connect()
    ways = {"u": pair.sides(True), "d": pair.sides(False)}

    async def send(way, peer):
        for number in range(count):
            peer._quic.send_datagram_frame(datagram(way, number, size))

            if number % 20 == 19:
                peer.flush()
                await peer.until(
                    lambda: len(peer._quic._datagrams_pending) < 100,
                    "room for datagrams")

        peer.flush()
        await peer.until(lambda: not peer._quic._datagrams_pending,
                         "datagrams sent")

    await asyncio.gather(*(send(way, peer)
                           for way, (peer, _) in ways.items()))
    await settle(pair)
    pair.close()

    return {name: datagram_report(way, ways[way][1].datagrams, count, size)
            for name, way in (("up", "u"), ("down", "d"))}


async def settle(pair):
    """Until no more datagrams come: the queues empty before what is after.

    A stream's round trip is sent behind them, and a second one behind what
    its acknowledgments let through.
    """
    while True:
        seen = [len(peer.datagrams) for peer in pair.sides(True)]

        for _ in range(3):
            stream = pair.client.open()
            stream.send(1000, fin=True)
            await pair.upstream.until(
                lambda: pair.upstream.stream(stream.id).fin, "a round trip")
            pair.upstream.stream(stream.id).send(1000, fin=True)
            await pair.client.until(lambda: stream.fin, "a round trip")

        if seen == [len(peer.datagrams) for peer in pair.sides(True)]:
            return


def datagram_report(way, received, count, size):
    numbers = [int.from_bytes(data[1:5], "big") for data in received]

    return {
        "sent": count, "received": len(received),
        "altered": sum(data != datagram(way, number, size)
                       for data, number in zip(received, numbers)),
        "repeated": len(numbers) - len(set(numbers)),
    }


# DNS over QUIC (RFC 9250, 4.2): a query per stream

async def queries(ends, options, count):
    count = int(count)
    pair = await ends.connect()
    pair.client.raw = pair.upstream.raw = True
    parts, answers = {}, {}
    served, ended = set(), set()

    def serve(peer, event):
        # a FIN that is sent again is told again
        if event.stream_id in served:
            return

        data = parts.pop(event.stream_id, b"") + event.data

        if not event.end_stream:
            parts[event.stream_id] = data
            return

        served.add(event.stream_id)
        peer.stream(event.stream_id).send_bytes(
            data[:2] + data[2:].upper() * 3, fin=True)
        peer.forget(event.stream_id)

    def answer(peer, event):
        answers[event.stream_id] = answers.get(event.stream_id, b"") \
            + event.data

        if event.end_stream:
            ended.add(event.stream_id)

    pair.upstream.on_event = on_data(serve)
    pair.client.on_event = on_data(answer)

    asked = {}

    for number in range(count):
        query = b"q%d.example." % number
        stream = pair.client.open()
        asked[stream.id] = query
        stream.send_bytes(len(query).to_bytes(2, "big") + query, fin=True)

    await pair.client.until(lambda: len(ended) == count, "all answers")
    pair.close()

    return {"answered": len(ended),
            "wrong": sum(answers[stream_id] != len(query).to_bytes(2, "big")
                         + query.upper() * 3
                         for stream_id, query in asked.items())}


def on_data(function):
    def handler(peer, event):
        if type(event).__name__ == "StreamDataReceived":
            function(peer, event)

    return handler


# how a connection ends

async def refused(ends, options, count=1):
    # the client's end may be done before it is refused

    await asyncio.gather(*(ends.client() for _ in range(int(count))),
                         return_exceptions=True)

    codes = {(await peer.wait_terminated())[0]
             for peer in ends.peers if peer.is_client}

    if len(codes) != 1:
        raise Failure(f"not all for one reason: {codes}")

    return {"code": codes.pop()}


async def abandon(ends, options):
    begun = asyncio.create_task(ends.client())
    await asyncio.sleep(0)
    print("ready", flush=True)
    await relay_workers.line()

    client = next(peer for peer in ends.peers if peer.is_client)
    client.close()

    try:
        await begun

    except Failure:
        return {}

    raise Failure("it is connected")


async def close(ends, options, actor, code):
    pair = await ends.connect()
    closer, other = pair.sides(actor == "client")
    await answered(pair)

    closer.close(error_code=int(code), reason_phrase="done")
    code, frame, reason = await other.wait_terminated()

    return {"code": code, "frame": frame, "reason": reason}


async def vanish(ends, options):
    pair = await ends.connect()
    stream = await answered(pair, fin=False)

    pair.upstream.abandon()
    ends.peers.remove(pair.upstream)
    ends.transports.pop(0).abort()

    # the client is there all the time
    while pair.client.closed_by is None:
        pair.client._quic.send_ping(0)
        pair.client.flush()
        await asyncio.sleep(0.1)

    return {"code": pair.client.closed_by.error_code, "fin": stream.fin}


async def resume(ends, options, *names):
    resumed = []

    for name in names:
        if name == "+":
            print("ready", flush=True)
            await relay_workers.line()
            continue

        if name == "!":
            for ticket in ends.tickets.values():
                ticket.resumption_secret = ticket.resumption_secret[::-1]

            continue

        try:
            pair = await ends.connect(server_name=name)

        except Failure:
            resumed.append(None)
            ends.forget_accepted()
            continue

        await answered(pair)
        resumed.append(pair.upstream._quic.tls.session_resumed)
        pair.close()

    return {"resumed": resumed}


async def resume_alpn(ends, options, *offers):
    resumed, chosen = [], []

    for offer in offers:
        pair = await ends.connect(alpn_protocols=[offer])
        await answered(pair)
        resumed.append(pair.upstream._quic.tls.session_resumed)
        chosen.append(pair.client._quic.tls.alpn_negotiated)
        pair.close()

    return {"resumed": resumed, "chosen": chosen}


async def wait(ends, options):
    pair = await ends.connect()
    await answered(pair, fin=False)
    print("ready", flush=True)

    return {"code": [(await peer.wait_terminated())[0]
                     for peer in pair.sides(True)]}


async def rebind(ends, options, count, change=None):
    pair = await ends.connect()
    streams = [await answered(pair)]

    for _ in range(int(count)):
        await relay_workers.move(ends, pair.client, change is not None)
        stream = pair.client.open()
        there = pair.upstream.stream(stream.id)
        stream.send(SIZE, fin=True)
        await pair.upstream.until(lambda: there.fin, "what goes up")
        there.send(SIZE, fin=True)
        await pair.client.until(lambda: stream.fin, "what comes down")
        streams.append(stream)

    pair.close()

    return {"intact": all(stream.intact for stream in streams)}


async def answered(pair, fin=True):
    """One stream there and back; with |fin| both halves have ended."""
    stream = pair.client.open()
    there = pair.upstream.stream(stream.id)
    stream.send(100, fin=fin)
    await pair.upstream.until(lambda: there.received == 100, "a query")
    there.send(100, fin=fin)
    await pair.client.until(lambda: stream.received == 100, "an answer")

    return stream


# what breaks a rule, and what only is a lot

def varint(value):
    return (value | 0xc0 << 56).to_bytes(8, "big")


def flood_streams(pair):
    """Streams over the limit."""
    quic = pair.client._quic
    quic._remote_max_streams_bidi = 1 << 20

    for _ in range(2000):
        pair.client.open().send_bytes(b"x")


def flood_data(pair):
    """A stream over its credit."""
    stream = pair.client.open()
    stream.send_bytes(b"x")
    quic = pair.client._quic
    quic._streams[stream.id].max_stream_data_remote = 1 << 40
    quic._remote_max_data = 1 << 40
    pair.upstream.read_slowly(0, 1)
    stream.send_bytes(bytes(2 * 1024 * 1024))


def flood_datagram(pair):
    """A DATAGRAM frame over what was allowed."""
    pair.client._quic.send_raw(
        0x31, (0x4000 | 1100).to_bytes(2, "big") + bytes(1100))


def flood_frame(pair):
    """A frame of no known type."""
    pair.client._quic.send_raw(0x21, b"")


def flood_state(pair):
    """RESET_STREAM of a stream that only the server sends on."""
    pair.client._quic.send_raw(0x04, varint(3) + varint(0) + varint(0))


def flood_stop(pair):
    """STOP_SENDING of a stream that only the client sends on."""
    pair.client._quic.send_raw(0x05, varint(2) + varint(0))


def flood_final(pair):
    """A stream that shrinks after its end."""
    pair.client._quic.send_raw(0x0f, varint(0) + varint(9) + varint(1) + b"x")
    pair.client._quic.send_raw(0x04, varint(0) + varint(0) + varint(5))


def flood_ids(pair):
    """Connection IDs over the active limit."""
    for number in range(8, 40):
        pair.client._quic.send_raw(
            0x18, varint(number) + varint(0) + b"\x08"
            + number.to_bytes(8, "big") + number.to_bytes(16, "big"))


FLOODS = {name.removeprefix("flood_"): function
          for name, function in list(globals().items())
          if name.startswith("flood_")}


async def resets(ends, options, count):
    """As many streams as there is credit for, each reset at once."""
    count = int(count)
    pair, bystander = await ends.connect(), await ends.connect()
    working = asyncio.create_task(keep_working(bystander))
    memory = []

    for number in range(count):
        if number == count // 2:
            memory.append(rss(options.worker))

        stream = pair.client.open(unidirectional=True)
        stream.send_bytes(b"x" * 100)

        if number % 10 == 0:
            pair.client.flush()
            await asyncio.sleep(0)

        stream.end_reset(number)
        pair.client.forget(stream.id)
        await pair.client.until(
            lambda: len(pair.client._quic._streams) < CONCURRENT,
            "credit for streams")

    memory.append(rss(options.worker))
    ticks = await stop_working(working)
    pair.close()
    bystander.close()

    return {"rss": memory, "ticks": ticks,
            "closed": pair.client.closed_by is not None}


async def flood(ends, options, kind):
    pair, bystander = await ends.connect(), await ends.connect()
    working = asyncio.create_task(keep_working(bystander))

    FLOODS[kind](pair)
    pair.client.flush()
    code, frame, reason = await pair.client.wait_terminated()
    await pair.upstream.wait_terminated()

    ticks = await stop_working(working)
    bystander.close()

    return {"closed": code, "frame": frame, "reason": reason,
            "ticks": ticks, "upstream": pair.upstream.closed_by.error_code}


async def keep_working(pair):
    """Round trips on one stream after another; the count when cancelled."""
    ticks = 0

    while not keep_working.stop.is_set():
        stream = pair.client.open()
        there = pair.upstream.stream(stream.id)
        stream.send(500, fin=True)
        await pair.upstream.until(lambda: there.fin, "a bystander's query")
        there.send(500, fin=True)
        await pair.client.until(lambda: stream.fin, "a bystander's answer")

        if not (stream.intact and there.intact):
            raise Failure("a bystander's data is altered")

        pair.client.forget(stream.id)
        pair.upstream.forget(stream.id)
        ticks += 1

    return ticks


async def stop_working(task):
    """One more round trip, and the end."""
    keep_working.stop.set()
    ticks = await task
    keep_working.stop.clear()

    return ticks


SCENARIOS = {function.__name__: function
             for function in (matrix, ids, stall, short, datagrams, queries,
                              refused, abandon, resume, resume_alpn, close,
                              vanish, wait, rebind, flood, resets)}
SCENARIOS.update(relay_workers.SCENARIOS)


async def run(options, name, arguments):
    keep_working.stop = asyncio.Event()
    ends = await Ends.open(options)

    try:
        report = await SCENARIOS[name](ends, options, *arguments)
        report.update(ok=True, error=None)

    except Failure as exc:
        report = {"ok": False, "error": str(exc)}

    if options.marks:
        report["marks"] = [[len(peer._quic.acked), *peer._quic.marks]
                           for peer in ends.peers if peer.is_client]

    ends.close()

    return report


def parse_options(argv):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--connect", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--alpn", default="echo")
    parser.add_argument("--server-alpn")
    parser.add_argument("--server-name", default="localhost")
    parser.add_argument("--window", type=int, default=1024 * 1024)
    parser.add_argument("--max-datagram", type=int, default=1200)
    parser.add_argument("--trains", action="store_true")
    parser.add_argument("--marks", action="store_true")
    parser.add_argument("--worker", type=int, default=os.getpid())
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("argument", nargs="*")

    return parser.parse_args(argv)


def main(argv):
    options = parse_options(argv)

    # a close that a test wants is no fault to be written about
    logging.getLogger("quic").addHandler(logging.NullHandler())

    report = asyncio.run(run(options, options.scenario, options.argument))
    print(json.dumps(report), flush=True)

    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
