"""What a report draws: text made harmless, and curves over steps as SVG. Knows nothing of runs.

A chart is 380 units wide, so that its letters stay readable on a phone. Colours are CSS classes (t0.. warm,
s0.. cool, m0.. neutral, `base` grey): light and dark are one SVG. Every <title> is a tooltip.
"""
import html
import math
from dataclasses import dataclass, field

from run.terminal import visible

W, H, LEFT, TOP, FOOT = 380, 220, 40, 14, 190
LETTER = 6.3                        # units that a letter of a name takes
GAP, MOST = 11.5, 16                # units between two names, at least; names at the right edge, at most
POINTS = 100                        # of a curve, at most


@dataclass
class Line:
    """One curve: points (step, y), y None where nothing was measured."""
    name: str
    points: list
    color: str
    style: str = ""                 # CSS classes: bold, thin, d1, d2 (dashes)
    band: list = field(default_factory=list)        # (step, low, high), shaded
    born: bool = False              # its first point is marked with a circle
    died: bool = False              # its last one with a cross
    label: bool = True              # its name stands at its end
    tip: str = ""                   # said on hover, beside its name


def text(value, limit: int = 4000) -> str:
    """Any text made harmless for HTML, in or out of attributes; what is invisible shows as its code."""
    value = str(value)
    cut = f" [... {len(value) - limit} more characters]" if len(value) > limit else ""
    return html.escape(visible(value[:limit])) + cut


def brief(name, limit: int = 18) -> str:
    """A name in at most `limit` visible characters; the middle gives way: long names differ at their ends."""
    name = str(name)
    seen = visible(name if len(name) <= 2 * limit else name[:limit] + name[-limit:])
    return seen if len(seen) <= limit else f"{seen[:limit // 2]}…{seen[-((limit - 1) // 2):]}"


def short(v: float) -> str:
    """A number in a few characters: 1.25M, 34k, 5,582, 0.38."""
    for least, unit, letter in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(v) >= least:
            return f"{v / unit:.3g}{letter}"
    return f"{v:,.0f}" if abs(v) >= 999.5 else f"{v:.3g}"


def label(kind: str, x: float, y: float, words: str) -> str:
    """Words in a drawing, y their middle. kind: CSS classes."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dy=".35em">{text(words)}</text>'


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers from low to high: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    unit = 10 ** math.floor(math.log10(raw))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= raw * 0.999)
    step = max(1, round(step)) if whole else step
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Frame:
    """The axes of a chart: steps and values to places in the drawing."""

    def __init__(self, first: int, last: int, low: float, high: float, right: float):
        self.first, self.last, self.right = first, last, right
        self.low, self.high = (low, high) if high > low else (low - 0.5, low + 0.5)

    def x(self, step: float) -> float:
        """Horizontal place of a step; the middle if there is one step only."""
        share = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + (self.right - LEFT) * share

    def y(self, v: float) -> float:
        """Vertical place of a value; what is outside is put on the edge."""
        v = max(self.low, min(self.high, v))
        return TOP + (FOOT - TOP) * (self.high - v) / (self.high - self.low)

    def path(self, points) -> str:
        """Points (step, value) joined by straight lines."""
        return "M" + "L".join(f"{self.x(step):.1f} {self.y(v):.1f}" for step, v in points)

    def axes(self) -> str:
        """Grid, numbers and the word `step`; the last step always has its number."""
        out = ""
        for v in ticks(self.low, self.high):
            out += f'<path class="ax" d="M{LEFT} {self.y(v):.1f}H{self.right:.1f}"/>'
            out += label("num", LEFT - 5, self.y(v), short(v))
        room = 0.09 * (self.last - self.first)
        steps = [v for v in ticks(self.first, self.last, whole=True) if self.last - v > room]
        for v in [*steps, self.last]:
            out += label("tick", self.x(v), FOOT + 11, short(v))
        return out + label("axis", (LEFT + self.right) / 2, FOOT + 23, "step")


def binned(points: list, merge: int) -> list[tuple]:
    """The means of each `merge` steps' points, over those that have a value in every column."""
    groups = {}
    for point in points:
        if None not in point:
            groups.setdefault(point[0] // merge, []).append(point)
    return [tuple(sum(column) / len(column) for column in zip(*groups[key])) for key in sorted(groups)]


def spread(wanted: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Names (y, name, colour) moved apart so that none covers another; at most as many as fit."""
    wanted = sorted(wanted)[::len(wanted) // MOST + 1]
    placed, y = [], 0.0
    for below, (wish, name, color) in zip(reversed(range(len(wanted))), wanted):
        y = min(max(wish, y + GAP), FOOT + 2 - GAP * below)
        placed.append((y, name, color))
    return placed


def curve(line: Line, points: list, frame: Frame, merge: int) -> str:
    """One line with its band, dots where it has few points, marks of birth and death."""
    at = [(f"{frame.x(step):.1f}", f"{frame.y(v):.1f}") for step, v in points]
    tip = f"{line.name}{line.tip}: {short(points[0][1])} to {short(points[-1][1])}"
    body = f"<title>{text(tip)}</title>"
    band = binned(line.band, merge)
    if band:
        edge = [(step, high) for step, _, high in band] + [(step, low) for step, low, _ in reversed(band)]
        body += f'<path class="band" d="{frame.path(edge)}Z"/>'
    body += f'<path class="stroke" d="{frame.path(points)}"/>'
    if len(points) == 1 or len(points) <= 24 and "thin" not in line.style:
        body += "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in at)
    if line.born:
        body += f'<circle class="birth" cx="{at[0][0]}" cy="{at[0][1]}" r="3.4"/>'
    if line.died:
        body += f'<path class="death" d="M{at[-1][0]} {at[-1][1]}m-3 -3l6 6m0 -6l-6 6"/>'
    return f'<g class="line {line.color} {line.style}">{body}</g>'


def line_chart(name: str, lines: list[Line], share: bool = False, zero: bool = True) -> str:
    """Curves over steps; "" if there is nothing to draw. share: the axis is 0 to 1; zero: it holds 0."""
    lines = [line for line in lines if any(v is not None for _, v in line.points)]
    if not lines:
        return ""
    steps = [step for line in lines for step, _ in line.points]
    first, last = min(steps), max(steps)
    merge = math.ceil((last - first + 1) / max(24, min(POINTS, 6000 // len(lines))))
    curves = [binned(line.points, merge) for line in lines]
    values = [v for points in curves for _, v in points] + [0] * zero
    pad = 0.06 * (max(values) - min(values))
    low, high = (0, 1) if share else (min(values) - pad * (min(values) < 0 or not zero), max(values) + pad)
    longest = max(len(brief(line.name)) * (line.label and not line.died) for line in lines)
    frame = Frame(first, last, low, high, W - 14 - LETTER * longest)
    body, names, wanted = frame.axes(), "", []
    for line, points in zip(lines, curves):
        body += curve(line, points, frame, merge)
        step, v = points[-1]
        if line.label and line.died:
            names += label(f"end word {line.color}", frame.x(step) + 2, frame.y(v) - 10, brief(line.name))
        elif line.label:
            wanted.append((frame.y(v), brief(line.name), line.color))
    for y, who, color in spread(wanted):
        names += label(f"end {color}", frame.right + 7, y, who)
    size = f'width="{W}" height="{H}" viewBox="0 0 {W} {H}"'
    return f'<svg {size} role="img" aria-label="{text(name)}">{body}{names}</svg>'
