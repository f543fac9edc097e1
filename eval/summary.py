"""From answers to tables: shares of right answers, means of a population, differences to the base, pass@k.

Rows are those of answers.jsonl: dicts with bench, id, member, sample, correct and tokens. A question counts
once, as the mean of its samples. correct is None where the sandbox failed: see `comparable`.
"""
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter

import numpy as np

from eval.stats import bootstrap, covered, pass_at_k
from measure.shares import wilson

item_of = itemgetter("bench", "id")
BASE, MEAN = "base", "mean"                       # the bare base among the members, and the members' mean


def comparable(rows: list[dict]) -> list[dict]:
    """Without the questions on which the sandbox failed for anybody: all that are left have answered them."""
    failed = {item_of(row) for row in rows if row["correct"] is None}
    return [row for row in rows if item_of(row) not in failed]


def shares(
    rows: list[dict],
    value: Callable = np.mean,          # of an item: value(whether each of its samples is right)
) -> dict[str, dict[str, dict]]:
    """Benchmark -> member -> item -> its value, by default the share of right samples."""
    out = {}
    for row in rows:
        members = out.setdefault(row["bench"], {})
        items = members.setdefault(row["member"], {})
        items.setdefault(row["id"], []).append(row["correct"])
    for members in out.values():
        for items in members.values():
            for name, right in items.items():
                items[name] = value(right)
    return out


def tally(right: list[bool]) -> tuple[int, int]:
    """How many samples of an item there are, and how many of them are right: a value for `shares`."""
    return len(right), sum(right)


def picked(column: dict, names: Iterable) -> list:
    """The values of some names."""
    return [column[name] for name in names]


def asked_of_all(columns: Iterable[dict]) -> list[str]:
    """The items that every column has. columns: item -> anything, of each member."""
    return sorted(set.intersection(*map(set, columns)))


def fewest_samples(tallies: dict[str, dict]) -> int:
    """The number of samples that every member gave to every item. tallies: member -> item -> `tally`."""
    fewest, _ = min(itertools.chain(*map(dict.values, tallies.values())))
    return fewest


def n_right(items: dict[str, tuple[int, int]]) -> int:
    """How many answers of a member are right. items: item -> `tally`."""
    return sum(map(itemgetter(1), items.values()))


def members_in(share: Iterable[str]) -> list[str]:
    """The names of the members, without the base."""
    return [name for name in share if name != BASE]


def groups(names: list[str]) -> dict[str, list[str]]:
    """The members of each mean: of all, and of teachers and students where names say their roles."""
    out = {}
    if len(names) > 1:
        out[MEAN] = names
    by_role = {"T": [], "S": []}
    for name in names:
        initial = name.rpartition("/")[2][0]                    # of T0, or of NAME/step_80/T0
        by_role.setdefault(initial, []).append(name)
    if len(by_role) == 2 and by_role["T"] and by_role["S"]:
        for role, members in by_role.items():
            out[f"{MEAN} {role}"] = members
    return out


def with_means(share: dict[str, dict]) -> dict[str, dict]:
    """The base first, then the members, then their means on the items that all have (see `groups`)."""
    out = dict(share)
    if BASE in share:
        out = {BASE: share[BASE]} | share
    for mean, names in groups(members_in(share)).items():
        out[mean] = {}
        first, *others = picked(share, names)
        for i, value in first.items():
            if all(i in other for other in others):
                values = [value, *map(itemgetter(i), others)]
                out[mean][i] = np.mean(values, axis=0)
    return out


def summarise(rows: list[dict], max_new: int) -> list[dict]:
    """One dict per benchmark and member, and for the members' means: what `table` shows. Share of right
    answers with Wilson interval, difference to the base with paired bootstrap interval, mean tokens of an
    answer, share cut off at max_new tokens. Where verdicts tell it, also the share of malformed answers: what
    rises early in a run is often the form alone."""
    given = defaultdict(list)
    for row in rows:
        given[row["bench"], row["member"]].append(row)
    out = []
    for bench, share in shares(rows).items():
        means = groups(members_in(share))
        for name, items in with_means(share).items():
            right = np.array(list(items.values()))
            line = {
                "bench": bench,
                "member": name,
                "n": len(right),
                "accuracy": float(right.mean()),
                "interval": wilson(float(right.sum()), len(right)),
            }
            if name != BASE and BASE in share:
                gain = right - np.array(picked(share[BASE], items))
                line["minus_base"] = float(gain.mean())
                line["minus_base_interval"] = bootstrap(gain).tolist()
            answers = []
            for member in means.get(name, [name]):
                answers += given[bench, member]
            spent = np.array([row["tokens"] for row in answers])
            line["tokens"] = float(spent.mean())
            line["cut"] = float((spent >= max_new).mean())
            if "verdict" in answers[0]:
                verdicts = [row["verdict"] for row in answers]
                line["malformed"] = verdicts.count("malformed") / len(verdicts)
            out.append(line)
    return out


