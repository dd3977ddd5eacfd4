"""CPU time and memory of flows; see ../flows."""

import argparse
import sys

import bench

RELAYS = ('stock', 'ours')
SERVERS = 10

# each flow has a port towards the servers, of the 55,000 of a namespace
PORTS = 50000

IDLE = 100000

ALLOWED = 1536          # octets a flow of ours may take more


def one(name, flows, programs):
    """(flows per CPU second, octets per flow, octets in all)"""

    relay = bench.relay(name, SERVERS, True, programs, name,
                        connections=3 * IDLE)
    load = bench.Load(programs, name, SERVERS, True)

    # what the first flow takes is not each flow's
    load.command('open', 1)

    cpu, rss = relay.cpu(), relay.rss()
    load.command('open', flows)
    cpu, grown = relay.cpu() - cpu, relay.rss() - rss

    load.stop()
    relay.stop()

    return flows / (cpu / 1e9), grown / flows, rss


def main():
    parser = argparse.ArgumentParser(prog='t/bench/flows')
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--rounds', type=int, default=None)
    parser.add_argument('--flows', type=int, default=None)
    options = parser.parse_args()

    rounds = options.rounds or (9 if options.full else 5)
    wanted = options.flows or (IDLE if options.full else 20000)
    flows = min(wanted, bench.FLOWS, PORTS)

    print(bench.machine())
    print(f'{flows:,} flows, {rounds} rounds, medians')

    if flows < wanted:
        print(f'(not {wanted:,}: {bench.FILES:,} open files and {PORTS:,}'
              ' ports are the limit)')

    programs = bench.build('load')
    runs = {name: [] for name in RELAYS}

    for name in RELAYS:
        bench.namespace(name)

    for number in range(rounds):
        print(f'round {number + 1} ...', file=sys.stderr, flush=True)

        for name in RELAYS:
            runs[name].append(one(name, flows, programs))

    report(flows, runs)


def report(flows, runs):
    table = bench.Table('', 'new flows per CPU s', 'spread', 'octets a flow',
                        'spread', f'MiB with {IDLE:,}')
    csv = bench.Csv('relay', 'flows', 'rounds', 'per_cpu_second_median',
                    'per_cpu_second_min', 'per_cpu_second_max',
                    'octets_median', 'octets_min', 'octets_max')
    rates, octets = {}, {}

    for name, results in runs.items():
        rate, size, before = zip(*results)
        rates[name], octets[name] = bench.median(rate), bench.median(size)

        table.add(name, f'{rates[name]:,.0f}', f'{bench.spread(rate):.0%}',
                  f'{octets[name]:,.0f}', f'{bench.spread(size):.0%}',
                  f'{(bench.median(before) + IDLE * octets[name]) / 2**20:.0f}')
        csv.add(name, flows, len(results), rates[name], min(rate), max(rate),
                octets[name], min(size), max(size))

    print()
    table.show()

    table = bench.Table('what', 'wanted', 'measured')
    table.add('memory per flow: ours - stock', f'<= {ALLOWED}',
              f'{octets["ours"] - octets["stock"]:,.0f}')
    table.add('new flows per CPU second: ours / stock', '>= 1',
              bench.ratio(rates['ours'], rates['stock']))
    print()
    table.show()


if __name__ == '__main__':
    try:
        main()
    except bench.Failed as e:
        sys.exit(f'failed: {e}')
