"""HumanEval+, MBPP+ and LiveCodeBench in their published formats, as problems of one form.

Inputs become what the sandbox wants: argument texts of a call, or a program's standard input. JSON has no
tuples, sets and complex numbers; EvalPlus lists the MBPP tasks whose inputs have them (in data/mbpp.py),
`restore` states that as rules. LiveCodeBench packs its private tests as base64, zlib and a pickle of one
string: `unpack` refuses every class in it.
"""
import base64
import io
import json
import pickle
import re
import zlib
from dataclasses import dataclass, field

from eval.fetch import Row
from infra.errors import UserError, demand, explained
from infra.files import json_object

SETS = ("humaneval+", "mbpp+", "livecodebench")
MAX_UNPACKED = 1 << 30


@dataclass(frozen=True)
class Problem:
    """One problem. entry: the function to be called, None for a program that reads standard input. base,
    plus: the inputs of EvalPlus's two sets of tests. packed: LiveCodeBench's tests, which take more memory
    than most machines have: see `live_tests`."""
    bench: str
    id: str
    prompt: str
    entry: str | None
    canonical: str = ""
    base: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    atol: float = 0.0
    starter: str = ""
    packed: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_live(self) -> bool:
        """Whether it is LiveCodeBench's, which publishes outputs and no solutions."""
        return self.bench == "livecodebench"


def tuples(values: list) -> list[tuple]:
    """Lists in a list as tuples."""
    return [tuple(value) for value in values]


def deep_tuple(value):
    """Lists at every level as tuples."""
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value


RULES = [
    ({2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744,
      809}, tuples),
    ({63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780}, lambda a: list(map(tuples, a))),
    ({75, 413, 444, 753}, lambda a: [tuples(a[0]), a[1]]),
    ({106, 750}, lambda a: [a[0], tuple(a[1])]),
    ({124}, lambda a: [float(a[0]), complex(a[1])]),
    ({252}, lambda a: [complex(a[0])]),
    ({250, 405, 446, 617, 720, 763, 808, 307}, lambda a: [tuple(a[0]), *a[1:]]),
    ({278}, lambda a: [tuple(tuple(x) if isinstance(x, list) else x for x in a[0])]),
    ({722}, lambda a: [{key: tuple(value) for key, value in a[0].items()}, *a[1:]]),
    ({259, 401, 445, 580, 615, 791}, lambda a: list(map(deep_tuple, a)))]


def restore(task: str, arguments: list) -> list:
    """The arguments of one MBPP+ call with the types that JSON lost. Raises UserError for another call's."""
    for numbers, rule in RULES:
        if int(task.rpartition("/")[2]) in numbers:
            try:
                return rule(arguments)
            except (TypeError, ValueError, LookupError) as error:       # of another shape than published
                raise UserError(f"{task}: {type(error).__name__}: {error}") from None
    return list(arguments)


def call_text(arguments: list) -> str:
    """Arguments as between the parentheses of a call; infinity, which has no literal, as 1e999."""
    pieces = re.split(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", ", ".join(map(repr, arguments)))
    pieces[::2] = [re.sub(r"\binf\b", "1e999", piece) for piece in pieces[::2]]         # outside of strings
    return "".join(pieces)


class NoClasses(pickle.Unpickler):
    """Reads strings, numbers and containers; whatever names a class or a function is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"names {module}.{name}")


def unpack(packed: str) -> list[dict]:
    """Test cases as JSON text, or as LiveCodeBench packs it. Raises UserError for anything else."""
    if packed.lstrip()[:1] != "[":
        inflate = zlib.decompressobj()
        with explained("tests cannot be unpacked", (ValueError, zlib.error, MemoryError)):
            raw = inflate.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED)
        demand(inflate.eof and not inflate.unconsumed_tail,
               "tests cannot be unpacked (larger than a gigabyte, or cut off)")
        with explained("tests cannot be unpacked"):     # garbage makes the unpickler raise what it likes
            packed = NoClasses(io.BytesIO(raw)).load()
    with explained("tests cannot be unpacked"):
        tests = json.loads(packed)
    demand(isinstance(tests, list), "tests cannot be unpacked (they are no list)")
    for test in tests:
        shaped = isinstance(test, dict) and {"input", "output"} <= test.keys()
        demand(shaped, "tests cannot be unpacked (each has an input and an output)")
    return [dict(input=str(test["input"]), output=str(test["output"])) for test in tests]


def live_tests(problem: Problem) -> tuple[tuple[str, ...], list[str]]:
    """Inputs and expected outputs of LiveCodeBench's problem: public ones first, as there."""
    tests = [test for part in problem.packed for test in unpack(part)]
    inputs = [test["input"] for test in tests]
    if problem.entry:
        with explained("an input is no JSON, an argument a line", ValueError):
            calls = [list(map(json.loads, text.split("\n"))) for text in inputs]
        inputs = list(map(call_text, calls))
    return tuple(inputs), [test["output"] for test in tests]


def problem_of(bench: str, number: int, row: Row) -> Problem:
    """A problem from a row of its published file. Raises UserError for another one's."""
    if bench == "livecodebench":
        metadata = json_object(row.typed("metadata", str, type(None)) or "{}")
        packed = row.typed("public_test_cases", str), row.typed("private_test_cases", str)
        problem = Problem(bench, str(row["question_id"]), row.typed("question_content", str),
                          metadata.get("func_name"), starter=row["starter_code"] or "", packed=packed)
        live_tests(problem)                         # raises where they are not in order
        return problem
    texts = [row.typed(name, str) for name in ("task_id", "prompt", "canonical_solution", "entry_point")]
    id, prompt, canonical, entry = texts
    inputs = []
    for part in ("base_input", "plus_input"):
        calls = row.typed(part, list, dict, type(None)) or []
        for call in calls:
            demand(isinstance(call, list), f"{part!r} has a call {call!r:.60}")
        if bench == "mbpp+":
            calls = [restore(id, call) for call in calls]
        inputs.append(tuple(map(call_text, calls)))
    if bench == "humaneval+":
        canonical = prompt + canonical
    return Problem(bench, id, prompt, entry, canonical, *inputs, atol=float(row.typed("atol", int, float)))
