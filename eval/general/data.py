"""MMLU in its two published forms, as the same questions: Hendrycks et al. 2021 (arXiv 2009.03300).

    data/{dev,val,test}/SUBJECT_{dev,val,test}.csv     hendrycks/test: question, A, B, C, D, letter; no header
    {dev,validation,test}.jsonl, SUBJECT/test.jsonl    the hub's: question, subject, choices, answer (0 to 3)

A text stays as it stands in the file. (The published code reads the files with pandas, which writes a column
of nothing but numbers anew: 0.50 as 0.5.) The dev split holds the five examples that a prompt begins with.
"""
import csv
import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.fetch import CACHE, FILES, locate

LETTERS = "ABCD"
N_SHOTS = 5
N_QUESTIONS = {"test": FILES["mmlu"].n_rows, "val": 1531}       # as published, of 57 subjects
PLACES = ("mmlu/data", "mmlu", "data", ".")                     # where in --data DIR the files may be
CSV = re.compile(r"(?:.*/)?(?P<split>dev|val|test)/(?P<subject>\w+)_(?P=split)\.csv")
LINES = re.compile(r"(?:.*[/_])?(?P<split>dev|val|validation|test)\.jsonl(?:\.gz)?")
FIELDS = ("question", "subject", "choices", "answer")


@dataclass(frozen=True)
class Question:
    """One question with its four choices and the letter of the right one."""
    subject: str
    text: str
    choices: tuple[str, ...]
    gold: str


@dataclass(frozen=True)
class Subject:
    """A subject's examples and questions, in file order, and a hash of them all."""
    name: str
    shots: tuple[Question, ...]
    questions: tuple[Question, ...]
    sha256: str


def found(data: str | None, cache: Path) -> Iterator[tuple[str, str, bytes]]:
    """(file for messages, its path within, contents) of what --data or the cache holds, CSV files first.

    Raises ValueError where there is nothing, with what to do.
    """
    if data is None:
        archive, _ = locate("mmlu", cache=cache)
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and CSV.fullmatch(member.name):
                    yield f"{archive}:{member.name}", member.name, tar.extractfile(member).read()
        return
    root = Path(data).expanduser()
    if not root.is_dir():
        raise ValueError(f"--data {data}: no such directory; give the one that holds MMLU's files, or leave "
                         "--data out and run python -m eval.fetch mmlu")
    for place in PLACES:
        paths = sorted([*(root / place).glob("*"), *(root / place).glob("*/*")])
        names = [path.relative_to(root / place).as_posix() for path in paths]
        for pattern in (CSV, LINES):
            if any(map(pattern.fullmatch, names)):
                for path, name in zip(paths, names):
                    if pattern.fullmatch(name):
                        yield str(path), name, path.read_bytes()
                return
    raise ValueError(f"--data {data} holds no MMLU: expected dev/SUBJECT_dev.csv and test/SUBJECT_test.csv "
                     "(from hendrycks/test's data.tar) or dev.jsonl and test.jsonl, there or in its data/ or "
                     f"mmlu/; it is published at {FILES['mmlu'].url}")


def from_csv(file: str, text: str, subject: str) -> Iterator[Question]:
    """The questions of a CSV file. Raises ValueError that names file and line."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if not row:
                continue
            if len(row) != 6:
                raise ValueError(f"expected 6 columns (question, A, B, C, D, letter), found {len(row)}")
            yield checked(Question(subject, row[0], tuple(row[1:5]), row[5].strip()))
    except (ValueError, csv.Error) as e:
        raise ValueError(f"{file}, line {reader.line_num}: {e}: fetch it again, or mend that row") from None


def from_lines(file: str, text: str) -> Iterator[Question]:
    """The questions of a file of JSON lines. Raises ValueError that names file and line."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or (missing := [name for name in FIELDS if name not in row]):
                lacking = ", ".join(missing) if isinstance(row, dict) else "any"
                raise ValueError(f"expected the fields {', '.join(FIELDS)}, without {lacking}")
            choices, answer = row["choices"], row["answer"]
            if not isinstance(choices, list) or len(choices) != 4:
                raise ValueError(f"expected four choices, found {choices!r}")
            if type(answer) is int and 0 <= answer < 4:
                answer = LETTERS[answer]
            subject = str(row["subject"]).strip().replace(" ", "_")
            yield checked(Question(subject, str(row["question"]), tuple(map(str, choices)), str(answer)))
        except ValueError as e:
            raise ValueError(f"{file}, line {number}: {e}: fetch it again, or mend that row") from None


def checked(question: Question) -> Question:
    """The question. Raises ValueError for an answer that is none of the letters."""
    if question.gold not in tuple(LETTERS):
        raise ValueError(f"the answer is {question.gold!r}, expected one of {', '.join(LETTERS)} (in JSON "
                         "lines also 0, 1, 2 or 3)")
    return question


def contents(file: str, raw: bytes) -> str:
    """A file's text. Raises ValueError that names it."""
    try:
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
        raise ValueError(f"{file} cannot be read ({e}): fetch it again") from None


def load(data: str | None = None, split: str = "test", cache: Path = CACHE) -> list[Subject]:
    """All subjects by name, with the questions of a split. Raises ValueError for missing or damaged files."""
    shots, questions = {}, {}
    for file, name, raw in found(data, cache):
        is_csv = CSV.fullmatch(name)
        of = (is_csv or LINES.fullmatch(name))["split"].replace("validation", "val")
        into = {"dev": shots, split: questions}.get(of)
        if into is None:
            continue
        text = contents(file, raw)
        for question in from_csv(file, text, is_csv["subject"]) if is_csv else from_lines(file, text):
            into.setdefault(question.subject, []).append(question)
    where = data or cache
    if not questions:
        raise ValueError(f"{where} holds no questions of the {split} split: unpack the whole archive there")
    if lacking := sorted(set(questions) - set(shots)):
        raise ValueError(f"{where} holds no examples (dev split) of {lacking[0]}, with which its prompts "
                         "begin: unpack the whole archive there")
    n = sum(map(len, questions.values()))
    if n != N_QUESTIONS[split]:
        print(f"note: {where} holds {n} questions of {len(questions)} subjects, MMLU's {split} split as "
              f"published has {N_QUESTIONS[split]} of 57", file=sys.stderr)
    return [subject_of(name, shots[name][:N_SHOTS], questions[name]) for name in sorted(questions)]


def subject_of(name: str, shots: list[Question], questions: list[Question]) -> Subject:
    """A subject with its hash, which is that of the questions, in whichever form they lay there."""
    texts = [[question.text, *question.choices, question.gold] for question in (*shots, *questions)]
    sha = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    return Subject(name, tuple(shots), tuple(questions), sha)
