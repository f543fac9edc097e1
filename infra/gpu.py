"""What only a GPU needs: copies that do not wait for it, and a step of decoding as a CUDA graph."""
import contextlib
import sys

import torch


def send(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A copy of a tensor of the CPU on the device, for which a CUDA GPU is not waited for. An Apple GPU is:
    torch before 2.13 might read the source after it is gone."""
    return x.to(device, non_blocking=torch.device(device).type == "cuda")


class CUDAGraphRunner:
    """A step that is called over and over.

    As a CUDA graph its third call is recorded and from then on replayed: one launch instead of a thousand.
    Where that fails, nothing is recorded any more and every call runs the step, said once on stderr.
    """
    can_record = True
    stream = None                           # on which graphs are recorded

    def __init__(self, step, as_graph: bool):
        self.step = step
        self.as_graph = as_graph
        self.n_calls = 0
        self.graph = None

    def __call__(self) -> None:
        self.n_calls += 1
        if self.as_graph and self.n_calls == 3:     # the first two load kernels, which no recording may do
            self.record()
        if self.graph:
            self.graph.replay()
        else:
            self.step()

    def record(self) -> None:
        """Record the step, which computes nothing."""
        if not CUDAGraphRunner.can_record:
            return
        pool = None
        try:
            CUDAGraphRunner.stream = CUDAGraphRunner.stream or torch.cuda.Stream()
            graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
            torch.cuda.synchronize()
            with torch.cuda.stream(CUDAGraphRunner.stream):     # torch.cuda.graph would stay on it on failure
                graph.capture_begin(pool, capture_error_mode="thread_local")    # NCCL's thread may go on
                try:
                    self.step()
                finally:
                    graph.capture_end()
            self.graph = graph
        except RuntimeError as e:
            CUDAGraphRunner.can_record = False
            if pool is not None:
                with contextlib.suppress(RuntimeError):         # else what is allocated stays the graph's
                    torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            print(f"note: decoding without CUDA graphs, as none could be recorded: {e}", file=sys.stderr,
                  flush=True)
