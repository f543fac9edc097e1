"""The kinds of task: what a teacher and a student are asked, how their text is read, and what deserves a reward.

A kind is one class (`code_o` deduction, `code_i` abduction, `code_f` induction) and its wording (prompts.py). Nothing of a
model's text is ever evaluated here: it is parsed under guards (complexity.parse) and otherwise handed to the verifier as a
Job. Whatever a model writes ends as a value or as a reason named in checks.REASONS; only users' mistakes raise.
"""
import hashlib
import json
import random
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

from checks import (CONTROL, REASONS, Limits, arguments_text, canonical_arguments, demonstrated, input_problem, normalise, program_problem,
                    split_inputs, value_problem)
from complexity import structural_hash
from prompts import HINT, STYLE, STYLES, TOPICS, Prompt, render, show
from verifier import Job, Verdict, decode, same

__all__ = ["IDENTITY", "KINDS", "REASONS", "STYLES", "Kind", "Limits", "Prompt", "Proposal", "Reject", "Task", "read_tasks",
           "render", "show"]


@dataclass(frozen=True)
class Reject:
    """A proposal that goes no further; `reason` is a key of REASONS."""
    reason: str

    def __post_init__(self):
        assert self.reason in REASONS, self.reason


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


class Kind:
    """What the kinds share: prompts from the style's table, static checks, execution of a proposal, acceptance."""
    name = ""
    tags = ("answer",)      # languages of the block that holds a student's answer

    def propose(self, style: str, refs: list[Task], rng: random.Random, limits: Limits) -> Prompt:
        """Prompt for a teacher. refs: tasks to learn from; for code_f, refs[0] is the program to write inputs for."""
        text = STYLE[style]
        references = "\n".join(text.reference.format(program=ref.program, input=ref.inputs[0]) for ref in refs)
        kind, (topic, opening) = rng.choice(("int", "list", "str")), rng.choice(TOPICS)
        fields = dict(type=kind, topic=topic, opening=opening, references=references,
                      n_inputs=limits.n_inputs, program=refs[0].program if refs else "", input=refs[0].inputs[0] if refs else "")
        return Prompt(text.propose[self.name].format(**fields), text.prefix("propose", self.name).format(**fields))

    def parse_proposal(self, text: str, style: str, refs: list[Task], limits: Limits) -> Proposal | Reject:
        """Program and input from a teacher's text, which includes the prefix. Never raises."""
        blocks = STYLE[style].blocks(text)
        if style == "micro" and ([tag for tag, _ in blocks] != ["python", "input"] or "#" in text):
            return Reject("syntax")     # a program, then the call as the last line, and nothing else, comments included
        programs = [i for i, (tag, body) in enumerate(blocks) if tag == "python" or tag == "" and "def " in body]
        if not programs:
            return Reject("no_program")
        rest = blocks[programs[0] + 1:]
        inputs = [body for tag, body in blocks[:programs[0]] if tag == "input"][-1:] or [body for tag, body in rest if tag == "input"]
        inputs = inputs or [body for tag, body in rest if tag == "" and "def " not in body]
        inputs = inputs or ([] if style == "micro" else demonstrated(blocks[programs[0]][1])[-1:])
        if not inputs:
            return Reject("no_input")
        try:
            program = normalise(blocks[programs[0]][1], limits, STYLE[style].tidy)
        except ValueError as error:
            reason = str(error).split(":")[0]
            return Reject(reason if reason in REASONS else "syntax")
        given = arguments_text(inputs[0], program)
        return Proposal(self.name, program, (canonical_arguments(given) if STYLE[style].tidy else given,))

    def check(self, proposal: Proposal, limits: Limits) -> str | None:
        """Reason for refusal before anything runs, or None."""
        if not proposal.inputs:
            return "no_input"
        if len(proposal.message) > limits.message_chars:
            return "message_too_long"
        problems = [program_problem(proposal.program, limits), "control_text" if CONTROL.search(proposal.message) else None]
        problems += [input_problem(text, limits) for text in proposal.inputs]
        return next(filter(None, problems), None)

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Archive key: structure of the program ("structural"), or the exact program and inputs ("exact")."""
        if dedupe == "structural":
            try:
                return structural_hash(proposal.program)
            except ValueError:
                pass        # a program that does not parse is refused by `check`; its key still has to be one
        return _digest(proposal.program, *proposal.inputs)

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

    def solve(self, style: str, task: Task, limits: Limits) -> Prompt:
        """Prompt for a student."""
        text, shown = STYLE[style], [show(decode(output), limits.compact) for output in task.outputs]
        n_shown = self.n_shown(task, limits)
        pairs = "".join(text.pair.format(input=i, output=o) for i, o in zip(task.inputs[:n_shown], shown[:n_shown]))
        hint = f"A hint: {task.message}\n\n" if task.message else ""
        fields = dict(program=task.program, input=task.inputs[0], output=shown[0], pairs=pairs, hint=hint)
        return Prompt(text.solve[self.name].format(**fields), text.prefix("solve", self.name))

    def n_shown(self, task: Task, limits: Limits) -> int:
        """Pairs of a task that the student sees; at least one, and at least half of them, stay hidden."""
        return min(limits.n_shown, len(task.inputs) // 2)

    def answer_block(self, text: str, style: str) -> str | None:
        """The last block under one of this kind's tags, else the last block, else None."""
        blocks = STYLE[style].blocks(text)
        if style == "micro":
            return blocks[-1][1] if blocks and blocks[-1][0] in self.tags and blocks[-1][0] != "input" else None
        return next((body for tag, body in reversed(blocks) if tag in self.tags), blocks[-1][1] if blocks else None)

    def parse_answer(self, text: str, style: str, task: Task, limits: Limits) -> str | None:
        """The answer in a student's text, not yet evaluated; None = malformed. Never raises."""
        raise NotImplementedError

    def answer_jobs(self, task: Task, answers: list[str | None], limits: Limits) -> list[Job]:
        """Executions needed to judge these attempts at one task."""
        raise NotImplementedError

    def judge(self, task: Task, answers: list[str | None], verdicts: list[Verdict], limits: Limits) -> list[str]:
        """"correct" | "wrong" | "malformed" per attempt, from the verdicts of `answer_jobs`."""
        raise NotImplementedError


