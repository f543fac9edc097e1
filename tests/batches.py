"""Random rows to learn from, answers of a model, the settings of an algorithm, and one of two processes."""
from math import ceil
from pathlib import Path

import torch
import torch.distributed as dist
from factors import gen

import rl
from config import Config, resolve_config
from generate import Prompts, Rollout, SamplingParams, generate
from ranks import Ranks

PROMPTS = [[7, 8, 9], [10, 3, 4, 12, 33, 2], [40], [22, 23, 24, 25]]
MEMBER = [0, 2, -1, 1]
LENGTH = 16                                # --max-new-tokens: Dr. GRPO's constant


def make_batch(n_rows: int = 12, member=(0, 1, 2), seed: int = 0, answer=(1, 9), roles: int = 1) -> rl.Batch:
    """Rows in groups of three per prompt, dealt to the members in turn; rewards without silent groups."""
    g = gen(seed)
    group = torch.arange(n_rows) // 3
    prompt_len = torch.randint(2, 7, (ceil(n_rows / 3),), generator=g)[group]
    length = prompt_len + torch.randint(*answer, (n_rows,), generator=g)
    T = int(length.max())
    ids, t = torch.randint(0, 61, (n_rows, T), generator=g), torch.arange(T)
    ids = torch.where(t < prompt_len[:, None], ids[group * 3], ids).masked_fill(t >= length[:, None], 0)
    owner = torch.tensor(member)[group % len(member)]
    rollout = Rollout(ids, prompt_len, length, torch.zeros(ids.shape), owner)
    reward = torch.rand(n_rows, generator=g)
    return rl.Batch(rollout, reward, group, group % roles, torch.randint(0, 3, (n_rows,), generator=g))


def pick(batch: rl.Batch, rows: torch.Tensor) -> rl.Batch:
    """The given rows of a batch."""
    columns = (batch.reward, batch.group, batch.role, batch.kind)
    return rl.Batch(batch.rollout.select(rows), *(column[rows] for column in columns))


def settings(algo: str = "reinforce++", **flags) -> Config:
    """What the update reads of a run with these flags; without the KL if none is given."""
    cfg = Config(algo=algo, **{"max_new_tokens": LENGTH, "kl_coef": 0.0, **flags})
    return resolve_config(cfg, "micro")


def tokens(n_rows: int = 5, T: int = 11) -> torch.Tensor:
    """Rows of random tokens."""
    return torch.randint(0, 61, (n_rows, T), generator=gen(1))


@torch.inference_mode()
def logits(model, ids: torch.Tensor, adapters=None, member=None) -> torch.Tensor:
    """Scores of rows, each by its member."""
    route = adapters and adapters.route(torch.tensor(member), model.embedding.dtype)
    return model.logits(model(ids, lora=route))


def ask(base, adapters, prompts=PROMPTS, member=MEMBER, n=1, step=0, keys=None, **sampling) -> Rollout:
    """n answers to each prompt, with keys of their own at each step."""
    keys = keys or [(11, step, i) for i in range(len(prompts) * n)]
    return generate(base, adapters, Prompts(prompts, member if adapters else [-1] * len(prompts), keys), SamplingParams(n, **sampling))


def one_of_two(rank: int, what, folder: Path, *given) -> None:
    """A process that does `what`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    what(ranks, *given)
    ranks.leave()
    assert not dist.is_initialized()
