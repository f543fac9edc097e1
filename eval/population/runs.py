"""Finished runs of an ablation: what they spent and learned, as records that the tables are made of.

A record is a line of runs.jsonl: what the tables need of one run, no weights and no texts.
"""
import dataclasses
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

from eval.population import heldout
from eval.population.heldout import LONG, Item
from eval.stats import pass_at_k
from eval.summary import BASE, comparable
from run.checkpoint import RunDir, differing

FULL = "full"                       # the arm that sets the budget
SEED_STRIDE = 1000                  # between the seeds of independent runs of one arm
PLAYABLE = ("code_o", "code_i", "code_f")       # task types that a run can play here
PER_SIZE = 8                        # of each size in probes
WINDOW = 3                          # steps of a student over which its share of thinking answers is a mean
VARIED = dict(matching={"matching", "matching-floor"},
              evolution={"evolve", "evolve-every", "replace-frac", "grace"})        # by which flags


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to spend the budget: flags of train.py, one run's part of the budget, runs of one seed; cross:
    specialists of the played types, one after the other, crossed at the end by this operator."""
    flags: tuple[str, ...]
    part: float = 1.0
    runs: int = 1
    cross: str = ""

    def varies(self, other: "Arm") -> str:
        """"matching" or "evolution" where two arms differ in nothing else, else ""."""
        mine, theirs = ({flag.strip() for flag in " ".join(arm.flags).split("--")} for arm in (self, other))
        names = {flag.split()[0] for flag in mine ^ theirs}
        return next((thing for thing, flags in VARIED.items() if names and names <= flags), "")


def runs_of(name: str, arm: Arm, seed: int) -> dict[str, int]:
    """Name -> seed of an arm's runs with a seed, 1000 apart; the first of `singles` is that of `single`."""
    stem = "single" if name == "singles" else name
    return {f"{stem}-s{s}": s for s in range(seed, seed + SEED_STRIDE * arm.runs, SEED_STRIDE)}


@dataclasses.dataclass
class Experiment:
    """Arms and the records of finished runs by name; plan: what is the same of all."""
    plan: dict
    arms: dict[str, Arm]
    seeds: list[int]
    records: dict[str, dict]

    def of(self, arm: str, seed: int) -> list[dict]:
        """The records of an arm with a seed; [] unless all are there, and full's too."""
        names = runs_of(arm, self.arms[arm], seed)
        whole = all(name in self.records for name in (*names, f"{FULL}-s{seed}"))
        return [self.records[name] for name in names] if whole else []

    def due(self, arm: str, seed: int) -> float:
        """The budget of each run of an arm."""
        return self.arms[arm].part * self.records[f"{FULL}-s{seed}"]["spent"][-1]


# ---- held-out tasks ----------------------------------------------------------------------------------------

def families_of(kind: str) -> tuple[str, ...]:
    """The families of held-out tasks that ask a task type: output tasks have one of long programs, too."""
    return (kind, LONG) if kind == "code_o" else (kind,)


def heldout_items(types: list[str]) -> list[Item]:
    """Unseen tasks of every played type from the validation split; sizes and types in turn."""
    by_size = {}
    for kind in types:
        for family in families_of(kind):
            for item in heldout.draw(family, "validation", PER_SIZE):
                if not item.seen:
                    by_size.setdefault((item.size, kind), []).append(item)
    columns = [by_size[key] for key in sorted(by_size, key=lambda key: (key[0], types.index(key[1])))]
    return [item for turn in zip(*columns) for item in turn]


def write_heldout(path: Path, items: list[Item]) -> None:
    """Held-out tasks as a file for train.py --heldout."""
    rows = [dict(kind=i.task.kind, program=i.task.program, inputs=list(i.task.inputs)) for i in items]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def is_heldout(row: dict) -> bool:
    """Whether an answer of the validation split is to a task of the probes, too: its id is size/number."""
    return not row["seen"] and int(row["id"].partition("/")[2]) < PER_SIZE


# ---- one run -----------------------------------------------------------------------------------------------

def spent(rows: list[dict], unit: str) -> list[int]:
    """What a run had spent by the end of each step: tokens without those of probes (which train nobody), rows
    (proposals and attempts) or proposals."""
    out, total = [], 0
    probed = 0
    for row in rows:
        students = [member for member in row["members"].values() if member["role"] == "student"]
        attempts = sum(student.get("n", 0) for student in students)
        probed += row.get("probe_tokens", 0)
        total += row["n"] + (attempts if unit == "rows" else 0)
        out.append(row["tokens_generated"] - probed if unit == "tokens" else total)
    return out


