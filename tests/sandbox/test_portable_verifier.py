"""The interpreter without a fork says what the fork says, and nothing hostile runs in it."""
import ast
import random
import re
import tracemalloc
from dataclasses import replace

import pytest
from test_attacks import ATTACKS, SIEGE

from micro import programs
from sandbox.portable import run
from sandbox.values import encode
from selfplay import make_tasks
from tasks import read_tasks
from tasks.base import reason_of
from verifier import Job, PortableVerifier


def mixed(n: int, seed: int) -> list[tuple[str, str]]:
    """Programs and inputs: as generated, on another one's input, and with other programs' statements in between."""
    rng = random.Random(seed)
    whole = [programs.fresh_program(f"portable/{seed}/{i}") for i in range(n)]
    cases = [(code, given) for code, (given,) in whole]
    for code, _ in whole:
        _, (given,) = rng.choice(whole)
        lines = code.split("\n")
        foreign = [line for other, _ in rng.sample(whole, 2) for line in other.split("\n")[1:-1]]
        at = rng.randrange(1, len(lines))
        spliced = lines[:at] + rng.sample(foreign, min(2, len(foreign))) + lines[at:]
        cases += [(code, given), ("\n".join(spliced), given)]
    return cases


def said(output: str | None, reason: str | None) -> str:
    """The value, or what a run counts of the reason: of a program's mistake not its name."""
    return f"={output}" if output is not None else reason_of(reason).replace("_", " ")


def differences(cases: list[tuple[str, str]], sandbox) -> list[tuple]:
    """The cases of which the two say something else."""
    found = []
    verdicts = sandbox.run([Job(code, (given,)) for code, given in cases])
    for (code, given), verdict in zip(cases, verdicts):
        _, *ours = run(code, "f", given)
        if said(*ours) != said(verdict.outputs[0], verdict.errors[0]):
            found.append((code, given, ours, verdict))
    return found


def test_it_says_what_the_fork_says(sandbox):
    cases = mixed(60, seed=0)
    assert differences(cases, sandbox) == []


@pytest.mark.slow
def test_it_says_what_the_fork_says_100_000_times(sandbox):
    """Generated programs, whole and spliced."""
    assert differences(mixed(33_334, seed=1), sandbox) == []


def test_all_that_the_generator_writes_is_known():
    """Each statement of micro/programs.py, on inputs of its type, gives what Python gives."""
    rng = random.Random(0)
    levels = (programs.EASY, programs.MID, programs.MID_WITH_Y, programs.HARD)
    drawn = [(type_, programs.filled(rng, text)) for level in levels for type_ in level for text in level[type_].split("; ") for _ in range(4)]
    for event in programs.STORY:
        line, statement = programs.filled(rng, event).split(": ")
        drawn.append(("int", statement.format(*re.findall(r"\d", line))))
    for type_, statement in drawn:
        body, x = ("y=3", statement), programs.random_input(rng, type_)
        _, output, reason = run(programs.program_text(body), "f", programs.literal(x))
        known = programs.run(body, x)                                   # None: an error, or too big for the base
        assert known is None or output == encode(known[0]), (body, x, reason)
        assert output or reason.startswith("error: "), (body, x, reason)


def test_held_out_tasks_of_every_type_are_known(micro_base, setup):
    """As a run reads them when it begins: the same gold outputs as with the fork, and none that is not valid."""
    given = read_tasks(micro_base / "heldout.jsonl")[::10]
    with_fork = setup()
    one, other = [make_tasks(s, given, "held out") for s in (with_fork, replace(with_fork, sandbox=PortableVerifier()))]
    assert one == other and {task.kind for task in one} == {"code_o", "code_i", "math", "logic"}


