"""verify: the judge beside other ways to run a program; accidents; a soak."""
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.common import ratio, show, take_turns

TRIVIAL = "def f(x):\n    return x + %d"
LOOP = "def f(x):\n    while True: pass"
TRAINER = """import sys
sys.path.insert(0, %r)
from verifier import Job, Sandbox
judge = Sandbox(workers=2, cpu_s=20, wall_s=30)
print(*[zygote.process.pid for zygote in judge.zygotes], flush=True)
judge.run([Job(%r, ("1",))] * 2)
""" % (str(Path(__file__).resolve().parents[1]), LOOP)
# program, input, whether it must be deterministic, what the verdict has to be: canonical text, "=" for 3 + number, or the
# beginning of the error
SOAK = [
    (TRIVIAL, "3", False, "="), (TRIVIAL, "3", True, "="),
    ("def f(x): return {%d: (x, 'a')}", "[3]", True, '{"d":[[%d,{"t":[[3],"a"]}]]}'),
    ("import math\ndef f(*a): return [math.sqrt(4), %d]", "", False, "[2.0,%d]"),
    ("def f(x): return x / 0 * %d", "3", False, "error: Zero"), ("def f(x) return %d", "3", False, "error: Syntax"),
    ("def f(x): return %d", "x", False, "not a literal"), ("import os\ndef f(x): os._exit(%d)", "3", False, "exit"),
    ("import os\ndef f(x): return os.fork() + %d", "3", False, "violation"),
    ("import ctypes\ndef f(x): return ctypes.memset(8, %d, 8)", "3", False, "crash"),
    ("import os\ndef f(x): return os.write(3, b'=%d\\n')", "3", False, "malformed"),
    ("def f(x): return 'x' * (10**6 + %d)", "3", True, "too big"), ("def f(x): return id(f) + %d", "3", True, "nondeterministic"),
    ("def f(x): return len(bytes(10**10 + %d))", "3", False, "error: Memory"),
    ("def f(x): return f, %d", "3", True, "unsupported"),
    ("import os\ndef f(x): return open('/etc/passwd'), %d", "3", False, "error: Permission")]
SLOW = ("def f(x):\n    while %d >= 0: pass", "3", False, "timeout")         # one in fifty


def cost(judge, n, k=1):
    "judges n distinct trivial programs with k inputs each -> (wall seconds, CPU seconds of all processes)"
    from verifier import Job
    jobs = [Job(TRIVIAL % i, tuple(map(str, range(k)))) for i in range(n)]
    of_zygotes = lambda: sum(int(Path("/proc/%d/schedstat" % z.process.pid).read_text().split()[0]) for z in judge.zygotes) / 1e9
    start, cpu = time.perf_counter(), time.process_time() + of_zygotes()
    verdicts = judge.run(jobs)
    wall, cpu = time.perf_counter() - start, time.process_time() + of_zygotes() - cpu + sum(v.cpu_s for v in verdicts)
    assert [v.outputs for v in verdicts] == [tuple(str(x + i) for x in range(k)) for i in range(n)]
    return wall, cpu


def cost_of_children(start_all, n):
    "the same for n children of this process"
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) + time.process_time()
    start, cpu = time.perf_counter(), used()
    start_all(n)
    return time.perf_counter() - start, used() - cpu


def by_python(n):
    "each program in a new interpreter: no walls, a starting price"
    for i in range(n):
        done = subprocess.run([sys.executable, "-c", TRIVIAL % i + "\nprint(f(1))"], capture_output=True)
        assert int(done.stdout) == i + 1


def in_fork(code, pipe):
    names = {}
    exec(code, names)                                                 # text of this file, not of a model
    pipe.send(names["f"](1))


def by_fork(n):
    "each program in a fork of this process, which has torch and gigabytes: no walls"
    import multiprocessing
    fork = multiprocessing.get_context("fork")
    for i in range(n):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=in_fork, args=(TRIVIAL % i, theirs))
        process.start()
        assert ours.recv() == i + 1
        process.join()
        for end in ours, theirs: end.close()


def loop_latency(judge):
    "seconds from asking to the verdict on an endless loop, beyond its CPU limit"
    from verifier import Job
    start = time.perf_counter()
    verdict, = judge.run([Job(LOOP, ("1",))])
    assert verdict.end == "timeout", verdict
    return time.perf_counter() - start - judge.cpu_s


