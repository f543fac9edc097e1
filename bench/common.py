"""What all benchmarks share: ways measured in turns, tables of medians, ratios, memory."""
import ctypes
import statistics
import time
from pathlib import Path

import torch


def timed(work):
    """A function that does the work and returns its seconds."""
    def run() -> float:
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start
    return run


def alone(run):
    """Seconds of a timed run; without a GPU the processor's own, which others on it do not change."""
    start = time.process_time()
    seconds = run()
    return seconds if torch.cuda.is_available() else time.process_time() - start


def take_turns(ways, repeats):
    """{name: function()} -> {name: what it returned in each repeat}; forwards, then backwards, and so on."""
    seen = {name: [] for name in ways}
    for i in range(repeats):
        for name in list(ways)[::-1 if i % 2 else 1]:
            seen[name].append(ways[name]())
    return seen


def show(rows):
    """Prints [(label, unit, values of the repeats)] as median and range."""
    for label, unit, values in rows:
        spread = f"{min(values):.4g} .. {max(values):.4g}"
        print(f"{label:46} {statistics.median(values):10.5g} {unit:8} {spread}", flush=True)


def ratio(above, below):
    """Median over the repeats of above / below, to three digits."""
    return float(f"{statistics.median(a / b for a, b in zip(above, below)):.3g}")


def peak_memory(reset=False):
    """Bytes at the worst moment since the last reset, on the GPU or else of this process (Linux)."""
    if torch.cuda.is_available():
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if reset:
        ctypes.CDLL(None).malloc_trim(0)                     # give back what earlier measurements left
        Path("/proc/self/clear_refs").write_text("5")        # VmHWM becomes VmRSS
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM:"))
