"""--torch-compile: a block's fused kernels compute what its plain ones do, for all shapes; without a compiler the run goes on, said once."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rl
import train
from bench.workload import batch_of, fixed_rollout, members_of, prompts_of
from generate import generate
from infra.distributed import Ranks
from run.startup import prepare
from model import Kernels, compile_kernels


ROOT = Path(train.__file__).parent


def prepared(micro_base, **flags):
    cfg = train.Config(base=str(micro_base), dtype="float32", device="cpu", torch_compile=True, **flags)
    return prepare(cfg, Ranks(0, 1, torch.device("cpu")))[1]


@pytest.mark.slow
def test_without_a_compiler_the_run_goes_on_and_says_so(micro_base, tmp_path):
    """The compiler named here fails whatever it is asked for; in a process of its own, as torch remembers what it found."""
    script = f"""
import torch, train
from infra.distributed import Ranks
from run.startup import prepare
from model import Kernels
cfg = train.Config(base={str(micro_base)!r}, dtype="float32", device="cpu", torch_compile=True)
base = prepare(cfg, Ranks(0, 1, torch.device("cpu")))[1]
assert base.model.kernels == Kernels()
base.model(torch.zeros(1, 3, dtype=torch.int64))
"""
    broken = dict(CXX=shutil.which("false"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, env=os.environ | broken, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("note: --torch-compile does not work here (") == 1, run.stderr


def off_by_a_tenth(f):
    """A compiler that is wrong about swiglu."""
    return (lambda *args: 1.1 * f(*args)) if f.__name__ == "swiglu" else f


def too_late(f):
    """A compiler that gives up when its kernel is called."""
    def call(*args):
        raise ImportError("no module named triton\nand much more")
    return call


@pytest.mark.parametrize("compiler, said", [(off_by_a_tenth, "its numbers are off by 0."), (too_late, "no module named triton)")])
def test_kernels_that_fail_or_compute_otherwise_are_not_taken(tiny, monkeypatch, capsys, compiler, said):
    monkeypatch.setattr(torch, "compile", compiler)
    assert compile_kernels(tiny.model) is tiny.model and tiny.model.kernels == Kernels()
    text = capsys.readouterr().err
    assert text.startswith("note: --torch-compile does not work here (") and said in text and text.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_kernels_compute_the_same_for_all_shapes(micro_base, base, population, capsys):
    """A whole forward pass, decoding while rows come and go, and gradients, also checkpointed; and after a few shapes others
    compile nothing more."""
    from torch._dynamo.utils import counters
    torch._dynamo.reset()
    fused = prepared(micro_base)
    assert fused.model.kernels != Kernels() and "--torch-compile" not in capsys.readouterr().err
    adapters = population(base, 4)
    rollout = fixed_rollout(base, members_of(6, 3), 12, 8, 2)
    batch, adv = batch_of(rollout)

    def results(one) -> list[torch.Tensor]:
        with torch.no_grad():
            logits = one.model.logits(one.model(rollout.ids, lora=adapters.route(rollout.member, torch.float32)))
        drawn = generate(one, adapters, prompts_of(base, 6, 20), members_of(6, 3), [(0, i) for i in range(12)], 2,
                         max_new_tokens=12, rollout_batch=8)
        found = [logits, drawn.ids.float(), drawn.logp]
        for budget in (8, 64):                      # a row has 19 tokens: with 8 it runs checkpointed
            rl.accumulate(one, adapters, batch, adv, rl.UpdateConfig(tokens_per_microbatch=budget))
            found += [p.grad for p in adapters.parameters()]
        return found

    for ours, wanted in zip(results(fused), results(base)):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    compiled = {}
    for n_rows in (2, 3, 5, 7, 9, 4, 6, 8):
        ids = torch.tensor(prompts_of(base, n_rows, 4 + n_rows))
        generate(fused, adapters, ids.tolist(), [0] * n_rows, [(0, i) for i in range(n_rows)], max_new_tokens=3)
        compiled[n_rows] = counters["stats"]["unique_graphs"]
    assert len({compiled[n] for n in (9, 4, 6, 8)}) == 1 and compiled[8] <= 3 * 12, compiled


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_what_fails_to_compile_after_the_trial_stops_no_run(tiny, monkeypatch, capsys):
    torch._dynamo.reset()
    fused = compile_kernels(tiny.model)
    assert fused.kernels != Kernels()
    asked = []

    def fail(*args, **kwargs):
        asked.append(args)
        raise RuntimeError("no space left on device")

    monkeypatch.setattr("torch._inductor.graph.GraphLowering.compile_to_module", fail)
    gate, up = torch.randn(2, 5, 7, dtype=torch.bfloat16)
    assert torch.equal(fused.kernels.swiglu(gate, up), Kernels().swiglu(gate, up)) and asked
    gate, up = torch.randn(2, 3, 5, 7, requires_grad=True)
    fused.kernels.swiglu(gate, up).sum().backward()
