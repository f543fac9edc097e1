"""decode, update, step, scale and evolve: the engine beside transformers, PEFT and itself adapter by adapter.

All ways of one command share weights, adapters, prompts, lengths and process. Before anything is timed, gates
compare numbers and fail the run where they differ.
"""
import dataclasses
from functools import partial

import torch

import operators
from bench.common import BOUNDS, TOLD_APART, alone, peak_memory, ratio, relative_rms, show, take_turns, timed
from bench.peers import Peers
from bench.workload import (POP, SHAPES, base_of, decoder, fixed_rollout, members_of, one_after_another,
                            population, prompts_of, random_model, stepper, updater, without_end)
from infra.distributed import Ranks
from weights import load_base
from lora import Adapters
from model import Base, Model


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


def open_base(args) -> Base:
    """The base of the flags, whose answers never end by themselves."""
    torch.set_num_threads(args.threads)
    Ranks.join(args.device)             # sets the device up as a run does
    dtype = getattr(torch, args.dtype)
    graphs = args.device.startswith("cuda")
    if args.shape:
        return base_of(random_model(SHAPES[args.shape], dtype, args.device), args.shape, graphs)
    return without_end(load_base(args.base, dtype, torch.device(args.device)), graphs)


@torch.no_grad()
def check_routing(base: Base, adapters: Adapters) -> float:
    """Relative error of a mixed batch's logits against those of bases with one member merged in.

    Raises AssertionError above the bound of the base's type, and where a wrong member would pass as well.
    """
    dtype = base.model.embedding.dtype
    bound = BOUNDS[dtype]
    ids = torch.tensor(prompts_of(base, POP, 24), device=base.model.embedding.device)
    own = torch.arange(POP, device=ids.device)
    mixed = base.model.logits(base.model(ids, lora=adapters.route(own, dtype)))
    moved = base.model.logits(base.model(ids, lora=adapters.route(own.roll(1), dtype)))
    adapted = {path: layer.weight for path, layer in base.model.linears().items() if path in adapters.A}
    before = {path: weight.clone() for path, weight in adapted.items()}
    worst, of_another = 0.0, float("inf")
    for p in (0, POP - 1):
        for path, weight in adapted.items():
            weight += (adapters.scale * adapters.B[path][p] @ adapters.A[path][p]).to(weight)
        alone = base.model.logits(base.model(ids[p:p + 1]))
        for path, weight in adapted.items():
            weight.copy_(before[path])
        worst = max(worst, relative_rms(mixed[p:p + 1], alone))
        of_another = min(of_another, relative_rms(moved[p:p + 1], alone))
    assert worst < bound, f"mixed batch and merged weights differ by {worst} > {bound}"
    assert of_another > TOLD_APART * worst, f"a wrong member's error is {of_another}, the right one's {worst}"
    return worst


