"""What opens a report: the result in a sentence and four numbers, and the picture of who learns to think, on
the tasks that are played and on types that nobody trains on. In the page, and as an SVG file."""
from pathlib import Path

from report.layout import sheet
from report.population import mark_lives
from report.run import KINDS, MemberLog, RunLog, average, known, parents
from report.svg import Line, W, brief, line_chart, text

HALF, FEW = 0.5, 3              # a member thinks where half of its attempts do, in the mean of a few steps
Z = 1.96                        # of a 95% interval
HABIT = ("The bundled base was trained, on purpose, to answer without thinking as a habit: it stands for "
         "large base models, which can reason step by step but seldom do so unasked until reinforcement "
         "learning with verifiable rewards finds that it pays.")
# What became of thinking in a student: {fate: (its colour, its words)}.
FATES = dict(discovered=("m0", "discovered it"), inherited=("m2", "inherited it"), lost=("m1", "lost it"),
             never=("base", "never thought"))
PLAYED = "Held-out tasks of the type that is played"
THINKS = "Share of attempts that think"


def habit(run: RunLog) -> str:
    """HABIT where it is true, which is on the bundled micro base in its own prompt format; else ""."""
    bundled = Path(str(run.config.get("base"))).parts[-2:] == ("micro", "base")
    return HABIT if bundled and run.config.get("prompt_format") == "micro" else ""


# ---- in words ----------------------------------------------------------------------------------------------

def digits(v: float) -> str:
    """A share as .26, 1.00."""
    return f"{v:.2f}".removeprefix("0")


def moved(points: list, arrow: str = " to ") -> str:
    """The first and the last value of a curve; "" of one that has no two."""
    values = [value for _, value in known(points)]
    return f"{digits(values[0])}{arrow}{digits(values[-1])}" if len(values) > 1 else ""


def unseen(run: RunLog) -> dict[str, list]:
    """{type of tasks that is never trained on: the students' mean accuracy at probes}."""
    return {kind: run.mean("student", ("unseen", kind)) for kind in run.names("unseen")}


def named(kind: str) -> str:
    """A type of tasks in a reader's words."""
    return text(brief(KINDS.get(kind, kind), 24))


def result(run: RunLog) -> str:
    """The run's result in one sentence, of HTML."""
    numbers = moved(run.mean("student", ("heldout_greedy",)))
    others = [f"{named(kind)} {moved(points)}" for kind, points in unseen(run).items() if moved(points)]
    others = "; never trained on: " + ", ".join(others[:4]) if others else ""
    if not numbers:
        return "No two probes yet, so there is no before and after."
    return f"Students went from <b>{numbers}</b> on held-out tasks{others}."


def numbers(run: RunLog) -> str:
    """The four numbers that matter, first to last, each with what it means."""
    cards = [(run.mean("student", ("heldout_greedy",)), "students on held-out tasks", "Accuracy on tasks "
              "that are never trained on, greedy: the likeliest token each time.")]
    others = sorted(unseen(run).items(), key=lambda other: other[0] != "math")
    for kind, points in others[:1]:
        cards.append((points, f"students on {named(kind)}", "A type of task that nobody trained on: what "
                      "carries over."))
    cards += [(run.points("think"), "attempts that think", "Share of the students' answers that show "
               "reasoning before the answer."),
              (run.points("base_solve"), "frozen base on the teachers' tasks", "The model without any "
               "adapter, which never learns: if it falls, the tasks got harder.")]
    body = "".join(f"<li><b>{moved(points, ' → ') or '–'}</b><span>{title}</span><small>{words}</small></li>"
                   for points, title, words in cards)
    return f'<ul class="words">{body}</ul>'


# ---- who thinks --------------------------------------------------------------------------------------------

def level(points: list[tuple[int, float]]) -> float:
    """Mean share of some points; 0 of none."""
    return average(share for _, share in points) or 0.0


