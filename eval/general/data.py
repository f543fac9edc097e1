"""MMLU as published (Hendrycks et al. 2021, arXiv 2009.03300): the authors' archive, mmlu.tar.

    data/{dev,val,test}/SUBJECT_{dev,val,test}.csv     question, A, B, C, D, letter; no header

A text stays as it stands in the file. (The published code reads the files with pandas, which writes a column
of nothing but numbers anew: 0.50 as 0.5.) The dev split holds the five examples that a prompt begins with.
"""
import csv
import hashlib
import io
import json
import re
import sys
import tarfile
from dataclasses import dataclass

from eval.fetch import FILES, locate

LETTERS = "ABCD"
N_SHOTS = 5
N_QUESTIONS = {"test": FILES["mmlu"].n_rows, "val": 1531}       # as published, of 57 subjects
CSV = re.compile(r"(?:.*/)?(?P<split>dev|val|test)/(?P<subject>\w+)_(?P=split)\.csv")


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


def questions_of(file: str, raw: bytes, subject: str) -> list[Question]:
    """The questions of a CSV file. Raises ValueError that names file and line."""
    out = []
    try:
        reader = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        for row in filter(None, reader):
            if len(row) != 6 or row[5].strip() not in tuple(LETTERS):
                raise ValueError(f"line {reader.line_num}: expected a question, four choices and a letter")
            out.append(Question(subject, row[0], tuple(row[1:5]), row[5].strip()))
    except (ValueError, csv.Error) as e:
        raise ValueError(f"{file}: {e}: fetch it again (python -m eval.fetch mmlu)") from None
    return out


def load(data: str, split: str = "test") -> list[Subject]:
    """All subjects by name, with the questions of a split. Raises ValueError for a damaged file."""
    path, _ = locate("mmlu", data)
    splits: dict[str, dict] = {"dev": {}, split: {}}
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                match = CSV.fullmatch(member.name)
                if match and member.isfile() and match["split"] in splits:
                    raw, name = tar.extractfile(member).read(), match["subject"]
                    splits[match["split"]][name] = questions_of(f"{path}:{member.name}", raw, name)
    except (tarfile.TarError, EOFError, OSError) as e:
        raise ValueError(f"{path} cannot be read ({e}): fetch it again (python -m eval.fetch mmlu)") from None
    shots, questions = splits["dev"], splits[split]
    if not questions or set(questions) - set(shots):
        raise ValueError(f"{path} lacks questions ({split}) or examples (dev): fetch it again (python -m "
                         "eval.fetch mmlu)")
    n = sum(map(len, questions.values()))
    if n != N_QUESTIONS[split]:
        print(f"note: {path} holds {n} questions of {len(questions)} subjects, MMLU's {split} split as "
              f"published has {N_QUESTIONS[split]} of 57", file=sys.stderr)
    return [subject_of(name, shots[name][:N_SHOTS], questions[name]) for name in sorted(questions)]


def subject_of(name: str, shots: list[Question], questions: list[Question]) -> Subject:
    """A subject with the hash of its questions."""
    texts = [[question.text, *question.choices, question.gold] for question in (*shots, *questions)]
    sha = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    return Subject(name, tuple(shots), tuple(questions), sha)
