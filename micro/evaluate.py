"""What a micro base can do, by number of statements: how well it answers and how often it thinks.

    python -m micro.evaluate micro/base                        # 100 tasks a cell
    python -m micro.evaluate micro/phase1 --n 40               # the base before its habit was taken away

Programs of two and more statements are reserved ones, which training never saw; of one statement there are
only about 300 in all, so those are seen programs on fresh inputs (as are puzzles of two variables).

out = output task, inp = input task, fun = program from 4 pairs, graded on 4 hidden ones; math = word problem
by events, logic = puzzle by variables (from 2). Kinds whose answer can have a trace have four rows:
    greedy      accuracy, greedily decoded
    thinks      share of these answers that think, that is, write the trace
    thinks @1   the same share at temperature 1
    thinking    accuracy, greedy, when the first token is forced to open the trace
"""
import argparse
import random
import sys
from collections import defaultdict

import torch

from generate import Prompts, SamplingParams, generate
from infra.errors import UserError
from micro import data
from model import Base
from sandbox.values import encode
from tasks import TASK_TYPES, verify_answers
from tasks.base import Task
from tasks.prompts import Prompt, decode_answers, reasoning, render
from tasks.validation import Limits
from verifier import Sandbox, open_sandbox
from weights import load_base

ROWS = {"out": "code_o", "inp": "code_i", "fun": "code_f", "math": "math", "logic": "logic"}
SIZES = {"out": range(1, 7), "inp": range(1, 7), "fun": range(1, 5), "math": range(1, 7),
         "logic": range(2, 5)}
SEEN = {"logic": 2}                 # largest size of which training saw the programs; of the others 1
OPENS_TRACE = {"out": ">", "inp": "<", "math": ">"}            # the first character of an answer that thinks
LIMITS = Limits.for_format("micro")
MAX_NEW_TOKENS = 96                 # the longest traces; training cuts at 80


def task_of(row: dict, golds: list) -> Task:
    """The task in a line of data.task_row. Its program is ours: nothing has to be verified."""
    proposal = TASK_TYPES[row["kind"]].from_row(row)
    inputs = row["inputs"] if "inputs" in row else [row.get("input", "")]
    return Task(row["kind"], proposal.program, tuple(inputs), tuple(map(encode, golds)), proposal.message, "")


def draw_tasks(row: str, size: int, n: int, seed: int | str) -> list[Task]:
    """n tasks for one cell of the table; where there are enough, of programs never trained on."""
    rng, unseen = random.Random(f"{seed}/{row}/{size}"), size > SEEN.get(row, 1)
    return [task_of(*data.task_row(ROWS[row], rng, size, unseen)) for _ in range(n)]


def write(base: Base, prompts: list[Prompt], temperature: float, key: tuple[int, ...],
          forced: str = "") -> list[str]:
    """One answer to each prompt; its first token is the likeliest of those that start with `forced`."""
    ids = [render(p, base.prompt_format, base.tokenizer).ids for p in prompts]
    first = [""] * len(prompts)
    if forced:
        vocabulary = base.tokenizer.convert_ids_to_tokens(range(base.model.cfg.vocab_size))
        barred = torch.tensor([not token.startswith(forced) for token in vocabulary])
        with torch.inference_mode():
            for i, row in enumerate(ids):
                logits = base.model.logits(base.model(torch.tensor([row]))[0, -1])
                token = int(logits.masked_fill(barred, -torch.inf).argmax())
                ids[i], first[i] = row + [token], vocabulary[token]
    keys = [(*key, i) for i in range(len(ids))]
    sampling = SamplingParams(temperature=temperature, max_new_tokens=MAX_NEW_TOKENS)
    rollout = generate(base, None, Prompts(ids, [-1] * len(ids), keys), sampling)
    texts = decode_answers(rollout.answers(base.eos_ids), base.tokenizer)
    return [a + b for a, b in zip(first, texts)]


def answers(base: Base, sandbox: Sandbox, row: str, tasks: list[Task], temperature: float,
            key: tuple[int, ...], forced: str = "") -> tuple[float, float]:
    """One attempt at each task of a cell, as `write` has it: shares that are correct, and that think."""
    kind = TASK_TYPES[ROWS[row]]
    texts = write(base, [kind.solve(base.prompt_format, t, LIMITS) for t in tasks], temperature, key, forced)
    verdicts = verify_answers(tasks, [[text] for text in texts], base.prompt_format, LIMITS, sandbox.run)
    thinking = [bool(reasoning(text, base.prompt_format)) for text in texts]
    return verdicts.count(["correct"]) / len(tasks), sum(thinking) / len(tasks)


def solving(base: Base, sandbox: Sandbox, row: str, n: int, seed: int) -> dict[str, list[float]]:
    """The rows of one task type: {measure: [value by size]}."""
    cells = defaultdict(list)
    for size in SIZES[row]:
        tasks, key = draw_tasks(row, size, n, seed), (seed, list(SIZES).index(row), size)
        correct, thinks = answers(base, sandbox, row, tasks, 0.0, key)
        cells["greedy"].append(correct)
        if row in OPENS_TRACE:
            cells["thinks"].append(thinks)
            cells["thinks @1"].append(answers(base, sandbox, row, tasks, 1.0, key)[1])
            cells["thinking"].append(answers(base, sandbox, row, tasks, 0.0, key, OPENS_TRACE[row])[0])
    return cells


def main(args: argparse.Namespace) -> None:
    """Print the table row by row, the mean over the sizes last."""
    base = load_base(args.base)
    if base.prompt_format != "micro":
        raise UserError(f"{args.base} wants the {base.prompt_format} prompt format: give a micro base")
    print(f"{'statements':18s}" + "".join(f"{size:<5}" for size in range(1, 7)) + " mean")
    with open_sandbox("auto", base.prompt_format, workers=1) as sandbox:
        for row, sizes in SIZES.items():
            for name, values in solving(base, sandbox, row, args.n, args.seed).items():
                cells = "     " * (sizes[0] - 1) + " ".join(f"{v:.2f}" for v in values)
                print(f"{row:6s}{name:12s}{cells:30s} {sum(values) / len(values):.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="model directory whose prompt_format is micro")
    parser.add_argument("--n", type=int, default=100, help="tasks per cell")
    parser.add_argument("--seed", type=int, default=99)
    torch.set_num_threads(1)
    try:
        main(parser.parse_args())
    except UserError as error:
        sys.exit(f"micro.evaluate: {error}")
