"""Text from a model is never evaluated in the trainer, and whatever it is, it ends as a named verdict."""
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.values import decode
from tasks.validation import REASONS
from verifier import Job, Sandbox

ROOT = Path(__file__).resolve().parents[2]
EVALUATORS = {"eval", "exec", "compile", "__import__", "literal_eval", "execfile"}
LOADERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "code", "codeop", "runpy", "importlib",
    "yaml"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are of Linux")


@pytest.fixture(scope="module")
def judge():
    with Sandbox(workers=2) as sandbox: yield sandbox


def errors(judge, code, *inputs, **options):
    verdict, = judge.run([Job(code, inputs or ("3",), **options)])
    assert all(re.fullmatch("[ -~]{1,200}", e) for e in verdict.errors if e is not None)
    assert all((o is None) != (e is None) for o, e in zip(verdict.outputs, verdict.errors))
    return [None if e is None else e.split(":")[0] for e in verdict.errors]


# ---- nothing of it is evaluated in the trainer ------------------------------------------------------------------------

def imported_by_the_trainer():
    "files of ours that train.py imports, directly or not; fork_server.py is judged by the names that are taken from it"
    files, todo = {}, ["train"]
    while todo:
        name = todo.pop()
        path = ROOT / (name.replace(".", "/") + ".py")
        if not path.exists(): path = ROOT / name.replace(".", "/") / "__init__.py"
        if name in files or name == "sandbox.fork_server" or not path.exists(): continue
        files[name] = ast.parse(path.read_text())
        for node in ast.walk(files[name]):
            if isinstance(node, ast.Import): todo += [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and not node.level:
                todo += [node.module, *(node.module + "." + alias.name for alias in node.names)]
    return files


def test_no_evaluator_in_the_sources_of_the_trainer():
    files = imported_by_the_trainer()
    assert set(files) >= {"train", "selfplay", "tasks", "tasks.validation", "tasks.prompts", "tasks.complexity", "verifier",
                          "sandbox.scheduler", "tasks.archive", "infra.checkpoint", "infra.terminal"}
    for name, tree in files.items():
        for node in ast.walk(tree):
            where = "%s.py:%s" % (name, getattr(node, "lineno", 0))
            if isinstance(node, ast.Name): assert node.id not in EVALUATORS, where
            if isinstance(node, ast.Attribute):
                assert node.attr not in EVALUATORS - {"compile", "eval"}, where             # re.compile, torch.compile,
                if node.attr in ("compile", "eval"):                                        # and model.eval() are other things
                    assert ast.unparse(node) in ("re.compile", "torch.compile") or node.attr == "eval", where
                if ast.unparse(node) in ("ast.parse", "builtins.eval"): assert name == "tasks.complexity", where      # under guards
                assert ast.unparse(node) not in ("marshal.loads", "marshal.load", "np.load", "numpy.load"), where
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), where
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eval":
                assert not node.args and not node.keywords, where
            if isinstance(node, ast.Import): assert not {alias.name.split(".")[0] for alias in node.names} & LOADERS, where
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] not in LOADERS, where
                if node.module == "sandbox.fork_server":
                    assert {alias.name for alias in node.names} <= {"DONE", "GO", "PROFILES"}, where


