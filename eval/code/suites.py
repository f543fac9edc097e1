"""Is a program right? Its tests run in the sandbox, chunk by chunk; the values that return are compared here.

HumanEval+ and MBPP+ as EvalPlus compares (evalplus/eval/__init__.py, 0.3.1): Python's ==, floats within atol,
and its special oracles; expected values are what the canonical solution returns in the same sandbox.
LiveCodeBench as its testing_util does: printed lines stripped and then equal, or equal as decimal numbers;
returned values by ==, a tuple counting as a list.
"""
import json
import math
from dataclasses import dataclass, field
from decimal import Decimal

from eval.code.problems import Problem, opened
from sandbox.profiles import PROFILES
from sandbox.values import decode
from tasks.base import FAILED
from verifier import Job, Sandbox, Verdict

NUMBERS = (bool, int, float, complex)
MAX_TEXT = PROFILES["eval"].max_text
CANONICAL_S = 60.0                              # CPU seconds of a canonical solution
LEAST_S, FACTOR = 4.0, 4.0                      # of an answer to a chunk: at least, and times the canonical's
LIVE_S = 6.0                                    # of one test of LiveCodeBench
CHUNK_BYTES = 1 << 23                           # expected values, which must fit into one report
CHUNK_LIVE = 8                                  # tests of LiveCodeBench
# MBPP: the order of the result is free
SET_EQUAL = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
             "intersection_array", "find_dissimilar", "Diff"}
# Errors of a canonical solution whose value is too big to report: EvalPlus has such inputs, we leave them out
TOO_MUCH = "too big", "error: MemoryError", "killed"
# MBPP: a match object or True, None or False
NOT_NONE = {"check_str", "text_match_three", "text_starta_endb"}
FOUND = """
_found = {0}
def {0}(*a):
    out = _found(*a)
    return out if isinstance(out, bool) else out is not None
"""
# What LiveCodeBench puts before a program
MODULES = ("string re datetime collections heapq bisect copy math random statistics itertools functools "
           "operator io sys json").split()
PREAMBLE = "".join(f"from {name} import *\n" for name in [*MODULES, "builtins", "typing"]) + \
    f"import {', '.join(MODULES)}\nsys.setrecursionlimit(50000)\n"


# ---- comparison -------------------------------------------------------------------------------------------

def close(out, expected, atol: float) -> bool:
    """numpy.allclose with rtol 1e-7 on numbers and nested sequences of these; False for anything else."""
    if isinstance(out, NUMBERS) and isinstance(expected, NUMBERS):
        try:
            if out == expected:
                return True
            return abs(out - expected) <= atol + 1e-7 * abs(expected) and math.isfinite(abs(expected))
        except OverflowError:
            return False
    if not (isinstance(out, (list, tuple)) and isinstance(expected, (list, tuple))):
        return False
    return len(out) == len(expected) and all(close(a, b, atol) for a, b in zip(out, expected))


def is_floats(value) -> bool:
    """A float, or a sequence of nothing but floats (also an empty one)."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(x, float) for x in value)
    return isinstance(value, float)


def polynomial(coefficients: list, x: float) -> float:
    """HumanEval/32: the value at x of the polynomial whose zero was asked for."""
    return sum(c * math.pow(x, i) for i, c in enumerate(coefficients))


def surface(edge: float, height: float) -> int:
    """Mbpp/581: the pyramid's surface where height is meant as that of the apex."""
    return round(edge ** 2 + 2 * edge * math.sqrt((edge / 2) ** 2 + height ** 2))


def digit_distance(a: int, b: int) -> int:
    """Mbpp/558: the sum of digit differences, the shorter number filled with zeros."""
    a, b = str(a), str(b)
    return sum(abs(int(x) - int(y)) for x, y in zip(a.zfill(len(b)), b.zfill(len(a))))


def same_set(out, expected) -> bool:
    """set(out) == set(expected), but values of one hash do not meet in one set: that takes quadratic time.

    Only the expected values are put into a table. Raises TypeError for what is no set of hashable values.
    """
    places = {value: place for place, value in enumerate(dict.fromkeys(expected))}
    found = [places.get(value) for value in out]
    return None not in found and len(set(found)) == len(places)


