"""decode, update and step: 8 members in one batch beside one member with all the rows, and beside PEFT.

All ways of one command share weights, adapters, prompts, lengths and process. That they compute the same is
held by tests/bench. PEFT takes part where it is installed (requirements-dev.txt).
"""
import dataclasses
from importlib.util import find_spec

import torch

import rl
from bench import workload
from bench.common import ratio, show, take_turns, timed
from bench.peers import Peers
from bench.workload import members_of
from infra.distributed import Ranks
from infra.precision import pick_dtype
from model import Base
from weights import load_base

RANK, ATTEMPTS, MICROBATCH = 8, 4, 2048     # of adapters; rows of an update with one prompt; its tokens


def flags(parser) -> None:
    """What all three take."""
    parser.add_argument("--base", default="micro/base", help="directory of the base")
    parser.add_argument("--shape", choices=workload.SHAPES, help="random weights instead, without PEFT")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 16], help="rows of a batch")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt, at least 1")
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer, at least 2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")


def open_base(args) -> Base:
    """The base of the flags."""
    torch.set_num_threads(args.threads)
    device = Ranks.join(args.device).device
    dtype = getattr(torch, pick_dtype("auto", device))
    if args.shape:
        return workload.random_base(args.shape, dtype, device)
    return load_base(args.base, dtype, device)


def with_peers(args) -> tuple:
    """Base, 8 members on it, and the same in PEFT or None."""
    base = open_base(args)
    adapters = workload.population(base, RANK)
    return base, adapters, None if args.shape or not find_spec("peft") else Peers(base, adapters)


def compare(args, ways_of) -> dict:
    """Measure ways_of(rows) in turns for each number of rows, print their seconds; returns what each takes of
    the time of 8 members: {"x_NAME_ROWS": ratio}."""
    figures = {}
    for rows in args.rows:
        seen = take_turns(ways_of(rows), args.repeats)
        for name, seconds in seen.items():
            show(f"{rows} rows: {name}", "s", seconds)
            figures[f"x_{name}_{rows}"] = ratio(seconds, seen["pop8"])
    return figures


def decode(args) -> dict:
    """Rollouts: 8 members in one batch, one member, none; PEFT with mixed adapter_names."""
    base, adapters, peers = with_peers(args)

    def ways(rows: int) -> dict:
        prompts, members, new = workload.prompts_of(base, rows, args.prompt), members_of(rows), args.new
        made = {"pop8": workload.decoder(base, adapters, prompts, members, new),
                "pop1": workload.decoder(base, adapters, prompts, [0] * rows, new),
                "base": workload.decoder(base, None, prompts, [-1] * rows, new)}
        if peers:
            made["peft_mixed"] = peers.decoder(prompts, members, new)
        return made
    return compare(args, ways)


def update(args) -> dict:
    """The joint update of 8 members, of one with all the rows, a loop over PEFT adapters."""
    base, adapters, peers = with_peers(args)

    def ways(rows: int) -> dict:
        rollout = workload.fixed_rollout(base, members_of(rows), args.prompt, args.new, ATTEMPTS)
        single = dataclasses.replace(rollout, member=torch.zeros_like(rollout.member))
        made = {"pop8": workload.updater(base, adapters, rollout, MICROBATCH),
                "pop1": workload.updater(base, adapters, single, MICROBATCH)}
        return made | ({"peft_loop": peers.updater(rollout)} if peers else {})
    return compare(args, ways)


def step(args) -> dict:
    """Rollout, joint gradient and optimiser step together, at equal rows: 8 members, one member."""
    base = open_base(args)

    def whole(members: list[int]):
        adapters = workload.population(base, RANK, members[-1] + 1)
        adam = rl.Adam(adapters, [1e-5] * adapters.n_members)
        active = torch.ones(adapters.n_members, dtype=torch.bool, device=base.model.embedding.device)
        rollout = workload.fixed_rollout(base, members, args.prompt, args.new, ATTEMPTS)
        prompts = rollout.ids[::ATTEMPTS, :args.prompt].tolist()
        parts = [workload.decoder(base, adapters, prompts, members[::ATTEMPTS], args.new, ATTEMPTS),
                 workload.updater(base, adapters, rollout, MICROBATCH), timed(lambda: adam.step(active))]
        return lambda: sum(run() for run in parts)
    return compare(args, lambda rows: {"pop8": whole(members_of(rows)), "pop1": whole([0] * rows)})


COMMANDS = {"decode": (decode, flags), "update": (update, flags), "step": (step, flags)}
