"""The contract of a task type: what goes in and out (Proposal, Task, Reject), and what all types share.

Nothing of a model's text is ever evaluated here: it is parsed under guards (complexity.parse) and otherwise
handed to the verifier as a Job. Whatever a model writes ends as a value or as a Reject, whose reason is one
of validation.REASONS: a new reason goes there. Parsers refuse a text on purpose, by raising Refused
(infra/errors.py); whatever else a task type raises is a bug in it, and nothing here catches that.
"""
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from common import Refused, demand, refuse_unless
from sandbox.parsing import MAX_CHARS
from sandbox.values import decode
from tasks.literals import Blocks
from tasks.literals import arguments_text
from tasks.prompts import FORMATS, TEMPLATES, TOPICS, Answer, Prompt, show, template
from tasks.programs import (REASONS, Limits, check_input, check_program, check_value, count_statements, digest, normalise,
                            structural_hash)
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
Answers = list[str | None]      # of the attempts at a task, as parse_answer reads them; None = malformed

# What the sandbox says -> the reason of a Reject. The other reasons are spelt alike in both.
OTHER_NAMES = {
    "too big": "output_too_long",
    "malformed": "malformed_result",
    "not a literal": "not_literal",
}


@dataclass(frozen=True)
class Reject:
    """A proposal that goes no further; `reason` is in validation.REASONS."""
    reason: str

    def __post_init__(self) -> None:
        assert self.reason in REASONS, f"{self.reason!r} is none of validation.REASONS: add it there"

    @classmethod
    def unless(cls, make: Callable, *given: object):
        """make(*given), or the Reject with the reason for which it raises Refused."""
        try:
            return make(*given)
        except Refused as refused:
            return cls(refused.reason)