WATCHED = r"""
import json, os, random, sys
sys.path.insert(0, %r)
from dataclasses import replace
from sandbox.values import encode
from tasks import IDENTITY, KINDS
from tasks.base import Proposal, Reject, Task
from tasks.prompts import STYLES
from tasks.validation import Limits
from verifier import Job, Sandbox
DEED = "__import__('os').system('touch %s')"
PROGRAMS = ["def f(x):\n    return x", "def f(x):\n    %%s\n    return x" %% DEED, "def f(x=%%s):\n    return x" %% DEED, DEED,
            "@" + DEED + "\ndef f(x): return x",
            "class f(metaclass=%%s): pass" %% DEED, "def f(x: %%s): return x" %% DEED,
            "f = lambda x: " + DEED, "def f(x):\n    return '''%%s''', x" %% DEED]
INPUTS = [DEED, "[%%s]" %% DEED, "1) or (%%s" %% DEED, "*%%s" %% DEED, "x=%%s" %% DEED, "f'{%%s}'" %% DEED,
          "{1: %%s}" %% DEED, "1\n)\n%%s\n(1" %% DEED,
          "(lambda: %%s)()" %% DEED, "[x for x in [%%s]]" %% DEED, "1 if %%s else 2" %% DEED, "[1, 2]", "'''%%s'''" %% DEED]
texts = PROGRAMS + ["= " + given for given in INPUTS] + ["f(%%s)" %% given for given in INPUTS]
for program in PROGRAMS:
    for given in INPUTS:
        fenced = "".join("```%%s\n%%s\n```\n" %% pair 
                         for pair in (("input", given), ("python", program), ("output", given), ("message", DEED)))
        texts += [fenced, "<think>%%s</think><answer>%%s</answer>" %% (DEED, fenced),
                  "%%s\nf(%%s)\n=%%s" %% (program, given, given)]
events, ran = [], 0
def hook(event, args):
    if event == "compile":
        frame = sys._getframe(1)            # ast.parse is allowed: it only builds a tree
        if frame.f_code.co_name == "parse" and frame.f_code.co_filename == __import__("ast").__file__: return
    if event in ("compile", "exec", "pickle.find_class", "os.system", "os.exec", "os.fork",
                 "os.posix_spawn", "subprocess.Popen", "marshal.loads",
                 "code.__new__", "function.__new__"): events.append((event, repr(args)[:200]))
with Sandbox(workers=2) as judge:
    def meet(text, style):
        global ran
        limits = replace(Limits.for_style(style), imports=frozenset(["os"]))
        for name, kind in KINDS.items():
            gold = Task(name, "def f(x):\n return x", tuple(map(str, range(10))), tuple(map(str, range(10))), "", "key")
            if name == "logic": gold = Task(name, "def f(a, b):\n return a", ("",), (encode((True, False)),), "", "key")
            proposal = kind.parse_proposal(text, style, [gold], limits)
            if not isinstance(proposal, Reject):
                kind.check(proposal, limits)
                job = kind.job(proposal)
                verdict, = judge.run([job])         # also what the static checks would refuse
                ran += 1
                task = kind.accept(proposal, verdict, limits, kind.key(proposal, "structural"))
                if isinstance(task, Task): kind.solve(style, task, limits)
            answers = [kind.parse_answer(text, style, gold, limits)]
            jobs = kind.answer_jobs(gold, answers, limits)
            ran += len(jobs)
            kind.judge(gold, answers, judge.run(jobs), limits)
    meet(texts[0], "chat")                          # whatever is imported late is imported now
    sys.addaudithook(hook)
    for style in STYLES:
        for text in texts[::1 if style == "micro" else 3]: meet(text, style)
    found, events = events, None
    events = []
    proof = "1 + 1"
    eval(proof)
print(json.dumps([ran, found, len(events)]))
"""


