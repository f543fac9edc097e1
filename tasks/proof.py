"""Theorems: a teacher states and proves one over a Metamath database; a student proves it again.

This file, metamath.py and theories/ are a corner of their own: nothing else names them but one row of
TASK_TYPES, which imports them when it is asked for (--task-types proof).

A task's message is the statement, its input the teacher's proof, and its program what that proof cites, step
by step. Nothing runs: a proof is data to metamath.py, which bounds its work.
"""
import functools
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random

from common import Refused, UserError, refuse_unless
from sandbox.values import encode
from tasks.base import Proposal, Task, TaskType, text_of, texts_of
from tasks.metamath import Assertion, Database, Mistake
from tasks.programs import Limits, digest
from tasks.prompts import TEMPLATES, Answer, Prompt, Template, fenced, template
from verifier import Job, Verdict

THEORIES = Path(__file__).parent / "theories"
MAX_SYMBOLS = 60            # in an assertion or a hypothesis
MAX_HYPOTHESES = 4          # before a theorem
MAX_PROOF = 4000            # characters of a proof
MAX_WRITTEN = 50_000        # symbols that it may write
MAX_STEPS = 100             # in a teacher's proof, less those that build formulas
N_SHOWN, N_EXAMPLES = 40, 3     # in a prompt: statements, and proofs while a run has few
NAME = "theorem"            # what a theorem is called, because its own name says nothing
# one statement of a text whose tokens stand one space apart: label, keyword, symbols, proof
STATEMENT = re.compile(r"(?:(?<!\S)([^$ ]+) )?\$([a-z]) ([^$]*)(?:\$= ([^$]*))?\$\. ")


METAMATH = """This is a Metamath database. A proof is a list of labels, read from left to right with a \
stack. The label of a variable or of a hypothesis is put on the stack. The label of an assertion takes \
from the stack what its variables stand for, in the order of the database, and then its hypotheses ($e), \
and puts there what it says of them. At the end the theorem alone is left.

""" + fenced("metamath", "{theory}")
TEMPLATES["proof"] = Template(
    opening="```metamath\n",
    propose=METAMATH + """Here are examples of theorems with their proofs:

{examples}

Write one new theorem {topic}, whose proof cites {cited}: hypotheses ($e) if it has any, the statement \
($p) and the proof. The proof cites labels of the database and of its own hypotheses alone. The theorem \
is not in the database, and no single label proves it. Another programmer will see the theorem alone and \
must find a proof. Write one block like those above and nothing else.
""",
    solve=METAMATH + "Here is a theorem with its proof, which stands between `$=` and `$.`:\n\n"
          + fenced("metamath", "{example}") + "Prove this theorem:\n\n"
          + fenced("metamath", "{statement}"),
    give="the proof, its labels alone",
    example="")


# --- what a proof is worth ----------------------------------------------------------------------------------

def proved(database: Database, statement: str, proof: str) -> Assertion:
    """Returns the theorem of a proof, and uses up `database`. Raises Refused if the proof does not hold."""
    try:
        database.read(f"${{ {statement} $= {proof} $. $}}", MAX_WRITTEN)
    except Mistake as mistake:
        raise Refused(f"unproved: {mistake}") from None
    refuse_unless(not database.incomplete, "unproved: the proof is incomplete")
    return database.assertions[NAME]


def review(theory: "Theory", statement: str, proof: str) -> str:
    """Returns the steps of a new theorem's proof as a program, with hypotheses $0, $1, ... Raises Refused."""
    database = theory.fresh()
    theorem = proved(database, statement, proof)
    types = set(theory.variables.values())
    essential = theorem.essential()
    parts = [theorem.expression]
    parts += [h.expression for h in essential]
    # Nothing is its own premise, and that a formula is one ("wff") is no theorem.
    refuse_unless(len(set(parts)) == len(parts), "trivial")
    for part in parts:
        refuse_unless(part[0] not in types, "trivial")
    premises = [h.label for h in essential]
    words = []
    named = {}                          # label of a premise -> $0, $1, ... in the order of first use
    for step in database.steps(theorem):
        if step in premises:
            words.append(named.setdefault(step, f"${len(named)}"))
        elif step in database.assertions and database.assertions[step].expression[0] not in types:
            words.append(step)
    program = " ".join(words)
    refuse_unless(n_cited(program) <= MAX_STEPS, "too_long")
    refuse_unless(n_cited(program) > 1, "trivial")
    refuse_unless(len(named) == len(premises), "unused_hypothesis")
    return program


def n_cited(program: str) -> int:
    """Steps of a task's program that cite an assertion."""
    return sum(not word.startswith("$") for word in program.split())


# --- the database -------------------------------------------------------------------------------------------

