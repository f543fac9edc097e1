"""What a card can do at best: measured bandwidth and arithmetic, and what a piece of work asks of both.

Counted is what cannot be avoided: frozen layers, head and attention, each key read once; neither padding, nor
what checkpointing computes twice, nor the arithmetic of adapters (1 to 3% at rank 32).
"""
import torch

from bench.common import timed
from generate import Rollout
from lora import Adapters
from model import Base, ModelConfig


def best(work, repeats: int = 5) -> float:
    """The fewest seconds that a piece of work took, after a first time that is not counted."""
    run = timed(work)
    run()
    return min(run() for _ in range(repeats))


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a copy, which reads and writes each once."""
    n_bytes = 1 << 30 if device.type == "cuda" else 1 << 27
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / best(lambda: target.copy_(source))


def arithmetic(device: torch.device, dtype: torch.dtype) -> float:
    """Floating point operations a second of a large product of random matrices."""
    n, times = (8192, 20) if device.type == "cuda" else (1024, 2)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    out = torch.empty_like(a)

    def work() -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)
    return 2 * n ** 3 * times / best(work)


def n_weights(base: Base) -> int:
    """Numbers in the linear layers of all blocks."""
    return sum(x.in_features * x.out_features for x in base.model.linears().values())


def seen_keys(start: int, end: int) -> int:
    """Pairs of a token at start .. end - 1 and a key that it sees: itself and all before it."""
    return (end * (end + 1) - start * (start + 1)) // 2


def forward_flops(base: Base, n_tokens: int, n_predicted: int, n_pairs: int) -> tuple[float, float]:
    """Operations of a forward pass: by weights (blocks for n_tokens, head for n_predicted), by attention."""
    cfg = base.model.cfg
    by_weights = 2 * n_weights(base) * n_tokens + 2 * cfg.vocab_size * cfg.hidden_size * n_predicted
    return by_weights, 4 * cfg.num_hidden_layers * cfg.num_attention_heads * cfg.head_dim * n_pairs


def prefill_flops(base: Base, rows: int, prompt: int) -> float:
    """Of running `rows` prompts for the first token of each."""
    return sum(forward_flops(base, rows * prompt, rows, rows * seen_keys(0, prompt)))


def update_flops(base: Base, rollout: Rollout, attempts: int) -> float:
    """Of a gradient of rows of one length, so many attempts at each prompt, which is run once.

    Backward costs the same as forward where weights are frozen, and twice as much in attention.
    """
    rows, prompt, end = len(rollout.ids), int(rollout.prompt_len[0]), int(rollout.length[0])
    n_tokens = rows // attempts * prompt + rows * (end - prompt - 1)      # the last one is not read
    n_pairs = rows // attempts * seen_keys(0, prompt) + rows * seen_keys(prompt, end - 1)
    by_weights, by_attention = forward_flops(base, n_tokens, rows * (end - prompt), n_pairs)
    return 2 * by_weights + 3 * by_attention


def decode_bytes(base: Base, adapters: Adapters | None, n_members: int, rows: int, slots: float) -> float:
    """Read in a step of decoding: the base, n_members' adapters, keys and values of `slots` tokens a row."""
    cfg: ModelConfig = base.model.cfg
    weights = sum(p.numel() * p.element_size() for p in base.model.parameters())
    if not cfg.tie_word_embeddings:
        weights -= base.model.embedding.numel() * base.model.embedding.element_size()     # only rows of it
    size = base.model.embedding.element_size()
    numbers = 0
    if adapters is not None:
        numbers = sum(p.numel() for p in adapters.parameters()) // adapters.n_members * n_members
    keys = 2 * cfg.num_hidden_layers * cfg.num_key_value_heads * cfg.head_dim * slots * rows
    return weights + size * (numbers + keys)


def decode_seconds(base: Base, adapters: Adapters | None, n_members: int, rows: int, slots: float,
                   n_bytes_s: float, flops_s: float) -> float:
    """The least that a step of decoding can take: by bandwidth, or by arithmetic where that is more."""
    by_bandwidth = decode_bytes(base, adapters, n_members, rows, slots) / n_bytes_s
    return max(by_bandwidth, sum(forward_flops(base, rows, rows, round(rows * slots))) / flops_s)
