"""What the runs of an ablation say: areas, ends, discoveries, and contrasts between arms, paired by seed.

A record is one finished run (`eval.population.runs`). The *area* is the students' mean greedy accuracy on
held-out tasks, averaged over the budget: it is high where learning comes early, and tells arms apart that end
at the same ceiling. Every contrast comes with its manipulation check: whether the two arms differed at all in
what their names promise.
"""
import math
import statistics

import numpy as np

from eval.population.runs import Experiment, mean_of
from eval.stats import holm, interval_of_runs, sign_flip

FEWEST = 8                          # seeds, under which nothing is concluded
LEVEL = 0.05                        # of p after Holm
TOLERANCE = 0.05                    # of a budget
TESTED = dict(matching=0.2, evolution=0.5)      # least share of pairings that differ, of births that can help
MEASURES = {"area": "area under greedy accuracy on held-out tasks, students' mean over the budget",
            "end": "test accuracy at the end by played type, mean of types and students",
            "deployed": "the same of the one member chosen on validation, of all runs of an arm and seed",
            "goal": "share of the budget until one member has all types at --goal (never = 1)",
            "discovered": "updates until a founding student thinks in most answers (mean of three steps)",
            "pass16": "pass@16 on output tasks at temperature 1",
            "statements": "statements of the teachers' tasks in the last tenth of the steps",
            "base_solve": "frozen base's accuracy on the teachers' tasks, mean of the last three probes"}
COUNTS = ("discovered", "statements")           # the others are shares


# ---- one arm and seed ------------------------------------------------------------------------------------

def curve(record: dict, due: float, column: int = 1) -> list[tuple[float, float]]:
    """(share of the budget, accuracy) at every probe and at the end; column 1: the mean, 2: the best's worst
    type. A probe comes before its step's update: it stands at what the steps before it had spent."""
    return [(probe[0] / due, probe[column]) for probe in record["probes"]]


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


def measured(records: list[dict], due: float, goal: float) -> dict[str, float]:
    """MEASURES of the runs of one arm and seed, and the end by type; of several runs the mean, but `deployed`
    is the one chosen on validation. due: each run's budget."""
    chosen = max(records, key=lambda record: record["validation"])
    out = dict(area=mean_of(area(curve(record, due)) for record in records),
               goal=mean_of(first_at(curve(record, due, 2), goal) for record in records),
               deployed=statistics.fmean(chosen["deployed"].values()),
               discovered=mean_of(first for record in records for first, _ in record["students"]))
    types = list(chosen["end"])
    ends = {kind: mean_of(record["end"][kind] for record in records) for kind in types}
    out["end"] = statistics.fmean(ends.values())
    for name in ("pass16", "statements", "base_solve"):
        out[name] = mean_of(record[name] for record in records)
    if len(types) > 1:
        for kind in types:
            out |= {f"end {kind}": ends[kind], f"deployed {kind}": chosen["deployed"][kind]}
    return out


# ---- was it tested? ----------------------------------------------------------------------------------------

def pairings_that_differ(pairs: list[tuple[dict, dict]]) -> tuple[int, int]:
    """Of two runs of each seed: matches of one step and teacher with another student, and all such matches; 0
    of 0 where the runs began with other members."""
    differ = n = 0
    for one, other in pairs:
        alike = one["pairings"][0].keys() == other["pairings"][0].keys()
        for mine, theirs in zip(one["pairings"], other["pairings"]) if alike else ():
            for teacher in mine.keys() & theirs.keys():
                n += 1
                differ += mine[teacher] != theirs[teacher]
    return differ, n


def births_that_can_help(records: list[dict], effect: float) -> tuple[int, int]:
    """Births of students with a parent better than the victim by `effect`, and all of them."""
    births = [birth for record in records for birth in record["births"]]
    better = [parent is not None and victim is not None and parent >= victim + effect
              for _, parent, victim in births]
    return sum(better), len(births)


