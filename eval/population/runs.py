"""Runs of an ablation and what its tables need of each: a record, one line of runs.jsonl.

A record has run and commit; source (a hash of what the run computed with: run.platform.source_hash) and
base_hash; made (when and by which command the run was started); spent (tokens after each step); probes
(tokens spent before, students' mean accuracy, worst type of the student that is best in it); births and
pairings; and of the held-out tasks asked after the run: accuracy (split -> task type -> student), end
(test, the students' mean of each type), validation (the best student's mean of the played types), deployed
(what it solves of each type of test), best (its name); sampled, where the plan has samples: type -> student
-> task of test -> how many of so many answers at temperature 1 are right.
"""
import contextlib
import dataclasses
import json
import math
import shlex
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import evolve
from config import spelled
from eval.population import heldout
from eval.summary import BASE, comparable, shares
from infra.errors import UserError, demand
from measure.metrics import spent
from run.checkpoint import RunDir, differing, members_at

FULL = "full"                       # the arm that sets the budget, where the plan has no number of tokens
RECORDS = "runs.jsonl"
SAMPLES = 4                         # answers to a task at temperature 1, for coverage
SEED_STRIDE = 1000                  # between the seeds of independent runs of one arm
# by which flags
VARIED = {
    "matching": {"matching"},
    "evolution": {"evolve", "evolve-every", "replace-frac", "grace", "litter"},
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to spend the budget: flags of train.py, one run's part of the budget, runs of one seed; cross:
    specialists of the played types, one after the other, crossed at the end by this operator."""
    flags: tuple[str, ...] = ()
    part: float = 1.0
    runs: int = 1
    cross: str = ""

    def settings(self) -> set[str]:
        """The flags with their values, as in "matching uniform"."""
        words = " ".join(self.flags)
        return set(map(str.strip, words.split("--")))

    def varies(self, other: "Arm") -> str:
        """"matching" or "evolution" where two arms differ in nothing else, else ""."""
        differ = self.settings() ^ other.settings()
        names = {setting.split()[0] for setting in differ}
        for thing, flags in VARIED.items():
            if names and names <= flags:
                return thing
        return ""


def runs_of(name: str, arm: Arm, seed: int) -> dict[str, int]:
    """Name -> seed of an arm's runs with a seed, 1000 apart; the first of `singles` is that of `single`."""
    stem = "single" if name == "singles" else name
    seeds = {}
    for number in range(arm.runs):
        own = seed + SEED_STRIDE * number
        seeds[f"{stem}-s{own}"] = own
    return seeds


@dataclasses.dataclass
class Experiment:
    """Arms and the records of finished runs by name; plan: what is the same of all."""
    plan: dict
    arms: dict[str, Arm]
    records: dict[str, dict]

    @property
    def seeds(self) -> list[int]:
        """Of the runs; those of independent ones are counted once."""
        seeds = set()
        for run in self.records:
            _, _, seed = run.rpartition("-s")
            seeds.add(int(seed) % SEED_STRIDE)
        return sorted(seeds)

    def of(self, name: str, seed: int) -> tuple[list[dict], float]:
        """An arm's records with a seed, and the tokens each is to spend; [] unless all are there."""
        arm = self.arms[name]
        own = list(map(self.records.get, runs_of(name, arm, seed)))
        full = self.records.get(f"{FULL}-s{seed}", dict(spent=[0]))
        budget = self.plan.get("tokens", full["spent"][-1])
        if not budget or None in own:
            return [], 0.0
        return own, arm.part * budget


# ---- what the logs of a run say ----------------------------------------------------------------------------

def logged(directory: Path, step: int = 0, name: str = "metrics.jsonl") -> list[dict]:
    """The rows of a run's log up to a checkpoint (0 = the last); [] without one."""
    run = RunDir(directory, writes=False)
    steps = run.steps()
    if not steps:
        return []
    _, state = members_at(run, step or steps[-1])
    return run.rows(name, state["logs"][name])


def met(done: list[int], target: float) -> bool:
    """Whether a run is as near to its target as whole steps can be. done: spent after each step."""
    before, now = [0, 0, *done][-2:]
    return now + (now - before) / 2 >= target


def heights(
    by_type: dict[str, dict[str, float]],
    students: Iterable[str],
) -> tuple[float, float]:
    """Type -> member -> accuracy: the students' mean, and the worst type of the one that is best in it."""
    means, worst = [], []
    for name in students:
        own = [column[name] for column in by_type.values()]
        means.append(statistics.fmean(own))
        worst.append(min(own))
    return statistics.fmean(means), max(worst)


def probes_of(metrics: list[dict], spent_before: list[int], types: list[str]) -> list[list]:
    """[spent before, students' mean, worst type of the best student] of every probe."""
    out = []
    for before, row in zip(spent_before, metrics):
        if not row.get("heldout_greedy"):
            continue
        by_type = dict(row["heldout_by_type"])
        for kind in types:
            if kind in row.get("unseen", ()):
                by_type[kind] = row["unseen"][kind]
        out.append([before, *heights(by_type, row["heldout_greedy"])])
    return out


def births_of(metrics: list[dict], genealogy: list[dict]) -> list[list]:
    """Of each student's birth: step, the better parent's and the victim's accuracy, or None."""
    out = []
    for birth in genealogy:
        # Of a --litter no child may have been better than the victim: then nobody was born.
        if "parents" not in birth or birth["victim"]["role"] != "student":
            continue
        accuracy = {}                           # at the last probe
        for row in metrics:
            if row["step"] <= birth["step"]:
                accuracy = row.get("heldout_greedy") or accuracy
        known = []
        for parent in birth["parents"]:
            if parent["name"] in accuracy:
                known.append(accuracy[parent["name"]])
        victim = birth["victim"]["name"]
        out.append([birth["step"], max(known, default=None), accuracy.get(victim)])
    return out


def mean_of(values: Iterable) -> float:
    """The mean; nan of nothing."""
    known = list(values)
    if not known:
        return math.nan
    return statistics.fmean(known)


def means(columns: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean of each column."""
    return {name: statistics.fmean(column.values()) for name, column in columns.items()}


def made_by(path: Path) -> dict:
    """When a run was started, which a commit cannot show, and the whole command that repeats it. Of files and
    directories the last two names: packs are for others' machines."""
    env = json.loads((path / "env.json").read_text())
    words = ["python", "train.py"]
    for name, value in RunDir(path, writes=False).config().items():
        default, _ = env["flags"][name]
        if value == default or name in ("name", "out", "resume"):
            continue
        words.append(spelled(name))
        text = str(value)
        if text.startswith("/"):
            text = "/".join(Path(text).parts[-2:])
        if value is not True:
            words.append(text)
    return dict(started=env.get("started"), command=shlex.join(words))


# ---- after a run: its students answer held-out tasks -------------------------------------------------------

def write_heldout(path: Path, types: list[str], limit: int) -> None:
    """Validation tasks as a file for train.py --heldout, so that probes ask what is asked after a run."""
    rows = []
    for item in heldout.items_of(types, "validation", limit):
        if not heldout.is_seen(item.bench, item.id):
            rows.append({name: getattr(item.task, name) for name in ("kind", "program", "inputs")})
    write_lines(path, rows)


def write_lines(path: Path, rows: Iterable[dict]) -> None:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def students_of(directory: Path, step: int) -> list[Path]:
    """PEFT directories of a run's students at a checkpoint; of --single its only one, a teacher's by name."""
    place = directory / f"step_{step}"
    return sorted(place.glob("S*")) or sorted(place.glob("T*"))


def examined(
    out: Path,                          # answers go to out/heldout-SPLIT
    parts: list[tuple[Path, int]],      # directory and checkpoint of the run, or of each parent of a child
    cross: str,                         # the operator that made the child; "" = no child
    plan: dict,                         # as in config.json
    words: list,                        # further flags of heldout
) -> dict:
    """The record of a run after its students have answered both splits' tasks."""
    adapters = students_of(*parts[0])
    if cross:
        parents = [str(students_of(*part)[0]) for part in parts]
        evolve.cross(parents, cross, out / "S0")
        adapters = [out / "S0"]
    first, _ = parts[0]
    words = ["--prompt-format", RunDir(first, writes=False).config()["prompt_format"], *words]
    accuracy = {}
    with open(f"{out}.log", "a") as log, contextlib.redirect_stdout(log):
        for split in heldout.SPLITS:
            place = out / f"heldout-{split}"
            right = answered(adapters, split, plan, place, words)
            accuracy[split] = {kind: means(own) for kind, own in right.items()}
        record = record_of(parts, accuracy, plan["types"])
        if plan.get("samples"):
            own = ["--samples", plan["samples"], *words]
            record["sampled"] = answered(adapters, "test", plan, out / "heldout-sampled", own, sum)
    base_hash = RunDir(place, writes=False).config()["base_hash"]
    return dict(run=out.name, base_hash=base_hash) | record


def answered(
    adapters: list[Path],
    split: str,
    plan: dict,
    place: Path,
    words: list,
    value: Callable = statistics.fmean,
) -> dict[str, dict]:
    """Task type -> member -> task -> value(whether each answer is right), once these adapters have answered a
    split's tasks, in `place`."""
    own = ["--adapters", *adapters, "--split", split, "--bench", ",".join(plan["asked"]),
           "--limit", plan["limit"], "--out", place, "--workers", 1, *words]
    heldout.main(list(map(str, own)))
    fresh = []
    for row in comparable(RunDir(place, writes=False).rows("answers.jsonl")):
        if row["member"] != BASE and not heldout.is_seen(row["bench"], row["id"]):      # the base may know it
            fresh.append(row)
    return shares(fresh, value)


def record_of(
    parts: list[tuple[Path, int]],      # as in `examined`
    accuracy: dict,
    types: list[str],                   # those played
) -> dict:
    """What logs and accuracies say of a run."""
    done, probes = [0], []
    for path, step in parts:                    # parents spend one after the other
        metrics = logged(path, step)
        own = [done[-1] + tokens for tokens in spent(metrics)]
        probes += probes_of(metrics, [done[-1], *own], types)
        done += own
    pairings = {row["step"]: {} for row in metrics}
    for match in logged(path, step, "matches.jsonl"):
        pairings[match["step"]][match["teacher"]] = match["student"]
    test = accuracy["test"]
    score = {}
    for name in test[types[0]]:
        score[name] = statistics.fmean(accuracy["validation"][kind][name] for kind in types)
    best = max(score, key=score.get)
    env = json.loads((path / "env.json").read_text())
    return {
        "commit": env["commit"],
        "source": env.get("source"),
        "made": [made_by(path) for path, _ in parts],
        "spent": done[1:],
        "probes": probes,
        "accuracy": accuracy,
        "births": births_of(metrics, logged(path, step, "genealogy.jsonl")),
        "pairings": list(pairings.values()),
        "best": best,
        "validation": score[best],
        "end": means(test),
        "deployed": {kind: column[best] for kind, column in test.items()},
    }


# ---- the directory of an ablation --------------------------------------------------------------------------

def read(out: Path) -> dict[str, dict]:
    """The records in an --out by run."""
    rows = RunDir(out, writes=False).rows(RECORDS)
    return {record["run"]: record for record in rows}


def add(out: Path, record: dict) -> None:
    """Write a record, in place of an earlier one of the same run."""
    every = read(out) | {record["run"]: record}
    part = out / f"{RECORDS}.part"
    write_lines(part, every.values())
    part.replace(out / RECORDS)


def write_plan(out: Path, plan: dict, arms: dict[str, Arm]) -> None:
    """out/config.json: what all runs share, and the arms so far with these. Raises UserError."""
    directory = RunDir(out)
    before = plan
    if (out / "config.json").exists():
        before = directory.config()
    old = before.get("arms", {})
    given = {name: dataclasses.asdict(arm) for name, arm in arms.items()}
    given = json.loads(json.dumps(given))                       # lists, as in the file, where tuples were
    changed = differing(before, plan, ()) + differing(given | old, given, ())
    demand(not changed, f"{out} holds arms of another comparison: {', '.join(changed)}; use another --out")
    directory.write_json("config.json", plan | dict(arms=old | given))


def opened_alone(path: Path) -> Experiment:
    """The runs in one --out; its plan has the hashes of base and sources, too: what was computed, in which
    several have to agree. Raises UserError where there is none."""
    plan, records = RunDir(path, writes=False).config(), read(path)
    demand("arms" in plan and records, f"{path} is no --out of an ablation with finished runs")
    arms = {name: Arm(**given) for name, given in plan.pop("arms").items()}
    sources, bases = set(), set()
    for record in records.values():
        # Older records have no hash of their sources. A commit says less: it is another one, or unknown,
        # where only a page or an exercise has been written into, or where there is no git.
        sources.add(record.get("source") or f"commit {record['commit']}")
        bases.add(record["base_hash"])
    return Experiment(plan | dict(base=sorted(bases), source=sorted(sources)), arms, records)


def opened(directories: list[str]) -> Experiment:
    """The runs in the --out of one or several ablations, as one. Raises UserError that names every directory
    which does not belong there: it is none, it computed something else than most, or has a run of another."""
    packs, odd = {}, []
    for name in directories:
        path = Path(name).expanduser()
        try:
            packs[path] = opened_alone(path)
        except UserError as error:
            odd.append(str(error))
    plans = [pack.plan for pack in packs.values()]
    usual = max(plans, key=plans.count, default={})
    arms, every, commits = {}, {}, set()
    for path, pack in packs.items():
        changed = differing(usual, pack.plan, ())
        for name, arm in pack.arms.items():
            if arms.setdefault(name, arm) != arm:
                changed.append(f"arm {name}")
        for run in sorted(every.keys() & pack.records.keys()):
            changed.append(f"{run} is there twice")
        if changed:
            odd.append(f"{path}: {', '.join(changed)}")
        every |= pack.records
        commits |= {record["commit"] for record in pack.records.values()}
    demand(not odd, "these cannot be in one table; leave them out, or make them anew:\n  " + "\n  ".join(odd))
    return Experiment(usual | dict(commit=sorted(commits)), arms, every)
