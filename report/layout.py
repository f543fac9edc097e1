"""What every part of a report is set in: headings, cards and tables, the page's style sheets and script."""
from pathlib import Path

from report.svg import Line, line_chart, text

HERE = Path(__file__).parent
CHART = (HERE / "chart.css").read_text(encoding="utf-8")
CSS = CHART + (HERE / "page.css").read_text(encoding="utf-8")
JS = (HERE / "page.js").read_text(encoding="utf-8")
ABSENT = '<p class="absent">Absent: this run did not log it.</p>'


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A card with its heading and how to read it, HTML; without a body it is said to be absent."""
    kind = " class=wide" if wide else ""
    return f"<figure{kind}><figcaption><b>{title}</b>{caption}</figcaption>{body or ABSENT}</figure>"


def curves(title: str, caption: str, lines: list[Line], **how) -> str:
    """A figure of curves. title: any text; caption: HTML; how: as in svg.line_chart."""
    return figure(text(title), caption, line_chart(title, lines, **how))


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    body = f'<div class="grid">{"".join(figures)}</div>'
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p>{body}</section>'


def table(head, rows: list[list]) -> str:
    """A table that scrolls where it is too large. head: words; rows: of cells in HTML."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{word}</th>" for word in head)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
