"""
siege.py -- runs a folder of hostile programs against the verifier:  python verifier.py --siege DIR

One program a file. Header lines: `# kind:`, `# want:` the verdicts of an honest judge, alternatives separated by "|" (fail,
error, malformed, timeout, crash, violation, exit, pass, det, nondet), `# answer:` the value that would pass (default 731,
a number that the judge knows and no program may find out). Each is called as f(3), or with as many threes as it wants.

Survived: the verdict is wanted, nothing happened outside (a file under /tmp/attack_mark, a connection, a process left
over), nothing was read that must not be (a string that begins with LEAK), the next honest program is judged rightly, and
the verdict came within the CPU limit plus half a second.
"""
import glob, json, os, re, shutil, socket, time

from sandbox.fork_server import NOBODY
from sandbox.values import decode, same
from verifier import Job

MARKS = "/tmp/attack_mark"
# What an end or an error counts as, beside its own name. A value that cannot cross is an error and earns nothing. Who hoards
# memory in an endless loop meets either limit first, depending on the machine.
COUNTS_AS = {"MemoryError": ("error", "timeout"), "unsupported": ("error", "fail"), "too big": ("error", "fail", "malformed"),
             "killed": ("crash", "error"), "nondeterministic": ("nondet",), "not a literal": ("error",)}


def processes(sandbox):
    "ids of what programs may have left behind: of the right user, and either orphaned or still below a zygote at rest"
    users, parents, found = {NOBODY, os.getuid() or NOBODY}, {"1", *(str(z.process.pid) for z in sandbox.zygotes)}, set()
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(path + "/stat") as file: parent = file.read().rsplit(")", 1)[1].split()[1]
            if parent in parents and os.stat(path).st_uid in users: found.add(int(path[6:]))
        except OSError: pass                                          # it ended meanwhile
    return found


def left_over(sandbox, before):
    "ids that are new and stay; the zygotes of somebody else's dying trainer are orphans for a moment too"
    new = processes(sandbox) - before
    if new: time.sleep(0.5)
    return new and new & processes(sandbox)


def lay_marks(folder=MARKS):
    "a fresh folder that programs are told to change, with a file that they are told to remove"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "keep"), "w").close()
    except OSError as e: raise ValueError("another user left %s behind: remove it first (%s)" % (folder, e)) from None


def marks(folder=MARKS):
    "what programs changed in the folder that they were told to change"
    return sorted({"keep"} ^ set(os.listdir(folder)))


def timed(sandbox, job):
    """-> (verdict, seconds, whether it came later than the CPU limit plus half a second). A late one is asked for again, and
    beside a plain endless loop: a busy machine, which holds up both, is late by chance, a hole every time."""
    clock = time.monotonic
    for _ in range(3):
        start = clock()
        verdict, = sandbox.run([job])
        took = clock() - start
        late = took > sandbox.cpu_s + 0.5
        if not late: break
        start = clock()
        sandbox.run([Job("def f():\n while True: pass", ("",))])
        late = took > 0.5 + 1.5 * (clock() - start)
        if not late: break
    return verdict, took, late


def labels(verdict, answer, want):
    "the set of names under which this verdict may be wanted"
    if verdict.errors[0] is None:
        if want & {"det", "nondet"}: return {"det"}
        return {"pass" if same(decode(verdict.outputs[0]), answer) else "fail"}
    error = "MemoryError" if verdict.errors[0].startswith("error: MemoryError") else verdict.errors[0].split(":")[0]
    return {error, *COUNTS_AS.get(error, ())}


def assault(sandbox, path, listener):
    "-> (class, what happened) of one program"
    with open(path, encoding="utf-8", errors="surrogateescape") as file: code = file.read()
    header = dict(re.findall(r"^# (kind|want|answer): *(.*)", code, re.M))
    want, program = set(header["want"].split("|")), "NAN = [float('nan')]\ndef f(): return " + header.get("answer", "731")
    answer = decode(sandbox.run([Job(program, ("",))])[0].outputs[0])
    signature = re.search(r"^ *def f\((.*?)\)", code, re.M)
    names = signature[1].split(",") if signature else ["x"]
    names = [name for name in names if name.strip() and "=" not in name and "*" not in name]
    sandbox.run([Job("def f(x): return x + ' SECRET_ANSWER=731'", ("'gold = [731]'",))])       # what a thief may look for
    before, job = processes(sandbox), Job(code, (", ".join("3" for _ in names),), deterministic=bool(want & {"det", "nondet"}))
    verdict, took, late = timed(sandbox, job)
    if verdict.end == "timeout" and "timeout" not in want:            # a slow machine has not come to the point yet
        verdict, = sandbox.run([job], cpu_s=4 * sandbox.cpu_s)
    honest, = sandbox.run([Job("import math\ndef f(x): return [len(x), sorted(x), math.sqrt(4), repr(1)]", ("[2, 1]",))])
    got, value = labels(verdict, answer, want), verdict.outputs[0] or ""
    outside = marks() + ["process %d" % pid for pid in left_over(sandbox, before)]
    try: outside.append("connection %s" % (listener.accept(),))
    except OSError: pass
    text = "%-13s %.2f s  %s" % ("/".join(sorted(got)), took, (verdict.errors[0] or value)[:60])
    if outside or value.startswith('"LEAK'): return "escaped", "%s %s" % (text, outside)
    if got & want == set() and "pass" in got: return "forged", text
    if late: return "hung", text
    if honest.outputs[0] != '[2,[1,2],2.0,"1"]': return "poisoned", "%s then %s" % (text, honest)
    return ("survived" if got & want else "wrong"), text + ("" if got & want else "  wanted " + header["want"])


def siege(sandbox, folder):
    """Runs every *.py of the folder, prints a line each and counts as JSON last -> True if all were survived."""
    paths = sorted(glob.glob(os.path.join(folder, "*.py")))
    if not paths: raise ValueError("no programs in %s: --siege wants a folder of *.py files" % folder)
    lay_marks()
    counts = dict.fromkeys(("survived", "escaped", "forged", "hung", "poisoned", "wrong"), 0)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try: listener.bind(("127.0.0.1", 45454))
        except OSError: pass                                          # somebody else listens there: a try is as visible
        listener.listen()
        listener.setblocking(False)
        for path in paths:
            name, (outcome, text) = os.path.basename(path), assault(sandbox, path, listener)
            counts[outcome] += 1
            print("%-9s %-26s %s" % (outcome, name, text), flush=True)
        time.sleep(1)
        late = marks()
    shutil.rmtree(MARKS, ignore_errors=True)
    if late: print("escaped   afterwards                 %s" % late)
    print(json.dumps(dict(counts, tier=sandbox.tier, programs=len(paths))))
    return counts["survived"] == len(paths) and not late
