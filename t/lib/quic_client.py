#!/usr/bin/env python3

"""QUIC and HTTP/3 test clients that move while they transfer.

    quic_client.py [OPTION...] --connect ADDR:PORT run STEP...
    quic_client.py [OPTION...] --connect ADDR:PORT hold

    --connections N      this many connections, in parallel (1)
    --shared-socket      all of them from one UDP socket
    --concurrency N      at most N handshakes at a time (8)
    --alpn NAME          h3 or echo (h3)
    --version V          QUIC version 1, 2, or upgrade (offer both, begin
                         with 1) (1)
    --sni NAME           server name (localhost)
    --cafile FILE        verify the certificate by it; else not verified
    --local ADDR         address to bind (the wildcard of the family)
    --cid-length N       length of the client's connection IDs, 0 to 20 (8)
    --dcid HEX           the first DCID, 8 to 20 octets (random, 8 octets)
    --timeout SEC        for a handshake and for each step (50)
    --rate N             octets per second of a transfer (unlimited)
    --interval SEC       of hold's ticks (0.2)

"run" makes every connection do the steps in order, prints one JSON report,
and exits 0 only when nothing failed.  Steps:

    get:PATH             HTTP/3 GET; /bytes/N is verified against the pattern
    post:N               HTTP/3 POST /echo of N octets; length and hash checked
    transfer:N[:ACTION...]   N octets, echoed (ALPN echo) or downloaded (h3),
                         each ACTION run in the middle, at equal distances
    datagrams:N          N DATAGRAM frames, echoed (ALPN echo); losing some is
                         reported, not a failure
    rebind               a new port, the same connection ID (NAT rebinding)
    migrate              a new port and a new connection ID
    change               a new connection ID, and an answer to it
    ping                 PING and its acknowledgment

"hold" keeps all connections busy, each with a tick per --interval: an echoed
stream chunk and DATAGRAM frame (ALPN echo), or a small download (h3).  When
all are up it prints {"event": "ready"}; then it takes commands, one a line,
and answers each by one JSON line:

    rebind, migrate, change
                         every connection, and wait until it works again
    open [N]             N (1) more connections, and wait until they are up
    progress [N]         wait until every connection has done N (3) more ticks
    status               at once
    stop                 finish the ticks, close, print the report, exit

SIGTERM and the end of standard input are "stop".  A connection that makes no
progress for --timeout seconds has failed.

Report: {"ok", "failed", "errors": [...], "connections": [{"id", "ok",
"error", "server", "server_end", "alpn", "version", "octets_sent",
"octets_received", "datagrams_sent", "datagrams_echoed", "datagrams_lost",
"ticks", "rebinds", "migrations", "changes", "dcids" (in order of use; the
first names the connection in the servers' logs), "locals" (addresses in order
of use)}]}

"errors" are faults of no single connection: a datagram for a connection ID
that no connection of the socket has, or from an address never asked.

Library: Fleet is many connections run alike, Hold a Fleet kept busy; one
connection is quic_connection.py's.
"""

import argparse
import asyncio
import json
import signal
import sys

from quic_connection import Connection, Endpoint, Failure, Options, VERSIONS
from quic_net import parse_address


class Fleet:
    """Many connections, run alike."""

    def __init__(self, options):
        self.options = options
        self.errors = []
        self.connections = []
        self.endpoint = None

    async def open(self):
        """Open all; a connection that fails has it in its report."""
        if self.options.shared_socket:
            self.endpoint = await Endpoint.open(
                self.options.remote, self.options.local, self.errors)

        await self.more(self.options.connections)

    async def more(self, count):
        """Open |count| connections; return them."""
        first = len(self.connections)
        added = [Connection(number, self.options, self.errors)
                 for number in range(first, first + count)]
        self.connections += added

        gate = asyncio.Semaphore(self.options.concurrency)
        await asyncio.gather(*(self.guard(
            connection, lambda connection: self._open(connection, gate))
            for connection in added))

        return added

    async def each(self, work):
        """Run |work| for every connection that has not failed yet."""
        await asyncio.gather(*(self.guard(connection, work)
                               for connection in self.alive()))

    def alive(self):
        return [connection for connection in self.connections
                if connection.report["error"] is None]

    async def close(self):
        await self.each(lambda connection: connection.finish())

        for connection in self.alive():
            connection.report["ok"] = True

        for connection in self.connections:
            connection.shut()

        if self.endpoint is not None:
            self.endpoint.close()

    def report(self):
        failed = len(self.connections) - len(self.alive())

        return {
            "ok": failed == 0 and not self.errors,
            "failed": failed,
            "errors": self.errors,
            "connections": [connection.report
                            for connection in self.connections],
        }

    async def _open(self, connection, gate):
        async with gate:
            await connection.open(self.endpoint)

    async def guard(self, connection, work):
        try:
            await work(connection)

        except Failure as exc:
            connection.failed(str(exc))

        except Exception as exc:        # a fault of the client itself
            connection.failed(f"{type(exc).__name__}: {exc}")


