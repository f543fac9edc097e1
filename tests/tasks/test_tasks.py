"""The contract, the kinds of code, prompts and validation: real-looking model answers with the verdict each deserves, through the real sandbox."""
import ast
import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from proposals import CHAT, MICRO, fate, judge, outcome

from common import UserError
from sandbox.values import encode
from tasks import IDENTITY, TASK_TYPES, read_tasks, validation
from tasks.base import Proposal, Reject, Task
from tasks.programs import entry, normalise, parse
from tasks.prompts import FORMATS, Prompt, show
from tasks.programs import Limits
from verifier import Job, Verdict

LIMITS = {prompt_format: Limits.for_format(prompt_format) for prompt_format in FORMATS}


def made(kind: str, program: str, *pairs, message: str = "") -> Task:
    """A task whose gold is given, for tests that need no execution. pairs: (argument text, output value)."""
    return Task(kind, program, tuple(text for text, _ in pairs), tuple(encode(value) for _, value in pairs), message, "key")


REVERSE = "def f(x):\n return x[::-1]"
OUT = made("code_o", REVERSE, ("[1, 2, 3]", [3, 2, 1]))
INP = made("code_i", REVERSE, ("[1, 2, 3]", [3, 2, 1]))
ADDED = made("code_i", "def f(a, b):\n    return a + b", ("2, 3", 5))
PAIR = made("code_o", "def f(x):\n return x, x", ("1", (1, 1)))
FUN = made("code_f", REVERSE, *[(f"[{i}, 7]", [7, i]) for i in range(10)], message="It turns things around.")


# ---------------------------------------------------------------- students' answers as models write them

