"""The page: its parts from the top, what they are set in, and how they are put together."""
import base64
import hashlib
import json
import math
from collections import Counter
from pathlib import Path

from report.browse import tasks
from report.layout import curves, figure, palette, section, table
from report.opening import CHART, by_member, opening, result, unseen
from report.run import MemberLog, RunLog, items, num
from report.svg import Line, Points, brief, short, text

HERE = Path(__file__).parent
CSS = CHART + (HERE / "page.css").read_text(encoding="utf-8")
JS = (HERE / "page.js").read_text(encoding="utf-8")
MEMBERS = 200                       # in the table, at most
APART = ("name", "out", "resume")   # flags that differ between any two runs
# Curves in which runs are compared, all but the last shares.
SAME = {
    "Attempts that think": "think",
    "Frozen base on the teachers' tasks": "base_solve",
    "Students on the teachers' tasks": "solve_rate",
    "Valid proposals": "valid",
    "Statements per task": "statements"}


def roles(run: RunLog, key: str) -> list[Line]:
    """Both roles' means."""
    lines = []
    for role in ("teacher", "student"):
        lines.append(Line(f"{role}s", run.mean(role, "members", of=(key,)), f"{role[0]}0", "bold"))
    return lines


def members(run: RunLog, role: str, key: str) -> list[Line]:
    """A curve for each member of a role, and their mean."""
    return by_member(run, role, lambda m: m.points(key), run.mean(role, "members", of=(key,)))


def refused(run: RunLog) -> list[Line]:
    """The shares of proposals that were refused, for the six commonest reasons, and that were valid."""
    steps = Counter()
    for row in run.metrics:
        steps.update(list(items(row, "reasons")))
    by_reason = {}
    for reason, _ in steps.most_common(6):
        points = []
        for row in run.metrics:
            n = num(row, "n") or math.inf           # of nothing the share is 0
            points.append((row["step"], (num(row, "reasons", reason) or 0) / n))
        by_reason[reason] = points
    return [*palette(by_reason.items()), Line("valid", run.points("valid"), "m7", "bold")]


def progress(run: RunLog) -> str:
    """Current tasks against the frozen base, what teachers write, why proposals are refused."""
    solved = [
        Line("every step", run.points("solve_rate"), "s3", "thin"),
        Line("frozen base", run.points("base_solve"), "base", "bold"),
        Line("students", run.points("student_solve"), "s0", "bold")]
    structures = Line("structures", run.points("unique_structures"), "t0", "bold")
    useless = {
        "nobody solves": run.points("solve_0"),
        "all solve": run.points("solve_1"),
        "duplicates": run.points("duplicates"),
        "beats guess": run.points("beats_guessing")}
    kinds = {kind: run.points("task_types", kind, "solve_rate") for kind in run.names("task_types")}
    return section("tasks", "The tasks", "Ratings only compare members with each other. The frozen base "
                   "never learns, so what it solves tells how hard the teachers' tasks are.", [
        curves("The teachers' current tasks", "Share solved by the frozen base, and by students of the day. "
               "If the base falls, tasks got harder; the distance to it is the students' lead.",
               solved, share=True),
        curves("Statements per task, by teacher", "An archive without repeats makes them rise by itself.",
               members(run, "teacher", "statements")),
        curves("Unique structures", "Distinct programs so far: names and constants do not count.",
               [structures]),
        curves("Refused proposals, by reason", "Share that the verifier refused; bold: that was valid.",
               refused(run), share=True),
        curves("Tasks that teach nothing", "Of valid tasks, those that nobody or everybody solves, that are "
               "solved more often than by guessing; of proposals, duplicates.", palette(useless.items()),
               share=True),
        curves("Solve rate by type of task", "The students', on each type.", palette(kinds.items()),
               share=True)])


def ratings(run: RunLog, role: str) -> str:
    """mu and 2 sigma of a role's members, with births and deaths."""
    lines = by_member(run, role, lambda m: m.points("mu"), [])
    for line in lines:
        sigmas = run.members[line.name].points("sigma")
        for (step, mu), (_, sigma) in zip(line.points, sigmas):
            if line.label and mu is not None and sigma is not None:
                line.band.append((step, mu - 2 * sigma, mu + 2 * sigma))
    return curves(f"Ratings of the {role}s", "TrueSkill's estimate of skill (mu), shaded 2 sigma where few "
                  "live. It compares members and says nothing about progress.", lines, zero=False)


def measured(row: dict | None, key: str) -> str:
    """A number in a table; – is what was not measured."""
    value = num(row, key)
    if value is None:
        return "–"
    return short(value)


