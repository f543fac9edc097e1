"""The contract of a task type: what goes in and out (Proposal, Task, Reject), and what all types share.

A task type is one class, its template (prompts.TEMPLATES) and its place in tasks.TASK_TYPES. Nothing of a
model's text is ever evaluated here: it is parsed under guards (complexity.parse) and otherwise handed to the
verifier as a Job. Whatever a model writes ends as a value or as a Reject, whose reason is a key of
validation.REASONS: a new reason goes there. Only users' mistakes raise.
"""
import hashlib
import random
from dataclasses import dataclass

from sandbox.values import decode
from tasks.complexity import count_statements, structural_hash
from tasks.prompts import FORMATS, TEMPLATES, TOPICS, Prompt, show, template
from tasks.validation import (
    REASONS,
    Limits,
    arguments_text,
    canonical_arguments,
    input_problem,
    normalise,
    program_problem,
    value_problem,
)
from verifier import Job, Verdict

# What an attempt may be besides correct, wrong and malformed: the sandbox failed, the program made a
# forbidden system call. The first counts nowhere, the second as wrong.
UNJUDGED, VIOLATION = "unjudged", "violation"
FAILED = "sandbox failure"              # its name as a Verdict's end or error

# What the sandbox says -> the reason of a Reject; the rest are spelt alike.
OTHER_NAMES = {"too big": "output_too_long", "malformed": "malformed_result", "not a literal": "not_literal"}


