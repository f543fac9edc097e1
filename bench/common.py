"""What all benchmarks share: ways measured in turns, tables of medians, ratios, errors."""
import statistics
import time

import torch


def relative_rms(x: torch.Tensor, wanted: torch.Tensor) -> float:
    """Root mean square of x - wanted, divided by that of wanted; in float64 on the CPU."""
    x, wanted = x.detach().cpu().double(), wanted.detach().cpu().double()
    return ((x - wanted).norm() / wanted.norm()).item()


def timed(work):
    """A function that does the work and returns its seconds."""
    def run() -> float:
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start
    return run


def take_turns(ways: dict, repeats: int, seconds: float = float("inf")) -> dict[str, list]:
    """{name: function()} -> {name: what it returned in each repeat}; forwards, then backwards, and so on.
    After the first repeat, another begins only where it ends within so many seconds."""
    seen = {name: [] for name in ways}
    start = time.perf_counter()
    for i in range(repeats):
        if i and (time.perf_counter() - start) * (i + 1) / i > seconds:
            break
        for name in list(ways)[::-1 if i % 2 else 1]:
            seen[name].append(ways[name]())
    return seen


def show(label: str, unit: str, values: list[float]) -> None:
    """Print the values of the repeats as median and range."""
    spread = f"{min(values):.4g} .. {max(values):.4g}"
    print(f"{label:46} {statistics.median(values):10.5g} {unit:8} {spread}", flush=True)


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the repeats of above / below, to three digits."""
    return float(f"{statistics.median(a / b for a, b in zip(above, below)):.3g}")
