"""What the benchmarks share: processes and their accounts, namespaces,
nginx's configuration, tables.

Each relay, with its load, has a network namespace of its own, so that ports
suffice and are the same for all.  Relays are pinned to the last processor,
loads to the first.
"""

import atexit
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEY = '8f95f09245765f80256934e50c66207f'
RELAY_PORT = 4000
SERVER_PORT = 4001
STATUS_PORT = 4002

CPUS = sorted(os.sched_getaffinity(0))
LOAD_CPU, RELAY_CPU = CPUS[0], CPUS[-1]

FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

# each has a socket; a worker leaves a sixteenth of its files to others, and
# has some open itself
FLOWS = FILES - FILES // 16 - 100

RELAYS = ('stock', 'limit', 'ours')

SETTLE = 1.0            # seconds

_started = []
_directory = tempfile.mkdtemp(prefix='bench-')


class Failed(Exception):
    pass


@atexit.register
def end_all():
    for process in reversed(_started):
        end(process)

    shutil.rmtree(_directory, ignore_errors=True)


def end(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    if process in _started:
        _started.remove(process)


def start(command, cpu=None, namespace=None, **options):
    if namespace:
        command = ['ip', 'netns', 'exec', namespace] + command

    if cpu is not None:
        command = ['taskset', '-c', str(cpu)] + command

    process = subprocess.Popen(command, text=True, bufsize=1, **options)
    _started.append(process)

    return process


def path(name):
    return os.path.join(_directory, name)


def write(name, text):
    with open(path(name), 'w') as f:
        f.write(text)

    return path(name)


def build(*programs):
    directory = os.path.join(os.path.dirname(os.environ['QUIC_LB_MODULES']),
                             'bench')
    targets = [f'{directory}/{program}' for program in programs]
    subprocess.run(['make', '-s', '-C', BENCH, 'BUILD=' + directory]
                   + targets, check=True, stdout=sys.stderr)

    return directory


def wait_for(what, condition, seconds=20):
    deadline = time.monotonic() + seconds

    while True:
        value = condition()

        if value:
            return value

        if time.monotonic() > deadline:
            raise Failed(what + ': not in time')

        time.sleep(0.002)


def namespace(name):
    subprocess.run(['ip', 'netns', 'add', name], check=True)
    subprocess.run(['ip', '-n', name, 'link', 'set', 'lo', 'up'], check=True)
    subprocess.run(['ip', 'netns', 'exec', name, 'sh', '-c',
                    'echo 10000 65535 '
                    '> /proc/sys/net/ipv4/ip_local_port_range'], check=True)


# relays

class Relay:
    """A relay's process, the one whose accounts are of interest."""

    def __init__(self, process, pid=None):
        self.process = process
        self.pid = pid or process.pid

    def cpu(self):
        """ns it has run, when it has nothing more to do"""

        last = -1

        while True:
            with open(f'/proc/{self.pid}/schedstat') as f:
                now = int(f.read().split()[0])

            if now == last:
                return now

            last = now
            time.sleep(0.003)

    def rss(self):
        """octets"""

        with open(f'/proc/{self.pid}/status') as f:
            return int(re.search(r'^VmRSS:\s+(\d+) kB', f.read(),
                                 re.M).group(1)) * 1024

    def stop(self):
        end(self.process)


def nginx(name, stream, namespace=None, http='', connections=65536, cpu=None,
          load=None, events='', **options):
    """nginx with one worker, as a Relay; |load|: load_module lines; |events|:
    more lines of that block"""

    if load is None:
        load = os.environ['QUIC_LB_LOAD']

    affinity = ''

    if cpu is not None:
        mask = ''.join('1' if n == cpu else '0'
                       for n in reversed(range(os.cpu_count())))
        affinity = f'worker_cpu_affinity {mask};'

    os.makedirs(path(name), exist_ok=True)
    conf = write(name + '.conf', f"""
{load}
daemon off;
user root;
pid {path(name)}/nginx.pid;
error_log {path(name)}/error.log warn;
worker_processes 1;
worker_rlimit_nofile {FILES};
{affinity}
events {{
    worker_connections {connections};
    {events}
}}
{'stream {' + stream + '}' if stream else ''}
{'http {' + http + '}' if http else ''}
""")

    process = start([os.environ['NGINX_BIN'], '-p', path(name), '-c', conf,
                     '-e', path(name) + '/error.log'],
                    namespace=namespace, stderr=open(path(name) + '/err', 'w'),
                    **options)

    def worker():
        if process.poll() is not None:
            raise Failed(f'nginx ({name}) has ended:\n' + error_log(name))

        with open(f'/proc/{process.pid}/task/{process.pid}/children') as f:
            for pid in f.read().split():
                with open(f'/proc/{pid}/cmdline') as g:
                    if g.read().startswith('nginx: worker process'):
                        return int(pid)

    return Relay(process, wait_for(f'nginx ({name})', worker))


def certificate():
    """files of a self-signed one and its key"""

    files = path('cert.pem'), path('key.pem')

    if not os.path.exists(files[0]):
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt',
                        'ec_paramgen_curve:prime256v1', '-nodes', '-subj',
                        '/CN=bench', '-days', '30', '-out', files[0],
                        '-keyout', files[1]], check=True,
                       stderr=subprocess.DEVNULL)

    return files


