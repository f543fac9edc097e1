"""Is a program right? Its tests run in the sandbox, chunk by chunk, and the values that come back are compared here.

HumanEval+ and MBPP+ as EvalPlus compares (evalplus/eval/__init__.py, 0.3.1): Python's ==, floats within atol, and its special
oracles; expected values are what the canonical solution returns in the same sandbox. LiveCodeBench as its testing_util does:
printed lines stripped and then equal, or equal as decimal numbers; returned values by ==, a tuple counting as a list.
"""
import json
import math
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from eval.code.problems import Problem, opened
from sandbox.fork_server import PROFILES
from sandbox.values import decode
from verifier import Job, Sandbox

MAX_TEXT = PROFILES["eval"].max_text
CANONICAL_S = 60.0                              # CPU seconds of a canonical solution
LEAST_S, FACTOR = 4.0, 4.0                      # of an answer to a chunk: at least, and as a multiple of the canonical's
LIVE_S = 6.0                                    # of one test of LiveCodeBench
CHUNK_BYTES, CHUNK_LIVE = 1 << 23, 8            # expected values, which must fit into one report; tests of LiveCodeBench
SET_EQUAL = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
             "intersection_array", "find_dissimilar", "Diff"}                  # MBPP: the order of the result is free
# Errors of a canonical solution whose value is too big to report: EvalPlus has such inputs, we leave them out.
TOO_MUCH = "too big", "error: MemoryError", "killed"
NOT_NONE = {"check_str", "text_match_three", "text_starta_endb"}               # MBPP: a match object or True, None or False
FOUND = "\n_found = {0}\ndef {0}(*a):\n    out = _found(*a)\n    return out if isinstance(out, bool) else out is not None\n"
# What LiveCodeBench puts before a program.
MODULES = ("string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys "
           "json").split()
PREAMBLE = "".join(f"from {name} import *\n" for name in [*MODULES, "builtins", "typing"]) + \
    f"import {', '.join(MODULES)}\nsys.setrecursionlimit(50000)\n"


# ---- comparison -----------------------------------------------------------------------------------------------------------

def number(value) -> bool:
    """Whether a value is a number."""
    return isinstance(value, (bool, int, float, complex))


def close(out, expected, atol: float) -> bool:
    """numpy.allclose with rtol 1e-7 on numbers and nested sequences of these; False for anything else."""
    if number(out) and number(expected):
        try:
            return out == expected or abs(out - expected) <= atol + 1e-7 * abs(expected) and math.isfinite(abs(expected))
        except OverflowError:
            return False
    sequences = isinstance(out, (list, tuple)) and isinstance(expected, (list, tuple))
    return sequences and len(out) == len(expected) and all(close(a, b, atol) for a, b in zip(out, expected))


def is_floats(value) -> bool:
    """A float, or a sequence of nothing but floats (also an empty one)."""
    return isinstance(value, float) or isinstance(value, (list, tuple)) and all(isinstance(x, float) for x in value)


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


def exact(problem: Problem, arguments: tuple, out, expected) -> bool:
    """EvalPlus's exact match: == or one of MBPP's special oracles."""
    if problem.bench != "mbpp+":
        return out == expected
    name = problem.entry
    if name in SET_EQUAL:
        return set(out) == set(expected)
    return out == expected or name == "are_equivalent" or name == "sum_div" and out == 0 or \
        name == "surface_Area" and abs(out - surface(*arguments)) <= problem.atol or \
        name == "digit_distance_nums" and out == digit_distance(*arguments)


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


def lines(text: str) -> list[str]:
    """Stripped lines of stripped text."""
    return [line.strip() for line in text.strip().split("\n")]


def decimals(line: str) -> list[Decimal] | None:
    """A line's words as numbers, or None."""
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None


def same_numbers(a: str, b: str) -> bool:
    """Whether two lines are the same numbers."""
    return (numbers := decimals(a)) is not None and numbers == decimals(b)


def printed_alike(out: str, expected: str) -> bool:
    """Whether two outputs are equal line by line, as text or as numbers."""
    ours, theirs = lines(out), lines(expected)
    return len(ours) == len(theirs) and all(a == b or same_numbers(a, b) for a, b in zip(ours, theirs))