class Theory(Database):
    """Holds a database as tasks need it."""

    def fresh(self) -> Database:
        """Returns a copy for one proof, whose hypotheses may have labels that other theorems' have, too."""
        copy = Database()
        copy.constants, copy.former = set(self.constants), set(self.former)
        copy.variables, copy.assertions = dict(self.variables), dict(self.assertions)
        copy.hypotheses = [h for h in self.hypotheses if h.floating]
        copy.labels = {*copy.assertions, *(h.label for h in copy.hypotheses)}
        return copy

    def line(self, assertion: Assertion, proof: str = "") -> str:
        """Returns an assertion on one line, as an axiom or with its proof."""
        statements = [f"$d {' '.join(pair)} $." for pair in sorted(map(sorted, assertion.distinct))]
        for h in assertion.essential():
            statements.append(f"{h.label} $e {' '.join(h.expression)} $.")
        keyword = "$a"
        if proof:
            keyword = "$p"
        statements.append(f"{assertion.label} {keyword} {' '.join(assertion.expression)} {proof}$.")
        if len(statements) == 1:
            return statements[0]
        # In a block, which ends what the $d and $e before the assertion say.
        return f"${{ {' '.join(statements)} $}}"

    def is_type(self, assertion: Assertion) -> bool:
        """Whether an assertion only says what is of a type."""
        return assertion.expression[0] in self.variables.values()

    def examples(self, rng: Random, n: int) -> list[str]:
        """Up to n theorems of the database with their proofs."""
        theorems = [a for a in self.assertions.values() if a.proof]
        drawn = rng.sample(theorems, max(0, min(len(theorems), n)))
        return [self.line(one, proof=f"$= {' '.join(one.proof)} ") for one in drawn]

    def listing(self, rng: Random, cited: str) -> str:
        """What a prompt shows: variables, and assertions; of many, types, what is cited and some others."""
        types = [f"{h.label} $f {' '.join(h.expression)} $." for h in self.hypotheses if h.floating]
        shown = list(self.assertions.values())
        if len(shown) > N_SHOWN:
            shown = self.some(shown, rng, cited.split())
        return "\n".join([*types, *map(self.line, shown)])

    def some(self, assertions: list[Assertion], rng: Random, cited: list[str]) -> list[Assertion]:
        """Returns the axioms that say what is of a type, what is cited, and others up to N_SHOWN in all."""
        wanted, others = [], []
        for a in assertions:
            is_syntax = self.is_type(a) and not a.proof
            if is_syntax or a.label in cited:
                wanted.append(a)
            else:
                others.append(a)
        n_left = max(0, N_SHOWN - len(wanted))
        wanted += rng.sample(others, min(len(others), n_left))
        # In the order of the database, which the prompt says that it has.
        return [a for a in assertions if a in wanted]


@functools.cache
def load(name: str) -> Theory:
    """Returns the theory in a file, by its path or bundled name. Raises UserError with what is wrong."""
    path = Path(name) if Path(name).is_file() else THEORIES / name
    bundled = ", ".join(sorted(file.name for file in THEORIES.glob("*.mm")))
    instead = f"give a Metamath file; bundled are {bundled}"
    try:
        theory = Theory().read(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, Mistake) as error:
        raise UserError(f"theory {name}: {error}; {instead}") from None
    for label, assertion in theory.assertions.items():
        # A copy for one proof (fresh) keeps the $f outside of blocks alone.
        ordered = [h for h in theory.hypotheses if h in assertion.hypotheses]
        ordered += assertion.essential()
        fine = ordered == list(assertion.hypotheses) and label not in (NAME, *theory.incomplete)
        if not fine:
            raise UserError(f"theory {name}: {label} uses a $f in a block, a $e outside, ? in a proof, or "
                            f"this name; {instead}")
    return theory


# --- the task type ------------------------------------------------------------------------------------------

def read_theorem(text: str, theory: str) -> Proposal:
    """Returns the first theorem of a text, with the $e and $d before it. Raises Refused with a reason."""
    try:
        tokens = list(Database().tokens(text))
    except Mistake as mistake:                  # an open comment, a character that is none of Metamath's
        raise Refused(f"syntax: {mistake}") from None
    before = []
    for label, kind, symbols, proof in STATEMENT.findall(" ".join([*tokens, "$. "])):
        if kind in ("d", "e"):
            before.append(f"{label} ${kind} {symbols}$.".strip())
        if kind == "p" and proof.strip():
            longest = max(part.count(" ") for part in (*before, symbols))
            n_premises = sum("$e" in part for part in before)
            is_short = len(proof) <= MAX_PROOF and n_premises <= MAX_HYPOTHESES and longest <= MAX_SYMBOLS
            refuse_unless(is_short, "too_long")
            statement = "\n".join([*before, f"{NAME} $p {symbols.strip()}"])
            return Proposal("proof", theory, (proof.strip(),), statement)
    raise Refused("no_proof")


