"""decode, update and step: 8 members in one batch beside one member with all the rows, and beside PEFT.

All ways of one command share weights, adapters, prompts, lengths and process. That they compute the same is
held by tests/test_lora.py and tests/test_rl.py.
"""
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

import rl
from bench import workload
from bench.workload import POP, members_of, ratio, show, take_turns, timed
from infra.distributed import Ranks
from infra.precision import pick_dtype
from lora import Adapters
from model import Base
from weights import load_base, save_peft

RANK, ATTEMPTS, MICROBATCH = 8, 4, 2048     # of adapters; rows of an update with one prompt; its tokens
FLAGS = {"--base": dict(default="micro/base", help="directory of the base"),
         "--shape": dict(choices=workload.SHAPES, help="random weights instead, without PEFT"),
         "--rows": dict(type=int, nargs="+", default=[64, 16], help="rows of a batch"),
         "--prompt": dict(type=int, default=32, help="tokens of a prompt, at least 1"),
         "--new": dict(type=int, default=32, help="tokens of an answer, at least 2"),
         "--repeats": dict(type=int, default=5),
         "--device": dict(default="auto")}


def open_base(args) -> tuple[Base, Adapters]:
    """The base of the flags, and 8 members on it; one thread."""
    torch.set_num_threads(1)
    device = Ranks.join(args.device).device
    dtype = getattr(torch, pick_dtype("auto", device))
    make, source = (workload.random_base, args.shape) if args.shape else (load_base, args.base)
    base = make(source, dtype, device)
    return base, workload.population(base, RANK)


def peft_of(base: Base, adapters: Adapters):
    """The same base and members in transformers and PEFT, a development package."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    twin = AutoModelForCausalLM.from_pretrained(base.path, dtype=base.model.embedding.dtype)
    with tempfile.TemporaryDirectory() as folder:
        for p in range(POP):
            save_peft(adapters, p, Path(folder, f"m{p}"), str(base.path))
        model = PeftModel.from_pretrained(twin, f"{folder}/m0", "m0")
        for p in range(1, POP):
            model.load_adapter(f"{folder}/m{p}", f"m{p}")
    return model.to(base.model.embedding.device).eval()


def peft_decoder(model, prompts: list[list[int]], members: list[int], new: int):
    """A function that samples at temperature 1 in one batch of mixed members and returns its seconds."""
    ids, names = torch.tensor(prompts, device=model.device), [f"m{p}" for p in members]

    @timed
    @torch.inference_mode()
    def run() -> None:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), adapter_names=names, top_k=0,
                       do_sample=True, max_new_tokens=new, min_new_tokens=new, eos_token_id=None,
                       pad_token_id=0)
    return run


def compare(args, ways_of) -> dict:
    """Measure ways_of(rows) in turns, print their seconds; {"x_NAME_ROWS": share of 8 members' time}."""
    figures = {}
    for rows in args.rows:
        seen = take_turns(ways_of(rows), args.repeats)
        for name, seconds in seen.items():
            show(f"{rows} rows: {name}", "s", seconds)
            figures[f"x_{name}_{rows}"] = ratio(seconds, seen["pop8"])
    return figures


def decode(args) -> dict:
    """Rollouts: 8 members in one batch, one member, none; PEFT with mixed adapter_names, where installed."""
    base, adapters = open_base(args)
    peft = peft_of(base, adapters) if find_spec("peft") and not args.shape else None

    def ways(rows: int) -> dict:
        prompts, members, new = workload.prompts_of(base, rows, args.prompt), members_of(rows), args.new
        made = {"pop8": workload.decoder(base, adapters, prompts, members, new),
                "pop1": workload.decoder(base, adapters, prompts, [0] * rows, new),
                "base": workload.decoder(base, None, prompts, [-1] * rows, new)}
        return made | ({"peft_mixed": peft_decoder(peft, prompts, members, new)} if peft else {})
    return compare(args, ways)


def update(args) -> dict:
    """The joint update of 8 members, and of one with all the rows."""
    base, adapters = open_base(args)

    def way(members: list[int]):
        rollout = workload.fixed_rollout(base, members, args.prompt, args.new, ATTEMPTS)
        return workload.updater(base, adapters, rollout, MICROBATCH)
    return compare(args, lambda rows: {"pop8": way(members_of(rows)), "pop1": way([0] * rows)})


def step(args) -> dict:
    """Rollout, joint gradient and optimiser step together, at equal rows: 8 members, one member."""
    base, _ = open_base(args)

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


COMMANDS = {work.__name__: (work, FLAGS) for work in (decode, update, step)}
