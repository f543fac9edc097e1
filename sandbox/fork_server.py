"""
fork_server.py -- the far side of scheduler.py: the zygote, a process that forks, and the child that runs one program.

Executed by its path as a fresh interpreter; the trainer imports only its constants. It imports what programs may import, locks
itself up, and then forks a child per program until the trainer is gone. Three descriptors: a control socket with structs
of fixed size, a file that holds the job and one for the result. The zygote reads neither file, so no child inherits
anything of another task. The child reads its job, gives up everything else, runs, writes one line per input, and dies.
"""
import ast, atexit, ctypes, gc, json, marshal, os, select, signal, struct, sys, time, types
from dataclasses import dataclass

try:
    import fcntl, resource
except ImportError:                             # Windows: only the constants are read, nothing in here can run
    fcntl = resource = None

if __name__ == "__main__": sys.path[0] = os.path.dirname(sys.path[0])         # the folder of the package, not the package

from sandbox.values import MAX_DEPTH, MAX_TEXT, Unsupported, encode

RESULT, JOB, CONTROL, OWNER = 3, 4, 5, 6        # the zygote's descriptors; OWNER is a pidfd of the trainer
GO = struct.Struct("<IIII")                     # trainer to zygote: bytes of standard input, of the job after it, CPU ms, wall ms
DONE = struct.Struct("<iIQ")                    # zygote to trainer: wait status, 1 if the wall clock ended it, CPU us

# ---- profiles ---------------------------------------------------------------------------------------------------------

# What a program may import; all else raises ImportError, for no file can be opened in there. Every page of these costs each
# fork time, so training gets what tasks.validation.IMPORTS names (and what these bring along), benchmarks what people import.
TRAIN = """math itertools functools collections collections.abc string re heapq bisect operator copy fractions decimal statistics
typing dataclasses random abc types enum numbers contextlib keyword unicodedata warnings time sys os builtins
__future__""".split()
EVAL = TRAIN + """cmath json datetime textwrap hashlib base64 struct array calendar _strptime zlib binascii pprint ast traceback
io inspect reprlib weakref threading queue secrets uuid timeit difflib html csv shlex graphlib doctest unittest pickle pathlib
tempfile logging locale argparse platform subprocess urllib.parse encodings.ascii encodings.latin_1 encodings.utf_16
encodings.utf_16_le encodings.utf_32 encodings.utf_8_sig encodings.cp1252 encodings.unicode_escape encodings.hex_codec
encodings.rot_13""".split()


@dataclass(frozen=True)
class Profile:
    """What programs of one use may have; the walls are the same in all. cpu_s: CPU seconds of one child; wall_s: backstop for one
    that sleeps; mem_mb: address space beyond the interpreter's own; characters of a job and of one value, bytes that a child may
    report. lenient: subclasses of builtin containers and numbers count as these (a Counter as a dict)."""
    imports: tuple
    cpu_s: float = 0.5
    wall_s: float = 6.0
    mem_mb: int = 256
    max_job: int = 1 << 20
    max_text: int = MAX_TEXT
    max_file: int = 1 << 18
    lenient: bool = False


PROFILES = {"train": Profile(tuple(TRAIN)),
            "eval": Profile(tuple(EVAL), cpu_s=6.0, wall_s=20.0, mem_mb=4096, max_job=1 << 26, max_text=1 << 23, max_file=1 << 25,
                            lenient=True)}


# ---- kernel walls, by hand --------------------------------------------------------------------------------------------

LINUX = sys.platform == "linux"
COLUMN, AUDIT = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}.get(os.uname().machine if LINUX else "", (None, 0))
# name: (x86-64, aarch64). All that a computing CPython needs once every module is imported. rt_sigreturn is absent on
# purpose: a forged signal frame could block the signal of the CPU timer.
ALLOW = dict(brk=(12, 214), munmap=(11, 215), mremap=(25, 216), madvise=(28, 233), write=(1, 64), read=(0, 63),
             pwrite64=(18, 68), lseek=(8, 62), fstat=(5, 80), exit_group=(231, 94), exit=(60, 93), close=(3, 57),
             clock_gettime=(228, 113), gettimeofday=(96, 169), getpid=(39, 172))
