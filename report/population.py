"""The part of a report that tells of the population: ratings, who met whom, genealogy; and curves by member or by role."""
import itertools
from collections import Counter

from report.layout import figure, section, table
from report.run import Run, get, items, listed, mean, num
from report.svg import Life, Line, brief, line_chart, text, tree


def member_lines(run: Run, role: str, key, style: str = " thin", label: bool | None = None) -> list[Line]:
    """A line for each member of a role, of num(its measures, *key); thin ones are labelled only if they are few."""
    members = [(name, m) for name, m in run.members.items() if m.role == role]
    label = len(members) <= 6 or not style if label is None else label
    return [Line(name, [(step, num(row, *key)) for step, row in m.rows], m.color, m.style + style, label=label)
            for name, m in members]


def role_mean(run: Run, role: str, key, label: str = "mean") -> Line:
    """The bold line of a role's mean."""
    points = run.series(lambda row: mean(num(m, *key) for m in items(row, "members").values() if get(m, "role") == role))
    return Line(label, points, "s0" if role == "student" else "t0", "bold")


def roles(run: Run, key, members: bool = False) -> list[Line]:
    """Both roles' means, and if asked for, their members behind them."""
    behind = [line for role in ("teacher", "student") for line in member_lines(run, role, key, label=False)] if members else []
    return behind + [role_mean(run, role, key, f"{role}s") for role in ("teacher", "student")]


def parents(birth: dict | None) -> list[str]:
    """The names of a child's parents, each once."""
    return list(dict.fromkeys(str(get(p, "name")) for p in listed(birth, "parents")))


def descent(birth: dict) -> str:
    """Of whom a child was born, by which operator, and whom it replaced."""
    names = " and ".join(str(get(p, "name")) for p in listed(birth, "parents"))
    return f"{birth.get('operator')} of {names}, in place of {get(birth, 'victim', 'name')}"


def births_by_child(run: Run) -> dict[str, dict]:
    """{name: its line of genealogy.jsonl}."""
    return {str(b.get("child")): b for b in run.births}


def mark_lives(run: Run, lines: list[Line]) -> int:
    """Mark where members were born and replaced, tell on hover of whom; returns how many live to the end."""
    births, first, last = births_by_child(run), run.metrics[0]["step"], run.metrics[-1]["step"]
    alive = 0
    for line in lines:
        rows = run.members[line.name].rows
        line.born, line.died = rows[0][0] > first, rows[-1][0] < last
        alive += not line.died
        if line.name in births:
            line.tip = f"{line.name}, {descent(births[line.name])} after step {births[line.name]['step']}"
    return alive


def ratings(run: Run, role: str) -> str:
    """mu and 2 sigma of a role's members, with births and deaths."""
    lines = member_lines(run, role, ("mu",), style="")
    alive = mark_lives(run, lines)
    crowded = alive > 16
    for line in lines:
        rows = [(step, num(m, "mu"), num(m, "sigma")) for step, m in run.members[line.name].rows]
        line.style += " fine" if alive > 5 else ""
        band = [(step, mu - 2 * sigma, mu + 2 * sigma) for step, mu, sigma in rows if None not in (mu, sigma)]
        line.band = [] if crowded else band
    shaded = "" if crowded else ", shaded 2 sigma"
    return figure(f"Ratings of the {role}s",
                  f"TrueSkill mu{shaded}; circle: born, cross: replaced. Relative: it compares members and says nothing about "
                  "progress.",
                  line_chart(f"ratings of {role}s", lines, zero=False, ceiling=2.5))


def population(run: Run) -> str:
    """Ratings, solve rates, likeness, matrix, genealogy."""
    lines = lambda role, key: [*member_lines(run, role, key), role_mean(run, role, key)]
    solved = lambda role: line_chart(f"solve rate, {role}s", lines(role, ("solve_rate",)), share=True, cap=40)
    brier = Line("Brier", run.series(lambda r: num(r, "brier")), "m0")
    figures = [
        ratings(run, "teacher"), ratings(run, "student"),
        figure("Do the ratings predict?",
               "Brier score of the solve rates that the ratings predict: 0 is perfect; always saying 1/2 would cost 0.25 at "
               "worst.",
               line_chart("Brier score", [brier], cap=50)),
        figure("Solve rate of each teacher's tasks",
               "Share of attempts at a teacher's valid tasks that were right, whoever tried; bold: mean. Low is hard.",
               solved("teacher")),
        figure("Solve rate of each student", "Share of a student's attempts that were right, whoever set the task; bold: mean.",
               solved("student")),
        figure("Length of each student's attempts",
               "Mean tokens of an attempt; bold: mean. Thinking shows here as length.",
               line_chart("tokens an attempt", lines("student", ("response_tokens",)), cap=40)),
        *reasoning(run),
        figure("Likeness of adapters",
               "Mean cosine of a member's update with the others of its role; bold: means. 1 = all pull the same way, 0 = "
               "unrelated.",
               line_chart("adapter cosine", roles(run, ("cosine",), members=True))),
        figure("Who met whom",
               "Mean solve rate of a teacher's tasks by a student over all their matches, and how many these were.",
               matrix(run), wide=True),
        genealogy(run)]
    return section("population", "The population", "Teachers in warm colours, students in cool ones.", figures)


def reasoning(run: Run) -> list[str]:
    """How long students reason, for bases that show it; [] where no member does."""
    key = ("reasoning_chars",)
    lines = [*member_lines(run, "student", key), role_mean(run, "student", key)]
    if not any(y for line in lines for _, y in line.points):
        return []
    return [figure("Length of each student's reasoning",
                   "Mean characters of what comes before the answer; bold: mean.",
                   line_chart("characters of reasoning", lines, cap=40))]


