"""The judge: values cross unchanged, neighbours do no harm, nobody escapes, forges, hangs or poisons; see attacks.txt."""
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import verifier
from sandbox.fork_server import PROFILES
from sandbox.values import NAN, decode, encode, same
from siege import lay_marks, left_over, marks, processes, siege, timed
from tasks.validation import IMPORTS
from verifier import Job, Sandbox

ROOT, LINUX = Path(__file__).resolve().parents[2], sys.platform == "linux"
SIEGE = ROOT.parent / "shared" / "attacks"
ATTACKS = re.findall(r"^### (.*): (.*)\n((?:(?!### ).*\n)+)", (ROOT / "tests" / "sandbox" / "attacks.txt").read_text(), re.M)
HONEST = Job("import math\ndef f(x): return sorted(x), math.sqrt(4), len(x)", ("[2, 1]",))
LOOP = "def f(x):\n if x == 2:\n  while True: pass\n return x * 10"
CPU_S = 0.25
pytestmark = pytest.mark.skipif(not LINUX, reason="the walls are of Linux")


@pytest.fixture(scope="module")
def judge():
    os.environ["SECRET"] = "SECRET=731"                               # what the thieves among the attacks look for
    with Sandbox(workers=2, cpu_s=CPU_S) as sandbox: yield sandbox
    del os.environ["SECRET"]


def one(judge, code, *inputs, **options):
    verdict, = judge.run([Job(code, inputs or ("3",), **options)])
    assert len(verdict.outputs) == len(verdict.errors) == len(inputs or "3")
    assert all((o is None) != (e is None) for o, e in zip(verdict.outputs, verdict.errors))
    return verdict


@pytest.fixture(scope="module")
def wide():
    "the profile of benchmarks"
    with Sandbox(workers=2, profile="eval") as sandbox: yield sandbox


# ---- hostile programs -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, want, code", ATTACKS, ids=[name for name, _, _ in ATTACKS])
def test_attack(judge, tmp_path, name, want, code):
    before = processes(judge)
    folder = str(tmp_path / "marks")
    lay_marks(folder)
    verdict, took, late = timed(judge, Job(code.replace("MARKS", folder), ("3",)))
    value, error = verdict.outputs[0], verdict.errors[0]
    if want.startswith("= "): assert value == want[2:]
    else: assert ("value" if error is None else error.split(":")[0]) in want.split("|"), verdict
    assert not (value or "").startswith('"LEAK') and "731" not in (value or "")
    assert re.fullmatch("[ -~]{0,200}", error or "")
    assert marks(folder) == [] and not left_over(judge, before) and not late, took
    assert judge.run([HONEST])[0].outputs == ('{"t":[[1,2],2.0,2]}',)


def test_attacks_cover_every_family():
    families = "crash exit file flood forge hang lie mem net proc sec source steal semantics"
    assert len(ATTACKS) >= 60 and {name.split()[0] for name, _, _ in ATTACKS} >= set(families.split())


@pytest.mark.skipif(not SIEGE.is_dir(), reason="the collection of attacks is not here")
def test_siege_of_the_collection(capsys):
    with Sandbox(workers=2) as sandbox: assert siege(sandbox, str(SIEGE)), capsys.readouterr().out
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["survived"] == counts["programs"] > 100


# ---- values -----------------------------------------------------------------------------------------------------------