KILL, YES, EPERM, PROT_EXEC, CLONE_THREAD = 0x80000000, 0x7FFF0000, 0x00050001, 4, 0x10000
# ((x86-64, aarch64), offset of an argument, bits, answer if one of them is set, answer if not)
BY_ARGUMENT = [((9, 222), 32, PROT_EXEC, EPERM, YES), ((10, 226), 32, PROT_EXEC, EPERM, YES),       # mmap, mprotect
               ((56, 220), 16, CLONE_THREAD, EPERM, KILL)]                                          # clone: thread or fork
# Who tries one of these is hostile, not clumsy: it dies with SIGSYS. All that is in no table fails with EPERM.
FATAL = dict(ptrace=(101, 117), process_vm_readv=(310, 270), process_vm_writev=(311, 271), kill=(62, 129),
             pidfd_open=(434, 434), execve=(59, 221), execveat=(322, 281), bpf=(321, 280), io_uring_setup=(425, 425),
             unshare=(272, 97), setns=(308, 268), mount=(165, 40), keyctl=(250, 219), userfaultfd=(323, 282),
             perf_event_open=(298, 241), seccomp=(317, 277), prctl=(157, 167))
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
NEW_USER, NEW_PID, NEW_OTHERS = 0x10000000, 0x20000000, 0x40000000 | 0x20000 | 0x8000000 | 0x4000000    # net mnt ipc uts
# These two run once a program. Python's own fork would seed `random` anew and rebuild locks, a tenth of a program's time; bound
# and with arguments made beforehand, prctl touches fewer pages that a child must copy first.
if hasattr(os, "fork"): raw_fork = ctypes.PyDLL(None).fork
if LINUX:
    libc, prctl = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None).prctl
    DIE_WITH_ZYGOTE = [ctypes.c_ulong(n) for n in (PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)]


def call(name, *args):
    """A libc function that returns 0 or raises OSError. Integers are passed as longs, bytes as pointers."""
    args = [ctypes.c_ulong(a) if type(a) is int else a for a in args]
    if getattr(libc, name)(*args) != 0: raise OSError(ctypes.get_errno(), name)


def branches(cases):
    """BPF lines that find a system call among sorted (number, lines of its answer) by halves. In the order of a list, a filter
    costs three times as much to install, for the kernel tries every number that it knows."""
    RET, EQ, GE = 0x06, 0x15, 0x35
    if len(cases) == 1:
        (number, answer), = cases
        return [(EQ, 0, len(answer), number), *answer, (RET, 0, 0, EPERM)]
    low, high = cases[:len(cases) // 2], cases[len(cases) // 2:]
    return [(GE, len(branches(low)), 0, high[0][0]), *branches(low), *branches(high)]


def seccomp_filter():
    """The BPF program as the struct that prctl wants, or None where this processor has no table."""
    if COLUMN is None: return None
    LOAD, EQ, GE, BITS, RET = 0x20, 0x15, 0x35, 0x45, 0x06
    code = [(LOAD, 0, 0, 4), (EQ, 1, 0, AUDIT), (RET, 0, 0, KILL), (LOAD, 0, 0, 0)]         # 32-bit entry points die
    if COLUMN == 0: code += [(GE, 0, 1, 0x40000000), (RET, 0, 0, KILL)]                     # and so do the x32 ones
    cases = {numbers[COLUMN]: [(RET, 0, 0, answer)] for table, answer in ((ALLOW, YES), (FATAL, KILL))
             for numbers in table.values()}
    for numbers, offset, bits, if_set, if_not in BY_ARGUMENT:
        cases[numbers[COLUMN]] = [(LOAD, 0, 0, offset), (BITS, 0, 1, bits), (RET, 0, 0, if_set), (RET, 0, 0, if_not)]
    code += branches(sorted(cases.items()))
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))

    class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    program = Program(len(code), ctypes.addressof(text))
    program.keep = text                                                                     # or the code would be freed
    return program


