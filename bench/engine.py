"""decode, update and step: 8 members in one batch beside one member with all the rows, and beside PEFT.

All ways of one command share weights, adapters, prompts, lengths and process. That they compute the same is
held by tests/test_lora.py and tests/test_rl.py.
"""
import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

import rl
from bench import workload
from bench.workload import POP, Work, both, members_of, ratio, show, take_turns
from infra.distributed import Ranks
from infra.precision import pick_dtype
from lora import Adapters
from model import Base
from weights import load_base, save_peft

RANK = 8                        # of adapters
ATTEMPTS = 4                    # rows of an update with one prompt
MICROBATCH = 2048               # tokens
FLAGS = {
    "--base": dict(default="micro/base", help="directory of the base"),
    "--shape": dict(choices=workload.SHAPES, help="random weights instead, without PEFT"),
    "--rows": dict(type=int, nargs="+", default=[64, 16], help="rows of a batch"),
    "--prompt": dict(type=int, default=32, help="tokens of a prompt, at least 1"),
    "--new": dict(type=int, default=32, help="tokens of an answer, at least 2"),
    "--repeats": dict(type=int, default=5),
    "--device": dict(default="auto"),
}


def open_base(args: argparse.Namespace) -> tuple[Base, Adapters]:
    """The base of the flags, and 8 members on it; one thread."""
    torch.set_num_threads(1)
    device = Ranks.join(args.device).device
    dtype = getattr(torch, pick_dtype("auto", device))
    if args.shape:
        base = workload.random_base(args.shape, dtype, device)
    else:
        base = load_base(args.base, dtype, device)
    return base, workload.population(base, RANK)


def peft_of(base: Base, adapters: Adapters) -> torch.nn.Module:
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


@torch.inference_mode()
def peft_decode(model: torch.nn.Module, ids: torch.Tensor, members: list[int], new: int) -> None:
    """Sample answers at temperature 1 in one batch of mixed members."""
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        adapter_names=[f"m{p}" for p in members],
        top_k=0,
        do_sample=True,
        max_new_tokens=new,
        min_new_tokens=new,
        eos_token_id=None,
        pad_token_id=0)


def compare(
    args: argparse.Namespace,
    work_of: Callable[[list[int]], Work],           # the member of each row -> what is measured
    others: Callable[[int], dict[str, Work]] = lambda rows: {},
) -> dict:
    """Measure 8 members, one and others in turns, print their seconds; {"x_NAME_ROWS": share of 8 members'
    time}."""
    figures = {}
    for rows in args.rows:
        cases = both(rows, "pop", work_of) | others(rows)
        seen = take_turns(cases, args.repeats)
        for name, seconds in seen.items():
            show(f"{rows} rows: {name}", "s", seconds)
            figures[f"x_{name}_{rows}"] = ratio(seconds, seen["pop8"])
    return figures


def decode(args: argparse.Namespace) -> dict:
    """Rollouts: 8 members in one batch, one member, none; PEFT with mixed adapter_names, where installed."""
    base, adapters = open_base(args)
    peft = None
    if find_spec("peft") and not args.shape:
        peft = peft_of(base, adapters)

    def work_of(members: list[int], used: Adapters | None = adapters) -> Work:
        prompts = workload.prompts_of(base, len(members), args.prompt)
        return workload.decoder(base, used, prompts, members, args.new)

    def others(rows: int) -> dict[str, Work]:
        cases = {"base": work_of([-1] * rows, None)}
        if peft:
            prompts = workload.prompts_of(base, rows, args.prompt)
            ids = torch.tensor(prompts, device=peft.device)
            cases["peft_mixed"] = partial(peft_decode, peft, ids, members_of(rows), args.new)
        return cases

    return compare(args, work_of, others)


def update(args: argparse.Namespace) -> dict:
    """The joint update of 8 members, and of one with all the rows."""
    base, adapters = open_base(args)

    def work_of(members: list[int]) -> Work:
        rollout = workload.fixed_rollout(base, members, args.prompt, args.new, ATTEMPTS)
        return workload.updater(base, adapters, rollout, MICROBATCH)

    return compare(args, work_of)


def step(args: argparse.Namespace) -> dict:
    """Rollout, joint gradient and optimiser step together, at equal rows: 8 members, one member."""
    base, _ = open_base(args)

    def work_of(members: list[int]) -> Work:
        adapters = workload.population(base, RANK, members[-1] + 1)
        rollout = workload.fixed_rollout(base, members, args.prompt, args.new, ATTEMPTS)
        # A prompt's rows stand beside each other, and belong to one member.
        prompts = rollout.ids[::ATTEMPTS, :args.prompt].tolist()
        decode = workload.decoder(base, adapters, prompts, members[::ATTEMPTS], args.new, ATTEMPTS)
        update = workload.updater(base, adapters, rollout, MICROBATCH)
        adam = rl.Adam(adapters, [1e-5] * adapters.n_members)
        everybody = torch.ones_like(adam.steps, dtype=torch.bool)

        def whole() -> None:
            decode()
            update()
            adam.step(everybody)

        return whole

    return compare(args, work_of)

