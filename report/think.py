"""The picture that opens a report: who discovers that thinking before the answer pays, who inherits it, which
child loses it, and what that does to kinds of tasks that nobody played. In the page, and as an SVG file."""
from dataclasses import dataclass
from pathlib import Path

from report.layout import sheet, table
from report.population import mark_lives
from report.run import KINDS, MemberLog, RunLog, average, known, num, parents
from report.svg import W, Line, brief, line_chart, text

HALF, FEW = 0.5, 3              # a member thinks where half of its attempts do, in the mean of a few steps
HABIT = ("The bundled base was trained, on purpose, to answer without thinking as a habit (the second "
         "phase of its training shows mostly direct answers): it stands for large base models, which can "
         "reason step by step but seldom do so unasked until reinforcement learning with verifiable rewards "
         "finds that it pays.")
# What became of thinking in a student: {fate: (its colour, its words)}.
FATES = dict(discovered=("m0", "discovered it"), inherited=("m2", "inherited it"), lost=("m1", "lost it"),
             never=("base", "never thought"))


def habit(run: RunLog) -> str:
    """HABIT where it is true, which is on the bundled micro base in its own prompt format; else ""."""
    bundled = Path(str(run.config.get("base"))).parts[-2:] == ("micro", "base")
    asked = known(run.points("think")) and (num(run.config, "probe_share") or 1) < 1
    return HABIT if bundled and asked else ""


@dataclass
class Thinker:
    """What a student made of thinking."""
    student: MemberLog
    fate: str                       # one of FATES
    first: int                      # the first step of its life that was logged
    since: int | None               # the first step at which it thought; None: never
    without: int                    # the last step at which it did not; -1: it always thought
    now: float                      # share of its attempts that think, over its last three steps

    def told(self) -> str:
        """Its fate in words."""
        words = FATES[self.fate][1]
        if self.fate == "discovered":
            words = f"{words} at step {self.since}"
            words = words if self.since > self.first else "thought from its first step"
        if self.fate == "lost" and self.since is not None:
            words += f", found it again at step {self.since}"
        gave_up = self.since is not None and self.now < HALF
        return words + (", gave it up" if gave_up else "")


def level(points: list[tuple[int, float]]) -> float:
    """Mean share of some points; 0 of none."""
    return average(share for _, share in points) or 0.0


def knew(run: RunLog, birth: dict | None) -> bool:
    """Whether a parent of this child thought, over its last three steps before the birth."""
    for parent in parents(birth):
        shares = known(run.members[parent].points("think")) if parent in run.members else []
        if level([point for point in shares if point[0] <= birth["step"]][-FEW:]) >= HALF:
            return True
    return False


def thinker(run: RunLog, m: MemberLog) -> Thinker | None:
    """What a student made of thinking; None where that was not logged. It thinks at a step where half of its
    attempts do, in the mean of that step and its neighbours; a child's first three steps are held against its
    parents' last three."""
    points = known(m.points("think"))
    if not points:
        return None
    smooth = [(step, level(points[max(0, i - 1):i + 2])) for i, (step, _) in enumerate(points)]
    since = min([step for step, share in smooth if share >= HALF], default=None)
    without = max([step for step, share in smooth if share < HALF], default=-1)
    if knew(run, m.birth):
        fate = "inherited" if level(points[:FEW]) >= HALF else "lost"
    else:
        fate = "never" if since is None else "discovered"
    return Thinker(m, fate, points[0][0], since, without, level(points[-FEW:]))


def thinkers(run: RunLog) -> list[Thinker]:
    """Every student with what it made of thinking; [] where that was not logged."""
    some = [thinker(run, m) for m in run.those("student")]
    return [t for t in some if t]


