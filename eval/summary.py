"""From answers to tables: shares of right answers, pass@k, means of a population, differences to others.

Rows are those of answers.jsonl: dicts with bench, id, member, sample, correct and tokens, and with think
where it is known whether an answer reasons. A question counts once, as the mean of its samples. correct is
None where the sandbox failed: see `comparable`.
"""
import itertools
from collections.abc import Callable

import numpy as np

from eval.stats import bootstrap, paired_bootstrap, pass_at_k, wilson

BASE, MEAN = "base", "mean"                       # the bare base among the members, and the members' mean
COLUMNS = 5                                       # of pass@k beside each other, in 110 characters


def comparable(rows: list[dict]) -> list[dict]:
    """Without the questions on which the sandbox failed for anybody: all that are left have answered them."""
    failed = {(row["bench"], row["id"]) for row in rows if row["correct"] is None}
    return [row for row in rows if (row["bench"], row["id"]) not in failed]


def samples(rows: list[dict]) -> dict[str, dict[str, dict[str, list[bool]]]]:
    """Benchmark -> member -> item -> whether each of its samples is right."""
    out: dict = {}
    for row in rows:
        items = out.setdefault(row["bench"], {}).setdefault(row["member"], {})
        items.setdefault(row["id"], []).append(row["correct"])
    return out


def each_item(members: dict[str, dict[str, list[bool]]], value: Callable[[list[bool]], float]) -> dict:
    """Member -> item -> value of its samples."""
    return {name: {i: value(right) for i, right in items.items()} for name, items in members.items()}


def shares(rows: list[dict]) -> dict[str, dict[str, dict[str, float]]]:
    """Benchmark -> member -> item -> share of its samples that are right."""
    found = samples(rows)
    return {bench: each_item(found[bench], lambda right: sum(right) / len(right)) for bench in found}


def roles(names: list[str]) -> dict[str, list[str]]:
    """Whose mean is told under which name: all members', and teachers' and students' where names say so."""
    groups = {MEAN: names} if len(names) > 1 else {}
    by_role = {role: [name for name in names if name.split("/")[-1][0] == role] for role in "TS"}
    if all(by_role.values()) and len(by_role["T"] + by_role["S"]) == len(names):
        groups |= {f"{MEAN} {role}": some for role, some in by_role.items()}
    return groups


