"""The page: its parts from the top, and how they are put together. Other files of this folder draw the larger
parts."""
import base64
import hashlib
import json
import math
from collections import Counter

from report.layout import CSS, JS, curves, figure, section, table
from report.population import by_member, population, roles
from report.run import RunLog, items, known, num
from report.svg import Line, brief, text
from report.tasks import browser
from report.think import base_line, opening, result, unseen

MAX_BYTES = 1_900_000               # of the file
TASK_BYTES = 750_000                # of it, at most, for the browser of tasks
MOST = 12                           # notes, alarms and members in a list
APART = ("name", "out", "resume")   # flags that differ between any two runs


def progress(run: RunLog) -> str:
    """Current tasks against the frozen base; held-out tasks, sampled."""
    current = [Line("every step", run.points("solve_rate"), "s3", "thin"),
               Line("frozen base", run.points("base_solve"), "base", "bold"),
               Line("frozen student", run.points("frozen_solve"), "s1", "d1"),
               Line("students", run.points("student_solve"), "s0", "bold")]
    sampled = [Line("students", run.mean("student", ("heldout_sampled",)), "s0", "bold"),
               base_line(run, "heldout_sampled_base")]
    return section("progress", "Progress, absolutely", "Ratings only compare members with each other. These "
                   "measures have a fixed end: a base that never learns, and tasks that never change.", [
        curves("The teachers' current tasks", "Share solved by the frozen base, by the student that was best "
               "at the first probe after the start, kept as it was then, and by the students of the day. If "
               "the frozen ones fall, the tasks got harder; the distance to them is the students' lead.",
               current, share=True),
        curves("Held-out tasks, sampled", "The students' mean accuracy at the run's temperature, which draws "
               "tokens by their probability. What rises here and not greedily was only made likelier.",
               sampled, share=True)])


def difficulty(run: RunLog) -> str:
    """Complexity and variety of what teachers write."""
    tasks, total = [], 0
    for row in run.metrics:
        total += (num(row, "n") or 0) * (num(row, "valid") or 0)
        tasks.append((row["step"], total))
    structures = run.points("unique_structures")
    unique = [Line("valid tasks", tasks, "base", "d1"), Line("structures", structures, "t0", "bold")]
    return section("difficulty", "What the teachers write", "Size and variety of the tasks. An archive that "
                   "forbids repeats makes size rise by itself: look at a run with <code>--teacher-reward "
                   "novelty</code> before believing a curve.", [
        curves("Statements per task, by teacher", "One line a teacher, bold their mean. A race shows as all "
               "of them rising, one runaway as one line.",
               by_member(run, "teacher", "complexity", "statements"), cap=50),
        curves("Unique structures", "Distinct program structures so far (names and constants do not count); "
               "dashed: valid tasks. The distance is repetition.", unique if known(structures) else []),
        curves("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.",
               roles(run, "entropy"), cap=50)])


def reasons(run: RunLog, most: int = 6) -> list[Line]:
    """The share of proposals refused for each reason, of the commonest."""
    totals = Counter()
    for row in run.metrics:
        totals.update({reason: num(row, "reasons", reason) or 0 for reason in items(row, "reasons")})
    lines = []
    for i, (reason, _) in enumerate(totals.most_common(most)):
        points = [(row["step"], (num(row, "reasons", reason) or 0) / (num(row, "n") or math.inf))
                  for row in run.metrics if "reasons" in row]
        lines.append(Line(reason, points, f"m{i}"))
    return lines


def validity(run: RunLog) -> str:
    """Why proposals are refused; trivial, repeated and guessable tasks; rewards; types of tasks."""
    shares = [Line("nobody solves", run.points("solve_0"), "m1"),
              Line("all solve", run.points("solve_1"), "m0"),
              Line("duplicates", run.points("duplicates"), "m2"),
              Line("beats guess", run.points("beats_guessing"), "m5")]
    kinds = run.names("task_types")
    by_kind = [Line(kind, run.points("task_types", kind, "solve_rate"), f"m{i % 8}")
               for i, kind in enumerate(kinds)]
    return section("validity", "What the verifier says", "The verifier runs every program in a sandbox. "
                   "Valid, refused, trivial, repeated: how teachers fail, or game the reward.", [
        curves("Refused proposals, by reason", "Share of each step's proposals that were refused for the "
               "commonest reasons; bold: that were valid.",
               [*reasons(run), Line("valid", run.points("valid"), "m7", "bold")], share=True, cap=60),
        curves("Tasks that teach nothing", "Of the valid tasks, those that nobody or everybody solves, and "
               "those solved more often than guessing the commonest output would; of all proposals, the "
               "duplicates.", shares, share=True, cap=60),
        curves("Reward", "Mean reward of proposals (teachers) and of attempts (students).",
               roles(run, "reward"), cap=50),
        *([curves("Solve rate by type of task", "The students' solve rate on each type.", by_kind, share=True,
                  cap=50)] if len(kinds) > 1 else [])])


