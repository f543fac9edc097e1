"""Measures a micro base, by number of statements: how well it answers and how often it thinks.

    python -m micro.evaluate micro/base                        # 100 tasks a cell
    python -m micro.evaluate micro/phase1 --n 40               # the base before its habit was taken away

Programs of two and more statements are reserved ones, which training never saw. There are only about 300
programs of one statement, so those are seen programs on fresh inputs (and so are puzzles of two variables).

The rows are out (output task), inp (input task), fun (program from 4 pairs, graded on 4 hidden ones), math
(word problem, by events) and logic (puzzle, by variables from 2 on). `greedy` is the accuracy, greedily
decoded. If answers can have a trace, `thinks` is the share at temperature 1 that have one, and `thinking` the
greedy accuracy when the first token is forced to open it.
"""
import random
from collections import defaultdict
from statistics import fmean

import torch

from common import leave, parser_of
from generate import Prompts, SamplingParams, generate
from micro import data
from model import Base
from sandbox.values import encode
from tasks import TASK_TYPES, verify_answers
from tasks.base import Task
from tasks.programs import Limits
from tasks.prompts import reasoning
from tasks.rendering import decode_answers, render
from verifier import Sandbox, open_sandbox
from weights import load_base

ROWS = {
    "out": "code_o",
    "inp": "code_i",
    "fun": "code_f",
    "math": "math",
    "logic": "logic",
}
SIZES = {
    "out": range(1, 7),
    "inp": range(1, 7),
    "fun": range(1, 5),
    "math": range(1, 7),
    "logic": range(2, 5),
}
SEEN = {"logic": 2}                 # largest size of which training saw the programs; of the others 1
OPENS_TRACE = {"out": ">", "inp": "<", "math": ">"}            # the first token of an answer that thinks
LIMITS = Limits.for_format("micro")
SEED = 99                           # of the tasks
MAX_NEW_TOKENS = 96                 # the longest traces; training cuts at 80


def task_of(row: dict, golds: list) -> Task:
    """Returns the task in a line of data.task_row. Its program is ours, so nothing has to be verified."""
    proposal = TASK_TYPES[row["kind"]].from_row(row)
    inputs = row.get("inputs", [row.get("input", "")])
    outputs = map(encode, golds)
    return Task(row["kind"], proposal.program, tuple(inputs), tuple(outputs), proposal.message, "")


def draw_tasks(row: str, size: int, n: int, seed: int | str) -> list[Task]:
    """Returns n tasks for one cell of the table, of programs never trained on where there are enough."""
    rng = random.Random(f"{seed}/{row}/{size}")
    reserved = size > SEEN.get(row, 1)
    tasks = []
    for _ in range(n):
        tasks.append(task_of(*data.task_row(ROWS[row], rng, size, reserved)))
    return tasks


def answers(
    base: Base,
    sandbox: Sandbox,
    tasks: list[Task],
    key: tuple[int, ...],               # random
    temperature: float,
    forced: str = "",                   # how each answer begins
) -> tuple[float, float]:
    """Makes one attempt at each task. Returns the shares that are correct and that think."""
    begun = base.tokenizer.encode(forced)
    ids, keys = [], []
    for i, task in enumerate(tasks):
        prompt = TASK_TYPES[task.kind].solve(base.prompt_format, task, LIMITS)
        ids.append(render(prompt, base.prompt_format, base.tokenizer).ids + begun)
        keys.append((*key, i))
    n = len(tasks)
    nobody = [-1] * n                                               # the base without an adapter
    sampling = SamplingParams(temperature=temperature, max_new_tokens=MAX_NEW_TOKENS)
    rollout = generate(base, None, Prompts(ids, nobody, keys), sampling)
    attempts, n_thinking = [], 0
    for rest in decode_answers(rollout.answers(base.eos_ids), base.tokenizer):
        attempts.append([forced + rest])
        n_thinking += bool(reasoning(forced + rest, base.prompt_format))
    verdicts = verify_answers(tasks, attempts, base.prompt_format, LIMITS, sandbox.run)
    return verdicts.count(["correct"]) / n, n_thinking / n


def solving(base: Base, sandbox: Sandbox, row: str, n: int) -> dict[str, list[float]]:
    """Returns the rows of one task type: {measure: [value by size]}."""
    values = defaultdict(list)
    for size in SIZES[row]:
        tasks = draw_tasks(row, size, n, SEED)
        key = SEED, list(SIZES).index(row), size
        correct, _ = answers(base, sandbox, tasks, key, 0.0)
        values["greedy"].append(correct)
        if row in OPENS_TRACE:
            _, thinks = answers(base, sandbox, tasks, key, 1.0)
            values["thinks"].append(thinks)
            correct, _ = answers(base, sandbox, tasks, key, 0.0, OPENS_TRACE[row])
            values["thinking"].append(correct)
    return values


def line(row: str, name: str, values: list[float]) -> str:
    """Returns a line of the table: the values by size, then their mean."""
    left_out = "     " * (SIZES[row][0] - 1)
    cells = left_out + " ".join(map("{:.2f}".format, values))
    return f"{row:6s}{name:12s}{cells:30s} {fmean(values):.3f}"


def main() -> None:
    """Prints the table row by row, the mean over the sizes last."""
    parser = parser_of("python -m micro.evaluate", __doc__)
    parser.add_argument("base", help="model directory whose prompt_format is micro")
    parser.add_argument("--n", type=int, default=100, help="tasks per cell")
    args = parser.parse_args()
    torch.set_num_threads(1)
    base = load_base(args.base)
    sizes = "".join(map("{:<5}".format, range(1, 7)))
    print(f"{'statements':18s}{sizes} mean")
    with open_sandbox(base.prompt_format, workers=1) as sandbox:
        for row in SIZES:
            for name, values in solving(base, sandbox, row, args.n).items():
                print(line(row, name, values), flush=True)


if __name__ == "__main__":
    leave("micro.evaluate", main)
