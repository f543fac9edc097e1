"""Takes hostile text through tasks and sandbox in a process that watches itself:  python watched.py FILE

The deed that the texts want done is to create FILE. Prints [programs run, evaluations seen, events of the one
eval at the end], the last to show that the hook is alive.
"""
import ast
import json
import symtable
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.values import encode
from tasks import TASK_TYPES
from tasks.base import Reject, Task
from tasks.prompts import PROMPT_FORMATS
from tasks.validation import Limits
from verifier import Job, Sandbox

DEED = f"__import__('os').system('touch {sys.argv[1]}')"
PROGRAMS = ["def f(x):\n    return x", f"def f(x):\n    {DEED}\n    return x",
            f"def f(x={DEED}):\n    return x", DEED, f"@{DEED}\ndef f(x): return x",
            f"class f(metaclass={DEED}): pass", f"def f(x: {DEED}): return x", f"f = lambda x: {DEED}",
            f"def f(x):\n    return '''{DEED}''', x"]
INPUTS = [DEED, f"[{DEED}]", f"1) or ({DEED}", f"*{DEED}", f"x={DEED}", "f'{" + DEED + "}'",
          "{1: " + DEED + "}", f"1\n)\n{DEED}\n(1", f"(lambda: {DEED})()", f"[x for x in [{DEED}]]",
          f"1 if {DEED} else 2", "[1, 2]", f"'''{DEED}'''"]
EVALUATIONS = ("compile", "exec", "pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn",
               "subprocess.Popen", "marshal.loads", "code.__new__", "function.__new__")
events = []


def hook(event, args):
    """Notes every evaluation but those of ast.parse and symtable, which only build a tree and tables."""
    if event == "compile":
        code = sys._getframe(1).f_code
        if (code.co_name, code.co_filename) in (("parse", ast.__file__), ("symtable", symtable.__file__)):
            return
    if event in EVALUATIONS:
        events.append((event, repr(args)[:200]))


def hostile_texts():
    """Every program and input as an answer of every format."""
    texts = PROGRAMS + [f"= {given}" for given in INPUTS] + [f"f({given})" for given in INPUTS]
    for program in PROGRAMS:
        for given in INPUTS:
            fences = ("input", given), ("python", program), ("output", given), ("message", DEED)
            fenced = "".join(f"```{name}\n{text}\n```\n" for name, text in fences)
            texts += [fenced, f"<think>{DEED}</think><answer>{fenced}</answer>",
                      f"{program}\nf({given})\n={given}"]
    return texts


def meet(judge, text, prompt_format):
    """One text as proposal and as answer of every kind of task -> programs run."""
    limits, ran = replace(Limits.for_format(prompt_format), imports=frozenset(["os"])), 0
    ten = tuple(map(str, range(10)))
    for name, kind in TASK_TYPES.items():
        gold = Task(name, "def f(x):\n return x", ten, ten, "", "key")
        if name == "logic":
            gold = Task(name, "def f(a, b):\n return a", ("",), (encode((True, False)),), "", "key")
        proposal = kind.parse_proposal(text, prompt_format, [gold], limits)
        if not isinstance(proposal, Reject):
            kind.check(proposal, limits)
            verdict, = judge.run([kind.job(proposal)])              # also what the static checks would refuse
            ran += 1
            task = kind.accept(proposal, verdict, limits, kind.key(proposal, "structural"))
            if isinstance(task, Task):
                kind.solve(prompt_format, task, limits)
        answers = [kind.parse_answer(text, prompt_format, gold, limits)]
        jobs = kind.answer_jobs(gold, answers, limits)
        ran += len(jobs)
        kind.verify(gold, answers, judge.run(jobs), limits)
    return ran


with Sandbox(workers=2) as judge:
    texts = hostile_texts()
    ran = meet(judge, texts[0],
               "chat")                             # whatever is imported late is imported now
    judge.run([Job("def f(x): return {x}", ("1",), deterministic=True)])     # and started
    sys.addaudithook(hook)
    for prompt_format in PROMPT_FORMATS:
        for text in texts[::2 if prompt_format == "micro" else 9]:
            ran += meet(judge, text, prompt_format)
found, proof = list(events), "1 + 1"
events.clear()
eval(proof)
n_alive = len(events)
print(json.dumps([ran, found, n_alive]))