def exact(problem: Problem, arguments: tuple, out, expected) -> bool:
    """EvalPlus's exact match: == or one of MBPP's special oracles."""
    name = problem.entry if problem.bench == "mbpp+" else ""
    if name in SET_EQUAL:
        return same_set(out, expected)
    if out == expected or name == "are_equivalent" or name == "sum_div" and out == 0:
        return True
    if name == "surface_Area":
        return abs(out - surface(*arguments)) <= problem.atol
    return name == "digit_distance_nums" and out == digit_distance(*arguments)


def agrees(problem: Problem, arguments: tuple, out, expected, atol: float) -> bool:
    """Whether one value is right for EvalPlus; whatever a strange value makes of the comparison is wrong."""
    try:
        if problem.bench == "humaneval+" and problem.entry == "find_zero":
            return abs(polynomial(*arguments, out)) <= atol
        if exact(problem, arguments, out, expected):
            return True
        return atol != 0 and type(out) is type(expected) and close(out, expected, atol)
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False


def same_line(a: str, b: str) -> bool:
    """Whether two lines are the same, as text or as numbers."""
    try:
        return a.strip() == b.strip() or list(map(Decimal, a.split())) == list(map(Decimal, b.split()))
    except ArithmeticError:                         # a word is no number, or sNaN, which is not compared
        return False


def printed_alike(out: str, expected: str) -> bool:
    """Whether two outputs are equal line by line."""
    ours, theirs = out.strip().split("\n"), expected.strip().split("\n")
    return len(ours) == len(theirs) and all(map(same_line, ours, theirs))


# ---- tests ------------------------------------------------------------------------------------------------

@dataclass
class Chunk:
    """Inputs that one child (or one after another) takes, as positions in base + plus, and the CPU limit."""
    inputs: list[int]
    plus: bool
    cpu_s: float


@dataclass
class Suite:
    """A problem's tests, ready to judge by.

    expected: canonical texts, None where the canonical solution gives no value. Inputs on which its value is
    too big to report are in no chunk.
    """
    problem: Problem
    expected: list
    chunks: list[Chunk]
    tolerance: list[float] = field(default_factory=list)


def job(problem: Problem, program: str, inputs: tuple[str, ...], cpu_s: float, give_up: bool = True) -> Job:
    """The sandbox's job for some inputs of a problem."""
    if problem.bench == "mbpp+" and problem.entry in NOT_NONE:
        program += FOUND.format(problem.entry)
    if not problem.bench.startswith("livecodebench"):
        return Job(program, inputs, problem.entry, give_up=give_up, cpu_s=cpu_s)
    if problem.entry is None:
        return Job(PREAMBLE + program, inputs, None, give_up=give_up, cpu_s=cpu_s)
    target = f"Solution().{problem.entry}" if "class Solution" in program else problem.entry
    return Job(f"{PREAMBLE}{program}\n_answer = {target}\n", inputs, "_answer", give_up=give_up, cpu_s=cpu_s)


def tolerances(problem: Problem, expected: list) -> list[float]:
    """atol of each input: at least 1e-6 from the first expected value on that is floats; plus starts anew."""
    out, n = [], len(problem.base)
    for part in (expected[:n], expected[n:]):
        atol = problem.atol
        for text in part:
            if atol == 0 and text is not None and is_floats(decode(text, MAX_TEXT)):
                atol = 1e-6
            out.append(atol)
    return out


def suites(sandbox: Sandbox, problems: list[Problem]) -> list[Suite]:
    """The problems' tests; canonical solutions run where no outputs are published."""
    problems = list(map(opened, problems))
    jobs = []
    for problem in [p for p in problems if p.expected is None]:
        jobs += [job(problem, problem.canonical, part, CANONICAL_S, give_up=False)
                 for part in (problem.base, problem.plus)]
    verdicts, out = iter(sandbox.run(jobs)), []
    for problem in problems:
        if problem.expected is not None:
            out.append(Suite(problem, list(problem.expected), live_chunks(problem)))
            continue
        base, plus = next(verdicts), next(verdicts)
        if FAILED in base.errors + plus.errors:
            raise OSError(f"the sandbox failed on the solution of {problem.id}: give the same command again")
        expected = [*base.outputs, *plus.outputs]
        chunks = chunks_of(base, 0, False) + chunks_of(plus, len(problem.base), True)
        out.append(Suite(problem, expected, chunks, tolerances(problem, expected)))
    return out


