"""The verifier: runs programs that a model wrote and reports the values they return.

    python verifier.py --self-check          print the tier, the layers and what each canary program met

    trainer (torch, secrets, expected answers)  this process: it reads bytes and checks them (scheduler.py)
      |  starts sandbox/fork_server.py: a control socket, a file for the job and one for the result
      +-- fork server (library preloaded)       three per worker, of three hash seeds; reads no job, no result
            |  forks once per program
            +-- child: reads its job, walls itself in, runs it, writes canonical values, dies

docs/verifier.md says what it promises and what not. What a program reports is only a claim about its own
return values. The trainer takes it if it is canonical text byte for byte. How the program ended is what the
kernel says.

The first wall is a seccomp allow-list of 17 system calls. The second one is put up where the system permits:
namespaces, an empty root, a dropped user. The tier is "full" with both and "no namespaces" with the first
alone. Canary programs are run through the normal path when a sandbox starts. If one gets past the walls, or
if there is no seccomp, the sandbox refuses to start; the format `micro` alone goes on, without a fork
(sandbox/portable.py).
"""
import json
import os
import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec

from common import UserError, leave, parser_of
from sandbox import portable
from sandbox.profiles import PROFILES
from sandbox.scheduler import Case, Scheduler

FILES_OF_A_WORKER = 9               # three fork servers, of each a socket and two files


@dataclass(frozen=True)
class Job:
    """Holds a program and its inputs. An input is what stands between the parentheses of a call: literals, as
    in "[1, 2], 3"; "" is no argument.

    entry: the function that is called. With None each input is the standard input of the whole program, in a
    child of its own, and the value is what the program prints (profile "eval" alone).
    deterministic: also demand that every input gives one value in two or three interpreters, in any order,
    once, twice or five times. Two calls share one CPU limit, so that an accepted task does not meet the limit
    by chance later.
    give_up: do not run the inputs behind one that ended its child.
    cpu_s: the job's own CPU limit; 0 is the sandbox's.
    """
    code: str
    inputs: tuple[str, ...]
    entry: str | None = "f"
    deterministic: bool = False
    give_up: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Says how a job went: each input has either a canonical text in outputs or a short printable reason in
    errors. end: "ok" | "timeout" | "killed" | "violation" | "crash" | "exit" | "malformed" | "too big" |
    "sandbox failure"."""
    end: str
    outputs: tuple
    errors: tuple


class Verifier(AbstractContextManager):
    """Runs programs: a Sandbox or, where its walls cannot be had, a PortableVerifier. `run` takes Jobs and
    returns Verdicts; tier and report say what protects. Leaving its `with` closes it."""

    def close(self) -> None:
        """Frees what a verifier holds; here nothing."""

    def __exit__(self, *exc: object) -> None:
        self.close()


class Sandbox(Verifier):
    """Runs jobs on `workers` processor cores at once. 0 workers stands for half of the cores, at least two,
    as far as descriptors suffice (`ulimit -n`).

    profile: what programs may import and use, "train" or "eval" (profiles.py). limits: values for the
    profile's cpu_s, wall_s or mem_mb. without: layers to leave out ("seccomp", "namespaces"), for tests of
    the tiers. Raises UserError where it cannot protect.
    """

    def __init__(self, workers: int = 0, without: tuple[str, ...] = (), profile: str = "train",
                 **limits: float):
        limits = replace(PROFILES[profile], **limits)
        if sys.platform != "linux":
            raise UserError("The sandbox for model code needs Linux: use a Linux container (.devcontainer "
                             "describes one) or, on Windows, WSL2.")
        options = dict(profile=profile, mem_mb=limits.mem_mb, without=dict.fromkeys(without, "left out"),
                       packages_from=folder_of(limits.packages))
        n_files = os.sysconf("SC_OPEN_MAX") // 2        # the other half is left for the trainer
        workers = workers or max(2, min((os.cpu_count() or 1) // 2, n_files // FILES_OF_A_WORKER))
        self.scheduler = Scheduler(workers, limits, options)
        self.lock = threading.Lock()
        fd = 0
        while fd < 3:                               # a trainer without standard streams hands out no 0, 1, 2
            fd = os.open(os.devnull, os.O_RDWR)
        os.close(fd)
        try:
            self.report = self.scheduler.open()
            self.tier = self.report["tier"] = self.find_tier()
        except BaseException:
            self.close()
            raise

    def send_canaries(self) -> dict[str, str]:
        """Runs harmless attacks through the normal path and returns what each met, by its name."""
        attacks = Job(CANARY, tuple(map(repr, CANARIES.values())))
        verdict, loop = self.run([attacks, Job("def f():\n while True: pass", ("",), cpu_s=0.05)])
        met = {}
        for name, output, error in zip(CANARIES, verdict.outputs, verdict.errors):
            met[name] = json.loads(output) if output else error
        return met | {"endless loop": "refused: timeout" if loop.end == "timeout" else loop.end}

    def find_tier(self) -> str:
        """Returns the tier, by the layers and by what the canaries meet. Raises UserError where one gets
        past."""
        layers = self.report
        holes = []
        for name in REQUIRED:
            if layers.get(name) != "ok":
                holes.append(f"{name} ({layers.get(name)})")
        if not holes:
            verdict, = self.run([Job("def f(x): return {x: (x,)}", ("2",), deterministic=True)])
            if verdict.outputs != ('{"d":[[2,{"t":[2]}]]}',):
                raise UserError("no program runs in this sandbox (does the kernel permit seccomp filters?): "
                                f"{layers}")
            layers["canaries"] = self.send_canaries()
            for name, how in layers["canaries"].items():
                if not how.startswith(("refused", "violation")):
                    holes.append(f"{name} ({how})")
        if holes:
            raise UserError("The sandbox refuses to run model code here, because a program could get past "
                             f"it: {'; '.join(holes)}. Use Linux on x86-64 or aarch64 with seccomp.")
        return "full" if layers["empty_root"] == "ok" else "no namespaces"

    def run(self, jobs: list[Job]) -> list[Verdict]:
        """Returns the jobs' verdicts, in order. Never raises for anything that a program does. If a child
        ends before it has answered all of its inputs, the others run again, each in a child of its own."""
        with self.lock:
            return [conclude(case) for case in self.scheduler.work_off(jobs)]

    def close(self) -> None:
        """Kills all fork servers."""
        self.scheduler.close()


def folder_of(packages: tuple[str, ...]) -> str:
    """Returns the folder in which this interpreter finds the first of some packages, or "" if it has none."""
    if not packages:
        return ""
    found = find_spec(packages[0])
    if found is None:
        return ""
    return os.path.dirname(os.path.dirname(os.path.abspath(found.origin)))


class PortableVerifier(Verifier):
    """Does what Sandbox does for programs of the micro prompt format alone, wherever Python runs. portable.py
    interprets them in this process, so that there is nothing to wall in."""
    tier = "portable"

    def __init__(self, why: str = ""):
        self.report = dict(tier=self.tier, why=why)

    def run(self, jobs: list[Job]) -> list[Verdict]:
        """Returns the jobs' verdicts, in order. Each program runs once, because the language has no
        chance."""
        return [self.run_one(job) for job in jobs]

    def run_one(self, job: Job) -> Verdict:
        """Returns the verdict on one job."""
        case = Case(job)
        end = "ok"
        for i, given in enumerate(job.inputs):
            claim = None, "not run"
            if end == "ok" or not job.give_up:
                end, *claim = portable.run(job.code, job.entry, given)
            case.seen[0][i] = end, [claim]
        return conclude(case)


def open_sandbox(prompt_format: str, workers: int = 0) -> Verifier:
    """Returns the verifier for a prompt format: a Sandbox if its walls can be had, else a PortableVerifier.
    Raises UserError if this machine has none for the format."""
    try:
        return Sandbox(workers)
    except UserError as error:
        if prompt_format != "micro":
            raise
        return PortableVerifier(str(error))


def conclude(case: Case) -> Verdict:
    """Returns the Verdict on what was seen of a job. case.seen[pass][input] is (end, claims), with a claim
    (output, error) of each call: a value's text and None, or None and a reason."""
    outputs, errors, ends = [], [], []
    for i in range(len(case.job.inputs)):
        end, claims = case.seen[0][i]
        output, error = None, end
        if claims:
            output, error = claims[0]
        ends.append(end)
        # What a later pass saw can only take away from what the first one claims.
        for seen in case.seen[1:]:
            end_again, again = seen.get(i, ("ok", []))
            ends.append(end_again)
            if end_again in ("timeout", "killed", "sandbox failure") and error is None:
                output, error = None, end_again
            # two reasons may differ: many an error names an address
            elif end_again != "ok" or any(value != output for value, _ in again):
                output, error = None, "nondeterministic"
        outputs.append(output)
        errors.append(error)
    first_bad = next((end for end in ends if end != "ok"), "ok")
    return Verdict(first_bad, tuple(outputs), tuple(errors))