def since(points: list[tuple[int, float]]) -> int | None:
    """The first step at which half of the attempts think, in the mean of that step and its neighbours."""
    smooth = [(step, level(points[max(0, i - 1):i + 2])) for i, (step, _) in enumerate(points)]
    return min([step for step, share in smooth if share >= HALF], default=None)


def fate(run: RunLog, m: MemberLog) -> str | None:
    """One of FATES; None where thinking was not logged. A child's first three steps are held against its
    parents' last three before its birth."""
    points = known(m.points("think"))
    if not points:
        return None
    for parent in parents(m.birth):
        shares = known(run.members[parent].points("think")) if parent in run.members else []
        if level([point for point in shares if point[0] <= m.birth["step"]][-FEW:]) >= HALF:
            return "inherited" if level(points[:FEW]) >= HALF else "lost"
    return "never" if since(points) is None else "discovered"


def first_and_all(run: RunLog) -> str:
    """In words: who thought first, and how many do at the end."""
    thought = {m.name: known(m.points("think")) for m in run.those("student")}
    firsts = [(since(points), name) for name, points in thought.items() if since(points) is not None]
    alive = [name for name, points in thought.items() if points and not run.members[name].died]
    if not firsts:
        return "No student has discovered thinking." if alive else ""
    step, name = min(firsts)
    n = sum(level(thought[who][-FEW:]) >= HALF for who in alive)
    return f"First to think: {name}, at step {step}. At the end {n} of {len(alive)} students think."


# ---- the picture -------------------------------------------------------------------------------------------

def interval(points: list, n_tasks: dict[int, float]) -> list:
    """[(step, low, high)]: Wilson's 95% interval of accuracies over n_tasks[step] tasks."""
    band = []
    for step, p in known(points):
        n = n_tasks.get(step)
        if n:
            middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
            half = Z * (max(0, p * (1 - p)) / n + Z * Z / (4 * n * n)) ** .5 / (1 + Z * Z / n)
            band.append((step, middle - half, middle + half))
    return band


def students(run: RunLog, values: dict[str, list], n_tasks: dict[int, float]) -> list[Line]:
    """A line a student, {name: points}, coloured by its fate, with its birth, its death and dots from its
    parents; where they are few, with names and intervals."""
    fates = {m.name: fate(run, m) for m in run.those("student")}
    lines = []
    for name, points in values.items():
        color = FATES[fates[name]][0] if fates[name] else run.members[name].color
        lines.append(Line(name, points, color))
    crowded = mark_lives(run, lines) > 6
    for line in lines:
        birth = run.members[line.name].birth
        for parent in parents(birth):
            before = [point for point in known(values.get(parent, [])) if point[0] <= birth["step"]]
            line.origins += before[-1:]
        line.label, line.style = not crowded, "thin" if crowded else ""
        line.last_word = "" if crowded else line.name
        line.band = [] if crowded else interval(line.points, n_tasks)
    return lines


def base_line(run: RunLog, *keys: str) -> Line:
    """What the frozen base does on the tasks that members were asked."""
    return Line("base", run.points(*keys), "base", "d2")


def students_chart(name: str, run: RunLog, values: dict[str, list], overall: list, n_tasks: dict,
                   more=()) -> str:
    """A chart of {student: points} and, where they are many, their mean, `overall`; more: other lines."""
    lines = students(run, values, n_tasks)
    if any(line.style for line in lines):
        lines.append(Line("mean", overall, "m7", "bold", interval(overall, n_tasks)))
    logged = any(known(line.points) for line in lines)      # the base alone is no picture
    return line_chart(name, [*lines, *more] if logged else [], share=True, cap=40 if len(lines) > 24 else 100)


