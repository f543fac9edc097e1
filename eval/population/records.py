"""What the statistics of an ablation need of its runs: read from their directories or a pack, and packed.

A pack is a folder of RUN.json.xz, one a run (its configuration, machine and commit, all of metrics.jsonl,
matches and genealogy, and which answers of its evaluations were right), and of config.json, which says what
was planned. It holds no weights and no texts, some 32 KB a run, and everything that the tables are made of.
"""
import dataclasses
import json
import lzma
from collections import Counter
from pathlib import Path

from eval.answering import place_of
from eval.population import heldout
from eval.population.arms import Arm
from eval.summary import comparable
from run.checkpoint import RunDir, differing

SUFFIX = ".json.xz"
HERE = ("base", "out", "anchors", "init", "heldout", "seed_tasks")     # paths on a run's machine
COMPARISON = ("pop", "steps", "budget", "probe_every", "train")         # of a plan: the same for all runs
OWN = ("name", "seed", "resume", "threads", "device", "workers", "weak_sandbox", "rollout_batch",
       "tokens_per_microbatch")     # may differ between the runs of one arm


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run; evaluations: folder -> what `read_answers` gives."""
    name: str
    config: dict
    env: dict
    base_hash: str
    metrics: list[dict]
    matches: list[dict]
    genealogy: list[dict]
    evaluations: dict[str, dict]


@dataclasses.dataclass
class Experiment:
    """The runs of a comparison by name, and what was planned: seeds, arms, the budget's unit and flags."""
    plan: dict
    runs: dict[str, Record]

    @property
    def arms(self) -> dict[str, Arm]:
        """The planned arms by name, full first."""
        return {name: Arm(**given) for name, given in self.plan["arms"].items()}


def folder(split: str) -> str:
    """Where a run's answers to a split are kept; "pass": several answers to each task of the test split."""
    return f"heldout-{split}"


def base_of(name: str) -> str:
    """A base by the last two parts of its path: a hub id, or a directory on whichever machine."""
    return "/".join(Path(name).parts[-2:])


# ---- from runs ---------------------------------------------------------------------------------------------

def logged(directory: Path, name: str = "metrics.jsonl") -> list[dict]:
    """The rows of a log up to the run's last checkpoint."""
    run = RunDir(directory, writes=False)
    steps = run.steps()
    if not steps:
        return []

    def length(path: Path) -> int:
        return json.loads(path.read_text())["logs"][name]
    return run.rows(name, run.part(steps[-1], "state.json", length))


def logged_so_far(directory: Path) -> list[dict]:
    """All whole rows of metrics.jsonl, of a run that may still be going."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    return RunDir(directory, writes=False).rows("metrics.jsonl", path.read_bytes().rfind(b"\n") + 1)


def read_answers(directory: Path, prompt_format: str) -> dict:
    """An evaluation by heldout: how many of a member's samples are right, and think, for each unseen task.

    dict(samples, temperature, limit, data, base_hash, answers: family -> dict(ids, right: member -> counts,
    think: member -> counts)).
    """
    rows = map(json.loads, (directory / "answers.jsonl").read_bytes().splitlines())
    rows = comparable(list({place_of(row): row for row in rows}.values()))     # of one asked again, the last
    items = heldout.read_items(directory / "items.jsonl")
    heldout.note_thinking(rows, items, prompt_format)
    told = {}
    for row in rows:
        counts = told.setdefault((row["bench"], row["id"], row["member"]), [0, 0])
        counts[0] += row["correct"]
        counts[1] += row.get("think", False)
    members = list(dict.fromkeys(row["member"] for row in rows))
    answers = {}
    for item in items:
        if item.seen or (item.bench, item.id, members[0]) not in told:
            continue
        found = answers.setdefault(item.bench, dict(ids=[], right={}, think={}))
        found["ids"].append(item.id)
        for name in members:
            right, think = told[item.bench, item.id, name]
            found["right"].setdefault(name, []).append(right)
            found["think"].setdefault(name, []).append(think)
    config = json.loads((directory / "config.json").read_text())
    summary = json.loads((directory / "summary.json").read_text())
    return dict(samples=summary["samples"], temperature=summary["temperature"], limit=summary["limit"],
                data=config["data"], base_hash=config["base_hash"], answers=answers)


def record_of(directory: Path) -> Record | None:
    """A run on disk, None where its training or an evaluation has not been finished."""
    if not all((directory / folder(split) / "summary.json").exists() for split in heldout.SPLITS):
        return None
    run = RunDir(directory, writes=False)
    config = run.config()
    env = json.loads((directory / "env.json").read_text())
    env.pop("sandbox_report", None)
    found = sorted(path.parent for path in directory.glob(f"{folder('*')}/summary.json"))
    evaluations = {path.name: read_answers(path, config["prompt_format"]) for path in found}
    for name in HERE:
        config[name] = base_of(config[name]) if name == "base" else Path(config[name]).name
    logs = {name: logged(directory, f"{name}.jsonl") for name in ("metrics", "matches", "genealogy")}
    return Record(directory.name, config, env, evaluations[folder("test")]["base_hash"],
                  **logs, evaluations=evaluations)


def experiment_of(directory: Path, plan: dict) -> Experiment:
    """The finished runs in an ablation's --out."""
    found = sorted(path.parent for path in directory.glob("*/env.json"))
    records = filter(None, map(record_of, found))
    return Experiment(plan, {record.name: record for record in records})


