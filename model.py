"""The frozen base: Qwen2, Qwen3, Llama and Mistral by hand.

Shapes: B rows, T tokens, S cache slots, C width, H heads, K kv heads, D head size, V vocabulary.
Parameter names are Hugging Face's, so that weights/ loads a file by assigning it strictly. Caches,
masks (attention.py has both) and adapters are arguments: the model itself holds nothing but weights. What
architectures differ in are fields of ModelConfig, which weights/ reads from config.json, never
classes.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention import Cache, Pages, additive, attend

# Adds the adapters of each row's member: (paths, sizes, x, y) -> y of layers that share an input (lora.Route)
Lora = Callable[[tuple[str, ...], list[int], Tensor, Tensor], Tensor]


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
    # rope_type and its numbers: see rope_frequencies; a dict has no hash
    rope_parameters: dict = field(default_factory=dict, hash=False)
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    attention_bias: bool = True                         # of q, k and v
    output_bias: bool = False                           # of o
    mlp_bias: bool = False
    qk_norm: bool = False                               # RMSNorm over each head of q and k before rotation

    def __post_init__(self):
        if not self.head_dim:
            size = self.hidden_size // self.num_attention_heads
            object.__setattr__(self, "head_dim", size)      # the way to set a field of a frozen dataclass


class Linear(nn.Linear):
    """A linear layer that knows its full name, so that adapters can be handed in instead of patched on."""

    def __init__(self, path: str, n_in: int, n_out: int, bias: bool = False):
        super().__init__(n_in, n_out, bias=bias)
        self.path = path


class FusedLinear:
    """Layers that read the same x: one product computes them all once `fuse` has joined their weights.

    It is no Module: a state_dict of the model knows the layers alone, under Hugging Face's names.
    """

    def __init__(self, *layers: Linear):
        self.layers = layers
        self.paths = tuple(layer.path for layer in layers)
        self.sizes = [layer.out_features for layer in layers]
        # of all layers, one below the other, once they are fused
        self.weight = None                      # (sum of sizes, in)
        self.bias = None                        # (sum of sizes,)

    @torch.no_grad()
    def fuse(self) -> None:
        """Copy the layers' frozen weights into one tensor, of which they become views: after loading."""
        for name in ("weight", "bias"):
            parts = [getattr(layer, name) for layer in self.layers]
            if parts[0] is None:
                continue
            whole = torch.cat(parts)
            setattr(self, name, whole)
            for layer, view in zip(self.layers, whole.split(self.sizes)):
                setattr(layer, name, nn.Parameter(view, requires_grad=False))

    def __call__(self, x: Tensor, lora: Lora | None = None) -> Tensor:
        """The layers' outputs (B, T, sum of sizes), side by side; before `fuse` computed one by one."""
        if self.weight is not None:
            y = F.linear(x, self.weight, self.bias)
        else:
            y = torch.cat([layer(x) for layer in self.layers], -1)
        if lora is None:
            return y
        return lora(self.paths, self.sizes, x, y)


# --- rotary positions (RoFormer, 2104.09864) ----------------------------------------------------------------

def rope_frequencies(cfg: ModelConfig, device: torch.device | str) -> Tensor:
    """Angle per position of each pair of a head's numbers (D/2,) float32. linear divides every frequency by
    `factor`; llama3 those of less than low_freq_factor turns within the context of pretraining, blending up
    to high_freq_factor."""
    scaling = cfg.rope_parameters
    D = cfg.head_dim
    pair = torch.arange(0, D, 2, device=device, dtype=torch.float32)
    freq = cfg.rope_theta ** -(pair / D)
    rope_type = scaling.get("rope_type", "default")
    if rope_type == "default":
        return freq
    if rope_type == "linear":
        return freq / scaling["factor"]
    slow = scaling["low_freq_factor"]
    fast = scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * freq / (2 * math.pi)
    keep = (turns - slow) / (fast - slow)
    keep = keep.clamp(0, 1)             # 1 where a pair turns often within the context: it stays as it is
    return keep * freq + (1 - keep) * freq / scaling["factor"]


