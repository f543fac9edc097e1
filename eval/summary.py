"""From answers to tables: shares of right answers, means of a population, differences to the base, pass@k.

Rows are those of answers.jsonl: dicts with bench, id, member, sample, correct and tokens. A question counts
once, as the mean of its samples. correct is None where the sandbox failed: see `comparable`.
"""
from collections.abc import Callable

import numpy as np

from eval.stats import bootstrap, covered, pass_at_k
from measure.shares import wilson

BASE, MEAN = "base", "mean"                       # the bare base among the members, and the members' mean


def comparable(rows: list[dict]) -> list[dict]:
    """Without the questions on which the sandbox failed for anybody: all that are left have answered them."""
    failed = {(row["bench"], row["id"]) for row in rows if row["correct"] is None}
    return [row for row in rows if (row["bench"], row["id"]) not in failed]


def shares(rows: list[dict], value: Callable = np.mean) -> dict[str, dict[str, dict]]:
    """Benchmark -> member -> item -> value(whether each of its samples is right), by default their share."""
    out: dict = {}
    for row in rows:
        items = out.setdefault(row["bench"], {}).setdefault(row["member"], {})
        items.setdefault(row["id"], []).append(row["correct"])
    for members in out.values():
        for items in members.values():
            items.update({i: value(right) for i, right in items.items()})
    return out


def groups(names: list[str]) -> dict[str, list[str]]:
    """The members of each mean: of all, and of teachers and students where names say their roles."""
    out = {MEAN: names} if len(names) > 1 else {}
    by_role = {role: [name for name in names if name.split("/")[-1][0] == role] for role in "TS"}
    if all(by_role.values()) and sum(map(len, by_role.values())) == len(names):
        out |= {f"{MEAN} {role}": members for role, members in by_role.items()}
    return out


def with_means(share: dict[str, dict]) -> dict[str, dict]:
    """The base first, then the members, then their means on the items that all have (see `groups`)."""
    out = {name: share[name] for name in sorted(share, key=BASE.__ne__)}
    for mean, names in groups([name for name in share if name != BASE]).items():
        common = [i for i in share[names[0]] if all(i in share[name] for name in names)]
        out[mean] = {i: np.mean([share[name][i] for name in names], 0) for i in common}
    return out


def summarise(rows: list[dict], max_new: int) -> list[dict]:
    """One dict per benchmark and member, and for the members' means: what `table` shows. Share of right
    answers with Wilson interval, difference to the base with paired bootstrap interval, mean tokens of an
    answer, share cut off at max_new tokens. Where verdicts tell it, also the share of malformed answers: what
    rises early in a run is often the form alone."""
    out, tokens, malformed = [], {}, {}
    for row in rows:
        place = row["bench"], row["member"]
        tokens.setdefault(place, []).append(row["tokens"])
        if "verdict" in row:
            malformed.setdefault(place, []).append(row["verdict"] == "malformed")
    for bench, share in shares(rows).items():
        members = groups([name for name in share if name != BASE])
        for name, items in with_means(share).items():
            right = np.array(list(items.values()))
            line = dict(bench=bench, member=name, n=len(right), accuracy=float(right.mean()),
                        interval=wilson(float(right.sum()), len(right)))
            if name != BASE and BASE in share:
                gain = right - np.array([share[BASE][i] for i in items])
                line |= dict(minus_base=float(gain.mean()), minus_base_interval=bootstrap(gain).tolist())
            places = [(bench, member) for member in members.get(name, [name])]
            spent = np.concatenate([tokens[place] for place in places])
            line |= dict(tokens=float(spent.mean()), cut=float((spent >= max_new).mean()))
            if places[0] in malformed:
                line |= dict(malformed=float(np.concatenate([malformed[place] for place in places]).mean()))
            out.append(line)
    return out


def passes(rows: list[dict]) -> list[dict]:
    """One dict per benchmark and member with pass@k for k = 1, 2, 4, ... up to the samples of a question.
    pass_at (len(k),) and, but for the base, the paired differences to it; with bootstrap intervals over the
    questions that all have answered. A mean is that of the members' pass@k."""
    out = []
    for bench, counts in shares(rows, len).items():
        ks = [2 ** i for i in range(min(min(items.values()) for items in counts.values()).bit_length())]
        ids = sorted(set.intersection(*map(set, counts.values())))

        def at_each(right: list[bool], ks: list[int] = ks) -> np.ndarray:
            return np.array([pass_at_k(len(right), sum(right), k) for k in ks])
        solved = with_means(shares([row for row in rows if row["bench"] == bench], at_each)[bench])
        value = np.array([[solved[name][i] for name in solved] for i in ids])   # (items, members, k)
        value = np.stack((value, value - value[:, :1]), 1)                      # less the first, the base's
        mean, interval = value.mean(0).tolist(), bootstrap(value).tolist()
        for place, name in enumerate(solved):
            line = dict(bench=bench, member=name, n=len(ids), k=ks, pass_at=mean[0][place],
                        intervals=interval[0][place])
            if name != BASE and BASE in counts:
                line |= dict(minus_base=mean[1][place], minus_base_intervals=interval[1][place])
            out.append(line)
    return out


def coverage(rows: list[dict]) -> list[dict]:
    """One dict per benchmark with several members (of those with roles the students): the chance that one of
    k answers is right, one from each of the k members; all from one of them, mean over who it is; all from
    the member that is right most often. With bootstrap intervals of differences; [] with fewer samples."""
    out = []
    for bench, answers in shares(rows, lambda right: (len(right), sum(right))).items():
        names = [name for name in answers if name != BASE]
        names = groups(names).get(f"{MEAN} S", names)
        k, fewest = len(names), min(n for items in answers.values() for n, _ in items.values())
        if not 2 <= k <= fewest:
            continue
        best = max(names, key=lambda name: sum(right for _, right in answers[name].values()))
        values = []
        for i in sorted(set.intersection(*(set(answers[name]) for name in names))):
            alone = {name: covered([answers[name][i]], k) for name in names}
            together = covered([answers[name][i] for name in names], k)
            values.append([together, np.mean(list(alone.values())), alone[best]])
        members, one, of_best = np.transpose(values)
        line = dict(bench=bench, n=len(values), k=k, members=float(members.mean()), one=float(one.mean()))
        line |= dict(minus_one=bootstrap(members - one).tolist(), best=best, best_one=float(of_best.mean()))
        out.append(line | dict(minus_best=bootstrap(members - of_best).tolist()))
    return out


def cell(name: str, value) -> str:
    """A value as text: an interval as "low .. high", what is less the base with its sign."""
    if isinstance(value, (tuple, list)):
        return " .. ".join(cell(name, x) for x in value)
    sign = "+" if name.startswith("minus") else ""
    return f"{value:{sign}.3f}" if isinstance(value, float) else str(value)


def table(lines: list[dict]) -> str:
    """What `summarise` gives, a column for every key."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    rows = [[cell(name, line.get(name, "")) for name in names] for line in lines]
    rows.insert(0, [name.replace("_", " ") for name in names])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def pass_table(lines: list[dict]) -> str:
    """What `passes` gives, and the difference to the base at the largest k with its interval."""
    rows = []
    for line in lines:
        row = dict(bench=line["bench"], member=line["member"], n=line["n"])
        row |= {f"@{k}": share for k, share in zip(line["k"], line["pass_at"])}
        if "minus_base" in line:
            row[f"minus base @{line['k'][-1]}"] = line["minus_base"][-1]
            row["minus base interval"] = line["minus_base_intervals"][-1]
        rows.append(row)
    return table(rows)
