"""Everywhere it can run: Windows as far as Linux can play it (macOS lacks less), make's wheels, notebook.

None of this was tried on a Mac or on Windows. A subprocess imports other people's packages as they are here, then takes
away what Windows lacks, calls itself Windows, and only then meets our code.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from tiny_run import ROOT, SIZES, play, python, rows, words

import config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plays the other systems on Linux")

WINDOWS = """
import os, signal, sys, sysconfig
import numpy, safetensors.torch, tokenizers, torch, torch._dynamo, torch.distributed, tqdm, transformers
import transformers.models.qwen2.modeling_qwen2
sysconfig.get_config_vars()
for name in "fcntl resource pwd grp termios tty pty syslog posix".split():
    sys.modules[name] = None
for name in "fork getuid setsid killpg wait4 pidfd_open memfd_create sched_getaffinity sysconf statvfs WNOHANG nice".split():
    delattr(os, name)
for name in "SIGKILL SIGHUP SIGUSR1 SIGALRM SIGCHLD setitimer alarm pthread_sigmask sigwait".split():
    delattr(signal, name)
import ctypes
load = ctypes.CDLL
def cdll(name, *args, **flags):
    if name is None:                        # the process itself: where glibc's functions are on Linux
        raise OSError("there is no glibc")
    return load(name, *args, **flags)
ctypes.CDLL = cdll
sys.platform = "win32"
import types
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda fd, mode, n_bytes: None)
sys.path.insert(0, "")
import runpy
"""
# The files of the loop, and all that the course's exercises and solutions import.
READING = """
from importlib import import_module
from pathlib import Path
ours = [path for room in (".", "tasks", "report", "eval", "micro") for path in Path(room).glob("[a-z]*.py")]
for path in ours:
    import_module(".".join(path.with_suffix("").parts))
for path in Path("course").glob("[es]*s/*.py"):
    runpy.run_path(str(path))
print(len(ours))
"""
FLAGS = SIZES | dict(steps=2, n_prompts=2, evolve_every=1, grace=0, probe_every=1, name="one run")


def on_windows(*words, body="del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)", source=ROOT, typed=""):
    """A module of ours, or other code, run with these words where Windows is, on a terminal that knows no UTF-8."""
    environment = dict(os.environ, PYTHONIOENCODING="cp1252")
    return python("-c", WINDOWS + body, *words, cwd=source, env=environment, input=typed)


def windows_clone(path):
    """What git makes of the repository where it turns line feeds into CRLF."""
    left_out = shutil.ignore_patterns(".*", "tests", "docs", "out", "phase1", "__pycache__")
    clone = Path(shutil.copytree(ROOT, path, ignore=left_out))
    for file in clone.rglob("*.*"):
        if file.is_file() and file.suffix != ".safetensors":
            file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    return clone


@pytest.mark.slow
def test_modules_and_flags_are_there():
    read = on_windows(body=READING)
    assert read.returncode == 0 and int(read.stdout) > 40, read.stderr[-3000:]


@pytest.mark.slow
def test_a_run_without_a_fork_is_the_run_with_one_and_its_members_are_used(micro_base, tmp_path):
    """Text for text, in a clone with CRLF below a path with spaces; the first line and env.json say which verifier it was.
    Members are sampled, crossed, evaluated, drawn and played against there, and nano.py has a run of its own."""
    clone = windows_clone(tmp_path / "a clone")
    assert b"\r\n" in (clone / "train.py").read_bytes() and b"\r\n" in (clone / "micro" / "base" / "heldout.jsonl").read_bytes()
    run = on_windows("train", *words(**FLAGS, out=tmp_path / "with out"), source=clone)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "portable" in run.stdout.split(" step ")[0]
    there = tmp_path / "with out" / "one run"
    told = json.loads((there / "env.json").read_text())
    assert told["sandbox"] == "portable" and "needs Linux" in told["sandbox_report"]["why"]
    here = play(**FLAGS, base=micro_base, out=tmp_path / "fork")
    for name in ("tasks", "matches", "genealogy"):
        assert rows(there, name) == rows(here, name), name
    members = sorted(path.parent for path in (there / "step_2").glob("*/adapter_config.json"))[:2]
    child = tmp_path / "child"
    for command, told in ((["sample", *members, "base", "--n", "2"], " code_o "),
                          (["evolve", *members, "--operator", "add", "--out", child], str(child)),
                          (["eval.heldout", "--adapters", child, "--bench", "code_o", "--limit", "6", "--out", tmp_path / "answers"], "code_o"),
                          (["report", there], "report.html"),
                          (["nano", "--steps", "1", "--pop", "2"], "step   0  tasks ")):
        run = on_windows(*command)
        assert run.returncode == 0 and told in run.stdout, (command, run.stderr[-3000:])
    for flags, typed in (([], "[[]]\n\n"), (["--teach"], "def f(x):\n x=x+[3]\n return x\n\n[1,2]\n\n")):
        run = on_windows("course.play", there, *flags, typed=typed)
        assert run.returncode == 0 and "ratings: you " in run.stdout, run.stdout + run.stderr[-3000:]


@pytest.mark.slow
def test_other_bases_need_the_fork(tiny, tmp_path):
    """One sentence, exit code 2, and nothing is left behind."""
    run = on_windows("train", "--base", tiny.path, "--prompt-format", "base", "--rank", "2", "--max-new-tokens", "32", "--steps", "1", "--out", tmp_path / "out")
    assert run.returncode == 2 and "container" in run.stderr, run.stderr[-3000:]
    assert run.stderr.startswith("train.py: The sandbox for model code needs Linux") and "WSL2" in run.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("gpu, index, wheels, words, surroundings, asked", [
    (False, True, True, (), {}, ["ask", "cpu", "all"]),
    (False, False, False, (), {}, ["ask", "all"]),              # no network
    (False, True, True, (), {"CI": "true"}, ["all"]), (True, True, True, ("GPU=0",), {}, ["ask", "cpu", "all"])])
def test_make_prefers_the_cpu_build_of_torch(tmp_path, gpu, index, wheels, words, surroundings, asked):
    """What make asks pip for, with a python and an nvidia-smi that only note it and answer as told."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    answers = f"case \"$*\" in *urlopen*) exit {1 - index};; *--extra-index-url*) exit {1 - wheels};; esac"
    for file, body in ((".venv/bin/python", f'echo "$*" >> noted\n{answers}'), ("path/nvidia-smi", f"exit {1 - gpu}")):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / file).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "CI")}
    environment |= dict(PATH=f"{tmp_path / 'path'}:{os.environ['PATH']}", GPU="3", **surroundings)
    subprocess.run(["make", "setup", f"PYTHON={sys.executable}", *words], cwd=tmp_path, env=environment, check=True, timeout=60)
    noted = (tmp_path / "noted").read_text().splitlines()
    marks = {"urlopen": "ask", "--extra-index-url": "cpu", "requirements-dev": "all"}
    kinds = [kind for line in noted for mark, kind in marks.items() if mark in line]
    assert kinds == asked and (tmp_path / ".venv" / ".installed").exists()


