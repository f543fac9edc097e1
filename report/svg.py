"""What a report draws: text made harmless, and curves over steps as SVG. Knows nothing of runs.

A chart is 380 units wide, so that its letters stay readable on a phone. Colours are CSS classes (t0.. warm,
s0.. cool, m0.. neutral, `base` grey): light and dark are one SVG. Every <title> is a tooltip.
"""
import html
import math
from dataclasses import dataclass, field

from run.terminal import visible

W, H = 380, 220                     # of a chart
LEFT, TOP, FOOT = 40, 14, 190       # edges of the place for its curves; the right one is a Frame's
LETTER = 6.3                        # units that a letter of a name takes
GAP = 11.5                          # units between two names, at least
MOST = 16                           # names at the right edge, at most
POINTS = 100                        # of a curve, at most
Points = list[tuple[int, float | None]]     # (step, value), None where nothing was measured
Band = list[tuple[int, float, float]]       # (step, low, high)


@dataclass
class Line:
    """One curve."""
    name: str
    points: Points
    color: str
    style: str = ""                 # CSS classes: bold, thin, d1, d2 (dashes)
    band: Band = field(default_factory=list)        # shaded
    born: bool = False              # its first point is marked with a circle
    died: bool = False              # its last one with a cross
    label: bool = True              # its name stands at its end
    tip: str = ""                   # said on hover, beside its name


@dataclass(order=True)
class Name:
    """What stands at the end of a curve at the right edge; y: the middle of its letters."""
    y: float
    words: str
    color: str


def text(value: object, limit: int = 4000) -> str:
    """Any text made harmless for HTML, in or out of attributes; what is invisible shows as its code."""
    whole = str(value)
    shown = html.escape(visible(whole[:limit]))
    if len(whole) > limit:
        shown += f" [... {len(whole) - limit} more characters]"
    return shown


def brief(name: object, limit: int = 18) -> str:
    """A name in at most `limit` visible characters; the middle gives way: long names differ at their ends."""
    seen = visible(str(name))
    if len(seen) <= limit:
        return seen
    return f"{seen[:limit // 2]}…{seen[-((limit - 1) // 2):]}"


def short(v: float) -> str:
    """A number in a few characters: 1.25M, 34k, 5,582, 0.38."""
    size = abs(v)
    if size >= 999.5e6:                             # from here on 1G has more digits than 999M
        return f"{v / 1e9:.3g}G"
    if size >= 999.5e3:
        return f"{v / 1e6:.3g}M"
    if size >= 1e4:
        return f"{v / 1e3:.3g}k"
    if size >= 999.5:
        return f"{v:,.0f}"
    return f"{v:.3g}"


