"""The micro base inside a larger shape: what the loop plays with where no real base of that shape is at hand.

Random weights write no task, so that students would have nothing to solve and nobody a gradient. A model
whose first coordinates hold the micro base, and whose others are never written to, costs what its shape costs
and says what the micro base says (function-preserving growth, Net2Net, 1511.05641).
"""
import torch

from model import Model, ModelConfig

HINT = .02                  # what a known word's embedding holds in the first spare coordinate
FORBID = 3e4                # by what the last norm scales it: words that micro lacks get logits of about -100


def place(whole: torch.Tensor, part: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Zero `whole` and put `part` into its first columns and its first (or the given) rows."""
    whole.zero_()
    at = torch.arange(len(part)) if rows is None else rows
    at = at.to(whole.device)
    if part.dim() == 1:
        whole[at] = part.to(whole)
    else:
        whole[at, :part.shape[1]] = part.to(whole)


def head_rows(n_heads: int, n_queries: int, D: int, to_queries: int, to_D: int) -> torch.Tensor:
    """Where the numbers (n_heads D,) of heads, n_queries a key, lie among larger heads, to_queries a key.

    Rotary halves stay halves, and a pair keeps its frequency: theta^(-2 i / D) = theta^(-2 (i r) / (D r)).
    """
    rows = []
    for head in range(n_heads):
        start = (head // n_queries * to_queries + head % n_queries) * to_D
        for half in (start, start + to_D // 2):
            rows += [half + i * (to_D // D) for i in range(D // 2)]
    return torch.tensor(rows)


def check_room(big: ModelConfig, micro: ModelConfig) -> None:
    """Raises ValueError where a shape cannot hold the micro base."""
    sizes = ("intermediate_size", "num_hidden_layers", "num_key_value_heads", "vocab_size")
    queries = [cfg.num_attention_heads // cfg.num_key_value_heads for cfg in (big, micro)]
    room = all(getattr(big, name) >= getattr(micro, name) for name in sizes) and queries[0] >= queries[1]
    spare = big.hidden_size > micro.hidden_size or big.vocab_size == micro.vocab_size
    exact = big.head_dim % micro.head_dim == 0 and big.rope_theta == micro.rope_theta
    if not (room and spare and exact and micro.tie_word_embeddings):
        raise ValueError(f"the micro base has no room in {big}")


def enlarge_block(block, given, q: torch.Tensor, kv: torch.Tensor, big: ModelConfig,
                  micro: ModelConfig) -> None:
    """Overwrite a block so that it computes what micro's does; q and kv: the rows of heads."""
    # attention divides by the root of a head's size, and a norm by the mean over the whole width
    sharper = (big.head_dim / micro.head_dim) ** .5
    quieter = (micro.hidden_size / big.hidden_size) ** .5
    for name, rows, factor in (("q_proj", q, sharper), ("k_proj", kv, 1), ("v_proj", kv, 1)):
        layer, source = getattr(block.self_attn, name), getattr(given.self_attn, name)
        place(layer.weight, source.weight * factor, rows)
        place(layer.bias, source.bias * factor, rows)
    place(block.self_attn.o_proj.weight.T, given.self_attn.o_proj.weight.T, q)
    for name in ("gate_proj", "up_proj", "down_proj"):
        place(getattr(block.mlp, name).weight, getattr(given.mlp, name).weight)
    for name in ("input_layernorm", "post_attention_layernorm"):
        place(getattr(block, name).weight, getattr(given, name).weight * quieter)


@torch.no_grad()
def enlarge(model: Model, micro: Model) -> None:
    """Overwrite model's weights so that it computes what micro does. Raises ValueError where it has no room.

    Blocks beyond micro's keep their random weights but for what they would add: zero.
    """
    big, cfg = model.cfg, micro.cfg
    check_room(big, cfg)
    queries, to_queries = [c.num_attention_heads // c.num_key_value_heads for c in (cfg, big)]
    q = head_rows(cfg.num_attention_heads, queries, cfg.head_dim, to_queries, big.head_dim)
    kv = head_rows(cfg.num_key_value_heads, 1, cfg.head_dim, 1, big.head_dim)
    for block, given in zip(model.model.layers, micro.model.layers):
        enlarge_block(block, given, q, kv, big, cfg)
    for block in model.model.layers[cfg.num_hidden_layers:]:
        block.self_attn.o_proj.weight.zero_()
        block.mlp.down_proj.weight.zero_()
    place(model.model.norm.weight, micro.model.norm.weight * (cfg.hidden_size / big.hidden_size) ** .5)
    place(model.embedding, micro.embedding)
    head = model.embedding
    if not big.tie_word_embeddings:
        head = model.lm_head.weight
        place(head, micro.embedding)
    if big.vocab_size > cfg.vocab_size:
        spare = cfg.hidden_size
        model.model.norm.weight[spare] = FORBID
        model.embedding[:cfg.vocab_size, spare] = HINT
        head[cfg.vocab_size:, spare] = -1
