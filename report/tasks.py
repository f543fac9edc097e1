"""The part of a report that shows tasks: program, input, output, who wrote it, who tried; and its filters."""
from collections import Counter
from itertools import zip_longest

from report.layout import section
from report.run import RunLog, items, num
from report.svg import brief, text

ROOM = 750_000                      # bytes of the page, at most
VERDICTS = {"correct": "✓ correct", "wrong": "✗ wrong", "malformed": "∅ malformed",
            "violation": "⚠ forbidden system call", "unjudged": "? the sandbox failed"}
TEXTS = {"program": "program", "message": "hint", "inputs": "input", "outputs": "output",
         "text": "what the teacher wrote"}
# The script fills the menus with what the tasks hold, and shows the form.
MENUS = "".join(f'<label>{name} <select name="{name}"><option value="">any</option></select></label>'
                for name in ("teacher", "student", "kind", "solved"))
FORM = f'<form>{MENUS}<label>text <input name="words"></label><span id="count" role="status"></span></form>'


def block(title: str, body) -> str:
    """A named text of a task; "" if it is missing."""
    body = "\n".join(map(str, body)) if isinstance(body, list) else body
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>" if body not in (None, "") else ""


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name in items(row, "attempts"):
        verdicts = [str(verdict) for verdict in items(row, "attempts", name, kind=list)]
        answers = [str(answer).strip() for answer in items(row, "answers", name, kind=list)]
        pairs = Counter(zip_longest(verdicts, answers[:len(verdicts)], fillvalue=""))
        for (verdict, answer), n in pairs.most_common():
            times = f"{n} × " if n > 1 else ""
            out += f"<h4>{text(name)}: {times}{text(VERDICTS.get(verdict, verdict), 60)}</h4>"
            out += f"<pre>{text(answer, 700)}</pre>" if answer else ""
    return out


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, who tried, what became of it."""
    rate, refused = num(row, "solve_rate"), str(row.get("reason") or "")
    solved = refused or {None: "not tried", 0: "never", 1: "always"}.get(rate, "sometimes")
    students, kind = " ".join(items(row, "attempts")), row.get("kind")
    data = dict(teacher=row.get("teacher"), student=students, kind=kind, solved=solved)
    attributes = " ".join(f'data-{key}="{text(value, 200)}"' for key, value in data.items())
    words = text(brief(solved if refused or rate is None else f"solved {rate:.2f}", 30))
    pill = 'class="pill no"' if refused else f'class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}"'
    first = text(" ".join(str(row.get("program") or row.get("text") or "").split())[:90])
    who = text(brief(row.get("teacher"), 20)) + (f" → {text(brief(students, 60))}" if students else "")
    title = f"step {row['step']} · {who} · {text(brief(kind, 20))} · <code>{first}</code>"
    inner = "".join(block(words, row.get(key)) for key, words in TEXTS.items()) + attempts(row)
    return (f'<details class="task" {attributes}><summary><span {pill}>{words}</span> {title}'
            f"</summary><div>{inner}{block('reward', num(row, 'reward'))}</div></details>")


def tasks(run: RunLog) -> str:
    """Tasks from the run's first step to its last, as many as there is room for, with their filters."""
    shown = [task(row) for row in run.tasks]
    while sum(len(made.encode()) for made in shown) > ROOM:
        shown = shown[::2]
    body = '<p class="absent wide">Absent: no proposal can be read from tasks.jsonl.</p>'
    if shown:
        body = f'<div class="card wide">{FORM}<div id="list">{"".join(shown)}</div></div>'
    words = f"{len(shown):,} of {run.n_tasks:,} proposals, evenly spaced in the order of writing."
    return section("tasks", "Browse the tasks", words, [body])
