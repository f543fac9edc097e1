"""The table of an ablation: contrasts paired by seed, by the plan in docs/ablations.md, and their verdicts.

Primary is the area under the students' greedy accuracy on the anchors; its contrasts are corrected for each
other (Holm). All other measures and contrasts are described, with intervals and p that are not corrected.
Items are those of eval.population.heldout that the base does not know.
"""
from itertools import combinations

import numpy as np

from eval.population import measures
from eval.population.arms import FULL, PLANNED, SECONDARY, runs_of
from eval.population.measures import MEASURES, children, children_table, estimate, interval_of
from eval.population.records import Experiment, Record
from eval.stats import holm, seeds_needed, sign_flip
from eval.summary import BASE
from report.forest import forest

TOLERANCE = 0.05                    # of a budget
FEWEST = 8                          # complete seeds, under which nothing is concluded
LEVEL = 0.05                        # of p after Holm
BEARING = (FULL, "mutation", "crossover", "copy")          # arms whose children are looked at
# claim -> contrasts (arm, measure, minus arm, its measure) with the sign that would bear it out
CLAIMS = {"the single agent drifts to easy tasks": (("full", "statements", "single", "statements", 1),
                                                    ("full", "base_solve", "single", "base_solve", -1),
                                                    ("full", "statements", "single-long", "statements", 1),
                                                    ("full", "base_solve", "single-long", "base_solve", -1)),
          "populations write more complex tasks": (("full", "mccabe", "single", "mccabe", 1),
                                                   ("full", "depth", "single", "depth", 1),
                                                   ("full", "unique", "single", "unique", 1),
                                                   ("full", "mccabe", "single-long", "mccabe", 1),
                                                   ("full", "depth", "single-long", "depth", 1),
                                                   ("full", "unique", "single-long", "unique", 1)),
          "the weakest member beats the single agent": (("full", "weakest", "single", "end", 1),),
          "selection spreads a discovery sooner": (("full", "spread", "no-evolution", "spread", -1),
                                                   ("full", "half", "no-evolution", "half", -1))}
Values = dict[tuple[str, int], dict[str, np.ndarray]]      # (arm, seed) -> what `measures.measured` gives


# ---- what is there, and what it has spent ------------------------------------------------------------------

def runs_there(experiment: Experiment, arm: str, seed: int) -> list[Record]:
    """The runs of an arm with a seed, [] unless all of them are there, and full with this seed too."""
    names = [run.name for run in runs_of(arm, experiment.arms, seed)]
    whole = all(name in experiment.runs for name in (*names, f"{FULL}-s{seed}"))
    return [experiment.runs[name] for name in names] if whole else []


def due_of(experiment: Experiment, arm: str, seed: int) -> float:
    """The budget of each run of an arm: its part of what full spent with this seed."""
    full = measures.spent(experiment.runs[f"{FULL}-s{seed}"].metrics)[-1][experiment.plan["budget"]]
    return experiment.arms[arm].part * full


def unmatched(experiment: Experiment) -> dict[str, str]:
    """The runs that spent more or less than their part of the budget, and how much."""
    wrong = {}
    for arm in experiment.arms:
        for seed in experiment.plan["seeds"]:
            for run in runs_there(experiment, arm, seed):
                done = measures.spent(run.metrics)[-1][experiment.plan["budget"]]
                ratio = done / due_of(experiment, arm, seed)
                if not abs(ratio - 1) <= TOLERANCE:
                    wrong[run.name] = f"{run.name} spent {ratio:.2f} of what is due"
    return wrong


