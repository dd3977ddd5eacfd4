"""HTTP/3 transfers through relays; see ../e2e."""

import argparse
import os
import subprocess
import sys

import bench

CLIENT, MIDDLE, SERVER = 'client', 'middle', 'server'

# (namespace, link, address) of both ends
LINKS = (((CLIENT, 'to-relay', '10.1.0.1'), (MIDDLE, 'to-client', '10.1.0.2')),
         ((MIDDLE, 'to-server', '10.2.0.1'), (SERVER, 'to-relay', '10.2.0.2')))

RELAY_ADDRESS, SERVER_ADDRESS = '10.1.0.2', '10.2.0.2'
PORTS = {'stock': 4000, 'limit': 4001, 'ours': 4002}
GSO_PORT, PLAIN_PORT, SINK_PORT = 443, 444, 8080
RELAYS = ('direct',) + bench.RELAYS

TRANSFERS = (('down', GSO_PORT), ('down', PLAIN_PORT), ('up', GSO_PORT))
NAMES = {('down', GSO_PORT): 'down, quic_gso on',
         ('down', PLAIN_PORT): 'down, quic_gso off',
         ('up', GSO_PORT): 'up'}


def sh(*words):
    subprocess.run(words, check=True)


def network():
    for name in (CLIENT, MIDDLE, SERVER):
        bench.namespace(name)

    for one, other in LINKS:
        sh('ip', '-n', one[0], 'link', 'add', one[1], 'mtu', '1500', 'type',
           'veth', 'peer', 'name', other[1], 'mtu', '1500', 'netns', other[0])

        for namespace, link, address in (one, other):
            sh('ip', '-n', namespace, 'address', 'add', address + '/24', 'dev',
               link)
            sh('ip', '-n', namespace, 'link', 'set', link, 'up')

    sh('ip', '-n', CLIENT, 'route', 'add', 'default', 'via', LINKS[0][1][2])
    sh('ip', '-n', SERVER, 'route', 'add', 'default', 'via', LINKS[1][0][2])
    sh('ip', 'netns', 'exec', MIDDLE, 'sh', '-c',
       'echo 1 > /proc/sys/net/ipv4/ip_forward')


def server(megabytes):
    """the HTTP/3 server; its folder"""

    folder = bench.path('www')
    os.mkdir(folder)

    with open(folder + '/file', 'wb') as f:
        for _ in range(megabytes):
            f.write(os.urandom(1 << 20))

    certificate, key = bench.certificate()

    servers = ''.join(f"""
    server {{
        listen {SERVER_ADDRESS}:{port} quic reuseport rcvbuf=4m sndbuf=4m;
        quic_gso {gso};

        location /put {{
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_pass http://127.0.0.1:{SINK_PORT};
        }}
    }}""" for port, gso in ((GSO_PORT, 'on'), (PLAIN_PORT, 'off')))

    bench.nginx('server', '', namespace=SERVER, load='',
                http=f"""
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    root {folder};
    client_max_body_size 0;
    client_body_temp_path {folder}/temp;
    access_log off;
    {servers}

    # what is put is read, as a whole, before this is asked for the answer
    server {{
        listen 127.0.0.1:{SINK_PORT};
        return 204;
    }}
""")

    return folder


def relay(name, port, programs):
    listen = PORTS[name]

    if name == 'limit':
        return bench.Relay(bench.start(
            [programs + '/relay', '--to', SERVER_ADDRESS, str(listen),
             str(port)], namespace=MIDDLE))

    ours = name == 'ours'
    balancer = f"""
        quic_lb 0 {{
            server_id_length 3;
            nonce_length 4;
            key_file {bench.key_file()};
            server_id 000001 {SERVER_ADDRESS}:{port};
        }}""" if ours else ''

    return bench.nginx(name, f"""
    upstream servers {{
        zone servers 1m;
        server {SERVER_ADDRESS}:{port};
        {balancer}
    }}

    server {{
        listen {RELAY_ADDRESS}:{listen} udp reuseport rcvbuf=4m sndbuf=4m;
        {'quic_passthrough' if ours else 'proxy_pass'} servers;
    }}""", namespace=MIDDLE)