class ValueKind(Kind):
    """code_o and code_i: the answer is data, all attempts at a task are inputs of one job, the gold is outputs[0]."""
    program = ""            # what runs on the answers; "" = the task's program

    def parse_answer(self, text, style, task, limits):
        block = self.answer_block(text, style)
        answer = (arguments_text(block, task.program) if self.tags[0] == "input" else block.strip()) if block is not None else ""
        # twice the limit: the gold is measured as displayed, an answer may hold more spaces
        return answer if answer and len(answer) <= 2 * max(limits.input_chars, limits.output_chars) else None

    def answer_jobs(self, task, answers, limits):
        given = tuple(answer for answer in answers if answer is not None)
        return [Job(self.program or task.program, given)] if given else []

    def judge(self, task, answers, verdicts, limits):
        results = iter(zip(verdicts[0].outputs, verdicts[0].errors, strict=True) if verdicts else ())
        gold = decode(task.outputs[0])
        return ["malformed" if answer is None else self.grade(gold, *next(results)) for answer in answers]

    def grade(self, gold, output: str | None, error: str | None) -> str:
        """Verdict on one attempt."""
        if error is not None or output is None:
            # an answer that is no literal is malformed; one that the program cannot digest is merely wrong
            return "malformed" if self.program or (error or "").startswith("not a literal") else "wrong"
        try:
            return "correct" if same(decode(output), gold) else "wrong"
        except ValueError:
            return "wrong"


class Deduction(ValueKind):
    """Program and input are given; the answer is the output, read as data by a program that returns its argument."""
    name, tags = "code_o", ("output", "answer")
    program = "def f(*values):\n    return values[0] if len(values) == 1 else values"    # "1, 2" is a tuple to Python too


class Abduction(ValueKind):
    """Program and output are given; the answer is any input that gives this output."""
    name, tags = "code_i", ("input", "answer")


