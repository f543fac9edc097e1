"""The frozen base: Qwen2, Qwen3, Llama and Mistral by hand.

Shapes: B rows, T tokens, S cache slots, C width, H heads, K kv heads, D head size, V vocabulary.
Parameter names are Hugging Face's, so that weights/ loads a file by assigning it strictly. Caches,
masks (attention.py has both) and adapters are arguments: the model itself holds nothing but weights. What
architectures differ in are fields of ModelConfig, which weights/ reads from config.json, never
classes.
"""
import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from attention import KVCache, PagedCache, additive, attend
from infra.precision import linear


@dataclass(frozen=True)
class ModelConfig:
    """The fields of config.json that the forward pass needs, under Hugging Face's names where those exist."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0                                   # 0 = hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    rope_parameters: dict = field(default_factory=dict)  # rope_type and its numbers: see rope_frequencies
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    attention_bias: bool = True                         # of q, k and v
    output_bias: bool = False                           # of o
    mlp_bias: bool = False
    qk_norm: bool = False                               # RMSNorm over each head of q and k before rotation

    def __post_init__(self):
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // self.num_attention_heads)


class Linear(nn.Linear):
    """A linear layer that knows its full name, so that adapters can be handed in instead of patched on."""

    def __init__(self, path: str, n_in: int, n_out: int, bias: bool = False):
        super().__init__(n_in, n_out, bias=bias)
        self.path = path
        self.scale = None                       # (out,) of a weight in int8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.scale, self.bias)


class FusedLinear:
    """Layers that read the same x: one product computes them all once `fuse` has joined their weights."""

    def __init__(self, *layers: Linear):
        self.layers = layers
        self.paths = tuple(layer.path for layer in layers)
        self.sizes = [layer.out_features for layer in layers]
        self.weight = self.scale = self.bias = None

    @torch.no_grad()
    def fuse(self) -> None:
        """Copy the layers' frozen weights into one tensor, of which they become views: after loading."""
        for name in ("weight", "scale", "bias"):
            if getattr(self.layers[0], name) is None:
                continue
            whole = torch.cat([getattr(layer, name) for layer in self.layers])
            setattr(self, name, whole)
            for layer, view in zip(self.layers, whole.split(self.sizes)):
                setattr(layer, name, nn.Parameter(view, requires_grad=False))

    def __call__(self, x: torch.Tensor, lora=None) -> torch.Tensor:
        """The layers' outputs (B, T, sum of sizes), side by side; before `fuse` computed one by one."""
        if self.weight is not None:
            y = linear(x, self.weight, self.scale, self.bias)
        else:
            y = torch.cat([layer(x) for layer in self.layers], -1)
        return y if lora is None else lora(self.paths, self.sizes, x, y)


def rope_frequencies(cfg: ModelConfig, device) -> torch.Tensor:
    """Angle per position of each pair of a head's numbers (D/2,) float32. linear divides every frequency by
    `factor`; llama3 those of less than low_freq_factor turns within the context of pretraining, blending up
    to high_freq_factor."""
    r = cfg.rope_parameters
    D = cfg.head_dim
    freq = cfg.rope_theta ** -(torch.arange(0, D, 2, device=device, dtype=torch.float32) / D)
    kind = r.get("rope_type", "default")
    if kind == "default":
        return freq
    if kind == "linear":
        return freq / r["factor"]
    slow, fast = r["low_freq_factor"], r["high_freq_factor"]
    turns = r["original_max_position_embeddings"] * freq / (2 * math.pi)
    keep = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return keep * freq + (1 - keep) * freq / r["factor"]


