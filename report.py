"""One HTML file that tells a run, from what its directory holds.

    python report.py out/demo                                   # writes out/demo/report.html
    python report.py out/demo --watch 30                        # again every 30 seconds, until the run is complete
    python report.py out/full --compare out/single --out a.html # the same curves of several runs overlaid, with their budgets

Needs Python alone. What a log lacks is shown as absent; lines that cannot be read are skipped, counted and told (report_run.py).
"""
import argparse
import base64
import hashlib
import itertools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from report_run import MEASURES, Run, accuracy, defaults, duplicates, expected, get, guessing, items, listed, mean, num, refused
from report_svg import CSS, JS, Life, Line, line_chart, short, spark, stack_chart, text, tree

MAX_BYTES = 1_900_000               # of the file
TASK_BYTES = 750_000                # of it, at most, for the browser of tasks
VERDICTS = {"correct": "✓ correct", "wrong": "✗ wrong", "malformed": "∅ malformed"}


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A chart with its heading and the one line that says how to read it; without a body it is said to be absent."""
    body = body or '<p class="absent">Absent: this run did not log it.</p>'
    return f'<figure{" class=wide" if wide else ""}><figcaption><b>{title}</b>{caption}</figcaption>{body}</figure>'


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p><div class="grid">{"".join(figures)}</div></section>'


def table(head: str, rows: list[str], kind: str = "") -> str:
    """A table that scrolls sideways where it is too wide; `head` and `rows` are HTML cells."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def member_lines(run: Run, role: str, key, style: str = " thin", label: bool | None = None) -> list[Line]:
    """A line for each member of a role, of num(its measures, *key); thin ones are labelled only if they are few."""
    members = [(name, m) for name, m in run.members.items() if m.role == role]
    label = len(members) <= 6 or not style if label is None else label
    return [Line(name, [(step, num(row, *key)) for step, row in m.rows], m.color, m.style + style, label=label) for name, m in members]


def role_mean(run: Run, role: str, key, label: str = "mean") -> Line:
    """The bold line of a role's mean."""
    points = run.series(lambda row: mean(num(m, *key) for m in items(row, "members").values() if get(m, "role") == role))
    return Line(label, points, "s0" if role == "student" else "t0", "bold")


def roles(run: Run, key, members: bool = False) -> list[Line]:
    """Both roles' means, and if asked for, their members behind them."""
    behind = [line for role in ("teacher", "student") for line in member_lines(run, role, key, label=False)] if members else []
    return behind + [role_mean(run, role, key, f"{role}s") for role in ("teacher", "student")]


# --- the page's parts, from the top ---------------------------------------------------------------------------------------

