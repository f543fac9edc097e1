"""A short run is the same before and after a change of layout: its texts, verdicts, metrics and weights.

`python tests/test_same_bits.py` records tests/same_bits.json anew, for a change that is meant to change what a run does.
Texts hang on the last bit of a sum, so another processor may write others: there the test can say nothing, and skips.
"""
import hashlib
import json
import platform
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from tiny_run import ROOT, SIZES, play, rows, timeless

RECORD = ROOT / "tests" / "same_bits.json"
RUN = SIZES | dict(steps=3, task_types="code_o,code_i,code_f", n_prompts=3, samples_per_task=3, max_new_tokens=64,
                   evolve_every=2, probe_every=1, save_every=1, lr=3e-3, lr_teacher=3e-3, device="cpu")


def processor() -> str:
    """Returns what decides about the last bit: the processor's name and model, for one name has several, and torch's version."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    told = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    names = [told[name].strip() for name in ("model name", "cpu family", "model", "stepping") if name in told]
    return f"{' '.join(names) or platform.processor()}, torch {torch.__version__}"


def sha(data: object) -> str:
    """Returns a short SHA-256 of bytes, or of something as JSON."""
    return hashlib.sha256(data if isinstance(data, bytes) else json.dumps(data).encode()).hexdigest()[:16]


def told(run: Path) -> dict:
    """Returns what is compared of a finished run: texts and verdicts step by step, and what is exact on one processor alone."""
    texts = {}
    for row in rows(run, "tasks"):
        texts.setdefault(row["step"], []).append({k: v for k, v in row.items() if k not in ("reward", "solve_rate")})
    exact = dict(metrics=sha(timeless(run)), matches=sha(rows(run, "matches")), genealogy=sha(rows(run, "genealogy")))
    for path in sorted(run.glob(f"step_{RUN['steps']}/**/*.safetensors")):
        exact[str(path.relative_to(run))] = sha(save(load_file(path)))          # the tensors, without what a header may say
    return dict(texts=[sha(own) for own in texts.values()], exact=exact)


def test_a_run_does_what_it_did(micro_base, tmp_path):
    recorded, seen = json.loads(RECORD.read_text()), told(play(**RUN, base=micro_base, out=tmp_path))
    assert len(seen["texts"]) == RUN["steps"] and any("optimizer" in name for name in seen["exact"])
    if processor() == recorded["processor"]:
        assert seen == {name: recorded[name] for name in seen}, "other bits on the same processor"
    if seen["texts"][0] != recorded["texts"][0]:
        pytest.skip(f"the first step's texts are others: recorded on {recorded['processor']}, this is {processor()}")
    assert seen["texts"] == recorded["texts"]


if __name__ == "__main__":
    import tempfile
    sys.path.insert(0, str(ROOT))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record = dict(processor=processor(), **told(play(**RUN, base=ROOT / "micro" / "base", out=folder)))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{RECORD}: recorded on {record['processor']}")
