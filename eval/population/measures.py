"""What the runs of an ablation say: measures of an arm and seed, contrasts paired by seed, tables.

The *area* is the students' mean greedy accuracy on held-out tasks, averaged over the budget: it is high where
learning comes early, and tells arms apart that end at the same ceiling. Every contrast comes with its
manipulation check: whether the two arms differed at all in what their names promise.
"""
import math
import statistics

import numpy as np

from eval.population.runs import Experiment, mean_of
from eval.stats import holm, interval_of_runs, sign_flip

FEWEST = 8                          # seeds, under which nothing is concluded
LEVEL = 0.05                        # of p after Holm
EFFECT = 0.05                       # difference that counts as small
TOLERANCE = 0.05                    # of a budget
TESTED = dict(matching=0.2, evolution=0.5)      # least share of pairings that differ, of births that can help
MEASURES = {"area": "area under greedy accuracy on held-out tasks, students' mean over the budget",
            "goal": "share of the budget until one member has all types at --goal (never = 1)",
            "discovered": "updates until a founding student thinks in most answers (mean of three steps)",
            "end": "test accuracy at the end, mean of played types and students",
            "deployed": "the same of the one member chosen on validation, of all runs of an arm and seed"}


# ---- one arm and seed ------------------------------------------------------------------------------------

def curve(record: dict, due: float, column: int = 1) -> list[tuple[float, float]]:
    """(share of the budget, accuracy) at every probe; column 1: the students' mean, 2: the worst type of the
    best. A probe comes before its step's update: it stands at what the steps before it had spent."""
    return [(probe[0] / due, probe[column]) for probe in record["probes"]]


def area(points: list[tuple[float, float]]) -> float:
    """The mean height over [0, 1] of the line through the points, which is level after the last."""
    x, y = np.array(points, float).T
    grid = np.append(x[x < 1], 1.0)
    height = np.interp(grid, x, y)
    return float((np.diff(grid) * (height[1:] + height[:-1]) / 2).sum())


def first_at(points: list[tuple[float, float]], height: float) -> float:
    """Where the line through the points first reaches a height, at most 1, which also stands for never."""
    if points[0][1] >= height:
        return points[0][0]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if y1 >= height:
            return min(1.0, x0 + (x1 - x0) * (height - y0) / (y1 - y0))
    return 1.0


def measured(records: list[dict], due: float, goal: float, types: list[str]) -> dict[str, float]:
    """MEASURES of the runs of one arm and seed, and by name of a type what the deployed member solves of it.

    Of several runs the mean, but the deployed member is the one of all that is best on validation. due: each
    run's budget; types: those played.
    """
    out = dict.fromkeys(("area", "goal"), math.nan)
    probed = [record for record in records if record["probes"]]
    out["area"] = mean_of(area(curve(record, due)) for record in probed)
    out["goal"] = mean_of(first_at(curve(record, due, 2), goal) for record in probed)
    out["discovered"] = mean_of(first for record in records for first, _ in record["students"])
    out["end"] = statistics.fmean(record["end"][kind] for record in records for kind in types)
    chosen = max(records, key=lambda record: record["validation"])["deployed"]
    out["deployed"] = statistics.fmean(chosen[kind] for kind in types)
    return out | (chosen if len(chosen) > 1 else {})


def discovery(students: list[list]) -> dict:
    """Of many learners: how many, median updates and coefficient of variation of those that discover
    thinking, share that never does, share of the others that falls back."""
    updates = [first for first, _ in students if first is not None]
    spread = statistics.stdev(updates) / statistics.fmean(updates) if len(updates) > 1 else None
    return dict(n=len(students), median=statistics.median(updates) if updates else None, variation=spread,
                never=1 - len(updates) / len(students) if students else None,
                back=sum(fell for _, fell in students) / len(updates) if updates else None)


# ---- was it tested? ----------------------------------------------------------------------------------------

def pairings_that_differ(pairs: list[tuple[dict, dict]]) -> tuple[int, int]:
    """Of two runs of each seed: matches of one step and teacher with another student, and all such matches; 0
    of 0 where the runs began with other members."""
    differ = n = 0
    for one, other in pairs:
        alike = one["pairings"][0].keys() == other["pairings"][0].keys()
        for mine, theirs in zip(one["pairings"], other["pairings"]) if alike else ():
            common = mine.keys() & theirs.keys()
            n += len(common)
            differ += sum(mine[teacher] != theirs[teacher] for teacher in common)
    return differ, n


