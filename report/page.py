"""Fills the templates of this folder with what runs have logged. Words that never change stand there."""
from collections import Counter
from pathlib import Path
from statistics import fmean
from string import Template

from common import UserError, read_log, wilson
from report import RunLog, get
from report.draw import ABSENT, H, Line, Points, W, line_chart, short, text

HERE = Path(__file__).parent
APART = ("name", "out", "resume")   # flags that differ between any two runs
# What readers call the types of tasks.
KINDS = dict(
    code_o="output tasks",
    code_i="input tasks",
    code_f="functions to find",
    math="word problems",
    logic="logic puzzles")
# Curves in which runs are compared, beside those of held-out tasks.
SAME = {
    "Attempts that think": "think",
    "Frozen base on the teachers' tasks": "base_solve",
    "Students on the teachers' tasks": "solve_rate",
    "Valid proposals": "valid",
    "Statements per task": "statements"}


# --- what the parts are set in ------------------------------------------------------------------------------

def fill(template: str, **parts: object) -> str:
    """Returns a template of this folder with its parts, which are HTML."""
    return Template((HERE / template).read_text(encoding="utf-8")).substitute(parts)


def whole(name: str, lead: str, status: str, body: str) -> str:
    """Returns a page with its styles and its script."""
    return fill(
        "page.html",
        name=text(name),
        lead=lead,
        status=text(status),
        css=fill("chart.css") + fill("page.css"),
        js=fill("page.js"),
        body=body)


def table(head: list[str], rows: list[list]) -> str:
    """Returns a table that scrolls. A row begins with the CSS class of its colour; then come its cells, any
    texts and numbers. None stands for what was not measured."""
    body = ""
    for name in head:
        body += f"<th>{text(name)}</th>"
    for color, *cells in rows:
        body += f'</tr><tr class="{color}">'
        for cell in cells:
            if isinstance(cell, float):
                cell = short(cell)
            if cell is None:
                cell = "–"
            body += f"<td>{text(cell, 600)}</td>"
    return f'<div class="scroll"><table><tr>{body}</tr></table></div>'


def cards(drawn: dict[str, list[Line]], axis: str = "step") -> str:
    """Returns a card with title and chart for each."""
    body = ""
    for title, lines in drawn.items():
        head = f"<figcaption><b>{text(title)}</b></figcaption>"
        body += f"<figure>{head}{line_chart(title, lines, axis)}</figure>"
    return body


# --- curves -------------------------------------------------------------------------------------------------

def palette(named: list[tuple[str, Points]]) -> list[Line]:
    """Returns pairs (name, points) as curves in different colours."""
    lines = []
    for i, (name, points) in enumerate(named):
        lines.append(Line(name, points, f"m{i % 8}", f"d{i // 8 % 3}"))
    return lines


def bold(name: str, points: Points, color: str, n_tasks: Points = ()) -> Line:
    """Returns a bold curve; of accuracies over these numbers of tasks, with their 95% intervals."""
    n_at = dict(n_tasks)
    band = []
    for step, p in points:
        if step in n_at:
            band.append((step, *wilson(p * n_at[step], n_at[step])))
    return Line(name, points, color, "bold", band)


def by_member(run: RunLog, role: str, key: str, n_tasks: Points = ()) -> list[Line]:
    """Returns a measure of each member of a role, from birth to death, and the mean."""
    lines = []
    for m in run.members.values():
        if m.role == role:
            lines.append(m.line([(step, row.get(key)) for step, row in m.rows]))
    return [*lines, bold("mean", run.mean(role, key), "m7", n_tasks)]


def both_roles(run: RunLog, key: str) -> list[Line]:
    """Returns the teachers' mean and the students' mean."""
    teachers = bold("teachers", run.mean("teacher", key), "t0")
    students = bold("students", run.mean("student", key), "s0")
    return [teachers, students]


def by_name(run: RunLog, key: str, *inner: str) -> list[Line]:
    """Returns a curve for each name that the run's lines have under `key`."""
    return palette([(name, run.points(key, name, *inner)) for name in run.names(key)])


