"""Says what a task type is: what goes in and out (Proposal, Task), and what all types share.

Nothing of a model's text is evaluated here. It is parsed under guards (sandbox.parsing), or handed to the
verifier as a Job. A text that is not what was asked for raises Refused, whose reason the logs count; whoever
called the method turns it into a value. Every other exception is a bug.
"""
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from common import Refused, UserError, refuse_unless
from sandbox.parsing import MAX_CHARS
from sandbox.values import decode
from tasks.complexity import complexity
from tasks.literals import Blocks, arguments_text
from tasks.programs import (
    Limits,
    check_input,
    check_program,
    check_value,
    count_statements,
    digest,
    normalise,
    structural_hash,
)
from tasks.prompts import FORMATS, TEMPLATES, TOPICS, Answer, Prompt, show, template
from verifier import Job, Verdict

# Verdicts besides correct, wrong and malformed. If the sandbox failed, an attempt is UNJUDGED and counts
# nowhere. If its program made a forbidden system call, it is a VIOLATION and counts as wrong.
UNJUDGED = "unjudged"
VIOLATION = "violation"
# What a Verdict has as end or error when the sandbox failed.
FAILED = "sandbox failure"
# The splits of held-out tasks: members are chosen on validation, and claims are made on test.
SPLITS = "test", "validation"
ANSWER_TYPES = "int", "list", "str"     # what a micro teacher is asked for
RunJobs = Callable[[list[Job]], list[Verdict]]      # a sandbox's run

# What the sandbox says -> the reason for which the proposal is refused; whatever else it says is an error.
REASONS = {
    "too big": "output_too_long",
    "malformed": "malformed_result",
    "not a literal": "not_literal",
    FAILED: "sandbox_failure",
}
for same_name in "timeout", "killed", "exit", VIOLATION, "crash", "nondeterministic", "unsupported":
    REASONS[same_name] = same_name


@dataclass(frozen=True)
class Proposal:
    """Holds a teacher's task before execution. Inputs are texts, as in the brackets of a call."""
    kind: str
    program: str
    inputs: tuple[str, ...]
    message: str = ""
    line: int = field(default=0, compare=False)         # of the file that it comes from; 0 = of none


@dataclass(frozen=True)
class Task:
    """Holds a valid task."""
    kind: str
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]            # canonical texts (sandbox.values.encode) from execution
    message: str
    key: str
    id: int = -1
    teacher: str = ""
    step: int = -1
    parents: tuple[int, ...] = ()       # ids of the few-shot tasks shown


