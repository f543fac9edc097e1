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
from collections.abc import Iterable
from operator import itemgetter

import numpy as np

from eval.population.runs import SAMPLES, Experiment, mean_of
from eval.stats import covered, holm, interval_of_runs, sign_flip
from infra.errors import demand

FEWEST = 8                          # seeds, under which nothing is concluded
LEVEL = 0.05                        # of p after Holm
EFFECT = 0.05                       # difference that counts as small
TOLERANCE = 0.05                    # of a budget
TESTED = dict(matching=0.2, evolution=0.5)      # least share of pairings that differ, of births that can help

Values = dict[tuple[str, int], dict[str, float]]        # (arm, seed) -> measure -> its value


# ---- an arm and a seed -------------------------------------------------------------------------------------

def area(x: np.ndarray, y: np.ndarray) -> float:
    """The mean height over [0, 1] of the line through points (n,), which is level after the last."""
    grid = np.append(x[x < 1], 1.0)
    height = np.interp(grid, x, y)
    means = (height[1:] + height[:-1]) / 2
    return np.sum(np.diff(grid) * means)


def first_at(x: np.ndarray, y: np.ndarray, height: float) -> float:
    """Where the line through the points first reaches a height, at most 1, which also stands for never."""
    reached = np.flatnonzero(y >= height)
    if not len(reached):
        return 1.0
    around = slice(max(0, reached[0] - 1), reached[0] + 1)
    return min(1.0, np.interp(height, y[around], x[around]))


def measured(records: list[dict], due: float, goal: float, types: list[str]) -> dict[str, float]:
    """The measures of one arm and seed: of several runs the mean, but one deployed member of all. due: each
    run's budget; types: those played. A probe stands at what the steps before it had spent."""
    areas, goals, ends = [], [], []
    for record in records:
        ends += [record["end"][kind] for kind in types]
        if record["probes"]:
            tokens, mean, worst = np.array(record["probes"], float).T
            areas.append(area(tokens / due, mean))
            goals.append(first_at(tokens / due, worst, goal))
    best = max(records, key=itemgetter("validation"))           # chosen on other tasks, and deployed
    deployed = best["deployed"]
    out = {
        "area": mean_of(areas),
        "goal": mean_of(goals),
        "end": statistics.fmean(ends),
        "deployed": statistics.fmean(deployed[kind] for kind in types),
    }
    if all("sampled" in record for record in records):
        out |= covered_by(records, best, types)
    if len(deployed) > 1:
        out |= deployed
    return out


def covered_by(records: list[dict], best: dict, types: list[str]) -> dict[str, float]:
    """The measures coverage and repeated of one arm and seed."""
    coverage, repeated = [], []
    for kind in types:
        students = []
        for record in records:
            students += record["sampled"][kind].values()
        chosen = best["sampled"][kind][best["best"]]
        for i in sorted(set.intersection(*map(set, students))):
            repeated.append(covered([(SAMPLES, chosen[i])], SAMPLES))
            if SAMPLES % len(students) == 0:        # else they cannot be dealt out evenly
                answers = [(SAMPLES, tasks[i]) for tasks in students]
                coverage.append(covered(answers, SAMPLES))
    return dict(coverage=mean_of(coverage), repeated=mean_of(repeated))


def collected(experiment: Experiment, arms: Iterable[str], goal: float) -> tuple[Values, dict]:
    """The values, and (arm, seed) -> records. Raises UserError where a budget was missed."""
    values, records = {}, {}
    for arm, seed in itertools.product(arms, experiment.seeds):
        own, due = experiment.of(arm, seed)
        for record in own:
            spent = record["spent"][-1]
            demand(abs(spent / due - 1) <= TOLERANCE, f"budgets are not matched: {record['run']} spent "
                   f"{spent:,} where {due:,.0f} are due: give more --steps, or leave it out (--arms)")
        if own:
            values[arm, seed] = measured(own, due, goal, experiment.plan["types"])
            records[arm, seed] = own
    return values, records


