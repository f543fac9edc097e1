"""Builds the walls around programs by hand on Linux: seccomp filter, namespaces, an empty root, limits.

The fork server puts up all but the filter once, before any job, and its children inherit it. A child puts up
the filter as the last thing before it runs its program. Nothing in here imports more than the standard
library.
"""
import ctypes
import os
import resource
import signal
import struct

NOBODY = 65533                                  # the user that children run as where the trainer is root

# ---- the seccomp filter -----------------------------------------------------------------------------------

PROCESSORS = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables below, AUDIT_ARCH
# Operations of BPF. A line is (operation, lines to skip if so, lines to skip if not, operand).
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
KILL, ALLOW, EPERM = [(RETURN, 0, 0, value) for value in (0x80000000, 0x7FFF0000, 0x00050001)]
# All that a computing CPython needs once every module is imported, as (number on x86-64, on aarch64).
# rt_sigreturn is absent on purpose: a forged signal frame could block the signal of the CPU timer.
ALLOWED = dict(
    brk=(12, 214),
    munmap=(11, 215),
    mremap=(25, 216),
    madvise=(28, 233),
    write=(1, 64),
    read=(0, 63),
    pwrite64=(18, 68),
    lseek=(8, 62),
    exit_group=(231, 94),
    exit=(60, 93),
    close=(3, 57),
    clock_gettime=(228, 113),
    gettimeofday=(96, 169),
    getpid=(39, 172))
# Who tries one of these is hostile, not clumsy: it dies with SIGSYS. What is in no table fails with EPERM.
FATAL = dict(
    ptrace=(101, 117),
    process_vm_readv=(310, 270),
    process_vm_writev=(311, 271),
    kill=(62, 129),
    pidfd_open=(434, 434),
    execve=(59, 221),
    execveat=(322, 281),
    bpf=(321, 280),
    io_uring_setup=(425, 425),
    unshare=(272, 97),
    setns=(308, 268),
    mount=(165, 40),
    keyctl=(250, 219),
    userfaultfd=(323, 282),
    perf_event_open=(298, 241),
    seccomp=(317, 277),
    prctl=(157, 167))
PROT_EXEC, CLONE_THREAD = 4, 0x10000
# name: numbers, offset of an argument, bits, answer if one of them is set, answer if none is
BY_ARGUMENT = dict(mmap=((9, 222), 32, PROT_EXEC, EPERM, ALLOW),
                   mprotect=((10, 226), 32, PROT_EXEC, EPERM, ALLOW),
                   clone=((56, 220), 16, CLONE_THREAD, EPERM, KILL))  # a thread, or else a fork


def search(cases: list) -> list:
    """Returns BPF lines that find a system call among sorted [(number, lines of its answer)] by halves. A
    filter that goes through a list costs three times as much to install, for the kernel tries every number
    that it knows."""
    if len(cases) == 1:
        number, lines = cases[0]
        return [(EQUAL, 0, len(lines), number), *lines, EPERM]
    middle = len(cases) // 2
    low = search(cases[:middle])
    high = search(cases[middle:])
    return [(AT_LEAST, len(low), 0, cases[middle][0]), *low, *high]


def filter_lines(column: int, audit: int) -> list:
    """Returns the whole filter for one processor, as BPF lines."""
    cases = {}
    for table, value in (ALLOWED, ALLOW), (FATAL, KILL):
        for numbers in table.values():
            cases[numbers[column]] = [value]
    for numbers, offset, bits, if_set, if_not in BY_ARGUMENT.values():
        cases[numbers[column]] = [(LOAD, 0, 0, offset), (ANY_BIT, 0, 1, bits), if_set, if_not]
    lines = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), KILL, (LOAD, 0, 0, 0)]  # 32-bit entry points die
    if column == 0:
        lines += [(AT_LEAST, 0, 1, 0x40000000), KILL]           # and so do the x32 ones
    return lines + search(sorted(cases.items()))


class Program(ctypes.Structure):
    """Is struct sock_fprog, and keeps the bytes of its lines alive."""
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]


def seccomp_wall() -> list | None:
    """Returns the arguments of prctl that put up the filter for good, or None if this processor has no
    table."""
    if os.uname().machine not in PROCESSORS:
        return None
    lines = filter_lines(*PROCESSORS[os.uname().machine])
    program = Program(len(lines), b"".join(struct.pack("HBBI", *line) for line in lines))
    long = ctypes.c_ulong
    return [long(PR_SET_SECCOMP), long(SECCOMP_MODE_FILTER), ctypes.byref(program), long(0), long(0)]


