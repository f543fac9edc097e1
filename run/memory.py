"""How much memory a run's plan takes and how much is there, and what the largest batches are that fit."""
import bisect
import os
from dataclasses import replace
from pathlib import Path

import torch

import rl
from attention import PAGE, paged_kernel, pool_pages
from generate import PREFILL
from model import Model, ModelConfig

ALWAYS = ("base", "adapters", "optimiser", "graph")
GENERATE = ("cache", "decoding")
UPDATE = ("gradients", "leaves", "activations", "mask", "logits")
MOST_ROWS = 512             # that --rollout-batch 0 takes: more bring little


def longest_row(cfg, m: ModelConfig) -> int:
    """Tokens of the longest row planned for: a program of the model's own, few-shot tasks and an answer."""
    return min(m.max_position_embeddings, 2 * cfg.max_new_tokens + 512 * (cfg.n_few_shot > 0))


def has_pages(cfg, m: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether decoding on cfg.device keeps keys and values in pages. A card that is planned for, and not
    here, has the kernel for them if it has bfloat16: both came with the Ampere generation."""
    if torch.cuda.is_available() and cfg.device not in ("cpu", "mps"):
        device = torch.device("cuda", torch.cuda.current_device())
        return bool(paged_kernel(m.num_attention_heads, m.num_key_value_heads, m.head_dim, dtype, device))
    return cfg.device.startswith("cuda") and dtype == torch.bfloat16


def cached_tokens(cfg, m: ModelConfig, dtype: torch.dtype) -> int:
    """Tokens of one layer's keys and values that a rollout has room for, all layers together."""
    T = longest_row(cfg, m)
    L = m.num_hidden_layers
    if not has_pages(cfg, m, dtype):
        return cfg.rollout_batch * T * (L + 1)                          # one layer twice while rows leave
    new = min(T, cfg.max_new_tokens)
    attempts = (1, cfg.proposals_per_prompt, cfg.samples_per_task)      # 1: a probe's greedy answers
    return max(pool_pages(cfg.rollout_batch, n, T - new, new) for n in attempts) * PAGE * L


def memory_plan(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int) -> dict[str, float]:
    """Gigabytes of a run's tensors by use: ALWAYS there, while it GENERATEs or UPDATEs. See `peak`.

    Counted from the code: what autograd saves per token and layer, and the copies of logits living at once.
    """
    with torch.device("meta"):
        model = Model(m)
    size = dtype.itemsize
    C = m.hidden_size
    F = m.intermediate_size
    L = m.num_hidden_layers
    q = m.num_attention_heads * m.head_dim
    kv = m.num_key_value_heads * m.head_dim
    T = longest_row(cfg, m)

    targets = cfg.lora_targets.split(",")
    n_adapted = 0
    base = sum(p.numel() for p in model.parameters()) * size
    factors = 0                             # numbers in all members' factors
    serving = 0                             # ... and in the copies for the products, with blocks of zeros
    for fused in model.fused_linears():
        adapted = [x for x in fused.layers if x.path.rsplit(".")[-1] in targets]
        n_adapted += len(adapted)
        factors += n_members * cfg.rank * sum(x.in_features + x.out_features for x in adapted)
        serving += n_members * cfg.rank * len(adapted) * (fused.layers[0].in_features + sum(fused.sizes))

    if cfg.dtype == "int8":
        layers = model.linears().values()
        base += sum(x.out_features * (size + x.in_features * (1 - size)) for x in layers)
        base += size * max(fused.layers[0].in_features * sum(fused.sizes) for fused in model.fused_linears())

    saved = L * (4 * C + 4 * F + 3 * q + 3 * kv) + n_adapted * cfg.rank     # a token's, for the backward pass
    if cfg.device != "cpu" and torch.cuda.is_available():       # under a mask keys and values are repeated
        saved += L * 2 * (q - kv)
    answers = max(cfg.proposals_per_prompt, cfg.samples_per_task) * cfg.max_new_tokens
    line = min(cfg.tokens_per_microbatch, T + answers)
    passing = 4 * C + max(4 * F, 4 * q + 3 * kv)        # of the one layer being computed: MLP or attention
    whole = cfg.tokens_per_microbatch * (saved + passing)
    checkpointed = T * (L * C + saved / L + passing)

    prompt = max(1, T - cfg.max_new_tokens)
    admitted = min(max(1, PREFILL // prompt), cfg.rollout_batch)        # prompts run at a time
    prefill = admitted * (prompt * (passing + 2 * kv * L) + 2 * m.vocab_size) * size
    # the logits, and in float32 their log-probabilities, probabilities and sums
    sampling = cfg.rollout_batch * m.vocab_size * (size + 12)
    graph = sampling + cfg.rollout_batch * passing * size if has_pages(cfg, m, dtype) else 0   # has a pool
    # a micro-batch's members: a line of each, seldom shorter than 256 tokens
    n_present = min(n_members, max(1, cfg.tokens_per_microbatch // 256))
    chunk = min(rl.CHUNK, max(cfg.tokens_per_microbatch, T) * m.vocab_size)
    plan = dict(base=base, adapters=factors * 4 + serving * size, optimiser=factors * 8, graph=graph,
                cache=cached_tokens(cfg, m, dtype) * 2 * kv * size,
                decoding=prefill if graph else max(sampling, prefill),
                gradients=factors * 4, leaves=serving * size * n_present / n_members,
                logits=chunk * (12 + 8 * (cfg.entropy_coef > 0)),
                activations=max(whole, checkpointed) * size,
                mask=cfg.tokens_per_microbatch * line * (size + 3))
    return {use: n_bytes / 2 ** 30 for use, n_bytes in plan.items()}


def peak(plan: dict[str, float]) -> float:
    """Gigabytes of a plan at the worst moment: generation and update take turns."""
    totals = [sum(plan[use] for use in uses) for uses in (ALWAYS, GENERATE, UPDATE)]
    return totals[0] + max(totals[1:])


def fitted(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float):
    """cfg, with --rollout-batch 0 replaced by as many rows, a multiple of 8, as decode in `free` GB."""
    def need(rows: int) -> float:
        plan = memory_plan(replace(cfg, rollout_batch=rows), m, dtype, n_members)
        return sum(plan[use] for use in ALWAYS + GENERATE)

    if cfg.rollout_batch:
        return cfg
    n_fit = 8 * bisect.bisect_right(range(8, MOST_ROWS + 1, 8), free, key=need)
    return replace(cfg, rollout_batch=max(8, n_fit))


def largest_budget(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float) -> int:
    """Largest --tokens-per-microbatch, a multiple of 256 up to 2^20, that fits into `free` GB; 0 if none."""
    def need(budget: int) -> float:
        return peak(memory_plan(replace(cfg, tokens_per_microbatch=budget), m, dtype, n_members))
    return 256 * bisect.bisect_right(range(256, 2 ** 20 + 1, 256), free, key=need)


def plan_table(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float) -> tuple[str, bool]:
    """The plan as text, a line a use, with the largest micro-batch; and whether it fits into `free` GB."""
    cfg = fitted(cfg, m, dtype, n_members, free)
    plan, T = memory_plan(cfg, m, dtype, n_members), longest_row(cfg, m)
    number = str(dtype).removeprefix("torch.")
    if cfg.dtype == "int8":
        number = f"int8, and one layer of it in {number}"
    meaning = dict(base=f"the frozen model in {number}",
                   adapters=f"{n_members} of rank {cfg.rank}", optimiser="Adam's two moments",
                   graph="memory of the CUDA graph that decodes",
                   cache=f"generation: keys and values of {cfg.rollout_batch} rows of {T} tokens"
                         + (", in pages" if has_pages(cfg, m, dtype) else ""),
                   decoding="generation: running the prompts, or sampling from the vocabulary",
                   gradients="update: of all adapters",
                   leaves="update: copies of the factors of a micro-batch's members",
                   activations=f"update: {cfg.tokens_per_microbatch} tokens at a time, or a row of {T} with "
                               "activation checkpointing",
                   mask="update: what the tokens of packed lines see",
                   logits="update: a chunk over the vocabulary")
    rows = [f"{use:<12} {gb:8.2f} GB   {meaning[use]}" for use, gb in plan.items() if gb]
    need = peak(plan)
    rows.append(f"{'peak':<12} {need:8.2f} GB   generation and update take turns")
    rows.append(f"{'free':<12} {free:8.2f} GB")
    largest = largest_budget(cfg, m, dtype, n_members, free)
    rows.append(f"largest --tokens-per-microbatch that fits: {largest}" if largest
                else "no --tokens-per-microbatch fits")
    if need > free:
        rows.append("lower --tokens-per-microbatch, --rollout-batch, --max-new-tokens, --rank or --pop, "
                    "or pass --dtype bfloat16 or int8")
    return "\n".join(rows), need <= free


def free_memory(device: torch.device) -> float:
    """Gigabytes available to one process, on a card with those that it holds already (CPU: its share of
    MemAvailable; infinite where that is unknown)."""
    if device.type == "cuda":
        return (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)) / 2 ** 30
    if device.type == "mps":
        return (torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()) / 2 ** 30
    meminfo = Path("/proc/meminfo")
    for row in meminfo.read_text().splitlines() if meminfo.exists() else []:
        if row.startswith("MemAvailable"):
            return int(row.split()[1]) / 2 ** 20 / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return float("inf")
