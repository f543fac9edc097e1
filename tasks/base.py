"""The contract of a task kind: what goes in and out (Proposal, Task, Reject) and what all kinds share (Kind).

A kind is one class, its template (prompts.TEMPLATES) and its place in tasks.TASK_TYPES. Nothing of a model's text is ever evaluated here:
it is parsed under guards (complexity.parse) and otherwise handed to the verifier as a Job. Whatever a model writes ends as a
value or as a Reject, whose reason is a key of validation.REASONS: a new reason needs a line there. Only users' mistakes raise.
"""
import hashlib
import random
from dataclasses import dataclass

from sandbox.values import decode
from tasks.complexity import structural_hash
from tasks.prompts import FORMATS, TOPICS, TEMPLATES, Prompt, show, template
from tasks.validation import (CONTROL, REASONS, Limits, arguments_text, canonical_arguments, demonstrated,
                              input_problem, normalise, program_problem, value_problem)
from verifier import Job, Verdict


@dataclass(frozen=True)
class Reject:
    """A proposal that goes no further; `reason` is a key of validation.REASONS."""
    reason: str

    def __post_init__(self):
        assert self.reason in REASONS, f"reason {self.reason!r} has no line in validation.REASONS"

    @classmethod
    def of(cls, error: ValueError) -> "Reject":
        """From "reason: details", as validation and complexity raise; other errors are of Python's own parser and printer."""
        reason = str(error).split(":")[0]
        return cls(reason if reason in REASONS else "syntax")


@dataclass(frozen=True)
class Proposal:
    """A teacher's task before execution: program text and argument texts as between the brackets of a call."""
    kind: str
    program: str
    inputs: tuple[str, ...]
    message: str = ""


@dataclass(frozen=True)
class Task:
    """A valid task. `outputs`: canonical texts (verifier.encode) from execution. `parents`: ids of the references shown."""
    kind: str
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    message: str
    key: str
    id: int = -1
    teacher: str = ""
    step: int = -1
    parents: tuple[int, ...] = ()


