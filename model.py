"""Computes the frozen base: Qwen2, Qwen3, Llama and Mistral by hand.

Shapes: B rows, T tokens, S cache slots, C width, H heads, K kv heads, D head size, V vocabulary.
Parameter names are Hugging Face's, so that weights.py loads a file by assigning it strictly. Cache, mask and
adapters are arguments: the model itself holds nothing but weights. Architectures differ in fields of
ModelConfig, which weights.py reads from config.json, and in no class.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Adds the adapters of each row's member to the outputs y of layers that share the input x: lora.Route
Lora = Callable[[tuple[str, ...], list[int], Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """Holds the fields of config.json that the forward pass needs, if possible by Hugging Face's names."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0                                   # 0 = hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    # rope_type and its numbers, see rope_frequencies; no part of the hash, because a dict has none
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
    """Holds the weights of a linear layer and its full name, by which adapters find it."""

    def __init__(
        self,
        path: str,                              # "model.layers.0.self_attn.q_proj"
        n_in: int,
        n_out: int,
        bias: bool = False,
    ):
        super().__init__(n_in, n_out, bias=bias)
        self.path = path
        self.scale = None                       # (out,) once the weight is in int8


class FusedLinear:
    """Computes layers that read the same x by one product, once `fuse` has joined their weights.

    It is no Module, so that a state_dict of the model names the layers alone, as Hugging Face does.
    """

    def __init__(self, *layers: Linear):
        self.layers = layers
        self.paths = tuple(layer.path for layer in layers)
        self.sizes = [layer.out_features for layer in layers]
        # None before `fuse`; then the layers' own, one below the other
        self.weight = None                      # (sum of sizes, in)
        self.scale = None                       # (sum of sizes,)
        self.bias = None                        # (sum of sizes,)

    @torch.no_grad()
    def fuse(self) -> None:
        """Copies the layers' frozen weights into one tensor, and makes them views of it."""
        for name in ("weight", "scale", "bias"):
            parts = [getattr(layer, name) for layer in self.layers]
            if parts[0] is None:
                continue
            whole = torch.cat(parts)
            setattr(self, name, whole)
            for layer, view in zip(self.layers, whole.split(self.sizes)):
                setattr(layer, name, nn.Parameter(view, requires_grad=False))

    def __call__(self, x: Tensor, lora: Lora | None = None) -> Tensor:
        """Returns the layers' outputs (B, T, sum of sizes), side by side; before `fuse` layer by layer."""
        if self.weight is None:
            outputs = [layer(x) for layer in self.layers]
            y = torch.cat(outputs, -1)
        elif self.scale is None:
            y = F.linear(x, self.weight, self.bias)
        else:
            y = Int8Product.apply(x, self.weight, self.scale, self.bias)
        if lora is None:
            return y
        return lora(self.paths, self.sizes, x, y)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a weight (out, in) as integers q in -127 .. 127 and a scale (out,): row w is about scale * q,
    with scale = max|w| / 127 (absmax, LLM.int8(), 2208.07339, section 2)."""
    largest = weight.abs().amax(1).float()
    scale = (largest / 127).to(weight.dtype)
    scale[scale == 0] = 1                       # a row of zeros, or of numbers too small for the format
    q = weight.float() / scale.float()[:, None]
    q = q.round().clamp(-127, 127)
    return q.to(torch.int8), scale


class Int8Product(torch.autograd.Function):
    """Computes F.linear with an int8 weight, of which it keeps no wider copy for the backward pass."""

    @staticmethod
    def forward(
        ctx: object,
        x: Tensor,                              # (..., in)
        q: Tensor,                              # (out, in) int8
        scale: Tensor,                          # (out,)
        bias: Tensor | None,                    # (out,)
    ) -> Tensor:
        """Returns the product (..., out)."""
        ctx.save_for_backward(q, scale)
        return F.linear(x, q * scale[:, None], bias)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient of x alone, because the rest is frozen."""
        q, scale = ctx.saved_tensors
        return grad @ (q * scale[:, None]), None, None, None