ANSWERS = [
    # deduction
    (OUT, "chat", "Reversing gives:\n\n```output\n[3, 2, 1]\n```", "correct"),
    (OUT, "chat", "```output\n[3,2,1]", "correct"),                                         # fence never closed
    (OUT, "chat", "```output [3, 2, 1]```", "correct"),                                     # all on one line
    (OUT, "chat", "So it is\n```\n[3, 2, 1]\n```\nHope this helps!", "correct"),            # no language, prose around
    (OUT, "chat", "```output\n[1, 2, 3]\n```\nWait, no.\n```output\n[3, 2, 1]\n```", "correct"),   # the last one counts
    (OUT, "chat", "<answer>[3, 2, 1]</answer>", "correct"), (OUT, "chat", "<think>```output\n[9]\n```</think>\n```output\n[3, 2, 1]\n```", "correct"),
    (OUT, "chat", "The output is [3, 2, 1].", "malformed"),                                 # prose is not searched for values
    (OUT, "chat", "", "malformed"), (OUT, "chat", "```output\n\n```", "malformed"), (OUT, "chat", "```", "malformed"),
    (OUT, "chat", "```output\n[1, 2, 3][::-1]\n```", "malformed"),                          # an expression is no answer
    (OUT, "chat", "<think>It could be\n```output\n[3, 2, 1]\n```", "malformed"),            # cut off while thinking
    (OUT, "chat", "```output\n[3, 2, 1]" + " " * 5000 + "1\n```", "malformed"),             # over the limit, not truncated
    (PAIR, "chat", "```output\n1, 1\n```", "correct"),
    (PAIR, "chat", "```output\n[1, 1]\n```", "wrong"), (PAIR, "chat", "```output\n1), (1\n```", "malformed"),
    (OUT, "base", "<think>turn it</think>\n```output\n[3, 2, 1]\n```", "malformed"),        # the envelope is the contract
    # the first complete answer counts: there the row ends, and what follows is a conversation with oneself
    (OUT, "base", "<think>so <answer>[1]</answer> or</think><answer>[3, 2, 1]</answer>", "wrong"),
    (OUT, "base", "<think>turn it</think> <answer>[3, 2, 1]</answer>\nUser: 2 + 2?\nAssistant: <think>4</think> "
     "<answer>4</answer>", "correct"),
    (OUT, "base", "<think>add</think> <answer>4</answer>\nUser: Turn it.\nAssistant: <answer>[3, 2, 1]</answer>", "wrong"),
    (OUT, "micro", ">[3,2,1]\n=[3,2,1]", "correct"), (OUT, "micro", "=[3,2,1]\n", "correct"), (OUT, "micro", "=[1,2,3]", "wrong"),
    (OUT, "micro", "[3,2,1]", "malformed"), (OUT, "micro", ">[3,2,1]\n", "malformed"),
    (OUT, "micro", "=", "malformed"), (OUT, "micro", "=[3,2,", "malformed"), (OUT, "micro", "==[3,2,1]", "malformed"),
    # abduction
    (INP, "chat", "```input\n[1, 2, 3]\n```", "correct"), (INP, "chat", "```input\nf([1, 2, 3])\n```", "correct"),
    (INP, "chat", "```input\nx = [1, 2, 3]\n```", "correct"), (INP, "chat", "```python\nf([1, 2, 3])\n```", "correct"),
    (INP, "chat", "```input\n[3, 2, 1]\n```", "wrong"), (INP, "chat", "```input\n7\n```", "wrong"),       # 7[::-1] raises
    (INP, "chat", "```input\nx = [1, 2, 3\n```", "malformed"), (INP, "chat", "```input\n*[[1, 2, 3]]\n```", "malformed"),
    (ADDED, "chat", "```input\n1, 4\n```", "correct"), (ADDED, "chat", "```input\na = 1\nb = 4\n```", "correct"),
    (ADDED, "chat", "```input\n(1, 4)\n```", "wrong"), (ADDED, "chat", "```input\n1) or (True\n```", "malformed"),
    (INP, "micro", "<[1,2,3]\n=[1,2,3]", "correct"), (INP, "micro", "=1) or (True", "malformed"),
    # induction
    (FUN, "chat", "```python\ndef turn(x):\n    def g(turn):\n        return turn[1:]\n    return turn(g(x)) + x[:1] if x else x\n```", "correct"),
    (FUN, "chat", "It is:\n```python\ndef f(x):\n    return x[::-1]\nprint(f([1]))\n```\nprints\n```output\n[1]\n```", "correct"),
    (FUN, "chat", "```python\ndef f(x):\n    return x\n```", "wrong"),
    (FUN, "chat", f"```python\ndef f(x): return { {i: [7, i] for i in range(5)} }[x[0]]\n```", "wrong"),  # learnt by heart
    (FUN, "chat", "```python\nclass A(list):\n    def __eq__(self, other): return True\ndef f(x):\n    return A()\n```", "wrong"),
    (FUN, "chat", "def f(x):\n    return x[::-1]", "malformed"),
    (FUN, "chat", "```python\ndef f(x):\n    return x[::-1]" + "\n    # " + "x" * 4000 + "\n```", "malformed"),
    (FUN, "micro", "def f(x):\n x=x[::-1]\n return x\n", "correct"), (FUN, "micro", "def f(x):\n return x", "wrong"),
    (FUN, "micro", "def f(x):\n return x\n=5", "malformed"),
]


def test_answers_deserve_their_verdicts(sandbox):
    found = [(judge(sandbox, task, prompt_format, text)[0], want, prompt_format, text) for task, prompt_format, text, want in ANSWERS]
    assert not [row for row in found if row[0] != row[1]]


