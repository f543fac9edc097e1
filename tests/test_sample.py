"""sample.py shows what members do, judged as in training."""

import pytest
from tiny_run import SIZES, play

import sample
from common import UserError


@pytest.fixture(scope="module")
def run(micro_base, tmp_path_factory):
    """A run of a teacher T0 and a student S0."""
    return play(**SIZES | dict(base=micro_base, out=tmp_path_factory.mktemp("out"), steps=1, pop=2, probe_every=0))


@pytest.fixture
def shown(monkeypatch, capsys):
    """shown(*words) -> what the command prints."""
    def command(*words):
        monkeypatch.setattr("sys.argv", ["sample.py", *map(str, words)])
        sample.main()
        return capsys.readouterr().out
    return command


def test_a_given_task_is_judged(shown, run):
    """Each attempt is called correct if it is the program's value."""
    text = shown(run / "step_1/S0", "base", "--program", "def f(x): return x[::-1]", "--input", "[1,2,3]", "--samples", 4, "--temperature", 0.5)
    attempts = [line.split() for line in text.splitlines() if line.startswith(("    S0 ", "    base "))]
    assert "[1,2,3] -> [3,2,1]" in text and {line[0] for line in attempts} == {"S0", "base"}
    for line in attempts:
        assert (line[1] == "correct") == (line[-1] == "=[3,2,1]"), line


def test_a_run_shows_all_its_members(shown, run):
    """The teacher's proposals, the student's attempts; another seed draws others; other types have their own example."""
    text = shown(run, "--n", 3)
    assert text.count(" T0 code_o") == 3 and text.count(" task code_o") == 3
    assert shown(run, "--n", 3) == text != shown(run, "--n", 3, "--seed", 1)
    assert "apples" in shown(run / "step_1/S0", "--task-types", "math,logic")


def test_texts_are_answered(shown, run):
    """A prompt by everybody, as the engine alone goes on from it."""
    text = shown(run / "step_1/T0", "base", "--prompt", "propose out int\n", "--samples", 1, "--temperature", 0.01)
    assert text.startswith("T0\ndef f(x):\n") and "\nbase\ndef f(x):\n" in text


@pytest.mark.parametrize("words, sentence", [
    (["--input", "[1]"], "give --program, too"), (["--program", "lambda x: x"], "define a function f"),
    (["--program", "def f(x): return y", "--input", "1"], r"task 1 is not valid \(error\)"),
    (["--task-types", "math", "--program", "def f(x): return x"], "a task of code_o or code_i, not of math"),
    (["--task-types", "code_f"], "ask a teacher alone"), (["--n", "0"], "from 1 to"),
    (["--prompt", "def f(x):\n" * 2000], "shorten the prompt"), (["--base", "nowhere"], "no such directory")])
def test_bad_input_is_one_sentence(shown, run, words, sentence):
    with pytest.raises(UserError, match=sentence):
        shown(run / "step_1/S0", *words)


def test_a_member_of_another_base_is_refused(shown, run, tiny):
    with pytest.raises(UserError, match="trained on another base"):
        shown(run / "step_1/S0", "--base", tiny.path, "--max-new-tokens", 8)
