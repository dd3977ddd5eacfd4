"""Transfers through relays of QUIC streams; see ../relay."""

import argparse
import os
import re
import shutil
import subprocess
import sys

import bench
import e2e

RELAYS = ('direct', 'terminator', 'relay', 'haproxy')
PORTS = {'terminator': 4000, 'relay': 4001, 'haproxy': 4002}

# the server's, and that of the relay between endpoints
H3_PORT, FLOOR_PORT, HTTP_PORT, BETWEEN_PORT = 443, 444, 8080, 4003

PARALLEL = 64
PART = 3                # MiB

CURL, NGTCP2 = 'curl, nginx', 'ngtcp2 at both ends'


def loads(megabytes):
    """{name: (file, streams, octets of each)}; without a file it is what the
    client sends"""

    return {f'1 x {megabytes} MB': ('large', 1, megabytes << 20),
            f'{PARALLEL} x {PART} MB': ('small', PARALLEL, PART << 20),
            f'1 x {megabytes} MB up': (None, 1, megabytes << 20),
            f'{PARALLEL} x {PART} MB up': (None, PARALLEL, PART << 20)}


def server(files, programs):
    """the HTTP/3 and HTTP/1.1 server, and that of the floor, which is
    returned"""

    folder = bench.path('www')
    os.mkdir(folder)

    for name, _, size in files.values():
        if name is None:
            continue

        with open(f'{folder}/{name}', 'wb') as f:
            f.write(os.urandom(size))

    certificate, key = bench.certificate()

    bench.nginx('server', '', namespace=e2e.SERVER, load='', http=f"""
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    root {folder};
    sendfile on;
    access_log off;

    server {{
        listen {e2e.SERVER_ADDRESS}:{H3_PORT} quic reuseport rcvbuf=4m
            sndbuf=4m;
        listen {e2e.SERVER_ADDRESS}:{HTTP_PORT};
        quic_gso on;
    }}
""")

    return bench.start([programs + '/endpoints', 'server', e2e.SERVER_ADDRESS,
                        str(FLOOR_PORT), certificate, key],
                       namespace=e2e.SERVER, stdout=subprocess.PIPE)


# the relays

def terminator():
    certificate, key = bench.certificate()

    # what the client does not take in time is not for the disk

    return bench.nginx('terminator', '', namespace=e2e.MIDDLE, load='',
                       http=f"""
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    access_log off;
    proxy_temp_path {bench.path('terminator')}/temp;
    proxy_max_temp_file_size 0;

    upstream servers {{
        server {e2e.SERVER_ADDRESS}:{HTTP_PORT};
        keepalive {PARALLEL};
    }}

    server {{
        listen {e2e.RELAY_ADDRESS}:{PORTS['terminator']} quic reuseport
            rcvbuf=4m sndbuf=4m;
        quic_gso on;

        location / {{
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_pass http://servers;
        }}
    }}
""")


def relay():
    certificate, key = bench.certificate()

    servers = ''.join(f"""
    server {{
        listen {e2e.RELAY_ADDRESS}:{port} udp reuseport rcvbuf=4m sndbuf=4m;
        quic_relay {e2e.SERVER_ADDRESS}:{target};
    }}""" for port, target in ((PORTS['relay'], H3_PORT),
                               (BETWEEN_PORT, FLOOR_PORT)))

    return bench.nginx('relay', f"""
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    quic_relay_ssl_name bench;
    quic_relay_ssl_trusted_certificate {certificate};
    {servers}
""", namespace=e2e.MIDDLE)


def haproxy():
    certificate, key = bench.certificate()

    with open(certificate) as f, open(key) as g:
        both = bench.write('both.pem', f.read() + g.read())

    conf = bench.write('haproxy.cfg', f"""
global
    nbthread 1
    limited-quic

defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s

frontend clients
    bind quic4@{e2e.RELAY_ADDRESS}:{PORTS['haproxy']} ssl crt {both} alpn h3
    default_backend servers

backend servers
    server one {e2e.SERVER_ADDRESS}:{HTTP_PORT}
""")

    return bench.Relay(bench.start(['haproxy', '-db', '-q', '-f', conf],
                                   namespace=e2e.MIDDLE))


def has_haproxy():
    return (shutil.which('haproxy') is not None
            and '+QUIC' in subprocess.run(['haproxy', '-vv'],
                                          capture_output=True,
                                          text=True).stdout)


# the transfers

def curl(address, load):
    """octets per second"""

    name, streams, size = load
    command = ['ip', 'netns', 'exec', e2e.CLIENT, 'curl', '--http3-only',
               '--silent', '--show-error', '--insecure', '--max-time', '60',
               '--parallel', '--parallel-max', str(PARALLEL),
               '--output', '/dev/null', '--write-out',
               '%{http_code} %{size_download} %{time_total}\n',
               f'https://{address}/{name}?[1-{streams}]']

    result = subprocess.run(command, capture_output=True, text=True)
    lines = [line.split() for line in result.stdout.splitlines()]

    if (result.returncode or len(lines) != streams
            or any(line[:2] != ['200', str(size)] for line in lines)):
        raise bench.Failed(f'curl, {address}: {result.stdout}'
                           f' {result.stderr}')

    return streams * size / max(float(line[2]) for line in lines)


