"""From answers to tables: shares of right answers, means of a population, differences to the base, pass@k.

Rows are those of answers.jsonl: dicts with bench, id, member, sample, correct and tokens, and with think
where it is known whether an answer reasons. A question counts once, as the mean of its samples. correct is
None where the sandbox failed: see `comparable`.
"""
from collections.abc import Callable

import numpy as np

from eval.stats import bootstrap, paired_bootstrap, pass_at_k, wilson

BASE, MEAN = "base", "mean"                       # the bare base among the members, and the members' mean


def comparable(rows: list[dict]) -> list[dict]:
    """Without the questions on which the sandbox failed for anybody: all that are left have answered them."""
    failed = {(row["bench"], row["id"]) for row in rows if row["correct"] is None}
    return [row for row in rows if (row["bench"], row["id"]) not in failed]


def shares(rows: list[dict], value: Callable = np.mean) -> dict[str, dict[str, dict[str, float]]]:
    """Benchmark -> member -> item -> value(whether each of its samples is right), by default their share."""
    out: dict = {}
    for row in rows:
        items = out.setdefault(row["bench"], {}).setdefault(row["member"], {})
        items.setdefault(row["id"], []).append(row["correct"])
    for members in out.values():
        for items in members.values():
            items.update({i: float(value(right)) for i, right in items.items()})
    return out


def groups(names: list[str]) -> dict[str, list[str]]:
    """The members of each mean: of all, and of teachers and students where names say their roles."""
    out = {MEAN: names} if len(names) > 1 else {}
    by_role = {role: [name for name in names if name.split("/")[-1][0] == role] for role in "TS"}
    if all(by_role.values()) and sum(map(len, by_role.values())) == len(names):
        out |= {f"{MEAN} {role}": members for role, members in by_role.items()}
    return out


def with_means(share: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The base first, then the members, then their means on the items that all have (see `groups`).

    So the last are those whom the run trained to solve: the students' mean, else that of all, else the only
    member, else the base.
    """
    out = {name: share[name] for name in sorted(share, key=BASE.__ne__)}
    for mean, names in groups([name for name in share if name != BASE]).items():
        common = [i for i in share[names[0]] if all(i in share[name] for name in names)]
        out[mean] = {i: float(np.mean([share[name][i] for name in names])) for i in common}
    return out


def summarise(rows: list[dict], max_new: int) -> list[dict]:
    """One dict per benchmark and member, and for the members' means: what `table` shows.

    Share of right answers with Wilson interval, difference to the base with paired bootstrap interval, mean
    tokens of an answer, share cut off at max_new tokens; where rows have it, the share that thinks and how
    many answers the grader failed on.
    """
    out, answers = [], {}
    for row in rows:
        answers.setdefault((row["bench"], row["member"]), []).append(row)
    for bench, share in shares(rows).items():
        members = groups([name for name in share if name != BASE])
        for name, items in with_means(share).items():
            right = np.array(list(items.values()))
            line = dict(bench=bench, member=name, n=len(right), accuracy=float(right.mean()),
                        interval=wilson(float(right.sum()), len(right)))
            if name != BASE and BASE in share:
                gain = right - np.array([share[BASE][i] for i in items])
                line |= dict(minus_base=float(gain.mean()), minus_base_interval=paired_bootstrap(gain))
            given = [row for member in members.get(name, [name]) for row in answers[bench, member]]
            tokens = np.array([row["tokens"] for row in given])
            line |= dict(tokens=float(tokens.mean()), cut=float((tokens >= max_new).mean()))
            if "think" in given[0]:
                line["think"] = float(np.mean([row["think"] for row in given]))
            if n_errors := sum("grader_error" in row for row in given):
                line["grader_errors"] = n_errors
            out.append(line)
    return out


def passes(rows: list[dict]) -> list[dict]:
    """One dict per benchmark and member with pass@k for k = 1, 2, 4, ... up to the samples of a question.

    pass_at (len(k),) and, but for the base, the paired differences to it; with bootstrap intervals over the
    questions that all have answered. A mean is that of the members' pass@k.
    """
    out = []
    for bench, counts in shares(rows, len).items():
        mine = [row for row in rows if row["bench"] == bench]
        most = int(min(min(items.values()) for items in counts.values()))
        ks = [2 ** i for i in range(most.bit_length())]
        ids = sorted(set.intersection(*map(set, counts.values())))
        solved = []
        for k in ks:
            share = shares(mine, lambda right: pass_at_k(len(right), sum(right), k))[bench]
            solved.append(with_means(share))
        columns = []
        for name in solved[0]:
            columns.append([[share[name][i] for share in solved] for i in ids])
        value = np.array(columns).swapaxes(0, 1)                            # (items, members, k); base first
        value = np.stack((value, value - value[:, :1]), 1)                  # and minus the base's
        mean, interval = value.mean(0).tolist(), bootstrap([value]).tolist()
        for place, name in enumerate(solved[0]):
            line = dict(bench=bench, member=name, n=len(ids), k=ks, pass_at=mean[0][place],
                        intervals=interval[0][place])
            if name != BASE and BASE in counts:
                line |= dict(minus_base=mean[1][place], minus_base_intervals=interval[1][place])
            out.append(line)
    return out


# ---- for the terminal --------------------------------------------------------------------------------------

def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as lines of columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def table(lines: list[dict]) -> str:
    """What `summarise` gives; the columns think and grader errors are there where a line has them."""
    more = {"think": ".2f", "grader_errors": "d"}
    more = {name: form for name, form in more.items() if any(name in line for line in lines)}
    out = [["bench", "    n", "member", "right", "95% interval", "minus base", "95% interval", "tokens",
            " cut", *(name.replace("_", " ") for name in more)]]
    for line in lines:
        gain, (low, high) = ["", ""], line["interval"]
        if "minus_base" in line:
            least, most = line["minus_base_interval"]
            gain = [f"{line['minus_base']:+10.3f}", f"{least:+.3f} .. {most:+.3f}"]
        out.append([line["bench"], f"{line['n']:5}", line["member"], f"{line['accuracy']:.3f}",
                    f"{low:.3f} .. {high:.3f}", *gain, f"{line['tokens']:6.0f}", f"{line['cut']:.2f}",
                    *(f"{line.get(name, 0):{form}}" for name, form in more.items())])
    return aligned(out)


def pass_table(lines: list[dict]) -> str:
    """What `passes` gives, and the differences to the base at k = 1 and at the largest k, with intervals."""
    ks = lines[0]["k"]
    out = [["bench", "    n", "member", *(f"@{k}" for k in ks), "minus base @1", f"minus base @{ks[-1]}"]]
    for line in lines:
        gains = ["", ""]
        if "minus_base" in line:
            ends = [(line["minus_base"][end], *line["minus_base_intervals"][end]) for end in (0, -1)]
            gains = [f"{gain:+.2f} ({low:+.2f} .. {high:+.2f})" for gain, low, high in ends]
        out.append([line["bench"], f"{line['n']:5}", line["member"], *(f"{x:.2f}" for x in line["pass_at"]),
                    *gains])
    return aligned(out)
