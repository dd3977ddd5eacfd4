#!/usr/bin/env python3

"""What the event logs of the test servers say about routing.

    quic_log.py LOG...

reads the logs of quic_server.py, of one or several processes, and prints one
JSON object:

    misrouted     datagrams that met a server that does not know their
                  connection ID: the events, at most 20 of them
    misrouted_count  how many there were
    connections   by original DCID: "server" (who completed the handshake, or
                  null), "servers" (all that saw it), "datagrams",
                  "addresses" (how many different ones the client had, as the
                  servers saw it), "path_changes" (how often a datagram came
                  from another one than the datagram before: a late datagram
                  from the old address counts, too)

A first flight, Initial or 0-RTT with the client's own DCID, is never
misrouted: no server knows that ID yet.  It may have been seen by several
servers, which "servers" tells.
"""

import json
import sys

SHOWN = 20


class Routes:

    def __init__(self, records):
        records = sorted(records, key=lambda record: record.get("time", 0))

        self.owners = {record["cid"]: record["connection"]
                       for record in records if record["event"] == "issued"}
        self.connections = {}
        self.misrouted = []
        self.peers = {}                 # (connection, server): last address
        self.addresses = set()          # (connection, server, address)

        for record in records:
            if record["event"] == "connected":
                found = self._connection(record["connection"])
                found["server"] = record["server"]

            elif record["event"] == "datagram":
                self._datagram(record)

    def report(self):
        return {
            "misrouted": self.misrouted[:SHOWN],
            "misrouted_count": len(self.misrouted),
            "connections": self.connections,
        }

    def _connection(self, name):
        return self.connections.setdefault(name, {
            "server": None, "servers": [], "datagrams": 0,
            "addresses": 0, "path_changes": 0,
        })

    def _datagram(self, record):
        dcid = record["dcid"]
        first = record["type"] in ("initial", "0rtt") \
            and dcid not in self.owners

        if record["known"] is None and not first:
            self.misrouted.append(record)

        name = dcid if first else self.owners.get(dcid)

        if name is None:
            return

        found = self._connection(name)
        found["datagrams"] += 1

        if record["server"] not in found["servers"]:
            found["servers"].append(record["server"])

        key = name, record["server"]
        address = (*key, record["peer"])

        if address not in self.addresses:
            self.addresses.add(address)
            found["addresses"] += 1

        if self.peers.setdefault(key, record["peer"]) != record["peer"]:
            self.peers[key] = record["peer"]
            found["path_changes"] += 1


def read_logs(paths):
    for path in paths:
        with open(path) as file:
            for line in file:
                # a server that was killed may leave half a line
                if line.endswith("\n"):
                    yield json.loads(line)


def main(paths):
    print(json.dumps(Routes(read_logs(paths)).report()))


if __name__ == "__main__":
    main(sys.argv[1:])
