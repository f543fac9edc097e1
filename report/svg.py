"""What a report draws: harmless text and small SVG charts. Knows nothing of runs.

A chart is 380 units wide, so that its letters stay readable on a phone. Colours are CSS classes (t0.. warm,
s0.. cool, m0.. neutral, `base` grey), so that light and dark are one SVG. Every mark's <title> is its
tooltip; the page's script only shows it sooner.
"""
import html
import math
import unicodedata
from dataclasses import dataclass, field

W, H, LEFT, TOP, BOTTOM = 380, 220, 40, 14, 30
LABEL, LETTER = 18, 6.3             # characters of a curve's name at most, and units that one of them takes
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}     # control, format, lone surrogates, separators


@dataclass
class Line:
    """One curve: points (x, y), y None where nothing was measured."""
    name: str
    points: list
    color: str
    style: str = ""                 # CSS classes: bold, thin, d1, d2 (dashes)
    band: list = field(default_factory=list)        # (x, low, high), shaded
    born: bool = False              # its ends are marked
    died: bool = False
    label: bool = True
    origins: list = field(default_factory=list)     # points (x, y) of its parents, whence fine dots lead here
    last_word: str = ""             # written where it ends, if it died
    tip: str = ""                   # told on hover; without it, the name
    bins: dict = field(default_factory=dict)        # set by line_chart: {bin: (x, y)}, means of the points


def visible(value: str) -> str:
    """Text whose control characters, marks of direction and lone surrogates show as their codes."""
    hidden = {c for c in set(value) - {"\n", "\t"} if unicodedata.category(c) in HIDDEN}
    return value.translate({ord(c): f"\u27e8U+{ord(c):04X}\u27e9" for c in hidden})


def text(value, limit: int = 4000) -> str:
    """Any text made harmless for HTML, in or out of attributes; what is invisible shows as its code."""
    value = str(value)
    cut = f" [... {len(value) - limit} more characters]" if len(value) > limit else ""
    return html.escape(visible(value[:limit])) + cut


def brief(name, limit: int = LABEL) -> str:
    """A name in at most `limit` visible characters; the middle gives way: long names differ at their ends."""
    name = str(name)
    seen = visible(name if len(name) <= 2 * limit else name[:limit] + name[-limit:])
    return seen if len(seen) <= limit else f"{seen[:limit // 2]}…{seen[len(seen) - (limit - 1) // 2:]}"


def short(v: float) -> str:
    """A number in a few characters: 1.2M, 34k, 5,582, 0.38."""
    for least, unit, letter in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(v) >= least:
            return f"{v / unit:.3g}{letter}"
    return f"{v:,.0f}" if abs(v) >= 999.5 else f"{v:.3g}"


def place(v: float) -> str:
    """A coordinate, to a tenth."""
    return f"{v:.1f}".removesuffix(".0")


def label(kind: str, x: float, y: float, words, centred: bool = False) -> str:
    """Words in a drawing; centred: y is their middle, not their foot. kind: CSS classes."""
    down = ' dy=".35em"' if centred else ""
    return f'<text class="{kind}" x="{place(x)}" y="{place(y)}"{down}>{text(words)}</text>'


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
    return {b: tuple(sum(column) / len(column) for column in zip(*groups[b])) for b in sorted(groups)}