# ---- system calls by hand ---------------------------------------------------------------------------------

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
NEW_USER = 0x10000000
NEW_OTHERS = 0x40000000 | 0x20000 | 0x8000000 | 0x4000000  # network, mounts, IPC, host name
# These two run once a program. Python's own fork would seed `random` anew and rebuild locks, a tenth of a
# program's time; bound and with arguments made beforehand, prctl touches fewer pages that a child must copy
# first.
raw_fork = ctypes.PyDLL(None).fork
prctl = ctypes.PyDLL(None).prctl
libc = ctypes.CDLL(None, use_errno=True)
DIE_WITH_PARENT = [ctypes.c_ulong(n) for n in (PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)]


def call(name: str, *args: object) -> None:
    """Calls a libc function that returns 0. Raises OSError for anything else. Integers are passed as longs,
    bytes as pointers."""
    passed = []
    for a in args:
        if isinstance(a, int):                          # as it is, ctypes would pass 32 bits of it
            a = ctypes.c_ulong(a)
        passed.append(a)
    if getattr(libc, name)(*passed) != 0:
        raise OSError(ctypes.get_errno(), name)


# ---- layers that children inherit -------------------------------------------------------------------------

def attempt(layers: dict, name: str, function: object, *args: object) -> None:
    """Tries to put up one layer, and notes in layers whether it holds."""
    try:
        if layers.get(name):
            raise OSError(layers[name])
        function(*args)
        layers[name] = "ok"
    except Exception as e:
        layers[name] = f"{type(e).__name__}: {e}"


def enter_namespaces() -> None:
    """Enters namespaces of its own for network, mounts and so on. Who is not root can do so only as the one
    user of a new user namespace."""
    uid, gid = os.getuid(), os.getgid()
    if os.geteuid() == 0:
        try:
            return call("unshare", NEW_OTHERS)
        except OSError:
            pass                                        # root of a container: try it as a user would
    call("unshare", NEW_USER | NEW_OTHERS)
    for name, text in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"):
        with open(f"/proc/self/{name}", "w") as f:
            f.write(text)


def empty_root(namespaces: str) -> None:
    """Makes an empty tmpfs the root, so that no file has a name. It is mounted on /proc, which every system
    has."""
    if namespaces != "ok":
        raise OSError("left out, for it would change the mounts of the whole machine")
    call("mount", b"none", b"/", None, 0x44000, None)   # MS_REC | MS_PRIVATE
    call("mount", b"none", b"/proc", b"tmpfs", 0xF, b"size=4k,mode=555")
    os.chroot("/proc")
    os.chdir("/")
    if os.listdir("/"):
        raise OSError("the new root is not empty")


def drop_user() -> None:
    """Changes from root to a user that owns nothing."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def drop_capabilities() -> None:
    """Gives up all capabilities. The C library has no function for this."""
    number = {"x86_64": 126}.get(os.uname().machine, 91)
    call("syscall", number, struct.pack("Ii", 0x20080522, 0), bytes(24))


def lock_up(layers: dict, mem_mb: int, profile: object) -> None:
    """Puts up, before any job, all that a fork server's children inherit."""
    root = os.geteuid() == 0                            # asked now: in a namespace it means something else
    with open("/proc/self/statm") as f:
        own_bytes = int(f.read().split()[0]) * resource.getpagesize()
    attempt(layers, "namespaces", enter_namespaces)
    attempt(layers, "empty_root", empty_root, layers["namespaces"])
    if root:
        attempt(layers, "drop_user", drop_user)
    attempt(layers, "no_capabilities", drop_capabilities)
    attempt(layers, "no_new_privs", call, "prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    attempt(layers, "not_dumpable", call, "prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    limits = dict(CORE=0, FSIZE=profile.max_file, NOFILE=16, STACK=profile.stack_mb << 20, MEMLOCK=0,
                  MSGQUEUE=0, AS=own_bytes + (mem_mb << 20))
    for name, limit in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        # No limit may be raised above the one that the trainer itself was given.
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        attempt(layers, f"limit_{name.lower()}", resource.setrlimit, which, (limit, limit))


def wall_in(wall: list) -> None:
    """Ties a child to the fork server's life and filters it: the last thing before its program."""
    if prctl(*DIE_WITH_PARENT) or prctl(*wall):
        os._exit(111)
