"""Scenarios of relay_ends.py about connection IDs, workers and reload, and
about how connections begin.

    moves CONNECTIONS MOVES SIZE
                         each connection transfers SIZE octets both ways at
                         once, and the client goes to another port with a new
                         connection ID MOVES times meanwhile: "failed", one
                         line for each connection that does not get through
    hold CONNECTIONS [alone] [still]
                         writes "ready", works on each connection until a line
                         comes on standard input, moving all the time, unless
                         "still"; then on as many new ones, unless "alone";
                         streams that were open before then end: "failed",
                         "trips", "new" (those that failed), "reset" (had a
                         stateless reset)
    leave CONNECTIONS    writes "ready", and when a line has come all clients
                         close, one after the other
    given CONNECTIONS CONFIG_ID KEY|- SERVER_ID_LENGTH NONCE_LENGTH
                         what the client is given: "cids", "distinct",
                         "lengths", "first" octets, "server_ids", "nonces" (how
                         many differ), "wrong" (not of the configuration)
    tokens               a connection; those with the token of a NEW_TOKEN
                         frame, and with a spoiled one; one that goes on with
                         what another client got by a Retry: "retries" of the
                         first three, "code" of the close of the last one
    version VERSION...   a client that has these, in hexadecimal digits, the
                         first one for its first packet: "version"
    rekey                both ends in turn go to new keys, in mid-transfer
    cycles COUNT         connections that come, have one stream and go, ten at
                         a time: after each quarter of them "rss" of the worker
                         and "fds" that it has more than before
    preferred            goes to the preferred address in mid-transfer: "from",
                         how many datagrams come by which port after that
    reset                writes "ready", and when a line has come sends until
                         there is a stateless reset: "reset"
"""

import asyncio
import collections
import itertools
import os
import sys

from aioquic.tls import Epoch

import quic_lb
from relay_peer import Failure

# seconds
PATIENCE = 120


class Port(asyncio.DatagramProtocol):
    """One more port of a client."""

    def __init__(self, peer):
        self.peer = peer

    def datagram_received(self, data, address):
        self.peer.datagram_received(data, address)

    def error_received(self, exc):
        pass


async def move(ends, peer, renew=True):
    """To another port, with another connection ID if |renew|.

    At once: if only one of the two changes, and the other while the path is
    validated, ngtcp2 to 1.22 counts a connection ID of the client's twice.
    """
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Port(peer), sock=ends.socket())
    ends.transports.append(transport)

    if renew:
        # those on their way are given by the relay as others are retired
        await peer.until(lambda: peer._quic._peer_cid_available,
                         "a connection ID to move with")
        peer._quic.change_connection_id()

    peer._transport = transport
    peer.flush()


class Reset(Failure):
    """A stateless reset, which aioquic does not know (RFC 9000, 10.3)."""


def watch_resets(client):
    """Note in |client.was_reset| that one has come."""
    received = client.datagram_received
    tokens = set()
    client.was_reset = False

    def look(data, address):
        tokens.update(cid.stateless_reset_token for cid in peer_cids(client))

        if len(data) >= 21 and data[-16:] in tokens:
            client.was_reset = True
            client.changed.set()

        received(data, address)

    client.datagram_received = look


async def until(client, peer, condition, what):
    """As the peer's, but the client is heard of all the time.

    Only packets are answered by a reset, and who just waits sends none.
    """
    for seconds in range(PATIENCE):
        try:
            await peer.until(lambda: client.was_reset or client.closed_by
                             or condition(), what, 1)
            break

        except Failure:
            if seconds == PATIENCE - 1:
                raise

            client._quic.send_ping(0)
            client.flush()

    if client.was_reset:
        raise Reset(f"stateless reset instead of {what}")

    if client.closed_by:
        raise Failure(f"{client.closed_by} instead of {what}")


async def gather_faults(works):
    """What went wrong, a line each."""
    results = await asyncio.gather(*works, return_exceptions=True)
    faults = [result for result in results
              if isinstance(result, BaseException)]

    for fault in faults:
        if not isinstance(fault, Failure):
            raise fault

    return [str(fault) for fault in faults]


# migration in mid-transfer

async def moves(ends, options, connections, count, size):
    pairs = [await ends.connect() for _ in range(int(connections))]
    failed = await gather_faults(
        travel(ends, pair, int(count), int(size)) for pair in pairs)

    for pair in pairs:
        pair.close()

    return {"failed": failed}


async def travel(ends, pair, count, size):
    up = pair.client.open()
    there = pair.upstream.stream(up.id)

    up.send(size, fin=True)
    await pair.upstream.until(lambda: there.received, "a stream")
    there.send(size, fin=True)

    for number in range(count):
        part = size * (number + 1) // (count + 1)

        await pair.client.until(
            lambda: up.received >= part and there.received >= part,
            f"part {number}, {up.received} down, {there.received} up")
        await move(ends, pair.client)

    await pair.upstream.until(lambda: there.fin,
                              f"what goes up, {there.received}")
    await pair.client.until(lambda: up.fin, f"what comes down, {up.received}")

    if not (up.intact and there.intact):
        raise Failure("altered")

    if (up.received, there.received) != (size, size):
        raise Failure("an end too early")


