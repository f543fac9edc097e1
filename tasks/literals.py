"""How a model's text is read: blocks between fences, and literals, which are parsed and never evaluated.

A value is what Python reads: "1, 2" is a tuple. Arguments stand between the brackets of a call, "2, 3", perhaps with the
call, "f(2, 3)". Everything else is Refused.
"""
import ast
import re

from common import Refused, refuse_unless
from sandbox.parsing import literals, parse, unparse

# three or more backticks or tildes at the beginning of a line, perhaps indented; a block may be cut off by the end
FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\1|\Z)", re.M | re.S)
ALIASES = {"py": "python", "python3": "python"}
Blocks = list[tuple[str, str]]                   # (tag, body) of each, in order


def read_blocks(text: str) -> Blocks:
    """Fenced blocks as (language or "", body), in order; without those that are empty."""
    blocks = []
    for _, language, body in FENCE.findall(text.replace("\r\n", "\n")):
        if body.strip():
            blocks.append((ALIASES.get(language.lower(), language.lower()), body.rstrip("\n")))
    return blocks


def bare(text: str) -> str:
    """A text without white space and the marks of inline code around it."""
    return text.strip().strip("`").strip()


def value_text(text: str) -> str:
    """The literal that a text is, as Python prints it. Raises Refused unless it is one."""
    match parse(bare(text)).body:
        case [ast.Expr(value)]:
            literals([value])
            return unparse(value)
    raise Refused("not_literal")


def canonical_arguments(text: str) -> str:
    """The arguments that a text states, as Python prints them. Raises Refused where it states none."""
    text = bare(text)
    call = text if re.match(r"f\s*\(", text) else f"f({text}\n)"        # the line feed ends a comment
    match parse(call).body:
        case [ast.Expr(ast.Call(ast.Name("f"), args, []))]:
            literals(args)
            return ", ".join(map(unparse, args))
    raise Refused("not_literal")


def arguments_text(text: str, tidy: bool) -> str:
    """The arguments that a text states, tidied or as written; the text itself where it states none, for check_input
    names what is wrong with it."""
    try:
        canonical = canonical_arguments(text)
    except Refused:
        return text.strip()
    return canonical if tidy or bare(text).startswith("f") else text.strip()


def stated_inputs(body: str) -> dict[str, str]:
    """The inputs that a block states, one in each line, else one in the block: as Python prints them -> as written."""
    stated = {}
    for line in [*body.split("\n"), *([body] if "\n" in body else [])]:
        try:
            stated.setdefault(canonical_arguments(line), line.strip())
        except Refused:
            continue
    return stated or {body.strip(): body.strip()}
