"""Who erred? Three kinds of exception tell three stories, and only the first two are caught.

1. The user: a flag, a file or a directory is not what it must be. UserError says what to do about it; a
   command prints that one line and exits with 2.
2. The machine: the disk is full, a port is taken. OSError, one line, exit code 1.
3. Everything else is somebody's bug, perhaps in a reward that was written a minute ago. Nothing catches it:
   the traceback points at the line.

What a model writes is none of these. It is data, and a text that is not what was asked for is Refused.
"""
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What the user gave cannot be used; the text says what would be."""


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; raised where it is safe to stop."""


class Refused(Exception):
    """A model's text, or what came of it, is not what was asked for: "reason" or "reason: details".

    A parser raises it on purpose, and whoever called the parser turns it into a value.
    """

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


def place(function: Callable) -> str:
    """A function's name and where it stands, for the assertion that finds a slip in it."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:                    # a class, or something else that can be called
        return repr(function)
    return f"{function.__qualname__} ({code.co_filename}, line {code.co_firstlineno})"


def number_from(function: Callable, *arguments: object) -> float:
    """What a function returns that somebody may have added, a reward for example: a finite number. One that
    forgets its `return` would else be noticed many steps later, or never."""
    number = function(*arguments)
    is_number = isinstance(number, (int, float)) and math.isfinite(number)
    assert is_number, f"{place(function)} returned {number!r}: it has to return a finite int or float"
    return number


@contextmanager
def explained(sentence: str, errors: type | tuple = Exception) -> Iterator[None]:
    """Around a library's call that reads what the user gave: one UserError for the many types it raises.
    Not around code of ours, whose bugs it would hide."""
    try:
        yield
    except errors as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{sentence} ({kind}{' '.join(str(error).split()):.300})") from None
