"""Times of functions in src/core; see ../cid and ../maglev."""

import argparse
import subprocess
import sys

import bench


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program', choices=('core_cid', 'core_maglev'))
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--rounds', type=int, default=None)
    options = parser.parse_args()

    rounds = options.rounds or (25 if options.full else 5)
    programs = bench.build(options.program)

    output = subprocess.run(
        ['taskset', '-c', str(bench.RELAY_CPU),
         f'{programs}/{options.program}', str(rounds)],
        check=True, stdout=subprocess.PIPE, text=True).stdout

    values, units = {}, {}

    for line in output.splitlines():
        _, name, value, unit = line.split('\t')
        values.setdefault(name, []).append(float(value))
        units[name] = unit

    table = bench.Table('what', 'median', '', 'spread')
    csv = bench.Csv('what', 'unit', 'rounds', 'median', 'min', 'max')

    for name, results in values.items():
        median = bench.median(results)
        table.add(name, f'{median:.4g}', units[name],
                  f'{bench.spread(results):.0%}')
        csv.add('"' + name + '"', units[name], len(results), median,
                min(results), max(results))

    print(bench.machine())
    print(f'CPU time, {rounds} rounds')
    print()
    table.show()


if __name__ == '__main__':
    try:
        main()
    except (bench.Failed, subprocess.CalledProcessError) as e:
        sys.exit(f'failed: {e}')
