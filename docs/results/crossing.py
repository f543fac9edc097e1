"""The tables and the picture of docs/crossing.md, from the answers in crossing.jsonl.

    python docs/results/crossing.py                     # the tables
    python docs/results/crossing.py --svg crossing.svg  # the picture

A line of crossing.jsonl is a member (base, parent or child) with its answers to 120 held-out tasks of each
type, a bit a task in hexadecimal. The first 20 are of one statement, whose programs the base may know: they
are left out, as in eval.population.heldout.
"""
import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

TYPES = ("code_o", "code_i", "math")
SEEN = 20                                       # tasks of one statement
BOTH = {"code_o": 0.6, "code_i": 0.55}          # a child does both: the plan's bounds
DRAWS = 10_000


def load(path):
    """Members with their accuracies by type."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for row in rows:
        for kind in TYPES:
            if kind in row:
                bits = f"{int(row[kind], 16):0{4 * len(row[kind])}b}"[SEEN:]
                row[kind] = bits.count("1") / len(bits)
    return rows


def interval(values, seeds, rng):
    """95% bootstrap interval of a mean: seeds are drawn, then values within each."""
    groups = [np.array([v for v, s in zip(values, seeds) if s == seed]) for seed in sorted(set(seeds))]
    means = []
    for _ in range(DRAWS):
        drawn = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
        means.append(np.concatenate([g[rng.integers(len(g), size=len(g))] for g in drawn]).mean())
    return np.percentile(means, [2.5, 97.5])


def kept(child, parent, base, kind):
    """Share of what a parent gained over the base that its child has, of one type."""
    return (child[kind] - base[kind]) / (parent[kind] - base[kind])


def describe(values, seeds, rng):
    """Mean and interval of accuracies."""
    low, high = interval(values, seeds, rng)
    return f"{np.mean(values):.2f} ({low:.2f} .. {high:.2f})"


def table(rows, age, what):
    """A line for each operator: how many do both, accuracy by type, what is kept of each parent."""
    rng = np.random.default_rng(0)
    base = {r["seed"]: r for r in rows if r["what"] == "base" and r["age"] == age}
    parent = {(r["seed"], r["member"]): r for r in rows if r["what"] == "parent" and r["age"] == age}
    groups = defaultdict(list)
    for r in rows:
        if r["what"] == what and r["age"] == age:
            groups[r["operator"]].append(r)
    for name in ("code_o", "code_i", "math"):
        if what == "specialists":
            groups[f"(parents: {name})"] = [r for (_, m), r in parent.items() if m.startswith(name)]
    lines = []
    for name, members in groups.items():
        seeds = [m["seed"] for m in members]
        both = sum(all(m[kind] >= bound for kind, bound in BOTH.items()) for m in members)
        cells = [describe([m[kind] for m in members], seeds, rng) for kind in TYPES]
        of_each = ["", ""]
        if "first" in members[0]:
            for which, place in enumerate(("first", "second")):
                shares = []
                for m in members:
                    kind = m[place].partition("-")[0]
                    shares.append(kept(m, parent[m["seed"], m[place]], base[m["seed"]], kind))
                of_each[which] = f"{np.median(shares):.2f}"
        ratio = f"{np.mean([m['ratio'] for m in members]):.2f}" if "ratio" in members[0] else ""
        row = " | ".join([f"`{name}`", f"{both} of {len(members)}", *cells, *of_each, ratio])
        lines.append((-both, f"| {row} |"))
    return [line for _, line in sorted(lines)]


def picture(rows, age):
    """Accuracy forwards against backwards: parents in two colours, the children of add and mean."""
    def at(r):
        return 60 + 520 * r["code_o"], 560 - 520 * r["code_i"]

    classes = {"forwards": [], "backwards": [], "child": [], "base": []}
    for r in rows:
        if r["age"] != age:
            continue
        if r["what"] == "parent" and not r["member"].startswith("math"):
            classes["forwards" if r["member"].startswith("code_o") else "backwards"].append(r)
        if r["what"] == "specialists" and r["operator"] == "add":
            classes["child"].append(r)
        if r["what"] == "base" and not classes["base"]:
            classes["base"].append(r)
    dots = []
    for name, members in classes.items():
        for r in members:
            x, y = at(r)
            dots.append(f'<circle class="{name}" cx="{x:.0f}" cy="{y:.0f}" r="7"/>')
    ticks = []
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x, y = 60 + 520 * tick, 560 - 520 * tick
        ticks.append(f'<path class="grid" d="M{x:.0f} 40V560M60 {y:.0f}H580"/>'
                     f'<text x="{x:.0f}" y="582" text-anchor="middle">{tick:g}</text>'
                     f'<text x="50" y="{y + 5:.0f}" text-anchor="end">{tick:g}</text>')
    legend = [("forwards", "learnt forwards"), ("backwards", "learnt backwards"),
              ("child", "their children, at birth"), ("base", "frozen base")]
    words = "".join(f'<circle class="{name}" cx="610" cy="{80 + 30 * i}" r="7"/>'
                    f'<text x="626" y="{85 + 30 * i}">{text}</text>' for i, (name, text) in enumerate(legend))
    style = ("text{font:15px sans-serif;fill:#333}.grid{stroke:#ddd;fill:none}.forwards{fill:#1f77b4}"
             ".backwards{fill:#d95f02}.child{fill:#1b9e77}.base{fill:#777}"
             "@media (prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 630"><style>{style}</style>'
            f'{"".join(ticks)}{words}{"".join(dots)}'
            '<text x="320" y="612" text-anchor="middle">programs run forwards: share right</text>'
            '<text transform="translate(16 300) rotate(-90)" text-anchor="middle">'
            'backwards: share right</text></svg>\n')


def main():
    """Print the tables, or write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", default="", help="write the picture here")
    args = parser.parse_args()
    rows = load(Path(__file__).with_name("crossing.jsonl"))
    if args.svg:
        Path(args.svg).write_text(picture(rows, 24))
        return
    for what in ("specialists", "twins"):
        for age in (24, 60):
            print(f"\n{what}, step {age}\n")
            print("| operator | does both | code_o | code_i | math | kept of first | of second | norm |")
            print("|---|---|---|---|---|---|---|---|")
            print("\n".join(table(rows, age, what)))
    for age in (24, 60):
        of = defaultdict(list)
        for r in rows:
            if r["age"] == age and "cosine" in r:
                name = f"math and {r['other']}" if r["what"] == "third" else r["what"]
                of[name].append(r["cosine"])
        print(f"\ncosines, step {age}:")
        for name, values in of.items():
            print(f"  {name} {np.mean(values):.2f} ({min(values):.2f} .. {max(values):.2f})")


if __name__ == "__main__":
    main()
