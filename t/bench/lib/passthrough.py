"""CPU time per relayed packet; see ../passthrough."""

import argparse
import re
import sys

import bench

MANY = min(20000, bench.FLOWS)


class Setup:
    """flows between clients and servers, through each of the relays"""

    def __init__(self, flows, servers=10, encrypted=True, gro=True, cids=1):
        self.flows = flows
        self.servers = servers
        self.encrypted = encrypted
        self.gro = gro
        self.cids = cids

    def name(self):
        parts = [count(self.flows, 'flow'), count(self.servers, 'server'),
                 'encrypted' if self.encrypted else 'plaintext']

        if not self.gro:
            parts.append('receivers without GRO')

        if self.cids > 1:
            parts.append(f'{self.cids} IDs each')

        return ', '.join(parts)


class Traffic:
    """what one end sends; trains of packets in succession on a flow"""

    def __init__(self, direction, gso=True, rate=0, train=20):
        self.direction = direction
        self.gso = gso
        self.rate = rate
        self.train = train

    def name(self):
        return (f'{self.direction}, {"GSO" if self.gso else "single"}'
                f' x {self.train}, '
                + (f'{self.rate // 1000}k/s' if self.rate else 'saturated'))


def count(n, what):
    return f'{n:,} {what}' + ('s' if n != 1 else '')


UP, DOWN = Traffic('up'), Traffic('down')
UP_SINGLE, DOWN_SINGLE = Traffic('up', gso=False), Traffic('down', gso=False)
UP_50K, DOWN_50K = Traffic('up', rate=50000), Traffic('down', rate=50000)

# a train of one: as an attacker's packets come, each from another address
ROUTED = Traffic('up', gso=False, rate=100000, train=1)
UNKNOWN = Traffic('unknown', gso=False, rate=100000, train=1)

SHORT = [
    (Setup(100), [UP, DOWN, UP_SINGLE, DOWN_SINGLE, UP_50K, DOWN_50K]),
    (Setup(2000), [UP, DOWN]),
    (Setup(1, servers=1), [UP, DOWN, UP_50K, DOWN_50K]),
    (Setup(MANY, servers=1000), [UP, DOWN, UP_50K, DOWN_50K, ROUTED,
                                 UNKNOWN]),
]

ALL = [UP, DOWN, UP_SINGLE, DOWN_SINGLE, UP_50K, DOWN_50K,
       Traffic('up', gso=False, rate=50000),
       Traffic('down', gso=False, rate=50000)]

TRAINS = [Traffic(direction, train=train)
          for train in (2, 5, 10, 40) for direction in ('up', 'down')]

FULL = (
    [(Setup(flows, servers, encrypted), ALL)
     for flows, servers in ((1, 1), (1, 10), (100, 10), (100, 1000),
                            (2000, 10), (2000, 1000))
     for encrypted in (True, False)]
    + [(Setup(MANY, servers, encrypted), ALL + [ROUTED, UNKNOWN])
       for servers in (10, 1000) for encrypted in (True, False)]
    + [(Setup(100), TRAINS),
       (Setup(100, gro=False), [UP, DOWN]),
       (Setup(100, cids=16), [UP, UP_SINGLE])])