@dataclass(frozen=True)
class Proposal:
    """A teacher's task before execution: program text, and argument texts as in the brackets of a call."""
    kind: str
    program: str
    inputs: tuple[str, ...]
    message: str = ""


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
    """What the task types share.

    A proposal goes through parse_proposal -> Proposal | Reject, check -> Reject | None, key -> str,
    job -> Job and accept -> Task | Reject; all attempts at a task go through parse_answer -> str | None,
    answer_jobs -> list[Job] and judge -> list[str]. A type writes what these call: `read`, `demands`,
    `make` and `read_answer`, which refuse a text by Refused("reason" or "reason: details"). A new type must
    write `read`, unless it is a program and its input, and `is_correct`, unless it writes `grade`.
    """
    name = ""
    # Languages of the block with a student's answer. {tag} in a template is the first of them.
    tags = ("answer",)
    # Whether one program on other inputs is another task, and not a duplicate.
    by_input = False
    # What a proposal is about; one of them is drawn for each prompt.
    topics: tuple[str, ...] = tuple(TOPICS)
    # A task to show while there are none; where it is None, those of code are shown.
    seed: Proposal | None = None
    # The length of a valid task's program, and its hash up to names and constants.
    statements = staticmethod(count_statements)
    structure = staticmethod(structural_hash)

    def propose(self, prompt_format: str, few_shot: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Prompt for a teacher. few_shot: tasks to learn from; in code_f the first is to be given inputs."""
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
        return asked.filled(type=answer_type, topic=topic, opening=TOPICS.get(topic, ""), program=program,
                            input=given, examples="\n".join(examples), n_inputs=limits.n_inputs)

    def from_row(self, row: dict) -> Proposal:
        """The proposal in a line of a file of tasks. Raises UserError or Refused if it is wrong."""
        if "inputs" in row:
            inputs = texts_of(row, "inputs")
        else:
            inputs = [text_of(row, "input")]
        # As it stands: who writes a file of tasks means its comments.
        program = normalise(text_of(row, "program"), MAX_CHARS, tidy=False)
        return Proposal(self.name, program, tuple(inputs), text_of(row, "message", ""))

    def parse_proposal(self, text: str, prompt_format: str, few_shot: list[Task],
                       limits: Limits) -> Proposal | Reject:
        """What `read` makes of a teacher's text, its opening included."""
        return Reject.unless(self.read, Answer(text, prompt_format), few_shot, limits)

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Program and input from what a teacher wrote."""
        form = written.form
        # A comment in the compact protocol could state the answer, and nothing would take it out (tidy).
        has_remark = form.strict and "#" in written.text
        refuse_unless(written.admits("python", "input") and not has_remark, "syntax")
        at = first_program(written.blocks)
        stated = stated_input(written.blocks[:at], written.blocks[at + 1:])
        _, body = written.blocks[at]
        program = normalise(body, limits.source_chars, form.tidy)
        return Proposal(self.name, program, (arguments_text(stated, form.tidy),))

    def check(self, proposal: Proposal, limits: Limits) -> Reject | None:
        """Refusal before anything runs, or None."""
        return Reject.unless(self.demands, proposal, limits)

    def demands(self, proposal: Proposal, limits: Limits) -> None:
        """What has to hold before anything runs."""
        refuse_unless(len(proposal.message) <= limits.message_chars, "message_too_long")
        check_program(proposal.program, limits)
        # A message with a chat's own tokens could end the student's prompt early.
        refuse_unless(not limits.control.search(proposal.message), "control_text")
        for text in proposal.inputs:
            check_input(text, limits)

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Archive key: two proposals of one key are duplicates. "structural": structure of the program,
        without constants and names, and the inputs if `by_input`; "exact": the program and its inputs."""
        if dedupe == "exact":
            key = digest(proposal.program, *proposal.inputs)
        else:
            key = structural_hash(proposal.program)
        if self.by_input:
            key = digest(key, *proposal.inputs)
        return key

    def job(self, proposal: Proposal) -> Job:
        """The execution that decides validity and gives the gold outputs."""
        # deterministic: a gold answer that varies would be luck to meet.
        return Job(proposal.program, proposal.inputs, deterministic=True)

    def accept(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task | Reject:
        """The task that `make` makes of an execution, or the reason why not."""
        return Reject.unless(self.make, proposal, verdict, limits, key)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Task with gold outputs from execution."""
        # Of several inputs each must return: a task is valid as a whole or not at all.
        refuse_unless(verdict.end == "ok", reason_of(verdict.end))
        for output, error in zip(verdict.outputs, verdict.errors, strict=True):
            check_value(returned(output, error), limits)
        outputs = tuple(verdict.outputs)
        return Task(self.name, proposal.program, proposal.inputs, outputs, proposal.message, key)

    def solve(self, prompt_format: str, task: Task, limits: Limits) -> Prompt:
        """Prompt for a student, behind solved tasks where its prompt format shows them."""
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
        """What a prompt format's template may say of a task, by name."""
        outputs = [show(decode(output), limits.compact) for output in task.outputs]
        pairs = ""
        for i in range(self.n_shown(task, limits)):
            pairs += FORMATS[prompt_format].pair.format(input=task.inputs[i], output=outputs[i])
        hint = ""
        if task.message:
            hint = f"A hint: {task.message}\n\n"
        return dict(program=task.program, input=task.inputs[0], output=outputs[0], pairs=pairs,
                    question=task.message, hint=hint, tag=self.tags[0])

    def n_shown(self, task: Task, limits: Limits) -> int:
        """Pairs of a task that the student sees; at least one, and at least half of them, stay hidden."""
        return min(limits.n_shown, len(task.inputs) // 2)

    def parse_answer(self, text: str, prompt_format: str, task: Task, limits: Limits) -> str | None:
        """The answer in a student's text; None = malformed.

        Which block counts: the last one that can be an answer of this type, which is what `read_answer`
        decides: a value or arguments must be literals, a program must have a function f or another, a number
        or an assignment must be readable. Blocks under the name that was asked for go before nameless ones,
        and blocks named for another part of a task are none (`candidates`). So whatever else a student
        shows, such as a call of its function or what that prints, is passed over.
        """
        # A refusal ends nothing here: the block before may be the answer.
        for block in reversed(self.candidates(Answer(text, prompt_format))):
            try:
                answer = self.read_answer(block, task, limits)
            except Refused:
                continue
            if answer:
                return answer
        return None

    def candidates(self, written: Answer) -> list[str]:
        """The texts in an answer that may hold what was asked for, the likeliest last."""
        return written.candidates(self.tags)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """The answer in a block, not yet evaluated; "" or Refused where the block can be none."""
        return block

    def answer_jobs(self, task: Task, answers: Answers, limits: Limits) -> list[Job]:
        """Jobs that verify the attempts at a task, one for each distinct answer or for all: programs could
        count their calls, and have one each."""
        return []

    def judge(self, task: Task, answers: Answers, verdicts: list[Verdict], limits: Limits) -> list[str]:
        """"correct" | "wrong" | "malformed" | UNJUDGED | VIOLATION per attempt."""
        claims = claims_of(verdicts)
        texts = distinct(answers)
        # However the type has dealt its answers out to jobs, each has as many executions as any other.
        n_each = len(claims) // max(1, len(texts))
        graded = {None: "malformed"}
        for i, text in enumerate(texts):
            own = claims[i * n_each:(i + 1) * n_each]
            graded[text] = self.grade(task, text, own, limits)
        return [graded[answer] for answer in answers]

    def grade(self, task: Task, answer: str, claims: list[Claim], limits: Limits) -> str:
        """Verdict on an answer by the claims of its executions, or by `is_correct` where it need not run."""
        if self.is_correct(task, answer):
            return "correct"
        return "wrong"

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether an answer that need not run is correct."""
        raise NotImplementedError


def text_of(row: dict, name: str, default: str | None = None) -> str:
    """A text in a line of a file of tasks. Raises UserError where it is missing, or is something else."""
    demand(name in row or default is not None, f"lacks {name!r}")
    text = row.get(name, default)
    demand(isinstance(text, str), f"{name!r} must be a string")
    return text


def texts_of(row: dict, name: str) -> list[str]:
    """A list of texts in a line of a file of tasks, at least one. Raises UserError, as above."""
    demand(name in row, f"lacks {name!r}")
    texts = row[name]
    is_list = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    demand(is_list, f"{name!r} must be a list of strings, and not empty")
    return texts


def reason_of(said: str) -> str:
    """The reason for refusal in what the sandbox says of a run ("too big", "error: ZeroDivisionError")."""
    text = said.partition(":")[0].strip()
    reason = OTHER_NAMES.get(text, text.replace(" ", "_"))
    if reason in REASONS:
        return reason
    return "error"


def returned(output: str | None, error: str | None) -> object:
    """The value that an execution returned. Raises Refused where it returned none that can be read."""
    if output is None:
        raise Refused(reason_of(error))
    try:
        return decode(output)
    except ValueError:
        raise Refused("malformed_result") from None


def split_of(text: str) -> str:
    """The split of a held-out task, by its program (or question) alone: the same on every machine."""
    # Not Python's hash: it differs from process to process.
    byte, = hashlib.blake2b(text.encode(), digest_size=1, person=b"split").digest()
    return SPLITS[byte % 2]


def claims_of(verdicts: list[Verdict]) -> list[Claim]:
    """What the executions of some jobs claim, job by job and input by input."""
    claims = []
    for verdict in verdicts:
        claims += map(Claim, verdict.outputs, verdict.errors)
    return claims


def distinct(answers: Answers) -> tuple[str, ...]:
    """The answers that are not malformed, each once, in order."""
    return tuple(answer for answer in dict.fromkeys(answers) if answer is not None)


def first_program(blocks: Blocks) -> int:
    """The place of the first block that is a program. Raises Refused where there is none."""
    for i, (tag, body) in enumerate(blocks):
        if tag == "python" or tag == "" and "def " in body:
            return i
    raise Refused("no_program")


def stated_input(before: Blocks, behind: Blocks) -> str:
    """The input in the blocks around a program: the last one before it, which was asked for, else the first
    one behind it, else a nameless block behind it that is no program. Raises Refused where there is none."""
    stated = [body for tag, body in [*reversed(before), *behind] if tag == "input"]
    stated += [body for tag, body in behind if tag == "" and "def " not in body]
    refuse_unless(stated, "no_input")
    return stated[0]
