"""verify: the judge beside other ways to run a program; accidents; a soak."""
import mmap
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.common import ratio, show, take_turns
from verifier import Job, Sandbox

# NUMBER is another one in every program.
TRIVIAL = "def f(x):\n    return x + NUMBER"
LOOP = "def f(x):\n    while True: pass"
TRAINER = f"""import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from verifier import Job, Sandbox
judge = Sandbox(workers=2, cpu_s=20, wall_s=30)
print(*[server.process.pid for server in judge.servers], flush=True)
judge.run([Job({LOOP!r}, ("1",))] * 2)
"""
# program, input, whether it must be deterministic, what the verdict has to be: canonical text, SUM for 3 +
# number, or the beginning of the error
SOAK = [
    (TRIVIAL, "3", False, "SUM"),
    (TRIVIAL, "3", True, "SUM"),
    ("def f(x): return {NUMBER: (x, 'a')}", "[3]", True, '{"d":[[NUMBER,{"t":[[3],"a"]}]]}'),
    ("import math\ndef f(*a): return [math.sqrt(4), NUMBER]", "", False, "[2.0,NUMBER]"),
    ("def f(x): return x / 0 * NUMBER", "3", False, "error: Zero"),
    ("def f(x) return NUMBER", "3", False, "error: Syntax"),
    ("def f(x): return NUMBER", "x", False, "not a literal"),
    ("import os\ndef f(x): os._exit(NUMBER)", "3", False, "exit"),
    ("import os\ndef f(x): return os.fork() + NUMBER", "3", False, "violation"),
    ("import ctypes\ndef f(x): return ctypes.memset(8, NUMBER, 8)", "3", False, "crash"),
    ("import os\ndef f(x): return os.write(3, b'=NUMBER\\n')", "3", False, "malformed"),
    ("def f(x): return 'x' * (10**6 + NUMBER)", "3", True, "too big"),
    ("def f(x): return id(f) + NUMBER", "3", True, "nondeterministic"),
    ("def f(x): return len(bytes(10**10 + NUMBER))", "3", False, "error: Memory"),
    ("def f(x): return f, NUMBER", "3", True, "unsupported"),
    ("import os\ndef f(x): return open('/etc/passwd'), NUMBER", "3", False, "error: Permission")]
SLOW = ("def f(x):\n    while NUMBER >= 0: pass", "3", False, "timeout")          # one in fifty


def numbered(text, i):
    """A program or an expectation with its number."""
    return text.replace("NUMBER", str(i))


# ---- ways to run a program --------------------------------------------------------------------------------

def cpu_of_servers(judge):
    """CPU seconds that the judge's fork servers have used, without their children."""
    files = [Path(f"/proc/{server.process.pid}/schedstat") for server in judge.servers]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def cost(judge, n, k=1):
    """Judges n trivial programs with k inputs each -> (wall seconds, CPU seconds of all processes)."""
    jobs = [Job(numbered(TRIVIAL, i), tuple(map(str, range(k)))) for i in range(n)]
    start, cpu = time.perf_counter(), time.process_time() + cpu_of_servers(judge)
    verdicts = judge.run(jobs)
    wall, cpu = time.perf_counter() - start, time.process_time() + cpu_of_servers(judge) - cpu
    for i, verdict in enumerate(verdicts):
        assert verdict.outputs == tuple(str(x + i) for x in range(k)), verdict
    return wall, cpu + sum(verdict.cpu_s for verdict in verdicts)


def cpu_with_children():
    """CPU seconds of this process and of its children that have ended."""
    import resource                                     # not above: there is none on Windows
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def cost_of_children(start_all, n):
    """The same for n children of this process."""
    start, cpu = time.perf_counter(), cpu_with_children()
    start_all(n)
    return time.perf_counter() - start, cpu_with_children() - cpu


def by_python(n):
    """Each program in a new interpreter: no walls, a starting price."""
    for i in range(n):
        program = f"{numbered(TRIVIAL, i)}\nprint(f(1))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True)
        assert int(done.stdout) == i + 1


def in_fork(code, pipe):
    """The child of by_fork."""
    names = {}
    exec(code, names)                                   # text of this file, not of a model
    pipe.send(names["f"](1))


def by_fork(n):
    """Each program in a fork of this process, which has torch and gigabytes: no walls."""
    import multiprocessing
    fork = multiprocessing.get_context("fork")
    for i in range(n):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=in_fork, args=(numbered(TRIVIAL, i), theirs))
        process.start()
        assert ours.recv() == i + 1
        process.join()
        ours.close()
        theirs.close()


def loop_latency(judge):
    """Seconds from asking to the verdict on an endless loop, beyond its CPU limit."""
    start = time.perf_counter()
    verdict, = judge.run([Job(LOOP, ("1",))])
    assert verdict.end == "timeout", verdict
    return time.perf_counter() - start - judge.cpu_s


# ---- soak and accidents -----------------------------------------------------------------------------------

def held(judge):
    """(MB of memory of this process and the fork servers, open descriptors of this process)."""
    pids = ["self", *(server.process.pid for server in judge.servers)]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * mmap.PAGESIZE / 2**20, len(os.listdir("/proc/self/fd"))


def is_right(verdict, want, i):
    """Whether a verdict of the soak's program i is the wanted one."""
    want = str(i + 3) if want == "SUM" else numbered(want, i)
    output, error = verdict.outputs[0], verdict.errors[0]
    return output == want if error is None else error.startswith(want)