def draw(rng, depth=0, hashable=False):
    "a random nested plain value"
    kinds = ["int", "big", "float", "bool", "none", "str", "bytes", "complex"]
    if depth < 4: kinds += ["tuple", "frozenset"] * 2 + ([] if hashable else ["list", "dict", "set"] * 2)
    kind, size = rng.choice(kinds), rng.randrange(4)
    if kind == "int": return rng.choice([0, 1, -1, 2**53, -2**53, rng.randrange(-99, 99)])
    if kind == "big": return rng.choice([1, -1]) * rng.getrandbits(rng.choice([54, 64, 500, 3900]))
    if kind == "float": return rng.choice([0.0, -0.0, 1e300, 5e-324, float("inf"), -float("inf"), NAN, rng.random(), 3.0,
                                              2.0**70])
    if kind == "bool": return rng.random() < 0.5
    if kind == "none": return None
    if kind == "str": return "".join(rng.choice("a\"\\\n\0é中😀\u2028}]") for _ in range(size))
    if kind == "bytes": return rng.randbytes(size)
    if kind == "complex": return complex(rng.random(), -0.0)
    if kind == "dict": return {draw(rng, depth + 1, True): draw(rng, depth + 1) for _ in range(size)}
    items = [draw(rng, depth + 1, hashable or kind in ("set", "frozenset")) for _ in range(size)]
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


def cousin(rng, value):
    "a value that may equal this one, or nearly does: other number types, other containers, another order"
    kind = type(value)
    if kind in (bool, int, float) and abs(value) < 2**60:
        return rng.choice([value, value, int(value), float(value), bool(value), -value])
    if kind in (list, tuple): return rng.choice([kind, kind, list, tuple])([cousin(rng, x) for x in value])
    if kind in (set, frozenset): return rng.choice([set, frozenset])(sorted(value, key=repr)[::-1][:rng.choice([None, None, 2])])
    if kind is dict: return {k: cousin(rng, x) for k, x in reversed(value.items())}
    return value


def test_round_trip_of_random_values_and_equality_as_in_python():
    rng, values, equal = random.Random(0), [], 0
    for _ in range(3000):
        value = draw(rng)
        text = encode(value)
        back = decode(text)
        assert text.isascii() and text.isprintable() and encode(back) == text
        assert [back] == [value] and type(back) is type(value) and ("{" in repr(value) or repr(back) == repr(value))
        values.append(back)
        try: near = cousin(rng, value)
        except TypeError: continue                                    # a set in a set
        equal += [value] == [near]                                    # in lists, so that nan equals itself
        assert same(back, decode(encode(near))) == same(decode(encode(near)), back) == ([value] == [near]), (value, near)
    assert 500 < equal < 2900
    for a, b in zip(values, rng.sample(values, len(values))): assert same(a, b) == ([a] == [b])
    assert all(same(v, decode(encode(v))) for v in values)


def test_values_come_back_from_a_program_as_they_went_in(judge):
    rng = random.Random(1)
    values = [v for v in (draw(rng) for _ in range(400)) if not re.search("frozenset|inf|nan", repr(v))][:150]     # no literals
    verdicts = judge.run([Job("def f(x): return x", (repr(v),)) for v in values])
    assert [v.errors for v in verdicts] == [(None,)] * len(values)
    assert all(same(decode(verdict.outputs[0]), value) for verdict, value in zip(verdicts, values))


def test_equality():
    nan = float("nan")
    equal = [(True, 1), (1, 1.0), (0.0, -0.0), ({1: 2, 3: 4}, {3: 4, 1: 2}), ({1, 2}, {2, 1}), ({1}, frozenset({1})), (nan, nan),
             ([nan, 1], [nan, 1.0]), ({nan: nan}, {nan: nan}), ({(nan,)}, {(nan,)}), (complex(nan, 1), complex(nan, 1))]
    differ = [((1,), [1]), ("1", 1), (b"a", "a"), (0.1 + 0.2, 0.3), (nan, 0.0), ([nan], [None]), (None, 0), ({}, []),
              (2**53 + 1, 2.0**53)]
    for pairs, answer in (equal, True), (differ, False):
        for a, b in pairs:
            a, b = decode(encode(a)), decode(encode(b))
            assert same(a, b) == same(b, a) == answer, (a, b)
    assert decode("[NaN]")[0] is NAN


