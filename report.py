"""One HTML file that tells a run, from what its directory holds.

    python report.py out/demo                                   # writes out/demo/report.html
    python report.py out/demo --watch 30                        # again every 30 seconds, until the run is complete
    python report.py out/full --compare out/single --out a.html # the same curves of several runs overlaid, with their budgets

Needs Python alone. Whatever a log lacks is shown as absent; lines that cannot be read are skipped, counted and told.
"""
import argparse
import ast
import base64
import hashlib
import itertools
import json
import math
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from report_svg import CSS, JS, Life, Line, line_chart, short, spark, stack_chart, text, tree

HERE = Path(__file__).resolve().parent
MAX_BYTES = 1_900_000               # of the file
TASK_BYTES = 750_000                # of it, at most, for the browser of tasks
VERDICTS = {"correct": "✓ correct", "wrong": "✗ wrong", "malformed": "∅ malformed"}


# --- reading ------------------------------------------------------------------------------------------------------------

def get(row, *keys):
    """row[key][key]..., or None where something is missing or no dict."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def num(row, *keys) -> float | None:
    """The number at row[key]...; None if it is missing, no number or not one that can be drawn (NaN, infinite)."""
    value = get(row, *keys)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15 else None


def items(row, *keys) -> dict:
    """The dict at row[key]..., or an empty one."""
    value = get(row, *keys)
    return value if isinstance(value, dict) else {}


def mean(values) -> float | None:
    """Mean of what is not None, or None."""
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


@dataclass
class Member:
    """One member's life: (step, its measures) of every step it took part in."""
    role: str
    color: str
    style: str
    rows: list[tuple[int, dict]] = field(default_factory=list)


class Run:
    """A run's directory, read. Raises ValueError if it is none."""

    def __init__(self, path: Path, want_tasks: bool = True):
        if not path.is_dir():
            raise ValueError(f"{path}: no such directory; give a run's directory, out/NAME")
        if not (path / "metrics.jsonl").exists() and not (path / "config.json").exists():
            raise ValueError(f"{path} is no run: neither metrics.jsonl nor config.json is in it; give a run's directory, out/NAME")
        self.path, self.name, self.notes = path, path.resolve().name, []
        self.config, self.env = self.whole("config.json"), self.whole("env.json")
        self.metrics = list({row["step"]: row for row in self.lines("metrics.jsonl")}.values())
        self.metrics.sort(key=lambda row: row["step"])
        self.matches = [m for m in self.lines("matches.jsonl")]
        self.births = [b for b in self.lines("genealogy.jsonl", missing_is_news=False)]
        self.members = self.lives()
        self.n_tasks, self.n_valid, self.tasks = self.sample() if want_tasks else (0, 0, [])

    def whole(self, name: str) -> dict:
        """A JSON file that is one object; {} and a note where it is not."""
        try:
            data = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError, RecursionError) as e:
            self.notes.append(f"{name} could not be read ({type(e).__name__})")
            return {}
        return data if isinstance(data, dict) else {}

    def lines(self, name: str, missing_is_news: bool = True):
        """The objects with a step in a log, one after the other; the rest is counted in a note."""
        if not (self.path / name).exists():
            if missing_is_news:
                self.notes.append(f"{name} is not there")
            return
        bad = 0
        with open(self.path / name, "rb") as f:
            for line in f:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                step = num(row, "step")
                if step is None or step != int(step) or not 0 <= step < 1e9:
                    bad += bool(line.strip())
                    continue
                yield row | {"step": int(step)}
        if bad:
            self.notes.append(f"{bad} line{'s' if bad > 1 else ''} of {name} skipped: cut off, or not an object with a step")

    def lives(self) -> dict[str, Member]:
        """Members by name, in the order of their appearance; each role has its family of colours."""
        members, seen = {}, Counter()
        for row in self.metrics:
            for name, m in items(row, "members").items():
                if name not in members:
                    role = "teacher" if get(m, "role") == "teacher" else "student"
                    i = seen[role]
                    seen[role] += 1
                    members[name] = Member(role, f"{role[0]}{i % 6}", f"d{i // 6 % 3}")
                members[name].rows.append((row["step"], m))
        return members

    def sample(self) -> tuple[int, int, list[dict]]:
        """(proposals, valid ones, some of both in the order they are to be shown in, the most wanted first)."""
        rng, lots, n, n_valid = random.Random(0), {}, 0, 0
        keep = max(6, 4000 // max(1, len(self.metrics)))
        for row in self.lines("tasks.jsonl"):
            valid = not row.get("reason")
            lot = lots.setdefault((row["step"], valid), [])
            lot.append((rng.random(), n, row))
            if len(lot) > 2 * keep:
                lot[:] = sorted(lot, key=lambda entry: entry[0])[:keep]
            n, n_valid = n + 1, n_valid + valid
        ranked = []
        for (_, valid), lot in lots.items():
            for i, (draw, order, row) in enumerate(sorted(lot, key=lambda entry: entry[0])[:keep]):
                ranked.append((i if valid else 3 * i + 2, draw, order, row))
        return n, n_valid, [(order, row) for _, _, order, row in sorted(ranked, key=lambda entry: entry[:2])]

    def series(self, value) -> list:
        """[(step, value(row))] over the run."""
        return [(row["step"], value(row)) for row in self.metrics]

    def alive(self, role: str) -> list[tuple[str, Member]]:
        """Members of a role that took part in the last step."""
        return [(name, m) for name, m in self.members.items() if m.role == role and m.rows[-1][0] == self.metrics[-1]["step"]]


def defaults() -> tuple[dict, dict]:
    """({flag: (default, help)}, {style: presets}) as train.py says, read as text, so that torch need not be there."""
    flags, presets = {}, {}
    try:
        body = ast.parse((HERE / "train.py").read_text()).body
    except (OSError, SyntaxError):
        return flags, presets
    literal = lambda node: ast.literal_eval(node) if isinstance(node, (ast.Constant, ast.UnaryOp)) else ...
    words = lambda call: {k.arg: literal(k.value) for k in call.keywords}
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            flags |= {f.target.id: (literal(f.value.args[0]), literal(f.value.args[1])) for f in node.body if isinstance(f, ast.AnnAssign)}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and getattr(node.targets[0], "id", "") == "PRESETS":
            presets |= {literal(k): words(v) for k, v in zip(node.value.keys, node.value.values)}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) and isinstance(node.value, ast.BinOp):
            if isinstance(node.value.left, ast.Subscript) and isinstance(node.value.right, ast.Call):
                presets[literal(node.targets[0].slice)] = presets.get(literal(node.value.left.slice), {}) | words(node.value.right)
    return flags, presets