def births_that_can_help(records: list[dict]) -> tuple[int, int]:
    """Births of students with a parent better than the victim by EFFECT, and all of them."""
    births = [birth for record in records for birth in record["births"]]
    better = [None not in (parent, victim) and parent >= victim + EFFECT for _, parent, victim in births]
    return sum(better), len(births)


def manipulation(pairs: list[tuple[dict, dict]], varied: str) -> dict:
    """The check of a contrast. pairs: one run of each arm, by seed; varied: the one thing that the arms vary.

    tested: False where that hardly differed.
    """
    births = [births_that_can_help(records) for records in zip(*pairs)]
    pairings = pairings_that_differ(pairs)
    share = dict(matching=pairings[0] / max(1, pairings[1]),
                 evolution=max(better / max(1, n) for better, n in births))
    return dict(pairings=pairings, births=births, tested=not varied or share[varied] >= TESTED[varied])


# ---- contrasts ---------------------------------------------------------------------------------------------

def contrast(values: dict[tuple[str, int], dict], one: str, other: str, measure: str) -> dict | None:
    """One arm's measure minus another's, paired by the seeds that have both; None where no seed has."""
    pairs = {}
    for arm, seed in values:
        if arm == one and (other, seed) in values:
            difference = values[one, seed][measure] - values[other, seed][measure]
            if math.isfinite(difference):
                pairs[seed] = difference
    if not pairs:
        return None
    x = np.array(list(pairs.values()))
    return dict(one=one, other=other, seeds=list(pairs), difference=float(x.mean()), by_seed=x.tolist(),
                interval=interval_of_runs(x), p=sign_flip(x))


def verdict(line: dict) -> str:
    """What a corrected contrast says of its first arm. Level: not ahead or behind, and the whole interval
    within EFFECT of 0."""
    if len(line["seeds"]) < FEWEST:
        return "too few seeds"
    if not line["check"]["tested"]:
        return "not tested"
    low, high = line["interval"]
    small = -EFFECT <= low and high <= EFFECT
    if line["p_holm"] < LEVEL:
        return f"{'ahead' if line['difference'] > 0 else 'behind'}{', by little' if small else ''}"
    return "level" if small else "cannot tell"


def collected(experiment: Experiment, arms: list[str], goal: float) -> tuple[dict, dict]:
    """(arm, seed) -> `measured`, and -> its records. Raises ValueError where a budget was missed by more than
    TOLERANCE."""
    values, records, wrong = {}, {}, []
    for arm in arms:
        for seed in experiment.seeds:
            if own := experiment.of(arm, seed):
                due = experiment.due(arm, seed)
                records[arm, seed] = own
                values[arm, seed] = measured(own, due, goal, experiment.plan["types"])
                wrong += [f"{record['run']} spent {record['spent'][-1]:,} where {due:,.0f} are due"
                          for record in own if abs(record["spent"][-1] / due - 1) > TOLERANCE]
    if wrong:
        raise ValueError(f"budgets are not matched, and such arms are not compared: {'; '.join(wrong)}. More "
                         "--steps make a step a smaller part of the budget; or leave these arms out (--arms)")
    return values, records


def conclude(experiment: Experiment, arms: list[str], reference: str, measure: str, goal: float) -> dict:
    """Contrasts of `measure` between the reference and every other of the arms, corrected for each other, and
    the means of all measures. Raises ValueError where a budget was missed or nobody has the measure."""
    arms = list(dict.fromkeys([reference, *arms]))
    values, records = collected(experiment, arms, goal)
    names = dict.fromkeys(name for value in values.values() for name, x in value.items() if math.isfinite(x))
    if measure not in names:
        raise ValueError(f"--measure {measure}: these runs have {', '.join(names)}")
    found = [contrast(values, reference, arm, measure) for arm in arms[1:]]
    lines = [line for line in found if line]
    for line, adjusted in zip(lines, holm([line["p"] for line in lines])):
        pairs = [(records[reference, seed][0], records[line["other"], seed][0]) for seed in line["seeds"]]
        varied = experiment.arms[reference].varies(experiment.arms[line["other"]])
        line |= dict(check=manipulation(pairs, varied), p_holm=adjusted)
        line["verdict"] = verdict(line)
    of_arm = {}
    for (arm, _), own in records.items():
        of_arm.setdefault(arm, []).extend(own)
    means = {arm: {name: mean_of(values[key][name] for key in values if key[0] == arm) for name in names}
             for arm in of_arm}
    return dict(plan=experiment.plan, seeds=experiment.seeds, goal=goal, measure=measure, reference=reference,
                means=means, contrasts=lines,
                steps={arm: mean_of(len(record["spent"]) for record in own) for arm, own in of_arm.items()},
                discovery={arm: discovery([student for record in own for student in record["students"]])
                           for arm, own in of_arm.items()})


