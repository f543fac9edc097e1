"""Means over subjects, and the subjects themselves, from the rows of answers.jsonl."""
import numpy as np

from eval.stats import bootstrap
from eval.summary import BASE, shares, summarise, with_means


def strata(share: dict[str, float]) -> list[np.ndarray]:
    """The values of items SPLIT/SUBJECT/NUMBER, subject by subject."""
    subjects = {}
    for id, value in share.items():
        subjects.setdefault(id.split("/")[1], []).append(value)
    return [np.array(values) for values in subjects.values()]


def mean_of_means(parts: list[np.ndarray]) -> float:
    """The mean over subjects."""
    return float(np.mean([part.mean() for part in parts]))


def macro(rows: list[dict], max_new: int) -> list[dict]:
    """The lines of `summarise` with means over subjects, not over questions; n is the number of subjects.

    Intervals by bootstrap over the questions within each subject.
    """
    found = shares(rows)
    out = []
    for line in summarise(rows, max_new):
        share = with_means(found[line["bench"]])
        ours = share[line["member"]]
        parts = strata(ours)
        line |= dict(n=len(parts), accuracy=mean_of_means(parts), interval=tuple(bootstrap(parts)))
        if "minus_base" in line:
            gains = strata({id: value - share[BASE][id] for id, value in ours.items()})
            line |= dict(minus_base=mean_of_means(gains), minus_base_interval=tuple(bootstrap(gains)))
        out.append(line)
    return out


def by_subject(rows: list[dict], max_new: int) -> list[dict]:
    """The lines of `summarise` for each subject alone."""
    out = []
    for bench in dict.fromkeys(row["bench"] for row in rows):
        renamed = [row | dict(bench=row["subject"]) for row in rows if row["bench"] == bench]
        out += [line | dict(bench=bench, subject=line["bench"]) for line in summarise(renamed, max_new)]
    return out


def subject_table(lines: list[dict]) -> str:
    """Shares by subject for the terminal: of the base, and of those whom the run trained to solve."""
    cells: dict[str, dict[str, list[dict]]] = {}
    for line in lines:
        cells.setdefault(line["subject"], {}).setdefault(line["bench"], []).append(line)
    out = []
    for subject, benches in cells.items():
        head, text = f"{'subject':38} {'n':>5}", f"{subject:38}"
        for number, (bench, some) in enumerate(benches.items()):
            shown = some[:1] if len(some) == 1 else [some[0], some[-1]]     # the last: see summary.with_means
            title = f"{bench}: " + ", ".join(line["member"] for line in shown)
            values = " ".join(f"{line['accuracy']:.3f}" for line in shown)
            head += f"  {title:16}"
            text += f" {some[0]['n']:5}" if number == 0 else ""
            text += f"  {values:{max(16, len(title))}}"
        out += [text] if out else [head, text]
    return "\n".join(line.rstrip() for line in out)