class Induction(Kind):
    """Pairs and a hint are given; the answer is a program, graded on the hidden pairs alone."""
    name, tags = "code_f", ("python", "answer")

    def parse_proposal(self, text, style, refs, limits):
        """The first n_inputs distinct inputs and the hint (may be missing) for the program of refs[0]. Never raises."""
        blocks = STYLE[style].blocks(text)
        if style == "micro" and ({tag for tag, _ in blocks} != {"input"} or "#" in text):
            return Reject("syntax")
        if not refs:
            return Reject("no_program")
        program, message = refs[0].program, [body.strip() for tag, body in blocks if tag == "message"]
        message = message or HINT.findall(text)
        texts = [body for tag, body in blocks if tag == "input"] or [body for tag, body in blocks[:1] if tag in ("", "python")]
        if not texts:
            return Reject("no_input")
        distinct = {}
        for given in (part for body in texts for part in split_inputs(body, program)):
            distinct.setdefault(canonical_arguments(given), given)
        if len(distinct) < limits.min_inputs:
            return Reject("few_inputs")
        inputs = tuple(distinct if STYLE[style].tidy else distinct.values())[:limits.n_inputs]
        return Proposal(self.name, program, inputs, message[-1] if message else "")

    def check(self, proposal, limits):
        return "few_inputs" if len(proposal.inputs) < limits.min_inputs else super().check(proposal, limits)

    def accept(self, proposal, verdict, limits, key):
        """As `Kind.accept`; inputs on which the program raises are left out while at least min_inputs remain."""
        works = [error is None or not error.startswith("error") for error in verdict.errors]
        if verdict.end == "ok" and limits.min_inputs <= sum(works) < len(works):
            proposal = replace(proposal, inputs=tuple(compress(proposal.inputs, works)))
            verdict = replace(verdict, outputs=tuple(compress(verdict.outputs, works)), errors=tuple(compress(verdict.errors, works)))
        return super().accept(proposal, verdict, limits, key)

    def key(self, proposal, dedupe):
        return _digest(super().key(proposal, dedupe), *proposal.inputs)

    def parse_answer(self, text, style, task, limits):
        """The program, called f, if it passes the static checks of a proposal; None = malformed. Never raises."""
        if style == "micro" and len(STYLE[style].blocks(text)) != 1:
            return None
        block = self.answer_block(text, style)
        try:
            program = normalise(block or "", limits, STYLE[style].tidy)
        except ValueError:
            return None
        return None if program_problem(program, limits) not in (None, "ignores_input") else program

    def answer_jobs(self, task, answers, limits):
        return [Job(answer, task.inputs[self.n_shown(task, limits):]) for answer in answers if answer is not None]

    def judge(self, task, answers, verdicts, limits):
        gold = [decode(output) for output in task.outputs[self.n_shown(task, limits):]]
        remaining = iter(verdicts)
        return ["malformed" if answer is None else self.grade(gold, next(remaining)) for answer in answers]

    def grade(self, gold: list, verdict: Verdict) -> str:
        """Correct where every hidden output is reproduced."""
        try:
            fine = len(verdict.outputs) == len(gold) and all(
                error is None and output is not None and same(decode(output), value)
                for output, error, value in zip(verdict.outputs, verdict.errors, gold, strict=True))
        except ValueError:
            fine = False
        return "correct" if fine and gold else "wrong"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Deduction(), Abduction(), Induction())}
IDENTITY = Proposal("code_o", "def f(x):\n return x", ("[1,2,3]",))


def read_tasks(path: str | Path) -> list[Proposal]:
    """Proposals from JSON lines {"kind", "program", "input" or "inputs", "message"}. They are run like any teacher's.

    Raises ValueError naming the file or line and what is wrong with it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from None
    proposals = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            kind, program = row.get("kind", "code_o"), row["program"]
            inputs = row["inputs"] if "inputs" in row else [row["input"]]
            if kind not in KINDS:
                raise ValueError(f"kind {kind!r} is none of {', '.join(KINDS)}")
            texts = [program, row.get("message", ""), *inputs]
            if not isinstance(inputs, list) or not inputs or not all(isinstance(text, str) for text in texts):
                raise ValueError("program, message and inputs must be strings, an input as between the brackets of a call")
            program = normalise(program, Limits(source_chars=8000), tidy=False)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from None
        proposals.append(Proposal(kind, program, tuple(inputs), row.get("message", "")))
    return proposals
