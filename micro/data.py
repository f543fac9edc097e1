"""The micro domain as text, in the micro prompt format: what the micro base is trained on.

    python -m micro.data            # an example of each kind, and the speed of the generator

micro/programs.py makes the programs, with the trace of their values; tasks/prompts.py writes the same texts.
"""
import random
import time
from dataclasses import dataclass

from micro.programs import (
    N_STATEMENTS,
    Program,
    generate,
    literal,
    pairs,
    pick,
    program_text,
    puzzle,
    type_of,
    word_problem,
)
from tasks import miu

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
N_STEPS = (0, 20, 25, 20, 15, 12, 8)        # of a derivation to find
N_PROPOSED_STEPS = (0, 0, 60, 30, 10)       # and to propose: one step is no theorem
P_HARD_PROPOSED = .03
N_SHOWN = 4                                 # pairs shown in "fun"
N_INPUTS = 8                                # inputs written in "args"


@dataclass(frozen=True)
class Example:
    """One training row; the loss is on the answer and its end token."""
    kind: str                                # a key of MIXTURE
    n: int                                   # statements
    prompt: str
    answer: str


def habit(thinking: float, shallow: float = 0.) -> dict[str, float]:
    """The mixture of phase 2, which takes away the habit of thinking and leaves the skill.

    thinking: of the answers that can have a trace, this share has one. shallow: of the direct answers to
    output tasks, this share has a shallow trace instead. All else is as in phase 1.
    """
    mixture = MIXTURE | {"math": MATH_IN_PHASE_2}
    for kind in TRACED:
        share = mixture[kind] + mixture[f"{kind} direct"]
        mixture |= {kind: share * thinking, f"{kind} direct": share * (1 - thinking)}
    direct = mixture["out direct"]
    return mixture | {"out direct": direct * (1 - shallow), "out shallow": direct * shallow}


def with_theorems(mixture: dict[str, float], share: float) -> dict[str, float]:
    """A mixture of which this share are derivations in the MIU system, one in four of them proposed."""
    rest = {kind: weight * (1 - share) for kind, weight in mixture.items()}
    return rest | {"proof": share * .75, "propose proof": share * .25}


def call(x) -> str:
    return f"f({literal(x)})"


def propose_prompt(task: str, type_: str) -> str:
    """task: "out" | "inp"; type_: the type of the input, one of TYPES."""
    return f"propose {task} {type_}\n"


def propose_answer(p: Program) -> str:
    return program_text(p.body) + call(p.x)


def out_prompt(text: str, x) -> str:
    return f"out\n{text}{call(x)}\n"


def out_answer(p: Program) -> str:
    """The trace, forwards, then the output."""
    return "".join(f">{literal(v)}\n" for v in p.trace) + f"={literal(p.y)}"


def shallow_answer(p: Program) -> str:
    """A second hill for self-play: the value after half of the statements alone, then the output."""
    return f"<{literal(p.trace[(len(p.trace) - 1) // 2])}\n={literal(p.y)}"


def inp_prompt(text: str, y) -> str:
    return f"inp\n{text}{literal(y)}\n"


def inp_answer(p: Program) -> str:
    """The trace, backwards from the value before the last statement, then the input."""
    return "".join(f"<{literal(v)}\n" for v in p.trace[-2::-1]) + f"={literal(p.x)}"


def fun_prompt(pairs) -> str:
    """pairs: (input, output) values."""
    return "fun\n" + "".join(f"{call(x)}={literal(y)}\n" for x, y in pairs)


def args_prompt(text: str) -> str:
    return f"args\n{text}"


def args_answer(inputs) -> str:
    return "\n".join(map(call, inputs))


def math_prompt(lines) -> str:
    """lines: those of a word problem."""
    return "math\n" + "".join(f"?{line}\n" for line in lines)


def math_answer(p: Program) -> str:
    """The values of x after each line but the first, then the last one."""
    return "".join(f">{v}\n" for v in p.trace[1:]) + f"={p.y}"


