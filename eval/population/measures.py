"""What the runs of an ablation say: measures of an arm and seed, contrasts paired by seed, tables.

area: the students' mean greedy accuracy on held-out tasks, averaged over the budget, high where learning
comes early; goal: share of the budget until one member has all played types at --goal (never = 1); end: test
accuracy, mean of played types and students; deployed: the same of the one member chosen on validation, of
all runs of an arm and seed; a type's name: that member's accuracy in it. Every contrast comes with its
manipulation check: whether the arms differed in what their names promise.
"""
import itertools
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


def area(x: np.ndarray, y: np.ndarray) -> float:
    """The mean height over [0, 1] of the line through points (n,), which is level after the last."""
    grid = np.append(x[x < 1], 1.0)
    height = np.interp(grid, x, y)
    return float((np.diff(grid) * (height[1:] + height[:-1]) / 2).sum())


def first_at(x: np.ndarray, y: np.ndarray, height: float) -> float:
    """Where the line through the points first reaches a height, at most 1, which also stands for never."""
    reached = np.flatnonzero(y >= height)
    if not len(reached):
        return 1.0
    around = slice(max(0, reached[0] - 1), reached[0] + 1)
    return min(1.0, float(np.interp(height, y[around], x[around])))


def measured(records: list[dict], due: float, goal: float, types: list[str]) -> dict[str, float]:
    """The measures of one arm and seed: of several runs the mean, but one deployed member of all. due: each
    run's budget; types: those played. A probe stands at what the steps before it had spent."""
    probes = [np.array(record["probes"], float).T for record in records if record["probes"]]
    chosen = max(records, key=lambda record: record["validation"])["deployed"]
    out = dict(area=mean_of(area(x / due, mean) for x, mean, _ in probes),
               goal=mean_of(first_at(x / due, worst, goal) for x, _, worst in probes),
               end=statistics.fmean(record["end"][kind] for record in records for kind in types),
               deployed=statistics.fmean(chosen[kind] for kind in types))
    return out | (chosen if len(chosen) > 1 else {})


def births_that_can_help(records: list[dict]) -> tuple[int, int]:
    """Births of students with a parent better than the victim by EFFECT, of those whose two were probed."""
    births = [birth[1:] for record in records for birth in record["births"] if None not in birth]
    return sum(parent >= victim + EFFECT for parent, victim in births), len(births)


def manipulation(pairs: list[tuple[dict, dict]], varied: str) -> dict:
    """The check of a contrast. pairs: one run of each arm, by seed; varied: the one thing that the arms vary;
    tested: False where that hardly differed. pairings: matches of one step and teacher with another student,
    and all such matches; 0 of 0 where the runs began with other members."""
    births = [births_that_can_help(records) for records in zip(*pairs)]
    others = []
    for one, other in pairs:
        if one["pairings"][0].keys() == other["pairings"][0].keys():
            for mine, theirs in zip(one["pairings"], other["pairings"]):
                others += [mine[teacher] != theirs[teacher] for teacher in mine.keys() & theirs.keys()]
    differ, n = sum(others), len(others)
    share = dict(matching=differ / max(1, n), evolution=max(better / max(1, born) for better, born in births))
    return dict(pairings=(differ, n), births=births, tested=not varied or share[varied] >= TESTED[varied])


def contrast(values: dict[tuple[str, int], dict], one: str, other: str, measure: str) -> dict | None:
    """One arm's measure minus another's, paired by the seeds that have both; None where no seed has."""
    seeds = [seed for arm, seed in values if arm == one and (other, seed) in values]
    differences = {seed: values[one, seed][measure] - values[other, seed][measure] for seed in seeds}
    known = {seed: x for seed, x in differences.items() if math.isfinite(x)}
    if not known:
        return None
    x = np.array(list(known.values()))
    return dict(other=other, seeds=list(known), difference=float(x.mean()), by_seed=x.tolist(),
                interval=interval_of_runs(x), p=sign_flip(x))


def verdict(line: dict) -> str:
    """What a corrected contrast says of its first arm; level: the interval is within EFFECT of 0."""
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
    """(arm, seed) -> `measured`, and -> records. Raises ValueError where a budget was missed."""
    values, records = {}, {}
    for arm, seed in itertools.product(arms, experiment.seeds):
        own, due = experiment.of(arm, seed)
        for record in own:
            if abs(record["spent"][-1] / due - 1) > TOLERANCE:
                raise ValueError(f"budgets are not matched: {record['run']} spent {record['spent'][-1]:,} "
                                 f"where {due:,.0f} are due: give more --steps, or leave it out (--arms)")
        if own:
            values[arm, seed] = measured(own, due, goal, experiment.plan["types"])
            records[arm, seed] = own
    return values, records


def conclude(experiment: Experiment, arms: list[str], reference: str, measure: str, goal: float) -> dict:
    """Contrasts of `measure` with the reference, corrected, and the means. Raises ValueError."""
    values, records = collected(experiment, list(dict.fromkeys([reference, *arms])), goal)
    names = dict.fromkeys(name for value in values.values() for name, x in value.items() if math.isfinite(x))
    if measure not in names:
        raise ValueError(f"--measure {measure}: these runs have {', '.join(names) or 'none'}")
    means = {}
    for arm in dict.fromkeys(arm for arm, _ in values):
        of_arm = [key for key in values if key[0] == arm]
        means[arm] = {name: mean_of(values[key][name] for key in of_arm) for name in names}
        means[arm]["steps"] = mean_of(len(record["spent"]) for key in of_arm for record in records[key])
    lines = [contrast(values, reference, arm, measure) for arm in means if arm != reference]
    lines = [line for line in lines if line]
    for line, adjusted in zip(lines, holm([line["p"] for line in lines])):
        pairs = [(records[reference, seed][0], records[line["other"], seed][0]) for seed in line["seeds"]]
        varied = experiment.arms[reference].varies(experiment.arms[line["other"]])
        line |= dict(check=manipulation(pairs, varied), p_holm=adjusted)
        line["verdict"] = verdict(line)
    return dict(commits=experiment.plan["commit"], seeds=experiment.seeds, goal=goal, measure=measure,
                reference=reference, means=means, contrasts=lines)


def table(result: dict) -> str:
    """The result for the terminal."""
    names = next(iter(result["means"].values()))
    out = [f"commit {', '.join(result['commits'])}; seeds {', '.join(map(str, result['seeds']))}; "
           f"matched: tokens, within {TOLERANCE:.0%}; goal {result['goal']:g}", "",
           f"{'arm':21}" + "".join(f" {name:>6}" for name in names)]
    for arm, means in result["means"].items():
        cells = [f"{means[name]:{max(6, len(name))}.{0 if name == 'steps' else 3}f}" for name in names]
        out.append(f"{arm:21} {' '.join(cells)}")
    out += ["", f"{'was it tested?':31} other pairings  births with a parent better than the victim"]
    heading = f"{result['measure'] + ', corrected (Holm)':31}"
    below = ["", f"{heading} difference  95% interval            p  p (Holm)  seeds  verdict"]
    for line in result["contrasts"]:
        name, (differ, n) = f"{result['reference']} - {line['other']}", line["check"]["pairings"]
        helped = ", ".join(f"{better} of {n_births}" for better, n_births in line["check"]["births"])
        out.append(f"{name:31} {differ:5} of {n:5}  {helped}")
        span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"]) if line["interval"] else "-"
        below.append(f"{name:31} {line['difference']:+10.3f}  {span:^17}  {line['p']:6.4f}  "
                     f"{line['p_holm']:8.4f}  {len(line['seeds']):5}  {line['verdict']}")
    return "\n".join(out + below)
