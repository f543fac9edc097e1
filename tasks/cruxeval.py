"""CRUXEval (2401.03065): 800 short functions, each with an input and its output, as code_o and code_i tasks.

Its file is not part of this project: eval/published.json has its address. A line of it is {"code", "input",
"output", "id"}. The gold answer is the published output. Most inputs are literals. A few are expressions
(`dict()`): the sandbox evaluates these, once, and the task shows their values. Where a value has no literal
(three functions and ranges), code_o shows the input as it is written. code_i has no such task, nor that of a
function without parameters: there is no answer that could be given. One input of code_i (sample_621) needs a
codec that the sandbox has not.
"""
from common import Refused, UserError, json_object, readable
from sandbox.parsing import arguments
from sandbox.values import decode, encode
from tasks import TASK_TYPES
from tasks.base import Proposal, RunJobs, Task, split_of, text_of
from tasks.literals import value_of
from tasks.prompts import show
from verifier import Job

KINDS = {"cruxeval-o": "code_o", "cruxeval-i": "code_i"}                # benchmark -> task type
FIELDS = "code", "input", "output", "id"
EVALUATE = """{code}

def arguments(*given):
    return given

def evaluated():
    return arguments({input})
"""


def rows_of(text: str, split: str = "") -> list[dict]:
    """Returns the rows of a split ("" = all) in the text of CRUXEval's file; [] if it is another file."""
    rows = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            row = json_object(line)
            for name in FIELDS:
                text_of(row, name)
        except UserError:
            return []
        if split in ("", split_of(row["code"])):
            rows.append(row)
    return rows


def is_literal(text: str) -> bool:
    """Returns whether a text of arguments is data as it stands."""
    try:
        arguments(text)
    except Refused:
        return False
    return True


def tasks_of(rows: list[dict], kind: str, dedupe: str, run: RunJobs) -> dict[str, Task]:
    """Maps the id of each row to its task of type `kind`. dedupe: as in TaskType.key. Raises UserError for an
    output that is no literal."""
    odd = [row for row in rows if not is_literal(row["input"])]
    jobs = [Job(EVALUATE.format(**row), ("",), entry="evaluated") for row in odd]
    values = {}                             # id -> the arguments, None where they are no data
    for row, verdict in zip(odd, run(jobs)):
        text, = verdict.outputs
        values[row["id"]] = None if text is None else ", ".join(map(show, decode(text)))
    tasks = {}
    for row in rows:
        with readable(f"CRUXEval's {row['id']} has an output that cannot be read: fetch the file again"):
            gold = encode(value_of(row["output"]))
        given = values.get(row["id"], row["input"])
        if not given and kind == "code_i":
            continue
        proposal = Proposal(kind, row["code"], (given or row["input"],))
        key = TASK_TYPES[kind].key(proposal, dedupe)
        tasks[row["id"]] = Task(kind, proposal.program, proposal.inputs, (gold,), "", key)
    return tasks
