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
import argparse
import dataclasses
import hashlib
import itertools
from pathlib import Path

import numpy as np

import selfplay
from config import config_of_run, for_new_tasks, resolve_config
from eval import answering, common
from eval.population.heldout import Item, examiner, loaded, verifier_flags
from eval.stats import bootstrap
from eval.summary import comparable, shares
from evolve import Member, members_of
from infra.distributed import Ranks
from infra.errors import demand
from run.checkpoint import RunDir, archive_at, members_at
from selfplay import Setup
from tasks.base import Task
from tasks.validation import Limits
from verifier import Sandbox, open_sandbox

ANEW = 1 << 40                      # "steps" of the proposals made here: their draws are no step's of a run
ROUNDS = 12                         # of proposals, until the teachers of a generation have written enough

Matrix = dict[str, dict[str, np.ndarray]]       # students -> teachers -> mean solve rate of each task (n,)


# ---- tasks of every generation of teachers -----------------------------------------------------------------

def generation(
    run: RunDir,
    bare: common.Population,
    step: int,
) -> tuple[common.Population, list[Member]]:
    """A checkpoint's adapters on the base of `bare`, and its members in the slots where these are."""
    directories = common.peft_directories([run.path / f"step_{step}"])
    population = common.stack(bare.base, bare.base_hash, directories)
    members = []
    for member in members_at(run, step)[0]:
        slot = population.slots.get(member.name, 0)
        members.append(dataclasses.replace(member, slot=slot))
    return population, members


def new_tasks(
    run: RunDir,
    setup: Setup,
    members: list[Member],
    step: int,
    n: int,
) -> list[Task]:
    """n new valid tasks of a checkpoint's teachers in turn, the same in every call."""
    _, state = members_at(run, step)
    _, last = members_at(run, run.steps()[-1])
    archive = archive_at(run, state)
    archive.keys |= archive_at(run, last).keys      # none of them is in the run
    teachers = members_of(members, "teacher")
    written = {teacher.name: [] for teacher in teachers}
    for anew in range(ANEW, ANEW + ROUNDS):
        if sum(map(len, written.values())) >= n:
            break
        pairs = list(zip(teachers, teachers))
        _, proposed = selfplay.propose(setup, archive, pairs, anew)
        selfplay.verify_proposals(setup, archive, proposed, anew)
        for p in proposed:
            if p.task:
                written[p.teacher.name].append(p.task)
                archive.add(p.task, p.structure)
    rounds = itertools.zip_longest(*written.values())           # one of each teacher; None: it has no more
    tasks = filter(None, itertools.chain(*rounds))
    return list(itertools.islice(tasks, n))


def opened_setup(
    args: argparse.Namespace,
    run: RunDir,
    population: common.Population,      # a generation
    sandbox: Sandbox,
) -> Setup:
    """The Setup in which its teachers propose as they did in the run."""
    base = population.base
    given = config_of_run(run.config(), run.path)
    cfg = for_new_tasks(given, device=args.device, rollout_batch=args.max_rows)
    cfg = resolve_config(cfg, base.prompt_format)
    return Setup(
        cfg=cfg,
        base=base,
        adapters=population.adapters,
        ranks=Ranks.join(cfg.device),
        sandbox=sandbox,
        limits=Limits.of_run(cfg, base.prompt_format, base.tokenizer),
    )


# ---- what their answers say --------------------------------------------------------------------------------

def cells(rows: list[dict]) -> Matrix:
    """Student generation (or "base") -> teacher generation -> mean solve rate of students by task (n,), all
    in the order of the rows."""
    by_generation = []
    for row in rows:
        student = row["member"].partition("/")[0]
        by_generation.append(row | dict(member=student))
    out = {}
    for bench, members in shares(by_generation).items():
        for member, rates in members.items():
            out.setdefault(member, {})[bench] = np.array(list(rates.values()))
    return out


def forgetting(matrix: Matrix, column: str, last: str, earlier: list[str]) -> np.ndarray:
    """Per task: rate of the best earlier row, chosen on the other half, less that of the last."""
    even = np.arange(len(matrix[last][column])) % 2 == 0
    behind = np.zeros(len(even))
    for half in (even, ~even):
        best = max(earlier, key=lambda row: matrix[row][column][~half].mean())
        lead = matrix[best][column] - matrix[last][column]
        behind[half] = lead[half]
    return behind


