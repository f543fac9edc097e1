"""What the tests of the sandbox share: ordinary programs, attacks, and how one job is judged."""
from verifier import Job

CPU_S = 0.25                                            # of the fixture `narrow`
HONEST = Job("import math\ndef f(x): return sorted(x), math.sqrt(4), len(x)", ("[2, 1]",))
LOOP = "def f(x):\n if x == 2:\n  while True: pass\n return x * 10"

def one(narrow, code, *inputs, **options):
    """The verdict on one program."""
    verdict, = narrow.run([Job(code, inputs or ("3",), **options)])
    assert len(verdict.outputs) == len(verdict.errors) == len(inputs or "3")
    assert all((o is None) != (e is None) for o, e in zip(verdict.outputs, verdict.errors))
    return verdict