def live_chunks(problem: Problem) -> list[Chunk]:
    """LiveCodeBench's tests: the first alone, for most wrong answers fail it, then some at a time."""
    edges = [0, *range(1, len(problem.base), CHUNK_LIVE), len(problem.base)]
    chunks = []
    for first, last in zip(edges, edges[1:]):
        cpu_s = LIVE_S if problem.entry is None else LIVE_S * min(last - first, 4)
        chunks.append(Chunk([*range(first, last)], False, cpu_s))
    return chunks


def chunks_of(canonical: Verdict, first: int, plus: bool) -> list[Chunk]:
    """The inputs from `first` on, which have this verdict, in chunks whose values fit into one report."""
    cpu_s = max(LEAST_S, FACTOR * canonical.cpu_s)
    chunks, size = [Chunk([], plus, cpu_s)], 0
    for i, (text, error) in enumerate(zip(canonical.outputs, canonical.errors), first):
        if error is not None and error.startswith(TOO_MUCH):
            continue
        size += len(text or "")
        if size > CHUNK_BYTES and chunks[-1].inputs:
            chunks.append(Chunk([], plus, cpu_s))
            size = len(text or "")
        chunks[-1].inputs.append(i)
    return chunks


def wrong(suite: Suite, i: int, text: str | None, error: str | None) -> str:
    """Why input i is not answered rightly by this canonical text; "" where it is."""
    problem, expected = suite.problem, suite.expected[i]
    if text is None or expected is None:
        return error or "no expected value"
    if problem.expected is None and text == expected:
        return ""
    out = decode(text, MAX_TEXT)
    if problem.expected is None:
        right = agrees(problem, problem.arguments[i], out, decode(expected, MAX_TEXT), suite.tolerance[i])
    elif problem.entry is None:
        right = printed_alike(out, expected)
    else:
        right = (list(out) if isinstance(out, tuple) else out) == json.loads(expected)
    return "" if right else "wrong value"


def judge(sandbox: Sandbox, answers: list[tuple[Suite, str]]) -> list[dict]:
    """Verdicts of programs: whether the base tests and all tests are passed (None: the sandbox failed), and
    the first reason why not.

    The first chunk of every program runs, then the second of those still right, and so on.
    """
    found = [dict(base=False, plus=False, why="" if program else "no program") for _, program in answers]
    turn, alive = 0, [i for i, (_, program) in enumerate(answers) if program]
    while alive:
        jobs = []
        for i in alive:
            suite, program = answers[i]
            inputs, chunk = suite.problem.base + suite.problem.plus, suite.chunks[turn]
            jobs.append(job(suite.problem, program, tuple(inputs[k] for k in chunk.inputs), chunk.cpu_s))
        still = []
        for i, verdict in zip(alive, sandbox.run(jobs)):
            suite, rest = answers[i][0], answers[i][0].chunks[turn + 1:]
            found[i]["why"] = failure(suite, suite.chunks[turn], verdict)
            if found[i]["why"]:
                found[i]["plus"] = None if found[i]["why"] == FAILED else False
                continue
            if not rest or rest[0].plus:
                found[i]["base"] = True
                found[i]["plus"] = not rest
            if rest:
                still.append(i)
        alive, turn = still, turn + 1
    return found


def failure(suite: Suite, chunk: Chunk, verdict: Verdict) -> str:
    """The first input of a chunk that is not answered rightly, and why; "" without one, or FAILED."""
    for i, text, error in zip(chunk.inputs, verdict.outputs, verdict.errors):
        if error == FAILED:                         # no program's error has this name: theirs begin otherwise
            return FAILED
        if why := wrong(suite, i, text, error):
            part, at = ("plus", i - len(suite.problem.base)) if chunk.plus else ("base", i)
            return f"{part} input {at}: {why}"[:200]
    return ""