def manipulation(pairs: list[tuple[dict, dict]], varied: str, effect: float) -> dict:
    """The check of a contrast. pairs: one run of each arm, by seed; varied: the one thing that the arms vary.

    tested: False where that hardly differed.
    """
    ones, others = zip(*pairs)
    births = [births_that_can_help(records, effect) for records in (ones, others)]
    pairings = pairings_that_differ(pairs)
    share = dict(matching=pairings[0] / max(1, pairings[1]),
                 evolution=max(better / max(1, n) for better, n in births))
    return dict(pairings=pairings, births=births, tested=not varied or share[varied] >= TESTED[varied])


# ---- contrasts ---------------------------------------------------------------------------------------------

def contrast(values: dict[tuple[str, int], dict], seeds: list[int], one: str, other: str,
             measure: str) -> dict:
    """One arm's measure minus another's, paired by the seeds that have both; difference is None without."""
    pairs = {}
    for seed in seeds:
        if (one, seed) in values and (other, seed) in values:
            difference = values[one, seed][measure] - values[other, seed][measure]
            if math.isfinite(difference):
                pairs[seed] = difference
    line = dict(one=one, other=other, measure=measure, seeds=list(pairs), difference=None, interval=None,
                p=1.0)
    if not pairs:
        return line
    x = np.array(list(pairs.values()))
    return line | dict(difference=float(x.mean()), by_seed=x.tolist(), interval=interval_of_runs(x),
                       p=sign_flip(x))


def verdict(line: dict, effect: float) -> str:
    """What a corrected contrast says of its first arm. Level: not ahead or behind, and the whole interval
    within `effect` of 0."""
    if len(line["seeds"]) < FEWEST:
        return "too few seeds"
    if not line["check"]["tested"]:
        return "not tested"
    low, high = line["interval"]
    small = -effect <= low and high <= effect
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
                records[arm, seed], values[arm, seed] = own, measured(own, due, goal)
                wrong += [f"{record['run']} spent {record['spent'][-1]:,} where {due:,.0f} are due"
                          for record in own if not abs(record["spent"][-1] / due - 1) <= TOLERANCE]
    if wrong:
        raise ValueError(f"budgets are not matched, and such arms are not compared: {'; '.join(wrong)}. More "
                         "--steps make a step a smaller part of the budget; or leave these arms out (--arms)")
    return values, records


def conclude(experiment: Experiment, arms: list[str], reference: str, measure: str, effect: float,
             goal: float) -> dict:
    """Contrasts of `measure` between the reference and every other of the arms, corrected for each other, and
    all other measures described. Raises ValueError where a budget was missed."""
    arms, seeds = list(dict.fromkeys([reference, *arms])), experiment.seeds
    values, records = collected(experiment, arms, goal)
    lines = []
    for arm in arms[1:]:
        line = contrast(values, seeds, reference, arm, measure)
        if line["seeds"]:
            pairs = [(records[reference, seed][0], records[arm, seed][0]) for seed in line["seeds"]]
            varied = experiment.arms[reference].varies(experiment.arms[arm])
            lines.append(line | dict(check=manipulation(pairs, varied, effect)))
    for line, adjusted in zip(lines, holm([line["p"] for line in lines])):
        line["p_holm"] = adjusted
        line["verdict"] = verdict(line, effect)
    rows = {}                                                                           # arm -> its records
    for (arm, _), own in records.items():
        rows.setdefault(arm, []).extend(own)
    names = dict.fromkeys(name for value in values.values() for name, x in value.items() if math.isfinite(x))
    means = {name: {arm: mean_of(values[key][name] for key in values if key[0] == arm) for arm in rows}
             for name in names}
    return dict(plan=experiment.plan, seeds=seeds, effect=effect, goal=goal, measure=measure,
                reference=reference, means=means, contrasts=lines,
                described={name: [contrast(values, seeds, reference, line["other"], name) for line in lines]
                           for name in names if name != measure},
                steps={arm: mean_of(len(record["spent"]) for record in own) for arm, own in rows.items()},
                discovery={arm: discovery([student for record in own for student in record["students"]])
                           for arm, own in rows.items()})


def discovery(students: list[list]) -> dict:
    """Of many learners: how many, median updates and coefficient of variation of those that discover
    thinking, share that never does, share of the others that falls back."""
    updates = [first for first, _ in students if first is not None]
    spread = statistics.stdev(updates) / statistics.fmean(updates) if len(updates) > 1 else None
    return dict(n=len(students), median=statistics.median(updates) if updates else None, variation=spread,
                never=1 - len(updates) / len(students) if students else None,
                back=sum(fell for _, fell in students) / len(updates) if updates else None)