@dataclass(frozen=True)
class Reject:
    """A proposal that goes no further; `reason` is in validation.REASONS."""
    reason: str

    def __post_init__(self):
        assert self.reason in REASONS, f"reason {self.reason!r} is not in validation.REASONS"

    @classmethod
    def of(cls, text, otherwise: str = "syntax") -> "Reject":
        """From "reason: details", as validation raises it and the sandbox says it ("too big", "killed")."""
        reason = str(text).partition(":")[0].strip()
        reason = OTHER_NAMES.get(reason, reason.replace(" ", "_"))
        return cls(reason if reason in REASONS else otherwise)


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
    answer_jobs -> list[Job] and verify -> list[str]. A new type must write parse_proposal, unless it is a
    program and its input, and `is_correct`, unless it writes verify.
    """
    name = ""
    tags = ("answer",)      # languages of the block with a student's answer; {tag} in a template is the first
    by_input = False        # whether one program on other inputs is another task, not a duplicate
    topics = TOPICS         # (what a proposal is about, how its input begins); one is drawn for each prompt
    seed: Proposal | None = None        # a task to show before there are any, or else those of code

    def check_templates(self, prompt_format: str) -> None:
        """Raises ValueError where a prompt format has no words for this type."""
        for phase in ("propose", "solve"):
            template(self.name, prompt_format, phase)

    def propose(self, prompt_format: str, few_shot: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Prompt for a teacher. few_shot: tasks to learn from; in code_f the first is to be given inputs."""
        asked = template(self.name, prompt_format, "propose")
        examples = []
        for task in few_shot if "{examples}" in asked.user else []:
            fields = self.fields(prompt_format, task, limits)
            examples.append(TEMPLATES[self.name].example.format(**fields))
        kind = rng.choice(("int", "list", "str"))
        topic, opening = rng.choice(self.topics)
        fields = dict(type=kind, topic=topic, opening=opening, examples="\n".join(examples),
                      n_inputs=limits.n_inputs,
                      program=few_shot[0].program if few_shot else "",
                      input=few_shot[0].inputs[0] if few_shot else "")
        return Prompt(asked.user.format(**fields), asked.prefix.format(**fields))

    def from_row(self, row: dict) -> Proposal:
        """The proposal in a line of a file of tasks. Raises ValueError or KeyError if it is wrong."""
        inputs = row["inputs"] if "inputs" in row else [row["input"]]
        texts = [row["program"], row.get("message", ""), *inputs]
        if not isinstance(inputs, list) or not inputs or not all(isinstance(text, str) for text in texts):
            raise ValueError("program, message and inputs must be strings, an input as between the brackets "
                             "of a call")
        program = normalise(row["program"], Limits(source_chars=8000), tidy=False)
        return Proposal(self.name, program, tuple(inputs), row.get("message", ""))

    def parse_proposal(self, text: str, prompt_format: str, few_shot: list[Task],
                       limits: Limits) -> Proposal | Reject:
        """Program and input from a teacher's text, which includes the prefix. Never raises."""
        form = FORMATS[prompt_format]
        blocks = form.blocks(text)
        if not form.admits(blocks, "python", "input") or form.strict and "#" in text:
            return Reject("syntax")
        at = next((i for i, block in enumerate(blocks) if is_program(*block)), None)
        if at is None:
            return Reject("no_program")
        behind = blocks[at + 1:]
        inputs = [body for tag, body in blocks[:at] if tag == "input"][-1:]
        inputs = inputs or [body for tag, body in behind if tag == "input"]
        inputs = inputs or [body for tag, body in behind if tag == "" and "def " not in body]
        if not inputs:
            return Reject("no_input")
        try:
            program = normalise(blocks[at][1], limits, form.tidy)
        except ValueError as error:
            return Reject.of(error)
        given = arguments_text(inputs[0])
        return Proposal(self.name, program, (canonical_arguments(given) if form.tidy else given,))

    def check(self, proposal: Proposal, limits: Limits) -> Reject | None:
        """Refusal before anything runs, or None."""
        if not proposal.inputs:
            return Reject("no_input")
        if len(proposal.message) > limits.message_chars:
            return Reject("message_too_long")
        problem = program_problem(proposal.program, limits)
        if problem is None and limits.control.search(proposal.message):
            problem = "control_text"
        for text in proposal.inputs:
            problem = problem or input_problem(text, limits)
        return Reject(problem) if problem else None

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Archive key: two proposals of one key are duplicates. "structural": structure of the program,
        without constants and names, and the inputs if `by_input`; "exact": the program and its inputs."""
        key = digest(proposal.program, *proposal.inputs)
        if dedupe == "structural":
            try:
                key = structural_hash(proposal.program)
            except ValueError:
                pass        # a program that does not parse is refused by `check`; its key still has to be one
        return digest(key, *proposal.inputs) if self.by_input else key

    def job(self, proposal: Proposal) -> Job:
        """The execution that decides validity and gives the gold outputs."""
        return Job(proposal.program, proposal.inputs, deterministic=True)

    def statements(self, program: str) -> int:
        """Length of a valid task's program. Raises ValueError where it cannot be read."""
        return count_statements(program)

    def structure(self, program: str) -> str:
        """Hash of a valid task's program up to names and constants. See `statements`."""
        return structural_hash(program)

    def accept(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task | Reject:
        """Task with gold outputs from execution, or the reason why not."""
        if verdict.end != "ok":
            return Reject.of(verdict.end, "error")
        for output, error in zip(verdict.outputs, verdict.errors, strict=True):
            if error is not None or output is None:
                return Reject.of(error or "error", "error")
            try:
                problem = value_problem(decode(output), limits)
            except ValueError:
                problem = "malformed_result"
            if problem:
                return Reject(problem)
        outputs = tuple(verdict.outputs)
        return Task(self.name, proposal.program, proposal.inputs, outputs, proposal.message, key)

    def solve(self, prompt_format: str, task: Task, limits: Limits) -> Prompt:
        """Prompt for a student."""
        asked = template(self.name, prompt_format, "solve")
        fields = self.fields(prompt_format, task, limits)
        return Prompt(asked.user.format(**fields), asked.prefix.format(**fields))

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """What a prompt format's template may say of a task, by name."""
        shown = [show(decode(output), limits.compact) for output in task.outputs]
        n_shown = self.n_shown(task, limits)
        pairs = []
        for given, output in zip(task.inputs[:n_shown], shown[:n_shown]):
            pairs.append(FORMATS[prompt_format].pair.format(input=given, output=output))
        hint = f"A hint: {task.message}\n\n" if task.message else ""
        return dict(program=task.program, input=task.inputs[0], output=shown[0], pairs="".join(pairs),
                    question=task.message, hint=hint, tag=self.tags[0])

    def n_shown(self, task: Task, limits: Limits) -> int:
        """Pairs of a task that the student sees; at least one, and at least half of them, stay hidden."""
        return min(limits.n_shown, len(task.inputs) // 2)

    def answer_block(self, text: str, prompt_format: str) -> str | None:
        """The last block under one of this type's tags, else the last block, else None."""
        blocks = FORMATS[prompt_format].blocks(text)
        if not blocks:
            return None
        last_tag, last = blocks[-1]
        if FORMATS[prompt_format].strict:
            return last if last_tag in self.tags and last_tag != "input" else None
        tagged = [body for tag, body in blocks if tag in self.tags]
        return tagged[-1] if tagged else last

    def parse_answer(self, text: str, prompt_format: str, task: Task, limits: Limits) -> str | None:
        """The answer in a student's text, not yet evaluated; None = malformed. Never raises."""
        return self.answer_block(text, prompt_format)

    def answer_jobs(self, task: Task, answers: list[str | None], limits: Limits) -> list[Job]:
        """Jobs that verify the attempts at a task, one each for programs, which could count their calls."""
        return []

    def verify(self, task: Task, answers: list[str | None], verdicts: list[Verdict],
              limits: Limits) -> list[str]:
        """"correct" | "wrong" | "malformed" | UNJUDGED | VIOLATION per attempt."""
        judged = []
        for answer in answers:
            if answer is None:
                judged.append("malformed")
            else:
                judged.append("correct" if self.is_correct(task, answer) else "wrong")
        return judged

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether an answer that need not run is correct. Never raises."""
        raise NotImplementedError


def is_program(tag: str, body: str) -> bool:
    """Whether a block of a teacher's text is its program."""
    return tag == "python" or tag == "" and "def " in body


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