class TaskType:
    """What the kinds share. A proposal goes through parse_proposal -> Proposal | Reject, check -> Reject | None, key -> str,
    job -> Job and accept -> Task | Reject; all attempts at a task go through parse_answer -> str | None each, answer_jobs ->
    list[Job] and judge -> list[str]. A new kind must write parse_proposal, unless it is a program and its input, and `is_correct`,
    unless it writes judge. A reason of its own needs a line in validation.REASONS, or the first Reject of it ends the run."""
    name = ""
    tags = ("answer",)      # languages of the block that holds a student's answer, {tag} in the template is the first
    by_input = False        # whether tasks of one program on different inputs are different tasks, or else duplicates
    topics = TOPICS         # (what a proposal is about, how its input begins); one is drawn for each prompt
    seed: Proposal | None = None    # a task to show before there are any; without one, those of the code kinds stand in

    def propose(self, prompt_format: str, few_shot: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Prompt for a teacher. few_shot: tasks to learn from; for code_f, few_shot[0] is the program to write inputs for."""
        asked, reference = template(self.name, prompt_format, "propose"), TEMPLATES[self.name].reference
        shown = few_shot if "{references}" in asked.user else []
        references = "\n".join(reference.format(**self.fields(prompt_format, ref, limits)) for ref in shown)
        kind, (topic, opening) = rng.choice(("int", "list", "str")), rng.choice(self.topics)
        fields = dict(type=kind, topic=topic, opening=opening, references=references,
                      n_inputs=limits.n_inputs, program=few_shot[0].program if few_shot else "", input=few_shot[0].inputs[0] if few_shot else "")
        return Prompt(asked.user.format(**fields), asked.prefix.format(**fields))

    def from_row(self, row: dict) -> Proposal:
        """The proposal in a line of a user's file of tasks. Raises ValueError or KeyError with what is missing or wrong."""
        inputs = row["inputs"] if "inputs" in row else [row["input"]]
        texts = [row["program"], row.get("message", ""), *inputs]
        if not isinstance(inputs, list) or not inputs or not all(isinstance(text, str) for text in texts):
            raise ValueError("program, message and inputs must be strings, an input as between the brackets of a call")
        program = normalise(row["program"], Limits(source_chars=8000), tidy=False)
        return Proposal(self.name, program, tuple(inputs), row.get("message", ""))

    def parse_proposal(self, text: str, prompt_format: str, few_shot: list[Task], limits: Limits) -> Proposal | Reject:
        """Program and input from a teacher's text, which includes the prefix. Never raises."""
        blocks = FORMATS[prompt_format].blocks(text)
        if prompt_format == "micro" and ([tag for tag, _ in blocks] != ["python", "input"] or "#" in text):
            return Reject("syntax")     # a program, then the call as the last line, and nothing else, comments included
        programs = [i for i, (tag, body) in enumerate(blocks) if tag == "python" or tag == "" and "def " in body]
        if not programs:
            return Reject("no_program")
        rest = blocks[programs[0] + 1:]
        inputs = [body for tag, body in blocks[:programs[0]] if tag == "input"][-1:]
        inputs = inputs or [body for tag, body in rest if tag == "input"]
        inputs = inputs or [body for tag, body in rest if tag == "" and "def " not in body]
        inputs = inputs or ([] if prompt_format == "micro" else demonstrated(blocks[programs[0]][1])[-1:])
        if not inputs:
            return Reject("no_input")
        try:
            program = normalise(blocks[programs[0]][1], limits, FORMATS[prompt_format].tidy)
        except ValueError as error:
            return Reject.of(error)
        given = arguments_text(inputs[0], program)
        return Proposal(self.name, program, (canonical_arguments(given) if FORMATS[prompt_format].tidy else given,))

    def check(self, proposal: Proposal, limits: Limits) -> Reject | None:
        """Refusal before anything runs, or None."""
        if not proposal.inputs:
            return Reject("no_input")
        if len(proposal.message) > limits.message_chars:
            return Reject("message_too_long")
        problems = [program_problem(proposal.program, limits), "control_text" if CONTROL.search(proposal.message) else None]
        problems += [input_problem(text, limits) for text in proposal.inputs]
        return next(map(Reject, filter(None, problems)), None)

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Archive key, two proposals of one key are duplicates: structure of the program, which knows neither constants nor names
        ("structural"), with the inputs where `by_input` says so; or the exact program and inputs ("exact")."""
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

    def accept(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task | Reject:
        """Task with gold outputs from execution, or the reason why not."""
        ends = {"too big": "output_too_long", "malformed": "malformed_result"}
        if verdict.end != "ok":
            reason = ends.get(verdict.end, verdict.end.replace(" ", "_"))
            return Reject(reason if reason in REASONS else "error")
        for output, error in zip(verdict.outputs, verdict.errors, strict=True):
            if error is not None or output is None:
                reason = (error or "error").partition(":")[0].strip()
                reason = {"too big": "output_too_long", "not a literal": "not_literal"}.get(reason, reason.replace(" ", "_"))
                return Reject(reason if reason in REASONS else "error")
            try:
                problem = value_problem(decode(output), limits)
            except ValueError:
                problem = "malformed_result"
            if problem:
                return Reject(problem)
        return Task(self.name, proposal.program, proposal.inputs, tuple(verdict.outputs), proposal.message, key)

    def solve(self, prompt_format: str, task: Task, limits: Limits) -> Prompt:
        """Prompt for a student."""
        asked, fields = template(self.name, prompt_format, "solve"), self.fields(prompt_format, task, limits)
        return Prompt(asked.user.format(**fields), asked.prefix.format(**fields))

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """What a prompt format's template may say of a task, by name."""
        shown = [show(decode(output), limits.compact) for output in task.outputs]
        n_shown = self.n_shown(task, limits)
        pairs = "".join(FORMATS[prompt_format].pair.format(input=i, output=o) for i, o in zip(task.inputs[:n_shown], shown[:n_shown]))
        return dict(program=task.program, input=task.inputs[0], output=shown[0], pairs=pairs, question=task.message,
                    hint=f"A hint: {task.message}\n\n" if task.message else "", tag=self.tags[0])

    def n_shown(self, task: Task, limits: Limits) -> int:
        """Pairs of a task that the student sees; at least one, and at least half of them, stay hidden."""
        return min(limits.n_shown, len(task.inputs) // 2)

    def answer_block(self, text: str, prompt_format: str) -> str | None:
        """The last block under one of this kind's tags, else the last block, else None."""
        blocks = FORMATS[prompt_format].blocks(text)
        if prompt_format == "micro":
            return blocks[-1][1] if blocks and blocks[-1][0] in self.tags and blocks[-1][0] != "input" else None
        return next((body for tag, body in reversed(blocks) if tag in self.tags), blocks[-1][1] if blocks else None)

    def parse_answer(self, text: str, prompt_format: str, task: Task, limits: Limits) -> str | None:
        """The answer in a student's text, not yet evaluated; None = malformed. Never raises."""
        return self.answer_block(text, prompt_format)

    def answer_jobs(self, task: Task, answers: list[str | None], limits: Limits) -> list[Job]:
        """Executions needed to judge these attempts at one task: none, where `is_correct` is the judge."""
        return []

    def judge(self, task: Task, answers: list[str | None], verdicts: list[Verdict], limits: Limits) -> list[str]:
        """"correct" | "wrong" | "malformed" per attempt, from the verdicts of `answer_jobs` or from `is_correct`."""
        return ["malformed" if answer is None else "correct" if self.is_correct(task, answer) else "wrong" for answer in answers]

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether an answer that need not run is correct. Never raises."""
        raise NotImplementedError


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
