"""From answers to tables: shares of right answers, means of a population, differences to the base, pass@k.

Rows are those of answers.jsonl: dicts with bench, id, member, sample, correct and tokens. A question counts
once, as the mean of its samples. correct is None where the sandbox failed: see `comparable`.
"""
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter

import numpy as np

from eval.stats import bootstrap, pass_at_k
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


def marks(rows: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Benchmark -> member -> whether its answers are right (questions, samples). All members have answered
    the same questions equally often."""
    out = shares(rows, list)
    for members in out.values():
        for name, items in members.items():
            members[name] = np.array([items[i] for i in sorted(items)])
    return out


def groups(names: Iterable[str]) -> dict[str, list[str]]:
    """The members of each mean: of all but the base, and of teachers and students where names say their
    roles."""
    members = [name for name in names if name != BASE]
    out = {}
    if len(members) > 1:
        out[MEAN] = members
    by_role = {}
    for name in members:
        initial = name.rpartition("/")[2][0]                    # of T0, or of NAME/step_80/T0
        by_role.setdefault(initial, []).append(name)
    if by_role.keys() == {"T", "S"}:
        for role in "TS":
            out[f"{MEAN} {role}"] = by_role[role]
    return out


def with_means(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The base first, then the members, then their means (see `groups`). columns: what each has of every
    question (questions, ...)."""
    out = dict(columns)
    if BASE in columns:
        out = {BASE: columns[BASE]} | columns
    for mean, names in groups(columns).items():
        own = list(map(columns.get, names))
        out[mean] = np.mean(own, axis=0)
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
    for bench, members in marks(rows).items():
        means = groups(members)
        columns = with_means({name: right.mean(1) for name, right in members.items()})
        for name, share in columns.items():
            line = {
                "bench": bench,
                "member": name,
                "n": len(share),
                "accuracy": share.mean(),
                "interval": wilson(share.sum(), len(share)),
            }
            if name != BASE and BASE in members:
                gain = share - columns[BASE]
                line["minus_base"] = gain.mean()
                line["minus_base_interval"] = bootstrap(gain).tolist()
            answers = []
            for member in means.get(name, [name]):
                answers += given[bench, member]
            spent = np.array([row["tokens"] for row in answers])
            line["tokens"] = spent.mean()
            line["cut"] = (spent >= max_new).mean()
            if "verdict" in answers[0]:
                verdicts = [row["verdict"] for row in answers]
                line["malformed"] = verdicts.count("malformed") / len(verdicts)
            out.append(line)
    return out


def pass_curve(right: np.ndarray, ks: list[int]) -> np.ndarray:
    """pass@k of every question for each k (questions, k). right: as in `marks`."""
    n_right = right.sum(1, keepdims=True)                                       # (questions, 1)
    return np.vectorize(pass_at_k)(right.shape[1], n_right, ks)


def passes(rows: list[dict]) -> list[dict]:
    """One dict per benchmark and member with pass@k for k = 1, 2, 4, ... up to the samples of a question.
    pass_at (len(k),) and, but for the base, the paired differences to it; with bootstrap intervals over the
    questions. A mean is that of the members' pass@k."""
    out = []
    for bench, members in marks(rows).items():
        n, n_samples = next(iter(members.values())).shape
        ks = [2 ** i for i in range(n_samples.bit_length())]
        curves = with_means({name: pass_curve(right, ks) for name, right in members.items()})
        values = np.stack(list(curves.values()), axis=1)                        # (questions, members, k)
        gains = values - values[:, :1]                                          # the first is the base
        # In one draw of the bootstrap all members answer the same questions.
        both = np.stack((values, gains), axis=1)
        mean, gain = both.mean(0).tolist()
        interval, gain_interval = bootstrap(both).tolist()
        for m, name in enumerate(curves):
            line = {
                "bench": bench,
                "member": name,
                "n": n,
                "k": ks,
                "pass_at": mean[m],
                "intervals": interval[m],
            }
            if name != BASE and BASE in members:
                line["minus_base"] = gain[m]
                line["minus_base_intervals"] = gain_interval[m]
            out.append(line)
    return out


def coverage(rows: list[dict]) -> list[dict]:
    """One dict per benchmark with several members (of those with roles the students): the chance that one of
    k answers is right, one from each of the k members; all from one of them, mean over who it is; all from
    the member that is right most often. With bootstrap intervals of differences; [] with fewer samples."""
    out = []
    for bench, members in marks(rows).items():
        means = groups(members)
        names = means.get(f"{MEAN} S", means.get(MEAN, []))
        k = len(names)
        n, n_samples = next(iter(members.values())).shape
        if not 2 <= k <= n_samples:
            continue
        right = np.stack([members[name] for name in names], axis=1)             # (questions, k, samples)
        together = 1 - (1 - right.mean(2)).prod(1)                              # (questions,)
        alone = np.hstack([pass_curve(members[name], [k]) for name in names])   # (questions, k)
        one = alone.mean(1)
        best = right.sum((0, 2)).argmax()
        out.append({
            "bench": bench,
            "n": n,
            "k": k,
            "members": together.mean(),
            "one": one.mean(),
            "minus_one": bootstrap(together - one).tolist(),
            "best": names[best],
            "best_one": alone[:, best].mean(),
            "minus_best": bootstrap(together - alone[:, best]).tolist(),
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
