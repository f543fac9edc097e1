"""Tasks of code: code_o deduction, code_i abduction, code_f induction (Absolute Zero, 2505.03335)."""
from dataclasses import replace
from itertools import compress

from sandbox.values import decode, same
from tasks.base import FAILED, UNJUDGED, VIOLATION, Proposal, Reject, TaskType
from tasks.prompts import FORMATS, HINT
from tasks.validation import arguments_text, canonical_arguments, normalise, program_problem, split_inputs
from verifier import Job, Verdict


def reproduces(gold, output: str | None) -> bool:
    """Whether an execution's output, None where it has none, is the gold value."""
    try:
        return output is not None and same(decode(output), gold)
    except ValueError:
        return False


class ValueTask(TaskType):
    """code_o and code_i: the answer is data that a program is run on, the gold is outputs[0]."""
    program = ""            # one of ours, which reads all answers in one run; "" = the task's, a run for each

    def parse_answer(self, text, prompt_format, task, limits):
        """The text of the value or of the arguments; None = malformed. Never raises."""
        answer = (self.answer_block(text, prompt_format) or "").strip()
        if self.tags[0] == "input":
            answer = arguments_text(answer)
        # twice the limit: the gold is measured as displayed, an answer may hold more spaces
        longest = 2 * max(limits.input_chars, limits.output_chars)
        return answer if 0 < len(answer) <= longest else None

    def answer_jobs(self, task, answers, limits):
        """One job for each distinct answer: a program that counts its calls starts anew for every attempt."""
        distinct = tuple(dict.fromkeys(answer for answer in answers if answer is not None))
        if self.program:
            return [Job(self.program, distinct)] if distinct else []
        return [Job(task.program, (answer,)) for answer in distinct]

    def verify(self, task, answers, verdicts, limits):
        """Verdicts in the order of the answers; `verdicts` are of the distinct ones, as answer_jobs gave."""
        claims = [claim for verdict in verdicts for claim in zip(verdict.outputs, verdict.errors)]
        distinct = dict.fromkeys(answer for answer in answers if answer is not None)
        gold = decode(task.outputs[0])
        graded = {None: "malformed"}
        for answer, (output, error) in zip(distinct, claims, strict=True):
            graded[answer] = self.grade(gold, output, error)
        return [graded[answer] for answer in answers]

    def grade(self, gold, output: str | None, error: str | None) -> str:
        """Verdict on one attempt."""
        if error == FAILED:
            return UNJUDGED
        if output is None:
            # an answer that is no literal is malformed; one that the program cannot digest is merely wrong
            return "malformed" if self.program or (error or "").startswith("not a literal") else "wrong"
        return "correct" if reproduces(gold, output) else "wrong"


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

    def parse_proposal(self, text, prompt_format, few_shot, limits):
        """The first n_inputs distinct inputs, and the hint if any, for few_shot[0]. Never raises."""
        form = FORMATS[prompt_format]
        blocks = form.blocks(text)
        if not form.admits(blocks, *["input"] * max(1, len(blocks))) or form.strict and "#" in text:
            return Reject("syntax")
        if not few_shot:
            return Reject("no_program")
        messages = [body.strip() for tag, body in blocks if tag == "message"] or HINT.findall(text)
        texts = [body for tag, body in blocks if tag == "input"]
        texts = texts or [body for tag, body in blocks[:1] if tag in ("", "python")]
        if not texts:
            return Reject("no_input")
        distinct = {}
        for body in dict.fromkeys(texts):
            if len(distinct) >= limits.n_inputs:
                break
            for given in split_inputs(body):
                distinct.setdefault(canonical_arguments(given), given)
        if len(distinct) < limits.min_inputs:
            return Reject("few_inputs")
        inputs = tuple(distinct if form.tidy else distinct.values())[:limits.n_inputs]
        return Proposal(self.name, few_shot[0].program, inputs, messages[-1] if messages else "")

    def check(self, proposal, limits):
        if len(proposal.inputs) < limits.min_inputs:
            return Reject("few_inputs")
        return super().check(proposal, limits)

    def accept(self, proposal, verdict, limits, key):
        """As `TaskType.accept`; inputs on which it raises are left out while at least min_inputs remain."""
        works = [error is None or not error.startswith("error") for error in verdict.errors]
        if verdict.end == "ok" and limits.min_inputs <= sum(works) < len(works):
            proposal = replace(proposal, inputs=tuple(compress(proposal.inputs, works)))
            verdict = replace(verdict, outputs=tuple(compress(verdict.outputs, works)),
                              errors=tuple(compress(verdict.errors, works)))
        return super().accept(proposal, verdict, limits, key)

    def parse_answer(self, text, prompt_format, task, limits):
        """The program, called f, if it passes a proposal's static checks; None = malformed. Never raises."""
        form = FORMATS[prompt_format]
        if not form.admits(form.blocks(text), "python"):
            return None
        block = self.answer_block(text, prompt_format)
        try:
            program = normalise(block or "", limits, form.tidy)
        except ValueError:
            return None
        return program if program_problem(program, limits) in (None, "ignores_input") else None

    def answer_jobs(self, task, answers, limits):
        hidden = task.inputs[self.n_shown(task, limits):]
        return [Job(answer, hidden) for answer in answers if answer is not None]

    def verify(self, task, answers, verdicts, limits):
        gold = [decode(output) for output in task.outputs[self.n_shown(task, limits):]]
        remaining = iter(verdicts)
        return ["malformed" if answer is None else self.grade(gold, next(remaining)) for answer in answers]

    def grade(self, gold: list, verdict: Verdict) -> str:
        """Correct where every hidden output is reproduced."""
        if VIOLATION in verdict.errors:
            return VIOLATION
        if not gold or len(verdict.outputs) != len(gold):
            return "wrong"
        for output, error, value in zip(verdict.outputs, verdict.errors, gold, strict=True):
            if error != FAILED and not reproduces(value, output):
                return "wrong"
        return UNJUDGED if FAILED in verdict.errors else "correct"
