"""Tasks on the terminal: some of every step as they happen (--show), and those of one step or match once more (--replay).

A card is made from a line of tasks.jsonl: what is shown is what is logged. All of it was written by models, so that nothing
reaches the terminal but printable characters (report.svg.visible) and our own colours.
"""
import dataclasses
import json
import os
import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import selfplay
from config import Config
from infra.checkpoint import State
from report.run import Run
from report.svg import visible
from selfplay import Setup

CODES = {"correct": 32, "wrong": 31, "malformed": 33, "refused": 33, "head": 1, "faint": 2}      # ANSI colours
LINE = 160                                                                                       # of an attempt, with --show


def colored() -> bool:
    """Whether standard output is a terminal whose user did not say NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(code: str, words: str, color: bool) -> str:
    """Words in one of CODES' colours, or as they are."""
    return f"\x1b[{CODES[code]}m{words}\x1b[0m" if color else words


def block(words, margin: str = "    ") -> str:
    """A model's text, made visible, each line behind a margin."""
    return "\n".join(margin + line for line in visible(str(words)).rstrip("\n").split("\n"))


def tell(words: str) -> None:
    """Print, with escapes for what the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def card(row: dict, color: bool, whole: bool = False) -> str:
    """One line of tasks.jsonl as text for people: who wrote what, who tried, what the judge said. whole: attempts in full."""
    solved = "not tried" if row.get("solve_rate") is None else f"solved {row['solve_rate']:.2f}"
    fate = paint("refused", f"refused: {visible(row['reason'])}", color) if row["reason"] else solved
    out = [paint("head", f"  step {row['step']} {row['teacher']} {row['kind']}", color) + f"  {fate}, reward {row['reward']:.2f}"]
    out += [block(row[key]) for key in ("text", "message", "program") if row.get(key)]
    out += [block(f"{given} -> {result}") for given, result in zip(row.get("inputs", ()), row.get("outputs", ()))]
    for student, verdicts in row.get("attempts", {}).items():
        tries = zip_longest(verdicts, (text.strip() for text in row["answers"].get(student, ())))
        for (verdict, text), n in Counter(tries).most_common():
            short = visible((text or "").replace("\n", " / "))[-LINE:]
            said = f"    {student} {paint(verdict, f'{verdict} x{n}' if n > 1 else verdict, color)}"
            out.append(f"{said}\n{block(text or '', '        ')}" if whole else f"{said}  {paint('faint', short, color)}")
    return "\n".join(out)


def some(rows: list[dict], n: int) -> list[dict]:
    """n of a step's lines of tasks.jsonl: valid ones before refused ones, and the teachers take turns."""
    seen, order = Counter(), []
    for row in rows:
        lot = (bool(row["reason"]), row["teacher"])
        order.append((lot[0], seen[lot]))
        seen[lot] += 1
    return [rows[i] for i in sorted(range(len(rows)), key=order.__getitem__)[:n]]


def wanted(path: Path, step: int, match: str) -> tuple[Config, list[str], list[dict]]:
    """The configuration of the run at `path`, its matches "T2:S1" at `step` (or the one asked for), and what tasks.jsonl says of
    that step. Raises ValueError where there is no such run, step or match."""
    run = Run(path, want_tasks=False)
    if not run.config:
        raise ValueError(f"{path}: {run.notes[0]}; without the run's flags it cannot be replayed")
    if odd := set(run.config) - {f.name for f in dataclasses.fields(Config)}:
        raise ValueError(f"{path} was made by another version, whose flags this one lacks: {', '.join(sorted(odd))}")
    steps = sorted({m["step"] for m in run.matches})
    if step not in steps:
        held = f"the run's log has steps {steps[0]} to {steps[-1]}" if steps else "the run's log has no finished step"
        raise ValueError(f"--step {step}: {held}")
    pairs = [f"{m.get('teacher')}:{m.get('student')}" for m in run.matches if m["step"] == step]
    if match and match not in pairs:
        raise ValueError(f"--match {match}: at step {step} there were {', '.join(pairs)}")
    return Config(**run.config), [match] if match else pairs, [row for row in run.lines("tasks.jsonl") if row["step"] == step]


def again(s: Setup, state: State, matches: list[str], logged: list[dict]) -> bool:
    """Play the state's step once more up to the rewards, the whole batch as it was (rows alone could round otherwise), and print
    these matches in full: prompts as the models saw them, texts, verdicts. True if the whole step is what `logged` says."""
    step, tokenizer = state.step, s.base.tokenizer
    words = lambda rollout, i: tokenizer.decode(rollout.ids[i, :rollout.prompt_len[i]].tolist(), skip_special_tokens=False,
                                                clean_up_tokenization_spaces=False)
    pairs = selfplay.match(s, state.members, step)
    rollout, proposed = selfplay.propose(s, state.archive, [m for m in state.members if m.role == "teacher"], step)
    selfplay.verify(s, state.archive, proposed, step)
    solved, attempts = selfplay.solve(s, pairs, proposed, step)
    selfplay.pay_teachers(s, state.archive, proposed, step)
    asked = {(id(p), student.name): words(attempts.rollout, i * s.cfg.attempts) for i, (p, student) in enumerate(solved)}
    color, rows = colored(), selfplay.task_rows(proposed, step, limit=sys.maxsize)
    faint = lambda text: paint("faint", block(text, "  | "), color)
    for teacher, student in (match.split(":") for match in matches):
        tell(paint("head", f"step {step}, {teacher} against {student}", color))
        for p, row in zip(proposed, rows):
            if p.teacher.name == teacher:
                own = {name: verdicts for name, verdicts in row.get("attempts", {}).items() if name == student}
                prompts = [words(rollout, p.row), *(asked[id(p), name] for name in own)]
                tell("\n".join([*map(faint, prompts), card(row | dict(attempts=own), color, whole=True), ""]))
    made = json.loads(json.dumps(selfplay.task_rows(proposed, step)))
    same = sum(old == {k: new.get(k) for k in old} for old, new in zip(logged, made))
    tell(f"{same} of {len(made)} proposals of step {step}, with all attempts at them, are what tasks.jsonl says"
         + ("" if same == len(made) else ": another version, device or number of processes made them"))
    return same == len(made) == len(logged)