# ---- zygote and child -------------------------------------------------------------------------------------------------

NOBODY = 65533                                  # the user that children run as where the trainer is root


def arguments(text):
    """The tuple of arguments between the parentheses of a call, all literals, or None. Runs in the child only."""
    try:
        node = ast.parse("f(" + text + " \n)", mode="eval").body      # closes a comment, and joins no lines
        # "1) or (True" and "1), (2" parse too, but not as one call of f
        if type(node) is not ast.Call or type(node.func) is not ast.Name or node.keywords: return None
        return tuple([ast.literal_eval(argument) for argument in node.args])
    except BaseException: return None


def reason(error):
    "what goes into the verdict for an exception, as bytes of one line; the exception may be hostile"
    try:
        kind = type(error)
        text = str(error)[:200] if kind is Unsupported else "error: %s: %s" % (kind.__name__[:60], str(error)[:200])
        return text.encode("ascii", "replace").replace(b"\n", b" ")
    except BaseException: return b"error: Exception: (cannot be printed)"


def plainer(value, depth=MAX_DEPTH):
    "subclasses of builtin types as these, for programs whose values are compared with Python's =="
    for kind in bool, int, float, complex, str, bytes:
        if isinstance(value, kind): return kind(value)
    if depth == 0: raise Unsupported("unsupported: nested too deeply or cyclic")
    if isinstance(value, dict): return {plainer(k, depth - 1): plainer(v, depth - 1) for k, v in value.items()}
    for kind in list, tuple, set, frozenset:
        if isinstance(value, kind): return kind([plainer(x, depth - 1) for x in value])
    return value


def text_of(value, profile):
    "canonical text of what a call returned"
    try: return encode(value, limit=profile.max_text)
    except Unsupported as e:
        if not profile.lenient or str(e) == "too big": raise
        return encode(plainer(value), limit=profile.max_text)


def perform(job, write, profile):
    "the untrusted side: whatever happens or is faked in here is only a claim about values"
    code, entry, inputs, order = job
    calls = [arguments(inputs[i]) for i in order]                     # before the program can change what a literal is
    failed = None
    try:
        module = sys.modules["program"] = types.ModuleType("program")
        exec(compile(code, "<program>", "exec", dont_inherit=True), module.__dict__)
        if entry not in module.__dict__: raise NameError("the program defines no " + entry)
        function = module.__dict__[entry]
    except BaseException as e: failed = reason(e)
    write(b">\n")                                                     # what dies from here on dies of one of its inputs
    for args in calls:
        try:
            if failed: line = b"!" + failed
            elif args is None: line = b"!not a literal"
            else: line = b"=" + text_of(function(*args), profile).encode()
        except BaseException as e: line = b"!" + reason(e)
        write(line + b"\n")


def run_script(code):
    "a whole program with files for standard input and output -> exit status; the untrusted side as well"
    try:
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<program>", "exec", dont_inherit=True), module.__dict__)
    except SystemExit: pass                                           # exit() at the end of a program that has printed its answer
    except BaseException: return 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return 0


def child(given, size, cpu_s, wall, profile):
    "runs in the forked child and never returns. given: bytes of standard input in front of the job"
    signal.setitimer(signal.ITIMER_PROF, cpu_s)                       # default action: die. The filter forbids to change it
    job = marshal.loads(os.pread(JOB, size, given))                   # trainer to child is the trusted direction
    script = job[1] is None
    if script:
        os.ftruncate(JOB, given)
        os.lseek(JOB, 0, os.SEEK_SET)
        os.dup2(JOB, 0)
        os.dup2(RESULT, 1)
    os.closerange(RESULT if script else JOB, OWNER + 1)
    if LINUX and prctl(*DIE_WITH_ZYGOTE) or wall and prctl(*wall): os._exit(111)
    if wall is None: resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))          # weak: at least no fork
    if script: os._exit(run_script(job[0]))
    perform(job, lambda line: os.write(RESULT, line), profile)
    os._exit(0)


