"""verifier: programs a second beside `python -c`, and beside the interpreter that needs no fork."""
import argparse
import statistics
import subprocess
import sys
from functools import partial

from bench.workload import ratio, show, take_turns
from micro.programs import fresh_program
from verifier import Job, PortableVerifier, Sandbox

PROGRAM = "def f(x):\n    return x + {}"        # another number in every program


def verify_all(verifier: Sandbox, n: int) -> None:
    """Verify n trivial programs."""
    jobs = []
    for i in range(n):
        jobs.append(Job(PROGRAM.format(i), ("1",)))
    for i, verdict in enumerate(verifier.run(jobs)):
        assert verdict.outputs == (str(i + 1),)


def run_all(n: int) -> None:
    """The same for each program in a new interpreter: no walls, a starting price."""
    for i in range(n):
        program = PROGRAM.format(i) + "\nprint(f(1))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True)
        assert int(done.stdout) == i + 1


def fresh_jobs(n: int, deterministic: bool) -> list[Job]:
    """Programs of the micro prompt format, each with an input; deterministic: as a teacher's proposals."""
    jobs = []
    for i in range(n):
        program, inputs = fresh_program(f"bench/{i}")
        jobs.append(Job(program, inputs, deterministic=deterministic))
    return jobs


def verify(args: argparse.Namespace) -> dict:
    """The verifier, two workers, beside `python -c`, one program after another; and, on programs of the micro
    prompt format, beside the portable one in this process."""
    few = args.n // 20
    attempts = fresh_jobs(args.n, deterministic=False)
    proposals = fresh_jobs(args.n, deterministic=True)
    portable = PortableVerifier()
    with Sandbox(workers=2) as verifier:
        verify_all(verifier, 50)                        # warm
        cases = {
            "verifier": partial(verify_all, verifier, args.n),
            "python -c": partial(run_all, few),
            "attempts": partial(verifier.run, attempts),
            "attempts, portable": partial(portable.run, attempts),
            "proposals": partial(verifier.run, proposals),
            "proposals, portable": partial(portable.run, proposals)}
        seen = take_turns(cases, args.repeats)
    n_programs = dict.fromkeys(cases, args.n) | {"python -c": few}
    rates = {}
    for name, n in n_programs.items():
        rates[name] = [n / seconds for seconds in seen[name]]
        show(name, "per s", rates[name])
    return dict(
        programs_per_s=round(statistics.median(rates["verifier"])),
        x_python_c=ratio(rates["verifier"], rates["python -c"]),
        x_portable_attempts=ratio(rates["attempts, portable"], rates["attempts"]),
        x_portable_proposals=ratio(rates["proposals, portable"], rates["proposals"]))


FLAGS = {
    "--n": dict(type=int, default=400, help="programs per repeat"),
    "--repeats": dict(type=int, default=5),
}
