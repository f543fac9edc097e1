"""
zygote.py -- the far side of verifier.py: the process that forks, and the child that runs one program.

Executed as a fresh interpreter, never imported into a run except for `encode`. It imports what programs may import, locks
itself up, and then forks a child per program until the trainer is gone. Three descriptors: a control socket with structs
of fixed size, a file that holds the job and one for the result. The zygote reads neither file, so no child inherits
anything of another task. The child reads its job, gives up everything else, runs, writes one line per input, and dies.
"""
import ast, ctypes, fcntl, gc, json, marshal, os, resource, select, signal, struct, sys, time, types
from json.encoder import encode_basestring_ascii as quote

MAX_TEXT = 1 << 16      # characters of one canonical value
MAX_FILE = 1 << 18      # bytes that one child may report
MAX_DEPTH = 64          # nesting of one value
RESULT, JOB, CONTROL, OWNER = 3, 4, 5, 6        # the zygote's descriptors; OWNER is a pidfd of the trainer
GO = struct.Struct("<III")                      # trainer to zygote: bytes of the job, CPU ms, wall ms
DONE = struct.Struct("<iIQ")                    # zygote to trainer: wait status, 1 if the wall clock ended it, CPU us


# ---- canonical values: the only thing that crosses --------------------------------------------------------------------

# By identity, for a hostile metaclass may say that its class equals `list`.
CONTAINERS = {id(list): "[", id(tuple): '{"t":[', id(dict): '{"d":[', id(set): '{"s":[', id(frozenset): '{"z":['}


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
    if kind is float and value - value == 0: return repr(value)
    if kind is float: return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if kind is bytes: return '{"b":"%s"}' % fit(fit(value).hex())
    if kind is complex: return '{"c":[%s,%s]}' % (encode(value.real), encode(value.imag))
    opening = CONTAINERS.get(id(kind))
    if opening is None: raise Unsupported("unsupported: value of type " + kind.__name__[:40])
    if depth == 0: raise Unsupported("unsupported: nested too deeply or cyclic")
    if len(value) > MAX_TEXT // 2: raise Unsupported("too big")
    keys = texts = [encode(x, depth - 1) for x in value]
    if kind is dict: texts = ["[%s,%s]" % (k, encode(v, depth - 1)) for k, v in zip(keys, value.values())]
    elif kind is set or kind is frozenset: texts.sort()
    # two nan are two members, but one text: what comes out of decode() would be another value
    if kind in (dict, set, frozenset) and len(set(keys)) < len(keys): raise Unsupported("unsupported: several nan as keys")
    return fit(opening + ",".join(texts) + ("]" if kind is list else "]}"))


def fit(text):
    """The text, or Unsupported("too big"): checked at every level, so that shared references cannot grow it first."""
    if len(text) > MAX_TEXT: raise Unsupported("too big")
    return text


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
libc = ctypes.CDLL(None, use_errno=True)
raw_fork = ctypes.PyDLL(None).fork      # Python's own would seed `random` anew and rebuild locks: a tenth of a program's time


def call(name, *args):
    """A libc function that returns 0 or raises OSError. Integers are passed as longs, bytes as pointers."""
    args = [ctypes.c_ulong(a) if type(a) is int else a for a in args]
    if getattr(libc, name)(*args) != 0: raise OSError(ctypes.get_errno(), name)


def seccomp_filter():
    """The BPF program as the struct that prctl wants, or None where this processor has no table."""
    if COLUMN is None: return None
    LOAD, EQ, GE, BITS, JUMP, RET = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
    code = [(LOAD, 0, 0, 4), (EQ, 1, 0, AUDIT), (RET, 0, 0, KILL), (LOAD, 0, 0, 0)]         # 32-bit entry points die
    if COLUMN == 0: code += [(GE, 0, 1, 0x40000000), (RET, 0, 0, KILL)]                     # and so do the x32 ones
    for numbers, offset, bits, if_set, if_not in BY_ARGUMENT:
        code += [(EQ, 0, 4, numbers[COLUMN]), (LOAD, 0, 0, offset), (BITS, 0, 1, bits), (RET, 0, 0, if_set), (RET, 0, 0, if_not)]
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

# What a program may import; all else raises ImportError, for no file can be opened in there. Every page of these costs each
# fork time, so only what programs of this kind use. Never `threading`, whose fork hook doubles the pages that a child copies.
PRELOAD = """math cmath re collections collections.abc itertools functools operator heapq bisect string random json copy typing
dataclasses enum datetime decimal fractions statistics abc types textwrap unicodedata hashlib base64 struct array numbers
contextlib calendar _strptime zlib binascii time pprint ast warnings traceback io sys os builtins __future__ keyword inspect
reprlib weakref encodings.ascii encodings.latin_1 encodings.utf_16 encodings.utf_16_le encodings.utf_32 encodings.utf_8_sig
encodings.cp1252 encodings.unicode_escape encodings.hex_codec encodings.rot_13""".split()
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


def prepare(options):
    "imports, locks the zygote up, reports its layers to the trainer -> the wall that children put up, None without seccomp"
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
    warm = marshal.dumps(("def f(x):\n    return {1: (x, 'a'), 'k': {x}}\n", "f", ["1"], [0]))
    for _ in range(100): perform(warm, lambda line: None)                       # children inherit specialised bytecode
    sys.modules["random"].seed(options["which"])                                # the same draws in every run, others in the twin
    gc.collect()
    gc.freeze()
    os.write(CONTROL, json.dumps(layers).encode() + b"\n")
    return wall


def serve(wall):
    "the zygote's loop. It polls the control socket and the trainer itself, and takes its child along when they end"
    poll, has_pidfd = select.poll(), hasattr(os, "pidfd_open")
    poll.register(CONTROL, select.POLLIN)
    if has_pidfd: poll.register(OWNER, select.POLLIN)
    while True:
        if any(fd == OWNER for fd, _ in poll.poll()): os._exit(0)     # also where a helper keeps the socket open
        message = os.read(CONTROL, GO.size)
        if len(message) < GO.size: os._exit(0)
        size, cpu_ms, wall_ms = GO.unpack(message)
        deadline, late, status = time.monotonic() + wall_ms / 1000, 0, None
        pid = raw_fork()
        if pid < 0: os._exit(1)                                       # no memory or no process left; the trainer tries again
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
        os.write(CONTROL, DONE.pack(status, late, int((usage.ru_utime + usage.ru_stime) * 1e6)))


if __name__ == "__main__":
    options = json.loads(os.environ["NANOPOPULORA_SANDBOX"])
    padding = [bytes(n) for n in range(0, 512, 16) for _ in range(options["which"])]   # its twin's addresses differ in all digits
    try: wall = prepare(options)
    except Exception as e:                                                      # the trainer makes an error message of it
        os.write(CONTROL, ("%s: %s" % (type(e).__name__, e)).encode())
        os._exit(1)
    serve(wall)
