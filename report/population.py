"""The part of a report that tells of the population: ratings, solve rates, genealogy."""
import itertools

from report.layout import curves, figure, section
from report.run import MemberLog, RunLog, get, num, parents
from report.svg import Life, Line, tree


def role_mean(run: RunLog, role: str, *keys, label: str = "mean") -> Line:
    """The bold line of a role's mean."""
    return Line(label, run.mean(role, ("members",), *keys), "s0" if role == "student" else "t0", "bold")


def roles(run: RunLog, *keys) -> list[Line]:
    """Both roles' means."""
    return [role_mean(run, role, *keys, label=f"{role}s") for role in ("teacher", "student")]


def by_member(run: RunLog, role: str, *keys) -> list[Line]:
    """A thin line for each member of a role, of the number at keys, labelled if few, and their mean."""
    some = run.those(role)
    lines = [Line(m.name, m.points(*keys), m.color, f"{m.style} thin", label=len(some) <= 6) for m in some]
    return [*lines, role_mean(run, role, *keys)]


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
    lines = by_member(run, role, "mu")[:-1]
    alive = mark_lives(run, lines)
    for line in lines:
        m = run.members[line.name]
        line.label, line.style = True, m.style + (" fine" if alive > 5 else "")
        for (step, mu), (_, sigma) in zip(line.points, m.points("sigma")):
            if alive <= 16 and None not in (mu, sigma):
                line.band.append((step, mu - 2 * sigma, mu + 2 * sigma))
    words = ("TrueSkill's estimate of skill (mu), shaded 2 sigma where members are few; circle: born, cross: "
             "replaced. Relative: it compares members and says nothing about progress.")
    return curves(f"Ratings of the {role}s", words, lines, zero=False)


def population(run: RunLog) -> str:
    """Ratings, solve rates, likeness, genealogy."""
    return section("population", "The population", "Each member is an adapter, a small update of the same "
                   "frozen base. Teachers in warm colours, students in cool ones.", [
        ratings(run, "teacher"), ratings(run, "student"),
        curves("Solve rate of each teacher's tasks", "Share of attempts at a teacher's valid tasks that were "
               "right, whoever tried; bold: mean. Low is hard.", by_member(run, "teacher", "solve_rate"),
               share=True, cap=40),
        curves("Solve rate of each student", "Share of a student's attempts that were right, whoever set the "
               "task; bold: mean.", by_member(run, "student", "solve_rate"), share=True, cap=40),
        curves("Length of each student's attempts", "Mean tokens of an attempt; bold: mean. Thinking shows "
               "here as length.", by_member(run, "student", "response_tokens"), cap=40),
        curves("Likeness of adapters", "Mean cosine of a member's update with the others of its role. "
               "1: copies of each other, 0: unrelated.", roles(run, "cosine")),
        genealogy(run)])


def life(m: MemberLog, birth: dict | None, lane: int) -> Life:
    """A member's bar of the tree, with what is told on hover."""
    (first, _), (last, measured) = m.rows[0], m.rows[-1]
    mu, ratio, niche = num(measured, "mu"), num(birth, "norm_ratio"), get(measured, "niche")
    tip = [f"{m.name}, {m.role}, steps {first} to {last}", f"last rating {mu:.1f}" if mu is not None else "",
           f"niche: {niche}" if niche else ""]
    if birth:
        tip += [descent(birth), str(birth.get("note") or ""),
                f"norm of its update to its parents': {ratio:.3f}" if ratio is not None else ""]
    end = f"{m.name} {mu:.1f}" if mu is not None and not m.died else ""
    words = f"{m.name} {birth.get('operator')}" if birth else m.name
    return Life(m.color, lane, first, last, words, end, "\n".join(filter(None, tip)), parents(birth))


def genealogy(run: RunLog, most: int = 240) -> str:
    """The tree of lives."""
    births = dict(itertools.islice(run.births.items(), most))
    lives, n_lanes = {}, 0
    for m in run.those("teacher") + run.those("student"):
        birth = births.get(m.name)
        if birth or not m.born:                         # else the log does not say of whom it was born
            victim = str(get(birth, "victim", "name"))
            lives[m.name] = life(m, birth, lives[victim].lane if victim in lives else n_lanes)
            n_lanes = max(n_lanes, lives[m.name].lane + 1)
    body = '<p class="absent">Nobody was replaced.</p>'
    if births and lives:
        note = f'<p class="note">the first {most} of {len(run.births)} births</p>'
        body = tree("genealogy", lives) + (note if len(run.births) > most else "")
    return figure("Genealogy", "Each lane is a place in the population: a child goes on where its victim "
                  "ended, and curves come from its parents. The word is the operator that made it, a "
                  "mutation or a crossover of updates; the number at the end is the rating. Hover for more.",
                  body, wide=True)
