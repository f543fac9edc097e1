"""What a CUDA card needs: copies that do not wait for it, a step of decoding as one CUDA graph; memory."""
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


def send(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A copy on the device; from the CPU by way of pinned memory, so that nobody waits for the card."""
    if torch.device(device).type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


@dataclass
class CUDAGraphRunner:
    """A step that is called over and over, as a CUDA graph where that works: one launch, not a thousand.

    The third call is recorded and from then on replayed. All recordings share one pool of memory, so a graph
    may not be replayed any more once another has been recorded. A step that cannot be recorded runs as it is;
    so do all later ones, unless only memory was short.
    """
    can_record = True                       # this and what follows up to `stream`: of all runners together
    pool = None                             # torch.cuda.MemPool
    stream = None                           # on which graphs are recorded
    step: Callable[[], None]
    as_graph: bool
    n_calls: int = 0

    def __call__(self) -> None:
        self.n_calls += 1
        if self.as_graph and self.n_calls == 3 and CUDAGraphRunner.can_record:
            self.record()                   # not earlier: the first calls load kernels, no recording may
        self.step()

    def record(self) -> None:
        """Make the step a replay of its recording, which computes nothing."""
        cls = CUDAGraphRunner
        torch.cuda.synchronize()
        torch.cuda.empty_cache()            # a private pool cannot use what the common one keeps
        try:
            if cls.pool is None:
                cls.pool, cls.stream = torch.cuda.MemPool(), torch.cuda.Stream()
            self.step = capture(self.step, cls.pool, cls.stream).replay
        except RuntimeError as e:
            cls.can_record = isinstance(e, torch.OutOfMemoryError)
            print(f"note: decoding without a CUDA graph, as none could be recorded: {e}", file=sys.stderr)


def capture(
    step: Callable[[], None],
    pool: "torch.cuda.MemPool",
    stream: "torch.cuda.Stream",
) -> "torch.cuda.CUDAGraph":
    """A graph of what `step` launches. Raises the first error, not the one of ending a failed recording."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):                     # torch.cuda.graph would stay on it on failure
        graph.capture_begin(pool.id, capture_error_mode="thread_local")         # NCCL's thread may go on
        try:
            step()
            graph.capture_end()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            with contextlib.suppress(RuntimeError):     # else all that follows is allocated in the pool
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool.id)
            raise
    return graph


def memory(device: torch.device) -> dict[str, float]:
    """Most gigabytes that torch reserved on a card since the last call, graphs' pool too; {} elsewhere."""
    if device.type != "cuda":
        return {}
    reserved = torch.cuda.max_memory_reserved(device) / 2 ** 30
    torch.cuda.reset_peak_memory_stats(device)
    return dict(reserved_gb=reserved)


def free_memory(device: torch.device) -> float:
    """Gigabytes available to one process, on a card with those that it holds already (CPU: its share of
    MemAvailable; infinite where that is unknown)."""
    if device.type == "cuda":
        return (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)) / 2 ** 30
    meminfo = Path("/proc/meminfo")
    for row in meminfo.read_text().splitlines() if meminfo.exists() else []:
        if row.startswith("MemAvailable"):
            return int(row.split()[1]) / 2 ** 20 / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return float("inf")
