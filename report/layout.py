"""What every part of a report is set in: headings, cards and tables, the page's style sheets and script."""
import re
from pathlib import Path

from report.svg import Line, line_chart, text

HERE = Path(__file__).parent


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A chart with its heading and how to read it; without a body it is said to be absent."""
    body = body or '<p class="absent">Absent: this run did not log it.</p>'
    kind = " class=wide" if wide else ""
    return f"<figure{kind}><figcaption><b>{title}</b>{caption}</figcaption>{body}</figure>"


def curves(title: str, caption: str, lines: list[Line], **how) -> str:
    """A figure of curves. title: any text; caption: HTML; how: as in svg.line_chart."""
    return figure(text(title), caption, line_chart(title, lines, **how))


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    body = f'<div class="grid">{"".join(figures)}</div>'
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p>{body}</section>'


def table(head, rows: list[list[str]], kind: str = "") -> str:
    """A table that scrolls sideways where it is too wide. head: words; rows: of cells in HTML."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{word}</th>" for word in head)
    return f'<div class="scroll"><table{kind}>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def color_rules(c: str) -> str:
    """The rules that let a curve, a life, a bar and a name be drawn in a colour of chart.css."""
    return (f".line.{c} .stroke,.line.{c} .birth,.line.{c} .death,.line.{c} .descent,.life.{c} .stroke,"
            f".edge.{c}{{stroke:var(--{c})}}.line.{c} circle:not(.birth),.life.{c} circle,.line.{c} .band,"
            f"svg text.end.{c},tspan.{c}{{fill:var(--{c})}}.legend .{c}{{color:var(--{c})}}\n")


COLORS = [*(f"t{i}" for i in range(6)), *(f"s{i}" for i in range(6)), *(f"m{i}" for i in range(8)), "base"]
CHART = (HERE / "chart.css").read_text(encoding="utf-8")
CSS = CHART + "".join(map(color_rules, COLORS)) + (HERE / "page.css").read_text(encoding="utf-8")
JS = (HERE / "page.js").read_text(encoding="utf-8")
# Of a chart that stands alone: it has a paper, a heading and a foot, and no tooltips.
SHEET = """.paper{fill:var(--card)}svg{overflow:visible;font:11px system-ui,sans-serif}
text{fill:var(--soft)}text.head{font-size:12px;font-weight:600;fill:var(--ink)}tspan{font-weight:600}"""
TOOLTIP = re.compile(r"<rect class=.hit.*?</rect>|<title>.*?</title>", re.S)


def sheet(name: str, rows: list[list[tuple[str, str]]], foot: list[str] = ()) -> str:
    """One stand-alone SVG file of charts with their headings, row under row; light or dark as the system is.

    rows: of (heading, chart), charts as svg.py makes them; name: what a screen reader says; foot: lines.
    Headings, name and foot are texts made harmless already.
    """
    body, wide, y = "", 0, 0
    for row in rows:
        x, low = 0, 0
        for heading, chart in row:
            drawing = TOOLTIP.sub("", chart.split("</svg>")[0] + "</svg>")
            width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawing).groups())
            drawing = drawing.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)
            head = f'<text class="head" x="30" y="-7">{heading}</text>'
            body += f'<g transform="translate({x + 6} {y + 24})">{head}{drawing}</g>'
            x, low = x + width + 14, max(low, height)
        wide, y = max(wide, x), y + low + 32
    for line in foot:
        wide = max(wide, 72 + 6 * len(re.sub("<.*?>", "", line)))
        body += f'<text x="36" y="{y + 6}">{line}</text>'
        y += 16
    used = set(re.findall(r"[\w-]+", " ".join(re.findall(r'class="([^"]*)"', body))))
    css = CHART + "".join(color_rules(c) for c in COLORS if c in used) + SHEET
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y}" role="img" aria-label="{name}"'
            f'><style>{css}</style><rect class="paper" width="100%" height="100%"/>{body}</svg>\n')
