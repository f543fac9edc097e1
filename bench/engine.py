"""decode, update and step: the engine beside transformers, PEFT and itself with one member.

All ways of one command share weights, adapters, prompts, lengths and process. That they compute the same is
held by tests/bench.
"""
import dataclasses

import torch

from bench.common import ratio, show, take_turns
from bench.peers import Peers
from bench.workload import (
    POP,
    SHAPES,
    base_of,
    decoder,
    fixed_rollout,
    members_of,
    one_after_another,
    population,
    prompts_of,
    random_model,
    stepper,
    updater,
    without_end,
)
from infra.distributed import Ranks
from model import Base
from weights import load_base


def flags(parser) -> None:
    """What all engine commands take."""
    parser.add_argument("--base", default="micro/base", help="directory of the base")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="no transformers and PEFT")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 16], help="rows of a batch")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt, at least 1")
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer, at least 2")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    device, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
    parser.add_argument("--device", default=device)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default=dtype)


def update_flags(parser) -> None:
    """What update and step take."""
    flags(parser)
    parser.set_defaults(prompt=16, new=16)
    parser.add_argument("--samples-per-task", type=int, default=4, help="rows that share a prompt")
    parser.add_argument("--tokens-per-microbatch", type=int, default=2048, help="of the update, padded")


def open_base(args) -> Base:
    """The base of the flags, whose answers never end by themselves."""
    torch.set_num_threads(args.threads)
    device = Ranks.join(args.device).device
    dtype = getattr(torch, args.dtype)
    if args.shape:
        return base_of(random_model(SHAPES[args.shape], dtype, device), args.shape)
    return without_end(load_base(args.base, dtype, device))


def decode(args) -> dict:
    """Rollouts: 8 members in one batch, 1 member, none; PEFT mixed and one by one."""
    base = open_base(args)
    adapters = population(base, args.rank)
    new, lines, figures = args.new, [], {}
    peers = Peers(base, adapters) if args.peers else None
    for rows in args.rows:
        prompts, members = prompts_of(base, rows, args.prompt), members_of(rows)
        ways = {"8 members, one batch": decoder(base, adapters, prompts, members, new),
                "1 member": decoder(base, adapters, prompts, [0] * rows, new),
                "no adapter": decoder(base, None, prompts, [-1] * rows, new)}
        if peers:
            of = [[prompt for prompt, member in zip(prompts, members) if member == p] for p in range(POP)]
            alone = [peers.decoder(peers.lora, of[p], new, active=f"m{p}") for p in range(POP)]
            names = [f"m{p}" for p in members]
            ways |= {"transformers, no adapter": peers.decoder(peers.plain, prompts, new),
                     "PEFT, adapter_names": peers.decoder(peers.lora, prompts, new, names),
                     "PEFT, one after another": one_after_another(alone)}
        seen = take_turns(ways, args.repeats)
        for name, seconds in seen.items():
            lines.append((f"{rows} rows: {name}", "tokens/s", [rows * new / s for s in seconds]))
        ours = seen["8 members, one batch"]
        others = {"x_peft_mixed": "PEFT, adapter_names", "x_peft_sequential": "PEFT, one after another",
                  "x_transformers": "transformers, no adapter"}
        figures |= {f"{key}_{rows}": ratio(seen[name], ours) for key, name in others.items() if name in seen}
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(ours, seen["1 member"])
        figures[f"x_pop8_over_base_{rows}"] = ratio(ours, seen["no adapter"])
    show(lines)
    return figures


def update(args) -> dict:
    """The joint update of 8 members against a loop over PEFT adapters, and one member with all the rows."""
    base = open_base(args)
    adapters = population(base, args.rank)
    budget, figures, lines = args.tokens_per_microbatch, {}, []
    peers = Peers(base, adapters) if args.peers else None
    for rows in args.rows:
        rollout = fixed_rollout(base, members_of(rows), args.prompt, args.new, args.samples_per_task)
        single = dataclasses.replace(rollout, member=torch.zeros_like(rollout.member))
        ways = {"8 members, one pass": updater(base, adapters, rollout, budget),
                "1 member": updater(base, adapters, single, budget)}
        if peers:
            ways["PEFT, one after another"] = peers.updater(rollout)
        seen = take_turns(ways, args.repeats)
        lines += [(f"{rows} rows: {name}", "s", seconds) for name, seconds in seen.items()]
        ours = seen["8 members, one pass"]
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(ours, seen["1 member"])
        if peers:
            figures[f"x_peft_loop_{rows}"] = ratio(seen["PEFT, one after another"], ours)
    show(lines)
    return figures


def step(args) -> dict:
    """Rollout, joint gradient and optimiser step together, at equal rows: 8 members, 1 member."""
    base, figures, lines = open_base(args), {}, []
    for rows in args.rows:
        ways = {}
        for n, members in ((POP, members_of(rows)), (1, [0] * rows)):
            ways[n] = stepper(base, population(base, args.rank, n), members, args.prompt, args.new,
                              args.samples_per_task, args.tokens_per_microbatch)
        seen = take_turns(ways, args.repeats)
        lines += [(f"{rows} rows: {n} members", "s", seconds) for n, seconds in seen.items()]
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(seen[POP], seen[1])
    show(lines)
    return figures


COMMANDS = {"decode": (decode, flags), "update": (update, update_flags), "step": (step, update_flags)}
