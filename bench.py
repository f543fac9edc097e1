"""How fast is it, and what do eight adapters cost? Ways are measured in turns, so that a load meets each.

    python bench.py decode            rollouts of 8 members in one batch, of one member, of none, and by PEFT
    python bench.py update            the joint gradient of 8 members, and of one with all the rows (no KL)
    python bench.py step              rollout, gradient and optimiser step together
    python bench.py verifier          programs a second, beside `python -c`
    python bench.py speedrun          tokens until the students solve .70 of the held-out tasks
    python bench.py decode --shape 7b --rank 32 --rows 16 64 256 --prompt 768 --new 256        on a card

A figure is a median over repeats, with its range. Decoding is told as a share of the memory's bandwidth, the
update as a share of peak arithmetic; both peaks are measured here, by a copy and by a product of matrices.
"""
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

import rl
import train
from common import leave, parser_of
from config import config_of, parse_args
from generate import Prompts, Rollout, SamplingParams, generate
from lora import TARGETS, Adapters
from measure import heldout_mean, spent
from model import Base, Model, ModelConfig
from ranks import DTYPES, Ranks, pick_dtype
from verifier import Job, Sandbox
from weights import load_base

POP = 8
ATTEMPTS = 4                        # rows of an update with one prompt
GOAL = 0.70                         # of the speedrun
RULES = "--out out/speedrun --pop 8 --probe-every 3 --n-heldout 476 --keep 1"
Work = Callable[[], object]         # what is measured
SHAPES = {                          # random weights of this shape
    "7b": ModelConfig(                  # Qwen2.5-Coder's
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4),
}


