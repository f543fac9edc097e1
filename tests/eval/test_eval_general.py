"""eval.general: MMLU's archive, its published prompt and scoring on ten questions, members in one batch, resume."""
import csv
import io
import json
import operator
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from eval import common, general
from eval.answering import Question
from eval.general import load
from infra.errors import UserError
from tasks.rendering import Rendered

# Ten questions of two subjects, made by hand, and the examples before them.
TEN = {"plain_sums": [("One and one?", "1", "2", "3", "4", "B"), ("Two and two?", "4", "5", "6", "7", "A"),
                      ("Three and three?", "5", "7", "6", "8", "C"), ("Four and four?", "5", "6", "7", "8", "D"),
                      ('What, then, is "five", and five?', "10", "9", "8", "7", "A"), ("Six and six?\nThink.", "1", "12", "2", "3", "B"),
                      ("Seven and seven?", "13", "14", "15", "16", "B")],
       "colours": [("The colour of snow?", "black", "red", "white", "None", "C"), ("Of coal?", "black", "a, b", "white", "pink", "A"),
                   ("Of grass?", "blue", "red", "white", "green", "D")]}
DEV = {subject: [(f"Example {i}?", "a", "b", "c", "d", letter) for i, letter in enumerate("ABCDAB", 1)] for subject in TEN}
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


def test_the_published_archive(folder, capsys):
    items, hashes = load(str(folder))
    assert Counter(item.id.split("/")[1] for item in items) == dict(colours=3, plain_sums=7) and len(hashes["mmlu"]) == 64
    assert items[7].question.endswith('\n\nWhat, then, is "five", and five?\nA. 10\nB. 9\nC. 8\nD. 7\nAnswer:') and items[7].gold == "A"
    assert "D. None" in items[0].question, "a text, as it stands there"
    assert [item.id for item in load(str(folder), "val", 1)[0]] == ["val/colours/0", "val/plain_sums/0"]
    assert general.main(["--self-test", "--data", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == {"mmlu": dict(n=10, right=10)}


@pytest.mark.parametrize("row, line", [("Of what?,1,2,3,D\n", 4), ("Of what?,1,2,3,4,E\n", 4), ('"Of\nwhat?",1,2,3,4,\n', 5)])
def test_what_is_wrong_with_a_file_is_named(tmp_path, row, line):
    folder = pack(tmp_path / "data", colours_test=written(TEN["colours"]) + row)
    with pytest.raises(UserError, match=rf"colours_test.csv: remove it.*line {line}: expected a question, four choices and a letter"):
        load(str(folder))


def test_a_damaged_archive_gives_the_fix(tmp_path):
    with pytest.raises(UserError, match="colours_test.csv: .*decode"):
        load(str(pack(tmp_path / "data", colours_test="\xff\xfe")))
    with tarfile.open(tmp_path / "mmlu.tar", "w"):
        pass
    with pytest.raises(UserError, match="it lacks questions .test. or examples"):
        load(str(tmp_path))
    (tmp_path / "mmlu.tar").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="mmlu.tar cannot be read"):
        load(str(tmp_path))


def test_the_published_prompt(folder):
    """To the character, with the two spaces that hendrycks/test's format_subject leaves."""
    prompt = load(str(folder))[0][8].question
    assert prompt.startswith("""\
The following are multiple choice questions (with answers) about  plain sums.

Example 1?
A. a
B. b
C. c
D. d
Answer: A

Example 2?
""") and prompt.count("Example") == 5 and prompt.endswith("\nAnswer: A\n\nSix and six?\nThink.\nA. 1\nB. 12\nC. 2\nD. 3\nAnswer:")


def test_letters_of_members_in_one_batch_are_those_of_each_prompt_alone(members, folder, bytes_base, tiny):
    """Prompts of several lengths and members side by side, against transformers and one prompt at a time."""
    from transformers import AutoModelForCausalLM
    population = common.load(common.parser_of("eval.general", "", 16).parse_args(["--run", str(members), *CPU]))
    theirs = AutoModelForCausalLM.from_pretrained(bytes_base, dtype=torch.float32)
    tokenizer = population.base.tokenizer
    assert general.letter_ids(tokenizer) == [tokenizer.convert_tokens_to_ids(letter) for letter in "ABCD"]
    with pytest.raises(UserError, match="no token for each letter"):
        general.letter_ids(tiny.tokenizer)
    items = load(str(folder))[0][3:]
    prompts = [general.ask(item, "plain", population.base) for item in items]
    assert tokenizer.decode(prompts[0]) == f"{items[0].question} ", "bytes: the space is a token of its own"
    of_s0, of_base = [[Question(item, Rendered(ids), name) for item, ids in zip(items, prompts)] for name in ("S0", "base")]
    together = general.letter_logps(population, of_s0 + of_base)
    assert together.shape == (14, 4) and (together[:7] - together[7:]).abs().max() > 0.01, "members differ"
    for number, ids in enumerate(prompts):
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[general.letter_ids(tokenizer)]
        assert torch.allclose(together[7 + number], expected, atol=1e-4)
        assert torch.allclose(together[number], general.letter_logps(population, [of_s0[number]])[0], atol=1e-4)


def test_a_run_with_two_members_resumes(members, folder, tmp_path):
    flags = ["--run", str(members), "--data", str(folder), *CPU]
    assert general.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "whole/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 10 * 3 and {row["member"] for row in rows} == {"T0", "S0", "base"}
    for row in rows:
        assert row["text"] == "ABCD"[int(np.argmax(row["logp"]))] and row["correct"] == (row["text"] == row["gold"])
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    right = [row["correct"] for row in rows if row["member"] == "S0"]
    colours = [row["correct"] for row in rows if row["member"] == "S0" and "colours" in row["id"]]
    of_s0 = {name: next(line for line in summary[name] if line["member"] == "S0") for name in ("results", "subjects")}
    assert of_s0["results"]["accuracy"] == pytest.approx(np.mean(right)) and of_s0["results"]["n"] == 10
    assert of_s0["subjects"]["accuracy"] == pytest.approx(np.mean(colours)) and of_s0["subjects"]["bench"] == "colours"

    # first fewer questions, then other batches: the same answers as in one go
    part = tmp_path / "part"
    assert general.main([*flags, "--out", str(part), "--limit", "2"]) == 0
    begun = (part / "answers.jsonl").read_bytes()
    assert general.main([*flags, "--out", str(part), "--rollout-batch", "4"]) == 0
    resumed, key = (part / "answers.jsonl").read_bytes(), operator.itemgetter("id", "member")
    assert resumed.startswith(begun) and begun.count(b"\n") == 2 * 2 * 3
    for mine, whole in zip(sorted(map(json.loads, resumed.splitlines()), key=key), sorted(rows, key=key), strict=True):
        assert mine | dict(logp=0) == whole | dict(logp=0) and mine["logp"] == pytest.approx(whole["logp"], abs=2e-4)
    pack(folder, colours_test=written(TEN["colours"][:2]))
    with pytest.raises(UserError, match="answers made otherwise: data mmlu"):
        general.main([*flags, "--out", str(part)])
    assert general.main([*flags, "--split", "val"]) == 0 and (members / "eval-general-val" / "summary.json").exists()
