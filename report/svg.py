"""What a report draws: harmless text and small SVG charts. Knows nothing of runs; no imports but Python's.

A chart is 380 units wide, so that its letters stay readable on a phone; colours are CSS classes (t0.. warm, s0.. cool, m0..
neutral, `base` grey), so that light and dark are one SVG. Every mark's <title> is its tooltip; the page's script only shows it
sooner.
"""
import html
import math
import unicodedata
from dataclasses import dataclass, field

W, H, LEFT, TOP, BOTTOM = 380, 220, 40, 14, 30
LABEL, LETTER = 18, 6.3             # characters of a curve's name at most, and units that one of them takes
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}     # control, format (marks of direction), lone surrogates, separators


@dataclass
class Line:
    """One curve: points (x, y), y None where nothing was measured; band (x, low, high); born, died: mark its
    ends."""
    name: str
    points: list
    color: str
    style: str = ""                 # CSS classes: bold, thin, d1, d2 (dashes)
    band: list = field(default_factory=list)
    born: bool = False
    died: bool = False
    label: bool = True
    origins: list = field(default_factory=list)     # points (x, y) of its parents, whence fine dots lead here
    word: str = ""                  # written above the chart where it begins
    last_word: str = ""             # written where it ends, if it died
    tip: str = ""                   # told on hover; without it, the name


def visible(value: str) -> str:
    """Text whose control characters, marks of direction and lone surrogates show as their codes; lines and tabs stay."""
    plain = lambda c: c in "\n\t" or unicodedata.category(c) not in HIDDEN
    return "".join(c if plain(c) else f"\u27e8U+{ord(c):04X}\u27e9" for c in value)


def text(value, limit: int = 4000) -> str:
    """Any text made harmless for HTML, in or out of attributes; what is invisible or turns the line around shows as its code."""
    value = str(value)
    cut = f" [... {len(value) - limit} more characters]" if len(value) > limit else ""
    return html.escape(visible(value[:limit])) + cut


def brief(name, limit: int = LABEL) -> str:
    """A name in at most `limit` visible characters; the middle gives way, since long names differ at their ends."""
    name = str(name)
    seen = visible(name if len(name) <= 2 * limit else name[:limit] + name[-limit:])
    return seen if len(seen) <= limit else f"{seen[:limit // 2]}…{seen[len(seen) - (limit - 1) // 2:]}"