def met(done: list[int], target: float) -> bool:
    """Whether a run is as near to its target as whole steps can be. done: spent after each step."""
    if not done:
        return False
    last_step = done[-1] - (done[-2] if len(done) > 1 else 0)
    return done[-1] + last_step / 2 >= target


def heights(by_type: dict[str, dict[str, float]], students: list[str]) -> tuple[float, float]:
    """Type -> member -> accuracy: the students' mean, and the worst type of the one that is best in it."""
    each = [[column[name] for column in by_type.values()] for name in students]
    return statistics.fmean(map(statistics.fmean, each)), max(map(min, each))


def discoveries(rows: list[dict]) -> list[list]:
    """Of every founding student: its updates until it thinks in most of its answers (mean of WINDOW steps),
    None = never, and whether it later falls back. Those replaced before are left out: nobody knows of them.
    """
    shares = {}
    founders = [name for name, member in rows[0]["members"].items() if member["role"] == "student"]
    for row in rows:
        for name in founders:
            share = row["members"].get(name, {}).get("think")
            if share is not None:
                shares.setdefault(name, []).append(share)
    out = []
    for name, own in shares.items():
        means = [statistics.fmean(own[i:i + WINDOW]) for i in range(len(own) - WINDOW + 1)]
        first = next((i for i, share in enumerate(means) if share > 0.5), None)
        fell = first is not None and min(means[first:]) <= 0.5
        if first is not None or name in rows[-1]["members"]:
            out.append([None if first is None else first + WINDOW - 1, fell])
    return out


def births_of(metrics: list[dict], genealogy: list[dict]) -> list[list]:
    """Of every student's birth: step, then the better parent's and the victim's accuracy on
    held-out tasks at the last probe before; None = not probed."""
    out = []
    for birth in genealogy:
        if birth["victim"]["role"] == "student":
            probes = [row["heldout_greedy"] for row in metrics
                      if row.get("heldout_greedy") and row["step"] <= birth["step"]]
            last = probes[-1] if probes else {}
            parents = [last[parent["name"]] for parent in birth["parents"] if parent["name"] in last]
            out.append([birth["step"], max(parents, default=None), last.get(birth["victim"]["name"])])
    return out


def mean_of(values: Iterable) -> float:
    """The mean of what is known; nan of nothing."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan


# ---- from a run's directory --------------------------------------------------------------------------------

def logged(directory: Path, name: str = "metrics.jsonl") -> list[dict]:
    """The rows of a log up to the run's last checkpoint."""
    run = RunDir(directory, writes=False)
    steps = run.steps()
    if not steps:
        return []

    def length(path: Path) -> int:
        return json.loads(path.read_text())["logs"][name]
    return run.rows(name, run.part(steps[-1], "state.json", length))


def answers_of(directory: Path) -> list[dict]:
    """An evaluation's answers to unseen tasks; of one asked again, the last."""
    rows = map(json.loads, (directory / "answers.jsonl").read_bytes().splitlines())
    last = {(row["bench"], row["id"], row["member"], row["sample"]): row for row in rows}
    return [row for row in comparable(list(last.values())) if not row["seen"]]


def accuracy(rows: list[dict], families: tuple[str, ...]) -> dict[str, float]:
    """Member -> share of its answers to these families that are right."""
    right = {}
    for row in rows:
        if row["bench"] in families:
            right.setdefault(row["member"], []).append(row["correct"])
    return {name: sum(answers) / len(answers) for name, answers in right.items()}


def passes(rows: list[dict], n: int) -> float:
    """The students' mean pass@n, from n answers to each task."""
    right = {}
    for row in rows:
        if row["member"] != BASE:
            key = row["member"], row["bench"], row["id"]
            right[key] = right.get(key, 0) + row["correct"]
    return mean_of(pass_at_k(n, c, n) for c in right.values())