def rope_table(positions: torch.Tensor, cfg: ModelConfig,
               dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (B, 1, T, D) of positions (B, T), float32 (RoFormer, eq. 34); sin's first half negative."""
    angle = positions[:, None, :, None].float() * rope_frequencies(cfg, positions.device)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves (a, b) of each head (..., T, D): (a cos - b sin, b cos + a sin)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions: q, k and v are one product."""

    def __init__(self, cfg: ModelConfig, layer: int, path: str):
        super().__init__()
        C = cfg.hidden_size
        self.layer = layer
        self.D = cfg.head_dim
        self.heads = [cfg.num_attention_heads, cfg.num_key_value_heads, cfg.num_key_value_heads]
        q, kv, _ = [n * self.D for n in self.heads]
        self.q_proj = Linear(f"{path}.q_proj", C, q, cfg.attention_bias)
        self.k_proj = Linear(f"{path}.k_proj", C, kv, cfg.attention_bias)
        self.v_proj = Linear(f"{path}.v_proj", C, kv, cfg.attention_bias)
        self.o_proj = Linear(f"{path}.o_proj", q, C, cfg.output_bias)
        self.q_norm = nn.RMSNorm(self.D, cfg.rms_norm_eps) if cfg.qk_norm else None
        self.k_norm = nn.RMSNorm(self.D, cfg.rms_norm_eps) if cfg.qk_norm else None
        self.qkv = FusedLinear(self.q_proj, self.k_proj, self.v_proj)
        self.out = FusedLinear(self.o_proj)

    def forward(self, x, cos, sin, mask, cache, slots, lora):
        """x (B, T, C) -> (B, T, C); cos, sin (B, 1, T, D); slots: the cache's of one token a row."""
        B, T, _ = x.shape
        H, K, _ = self.heads
        qk, v = self.qkv(x, lora).view(B, T, -1, self.D).split([H + K, K], 2)
        if self.q_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :, :H]), self.k_norm(qk[:, :, H:])), 2)
        q, k = rotate(qk.transpose(1, 2), cos, sin).split([H, K], 1)        # (B, H, T, D), (B, K, T, D)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(self.layer, k, v, slots)
        y = attend(q, k, v, mask)
        return self.out(y.transpose(1, 2).reshape(B, T, -1), lora)


class MLP(nn.Module):
    """down(silu(gate x) * up x): gate and up are one product."""

    def __init__(self, cfg: ModelConfig, path: str):
        super().__init__()
        self.gate_proj = Linear(f"{path}.gate_proj", cfg.hidden_size, cfg.intermediate_size, cfg.mlp_bias)
        self.up_proj = Linear(f"{path}.up_proj", cfg.hidden_size, cfg.intermediate_size, cfg.mlp_bias)
        self.down_proj = Linear(f"{path}.down_proj", cfg.intermediate_size, cfg.hidden_size, cfg.mlp_bias)
        self.gate_up = FusedLinear(self.gate_proj, self.up_proj)
        self.down = FusedLinear(self.down_proj)

    def forward(self, x, lora):
        """SwiGLU (GLU Variants Improve Transformer, eq. 5; 2002.05202)."""
        gate, up = self.gate_up(x, lora).chunk(2, -1)
        return self.down(F.silu(gate) * up, lora)


class Block(nn.Module):
    """x + attention(norm x), then + MLP(norm x)."""

    def __init__(self, cfg: ModelConfig, layer: int):
        super().__init__()
        path = f"model.layers.{layer}"
        self.input_layernorm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg, layer, f"{path}.self_attn")
        self.post_attention_layernorm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg, f"{path}.mlp")

    def forward(self, x, cos, sin, mask, cache, slots, lora):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache, slots, lora)
        return x + self.mlp(self.post_attention_layernorm(x), lora)


class Float32Product(torch.autograd.Function):
    """h (M, C) times a frozen weight (V, C) of the same format, in float32 (M, V)."""

    @staticmethod
    def forward(ctx, h, weight):
        ctx.save_for_backward(weight)
        return torch.mm(h, weight.T, out_dtype=torch.float32)       # which has no derivative of its own

    @staticmethod
    def backward(ctx, grad):
        weight, = ctx.saved_tensors
        return grad.to(weight.dtype) @ weight, None


