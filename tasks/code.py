"""Tasks of code: code_o deduction, code_i abduction, code_f induction (Absolute Zero, 2505.03335)."""
from dataclasses import replace
from itertools import compress

from infra.errors import refuse_unless
from sandbox.values import decode, same
from tasks.base import FAILED, UNJUDGED, VIOLATION, Proposal, TaskType, distinct
from tasks.complexity import binds_f, callable_as_f
from tasks.literals import canonical_arguments, stated_inputs, value_text
from tasks.validation import check_program
from verifier import Job


def grade(gold: str, output: str | None, error: str | None) -> str:
    """What the output of an execution, None where it has none, is worth where `gold` is due."""
    if error == FAILED:
        return UNJUDGED
    return "correct" if output is not None and same(decode(output), decode(gold)) else "wrong"


class ValueTask(TaskType):
    """code_o and code_i: the answer is data that a program is run on, the gold is outputs[0]."""
    program = ""            # one of ours, which reads all answers in one run; "" = the task's, a run for each

    def literal(self, text, task):
        """The value or the arguments that a text states, as Python prints them. "" or Refused: none."""
        raise NotImplementedError

    def read_answer(self, block, task, limits):
        """The literal that a block is."""
        # twice the limit: the gold is measured as displayed, an answer may hold more spaces
        is_short = len(block.strip()) <= 2 * max(limits.input_chars, limits.output_chars)
        return self.literal(block, task) if is_short else ""

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
    program = "def f(value):\n    return value"

    def literal(self, text, task):
        return value_text(text)


class Abduction(ValueTask):
    """Program and output are given; the answer is any input that gives this output."""
    name, tags = "code_i", ("input", "answer")

    def literal(self, text, task):
        return canonical_arguments(text, task.program)


class Induction(TaskType):
    """Pairs and a hint are given; the answer is a program, graded on the hidden pairs alone."""
    name = "code_f"
    tags = ("python", "answer")
    by_input = True

    def read(self, written, few_shot, limits):
        """The first n_inputs distinct inputs, and the hint if any, for few_shot[0]."""
        form, blocks = written.form, written.blocks
        is_protocol = written.admits(*["input"] * max(1, len(blocks)))
        refuse_unless(is_protocol and not (form.strict and "#" in written.text), "syntax")
        messages = [body.strip() for body in written.bodies("message")]
        texts = written.bodies("input") or [body for tag, body in blocks[:1] if tag in ("", "python")]
        refuse_unless(texts, "no_input")
        inputs = {}
        for body in dict.fromkeys(texts):
            if len(inputs) >= limits.n_inputs:
                break
            for given, written_so in stated_inputs(body, few_shot[0].program).items():
                inputs.setdefault(given, written_so)
        inputs = tuple(inputs if form.tidy else inputs.values())[:limits.n_inputs]
        return Proposal(self.name, few_shot[0].program, inputs, messages[-1] if messages else "")

    def demands(self, proposal, limits):
        refuse_unless(len(proposal.inputs) >= limits.min_inputs, "few_inputs")
        super().demands(proposal, limits)

    def make(self, proposal, verdict, limits, key):
        """As `TaskType.make`; inputs on which it raises are left out while at least min_inputs remain."""
        works = [error is None or not error.startswith("error") for error in verdict.errors]
        if verdict.end == "ok" and limits.min_inputs <= sum(works) < len(works):
            proposal = replace(proposal, inputs=tuple(compress(proposal.inputs, works)))
            verdict = replace(verdict, outputs=tuple(compress(verdict.outputs, works)),
                              errors=tuple(compress(verdict.errors, works)))
        return super().make(proposal, verdict, limits, key)

    def candidates(self, written):
        """A program with an f counts before one whose function has another name."""
        return sorted(super().candidates(written), key=binds_f)

    def read_answer(self, block, task, limits):
        """The program as it stands, if it has a function to call and passes a proposal's static checks."""
        program = callable_as_f(block)
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
