"""From answers to tables: shares of right answers, means of a population, differences to the base and to another run.

Rows are those of answers.jsonl: dicts with bench, id, member, sample, correct and tokens. A question counts once, as the mean of
its samples.
"""
import numpy as np

from eval.stats import paired_bootstrap, wilson

BASE, MEAN = "base", "mean"                       # the bare base's name among the members, and that of their mean


def shares(rows: list[dict]) -> dict[str, dict[str, dict[str, float]]]:
    """Benchmark -> member -> item -> share of its samples that are right."""
    samples: dict = {}
    for row in rows:
        samples.setdefault(row["bench"], {}).setdefault(row["member"], {}).setdefault(row["id"], []).append(row["correct"])
    return {bench: {name: {i: sum(right) / len(right) for i, right in items.items()} for name, items in members.items()}
            for bench, members in samples.items()}


def roles(names: list[str]) -> dict[str, list[str]]:
    """Whose mean is told under which name: that of all members, and of teachers and of students where the names say so."""
    role = {name: name.split("/")[-1][0] for name in names}
    groups = {MEAN: names} if len(names) > 1 else {}
    told = "TS" if set(role.values()) == {"T", "S"} else ""
    return groups | {f"{MEAN} {r}": [name for name in names if role[name] == r] for r in told}


def with_means(share: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The base first, then the members, then their means on the items that all have (see `roles`). Last are so those whom the run
    trained to solve: the students' mean, else that of all, else the only member, else the base."""
    out = {name: share[name] for name in sorted(share, key=BASE.__ne__)}
    for group, names in roles([name for name in share if name != BASE]).items():
        whole = set.intersection(*(set(share[name]) for name in names))
        out[group] = {i: float(np.mean([share[name][i] for name in names])) for i in share[names[0]] if i in whole}
    return out


def summarise(rows: list[dict], max_new: int) -> list[dict]:
    """One dict per benchmark and member, and for the members' means: share of right answers with Wilson interval, difference to
    the base with paired bootstrap interval, mean tokens of an answer, share cut off at max_new tokens."""
    out, tokens = [], {}
    for row in rows:
        tokens.setdefault((row["bench"], row["member"]), []).append(row["tokens"])
    for bench, share in shares(rows).items():
        groups = roles([name for name in share if name != BASE])
        for name, items in with_means(share).items():
            right = np.array(list(items.values()))
            line = dict(bench=bench, member=name, n=len(right), accuracy=float(right.mean()),
                        interval=wilson(float(right.sum()), len(right)))
            if name != BASE and BASE in share:
                difference = right - np.array([share[BASE][i] for i in items])
                line |= dict(minus_base=float(difference.mean()), minus_base_interval=paired_bootstrap(difference))
            used = np.array([t for who in groups.get(name, [name]) for t in tokens[bench, who]])
            out.append(line | dict(tokens=float(used.mean()), cut=float((used >= max_new).mean())))
    return out


def against(rows: list[dict], other: list[dict]) -> list[dict]:
    """One dict per benchmark and member of `rows`: difference to the mean of the other run's students (else of its members, else
    to its base) on the questions that both answered, with paired bootstrap interval. Raises ValueError where none is common."""
    out, theirs = [], {bench: with_means(share) for bench, share in shares(other).items()}
    for bench, share in shares(rows).items():
        reference = list(theirs.get(bench, {}).values())[-1:]
        for name, items in with_means(share).items():
            common = [i for i in items if reference and i in reference[0]]
            if common:
                difference = np.array([items[i] - reference[0][i] for i in common])
                out.append(dict(bench=bench, member=name, n=len(common), accuracy=float(np.mean([items[i] for i in common])),
                                difference=float(difference.mean()), interval=paired_bootstrap(difference)))
    if not out:
        raise ValueError(f"--against: that run answered none of these questions ({', '.join(theirs) or 'nothing'} lies there)")
    return out


def table(lines: list[dict]) -> str:
    """The summary for the terminal."""
    width = max(len(line["member"]) for line in lines)
    out = [f"{'bench':14} {'n':>5}  {'member':{width}}  right  95% interval   minus base  95% interval    tokens   cut"]
    for line in lines:
        low, high = line["interval"]
        text = f"{line['bench']:14} {line['n']:5}  {line['member']:{width}}  {line['accuracy']:.3f}  {low:.3f} .. {high:.3f}"
        if "minus_base" in line:
            low, high = line["minus_base_interval"]
            text += f"  {line['minus_base']:+10.3f}  {low:+.3f} .. {high:+.3f}"
        else:
            text += " " * 30
        out.append(f"{text}  {line['tokens']:6.0f}  {line['cut']:.2f}")
    return "\n".join(out)


def against_table(lines: list[dict]) -> str:
    """Differences to another run for the terminal."""
    width = max(len(line["member"]) for line in lines)
    out = [f"{'bench':14} {'n':>5}  {'member':{width}}  right  minus theirs  95% interval"]
    for line in lines:
        low, high = line["interval"]
        out.append(f"{line['bench']:14} {line['n']:5}  {line['member']:{width}}  {line['accuracy']:.3f}  "
                   f"{line['difference']:+12.3f}  {low:+.3f} .. {high:+.3f}")
    return "\n".join(out)
