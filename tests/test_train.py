"""Two steps of the real loop for every value of every switch, what a run leaves on the disk, bad input, two processes."""
import dataclasses
import json
import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

import train
from evolve import CROSSOVERS, MUTATIONS, OPERATORS
from lora import TARGETS, Adapters
from model import load_base, weights_hash

ROOT = Path(train.__file__).parent
TINY = dict(steps=2, pop=6, n_prompts=1, group=4, attempts=2, max_new=48, n_anchors=2, evolve_every=1, probe_every=0, workers=1)
# Values of each switch that has few; a test's run takes the i-th value of every one of them (SWITCHES), so that as many
# runs as the longest list has cover them all, in changing company. Bounds and sizes have a second value here.
SWITCHES = {f.name: list(f.metadata["choices"]) for f in dataclasses.fields(train.Config) if f.metadata["choices"]} | dict(
    kinds=["code_o", "code_i", "code_f", "code_o,code_i,code_f"], kl=[0.0, 0.05], entropy=[0.0, 0.01], gate_leak=[0.0, 0.5, 1.0],
    invalid_penalty=[-1.0, 0.0, -0.1], n_refs=[0, 2], save_every=[1, 10], keep=[1, 2], lora_targets=[",".join(TARGETS), "q_proj,v_proj"],
    grace=[0, -1], matching_floor=[0.1, 1.0], temperature=[1.0, 0.7], archive_cap=[16384, 3], probe_every=[0, 1],
    token_budget=[8192, 64], max_rows=[512, 7], threads=[1, 0], seed=[0, 7], rank=[8, 2], noise_margin=[0.1, 0.5], clip=[0.2, 0.1])
EVOLVE = SWITCHES.pop("evolve")


def shown(path: Path, name: str) -> list[dict]:
    """Rows of one of a run's logs."""
    return [json.loads(row) for row in (path / name).read_text().splitlines()] if (path / name).exists() else []


@pytest.fixture(scope="session")
def run(micro_base, tmp_path_factory):
    """run(**switches) -> the finished run's directory; sizes are tiny where nothing else is said."""
    def go(**switches) -> Path:
        out = tmp_path_factory.mktemp("runs")
        return train.main(train.Config(**{**TINY, **dict(base=str(micro_base), out=str(out), name="run"), **switches})).path
    return go


def command(micro_base, out, *more: str) -> list[str]:
    """The tiny run as a command line."""
    flags = {**TINY, "base": micro_base, "out": out, "name": "run"}
    return ["train.py", *(word for k, v in flags.items() for word in ("--" + k.replace("_", "-"), str(v))), *more]


def start(words: list[str], **kw) -> subprocess.CompletedProcess:
    """A command line run to its end by this Python, from the repository."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=180, **kw)


# -- every value of every switch ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("i,mode", list(enumerate(EVOLVE)), ids=EVOLVE)
def test_two_steps(run, i, mode):
    switches = dict(evolve=mode, **{name: values[i % len(values)] for name, values in SWITCHES.items()})
    path = run(**switches)
    metrics, tasks, matches, births = (shown(path, f"{name}.jsonl") for name in ("metrics", "tasks", "matches", "genealogy"))
    assert [row["step"] for row in metrics] == [0, 1] and len(tasks) == 2 * 3 * 4
    assert len(matches) == 2 * (9 if switches["matching"] == "all" else 3)
    assert {row["kind"] for row in tasks} <= set(switches["kinds"].split(","))
    allowed = dict(mixed=[*MUTATIONS, *CROSSOVERS], mutation=MUTATIONS, crossover=CROSSOVERS, none=[]).get(mode, [mode])
    assert all(b["operator"] in allowed for b in births) and bool(births) == (mode != "none")
    assert len({m for row in metrics for m in row["members"]}) == 6 + sum(b["step"] == 0 for b in births)
    assert all(row["skipped"] == [] for row in metrics)
    assert (metrics[-1]["kl"] > 0) == (switches["kl"] > 0) and bool(metrics[-1]["entropy"]) == (switches["entropy"] > 0)
    assert len(list(path.glob("step_*"))) == min(switches["keep"], 2 if switches["save_every"] == 1 else 1)
    valid = [row for row in tasks if not row["reason"]]
    assert all(0 <= row["solve_rate"] <= 1 and row["kind"] in switches["kinds"] for row in valid)
    if switches["gate_leak"] == 0:
        assert all(row["reward"] == switches["invalid_penalty"] for row in tasks if row["reason"])
    if switches["dedupe"] == "structural" and switches["kinds"] == "code_o":
        assert len({row["key"] for row in valid}) == len(valid)
    assert len({row["id"] for row in valid}) == len(valid)


def test_the_table_covers_every_choice():
    assert all(len(values) <= len(EVOLVE) for values in SWITCHES.values()) and set(OPERATORS) < set(EVOLVE)


def test_single(run):
    path = run(single=True, evolve="mixed")
    assert sorted(p.name for p in (path / "step_2").iterdir() if p.is_dir()) == ["T0"] and not shown(path, "genealogy.jsonl")
    assert sorted(shown(path, "metrics.jsonl")[0]["members"]) == ["S0", "T0"]


def test_unequal_roles(run):
    path = run(teachers=1, students=3, matching="all", steps=1)
    assert {row["student"] for row in shown(path, "matches.jsonl")} == {"S0", "S1", "S2"}
    assert all(len(row["attempts"]) == 3 for row in shown(path, "tasks.jsonl") if not row["reason"])
