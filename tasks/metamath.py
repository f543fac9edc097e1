"""Verifies Metamath databases: reads the language of the Metamath book and checks every proof.

    python -m tasks.metamath FILE.mm        exit code 0, or 1 with the line and the token where it goes wrong

A proof is a list of labels for a machine with one stack: a hypothesis is pushed; an axiom ($a) or theorem
($p) takes as many expressions as it has hypotheses, finds what its variables stand for, and leaves its own
with that in their place. An expression is a tuple of symbols, of which the first is a type ("wff", "|-").
Standard library alone. Models' proofs are checked by it too (proof.py): whatever a text says ends as a
value or as a Mistake, and within a number of symbols.
"""
import argparse
import itertools
import re
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_WORK = 20_000_000       # symbols that one proof may write: a step may double what the one before wrote
TOO_LONG = "the proof writes too many symbols"
SAVE = -1                   # a step that saves what lies on top of the stack
ILLEGAL = re.compile(r"[^\t\n\f\r -~]")
LABEL = re.compile(r"[A-Za-z0-9._-]+")
AFTER_LABEL = ("$f", "$e", "$a", "$p")
KEYWORDS = ("$c", "$v", "$d", "${", "$}", *AFTER_LABEL)


class Mistake(Exception):
    """Says where, and why, a text is no valid database."""


class Token(str):
    """Holds a word and the number of its line."""
    line = 0


@dataclass(frozen=True)
class Hypothesis:
    """`floating` ($f): a variable has a type, the expression is (type, variable). Else essential ($e)."""
    label: str
    floating: bool
    expression: tuple[str, ...]


@dataclass(frozen=True)
class Assertion:
    """Holds an axiom or theorem, its mandatory hypotheses in order, and pairs that must stay distinct."""
    label: str
    hypotheses: tuple[Hypothesis, ...]
    expression: tuple[str, ...]
    distinct: frozenset[frozenset[str]]
    proof: tuple[str, ...] = ()         # () = an axiom

    def essential(self) -> list[Hypothesis]:
        """Its premises: the hypotheses that are more than the type of a variable."""
        return [h for h in self.hypotheses if not h.floating]


@dataclass(frozen=True)
class Scope:
    """What was in scope where a block begins."""
    variables: dict[str, str]
    n_hypotheses: int
    distinct: set[frozenset[str]]


