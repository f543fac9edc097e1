"""Tasks of code: code_o deduction, code_i abduction, code_f induction (Absolute Zero, 2505.03335)."""
from dataclasses import replace

from common import refuse_unless
from sandbox.values import decode, same
from tasks.base import FAILED, UNJUDGED, VIOLATION, Answers, Claim, Proposal, Task, TaskType, distinct
from tasks.literals import canonical_arguments, stated_inputs, value_text
from tasks.prompts import Answer
from tasks.programs import Limits, check_program, entry, tree_of
from verifier import Job, Verdict


def grade(gold: str, claim: Claim) -> str:
    """What the outcome of an execution is worth where the canonical text `gold` is due."""
    if claim.error == FAILED:
        return UNJUDGED
    if claim.output is not None and same(decode(claim.output), decode(gold)):
        return "correct"
    return "wrong"


class ValueTask(TaskType):
    """code_o and code_i: the answer is data that a program is run on, and the gold is outputs[0]."""
    # A program of ours, which reads all answers in one run; "" stands for the task's own, which has a run for
    # each answer: its calls could count each other.
    program = ""

    def literal(self, text: str, task: Task) -> str:
        """The value or the arguments that a text states, as Python prints them. Where it states none, this
        is "", or raises Refused."""
        raise NotImplementedError

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """The literal that a block is."""
        # Twice the limit: the gold is measured as it is displayed, and an answer may hold more spaces.
        longest = 2 * max(limits.input_chars, limits.output_chars)
        if len(block.strip()) > longest:
            return ""
        return self.literal(block, task)

    def answer_jobs(self, task: Task, answers: Answers, limits: Limits) -> list[Job]:
        """One job for all answers where the program is ours, else one for each distinct answer."""
        # Equal answers get equal verdicts, so that each text runs once.
        texts = distinct(answers)
        if self.program and texts:
            return [Job(self.program, texts)]
        return [Job(task.program, (text,)) for text in texts]

    def grade(self, task: Task, answer: str, claims: list[Claim], limits: Limits) -> str:
        """An answer that is no literal is malformed; one that the program cannot digest is merely wrong."""
        claim, = claims
        raised = claim.error not in (None, FAILED)
        # Our own program returns whatever it is given: where it raises, the answer was no value.
        if raised and (self.program or claim.error.startswith("not a literal")):
            return "malformed"
        return grade(task.outputs[0], claim)


class Deduction(ValueTask):
    """Program and input are given; the answer is the output, read by a program that returns its argument."""
    name = "code_o"
    tags = ("output", "answer")
    program = "def f(value):\n    return value"

    def literal(self, text: str, task: Task) -> str:
        return value_text(text)


class Abduction(ValueTask):
    """Program and output are given; the answer is any input that gives this output."""
    name = "code_i"
    tags = ("input", "answer")

    def literal(self, text: str, task: Task) -> str:
        return canonical_arguments(text)


class Induction(TaskType):
    """Pairs and a hint are given; the answer is a program, graded on the hidden pairs alone."""
    name = "code_f"
    tags = ("python", "answer")
    by_input = True

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Inputs for the program of few_shot[0], the first n_inputs distinct ones, and a hint."""
        form = written.form
        # The compact protocol is inputs alone, at least one; its comments could state the answer.
        is_protocol = written.admits(*["input"] * max(1, len(written.blocks)))
        has_remark = form.strict and "#" in written.text
        refuse_unless(is_protocol and not has_remark, "syntax")
        program = few_shot[0].program
        texts = written.bodies_or_first("input")
        refuse_unless(texts, "no_input")
        inputs = {}                             # as Python prints an input -> as it was written
        for text in dict.fromkeys(texts):
            if len(inputs) >= limits.n_inputs:
                break
            for given, as_written in stated_inputs(text).items():
                inputs.setdefault(given, as_written)
        # Where programs are tidied, inputs are, too. One block may have stated more than were asked for.
        kept = inputs
        if not form.tidy:
            kept = inputs.values()
        hints = ["", *written.bodies("message")]
        return Proposal(self.name, program, tuple(kept)[:limits.n_inputs], hints[-1].strip())

    def demands(self, proposal: Proposal, limits: Limits) -> None:
        """As `TaskType.demands`, and enough inputs."""
        refuse_unless(len(proposal.inputs) >= limits.min_inputs, "few_inputs")
        super().demands(proposal, limits)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """As `TaskType.make`; inputs on which it raises are left out while at least min_inputs remain."""
        kept = []
        for given, output, error in zip(proposal.inputs, verdict.outputs, verdict.errors):
            if error is None or not error.startswith("error"):
                kept.append((given, output, error))
        # Not where it ended badly: such a program may end so on other inputs, too.
        if verdict.end == "ok" and limits.min_inputs <= len(kept) < len(verdict.errors):
            inputs, outputs, errors = zip(*kept)
            proposal = replace(proposal, inputs=inputs)
            verdict = replace(verdict, outputs=outputs, errors=errors)
        return super().make(proposal, verdict, limits, key)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """The program as it stands, if it has a function to call and passes a proposal's static checks."""
        refuse_unless(entry(tree_of(block)), "no_entry")
        # A student may well answer with a constant: it is wrong, or the task is dull, but it is an answer.
        check_program(block, replace(limits, reject_constant=False))
        return block.strip("\n")

    def answer_jobs(self, task: Task, answers: Answers, limits: Limits) -> list[Job]:
        """One job for each distinct program, on the inputs that the student has not seen."""
        # A program that has learned the shown pairs by heart gains nothing.
        hidden = task.inputs[self.n_shown(task, limits):]
        return [Job(answer, hidden) for answer in distinct(answers)]

    def grade(self, task: Task, answer: str, claims: list[Claim], limits: Limits) -> str:
        """Correct where every hidden output is reproduced."""
        hidden = task.outputs[self.n_shown(task, limits):]
        grades = set()
        for gold, claim in zip(hidden, claims, strict=True):
            if claim.error == VIOLATION:
                return VIOLATION
            grades.add(grade(gold, claim))
        # One wrong output decides, whatever the sandbox failed to run beside it.
        if "wrong" in grades:
            return "wrong"
        if UNJUDGED in grades:
            return UNJUDGED
        return "correct"
