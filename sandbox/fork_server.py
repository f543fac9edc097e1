"""Forks a child for each program, the child that runs it: the far side of scheduler.py.

A fresh interpreter executes this file by its path; the trainer never imports it. The fork server imports what
programs may import, locks itself up (walls.py), and forks a child for each program until the trainer is gone.
It has a control socket for structs of fixed size, a file with the job and a file for the result. It reads
neither file, so no child inherits anything of another task. The child reads its job, gives up everything
else, runs, writes one line for each input, and dies.
"""
import ast
import fcntl
import gc
import json
import marshal
import os
import select
import signal
import sys
import types

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(sys.path[0])          # the folder of the package, not the package

from sandbox import scripts, walls
from sandbox.profiles import DONE, GO, LATE, ON_TIME, PROFILES, STARVED, Profile
from sandbox.values import Unsupported, encode

# Its descriptors. OWNER is a pidfd of the trainer, PROC the folder /proc, which the empty root hides.
RESULT, JOB, CONTROL, OWNER, PROC = 3, 4, 5, 6, 7


# ---- the child --------------------------------------------------------------------------------------------

def arguments(text: str) -> tuple | None:
    """Returns the arguments, all literals, between the parentheses of a call, or None. Runs in the child
    only."""
    try:
        # " \n" closes a comment, and joins no lines; "1) or (True" and "1), (2" parse too, but as no one call
        match ast.parse(f"f({text} \n)", mode="eval").body:
            case ast.Call(ast.Name(), given, []):
                return tuple(map(ast.literal_eval, given))
    except BaseException:
        pass
    return None


def reason(error: BaseException) -> bytes:
    """Returns what goes into the verdict for an exception: bytes of one line. The exception may be
    hostile."""
    try:
        text = str(error)[:200]
        if type(error) is not Unsupported:
            text = f"error: {type(error).__name__[:60]}: {text}"
        return text.encode("ascii", "replace").replace(b"\n", b" ")
    except BaseException:
        return b"error: Exception: (cannot be printed)"


def load(code: str, entry: str) -> object:
    """Executes a program and returns the function of this name. Raises whatever the program does."""
    module = sys.modules["program"] = types.ModuleType("program")
    exec(compile(code, "<program>", "exec", dont_inherit=True), module.__dict__)
    if entry not in module.__dict__:
        raise NameError(f"the program defines no {entry}")
    return module.__dict__[entry]


def perform(job: tuple, write: object, profile: Profile) -> None:
    """Runs a job and writes a line for each input. Whatever happens or is faked in here is only a claim."""
    code, entry, inputs, order = job
    failed = None
    if entry is None:                                   # a whole program: its input is standard input
        calls = [(code,)]
        function = scripts.run_whole
    else:
        calls = [arguments(inputs[i]) for i in order]   # before the program can change what a literal is
        try:
            function = load(code, entry)
        except BaseException as e:
            failed = reason(e)
    write(b"\n")                                        # what dies from here on dies of one of its inputs
    for args in calls:
        try:
            if failed:
                line = b"!" + failed
            elif args is None:
                line = b"!not a literal"
            else:
                line = b"=" + encode(function(*args), limit=profile.max_text).encode()
        except BaseException as e:
            line = b"!" + reason(e)
        write(line + b"\n")


def child(size: int, cpu_s: float, wall: list, profile: Profile) -> None:
    """Runs in the forked child and never returns."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)         # default action: die. The filter forbids to change it
    job = marshal.loads(os.pread(JOB, size, 0))         # trainer to child is the trusted direction
    if job[1] is None:
        scripts.give_streams(JOB, size)
    os.closerange(JOB, PROC + 1)
    walls.wall_in(wall)
    os.write(RESULT, b">")                              # what ended before this was no doing of the program's
    perform(job, lambda line: os.write(RESULT, line), profile)
    os._exit(0)


# ---- the fork server --------------------------------------------------------------------------------------

def take_slots(given: list[int]) -> None:
    """Moves the trainer's descriptors to RESULT, JOB, CONTROL, OWNER and PROC, and closes all others."""
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, PROC + 1) for fd in given]  # out of the way of the slots
    for slot, fd in enumerate(fds, RESULT):
        os.dup2(fd, slot)
    os.closerange(PROC + 1, max(fds + given) + 1)


