"""Draws curves as SVG, and makes any text harmless in HTML. It knows nothing of runs.

A chart is 380 units wide, so that its letters stay readable on a phone. Colours are CSS classes (t0.. warm,
s0.. cool, m0.. neutral, base grey), so that one drawing serves light and dark pages. A <title> is a tooltip.
"""
import html
import math
from dataclasses import dataclass, field
from statistics import fmean

from common import visible

W, H = 380, 220                     # of a chart
LEFT, TOP, FOOT = 40, 14, 190       # edges of the place for its curves; the right one is a Frame's
LETTER = 6.3                        # units that a letter of a name takes
LONGEST = 18                        # letters of a name; its end is shown, because runs' names differ there
GAP = 11.5                          # units between two names, at least
N_NAMES = 16                        # at the right edge, at most
N_POINTS = 100                      # of a curve, at most
ABSENT = '<p class="absent">Absent: nothing of it was logged.</p>'
Points = list[tuple[float, float | None]]   # (step, value), None where nothing was measured
Band = list[tuple[float, float, float]]     # (step, low, high)


@dataclass
class Line:
    """Holds one curve."""
    name: str
    points: Points
    color: str                      # a CSS class
    style: str = ""                 # CSS classes: bold, thin (without a name), d1, d2 (dashes)
    band: Band = field(default_factory=list)        # shaded
    born: bool = False              # a circle marks its first point
    died: bool = False              # a cross marks its last point
    tip: str = ""                   # said on hover, beside its name


def text(value: object, limit: int = 4000) -> str:
    """Returns any text, cut to `limit` characters, in a form that is harmless in HTML and in an attribute."""
    return html.escape(visible(str(value)[:limit]))


def short(v: float) -> str:
    """Returns a number in a few characters, such as 5,582 or 0.38."""
    return f"{v:,.0f}" if abs(v) >= 999.5 else f"{v:.3g}"


def label(kind: str, x: float, y: float, words: object) -> str:
    """Returns words in a drawing; y is their middle, `kind` their CSS classes."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dy=".35em">{text(words)}</text>'


def ticks(low: float, high: float, least: float = 0) -> list[float]:
    """Returns about five numbers from low to high, multiples of a round one that is at least `least`."""
    step = max(least, float(f"{(high - low) / 5:.0e}"))         # rounded to one digit
    first = math.ceil(low / step - 1e-9)            # the slack: 0.6 / 0.2 is a little less than 3
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """Turns steps and values into places in the drawing."""
    first: float                    # step
    last: float                     # step, above `first`
    low: float                      # value
    high: float                     # value, above `low`
    right: float                    # edge of the place for the curves

    def x(self, step: float) -> float:
        """Returns the horizontal place of a step."""
        share = (step - self.first) / (self.last - self.first)
        return LEFT + (self.right - LEFT) * share

    def y(self, v: float) -> float:
        """Returns the vertical place of a value; a value outside is put on the edge."""
        inside = max(self.low, min(self.high, v))
        share = (self.high - inside) / (self.high - self.low)
        return TOP + (FOOT - TOP) * share

    def path(self, points: list[tuple[float, float]]) -> str:
        """Returns points (step, value) joined by straight lines."""
        places = []
        for step, v in points:
            places.append(f"{self.x(step):.1f} {self.y(v):.1f}")
        return "M" + "L".join(places)

    def axes(self, name: str) -> str:
        """Returns the grid, its numbers and the name of the steps; the last step always has its number."""
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
        return out + label("axis", (LEFT + self.right) / 2, FOOT + 23, name)


def thinned(points: list[tuple]) -> list[tuple[float, ...]]:
    """Returns at most N_POINTS points, each the mean of some neighbours."""
    k = math.ceil(len(points) / N_POINTS)
    means = []
    for i in range(0, len(points), k):
        columns = zip(*points[i:i + k])
        means.append(tuple(map(fmean, columns)))
    return means


def spread(ends: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Returns names (y, words, colour) moved apart so that none covers another, at most N_NAMES of them."""
    chosen = sorted(ends)[::len(ends) // N_NAMES + 1]
    y = 0.0
    moved = []
    for i, (wanted, words, color) in enumerate(chosen):
        n_below = len(chosen) - 1 - i
        y = min(max(wanted, y + GAP), FOOT + 2 - GAP * n_below)
        moved.append((y, words, color))
    return moved


def curve(line: Line, points: list[tuple], frame: Frame) -> str:
    """Returns a line with its band, with dots if it has few points, and marks of birth and death."""
    body = f"<title>{text(line.name)}{text(line.tip)}</title>"
    if line.band:
        upper, lower = [], []
        for step, low, high in thinned(line.band):
            upper.append((step, high))
            lower.insert(0, (step, low))
        body += f'<path class="band" d="{frame.path(upper + lower)}Z"/>'
    body += f'<path class="stroke" d="{frame.path(points)}"/>'
    if len(points) <= 24 and "thin" not in line.style:
        for step, v in points:
            body += f'<circle cx="{frame.x(step):.1f}" cy="{frame.y(v):.1f}" r="2.2"/>'
    if line.born:
        step, v = points[0]
        body += f'<circle class="birth" cx="{frame.x(step):.1f}" cy="{frame.y(v):.1f}" r="3.4"/>'
    if line.died:
        body += f'<path class="death" d="{frame.path(points[-1:])}m-3 -3l6 6m0 -6l-6 6"/>'
    return f'<g class="line {line.color} {line.style}">{body}</g>'


def limits(values: list[float]) -> tuple[float, float]:
    """Returns the ends of an axis that holds these values. An axis of shares is 0 to 1. Others hold 0, unless
    all values are far from it, and have some room for the curves."""
    low, high = min(values), max(values)
    if 0 <= low and high <= 1:
        return 0, 1
    room = 0.06 * (high - low) or 0.5               # of a single value: a line in the middle
    if 0 <= low < 0.4 * high:
        return 0, high + room
    return low - room, high + room


def line_chart(title: str, lines: list[Line], axis: str = "step") -> str:
    """Returns curves over steps as SVG, or a sentence in HTML if nothing was measured."""
    drawn = []
    steps, values = [], []
    longest = 0                     # letters of a name at the right edge
    for line in lines:
        known = [point for point in line.points if point[1] is not None]
        if not known:
            continue
        name = line.name[-LONGEST:]
        drawn.append((name, line, thinned(known)))
        for step, v in known:
            steps.append(step)
            values.append(v)
        if not line.died and "thin" not in line.style:
            longest = max(longest, len(name))
    if not drawn:
        return ABSENT
    first = min(steps)
    last = max(first + 1, *steps)
    frame = Frame(first, last, *limits(values), W - 14 - LETTER * longest)
    body = frame.axes(axis)
    ends = []
    names = ""
    for name, line, points in drawn:
        body += curve(line, points, frame)
        step, v = points[-1]
        if "thin" in line.style:
            continue
        if line.died:                               # its name stands where it ends
            names += label(f"end word {line.color}", frame.x(step) + 2, frame.y(v) - 10, name)
        else:
            ends.append((frame.y(v), name, line.color))
    for y, name, color in spread(ends):
        names += label(f"end {color}", frame.right + 7, y, name)
    size = f'width="{W}" height="{H}" viewBox="0 0 {W} {H}"'
    return f'<svg {size} role="img" aria-label="{text(title)}">{body}{names}</svg>'