def member_row(m: MemberLog) -> list[str]:
    """A line of the table of members."""
    last = m.rows[-1][1]
    niche = ", ".join(map(str, items(last, "niche", kind=list)))
    return [
        f'<i class="{m.color}"></i>{text(m.name, 40)}',
        f"{m.rows[0][0]} to {m.rows[-1][0]}",
        text(m.descent(), 300),
        text(niche, 100) or "–",
        measured(last, "lr"),
        measured(last, "mu"),
        measured(last, "solve_rate"),
        measured(m.birth, "norm_ratio")]


def table_of_members(run: RunLog) -> str:
    """A figure of all members, the living first."""
    everybody = sorted(run.members.values(), key=lambda m: m.died)
    caption = (f"{len(everybody)} in all, {MEMBERS} at most shown, living first. Rate, rating and solve rate "
               "of the last step.")
    if run.trials:
        kept = sum(trial.get("child") is None for trial in run.trials)
        caption += f" Of {len(run.trials)} litters {kept} had no child better than its victim."
    head = ("member", "steps", "born as", "niche", "rate", "rating", "solve rate", "norm to its parents'")
    rows = [member_row(m) for m in everybody[:MEMBERS]]
    return figure("Members", caption, table(head, rows), wide=True)


def population(run: RunLog) -> str:
    """Ratings, solve rates, likeness, a table of the members."""
    return section("population", "The population", "Each member is an adapter, a small update of the same "
                   "frozen base. Teachers in warm colours, students in cool ones.", [
        ratings(run, "teacher"),
        ratings(run, "student"),
        curves("Solve rate of each teacher's tasks", "Share of attempts at a teacher's valid tasks that were "
               "right, whoever tried. Low is hard.", members(run, "teacher", "solve_rate"), share=True),
        curves("Solve rate of each student", "Share of a student's attempts that were right, whoever set the "
               "task.", members(run, "student", "solve_rate"), share=True),
        curves("Reward", "Mean of proposals (teachers), of attempts (students).", roles(run, "reward")),
        curves("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.",
               roles(run, "entropy")),
        curves("Likeness of adapters", "Mean cosine of the updates of a role.", roles(run, "cosine")),
        table_of_members(run)])


def alarms(run: RunLog) -> str:
    """A table of the alarms, "" of a run without monitors."""
    said, steps = {}, {}
    for row in run.metrics:
        for name, words in items(row, "alarms").items():
            said.setdefault(name, words)
            steps.setdefault(name, []).append(str(row["step"]))
    if said:
        rows = []
        for name, words in said.items():
            when = ", ".join(steps[name])
            rows.append([text(name, 40), text(when, 200), text(words, 400)])
        return table(("monitor", "at steps", "what it said first"), rows)
    if any("alarms" in row for row in run.metrics):
        return "<p>No monitor gave alarm.</p>"
    return ""


def drift(run: RunLog) -> str:
    """What the monitors said, and when."""
    return section("drift", "Drift", "What the monitors say at the end of every step, for collapse, gaming, "
                   "forgetting, escape, flat rewards and format (docs/advanced/drift.md).",
                   [figure("Alarms", "", alarms(run), wide=True)])


def differing(run: RunLog, first: RunLog) -> str:
    """The flags of a run, with their values, that the first run has otherwise."""
    words = []
    for flag in first.config | run.config:
        if flag not in APART and run.config.get(flag) != first.config.get(flag):
            words.append(f"{flag} {run.config.get(flag, 'absent')}")
    return ", ".join(words)


def budgets(runs: list[RunLog]) -> str:
    """A table of what each run cost, and how it differs from the first."""
    rows = []
    for i, run in enumerate(runs):
        n_tokens = num(run.last, "tokens_generated") or 0
        rows.append([
            f'<i class="m{i % 8}"></i>{text(brief(run.path, 60))}',
            len(run.metrics),
            f"{n_tokens:,.0f}",
            text(differing(run, runs[0]), 600) or "–"])
    head = ("run", "steps", "tokens generated", "flags that differ from the first run's")
    return f'<div class="card wide">{table(head, rows)}</div>'


def shared_curves(runs: list[RunLog]) -> dict[str, list[Points]]:
    """Title -> what each run has of it."""
    shared = {"Students on held-out tasks": [run.mean("student", "heldout_greedy") for run in runs]}
    others = [unseen(run) for run in runs]
    kinds = {}
    for other in others:
        kinds |= dict.fromkeys(other)               # a set that keeps the order
    for kind in kinds:
        shared[f"Students on {kind}, never trained on"] = [other.get(kind, []) for other in others]
    for title, key in SAME.items():
        shared[title] = [run.points(key) for run in runs]
    return shared


