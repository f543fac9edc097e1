"""Leaving and coming back: kills, signals, locks, damage, memory. A resumed run equals one that was never stopped."""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny_base import change, cut
from tiny_run import ROOT, SIZES, TORCHRUN, play, python, rows, timeless, words, write

import config
import measure
import run
import train
from common import Stopped, UserError
from evolve import ROLES
from lora import Adapters
from run import LOGS, RunDir, free_memory, members_dir, memory_plan, stop_flag
from weights import read_config

STEPS = 3
# some of all that a checkpoint must carry over: rates of members' own that decay, births, probes, references
FLAGS = SIZES | dict(steps=STEPS, pop=6, task_types="code_o,code_f", n_few_shot=2, evolve_every=1, grace=0, probe_every=1, save_every=1, keep=9,
                     matching="uniform", lr_decay="1,3,0.2", lr_spread=8.0, lr_mutate=1.25, seed=3)
SMALL = SIZES | dict(steps=1, pop=2, max_new_tokens=16, probe_every=1)


@pytest.fixture(scope="module")
def flags(micro_base):
    """flags(out, **changes) -> those of the run under test."""
    return lambda out, **changes: dict(base=micro_base, out=out) | FLAGS | changes


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory) -> Path:
    """The run that is never stopped."""
    return play(**flags(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """The finished run once more, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))


def begin(step: int, *launcher: str, **flags) -> subprocess.Popen:
    """Starts the run as a process of its own, up to the line of this step; in another directory, and where Python does not look for
    modules beside the program."""
    process = subprocess.Popen([sys.executable, *launcher, str(ROOT / "train.py"), *words(**flags)], cwd=flags["out"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                               env=os.environ | dict(PYTHONSAFEPATH="1", OMP_NUM_THREADS="1"))
    for row in process.stdout:
        if row.split()[:1] == [str(step)]:
            return process
    raise AssertionError(process.stderr.read())


def steps(path: Path) -> list[int]:
    """Returns the steps of a run's checkpoints."""
    return RunDir(path, writes=False).steps()


def contents(directory: Path) -> dict[str, bytes]:
    """Returns all files below a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def assert_equal(one: Path, other: Path) -> None:
    """The same records and the same files in the last checkpoint, byte for byte; but for the seconds in metrics.jsonl, and so
    its length in state.json."""
    assert timeless(one) == timeless(other)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in LOGS[1:])
    mine, theirs = contents(one / f"step_{STEPS}"), contents(other / f"step_{STEPS}")
    assert sum("optimizer" in name for name in mine) >= 2
    first, second = (json.loads(files.pop("state.json")) for files in (mine, theirs))
    assert mine == theirs
    del first["logs"]["metrics.jsonl"], second["logs"]["metrics.jsonl"]
    assert first == second and os.readlink(one / "best") == os.readlink(other / "best")


def test_killed_then_resumed_equals_never_stopped(flags, whole, tmp_path):
    process = begin(1, **flags(tmp_path))
    process.kill()
    process.wait()
    path = tmp_path / "run"
    with open(path / "tasks.jsonl", "a") as f:
        f.write('{"step": 2, "torn')  # as a kill in the middle of a write leaves it
    (path / "step_2.part").mkdir(exist_ok=True)
    play(**flags(tmp_path, resume=path))
    assert_equal(whole, path)
    members = json.loads((path / f"step_{STEPS}" / "state.json").read_text())["members"]
    assert any(m["parents"] for m in members) and any(m["lr_scale"] != 1 for m in members)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_begins_anew(flags, whole, tmp_path):
    later = flags(tmp_path, save_every=50, probe_every=0)
    process = begin(0, **later)
    process.kill()
    process.wait()
    assert len(rows(play(**later | dict(resume=tmp_path / "run")))) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(flags, whole, tmp_path, number):
    process = begin(0, **flags(tmp_path, save_every=50))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert f"train.py: {number.name}: saved before step " in said and f"--resume {tmp_path / 'run'}" in said
    assert max(steps(tmp_path / "run")) in (1, 2)
    play(**flags(tmp_path, resume=tmp_path / "run"))
    assert_equal(whole, tmp_path / "run")


@pytest.mark.slow
def test_two_processes_stop_and_go_on(flags, tmp_path):
    """Ctrl-C under torchrun leaves a whole checkpoint; resumed by two processes the run is the one that was never stopped."""
    process = begin(0, *TORCHRUN, **flags(tmp_path, save_every=50))
    os.killpg(process.pid, signal.SIGINT)           # as a terminal does
    _, said = process.communicate(timeout=120)
    assert said.count("SIGINT: saved before step ") == 1 and str(ROOT / "train.py") not in said.split("SIGINT: saved")[0], said
    for given in flags(tmp_path, resume=tmp_path / "run"), flags(tmp_path / "whole"):
        python(*TORCHRUN, "train.py", *words(**given), check=True)
    assert_equal(tmp_path / "whole" / "run", tmp_path / "run")


def test_a_run_in_a_thread(micro_base, tmp_path):
    """A notebook's thread may not take over signals. What the run prints can be pasted into a shell."""
    flags = SMALL | dict(base=micro_base, out=tmp_path, name="a run", probe_every=0)
    thread = threading.Thread(target=lambda: play(**flags))
    thread.start()
    thread.join()
    assert steps(tmp_path / "a run")
    with pytest.raises(UserError, match=f"--resume '{tmp_path}/a run' goes on"):
        play(**flags)


def test_signals_are_a_flag():
    """Taken over in the main thread alone, and given back."""
    before = signal.getsignal(signal.SIGTERM)
    with stop_flag() as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped == ["SIGTERM", "SIGTERM"] and signal.getsignal(signal.SIGTERM) is before
    if (child := os.fork()) == 0:
        with stop_flag():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130, "a second Ctrl-C leaves at once"


# -- the best checkpoint -------------------------------------------------------------------------------------

def test_the_best_checkpoint_is_the_state_that_was_probed(micro_base, tmp_path, monkeypatch, capsys):
    """The probes say .2, .5, .4, .5: step 1 was best, is kept beside the last one, and --init begins with its adapters."""
    said = iter([.2, .5, .4, .5, .1, .1])
    probe = measure.probe
    monkeypatch.setattr(measure, "probe", lambda *given: probe(*given) | dict(heldout_greedy=dict(S0=next(said))))
    path = play(**SMALL | dict(base=micro_base, out=tmp_path, steps=4, keep=1, max_new_tokens=48))
    assert {p.name for p in path.glob("step_*")} == {"step_1", "step_4"} and os.readlink(path / "best") == "step_1"
    assert "0.50 at the best, 0.50 at the last" in (told := capsys.readouterr().out) and "best checkpoint is step_1" in told
    assert told.count("ends about ") == 1, "after three steps"
    assert members_dir(path) == path / "best" and members_dir(path / "step_4") == path / "step_4"
    short = play(**SMALL | dict(base=micro_base, out=tmp_path, name="short", max_new_tokens=48))
    for name in ("T0", "S0"):                       # step_1 is what the first step made
        one, other = (load_file(p / "step_1" / name / "adapter_model.safetensors") for p in (path, short))
        assert all(torch.equal(one[key], other[key]) for key in one)
    again = play(**SMALL | dict(base=micro_base, out=tmp_path, name="again", init=path, lr=1e-30, lr_teacher=1e-30))
    one, other = (load_file(p / "S0" / "adapter_model.safetensors") for p in (path / "best", again / "step_1"))
    assert all(torch.allclose(one[key], other[key], rtol=0, atol=1e-20) for key in one)
    shutil.rmtree(path / "step_1")
    assert members_dir(path) == path / "step_4", "a link without its end is none"


def test_only_whole_checkpoints_count_and_the_last_stay(tmp_path):
    held = RunDir(tmp_path)
    for step in (1, 2, 10):
        (tmp_path / f"step_{step}").mkdir()
    (tmp_path / "step_12.part").mkdir()
    assert held.steps() == [1, 2, 10]
    held.mark_best(1)
    held.prune(1)
    assert held.steps() == [1, 10] and held.best() == "step_1"
    held.append(tasks=[{"a": 2}, {"a": float("nan")}])
    assert held.rows("tasks.jsonl") == [{"a": 2}, {"a": None}], "JSON has no NaN"


# -- what is refused -----------------------------------------------------------------------------------------

def refused(match: str, **flags) -> None:
    """The run does not start, for this reason."""
    with pytest.raises(UserError, match=match):
        play(**flags)


def test_resume_names_what_differs(flags, copy):
    out, before = copy.parent, contents(copy)
    refused(r"other flags: --proposals-per-prompt \(4 -> 5\), --seed \(3 -> 4\)", **flags(out, resume=copy, proposals_per_prompt=5, seed=4))
    with pytest.raises(UserError) as kept:                      # as a notebook keeps it
        play(**flags(out, resume=copy, seed=4))
    assert kept.tb and RunDir(copy).release() is None           # nobody holds it
    refused(r"other flags: --init \( -> elsewhere\)", **flags(out, resume=copy, init="elsewhere"))
    refused(f"holds an earlier run: python train.py --resume {copy} goes on with it", **flags(out))
    refused("holds no run", **flags(out, resume=out))
    for path in copy.glob("step_*"):
        shutil.move(path, out)
    refused("holds an earlier run", **flags(out))               # whose logs would be lost
    for path in out.glob("step_*"):
        shutil.move(path, copy)
    held = RunDir(copy)
    refused("in use by a run that still goes", **flags(out, resume=copy))
    del held
    assert contents(copy) == before


def test_resume_adopts_the_flags_of_the_run(copy, monkeypatch):
    """All of them; what is given and differs is refused by name, but for what may change."""
    seen = []
    monkeypatch.setattr(train, "main", seen.append)
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", str(copy), "--steps", "4", "--rollout-batch", "64"])
    assert train.entry() == 0
    saved = config.config_of(RunDir(copy, writes=False).config())
    assert vars(seen[0]) == vars(saved) | dict(resume=str(copy), init="", steps=4, rollout_batch=64)
    flags = json.loads((copy / "config.json").read_text())
    for changed in {**flags, "litter": 2}, {name: x for name, x in flags.items() if name != "grace"}:
        (copy / "config.json").write_text(json.dumps(changed))
        with pytest.raises(UserError, match="was made by another version, whose flags differ in --(litter|grace): use the commit"):
            train.entry()


def test_another_base_is_refused(flags, whole, micro_base, tmp_path):
    other = shutil.copytree(micro_base, tmp_path / "other")
    change(other / "model.safetensors", lambda tensors: tensors["model.norm.weight"].mul_(2))
    refused("another base", **flags(whole.parent, resume=whole, base=other))
    refused("another base", **flags(tmp_path, base=other, init=whole / "step_3"))


def test_another_file_of_tasks_is_refused(micro_base, tmp_path):
    file = tmp_path / "tasks.jsonl"
    tasks = [dict(program=f"def f(x):\n return x+{i}", input="1") for i in range(3)]
    write(file, tasks[:2])
    flags = SMALL | dict(base=micro_base, out=tmp_path, tasks=file, evolve="none", probe_every=0)
    path = play(**flags)
    assert {row["program"] for row in rows(path, "tasks")} == {task["program"] for task in tasks[:2]}
    write(file, tasks)
    refused(rf"--tasks {file} is another file than {path} began with", **flags | dict(resume=path, steps=2))
    write(file, tasks[:2])
    assert len(rows(play(**flags | dict(resume=path, steps=2)))) == 2


def test_damage_is_one_sentence_with_the_path(flags, copy):
    """Of what a resumed run reads: its flags, its state, an adapter, a member's moments, a log that has lost its end."""
    name = min(p.stem for p in copy.glob("step_3/optimizer/T*.safetensors"))
    for file in (f"step_3/optimizer/{name}.safetensors", f"step_3/{name}/adapter_model.safetensors", "step_3/state.json", "config.json"):
        kept = (copy / file).read_bytes()
        cut(copy / file, 0.5)
        refused(f"{copy}/(step_3/)?{file.removeprefix('step_3/').split('/adapter_model')[0]}.* (damaged|no readable)",
                **flags(copy.parent, resume=copy, steps=4))
        (copy / file).write_bytes(kept)
    for log in LOGS:
        text = (copy / log).read_bytes()
        (copy / log).write_bytes(text[:-1])
        refused(f"{log} is shorter than step_3 says", **flags(copy.parent, resume=copy, steps=4))
        (copy / log).write_bytes(text)


def test_as_on_windows(monkeypatch, tmp_path):
    """Without fcntl another lock is taken."""
    def locking(file: int, mode: int, n_bytes: int) -> None:
        assert (mode, n_bytes) == (2, 1)
        if held:
            raise OSError("locked")
        held.append(file)

    held = []
    monkeypatch.setattr(run, "fcntl", None)
    monkeypatch.setattr(run, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking), raising=False)
    first = RunDir(tmp_path)
    assert held == [first._lock.fileno()]
    with pytest.raises(UserError, match="in use by a run that still goes"):
        RunDir(tmp_path)


# -- memory --------------------------------------------------------------------------------------------------

def test_free_memory_is_the_smaller_of_machine_and_container(monkeypatch, tmp_path):
    """The machine has 8 GB. Of 4 GB a container uses 1 for good, in cgroup v2 or v1. Two processes share."""
    group, gb = tmp_path / "sys/fs/cgroup", 2 ** 30
    for folder in tmp_path / "proc", group / "memory":
        folder.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {8 * 2 ** 20} kB\n")
    (group / "memory.max").write_text("max\n")
    assert free_memory(torch.device("cpu"), tmp_path) == 8
    (group / "memory/memory.limit_in_bytes").write_text(f"{4 * gb}\n")
    (group / "memory/memory.stat").write_text(f"rss 5\ntotal_rss {gb}\n")
    assert free_memory(torch.device("cpu"), tmp_path) == 3
    (group / "memory.max").write_text(f"{2 * gb}\n")
    (group / "memory.stat").write_text(f"anon {gb}\nfile 7\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert free_memory(torch.device("cpu"), tmp_path) == 0.5


def test_the_plan_counts_weights_and_adapters(base, micro_base):
    cfg = config.resolve_config(config.Config(rank=512), "micro")
    table, fits = memory_plan(cfg, read_config(micro_base), torch.float32, 1e9)
    weights, adapters, cache, *_ = [float(line.split()[0]) for line in table.splitlines()]
    n = sum(p.numel() for p in Adapters.on(base.model, 4 * len(ROLES), 512, 32.0).parameters())
    assert weights == pytest.approx(sum(p.numel() for p in base.model.parameters()) * 4 / 2 ** 30, abs=.01)
    assert adapters == pytest.approx(n * 16 / 2 ** 30, abs=.01) and adapters > .1
    m = base.model.cfg
    one_row = 2 * m.num_key_value_heads * m.head_dim * m.num_hidden_layers * 4 * 160            # twice 80 new tokens
    assert fits and cache == pytest.approx(512 * one_row / 2 ** 30, abs=.01)
    assert not memory_plan(cfg, read_config(micro_base), torch.float32, .01)[1]


def test_the_plan_on_the_command_line(micro_base, monkeypatch, capsys):
    for rows_, code in (("64", 0), ("100000000", 2)):
        monkeypatch.setattr(sys, "argv", ["train.py", "--plan", "--base", str(micro_base), "--rollout-batch", rows_, "--device", "cpu"])
        assert train.entry() == code
        assert ("lower these two flags" in capsys.readouterr().out) == (code == 2)


def test_out_of_memory_names_the_flags(micro_base, tmp_path, monkeypatch):
    def full(*_) -> dict:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train.rl, "update", full)
    refused("out of memory: lower --rollout-batch if .*--tokens-per-microbatch", **SMALL | dict(base=micro_base, out=tmp_path))


# -- alarms that end a run -----------------------------------------------------------------------------------

@pytest.mark.slow
def test_a_run_halts_with_a_checkpoint_and_goes_on(flags, whole, tmp_path, monkeypatch):
    changes = dict(halt_on="collapse")
    monkeypatch.setattr(measure, "UNIQUE_SHARE", 2)             # collapse sounds as soon as it can
    monkeypatch.setattr(measure, "WINDOW", 2)
    with pytest.raises(Stopped, match=r"^halted by --halt-on \(collapse: .*\): saved before step 2; go on with --resume ") as halted:
        play(**flags(tmp_path, **changes))
    assert halted.value.code == 3 and steps(tmp_path / "run")[-1] == 2
    first, second = rows(tmp_path / "run")
    assert not first["alarms"] and "collapse" in second["alarms"]
    resumed = play(**flags(tmp_path, resume=tmp_path / "run", **changes))
    assert [row["step"] for row in rows(resumed)] == [0, 1, 2], "an alarm that has begun does not begin again"


@pytest.mark.slow
def test_all_processes_halt_together(flags, tmp_path):
    """Under torchrun, whose own exit code is 1 for any of a process; each says 3, and the checkpoint is whole."""
    alarmed = ('import runpy, measure\nmeasure.UNIQUE_SHARE = measure.WINDOW = 2\n'
               'runpy.run_path("train.py", run_name="__main__")')
    done = python(*TORCHRUN, "--no-python", sys.executable, "-c", alarmed, *words(**flags(tmp_path, halt_on="collapse")))
    assert done.returncode == 1 and done.stderr.count("halted by --halt-on") == 1 and "exitcode  : 3" in done.stderr, done.stderr
    assert steps(tmp_path / "run")[-1] == 2 == len(rows(tmp_path / "run"))