def short(v: float) -> str:
    """A number in a few characters: 1.2M, 34k, 5,582, 0.38."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(v) >= size:
            return f"{v / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}" if abs(v) >= 1 else f"{v:.2f}".rstrip("0").rstrip(".") or "0"


def place(v: float) -> str:
    """A coordinate, to a tenth."""
    return f"{v:.1f}".removesuffix(".0")


def ticks(low: float, high: float, n: int = 5, whole: bool = False) -> list[float]:
    """About n round numbers from low to high: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / n
    unit = 10 ** math.floor(math.log10(raw))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= raw * 0.999)
    step = max(1, round(step)) if whole else step
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def binned(points: list, x0: int, width: int) -> dict[int, tuple]:
    """Bin number -> means of x and of each column, over the points that have a value in every column."""
    groups = {}
    for point in points:
        if None not in point:
            groups.setdefault((point[0] - x0) // width, []).append(point)
    return {b: tuple(sum(column) / len(column) for column in zip(*group)) for b, group in sorted(groups.items())}


class Frame:
    """Axes of a chart: maps data to the drawing."""

    def __init__(self, xs, low: float, high: float, right: float = 12, width: int = W, height: int = H):
        self.x0, self.x1, self.low, self.high, self.right = min(xs), max(xs), low, high, width - right
        self.top, self.bottom, self.height = TOP, height - BOTTOM, height
        if not high > low:
            self.low, self.high = low - 0.5, high + 0.5

    def x(self, v: float) -> float:
        """Horizontal place of v; the middle if there is one x only."""
        return LEFT + (self.right - LEFT) * ((v - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5)

    def y(self, v: float) -> float:
        """Vertical place of v."""
        return self.top + (self.bottom - self.top) * (1 - (v - self.low) / (self.high - self.low))

    def axes(self) -> str:
        """Grid, numbers and the word `step`."""
        out = []
        for v in ticks(self.low, self.high):
            y = place(self.y(v))
            out.append(f'<path class="ax" d="M{LEFT} {y}H{place(self.right)}"/>'
                       f'<text class="num" x="{LEFT - 5}" y="{y}" dy=".35em">{short(v)}</text>')
        for v in ticks(self.x0, self.x1, 5, whole=True):
            out.append(f'<text class="tick" x="{place(self.x(v))}" y="{self.height - 15}">{short(v)}</text>')
        middle = place((LEFT + self.right) / 2)
        return "".join(out) + f'<text class="axis" x="{middle}" y="{self.height - 3}">step</text>'


def svg(body: str, name: str, width: int = W, height: int = H, style: str = "") -> str:
    """The drawing's outer element; `name` is what a screen reader says."""
    how = f' style="{style}"' if style else ""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(name)}"{how}>{body}</svg>'


def spread(wanted: list[tuple[float, str, str]], top: float = TOP, bottom: float = H - BOTTOM,
           gap: float = 11.5) -> list[tuple[float, str, str]]:
    """Labels (y, name, colour) moved apart so that none covers another; at most as many as fit from top to
    bottom."""
    wanted = sorted(wanted)
    room = int((bottom - top) / gap) + 1
    wanted = wanted if len(wanted) <= room else [wanted[i * (len(wanted) - 1) // (room - 1)] for i in range(room)]
    out, last = [], -math.inf
    for y, name, color in wanted:
        last = max(y, last + gap)
        out.append([last, name, color])
    limit = bottom + 2
    for label in reversed(out):
        label[0] = min(label[0], limit)
        limit = label[0] - gap
    return [tuple(label) for label in out]


def hits(frame: Frame, rows: dict[int, tuple[str, list[str]]], x0: int, width: int) -> str:
    """Invisible strips, one a bin, whose <title> tells every value there."""
    step = max(3.0, (frame.right - LEFT) / max(1, (frame.x1 - frame.x0) / width + 1))
    out = []
    for b, (head, lines) in rows.items():
        more = [f"... {len(lines) - 24} more"] if len(lines) > 24 else []
        words = text("\n".join([head, *lines[:24], *more]))
        middle = frame.x(min(frame.x1, x0 + b * width + (width - 1) / 2))
        box = f'x="{place(middle - step / 2)}" y="{frame.top}" width="{place(step)}"'
        box += f' height="{frame.bottom - frame.top}"'
        out.append(f'<rect class="hit" {box}><title>{words}</title></rect>')
    return "".join(out)


def words_above(lines: list[Line], starts: list[float], frame: Frame, most: int = 4) -> str:
    """The words of lines that begin at these x, in rows above the chart, which makes room for them; what does
    not fit into `most` rows is left to the tooltips."""
    ends, placed = [], []                                   # of each row, where its last word ends
    for x, line in sorted(zip(starts, lines), key=lambda pair: pair[0]):
        word = brief(line.word, 40)
        long = LETTER * 0.86 * len(word)
        left = max(LEFT - 20, min(x - 4, frame.right + 12 - long))
        row = next((i for i, end in enumerate(ends) if end < left), len(ends))
        if word and row < most:
            ends[row:row + 1] = [left + long + 6]
            placed.append((row, x, left, word, line.color))
    frame.top += 12 * len(ends)
    guides, words = "", ""                                  # words come last: no guide runs through one
    for row, x, left, word, color in placed:
        y = 9 + 12 * row
        guides += f'<path class="guide" d="M{place(x)} {y + 4}V{place(frame.bottom)}"/>'
        words += f'<text class="end word {color}" x="{place(left)}" y="{y}">{text(word)}</text>'
    return guides + words


def curve(line: Line, frame: Frame, points: list, band: list, dots: bool) -> str:
    """One line with its band, dots if asked for, marks of birth and death, dots from its parents."""
    at = [(frame.x(x), frame.y(y)) for x, y in points]
    r = 3 if "bold" in line.style else 2.2
    marks = [f'<circle cx="{place(x)}" cy="{place(y)}" r="{r}"/>' for x, y in at] if dots or len(at) == 1 else []
    if line.born:
        marks.append(f'<circle class="birth" cx="{place(at[0][0])}" cy="{place(at[0][1])}" r="3.4"/>')
    if line.died:
        marks.append(f'<path class="death" d="M{place(at[-1][0] - 3)} {place(at[-1][1] - 3)}l6 6m0 -6l-6 6"/>')
    for x, y in line.origins:
        way = f"M{place(frame.x(x))} {place(frame.y(y))}L{place(at[0][0])} {place(at[0][1])}"
        marks.append(f'<path class="descent" d="{way}"/>')
    d = "M" + "L".join(f"{place(x)} {place(y)}" for x, y in at)
    edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
    area = [f"{place(frame.x(x))} {place(frame.y(y))}" for x, y in edge]
    shade = f'<path class="band" d="M{"L".join(area)}Z"/>' if band else ""
    stroke = f'{shade}<path class="stroke" d="{d}"/>{"".join(marks)}'
    tip = f"<title>{text(line.tip or line.name)}</title>"
    return f'<g class="line {line.color} {line.style}">{tip}{stroke}</g>'


def line_chart(name: str, lines: list[Line], share: bool = False, zero: bool = True, cap: int = 100, rules=(),
               ceiling: float = math.inf, width: int = W, height: int = H) -> str:
    """Curves over steps. share: the axis is 0 to 1; zero: it holds 0; cap: points a curve at most (means of neighbours);
    rules: (value, label) horizontal dashes; ceiling: how far bands may stretch the axis; width, height: of
    the drawing. "" if there is nothing to draw."""
    lines = [line for line in lines if any(None not in p for p in line.points)]
    if not lines:
        return ""
    cap = max(24, min(cap, 6000 // len(lines)))
    xs = [x for line in lines for x, *_ in line.points]
    x0 = min(xs)
    merge = max(1, -(-(max(xs) - x0 + 1) // cap))          # steps that one point is the mean of
    data = [binned(line.points, x0, merge) for line in lines]
    bands = [list(binned(line.band, x0, merge).values()) for line in lines]
    values = [y for points in data for _, y in points.values()] + [v for v, _ in rules]
    low, high = min(values), max(values)
    edges = [min(max(v, low - ceiling), high + ceiling) for band in bands for _, *pair in band for v in pair]
    low, high = min([low, *edges, *([0] if zero else [])]), max([high, *edges, *([0] if zero else [])])
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    low, high = (0, 1) if share else (low - pad * (low != 0 or not zero), high + pad)
    last = max(x for points in data for x, _ in points.values())
    ends = [(list(points.values())[-1], line) for points, line in zip(data, lines) if line.label and not line.died]
    labels = [(y, brief(line.name), line.color) for (_, y), line in ends] + [(v, brief(label), "base") for v, label in rules]
    margin = 14 + LETTER * max([len(label) for _, label, _ in labels], default=0)
    frame = Frame([x0, last], low, high, margin, width, height)
    above = words_above(lines, [frame.x(next(iter(points.values()))[0]) for points in data], frame)
    rows = {}
    for b in sorted({b for points in data for b in points}):
        first = x0 + b * merge
        told = sorted(((points[b][1], line.name) for points, line in zip(data, lines) if b in points), reverse=True)
        steps = f"step {first}" + (f" to {first + merge - 1}" if merge > 1 else "")
        rows[b] = (steps, [f"{n}  {short(y)}" for y, n in told])
    body = frame.axes() + above + hits(frame, rows, x0, merge)
    body += "".join(f'<path class="rule" d="M{LEFT} {place(frame.y(v))}H{place(frame.right)}"/>' for v, _ in rules)
    clip = [[(x, max(low, a), min(high, b)) for x, a, b in band] for band in bands]
    for line, points, band in zip(lines, data, clip):
        sparse = len(points) <= 24 and (len(rows) <= 24 or max(points) - min(points) > 2 * len(points))     # probes, short runs
        body += curve(line, frame, list(points.values()), band, sparse and "thin" not in line.style)
    for line, points in zip(lines, data):                   # above the curves: none runs through a name
        if line.died and line.last_word:
            x, y = list(points.values())[-1]
            where = f'x="{place(frame.x(x) + 2)}" y="{place(frame.y(y) - 6)}"'
            body += f'<text class="end word {line.color}" {where}>{text(brief(line.last_word))}</text>'
    wanted = [(frame.y(y), label, color) for y, label, color in labels]
    for y, label, color in spread(wanted, frame.top, frame.bottom):
        body += f'<text class="end {color}" x="{place(frame.right + 7)}" y="{place(y)}" dy=".35em">{text(label)}</text>'
    merged = any(sum(None not in p for p in line.points) > len(points) for line, points in zip(lines, data))
    note = f'<p class="note">each point the mean of {merge} steps</p>' if merged else ""
    return svg(body, name, width, height) + note


def stack_chart(name: str, layers: dict[str, dict[int, float]], share: bool = False, cap: int = 80) -> str:
    """Bars over steps, layers upon each other, the first lowest: {label: {step: value}}; with its legend. "" if empty."""
    layers = {label: points for label, points in layers.items() if points}
    if not layers:
        return ""
    colors = {label: f"m{i % 8}" for i, label in enumerate(layers)}
    steps = sorted({x for points in layers.values() for x in points})
    width = max(1, -(-(steps[-1] - steps[0] + 1) // cap))
    counts = {}
    for x in steps:
        counts.setdefault((x - steps[0]) // width, []).append(x)
    means = {b: {label: sum(points.get(x, 0) for x in group) / len(group) for label, points in layers.items()}
             for b, group in counts.items()}
    high = 1 if share else max(sum(m.values()) for m in means.values()) * 1.05 or 1
    frame = Frame([steps[0] - 0.5, steps[-1] + 0.5], 0, high)
    thick = max(0.8, (frame.right - LEFT) * width / (steps[-1] - steps[0] + 1) * 0.86)
    bars, rows = [], {}
    for b, m in means.items():
        base, first = 0.0, steps[0] + b * width
        middle = frame.x(sum(counts[b]) / len(counts[b]))
        for label, value in m.items():
            if value > 0:
                top = frame.y(base + value)
                bars.append(f'<rect class="{colors[label]}" x="{place(middle - thick / 2)}" y="{place(top)}" '
                            f'width="{place(thick)}" height="{place(frame.y(base) - top)}"/>')
                base += value
        rows[b] = (f"step {first}" + (f" to {first + width - 1}" if width > 1 else ""),
                   [f"{n}  {short(v)}" for n, v in m.items() if v > 0])
    legend = "".join(f'<li><i class="{colors[label]}"></i>{text(brief(label, 30))}</li>' for label in layers)
    note = f'<p class="note">each bar the mean of {width} steps</p>' if width > 1 else ""
    body = frame.axes() + f'<g class="bars">{"".join(bars)}</g>' + hits(frame, rows, steps[0], width)
    return svg(body, name) + f'<ul class="legend">{legend}</ul>' + note


def spark(points: list) -> str:
    """A curve of 96 x 26 without axes; decoration beside words that say the same."""
    points = [p for p in points if None not in p]
    if len(points) < 2:
        return ""
    points = list(binned(points, points[0][0], max(1, -(-(points[-1][0] - points[0][0] + 1) // 40))).values())
    (x0, x1), (y0, y1) = ((min(column), max(column)) for column in zip(*points))
    span = max(y1 - y0, 0.02 * max(abs(y0), abs(y1))) or 1          # noise in the third digit is no movement
    at = [f"{place(3 + 90 * (x - x0) / (x1 - x0 or 1))} {place(23 - 20 * (y - y0) / span)}" for x, y in points]
    cx, cy = at[-1].split()
    marks = f'<path d="M{"L".join(at)}"/><circle cx="{cx}" cy="{cy}" r="2.5"/>'
    return f'<svg class="spark" viewBox="0 0 96 26" aria-hidden="true">{marks}</svg>'


@dataclass
class Life:
    """A bar of the tree: who, in which lane, from which step to which."""
    color: str
    lane: int
    first: int
    last: int
    words: str                      # written at its start
    end: str                        # and at its end
    tip: str                        # told on hover
    parents: list[str]              # names of other lives


def tree(name: str, lives: dict[str, Life]) -> str:
    """Lanes over steps: a child's bar continues in its victim's lane, and curves lead to it from its parents' bars."""
    starts = sorted({life.first for life in lives.values()})
    x0, x1 = starts[0], max(life.last for life in lives.values()) + 1
    gap = min((b - a for a, b in zip(starts, starts[1:])), default=x1 - x0) or 1
    width = int(min(6000, max(1080, 100 * (x1 - x0) / gap)))
    height = 34 * (max(life.lane for life in lives.values()) + 1) + 34
    px, py = lambda x: 10 + (width - 100) * (x - x0) / max(1, x1 - x0), lambda lane: 26 + 34 * lane
    edges, bars = [], []
    for life in lives.values():
        x, y, stop = px(life.first), py(life.lane), px(life.last + 1)
        for parent in (lives[p] for p in life.parents if p in lives):
            above = place(py(parent.lane))
            way = f"M{place(x - 22)} {above}C{place(x - 6)} {above} {place(x - 16)} {place(y)} {place(x + 2)} {place(y)}"
            edges.append(f'<path class="edge {parent.color}" d="{way}"><title>{text(life.tip)}</title></path>')
        end = f'<text class="end {life.color}" x="{place(stop + 4)}" y="{place(y)}" dy=".35em">{text(brief(life.end))}</text>'
        end = end if life.end else ""
        bars.append(f'<g class="life {life.color}"><title>{text(life.tip)}</title>'
                    f'<path class="back" d="M{place(x)} {place(y - 6)}H{place(stop)}"/>'
                    f'<path class="stroke" d="M{place(x + 2)} {place(y)}H{place(max(x + 2, stop - 3))}"/>'
                    f'<circle cx="{place(x + 2)}" cy="{place(y)}" r="3.5"/>'
                    f'<text x="{place(x + 3)}" y="{place(y - 8)}">{text(brief(life.words, 40))}</text>{end}</g>')
    marks = "".join(f'<text class="tick" x="{place(px(v))}" y="{height - 6}">{short(v)}</text>'
                    for v in ticks(x0, x1, width // 90, whole=True))
    drawing = svg("".join(edges + bars) + marks, name, width, height, f"min-width:{width - 180}px;max-width:{width + 240}px")
    return f'<div class="scroll">{drawing}</div>'
