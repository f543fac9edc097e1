"""Writes what the micro base is trained on: the micro domain in the words of the micro prompt format.

micro/programs.py makes the programs, with the trace of their values. tasks/prompts.py has the words of the
prompts.
"""
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from micro import programs
from micro.programs import Program, Value, literal, pick, program_text
from tasks.prompts import FORMATS, TEMPLATES

# Phase 1 learns the skills: nearly every answer that can have a trace has one.
MIXTURE = {
    "propose": .15,
    "out": .36,
    "out direct": .06,
    "inp": .18,
    "fun": .10,
    "args": .06,
    "propose math": .02,
    "math": .025,
    "propose logic": .015,
    "logic": .03,
    "inp direct": 0,
    "math direct": 0,
}
TRACED = ("out", "inp", "math")             # kinds whose answer has a trace, or is given directly
THINKING = .22                              # share of their answers that have a trace in phase 2
MATH_IN_PHASE_2 = .06                       # at the small share of phase 1 the habit would not turn
# Weights of 0, 1, 2, ... statements, as programs.N_STATEMENTS, or of a puzzle's variables
N_PROPOSED = (0, 50, 27, 12, 6, 3, 2)       # in what it proposes: teachers start where the base does well
N_FUN = (0, 50, 33, 17)                     # in what it writes from examples
N_ARGS = (8, 34, 26, 16, 9, 4, 3)           # in what it writes inputs for: the identity program seeds code_f
N_VARIABLES = (0, 0, 30, 40, 30)            # to solve
N_PROPOSED_VARIABLES = (0, 0, 60, 30, 10)   # to propose
P_HARD_PROPOSED = .03
N_SHOWN = 4                                 # pairs shown in "fun"
N_INPUTS = 8                                # inputs written in "args", and of a task to write a program for
PROPOSE, SOLVE = 0, 1                       # places in Template.micro
Exchange = tuple[str, str]                  # a prompt and its answer


@dataclass(frozen=True)
class Example:
    """Holds one training row. The loss is on the answer and its end token."""
    kind: str                                # a key of MIXTURE
    prompt: str
    answer: str


def habit() -> dict[str, float]:
    """Returns the mixture of phase 2, which takes away the habit of thinking and leaves the skill. Of the
    answers that can have a trace this share, THINKING, has one. All else is as in phase 1."""
    mixture = MIXTURE | {"math": MATH_IN_PHASE_2}
    for kind in TRACED:
        direct = f"{kind} direct"
        share = mixture[kind] + mixture[direct]
        mixture[kind] = share * THINKING
        mixture[direct] = share * (1 - THINKING)
    return mixture


def asked(kind: str, phase: int, **fields: str) -> str:
    """Returns the prompt of a task type in PROPOSE or SOLVE."""
    return TEMPLATES[kind].micro[phase].format(**fields)


def shown(p: Program) -> str:
    """Returns a program as prompts show it; the template has the last newline."""
    return program_text(p.body).rstrip("\n")


def answer_with(mark: str, trace: Iterable[Value], value: Value, how: str = "") -> str:
    """Returns an answer: the values of its trace, opened by `mark`, a line each, then the value asked for.
    how: "direct" leaves out the trace."""
    lines = ""
    if not how:
        for passed in trace:
            lines += f"{mark}{literal(passed)}\n"
    return f"{lines}={literal(value)}"


def example(
    rng: Random,
    kind: str | None = None,            # None: drawn from the mixture
    mixture: dict[str, float] = MIXTURE,
) -> Example:
    """Returns one row of the training stream, with a fresh program."""
    if kind is None:
        [kind] = rng.choices(list(mixture), list(mixture.values()))
    name, *how = kind.split()
    prompt, answer = MAKERS[name](rng, *how)
    return Example(kind, prompt, answer)


# --- prompt and answer of each kind; how: "" with a trace, or "direct" --------------------------------------

def word_problem(rng: Random, how: str = "") -> Exchange:
    """Tells a story about one number, line by line."""
    question, p = programs.word_problem(rng, pick(rng, programs.N_STATEMENTS))
    prompt = asked("math", SOLVE, question=question)
    return prompt, answer_with(">", p.trace[1:], p.y, how)          # the story begins with the first value