def attempt(layers, name, function):
    "one best-effort layer; whether it holds is in the report"
    try:
        if layers.get(name): raise OSError(layers[name])
        function()
        layers[name] = "ok"
    except Exception as e: layers[name] = "%s: %s" % (type(e).__name__, e)


def lock(layers, mem_mb, max_file, weak):
    "once per zygote, before any job: everything that its children inherit"
    root, uid, gid = os.geteuid() == 0, os.getuid(), os.getgid()
    kinds = NEW_OTHERS | (NEW_PID if weak else 0)

    def namespaces():
        "its own network, mounts and so on; without root only as the one user of a new user namespace"
        if root:
            try: return call("unshare", kinds)
            except OSError: pass                                      # root of a container: try it as a user would
        call("unshare", NEW_USER | kinds)
        for name, text in ("setgroups", "deny"), ("uid_map", "%d %d 1" % (uid, uid)), ("gid_map", "%d %d 1" % (gid, gid)):
            with open("/proc/self/" + name, "w") as f: f.write(text)

    def empty_root():
        "an empty tmpfs as root, so that no file has a name; /proc, which every system has, is where it is mounted"
        if layers["namespaces"] != "ok": raise OSError("left out, for it would change the mounts of the whole machine")
        call("mount", b"none", b"/", None, 0x44000, None)             # MS_REC | MS_PRIVATE
        call("mount", b"none", b"/proc", b"tmpfs", 0xF, b"size=4k,mode=555")
        os.chroot("/proc")
        os.chdir("/")
        if os.listdir("/"): raise OSError("the new root is not empty")

    def drop_user():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    pages = int(open("/proc/self/statm").read().split()[0]) if os.path.exists("/proc/self/statm") else 1 << 14
    if LINUX:
        attempt(layers, "namespaces", namespaces)
        attempt(layers, "empty_root", empty_root)
        if root: attempt(layers, "drop_user", drop_user)
        capset = {"x86_64": 126}.get(os.uname().machine, 91)
        attempt(layers, "no_capabilities", lambda: call("syscall", capset, struct.pack("Ii", 0x20080522, 0), bytes(24)))
        attempt(layers, "no_new_privs", lambda: call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        attempt(layers, "not_dumpable", lambda: call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0))
    limits = dict(CORE=0, FSIZE=max_file, NOFILE=16, STACK=8 << 20, MEMLOCK=0, MSGQUEUE=0, AS=pages * 4096 + (mem_mb << 20))
    for name, limit in limits.items():
        which = getattr(resource, "RLIMIT_" + name, None)
        if which is None: continue
        hard = resource.getrlimit(which)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        attempt(layers, "limit_" + name.lower(), lambda: resource.setrlimit(which, (limit, limit)))


def enter_pid_namespace():
    """Weak mode, after lock() asked for it: the zygote goes on as first process of a PID namespace, so that nothing in
    there survives it or sees what is outside. The process that was started stays outside and watches both ends."""
    zygote = os.fork()
    if zygote == 0: return
    os.closerange(RESULT, OWNER)
    watch = select.poll()
    for fd in (OWNER, os.pidfd_open(zygote)): watch.register(fd, select.POLLIN)
    watch.poll()
    os._exit(0)                                                       # the zygote asked to be killed when this happens


def seccomp_works(wall):
    "True where a forked child can put up the wall; whether the wall holds is for the canaries to say"
    pid = os.fork()
    if pid == 0: os._exit(1 if prctl(*wall) else 0)
    return os.waitpid(pid, 0)[1] == 0


