"""How every command ends: its exit code, one line, and a bug's traceback."""
import pytest

from infra import command
from common import Interrupted, UserError
from run import platform


def ended(main, *more: str) -> object:
    """The exit code that a command leaves with."""
    with pytest.raises(SystemExit) as end:
        command.leave("python -m thing", main, *more)
    return end.value.code


def raises(error: BaseException):
    def main() -> None:
        raise error
    return main


@pytest.mark.parametrize("error, code", [(UserError("mend"), 2), (OSError("disk"), 1), (KeyboardInterrupt(), 130), (Interrupted("SIGTERM"), 130)])
def test_what_goes_wrong_is_one_line(error, code, capsys):
    assert ended(raises(error), "; go on") == code
    told = capsys.readouterr().err
    assert told.startswith("python -m thing: ") and told.count("\n") == 1
    assert (str(error) if code < 130 else "interrupted; go on") in told


def test_a_bug_is_a_traceback_and_what_main_returns_is_the_exit_code(capsys):
    with pytest.raises(KeyError):
        command.leave("python -m thing", raises(KeyError("x")))
    assert (ended(lambda: 3), ended(lambda: None)) == (3, None) and not capsys.readouterr().err
    assert platform.Interrupted is Interrupted, "what a run's signals raise is what a command catches"
