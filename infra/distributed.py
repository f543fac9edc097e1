"""Several processes, one population: every process holds all adapters and keeps the same records.

Rows are dealt out in `generate`, micro-batches in `rl`, where gradients are summed.
What only one process can know (verdicts, which run directory) comes from process 0 as JSON text: nothing is
unpickled. All that follows from it is computed by each of them, which must lead to the same bits: rollouts
are gathered, children come from process 0, and checksums are compared every step.
"""
import ctypes
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from infra.errors import UserError

TIMEOUT = timedelta(minutes=30)     # longest wait for another process: a hang would be worse than an error
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def reuse_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MB: faulting them in anew is 15% of a CPU's rollout."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 25)                      # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 29)                      # M_TRIM_THRESHOLD


def card_of(device: str, world: int) -> int:
    """The number of this process's card. Raises UserError where it has none of its own."""
    if world > 1 and device != "cuda":
        raise UserError(f"--device {device} names one card for {world} processes: pass --device cuda")
    own = int(os.environ.get("LOCAL_RANK", 0)) if device == "cuda" else torch.device(device).index or 0
    if own >= (n_cards := torch.cuda.device_count()):
        raise UserError(f"--device {device}: there is no card {own}, torch sees {n_cards}: name another, or "
                         "lower torchrun's --nproc_per_node")
    return own


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor's bits as integers, modulo 2^64: the same in whatever order they are added."""
    x, size = tensor.detach(), tensor.element_size()
    if x.is_contiguous() and x.numel() * size % 8 == 0 and x.storage_offset() * size % 8 == 0:
        return x.flatten().view(torch.int64).sum()              # on a CPU 30 times as fast
    return x.view(BITS[size]).sum(dtype=torch.int64)


def leave() -> None:
    """Leave the process group, if there is one: not after an error, others may wait or be gone."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True)
class Ranks:
    """This process's place: rank of world, and its device."""
    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Join torchrun's process group if there is one. device: "auto", "cpu", "cuda" (the card of this
        process) or "cuda:1". Raises UserError where there is none."""
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
            raise UserError(f"--device {device}: give auto, cpu, cuda or cuda:1")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"--device {device}: torch sees no CUDA device; use --device cpu")
        reuse_memory()
        world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        if not 0 <= rank < world:
            raise UserError(f"RANK is {rank} in the environment, but WORLD_SIZE makes {world} process(es): "
                             "unset both, or start by torchrun, which sets them")
        if device.startswith("cuda"):
            device = f"cuda:{card_of(device, world)}"
            if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
                os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"   # loses less between blocks
            torch.cuda.set_device(device)
            # cuDNN's attention plans anew for every shape, half a second each, and nearly every shape is new
            torch.backends.cuda.enable_cudnn_sdp(False)
        if world > 1 and not dist.is_initialized():
            on_gpu = device.startswith("cuda")
            dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT,
                                    device_id=torch.device(device) if on_gpu else None)
            if on_gpu:                              # NCCL takes its memory at the first sum: before the plan
                dist.all_reduce(torch.zeros(1 << 25, device=device))
        return cls(rank, world, torch.device(device))

    def all_reduce(self, *tensors: torch.Tensor) -> None:
        """Sum each of these over all processes, in place."""
        if self.world > 1:
            for x in tensors:
                dist.all_reduce(x)

    def all_reduce_min(self, n: int) -> int:
        """The smallest n of all processes."""
        if self.world > 1:
            number = torch.tensor([n], device=self.device)
            dist.all_reduce(number, dist.ReduceOp.MIN)
            n = int(number)
        return n

    def broadcast(self, make: Callable, source: int = 0):
        """make() on process `source`, its JSON-able result on all of them; a UserError is raised in all."""
        if self.world == 1:
            return make()
        message = {}
        if self.rank == source:
            try:
                message = dict(result=make())
            except UserError as e:
                message = dict(error=str(e))
        text = json.dumps(message).encode()
        size = torch.tensor([len(text)], device=self.device)
        dist.broadcast(size, source)
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == source:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, source)
        message = json.loads(data.cpu().numpy().tobytes())
        if "error" in message:
            raise UserError(message["error"])
        return message["result"]

    def together(self, make: Callable):
        """make() in every process. Where it raises UserError in one, all raise it: nobody waits."""
        if self.world == 1:
            return make()
        result, error = None, ""
        try:
            result = make()
        except UserError as e:
            error = str(e) or repr(e)
        failed = self.all_reduce_min(self.rank if error else self.world)
        if failed < self.world:
            raise UserError(self.broadcast(lambda: error, source=failed))
        return result

    def broadcast_member(self, adapters, slot: int) -> None:
        """Process 0's factors of a member of lora.Adapters for all of them, bit for bit."""
        if self.world > 1:
            for pair in adapters.masters.values():
                for factor in pair:
                    own = factor.detach()[slot]
                    sent = own.to(self.device)      # members may be kept elsewhere than they are computed
                    dist.broadcast(sent, 0)
                    own.copy_(sent)

    def check_equal(self, values: dict[str, int | torch.Tensor], where: str, advice: str = "") -> None:
        """Raises UserError in every process if one of these values is not the same in all of them. Of a
        tensor the checksum is compared: one vector of a number per value is gathered. The message is `where`,
        the value's name, the processes, and `advice`."""
        if self.world == 1:
            return
        numbers = [checksum(x) if isinstance(x, torch.Tensor) else torch.tensor(x) for x in values.values()]
        own = torch.stack([number.to(self.device) for number in numbers])
        everybody = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(everybody, own)
        differs = torch.stack(everybody).cpu() != everybody[0].cpu()            # (world, values)
        if not differs.any():
            return
        names = [name for name, column in zip(values, differs.T) if column.any()]
        ranks = [str(rank) for rank, row in enumerate(differs) if row.any()]
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise UserError(f"{where}: {names[0]}{more} is not the same in process {', '.join(ranks)} as in "
                         f"process 0{advice}")

    def check_population(self, adapters, members: list, where: str) -> None:
        """Raises UserError in every process where one has other factors, names or ratings than process 0."""
        text = json.dumps(list(map(asdict, members))).encode()
        values = dict(members=int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))
        for path, pair in adapters.masters.items():
            values |= zip((f"{path}.lora_A", f"{path}.lora_B"), pair)
        self.check_equal(values, where, ": what was saved before stands, --resume goes on from there; if it "
                                        "comes again, leave that device out")

    def gather(self, own: torch.Tensor, n_rows: list[int]) -> torch.Tensor:
        """The rows of all processes, one after another; n_rows: of each. Of the same width everywhere."""
        padded = own.new_zeros(max(n_rows), *own.shape[1:])
        padded[:len(own)] = own
        everybody = [torch.empty_like(padded) for _ in n_rows]
        dist.all_gather(everybody, padded)
        return torch.cat([rows[:n] for rows, n in zip(everybody, n_rows)])


ALONE = Ranks(0, 1, torch.device("cpu"))        # one process