# a worker that quits

async def hold(ends, options, connections, *how):
    pairs = [await ends.connect() for _ in range(int(connections))]
    early = []

    for pair in pairs:
        watch_resets(pair.client)
        stream = pair.client.open()
        stream.send(1000)
        await pair.upstream.until(
            lambda: pair.upstream.stream(stream.id).received == 1000,
            "a stream")
        early.append(stream)

    stop = asyncio.Event()
    trips = [0] * len(pairs)
    works = [work(ends, pair, stop, trips, number, "still" not in how)
             for number, pair in enumerate(pairs)]
    working = asyncio.ensure_future(gather_faults(works))

    print("ready", flush=True)
    await line()
    new = await fresh(ends, 0 if "alone" in how else len(pairs))
    stop.set()

    failed = await working
    failed += await gather_faults(
        finish(pair, stream) for pair, stream in zip(pairs, early)
        if not pair.client.was_reset)

    for pair in pairs:
        pair.close()

    return {"failed": failed, "new": new, "trips": min(trips),
            "reset": sum(pair.client.was_reset for pair in pairs)}


async def leave(ends, options, connections):
    pairs = [await ends.connect() for _ in range(int(connections))]

    print("ready", flush=True)
    await line()

    for pair in pairs:
        pair.close()
        await asyncio.sleep(0.01)

    return {}


async def fresh(ends, count):
    """New clients, who move, too."""
    try:
        pairs = [await ends.connect() for _ in range(count)]

    except (Failure, asyncio.TimeoutError) as exc:
        return [f"no new connection: {exc}"]

    failed = await gather_faults(travel(ends, pair, 2, 20000)
                                 for pair in pairs)

    for pair in pairs:
        pair.close()

    return failed


async def work(ends, pair, stop, trips, number, moving):
    client, upstream = pair.client, pair.upstream

    for turn in itertools.count():
        if stop.is_set() and turn > 0:
            return

        if moving and turn % 5 == 4:
            await move(ends, client)

        stream = client.open()
        there = upstream.stream(stream.id)
        stream.send(5000, fin=True)
        await until(client, upstream, lambda: there.fin, "a query")
        there.send(5000, fin=True)
        await until(client, client, lambda: stream.fin, "an answer")

        if not (stream.intact and there.intact):
            raise Failure("altered")

        client.forget(stream.id)
        upstream.forget(stream.id)
        trips[number] += 1
        await asyncio.sleep(0.01)


async def finish(pair, stream):
    client, upstream = pair.client, pair.upstream
    there = upstream.stream(stream.id)
    stream.send(1000, fin=True)
    there.send(2000, fin=True)
    await until(client, upstream, lambda: there.fin,
                "the end of an old stream")
    await until(client, client, lambda: stream.fin, "the other end of one")

    if not (stream.intact and there.intact) \
            or (stream.received, there.received) != (2000, 2000):
        raise Failure("an old stream is not whole")


async def line():
    return await asyncio.get_running_loop().run_in_executor(
        None, sys.stdin.readline)


# connection IDs

def peer_cids(peer):
    quic = peer._quic
    return [quic._peer_cid, *quic._peer_cid_available]


async def given(ends, options, connections, config_id, key, server_id_length,
              nonce_length):
    config = quic_lb.Config(int(config_id), int(server_id_length),
                            int(nonce_length), quic_lb.parse_key(key))
    cids, server_ids, nonces, wrong = [], set(), set(), 0

    for _ in range(int(connections)):
        pair = await ends.connect()
        await pair.client.until(lambda: len(peer_cids(pair.client)) > 4,
                                "connection IDs")
        cids += [cid.cid for cid in peer_cids(pair.client)]
        pair.close()

    for cid in cids:
        try:
            server_id, nonce = config.decode(cid)
            server_ids.add(server_id.hex())
            nonces.add(nonce)

        except ValueError:
            wrong += 1

    return {"cids": len(cids), "distinct": len(set(cids)),
            "lengths": sorted({len(cid) for cid in cids}),
            "first": sorted({cid[0] for cid in cids}),
            "server_ids": sorted(server_ids), "nonces": len(nonces),
            "wrong": wrong}


# a worker that has crashed

async def reset(ends, options):
    pair = await ends.connect()
    client = pair.client
    await client.until(lambda: len(peer_cids(client)) > 4, "connection IDs")
    watch_resets(client)

    print("ready", flush=True)
    await line()

    for _ in range(100):
        client.open().send(100, fin=True)

        try:
            await client.until(lambda: client.was_reset, "a reset", 0.2)
            break

        except Failure:
            continue

    return {"reset": client.was_reset}


