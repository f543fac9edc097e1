"""tasks.jsonl: what became of every proposal, as lines, and tasks read back from them."""
from selfplay import ProposalRecord
from tasks.base import Task

MAX_LOGGED = 600                    # characters of a text


def task_rows(proposed: list[ProposalRecord], step: int, limit: int = MAX_LOGGED) -> list[dict]:
    """A line a proposal, valid or not; texts are cut to `limit` characters."""
    rows = []
    for p in proposed:
        row = dict(step=step, teacher=p.teacher.name, kind=p.kind, reason=p.reason, reward=p.reward)
        if p.task:
            t = p.task
            answers = {name: [text[-limit:] for text in texts] for name, texts in p.answers.items()}
            row |= dict(id=t.id, program=t.program, inputs=t.inputs, outputs=t.outputs, message=t.message,
                        key=t.key, parents=t.parents, solve_rate=p.solve_rate, attempts=p.attempts,
                        answers=answers, statements=p.statements)
        else:
            row["text"] = p.text[:limit]
        rows.append(row)
    return rows


def task_from_row(row: dict) -> Task:
    """The task of a valid proposal's line."""
    return Task(row["kind"], row["program"], tuple(row["inputs"]), tuple(row["outputs"]), row["message"],
                row["key"], row["id"], row["teacher"], row["step"], tuple(row["parents"]))
