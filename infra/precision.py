"""Number formats of the frozen base: which one a device computes, and int8 weights.

Members, optimiser and losses are float32 whatever the base computes in (--dtype). --dtype int8 keeps a row w
of its linear layers as scale * q, with integers q in -127 .. 127 and scale = max|w| / 127 (absmax, as in
LLM.int8(), 2208.07339, section 2); a product makes the matrix of one layer again and forgets it.
"""
import torch
import torch.nn.functional as F

from infra.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def quantize(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The int8 matrix q (out, in) of a weight, and its scales (out,) in the format of computation."""
    scale = (weight.abs().amax(1).float() / 127).to(dtype)
    scale[scale == 0] = 1                       # a row of zeros, or of numbers too small for the format
    q = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127)
    return q.to(torch.int8), scale


class Int8Linear(torch.autograd.Function):
    """F.linear with an int8 weight. Keeps q for the backward pass, not the matrix made from it."""

    @staticmethod
    def forward(
        ctx: object,
        x: torch.Tensor,
        q: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """The product, with a bias or without."""
        ctx.save_for_backward(q, scale)
        return F.linear(x, q * scale[:, None], bias)

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of x alone: the rest is frozen."""
        q, scale = ctx.saved_tensors
        return grad @ (q * scale[:, None]), None, None, None


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """x (..., in) to (..., out). With a scale (out,) the weight is int8, and frozen."""
    if scale is None:
        return F.linear(x, weight, bias)
    return Int8Linear.apply(x, weight, scale, bias)


def pick_dtype(name: str, device: torch.device) -> str:
    """The name in DTYPES that a --dtype flag means. auto is bfloat16 on a CUDA card that computes it by
    itself (from the Ampere generation on), float32 elsewhere; int8 computes in the same. Raises UserError
    for bfloat16 on a card without."""
    on_gpu = device.type == "cuda"
    has_bfloat16 = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "bfloat16" and on_gpu and not has_bfloat16:
        card = torch.cuda.get_device_name(device)
        raise UserError(f"--dtype bfloat16: {card} does not have it; leave --dtype out")
    if name in DTYPES:
        return name
    return "bfloat16" if has_bfloat16 else "float32"
