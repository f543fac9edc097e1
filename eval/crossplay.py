"""Asks every generation of students every generation of teachers' tasks: is there progress, or only
circles?

    python train.py --pop 8 --keep 1000 --save-every 10 --name NAME     # a run that keeps all its checkpoints
    python -m eval.crossplay --run out/NAME                             # 48 new tasks of each one's teachers

A generation is a checkpoint. Its teachers propose tasks anew, as in training, and a task that repeats one
of the run is refused, so no student was trained on any. Forgetting (after Chaudhry et al. 2018, eq. 3) is
how far the last students are behind the best earlier ones on earlier teachers' tasks. The best is chosen on
one half of the tasks and compared on the other, and the other way round: the best of several noisy rows
would find forgetting anywhere.
"""
from dataclasses import replace
from functools import partial

import numpy as np

import selfplay
from common import demand, leave, parser_of
from config import config_of
from eval.answer import BASE, answer_all, marks, open_results, table
from eval.heldout import items_of, judge
from eval.stats import bootstrap
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


def forgetting(matrix: dict[str, dict[str, np.ndarray]], column: str) -> np.ndarray:
    """Returns, per task of a column, the rate of the best earlier row, chosen on the other half, less the
    last row's. matrix: row -> column -> solve rate of each task; the base's row comes first."""
    _, *earlier, last = matrix
    even = np.arange(len(matrix[last][column])) % 2 == 0
    behind = np.zeros(len(even))
    for half in (even, ~even):
        best = max(earlier, key=lambda row: matrix[row][column][~half].mean())
        behind[half] = (matrix[best][column] - matrix[last][column])[half]
    return behind


def show(matrix: dict[str, dict[str, np.ndarray]]) -> str:
    """Returns the matrix, and the forgetting of all columns but the last with its 95% interval, as text."""
    lines, behind = [], []
    for row, rates in matrix.items():
        line = dict(students=row)
        for column, rate in rates.items():
            line[f"T@{column}"] = rate.mean()
        lines.append(line)
    for column in list(matrix[BASE])[:-1]:
        behind.append(forgetting(matrix, column))
    lost = np.concatenate(behind)
    low, high = bootstrap(lost)
    return f"{table(lines)}\n\nforgetting {lost.mean():.3f}, {low:.3f} .. {high:.3f}"


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    p = parser_of("python -m eval.crossplay", __doc__)
    p.add_argument("--run", required=True, help="a run's directory, out/NAME")
    p.add_argument("--tasks", type=int, default=48, help="tasks of each generation of teachers")
    p.add_argument("--every", type=int, default=1, help="every which checkpoint, back from the last")
    p.add_argument("--out", default="", help="for the answers; default: eval-crossplay under the run")
    p.add_argument("--device", default="auto")
    p.set_defaults(seed=0, samples=2, temperature=1.0)
    args = p.parse_args(argv)
    run = RunDir(args.run, writes=False)
    steps = run.steps()[:: -args.every][::-1]
    demand(
        len(steps) > 1,
        f"--run {args.run}: give a run with two checkpoints at least, trained with --keep 1000"
    )
    ranks = Ranks.join(args.device)
    cfg, base = prepare(replace(config_of(run.config()), tasks=""), ranks)
    with open_sandbox("auto", cfg.prompt_format) as sandbox:
        setup = populate(cfg, base, ranks, sandbox)
        known = restore(run, setup, steps[-1]).archive.keys
        named = []
        for step in steps:
            tasks = new_tasks(setup, restore(run, setup, step), known, args.tasks)
            for number, task in enumerate(tasks):
                named.append((str(step), str(number), task))
        items = items_of(setup, named)
        out = open_results(args, "crossplay", setup, {}, tasks=args.tasks)
        judged = partial(judge, setup)
        rows = answer_all(args, out, setup, {BASE: -1}, items, judged)
        for step in steps:
            slots = {}
            for m in members_of(restore(run, setup, step).members, "student"):
                slots[f"{step}/{m.name}"] = m.slot
            rows += answer_all(args, out, setup, slots, items, judged)
    matrix = {}
    for column, members in marks(rows).items():
        own = {}                        # generation -> its students' rates
        for name, right in members.items():
            own.setdefault(name.partition("/")[0], []).append(right.mean(1))
        for row, rates in own.items():
            matrix.setdefault(row, {})[column] = np.mean(rates, axis=0)
    print(show(matrix))


if __name__ == "__main__":
    leave("eval.crossplay", main)