# name: what a program must not get done; each is refused with an exception or kills the program
CANARIES = {"open a file": "open('/etc/passwd')",
            "write a file": "open('/tmp/canary', 'w')",
            "list a folder": "os.listdir('/')",
            "open a socket": "check(libc.socket(1, 1, 0))",
            "fork": "os.fork() or os._exit(0)",
            "make a pipe": "os.pipe()",
            "become root": "os.setuid(0)",
            "take 8 GB": "bytearray(1 << 33)",
            "see the environment": "os.environ['LC_ALL']",
            "start a program": "os.execv('/bin/true', ['true'])",
            "signal the parent": "os.kill(os.getppid(), 0)",
            "call the kernel": "check(libc.unshare(0))"}
CANARY = """import ctypes, os
libc = ctypes.CDLL(None)
def check(result):
    if result < 0:
        raise PermissionError
def f(attack):
    try:
        eval(attack)
    except BaseException as e:
        return "refused: " + type(e).__name__
    return "ALLOWED"
"""
REQUIRED = "seccomp", "no_new_privs", "limit_as", "limit_core", "limit_fsize"


def main() -> None:
    """Runs the command line. Raises UserError where the sandbox cannot protect."""
    parser = parser_of("verifier.py", "The verifier checks itself; exit code 0: the sandbox protects.")
    parser.add_argument("--self-check", action="store_true", required=True,
                        help="print the tier, the layers and the canaries")
    parser.add_argument("--without", nargs="*", default=(), help="layers to leave out: namespaces seccomp")
    args = parser.parse_args()
    with Sandbox(without=args.without) as sandbox:
        print(f"tier: {sandbox.tier}")
        for name, met in {**sandbox.report["canaries"], **sandbox.report}.items():
            if type(met) is str and name != "tier":
                print(f"{name:22} {met}")


if __name__ == "__main__":
    leave("verifier.py", main)