NOT_CANONICAL = r"""
 1 |1 |01|+1|1e0|1.0e1|-0|.5|nan|Infinit|True|1_0|0x1|9007199254740993|null null|[1]]|[1,]|[|{}|"a|'a'|"\u0061"|"\/"|"é"|"\ud800"
{"t":1};{"t":"ab"};{"x":[]};{"t":[],"t":[]};{"t":[1], "t":[1]}
[1, 2];[1 ];{"s":[2,1]};{"s":[1,1]};{"s":[[]]};{"s":[1,true]};{"z":{"z":[]}}
{"d":[[1]]};{"d":[[1,2],[1,3]]};{"d":[[[],1]]};{"d":{}};{"i":"1"};{"i":1};{"i":"0x20000000000001"};{"i":"zz"}
{"i":"2_0000000000001"};{"b":"0"};{"b":"AA"};{"b":"a a"};{"b":1};{"c":[1,2]};{"c":[1.0]};{"c":"12"};{"c":[NaN]}"""


@pytest.mark.parametrize("text", re.split("[;\n]", NOT_CANONICAL.replace("|", ";")) + ["1\n"])
def test_decode_is_strict(text):
    with pytest.raises(ValueError): decode(text)


def test_limits_of_values():
    deep = 0
    for _ in range(64): deep = [deep]
    assert decode(encode(deep)) == deep
    for value in ([deep], 1 << 3900, "\udcff", {"a": object()}, b"x" * 2**16, "x" * 2**16, range(3), bytearray(b"x"), ...):
        with pytest.raises(ValueError): encode(value)
    for text in ("[" * 10**5, "[" * 65 + "]" * 65, '"%s"' % ("x" * 2**16), "9" * 60000, '{"i":"%s"}' % ("f" * 60000)):
        with pytest.raises(ValueError): decode(text)
    start = time.monotonic()
    with pytest.raises(ValueError):
        decode('{"s":[%s]}' % ",".join(sorted('{"i":"%x"}' % ((2**61 - 1) * i) for i in range(1, 2400))))
    assert time.monotonic() - start < 0.2                             # quadratic time would be seconds


# ---- jobs -------------------------------------------------------------------------------------------------------------

def test_inputs_are_literals_between_the_parentheses_of_a_call(judge):
    code = "def f(*a): return a"
    good = {"": "()", " ": "()", "1": "(1,)", "1, 2": "(1, 2)", "1,": "(1,)", "[1, 2], 'a'": "([1, 2], 'a')", "# c": "()",
            "1 # c)": "(1,)", "(1, 2)": "((1, 2),)", "{1: {2}}, -1.5, 1+2j": "({1: {2}}, -1.5, 1+2j)", "')'": "(')',)",
            "b'\\xff', None, True": "(b'\\xff', None, True)", "\n1\n,2": "(1, 2)", "set()": "(set(),)", "'a' 'b'": "('ab',)"}
    verdict = one(judge, code, *good)
    assert verdict.errors == (None,) * len(good)
    for text, output in zip(good, verdict.outputs): assert decode(output) == ast.literal_eval(good[text]), text
    bad = ["1) or (True", "1), (2", "1)(2", "1) + f(2", "x", "x=1", "*[1]", "**{}", "f", "[0] * 3", "1 if 1 else 2", "(", ")",
           "1 2", ",", "lambda: 0", "f'{1}'", "__import__('os')", "x for x in [1]", "(x := 1)", "1)#", "1 #\n) or (1",
           "1\n)\n(2",
           "'", "{[]: 1}", "......", "[" * 5000, "9" * 5000, "'\ud800'", "\0", "1;2", "print()", "not 1", "1 < 2", "[].__class__"]
    assert one(judge, code, *bad).errors == ("not a literal",) * len(bad)


def test_one_input_does_no_harm_to_its_neighbours(judge):
    for deed in ("while True: pass", "__import__('os')._exit(0)", "__import__('ctypes').memset(8, 0, 8)", "raise SystemExit",
                 "__import__('os').kill(1, 9)", "__import__('os').write(3, b'=0\\n' * 9)", "return 'x' * 70000"):
        for deterministic in False, True:
            code = LOOP.replace("while True: pass", deed)
            verdict = one(judge, code, "1", "2", "3", deterministic=deterministic)
            assert verdict.outputs[::2] == ("10", "30") and verdict.errors[1], (deed, verdict)
    verdict = one(judge, "def f(x):\n t = 0\n for i in range(10**9):\n  t += i\n  if i == 1500000: return x", *"1234")
    assert verdict.end == "timeout" or verdict.outputs == tuple("1234")     # their time adds up, so each gets its own child
    verdict = one(judge, "def f(x): return chr(x) * 60000", *map(str, range(97, 107)))
    assert verdict.end == "ok" and verdict.errors == (None,) * 10           # together more than one child may report


