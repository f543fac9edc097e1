"""The table of an ablation: contrasts paired by seed, by the plans in docs/ablations.md, and their verdicts.

Primary is the area under the students' greedy accuracy on the anchors; the contrasts of a plan are corrected
for each other (Holm). All other measures and contrasts are described, with intervals and p that are not
corrected. Items are those of eval.population.heldout that the base does not know.
"""
from itertools import combinations

import numpy as np

from eval.population import measures, records
from eval.population.arms import FULL, PLANNED, SECOND_PLAN, SECONDARY, runs_of
from eval.population.children import children, children_table, estimate
from eval.population.measures import COUNTS, MEASURES
from eval.population.records import Experiment, Record
from eval.stats import holm, interval_of, seeds_needed, sign_flip
from eval.summary import BASE
from operators import OPERATORS
from report.forest import forest

TOLERANCE = 0.05                    # of a budget
FEWEST = 8                          # complete seeds, under which nothing is concluded
LEVEL = 0.05                        # of p, after Holm where contrasts are corrected
COLUMNS = dict(discovered=10, area=5, end=5, weakest=7, pass16=7, input_think=17, statements=10,
               base_solve=11)       # measures that an arm's row shows -> their width
BEARING = (FULL, "mutation", "crossover", "copy")          # arms whose children are looked at
# claim -> contrasts (arm, measure, minus arm, its measure) with the sign that would bear it out
CLAIMS = {"the single agent drifts to easy tasks": (("full", "statements", "single", "statements", 1),
                                                    ("full", "base_solve", "single", "base_solve", -1),
                                                    ("full", "statements", "single-long", "statements", 1),
                                                    ("full", "base_solve", "single-long", "base_solve", -1)),
          "populations write more complex tasks": (("full", "mccabe", "single", "mccabe", 1),
                                                   ("full", "depth", "single", "depth", 1),
                                                   ("full", "mccabe", "single-long", "mccabe", 1),
                                                   ("full", "depth", "single-long", "depth", 1)),
          "the weakest member beats the single agent": (("full", "weakest", "single", "end", 1),),
          "selection spreads a discovery sooner": (("full", "spread", "no-evolution", "spread", -1),
                                                   ("full", "half", "no-evolution", "half", -1))}
# title of a table of contrasts that are corrected for each other -> where `conclude` keeps them
CORRECTED = {"primary: area": "primary", "second plan: area": "second", "one arm under two names": "null"}
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
                due = due_of(experiment, arm, seed)
                if not abs(done / due - 1) <= TOLERANCE:
                    wrong[run.name] = f"{run.name} spent {done:,.0f} where {due:,.0f} are due"
    return wrong


