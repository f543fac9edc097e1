"""What do eight adapters cost? Ways are measured in one process and in turns, so that a load from outside meets each.

    python bench.py decode            rollouts of 8 members in one batch, of one member, of none, and by PEFT
    python bench.py update            the joint gradient of 8 members, and of one with all the rows
    python bench.py verifier          programs a second, beside `python -c`
    python bench.py decode --shape 7b --rows 64 --prompt 768 --new 256       random weights of a 7B's shape, on a card
"""
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

import rl
from common import leave, parser_of
from ranks import Ranks, pick_dtype
from generate import Prompts, Rollout, SamplingParams, generate
from lora import Adapters
from model import Base, Model, ModelConfig
from verifier import Job, Sandbox
from weights import load_base, save_peft

POP = 8
Work = Callable[[], object]
SHAPES = {                          # Qwen2.5-Coder's
    "7b": ModelConfig(152064, 3584, 18944, 28, 28, 4),
    "0.5b": ModelConfig(151936, 896, 4864, 24, 14, 2, tie_word_embeddings=True)}


def take_turns(cases: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds of each; the cases run forwards, backwards, ...; prints them with their ranges."""
    seen = {name: [] for name in cases}
    for i in range(repeats + 1):
        for name in list(cases)[::1 if i % 2 else -1]:
            start = time.perf_counter()
            cases[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seen[name].append(time.perf_counter() - start)
    medians = {}
    for name, (_, *seconds) in seen.items():        # the first turn warms up
        medians[name] = statistics.median(seconds)
        print(f"{name:16} {medians[name]:9.4g} s   {min(seconds):.4g} .. {max(seconds):.4g}")
    return medians


@torch.no_grad()
def random_base(shape: str, dtype: torch.dtype, device: torch.device) -> Base:
    """A base without tokenizer, drawn on the device; what passes through keeps its size."""
    with torch.device("meta"):
        model = Model(SHAPES[shape]).to(dtype)
    model = model.to_empty(device=device).requires_grad_(False).eval()
    for name, p in model.named_parameters():
        p.fill_(1) if "norm" in name else p.normal_(0, p.shape[-1] ** -.5)
    return Base(model.fuse(), None, (), "base", Path(shape), graphs=model.embedding.is_cuda)


def population(base: Base, rank: int) -> Adapters:
    """Members that all differ a little from the base."""
    adapters = Adapters.on(base.model, POP, rank, 2.0 * rank, device=base.model.embedding.device)
    gen = torch.Generator().manual_seed(0)
    for p in range(POP):
        adapters.init_member(p, gen)
        for B in adapters.B.values():
            B.data[p] = (torch.randn(B.shape[1:], generator=gen) * .01).to(B)
    return adapters


def peft_decode(base: Base, adapters: Adapters, ids: list[list[int]], members: list[int], new: int) -> Work:
    """The same by PEFT with mixed adapter_names."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    twin = AutoModelForCausalLM.from_pretrained(base.path, dtype=base.model.embedding.dtype)
    with tempfile.TemporaryDirectory() as folder:
        for p in range(POP):
            save_peft(adapters, p, Path(folder, f"m{p}"), str(base.path))
        model = PeftModel.from_pretrained(twin, f"{folder}/m0", "m0")
        for p in range(1, POP):
            model.load_adapter(f"{folder}/m{p}", f"m{p}")
    model = model.to(base.model.embedding.device).eval()
    x = torch.tensor(ids, device=model.device)
    return partial(model.generate, input_ids=x, attention_mask=torch.ones_like(x), do_sample=True, top_k=0,
                   adapter_names=[f"m{p}" for p in members], max_new_tokens=new, min_new_tokens=new, eos_token_id=None,
                   pad_token_id=0)


def engine(args: object) -> None:
    """decode and update."""
    device = Ranks.join(args.device).device
    dtype = getattr(torch, pick_dtype("auto", device))
    base = random_base(args.shape, dtype, device) if args.shape else load_base(args.base, dtype, device)
    adapters = population(base, args.rank)
    endless = replace(base, eos_ids=())
    for rows in args.rows:
        gen = torch.Generator().manual_seed(1)
        ids = torch.randint(10, base.model.cfg.vocab_size, (rows, args.prompt + args.new), generator=gen)
        prompts = ids[:, :args.prompt].tolist()
        mixed = [i * POP // rows for i in range(rows)]

        def decode(members: list[int], used: Adapters | None = adapters) -> None:
            keys = [(7, i) for i in range(rows)]
            generate(endless, used, Prompts(prompts, members, keys), SamplingParams(1, 1.0, args.new, rows))

        def update(members: list[int]) -> None:
            member = torch.tensor(members, device=device)
            long = torch.full_like(member, args.prompt + args.new)
            rollout = Rollout(ids.to(device), torch.full_like(member, args.prompt), long, torch.zeros(ids.shape, device=device), member)
            adv = torch.linspace(-1, 1, rows, device=device) + .01
            batch = rl.Batch(rollout, adv, member, member * 0, member * 0)
            rl.update(base, adapters, batch, adv, rl.Adam(adapters), rl.DEFAULT)

        work = decode if args.command == "decode" else update
        cases = {f"{POP} members": partial(work, mixed), "1 member": partial(work, [0] * rows)}
        if args.command == "decode":
            cases["no adapter"] = partial(decode, [-1] * rows, None)
            if find_spec("peft") and not args.shape:
                cases["PEFT, mixed"] = peft_decode(base, adapters, prompts, mixed, args.new)
        print(f"{args.command}, {rows} rows of {args.prompt} + {args.new} tokens")
        seconds = take_turns(cases, args.repeats)
        print(", ".join(f"{name} {x / seconds[f'{POP} members']:.2f}" for name, x in seconds.items()) + " times 8 members'")


def verifier(args: object) -> None:
    """Trivial programs, another one each."""
    n = 400
    jobs = [Job(f"def f(x):\n    return x + {i}", ("1",)) for i in range(n)]
    with Sandbox(workers=2) as sandbox:
        seconds = take_turns({"verifier": partial(sandbox.run, jobs), "python -c": lambda: [subprocess.run(
            [sys.executable, "-c", f"print(1 + {i})"], capture_output=True) for i in range(n // 20)]}, args.repeats)
    print(f"{n / seconds['verifier']:.0f} programs a second, {20 * seconds['python -c'] / seconds['verifier']:.1f} times python -c")


def main() -> None:
    """The command line."""
    p = parser_of("bench.py", __doc__)
    p.add_argument("command", choices=("decode", "update", "verifier"))
    p.add_argument("--base", default="micro/base")
    p.add_argument("--shape", choices=SHAPES, help="random weights instead, without PEFT")
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--rows", type=int, nargs="+", default=[64, 16])
    p.add_argument("--prompt", type=int, default=32)
    p.add_argument("--new", type=int, default=32)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--device", default="auto")
    args = p.parse_args()
    verifier(args) if args.command == "verifier" else engine(args)


if __name__ == "__main__":
    leave("bench.py", main)
