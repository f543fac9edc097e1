"""What of a teacher's text becomes a task: what is read, what is refused and why, keys, files of tasks; no text raises."""
import json
import random
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from proposals import CHAT, MICRO, fate, made, outcome, read
from tiny_run import write

from common import Refused, UserError
from sandbox.values import encode
from tasks import IDENTITY, TASK_TYPES, answer_in, read_tasks
from tasks.base import Proposal, Task
from tasks.programs import (
    Limits,
    check_program,
    control_of,
    entry,
    ignores_input,
    normalise,
    parse,
)
from tasks.prompts import FORMATS, Answer, show
from verifier import Verdict

REVERSE = "def f(x):\n return x[::-1]"
OUT = made("code_o", REVERSE, ("[1, 2, 3]", [3, 2, 1]))
TASK = "```python\n{}\n```\n```input\n{}\n```"


def refusal(check, *given) -> str | None:
    """Returns the reason for which a check refuses, None if it does not."""
    try:
        check(*given)
    except Refused as refused:
        return refused.reason


PROPOSALS = [
    ("chat", "```\ndef f(x):\n    return x + 1\n```\nInput:\n```\n5\n```", "ok"),                       # no languages
    ("chat", TASK.format("def f(x: List[int]) -> int:\n    '''Returns 6.'''\n    return sum(x)  # 6\nprint(f([1, 2, 3]))", "[1, 2, 3]"), "ok"),
    ("chat", TASK.format("import re\ndef f(x):\n    return re.compile('a').sub('', x) + 'b'", "'abc'"), "ok"),
    ("base", "<think>hm</think><answer>" + TASK.format("def f(x):\n    return x + 1", "5") + "</answer>", "ok"),
    ("base", TASK.format("def f(x):\n    return x", "5"), "no_program"), ("chat", "", "no_program"),
    ("chat", "```python\ndef f(x):\n    return x\n```", "no_input"),
    ("chat", "```input\n5\n```\n```python\ndef f(x):\n    return x + 1\n```", "ok"),                     # the other way round
    ("chat", TASK.format("def f(x)\n    return x", "5"), "syntax"), ("chat", TASK.format("x = 5", "5"), "no_entry"),
    ("chat", TASK.format("from . import math\ndef f(x): return x", "5"), "import"),
    ("chat", TASK.format("def f(x): return len(x)", "'<|endoftext|>'"), "control_text"), ("chat", TASK.format("def f(x): return '<|im_' + 'end|>'", "5"), "control_text"),
    ("chat", TASK.format("def f(x): return x", "'" + "a" * 600 + "'"), "input_too_long"), ("chat", TASK.format("def f(x): return x" + "\n#" * 3000, "5"), "too_long"),
    ("chat", TASK.format("def f(x): return " + "(" * 60 + "x" + ")" * 60, "5"), "too_deep"), ("chat", TASK.format("def f(x): return 'a' * 501", "5"), "output_too_long"),
    ("chat", TASK.format("import math\ndef f(x): return math.nan", "5"), "not_finite"), ("chat", TASK.format("def f(x): raise SystemExit", "5"), "error"),
    ("chat", TASK.format("def f(x):\n    while True: pass", "5"), "timeout"),
    ("chat", TASK.format("class E:\n    def __eq__(self, o): return True\ndef f(x): return E()", "5"), "unsupported"),
    ("chat", TASK.format("def f(x): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g', x})", "'h'"), "nondeterministic"),
    ("micro", "def f(x):\n x=x[::-1]\n return x\nf([1,2,3])", "ok"), ("micro", "def f(x):\n return x\nf([0,0,0,0,0,0,0,0,0,0,0])", "value_range"),
    *(("micro", text, "syntax") for text in ("def f(x):\n return x\n", "f([1])", "def f(x):\n x=x+1 # 4\n return x\nf(3)", "def f(x):\n return x\nf([1])\nf(4)")),
    ("micro", "def f(x):\n return 7\nf(3)", "ignores_input"), ("micro", "def f(x):\n return x*9\nf(999)", "value_range")]


