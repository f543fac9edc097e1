"""The part of a report that shows tasks: program, input, output, who wrote it, who tried with what verdict; and its filters."""
import itertools
from collections import Counter

from report.layout import section
from report.run import Run, items, listed, num
from report.svg import brief, short, text

VERDICTS = {"correct": "✓ correct", "wrong": "✗ wrong", "malformed": "∅ malformed"}


def block(title: str, body) -> str:
    """A named text of a task; "" if it is missing."""
    body = "\n".join(map(str, body)) if isinstance(body, list) else body
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>" if body not in (None, "") else ""


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name in items(row, "attempts"):
        verdicts, answers = listed(row, "attempts", name), listed(row, "answers", name)
        pairs = itertools.zip_longest(map(str, verdicts), [str(a).strip() for a in answers[:len(verdicts)]])
        for (verdict, answer), n in Counter(pairs).most_common():
            out += f"<h4>{text(name)}: {f'{n} × ' if n > 1 else ''}{text(VERDICTS.get(verdict, verdict), 60)}</h4>"
            out += f"<pre>{text(answer, 700)}</pre>" if answer else ""
    return out


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, who tried, what became of it."""
    rate, reason, reward = num(row, "solve_rate"), str(row.get("reason") or ""), num(row, "reward")
    students = " ".join(items(row, "attempts"))
    data = dict(step=row["step"], teacher=row.get("teacher"), kind=row.get("kind"), reason=reason,
                students=students, rate="" if rate is None else f"{rate:.4f}")
    if reason:
        pill = f'<span class="pill no">{text(brief(reason, 30))}</span>'
    else:
        solved = "not tried" if rate is None else f"solved {rate:.2f}"
        pill = f'<span class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}">{solved}</span>'
    first = " ".join(str(row.get("program") or row.get("text") or "").split())[:90]
    who = brief(row.get("teacher"), 20) + (f" → {brief(students, 60)}" if students else "")
    title = f"step {row['step']} · {text(who)} · {text(brief(row.get('kind'), 20))} · <code>{text(first)}</code>"
    refs = ", ".join(map(str, listed(row, "parents")[:12]))
    sizes = [(key, num(row, "complexity", key)) for key in ("depth", "mccabe", "statements")]
    facts = [f"task {row['id']}" if isinstance(row.get("id"), int) else "",
             f"reward {short(reward)}" if reward is not None else "",
             ", ".join(f"{key} {short(size)}" for key, size in sizes if size is not None),
             f"written after seeing tasks {refs}" if refs else ""]
    texts = (("program", "program"), ("hint", "message"), ("input", "inputs"), ("output", "outputs"),
             ("what the teacher wrote", "text"))
    inner = "".join(block(name, row.get(key)) for name, key in texts)
    attributes = " ".join(f'data-{k}="{text(v, 200)}"' for k, v in data.items())
    return (f'<details class="task" {attributes}><summary>{pill} {title}</summary><div>{inner}{attempts(row)}'
            f'<p class="note">{text("; ".join(filter(None, facts)))}</p></div></details>')


def browser(run: Run, room: int) -> str:
    """The sample of tasks that fits into `room` bytes, with its filters."""
    chosen, used = [], 0
    for line, row in run.tasks:
        made = task(row)
        used += len(made.encode())
        if used > room:
            break
        chosen.append((row["step"], line, row, made))
    chosen.sort(key=lambda c: c[:2])
    option = lambda value, word: f'<option value="{text(value, 200)}">{text(brief(word, 40))}</option>'
    options = lambda pairs: "".join(option(*p) for p in [("", "any"), *pairs])
    select = lambda name, pairs: f'<label>{name} <select name="{name}">{options(pairs)}</select></label>'
    values = lambda key: [(v, v) for v in sorted({str(row.get(key)) for _, _, row, _ in chosen if row.get(key)})]
    students = sorted({s for _, _, row, _ in chosen for s in items(row, "attempts")})
    form = ('<form><label>from step <input type="number" name="from" min="0"></label>'
            '<label>to <input type="number" name="to" min="0"></label>'
            + select("teacher", values("teacher")) + select("student", [(s, s) for s in students])
            + select("kind", values("kind"))
            + select("reason", [("valid", "none: valid"), *values("reason")])
            + select("solved", [("none", "never"), ("some", "sometimes"), ("all", "always")])
            + '<label>text <input name="words"></label><span id="count" role="status"></span></form>')
    every = "all of them." if len(chosen) == run.n_tasks else (
        "drawn at random with a fixed seed, as many from every step, one refused for each three valid ones, until this page's "
        "room is used up.")
    body = f'<div class="card wide">{form}<div id="list">{"".join(made for *_, made in chosen)}</div></div>'
    words = f"{len(chosen):,} of {run.n_tasks:,} proposals ({run.n_valid:,} of these valid): {every}"
    return section("tasks", "Browse the tasks", words,
                   [body if chosen else '<p class="absent wide">Absent: no proposal can be read from tasks.jsonl.</p>'])
