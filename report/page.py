"""The page: its parts from the top, and how they are put together. Other files of this folder draw the larger
parts."""
import base64
import hashlib
import itertools
import math
from collections import Counter

from report.drift import drift
from report.layout import CSS, JS, curves, figure, section, table
from report.population import by_member, population, roles
from report.run import RunLog, average, items, known, measures, num
from report.setup import APART, setup
from report.svg import Line, brief, spark, stack_chart, text
from report.tasks import browser
from report.think import base_line, habit, opening

MAX_BYTES = 1_900_000               # of the file
TASK_BYTES = 750_000                # of it, at most, for the browser of tasks
MAX_NOTES = 12


def many(n: int, word: str) -> str:
    """1 step, 2 steps."""
    return f"{n} {word}{'s' * (n != 1)}"


def in_words(run: RunLog) -> str:
    """What rose and what fell, and no more than that."""
    n, out = max(1, len(run.metrics) // 20), ""
    for words, _, points in measures(run, run.names("heldout")):
        points = known(points)
        if len(points) < 2:
            continue
        k, when = n, f"first and last {f'{n} steps' if n > 1 else 'step'}"
        if len(points) < len(run.metrics) / 2:
            k, when = 1, f"probes at steps {points[0][0]} and {points[-1][0]}"
        ends = average(y for _, y in points[:k]), average(y for _, y in points[-k:])
        before, after = [f"{v:.2f}" if abs(v) < 100 else f"{v:,.0f}" for v in ends]
        moved = f"<b>{before} → {after}</b> {'rose' if ends[1] > ends[0] else 'fell'}"
        moved = f"<b>{after}</b> stayed" if before == after else moved
        out += f"<li><div>{moved}<span>{text(words)}</span><small>{when}</small></div>{spark(points)}</li>"
    why = "Too short for a before and after." if run.metrics else "No step is finished yet."
    return f'<ul class="words">{out}</ul>' if out else f'<p class="absent">{why}</p>'


def on_anchors(run: RunLog, key: str, title: str, words: str, share: bool) -> str:
    """A figure of a measure that probes take of each student, with its mean and the frozen base's."""
    lines = [Line(m.name, run.points(key, m.name), m.color, f"{m.style} thin", label=False)
             for m in run.those("student")]
    lines += [Line("mean", run.mean("student", (key,)), "s0", "bold"), base_line(run, f"{key}_base")]
    return curves(title, words, lines, share=share, zero=False)


def absolute(run: RunLog) -> str:
    """Current tasks against the frozen base; anchors."""
    current = [Line("every step", run.points("solve_rate"), "s3", "thin"),
               Line("frozen base", run.points("base_solve"), "base", "bold"),
               Line("frozen student", run.points("frozen_solve"), "s1", "d1"),
               Line("students", run.points("student_solve"), "s0", "bold")]
    return section("absolute", "The absolute picture", "Ratings only compare members with each other. These "
                   "measures have a fixed end: a base that never learns, and tasks that never change.", [
        curves("The teachers' current tasks", "Share solved by the frozen base, which never learns, by the "
               "student that was best at the first probe after the start, kept as it was then, and by the "
               "students of the day. If the frozen ones fall, the tasks got harder; the distance to them is "
               "the students' lead.", current, share=True),
        on_anchors(run, "anchors_sampled", "Held-out anchor tasks, sampled", "Accuracy of every student, "
                   "bold their mean, on tasks that never change and are never trained on, at the run's "
                   "temperature (greedily: at the head of this page); dotted: the frozen base.", share=False),
        on_anchors(run, "anchors_think", "Thinking on the anchors, greedy", "Share of every student's greedy "
                   "answers to these tasks that think, bold their mean; dotted: the frozen base.",
                   share=True)])


def difficulty(run: RunLog) -> str:
    """Complexity and variety of what teachers write."""
    complexity = []
    for i, name in enumerate(("AST depth", "McCabe", "lines", "variables", "statements")):
        complexity.append(Line(name, run.points("complexity", name.split()[-1].lower()), f"m{i}"))
    sizes = [Line("characters", run.points("output_chars"), "m0"),
             Line("digits", run.points("output_digits"), "m1")]
    valid = itertools.accumulate((num(row, "n") or 0) * (num(row, "valid") or 0) for row in run.metrics)
    tasks = [(row["step"], n) for row, n in zip(run.metrics, valid)]
    structures = run.points("unique_structures")
    unique = [Line("valid tasks", tasks, "base", "d1"), Line("structures", structures, "t0", "bold")]
    return section("difficulty", "What the teachers write", "Size and variety of the tasks. An archive that "
                   "forbids repeats makes size rise by itself: look at a run with <code>--teacher-reward "
                   "novelty</code> before believing a curve.", [
        curves("Complexity of valid tasks", "Means per task: depth of the syntax tree, McCabe's cyclomatic "
               "number, lines, variables, statements.", complexity),
        curves("Statements per task, by teacher", "One line a teacher, bold their mean. A race shows as all "
               "of them rising, one runaway as one line.",
               by_member(run, "teacher", "complexity", "statements"), cap=50),
        curves("Size of outputs", "Characters of a task's output and digits of its longest number: "
               "lengthening these makes tasks long rather than hard.", sizes),
        curves("Unique structures", "Distinct program structures so far (names and constants do not count); "
               "dashed: valid tasks. The distance is repetition.", unique if known(structures) else []),
        curves("Unique among 64", "Expected distinct structures among 64 of the latest tasks: comparable "
               "between populations of any size. 64 = no two alike.",
               [Line("of 64", run.points("unique_at_64"), "t0", "bold")]),
        curves("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.",
               roles(run, "entropy"), cap=50)])


def reasons(run: RunLog, most: int = 7) -> dict[str, dict[int, float]]:
    """{reason: {step: share of proposals refused for it}}, the commonest first, then all others together."""
    logged, totals = [row for row in run.metrics if "reasons" in row], Counter()
    for row in logged:
        totals.update({reason: num(row, "reasons", reason) or 0 for reason in items(row, "reasons")})
    common = [reason for reason, _ in totals.most_common(most)]
    names = common + (["other"] if len(totals) > most else []) or ["none refused"]
    layers = {name: {row["step"]: 0.0 for row in logged} for name in names}
    for row in logged:
        for reason in items(row, "reasons"):
            share = (num(row, "reasons", reason) or 0) / (num(row, "n") or math.inf)
            layers[reason if reason in common else "other"][row["step"]] += share
    return layers


def validity(run: RunLog) -> str:
    """Why proposals are refused; trivial, repeated and guessable tasks; rewards; kinds."""
    shares = [Line("nobody solves", run.points("solve_0"), "m1"),
              Line("all solve", run.points("solve_1"), "m0"),
              Line("duplicates", run.points("duplicates"), "m2"), Line("guessing", run.guessing(), "m3"),
              Line("beats guess", run.points("beats_guessing"), "m5")]
    figures = [
        figure("Refused proposals, by reason", "Share of each step's proposals that the judge refused; what "
               "is missing to 1 was valid.", stack_chart("reasons for refusal", reasons(run), share=True)),
        curves("Tasks that teach nothing", "Of the valid tasks, those that nobody or everybody solves, and "
               "those solved more often than guessing would; of all proposals, the duplicates; how often "
               "guessing the commonest output is right.", shares, share=True, cap=60),
        curves("Reward", "Mean reward of proposals (teachers) and of attempts (students).",
               roles(run, "reward"), cap=50)]
    kinds = run.names("task_types")
    for title, words, key in (
            ("Solve rate by kind", "The students' solve rate on each kind of task.", "solve_rate"),
            ("Valid by kind", "Share of the proposals of each kind that are valid.", "valid")):
        lines = [Line(kind, run.points("task_types", kind, key), f"m{i % 8}") for i, kind in enumerate(kinds)]
        figures += [curves(title, words, lines, share=True, cap=50)] if len(kinds) > 1 else []
    return section("validity", "What the judge says",
                   "Valid, refused, trivial, repeated: the ways in which teachers fail, or game the reward.",
                   figures)


def tokens_by_phase(run: RunLog) -> dict[str, dict[int, float]]:
    """{phase: {step: tokens}}: generated while proposing, solving, probing; trained on in the update."""
    total = [(-1, 0), *known(run.points("tokens_trained"))]
    update = {step: v - before for (last, before), (step, v) in zip(total, total[1:]) if step == last + 1}
    spoken = {"teacher": Counter(), "student": Counter()}
    for m in run.members.values():
        for (step, n), (_, tokens) in zip(m.points("n"), m.points("response_tokens")):
            if None not in (n, tokens):
                spoken[m.role][step] += n * tokens
    return dict(propose=spoken["teacher"], solve=spoken["student"],
                probe=dict(known(run.points("probe_tokens"))), update=update)


def machine(run: RunLog) -> str:
    """Seconds and tokens."""
    seconds = {phase: dict(known(run.points("seconds", phase))) for phase in run.names("seconds")}
    minutes = sum(sum(points.values()) for points in seconds.values()) / 60
    told = []
    for word in ("generated", "trained"):
        total = num(run.metrics[-1], f"tokens_{word}")
        told += [f"{total:,.0f} tokens {word}"] if total is not None else []
    told.append(f"{minutes:,.1f} minutes, {many(len(run.metrics), 'step')}.")
    return section("machine", "What it cost", ", ".join(told), [
        figure("Seconds per phase", "Wall-clock seconds of a step, by phase; tall bars are steps with a "
               "probe.", stack_chart("seconds per phase", seconds)),
        figure("Tokens per phase", "Tokens generated while proposing, solving and probing, and tokens "
               "trained on in the update.", stack_chart("tokens per phase", tokens_by_phase(run))),
        curves("Length of a response", "Mean tokens of a proposal (teachers) and of an answer (students).",
               roles(run, "response_tokens"), cap=50)])


def labelled(runs: list[RunLog]) -> list[tuple[str, RunLog]]:
    """Runs with names that differ: the directory's; where two have one name, with the directory around it."""
    count = Counter(run.name for run in runs)
    ends = [run.path.resolve().parts[-2:] for run in runs]
    return [(run.name if count[run.name] == 1 else "/".join(end), run) for end, run in zip(ends, runs)]


def compared(runs: list[RunLog]) -> str:
    """The same curves of several runs, their budgets, and in which flags they differ from the first."""
    named, config, rows, uneven = labelled(runs), runs[0].config, [], False
    for i, (name, run) in enumerate(named):
        cells = ""
        for key in ("tokens_generated", "tokens_trained"):
            value, first = [num(r.metrics[-1], key) if r.metrics else None for r in (run, runs[0])]
            ratio = value / first if value is not None and first else None
            uneven |= ratio is None or abs(ratio - 1) > 0.05
            against = f" (×{ratio:.2f})" if i and ratio is not None else ""
            cells += f'<td class="right">{"absent" if value is None else f"{value:,.0f}"}{against}</td>'
        flags = [flag for flag in {**config, **run.config} if run.config.get(flag) != config.get(flag)]
        differ = [f"{flag} {run.config.get(flag, 'absent')}" for flag in flags if flag not in APART]
        rows.append(f'<td class="legend"><i class="m{i % 8}"></i></td><td>{text(brief(name, 60))}</td>'
                    f'<td class="right">{len(run.metrics)}</td>{cells}'
                    f'<td class="prose">{text(", ".join(differ), 600) or "–"}</td>')
    head = ("", "run", "steps", "tokens generated", "tokens trained",
            "flags that differ from the first run's")
    figures = [f'<div class="card wide">{table(head, rows)}</div>']
    kinds = list(dict.fromkeys(kind for run in runs for kind in run.names("heldout")))[:12]
    for same in zip(*(measures(run, kinds) for run in runs)):
        title, axis, _ = same[0]
        lines = [Line(name, points, f"m{i % 8}", f"d{i // 8 % 3}")
                 for i, ((name, _), (_, _, points)) in enumerate(zip(named, same))]
        figures.append(curves(title[0].upper() + title[1:], "One line a run.", lines, share=axis == "share",
                              zero=axis != "free", cap=50))
    words = "The budgets agree within 5%."
    if uneven:
        words = ("<b>The budgets are not the same</b>: they differ by more than 5%, or are not known. A "
                 "curve that is higher may only have cost more.")
    words += " The run is the unit of any statistics: one of each is no claim."
    return section("compared", "Compared", words, figures)


def status(run: RunLog) -> str:
    """Who played, on what, and how far the run got."""
    config, steps = run.config, num(run.config, "steps")
    done = run.metrics[-1]["step"] + 1 if run.metrics else 0
    who = [many(config[f"{role}s"], role) for role in ("teacher", "student") if f"{role}s" in config]
    who = "One adapter in both roles" if config.get("single") else " and ".join(who)
    who = text(who or many(len(run.members), "member"))
    state = f"all {many(done, 'step')} done"
    if steps is None:
        state = many(done, "step")
    elif done < steps:
        state = f"{done} of {steps:.0f} steps done: stopped, or still going"
    base, seed = text(config.get("base", "an unknown base")), text(config.get("seed", "unknown"))
    return f"{who} on {base}, seed {seed}; {state}."


def page(runs: list[RunLog], watch: float = 0) -> str:
    """The whole report as HTML; it is about the first run. watch: seconds until the page looks again."""
    run, first, last = runs[0], "", setup(runs[0])
    parts = {"compared": ("Compared", compared(runs))} if len(runs) > 1 else {}
    links = {}
    if run.metrics:
        first, links = opening(run), {"thinking": "Thinking"}
        for part, word in ((absolute, "Absolute"), (difficulty, "Tasks written"), (validity, "Judge"),
                           (drift, "Drift"),
                           (population, "Population"), (machine, "Cost")):
            parts[part.__name__] = (word, part(run))
    foot = f"<footer>{text(habit(run))}</footer>" if habit(run) else ""
    written = [first, foot, last, CSS, JS, *(html for _, html in parts.values())]
    used = sum(len(html.encode()) for html in written) + 30_000
    parts["tasks"] = ("Browse tasks", browser(run, max(min(TASK_BYTES, MAX_BYTES - used), 40_000)))
    parts["setup"] = ("Setup", last)
    links |= {"words": "In words"} | {name: word for name, (word, _) in parts.items()}
    links = "".join(f'<li><a href="#{name}">{word}</a></li>' for name, word in links.items())
    notes = [f"{name}: {note}" if len(runs) > 1 else note for name, r in labelled(runs) for note in r.notes]
    notes = text("; ".join(notes[:MAX_NOTES]), 2000)
    notes = f'<p class="notes">About the logs: {notes}.</p>' if notes else ""
    script = base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<title>{text(run.name)}: report</title><style>{CSS}</style></head>'
            f'<body data-watch="{watch:g}"><header><h1>{text(run.name)}</h1><p>{status(run)}</p>{notes}'
            f'{first}<section id="words"><h2>In words</h2>{in_words(run)}</section></header>'
            f'<nav><ul>{links}</ul></nav><main>{"".join(html for _, html in parts.values())}</main>{foot}'
            f'<script>{JS}</script></body></html>\n')
