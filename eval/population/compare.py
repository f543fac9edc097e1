"""Arms of an experiment compared: each against `full` with the same seeds, on the same held-out items. Used by eval.population.ablation.

Items are those of eval.population.heldout that the base does not know. Whoever is chosen is chosen on the validation split; what is told of
it is of the test split, which shares no program with the other.
"""
import json
from pathlib import Path

import numpy as np

from eval.population import heldout
from eval.population.arms import FULL
from eval.stats import hierarchical_bootstrap, holm, seeds_needed, sign_flip
from eval.summary import BASE, shares

TOLERANCE = 0.05                                  # of a budget
MEASURES = {"mean": "the mean of its solvers", "chosen": "the solver chosen on validation",
            "weakest": "the solver that is last on validation"}


def folder(split: str) -> str:
    """Where a run's answers to a split are kept."""
    return f"heldout-{split}"


def solvers(results: Path) -> dict[str, dict[str, float]]:
    """Solver -> item -> share right, in one run's answers to a split, and the base's. Items the base may know are left out."""
    rows = [json.loads(line) for line in (results / "answers.jsonl").read_bytes().splitlines()]
    return shares([row for row in heldout.counted(rows) if row["bench"] == "all"])["all"]


def measured(runs: list[Path]) -> dict[str, np.ndarray]:
    """The test items' shares (n,) under each of MEASURES, and the base's, of the runs that make up one arm and seed."""
    found = {}
    for split in heldout.SPLITS:
        found[split] = {(run.name, who): items for run in runs for who, items in solvers(run / folder(split)).items()}
    ids = sorted(next(iter(found["test"].values())))
    test = {who: np.array([items[i] for i in ids]) for who, items in found["test"].items()}
    names = [who for who in test if who[1] != BASE]
    validation = {who: float(np.mean(list(found["validation"][who].values()))) for who in names}
    return dict(mean=np.mean([test[who] for who in names], axis=0), chosen=test[max(names, key=validation.get)],
                weakest=test[min(names, key=validation.get)], base=next(x for who, x in test.items() if who[1] == BASE))


def compared(arm: np.ndarray, full: np.ndarray, effect: float) -> dict:
    """Difference of an arm to full, both (S, n) by seed and item: mean, interval over seeds and items, exact p over seeds, and
    how many seeds would show `effect` with power 0.8 (None for one seed, which has no spread)."""
    seeds = (arm - full).mean(1)
    needed = seeds_needed(effect, float(seeds.std(ddof=1))) if len(seeds) > 1 else None
    return dict(difference=float(seeds.mean()), by_seed=seeds.tolist(), interval=hierarchical_bootstrap(arm - full),
                p=sign_flip(seeds), seeds_needed=needed)


def conclude(results: dict[str, list[dict[str, np.ndarray]]], budgets: dict[str, dict], effect: float) -> dict:
    """Everything that the table says. results: arm -> per seed what `measured` gives; budgets: arm -> what it spent."""
    stacked = {arm: {m: np.stack([x[m] for x in some]) for m in (*MEASURES, BASE)} for arm, some in results.items()}
    full = stacked[FULL]
    out = dict(base=float(full[BASE].mean()), n_items=full["mean"].shape[1], effect=effect, arms={})
    for arm, x in stacked.items():
        versus = lambda m: compared(x[m], full[m], effect) if arm != FULL else {}
        out["arms"][arm] = budgets[arm] | {m: dict(accuracy=float(x[m].mean()), **versus(m)) for m in MEASURES}
    for m in MEASURES:
        others = [line[m] for arm, line in out["arms"].items() if arm != FULL]
        for line, adjusted in zip(others, holm([line["p"] for line in others])):
            line["p_holm"] = adjusted
    return out


def table(result: dict) -> str:
    """The paired table for the terminal."""
    n, fewest, effect = len(result["seeds"]), 2 / 2 ** len(result["seeds"]), f"seeds for {result['effect']:g}"
    out = [f"test split: {result['n_items']} items, base {result['base']:.3f}; {n} seed(s): p cannot fall under {fewest:.2g}" +
           (", so that no difference below can be called shown" if fewest > 0.05 else ""),
           f"matched: {result['budget']}, within {TOLERANCE:.0%} of what is due; spent, as a share of full's:",
           f"{'arm':21} {'runs':>4} {'steps':>6} {'tokens':>7} {'rows':>6} {'proposals':>9} {'trained':>7} {'hours':>6}"]
    for arm, x in result["arms"].items():
        out.append(f"{arm:21} {x['runs']:4} {x['steps']:6.0f} {x['tokens']:7.2f} {x['rows']:6.2f} {x['proposals']:9.2f} "
                   f"{x['trained']:7.2f} {x['hours']:6.2f}")
    for m, words in MEASURES.items():
        out.append(f"\n{m}: {words}\n{'arm':21}  right  minus full  95% interval           p  p (Holm)  {effect}")
        for arm, line in result["arms"].items():
            x, text = line[m], f"{arm:21}  {line[m]['accuracy']:.3f}"
            if arm != FULL:
                low, high = x["interval"]
                text += (f"  {x['difference']:+10.3f}  {low:+.3f} .. {high:+.3f}  {x['p']:6.3f}  {x['p_holm']:8.3f}  "
                         f"{x['seeds_needed'] or '-':>{len(effect)}}")
            out.append(text)
    return "\n".join(out)
