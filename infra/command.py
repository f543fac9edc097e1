"""What every command of this project shares: its parser, and how it ends."""
import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from infra.errors import Interrupted, UserError


def parser_of(name: str, doc: str) -> argparse.ArgumentParser:
    """A parser whose help is a file's docstring, in its own lines."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=doc, formatter_class=form)


def leave(
    name: str,
    main: Callable[[], int | None],
    after_interrupt: str = "",          # what a user does then
) -> NoReturn:
    """Ends the process with main's exit code, or with one line that says what was wrong: 2 where the user can
    mend it, 1 for the machine's trouble, 130 after Ctrl-C. A bug stays a traceback."""
    try:
        sys.exit(main())
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, Interrupted):
        if os.environ.get("RANK", "0") == "0":          # of several processes one says it
            print(f"{name}: interrupted{after_interrupt}", file=sys.stderr)
        sys.exit(130)
