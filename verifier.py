"""
verifier.py -- the judge: runs programs written by a model and reports the values they return.

    python verifier.py --self-check          print the tier and what each canary program met
    python verifier.py --siege DIR           run a folder of hostile programs, one line each, a JSON line last

    trainer (torch, secrets, expected answers)      this process; only ever reads bytes and checks them
      |  execs fresh interpreters of this file; control socket (fixed-size structs), job file, result file
      +-- zygote (one thread, library preloaded)    two per worker, hash seeds 0 and 1; reads no job and no result
            |  forks once per program
            +-- child: reads its job, shuts itself in, runs it, writes canonical values, dies

Promises. A program cannot open, create or list files, reach a network, start or signal processes, see another task,
the trainer's memory, environment or expected answers, outlive its verdict, use more than its CPU time, memory and
result size, or end as anything but a named Verdict. What it reports is only a claim about its own return values, taken
if it is canonical text byte for byte. How it ended is what the kernel says. `Sandbox.run` never raises for it.

Layers. Fresh exec: no memory, environment or descriptor of the trainer gets in. Seccomp allow-list, the wall: some 15
system calls are left, the rest is refused or kills. Namespaces, empty root, dropped user and capabilities: a second
wall, should the first have a hole; best effort. Limits: CPU timer, address space, file size, and the zygote's wall
clock. Canonical text: nothing that a program made is unpickled, evaluated, or compared by its own methods. Hash seeds:
deterministic jobs run in two interpreters, the second time in reverse and twice over.

Tiers. "full"; "no namespaces" (the wall without the second one); "weak" (no seccomp: not Linux, other processors; for
development with programs you trust, only with weak=True). Canary programs through the normal path decide, not return
codes. Does not promise: bugs of the kernel behind those calls, side channels such as timing, and anything in "weak".
"""
import ast, collections, ctypes, fcntl, gc, json, marshal, os, platform, re, resource, select, signal, socket, struct, sys, time, types
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote

MAX_TEXT = 1 << 16      # characters of one canonical value
MAX_FILE = 1 << 18      # bytes that one child may report
MAX_JOB = 1 << 20       # bytes of one program and its inputs
MAX_DEPTH = 64          # nesting of one value
NAN = float("nan")      # decode() gives every nan as this object, so that Python's == finds nan equal to nan in containers


# ---- canonical values: the only thing that crosses --------------------------------------------------------------------

class Unsupported(ValueError):
    """A value that is not plain data, or too big; the text is the reason that goes into the verdict."""


def encode(value, depth=MAX_DEPTH):
    """Canonical JSON text (ASCII) of a plain value; two values of one type and content give one text.
    Exact builtin types only. Tagged: tuple t, dict d (in its order), set s and frozenset z (sorted), bytes b,
    complex c, integers beyond 2^53 i (hex, at most 3900 bits). Raises Unsupported, a ValueError."""
    kind = type(value)
    if kind is str:
        try: return fit(quote(fit(value) if value.isascii() else fit(value).encode().decode()))
        except UnicodeEncodeError: raise Unsupported("unsupported: string with lone surrogates") from None
    if kind is int:
        if -2**53 <= value <= 2**53: return repr(value)
        if value.bit_length() > 3900: raise Unsupported("unsupported: integer of more than 3900 bits")
        return '{"i":"%x"}' % value
    if value is None or kind is bool: return "null" if value is None else "true" if value else "false"
    if kind is float: return repr(value) if value - value == 0 else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if kind is bytes: return '{"b":"%s"}' % fit(fit(value).hex())
    if kind is complex: return '{"c":[%s,%s]}' % (encode(value.real), encode(value.imag))
    if kind not in (list, tuple, dict, set, frozenset): raise Unsupported("unsupported: value of type " + kind.__name__[:40])
    if depth == 0: raise Unsupported("unsupported: nested too deeply or cyclic")
    if len(value) > MAX_TEXT // 2: raise Unsupported("too big")
    if kind is dict: texts = ["[%s,%s]" % (encode(k, depth - 1), encode(v, depth - 1)) for k, v in value.items()]
    else: texts = [encode(x, depth - 1) for x in value]
    if kind is list: return fit("[" + ",".join(texts) + "]")
    if kind is set or kind is frozenset: texts.sort()
    return fit('{"%s":[%s]}' % ({tuple: "t", dict: "d", set: "s", frozenset: "z"}[kind], ",".join(texts)))