def decode(args) -> dict:
    """Rollouts: 8 members in one batch, 1 member, none; PEFT mixed and one by one."""
    base = open_base(args)
    adapters = population(base, args.rank)
    new = args.new
    figures = {"routing_error": check_routing(base, adapters)}
    lines = []
    peers = Peers(base, adapters) if args.peers else None
    for rows in args.rows:
        prompts = prompts_of(base, rows, args.prompt)
        members = members_of(rows)
        of = [[] for _ in range(POP)]
        for prompt, member in zip(prompts, members):
            of[member].append(prompt)
        ways = {"8 members, one batch": decoder(base, adapters, prompts, members, new),
                "1 member": decoder(base, adapters, prompts, [0] * rows, new),
                "no adapter": decoder(base, None, prompts, [-1] * rows, new)}
        if peers:
            alone = [peers.decoder(peers.lora, of[p], new, active=f"m{p}") for p in range(POP)]
            ways |= {"transformers, no adapter": peers.decoder(peers.plain, prompts, new),
                     "PEFT, adapter_names": peers.decoder(peers.lora, prompts, new,
                                                          [f"m{p}" for p in members]),
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
    budget = args.tokens_per_microbatch
    adapters = population(base, args.rank)
    figures = {}
    lines = []
    peers = Peers(base, adapters) if args.peers else None
    for rows in args.rows:
        rollout = fixed_rollout(base, members_of(rows), args.prompt, args.new, args.samples_per_task)
        single = dataclasses.replace(rollout, member=torch.zeros_like(rollout.member))
        joint = updater(base, adapters, rollout, budget)
        ways = {"8 members, one pass": joint, "1 member": updater(base, adapters, single, budget)}
        if peers:
            ways["PEFT, one after another"] = peers.updater(rollout)
            ways["PEFT, one after another"]()
            joint()
            figures[f"gradient_error_{rows}"] = peers.check_gradients(adapters)
        seen = take_turns(ways, args.repeats)
        lines += [(f"{rows} rows: {name}", "s", seconds) for name, seconds in seen.items()]
        ours = seen["8 members, one pass"]
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(ours, seen["1 member"])
        if peers:
            figures[f"x_peft_loop_{rows}"] = ratio(seen["PEFT, one after another"], ours)
    show(lines)
    return figures


def step_of(base: Base, members: list[int], n_members: int, args, paged: bool = False):
    """workload.stepper of a fresh population, by the flags. paged: only those with rows are on the device."""
    adapters = population(base, args.rank, n_members, paged)
    return stepper(base, adapters, members, args.prompt, args.new, args.samples_per_task,
                   args.tokens_per_microbatch)


def step(args) -> dict:
    """Rollout, joint gradient and optimiser step together, at equal rows: 8 members, 1 member."""
    base = open_base(args)
    figures = {}
    lines = []
    for rows in args.rows:
        seen = take_turns({"8 members": step_of(base, members_of(rows), POP, args),
                           "1 member": step_of(base, [0] * rows, 1, args)}, args.repeats)
        lines += [(f"{rows} rows: {name}", "s", seconds) for name, seconds in seen.items()]
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(seen["8 members"], seen["1 member"])
    show(lines)
    return figures


def scale(args) -> dict:
    """Seconds of a step (of a CPU's own time) and memory at its worst, by the number of members: at --rows
    rows in all, where 32 of them play, with 8 rows each, and at 8 rows each of all."""
    base = open_base(args)
    figures, sizes = {}, args.members
    cases = [(f"{args.rows[0]} rows in all, {p} members", members_of(args.rows[0], p), p) for p in sizes]
    cases += [(f"32 of {p} members play", [i // 8 * p // 32 for i in range(256)], p) for p in sizes if p > 31]
    cases += [(f"8 rows a member, {p} members", members_of(8 * p, p), p) for p in sizes]
    for label, members, p in cases:
        begin = peak_memory(reset=True)
        run = step_of(base, members, p, args, paged="play" in label)
        seconds = [alone(run) for _ in range(args.repeats)]
        mb = (peak_memory() - begin) / 1e6
        show([(label, "s", seconds), (f"{label}, a step's memory", "MB", [mb])])
        figures[label] = dict(s=round(sorted(seconds)[len(seconds) // 2], 4), mb=round(mb))
        del run
    return figures


def update_flags(parser) -> None:
    flags(parser)
    parser.set_defaults(prompt=16, new=16)
    parser.add_argument("--samples-per-task", type=int, default=4, help="rows that share a prompt")
    parser.add_argument("--tokens-per-microbatch", type=int, default=2048, help="of the update, padded")


def evolve(args) -> dict:
    """Seconds that each operator takes for one child, on all linear layers of the shape."""
    torch.set_num_threads(args.threads)
    with torch.device("meta"):
        linears = Model(SHAPES[args.shape]).linears()
    gen = torch.Generator().manual_seed(0)
    parents = [{}, {}]
    for parent in parents:
        for path, layer in linears.items():
            A = torch.randn(args.rank, layer.in_features, generator=gen)
            B = torch.randn(layer.out_features, args.rank, generator=gen) * .01
            parent[path] = (A, B)

    ways = {}
    for name, operator in operators.OPERATORS.items():
        some = parents[:operator.n_parents]
        ways[name] = timed(partial(operator.fn, some, torch.Generator().manual_seed(1)))
    figures = {}
    for name, seconds in take_turns(ways, args.repeats).items():
        show([(f"{args.shape}, rank {args.rank}: {name}", "s", seconds)])
        figures[name] = round(sorted(seconds)[len(seconds) // 2], 3)
    return dict(s_per_child=figures)


def evolve_flags(parser) -> None:
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)


def scale_flags(parser) -> None:
    update_flags(parser)
    parser.set_defaults(rows=[512], repeats=3)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 32, 128, 512, 1024])


COMMANDS = {"decode": (decode, flags), "update": (update, update_flags), "step": (step, update_flags),
            "scale": (scale, scale_flags), "evolve": (evolve, evolve_flags)}
