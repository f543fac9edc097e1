"""The part of a report that tells of the population: ratings, who met whom, genealogy; and curves by member or
by role."""
import itertools
from collections import Counter

from report.layout import figure, section, table
from report.run import RunLog, average, get, known, listed, num, of_role
from report.svg import Life, Line, brief, line_chart, text, tree


def member_lines(run: RunLog, role: str, *keys, style: str = " thin", label: bool | None = None) -> list[Line]:
    """A line for each member of a role, of the number at keys; thin ones are labelled only if they are few."""
    members = {name: m for name, m in run.members.items() if m.role == role}
    label = len(members) <= 6 or not style if label is None else label
    return [Line(name, m.points(*keys), m.color, m.style + style, label=label) for name, m in members.items()]


def role_mean(run: RunLog, role: str, *keys, label: str = "mean") -> Line:
    """The bold line of a role's mean."""
    return Line(label, run.series(of_role(role, *keys)), "s0" if role == "student" else "t0", "bold")


def roles(run: RunLog, *keys) -> list[Line]:
    """Both roles' means."""
    return [role_mean(run, role, *keys, label=f"{role}s") for role in ("teacher", "student")]


def parents(birth: dict | None) -> list[str]:
    """The names of a child's parents, each once."""
    return list(dict.fromkeys(str(get(p, "name")) for p in listed(birth, "parents")))


def descent(birth: dict) -> str:
    """Of whom a child was born, by which operator, and whom it replaced."""
    names = " and ".join(str(get(p, "name")) for p in listed(birth, "parents"))
    return f"{birth.get('operator')} of {names}, in place of {get(birth, 'victim', 'name')}"


def births_by_child(run: RunLog) -> dict[str, dict]:
    """{name: its line of genealogy.jsonl}."""
    return {str(birth.get("child")): birth for birth in run.births}


def mark_lives(run: RunLog, lines: list[Line]) -> int:
    """Mark where members were born and replaced, tell on hover of whom; returns how many live to the end."""
    births, first, last = births_by_child(run), run.metrics[0]["step"], run.metrics[-1]["step"]
    for line in lines:
        rows = run.members[line.name].rows
        line.born, line.died = rows[0][0] > first, rows[-1][0] < last
        if birth := births.get(line.name):
            line.tip = f"{line.name}, {descent(birth)} after step {birth['step']}"
    return sum(not line.died for line in lines)


def ratings(run: RunLog, role: str) -> str:
    """mu and 2 sigma of a role's members, with births and deaths."""
    lines = member_lines(run, role, "mu", style="")
    alive = mark_lives(run, lines)
    for line in lines:
        line.style += " fine" if alive > 5 else ""
        for (step, mu), (_, sigma) in zip(line.points, run.members[line.name].points("sigma")):
            if alive <= 16 and None not in (mu, sigma):
                line.band.append((step, mu - 2 * sigma, mu + 2 * sigma))
    shaded = ", shaded 2 sigma" if alive <= 16 else ""
    return figure(f"Ratings of the {role}s", f"TrueSkill mu{shaded}; circle: born, cross: replaced. Relative: it "
                  "compares members and says nothing about progress.",
                  line_chart(f"ratings of {role}s", lines, zero=False, ceiling=2.5))


def by_member(run: RunLog, role: str, key: str, title: str, words: str, name: str, share: bool = False) -> str:
    """A figure of a line a member of a role, and their mean."""
    lines = [*member_lines(run, role, key), role_mean(run, role, key)]
    return figure(title, words, line_chart(name, lines, share=share, cap=40))


def population(run: RunLog) -> str:
    """Ratings, solve rates, likeness, matrix, genealogy."""
    brier = Line("Brier", run.points("brier"), "m0")
    alike = [line for role in ("teacher", "student") for line in member_lines(run, role, "cosine", label=False)]
    figures = [
        ratings(run, "teacher"), ratings(run, "student"),
        figure("Do the ratings predict?", "Brier score of the solve rates that the ratings predict: 0 is perfect; "
               "always saying 1/2 would cost 0.25 at worst.",
               line_chart("Brier score", [brier], cap=50)),
        by_member(run, "teacher", "solve_rate", "Solve rate of each teacher's tasks", "Share of attempts at a teacher's "
                  "valid tasks that were right, whoever tried; bold: mean. Low is hard.", "solve rate, teachers", True),
        by_member(run, "student", "solve_rate", "Solve rate of each student", "Share of a student's attempts that were "
                  "right, whoever set the task; bold: mean.", "solve rate, students", True),
        by_member(run, "student", "response_tokens", "Length of each student's attempts",
                  "Mean tokens of an attempt; bold: mean. Thinking shows here as length.", "tokens an attempt")]
    if any(y for name in run.students() for _, y in run.members[name].points("reasoning_chars")):
        figures.append(by_member(run, "student", "reasoning_chars", "Length of each student's reasoning",
                                 "Mean characters of what comes before the answer; bold: mean.",
                                 "characters of reasoning"))
    figures += [
        figure("Likeness of adapters", "Mean cosine of a member's update with the others of its role; bold: means. "
               "1 = all pull the same way, 0 = unrelated.",
               line_chart("adapter cosine", alike + roles(run, "cosine"))),
        figure("Who met whom",
               "Mean solve rate of a teacher's tasks by a student over all their matches, and how many these were.",
               matrix(run), wide=True),
        genealogy(run)]
    return section("population", "The population", "Teachers in warm colours, students in cool ones.", figures)


