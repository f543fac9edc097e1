"""
scheduler.py -- the trainer's side of the sandbox: keeps fork servers busy and reads what their children claim.

It knows jobs by their fields alone (verifier.Job says what these mean) and hands back what was seen of them (Case); what that
is worth, verifier.py says. Nothing that a child wrote is trusted: canonical text, or it is "malformed".
"""
import collections, json, marshal, os, re, select, signal, socket, sys, time
from dataclasses import dataclass, field

from sandbox.fork_server import DONE, GO, PROFILES
from sandbox.values import decode, encode

SEEDS = 158, 299        # hash seeds of the twins: of 1,000, the two that order small sets of letters and words most differently


@dataclass
class Case:
    "one job under judgement: per pass, what was seen of each input: (end, [(mark, text), ...])"
    job: object
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
        fds = [self.result, self.job, theirs.fileno()]                # the order of the slots in fork_server.py
        if hasattr(os, "pidfd_open"): fds.append(os.pidfd_open(os.getpid()))
        environment = dict(PYTHONHASHSEED=str(SEEDS[which]), LD_BIND_NOW="1", LC_ALL="C.UTF-8",
                           NANOPOPULORA_SANDBOX=json.dumps(dict(options, fds=fds, which=which)))
        file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
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


class Scheduler:
    """Zygotes, two for each of `workers` processor cores, and the queue of runs that they work off. One caller at a time.
    options: what a zygote is started with (fork_server.prepare); replaced counts zygotes that had to be started again."""

    def __init__(self, workers, wall_s, options):
        self.workers, self.wall_s, self.options, self.replaced = workers, wall_s, options, 0
        self.profile = PROFILES[options["profile"]]
        self.zygotes, self.poll, self.by_fd = [], select.poll(), {}

    def open(self):
        "starts all zygotes -> the layers of the first"
        for i in range(2 * self.workers): self.zygotes.append(Zygote(i % 2, self.options))
        return [self.admit(zygote) for zygote in self.zygotes][0]

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

    def judge(self, jobs, cpu_s):
        "every job's Case, in order; what is under way is killed where this is interrupted"
        cases = [Case(job) for job in jobs]
        queue = collections.deque()
        for case in cases:
            order = tuple(range(len(case.job.inputs)))
            if len(case.job.code) + sum(map(len, case.job.inputs)) > self.profile.max_job:
                case.end, case.seen[0].update((i, ("too big", [])) for i in order)
            elif case.job.entry is not None: self.plan(queue, Run(case, 0, order))
            elif order: self.plan(queue, Run(case, 0, order[:1]))
        try: self.work(queue, cpu_s)
        except BaseException:
            for zygote in [z for z in self.zygotes if z.run]: self.replace(zygote)
            raise
        return cases

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
