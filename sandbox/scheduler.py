"""The trainer's side of the sandbox: keeps fork servers busy and reads what their children claim.

It knows jobs by their fields alone (verifier.Job says what these mean) and hands back what was seen of them
(Case); what that is worth, verifier.py says. Nothing that a child wrote is trusted: canonical text, or it is
"malformed".
"""
import collections
import json
import marshal
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from sandbox.profiles import DONE, GO, PROFILES
from sandbox.values import decode, encode

# A job that must be deterministic passes two interpreters, and a third where these may agree by chance. Their
# hash seeds: of 1,000, the first two order small sets of letters and words most differently; the third orders
# half of the sets otherwise that these two agree on.
SEEDS = 158, 299, 58
CALLS = 1, 2, 5                 # of f with each input, in the passes
PAUSES_S = 0.2, 2.0             # before a fork server that could not be started is tried again
TRIES = 3                       # of a run that the sandbox, not the program, failed
# What a child may say instead of a value; other names of errors are for the trainer to give.
# Words of sets and of what outlives a call: defaults, attributes, decorators, statements outside a function.
MAY_VARY = re.compile(r"[{@]|set|keys|items|cache|context|register|global|class|def .*=.*:|\.\w+ *=[^=]"
                      r"|^(?! |\n|\Z|def |from |import )", re.M)
REASON = re.compile(r"error: |unsupported: |(too big|not a literal)\Z")


@dataclass
class Case:
    """One job and what has been seen of it."""
    job: object
    seen: tuple = field(default_factory=lambda: ({}, {}, {}))   # of a pass {input: (end, [(mark, text), ..])}
    cpu_s: float = 0.0
    end: str = "ok"                                     # only of a job without inputs


@dataclass
class ChildRun:
    """One child. Pass 0 takes each input once, the others, backwards, as often as CALLS says; each is in an
    interpreter with another hash seed and other addresses."""
    case: Case
    which: int
    order: tuple
    tries: int = 0


def returned(seen):
    """Inputs of a pass, in order, on which the program returned or raised."""
    return [i for i, (end, _) in sorted(seen.items()) if end == "ok"]


def passes(job):
    """How many interpreters a job passes."""
    if not job.deterministic:
        return 1
    return 3 if any(map(MAY_VARY.search, (job.code, *(f" {text}" for text in job.inputs)))) else 2


# ---- one fork server --------------------------------------------------------------------------------------

def scratch_file():
    """Descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sandbox")
    import tempfile
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class ForkServer:
    """The trainer's end of one fork server. run: what its child is busy with, None where it has none."""

    def __init__(self, which, options):
        self.which, self.options, self.run, self.deadline = which, options, None, 0.0
        self.job, self.result = scratch_file(), scratch_file()
        self.control, theirs = socket.socketpair()
        fds = [self.result, self.job, theirs.fileno()]  # the order of the slots in fork_server.py
        if hasattr(os, "pidfd_open"):
            fds.append(os.pidfd_open(os.getpid()))
        environment = dict(PYTHONHASHSEED=str(SEEDS[which]), LD_BIND_NOW="1", LC_ALL="C.UTF-8",
                           NANOPOPULORA_SANDBOX=json.dumps(dict(options, fds=fds, which=which)))
        file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
        null = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen([sys.executable, "-sSB", file], env=environment, cwd="/",
                                            pass_fds=fds, start_new_session=True, stdin=null, stdout=null,
                                            stderr=null)
        except OSError:
            os.close(self.job)
            os.close(self.result)
            raise
        finally:
            theirs.close()
            for fd in fds[3:]:
                os.close(fd)

    def ready(self):
        """Waits for it to be locked up -> its layers."""
        self.control.settimeout(30)
        text = b""
        while not text.endswith(b"\n"):
            part = self.control.recv(1 << 16)
            if not part:
                said = text.decode() or "it ended"
                raise RuntimeError(f"the sandbox cannot start {sys.executable}: {said}")
            text += part
        return json.loads(text)

    def start(self, run, cpu_s, wall_s):
        """Puts a run into the shared job file, its input first, and asks for a child that runs it."""
        job = run.case.job
        given, inputs = b"", job.inputs
        if job.entry is None:
            given, inputs = inputs[run.order[0]].encode("utf-8", "replace"), ()
        body = marshal.dumps((job.code, job.entry, inputs, run.order))
        os.ftruncate(self.result, 0)
        os.lseek(self.result, 0, os.SEEK_SET)
        os.pwrite(self.job, given + body, 0)
        self.run, self.deadline = run, time.monotonic() + wall_s + 2
        try:
            self.control.sendall(GO.pack(len(given), len(body), int(cpu_s * 1000), int(wall_s * 1000)))
        except OSError:
            pass                                        # it is dead, which poll() reports

    def finish(self):
        """-> (how the child ended, CPU seconds, what it claims). OSError where the fork server is dead."""
        message = self.control.recv(DONE.size)
        if len(message) != DONE.size:
            raise OSError("the fork server is dead")
        status, late, cpu_us = DONE.unpack(message)
        if status == 0:
            end = "ok"
        elif late:
            end = "timeout"
        elif os.WIFSIGNALED(status):
            names = {signal.SIGPROF: "timeout", signal.SIGKILL: "killed", signal.SIGSYS: "violation",
                     signal.SIGXFSZ: "too big"}
            end = names.get(os.WTERMSIG(status), "crash")
        else:
            end = "exit"
        return end, cpu_us / 1e6, os.pread(self.result, PROFILES[self.options["profile"]].max_file, 0)

    def close(self):
        """Kills it, and its child with it."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        os.close(self.job)
        os.close(self.result)


# ---- what a child claims ----------------------------------------------------------------------------------

def printable(text):
    """At most 200 characters of printable ASCII: safe in logs, terminals and JSON."""
    return re.sub("[^ -~]", "?", text[:200])


def read_claim(line, profile):
    """A line of a child's report -> (mark, text). Raises ValueError for neither a value nor a reason."""
    mark, text = line[:1], line[1:].decode("ascii")
    if mark == b"=":
        decode(text, profile.max_text)
        return mark, text
    if mark == b"!" and REASON.match(text):
        return mark, printable(text)
    raise ValueError("neither a value nor a reason")


