"""Tasks on the terminal: --show prints what is logged, nothing that steers it; run.replay repeats it."""
import io
import json
import re
import sys

import pytest
import torch

import train
from rewards import TEACHER_REWARDS
from run import replay, terminal

ROW = dict(step=3, teacher="T0", kind="code_o", reason="", reward=0.5, id=1, program="def f(x):\n return x",
           inputs=["7"], outputs=["7"], message="", solve_rate=0.5,
           attempts={"S1": ["correct", "wrong", "wrong", "malformed"]},
           answers={"S1": [">7\n=7", "=8", "=8", "?"]})


@pytest.fixture(scope="module")
def run(micro_base, tmp_path_factory):
    """A run of 4 steps with births and checkpoints at 3 and 4; what it printed is in its `said`."""
    printed, stdout = io.StringIO(), sys.stdout
    sys.stdout = printed
    try:
        done = train.main(train.Config(
            base=str(micro_base), out=str(tmp_path_factory.mktemp("out")), name="run", steps=4, pop=4, seed=3,
            task_types="code_o,code_i,code_f", n_prompts=3, proposals_per_prompt=3, samples_per_task=2,
            max_new_tokens=48, n_heldout=2, show=2, probe_every=0, evolve_every=1, grace=0,
            save_every=3))
    finally:
        sys.stdout = stdout
    done.said = printed.getvalue()
    return done


def logged(run, step: int) -> list[dict]:
    rows = map(json.loads, (run.path / "tasks.jsonl").read_text().splitlines())
    return [row for row in rows if row["step"] == step]


def again(run, step: int, match: str = "") -> int:
    return 0 if replay.replay(str(run.path), step, match) else 1


def indented(text: str) -> str:
    return "\n".join("    " + line for line in text.strip().split("\n"))


@pytest.mark.parametrize("step", [1, 3])
def test_a_step_is_played_again(run, capsys, step):
    """From the beginning (1) and from a checkpoint (3): every text is printed; no file changes."""
    files = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    assert again(run, step) == 0
    said, rows = capsys.readouterr().out, logged(run, step)
    assert f"{len(rows)} of {len(rows)} proposals of step {step}" in said
    assert ("computing steps 0 to 0 again" in said) == (step == 1)
    for row in rows:
        assert indented(row["program"] if not row["reason"] else row["text"]) in said
        for texts in row.get("answers", {}).values():
            for text in texts:
                assert "\n".join("    " + line for line in indented(text).split("\n")) in said
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == files


def behind_the_base(outcome) -> float:
    """A reward that hangs on a probe: how far the frozen base is behind the students."""
    return 0.25 if outcome.base_rate is None else outcome.solve_rate - outcome.base_rate


def test_what_a_reward_sees_of_probes_is_there_again(micro_base, tmp_path, monkeypatch):
    """Steps 0 and 2 are probed; step 2 is the outcome of training on what the probe of step 0 said."""
    monkeypatch.setitem(TEACHER_REWARDS, "behind", behind_the_base)
    sizes = dict(steps=3, pop=2, n_prompts=2, samples_per_task=2, max_new_tokens=48, n_heldout=1)
    run = train.main(train.Config(base=str(micro_base), out=str(tmp_path), name="run",
                                  probe_every=2, teacher_reward="behind", **sizes))
    rewards = {step: {row["reward"] for row in logged(run, step) if not row["reason"]} for step in range(3)}
    assert rewards[1] == {0.25} and rewards[0] - {0.25} and rewards[2] - {0.25}
    assert again(run, 2) == 0


