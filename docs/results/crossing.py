"""The table of docs/crossing.md, from the answers in crossing.jsonl: python docs/results/crossing.py

A line of crossing.jsonl is a member (base, parent or child) with its answers to 120 held-out tasks of each
type, a bit a task in hexadecimal. The first 20 are of one statement, whose programs the base may know: they
are left out, as in eval.population.heldout. Commit 7690351 prints more of it, and draws it.
"""
import argparse
import json
from pathlib import Path

import numpy as np

TYPES = ("code_o", "code_i", "math")
SEEN = 20                                       # tasks of one statement
BOTH = {"code_o": 0.6, "code_i": 0.55}          # a child does both: the plan's bounds
NAMES = {"code_o": "*forwards parents*", "code_i": "*backwards parents*", "mean": "`mean` (.5 of each)",
         "add": "`add` (.7 of each)"}


def load():
    """All lines, answers as accuracies by type."""
    rows = [json.loads(line) for line in Path(__file__).with_name("crossing.jsonl").read_text().splitlines()]
    for row in rows:
        for kind in TYPES:
            if kind in row:
                bits = f"{int(row[kind], 16):0{4 * len(row[kind])}b}"[SEEN:]
                row[kind] = bits.count("1") / len(bits)
    return rows


def short(x):
    """.73, or 1.04."""
    return f"{x:.2f}".replace("0.", ".", 1)


def estimate(members, kind):
    """Mean accuracy with its 95% bootstrap interval: seeds are drawn, then members within each."""
    rng, seeds = np.random.default_rng(0), sorted({m["seed"] for m in members})
    groups = np.array([[m[kind] for m in members if m["seed"] == seed] for seed in seeds])       # (seeds, n)
    drawn = rng.integers(len(groups), size=(10_000, len(groups), 1))
    within = rng.integers(groups.shape[1], size=(10_000, *groups.shape))
    low, high = np.percentile(groups[drawn, within].mean((1, 2)), [2.5, 97.5])
    return f"{short(groups.mean())} ({short(low)} .. {short(high)})"


def groups_of(rows, what, age):
    """Operator (or the type that parents learned) -> its members."""
    groups = {}
    for r in rows:
        if r["age"] == age and r["what"] in (what, "parent"):
            groups.setdefault(r.get("operator") or r["member"].partition("-")[0], []).append(r)
    return groups


def does_both(members):
    """How many of the members do."""
    n = sum(all(m[kind] >= bound for kind, bound in BOTH.items()) for m in members)
    return f"{n} of {len(members)}"


def page(rows):
    """The lines of the page's table: parents, then the operators of two parents."""
    young, old = (groups_of(rows, "specialists", age) for age in (24, 60))
    lines = []
    for name in dict.fromkeys(["code_o", "code_i", *groups_of(rows, "twins", 24)]):
        cells, norm = [estimate(young[name], kind) for kind in TYPES], ""
        if name not in TYPES:
            norm = short(np.mean([m["ratio"] for m in young[name]])) + " "
        for i in range(0 if name in TYPES else 2, 3):
            cells[i] = cells[i].partition(" ")[0]               # without the interval
        both = NAMES.get(name, f"`{name}`"), does_both(young[name])
        lines.append(f"| {' | '.join([*both, *cells, does_both(old[name])])} | {norm}|")
    return [line for line in lines if "math" not in line]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(*page(load()), sep="\n")
