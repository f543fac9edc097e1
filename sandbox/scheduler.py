"""Keeps fork servers busy and reads what their children claim: the trainer's side of the sandbox.

A job is known here by its fields alone (verifier.Job says what they mean). What was seen of a job goes back
as a Case, and verifier.py decides what it is worth. Nothing that a child wrote is trusted: it is canonical
text or "malformed".
"""
import collections
import json
import marshal
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox.profiles import DONE, GO, LATE, PROFILES, STARVED, Profile
from sandbox.values import decode

# A job that must be deterministic passes two interpreters, and a third where these may agree by chance. Their
# hash seeds: of 1,000, the first two order small sets of letters and words most differently; the third orders
# half of the sets otherwise that these two agree on.
SEEDS = 158, 299, 58
CALLS = 1, 2, 5                 # of f with each input, in the passes
TRIES = 3                       # of a run that the sandbox or the machine, not the program, failed
PATIENCE = 4                    # the wall limit of each try is so many times that of the one before
START_S = 30                    # until a fork server has imported what programs may import
# What an interpreter in an unusual place needs to find its library and its modules (clusters set the first).
FINDS = "LD_LIBRARY_PATH", "PYTHONHOME"
# Words of sets and of what outlives a call: defaults, attributes, decorators, statements outside a function.
MAY_VARY = re.compile(r"[{@]|set|keys|items|cache|context|register|global|class|def .*=.*:|\.\w+ *=[^=]"
                      r"|^(?! |\n|\Z|def |from |import )", re.M)
# What a child may say instead of a value; other names of errors are for the trainer to give.
REASON = re.compile(r"error: |unsupported: |(too big|not a literal)\Z")


@dataclass
class Case:
    """Holds a job and what has been seen of it."""
    job: object
    seen: tuple = field(default_factory=lambda: ({}, {}, {}))   # of a pass {input: (end, claims)}


@dataclass
class ChildRun:
    """Names one child's work. Pass 0 takes each input once. The other passes take them backwards, as often as
    CALLS says, in interpreters of another hash seed and other addresses."""
    case: Case
    which: int
    order: tuple
    tries: int = 1


def returned(seen: dict) -> tuple[int, ...]:
    """Returns the inputs of a pass, in order, on which the program returned or raised."""
    return tuple(i for i, (end, _) in sorted(seen.items()) if end == "ok")


def passes(job: object) -> int:
    """Returns how many interpreters a job passes."""
    if not job.deterministic:
        return 1
    # A space before an input, so that it is not taken for a statement at the beginning of a line.
    text = "\n ".join((job.code, *job.inputs))
    if MAY_VARY.search(text):
        return 3
    return 2


# ---- one fork server --------------------------------------------------------------------------------------

