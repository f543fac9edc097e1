"""Answers in mixed batches: questions become token ids, members answer side by side, verdicts go to the disk.

A benchmark gives an Exam. All members and the bare base answer side by side, one member index a row; every
answer is drawn from (seed, item, member, sample) alone, so that an interrupted run goes on as if it had not
been. Where the last bits of a row hang on those beside it (bfloat16, GPUs): which these are depends on
questions and flags alone. Answers that have ended are judged and written while others decode. A call that was
interrupted decodes all of its rows once more, side by side as before, and writes those that are missing.
"""
import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from zlib import crc32

import torch
from tqdm import tqdm

from eval import common
from eval.common import Population
from generate import Prompts, Rollout, SamplingParams, generate
from infra.distributed import ALONE
from infra.errors import UserError
from model import Base
from run.checkpoint import RunDir
from tasks.prompts import FORMATS, THINK, Prompt, Rendered, decode_answers, render
from weights import is_chat_model

# A call of `generate` is given several rollout batches, so that waiting rows take the places of those that
# have ended: at least one, and at most so many tokens. A kill costs one call.
CALL_TOKENS = 1 << 18
WRITE_S = 30.0                  # what has ended waits no longer, so that with the judge's time it is a minute
CALL = "call.json"              # the groups of the call under way, in the directory of results
place_of = itemgetter("bench", "id", "member", "sample")                # which answer a row is
group_of = itemgetter("bench", "id", "member")                          # its question, and who answers

Group = list[tuple]             # (item, row) of a member's samples of an item, which are drawn together


# ---- a benchmark from its start to its end -----------------------------------------------------------------

@dataclass(frozen=True)
class Exam:
    """Questions, and how they are put, answered and judged."""
    items: list                         # anything with .bench and .id
    ask: Callable                       # ask(item) -> text, token ids or Prompt
    # verify([(item, text)]) -> [dict with "correct", and whatever else answers.jsonl should hold]. The texts
    # begin with what the prompt holds of the answer (Rendered.opening). What it raises is a bug in it, and
    # ends the command; what is written stays, and the command goes on from there once it is mended.
    verify: Callable
    prompt_format: str
    answer: Callable | None = None      # answer_call, or what stands for it


def evaluate(
    args: argparse.Namespace,
    name: str,                          # of the directory of results
    items: list,
    hashes: dict[str, str],             # SHA-256 of the benchmark's files
    ask: Callable,                      # ask(item, prompt format, base)
    verify: Callable,                   # verify(answers, prompt format)
    answer: Callable | None = None,
) -> tuple[RunDir, list[dict]]:
    """The directory of results and the rows of a whole benchmark."""
    population = common.load(args)
    prompt_format = pick_prompt_format(args, population.base)
    run, done = common.open_out(args, population, prompt_format, hashes, name)
    base = population.base                                  # told the date of the answers that are there
    exam = Exam(
        items,
        ask=lambda item: ask(item, prompt_format, base),
        verify=lambda answers: verify(answers, prompt_format),
        prompt_format=prompt_format,
        answer=answer,
    )
    return run, answer_all(population, exam, args, run, done)


def self_test(items: list, published: Callable, verify: Callable) -> int:
    """Prints as JSON how many published(item) answers pass, by benchmark. Returns 0 where all do."""
    counts = {item.bench: dict(n=0, right=0) for item in items}
    exit_code = 0
    answers = [(item, published(item)) for item in items]
    for item, row in zip(items, verify(answers, "envelope")):
        counts[item.bench]["n"] += 1
        if row["correct"]:
            counts[item.bench]["right"] += 1
        else:
            exit_code = 1
            print(f"{item.bench} {item.id}: the published answer does not pass: {row}"[:400], file=sys.stderr)
    print(json.dumps(counts))
    return exit_code


# ---- questions ---------------------------------------------------------------------------------------------

def pick_prompt_format(args: argparse.Namespace, base: Base) -> str:
    """--prompt with auto decided. Raises UserError for a chat template that is not there."""
    if args.prompt in ("chat", "direct") and not base.tokenizer.chat_template:
        raise UserError(f"--prompt {args.prompt}: {base.path} has no chat template; use envelope or plain")
    if args.prompt != "auto":
        return args.prompt
    if is_chat_model(base.tokenizer, base.eos_ids):
        return "chat"
    return "plain"