def endpoints(address, load, programs, floor):
    """(CPU seconds of both, octets per second)"""

    name, streams, size = load
    way = [] if name else ['up']
    host, port = address.split(':')
    result = subprocess.run(['ip', 'netns', 'exec', e2e.CLIENT, programs
                             + '/endpoints', 'client', host, port,
                             str(streams), str(size), *way],
                            capture_output=True, text=True)

    if result.returncode:
        raise bench.Failed(f'endpoints, {address}: {result.stdout}'
                           f' {result.stderr}')

    client, other = [dict(re.findall(r'(\w+)=(\S+)', line))
                     for line in (result.stdout, floor.stdout.readline())]

    return (float(client['cpu']) + float(other['cpu']),
            streams * size / float(client['seconds']))


class Bench:
    def __init__(self, options):
        self.relays = options.relays
        self.rounds = options.rounds
        self.loads = loads(options.megabytes)
        self.programs = bench.build('endpoints')
        e2e.network()
        self.floor = server(self.loads, self.programs)
        start = {'terminator': terminator, 'relay': relay, 'haproxy': haproxy}
        self.processes = {name: start[name]() for name in self.relays
                          if name in start}

    def transfer(self, client, name, load):
        """(CPU s per GB of |name|, octets per second); "floor" is the account
        of the endpoints themselves"""

        process = self.processes.get(name)
        cpu = process.cpu() if process else 0

        if client == CURL:
            address = (f'{e2e.RELAY_ADDRESS}:{PORTS[name]}' if process
                       else f'{e2e.SERVER_ADDRESS}:{H3_PORT}')
            used, speed = 0, curl(address, load)
        else:
            address = (f'{e2e.RELAY_ADDRESS}:{BETWEEN_PORT}' if process
                       else f'{e2e.SERVER_ADDRESS}:{FLOOR_PORT}')
            used, speed = endpoints(address, load, self.programs, self.floor)

        if process:
            used = (process.cpu() - cpu) / 1e9

        return used / (load[1] * load[2]) * 1e9, speed

    def run(self):
        """{load: {(client, name): [(CPU s per GB, octets per second)]}}"""

        between = [(NGTCP2, 'floor')]

        if 'relay' in self.relays:
            between.append((NGTCP2, 'relay'))

        all_pairs = [(CURL, name) for name in self.relays] + between
        results = {}

        for name, load in self.loads.items():
            print(f'{name} ...', file=sys.stderr, flush=True)
            pairs = all_pairs if load[0] else between
            runs = results[name] = {pair: [] for pair in pairs}

            for pair in pairs:
                self.transfer(*pair, load)      # what is slow only once

            for _ in range(self.rounds):
                for pair in pairs:
                    runs[pair].append(self.transfer(*pair, load))

        return results


# what comes of it

def medians(runs):
    return [{pair: bench.median([value[i] for value in values])
             for pair, values in runs.items()} for i in (0, 1)]


def report(results):
    table = bench.Table('load', 'ends', 'through', 'CPU s/GB', 'spread',
                        'MB/s', 'spread', 'CPU: it/floor', 'it/terminator',
                        'MB/s: it/direct')
    csv = bench.Csv('load', 'ends', 'through', 'rounds', 'cpu_per_gb_median',
                    'cpu_per_gb_min', 'cpu_per_gb_max', 'speed_median',
                    'speed_min', 'speed_max')

    for load, runs in results.items():
        cpu, speed = medians(runs)

        for (ends, name), values in runs.items():
            cpus, speeds = zip(*values)
            pair = ends, name
            direct = ends, 'direct' if ends == CURL else 'floor'

            table.add(load, ends, name,
                      f'{cpu[pair]:.2f}' if cpu[pair] else '-',
                      f'{bench.spread(cpus):.0%}' if cpu[pair] else '-',
                      f'{speed[pair] / 1e6:.0f}',
                      f'{bench.spread(speeds):.0%}',
                      bench.ratio(cpu[pair], cpu[NGTCP2, 'floor']),
                      bench.ratio(cpu[pair], cpu.get((CURL, 'terminator'))),
                      bench.ratio(speed[pair], speed.get(direct)))
            csv.add(load, '"' + ends + '"', name, len(values), cpu[pair],
                    min(cpus), max(cpus), speed[pair], min(speeds),
                    max(speeds))

    table.show()


def summary(results):
    table = bench.Table('what', 'wanted', 'ours')

    for load, runs in results.items():
        cpu, _ = medians(runs)

        for ends in (CURL, NGTCP2):
            if (ends, 'relay') in cpu:
                table.add(f'{load}, {ends}: CPU, relay / floor', '<= 1.5',
                          bench.ratio(cpu[ends, 'relay'],
                                      cpu[NGTCP2, 'floor']))

    if table.rows:
        print()
        table.show()


def main():
    parser = argparse.ArgumentParser(prog='t/bench/relay')
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--rounds', type=int, default=None)
    parser.add_argument('--megabytes', type=int, default=200)
    parser.add_argument('--relays', default=','.join(RELAYS))
    options = parser.parse_args()

    options.rounds = options.rounds or (9 if options.full else 5)
    options.relays = [name for name in RELAYS
                      if name in options.relays.split(',')
                      and (name != 'haproxy' or has_haproxy())]

    if 'ngx_stream_quic_relay' not in os.environ['QUIC_LB_LOAD']:
        raise bench.Failed('the relay is not built: no ngtcp2')

    print(bench.machine())
    print(f'{options.rounds} rounds, medians')

    if 'haproxy' not in options.relays:
        print('haproxy: none with QUIC')

    results = Bench(options).run()

    print()
    report(results)
    summary(results)


if __name__ == '__main__':
    try:
        main()
    except bench.Failed as e:
        sys.exit(f'failed: {e}')
