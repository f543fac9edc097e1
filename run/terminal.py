"""Tasks of a step on the terminal (--show), formatted from their lines of tasks.jsonl.

All of it was written by models: nothing reaches the terminal but printable characters.
"""
import sys
from collections import Counter
from itertools import zip_longest

LINE = 160                          # characters of an attempt


def visible(text: str) -> str:
    """Text whose characters that are not printable show as their codes."""
    codes = {}                              # number of a character -> what is shown instead
    for char in set(text) - {"\n", "\t"}:
        if not char.isprintable():
            codes[ord(char)] = f"\u27e8U+{ord(char):04X}\u27e9"
    return text.translate(codes)


def block(words: object) -> str:
    """A model's text, made visible, each line behind a margin."""
    text = visible(str(words)).rstrip("\n")
    return "    " + text.replace("\n", "\n    ")


def print_safely(words: str) -> None:
    """Print, with escapes for what the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def format_task(row: dict) -> str:
    """One line of tasks.jsonl as text for people: who wrote what, who tried, what the verifier said."""
    if row["reason"]:
        fate = f"refused: {visible(row['reason'])}"
    elif row.get("solve_rate") is None:
        fate = "not tried"
    else:
        fate = f"solved {row['solve_rate']:.2f}"
    out = [f"  step {row['step']} {row['teacher']} {row['kind']}  {fate}, reward {row['reward']:.2f}"]
    for key in ("text", "message", "program"):
        if row.get(key):
            out.append(block(row[key]))
    for given, result in zip(row.get("inputs", ()), row.get("outputs", ())):
        out.append(block(f"{given} -> {result}"))
    for student, verdicts in row.get("attempts", {}).items():
        texts = map(str.strip, row["answers"].get(student, ()))
        alike = Counter(zip_longest(verdicts, texts, fillvalue=""))         # equal answers are shown once
        for (verdict, text), n in alike.most_common():
            short = visible(text.replace("\n", " / "))[-LINE:]
            times = f" x{n}" if n > 1 else ""
            out.append(f"    {student} {verdict}{times}  {short}")
    return "\n".join(out)


def first_of_each(rows: list[dict], n: int) -> list[dict]:
    """n of a step's lines of tasks.jsonl: valid ones before refused ones, and the teachers take turns."""
    n_before = Counter()                    # of a teacher's lines of this kind: its turns
    turns = []
    for row in rows:
        refused = bool(row["reason"])
        lot = refused, row["teacher"]
        turns.append((refused, n_before[lot], len(turns), row))
        n_before[lot] += 1
    return [row for *_, row in sorted(turns)[:n]]
