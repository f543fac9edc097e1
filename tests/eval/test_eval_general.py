"""eval.general: MMLU's archive, its published prompt and scoring on ten questions, members in one pass, resume."""
import csv
import io
import json
import operator
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from eval import common
from eval.general import __main__ as general
from eval.general import scoring
from eval.general.__main__ import Item, macro, row_of, subject_table
from eval.general.data import Question, load
from eval.summary import summarise

# Ten questions of two subjects, made by hand, and the examples before them.
TEN = {"plain_sums": [("One and one?", "1", "2", "3", "4", "B"), ("Two and two?", "4", "5", "6", "7", "A"),
                      ("Three and three?", "5", "7", "6", "8", "C"), ("Four and four?", "5", "6", "7", "8", "D"),
                      ('What, then, is "five", and five?', "10", "9", "8", "7", "A"), ("Six and six?\nThink.", "1", "12", "2", "3", "B"),
                      ("Seven and seven?", "13", "14", "15", "16", "B")],
       "colours": [("The colour of snow?", "black", "red", "white", "None", "C"), ("Of coal?", "black", "a, b", "white", "pink", "A"),
                   ("Of grass?", "blue", "red", "white", "green", "D")]}
DEV = {subject: [(f"Example {i}, by its own teacher, of {subject}?", "a", "b", "c", "d", letter) for i, letter in enumerate("ABCDAB", 1)]
       for subject in TEN}
CPU = ["--device", "cpu"]