@pytest.mark.parametrize("name", ["code_o", "code_i"])
def test_proposals_are_refused_by_name(sandbox, name):
    found = []
    for prompt_format, text, want in PROPOSALS:
        result = outcome(sandbox, name, text, prompt_format)
        found.append(("ok" if isinstance(result, Task) else result, want, prompt_format, text))
    assert not [row for row in found if row[0] != row[1]]


def test_gold_comes_from_execution(sandbox):
    """Whatever the teacher claims in comments or annotations is neither used nor shown."""
    text = TASK.format("def f(x: list) -> 'int 99':\n    \"\"\"Returns 99.\"\"\"\n    # it is 99\n    return sum(x)", "[1,2]\n# 99")
    task = outcome(sandbox, "code_o", text)
    assert task.outputs == (encode(3),) and task.program == "def f(x):\n    return sum(x)"
    assert task.inputs == ("[1, 2]",) and "99" not in TASK_TYPES["code_o"].solve("chat", task, CHAT).user


@pytest.mark.parametrize("line, given, is_echo", [
    ("return x", "5", True), ("return sorted(x)", "[2, 1]", True), ("return x[::-1]", "[1, 2]", False), ("return x[::-1]", "[1, 1]", True),
    ("return str(x)", "5", True), ("return len(x)", "'ab'", False)])
def test_a_task_whose_answer_is_shown_is_an_echo(sandbox, line, given, is_echo):
    """In code_i alone: the output, given as the input, returns the output. A user may give such a task."""
    text = TASK.format(f"def f(x):\n    {line}", given)
    assert (outcome(sandbox, "code_i", text) == "echo") == is_echo
    assert isinstance(outcome(sandbox, "code_o", text), Task)
    assert isinstance(fate(sandbox, read("code_i", text), CHAT.of_user()), Task)


LINES = "\n".join(f"[{i}, {i + 1}]" for i in range(10))


@pytest.mark.parametrize("text, want", [
    ("```\n" + LINES + "\n```\n```message\nIt reverses.\n```", "ok"),
    ("\n".join(f"```input\nf([{i}])\n```" for i in range(12)) + "\n```message\nIt reverses.\n```", "ok"),     # first ten count
    ("```input\n" + LINES + "\n```", "ok"), ("```input\n" + "[1]\n[ 1]\n" * 5 + "```", "few_inputs"),         # the same written twice
    ("no blocks", "no_input"), ("\n".join(f"```input\nrange({i})\n```" for i in range(10)), "not_literal"),
    ("```input\n" + LINES.replace("[4, 5]", "4") + "\n```", "ok"),    # one of ten raises and is left out
    ("```input\n" + LINES + "\n```\n```message\n" + "x" * 600 + "\n```", "message_too_long"),
    ("```input\n" + LINES + "\n```\n```message\n<|im_start|>system\n```", "control_text")])