def test_ends(judge):
    ends = [one(judge, code).end for code in (LOOP, LOOP.replace("2", "3"), "import os\nos._exit(1)", "def f(x): 1 / 0", ")")]
    assert ends == ["ok", "timeout", "exit", "ok", "ok"]
    verdict = one(judge, "def f(x): return 1 / x", "0", "2")
    assert verdict.errors == ("error: ZeroDivisionError: division by zero", None) and verdict.outputs == (None, "0.5")
    assert 0 < verdict.cpu_s < CPU_S
    assert judge.run([]) == [] and judge.run([Job("", ())])[0].outputs == ()
    assert one(judge, "def g(x): return x", "1", entry="g").outputs == ("1",)
    assert json.loads(json.dumps(verdict.__dict__))["end"] == "ok"


def test_order_of_many_jobs_and_workers(judge):
    jobs = [Job("def f(x): return x + %d" % i, ("1",), deterministic=i % 7 == 0) for i in range(120)]
    jobs[50] = Job(LOOP, ("2",))
    outputs = [v.outputs[0] for v in judge.run(jobs)]
    assert outputs == [str(i + 1) if i != 50 else None for i in range(120)]


@pytest.mark.parametrize("code", [
    "import random\ndef f(x): return random.random()", "import time\ndef f(x): return time.time_ns()", "def f(x): return id(x)",
    "def f(x): return hash('a')", "def f(x): return list({'a%d' % i for i in range(9)})", "def f(x): return str(object())",
    "import os\ndef f(x): return os.getpid()", "seen = []\ndef f(x):\n seen.append(x)\n return len(seen)",
    "def f(x, seen=[]):\n seen.append(x)\n return seen",
    "calls = 0\ndef f(x):\n global calls\n calls += 1\n if calls == 2: raise KeyError",
    "def f(x): return {c: 1 for c in set('abcdefgh')}", "import gc\ndef f(x): return id(gc) % 9973",
    "def f(x): return list({'a', 'b'})", "def f(x): return repr({'red', 'green', 'blue'})", "def f(x): return id(f) % 4096",
    "import sys\ndef f(x): return sys.getallocatedblocks()", "import time\ndef f(x): return time.perf_counter()",
    "import time\ndef f(x): return time.process_time_ns()", "import time\ndef f(x): return str(time.monotonic())",
    "import gc\ndef f(x): return len(gc.get_objects()) % 1000",
    pytest.param("import sys\ndef f(x): return sys.getrefcount(None)",
                 marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="None is immortal there: its count is constant")),
    "def g():\n yield from range(9)\nG = g()\ndef f(x): return next(G)", "L = [3, 1, 2]\ndef f(x): return L.pop()",
    "import decimal\ndef f(x):\n decimal.getcontext().prec += 1\n return decimal.getcontext().prec",
    "class A: pass\ndef f(x): return min([A() for _ in range(9)], key=id) is None or str(A())",
    "def f(x):\n f.n = getattr(f, 'n', 0) + 1\n return f.n > 1", "import random\ndef f(x): return random.choice([0, 1])",
    "import ctypes\ndef f(x): return ctypes.addressof(ctypes.c_int())",
    "import sys\ndef f(x): return sys.flags.hash_randomization, hash('a')",
    "def f(x):\n if hash('salt') % 5 < 2 or id(f) // 4096 % 3: raise ValueError\n return 1 + hash('x')"])
def test_what_is_not_deterministic(judge, code):
    errors = one(judge, code, "3", "4", deterministic=True).errors
    assert all(e == "nondeterministic" or e.startswith("error: ValueError") for e in errors), errors


