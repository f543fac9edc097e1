"""What the runs of an ablation say: measures of an arm and seed, contrasts paired by seed, tables.

area: the students' mean greedy accuracy on held-out tasks, averaged over the budget, high where learning
comes early; goal: share of the budget until one member has all played types at --goal (never = 1); end: test
accuracy, mean of played types and students; deployed: the same of the one member chosen on validation, of
all runs of an arm and seed; a type's name: that member's accuracy in it; coverage: the chance that one of
SAMPLES answers at temperature 1 is right, as many from each student; repeated: all from the deployed one.
Every contrast comes with its manipulation check: whether the arms differed in what their names promise.
"""
import dataclasses
import itertools
import math
import statistics

import numpy as np

from eval.population.runs import SAMPLES, Experiment, mean_of
from eval.stats import covered, holm, interval_of_runs, sign_flip
from infra.errors import UserError

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
    if all("sampled" in record for record in records):
        out |= covered_by(records, types)
    return out | (chosen if len(chosen) > 1 else {})


def covered_by(records: list[dict], types: list[str]) -> dict[str, float]:
    """The measures coverage and repeated of one arm and seed."""
    best = max(records, key=lambda record: record["validation"])
    chances = dict(coverage=[], repeated=[])
    for kind in types:
        students = [tasks for record in records for tasks in record["sampled"][kind].values()]
        chosen = best["sampled"][kind][best["best"]]
        for i in sorted(set.intersection(*map(set, students))):
            chances["repeated"].append(covered([(SAMPLES, chosen[i])], SAMPLES))
            if SAMPLES % len(students) == 0:        # else they cannot be dealt out evenly
                answers = [(SAMPLES, tasks[i]) for tasks in students]
                chances["coverage"].append(covered(answers, SAMPLES))
    return {name: mean_of(own) for name, own in chances.items()}


@dataclasses.dataclass(frozen=True)
class Births:
    """Of students' births: those with a parent that was better than the victim by EFFECT at the last probe,
    those whose parent and victim were probed at all, and all."""
    better: int
    probed: int
    born: int

    def __str__(self) -> str:
        unknown = "" if self.probed == self.born else f" ({self.probed} probed)"
        return f"{self.better} of {self.born}{unknown}"

    def share(self) -> float:
        """Of all births. One that was not probed is not known to help, and counts as one that does not."""
        return self.better / max(1, self.born)


def births_that_can_help(records: list[dict]) -> Births:
    """What the records of an arm say of its births."""
    better = probed = born = 0
    for record in records:
        for _, parent, victim in record["births"]:
            born += 1
            if parent is not None and victim is not None:
                probed += 1
                better += parent >= victim + EFFECT
    return Births(better, probed, born)


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
    share = dict(matching=differ / max(1, n), evolution=max(both.share() for both in births))
    return dict(pairings=(differ, n), births=births, tested=not varied or share[varied] >= TESTED[varied])


