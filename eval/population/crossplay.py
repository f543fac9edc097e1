"""Every student generation on every teacher generation's tasks: is there progress, or only circles?

    python train.py --pop 8 --keep 1000 --save-every 10 --name NAME     # a run that keeps all its checkpoints
    python -m eval.population.crossplay --run out/NAME                  # 48 new tasks of each one's teachers
    python -m eval.population.crossplay --run out/NAME --generations 4 --tasks 120 --samples 4

A generation is a checkpoint. Its teachers propose tasks anew, as in training, and what repeats a task of the
run, earlier or later, is refused, so that no student was trained on any. A row of the matrix is a generation
of students (the mean of its members), a column one of teachers; the base is the row of no training.
Forgetting (after Chaudhry et al. 2018, eq. 3): how far the last students are behind the best earlier ones on
an earlier column. Taking the best of several noisy rows would find forgetting anywhere, so the best row is
chosen on one half of a column's tasks and compared on the other, and the other way round.
"""
import argparse
import contextlib
import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np

import selfplay
from config import config_of_run, resolve_config
from eval import answering, common
from eval.population.heldout import asking, formatted, judge_flags, judging, run_config
from eval.stats import paired_bootstrap, wilson
from eval.summary import BASE, comparable, shares
from evolve import Member
from infra.distributed import Ranks
from run.checkpoint import RunDir, archive_at, members_at, task_of
from run.platform import open_sandbox
from selfplay import Setup
from tasks.archive import Archive
from tasks.base import Task
from tasks.validation import Limits
from verifier import Sandbox

ANEW = 1 << 40                      # "steps" of the proposals made here: their draws are no step's of a run
ROUNDS = 12                         # of proposals, until the teachers of a generation have written enough


@dataclasses.dataclass(frozen=True)
class Item:
    """One task of a teacher generation."""
    bench: str
    id: str
    task: Task


def generations(run: RunDir, wanted: int) -> list[int]:
    """Steps of the checkpoints on disk, or `wanted` of them evenly spaced with first and last.

    Raises ValueError for fewer than two.
    """
    steps = run.steps()
    if len(steps) < 2 or wanted == 1 or wanted < 0:
        raise ValueError(f"{run.path} keeps {len(steps)} checkpoint(s) and --generations asks for "
                         f"{wanted or 'all'}, but two are the least: train with --keep 1000, which keeps all "
                         "(--save-every says how often)")
    places = np.linspace(0, len(steps) - 1, min(wanted or len(steps), len(steps))).round().astype(int)
    return [steps[i] for i in dict.fromkeys(places)]


