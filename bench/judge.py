"""verify: the verifier beside other ways to run a program."""
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.common import ratio, show, take_turns
from verifier import Job, Sandbox

PROGRAM = "def f(x):\n    return x + NUMBER"            # NUMBER is another one in every program
LOOP = "def f(x):\n    while True: pass"


def numbered(text: str, i: int) -> str:
    """A program, or what is expected of it, with its number."""
    return text.replace("NUMBER", str(i))


def cpu_of_servers(verifier: Sandbox) -> float:
    """CPU seconds that the verifier's fork servers have used, without their children."""
    files = [Path(f"/proc/{server.process.pid}/schedstat") for server in verifier.servers]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def cost(verifier: Sandbox, n: int, k: int = 1) -> tuple[float, float]:
    """Verify n trivial programs with k inputs each: wall seconds, CPU seconds of all processes."""
    jobs = [Job(numbered(PROGRAM, i), tuple(map(str, range(k)))) for i in range(n)]
    start, cpu = time.perf_counter(), time.process_time() + cpu_of_servers(verifier)
    verdicts = verifier.run(jobs)
    wall, cpu = time.perf_counter() - start, time.process_time() + cpu_of_servers(verifier) - cpu
    for i, verdict in enumerate(verdicts):
        assert verdict.outputs == tuple(str(x + i) for x in range(k)), verdict
    return wall, cpu + sum(verdict.cpu_s for verdict in verdicts)


def by_python(n: int) -> tuple[float, float]:
    """The same for each program in a new interpreter: no walls, a starting price."""
    import resource  # not above: there is none on Windows
    start = time.perf_counter()
    cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for i in range(n):
        program = f"{numbered(PROGRAM, i)}\nprint(f(1))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True)
        assert int(done.stdout) == i + 1
    return time.perf_counter() - start, sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - cpu


def loop_latency(verifier: Sandbox) -> float:
    """Seconds from asking to the verdict on an endless loop, beyond its CPU limit."""
    start = time.perf_counter()
    verdict, = verifier.run([Job(LOOP, ("1",))])
    assert verdict.end == "timeout", verdict
    return time.perf_counter() - start - verifier.cpu_s


def verify(args) -> dict:
    """The verifier: programs a second, processor time beside `python -c`, latency of an endless loop."""
    units = {"2 workers": args.n, "4 workers": args.n, "2 workers, 8 inputs": args.n // 4 * 8,
             "python -c": 20}
    with Sandbox(workers=2) as two, Sandbox(workers=4) as four:
        ways = {"2 workers": lambda: cost(two, args.n),
                "4 workers": lambda: cost(four, args.n),
                "2 workers, 8 inputs": lambda: cost(two, args.n // 4, 8),
                "python -c": lambda: by_python(20),
                "endless loop": lambda: loop_latency(two)}
        for verifier in two, four:
            cost(verifier, 50)                          # warm
        seen = take_turns(ways, args.repeats)
        tier = two.tier
    rate = {name: [n / wall for wall, _ in seen[name]] for name, n in units.items()}
    cpu = {name: [used / n * 1e3 for _, used in seen[name]] for name, n in units.items()}
    show([(name, "per s", values) for name, values in rate.items()])
    show([(name, "CPU ms", values) for name, values in cpu.items()])
    show([("endless loop: verdict after its CPU limit", "s", seen["endless loop"])])
    best = max("2 workers", "4 workers", key=lambda name: statistics.median(rate[name]))
    ours = cpu["2 workers"]
    return dict(tier=tier, load=round(os.getloadavg()[0], 1),
                programs_per_s=round(statistics.median(rate[best])),
                evaluations_per_s=round(statistics.median(rate["2 workers, 8 inputs"])),
                cpu_ms=round(statistics.median(ours), 2), loop_late_s=round(max(seen["endless loop"]), 3),
                x_cpu_python_c=ratio(cpu["python -c"], ours),
                x_rate_python_c=ratio(rate[best], rate["python -c"]))


def verify_flags(parser) -> None:
    """The flags of verify."""
    parser.add_argument("--n", type=int, default=400, help="programs per repeat")
    parser.add_argument("--repeats", type=int, default=5)


COMMANDS = {"verify": (verify, verify_flags)}
