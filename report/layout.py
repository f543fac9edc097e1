"""What the parts of a page are set in: figures, tables, sections, colours."""
from collections.abc import Iterable, Sequence

from report.opening import ABSENT
from report.svg import Line, Points, line_chart, text


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A card with its heading and how to read it, HTML; without a body it is said to be absent."""
    kind = " class=wide" if wide else ""
    return f"<figure{kind}><figcaption><b>{title}</b>{caption}</figcaption>{body or ABSENT}</figure>"


def curves(
    title: str,                         # any text
    caption: str,                       # HTML
    lines: list[Line],
    share: bool = False,                # as in svg.line_chart
    zero: bool = True,                  # as there
) -> str:
    """A figure of curves."""
    return figure(text(title), caption, line_chart(title, lines, share, zero))


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    body = f'<div class="grid">{"".join(figures)}</div>'
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p>{body}</section>'


def table(head: Sequence[str], rows: list[list[object]]) -> str:
    """A table that scrolls where it is too large. head: words; rows: of cells in HTML."""
    body = row_of("th", head)
    for row in rows:
        body += row_of("td", row)
    return f'<div class="scroll"><table>{body}</table></div>'


def row_of(tag: str, cells: Sequence[object]) -> str:
    """A line of a table."""
    inner = ""
    for cell in cells:
        inner += f"<{tag}>{cell}</{tag}>"
    return f"<tr>{inner}</tr>"


def palette(named: Iterable[tuple[str, Points]]) -> list[Line]:
    """Pairs (name, points) as curves of different colours."""
    lines = []
    for i, (name, points) in enumerate(named):
        lines.append(Line(name, points, f"m{i % 8}", f"d{i // 8 % 3}"))
    return lines