def written(rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def pack(folder: Path, **changes: str) -> Path:
    """mmlu.tar as published, in a folder; changes: other texts of files, by SUBJECT_SPLIT."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "mmlu.tar", "w") as tar:
        for split, questions in (("dev", DEV), ("test", TEN), ("val", {name: rows[:1] for name, rows in TEN.items()})):
            for subject, rows in questions.items():
                data = changes.get(f"{subject}_{split}", written(rows)).encode("latin-1")
                info = tarfile.TarInfo(f"data/{split}/{subject}_{split}.csv")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return folder


@pytest.fixture
def folder(tmp_path):
    return pack(tmp_path / "data")


def test_the_published_archive(folder, tmp_path, capsys):
    subjects = load(str(folder))
    assert [(s.name, len(s.shots), len(s.questions)) for s in subjects] == [("colours", 5, 3), ("plain_sums", 5, 7)]
    assert subjects[1].questions[4] == Question("plain_sums", 'What, then, is "five", and five?', ("10", "9", "8", "7"), "A")
    assert subjects[0].questions[0].choices[3] == "None", "a text, as it stands there"
    assert "10 questions of 2 subjects, MMLU's test split as published has 14042 of 57" in capsys.readouterr().err
    assert [len(s.questions) for s in load(str(folder), "val")] == [1, 1]
    other = load(str(pack(tmp_path / "other", colours_test=written(TEN["colours"][:2]))))
    assert [a.sha256 == b.sha256 for a, b in zip(subjects, other)] == [False, True]
    assert general.main(["--self-test", "--data", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == {"mmlu": dict(subjects=2, n=10)}


@pytest.mark.parametrize("row, line", [("Of what?,1,2,3,D\n", 4), ("Of what?,1,2,3,4,E\n", 4), ('"Of\nwhat?",1,2,3,4,\n', 5), ("a,b\n", 4)])
def test_what_is_wrong_with_a_file_is_named(tmp_path, row, line):
    folder = pack(tmp_path / "data", colours_test=written(TEN["colours"]) + row)
    with pytest.raises(ValueError, match=f"colours_test.csv: line {line}: expected a question, four choices and a letter: fetch"):
        load(str(folder))


def test_a_damaged_or_missing_archive_gives_the_fix(tmp_path):
    with pytest.raises(ValueError, match="mmlu.tar is not in .*eval.fetch mmlu"):
        load(str(tmp_path))
    with pytest.raises(ValueError, match="colours_test.csv: .*decode"):
        load(str(pack(tmp_path / "data", colours_test="\xff\xfe")))
    with pytest.raises(ValueError, match="lacks questions .test. or examples"):
        load(empty(tmp_path))
    (tmp_path / "mmlu.tar").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="mmlu.tar cannot be read"):
        load(str(tmp_path))


def empty(tmp_path: Path) -> str:
    """A folder with an archive of nothing."""
    (tmp_path / "empty").mkdir()
    with tarfile.open(tmp_path / "empty" / "mmlu.tar", "w"):
        pass
    return str(tmp_path / "empty")


# ---------------------------------------------------------------- the published scoring

def test_the_published_prompt(folder):
    """To the character, with the two spaces that hendrycks/test's format_subject leaves."""
    subject = load(str(folder))[1]
    assert scoring.prompt(subject.shots[:2], subject.questions[5]) == """\
The following are multiple choice questions (with answers) about  plain sums.

Example 1, by its own teacher, of plain_sums?
A. a
B. b
C. c
D. d
Answer: A

Example 2, by its own teacher, of plain_sums?
A. a
B. b
C. c
D. d
Answer: B

Six and six?
Think.
A. 1
B. 12
C. 2
D. 3
Answer:"""


# Log-probabilities of " A" to " D" for the ten questions, in the files' order, and by hand: the letter, is it right?
BY_HAND = [((-3.0, -1.0, -2.0, -4.0), "B", True), ((-1.0, -1.0, -2.0, -2.0), "A", True), ((-9.0, -8.0, -7.0, -6.0), "D", False),
           ((-2.0, -2.0, -2.0, -2.0), "A", False), ((-0.1, -5.0, -5.0, -5.0), "A", True), ((-100.0, -100.0, -99.0, -100.0), "C", False),
           ((-1.5, -1.25, -1.25, -3.0), "B", True), ((-4.0, -3.0, -2.5, -2.6), "C", True), ((-0.9, -0.8, -7.0, -7.0), "B", False),
           ((-1e9, -1e9, -1e9, -1e8), "D", True)]


def test_the_published_scoring_on_ten_questions():
    rows, asked = [], [(subject, row) for subject, rows in TEN.items() for row in rows]
    for number, ((subject, row), (logps, letter, right)) in enumerate(zip(asked, BY_HAND, strict=True)):
        item = Item("mmlu", f"test/{subject}/{number}", Question(subject, row[0], row[1:5], row[5]), [], 5)
        found = row_of(item, "S0", list(logps))
        assert (found["answer"], found["correct"]) == (letter, right) and letter == "ABCD"[int(np.argmax(logps))]
        rows += [found | dict(member="base", correct=False), found]
    by_member = {line["member"]: line for line in macro(rows)}
    assert by_member["S0"]["accuracy"] == pytest.approx((4 / 7 + 2 / 3) / 2) and by_member["S0"]["n"] == 2
    low, high = by_member["S0"]["interval"]
    assert low < by_member["S0"]["accuracy"] < high
    assert by_member["S0"]["minus_base"] == pytest.approx((4 / 7 + 2 / 3) / 2) and tuple(by_member["base"]["interval"]) == (0.0, 0.0)
    assert [(line["member"], line["n"], line["accuracy"]) for line in summarise(rows, 1)] == [("base", 10, 0.0), ("S0", 10, 0.6)]


# ---------------------------------------------------------------- members in one pass

@pytest.fixture(scope="module")
def population(members):
    return common.load(common.parser_of("eval.general", "", 16).parse_args(["--run", str(members), *CPU]))


def test_letters_of_a_line_are_those_of_each_prompt_alone(population, folder, bytes_base):
    """The shared beginning once and the members together, against transformers and one prompt at a time."""
    from transformers import AutoModelForCausalLM
    theirs = AutoModelForCausalLM.from_pretrained(bytes_base, dtype=torch.float32)
    tokenizer = population.base.tokenizer
    assert scoring.letter_ids(tokenizer) == [tokenizer.convert_tokens_to_ids(letter) for letter in "ABCD"]
    subject = load(str(folder))[1]
    prompts = [scoring.cropped(subject.shots[:1], question, tokenizer, 512)[0] for question in subject.questions]
    texts = [scoring.prompt(subject.shots[:1], question) for question in subject.questions]
    assert [tokenizer.decode(ids) for ids in prompts] == [f"{text} " for text in texts], "bytes: the space is a token of its own"
    n_shared = scoring.shared_length(prompts)
    assert tokenizer.decode(prompts[0][:n_shared]).endswith("Answer: A\n\n")
    together = scoring.letter_logps(population, prompts, ["S0", "base", "T0"])
    assert together.shape == (3, 7, 4) and (together[0] - together[1]).abs().max() > 0.01, "members differ"
    for number, ids in enumerate(prompts):
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[scoring.letter_ids(tokenizer)]
        assert torch.allclose(together[1, number], expected, atol=1e-4)
        alone = scoring.letter_logps(population, [ids], ["S0"])[0, 0]
        assert torch.allclose(together[0, number], alone, atol=1e-4)
    assert scoring.shared_length([[1, 2, 3], [1, 2]]) == 1 and scoring.shared_length([[4], [5]]) == 0
    same = scoring.letter_logps(population, [prompts[0]] * 2, ["T0"])
    assert torch.allclose(same[0, 0], same[0, 1], atol=1e-5)


def test_long_prompts_lose_examples(population, folder):
    subject, tokenizer = load(str(folder))[0], population.base.tokenizer
    question = subject.questions[0]
    whole = len(tokenizer(scoring.prompt(subject.shots, question)).input_ids) + 1
    assert scoring.cropped(subject.shots, question, tokenizer, whole)[1] == 5
    ids, n = scoring.cropped(subject.shots, question, tokenizer, whole - 1)
    assert n == 4 and tokenizer.decode(ids) == scoring.prompt(subject.shots[:4], question) + " ", "the last one goes, as published"
    with pytest.raises(ValueError, match=r"a question of colours has \d+ tokens without any example, .* room for 9: .*--subjects"):
        scoring.cropped(subject.shots, question, tokenizer, 9)


def test_a_vocabulary_without_letters_is_refused(tiny):
    with pytest.raises(ValueError, match="no token for each letter"):
        scoring.letter_ids(tiny.tokenizer)


# ---------------------------------------------------------------- whole runs

def test_a_run_with_two_members_resumes(members, folder, tmp_path, capsys, monkeypatch):
    flags = ["--run", str(members), "--data", str(folder), *CPU]
    assert general.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    told = capsys.readouterr()
    rows = [json.loads(line) for line in (tmp_path / "whole/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 10 * 3 and {row["member"] for row in rows} == {"T0", "S0", "base"}
    for row in rows:
        assert row["answer"] == "ABCD"[int(np.argmax(row["logp"]))] and row["correct"] == (row["answer"] == row["gold"])
    assert {row["shots"] for row in rows} == {4, 5} and "prompts have fewer than 5 examples" in told.err, "512 bytes hold four or five"
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    right = [row["correct"] for row in rows if row["member"] == "S0"]
    colours = [row["correct"] for row in rows if row["member"] == "S0" and row["subject"] == "colours"]
    found = {name: next(line for line in summary[name] if line["member"] == "S0") for name in ("results", "macro", "subjects")}
    assert found["results"]["accuracy"] == pytest.approx(np.mean(right)) and found["results"]["n"] == 10
    assert found["macro"]["accuracy"] == pytest.approx((np.mean(colours) + (sum(right) - sum(colours)) / 7) / 2)
    assert found["subjects"]["accuracy"] == pytest.approx(np.mean(colours)) and found["subjects"]["bench"] == "colours"
    table = told.out.splitlines()
    assert table[0].split() == ["subject", "n", "base", "mean", "S"] and table[1].startswith("colours ")
    assert "means over subjects (macro):" in table
    alone = [dict(bench="a", member="base", n=3, accuracy=1 / 3)]
    assert subject_table(alone).splitlines()[1].split() == ["a", "3", "0.333", "0.333"]

    # first a subject alone and fewer questions, then a torn line, then the rest: the same answers as in one go
    part = tmp_path / "part"
    assert general.main([*flags, "--out", str(part), "--subjects", "colours", "--limit", "2"]) == 0
    begun = (part / "answers.jsonl").read_bytes()
    assert begun.count(b"\n") == 2 * 3
    (part / "answers.jsonl").write_bytes(begun + b'{"bench": "mmlu')
    monkeypatch.setattr(general, "LINE", 1200)                          # other lines and passes: the same to rounding
    monkeypatch.setattr(general, "PASS", 2400)
    assert general.main([*flags, "--out", str(part)]) == 0
    resumed = (part / "answers.jsonl").read_bytes()
    key = operator.itemgetter("id", "member")
    again = sorted(map(json.loads, resumed.splitlines()), key=key)
    assert resumed.startswith(begun) and len(again) == len(rows)
    for mine, whole in zip(again, sorted(rows, key=key)):
        assert mine | dict(logp=0) == whole | dict(logp=0) and mine["logp"] == pytest.approx(whole["logp"], abs=2e-4)
    pack(folder, colours_test=written(TEN["colours"][:2]))
    with pytest.raises(ValueError, match="answers made otherwise: data test colours"):
        general.main([*flags, "--out", str(part)])
    assert general.main([*flags, "--split", "val"]) == 0 and (members / "eval-general-val" / "summary.json").exists()
    with pytest.raises(ValueError, match="--subjects colour: no such subject; did you mean colours"):
        general.main([*flags, "--subjects", "colour"])
