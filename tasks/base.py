"""Says what a task type is: what goes in and out (Proposal, Task), and what all types share.

Nothing of a model's text is evaluated here. It is parsed under guards (sandbox.parsing), or handed to the
verifier as a Job. A text that is not what was asked for raises Refused, whose reason the logs count; whoever
called the method turns it into a value. Every other exception is a bug.
"""
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from common import Refused, demand, refuse_unless
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

# What an attempt may be besides correct, wrong and malformed. UNJUDGED: the sandbox failed, and the attempt
# counts nowhere. VIOLATION: the program made a forbidden system call, and the attempt counts as wrong.
UNJUDGED = "unjudged"
VIOLATION = "violation"
# The name of a failure of the sandbox as a Verdict's end or error.
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
    """A teacher's task before execution: program text, and argument texts as in the brackets of a call."""
    kind: str
    program: str
    inputs: tuple[str, ...]
    message: str = ""
    line: int = field(default=0, compare=False)         # of the file that it comes from; 0 = of none


@dataclass(frozen=True)
class Task:
    """A valid task."""
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


@dataclass(frozen=True)
class Claim:
    """What one execution is said to have returned: a canonical text, or None and the error in its place."""
    output: str | None
    error: str | None


class TaskType:
    """What the task types share. A type has one method for each thing that it does, and overrides what it
    does otherwise than this class, which is a program and its input.

    A proposal goes through read, check, key, job and make, which gives the Task. Attempts at a task go
    through solve, which gives the Prompt, read_answer, answer_jobs and grade. Those that get a model's text
    (read, check, make, read_answer) raise Refused("reason" or "reason: details") if it is not what was asked
    for."""
    name = ""
    # Names of the block with a student's answer. The prompt asks for the first; the others are read, too.
    tags = ("answer",)
    # Whether one program on other inputs is another task, and not a duplicate.
    by_input = False
    # What a proposal is about; one of them is drawn for each prompt.
    topics: tuple[str, ...] = tuple(TOPICS)
    # A task to show while there are none; where it is None, those of code are shown.
    seed: Proposal | None = None
    # Of a valid task's program: its length, how complex it is, and its hash up to names and constants.
    statements = staticmethod(count_statements)
    complexity = staticmethod(complexity)
    structure = staticmethod(structural_hash)

    def ready(self, cfg: object) -> None:
        """Raises UserError if a run with these flags cannot play this type."""
        for phase in ("propose", "solve"):
            template(self.name, cfg.prompt_format, phase)

    # --- proposals ------------------------------------------------------------------------------------------

    def propose(self, prompt_format: str, few_shot: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Returns the prompt for a teacher. few_shot: tasks to learn from; in code_f the first is to be given
        inputs."""
        asked = template(self.name, prompt_format, "propose")
        examples = []
        if "{examples}" in asked.user:
            for task in few_shot:
                fields = self.fields(prompt_format, task, limits)
                examples.append(TEMPLATES[self.name].example.format(**fields))
        # Always both draws, whatever the template asks: draws must not depend on the prompt format.
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
        # As it stands: who writes a file of tasks means its comments.
        program = normalise(text_of(row, "program"), MAX_CHARS, tidy=False)
        return Proposal(self.name, program, tuple(inputs), text_of(row, "message", ""))

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Returns the proposal, here a program and its input, in what a teacher wrote."""
        form = written.form
        # A comment in the compact protocol could state the answer, and nothing would take it out (tidy).
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
        """Returns the archive's key, which duplicates share. dedupe: "structural" = the structure of the
        program, without constants and names, and the inputs if `by_input`; "exact" = the program and its
        inputs."""
        if dedupe == "exact":
            key = digest(proposal.program, *proposal.inputs)
        else:
            key = structural_hash(proposal.program)
        if self.by_input:
            key = digest(key, *proposal.inputs)
        return key

    def job(self, proposal: Proposal) -> Job:
        """Returns the execution that decides validity and gives the gold outputs."""
        # deterministic: a gold answer that varies would be luck to meet.
        return Job(proposal.program, proposal.inputs, deterministic=True)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Returns the task, whose gold outputs are what the execution returned."""
        # Of several inputs each must return: a task is valid as a whole or not at all.
        refuse_unless(verdict.end == "ok", reason_of(verdict.end))
        for output, error in zip(verdict.outputs, verdict.errors, strict=True):
            check_value(returned(output, error), limits)
        outputs = tuple(verdict.outputs)
        return Task(self.name, proposal.program, proposal.inputs, outputs, proposal.message, key)

    def copies(self, task: Task) -> list[str]:
        """Returns answers that only copy what the prompt shows. If one of them is correct, a teacher's task
        is refused (echo)."""
        return []

    # --- attempts -------------------------------------------------------------------------------------------

    def solve(self, prompt_format: str, task: Task, limits: Limits) -> Prompt:
        """Returns the prompt for a student, behind solved tasks if its prompt format shows them."""
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
        """Returns what a prompt format's template may say of a task, by name."""
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

    def answer_jobs(self, task: Task, answers: list[str], limits: Limits) -> list[Job]:
        """Returns the jobs that verify different answers to a task, with equally many executions for each
        answer. Answers that are programs have a job each, because they could count their calls."""
        return []

    def grade(self, task: Task, answer: str, claims: list[Claim], limits: Limits) -> str:
        """Returns "correct", "wrong", "malformed", UNJUDGED or VIOLATION. claims: what the executions of this
        answer returned, none if it did not have to run."""
        raise NotImplementedError


def text_of(row: dict, name: str, default: str | None = None) -> str:
    """Returns a text in a line of a file of tasks. Raises UserError if it is missing, or something else."""
    demand(name in row or default is not None, f"lacks {name!r}")
    text = row.get(name, default)
    demand(isinstance(text, str), f"{name!r} must be a string")
    return text


def texts_of(row: dict, name: str) -> list[str]:
    """Returns a list of texts in a line of a file of tasks, at least one. Raises UserError, as above."""
    demand(name in row, f"lacks {name!r}")
    texts = row[name]
    is_list = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    demand(is_list, f"{name!r} must be a list of strings, and not empty")
    return texts


def reason_of(said: str) -> str:
    """Returns the reason for a refusal in what the sandbox says of a run ("too big", "error:
    ZeroDivisionError")."""
    return REASONS.get(said.partition(":")[0].strip(), "error")


def returned(output: str | None, error: str | None) -> object:
    """Returns the value that an execution returned. Raises Refused if it returned none that can be read."""
    if output is None:
        raise Refused(reason_of(error))
    try:
        return decode(output)
    except ValueError:
        raise Refused("malformed_result") from None


def shown_outputs(task: Task, compact: bool = False) -> list[str]:
    """Returns a task's outputs as Python's literals."""
    return [show(decode(output), compact) for output in task.outputs]


def split_of(text: str) -> str:
    """Returns the split of a held-out task, by its program (or question) alone: the same on every machine."""
    # Not Python's hash: it differs from process to process.
    byte, = hashlib.blake2b(text.encode(), digest_size=1, person=b"split").digest()
    return SPLITS[byte % 2]


def first_program(blocks: Blocks) -> int:
    """Returns the place of the first block that is a program. Raises Refused if there is none."""
    for i, (tag, body) in enumerate(blocks):
        if tag == "python" or tag == "" and "def " in body:
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
