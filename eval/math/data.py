"""The seven mathematics sets in their published formats, as one list of items each.

Editions differ in the names of their fields, so those are looked up without regard to case: the question is
`problem` or `question`; the gold answer is `answer`, `final_answer` (OlympiadBench: a list), what follows
"####" (GSM8K), or the last box of the `solution` (Minerva, and AIME where it has no answer).
"""
import sys
from dataclasses import dataclass
from pathlib import Path

from eval.fetch import CACHE, FILES, locate, rows
from eval.math.grading import last_box

SETS = ("aime24", "aime25", "amc23", "math500", "minerva", "gsm8k", "olympiadbench")
QUESTION, ANSWER = ("problem", "question"), ("answer", "final_answer", "expected_answer")
SOLUTION = ("solution",)
# A number of Minerva is right within 1%: its gold numbers are rounded (Lewkowycz et al. 2022).
RELATIVE = {"minerva": 0.01}


@dataclass(frozen=True)
class Item:
    """One question with its gold answer; relative and absolute: by how much a number may differ from it."""
    bench: str
    id: str
    question: str
    gold: str
    relative: float = 0.0
    absolute: float = 0.0


def field(row: dict, names: tuple[str, ...]):
    """The first of these fields that a row has and fills, in any case; None without one."""
    lower = {key.lower(): value for key, value in row.items()}
    for name in names:
        if lower.get(name) not in (None, "", []):
            return lower[name]
    return None


def gold_answer(bench: str, row: dict) -> str | None:
    """The gold answer as text; None where the row has none."""
    answer = field(row, ANSWER)
    if isinstance(answer, list):
        answer = ", ".join(map(str, answer))
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)                     # AMC23: 27.0
    if answer is None:
        return last_box(str(field(row, SOLUTION) or ""))
    answer = str(answer).strip()
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    return last_box(answer) if "\\boxed" in answer else answer


def tolerance(row: dict) -> float:
    """OlympiadBench: the absolute error that its row allows, often none."""
    try:
        return abs(float(field(row, ("error",)) or 0))
    except (TypeError, ValueError):
        return 0.0


def load(bench: str, data: str | Path | None = None, cache: Path = CACHE) -> tuple[list[Item], str]:
    """Items of a set in file order, and the file's SHA-256. ValueError for a missing or damaged file."""
    path, sha = locate(bench, data, cache)
    items, seen, n_rows = [], set(), FILES[bench].n_rows
    for number, row in enumerate(rows(path), 1):
        question, gold = field(row, QUESTION), gold_answer(bench, row)
        if not isinstance(question, str) or not gold:
            raise ValueError(f"{path}, row {number}: expected a question ({' or '.join(QUESTION)}) and an "
                             f"answer ({', '.join(ANSWER + SOLUTION)}), found the fields {', '.join(row)}: "
                             f"not a published edition of {bench}; it is at {FILES[bench].url}")
        id = field(row, ("unique_id", "id", "idx"))
        name = str(number - 1 if id is None else id)
        unique = name if name not in seen else f"{name}#{number}"
        items.append(Item(bench, unique, question, gold, RELATIVE.get(bench, 0.0), tolerance(row)))
        seen.add(name)
    if not items:
        raise ValueError(f"{path} is empty: expected {n_rows} questions; fetch it again "
                         f"(python -m eval.fetch {bench})")
    if len(items) != n_rows:
        note = f"note: {path} holds {len(items)} questions, {bench} as published has {n_rows}"
        print(note, file=sys.stderr)
    return items, sha