def played(run: RunLog) -> list[tuple[str, str]]:
    """What the run plays, every student: greedy accuracy at probes, and thinking at every step."""
    greedy = {m.name: run.points("heldout_greedy", m.name) for m in run.those("student")}
    shares = {m.name: m.points("think") for m in run.those("student")}
    n_tasks = dict(known(run.points("heldout_n")))
    mean = run.mean("student", ("heldout_greedy",))
    accuracy = students_chart(PLAYED, run, greedy, mean, n_tasks, [base_line(run, "heldout_greedy_base")])
    return [(PLAYED, accuracy), (THINKS, students_chart(THINKS, run, shares, run.points("think"), {}))]


def not_played(run: RunLog, width: int, height: int) -> list[tuple[str, str]]:
    """A panel for each type that nobody trains on: mean accuracy of students and of teachers, the share of
    the students' answers that think, and the frozen base."""
    out = []
    for kind, points in unseen(run).items():
        n_tasks = dict(known(run.points("unseen_n", kind)))
        lines = [Line("students", points, "s0", "bold", interval(points, n_tasks)),
                 Line("teachers", run.mean("teacher", ("unseen", kind)), "t0"),
                 Line("thinking", run.mean("student", ("unseen_think", kind)), "m6", "d1"),
                 base_line(run, "unseen", kind, "base")]
        title = f"{named(kind)[:1].upper()}{named(kind)[1:]}, never trained on"
        out.append((title, line_chart(f"held-out {kind}", lines, share=True, width=width, height=height)))
    return out


def legend(run: RunLog) -> list[tuple[str, str]]:
    """(colour, words) of the fates that are in the picture."""
    fates = {fate(run, m) for m in run.those("student")}
    return [FATES[name] for name in FATES if name in fates]


def picture(run: RunLog) -> str:
    """The picture as one SVG file, for a README. Raises ValueError where the run logged nothing of it."""
    run = run.on_same_tasks()
    above = [panel for panel in played(run) if panel[1]]
    below = [panel for panel in not_played(run, width=2 * W // 3 - 3, height=170) if panel[1]]
    if not above and not below:
        raise ValueError(f"{run.path}: neither probes nor shares of thinking in metrics.jsonl, so there is "
                         "nothing to draw; give a run of this train.py that has done its first step")
    rows = [above, *(below[i:i + 3] for i in range(0, len(below), 3))]
    colors = ", ".join(f'<tspan class="{color}">{words}</tspan>' for color, words in legend(run))
    foot = [f"Thinking, that is, reasoning before the answer: students that {colors}."] if colors else []
    foot.append("Circle: born, cross: replaced; fine dots lead from parents to child. Shaded: 95% intervals. "
                "Dotted: the frozen base.")
    return sheet("Who learns to think", [row for row in rows if row], foot)


def opening(run: RunLog) -> str:
    """The part of a report that comes first: the numbers, the picture and how it is read."""
    same = run.on_same_tasks()
    absent = '<p class="absent">Absent: this run did not log it.</p>'
    drawn = ""
    for name, panels in (("played", played(same)),
                         ("others", not_played(same, 300, 190) or [("Types never trained on", "")])):
        cells = "".join(f"<div><h4>{heading}</h4>{chart or absent}</div>" for heading, chart in panels)
        drawn += f'<div class="{name}">{cells}</div>'
    colors = "".join(f'<li><i class="{color}"></i>{words}</li>' for color, words in legend(run))
    caption = ("Every student, coloured by what became of <i>thinking</i>, that is, of showing reasoning "
               "before the answer. Circle: born, cross: replaced by a child; fine dots lead from parents to "
               "child. Below, types of tasks that nobody trains on. Shaded: 95% intervals; dotted: the "
               "frozen base, the model without any adapter. Curves ask the same tasks at every probe, the "
               "numbers above all of them where first and last probe do.")
    more = f"<p>{text(habit(run))}</p>" if habit(run) else ""
    return (f'{numbers(run)}<section id="thinking"><h2>Who learns to think</h2>'
            f'<p>{text(first_and_all(run))}</p><figure class="picture"><ul class="legend">{colors}</ul>'
            f"{drawn}<figcaption>{caption}</figcaption></figure>{more}</section>")