def alarms(run: RunLog) -> list[list]:
    """[monitor, first step, last step, what it said first] of each alarm, in the order of their beginning."""
    found, going = [], {}
    for row in run.metrics:
        said = items(row, "alarms")
        going = {name: alarm for name, alarm in going.items() if name in said}
        for name, words in said.items():
            if name not in going:
                going[name] = [name, row["step"], row["step"], str(words)]
                found.append(going[name])
            going[name][2] = row["step"]
    return found


def drift(run: RunLog) -> str:
    """Alarms, and who tried what a program must not."""
    found, tried = alarms(run), {}
    for m in run.members.values():
        n = sum(count for _, count in known(m.points("escapes")))
        if n:
            tried[m.name] = n
    body = "<p>No monitor gave alarm.</p>" if any("alarms" in row for row in run.metrics) else ""
    if found:
        rows = [[text(name, 40), first, last, text(words, 300)] for name, first, last, words in found[:MOST]]
        body = table(("monitor", "from step", "to step", "what it said first"), rows)
    if tried:
        worst = sorted(tried, key=tried.get, reverse=True)[:MOST]
        words = ", ".join(f"{text(name, 40)} {tried[name]:,.0f}" for name in worst)
        body += f"<p>Texts that try what a program must not, such as imports: {words}.</p>"
    return section("drift", "Drift", "What the monitors say at the end of every step, for collapse, gaming, "
                   "forgetting and escape (docs/drift.md).",
                   [figure("Alarms", f"{len(found)} in {len(run.metrics)} steps.", body, wide=True)])


def machine(run: RunLog) -> str:
    """Seconds and tokens."""
    seconds = [Line(phase, run.points("seconds", phase), f"m{i % 8}")
               for i, phase in enumerate(run.names("seconds"))]
    tokens = [Line("generated", run.points("tokens_generated"), "m0"),
              Line("trained", run.points("tokens_trained"), "m1")]
    return section("machine", "What it cost", "Tokens are the budget by which runs are compared.", [
        curves("Seconds per phase", "Wall-clock seconds of a step, by phase.", seconds, cap=60),
        curves("Tokens", "Generated, and trained on, so far.", tokens)])


def compared(runs: list[RunLog]) -> str:
    """The same curves of several runs, their budgets, and in which flags they differ from the first."""
    spent = [num(run.metrics[-1] if run.metrics else {}, "tokens_generated") for run in runs]
    uneven = None in spent or max(spent) > 1.05 * min(spent)
    rows = []
    for i, run in enumerate(runs):
        flags = dict.fromkeys([*runs[0].config, *run.config])
        differ = [f"{flag} {run.config.get(flag, 'absent')}" for flag in flags
                  if flag not in APART and run.config.get(flag) != runs[0].config.get(flag)]
        tokens = "–" if spent[i] is None else f"{spent[i]:,.0f}"
        rows.append([f'<span class="legend"><i class="m{i % 8}"></i></span>', text(brief(run.path, 60)),
                     len(run.metrics), tokens, text(", ".join(differ), 600) or "–"])
    head = ("", "run", "steps", "tokens generated", "flags that differ from the first run's")
    figures = [f'<div class="card wide">{table(head, rows)}</div>']
    same = {f"Students on {kind}, never trained on": [unseen(run).get(kind, []) for run in runs]
            for kind in dict.fromkeys(kind for run in runs for kind in run.names("unseen"))}
    same["Students on held-out tasks"] = [run.mean("student", ("heldout_greedy",)) for run in runs]
    for key, title in dict(think="Attempts that think", base_solve="Frozen base on the teachers' tasks",
                           solve_rate="Students on the teachers' tasks", valid="Valid proposals").items():
        same[title] = [run.points(key) for run in runs]
    same["Statements per task"] = [run.points("complexity", "statements") for run in runs]
    for title, points in same.items():
        lines = [Line(runs[i].name, p, f"m{i % 8}", f"d{i // 8 % 3}") for i, p in enumerate(points)]
        figures.append(curves(title, "One line a run.", lines, share=title != "Statements per task", cap=50))
    words = "The budgets agree within 5%."
    if uneven:
        words = ("<b>The budgets are not the same</b>: they differ by more than 5%, or are not known. A "
                 "curve that is higher may only have cost more.")
    words += " The run is the unit of any statistics: one of each is no claim."
    return section("compared", "Compared", words, figures)


