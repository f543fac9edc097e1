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
import functools
import itertools
from dataclasses import replace

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
    """Returns n new valid tasks of a generation's teachers in turn, the same in every call. known: keys of
    the tasks of the whole run."""
    state.archive.keys |= known
    teachers = members_of(state.members, "teacher")
    pairs = list(zip(teachers, teachers))
    written = {teacher.name: [] for teacher in teachers}
    for anew in range(ANEW, ANEW + ROUNDS):
        _, proposed = selfplay.propose(setup, state.archive, pairs, anew)
        selfplay.verify_proposals(setup, state.archive, proposed, anew)
        for p in proposed:
            if p.task:
                written[p.teacher.name].append(p.task)
                state.archive.add(p.task, p.structure)
        if sum(map(len, written.values())) >= n:
            break
    in_turn = itertools.chain(*itertools.zip_longest(*written.values()))
    return list(filter(None, in_turn))[:n]


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
    """Returns the matrix, and the forgetting with 95% intervals, as text."""
    lines, lost, every = [], [], []
    for row, rates in matrix.items():
        line = dict(students=row)
        for column, rate in rates.items():
            line[f"T@{column}"] = rate.mean()
        lines.append(line)
    *earlier, _ = matrix[BASE]
    for column in earlier:
        every.append(forgetting(matrix, column))
        lost.append(
            dict(teachers=column, forgetting=every[-1].mean(), interval=bootstrap(every[-1]).tolist())
        )
    behind = np.concatenate(every)
    lost.append(dict(teachers="all", forgetting=behind.mean(), interval=bootstrap(behind).tolist()))
    return f"{table(lines)}\n\n{table(lost)}"


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    p = parser_of("python -m eval.crossplay", __doc__)
    p.add_argument("--run", required=True, help="a run's directory, out/NAME")
    p.add_argument("--tasks", type=int, default=48, help="tasks of each generation of teachers")
    p.add_argument("--every", type=int, default=1, help="every which checkpoint, back from the last")
    p.add_argument("--samples", type=int, default=2, help="answers to each task")
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default="", help="for the answers; default: eval-crossplay under the run")
    p.add_argument("--device", default="auto")
    args = p.parse_args(argv)
    run = RunDir(args.run, writes=False)
    steps = run.steps()[:: -args.every][::-1]
    demand(
        len(steps) > 1,
        f"--run {args.run}: give a run with two checkpoints at least, trained with --keep 1000"
    )
    ranks = Ranks.join(args.device)
    cfg = replace(config_of(run.config()), tasks="")
    cfg, base = prepare(cfg, ranks)
    with open_sandbox("auto", cfg.prompt_format) as sandbox:
        setup = populate(cfg, base, ranks, sandbox)
        known = restore(run, setup, run.steps()[-1]).archive.keys
        named = []
        for step in steps:
            tasks = new_tasks(setup, restore(run, setup, step), known, args.tasks)
            for number, task in enumerate(tasks):
                named.append((str(step), str(number), task))
        items = items_of(setup, named)
        out = open_results(args, "crossplay", setup, {}, tasks=args.tasks)
        judged = functools.partial(judge, setup)
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
