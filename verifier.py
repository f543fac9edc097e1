"""
verifier.py -- the judge: runs programs that a model wrote and reports the values they return.

    python verifier.py --self-check          print the tier, the layers and what each canary program met
    python verifier.py --siege DIR           run a folder of hostile programs, one line each, a JSON line last
                                             (both take --weak and --without namespaces,seccomp)

    trainer (torch, secrets, expected answers)      this process: it only reads bytes and checks them
      |  execs zygote.py; control socket with fixed-size structs, a file for the job, a file for the result
      +-- zygote (one thread, library preloaded)    two per worker, hash seeds 0 and 1; reads no job and no result
            |  forks once per program
            +-- child: reads its job, walls itself in, runs it, writes canonical values, dies

Promises. A program cannot open, create or list files, reach a network, start or signal processes, see another task or
the trainer's memory, environment and expected answers, outlive its verdict, use more than its CPU time, memory and
result size, or end as anything but a named Verdict. What it reports is only a claim about its own return values, taken
where it is canonical text byte for byte; how it ended is what the kernel says. `Sandbox.run` never raises for it.

Layers. Fresh exec: no memory, environment or descriptor of the trainer gets in. Seccomp allow-list, the wall: 17 system
calls are left, the rest is refused or kills. Namespaces, empty root, dropped user and capabilities: a second wall,
should the first have a hole; best effort. Limits: CPU timer, address space, file size, and the zygote's wall clock.
Canonical text: nothing that a program made is unpickled, evaluated, or compared by its own methods. Two hash seeds and
address layouts: deterministic jobs run in two interpreters, the second time in reverse and twice over.

Tiers. "full"; "no namespaces" (the wall without the second one); "weak" (no seccomp: not Linux, other processors; for
development with programs you trust, only with weak=True). Canary programs through the normal path decide, not return
codes; where they get past, the sandbox refuses to start. Not promised: anything in "weak", bugs of the kernel behind
those calls, side channels such as timing, and that two runs show every dependence on hash order or a clock of seconds.
"""
import collections, json, marshal, os, re, select, signal, socket, sys, time
from dataclasses import dataclass, field

from values import decode, encode
from zygote import DONE, GO, PROFILES

SEEDS = 158, 299        # hash seeds of the twins: of 1,000, the two that order small sets of letters and words most differently


# ---- trainer side -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Job:
    """A program and argument texts as between the parentheses of a call ("[1, 2], 3"; "" = none), literals only.
    entry: the function that is called; None: each input is the standard input of the whole program, in a child of its own, and
    what it prints is the value. deterministic: also demand that every input gives one value in two interpreters, in any order,
    once or twice (both calls within one CPU limit, so that a task which is accepted does not meet the limit by chance later).
    give_up: after an input that ended its child, do not run the others. cpu_s: its own CPU limit, 0 for the sandbox's."""
    code: str
    inputs: tuple[str, ...]
    entry: str | None = "f"
    deterministic: bool = False
    give_up: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """end: "ok" | "timeout" | "killed" | "violation" | "crash" | "exit" | "malformed" | "too big" | "sandbox failure";
    per input either the canonical text of the value in outputs or a short printable reason in errors; CPU seconds."""
    end: str
    outputs: tuple
    errors: tuple
    cpu_s: float


@dataclass
class Case:
    "one job under judgement: per pass, what was seen of each input: (end, [(mark, text), ...])"
    job: Job
    seen: tuple = field(default_factory=lambda: ({}, {}))
    open: int = 0               # runs that are queued or under way
    cpu_s: float = 0.0
    end: str = "ok"             # only of a job without inputs


@dataclass
class Run:
    "one child: pass 0 takes each input in order once, pass 1 backwards and twice, under another hash seed"
    case: Case
    which: int
    order: tuple
    tries: int = 0


def scratch_file():
    "descriptor of a file without a name"
    if hasattr(os, "memfd_create"): return os.memfd_create("sandbox")
    import tempfile
    with tempfile.TemporaryFile() as file: return os.dup(file.fileno())