def training_format(prompt_format: str) -> str:
    """The name of a format in training, where the R1 envelope is the format "base"."""
    return "base" if prompt_format == "envelope" else prompt_format


def put(question: str | Prompt | list[int], prompt_format: str, base: Base) -> Rendered:
    """A question as the model is given it: by the chat template, in the R1 envelope, or as "Question: ...
    Answer:". A Prompt is put as in training; token ids, of a benchmark with its own words, stay as they
    are."""
    if isinstance(question, list):
        return Rendered(question)
    if isinstance(question, Prompt):
        prompt = question
    elif prompt_format == "plain":
        return Rendered(list(base.tokenizer(f"Question: {question}\nAnswer:").input_ids))
    elif prompt_format == "envelope":
        prompt = Prompt(question, THINK)
    else:
        prompt = Prompt(question)
    return render(prompt, training_format(prompt_format), base.tokenizer, base.day)


def fits(ids: dict[tuple[str, str], list[int]], max_new: int, context: int) -> int:
    """Tokens of the longest question. Raises UserError where it and max_new exceed the base's context."""
    name = max(ids, key=lambda name: (len(ids[name]), name))
    n = len(ids[name])
    if n + max_new > context:
        fix = "it is too long"
        if n < context:
            fix = f"lower --max-new-tokens to at most {context - n}"
        raise UserError(f"{'/'.join(name)} has {n} tokens, which with --max-new-tokens {max_new} exceeds "
                         f"the base's context of {context}: {fix}")
    return n


# ---- answers -----------------------------------------------------------------------------------------------

@dataclass
class Book:
    """Takes answers as they end, and writes them with their verdicts to answers.jsonl."""
    run: RunDir
    verify: Callable
    max_rows: int                       # of one go of the judge, whose tests take memory
    openings: dict[tuple, str]          # what the prompts hold of their answers
    have: dict[tuple, dict]             # the rows that are written, by place; none is written twice
    bar: tqdm
    asked: list[tuple] = field(default_factory=list)        # (item, row) of the call under way
    waiting: list[tuple] = field(default_factory=list)      # (item, row with its text), not judged yet
    written_s: float = field(default_factory=time.monotonic)

    def begin(self, call: list[Group]) -> None:
        """A call: its rows are those of its groups, in order."""
        self.asked = list(itertools.chain(*call))
        self.run.write_json(CALL, list(map(name_of, call)))

    def ended(self, numbers: list[int], given: list[dict]) -> None:
        """What `answer_call` says: answers of the call, by number; perhaps none, for time passes."""
        for number, more in zip(numbers, given):
            item, row = self.asked[number]
            if place_of(row) not in self.have:
                text = self.openings[item.bench, item.id] + more["text"]
                self.waiting.append((item, row | more | dict(text=text)))
                self.bar.update()
        if time.monotonic() - self.written_s > WRITE_S:
            self.write()

    def write(self) -> None:
        """Judges and writes all that waits."""
        while self.waiting:
            part = self.waiting[:self.max_rows]
            del self.waiting[:self.max_rows]
            verdicts = self.verify([(item, row["text"]) for item, row in part])
            rows = []
            for (_, row), verdict in zip(part, verdicts):
                rows.append(row | verdict)
                self.have[place_of(row)] = rows[-1]
            self.run.append("answers.jsonl", rows)
        self.written_s = time.monotonic()

    def close(self) -> None:
        """The call has ended, and is nothing to be repeated."""
        self.write()
        (self.run.path / CALL).unlink()


def name_of(group: Group) -> tuple[str, str, str]:
    """Which question a group answers, and who does."""
    return group_of(group[0][1])


def missing(groups: list[Group], have: dict[tuple, dict]) -> list[Group]:
    """The groups of which an answer is missing."""
    out = []
    for group in groups:
        if not all(place_of(row) in have for _, row in group):
            out.append(group)
    return out


def calls_of(groups: list[Group], have: dict[tuple, dict], n_groups: int, run: RunDir) -> list[list[Group]]:
    """The groups of which an answer is missing, in calls; an interrupted call first, with all of its groups,
    lest other rows stand beside its missing ones than did before. groups: from short to long questions."""
    path = run.path / CALL
    began = set()
    if path.exists():
        began = set(map(tuple, json.loads(path.read_bytes())))
    first, rest = [], []
    for group in groups:
        if name_of(group) in began:
            first.append(group)
        else:
            rest.append(group)
    rest = missing(rest, have)
    calls = [rest[start:start + n_groups] for start in range(0, len(rest), n_groups)]
    if missing(first, have):
        calls.insert(0, first)
    return calls


