"""learn: does a student learn at all? Fresh tasks, no teachers, nothing evolves: the sanity check of rl.py.

Several learning rates are several members of one batch, which see the same tasks and held-out programs.
Greedy accuracy is the measure that counts: what only rises at temperature 1 is sharpening.
"""
import random
import time
from dataclasses import fields
from statistics import fmean

import torch

import rl
import selfplay
from config import ALGORITHMS, TARGETS, Config, spelled
from infra.distributed import Ranks
from lora import Adapters
from micro.evaluate import ROWS, draw_tasks
from rewards import STUDENT_REWARDS
from rl import Adam
from run.platform import open_sandbox
from run.probes import answers
from run.startup import prepare
from selfplay import Setup
from tasks import TASK_TYPES, read_tasks
from tasks.base import Task
from tasks.complexity import measure
from tasks.validation import Limits

HELD_OUT_SHARE = 5                  # of a file of tasks, every fifth is never trained on
LEARNT = .1                         # a smaller rise in greedy accuracy has no half way
ALGORITHM = ("algo", *ALGORITHMS[Config.algo], "epochs", "student_reward")         # flags as of train.py
SHARED = ("base", "seed", "rank", "alpha", "samples_per_task", "max_new_tokens", *ALGORITHM)


class FreshPrograms:
    """Tasks of the micro domain without end: programs that the base was not trained on are held out."""

    def __init__(self, args):
        self.row = next(row for row, kind in ROWS.items() if kind == args.kind)
        self.sizes, self.seed = args.sizes, args.seed
        self.held_out = []
        for size in self.sizes:
            self.held_out += [(size, task) for task in draw_tasks(self.row, size, args.held_out, 99)]

    def task(self, i: int) -> Task:
        """The i-th task, the sizes in turn."""
        size = self.sizes[i % len(self.sizes)]
        return draw_tasks(self.row, size, 1, f"{self.seed}/learn/{i}", reserved=False)[0]


class FileOfTasks:
    """Tasks of a JSON-lines file: every fifth is held out, the others come in a new order each time round."""

    def __init__(self, path: str, setup: Setup, seed: int):
        tasks = selfplay.make_tasks(setup, read_tasks(path), path)
        least = 2 * HELD_OUT_SHARE
        if len(tasks) < least:
            raise ValueError(f"--tasks-file {path} holds {len(tasks)} tasks: give at least {least}")
        self.held_out = [(measure(task.program).statements, task) for task in tasks[::HELD_OUT_SHARE]]
        self.pool = [task for i, task in enumerate(tasks) if i % HELD_OUT_SHARE]
        self.seed = seed

    def task(self, i: int) -> Task:
        """The i-th task."""
        lap, place = divmod(i, len(self.pool))
        order = random.Random(f"{self.seed}/lap/{lap}").sample(range(len(self.pool)), len(self.pool))
        return self.pool[order[place]]


def source_of(args, setup: Setup):
    """Where tasks come from. Raises ValueError for a prompt format of which no program can be drawn."""
    if args.tasks_file:
        return FileOfTasks(args.tasks_file, setup, args.seed)
    if setup.base.prompt_format != "micro":
        raise ValueError(f"bench learn draws programs for the micro base only, and {args.base} speaks the "
                         f"{setup.base.prompt_format} prompt format: pass its tasks with --tasks-file "
                         "FILE.jsonl")
    return FreshPrograms(args)


def open_setup(args) -> Setup:
    """Base, one fresh adapter a learning rate, and the verifier; presets where no flag is given."""
    ranks = Ranks.join(args.device)
    cfg, base = prepare(Config(task_types=args.kind, **{name: getattr(args, name) for name in SHARED}), ranks)
    torch.set_num_threads(args.threads)
    n_members = len(args.lr or [cfg.lr])
    adapters = Adapters.on(base.model, n_members, cfg.rank, cfg.alpha, TARGETS, ranks.device)
    for slot in range(n_members):
        seed = selfplay.make_rng(args.seed, slot).getrandbits(60)
        adapters.init_member(slot, torch.Generator().manual_seed(seed))
    sandbox = open_sandbox(1, False)
    limits = Limits.for_format(base.prompt_format)
    return Setup(cfg, base, adapters, ranks, sandbox, limits, tuple(TASK_TYPES))


def score(setup: Setup, held_out: list[tuple[int, Task]], step: int, temperature: float) -> list[dict]:
    """Of every member on the held-out tasks, one attempt each: accuracy by size and the mean over sizes,
    share of answers that think, tokens an answer."""
    slots = {str(slot): slot for slot in range(setup.adapters.n_members)}
    by_member, _ = answers(setup, slots, [task for _, task in held_out], step, temperature)
    scores = []
    for given in by_member.values():
        right = {size: [] for size, _ in held_out}
        for (size, _), correct in zip(held_out, given.correct):
            right[size].append(correct)
        by_size = [selfplay.mean(values) for _, values in sorted(right.items())]
        scores.append(dict(mean=fmean(by_size), by_size=by_size, think=fmean(given.thinks),
                           tokens=fmean(given.tokens)))
    return scores