VALUES = """x[0]=x[1]+x[2] -> [1,2,3] -> [5,2,3]
y=x; x[0]=9; x=y -> [1,2] -> [9,2]
x=[x for x in x if x>1]+x[:1] -> [1,2,3] -> [2,3,1]
for i in range(3):x=x[1:]+x[:1] -> 'ABCD' -> 'DABC'
x=-x//2%3 -> 5 -> 0
x='A' if x==0 else x -> 0 -> 'A'
x=''.join([c for c in x if c in 'AB']) -> 'ABCA' -> 'ABA'
x=max(x)*'AB' -> [1,2] -> 'ABAB'
x=x and x[0] or 7 -> [] -> 7
x=1<x<5!=x -> 4 -> True
x=x==1==1==y -> 2 -> False
f=x; x=[f for f in [f,1]] -> 2 -> [2,1]
x=(not x or x==1) and x!=2 -> 1 -> True
x=[x*x for x in x if x>1 if x<4] -> [1,2,3,4] -> [4,9]
x=[[v for v in range(v)] for v in x] -> [1,2] -> [[0],[0,1]]
for v in x:x[1]=v+1 -> [1,2,3] -> [1,4,3]
x=x[2:0:-1] -> [1,2,3] -> [3,2]
x=x%2 -> -3 -> 1"""         # a statement's lines, an input, what Python returns


@pytest.mark.parametrize("row", VALUES.split("\n"))
def test_values(row):
    lines, given, value = row.replace("; ", "\n ").split(" -> ")
    assert run(f"def f(x):\n {lines}\n return x", "f", given) == ("ok", encode(ast.literal_eval(value)), None)


MISTAKES = """y=y+1 -> error: NameError
x=g(x) -> error: NameError
x=[v for v in x]; x=v -> error: NameError
x=x[9] -> error: IndexError
x=x+'A' -> error: TypeError
x=x[0]//0 -> error: ZeroDivisionError
x=x(1) -> error: TypeError
x=int('A') -> error: ValueError
for i in 3:x=i -> error: TypeError
x=x.coun -> error: AttributeError
x=x.count -> unsupported: count
x=x[0].count(1) -> error: AttributeError
x=x.replplace(1) -> error: AttributeError
x=[v for v in v] -> error: NameError
x=[a for a in x for b in x] -> unsupported: such
x=3+ -> error: SyntaxError
x[0]=x -> too big
x=f(x) -> unsupported: f
y=max(x); if x==0:max=3 -> unsupported: a variable named max
x='%d'%3 -> unsupported: formatting
x=set(x) -> unsupported: set
x={1} -> unsupported: Set
import os -> unsupported: Import
x=x.append(1) -> unsupported: append
x=len -> unsupported: len
x=x[0]/2 -> unsupported: Div
x=__import__('os') -> unsupported: __import__
x=x.__class__ -> unsupported: __class__
x=(v for v in x) -> unsupported: GeneratorExp
while x:x=x -> unsupported: While
x=[v async for v in x] -> unsupported: such
x=x is x -> unsupported: Is
x=1.5 -> unsupported: Constant
x=f'{x}' -> unsupported: JoinedStr
x=range(3) -> unsupported: value of type range"""


@pytest.mark.parametrize("row", MISTAKES.split("\n"))
def test_mistakes_and_what_it_does_not_know(row):
    lines, reason = row.replace("; ", "\n ").split(" -> ")
    end, output, said = run(f"def f(x):\n {lines}\n return x", "f", "[1,2]")
    assert (end, output) == ("ok", None) and said.startswith(reason), said


# lists that are joined while they are empty, and filled afterwards: 10 to the 8th items, of which none is copied
NESTED = "\n ".join([f"{name}=[0]*10" for name in "abcdeghi"] + [f"for i in range(10):{outer}[i]={inner}" for outer, inner in zip("abcdegh", "bcdeghi")]
                    + ["x=a==a[:]"])
BOMBS = ["for i in range(10000):x=x*x+7", "x=[x]*999999999", "x='A'*99999*99999", "x=list(range(10000*10000))",
         "x=sum(range(99999*99999))", "for i in range(64):x=[x,x]", "for i in range(64):x=x+x", "x=[0]*9999\n x=[x]*9999",
         "x=[0]\n for i in range(60):x=[x]\n y=[0]\n for i in range(60):y=[y]\n x=x==y", "x='A'*9999\n x=x.replace('','A'*9999)",
         "x=('A'*9999).join(['A']*9999)", "for i in range(99999*99999):x=x", "x=[[[c for a in range(999)] for b in range(999)] for c in range(999)]",
         "x=str(x*9)\n for i in range(99):x=x+x\n x=int(x)", "x=" + "(" * 23 + "x" + ")*9" * 23, "x=" + "x<" * 3000 + "x",
         "x=9*9" + "*9" * 3000, "x=" + "-" * 39 + "x", "x=[0]\n for i in range(99):x[0]=x", "x=sorted([[0]*99]*99)==sorted([[0]*99]*99)",
         "x=range(9999999999*9999999999)", "x=len(range(-9999999999*9999999999))", "for i in range(9,9999999999*9999999999,2):x=i",
         "x='A'*9999\n x=x.replace('','A'*9999,9999)", "x=sum([x]*4999,[])\n x=sum([x]*4999,[])", "for v in x:x[:0]=x", NESTED]


