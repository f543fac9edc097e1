"""How much memory a run's plan takes and how much is there, and how many rows decode in that."""
import bisect
from dataclasses import dataclass, replace

import torch

import rl
from attention import PAGE, paged_kernel
from config import Config
from generate import PREFILL
from lora import name_of
from model import Model, ModelConfig

ALWAYS = ("base", "adapters", "optimiser", "graph")
GENERATE = ("cache", "decoding")
UPDATE = ("gradients", "activations", "mask", "logits")
PHASES = dict(always=ALWAYS, generation=GENERATE, update=UPDATE)
MOST_ROWS = 512             # that --rollout-batch 0 takes: more bring little


def longest_row(cfg: Config, m: ModelConfig) -> int:
    """Tokens of the longest row planned for: a program of the model's own, few-shot tasks and an answer."""
    return min(m.max_position_embeddings, 2 * cfg.max_new_tokens + 512 * (cfg.n_few_shot > 0))


def has_pages(cfg: Config, m: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether decoding on cfg.device has pages; an absent card has, with bfloat16: both came with Ampere."""
    if not torch.cuda.is_available() or cfg.device == "cpu":
        return cfg.device.startswith("cuda") and dtype == torch.bfloat16
    device = torch.device("cuda", torch.cuda.current_device())
    return bool(paged_kernel(m, dtype, device))


def memory_plan(cfg: Config, m: ModelConfig, dtype: torch.dtype,
                n_members: int) -> dict[str, float]:
    """Gigabytes of a run's tensors by use: ALWAYS there, while it GENERATEs or UPDATEs. See `peak`. Counted
    from the code: what autograd saves per token and layer, and the copies of logits living at once."""
    with torch.device("meta"):
        model = Model(m)
    factors = count_factors(cfg, model, n_members)
    plan = dict(
        base=base_bytes(cfg, model, dtype),
        adapters=factors.n * 4,
        optimiser=factors.n * 8)
    plan |= generation_bytes(cfg, m, dtype, factors)
    plan |= update_bytes(cfg, m, dtype, factors, n_members)
    return {use: n_bytes / 2 ** 30 for use, n_bytes in plan.items()}


@dataclass
class FactorCount:
    """Numbers in all members' factors."""
    n_adapted: int = 0          # linear layers with adapters
    n: int = 0
    joint: int = 0              # stacked for layers that are one product, with zeros between them


def count_factors(cfg: Config, model: Model, n_members: int) -> FactorCount:
    """The numbers in the factors of so many members."""
    count = FactorCount()
    n_rows = n_members * cfg.rank           # of all members' A, and columns of their B
    for fused in model.fused_linears():
        width = fused.layers[0].in_features + sum(fused.sizes)
        for layer in fused.layers:
            if name_of(layer.path) in cfg.lora_targets:
                count.n_adapted += 1
                count.n += n_rows * (layer.in_features + layer.out_features)
                count.joint += n_rows * width
    return count


def base_bytes(cfg: Config, model: Model, dtype: torch.dtype) -> int:
    """Bytes of the base's weights."""
    size = dtype.itemsize
    n_bytes = sum(p.numel() for p in model.parameters()) * size
    if cfg.dtype == "int8":
        for layer in model.linears().values():          # a byte a weight, and a scale for each output
            n_bytes += layer.out_features * (size + layer.in_features * (1 - size))
        largest = max(fused.layers[0].in_features * sum(fused.sizes) for fused in model.fused_linears())
        n_bytes += largest * size                       # one layer at a time is there in full
    return n_bytes


def numbers_passing(m: ModelConfig) -> int:
    """Numbers of one token in the layer that is being computed: its MLP or its attention."""
    queries = m.num_attention_heads * m.head_dim
    keys = m.num_key_value_heads * m.head_dim
    return 4 * m.hidden_size + max(4 * m.intermediate_size, 4 * queries + 3 * keys)


def generation_bytes(cfg: Config, m: ModelConfig, dtype: torch.dtype,
                     factors: FactorCount) -> dict[str, int]:
    """Bytes while rows decode, by use."""
    size = dtype.itemsize
    pages = has_pages(cfg, m, dtype)
    L = m.num_hidden_layers
    V = m.vocab_size
    T = longest_row(cfg, m)
    rows = cfg.rollout_batch
    n_passing = numbers_passing(m)
    keys = m.num_key_value_heads * m.head_dim
    prompt = max(1, T - cfg.max_new_tokens)
    admitted = min(max(1, PREFILL // prompt), rows)     # prompts run at a time
    prefill = admitted * (prompt * (n_passing + 2 * keys * L) + 2 * V) * size
    # logits, and in float32 log-probabilities, probabilities and their sums
    sampling = rows * V * (size + 12)
    if pages:
        cached = rows * -(-T // PAGE) * PAGE * L
        graph = sampling + rows * n_passing * size      # a CUDA graph has a pool of its own
        decoding = factors.n * size + prefill
    else:
        cached = rows * T * (L + 1)                     # one layer is there twice as rows leave
        graph = 0
        decoding = factors.joint * size + max(sampling, prefill)
    return dict(
        graph=graph,
        cache=cached * 2 * keys * size,
        decoding=decoding)


def update_bytes(cfg: Config, m: ModelConfig, dtype: torch.dtype, factors: FactorCount,
                 n_members: int) -> dict[str, float]:
    """Bytes while members learn from a micro-batch, by use."""
    size = dtype.itemsize
    budget = cfg.tokens_per_microbatch
    C = m.hidden_size
    F = m.intermediate_size
    L = m.num_hidden_layers
    T = longest_row(cfg, m)
    n_passing = numbers_passing(m)
    queries = m.num_attention_heads * m.head_dim
    keys = m.num_key_value_heads * m.head_dim
    # numbers of a token that are kept for the backward pass
    of_layer = 4 * C + 4 * F + 3 * queries + 3 * keys
    saved = L * of_layer + factors.n_adapted * cfg.rank
    if cfg.device != "cpu" and torch.cuda.is_available():       # under a mask keys and values are repeated
        saved += L * 2 * (queries - keys)
    checkpointed = T * (L * C + saved / L + n_passing)
    n_answers = max(cfg.proposals_per_prompt, cfg.samples_per_task)
    line = min(budget, T + n_answers * cfg.max_new_tokens)      # a prompt with all of its answers behind it
    n_lines = max(1, budget // 256)                             # of a micro-batch, each of one member
    share = min(n_members, n_lines) / n_members
    of_logit = 12
    if cfg.entropy_coef > 0:
        of_logit += 8
    return dict(
        gradients=factors.n * 4 + share * (factors.joint * size + factors.n * 8),
        activations=max(budget * (saved + n_passing), checkpointed) * size,
        mask=budget * line * (size + 3),
        logits=min(rl.CHUNK, max(budget, T) * m.vocab_size) * of_logit)


def peak(plan: dict[str, float], phases: tuple = (GENERATE, UPDATE)) -> float:
    """Gigabytes of a plan at the worst moment: generation and update take turns."""
    def total(uses: tuple[str, ...]) -> float:
        return sum(plan[use] for use in ALWAYS + uses)

    return max(map(total, phases))


def fitted(cfg: Config, m: ModelConfig, dtype: torch.dtype, n_members: int, free: float) -> Config:
    """cfg, with --rollout-batch 0 replaced by as many rows, a multiple of 8, as decode in `free` GB."""
    def need(rows: int) -> float:
        return peak(memory_plan(replace(cfg, rollout_batch=rows), m, dtype, n_members), (GENERATE,))

    if cfg.rollout_batch:
        return cfg
    n_fit = bisect.bisect_right(range(8, MOST_ROWS + 1, 8), free, key=need)
    return replace(cfg, rollout_batch=8 * max(1, n_fit))


def plan_table(cfg: Config, m: ModelConfig, dtype: torch.dtype, n_members: int,
               free: float) -> tuple[str, bool]:
    """The plan as text, and whether it fits into `free` GB, which may be infinite: unknown."""
    cfg = fitted(cfg, m, dtype, n_members, free)
    plan = memory_plan(cfg, m, dtype, n_members)
    number = str(dtype).removeprefix("torch.")
    if cfg.dtype == "int8":
        number = f"int8, a layer at a time in {number}"
    pages = ", in pages" if has_pages(cfg, m, dtype) else ""
    table = [f"{n_members} adapters of rank {cfg.rank} on a base in {number}; generation of "
             f"{cfg.rollout_batch} rows of {longest_row(cfg, m)} tokens{pages}; update by "
             f"{cfg.tokens_per_microbatch} tokens, or by a checkpointed row"]

    def tell(use: str, size: float, when: str) -> None:
        table.append(f"{use:<12} {size:8.2f} GB   {when}".rstrip())

    for phase, uses in PHASES.items():
        for use in uses:
            if plan[use]:
                tell(use, plan[use], phase)
    highest = peak(plan)
    tell("peak", highest, "generation and update take turns")
    if free < float("inf"):
        tell("free", free, "")
    if highest > free:
        table.append("lower --tokens-per-microbatch, --rollout-batch, --max-new-tokens, --rank or --pop, "
                     "or pass --dtype bfloat16 or int8")
    return "\n".join(table), highest <= free
