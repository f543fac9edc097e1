"""Reads what a run's directory says. What a step did not measure is None. Needs Python alone."""
from dataclasses import dataclass, field
from pathlib import Path

from common import UserError, json_object, read_log
from report.draw import Line, Points

SHOWN = 400                         # tasks that a page shows, at most
CROWD = 12                          # members; in a larger population names would cover each other


def get(row: dict | None, *keys: str) -> object:
    """Returns row[key][key]..., or None where something is missing."""
    for key in keys:
        row = (row or {}).get(key)
    return row


@dataclass
class MemberLog:
    """Holds one member's life."""
    name: str
    role: str
    lane: int                       # in the family tree; a child has its victim's
    color: str                      # a CSS class
    style: str                      # of its lines: dashes, where colours come again
    birth: dict | None              # its line of genealogy.jsonl; None: a founder
    rows: list[tuple[int, dict]] = field(default_factory=list)      # (step, measures)
    died: bool = False              # before the run's last step

    def parents(self) -> list[str]:
        """Returns the names of its parents; a founder has none."""
        return [parent["name"] for parent in get(self.birth, "parents") or ()]

    def descent(self) -> str:
        """Returns in words how it was made, of whom, and whom it replaced."""
        if self.birth is None:
            return "founder"
        parents = " and ".join(self.parents())
        return f"{self.birth['operator']} of {parents}, in place of {self.birth['victim']['name']}"

    def line(self, points: Points) -> Line:
        """Returns a curve over its life."""
        return Line(
            self.name,
            points,
            self.color,
            self.style,
            born=self.birth is not None,
            died=self.died,
            tip=f", {self.descent()}")


class RunLog:
    """Reads a run's directory. Raises UserError if it is none."""

    def __init__(self, path: Path):
        if not (path / "config.json").exists():
            raise UserError(f"{path} is no run's directory: give out/NAME")
        self.path = path
        self.name = path.resolve().name
        self.config = json_object((path / "config.json").read_bytes())
        self.env = json_object((path / "env.json").read_bytes())
        self.metrics = self.rows("metrics")
        self.tokens = self.metrics[-1]["tokens_generated"] if self.metrics else 0
        for reason in self.names("reasons"):
            for row in self.metrics:
                share = row["reasons"].get(reason, 0) / max(1, row["n"])
                row.setdefault("refused", {})[reason] = share
        self.members = self.lives()
        tasks = self.rows("tasks")
        self.n_tasks = len(tasks)
        self.tasks = tasks[::len(tasks) // SHOWN + 1]

    def rows(self, name: str) -> list[dict]:
        """Returns the lines of a log, none if it is not there yet."""
        file = self.path / f"{name}.jsonl"
        return list(read_log(file)) if file.exists() else []

    def lives(self) -> dict[str, MemberLog]:
        """Returns the members by name, in the order of their appearance. The colour follows from the name.
        What probes measured of a member joins its other measures."""
        birth_of = {birth["child"]: birth for birth in self.rows("genealogy")}
        members = {}
        for row in self.metrics:
            for name, measured in row["members"].items():
                if name not in members:
                    lane = len(members)
                    birth = birth_of.get(name)
                    if birth:
                        lane = members[birth["victim"]["name"]].lane
                    number = int(name[1:])
                    color = f"{name[0].lower()}{number % 6}"
                    style = f"d{number // 6 % 3}"
                    if self.config["pop"] > CROWD:
                        style += " thin"
                    members[name] = MemberLog(name, measured["role"], lane, color, style, birth)
                measured["heldout"] = get(row, "heldout_greedy", name)
                for kind in row.get("unseen", ()):
                    measured[kind] = row["unseen"][kind].get(name)
                    measured[f"{kind} think"] = row["unseen_think"][kind].get(name)
                members[name].rows.append((row["step"], measured))
        for name, m in members.items():
            m.died = name not in self.metrics[-1]["members"]
        return members

    def points(self, *keys: str) -> Points:
        """Returns the number at keys over the run."""
        return [(row["step"], get(row, *keys)) for row in self.metrics]

    def mean(self, role: str, key: str) -> Points:
        """Returns the mean of a measure over a role's members, at the steps that have it."""
        points = []
        for row in self.metrics:
            values = []
            for measured in row["members"].values():
                if measured["role"] == role and measured.get(key) is not None:
                    values.append(measured[key])
            if values:
                points.append((row["step"], sum(values) / len(values)))
        return points

    def names(self, key: str) -> list[str]:
        """Returns the keys of the dicts that the run's lines have under `key`, each once."""
        seen = {}
        for row in self.metrics:
            seen |= dict.fromkeys(row.get(key, ()))
        return list(seen)
