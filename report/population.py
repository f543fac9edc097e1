"""The part of a report that tells of the population: ratings, who met whom, genealogy."""
import itertools
from collections import Counter

from report.layout import curves, figure, section, table
from report.run import MemberLog, RunLog, average, get, known, num, parents
from report.svg import Life, Line, brief, text, tree


def member_lines(run: RunLog, role: str, *keys, label: bool = True) -> list[Line]:
    """A thin line for each member of a role, of the number at keys; they are labelled if they are few."""
    some = run.those(role)
    label = label and len(some) <= 6
    return [Line(m.name, m.points(*keys), m.color, f"{m.style} thin", label=label) for m in some]


def role_mean(run: RunLog, role: str, *keys, label: str = "mean") -> Line:
    """The bold line of a role's mean."""
    return Line(label, run.mean(role, ("members",), *keys), "s0" if role == "student" else "t0", "bold")


def roles(run: RunLog, *keys) -> list[Line]:
    """Both roles' means."""
    return [role_mean(run, role, *keys, label=f"{role}s") for role in ("teacher", "student")]


def by_member(run: RunLog, role: str, *keys) -> list[Line]:
    """A line for each member of a role, and their mean."""
    return [*member_lines(run, role, *keys), role_mean(run, role, *keys)]


def descent(birth: dict) -> str:
    """Of whom a child was born, by which operator, and whom it replaced."""
    names = " and ".join(parents(birth))
    return f"{birth.get('operator')} of {names}, in place of {get(birth, 'victim', 'name')}"


def mark_lives(run: RunLog, lines: list[Line]) -> int:
    """Mark where members were born and replaced, tell on hover of whom; returns how many live to the end."""
    for line in lines:
        m = run.members[line.name]
        line.born, line.died = m.born, m.died
        if m.birth:
            line.tip = f"{m.name}, {descent(m.birth)} after step {m.birth['step']}"
    return sum(not line.died for line in lines)


def ratings(run: RunLog, role: str) -> str:
    """mu and 2 sigma of a role's members, with births and deaths."""
    lines = member_lines(run, role, "mu")
    alive = mark_lives(run, lines)
    for line in lines:
        line.label, line.style = True, run.members[line.name].style + (" fine" if alive > 5 else "")
        for (step, mu), (_, sigma) in zip(line.points, run.members[line.name].points("sigma")):
            if alive <= 16 and None not in (mu, sigma):
                line.band.append((step, mu - 2 * sigma, mu + 2 * sigma))
    shaded = ", shaded 2 sigma" if alive <= 16 else ""
    words = (f"TrueSkill mu{shaded}; circle: born, cross: replaced. Relative: it compares members and says "
             "nothing about progress.")
    return curves(f"Ratings of the {role}s", words, lines, zero=False, ceiling=2.5)


def population(run: RunLog) -> str:
    """Ratings, solve rates, likeness, matrix, genealogy."""
    alike = [*member_lines(run, "teacher", "cosine", label=False),
             *member_lines(run, "student", "cosine", label=False), *roles(run, "cosine")]
    figures = [
        ratings(run, "teacher"), ratings(run, "student"),
        curves("Do the ratings predict?", "Brier score of the solve rates that the ratings predict: 0 is "
               "perfect; always saying 1/2 would cost 0.25 at worst.",
               [Line("Brier", run.points("brier"), "m0")], cap=50),
        curves("Solve rate of each teacher's tasks", "Share of attempts at a teacher's valid tasks that were "
               "right, whoever tried; bold: mean. Low is hard.", by_member(run, "teacher", "solve_rate"),
               share=True, cap=40),
        curves("Solve rate of each student", "Share of a student's attempts that were right, whoever set the "
               "task; bold: mean.", by_member(run, "student", "solve_rate"), share=True, cap=40),
        curves("Length of each student's attempts", "Mean tokens of an attempt; bold: mean. Thinking shows "
               "here as length.", by_member(run, "student", "response_tokens"), cap=40)]
    reasoning = by_member(run, "student", "reasoning_chars")
    if any(y for line in reasoning for _, y in line.points):
        figures.append(curves("Length of each student's reasoning", "Mean characters of what comes before "
                              "the answer; bold: mean.", reasoning, cap=40))
    figures += [
        curves("Likeness of adapters", "Mean cosine of a member's update with the others of its role; bold: "
               "means. 1 = all pull the same way, 0 = unrelated.", alike),
        figure("Who met whom", "Mean solve rate of a teacher's tasks by a student over all their matches, "
               "and how many these were.", matrix(run), wide=True),
        genealogy(run)]
    return section("population", "The population", "Teachers in warm colours, students in cool ones.",
                   figures)


