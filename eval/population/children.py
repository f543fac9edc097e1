"""Children in training: what becomes of the students born in a run, against their parents.

The runs' own probes tell: greedy accuracy on the anchors, before the birth and some steps after it.
"""
from collections.abc import Callable

import numpy as np

from eval.stats import interval_of
from selfplay import mean

WAITS = (1, 10, 20)                 # steps after a birth


def courses(metrics: list[dict], genealogy: list[dict], k: int) -> list[dict]:
    """Per student born: dict(operator, born, before, child, then), accuracies on the anchors, None = unknown.

    born: the step; before: its parents' mean at the last probe before; child: its own at the first probe k
    steps or more after; then: the mean at that same probe of its parents that still live, their own course.
    """
    probes = [(row["step"], row["anchors_greedy"]) for row in metrics if row.get("anchors_greedy")]
    out = []
    for birth in genealogy:
        if birth["victim"]["role"] != "student":
            continue
        names = [parent["name"] for parent in birth["parents"]]
        earlier = [found for step, found in probes if step <= birth["step"]]
        # a probe comes before its step's update: the first of a child is at the step after its birth
        later = [(step - birth["step"], found) for step, found in probes if step > birth["step"]]
        after = next((found for wait, found in later if wait >= k), {})
        before = earlier[-1] if earlier else {}
        out.append(dict(operator=birth["operator"], born=birth["step"], child=after.get(birth["child"]),
                        before=mean(before.get(name) for name in names),
                        then=mean(after.get(name) for name in names)))
    return out


def estimated(by_seed: list[list[dict]], other: str) -> dict:
    """child minus `other`, where both are known: the mean over seeds of each one's mean, and its interval."""
    means = [mean(x["child"] - x[other] for x in some if None not in (x["child"], x[other]))
             for some in by_seed]
    found = np.array([[x] for x in means if x is not None])
    return dict(difference=float(found.mean()) if len(found) else None, interval=interval_of(found))


def children(runs: list[tuple[str, list[dict], list[dict]]], group: Callable[[dict], str],
             waits: tuple[int, ...] = WAITS) -> list[dict]:
    """Per group and steps since the birth, children against their parents; each seed counts once.

    runs: (seed, metrics, genealogy); group: of a course, its name, "" = leave it out. gained: child minus its
    parents before; behind: minus their own course.
    """
    found = {}                                    # (group, wait) -> seed -> courses
    for seed, metrics, genealogy in runs:
        for wait in waits:
            for course in courses(metrics, genealogy, wait):
                if name := group(course):
                    found.setdefault((name, wait), {}).setdefault(seed, []).append(course)
    lines = []
    for (name, wait), by_seed in sorted(found.items()):
        whole = [course for some in by_seed.values() for course in some]
        known = [course for course in whole if None not in (course["child"], course["before"])]
        line = dict(group=name, wait=wait, births=len(whole), recorded=len(known))
        line |= {key: mean(course[key] for course in known) for key in ("before", "child", "then")}
        of_seeds = list(by_seed.values())
        lines.append(line | dict(gained=estimated(of_seeds, "before"), behind=estimated(of_seeds, "then")))
    return lines


def estimate(line: dict) -> str:
    """A difference with its interval; dashes for what is not known."""
    if line["difference"] is None:
        return f"{'-':>10}  {'-':^17}"
    span = "{:+7.3f} ..{:+7.3f}".format(*line["interval"]) if line["interval"] else "-"
    return f"{line['difference']:+10.3f}  {span:^17}"


def children_table(lines: list[dict]) -> str:
    """Children for the terminal. Those that were replaced before a probe have no record."""
    out = ["children some steps after their birth: accuracy on the anchors; their parents' before the birth, "
           "and at the same probe",
           f"{'':24} steps  births  recorded  before  child  parents  child-before  95% interval    "
           "child-parents  95% interval"]
    for x in lines:
        means = ["-" if x[key] is None else f"{x[key]:.2f}" for key in ("before", "child", "then")]
        out.append(f"{x['group']:24} {x['wait']:4}+ {x['births']:7} {x['recorded']:9}  {means[0]:>6}  "
                   f"{means[1]:>5}  {means[2]:>7}  {estimate(x['gained']):>31} "
                   f"{estimate(x['behind']):>31}".rstrip())
    return "\n".join(out)