def test_an_audit_hook_sees_no_evaluation_of_hostile_text(tmp_path):
    """Proposals and answers that try to be evaluated go the whole way through tasks and sandbox in a process that watches
    itself. The hook is alive: it sees the one eval at the end, which is a compilation and an execution."""
    mark = tmp_path / "touched"
    done = subprocess.run([sys.executable, "-c", WATCHED % (str(ROOT), mark)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ran, found, alive = json.loads(done.stdout.splitlines()[-1])
    assert found == [] and alive == 2 and ran > 300
    assert not mark.exists()


# ---- whatever it is, the verdict has a name ---------------------------------------------------------------------------

@pytest.mark.parametrize("code, name", [
    ("#" * 10**7, "too big"), ("x = '%s'" % ("é" * 2**20), "too big"), ("\0", "error"), ("def f(x): return 1\0", "error"),
    ("\ud800", "error"),
    ("def f(x): return '\udcff'", "error"), ("", "error"), (" ", "error"), ("\x1b[2J", "error"), ("\ufeff\ufeff", "error"),
    ("\xff\xfe", "error"),
    ("def f(x): return 1".encode("utf-16").decode("latin-1"), "error"), ("# coding: utf-7\ndef f(x): return +AGE-", "error"),
    ("# -*- coding: no-such -*-\ndef f(x): return 3", None), ("# -*- coding: latin-1 -*-\ndef f(x): return 'é'", None),
    ("\ufeffdef f(x): return 3", "error|none"), ("def f(x):\r\n    return 3\r\n", None), ("def f(x):\r    return 3\r", None),
    ("def f(x):\n\treturn 3", None),
    ("(" * 10**5, "error"), ("[" * 90 + "]" * 90 + "\ndef f(x): return 3", None), ("-" * 10**6 + "1", "error|crash"),
    ("x" + ".x" * 10**5, "error|crash"),
    ("x" + "(x" * 99 + ")" * 99, "error"), ("f = " + "lambda x: " * 5000 + "x", "error|crash|unsupported"),
    ("9" * 10**5, "error"), ("f'{" * 500, "error"),
    ("if 1:\n" + "".join(" " * i + "if 1:\n" for i in range(1, 200)), "error"),
    ("def f(x): return " + " + ".join(["1"] * 10**5), "error|crash|timeout"),
    ("f = 3", "error"), ("f = None", "error"), ("def g(x): return x", "error"), ("import no_such_module", "error"),
    ("del f", "error"),
    ("raise SystemExit", "error"), ("def f(): return 3", "error"), ("async def f(x): return 3", "unsupported"),
    ("def f(x): yield 3", "unsupported"),
    ("class f:\n def __init__(self, x): 0", "unsupported"), ("def f(x): return f", "unsupported"),
    ("def f(x): return ...", "unsupported"),
    ("def f(x): return NotImplemented", "unsupported"), ("def f(x): return range(3)", "unsupported"),
    ("def f(x): return {}.keys()", "unsupported"),
    ("def f(x): return bytearray(3)", "unsupported"), ("def f(x): return int", "unsupported"),
    ("import math\ndef f(x): return math", "unsupported"),
    ("import decimal\ndef f(x): return decimal.Decimal(1)", "unsupported"),
    ("from collections import Counter\ndef f(x): return Counter('a')", "unsupported"),
    ("def f(x): return '\\ud800'", "unsupported"), ("def f(x): return 1 << 3901", "unsupported"),
    ("def f(x): return -(1 << 3900)", "unsupported"),
    ("def f(x):\n v = 0\n for _ in range(65): v = [v]\n return v", "unsupported"),
    ("def f(x):\n v = {}\n v[0] = v\n return v", "unsupported"),
    ("def f(x): return {float('nan'), float('nan')}", "unsupported"),
    ("def f(x): return {float('nan'): 1, float('nan'): 1}", "unsupported"),
    ("def f(x): return 'x' * 65536", "too big"), ("def f(x): return [0] * 40000", "too big"),
    ("def f(x): return [1 << 3000] * 100", "too big"),
    ("def f(x): return b'x' * 40000", "too big"), ("def f(x): return 'é' * 20000", "too big"),
    ("def f(x): return 'x' * 65000", None)],
    ids=lambda value: None if value is None else repr(value)[:40] if len(value) < 40 else repr(value[:25]) + "%d" % len(value))
def test_sources_and_results_of_all_kinds(judge, code, name):
    for deterministic in False, True: assert str(errors(judge, code,
        deterministic=deterministic)[0]).lower() in str(name).lower().split("|")


def test_arguments_and_answers_that_are_no_data(judge):
    bad = ["x" * 10**5, "\0", "1\0", "\ud800", "'\udcff'", "[" * 10**5, "9" * 10**5, "-" * 10**5 + "1", "1 + 1", "[1] * 9",
        "'a' + 'b'", "f(1)", "f", "x", "print", "open('/etc/passwd')",
           "__import__('os').getpid()", "().__class__", "[x for x in [1]]", "{**{}}", "[*[1]]", "*[1]", "**{}", "x=1",
           "lambda: 1", "1 if 1 else 0", "1 < 2",
           "not True", "~1", "(yield)", "await x", "(x := 1)", "f'{1}'", "f''", "[1][0]", "'%s' % 1", "1; 2", "1) or (1",
           "1)(1", "1), f(1", "#)\n)+f(1",
           "{[]: 1}", "{{}}", "{1: 2}[1]", "1 and 2", "`1`", "$", "\\", "1\\", "'", '"""', "1__0", "0777", "1e", "0x", "b'é'",
           "u'a' b'b'", "Ellipsis", "nan",
           "inf", "set", "frozenset()", "dict()", "list()", "complex(1)", "1j + 1", "1 + 2j + 3j", "\x1b[2J", "import os",
           "return 1", "１", "“1”"]
    assert errors(judge, "def f(*a): return a", *bad) == ["not a literal"] * len(bad)
    assert errors(judge, "def f(x): return x", "'%s'" % ("x" * (1 << 20))) == ["too big"]
    wrong = errors(judge, "def f(x): return x", "", "1, 2", "1e999", "{1, 2}", "set()", "'\\ud800'", "(1, [2, {3: b'4'}])",
        "1_0", "0x10", "-1", "+1", "-1.5j", "- 1")
    assert wrong == ["error", "error", None, None, None, "unsupported", None, None, None, None, None, None, None]


def test_every_verdict_has_a_reason_for_the_log(judge):
    """Ends and errors, without what follows a colon, are keys of validation.REASONS, by the renaming in tasks.base.Kind.accept."""
    renamed = {"too big": "output_too_long", "not a literal": "not_literal", "malformed": "malformed_result"}
    programs = ["def f(x): return x", "1 / 0", "def f(x):\n while True: pass", "import os\nos._exit(0)",
        "import os\ndef f(x): os.fork()",
                "import ctypes\ndef f(x): ctypes.memset(8, 0, 8)", "import os\ndef f(x): os.write(3, b'?')",
                "def f(x): return 'x' * 10**6",
                "def f(x): return id(f)", "def f(x): return f"]
    verdicts = judge.run([Job(code, ("3",), deterministic=True) for code in programs] + [Job(programs[0], ("x",))])
    for verdict in verdicts:
        for name in {verdict.end, (verdict.errors[0] or "ok").split(":")[0]} - {"ok"}:
            assert renamed.get(name, name.replace(" ", "_")) in REASONS, verdict
    assert decode(verdicts[0].outputs[0]) == 3 and sum(verdict.errors[0] is None for verdict in verdicts) == 1
