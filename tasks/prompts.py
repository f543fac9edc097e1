"""Holds the ways of talking to a model: every word that it is shown, and how its text is cut into blocks.

A task type is one row of TEMPLATES. A prompt format is one row of FORMATS: what it makes of a template,
how the answer opens, and the splitter that turns text into (tag, body) blocks. `micro` is the compact
protocol of the bundled base (micro/data.py writes the same), `chat` uses the tokenizer's own chat template,
`direct` is chat whose students answer at once (small models lose themselves in their reasoning), `base` puts
chat's words into the R1 think/answer envelope for models without chat training. Where a student is to think
first (chat, base), solved tasks stand before its own: small models repeat a form that they have seen, and
copy or pass over one that is described.
"""
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from common import UserError
from tasks.literals import Blocks, read_blocks


def fenced(tag: str, body: str) -> str:
    """Returns a block of Markdown."""
    return f"```{tag}\n{body}\n```\n"


PROGRAM = fenced("python", "{program}")
INPUT = fenced("input", "{input}")
OUTPUT = fenced("output", "{output}")
PAIR = INPUT + OUTPUT


@dataclass(frozen=True)
class Solved:
    """Holds a task with its solution, as a student is to write it. The thoughts are sentences, and short: an
    answer becomes as long as those that it has seen, and traces line by line led a model of 0.5B into loops.
    After one solved task it ended without its block more often than not; so there are two."""
    fields: dict[str, str]                  # what the template says of the task, by name
    thoughts: str
    answer: str                             # what stands in its block


@dataclass(frozen=True)
class Template:
    """Holds what is said of one task type; what is left "" is not served. {names} are those that
    `TaskType.propose` and `TaskType.fields` fill in. FINAL or AT_ONCE follows `solve`."""
    propose: str = ""                       # what a teacher is asked in chat, direct and base
    opening: str = ""                       # of its answer in chat and direct
    example: str = INPUT + PROGRAM          # how a task is shown to it
    solve: str = ""                         # what a student is asked in chat, direct and base
    give: str = "the answer"                # what to give
    solved: tuple[Solved, ...] = ()         # what a student that thinks is shown before its own task
    micro: tuple[str, str] = ("", "")       # what teacher and student are asked in the compact protocol


WRITE_TASK = """Here are examples of an input and a short Python function that takes it:

{examples}
Write one new example about {topic}: first an input, then a new function `f` that takes exactly this input, \
does something different from the examples, and returns a value. Another programmer will see {seen} by \
thinking, so let the function take several steps. The input is only the arguments, as they would stand \
between the brackets of a call. The function is short and deterministic, and does not print. Write two \
blocks like those above and nothing else.
"""
EXAMPLE = "Example about {topic}:\n\n```input\n{opening}"
# Tasks of code that are shown solved.
LONG_WORDS = """def f(words, n):
    kept = []
    for word in words:
        if len(word) > n:
            kept.append(word.upper())
    return kept[::-1]"""
VOWELS = """def f(text):
    count = 0
    for c in text:
        if c in 'aeiou':
            count += 1
    return {'vowels': count}"""