def test_a_second_run_that_ends_otherwise_is_told(judge):
    """Each does its deed only when it is called again; the value of the first run is not enough."""
    for deed, name in (("while True: pass", "timeout"), ("import os; os._exit(0)", "nondeterministic"),
                       ("return 1", "nondeterministic"),
                       ("import ctypes; ctypes.memset(8, 0, 8)", "nondeterministic"), ("raise KeyError", "nondeterministic"),
                       ("return 'x' * 10**6", "nondeterministic"), ("return f", "nondeterministic")):
        verdict = one(judge, "n = 0\ndef f(x):\n global n\n n += 1\n if n == 2:\n  %s\n return 0" % deed, "3", deterministic=True)
        assert verdict.errors == (name,), (deed, verdict)
    code = "n = []\ndef f(x): return n.append(x) or len(n) % 2"
    assert one(judge, code, "1", "2", "3", deterministic=True).errors == ("nondeterministic",) * 3
    assert one(judge, "def f(x, a=[]): return a.append(x) or sum(a)", *"00", deterministic=True).errors == (None, None)


@pytest.mark.parametrize("code", [
    "import random\ndef f(x):\n random.seed(x)\n return random.random()", "def f(x): return {'a', 'b', 'c', 'd', 'e', 'f'}",
    "import functools\n@functools.cache\ndef g(n): return n if n < 2 else g(n - 1) + g(n - 2)\ndef f(x): return g(x + 20)",
    "def f(x):\n x.append(1)\n return x", "def f(x): return sorted(set('hash order'))", "def f(x): raise ValueError(id(x))"])
def test_what_is_deterministic(judge, code):
    verdict = one(judge, code, "[3]" if "append" in code else "3", deterministic=True)
    assert verdict.errors[0] is None or verdict.errors[0].startswith("error: ValueError"), verdict


# ---- profiles and whole programs --------------------------------------------------------------------------------------

def test_profiles(judge, wide):
    everything = "\n".join("import " + name for name in sorted(IMPORTS)) + "\ndef f(x): return x"
    assert one(judge, everything).outputs == one(wide, everything).outputs == ("3",)
    for name in set(PROFILES["eval"].imports) - set(PROFILES["train"].imports) - {"_strptime"}:
        assert one(wide, "import %s\ndef f(x): return x" % name).outputs == ("3",), name
    for name in "hashlib", "datetime", "threading", "subprocess":
        assert one(judge, "import %s\ndef f(x): return x" % name).errors[0].startswith("error: ModuleNotFoundError"), name
    code = "from collections import Counter, namedtuple\nP = namedtuple('P', 'a b')\ndef f(x): return [Counter('aab'), P(1, x)]"
    assert one(judge, code).errors == ("unsupported: value of type Counter",)
    assert one(wide, code).outputs == ('[{"d":[["a",2],["b",1]]},{"t":[1,3]}]',)
    assert one(judge, "def f(x): return 1 << 5000").errors[0].startswith("unsupported")
    assert decode(one(wide, "def f(x): return 1 << 9_000_000").outputs[0], PROFILES["eval"].max_text) == 1 << 9_000_000
    clock = "import datetime\ndef f(x): return str(datetime.datetime.now())"
    assert one(wide, clock, deterministic=True).errors == ("nondeterministic",)
    with pytest.raises(ValueError, match="train, eval"): Sandbox(profile="evil")


def test_walls_of_the_wide_profile(wide, tmp_path):
    """Those attacks that want out, with more to import and larger limits."""
    for name, want, code in ATTACKS:
        if name.split()[0] not in ("file", "net", "proc", "sec", "steal") or "timeout" in want: continue
        folder = str(tmp_path / "marks")
        lay_marks(folder)
        before = processes(wide)
        verdict = one(wide, code.replace("MARKS", folder))
        value = verdict.outputs[0] or ""
        assert not value.startswith('"LEAK') and "731" not in value, (name, verdict)
        assert marks(folder) == [] and not left_over(wide, before), name


