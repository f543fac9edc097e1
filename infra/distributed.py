"""Several processes, one population: every process holds all adapters and keeps the same records.

Rows are dealt out in `generate`, micro-batches in `rl`, where gradients are summed.
What only one process can know (verdicts, which run directory) comes from process 0 as JSON text: nothing is
unpickled. All that follows from it is computed by each of them, which must lead to the same bits: rollouts
are gathered, children come from process 0, and checksums are compared every step.
"""
import ctypes
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from infra.errors import UserError, demand

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
    demand(world == 1 or device == "cuda",
           f"--device {device} names one card for {world} processes: pass --device cuda")
    own = torch.device(device).index or 0
    if device == "cuda":
        own = int(os.environ.get("LOCAL_RANK", 0))
    n_cards = torch.cuda.device_count()
    demand(own < n_cards, f"--device {device}: there is no card {own}, torch sees {n_cards}: name another, "
           "or lower torchrun's --nproc_per_node")
    return own


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor's bits as integers, modulo 2^64: the same in whatever order they are added."""
    x = tensor.detach()
    size = x.element_size()
    if x.is_contiguous() and x.numel() * size % 8 == 0 and x.storage_offset() * size % 8 == 0:
        return x.flatten().view(torch.int64).sum()              # on a CPU 30 times as fast
    return x.view(BITS[size]).sum(dtype=torch.int64)


def leave() -> None:
    """Leave the process group, if there is one: not after an error, others may wait or be gone."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def prepare_card(device: str) -> None:
    """Makes a card the current one, with the settings that self-play wants."""
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"           # loses less between blocks
    torch.cuda.set_device(device)
    # cuDNN's attention plans anew for every shape, half a second each, and nearly every shape is new
    torch.backends.cuda.enable_cudnn_sdp(False)


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
        demand(re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device),
               f"--device {device}: give auto, cpu, cuda or cuda:1")
        has_card = torch.cuda.is_available()
        if device == "auto":
            device = "cuda" if has_card else "cpu"
        on_gpu = device != "cpu"
        demand(has_card or not on_gpu, f"--device {device}: torch sees no CUDA device; use --device cpu")
        reuse_memory()
        world = int(os.environ.get("WORLD_SIZE", 1))
        rank = int(os.environ.get("RANK", 0))
        demand(0 <= rank < world, f"RANK is {rank} in the environment, but WORLD_SIZE makes {world} "
               "process(es): unset both, or start by torchrun, which sets them")
        if on_gpu:
            device = f"cuda:{card_of(device, world)}"
            prepare_card(device)
        if world > 1 and not dist.is_initialized():
            if on_gpu:
                dist.init_process_group("nccl", timeout=TIMEOUT, device_id=torch.device(device))
                # NCCL takes its memory at the first sum: before the plan
                dist.all_reduce(torch.zeros(1 << 25, device=device))
            else:
                dist.init_process_group("gloo", timeout=TIMEOUT)
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

    def share(self, value: object, source: int) -> object:
        """The JSON-able value of process `source`, in all processes."""
        # JSON, not broadcast_object_list: that would unpickle, and what is sent holds texts of models.
        text = json.dumps(value).encode()
        size = torch.tensor([len(text)], device=self.device)
        dist.broadcast(size, source)
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == source:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, source)
        return json.loads(data.cpu().numpy().tobytes())

    def broadcast(self, make: Callable) -> object:
        """make() on process 0, its JSON-able result on all of them; a UserError is raised in all."""
        def make_once() -> object:
            if self.rank == 0:
                return make()

        result = self.together(make_once)
        if self.world == 1:
            return result
        return self.share(result, 0)

    def together(self, make: Callable) -> object:
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
            raise UserError(self.share(error, failed))
        return result

    def broadcast_member(self, adapters: object, slot: int) -> None:
        """Process 0's factors of a member of lora.Adapters for all of them, bit for bit."""
        if self.world > 1:
            for pair in adapters.masters.values():
                for factor in pair:
                    own = factor.detach()[slot]
                    sent = own.to(self.device)      # members may be kept elsewhere than they are computed
                    dist.broadcast(sent, 0)
                    own.copy_(sent)

    def check_equal(
        self,
        values: dict[str, int | torch.Tensor],      # of a tensor the checksum is compared
        where: str,
        advice: str = "",
    ) -> None:
        """Raises UserError in every process if one of these values is not the same in all of them. The
        message is `where`, the value's name, the processes, and `advice`."""
        if self.world == 1:
            return
        numbers = []
        for x in values.values():
            number = checksum(x) if isinstance(x, torch.Tensor) else torch.tensor(x)
            numbers.append(number.to(self.device))
        own = torch.stack(numbers)
        everybody = self.gather(own[None], [1] * self.world)            # (world, values)
        differs = (everybody != everybody[0]).cpu()
        if not differs.any():
            return
        names = list(itertools.compress(values, differs.any(0)))
        ranks = differs.any(1).nonzero().flatten().tolist()
        told = names[0]
        if len(names) > 1:
            told += f" (and {len(names) - 1} more)"
        raise UserError(f"{where}: {told} is not the same in process {', '.join(map(str, ranks))} as in "
                         f"process 0{advice}")

    def check_population(self, adapters: object, members: list, where: str) -> None:
        """Raises UserError in every process where one has other factors, names or ratings than process 0."""
        text = json.dumps(list(map(asdict, members))).encode()
        digest = hashlib.sha256(text).digest()
        values = dict(members=int.from_bytes(digest[:7], "big"))
        for path, pair in adapters.masters.items():
            values |= zip((f"{path}.lora_A", f"{path}.lora_B"), pair)
        self.check_equal(values, where, ": what was saved before stands, --resume goes on from there; if it "
                                        "comes again, leave that device out")

    def gather(self, own: torch.Tensor, n_rows: list[int]) -> torch.Tensor:
        """The rows of all processes, one after another; n_rows: of each. Of the same width everywhere."""
        if self.world == 1:
            return own
        padded = own.new_zeros(max(n_rows), *own.shape[1:])
        padded[:len(own)] = own
        everybody = [torch.empty_like(padded) for _ in n_rows]
        dist.all_gather(everybody, padded)
        rows = []
        for theirs, n in zip(everybody, n_rows):
            rows.append(theirs[:n])
        return torch.cat(rows)


ALONE = Ranks(0, 1, torch.device("cpu"))        # one process