def summary(matrix: Matrix) -> dict:
    """Solve rates, and forgetting with 95% intervals per earlier column and over all of these. The matrix has
    the base's row first, and then the students' from the first step to the last."""
    _, *earlier, last = matrix
    rates = {}
    for row, by_column in matrix.items():
        rates[row] = {column: x.mean() for column, x in by_column.items()}
    behind = {}
    for column in matrix[last]:
        if column != last:
            behind[column] = forgetting(matrix, column, last, earlier)
    behind["all"] = np.concatenate(list(behind.values()))
    lost = {}
    for column, x in behind.items():
        interval = bootstrap(x).tolist()
        lost[column] = dict(mean=x.mean(), interval=interval)
    return dict(students=list(matrix), teachers=list(matrix[last]), matrix=rates, forgetting=lost)


def table(result: dict) -> str:
    """The matrix and the forgetting for the terminal."""
    heading = "students"
    for column in result["teachers"]:
        heading += f" {f'T@{column}':>7}"
    out = ["solve rate; columns: teachers of the checkpoint, rows: students", f"{heading}    mean"]
    for row, by_column in result["matrix"].items():
        rates = list(by_column.values())
        line = f"{named('S', row):8}"
        for rate in [*rates, np.mean(rates)]:
            line += f" {rate:7.2f}"
        out.append(line)
    out.append(f"\nforgetting: the best earlier students less the last (S@{result['students'][-1]}), on "
               "earlier teachers' tasks, with 95% intervals")
    for column, x in result["forgetting"].items():
        low, high = x["interval"]
        out.append(f"{named('T', column):8} {x['mean']:+.3f}  {low:+.3f} .. {high:+.3f}")
    return "\n".join(out)


def named(role: str, step: str) -> str:
    """The name of a generation in the tables, such as S@80; "base" and "all" stay as they are."""
    return f"{role}@{step}" if step.isdigit() else step


# ---- the command -------------------------------------------------------------------------------------------

def parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = common.parser_of("eval.population.crossplay", __doc__, None,
                              without=("data", "prompt", "adapters", "bench", "limit", "self-test"))
    verifier_flags(parser)
    parser.add_argument("--tasks", type=int, default=48, help="tasks of each teacher generation")
    parser.add_argument("--every", type=int, default=1, help="every which checkpoint, back from the last")
    parser.set_defaults(temperature=1.0, samples=2, adapters=[])
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    args = common.check(parser().parse_args(argv))
    demand(args.tasks > 1 and args.every > 0 and args.run, "give --run out/NAME, --every of at least 1, and "
           "--tasks of at least 2: the best row is chosen on one half and compared on the other")
    run = RunDir(Path(args.run).expanduser(), writes=False)
    steps = run.steps()[::-args.every][::-1]
    demand(len(steps) > 1, f"{run.path}: two checkpoints are the least: train with --keep 1000 to keep all")
    last = loaded(args)
    bare = common.stack(last.base, last.base_hash, {})
    prompt_format = bare.base.prompt_format
    items, hashes = [], {}
    with open_sandbox("auto", prompt_format, args.workers) as sandbox:
        for step in steps:
            population, members = generation(run, bare, step)
            for name, sha in population.hashes.items():
                bare.hashes[f"{step}/{name}"] = sha
            setup = opened_setup(args, run, population, sandbox)
            tasks = new_tasks(run, setup, members, step, args.tasks)
            for number, task in enumerate(tasks):
                items.append(Item(str(step), str(number), task))
            if tasks:
                text = repr(tasks)
                hashes[str(step)] = hashlib.sha256(text.encode()).hexdigest()
        demand(len(hashes) > 1, f"{len(hashes)} generation of teachers wrote new tasks in {ROUNDS} rounds")
        out, done = common.open_out(args, bare, f"task {prompt_format}", hashes, "eval-crossplay")
        out.write_json("tasks.json", list(map(dataclasses.asdict, items)))

        examined = examiner(sandbox, prompt_format, setup.limits)
        exam = answering.Exam(items, *examined, prompt_format)
        rows = answering.answer_all(bare, exam, args, out, done)
        for step in steps:
            population, members = generation(run, bare, step)
            population.slots = {f"{step}/{m.name}": m.slot for m in members_of(members, "student")}
            rows += answering.answer_all(population, exam, args, out, done)
    result = summary(cells(comparable(rows)))
    head = {
        "run": str(run.path),
        "temperature": args.temperature,
        "samples": args.samples,
    }
    out.write_json("summary.json", head | result)
    print(f"{table(result)}\nevery answer with its verdict: {out.path / 'answers.jsonl'}")
    return 0


if __name__ == "__main__":
    common.command("eval.population.crossplay", main)