# ---- tables ------------------------------------------------------------------------------------------------

def number(value: float | None, places: int = 3, width: int = 6) -> str:
    """A number of a table; a dash for what is not known."""
    unknown = value is None or not np.isfinite(value)
    return f"{'-' if unknown else format(value, f'.{places}f'):>{width}}"


def estimate(line: dict) -> str:
    """A contrast's difference, interval and p."""
    if line["difference"] is None:
        return f"{'-':>10}  {'-':^17}  {'-':>6}"
    span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"]) if line["interval"] else "-"
    return f"{line['difference']:+10.3f}  {span:^17}  {line['p']:6.4f}"


def name_of(line: dict) -> str:
    """A contrast's name in a column."""
    return f"{line['one'] + ' - ' + line['other']:31}"


def table(result: dict, brief: bool = False) -> str:
    """The result for the terminal; brief: without the contrasts of all other measures."""
    names = {name: max(6, len(name)) for name in result["means"]}              # -> width
    plan, seeds = result["plan"], ", ".join(map(str, result["seeds"]))
    out = [f"commit {', '.join(plan['commit'])}; seeds {seeds}; matched: {plan['budget']}, within "
           f"{TOLERANCE:.0%}; goal {result['goal']:g}", "",
           f"{'arm':21} steps" + "".join(f" {name:>{width}}" for name, width in names.items())]
    for arm, steps in result["steps"].items():
        cells = [number(result["means"][name][arm], 1 if name in COUNTS else 3, width)
                 for name, width in names.items()]
        out.append(f"{arm:21} {steps:5.0f} {' '.join(cells)}")
    out += ["", f"{'was it tested?':31} other pairings  births with a parent better than the victim"]
    for line in result["contrasts"]:
        (differ, n), births = line["check"]["pairings"], line["check"]["births"]
        helped = ", ".join(f"{better} of {n_births}" for better, n_births in births)
        out.append(f"{name_of(line)} {differ:5} of {n:5}  {helped}")
    out += ["", f"{result['measure'] + ', corrected (Holm)':31} difference  95% interval            p  "
                "p (Holm)  seeds  verdict"]
    for line in result["contrasts"]:
        out.append(f"{name_of(line)} {estimate(line)}  {line['p_holm']:8.4f}  {len(line['seeds']):5}  "
                   f"{line['verdict']}")
    out += ["", f"{'discovery of thinking':21} learners  median updates  variation  never  falls back"]
    for arm, line in result["discovery"].items():
        cells = [number(line["median"], 1, 14), number(line["variation"], 2, 9),
                 number(line["never"], 2, 5), number(line["back"], 2, 10)]
        out.append(f"{arm:21} {line['n']:8}  {'  '.join(cells)}")
    for measure, lines in ({} if brief else result["described"]).items():
        out += ["", f"{measure}: {MEASURES.get(measure, 'of this type alone')}; not corrected"]
        out += [f"{name_of(line)} {estimate(line)}" for line in lines]
    return "\n".join(out)


def ground_by_arm(results: dict[str, dict]) -> str:
    """Grounds against arms in Markdown: each arm minus the reference, and how widely discovery spreads there.
    """
    arms = list(dict.fromkeys(line["other"] for result in results.values() for line in result["contrasts"]))
    out = [f"| ground | variation | {' | '.join(arms)} |", "|---" * (len(arms) + 2) + "|"]
    for ground, result in results.items():
        cells = dict.fromkeys(arms, "")
        for line in result["contrasts"]:
            verdict = line["verdict"].partition(",")[0]
            word = {"ahead": "behind", "behind": "ahead"}.get(verdict, verdict)      # the arm's own
            cells[line["other"]] = f"{word} {0 - line['difference']:+.3f}"
            if line["interval"]:
                low, high = (-end for end in line["interval"][::-1])
                cells[line["other"]] += f" ({low:+.3f} .. {high:+.3f})"
        variation = number(result["discovery"][result["reference"]]["variation"], 2, 1)
        out.append(f"| {ground} | {variation} | {' | '.join(cells.values())} |")
    return "\n".join(out)
