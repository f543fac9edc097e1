"""Reads a model's text: blocks between fences, and literals, which are parsed and never evaluated.

A value is what Python reads, so "1, 2" is a tuple. Arguments stand between the brackets of a call, as "2, 3"
or with the call, "f(2, 3)". Everything else is Refused."""
import ast
import re

from common import Refused
from sandbox.parsing import arguments_of, literal, parse, unparse

# An opening fence: what stands before it (a quotation, a list), its run, its name. Words behind the name say
# nothing.
OPENING = re.compile(r"([ \t>]*(?:[-*+][ \t]+)?)(`{3,}|~{3,})[ \t]*\{?\.?(\w*)[^`]*")
ALIASES = {"py": "python", "python3": "python"}
Blocks = list[tuple[str, str]]                   # (name, body) of each, in order


def read_blocks(text: str) -> Blocks:
    """Returns the fenced blocks of a text as (name or "", body), in order, without those that are empty.

    A fence in a docstring or behind a comment ends nothing. A block that nothing closes ends with the
    text."""
    blocks = []
    fence = ""                                  # of the block that is open
    for line in text.replace("\r\n", "\n").split("\n"):
        if not fence:
            opening = OPENING.fullmatch(line)
            if opening:
                margin, fence, name = opening.groups()
                blocks.append((name.lower(), []))
            continue
        # In a quotation or in a list every line begins with what stands before the fence.
        line = re.sub(f"^[ \\t>]{{0,{len(margin)}}}", "", line)
        # A closing fence stands alone, and is at least as long as the opening one.
        if line.startswith(fence) and set(line.rstrip()) == {fence[0]}:
            fence = ""
        else:
            blocks[-1][1].append(line)
    found = []
    for name, lines in blocks:
        body = "\n".join(lines).rstrip("\n")
        if body.strip():
            found.append((ALIASES.get(name, name), body))
    return found


def bare(text: str) -> str:
    """Returns a text without the white space and the marks of inline code around it."""
    return text.strip().strip("`").strip()


def value_of(text: str) -> object:
    """Returns the value of the literal that a text is. Raises Refused unless it is one."""
    match parse(bare(text)).body:
        case [ast.Expr(node)]:
            return literal(node)
    raise Refused("not_literal")


def canonical_arguments(text: str) -> str:
    """Returns the arguments that a text states, as Python prints them. Raises Refused if it states none."""
    text = bare(text)
    call = text if re.match(r"f\s*\(", text) else f"f({text}\n)"        # the line feed ends a comment
    given = arguments_of(call)
    for node in given:
        literal(node)                       # refuses what is none
    return ", ".join(map(unparse, given))


def arguments_text(text: str, tidy: bool) -> str:
    """Returns the arguments that a text states, tidied or as written. A text that states none is returned as
    it is: check_input names what is wrong with it."""
    try:
        canonical = canonical_arguments(text)
    except Refused:
        return text.strip()
    if tidy or bare(text).startswith("f"):
        return canonical
    return text.strip()


def stated_inputs(body: str) -> dict[str, str]:
    """Returns the inputs that a block states, one in each line, or one in the whole block. Maps an input as
    Python prints it to the text as written."""
    parts = body.split("\n")
    if len(parts) > 1:
        parts.append(body)
    stated = {}
    for part in parts:
        try:
            stated.setdefault(canonical_arguments(part), part.strip())
        except Refused:
            continue
    return stated or {body.strip(): body.strip()}
