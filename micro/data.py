"""What the micro base is trained on: the micro domain in the words of the micro prompt format.

micro/programs.py makes the programs, with the trace of their values; tasks/prompts.py has the words of the
prompts.
"""
import random
from dataclasses import dataclass

from micro import programs
from micro.programs import literal, pick, program_text
from tasks.prompts import FORMATS, TEMPLATES

# Phase 1 learns the skills: nearly every answer that can have a trace has one.
MIXTURE = {"propose": .15, "out": .36, "out direct": .06, "inp": .18, "fun": .10, "args": .06,
           "propose math": .02, "math": .025, "propose logic": .015, "logic": .03, "inp direct": 0,
           "math direct": 0}
TRACED = ("out", "inp", "math")             # kinds whose answer has a trace, or is given directly
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


@dataclass(frozen=True)
class Example:
    """One training row; the loss is on the answer and its end token."""
    kind: str                                # a key of MIXTURE
    prompt: str
    answer: str


def habit(thinking: float, shallow: float = 0.) -> dict[str, float]:
    """The mixture of phase 2, which takes away the habit of thinking and leaves the skill. thinking: of the
    answers that can have a trace, this share has one. shallow: of the direct answers to output tasks, this
    share has a shallow trace instead. All else is as in phase 1."""
    mixture = MIXTURE | {"math": MATH_IN_PHASE_2}
    for kind in TRACED:
        share = mixture[kind] + mixture[f"{kind} direct"]
        mixture |= {kind: share * thinking, f"{kind} direct": share * (1 - thinking)}
    direct = mixture["out direct"]
    return mixture | {"out direct": direct * (1 - shallow), "out shallow": direct * shallow}


def asked(kind: str, phase: int, **fields: str) -> str:
    """The prompt of a task type in PROPOSE or SOLVE."""
    return TEMPLATES[kind].micro[phase].format(**fields)


def answer_with(mark: str, trace, value) -> str:
    """An answer: the values of its trace, opened by `mark`, a line each, then the value asked for."""
    return "".join(f"{mark}{literal(v)}\n" for v in trace) + f"={literal(value)}"


def example(rng: random.Random, kind: str | None = None, mixture: dict[str, float] = MIXTURE) -> Example:
    """One row of the training stream: the kind drawn from a mixture (or given), then a fresh program."""
    kind = kind or rng.choices(list(mixture), list(mixture.values()))[0]
    task, _, how = kind.partition(" ")
    if task == "propose":
        return Example(kind, *proposal(rng, how))
    if task in ("fun", "args"):
        return Example(kind, *example_of_pairs(rng, kind))
    if task == "math":
        question, p = programs.word_problem(rng, pick(rng, programs.N_STATEMENTS))
        trace = () if how else p.trace[1:]
        return Example(kind, asked("math", SOLVE, question=question), answer_with(">", trace, p.y))
    if task == "logic":
        clauses, model = programs.puzzle(rng, pick(rng, N_VARIABLES))
        prompt = asked("logic", SOLVE, constraints="\n".join(clauses))
        return Example(kind, prompt, "=" + ",".join(str(int(value)) for value in model))
    p = programs.generate(rng)
    program = program_text(p.body).rstrip("\n")
    if task == "inp":
        prompt = asked("code_i", SOLVE, program=program, output=literal(p.y))
        trace = () if how else p.trace[-2::-1]                  # from the value before the last statement
        return Example(kind, prompt, answer_with("<", trace, p.x))
    prompt = asked("code_o", SOLVE, program=program, input=literal(p.x))
    if how == "shallow":                        # a second hill for self-play: half of the statements alone
        return Example(kind, prompt, answer_with("<", [p.trace[(len(p.trace) - 1) // 2]], p.y))
    return Example(kind, prompt, answer_with(">", () if how else p.trace, p.y))


def proposal(rng: random.Random, kind: str) -> tuple[str, str]:
    """Prompt and answer of a teacher of math, logic or (kind "") code_o and code_i."""
    if kind == "math":
        question, p = programs.word_problem(rng, pick(rng, N_PROPOSED))
        return asked("math", PROPOSE), f"{question}\n{constant(p).rstrip()}"
    if kind == "logic":
        clauses, _ = programs.puzzle(rng, pick(rng, N_PROPOSED_VARIABLES))
        return asked("logic", PROPOSE), "\n".join(clauses)
    p = programs.generate(rng, pick(rng, N_PROPOSED), p_hard=P_HARD_PROPOSED)
    prompt = asked(rng.choice(("code_o", "code_i")), PROPOSE, type=type(p.x).__name__)
    return prompt, f"{program_text(p.body)}f({literal(p.x)})"


def example_of_pairs(rng: random.Random, kind: str) -> tuple[str, str]:
    """The two halves of induction: a program from pairs ("fun"), or inputs for a program ("args")."""
    examples = None
    while not examples:
        p = programs.generate(rng, pick(rng, N_FUN if kind == "fun" else N_ARGS))
        examples = programs.pairs(rng, p.body, type(p.x).__name__, N_SHOWN if kind == "fun" else N_INPUTS)
    text = program_text(p.body)
    if kind == "fun":
        pair = FORMATS["micro"].pair
        shown = "".join(pair.format(input=literal(x), output=literal(y)) for x, y in examples)
        return asked("code_f", SOLVE, pairs=shown), text
    inputs = "\n".join(f"f({literal(x)})" for x, _ in examples)
    return asked("code_f", PROPOSE, program=text.rstrip("\n")), inputs


def constant(p: programs.Program) -> str:
    """A word problem's program, which has no input."""
    return program_text(p.body).replace("f(x)", "f()")


def task_row(kind: str, rng: random.Random, size: int, reserved: bool = True) -> tuple[dict, list]:
    """A task of this size as a line of a file of tasks, its golds. reserved: never trained on."""
    if kind == "math":
        question, p = programs.word_problem(rng, size, reserved)
        return dict(kind=kind, question=question, program=constant(p)), [p.y]
    if kind == "logic":
        clauses, model = programs.puzzle(rng, size, reserved)
        return dict(kind=kind, constraints=clauses), [model]
    examples = None
    while not examples:
        p = programs.generate(rng, size, reserved=reserved)
        examples = [(p.x, p.y)]
        if kind == "code_f":
            examples = programs.pairs(rng, p.body, type(p.x).__name__, N_INPUTS)
    inputs = [literal(x) for x, _ in examples]
    given = dict(inputs=inputs) if kind == "code_f" else dict(input=inputs[0])
    return dict(kind=kind, program=program_text(p.body), **given), [y for _, y in examples]
