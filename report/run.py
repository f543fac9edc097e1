"""What a run's directory says, read leniently: lines that cannot be read are skipped and counted, what is
missing is None."""
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from infra.errors import UserError

SHOWN = 400                         # tasks that a page shows, at most


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


@dataclass
class MemberLog:
    """One member's life."""
    name: str
    role: str
    color: str
    style: str
    birth: dict | None              # its line of genealogy.jsonl; None: a founder
    rows: list[tuple[int, dict]] = field(default_factory=list)      # (step, measures)
    born: bool = False              # after the run's first step
    died: bool = False              # before its last

    def points(self, *keys) -> list:
        """[(step, the number at keys)] over its life."""
        return [(step, num(row, *keys)) for step, row in self.rows]

    def descent(self) -> str:
        """By which operator it was made of whom, and whom it replaced."""
        if self.birth is None:
            return "unknown" if self.born else "founder"
        parents = " and ".join(str(get(parent, "name")) for parent in items(self.birth, "parents", kind=list))
        note = f" ({self.birth['note']})" if self.birth.get("note") else ""
        victim = get(self.birth, "victim", "name")
        trial = items(self.birth, "trial")
        if trial:
            note += f"; best of {len(items(trial, 'children', kind=list))} on {num(trial, 'n_tasks')} tasks"
        return f"{self.birth.get('operator')} of {parents}, in place of {victim}{note}"


class RunLog:
    """A run's directory, read; `notes` says what was wrong with it. Raises UserError if it is no run."""

    def __init__(self, path: Path):
        self.path, self.name, self.notes = path, path.resolve().name, []
        if not any((path / name).exists() for name in ("config.json", "metrics.jsonl")):
            raise UserError(f"{path} is no run: no config.json, no metrics.jsonl; give out/NAME")
        self.config, self.env = self.whole("config.json"), self.whole("env.json")
        self.metrics = list({row["step"]: row for row in self.lines("metrics.jsonl")}.values())
        self.metrics.sort(key=lambda row: row["step"])
        births = list(self.lines("genealogy.jsonl", expected=False))
        self.trials = [birth for birth in births if get(birth, "trial")]
        self.members = self.lives({str(birth.get("child")): birth for birth in births})
        self.n_tasks = int(max(0, sum(num(row, "n") or 0 for row in self.metrics)))
        self.tasks = list(islice(self.lines("tasks.jsonl"), 0, None, self.n_tasks // SHOWN + 1))

    def whole(self, name: str) -> dict:
        """A file that is one JSON object; {} and a note where it is not."""
        try:
            return dict(json.loads((self.path / name).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            self.notes.append(f"{name} could not be read")
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
            self.notes.append(f"{bad} line{'s' * (bad > 1)} of {name} skipped: cut off, or no step in it")

    def lives(self, births: dict[str, dict]) -> dict[str, MemberLog]:
        """Members by name, in the order of their appearance; each role has its family of colours."""
        members, seen = {}, Counter()
        for row in self.metrics:
            for name, measured in items(row, "members").items():
                if name not in members:
                    role = "teacher" if get(measured, "role") == "teacher" else "student"
                    color, style = f"{role[0]}{seen[role] % 6}", f"d{seen[role] // 6 % 3}"
                    members[name] = MemberLog(name, role, color, style, births.get(name))
                    seen[role] += 1
                members[name].rows.append((row["step"], measured))
        for m in members.values():
            m.born = m.rows[0][0] > self.metrics[0]["step"]
            m.died = m.rows[-1][0] < self.metrics[-1]["step"]
        return members

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
            measured = items(row, *where)
            names = [name for name in measured if get(row, "members", name, "role") == role]
            values = [v for v in (num(measured[name], *keys) for name in names) if v is not None]
            points.append((row["step"], sum(values) / len(values) if values else None))
        return points

    def names(self, key: str, most: int = 12) -> list[str]:
        """The keys of the dicts that the run's lines have under `key`, each once."""
        return list(dict.fromkeys(name for row in self.metrics for name in items(row, key)))[:most]