def spent_by_arm(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Arm -> its runs, mean steps, hours in all, and what its runs together spent as shares of full's."""
    lines = {}
    units = (*measures.BUDGETS, "trained")
    for arm, what in experiment.arms.items():
        found = []
        for seed in experiment.plan["seeds"]:
            runs = runs_there(experiment, arm, seed)
            if not runs:
                continue
            full = measures.spent(experiment.runs[f"{FULL}-s{seed}"].metrics)[-1]
            done = [measures.spent(run.metrics)[-1] for run in runs]
            line = {unit: sum(last[unit] for last in done) / full[unit] for unit in units}
            line["hours"] = sum(last["seconds"] for last in done) / 3600
            line["steps"] = np.mean([len(run.metrics) for run in runs])
            found.append(line)
        if found:
            lines[arm] = {name: float(np.mean([line[name] for line in found])) for name in found[0]}
            lines[arm] |= dict(runs=what.runs, hours=sum(line["hours"] for line in found))
    return lines


def half_way(experiment: Experiment) -> tuple[float, float]:
    """The base's accuracy on the anchors, and the middle between it and the mean end of full over seeds."""
    fulls = [run for name, run in experiment.runs.items() if name.rpartition("-s")[0] == FULL]
    base = float(np.mean([measures.anchors_at_the_end(run)[BASE] for run in fulls]))
    return base, (base + float(np.mean([measures.final_accuracy(run) for run in fulls]))) / 2


# ---- contrasts ---------------------------------------------------------------------------------------------

def contrast(values: Values, seeds: list[int], one: str, measure: str, other: str, its: str,
             effect: float) -> dict:
    """One arm's measure minus another's (or its own other measure), paired by seed.

    Seeds that lack either are left out; difference is None without a seed. needed: the seeds with which a
    difference of `effect` would be found with power .8; it and the interval take two seeds.
    """
    told = [seed for seed in seeds if (one, seed) in values and (other, seed) in values]
    pairs = {seed: values[one, seed][measure] - values[other, seed][its] for seed in told}
    pairs = {seed: x for seed, x in pairs.items() if np.isfinite(x).all()}
    line = dict(one=one, measure=measure, other=other, its=its, seeds=list(pairs), difference=None,
                interval=None, p=1.0, needed=None)
    if not pairs:
        return line
    x = np.stack(list(pairs.values()))
    by_seed = x.mean(1)
    if len(by_seed) > 1:
        line["needed"] = seeds_needed(effect, float(by_seed.std(ddof=1)))
    return line | dict(difference=float(by_seed.mean()), by_seed=by_seed.tolist(), interval=interval_of(x),
                       p=sign_flip(by_seed))


def verdict(line: dict, effect: float) -> str:
    """What the plan says of a primary contrast: seen, not seen, or cannot tell."""
    if len(line["seeds"]) < FEWEST:
        return "cannot tell"
    low, high = line["interval"]
    small = -effect <= low and high <= effect
    if line["p_holm"] < LEVEL:
        return f"seen, {'+' if line['difference'] > 0 else '-'}{', small' if small else ''}"
    return "not seen" if small else "cannot tell"


def borne_out(line: dict, sign: int) -> str:
    """What a contrast says of a claim that gives it this sign; not corrected for the number of claims."""
    if len(line["seeds"]) < FEWEST:
        return "cannot tell"
    low, high = (sign * end for end in line["interval"])
    low, high = min(low, high), max(low, high)
    return "borne out" if low > 0 else "the other way" if high < 0 else "cannot tell"


def corrected(lines: list[dict], effect: float) -> list[dict]:
    """Contrasts with their p after Holm, among themselves, and their verdicts."""
    for line, adjusted in zip(lines, holm([line["p"] for line in lines])):
        line["p_holm"] = adjusted
        line["verdict"] = verdict(line, effect)
    return lines


def null_contrasts(experiment: Experiment, effect: float) -> list[dict]:
    """Areas of an arm's independent runs (`singles` has four a seed), each under a name of its own, against
    each other: whatever is seen here is an error."""
    seeds, values, lines = experiment.plan["seeds"], {}, []
    several = {arm: what.runs for arm, what in experiment.arms.items() if what.runs > 1}
    for arm, n_runs in several.items():
        for seed in seeds:
            for number, run in enumerate(runs_there(experiment, arm, seed), 1):
                points = measures.curve(run.metrics, experiment.plan["budget"], due_of(experiment, arm, seed),
                                        measures.final_accuracy(run))
                values[f"{arm} {number}", seed] = dict(area=np.array([measures.area(points)]))
        names = [f"{arm} {number}" for number in range(1, n_runs + 1)]
        for one, other in combinations(names, 2):
            lines.append(contrast(values, seeds, one, "area", other, "area", effect))
    return corrected(lines, effect)


def conclude(experiment: Experiment, effect: float) -> dict:
    """Everything that the table says. Raises ValueError where a budget was missed or no seed is there."""
    if wrong := unmatched(experiment):
        raise ValueError(f"budgets in {experiment.plan['budget']} are not matched, and such arms are not "
                         f"compared: {'; '.join(wrong.values())}. More --steps make a step a smaller part of "
                         "the budget; or leave these arms out")
    arms, seeds = list(experiment.arms), experiment.plan["seeds"]
    if not any(runs_there(experiment, FULL, seed) for seed in seeds):
        raise ValueError("no seed has a finished run of full, which is what the others are compared with")
    base, half = half_way(experiment)
    values = {}
    for arm in arms:
        for seed in seeds:
            if runs := runs_there(experiment, arm, seed):
                due = due_of(experiment, arm, seed)
                values[arm, seed] = measures.measured(runs, experiment.plan["budget"], due, half)
    planned = set(PLANNED) <= set(arms)
    others = PLANNED if planned else [arm for arm in arms if arm != FULL]
    complete = [seed for seed in seeds if all((arm, seed) in values for arm in (FULL, *others))]
    primary = [contrast(values, complete, FULL, "area", arm, "area", effect) for arm in others]
    corrected(primary, effect)
    secondary = []
    for one, other in SECONDARY:
        if planned and {one, other} <= set(arms):
            secondary.append(contrast(values, seeds, one, "area", other, "area", effect))
    described = {}
    for measure in MEASURES:
        described[measure] = {}
        for arm in arms:
            there = [values[arm, seed][measure].mean() for seed in seeds if (arm, seed) in values]
            there = [x for x in there if np.isfinite(x)]
            line = dict(mean=float(np.mean(there)) if there else None, seeds=len(there))
            if arm != FULL:
                line |= contrast(values, seeds, arm, measure, FULL, measure, effect) | dict(seeds=len(there))
            described[measure][arm] = line
    claims = {}
    for claim, lines in CLAIMS.items():
        claims[claim] = []
        for one, measure, other, its, sign in lines:
            if {one, other} <= set(arms):
                line = contrast(values, seeds, one, measure, other, its, effect)
                claims[claim].append(line | dict(answer=borne_out(line, sign)))
    parents = []
    for name, run in experiment.runs.items():
        arm, _, seed = name.rpartition("-s")
        if arm in BEARING:
            parents.append((seed, run.metrics, run.genealogy))
    missing = {}
    for arm in arms:
        if lost := [seed for seed in seeds if (arm, seed) not in values]:
            missing[arm] = lost
    return dict(plan=experiment.plan, commits=sorted({run.env["commit"] for run in experiment.runs.values()}),
                effect=effect, complete=complete, missing=missing, base=base, half=half,
                spent=spent_by_arm(experiment), primary=primary, secondary=secondary, measures=described,
                null=null_contrasts(experiment, effect), claims=claims, children=children(parents))


# ---- the table ---------------------------------------------------------------------------------------------

def name_of(line: dict) -> str:
    """A contrast's name; measures are named where they differ."""
    if line["measure"] == line["its"]:
        return f"{line['one']} - {line['other']}"
    return f"{line['one']} ({line['measure']}) - {line['other']} ({line['its']})"


def cells(line: dict) -> str:
    """A contrast's difference, interval, p and seeds needed."""
    return f"{estimate(line)}  {line['p']:6.4f}  {line['needed'] or '-':>6}"


def heads(name: str, effect: float, width: int) -> str:
    """The line over a table of contrasts."""
    return f"{name:{width}} difference  95% interval            p  for {effect:g}".replace(" 0.", " .")


def status(result: dict) -> list[str]:
    """Which seeds are there, and what follows from those that are not."""
    planned, complete = result["plan"]["seeds"], result["complete"]
    told = ", ".join(map(str, complete)) or "none"
    commits = ", ".join(result["commits"])
    out = [f"{len(complete)} of {len(planned)} seeds are complete ({told}); commit {commits}"]
    if len(complete) < FEWEST:
        out.append(f"AN INTERIM TABLE: with fewer than {FEWEST} complete seeds every primary contrast is "
                   '"cannot tell"')
    alike = {}
    for arm, lost in result["missing"].items():
        alike.setdefault(tuple(lost), []).append(arm)
    for lost, arms in alike.items():
        out.append(f"missing: seeds {', '.join(map(str, lost))} of {', '.join(arms)}")
    return out


def spent_table(result: dict) -> list[str]:
    """What every arm spent, as shares of full's."""
    out = [f"matched: {result['plan']['budget']}, within {TOLERANCE:.0%} of what is due; shares of full's:",
           f"{'arm':21} seeds  runs  steps  tokens   rows  proposals  trained  hours   area"]
    for arm, x in result["spent"].items():
        area = result["measures"]["area"][arm]
        out.append(f"{arm:21} {area['seeds']:5}  {x['runs']:4}  {x['steps']:5.0f}  {x['tokens']:6.2f} "
                   f"{x['rows']:6.2f}  {x['proposals']:9.2f}  {x['trained']:7.2f}  {x['hours']:5.2f}  "
                   f"{area['mean']:.3f}")
    return out


def measure_tables(result: dict) -> list[str]:
    """Every arm against full by every measure."""
    out = []
    for measure, words in MEASURES.items():
        lines = result["measures"][measure]
        if all(line["mean"] is None for line in lines.values()):
            continue
        title = heads(f"{'arm':21} seeds    mean", result["effect"], 34)
        out += ["", words, title.replace("difference", "minus full")]
        for arm, line in lines.items():
            mean = "-" if line["mean"] is None else f"{line['mean']:.3f}"
            against = f"  {cells(line)}" if arm != FULL else ""
            out.append(f"{arm:21} {line['seeds']:5}  {mean:>6}{against}".rstrip())
    return out


def table(result: dict, whole: bool = True) -> str:
    """The result for the terminal; whole: also every arm against full by every measure."""
    effect = result["effect"]
    out = [*status(result), "", *spent_table(result)]
    for title, lines in (("primary: area", result["primary"]), ("one arm under two names", result["null"])):
        if lines:
            out += ["", heads(title, effect, 31) + "  p (Holm)  verdict"]
        for line in lines:
            out.append(f"{name_of(line):31} {cells(line)}  {line['p_holm']:8.4f}  {line['verdict']}")
    if result["secondary"]:
        out += ["", heads("secondary: area, not corrected", effect, 37)]
        out += [f"{name_of(line):37} {cells(line)}" for line in result["secondary"]]
    told = {claim: lines for claim, lines in result["claims"].items() if lines}
    for claim, lines in told.items():
        out += ["", heads(claim, effect, 46)]
        for line in lines:
            measure = f"{line['measure']}: " if line["measure"] == line["its"] else ""
            out.append(f"{measure + name_of(line):46} {cells(line)}  {line['answer']}")
    if result["children"]:
        out += ["", children_table(result["children"])]
    if whole:
        out += ["", f"described, not corrected; frozen base's accuracy on the anchors {result['base']:.3f}, "
                    f"half way {result['half']:.3f}", *measure_tables(result)]
    return "\n".join(out)


def picture(result: dict) -> str:
    """The contrasts of areas as a forest plot in SVG."""
    first = [line | dict(name=name_of(line)) for line in result["primary"]]
    second = [line | dict(name=name_of(line), verdict="not corrected" if line["seeds"] else "no seed yet")
              for line in result["secondary"]]
    groups = [("primary", first)] + ([("secondary", second)] if second else [])
    axis = f"difference of areas, 95% interval; shaded: up to {result['effect']:g}"
    foot = f"{'INTERIM: ' if len(result['complete']) < FEWEST else ''}{status(result)[0]}"
    return forest(MEASURES["area"].capitalize(), groups, axis, result["effect"], foot)