def fit(text):
    """The text, or Unsupported("too big"): checked at every level, so that shared references cannot grow it first."""
    if len(text) > MAX_TEXT: raise Unsupported("too big")
    return text


def decode(text):
    """The value of a canonical text. Strict: raises ValueError for anything that encode() would not have written."""
    try:
        if len(text) > MAX_TEXT: raise ValueError("too big")
        value = plain(json.loads(text))
        if encode(value) != text: raise ValueError("not the canonical form")
        return value
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as e:
        raise ValueError("not canonical text: %s" % e) from None


def plain(j):
    "JSON value -> Python value; sloppy on purpose, because decode() writes it out again and compares"
    if type(j) is list: return [plain(x) for x in j]
    if type(j) is not dict: return NAN if j != j else j
    (tag, v), = j.items()
    if tag == "i": return int(v, 16) if len(v) < 1000 else v
    if tag == "b": return bytes.fromhex(v)
    if tag == "c": return complex(*map(float, v))
    if tag == "t": return tuple([plain(x) for x in v])
    items = [(plain(k), plain(x)) for k, x in v] if tag == "d" else [plain(x) for x in v]
    # a forged set of values with one common hash would cost quadratic time here
    if len(items) > 64 * len({hash(x[0] if tag == "d" else x) for x in items}): raise ValueError("colliding keys")
    return {"d": dict, "s": set, "z": frozenset}[tag](items)


def same(a, b):
    """Equality for reward, on decoded values: Python's ==, and nan equals nan (True == 1 == 1.0, (1,) != [1])."""
    return a == b or encode(a) == encode(b)


# ---- kernel walls, by hand --------------------------------------------------------------------------------------------

LINUX = sys.platform == "linux"
COLUMN, AUDIT = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}.get(platform.machine() if LINUX else "", (None, 0))
# name: (x86-64, aarch64). All that a computing CPython needs once every module is imported. rt_sigreturn is absent on
# purpose: a forged signal frame could block the signal of the CPU timer.
ALLOW = dict(brk=(12, 214), munmap=(11, 215), mremap=(25, 216), madvise=(28, 233), write=(1, 64), read=(0, 63),
             pwrite64=(18, 68), lseek=(8, 62), fstat=(5, 80), exit_group=(231, 94), exit=(60, 93), close=(3, 57),
             clock_gettime=(228, 113), gettimeofday=(96, 169), getpid=(39, 172))
NOT_EXECUTABLE = dict(mmap=(9, 222), mprotect=(10, 226))     # allowed unless they ask for PROT_EXEC
# Who tries one of these is hostile, not clumsy: it dies with SIGSYS. All that is in no table fails with EPERM.
FATAL = dict(ptrace=(101, 117), process_vm_readv=(310, 270), process_vm_writev=(311, 271), kill=(62, 129),
             pidfd_open=(434, 434), execve=(59, 221), execveat=(322, 281), bpf=(321, 280), io_uring_setup=(425, 425),
             unshare=(272, 97), setns=(308, 268), mount=(165, 40), keyctl=(250, 219), userfaultfd=(323, 282),
             perf_event_open=(298, 241), seccomp=(317, 277), prctl=(157, 167))
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
NEW_USER, NEW_PID, NEW_OTHERS = 0x10000000, 0x20000000, 0x40000000 | 0x20000 | 0x8000000 | 0x4000000    # net mnt ipc uts
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    """A libc function that returns 0 or raises OSError. Integers are passed as longs, bytes as pointers."""
    args = [ctypes.c_ulong(a) if type(a) is int else a for a in args]
    if getattr(libc, name)(*args) != 0: raise OSError(ctypes.get_errno(), name)


