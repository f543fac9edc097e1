"""The page: its parts from the top, what they are set in, and how they are put together."""
import base64
import hashlib
import json
import math
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from report.opening import ABSENT, CHART, by_member, opening, result, unseen
from report.run import MemberLog, RunLog, items, num
from report.svg import Line, brief, line_chart, short, text

HERE = Path(__file__).parent
CSS = CHART + (HERE / "page.css").read_text(encoding="utf-8")
JS = (HERE / "page.js").read_text(encoding="utf-8")
MEMBERS = 200                       # in the table, at most
APART = ("name", "out", "resume")   # flags that differ between any two runs
# Curves in which runs are compared.
SAME = {"Attempts that think": ("think",), "Frozen base on the teachers' tasks": ("base_solve",),
        "Students on the teachers' tasks": ("solve_rate",), "Valid proposals": ("valid",),
        "Statements per task": ("statements",)}
ROOM = 750_000                      # bytes of the page, at most
VERDICTS = {"correct": "✓ correct", "wrong": "✗ wrong", "malformed": "∅ malformed",
            "violation": "⚠ forbidden system call", "unjudged": "? the sandbox failed"}
TEXTS = {"program": "program", "message": "hint", "inputs": "input", "outputs": "output",
         "text": "what the teacher wrote"}
# The script fills the menus with what the tasks hold, and shows the form.
MENUS = "".join(f'<label>{name} <select name="{name}"><option value="">any</option></select></label>'
                for name in ("teacher", "student", "kind", "solved"))
FORM = f'<form>{MENUS}<label>text <input name="words"></label><span id="count" role="status"></span></form>'


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A card with its heading and how to read it, HTML; without a body it is said to be absent."""
    kind = " class=wide" if wide else ""
    return f"<figure{kind}><figcaption><b>{title}</b>{caption}</figcaption>{body or ABSENT}</figure>"


def curves(title: str, caption: str, lines: list[Line], **how) -> str:
    """A figure of curves. title: any text; caption: HTML; how: as in svg.line_chart."""
    return figure(text(title), caption, line_chart(title, lines, **how))


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    body = f'<div class="grid">{"".join(figures)}</div>'
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p>{body}</section>'


def table(head, rows: list[list]) -> str:
    """A table that scrolls where it is too large. head: words; rows: of cells in HTML."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{word}</th>" for word in head)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def palette(lines) -> list[Line]:
    """Pairs (name, points) as curves of different colours."""
    return [Line(name, points, f"m{i % 8}", f"d{i // 8 % 3}") for i, (name, points) in enumerate(lines)]


def roles(run: RunLog, *keys) -> list[Line]:
    """Both roles' means."""
    return [Line(f"{role}s", run.mean(role, ("members",), *keys), f"{role[0]}0", "bold")
            for role in ("teacher", "student")]


def members(run: RunLog, role: str, *keys) -> list[Line]:
    """A curve for each member of a role, and their mean."""
    return by_member(run, role, lambda m: m.points(*keys), run.mean(role, ("members",), *keys))


def progress(run: RunLog) -> str:
    """Current tasks against the frozen base, what teachers write, why proposals are refused."""
    current = [Line("every step", run.points("solve_rate"), "s3", "thin"),
               Line("frozen base", run.points("base_solve"), "base", "bold"),
               Line("students", run.points("student_solve"), "s0", "bold")]
    useless = [("nobody solves", run.points("solve_0")), ("all solve", run.points("solve_1")),
               ("duplicates", run.points("duplicates")), ("beats guess", run.points("beats_guessing"))]
    steps = Counter(reason for row in run.metrics for reason in items(row, "reasons"))
    refused = [(reason, [(row["step"], (num(row, "reasons", reason) or 0) / (num(row, "n") or math.inf))
                         for row in run.metrics]) for reason, _ in steps.most_common(6)]
    valid = Line("valid", run.points("valid"), "m7", "bold")
    kinds = [(kind, run.points("task_types", kind, "solve_rate")) for kind in run.names("task_types")]
    return section("progress", "The tasks", "Ratings only compare members with each other. The frozen base "
                   "never learns, so what it solves tells how hard the teachers' tasks are.", [
        curves("The teachers' current tasks", "Share solved by the frozen base, and by students of the day. "
               "If the base falls, tasks got harder; the distance to it is the students' lead.", current,
               share=True),
        curves("Statements per task, by teacher", "An archive without repeats makes them rise by itself.",
               members(run, "teacher", "statements")),
        curves("Unique structures", "Distinct programs so far: names and constants do not count.",
               [Line("structures", run.points("unique_structures"), "t0", "bold")]),
        curves("Refused proposals, by reason", "Share that the verifier refused; bold: that was valid.",
               [*palette(refused), valid], share=True),
        curves("Tasks that teach nothing", "Of valid tasks, those that nobody or everybody solves, that are "
               "solved more often than by guessing; of proposals, duplicates.", palette(useless), share=True),
        curves("Solve rate by type of task", "The students', on each type.", palette(kinds), share=True)])