class Float32Product(torch.autograd.Function):
    """Computes h (M, C) times a frozen weight (V, C) of the same format, in float32 (M, V). torch.mm does so
    if out_dtype is given, but has no derivative then."""

    @staticmethod
    def forward(ctx: object, h: Tensor, weight: Tensor) -> Tensor:
        """Returns the product."""
        ctx.save_for_backward(weight)
        return torch.mm(h, weight.T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient (M, C) of h; the weight is frozen."""
        [weight] = ctx.saved_tensors
        return grad.to(weight.dtype) @ weight, None


# --- rotary positions (RoFormer, 2104.09864) ----------------------------------------------------------------

def rope_frequencies(cfg: ModelConfig, device: torch.device | str) -> Tensor:
    """Returns the angle per position (D/2,) float32 of each pair of a head's numbers.

    The rope_type "linear" divides every frequency by `factor`. "llama3" divides those that turn less than
    low_freq_factor times within the context of pretraining, and blends up to high_freq_factor.
    """
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


def rope_table(
    positions: Tensor,              # (B, T)
    cfg: ModelConfig,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Returns cos and sin (B, 1, T, D) of positions (B, T), computed in float32 (RoFormer, eq. 34). The first
    half of sin is negative, as `rotate` wants it."""
    freq = rope_frequencies(cfg, positions.device)
    angle = positions[:, None, :, None].float() * freq                  # (B, 1, T, D/2)
    cos = angle.cos()
    sin = angle.sin()                   # (B, 1, T, D/2), the same for both halves of a head
    cos = torch.cat((cos, cos), -1)
    sin = torch.cat((-sin, sin), -1)
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns each head (..., T, D) with its halves (a, b) rotated: (a cos - b sin, b cos + a sin)."""
    half = x.shape[-1] // 2
    swapped = x.roll(half, -1)          # (b, a)
    return torch.addcmul(x * cos, swapped, sin)


# --- attention ----------------------------------------------------------------------------------------------

def attend(
    q: Tensor,                      # (B, H, T, D)
    k: Tensor,                      # (B, K, S, D)
    v: Tensor,                      # (B, K, S, D)
    mask: Tensor | None = None,     # (B, 1, T, S), 0 where a query sees a key, else -inf
) -> Tensor:
    """Returns outputs (B, H, T, D) of queries on keys and values. Without a mask a query sees the keys up to
    its own, and a row's only query sees them all."""
    B, H, T, D = q.shape
    K = k.shape[1]
    if T == 1:
        # In decoding a kv head's queries stand as its tokens, so no key is repeated, and fast kernels run.
        tokens = q.view(B, K, -1, D)                                    # (B, K, H/K, D)
        y = F.scaled_dot_product_attention(tokens, k, v, attn_mask=mask)
        return y.reshape(B, H, 1, D)
    slow_if_unequal = mask is not None or q.dtype == torch.float32
    if q.is_cuda and slow_if_unequal:           # there fast kernels want as many kv heads as heads
        k = k.repeat_interleave(H // K, 1)
        v = v.repeat_interleave(H // K, 1)
    return F.scaled_dot_product_attention(
        q, k, v,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns 0 where a boolean mask allows a key, else -inf. The kernels would do so in every layer."""
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill_(~mask, -torch.inf)


class KVCache:
    """Holds keys and values (B, K, S, D) of each layer. A token lies in the slot of its position.

    `length` is the number of slots that are looked at. A forward pass over prompts fills slots from 0 on, and
    sets it. Before a pass over one token a row, the caller sets it beyond the furthest row's position.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        n_rows: int,
        n_slots: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ):
        shape = (n_rows, cfg.num_key_value_heads, n_slots, cfg.head_dim)
        self.keys, self.values = [], []
        for _ in range(cfg.num_hidden_layers):
            empty = torch.zeros(shape, dtype=dtype, device=device)
            self.keys.append(empty)
            self.values.append(torch.zeros_like(empty))
        self.length = 0

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows (n,) alone; layer by layer, because two whole caches may not fit."""
        for all_layers in (self.keys, self.values):
            for layer, x in enumerate(all_layers):
                all_layers[layer] = x.index_select(0, rows)

    def put(
        self,
        rows: Tensor,                   # (n,)
        other: "KVCache",
        source: Tensor,                 # (n,) rows of the other cache
    ) -> None:
        """Overwrites the given rows (n,) with the rows `source` (n,) of another cache, and with 0 behind
        them, because a masked value is multiplied by 0, and an earlier row may have left NaN there."""
        T = other.length
        for x, y in zip(self.keys + self.values, other.keys + other.values):
            x[rows, :, :T] = y[source]
            x[rows, :, T:] = 0

    def place(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the slots (B K,) in the flattened (B K S, D) keys of one token a row, at position (B,), and
        the mask (B, 1, 1, length) by which each sees itself and all before it."""
        x = self.keys[0]
        B, K, S, _ = x.shape
        first = torch.arange(B * K, device=x.device) * S                # slot of each head's first token
        slots = first + position.repeat_interleave(K)
        slot = torch.arange(self.length, device=x.device)
        seen = slot <= position[:, None]                                # (B, length)
        return slots, additive(seen[:, None, None], x.dtype)

    def append(
        self,
        layer: int,
        k: Tensor,                      # (B, K, T, D)
        v: Tensor,                      # (B, K, T, D)
        slots: Tensor | None,           # (B K,) for one token a row; None = from slot 0 on
    ) -> tuple[Tensor, Tensor]:
        """Writes k, v (B, K, T, D) from slot 0 on, or one token a row into its slot. Returns the keys and
        values that are looked at, (B, K, length, D)."""
        keys, values = self.keys[layer], self.values[layer]
        T, D = k.shape[2:]
        if slots is None:
            self.length = T
            keys[:, :, :T] = k
            values[:, :, :T] = v
        else:
            keys.view(-1, D).index_copy_(0, slots, k.reshape(-1, D))
            values.view(-1, D).index_copy_(0, slots, v.reshape(-1, D))
        return keys[:, :, :self.length], values[:, :, :self.length]


# --- layers -------------------------------------------------------------------------------------------------

@dataclass
class Shared:
    """Holds what all blocks of a forward pass share beside the states."""
    cos: Tensor                     # (B, 1, T, D)
    sin: Tensor                     # (B, 1, T, D)
    mask: Tensor | None             # (B, 1, T, S), 0 or -inf; None = causal
    cache: KVCache | None
    slots: Tensor | None            # where the cache takes one token a row; None = from its beginning
    lora: Lora | None               # None = the bare base


class Attention(nn.Module):
    """Computes grouped-query attention with rotary positions; q, k and v are one product."""

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
        """Returns the new states (B, T, C) of x (B, T, C)."""
        B, T, _ = x.shape
        H, K = self.H, self.K
        joint = self.qkv(x, shared.lora)
        joint = joint.view(B, T, -1, self.D)                                # (B, T, H + K + K, D)
        qk, v = joint.split([H + K, K], 2)
        if self.q_norm is not None:
            q, k = qk.split([H, K], 2)
            q = self.q_norm(q)
            k = self.k_norm(k)
            qk = torch.cat((q, k), 2)
        qk = qk.transpose(1, 2)
        qk = rotate(qk, shared.cos, shared.sin)                             # queries and keys in one go
        q, k = qk.split([H, K], 1)                                          # (B, H, T, D), (B, K, T, D)
        v = v.transpose(1, 2)
        if shared.cache is not None:
            k, v = shared.cache.append(self.layer, k, v, shared.slots)          # and all that came before
        y = attend(q, k, v, shared.mask)
        y = y.transpose(1, 2).reshape(B, T, -1)                             # heads side by side
        return self.out(y, shared.lora)


class MLP(nn.Module):
    """Computes down(silu(gate x) * up x); gate and up are one product."""

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
        """Returns SwiGLU (GLU Variants Improve Transformer, 2002.05202, eq. 5) (B, T, C) of x (B, T, C)."""
        gate, up = self.gate_up(x, lora).chunk(2, -1)
        return self.down(F.silu(gate) * up, lora)


class Block(nn.Module):
    """Computes x + attention(norm x), then adds MLP(norm x)."""

    def __init__(self, cfg: ModelConfig, layer: int):
        super().__init__()
        path = f"model.layers.{layer}"
        self.input_layernorm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg, layer, f"{path}.self_attn")
        self.post_attention_layernorm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg, f"{path}.mlp")

    def forward(self, x: Tensor, shared: Shared) -> Tensor:
        """Returns the new states (B, T, C) of x (B, T, C)."""
        x = x + self.self_attn(self.input_layernorm(x), shared)
        return x + self.mlp(self.post_attention_layernorm(x), shared.lora)


# --- the model ----------------------------------------------------------------------------------------------

class Model(nn.Module):
    """Holds the decoder, its parameters named as in transformers; a tied head has none of its own."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.cfg = cfg
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.model.layers = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.num_hidden_layers))
        self.model.norm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        if not cfg.tie_word_embeddings:
            self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    @property
    def embedding(self) -> Tensor:
        """Returns the vectors of the vocabulary (V, C)."""
        return self.model.embed_tokens.weight

    def forward(
        self,
        ids: Tensor,                        # (B, T)
        positions: Tensor | None = None,    # (B, T); None = 0, 1, ...
        mask: Tensor | None = None,         # (B, 1, T, T) bool, true for allowed keys; None = causal
        cache: KVCache | None = None,
        lora: Lora | None = None,
        checkpointing: bool = False,
    ) -> Tensor:
        """Returns the final hidden states (B, T, C) of ids (B, T).

        An empty cache takes a prompt; a filled one takes one token a row, with its position. Checkpointing
        keeps each block's input alone and computes the rest again in the backward pass (1604.06174).
        """
        B, T = ids.shape
        x = self.model.embed_tokens(ids)
        if positions is None:
            positions = torch.arange(T, device=ids.device).expand(B, T)
        if mask is not None:
            mask = additive(mask, x.dtype)
        slots = None
        if cache is not None and cache.length:
            slots, mask = cache.place(positions[:, 0])
        cos, sin = rope_table(positions, self.cfg, x.dtype)
        shared = Shared(cos, sin, mask, cache, slots, lora)
        for block in self.model.layers:
            if checkpointing:
                x = checkpoint(block, x, shared, use_reentrant=False)
            else:
                x = block(x, shared)
        return self.model.norm(x)

    def fused_linears(self) -> list[FusedLinear]:
        """Returns the adaptable layers, in groups that share an input."""
        fused = []
        for block in self.model.layers:
            fused += [block.self_attn.qkv, block.self_attn.out]
            fused += [block.mlp.gate_up, block.mlp.down]
        return fused

    def fuse(self) -> "Model":
        """Joins the frozen weights of layers that share their input. It is called after loading, and again
        after weights have been moved, copied or exchanged; edits in place need no new call."""
        for layer in self.fused_linears():
            layer.fuse()
        return self

    @torch.no_grad()
    def quantize(self) -> "Model":
        """Turns the weights of the adaptable layers into int8. It is called after loading, before `fuse`."""
        for layer in self.linears().values():
            q, layer.scale = quantize(layer.weight)
            layer.weight = nn.Parameter(q, requires_grad=False)
        return self

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns scores over the vocabulary (..., V) of hidden states (..., C). On a GPU those of bfloat16
        states are float32, because bfloat16 rounds a score between 8 and 16 by up to .03."""
        weight = self.embedding if self.cfg.tie_word_embeddings else self.lm_head.weight
        on_gpu = hidden.device.type != "cpu"
        if hidden.dtype == torch.bfloat16 and on_gpu and not weight.requires_grad:
            scores = Float32Product.apply(hidden.flatten(0, -2), weight)
            return scores.view(*hidden.shape[:-1], -1)
        return F.linear(hidden, weight)

    def linears(self) -> dict[str, Linear]:
        """Returns every adaptable layer (q, k, v, o, gate, up, down of each block) by full name, in order."""
        found = {}
        for fused in self.fused_linears():
            for layer in fused.layers:
                found[layer.path] = layer
        return found


@dataclass(frozen=True)
class Base:
    """Holds a loaded base: frozen model, tokenizer, every id that ends an answer, and its prompt format."""
    model: Model
    tokenizer: object               # transformers' own
    eos_ids: tuple[int, ...]
    prompt_format: str              # how it is talked to, one of prompts.FORMATS
    path: Path
    graphs: bool = False            # decode by steps that a CUDA graph can hold (load_base sets it on a GPU)
