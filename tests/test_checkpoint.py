"""Leaving and coming back: kills, signals, full disks, locks. A resumed run must equal one that was never stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import config
import train
from checkpoint import Interrupted, RunDir, Signals, differing
from state import FROZEN

ROOT = Path(train.__file__).parent
STEPS = 3
# some of everything that a checkpoint must carry over: three kinds, evolution, probes, references, a capped archive
FLAGS = dict(
    pop=4,
    kinds="code_o,code_i,code_f",
    n_prompts=2,
    group=3,
    attempts=2,
    max_new=48,
    n_anchors=2,
    n_refs=2,
    evolve_every=1,
    probe_every=1,
    save_every=1,
    keep=9,
    archive_cap=5,
    workers=1,
    matching="uniform",
    seed=3,
)
LOGS = ("metrics.jsonl", "tasks.jsonl", "matches.jsonl", "genealogy.jsonl")


@pytest.fixture(scope="module")
def words(micro_base):
    """words(out, **flags) -> command line of the run under test."""

    def make(out: Path, **flags) -> list[str]:
        flags = dict(base=micro_base, out=out, name="run", steps=STEPS) | FLAGS | flags
        return [word for k, v in flags.items() for word in ("--" + k.replace("_", "-"), str(v))]

    return make


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory) -> Path:
    """The run that is never stopped."""
    return train.main(config.parse_args(None, words(tmp_path_factory.mktemp("whole")))).path


def begin(words: list[str]) -> subprocess.Popen:
    """The run as a process of its own; -u and a line per step tell where it is."""
    return subprocess.Popen(
        [sys.executable, "train.py", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen, step: int) -> None:
    """Read the process's lines until the one of this step (the table's header is step -1)."""
    for row in process.stdout:
        if row.split()[:1] == ["step" if step < 0 else str(step)]:
            return
    raise AssertionError(process.stderr.read())


def metrics(path: Path) -> list[dict]:
    """metrics.jsonl without the only member that may differ."""
    return [
        {k: v for k, v in json.loads(row).items() if k != "seconds"} for row in (path / "metrics.jsonl").read_text().splitlines()
    ]


def assert_equal(one: Path, other: Path) -> None:
    """The same books, adapters and optimiser, bit for bit."""
    assert metrics(one) == metrics(other)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in LOGS[1:])
    files = [p.relative_to(one) for p in (one / f"step_{STEPS}").rglob("*.safetensors")]
    assert len(files) == 6 and one / f"step_{STEPS}" / FROZEN / "adapter_model.safetensors" in [one / p for p in files]
    for p in files:  # not the bytes: safetensors shuffles its metadata
        a, b = load_file(one / p), load_file(other / p)
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    first, second = (json.loads((path / f"step_{STEPS}" / "state.json").read_text()) for path in (one, other))
    del first["logs"]["metrics.jsonl"], second["logs"]["metrics.jsonl"]
    assert first == second and ["frozen_solve" in row for row in metrics(one)] == [False, False, True]


def test_killed_then_resumed_equals_never_stopped(words, whole, tmp_path):
    process = begin(words(tmp_path))
    wait_for(process, 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    path = tmp_path / "run"
    with open(path / "tasks.jsonl", "a") as f:
        f.write('{"step": 2, "torn')  # as a kill in the middle of a write leaves it
    (path / "step_2.part").mkdir(exist_ok=True)
    train.main(config.parse_args(None, words(tmp_path, resume="auto")))
    assert_equal(whole, path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_leaves(words, whole, tmp_path, number):
    process = begin(words(tmp_path, save_every=50))
    wait_for(process, 0)
    time.sleep(0.1)
    process.send_signal(number)
    rest, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert said.count("\n") == 1 and number.name in said and f"--resume {tmp_path / 'run'}" in said
    assert max(RunDir(tmp_path / "run", writes=False).steps()) in (1, 2)
    resumed = config.parse_args(None, words(tmp_path, resume=tmp_path / "run"))
    train.main(resumed)
    assert_equal(whole, tmp_path / "run")


def test_killed_before_the_first_checkpoint(words, whole, tmp_path):
    process = begin(words(tmp_path, save_every=50))
    wait_for(process, 0)
    process.kill()
    process.wait()
    assert metrics(tmp_path / "run")
    train.main(config.parse_args(None, words(tmp_path, resume="auto")))
    assert_equal(whole, tmp_path / "run")


def test_a_second_interrupt_leaves_at_once(capfd):
    if (child := os.fork()) == 0:
        signals = Signals().install()
        with signals:  # a long save, say
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130 and "second interrupt" in capfd.readouterr().err


def test_a_signal_waits_for_what_must_not_be_torn():
    before, done = signal.getsignal(signal.SIGTERM), []
    signals = Signals().install()
    try:
        with pytest.raises(Interrupted, match="SIGTERM"), signals:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("the whole block")
        assert done
        with pytest.raises(Interrupted, match="SIGINT"):
            signals.pending = ""
            os.kill(os.getpid(), signal.SIGINT)
            done.append("never")
        assert len(done) == 1
        with pytest.raises(KeyError), signals:  # an error is not hidden by a signal
            raise KeyError
    finally:
        signals.restore()
    assert signal.getsignal(signal.SIGTERM) is before


# -- from where to go on -----------------------------------------------------------------------------------------------


def refused(match: str, words: list[str]) -> None:
    """The run does not start, for this reason."""
    with pytest.raises(ValueError, match=match):
        train.main(config.parse_args(None, words))


def test_resume_names_what_differs(words, whole):
    out, before = whole.parent, metrics(whole)
    refused(
        r"another configuration: group \(3 -> 4\), rating \('trueskill' -> 'elo'\)",
        words(out, resume="auto", group=4, rating="elo"),
    )
    refused("holds an earlier run", words(out))
    refused("no such directory", words(out, resume=out / "nowhere"))
    refused("no complete checkpoint", words(out, resume=out))
    refused("only the latest checkpoint, step_3, can go on", words(out, resume=whole / "step_2"))
    assert metrics(whole) == before
    resumed = train.main(config.parse_args(None, words(out, resume=whole / "step_3")))
    assert resumed.steps() == [1, 2, 3] and metrics(whole) == before


def test_another_base_is_refused(words, whole, micro_base, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(micro_base, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    refused("another base", words(whole.parent, resume="auto", base=other))
    refused("another base", words(tmp_path, base=other, init=whole / "step_3"))


def test_start_from_a_runs_adapters(words, whole, tmp_path):
    flags = dict(init=whole / "step_3", steps=1, evolve="none", lr=1e-30, lr_teacher=1e-30)
    path = train.main(config.parse_args(None, words(tmp_path, **flags))).path
    members = [p.parent.name for p in (whole / "step_3").glob("*/adapter_config.json")]
    old = sorted(members, key=lambda name: (name[0] == "S", name))
    for slot, (name, new) in enumerate(zip(old, ["T0", "T1", "S0", "S1"])):
        a, b = (
            load_file(step / n / "adapter_model.safetensors") for step, n in ((whole / "step_3", name), (path / "step_1", new))
        )
        assert all(torch.allclose(a[k], b[k], rtol=0, atol=1e-20) for k in a), (slot, name, new)


# -- the directory -----------------------------------------------------------------------------------------------------


def test_lock(words, tmp_path):
    held = RunDir(tmp_path / "run")
    refused("in use by a run that is still going", words(tmp_path))
    del held


def test_only_whole_checkpoints_count_and_the_last_stay(tmp_path):
    run = RunDir(tmp_path)
    for step in (1, 2, 10):
        run.save(step, {}, lambda d: (d / "tensor").write_text("x"), keep=2)
    (tmp_path / "step_11").mkdir()
    (tmp_path / "step_12.part").mkdir()
    assert run.steps() == [2, 10] and not (tmp_path / "step_1").exists()

    def broken(directory):
        (directory / "tensor").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="step_20 could not be written.*No space left.*earlier ones are intact"):
        run.save(20, {}, broken, keep=2)
    assert run.steps() == [2, 10] and not list(tmp_path.glob("step_20*"))


def test_logs_are_cut_back(tmp_path):
    run = RunDir(tmp_path)
    run.append("tasks.jsonl", [{"a": 1}])
    sizes = run.sizes()
    run.append("tasks.jsonl", [{"a": 2}, {"a": float("nan")}])
    assert run.rows("tasks.jsonl", 10**9) == [{"a": 1}, {"a": 2}, {"a": None}]  # JSON has no NaN
    run.cut(sizes)
    assert run.rows("tasks.jsonl", 10**9) == [{"a": 1}] and sizes["metrics.jsonl"] == 0


def test_differing():
    assert differing(dict(a=1, b=2, c=3), dict(a=1, b=5, c=4, d=6), free=("c",)) == ["b (2 -> 5)", "d (None -> 6)"]


def test_disk_full_at_a_checkpoint(words, tmp_path):
    """A limit on file sizes stands for the full disk: the second checkpoint does not fit, the first is gone on from."""
    limit = (
        "import resource, signal, runpy, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); sys.argv[0] = 'train.py'; "
        "import safetensors.torch as st; save, n = st.save_file, []\n"
        "def save_file(*a, **k):\n"
        "    n.append(1)\n"
        "    len(n) == 6 and resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"  # 5 files a checkpoint
        "    return save(*a, **k)\n"
        "st.save_file = save_file; runpy.run_path('train.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", limit, *words(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "step_2 could not be written" in done.stderr and done.stderr.count("\n") == 1
    assert RunDir(tmp_path / "run").steps() == [1] and not list((tmp_path / "run").glob("*.part"))
    assert len(train.main(config.parse_args(None, words(tmp_path, resume="auto"))).rows("metrics.jsonl", 10**9)) == STEPS
