"""Is a program right? Its tests run in the sandbox, chunk by chunk; the values that return are compared here.

HumanEval+ and MBPP+ as EvalPlus compares (evalplus/eval/__init__.py, 0.3.1): Python's ==, within atol from
the first float on, and its special oracles; expected values are what the canonical solution returns in the
same sandbox.
LiveCodeBench as its testing_util does: printed lines stripped and then equal, or equal as decimal numbers;
returned values by ==, a tuple counting as a list.
"""
import itertools
import json
import math
from ast import literal_eval
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from eval.code.problems import Problem, live_tests
from sandbox.lenient import digest
from sandbox.profiles import PROFILES
from sandbox.values import decode
from tasks.base import FAILED
from verifier import Job, Sandbox, Verdict

MAX_TEXT = PROFILES["eval"].max_text
CANONICAL_S = 120.0                             # CPU seconds of a canonical solution
LEAST_S, FACTOR = 4.0, 4.0                      # of an answer to a chunk: at least, and times the canonical's
LIVE_S = 6.0                                    # of one test of LiveCodeBench
FLOAT_ATOL = 1e-6                               # EvalPlus' tolerance from the first expected float on
DIGEST = "too big: "                            # what the sandbox says of a value that is too big to report
NO_MEMORY = "error: MemoryError: "
# A function's name says which rule it has: HumanEval has none of MBPP's, and MBPP no find_zero.
# MBPP: the order of the result is free
SET_EQUAL = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
             "intersection_array", "find_dissimilar", "Diff"}
# MBPP: a match object or True, None or False
NOT_NONE = {"check_str", "text_match_three", "text_starta_endb"}
# Put after an answer's program: what EvalPlus sees of the value that it returns. The program's own names stay
# as they are, and so do Python's, which the program may have taken for something else.
SEEN = """
def __seen(*given, __answer={entry}):
    from builtins import bool, isinstance, list, set, tuple, type
    out = __answer(*given)
    {turn}
    return type(out).__name__, out
"""
AS_IT_IS = "pass"
AS_SET = "out = out if isinstance(out, (list, tuple)) else set(out)"
AS_BOOL = "out = out if isinstance(out, bool) else out is not None"
# What LiveCodeBench puts before a program
MODULES = ("string re datetime collections heapq bisect copy math random statistics itertools functools "
           "operator io sys json").split()
PREAMBLE = "".join(f"from {name} import *\n" for name in [*MODULES, "builtins", "typing"])
PREAMBLE += f"import {', '.join(MODULES)}\nsys.setrecursionlimit(50000)\n"


# ---- comparison --------------------------------------------------------------------------------------------

def is_floats(value: object) -> bool:
    """A float, or a sequence of floats and nothing else; an empty one is none."""
    if isinstance(value, (list, tuple)):
        return set(map(type, value)) == {float}
    return isinstance(value, float)


def same_set(out: Iterable, expected: Iterable) -> bool:
    """set(out) == set(expected), but values of one hash do not meet in one set: that takes quadratic time.
    Only the expected values are put into a table. Raises TypeError for what is no set of hashable values."""
    places = {}
    for value in expected:
        places.setdefault(value, len(places))
    of_out = set(map(places.get, out))              # None: not expected
    return of_out == set(places.values())


def oracle(problem: Problem, given: str, out: object) -> bool:
    """Whether EvalPlus takes a value that is not the canonical solution's, by the problem's own rule."""
    name = problem.entry
    if name == "surface_Area":                      # where height is meant as that of the apex
        edge, height = literal_eval(given)
        surface = round(edge ** 2 + 2 * edge * math.sqrt((edge / 2) ** 2 + height ** 2))
        return abs(out - surface) <= problem.atol
    if name == "digit_distance_nums":               # digit by digit, the shorter number filled with zeros
        a, b = map(str, literal_eval(given))
        n = max(len(a), len(b))
        pairs = zip(a.zfill(n), b.zfill(n))
        return out == sum(abs(int(x) - int(y)) for x, y in pairs)
    return name == "are_equivalent" or name == "sum_div" and out == 0


