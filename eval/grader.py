"""Is a model's answer the gold one? math-verify reads and compares them, in a process that can be killed.

    Grader().grade(answer, gold)  --JSON line-->  python -m eval.grader  --JSON line-->  verdict

What an answer makes of LaTeX's parser or of sympy (hours, gigabytes, an exception) ends that process at
most. No text is run: math-verify evaluates digits and arithmetic signs alone.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

from tasks.prompts import concluded

LIMIT_S, START_S = 10.0, 120.0          # of one answer; of importing sympy on a busy machine
MAX_CHARS = 20_000                      # of an answer, its last ones
MAX_MEMORY = 4 << 30


def final(text: str) -> str:
    """The part of a text that states its answer: after thinking ("" where it was cut off before), in the R1
    envelope within its first tags, from the last line with a box on (math-verify reads boxes that are not in
    math mode as one list)."""
    text = concluded(text, "envelope").rpartition("<answer>")[2][-MAX_CHARS:]
    before, box, after = text.rpartition("\\boxed")
    return before.rpartition("\n")[2] + box + after


class Grader:
    """One process that grades in turn; replaced after an answer that it does not survive."""

    def __init__(self):
        if find_spec("math_verify") is None:
            raise ValueError("mathematics is graded by math-verify, which is not here: pip install -r "
                             "requirements-eval.txt")
        self.process = None

    def grade(self, text: str, gold: str, limit_s: float = LIMIT_S) -> dict:
        """dict(correct, answer: as it was read), with grader_error where the answer could not be graded: it
        counts as wrong. Raises OSError where no process starts."""
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(json.dumps([final(text), gold]) + "\n")
            self.process.stdin.flush()
            return json.loads(self.line(limit_s))
        except (BrokenPipeError, json.JSONDecodeError):         # it has ended, at the latest after limit_s
            self.close()
            return dict(correct=False, answer="", grader_error=f"no verdict within {limit_s:g} s")

    def start(self) -> None:
        """A fresh process. Raises OSError with its own words where it does not start."""
        with tempfile.TemporaryFile() as words:
            self.process = subprocess.Popen([sys.executable, "-m", "eval.grader"], text=True,
                                            cwd=Path(__file__).resolve().parents[1], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=words)
            if self.line(START_S) != "ready\n":
                self.close()
                said = os.pread(words.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip()
                said = said.rpartition("\n")[2] or f"it ended, at the latest after {START_S:g} s"
                raise OSError(f"the grader (python -m eval.grader) does not start: {said}")

    def line(self, limit_s: float) -> str:
        """The next line of the process, which is killed where it takes longer; then what there is of it."""
        timer = threading.Timer(limit_s, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()                  # closes its pipes, waits
        self.process = None


def verdict(text: str, gold: str) -> dict:
    """What `grade` returns. A box counts first, then what is called the answer, then the last formula."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    forms = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    if "\\boxed" not in gold:                           # Minerva's is a worked solution
        bare = re.sub(r"(?<!\\)\$", "", gold)
        gold = f"$\\boxed{{{bare}}}$"
    expected, read = [parse(given, forms, parsing_timeout=None) for given in (gold, text)]
    return dict(correct=verify(expected, read, timeout_seconds=None),
                answer=str(read[-1])[:200] if read else "")


def serve() -> None:
    """Answers a JSON line [text, gold] with one, until the input ends or an answer takes far too long."""
    import logging
    import resource
    import signal
    most = resource.getrlimit(resource.RLIMIT_AS)[1]                # `ulimit -v`, which may be less
    limit = MAX_MEMORY if most == resource.RLIM_INFINITY else min(MAX_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)                   # math-verify's advice on its own time limits
    verdict("$\\boxed{\\sqrt{4}}$", "2")                # imports all that sympy puts off
    print("ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)        # what it says from here on nobody reads
    for line in sys.stdin:
        signal.alarm(2 * int(LIMIT_S))                  # where nobody is left to kill it
        try:
            out = verdict(*json.loads(line))
        except Exception as e:                          # math-verify and sympy raise what they like
            out = dict(correct=False, answer="", grader_error=type(e).__name__)
        signal.alarm(0)
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    serve()