class TaskType:
    """Holds what the task types share. A type has one method for each thing that it does. The methods here
    are those for a program and its input, and a type overrides what it does in another way.

    A proposal goes through read, check, key, job and make, which gives the Task. Attempts at a task go
    through solve, which gives the Prompt, read_answer, answer_job and grade. Those that get a model's text
    (read, check, make, read_answer) raise Refused("reason" or "reason: details") if it is not what was asked
    for."""
    name = ""
    # Names that the block with a student's answer may have. The prompt asks for the first.
    tags = ("answer",)
    # Whether one program on other inputs is another task, and not a duplicate.
    by_input = False
    # What a proposal is about; one of them is drawn for each prompt.
    topics: tuple[str, ...] = tuple(TOPICS)
    # What prompts show as long as there is no task. If it is None, they show tasks of code.
    seed: Proposal | None = None
    # How long a valid task's program is, how complex, and its hash without names and constants.
    statements = staticmethod(count_statements)
    complexity = staticmethod(complexity)
    structure = staticmethod(structural_hash)

    def ready(self, cfg: object) -> None:
        """Raises UserError if a run with these flags cannot play this type."""
        for phase in ("propose", "solve"):
            template(self.name, cfg.prompt_format, phase)

    # --- proposals ------------------------------------------------------------------------------------------

    def propose(self, prompt_format: str, few_shot: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Returns the prompt for a teacher. It may show the tasks few_shot. In code_f it asks for inputs to
        the first one's program."""
        asked = template(self.name, prompt_format, "propose")
        examples = []
        if "{examples}" in asked.user:
            for task in few_shot:
                fields = self.fields(prompt_format, task, limits)
                examples.append(TEMPLATES[self.name].example.format(**fields))
        # Both are drawn even if the template asks for neither, so that draws do not depend on the format.
        answer_type = rng.choice(ANSWER_TYPES)
        topic = rng.choice(self.topics)
        program = given = ""
        if few_shot:
            program = few_shot[0].program
            given = few_shot[0].inputs[0]
        return asked.filled(
            type=answer_type,
            topic=topic,
            opening=TOPICS.get(topic, ""),
            program=program,
            input=given,
            examples="\n".join(examples),
            n_inputs=limits.n_inputs)

    def from_row(self, row: dict) -> Proposal:
        """Returns the proposal in a line of a file of tasks. Raises UserError or Refused if it is wrong."""
        if "inputs" in row:
            inputs = texts_of(row, "inputs")
        else:
            inputs = [text_of(row, "input")]
        # tidy would take comments out, but a user means what a file of tasks holds.
        program = normalise(text_of(row, "program"), MAX_CHARS, tidy=False)
        return Proposal(self.name, program, tuple(inputs), text_of(row, "message", ""))

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Returns the proposal, here a program and its input, in what a teacher wrote."""
        form = written.form
        # In the compact protocol nothing takes a comment out (tidy), and it could state the answer.
        has_remark = form.strict and "#" in written.text
        refuse_unless(written.admits("python", "input") and not has_remark, "syntax")
        at = first_program(written.blocks)
        stated = stated_input(written.blocks[:at], written.blocks[at + 1:])
        _, body = written.blocks[at]
        program = normalise(body, limits.source_chars, form.tidy)
        return Proposal(self.name, program, (arguments_text(stated, form.tidy),))

    def check(self, proposal: Proposal, limits: Limits) -> None:
        """Raises Refused if a look at the proposal shows that it is not valid."""
        refuse_unless(len(proposal.message) <= limits.message_chars, "message_too_long")
        check_program(proposal.program, limits)
        # A message with a chat's own tokens could end the student's prompt early.
        refuse_unless(not limits.control.search(proposal.message), "control_text")
        for text in proposal.inputs:
            check_input(text, limits)

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Returns the key that duplicates share. If dedupe is "exact", it hashes the program and its inputs,
        else the program without constants and names, and the inputs only if `by_input`."""
        if dedupe == "exact":
            key = digest(proposal.program, *proposal.inputs)
        else:
            key = structural_hash(proposal.program)
        if self.by_input:
            key = digest(key, *proposal.inputs)
        return key

    def job(self, proposal: Proposal) -> Job:
        """Returns the execution that decides validity and gives the gold outputs."""
        # deterministic, because a student could meet a gold output that varies by luck alone
        return Job(proposal.program, proposal.inputs, deterministic=True)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Returns the task, whose gold outputs are what the execution returned."""
        # The program must return on every input, because a task is valid as a whole or not at all.
        refuse_unless(verdict.end == "ok", reason_of(verdict.end))
        for output, error in zip(verdict.outputs, verdict.errors, strict=True):
            if output is None:
                raise Refused(reason_of(error))
            check_value(decode(output), limits)
        return Task(self.name, proposal.program, proposal.inputs, verdict.outputs, proposal.message, key)

    def copies(self, task: Task) -> list[str]:
        """Returns answers that only copy what the prompt shows. If one of them is correct, a teacher's task
        is refused (echo)."""
        return []

    # --- attempts -------------------------------------------------------------------------------------------

    def solve(self, prompt_format: str, task: Task, limits: Limits) -> Prompt:
        """Returns the prompt for a student. If the prompt format shows solved tasks, they come first."""
        asked = template(self.name, prompt_format, "solve")
        fields = self.fields(prompt_format, task, limits)
        solution = FORMATS[prompt_format].solution
        turns = []
        if solution:
            for shown in TEMPLATES[self.name].solved:
                question = asked.filled(**fields | shown.fields).user
                answer = solution.format(thoughts=shown.thoughts, answer=shown.answer, tag=self.tags[0])
                turns.append((question, answer))
        return replace(asked.filled(**fields), turns=tuple(turns))

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """Returns what a template may say of a task, by the name of its placeholder."""
        outputs = shown_outputs(task, limits.compact)
        pairs = ""
        for i in range(self.n_shown(task, limits)):
            pairs += FORMATS[prompt_format].pair.format(input=task.inputs[i], output=outputs[i])
        hint = ""
        if task.message:
            hint = f"A hint: {task.message}\n\n"
        return dict(
            program=task.program,
            input=task.inputs[0],
            output=outputs[0],
            pairs=pairs,
            question=task.message,
            hint=hint,
            tag=self.tags[0])

    def n_shown(self, task: Task, limits: Limits) -> int:
        """Returns how many pairs of a task the student sees. At least one and at least half stay hidden."""
        return min(limits.n_shown, len(task.inputs) // 2)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the answer in a block of a student's text, not yet evaluated. Raises Refused if the block
        is no answer of this type."""
        return block

    def answer_job(self, task: Task, answer: str, limits: Limits) -> Job:
        """Returns the execution that verifies an answer, without inputs if nothing has to run. Each answer
        has its own, because a program could count its calls."""
        return Job("", ())

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Returns "correct", "wrong", "malformed", UNJUDGED or VIOLATION. `ran` says how the answer's job
        went."""
        raise NotImplementedError


def text_of(row: dict, name: str, default: str | None = None) -> str:
    """Returns a text in a line of a file of tasks. Raises UserError if it is missing, or something else."""
    if name not in row and default is None:
        raise UserError(f"lacks {name!r}")
    text = row.get(name, default)
    if not isinstance(text, str):
        raise UserError(f"{name!r} must be a string")
    return text


def texts_of(row: dict, name: str) -> list[str]:
    """Returns a list of texts in a line of a file of tasks, at least one. Raises UserError if it is none."""
    texts = row.get(name)
    is_list = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    if not is_list:
        raise UserError(f"{name!r} must be a list of strings, and not empty")
    return texts


def reason_of(said: str) -> str:
    """Returns the reason for a refusal in what the sandbox says of a run ("too big", "error:
    ZeroDivisionError")."""
    return REASONS.get(said.partition(":")[0].strip(), "error")


def shown_outputs(task: Task, compact: bool = False) -> list[str]:
    """Returns a task's outputs as Python's literals."""
    return [show(decode(output), compact) for output in task.outputs]


def split_of(text: str) -> str:
    """Returns the split of a held-out task, which depends on its program (or question) alone."""
    # Python's own hash would differ from process to process.
    byte, = hashlib.blake2b(text.encode(), digest_size=1, person=b"split").digest()
    return SPLITS[byte % 2]


def first_program(blocks: Blocks) -> int:
    """Returns the place of the first block that is a program. Raises Refused if there is none."""
    for i, (tag, body) in enumerate(blocks):
        if tag == "python" or (tag == "" and "def " in body):
            return i
    raise Refused("no_program")


def stated_input(before: Blocks, behind: Blocks) -> str:
    """Returns the input in the blocks around a program: the last one before it, which was asked for, else the
    first one behind it, else a nameless block behind it that is no program. Raises Refused if there is
    none."""
    for tag, body in [*reversed(before), *behind]:
        if tag == "input":
            return body
    for tag, body in behind:
        if tag == "" and "def " not in body:
            return body
    raise Refused("no_input")
