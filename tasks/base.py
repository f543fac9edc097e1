"""The contract of a task type: what goes in and out (Proposal, Task, Reject), and what all types share.

Nothing of a model's text is ever evaluated here: it is parsed under guards (complexity.parse) and otherwise
handed to the verifier as a Job. Whatever a model writes ends as a value or as a Reject, whose reason is one
of validation.REASONS: a new reason goes there. Parsers refuse a text on purpose, by raising Refused
(infra/errors.py); whatever else a task type raises is a bug in it, and nothing here catches that.
"""
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from infra.errors import Refused, demand, refuse_unless
from sandbox.parsing import MAX_CHARS
from sandbox.values import decode
from tasks.complexity import count_statements, digest, normalise, structural_hash
from tasks.literals import arguments_text
from tasks.prompts import FORMATS, TEMPLATES, TOPICS, Answer, Prompt, show, template
from tasks.validation import REASONS, Limits, check_input, check_program, check_value
from verifier import Job, Verdict

# What an attempt may be besides correct, wrong and malformed: the sandbox failed, the program made a
# forbidden system call. The first counts nowhere, the second as wrong.
UNJUDGED, VIOLATION = "unjudged", "violation"
FAILED = "sandbox failure"              # its name as a Verdict's end or error
SPLITS = "test", "validation"           # of held-out tasks: choose members on validation, claim on test

# What the sandbox says -> the reason of a Reject; the rest are spelt alike.
OTHER_NAMES = {"too big": "output_too_long", "malformed": "malformed_result", "not a literal": "not_literal"}


@dataclass(frozen=True)
class Reject:
    """A proposal that goes no further; `reason` is in validation.REASONS."""
    reason: str

    def __post_init__(self):
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


