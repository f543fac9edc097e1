"""What only programs of benchmarks have: standard input, numpy, more to import; and no way out through it."""
import os
import re

import pytest
from cases import CPU_S, one
from siege import assault

from sandbox.profiles import PROFILES
from sandbox.values import decode
from tasks.programs import IMPORTS
from verifier import Job, Sandbox

DEEP = """import sys, threading
from functools import lru_cache
sys.setrecursionlimit(10 ** 7)
threading.stack_size(1 << 27)
def depth(n): return n and depth(n - 1) + 1
if sys.version_info < (3, 12): depth = lru_cache(None)(depth)      # later ones bound recursion through C
def main(): print(depth(int(input())))
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""
BY_SIZE = """import io, os
lines = io.BytesIO(os.read(0, os.fstat(0).st_size))
print(int(lines.readline()) + int(lines.readline()))"""


@pytest.fixture(scope="module")
def hasty():
    """The profile of evaluation with the CPU limit of training."""
    with Sandbox(workers=1, profile="eval", cpu_s=CPU_S) as sandbox:
        yield sandbox


def test_the_idioms_of_fast_programs_run(wide):
    """Deep recursion in a thread with a large stack, and standard input read by its size."""
    assert one(wide, DEEP, "9\n", "100000\n", entry=None, cpu_s=2).outputs == ('"9\\n"', '"100000\\n"')
    assert one(wide, BY_SIZE, "1\n2\n", entry=None).outputs == ('"3\\n"',)


def test_whole_programs_and_their_inputs(wide):
    """Each input meets the program anew, in a child of its own; who gives up stops behind one that ended its child."""
    code = ("import sys\nn = int(input())\nprint(n + sum(map(int, sys.stdin.read().split())))\n"
            "if n == 1: sys.exit(1)\nif n == 2: raise KeyError\nwhile n == 3: pass")
    verdict = one(wide, code, "0\n4 5", "1\n", "2\n", "3\n", "4\n6\n", entry=None, cpu_s=0.3)
    assert verdict.outputs == ('"9\\n"', '"1\\n"', None, None, '"10\\n"')
    assert verdict.errors[2:4] == ("error: KeyError: ", "timeout")
    assert one(wide, code, "3\n", "0\n", "0\n", entry=None, give_up=True, cpu_s=0.1).errors == ("timeout", "not run", "not run")


@pytest.mark.parametrize("code, printed", [
    ("", ""), ("print(open(0).read(), end='')", "a\nbc\n"), ("import os; os.write(1, os.read(0, 2))", "a\n"),
    ("print(open('/dev/stdin').readline(), end='')", "a\n"), ("with open('/dev/stdin', 'rb') as f: print(f.read())", "b'a\\nbc\\n'\n"),
    ("import fileinput\nfor line in fileinput.input(): print(line.strip())", "a\nbc\n"),
    ("x = input()\nif x:\n    print(x)\n    return\nprint(2)", "a\n"), ("print(1)\nexit()", "1\n"),
    ("import sys\nfor line in sys.stdin: print(line.rstrip(), file=sys.stdout)", "a\nbc\n"),
    ("import sys\ninput = sys.stdin.buffer.readline\nsys.stdout.write(str(input()))", "b'a\\n'"),
    ("import atexit\natexit.register(print, 'bye')", "bye\n"), ("import os\nos.write(1, b'\\xff')", "\ufffd"),
    ("if __name__ == '__main__': print('é', input())", "é a\n")])
def test_what_whole_programs_print(wide, code, printed):
    assert decode(one(wide, code, "a\nbc\n", entry=None).outputs[0]) == printed


@pytest.mark.parametrize("code, error", [
    ("print(open('/etc/passwd').read())", "error: PermissionError"), ("1 +", "error: SyntaxError"), ("import os; os._exit(3)", "exit"),
    ("import os; os.read(4, 9)", "error: OSError"), ("import os; os.fork()", "violation"), ("import ctypes; ctypes.memset(8, 0, 8)", "crash"),
    ("import os; os.write(3, b'x')", "malformed"), ("print('x' * 10**8)", "too big"), ("while True: print(1)", "timeout|too big")])
def test_how_whole_programs_end(wide, code, error):
    cpu_s = 3 if error == "too big" else 0.3                    # 100 MB take a busy machine longer
    verdict = one(wide, code, "a\nbc\n", entry=None, cpu_s=cpu_s)
    assert re.match(error, verdict.errors[0]) and verdict.outputs == (None,)


def test_numpy_is_there_with_all_that_it_imports_late(wide):
    code = ("import numpy as np, numpy.typing\ndef f(x):\n    half = np.linalg.inv(np.eye(2) * x) @ np.ones((2, 2))\n"
            "    return [half[0, 0].item(), float(np.fft.fft([1, 2]).real.sum()), int(np.int64(x)), np.unique([3, 1, 1]).tolist()]")
    assert one(wide, code, "2").outputs == ("[0.5,2.0,2,[1,3]]",)
    draws = "import numpy as np\ndef f(x): return float(np.random.default_rng(x).random())"
    assert one(wide, draws, "1").outputs == ("0.5118216247002567",)
    assert one(wide, "import numpy as np\ndef f(x): return np.array([1, 2])").errors == ("unsupported: value of type ndarray",)


def test_what_programs_of_benchmarks_import_is_there(narrow, wide):
    """As EvalPlus' answers import it; what training lacks, evaluation has, and what it lacks too is named."""
    asked = """asyncio socket xml.etree.ElementTree xml.dom.minidom gzip bz2 zoneinfo concurrent.futures multiprocessing sqlite3 signal
        select glob shutil configparser fileinput zipfile http.client urllib.request email.message optparse sched""".split()
    wanted = set(asked) | (set(PROFILES["eval"].imports) - set(PROFILES["train"].imports))
    verdicts = wide.run([Job(f"import {name}\ndef f(x): return x", ("3",)) for name in sorted(wanted)])
    assert [name for name, verdict in zip(sorted(wanted), verdicts) if verdict.outputs != ("3",)] == []
    everything = "".join(f"import {name}\n" for name in sorted(IMPORTS)) + "def f(x): return x"
    assert one(narrow, everything).outputs == one(wide, everything).outputs == ("3",)
    for sandbox, name in (narrow, "threading"), (narrow, "subprocess"), (wide, "torch"):
        assert one(sandbox, f"import {name}\ndef f(x): return x").errors[0].startswith(f"error: ModuleNotFoundError: No module named '{name}'")
    assert one(narrow, "import os\nos.fstat(0)\ndef f(x): return x").errors[0].startswith("error: PermissionError")
    assert one(narrow, "print(1)", entry=None).outputs == (None,)


