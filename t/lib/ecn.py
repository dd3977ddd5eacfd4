#!/usr/bin/env python3

"""UDP sockets that set and read the TOS octet, for passthrough_ecn.t.

    ecn.py HOST...

binds a backend to each HOST, prints "ready PORT..." and takes commands, one a
line, each answered by one JSON line.  TOS is a list of numbers, 0 to 255:

    client HOST PORT     a new client socket
    ask HEX COUNT TOS... the client sends, for each TOS, COUNT datagrams of
                         these octets; more than one of them as one train
    seen N COUNT         TOS of COUNT datagrams that backend N receives
    answer N HEX COUNT TOS...   backend N sends so to where the last one is from
    got COUNT            TOS of COUNT datagrams that the client receives

A list that is shorter than COUNT is all that has come in PATIENCE seconds.
End of standard input ends it.
"""

import json
import socket
import sys

PATIENCE = 30

# Linux; not in Python's socket module
SOL_UDP = 17
UDP_SEGMENT = 103


class TosSocket:

    def __init__(self, host):
        ipv6 = ":" in host
        self.socket = socket.socket(
            socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
        self.peer = None

        if ipv6:
            self.level = socket.IPPROTO_IPV6
            self.option = socket.IPV6_TCLASS
            receive = socket.IPV6_RECVTCLASS

        else:
            self.level = socket.IPPROTO_IP
            self.option = socket.IP_TOS
            receive = socket.IP_RECVTOS

        self.socket.setsockopt(self.level, receive, 1)
        self.socket.settimeout(PATIENCE)

    def send(self, octets, count, tos):
        for value in tos:
            self.socket.setsockopt(self.level, self.option, value)
            self.socket.setsockopt(SOL_UDP, UDP_SEGMENT,
                                   len(octets) if count > 1 else 0)
            self.socket.sendto(octets * count, self.peer)

        return True

    def receive(self, count):
        found = []

        try:
            while len(found) < count:
                _, control, _, self.peer = self.socket.recvmsg(65536, 256)
                found += [data[0] for level, kind, data in control
                          if (level, kind) == (self.level, self.option)]

        except TimeoutError:
            pass

        return found


class Commands:

    def __init__(self, hosts):
        self.backends = [TosSocket(host) for host in hosts]
        self.own = None

        for host, backend in zip(hosts, self.backends):
            backend.socket.bind((host, 0))

    def ports(self):
        return [backend.socket.getsockname()[1] for backend in self.backends]

    def client(self, host, port):
        self.own = TosSocket(host)
        self.own.peer = host, int(port)
        return True

    def ask(self, octets, count, *tos):
        return self.own.send(bytes.fromhex(octets), int(count), map(int, tos))

    def seen(self, number, count):
        return self.backends[int(number)].receive(int(count))

    def answer(self, number, octets, count, *tos):
        return self.backends[int(number)].send(
            bytes.fromhex(octets), int(count), map(int, tos))

    def got(self, count):
        return self.own.receive(int(count))


def main(hosts):
    commands = Commands(hosts)
    print("ready", *commands.ports(), flush=True)

    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(getattr(commands, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