def seccomp_filter():
    """The BPF program as the struct that prctl wants, or None where this processor has no table."""
    if COLUMN is None: return None
    LOAD, EQ, GE, BITS, JUMP, RET = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
    KILL, YES, EPERM = 0x80000000, 0x7FFF0000, 0x00050001
    code = [(LOAD, 0, 0, 4), (EQ, 1, 0, AUDIT), (RET, 0, 0, KILL), (LOAD, 0, 0, 0)]         # 32-bit entry points die
    if COLUMN == 0: code += [(GE, 0, 1, 0x40000000), (RET, 0, 0, KILL)]                     # and so do the x32 ones
    for numbers in NOT_EXECUTABLE.values():                                                 # third argument & PROT_EXEC
        code += [(EQ, 0, 4, numbers[COLUMN]), (LOAD, 0, 0, 32), (BITS, 0, 1, 4), (RET, 0, 0, EPERM), (RET, 0, 0, YES)]
    for table, answer in (ALLOW, YES), (FATAL, KILL):
        code += [(EQ, len(table) - i, 0, numbers[COLUMN]) for i, numbers in enumerate(table.values())]
        code += [(JUMP, 0, 0, 1), (RET, 0, 0, answer)]
    code.append((RET, 0, 0, EPERM))
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))

    class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    program = Program(len(code), ctypes.addressof(text))
    program.keep = text                                                                     # or the code would be freed
    return program


# ---- zygote and child -------------------------------------------------------------------------------------------------

# What a program may import; all else raises ImportError, for no file can be opened in there. Never `threading`, whose
# fork hook doubles the pages that each child copies.
PRELOAD = """math cmath re collections collections.abc itertools functools operator heapq bisect string random json copy typing
dataclasses enum datetime decimal fractions statistics abc types textwrap unicodedata hashlib base64 struct array numbers
contextlib calendar _strptime zlib binascii time pprint difflib graphlib ast warnings traceback io sys os builtins __future__
keyword inspect reprlib weakref html uuid encodings.ascii encodings.latin_1 encodings.utf_16 encodings.utf_16_le
encodings.utf_16_be encodings.utf_32 encodings.utf_32_le encodings.utf_32_be encodings.utf_8_sig encodings.cp1252
encodings.idna encodings.punycode encodings.unicode_escape encodings.hex_codec encodings.rot_13 encodings.base64_codec""".split()
RESULT, JOB, CONTROL, OWNER = 3, 4, 5, 6        # the zygote's descriptors; OWNER is a pidfd of the trainer
GO = struct.Struct("<III")                      # bytes of the job, CPU ms, wall ms
DONE = struct.Struct("<iIQ")                    # wait status, 1 if the wall clock ended it, CPU us
NOBODY = 65533                                  # the user that children run as where the trainer is root


def arguments(text):
    """The tuple of arguments between the parentheses of a call, all literals, or None. Runs in the child only."""
    try:
        node = ast.parse("f(" + text + "\n)", mode="eval").body       # the newline closes a comment
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


def perform(job, write):
    "the untrusted side: whatever happens or is faked in here is only a claim about values"
    code, entry, inputs, order = marshal.loads(job)                   # trainer to child is the trusted direction
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
            else: line = b"=" + encode(function(*args)).encode()
        except BaseException as e: line = b"!" + reason(e)
        write(line + b"\n")


def child(size, cpu_s, wall):
    "runs in the forked child and never returns"
    signal.setitimer(signal.ITIMER_PROF, cpu_s)                       # default action: die. The filter forbids to change it
    job = os.pread(JOB, size, 0)
    os.closerange(JOB, OWNER + 1)
    if LINUX: call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if wall is not None: call("prctl", PR_SET_SECCOMP, 2, ctypes.byref(wall), 0, 0)
    else: resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))           # weak: at least no fork
    perform(job, lambda line: os.write(RESULT, line))
    os._exit(0)


def attempt(layers, name, function):
    "one best-effort layer; whether it holds is in the report"
    try:
        if layers.get(name): raise OSError(layers[name])
        function()
        layers[name] = "ok"
    except Exception as e: layers[name] = "%s: %s" % (type(e).__name__, e)


