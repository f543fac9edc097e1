"""Two domains beyond code, to show how one is added: `math` (word problems) and `logic` (puzzles of true and false).

Each is one class: what a teacher writes, how it becomes a program for the sandbox, what the student sees, and when an answer
is right. Their answers are plain numbers and truth values, so they are read here and nothing of a student's has to run.
Two tasks whose programs have one structure are duplicates here, whatever their constants and inputs: a domain whose tasks differ
in their inputs alone says `by_input = True` (kinds.Kind). The README has a whole domain in a few lines.
"""
import ast
import itertools
import re
import unicodedata
from dataclasses import replace
from fractions import Fraction

from checks import normalise
from complexity import entry, parse
from kinds import Kind, Proposal, Reject
from prompts import LOGIC_TOPICS, MATH_TOPICS, STYLE
from verifier import decode, encode

MAX_CHARS, MAX_DIGITS, SHORT_DECIMAL = 400, 60, 12       # of an answer; significant digits up to which a float is exact
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
WORDS = r"[A-Za-z\s.,:;'\"?/]*"        # what may stand beside the number: names, units, punctuation, but no arithmetic
FRACTION = rf"(?:(?P<whole>\d+)\s+)?(?P<top>{NUMBER})\s*/\s*(?P<bottom>{NUMBER})"
DECIMAL = rf"(?P<number>{NUMBER})(?:[eE](?P<exponent>[-+]?\d{{1,3}}))?"
ANSWER = re.compile(rf"(?:[A-Za-z\s]*=)?{WORDS}?(?P<sign>[-+]?)\s*(?:{FRACTION}|{DECIMAL})\s*(?P<percent>%|percent\b)?{WORDS}",
                    re.ASCII)
# LaTeX and typography become plain text, in this order
PLAIN = [(r"([²³])", r"^\1"), (r"(?<=\d)([¼-¾⅐-⅞])", r" \1"), (r"\\boxed\b", ""),
         (r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2"), (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2"),
         (r"\\(?:text|mathrm|mathbf|textbf|mbox)\b", " "), (r"\{,\}", ","),
         (r"(?<=\d)(?:\\[,!;:]|\\ |\u202f|\u00a0)(?=\d{3})", ""), (r"\^\s*\{?\s*\\circ\s*\}?|°", " "), (r"\\([$% ])", r"\1"),
         (r"\s*(?:\\times|\\cdot|×|\*)\s*10\s*\^\s*\{?\s*([-+]?\d{1,3})\s*\}?", r"e\1"),
         (r"\\(?:left|right|quad|[,!;:()\[\]])|[$€£¥~*_`{}()]", " ")]
# minus signs, the fraction slash, and squares and cubes of units: 5 m^2, 5 m2
PLAIN_ASCII = [("[\u2212\u2013]", "-"), ("\u2044", "/"), (r"(?<=[A-Za-z])(?<!\d[eE])\s*\^?\s*-?[23]\b", "")]


def rational(text: str) -> set[Fraction]:
    """The exact number that an answer states: {x}, for a percentage {x, x/100}, and nothing unless it states exactly one.

    Tolerates units, currency, thousands commas, fractions, mixed numbers, percent, powers of ten and the LaTeX forms of all
    these. An expression ("2*3"), a choice ("3 or 4"), a root or a multiple of pi is no number here. Never raises.
    """
    if len(text) > MAX_CHARS:
        return set()
    for pattern, by in PLAIN:
        text = re.sub(pattern, by, text)
    text = unicodedata.normalize("NFKC", text)
    for pattern, by in PLAIN_ASCII:
        text = re.sub(pattern, by, text)
    m = ANSWER.fullmatch(text.strip())
    if not m or sum(map(str.isdigit, text)) > MAX_DIGITS or re.search(r"\b(?:pi|sqrt)\b", text):
        return set()
    number = lambda part: Fraction("0" + part.replace(",", "").rstrip("."))
    if m["top"] and number(m["bottom"]) == 0:
        return set()
    if m["top"]:
        value = int(m["whole"] or 0) + number(m["top"]) / number(m["bottom"])
    else:
        value = number(m["number"]) * Fraction(10) ** int(m["exponent"] or 0)
    value = -value if m["sign"] == "-" else value
    return {value, value / 100} if m["percent"] else {value}