class Model(nn.Module):
    """The decoder, its parameters named as in transformers; a tied head has none of its own."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.cfg = cfg
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.model.layers = nn.ModuleList(Block(cfg, i) for i in range(cfg.num_hidden_layers))
        self.model.norm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        if not cfg.tie_word_embeddings:
            self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    @property
    def embedding(self) -> torch.Tensor:
        return self.model.embed_tokens.weight

    def forward(self, ids, positions=None, mask=None, cache: KVCache | PagedCache | None = None,
                lora=None, checkpointing: bool = False) -> torch.Tensor:
        """Final hidden states (B, T, C) of ids (B, T).

        positions (B, T) default to 0, 1, ..., of one token to what follows the cache; mask is a boolean
        (B, 1, T, T) of allowed keys, None means causal; a cache takes several tokens only while it is empty,
        a PagedCache always one a row, with its position; lora(paths, sizes, x, y) adds the rows' adapters to
        the joint output y of layers that share an input x; checkpointing keeps only each block's input for
        the backward pass, which computes the rest again (1604.06174).
        """
        B, T = ids.shape
        decoding = cache is not None and T == 1
        x = self.model.embed_tokens(ids)
        if positions is None:
            start = cache.length if decoding else 0
            positions = torch.arange(start, start + T, device=ids.device).expand(B, T)
        slots, seen = None, None if mask is None else additive(mask, x.dtype)
        if decoding:
            slots, seen = cache.extend(positions[:, 0])
        cos, sin = rope_table(positions, self.cfg, x.dtype)
        for block in self.model.layers:
            args = (x, cos, sin, seen, cache, slots, lora)
            x = checkpoint(block, *args, use_reentrant=False) if checkpointing else block(*args)
        return self.model.norm(x)

    def fused_linears(self) -> list[FusedLinear]:
        """The adaptable layers, those together that share an input."""
        fused = []
        for block in self.model.layers:
            fused += [block.self_attn.qkv, block.self_attn.out, block.mlp.gate_up, block.mlp.down]
        return fused

    def fuse(self) -> "Model":
        """Join the frozen weights of layers that share their input: after loading, and again where they have
        been moved, copied or exchanged. Edits in place need no more."""
        for layer in self.fused_linears():
            layer.fuse()
        return self

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary (..., V) of hidden states (..., C). On a GPU float32 from bfloat16
        states, which would round a score between 8 and 16 by up to .03; elsewhere of their own type."""
        weight = self.embedding if self.cfg.tie_word_embeddings else self.lm_head.weight
        if hidden.dtype == torch.bfloat16 and hidden.device.type != "cpu" and not weight.requires_grad:
            return Float32Product.apply(hidden.flatten(0, -2), weight).view(*hidden.shape[:-1], -1)
        return F.linear(hidden, weight)

    def linears(self) -> dict[str, Linear]:
        """Every adaptable linear layer (q, k, v, o, gate, up, down of each block) by full name, in order."""
        return {layer.path: layer for fused in self.fused_linears() for layer in fused.layers}


@dataclass(frozen=True)
class Base:
    """A loaded base: frozen model, tokenizer, every id that ends an answer, and its prompt format."""
    model: Model
    tokenizer: object
    eos_ids: tuple[int, ...]
    prompt_format: str              # how it is talked to: one of prompts.FORMATS
    path: Path
    graphs: bool = False            # decode by CUDA graphs; load_base: on a GPU
    day: str = ""                   # the date that its chat template is told, YYYY-MM-DD; "" = today


@lru_cache(maxsize=2)
def closing_table(tokenizer, tag: str, vocab_size: int, device) -> torch.Tensor | None:
    """By which tokens a text comes to contain `tag`, in whatever tokens it is written.

    table[k, token]: a text ends in the first k characters of the tag; after the token it ends in so many.
    k = len(tag) is never left. Shape (len(tag) + 1, vocab_size), uint8; None without a tag, which must be of
    printable ASCII without spaces: only those are written in a vocabulary as they are.
    """
    if not tag:
        return None

    def n_matched(text: str) -> int:
        return len(tag) if tag in text else max(k for k in range(len(tag)) if text.endswith(tag[:k]))

    table = torch.zeros(len(tag) + 1, vocab_size, dtype=torch.uint8)
    for text, token in tokenizer.get_vocab().items():
        takes_part = text in tag or tag[0] in text or tag[-1] in text       # few do
        if takes_part and token < vocab_size:
            table[:-1, token] = torch.tensor([n_matched(tag[:k] + text) for k in range(len(tag))])
    table[-1] = len(tag)
    return table.to(device)
