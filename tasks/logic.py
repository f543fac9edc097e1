"""Puzzles of true and false: a teacher writes constraints that one assignment fulfils, a student answers it.
The answer is truth values, so it is read here. Two puzzles of one structure are duplicates."""
import ast
import itertools
import re
from dataclasses import replace

from infra.errors import refuse_unless
from sandbox.parsing import unparse
from sandbox.values import decode, encode
from tasks.base import Proposal, TaskType, text_of, texts_of
from tasks.complexity import entry, tree_of
from tasks.prompts import LOGIC_TOPICS

TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
STATEMENT = re.compile(r"(?:(\w+)[\"'`*]*\s*(?:==?|:|is)\s*[\"'`*]*)?(\w+)")     # "a = True", or "True"


def clauses_of(program: str) -> list[str]:
    """The constraints of a puzzle's program. Raises Refused where it is none."""
    function = entry(tree_of(program))
    refuse_unless(function and isinstance(function.body[0], ast.Return), "not_logic")
    formula = function.body[0].value
    is_conjunction = isinstance(formula, ast.BoolOp) and isinstance(formula.op, ast.And)
    return [unparse(clause) for clause in (formula.values if is_conjunction else [formula])]


class Logic(TaskType):
    """Lines that exactly one assignment of True and False fulfils. The program is their conjunction, its
    truth table runs in the sandbox, and the gold is the assignment: a tuple of booleans in the order of the
    program's parameters (alphabetical)."""
    name = "logic"
    tags = ("answer", "output", "input")
    topics = LOGIC_TOPICS
    allowed = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Compare, ast.Eq, ast.NotEq, ast.Name,
               ast.Load)
    n_variables = range(2, 7)

    def puzzle(self, lines: list[str]) -> Proposal:
        """The proposal of a list of constraints, of which repetitions are left out. Raises Refused with a
        reason of validation.REASONS."""
        clauses, names = tree_of("\n".join(dict.fromkeys(lines))).body, set()
        for clause in clauses:
            nodes = list(ast.walk(clause))[1:] if isinstance(clause, ast.Expr) else [clause]
            refuse_unless(all(isinstance(node, self.allowed) for node in nodes), "not_logic")
            names |= {node.id for node in nodes if isinstance(node, ast.Name)}
        refuse_unless(len(names) in self.n_variables, "variables")
        names = sorted(names)
        clauses = [clause.value for clause in clauses]
        conjunction = unparse(ast.BoolOp(ast.And(), clauses) if len(clauses) > 1 else clauses[0])
        table = [", ".join(map(str, world)) for world in itertools.product((False, True), repeat=len(names))]
        return Proposal(self.name, f"def f({', '.join(names)}):\n    return {conjunction}", tuple(table))

    def from_row(self, row):
        if "constraints" in row:
            return self.puzzle(texts_of(row, "constraints"))
        return self.puzzle(clauses_of(text_of(row, "program")))

    def read(self, written, few_shot, limits):
        """The constraints, one a line, perhaps as a list."""
        bodies = written.bodies("constraints")
        bodies = bodies or [body for tag, body in written.blocks[:1] if tag in ("", "python")]
        refuse_unless(bodies and written.admits("python"), "syntax")
        lines = [re.sub(r"^\s*(?:[-*]|\d+[.)])\s+", "", line).strip() for line in bodies[0].split("\n")]
        return self.puzzle([line for line in lines if line])

    def make(self, proposal, verdict, limits, key):
        """The task whose gold is the one assignment that fulfils all constraints."""
        task = super().make(proposal, verdict, limits, key)
        models = [given for given, output in zip(task.inputs, task.outputs) if decode(output) is True]
        refuse_unless(models, "no_model")
        refuse_unless(len(models) == 1, "several_models")
        gold = tuple(word == "True" for word in models[0].split(", "))
        return replace(task, inputs=("",), outputs=(encode(gold),))

    def variables(self, task) -> list[str]:
        """Names of the puzzle's variables in alphabetical order."""
        return [argument.arg for argument in entry(tree_of(task.program)).args.args]

    def fields(self, prompt_format, task, limits):
        """The clauses, one a line, and the form of the answer: every variable by name."""
        lines = "\n".join(clauses_of(task.program))
        if limits.compact:
            lines = re.sub(" ([=!]=) ", r"\1", lines)
        form = "\n".join(f"{name} = VALUE" for name in self.variables(task))
        return super().fields(prompt_format, task, limits) | {"form": form, "constraints": lines}

    def read_answer(self, block, task, limits):
        """Truth values by name ("a = True, b: f") or in order ("1,0") as "True, False"."""
        names, values = self.variables(task), {}
        parts = re.split(r"[,;\n]|\band\b", block[:1000].strip(" \n{}[]()"))
        for i, part in enumerate(part for part in parts if part.strip()):
            m = STATEMENT.fullmatch(part.strip(" \t\"'`*-"))
            refuse_unless(m and m[2].lower() in TRUTH, "syntax")
            name = m[1] or "".join(names[i:i + 1])
            refuse_unless(name not in values, "syntax")
            values[name] = TRUTH[m[2].lower()]
        return ", ".join(str(values[name]) for name in names) if sorted(values) == names else ""

    def is_correct(self, task, answer):
        return answer == ", ".join(map(str, decode(task.outputs[0])))


Logic.seed = Logic().puzzle(["a or b", "not a or c", "a != b", "not c"])