def prepare(options):
    """Imports, locks the zygote up, reports its layers to the trainer -> the profile; the wall that children put up, as
    arguments of prctl, None without seccomp; the filter, lest it be freed."""
    profile = PROFILES[options["profile"]]
    os.environ.clear()
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in options["fds"]]        # out of the way of the slots below
    os.closerange(RESULT, 100)
    for slot, fd in enumerate(fds, RESULT): os.dup2(fd, slot)
    os.closerange(100, max(fds + options["fds"]) + 1)
    layers = dict(options["without"])
    sys.path[:], sys.argv[:], sys.stdin, sys.stdout, sys.stderr = sys.path[1:], [""], open(0), open(1, "w"), open(2, "w")
    sys.modules["_hashlib"] = None                              # hashlib without OpenSSL: fewer pages, less code to attack
    for name in "SIGPROF", "SIGXFSZ", "SIGCHLD", "SIGINT":      # whatever Python, or who started the trainer, made of them
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for name in profile.imports:
        try: __import__(name)
        except ImportError: pass                                                # not in this Python version
    sys.path[:] = []
    sys.modules["warnings"].simplefilter("ignore")
    program = None if "seccomp" in layers else seccomp_filter()
    wall = program and [ctypes.c_ulong(n) for n in (PR_SET_SECCOMP, 2, ctypes.addressof(program), 0, 0)]
    lock(layers, options["mem_mb"], profile.max_file, weak=wall is None)
    if wall is not None and not seccomp_works(wall): wall, layers["seccomp"] = None, "refused by the kernel"
    layers.setdefault("seccomp", "ok" if wall is not None else "no table for this processor")
    if LINUX:
        if wall is None and layers["namespaces"] == "ok":
            enter_pid_namespace()
            layers["pid_namespace"] = "ok"
            call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        else: call("prctl", PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)     # wakes a stopped zygote to see the end
    warm = "def f(x):\n    return {1: (x, 'a'), 'k': {x}}\n", "f", ["1"], [0]
    for _ in range(100): perform(warm, lambda line: None, profile)              # children inherit specialised bytecode
    sys.modules["random"].seed(options["which"])                                # the same draws in every run, others in the twin
    gc.collect()
    gc.freeze()
    os.write(CONTROL, json.dumps(layers).encode() + b"\n")
    return profile, wall, program


def serve(profile, wall):
    "the zygote's loop. It polls the control socket and the trainer itself, and takes its child along when they end"
    poll, has_pidfd = select.poll(), hasattr(os, "pidfd_open")
    poll.register(CONTROL, select.POLLIN)
    if has_pidfd: poll.register(OWNER, select.POLLIN)
    while True:
        if any(fd == OWNER for fd, _ in poll.poll()): os._exit(0)     # also where a helper keeps the socket open
        message = os.read(CONTROL, GO.size)
        if len(message) < GO.size: os._exit(0)
        given, size, cpu_ms, wall_ms = GO.unpack(message)
        deadline, late, status = time.monotonic() + wall_ms / 1000, 0, None
        pid = raw_fork()
        if pid < 0: os._exit(1)                                       # no memory or no process left; the trainer tries again
        if pid == 0:
            try: child(given, size, cpu_ms / 1000, wall, profile)
            finally: os._exit(111)
        fd = os.pidfd_open(pid) if has_pidfd else -1
        if has_pidfd: poll.register(fd, select.POLLIN)
        while status is None:
            events = poll.poll(wall_ms if has_pidfd else 2)
            gone, late = any(ready != fd for ready, _ in events), int(time.monotonic() >= deadline)
            if gone or late: os.kill(pid, signal.SIGKILL)
            if gone: os._exit(0)
            done, status, usage = os.wait4(pid, 0 if events or late else os.WNOHANG)
            status = status if done else None
        if has_pidfd:
            poll.unregister(fd)
            os.close(fd)
        os.write(CONTROL, DONE.pack(status, late, int((usage.ru_utime + usage.ru_stime) * 1e6)))


if __name__ == "__main__":
    options = json.loads(os.environ["NANOPOPULORA_SANDBOX"])
    # its twin's addresses differ in all digits, and so do the counts of references to what everybody refers to
    padding = [(bytes(n), None) for n in range(0, 512, 16) for _ in range(options["which"])]
    try: profile, wall, program = prepare(options)
    except Exception as e:                                                      # the trainer makes an error message of it
        os.write(CONTROL, ("%s: %s" % (type(e).__name__, e)).encode())
        os._exit(1)
    serve(profile, wall)
