"""verifier: programs a second beside `python -c`."""
import argparse
import statistics
import subprocess
import sys
from functools import partial

from bench.workload import Case, Command, ratio, show, take_turns
from verifier import Job, Sandbox

PROGRAM = "def f(x):\n    return x + NUMBER"            # NUMBER is another one in every program


def verify_all(verifier: Sandbox, n: int) -> None:
    """Verify n trivial programs."""
    jobs = []
    for i in range(n):
        program = PROGRAM.replace("NUMBER", str(i))
        jobs.append(Job(program, ("1",)))
    for i, verdict in enumerate(verifier.run(jobs)):
        assert verdict.outputs == (str(i + 1),)


def run_all(n: int) -> None:
    """The same for each program in a new interpreter: no walls, a starting price."""
    for i in range(n):
        program = PROGRAM.replace("NUMBER", str(i)) + "\nprint(f(1))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True)
        assert int(done.stdout) == i + 1


def verify(args: argparse.Namespace) -> dict:
    """The verifier, two workers, beside `python -c`, one program after another."""
    few = args.n // 20
    with Sandbox(workers=2) as verifier:
        verify_all(verifier, 50)                        # warm
        ours = Case("verifier", partial(verify_all, verifier, args.n))
        theirs = Case("python -c", partial(run_all, few))
        seen = take_turns([ours, theirs], args.repeats)
    rates = []
    for case, n in ((ours, args.n), (theirs, few)):
        rate = [n / seconds for seconds in seen[case.name]]
        show(case.name, "per s", rate)
        rates.append(rate)
    per_s = statistics.median(rates[0])
    return dict(programs_per_s=round(per_s), x_python_c=ratio(*rates))


FLAGS = {
    "--n": dict(type=int, default=400, help="programs per repeat"),
    "--repeats": dict(type=int, default=5)}
COMMANDS = {"verifier": Command(verify, FLAGS)}