def test_whole_programs(wide):
    run = lambda code, *given, **options: wide.run([Job(code, given or ("a\nbc\n",), entry=None, cpu_s=0.3, **options)])[0]
    add = ("import sys\nn = int(input())\nprint(n + sum(map(int, sys.stdin.read().split())))\n"
           "if n == 1: sys.exit(1)\nif n == 2: raise KeyError\nwhile n == 3: pass")
    verdict = run(add, "0\n4 5", "1\n", "2\n", "3\n", "4\n6\n")
    assert verdict.outputs == ('"9\\n"', '"1\\n"', None, None, '"10\\n"') and verdict.errors[2:4] == ("exit", "timeout")
    assert run(add, "2\n", "0\n", give_up=True).errors == ("exit", "not run")
    for code, want in {"print(open(0).read(), end='')": "a\nbc\n", "import os; os.write(1, os.read(0, 2))": "a\n", "": "",
                       "import sys\nfor line in sys.stdin: print(line.rstrip(), file=sys.stdout)": "a\nbc\n",
                       "import sys\ninput = sys.stdin.buffer.readline\nsys.stdout.write(str(input()))": "b'a\\n'",
                       "import atexit\natexit.register(print, 'bye')": "bye\n", "import os\nos.write(1, b'\\xff')": "\ufffd",
                       "if __name__ == '__main__': print('é', input())": "é a\n"}.items():
        assert decode(run(code).outputs[0]) == want, code
    for code, end in {"print(open('/etc/passwd').read())": "exit", "1 +": "exit", "import os; os._exit(3)": "exit",
                      "exit()": "exit", "import os; os.read(4, 9)": "exit", "import os; os.fork()": "violation",
                      "print('x' * 10**8)": "too big", "while True: print(1)": "timeout|too big",
                      "import ctypes; ctypes.memset(8, 0, 8)": "crash"}.items():
        verdict = run(code)
        assert verdict.end in end.split("|") and verdict.outputs == (None,), (code, verdict)
    assert run("import os\nos.write(0, b'SECRET' * 999)").end == "ok" and run("print(open(0).read())", "x").outputs == ('"x\\n"',)


def test_who_gives_up_runs_no_other_input(judge):
    verdict = one(judge, LOOP, "1", "2", "3", "2", give_up=True)
    assert verdict.outputs == ("10", None, None, None) and verdict.errors == (None, "timeout", "not run", "not run")
    assert one(judge, LOOP, "2", "1", give_up=True, cpu_s=0.05).errors == ("timeout", "not run")


# ---- life and death ---------------------------------------------------------------------------------------------------

def test_no_memory_of_the_earlier_task(judge):
    poison = ("import builtins, math, sys\nbuiltins.len = math.sqrt = lambda v: 731\n"
              "builtins.MARK = sys.MARK = sys.modules['mark'] = 'SECRET=731'\n")
    scan = ("import builtins, gc, sys\n"
            "def f(x):\n"
            " mark = hasattr(builtins, 'MARK') or hasattr(sys, 'MARK') or 'mark' in sys.modules\n"
            " texts = [v for d in gc.get_objects() if type(d) is dict for v in list(d.values()) if type(v) is str]\n"
            " return mark, [v for v in texts if 'SECRET' + '=' in v]")
    for _ in range(2):
        judge.run([Job(poison + "def f(x): return 0", ("1",))] * 4)
        for verdict in judge.run([Job(scan, ("1",)), HONEST] * 2)[::2]: assert verdict.outputs == ('{"t":[false,[]]}',)


def test_dead_and_stopped_zygotes_are_replaced_and_their_jobs_judged_again():
    with Sandbox(workers=1, cpu_s=0.4, wall_s=0.5) as judge:
        os.kill(judge.zygotes[0].process.pid, signal.SIGKILL)         # dead before it is asked
        assert one(judge, LOOP, "1").outputs == ("10",) and judge.replaced == 1
        pid = judge.zygotes[0].process.pid
        threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()  # dead at work
        assert one(judge, LOOP, "2", "1").outputs == (None, "10") and judge.replaced == 2
        os.kill(judge.zygotes[0].process.pid, signal.SIGSTOP)
        assert one(judge, LOOP, "1").outputs == ("10",) and judge.replaced == 3
        assert judge.run([HONEST])[0].end == "ok"