# --- what is measured -----------------------------------------------------------------------------------------------------

def duplicates(row) -> float | None:
    """Share of proposals that repeat an earlier one; older logs say it among the reasons alone."""
    n, logged = num(row, "n"), num(row, "duplicates")
    return logged if logged is not None or not n else (num(row, "reasons", "duplicate") or 0) / n


def accuracy(how: str):
    """Mean accuracy of the students on the anchors."""
    return lambda row: mean(num(row, f"anchors_{how}", name) for name in items(row, f"anchors_{how}"))


def guessing(row) -> float | None:
    """How often the archive's most frequent output would be right: the worst of the kinds."""
    rates = [num(row, "guess_rate", kind) for kind in items(row, "guess_rate")]
    return max([r for r in rates if r is not None], default=None)


# What is said in words and compared between runs: words, what one line of metrics.jsonl says, whether it is a share.
MEASURES = (
    ("the frozen base's solve rate on the teachers' current tasks", lambda r: num(r, "base_solve"), True),
    ("the students' solve rate on these tasks", lambda r: num(r, "student_solve"), True),
    ("the students' accuracy on held-out anchor tasks, sampled", accuracy("sampled"), True),
    ("the students' accuracy on held-out anchor tasks, greedy", accuracy("greedy"), True),
    ("statements per task", lambda r: num(r, "complexity", "statements"), False),
    ("depth of the syntax tree", lambda r: num(r, "complexity", "depth"), False),
    ("McCabe complexity", lambda r: num(r, "complexity", "mccabe"), False),
    ("the students' solve rate, every step", lambda r: num(r, "solve_rate"), True),
    ("share of proposals that are valid", lambda r: num(r, "valid"), True),
    ("share of proposals that are duplicates", duplicates, True),
    ("distinct structures among 64 of the latest tasks", lambda r: num(r, "rarefied"), False),
    ("distinct structures so far", lambda r: num(r, "coverage"), False),
)


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A chart with its heading and the one line that says how to read it; without a body it is said to be absent."""
    body = body or '<p class="absent">Absent: this run did not log it.</p>'
    return f'<figure{" class=wide" if wide else ""}><figcaption><b>{title}</b>{caption}</figcaption>{body}</figure>'


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p><div class="grid">{"".join(figures)}</div></section>'


def member_lines(run: Run, role: str, value, **more) -> list[Line]:
    """A thin line for each member of a role; `value` takes a member's measures."""
    return [Line(name, [(step, value(m)) for step, m in member.rows], member.color, member.style, **more)
            for name, member in run.members.items() if member.role == role]


def role_mean(run: Run, role: str, value, label: str = "mean") -> Line:
    """The bold line of a role's mean."""
    points = run.series(lambda row: mean(value(m) for m in items(row, "members").values() if get(m, "role") == role))
    return Line(label, points, "s0" if role == "student" else "t0", "bold")