class Hold:
    """A Fleet kept busy until it is told to stop."""

    def __init__(self, options):
        self.fleet = Fleet(options)
        self.work = []                  # tasks
        self.stopping = asyncio.Event()
        self.commands = asyncio.Queue()

    async def run(self):
        await self.fleet.open()
        self.work = [asyncio.create_task(self.fleet.each(self._busy))]
        self._answer("ready")

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM,
                                self.commands.put_nowait, "stop")
        reader = asyncio.create_task(self._read())

        while (line := await self.commands.get()) != "stop":
            await self._command(line)

        reader.cancel()
        self.stopping.set()
        await asyncio.gather(*self.work)
        await self.fleet.close()

        return self.fleet.report()

    async def _busy(self, connection):
        while not self.stopping.is_set():
            await connection.tick()

            try:
                await asyncio.wait_for(self.stopping.wait(),
                                       self.fleet.options.interval)

            except asyncio.TimeoutError:
                pass

        await connection.wait_datagrams()

    async def _read(self):
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

        while line := await reader.readline():
            await self.commands.put(line.decode().strip())

        await self.commands.put("stop")

    async def _command(self, line):
        verb, _, argument = line.partition(" ")

        if verb in ("rebind", "migrate", "change"):
            await self.fleet.each(lambda connection: self._move(connection,
                                                                verb))

        elif verb == "open":
            added = await self.fleet.more(int(argument or 1))
            self.work += [asyncio.create_task(
                self.fleet.guard(connection, self._busy))
                for connection in added if connection in self.fleet.alive()]

        elif verb == "progress":
            ticks = int(argument or 3)
            await self.fleet.each(lambda connection: self._progress(connection,
                                                                    ticks))

        elif verb != "status":
            self._answer("unknown command", command=line)
            return

        self._answer(verb)

    async def _move(self, connection, verb):
        await getattr(connection, verb)()
        await self._progress(connection, 1)

    async def _progress(self, connection, ticks):
        goal = connection.report["ticks"] + ticks

        while connection.report["ticks"] < goal:
            if connection.report["error"] is not None:
                return

            connection.progress.clear()

            try:
                await asyncio.wait_for(connection.progress.wait(), 1)

            except asyncio.TimeoutError:
                pass                    # _busy() tells when it is too long

    def _answer(self, event, **fields):
        reports = [connection.report for connection in self.fleet.connections]
        failed = [report for report in reports if report["error"] is not None]

        print(json.dumps({
            "event": event, **fields,
            "alive": len(reports) - len(failed), "failed": len(failed),
            "ticks": sum(report["ticks"] for report in reports),
            "failures": [f"{report['id']}: {report['error']}"
                         for report in failed],
            "errors": self.fleet.errors,
        }), flush=True)


def parse_step(text):
    """(coroutine function of a Connection, moves in it) for one STEP."""
    return _step(text), text.startswith("transfer:") and text.count(":") > 1


def _step(text):
    verb, *arguments = text.split(":")

    if verb == "get" and arguments:
        path = ":".join(arguments)
        return lambda connection: connection.get(path)

    if verb == "post" and len(arguments) == 1:
        return lambda connection: connection.post(int(arguments[0]))

    if verb == "datagrams" and len(arguments) == 1:
        return lambda connection: connection.datagrams(int(arguments[0]))

    if verb == "transfer" and arguments \
            and set(arguments[1:]) <= {"rebind", "migrate", "change", "ping"} \
            and int(arguments[0]) > len(arguments):
        return lambda connection: connection.transfer(int(arguments[0]),
                                                      arguments[1:])

    if verb in ("rebind", "migrate", "change", "ping") and not arguments:
        return lambda connection: getattr(connection, verb)()

    raise ValueError("bad step: " + text)


async def run_steps(options, steps):
    fleet = Fleet(options)
    await fleet.open()

    async def work(connection):
        for step in steps:
            await step(connection)

    await fleet.each(work)
    await fleet.close()

    return fleet.report()


def parse_options(argv):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--connect", required=True, type=parse_address)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--shared-socket", action="store_true")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--alpn", choices=["h3", "echo"], default="h3")
    parser.add_argument("--version", choices=VERSIONS, default="1")
    parser.add_argument("--sni", default="localhost")
    parser.add_argument("--cafile")
    parser.add_argument("--local")
    parser.add_argument("--cid-length", type=int, default=8)
    parser.add_argument("--dcid", type=bytes.fromhex)
    parser.add_argument("--timeout", type=float, default=50.0)
    parser.add_argument("--rate", type=int)
    parser.add_argument("--interval", type=float, default=0.2)
    parser.add_argument("mode", choices=["run", "hold"])
    parser.add_argument("step", nargs="*", type=parse_step)

    found = vars(parser.parse_args(argv))
    remote, mode, steps = (found.pop(name)
                           for name in ("connect", "mode", "step"))
    moves = any(move for _, move in steps)

    return Options(remote, moves=moves, **found), mode, \
        [step for step, _ in steps]


def main(argv):
    options, mode, steps = parse_options(argv)
    report = asyncio.run(Hold(options).run() if mode == "hold"
                         else run_steps(options, steps))
    print(json.dumps(report), flush=True)

    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