def puzzle(rng: Random) -> Exchange:
    """Gives clauses, and the truth values that fulfil them."""
    clauses, model = programs.puzzle(rng, pick(rng, N_VARIABLES))
    values = map(str, map(int, model))
    prompt = asked("logic", SOLVE, constraints="\n".join(clauses))
    return prompt, "=" + ",".join(values)


def input_task(rng: Random, how: str = "") -> Exchange:
    """Asks for an input that gives an output. The answer goes backwards from the last statement."""
    p = programs.generate(rng)
    prompt = asked("code_i", SOLVE, program=shown(p), output=literal(p.y))
    return prompt, answer_with("<", p.trace[-2::-1], p.x, how)


def output_task(rng: Random, how: str = "") -> Exchange:
    """Asks what a program returns for an input."""
    p = programs.generate(rng)
    prompt = asked("code_o", SOLVE, program=shown(p), input=literal(p.x))
    return prompt, answer_with(">", p.trace, p.y, how)


def proposal(rng: Random, kind: str = "") -> Exchange:
    """Returns prompt and answer of a teacher of math, logic or (kind "") code_o and code_i."""
    if kind == "math":
        question, p = programs.word_problem(rng, pick(rng, N_PROPOSED))
        program = constant(p).rstrip()
        return asked("math", PROPOSE), f"{question}\n{program}"
    if kind == "logic":
        clauses, _ = programs.puzzle(rng, pick(rng, N_PROPOSED_VARIABLES))
        return asked("logic", PROPOSE), "\n".join(clauses)
    p = programs.generate(rng, pick(rng, N_PROPOSED), p_hard=P_HARD_PROPOSED)
    prompt = asked(rng.choice(("code_o", "code_i")), PROPOSE, type=type(p.x).__name__)
    return prompt, f"{program_text(p.body)}f({literal(p.x)})"


def with_pairs(rng: Random, weights: tuple[int, ...], n: int) -> tuple[Program, list]:
    """Returns a program, its size drawn by these weights, with n pairs (input, output)."""
    examples = None
    while not examples:
        p = programs.generate(rng, pick(rng, weights))
        examples = programs.pairs(rng, p, n)
    return p, examples


def program_from_pairs(rng: Random) -> Exchange:
    """Asks for the program that gives some pairs, one half of induction."""
    p, examples = with_pairs(rng, N_FUN, N_SHOWN)
    form = FORMATS["micro"].pair
    lines = ""
    for x, y in examples:
        lines += form.format(input=literal(x), output=literal(y))
    prompt = asked("code_f", SOLVE, pairs=lines)
    return prompt, program_text(p.body)


def inputs_for_program(rng: Random) -> Exchange:
    """Asks for inputs that tell what a program does, the other half of induction."""
    p, examples = with_pairs(rng, N_ARGS, N_INPUTS)
    inputs = [f"f({literal(x)})" for x, _ in examples]
    prompt = asked("code_f", PROPOSE, program=shown(p))
    return prompt, "\n".join(inputs)


MAKERS = {                      # by the first word of a kind; what stands behind it is their second argument
    "propose": proposal,
    "out": output_task,
    "inp": input_task,
    "fun": program_from_pairs,
    "args": inputs_for_program,
    "math": word_problem,
    "logic": puzzle,
}


def constant(p: Program) -> str:
    """Returns a word problem's program, which has no input."""
    return program_text(p.body).replace("f(x)", "f()")


def task_row(
    kind: str,
    rng: Random,
    size: int,
    reserved: bool = True,              # never trained on
) -> tuple[dict, list]:
    """Returns a task of this size as a line of a file of tasks, and its golds."""
    if kind == "math":
        question, p = programs.word_problem(rng, size, reserved)
        return dict(kind=kind, question=question, program=constant(p)), [p.y]
    if kind == "logic":
        clauses, model = programs.puzzle(rng, size, reserved)
        return dict(kind=kind, constraints=clauses), [model]
    if kind != "code_f":
        p = programs.generate(rng, size, reserved=reserved)
        row = dict(kind=kind, program=program_text(p.body), input=literal(p.x))
        return row, [p.y]
    examples = None
    while not examples:
        p = programs.generate(rng, size, reserved=reserved)
        examples = programs.pairs(rng, p, N_INPUTS)
    inputs, outputs = zip(*examples)
    row = dict(kind=kind, program=program_text(p.body), inputs=list(map(literal, inputs)))
    return row, list(outputs)