def setup(run: RunLog) -> str:
    """Flags, beside what they would be had nobody given them, and the machine."""
    def shown(value) -> str:
        return text(value if isinstance(value, str) else json.dumps(value), 300)
    usual, rows, differing = items(run.env, "flags"), [], []
    for name, value in run.config.items():
        default, meaning = [*items(usual, name, kind=list), None, None][:2]
        rows.append([f"<code>{text(brief(name, 40))}</code>", shown(value),
                     shown(default) if name in usual else "–", text(meaning or "")])
        if name in usual and name not in APART and default != value:
            differing.append(rows[-1])
    head = ("flag", "value", "default", "meaning")
    env = [[text(brief(key, 40)), shown(value)] for key, value in run.env.items() if key != "flags"]
    words = "This run did not write its defaults."
    if usual:
        words = f"{len(differing) or 'None'} of {len(rows)} flags differ from their defaults."
    return section("setup", "Configuration and machine", words, [
        f'<div class="card wide">{table(head, differing) if differing else ""}'
        f"<details><summary>All {len(rows)} flags</summary>{table(head, rows)}</details></div>",
        f'<div class="card wide">{table((), env)}</div>'])


def status(run: RunLog) -> str:
    """Who played, on what, how far the run got and what it cost."""
    config, steps = run.config, num(run.config, "steps")
    done = run.metrics[-1]["step"] + 1 if run.metrics else 0
    who = "One adapter in both roles" if config.get("single") else text(
        f"{config.get('teachers', 'Unknown')} teachers and {config.get('students', 'unknown')} students")
    state = "all" if steps == done else f"{done} of"
    state = f"{state} {config.get('steps', 'unknown')} steps done"
    base, seed = text(config.get("base", "an unknown base")), text(config.get("seed", "unknown"))
    seconds = sum(num(row, "seconds", phase) or 0 for row in run.metrics for phase in items(row, "seconds"))
    return f"{who} on {base}, seed {seed}; {text(state)} in {seconds / 60:,.1f} minutes."


def page(runs: list[RunLog]) -> str:
    """The whole report as HTML; it is about the first run."""
    run, first = runs[0], ""
    parts = {"compared": ("Compared", compared(runs))} if len(runs) > 1 else {}
    links = {}
    if run.metrics:
        first, links = opening(run), {"thinking": "Thinking"}
        for part, word in ((progress, "Progress"), (difficulty, "Tasks written"), (validity, "Verifier"),
                           (population, "Population"), (drift, "Drift"), (machine, "Cost")):
            parts[part.__name__] = (word, part(run))
    last = setup(run)
    used = sum(len(html.encode()) for html in (first, last, CSS, JS, *(html for _, html in parts.values())))
    parts["tasks"] = ("Browse tasks", browser(run, max(min(TASK_BYTES, MAX_BYTES - used - 30_000), 40_000)))
    parts["setup"] = ("Setup", last)
    links |= {name: word for name, (word, _) in parts.items()}
    links = "".join(f'<li><a href="#{name}">{word}</a></li>' for name, word in links.items())
    notes = [f"{r.path}: {note}" if len(runs) > 1 else note for r in runs for note in r.notes]
    notes = text("; ".join(notes[:MOST]), 2000)
    notes = f'<p class="notes">About the logs: {notes}.</p>' if notes else ""
    script = base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    lead = result(run) if run.metrics else "No step is finished yet."
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<title>{text(run.name)}: report</title><style>{CSS}</style></head>'
            f'<body><header><h1>{text(run.name)}</h1><p class="lead">{lead}</p><p>{status(run)}</p>{notes}'
            f'</header><nav><ul>{links}</ul></nav>'
            f'<main>{first}{"".join(html for _, html in parts.values())}</main>'
            f'<script>{JS}</script></body></html>\n')