def test_an_interrupted_run_leaves_no_stale_verdicts():
    def interrupt(*_): raise KeyboardInterrupt
    with Sandbox(workers=2, cpu_s=5, wall_s=6) as judge:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt): judge.run([Job(LOOP, ("2",))] * 3)
        finally: signal.signal(signal.SIGALRM, before)
        assert [v.outputs for v in judge.run([Job(LOOP, (str(i),)) for i in (3, 4, 5)])] == [("30",), ("40",), ("50",)]
        assert judge.replaced == 2


def test_descriptors_stay_flat(judge):
    pages = lambda zygote: Path("/proc/%d/statm" % zygote.process.pid).read_text().split()[0]
    count = lambda: [len(os.listdir("/proc/self/fd"))] + [pages(zygote) for zygote in judge.zygotes]
    jobs = [HONEST, Job(LOOP, ("1", "x")), Job("import os\nos._exit(1)", ("1",)), Job("def f(x): 1", ("1",), deterministic=True)]
    judge.run(jobs)
    before = count()
    judge.run(jobs * 40)
    assert count() == before
    with Sandbox(workers=1): pass
    assert len(os.listdir("/proc/self/fd")) == before[0]


def test_the_slots_are_free_of_what_the_trainer_holds():
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]    # more than the zygote's slots, and beyond 100
    try:
        with Sandbox(workers=1) as judge: assert judge.run([HONEST])[0].outputs == ('{"t":[[1,2],2.0,2]}',)
    finally:
        for fd in held: os.close(fd)


KILLED = """import os, signal, sys
sys.path.insert(0, %r)
from verifier import Sandbox, Job
judge = Sandbox(workers=2, cpu_s=20, wall_s=30, weak=True, without=%r)
if %r: os.kill(judge.zygotes[1].process.pid, signal.SIGSTOP)
if os.fork() == 0: signal.pause()
print(*[z.process.pid for z in judge.zygotes], flush=True)
judge.run([Job("def f(x):\\n while True: pass", ("1",))] * 2)
"""