def in_words(run: Run) -> str:
    """What rose and what fell, and no more than that."""
    n, out = max(1, len(run.metrics) // 20), []
    digits = lambda v: f"{v:.2f}" if abs(v) < 100 else f"{v:,.0f}"
    for words, value, _ in MEASURES:
        points = [(x, y) for x, y in run.series(value) if y is not None]
        if len(points) < 2:
            continue
        probed = len(points) < len(run.metrics) / 2
        k = 1 if probed else n
        a, b = mean(y for _, y in points[:k]), mean(y for _, y in points[-k:])
        same = digits(a) == digits(b)
        figures = f"<b>{digits(b)}</b> stayed" if same else f"<b>{digits(a)} → {digits(b)}</b> {'rose' if b > a else 'fell'}"
        when = f"probes at steps {points[0][0]} and {points[-1][0]}" if probed else f"first and last {f'{n} steps' if n > 1 else 'step'}"
        out.append(f"<li><div>{figures}<span>{words}</span><small>{when}</small></div>{spark(points)}</li>")
    if not out:
        return f'<p class="absent">{"Too short for a before and after." if run.metrics else "No step is finished yet."}</p>'
    return f'<ul class="words">{"".join(out)}</ul>'


def absolute(run: Run) -> str:
    """Current tasks against the frozen base; anchors."""
    current = [Line("every step", run.series(lambda r: num(r, "solve_rate")), "s3", "thin"),
               Line("frozen base", run.series(lambda r: num(r, "base_solve")), "base", "bold"),
               Line("students", run.series(lambda r: num(r, "student_solve")), "s0", "bold")]
    figures = [figure("The teachers' current tasks", "Share solved by the frozen base, which never learns, and by the students. If the base's "
                      "falls, the tasks got harder; the distance between the two is the students' lead.",
                      line_chart("solve rate on current tasks", current, share=True))]
    for how, words in (("sampled", "at the run's temperature"), ("greedy", "decoded greedily")):
        lines = [Line(name, run.series(lambda r: num(r, f"anchors_{how}", name)), m.color, m.style + " thin", label=False)
                 for name, m in run.members.items() if m.role == "student"]
        lines.append(Line("mean", run.series(accuracy(how)), "s0", "bold"))
        rules = [(v, "frozen base") for _, v in run.series(lambda r: num(r, f"anchors_{how}_base")) if v is not None][-1:]
        figures.append(figure(f"Held-out anchor tasks, {how}", "Accuracy of every student, bold their mean, on tasks that never change and are "
                              f"never trained on, {words}; dotted: the frozen base.",
                              line_chart(f"accuracy on anchors, {how}", lines, rules=rules, zero=False)))
    return section("absolute", "The absolute picture", "Ratings only compare members with each other. These measures have a fixed "
                   "end: a base that never learns, and tasks that never change.", figures)


def difficulty(run: Run) -> str:
    """Complexity, coverage and variety of what teachers write."""
    names = (("AST depth", "depth"), ("McCabe", "mccabe"), ("lines", "lines"), ("variables", "variables"), ("statements", "statements"))
    complexity = [Line(name, run.series(lambda r: num(r, "complexity", key)), f"m{i}") for i, (name, key) in enumerate(names)]
    valid = itertools.accumulate((num(r, "n") or 0) * (num(r, "valid") or 0) for r in run.metrics)
    structures = Line("structures", run.series(lambda r: num(r, "coverage")), "t0", "bold")
    coverage = [Line("valid tasks", [(r["step"], v) for r, v in zip(run.metrics, valid)], "base", "d1"), structures]
    variety = Line("of 64", run.series(lambda r: num(r, "rarefied")), "t0", "bold")
    sizes = [Line("characters", run.series(lambda r: num(r, "output_chars")), "m0"),
             Line("digits", run.series(lambda r: num(r, "output_digits")), "m1")]
    key = ("complexity", "statements")
    figures = [
        figure("Complexity of valid tasks", "Means per task: depth of the syntax tree, McCabe's cyclomatic number, lines, variables, statements.",
               line_chart("complexity", complexity)),
        figure("Statements per task, by teacher", "One line a teacher, bold their mean. A race shows as all of them rising, one runaway as one line.",
               line_chart("statements by teacher", [*member_lines(run, "teacher", key), role_mean(run, "teacher", key)], cap=50)),
        figure("Size of outputs",
               "Characters of a task's output and digits of its longest number: lengthening these makes tasks long rather than hard.",
               line_chart("output size", sizes)),
        figure("Coverage", "Distinct program structures so far (names and constants do not count); dashed: valid tasks. The distance is repetition.",
               line_chart("coverage", coverage) if any(y is not None for _, y in structures.points) else ""),
        figure("Variety, rarefied",
               "Expected distinct structures among 64 of the latest tasks: comparable between populations of any size. 64 = no two alike.",
               line_chart("rarefied", [variety])),
        figure("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.",
               line_chart("entropy", roles(run, ("entropy",)), cap=50))]
    return section("difficulty", "What the teachers write", "Size and variety of the tasks. An archive that forbids repeats makes size "
                   "rise by itself: look at a run with <code>--teacher-reward novelty</code> before believing a curve.", figures)


def validity(run: Run) -> str:
    """Why proposals are refused; trivial, repeated and guessable tasks; rewards; kinds."""
    totals = Counter()
    for row in run.metrics:
        totals.update({reason: num(row, "reasons", reason) or 0 for reason in items(row, "reasons")})
    top = [reason for reason, _ in totals.most_common(7)]
    lots = {reason: [reason] for reason in top} | ({"other": [r for r in totals if r not in top]} if len(totals) > len(top) else {})
    logged = [row for row in run.metrics if "reasons" in row]
    layers = {name: {row["step"]: refused(row, lot) for row in logged} for name, lot in (lots or {"none refused": []}).items()}
    one = lambda name, value, color: Line(name, run.series(value), color)
    shares = [one("nobody solves", lambda r: num(r, "solve_0"), "m1"), one("all solve", lambda r: num(r, "solve_1"), "m0"),
              one("duplicates", duplicates, "m2"),
              one("guessing", guessing, "m3"), one("beats guess", lambda r: num(r, "beats_guessing"), "m5")]
    figures = [
        figure("Refused proposals, by reason", "Share of each step's proposals that the judge refused; what is missing to 1 was valid.",
               stack_chart("reasons for refusal", layers, share=True)),
        figure("Tasks that teach nothing", "Of the valid tasks, those that nobody or everybody solves, and those solved more often than guessing "
               "would; of all proposals, the duplicates; how often guessing the commonest output is right.",
               line_chart("trivial tasks", shares, share=True, cap=60)),
        figure("Reward", "Mean reward of proposals (teachers) and of attempts (students).", line_chart("reward", roles(run, ("reward",)), cap=50))]
    kinds = list(dict.fromkeys(kind for row in run.metrics for kind in items(row, "kinds")))[:12]
    for title, caption, key in (("Solve rate by kind", "The students' solve rate on each kind of task.", "solve_rate"),
                                ("Valid by kind", "Share of the proposals of each kind that are valid.", "valid")):
        if len(kinds) > 1:
            lines = [one(kind, lambda r: num(r, "kinds", kind, key), f"m{i % 8}") for i, kind in enumerate(kinds)]
            figures.append(figure(title, caption, line_chart(title, lines, share=True, cap=50)))
    return section("validity", "What the judge says",
                   "Valid, refused, trivial, repeated: the ways in which teachers fail, or game the reward.", figures)


def ratings(run: Run, role: str) -> str:
    """mu and 2 sigma of a role's members, with births and deaths."""
    lines, first, last = member_lines(run, role, ("mu",), style=""), run.metrics[0]["step"], run.metrics[-1]["step"]
    alive = sum(run.members[line.name].rows[-1][0] == last for line in lines)
    crowded = alive > 16
    for line in lines:
        rows = [(step, num(m, "mu"), num(m, "sigma")) for step, m in run.members[line.name].rows]
        line.born, line.died = rows[0][0] > first, rows[-1][0] < last
        line.style += " fine" if alive > 5 else ""
        line.band = [] if crowded else [(step, mu - 2 * sigma, mu + 2 * sigma) for step, mu, sigma in rows if None not in (mu, sigma)]
    shaded = "" if crowded else ", shaded 2 sigma"
    return figure(f"Ratings of the {role}s", f"TrueSkill mu{shaded}; circle: born, cross: replaced. Relative: it compares members and says nothing "
                  "about progress.", line_chart(f"ratings of {role}s", lines, zero=False, ceiling=2.5))


def population(run: Run) -> str:
    """Ratings, solve rates, likeness, matrix, genealogy."""
    lines = lambda role, key: [*member_lines(run, role, key), role_mean(run, role, key)]
    solved = lambda role: line_chart(f"solve rate, {role}s", lines(role, ("solve_rate",)), share=True, cap=40)
    brier = Line("Brier", run.series(lambda r: num(r, "brier")), "m0")
    figures = [
        ratings(run, "teacher"), ratings(run, "student"),
        figure("Do the ratings predict?",
               "Brier score of the solve rates that the ratings predict: 0 is perfect; always saying 1/2 would cost 0.25 at worst.",
               line_chart("Brier score", [brier], cap=50)),
        figure("Solve rate of each teacher's tasks",
               "Share of attempts at a teacher's valid tasks that were right, whoever tried; bold: mean. Low is hard.",
               solved("teacher")),
        figure("Solve rate of each student", "Share of a student's attempts that were right, whoever set the task; bold: mean.", solved("student")),
        figure("Likeness of adapters",
               "Mean cosine of a member's update with the others of its role; bold: means. 1 = all pull the same way, 0 = unrelated.",
               line_chart("adapter cosine", roles(run, ("cosine",), members=True))),
        figure("Who met whom", "Mean solve rate of a teacher's tasks by a student over all their matches, and how many these were.",
               matrix(run), wide=True),
        genealogy(run)]
    return section("population", "The population", "Teachers in warm colours, students in cool ones.", figures)


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
    rows, columns = (sorted([n for n, _ in count.most_common(most)], key=lambda n: order.get(n, len(order))) for count in (teachers, students))

    def cell(rates: list) -> str:
        rate = mean(rates)
        shade = f' style="--v:{min(1, max(0, rate)):.2f}"' if rate is not None else ""
        return f"<td{shade}>{'–' if rate is None else f'{rate:.2f}'}<small>×{len(rates)}</small></td>" if rates else "<td></td>"
    body = [f"<th>{text(t)}</th>" + "".join(cell(cells.get((t, s), [])) for s in columns) for t in rows]
    note = f'<p class="note">the {most} with the most matches of {len(teachers)} teachers and {len(students)} students</p>'
    head = "<th></th>" + "".join(f"<th>{text(s)}</th>" for s in columns)
    made = table(head, body, f' class="matrix" style="max-width:{100 * len(columns) + 60}px"')
    return made + (note if max(len(teachers), len(students)) > most else "")


def life(run: Run, name: str, birth: dict | None, lane: int) -> Life:
    """A member's bar of the tree, with what is told on hover."""
    m, parents = run.members[name], [str(get(p, "name")) for p in listed(birth, "parents")]
    first, last, mu, ratio = m.rows[0][0], m.rows[-1][0], num(m.rows[-1][1], "mu"), num(birth, "norm_ratio")
    tip = [f"{name}, {m.role}, steps {first} to {last}", f"last rating {mu:.1f}" if mu is not None else ""]
    if birth:
        tip += [f"{birth.get('operator')} of {' and '.join(parents)}, in place of {get(birth, 'victim', 'name')}",
                f"norm of its update to its parents': {ratio:.3f}" if ratio is not None else "", str(birth.get("note") or "")]
    end = f"{name} {mu:.1f}" if mu is not None and last == run.metrics[-1]["step"] else ""
    return Life(m.color, lane, first, last, f"{name} {birth.get('operator')}" if birth else name, end, "\n".join(filter(None, tip)), parents)


def genealogy(run: Run, most: int = 240) -> str:
    """The tree of lives and the table of births."""
    births = {str(b.get("child")): b for b in run.births[:most]}
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
    return figure("Genealogy", "Each lane is a place in the population: a child goes on where its victim ended, and curves come from its parents. "
                  "The word is the operator, the number at the end the rating; hover or tap a bar for the norm ratio.", body, wide=True)


def born_table(run: Run, births: dict[str, dict]) -> str:
    """Births as a table: what the tree says on hover."""
    number = lambda v, how: "–" if v is None else format(v, how)
    rows = []
    for child, b in births.items():
        lived = run.members[child].rows if child in run.members else []
        parents = " + ".join(str(get(p, "name")) for p in listed(b, "parents"))
        cells = [b["step"], child, b.get("operator"), parents, get(b, "victim", "name"), number(num(b, "norm_ratio"), ".3f"),
                 number(num(b, "mu"), ".1f"), number(num(lived[-1][1], "mu") if lived else None, ".1f"), len(lived), b.get("note") or ""]
        rows.append("".join(f"<td>{text(c)}</td>" for c in cells))
    names = ("step", "child", "operator", "parents", "instead of", "norm ratio", "mu at birth", "mu last", "steps lived", "note")
    return f"<details><summary>{len(births)} births as a table</summary>{table(''.join(f'<th>{n}</th>' for n in names), rows)}</details>"


def machine(run: Run) -> str:
    """Seconds and tokens."""
    phases = list(dict.fromkeys(phase for row in run.metrics for phase in items(row, "seconds")))[:12]
    seconds = {phase: {step: v for step, v in run.series(lambda r: num(r, "seconds", phase)) if v is not None} for phase in phases}
    lines = []
    for name, key, color in (("generated", "tokens_generated", "m0"), ("trained", "tokens_trained", "m1")):
        total = [(step, v) for step, v in run.series(lambda r: num(r, key)) if v is not None]
        total = [(-1, 0), *total] if total and total[0][0] == 0 else total
        lines.append(Line(name, [(step, v - before) for (_, before), (step, v) in zip(total, total[1:])], color))
    told = [f"{num(run.metrics[-1], key):,.0f} tokens {word}" for word, key in (("generated", "tokens_generated"), ("trained", "tokens_trained"))
            if num(run.metrics[-1], key) is not None]
    minutes = sum(sum(points.values()) for points in seconds.values()) / 60
    return section("machine", "What it cost", ", ".join([*told, f"{minutes:,.1f} minutes, {len(run.metrics)} steps."]), [
        figure("Seconds per phase", "Wall-clock seconds of a step, by phase; tall bars are steps with a probe.",
               stack_chart("seconds per phase", seconds)),
        figure("Tokens per step", "Tokens generated (probes included), and tokens trained on.", line_chart("tokens per step", lines)),
        figure("Length of a response", "Mean tokens of a proposal (teachers) and of an answer (students).",
               line_chart("response tokens", roles(run, ("response_tokens",)), cap=50))])


# --- the browser of tasks -------------------------------------------------------------------------------------------------

def block(title: str, body) -> str:
    """A named text of a task; "" if it is missing."""
    body = "\n".join(map(str, body)) if isinstance(body, list) else body
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>" if body not in (None, "") else ""


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name in items(row, "attempts"):
        verdicts, answers = listed(row, "attempts", name), listed(row, "answers", name)
        pairs = itertools.zip_longest(map(str, verdicts), [str(a).strip() for a in answers[:len(verdicts)]])
        for (verdict, answer), n in Counter(pairs).most_common():
            out += f"<h4>{text(name)}: {f'{n} × ' if n > 1 else ''}{text(VERDICTS.get(verdict, verdict), 60)}</h4>"
            out += f"<pre>{text(answer, 700)}</pre>" if answer else ""
    return out


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, who tried, what became of it."""
    rate, reason, reward = num(row, "solve_rate"), str(row.get("reason") or ""), num(row, "reward")
    students = " ".join(items(row, "attempts"))
    data = dict(step=row["step"], teacher=row.get("teacher"), kind=row.get("kind"), reason=reason,
                students=students, rate="" if rate is None else f"{rate:.4f}")
    if reason:
        pill = f'<span class="pill no">{text(reason, 30)}</span>'
    else:
        pill = f'<span class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}">{"not tried" if rate is None else f"solved {rate:.2f}"}</span>'
    first = " ".join(str(row.get("program") or row.get("text") or "").split())[:90]
    who = text(row.get("teacher"), 20) + (f" → {text(students, 60)}" if students else "")
    title = f"step {row['step']} · {who} · {text(row.get('kind'), 20)} · <code>{text(first)}</code>"
    refs = ", ".join(map(str, listed(row, "parents")[:12]))
    sizes = [f"{key} {short(num(row, 'complexity', key))}" for key in ("depth", "mccabe", "statements") if num(row, "complexity", key) is not None]
    facts = [f"task {row['id']}" if isinstance(row.get("id"), int) else "", f"reward {short(reward)}" if reward is not None else "", ", ".join(sizes),
             f"written after seeing tasks {refs}" if refs else ""]
    texts = (("program", "program"), ("hint", "message"), ("input", "inputs"), ("output", "outputs"), ("what the teacher wrote", "text"))
    inner = "".join(block(name, row.get(key)) for name, key in texts)
    attributes = " ".join(f'data-{k}="{text(v, 200)}"' for k, v in data.items())
    return (f'<details class="task" {attributes}><summary>{pill} {title}</summary><div>{inner}{attempts(row)}'
            f'<p class="note">{text("; ".join(filter(None, facts)))}</p></div></details>')


def browser(run: Run, room: int) -> str:
    """The sample of tasks that fits into `room` bytes, with its filters."""
    chosen, used = [], 0
    for line, row in run.tasks:
        made = task(row)
        used += len(made.encode())
        if used > room:
            break
        chosen.append((row["step"], line, row, made))
    chosen.sort(key=lambda c: c[:2])
    option = lambda value, word: f'<option value="{text(value, 200)}">{text(word, 40)}</option>'
    select = lambda name, pairs: f'<label>{name} <select name="{name}">{option("", "any")}{"".join(option(*p) for p in pairs)}</select></label>'
    values = lambda key: [(v, v) for v in sorted({str(row.get(key)) for _, _, row, _ in chosen if row.get(key)})]
    students = sorted({s for _, _, row, _ in chosen for s in items(row, "attempts")})
    form = ('<form><label>from step <input type="number" name="from" min="0"></label><label>to <input type="number" name="to" min="0"></label>'
            + select("teacher", values("teacher")) + select("student", [(s, s) for s in students]) + select("kind", values("kind"))
            + select("reason", [("valid", "none: valid"), *values("reason")])
            + select("solved", [("none", "never"), ("some", "sometimes"), ("all", "always")])
            + '<label>text <input name="words"></label><span id="count"></span></form>')
    every = "all of them." if len(chosen) == run.n_tasks else (
        "drawn at random with a fixed seed, as many from every step, one refused for each three valid ones, until this page's room is used up.")
    body = f'<div class="card wide">{form}<div id="list">{"".join(made for *_, made in chosen)}</div></div>'
    return section("tasks", "Browse the tasks", f"{len(chosen):,} of {run.n_tasks:,} proposals ({run.n_valid:,} of these valid): {every}",
                   [body if chosen else '<p class="absent wide">Absent: no proposal can be read from tasks.jsonl.</p>'])


# --- several runs, configuration, the page --------------------------------------------------------------------------------

def labelled(runs: list[Run]) -> list[tuple[str, Run]]:
    """Runs with names that differ: the directory's, or its path where two have the same."""
    count = Counter(run.name for run in runs)
    return [(run.name if count[run.name] == 1 else str(run.path), run) for run in runs]


def compared(runs: list[Run]) -> str:
    """The same curves of several runs, their budgets, and in which flags they differ from the first."""
    named, config, rows, uneven = labelled(runs), runs[0].config, [], False
    for i, (name, run) in enumerate(named):
        cells = ""
        for key in ("tokens_generated", "tokens_trained"):
            value, first = (num(r.metrics[-1], key) if r.metrics else None for r in (run, runs[0]))
            ratio = value / first if value is not None and first else None
            uneven |= ratio is None or abs(ratio - 1) > 0.05
            against = f" (×{ratio:.2f})" if i and ratio is not None else ""
            cells += f'<td class="right">{"absent" if value is None else f"{value:,.0f}"}{against}</td>'
        flags = [k for k in {**config, **run.config} if k not in ("name", "out", "resume") and run.config.get(k) != config.get(k)]
        differ = text(", ".join(f"{k} {run.config.get(k, 'absent')}" for k in flags), 600) or "–"
        mark = f'<td class="legend"><i class="m{i % 8}"></i></td>'
        rows.append(f'{mark}<td>{text(name)}</td><td class="right">{len(run.metrics)}</td>{cells}<td>{differ}</td>')
    head = "".join(f"<th>{word}</th>" for word in ("", "run", "steps", "tokens generated",
                                                   "tokens trained", "flags that differ from the first run's"))
    words = ("<b>The budgets are not the same</b>: they differ by more than 5%, or are not known. A curve that is higher may only have cost more."
             if uneven else "The budgets agree within 5%.")
    figures = [f'<div class="card wide">{table(head, rows)}</div>']
    for title, value, axis in MEASURES:
        lines = [Line(name, run.series(value), f"m{i % 8}", f"d{i // 8 % 3}") for i, (name, run) in enumerate(named)]
        chart = line_chart(title, lines, share=axis == "share", zero=axis != "free", cap=50)
        figures.append(figure(title[0].upper() + title[1:], "One line a run.", chart))
    return section("compared", "Compared", f"{words} The run is the unit of any statistics: one of each is no claim.", figures)


def setup(run: Run) -> str:
    """Configuration, what differs from train.py's defaults, environment."""
    flags, usual, rows, differing = defaults()[0], expected(run.config), [], []
    said = lambda value: text(value if isinstance(value, str) and value else json.dumps(value), 300)
    for key, value in run.config.items():
        known = usual.get(key, ...) is not ...
        meaning = flags[key][1] if key in flags and flags[key][1] is not ... else "" if key in flags or not flags else "not a flag of this train.py"
        rows.append(f"<td><code>{text(key)}</code></td><td>{said(value)}</td><td>{said(usual[key]) if known else '–'}</td><td>{text(meaning)}</td>")
        differing += rows[-1:] if known and usual[key] != value else []
    head, absent = "<th>flag</th><th>value</th><th>default</th><th>meaning</th>", '<p class="absent">Absent: {} could not be read.</p>'
    config = (table(head, differing) if differing else "") + f"<details><summary>All {len(rows)} flags</summary>{table(head, rows)}</details>"
    env = [(key, value if isinstance(value, str) else json.dumps(value, indent=1)) for key, value in run.env.items()]
    folded = lambda v: text(v) if len(v) < 200 else f"<details><summary>show</summary><pre>{text(v)}</pre></details>"
    env = [f"<td>{text(k)}</td><td>{folded(v)}</td>" for k, v in env]
    words = (f"{len(differing) or 'None'} of {len(rows)} flags differ from the defaults of this train.py." if flags else
             "No config.py beside report.py: its defaults are not known.")
    cards = [config if rows else absent.format("config.json"), table("", env) if env else absent.format("env.json")]
    return section("setup", "Configuration and machine", words, [f'<div class="card wide">{card}</div>' for card in cards])


def status(run: Run) -> str:
    """Who played, on what, and how far the run got."""
    c, steps, done = run.config, num(run.config, "steps"), run.metrics[-1]["step"] + 1 if run.metrics else 0
    many = lambda n, word: f"{n} {word}{'s' * (n != 1)}"
    who = " and ".join(many(c[f"{role}s"], role) for role in ("teacher", "student") if f"{role}s" in c)
    who = "One adapter in both roles" if c.get("single") else who
    if steps is None:
        state = many(done, "step")
    else:
        state = f"all {done} steps done" if done >= steps else f"{done} of {steps:.0f} steps done: stopped, or still going"
    who = text(who or many(len(run.members), "member"))
    return f"{who} on {text(c.get('base', 'an unknown base'))}, seed {text(c.get('seed', 'unknown'))}; {state}."


def page(runs: list[Run], watch: float = 0) -> str:
    """The whole report as HTML; the first run is the one it is about. watch: seconds after which the page looks again."""
    run, n_notes = runs[0], 12
    parts = {"compared": ("Compared", compared(runs))} if len(runs) > 1 else {}
    if run.metrics:
        parts |= {part.__name__: (word, part(run)) for part, word in ((absolute, "Absolute"), (difficulty, "Tasks written"), (validity, "Judge"),
                                                                      (population, "Population"), (machine, "Cost"))}
    tail = setup(run)
    room = min(TASK_BYTES, MAX_BYTES - sum(len(html.encode()) for _, html in parts.values()) - len(tail.encode()) - len(CSS + JS) - 30_000)
    parts |= {"tasks": ("Browse tasks", browser(run, max(room, 40_000))), "setup": ("Setup", tail)}
    links = "".join(f'<li><a href="#{name}">{word}</a></li>' for name, (word, _) in parts.items())
    notes = [f"{name}: {note}" if len(runs) > 1 else note for name, r in labelled(runs) for note in r.notes]
    notes = f'<p class="notes">About the logs: {text("; ".join(notes[:n_notes]), 2000)}.</p>' if notes else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()}'"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{text(run.name)}: report</title><style>{CSS}</style></head>'
            f'<body data-watch="{watch:g}"><header><h1>{text(run.name)}</h1><p>{status(run)}</p>{notes}{in_words(run)}</header>'
            f'<nav><ul>{links}</ul></nav><main>{"".join(html for _, html in parts.values())}</main><script>{JS}</script></body></html>\n')