def first_and_all(some: list[Thinker]) -> str:
    """In words: who thought first, and from which step on all students do."""
    found = [t for t in some if t.since is not None]
    if not found:
        return "No student has discovered thinking." if some else ""
    first = min(found, key=lambda t: t.since)
    alive = [t for t in some if not t.student.died]
    think = [t for t in alive if t.since is not None and t.now >= HALF]
    words = f"First to think: {first.student.name}, at step {first.since}. "
    if not alive or len(think) < len(alive):
        return words + f"At the end {len(think)} of {len(alive)} students think."
    return words + f"All students think from step {max(t.without for t in some) + 1} on."


def story(run: RunLog, most: int = 60) -> str:
    """Who discovered thinking, who inherited it, who lost it: a table of students."""
    some, rows = thinkers(run), []
    for t in some[:most]:
        m = t.student
        born = f"{m.birth.get('operator')} of {' and '.join(parents(m.birth))}" if m.birth else "founder"
        cells = (m.name, born, f"{m.rows[0][0]} to {m.rows[-1][0]}", t.told(), f"{t.now:.2f}")
        mark = f'<td class="legend"><i class="{FATES[t.fate][0]}"></i></td>'
        rows.append(mark + "".join(f"<td>{text(brief(cell, 60))}</td>" for cell in cells))
    if not rows:
        return ""
    note = f'<p class="note">the first {most} of {len(some)} students</p>' if len(some) > most else ""
    state = " open" if len(some) <= 12 else ""
    title = f"Who discovered it, who inherited it, who lost it: {len(some)} students"
    made = table(("", "student", "born", "steps", "thinking", "share, last 3 steps"), rows)
    return f"<details{state}><summary>{title}</summary>{made}{note}</details>"


def students(run: RunLog, values: dict[str, list], worded: bool) -> list[Line]:
    """A line a student, {name: points}, coloured by its fate, with its birth, its death and dashes from its
    parents; where they are few, with their names. worded: births are written above the chart."""
    colors = {t.student.name: FATES[t.fate][0] for t in thinkers(run)}
    lines = [Line(name, points, colors.get(name, run.members[name].color)) for name, points in values.items()]
    crowded = mark_lives(run, lines) > 6
    for line in lines:
        birth = run.members[line.name].birth
        for parent in parents(birth):
            before = [point for point in known(values.get(parent, [])) if point[0] <= birth["step"]]
            line.origins += before[-1:]
        line.label = not crowded
        line.last_word = "" if crowded else line.name
        line.style = "thin" if crowded else ""
        if birth and worded and not crowded:
            line.word = f"{line.name} = {birth.get('operator')}({', '.join(parents(birth))})"
    return lines


def base_line(run: RunLog, *keys: str) -> Line:
    """What the frozen base does on the tasks that members were asked: it changes only where the tasks do."""
    return Line("base", run.points(*keys), "base", "d2")


def students_chart(name: str, run: RunLog, values: dict[str, list], overall: list, worded: bool = False,
                   more=()) -> str:
    """A chart of {student: points} and, where they are many, their mean, `overall`; more: other lines."""
    lines = students(run, values, worded)
    if any(line.style for line in lines):
        lines.append(Line("mean", overall, "m7", "bold"))
    logged = any(known(line.points) for line in lines)      # the base alone is no picture
    return line_chart(name, [*lines, *more] if logged else [], share=True, cap=40 if len(lines) > 24 else 100)


def played(run: RunLog) -> list[tuple[str, str]]:
    """What the run plays, every student: greedy accuracy at probes, and thinking at every step."""
    greedy = {m.name: run.points("anchors_greedy", m.name) for m in run.those("student")}
    shares = {m.name: m.points("think") for m in run.those("student")}
    mean = run.mean("student", ("anchors_greedy",))
    accuracy = students_chart("greedy accuracy of the students on the anchors", run, greedy, mean,
                              more=[base_line(run, "anchors_greedy_base")])
    think = students_chart("share of the students' attempts that think",
                           run, shares, run.points("think"), worded=True)
    return [("Greedy accuracy on held-out anchor tasks", accuracy), ("Share of attempts that think", think)]


