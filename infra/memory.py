"""How much memory a run's plan takes and how much is there, and what the largest batches are that fit."""
import bisect
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

import rl
from generate import PREFILL, Rollout
from infra.distributed import Ranks
from lora import Adapters
from model import Base, Model, ModelConfig

ALWAYS, GENERATE, UPDATE = ("base", "adapters", "optimiser"), ("cache", "decoding"), ("gradients", "activations", "logits")


def longest_row(cfg, m: ModelConfig) -> int:
    """Tokens of the longest row that is planned for: a prompt with a program of the model's own and references, and an answer."""
    return min(m.max_position_embeddings, 2 * cfg.max_new_tokens + 512 * (cfg.n_few_shot > 0))


def memory_plan(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int) -> dict[str, float]:
    """Gigabytes of a run's tensors by use: those that are ALWAYS there, while it GENERATEs and while it UPDATEs. See `peak`.

    Counted from the code: what autograd saves per token and layer, and the copies of logits that live at once.
    """
    with torch.device("meta"):
        model = Model(m)
    size, V, C, I, L = dtype.itemsize, m.vocab_size, m.hidden_size, m.intermediate_size, m.num_hidden_layers
    q, kv, T = m.num_attention_heads * m.head_dim, m.num_key_value_heads * m.head_dim, longest_row(cfg, m)
    targets = cfg.lora_targets.split(",")
    adapted = [[x for x in project.layers if x.path.rsplit(".")[-1] in targets] for project in model.fused_linears()]
    factors = n_members * cfg.rank * sum(x.in_features + x.out_features for group in adapted for x in group)
    serving = n_members * cfg.rank * sum(len(group) * (p.layers[0].in_features + sum(p.sizes))
                                         for p, group in zip(model.fused_linears(), adapted))
    tokens, prompt = max(cfg.tokens_per_microbatch, T), max(1, T - cfg.max_new_tokens)
    saved = L * (4 * C + 4 * I + 3 * q + 3 * kv) + sum(map(len, adapted)) * cfg.rank
    passing = 4 * C + max(4 * I, 4 * q + 3 * kv)             # tensors of the one layer that is being computed: MLP or attention
    sampling = cfg.rollout_batch * V * (size + 12)                # logits; in float32 log-probabilities, probabilities and their sums
    admitted = min(max(1, PREFILL // prompt), cfg.rollout_batch)  # prompts run at a time, with a cache and scores of their own
    prefill = admitted * (prompt * (passing + 2 * kv * L) + 2 * V) * size
    chunk = min(rl.CHUNK, tokens * V) * (12 + 8 * (cfg.entropy_coef > 0))
    weights = sum(p.numel() for p in model.parameters())
    plan = dict(base=weights * size, adapters=factors * 4 + serving * size, optimiser=factors * 8,
                cache=cfg.rollout_batch * T * 2 * kv * size * (L + 1),     # one layer is there twice while rows leave
                decoding=max(sampling, prefill), gradients=factors * 4, logits=chunk,
                activations=max(cfg.tokens_per_microbatch * (saved + passing), T * (L * C + saved / L + passing)) * size)
    return {k: v / 2 ** 30 for k, v in plan.items()}


def peak(plan: dict[str, float]) -> float:
    """Gigabytes of a plan at the worst moment: generation and update take turns."""
    total = lambda names: sum(plan[k] for k in names)
    return total(ALWAYS) + max(total(GENERATE), total(UPDATE))


def largest_budget(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float) -> int:
    """The largest --tokens-per-microbatch, in steps of 256 up to 2^20, whose plan fits into `free` gigabytes; 0 if none does."""
    budgets = range(256, 2 ** 20 + 1, 256)
    need = lambda b: peak(memory_plan(replace(cfg, tokens_per_microbatch=b), m, dtype, n_members))
    return 256 * bisect.bisect_right(budgets, free, key=need)


def plan_table(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float) -> tuple[str, bool]:
    """The plan as text, one line a use, with the largest micro-batch or what to lower; and whether it fits into `free` GB."""
    plan, T = memory_plan(cfg, m, dtype, n_members), longest_row(cfg, m)
    meaning = dict(base=f"the frozen model in {str(dtype).removeprefix('torch.')}", adapters=f"{n_members} of rank {cfg.rank}",
                   optimiser="Adam's two moments", cache=f"generation: keys and values of {cfg.rollout_batch} rows of {T} tokens",
                   decoding="generation: running the prompts, or sampling from the vocabulary",
                   gradients="update: of all adapters",
                   activations=f"update: {cfg.tokens_per_microbatch} tokens at a time, or a row of {T} with activation checkpointing",
                   logits="update: a chunk over the vocabulary")
    need, largest = peak(plan), largest_budget(cfg, m, dtype, n_members, free)
    rows = [f"{use:<12} {gb:8.2f} GB   {meaning[use]}" for use, gb in plan.items()]
    rows += [f"{'peak':<12} {need:8.2f} GB   generation and update take turns", f"{'free':<12} {free:8.2f} GB"]
    rows += [f"largest --tokens-per-microbatch that fits: {largest}" if largest else "no --tokens-per-microbatch fits"]
    if need > free:
        rows += ["lower --tokens-per-microbatch, --rollout-batch, --max-new-tokens, --rank or --pop, or pass --dtype bfloat16"]
    return "\n".join(rows), need <= free


def free_memory(device: torch.device) -> float:
    """Gigabytes available to one process on the device (CPU: its share of Linux's MemAvailable; unlimited where none is told)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / 2 ** 30
    meminfo = Path("/proc/meminfo")
    rows = meminfo.read_text().splitlines() if meminfo.exists() else []
    found = [row.split()[1] for row in rows if row.startswith("MemAvailable")]
    return int(found[0]) / 2 ** 20 / int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if found else float("inf")


def halve_until(n: int, attempt, flag: str) -> int:
    """The first of n, n/2, n/4, ... with which attempt(n) finds memory; says what does not. Raises ValueError if none does."""
    while n:
        try:
            attempt(n)
            return n
        except RuntimeError as e:                            # torch.OutOfMemoryError is one; a CPU's has no type of its own
            if not isinstance(e, torch.OutOfMemoryError) and "allocate memory" not in str(e):
                raise
        print(f"note: {flag} {n} does not fit into memory" + (f", trying {n // 2}" if n > 1 else ""), file=sys.stderr, flush=True)
        n //= 2
    raise ValueError(f"not enough memory for any {flag}: lower --max-new-tokens, --rank or --pop, or pass --dtype bfloat16; "
                     "--plan shows what takes how much")


def autotune_batch(cfg, base: Base, adapters: Adapters, ranks: Ranks):
    """cfg with the largest --rollout-batch and --tokens-per-microbatch that every process holds, tried before step 0 and not in a later one.

    What the largest rollout takes is allocated and one worst micro-batch is run, on random tokens; nothing of it stays.
    """
    model, device, T = base.model, base.model.embedding.device, longest_row(cfg, base.model.cfg)

    def rollout(n: int) -> None:
        plan = memory_plan(replace(cfg, rollout_batch=n), model.cfg, model.embedding.dtype, adapters.n_members)
        torch.empty(int(sum(plan[use] for use in GENERATE) * 2 ** 30), dtype=torch.uint8, device=device)

    def micro_batch(budget: int) -> None:
        """The fullest one of this budget: no rows share a prompt, every row is as long as any can be."""
        n = max(1, budget // T)
        ids = torch.randint(model.cfg.vocab_size, (n, T), generator=torch.Generator().manual_seed(0)).to(device)
        full, zeros = (lambda k: torch.full((n,), k, device=device)), torch.zeros(n, T, device=device)
        member = torch.arange(n, device=device) % adapters.n_members
        rollout, one = Rollout(ids, full(max(1, T - cfg.max_new_tokens)), full(T), zeros, member), zeros[:, 0] + 1
        batch = rl.Batch(rollout, one, full(0), full(0), full(0))
        try:
            rl.accumulate(base, adapters, batch, one, rl.UpdateConfig.of(replace(cfg, tokens_per_microbatch=budget)))
        finally:
            for p in adapters.parameters():
                p.grad = None

    return replace(cfg, rollout_batch=ranks.all_reduce_min(halve_until(cfg.rollout_batch, rollout, "--rollout-batch")),
                   tokens_per_microbatch=ranks.all_reduce_min(halve_until(cfg.tokens_per_microbatch, micro_batch, "--tokens-per-microbatch")))