# ---- did the arms differ in what their names promise? ------------------------------------------------------

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
    births = list(map(births_that_can_help, zip(*pairs)))               # of one arm, and of the other
    same = n = 0
    for one, other in pairs:
        if one["pairings"][0].keys() != other["pairings"][0].keys():
            continue
        for mine, theirs in zip(one["pairings"], other["pairings"]):
            n += len(mine.keys() & theirs.keys())
            same += len(mine.items() & theirs.items())          # teachers with the same student
    differ = n - same
    share = dict(matching=differ / max(1, n), evolution=max(map(Births.share, births)))
    tested = not varied or share[varied] >= TESTED[varied]
    return dict(pairings=(differ, n), births=births, tested=tested)


# ---- contrasts ---------------------------------------------------------------------------------------------

def contrast(values: Values, one: str, other: str, measure: str, against: str = "") -> dict | None:
    """One arm's measure minus another's, or minus another measure of it (`against`), paired by the seeds that
    have both; None where no seed has."""
    differences = {}
    for arm, seed in values:
        if arm == one and (other, seed) in values:
            difference = values[one, seed][measure] - values[other, seed][against or measure]
            if math.isfinite(difference):
                differences[seed] = difference
    if not differences:
        return None
    x = np.array(list(differences.values()))
    return {
        "one": one,
        "other": other,
        "seeds": list(differences),
        "difference": x.mean(),
        "by_seed": x.tolist(),
        "interval": interval_of_runs(x),
        "p": sign_flip(x),
    }


def contrasts(values: Values, pairs: Iterable[tuple], measure: str, against: str = "") -> list[dict]:
    """The contrasts of these pairs of arms, but of those that have no seed in common."""
    lines = []
    for one, other in pairs:
        if line := contrast(values, one, other, measure, against):
            lines.append(line)
    return lines


def verdict(line: dict) -> str:
    """What a corrected contrast says of its first arm; level: the interval is within EFFECT of 0."""
    if len(line["seeds"]) < FEWEST:
        return "too few seeds"
    if not line["check"]["tested"]:
        return "not tested"
    low, high = line["interval"]
    is_small = -EFFECT <= low and high <= EFFECT
    if line["p_holm"] >= LEVEL:
        if is_small:
            return "level"
        return "cannot tell"
    side = "behind"
    if line["difference"] > 0:
        side = "ahead"
    if is_small:
        side += ", by little"
    return side


def known(values: Values, name: str) -> set[tuple[str, int]]:
    """The arms and seeds for which a measure is known."""
    return {key for key, own in values.items() if math.isfinite(own.get(name, math.nan))}


def means_of(values: Values, names: list[str]) -> tuple[dict, dict]:
    """arm -> measure -> mean, and measure -> number of seeds. A mean is over the seeds in which every arm has
    the measure: some runs were not probed, and columns of different seeds would not compare."""
    arms, seeds = zip(*values)
    means = {arm: {} for arm in arms}
    n_seeds = {}
    for name in names:
        have = known(values, name)
        common = [seed for seed in sorted(set(seeds)) if all((arm, seed) in have for arm in arms)]
        n_seeds[name] = len(common)
        for arm in means:
            means[arm][name] = mean_of(values[arm, seed][name] for seed in common)
    return means, n_seeds