def agrees(
    problem: Problem,
    given: str,
    out: object,
    expected: object,
    atol: float,
    same_type: bool = True,         # where they were returned: what is no builtin value has become one since
) -> bool:
    """Whether one value is right for EvalPlus; whatever a strange value does is wrong."""
    try:
        if problem.entry == "find_zero":
            value = 0                                           # is `out` a zero of this polynomial?
            for power, coefficient in enumerate(literal_eval(given)):
                value += coefficient * math.pow(out, power)
            return abs(value) <= atol
        if problem.entry in SET_EQUAL:
            exact = same_set(out, expected)
        else:
            exact = out == expected or oracle(problem, given, out)
        if exact:
            return True
        if atol == 0 or not same_type or type(out) is not type(expected):
            return False
        if isinstance(out, (list, tuple)) and len(out) != len(expected):
            return False                                        # NumPy would repeat the shorter one
        with np.errstate(all="ignore"):
            return np.allclose(out, expected, rtol=1e-7, atol=atol)
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


# ---- tests -------------------------------------------------------------------------------------------------

@dataclass
class Suite:
    """A problem's tests, ready to run."""
    problem: Problem
    inputs: tuple[str, ...]
    n_base: int                     # the first inputs are the base tests
    # Canonical texts of (type's name, value), or the sandbox's word for a value too big to report, or None
    # where the canonical solution raises. LiveCodeBench: outputs.
    expected: list[str | None]
    chunks: list[tuple[range, float]]                   # which inputs a job runs, its limit of CPU seconds
    atol: list[float] = field(default_factory=list)     # the tolerance on each input


def job(problem: Problem, program: str, inputs: tuple[str, ...], cpu_s: float, give_up: bool = True) -> Job:
    """The sandbox's job for some inputs of a problem."""
    entry = problem.entry
    if not problem.is_live:
        turn = AS_IT_IS
        if entry in SET_EQUAL:
            turn = AS_SET                           # also of a generator, a filter, a dictionary's keys
        elif entry in NOT_NONE:
            turn = AS_BOOL
        program += SEEN.format(entry=entry, turn=turn)
        entry = "__seen"
    else:
        program = PREAMBLE + program
        if entry is not None:
            owner = "Solution()." if "class Solution" in program else ""
            program += f"\n_answer = {owner}{entry}\n"
            entry = "_answer"
    return Job(program, inputs, entry, give_up=give_up, cpu_s=cpu_s)


def answer_of(text: str | None, error: str | None) -> str | None:
    """What a program answered to one input: canonical text, or its value's digest, or None."""
    if text is None and error.startswith(DIGEST):
        return DIGEST + error[-64:]                 # without that of its type's name
    return text


def tolerances(problem: Problem, expected: list[str | None]) -> list[float]:
    """EvalPlus' tolerance on each of some inputs: the problem's own, or from the first expected float on a
    millionth (of values too big to report none is a sequence of floats)."""
    atol, out = problem.atol, []
    for text in expected:
        is_text = text is not None and not text.startswith(DIGEST)
        if atol == 0 and is_text and is_floats(decode(text, MAX_TEXT)[1]):
            atol = FLOAT_ATOL
        out.append(atol)
    return out


def canonical_answers(problem: Problem, verdict: Verdict) -> list[str | None]:
    """What the canonical solution returns; None where it raises. Raises OSError where the machine ended it: a
    test that is left out would make the benchmark easier."""
    answers = list(map(answer_of, verdict.outputs, verdict.errors))
    for answer, why in zip(answers, verdict.errors):
        if answer is None and not why.startswith(("error: ", "unsupported: ")) or why == NO_MEMORY:
            raise OSError(f"the sandbox failed on the solution of {problem.id} ({why}): free memory and "
                          "processors, and give the same command again")
    return answers


def suite_of(problem: Problem, base: Verdict, plus: Verdict) -> Suite:
    """A problem's tests by what its canonical solution returns."""
    suite = Suite(problem, problem.base + problem.plus, len(problem.base), [], [])
    for verdict in (base, plus):                    # as in EvalPlus these know nothing of one another
        answers = canonical_answers(problem, verdict)
        begins = len(suite.expected)
        suite.expected += answers
        suite.atol += tolerances(problem, answers)
        if answers:
            cpu_s = max(LEAST_S, FACTOR * verdict.cpu_s)
            suite.chunks.append((range(begins, begins + len(answers)), cpu_s))
    return suite