def propose(setup: Setup, archive: Archive, teachers: list[Member], n: int) -> list[Task]:
    """n valid new tasks, equally many of each teacher as far as they come in ROUNDS of proposals."""
    per_teacher = -(-n // len(teachers))
    written = {t.name: [] for t in teachers}
    for step in range(ANEW, ANEW + ROUNDS):
        short = [t for t in teachers if len(written[t.name]) < per_teacher]
        if not short:
            break
        _, proposed = selfplay.propose(setup, archive, [(m, m) for m in short], step)
        selfplay.verify(setup, archive, proposed, step)
        for p in proposed:
            if p.task and len(written[p.teacher.name]) < per_teacher:
                written[p.teacher.name].append(p.task)
                archive.add(p.task, p.structure)
    in_turn = [task for turn in itertools.zip_longest(*written.values()) for task in turn]
    return [task for task in in_turn if task][:n]


class Players:
    """The generations of a run on one base, one generation's adapters in memory at a time."""

    def __init__(self, args: argparse.Namespace, run: RunDir, sandbox: Sandbox):
        self.args = args
        self.run = run
        self.sandbox = sandbox
        alone = vars(args) | dict(base=common.base_name(args, {}), run="", adapters=[])
        self.bare = formatted(args, common.load(argparse.Namespace(**alone)))
        cfg = dataclasses.replace(config_of_run(run.config(), run.path), rollout_batch=args.max_rows)
        self.cfg = resolve_config(cfg, self.bare.base.prompt_format)
        self.limits = Limits.of_run(self.cfg, self.bare.base.prompt_format, self.bare.base.tokenizer)

    def at(self, step: int) -> common.Population:
        """A checkpoint's members, by name."""
        directories = common.peft_directories([self.run.path / f"step_{step}"])
        return common.stack(self.bare.base, self.bare.base_hash, directories)

    def seated(self, step: int, role: str, slots: dict[str, int]) -> list[Member]:
        """A checkpoint's members of one role, in the slots where `at` put them."""
        members, _ = members_at(self.run, step)
        return [dataclasses.replace(m, slot=slots.get(m.name, 0)) for m in members if m.role == role]

    def tasks(self, out: RunDir, step: int, n: int) -> list[Item]:
        """A teacher generation's tasks: those on disk, else written now.

        Raises ValueError where those were made for another n.
        """
        path = out.path / f"tasks_{step}.json"
        if not path.exists():
            population = self.at(step)
            setup = Setup(self.cfg, self.bare.base, population.adapters, Ranks.join(self.args.device),
                          self.sandbox, self.limits, tuple(self.cfg.task_types.split(",")))
            archive, whole = [archive_at(self.run, members_at(self.run, s)[1], setup.task_types)
                              for s in (step, self.run.steps()[-1])]
            archive.keys |= whole.keys
            written = propose(setup, archive, self.seated(step, "teacher", population.slots), n)
            out.write_json(path.name, dict(asked=n, tasks=list(map(dataclasses.asdict, written))))
        data = json.loads(path.read_text())
        if data["asked"] != n:
            raise ValueError(f"{path} holds tasks for --tasks {data['asked']}: use that, or another --out")
        return [Item(str(step), str(i), task_of(row)) for i, row in enumerate(data["tasks"])]


def cells(rows: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Student generation (or "base") -> teacher generation -> mean solve rate of students by task (n,)."""
    out = {}
    by_generation = [row | dict(member=row["member"].split("/")[0]) for row in rows]
    for bench, members in shares(by_generation).items():
        for who, items in members.items():
            out.setdefault(who, {})[bench] = np.array([items[i] for i in sorted(items, key=int)])
    return out


def forgetting(matrix: dict[str, dict[str, np.ndarray]], column: str, last: str,
               earlier: list[str]) -> np.ndarray:
    """Per task of a column: solve rate of the best earlier row less that of the last.

    The best is chosen on the other half of the tasks.
    """
    n = len(matrix[last][column])
    behind = np.zeros(n)
    for half in (np.arange(n) % 2 == 0, np.arange(n) % 2 == 1):
        others = {row: matrix[row][column][~half].mean() if (~half).any() else 0.0 for row in earlier}
        best = max(earlier, key=others.get)
        behind[half] = matrix[best][column][half] - matrix[last][column][half]
    return behind


def judged(matrix: dict[str, dict[str, np.ndarray]], steps: list[int]) -> dict:
    """The matrix with Wilson intervals, and forgetting per earlier column and over all of these."""
    rows = [str(s) for s in steps]
    columns = [row for row in rows if row in matrix[BASE]]

    def line(x: np.ndarray) -> dict:
        return dict(n=len(x), rate=float(x.mean()), interval=wilson(float(x.sum()), len(x)))
    behind = {c: forgetting(matrix, c, rows[-1], rows[:-1]) for c in columns if c != rows[-1]}
    behind |= {"all": np.concatenate(list(behind.values()))} if behind else {}
    lost = {c: dict(mean=float(x.mean()), interval=paired_bootstrap(x)) for c, x in behind.items()}
    cells_of = {row: {c: line(matrix[row][c]) for c in columns} for row in (BASE, *rows)}
    return dict(students=[BASE, *rows], teachers=columns, matrix=cells_of, forgetting=lost)


def table(result: dict) -> str:
    """The matrix and the forgetting for the terminal."""
    columns = result["teachers"]
    intervals = [cell["interval"] for row in result["matrix"].values() for cell in row.values()]
    widest = max(high - low for low, high in intervals) / 2
    out = ["solve rate; columns: teachers of the checkpoint, rows: students; 95% intervals are at most "
           f"+-{widest:.2f}",
           f"students {' '.join(f'T@{c}'.rjust(7) for c in columns)}    mean"]
    for row in result["students"]:
        rates = [result["matrix"][row][c]["rate"] for c in columns]
        name = row if row == BASE else f"S@{row}"
        out.append(f"{name:8} " + " ".join(f"{rate:7.2f}" for rate in [*rates, np.mean(rates)]))
    out.append(f"\nforgetting: the best earlier students less the last (S@{result['students'][-1]}), on "
               "earlier teachers' tasks")
    for c, x in result["forgetting"].items():
        low, high = x["interval"]
        out.append(f"{c if c == 'all' else f'T@{c}':8} {x['mean']:+.3f}  {low:+.3f} .. {high:+.3f}")
    return "\n".join(out)


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.population.crossplay", __doc__, None,
                              without=("data", "prompt", "adapters", "bench", "limit"))
    judge_flags(parser)
    parser.add_argument("--tasks", type=int, default=48, help="tasks of each teacher generation")
    parser.add_argument("--generations", type=int, default=0, help="checkpoints, evenly spaced; 0 = all")
    parser.set_defaults(max_rows=None, temperature=1.0, samples=2)
    args = parser.parse_args(argv)
    common.check(args)
    if args.tasks < 2:
        raise ValueError(f"--tasks {args.tasks}: at least 2, for the best row is chosen on one half and "
                         "compared on the other")
    if not args.run:
        raise ValueError("give --run out/NAME: the generations are those of a run")
    run_config(args.run)
    run = RunDir(Path(args.run).expanduser(), writes=False)
    steps = generations(run, args.generations)
    with contextlib.ExitStack() as stack:
        players = Players(args, run, stack.enter_context(open_sandbox(args.workers, args.weak_sandbox)))
        prompt_format = players.bare.base.prompt_format
        hashes = {f"{step}/{name}": sha for step in steps for name, sha in players.at(step).hashes.items()}
        everyone = dataclasses.replace(players.bare, hashes=hashes)
        out, done = common.open_out(args, everyone, f"task {prompt_format}", {}, "eval-crossplay")
        items = [item for step in steps for item in players.tasks(out, step, args.tasks)]
        if not items:
            raise ValueError(f"no teacher of {run.path} wrote a valid new task in {ROUNDS} rounds: there is "
                             "nothing to solve")
        judge = judging(players.sandbox, prompt_format, players.limits)
        ask = asking(prompt_format, players.limits)

        def answer(population: common.Population) -> list[dict]:
            return answering.answer_all(population, items, ask, judge, args, out, done, prompt_format)
        rows = answer(players.bare)
        for step in steps:
            population = players.at(step)
            seats = {f"{step}/{m.name}": m.slot for m in players.seated(step, "student", population.slots)}
            rows += answer(dataclasses.replace(population, slots=seats))
    result = judged(cells(comparable(rows)), steps)
    out.write_json("summary.json", dict(run=str(run.path), temperature=args.temperature, samples=args.samples,
                                        **result))
    print(f"{table(result)}\nevery answer with its verdict: {out.path / 'answers.jsonl'}")
    return 0


if __name__ == "__main__":
    common.command("eval.population.crossplay", main)