def soak(n):
    "n programs of all kinds -> figures; wrong verdicts are printed. Growth: between the first tenth and the end"
    from verifier import Job, Sandbox
    wrong, seen, start, first = 0, 0, time.perf_counter(), None
    with Sandbox(workers=2, cpu_s=0.1) as judge:
        def held():
            pids = ["self"] + [str(zygote.process.pid) for zygote in judge.zygotes]
            pages = [int(Path("/proc/%s/statm" % pid).read_text().split()[1]) for pid in pids]
            return sum(pages) * resource.getpagesize() / 2**20, len(os.listdir("/proc/self/fd"))
        while seen < n:
            kinds = [SLOW if i % 50 == 7 else SOAK[i % len(SOAK)] for i in range(seen, min(n, seen + 200))]
            jobs = [Job(code % i, (given,), deterministic=det) for i, (code, given, det, _) in enumerate(kinds, seen)]
            for i, (kind, verdict) in enumerate(zip(kinds, judge.run(jobs)), seen):
                want = kind[3] % i if "%d" in kind[3] else str(i + 3) if kind[3] == "=" else kind[3]
                fine = verdict.outputs[0] == want if verdict.errors[0] is None else verdict.errors[0].startswith(want)
                if not fine: print("wrong: wanted %s, got %s" % (want, verdict))
                wrong += not fine
            seen += len(kinds)
            if first is None and seen >= n / 10: first = held()
        growth = [after - before for before, after in zip(first, held())]
        return dict(soak=n, wrong=wrong, soak_s=round(time.perf_counter() - start, 1), replaced=judge.replaced,
                    growth_mb=round(growth[0], 2), growth_fds=growth[1])


def state(pid):
    "state letter and parent of a process; Z, a dead one, where there is none"
    try: return Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[:2]
    except OSError: return "Z", ""


def accidents():
    "a zygote is killed, another one stopped, and a trainer killed -> seconds to the right verdict, processes that lived on"
    from verifier import Job, Sandbox
    found = {}
    with Sandbox(workers=1, wall_s=0.5) as judge:
        for name in "SIGKILL", "SIGSTOP":
            os.kill(judge.zygotes[0].process.pid, getattr(signal, name))
            start = time.perf_counter()
            assert judge.run([Job(TRIVIAL % 1, ("1",))])[0].outputs == ("2",)
            found["after_%s_s" % name.lower()] = round(time.perf_counter() - start, 2)
        assert judge.replaced == 2
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE)
    family = set(trainer.stdout.readline().decode().split())
    time.sleep(0.5)                                                   # its two programs are running now
    for _ in range(2): family |= {path.name for path in Path("/proc").glob("[0-9]*") if state(path.name)[1] in family}
    trainer.kill()
    trainer.wait()
    time.sleep(1)
    return dict(found, family=len(family), alive=sum(state(pid)[0] != "Z" for pid in family))


def verify(args):
    """The judge: throughput, processor time beside two other ways, latency, accidents, and a soak if asked for."""
    import torch
    from verifier import Sandbox
    ballast = torch.ones(int(args.gigabytes * 2**28))                 # what a trainer holds, touched
    with Sandbox(workers=2) as two, Sandbox(workers=4) as four:
        ways = {"2 workers": lambda: cost(two, args.n), "4 workers": lambda: cost(four, args.n),
                "2 workers, 8 inputs": lambda: cost(two, args.n // 4, 8), "python -c": lambda: cost_of_children(by_python, 20),
                "fork of the trainer": lambda: cost_of_children(by_fork, 20), "endless loop": lambda: loop_latency(two)}
        for judge in two, four: cost(judge, 50)                       # warm
        seen = take_turns(ways, args.repeats)
        tier = two.tier
    units = {"2 workers": args.n, "4 workers": args.n, "2 workers, 8 inputs": args.n // 4 * 8, "python -c": 20,
             "fork of the trainer": 20}
    rate = {name: [n / wall for wall, _ in seen[name]] for name, n in units.items()}
    cpu = {name: [used / n * 1e3 for _, used in seen[name]] for name, n in units.items()}
    show([(name, "per s", values) for name, values in rate.items()] + [(name, "CPU ms", values) for name, values in cpu.items()]
         + [("endless loop: verdict after its CPU limit", "s", seen["endless loop"])])
    median = lambda values, digits=None: round(statistics.median(values), digits)
    best, ours = max("2 workers", "4 workers", key=lambda name: median(rate[name])), cpu["2 workers"]
    figures = dict(tier=tier, trainer_gb=round(ballast.nbytes / 2**30, 1), load=round(os.getloadavg()[0], 1),
                   repeats=args.repeats,
                   programs_per_s=median(rate[best]), evaluations_per_s=median(rate["2 workers, 8 inputs"]),
                   cpu_ms=median(ours, 2), loop_late_s=round(max(seen["endless loop"]), 3),
                   x_cpu_python_c=ratio(cpu["python -c"], ours), x_cpu_fork=ratio(cpu["fork of the trainer"], ours),
                   x_rate_python_c=ratio(rate[best], rate["python -c"]),
                   x_rate_fork=ratio(rate[best], rate["fork of the trainer"]))
    figures.update(accidents())
    if args.soak: figures.update(soak(args.soak))
    return figures


def verify_flags(parser):
    parser.add_argument("--n", type=int, default=400, help="programs per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="memory that this process touches first, as a trainer does")
    parser.add_argument("--soak", type=int, default=0, help="programs of the soak")


COMMANDS = {"verify": (verify, verify_flags)}