def read_claims(raw, order, end, profile):
    """Bytes from a child -> (end, whether the program was loaded, [(mark, text), ...] for a prefix of order).

    Nothing in here is trusted: one line per input, canonical values only, and anything extra is "malformed".
    """
    *lines, rest = raw.split(b"\n")
    if raw == b">":
        rest = b""                                      # it began, and ended before it was loaded
    extra = lines and lines[0] != b">" or len(lines) > 1 + len(order) or rest and end == "ok"
    if extra:
        return "malformed", True, []
    try:
        claims = [read_claim(line, profile) for line in lines[1:]]
    except ValueError:
        return "malformed", True, []
    if len(raw) >= profile.max_file:
        end = "too big"
    if end == "ok" and len(claims) < len(order):
        end = "exit"
    if end != "ok":
        del claims[len(order) - 1:]                     # it did not live to end its last line honestly
    return end, bool(lines), claims


def read_output(raw, end, profile):
    """What a whole program printed after the mark, like read_claims: its canonical text as the only claim."""
    if len(raw) >= profile.max_file:
        end = "too big"
    if end == "ok" and raw[:1] != b">":
        end = "malformed"                               # it went back and wrote over the mark
    if end != "ok":
        return end, True, []
    try:
        return end, True, [(b"=", encode(raw[1:].decode("utf-8", "replace"), limit=profile.max_text))]
    except ValueError:
        return "too big", True, []


# ---- all fork servers -------------------------------------------------------------------------------------

