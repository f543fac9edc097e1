"""Several processes, one population: every process holds all adapters and keeps the same records.

Rows of generation and micro-batches of the update are shared out; gradients are summed in `rl.accumulate`. What only one
process can know (verdicts, which run directory) comes from process 0 as JSON text: nothing is unpickled.
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
    """Let glibc keep freed blocks of up to 32 MB instead of giving every page back and faulting it in anew: 15% of a rollout on
    a CPU goes there. Elsewhere nothing happens."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 25)                      # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 29)                      # M_TRIM_THRESHOLD


@dataclass(frozen=True)
class Ranks:
    """This process's place: rank of world, and its device."""
    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Join torchrun's process group if there is one. device: "auto", "cpu" or "cuda". Raises ValueError without CUDA."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"--device {device}: torch sees no CUDA device; use --device cpu")
        reuse_memory()
        world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
            torch.cuda.set_device(device)
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
        """generate.generate with the prompts shared out; every process gets all rows, in the order of the prompts."""
        if self.world == 1 or len(prompts) < self.world:
            return generate(base, adapters, prompts, member, keys, n, **kw)
        mine = range(self.rank, len(prompts), self.world)
        own = generate(base, adapters, [prompts[i] for i in mine], [member[i] for i in mine],
                       [keys[i * n + j] for i in mine for j in range(n)], n, **kw)
        width = torch.tensor([own.ids.shape[1]], device=self.device)
        dist.all_reduce(width, op=dist.ReduceOp.MAX)
        shape = lambda r: (len(range(r, len(prompts), self.world)) * n, int(width) + 3)
        size = max(shape(r)[0] for r in range(self.world))
        pack = lambda x, tail: torch.nn.functional.pad(torch.cat((x, *tail), 1), (0, 0, 0, size - len(x)))
        wide = lambda x: torch.nn.functional.pad(x, (0, int(width) - x.shape[1]))
        columns = [own.prompt_len[:, None], own.length[:, None], own.member[:, None]]
        ids, logp = pack(wide(own.ids), columns), pack(wide(own.logp), [])
        all_ids, all_logp = ([torch.empty_like(x) for _ in range(self.world)] for x in (ids, logp))
        dist.all_gather(all_ids, ids)
        dist.all_gather(all_logp, logp)
        parts = [(i[:shape(r)[0]], p[:shape(r)[0]]) for r, (i, p) in enumerate(zip(all_ids, all_logp))]
        joined = Rollout.cat([Rollout(i[:, :-3], i[:, -3], i[:, -2], p, i[:, -1]) for i, p in parts])
        source = [i * n + j for r in range(self.world) for i in range(r, len(prompts), self.world) for j in range(n)]
        return joined.select(torch.tensor(source, device=self.device).argsort())