def family(run: RunLog) -> list[Line]:
    """Returns the family tree as curves: a life is a level line, and a thin one comes from each parent."""
    lines = []
    for m in run.members.values():
        first = m.rows[0][0]
        last = m.rows[-1][0]
        for name in m.parents():
            parent = run.members[name]
            thread = [(first - 1, -parent.lane), (first, -m.lane)]
            lines.append(Line(f"{name} to {m.name}", thread, parent.color, "thin"))
        lines.append(m.line([(first, -m.lane), (last, -m.lane)]))
    return lines


# --- a run: what it came to, who learns to think, its charts and tables -------------------------------------

def moved(points: Points, arrow: str = " → ") -> str:
    """Returns the first and the last value of a curve, such as .26 → 1.00; – if it has no two."""
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return "–"
    return f"{values[0]:.2f}{arrow}{values[-1]:.2f}".replace("0.", ".")


def called(kind: str) -> str:
    """Returns a type of tasks in a reader's words."""
    return KINDS.get(kind, kind)


def result(run: RunLog) -> str:
    """Returns the run's result as a sentence in HTML."""
    went = moved(run.mean("student", "heldout"), " to ")
    if went == "–":
        return "No two probes yet, so there is no before and after."
    sentence = f"Students went from <b>{went}</b> on held-out tasks"
    joint = "; never trained on:"
    for kind in run.names("unseen"):
        sentence += f"{joint} {text(called(kind))} {moved(run.mean('student', kind), ' to ')}"
        joint = ","
    return f"{sentence}."


def panels(run: RunLog) -> dict[str, list[Line]]:
    """Returns heading -> curves: what is played, by student, and the means on each type that is not."""
    base = Line("base", run.points("heldout_greedy_base"), "base", "d2")
    played = by_member(run, "student", "heldout", run.points("heldout_n"))
    drawn = {"Held-out tasks of the type that is played": [*played, base]}
    drawn["Share of attempts that think"] = by_member(run, "student", "think")
    for kind in run.names("unseen"):
        drawn[f"{called(kind).capitalize()}, never trained on"] = [
            bold("students", run.mean("student", kind), "s0", run.points("unseen_n", kind)),
            Line("teachers", run.mean("teacher", kind), "t0"),
            Line("thinking", run.mean("student", f"{kind} think"), "m6", "d1"),
            Line("base", run.points("unseen", kind, "base"), "base", "d2")]
    return drawn


def picture(run: RunLog) -> str:
    """Returns the panels as one SVG file, two a row. Raises UserError if nothing was logged."""
    body = ""
    n = 0
    for heading, lines in panels(run).items():
        chart = line_chart(heading, lines)
        if chart != ABSENT:
            where = f"translate({6 + n % 2 * (W + 14)} {24 + n // 2 * (H + 32)})"
            head = f'<text class="head" x="30" y="-7">{text(heading)}</text>'
            body += f'<g transform="{where}">{head}{chart}</g>'
            n += 1
    if not n:
        raise UserError(f"{run.path}: nothing to draw, neither probes nor thinking in metrics.jsonl")
    return fill(
        "picture.svg",
        css=fill("chart.css"),
        width=2 * W + 20,
        height=(n + 1) // 2 * (H + 32) + 16,
        body=body)


def progress(run: RunLog) -> dict[str, list[Line]]:
    """Returns the curves of run.html by the names that it gives them."""
    return dict(
        solved=[
            bold("frozen base", run.points("base_solve"), "base"),
            bold("students", run.points("solve_rate"), "s0")],
        statements=by_member(run, "teacher", "statements"),
        structures=[bold("structures", run.points("unique_structures"), "t0")],
        refused=[*by_name(run, "refused"), bold("valid", run.points("valid"), "m7")],
        useless=[
            Line("nobody solves", run.points("solve_0"), "m0"),
            Line("all solve", run.points("solve_1"), "m1"),
            Line("duplicates", run.points("refused", "duplicate"), "m2")],
        guessing=[bold("tasks", run.points("beats_guessing"), "m2")],
        kinds=by_name(run, "task_types", "solve_rate"),
        family=family(run),
        teachers_mu=by_member(run, "teacher", "mu")[:-1],
        students_mu=by_member(run, "student", "mu")[:-1],
        teachers_solve=by_member(run, "teacher", "solve_rate"),
        students_solve=by_member(run, "student", "solve_rate"),
        reward=both_roles(run, "reward"),
        entropy=both_roles(run, "entropy"),
        cosine=both_roles(run, "cosine"),
        seconds=by_name(run, "seconds"))