def learn_step(setup: Setup, adam: Adam, tasks: list[Task], step: int) -> None:
    """One step: every member attempts every task and learns from its own."""
    cfg, n_members = setup.cfg, setup.adapters.n_members
    slots = [slot for slot in range(n_members) for _ in tasks]
    done = selfplay.attempt(setup, tasks * n_members, slots, step, selfplay.SOLVE, cfg.samples_per_task)
    pay = STUDENT_REWARDS[cfg.student_reward]
    rewards = [pay[verdict] for verdicts in done.verdicts for verdict in verdicts]
    groups = [group for group in range(len(slots)) for _ in range(cfg.samples_per_task)]
    ones, zeros = torch.ones(len(rewards), dtype=torch.int64), torch.zeros(len(rewards), dtype=torch.int64)
    batch = rl.Batch(done.rollout, torch.tensor(rewards), torch.tensor(groups), ones, zeros)
    learning = rl.UpdateConfig.of(cfg)
    rl.update(setup.base, setup.adapters, adam, batch, rl.advantages(batch, learning), learning)


def attempts_to_half(curve: list[tuple[int, float]]) -> int | None:
    """Attempts until greedy accuracy was half way between its first and last value, read off straight lines
    between the evaluations (attempts, accuracy); None where it rose by less than LEARNT."""
    first, last = curve[0][1], curve[-1][1]
    half = (first + last) / 2
    if last - first < LEARNT:
        return None
    for (n0, a0), (n1, a1) in zip(curve, curve[1:]):
        if a0 < half <= a1:
            return round(n0 + (n1 - n0) * (half - a0) / (a1 - a0))
    raise AssertionError(f"a curve from {first} to {last} passes {half}")


def learn(args) -> dict:
    """One student, or several learning rates side by side, on fresh random programs without teachers. Greedy
    and sampled accuracy on held-out ones, share of answers that think, their tokens; a JSON line last."""
    began, setup = time.monotonic(), open_setup(args)
    cfg, curves = setup.cfg, []
    rates = args.lr or [cfg.lr]
    adam = Adam(setup.adapters, rates)
    with setup.sandbox:
        source = source_of(args, setup)
        per_step = args.tasks * cfg.samples_per_task
        n_steps = max(1, args.budget // per_step)
        evaluated = {round(i * n_steps / args.evals) for i in range(args.evals + 1)}
        print("attempts      s     rate   greedy think tokens  sampled think tokens   greedy by size")
        for step in range(n_steps + 1):
            if step in evaluated:
                both = [score(setup, source.held_out, step, t) for t in (0.0, cfg.temperature)]
                for rate, g, s in zip(rates, *both):
                    sizes = " ".join(f"{a:.2f}" for a in g["by_size"])
                    print(f"{step * per_step:8d} {time.monotonic() - began:6.0f}  {rate:7.0e}   "
                          f"{g['mean']:.3f}  {g['think']:.2f} {g['tokens']:6.1f}   {s['mean']:.3f}  "
                          f"{s['think']:.2f} {s['tokens']:6.1f}   {sizes}", flush=True)
                curves.append((step * per_step, both))
            if step < n_steps:
                tasks = [source.task(i) for i in range(step * args.tasks, (step + 1) * args.tasks)]
                learn_step(setup, adam, tasks, step)
    rows = [figures(i, rate, curves) for i, rate in enumerate(rates)]
    shown = dict(base=args.base, seed=args.seed, kind=args.kind, tasks=args.tasks, rates=rows,
                 attempts=n_steps * per_step, seconds=round(time.monotonic() - began))
    for name in ("alpha", "rank", "samples_per_task", *ALGORITHM):
        shown[name] = getattr(cfg, name)
    return (rows[0] if len(rows) == 1 else {}) | shown


def figures(member: int, rate: float, curves: list[tuple[int, list[list[dict]]]]) -> dict:
    """A learning rate's part of the JSON line."""
    curve = [(attempts, round(greedy[member]["mean"], 4)) for attempts, (greedy, _) in curves]
    row = dict(lr=rate, attempts_to_half=attempts_to_half(curve), curve=curve)
    for when, (_, both) in (("before", curves[0]), ("after", curves[-1])):
        greedy, sampled = both[0][member], both[1][member]
        row |= {f"greedy_{when}": round(greedy["mean"], 4), f"think_{when}": round(greedy["think"], 4),
                f"sampled_{when}": round(sampled["mean"], 4),
                f"sampled_think_{when}": round(sampled["think"], 4)}
    return row


def learn_flags(parser) -> None:
    """Flags; None = the preset of the base's prompt format."""
    parser.add_argument("--base", default="micro/base", help="directory of the base")
    parser.add_argument("--lr", type=float, nargs="+", help="learning rates, each a member of the batch")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--samples-per-task", type=int, help="at each task: the group of the baseline")
    parser.add_argument("--tasks", type=int, default=16, help="a step")
    parser.add_argument("--budget", type=int, default=8000, help="attempts of each member, in all")
    parser.add_argument("--evals", type=int, default=8, help="evaluations after the first")
    parser.add_argument("--held-out", type=int, default=40, help="held-out tasks of each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[*range(2, 9)], help="statements of programs")
    parser.add_argument("--kind", choices=tuple(ROWS.values()), default="code_o")
    parser.add_argument("--tasks-file", default="", help="JSON lines of tasks in place of fresh programs")
    parser.add_argument("--max-new-tokens", type=int, help="tokens of an answer, at most")
    for f in fields(Config):
        if f.name in ALGORITHM:
            kind, choices = f.type, f.metadata["choices"]
            parser.add_argument(spelled(f.name), type=kind, choices=choices, default=f.default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")


COMMANDS = {"learn": (learn, learn_flags)}