@pytest.mark.parametrize("body", BOMBS)
def test_a_bomb_ends_soon_and_makes_nothing_large(body):
    """What asks for much memory is refused before it has it, and what asks for much work before it is done."""
    tracemalloc.start()
    run(f"def f(x):\n {body}\n return x", "f", "[1,2]")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6, peak


# Those of the collection that do nothing but return a constant, which is what the fork returns, too.
CONSTANTS = {"source encoding that is not there", "forge str newline", "sem unicode"}


@pytest.mark.parametrize("given", ["1", "[1, 2]", "'A'", "1, 2", ""])
def test_no_hostile_program_runs(given):
    """Those of attacks.txt and, where they lie beside the project, one a file: each is refused, or ends with an error of its own."""
    cases = [(name, code) for name, _, code in ATTACKS]
    cases += [(path.stem.replace("_", " "), path.read_text(errors="replace")) for path in sorted(SIEGE.glob("*.py"))]
    for name, code in cases:
        end, output, reason = run(code, "f", given)
        ended = end == "ok" and output is None and reason.startswith(("unsupported: ", "error: ", "too big"))
        assert ended or name in CONSTANTS, (name, output, reason)
    assert len(cases) >= 200


SIGNATURES = ["x,y=1", "*x", "x,**y", "x:g()", "x,*,y", "x,/,y", "x,x", "x=0x" + "f" * 5000]


@pytest.mark.parametrize("code, entry", [*[(f"def f({words}):\n return 1", "f") for words in SIGNATURES],
                                         ("def g(x):\n return x", "f"), ("def f(x):\n x=1", "f"), ("def f(x):\n return", "f"),
                                         ("y=1\ndef f(x):\n return x", "f"), ("@f\ndef f(x):\n return x", "f"),
                                         ("async def f(x):\n return x", "f"), ("def f(x)->g():\n return x", "f"), ("print(1)", None), ("", "f")])
def test_another_form_is_not_known(code, entry):
    assert run(code, entry, "1") == ("ok", None, f"unsupported: anything but one function {entry} with plain parameters and a "
                                     "return at its end")


LITERALS = r"""+1.5
--1
-True
1+2j
1-2j
True+2j
-1+2j
1j+2
b'a'
'a' 'b'
f'a'
set()
{1, 2}
{[1]}
{1: 2, 'a': [None]}
{**{}}
{*()}
[*'a']
(1,)
()
frozenset()
a
1 if 1 else 2
1, 2
x=1
*[1]
1) or (1
1 # a
1e999
-'a'
not 1
~1
1+2
list()
set([])
open('x')"""


@pytest.mark.parametrize("text", [*LITERALS.split("\n"), "", " ", "[1,\n2]", "0x" + "f" * 999])
def test_inputs_are_read_as_in_the_fork(sandbox, text):
    """Students' answers to code_o run through such a program: wrong is what the fork calls wrong."""
    names = "" if not text.strip() else "x,y"[:1 + 2 * (text == "1, 2")]
    code = f"def f({names}):\n return {names.replace(',', '+') or 1}"
    verdict, = sandbox.run([Job(code, (text,))])
    assert run(code, "f", text)[1:] == (verdict.outputs[0], verdict.errors[0])


@pytest.mark.parametrize("text", ["(1,)", "{1}", "{}", "b'A'", "1j", "[(1,)]"])
def test_what_no_program_can_work_with(text):
    for line in ("x=x*3", "x=x==x", "x=[x,1]", "x=len(x)", "x=[v for v in x]"):
        assert run(f"def f(x):\n {line}\n return x", "f", text)[2].startswith("unsupported: work with a value of type ")