def ratings(run: RunLog, role: str) -> str:
    """mu and 2 sigma of a role's members, with births and deaths."""
    lines = by_member(run, role, lambda m: m.points("mu"), [])
    for line in lines:
        for (step, mu), (_, sigma) in zip(line.points, run.members[line.name].points("sigma")):
            if line.label and None not in (mu, sigma):
                line.band.append((step, mu - 2 * sigma, mu + 2 * sigma))
    return curves(f"Ratings of the {role}s", "TrueSkill's estimate of skill (mu), shaded 2 sigma where few "
                  "live. It compares members and says nothing about progress.", lines, zero=False)


def member_row(m: MemberLog) -> list[str]:
    """A line of the table of members; – is what was not measured."""
    last = m.rows[-1][1]
    niche = ", ".join(map(str, items(last, "niche", kind=list)))
    measured = [num(last, "lr"), num(last, "mu"), num(last, "solve_rate"), num(m.birth, "norm_ratio")]
    return [f'<i class="{m.color}"></i>{text(m.name, 40)}', f"{m.rows[0][0]} to {m.rows[-1][0]}",
            text(m.descent(), 300), text(niche, 100) or "–",
            *("–" if v is None else short(v) for v in measured)]


def population(run: RunLog) -> str:
    """Ratings, solve rates, likeness, a table of the members."""
    everybody = sorted(run.members.values(), key=lambda m: m.died)
    caption = f"{len(everybody)} in all, {MEMBERS} at most shown, living first. Rate, rating and solve rate "
    caption += "of the last step."
    if run.trials:
        kept = sum(trial.get("child") is None for trial in run.trials)
        caption += f" Of {len(run.trials)} litters {kept} had no child better than its victim."
    head = ("member", "steps", "born as", "niche", "rate", "rating", "solve rate", "norm to its parents'")
    return section("population", "The population", "Each member is an adapter, a small update of the same "
                   "frozen base. Teachers in warm colours, students in cool ones.", [
        ratings(run, "teacher"), ratings(run, "student"),
        curves("Solve rate of each teacher's tasks", "Share of attempts at a teacher's valid tasks that were "
               "right, whoever tried. Low is hard.", members(run, "teacher", "solve_rate"), share=True),
        curves("Solve rate of each student", "Share of a student's attempts that were right, whoever set the "
               "task.", members(run, "student", "solve_rate"), share=True),
        curves("Reward", "Mean of proposals (teachers), of attempts (students).", roles(run, "reward")),
        curves("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.",
               roles(run, "entropy")),
        curves("Likeness of adapters", "Mean cosine of the updates of a role.", roles(run, "cosine")),
        figure("Members", caption, table(head, map(member_row, everybody[:MEMBERS])), True)])


def drift(run: RunLog) -> str:
    """What the monitors said, and when."""
    seen = {}
    for row in run.metrics:
        for name, words in items(row, "alarms").items():
            seen.setdefault(name, (words, []))[1].append(row["step"])
    rows = [[text(name, 40), text(", ".join(map(str, steps)), 200), text(words, 400)]
            for name, (words, steps) in seen.items()]
    body = "<p>No monitor gave alarm.</p>" if any("alarms" in row for row in run.metrics) else ""
    body = table(("monitor", "at steps", "what it said first"), rows) if rows else body
    return section("drift", "Drift", "What the monitors say at the end of every step, for collapse, gaming, "
                   "forgetting, escape, flat rewards and format (docs/advanced/drift.md).",
                   [figure("Alarms", "", body, wide=True)])


