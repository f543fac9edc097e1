"""Defines the tasks of code: deduction, abduction and induction (Absolute Zero, 2505.03335)."""
import cmath
from collections.abc import Collection
from dataclasses import replace

from common import Refused, refuse_unless
from sandbox.values import Unsupported, decode, encode, same
from tasks.base import FAILED, UNJUDGED, VIOLATION, Proposal, Task, TaskType, shown_outputs
from tasks.literals import canonical_arguments, stated_inputs, value_of
from tasks.programs import Limits, binds_f
from tasks.prompts import Answer
from verifier import Job, Verdict

FLOAT_TOLERANCE = 1e-6          # relative, as in HumanEval+; about zero it is the next one
ABOUT_ZERO = 1e-12


def check_length(block: str, limits: Limits) -> None:
    """Raises Refused if an answer is longer than a gold value can be."""
    # The limit is for values as they are displayed. Twice as much leaves room for spaces.
    longest = 2 * max(limits.input_chars, limits.output_chars)
    refuse_unless(len(block.strip()) <= longest, "too_long")


class Deduction(TaskType):
    """Asks for the output, one literal, of a program on an input."""
    name = "code_o"
    tags = ("output",)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the canonical text of the literal that a block is. It is parsed, and nothing of it runs."""
        check_length(block, limits)
        try:
            return encode(value_of(block))
        except Unsupported:                     # no program returns it
            raise Refused("no_value") from None

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Returns "correct" if an answer is the gold output."""
        if same(decode(answer), decode(task.outputs[0])):
            return "correct"
        return "wrong"


class Abduction(TaskType):
    """Asks for any input, as literals, on which a program returns a given output."""
    name = "code_i"
    tags = ("input",)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the arguments that a block is."""
        check_length(block, limits)
        answer = canonical_arguments(block)
        refuse_unless(answer, "no_input")
        return answer

    def answer_job(self, task: Task, answer: str, limits: Limits) -> Job:
        """Returns the run of the task's program on the answer."""
        return Job(task.program, (answer,))

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Returns "correct" if the program returns the gold output, "wrong" also if it raises."""
        output, = ran.outputs
        if FAILED in ran.errors:
            return UNJUDGED
        if output is not None and same(decode(output), decode(task.outputs[0])):
            return "correct"
        return "wrong"

    def copies(self, task: Task) -> list[str]:
        """Returns the shown output as an input."""
        return shown_outputs(task)


class Induction(TaskType):
    """Asks for a program, given pairs and a hint. It is graded on hidden pairs alone."""
    name = "code_f"
    tags = ("python",)
    by_input = True

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Returns inputs for the program of few_shot[0], the first n_inputs different ones, and a hint."""
        form = written.form
        # The compact protocol has inputs alone, at least one. A comment could state the answer.
        is_protocol = written.admits(*["input"] * max(1, len(written.blocks)))
        has_remark = form.strict and "#" in written.text
        refuse_unless(is_protocol and not has_remark, "syntax")
        program = few_shot[0].program
        texts = written.bodies_or_first("input")
        refuse_unless(texts, "no_input")
        inputs = {}                             # as Python prints an input -> as it was written
        for text in texts:
            for given, as_written in stated_inputs(text).items():
                inputs.setdefault(given, as_written)
        # Inputs are tidied if programs are. One block may have stated more than were asked for.
        kept = inputs
        if not form.tidy:
            kept = inputs.values()
        hints = ["", *written.bodies("message")]
        return Proposal(self.name, program, tuple(kept)[:limits.n_inputs], hints[-1].strip())

    def check(self, proposal: Proposal, limits: Limits) -> None:
        """Does what `TaskType.check` does, and refuses too few inputs."""
        refuse_unless(len(proposal.inputs) >= limits.min_inputs, "few_inputs")
        super().check(proposal, limits)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Does what `TaskType.make` does, without inputs on which the program raises, if enough are left."""
        kept = []
        for given, output, error in zip(proposal.inputs, verdict.outputs, verdict.errors):
            if error is None or not error.startswith("error"):
                kept.append((given, output, error))
        # A program that ended badly may do so on other inputs, too, and stays refused.
        if verdict.end == "ok" and limits.min_inputs <= len(kept):
            inputs, outputs, errors = zip(*kept)
            proposal = replace(proposal, inputs=inputs)
            verdict = replace(verdict, outputs=outputs, errors=errors)
        return super().make(proposal, verdict, limits, key)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the program as it stands, if it binds f. It needs no other check, because it runs in a
        sandbox."""
        refuse_unless(binds_f(block), "no_entry")
        return block.strip("\n")

    def answer_job(self, task: Task, answer: str, limits: Limits) -> Job:
        """Returns the run of the program on the inputs that the student has not seen."""
        # A program that has learned the shown pairs by heart gains nothing.
        return Job(answer, task.inputs[self.n_shown(task, limits):])

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Returns "correct" if every hidden output is reproduced, floats up to FLOAT_TOLERANCE."""
        if VIOLATION in ran.errors:
            return VIOLATION
        hidden = task.outputs[self.n_shown(task, limits):]
        for gold, output, error in zip(hidden, ran.outputs, ran.errors, strict=True):
            # One wrong output decides, whatever the sandbox failed to run beside it.
            is_right = output is not None and close(decode(output), decode(gold))
            if not is_right and error != FAILED:
                return "wrong"
        if FAILED in ran.errors:
            return UNJUDGED
        return "correct"


def close(value: object, gold: object) -> bool:
    """Returns whether a value is the gold one. Floats, also those in containers, may differ a little, because
    another order of adding changes their last bits."""
    if same(value, gold):
        return True
    match gold:
        case float() | complex():
            try:
                return cmath.isclose(value, gold, rel_tol=FLOAT_TOLERANCE, abs_tol=ABOUT_ZERO)
            except (TypeError, OverflowError):          # no number, or an integer beyond all floats
                return False
        case list() | tuple():
            alike = type(value) is type(gold) and len(value) == len(gold)
            return alike and all(map(close, value, gold))
        case dict():
            return isinstance(value, dict) and matched(value.items(), gold.items())
        case set() | frozenset():
            return isinstance(value, (set, frozenset)) and matched(value, gold)
    return False


def matched(values: Collection, golds: Collection) -> bool:
    """Returns whether each of the gold values is met by one of as many values."""
    if len(values) != len(golds):
        return False
    for gold in golds:
        if not any(close(value, gold) for value in values):
            return False
    return True
