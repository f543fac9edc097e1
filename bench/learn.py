"""learn: does a student learn at all? Fresh tasks, no teachers, nothing evolves: the sanity check of rl.py.

    python -m bench learn --lr 3e-4 1e-3 -- --algo gspo --epochs 2      # after --: flags of train.py

Several learning rates are several members of one batch, which see the same tasks and held-out tasks. Accuracy
is greedy: what only rises at temperature 1 is sharpening.
"""
import argparse
import time
from statistics import fmean

import torch

import rl
import selfplay
from config import TARGETS, parse_args
from infra.distributed import Ranks
from lora import Adapters
from micro.evaluate import ROWS, draw_tasks
from rewards import STUDENT_REWARDS
from run.platform import open_sandbox
from run.probes import answers
from run.startup import prepare
from selfplay import Setup
from tasks import TASK_TYPES
from tasks.base import Task
from tasks.validation import Limits

ROW = {kind: row for row, kind in ROWS.items()}


def fresh(args, i: int) -> Task:
    """The i-th task: one of the micro domain that nobody held out, its size in turn."""
    size = args.sizes[i % len(args.sizes)]
    return draw_tasks(ROW[args.kind], size, 1, f"{args.seed}/learn/{i}", reserved=False)[0]


def open_setup(args) -> Setup:
    """Base, one fresh adapter a learning rate, and the verifier. Raises ValueError for a prompt format of
    which no program can be drawn."""
    given = ["--base", args.base, "--seed", str(args.seed), "--task-types", args.kind, *args.train[1:]]
    flags = parse_args(None, given)
    ranks = Ranks.join(flags.device)
    cfg, base = prepare(flags, ranks)
    if base.prompt_format != "micro":
        raise ValueError(f"programs are drawn for the micro base only, and {args.base} speaks the "
                         f"{base.prompt_format} prompt format: use train.py --tasks FILE.jsonl")
    args.lr = args.lr or [cfg.lr]
    adapters = Adapters.on(base.model, len(args.lr), cfg.rank, cfg.alpha, TARGETS, ranks.device)
    for slot in range(len(args.lr)):
        seed = selfplay.make_rng(args.seed, slot).getrandbits(60)
        adapters.init_member(slot, torch.Generator().manual_seed(seed))
    limits = Limits.for_format(base.prompt_format)
    return Setup(cfg, base, adapters, ranks, open_sandbox(1, False), limits, tuple(TASK_TYPES))


def learn_step(setup: Setup, adam: rl.Adam, tasks: list[Task], step: int) -> None:
    """One step: every member attempts every task and learns from its own."""
    cfg, n_members = setup.cfg, setup.adapters.n_members
    slots = [slot for slot in range(n_members) for _ in tasks]
    done = selfplay.attempt(setup, tasks * n_members, slots, step, selfplay.SOLVE, cfg.samples_per_task)
    pay = STUDENT_REWARDS[cfg.student_reward]
    rewards = torch.tensor([pay[verdict] for verdicts in done.verdicts for verdict in verdicts])
    group = torch.arange(len(slots)).repeat_interleave(cfg.samples_per_task)
    batch = rl.Batch(done.rollout, rewards, group, torch.ones_like(group), torch.zeros_like(group))
    learning = rl.UpdateConfig.of(cfg)
    rl.update(setup.base, setup.adapters, adam, batch, rl.advantages(batch, learning), learning)


def learn(args) -> dict:
    """One student, or several learning rates side by side, on fresh random programs without teachers: greedy
    accuracy on held-out ones, share of answers that think, their tokens; a JSON line last."""
    began, setup = time.monotonic(), open_setup(args)
    adam, slots = rl.Adam(setup.adapters, args.lr), {str(slot): slot for slot in range(len(args.lr))}
    per_step, curves = args.tasks * setup.cfg.samples_per_task, {slot: [] for slot in slots}
    n_steps = max(1, args.budget // per_step)
    evaluated = {round(i * n_steps / args.evals) for i in range(args.evals + 1)}
    with setup.sandbox:
        held_out = [task for size in args.sizes
                    for task in draw_tasks(ROW[args.kind], size, args.held_out, 99)]
        print("attempts      s     rate  greedy think tokens")
        for step in range(n_steps + 1):
            if step in evaluated:
                by_member, _ = answers(setup, slots, held_out, step, 0.0)
                for slot, found in by_member.items():
                    right, thinks = fmean(x or 0 for x in found.correct), fmean(found.thinks)
                    seconds, rate = time.monotonic() - began, args.lr[int(slot)]
                    print(f"{step * per_step:8d} {seconds:6.0f}  {rate:7.0e}   {right:.3f}  {thinks:.2f} "
                          f"{fmean(found.tokens):6.1f}", flush=True)
                    curves[slot].append((step * per_step, round(right, 4), round(thinks, 4)))
            if step < n_steps:
                tasks = range(step * args.tasks, (step + 1) * args.tasks)
                learn_step(setup, adam, [fresh(args, i) for i in tasks], step)
    rates = [dict(lr=args.lr[int(slot)], curve=curve) for slot, curve in curves.items()]
    return dict(base=args.base, seed=args.seed, kind=args.kind, train=args.train[1:], rates=rates)


def learn_flags(parser) -> None:
    """The flags of learn."""
    parser.add_argument("--base", default="micro/base", help="directory of the base")
    parser.add_argument("--lr", type=float, nargs="+", help="learning rates, each a member of the batch")
    parser.add_argument("--tasks", type=int, default=16, help="a step")
    parser.add_argument("--budget", type=int, default=8000, help="attempts of each member, in all")
    parser.add_argument("--evals", type=int, default=8, help="evaluations after the first")
    parser.add_argument("--held-out", type=int, default=40, help="held-out tasks of each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[*range(2, 9)], help="statements of programs")
    parser.add_argument("--kind", choices=tuple(ROWS.values()), default="code_o")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("train", nargs=argparse.REMAINDER, help="-- and flags of train.py")


COMMANDS = {"learn": (learn, learn_flags)}
