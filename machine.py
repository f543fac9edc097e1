"""What a run needs to know of the machine: how much memory its plan takes and is there, where it runs, how long phases take."""
import os
import platform
import subprocess
import time
from pathlib import Path

import torch

import rl
from model import Config as ModelConfig
from parallel import Ranks
from verifier import Sandbox


class Stopwatch:
    """Seconds per phase of one step."""

    def __init__(self):
        self.last, self.seconds = time.perf_counter(), {}

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under this phase."""
        now = time.perf_counter()
        self.seconds[phase], self.last = round(now - self.last, 3), now


def memory_plan(cfg, m: ModelConfig, dtype: torch.dtype, n_members: int) -> dict[str, float]:
    """Gigabytes that a run will need at its peak, by use; activations are an estimate (17 hidden-sized tensors a layer)."""
    size, V = dtype.itemsize, m.vocab_size
    kv = m.num_key_value_heads * m.head_dim
    C, I, L = m.hidden_size, m.intermediate_size, m.num_hidden_layers
    layer = dict(q_proj=(C, C), k_proj=(C, kv), v_proj=(C, kv), o_proj=(C, C), gate_proj=(C, I), up_proj=(C, I), down_proj=(I, C))
    adapter = L * cfg.rank * sum(sum(layer[t]) for t in cfg.lora_targets.split(",") if t in layer)
    weights = L * sum(a * b for a, b in layer.values()) + V * C * (1 if m.tie_word_embeddings else 2)
    context = min(m.max_position_embeddings, 2 * cfg.max_new + 512 * (cfg.n_refs > 0))
    plan = dict(base=weights * size, adapters=n_members * adapter * (16 + size), cache=2 * cfg.max_rows * context * L * kv * size * 1.5,
                activations=cfg.token_budget * (L * (17 * C + 4 * I) * size), logits=16 * max(min(rl.CHUNK, cfg.token_budget * V), cfg.max_rows * V))
    return {k: round(v / 2 ** 30, 2) for k, v in plan.items()}


def free_memory(device: torch.device) -> float:
    """Gigabytes available on the device (Linux's MemAvailable on the CPU; unlimited where the system does not say)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / 2 ** 30
    meminfo = Path("/proc/meminfo")
    found = [row.split()[1] for row in meminfo.read_text().splitlines() if row.startswith("MemAvailable")] if meminfo.exists() else []
    return int(found[0]) / 2 ** 20 if found else float("inf")


def environment(ranks: Ranks, sandbox: Sandbox) -> dict:
    """What a reader of the run needs to know of where it ran."""
    try:
        here = str(Path(__file__).resolve().parent)
        git = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True)
        commit = git.stdout.strip()
    except OSError:                                   # git is not installed
        commit = ""
    return dict(commit=commit or "unknown", python=platform.python_version(), torch=torch.__version__, platform=platform.platform(),
                device=torch.cuda.get_device_name() if ranks.device.type == "cuda" else f"CPU, {os.cpu_count()} cores", processes=ranks.world,
                threads=torch.get_num_threads(), sandbox=sandbox.tier, sandbox_report=sandbox.report)
