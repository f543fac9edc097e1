"""Devices, and several processes with one population.

Every process holds all adapters and keeps the same records. Rows are dealt out in `generate`, micro-batches
in `rl`. What only one process can know (verdicts, the run's directory, a child) comes from process 0 as JSON
text: nothing is unpickled.
"""
import ctypes
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from common import UserError

# --- devices ------------------------------------------------------------------------------------------------

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_dtype(name: str, device: torch.device) -> str:
    """Returns the name in DTYPES of what --dtype computes in. "auto" and "int8" compute in bfloat16 on a card
    that has it, in float32 elsewhere."""
    if name in DTYPES:
        return name
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_bfloat16 else "float32"


def send(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Returns a copy on the device; from the CPU by way of pinned memory, so that nobody waits for the
    card."""
    if torch.device(device).type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def pick_card(device: str) -> str:
    """Returns the name of this process's card and makes it the current one. Raises UserError if there is
    none."""
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    n_cards = torch.cuda.device_count()
    if torch.device(device).index >= n_cards:
        raise UserError(f"--device {device}: torch sees {n_cards} card(s): name another, give cpu, or lower "
                        "torchrun's --nproc_per_node")
    torch.cuda.set_device(device)
    # cuDNN's attention plans anew for every shape, half a second each, and nearly every shape is new
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def reuse_memory() -> None:
    """Lets glibc keep freed blocks of up to 32 MB: to fault them in anew is 15% of a CPU's rollout."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 25)                           # M_MMAP_THRESHOLD
    libc.mallopt(-1, 1 << 29)                           # M_TRIM_THRESHOLD


# --- several processes, one population ----------------------------------------------------------------------

@dataclass(frozen=True)
class Ranks:
    """Holds this process's place, rank of world, and its device."""
    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Joins torchrun's process group if there is one. device: "auto", "cpu", "cuda" (the card of this
        process) or "cuda:1". Raises UserError if there is no such device."""
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
            raise UserError(f"--device {device}: give auto, cpu, cuda or cuda:1")
        rank = int(os.environ.get("RANK", 0))
        world = int(os.environ.get("WORLD_SIZE", 1))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        on_gpu = device != "cpu"
        if on_gpu:
            device = pick_card(device)
        reuse_memory()
        if world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if on_gpu else "gloo")
        return cls(rank, world, torch.device(device))

    def leave(self) -> None:
        """Leaves the process group. Not after an error: others may wait, or be gone."""
        if self.world > 1:
            dist.destroy_process_group()

    def all_reduce(self, *tensors: torch.Tensor) -> None:
        """Sums each of these over all processes, in place."""
        if self.world > 1:
            for x in tensors:
                dist.all_reduce(x)

    def share(self, value: object, source: int) -> object:
        """Returns the JSON-able value of process `source` in all processes."""
        text = json.dumps(value).encode()
        size = torch.tensor([len(text)], device=self.device)
        dist.broadcast(size, source)
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == source:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, source)
        return json.loads(data.cpu().numpy().tobytes())

    def together(self, make: Callable) -> object:
        """Returns make() of every process. If it raises UserError in one of them, all raise it: nobody
        waits."""
        if self.world == 1:
            return make()
        result, error = None, ""
        try:
            result = make()
        except UserError as e:
            error = str(e)
        failed = torch.tensor([self.rank if error else self.world], device=self.device)
        dist.all_reduce(failed, dist.ReduceOp.MIN)
        first = int(failed)
        if first < self.world:
            raise UserError(self.share(error, first))
        return result

    def broadcast(self, make: Callable) -> object:
        """Returns make() of process 0, which is JSON-able, in all processes. A UserError is raised in all of
        them."""
        if self.world == 1:
            return make()
        return self.share(self.together(lambda: make() if self.rank == 0 else None), 0)

    def broadcast_tensors(self, tensors: list[torch.Tensor]) -> None:
        """Gives all processes what process 0 has in these, bit for bit."""
        if self.world > 1:
            for x in tensors:
                dist.broadcast(x, 0)

    def gather(self, own: torch.Tensor, n_rows: list[int]) -> torch.Tensor:
        """Returns the rows of all processes, one after another. They are of one width; n_rows: how many each
        has."""
        if self.world == 1:
            return own
        padded = own.new_zeros(max(n_rows), *own.shape[1:])
        padded[:len(own)] = own
        everybody = [torch.empty_like(padded) for _ in n_rows]
        dist.all_gather(everybody, padded)
        return torch.cat([theirs[:n] for theirs, n in zip(everybody, n_rows)])

    def check_equal(self, tensors: list[torch.Tensor], where: str) -> None:
        """Ends all processes if these float32 tensors are not the same, bit for bit, in all of them."""
        if self.world == 1:
            return
        own = torch.stack([x.detach().view(torch.int32).sum(dtype=torch.int64) for x in tensors])
        everybody = self.gather(own[None], [1] * self.world)            # (world, tensors)
        assert (everybody == everybody[0]).all(), f"{where}: the processes hold different adapters"


ALONE = Ranks(0, 1, torch.device("cpu"))        # one process