def soak(n):
    """n programs of all kinds -> figures, growth since the first tenth; wrong verdicts are printed."""
    wrong, seen, start, first = 0, 0, time.perf_counter(), None
    with Sandbox(workers=2, cpu_s=0.1) as judge:
        while seen < n:
            numbers = range(seen, min(n, seen + 200))
            programs = [SLOW if i % 50 == 7 else SOAK[i % len(SOAK)] for i in numbers]
            jobs = []
            for i, (code, given, deterministic, _) in zip(numbers, programs):
                jobs.append(Job(numbered(code, i), (given,), deterministic=deterministic))
            for i, program, verdict in zip(numbers, programs, judge.run(jobs)):
                if not is_right(verdict, program[3], i):
                    print(f"wrong: wanted {program[3]}, got {verdict}")
                    wrong += 1
            seen = numbers.stop
            if first is None and seen >= n / 10:
                first = held(judge)
        last = held(judge)
    return dict(soak=n, wrong=wrong, soak_s=round(time.perf_counter() - start, 1), replaced=judge.replaced,
                growth_mb=round(last[0] - first[0], 2), growth_fds=last[1] - first[1])


def state(pid):
    """State letter and parent of a process; Z, a dead one, where there is none."""
    try:
        return Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return "Z", ""


def accidents():
    """Kills a fork server, stops another, kills a trainer.

    -> seconds to the right verdict, processes of the trainer's family, and how many of them lived on.
    """
    found = {}
    with Sandbox(workers=1, wall_s=0.5) as judge:
        for number in signal.SIGKILL, signal.SIGSTOP:
            os.kill(judge.servers[0].process.pid, number)
            start = time.perf_counter()
            assert judge.run([Job(numbered(TRIVIAL, 1), ("1",))])[0].outputs == ("2",)
            found[f"after_{number.name.lower()}_s"] = round(time.perf_counter() - start, 2)
        assert judge.replaced == 2
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE)
    family = set(trainer.stdout.readline().decode().split())
    time.sleep(0.5)                                     # its two programs are running now
    for _ in range(2):
        family |= {path.name for path in Path("/proc").glob("[0-9]*") if state(path.name)[1] in family}
    trainer.kill()
    trainer.wait()
    time.sleep(1)
    alive = [pid for pid in family if state(pid)[0] != "Z"]
    return dict(found, family=len(family), alive=len(alive))


# ---- the command ------------------------------------------------------------------------------------------

def median(values, digits=None):
    """The median of the repeats, rounded."""
    return round(statistics.median(values), digits)


def verify(args):
    """The judge: throughput, processor time of three ways, latency, accidents, a soak if asked for."""
    import torch
    ballast = torch.ones(int(args.gigabytes * 2**28))   # what a trainer holds, touched
    units = {"2 workers": args.n, "4 workers": args.n, "2 workers, 8 inputs": args.n // 4 * 8,
             "python -c": 20, "fork of the trainer": 20}
    with Sandbox(workers=2) as two, Sandbox(workers=4) as four:
        ways = {"2 workers": lambda: cost(two, args.n),
                "4 workers": lambda: cost(four, args.n),
                "2 workers, 8 inputs": lambda: cost(two, args.n // 4, 8),
                "python -c": lambda: cost_of_children(by_python, 20),
                "fork of the trainer": lambda: cost_of_children(by_fork, 20),
                "endless loop": lambda: loop_latency(two)}
        for judge in two, four:
            cost(judge, 50)                             # warm
        seen = take_turns(ways, args.repeats)
        tier = two.tier
    rate = {name: [n / wall for wall, _ in seen[name]] for name, n in units.items()}
    cpu = {name: [used / n * 1e3 for _, used in seen[name]] for name, n in units.items()}
    show([(name, "per s", values) for name, values in rate.items()])
    show([(name, "CPU ms", values) for name, values in cpu.items()])
    show([("endless loop: verdict after its CPU limit", "s", seen["endless loop"])])
    best = max("2 workers", "4 workers", key=lambda name: median(rate[name]))
    ours = cpu["2 workers"]
    figures = dict(tier=tier, trainer_gb=round(ballast.nbytes / 2**30, 1), load=round(os.getloadavg()[0], 1),
                   repeats=args.repeats, programs_per_s=median(rate[best]),
                   evaluations_per_s=median(rate["2 workers, 8 inputs"]), cpu_ms=median(ours, 2),
                   loop_late_s=round(max(seen["endless loop"]), 3),
                   x_cpu_python_c=ratio(cpu["python -c"], ours),
                   x_cpu_fork=ratio(cpu["fork of the trainer"], ours),
                   x_rate_python_c=ratio(rate[best], rate["python -c"]),
                   x_rate_fork=ratio(rate[best], rate["fork of the trainer"]))
    figures.update(accidents())
    if args.soak:
        figures.update(soak(args.soak))
    return figures


def verify_flags(parser):
    """The flags of verify."""
    parser.add_argument("--n", type=int, default=400, help="programs per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.0,
                        help="memory that this process touches first, as a trainer does")
    parser.add_argument("--soak", type=int, default=0, help="programs of the soak")


COMMANDS = {"verify": (verify, verify_flags)}