def conclude(experiment: Experiment, arms: list[str], reference: str, measure: str, goal: float,
             further: list[tuple[str, str]] = ()) -> dict:
    """Contrasts of `measure` with the reference, and between the pairs of arms in `further`, corrected
    together, and the means. Raises UserError.

    A mean over students (`end`) rises where the best is copied over others, and anybody can do that for
    nothing when the run is over. `copied`: the reference's `end` minus that of each arm in which the student
    that is best on validation has been copied over all others, so that its accuracy is the mean."""
    wanted = dict.fromkeys([reference, *arms, *itertools.chain(*further)])
    values, records = collected(experiment, wanted, goal)
    every_name = dict.fromkeys(itertools.chain(*values.values()))
    names = [name for name in every_name if known(values, name)]
    demand(measure in names, f"--measure {measure}: these runs have {', '.join(names) or 'none'}")
    for key, own in records.items():
        values[key]["steps"] = mean_of(len(record["spent"]) for record in own)
    means, n_seeds = means_of(values, [*names, "steps"])

    pairs = [(reference, arm) for arm in arms if arm != reference]
    lines = contrasts(values, dict.fromkeys([*pairs, *further]), measure)
    for line, p_holm in zip(lines, holm([line["p"] for line in lines])):
        one, other = line["one"], line["other"]
        first_runs = []
        for seed in line["seeds"]:
            first_runs.append((records[one, seed][0], records[other, seed][0]))
        varied = experiment.arms[one].varies(experiment.arms[other])
        line["check"] = manipulation(first_runs, varied)
        line["p_holm"] = p_holm
        line["verdict"] = verdict(line)
    copied = []
    if measure == "end":
        copied = contrasts(values, [(reference, arm) for arm in means], "end", "deployed")
    return {
        "commits": experiment.plan["commit"],
        "seeds": experiment.seeds,
        "goal": goal,
        "measure": measure,
        "reference": reference,
        "means": means,
        "n_seeds": n_seeds,
        "contrasts": lines,
        "copied": copied,
    }


# ---- the tables --------------------------------------------------------------------------------------------

def row_of(line: dict) -> str:
    """A contrast for the terminal: its name, difference, interval and p."""
    span = "-"
    if line["interval"]:
        span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"])
    return f"{name_of(line):31} {line['difference']:+10.3f}  {span:^17}  {line['p']:6.4f}"


def name_of(line: dict) -> str:
    """A contrast's name."""
    return f"{line['one']} - {line['other']}"


def means_table(result: dict) -> list[str]:
    """A line for each arm: its measures."""
    heading, seeds = f"{'arm':21}", f"{'seeds of all arms':21}"
    for name, n in result["n_seeds"].items():
        heading += f" {name:>6}"
        seeds += f" {n:{max(6, len(name))}}"
    out = [heading]
    for arm, means in result["means"].items():
        row = f"{arm:21}"
        for name, mean in means.items():
            text = f"{mean:.0f}" if name == "steps" else f"{mean:.3f}"
            if math.isnan(mean):            # no seed has it in all arms: a run without probes, say
                text = "-"
            row += f" {text:>{max(6, len(name))}}"
        out.append(row)
    return [*out, seeds]


def table(result: dict) -> str:
    """The result for the terminal."""
    seeds = ", ".join(map(str, result["seeds"]))
    out = [f"commit {', '.join(result['commits'])}; seeds {seeds}; "
           f"matched: tokens, within {TOLERANCE:.0%}; goal {result['goal']:g}", ""]
    out += means_table(result)
    out += ["", f"{'was it tested?':31} other pairings  births with a parent better than the victim"]
    for line in result["contrasts"]:
        differ, n = line["check"]["pairings"]
        births = ", ".join(map(str, line["check"]["births"]))
        out.append(f"{name_of(line):31} {differ:5} of {n:5}  {births}")
    columns = "difference  95% interval            p"
    out += ["", f"{result['measure'] + ', corrected (Holm)':31} {columns}  p (Holm)  seeds  verdict"]
    for line in result["contrasts"]:
        n_seeds = len(line["seeds"])
        out.append(f"{row_of(line)}  {line['p_holm']:8.4f}  {n_seeds:5}  {line['verdict']}")
    if result["copied"]:
        out += ["", f"{'end - end with the best copied':31} {columns}  seeds"]
    for line in result["copied"]:
        out.append(f"{row_of(line)}  {len(line['seeds']):5}")
    return "\n".join(out)