# how a connection begins

async def tokens(ends, options):
    pair = await ends.connect()
    quic = pair.client._quic
    retries = [quic._retry_count]
    retry = {"token": quic._peer_token,
             "destination": quic._retry_source_connection_id}
    await pair.client.until(lambda: quic.new_tokens, "NEW_TOKEN")
    token = quic.new_tokens[0]
    pair.close()

    for token in (token, token[:-1] + bytes([token[-1] ^ 1])):
        pair = await ends.connect(token=token)
        retries.append(pair.client._quic._retry_count)
        pair.close()

    try:
        await ends.client(**retry)
        code = None

    except Failure:
        code, _, _ = await ends.peers[-1].wait_terminated()

    return {"retries": retries, "code": code}


async def version(ends, options, *versions):
    numbers = [int(number, 16) for number in versions]
    pair = await ends.connect(original_version=numbers[0],
                              supported_versions=numbers)
    stream = pair.client.open()
    stream.send(1000, fin=True)
    await pair.upstream.until(lambda: pair.upstream.stream(stream.id).fin,
                              "a stream")
    number = pair.client._quic._version
    pair.close()

    return {"version": f"{number:x}"}


async def rekey(ends, options):
    pair = await ends.connect()
    up = pair.client.open()
    there = pair.upstream.stream(up.id)
    up.send(100000, fin=True)
    await pair.upstream.until(lambda: there.received, "a stream")
    there.send(100000, fin=True)

    # once each: another one soon after is against RFC 9001, 6.5
    for part, peer in ((30000, pair.client), (60000, pair.upstream)):
        await pair.client.until(
            lambda: min(up.received, there.received) > part, "a part")
        peer._quic.request_key_update()
        peer.flush()

    await pair.upstream.until(lambda: there.fin, "what goes up")
    await pair.client.until(lambda: up.fin, "what comes down")
    pair.close()

    if not (up.intact and there.intact):
        raise Failure("altered")

    return {"phases": [peer._quic._cryptos[Epoch.ONE_RTT].key_phase
                       for peer in pair.sides(True)]}


# of all cycles: what is told of each
QUARTERS = 4


async def cycles(ends, options, count):
    count, parallel = int(count), 10
    folder = f"/proc/{options.worker}/fd"
    idle = len(os.listdir(folder))
    rss, fds = [], []

    async def come():
        client = await ends.client()
        client.open().send(500, fin=True)

        return client

    async def seen():
        upstream = await asyncio.wait_for(ends.accepted.get(), PATIENCE)
        await upstream.until(lambda: upstream.stream(0).fin, "a stream")

    # which connection is whose upstream is not told: so none goes before the
    # streams of all ten are there

    async def cycle():
        clients = await asyncio.gather(*(come() for _ in range(parallel)))
        await asyncio.gather(*(seen() for _ in range(parallel)))

        for client in clients:
            client.close()

    async def record():
        # those that are closing say so again for a while
        for _ in range(PATIENCE * 10):
            if len(os.listdir(folder)) <= idle:
                break

            await asyncio.sleep(0.1)

        rss.append(memory(options.worker))
        fds.append(len(os.listdir(folder)))

    for _ in range(QUARTERS):
        for _ in range(max(count // parallel // QUARTERS, 1)):
            await cycle()
            forget_all(ends)

        await record()

    # those of an earlier scenario may still have been closing at first
    idle = min(idle, *fds)

    return {"rss": rss, "fds": [count - idle for count in fds]}


def memory(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status
                    if line.startswith("VmRSS:"))


def forget_all(ends):
    """Connections that are over, and the ports of clients."""
    for peer in ends.peers:
        peer.abandon()

    ends.peers.clear()

    for transport in ends.transports[1:]:
        transport.abort()

    del ends.transports[1:]


async def preferred(ends, options):
    pair = await ends.connect()
    client, upstream = pair.client, pair.upstream
    received, ports = client.datagram_received, []

    def look(data, address):
        ports.append(address[1])
        # aioquic would follow what is still on its way, back to the first one
        received(data, client._quic._network_paths[0].addr)

    stream = client.open()
    there = upstream.stream(stream.id)
    stream.send(200000, fin=True)
    await upstream.until(lambda: there.received > 50000, "a stream")

    client.datagram_received = look
    client.go_to_preferred()
    await upstream.until(lambda: there.fin, "the rest of it")

    ports.clear()
    there.send(200000, fin=True)
    await client.until(lambda: stream.fin, "an answer")
    pair.close()

    if not (stream.intact and there.intact):
        raise Failure("altered")

    return {"from": collections.Counter(ports)}


SCENARIOS = {function.__name__: function
             for function in (moves, hold, leave, given, reset, tokens,
                              version, preferred, rekey, cycles)}
