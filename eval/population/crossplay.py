"""Every student generation on every teacher generation's tasks: is there progress, or only circles?

    python train.py --pop 8 --keep 1000 --save-every 10 --name NAME     # a run that keeps all its checkpoints
    python -m eval.population.crossplay --run out/NAME                  # 48 new tasks of each one's teachers
    python -m eval.population.crossplay --run out/NAME --every 5 --tasks 120 --samples 4

A generation is a checkpoint. Its teachers propose tasks anew, as in training, and what repeats a task of the
run, earlier or later, is refused, so that no student was trained on any. A row of the matrix is a generation
of students (the mean of its members), a column one of teachers; the base is the row of no training.
Forgetting (after Chaudhry et al. 2018, eq. 3): how far the last students are behind the best earlier ones on
an earlier column. The best row is chosen on one half of a column's tasks and compared on the other, and the
other way round: the best of several noisy rows would find forgetting anywhere.
"""
import dataclasses
import hashlib
import itertools
from pathlib import Path

import numpy as np

import selfplay
from config import config_of_run, for_new_tasks, resolve_config
from eval import answering, common
from eval.population.heldout import Item, examiner, formatted, verifier_flags
from eval.stats import bootstrap
from eval.summary import BASE, comparable, shares
from evolve import Member, members_of
from infra.distributed import Ranks
from infra.errors import demand
from run.checkpoint import RunDir, archive_at, members_at
from selfplay import Setup
from tasks.base import Task
from tasks.validation import Limits
from verifier import open_sandbox

ANEW = 1 << 40                      # "steps" of the proposals made here: their draws are no step's of a run
ROUNDS = 12                         # of proposals, until the teachers of a generation have written enough


def generation(run: RunDir, bare: common.Population, step: int) -> tuple[common.Population, list[Member]]:
    """A checkpoint's adapters on the base of `bare`, and its members in the slots where these are."""
    directories = common.peft_directories([run.path / f"step_{step}"])
    population = common.stack(bare.base, bare.base_hash, directories)
    members, _ = members_at(run, step)
    return population, [dataclasses.replace(m, slot=population.slots.get(m.name, 0)) for m in members]


def new_tasks(run: RunDir, setup: Setup, members: list[Member], step: int, n: int) -> list[Task]:
    """n new valid tasks of a checkpoint's teachers in turn, the same in every call."""
    archive, whole = [archive_at(run, members_at(run, at)[1], setup.task_types)
                      for at in (step, run.steps()[-1])]
    archive.keys |= whole.keys                      # none of them is in the run
    teachers = members_of(members, "teacher")
    written = {t.name: [] for t in teachers}
    for anew in range(ANEW, ANEW + ROUNDS):
        if sum(map(len, written.values())) >= n:
            break
        _, proposed = selfplay.propose(setup, archive, [(t, t) for t in teachers], anew)
        selfplay.verify(setup, archive, proposed, anew)
        for p in proposed:
            if p.task:
                written[p.teacher.name].append(p.task)
                archive.add(p.task, p.structure)
    in_turn = [task for turn in itertools.zip_longest(*written.values()) for task in turn]
    return [task for task in in_turn if task][:n]