# ---- packs -------------------------------------------------------------------------------------------------

def pack(experiment: Experiment, to: Path) -> int:
    """Write a pack, and return its bytes."""
    to.mkdir(parents=True, exist_ok=True)
    (to / "config.json").write_text(json.dumps(experiment.plan, indent=1) + "\n")
    for name, record in experiment.runs.items():
        text = json.dumps(dataclasses.asdict(record), separators=(",", ":"))
        (to / f"{name}{SUFFIX}").write_bytes(lzma.compress(text.encode()))
    return sum(path.stat().st_size for path in to.glob(f"*{SUFFIX}"))


def opened(directory: Path) -> Experiment:
    """A pack, or the --out of an ablation. Raises ValueError where neither lies there."""
    try:
        plan = json.loads((directory / "config.json").read_text())
        if "arms" not in plan:
            raise ValueError("its config.json names no arms")
        packed = sorted(directory.glob(f"*{SUFFIX}"))
        if not packed:
            return experiment_of(directory, plan)
        records = [Record(**json.loads(lzma.decompress(path.read_bytes()))) for path in packed]
    except (OSError, ValueError, TypeError, lzma.LZMAError) as e:
        raise ValueError(f"{directory} is neither a pack nor the --out of an ablation: "
                         f"{getattr(e, 'strerror', None) or e}") from None
    return Experiment(plan, {record.name: record for record in records})


# ---- runs of many people -----------------------------------------------------------------------------------

def identity(plan: dict, record: Record) -> dict:
    """What must be the same of all runs that are compared, in the order in which it is told."""
    comparison = {name: plan[name] for name in COMPARISON}
    data = {split: record.evaluations[folder(split)]["data"] for split in heldout.SPLITS}
    return dict(commit=record.env["commit"], base=record.base_hash, **comparison, tasks=data)


def most_common(found: list[dict]) -> dict:
    """The dict that is there most often; of several the first."""
    return json.loads(Counter(map(json.dumps, found)).most_common(1)[0][0])


def joined(parts: dict[str, Experiment]) -> tuple[Experiment, list[str]]:
    """One experiment of several people's, and why runs were refused. parts: where it lies -> experiment.

    What most runs have in common decides: commit, hash of the base, flags of the comparison and held-out
    tasks, then each arm's own configuration. A run that is there twice counts once, the first.
    Raises ValueError where there is none.
    """
    plan = dict(next(iter(parts.values())).plan, arms={}, seeds=[])
    each, fitting, refused, runs = [], {}, [], {}
    for place, part in parts.items():
        plan["arms"] |= part.plan["arms"]
        plan["seeds"] = sorted({*plan["seeds"], *part.plan["seeds"]})
        for record in part.runs.values():
            each.append((f"{place}/{record.name}", identity(part.plan, record), record))
    if not each:
        raise ValueError("--pool: no finished run in any of these directories")
    agreed = most_common([whose for _, whose, _ in each])
    for place, whose, record in each:
        wrong = differing(agreed, whose, ())
        if whose["commit"].endswith("-dirty"):
            wrong.append("files were changed since its commit")
        if wrong:
            refused.append(f"{place}: {', '.join(wrong)}")
        else:
            flags = {name: value for name, value in record.config.items() if name not in (*HERE, *OWN)}
            fitting.setdefault(record.name.rpartition("-s")[0], []).append((place, flags, record))
    for some in fitting.values():
        usual = most_common([flags for _, flags, _ in some])
        for place, flags, record in some:
            wrong = differing(usual, flags, ())
            if record.name in runs:
                wrong.append("a run of this arm and seed is there already")
            if wrong:
                refused.append(f"{place}: {', '.join(wrong)}")
            else:
                runs[record.name] = record
    plan |= {name: agreed[name] for name in COMPARISON}
    return Experiment(plan, runs), refused