def block(title: str, body) -> str:
    """A named text of a task; "" if it is missing."""
    body = "\n".join(map(str, body)) if isinstance(body, list) else body
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>" if body not in (None, "") else ""


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name in items(row, "attempts"):
        verdicts = [str(verdict) for verdict in items(row, "attempts", name, kind=list)]
        answers = [str(answer).strip() for answer in items(row, "answers", name, kind=list)]
        pairs = Counter(zip_longest(verdicts, answers[:len(verdicts)], fillvalue=""))
        for (verdict, answer), n in pairs.most_common():
            times = f"{n} × " if n > 1 else ""
            out += f"<h4>{text(name)}: {times}{text(VERDICTS.get(verdict, verdict), 60)}</h4>"
            out += f"<pre>{text(answer, 700)}</pre>" if answer else ""
    return out


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, who tried, what became of it."""
    rate, refused = num(row, "solve_rate"), str(row.get("reason") or "")
    solved = refused or {None: "not tried", 0: "never", 1: "always"}.get(rate, "sometimes")
    students, kind = " ".join(items(row, "attempts")), row.get("kind")
    data = dict(teacher=row.get("teacher"), student=students, kind=kind, solved=solved)
    attributes = " ".join(f'data-{key}="{text(value, 200)}"' for key, value in data.items())
    words = text(brief(solved if refused or rate is None else f"solved {rate:.2f}", 30))
    pill = 'class="pill no"' if refused else f'class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}"'
    first = text(" ".join(str(row.get("program") or row.get("text") or "").split())[:90])
    who = text(brief(row.get("teacher"), 20)) + (f" → {text(brief(students, 60))}" if students else "")
    title = f"step {row['step']} · {who} · {text(brief(kind, 20))} · <code>{first}</code>"
    inner = "".join(block(words, row.get(key)) for key, words in TEXTS.items()) + attempts(row)
    return (f'<details class="task" {attributes}><summary><span {pill}>{words}</span> {title}'
            f"</summary><div>{inner}{block('reward', num(row, 'reward'))}</div></details>")


def tasks(run: RunLog) -> str:
    """Tasks from the run's first step to its last, as many as there is room for, with their filters."""
    shown = [task(row) for row in run.tasks]
    while sum(len(made.encode()) for made in shown) > ROOM:
        shown = shown[::2]
    body = '<p class="absent wide">Absent: no proposal can be read from tasks.jsonl.</p>'
    if shown:
        body = f'<div class="card wide">{FORM}<div id="list">{"".join(shown)}</div></div>'
    words = f"{len(shown):,} of {run.n_tasks:,} proposals, evenly spaced in the order of writing."
    return section("tasks", "Browse the tasks", words, [body])


def compared(runs: list[RunLog]) -> str:
    """The same curves of several runs, their budgets, and in which flags they differ from the first."""
    spent = [num(run.metrics[-1] if run.metrics else {}, "tokens_generated") for run in runs]
    rows = []
    for i, run in enumerate(runs):
        differ = [f"{flag} {run.config.get(flag, 'absent')}" for flag in {**runs[0].config, **run.config}
                  if flag not in APART and run.config.get(flag) != runs[0].config.get(flag)]
        rows.append([f'<i class="m{i % 8}"></i>{text(brief(run.path, 60))}', len(run.metrics),
                     f"{spent[i] or 0:,.0f}", text(", ".join(differ), 600) or "–"])
    head = ("run", "steps", "tokens generated", "flags that differ from the first run's")
    same = {"Students on held-out tasks": [run.mean("student", ("heldout_greedy",)) for run in runs]}
    for kind in dict.fromkeys(kind for run in runs for kind in unseen(run)):
        same[f"Students on {kind}, never trained on"] = [unseen(run).get(kind, []) for run in runs]
    for title, keys in SAME.items():
        same[title] = [run.points(*keys) for run in runs]
    figures = [f'<div class="card wide">{table(head, rows)}</div>']
    for title, points in same.items():
        lines = palette(zip([run.name for run in runs], points))
        figures.append(curves(title, "", lines, share="Statements" not in title))
    even = None not in spent and max(spent) <= 1.05 * min(spent)
    words = "The budgets agree within 5%." if even else (
        "<b>The budgets are not the same</b>: a curve that is higher may only have cost more.")
    return section("compared", "Compared", f"{words} One run of each is no claim.", figures)


