"""Requests to nginx's HTTP/3 with and without limits; see ../http3."""

import argparse
import os
import re
import subprocess
import sys
import time

import bench

MODULES = ('on', 'off', 'stock')
PORTS = {'on': 4430, 'off': 4431, 'stock': 4432}
ENDLESS_PORTS = {'on': 4440, 'off': 4441, 'stock': 4442}
UPSTREAM_PORT, SINK_PORT = 8080, 8081

PARALLEL = 20
SMALL, LARGE = 1000, 1000000

# connections that are not recycled
ENDLESS = 'GET, not recycled'

# name: (path, octets that are sent or 0, requests)
LOADS = {
    'GET': ('/', 0, 8000),
    ENDLESS: ('/', 0, 8000),
    'GET, proxied': ('/small', 0, 6000),
    'POST, proxied': ('/small', SMALL, 6000),
    'GET 1 MB, proxied': ('/large', 0, 100),
    'POST 1 MB, proxied': ('/put', LARGE, 30),
    'POST 1 MB, unbuffered': ('/unbuffered', LARGE, 30),
}

WARM_UP = 20            # the part of the requests that comes first, unmeasured

OFF = ('http3_max_requests 0; http3_body_window 0; http3_max_body_size 0;')


def load_modules(name):
    lines = os.environ['QUIC_LB_LOAD'].split('\n')

    return '\n'.join(line for line in lines
                     if name != 'stock' or 'ngx_http_v3_limits' not in line)


def upstream():
    """what the server passes requests to"""

    bench.write('large', 'x' * LARGE)
    bench.write('small', 'x' * SMALL)
    folder = os.path.dirname(bench.path('large'))

    return bench.nginx('upstream', '', cpu=bench.LOAD_CPU, http=f"""
    access_log off;
    keepalive_requests 1000000;
    client_max_body_size 0;
    client_body_buffer_size 2m;

    server {{
        listen 127.0.0.1:{UPSTREAM_PORT};
        root {folder};

        location /small {{
            return 200 {'x' * SMALL};
        }}

        # a body is read, as a whole, before the sink is asked for the answer
        location /put {{
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_pass http://127.0.0.1:{SINK_PORT};
        }}
    }}

    server {{
        listen 127.0.0.1:{SINK_PORT};
        return 200;
    }}
""")


def server(name, events):
    certificate, key = bench.certificate()
    folder = bench.path('server-' + name)
    endless = 'http3_max_requests 10000000;' if name == 'on' else ''
    os.makedirs(folder, exist_ok=True)

    return bench.nginx('server-' + name, '', load=load_modules(name),
                       cpu=bench.RELAY_CPU, connections=1024, events=events,
                       http=f"""
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    {OFF if name == 'off' else ''}

    upstream u {{
        server 127.0.0.1:{UPSTREAM_PORT};
        keepalive {PARALLEL};
    }}

    server {{
        listen 127.0.0.1:{PORTS[name]} quic reuseport rcvbuf=4m sndbuf=4m;
        proxy_http_version 1.1;
        proxy_set_header Connection "";

        location = / {{
            return 200 {'x' * SMALL};
        }}

        location / {{
            proxy_pass http://u;
        }}

        location = /unbuffered {{
            proxy_request_buffering off;
            proxy_pass http://u/put;
        }}
    }}

    server {{
        listen 127.0.0.1:{ENDLESS_PORTS[name]} quic reuseport rcvbuf=4m
            sndbuf=4m;
        keepalive_requests 10000000;
        {endless}

        location / {{
            return 200 {'x' * SMALL};
        }}
    }}
""")


def curl(port, path, size, count):
    """(requests answered, seconds)"""

    body = bench.path('large' if size == LARGE else 'small')
    command = ['curl', '--http3-only', '--insecure', '--silent', '--parallel',
               '--parallel-max', str(PARALLEL), '--max-time', '30',
               '--output', '/dev/null', '--write-out', '%{http_code}\n']
    command += ['--data-binary', '@' + body] if size else []
    command.append(f'https://127.0.0.1:{port}{path}?[1-{count}]')

    began = time.monotonic()
    process = bench.start(command, cpu=bench.LOAD_CPU, stdout=subprocess.PIPE)
    output = process.communicate()[0]
    seconds = time.monotonic() - began
    bench.end(process)

    return output.split().count('200'), seconds