def contrast(values: dict[tuple[str, int], dict], one: str, other: str, measure: str,
             against: str = "") -> dict | None:
    """One arm's measure minus another's, or minus another measure of it (`against`), paired by the seeds that
    have both; None where no seed has."""
    seeds = [seed for arm, seed in values if arm == one and (other, seed) in values]
    differences = {}
    for seed in seeds:
        difference = values[one, seed][measure] - values[other, seed][against or measure]
        if math.isfinite(difference):
            differences[seed] = difference
    if not differences:
        return None
    x = np.array(list(differences.values()))
    return dict(one=one, other=other, seeds=list(differences), difference=float(x.mean()), by_seed=x.tolist(),
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
    """(arm, seed) -> `measured`, and -> records. Raises UserError where a budget was missed."""
    values, records = {}, {}
    for arm, seed in itertools.product(arms, experiment.seeds):
        own, due = experiment.of(arm, seed)
        for record in own:
            if abs(record["spent"][-1] / due - 1) > TOLERANCE:
                raise UserError(f"budgets are not matched: {record['run']} spent {record['spent'][-1]:,} "
                                 f"where {due:,.0f} are due: give more --steps, or leave it out (--arms)")
        if own:
            values[arm, seed] = measured(own, due, goal, experiment.plan["types"])
            records[arm, seed] = own
    return values, records


def means_of(values: dict[tuple[str, int], dict], names: list[str]) -> tuple[dict, dict]:
    """arm -> measure -> mean, and measure -> number of seeds. A mean is over the seeds in which every arm has
    the measure: some runs were not probed, and columns of different seeds would not compare."""
    arms = list(dict.fromkeys(arm for arm, _ in values))
    seeds = sorted({seed for _, seed in values})
    means, n_seeds = {arm: {} for arm in arms}, {}
    for name in names:
        known = {key for key, measures in values.items() if math.isfinite(measures.get(name, math.nan))}
        common = [seed for seed in seeds if known >= {(arm, seed) for arm in arms}]
        n_seeds[name] = len(common)
        for arm in arms:
            means[arm][name] = mean_of(values[arm, seed][name] for seed in common)
    return means, n_seeds


def conclude(experiment: Experiment, arms: list[str], reference: str, measure: str, goal: float,
             further: list[tuple[str, str]] = ()) -> dict:
    """Contrasts of `measure` with the reference, and between the pairs of arms in `further`, corrected
    together, and the means. Raises UserError.

    A mean over students (`end`) rises where the best is copied over others, and anybody can do that for
    nothing when the run is over. `copied`: the reference's `end` minus that of each arm in which the student
    that is best on validation has been copied over all others, so that its accuracy is the mean."""
    wanted = [reference, *arms, *itertools.chain(*further)]
    values, records = collected(experiment, list(dict.fromkeys(wanted)), goal)
    names = []
    for name in dict.fromkeys(itertools.chain(*values.values())):
        if any(math.isfinite(value.get(name, math.nan)) for value in values.values()):
            names.append(name)
    if measure not in names:
        raise UserError(f"--measure {measure}: these runs have {', '.join(names) or 'none'}")
    for key, own in records.items():
        values[key]["steps"] = mean_of(len(record["spent"]) for record in own)
    means, n_seeds = means_of(values, [*names, "steps"])
    pairs = [(reference, arm) for arm in arms if arm != reference]
    lines = [contrast(values, one, other, measure) for one, other in dict.fromkeys([*pairs, *further])]
    lines = [line for line in lines if line]
    for line, adjusted in zip(lines, holm([line["p"] for line in lines])):
        one, other = line["one"], line["other"]
        runs_of_both = [(records[one, seed][0], records[other, seed][0]) for seed in line["seeds"]]
        varied = experiment.arms[one].varies(experiment.arms[other])
        line |= dict(check=manipulation(runs_of_both, varied), p_holm=adjusted)
        line["verdict"] = verdict(line)
    copied = []
    if measure == "end":
        copied = [contrast(values, reference, arm, "end", "deployed") for arm in means]
    return dict(commits=experiment.plan["commit"], seeds=experiment.seeds, goal=goal, measure=measure,
                reference=reference, means=means, n_seeds=n_seeds, contrasts=lines,
                copied=[line for line in copied if line])


def statistics_of(line: dict) -> str:
    """A contrast's difference, interval and p for the terminal."""
    span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"]) if line["interval"] else "-"
    return f"{line['difference']:+10.3f}  {span:^17}  {line['p']:6.4f}"


def table(result: dict) -> str:
    """The result for the terminal."""
    names, n_seeds = list(result["n_seeds"]), result["n_seeds"]
    out = [f"commit {', '.join(result['commits'])}; seeds {', '.join(map(str, result['seeds']))}; "
           f"matched: tokens, within {TOLERANCE:.0%}; goal {result['goal']:g}", "",
           f"{'arm':21}" + "".join(f" {name:>6}" for name in names)]
    for arm, means in result["means"].items():
        cells = [f"{means[name]:{max(6, len(name))}.{0 if name == 'steps' else 3}f}" for name in names]
        out.append(f"{arm:21} {' '.join(cells)}")
    cells = [f"{n_seeds[name]:{max(6, len(name))}}" for name in names]
    out.append(f"{'seeds of all arms':21} {' '.join(cells)}")
    out += ["", f"{'was it tested?':31} other pairings  births with a parent better than the victim"]
    heading = f"{result['measure'] + ', corrected (Holm)':31}"
    below = ["", f"{heading} difference  95% interval            p  p (Holm)  seeds  verdict"]
    for line in result["contrasts"]:
        name, (differ, n) = f"{line['one']} - {line['other']}", line["check"]["pairings"]
        out.append(f"{name:31} {differ:5} of {n:5}  {', '.join(map(str, line['check']['births']))}")
        below.append(f"{name:31} {statistics_of(line)}  {line['p_holm']:8.4f}  {len(line['seeds']):5}  "
                     f"{line['verdict']}")
    if result["copied"]:
        below += ["", f"{'end - end with the best copied':31} difference  95% interval            p  seeds"]
    for line in result["copied"]:
        name = f"{line['one']} - {line['other']}"
        below.append(f"{name:31} {statistics_of(line)}  {len(line['seeds']):5}")
    return "\n".join(out + below)