class Zygote:
    "the trainer's end of one zygote"

    def __init__(self, which, options):
        import subprocess                                             # not above: it would bring threading into the zygote
        self.which, self.options, self.run, self.deadline = which, options, None, 0.0
        self.job, self.result = scratch_file(), scratch_file()
        self.control, theirs = socket.socketpair()
        fds = [self.result, self.job, theirs.fileno()]                # the order of the slots in zygote.py
        if hasattr(os, "pidfd_open"): fds.append(os.pidfd_open(os.getpid()))
        environment = dict(PYTHONHASHSEED=str(SEEDS[which]), LD_BIND_NOW="1", LC_ALL="C.UTF-8",
                           NANOPOPULORA_SANDBOX=json.dumps(dict(options, fds=fds, which=which)))
        file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
        self.process = subprocess.Popen([sys.executable, "-sSB", file], env=environment, cwd="/", pass_fds=fds,
                                        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        theirs.close()
        for fd in fds[3:]: os.close(fd)

    def ready(self):
        "waits for it to be locked up -> its layers"
        self.control.settimeout(30)
        text = b""
        while not text.endswith(b"\n"):
            part = self.control.recv(1 << 16)
            if not part: raise RuntimeError("the sandbox cannot start %s: %s" % (sys.executable, text.decode() or "it ended"))
            text += part
        return json.loads(text)

    def start(self, run, cpu_s, wall_s):
        "puts a run into the shared job file, its input first, and tells the zygote to fork a child for it"
        job = run.case.job
        given = b"" if job.entry is not None else job.inputs[run.order[0]].encode("utf-8", "replace")
        body = marshal.dumps((job.code, job.entry, job.inputs if job.entry is not None else (), run.order))
        os.ftruncate(self.result, 0)
        os.lseek(self.result, 0, os.SEEK_SET)
        os.pwrite(self.job, given + body, 0)
        self.run, self.deadline = run, time.monotonic() + wall_s + 2
        try: self.control.sendall(GO.pack(len(given), len(body), int(cpu_s * 1000), int(wall_s * 1000)))
        except OSError: pass                                          # it is dead, which poll() reports

    def finish(self):
        "-> (how the kernel says it ended, CPU seconds, what it claims); OSError where the zygote is dead"
        message = self.control.recv(DONE.size)
        if len(message) != DONE.size: raise OSError("the zygote is dead")
        status, late, cpu_us = DONE.unpack(message)
        names = {signal.SIGPROF: "timeout", signal.SIGKILL: "killed", signal.SIGSYS: "violation", signal.SIGXFSZ: "too big"}
        end = "ok" if status == 0 else "timeout" if late else "exit"
        if not late and os.WIFSIGNALED(status): end = names.get(os.WTERMSIG(status), "crash")
        return end, cpu_us / 1e6, os.pread(self.result, PROFILES[self.options["profile"]].max_file, 0)

    def close(self):
        self.control.close()
        self.process.kill()
        self.process.wait()
        os.close(self.job)
        os.close(self.result)


# What a child may say instead of a value; other names of errors are for the trainer to give.
REASON = re.compile(r"error: |unsupported: |(too big|not a literal)\Z")


def printable(text):
    """At most 200 characters of printable ASCII: safe in logs, terminals and JSON."""
    return re.sub("[^ -~]", "?", text[:200])


def read_claims(raw, order, end, profile):
    """Bytes from a child -> (end, whether the program was loaded, [(mark, text), ...] for a prefix of order).
    Nothing in here is trusted: one line per input, canonical values only, and anything extra is "malformed"."""
    *lines, rest = raw.split(b"\n")
    claims = []
    try:
        if lines and lines[0] != b">" or len(lines) > 1 + len(order): raise ValueError
        if rest and end == "ok": raise ValueError
        for line in lines[1:]:
            mark, text = line[:1], line[1:].decode("ascii")
            if mark == b"=": decode(text, profile.max_text)
            elif mark == b"!" and REASON.match(text): text = printable(text)
            else: raise ValueError
            claims.append((mark, text))
    except ValueError: return "malformed", True, []
    if len(raw) >= profile.max_file: end = "too big"
    if end == "ok" and len(claims) < len(order): end = "exit"
    if end != "ok": del claims[len(order) - 1:]                       # it did not live to finish its last line honestly
    return end, bool(lines), claims


def read_output(raw, end, profile):
    """What a whole program printed, from a child, like read_claims: its canonical text as the only claim."""
    text = raw.decode("utf-8", "replace")
    if len(raw) >= profile.max_file: end = "too big"
    try: return end, True, [(b"=", encode(text, limit=profile.max_text))] if end == "ok" else []
    except ValueError: return "too big", True, []


class Sandbox:
    """Runs jobs on `workers` processor cores at once. profile: what programs may import and use, "train" or "eval" (see
    zygote.Profile); cpu_s, wall_s, mem_mb: other limits than its own. tier and report say what protects; replaced counts
    zygotes that had to be started again. Raises RuntimeError where it cannot protect, unless weak=True.
    without: layers to leave out, for tests of the tiers ("seccomp", "namespaces")."""

    def __init__(self, workers=2, cpu_s=None, wall_s=None, mem_mb=None, weak=False, without=(), profile="train"):
        if profile not in PROFILES: raise ValueError("profile %r: give one of %s" % (profile, ", ".join(PROFILES)))
        self.profile = PROFILES[profile]
        cpu_s, wall_s, mem_mb = (getattr(self.profile, name) if given is None else given
                                 for name, given in (("cpu_s", cpu_s), ("wall_s", wall_s), ("mem_mb", mem_mb)))
        if workers < 1 or cpu_s < 0.01 or wall_s < cpu_s or mem_mb < 16:
            raise ValueError("the sandbox needs workers >= 1, cpu_s >= 0.01, wall_s >= cpu_s and mem_mb >= 16")
        import threading                                              # only here, for the zygote imports nothing of it
        self.workers, self.cpu_s, self.wall_s, self.replaced, self.lock = workers, cpu_s, wall_s, 0, threading.Lock()
        self.options = dict(profile=profile, mem_mb=mem_mb, without={name: "left out" for name in without})
        self.zygotes, self.poll, self.by_fd = [], select.poll(), {}
        while (fd := os.open(os.devnull, os.O_RDWR)) < 3: pass           # a trainer without standard streams hands out no 0, 1, 2
        os.close(fd)
        try:
            for i in range(2 * workers): self.zygotes.append(Zygote(i % 2, self.options))
            self.report = [self.admit(zygote) for zygote in self.zygotes][0]
            self.report["canaries"] = self.send_canaries()
            self.tier = self.report["tier"] = self.find_tier(weak)
        except BaseException:
            self.close()
            raise

    def send_canaries(self):
        "harmless attacks through the normal path -> name: what happened"
        verdict, = self.run([Job(CANARY, tuple(map(repr, CANARIES)))])
        met = {name: json.loads(o) if o else e for name, o, e in zip(CANARIES, verdict.outputs, verdict.errors)}
        met["endless loop"] = self.run([Job("def f():\n while True: pass", ("",))], cpu_s=0.05)[0].end
        met["honest program"] = str(self.run([Job("def f(x): return {x: (x,)}", ("2",), deterministic=True)])[0].outputs[0])
        return met

    def find_tier(self, weak):
        "-> tier; refuses or warns where something was allowed"
        met, layers = self.report["canaries"], self.report
        if met["honest program"] != '{"d":[[2,{"t":[2]}]]}': raise RuntimeError("no program runs in this sandbox: %s" % layers)
        holes = ["%s (%s)" % (name, met[name]) for name in CANARIES if not met[name].startswith(("refused", "violation"))]
        holes += ["endless loop (%s)" % met["endless loop"]] if met["endless loop"] != "timeout" else []
        holes += ["%s (%s)" % (name, layers.get(name)) for name in REQUIRED if layers.get(name) != "ok"]
        if not holes: return "full" if layers["empty_root"] == "ok" else "no namespaces"
        if not weak:
            raise RuntimeError("The sandbox refuses to run model code here, because a program could get past: %s. It needs Linux "
                               "on x86-64 or aarch64 with seccomp. Use such a machine or container, or, for development with "
                               "programs that you trust, weak=True (--weak)." % "; ".join(holes))
        sys.stderr.write("\nWARNING: WEAK SANDBOX, only for programs that you trust: one could get past %s\n\n"
                         % "; ".join(holes))
        return "weak"

    def admit(self, zygote):
        layers = zygote.ready()
        self.poll.register(zygote.control, select.POLLIN)
        self.by_fd[zygote.control.fileno()] = zygote
        return layers

    def replace(self, zygote):
        "puts a fresh zygote in the place of one that is dead, stuck, or busy with a job that nobody waits for"
        self.poll.unregister(zygote.control)
        del self.by_fd[zygote.control.fileno()]
        zygote.close()
        fresh = self.zygotes[self.zygotes.index(zygote)] = Zygote(zygote.which, self.options)
        self.admit(fresh)
        self.replaced += 1

    def run(self, jobs, cpu_s=None):
        """list[Job] -> list[Verdict], in order. Never raises for anything that a program does. Where a child ends before
        it has answered all of its inputs, the others run again, each in a child of its own. cpu_s: another CPU limit."""
        with self.lock:
            cases = [Case(job) for job in jobs]
            queue = collections.deque()
            for case in cases:
                order = tuple(range(len(case.job.inputs)))
                if len(case.job.code) + sum(map(len, case.job.inputs)) > self.profile.max_job:
                    case.end, case.seen[0].update((i, ("too big", [])) for i in order)
                elif case.job.entry is not None: self.plan(queue, Run(case, 0, order))
                elif order: self.plan(queue, Run(case, 0, order[:1]))
            try: self.work(queue, cpu_s or self.cpu_s)
            except BaseException:
                for zygote in [z for z in self.zygotes if z.run]: self.replace(zygote)
                raise
            return [conclude(case) for case in cases]

    def plan(self, queue, run, first=False):
        run.case.open += 1
        (queue.appendleft if first else queue.append)(run)

    def work(self, queue, cpu_s):
        "the scheduler: keeps `workers` zygotes busy until the queue, to which results may add, is empty"
        busy = 0
        while queue or busy:
            while queue and busy < self.workers:
                run = queue.popleft()
                limits = run.case.job.cpu_s or cpu_s, max(self.wall_s, cpu_s, 5 * run.case.job.cpu_s)
                next(z for z in self.zygotes if z.which == run.which and not z.run).start(run, *limits)
                busy += 1
            now = time.monotonic()
            wait = min(z.deadline for z in self.zygotes if z.run) - now
            ready = [self.by_fd[fd] for fd, _ in self.poll.poll(max(0, wait * 1000) + 1)]
            for zygote in ready or [z for z in self.zygotes if z.run and z.deadline <= now + wait]:
                run, zygote.run = zygote.run, None
                try:
                    if zygote not in ready: raise OSError("the zygote is stuck")
                    end, used_s, raw = zygote.finish()
                except OSError:
                    self.replace(zygote)
                    if run is None: continue
                    end, used_s, raw = "sandbox failure", 0.0, b""
                busy -= 1
                run.case.open -= 1
                run.case.cpu_s += used_s
                if end == "sandbox failure" and run.tries < 2:
                    self.plan(queue, Run(run.case, run.which, run.order, run.tries + 1), first=True)
                else: self.absorb(queue, run, end, raw)

    def absorb(self, queue, run, end, raw):
        "files what one child said, and plans what has to follow"
        case, seen, script = run.case, run.case.seen[run.which], run.case.job.entry is None
        end, loaded, claims = read_output(raw, end, self.profile) if script else read_claims(raw, run.order, end, self.profile)
        if not run.order: case.end = end
        for i in dict.fromkeys(run.order):
            said = [claim for j, claim in zip(run.order, claims) if i == j]
            if len(said) == 1 + run.which: seen[i] = ("ok", said)
            elif case.job.give_up: seen[i] = (end if all(said for _, said in seen.values()) else "not run", [])
            elif loaded and len(set(run.order)) > 1 and (claims or i != run.order[0] or end == "malformed"):
                self.plan(queue, Run(case, run.which, (i,) * (1 + run.which)), first=True)
            else: seen[i] = (end, [])
        if script and len(seen) < len(case.job.inputs):
            if end == "ok" or not case.job.give_up: self.plan(queue, Run(case, 0, (len(seen),)), first=True)
            else: seen.update((i, ("not run", [])) for i in range(len(seen), len(case.job.inputs)))
        if case.open == 0 and run.which == 0 and case.job.deterministic:
            again = [i for i, (end, said) in sorted(seen.items()) if end == "ok"]
            if again: self.plan(queue, Run(case, 1, tuple(again[::-1] * 2)))

    def close(self):
        for zygote in self.zygotes: zygote.close()
        self.zygotes = []

    def __enter__(self): return self

    def __exit__(self, *exc): self.close()


def conclude(case):
    "what the passes saw of every input -> the Verdict"
    outputs, errors, ends = [], [], [case.end]
    for i in range(len(case.job.inputs)):
        end, said = case.seen[0][i]
        mark, text = said[0] if said else (b"!", end)
        ends.append(end)
        end, again = case.seen[1].get(i, ("ok", []))
        if end in ("timeout", "killed", "sandbox failure") and mark == b"=": mark, text = b"!", end
        elif end != "ok" or any(m != mark or (m == b"=" and t != text) for m, t in again): mark, text = b"!", "nondeterministic"
        ends.append(end)
        outputs.append(text if mark == b"=" else None)
        errors.append(None if mark == b"=" else text)
    return Verdict(next((end for end in ends if end != "ok"), "ok"), tuple(outputs), tuple(errors), case.cpu_s)


# name: what a program must not get done; each is refused with an exception or kills the program
CANARIES = {"open a file": "open('/etc/passwd')", "write a file": "open('/tmp/canary', 'w')", "list a folder": "os.listdir('/')",
            "open a socket": "check(libc.socket(1, 1, 0))", "fork": "os.fork() or os._exit(0)", "make a pipe": "os.pipe()",
            "become root": "os.setuid(0)", "take 8 GB": "bytearray(1 << 33)", "see the environment": "os.environ['LC_ALL']",
            "start a program": "os.execv('/bin/true', ['true'])", "signal the parent": "os.kill(os.getppid(), 0)",
            "call the kernel": "check(libc.unshare(0))"}
CANARY = """import ctypes, os
libc = ctypes.CDLL(None)
def check(result):
    if result < 0: raise PermissionError
def f(name):
    try: PROBES[name]()
    except BaseException as e: return "refused: " + type(e).__name__
    return "ALLOWED"
PROBES = {%s}
""" % ", ".join("%r: lambda: %s" % item for item in CANARIES.items())
REQUIRED = "seccomp", "no_new_privs", "limit_as", "limit_core", "limit_fsize"


def main():
    """The command line; see the top of the file. Exit code 0 only when the sandbox protects and the siege is survived."""
    import argparse
    parser = argparse.ArgumentParser(description="The judge: checks itself, or stands a siege.")
    parser.add_argument("--self-check", action="store_true", help="print the tier, the layers and the canaries")
    parser.add_argument("--siege", metavar="DIR", help="run a folder of hostile programs")
    parser.add_argument("--weak", action="store_true", help="go on without walls; only for programs that you trust")
    parser.add_argument("--without", default="", help="layers to leave out, by commas: namespaces, seccomp")
    args = parser.parse_args()
    if not (args.self_check or args.siege): parser.error("say --self-check or --siege DIR")
    try: sandbox = Sandbox(weak=args.weak, without=tuple(filter(None, args.without.split(","))))
    except RuntimeError as e: sys.exit(str(e))
    with sandbox:
        if args.siege:
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests"))
            from siege import siege
            sys.exit(0 if siege(sandbox, args.siege) else 1)
        print("tier: %s" % sandbox.tier)
        for name, met in {**sandbox.report["canaries"], **sandbox.report}.items():
            if type(met) is str and name != "tier": print("%-22s %s" % (name, met))


if __name__ == "__main__": main()