TEMPLATES = {
    "code_o": Template(
        micro=("propose out {type}\n", "out\n{program}\nf({input})\n"), opening=EXAMPLE,
        propose=WRITE_TASK.replace("{seen}", "both and must find the output"),
        solve=f"What does this Python function return for this input?\n\n{PROGRAM}{INPUT}",
        give="the returned value as one Python literal",
        solved=(
            Solved(dict(program=VOWELS, input="'code'"),
                   "The text 'code' has two vowels, 'o' and 'e'.",
                   "{'vowels': 2}"),
            Solved(dict(program=LONG_WORDS, input="['pear', 'fig', 'apple'], 3"),
                   "Longer than 3 are 'pear' and 'apple'. In upper case and reversed they are 'APPLE' and "
                   "'PEAR'.",
                   "['APPLE', 'PEAR']"))),
    "code_i": Template(
        micro=("propose inp {type}\n", "inp\n{program}\n{output}\n"), opening=EXAMPLE,
        propose=WRITE_TASK.replace("{seen}", "the function and its output and must find the input"),
        solve=f"Find an input for which this Python function returns this output.\n\n{PROGRAM}{OUTPUT}",
        give="the arguments as literals, as they would stand between the brackets of a call",
        solved=(
            Solved(dict(program=VOWELS, output="{'vowels': 2}"),
                   "A text with two vowels is needed, and 'code' has 'o' and 'e'.",
                   "'code'"),
            Solved(dict(program=LONG_WORDS, output="['APPLE', 'PEAR']"),
                   "The words are reversed and in upper case, so 'pear' comes first, then 'apple', and both "
                   "are longer than 3.",
                   "['pear', 'apple'], 3"))),
    "code_f": Template(
        micro=("args\n{program}\n", "fun\n{pairs}"), opening="```python\nf({input})\nf(",
        propose=f"Here is a Python function:\n\n{PROGRAM}" + """\
Write {n_inputs} calls of `f` with different literal arguments, one per line, that together show everything \
that the function does: usual and unusual cases. Then write a message: one sentence that hints at what the \
function does, without giving its code. Another programmer will see some of the calls, their results and \
the message, and must write the function. Answer with a block of calls, named `python`, and a block with \
the message, named `message`.
""",
        solve="Find the Python function `f` that gives these outputs for these inputs.\n\n{pairs}\n{hint}",
        give="the whole function `f`",
        solved=(
            Solved(dict(pairs=PAIR.format(input="[3, 1]", output="[2, 6]")
                        + PAIR.format(input="[5, 4, 5]", output="[8, 10, 10]"), hint=""),
                   "Every number is doubled, and the results are sorted.",
                   "def f(numbers):\n    return sorted(2 * n for n in numbers)"),
            Solved(dict(pairs=PAIR.format(input="'red green'", output="['green', 'red']")
                        + PAIR.format(input="'a b c'", output="['c', 'b', 'a']"), hint=""),
                   "The words of the text come out as a list, the last one first.",
                   "def f(text):\n    return text.split()[::-1]"))),
    "math": Template(
        micro=("propose math\n", "math\n{question}\n"), opening="```question\n",
        example=fenced("question", "{question}") + PROGRAM,
        propose="""Here are examples of a word problem and a Python function that computes its answer:

{examples}
Write one new word problem about {topic} whose answer is one number, and a function `f` without \
arguments that computes this number from those in the problem. Another programmer will see the problem \
alone and must find the number by thinking, so let it say everything that is needed, take several steps, \
and not give the answer away. Write two blocks like those above and nothing else.
""",
        solve="{question}\n\n", give="the number alone",
        solved=(
            Solved(dict(question="Ann buys 3 boxes of 6 pens. She gives 4 pens away. How many has she left?"),
                   "She buys 3 * 6 = 18 pens and keeps 18 - 4 = 14 of them.",
                   "14"),
            Solved(dict(question="A train goes 40 km in an hour. How far does it go in 3 hours?"),
                   "In 3 hours it goes 3 * 40 = 120 km.",
                   "120"))),
    "logic": Template(
        micro=("propose logic\n", "logic\n{constraints}\n"), opening="```constraints\n",
        example=fenced("constraints", "{constraints}"),
        propose="""Here are examples of puzzles. The lines of a puzzle are all true, and its variables are \
True or False:

{examples}
Write one new puzzle about {topic}. A line is made of variables, `and`, `or`, `not`, `==`, `!=` and \
brackets. Exactly one assignment of True and False to the variables must make all lines true, and no line \
alone should give it away: another programmer must find it by thinking. Write one block like those above \
and nothing else.
""",
        solve="These lines are all true. Each variable is True or False, and exactly one assignment fits.\n\n"
              + fenced("constraints", "{constraints}"),
        give="each variable as `name = True` or `name = False`, one a line",
        solved=(
            Solved(dict(constraints="a or b\nnot a\nb == c"),
                   "a is False. One of a and b is True, so b is, and c equals b.",
                   "a = False\nb = True\nc = True"),
            Solved(dict(constraints="p != q\nq and r"),
                   "q and r are both True, and p differs from q, so it is False.",
                   "p = False\nq = True\nr = True")))}
# No form of the block: whatever stands in its place, such as VALUE, is copied.
FINAL = "{t.solve}Think in a few short lines. Then write a block named `{{tag}}` with {t.give}.\n"
AT_ONCE = "{t.solve}Give {t.give}.\n"
ENVELOPE = """A conversation between User and Assistant. The user asks a question, and the Assistant solves \
it. The assistant first thinks about the reasoning process in the mind and then provides the user with the \
answer. The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, \
respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.
"""
TURN = "User: {}\nAssistant: {}"
THINK, THOUGHT = "<think>", "</think>"      # tags around a model's thinking
# What the next task is about -> how its input begins: without either, a small model repeats the examples.
TOPICS = {
    "a list of numbers": "[", "a list of words": "['", "a sentence": "'", "a dictionary of counts": "{'",
    "a list of pairs": "[(", "a table of numbers": "[[", "the digits of a number": "",
    "arithmetic on two numbers": "", "a list and a number": "[", "two words": "'", "searching in a text": "'",
    "a number sequence": "", "sorting": "[", "counting": "[", "grouping": "[", "filtering": "["}