def live_suite(problem: Problem) -> Suite:
    """LiveCodeBench's tests, one a chunk, since most wrong answers fail the first."""
    inputs, outputs = live_tests(problem)
    chunks = [(range(i, i + 1), LIVE_S) for i in range(len(inputs))]
    return Suite(problem, inputs, len(inputs), outputs, chunks)


def suites(sandbox: Sandbox, problems: list[Problem]) -> list[Suite]:
    """The problems' tests; canonical solutions run where no outputs are published. Raises OSError."""
    jobs = []
    for problem in problems:
        if not problem.is_live:
            for inputs in (problem.base, problem.plus):
                jobs.append(job(problem, problem.canonical, inputs, CANONICAL_S, give_up=False))
    verdicts = iter(sandbox.run(jobs))
    out = []
    for problem in problems:
        if problem.is_live:
            out.append(live_suite(problem))
        else:
            out.append(suite_of(problem, next(verdicts), next(verdicts)))
    return out


# ---- verdicts ----------------------------------------------------------------------------------------------

def right(suite: Suite, i: int, answer: str) -> bool:
    """Whether this answer (see `answer_of`) is right on input i."""
    problem, expected = suite.problem, suite.expected[i]
    if not problem.is_live:
        return answer == expected or same_value(suite, i, answer, expected)
    if answer.startswith(DIGEST):
        return problem.entry is not None and answer == DIGEST + digest(json.loads(expected))
    out = decode(answer, MAX_TEXT)
    if problem.entry is None:
        return printed_alike(out, expected)
    if isinstance(out, tuple):
        out = list(out)
    return out == json.loads(expected)


def same_value(suite: Suite, i: int, answer: str, expected: str) -> bool:
    """Whether two answers of different text are the same for EvalPlus; beside a digest only what is equal."""
    texts = [text for text in (answer, expected) if not text.startswith(DIGEST)]
    if not texts:
        return False
    if len(texts) == 1:                             # the other one is a digest
        return DIGEST + digest(decode(texts[0], MAX_TEXT)[1]) in (answer, expected)
    kind, out = decode(answer, MAX_TEXT)
    expected_kind, value = decode(expected, MAX_TEXT)
    return agrees(suite.problem, suite.inputs[i], out, value, suite.atol[i], kind == expected_kind)


def failure(suite: Suite, numbers: range, verdict: Verdict) -> str:
    """The first of some inputs that is not answered rightly, and why; "" without one, or FAILED."""
    for i, text, error in zip(numbers, verdict.outputs, verdict.errors):
        if error == FAILED:                         # no program's error has this name: theirs begin otherwise
            return FAILED
        answer, expected = answer_of(text, error), suite.expected[i]
        if answer is not None and expected is not None and right(suite, i, answer):
            continue
        at = f"base input {i}"
        if i >= suite.n_base:
            at = f"plus input {i - suite.n_base}"
        why = error or ("no expected value" if expected is None else "wrong value")
        return f"{at}: {why}"[:200]
    return ""


def verify(sandbox: Sandbox, answers: list[tuple[Suite, str]]) -> list[dict]:
    """Verdicts of programs: whether the base tests and all tests are passed (None: the sandbox failed), the
    first reason why not, and the program. The first chunk of every program runs, then the second of those
    still right, and so on."""
    rows, alive = [], []                # alive: programs that are right so far, with their rows
    for suite, program in answers:
        rows.append(dict(base=False, plus=False, why="no program", program=program))
        if program:
            alive.append((suite, rows[-1]))
    for turn in itertools.count():
        if not alive:
            return rows
        jobs = []
        for suite, row in alive:
            numbers, cpu_s = suite.chunks[turn]
            inputs = suite.inputs[numbers.start:numbers.stop]
            jobs.append(job(suite.problem, row["program"], inputs, cpu_s))
        still = []
        for (suite, row), verdict in zip(alive, sandbox.run(jobs)):
            numbers, _ = suite.chunks[turn]
            row["why"] = failure(suite, numbers, verdict)
            if row["why"] == FAILED:
                row["plus"] = None
            if row["why"]:
                continue
            row["base"] = numbers.stop >= suite.n_base
            row["plus"] = numbers.stop == len(suite.inputs)
            if not row["plus"]:
                still.append((suite, row))
        alive = still
