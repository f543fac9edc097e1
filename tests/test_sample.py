"""sample.py shows what members do, judged as in training."""
import sys

import pytest
from tiny_run import play

import sample
from common import UserError

FLAGS = dict(steps=1, pop=2, n_prompts=1, proposals_per_prompt=2, samples_per_task=2, n_heldout=0, probe_every=0, name="run")


@pytest.fixture(scope="module")
def step(micro_base, tmp_path_factory):
    """A checkpoint with a teacher T0 and a student S0."""
    return play(**FLAGS, base=micro_base, out=tmp_path_factory.mktemp("out")) / "step_1"


def shown(monkeypatch, capsys, *words) -> str:
    """What the command prints."""
    monkeypatch.setattr(sys, "argv", ["sample.py", *map(str, words)])
    assert sample.main() == 0
    return capsys.readouterr().out


def test_a_given_task_is_judged(monkeypatch, capsys, step):
    """The program's value stands there, and each attempt is called correct where it is this value."""
    text = shown(monkeypatch, capsys, step / "S0", "--beside", "base", "--program", "def f(x): return x[::-1]", "--input", "[1,2,3]",
                 "--samples", "4", "--temperature", "0.5")
    assert "[1,2,3] -> [3,2,1]" in text
    attempts = [line.split() for line in text.splitlines() if line.startswith(("    S0 ", "    base "))]
    assert {line[0] for line in attempts} == {"S0", "base"}
    for line in attempts:
        assert (line[1] == "correct") == (line[-1] == "=[3,2,1]"), line


def test_proposals_and_fresh_tasks(monkeypatch, capsys, step):
    """A directory of members: the teacher's proposals, the student's attempts; another seed draws others."""
    text = shown(monkeypatch, capsys, step, "--n", "3")
    assert text.count(" T0 code_o") == 3 and text.count(" task code_o") == 3
    assert shown(monkeypatch, capsys, step, "--n", "3") == text != shown(monkeypatch, capsys, step, "--n", "3", "--seed", "1")


def test_a_prompt_is_answered_as_written(monkeypatch, capsys, step, base):
    """Greedily, as the engine alone goes on from these tokens."""
    text = shown(monkeypatch, capsys, step / "T0", "--beside", "base", "--prompt", "propose out int\n", "--samples", "1",
                 "--temperature", "0.01")
    assert text.startswith("T0\n    def f(x):\n") and "\nbase\n    def f(x):\n" in text


@pytest.mark.parametrize("words, sentence", [
    (["--input", "[1]"], "give --program, too"),
    (["--program", "def f(x): return y", "--input", "1"], r"task 1 is not valid \(error\)"),
    (["--task", "nowhere"], "cannot be read"), (["--n", "0"], "at least 1"),
    (["--prompt", "def f(x):\n" * 2000], "shorten the prompt"), (["--base", "nowhere"], "no such directory")])
def test_bad_input_is_one_sentence(monkeypatch, capsys, step, words, sentence):
    with pytest.raises(UserError, match=sentence):
        shown(monkeypatch, capsys, step / "S0", *words)


def test_one_thing_is_asked(monkeypatch, capsys, step):
    with pytest.raises(SystemExit):
        shown(monkeypatch, capsys, step / "S0", "--prompt", "a", "--program", "b")
    assert "--program: not allowed with argument --prompt" in capsys.readouterr().err


def test_a_role_is_given(monkeypatch, capsys, step):
    assert shown(monkeypatch, capsys, step / "S0", "--role", "teacher", "--n", "2").count(" S0 code_o") == 2


def test_a_member_of_another_base_is_refused(monkeypatch, capsys, step, tiny):
    with pytest.raises(UserError, match="trained on another base"):
        shown(monkeypatch, capsys, step / "S0", "--base", tiny.path)