def matrix(run: RunLog, most: int = 24) -> str:
    """Teachers x students from matches.jsonl: mean solve rate and count; those with the most matches if there
    are many."""
    cells = {}
    for m in run.matches:
        pair = str(m.get("teacher")), str(m.get("student"))
        cells.setdefault(pair, []).append(num(m, "solve_rate"))
    if not cells:
        return ""
    order = {name: i for i, name in enumerate(run.members)}
    axes, met = [], []
    for role in (0, 1):
        count = Counter()
        for pair, rates in cells.items():
            count[pair[role]] += len(rates)
        met.append(len(count))
        often = [name for name, _ in count.most_common(most)]
        axes.append(sorted(often, key=lambda name: order.get(name, len(order))))
    body = []
    for teacher in axes[0]:
        row = f"<th>{text(brief(teacher))}</th>"
        for student in axes[1]:
            rates = cells.get((teacher, student), [])
            rate = average(rates)
            shade = "" if rate is None else f' style="--v:{min(1, max(0, rate)):.2f}"'
            said = f"{'–' if rate is None else f'{rate:.2f}'}<small>×{len(rates)}</small>" if rates else ""
            row += f"<td{shade}>{said}</td>"
        body.append(row)
    head = ["", *(text(brief(student)) for student in axes[1])]
    made = table(head, body, f' class="matrix" style="max-width:{100 * len(axes[1]) + 60}px"')
    if max(met) > most:
        made += f'<p class="note">the {most} with the most matches of {met[0]} teachers and {met[1]} students</p>'
    return made


def retention(run: RunLog, name: str, birth: dict | None) -> tuple[float, str] | None:
    """What a student kept of what its parents could do: greedy accuracy on the anchors at its first probe over
    its parents' mean at their last one before its birth, and the two in words. None where one is missing."""
    before = []
    for parent in parents(birth):
        before.append([v for step, v in known(run.points("anchors_greedy", parent)) if step <= birth["step"]])
    theirs = average(values[-1] for values in before) if before and all(before) else None
    probes = known(run.points("anchors_greedy", name))
    if not probes or not theirs:
        return None
    step, own = probes[0]
    words = f"anchors, greedy: its parents {theirs:.2f} before its birth, it {own:.2f} at step {step}"
    return own / theirs, words


def life(run: RunLog, name: str, birth: dict | None, lane: int) -> Life:
    """A member's bar of the tree, with what is told on hover."""
    m = run.members[name]
    (first, _), (last, measured) = m.rows[0], m.rows[-1]
    mu, ratio = num(measured, "mu"), num(birth, "norm_ratio")
    tip = [f"{name}, {m.role}, steps {first} to {last}", f"last rating {mu:.1f}" if mu is not None else ""]
    if birth:
        kept = retention(run, name, birth)
        tip += [descent(birth), f"norm of its update to its parents': {ratio:.3f}" if ratio is not None else "",
                kept[1] if kept else "", str(birth.get("note") or "")]
    end = f"{name} {mu:.1f}" if mu is not None and last == run.metrics[-1]["step"] else ""
    words = f"{name} {birth.get('operator')}" if birth else name
    return Life(m.color, lane, first, last, words, end, "\n".join(filter(None, tip)), parents(birth))


def genealogy(run: RunLog, most: int = 240) -> str:
    """The tree of lives and the table of births."""
    births = dict(itertools.islice(births_by_child(run).items(), most))
    lives, n_lanes = {}, 0
    for name, m in sorted(run.members.items(), key=lambda entry: entry[1].role, reverse=True):
        birth = births.get(name)
        victim = str(get(birth, "victim", "name"))
        if birth is None and m.rows[0][0] > run.metrics[0]["step"]:
            continue                                            # born, but the log does not say of whom
        lives[name] = life(run, name, birth, lives[victim].lane if victim in lives else n_lanes)
        n_lanes = max(n_lanes, lives[name].lane + 1)
    body = '<p class="absent">Nobody was replaced.</p>'
    if births and lives:
        body = tree("genealogy", lives) + born_table(run, births)
        if len(run.births) > most:
            body += f'<p class="note">the first {most} of {len(run.births)} births</p>'
    return figure("Genealogy", "Each lane is a place in the population: a child goes on where its victim ended, and "
                  "curves come from its parents. The word is the operator, the number at the end the rating; hover or "
                  "tap a bar for the norm ratio and for what a student kept of its parents' accuracy on the anchors.",
                  body, wide=True)


def born_table(run: RunLog, births: dict[str, dict]) -> str:
    """Births as a table: what the tree says on hover."""
    rows = []
    for child, birth in births.items():
        lived = run.members[child].points("mu") if child in run.members else []
        names = " + ".join(str(get(p, "name")) for p in listed(birth, "parents"))
        ratio, kept, mu = num(birth, "norm_ratio"), retention(run, child, birth), num(birth, "mu")
        last = lived[-1][1] if lived else None
        cells = [birth["step"], child, birth.get("operator"), names, get(birth, "victim", "name"),
                 "–" if ratio is None else f"{ratio:.3f}", "–" if kept is None else f"{kept[0]:.2f}",
                 "–" if mu is None else f"{mu:.1f}", "–" if last is None else f"{last:.1f}",
                 len(lived), birth.get("note") or ""]
        rows.append("".join(f"<td>{text(brief(cell, 200))}</td>" for cell in cells))
    head = ("step", "child", "operator", "parents", "instead of", "norm ratio", "retention", "mu at birth",
            "mu last", "steps lived", "note")
    return f"<details><summary>{len(births)} births as a table</summary>{table(head, rows)}</details>"
