"""Logs are read by one function: strictly, up to a checkpoint, or with what is damaged left out and counted."""
import json

import pytest

from common import UserError
from common import read_log
from run import RunDir


def test_a_log_is_read_strictly_in_part_or_leniently(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [dict(step=step, text="\u2028 \r") for step in range(3)]     # no line's end inside a line
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    path.write_bytes(b"".join(lines))
    assert list(read_log(path)) == rows == RunDir(tmp_path, writes=False).rows("metrics.jsonl")
    two = len(lines[0] + lines[1])
    assert list(read_log(path, two)) == rows[:2] == RunDir(tmp_path, writes=False).rows("metrics.jsonl", two)
    path.write_bytes(lines[0] + b"\n[1]\n{\xff\n" + b"[" * 100_000 + b"\n" + lines[1] + lines[2][:-5])
    damaged = []
    assert list(read_log(path, damaged=damaged)) == rows[:2] and len(damaged) == 4
    with pytest.raises(UserError, match="no JSON object"):
        list(read_log(path))
    with pytest.raises(UserError, match="metrics.jsonl is damaged or missing .*restore it"):
        RunDir(tmp_path, writes=False).rows("metrics.jsonl")
