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
    """One problem of a benchmark."""
    bench: str
    id: str
    prompt: str
    entry: str | None               # the function to be called; None: a program that reads standard input
    canonical: str = ""
    base: tuple[str, ...] = ()      # the inputs of EvalPlus's two sets of tests
    plus: tuple[str, ...] = ()
    atol: float = 0.0
    starter: str = ""
    # LiveCodeBench's tests, unpacked by live_tests each time: they take more memory than most machines have.
    packed: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_live(self) -> bool:
        """Whether it is LiveCodeBench's, which publishes outputs and no solutions."""
        return self.bench == "livecodebench"


# ---- the types that JSON lost ------------------------------------------------------------------------------

def tuples(values: list[list]) -> list[tuple]:
    """Lists in a list as tuples."""
    return list(map(tuple, values))


def deep_tuple(value: object) -> object:
    """Lists at every level as tuples."""
    if not isinstance(value, list):
        return value
    return tuple(map(deep_tuple, value))


def lists_as_tuples(values: list) -> tuple:
    """A tuple, and so each list in it."""
    return tuple(tuple(x) if isinstance(x, list) else x for x in values)


def values_as_tuples(values: dict[str, list]) -> dict[str, tuple]:
    """A dictionary's lists as tuples."""
    return {key: tuple(value) for key, value in values.items()}


# Numbers of MBPP tasks -> what becomes of their arguments
RULES = {
    "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809": tuples,
    "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780": lambda a: list(map(tuples, a)),
    "75 413 444 753": lambda a: [tuples(a[0]), a[1]],
    "106 750": lambda a: [a[0], tuple(a[1])],
    "124": lambda a: [float(a[0]), complex(a[1])],
    "252": lambda a: [complex(a[0])],
    "250 405 446 617 720 763 808 307": lambda a: [tuple(a[0]), *a[1:]],
    "278": lambda a: [lists_as_tuples(a[0])],
    "722": lambda a: [values_as_tuples(a[0]), *a[1:]],
    "259 401 445 580 615 791": lambda a: list(map(deep_tuple, a)),
}


def restore(task: str, arguments: list) -> list:
    """The arguments of one MBPP+ call with the types that JSON lost. Raises UserError for another call's."""
    _, _, number = task.rpartition("/")
    for numbers, rule in RULES.items():
        if number in numbers.split():
            try:
                return rule(arguments)
            except (TypeError, ValueError, LookupError) as error:       # of another shape than published
                raise UserError(f"{task}: {type(error).__name__}: {error}") from None
    return list(arguments)


def call_text(arguments: list) -> str:
    """Arguments as between the parentheses of a call; infinity, which has no literal, as 1e999."""
    pieces = re.split(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", ", ".join(map(repr, arguments)))
    for outside in range(0, len(pieces), 2):            # every other piece is a string
        pieces[outside] = re.sub(r"\binf\b", "1e999", pieces[outside])
    return "".join(pieces)


# ---- LiveCodeBench's tests ---------------------------------------------------------------------------------


class NoClasses(pickle.Unpickler):
    """Reads strings, numbers and containers; whatever names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> None:
        """Refuses."""
        raise pickle.UnpicklingError(f"names {module}.{name}")


def unpack(packed: str) -> list[dict]:
    """Test cases as JSON text, or as LiveCodeBench packs it. Raises UserError for anything else."""
    with explained("tests cannot be unpacked"):         # garbage makes the unpickler raise what it likes
        if packed.lstrip()[:1] != "[":
            inflate = zlib.decompressobj()
            raw = base64.b64decode(packed, validate=True)
            raw = inflate.decompress(raw, MAX_UNPACKED)
            demand(inflate.eof and not inflate.unconsumed_tail, "larger than a gigabyte, or cut off")
            packed = NoClasses(io.BytesIO(raw)).load()
        tests = json.loads(packed)
        demand(isinstance(tests, list), "they are no list")
    out = []
    for test in tests:
        demand(isinstance(test, dict) and {"input", "output"} <= test.keys(),
               "tests cannot be unpacked (each has an input and an output)")
        out.append(dict(input=str(test["input"]), output=str(test["output"])))
    return out


def live_tests(problem: Problem) -> tuple[tuple[str, ...], list[str]]:
    """Inputs and expected outputs of LiveCodeBench's problem: public ones first, as there."""
    inputs, outputs = [], []
    for part in problem.packed:
        for test in unpack(part):
            text = test["input"]
            if problem.entry:
                with explained("an input is no JSON, an argument a line", ValueError):
                    call = list(map(json.loads, text.split("\n")))
                text = call_text(call)
            inputs.append(text)
            outputs.append(test["output"])
    return tuple(inputs), outputs


# ---- a row of a published file -----------------------------------------------------------------------------

def problem_of(bench: str, number: int, row: Row) -> Problem:
    """A problem from a row of its published file. Raises UserError for another one's."""
    if bench == "livecodebench":
        return live_problem(row)
    id, prompt = row.typed("task_id", str), row.typed("prompt", str)
    canonical, entry = row.typed("canonical_solution", str), row.typed("entry_point", str)
    if bench == "humaneval+":
        canonical = prompt + canonical
    inputs = []
    for part in ("base_input", "plus_input"):
        calls = []
        for call in row.typed(part, list, dict, type(None)) or []:
            demand(isinstance(call, list), f"{part!r} has a call {call!r:.60}")
            if bench == "mbpp+":
                call = restore(id, call)
            calls.append(call_text(call))
        inputs.append(tuple(calls))
    atol = float(row.typed("atol", int, float))
    return Problem(bench, id, prompt, entry, canonical, *inputs, atol=atol)


def live_problem(row: Row) -> Problem:
    """LiveCodeBench's. Raises UserError where its tests are not in order."""
    metadata = json_object(row.typed("metadata", str, type(None)) or "{}")
    problem = Problem(
        "livecodebench",
        str(row["question_id"]),
        row.typed("question_content", str),
        metadata.get("func_name"),
        starter=row["starter_code"] or "",
        packed=(row.typed("public_test_cases", str), row.typed("private_test_cases", str)),
    )
    live_tests(problem)
    return problem