def test_many_attempts_do_not_disturb_each_other(sandbox):
    texts = ["=[3,2,1]", "nothing", "=[1]", "=" + "[" * 40, "=[3, 2, 1]", "=1)"]
    assert judge(sandbox, OUT, "micro", *texts) == ["correct", "malformed", "wrong", "malformed", "correct", "malformed"]
    assert judge(sandbox, OUT, "micro", "a", "b") == ["malformed", "malformed"]
    slow = made("code_i", "def f(x):\n while x>5: pass\n return x", ("1", 1))
    assert judge(sandbox, slow, "micro", "=1", "=9", "=1", "=2", "=x") == ["correct", "wrong", "correct", "wrong", "malformed"]
    assert len(TASK_TYPES["code_i"].answer_jobs(slow, ["1", "2", None, "2"], MICRO)) == 2
    assert len(TASK_TYPES["code_o"].answer_jobs(OUT, ["1", "2", None, "2"], MICRO)) == 1
    assert TASK_TYPES["code_o"].answer_jobs(OUT, [None, None], MICRO) == []


@pytest.mark.parametrize("program", [
    "n = []\ndef f(x):\n    n.append(x)\n    return 1 if len(n) < 3 else len(n) % 2",
    "import random\ndef f(x):\n    random.seed(x) if x == 1 else 0\n    return random.random() > .5"])
def test_no_attempt_sees_the_calls_before_it(sandbox, program):
    """A code_i teacher could decide verdicts by counting calls: each attempt is judged as if it were alone."""
    verdict, = sandbox.run([Job(program, ("1",))])
    task = Task("code_i", program, ("1",), verdict.outputs, "", "key")
    texts = [f"={x}" for x in (1, 5, 2, 3, 4, 5, 1, 7)]
    alone = [judge(sandbox, task, "micro", text)[0] for text in texts]
    assert judge(sandbox, task, "micro", *texts) == alone
    assert judge(sandbox, task, "micro", *texts[::-1]) == alone[::-1]
    assert alone[0] == "correct"


@pytest.mark.parametrize("program, problem", [
    ("from statistics import NormalDist\ndef f(x):\n    return NormalDist().samples(x)", "banned_name"),
    ("import statistics as s\ndef f(x):\n    return s.NormalDist().samples(x)[0] > 0", "banned_name"),
    ("from operator import methodcaller\ndef f(x):\n    return methodcaller('__hash__')(x)", "banned_name"),
    ("def f(x):\n    return getattr(x, '__hash__')()", "banned_name"), ("def f(x):\n    return '{0.__class__}'.format(x)", "banned_name"),
    ("import statistics\ndef f(x):\n    return statistics.random.random() > .5", "import"),
    ("from statistics import random\ndef f(x):\n    return random.random() > .5", "import"),
    ("import typing\ndef f(x):\n    return typing.re.sys.maxsize", "import"),
    ("import collections\ndef f(x):\n    return isinstance(x, collections.abc.Mapping)", None),
    ("from collections import abc\ndef f(x):\n    x.time = x.queue\n    return isinstance(x, abc.Sized)", None),
    ("def f(x):\n    return ['__name__', '_____', 'a__b__c', 'random', x]\nif __name__ == '__main__':\n    f(1)", None)])
def test_what_is_reached_by_a_name(program, problem):
    assert Reject.unless(validation.check_program, program, CHAT) == (problem and Reject(problem))


@pytest.mark.parametrize("program, problem", [
    ("def f(x):\n    def g(hash):\n        return hash\n    return hash(None)", "banned_name"),
    ("def g(hash):\n    return hash\ndef f(x):\n    return g(hash(None))", "banned_name"),
    ("def f(x, hash=hash(None)):\n    return hash", "banned_name"), ("def f(x):\n    return [1 for hash in [hash(None)]]", "banned_name"),
    ("def f(hash):\n    def g():\n        global hash\n        return hash(None)\n    return g()", "banned_name"),
    ("def f(hash):\n    class A:\n        x = hash(None)\n        hash = 1\n    return A.x", "banned_name"),
    ("x = hash(None)\nhash = 1\ndef f(y):\n    return x", "banned_name"), ("def f(x):\n    return (lambda id: 1)(id(x))", "banned_name"),
    ("def f(hash):\n    return [hash + id for id in range(3)]", None), ("def f(x):\n    input = x\n    return (lambda vars: vars + input)(1)", None),
    ("def f(x):\n    def help(y):\n        return y + 1\n    return help(x)", None)])
