"""Line figures as SVG, readable on their own: one picture, its legend on the right. Standard library only; used by the scripts beside it."""
import math
from html import escape

# Okabe and Ito's colours, which stay apart for colour-blind readers; a second round is dashed.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00"]
LEFT, RIGHT, TOP, BOTTOM = 74, 214, 56, 58


def nice_step(span, count):
    """1, 2 or 5 times a power of ten, giving about `count` steps over a span."""
    raw = span / count
    ten = 10 ** math.floor(math.log10(raw))
    return ten * next(f for f, most in ((1, 1.5), (2, 3.5), (5, 7.5), (10, math.inf)) if raw / ten < most)


def ticks(lo, hi, log, marks):
    if marks:
        return [m for m in marks if lo <= m <= hi]
    if log:
        return [10 ** i for i in range(math.ceil(math.log10(lo) - 1e-9), math.floor(math.log10(hi) + 1e-9) + 1)]
    step = nice_step(hi - lo, 6)
    return [i * step for i in range(math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) + 1)]


def short(v):
    if 1e4 <= abs(v) < 1e7 and v == int(v):
        return f"{v:.0f}"
    return f"{0.0 if abs(v) < 1e-12 else v:.4g}".replace("e-0", "e-")


def write(path, lines, title, x_label, y_label, log_x=False, x_marks=None, y_range=None, note="", upright=(), dots=False, width=920, height=470):
    """lines: [(name, [x], [y])], or (name, x, y, colour), or (name, x, y, colour, dashed). upright: [(x, text)] are vertical marks. What lies beyond
    y_range is cut off."""
    points = [(x, y) for line in lines for x, y in zip(line[1], line[2]) if math.isfinite(y)]
    if not points:
        raise ValueError(f"{path}: nothing to draw")
    at = math.log10 if log_x else float
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    y0, y1 = y_range or (min(y for _, y in points), max(y for _, y in points))
    if not y_range:
        margin = 0.06 * (y1 - y0) or 0.5
        y0, y1 = y0 - margin, y1 + margin
    if x1 == x0:
        x0, x1 = x0 * 0.9 - (not log_x), x1 * 1.1 + (not log_x)
    right = max([RIGHT, *(50 + 7 * len(line[0]) for line in lines)])  # what the longest name in the legend takes
    inner, tall = width - LEFT - right, height - TOP - BOTTOM

    def px(x):
        return LEFT + inner * (at(x) - at(x0)) / (at(x1) - at(x0))

    def py(y):
        return TOP + tall * (y1 - y) / (y1 - y0)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{inner}" height="{tall}"/></clipPath>',
           f'<text x="{LEFT}" y="24" font-size="17">{escape(title)}</text>',
           f'<text x="{LEFT}" y="43" fill="#555">{escape(note)}</text>']
    for y in ticks(y0, y1, False, None):
        strong = abs(y) < 1e-12 and y0 < 0 < y1
        out.append(f'<path d="M{LEFT} {py(y):.1f}H{LEFT + inner}" stroke="{"#999" if strong else "#e4e4e4"}"/>'
                   f'<text x="{LEFT - 8}" y="{py(y) + 4.5:.1f}" text-anchor="end">{short(y)}</text>')
    for x in ticks(x0, x1, log_x, x_marks):
        out.append(f'<path d="M{px(x):.1f} {TOP + tall}v5" stroke="#777"/>'
                   f'<text x="{px(x):.1f}" y="{TOP + tall + 20}" text-anchor="middle">{short(x)}</text>')
    for x, text in upright:
        if x0 < x < x1:
            out.append(f'<path d="M{px(x):.1f} {TOP}v{tall}" stroke="#777" stroke-dasharray="3 4"/>'
                       + ('<text x="{:.1f}" y="{}" text-anchor="{}" fill="#555" font-size="12">{}</text>'.format(
                           *((px(x) - 5, TOP + 14, "end") if px(x) - 5 - 6.2 * len(text) > LEFT else (px(x) + 5, TOP + 14, "start")), escape(text))))
    out.append(f'<path d="M{LEFT} {TOP}v{tall}h{inner}" fill="none" stroke="#777"/>'
               f'<text x="{LEFT + inner / 2}" y="{height - 14}" text-anchor="middle">{escape(x_label)}</text>'
               f'<text transform="translate(20 {TOP + tall / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    for i, line in enumerate(lines):
        name, xs, ys = line[:3]
        colour = line[3] if len(line) > 3 else COLOURS[i % len(COLOURS)]
        dashed = line[4] if len(line) > 4 else len(line) == 3 and i >= len(COLOURS)
        style = f'stroke="{colour}"' + (' stroke-dasharray="7 4"' if dashed else "")
        path_of, up = [], True
        for x, y in zip(xs, ys):
            if math.isfinite(y):
                path_of.append(f"{'M' if up else 'L'}{px(x):.1f} {min(max(py(y), -height), 2 * height):.1f}")
            up = not math.isfinite(y)
        out.append(f'<path clip-path="url(#inside)" fill="none" stroke-width="2" stroke-linejoin="round" {style} d="{"".join(path_of)}"/>')
        if dots:
            out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in zip(xs, ys)
                    if math.isfinite(y) and y0 <= y <= y1]
        row = TOP + 12 + 21 * i
        out.append(f'<path d="M{LEFT + inner + 14} {row}h24" stroke-width="3" {style}/>'
                   f'<text x="{LEFT + inner + 44}" y="{row + 4.5}">{escape(name)}</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n</svg>\n")