class Scheduler:
    """Fork servers, one of each hash seed for each of `workers` processor cores, and the queue of their runs.

    One caller at a time. options: what a fork server is started with (fork_server.prepare); replaced counts
    those that had to be started again.
    """

    def __init__(self, workers, wall_s, options):
        self.workers, self.wall_s, self.options, self.replaced = workers, wall_s, options, 0
        self.profile = PROFILES[options["profile"]]
        self.servers, self.poll, self.by_fd = [], select.poll(), {}

    def open(self):
        """Starts all fork servers -> the layers of the first."""
        for i in range(len(SEEDS) * self.workers):
            self.servers.append(ForkServer(i % len(SEEDS), self.options))
        return [self.admit(server) for server in self.servers][0]

    def admit(self, server):
        """Waits for a fork server and takes it into service -> its layers."""
        layers = server.ready()
        self.poll.register(server.control, select.POLLIN)
        self.by_fd[server.control.fileno()] = server
        return layers

    def replace(self, server):
        """A fresh fork server for one that is dead, stuck, or busy with a job that nobody waits for."""
        self.poll.unregister(server.control)
        del self.by_fd[server.control.fileno()]
        server.close()
        fresh = self.servers[self.servers.index(server)] = self.start_again(server.which)
        self.admit(fresh)
        self.replaced += 1

    def start_again(self, which):
        """A fresh fork server; a machine may be out of processes or memory for a moment. Raises OSError."""
        for pause_s in PAUSES_S:
            try:
                return ForkServer(which, self.options)
            except OSError:
                time.sleep(pause_s)
        return ForkServer(which, self.options)

    def idle(self, which):
        """A fork server without a child."""
        return next(server for server in self.servers if server.which == which and not server.run)

    def busy(self):
        """The fork servers that have a child."""
        return [server for server in self.servers if server.run]

    def work_off(self, jobs, cpu_s):
        """Every job's Case, in order; what is under way is killed where this is interrupted."""
        cases = [Case(job) for job in jobs]
        queue = collections.deque()
        for case in cases:
            order = tuple(range(len(case.job.inputs)))
            if len(case.job.code) + sum(map(len, case.job.inputs)) > self.profile.max_job:
                case.end = "too big"
                case.seen[0].update((i, ("too big", [])) for i in order)
            elif case.job.entry is not None and (order or case.job.code):
                queue.append(ChildRun(case, 0, order))
            elif order:
                queue.append(ChildRun(case, 0, order[:1]))
        try:
            self.work(queue, cpu_s)
        except BaseException:
            for server in self.busy():
                self.replace(server)
            raise
        return cases

    def work(self, queue, cpu_s):
        """Keeps `workers` fork servers busy until the queue, to which results may add, is empty."""
        n_busy = 0
        while queue or n_busy:
            while queue and n_busy < self.workers:
                run = queue.popleft()
                server = self.idle(run.which)
                own_s = run.case.job.cpu_s
                longer = max(1, CALLS[run.which] / 2)
                wall_s = max(self.wall_s, cpu_s, 5 * own_s)
                server.start(run, (own_s or cpu_s) * longer, wall_s * longer)
                n_busy += 1
            deadline = min(server.deadline for server in self.busy())
            wait_s = max(0, deadline - time.monotonic())
            ready = [self.by_fd[fd] for fd, _ in self.poll.poll(wait_s * 1000 + 1)]
            for server in ready or [server for server in self.busy() if server.deadline <= deadline]:
                n_busy -= self.collect(queue, server, server in ready)

    def collect(self, queue, server, answered):
        """Takes the answer of a fork server, or replaces one that is stuck -> how many runs have ended."""
        run, server.run = server.run, None
        try:
            if not answered:
                raise OSError("the fork server is stuck")
            end, used_s, raw = server.finish()
        except OSError:
            self.replace(server)
            if run is None:
                return 0
            end, used_s, raw = "sandbox failure", 0.0, b""
        if not raw:
            end = "sandbox failure"                     # no program can take back that it began
        run.case.cpu_s += used_s
        if end == "sandbox failure" and run.tries + 1 < TRIES:
            queue.appendleft(ChildRun(run.case, run.which, run.order, run.tries + 1))
        else:
            self.absorb(queue, run, end, raw)
        return 1

    def absorb(self, queue, run, end, raw):
        """Files what one child said, and plans what has to follow."""
        case, job, seen = run.case, run.case.job, run.case.seen[run.which]
        if job.entry is None:
            end, loaded, claims = read_output(raw, end, self.profile)
        else:
            end, loaded, claims = read_claims(raw, run.order, end, self.profile)
        if not run.order:
            case.end = end
        for i in dict.fromkeys(run.order):
            said = [claim for j, claim in zip(run.order, claims) if i == j]
            if len(said) == CALLS[run.which]:
                seen[i] = ("ok", said)
            elif job.give_up:
                seen[i] = (end if all(said for _, said in seen.values()) else "not run", [])
            elif loaded and len(set(run.order)) > 1 and (claims or i != run.order[0] or end == "malformed"):
                queue.appendleft(ChildRun(case, run.which, (i,) * CALLS[run.which]))
            else:
                seen[i] = (end, [])
        if job.entry is None and len(seen) < len(job.inputs):
            if end == "ok" or not job.give_up:
                queue.appendleft(ChildRun(case, 0, (len(seen),)))
            else:
                seen.update((i, ("not run", [])) for i in range(len(seen), len(job.inputs)))
        given = returned(case.seen[run.which - 1]) if run.which else job.inputs
        which = run.which + 1
        if which < passes(job) and len(seen) == len(given) and returned(seen):
            queue.append(ChildRun(case, which, tuple(returned(seen)[::-1] * CALLS[which])))

    def close(self):
        """Kills all fork servers."""
        for server in self.servers:
            server.close()
        self.servers.clear()