def test_bans_are_lifted_by_scope(program, problem):
    assert Reject.unless(validation.check_program, program, CHAT) == (problem and Reject(problem))


def test_the_base_s_own_control_tokens_are_refused():
    """Special tokens as Mistral has them, and others in brackets; not the spaces and words that some bases add."""
    added = [SimpleNamespace(content=text, special=special) for text, special in (
        ("[INST]", True), ("<s>", True), ("<tool_call>", False), ("    ", False), ("return", False))]
    control = validation.control_of(SimpleNamespace(added_tokens_decoder=dict(enumerate(added))))
    assert all(control.search(f"x {token} y") for token in ("[INST]", "<s>", "<tool_call>", "<|im_end|>", "```"))
    assert not control.search("    return x < 3 > 1")


# ---------------------------------------------------------------- teachers' proposals

TASK = "```python\n{}\n```\n```input\n{}\n```"
PROPOSALS = [
    ("chat", "```python\ndef f(x):\n    return x + 1\n```input\n5", "ok"),                    # closed by the next, and by the end
    ("chat", "```\ndef f(x):\n    return x + 1\n```\nInput:\n```\n5\n```", "ok"),                       # no languages
    ("chat", TASK.format("def add(a, b):\n    return a + b", "a = 1\nb = 2"), "ok"), ("chat",
     TASK.format("def f(x: List[int]) -> int:\n    '''Returns 6.'''\n    return sum(x)  # 6\nprint(f([1, 2, 3]))", "[1, 2, 3]"),
     "ok"),
    ("chat", TASK.format("def f(input):\n    return input[::-1]", "'abc'"), "ok"),                            # a harmless name
    ("chat", TASK.format("def f():\n    return 5", "").replace("\n\n", "\n \n"), "no_input"),
    ("base", "<think>hm</think><answer>" + TASK.format("def f(x):\n    return x", "5") + "</answer>", "ok"),
    ("base", TASK.format("def f(x):\n    return x", "5"), "no_program"), ("chat", "I cannot do that.", "no_program"), ("chat", "", "no_program"),
    ("chat", "```python\ndef f(x):\n    return x\n```", "no_input"),
    ("chat", "```input\n5\n```\n```python\ndef f(x):\n    return x\n```", "ok"),                         # the other way round
    ("chat", TASK.format("def f(x)\n    return x", "5"), "syntax"),
    ("chat", TASK.format("x = 5", "5"), "no_entry"), ("chat", TASK.format("def g(x): pass\ndef h(x): pass", "5"), "no_entry"),
    ("chat", TASK.format("def g(x):\n    return sum(f for f in x)", "[1]"), "no_entry"),                      # f is another thing
    ("chat", TASK.format("import os\ndef f(x): return x", "5"), "import"),
    ("chat", TASK.format("from . import math\ndef f(x): return x", "5"), "import"),
    ("chat", TASK.format("def f(x): return __import__('os').getpid()", "5"), "banned_name"),
    ("chat", TASK.format("def f(x): return ().__class__.__base__", "5"), "banned_name"),
    ("chat", TASK.format("def f(x): return '<|im_end|>'", "5"), "control_text"),
    ("chat", TASK.format("def f(x): return len(x)", "'<|endoftext|>'"), "control_text"),
    ("chat", TASK.format("def f(x): return '<|im_' + 'end|>'", "5"), "control_text"),
    ("chat", TASK.format("def f(x): return x", "'" + "a" * 600 + "'"), "input_too_long"),
    ("chat", TASK.format("def f(x): return x" + "\n#" * 3000, "5"), "too_long"),
    ("chat", TASK.format("def f(x): return " + "(" * 60 + "x" + ")" * 60, "5"), "too_deep"),
    ("chat", TASK.format("def f(x): return 'a' * 501", "5"), "output_too_long"),                              # AZR: truncated
    ("chat", TASK.format("import math\ndef f(x): return math.nan", "5"), "not_finite"),                       # AZR: empty gold
    ("chat", TASK.format("def f(x): raise SystemExit", "5"), "error"),                                        # AZR: empty gold
    ("chat", TASK.format("def f(x):\n    while True: pass", "5"), "timeout"),
    ("chat", TASK.format("class E:\n    def __eq__(self, o): return True\ndef f(x): return E()", "5"), "unsupported"),
    ("chat", TASK.format("def f(x): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g', x})", "'h'"), "nondeterministic"),
    ("micro", "def f(x):\n x=x[::-1]\n return x\nf([1,2,3])", "ok"), ("micro", "def f(x):\n return x\nf([0,0,0,0,0,0,0,0,0,0,0])", "value_range"),
    ("micro", "def f(x):\n x=x[::-1]\n return x\n", "syntax"), ("micro", "f([1,2,3])", "syntax"), ("micro", "", "syntax"),
    ("micro", "def f(x):\n x=x+1 # 4\n return x\nf(3)", "syntax"), ("micro", "def f(x):\n return x\nf([1,2,3])\nf(4)", "syntax"),
    ("micro", "def f(x):\n return 7\nf(3)", "ignores_input"), ("micro", "def f(x):\n x+=5\n return x\nf(3)", "ok"),
    ("micro", "def f(x):\n return x\nf(1000)", "value_range"), ("micro", "def f(x):\n return x*9\nf(999)", "value_range"),
    ("micro", "def f(x):\n return [['ABCDEFGHI']*9]*len(x)\nf([1])", "output_too_long"),
]