def late_tasks(metrics: list[dict]) -> dict[str, float | None]:
    """Statements of valid tasks in the last tenth of the steps, and the base's accuracy at late probes."""
    late = metrics[-max(1, len(metrics) // 10):]
    valid = sum(row["n"] * row["valid"] for row in late)
    total = sum(row["n"] * row["valid"] * (row["complexity"].get("statements") or 0) for row in late)
    solved = [row["base_solve"] for row in metrics if row.get("base_solve") is not None][-3:]
    return dict(statements=total / valid if valid else None,
                base_solve=sum(solved) / len(solved) if solved else None)


def probes_of(metrics: list[dict], done: list[int], types: list[str]) -> list[list]:
    """[spent before, students' mean, worst type of the best student] of every probe."""
    out = []
    for before, row in zip([0, *done], metrics):
        if row.get("heldout_greedy"):
            by_type = dict(row.get("heldout_by_type") or {"": row["heldout_greedy"]})
            by_type |= {kind: row["unseen"][kind] for kind in types if kind in row.get("unseen", ())}
            out.append([before, *heights(by_type, list(row["heldout_greedy"]))])
    return out


def record_of(directory: Path, budget: str, types: list[str], samples: int, parents: list[Path]) -> dict:
    """What the tables need of a finished run, as JSON types; parents: runs whose child it is, one after the
    other, else none.

    probes: those of the run, and last the evaluation after it; end, deployed: test accuracy by played type,
    of the students and of the one chosen on validation.
    """
    done, probes, learners = [], [], []
    for path in parents or [directory]:
        metrics, before = logged(path), done[-1] if done else 0
        own = spent(metrics, budget)
        probes += [[before + at, *rest] for at, *rest in probes_of(metrics, own, types)]
        done += [before + at for at in own]
        learners += discoveries(metrics)
    validation, test = (answers_of(directory / f"heldout-{split}") for split in ("validation", "test"))
    probed = [row for row in validation if is_heldout(row)]
    at_end, chosen, tested = ({kind: accuracy(rows, families_of(kind)) for kind in types}
                              for rows in (probed, validation, test))
    students = [name for name in tested[types[0]] if name != BASE]
    score = {name: mean_of(chosen[kind][name] for kind in types) for name in students}
    best = max(score, key=score.get)
    pairings = {}
    for match in logged(path, "matches.jsonl"):
        pairings.setdefault(match["step"], {})[match["teacher"]] = match["student"]
    asked = json.loads((directory / "heldout-test" / "config.json").read_text())
    commit = json.loads((path / "env.json").read_text())["commit"]
    several = directory / "heldout-pass"
    return dict(run=directory.name, commit=commit, base_hash=asked["base_hash"], spent=done,
                probes=[*probes, [done[-1], *heights(at_end, students)]], students=learners,
                validation=score[best],
                end={kind: mean_of(tested[kind][name] for name in students) for kind in types},
                deployed={kind: tested[kind][best] for kind in types},
                base={kind: tested[kind][BASE] for kind in types},
                pass16=passes(answers_of(several), samples) if several.exists() else None,
                **late_tasks(metrics), pairings=[pairings.get(row["step"], {}) for row in metrics],
                births=births_of(metrics, logged(path, "genealogy.jsonl")))


# ---- as a file ---------------------------------------------------------------------------------------------

def read(path: Path) -> dict[str, dict]:
    """The records of a runs.jsonl by run; {} where there is none yet."""
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    return {record["run"]: record for record in rows}


def add(path: Path, record: dict) -> None:
    """Write a record into a runs.jsonl, in place of an earlier one of the same run."""
    part = path.with_suffix(".part")
    every = read(path) | {record["run"]: record}
    part.write_text("".join(json.dumps(line) + "\n" for line in every.values()))
    part.replace(path)


def opened(directories: list[str]) -> Experiment:
    """The runs in the --out of one or several ablations, as one. Raises ValueError for a directory that is
    none, and where commits, base or plan differ from those of the first, or a run is there twice."""
    arms, every, first = {}, {}, {}
    for name in directories:
        path = Path(name).expanduser()
        try:
            plan = json.loads((path / "config.json").read_text())
            arms |= {arm: Arm(**given) for arm, given in plan.pop("arms").items()}
            here = read(path / "runs.jsonl")
            plan["commit"] = sorted({record["commit"] for record in here.values()})
            plans = {run: plan | dict(base=record["base_hash"]) for run, record in here.items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as e:
            why = getattr(e, "strerror", None) or e
            raise ValueError(f"{path} is no --out of an ablation: {why}") from None
        for run, whole in plans.items():
            first = first or whole
            if changed := differing(first, whole, ()):
                raise ValueError(f"{path}, {run}: not comparable with the others: {', '.join(changed)}")
            if run in every:
                raise ValueError(f"{path}, {run}: a run of this arm and seed is there already")
        every |= here
    seeds = sorted(int(run.rpartition("-s")[2]) for run in every if run.startswith(f"{FULL}-s"))
    if not seeds:
        raise ValueError(f"no finished run of {FULL}, which sets the budget, in {', '.join(directories)}")
    return Experiment(first, arms, seeds, every)
