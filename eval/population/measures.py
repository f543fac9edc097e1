"""What a training run says of itself: what it has spent, and how its students learned while they spent it.

The primary measure of an ablation is an area: the students' mean greedy accuracy on the anchors, averaged
over the budget. It is high where learning comes early, and tells arms apart that end at the same ceiling.
Probes cost tokens that train nobody: these are in the logs' totals, and are taken out here.
"""
import json
import math
import statistics
from pathlib import Path

import numpy as np

from eval.population import heldout
from eval.population.heldout import LONG, Item
from eval.population.records import Record, folder
from eval.stats import pass_at_k
from eval.summary import BASE
from run.metrics import discovery
from selfplay import mean

BUDGETS = ("tokens", "rows", "proposals")
PER_SIZE = 8                        # anchors of each size, from 2 statements to 10
VALIDATION_LIMIT = 72               # tasks of a family asked of the validation split, anchors included
OUTPUT = ("code_o", LONG)           # output tasks of 2 to 10 statements
LATE = 0.9                          # share of the budget after which the teachers' tasks are looked at
PASSES = 16                         # answers to a task, of which one is to be right
LAST_PROBES = 3                     # of these the frozen base's accuracy on them is the mean
MEASURES = {"area": "area under greedy accuracy on the anchors",
            "end": "test accuracy at the end, output tasks: mean of the students",
            "best": "test accuracy of the student chosen on validation",
            "weakest": "test accuracy of the student that is last on validation",
            "half": "share of the budget until half way (never = 1)",
            "think": "share of test answers that think, output tasks",
            "input": "input tasks, not played: test accuracy",
            "input_think": "input tasks, not played: share that thinks",
            "math": "word problems, not played: test accuracy",
            "math_think": "word problems, not played: share that thinks",
            "program": "programs from examples, no trace: test accuracy",
            "puzzle": "puzzles, no trace: test accuracy",
            "pass16": "pass@16 on output tasks at temperature 1",
            "statements": "statements of the teachers' late tasks",
            "mccabe": "McCabe complexity of the teachers' late tasks",
            "depth": "depth of the syntax trees of the teachers' late tasks",
            "base_solve": "frozen base's accuracy on the teachers' late tasks",
            "unique": "unique structures at 64, late tasks",
            "brier": "Brier score of the ratings' predictions",
            "discovered": "updates until every student thinks",
            "spread": "steps from the first thinking student to all, of several"}
COUNTS = ("statements", "mccabe", "depth", "unique", "discovered", "spread")       # the others are shares


# ---- anchors -----------------------------------------------------------------------------------------------

def anchor_items(split: str = "validation") -> list[Item]:
    """The anchors: output tasks of 2 to 10 statements on reserved programs, the sizes in turn."""
    by_size = {}
    for family in OUTPUT:
        for item in heldout.draw(family, split, PER_SIZE):
            if not item.seen:
                by_size.setdefault(item.size, []).append(item)
    return [item for turn in zip(*by_size.values()) for item in turn]


def is_anchor(bench: str, item: str) -> bool:
    """Whether an unseen item of the validation split is an anchor; item: size/number of `heldout.draw`."""
    return bench in OUTPUT and int(item.partition("/")[2]) < PER_SIZE


