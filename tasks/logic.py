"""Puzzles of true and false: a teacher writes constraints that one assignment fulfils, a student answers it.

The answer is truth values, so nothing of a student's has to run. Two puzzles of one structure are duplicates.
"""
import ast
import itertools
import re
from collections.abc import Iterable
from dataclasses import replace

from common import Refused, refuse_unless
from sandbox.parsing import unparse
from sandbox.values import decode, encode
from tasks.base import Proposal, Task, TaskType, text_of, texts_of
from tasks.programs import Limits, entry, names_in, tree_of
from tasks.prompts import LOGIC_TOPICS, Answer
from verifier import Verdict

# How an answer states truth values, and one variable's: "a = True", or without a name in the compact
# protocol.
TRUTH = {"True": True, "1": True, "False": False, "0": False}
STATEMENT = re.compile(r"(?:(\w+)\s*=\s*)?(True|False|1|0)")


def clauses_of(program: str) -> list[str]:
    """Returns the constraints of a puzzle's program. Raises Refused if it is none."""
    match entry(tree_of(program)):
        case ast.FunctionDef(body=[ast.Return(ast.BoolOp(ast.And(), clauses)), *_]):
            return list(map(unparse, clauses))
        case ast.FunctionDef(body=[ast.Return(ast.expr() as clause), *_]):
            return [unparse(clause)]
    raise Refused("not_logic")


def assignment_text(values: Iterable[bool]) -> str:
    """Returns truth values as they stand between the brackets of a call, "True, False"."""
    return ", ".join(map(str, values))


class Logic(TaskType):
    """Lines that exactly one assignment of True and False fulfils.

    The program is their conjunction, and its inputs are all assignments, so that the sandbox computes the
    truth table. The gold is the one assignment for which it is true: a tuple of booleans in the order of the
    program's parameters, which is alphabetical.
    """
    name = "logic"
    tags = ("answer",)
    topics = LOGIC_TOPICS
    # Lines of expressions, and no constants: `a or True` would be no constraint.
    allowed = (
        ast.Module, ast.Expr,
        ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not,
        ast.Compare, ast.Eq, ast.NotEq,
        ast.Name, ast.Load)
    # The truth table has 2 ** 6 rows at most.
    n_variables = range(2, 7)

    def puzzle(self, lines: list[str]) -> Proposal:
        """Returns the proposal of a list of constraints, without those that come again. Raises Refused."""
        tree = tree_of("\n".join(dict.fromkeys(lines)))
        for node in ast.walk(tree):
            refuse_unless(isinstance(node, self.allowed), "not_logic")
        found = names_in(tree)
        refuse_unless(len(found) in self.n_variables, "variables")
        # Alphabetical, so that two puzzles that differ in the order of their lines have one signature.
        names = ", ".join(sorted(found))
        values = [clause.value for clause in tree.body]
        formula = values[0]
        if len(values) > 1:
            formula = ast.BoolOp(ast.And(), values)
        program = f"def f({names}):\n    return {unparse(formula)}"
        worlds = itertools.product((False, True), repeat=len(found))
        return Proposal(self.name, program, tuple(map(assignment_text, worlds)))

    def from_row(self, row: dict) -> Proposal:
        """Returns the puzzle in a line of a file, by its constraints, or by its program in a run's
        tasks.jsonl."""
        if "constraints" in row:
            return self.puzzle(texts_of(row, "constraints"))
        return self.puzzle(clauses_of(text_of(row, "program")))

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Returns the puzzle of the constraints, one a line, perhaps as a list."""
        bodies = written.bodies_or_first("constraints")
        refuse_unless(bodies and written.admits("python"), "syntax")
        lines = []
        for line in bodies[0].split("\n"):
            line = re.sub(r"^\s*(?:[-*]|\d+[.)])\s+", "", line).strip()         # the marker of a list
            if line:
                lines.append(line)
        return self.puzzle(lines)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Returns the task whose gold is the one assignment that fulfils all constraints."""
        task = super().make(proposal, verdict, limits, key)
        fulfilling = []
        for given, output in zip(task.inputs, task.outputs):
            if decode(output) is True:
                fulfilling.append(given)
        refuse_unless(fulfilling, "no_model")
        refuse_unless(len(fulfilling) == 1, "several_models")
        gold = tuple([word == "True" for word in fulfilling[0].split(", ")])
        # The table has done its work: a task is stored with its gold alone.
        return replace(task, inputs=("",), outputs=(encode(gold),))

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """Returns what `TaskType.fields` does, and the clauses, one a line."""
        lines = "\n".join(clauses_of(task.program))
        if limits.compact:
            lines = re.sub(" ([=!]=) ", r"\1", lines)
        return super().fields(prompt_format, task, limits) | {"constraints": lines}

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the truth values that a block states, by name or in order, as "True, False"."""
        names = [parameter.arg for parameter in entry(tree_of(task.program)).args.args]
        # The bound on the length is one on the work: no assignment of six variables is longer.
        parts = re.split(r"[,\n]", block[:1000].strip())
        refuse_unless(len(parts) == len(names), "syntax")
        values = {}
        for name, part in zip(names, parts):
            stated = STATEMENT.fullmatch(part.strip())
            refuse_unless(stated, "syntax")
            values[stated[1] or name] = TRUTH[stated[2]]
        # Every variable has to have a value, and nothing else may have one.
        refuse_unless(sorted(values) == names, "syntax")
        return assignment_text([values[name] for name in names])

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Returns "correct" if an answer is the gold assignment."""
        if answer == assignment_text(decode(task.outputs[0])):
            return "correct"
        return "wrong"


Logic.seed = Logic().puzzle(["a or b", "not a or c", "a != b", "not c"])
