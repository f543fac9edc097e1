"""What a run's directory says, read leniently: lines that cannot be read are skipped and counted, what is
missing is None."""
import itertools
import json
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
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and abs(value) < 1e15 else None


def items(row, *keys) -> dict:
    """The dict at row[key]..., or an empty one."""
    value = get(row, *keys)
    return value if isinstance(value, dict) else {}


def listed(row, *keys) -> list:
    """The list at row[key]..., or an empty one."""
    value = get(row, *keys)
    return value if isinstance(value, list) else []


def average(values) -> float | None:
    """Mean of what is not None, or None."""
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def known(points: list) -> list:
    """Those of some points (step, value) that have a value."""
    return [(step, value) for step, value in points if value is not None]


def parents(birth: dict | None) -> list[str]:
    """The names of a child's parents; [] of a founder."""
    return [str(get(parent, "name")) for parent in listed(birth, "parents")]


@dataclass
class MemberLog:
    """One member's life."""
    name: str
    role: str
    color: str
    style: str
    birth: dict | None = None       # its line of genealogy.jsonl; None: a founder
    rows: list[tuple[int, dict]] = field(default_factory=list)      # (step, measures) of every step it took part in
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
        if not (path / "metrics.jsonl").exists() and not (path / "config.json").exists():
            raise ValueError(f"{path} is no run: neither metrics.jsonl nor config.json is in it; give a run's "
                             "directory, out/NAME")
        self.path, self.name = path, path.resolve().name
        self.notes = []
        self.config = self.whole("config.json")
        self.env = self.whole("env.json")
        rows = {row["step"]: row for row in self.lines("metrics.jsonl")}
        self.metrics = [rows[step] for step in sorted(rows)]
        self.matches = list(self.lines("matches.jsonl"))
        self.births = {str(birth.get("child")): birth for birth in self.lines("genealogy.jsonl", expected=False)}
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
            self.notes.append(f"{bad} line{'s' * (bad > 1)} of {name} skipped: cut off, or not an object with a step")

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
        """[(line, proposal)] in the order in which they should be shown while there is room; counts all proposals.

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

    def those(self, role: str) -> list[MemberLog]:
        """All members of a role that there ever were, in the order of their appearance."""
        return [m for m in self.members.values() if m.role == role]

    def points(self, *keys) -> list:
        """[(step, the number at keys)] over the run."""
        return [(row["step"], num(row, *keys)) for row in self.metrics]

    def role_mean(self, role: str, *keys) -> list:
        """[(step, mean of a measure over the members of a role)]."""
        means = []
        for row in self.metrics:
            some = [m for m in items(row, "members").values() if get(m, "role") == role]
            means.append((row["step"], average(num(m, *keys) for m in some)))
        return means

    def probed(self, key: str) -> list:
        """[(step, the students' mean of a measure that probes take of each)]: anchors_sampled and anchors_greedy,
        accuracy; anchors_think, share of greedy answers that think."""
        return [(row["step"], average(num(row, key, name) for name in items(row, key))) for row in self.metrics]

    def heldout(self, kind: str, role: str, key: str = "heldout") -> list:
        """[(step, mean accuracy of a role's members on tasks of a kind that nobody plays)]; key heldout_think: share
        of their answers that think."""
        means = []
        for row in self.metrics:
            names = [name for name in items(row, key, kind) if get(row, "members", name, "role") == role]
            means.append((row["step"], average(num(row, key, kind, name) for name in names)))
        return means

    def guessing(self) -> list:
        """[(step, how often the archive's most frequent output would be right)]: the worst of the kinds."""
        worst = []
        for row in self.metrics:
            rates = known([(kind, num(row, "guess_rate", kind)) for kind in items(row, "guess_rate")])
            worst.append((row["step"], max([rate for _, rate in rates], default=None)))
        return worst

    def names(self, key: str, most: int = 12) -> list[str]:
        """The keys of the dicts that the run's lines have under `key`, each once."""
        return list(dict.fromkeys(name for row in self.metrics for name in items(row, key)))[:most]


# What readers call the kinds of tasks.
KINDS = dict(code_o="output tasks", code_i="input tasks", code_f="functions to find", math="word problems",
             logic="logic puzzles")
# What is said in words and compared between runs: words, points of a run, what its axis holds: 0 to 1 (share), 0
# (zero), or what fits (free). Between these come the kinds that nobody played.
LEARNED = (
    ("the students' accuracy on held-out anchor tasks, greedy", lambda run: run.probed("anchors_greedy"), "free"),
    ("the students' accuracy on held-out anchor tasks, sampled", lambda run: run.probed("anchors_sampled"), "free"),
    ("share of the students' attempts that think before they answer", lambda run: run.points("think"), "share"),
    ("tokens in a student's attempt", lambda run: run.role_mean("student", "response_tokens"), "zero"),
)
PLAYED = (
    ("the frozen base's solve rate on the teachers' current tasks", lambda run: run.points("base_solve"), "share"),
    ("an early student's solve rate on the same tasks, frozen", lambda run: run.points("frozen_solve"), "share"),
    ("the students' solve rate on the same tasks", lambda run: run.points("student_solve"), "share"),
    ("statements per task", lambda run: run.points("complexity", "statements"), "zero"),
    ("depth of the tasks' syntax trees", lambda run: run.points("complexity", "depth"), "zero"),
    ("McCabe complexity per task", lambda run: run.points("complexity", "mccabe"), "zero"),
    ("the students' solve rate on current tasks, every step", lambda run: run.points("solve_rate"), "share"),
    ("share of proposals that are valid", lambda run: run.points("valid"), "share"),
    ("share of proposals that are duplicates", lambda run: run.points("duplicates"), "share"),
    ("distinct structures among 64 of the latest tasks", lambda run: run.points("rarefied"), "zero"),
    ("distinct structures so far", lambda run: run.points("coverage"), "zero"),
)


def measures(runs: list[RunLog]) -> list[tuple]:
    """LEARNED, the accuracies on kinds that nobody played, PLAYED."""
    kinds = dict.fromkeys(itertools.chain(*(run.names("heldout") for run in runs)))
    transfer = []
    for kind in list(kinds)[:12]:
        words = f"the students' accuracy on {KINDS.get(kind, kind)}, which nobody played"
        transfer.append((words, lambda run, kind=kind: run.heldout(kind, "student"), "share"))
    return [*LEARNED, *transfer, *PLAYED]