@pytest.mark.parametrize("name", ["code_o", "code_i"])
def test_proposals_are_refused_by_name(sandbox, name):
    found = []
    for prompt_format, text, want in PROPOSALS:
        result = outcome(sandbox, name, text, prompt_format)
        found.append(("ok" if isinstance(result, Task) else result, want, prompt_format, text))
    assert not [row for row in found if row[0] != row[1]]


def test_gold_comes_from_execution(sandbox):
    """Whatever the teacher claims in comments or annotations is neither used nor shown."""
    text = TASK.format("def total(x: list) -> 'int 99':\n    \"\"\"Returns 99.\"\"\"\n    # it is 99\n    return sum(x)",
                       "[1,2]\n# 99")
    task = outcome(sandbox, "code_o", text)
    assert task.outputs == (encode(3),) and task.program == "def f(x):\n    return sum(x)"
    assert task.inputs == ("[1, 2]",) and "99" not in TASK_TYPES["code_o"].solve("chat", task, CHAT).user


# ---------------------------------------------------------------- induction proposals

LINES = "\n".join(f"[{i}, {i + 1}]" for i in range(10))


@pytest.mark.parametrize("text, want", [
    ("```input\n" + LINES + "\n```message\nIt reverses.", "ok"),
    ("\n".join(f"```input\nf([{i}])\n```" for i in range(12)) + "\n```message\nIt reverses.\n```", "ok"),     # first ten count
    ("```\n" + LINES + "\n```\n```message\nIt reverses.\n```", "ok"),
    ("```input\n" + LINES + "\n```", "ok"),                                                             # a hint is not demanded
    ("```input\n" + "[1]\n[ 1]\n" * 5 + "```", "few_inputs"),                                           # the same written twice
    ("```input\n[1]\n```\n```message\nIt reverses.\n```", "few_inputs"), ("no blocks", "no_input"),
    ("\n".join(f"```input\nrange({i})\n```" for i in range(10)), "not_literal"),
    ("```input\n" + LINES.replace("[4, 5]", "4") + "\n```", "ok"),    # one of ten raises and is left out
    ("```input\n" + LINES + "\n```\n```message\n" + "x" * 600 + "\n```", "message_too_long"),
    ("```input\n" + LINES + "\n```\n```message\n<|im_start|>system\n```", "control_text"),
])
def test_induction_proposals(sandbox, text, want):
    found = outcome(sandbox, "code_f", text, few_shot=[OUT])
    assert ("ok" if isinstance(found, Task) else found) == want
    if want == "ok":
        assert len(found.inputs) == len(set(found.inputs)) == len(found.outputs) == 10 - ("\n4\n" in text)
        assert found.program == OUT.program
        assert found.message == ("It reverses." if "message" in text else "")


