"""Attention over packed lines on a GPU, without a mask of T x T numbers: torch's flex_attention.

A BlockMask says which blocks of 128 x 128 queries and keys hold anything; the kernel, compiled once for all
lengths, skips the others and asks `seen` inside of these. On a CPU flex_attention has no backward pass: there
a dense mask and SDPA do the same (`dense_mask`).
"""
import functools
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


def dense_mask(answer: torch.Tensor) -> torch.Tensor:
    """Which keys a query of a packed line sees (G, 1, T, T): the prompt and its own answer up to itself.

    answer (G, T): 0 = the prompt, 1, 2, ... = the answers, -1 = padding.
    """
    same = answer[:, :, None] == answer[:, None, :]                     # query, key
    prompt = answer[:, None, :] == 0
    causal = torch.ones_like(same).tril()
    return ((same | prompt) & causal)[:, None]


def block_mask(answer: torch.Tensor) -> BlockMask:
    """The same as `dense_mask`, for `attend`."""
    def seen(g, h, query, key):
        mine = (answer[g, query] == answer[g, key]) | (answer[g, key] == 0)
        return mine & (key <= query)

    G, T = answer.shape
    return create_block_mask(seen, G, None, T, T, device=answer.device)


@functools.cache
def compiled():
    """The kernel for all lengths. One line and one block of keys are cases of their own, as are passes
    without gradient: more than the 8 variants that torch allows by itself."""
    torch._dynamo.config.recompile_limit = max(32, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=True)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Attention (G, H, T, D) of queries (G, H, T, D) over keys and values (G, K, T, D)."""
    return compiled()(q, k, v, block_mask=mask, enable_gqa=True)


def agree(name: str, ours, theirs, instead: str) -> bool:
    """Whether two functions return the same tensors; if not, a note on stderr says what is done instead.

    Once something compiled has passed, a shape that torch fails to compile later runs as it is, with torch's
    warning, and stops no run.
    """
    try:
        with torch._dynamo.config.patch(suppress_errors=False):
            found = ours()
        for x, wanted in zip(found, theirs()):
            error = (x - wanted).float().norm() / wanted.float().norm()
            if not error < 0.03:
                raise ArithmeticError(f"its numbers are off by {error:.3f}")
    except Exception as e:                          # a compiler may raise anything
        reason = (str(e).strip() or type(e).__name__).splitlines()[0]
        print(f"note: {name} does not work here ({reason[:200]}): {instead}", file=sys.stderr, flush=True)
        return False
    torch._dynamo.config.suppress_errors = True
    return True


@functools.cache
def works(n_heads: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `attend` computes here what SDPA does, forward and backward; tried once, with a note if not."""
    gen = torch.Generator().manual_seed(0)
    answer = torch.randint(-1, 4, (2, 300), generator=gen).sort(1).values.to(device)

    def results(attend, mask) -> list[torch.Tensor]:
        """Outputs, and gradients of queries, keys and values."""
        gen = torch.Generator().manual_seed(1)
        shapes = [(2, heads, 300, head_dim) for heads in (n_heads, n_kv_heads, n_kv_heads)]
        qkv = [torch.randn(shape, generator=gen).to(device, dtype).requires_grad_() for shape in shapes]
        y = attend(*qkv, mask(answer))
        y.square().sum().backward()
        return [y, *(x.grad for x in qkv)]

    def dense(q, k, v, mask) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    return agree("flex_attention", lambda: results(attend, block_mask), lambda: results(dense, dense_mask),
                 "the update attends by dense masks, which is slower and takes more memory")


def serves(model) -> bool:
    """Whether a model.Model is to attend over packed lines by blocks: on a GPU, unless windows slide."""
    cfg, weight = model.cfg, model.embedding
    return weight.is_cuda and not cfg.sliding_layers and works(
        cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim, weight.dtype, weight.device)