class Database:
    """What has been read: `variables` with types, `former` ones, labels of `incomplete` proofs."""

    def __init__(self):
        self.constants, self.former, self.labels = set(), set(), set()
        self.variables: dict[str, str] = {}
        self.hypotheses: list[Hypothesis] = []          # in scope, in order
        self.distinct: set[frozenset[str]] = set()      # pairs in scope
        self.n_pairs = 0                                # pairs of $d that were written, kept or copied
        self.assertions: dict[str, Assertion] = {}
        self.scopes, self.incomplete, self.at = [], [], Token()     # at: what is being read

    def demand(self, met: object, otherwise: str) -> None:
        """Raises Mistake with the place, unless something is true of what is being read."""
        if not met:
            raise Mistake(f"line {self.at.line}, token {self.at[:60]!r}: {otherwise}")

    def tokens(self, text: str) -> Iterator[Token]:
        """Every Token outside comments."""
        opened = None
        for number, line in enumerate(text.split("\n"), 1):
            for word in [*ILLEGAL.findall(line)[:1], *line.split()]:
                self.at = Token(word)
                self.at.line = number
                self.demand(not ILLEGAL.match(word), "not a printable ASCII character")
                if opened and word != "$)":
                    self.demand("$(" not in word and "$)" not in word, "comments do not nest")
                elif opened:
                    opened = None
                elif word == "$(":
                    opened = self.at
                else:
                    yield self.at
        self.at = opened or self.at
        self.demand(not opened, "this comment is not closed")

    def read(self, text: str, max_work: int = MAX_WORK) -> "Database":
        """Reads and verifies a text. Raises Mistake at the first mistake."""
        self.source, self.max_work, label = self.tokens(text), max_work, ""
        for self.at in self.source:
            word = self.at
            if not word.startswith("$"):
                self.demand(LABEL.fullmatch(word) and not label, "a keyword or one label before it is due")
                self.demand_unused("label", self.former)
                self.labels.add(word)
                label = word
                continue
            self.demand(word in KEYWORDS, "no such keyword, or not here; $[ is refused")
            self.demand(bool(label) == (word in AFTER_LABEL), f"not after {label}" if label else "no label")
            if word == "${":
                self.open_block()
            elif word == "$}":
                self.close_block()
            elif word == "$p":
                self.state(label, self.expression("$="), self.until("$."))
            elif word == "$a":
                self.state(label, self.expression("$."))
            elif word == "$e":
                self.hypotheses.append(Hypothesis(label, False, self.expression("$.")))
            else:
                self.declare(word, label, self.until("$."))
            label = ""
        self.demand(not label and not self.scopes, "the file ends inside a block or a statement")
        return self

    def open_block(self) -> None:
        """Remembers what is in scope now."""
        self.count_pairs(len(self.distinct))
        self.demand(len(self.scopes) < 1000, "too many blocks inside each other")
        self.scopes.append(Scope(dict(self.variables), len(self.hypotheses), set(self.distinct)))

    def close_block(self) -> None:
        """Forgets what the block has brought into scope, but for its assertions."""
        self.demand(self.scopes, "no block is open here")
        before = self.scopes.pop()
        self.variables = before.variables
        self.distinct = before.distinct
        del self.hypotheses[before.n_hypotheses:]

    def until(self, end: str) -> list[Token]:
        """Returns the tokens before `end`."""
        words = []
        for self.at in self.source:
            if self.at == end:
                return words
            self.demand("$" not in self.at, f"{end} was expected before this")
            words.append(self.at)
        self.demand(False, f"the file ends before {end}")

    def expression(self, end: str) -> tuple[Token, ...]:
        """Returns the symbols before `end`, a constant, then constants and variables that have a type."""
        words = self.until(end)
        self.demand(words, "an expression is missing before this")
        for self.at in words:
            known = self.at in self.constants or self.at is not words[0] and self.variables.get(self.at)
            self.demand(known, "neither a constant nor, behind the first symbol, a variable with a $f")
        return tuple(words)

    def declare(self, word: str, label: str, names: list[Token]) -> None:
        """$c constants, $v variables, $d distinct variables, $f a variable's type."""
        self.demand(names, "symbols are missing before this")
        if word == "$c":
            self.declare_constants(names)
        elif word == "$v":
            self.declare_variables(names)
        self.at = names[-1]
        if word == "$d":
            different = len(names) == len(set(names)) > 1 and self.variables.keys() >= set(names)
            self.demand(different, "a $d names two or more different variables in scope")
            self.count_pairs(len(names) ** 2)
            self.distinct |= set(map(frozenset, itertools.combinations(names, 2)))
        if word == "$f":
            fine = len(names) == 2 and names[0] in self.constants and self.variables.get(names[1]) == ""
            self.demand(fine, "a $f is a constant and a variable in scope that has no type yet")
            self.variables[names[1]] = names[0]
            self.hypotheses.append(Hypothesis(label, True, tuple(names)))

    def declare_constants(self, names: list[Token]) -> None:
        """$c: symbols that mean the same everywhere. What was a variable once can be none of them."""
        for self.at in names:
            self.demand_unused("symbol", self.former)
            self.demand(not self.scopes, "constants are declared outside of blocks")
            self.constants.add(self.at)

    def declare_variables(self, names: list[Token]) -> None:
        """$v: symbols that other symbols may stand for, until the block ends."""
        for self.at in names:
            self.demand_unused("symbol", self.variables)
            self.former.add(self.at)
            self.variables[self.at] = ""        # it has no type yet

    def demand_unused(self, what: str, others: Container[str]) -> None:
        """Raises Mistake where what is being read is a constant, a label or one of the others."""
        for taken in (self.constants, self.labels, others):
            self.demand(self.at not in taken, f"this {what} is in use already")

    def state(self, label: str, expression: tuple, proof: list | None = None) -> None:
        """Adds an axiom, or a theorem, whose proof it checks."""
        used = set(expression)          # symbols of the assertion and of its premises
        for h in self.hypotheses:
            if not h.floating:
                used |= set(h.expression)
        # Mandatory are the premises, and the types of the variables that are used.
        needed = [h for h in self.hypotheses if not h.floating or h.expression[1] in used]
        self.count_pairs(len(self.distinct))
        distinct = frozenset([pair for pair in self.distinct if pair <= used])
        made = Assertion(label, tuple(needed), expression, distinct, tuple(proof or ()))
        if "?" in "".join(made.proof):  # the sign of a step that is still to be found
            self.incomplete.append(label)
        elif proof is not None:
            try:
                self.check(made)
            except Mistake as error:
                raise Mistake(f"{error} (in the proof of {label})") from None
        self.assertions[label] = made

    def count_pairs(self, n: int) -> None:
        """Counts pairs of distinct variables as work: n variables in a $d are n * n / 2 of them."""
        self.n_pairs += n
        self.demand(self.n_pairs <= self.max_work, "too many pairs of distinct variables")

    def steps(self, theorem: Assertion) -> Iterator[str | int]:
        """Yields the steps of a proof, normal or compressed: labels (not looked up), SAVE, numbers of saved
        ones."""
        proof = theorem.proof
        if proof[:1] != ("(",):
            for self.at in proof:
                yield self.at
            return
        self.at, end = proof[0], proof.index(")") if ")" in proof else 0
        known = [*(h.label for h in theorem.hypotheses), *proof[1:end]]     # what a number may mean
        self.demand(end and len(set(known)) == len(known), "labels end with ), each once, none mandatory")
        n_saved, number, after_step = 0, 0, False
        for self.at in proof[end + 1:]:
            for letter in self.at:
                self.demand("A" <= letter <= "Z", "a compressed proof consists of the letters A to Z")
                if letter == "Z":
                    self.demand(after_step, "Z follows no step")
                    known.append(n_saved)
                    n_saved, after_step = n_saved + 1, False
                    yield SAVE
                    continue
                # A number is digits of base 5 (U to Y), the last one of base 20 (A to T).
                after_step = letter <= "T"
                if after_step:
                    number = 20 * number + ord(letter) - ord("A")
                else:
                    number = 5 * number + ord(letter) - ord("T")
                self.demand(number < len(known), "a number beyond the labels and what is saved")
                if after_step:
                    yield known[number]
                    number = 0
        self.demand(number == 0, "the proof ends inside a number")

    def check(self, theorem: Assertion) -> None:
        """Runs its proof. Raises Mistake if it proves something else or writes over max_work symbols."""
        stack, n_saved = [], 0
        known = {}                      # label of a hypothesis, or number of a saved step -> expression
        for h in self.hypotheses:
            known[h.label] = h.expression
        self.left = self.max_work
        for step in self.steps(theorem):
            self.left -= 1
            self.demand(self.left > 0, TOO_LONG)
            if step == SAVE:
                known[n_saved] = stack[-1]
                n_saved += 1
            elif step in known:
                stack.append(known[step])
            else:
                self.demand(step in self.assertions, f"nothing in scope or proved before is called {step}")
                self.apply(self.assertions[step], stack)
        self.demand(len(stack) == 1, f"the proof leaves {len(stack)} expressions instead of one")
        self.demand(stack[0] == theorem.expression, f"what it proves is {' '.join(stack[0])[:200]}")

    def apply(self, cited: Assertion, stack: list[tuple]) -> None:
        """Puts what an assertion says in the place of its hypotheses on the stack."""
        base, substitution = len(stack) - len(cited.hypotheses), {}
        self.demand(base >= 0, f"{cited.label} needs {len(cited.hypotheses)} expressions, not {len(stack)}")
        for hypothesis, given in zip(cited.hypotheses, stack[base:]):
            if hypothesis.floating:
                substitution[hypothesis.expression[1]] = given[1:]
                fits = given[0] == hypothesis.expression[0]
            else:
                fits = given == self.substitute(hypothesis.expression, substitution)
            self.demand(fits, f"{cited.label}, {hypothesis.label}: not met by {' '.join(given[:50])}")
        for pair in cited.distinct:
            one, other = (self.variables.keys() & set(substitution[variable]) for variable in pair)
            self.left -= len(one) * len(other)
            self.demand(self.left > 0, TOO_LONG)
            pairs = itertools.product(one, other)
            shared = [pair for pair in pairs if frozenset(pair) not in self.distinct]
            self.demand(not shared, f"distinct variables of {cited.label}: {shared[:1]} must not meet")
        stack[base:] = [self.substitute(cited.expression, substitution)]

    def substitute(self, expression: tuple, substitution: dict[str, tuple]) -> tuple:
        """Returns the expression with other symbols in place of its variables."""
        out = []
        for symbol in expression:
            out += substitution[symbol] if symbol in substitution else (symbol,)
            if len(out) > self.left:    # at once: the rest may be a gigabyte
                self.demand(False, TOO_LONG)
        self.left -= len(out)
        return tuple(out)


def main(argv: list[str] | None = None) -> int:
    """Verifies the file that the command line names, and returns the exit code."""
    parser = argparse.ArgumentParser(description="Verify a Metamath database.")
    parser.add_argument("file", metavar="FILE.mm", type=Path)
    path = parser.parse_args(argv).file
    try:
        database = Database().read(path.read_bytes().decode("latin-1"))
    except (OSError, Mistake) as error:
        print(f"{path}: {error}")
        return 1
    print(f"{path}: {len(database.assertions)} assertions, {len(database.incomplete)} with incomplete proofs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
