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
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from infra.errors import demand
from tasks.prompts import concluded

LIMIT_S, START_S = 10.0, 120.0          # CPU time of one answer; of importing sympy on a busy machine
PATIENCE = 12                           # times as long by the clock: then the machine is too busy to grade
MAX_CHARS = 20_000                      # of an answer, its last ones
MAX_MEMORY = 4 << 30
SMALL = 1e-3                            # below it a number is compared by its first digits
TOLERANCE, ROUNDING = 1e-6, 1e-14       # relative, of such a number; of a float that stands for a decimal
DIGITS = 30


# What math-verify (0.9) misreads in golds and answers becomes what it reads, in this order.
NOTATION = [
    # 4.5e33 was 33 times 4.5 times Euler's e
    (r"(?<![\w.])(\d+(?:\.\d*)?)[eE]\+?(-?\d+)(?!\w)", r"\1 \\cdot 10^{\2}"),
    (r"([_^])\s*((?:\\(?:prime|odot|max|min)(?![A-Za-z])\s*)+)", r"\1{\2}"),        # braces
    # Minutes and seconds of arc were powers.
    (r"(?<=\d)\^\s*\{\s*(?:\\prime\s*)+\}", ""),
    # A derivative becomes a symbol: y' was y, y^{\prime} a power, and an equation with dy/dt equal to any.
    (r"(?<=[A-Za-z}])(?:\^\s*\{\s*\\prime\s*\}|'(?![A-Za-z]))", r"_{p}"),
    (r"\\[dt]?frac\s*\{\s*d\s*(\\?[A-Za-z]+)\s*\}\s*\{\s*d\s*[a-z]\s*\}", r" \1_{p}"),
    (r"(\\d?dot)(?:\s+([A-Za-z])|\s*(\\[A-Za-z]+))", r"\1{\2\3}"),
    (r"\\dot\s*\{\s*(\\?[A-Za-z]+)\s*\}(?!\s*_)", r" \1_{p}"),
    # The first was a function or Euler's constant; the other three could not be read.
    (r"\\gamma(?![A-Za-z])", r"\\iota"),
    (r"\\hbar(?![A-Za-z])", r"h_{b}"),
    (r"(?<![A-Za-z\\])E(?=\s*_)", r"\\Upsilon"),
    (r"_\s*\{\s*\\(odot|max|min)\s*\}", r"_{\1}"),
    (r"_\s*\{\s*\\(?:text|mathrm)\s*\{\s*([A-Za-z]+)\s*\}\s*\}", r"_{\1}"),
]
# Golds lose what only some of them have: dollars between their parts, NumPy's words, a remark, a full stop.
GOLD = [
    (r"(?<!\\)\$", ""),
    (r"\bnp\.", r"\\"),
    (r"(?<=\d)\.(?!\d)", ""),
    (r",?\s*where\b.*", ""),
    (r"[\s.]+$", ""),
    (r"^([a-z])(?=[(\[][^()\[\]]*,[^()\[\]]*\]$)", r"\1 \\in "),            # t(0,4] is an interval
    (r"(?i)^([a-z])\s*=(?=[^=]*(?<![a-z\\])\1(?![a-z])[^=]*$)", ""),           # N=n: case does not count
]
NO_VARIABLE = r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+"           # letters that stand for none


def final(text: str) -> str:
    """The part of a text that states its answer: after thinking ("" where it was cut off before), in the R1
    envelope within its first tags."""
    return concluded(text, "envelope").rpartition("<answer>")[2][-MAX_CHARS:]


def boxed(text: str) -> str:
    """What stands in the last \\boxed{...} of a text, or the text itself where there is none."""
    before, box, rest = text.rpartition("\\boxed{")
    depth = 1
    for i, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if box and depth == 0:
            return rest[:i]
    return text


def rewritten(text: str, patterns: list[tuple[str, str]]) -> str:
    """A text with each pattern in turn replaced."""
    for pattern, by in patterns:
        text = re.sub(pattern, by, text)
    return text


class Grader:
    """One process that grades in turn; replaced after an answer that it does not survive."""

    def __init__(self):
        demand(find_spec("math_verify"), "mathematics is graded by math-verify, which is not here: pip "
               "install -r requirements-eval.txt")
        self.process = None

    def grade(self, text: str, gold: str, limit_s: float = LIMIT_S) -> dict:
        """dict(correct, answer: as it was read), with grader_error where the answer could not be graded, by
        limit_s of CPU time: it counts as wrong. correct is None where the machine gave the grader no
        processor. Raises OSError where no process starts."""
        if self.process is None:
            self.start()
        began = time.monotonic()
        try:
            self.process.stdin.write(json.dumps([final(text), gold, limit_s]) + "\n")
            self.process.stdin.flush()
            return json.loads(self.line(PATIENCE * limit_s))
        except (BrokenPipeError, json.JSONDecodeError):         # it has ended
            self.close()
        if time.monotonic() - began > PATIENCE * limit_s:
            return dict(correct=None, answer="")
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


def number(read: list):
    """The number of sympy that math-verify has read, perhaps at the right of an equals sign, or None."""
    value = read[0] if read else None
    value = value.rhs if getattr(value, "is_Equality", False) else value
    if not getattr(value, "is_number", False):
        return None
    value = value.evalf(DIGITS)
    return value if value.is_Float or value.is_Rational else None


def is_equal(expected: list, read: list) -> bool:
    """Whether two readings of math-verify mean the same. Its `verify` rounds to six decimals and ignores what
    is below 1e-15, so small numbers are compared by their first digits here; and 9.28 times 100 is 928."""
    from math_verify import verify
    from sympy import Float
    gold, value = number(expected), number(read)
    if gold is not None and value is not None:
        error = abs(value - gold)
        if 0 < abs(gold) < SMALL:
            return bool(error < abs(gold) * TOLERANCE)
        if (expected[0].has(Float) or read[0].has(Float)) and error <= abs(gold) * ROUNDING:
            return True
    return verify(expected, read, timeout_seconds=None)


def verdict(text: str, gold: str) -> dict:
    """What `grade` returns. A box counts first, then what is called the answer, then the last formula; of
    several boxes those that math-verify takes together. gold: a formula, or a solution with a box."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    def read(given: str, units: bool) -> list:
        norm = replace(LatexExtractionConfig().normalization_config, units=units)
        latex = LatexExtractionConfig(boxed_match_priority=0, normalization_config=norm)
        return parse(rewritten(given, NOTATION), [latex, ExprExtractionConfig()], parsing_timeout=None)

    gold = rewritten(boxed(gold), GOLD)
    # Where the gold has variables, a letter at the end is one rather than a unit: \frac{37}{4} m, c + a x.
    has_variables = re.search("[A-Za-z]", re.sub(NO_VARIABLE, "", gold)) is not None
    expected = read(f"$\\boxed{{{gold}}}$", units=not has_variables)
    found = read(text, units=True)
    correct = is_equal(expected, found)
    if has_variables and not correct:
        found = read(text, units=False)
        correct = is_equal(expected, found)
    return dict(correct=correct, answer=str(found[-1])[:200] if found else "")


def serve() -> None:
    """Answers a JSON line [text, gold, CPU seconds] with one; ends with the input, or after these seconds."""
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
        text, gold, limit_s = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)   # ends the process
        try:
            out = verdict(text, gold)
        except Exception as e:                          # math-verify and sympy raise what they like
            out = dict(correct=False, answer="", grader_error=type(e).__name__)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    serve()