class TaskType:
    """What the task types share.

    A proposal goes through parse_proposal -> Proposal | Reject, check -> Reject | None, key -> str,
    job -> Job and accept -> Task | Reject; all attempts at a task go through parse_answer -> str | None,
    answer_jobs -> list[Job] and verify -> list[str]. A type writes what these call: `read`, `demands`,
    `make` and `read_answer`, which refuse a text by Refused("reason" or "reason: details"). A new type must
    write `read`, unless it is a program and its input, and `is_correct`, unless it writes `grade`.
    """
    name = ""
    tags = ("answer",)      # languages of the block with a student's answer; {tag} in a template is the first
    by_input = False        # whether one program on other inputs is another task, not a duplicate
    topics = TOPICS         # (what a proposal is about, how its input begins); one is drawn for each prompt
    seed: Proposal | None = None        # a task to show before there are any, or else those of code
    statements = staticmethod(count_statements)     # length of a valid task's program
    structure = staticmethod(structural_hash)       # its hash up to names and constants

    def propose(self, prompt_format: str, few_shot: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Prompt for a teacher. few_shot: tasks to learn from; in code_f the first is to be given inputs."""
        asked = template(self.name, prompt_format, "propose")
        shown = [self.fields(prompt_format, task, limits) for task in few_shot if "{examples}" in asked.user]
        examples = "\n".join(TEMPLATES[self.name].example.format(**fields) for fields in shown)
        kind = rng.choice(("int", "list", "str"))
        topic, opening = rng.choice(self.topics)
        program, given = (few_shot[0].program, few_shot[0].inputs[0]) if few_shot else ("", "")
        return asked.filled(type=kind, topic=topic, opening=opening, examples=examples,
                            n_inputs=limits.n_inputs, program=program, input=given)

    def from_row(self, row: dict) -> Proposal:
        """The proposal in a line of a file of tasks. Raises UserError or Refused if it is wrong."""
        inputs = texts_of(row, "inputs") if "inputs" in row else [text_of(row, "input")]
        program = normalise(text_of(row, "program"), MAX_CHARS, tidy=False)
        return Proposal(self.name, program, tuple(inputs), text_of(row, "message", ""))

    def parse_proposal(self, text: str, prompt_format: str, few_shot: list[Task],
                       limits: Limits) -> Proposal | Reject:
        """What `read` makes of a teacher's text, its opening included."""
        return Reject.unless(self.read, Answer(text, prompt_format), few_shot, limits)

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Program and input from what a teacher wrote."""
        form, blocks = written.form, written.blocks
        is_protocol = written.admits("python", "input")
        refuse_unless(is_protocol and not (form.strict and "#" in written.text), "syntax")
        at = next((i for i, block in enumerate(blocks) if is_program(*block)), None)
        refuse_unless(at is not None, "no_program")
        behind = blocks[at + 1:]
        inputs = [body for tag, body in blocks[:at] if tag == "input"][-1:]
        inputs = inputs or [body for tag, body in behind if tag == "input"]
        inputs = inputs or [body for tag, body in behind if tag == "" and "def " not in body]
        refuse_unless(inputs, "no_input")
        program = normalise(blocks[at][1], limits.source_chars, form.tidy)
        return Proposal(self.name, program, (arguments_text(inputs[0], program, form.tidy),))

    def check(self, proposal: Proposal, limits: Limits) -> Reject | None:
        """Refusal before anything runs, or None."""
        return Reject.unless(self.demands, proposal, limits)

    def demands(self, proposal: Proposal, limits: Limits) -> None:
        """What has to hold before anything runs."""
        refuse_unless(len(proposal.message) <= limits.message_chars, "message_too_long")
        check_program(proposal.program, limits)
        refuse_unless(not limits.control.search(proposal.message), "control_text")
        for text in proposal.inputs:
            check_input(text, limits)

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Archive key: two proposals of one key are duplicates. "structural": structure of the program,
        without constants and names, and the inputs if `by_input`; "exact": the program and its inputs."""
        program, inputs = proposal.program, proposal.inputs
        key = digest(program, *inputs) if dedupe == "exact" else structural_hash(program)
        return digest(key, *inputs) if self.by_input else key

    def job(self, proposal: Proposal) -> Job:
        """The execution that decides validity and gives the gold outputs."""
        return Job(proposal.program, proposal.inputs, deterministic=True)

    def accept(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task | Reject:
        """The task that `make` makes of an execution, or the reason why not."""
        return Reject.unless(self.make, proposal, verdict, limits, key)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Task with gold outputs from execution."""
        refuse_unless(verdict.end == "ok", reason_of(verdict.end))
        for output, error in zip(verdict.outputs, verdict.errors, strict=True):
            check_value(returned(output, error), limits)
        outputs = tuple(verdict.outputs)
        return Task(self.name, proposal.program, proposal.inputs, outputs, proposal.message, key)

    def solve(self, prompt_format: str, task: Task, limits: Limits) -> Prompt:
        """Prompt for a student."""
        return template(self.name, prompt_format, "solve").filled(**self.fields(prompt_format, task, limits))

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """What a prompt format's template may say of a task, by name."""
        shown = [show(decode(output), limits.compact) for output in task.outputs]
        pairs = [FORMATS[prompt_format].pair.format(input=given, output=output)
                 for given, output in zip(task.inputs[:self.n_shown(task, limits)], shown)]
        hint = f"A hint: {task.message}\n\n" if task.message else ""
        return dict(program=task.program, input=task.inputs[0], output=shown[0], pairs="".join(pairs),
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
        for block in reversed(self.candidates(Answer(text, prompt_format))):
            try:
                if answer := self.read_answer(block, task, limits):
                    return answer
            except Refused:
                continue
        return None

    def candidates(self, written: Answer) -> list[str]:
        """The texts in an answer that may hold what was asked for, the likeliest last."""
        return written.candidates(self.tags)

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """The answer in a block, not yet evaluated; "" or Refused where the block can be none."""
        return block

    def answer_jobs(self, task: Task, answers: list[str | None], limits: Limits) -> list[Job]:
        """Jobs that verify the attempts at a task, one for each distinct answer or for all: programs could
        count their calls, and have one each."""
        return []

    def verify(self, task: Task, answers: list[str | None], verdicts: list[Verdict],
               limits: Limits) -> list[str]:
        """"correct" | "wrong" | "malformed" | UNJUDGED | VIOLATION per attempt."""
        claims = [claim for verdict in verdicts for claim in zip(verdict.outputs, verdict.errors)]
        graded, texts = {None: "malformed"}, distinct(answers)
        for i, text in enumerate(texts):
            n = len(claims) // len(texts)
            graded[text] = self.grade(task, text, claims[i * n:(i + 1) * n], limits)
        return [graded[answer] for answer in answers]

    def grade(self, task: Task, answer: str, claims: list[tuple], limits: Limits) -> str:
        """Verdict on an answer by (output, error) of each of its executions, or by `is_correct`."""
        return "correct" if self.is_correct(task, answer) else "wrong"

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
    return reason if reason in REASONS else "error"


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
    byte, = hashlib.blake2b(text.encode(), digest_size=1, person=b"split").digest()
    return SPLITS[byte % 2]


def distinct(answers: list[str | None]) -> tuple[str, ...]:
    """The answers that are not malformed, each once, in order."""
    return tuple(answer for answer in dict.fromkeys(answers) if answer is not None)


def is_program(tag: str, body: str) -> bool:
    """Whether a block of a teacher's text is its program."""
    return tag == "python" or tag == "" and "def " in body