def thin(lines: list[Line]) -> list[Line]:
    """The same lines in the background: without labels where there are many."""
    for line in lines:
        line.style += " thin"
        line.label = len(lines) <= 6
    return lines


# --- the page's parts -------------------------------------------------------------------------------------------------------

def in_words(run: Run) -> str:
    """What rose and what fell, and no more than that."""
    n = max(1, len(run.metrics) // 20)
    out = []
    for words, value, share in MEASURES:
        points = [(x, y) for x, y in run.series(value) if y is not None]
        if len(points) < 2:
            continue
        probed = len(points) < len(run.metrics) / 2
        k = 1 if probed else n
        a, b = mean(y for _, y in points[:k]), mean(y for _, y in points[-k:])
        digits = lambda v: f"{v:.2f}" if abs(v) < 100 else f"{v:,.0f}"
        moved = "stayed at" if digits(a) == digits(b) else "rose" if b > a else "fell"
        figures = digits(b) if moved == "stayed at" else f"{digits(a)} → {digits(b)}"
        when = f"probes at step {points[0][0]} and {points[-1][0]}" if probed else f"first and last {n} steps" if n > 1 else "first and last step"
        out.append(f'<li><div><b>{figures}</b> {moved.replace(" at", "")}<span>{words}</span><span>{when}</span></div>{spark(points)}</li>')
    if not out:
        return '<p class="absent">Too short a run for a before and after.</p>' if run.metrics else '<p class="absent">No step is finished yet.</p>'
    return f'<ul class="words">{"".join(out)}</ul>'


def absolute(run: Run) -> str:
    """Current tasks against the frozen base; anchors."""
    base, same, every = (Line(name, run.series(value), color, style) for name, value, color, style in (
        ("frozen base", lambda r: num(r, "base_solve"), "base", "bold"), ("students", lambda r: num(r, "student_solve"), "s0", "bold"),
        ("every step", lambda r: num(r, "solve_rate"), "s3", "thin")))
    figures = [figure("The teachers' current tasks", "Share solved by the frozen base, which never learns, and by the students. If the base's falls, the tasks "
                      "got harder; the distance between the two is what the students learned.", line_chart("solve rate on current tasks", [base, same, every], share=True))]
    for how, words in (("sampled", "at the run's temperature"), ("greedy", "decoded greedily")):
        lines = [Line(name, run.series(lambda r: num(r, f"anchors_{how}", name)), m.color, m.style) for name, m in run.members.items() if m.role == "student"]
        for line in lines:
            line.label = line.points[-1][1] is not None
        lines = thin([line for line in lines if any(y is not None for _, y in line.points)])
        lines += [Line("mean", run.series(accuracy(how)), "s0", "bold")]
        rules = [(v, "frozen base") for _, v in run.series(lambda r: num(r, f"anchors_{how}_base")) if v is not None][-1:]
        figures.append(figure(f"Held-out anchor tasks, {how}", f"Every student's accuracy on tasks that never change and are never trained on, {words}; dotted: the frozen base.",
                              line_chart(f"accuracy on anchors, {how}", lines, rules=rules, zero=False) if lines[-1].points else ""))
    return section("absolute", "The absolute picture", "Ratings only compare members with each other. These measures have a fixed end: a base that never learns, tasks that never change.", figures)


def difficulty(run: Run) -> str:
    """Complexity and coverage of valid tasks."""
    size = lambda key: run.series(lambda r: num(r, "complexity", key))
    names = (("AST depth", "depth"), ("McCabe", "mccabe"), ("lines", "lines"), ("variables", "variables"), ("statements", "statements"))
    seen = [Line("structures", run.series(lambda r: num(r, "coverage")), "t0", "bold"), Line("valid tasks", list(zip(
        [r["step"] for r in run.metrics], itertools.accumulate((num(r, "n") or 0) * (num(r, "valid") or 0) for r in run.metrics))), "base", "thin")]
    by_teacher = member_lines(run, "teacher", lambda m: num(m, "complexity", "statements"))
    figures = [
        figure("Complexity of valid tasks", "Means per task: depth of the syntax tree, McCabe's cyclomatic number, lines, variables, statements.",
               line_chart("complexity", [Line(name, size(key), f"m{i}") for i, (name, key) in enumerate(names)])),
        figure("Statements per task, by teacher", "One line a teacher, bold their mean. A race shows as all of them rising, one runaway as one line.",
               line_chart("statements by teacher", [*thin(by_teacher), role_mean(run, "teacher", lambda m: num(m, "complexity", "statements"))], cap=50)),
        figure("Coverage", "Distinct program structures so far (names and constants do not count). The distance to the valid tasks is repetition.", line_chart("coverage", seen) if any(y for _, y in seen[0].points) else ""),
        figure("Variety, rarefied", "Expected distinct structures among 64 of the latest tasks: comparable between populations of different size. 64 = no two alike.",
               line_chart("rarefied", [Line("of 64", run.series(lambda r: num(r, "rarefied")), "t0", "bold")], rules=[(64, "")]) if any(num(r, "rarefied") is not None for r in run.metrics) else "")]
    return section("difficulty", "What the teachers write", "Size and variety of the tasks. With an archive that forbids repeats, size rises by itself: compare with a novelty run before believing a curve.", figures)


def validity(run: Run) -> str:
    """Why proposals are refused; trivial, repeated and guessable tasks; size of outputs."""
    totals = Counter()
    for row in run.metrics:
        totals.update({reason: n for reason in items(row, "reasons") if (n := num(row, "reasons", reason)) is not None and n > 0})
    top = [reason for reason, _ in totals.most_common(7)]
    share = lambda row, reason: (num(row, "reasons", reason) or 0) / (num(row, "n") or math.inf)
    layers = {reason: dict(run.series(lambda r: share(r, reason))) for reason in top}
    if len(totals) > len(top):
        layers["other"] = dict(run.series(lambda r: sum(share(r, reason) for reason in totals if reason not in top)))
    if not totals and any("reasons" in r for r in run.metrics):
        layers["none refused"] = {r["step"]: 0.0 for r in run.metrics}
    one = lambda name, value, color: Line(name, run.series(value), color)
    shares = [one("nobody solves", lambda r: num(r, "solve_0"), "m1"), one("all solve", lambda r: num(r, "solve_1"), "m0"), one("duplicates", duplicates, "m2"),
              one("guessing", guessing, "m3"), one("beats guess", lambda r: num(r, "beats_guessing"), "m5")]
    figures = [
        figure("Refused proposals, by reason", "Share of each step's proposals that the judge refused; what is missing to 1 was valid.", stack_chart("reasons for refusal", layers, share=True)),
        figure("Tasks that teach nothing", "Of the valid tasks, those that nobody or everybody solves; of all proposals, the duplicates; how often guessing the commonest output would be right.",
               line_chart("trivial tasks", shares, share=True, cap=60)),
        figure("Size of outputs", "Characters of a task's output and digits of its longest number: teachers that lengthen these make tasks long rather than hard.",
               line_chart("output size", [one("characters", lambda r: num(r, "output_chars"), "m0"), one("digits", lambda r: num(r, "output_digits"), "m1")]))]
    kinds = list(dict.fromkeys(kind for row in run.metrics for kind in items(row, "kinds")))
    for title, caption, key in (("Solve rate by kind", "The students' solve rate on each kind of task.", "solve_rate"), ("Valid by kind", "Share of proposals of each kind that are valid.", "valid")):
        if len(kinds) > 1:
            lines = [one(kind, lambda r: num(r, "kinds", kind, key), f"m{i % 8}") for i, kind in enumerate(kinds[:12])]
            figures.append(figure(title, caption, line_chart(title, lines, share=True, cap=50)))
    return section("validity", "What the judge says", "Valid, refused, trivial, repeated: the ways in which teachers fail or game the reward.", figures)


def population(run: Run) -> str:
    """Ratings, solve rates, matrix, genealogy, cosines."""
    figures, last, born = [], run.metrics[-1]["step"], run.metrics[0]["step"]
    for role, words in (("teacher", "teachers"), ("student", "students")):
        lines = member_lines(run, role, lambda m: num(m, "mu"))
        crowded = len(run.alive(role)) > 16
        for line in lines:
            member = run.members[line.name]
            if not crowded:
                line.band = [(s, num(m, "mu") - 2 * num(m, "sigma"), num(m, "mu") + 2 * num(m, "sigma")) for s, m in member.rows
                             if None not in (num(m, "mu"), num(m, "sigma"))]
            line.born, line.died = member.rows[0][0] > born, member.rows[-1][0] < last
        figures.append(figure(f"Ratings of the {words}", f"TrueSkill mu{'' if crowded else ', shaded 2 sigma'}; circle: born, cross: replaced. Relative: a rating compares members and says nothing about progress.",
                              line_chart(f"ratings of {words}", lines, zero=False, ceiling=2.5)))
    for role, title, caption in (("teacher", "Solve rate of each teacher's tasks", "Share of attempts at a teacher's valid tasks that were right, by whichever student it met; bold: mean. Low is hard."),
                                 ("student", "Solve rate of each student", "Share of a student's attempts that were right, at whichever teacher's tasks it met; bold: mean.")):
        value = lambda m: num(m, "solve_rate")
        figures.append(figure(title, caption, line_chart(title, [*thin(member_lines(run, role, value)), role_mean(run, role, value)], share=True, cap=40)))
    for title, caption, key in (("Likeness of adapters", "Mean cosine of a member's update with the others of its role; bold: means. 1 = all pull the same way, 0 = unrelated.", "cosine"),
                                ("Reward", "Mean reward of proposals (teachers) and of attempts (students).", "reward"), ("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.", "entropy")):
        value = lambda m: num(m, key)
        both = [role_mean(run, role, value, f"{role}s") for role in ("teacher", "student")]
        lone = [line for role in ("teacher", "student") for line in member_lines(run, role, value, label=False)] if key == "cosine" else []
        figures.append(figure(title, caption, line_chart(title, [*[line for line in lone if setattr(line, "style", line.style + " thin") is None], *both], cap=50)))
    figures.append(figure("Do the ratings predict?", "Brier score of the solve rate that the ratings predict: 0 is perfect, 0.25 what saying 1/2 costs at worst.",
                          line_chart("Brier score", [Line("Brier", run.series(lambda r: num(r, "brier")), "m0")], cap=50)))
    figures += [figure("Who met whom", "Mean solve rate of a teacher's tasks by a student over all their matches, and how many these were.", matrix(run), wide=True), genealogy(run)]
    return section("population", "The population", "Teachers in warm colours, students in cool ones.", figures)


def matrix(run: Run, most: int = 24) -> str:
    """Teachers x students from matches.jsonl: mean solve rate and count; those with the most matches if there are many."""
    cells, teachers, students = {}, Counter(), Counter()
    for m in run.matches:
        pair = str(m.get("teacher")), str(m.get("student"))
        cells.setdefault(pair, []).append(num(m, "solve_rate"))
        teachers[pair[0]] += 1
        students[pair[1]] += 1
    if not cells:
        return ""
    order = {name: i for i, name in enumerate(run.members)}
    rows, columns = (sorted([name for name, _ in count.most_common(most)], key=lambda n: order.get(n, 1e9)) for count in (teachers, students))
    out = "<tr><th></th>" + "".join(f"<th>{text(s)}</th>" for s in columns) + "</tr>"
    for t in rows:
        out += f"<tr><th>{text(t)}</th>"
        for s in columns:
            rates = cells.get((t, s), [])
            rate = mean(rates)
            shown = "–" if rate is None else f"{rate:.2f}"
            out += f'<td style="--v:{min(1, max(0, rate or 0)):.2f}">{shown}<small>×{len(rates)}</small></td>' if rates else "<td></td>"
        out += "</tr>"
    hidden = f'<p class="note">the {most} with the most matches of {len(teachers)} teachers and {len(students)} students</p>' if max(len(teachers), len(students)) > most else ""
    return f'<div class="scroll"><table class="matrix">{out}</table></div>{hidden}'


def genealogy(run: Run, most: int = 240) -> str:
    """The tree of lives and the table of births."""
    births = {str(b.get("child")): b for b in run.births[:most]}
    lives, free = {}, 0
    for role in ("teacher", "student"):
        for name, m in ((n, m) for n, m in run.members.items() if m.role == role):
            b = births.get(name)
            victim = str(get(b, "victim", "name"))
            if b is None and m.rows[0][0] > run.metrics[0]["step"]:
                continue                                        # born, but the log does not say of whom
            lane = lives[victim].lane if b and victim in lives else free
            free += lane == free
            parents = [str(get(p, "name")) for p in b["parents"]] if b and isinstance(b.get("parents"), list) else []
            first, mu = m.rows[0][0], num(m.rows[-1][1], "mu")
            tip = [f"{name}, {m.role}, steps {first} to {m.rows[-1][0]}", f"last rating {mu:.1f}" if mu is not None else ""]
            if b:
                ratio = num(b, "norm_ratio")
                tip += [f"{b.get('operator')} of {' and '.join(parents)}, in place of {victim}", f"norm of its update / its parents': {ratio:.3f}" if ratio is not None else "",
                        str(b.get("note") or "")]
            lives[name] = Life(name, m.color, lane, first, m.rows[-1][0], f"{name} {b.get('operator')}" if b else name, "\n".join(filter(None, tip)), parents)
    if not run.births:
        body = '<p class="absent">Nobody was replaced.</p>'
    else:
        body = tree("genealogy", lives) + born_table(run, list(births.items())) if lives else ""
        body += f'<p class="note">the first {most} of {len(run.births)} births</p>' if len(run.births) > most else ""
    return figure("Genealogy", "Each lane is a place in the population; a child goes on where its victim ended, and curves come from its parents. "
                  "The word is the operator; touch a bar for the norm ratio.", body, wide=True)


def born_table(run: Run, births: list) -> str:
    """Births as a table: what the tree says on hover."""
    row = "<tr><th>step</th><th>child</th><th>operator</th><th>parents</th><th>instead of</th><th>norm ratio</th><th>mu at birth</th><th>mu last</th><th>steps lived</th></tr>"
    number = lambda v, how: "–" if v is None else format(v, how)
    for child, b in births:
        rows = run.members[child].rows if child in run.members else []
        parents = [str(get(p, "name")) for p in b["parents"]] if isinstance(b.get("parents"), list) else []
        cells = [b["step"], child, b.get("operator"), " + ".join(parents), get(b, "victim", "name"), number(num(b, "norm_ratio"), ".3f"), number(num(b, "mu"), ".1f"),
                 number(num(rows[-1][1], "mu") if rows else None, ".1f"), len(rows)]
        row += "<tr>" + "".join(f"<td>{text(c)}</td>" for c in cells) + "</tr>"
    return f'<details><summary>{len(births)} births as a table</summary><div class="scroll"><table>{row}</table></div></details>'


def machine(run: Run) -> str:
    """Seconds and tokens."""
    phases = list(dict.fromkeys(phase for row in run.metrics for phase in items(row, "seconds")))[:12]
    seconds = {phase: {s: v for s, v in run.series(lambda r: num(r, "seconds", phase)) if v is not None} for phase in phases}
    lines = []
    for name, key, color in (("generated", "tokens_generated", "m0"), ("trained", "tokens_trained", "m1")):
        total = [(s, v) for s, v in run.series(lambda r: num(r, key)) if v is not None]
        lines.append(Line(name, [(s, v - before) for (s, v), (_, before) in zip(total, [(None, 0 if total and total[0][0] == 0 else None), *total]) if before is not None], color))
    length = [role_mean(run, role, lambda m: num(m, "response_tokens"), f"{role}s") for role in ("teacher", "student")]
    return section("machine", "What it cost", budget(run), [
        figure("Seconds per phase", "Wall-clock seconds of a step, by phase; the high bars are the steps with a probe.", stack_chart("seconds per phase", seconds)),
        figure("Tokens per step", "Tokens generated (probes included) and tokens that were trained on.", line_chart("tokens per step", lines)),
        figure("Length of a response", "Mean tokens of a proposal (teachers) and of an answer (students).", line_chart("response tokens", length, cap=50))])


def budget(run: Run) -> str:
    """A run's budget in words."""
    last = run.metrics[-1]
    seconds = sum(v for row in run.metrics for phase in items(row, "seconds") if (v := num(row, "seconds", phase)) is not None)
    told = [f"{num(last, key):,.0f} tokens {word}" if num(last, key) is not None else f"tokens {word}: absent" for key, word in (("tokens_generated", "generated"), ("tokens_trained", "trained"))]
    return f"{', '.join(told)}, {seconds / 60:,.1f} minutes in {len(run.metrics)} steps."


# --- tasks -------------------------------------------------------------------------------------------------------------------

def block(title: str, body) -> str:
    """A named text of a task; "" if it is missing."""
    body = "\n".join(map(str, body)) if isinstance(body, list) else body
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>" if body not in (None, "") else ""


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name, verdicts in items(row, "attempts").items():
        verdicts = [str(v) for v in verdicts] if isinstance(verdicts, list) else []
        answers = get(row, "answers", name)
        answers = [str(a).strip() for a in answers] if isinstance(answers, list) else []
        for (verdict, answer), n in Counter(itertools.zip_longest(verdicts, answers[:len(verdicts)])).most_common():
            out += f"<h4>{text(name)}: {f'{n} × ' if n > 1 else ''}{text(VERDICTS.get(verdict, verdict))}</h4>" + (f"<pre>{text(answer, 700)}</pre>" if answer else "")
    return out


def task(row: dict) -> str:
    """One proposal, folded."""
    rate, reason, program = num(row, "solve_rate"), str(row.get("reason") or ""), row.get("program")
    reward = num(row, "reward")
    data = dict(step=row["step"], teacher=row.get("teacher"), kind=row.get("kind"), reason=reason, students=" ".join(items(row, "attempts")), rate="" if rate is None else f"{rate:.4f}")
    pill = f'<span class="pill no">{text(reason, 30)}</span>' if reason else f'<span class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}">{"not tried" if rate is None else f"solved {rate:.2f}"}</span>'
    first = " ".join(str(program or row.get("text") or "").split())
    references = row.get("parents") if isinstance(row.get("parents"), list) else []
    facts = [f"reward {short(reward)}" if reward is not None else "", f"task {row['id']}" if isinstance(row.get("id"), int) else "",
             "shown when written: tasks " + ", ".join(map(str, references[:12])) if references else "",
             ", ".join(f"{key} {short(num(row, 'complexity', key))}" for key in ("depth", "mccabe", "statements") if num(row, "complexity", key) is not None)]
    inner = block("program", program) + block("hint", row.get("message")) + block("input", row.get("inputs")) + block("output", row.get("outputs")) + block("what the teacher wrote", row.get("text")) + attempts(row)
    return (f'<details class="task" {" ".join(f"data-{k}={chr(34)}{text(v, 200)}{chr(34)}" for k, v in data.items())}><summary>{pill} step {row["step"]} · {text(row.get("teacher"), 20)}'
            f'{" → " + text(data["students"], 60) if data["students"] else ""} · {text(row.get("kind"), 20)} · <code>{text(first[:90])}</code></summary><div>{inner}<h4>{text("; ".join(filter(None, facts)))}</h4></div></details>')


def browser(run: Run, room: int) -> str:
    """The sample of tasks that fits into `room` bytes, with its filters."""
    chosen, used = [], 0
    for order, row in run.tasks:
        made = task(row)
        used += len(made.encode())
        if used > room:
            break
        chosen.append((row["step"], order, row, made))
    chosen.sort(key=lambda c: c[:2])
    values = lambda key: sorted({str(row.get(key)) for _, _, row, _ in chosen if row.get(key)})
    pick = lambda name, pairs: f'<label>{name} <select name="{name}"><option value="">any</option>{"".join(f"<option value={chr(34)}{text(v, 200)}{chr(34)}>{text(w, 40)}</option>" for v, w in pairs)}</select></label>'
    same = lambda names: [(n, n) for n in names]
    students = sorted({s for _, _, row, _ in chosen for s in items(row, "attempts")})
    form = ('<form><label>from step <input type="number" name="from"></label><label>to <input type="number" name="to"></label>' + pick("teacher", same(values("teacher"))) + pick("student", same(students))
            + pick("kind", same(values("kind"))) + pick("reason", [("valid", "valid only"), *same(values("reason"))]) + pick("rate", [("none", "solved by none"), ("some", "by some"), ("all", "by all")])
            + '<label>text <input name="words"></label><span id="count"></span></form>')
    rule = (f"{len(chosen):,} of {run.n_tasks:,} proposals ({run.n_valid:,} valid): " + ("all of them." if len(chosen) == run.n_tasks else
            "drawn at random with a fixed seed, the same number from every step, three valid ones for each refused one where there are as many, until this page's room is used up."))
    body = f'<div class="card wide">{form}<div id="list">{"".join(made for *_, made in chosen)}</div></div>' if chosen else '<p class="absent wide">Absent: no tasks.jsonl that can be read.</p>'
    return section("tasks", "Tasks", rule, [body])


# --- several runs, configuration, the page -----------------------------------------------------------------------------------

def labelled(runs: list[Run]) -> list[tuple[str, Run]]:
    """Runs with names that differ: the directory's, its path where two have the same."""
    count = Counter(run.name for run in runs)
    return [(run.name if count[run.name] == 1 else str(run.path), run) for run in runs]


def compared(runs: list[Run]) -> str:
    """The same curves of several runs, their budgets, and in which flags they differ from the first."""
    named, main = labelled(runs), runs[0]
    final = lambda run, key: num(run.metrics[-1], key) if run.metrics else None
    head = "<tr><th></th><th>run</th><th>steps</th><th>tokens generated</th><th>tokens trained</th><th>flags that differ from the first</th></tr>"
    uneven = False
    for i, (name, run) in enumerate(named):
        cells = ""
        for key in ("tokens_generated", "tokens_trained"):
            value, first = final(run, key), final(main, key)
            ratio = value / first if value is not None and first else None
            uneven |= ratio is not None and abs(ratio - 1) > 0.05
            cells += f'<td class="right">{"absent" if value is None else f"{value:,.0f}"}{f" (×{ratio:.2f})" if i and ratio is not None else ""}</td>'
        differ = [f"{k}: {run.config.get(k, 'absent')}" for k in {**main.config, **run.config} if k not in ("name", "out", "resume") and run.config.get(k) != main.config.get(k)]
        head += f'<tr><td class="legend"><i class="m{i % 8}"></i></td><td>{text(name)}</td><td class="right">{len(run.metrics)}</td>{cells}<td>{text(", ".join(differ), 600) or "–"}</td></tr>'
    words = "The budgets differ by more than 5%: at the same step one run has spent more than another. Compare with care." if uneven else "The budgets agree within 5%."
    figures = [f'<div class="card wide scroll"><table>{head}</table></div>']
    for title, value, share in MEASURES:
        lines = [Line(name, run.series(value), f"m{i % 8}", f"d{i // 8 % 3}") for i, (name, run) in enumerate(named)]
        figures.append(figure(title[0].upper() + title[1:], "One line a run.", line_chart(title, lines, share=share, cap=50)))
    return section("compared", "Compared", f"{words} One run each is no claim: the run is the unit of any statistics.", figures)


def setup(run: Run) -> str:
    """Configuration, what differs from train.py's defaults, environment."""
    flags, presets = defaults()
    c, rows, differing = run.config, "", 0
    expected = {k: v for k, (v, _) in flags.items()}
    apart = lambda preset: sum(c.get(k) != v for k, v in preset.items())
    preset = presets.get(c.get("style")) if isinstance(c.get("style"), str) and c.get("style") in presets else min(presets.values(), key=apart, default={})
    expected |= {k: v for k, v in preset.items() if expected.get(k) is None}
    half = 1 if c.get("single") else (num(c, "pop") or 0) // 2
    expected |= dict(teachers=half, students=half, grace=c.get("evolve_every"), duplicate_penalty=c.get("invalid_penalty"))
    for key, value in c.items():
        default = expected.get(key, ...)
        known = default is not ... and key not in ("name", "out", "resume")
        differs = known and value != default
        differing += differs
        shown = text(json.dumps(default)) if known else "–"
        rows += f'<tr{" class=differs" if differs else ""}><td><code>{text(key)}</code></td><td>{text(json.dumps(value), 300)}</td><td>{shown}</td><td>{text(flags[key][1]) if key in flags else "not a flag of this train.py" if flags else ""}</td></tr>'
    table = f"<table><tr><th>flag</th><th>value</th><th>default</th><th>meaning</th></tr>{rows}</table>" if rows else '<p class="absent">Absent: no config.json that can be read.</p>'
    env = "".join(f"<tr><td>{text(k)}</td><td>{text(v if isinstance(v, str) else json.dumps(v), 3000)}</td></tr>" for k, v in run.env.items())
    env = f"<table>{env}</table>" if env else '<p class="absent">Absent: no env.json that can be read.</p>'
    words = f"{differing} of {len(c)} flags differ from the defaults of this train.py and are marked." if flags else "No train.py beside this script: which flags differ from the defaults is not known."
    return section("setup", "Configuration and machine", words, [f'<div class="card wide scroll">{table}</div>', f'<div class="card wide scroll">{env}</div>'])


def status(run: Run) -> str:
    """How far the run got, and what it was."""
    steps, done = num(run.config, "steps"), run.metrics[-1]["step"] + 1 if run.metrics else 0
    who = f"{get(run.config, 'teachers')} teachers and {get(run.config, 'students')} students" if "teachers" in run.config else f"{len(run.members)} members"
    who = "one adapter in both roles" if run.config.get("single") else who
    state = f"{done} steps" if steps is None else f"all {done} steps done" if done >= steps else f"{done} of {steps:.0f} steps done: stopped, or still going"
    return f"{text(who)} on {text(run.config.get('base', 'an unknown base'))}, seed {text(run.config.get('seed', 'unknown'))}; {state}."


def page(runs: list[Run], watch: float = 0) -> str:
    """The whole report as HTML; the first run is the one it is about."""
    run = runs[0]
    parts = [part(run) for part in (absolute, difficulty, validity, population, machine)] if run.metrics else []
    parts = ([compared(runs)] if len(runs) > 1 else []) + parts
    tail = setup(run)
    room = min(TASK_BYTES, MAX_BYTES - len("".join([*parts, tail]).encode()) - len(CSS + JS) - 20_000)
    parts += [browser(run, room), tail]
    links = "".join(f'<li><a href="#{key}">{word}</a></li>' for key, word in (
        ("compared", "Compared"), ("absolute", "Absolute"), ("difficulty", "Tasks written"), ("validity", "Judge"), ("population", "Population"), ("machine", "Cost"), ("tasks", "Browse tasks"),
        ("setup", "Setup")) if any(f'id="{key}"' in part[:40] for part in parts))
    notes = [f"{name}: {note}" if len(runs) > 1 else note for name, r in labelled(runs) for note in r.notes]
    notes = f'<p>About the logs: {text("; ".join(notes), 2000)}.</p>' if notes else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()}'"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<title>{text(run.name)}: report</title><style>{CSS}</style></head><body data-watch="{watch:g}"><header><h1>{text(run.name)}</h1><p>{status(run)}</p>{notes}'
            f'{in_words(run)}</header><nav><ul>{links}</ul></nav><main>{"".join(parts)}</main><script>{JS}</script></body></html>\n')


def write(path: Path, others: list[Path], out: Path, watch: float = 0) -> bool:
    """Write the report of the run at `path` whole, under a temporary name first; True if the run has done all its steps."""
    runs = [Run(path), *(Run(other, want_tasks=False) for other in others)]
    steps = num(runs[0].config, "steps")
    finished = bool(runs[0].metrics) and steps is not None and runs[0].metrics[-1]["step"] + 1 >= steps
    made = page(runs, 0 if finished else watch)
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        part.write_text(made, encoding="utf-8")
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
    if out.is_dir():
        raise ValueError(f"--out {out} is a directory: give the name of a file")
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
