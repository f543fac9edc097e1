"""Tasks of a step on the terminal (--show), formatted from their lines of tasks.jsonl.

All of it was written by models: nothing reaches the terminal but printable characters.
"""
import sys
from collections import Counter
from itertools import zip_longest

LINE = 160                          # characters of an attempt


def visible(text: str) -> str:
    """Text whose characters that are not printable show as their codes."""
    hidden = {c for c in set(text) - {"\n", "\t"} if not c.isprintable()}
    return text.translate({ord(c): f"\u27e8U+{ord(c):04X}\u27e9" for c in hidden})


def block(words, margin: str = "    ") -> str:
    """A model's text, made visible, each line behind a margin."""
    return "\n".join(margin + line for line in visible(str(words)).rstrip("\n").split("\n"))


def print_safely(words: str) -> None:
    """Print, with escapes for what the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def format_task(row: dict) -> str:
    """One line of tasks.jsonl as text for people: who wrote what, who tried, what the verifier said."""
    fate = "not tried" if row.get("solve_rate") is None else f"solved {row['solve_rate']:.2f}"
    if row["reason"]:
        fate = f"refused: {visible(row['reason'])}"
    out = [f"  step {row['step']} {row['teacher']} {row['kind']}  {fate}, reward {row['reward']:.2f}"]
    out += [block(row[key]) for key in ("text", "message", "program") if row.get(key)]
    for given, result in zip(row.get("inputs", ()), row.get("outputs", ())):
        out.append(block(f"{given} -> {result}"))
    for student, verdicts in row.get("attempts", {}).items():
        texts = [text.strip() for text in row["answers"].get(student, ())]
        for (verdict, text), n in Counter(zip_longest(verdicts, texts, fillvalue="")).most_common():
            short = visible(text.replace("\n", " / "))[-LINE:]
            times = f" x{n}" if n > 1 else ""
            out.append(f"    {student} {verdict}{times}  {short}")
    return "\n".join(out)


def first_of_each(rows: list[dict], n: int) -> list[dict]:
    """n of a step's lines of tasks.jsonl: valid ones before refused ones, and the teachers take turns."""
    seen, order = Counter(), []
    for row in rows:
        lot = (bool(row["reason"]), row["teacher"])
        order.append((lot[0], seen[lot]))
        seen[lot] += 1
    return [rows[i] for i in sorted(range(len(rows)), key=order.__getitem__)[:n]]