def test_limits_are_wider_and_one_child_reports_one_longest_value(narrow, wide):
    """Who returns more at once runs once more for each value, and loses none."""
    profile = PROFILES["eval"]
    assert PROFILES["train"].max_text < profile.max_text < profile.max_file
    assert one(narrow, "def f(x): return 1 << 5000").errors[0].startswith("unsupported")
    assert decode(one(wide, "def f(x): return 1 << 4_000_000").outputs[0], profile.max_text) == 1 << 4_000_000
    verdict = one(wide, "def f(x): return str(x) * 1_000_000", *map(str, range(1, 10)), *map(str, range(1, 10)))
    assert verdict.end == "ok" and [len(text) for text in verdict.outputs] == [1_000_002] * 18
    flood = "import os\ndef f(x):\n while True: os.write(3, b'=' + b'[],' * 10**6)"
    assert one(wide, flood).end == "too big"


def test_who_forks_has_one_thread(wide):
    """Another one would not be in the children, and an ordinary user could not enter namespaces."""
    for server in wide.scheduler.servers:
        assert len(os.listdir(f"/proc/{server.process.pid}/task")) == 1


HOSTILE = {
    "a file by numpy": "return 'LEAK' + str(np.fromfile('/etc/passwd', dtype='S1'))",
    "a file mapped": "return 'LEAK' + str(np.memmap('/etc/passwd', mode='r')[:9])",
    "a file written": "np.save('/tmp/attack_mark/numpy', np.ones(3))\n    return 1",
    "a file of text": "return 'LEAK' + str(np.genfromtxt('/etc/passwd', dtype=str, delimiter=':'))",
    "a pickle": "import io, os\n    class Evil:\n        def __reduce__(self): return os.mkdir, ('/tmp/attack_mark/pickled',)\n"
                "    b = io.BytesIO()\n    np.save(b, np.array([Evil()], dtype=object), allow_pickle=True)\n    b.seek(0)\n    return str(np.load(b, allow_pickle=True))",
    "a library": "np.ctypeslib.load_library('libc.so.6', '/lib/x86_64-linux-gnu').system(b'touch /tmp/attack_mark/so')\n    return 1",
    "memory of others": "import ctypes\n    m = np.ctypeslib.as_array((ctypes.c_ubyte * (1 << 24)).from_address(0x7f0000000000))\n    return 'LEAK' + str(bytes(m).find(b'SECRET'))",
    "far beyond an array": "a = np.lib.stride_tricks.as_strided(np.zeros(1), (1 << 40,), (8,))\n    a[1 << 39] = 1.0\n    return 1",
    "a file's state by its name": "import os\n    return 'LEAK' + str(os.stat('/etc/passwd').st_size)",
    "a real thread": "import _thread\n    _thread.start_new_thread(print, ())\n    return 1",
    "a raw thread": "import ctypes\n    c = ctypes.CDLL(None)\n    p = ctypes.c_ulong()\n    r = c.pthread_create(ctypes.byref(p), None, c.getpid, None)\n    raise OSError(r)",
    "a process in a thread": "import os, threading\n    threading.Thread(target=lambda: os.fork() or open('/tmp/attack_mark/forked', 'w')).start()\n    return 1",
    "an end in a thread": "import os, threading\n    threading.Thread(target=os._exit, args=(0,)).start()\n    return 1",
    "a loop in a thread": "import threading\n    def run():\n        while True: pass\n    threading.Thread(target=run).start()\n    return 1",
    "a stack without end": "import sys, threading\n    sys.setrecursionlimit(10 ** 9)\n    import functools\n    @functools.lru_cache(None)\n    def g(n): return g(n + 1)\n    return g(0)",
    "the true fstat": "import os\n    return os.fstat(0).st_size",
    "memory by numpy": "return float(np.ones(1 << 33).sum())",
    "a stopped clock": "import ctypes\n    s = (ctypes.c_ulong * 16)(*[2 ** 64 - 1] * 16)\n    ctypes.CDLL(None).sigprocmask(0, s, None)\n    while True: pass",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nobody_gets_out_by_what_is_wider(hasty, outside, name):
    """No file, no process, no thread is left over and the next program is judged rightly, however this one ends."""
    code = f"import numpy as np\ndef f(x):\n    {HOSTILE[name]}\n"
    assert assault(hasty, code, "error|violation|crash|exit|timeout", 731, outside)[0] == "survived"
