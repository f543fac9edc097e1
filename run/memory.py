"""How much memory a run's plan takes and how much is there, and how many rows decode in that."""
import bisect
from dataclasses import replace

import torch

import rl
from attention import PAGE, paged_kernel
from generate import PREFILL
from model import Model, ModelConfig

ALWAYS = ("base", "adapters", "optimiser", "graph")
GENERATE = ("cache", "decoding")
UPDATE = ("gradients", "activations", "mask", "logits")
PHASES = dict(always=ALWAYS, generation=GENERATE, update=UPDATE)
MOST_ROWS = 512             # that --rollout-batch 0 takes: more bring little


def longest_row(cfg, m: ModelConfig) -> int:
    """Tokens of the longest row planned for: a program of the model's own, few-shot tasks and an answer."""
    return min(m.max_position_embeddings, 2 * cfg.max_new_tokens + 512 * (cfg.n_few_shot > 0))


def has_pages(cfg, m: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether decoding on cfg.device has pages; an absent card has, with bfloat16: both came with Ampere."""
    if not torch.cuda.is_available() or cfg.device == "cpu":
        return cfg.device.startswith("cuda") and dtype == torch.bfloat16
    device = torch.device("cuda", torch.cuda.current_device())
    return bool(paged_kernel(m.num_attention_heads, m.num_key_value_heads, m.head_dim, dtype, device))


def memory_plan(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int) -> dict[str, float]:
    """Gigabytes of a run's tensors by use: ALWAYS there, while it GENERATEs or UPDATEs. See `peak`. Counted
    from the code: what autograd saves per token and layer, and the copies of logits living at once."""
    with torch.device("meta"):
        model = Model(m)
    size, pages = dtype.itemsize, has_pages(cfg, m, dtype)
    C, F, L, V = m.hidden_size, m.intermediate_size, m.num_hidden_layers, m.vocab_size
    q, kv = [n * m.head_dim for n in (m.num_attention_heads, m.num_key_value_heads)]
    T, rows, budget = longest_row(cfg, m), cfg.rollout_batch, cfg.tokens_per_microbatch

    n_adapted, factors, joint = 0, 0, 0         # numbers in all members' factors; with zeros between them
    for fused in model.fused_linears():
        adapted = [x for x in fused.layers if x.path.rsplit(".")[-1] in cfg.lora_targets.split(",")]
        n_adapted += len(adapted)
        factors += n_members * cfg.rank * sum(x.in_features + x.out_features for x in adapted)
        joint += n_members * cfg.rank * len(adapted) * (fused.layers[0].in_features + sum(fused.sizes))
    base = sum(p.numel() for p in model.parameters()) * size
    if cfg.dtype == "int8":
        base += sum(x.out_features * (size + x.in_features * (1 - size)) for x in model.linears().values())
        base += size * max(fused.layers[0].in_features * sum(fused.sizes) for fused in model.fused_linears())

    passing = 4 * C + max(4 * F, 4 * q + 3 * kv)        # of the one layer being computed: MLP or attention
    prompt = max(1, T - cfg.max_new_tokens)
    admitted = min(max(1, PREFILL // prompt), rows)     # prompts run at a time
    prefill = admitted * (prompt * (passing + 2 * kv * L) + 2 * V) * size
    sampling = rows * V * (size + 12)           # logits; in float32 log-probabilities, probabilities, sums
    cached = rows * -(-T // PAGE) * PAGE * L if pages else rows * T * (L + 1)   # a layer twice as rows leave

    saved = L * (4 * C + 4 * F + 3 * q + 3 * kv) + n_adapted * cfg.rank     # a token's, for the backward pass
    if cfg.device != "cpu" and torch.cuda.is_available():       # under a mask keys and values are repeated
        saved += L * 2 * (q - kv)
    checkpointed = T * (L * C + saved / L + passing)
    line = min(budget, T + max(cfg.proposals_per_prompt, cfg.samples_per_task) * cfg.max_new_tokens)
    share = min(n_members, max(1, budget // 256)) / n_members       # of members in a micro-batch: its lines
    plan = dict(base=base, adapters=factors * 4, optimiser=factors * 8,
                graph=sampling + rows * passing * size if pages else 0,             # in a pool of its own
                cache=cached * 2 * kv * size,
                decoding=factors * size + prefill if pages else joint * size + max(sampling, prefill),
                gradients=factors * 4 + share * (joint * size + factors * 8),
                activations=max(budget * (saved + passing), checkpointed) * size,
                mask=budget * line * (size + 3),
                logits=min(rl.CHUNK, max(budget, T) * V) * (12 + 8 * (cfg.entropy_coef > 0)))
    return {use: n_bytes / 2 ** 30 for use, n_bytes in plan.items()}


def peak(plan: dict[str, float], phases: tuple = (GENERATE, UPDATE)) -> float:
    """Gigabytes of a plan at the worst moment: generation and update take turns."""
    return sum(plan[use] for use in ALWAYS) + max(sum(plan[use] for use in uses) for uses in phases)


def fitted(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float):
    """cfg, with --rollout-batch 0 replaced by as many rows, a multiple of 8, as decode in `free` GB."""
    def need(rows: int) -> float:
        return peak(memory_plan(replace(cfg, rollout_batch=rows), m, dtype, n_members), (GENERATE,))

    n_fit = 0 if cfg.rollout_batch else bisect.bisect_right(range(8, MOST_ROWS + 1, 8), free, key=need)
    return replace(cfg, rollout_batch=cfg.rollout_batch or 8 * max(1, n_fit))


def plan_table(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float) -> tuple[str, bool]:
    """The plan as text, and whether it fits into `free` GB, which may be infinite: unknown."""
    cfg = fitted(cfg, m, dtype, n_members, free)
    plan, number = memory_plan(cfg, m, dtype, n_members), str(dtype).removeprefix("torch.")
    number = f"int8, a layer at a time in {number}" if cfg.dtype == "int8" else number
    pages = ", in pages" if has_pages(cfg, m, dtype) else ""
    table = [f"{n_members} adapters of rank {cfg.rank} on a base in {number}; generation of "
             f"{cfg.rollout_batch} rows of {longest_row(cfg, m)} tokens{pages}; update by "
             f"{cfg.tokens_per_microbatch} tokens, or by a checkpointed row"]
    rows = [(use, plan[use], phase) for phase, uses in PHASES.items() for use in uses if plan[use]]
    rows.append(("peak", peak(plan), "generation and update take turns"))
    table += [f"{use:<12} {size:8.2f} GB   {phase}" for use, size, phase in rows]
    if free < float("inf"):
        table.append(f"{'free':<12} {free:8.2f} GB")
    if peak(plan) > free:
        table.append("lower --tokens-per-microbatch, --rollout-batch, --max-new-tokens, --rank or --pop, "
                     "or pass --dtype bfloat16 or int8")
    return "\n".join(table), peak(plan) <= free
