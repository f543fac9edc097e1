"""How every command ends, and how files that somebody may have damaged are read."""
import json

import pytest

from common import Refused, Stopped, UserError, leave, read_log, readable


def ended(main) -> object:
    """Returns the exit code that a command leaves with."""
    with pytest.raises(SystemExit) as end:
        leave("thing.py", main)
    return end.value.code


@pytest.mark.parametrize("error, code", [(UserError("mend"), 2), (OSError("disk"), 1), (KeyboardInterrupt("interrupted"), 130),
                                         (Stopped("halted", 3), 3), (Stopped("SIGTERM", 130), 130)], ids=repr)
def test_what_goes_wrong_is_one_line(error, code, capsys, monkeypatch):
    def main() -> None:
        raise error

    assert ended(main) == code
    assert capsys.readouterr().err == f"thing.py: {error}\n"
    monkeypatch.setenv("RANK", "1")                     # of several processes one says that a run has stopped
    assert ended(main) == code and bool(capsys.readouterr().err) == (code < 3)


def test_a_bug_is_a_traceback_and_what_main_returns_is_the_exit_code(capsys):
    with pytest.raises(ZeroDivisionError):
        leave("thing.py", lambda: 1 / 0)
    assert (ended(lambda: 3), ended(lambda: None)) == (3, None) and not capsys.readouterr().err
    for kind in UserError, Refused:                     # no `except ValueError` around a library takes them for its own
        assert kind.__bases__ == (Exception,)


def test_a_log_is_read_line_by_line(tmp_path):
    """No line ends inside a text, a line that a kill cut off is left out, and a damaged one is told with its file."""
    path = tmp_path / "metrics.jsonl"
    given = [dict(step=step, text="\u2028 \r") for step in range(3)]
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in given]
    path.write_bytes(b"".join(lines)[:-5])
    assert list(read_log(path)) == given[:2]
    for damage in b"\n", b"[1]\n", b"{\xff\n", b"[" * 100_000 + b"\n":
        path.write_bytes(lines[0] + damage + lines[1])
        with pytest.raises(UserError, match="metrics.jsonl is damaged: restore it"):
            list(read_log(path))
    with pytest.raises(UserError, match=r"^a file is odd \(KeyError: 'x'\)$"), readable("a file is odd"):
        raise KeyError("x")
