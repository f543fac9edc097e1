"""eval.general: MMLU's files, its published prompt and scoring on ten questions, members in one pass, resume."""
import csv
import gzip
import io
import json
import operator
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from eval import common, fetch, stats
from eval.general import __main__ as general, scoring
from eval.general.data import Question, load
from eval.general.scoring import extract, likeliest
from eval.general.tables import macro, subject_table

# Ten questions of two subjects, made by hand, and the examples before them.
TEN = {"plain_sums": [("One and one?", "1", "2", "3", "4", "B"), ("Two and two?", "4", "5", "6", "7", "A"),
                      ("Three and three?", "5", "7", "6", "8", "C"), ("Four and four?", "5", "6", "7", "8", "D"),
                      ('What, then, is "five", and five?', "10", "9", "8", "7", "A"), ("Six and six?\nThink.", "1", "12", "2", "3", "B"),
                      ("Seven and seven?", "13", "14", "15", "16", "B")],
       "colours": [("The colour of snow?", "black", "red", "white", "None", "C"), ("Of coal?", "black", "a, b", "white", "pink", "A"),
                   ("Of grass?", "blue", "red", "white", "green", "D")]}
SIX = "ABCDAB"
DEV = {subject: [(f"Example {i}, by its own teacher, of {subject}?", "a", "b", "c", "d", letter) for i, letter in enumerate(SIX, 1)]
       for subject in TEN}
CPU = ["--device", "cpu"]


def written(rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_csv(root: Path) -> Path:
    """hendrycks/test's folders."""
    for split, questions in (("dev", DEV), ("test", TEN), ("val", {name: rows[:1] for name, rows in TEN.items()})):
        (root / split).mkdir(parents=True)
        for subject, rows in questions.items():
            (root / split / f"{subject}_{split}.csv").write_text(written(rows))
    return root


def as_line(subject: str, row) -> str:
    return json.dumps(dict(question=row[0], subject=subject, choices=list(row[1:5]), answer="ABCD".index(row[5])))


def write_lines(root: Path) -> Path:
    """The hub's fields, all subjects in a file, the dev split compressed."""
    root.mkdir(parents=True)
    texts = {split: "\n".join(as_line(subject, row) for subject, rows in questions.items() for row in rows)
             for split, questions in (("dev", DEV), ("test", TEN))}
    (root / "dev.jsonl.gz").write_bytes(gzip.compress(texts["dev"].encode()))
    (root / "test.jsonl").write_text(texts["test"])
    return root


@pytest.fixture
def folder(tmp_path):
    return write_csv(tmp_path / "data")


# ---------------------------------------------------------------- files

def test_both_published_forms_are_the_same_questions(folder, tmp_path, monkeypatch, capsys):
    subjects = load(str(folder))
    assert [(s.name, len(s.shots), len(s.questions)) for s in subjects] == [("colours", 5, 3), ("plain_sums", 5, 7)]
    assert subjects[1].questions[4] == Question("plain_sums", 'What, then, is "five", and five?', ("10", "9", "8", "7"), "A")
    assert subjects[0].questions[0].choices[3] == "None", "a text, as it stands there"
    assert "10 questions of 2 subjects, MMLU's test split as published has 14042 of 57" in capsys.readouterr().err
    assert load(str(folder.parent)) == subjects, "its data/"
    assert load(str(write_lines(tmp_path / "hub" / "mmlu").parent)) == subjects, "and the same hashes"
    assert [len(s.questions) for s in load(str(folder), "val")] == [1, 1]
    for subject, rows in TEN.items():
        directory = tmp_path / "single" / subject
        directory.mkdir(parents=True)
        for split, rows in (("dev", DEV[subject]), ("test", rows)):
            (directory / f"{split}.jsonl").write_text("".join(as_line(subject, row) + "\n" for row in rows))
    assert load(str(tmp_path / "single")) == subjects

    packed = tmp_path / "source.tar"                                    # as eval.fetch leaves it in the cache
    with tarfile.open(packed, "w") as tar:
        tar.add(folder, "data")
    cache, sha = tmp_path / "cache", fetch.digest(packed)
    monkeypatch.setitem(fetch.FILES, "mmlu", fetch.Published(packed.as_uri(), sha, 10, ("mmlu",)))
    fetch.main(["mmlu", "--cache", str(cache)])
    assert load(None, cache=cache) == subjects and (cache / "mmlu.tar").exists()
    (cache / "mmlu.tar").write_bytes(b"other")
    with pytest.raises(ValueError, match="it is damaged or was changed"):
        load(None, cache=cache)


def test_fetch_knows_mmlu(tmp_path, monkeypatch):
    published = fetch.FILES["mmlu"]
    assert fetch.cached_name("mmlu") == "mmlu.tar" and "mmlu" not in fetch.GROUPS["small"]
    assert published.url.endswith("/data.tar") and len(published.sha256) == 64 and published.n_rows == 14042
    monkeypatch.setitem(fetch.FILES, "mmlu", fetch.Published((tmp_path / "no.tar").as_uri(), "0" * 64, 1, ("mmlu",)))
    with pytest.raises(ValueError, match="could not be fetched from .*: download it elsewhere, unpack it into a directory"):
        fetch.fetch("mmlu", tmp_path / "cache")


def test_what_is_wrong_with_a_file_is_named(folder, tmp_path):
    path = folder / "test" / "colours_test.csv"
    whole = path.read_text()
    cases = [('Of what?,1,2,3,D\n', "line 4: expected 6 columns .question, A, B, C, D, letter., found 5"),
             ("Of what?,1,2,3,4,E\n", "line 4: the answer is 'E', expected one of A, B, C, D"),
             ('"Of\nwhat?",1,2,3,4,\n', "line 5: the answer is ''"), ("a,b\n", "line 4: expected 6 columns")]
    for row, said in cases:
        path.write_text(whole + row)
        with pytest.raises(ValueError, match=f"colours_test.csv, {said}"):
            load(str(folder))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="colours_test.csv cannot be read"):
        load(str(folder))
    path.write_text(f"{whole}\n")
    assert len(load(str(folder))[0].questions) == 3, "an empty line is none"
    (folder / "dev" / "colours_dev.csv").unlink()
    with pytest.raises(ValueError, match="no examples .dev split. of colours, .* unpack the whole archive"):
        load(str(folder))

    lines = write_lines(tmp_path / "hub")
    good = as_line("colours", TEN["colours"][0])
    for change, said in (({"answer": 4}, "the answer is '4'"), ({"answer": "B."}, "the answer is 'B.'"), ({"answer": True}, "the answer is 'True'"),
                         ({"choices": ["a"]}, "expected four choices"), ({"subject": None}, "without subject")):
        row = json.loads(good) | change
        row = {name: value for name, value in row.items() if value is not None}
        (lines / "test.jsonl").write_text(f"{good}\n\n{json.dumps(row)}\n")
        with pytest.raises(ValueError, match=f"test.jsonl, line 3: .*{said}"):
            load(str(lines))
    for text, said in (("[1]", "line 1: expected the fields question, subject"), ("{", "line 1: .*mend that row")):
        (lines / "test.jsonl").write_text(text)
        with pytest.raises(ValueError, match=said):
            load(str(lines))
    (lines / "test.jsonl").write_text(json.dumps(json.loads(good) | dict(answer="C")) + "\n")
    assert load(str(lines))[0].questions[0].gold == "C", "a letter will do"