def not_played(run: RunLog, width: int, height: int) -> list[tuple[str, str]]:
    """A panel for each kind that nobody played: mean accuracy of students and of teachers, the share of the
    students' answers that think, and the frozen base."""
    out = []
    for kind in run.names("heldout"):
        lines = [Line("students", run.mean("student", ("heldout", kind)), "s0", "bold"),
                 Line("teachers", run.mean("teacher", ("heldout", kind)), "t0"),
                 Line("thinking", run.mean("student", ("heldout_think", kind)), "m6", "d1"),
                 base_line(run, "heldout", kind, "base")]
        chart = line_chart(f"held-out {kind}", lines, share=True, width=width, height=height)
        out.append((f"Not played: {text(brief(KINDS.get(kind, kind), 24))}", chart))
    return out


def legend(run: RunLog) -> list[tuple[str, str]]:
    """(colour, words) of the fates that are in the picture."""
    fates = {t.fate for t in thinkers(run)}
    return [FATES[fate] for fate in FATES if fate in fates]


def picture(run: RunLog) -> str:
    """The picture as one SVG file, for a README. Raises ValueError where the run logged nothing of it."""
    above = [panel for panel in played(run) if panel[1]]
    below = [panel for panel in not_played(run, width=2 * W // 3 - 3, height=170) if panel[1]]
    if not above and not below:
        raise ValueError(f"{run.path}: neither probes nor shares of thinking in metrics.jsonl, so there is "
                         "nothing to draw; give a run of this train.py that has done its first step")
    rows = [above, *(below[i:i + 3] for i in range(0, len(below), 3))]
    colors = ", ".join(f'<tspan class="{color}">{words}</tspan>' for color, words in legend(run))
    foot = [f"Students that {colors}."] if colors else []
    foot.append("Circle: born, cross: replaced; fine dots lead from parents to child. "
                "Dotted: the frozen base, which never learns.")
    return sheet("Who learns to think", [row for row in rows if row], foot)


def caption(run: RunLog) -> str:
    """How the picture is read, and how sure it is."""
    errors = known(run.points("anchors_greedy_se"))
    sure = f" Standard error of the students' mean at the last probe: {errors[-1][1]:.3f}." if errors else ""
    if (num(run.config, "probe_share") or 1) < 1:
        sure += " Probes between the first and the last ask fewer tasks."
    return ("Above, every student on the kinds that are played: greedy accuracy at probes, and the share of "
            "its attempts that think before they answer, at every step. Circle: born, cross: replaced; fine "
            "dots lead from its parents to a child. Below, kinds that nobody played: means of students and "
            "of teachers, and the share of the students' answers that think. Dotted: the frozen base, which "
            "never learns. A student thinks at a step where half of its attempts do, in the mean of that "
            "step and its neighbours." + sure)


def opening(run: RunLog) -> str:
    """The part of a report that comes first: the picture, its story, and what the base stands for."""
    absent = '<p class="absent">Absent: this run did not log it.</p>'
    others = not_played(run, 300, 190) or [("Kinds that nobody played", "")]
    drawn = ""
    for name, panels in (("played", played(run)), ("others", others)):
        cells = "".join(f"<div><h4>{heading}</h4>{chart or absent}</div>" for heading, chart in panels)
        drawn += f'<div class="{name}">{cells}</div>'
    colors = "".join(f'<li><i class="{color}"></i>{words}</li>' for color, words in legend(run))
    said = f"<p>{text(habit(run))}</p>" if habit(run) else ""
    return (f'<section id="thinking"><h2>Who learns to think</h2><p>{text(first_and_all(thinkers(run)))}</p>'
            f'<figure class="picture"><ul class="legend">{colors}</ul>{drawn}'
            f"<figcaption>{caption(run)}</figcaption>{story(run)}</figure>{said}</section>")
