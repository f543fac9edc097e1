"""Is a program right? Its tests run in the sandbox, chunk by chunk; the values that return are compared here.

HumanEval+ and MBPP+ as EvalPlus compares (evalplus/eval/__init__.py, 0.3.1): Python's ==, within atol from
the first float on, and its special oracles; expected values are what the canonical solution returns in the
same sandbox.
LiveCodeBench as its testing_util does: printed lines stripped and then equal, or equal as decimal numbers;
returned values by ==, a tuple counting as a list.
"""
import json
import math
from ast import literal_eval
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
PREAMBLE = "".join(f"from {name} import *\n" for name in [*MODULES, "builtins", "typing"]) + \
    f"import {', '.join(MODULES)}\nsys.setrecursionlimit(50000)\n"


# ---- comparison --------------------------------------------------------------------------------------------

def is_floats(value) -> bool:
    """A float, or a sequence of floats and nothing else; an empty one is none."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(x, float) for x in value)
    return isinstance(value, float)


def same_set(out, expected) -> bool:
    """set(out) == set(expected), but values of one hash do not meet in one set: that takes quadratic time.
    Only the expected values are put into a table. Raises TypeError for what is no set of hashable values."""
    places = {value: place for place, value in enumerate(dict.fromkeys(expected))}
    of_out = [places.get(value) for value in out]
    return None not in of_out and len(set(of_out)) == len(places)


def oracle(problem: Problem, given: str, out) -> bool:
    """Whether EvalPlus takes a value that is not the canonical solution's, by the problem's own rule."""
    name = problem.entry if problem.bench == "mbpp+" else ""
    if name == "surface_Area":                      # where height is meant as that of the apex
        edge, height = literal_eval(given)
        surface = round(edge ** 2 + 2 * edge * math.sqrt((edge / 2) ** 2 + height ** 2))
        return abs(out - surface) <= problem.atol
    if name == "digit_distance_nums":               # digit by digit, the shorter number filled with zeros
        a, b = map(str, literal_eval(given))
        return out == sum(abs(int(x) - int(y)) for x, y in zip(a.zfill(len(b)), b.zfill(len(a))))
    return name == "are_equivalent" or name == "sum_div" and out == 0


def agrees(problem: Problem, given: str, out, expected, atol: float, same_type: bool = True) -> bool:
    """Whether one value is right for EvalPlus; whatever a strange value does is wrong. same_type: whether
    both were of one type where they were returned, for what is no builtin value has become one."""
    try:
        if problem.bench == "humaneval+" and problem.entry == "find_zero":
            terms = enumerate(literal_eval(given))              # is `out` a zero of this polynomial?
            return abs(sum(c * math.pow(out, i) for i, c in terms)) <= atol
        if problem.bench == "mbpp+" and problem.entry in SET_EQUAL:
            exact = same_set(out, expected)
        else:
            exact = out == expected or oracle(problem, given, out)
        if exact:
            return True
        n = [len(x) if isinstance(x, (list, tuple)) else 0 for x in (out, expected)]
        if atol == 0 or not same_type or type(out) is not type(expected) or n[0] != n[1]:
            return False
        with np.errstate(all="ignore"):
            return bool(np.allclose(out, expected, rtol=1e-7, atol=atol))
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
    """A problem's tests, ready to run. inputs: the first n_base are the base tests. expected: canonical texts
    of (type's name, value), or the sandbox's word for a value too big to report, or None where the canonical
    solution raises (LiveCodeBench: outputs). chunks: inputs, by number, of one job, with its CPU limit. atol:
    the tolerance on each input."""
    problem: Problem
    inputs: tuple[str, ...]
    n_base: int
    expected: list[str | None]
    chunks: list[tuple[list[int], float]]
    atol: list[float] = field(default_factory=list)


def job(problem: Problem, program: str, inputs: tuple[str, ...], cpu_s: float, give_up: bool = True) -> Job:
    """The sandbox's job for some inputs of a problem."""
    entry = problem.entry
    if not problem.is_live:
        turn = AS_IT_IS
        if problem.bench == "mbpp+" and entry in SET_EQUAL:
            turn = AS_SET                           # also of a generator, a filter, a dictionary's keys
        elif problem.bench == "mbpp+" and entry in NOT_NONE:
            turn = AS_BOOL
        program += SEEN.format(entry=entry, turn=turn)
        return Job(program, inputs, "__seen", give_up=give_up, cpu_s=cpu_s)
    program = PREAMBLE + program
    if entry is not None:
        owner = "Solution()." if "class Solution" in program else ""
        program, entry = f"{program}\n_answer = {owner}{entry}\n", "_answer"
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


def suite_of(problem: Problem, base: Verdict, plus: Verdict) -> Suite:
    """A problem's tests by what its canonical solution returns; no value where it raises. Raises OSError
    where the machine ends it: a test that is left out would make the benchmark easier."""
    expected, chunks, atol = [], [], []
    for verdict in (base, plus):                    # as in EvalPlus these know nothing of one another
        part = list(map(answer_of, verdict.outputs, verdict.errors))
        for answer, why in zip(part, verdict.errors):
            if answer is None and not why.startswith(("error: ", "unsupported: ")) or why == NO_MEMORY:
                raise OSError(f"the sandbox failed on the solution of {problem.id} ({why}): free memory and "
                              "processors, and give the same command again")
        if part:
            numbers = list(range(len(expected), len(expected) + len(part)))
            chunks.append((numbers, max(LEAST_S, FACTOR * verdict.cpu_s)))
        expected += part
        atol += tolerances(problem, part)
    return Suite(problem, problem.base + problem.plus, len(problem.base), expected, chunks, atol)


def live_suite(problem: Problem) -> Suite:
    """LiveCodeBench's tests, one a chunk, since most wrong answers fail the first."""
    inputs, outputs = live_tests(problem)
    return Suite(problem, inputs, len(inputs), outputs, [([i], LIVE_S) for i in range(len(inputs))])


def suites(sandbox: Sandbox, problems: list[Problem]) -> list[Suite]:
    """The problems' tests; canonical solutions run where no outputs are published. Raises OSError."""
    jobs = []
    for problem in problems:
        if not problem.is_live:
            jobs += [job(problem, problem.canonical, inputs, CANONICAL_S, give_up=False)
                     for inputs in (problem.base, problem.plus)]
    verdicts = iter(sandbox.run(jobs))
    out = []
    for problem in problems:
        if problem.is_live:
            out.append(live_suite(problem))
        else:
            out.append(suite_of(problem, next(verdicts), next(verdicts)))
    return out


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
    return (list(out) if isinstance(out, tuple) else out) == json.loads(expected)


def same_value(suite: Suite, i: int, answer: str, expected: str) -> bool:
    """Whether two answers of different text are the same for EvalPlus; beside a digest only what is equal."""
    digests = answer.startswith(DIGEST), expected.startswith(DIGEST)
    if all(digests):
        return False
    if any(digests):
        big, text = (answer, expected) if digests[0] else (expected, answer)
        return big == DIGEST + digest(decode(text, MAX_TEXT)[1])
    kind, out = decode(answer, MAX_TEXT)
    expected_kind, value = decode(expected, MAX_TEXT)
    return agrees(suite.problem, suite.inputs[i], out, value, suite.atol[i], kind == expected_kind)


def failure(suite: Suite, chunk: list[int], verdict: Verdict) -> str:
    """The first input of a chunk that is not answered rightly, and why; "" without one, or FAILED."""
    for i, text, error in zip(chunk, verdict.outputs, verdict.errors):
        if error == FAILED:                         # no program's error has this name: theirs begin otherwise
            return FAILED
        answer = answer_of(text, error)
        if answer is None or suite.expected[i] is None or not right(suite, i, answer):
            why = error or ("wrong value" if suite.expected[i] is not None else "no expected value")
            at = f"plus input {i - suite.n_base}" if i >= suite.n_base else f"base input {i}"
            return f"{at}: {why}"[:200]
    return ""


def verify(sandbox: Sandbox, answers: list[tuple[Suite, str]]) -> list[dict]:
    """Verdicts of programs: whether the base tests and all tests are passed (None: the sandbox failed), and
    the first reason why not. The first chunk of every program runs, then the second of those still right, and
    so on."""
    rows = [dict(base=False, plus=False, why="" if program else "no program") for _, program in answers]
    turn, alive = 0, [i for i, (_, program) in enumerate(answers) if program]
    while alive:
        jobs, still = [], []
        for i in alive:
            suite, program = answers[i]
            chunk, cpu_s = suite.chunks[turn]
            jobs.append(job(suite.problem, program, tuple(suite.inputs[k] for k in chunk), cpu_s))
        for i, verdict in zip(alive, sandbox.run(jobs)):
            suite = answers[i][0]
            rest = suite.chunks[turn + 1:]
            if why := failure(suite, suite.chunks[turn][0], verdict):
                rows[i] |= dict(why=why, plus=None if why == FAILED else False)
                continue
            rows[i] |= dict(base=not rest or rest[0][0][0] >= suite.n_base, plus=not rest)
            if rest:
                still.append(i)
        alive, turn = still, turn + 1
    return rows