def rope_table(positions: Tensor, cfg: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin (B, 1, T, D) of positions (B, T), computed in float32 (RoFormer, eq. 34). The first half of
    sin is negative, as `rotate` wants it."""
    angle = positions[:, None, :, None].float() * rope_frequencies(cfg, positions.device)
    cos = angle.cos()
    sin = angle.sin()                   # (B, 1, T, D/2), of both halves of a head
    cos = torch.cat((cos, cos), -1)
    sin = torch.cat((-sin, sin), -1)
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves (a, b) of each head (..., T, D): (a cos - b sin, b cos + a sin)."""
    half = x.shape[-1] // 2
    swapped = x.roll(half, -1)          # (b, a)
    return torch.addcmul(x * cos, swapped, sin)


# --- layers -------------------------------------------------------------------------------------------------

@dataclass
class Shared:
    """What all blocks of a forward pass share beside the states: positions, mask, cache and adapters."""
    cos: Tensor                     # (B, 1, T, D)
    sin: Tensor                     # (B, 1, T, D)
    mask: Tensor | Pages | None     # what queries see; None = causal
    cache: Cache | None
    slots: Tensor | None            # where the cache takes one token a row; None = from its beginning
    lora: Lora | None               # None = the bare base


class Attention(nn.Module):
    """Grouped-query attention with rotary positions: q, k and v are one product."""

    def __init__(self, cfg: ModelConfig, layer: int, path: str):
        super().__init__()
        C = cfg.hidden_size
        self.layer = layer
        self.H = cfg.num_attention_heads
        self.K = cfg.num_key_value_heads
        self.D = cfg.head_dim
        q = self.H * self.D                     # widths
        kv = self.K * self.D
        self.q_proj = Linear(f"{path}.q_proj", C, q, cfg.attention_bias)
        self.k_proj = Linear(f"{path}.k_proj", C, kv, cfg.attention_bias)
        self.v_proj = Linear(f"{path}.v_proj", C, kv, cfg.attention_bias)
        self.o_proj = Linear(f"{path}.o_proj", q, C, cfg.output_bias)
        self.q_norm = self.k_norm = None
        if cfg.qk_norm:
            self.q_norm = nn.RMSNorm(self.D, cfg.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.D, cfg.rms_norm_eps)
        self.qkv = FusedLinear(self.q_proj, self.k_proj, self.v_proj)
        self.out = FusedLinear(self.o_proj)

    def forward(self, x: Tensor, shared: Shared) -> Tensor:
        """x (B, T, C) -> (B, T, C)."""
        B, T, _ = x.shape
        H, K = self.H, self.K
        joint = self.qkv(x, shared.lora).view(B, T, -1, self.D)               # (B, T, H + K + K, D)
        qk, v = joint.split([H + K, K], 2)
        if self.q_norm is not None:
            q, k = qk.split([H, K], 2)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), 2)
        qk = rotate(qk.transpose(1, 2), shared.cos, shared.sin)                 # queries and keys in one go
        q, k = qk.split([H, K], 1)                                          # (B, H, T, D), (B, K, T, D)
        v = v.transpose(1, 2)
        if shared.cache is not None:
            k, v = shared.cache.append(self.layer, k, v, shared.slots)          # and all that came before
        y = attend(q, k, v, shared.mask)
        y = y.transpose(1, 2).reshape(B, T, -1)                             # heads side by side
        return self.out(y, shared.lora)


class MLP(nn.Module):
    """down(silu(gate x) * up x): gate and up are one product."""

    def __init__(self, cfg: ModelConfig, path: str):
        super().__init__()
        C = cfg.hidden_size
        inner = cfg.intermediate_size
        self.gate_proj = Linear(f"{path}.gate_proj", C, inner, cfg.mlp_bias)
        self.up_proj = Linear(f"{path}.up_proj", C, inner, cfg.mlp_bias)
        self.down_proj = Linear(f"{path}.down_proj", inner, C, cfg.mlp_bias)
        self.gate_up = FusedLinear(self.gate_proj, self.up_proj)
        self.down = FusedLinear(self.down_proj)

    def forward(self, x: Tensor, lora: Lora | None) -> Tensor:
        """SwiGLU (GLU Variants Improve Transformer, eq. 5; 2002.05202): x (B, T, C) -> (B, T, C)."""
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

    def forward(self, x: Tensor, shared: Shared) -> Tensor:
        """x (B, T, C) -> (B, T, C)."""
        x = x + self.self_attn(self.input_layernorm(x), shared)
        return x + self.mlp(self.post_attention_layernorm(x), shared.lora)


# --- the model ----------------------------------------------------------------------------------------------