def setup(run: RunLog) -> str:
    """Flags, first those that differ from what they would be had nobody given them; machine; seconds."""
    def shown(value) -> str:
        return text(value if isinstance(value, str) else json.dumps(value), 300)
    usual, changed, others = items(run.env, "flags"), [], []
    for name, value in run.config.items():
        default, meaning = [*items(usual, name, kind=list), value, ""][:2]
        cells = [text(brief(name, 40)), shown(value), shown(default) if name in usual else "–", text(meaning)]
        (others if name in APART or default == value else changed).append(cells)
    words = f"{len(changed)} of {len(run.config)} flags differ from their defaults, on top."
    flags = table(("flag", "value", "default", "meaning"), changed + others)
    machine = [[text(brief(key, 40)), shown(value)] for key, value in run.env.items() if key != "flags"]
    seconds = [(phase, run.points("seconds", phase)) for phase in run.names("seconds")]
    words = words if usual else "This run did not write its defaults."
    return section("setup", "Configuration, machine, cost", words, [
        f'<div class="card wide">{flags}</div>',
        f'<div class="card wide">{table(("machine", ""), machine)}</div>',
        curves("Seconds per phase", "Of a step, wall clock.", palette(seconds))])


def status(run: RunLog) -> str:
    """Who played, on what, how far the run got and what it cost."""
    config, last = run.config, run.metrics[-1] if run.metrics else dict(step=-1)
    n = [sum(not m.died for m in run.those(role)) for role in ("teacher", "student")]
    who = "One adapter in both roles" if config.get("single") else f"{n[0]} teachers and {n[1]} students"
    done = "all" if num(config, "steps") == last["step"] + 1 else f"{last['step'] + 1} of"
    seconds = sum(num(row, "seconds", phase) or 0 for row in run.metrics for phase in items(row, "seconds"))
    return text(f"{who} on {config.get('base', 'an unknown base')}, seed {config.get('seed', 'unknown')}; "
                f"{done} {config.get('steps', 'unknown')} steps done in {seconds / 60:,.1f} minutes, "
                f"{short(num(last, 'tokens_generated') or 0)} tokens generated.")


def page(runs: list[RunLog]) -> str:
    """The whole report as HTML; it is about the first run."""
    run, lead = runs[0], "No step is finished yet."
    parts = {"compared": ("Compared", compared(runs))} if len(runs) > 1 else {}
    if run.metrics:
        lead = result(run)
        parts = {"thinking": ("Thinking", opening(run))} | parts
        for part, word in ((progress, "Tasks"), (population, "Population"), (drift, "Drift")):
            parts[part.__name__] = (word, part(run))
    parts |= {"tasks": ("Browse", tasks(run)), "setup": ("Setup", setup(run))}
    links = "".join(f'<li><a href="#{name}">{word}</a></li>' for name, (word, _) in parts.items())
    notes = text("; ".join(f"{r.name}: {note}" for r in runs for note in r.notes), 2000)
    notes = f'<p class="notes">About the logs: {notes}.</p>' if notes else ""
    script = base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<title>{text(run.name)}: report</title><style>{CSS}</style></head>'
            f'<body><header><h1>{text(run.name)}</h1><p class="lead">{lead}</p><p>{status(run)}</p>{notes}'
            f'</header><nav><ul>{links}</ul></nav><main>{"".join(html for _, html in parts.values())}</main>'
            f'<script>{JS}</script></body></html>\n')
