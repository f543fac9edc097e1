"""What a run's directory says, read leniently: lines that cannot be read are skipped and counted, what is
missing is None."""
import copy
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

FORMER = {"coverage", "zero_advantage", "whiten", "max_new"}        # names that measures and flags had
# What readers call the types of tasks.
KINDS = dict(code_o="output tasks", code_i="input tasks", code_f="functions to find", math="word problems",
             logic="logic puzzles", proof="proofs")


def get(row, *keys):
    """row[key][key]..., or None where something is missing or no dict."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def num(row, *keys) -> float | None:
    """The number at row[key]...; None if it is missing, no number or none that can be drawn (NaN)."""
    value = get(row, *keys)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and abs(value) < 1e15 else None


def items(row, *keys, kind=dict):
    """The dict (or list) at row[key]..., or an empty one."""
    value = get(row, *keys)
    return value if isinstance(value, kind) else kind()


def average(values) -> float | None:
    """Mean of what is not None, or None."""
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def known(points: list) -> list:
    """Those of some points (step, value) that have a value."""
    return [(step, value) for step, value in points if value is not None]


def parents(birth: dict | None) -> list[str]:
    """The names of a child's parents; [] of a founder."""
    return [str(get(parent, "name")) for parent in items(birth, "parents", kind=list)]


@dataclass
class MemberLog:
    """One member's life."""
    name: str
    role: str
    color: str
    style: str
    birth: dict | None = None       # its line of genealogy.jsonl; None: a founder
    rows: list[tuple[int, dict]] = field(default_factory=list)      # (step, measures)
    born: bool = False              # after the run's first step
    died: bool = False              # before its last

    def points(self, *keys) -> list:
        """[(step, the number at keys)] over its life."""
        return [(step, num(row, *keys)) for step, row in self.rows]


class RunLog:
    """A run's directory, read; `notes` says what was wrong with it. Raises ValueError if it is no run."""

    def __init__(self, path: Path, want_tasks: bool = True):
        if not path.is_dir():
            raise ValueError(f"{path}: no such directory; give a run's directory, out/NAME")
        self.path, self.name, self.notes = path, path.resolve().name, []
        if not any((path / name).exists() for name in ("config.json", "metrics.jsonl")):
            raise ValueError(f"{path} is no run: neither config.json nor metrics.jsonl is in it")
        self.config, self.env = self.whole("config.json"), self.whole("env.json")
        self.metrics = list({row["step"]: row for row in self.lines("metrics.jsonl")}.values())
        self.metrics.sort(key=lambda row: row["step"])
        if FORMER & {*self.config, *(key for row in self.metrics for key in row)}:
            raise ValueError(f"{path} was written before the flags and measures got their present names: "
                             "draw it with the commit in its env.json")
        births = self.lines("genealogy.jsonl", expected=False)
        self.births = {str(birth.get("child")): birth for birth in births}
        self.members = self.lives()
        self.n_tasks = self.n_valid = 0
        self.tasks = self.sample() if want_tasks else []

    def whole(self, name: str) -> dict:
        """A file that is one JSON object; {} and a note where it is not."""
        why = ""
        try:
            data = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError, RecursionError) as e:
            data, why = None, f" ({type(e).__name__})"
        if isinstance(data, dict):
            return data
        self.notes.append(f"{name} could not be read{why}")
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
            many = f"{bad} line{'s' * (bad > 1)} of {name}"
            self.notes.append(f"{many} skipped: cut off, or not an object with a step")

    def lives(self) -> dict[str, MemberLog]:
        """Members by name, in the order of their appearance; each role has its family of colours."""
        members, seen = {}, Counter()
        for row in self.metrics:
            for name, measured in items(row, "members").items():
                if name not in members:
                    role = "teacher" if get(measured, "role") == "teacher" else "student"
                    color, style = f"{role[0]}{seen[role] % 6}", f"d{seen[role] // 6 % 3}"
                    members[name] = MemberLog(name, role, color, style, self.births.get(name))
                    seen[role] += 1
                members[name].rows.append((row["step"], measured))
        for m in members.values():
            m.born = m.rows[0][0] > self.metrics[0]["step"]
            m.died = m.rows[-1][0] < self.metrics[-1]["step"]
        return members

    def sample(self) -> list[tuple[int, dict]]:
        """[(line, proposal)] in the order in which they are shown while there is room; counts all proposals.

        Within a step the order is drawn; first come the first of every step, then the second; a refused one
        for three valid.
        """
        rng, lots = random.Random(0), {}
        keep = max(6, 4000 // max(1, len(self.metrics)))        # of a step, so that memory stays small
        for row in self.lines("tasks.jsonl"):
            valid = not row.get("reason")
            lot = lots.setdefault((row["step"], valid), [])
            lot.append((rng.random(), self.n_tasks, row))
            if len(lot) > 2 * keep:
                lot.sort()                                      # no two lines have one number
                del lot[keep:]
            self.n_tasks += 1
            self.n_valid += valid
        ranked = []
        for (_, valid), lot in lots.items():
            for i, entry in enumerate(sorted(lot)[:keep]):
                ranked.append((i if valid else 3 * i + 2, *entry))
        return [(line, row) for _, _, line, row in sorted(ranked)]

    def on_same_tasks(self) -> "RunLog":
        """This run with probes of the same tasks each time: where a probe asked more, their share of it."""
        run = copy.copy(self)
        run.metrics = [row | items(row, "part") for row in self.metrics]
        return run

    def those(self, role: str) -> list[MemberLog]:
        """All members of a role that there ever were, in the order of their appearance."""
        return [m for m in self.members.values() if m.role == role]

    def points(self, *keys) -> list:
        """[(step, the number at keys)] over the run."""
        return [(row["step"], num(row, *keys)) for row in self.metrics]

    def mean(self, role: str, where: tuple, *keys) -> list:
        """[(step, mean over a role's members)] of the numbers at keys in what the dict at `where` holds."""
        points = []
        for row in self.metrics:
            found = items(row, *where)
            some = [found[name] for name in found if get(row, "members", name, "role") == role]
            points.append((row["step"], average(num(each, *keys) for each in some)))
        return points

    def names(self, key: str, most: int = 12) -> list[str]:
        """The keys of the dicts that the run's lines have under `key`, each once."""
        return list(dict.fromkeys(name for row in self.metrics for name in items(row, key)))[:most]
