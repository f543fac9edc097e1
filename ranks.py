"""Devices, and several processes with one population."""
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from common import UserError, demand

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
    """A copy on the device; from the CPU by way of pinned memory, so that nobody waits for the card."""
    if torch.device(device).type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


# --- several processes, one population ----------------------------------------------------------------------

@dataclass(frozen=True)
class Ranks:
    """This process's place, rank of world, and its device. Every process holds all adapters and keeps the same
    records; rows are dealt out in `generate`, micro-batches in `rl`. What only one can know (verdicts, which
    directory, a child) comes from process 0 as JSON text: nothing is unpickled."""
    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Join torchrun's process group if there is one. device: "auto", "cpu", "cuda" or "cuda:1"."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        on_gpu = device.startswith("cuda")
        demand(torch.cuda.is_available() or not on_gpu, f"--device {device}: torch sees no CUDA device")
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        if on_gpu:
            torch.cuda.set_device(device)
            torch.backends.cuda.enable_cudnn_sdp(False)     # it plans anew for every shape, half a second each
        if world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if on_gpu else "gloo")
        return cls(rank, world, torch.device(device))

    def all_reduce(self, *tensors: torch.Tensor) -> None:
        """Sum each of these over all processes, in place."""
        if self.world > 1:
            for x in tensors:
                dist.all_reduce(x)

    def broadcast(self, make: Callable) -> object:
        """make() on process 0, its JSON-able result on all of them; a UserError is raised in all."""
        if self.world == 1:
            return make()
        sent = None
        if self.rank == 0:
            try:
                sent = dict(value=make())
            except UserError as error:
                sent = dict(error=str(error))
        text = json.dumps(sent).encode()
        size = torch.tensor([len(text)], device=self.device)
        dist.broadcast(size, 0)
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == 0:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, 0)
        told = json.loads(data.cpu().numpy().tobytes())
        demand("value" in told, told.get("error", ""))
        return told["value"]

    def gather(self, own: torch.Tensor, n_rows: list[int]) -> torch.Tensor:
        """The rows of all processes, one after another; n_rows: of each. Of the same width everywhere."""
        if self.world == 1:
            return own
        padded = own.new_zeros(max(n_rows), *own.shape[1:])
        padded[:len(own)] = own
        everybody = [torch.empty_like(padded) for _ in n_rows]
        dist.all_gather(everybody, padded)
        return torch.cat([rows[:n] for rows, n in zip(everybody, n_rows)])

    def check_equal(self, tensors: list[torch.Tensor], where: str) -> None:
        """That these are the same, bit for bit, in all processes: where one goes apart, all end."""
        if self.world > 1:
            sums = torch.stack([x.detach().view(torch.int32).sum(dtype=torch.int64) for x in tensors])
            of_all = self.gather(sums[None], [1] * self.world)
            assert (of_all == of_all[0]).all(), f"{where}: the processes hold different adapters"


ALONE = Ranks(0, 1, torch.device("cpu"))        # one process