MATH_TOPICS = (
    "shopping", "a journey", "work and wages", "cooking", "ages", "a farm", "sharing", "money", "areas",
    "a school", "percentages", "speed and time")
LOGIC_TOPICS = (
    "three variables, called a, b, c", "three variables, called ann, bob, cid",
    "four variables, called a, b, c, d", "four variables, called red, blue, green, gold",
    "five variables, called p, q, r, s, t")


@dataclass(frozen=True)
class Prompt:
    """Holds what the model is asked. `prefix` is the opening of its own answer, `system` a chat's first
    message, `turns` what was asked and answered before, `closing` a text that ends its answer (else the
    format's)."""
    user: str
    prefix: str = ""
    system: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    closing: str = ""

    def filled(self, **fields: object) -> "Prompt":
        """Returns the prompt with these in place of its {names}."""
        return replace(self, user=self.user.format(**fields), prefix=self.prefix.format(**fields))


# Blocks named for a part of a task: where another part was asked for, they are no answer.
PARTS = {"input", "output", "message", "question", "constraints", "boxed"}
BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")      # how LaTeX states a result
MICRO_TAGS = {"=": "answer", "<": "trace", ">": "trace", "?": "question"}


def micro_blocks(text: str) -> Blocks:
    """Returns the blocks of the compact protocol: "f(...)" lines are inputs, a "=..." line an answer, "<" and
    ">" lines a trace, "?" lines together a question, the rest a program."""
    blocks = []
    for line in text.strip("\n").split("\n"):
        tag = MICRO_TAGS.get(line[:1], "python")
        body = line
        if tag in ("answer", "trace"):
            body = line[1:]
        if line.startswith("f(") and line.endswith(")"):
            tag = "input"
            body = line[2:-1]
        # These two have several lines, which stand together.
        if blocks and blocks[-1][0] == tag and tag in ("python", "question"):
            body = f"{blocks.pop()[1]}\n{body}"
        blocks.append((tag, body))
    # An empty line between two blocks is no program.
    return [block for block in blocks if block != ("python", "")]


def fenced_blocks(text: str) -> Blocks:
    """Returns fenced blocks as (name or "", body), in order, then the boxes of LaTeX as ("boxed", body). If
    there are answer tags, only what stands between the last ones counts; without fences it is one ("answer",
    body)."""
    tagged = "<answer>" in text
    if tagged:                          # the last of them: a model may correct itself
        text = text.rpartition("<answer>")[2].partition("</answer>")[0]
    blocks = read_blocks(text)
    if not blocks and tagged and text.strip() and "```" not in text:
        return [("answer", text)]
    return blocks + [("boxed", body) for body in BOXED.findall(text)]


def concluded(text: str, prompt_format: str) -> str:
    """Returns what an answer, its opening included, says once it has thought; "" if it was cut off while
    thinking, because whatever stands there is a guess. In the envelope (base, which eval calls envelope) an
    answer tag ends the thinking, too, and what follows the first answer is a base model's talk with
    itself."""
    if prompt_format == "micro":        # its traces have no tags
        return text
    enveloped = prompt_format in ("base", "envelope")
    if enveloped:
        first, tag, _ = text.partition("</answer>")
        text = first + tag
    text = text.rpartition(THOUGHT)[2]
    _, is_open, thought = text.rpartition(THINK)
    if is_open and not (enveloped and "<answer>" in thought):
        return ""                       # cut off while it thought
    return text


def envelope_blocks(text: str) -> Blocks:
    """Returns `fenced_blocks` for base models, none without an answer tag."""
    if "<answer>" not in text:
        return []
    return fenced_blocks(text)


@dataclass(frozen=True)
class PromptFormat:
    """Holds one way of talking to a model."""
    propose: Prompt                         # what a teacher is asked, of a Template t
    solve: Prompt                           # the same of a student
    blocks: Callable[[str], Blocks]
    pair: str = PAIR
    strict: bool = False                    # the protocol's blocks and nothing else; others pass over chatter
    tidy: bool = True                       # store programs without comments, docstrings and annotations
    closing: str = ""                       # text that ends an answer where the model may have no end token
    thinking: bool = True                   # enable_thinking of a chat template that has the switch (Qwen3's)
    solution: str = ""                      # how tasks are shown solved; "" = none are


