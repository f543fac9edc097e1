"""The page: its parts from the top, and how they are put together. The other files of this folder draw the larger parts."""
import base64
import hashlib
import itertools
from collections import Counter

from report.layout import CSS, JS, figure, section, table
from report.population import member_lines, population, role_mean, roles
from report.run import Run, duplicates, get, guessing, items, mean, measures, num, probed, refused
from report.setup import setup
from report.svg import Line, brief, line_chart, spark, stack_chart, text
from report.tasks import browser
from report.think import base_line, habit, opening

MAX_BYTES = 1_900_000               # of the file
TASK_BYTES = 750_000                # of it, at most, for the browser of tasks


def many(n: int, word: str) -> str:
    """1 step, 2 steps."""
    return f"{n} {word}{'s' * (n != 1)}"


# --- the page's parts, from the top ---------------------------------------------------------------------------------------

def in_words(run: Run) -> str:
    """What rose and what fell, and no more than that."""
    n, out = max(1, len(run.metrics) // 20), []
    digits = lambda v: f"{v:.2f}" if abs(v) < 100 else f"{v:,.0f}"
    for words, value, _ in measures([run]):
        points = [(x, y) for x, y in run.series(value) if y is not None]
        if len(points) < 2:
            continue
        probed = len(points) < len(run.metrics) / 2
        k = 1 if probed else n
        a, b = mean(y for _, y in points[:k]), mean(y for _, y in points[-k:])
        same = digits(a) == digits(b)
        figures = f"<b>{digits(b)}</b> stayed" if same else f"<b>{digits(a)} → {digits(b)}</b> {'rose' if b > a else 'fell'}"
        when = f"first and last {f'{n} steps' if n > 1 else 'step'}"
        when = f"probes at steps {points[0][0]} and {points[-1][0]}" if probed else when
        said = f"{figures}<span>{text(words)}</span><small>{when}</small>"
        out.append(f"<li><div>{said}</div>{spark(points)}</li>")
    if not out:
        return f'<p class="absent">{"Too short for a before and after." if run.metrics else "No step is finished yet."}</p>'
    return f'<ul class="words">{"".join(out)}</ul>'


def absolute(run: Run) -> str:
    """Current tasks against the frozen base; anchors."""
    current = [Line("every step", run.series(lambda r: num(r, "solve_rate")), "s3", "thin"),
               Line("frozen base", run.series(lambda r: num(r, "base_solve")), "base", "bold"),
               Line("frozen student", run.series(lambda r: num(r, "frozen_solve")), "s1", "d1"),
               Line("students", run.series(lambda r: num(r, "student_solve")), "s0", "bold")]
    figures = [figure("The teachers' current tasks",
                      "Share solved by the frozen base, which never learns, by the student that was best at the first probe "
                      "after the start, kept as it was then, and by the students of the day. If the frozen ones fall, the tasks "
                      "got harder; the distance to them is the students' lead.",
                      line_chart("solve rate on current tasks", current, share=True))]
    for key, title, words, share in (
            ("anchors_sampled", "Held-out anchor tasks, sampled",
             "Accuracy of every student, bold their mean, on tasks that never change and are never trained "
             "on, at the run's temperature (greedily: at the head of this page); dotted: the frozen base.",
             False),
            ("anchors_think", "Thinking on the anchors, greedy",
             "Share of every student's greedy answers to these tasks that think, bold their mean; dotted: "
             "the frozen base.", True)):
        lines = [Line(name, run.series(lambda r: num(r, key, name)), m.color, m.style + " thin", label=False)
                 for name, m in run.members.items() if m.role == "student"]
        lines.append(Line("mean", run.series(probed(key)), "s0", "bold"))
        lines.append(base_line(run, f"{key}_base"))
        figures.append(figure(title, words, line_chart(title, lines, share=share, zero=False)))
    return section("absolute", "The absolute picture",
                   "Ratings only compare members with each other. These measures have a fixed end: a base that never learns, and "
                   "tasks that never change.", figures)


def difficulty(run: Run) -> str:
    """Complexity, coverage and variety of what teachers write."""
    names = ("AST depth", "McCabe", "lines", "variables", "statements")
    measured = lambda name: run.series(lambda r: num(r, "complexity", name.split()[-1].lower()))
    complexity = [Line(name, measured(name), f"m{i}") for i, name in enumerate(names)]
    valid = itertools.accumulate((num(r, "n") or 0) * (num(r, "valid") or 0) for r in run.metrics)
    structures = Line("structures", run.series(lambda r: num(r, "coverage")), "t0", "bold")
    coverage = [Line("valid tasks", [(r["step"], v) for r, v in zip(run.metrics, valid)], "base", "d1"), structures]
    variety = Line("of 64", run.series(lambda r: num(r, "rarefied")), "t0", "bold")
    sizes = [Line("characters", run.series(lambda r: num(r, "output_chars")), "m0"),
             Line("digits", run.series(lambda r: num(r, "output_digits")), "m1")]
    key = ("complexity", "statements")
    figures = [
        figure("Complexity of valid tasks",
               "Means per task: depth of the syntax tree, McCabe's cyclomatic number, lines, variables, statements.",
               line_chart("complexity", complexity)),
        figure("Statements per task, by teacher",
               "One line a teacher, bold their mean. A race shows as all of them rising, one runaway as one line.",
               line_chart("statements by teacher", [*member_lines(run, "teacher", key), role_mean(run, "teacher", key)], cap=50)),
        figure("Size of outputs",
               "Characters of a task's output and digits of its longest number: lengthening these makes tasks long rather than "
               "hard.",
               line_chart("output size", sizes)),
        figure("Coverage",
               "Distinct program structures so far (names and constants do not count); dashed: valid tasks. The distance is "
               "repetition.",
               line_chart("coverage", coverage) if any(y is not None for _, y in structures.points) else ""),
        figure("Variety, rarefied",
               "Expected distinct structures among 64 of the latest tasks: comparable between populations of any size. 64 = no "
               "two alike.",
               line_chart("rarefied", [variety])),
        figure("Entropy", "Mean surprise a token, in nats: near 0 a member always says the same.",
               line_chart("entropy", roles(run, ("entropy",)), cap=50))]
    return section("difficulty", "What the teachers write",
                   "Size and variety of the tasks. An archive that forbids repeats makes size rise by itself: look at a run with "
                   "<code>--teacher-reward novelty</code> before believing a curve.", figures)


def validity(run: Run) -> str:
    """Why proposals are refused; trivial, repeated and guessable tasks; rewards; kinds."""
    totals = Counter()
    for row in run.metrics:
        totals.update({reason: num(row, "reasons", reason) or 0 for reason in items(row, "reasons")})
    top = [reason for reason, _ in totals.most_common(7)]
    rest = [reason for reason in totals if reason not in top]
    lots = {reason: [reason] for reason in top} | ({"other": rest} if rest else {})
    logged = [row for row in run.metrics if "reasons" in row]
    layers = {name: {row["step"]: refused(row, lot) for row in logged} for name, lot in (lots or {"none refused": []}).items()}
    one = lambda name, value, color: Line(name, run.series(value), color)
    shares = [one("nobody solves", lambda r: num(r, "solve_0"), "m1"), one("all solve", lambda r: num(r, "solve_1"), "m0"),
              one("duplicates", duplicates, "m2"),
              one("guessing", guessing, "m3"), one("beats guess", lambda r: num(r, "beats_guessing"), "m5")]
    figures = [
        figure("Refused proposals, by reason",
               "Share of each step's proposals that the judge refused; what is missing to 1 was valid.",
               stack_chart("reasons for refusal", layers, share=True)),
        figure("Tasks that teach nothing",
               "Of the valid tasks, those that nobody or everybody solves, and those solved more often than guessing would; of "
               "all proposals, the duplicates; how often guessing the commonest output is right.",
               line_chart("trivial tasks", shares, share=True, cap=60)),
        figure("Reward", "Mean reward of proposals (teachers) and of attempts (students).",
               line_chart("reward", roles(run, ("reward",)), cap=50))]
    kinds = list(dict.fromkeys(kind for row in run.metrics for kind in items(row, "kinds")))[:12]
    for title, caption, key in (("Solve rate by kind", "The students' solve rate on each kind of task.", "solve_rate"),
                                ("Valid by kind", "Share of the proposals of each kind that are valid.", "valid")):
        if len(kinds) > 1:
            lines = [one(kind, lambda r: num(r, "kinds", kind, key), f"m{i % 8}") for i, kind in enumerate(kinds)]
            figures.append(figure(title, caption, line_chart(title, lines, share=True, cap=50)))
    return section("validity", "What the judge says",
                   "Valid, refused, trivial, repeated: the ways in which teachers fail, or game the reward.", figures)


def tokens_by_phase(run: Run) -> dict[str, dict[int, float]]:
    """{phase: {step: tokens}}: generated while proposing, solving and probing, and trained on in the update."""
    def spoken(row, role: str) -> float | None:
        said = [(num(m, "n"), num(m, "response_tokens")) for m in items(row, "members").values() if get(m, "role") == role]
        known = [n * tokens for n, tokens in said if None not in (n, tokens)]
        return sum(known) if known else None
    known = lambda value: {step: v for step, v in run.series(value) if v is not None}
    total = [(-1, 0), *known(lambda r: num(r, "tokens_trained")).items()]
    update = {step: v - before for (last, before), (step, v) in zip(total, total[1:]) if step == last + 1}
    return dict(propose=known(lambda r: spoken(r, "teacher")), solve=known(lambda r: spoken(r, "student")),
                probe=known(lambda r: num(r, "probe_tokens")), update=update)


def machine(run: Run) -> str:
    """Seconds and tokens."""
    phases = list(dict.fromkeys(phase for row in run.metrics for phase in items(row, "seconds")))[:12]
    known = lambda phase: [(step, v) for step, v in run.series(lambda r: num(r, "seconds", phase)) if v is not None]
    seconds = {phase: dict(known(phase)) for phase in phases}
    totals = [(word, num(run.metrics[-1], f"tokens_{word}")) for word in ("generated", "trained")]
    told = [f"{total:,.0f} tokens {word}" for word, total in totals if total is not None]
    minutes = sum(sum(points.values()) for points in seconds.values()) / 60
    return section("machine", "What it cost", ", ".join([*told, f"{minutes:,.1f} minutes, {many(len(run.metrics), 'step')}."]), [
        figure("Seconds per phase", "Wall-clock seconds of a step, by phase; tall bars are steps with a probe.",
               stack_chart("seconds per phase", seconds)),
        figure("Tokens per phase", "Tokens generated while proposing, solving and probing, and tokens trained on in the update.",
               stack_chart("tokens per phase", tokens_by_phase(run))),
        figure("Length of a response", "Mean tokens of a proposal (teachers) and of an answer (students).",
               line_chart("response tokens", roles(run, ("response_tokens",)), cap=50))])


# --- several runs, configuration, the page --------------------------------------------------------------------------------

def labelled(runs: list[Run]) -> list[tuple[str, Run]]:
    """Runs with names that differ: the directory's, or as much of the end of its path as tells it from the others."""
    ends = [["/".join(path.parts[-k:]) for k in range(1, len(path.parts))] for path in (run.path.resolve() for run in runs)]
    count = Counter(itertools.chain(*ends))
    return [(next((end for end in own if count[end] == 1), str(run.path)), run) for own, run in zip(ends, runs)]


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
        rows.append(f'{mark}<td>{text(brief(name, 60))}</td><td class="right">{len(run.metrics)}</td>{cells}'
                    f'<td class="prose">{differ}</td>')
    head = "".join(f"<th>{word}</th>" for word in ("", "run", "steps", "tokens generated",
                                                   "tokens trained", "flags that differ from the first run's"))
    words = ("<b>The budgets are not the same</b>: they differ by more than 5%, or are not known. A curve that is higher may "
             "only have cost more." if uneven else "The budgets agree within 5%.")
    figures = [f'<div class="card wide">{table(head, rows)}</div>']
    for title, value, axis in measures(runs):
        lines = [Line(name, run.series(value), f"m{i % 8}", f"d{i // 8 % 3}") for i, (name, run) in enumerate(named)]
        chart = line_chart(title, lines, share=axis == "share", zero=axis != "free", cap=50)
        figures.append(figure(text(title[0].upper() + title[1:]), "One line a run.", chart))
    return section("compared", "Compared", f"{words} The run is the unit of any statistics: one of each is no claim.", figures)


def status(run: Run) -> str:
    """Who played, on what, and how far the run got."""
    c, steps, done = run.config, num(run.config, "steps"), run.metrics[-1]["step"] + 1 if run.metrics else 0
    who = " and ".join(many(c[f"{role}s"], role) for role in ("teacher", "student") if f"{role}s" in c)
    who = "One adapter in both roles" if c.get("single") else who
    if steps is None:
        state = many(done, "step")
    else:
        state = f"{done} of {steps:.0f} steps done: stopped, or still going" if done < steps else f"all {many(done, 'step')} done"
    who = text(who or many(len(run.members), "member"))
    return f"{who} on {text(c.get('base', 'an unknown base'))}, seed {text(c.get('seed', 'unknown'))}; {state}."


def page(runs: list[Run], watch: float = 0) -> str:
    """The whole report as HTML; the first run is the one it is about. watch: seconds after which the page looks again."""
    run, n_notes = runs[0], 12
    parts = {"compared": ("Compared", compared(runs))} if len(runs) > 1 else {}
    if run.metrics:
        parts |= {part.__name__: (word, part(run)) for part, word in (
            (absolute, "Absolute"), (difficulty, "Tasks written"), (validity, "Judge"), (population, "Population"),
            (machine, "Cost"))}
    first = opening(run) if run.metrics else ""
    foot = f"<footer>{text(habit(run))}</footer>" if habit(run) else ""
    tail = setup(run)
    written = [first, foot, tail, CSS, JS, *(html for _, html in parts.values())]
    used = sum(len(html.encode()) for html in written) + 30_000
    room = min(TASK_BYTES, MAX_BYTES - used)
    parts |= {"tasks": ("Browse tasks", browser(run, max(room, 40_000))), "setup": ("Setup", tail)}
    links = {"thinking": "Thinking"} if run.metrics else {}
    links |= {"words": "In words"} | {name: word for name, (word, _) in parts.items()}
    links = "".join(f'<li><a href="#{name}">{word}</a></li>' for name, word in links.items())
    notes = [f"{name}: {note}" if len(runs) > 1 else note for name, r in labelled(runs) for note in r.notes]
    notes = f'<p class="notes">About the logs: {text("; ".join(notes[:n_notes]), 2000)}.</p>' if notes else ""
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
