"""The part of a report that shows tasks: program, input, output, who wrote it, who tried; and its filters."""
import itertools
from collections import Counter

from report.layout import section
from report.run import RunLog, items, num
from report.svg import brief, short, text

VERDICTS = {"correct": "✓ correct", "wrong": "✗ wrong", "malformed": "∅ malformed",
            "violation": "⚠ forbidden system call", "unjudged": "? the sandbox failed"}
TEXTS = {"program": "program", "message": "hint", "inputs": "input", "outputs": "output",
         "text": "what the teacher wrote"}
ANY = '<option value="">any</option>'
# The script fills the menus with what the tasks hold, and shows the form.
FORM = f"""<form><label>from step <input type="number" name="from" min="0"></label>
<label>to <input type="number" name="to" min="0"></label>
<label>teacher <select name="teacher">{ANY}</select></label>
<label>student <select name="student">{ANY}</select></label>
<label>kind <select name="kind">{ANY}</select></label>
<label>reason <select name="reason">{ANY}<option value="valid">none: valid</option></select></label>
<label>solved <select name="solved">{ANY}<option value="none">never</option>
<option value="some">sometimes</option><option value="all">always</option></select></label>
<label>text <input name="words"></label><span id="count" role="status"></span></form>"""


def block(title: str, body) -> str:
    """A named text of a task; "" if it is missing."""
    body = "\n".join(map(str, body)) if isinstance(body, list) else body
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>" if body not in (None, "") else ""


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name in items(row, "attempts"):
        verdicts = [str(verdict) for verdict in items(row, "attempts", name, kind=list)]
        answers = [str(answer).strip() for answer in items(row, "answers", name, kind=list)[:len(verdicts)]]
        for (verdict, answer), n in Counter(itertools.zip_longest(verdicts, answers)).most_common():
            times = f"{n} × " if n > 1 else ""
            out += f"<h4>{text(name)}: {times}{text(VERDICTS.get(verdict, verdict), 60)}</h4>"
            out += f"<pre>{text(answer, 700)}</pre>" if answer else ""
    return out


def facts(row: dict) -> str:
    """Number, reward and size of a proposal, as far as they are known."""
    reward, size = num(row, "reward"), num(row, "complexity", "statements")
    words = [f"task {row['id']}" if isinstance(row.get("id"), int) else "",
             f"reward {short(reward)}" if reward is not None else "",
             f"statements {short(size)}" if size is not None else ""]
    return text("; ".join(filter(None, words)))


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, who tried, what became of it."""
    rate, reason = num(row, "solve_rate"), str(row.get("reason") or "")
    students = " ".join(items(row, "attempts"))
    data = dict(step=row["step"], teacher=row.get("teacher"), kind=row.get("kind"), reason=reason,
                students=students, rate="" if rate is None else f"{rate:.4f}")
    attributes = " ".join(f'data-{k}="{text(v, 200)}"' for k, v in data.items())
    if reason:
        pill = f'<span class="pill no">{text(brief(reason, 30))}</span>'
    else:
        solved = "not tried" if rate is None else f"solved {rate:.2f}"
        pill = f'<span class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}">{solved}</span>'
    first = " ".join(str(row.get("program") or row.get("text") or "").split())[:90]
    who = brief(row.get("teacher"), 20) + (f" → {brief(students, 60)}" if students else "")
    kind = text(brief(row.get("kind"), 20))
    title = f"step {row['step']} · {text(who)} · {kind} · <code>{text(first)}</code>"
    inner = "".join(block(words, row.get(key)) for key, words in TEXTS.items())
    return (f'<details class="task" {attributes}><summary>{pill} {title}</summary><div>{inner}{attempts(row)}'
            f'<p class="note">{facts(row)}</p></div></details>')


def browser(run: RunLog, room: int) -> str:
    """The sample of tasks that fits into `room` bytes, with its filters."""
    chosen, used = [], 0
    for line, row in run.tasks:
        made = task(row)
        used += len(made.encode())
        if used > room:
            break
        chosen.append((row["step"], line, made))
    chosen.sort()                                               # no two lines have one number
    body = '<p class="absent wide">Absent: no proposal can be read from tasks.jsonl.</p>'
    if chosen:
        tasks = "".join(made for _, _, made in chosen)
        body = f'<div class="card wide">{FORM}<div id="list">{tasks}</div></div>'
    every = "all of them." if len(chosen) == run.n_tasks else (
        "drawn at random, as many from every step, one refused for each three valid ones.")
    words = f"{len(chosen):,} of {run.n_tasks:,} proposals ({run.n_valid:,} of these valid): {every}"
    return section("tasks", "Browse the tasks", words, [body])
