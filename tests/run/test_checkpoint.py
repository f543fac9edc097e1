"""Leaving and coming back: kills, signals, full disks, locks. A resumed run equals one never stopped."""
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_run import play, rows, timeless, words

import config
import selfplay
import train
from common import UserError
from lora import Adapters
from run import directory, startup
from run import RunDir, archive_at, members_at, restore
from run import LOGS
from run.platform import Interrupted, Signals

ROOT = Path(train.__file__).parent
STEPS = 3
# some of all that a checkpoint must carry over: niches, rates of members' own that decay, evolution, litters, probes, references
FLAGS = dict(name="run", steps=STEPS, pop=6, task_types="code_o,code_f", niches=True, n_prompts=1, proposals_per_prompt=4,
             samples_per_task=2, max_new_tokens=48, n_heldout=2, n_few_shot=2, evolve_every=1, grace=0, probe_every=1,
             save_every=1, keep=9, litter=2, matching="uniform", lr_decay="1,3,0.2", lr_spread=8.0, lr_mutate=1.25, seed=3)


@pytest.fixture(scope="module")
def flags(micro_base):
    """flags(out, **changes) -> those of the run under test."""
    return lambda out, **changes: dict(base=micro_base, out=out) | FLAGS | changes


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory) -> Path:
    """The run that is never stopped."""
    return play(**flags(tmp_path_factory.mktemp("whole")))


