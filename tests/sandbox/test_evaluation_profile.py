"""What only programs of benchmarks have: numpy, threads that run at once, the size of a file; and no way out through them."""
import os

import pytest
from cases import CPU_S, one
from siege import assault, battlefield

from verifier import Sandbox

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


@pytest.fixture(scope="module")
def hasty():
    """The profile of evaluation with the CPU limit of training."""
    with Sandbox(workers=1, profile="eval", cpu_s=CPU_S) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def outside():
    with battlefield() as outside:
        yield outside


def test_the_idioms_of_fast_programs_run(wide):
    """Deep recursion in a thread with a large stack, and standard input read by its size."""
    assert one(wide, DEEP, "9\n", "100000\n", entry=None, cpu_s=2).outputs == ('"9\\n"', '"100000\\n"')
    code = "import io, os\nlines = io.BytesIO(os.read(0, os.fstat(0).st_size))\nprint(int(lines.readline()) + int(lines.readline()))"
    assert one(wide, code, "1\n2\n", entry=None).outputs == ('"3\\n"',)


def test_numpy_is_there_with_all_that_it_imports_late(wide):
    code = ("import numpy as np, numpy.typing\ndef f(x):\n    half = np.linalg.inv(np.eye(2) * x) @ np.ones((2, 2))\n"
            "    return [half[0, 0], np.fft.fft([1, 2]).real.sum(), np.int64(x), np.bool_(True), np.polynomial.Polynomial([1, 1])(2), np.unique([3, 1, 1]).tolist()]")
    assert one(wide, code, "2").outputs == ("[0.5,2.0,2,true,3.0,[1,3]]",)
    draws = "import numpy as np\ndef f(x): return np.random.default_rng(x).random()"
    assert one(wide, draws, "1").outputs == ("0.5118216247002567",)
    assert one(wide, "import numpy as np\ndef f(x): return np.array([1, 2])").errors == ("unsupported: value of type ndarray",)


def test_threads_run_to_their_end_at_their_start(wide):
    code = """import threading
def f(x):
    told = []
    class Own(threading.Thread):
        def run(self):
            told.append(self.is_alive())
            raise KeyError
    own = Own()
    try:
        own.join()
    except RuntimeError:
        told.append("join")
    own.start()
    try:
        own.start()
    except RuntimeError:
        told.append("start")
    many = [threading.Thread(target=told.append, args=(i,), daemon=True) for i in range(3)]
    for thread in many:
        thread.start()
    for thread in many:
        thread.join(timeout=1)
    return told, own.is_alive(), threading.active_count()
"""
    assert one(wide, code).outputs == ('{"t":[["join",true,"start",0,1,2],false,1]}',)


def test_training_has_none_of_it(narrow):
    for code, error in (("import numpy", "ModuleNotFoundError"), ("import threading", "ModuleNotFoundError"), ("import os\nos.fstat(0)", "PermissionError")):
        assert one(narrow, f"{code}\ndef f(x): return x").errors[0].startswith(f"error: {error}"), code


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
    "the true fstat": "import os, posix\n    os.fstat = posix.fstat if posix.fstat is not os.fstat else None\n    return os.fstat(0).st_size",
    "memory by numpy": "return float(np.ones(1 << 33).sum())",
    "a stopped clock": "import ctypes\n    s = (ctypes.c_ulong * 16)(*[2 ** 64 - 1] * 16)\n    ctypes.CDLL(None).sigprocmask(0, s, None)\n    while True: pass",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nobody_gets_out_by_what_is_wider(hasty, outside, name):
    """No file, no process, no thread is left over and the next program is judged rightly, however this one ends."""
    code = f"import numpy as np\ndef f(x):\n    {HOSTILE[name]}\n"
    assert assault(hasty, code, "error|violation|crash|exit|timeout", 731, outside)[0] == "survived"
