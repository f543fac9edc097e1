"""What every test shares: one thread, the bundled micro base, one running sandbox."""
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")   # before torch is imported
if "gpu" not in sys.argv:                       # the same tests on every machine; `pytest -m gpu` tries a card
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

import pytest
import torch
from tiny_base import OTHERS, make_tiny
from tiny_run import ROOT

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def micro_base() -> Path:
    """Directory of the bundled micro base; without it, tests of it are skipped."""
    path = ROOT / "micro" / "base"
    if not (path / "model.safetensors").exists():
        pytest.skip("micro/base is not there: `make micro` makes it")
    return path


@pytest.fixture(scope="session")
def base(micro_base):
    """The bundled micro base, loaded in float32."""
    from weights import load_base
    return load_base(str(micro_base))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A small random Qwen2."""
    return make_tiny(tmp_path_factory.mktemp("tiny"), "qwen2")


@pytest.fixture(scope="session", params=["qwen2", *OTHERS])
def any_base(request, tmp_path_factory):
    """A small random model of each architecture."""
    return make_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def wide():
    """A sandbox with the profile of benchmarks."""
    from verifier import Sandbox
    with Sandbox(workers=2, profile="eval") as sandbox:
        yield sandbox


@pytest.fixture
def population():
    """Makes members whose B is drawn too, so that each differs from the base: population(base, n_members)."""
    from lora import TARGETS, Adapters

    def make(base, n_members: int = 3, rank: int = 4, alpha: float = 8, seed: int = 0, b_std: float = 0.05,
             targets: tuple[str, ...] = TARGETS) -> Adapters:
        adapters, gen = Adapters.on(base.model, n_members, rank, alpha, targets), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in range(n_members):
                adapters.init_member(p, gen)
                for B in adapters.B.values():
                    B[p].normal_(0, b_std, generator=gen)
        return adapters
    return make


@pytest.fixture(scope="session")
def sandbox():
    """One running sandbox for the whole session: starting its fork servers costs more than most programs."""
    from verifier import Sandbox
    with Sandbox(workers=2) as sandbox:
        yield sandbox


@pytest.fixture
def setup(base, sandbox, population):
    """setup(**switches) -> selfplay.Setup of two teachers and two students, all different from the base."""
    from config import config_of, resolve_config
    from ranks import Ranks
    from selfplay import Setup
    from tasks.programs import Limits

    def make(**switches) -> Setup:
        sizes = dict(pop=4, n_prompts=1, proposals_per_prompt=3, samples_per_task=2, max_new_tokens=32)
        cfg = resolve_config(config_of(sizes | switches), base.prompt_format)
        adapters, ranks = population(base, 4, rank=2, b_std=0.01), Ranks(0, 1, torch.device("cpu"))
        return Setup(cfg, base, adapters, ranks, sandbox, Limits.for_format("micro"))
    return make