class Float32Product(torch.autograd.Function):
    """h (M, C) times a frozen weight (V, C) of the same format, in float32 (M, V): torch.mm can, but has no
    derivative where out_dtype is given."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, h: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(weight)
        return torch.mm(h, weight.T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        """The gradient (M, C) of h; none of the weight, which is frozen."""
        [weight] = ctx.saved_tensors
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
    def embedding(self) -> Tensor:
        """The vectors of the vocabulary (V, C)."""
        return self.model.embed_tokens.weight

    def forward(
        self,
        ids: Tensor,                        # (B, T)
        positions: Tensor | None = None,    # (B, T); None = 0, 1, ..., or of one token what follows the cache
        mask: Tensor | None = None,         # (B, 1, T, T) bool, true for allowed keys; None = causal
        cache: Cache | None = None,
        lora: Lora | None = None,
        checkpointing: bool = False,
    ) -> Tensor:
        """Final hidden states (B, T, C) of ids (B, T).

        A cache takes several tokens only while it is empty; a PagedCache takes always one a row, with its
        position. Checkpointing keeps only each block's input for the backward pass, which computes the rest
        again (1604.06174).
        """
        B, T = ids.shape
        decoding = cache is not None and T == 1
        x = self.model.embed_tokens(ids)
        if positions is None:
            start = cache.length if decoding else 0
            positions = torch.arange(start, start + T, device=ids.device).expand(B, T)
        slots = None
        if mask is not None:
            mask = additive(mask, x.dtype)
        if decoding:
            slots, mask = cache.extend(positions[:, 0])
        cos, sin = rope_table(positions, self.cfg, x.dtype)
        shared = Shared(cos, sin, mask, cache, slots, lora)
        for block in self.model.layers:
            if checkpointing:
                x = checkpoint(block, x, shared, use_reentrant=False)
            else:
                x = block(x, shared)
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

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary (..., V) of hidden states (..., C). On a GPU float32 from bfloat16
        states, which would round a score between 8 and 16 by up to .03; elsewhere of their own type."""
        if self.cfg.tie_word_embeddings:
            weight = self.embedding
        else:
            weight = self.lm_head.weight
        on_gpu = hidden.device.type != "cpu"
        if hidden.dtype == torch.bfloat16 and on_gpu and not weight.requires_grad:
            scores = Float32Product.apply(hidden.flatten(0, -2), weight)
            return scores.view(*hidden.shape[:-1], -1)
        return F.linear(hidden, weight)

    def linears(self) -> dict[str, Linear]:
        """Every adaptable linear layer (q, k, v, o, gate, up, down of each block) by full name, in order."""
        found = {}
        for fused in self.fused_linears():
            for layer in fused.layers:
                found[layer.path] = layer
        return found


@dataclass(frozen=True)
class Base:
    """A loaded base: frozen model, tokenizer, every id that ends an answer, and its prompt format."""
    model: Model
    tokenizer: object               # of transformers
    eos_ids: tuple[int, ...]
    prompt_format: str              # how it is talked to: one of prompts.FORMATS
    path: Path
    graphs: bool = False            # decode by CUDA graphs; load_base: on a GPU


@lru_cache(maxsize=2)
def closing_table(tokenizer: object, tag: str, vocab_size: int, device: torch.device) -> Tensor | None:
    """By which tokens a text comes to contain `tag`, in whatever tokens it is written.

    table[k, token]: a text ends in the first k characters of the tag; after the token it ends in so many.
    k = len(tag) is never left. Shape (len(tag) + 1, vocab_size), uint8; None without a tag, which must be of
    printable ASCII without spaces: only those are written in a vocabulary as they are.
    """
    if not tag:
        return None

    def n_matched(text: str) -> int:
        """How many characters of the tag a text ends in; all of them where it contains the tag."""
        if tag in text:
            return len(tag)
        k = len(tag) - 1
        while not text.endswith(tag[:k]):       # which every text does with the first 0
            k -= 1
        return k

    table = torch.zeros(len(tag) + 1, vocab_size, dtype=torch.uint8)
    for text, token in tokenizer.get_vocab().items():
        takes_part = text in tag or tag[0] in text or tag[-1] in text
        if not takes_part or token >= vocab_size:           # of most tokens the column stays 0
            continue
        for k in range(len(tag)):
            table[k, token] = n_matched(tag[:k] + text)     # of all texts that end so: only the end counts
    table[-1] = len(tag)
    return table.to(device)
