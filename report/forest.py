"""A forest plot: contrasts with their intervals around zero, as one SVG file, light or dark."""
from report.svg import place, short, svg, text, ticks

WIDTH, LEFT, RIGHT, ROW, HEAD, FOOT = 800, 290, 640, 26, 34, 46
STYLE = """svg{font:13.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.f{fill:#1c2128}.soft{fill:#5b6470}.grid{stroke:#d9dbd6}.zero{stroke:#1c2128}.zone{fill:#eceee9}
.paper{fill:#fff}.mark{fill:#56606b;stroke:#56606b}.mark.seen{fill:#1d4ed8;stroke:#1d4ed8}
.end{text-anchor:end}.mid{text-anchor:middle}
@media(prefers-color-scheme:dark){.f{fill:#e7e9ec}.soft{fill:#a0a8b3}.grid{stroke:#333a44}
.zero{stroke:#e7e9ec}.zone{fill:#222831}.paper{fill:#14181d}.mark{fill:#98a2ae;stroke:#98a2ae}
.mark.seen{fill:#7aa2ff;stroke:#7aa2ff}}"""

# The ablations' contrasts and verdicts as a reader says them; others stand as they are.
CONTRASTS = {
    "full - no-evolution": "evolution against none",
    "full - uniform": "prioritised matching against uniform",
    "full - pair": "8 adapters against 1 pair, equal tokens",
    "full - single-long": "8 adapters against 1, equal tokens",
    "full - single": "8 adapters against 1, equal per adapter",
    "full - frozen-teachers": "teachers that learn against frozen"}
VERDICTS = {"behind": "worse", "ahead": "better", "level": "no effect", "cannot tell": "inconclusive",
            "not tested": "untested"}


def row(line: dict, y: float, scale) -> str:
    """One contrast: its name, its point and interval, its verdict; a title tells the numbers."""
    name = CONTRASTS.get(line["name"], line["name"])
    verdict = VERDICTS.get(line["verdict"], line["verdict"])
    words = f'<text class="f end" x="{LEFT - 16}" y="{y + 4.5}">{text(name)}</text>'
    words += f'<text class="f" x="{RIGHT + 16}" y="{y + 4.5}">{text(verdict)}</text>'
    if line["difference"] is None:
        return words
    kind = "mark seen" if verdict in ("worse", "better") else "mark"
    low, high = line["interval"] or (line["difference"],) * 2
    told = f"{name}: {line['difference']:+.3f} ({low:+.3f} .. {high:+.3f}), {verdict}"
    bar = f'<path class="{kind}" stroke-width="2" d="M{place(scale(low))} {y}H{place(scale(high))}"/>'
    point = f'<circle class="{kind}" cx="{place(scale(line["difference"]))}" cy="{y}" r="4.5"/>'
    return f"{words}<g><title>{text(told)}</title>{bar}{point}</g>"


def forest(title: str, groups: list[tuple[str, list[dict]]], axis: str, small: float, foot: str = "") -> str:
    """The plot. groups: (heading, lines of dict(name, difference, interval, verdict)); small: how far a
    difference counts as small, shaded around zero; axis, foot: words under the plot."""
    lines = [line for _, some in groups for line in some if line["difference"] is not None]
    ends = [end for line in lines for end in (line["interval"] or (line["difference"],) * 2)]
    reach = 1.08 * max([abs(end) for end in ends] + [1.5 * small])

    def scale(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * (value / reach + 1) / 2
    body, y = "", HEAD
    for heading, some in groups:
        y += ROW if heading else 0
        body += f'<text class="soft end" x="{LEFT - 16}" y="{y + 4.5}">{text(heading)}</text>'
        for line in some:
            y += ROW
            body += row(line, y, scale)
        y += ROW * .5
    bottom = y + ROW * .25
    zone = f'x="{place(scale(-small))}" width="{place(scale(small) - scale(-small))}"'
    back = f'<rect class="zone" {zone} y="{HEAD}" height="{bottom - HEAD}"/>'
    for value in ticks(-reach, reach, 6):
        x = place(scale(value))
        kind = "zero" if abs(value) < 1e-9 else "grid"
        back += f'<path class="{kind}" d="M{x} {HEAD}V{bottom}"/>'
        name = short(abs(value)) if value >= 0 else f"\u2212{short(-value)}"
        back += f'<text class="soft mid" x="{x}" y="{bottom + 18}">{name}</text>'
    below = f'<text class="soft mid" x="{(LEFT + RIGHT) / 2}" y="{bottom + 38}">{text(axis)}</text>'
    height = bottom + FOOT + (22 if foot else 0)
    below += f'<text class="soft" x="16" y="{height - 8}">{text(foot)}</text>' if foot else ""
    head = f'<rect class="paper" width="{WIDTH}" height="{height}"/>'
    head += f'<text class="f" x="16" y="20">{text(title)}</text>'
    drawing = svg(f"<style>{STYLE}</style>{head}{back}{body}{below}", title, WIDTH, int(height))
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