def test_one_match_alone_and_a_difference_is_told(run, capsys):
    pairs = [json.loads(row) for row in (run.path / "matches.jsonl").read_text().splitlines()]
    path = run.path / "tasks.jsonl"
    whole = path.read_text()
    last = json.loads(whole.splitlines()[-1])
    path.write_text("".join(whole.splitlines(True)[:-1]) + json.dumps(last | dict(reward=7.0)) + "\n")
    teacher, student = next((m["teacher"], m["student"]) for m in pairs if m["step"] == 3)
    try:
        assert again(run, 3, f"{teacher}:{student}") == 1
    finally:
        path.write_text(whole)
    said, rows = capsys.readouterr().out, logged(run, 3)
    assert set(re.findall(r"step 3 (T\d+)", said)) == {teacher}
    assert set(re.findall(r"^    (S\d+) ", said, re.M)) == {student}
    assert said.count(f"step 3 {teacher} ") == sum(row["teacher"] == teacher for row in rows)
    assert "  | out\n" in said                                               # the student's prompt
    assert f"{len(rows) - 1} of {len(rows)} proposals" in said


@pytest.mark.parametrize("asked,match", [((9, ""), "has steps 0 to 3"),
                                         ((1, "T9:S9"), r"at step 1 there were T\d+:S\d+")])
def test_what_cannot_be_replayed(run, asked, match):
    with pytest.raises(ValueError, match=match):
        replay.replay(str(run.path), *asked)


def test_several_processes_are_refused(run, monkeypatch):
    monkeypatch.setattr(train.Ranks, "join", lambda device: train.Ranks(0, 2, torch.device("cpu")))
    with pytest.raises(ValueError, match="without torchrun"):
        again(run, 1)


def test_another_version_is_refused(run, tmp_path):
    flags = json.loads((run.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(flags | dict(nose=1)))
    with pytest.raises(ValueError, match="another version, whose flags differ in --nose"):
        replay.replay(str(tmp_path), 1)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json cannot be read"):
        replay.replay(str(tmp_path), 1)


def test_the_command(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.replay", str(run.path), "9"])
    assert replay.main() == 2 and "steps 0 to 3" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["run.replay", "/nowhere", "0"])
    assert replay.main() == 2 and "config.json cannot be read" in capsys.readouterr().err


def test_show_prints_two_tasks_a_step(run):
    heads = re.findall(r"^  step (\d) (T\d+) ", run.said, re.M)
    assert [int(step) for step, _ in heads] == [0, 0, 1, 1, 2, 2, 3, 3] and "\x1b" not in run.said
    assert len({teacher for step, teacher in heads if step == "0"}) == 2       # the teachers take turns
    shown = logged(run, 0)
    assert any(indented(row["program"]) in run.said for row in shown if not row["reason"])


def test_some():
    of = [("A", ""), ("A", ""), ("B", "x"), ("B", ""), ("A", "x")]
    rows = [dict(teacher=teacher, reason=reason, i=i) for i, (teacher, reason) in enumerate(of)]
    assert [row["i"] for row in terminal.first_of_each(rows, 4)] == [0, 3, 1, 2]
    assert terminal.first_of_each(rows, 0) == [] and len(terminal.first_of_each(rows, 9)) == 5


def test_a_card():
    plain = terminal.format_task(ROW, color=False)
    for words in "solved 0.50, reward 0.50", "    7 -> 7", "S1 wrong x2  =8", "S1 correct  >7 / =7":
        assert words in plain
    painted = terminal.format_task(ROW, color=True)
    assert "\x1b[32mcorrect\x1b[0m" in painted and re.sub(r"\x1b\[\d+m", "", painted) == plain
    refused = dict(step=0, teacher="T0", kind="code_o", reason="syntax", reward=-1.0, text="def")
    assert "refused: syntax" in terminal.format_task(refused, False)


BAD = ["\x1b[2J\x1b]0;title\x07", "a\rb", "\u202egnp.exe", "\ud800", "\x9b31m", "\u2028"]


@pytest.mark.parametrize("bad", BAD)
def test_no_control_reaches_the_terminal(bad, capsys, monkeypatch):
    row = ROW | dict(program=bad, message=bad, inputs=[bad], outputs=[bad], answers={"S1": [bad] * 4})
    for whole in (False, True):
        steering = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\ud800-\udfff]"
        assert not re.search(steering, terminal.format_task(row, False, whole))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    terminal.print_safely(terminal.format_task(row, True))          # an ASCII terminal gets escapes, no error
    assert b"\\u27e8U+" in sys.stdout.buffer.getvalue()