def test_only_hidden_pairs_are_graded_and_half_is_shown(sandbox):
    kind = TASK_TYPES["code_f"]
    user = kind.solve("chat", FUN, CHAT).user
    assert all((f"[{i}, 7]" in user) == (i < 5) for i in range(10)) and "It turns things around." in user
    job, = kind.answer_jobs(FUN, ["def f(x): return x"], CHAT)
    assert job.inputs == FUN.inputs[5:]
    wrong_on_shown = "```python\ndef f(x):\n    return x[::-1] if x[0] > 4 else 0\n```"
    assert judge(sandbox, FUN, "chat", wrong_on_shown) == ["correct"]
    short = made("code_f", REVERSE, ("[1]", [1]), ("[1, 2]", [2, 1]), ("[4, 2]", [2, 4]))     # from a file of seeds
    assert kind.n_shown(short, CHAT) == 1 and judge(sandbox, short, "chat", wrong_on_shown) == ["wrong"]


# ---------------------------------------------------------------- prompts

@pytest.mark.parametrize("prompt_format", FORMATS)
@pytest.mark.parametrize("name", ["code_o", "code_i", "code_f"])
def test_prompts_are_complete_and_keyed_by_the_rng(prompt_format, name):
    kind, few_shot = TASK_TYPES[name], [OUT, made("code_o", "def f(s):\n    return {'{x}': s}", ("'{0}'", {"{x}": "{0}"}))]
    first = kind.propose(prompt_format, few_shot, random.Random(3), LIMITS[prompt_format])
    assert first == kind.propose(prompt_format, few_shot, random.Random(3), LIMITS[prompt_format]) and isinstance(first, Prompt)
    task = FUN if name == "code_f" else few_shot[1]
    for prompt in (first, kind.solve(prompt_format, task, LIMITS[prompt_format])):
        assert prompt.user and not {"{program}", "{input}", "{output}", "{pairs}", "{goal}", "{topic}"} & set(prompt.user.split())
    if prompt_format != "micro" and name != "code_f":
        assert all(ref.program in first.user and ref.inputs[0] in first.user for ref in few_shot)


def test_show():
    values = [1, [2, 3]], (1,), (), "a, b", {"b": (1, 2), "a": None}, set(), {}, b"x", True, -2.5
    for value in values:
        assert show(value) == repr(value) and ast.literal_eval(show(value, compact=True)) == value
    assert show({3, 1, 2}) == "{1, 2, 3}" and show(["a, b", (1, 2), {1: {3, 2}}], compact=True) == "['a, b',(1,2),{1:{2,3}}]"


# ---------------------------------------------------------------- keys, limits, files

def test_keys():
    def key(kind, program, *inputs, dedupe="structural"):
        return TASK_TYPES[kind].key(Proposal(kind, program, inputs), dedupe)
    assert key("code_o", REVERSE, "[1]") == key("code_o", "def f(y):\n    return y[::-2]", "[2]")
    assert key("code_o", REVERSE, "[1]", dedupe="exact") == key("code_i", REVERSE, "[1]", dedupe="exact")
    assert key("code_f", REVERSE, "[1]") != key("code_f", REVERSE, "[2]")
    assert key("code_f", REVERSE, "[1]") == key("code_f", REVERSE.replace("x", "z"), "[1]")