def members(run: RunLog) -> str:
    """Returns a table of all members, the living first."""
    rows = []
    for m in sorted(run.members.values(), key=lambda m: m.died):
        last, measured = m.rows[-1]
        rows.append([
            m.color,
            m.name,
            f"{m.rows[0][0]} to {last}",
            m.descent(),
            measured["lr"],
            f"{short(measured['mu'])} ± {short(measured['sigma'])}",
            measured["solve_rate"],
            get(m.birth, "norm_ratio")])
    head = ["member", "steps", "born as", "rate", "rating (mu ± sigma)", "solve rate", "norm to its parents'"]
    return table(head, rows)


def alarms(run: RunLog) -> str:
    """Returns a table of the alarms, each where it began."""
    rows = []
    before = {}
    for row in run.metrics:
        for name, words in row["alarms"].items():
            if name not in before:
                rows.append(["", row["step"], name, words])
        before = row["alarms"]
    return table(["step", "alarm", "what it said"], rows)


def block(title: str, body: object) -> str:
    """Returns a named text of a task, "" if it is empty. title: HTML."""
    if not body:
        return ""
    if isinstance(body, list):
        body = "\n".join(body)
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>"


def task(row: dict) -> str:
    """Returns one proposal, folded: who wrote it, who tried, what became of it."""
    attempts = row.get("attempts", {})
    students = text(" ".join(attempts))
    rate = row.get("solve_rate")
    fate = row["reason"] or "not tried"             # for the menus
    pill = f'<span class="pill no">{text(fate)}</span>'
    if rate is not None:
        fate = {0: "never", 1: "always"}.get(rate, "sometimes")
        pill = f'<span class="pill" style="--v:{rate:.2f}">solved {rate:.2f}</span>'
    inner = ""
    for key in ("program", "message", "inputs", "outputs", "text"):
        inner += block(key, row.get(key))
    for name, verdicts in attempts.items():
        answers = map(str.strip, row["answers"][name])
        for (verdict, answer), n in Counter(zip(verdicts, answers)).items():    # equal answers are told once
            title = f'{text(name)}, {n} × <span class="{verdict}">{verdict}</span>'
            inner += block(title, answer or "nothing")
    inner += block("reward", short(row["reward"]))
    begin = " ".join(row.get("program", row.get("text")).split())
    return (f'<details class="task" data-teacher="{text(row["teacher"])}" data-student="{students}" '
            f'data-kind="{text(row["kind"])}" data-solved="{text(fate)}"><summary>'
            f'{pill} step {row["step"]} · '
            f'{text(row["teacher"])} → {students or "–"} · {text(row["kind"])} · '
            f'<code>{text(begin[:90])}</code></summary>{inner}</details>')


def status(run: RunLog) -> str:
    """Returns who played, on what, how far the run got and what it cost."""
    config = run.config
    players = "one adapter in both roles" if config["single"] else f"{config['pop']} members"
    seconds = sum(sum(row["seconds"].values()) for row in run.metrics)
    return (f"{len(run.metrics)} of {config['steps']} steps of {players} on {config['base']}, seed "
            f"{config['seed']}; {seconds / 60:,.1f} minutes, {run.tokens:,} tokens generated.")


# --- several runs -------------------------------------------------------------------------------------------