def groups_of(population: Population, items: list, n_samples: int) -> list[Group]:
    """What is to be answered: every item by every member."""
    groups = []
    for item in items:
        for member in population.slots:
            row = dict(bench=item.bench, id=item.id, member=member)
            groups.append([(item, row | dict(sample=sample)) for sample in range(n_samples)])
    return groups


def answer_all(
    population: Population,
    exam: Exam,
    args: argparse.Namespace,
    run: RunDir,
    done: list[dict],                   # rows on disk
) -> list[dict]:
    """Every member's answers to every item: dicts as in answers.jsonl, written as they end;
    summary.comparable leaves out what the sandbox failed on. Raises UserError where a question does not fit
    the context."""
    have = {place_of(row): row for row in done}
    ids, openings = {}, {}
    for item in exam.items:
        prompt = put(exam.ask(item), exam.prompt_format, population.base)
        ids[item.bench, item.id] = prompt.ids
        openings[item.bench, item.id] = prompt.opening
    n_tokens = fits(ids, args.max_new, population.base.model.cfg.max_position_embeddings) + args.max_new
    n_rows = args.max_rows * max(1, CALL_TOKENS // (args.max_rows * n_tokens))
    groups = groups_of(population, exam.items, args.samples)
    by_length = sorted(groups, key=lambda group: len(ids[name_of(group)[:2]]))
    calls = calls_of(by_length, have, max(1, n_rows // args.samples), run)
    every_place = [place_of(row) for _, row in itertools.chain(*groups)]
    n_missing = len(set(every_place) - have.keys())
    with tqdm(total=n_missing, desc="answers", disable=not sys.stderr.isatty()) as bar:
        book = Book(run, exam.verify, args.max_rows, openings, have, bar)
        answer = exam.answer or answer_call
        for call in calls:
            book.begin(call)
            rows = list(map(itemgetter(1), book.asked))
            answer(population, rows, ids, args, exam.prompt_format, book.ended)
            book.close()
    rows = [have[place] for place in every_place]
    n_failed = sum(row["correct"] is None for row in rows)
    n_errors = sum("grader_error" in row for row in rows)
    if n_failed or n_errors:
        print(f"note: the sandbox failed on {n_failed} answers, whose questions count for nobody (the same "
              f"command asks them again); {n_errors} could not be graded and count as wrong", file=sys.stderr)
    return rows


def answer_call(
    population: Population,
    rows: list[dict],                   # --samples of an item and member in turn
    ids: dict[tuple[str, str], list[int]],
    args: argparse.Namespace,
    prompt_format: str,
    ended: Callable[[list[int], list[dict]], None],
) -> None:
    """Answers the rows by one call of `generate`. As they end, they go by number to ended([number],
    [dict(tokens, text)]), which is also called while none ends."""
    base = population.base
    prompts, slots, keys = [], [], []
    for row in rows:
        question = crc32(f"{row['bench']}/{row['id']}".encode())
        keys.append((args.seed, question, crc32(row["member"].encode()), row["sample"]))
    for row in rows[::args.samples]:
        prompts.append(ids[row["bench"], row["id"]])
        slots.append(population.slots[row["member"]])
    closing = ""
    if prompt_format != "plain":
        closing = FORMATS[training_format(prompt_format)].closing
    sampling = SamplingParams(args.samples, args.temperature, args.max_new, args.max_rows, closing)

    def watch(rollout: Rollout, numbers: list[int]) -> None:
        given = []
        if numbers:
            part = rollout.select(torch.tensor(numbers, device=rollout.ids.device))
            texts = decode_answers(part.answers(base.eos_ids), base.tokenizer, special=False)
            for text, tokens in zip(texts, part.n_tokens.tolist()):
                if prompt_format == "plain":        # a base goes on to ask itself
                    text = text.partition("\nQuestion:")[0]
                given.append(dict(tokens=tokens, text=text))
        ended(numbers, given)

    generate(base, population.adapters, Prompts(prompts, slots, keys), sampling, ALONE, watch)