def lock(layers, mem_mb, weak):
    "once per zygote, before any job: everything that its children inherit"
    root, uid, gid = os.geteuid() == 0, os.getuid(), os.getgid()
    kinds = NEW_OTHERS | (NEW_PID if weak else 0)

    def namespaces():
        if root:
            try: return call("unshare", kinds)
            except OSError: pass                                      # root of a container: try it as a user would
        call("unshare", NEW_USER | kinds)
        for name, text in ("setgroups", "deny"), ("uid_map", "%d %d 1" % (uid, uid)), ("gid_map", "%d %d 1" % (gid, gid)):
            with open("/proc/self/" + name, "w") as f: f.write(text)

    def empty_root():
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
        capset = {"x86_64": 126}.get(platform.machine(), 91)
        attempt(layers, "no_capabilities", lambda: call("syscall", capset, struct.pack("Ii", 0x20080522, 0), bytes(24)))
        attempt(layers, "no_new_privs", lambda: call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        attempt(layers, "not_dumpable", lambda: call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0))
    limits = dict(CORE=0, FSIZE=MAX_FILE, NOFILE=16, STACK=8 << 20, MEMLOCK=0, MSGQUEUE=0, AS=pages * 4096 + (mem_mb << 20))
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
    if pid == 0:
        try: call("prctl", PR_SET_SECCOMP, 2, ctypes.byref(wall), 0, 0)
        except Exception: os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def zygote():
    "the process between trainer and children: imports, locks itself up, then forks on demand until the trainer is gone"
    options = json.loads(os.environ.pop("NANOPOPULORA_SANDBOX"))
    os.environ.clear()
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in options["fds"]]        # out of the way of the slots below
    os.closerange(RESULT, 100)
    for slot, fd in enumerate(fds, RESULT): os.dup2(fd, slot)
    os.closerange(100, max(fds + options["fds"]) + 1)
    control, layers = socket.socket(fileno=CONTROL), dict(options["without"])
    sys.path[:], sys.argv[:], sys.stdin, sys.stdout, sys.stderr = sys.path[1:], [""], open(0), open(1, "w"), open(2, "w")
    for name in PRELOAD:
        try: __import__(name)
        except ImportError: pass                                                # not in this Python version
    sys.path[:] = []
    sys.modules["warnings"].simplefilter("ignore")
    wall = None if "seccomp" in layers else seccomp_filter()
    lock(layers, options["mem_mb"], weak=wall is None)
    if wall is not None and not seccomp_works(wall): wall, layers["seccomp"] = None, "refused by the kernel"
    layers.setdefault("seccomp", "ok" if wall is not None else "no table for this processor")
    if LINUX:
        if wall is None and layers["namespaces"] == "ok":
            enter_pid_namespace()
            layers["pid_namespace"] = "ok"
            call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        else: call("prctl", PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)     # wakes a stopped zygote to see the end
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warm = marshal.dumps(("def f(x):\n    return {1: (x, 'a'), 'k': {x}}\n", "f", ["1"], [0]))
    for _ in range(100): perform(warm, lambda line: None)                       # children inherit specialised bytecode
    gc.collect()
    gc.freeze()
    control.sendall(json.dumps(layers).encode() + b"\n")
    serve(control, wall)


def serve(control, wall):
    "the zygote's loop. It polls the control socket and the trainer itself, and takes its child along when they end"
    poll, has_pidfd = select.poll(), hasattr(os, "pidfd_open")
    poll.register(CONTROL, select.POLLIN)
    if has_pidfd: poll.register(OWNER, select.POLLIN)
    while True:
        poll.poll()
        message = control.recv(GO.size)
        if len(message) < GO.size: os._exit(0)
        size, cpu_ms, wall_ms = GO.unpack(message)
        deadline, late, status = time.monotonic() + wall_ms / 1000, 0, None
        pid = os.fork()
        if pid == 0:
            try: child(size, cpu_ms / 1000, wall)
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
        control.sendall(DONE.pack(status, late, int((usage.ru_utime + usage.ru_stime) * 1e6)))


