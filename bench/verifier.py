"""verifier: programs a second beside `python -c`."""
import statistics
import subprocess
import sys

from bench.workload import ratio, show, take_turns, timed
from verifier import Job, Sandbox

PROGRAM = "def f(x):\n    return x + NUMBER"            # NUMBER is another one in every program


def verify_all(verifier: Sandbox, n: int) -> None:
    """Verify n trivial programs."""
    verdicts = verifier.run([Job(PROGRAM.replace("NUMBER", str(i)), ("1",)) for i in range(n)])
    assert [verdict.outputs for verdict in verdicts] == [(str(1 + i),) for i in range(n)]


def run_all(n: int) -> None:
    """The same for each program in a new interpreter: no walls, a starting price."""
    for i in range(n):
        program = PROGRAM.replace("NUMBER", str(i)) + "\nprint(f(1))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True)
        assert int(done.stdout) == i + 1


def verify(args) -> dict:
    """The verifier, two workers, beside `python -c`, one program after another."""
    few, rates = args.n // 20, {}
    with Sandbox(workers=2) as verifier:
        verify_all(verifier, 50)                        # warm
        seen = take_turns({"verifier": timed(lambda: verify_all(verifier, args.n)),
                           "python -c": timed(lambda: run_all(few))}, args.repeats)
    for (name, seconds), n in zip(seen.items(), (args.n, few)):
        rates[name] = [n / s for s in seconds]
        show(name, "per s", rates[name])
    per_s = round(statistics.median(rates["verifier"]))
    return dict(programs_per_s=per_s, x_python_c=ratio(*rates.values()))


COMMANDS = {"verifier": (verify, {"--n": dict(type=int, default=400, help="programs per repeat"),
                                  "--repeats": dict(type=int, default=5)})}
