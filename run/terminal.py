"""Tasks on the terminal: some of every step as they happen (--show), those of one step again (run.replay).

A task is formatted from a line of tasks.jsonl: what is shown is what is logged. All of it was written by
models: nothing reaches the terminal but printable characters and our own colours.
"""
import os
import sys
from collections import Counter
from itertools import zip_longest

# ANSI colours
CODES = {"correct": 32, "wrong": 31, "malformed": 33, "violation": 31, "unjudged": 2, "refused": 33,
         "head": 1, "faint": 2}
LINE = 160                          # characters of an attempt, with --show


def visible(text: str) -> str:
    """Text whose characters that are not printable show as their codes."""
    hidden = {c for c in set(text) - {"\n", "\t"} if not c.isprintable()}
    return text.translate({ord(c): f"\u27e8U+{ord(c):04X}\u27e9" for c in hidden})


def colored() -> bool:
    """Whether standard output is a terminal whose user did not say NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(code: str, words: str, color: bool) -> str:
    """Words in one of CODES' colours, or as they are."""
    return f"\x1b[{CODES[code]}m{words}\x1b[0m" if color else words


def block(words, margin: str = "    ") -> str:
    """A model's text, made visible, each line behind a margin."""
    return "\n".join(margin + line for line in visible(str(words)).rstrip("\n").split("\n"))


def print_safely(words: str) -> None:
    """Print, with escapes for what the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def format_task(row: dict, color: bool, whole: bool = False) -> str:
    """One line of tasks.jsonl as text for people: who wrote what, who tried, what the judge said. whole:
    attempts in full."""
    if row["reason"]:
        fate = paint("refused", f"refused: {visible(row['reason'])}", color)
    else:
        fate = "not tried" if row.get("solve_rate") is None else f"solved {row['solve_rate']:.2f}"
    head = paint("head", f"  step {row['step']} {row['teacher']} {row['kind']}", color)
    out = [f"{head}  {fate}, reward {row['reward']:.2f}"]
    out += [block(row[key]) for key in ("text", "message", "program") if row.get(key)]
    for given, result in zip(row.get("inputs", ()), row.get("outputs", ())):
        out.append(block(f"{given} -> {result}"))
    for student, verdicts in row.get("attempts", {}).items():
        texts = [text.strip() for text in row["answers"].get(student, ())]
        for (verdict, text), n in Counter(zip_longest(verdicts, texts, fillvalue="")).most_common():
            said = f"    {student} {paint(verdict, f'{verdict} x{n}' if n > 1 else verdict, color)}"
            if whole:
                out.append(f"{said}\n{block(text, '        ')}")
            else:
                short = visible(text.replace("\n", " / "))[-LINE:]
                out.append(f"{said}  {paint('faint', short, color)}")
    return "\n".join(out)


def print_alarms(alarms: dict[str, str], begun: list[str], over: list[str]) -> None:
    """A line for each alarm (run.monitors) that begins with a step, or is over with it."""
    for name in begun:
        print_safely(paint("wrong", f"alarm {name}: {alarms[name]}", colored()))
    for name in over:
        print_safely(f"alarm {name} is over")


def first_of_each(rows: list[dict], n: int) -> list[dict]:
    """n of a step's lines of tasks.jsonl: valid ones before refused ones, and the teachers take turns."""
    seen, order = Counter(), []
    for row in rows:
        lot = (bool(row["reason"]), row["teacher"])
        order.append((lot[0], seen[lot]))
        seen[lot] += 1
    return [rows[i] for i in sorted(range(len(rows)), key=order.__getitem__)[:n]]
