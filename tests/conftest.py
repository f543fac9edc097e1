"""What every test shares: one thread, the bundled micro base, one running sandbox."""
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")   # before torch is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def micro_base() -> Path:
    """Directory of the bundled micro base model; the tests that need it are skipped while it is not made."""
    path = ROOT / "micro" / "base"
    if not (path / "model.safetensors").exists():
        pytest.skip("micro/base is not there: `make micro` makes it")
    return path


@pytest.fixture(scope="session")
def sandbox():
    """One running sandbox for the whole session: starting its zygotes costs more than most programs."""
    from verifier import Sandbox
    with Sandbox(workers=2) as judge:
        yield judge