def begin(step: int, **flags) -> subprocess.Popen:
    """The run as a process of its own, up to the line of this step."""
    process = subprocess.Popen([sys.executable, "train.py", *words(**flags)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for row in process.stdout:
        if row.split()[:1] == [str(step)]:
            return process
    raise AssertionError(process.stderr.read())


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def assert_equal(one: Path, other: Path) -> None:
    """The same records and the same files in the last checkpoint, byte for byte; but for the seconds in metrics.jsonl,
    and so its length in state.json."""
    assert timeless(one) == timeless(other)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in LOGS[1:])
    mine, theirs = contents(one / f"step_{STEPS}"), contents(other / f"step_{STEPS}")
    assert sum("optimizer" in name for name in mine) >= 2
    first, second = (json.loads(files.pop("state.json")) for files in (mine, theirs))
    assert mine == theirs
    del first["logs"]["metrics.jsonl"], second["logs"]["metrics.jsonl"]
    assert first == second


@pytest.mark.parametrize("save_every", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_then_resumed_equals_never_stopped(flags, whole, tmp_path, capsys, save_every):
    """Also before the first checkpoint."""
    process = begin(1, **flags(tmp_path, save_every=save_every))
    process.kill()
    process.wait()
    path = tmp_path / "run"
    with open(path / "tasks.jsonl", "a") as f:
        f.write('{"step": 2, "torn')  # as a kill in the middle of a write leaves it
    (path / "step_2.part").mkdir(exist_ok=True)
    play(**flags(tmp_path, resume="auto"))
    assert_equal(whole, path)
    said = "" if save_every == 1 else f"note: nothing to resume in {path}: starting at step 0\n"
    assert capsys.readouterr().err == said
    born = [m for m in members_at(RunDir(path, writes=False), STEPS)[0] if m.parents]
    assert born and all(m.niche for m in born) and any(m.lr_scale != 1 for m in born)
    assert any("trial" in row for row in rows(path, "genealogy"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(flags, whole, tmp_path, number):
    process = begin(0, **flags(tmp_path, save_every=50))
    time.sleep(0.1)
    process.send_signal(number)
    rest, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert said.count("\n") == 1 and number.name in said and f"--resume {tmp_path / 'run'}" in said
    assert max(RunDir(tmp_path / "run", writes=False).steps()) in (1, 2)
    play(**flags(tmp_path, resume=tmp_path / "run"))
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
        with pytest.raises(Interrupted, match="SIGINT"):        # outside of it, at once
            signals.pending = ""
            os.kill(os.getpid(), signal.SIGINT)
            done.append("never")
        with pytest.raises(KeyError), signals:  # an error is not hidden by a signal
            raise KeyError
    finally:
        signals.restore()
    assert done == ["the whole block"] and signal.getsignal(signal.SIGTERM) is before


def test_paging_changes_no_bit(flags, tmp_path, monkeypatch):
    """One of three teachers plays, one of three is probed: as with all members on the device, where nothing is copied."""
    monkeypatch.setattr(selfplay, "N_PROBED", 1)
    few = play(**flags(tmp_path / "few", matches=1))
    for row in rows(few):
        measured = [name for name, m in row["members"].items() if "reward" in m]
        assert len(measured) == 2 and all({"role", "mu", "sigma"} <= set(m) for m in row["members"].values())
        assert len(row["members"]) == 6 and len(row["heldout_greedy"]) == 1
    on = Adapters.on.__func__
    monkeypatch.setattr(Adapters, "on", classmethod(lambda cls, *args, offloaded: on(cls, *args)))
    assert_equal(few, play(**flags(tmp_path, matches=1)))


# -- from where to go on -------------------------------------------------------------------------------------

def refused(match: str, **flags) -> None:
    """The run does not start, for this reason."""
    with pytest.raises(UserError, match=match):
        play(**flags)


def test_resume_names_what_differs(flags, whole, capsys):
    out, before = whole.parent, contents(whole)
    refused(r"another configuration: proposals_per_prompt \(4 -> 5\), rating \('trueskill' -> 'elo'\)",
            **flags(out, resume="auto", proposals_per_prompt=5, rating="elo"))
    refused(f"holds an earlier run: python train.py --resume {whole} goes on", **flags(out))
    refused("no such directory", **flags(out, resume=out / "nowhere"))
    refused("no run in", **flags(out, resume=out))
    begun = shutil.copytree(whole, out / "run-of-another-7", ignore=shutil.ignore_patterns("step_*"))     # killed before its first
    assert startup.steps_to_resume(config.Config(resume=str(begun)), RunDir(begun, writes=False)) == []
    assert startup.choose_directory(config.Config(base="dir/run", out=str(out), resume="auto")) == out / "run-1"
    for name in ("[draft] q*", "q[0-9]"):               # a pattern to glob, a name to everybody else
        (out / f"{name}-1").mkdir()
        for resume, number in (("auto", 1), ("", 2)):
            assert startup.choose_directory(config.Config(base=f"dir/{name}", out=str(out), resume=resume)) == out / f"{name}-{number}"
    capsys.readouterr()
    play(**flags(out, resume=whole, steps=1))
    assert capsys.readouterr().out == f"{whole}: already at step 3 of 1: nothing to do\n"
    assert contents(whole) == before


def test_resume_adopts_the_flags_of_the_run(copy):
    """All of them; what is given and differs is refused by name, but for what may change."""
    def resumed(*given: str) -> train.Config:
        return config.parse_args(None, ["--resume", *given], saved=startup.flags_of_run)
    saved = config.config_of_run(json.loads((copy / "config.json").read_text()), copy)
    assert vars(resumed(str(copy))) == vars(saved) | dict(name="", out="out", resume=str(copy), plan=False, init="")
    assert resumed("auto", "--out", str(copy.parent), "--name", "run").seed == 3
    with pytest.raises(UserError, match=r"another configuration: seed \(3 -> 0\); leave these flags out"):
        train.main(resumed(str(copy), "--seed", "0", "--steps", "9"))
    path = train.main(resumed(str(copy), "--steps", "4")).path
    assert path == copy and RunDir(copy, writes=False).steps()[-1] == 4
    with pytest.raises(UserError, match="no such directory"):
        resumed(str(copy / "none"))


def test_another_base_is_refused(flags, whole, micro_base, tmp_path):
    other = shutil.copytree(micro_base, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    refused("another base", **flags(whole.parent, resume="auto", base=other))
    refused("another base", **flags(tmp_path, base=other, init=whole / "step_3"))


def test_start_from_a_runs_adapters(flags, whole, tmp_path):
    path = play(**flags(tmp_path, init=whole / "step_3", steps=1, evolve="none", litter=1, lr=1e-30, lr_teacher=1e-30))
    members = [p.parent.name for p in (whole / "step_3").glob("*/adapter_config.json")]
    old = sorted(members, key=lambda name: (name[0] == "S", name))
    for name, new in zip(old, ["T0", "T1", "T2", "S0", "S1", "S2"], strict=True):
        a = load_file(whole / "step_3" / name / "adapter_model.safetensors")
        b = load_file(path / "step_1" / new / "adapter_model.safetensors")
        assert all(torch.allclose(a[k], b[k], rtol=0, atol=1e-20) for k in a), (name, new)


# -- damage --------------------------------------------------------------------------------------------------

@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """The finished run once more, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture(scope="module")
def restored(flags, tmp_path_factory):
    """restored(path) restores a run's last checkpoint."""
    ranks = train.Ranks.join("cpu")
    cfg, base = startup.prepare(config.parse_args(None, words(**flags(tmp_path_factory.mktemp("none")))), ranks)
    parts = startup.populate(cfg, base, ranks, None)
    return lambda path: restore(RunDir(path, writes=False), *parts, STEPS)


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def a_nan(path: Path) -> None:
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})


NO_TENSORS = b"\x02" + bytes(7) + b"{}"
DAMAGE = {"optimizer/T0.safetensors": [half, gone, a_nan, NO_TENSORS], "T0": [gone],
          "T0/adapter_model.safetensors": [half, a_nan], "state.json": [half, b"\xff", b'{"members": [{}]}']}


@pytest.mark.parametrize("name, damage", [(name, damage) for name, some in DAMAGE.items() for damage in some])
def test_a_damaged_checkpoint_says_what_to_remove(copy, restored, name, damage):
    name = name.replace("T0", min(p.stem for p in copy.glob("step_3/optimizer/T*.safetensors")))
    path = copy / "step_3" / name
    damage(path) if callable(damage) else path.write_bytes(damage)
    inside = name.removesuffix("/adapter_model.safetensors")
    why = "finite" if damage is a_nan else ""
    with pytest.raises(UserError, match=f"run/step_3/{inside} is damaged.*{why}.*: remove all of step_3"):
        restored(copy)


@pytest.mark.parametrize("changes", [dict(members=[]), dict(optimizer_steps=[])], ids=str)
def test_other_members_than_the_flags_say(copy, restored, changes):
    path = copy / "step_3" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match="other members than the flags say"):
        restored(copy)


def test_a_lost_log_is_told(flags, copy):
    """A byte short of what the checkpoint says; one that is longer is no loss."""
    run = RunDir(copy, writes=False)
    metadata = members_at(run, 3)[1]
    n_added = archive_at(run, metadata).n_added
    assert n_added > len(metadata["seeds"])
    for name in LOGS:
        text = (copy / name).read_bytes()
        (copy / name).write_bytes(text[:-1])
        with pytest.raises(UserError, match=rf"run/{name} is shorter than step_3 says: restore it"):
            archive_at(run, metadata)
        (copy / name).write_bytes(text + b"{}")
        assert archive_at(run, metadata).n_added == n_added
    size = (copy / "tasks.jsonl").stat().st_size
    (copy / "tasks.jsonl").write_text("{}".ljust(size) + "\n")
    refused("tasks.jsonl is damaged or missing .it lacks reason.*restore it", **flags(copy.parent, resume="auto", steps=4))


def test_json_of_another_shape_is_refused(copy):
    run = RunDir(copy, writes=False)
    for damaged in ("[" * 100_000, "[[]]\n", "{\n"):
        for name in ("config.json", *LOGS):
            (copy / name).write_text(damaged)
            with pytest.raises(UserError, match="is damaged"):
                run.rows(name) if name in LOGS else run.config()


@pytest.mark.parametrize("name", ["../../other/step_12/S2", "S", "S1/", "/tmp/S1", "T1\n", "S\u0661"])
def test_a_members_name_is_no_path(copy, name):
    path = copy / "step_3" / "state.json"
    state = json.loads(path.read_text())
    state["members"][-1]["name"] = name
    path.write_text(json.dumps(state))
    with pytest.raises(UserError, match="is no member's name"):
        members_at(RunDir(copy, writes=False), 3)


def test_lock(flags, tmp_path):
    held = RunDir(tmp_path / "run")
    refused("in use by a run that still goes", **flags(tmp_path))
    del held


def test_as_on_windows(monkeypatch, tmp_path):
    """Without fcntl another lock is taken, and fsync refuses what is open for reading alone."""
    flock, mode_of, sync = fcntl.flock, fcntl.fcntl, os.fsync

    def locking(file: int, mode: int, n_bytes: int) -> None:
        assert (mode, n_bytes) == (2, 1)
        flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def fsync(file: int) -> None:
        if mode_of(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        sync(file)

    monkeypatch.setattr(directory, "fcntl", None)
    monkeypatch.setattr(directory, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.setattr(os, "fsync", fsync)
    run = RunDir(tmp_path)
    with pytest.raises(UserError, match="in use by a run that still goes"):
        RunDir(tmp_path)
    run.append("metrics.jsonl", [dict(step=0)])
    run.save(1, {}, lambda path: (path / "tensors.bin").write_bytes(b"1"), keep=1)
    assert run.steps() == [1]


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
    run.append("tasks.jsonl", [{"a": 2}, {"a": float("nan")}])
    assert run.rows("tasks.jsonl") == [{"a": 2}, {"a": None}], "JSON has no NaN"
