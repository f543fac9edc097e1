"""What every file may use: who errs, how a command ends, files of JSON. It imports no torch.

Only two kinds of mistake are caught: the user's (UserError, whose text says what to do; exit code 2) and the
machine's (OSError; exit code 1). Everything else is somebody's bug, perhaps in a reward that was written a
minute ago, and stays a traceback that points at the line. What a model writes is none of these: a text that
is not what was asked for is Refused.
"""
import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


class UserError(Exception):
    """Says that what the user gave cannot be used, and what to give instead."""
    code = 2


class Stopped(Exception):
    """Says that a run has ended before its last step and was saved: the text tells why, `code` is the exit
    code."""

    def __init__(self, text: str, code: int):
        super().__init__(text)
        self.code = code


class Refused(Exception):
    """Says that a model's text is not what was asked for: "reason" or "reason: details". Whoever called the
    parser turns it into a value."""

    @property
    def reason(self) -> str:
        """Returns the text without its details."""
        return str(self).partition(":")[0]


def refuse_unless(met: object, reason: str) -> None:
    """Raises Refused for this reason unless a model's text meets a condition."""
    if not met:
        raise Refused(reason)


# --- commands and files -------------------------------------------------------------------------------------

def parser_of(name: str, doc: str) -> argparse.ArgumentParser:
    """Returns a parser whose help is a file's docstring, in its own lines."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=doc, formatter_class=form)


def leave(name: str, main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with main's exit code, or prints one line that says what was wrong. A bug stays a
    traceback."""
    try:
        sys.exit(main())
    except (UserError, Stopped) as error:
        said, code = error, error.code
    except OSError as error:
        said, code = error, 1
    except KeyboardInterrupt:
        said, code = "interrupted", 130
    # of several processes one says that a run has stopped
    if code < 3 or os.environ.get("RANK", "0") == "0":
        print(f"{name}: {said}", file=sys.stderr)
    sys.exit(code)


@contextmanager
def readable(otherwise: str, errors: type | tuple = Exception) -> Iterator[None]:
    """Turns whatever a library raises while it reads a user's file into one UserError. Do not put our own
    code inside: it would hide our bugs."""
    try:
        yield
    except errors as error:
        words = " ".join(str(error).split())
        raise UserError(f"{otherwise} ({type(error).__name__}: {words:.300})") from None


def visible(words: str) -> str:
    """Returns a text in which characters that are not printable are written as their codes."""
    shown = ""
    for c in words:
        shown += c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>"
    return shown


def json_object(text: str | bytes) -> dict:
    """Returns the JSON object that a text is. Raises UserError if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:       # ValueError: also bytes that are no UTF-8
        raise UserError(f"{type(error).__name__}: {error}") from None
    if not isinstance(value, dict):
        raise UserError("it is no JSON object")
    return value


def read_log(path: Path) -> Iterator[dict]:
    """Yields the objects of a file of JSON lines. A last line that a kill cut off is left out. Raises
    UserError, with the path, for another line that is no object."""
    with open(path, "rb") as file, readable(f"{path} is damaged: restore it"):
        for line in file:
            if line.endswith(b"\n"):
                yield json_object(line)


def wilson(right: float, n: int) -> tuple[float, float]:
    """Returns the 95% interval of a share, right of n (Wilson 1927)."""
    z2 = 1.96 ** 2
    middle = right + z2 / 2
    half = math.sqrt(z2 * (right * (n - right) / n + z2 / 4))
    return (middle - half) / (n + z2), (middle + half) / (n + z2)