def matrix(run: Run, most: int = 24) -> str:
    """Teachers x students from matches.jsonl: mean solve rate and count; those with the most matches if there are many."""
    cells, teachers, students = {}, Counter(), Counter()
    for m in run.matches:
        teacher, student = str(m.get("teacher")), str(m.get("student"))
        cells.setdefault((teacher, student), []).append(num(m, "solve_rate"))
        teachers[teacher] += 1
        students[student] += 1
    if not cells:
        return ""
    order = {name: i for i, name in enumerate(run.members)}
    often = lambda count: sorted((n for n, _ in count.most_common(most)), key=lambda n: order.get(n, len(order)))
    rows, columns = often(teachers), often(students)

    def cell(rates: list) -> str:
        rate = mean(rates)
        shade = f' style="--v:{min(1, max(0, rate)):.2f}"' if rate is not None else ""
        said = f"{'–' if rate is None else f'{rate:.2f}'}<small>×{len(rates)}</small>"
        return f"<td{shade}>{said}</td>" if rates else "<td></td>"
    body = [f"<th>{text(brief(t))}</th>" + "".join(cell(cells.get((t, s), [])) for s in columns) for t in rows]
    note = f'<p class="note">the {most} with the most matches of {len(teachers)} teachers and {len(students)} students</p>'
    head = "<th></th>" + "".join(f"<th>{text(brief(s))}</th>" for s in columns)
    made = table(head, body, f' class="matrix" style="max-width:{100 * len(columns) + 60}px"')
    return made + (note if max(len(teachers), len(students)) > most else "")


def retention(run: Run, name: str, birth: dict | None) -> tuple[float, str] | None:
    """What a student kept of what its parents could do: greedy accuracy on the anchors at its first probe over its parents'
    mean at their last one before its birth, and the two in words. None where the log lacks one of them."""
    at = lambda who: [(step, v) for step, v in run.series(lambda r: num(r, "anchors_greedy", who)) if v is not None]
    before = [[v for step, v in at(parent) if step <= birth["step"]] for parent in parents(birth)]
    theirs = mean(v[-1] for v in before) if before and all(before) else None
    if not at(name) or not theirs:
        return None
    step, own = at(name)[0]
    words = f"anchors, greedy: its parents {theirs:.2f} before its birth, it {own:.2f} at step {step}"
    return own / theirs, words


def life(run: Run, name: str, birth: dict | None, lane: int) -> Life:
    """A member's bar of the tree, with what is told on hover."""
    m = run.members[name]
    first, last, mu, ratio = m.rows[0][0], m.rows[-1][0], num(m.rows[-1][1], "mu"), num(birth, "norm_ratio")
    tip = [f"{name}, {m.role}, steps {first} to {last}", f"last rating {mu:.1f}" if mu is not None else ""]
    if birth:
        tip += [descent(birth),
                f"norm of its update to its parents': {ratio:.3f}" if ratio is not None else "",
                kept[1] if (kept := retention(run, name, birth)) else "", str(birth.get("note") or "")]
    end = f"{name} {mu:.1f}" if mu is not None and last == run.metrics[-1]["step"] else ""
    words = f"{name} {birth.get('operator')}" if birth else name
    return Life(m.color, lane, first, last, words, end, "\n".join(filter(None, tip)), parents(birth))


def genealogy(run: Run, most: int = 240) -> str:
    """The tree of lives and the table of births."""
    births = dict(itertools.islice(births_by_child(run).items(), most))
    lives, n_lanes = {}, 0
    for role in ("teacher", "student"):
        for name in (n for n, m in run.members.items() if m.role == role):
            birth = births.get(name)
            victim = str(get(birth, "victim", "name"))
            if birth is None and run.members[name].rows[0][0] > run.metrics[0]["step"]:
                continue                                        # born, but the log does not say of whom
            lives[name] = life(run, name, birth, lives[victim].lane if victim in lives else n_lanes)
            n_lanes = max(n_lanes, lives[name].lane + 1)
    body = '<p class="absent">Nobody was replaced.</p>'
    if births and lives:
        note = f'<p class="note">the first {most} of {len(run.births)} births</p>' if len(run.births) > most else ""
        body = tree("genealogy", lives) + born_table(run, births) + note
    return figure("Genealogy",
                  "Each lane is a place in the population: a child goes on where its victim ended, and curves come from its "
                  "parents. The word is the operator, the number at the end the rating; hover or tap a bar for the norm ratio "
                  "and for what a student kept of its parents' accuracy on the anchors.",
                  body, wide=True)


def born_table(run: Run, births: dict[str, dict]) -> str:
    """Births as a table: what the tree says on hover."""
    number = lambda v, how: "–" if v is None else format(v, how)
    rows = []
    for child, b in births.items():
        lived = run.members[child].rows if child in run.members else []
        names = " + ".join(str(get(p, "name")) for p in listed(b, "parents"))
        kept = retention(run, child, b)
        cells = [b["step"], child, b.get("operator"), names, get(b, "victim", "name"),
                 number(num(b, "norm_ratio"), ".3f"),
                 number(kept and kept[0], ".2f"), number(num(b, "mu"), ".1f"),
                 number(num(lived[-1][1], "mu") if lived else None, ".1f"), len(lived), b.get("note") or ""]
        rows.append("".join(f"<td>{text(brief(c, 200))}</td>" for c in cells))
    columns = ("step", "child", "operator", "parents", "instead of", "norm ratio", "retention", "mu at birth",
               "mu last", "steps lived", "note")
    head = "".join(f"<th>{n}</th>" for n in columns)
    return f"<details><summary>{len(births)} births as a table</summary>{table(head, rows)}</details>"
