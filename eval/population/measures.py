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
from eval.stats import hierarchical_bootstrap, pass_at_k
from eval.summary import BASE
from infra.metrics import discovery
from selfplay import mean

BUDGETS = ("tokens", "rows", "proposals")
PER_SIZE = 8                        # anchors of each size, from 2 statements to 10
VALIDATION_LIMIT = 72               # tasks of a family asked of the validation split, anchors included
OUTPUT = ("code_o", LONG)           # output tasks of 2 to 10 statements
WAITS = (1, 10, 20)                 # steps after a birth
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
            "spread": "steps from the first thinking student to all"}


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
    """The anchors as a file for train.py --anchors."""
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


def passes_mean(evaluations: list[dict]) -> np.ndarray:
    """Mean of all runs' students' pass@PASSES for each output task (n,)."""
    each = []
    for evaluation in evaluations:
        n = evaluation["samples"]
        for name, values in shares_of(evaluation, OUTPUT).items():
            if name != BASE:
                each.append([pass_at_k(n, round(share * n), PASSES) for share in values])
    return np.mean(each, axis=0)


def measured(runs: list[Record], budget: str, due: float, half: float) -> dict[str, np.ndarray]:
    """Every one of MEASURES for the runs of one arm and seed: by task (n,) where tasks were asked, else (1,).

    due: the budget of each run; half: the accuracy that is half way. Of several runs single numbers are the
    means; students are chosen among those of all.
    """
    numbers = []
    for run in runs:
        points = curve(run.metrics, budget, due, final_accuracy(run))
        first, everybody = discovery(run.metrics)
        steps = everybody - first if everybody is not None else None
        numbers.append(dict(area=area(points), half=first_at(points, half), spread=steps,
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


# ---- children ----------------------------------------------------------------------------------------------

def courses(metrics: list[dict], genealogy: list[dict], k: int) -> list[dict]:
    """Per student born: anchor accuracy of its parents before, and its own at the first probe after k steps.

    dict(operator, parents, child, parents_then); parents: the mean at the last probe before the birth;
    parents_then: of those that still live, with the child's after k steps. None = no record.
    """
    probes = [(row["step"], row["anchors_greedy"]) for row in metrics if row.get("anchors_greedy")]
    out = []
    for birth in genealogy:
        if birth["victim"]["role"] != "student":
            continue
        names = [parent["name"] for parent in birth["parents"]]
        earlier = [found for step, found in probes if step <= birth["step"]]
        # a probe comes before its step's update: the first of a child is at the step after its birth
        later = [(step - birth["step"], found) for step, found in probes if step > birth["step"]]
        after = next((found for wait, found in later if wait >= k), {})
        before = earlier[-1] if earlier else {}
        out.append(dict(operator=birth["operator"], parents=mean(before.get(name) for name in names),
                        child=after.get(birth["child"]),
                        parents_then=mean(after.get(name) for name in names)))
    return out


def interval_of(x: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the mean of differences (S, n) over seeds and items; None for one seed."""
    return hierarchical_bootstrap(x) if len(x) > 1 else None


def children(runs: list[tuple[str, list[dict], list[dict]]], waits: tuple[int, ...] = WAITS) -> list[dict]:
    """Per operator and steps since the birth: the children's accuracy on the anchors, and their parents'.

    runs: (seed, metrics, genealogy). difference: child minus parents before; each seed counts once. then: the
    parents that still live, at the child's probe.
    """
    found = {}                                    # (operator, wait) -> seed -> courses
    for seed, metrics, genealogy in runs:
        for wait in waits:
            for course in courses(metrics, genealogy, wait):
                found.setdefault((course["operator"], wait), {}).setdefault(seed, []).append(course)
    lines = []
    for (operator, wait), by_seed in sorted(found.items()):
        whole, differences = [], []
        for some in by_seed.values():
            known = [x for x in some if x["child"] is not None and x["parents"] is not None]
            whole += known
            if known:
                differences.append([np.mean([x["child"] - x["parents"] for x in known])])
        line = dict(operator=operator, wait=wait, births=sum(map(len, by_seed.values())), recorded=len(whole))
        for name, key in (("parents", "parents"), ("child", "child"), ("then", "parents_then")):
            line[name] = mean(x[key] for x in whole)
        x = np.array(differences)
        lines.append(line | dict(difference=float(x.mean()) if whole else None,
                                 interval=interval_of(x) if whole else None))
    return lines


def estimate(line: dict) -> str:
    """A difference with its interval; dashes for what is not known."""
    if line["difference"] is None:
        return f"{'-':>10}  {'-':^17}"
    span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"]) if line["interval"] else "-"
    return f"{line['difference']:+10.3f}  {span:^17}"


def children_table(lines: list[dict]) -> str:
    """Children for the terminal; before: their parents before the birth, parents: those then alive.

    Teachers solve no anchors, and children replaced before a probe have no record.
    """
    out = ["children recover: accuracy on the anchors minus their parents' before, by steps since birth",
           "operator     steps  births  recorded  before  child  parents  difference  95% interval"]
    for x in lines:
        means = ["-" if x[key] is None else f"{x[key]:.2f}" for key in ("parents", "child", "then")]
        before, child, then = means
        out.append(f"{x['operator']:11} {x['wait']:5}+ {x['births']:7} {x['recorded']:9}  {before:>6}  "
                   f"{child:>5}  {then:>7}  {estimate(x)}".rstrip())
    return "\n".join(out)
