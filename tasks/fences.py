"""The blocks between the fences of a Markdown text: the one reader for prompts and for eval.code.

It reads fences as CommonMark does: three or more backticks or tildes, perhaps indented or after the marker of
a list, then the name of a language. The fence's own indentation is taken from the lines of its block. Models
write more than CommonMark allows, so a block is also closed by a fence that opens the next one, by the end of
the text, and by a fence at the end of one of its lines.
"""
import re
from dataclasses import dataclass, field

FENCE = re.compile(r"(?P<before>\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)?)(?P<mark>`{3,}|~{3,})(?P<rest>.*)")
LANGUAGE = re.compile(r"[\s{.]*(\w*)")           # of "python", "Python title=x" and "{.python}"
# What models call a language -> its name here.
ALIASES = {"py": "python", "python3": "python"}


Blocks = list[tuple[str, str]]                   # (tag, body) of each, in order


@dataclass
class Block:
    """A block that is being read. mark: the fence that opened it; indent: the columns before that fence."""
    tag: str
    mark: str
    indent: int
    lines: list[str] = field(default_factory=list)

    def body(self) -> str:
        """Its lines without the fence's indentation, of which a line may have less."""
        cut = []
        for line in self.lines:
            own = len(line) - len(line.lstrip())
            cut.append(line[min(self.indent, own):])
        return "\n".join(cut)


def language(info: str) -> str:
    """The name of the language in what follows a fence, in small letters; "" without one."""
    name = LANGUAGE.match(info)[1].lower()
    return ALIASES.get(name, name)


def on_one_line(rest: str, mark: str) -> tuple[str, str]:
    """Tag and body of a block whose two fences stand on one line, such as ```output [1, 2]```.

    rest: what follows its first fence, which is a mark."""
    inside = rest.rstrip().rstrip(mark[0]).strip()
    word, _, value = inside.partition(" ")
    return (language(word), value) if value and word.isalpha() else ("", inside)


def read_blocks(text: str) -> Blocks:
    """Fenced blocks as (language or "", body), in order; without those that are empty."""
    blocks, current = [], None                  # current: the block that is open
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = FENCE.match(line)
        # One of another kind, or shorter, is part of the block.
        if fence and (not current or fence["mark"].startswith(current.mark)):
            before, mark, rest = fence.groups()
            closes = current and not rest.strip()
            current = None
            if rest.rstrip().endswith(mark[:3]):
                tag, body = on_one_line(rest, mark)
                blocks.append(Block(tag, mark, 0, [body]))
            elif not closes:
                current = Block(language(rest), mark, len(before))
                blocks.append(current)
        elif current and line.rstrip().endswith(current.mark):
            current.lines.append(line.rstrip().removesuffix(current.mark))
            current = None
        elif current:
            current.lines.append(line)
    read = [(block.tag, block.body()) for block in blocks]
    return [(tag, body) for tag, body in read if body.strip()]