def compared(runs: list[RunLog]) -> str:
    """The same curves of several runs, their budgets, and in which flags they differ from the first."""
    figures = [budgets(runs)]
    for title, each in shared_curves(runs).items():
        lines = palette(zip([run.name for run in runs], each))
        is_share = "Statements" not in title
        figures.append(curves(title, "", lines, is_share))
    tokens = [num(run.last, "tokens_generated") for run in runs]
    words = "<b>The budgets are not the same</b>: a curve that is higher may only have cost more."
    if None not in tokens and max(tokens) <= 1.05 * min(tokens):
        words = "The budgets agree within 5%."
    return section("compared", "Compared", f"{words} One run of each is no claim.", figures)


def shown(value: object) -> str:
    """A value of a flag, or of what is known of a machine."""
    if not isinstance(value, str):
        value = json.dumps(value)
    return text(value, 300)


def flags(run: RunLog) -> tuple[str, int]:
    """A table of the flags, on top those that differ from what they would be had nobody given them, and how
    many these are."""
    usual = items(run.env, "flags")
    changed = []
    others = []
    for name, value in run.config.items():
        known = items(usual, name, kind=list)
        default, meaning = [*known, value, ""][:2]
        told = "–"
        if name in usual:
            told = shown(default)
        cells = [text(brief(name, 40)), shown(value), told, text(meaning)]
        if name in APART or default == value:
            others.append(cells)
        else:
            changed.append(cells)
    return table(("flag", "value", "default", "meaning"), changed + others), len(changed)


def setup(run: RunLog) -> str:
    """Flags, machine, seconds."""
    made, n_changed = flags(run)
    words = "This run did not write its defaults."
    if items(run.env, "flags"):
        words = f"{n_changed} of {len(run.config)} flags differ from their defaults, on top."
    machine = [[text(brief(key, 40)), shown(value)] for key, value in run.env.items() if key != "flags"]
    seconds = {phase: run.points("seconds", phase) for phase in run.names("seconds")}
    return section("setup", "Configuration, machine, cost", words, [
        f'<div class="card wide">{made}</div>',
        f'<div class="card wide">{table(("machine", ""), machine)}</div>',
        curves("Seconds per phase", "Of a step, wall clock.", palette(seconds.items()))])


def status(run: RunLog) -> str:
    """Who played, on what, how far the run got and what it cost."""
    config = run.config
    players = f"{len(run.living('teacher'))} teachers and {len(run.living('student'))} students"
    if config.get("single"):
        players = "One adapter in both roles"
    n_steps = run.last.get("step", -1) + 1
    n_tokens = num(run.last, "tokens_generated") or 0
    done = f"{n_steps} of"
    if num(config, "steps") == n_steps:
        done = "all"
    seconds = 0
    for row in run.metrics:
        for phase in items(row, "seconds"):
            seconds += num(row, "seconds", phase) or 0
    return text(f"{players} on {config.get('base', 'an unknown base')}, "
                f"seed {config.get('seed', 'unknown')}; "
                f"{done} {config.get('steps', 'unknown')} steps done in {seconds / 60:,.1f} minutes, "
                f"{short(n_tokens)} tokens generated.")


def parts_of(runs: list[RunLog]) -> dict[str, str]:
    """The parts of the page, from the top, by their names in links and, with a capital, in the menu."""
    run = runs[0]
    parts = {}
    if run.metrics:
        parts["thinking"] = opening(run)
    if len(runs) > 1:
        parts["compared"] = compared(runs)
    if run.metrics:
        parts["tasks"] = progress(run)
        parts["population"] = population(run)
        parts["drift"] = drift(run)
    parts["browse"] = tasks(run)
    parts["setup"] = setup(run)
    return parts


def page(runs: list[RunLog]) -> str:
    """The whole report as HTML; it is about the first run."""
    run = runs[0]
    lead = "No step is finished yet."
    if run.metrics:
        lead = result(run)
    links = ""
    main = ""
    for name, body in parts_of(runs).items():
        links += f'<li><a href="#{name}">{name.capitalize()}</a></li>'
        main += body
    notes = "; ".join(f"{log.name}: {note}" for log in runs for note in log.notes)
    if notes:
        notes = f'<p class="notes">About the logs: {text(notes, 2000)}.</p>'
    # The page runs no script but its own, whatever a model's text holds.
    script = base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<title>{text(run.name)}: report</title><style>{CSS}</style></head>'
            f'<body><header><h1>{text(run.name)}</h1><p class="lead">{lead}</p><p>{status(run)}</p>'
            f'{notes}</header><nav><ul>{links}</ul></nav><main>{main}</main>'
            f'<script>{JS}</script></body></html>\n')