def one(name, worker, load):
    """(CPU ns per request, requests per second, part of the time that the
    worker ran, requests lost)"""

    path, size, count = LOADS[load]
    port = (ENDLESS_PORTS if load == ENDLESS else PORTS)[name]

    curl(port, path, size, count // WARM_UP)

    cpu = worker.cpu()
    answered, seconds = curl(port, path, size, count)
    cpu = worker.cpu() - cpu

    if answered < count * 0.9:
        raise bench.Failed(f'{load}, {name}: {answered} of {count} requests'
                           ' were answered')

    return (cpu / answered, answered / seconds, cpu / 1e9 / seconds,
            count - answered)


def run(options):
    """{load: {module: [result of each round]}}"""

    results = {load: {name: [] for name in options.modules}
               for load in LOADS if re.search(options.only, load)}
    upstream()

    for number in range(options.rounds):
        print(f'round {number + 1} ...', file=sys.stderr, flush=True)
        workers = {name: server(name, options.events)
                   for name in options.modules}

        for n, (load, runs) in enumerate(results.items()):
            first = (number + n) % len(options.modules)

            for name in options.modules[first:] + options.modules[:first]:
                runs[name].append(one(name, workers[name], load))

        for worker in workers.values():
            worker.stop()

    return results


def ratio_to_stock(runs, name, field):
    """the median of the ratios within a round; None without stock"""

    if not runs.get('stock') or name == 'stock':
        return None

    return bench.median([it[field] / stock[field]
                         for it, stock in zip(runs[name], runs['stock'])])


def cell(ratio):
    return '-' if ratio is None else f'{ratio:.3f}'


def report(results):
    table = bench.Table('load', 'module', 'CPU us', 'spread', 'requests/s',
                        'spread', 'busy', 'lost', 'CPU: it/stock',
                        'rate: it/stock')
    csv = bench.Csv('load', 'module', 'rounds', 'cpu_us_median', 'cpu_us_min',
                    'cpu_us_max', 'rate_median', 'rate_min', 'rate_max',
                    'busy_median', 'lost', 'cpu_to_stock', 'rate_to_stock')

    for load, runs in results.items():
        for name, values in runs.items():
            cpus, rates, busy, lost = zip(*values)
            cpus = [cpu / 1e3 for cpu in cpus]
            ratios = [ratio_to_stock(runs, name, i) for i in (0, 1)]

            table.add(load, name, f'{bench.median(cpus):.1f}',
                      f'{bench.spread(cpus):.0%}',
                      f'{bench.median(rates):,.0f}',
                      f'{bench.spread(rates):.0%}',
                      f'{bench.median(busy):.0%}', sum(lost),
                      *map(cell, ratios))
            csv.add('"' + load + '"', name, len(values), bench.median(cpus),
                    min(cpus), max(cpus), bench.median(rates), min(rates),
                    max(rates), bench.median(busy), sum(lost),
                    *('' if r is None else r for r in ratios))

    table.show()


def summary(results):
    table = bench.Table('what', 'wanted', 'on', 'off')

    for load, runs in results.items():
        for what, i in (('CPU', 0), ('rate', 1)):
            ratios = [ratio_to_stock(runs, name, i) if name in runs else None
                      for name in ('on', 'off')]

            if any(ratios):
                table.add(f'{load}: {what}, it / stock', '0.97 to 1.03',
                          *map(cell, ratios))

    if table.rows:
        print()
        table.show()


def main():
    parser = argparse.ArgumentParser(prog='t/bench/http3')
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--rounds', type=int, default=None)
    parser.add_argument('--only', default='')
    parser.add_argument('--multi-accept', dest='events', action='store_const',
                        const='multi_accept on;', default='')
    parser.add_argument('--modules', default=','.join(MODULES))
    options = parser.parse_args()

    options.rounds = options.rounds or (31 if options.full else 15)
    options.modules = [name for name in MODULES
                       if name in options.modules.split(',')]

    print(bench.machine())
    print(f'{PARALLEL} requests at a time, {options.rounds} rounds, medians')

    results = run(options)

    print()
    report(results)
    summary(results)


if __name__ == '__main__':
    try:
        main()
    except bench.Failed as e:
        sys.exit(f'failed: {e}')
