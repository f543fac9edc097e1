"""What opens a report: the result in a sentence, four numbers, and the picture of who learns to think, on the
tasks that are played and on types that nobody trains on. In the page, and as an SVG file."""
from collections.abc import Callable
from pathlib import Path

from infra.errors import UserError
from report.run import RunLog
from report.svg import H, Line, W, brief, line_chart, text

Z = 1.96                            # of a 95% interval
CHART = (Path(__file__).parent / "chart.css").read_text(encoding="utf-8")
ABSENT = '<p class="absent">Absent: this run did not log it.</p>'
CROWD = 6                           # of a role that live at the end; of more, names would cover each other
# What readers call the types of tasks.
KINDS = dict(code_o="output tasks", code_i="input tasks", code_f="functions to find", math="word problems",
             logic="logic puzzles", proof="proofs")
MARKS = "Circle: born, cross: replaced. Shaded: 95% intervals. Dotted: the frozen base"
CAPTION = (f"One line a student. To <i>think</i> is to show reasoning before the answer. {MARKS}, the model "
           "without any adapter. Every probe asks the same tasks.")
# Of the picture in a file of its own: it has a paper and headings.
SHEET = """.paper{fill:var(--card)}svg{overflow:visible;font:11px system-ui,sans-serif}
svg text.head{font-size:12px;font-weight:600;fill:var(--ink)}"""


def moved(points: list, arrow: str) -> str:
    """The first and the last value of a curve as .26 and 1.00; "" of one that has no two."""
    values = [f"{value:.2f}".removeprefix("0") for _, value in points if value is not None]
    return f"{values[0]}{arrow}{values[-1]}" if len(values) > 1 else ""


def unseen(run: RunLog) -> dict[str, list]:
    """{type of tasks that is never trained on: the students' mean accuracy at probes}."""
    return {kind: run.mean("student", ("unseen", kind)) for kind in run.names("unseen")}


def named(kind: str) -> str:
    """A type of tasks in a reader's words."""
    return text(brief(KINDS.get(kind, kind), 24))


def result(run: RunLog) -> str:
    """The run's result in one sentence, of HTML."""
    numbers = moved(run.mean("student", ("heldout_greedy",)), " to ")
    if not numbers:
        return "No two probes yet, so there is no before and after."
    others = {named(kind): moved(points, " to ") for kind, points in unseen(run).items()}
    others = ", ".join(f"{name} {values}" for name, values in others.items() if values)
    others = f"; never trained on: {others}" if others else ""
    return f"Students went from <b>{numbers}</b> on held-out tasks{others}."


def numbers(run: RunLog) -> str:
    """The four numbers that matter, first to last, each with what it means."""
    cards = {"students on held-out tasks": (run.mean("student", ("heldout_greedy",)), "Greedy accuracy (the "
             "likeliest token each time) on tasks that are never trained on.")}
    for kind, points in sorted(unseen(run).items(), key=lambda other: other[0] != "math")[:1]:
        cards[f"students on {named(kind)}"] = points, "A type of task that nobody trained on."
    cards["attempts that think"] = run.points("think"), "Share of the students' that show reasoning first."
    cards["frozen base on the teachers' tasks"] = run.points("base_solve"), (
        "The model without any adapter, which never learns: if it falls, the tasks got harder.")
    body = [f"<li><b>{moved(points, ' → ') or '–'}</b><span>{title}</span><small>{words}</small></li>"
            for title, (points, words) in cards.items()]
    return f'<ul class="words">{"".join(body)}</ul>'


def interval(points: list, n_tasks: list) -> list:
    """[(step, low, high)]: Wilson's 95% interval of accuracies over so many tasks at the same steps."""
    band = []
    for (step, p), (_, n) in zip(points, n_tasks):
        if n and p is not None:
            middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
            half = Z * (max(0, p * (1 - p)) / n + Z * Z / (4 * n * n)) ** .5 / (1 + Z * Z / n)
            band.append((step, middle - half, middle + half))
    return band


def by_member(run: RunLog, role: str, points: Callable, mean: list, band=()) -> list[Line]:
    """points(member) as curves from birth to death, thin and nameless where many end, and the mean."""
    members = run.those(role)
    crowded = sum(not m.died for m in members) > CROWD
    lines = [Line(m.name, points(m), m.color, f"{m.style} {'thin' * crowded}", born=m.born, died=m.died,
                  label=not crowded, tip=f", {m.descent()}") for m in members]
    return [*lines, Line("mean", mean, "m7", "bold", band)] if mean else lines


def panels(run: RunLog) -> list[tuple[str, str]]:
    """[(heading, chart)] of what the run plays by student, then of unseen types on average."""
    mean = run.mean("student", ("heldout_greedy",))
    played = by_member(run, "student", lambda m: run.points("heldout_greedy", m.name), mean,
                       interval(mean, run.points("heldout_n")))
    played.append(Line("base", run.points("heldout_greedy_base"), "base", "d2"))
    thinks = by_member(run, "student", lambda m: m.points("think"), run.points("think"))
    drawn = [("Held-out tasks of the type that is played", played), ("Share of attempts that think", thinks)]
    for kind, points in unseen(run).items():
        drawn.append((f"{named(kind)[:1].upper()}{named(kind)[1:]}, never trained on", [
            Line("students", points, "s0", "bold", interval(points, run.points("unseen_n", kind))),
            Line("teachers", run.mean("teacher", ("unseen", kind)), "t0"),
            Line("thinking", run.mean("student", ("unseen_think", kind)), "m6", "d1"),
            Line("base", run.points("unseen", kind, "base"), "base", "d2")]))
    drawn += [("Types never trained on", [])] if len(drawn) == 2 else []
    return [(heading, line_chart(heading, lines, share=True)) for heading, lines in drawn]


def picture(run: RunLog) -> str:
    """The picture as one SVG file, two panels a row. Raises UserError where the run logged nothing of it."""
    drawn = [panel for panel in panels(run) if panel[1]]
    if not drawn:
        raise UserError(f"{run.path}: nothing to draw, neither probes nor thinking in metrics.jsonl")
    body, width, height = "", 2 * W + 20, (len(drawn) + 1) // 2 * (H + 32) + 16
    for i, (heading, chart) in enumerate(drawn):
        where = f"translate({6 + i % 2 * (W + 14)} {24 + i // 2 * (H + 32)})"
        head = f'<text class="head" x="30" y="-7">{heading}</text>'
        body += f'<g transform="{where}">{head}{chart}</g>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="Who learns to think"><style>{CHART}{SHEET}</style>'
            f'<rect class="paper" width="100%" height="100%"/>{body}'
            f'<text x="36" y="{height - 8}">{MARKS}.</text></svg>\n')


def opening(run: RunLog) -> str:
    """The part of a report that comes first: the numbers, the picture and how it is read."""
    cells = "".join(f"<div><h4>{heading}</h4>{chart or ABSENT}</div>" for heading, chart in panels(run))
    return (f'{numbers(run)}<section id="thinking"><h2>Who learns to think</h2><figure class="picture wide">'
            f'<div class="panels">{cells}</div><figcaption>{CAPTION}</figcaption></figure></section>')
