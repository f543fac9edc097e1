"""What a training run says of itself: what it has spent, and how its students learned while they spent it.

The primary measure of an ablation is an area: the students' mean greedy accuracy on the anchors, averaged
over the budget. It is high where learning comes early, and tells arms apart that end at the same ceiling. Probes
cost tokens that train nobody: these are in the logs' totals, and are taken out here.
"""
import json
import statistics
from pathlib import Path

import numpy as np

from eval.population import heldout
from eval.population.heldout import LONG, Item
from eval.summary import BASE
from infra.checkpoint import RunDir

BUDGETS = ("tokens", "rows", "proposals")
PER_SIZE = 8                        # anchors of each size, from 2 statements to 10
VALIDATION_LIMIT = 72               # tasks of a family asked of the validation split, anchors included


# ---- anchors -----------------------------------------------------------------------------------------------

def anchor_items(split: str = "validation") -> list[Item]:
    """The anchors: output tasks of 2 to 10 statements on reserved programs, the sizes in turn."""
    by_size = {}
    for family in ("code_o", LONG):
        for item in heldout.draw(family, split, PER_SIZE):
            if not item.seen:
                by_size.setdefault(item.size, []).append(item)
    return [item for turn in zip(*by_size.values()) for item in turn]


def write_anchors(path: Path) -> None:
    """The anchors as a file for train.py --anchors."""
    tasks = [item.task for item in anchor_items()]
    rows = [dict(kind=task.kind, program=task.program, input=task.inputs[0]) for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- the budget --------------------------------------------------------------------------------------------

def logged(directory: Path) -> list[dict]:
    """The rows of metrics.jsonl up to the run's last checkpoint."""
    run = RunDir(directory, writes=False)
    steps = run.steps()
    if not steps:
        return []

    def length(path: Path) -> int:
        return json.loads(path.read_text())["logs"]["metrics.jsonl"]
    return run.rows("metrics.jsonl", run.part(steps[-1], "state.json", length))


def logged_so_far(directory: Path) -> list[dict]:
    """All whole rows of metrics.jsonl, of a run that may still be going."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    return RunDir(directory, writes=False).rows("metrics.jsonl", path.read_bytes().rfind(b"\n") + 1)


def spent(rows: list[dict]) -> list[dict[str, float]]:
    """What a run had spent by the end of each step: BUDGETS, probe and trained tokens, seconds."""
    out = []
    total = dict.fromkeys(("rows", "proposals", "probe_tokens", "seconds", "probe_seconds"), 0)
    for row in rows:
        attempts = sum(member["n"] for member in row["members"].values() if member["role"] == "student")
        total["rows"] += row["n"] + attempts
        total["proposals"] += row["n"]
        total["probe_tokens"] += row.get("probe_tokens", 0)
        total["seconds"] += sum(row["seconds"].values())
        total["probe_seconds"] += row["seconds"].get("probe", 0)
        tokens = row["tokens_generated"] - total["probe_tokens"]
        out.append(dict(total, tokens=tokens, trained=row["tokens_trained"]))
    return out


def met(done: list[float], target: float) -> bool:
    """Whether a run is as near to its target as whole steps can be. done: spent after each step."""
    if not done:
        return False
    last_step = done[-1] - (done[-2] if len(done) > 1 else 0)
    return done[-1] + last_step / 2 >= target


# ---- learning ----------------------------------------------------------------------------------------------

def final_accuracy(results: Path) -> float:
    """The students' mean greedy accuracy on the anchors at the end, by the evaluation of validation tasks."""
    wanted = {(item.bench, item.id) for item in anchor_items()}
    answers = [json.loads(line) for line in (results / "answers.jsonl").read_bytes().splitlines()]
    asked = [row for row in answers if (row["bench"], row["id"]) in wanted]
    return statistics.fmean(row["correct"] for row in asked if row["member"] != BASE)


def curve(rows: list[dict], budget: str, due: float, final: float) -> list[tuple[float, float]]:
    """(share of the budget, students' mean accuracy on the anchors) at every probe and at the end.

    A probe comes before its step's update, so that it stands at what the steps before it had spent. due: the
    run's budget; final: the accuracy after the last step.
    """
    done = [0, *(state[budget] for state in spent(rows))]
    points = []
    for before, row in zip(done, rows):
        if row.get("anchors_greedy"):
            points.append((before / due, statistics.fmean(row["anchors_greedy"].values())))
    return [*points, (done[-1] / due, final)]


def area(points: list[tuple[float, float]]) -> float:
    """The mean height over [0, 1] of the line through the points, which is level after the last."""
    x, y = np.array(points, float).T
    within = x < 1
    grid = np.append(x[within], 1.0)
    height = np.append(y[within], np.interp(1.0, x, y))
    return float(((grid[1:] - grid[:-1]) * (height[1:] + height[:-1]) / 2).sum())
