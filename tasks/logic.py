"""Puzzles of true and false: a teacher writes constraints that one assignment fulfils, a student answers it.

The answer is truth values, so it is read here. Two puzzles of one structure are duplicates.
"""
import ast
import itertools
import re
from collections.abc import Iterable
from dataclasses import replace

from common import refuse_unless
from sandbox.parsing import unparse
from sandbox.values import decode, encode
from tasks.base import Proposal, Task, TaskType, text_of, texts_of
from tasks.programs import entry, names_in, tree_of
from tasks.prompts import LOGIC_TOPICS, Answer
from tasks.programs import Limits
from verifier import Verdict

# How models write truth values, in small letters.
TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
# One variable's value, perhaps with its name and marks of code around it: "a = True", "True".
STATEMENT = re.compile(r"(?:(\w+)[\"'`*]*\s*(?:==?|:|is)\s*[\"'`*]*)?(\w+)")


def clauses_of(program: str) -> list[str]:
    """The constraints of a puzzle's program. Raises Refused where it is none."""
    function = entry(tree_of(program))
    refuse_unless(function and isinstance(function.body[0], ast.Return), "not_logic")
    formula = function.body[0].value
    clauses = [formula]
    if isinstance(formula, ast.BoolOp) and isinstance(formula.op, ast.And):
        clauses = formula.values
    return list(map(unparse, clauses))


def assignment_text(values: Iterable[bool]) -> str:
    """Truth values as they stand between the brackets of a call: "True, False"."""
    return ", ".join(map(str, values))


class Logic(TaskType):
    """Lines that exactly one assignment of True and False fulfils.

    The program is their conjunction, and its inputs are all assignments, so that the sandbox computes the
    truth table. The gold is the one assignment for which it is true: a tuple of booleans in the order of the
    program's parameters, which is alphabetical.
    """
    name = "logic"
    tags = ("answer", "output", "input")
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
        """The proposal of a list of constraints, of which repetitions are left out. Raises Refused with a
        reason of validation.REASONS."""
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
        """The puzzle in a line of a file: its constraints, or, in a run's tasks.jsonl, its program."""
        if "constraints" in row:
            return self.puzzle(texts_of(row, "constraints"))
        return self.puzzle(clauses_of(text_of(row, "program")))

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """The constraints, one a line, perhaps as a list."""
        bodies = written.bodies_or_first("constraints")
        refuse_unless(bodies and written.admits("python"), "syntax")
        lines = []
        for line in bodies[0].split("\n"):
            line = re.sub(r"^\s*(?:[-*]|\d+[.)])\s+", "", line).strip()         # the marker of a list
            if line:
                lines.append(line)
        return self.puzzle(lines)

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """The task whose gold is the one assignment that fulfils all constraints."""
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

    def variables(self, task: Task) -> list[str]:
        """Names of the puzzle's variables in alphabetical order."""
        function = entry(tree_of(task.program))
        return [argument.arg for argument in function.args.args]

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """The clauses, one a line."""
        lines = "\n".join(clauses_of(task.program))
        if limits.compact:
            lines = re.sub(" ([=!]=) ", r"\1", lines)
        return super().fields(prompt_format, task, limits) | {"constraints": lines}

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Truth values by name ("a = True, b: f") or in order ("1,0") as "True, False"."""
        names = self.variables(task)
        # The bound on the length is one on the work: no assignment of six variables is longer.
        text = block[:1000].strip(" \n{}[]()")
        parts = [part for part in re.split(r"[,;\n]|\band\b", text) if part.strip()]
        values = {}
        for i, part in enumerate(parts):
            stated = STATEMENT.fullmatch(part.strip(" \t\"'`*-"))
            refuse_unless(stated and stated[2].lower() in TRUTH, "syntax")
            # A value without a name is that of the variable at its place, or of none.
            name = stated[1] or "".join(names[i:i + 1])
            refuse_unless(name not in values, "syntax")
            values[name] = TRUTH[stated[2].lower()]
        # Every variable has to have a value, and nothing else may have one.
        if sorted(values) != names:
            return ""
        return assignment_text([values[name] for name in names])

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether an answer is the gold assignment."""
        return answer == assignment_text(decode(task.outputs[0]))


Logic.seed = Logic().puzzle(["a or b", "not a or c", "a != b", "not c"])
