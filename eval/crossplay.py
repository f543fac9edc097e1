"""Asks every generation of students every generation of teachers' tasks: is there progress, or only
circles?

    python train.py --pop 8 --keep 1000 --save-every 10 --name NAME     # a run that keeps all its checkpoints
    python -m eval.crossplay --run out/NAME                             # 48 new tasks of each one's teachers

A generation is a checkpoint. Its teachers propose tasks anew, as in training, and a task that repeats one
of the run is refused, so no student was trained on any. A column is read downwards: where a later generation
of students solves less than an earlier one, something was forgotten.
"""
from functools import partial

import numpy as np

import selfplay
from common import UserError, leave, parser_of
from config import config_of
from eval.answer import BASE, answer_all, marks, open_results, table
from eval.heldout import item_of, judge
from evolve import members_of
from ranks import Ranks
from run import RunDir, State, populate, prepare, restore
from selfplay import Setup
from tasks.base import Task
from verifier import open_sandbox

ANEW = 1 << 40                      # "steps" of the proposals made here: their draws are no step's of a run
ROUNDS = 12                         # of proposals, until a generation's teachers have written enough


def new_tasks(setup: Setup, state: State, known: set[str], n: int) -> list[Task]:
    """Returns up to n new valid tasks of a generation's teachers, evenly from all of them and the same in
    every call. known: keys of the tasks of the whole run."""
    state.archive.keys |= known
    teachers = members_of(state.members, "teacher")
    pairs = list(zip(teachers, teachers))
    tasks = []
    for step in range(ANEW, ANEW + ROUNDS):
        _, proposed = selfplay.propose(setup, state.archive, pairs, step)
        selfplay.verify_proposals(setup, state.archive, proposed, step)
        for p in proposed:
            if p.task:
                tasks.append(p.task)
                state.archive.add(p.task, p.structure)
        if len(tasks) >= n:
            break
    n = min(n, len(tasks))
    return [tasks[i * len(tasks) // n] for i in range(n)]


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    p = parser_of("python -m eval.crossplay", __doc__)
    p.add_argument("--run", required=True, help="a run's directory, out/NAME")
    p.add_argument("--tasks", type=int, default=48, help="tasks of each generation of teachers")
    p.add_argument("--out", default="", help="for the answers; default: eval-crossplay under the run")
    p.add_argument("--device", default="auto")
    p.set_defaults(seed=0, samples=2, temperature=1.0)
    args = p.parse_args(argv)
    run = RunDir(args.run, writes=False)
    steps = run.steps()
    if len(steps) < 2 or run.config()["tasks"]:
        raise UserError(f"--run {args.run}: give a run whose teachers wrote, with two checkpoints at least, "
                        "trained with --keep 1000")
    ranks = Ranks.join(args.device)
    cfg, base = prepare(config_of(run.config()), ranks)
    with open_sandbox(cfg.prompt_format) as sandbox:
        setup = populate(cfg, base, ranks, sandbox)
        known = restore(run, setup, steps[-1]).archive.keys
        items = []
        for step in steps:
            tasks = new_tasks(setup, restore(run, setup, step), known, args.tasks)
            for number, task in enumerate(tasks):
                items.append(item_of(setup, str(step), str(number), task))
        out = open_results(args, "crossplay", setup, {}, tasks=[item.gold.key for item in items])
        judged = partial(judge, setup)
        rows = answer_all(args, out, setup, {BASE: -1}, items, judged)
        for step in steps:
            slots = {}
            for m in members_of(restore(run, setup, step).members, "student"):
                slots[f"{step}/{m.name}"] = m.slot
            rows += answer_all(args, out, setup, slots, items, judged)
    lines = {}                          # generation of students -> its line of the table
    found = marks(rows)
    for column in sorted(found, key=int):
        rates = {}
        for name, right in found[column].items():
            rates.setdefault(name.partition("/")[0], []).append(right.mean())
        for row, own in rates.items():
            line = lines.setdefault(row, dict(students=row))
            line[f"T@{column}"] = np.mean(own)
    print(table(list(lines.values())))


if __name__ == "__main__":
    leave("eval.crossplay", main)