def write(path: Path, others: list[Path], out: Path, watch: float = 0) -> bool:
    """Write the report of the run at `path` whole, under a temporary name first; True if the run has done all its steps."""
    runs = [Run(path), *(Run(other, want_tasks=False) for other in others)]
    steps = num(runs[0].config, "steps")
    finished = bool(runs[0].metrics) and steps is not None and runs[0].metrics[-1]["step"] + 1 >= steps
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        part.write_text(page(runs, 0 if finished else watch), encoding="utf-8")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return finished


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's directory, out/NAME")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], metavar="RUN", help="runs to lay over it")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html in the run's directory")
    parser.add_argument("--watch", type=float, default=0, metavar="SECONDS", help="write it again and again until the run is complete")
    args = parser.parse_args(argv)
    if not 0 <= args.watch < 1e6:
        raise ValueError(f"--watch {args.watch}: give a number of seconds")
    out = args.out or args.run / "report.html"
    if out.is_dir() or not (out.parent.is_dir() or args.out is None):
        raise ValueError(f"--out {out}: give the name of a file in a directory that exists")
    while not (finished := write(args.run, args.compare, out, args.watch)) and args.watch:
        print(f"{out}: written at {time.strftime('%H:%M:%S')}, again in {args.watch:g} s (Ctrl-C ends it)", flush=True)
        time.sleep(args.watch)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB{', the run is complete' if finished and args.watch else ''}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as e:
        print(f"report.py: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
