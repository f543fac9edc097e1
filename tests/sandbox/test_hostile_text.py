"""Text from a model is never evaluated in the trainer, and whatever it is, it ends as a named verdict."""
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT

from sandbox.values import decode
from tasks.validation import REASONS
from verifier import Job, Sandbox

EVALUATORS = {"eval", "exec", "compile", "__import__", "literal_eval", "execfile"}
LOADERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "code", "codeop",
           "runpy", "importlib", "yaml"}
MARSHALS = {"marshal.loads", "marshal.load", "np.load", "numpy.load"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are of Linux")


@pytest.fixture(scope="module")
def narrow():
    """The profile of training with its own limits."""
    with Sandbox(workers=2) as sandbox:
        yield sandbox


def errors(narrow, code, *inputs, **options):
    """The errors of one program, without what follows a colon."""
    verdict, = narrow.run([Job(code, inputs or ("3",), **options)])
    assert all(re.fullmatch("[ -~]{1,200}", e) for e in verdict.errors if e is not None)
    assert all((o is None) != (e is None) for o, e in zip(verdict.outputs, verdict.errors))
    return [None if e is None else e.split(":")[0] for e in verdict.errors]


# ---- nothing of it is evaluated in the trainer ------------------------------------------------------------

def imported_by_the_trainer():
    """Files of ours that train.py imports, directly or not, as trees."""
    files, todo = {}, ["train"]
    while todo:
        name = todo.pop()
        path = ROOT / (name.replace(".", "/") + ".py")
        if not path.exists():
            path = ROOT / name.replace(".", "/") / "__init__.py"
        if name in files or not path.exists():
            continue
        files[name] = ast.parse(path.read_text())
        for node in ast.walk(files[name]):
            if isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and not node.level:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return files


def evaluates(name, node):
    """Whether a node of module `name` evaluates, or loads what may evaluate."""
    if isinstance(node, ast.Name):
        return node.id in EVALUATORS
    if isinstance(node, ast.Attribute):
        said = ast.unparse(node)
        if said in ("ast.parse", "builtins.eval"):
            return name != "tasks.complexity"                       # which parses under guards
        if node.attr in ("compile", "eval"):                        # model.eval() is another thing
            return node.attr == "compile" and said not in ("re.compile", "torch.compile")
        return node.attr in EVALUATORS or said in MARSHALS
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
        return "weights_only=True" not in ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eval":
        return bool(node.args or node.keywords)
    if isinstance(node, ast.Import):
        return bool({alias.name.split(".")[0] for alias in node.names} & LOADERS)
    return isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in LOADERS


def test_no_evaluator_in_the_sources_of_the_trainer():
    """The fork server evaluates, in a process of its own; the trainer does not even import it."""
    files = imported_by_the_trainer()
    assert set(files) >= {"train", "selfplay", "tasks", "tasks.validation", "tasks.prompts",
                          "tasks.complexity", "verifier", "sandbox.scheduler", "tasks.archive",
                          "run.checkpoint", "run.terminal"}
    assert "sandbox.fork_server" not in files
    files.pop("micro.programs", None)                       # it runs the programs that it makes up itself
    for name, tree in files.items():
        for node in ast.walk(tree):
            assert not evaluates(name, node), f"{name}, line {node.lineno}: {ast.unparse(node)}"


def test_an_audit_hook_sees_no_evaluation_of_hostile_text(tmp_path):
    """Proposals and answers that try to be evaluated go through all of tasks and sandbox (watched.py).

    The hook is alive: it sees the one eval at the end, which is a compilation and an execution.
    """
    mark = tmp_path / "touched"
    script = Path(__file__).with_name("watched.py")
    done = subprocess.run([sys.executable, script, mark], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ran, found, n_alive = json.loads(done.stdout.splitlines()[-1])
    assert found == [] and n_alive == 2 and ran > 300
    assert not mark.exists()


# ---- whatever it is, the verdict has a name ---------------------------------------------------------------

def short(value):
    """A test's name of a long text."""
    if value is None:
        return None
    return repr(value)[:40] if len(value) < 40 else f"{value[:25]!r}{len(value)}"


@pytest.mark.parametrize("code, name", [
    ("#" * 10**7, "too big"), ("x = '" + "é" * 2**20 + "'", "too big"), ("\0", "error"),
    ("def f(x): return 1\0", "error"), ("\ud800", "error"), ("def f(x): return '\udcff'", "error"),
    ("", "error"), (" ", "error"), ("\x1b[2J", "error"), ("\ufeff\ufeff", "error"), ("\xff\xfe", "error"),
    ("def f(x): return 1".encode("utf-16").decode("latin-1"), "error"),
    ("# -*- coding: latin-1 -*-\ndef f(x): return 'é'", None), ("\ufeffdef f(x): return 3", "error|none"),
    ("def f(x):\n\treturn 3", None), ("(" * 10**5, "error"),
    ("[" * 90 + "]" * 90 + "\ndef f(x): return 3", None), ("-" * 10**6 + "1", "error|crash"),
    ("x" + ".x" * 10**5, "error|crash"), ("x" + "(x" * 99 + ")" * 99, "error"),
    ("f'{" * 500, "error"), ("if 1:\n" + "".join(" " * i + "if 1:\n" for i in range(1, 200)), "error"),
    ("def f(x): return " + " + ".join(["1"] * 10**5), "error|crash|timeout"), ("f = 3", "error"),
    ("class f:\n def __init__(self, x): 0", "unsupported"), ("def f(x): return f", "unsupported"),
    ("import decimal\ndef f(x): return decimal.Decimal(1)", "unsupported"),
    ("from collections import Counter\ndef f(x): return Counter('a')", "unsupported"),
    ("def f(x): return '\\ud800'", "unsupported"), ("def f(x): return 1 << 3901", "unsupported"),
    ("def f(x): return -(1 << 3900)", "unsupported"),
    ("def f(x):\n v = 0\n for _ in range(65): v = [v]\n return v", "unsupported"),
    ("def f(x):\n v = {}\n v[0] = v\n return v", "unsupported"),
    ("def f(x): return {float('nan'), float('nan')}", "unsupported"),
    ("def f(x): return 'x' * 65536", "too big"), ("def f(x): return [0] * 40000", "too big"),
    ("def f(x): return 'é' * 20000", "too big"), ("def f(x): return 'x' * 50000", None)], ids=short)
def test_sources_and_results_of_all_kinds(narrow, code, name):
    for deterministic in False, True:
        error, = errors(narrow, code, deterministic=deterministic)
        assert str(error).lower() in str(name).lower().split("|")


def test_every_verdict_has_a_reason_for_the_log(narrow):
    """Ends and errors, without what follows a colon, are keys of validation.REASONS, some by another name."""
    renamed = {"too big": "output_too_long", "not a literal": "not_literal", "malformed": "malformed_result"}
    programs = ["def f(x): return x", "1 / 0", "def f(x):\n while True: pass", "import os\nos._exit(0)",
                "import os\ndef f(x): os.fork()", "import ctypes\ndef f(x): ctypes.memset(8, 0, 8)",
                "import os\ndef f(x): os.write(3, b'?')", "def f(x): return 'x' * 10**6",
                "def f(x): return id(f)", "def f(x): return f"]
    jobs = [Job(code, ("3",), deterministic=True) for code in programs]
    verdicts = narrow.run([*jobs, Job(programs[0], ("x",))])
    for verdict in verdicts:
        for name in {verdict.end, (verdict.errors[0] or "ok").split(":")[0]} - {"ok"}:
            assert renamed.get(name, name.replace(" ", "_")) in REASONS, verdict
    assert decode(verdicts[0].outputs[0]) == 3
    assert sum(verdict.errors[0] is None for verdict in verdicts) == 1
