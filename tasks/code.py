"""Tasks of code: code_o deduction, code_i abduction, code_f induction (Absolute Zero, 2505.03335)."""
from dataclasses import replace
from itertools import compress

from sandbox.values import decode, same
from tasks.base import FAILED, UNJUDGED, VIOLATION, Proposal, TaskType, distinct
from tasks.complexity import demand, normalise
from tasks.validation import arguments_text, canonical_arguments, check_program, split_inputs
from verifier import Job


def grade(gold: str, output: str | None, error: str | None) -> str:
    """What the output of an execution, None where it has none, is worth where `gold` is due."""
    if error == FAILED:
        return UNJUDGED
    return "correct" if output is not None and same(decode(output), decode(gold)) else "wrong"


class ValueTask(TaskType):
    """code_o and code_i: the answer is data that a program is run on, the gold is outputs[0]."""
    program = ""            # one of ours, which reads all answers in one run; "" = the task's, a run for each

    def read_answer(self, written, task, limits):
        """The text of the value or of the arguments."""
        answer = super().read_answer(written, task, limits).strip()
        if self.tags[0] == "input":
            answer = arguments_text(answer)
        # twice the limit: the gold is measured as displayed, an answer may hold more spaces
        return answer if len(answer) <= 2 * max(limits.input_chars, limits.output_chars) else ""

    def answer_jobs(self, task, answers, limits):
        texts = distinct(answers)
        if self.program:
            return [Job(self.program, texts)] if texts else []
        return [Job(task.program, (text,)) for text in texts]

    def grade(self, task, answer, claims, limits):
        """An answer that is no literal is malformed; one that the program cannot digest is merely wrong."""
        (output, error), = claims
        if error not in (None, FAILED) and (self.program or error.startswith("not a literal")):
            return "malformed"
        return grade(task.outputs[0], output, error)


class Deduction(ValueTask):
    """Program and input are given; the answer is the output, read by a program that returns its argument."""
    name, tags = "code_o", ("output", "answer")
    program = "def f(*values):\n    return values[0] if len(values) == 1 else values"    # "1, 2" is a tuple


class Abduction(ValueTask):
    """Program and output are given; the answer is any input that gives this output."""
    name, tags = "code_i", ("input", "answer")


class Induction(TaskType):
    """Pairs and a hint are given; the answer is a program, graded on the hidden pairs alone."""
    name = "code_f"
    tags = ("python", "answer")
    by_input = True

    def read(self, written, few_shot, limits):
        """The first n_inputs distinct inputs, and the hint if any, for few_shot[0]."""
        form, blocks = written.form, written.blocks
        is_protocol = written.admits(*["input"] * max(1, len(blocks)))
        demand(is_protocol and not (form.strict and "#" in written.text), "syntax")
        messages = [body.strip() for body in written.bodies("message")]
        texts = written.bodies("input") or [body for tag, body in blocks[:1] if tag in ("", "python")]
        demand(texts, "no_input")
        inputs = {}
        for body in dict.fromkeys(texts):
            if len(inputs) >= limits.n_inputs:
                break
            for given in split_inputs(body):
                inputs.setdefault(canonical_arguments(given) or given, given)
        inputs = tuple(inputs if form.tidy else inputs.values())[:limits.n_inputs]
        return Proposal(self.name, few_shot[0].program, inputs, messages[-1] if messages else "")

    def demands(self, proposal, limits):
        demand(len(proposal.inputs) >= limits.min_inputs, "few_inputs")
        super().demands(proposal, limits)

    def make(self, proposal, verdict, limits, key):
        """As `TaskType.make`; inputs on which it raises are left out while at least min_inputs remain."""
        works = [error is None or not error.startswith("error") for error in verdict.errors]
        if verdict.end == "ok" and limits.min_inputs <= sum(works) < len(works):
            proposal = replace(proposal, inputs=tuple(compress(proposal.inputs, works)))
            verdict = replace(verdict, outputs=tuple(compress(verdict.outputs, works)),
                              errors=tuple(compress(verdict.errors, works)))
        return super().make(proposal, verdict, limits, key)

    def read_answer(self, written, task, limits):
        """The program, called f, if it passes a proposal's static checks."""
        demand(written.admits("python"), "syntax")
        block = super().read_answer(written, task, limits)
        program = normalise(block, limits.source_chars, written.form.tidy)
        check_program(program, replace(limits, reject_constant=False))
        return program

    def answer_jobs(self, task, answers, limits):
        hidden = task.inputs[self.n_shown(task, limits):]
        return [Job(answer, hidden) for answer in distinct(answers)]

    def grade(self, task, answer, claims, limits):
        """Correct where every hidden output is reproduced."""
        if VIOLATION in [error for _, error in claims]:
            return VIOLATION
        gold = task.outputs[self.n_shown(task, limits):]
        grades = {grade(value, *claim) for value, claim in zip(gold, claims, strict=True)}
        return next(name for name in ("wrong", UNJUDGED, "correct") if name in grades)