def shares_spent(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Arm -> runs a seed, their mean steps, and what they spent of the budget's unit as a share of full's."""
    unit, lines = experiment.plan["budget"], {}
    for arm, what in experiment.arms.items():
        steps, shares = [], []
        for seed in experiment.plan["seeds"]:
            if runs := runs_there(experiment, arm, seed):
                full = measures.spent(experiment.runs[f"{FULL}-s{seed}"].metrics)[-1][unit]
                shares.append(sum(measures.spent(run.metrics)[-1][unit] for run in runs) / full)
                steps += [len(run.metrics) for run in runs]
        if steps:
            lines[arm] = dict(runs=what.runs, steps=float(np.mean(steps)), share=float(np.mean(shares)))
    return lines


def half_way(experiment: Experiment) -> tuple[float, float]:
    """The base's accuracy on the anchors, and the middle between it and the mean end of full over seeds."""
    fulls = [run for name, run in experiment.runs.items() if name.rpartition("-s")[0] == FULL]
    base = float(np.mean([measures.anchors_at_the_end(run)[BASE] for run in fulls]))
    return base, (base + float(np.mean([measures.final_accuracy(run) for run in fulls]))) / 2


def passes_of_base(experiment: Experiment) -> float | None:
    """The frozen base's pass@16 on the test split's output tasks; None where no run was asked for it."""
    folder = records.folder("pass")
    asked = [run.evaluations[folder] for run in experiment.runs.values() if folder in run.evaluations]
    return float(measures.passes_mean(asked[:1], of_base=True).mean()) if asked else None


# ---- contrasts ---------------------------------------------------------------------------------------------

def contrast(values: Values, seeds: list[int], one: str, measure: str, other: str, its: str,
             effect: float, level: float = LEVEL) -> dict:
    """One arm's measure minus another's (or its own other measure), paired by seed.

    Seeds that lack either are left out; difference is None without a seed. needed: the seeds with which a
    difference of `effect` would be found at p < level with power .8, of shares alone; it takes two seeds.
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
    if len(by_seed) > 1 and measure not in COUNTS:
        line["needed"] = seeds_needed(effect, float(by_seed.std(ddof=1)), level=level)
    return line | dict(difference=float(by_seed.mean()), by_seed=by_seed.tolist(), interval=interval_of(x),
                       p=sign_flip(by_seed))


def verdict(line: dict, effect: float) -> str:
    """What the plan says of a corrected contrast: seen, not seen, or cannot tell."""
    if len(line["seeds"]) < FEWEST:
        return "cannot tell"
    low, high = line["interval"]
    small = -effect <= low and high <= effect
    if line["p_holm"] < LEVEL:
        return f"seen, {'+' if line['difference'] > 0 else '-'}{', small' if small else ''}"
    return "not seen" if small else "cannot tell"


def borne_out(line: dict, sign: int, effect: float) -> str:
    """What a contrast says of a claim that gives it this sign; not corrected for the number of claims."""
    said = verdict(line | dict(p_holm=line["p"]), effect)
    if said.startswith("seen"):
        return "borne out" if line["difference"] * sign > 0 else "the other way"
    return "cannot tell" if line["measure"] in COUNTS else said


def areas_contrasted(values: Values, seeds: list[int], pairs: list[tuple[str, str]],
                     effect: float) -> list[dict]:
    """Contrasts of areas with their p after Holm, among themselves, and their verdicts."""
    level = LEVEL / max(1, len(pairs))
    lines = [contrast(values, seeds, one, "area", other, "area", effect, level) for one, other in pairs]
    for line, adjusted in zip(lines, holm([line["p"] for line in lines])):
        line["p_holm"] = adjusted
        line["verdict"] = verdict(line, effect)
    return lines


def null_contrasts(experiment: Experiment, effect: float) -> list[dict]:
    """Areas of an arm's independent runs (`singles` has four a seed), each under a name of its own, against
    each other: whatever is seen here is an error."""
    seeds, unit, values, pairs = experiment.plan["seeds"], experiment.plan["budget"], {}, []
    several = {arm: what.runs for arm, what in experiment.arms.items() if what.runs > 1}
    for arm, n_runs in several.items():
        for seed in seeds:
            for number, run in enumerate(runs_there(experiment, arm, seed), 1):
                points = measures.curve_of(run, unit, due_of(experiment, arm, seed))
                values[f"{arm} {number}", seed] = dict(area=np.array([measures.area(points)]))
        pairs += combinations([f"{arm} {number}" for number in range(1, n_runs + 1)], 2)
    return areas_contrasted(values, seeds, pairs, effect)


def described(values: Values, arms: list[str], seeds: list[int], effect: float) -> dict[str, dict[str, dict]]:
    """Measure -> arm -> its mean and seeds and, but for full, the contrast with full over them."""
    found = {measure: {} for measure in MEASURES}
    for measure, lines in found.items():
        for arm in arms:
            line = contrast(values, seeds, arm, measure, FULL, measure, effect)
            there = [values[arm, seed][measure].mean() for seed in line["seeds"]]
            lines[arm] = line | dict(mean=float(np.mean(there)) if there else None)
    return found


def claimed(values: Values, arms: list[str], seeds: list[int], effect: float) -> dict[str, list[dict]]:
    """CLAIMS, each with its contrasts and what they answer."""
    found = {}
    for claim, asked in CLAIMS.items():
        found[claim] = []
        for one, measure, other, its, sign in asked:
            if {one, other} <= set(arms):
                line = contrast(values, seeds, one, measure, other, its, effect)
                found[claim].append(line | dict(answer=borne_out(line, sign, effect)))
    return found


def children_of(experiment: Experiment, half: float, born_after: int) -> list[dict]:
    """Children of BEARING arms born after so many steps, by whether their parents were past half way, and by
    operator."""
    logs = []
    for name, run in experiment.runs.items():
        arm, _, seed = name.rpartition("-s")
        if arm in BEARING:
            logs.append((seed, run.metrics, run.genealogy))

    def by_parents(course: dict) -> str:
        if course["before"] is None or course["born"] < born_after:
            return ""
        return "of parents past half way" if course["before"] >= half else "of parents before it"

    def by_operator(course: dict) -> str:
        return by_parents(course) and course["operator"]
    return children(logs, by_parents) + children(logs, by_operator)


def conclude(experiment: Experiment, effect: float, born_after: int = 0) -> dict:
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
    second = [(FULL, arm) for arm in SECOND_PLAN if planned and arm in arms]
    secondary = [pair for pair in SECONDARY if planned and set(pair) <= set(arms)]
    missing = {}
    for arm in arms:
        if lost := [seed for seed in seeds if (arm, seed) not in values]:
            missing[arm] = lost
    return dict(plan=experiment.plan, commits=sorted({run.env["commit"] for run in experiment.runs.values()}),
                effect=effect, complete=complete, missing=missing, base=base, half=half,
                base_passes=passes_of_base(experiment),
                spent=shares_spent(experiment), measures=described(values, arms, seeds, effect),
                primary=areas_contrasted(values, complete, [(FULL, arm) for arm in others], effect),
                second=areas_contrasted(values, seeds, second, effect),
                null=null_contrasts(experiment, effect),
                secondary=[contrast(values, seeds, one, "area", other, "area", effect)
                           for one, other in secondary],
                claims=claimed(values, arms, seeds, effect),
                children=children_of(experiment, half, born_after))


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


def arms_table(result: dict) -> list[str]:
    """An arm a row: what it took, and the means of some measures over its seeds."""
    unit = result["plan"]["budget"]
    out = [f"matched: {unit}, within {TOLERANCE:.0%} of what is due; `of full`: all runs' share of full's.",
           "discovered: updates until every student thinks; statements, base solves: of the teachers' last "
           "tasks.",
           f"{'arm':21} seeds  runs  steps  of full  discovered   area    end  weakest  pass@16  "
           "input tasks think  statements  base solves"]
    for arm, x in result["spent"].items():
        told = []
        for measure, width in COLUMNS.items():
            mean = result["measures"][measure][arm]["mean"]
            number = "-" if mean is None else f"{mean:.{1 if measure in COUNTS else 3}f}"
            told.append(f"{number:>{width}}")
        n_seeds = len(result["measures"]["area"][arm]["seeds"])
        out.append(f"{arm:21} {n_seeds:5}  {x['runs']:4}  {x['steps']:5.0f}  {x['share']:7.2f}  "
                   + "  ".join(told))
    return out


def measure_tables(result: dict) -> list[str]:
    """Every arm against full by every measure, over the seeds that both have."""
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
            out.append(f"{arm:21} {len(line['seeds']):5}  {mean:>6}{against}".rstrip())
    return out


def table(result: dict, whole: bool = True) -> str:
    """The result for the terminal; whole: also every arm against full by every measure, and operators."""
    effect = result["effect"]
    out = [*status(result), "", *arms_table(result)]
    for title, name in CORRECTED.items():
        if result[name]:
            out += ["", heads(title, effect, 31) + "  p (Holm)  verdict"]
        for line in result[name]:
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
    born = [line for line in result["children"] if whole or line["group"] not in OPERATORS]
    if born:
        out += ["", children_table(born)]
    if whole:
        passes = f", its pass@16 {result['base_passes']:.3f}" if result["base_passes"] is not None else ""
        out += ["", f"described, not corrected; frozen base's accuracy on the anchors {result['base']:.3f}, "
                    f"half way {result['half']:.3f}{passes}", *measure_tables(result)]
    return "\n".join(out)


def picture(result: dict) -> str:
    """The contrasts of areas as a forest plot in SVG."""
    drawn = {"primary": result["primary"], "second plan": result["second"],
             "secondary": [line | dict(verdict="not corrected" if line["seeds"] else "no seed yet")
                           for line in result["secondary"]]}
    groups = [(name, [line | dict(name=name_of(line)) for line in lines])
              for name, lines in drawn.items() if lines]
    axis = f"difference of areas, 95% interval; shaded: up to {result['effect']:g}"
    foot = f"{'INTERIM: ' if len(result['complete']) < FEWEST else ''}{status(result)[0]}"
    return forest(MEASURES["area"].capitalize(), groups, axis, result["effect"], foot)
