"""What the sandbox, not the program, fails at: it is tried again, and then told apart from what programs do."""
import pytest
from cases import LOOP, one

from sandbox import scheduler
from verifier import Job, Sandbox


@pytest.fixture(scope="module")
def alone():
    """One worker in the wide profile, so that who fails is who works."""
    with Sandbox(workers=1, profile="eval", cpu_s=0.6, wall_s=2.0) as alone:
        yield alone


@pytest.mark.parametrize("job, output", [(Job(LOOP, ("1",)), "10"), (Job("print(int(input()) + 1)", ("7\n",), entry=None), '"8\\n"')])
def test_two_failures_are_not_seen_and_a_third_is_told(alone, monkeypatch, job, output):
    """Of the next n children nothing comes back, as of one whose walls cannot be put up."""
    real = scheduler.ForkServer.finish
    for n, wanted in (2, ("ok", (output,), (None,))), (3, ("sandbox failure", (None,), ("sandbox failure",))):
        left = iter(range(n))

        def finish(server):
            told = real(server)
            return told if next(left, None) is None else ("killed", b"")
        monkeypatch.setattr(scheduler.ForkServer, "finish", finish)
        verdict, = alone.run([job])
        assert (verdict.end, verdict.outputs, verdict.errors) == wanted


def test_a_program_that_says_nothing_did_begin(alone):
    for code, end in (("os._exit(111)", "exit"), ("os._exit(0)", "exit"), ("os.lseek(3, 0, 0)\nos._exit(111)", "exit"),
                      ("os.pwrite(3, b'', 0)\nos._exit(111)", "exit"), ("os.pwrite(3, b'x', 0)\nos._exit(0)", "malformed"),
                      ("os.write(3, b'\\n>\\n')\nos._exit(0)", "malformed"), ("try: os.ftruncate(3, 0)\nexcept OSError: pass\nos._exit(0)", "exit")):
        assert one(alone, f"import os\n{code}").end == end, code
