"""What a run's directory says, read leniently: lines that cannot be read are skipped and counted, what is missing is None.

No imports but Python's, so that a report can be made where torch is not installed.
"""
import itertools
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


def get(row, *keys):
    """row[key][key]..., or None where something is missing or no dict."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def num(row, *keys) -> float | None:
    """The number at row[key]...; None if it is missing, no number or not one that can be drawn (NaN, infinite)."""
    value = get(row, *keys)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15 else None


def items(row, *keys) -> dict:
    """The dict at row[key]..., or an empty one."""
    value = get(row, *keys)
    return value if isinstance(value, dict) else {}


def listed(row, *keys) -> list:
    """The list at row[key]..., or an empty one."""
    value = get(row, *keys)
    return value if isinstance(value, list) else []


def mean(values) -> float | None:
    """Mean of what is not None, or None."""
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


@dataclass
class Member:
    """One member's life: its role, its colour, and (step, measures) of every step it took part in."""
    role: str
    color: str
    style: str
    rows: list[tuple[int, dict]] = field(default_factory=list)


class Run:
    """A run's directory, read; `notes` says what was wrong with it. Raises ValueError if it is no run."""

    def __init__(self, path: Path, want_tasks: bool = True):
        if not path.is_dir():
            raise ValueError(f"{path}: no such directory; give a run's directory, out/NAME")
        if not (path / "metrics.jsonl").exists() and not (path / "config.json").exists():
            raise ValueError(f"{path} is no run: neither metrics.jsonl nor config.json is in it; give a run's directory, "
                             "out/NAME")
        self.path, self.name, self.notes = path, path.resolve().name, []
        self.config, self.env = self.whole("config.json"), self.whole("env.json")
        self.metrics = list({row["step"]: row for row in self.lines("metrics.jsonl")}.values())
        self.metrics.sort(key=lambda row: row["step"])
        self.matches, self.births = list(self.lines("matches.jsonl")), list(self.lines("genealogy.jsonl", expected=False))
        self.members = self.lives()
        self.n_tasks, self.n_valid, self.tasks = self.sample() if want_tasks else (0, 0, [])

    def whole(self, name: str) -> dict:
        """A file that is one JSON object; {} and a note where it is not."""
        try:
            data = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError, RecursionError) as e:
            data = type(e).__name__
        if isinstance(data, dict):
            return data
        self.notes.append(f"{name} could not be read" + (f" ({data})" if isinstance(data, str) else ""))
        return {}

    def lines(self, name: str, expected: bool = True):
        """The objects with a step in a log, one after the other; the others are counted in a note."""
        if not (self.path / name).exists():
            self.notes += [f"{name} is not there"] if expected else []
            return
        bad = 0
        with open(self.path / name, "rb") as f:
            for line in f:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                step = num(row, "step")
                if step is not None and step == int(step) and 0 <= step < 1e9:
                    yield row | {"step": int(step)}
                else:
                    bad += bool(line.strip())
        if bad:
            self.notes.append(f"{bad} line{'s' if bad > 1 else ''} of {name} skipped: cut off, or not an object with a step")

    def lives(self) -> dict[str, Member]:
        """Members by name, in the order of their appearance; each role has its family of colours."""
        members, seen = {}, Counter()
        for row in self.metrics:
            for name, m in items(row, "members").items():
                if name not in members:
                    role = "teacher" if get(m, "role") == "teacher" else "student"
                    members[name] = Member(role, f"{role[0]}{seen[role] % 6}", f"d{seen[role] // 6 % 3}")
                    seen[role] += 1
                members[name].rows.append((row["step"], m))
        return members

    def sample(self) -> tuple[int, int, list[tuple[int, dict]]]:
        """(proposals, valid ones, [(line, proposal)]): the last in the order in which they should be shown while there is room.

        Within a step the order is drawn; first come the first of every step, then the second; a refused one for three valid.
        """
        rng, lots, n, n_valid = random.Random(0), {}, 0, 0
        keep = max(6, 4000 // max(1, len(self.metrics)))        # of a step, so that memory stays small
        for row in self.lines("tasks.jsonl"):
            valid = not row.get("reason")
            lot = lots.setdefault((row["step"], valid), [])
            lot.append((rng.random(), n, row))
            if len(lot) > 2 * keep:
                lot[:] = sorted(lot, key=lambda entry: entry[:2])[:keep]
            n, n_valid = n + 1, n_valid + valid
        ranked = []
        for (_, valid), lot in lots.items():
            for i, (draw, line, row) in enumerate(sorted(lot, key=lambda entry: entry[:2])[:keep]):
                ranked.append((i if valid else 3 * i + 2, draw, line, row))
        return n, n_valid, [(line, row) for _, _, line, row in sorted(ranked, key=lambda entry: entry[:3])]

    def students(self) -> list[str]:
        """Names of all students there ever were, in the order of their appearance."""
        return [name for name, m in self.members.items() if m.role == "student"]

    def series(self, value) -> list:
        """[(step, value(row))] over the run."""
        return [(row["step"], value(row)) for row in self.metrics]


def duplicates(row) -> float | None:
    """Share of proposals that repeat an earlier one; older logs say it among the reasons alone."""
    n, logged = num(row, "n"), num(row, "duplicates")
    return logged if logged is not None or not n or "reasons" not in row else (num(row, "reasons", "duplicate") or 0) / n


def probed(key: str):
    """The students' mean of a measure that probes take of each of them, as a function of a line of
    metrics.jsonl: anchors_sampled and anchors_greedy, accuracy; anchors_think, share of greedy answers that
    think."""
    def value(row) -> float | None:
        return mean(num(row, key, name) for name in items(row, key))
    return value


def of_role(role: str, key: str):
    """The mean of a measure over the members of a role, as a function of a line of metrics.jsonl."""
    def value(row) -> float | None:
        return mean(num(m, key) for m in items(row, "members").values() if get(m, "role") == role)
    return value


def heldout(kind: str, role: str, key: str = "heldout"):
    """The mean accuracy of a role's members on tasks of a kind that the run does not play, as a function of a
    line of metrics.jsonl; key heldout_think: the share of their answers that think."""
    def value(row) -> float | None:
        names = [name for name in items(row, key, kind) if get(row, "members", name, "role") == role]
        return mean(num(row, key, kind, name) for name in names)
    return value


def unplayed(runs: list[Run]) -> list[str]:
    """The kinds of tasks that the probes of these runs asked although nobody played them; at most a dozen."""
    rows = itertools.chain(*(run.metrics for run in runs))
    return list(dict.fromkeys(kind for row in rows for kind in items(row, "heldout")))[:12]


# What readers call the kinds of tasks.
KINDS = dict(code_o="output tasks", code_i="input tasks", code_f="functions to find", math="word problems",
             logic="logic puzzles")


def guessing(row) -> float | None:
    """How often the archive's most frequent output would be right: the worst of the kinds."""
    rates = [num(row, "guess_rate", kind) for kind in items(row, "guess_rate")]
    return max([r for r in rates if r is not None], default=None)


def refused(row, reasons) -> float:
    """Share of a step's proposals that were refused for one of these reasons."""
    return sum(num(row, "reasons", reason) or 0 for reason in reasons) / (num(row, "n") or math.inf)


def measures(runs: list[Run]) -> list[tuple]:
    """What is said in words and compared between runs: words, what a line of metrics.jsonl says of it, and
    what its axis holds: 0 to 1 (share), 0 (zero), or what fits (free)."""
    transfer = []
    for kind in unplayed(runs):
        words = f"the students' accuracy on {KINDS.get(kind, kind)}, which nobody played"
        transfer.append((words, heldout(kind, "student"), "share"))
    return [*LEARNED, *transfer, *PLAYED]


LEARNED = (
    ("the students' accuracy on held-out anchor tasks, greedy", probed("anchors_greedy"), "free"),
    ("the students' accuracy on held-out anchor tasks, sampled", probed("anchors_sampled"), "free"),
    ("share of the students' attempts that think before they answer", lambda r: num(r, "think"), "share"),
    ("tokens in a student's attempt", of_role("student", "response_tokens"), "zero"),
)
PLAYED = (
    ("the frozen base's solve rate on the teachers' current tasks", lambda r: num(r, "base_solve"), "share"),
    ("an early student's solve rate on the same tasks, frozen", lambda r: num(r, "frozen_solve"), "share"),
    ("the students' solve rate on the same tasks", lambda r: num(r, "student_solve"), "share"),
    ("statements per task", lambda r: num(r, "complexity", "statements"), "zero"),
    ("depth of the tasks' syntax trees", lambda r: num(r, "complexity", "depth"), "zero"),
    ("McCabe complexity per task", lambda r: num(r, "complexity", "mccabe"), "zero"),
    ("the students' solve rate on current tasks, every step", lambda r: num(r, "solve_rate"), "share"),
    ("share of proposals that are valid", lambda r: num(r, "valid"), "share"),
    ("share of proposals that are duplicates", duplicates, "share"),
    ("distinct structures among 64 of the latest tasks", lambda r: num(r, "rarefied"), "zero"),
    ("distinct structures so far", lambda r: num(r, "coverage"), "zero"),
)