def exact(value) -> Fraction | None:
    """The rational of a program's result: an int, a float that is a short decimal, or a text such as "3/4"; None of any other."""
    if type(value) is int:
        return Fraction(value)
    if type(value) is float and len(repr(value).partition("e")[0].strip("-0.").replace(".", "")) <= SHORT_DECIMAL:
        return Fraction(repr(value))
    fraction = re.fullmatch(r"(-?\d{1,30})/(\d{1,30})", value) if type(value) is str else None
    return Fraction(int(fraction[1]), int(fraction[2])) if fraction and int(fraction[2]) else None


class Math(Kind):
    """A question in words and a program that computes the answer; the student sees the question alone and answers a number."""
    name, tags, topics = "math", ("answer", "output"), MATH_TOPICS
    seed = Proposal("math", "def f():\n    apples = 3\n    apples = apples + 4\n    return apples", ("",),
                    "Tom has 3 apples and gets 4 more. How many apples does he have now?")

    def from_row(self, row):
        return Proposal(self.name, super().from_row(row | {"input": ""}).program, ("",), str(row["question"]))

    def parse_proposal(self, text, style, refs, limits):
        """The question and the program, whose function may be called solution. Never raises."""
        blocks = STYLE[style].blocks(text)
        questions = [body.strip() for tag, body in blocks if tag == "question" and body.strip()]
        programs = [body for tag, body in blocks if tag == "python" or tag == "" and "def " in body]
        if style == "micro" and [tag for tag, _ in blocks] != ["question", "python"]:
            return Reject("syntax")
        if not questions or not programs:
            return Reject("no_program" if questions else "no_question")
        try:
            return Proposal(self.name, normalise(programs[0], limits, STYLE[style].tidy, alias="solution"), ("",), questions[0])
        except ValueError as error:
            return Reject.of(error)

    def check(self, proposal, limits):
        return super().check(proposal, replace(limits, reject_constant=False)) if proposal.message else Reject("no_question")

    def accept(self, proposal, verdict, limits, key):
        result = super().accept(proposal, verdict, limits, key)
        if isinstance(result, Reject) or exact(decode(result.outputs[0])) is not None:
            return result
        return Reject("inexact" if isinstance(decode(result.outputs[0]), float) else "not_a_number")

    def fields(self, style, task, limits):
        return super().fields(style, task, limits) | {"program": task.program.replace("def f(", "def solution(")}

    def answer_block(self, text, style):
        """As `Kind.answer_block`, else the last \\boxed{...} of the text."""
        boxed = [] if style == "micro" else re.findall(r"\\boxed\s*(\{(?:[^{}]|\{[^{}]*\})*\})", text)
        return super().answer_block(text, style) or (boxed[-1] if boxed else None)

    def parse_answer(self, text, style, task, limits):
        """The text that states the number; None = malformed. Never raises."""
        block = self.answer_block(text, style)
        return block if block and rational(block) else None

    def right(self, task, answer):
        return exact(decode(task.outputs[0])) in rational(answer)


