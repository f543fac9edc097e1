"""Text from a model is never evaluated in the trainer, and whatever it is, it ends as a named verdict."""
import re

import pytest
from cases import one
from tiny_run import python

WATCHED = """
import ast, symtable, sys
sys.path.insert(0, "tests")
from proposals import judge, outcome
from sandbox.values import encode
from tasks import TASK_TYPES
from tasks.base import Task
from tasks.prompts import FORMATS
from verifier import Verdict
DEED, events = f"__import__('os').system('touch {sys.argv[1]}')", []

class NoSandbox:
    def run(jobs):
        return [Verdict("ok", ("1",) * len(job.inputs), (None,) * len(job.inputs)) for job in jobs]

def hook(event, args):
    if event == "compile":
        code = sys._getframe(1).f_code      # ast.parse and symtable only build a tree and tables
        if (code.co_name, code.co_filename) in (("parse", ast.__file__), ("symtable", symtable.__file__)):
            return
    if event in ("compile", "exec", "pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen",
                 "marshal.loads", "code.__new__", "function.__new__"):
        events.append((event, repr(args)[:200]))

def meet(text, form):
    for name in TASK_TYPES:
        shape = ("def f(a, b):\\n return a", ("",)) if name == "logic" else ("def f(x):\\n return x", tuple("0123456789"))
        gold = Task(name, *shape, (encode((True, False)),) * len(shape[1]), "theorem $p |- p", "key")
        outcome(NoSandbox, name, text, form, few_shot=[gold])
        judge(NoSandbox, gold, form, text)

inputs = [DEED, f"[{DEED}]", f"1) or ({DEED}", f"*{DEED}", f"x={DEED}", "f'{" + DEED + "}'", f"(lambda: {DEED})()", "1"]
programs = [DEED, f"def f(x={DEED}):\\n    return x", f"@{DEED}\\ndef f(x): return x", f"def f(x):\\n    return x, {DEED!r}"]
texts = [f"{mark}{given}" for mark in ("= ", "f(") for given in inputs]
for program in programs:
    for given in inputs:
        tags = ("input", given), ("python", program), ("output", given), ("message", DEED)
        fenced = "".join(f"```{tag}\\n{text}\\n```\\n" for tag, text in tags)
        texts += [fenced, f"<think>{DEED}</think><answer>{fenced}</answer>", f"{program}\\nf({given})\\n={given}"]
meet(texts[0], "chat")                      # whatever is imported late is imported now
sys.addaudithook(hook)
for form in FORMATS:
    for text in texts:
        meet(text, form)
print(events)
eval("1 + 1")
print(len(events))
"""


def test_an_audit_hook_sees_no_evaluation_of_hostile_text(tmp_path):
    """Proposals and answers that try to be evaluated go through all of tasks. The hook is alive: it sees the one eval at
    the end, which is a compilation and an execution."""
    mark = tmp_path / "touched"
    done = python("-c", WATCHED, mark)
    assert done.stdout == "[]\n2\n" and not mark.exists(), done


@pytest.mark.parametrize("code, name", [
    ("#" * 10**7, "too big"), ("x = '" + "é" * 2**20 + "'", "too big"), ("\0", "error"), ("\ud800", "error"), ("", "error"), ("def f(x): return 1".encode("utf-16").decode("latin-1"), "error"),
    ("# -*- coding: latin-1 -*-\ndef f(x): return 'é'", None), ("-" * 10**6 + "1", "error|crash"),
    ("x" + ".x" * 10**5, "error|crash"), ("f'{" * 500, "error"), ("def f(x): return f", "unsupported"),
    ("def f(x): return 1 << 3901", "unsupported"), ("def f(x):\n v = 0\n for _ in range(65): v = [v]\n return v", "unsupported"),
    ("def f(x): return 'é' * 20000", "too big"), ("def f(x): return 'x' * 50000", None)], ids=lambda value: repr(value)[:40])
def test_sources_and_results_of_all_kinds(narrow, code, name):
    for deterministic in False, True:
        error, = one(narrow, code, deterministic=deterministic).errors
        assert re.fullmatch("[ -~]{1,200}", error or "none")
        assert (error or "none").split(":")[0] in (name or "none").split("|")
