"""What opens a report: the result in a sentence, four numbers, and the picture of who learns to think, on the
tasks that are played and on types that nobody trains on. In the page, and as an SVG file."""
from collections.abc import Callable
from pathlib import Path

from infra.errors import demand
from measure.shares import wilson
from report.run import MemberLog, RunLog
from report.svg import Band, H, Line, Points, W, brief, line_chart, text

CHART = (Path(__file__).parent / "chart.css").read_text(encoding="utf-8")
ABSENT = '<p class="absent">Absent: this run did not log it.</p>'
CROWD = 6                           # of a role that live at the end; of more, names would cover each other
# What readers call the types of tasks.
KINDS = dict(
    code_o="output tasks",
    code_i="input tasks",
    code_f="functions to find",
    math="word problems",
    logic="logic puzzles")
MARKS = "Circle: born, cross: replaced. Shaded: 95% intervals. Dotted: the frozen base"
CAPTION = (f"One line a student. To <i>think</i> is to show reasoning before the answer. {MARKS}, the model "
           "without any adapter. Every probe asks the same tasks.")
# Of the picture in a file of its own: it has a paper and headings.
SHEET = """.paper{fill:var(--card)}svg{overflow:visible;font:11px system-ui,sans-serif}
svg text.head{font-size:12px;font-weight:600;fill:var(--ink)}"""


def moved(points: Points, arrow: str) -> str:
    """The first and the last value of a curve as .26 and 1.00; "" of one that has no two."""
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return ""
    first, last = (f"{value:.2f}".removeprefix("0") for value in (values[0], values[-1]))
    return f"{first}{arrow}{last}"


def unseen(run: RunLog) -> dict[str, Points]:
    """{type of tasks that is never trained on: the students' mean accuracy at probes}."""
    return {kind: run.mean("student", "unseen", kind) for kind in run.names("unseen")}


def named(kind: str) -> str:
    """A type of tasks in a reader's words."""
    return text(brief(KINDS.get(kind, kind), 24))


def result(run: RunLog) -> str:
    """The run's result in one sentence, of HTML."""
    numbers = moved(run.mean("student", "heldout_greedy"), " to ")
    if not numbers:
        return "No two probes yet, so there is no before and after."
    others = []
    for kind, points in unseen(run).items():
        values = moved(points, " to ")
        if values:
            others.append(f"{named(kind)} {values}")
    sentence = f"Students went from <b>{numbers}</b> on held-out tasks"
    if others:
        sentence += "; never trained on: " + ", ".join(others)
    return f"{sentence}."


def number(points: Points, title: str, words: str) -> str:
    """A number of the four: from where to where a curve went, and what it means."""
    went = moved(points, " → ") or "–"
    return f"<li><b>{went}</b><span>{title}</span><small>{words}</small></li>"


def numbers(run: RunLog) -> str:
    """The four numbers that matter, first to last, each with what it means."""
    body = number(run.mean("student", "heldout_greedy"), "students on held-out tasks",
                  "Greedy accuracy (the likeliest token each time) on tasks that are never trained on.")
    others = unseen(run)
    if others:
        kind = "math" if "math" in others else list(others)[0]
        body += number(others[kind], f"students on {named(kind)}", "A type of task that nobody trained on.")
    body += number(run.points("think"), "attempts that think",
                   "Share of the students' that show reasoning first.")
    body += number(run.points("base_solve"), "frozen base on the teachers' tasks",
                   "The model without any adapter, which never learns: if it falls, the tasks got harder.")
    return f'<ul class="words">{body}</ul>'


def interval(points: Points, n_tasks: Points) -> Band:
    """Wilson's 95% interval of accuracies over so many tasks at the same steps."""
    band = []
    for (step, p), (_, n) in zip(points, n_tasks):
        if p is not None and n is not None and n > 0:
            band.append((step, *wilson(p * n, n)))
    return band


def by_member(run: RunLog, role: str, points_of: Callable[[MemberLog], Points], mean: Points,
              band: Band = ()) -> list[Line]:
    """A member's points as curves from birth to death, thin and nameless where many end, and the mean."""
    crowded = len(run.living(role)) > CROWD
    lines = []
    for m in run.those(role):
        line = Line(m.name, points_of(m), m.color, f"{m.style} ", born=m.born, died=m.died)
        line.tip = f", {m.descent()}"
        if crowded:
            line.style += "thin"
            line.label = False
        lines.append(line)
    if mean:
        lines.append(Line("mean", mean, "m7", "bold", band))
    return lines


def played(run: RunLog) -> list[Line]:
    """The students on held-out tasks of the type that is played."""
    mean = run.mean("student", "heldout_greedy")
    band = interval(mean, run.points("heldout_n"))
    lines = by_member(run, "student", lambda m: run.points("heldout_greedy", m.name), mean, band)
    return [*lines, Line("base", run.points("heldout_greedy_base"), "base", "d2")]


def never_played(run: RunLog, kind: str, points: Points) -> list[Line]:
    """Everybody's means on a type of tasks that nobody trains on."""
    band = interval(points, run.points("unseen_n", kind))
    return [
        Line("students", points, "s0", "bold", band),
        Line("teachers", run.mean("teacher", "unseen", kind), "t0"),
        Line("thinking", run.mean("student", "unseen_think", kind), "m6", "d1"),
        Line("base", run.points("unseen", kind, "base"), "base", "d2")]


def panels(run: RunLog) -> dict[str, str]:
    """Heading -> chart, "" where nothing was logged: what the run plays by student, then unseen types on
    average."""
    drawn = {
        "Held-out tasks of the type that is played": played(run),
        "Share of attempts that think":
            by_member(run, "student", lambda m: m.points("think"), run.points("think"))}
    others = unseen(run)
    for kind, points in others.items():
        words = named(kind)
        drawn[f"{words[:1].upper()}{words[1:]}, never trained on"] = never_played(run, kind, points)
    if not others:
        drawn["Types never trained on"] = []
    return {heading: line_chart(heading, lines, share=True) for heading, lines in drawn.items()}


def picture(run: RunLog) -> str:
    """The picture as one SVG file, two panels a row. Raises UserError where the run logged nothing of it."""
    drawn = [(heading, chart) for heading, chart in panels(run).items() if chart]
    demand(drawn, f"{run.path}: nothing to draw, neither probes nor thinking in metrics.jsonl")
    n_rows = (len(drawn) + 1) // 2
    width = 2 * W + 20
    height = n_rows * (H + 32) + 16
    body = ""
    for i, (heading, chart) in enumerate(drawn):
        row, column = divmod(i, 2)
        where = f"translate({6 + column * (W + 14)} {24 + row * (H + 32)})"
        head = f'<text class="head" x="30" y="-7">{heading}</text>'
        body += f'<g transform="{where}">{head}{chart}</g>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="Who learns to think"><style>{CHART}{SHEET}</style>'
            f'<rect class="paper" width="100%" height="100%"/>{body}'
            f'<text x="36" y="{height - 8}">{MARKS}.</text></svg>\n')


def opening(run: RunLog) -> str:
    """The part of a report that comes first: the numbers, the picture and how it is read."""
    cells = ""
    for heading, chart in panels(run).items():
        cells += f"<div><h4>{heading}</h4>{chart or ABSENT}</div>"
    return (f'{numbers(run)}<section id="thinking"><h2>Who learns to think</h2><figure class="picture wide">'
            f'<div class="panels">{cells}</div><figcaption>{CAPTION}</figcaption></figure></section>')