@pytest.mark.parametrize("without, stopped", [((), False), ((), True), (("seccomp",), False)])
def test_nothing_outlives_a_killed_trainer(without, stopped):
    """Even though a child of the trainer keeps copies of its sockets, and one zygote is stopped."""
    program = KILLED % (str(ROOT), without, stopped)
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pids = [int(word) for word in trainer.stdout.readline().split()]
    assert len(pids) == 4
    parents = lambda: {int(p.name): int(p.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
                       for p in Path("/proc").glob("[0-9]*") if p.joinpath("stat").exists()}
    time.sleep(0.3)
    family = set(pids)
    for _ in range(3): family |= {pid for pid, parent in parents().items() if parent in family}
    assert len(family) > len(pids)                                    # there are children at work
    helper = {pid for pid, parent in parents().items() if parent == trainer.pid} - family
    trainer.kill()
    trainer.wait()
    try:
        deadline = time.monotonic() + 1
        alive = family
        while alive and time.monotonic() < deadline:
            alive = {pid for pid in alive if Path("/proc/%d" % pid).exists()
                     and Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[0] != "Z"}
            time.sleep(0.02)
        assert not alive
    finally:
        for pid in helper: os.kill(pid, signal.SIGKILL)


# ---- tiers ------------------------------------------------------------------------------------------------------------

def test_tiers_and_refusal(capfd, judge):
    assert judge.tier in ("full", "no namespaces") and judge.report["seccomp"] == "ok" and "WARNING" not in capfd.readouterr().err
    with Sandbox(workers=1, without=("namespaces",)) as lower:
        assert lower.tier == "no namespaces" and lower.run([HONEST])[0].end == "ok"
    with pytest.raises(RuntimeError, match="weak=True"): Sandbox(workers=1, without=("seccomp",))
    with Sandbox(workers=1, without=("seccomp",), weak=True) as weak:
        assert weak.tier == weak.report["tier"] == "weak" and "WEAK SANDBOX" in capfd.readouterr().err
        assert one(weak, LOOP, "1", "2", deterministic=True).outputs == ("10", None)
        if weak.report["namespaces"] == "ok":                         # its PID namespace: neither zygote nor others are reached
            assert one(weak, "import os\ndef f(x):\n for p in range(1, 9): os.kill(1, 9)\n os.kill(-1, 9)\n return x").end == "ok"
            assert weak.replaced == 0
    for options in dict(workers=0), dict(cpu_s=0), dict(cpu_s=7.0), dict(mem_mb=1):
        with pytest.raises(ValueError): Sandbox(**options)


@pytest.fixture(scope="module")
def as_nobody():
    "runs `python verifier.py ...` as an ordinary user"
    user = dict(user=65534, group=65534, extra_groups=[]) if os.getuid() == 0 else {}
    user.update(cwd="/", capture_output=True, text=True)
    for python in sys.executable, "/usr/bin/python3":
        try: subprocess.run([python, "-c", "open(%r)" % verifier.__file__], check=True, **user)
        except (OSError, subprocess.CalledProcessError): continue
        return lambda *words: subprocess.run([python, verifier.__file__, *words], **user)
    pytest.skip("an ordinary user can read neither an interpreter nor this folder")


def test_an_ordinary_user_is_protected_too(as_nobody):
    done = as_nobody("--self-check")
    assert done.returncode == 0 and re.match("tier: (full|no namespaces)\n", done.stdout), done


def test_attacks_as_an_ordinary_user_without_namespaces(as_nobody):
    """Those that want out, in the weakest surroundings that are accepted, as a folder for --siege."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name, want, code in ATTACKS:
            if name.split()[0] not in ("file", "forge", "net", "proc", "sec", "steal") or "timeout" in want: continue
            header = "# kind: %s\n# want: %s\n" % (name.split()[0], want.replace("value", "fail"))
            Path(folder, re.sub(r"\W", "_", name) + ".py").write_text(header + code.replace("MARKS", "/tmp/attack_mark"))
        done = as_nobody("--siege", folder, "--without", "namespaces")
    counts = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and counts["survived"] == counts["programs"] > 80, done.stdout
    assert counts["tier"] == "no namespaces"


def test_signals_that_the_trainer_ignores_or_blocks_still_work():
    """What a child inherits must not depend on who started the trainer: neither the CPU timer nor the wait for children."""
    program = ("import signal, sys\nsys.path.insert(0, %r)\nfrom verifier import Job, Sandbox\n"
               "for n in 'SIGPROF', 'SIGCHLD', 'SIGXFSZ', 'SIGINT': signal.signal(getattr(signal, n), signal.SIG_IGN)\n"
               "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF, signal.SIGCHLD, signal.SIGXFSZ])\n"
               "with Sandbox(workers=1, cpu_s=0.2, wall_s=60) as judge:\n"
               "    jobs = [Job('def f(x):\\n while True: pass', ('1',)), Job('def f(x): 1', ('1',))]\n"
               "    print([v.end for v in judge.run(jobs)])\n")
    done = subprocess.run([sys.executable, "-c", program % str(ROOT)], capture_output=True, text=True, timeout=50)
    assert done.stdout == "['timeout', 'ok']\n", done


def test_command_line():
    bare = "exec %s %s --self-check <&- 2>&-" % (sys.executable, verifier.__file__)
    bare = subprocess.run(bare, shell=True, capture_output=True)
    assert bare.returncode == 0 and bare.stdout.startswith(b"tier: ")                              # without standard streams
    command = [sys.executable, verifier.__file__, "--self-check", "--without", "seccomp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "refuses" in done.stderr and not done.stdout