# ---- trainer side -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Job:
    """A program and argument texts as between the parentheses of a call ("[1, 2], 3"; "" = none), literals only.
    deterministic: also demand that every input gives one value in two interpreters, in any order, once or twice."""
    code: str
    inputs: tuple[str, ...]
    entry: str = "f"
    deterministic: bool = False


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
    "one job under judgement: what each pass saw of each input, (end, [(mark, text), ...])"
    job: Job
    seen: tuple
    open: int = 0
    cpu_s: float = 0.0
    end: str = "ok"


@dataclass
class Run:
    "one child: pass 0 takes inputs once with hash seed 0, pass 1 takes them twice with hash seed 1"
    case: Case
    which: int
    order: tuple
    tries: int = 0


class Zygote:
    "the trainer's end of one zygote"

    def __init__(self, seed, options):
        import subprocess                                             # not above: it would bring threading into the zygote
        self.seed, self.run, self.deadline = seed, None, 0.0
        self.job, self.result = (os.memfd_create("x") for _ in range(2))
        self.control, theirs = socket.socketpair()
        fds = [self.result, self.job, theirs.fileno()]
        if LINUX: fds.append(os.pidfd_open(os.getpid()))
        environment = dict(PYTHONHASHSEED=str(seed), LD_BIND_NOW="1", LC_ALL="C.UTF-8",
                           NANOPOPULORA_SANDBOX=json.dumps(dict(options, fds=fds)))
        self.process = subprocess.Popen([sys.executable, "-sSB", os.path.abspath(__file__), "--zygote"], env=environment,
                                        cwd="/", pass_fds=fds, start_new_session=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        theirs.close()
        if LINUX: os.close(fds[-1])

    def ready(self):
        "waits for it to be locked up -> its layers"
        self.control.settimeout(30)
        text = b""
        while not text.endswith(b"\n"):
            part = self.control.recv(1 << 16)
            if not part: raise RuntimeError("a sandbox process ended while it started; see what `%s -sSB %s --self-check` "
                                            "prints" % (sys.executable, os.path.abspath(__file__)))
            text += part
        return json.loads(text)

    def start(self, run, cpu_s, wall_s):
        job, times = run.case.job, 1 + run.which
        body = marshal.dumps((job.code, job.entry, job.inputs, run.order))
        os.ftruncate(self.result, 0)
        os.lseek(self.result, 0, os.SEEK_SET)
        os.pwrite(self.job, body, 0)
        self.run, self.deadline = run, time.monotonic() + wall_s * times + 2
        try: self.control.sendall(GO.pack(len(body), int(cpu_s * times * 1000), int(wall_s * times * 1000)))
        except OSError: pass                                          # it is dead, which poll() reports

    def finish(self):
        "-> (how the kernel says it ended, CPU seconds, what it claims); OSError where the zygote is dead"
        message = self.control.recv(DONE.size)
        if len(message) != DONE.size: raise OSError("the zygote is dead")
        status, late, cpu_us = DONE.unpack(message)
        names = {signal.SIGPROF: "timeout", signal.SIGKILL: "killed", signal.SIGSYS: "violation", signal.SIGXFSZ: "too big"}
        end = "ok" if status == 0 else "timeout" if late else "exit"
        if not late and os.WIFSIGNALED(status): end = names.get(os.WTERMSIG(status), "crash")
        return end, cpu_us / 1e6, os.pread(self.result, MAX_FILE, 0)

    def close(self):
        self.control.close()
        self.process.kill()
        self.process.wait()
        os.close(self.job)
        os.close(self.result)


def printable(text):
    """At most 200 characters of printable ASCII: safe in logs, terminals and JSON."""
    return re.sub("[^ -~]", "?", text[:200])


def read_claims(raw, order, end):
    """Bytes from a child -> (end, whether the program was loaded, [(mark, text), ...] for a prefix of order).
    Nothing in here is trusted: one line per input, canonical values only, and anything extra is "malformed"."""
    *lines, rest = raw.split(b"\n")
    claims = []
    try:
        if lines and lines[0] != b">" or len(lines) > 1 + len(order): raise ValueError
        if rest and end == "ok": raise ValueError
        for line in lines[1:]:
            mark, text = line[:1], line[1:].decode("ascii")
            if mark == b"=": decode(text)
            elif mark == b"!": text = printable(text)
            else: raise ValueError
            claims.append((mark, text))
    except ValueError: return "malformed", True, []
    if len(raw) >= MAX_FILE: end = "too big"
    if end == "ok" and len(claims) < len(order): end = "exit"
    if end != "ok": del claims[len(order) - 1:]                       # it did not live to finish its last line honestly
    return end, bool(lines), claims


class Sandbox:
    """Runs jobs on `workers` processor cores at once. cpu_s: CPU seconds of one child; wall_s: backstop for one that
    sleeps; mem_mb: address space beyond the interpreter's own. tier and report say what protects; replaced counts
    zygotes that had to be started again. Raises RuntimeError where it cannot protect, unless weak=True.
    without: layers to leave out, for tests of the tiers ("seccomp", "namespaces")."""

    def __init__(self, workers=2, cpu_s=0.5, wall_s=3.0, mem_mb=256, weak=False, without=()):
        if workers < 1 or cpu_s < 0.01 or wall_s < cpu_s or mem_mb < 16:
            raise ValueError("the sandbox needs workers >= 1, cpu_s >= 0.01, wall_s >= cpu_s and mem_mb >= 16")
        import threading                                              # not above: the zygote runs this file too
        self.workers, self.cpu_s, self.wall_s, self.replaced, self.lock = workers, cpu_s, wall_s, 0, threading.Lock()
        self.options = dict(mem_mb=mem_mb, without={name: "left out" for name in without})
        self.zygotes, self.poll, self.by_fd = [], select.poll(), {}
        try:
            for i in range(2 * workers): self.zygotes.append(Zygote(i % 2, self.options))
            self.report = [self.admit(zygote) for zygote in self.zygotes][0]
            self.report["canaries"] = canaries = self.send_canaries()
            self.tier = self.report["tier"] = self.judge_canaries(canaries, weak)
        except BaseException:
            self.close()
            raise

    def send_canaries(self):
        "harmless attacks through the normal path -> name: what happened"
        probes = Job(CANARY, tuple(map(repr, CANARIES)))
        verdict, = self.run([probes])
        met = dict(zip(CANARIES, (o and decode(o) or e for o, e in zip(verdict.outputs, verdict.errors))))
        limits = self.cpu_s, self.wall_s
        self.cpu_s, self.wall_s = 0.05, 2.0
        met["endless loop"] = self.run([Job("def f():\n while True: pass", ("",))])[0].end
        self.cpu_s, self.wall_s = limits
        met["honest program"] = self.run([Job("def f(x): return {x: (x,)}", ("2",), deterministic=True)])[0].outputs[0]
        return met

    def judge_canaries(self, canaries, weak):
        "-> tier; refuses or warns where something was allowed"
        if canaries["honest program"] != '{"d":[[2,{"t":[2]}]]}': raise RuntimeError("the sandbox cannot run programs here: %s"
                                                                                     % self.report)
        holes = [name for name in CANARIES if not canaries[name].startswith(("refused", "violation"))]
        holes += [] if canaries["endless loop"] == "timeout" else ["endless loop"]
        holes += [name for name in ("seccomp", "no_new_privs", "limit_fsize", "limit_core") if self.report.get(name) != "ok"]
        if not holes: return "full" if self.report["empty_root"] == "ok" else "no namespaces"
        text = "a program could get past: %s" % ", ".join("%s (%s)" % (n, canaries.get(n) or self.report.get(n)) for n in holes)
        if not weak:
            raise RuntimeError("The sandbox refuses to run model code here: %s. It needs Linux on x86-64 or aarch64 with "
                               "seccomp. Run in such a machine or container, or, for development with programs you trust, "
                               "pass weak=True." % text)
        sys.stderr.write("\nWARNING: WEAK SANDBOX. DO NOT RUN CODE THAT YOU DO NOT TRUST: %s\n\n" % text)
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
        fresh = self.zygotes[self.zygotes.index(zygote)] = Zygote(zygote.seed, self.options)
        self.admit(fresh)
        self.replaced += 1

    def run(self, jobs):
        """list[Job] -> list[Verdict], in order. Never raises for anything that a program does. When a child ends before
        it has answered all of its inputs, the others run again, each in a child of its own."""
        with self.lock:
            cases = [Case(job, ({}, {})) for job in jobs]
            queue = collections.deque()
            for case in cases:
                order = tuple(range(len(case.job.inputs)))
                if len(case.job.code) + sum(map(len, case.job.inputs)) > MAX_JOB:
                    case.end, case.seen[0].update((i, ("too big", [])) for i in order)
                else: self.plan(queue, Run(case, 0, order))
            try: self.work(queue)
            except BaseException:
                for zygote in [z for z in self.zygotes if z.run]: self.replace(zygote)
                raise
            return [conclude(case) for case in cases]

    def plan(self, queue, run, first=False):
        run.case.open += 1
        (queue.appendleft if first else queue.append)(run)

    def work(self, queue):
        "the scheduler: keeps `workers` zygotes busy until the queue, to which results may add, is empty"
        busy = 0
        while queue or busy:
            while queue and busy < self.workers:
                run = queue.popleft()
                next(z for z in self.zygotes if z.seed == run.which and not z.run).start(run, self.cpu_s, self.wall_s)
                busy += 1
            now = time.monotonic()
            wait = min(z.deadline for z in self.zygotes if z.run) - now
            ready = [self.by_fd[fd] for fd, _ in self.poll.poll(max(0, wait * 1000) + 1)]
            for zygote in ready or [z for z in self.zygotes if z.run and z.deadline <= now + wait]:
                run, zygote.run = zygote.run, None
                try:
                    if zygote not in ready: raise OSError("the zygote is stuck")
                    end, cpu_s, raw = zygote.finish()
                except OSError:
                    self.replace(zygote)
                    if run is None: continue
                    end, cpu_s, raw = "sandbox failure", 0.0, b""
                busy -= 1
                run.case.open -= 1
                run.case.cpu_s += cpu_s
                if end == "sandbox failure" and run.tries < 2: self.plan(queue, Run(run.case, run.which, run.order, run.tries + 1))
                else: self.absorb(queue, run, end, raw)

    def absorb(self, queue, run, end, raw):
        "files what one child said, and plans what has to follow"
        case, seen = run.case, run.case.seen[run.which]
        end, loaded, claims = read_claims(raw, run.order, end)
        if not run.order: case.end = end
        for i in dict.fromkeys(run.order):
            said = [claim for j, claim in zip(run.order, claims) if i == j]
            if len(said) == 1 + run.which: seen[i] = ("ok", said)
            elif loaded and len(set(run.order)) > 1 and (claims or i != run.order[0] or end == "malformed"):
                self.plan(queue, Run(case, run.which, (i,) * (1 + run.which)), first=True)
            else: seen[i] = (end, [])
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


CANARIES = {"open a file": 'open("/etc/passwd")', "write a file": 'open("/tmp/canary", "w")', "list a folder": 'os.listdir("/")',
            "socket": "socket.socket()", "fork": "os.fork() or os._exit(0)", "pipe": "os.pipe()", "become root": "os.setuid(0)",
            "8 GB": "bytearray(1 << 33)", "read the environment": "os.environ['PATH']", "raw mount": "None if libc.mount(0, 0, 0, 0, 0) == 0 else 1 / 0",
            "start a program": "os.execv('/bin/true', ['true'])", "signal the parent": "os.kill(os.getppid(), 0)"}
CANARY = """import ctypes, os, socket
libc = ctypes.CDLL(None)
def f(name):
    try: PROBES[name]()
    except BaseException as e: return "refused: " + type(e).__name__
    return "ALLOWED"
PROBES = {%s}
""" % ", ".join("%r: lambda: %s" % item for item in CANARIES.items())

if __name__ == "__main__" and "--zygote" in sys.argv: zygote()
elif __name__ == "__main__":
    with Sandbox(weak="--weak" in sys.argv) as sandbox: print(json.dumps(sandbox.report, indent=1))