def transfer(direction, address, folder):
    """octets per second"""

    url = f'https://{address}/'
    command = ['ip', 'netns', 'exec', CLIENT, 'curl', '--http3-only',
               '--silent', '--show-error', '--insecure', '--max-time', '60']

    if direction == 'down':
        command += ['--output', '/dev/null', '--write-out',
                    '%{http_code} %{size_download} %{speed_download}',
                    url + 'file']
    else:
        command += ['--output', '/dev/null', '--write-out',
                    '%{http_code} %{size_upload} %{speed_upload}',
                    '--upload-file', folder + '/file', url + 'put']

    result = subprocess.run(command, capture_output=True, text=True)
    size = os.path.getsize(folder + '/file')
    code, got, speed = (result.stdout.split() + ['', '', ''])[:3]

    if (result.returncode or code not in ('200', '204')
            or float(got) != size):
        raise bench.Failed(f'curl, {direction}, {address}: {result.stdout}'
                           f' {result.stderr}')

    return float(speed)


def run(options):
    """{(direction, port): {relay: [(CPU s, octets per second)]}}"""

    programs = bench.build('relay')
    network()
    folder = server(options.megabytes)
    results = {}

    for direction, port in TRANSFERS:
        print(f'{NAMES[direction, port]} ...', file=sys.stderr, flush=True)
        relays = {name: relay(name, port, programs)
                  for name in options.relays if name != 'direct'}
        runs = results[direction, port] = {name: [] for name in options.relays}
        bench.settle()

        for _ in range(options.rounds):
            for name in options.relays:
                if name == 'direct':
                    cpu = 0
                    address = f'{SERVER_ADDRESS}:{port}'
                else:
                    cpu = relays[name].cpu()
                    address = f'{RELAY_ADDRESS}:{PORTS[name]}'

                speed = transfer(direction, address, folder)

                if name != 'direct':
                    cpu = relays[name].cpu() - cpu

                runs[name].append((cpu / 1e9, speed))

        for process in relays.values():
            process.stop()

    return results


def report(results):
    table = bench.Table('transfer', 'relay', 'CPU s', 'spread', 'MB/s',
                        'spread', 'CPU: stock/it', 'it/limit',
                        'MB/s: it/stock', 'it/direct')
    csv = bench.Csv('direction', 'quic_gso', 'relay', 'rounds', 'cpu_median',
                    'cpu_min', 'cpu_max', 'speed_median', 'speed_min',
                    'speed_max')

    for (direction, port), runs in results.items():
        cpu, speed = medians(runs)

        for name, values in runs.items():
            cpus, speeds = zip(*values)

            table.add(NAMES[direction, port], name,
                      f'{cpu[name]:.3f}' if cpu[name] else '-',
                      f'{bench.spread(cpus):.0%}' if cpu[name] else '-',
                      f'{speed[name] / 1e6:.0f}',
                      f'{bench.spread(speeds):.0%}',
                      bench.ratio(cpu.get('stock'), cpu[name]),
                      bench.ratio(cpu[name], cpu.get('limit')),
                      bench.ratio(speed[name], speed.get('stock')),
                      bench.ratio(speed[name], speed.get('direct')))
            csv.add(direction, 'off' if port == PLAIN_PORT else 'on', name,
                    len(values), cpu[name], min(cpus), max(cpus),
                    speed[name], min(speeds), max(speeds))

    table.show()


def medians(runs):
    return [{name: bench.median([value[i] for value in values])
             for name, values in runs.items()} for i in (0, 1)]


def summary(results):
    table = bench.Table('what', 'wanted', 'ours', 'limit')

    for transfer, factor in zip(TRANSFERS, ('4', '1.4', '1.7')):
        cpu, speed = medians(results[transfer])

        if 'stock' not in cpu or 'ours' not in cpu:
            continue

        table.add(f'5. {NAMES[transfer]}: CPU, stock / ours', '>= ' + factor,
                  bench.ratio(cpu['stock'], cpu['ours']),
                  bench.ratio(cpu['stock'], cpu.get('limit')))

        if transfer == TRANSFERS[0]:
            table.add(f'5. {NAMES[transfer]}: throughput, ours / stock',
                      '>= 1.6', bench.ratio(speed['ours'], speed['stock']),
                      bench.ratio(speed.get('limit'), speed['stock']))

    if table.rows:
        print()
        table.show()


def main():
    parser = argparse.ArgumentParser(prog='t/bench/e2e')
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--rounds', type=int, default=None)
    parser.add_argument('--megabytes', type=int, default=200)
    parser.add_argument('--relays', default=','.join(RELAYS))
    options = parser.parse_args()

    options.rounds = options.rounds or (9 if options.full else 5)
    options.relays = [name for name in RELAYS
                      if name in options.relays.split(',')]

    print(bench.machine())
    print(f'{options.megabytes} MiB a transfer, {options.rounds} rounds,'
          ' medians')

    results = run(options)

    print()
    report(results)
    summary(results)


if __name__ == '__main__':
    try:
        main()
    except bench.Failed as e:
        sys.exit(f'failed: {e}')