def matrix(run: RunLog, most: int = 24) -> str:
    """Teachers x students from matches.jsonl: mean solve rate and count; if many, those that met most."""
    cells, met, order = {}, (Counter(), Counter()), {name: i for i, name in enumerate(run.members)}
    for match in run.matches:
        pair = str(match.get("teacher")), str(match.get("student"))
        cells.setdefault(pair, []).append(num(match, "solve_rate"))
        for count, name in zip(met, pair):
            count[name] += 1
    if not cells:
        return ""
    often = [[name for name, _ in count.most_common(most)] for count in met]
    teachers, students = [sorted(names, key=lambda name: order.get(name, len(order))) for names in often]
    rows = []
    for teacher in teachers:
        row = f"<th>{text(brief(teacher))}</th>"
        for student in students:
            rates = cells.get((teacher, student), [])
            rate = average(rates)
            shade = "" if rate is None else f' style="--v:{min(1, max(0, rate)):.2f}"'
            said = f"{'–' if rate is None else f'{rate:.2f}'}<small>×{len(rates)}</small>" if rates else ""
            row += f"<td{shade}>{said}</td>"
        rows.append(row)
    head = ["", *(text(brief(student)) for student in students)]
    made = table(head, rows, f' class="matrix" style="max-width:{100 * len(students) + 60}px"')
    who = f"{len(met[0])} teachers and {len(met[1])} students"
    note = f'<p class="note">the {most} with the most matches of {who}</p>'
    return made + (note if max(map(len, met)) > most else "")


def retention(run: RunLog, birth: dict) -> tuple[float, str] | None:
    """What a student kept of what its parents could do: greedy accuracy on the anchors at its first probe,
    over its parents' mean at their last one before its birth; and this in words. None if one is missing."""
    before = []
    for parent in parents(birth):
        before.append([v for step, v in known(run.points("anchors_greedy", parent)) if step <= birth["step"]])
    theirs = average(values[-1] for values in before) if before and all(before) else None
    probes = known(run.points("anchors_greedy", str(birth.get("child"))))
    if not probes or not theirs:
        return None
    step, own = probes[0]
    words = f"anchors, greedy: its parents {theirs:.2f} before its birth, it {own:.2f} at step {step}"
    return own / theirs, words


def life(run: RunLog, m: MemberLog, birth: dict | None, lane: int) -> Life:
    """A member's bar of the tree, with what is told on hover."""
    (first, _), (last, measured) = m.rows[0], m.rows[-1]
    mu, ratio = num(measured, "mu"), num(birth, "norm_ratio")
    tip = [f"{m.name}, {m.role}, steps {first} to {last}", f"last rating {mu:.1f}" if mu is not None else ""]
    if birth:
        kept = retention(run, birth)
        tip += [descent(birth),
                f"norm of its update to its parents': {ratio:.3f}" if ratio is not None else "",
                kept[1] if kept else "", str(birth.get("note") or "")]
    end = f"{m.name} {mu:.1f}" if mu is not None and not m.died else ""
    words = f"{m.name} {birth.get('operator')}" if birth else m.name
    return Life(m.color, lane, first, last, words, end, "\n".join(filter(None, tip)), parents(birth))


def genealogy(run: RunLog, most: int = 240) -> str:
    """The tree of lives and the table of births."""
    births = dict(itertools.islice(run.births.items(), most))
    lives, n_lanes = {}, 0
    for m in run.those("teacher") + run.those("student"):
        birth = births.get(m.name)
        if birth or not m.born:                         # else the log does not say of whom it was born
            victim = str(get(birth, "victim", "name"))
            lives[m.name] = life(run, m, birth, lives[victim].lane if victim in lives else n_lanes)
            n_lanes = max(n_lanes, lives[m.name].lane + 1)
    body = '<p class="absent">Nobody was replaced.</p>'
    if births and lives:
        body = tree("genealogy", lives) + born_table(run, births)
        if len(run.births) > most:
            body += f'<p class="note">the first {most} of {len(run.births)} births</p>'
    return figure("Genealogy", "Each lane is a place in the population: a child goes on where its victim "
                  "ended, and curves come from its parents. The word is the operator, the number at the end "
                  "the rating; hover or tap a bar for the norm ratio and for what a student kept of its "
                  "parents' accuracy on the anchors.", body, wide=True)


def born_table(run: RunLog, births: dict[str, dict]) -> str:
    """Births as a table: what the tree says on hover."""
    rows = []
    for child, birth in births.items():
        lived = run.members[child].points("mu") if child in run.members else []
        kept, last = retention(run, birth), lived[-1][1] if lived else None
        numbers = ((num(birth, "norm_ratio"), 3), (kept and kept[0], 2), (num(birth, "mu"), 1), (last, 1))
        cells = [birth["step"], child, birth.get("operator"), " + ".join(parents(birth)),
                 get(birth, "victim", "name"),
                 *("–" if v is None else f"{v:.{digits}f}" for v, digits in numbers),
                 len(lived), birth.get("note") or ""]
        rows.append("".join(f"<td>{text(brief(cell, 200))}</td>" for cell in cells))
    head = ("step", "child", "operator", "parents", "instead of", "norm ratio", "retention", "mu at birth",
            "mu last", "steps lived", "note")
    return f"<details><summary>{len(births)} births as a table</summary>{table(head, rows)}</details>"