def bin_width(steps: list[int], cap: int) -> int:
    """How many steps one point is the mean of, where at most `cap` points are drawn."""
    return max(1, -(-(max(steps) - min(steps) + 1) // cap))


class Frame:
    """Axes of a chart: maps data to the drawing."""

    def __init__(self, xs, low: float, high: float, right: float = 12, width: int = W, height: int = H):
        self.x0, self.x1 = min(xs), max(xs)
        self.low, self.high = (low, high) if high > low else (low - 0.5, high + 0.5)
        self.right, self.top, self.bottom, self.height = width - right, TOP, height - BOTTOM, height

    def x(self, v: float) -> float:
        """Horizontal place of v; the middle if there is one x only."""
        share = (v - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5
        return LEFT + (self.right - LEFT) * share

    def y(self, v: float) -> float:
        """Vertical place of v."""
        return self.top + (self.bottom - self.top) * (1 - (v - self.low) / (self.high - self.low))

    def at(self, x: float, y: float) -> str:
        """A point of a path."""
        return f"{place(self.x(x))} {place(self.y(y))}"

    def axes(self) -> str:
        """Grid, numbers and the word `step`."""
        out = ""
        for v in ticks(self.low, self.high):
            out += f'<path class="ax" d="M{LEFT} {place(self.y(v))}H{place(self.right)}"/>'
            out += label("num", LEFT - 5, self.y(v), short(v), centred=True)
        room = 0.09 * (self.x1 - self.x0)
        steps = [v for v in ticks(self.x0, self.x1, 5, whole=True) if self.x1 - v > room]
        for v in [*steps, self.x1]:                         # the last step always has its number
            out += label("tick", self.x(v), self.height - 15, short(v))
        return out + label("axis", (LEFT + self.right) / 2, self.height - 3, "step")

    def hits(self, rows: dict[int, list[str]], x0: int, width: int) -> str:
        """Invisible strips, one a bin of `width` steps from x0 on, whose <title> tells every value there."""
        wide = max(3.0, (self.right - LEFT) / max(1, (self.x1 - self.x0) / width + 1))
        out = ""
        for b, told in rows.items():
            first = x0 + b * width
            head = f"step {first}" if width == 1 else f"step {first} to {first + width - 1}"
            more = [f"... {len(told) - 24} more"] if len(told) > 24 else []
            words = text("\n".join([head, *told[:24], *more]))
            middle = self.x(min(self.x1, first + (width - 1) / 2))
            box = f'x="{place(middle - wide / 2)}" y="{self.top}" width="{place(wide)}"'
            out += f'<rect class="hit" {box} height="{self.bottom - self.top}"><title>{words}</title></rect>'
        return out


def svg(body: str, name: str, width: int = W, height: int = H, more: str = "") -> str:
    """The drawing's outer element; `name` is what a screen reader says; more: other attributes."""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(name)}"{more}>{body}</svg>'


def spread(wanted: list[tuple[float, str, str]], top: float = TOP, bottom: float = H - BOTTOM,
           gap: float = 11.5) -> list[tuple[float, str, str]]:
    """Labels (y, name, colour) moved apart so that none covers another; at most as many as fit."""
    wanted = sorted(wanted)
    room = int((bottom - top) / gap) + 1
    if len(wanted) > room:
        wanted = [wanted[i * (len(wanted) - 1) // (room - 1)] for i in range(room)]
    ys, last = [], -math.inf
    for y, _, _ in wanted:
        last = max(y, last + gap)
        ys.append(last)
    limit = bottom + 2
    for i in reversed(range(len(ys))):
        ys[i] = min(ys[i], limit)
        limit = ys[i] - gap
    return [(y, name, color) for y, (_, name, color) in zip(ys, wanted)]


def limits(lines: list[Line], zero: bool) -> tuple[float, float]:
    """Both ends of an axis that holds all points; bands are clipped to it."""
    values = [y for line in lines for _, y in line.bins.values()] + [0] * zero
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return low - pad * (low != 0 or not zero), high + pad


def curve(line: Line, frame: Frame, band: list, dots: bool) -> str:
    """One line with its band, dots if asked for, marks of birth and death, dots from its parents."""
    at = [(frame.x(x), frame.y(y)) for x, y in line.bins.values()]
    (x0, y0), (x1, y1) = at[0], at[-1]
    body = f"<title>{text(line.tip or line.name)}</title>"
    if band:
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        inside = [(x, max(frame.low, min(frame.high, y))) for x, y in edge]
        body += f'<path class="band" d="M{"L".join(frame.at(x, y) for x, y in inside)}Z"/>'
    body += f'<path class="stroke" d="M{"L".join(frame.at(*point) for point in line.bins.values())}"/>'
    if dots or len(at) == 1:
        r = 3 if "bold" in line.style else 2.2
        body += "".join(f'<circle cx="{place(x)}" cy="{place(y)}" r="{r}"/>' for x, y in at)
    if line.born:
        body += f'<circle class="birth" cx="{place(x0)}" cy="{place(y0)}" r="3.4"/>'
    if line.died:
        body += f'<path class="death" d="M{place(x1 - 3)} {place(y1 - 3)}l6 6m0 -6l-6 6"/>'
    for x, y in line.origins:
        body += f'<path class="descent" d="M{frame.at(x, y)}L{place(x0)} {place(y0)}"/>'
    return f'<g class="line {line.color} {line.style}">{body}</g>'


def line_chart(name: str, lines: list[Line], share: bool = False, zero: bool = True, cap: int = 100,
               width: int = W, height: int = H) -> str:
    """Curves over steps; "" if there is nothing to draw. share: the axis is 0 to 1; zero: it holds 0; cap:
    points a curve at most (means of neighbours)."""
    lines = [line for line in lines if any(None not in point for point in line.points)]
    if not lines:
        return ""
    steps = [x for line in lines for x, *_ in line.points]
    x0, merge = min(steps), bin_width(steps, max(24, min(cap, 6000 // len(lines))))
    for line in lines:
        line.bins = binned(line.points, x0, merge)
    bands = [list(binned(line.band, x0, merge).values()) for line in lines]
    low, high = (0, 1) if share else limits(lines, zero)
    ends = [line for line in lines if line.label and not line.died]
    margin = 14 + LETTER * max([len(brief(line.name)) for line in ends], default=0)
    frame = Frame([x0, max(steps)], low, high, margin, width, height)
    rows = {}
    for b in sorted({b for line in lines for b in line.bins}):
        told = sorted([(line.bins[b][1], line.name) for line in lines if b in line.bins], reverse=True)
        rows[b] = [f"{who}  {short(y)}" for y, who in told]
    body = frame.axes() + frame.hits(rows, x0, merge)
    for line, band in zip(lines, bands):                    # dots: probes, short runs
        few = len(line.bins) <= 24
        sparse = few and (len(rows) <= 24 or max(line.bins) - min(line.bins) > 2 * len(line.bins))
        body += curve(line, frame, band, sparse and "thin" not in line.style)
    for line in lines:                                      # above the curves: none runs through a name
        if line.died and line.last_word:
            x, y = line.bins[max(line.bins)]
            body += label(f"end word {line.color}", frame.x(x) + 2, frame.y(y) - 6, brief(line.last_word))
    wanted = [(frame.y(line.bins[max(line.bins)][1]), brief(line.name), line.color) for line in ends]
    for y, who, color in spread(wanted, frame.top, frame.bottom):
        body += label(f"end {color}", frame.right + 7, y, who, centred=True)
    merged = any(len(line.bins) < sum(None not in point for point in line.points) for line in lines)
    note = f'<p class="note">each point the mean of {merge} steps</p>' if merged else ""
    return svg(body, name, width, height) + note


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
    """Lanes over steps: a child's bar goes on in its victim's lane, curves lead there from its parents'."""
    starts = sorted({life.first for life in lives.values()})
    x0, x1 = starts[0], max(life.last for life in lives.values()) + 1
    gap = min([b - a for a, b in zip(starts, starts[1:])], default=x1 - x0) or 1
    width = int(min(6000, max(1080, 100 * (x1 - x0) / gap)))
    height = 34 * (max(life.lane for life in lives.values()) + 1) + 34

    def at(step: int) -> float:
        return 10 + (width - 100) * (step - x0) / max(1, x1 - x0)
    edges, bars = "", ""
    for life in lives.values():
        x, y, stop = at(life.first), 26 + 34 * life.lane, at(life.last + 1)
        tip = f"<title>{text(life.tip)}</title>"
        for parent in [lives[who] for who in life.parents if who in lives]:
            above = 26 + 34 * parent.lane
            bend = f"C{place(x - 6)} {above} {place(x - 16)} {y} {place(x + 2)} {y}"
            edges += f'<path class="edge {parent.color}" d="M{place(x - 22)} {above}{bend}">{tip}</path>'
        bars += (f'<g class="life {life.color}">{tip}'
                 f'<path class="back" d="M{place(x)} {y - 6}H{place(stop)}"/>'
                 f'<path class="stroke" d="M{place(x + 2)} {y}H{place(max(x + 2, stop - 3))}"/>'
                 f'<circle cx="{place(x + 2)}" cy="{y}" r="3.5"/>'
                 f'<text x="{place(x + 3)}" y="{y - 8}">{text(brief(life.words, 40))}</text>')
        if life.end:
            bars += label(f"end {life.color}", stop + 4, y, brief(life.end), centred=True)
        bars += "</g>"
    for v in ticks(x0, x1, width // 90, whole=True):
        bars += label("tick", at(v), height - 6, short(v))
    style = f' style="min-width:{width - 180}px;max-width:{width + 240}px"'
    return f'<div class="scroll">{svg(edges + bars, name, width, height, style)}</div>'
