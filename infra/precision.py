"""Number formats of the frozen base: which one a device computes fastest, and int8 weights.

Members, optimiser and losses are float32 whatever the base is in. --dtype is the format that the base
computes in. --dtype int8 keeps the weights of its linear layers in one byte each: a row w of a matrix
(out, in) is scale * q with integers q in -127 .. 127 and scale = max|w| / 127 (absmax quantisation, as in
LLM.int8(), 2208.07339, section 2). A product makes the matrix of one layer again and forgets it; the backward
pass makes it once more. docs/own-base.md says what that costs, and why no int8 kernel of torch's is used.
"""
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TRIED_FROM = 1 << 20        # weights of a layer from which --dtype auto tries formats on a CPU
TRIED_UP_TO = 1 << 23       # ... and how many it tries at most: of a larger layer it tries a part
TRIED_ROWS = {16: 6, 64: 3, 256: 2}         # two batches of decoding, a micro-batch; how often each is tried
CLEARLY = 1.3               # by how much bfloat16 must be faster with each of them
WITHOUT_FLOAT64 = {"mps"}   # types of devices


def wide(device: torch.device) -> torch.dtype:
    """The widest format of a device, for sums: float64, on an Apple GPU float32."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def detached(x: torch.Tensor) -> torch.Tensor:
    """A copy apart from autograd; on the CPU where the device lacks float64."""
    x = x.detach()
    return x.cpu() if x.device.type in WITHOUT_FLOAT64 else x.clone()


# --- int8 ---------------------------------------------------------------------------------------------------

def quantize(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The int8 matrix q (out, in) of a weight, and its scales (out,) in the format of computation."""
    scale = (weight.abs().amax(1).float() / 127).to(dtype)
    scale[scale == 0] = 1                       # a row of zeros, or of numbers too small for the format
    q = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127)
    return q.to(torch.int8), scale


class Int8Linear(torch.autograd.Function):
    """F.linear with an int8 weight. Keeps q for the backward pass, not the matrix made from it."""

    @staticmethod
    def forward(ctx, x, q, scale, bias):
        ctx.save_for_backward(q, scale)
        return F.linear(x, q * scale[:, None], bias)

    @staticmethod
    def backward(ctx, grad):
        q, scale = ctx.saved_tensors
        return grad @ (q * scale[:, None]), None, None, None


def linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None,
           bias: torch.Tensor | None) -> torch.Tensor:
    """x (..., in) to (..., out). With a scale (out,) the weight is int8, and frozen."""
    if scale is None:
        return F.linear(x, weight, bias)
    return Int8Linear.apply(x, weight, scale, bias)


# --- --dtype ------------------------------------------------------------------------------------------------

def has_bfloat16(device: torch.device) -> bool:
    """Whether a CUDA card computes bfloat16 by itself: from the Ampere generation on."""
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def pick_dtype(name: str, device: torch.device, layer: tuple[int, int] = (0, 0)) -> str:
    """The name in DTYPES that a --dtype flag means. layer: (in, out) of the base's largest, for a CPU.

    auto is bfloat16 on a GPU that has it, else float16; on a CPU what `fastest` says; float32 elsewhere. int8
    computes in the same, on a CPU in float32. Raises ValueError for bfloat16 on a GPU without.
    """
    lacking = device.type == "cuda" and name in ("auto", "int8", "bfloat16") and not has_bfloat16(device)
    if name == "bfloat16" and lacking:
        raise ValueError(f"--dtype bfloat16: {torch.cuda.get_device_name(device)} does not have it; leave "
                         "--dtype out or pass --dtype float16 (or float32, for twice the memory)")
    if name not in ("auto", "int8"):
        return name
    if lacking:
        print(f"note: {torch.cuda.get_device_name(device)} has no bfloat16: taking --dtype float16",
              file=sys.stderr, flush=True)
        return "float16"
    if device.type == "cuda":
        return "bfloat16"
    return fastest(*layer) if device.type == "cpu" and name == "auto" else "float32"


def seconds(x: torch.Tensor, weight: torch.Tensor) -> float:
    """CPU seconds of a product by a weight (out, in), and of the one that takes its gradient back: other
    programs change them less than those of a clock."""
    start = time.process_time()
    F.linear(x, weight) @ weight
    return time.process_time() - start


@torch.inference_mode()
def fastest(n_in: int, n_out: int) -> str:
    """float32, or bfloat16 where a CPU is clearly faster with it at a layer of this size; says which and why.

    It depends on the processor: with AMX or AVX512-BF16 bfloat16 takes a half to a third of the time, on
    others eight times as much. Small layers, as the micro base's, are not tried: float32.
    """
    if n_in * n_out < TRIED_FROM:
        return "float32"
    n_out = min(n_out, TRIED_UP_TO // n_in)
    gen = torch.Generator().manual_seed(0)
    weights = [torch.randn(n_out, n_in, generator=gen).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    texts = []
    gains = []
    for rows, repeats in TRIED_ROWS.items():
        x = torch.randn(rows, n_in, generator=gen)
        best = [float("inf"), float("inf")]
        for _ in range(repeats):                # in turns: the processor's speed may change in between
            for i, weight in enumerate(weights):
                best[i] = min(best[i], seconds(x.to(weight.dtype), weight))
        gains.append(best[0] / best[1])
        texts.append(f"{1e3 * best[0]:.1f} and {1e3 * best[1]:.1f} ms of {rows} rows")
    chosen = "bfloat16" if min(gains) >= CLEARLY else "float32"
    print(f"note: --dtype auto takes {chosen}: a layer of {n_in} x {n_out} in float32 and bfloat16 takes "
          f"{', '.join(texts)}", file=sys.stderr, flush=True)
    return chosen