class ForkServer:
    """Is the trainer's end of one fork server. run: what its child does, or what its last child did."""

    def __init__(self, which: int, options: dict):
        self.which = which
        self.options = options
        self.run = None
        self.deadline = 0.0
        self.job = os.memfd_create("job")
        self.result = os.memfd_create("result")
        self.control, theirs = socket.socketpair()
        lent = [theirs.detach(), os.pidfd_open(os.getpid()), os.open("/proc", os.O_RDONLY)]
        fds = [self.result, self.job, *lent]            # the order of the slots over there
        environment = {name: os.environ[name] for name in FINDS if name in os.environ}
        environment |= dict(PYTHONHASHSEED=str(SEEDS[which]), LD_BIND_NOW="1", LC_ALL="C.UTF-8",
                            NANOPOPULORA_SANDBOX=json.dumps(dict(options, fds=fds, which=which)))
        file = Path(__file__).absolute().with_name("fork_server.py")
        null = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen([sys.executable, "-sSB", file], env=environment, cwd="/",
                                            pass_fds=fds, start_new_session=True, stdin=null, stdout=null,
                                            stderr=self.result)     # until it is locked up
        finally:
            for fd in lent:
                os.close(fd)

    def ready(self) -> dict[str, str]:
        """Waits until the fork server is locked up and returns its layers. Raises OSError with the fork
        server's own words if it fails."""
        self.control.settimeout(START_S)
        try:
            text = self.control.makefile().readline()
        except TimeoutError:
            text = f"it is not ready after {START_S} s"
        if text.endswith("\n"):
            self.control.setblocking(False)             # so that finish() raises if there is no answer
            return json.loads(text)
        said = os.pread(self.result, 4000, 0).decode("utf-8", "replace")
        words = " ".join(f"{text} {said}".split()) or "it ended without a word"
        raise OSError(f"the sandbox cannot start {sys.executable}: {words}")

    def start(self, run: ChildRun, cpu_s: float, wall_s: float) -> None:
        """Puts a run into the shared job file, and asks for a child that runs it."""
        job = run.case.job
        inputs, stdin = job.inputs, b""
        if job.entry is None:
            inputs, stdin = (), inputs[run.order[0]].encode("utf-8", "replace")
        body = marshal.dumps((job.code, job.entry, inputs, run.order))
        os.ftruncate(self.job, 0)
        os.ftruncate(self.result, 0)
        os.lseek(self.result, 0, os.SEEK_SET)
        os.pwrite(self.job, body + stdin, 0)
        self.run, self.deadline = run, time.monotonic() + wall_s + 2
        try:
            self.control.sendall(GO.pack(len(body), int(cpu_s * 1000), int(wall_s * 1000)))
        except OSError:
            pass                                        # it is dead, which poll() reports

    def finish(self) -> tuple[str, bytes]:
        """Returns how the child ended and what it claims, which is nothing if it got no processor to run on.
        Raises OSError if the fork server is dead or stuck."""
        message = self.control.recv(DONE.size)
        if len(message) != DONE.size:
            raise OSError("the fork server is dead")
        status, late = DONE.unpack(message)
        if status == 0:
            end = "ok"
        elif late == STARVED:
            return "", b""
        elif late == LATE:
            end = "timeout"
        elif os.WIFSIGNALED(status):
            names = {signal.SIGPROF: "timeout", signal.SIGKILL: "killed", signal.SIGSYS: "violation",
                     signal.SIGXFSZ: "too big"}
            end = names.get(os.WTERMSIG(status), "crash")
        else:
            end = "exit"
        return end, os.pread(self.result, PROFILES[self.options["profile"]].max_file, 0)

    def close(self) -> None:
        """Kills the fork server, and its child with it."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        os.close(self.job)
        os.close(self.result)


# ---- what a child claims ----------------------------------------------------------------------------------

def read_claim(line: bytes, profile: Profile) -> tuple[str | None, str | None]:
    """Returns (text of a value, None) or (None, reason) for a line of a child's report. Raises ValueError for
    any other line."""
    mark, text = line[:1], line[1:].decode("ascii")
    if mark == b"=":
        decode(text, profile.max_text)
        return text, None
    if mark == b"!" and REASON.match(text):
        return None, re.sub("[^ -~]", "?", text[:200])  # safe in logs, terminals and JSON
    raise ValueError("neither a value nor a reason")


def read_claims(raw: bytes, order: tuple[int, ...], end: str, profile: Profile) -> tuple[str, bool, list]:
    """Reads the bytes of a child. Returns how it ended, whether the program was loaded, and claims for the
    first inputs of order, as read_claim returns them. A child writes one line for each input, and anything
    extra is "malformed"."""
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


# ---- all fork servers -------------------------------------------------------------------------------------

@dataclass
class Scheduler:
    """Holds the fork servers, one of each hash seed for each of `workers` processor cores, for one caller at
    a time. limits: the Profile in force. options: what a fork server is started with
    (fork_server.prepare)."""
    workers: int
    limits: Profile
    options: dict
    servers: list[ForkServer] = field(default_factory=list)
    busy: list[ForkServer] = field(default_factory=list)
    selector: selectors.PollSelector = field(default_factory=selectors.PollSelector)

    def open(self) -> dict[str, str]:
        """Starts all fork servers and returns the layers of the last; they are alike."""
        for i in range(len(SEEDS) * self.workers):
            self.servers.append(ForkServer(i % len(SEEDS), self.options))
        for server in self.servers:
            layers = self.admit(server)
        return layers

    def admit(self, server: ForkServer) -> dict[str, str]:
        """Waits for a fork server, takes it into service and returns its layers."""
        layers = server.ready()
        self.selector.register(server.control, selectors.EVENT_READ, server)
        return layers

    def replace(self, server: ForkServer) -> None:
        """Starts a fresh fork server for one that is dead, stuck, or busy with a job that nobody waits
        for."""
        self.selector.unregister(server.control)
        place = self.servers.index(server)
        self.servers.pop(place).close()
        self.servers.insert(place, ForkServer(server.which, self.options))
        self.admit(self.servers[place])

    def work_off(self, jobs: list) -> list[Case]:
        """Returns every job's Case, in order. An interruption kills what is under way."""
        cases = [Case(job) for job in jobs]
        queue = collections.deque()
        for case in cases:
            self.enqueue(queue, case)
        try:
            while queue or self.busy:
                while queue and len(self.busy) < self.workers:
                    self.begin(queue.popleft())
                next_late = min(self.busy, key=lambda server: server.deadline)
                wait_s = max(0.0, next_late.deadline - time.monotonic())
                answered = [key.data for key, _ in self.selector.select(wait_s)]
                for server in answered or [next_late]:
                    self.collect(queue, server)
        except BaseException:
            while self.busy:
                self.replace(self.busy.pop())
            raise
        return cases

    def enqueue(self, queue: collections.deque, case: Case) -> None:
        """Plans a job's first child. A whole program has one for each input, a job too big has none."""
        order = tuple(range(len(case.job.inputs)))
        n_chars = len(case.job.code) + sum(map(len, case.job.inputs))
        if n_chars > self.limits.max_job:
            for i in order:
                case.seen[0][i] = ("too big", [])
        elif order:
            if case.job.entry is None:
                order = order[:1]
            queue.append(ChildRun(case, 0, order))

    def begin(self, run: ChildRun) -> None:
        """Gives a run to a fork server without a child. Two calls share one CPU limit, five share 2.5."""
        server = next(s for s in self.servers if s.which == run.which and s not in self.busy)
        own_s = run.case.job.cpu_s
        longer = max(1, CALLS[run.which] / 2)
        # Each try has a longer wall. So an endless loop meets its CPU limit even on a crowded machine, and no
        # student can choose to be unjudged.
        wall_s = max(self.limits.wall_s, 5 * own_s) * PATIENCE ** (run.tries - 1)
        self.busy.append(server)
        server.start(run, (own_s or self.limits.cpu_s) * longer, wall_s * longer)

    def collect(self, queue: collections.deque, server: ForkServer) -> None:
        """Takes the answer of a fork server, or replaces the server if it is dead or stuck."""
        if server not in self.busy:                     # it died while it had nothing to do
            return self.replace(server)
        self.busy.remove(server)
        try:
            end, raw = server.finish()
        except OSError:
            self.replace(server)
            end, raw = "", b""
        run = server.run
        if raw:
            self.absorb(queue, run, end, raw)
        elif run.tries < TRIES:                         # no program can take back that it began
            queue.appendleft(replace(run, tries=run.tries + 1))
        else:
            self.absorb(queue, run, "sandbox failure", raw)

    def absorb(self, queue: collections.deque, run: ChildRun, end: str, raw: bytes) -> None:
        """Notes what one child claims, and plans what has to follow."""
        case = run.case
        job = case.job
        seen = case.seen[run.which]
        end, loaded, claims = read_claims(raw, run.order, end, self.limits)
        for i in dict.fromkeys(run.order):
            own = [claim for j, claim in zip(run.order, claims) if i == j]
            if len(own) == CALLS[run.which]:
                seen[i] = ("ok", own)
            elif job.give_up:
                seen[i] = (end if all(answers for _, answers in seen.values()) else "not run", [])
            elif loaded and len(set(run.order)) > 1 and (claims or i != run.order[0] or end == "malformed"):
                queue.appendleft(ChildRun(case, run.which, (i,) * CALLS[run.which]))
            else:
                seen[i] = (end, [])
        if job.entry is None and len(seen) < len(job.inputs):
            following = range(len(seen), len(job.inputs))
            if end != "ok" and job.give_up:
                seen.update(dict.fromkeys(following, ("not run", [])))
            else:
                queue.appendleft(ChildRun(case, 0, (following[0],)))
        # A pass takes the inputs on which the one before it returned; the next begins where it has seen all.
        given = job.inputs
        if run.which > 0:
            given = returned(case.seen[run.which - 1])
        which = run.which + 1
        if which < passes(job) and len(seen) == len(given) and returned(seen):
            queue.append(ChildRun(case, which, returned(seen)[::-1] * CALLS[which]))

    def close(self) -> None:
        """Kills all fork servers."""
        for server in self.servers:
            server.close()
        self.servers.clear()