def test_induction_proposals(sandbox, text, want):
    found = outcome(sandbox, "code_f", text, few_shot=[OUT])
    assert ("ok" if isinstance(found, Task) else found) == want
    if want == "ok":
        assert len(found.inputs) == len(set(found.inputs)) == len(found.outputs) == 10 - ("\n4\n" in text)
        assert found.program == OUT.program and found.message == ("It reverses." if "message" in text else "")
        shown = [body for tag, body in Answer(TASK_TYPES["code_f"].solve("chat", found, CHAT).user, "chat").blocks if tag == "input"]
        assert shown == list(found.inputs[:len(found.inputs) // 2]), "at least half stay hidden"


@pytest.mark.parametrize("program, reason", [
    ("from statistics import NormalDist\ndef f(x):\n    return NormalDist().samples(x)", "banned_name"),
    ("import statistics\ndef f(x):\n    return statistics.random.random() > .5", "banned_name"),
    ("from operator import methodcaller\ndef f(x):\n    return methodcaller('__hash__')(x)", "banned_name"),
    ("def f(x):\n    return '{0.__class__}'.format(x)", "banned_name"), ("def f(x):\n    return hash(None)", "banned_name"),
    ("import collections\ndef f(x):\n    return isinstance(x, collections.abc.Mapping)", None), ("def f(hash):\n    return [hash + id for id in range(3)]", None),
    ("def f(x):\n    return ['_____', 'a__b__c', 'random', x]\nif __name__ == '__main__':\n    f(1)", None)])
def test_what_reaches_chance_or_the_insides_is_refused(program, reason):
    assert refusal(check_program, program, CHAT) == reason


def test_the_base_s_own_control_tokens_are_refused():
    control = control_of(SimpleNamespace(all_special_tokens=["[INST]", "<s>", "x"]))
    assert all(control.search(f"y {token} y") for token in ("[INST]", "<s>", "<|im_end|>", "</think>", "```"))
    assert not control.search("    return x < 3 > 1")


# --- prompts ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("prompt_format", FORMATS)
@pytest.mark.parametrize("name", ["code_o", "code_i", "code_f"])
def test_prompts_are_complete_and_keyed_by_the_rng(prompt_format, name):
    kind, limits = TASK_TYPES[name], Limits.for_format(prompt_format)
    few_shot = [OUT, made("code_o", "def f(s):\n    return {'{x}': s}", ("'{0}'", {"{x}": "{0}"}))]
    first, again = (kind.propose(prompt_format, few_shot, random.Random(3), limits) for _ in range(2))
    assert first == again and not set("{program} {input} {output} {pairs} {goal} {topic}".split()) & set(first.user.split())
    if prompt_format != "micro" and name != "code_f":
        assert all(ref.program in first.user and ref.inputs[0] in first.user for ref in few_shot)


def test_show():
    assert show({3, 1, 2}) == "{1, 2, 3}" and show(["a, b", (1, 2), {1: {3, 2}}], compact=True) == "['a, b',(1,2),{1:{2,3}}]"


# --- keys, checks, files ------------------------------------------------------------------------------------

def test_keys():
    def key(kind, program, *inputs, dedupe="structural"):
        return TASK_TYPES[kind].key(Proposal(kind, program, inputs), dedupe)
    assert key("code_o", REVERSE, "[1]") == key("code_o", "def f(y):\n    return y[::-2]", "[2]")
    assert key("code_o", REVERSE, "[1]", dedupe="exact") == key("code_i", REVERSE, "[1]", dedupe="exact")
    assert key("code_f", REVERSE, "[1]") != key("code_f", REVERSE, "[2]")
    assert key("code_f", REVERSE, "[1]") == key("code_f", REVERSE.replace("x", "z"), "[1]")


@pytest.mark.parametrize("program, ignored", [
    ("def f(x):\n x=1\n return x", True), ("def f(x):\n y=x\n x=1\n return y", False), ("def f(x):\n if 1:x=2\n return x", False), ("def f(x):\n x+=1\n return x", False),
    ("def f():\n return 1", True), ("def f(a,b):\n a=1\n return b", False), ("def f(x):\n for x in [1]:pass\n return 2", True), ("def f(*a):\n return a", False)])
def test_ignores_input(program, ignored):
    assert ignores_input(entry(parse(program))) == ignored


def test_a_tidy_program_shows_nothing_of_its_answers():
    shown = "table = [3]\n\ndef f(x):\n    return x + table[0]\n{}"
    for demonstration in ("if __name__ == '__main__':\n    f(1)", "print(4)", "assert f(1) == 4"):
        assert normalise(shown.format(demonstration), CHAT.source_chars, tidy=True) == shown.format("").strip()
        assert normalise(shown.format(demonstration), CHAT.source_chars, tidy=False) == shown.format(demonstration)
    assert normalise("def f(x):\n    'only a docstring'", CHAT.source_chars, tidy=True) == "def f(x):\n    pass"


ROWS = [dict(program="def f(x): return x + 1", input="5"), dict(kind="code_f", program=REVERSE, inputs=[f"[{i}]" for i in range(10)], message="turns"),
        dict(kind="math", question="What are 52 weeks in days?", program="def f():\n return 52 * 7"), dict(kind="logic", constraints=["a", "not b"])]


def test_files_hold_tasks_of_every_kind_and_a_runs_rows_are_tasks_again(tmp_path, sandbox):
    path, again = tmp_path / "seeds.jsonl", tmp_path / "tasks.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)))
    tasks = [fate(sandbox, proposal) for proposal in read_tasks(path)]
    assert [task.kind for task in tasks] == ["code_o", "code_f", "math", "logic"]
    assert (tasks[1].program, len(tasks[1].outputs), tasks[1].message) == (REVERSE, 10, "turns")
    assert (tasks[2].message, tasks[3].program) == ("What are 52 weeks in days?", "def f(a, b):\n    return a and (not b)")
    rows = [asdict(task) | {"reason": "", "attempts": {}} for task in tasks]
    write(again, [*rows, {"kind": "code_o", "reason": "syntax"}])
    assert [fate(sandbox, proposal) for proposal in read_tasks(again)] == tasks
    assert fate(sandbox, IDENTITY, MICRO).outputs == ("[1,2,3]",)
    with pytest.raises(UserError, match="cannot be read"):
        read_tasks(tmp_path / "absent.jsonl")


@pytest.mark.parametrize("row, why", [
    ('{"program": "def f(x): return x"}', "lacks 'input'"), ("[1]", ""), ("{", ""), ('{"program": "def f(", "input": "1"}', "syntax"),
    ('{"program": 5, "input": "1"}', "must be a string"), ('{"program": "def f(x): return x", "inputs": []}', "must be a list of strings"),
    ('{"kind": "code_x", "program": "def f(x): return x", "input": "1"}', "none of"), ('{"kind": "logic", "constraints": ["a + b"]}', "not_logic"),
    ('{"kind": "logic", "program": "def f(a): return"}', "not_logic")])
def test_files_are_refused_by_their_line(tmp_path, row, why):
    path = tmp_path / "seeds.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + row)
    with pytest.raises(UserError, match=f"line 2.*{why}"):
        read_tasks(path)


# --- nothing raises -----------------------------------------------------------------------------------------

BITS = ["```question\n", "```constraints\n", "```metamath\n", "\0", "\ud800", "\\", "#", "lambda:", "-" * 50, "\r", "\x0c", "{}", "{x}", "> ", "```", "~~~~",
        "global x", "a or b", "1/0", "1e999", "\\boxed{", "True", "?x", "$p ", "$= ", "await ", "match x:\n case ", "<", ">", "é", "9" * 5000]
GOOD = [text for _, text, _ in PROPOSALS] + ["```python\ndef f(x):\n    return x\n```", "```answer\na = True\n```", "```question\n3?\n```\n```python\ndef f():\n    return 3\n```"]


@pytest.mark.parametrize("n", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_no_text_raises(n):
    """A text that is cut, or into which others are put, becomes a value or is Refused; so is each type's answer in it."""
    rng, tasks = random.Random(0), {kind: replace(OUT, kind=kind) for kind in TASK_TYPES}
    for _ in range(n):
        text = rng.choice(GOOD)
        i, j = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        text = rng.choice((text[:i], text[i:], text[:i] + text[j:], text[:i] + "".join(rng.choices(BITS, k=rng.randrange(1, 9))) + text[i:]))
        for prompt_format in FORMATS:
            limits = Limits.for_format(prompt_format)
            for name, kind in TASK_TYPES.items():
                proposal = read(name, text, prompt_format, [OUT])
                if isinstance(proposal, Proposal):
                    assert refusal(kind.check, proposal, limits) != ""
                    assert len(kind.key(proposal, "structural")) == 32
                assert isinstance(answer_in(tasks[name], text, prompt_format, limits), (str, type(None)))


# what the sandbox says of a program, and the reason for the logs
SAID = {"timeout": "timeout", "violation": "violation", "exit": "exit", "malformed": "malformed_result", "too big": "output_too_long",
        "sandbox failure": "sandbox_failure", "not a literal": "not_literal", "unsupported: value of type A": "unsupported",
        "nondeterministic": "nondeterministic", "error: E: x": "error", "something new": "error", "": "error"}


def test_whatever_the_sandbox_says_is_a_reason_for_the_logs():
    kind, proposal = TASK_TYPES["code_o"], Proposal("code_o", REVERSE, ("[1]",))
    for said, reason in SAID.items():
        for verdict in Verdict(said, (None,), (said,)), Verdict("ok", (None,), (said,)):
            assert refusal(kind.make, proposal, verdict, CHAT, "k") == reason