class Proof(TaskType):
    """Asks for any proof of a statement, given a database. The teacher writes statement and proof."""
    name = "proof"
    tags = ("proof", "metamath")
    topics = ("without hypotheses", "with one hypothesis", "with two hypotheses")
    statements = staticmethod(n_cited)
    structure = staticmethod(digest)

    def ready(self, cfg: object) -> None:
        """Does what `TaskType.ready` does, and raises UserError for a database that cannot be used."""
        super().ready(cfg)
        load(Limits.theory)

    def complexity(self, program: str) -> dict[str, float]:
        """Returns nothing: a proof is no program."""
        return {}

    def from_row(self, row: dict) -> Proposal:
        """Returns the theorem in a line of a file, or the statement and proof of a run's tasks.jsonl."""
        theory = text_of(row, "theory", "prop.mm")
        load(theory)
        if "theorem" in row:
            return read_theorem(text_of(row, "theorem"), theory)
        return read_theorem(f"{text_of(row, 'message')} $= {texts_of(row, 'inputs')[0]} $.", theory)

    def propose(self, prompt_format: str, few_shot: list[Task], rng: Random, limits: Limits) -> Prompt:
        """Prompt with part of the database, and proofs to learn from."""
        asked = template(self.name, prompt_format, "propose")
        theory = load(limits.theory)
        shown = []
        for task in few_shot:
            if task.kind == self.name:
                shown.append(f"{task.message} $= {task.inputs[0]} $.")
        shown += theory.examples(rng, N_EXAMPLES - len(shown))
        labels = [a.label for a in theory.assertions.values() if not theory.is_type(a)]
        cited = rng.choice(labels)
        examples = "\n".join([f"```metamath\n{text}\n```" for text in shown])
        return asked.filled(theory=theory.listing(rng, cited), cited=cited, topic=rng.choice(self.topics),
                            examples=examples)

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Returns the theorem of the first block that has a proof."""
        bodies = [body for _, body in written.blocks if "$=" in body]
        refuse_unless(bodies, "no_proof")
        return read_theorem(bodies[0], limits.theory)

    def check(self, proposal: Proposal, limits: Limits) -> None:
        """Raises Refused if the theorem is of another database, or could end a student's prompt."""
        refuse_unless(proposal.program == limits.theory, "other_theory")
        refuse_unless(not limits.control.search(proposal.message + proposal.inputs[0]), "control_text")

    def key(self, proposal: Proposal, dedupe: str) -> str:
        """Returns a hash of the statement. Names of variables, labels and the order of hypotheses do not
        count."""
        if dedupe == "exact":
            return digest(proposal.message)
        statements = STATEMENT.findall(proposal.message.replace("\n", " ") + " $. ")
        *premises, last = [[*symbols.split(), "$."] for _, kind, symbols, _ in statements if kind != "d"]
        variables = load(proposal.program).variables
        renamed = []
        # At most 24 orders of MAX_HYPOTHESES premises; the first in the alphabet stands for them all.
        for order in itertools.permutations(premises):
            renamed.append(anonymous(itertools.chain(last, *order), variables))
        return digest(min(renamed))

    def job(self, proposal: Proposal) -> Job:
        """Nothing runs."""
        return Job("", ())

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Returns the task whose program is the proof that holds."""
        program = review(load(proposal.program), proposal.message, proposal.inputs[0])
        return Task(self.name, program, proposal.inputs, (encode(proposal.message),), proposal.message, key)

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """What a template may say of a task. The draws are the task's own, so that all students see the same
        part of the database."""
        theory = load(limits.theory)
        rng = Random(task.key)
        return dict(theory=theory.listing(rng, task.inputs[0]), example="\n".join(theory.examples(rng, 1)),
                    statement=f"{task.message} $.", tag=self.tags[0])

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the labels of a proof, which may stand between $= and $."""
        try:
            words = list(Database().tokens(block))
        except Mistake as mistake:
            raise Refused(f"syntax: {mistake}") from None
        if "$=" in words:
            words = words[words.index("$=") + 1:]
        if "$." in words:
            words = words[:words.index("$.")]
        proof = " ".join(words)
        # With a keyword in it, a text could declare an axiom of its own.
        refuse_unless(proof and "$" not in proof and len(proof) <= MAX_PROOF, "no_proof")
        return proof

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Checks the proof, in process, under its bound on work."""
        try:
            proved(load(limits.theory).fresh(), task.message, answer)
        except Refused:
            return "wrong"
        return "correct"


def anonymous(words: Iterable[str], variables: dict[str, str]) -> str:
    """Symbols with their variables named by type and order of first use."""
    names, text = {}, []
    for word in words:
        if variables.get(word):
            word = names.setdefault(word, f"{variables[word]}{len(names)}")
        text.append(word)
    return " ".join(text)


PROOF = Proof()
