"""CSV of passthrough to SVG; see ../plot."""

import csv
import sys
from xml.sax.saxutils import escape

COLORS = {'stock': '#b0b7c3', 'limit': '#7aa6d8', 'ours': '#1f5fa8'}
NAMES = {'stock': 'stock nginx, proxy_pass', 'limit': 'the limit',
         'ours': 'quic_passthrough'}

LEFT, WIDTH, RIGHT = 370, 420, 60
BAR, GAP, TOP = 11, 14, 64
FONT = 'font-family="sans-serif" font-size="12"'


def label(row):
    flows = int(row['flows'])
    rate = int(row['rate'])
    parts = [f'{flows:,} flow' + ('s' if flows != 1 else ''),
             row['direction'],
             ('GSO' if row['gso'] == '1' else 'single') + f' x {row["train"]}',
             f'{rate // 1000}k/s' if rate else 'saturated']

    if row['gro'] == '0':
        parts.append('no GRO')

    if row['cids'] != '1':
        parts.append(f'{row["cids"]} IDs')

    if row['servers'] not in ('1', '10'):
        parts.append(f'{int(row["servers"]):,} servers')

    return ', '.join(parts)


def read(file):
    """{label: {relay: row}}"""

    loads = {}

    for row in csv.DictReader(file):
        if row['ids'] == 'encrypted':
            loads.setdefault(label(row), {})[row['relay']] = row

    return loads


def text(x, y, words, more=''):
    return (f'<text x="{x}" y="{y}" fill="#222" {FONT}{more}>'
            f'{escape(words)}</text>')


def legend():
    out = [text(LEFT, 18, 'CPU time of the relay per packet, us')]
    x = LEFT

    for relay, color in COLORS.items():
        out.append(f'<rect x="{x}" y="30" width="11" height="11"'
                   f' fill="{color}"/>')
        out.append(text(x + 16, 40, NAMES[relay]))
        x += 28 + 7 * len(NAMES[relay])

    return out


def bars(y, rows, scale):
    out = []

    for relay, color in COLORS.items():
        if relay not in rows:
            continue

        median, low, high = (float(rows[relay]['us_' + name]) * scale
                             for name in ('median', 'min', 'max'))
        high = min(high, WIDTH)

        out.append(f'<rect x="{LEFT}" y="{y}" width="{median:.1f}"'
                   f' height="{BAR - 1}" fill="{color}"/>')
        out.append(f'<path d="M{LEFT + low:.1f} {y + BAR / 2 - .5}'
                   f'H{LEFT + high:.1f}" stroke="#222"/>')
        out.append(text(f'{LEFT + max(median, high) + 5:.1f}', y + BAR - 1,
                        f'{float(rows[relay]["us_median"]):.2f}'))
        y += BAR

    return out, y


def main():
    loads = read(sys.stdin)

    if not loads:
        sys.exit('plot: no CSV of t/bench/passthrough')

    longest = max(float(row['us_median']) for rows in loads.values()
                  for row in rows.values())
    out, y = legend(), TOP

    for name, rows in loads.items():
        middle = y + BAR * len(rows) / 2 + 4
        out.append(text(LEFT - 10, middle, name, ' text-anchor="end"'))
        more, y = bars(y, rows, WIDTH / longest)
        out += more
        y += GAP

    width = LEFT + WIDTH + RIGHT
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
          f' height="{y}" viewBox="0 0 {width} {y}">')
    print('<rect width="100%" height="100%" fill="#fff"/>')
    print(*out, sep='\n')
    print('</svg>')


if __name__ == '__main__':
    main()
