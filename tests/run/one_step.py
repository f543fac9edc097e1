"""One process that generates and updates twice on a random model of the given shape, and says what memory it took at its worst.

    python tests/run/one_step.py '{"model": {...}, "flags": {...}, "trained_rows": 8}'      # fields of model.ModelConfig and train.Config

Prints a line of JSON: `planned` and `measured` gigabytes. Linux only. The second round counts too: by then Adam's moments are
there, and so is what the allocator has not given back.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

import config
import rl
import train
from generate import Prompts, SamplingParams, generate
from lora import Adapters
from model import Base, Model, ModelConfig
from rl import Adam
from run import memory


def resident(name: str) -> float:
    """Gigabytes of VmRSS (now) or VmHWM (most so far). getrusage would count the parent's, from before this program began."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(name + ":")) / 2 ** 20


def rounds(shape: ModelConfig, cfg: train.Config, trained_rows: int) -> None:
    """Twice generate and update. Rows have the length that is planned for: random models end none."""
    base = Base(Model(shape).requires_grad_(False).eval(), None, (0,), "chat", Path())
    adapters = Adapters.on(base.model, cfg.pop, cfg.rank, cfg.alpha)
    for p in range(cfg.pop):
        adapters.init_member(p, torch.Generator().manual_seed(p))
    adam, n, width = Adam(adapters, [cfg.lr] * cfg.pop), cfg.samples_per_task, memory.longest_row(cfg, shape) - cfg.max_new_tokens
    for step in range(2):
        prompts = torch.randint(1, shape.vocab_size, (cfg.rollout_batch // n, width)).tolist()
        members, keys = [i % cfg.pop for i in range(len(prompts))], [(step, i) for i in range(len(prompts) * n)]
        rollout = generate(base, adapters, Prompts(prompts, members, keys), SamplingParams(n, max_new_tokens=cfg.max_new_tokens, rollout_batch=cfg.rollout_batch))
        rows = torch.arange(trained_rows)
        batch = rl.Batch(rollout.select(rows), torch.rand(len(rows)), rows // 4, 0 * rows, 0 * rows)
        rl.update(rl.Objective(base, adapters, batch, rl.advantages(batch), cfg), adam)


def main(job: dict) -> None:
    """See above. A first round on a minute model brings in what torch loads late, which is not the plan's to know."""
    torch.set_num_threads(1)
    shape, cfg = ModelConfig(**job["model"]), config.resolve_config(train.Config(**job["flags"]), "micro")
    minute = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=8)
    rounds(ModelConfig(**{**job["model"], **minute}), cfg, job["trained_rows"])
    before = resident("VmRSS")
    rounds(shape, cfg, job["trained_rows"])
    plan = memory.memory_plan(cfg, shape, torch.float32, cfg.pop)
    print(json.dumps(dict(planned=memory.peak(plan), measured=resident("VmHWM") - before, plan=plan)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
