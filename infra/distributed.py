"""Several processes, one population: every process holds all adapters and keeps the same records.

Rows of generation and micro-batches of the update are dealt out; gradients are summed in `rl.accumulate`.
What only one process can know (verdicts, which run directory) comes from process 0 as JSON text: nothing is
unpickled.
"""
import ctypes
import json
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from generate import Rollout, generate


def reuse_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MB instead of giving every page back and faulting it in anew:
    15% of a rollout on a CPU goes there. Elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 25)                      # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 29)                      # M_TRIM_THRESHOLD


def check_mps() -> None:
    """Raises ValueError where an Apple GPU is not there, or not for this process alone and set up."""
    if not torch.backends.mps.is_available():
        raise ValueError("--device mps: torch sees no Apple GPU; use --device cpu")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("--device mps is for one process: start it without torchrun")
    if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") != "1":        # train.py does so before it imports torch
        raise ValueError("--device mps: operations that it lacks run on the processor only where the shell "
                         "says export PYTORCH_ENABLE_MPS_FALLBACK=1")


@dataclass(frozen=True)
class Ranks:
    """This process's place: rank of world, and its device."""
    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Join torchrun's process group if there is one. device: "auto", "cpu", "cuda" (the card of this
        process), "cuda:1" or "mps". Raises ValueError where there is none."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"--device {device}: torch sees no CUDA device; use --device cpu")
        if device == "mps":
            check_mps()
        reuse_memory()
        world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        if device.startswith("cuda"):
            if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
                os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"   # loses less between blocks
            torch.cuda.set_device(device)
            # cuDNN's attention plans anew for every shape, half a second each, and nearly every shape is new
            torch.backends.cuda.enable_cudnn_sdp(False)
        if world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(rank, world, torch.device(device))

    def all_reduce_min(self, n: int) -> int:
        """The smallest n of all processes."""
        if self.world > 1:
            number = torch.tensor([n], device=self.device)
            dist.all_reduce(number, dist.ReduceOp.MIN)
            n = int(number)
        return n

    def broadcast(self, make):
        """make() on process 0, its JSON-able result on all of them."""
        if self.world == 1:
            return make()
        text = json.dumps(make()).encode() if self.rank == 0 else b""
        size = torch.tensor([len(text)], device=self.device)
        dist.broadcast(size, 0)
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == 0:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, 0)
        return json.loads(data.cpu().numpy().tobytes())

    def generate(self, base, adapters, prompts, member, keys, n=1, **kw) -> Rollout:
        """generate.generate with the prompts dealt out; every process gets all rows, in the prompts' order.

        Process r has the prompts r, r + world, r + 2 world, ...
        """
        if self.world == 1 or len(prompts) < self.world:
            return generate(base, adapters, prompts, member, keys, n, **kw)
        dealt = []                      # of each process: numbers of its rows; row i n + j answers prompt i
        for rank in range(self.world):
            own = range(rank, len(prompts), self.world)
            dealt.append([i * n + j for i in own for j in range(n)])
        mine = range(self.rank, len(prompts), self.world)
        rollout = generate(base, adapters, [prompts[i] for i in mine], [member[i] for i in mine],
                           [keys[row] for row in dealt[self.rank]], n, **kw)
        joined = self.gather(rollout, [len(rows) for rows in dealt])
        order = torch.tensor([row for rows in dealt for row in rows], device=self.device).argsort()
        return joined.select(order)

    def gather(self, own: Rollout, n_rows: list[int]) -> Rollout:
        """The rollouts of all processes, one after another; n_rows of each."""
        width = torch.tensor([own.ids.shape[1]], device=self.device)
        dist.all_reduce(width, op=dist.ReduceOp.MAX)
        missing = (0, int(width) - own.ids.shape[1], 0, max(n_rows) - len(own.ids))    # on the right, below
        numbers = torch.stack([own.prompt_len, own.length, own.member], 1)             # (N, 3)
        parts = []
        for tensor, padding in ((own.ids, missing), (own.logp, missing), (numbers, (0, 0, 0, missing[3]))):
            padded = torch.nn.functional.pad(tensor, padding).contiguous()
            everybody = [torch.empty_like(padded) for _ in range(self.world)]
            dist.all_gather(everybody, padded)
            parts.append([whole[:rows] for whole, rows in zip(everybody, n_rows)])
        rollouts = []
        for ids, logp, columns in zip(*parts):
            prompt_len, length, members = columns.unbind(1)
            rollouts.append(Rollout(ids, prompt_len, length, logp, members))
        return Rollout.cat(rollouts)
