#!/usr/bin/env python3

"""A path with a delay: passes UDP datagrams on, each of them after a while.

    delay.py LISTEN_PORT PORT SECONDS

On 127.0.0.1; both ways, and each client address has a socket of its own to
PORT.  Prints "ready" when it listens; ends with its standard input.
"""

import asyncio
import sys


class Back(asyncio.DatagramProtocol):
    """What one client sends to, and gets its answers by."""

    def __init__(self, path, client):
        self.path = path
        self.client = client

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.path.later(self.path.transport.sendto, data, self.client)


class Path(asyncio.DatagramProtocol):
    def __init__(self, port, delay):
        self.loop = asyncio.get_running_loop()
        self.port = port
        self.delay = delay
        self.backs = {}

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, client):
        if client not in self.backs:
            self.backs[client] = self.loop.create_task(self.open(client))

        self.later(self.forward, data, client)

    async def open(self, client):
        transport, _ = await self.loop.create_datagram_endpoint(
            lambda: Back(self, client), remote_addr=("127.0.0.1", self.port))
        return transport

    def forward(self, data, client):
        self.backs[client].add_done_callback(
            lambda back: back.result().sendto(data))

    def later(self, function, *arguments):
        self.loop.call_later(self.delay, function, *arguments)


async def main(listen, port, seconds):
    loop = asyncio.get_running_loop()

    await loop.create_datagram_endpoint(
        lambda: Path(int(port), float(seconds)),
        local_addr=("127.0.0.1", int(listen)))

    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main(*sys.argv[1:]))