FORMATS = {
    "micro": PromptFormat(Prompt("{t.micro[0]}"), Prompt("{t.micro[1]}"), micro_blocks,
                          "f({input})={output}\n", strict=True, tidy=False),
    "chat": PromptFormat(Prompt("{t.propose}", "{t.opening}"), Prompt(FINAL), fenced_blocks,
                         solution="Steps:\n{thoughts}\n\nAnswer:\n```{tag}\n{answer}\n```"),
    # Its answer ends with its fence, alone in a line. Nothing pays for an end, so students come to explain
    # behind it.
    "direct": PromptFormat(Prompt("{t.propose}", "{t.opening}"),
                           Prompt(AT_ONCE, "```{{tag}}\n", closing="\n```\n"), fenced_blocks, thinking=False),
    "base": PromptFormat(Prompt("{t.propose}", "<think>"), Prompt(FINAL, "<think>"), envelope_blocks,
                         closing="</answer>",
                         solution="<think> {thoughts} </think> <answer>\n```{tag}\n{answer}\n```\n</answer>")}


class Answer:
    """Holds what a model wrote, its opening included, as its prompt format cuts it."""

    def __init__(self, text: str, prompt_format: str):
        self.text = text
        self.form = FORMATS[prompt_format]
        self.blocks = self.form.blocks(concluded(text, prompt_format))

    def bodies(self, *tags: str) -> list[str]:
        """Returns the bodies of the blocks under one of these tags."""
        return [body for tag, body in self.blocks if tag in tags]

    def bodies_or_first(self, tag: str) -> list[str]:
        """Returns the bodies of the blocks under a tag. Without any it returns that of the first block, if it
        is nameless or Python's."""
        named = self.bodies(tag)
        if not named and self.blocks and self.blocks[0][0] in ("", "python"):
            return [self.blocks[0][1]]
        return named

    def admits(self, *tags: str) -> bool:
        """Returns whether the blocks may stand for those of these tags. A strict format wants exactly
        these."""
        if not self.form.strict:
            return True
        return [tag for tag, _ in self.blocks] == list(tags)

    def candidates(self, tags: tuple[str, ...]) -> list[str]:
        """Returns the bodies of the blocks that may hold a student's answer, the likeliest last. Blocks under
        the first of these tags, which was asked for, are likelier than those under the others, and these than
        blocks that are not named for another part of a task. In the compact protocol the last block alone may
        be the answer, and a program is all that there is."""
        if self.form.strict:
            if "python" in tags:
                return self.bodies("python") if self.admits("python") else []
            return [body for tag, body in self.blocks[-1:] if tag == "answer"]
        others = [body for tag, body in self.blocks if tag not in PARTS.union(tags)]
        return others + self.bodies(*tags[1:]) + self.bodies(tags[0])


def template(kind: str, prompt_format: str, phase: str) -> Prompt:
    """Returns what is asked in "propose" or "solve", its {names} not filled in. Raises UserError if nothing
    is."""
    asked = getattr(FORMATS[prompt_format], phase)
    # A new type without a template is asked nothing, which is said below.
    prompt = asked.filled(t=TEMPLATES.get(kind, Template()))
    if not prompt.user:
        raise UserError(f"--task-types {kind}: prompts.py has no template of it for the {prompt_format} "
                         f"prompt format ({phase})")
    return prompt


def reasoning(text: str, prompt_format: str) -> str:
    """Returns the reasoning in an answer, its opening included; "" if it answers at once."""
    if prompt_format == "micro":
        return "\n".join(Answer(text, prompt_format).bodies("trace"))
    if prompt_format == "base":
        return text.partition("<think>")[2].partition("</think>")[0].strip()
    answer = concluded(text, prompt_format)
    thought = text.removesuffix(answer)         # may hold fences, too
    return re.sub("</?think>", "", thought + answer.partition("```")[0]).strip()


# The brackets of a container's literal. A frozenset has none of its own: {1} == frozenset({1}) counts.
BRACKETS = {list: "[]", tuple: "()", dict: "{}", set: "{}", frozenset: "{}"}


def show(value: object, compact: bool = False) -> str:
    """Returns a plain value as Python's literal. Sets are sorted, as their order depends on the hash seed."""
    if type(value) not in BRACKETS:
        return repr(value)
    if value == set():
        return "set()"                  # {} is a dictionary
    comma, colon = (",", ":") if compact else (", ", ": ")
    items = []
    for item in value:
        text = show(item, compact)
        if isinstance(value, dict):
            text += colon + show(value[item], compact)
        items.append(text)
    if isinstance(value, (set, frozenset)):
        items.sort()
    inside = comma.join(items)
    if isinstance(value, tuple) and len(value) == 1:
        inside += ","                   # a comma alone makes it a tuple
    opening, closing = BRACKETS[type(value)]
    return opening + inside + closing