def write_anchors(path: Path) -> None:
    """The anchors as a file for train.py --heldout."""
    tasks = [item.task for item in anchor_items()]
    rows = [dict(kind=task.kind, program=task.program, input=task.inputs[0]) for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- the budget --------------------------------------------------------------------------------------------

def spent(rows: list[dict]) -> list[dict[str, float]]:
    """What a run had spent by the end of each step: BUDGETS, probe and trained tokens, seconds."""
    out = []
    total = dict.fromkeys(("rows", "proposals", "probe_tokens", "seconds", "probe_seconds"), 0)
    for row in rows:
        students = [member for member in row["members"].values() if member["role"] == "student"]
        attempts = sum(student.get("n", 0) for student in students)
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

def anchors_at_the_end(record: Record) -> dict[str, float]:
    """Member (or base) -> greedy accuracy on the anchors after the run: the validation split holds them."""
    right = {}
    for bench, answers in record.evaluations[folder("validation")]["answers"].items():
        for place, item in enumerate(answers["ids"]):
            if is_anchor(bench, item):
                for name, counts in answers["right"].items():
                    right.setdefault(name, []).append(counts[place])
    return {name: statistics.fmean(found) for name, found in right.items()}


def final_accuracy(record: Record) -> float:
    """The students' mean greedy accuracy on the anchors after the run."""
    found = anchors_at_the_end(record)
    return statistics.fmean(value for name, value in found.items() if name != BASE)


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


def curve_of(run: Record, budget: str, due: float) -> list[tuple[float, float]]:
    """`curve` of a finished run."""
    return curve(run.metrics, budget, due, final_accuracy(run))


def area(points: list[tuple[float, float]]) -> float:
    """The mean height over [0, 1] of the line through the points, which is level after the last."""
    x, y = np.array(points, float).T
    within = x < 1
    grid = np.append(x[within], 1.0)
    height = np.append(y[within], np.interp(1.0, x, y))
    return float(((grid[1:] - grid[:-1]) * (height[1:] + height[:-1]) / 2).sum())


def first_at(points: list[tuple[float, float]], height: float) -> float:
    """Where the line through the points first reaches a height, at most 1, which also stands for never."""
    if points[0][1] >= height:
        return points[0][0]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if y1 >= height:
            return min(1.0, x0 + (x1 - x0) * (height - y0) / (y1 - y0))
    return 1.0


def late_tasks(rows: list[dict], budget: str, due: float) -> dict[str, float | None]:
    """The teachers' tasks over the last tenth of the budget, valid ones counted alike; None without any."""
    late = [row for row, state in zip(rows, spent(rows)) if state[budget] > LATE * due] or rows[-1:]
    valid = sum(row["n"] * row["valid"] for row in late)
    out = {}
    for name in ("statements", "mccabe", "depth"):
        total = sum(row["n"] * row["valid"] * (row["complexity"].get(name) or 0) for row in late)
        out[name] = total / valid if valid else None
    solved = [row["base_solve"] for row in rows if row.get("base_solve") is not None]
    unique = mean(row["unique_at_64"] for row in late)
    return out | dict(base_solve=mean(solved[-LAST_PROBES:]), unique=unique)


def when_discovered(rows: list[dict]) -> dict[str, int | None]:
    """Updates until all students think in most of their answers, and steps from the first of several to all;
    None = never."""
    first, everybody = discovery(rows)
    n_students = sum(member["role"] == "student" for member in rows[0]["members"].values())
    several = everybody is not None and n_students > 1
    return dict(discovered=everybody, spread=everybody - first if several else None)


def shares_of(evaluation: dict, benches: tuple[str, ...], what: str = "right") -> dict[str, np.ndarray]:
    """Member (or base) -> share of its answers that are right, or think, for each task (n,) of families."""
    found = {}
    for bench in benches:
        for name, counts in evaluation["answers"].get(bench, {}).get(what, {}).items():
            found.setdefault(name, []).append(np.array(counts, float) / evaluation["samples"])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def students_mean(evaluations: list[dict], benches: tuple[str, ...], what: str = "right") -> np.ndarray:
    """Mean of all runs' students for each task (n,); nan where these families were not asked."""
    each = []
    for evaluation in evaluations:
        found = shares_of(evaluation, benches, what)
        each += [values for name, values in found.items() if name != BASE]
    return np.mean(each, axis=0) if each else np.array([math.nan])


def passes_mean(evaluations: list[dict], of_base: bool = False) -> np.ndarray:
    """Mean of all runs' students' (or the frozen base's) pass@PASSES for each output task (n,)."""
    each = []
    for evaluation in evaluations:
        n = evaluation["samples"]
        for name, values in shares_of(evaluation, OUTPUT).items():
            if (name == BASE) == of_base:
                each.append([pass_at_k(n, round(share * n), PASSES) for share in values])
    return np.mean(each, axis=0)


def measured(runs: list[Record], budget: str, due: float, half: float) -> dict[str, np.ndarray]:
    """Every one of MEASURES for the runs of one arm and seed: by task (n,) where tasks were asked, else (1,).

    due: the budget of each run; half: the accuracy that is half way. Of several runs single numbers are the
    means; students are chosen among those of all.
    """
    numbers = []
    for run in runs:
        points = curve_of(run, budget, due)
        numbers.append(dict(area=area(points), half=first_at(points, half), **when_discovered(run.metrics),
                            brier=mean(match["brier"] for match in run.matches),
                            **late_tasks(run.metrics, budget, due)))
    out = {}
    for name in numbers[0]:
        values = [math.nan if x[name] is None else x[name] for x in numbers]
        out[name] = np.array([np.mean(values)])
    chosen, tested = {}, {}
    for run in runs:
        for split, found in (("validation", chosen), ("test", tested)):
            for name, values in shares_of(run.evaluations[folder(split)], OUTPUT).items():
                if name != BASE:
                    found[run.name, name] = values
    validation = {who: values.mean() for who, values in chosen.items()}
    test = [run.evaluations[folder("test")] for run in runs]
    out["end"] = students_mean(test, OUTPUT)
    out["think"] = students_mean(test, OUTPUT, "think")
    out["best"] = tested[max(validation, key=validation.get)]
    out["weakest"] = tested[min(validation, key=validation.get)]
    for name, bench in (("input", "code_i"), ("math", "math"), ("program", "code_f"), ("puzzle", "logic")):
        out[name] = students_mean(test, (bench,))
    for name, bench in (("input_think", "code_i"), ("math_think", "math")):
        out[name] = students_mean(test, (bench,), "think")
    several = [run.evaluations[folder("pass")] for run in runs if folder("pass") in run.evaluations]
    out["pass16"] = passes_mean(several) if len(several) == len(runs) else np.array([math.nan])
    return out
