"""Runs a folder of hostile programs against the verifier:  python tests/sandbox/siege.py DIR

One line each, a JSON line last; exit code 0 where all are survived. --without namespaces,seccomp leaves out layers.
One program a file. Header lines: `# want:` the verdicts of an honest verifier, alternatives separated by "|" (fail, error,
malformed, timeout, crash, violation, exit, pass, det, nondet), `# answer:` the value that would pass (default 731). Each is called
as f(3), or with as many threes as it wants. /tmp/attack_mark in it stands for a fresh folder. Survived: the verdict is wanted,
nothing happened outside (a mark, a connection, a process left over), nothing was read that must not be (a string
that begins with LEAK), and the next honest program is judged rightly.
"""
import argparse
import contextlib
import json
import os
import re
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.values import decode, same
from verifier import Job, Sandbox

MARKS = "/tmp/attack_mark"                  # the folder as programs name it
HONEST = Job("import math\ndef f(x): return [len(x), sorted(x), math.sqrt(4), repr(1)]", ("[2, 1]",))
SECRETIVE = Job("def f(x): return x + ' SECRET_ANSWER=731'", ("'gold = [731]'",))     # what a thief may look for
# What an end or an error counts as, beside its own name. A value that cannot cross is an error and earns
# nothing. Who hoards memory in an endless loop meets either limit first, depending on the machine.
COUNTS_AS = {"MemoryError": ("error", "timeout"), "unsupported": ("error", "fail"),
             "too big": ("error", "fail", "malformed"), "killed": ("crash", "error"), "nondeterministic": ("nondet",), "not a literal": ("error",)}


def left_over(sandbox, tries=20):
    """Ids of processes that programs have left behind: of a fork server's session, which no program can leave. A child that
    has answered is gone before its verdict; one that was killed with its fork server takes a moment."""
    servers = {str(server.process.pid) for server in sandbox.scheduler.servers}
    for _ in range(tries):
        found = set()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):              # it ended meanwhile
                session = (path / "stat").read_text().rsplit(")", 1)[1].split()[3]
                if session in servers and path.name not in servers:
                    found.add(path.name)
        if not found:
            break
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def battlefield():
    """-> what(): what programs did outside: entries made or removed in a new folder, open to every user, whose
    name is what.folder, and connections to a port that they may try."""
    with tempfile.TemporaryDirectory(prefix="attack_mark_", ignore_cleanup_errors=True) as folder, \
            socket.socket() as listener:
        os.chmod(folder, 0o777)
        Path(folder, "keep").touch()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):                  # somebody else listens there: a try is as visible
            listener.bind(("127.0.0.1", 45454))
        listener.listen()
        listener.setblocking(False)

        def seen():
            done = sorted({"keep"} ^ set(os.listdir(folder)))
            with contextlib.suppress(OSError):
                done.append(f"connection {listener.accept()}")
            return done
        seen.folder = folder
        yield seen


def labels(verdict, answer, want):
    """The set of names under which this verdict may be wanted."""
    if verdict.errors[0] is None:
        if want & {"det", "nondet"}:
            return {"det"}
        return {"pass" if same(decode(verdict.outputs[0]), answer) else "fail"}
    error = verdict.errors[0].split(":")[0]
    if verdict.errors[0].startswith("error: MemoryError"):
        error = "MemoryError"
    return {error, *COUNTS_AS.get(error, ())}


def threes(code):
    """As many threes as the program's f has parameters without default, as its input."""
    signature = re.search(r"^ *def f\((.*?)\)", code, re.M)
    names = signature[1].split(",") if signature else ["x"]
    return ", ".join("3" for name in names if name.strip() and "=" not in name and "*" not in name)


def assault(sandbox, code, want, answer, outside):
    """-> (class, what happened) of one program, whose honest verdicts want names."""
    want = set(want.split("|"))
    sandbox.run([SECRETIVE])
    is_task = bool(want & {"det", "nondet"})                # run as a proposal is, by its real path
    job = Job(code.replace(MARKS, outside.folder), (threes(code),), deterministic=is_task)
    verdict, = sandbox.run([job])
    if verdict.end == "timeout" and "timeout" not in want:  # a slow machine has not come to the point yet
        verdict, = sandbox.run([replace(job, cpu_s=4 * sandbox.scheduler.limits.cpu_s)])
    honest, = sandbox.run([HONEST])
    got, value, error = labels(verdict, answer, want), verdict.outputs[0] or "", verdict.errors[0] or ""
    done = outside() + [f"process {pid}" for pid in left_over(sandbox)]
    text = f"{'/'.join(sorted(got)):13} {error[:60] or value[:60]}"
    if done or value.startswith('"LEAK'):
        return "escaped", f"{text} {done}"
    if "pass" in got and not got & want:
        return "forged", text
    if honest.outputs[0] != '[2,[1,2],2.0,"1"]':
        return "poisoned", f"{text} then {honest}"
    if not got & want or not re.fullmatch("[ -~]{0,200}", error):
        return "wrong", f"{text}  wanted {'|'.join(want)}"
    return "survived", text


def siege(sandbox, folder):
    """Runs every *.py of the folder, prints a line each, counts as JSON last -> whether all were survived."""
    paths = sorted(Path(folder).glob("*.py"))
    if not paths:
        raise ValueError(f"no programs in {folder}: give a folder of *.py files")
    counts = dict.fromkeys(("survived", "escaped", "forged", "poisoned", "wrong"), 0)
    with battlefield() as outside:
        for path in paths:
            code = path.read_text(encoding="utf-8", errors="surrogateescape")
            header = dict(re.findall(r"^# (want|answer): *(.*)", code, re.M))
            answer = Job(f"NAN = [float('nan')]\ndef f(): return {header.get('answer', '731')}", ("",))
            answer = decode(sandbox.run([answer])[0].outputs[0])
            outcome, text = assault(sandbox, code, header["want"], answer, outside)
            counts[outcome] += 1
            print(f"{outcome:9} {path.name:26} {text}", flush=True)
        time.sleep(1)
        late = outside()
    if late:
        print(f"escaped   afterwards                 {late}")
    print(json.dumps(dict(counts, tier=sandbox.tier, programs=len(paths))))
    return counts["survived"] == len(paths) and not late


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hostile programs against the verifier.")
    parser.add_argument("folder")
    parser.add_argument("--without", default="", help="layers to leave out, by commas: namespaces, seccomp")
    args = parser.parse_args()
    with Sandbox(without=tuple(filter(None, args.without.split(",")))) as verifier:
        sys.exit(0 if siege(verifier, args.folder) else 1)
