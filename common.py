"""What every file may use: who errs, how a command ends, files of JSON, devices, several processes.

Only two kinds of mistake are caught: the user's (UserError, whose text says what to do; exit code 2) and the machine's
(OSError; exit code 1). Everything else is somebody's bug, perhaps in a reward that was written a minute ago, and stays a
traceback that points at the line. What a model writes is none of these: a text that is not what was asked for is Refused.
"""
import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn



class UserError(Exception):
    """What the user gave cannot be used; the text says what would be."""


class Refused(Exception):
    """A model's text is not what was asked for: "reason" or "reason: details". Whoever called the parser turns
    it into a value."""

    @property
    def reason(self) -> str:
        """The text without its details."""
        return str(self).partition(":")[0]


def demand(met: object, otherwise: str) -> None:
    """Raises UserError with this text unless something is true of what the user gave."""
    if not met:
        raise UserError(otherwise)


def refuse_unless(met: object, reason: str) -> None:
    """Raises Refused for this reason unless something is true of a model's text."""
    if not met:
        raise Refused(reason)


def number_from(function: Callable, *arguments: object) -> float:
    """What a function returns that somebody may have added, a reward for example: a finite number. One that
    forgets its `return` would else be noticed many steps later, or never."""
    number = function(*arguments)
    is_number = isinstance(number, (int, float)) and math.isfinite(number)
    assert is_number, f"{function.__qualname__} returned {number!r}: it has to return a finite number"
    return number


# --- commands and files -------------------------------------------------------------------------------------

def parser_of(name: str, doc: str) -> argparse.ArgumentParser:
    """A parser whose help is a file's docstring, in its own lines."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=doc, formatter_class=form)


def leave(name: str, main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with main's exit code, or with one line that says what was wrong. A bug stays a
    traceback."""
    try:
        sys.exit(main())
    except (UserError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(130)


def visible(words: str) -> str:
    """Returns a text in which characters that are not printable are written as their codes."""
    shown = ""
    for c in words:
        shown += c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>"
    return shown


def json_object(text: str | bytes) -> dict:
    """The JSON object that a text is. Raises UserError where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:       # ValueError: also bytes that are no UTF-8
        raise UserError(f"{type(error).__name__}: {error}") from None
    demand(isinstance(value, dict), "it is no JSON object")
    return value


def read_log(path: Path) -> Iterator[dict]:
    """The objects of a file of JSON lines; a last line that a kill cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json_object(line)
