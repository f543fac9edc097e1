"""A random base that reads any text, and a run with two members on the micro base."""
import json
import os
from pathlib import Path

import pytest
from tiny_base import write_tiny

from weights import files_hash, save_peft


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """Directory of a tiny random base with a context that holds a benchmark's question."""
    directory = tmp_path_factory.mktemp("reader")
    write_tiny(directory, "qwen2", max_position_embeddings=2048)
    return directory


@pytest.fixture(scope="session")
def published():
    """Directory of the files that benchmarks publish, which the variable PUBLISHED names."""
    if "PUBLISHED" not in os.environ:
        pytest.skip("PUBLISHED=DIR names the files of eval/published.json")
    return Path(os.environ["PUBLISHED"])


@pytest.fixture
def run(base, micro_base, population, tmp_path):
    """Directory of a run whose last checkpoint holds T0, S0 and S1, which differ from the base a little."""
    adapters = population(base, 3, b_std=0.02)
    for slot, name in enumerate(("T0", "S0", "S1")):
        save_peft(adapters, slot, tmp_path / "run/step_3" / name, str(micro_base), files_hash(base.path))
    (tmp_path / "run/step_3/state.json").write_text("{}")
    (tmp_path / "run/config.json").write_text(json.dumps(dict(base=str(micro_base), prompt_format="micro")))
    return tmp_path / "run"