def with_means(share: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The base first, then the members, then their means on the items that all have (see `roles`).

    Last are so those whom the run trained to solve: the students' mean, else that of all, else the only
    member, else the base.
    """
    out = {name: share[name] for name in sorted(share, key=BASE.__ne__)}
    for group, names in roles([name for name in share if name != BASE]).items():
        common = [i for i in share[names[0]] if all(i in share[name] for name in names)]
        out[group] = {i: float(np.mean([share[name][i] for name in names])) for i in common}
    return out


def summarise(rows: list[dict], max_new: int) -> list[dict]:
    """One dict per benchmark and member, and for the members' means: what `table` shows.

    Share of right answers with Wilson interval, difference to the base with paired bootstrap interval, mean
    tokens of an answer, share cut off at max_new tokens; where rows tell it, the share that thinks; how many
    answers the grader failed on, if any.
    """
    out, answers = [], {}
    may_think = any("think" in row for row in rows)
    for row in rows:
        answers.setdefault((row["bench"], row["member"]), []).append(row)
    for bench, share in shares(rows).items():
        groups = roles([name for name in share if name != BASE])
        for name, items in with_means(share).items():
            right = np.array(list(items.values()))
            line = dict(bench=bench, member=name, n=len(right), accuracy=float(right.mean()),
                        interval=wilson(float(right.sum()), len(right)))
            if name != BASE and BASE in share:
                difference = right - np.array([share[BASE][i] for i in items])
                line["minus_base"] = float(difference.mean())
                line["minus_base_interval"] = paired_bootstrap(difference)
            each = [answers[bench, who] for who in groups.get(name, [name])]
            used = np.array([row["tokens"] for some in each for row in some])
            line |= dict(tokens=float(used.mean()), cut=float((used >= max_new).mean()))
            if may_think:
                line["think"] = float(np.mean([np.mean([row["think"] for row in some]) for some in each]))
            if errors := sum("grader_error" in row for some in each for row in some):
                line["grader_errors"] = errors
            out.append(line)
    return out


def against(rows: list[dict], other: list[dict]) -> list[dict]:
    """One dict per benchmark and member of `rows`: paired difference to the other run on common questions.

    To the mean of the other run's students, else of its members, else to its base; with bootstrap interval.
    Raises ValueError where no question is common.
    """
    out, theirs = [], {bench: with_means(share) for bench, share in shares(other).items()}
    for bench, share in shares(rows).items():
        reference = list(theirs[bench].values())[-1] if bench in theirs else {}
        for name, items in with_means(share).items():
            common = [i for i in items if i in reference]
            if common:
                ours = np.array([items[i] for i in common])
                difference = ours - np.array([reference[i] for i in common])
                out.append(dict(bench=bench, member=name, n=len(common), accuracy=float(ours.mean()),
                                difference=float(difference.mean()), interval=paired_bootstrap(difference)))
    if not out:
        raise ValueError("--against: that run answered none of these questions "
                         f"({', '.join(theirs) or 'nothing'} lies there)")
    return out


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as lines of columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def span(interval: tuple[float, float], form: str = ".3f") -> str:
    """An interval as text."""
    low, high = interval
    return f"{low:{form}} .. {high:{form}}"


def table(lines: list[dict]) -> str:
    """The summary for the terminal; its last columns are there where a line has them."""
    more = {"think": ".2f", "grader_errors": "d"}
    more = {name: form for name, form in more.items() if any(name in line for line in lines)}
    out = [["bench", "    n", "member", "right", "95% interval", "minus base", "95% interval", "tokens",
            " cut", *(name.replace("_", " ") for name in more)]]
    for line in lines:
        cells = [line["bench"], f"{line['n']:5}", line["member"], f"{line['accuracy']:.3f}",
                 span(line["interval"]), "", ""]
        if "minus_base" in line:
            cells[5:] = [f"{line['minus_base']:+10.3f}", span(line["minus_base_interval"], "+.3f")]
        cells += [f"{line['tokens']:6.0f}", f"{line['cut']:.2f}"]
        out.append(cells + [f"{line.get(name, 0):{form}}" for name, form in more.items()])
    return aligned(out)


def against_table(lines: list[dict]) -> str:
    """Differences to another run for the terminal."""
    out = [["bench", "    n", "member", "right", "minus theirs", "95% interval"]]
    for line in lines:
        out.append([line["bench"], f"{line['n']:5}", line["member"], f"{line['accuracy']:.3f}",
                    f"{line['difference']:+12.3f}", span(line["interval"], "+.3f")])
    return aligned(out)


# ---- pass@k ------------------------------------------------------------------------------------------------

def solved_at(members: dict[str, dict[str, list[bool]]], k: int) -> dict[str, dict[str, float]]:
    """Member -> item -> pass@k from its samples; then the means of the members', as in `with_means`."""
    return with_means(each_item(members, lambda right: pass_at_k(len(right), sum(right), k)))


def passes(rows: list[dict]) -> list[dict]:
    """One dict per benchmark and member, and for the members' means: pass@k for k = 1, 2, 4 ... up to the
    samples and its paired difference to the base, by k; 95% intervals by bootstrap over tasks.

    A mean is that of the members' pass@k: their answers are not thrown together, for that would be more tries
    than the base has.
    """
    out = []
    for bench, members in samples(rows).items():
        n_samples = min(len(right) for items in members.values() for right in items.values())
        ks = [2 ** i for i in range(n_samples.bit_length())]
        solved = [solved_at(members, k) for k in ks]
        names = list(solved[0])                                             # the base is the first
        ids = sorted(set.intersection(*(set(solved[0][name]) for name in names)))
        value = np.empty((len(ids), 2, len(names), len(ks)))               # pass@k, and that minus the base's
        for place, name in enumerate(names):
            for at, share in enumerate(solved):
                value[:, 0, place, at] = [share[name][i] for i in ids]
        value[:, 1] = value[:, 0] - value[:, 0, :1]
        means, intervals = value.mean(0).tolist(), bootstrap([value]).tolist()
        for place, name in enumerate(names):
            line = dict(bench=bench, member=name, n=len(ids), k=ks, pass_at=means[0][place],
                        intervals=intervals[0][place])
            if name != BASE:
                line |= dict(minus_base=means[1][place], minus_base_intervals=intervals[1][place])
            out.append(line)
    return out


def short(x: float, sign: str = "") -> str:
    """A share in three characters, .73 or 1.0; with sign "+" a difference, in four."""
    x = round(x, 2) + 0.0                                                   # + 0.0: never "-.00"
    return f"{x:{sign}.1f}" if abs(x) >= 1 else f"{x:{sign}.2f}".replace("0.", ".", 1)


def spread(x: float, interval: list[float], sign: str = "") -> str:
    """A number with its interval: .73 (.68 .. .78)."""
    low, high = interval
    return f"{short(x, sign)} ({short(low, sign)} .. {short(high, sign)})"


def by_bench(lines: list[dict]) -> list[list[dict]]:
    """Lines that follow each other and are of one benchmark, together."""
    return [list(group) for _, group in itertools.groupby(lines, key=lambda line: line["bench"])]


def marked(line: dict) -> str:
    """The size of a line, with * where the base may know its tasks."""
    return f"{line['size']}{'*' if line['seen'] else ''}"


def pass_table(lines: list[dict]) -> str:
    """pass@k for the terminal: a block per benchmark with its tasks' number, a row per member (and size)."""
    out = []
    for some in by_bench(lines):
        sized, ks = "size" in some[0], some[0]["k"]
        title = some[0]["bench"] if sized else f"{some[0]['bench']} ({some[0]['n']})"
        labels = [f"  {marked(line) if sized else '':{3 * sized}}{line['member']}" for line in some]
        width = max(17, *map(len, labels))
        for start in range(0, len(ks), COLUMNS):
            heads = [f"pass@{k}" for k in ks[start:start + COLUMNS]]
            out.append(f"{title:{width}}" + "".join(f"  {head:16}" for head in heads))
            for label, line in zip(labels, some):
                part = slice(start, start + COLUMNS)
                cells = map(spread, line["pass_at"][part], line["intervals"][part])
                out.append(f"{label:{width}}" + "".join(f"  {cell:16}" for cell in cells))
    return "\n".join(line.rstrip() for line in out)


def member_table(lines: list[dict]) -> str:
    """Every member's pass@1 and pass@n by size for the terminal, without intervals."""
    out = []
    for some in by_bench(lines):
        sizes = dict.fromkeys(map(marked, some))
        out.append(f"{some[0]['bench']:17}" + "".join(f"  {size:9}" for size in sizes))
        for name in dict.fromkeys(line["member"] for line in some):
            ends = [(line["pass_at"][0], line["pass_at"][-1]) for line in some if line["member"] == name]
            out.append(f"  {name:15}" + "".join(f"  {short(first)} {short(last):5}" for first, last in ends))
    return "\n".join(line.rstrip() for line in out)


def gain_table(lines: list[dict]) -> str:
    """Members (no line of the base) minus base at k = 1 and at the largest k for the terminal: is what they
    gain still there when the base may try as often (Yue et al. 2025, arXiv 2504.13837)?"""
    most = lines[0]["k"][-1]
    out = [["minus base", "tasks", "member", "pass@1", f"pass@{most}", f"at k = 1, k = {most}"]]
    for line in lines:
        ends = [(line["minus_base"][end], line["minus_base_intervals"][end]) for end in (0, -1)]
        words = ["ahead" if low > 0 else "behind" if high < 0 else "level" for _, (low, high) in ends]
        out.append([line["bench"], f"{line['n']:5}", line["member"],
                    *(spread(*end, sign="+") for end in ends), ", ".join(words)])
    return aligned(out)