def label(kind: str, x: float, y: float, words: str) -> str:
    """Words in a drawing, y their middle. kind: CSS classes."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dy=".35em">{text(words)}</text>'


def round_step(raw: float) -> float:
    """The least of 1, 2 or 5 times a power of ten that is not below raw."""
    unit = 10 ** math.floor(math.log10(raw))
    for k in (1, 2, 5):
        if k * unit >= raw * 0.999:
            return k * unit
    return 10 * unit


def ticks(low: float, high: float, least: float = 0) -> list[float]:
    """About five round numbers from low to high: multiples of 1, 2 or 5 times a power of ten. least: of their
    distances."""
    if not high > low:
        return [low]
    step = max(least, round_step((high - low) / 5))
    first = math.ceil(low / step - 1e-9)            # the slack: 0.6 / 0.2 is a little less than 3
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """The axes of a chart: steps and values to places in the drawing."""
    first: int                      # step
    last: int
    low: float                      # value, below `high`
    high: float
    right: float                    # edge of the place for the curves

    def x(self, step: float) -> float:
        """Horizontal place of a step; the middle if there is one step only."""
        share = 0.5
        if self.last > self.first:
            share = (step - self.first) / (self.last - self.first)
        return LEFT + (self.right - LEFT) * share

    def y(self, v: float) -> float:
        """Vertical place of a value; what is outside is put on the edge."""
        inside = max(self.low, min(self.high, v))
        return TOP + (FOOT - TOP) * (self.high - inside) / (self.high - self.low)

    def path(self, points: list[tuple[float, float]]) -> str:
        """Points (step, value) joined by straight lines."""
        places = [f"{self.x(step):.1f} {self.y(v):.1f}" for step, v in points]
        return "M" + "L".join(places)

    def axes(self) -> str:
        """Grid, numbers and the word `step`; the last step always has its number."""
        out = ""
        for v in ticks(self.low, self.high):
            y = self.y(v)
            out += f'<path class="ax" d="M{LEFT} {y:.1f}H{self.right:.1f}"/>'
            out += label("num", LEFT - 5, y, short(v))
        room = 0.09 * (self.last - self.first)
        for step in ticks(self.first, self.last, least=1):
            if self.last - step > room:
                out += label("tick", self.x(step), FOOT + 11, short(step))
        out += label("tick", self.x(self.last), FOOT + 11, short(self.last))
        return out + label("axis", (LEFT + self.right) / 2, FOOT + 23, "step")


def binned(points: list[tuple], merge: int) -> list[tuple[float, ...]]:
    """The means of each `merge` steps' points, over those that have a value in every column."""
    groups = {}
    for point in points:
        if None not in point:
            groups.setdefault(point[0] // merge, []).append(point)
    means = []
    for key in sorted(groups):
        columns = zip(*groups[key])
        means.append(tuple(sum(column) / len(column) for column in columns))
    return means


def spread(wanted: list[Name]) -> list[Name]:
    """Names, moved apart so that none covers another; at most as many as fit."""
    wanted = sorted(wanted)
    shown = wanted[::len(wanted) // MOST + 1]
    y = 0.0
    for i, name in enumerate(shown):
        below = len(shown) - 1 - i                  # names that need their room, too
        y = min(max(name.y, y + GAP), FOOT + 2 - GAP * below)
        name.y = y
    return shown


def shaded(line: Line, frame: Frame, merge: int) -> str:
    """The band around a line: along its upper edge, and back along the lower one."""
    band = binned(line.band, merge)
    if not band:
        return ""
    upper = [(step, high) for step, _, high in band]
    lower = [(step, low) for step, low, _ in reversed(band)]
    return f'<path class="band" d="{frame.path(upper + lower)}Z"/>'


def curve(line: Line, points: list[tuple[float, float]], frame: Frame, merge: int) -> str:
    """One line with its band, dots where it has few points, marks of birth and death."""
    tip = f"{line.name}{line.tip}: {short(points[0][1])} to {short(points[-1][1])}"
    body = f"<title>{text(tip)}</title>"
    body += shaded(line, frame, merge)
    body += f'<path class="stroke" d="{frame.path(points)}"/>'
    if len(points) == 1 or len(points) <= 24 and "thin" not in line.style:
        for step, v in points:
            body += f'<circle cx="{frame.x(step):.1f}" cy="{frame.y(v):.1f}" r="2.2"/>'
    if line.born:
        step, v = points[0]
        body += f'<circle class="birth" cx="{frame.x(step):.1f}" cy="{frame.y(v):.1f}" r="3.4"/>'
    if line.died:
        end = frame.path(points[-1:])
        body += f'<path class="death" d="{end}m-3 -3l6 6m0 -6l-6 6"/>'
    return f'<g class="line {line.color} {line.style}">{body}</g>'


def limits(values: list[float], share: bool, zero: bool) -> tuple[float, float]:
    """The least and the largest value of an axis, with some room where a curve ends."""
    if share:
        return 0, 1
    if zero:
        values = [*values, 0]
    least, largest = min(values), max(values)
    pad = 0.06 * (largest - least) or 0.5           # of one value: a line in the middle
    if zero and least == 0 < largest:               # the axis itself
        return least, largest + pad
    return least - pad, largest + pad


def room_for_names(lines: list[Line]) -> float:
    """What the names at the right edge take of the width. A line that died has its name at its own end."""
    longest = 0
    for line in lines:
        if line.label and not line.died:
            longest = max(longest, len(brief(line.name)))
    return LETTER * longest


def line_chart(name: str, lines: list[Line], share: bool = False, zero: bool = True) -> str:
    """Curves over steps; "" if there is nothing to draw. share: the axis is 0 to 1; zero: it holds 0."""
    lines = [line for line in lines if any(v is not None for _, v in line.points)]
    if not lines:
        return ""
    steps = [step for line in lines for step, _ in line.points]
    first, last = min(steps), max(steps)
    n_points = max(24, min(POINTS, 6000 // len(lines)))
    merge = math.ceil((last - first + 1) / n_points)
    curves = [binned(line.points, merge) for line in lines]
    values = [v for points in curves for _, v in points]
    frame = Frame(first, last, *limits(values, share, zero), W - 14 - room_for_names(lines))
    body = frame.axes()
    names = ""
    wanted = []
    for line, points in zip(lines, curves):
        body += curve(line, points, frame, merge)
        step, v = points[-1]
        if line.label and line.died:
            names += label(f"end word {line.color}", frame.x(step) + 2, frame.y(v) - 10, brief(line.name))
        elif line.label:
            wanted.append(Name(frame.y(v), brief(line.name), line.color))
    for end in spread(wanted):
        names += label(f"end {end.color}", frame.right + 7, end.y, end.words)
    size = f'width="{W}" height="{H}" viewBox="0 0 {W} {H}"'
    return f'<svg {size} role="img" aria-label="{text(name)}">{body}{names}</svg>'