def cells(rows: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Student generation (or "base") -> teacher generation -> mean solve rate of students by task (n,)."""
    out = {}
    for bench, members in shares([row | dict(member=row["member"].split("/")[0]) for row in rows]).items():
        for who, items in members.items():
            out.setdefault(who, {})[bench] = np.array([items[i] for i in sorted(items, key=int)])
    return out


def forgetting(matrix: dict[str, dict[str, np.ndarray]], column: str, last: str,
               earlier: list[str]) -> np.ndarray:
    """Per task: rate of the best earlier row, chosen on the other half, less that of the last."""
    even = np.arange(len(matrix[last][column])) % 2 == 0
    behind = np.zeros(len(even))
    for half in (even, ~even):
        best = max(earlier, key=lambda row: matrix[row][column][~half].mean())
        behind[half] = matrix[best][column][half] - matrix[last][column][half]
    return behind


def summary(matrix: dict[str, dict[str, np.ndarray]], steps: list[int]) -> dict:
    """Solve rates, and forgetting with 95% intervals per earlier column and over all of these."""
    rows, columns = [BASE, *map(str, steps)], list(matrix[BASE])
    behind = {c: forgetting(matrix, c, rows[-1], rows[1:-1]) for c in columns if c != rows[-1]}
    behind["all"] = np.concatenate(list(behind.values()))
    rates = {row: {c: float(matrix[row][c].mean()) for c in columns} for row in rows}
    lost = {c: dict(mean=float(x.mean()), interval=bootstrap(x).tolist()) for c, x in behind.items()}
    return dict(students=rows, teachers=columns, matrix=rates, forgetting=lost)


def table(result: dict) -> str:
    """The matrix and the forgetting for the terminal."""
    columns = result["teachers"]
    out = ["solve rate; columns: teachers of the checkpoint, rows: students",
           f"students {' '.join(f'T@{c}'.rjust(7) for c in columns)}    mean"]
    for row in result["students"]:
        rates = list(result["matrix"][row].values())
        name = row if row == BASE else f"S@{row}"
        out.append(f"{name:8} " + " ".join(f"{rate:7.2f}" for rate in [*rates, np.mean(rates)]))
    out.append(f"\nforgetting: the best earlier students less the last (S@{result['students'][-1]}), on "
               "earlier teachers' tasks, with 95% intervals")
    for c, x in result["forgetting"].items():
        low, high = x["interval"]
        out.append(f"{c if c == 'all' else f'T@{c}':8} {x['mean']:+.3f}  {low:+.3f} .. {high:+.3f}")
    return "\n".join(out)


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    parser = common.parser_of("eval.population.crossplay", __doc__, None,
                              without=("data", "prompt", "adapters", "bench", "limit", "self-test"))
    verifier_flags(parser)
    parser.add_argument("--tasks", type=int, default=48, help="tasks of each teacher generation")
    parser.add_argument("--every", type=int, default=1, help="every which checkpoint, back from the last")
    parser.set_defaults(temperature=1.0, samples=2, adapters=[])
    args = parser.parse_args(argv)
    common.check(args)
    demand(args.tasks > 1 and args.every > 0 and args.run, "give --run out/NAME, --every of at least 1, and "
           "--tasks of at least 2: the best row is chosen on one half and compared on the other")
    run = RunDir(Path(args.run).expanduser(), writes=False)
    steps, items, hashes = run.steps()[::-1][::args.every][::-1], [], {}
    demand(len(steps) > 1, f"{run.path}: two checkpoints are the least: train with --keep 1000 to keep all")
    bare = formatted(args, common.load(args))
    bare.adapters, bare.slots, bare.hashes = None, {BASE: -1}, {}
    prompt_format = bare.base.prompt_format
    with open_sandbox("auto", prompt_format, args.workers) as sandbox:
        cfg = for_new_tasks(config_of_run(run.config(), run.path), device=args.device,
                            rollout_batch=args.max_rows)
        cfg = resolve_config(cfg, prompt_format)
        limits = Limits.of_run(cfg, prompt_format, bare.base.tokenizer)
        for step in steps:
            population, members = generation(run, bare, step)
            bare.hashes |= {f"{step}/{name}": sha for name, sha in population.hashes.items()}
            setup = Setup(cfg, bare.base, population.adapters, Ranks.join(cfg.device), sandbox, limits,
                          tuple(cfg.task_types.split(",")))
            if tasks := new_tasks(run, setup, members, step, args.tasks):
                items += [Item(str(step), str(i), task) for i, task in enumerate(tasks)]
                hashes[str(step)] = hashlib.sha256(repr(tasks).encode()).hexdigest()
        demand(len(hashes) > 1, f"{len(hashes)} generation of teachers wrote new tasks in {ROUNDS} rounds")
        out, done = common.open_out(args, bare, f"task {prompt_format}", hashes, "eval-crossplay")
        out.write_json("tasks.json", [dataclasses.asdict(item) for item in items])
        ask, verify = examiner(sandbox, prompt_format, limits)
        rows = answering.answer_all(bare, items, ask, verify, args, out, done, prompt_format)
        for step in steps:
            population, members = generation(run, bare, step)
            population.slots = {f"{step}/{m.name}": m.slot for m in members if m.role == "student"}
            rows += answering.answer_all(population, items, ask, verify, args, out, done, prompt_format)
    result = summary(cells(comparable(rows)), steps)
    out.write_json("summary.json", dict(run=str(run.path), temperature=args.temperature, samples=args.samples,
                                        **result))
    print(f"{table(result)}\nevery answer with its verdict: {out.path / 'answers.jsonl'}")
    return 0


if __name__ == "__main__":
    common.command("eval.population.crossplay", main)