def pass_curves(
    tallies: dict[str, dict],           # member -> item -> `tally`
    ks: list[int],
) -> dict[str, dict[str, list[float]]]:
    """Member -> item -> pass@k for each k."""
    curves = {}
    for member, items in tallies.items():
        curves[member] = {}
        for i, (n, right) in items.items():
            curves[member][i] = [pass_at_k(n, right, k) for k in ks]
    return curves


def passes(rows: list[dict]) -> list[dict]:
    """One dict per benchmark and member with pass@k for k = 1, 2, 4, ... up to the samples of a question.
    pass_at (len(k),) and, but for the base, the paired differences to it; with bootstrap intervals over the
    questions that all have answered. A mean is that of the members' pass@k."""
    out = []
    for bench, tallies in shares(rows, tally).items():
        ks = [2 ** i for i in range(fewest_samples(tallies).bit_length())]
        ids = asked_of_all(tallies.values())
        curves = with_means(pass_curves(tallies, ks))
        columns = []
        for items in curves.values():
            columns.append(picked(items, ids))
        values = np.stack(columns, axis=1)                                      # (items, members, k)
        gains = values - values[:, :1]                                          # the first is the base
        # In one draw of the bootstrap all members answer the same questions.
        both = np.stack((values, gains), axis=1)
        mean, gain = both.mean(0).tolist()
        interval, gain_interval = bootstrap(both).tolist()
        for m, name in enumerate(curves):
            line = {
                "bench": bench,
                "member": name,
                "n": len(ids),
                "k": ks,
                "pass_at": mean[m],
                "intervals": interval[m],
            }
            if name != BASE and BASE in tallies:
                line["minus_base"] = gain[m]
                line["minus_base_intervals"] = gain_interval[m]
            out.append(line)
    return out


def coverage(rows: list[dict]) -> list[dict]:
    """One dict per benchmark with several members (of those with roles the students): the chance that one of
    k answers is right, one from each of the k members; all from one of them, mean over who it is; all from
    the member that is right most often. With bootstrap intervals of differences; [] with fewer samples."""
    out = []
    for bench, tallies in shares(rows, tally).items():
        names = members_in(tallies)
        names = groups(names).get(f"{MEAN} S", names)
        k = len(names)
        if not 2 <= k <= fewest_samples(tallies):
            continue
        together, alone = [], []
        members = picked(tallies, names)
        for i in asked_of_all(members):
            each = list(map(itemgetter(i), members))
            together.append(covered(each, k))
            alone.append([covered([own], k) for own in each])
        together = np.array(together)                                           # (items,)
        alone = np.array(alone)                                                 # (items, k)
        one = alone.mean(1)
        best = max(names, key=lambda name: n_right(tallies[name]))
        of_best = alone[:, names.index(best)]
        out.append({
            "bench": bench,
            "n": len(together),
            "k": k,
            "members": float(together.mean()),
            "one": float(one.mean()),
            "minus_one": bootstrap(together - one).tolist(),
            "best": best,
            "best_one": float(of_best.mean()),
            "minus_best": bootstrap(together - of_best).tolist(),
        })
    return out


# ---- tables ------------------------------------------------------------------------------------------------

def cell(name: str, value: object) -> str:
    """A value as text: an interval as "low .. high", what is less the base with its sign."""
    if isinstance(value, (tuple, list)):
        low, high = value
        return f"{cell(name, low)} .. {cell(name, high)}"
    if not isinstance(value, float):
        return str(value)
    if name.startswith("minus"):
        return f"{value:+.3f}"
    return f"{value:.3f}"


def table(lines: list[dict]) -> str:
    """What `summarise` gives, a column for every key."""
    columns = []
    for name in dict.fromkeys(itertools.chain(*lines)):
        column = [name.replace("_", " ")]
        for line in lines:
            column.append(cell(name, line.get(name, "")))
        width = max(map(len, column))
        columns.append([text.ljust(width) for text in column])
    rows = map("  ".join, zip(*columns))
    return "\n".join(map(str.rstrip, rows))


def pass_table(lines: list[dict]) -> str:
    """What `passes` gives, and the difference to the base at the largest k with its interval."""
    rows = []
    for line in lines:
        row = dict(bench=line["bench"], member=line["member"], n=line["n"])
        for k, share in zip(line["k"], line["pass_at"]):
            row[f"@{k}"] = share
        if "minus_base" in line:
            row[f"minus base @{k}"] = line["minus_base"][-1]
            row["minus base interval"] = line["minus_base_intervals"][-1]
        rows.append(row)
    return table(rows)