@pytest.mark.parametrize("program, ignored", [
    ("def f(x):\n return x", False), ("def f(x):\n x=1\n return x", True), ("def f(x):\n y=x\n x=1\n return y", False),
    ("def f(x):\n if 1:x=2\n return x", False), ("def f(x):\n x+=1\n return x", False), ("def f():\n return 1", True),
    ("def f(a,b):\n a=1\n return b", False), ("def f(x):\n for x in [1]:pass\n return 2", True), ("def f(*a):\n return a", False),
])
def test_ignores_input(program, ignored):
    assert validation.ignores_input(entry(parse(program))) == ignored


def test_inputs_are_plain_arguments():
    for text in ("1", "", "[], {}, (), set(), {1: {2}}", "-1, 1+2j, None, True, b'x', 1e5", "'a' 'b'", "1, # one\n2"):
        assert Reject.unless(validation.check_input, text, CHAT) is None
    for text in ("x", "f(1)", "[*a]", "{**a}", "...", "1+1", "'a'*3", "f''", "1 if 1 else 2", "lambda: 1", "set([1])", "a=1",
                 "*[1]", "1)(2", "1), f(2", "(", "\0", "\ud800", "'\n'", "1; 2"):
        assert Reject.unless(validation.check_input, text, CHAT) == Reject("not_literal"), text


def test_entry_is_renamed_through_the_tree():
    source = "def fact(n):\n    'fact'\n    return 1 if n < 2 else n * fact(n - 1) + len('fact')"
    assert normalise(source, CHAT.source_chars, tidy=False).count("fact") == 2 and "f(n - 1)" in normalise(source, CHAT.source_chars, tidy=False)
    assert normalise(REVERSE + "\n", MICRO.source_chars, tidy=False) == REVERSE
    shown = "table = [3]\n\ndef f(x):\n    return x + table[0]\n{}"
    for demonstration in ("if __name__ == '__main__':\n    f(1)", "print(4)", "assert f(1) == 4", "answer = 4", "y: int = f(1)"):
        assert normalise(shown.format(demonstration), CHAT.source_chars, tidy=True) == shown.format("").strip(), demonstration
    for needed in ("vowels = 'ab'\ntable = set(vowels)\n\ndef f(x):\n    return table", "n = 0\nfor i in (1, 2):\n    n += i\n\ndef f(x):\n    return n"):
        assert normalise(needed, CHAT.source_chars, tidy=True) == needed
    method = "class A:\n\n    def solve(self):\n        return 1\n\ndef {}(x):\n    return A().solve()"
    assert normalise(method.format("solve"), CHAT.source_chars, tidy=True) == method.format("f")
    assert normalise("def f(x):\n    'only a docstring'", CHAT.source_chars, tidy=True) == "def f(x):\n    pass"


ROWS = [dict(program="def g(x): return x + 1", input="5"),
        dict(kind="code_f", program=REVERSE, inputs=[f"[{i}]" for i in range(10)], message="turns"),
        dict(kind="math", question="3 and 4?", program="def f():\n return 3 + 4"),
        dict(kind="logic", constraints=["a or b", "not a"]), dict(kind="proof", theorem="x $p |- ( p -> p ) $= wp id $."),
        dict(kind="proof", theory="miu.mm", theorem="x $p |- M I I $= mii $.")]


def test_files_hold_tasks_of_every_kind(tmp_path, sandbox):
    path = tmp_path / "seeds.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)))
    one, two, *others = read_tasks(path)
    assert one == Proposal("code_o", "def f(x):\n    return x + 1", ("5",)) and two.message == "turns" and len(two.inputs) == 10
    assert isinstance(fate(sandbox, one), Task) and isinstance(fate(sandbox, two), Task)
    assert fate(sandbox, replace(two, inputs=two.inputs[:5])) == "few_inputs"
    assert [(p.program, p.message) for p in others] == [
        ("def f():\n return 3 + 4", "3 and 4?"), ("def f(a, b):\n    return (a or b) and (not a)", ""),
        ("prop.mm", "theorem $p |- ( p -> p )"), ("miu.mm", "theorem $p |- M I I")]
    assert fate(sandbox, others[-1]) == "other_theory"
    assert [fate(sandbox, IDENTITY, limits).outputs for limits in (MICRO, CHAT)] == [("[1,2,3]",)] * 2
    with pytest.raises(UserError, match="cannot be read"):
        read_tasks(tmp_path / "absent.jsonl")