def test_a_wrong_folder_gives_the_fix(tmp_path):
    with pytest.raises(ValueError, match="no such directory; give the one that holds MMLU's files, or .* eval.fetch mmlu"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="holds no MMLU: expected dev/SUBJECT_dev.csv .* published at https"):
        load(str(tmp_path))
    with pytest.raises(ValueError, match="mmlu is not in .*: run python -m eval.fetch mmlu, or download"):
        load(None, cache=tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a_dev.csv").write_text("")
    with pytest.raises(ValueError, match="holds no MMLU"):
        load(str(tmp_path))
    (tmp_path / "test" / "a_test.csv").write_text("")
    with pytest.raises(ValueError, match="no questions of the test split: unpack the whole archive there"):
        load(str(tmp_path))


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
    golds = [row[5] for rows in TEN.values() for row in rows]
    for (logps, letter, right), gold in zip(BY_HAND, golds, strict=True):
        assert likeliest(list(logps)) == letter == "ABCD"[int(np.argmax(logps))] and (letter == gold) is right
    rows = []
    for number, ((subject, _), (_, _, right)) in enumerate(zip([(s, r) for s, rows in TEN.items() for r in rows], BY_HAND)):
        for member, correct in (("base", False), ("S0", right)):
            rows.append(dict(bench="mmlu", id=f"test/{subject}/{number}", member=member, sample=0, correct=correct, tokens=0))
    by_member = {line["member"]: line for line in macro(rows, 16)}
    assert by_member["S0"]["accuracy"] == pytest.approx((4 / 7 + 2 / 3) / 2) and by_member["S0"]["n"] == 2
    assert by_member["S0"]["minus_base"] == pytest.approx((4 / 7 + 2 / 3) / 2) and by_member["base"]["interval"] == (0.0, 0.0)
    micro = general.common.summarise(rows, 16)
    assert [(line["member"], line["n"], line["accuracy"]) for line in micro] == [("base", 10, 0.0), ("S0", 10, 0.6)]


def test_stratified_bootstrap():
    """Within each subject, so that where one of them is of one mind only the other has a width."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, 400).astype(float), rng.integers(0, 2, 100).astype(float)
    low, high = stats.bootstrap([a, b])
    half = 1.96 * np.sqrt(a.var() / 400 + b.var() / 100) / 2
    middle = (a.mean() + b.mean()) / 2
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=0.006)
    assert tuple(stats.bootstrap([np.ones(5), np.zeros(9)])) == (0.5, 0.5)


@pytest.mark.parametrize("text, letter", [
    (" B", "B"), ("B. Paris", "B"), ("(A) x", "A"), ("A", "A"), ("A gas expands", ""), ("A is right", "A"), ("\n\nD\n\nNext\nAnswer: C", "D"),
    ("The answer is (C).", "C"), ("Answer: B", "B"), ("**D**", "D"), ("I think it's C.", "C"), ("Both A and B", ""), ("", ""), ("none", ""),
    ("so \\boxed{\\text{B}} or C", "B"), ("Not A. The correct answer is option D, not C.", "D"), ("b", ""), ("E", ""), ("D's", ""),
    ("<think>A? B?</think> <answer>C</answer>\nUser: next <answer>D</answer>", "C"), ("It is C</think>\nThe answer:\nB", "B"),
    ("Because it is C, and not B", ""), ("Apples, Bananas", ""), ("$\\text{(C)}$", "C")])
def test_the_letter_of_an_answer(text, letter):
    assert extract(text) == letter


def test_hostile_text_neither_raises_nor_takes_long():
    for text in ("answer " * 20_000, "is the " * 20_000, "A " * 50_000, "answer" + "(" * 100_000, "\\boxed" * 20_000, "\x00\ud800", "A\u2019"):
        assert extract(text) in ("", "A")


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
    texts = [scoring.prompt(subject.shots[:1], question) for question in subject.questions]
    prompts = [scoring.before_letter(tokenizer, text) for text in texts]
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


def test_long_prompts_lose_examples(folder):
    subject = load(str(folder))[0]
    question = subject.questions[0]

    def words(text: str) -> list[int]:
        return [0] * len(text.split())

    whole = len(words(scoring.prompt(subject.shots, question)))
    assert scoring.cropped(subject.shots, question, words, whole)[1] == 5
    ids, n = scoring.cropped(subject.shots, question, words, whole - 1)
    assert n == 4 and ids == words(scoring.prompt(subject.shots[:4], question)), "the last one goes, as in the published code"
    bare = len(words(scoring.prompt((), question)))
    assert scoring.cropped(subject.shots, question, words, bare)[1] == 0
    with pytest.raises(ValueError, match=rf"a question of colours has {bare} tokens without any example, .* room for 9: .*--subjects"):
        scoring.cropped(subject.shots, question, words, 9)


def test_a_vocabulary_without_letters_is_refused(tiny):
    with pytest.raises(ValueError, match="no token for each letter: use --bench mmlu-gen"):
        scoring.letter_ids(tiny.tokenizer)


# ---------------------------------------------------------------- whole runs

def test_a_run_with_two_members_resumes(members, folder, tmp_path, capsys, monkeypatch):
    flags = ["--run", str(members), "--data", str(folder), *CPU, "--rollout-batch", "8", "--max-new-tokens", "4"]
    assert general.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in (tmp_path / "whole/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 10 * 3 and {row["member"] for row in rows} == {"T0", "S0", "base"}
    likely = [row for row in rows if row["bench"] == "mmlu"]
    for row in likely:
        assert row["answer"] == "ABCD"[int(np.argmax(row["logp"]))] and row["correct"] == (row["answer"] == row["gold"])
    assert {row["shots"] for row in rows} == {4, 5} and "prompts have fewer than 5 examples" in said.err, "512 bytes hold four or five"
    n_none = sum(not row["answer"] for row in rows)
    assert n_none and f"note: {n_none} generated answers name no letter and count as wrong" in said.err
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    micro = {(line["bench"], line["member"]): line for line in summary["results"]}
    macros = {(line["bench"], line["member"]): line for line in summary["macro"]}
    right = [row["correct"] for row in likely if row["member"] == "S0"]
    colours = [row["correct"] for row in likely if row["member"] == "S0" and row["subject"] == "colours"]
    assert micro["mmlu", "S0"]["accuracy"] == pytest.approx(np.mean(right)) and micro["mmlu", "S0"]["n"] == 10
    others = (sum(right) - sum(colours)) / 7
    assert macros["mmlu", "S0"]["accuracy"] == pytest.approx((np.mean(colours) + others) / 2)
    line, = [line for line in summary["subjects"] if (line["bench"], line["subject"], line["member"]) == ("mmlu", "colours", "S0")]
    assert line["accuracy"] == pytest.approx(np.mean(colours)) and "minus_base_interval" in line and line["n"] == 3
    table = said.out.splitlines()
    assert table[0].split() == ["subject", "n", "mmlu:", "base,", "mean", "S", "mmlu-gen:", "base,", "mean", "S"]
    assert table[1].startswith("colours ") and table[2].startswith("plain_sums ") and "means over subjects (macro):" in table

    # first a subject alone and fewer questions, then a torn line, then the rest: the same answers as in one go
    part = tmp_path / "part"
    assert general.main([*flags, "--out", str(part), "--subjects", "colours", "--limit", "2", "--bench", "mmlu"]) == 0
    begun = (part / "answers.jsonl").read_bytes()
    assert begun.count(b"\n") == 2 * 3
    (part / "answers.jsonl").write_bytes(begun + b'{"bench": "mmlu')
    monkeypatch.setattr(general, "LINE", 1200)                          # other lines and passes: the same to rounding
    monkeypatch.setattr(general, "PASS", 2400)
    assert general.main([*flags, "--out", str(part), "--against", str(tmp_path / "whole")]) == 0
    resumed = (part / "answers.jsonl").read_bytes()
    key = operator.itemgetter("bench", "id", "member", "sample")
    found = sorted(map(json.loads, resumed.splitlines()), key=key)
    assert resumed.startswith(begun) and len(found) == len(rows)
    for mine, whole in zip(found, sorted(rows, key=key)):
        assert mine | dict(logp=0) == whole | dict(logp=0)
        assert mine.get("logp", []) == pytest.approx(whole.get("logp", []), abs=2e-4)
    assert {line["difference"] for line in json.loads((part / "summary.json").read_text())["differences"]} == {0.0}
    with pytest.raises(ValueError, match="answers made otherwise: data test colours"):
        path = folder / "test" / "colours_test.csv"
        path.write_text(path.read_text() + written([("More?", "1", "2", "3", "4", "A")]))
        general.main([*flags, "--out", str(part)])


def test_the_other_prompts_and_splits(members, folder, tmp_path, capsys):
    flags = ["--run", str(members), "--data", str(folder), *CPU, "--max-new-tokens", "4"]
    assert general.main([*flags, "--split", "val", "--bench", "mmlu"]) == 0
    assert (members / "eval-general-val" / "summary.json").exists()
    with pytest.raises(ValueError, match="a question of colours has .* tokens without any example"):
        general.main([*flags, "--prompt", "envelope", "--bench", "mmlu-gen", "--out", str(tmp_path / "o")])
    with pytest.raises(ValueError, match="--subjects colour: no such subject; did you mean colours"):
        general.main([*flags, "--subjects", "colour"])
    with pytest.raises(ValueError, match="did you mean mmlu-gen"):
        general.main([*flags, "--bench", "mmlu-gn"])
    capsys.readouterr()
    alone = [dict(bench="mmlu", subject="a", member="base", n=3, accuracy=1 / 3)]
    assert subject_table(alone).splitlines()[1].split() == ["a", "3", "0.333"]


def test_the_self_test(folder, capsys, monkeypatch):
    assert general.main(["--self-test", "--data", str(folder)]) == 0
    counts = dict(n=10, right=10, wrong_right=0)
    assert json.loads(capsys.readouterr().out) == {"mmlu": counts, "mmlu-gen": counts}
    monkeypatch.setattr(general, "extract", lambda text: "A")           # a grader that always says A is found out
    assert general.main(["--self-test", "--data", str(folder)]) == 1
    assert json.loads(capsys.readouterr().out)["mmlu-gen"] == dict(n=10, right=3, wrong_right=3)