def propose_math_answer(lines, p: Program) -> str:
    return "".join(f"?{line}\n" for line in lines) + program_text(p.body).replace("f(x)", "f()").rstrip("\n")


def logic_prompt(clauses) -> str:
    return "logic\n" + "".join(f"{clause}\n" for clause in clauses)


def logic_answer(model) -> str:
    """model: one bool per variable, in alphabetical order."""
    return "=" + ",".join(str(int(value)) for value in model)


def proof_prompt(lines) -> str:
    """lines: a derivation, whose last string is to follow from its first."""
    return f"proof\n{lines[0]}\n{lines[-1]}\n"


def example(rng: random.Random, kind: str | None = None, mixture: dict[str, float] = MIXTURE) -> Example:
    """One row of the training stream: the kind drawn from a mixture (or given), then a fresh program."""
    kind = kind or rng.choices(list(mixture), list(mixture.values()))[0]
    task = kind.removesuffix(" direct")
    direct = kind.endswith(" direct")
    if kind == "propose":
        p = generate(rng, pick(rng, N_PROPOSED), p_hard=P_HARD_PROPOSED)
        prompt = propose_prompt(rng.choice(("out", "inp")), type_of(p.x))
        return Example(kind, len(p.body), prompt, propose_answer(p))
    if kind in ("fun", "args"):
        return example_of_pairs(rng, kind)
    if task.endswith("math"):
        n = pick(rng, N_PROPOSED if kind.startswith("propose") else N_STATEMENTS)
        lines, p = word_problem(rng, n)
        if task == "math":
            return Example(kind, n, math_prompt(lines), f"={p.y}" if direct else math_answer(p))
        return Example(kind, n, f"{kind}\n", propose_math_answer(lines, p))
    if kind.endswith("logic"):
        n = pick(rng, N_PROPOSED_VARIABLES if kind.startswith("propose") else N_VARIABLES)
        clauses, model = puzzle(rng, n)
        if kind == "logic":
            return Example(kind, n, logic_prompt(clauses), logic_answer(model))
        return Example(kind, n, f"{kind}\n", "\n".join(clauses))
    if kind == "propose proof":
        lines = miu.derivation(rng, pick(rng, N_PROPOSED_STEPS))
        return Example(kind, len(lines) - 1, "propose proof\n", "\n".join(lines))
    if kind == "proof":
        lines = miu.derivation(rng, pick(rng, N_STEPS))
        return Example(kind, len(lines) - 1, proof_prompt(lines), "\n".join(lines[1:]))
    p = generate(rng)
    text = program_text(p.body)
    if task == "inp":
        answer = f"={literal(p.x)}" if direct else inp_answer(p)
        return Example(kind, len(p.body), inp_prompt(text, p.y), answer)
    prompt = out_prompt(text, p.x)
    if direct:
        return Example(kind, len(p.body), prompt, f"={literal(p.y)}")
    return Example(kind, len(p.body), prompt, shallow_answer(p) if kind == "out shallow" else out_answer(p))


def example_of_pairs(rng: random.Random, kind: str) -> Example:
    """The two halves of induction: a program from pairs ("fun"), or inputs for a program ("args")."""
    while True:
        n = pick(rng, N_FUN if kind == "fun" else N_ARGS)
        p = generate(rng, n)
        found = pairs(rng, p.body, type_of(p.x), N_SHOWN if kind == "fun" else N_INPUTS)
        if found and kind == "fun":
            return Example(kind, n, fun_prompt(found), program_text(p.body))
        if found:
            return Example(kind, n, args_prompt(program_text(p.body)), args_answer(x for x, _ in found))


if __name__ == "__main__":
    rng = random.Random(0)
    for kind in MIXTURE:
        e = example(rng, kind)
        print(f"--- {kind}, {e.n} statements\n{e.prompt}{e.answer}")
    n = 5000
    began = time.perf_counter()
    for _ in range(n):
        example(rng)
    print(f"--- {n / (time.perf_counter() - began):.0f} examples/s")