@pytest.mark.parametrize("row, why", [
    ('{"program": "def f(x): return x"}', "lacks 'input'"), ("[1]", ""), ("{", ""), ('{"program": "def f(", "input": "1"}', "syntax"),
    ('{"program": 5, "input": "1"}', "must be a string"), ('{"program": "def f(x): return x", "inputs": []}', "must be a list of strings"),
    ('{"kind": "code_x", "program": "def f(x): return x", "input": "1"}', "none of"),
    ('{"kind": "logic", "constraints": ["a + b"]}', "not_logic"), ('{"kind": "proof", "theorem": "x $a |- p $."}', "no_proof")])
def test_files_are_refused_by_their_line(tmp_path, row, why):
    path = tmp_path / "seeds.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + row)
    with pytest.raises(UserError, match=f"line 2.*{why}"):
        read_tasks(path)


# ---------------------------------------------------------------- nothing raises

BITS = ["```question\n", "```constraints\n", "```metamath\n", "\0", "\ud800", "\\", "#", "lambda:", "-" * 50, "\r", "\x0c", "{}", "{x}",
        "global x", "a or b", "1/0", "\\boxed{", "True", "?x", "$p ", "$= ", "await ", "match x:\n case ", "<", ">", "é", "9" * 5000]


@pytest.mark.parametrize("n", [800, pytest.param(5000, marks=pytest.mark.slow)])
def test_no_text_raises(n):
    rng, good = random.Random(0), [text for _, _, text, _ in ANSWERS] + [text for _, text, _ in PROPOSALS]
    for _ in range(n):
        text = rng.choice(good)
        i, j = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        text = rng.choice((text[:i], text[i:], text[:i] + text[j:],
                           text[:i] + "".join(rng.choices(BITS, k=rng.randrange(1, 9))) + text[i:]))
        for prompt_format in FORMATS:
            for kind in TASK_TYPES.values():
                proposal = kind.parse_proposal(text, prompt_format, [OUT], LIMITS[prompt_format])
                if isinstance(proposal, Proposal):
                    assert isinstance(kind.check(proposal, LIMITS[prompt_format]), (Reject, type(None)))
                    assert len(kind.key(proposal, "structural")) == 32
                assert isinstance(kind.parse_answer(text, prompt_format, FUN, LIMITS[prompt_format]), (str, type(None)))


# what the sandbox says of a program, and the reason for the logs
SAID = {"timeout": "timeout", "violation": "violation", "exit": "exit", "malformed": "malformed_result", "too big": "output_too_long",
        "sandbox failure": "sandbox_failure", "not a literal": "not_literal", "unsupported: value of type A": "unsupported",
        "nondeterministic": "nondeterministic", "error: E: x": "error", "something new": "error", "": "error"}


@pytest.mark.parametrize("said", SAID)
def test_whatever_the_sandbox_says_is_a_reason_for_the_logs(said):
    kind, proposal = TASK_TYPES["code_o"], Proposal("code_o", REVERSE, ("[1]",))
    for verdict in Verdict(said, (None,), (said,), 0.0), Verdict("ok", (None,), (said,), 0.0):
        assert kind.accept(proposal, verdict, CHAT, "k").reason == SAID[said]
    garbled = Verdict("ok", ("no json",), (None,), 0.0)
    assert kind.accept(proposal, garbled, CHAT, "k").reason == "malformed_result"