class Bench:
    def __init__(self, options):
        self.options = options
        self.programs = bench.build('load', 'relay')
        self.results = {}
        self.table = bench.Table(
            'load', *(name + ' us' for name in options.relays),
            'stock/ours', 'ours/limit', 'spread', 'lost', 'stock k/s',
            'ours k/s')
        self.csv = bench.Csv('flows', 'servers', 'ids', 'gro', 'cids',
                             'direction', 'gso', 'train', 'rate', 'relay',
                             'rounds', 'us_median', 'us_min', 'us_max',
                             'packets', 'lost', 'packets_per_second')

        for name in options.relays:
            bench.namespace(name)

    def measure(self, setup, traffics):
        """all the traffics with one setup, A B A B"""

        options = self.options
        relays, loads = {}, {}

        for name in options.relays:
            relays[name] = bench.relay(name, setup.servers, setup.encrypted,
                                       self.programs, name)
            loads[name] = bench.Load(self.programs, name, setup.servers,
                                     setup.encrypted, cids=setup.cids,
                                     gro=setup.gro)
            answer = loads[name].command('open', setup.flows)

            if name == 'ours' and answer['misrouted']:
                raise bench.Failed(f'{answer["misrouted"]:.0f} flows at the'
                                   ' wrong server')

        bench.settle()
        runs = {}

        for number in range(-1, options.rounds):
            for traffic in traffics:
                for name in options.relays:
                    if traffic is UNKNOWN and name != 'ours':
                        continue

                    result = self.one(name, traffic, relays[name],
                                      loads[name], 1 if number < 0 else 4)

                    # the first round is for caches and branch predictors
                    if number >= 0:
                        runs.setdefault((traffic, name), []).append(result)

        for traffic in traffics:
            self.report(setup, traffic,
                        {name: runs[traffic, name] for name in options.relays
                         if (traffic, name) in runs})

        for name in options.relays:
            loads[name].stop()
            relays[name].stop()

    def one(self, name, traffic, relay, load, quarters):
        """(us per packet, packets, lost, packets per second)"""

        packets = self.options.packets * quarters // 4

        if traffic.rate:
            packets = min(packets, traffic.rate)

        # as much time for the fast ones
        if not traffic.rate and name != 'stock':
            packets *= 4

        if traffic is UNKNOWN:
            before = bench.received()

        cpu = relay.cpu()
        answer = load.command(traffic.direction, packets, traffic.rate,
                              traffic.train, int(traffic.gso),
                              0 if traffic.rate else relay.pid)
        cpu = relay.cpu() - cpu

        # nobody gets those: nginx itself has counted them
        got = (bench.received() - before if traffic is UNKNOWN
               else answer['received'])

        return (cpu / 1000 / max(got, 1), answer['sent'],
                answer['sent'] - got, got / answer['seconds'])

    def report(self, setup, traffic, runs):
        medians = {}

        if not runs:
            return

        for name, results in runs.items():
            values = us(results)
            medians[name] = bench.median(values)

            self.csv.add(setup.flows, setup.servers,
                         'encrypted' if setup.encrypted else 'plaintext',
                         int(setup.gro), setup.cids, traffic.direction,
                         int(traffic.gso), traffic.train, traffic.rate, name,
                         len(values), medians[name], min(values),
                         max(values),
                         int(sum(result[1] for result in results)),
                         int(sum(result[2] for result in results)),
                         bench.median([result[3] for result in results]))

        def speed(name):
            return (f'{bench.median([r[3] for r in runs[name]]) / 1000:.0f}'
                    if name in runs else '-')

        def lost(results):
            return (sum(result[2] for result in results)
                    / sum(result[1] for result in results))

        self.results[setup, traffic] = medians
        self.table.add(
            f'{setup.name()}: {traffic.name()}',
            *(f'{medians[name]:.3f}' if name in medians else '-'
              for name in self.options.relays),
            bench.ratio(medians.get('stock', 0), medians.get('ours', 0)),
            bench.ratio(medians.get('ours', 0), medians.get('limit', 0)),
            f'{max(bench.spread(us(r)) for r in runs.values()):.0%}',
            f'{max(map(lost, runs.values())):.1%}',
            speed('stock'), speed('ours'))

    def us(self, name, flows, traffic, servers=10):
        """a median that the summary needs, or None"""

        for (setup, other), medians in self.results.items():
            if (setup.flows == flows and setup.servers == servers
                    and setup.encrypted and setup.gro and setup.cids == 1
                    and other is traffic):
                return medians.get(name)

    def summary(self):
        """the ratios that were asked for, those measured, and what the limit
        would have in our place"""

        table = bench.Table('what', 'wanted', 'ours', 'limit')

        def add(what, wanted, over, under):
            def value(mine):
                return bench.ratio(*(self.us(mine if run[0] == 'ours'
                                             else run[0], *run[1:])
                                     for run in (over, under)))

            if value('ours') != '-':
                table.add(what, wanted, value('ours'), value('limit'))

        for number, traffic, factor in ((1, DOWN, '7'), (2, UP, '11')):
            for flows in (100, 2000):
                what = f'{number}. {traffic.direction}, GSO, {flows:,} flows'

                add(what + ': stock / ours', '>= ' + factor,
                    ('stock', flows, traffic), ('ours', flows, traffic))
                add(what + ': ours / limit', '<= 1.25',
                    ('ours', flows, traffic), ('limit', flows, traffic))

        for traffic, factor in ((UP_SINGLE, '2'), (DOWN_SINGLE, '1.5')):
            add(f'3. {traffic.direction}, senders without GSO: stock / ours',
                '>= ' + factor, ('stock', 100, traffic), ('ours', 100, traffic))

        for traffic in (UP_50K, DOWN_50K):
            add(f'4. {traffic.direction}, 50k packets/s: stock / ours',
                '>= 3', ('stock', 100, traffic), ('ours', 100, traffic))

        for traffic in (UP, DOWN, UP_50K, DOWN_50K):
            add(f'6. {traffic.direction}, '
                + ('50k/s' if traffic.rate else 'saturated')
                + f': {MANY:,} flows, 1,000 servers / 1, 1',
                '<= 1.5', ('ours', MANY, traffic, 1000),
                ('ours', 1, traffic, 1))

        add(f'6. unknown short header, {MANY:,} flows / routed packet',
            '<= 1', ('ours', MANY, UNKNOWN, 1000), ('ours', MANY, ROUTED, 1000))

        return table


def us(results):
    return [result[0] for result in results]


def arguments():
    parser = argparse.ArgumentParser(prog='t/bench/passthrough')
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--packets', type=int, default=None)
    parser.add_argument('--relays', default=','.join(bench.RELAYS))
    parser.add_argument('--only', default='')
    parser.add_argument('--train', type=int, default=None)
    options = parser.parse_args()

    options.relays = [name for name in bench.RELAYS
                      if name in options.relays.split(',')]
    options.packets = options.packets or (100000 if options.full else 40000)

    return options


def main():
    options = arguments()
    runs = Bench(options)

    print(bench.machine())
    print(f'{options.packets:,} packets a run, {options.rounds} rounds;'
          ' CPU time of the relay per packet at the receiver, medians')

    for traffic in ALL if options.train else []:
        traffic.train = options.train

    for setup, traffics in FULL if options.full else SHORT:
        chosen = [traffic for traffic in traffics
                  if re.search(options.only,
                               f'{setup.name()}: {traffic.name()}')]
        if chosen:
            print(f'{setup.name()} ...', file=sys.stderr, flush=True)
            runs.measure(setup, chosen)

    print()
    runs.table.show()

    summary = runs.summary()

    if summary.rows:
        print()
        summary.show()


if __name__ == '__main__':
    try:
        main()
    except bench.Failed as e:
        sys.exit(f'failed: {e}')