# ---- tables ------------------------------------------------------------------------------------------------

def number(value: float | None, places: int = 3, width: int = 6) -> str:
    """A number of a table; a dash for what is not known."""
    unknown = value is None or not math.isfinite(value)
    return f"{'-' if unknown else format(value, f'.{places}f'):>{width}}"


def estimate(line: dict) -> str:
    """A contrast's name, difference, interval and p."""
    span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"]) if line["interval"] else "-"
    name = f"{line['one']} - {line['other']}"
    return f"{name:31} {line['difference']:+10.3f}  {span:^17}  {line['p']:6.4f}"


def table(result: dict) -> str:
    """The result for the terminal."""
    seeds, names = ", ".join(map(str, result["seeds"])), list(result["means"][result["reference"]])
    out = [f"commit {', '.join(result['plan']['commit'])}; seeds {seeds}; matched: tokens, within "
           f"{TOLERANCE:.0%}; goal {result['goal']:g}", "",
           f"{'arm':21} steps" + "".join(f" {name:>6}" for name in names)]
    for arm, steps in result["steps"].items():
        cells = [number(result["means"][arm][name], 1 if name == "discovered" else 3, max(6, len(name)))
                 for name in names]
        out.append(f"{arm:21} {steps:5.0f} {' '.join(cells)}")
    out += ["", f"{'was it tested?':31} other pairings  births with a parent better than the victim"]
    for line in result["contrasts"]:
        differ, n = line["check"]["pairings"]
        helped = ", ".join(f"{better} of {n_births}" for better, n_births in line["check"]["births"])
        name = f"{line['one']} - {line['other']}"
        out.append(f"{name:31} {differ:5} of {n:5}  {helped}")
    out += ["", f"{result['measure'] + ', corrected (Holm)':31} difference  95% interval            p  "
                "p (Holm)  seeds  verdict"]
    for line in result["contrasts"]:
        out.append(f"{estimate(line)}  {line['p_holm']:8.4f}  {len(line['seeds']):5}  {line['verdict']}")
    out += ["", f"{'discovery of thinking':21} learners  median updates  variation  never  falls back"]
    for arm, line in result["discovery"].items():
        cells = [number(line["median"], 1, 14), number(line["variation"], 2, 9),
                 number(line["never"], 2, 5), number(line["back"], 2, 10)]
        out.append(f"{arm:21} {line['n']:8}  {'  '.join(cells)}")
    return "\n".join(out)


def ground_by_arm(results: dict[str, dict]) -> str:
    """Grounds against arms in Markdown: each arm minus the reference, and how widely discovery spreads there.
    """
    arms = list(dict.fromkeys(line["other"] for result in results.values() for line in result["contrasts"]))
    out = [f"| ground | variation | {' | '.join(arms)} |", "|---" * (len(arms) + 2) + "|"]
    swapped = {"ahead": "behind", "behind": "ahead"}
    for ground, result in results.items():
        cells = dict.fromkeys(arms, "")
        for line in result["contrasts"]:
            word = line["verdict"].partition(",")[0]
            cell = f"{swapped.get(word, word)} {0 - line['difference']:+.3f}"
            if line["interval"]:
                low, high = line["interval"]
                cell += f" ({0 - high:+.3f} .. {0 - low:+.3f})"
            cells[line["other"]] = cell
        variation = number(result["discovery"][result["reference"]]["variation"], 2, 1)
        out.append(f"| {ground} | {variation} | {' | '.join(cells.values())} |")
    return "\n".join(out)