def reset_interpreter(profile: Profile, packages_from: str) -> None:
    """Sets streams, signals and modules as programs shall find them, whoever started the trainer.
    packages_from: the folder of what is not the standard library's, or ""."""
    sys.path[:] = sys.path[1:]
    sys.argv[:] = [""]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    sys.modules["_hashlib"] = None                      # hashlib without OpenSSL: fewer pages, less to attack
    for number in signal.SIGPROF, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for name in profile.imports:
        __import__(name)
    if packages_from:
        sys.path.append(packages_from)
        os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"    # who forks has one thread
        for name in profile.packages:
            __import__(name)
        os.environ.clear()
    # A student's program may import numpy without need, which must not make it wrong.
    sys.modules.setdefault("numpy", types.ModuleType("numpy"))
    sys.path[:] = []
    sys.modules["warnings"].simplefilter("ignore")


def prepare(options: dict) -> tuple:
    """Imports, locks the fork server up and reports its layers to the trainer. Returns profile and filter."""
    profile = PROFILES[options["profile"]]
    os.environ.clear()
    take_slots(options["fds"])
    layers = dict(options["without"])
    reset_interpreter(profile, options["packages_from"])
    wall = walls.seccomp_wall()
    walls.lock_up(layers, options["mem_mb"], profile)
    if wall is None:
        layers["seccomp"] = "no table for this processor"
    elif "seccomp" not in layers:
        layers["seccomp"] = "ok"                        # where the kernel refuses it, no child begins
    # wakes a stopped fork server to see the end
    walls.call("prctl", walls.PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    sys.modules["random"].seed(options["which"])        # the same draws in every run, others in the twin
    gc.collect()
    gc.freeze()
    os.dup2(1, 2)                                       # what it said until now is in RESULT, for the trainer
    os.write(CONTROL, json.dumps(layers).encode() + b"\n")
    return profile, wall


def queued_ms(pid: int) -> int:
    """Returns the milliseconds that a process has waited for a processor while it could have run, or 0 if the
    kernel does not tell. Sleep does not count. No program can lengthen it, because a program has one thread
    and limited CPU time."""
    try:
        file = os.open(f"{pid}/schedstat", os.O_RDONLY, dir_fd=PROC)
        text = os.read(file, 100)                       # nanoseconds running, nanoseconds waiting, turns
        os.close(file)
        return int(text.split()[1]) // 10**6
    except (OSError, IndexError):
        return 0


def end_late(pid: int, wall_ms: int) -> int:
    """Kills a child that the wall clock has overtaken and returns whose fault that is. It is the machine's
    (STARVED) if the child waited for a processor for more than half of the time, else the program's
    (LATE)."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)   # a wait counts once it is over
    if queued_ms(pid) > wall_ms / 2:
        return STARVED
    return LATE


def serve(profile: Profile, wall: list) -> None:
    """Serves jobs until the control socket or the trainer ends, and then takes its child along."""
    poll = select.poll()
    poll.register(CONTROL, select.POLLIN)
    poll.register(OWNER, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == OWNER:                             # also where a helper keeps the socket open
                os._exit(0)
        message = os.read(CONTROL, GO.size)
        if len(message) < GO.size:
            os._exit(0)
        size, cpu_ms, wall_ms = GO.unpack(message)
        pid = walls.raw_fork()
        if pid < 0:
            os._exit(1)                                 # no memory or process left; the trainer tries again
        if pid == 0:
            try:
                child(size, cpu_ms / 1000, wall, profile)
            finally:
                os._exit(111)
        fd = os.pidfd_open(pid)
        poll.register(fd, select.POLLIN)
        events = poll.poll(wall_ms)
        for ready, _ in events:
            if ready != fd:                             # the trainer is gone, or asks while a child runs
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
        late = ON_TIME
        if not events:
            late = end_late(pid, wall_ms)
        _, status = os.waitpid(pid, 0)
        poll.unregister(fd)
        os.close(fd)
        os.write(CONTROL, DONE.pack(status, late))


if __name__ == "__main__":
    options = json.loads(os.environ["NANOPOPULORA_SANDBOX"])
    # its twin's addresses differ in all digits, and so do reference counts of what everybody refers to
    padding = [(bytes(n), None) for n in range(0, 512, 16) for _ in range(options["which"])]
    try:
        profile, wall = prepare(options)
    except Exception as e:                              # the trainer makes an error message of it
        os.write(CONTROL, f"{type(e).__name__}: {e}".encode())
        os._exit(1)
    serve(profile, wall)