# ---- tests ----------------------------------------------------------------------------------------------------------------

@dataclass
class Chunk:
    """Inputs that one child (or one after another) takes, as positions in base + plus, and the CPU limit."""
    inputs: list[int]
    plus: bool
    cpu_s: float


@dataclass
class Suite:
    """A problem's tests, ready to judge by. expected: canonical texts, None where the canonical solution gives no value. Inputs
    on which its value is too big to report are in no chunk."""
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
    """atol of each input: from the first expected value that is floats at least 1e-6, for plus after base apart."""
    out, n = [], len(problem.base)
    for part in (expected[:n], expected[n:]):
        atol = problem.atol
        for text in part:
            atol = 1e-6 if atol == 0 and text is not None and is_floats(decode(text, MAX_TEXT)) else atol
            out.append(atol)
    return out


def suites(sandbox: Sandbox, problems: list[Problem]) -> list[Suite]:
    """The problems' tests; canonical solutions run where no outputs are published."""
    problems = [opened(p) if p.packed else p for p in problems]
    mine = [p for p in problems if p.expected is None]
    jobs = [job(p, p.canonical, inputs, CANONICAL_S, give_up=False) for p in mine for inputs in (p.base, p.plus)]
    verdicts = iter(sandbox.run(jobs))
    out = []
    for problem in problems:
        n = len(problem.base)
        if problem.expected is not None:
            edges = [0, *range(1, n, CHUNK_LIVE), n]
            cpu_s = lambda n_tests: LIVE_S if problem.entry is None else LIVE_S * min(n_tests, 4)
            chunks = [Chunk([*range(a, b)], False, cpu_s(b - a)) for a, b in zip(edges, edges[1:])]
            out.append(Suite(problem, list(problem.expected), chunks))
            continue
        base, plus = next(verdicts), next(verdicts)
        expected, chunks = [*base.outputs, *plus.outputs], []
        for first, last, verdict in (0, n, base), (n, len(expected), plus):
            chunk, size = Chunk([], first > 0, max(LEAST_S, FACTOR * verdict.cpu_s)), 0
            for i, error in zip(range(first, last), verdict.errors):
                if error is not None and error.startswith(TOO_MUCH):
                    continue
                size += len(expected[i] or "")
                if size > CHUNK_BYTES and chunk.inputs:
                    chunks.append(chunk)
                    chunk, size = Chunk([], chunk.plus, chunk.cpu_s), len(expected[i] or "")
                chunk.inputs.append(i)
            chunks.append(chunk)
        out.append(Suite(problem, expected, chunks, tolerances(problem, expected)))
    return out


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
    """Verdicts of programs: whether the base tests and all tests are passed, and the first reason why not, by input.

    The first chunk of every program runs, then the second of those still right, and so on; all programs share the workers.
    """
    found = [dict(base=False, plus=False, why="" if program else "no program") for _, program in answers]
    turn, alive = 0, [i for i, (_, program) in enumerate(answers) if program]
    while alive:
        chunks = [answers[i][0].chunks[turn] for i in alive]
        inputs = [answers[i][0].problem.base + answers[i][0].problem.plus for i in alive]
        verdicts = sandbox.run([job(answers[i][0].problem, answers[i][1], tuple(given[k] for k in chunk.inputs), chunk.cpu_s)
                                for i, chunk, given in zip(alive, chunks, inputs)])
        for i, chunk, verdict in zip(list(alive), chunks, verdicts):
            suite = answers[i][0]
            reasons = ((k, wrong(suite, k, text, error)) for k, text, error in zip(chunk.inputs, verdict.outputs, verdict.errors))
            k, why = next(((k, reason) for k, reason in reasons if reason), (0, ""))
            rest = suite.chunks[turn + 1:]
            if why:
                part, at = ("plus", k - len(suite.problem.base)) if chunk.plus else ("base", k)
                found[i]["why"] = f"{part} input {at}: {why}"[:200]
            elif not rest or rest[0].plus:
                found[i]["base"] = True
                found[i]["plus"] = not rest
            if why or not rest:
                alive.remove(i)
        turn += 1
    return found