def error_log(name):
    with open(path(name) + '/err') as f:
        return f.read()


def server_address(n):
    """that of server n, as in bench.h"""

    return f'127.10.{n // 250}.{n % 250 + 1}'


def upstream(servers, port=SERVER_PORT):
    return '\n'.join(f'server {server_address(n)}:{port} max_fails=0;'
                     for n in range(servers))


def key_file():
    name = write('key', KEY + '\n')
    os.chmod(name, 0o600)

    return name


def quic_lb(servers, encrypted, port=SERVER_PORT):
    ids = '\n'.join(f'server_id {n + 1:06x} {server_address(n)}:{port};'
                    for n in range(servers))
    key = f'key_file {key_file()};' if encrypted else ''

    return f"""
        quic_lb 0 {{
            server_id_length 3;
            nonce_length 4;
            {key}
            {ids}
        }}"""


def relay(name, servers, encrypted, programs, namespace, **options):
    """one of RELAYS, in front of the servers of a load"""

    if name == 'limit':
        return Relay(start([programs + '/relay', str(RELAY_PORT),
                            str(SERVER_PORT), str(servers)],
                           cpu=RELAY_CPU, namespace=namespace))

    ours = name == 'ours'
    balancer = quic_lb(servers, encrypted) if ours else ''
    passing = ('quic_passthrough servers; quic_passthrough_timeout 10m;'
               if ours else 'proxy_pass servers; proxy_timeout 10m;')
    status = f"""
    server {{
        listen 127.0.0.1:{STATUS_PORT};
        return "$quic_passthrough_received";
    }}""" if ours else ''

    return nginx(name, f"""
    upstream servers {{
        zone servers 4m;
        {upstream(servers)}
        {balancer}
    }}

    server {{
        listen 127.0.0.1:{RELAY_PORT} udp reuseport rcvbuf=4m sndbuf=4m;
        {passing}
    }}
    {status}""", namespace=namespace, cpu=RELAY_CPU, **options)


def settle():
    """A worker of ours reads a new socket without UDP_GRO at first, since one
    of an older configuration may still read it, too."""

    time.sleep(SETTLE)


def received():
    """datagrams from clients that nginx with quic_passthrough has counted"""

    answer = subprocess.run(
        ['ip', 'netns', 'exec', 'ours', 'bash', '-c',
         f'cat < /dev/tcp/127.0.0.1/{STATUS_PORT}'],
        check=True, capture_output=True, text=True)

    return int(answer.stdout)


class Load:
    """the load generator, see load.c"""

    def __init__(self, programs, namespace, servers, encrypted, size=1200,
                 cids=1, gro=True):
        command = [programs + '/load', '--relay-port', str(RELAY_PORT),
                   '--server-port', str(SERVER_PORT),
                   '--servers', str(servers), '--size', str(size),
                   '--cids', str(cids)]
        command += ['--key', KEY] if encrypted else []
        command += [] if gro else ['--no-gro']

        self.process = start(command, cpu=LOAD_CPU, namespace=namespace,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    def _answer(self):
        line = self.process.stdout.readline()

        if not re.match('ready|ok', line):
            raise Failed('load: ' + (line.strip() or 'has ended'))

        return {k: float(v) for k, v in re.findall(r'(\w+)=(\S+)', line)}

    def command(self, *words):
        self.process.stdin.write(' '.join(map(str, words)) + '\n')

        return self._answer()

    def stop(self):
        self.process.stdin.close()
        end(self.process)


# tables

def median(values):
    return statistics.median(values)


def spread(values):
    """how far the values lie apart, in parts of the median"""

    return (max(values) - min(values)) / median(values)


def ratio(a, b):
    return f'{a / b:.2f}' if a and b else '-'


class Table:
    def __init__(self, *columns):
        self.columns = columns
        self.rows = []

    def add(self, *row):
        self.rows.append([str(cell) for cell in row])

    def show(self):
        rows = [list(self.columns)] + self.rows
        widths = [max(len(row[i]) for row in rows)
                  for i in range(len(self.columns))]

        for row in rows:
            print('  '.join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width)
                   for cell, width in zip(row[1:], widths[1:])]).rstrip())

        sys.stdout.flush()


class Csv:
    """what run has opened as descriptor 3"""

    def __init__(self, *columns):
        self.file = os.fdopen(3, 'w')
        self.add(*columns)

    def add(self, *row):
        print(*(f'{cell:.6g}' if isinstance(cell, float) else cell
                for cell in row), sep=',', file=self.file, flush=True)


def machine():
    """a line on where this was measured"""

    with open('/proc/cpuinfo') as f:
        model = re.search(r'model name\s*: (.*)', f.read())

    with open('/proc/loadavg') as f:
        load = f.read().split()[0]

    return (f'{time.strftime("%Y-%m-%d")}, {len(CPUS)} CPUs'
            f' ({model.group(1) if model else os.uname().machine}),'
            f' Linux {os.uname().release},'
            f' nginx {os.environ["NGINX_VERSION"]}'
            f' ({os.environ["NGINX_FLAVOR"]}), load {load}')