class Logic(Kind):
    """Lines that exactly one assignment of True and False fulfils. The program is their conjunction, its truth table runs in the
    sandbox, and the gold is the assignment: a tuple of booleans in the order of the program's parameters (alphabetical)."""
    name, tags, topics = "logic", ("answer", "output", "input"), LOGIC_TOPICS
    allowed = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Compare, ast.Eq, ast.NotEq, ast.Name, ast.Load)
    min_variables, max_variables = 2, 6

    def puzzle(self, lines: list[str]) -> Proposal:
        """The proposal of a list of constraints. Raises ValueError with a reason of checks.REASONS."""
        clauses = []
        for line in lines:
            tree = parse(line)
            clauses += [statement.value if isinstance(statement, ast.Expr) else None for statement in tree.body]
        nodes = [node for clause in clauses for node in (ast.walk(clause) if clause else (None,))]
        if not all(isinstance(node, self.allowed) for node in nodes):
            raise ValueError("not_logic")
        names = sorted({node.id for node in nodes if isinstance(node, ast.Name)})
        if not self.min_variables <= len(names) <= self.max_variables:
            raise ValueError("variables")
        conjunction = ast.unparse(ast.BoolOp(ast.And(), clauses) if len(clauses) > 1 else clauses[0])
        table = [", ".join(map(str, world)) for world in itertools.product((False, True), repeat=len(names))]
        return Proposal(self.name, f"def f({', '.join(names)}):\n    return {conjunction}", tuple(table))

    def from_row(self, row):
        return self.puzzle(list(row["constraints"]))

    def parse_proposal(self, text, style, refs, limits):
        """The constraints, one a line, perhaps as a list. Never raises."""
        blocks = STYLE[style].blocks(text)
        found = [body for tag, body in blocks if tag == "constraints"]
        found = found or [body for tag, body in blocks[:1] if tag in ("", "python")]
        if not found or style == "micro" and len(blocks) != 1:
            return Reject("syntax")
        lines = [re.sub(r"^\s*(?:[-*]|\d+[.)])\s+", "", line).strip() for line in found[0].split("\n")]
        try:
            return self.puzzle([line for line in lines if line])
        except ValueError as error:
            return Reject.of(error)

    def accept(self, proposal, verdict, limits, key):
        """The task whose gold is the one assignment that fulfils all constraints."""
        result = super().accept(proposal, verdict, limits, key)
        if isinstance(result, Reject):
            return result
        models = [given for given, output in zip(proposal.inputs, result.outputs) if decode(output) is True]
        if len(models) != 1:
            return Reject("several_models" if models else "no_model")
        return replace(result, inputs=("",), outputs=(encode(tuple(word == "True" for word in models[0].split(", "))),))

    def variables(self, task) -> list[str]:
        """Names of the puzzle's variables in alphabetical order."""
        return [argument.arg for argument in entry(parse(task.program)).args.args]

    def fields(self, style, task, limits):
        """The clauses, one a line, and the form of the answer: every variable by name."""
        formula = entry(parse(task.program)).body[0].value
        clauses = formula.values if isinstance(formula, ast.BoolOp) and isinstance(formula.op, ast.And) else [formula]
        lines = "\n".join(map(ast.unparse, clauses))
        lines = re.sub(" ([=!]=) ", r"\1", lines) if limits.compact else lines
        form = "\n".join(f"{name} = VALUE" for name in self.variables(task))
        return super().fields(style, task, limits) | {"form": form, "constraints": lines}

    def parse_answer(self, text, style, task, limits):
        """Truth values by name ("a = True, b: false") or in order ("True, False", "1,0") as "True, False"; None = malformed."""
        block, names = self.answer_block(text, style) or "", self.variables(task)
        parts = [part.strip(" \t\"'`*-") for part in re.split(r"[,;\n]|\band\b", block[:1000].strip(" \n{}[]()")) if part.strip()]
        truth, values = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}, {}
        for i, part in enumerate(parts):
            m = re.fullmatch(r"(?:(\w+)[\"'`*]*\s*(?:==?|:|is)\s*[\"'`*]*)?(\w+)", part)
            if not m or m[2].lower() not in truth or (name := m[1] or (names[i] if i < len(names) else "")) in values:
                return None
            values[name] = truth[m[2].lower()]
        return ", ".join(str(values[name]) for name in names) if sorted(values) == names else None

    def right(self, task, answer):
        return answer == ", ".join(map(str, decode(task.outputs[0])))


Logic.seed = Logic().puzzle(["a or b", "not a or c", "a != b", "not c"])
