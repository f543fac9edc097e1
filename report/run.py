"""What a run's directory says, read leniently: lines that cannot be read are skipped and counted, what is
missing is None."""
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from infra.errors import UserError, demand
from infra.files import json_object, read_log
from report.svg import Points

SHOWN = 400                         # tasks that a page shows, at most


def get(row: object, *keys: str) -> object:
    """row[key][key]..., or None where something is missing or no dict."""
    for key in keys:
        if not isinstance(row, dict):
            return None
        row = row.get(key)
    return row


def num(row: object, *keys: str) -> float | None:
    """The number at row[key]...; None if it is missing, no number or none that can be drawn (NaN)."""
    value = get(row, *keys)
    if type(value) in (int, float) and abs(value) < 1e15:       # true is no number, NaN below nothing
        return value
    return None


def items(row: object, *keys: str, kind: type = dict) -> dict | list:
    """The dict (or list) at row[key]..., or an empty one."""
    value = get(row, *keys)
    if not isinstance(value, kind):
        return kind()
    return value


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

    def points(self, *keys: str) -> Points:
        """The number at keys over its life."""
        return [(step, num(row, *keys)) for step, row in self.rows]

    def descent(self) -> str:
        """By which operator it was made of whom, and whom it replaced."""
        if self.birth is None and self.born:
            return "unknown"
        if self.birth is None:
            return "founder"
        parents = []
        for parent in items(self.birth, "parents", kind=list):
            parents.append(str(get(parent, "name")))
        victim = get(self.birth, "victim", "name")
        told = f"{self.birth.get('operator')} of {' and '.join(parents)}, in place of {victim}"
        if self.birth.get("note"):
            told += f" ({self.birth['note']})"
        trial = items(self.birth, "trial")
        if trial:
            n_children = len(items(trial, "children", kind=list))
            told += f"; best of {n_children} on {num(trial, 'n_tasks')} tasks"
        return told


class RunLog:
    """A run's directory, read; `notes` says what was wrong with it. Raises UserError if it is no run."""

    def __init__(self, path: Path):
        self.path = path
        self.name = path.resolve().name
        self.notes = []
        begun = (path / "metrics.jsonl").exists() or (path / "config.json").exists()
        demand(begun, f"{path} is no run: no config.json, no metrics.jsonl; give out/NAME")
        self.config = self.whole("config.json")
        self.env = self.whole("env.json")
        by_step = {row["step"]: row for row in self.lines("metrics.jsonl")}
        self.metrics = [row for _, row in sorted(by_step.items())]
        self.last = {}
        if self.metrics:
            self.last = self.metrics[-1]
        births = list(self.lines("genealogy.jsonl", expected=False))
        self.trials = [birth for birth in births if get(birth, "trial")]
        self.members = self.lives(births)
        n_tasks = sum(num(row, "n") or 0 for row in self.metrics)
        self.n_tasks = max(0, int(n_tasks))
        every = self.n_tasks // SHOWN + 1
        proposals = self.lines("tasks.jsonl")
        self.tasks = list(islice(proposals, 0, None, every))

    def whole(self, name: str) -> dict:
        """A file that is one JSON object; {} and a note where it is not."""
        try:
            return json_object((self.path / name).read_bytes())
        except (OSError, UserError):
            self.notes.append(f"{name} could not be read")
            return {}

    def lines(self, name: str, expected: bool = True) -> Iterator[dict]:
        """The objects with a step in a log, one after the other; the others are counted in a note."""
        if not (self.path / name).exists():
            if expected:
                self.notes.append(f"{name} is not there")
            return
        skipped = []
        for row in read_log(self.path / name, damaged=skipped):
            step = num(row, "step")
            if step is None or step != int(step) or not 0 <= step < 1e9:
                skipped.append("no step")
            else:
                yield row | {"step": int(step)}
        if skipped:
            lines = "1 line"
            if len(skipped) > 1:
                lines = f"{len(skipped)} lines"
            self.notes.append(f"{lines} of {name} skipped: cut off, or no step in it")

    def lives(self, births: list[dict]) -> dict[str, MemberLog]:
        """Members by name, in the order of their appearance; each role has its family of colours."""
        birth_of = {}
        for birth in births:
            birth_of[str(birth.get("child"))] = birth
        members = {}
        seen = Counter()
        for row in self.metrics:
            for name, measured in items(row, "members").items():
                if name not in members:
                    role = "student"
                    if get(measured, "role") == "teacher":
                        role = "teacher"
                    color = f"{role[0]}{seen[role] % 6}"
                    style = f"d{seen[role] // 6 % 3}"       # dashes, where colours come again
                    members[name] = MemberLog(name, role, color, style, birth_of.get(name))
                    seen[role] += 1
                members[name].rows.append((row["step"], measured))
        for m in members.values():
            m.born = m.rows[0][0] > self.metrics[0]["step"]
            m.died = m.rows[-1][0] < self.last["step"]
        return members

    def those(self, role: str) -> list[MemberLog]:
        """All members of a role that there ever were, in the order of their appearance."""
        return [m for m in self.members.values() if m.role == role]

    def living(self, role: str) -> list[MemberLog]:
        """Those that are there at the last step."""
        return [m for m in self.those(role) if not m.died]

    def points(self, *keys: str) -> Points:
        """The number at keys over the run."""
        return [(row["step"], num(row, *keys)) for row in self.metrics]

    def mean(self, role: str, *where: str, of: tuple[str, ...] = ()) -> Points:
        """The mean over a role's members of what the dict at `where` has for each: a number, or a dict with
        one at the keys `of`."""
        points = []
        for row in self.metrics:
            values = []
            mean = None
            for name, measured in items(row, *where).items():
                value = num(measured, *of)
                if value is not None and get(row, "members", name, "role") == role:
                    values.append(value)
            if values:
                mean = sum(values) / len(values)
            points.append((row["step"], mean))
        return points

    def names(self, key: str) -> list[str]:
        """The keys of the dicts that the run's lines have under `key`, each once, the first twelve."""
        seen = {}
        for row in self.metrics:
            seen |= dict.fromkeys(items(row, key))
        return list(seen)[:12]