CELLS = json.loads((ROOT / "course" / "lab.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
STAND_IN = """
import sys, types
shown = types.ModuleType("IPython.display")
shown.HTML, shown.display = str, print
sys.modules.update({"IPython": types.ModuleType("IPython"), "IPython.display": shown})
"""


@pytest.mark.parametrize("notebook", ["course/lab.ipynb", "docs/colab.ipynb"])
def test_notebooks_are_stored_without_outputs_and_call_what_is_there(notebook):
    cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        source = "".join(cell["source"])
        assert not cell.get("outputs") and cell.get("execution_count") is None
        if cell["cell_type"] == "code":
            compile(source, notebook, "exec")
            for call in re.findall(r'run\("train.py"(.*?)\)$', source, re.M | re.S):
                unknown = [flag for flag in re.findall("--[a-z-]+", call) if not hasattr(config.Config, flag[2:].replace("-", "_"))]
                assert not unknown


def test_the_notebook_runs_the_labs_command():
    """Its run is the one that the course shows first."""
    command = re.search('^LAB = "(.*)"$', CODE["run"], re.M)[1]
    assert f"\npython {command}\n" in (ROOT / "course" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_notebooks_cells_run(tmp_path, micro_base):
    """In order, but for the one that installs, for two steps; once more it resumes, and no step is left."""
    for part in ROOT.iterdir():
        if part.name != "out":                                          # so that out/ is not ours
            (tmp_path / part.name).symlink_to(part)
    out, code = tmp_path / "out" / "lab", STAND_IN + "\n".join(CODE[name] for name in ("run", "report", "run"))
    done = python("-c", code, cwd=tmp_path, env=dict(os.environ, LAB_STEPS="2"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "steps 0 to 2" in done.stdout and done.stdout.count("report out/lab draws it") == 2
    page = unescape(re.search('<iframe srcdoc="([^"]*)" width', done.stdout)[1])
    assert page == (out / "report.html").read_text(encoding="utf-8") and "<svg" in page
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