def take_turns(cases: dict[str, Work], repeats: int) -> dict[str, float]:
    """Runs the cases forwards, backwards, ... and prints the seconds of each. Returns their medians."""
    seen = {name: [] for name in cases}
    names = list(cases)
    for turn in range(repeats + 1):
        for name in names:
            start = time.perf_counter()
            cases[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:                            # the first turn warms up
                seen[name].append(time.perf_counter() - start)
        names.reverse()
    medians = {}
    for name, seconds in seen.items():
        medians[name] = statistics.median(seconds)
        print(f"  {name:16} {medians[name]:9.4g} s   {min(seconds):.4g} .. {max(seconds):.4g}", flush=True)
    return medians


# --- what is measured ---------------------------------------------------------------------------------------

def random_base(shape: str, dtype: torch.dtype, device: torch.device) -> Base:
    """Returns a base without tokenizer, drawn on the device."""
    with device:
        model = Model(SHAPES[shape]).to(dtype)
    model = model.requires_grad_(False).eval()
    return Base(model.fuse(), None, (), "base", Path(shape), graphs=device.type == "cuda")


def population(base: Base, rank: int) -> Adapters:
    """Returns members that all differ a little from the base."""
    adapters = Adapters.on(base.model, POP, rank, 2.0 * rank, device=base.model.embedding.device)
    for factor in adapters.parameters():
        factor.data.normal_(0, .01)
    return adapters


def work_of(
    args: Namespace,
    base: Base,
    adapters: Adapters | None,
    members: list[int],                     # of each row
    new: int,                               # tokens of an answer
) -> Work:
    """Returns a function that decodes, accumulates the gradient, or does both and takes the optimiser's step.
    Rows are random tokens of full length, and ATTEMPTS rows after each other share a prompt."""
    device = base.model.embedding.device
    rows, P = len(members), args.prompt
    ids = torch.randint(10, base.model.cfg.vocab_size, (rows, P + new))
    first = torch.arange(rows) // ATTEMPTS * ATTEMPTS
    ids[:, :P] = ids[first, :P]
    member = torch.tensor(members)
    prompt_len = torch.full_like(member, P)
    rollout = Rollout(ids, prompt_len, prompt_len + new, torch.zeros(ids.shape), member).to(device)

    keys = [(7, i) for i in range(rows)]
    prompts = Prompts(ids[:, :P].tolist(), members, keys)
    endless = replace(base, eos_ids=())
    decode = partial(generate, endless, adapters, prompts, SamplingParams(1, 1.0, new, rows))
    adv = torch.linspace(-1, 1, rows, device=device) + .01
    batch = rl.Batch(rollout, adv, rollout.member, rollout.member, rollout.member)
    cfg = replace(rl.DEFAULT, tokens_per_microbatch=2048, kl_coef=0.0)
    update = partial(rl.accumulate, base, adapters, batch, adv, cfg)

    def step() -> None:
        decode()
        update()
        adam = rl.Adam(adapters)                        # rates of 0: the next turn finds the same members
        adam.step(adam.steps == 0)                      # everybody's: a new Adam has made no step

    return dict(decode=decode, update=update, step=step)[args.command]


def by_peft(
    args: Namespace,
    base: Base,
    members: list[int],                     # of each row
) -> Work:
    """Returns a function that decodes as many rows by PEFT, with mixed adapter_names."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    twin = AutoModelForCausalLM.from_pretrained(base.path, dtype=base.model.embedding.dtype)
    config = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules=list(TARGETS))
    model = get_peft_model(twin, config, "m0")
    for p in range(1, POP):
        model.add_adapter(f"m{p}", config)
    model = model.to(base.model.embedding.device).eval()
    ids = torch.full((len(members), args.prompt), 10, device=model.device)
    return partial(
        model.generate,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        adapter_names=[f"m{p}" for p in members],
        do_sample=True,
        top_k=0,
        max_new_tokens=args.new,
        min_new_tokens=args.new)


# --- shares of the machine ----------------------------------------------------------------------------------

def peaks(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Returns the bytes a second that a copy moves, and the operations a second of a product of matrices."""
    n = 8192 if device.type == "cuda" else 1024
    x = torch.randn(n, n, device=device).to(dtype)
    y = torch.empty_like(x)
    cases = {"copy": lambda: y.copy_(x), "product": lambda: torch.mm(x, x, out=y)}
    seconds = take_turns(cases, 9)
    return 2 * x.nbytes / seconds["copy"], 2 * n ** 3 / seconds["product"]


def bytes_of_step(
    args: Namespace,
    base: Base,
    adapters: Adapters,
    rows: int,
) -> float:
    """Returns the bytes that a step of decoding reads, on average: weights, adapters and cache."""
    model, cfg = base.model, base.model.cfg
    weights = sum(p.nbytes for p in model.parameters())
    if not cfg.tie_word_embeddings:
        weights -= model.embedding.nbytes               # a token reads its own line of it alone
    factors = sum(factor.numel() for factor in adapters.parameters())
    slots = rows * (args.prompt + args.new / 2)
    width = cfg.num_key_value_heads * cfg.head_dim
    of_slot = 2 * cfg.num_hidden_layers * width         # keys and values
    size = model.embedding.element_size()
    return weights + size * (factors + slots * of_slot)


def operations_of_update(args: Namespace, base: Base, rows: int) -> float:
    """Returns the operations of an update, without attention and adapters. A weight and token cost 2 in the
    forward pass and 2 in the backward pass, because the weights are frozen."""
    prompts = rows / ATTEMPTS * args.prompt             # a prompt is run once for its answers
    n_tokens = prompts + rows * (args.new - 1)
    blocks = sum(layer.weight.numel() for layer in base.model.linears().values())
    head = base.model.embedding.numel()
    return 4 * (n_tokens * blocks + rows * args.new * head)


# --- commands -----------------------------------------------------------------------------------------------

def engine(args: Namespace) -> None:
    """Measures decode, update or step."""
    device = Ranks.join(args.device).device
    dtype = DTYPES[pick_dtype("auto", device)]
    if device.type == "cpu":
        torch.set_num_threads(1)
    if args.shape:
        base = random_base(args.shape, dtype, device)
    else:
        base = load_base(args.base, dtype, device)
    adapters = population(base, args.rank)
    print(f"{device}, {dtype}")
    moved, computed = peaks(dtype, device)
    print(f"a copy moves {moved / 1e9:.4g} GB/s, a product computes {computed / 1e12:.3g} TFLOP/s")
    new = args.new
    for rows in args.rows:
        mixed = [i * POP // rows for i in range(rows)]
        cases = {
            "8 members": work_of(args, base, adapters, mixed, new),
            "1 member": work_of(args, base, adapters, [0] * rows, new),
        }
        if args.command == "decode":
            cases["no adapter"] = work_of(args, base, None, [-1] * rows, new)
            cases["prompts alone"] = work_of(args, base, adapters, mixed, 1)
            if find_spec("peft") and not args.shape:
                cases["PEFT, mixed"] = by_peft(args, base, mixed)
        print(f"{args.command}, {rows} rows of {args.prompt} + {new} tokens")
        seconds = take_turns(cases, args.repeats)
        whole = seconds["8 members"]
        ratio = whole / seconds["1 member"]
        print(f"  8 members / 1: {ratio:.3g}, {rows * new / whole:,.0f} answer tokens/s")
        if args.command == "decode":                    # the prompts' states give the first token
            step = (whole - seconds["prompts alone"]) / (new - 1)
            share = bytes_of_step(args, base, adapters, rows) / step / moved
            print(f"  after the prompts {rows / step:,.0f} tokens/s, {share:.1%} of what a copy moves")
        if args.command == "update":
            share = operations_of_update(args, base, rows) / whole / computed
            print(f"  {share:.1%} of what a product computes")


def verifier(args: Namespace) -> None:
    """Measures the verifier on trivial programs, another one each, beside `python -c`."""
    n, few = 400, 20
    jobs = [Job(f"def f(x):\n    return x + {i}", ("1",)) for i in range(n)]

    def interpreters() -> None:
        for i in range(few):
            subprocess.run([sys.executable, "-c", f"print(1 + {i})"], capture_output=True)

    with Sandbox(workers=2) as sandbox:
        cases = {"verifier": partial(sandbox.run, jobs), "python -c": interpreters}
        seconds = take_turns(cases, args.repeats)
    rate = n / seconds["verifier"]
    print(f"{rate:.0f} programs a second, {rate * seconds['python -c'] / few:.1f} times python -c")


def speedrun(args: Namespace) -> None:
    """Prints the tokens of proposals and attempts before the probe at which the students reach GOAL, for each
    seed. Flags that bench.py does not know are train.py's."""
    for seed in range(args.seeds):
        rows = []

        def enough(row: dict) -> bool:
            rows.append(row)
            return (heldout_mean(row) or 0) >= GOAL

        words = f"{RULES} --base {args.base} --rank {args.rank} --name seed_{seed} --seed {seed}".split()
        train.main(config_of(parse_args(None, words + args.train)), enough)
        before = [0, *spent(rows)][-2]                  # a probe comes before its step's update
        told = f"{before:,} tokens" if enough(rows[-1]) else "not reached"
        print(f"seed {seed}: {told}", flush=True)


def main() -> None:
    """Reads the command line and measures."""
    p = parser_of("bench.py", __doc__)
    p.add_argument("command", choices=("decode", "update", "step", "verifier", "speedrun"))
    p.add_argument("--base", default="micro/base", help="directory of the base")
    p.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead, without PEFT")
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--rows", type=int, nargs="+", default=[64, 16])
    p.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    p.add_argument("--new", type=int, default=32, help="tokens of an answer, at least 2")
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--device", default="auto")
    p.add_argument("--seeds", type=int, default=8, help="runs of the speedrun")
    args, args.train = p.parse_known_args()
    command = dict(verifier=verifier, speedrun=speedrun).get(args.command, engine)
    if args.train and command != speedrun:
        p.error(f"unknown: {' '.join(args.train)}")
    command(args)


if __name__ == "__main__":
    leave("bench.py", main)