def compared(runs: list[RunLog]) -> str:
    """Returns the part with the same curves of several runs, their budgets, and how their flags differ."""
    rows = []
    shared = {"Students on held-out tasks": "heldout"}
    for i, run in enumerate(runs):
        differing = []
        for flag, value in run.config.items():
            if flag not in APART and value != runs[0].config.get(flag):
                differing.append(f"{flag} {value}")
        told = ", ".join(differing)
        rows.append([
            f"m{i % 8}",
            run.path,
            len(run.metrics),
            f"{run.tokens:,}",
            told])
        for kind in run.names("unseen"):
            shared[f"Students on {called(kind)}, never trained on"] = kind
    drawn = {}
    for title, key in (shared | SAME).items():
        named = []
        for run in runs:
            named.append((run.name, run.mean("student", key) or run.points(key)))
        drawn[title] = palette(named)
    head = ["run", "steps", "tokens generated", "flags that differ from the first run's"]
    return fill("compared.html", table=table(head, rows), cards=cards(drawn))


def page(runs: list[RunLog]) -> str:
    """Returns the report on the first run as HTML, with the other runs beside it."""
    run = runs[0]
    kind = "".join(run.names("unseen")[-1:])
    settings = [["", *pair] for pair in (run.config | run.env).items()]
    others = compared(runs) if len(runs) > 1 else ""
    body = fill(
        "run.html",
        n_heldout=moved(run.mean("student", "heldout")),
        n_unseen=moved(run.mean("student", kind)),
        unseen=text(called(kind)) or "other types",
        n_think=moved(run.points("think")),
        n_base=moved(run.points("base_solve")),
        panels=cards(panels(run)),
        compared=others,
        n_births=len(run.rows("genealogy")),
        n_members=len(run.members),
        members=members(run),
        alarms=alarms(run),
        n_shown=len(run.tasks),
        n_tasks=f"{run.n_tasks:,}",
        tasks="".join(map(task, run.tasks)),
        settings=table(["flag or machine", "value"], settings),
        **{name: line_chart(name, lines) for name, lines in progress(run).items()})
    return whole(run.name, result(run), status(run), body)


def probed(run: RunLog) -> Points:
    """Returns the students' held-out accuracy at each probe of a run, over the percentage of its tokens."""
    spent = [0]                                     # before each step
    for row in run.metrics:
        spent.append(100 * row["tokens_generated"] / run.tokens)
    return [(spent[step], p) for step, p in run.mean("student", "heldout")]


def mean_of(curves: list[Points]) -> Points:
    """Returns the mean of curves, probe by probe."""
    return [tuple(map(fmean, zip(*probe))) for probe in zip(*curves)]


def arms_of(path: Path) -> list[Line]:
    """Returns a curve for each arm of an ablation: the mean over its seeds, with a band from the lowest to
    the highest. Of several runs with one seed the mean counts."""
    arms = {}                                       # arm -> seed -> curves of its runs
    for row in read_log(path / "results.jsonl"):
        curves = arms.setdefault(row["arm"], {}).setdefault(row["seed"], [])
        curves.append(probed(RunLog(path / row["run"])))
    lines = []
    for arm, seeds in arms.items():
        of_seed = [mean_of(curves) for curves in seeds.values()]
        line = bold(arm, mean_of(of_seed), f"m{len(lines) % 8}")
        line.tip = f", {len(seeds)} seeds"
        for (percent, _), probe in zip(line.points, zip(*of_seed)):
            values = [p for _, p in probe]
            line.band.append((percent, min(values), max(values)))
        lines.append(line)
    return lines


def ablation(path: Path) -> str:
    """Returns the page of what eval.ablate wrote: each arm's curve beside the first arm's, and its table."""
    lines = arms_of(path)
    drawn = {"All arms": lines}
    for line in lines[1:]:
        drawn[line.name + line.tip] = [lines[0], line]
    told = "".join(file.read_text() for file in path.glob("table.txt"))     # when all runs are there
    body = fill("ablation.html", cards=cards(drawn, "% of a run's tokens"), table=text(told, 40_000))
    return whole(path.resolve().name, "Arms that spent the same tokens", "", body)
