"""Answers in mixed batches: questions become token ids, members answer side by side, verdicts go to the disk.

A benchmark gives an Exam. All members and the bare base answer side by side, one member index a row; every
answer is drawn from (seed, item, member, sample) alone, so that an interrupted run goes on as if it had not
been. Where the last bits of a row hang on those beside it (bfloat16, GPUs): which these are depends on
questions and flags alone. Answers that have ended are judged and written while others decode. A call that was
interrupted decodes all of its rows once more, side by side as before, and writes those that are missing.
"""
import argparse
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
from tasks.prompts import THINK, Prompt
from tasks.rendering import Rendered, decode_answers, render
from weights import is_chat_model

# A call of `generate` is given several rollout batches, so that waiting rows take the places of those that
# have ended: at least one, and at most so many tokens. A kill costs one call.
CALL_TOKENS = 1 << 18
WRITE_S = 30.0                  # what has ended waits no longer, so that with the judge's time it is a minute
CALL = "call.json"              # names of the questions of the call under way, in the directory of results
place_of = itemgetter("bench", "id", "member", "sample")                # which answer a row is



# ---- a benchmark from its start to its end -----------------------------------------------------------------

@dataclass(frozen=True)
class Question:
    """An item as a member is asked it; its --samples answers are drawn together."""
    item: object                        # with .bench and .id
    prompt: Rendered
    member: str

    @property
    def name(self) -> tuple[str, str, str]:
        """Which item is answered, and by whom."""
        return self.item.bench, self.item.id, self.member


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
    exam = Exam(
        items,
        ask=lambda item: ask(item, prompt_format, population.base),
        verify=lambda answers: verify(answers, prompt_format),
        prompt_format=prompt_format,
        answer=answer,
    )
    return run, answer_all(population, exam, args, run, done)


def self_test(items: list, published: Callable, verify: Callable) -> int:
    """Prints as JSON how many published(item) answers pass, by benchmark. Returns 0 where all do."""
    counts = {}
    exit_code = 0
    answers = [(item, published(item)) for item in items]
    for item, row in zip(items, verify(answers, "envelope")):
        count = counts.setdefault(item.bench, dict(n=0, right=0))
        count["n"] += 1
        if row["correct"]:
            count["right"] += 1
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


def put(question: str | Prompt | list[int], prompt_format: str, base: Base) -> Rendered:
    """A question as the model is given it: by the chat template, in the R1 envelope, or as "Question: ...
    Answer:". A Prompt is put as in training; token ids, of a benchmark with its own words, stay as they
    are."""
    if isinstance(question, list):
        return Rendered(question)
    if isinstance(question, Prompt):
        prompt = question
    elif prompt_format == "plain":
        return Rendered(base.tokenizer(f"Question: {question}\nAnswer:").input_ids)
    elif prompt_format == "envelope":
        prompt = Prompt(question, THINK)
    else:
        prompt = Prompt(question)
    in_training = "base" if prompt_format == "envelope" else prompt_format      # the envelope's name there
    return render(prompt, in_training, base.tokenizer, base.day)


def fits(longest: Question, max_new: int, context: int) -> None:
    """Raises UserError where the longest question and max_new tokens exceed the base's context."""
    n = len(longest.prompt.ids)
    if n + max_new > context:
        fix = "it is too long"
        if n < context:
            fix = f"lower --max-new-tokens to at most {context - n}"
        raise UserError(f"{'/'.join(longest.name[:2])} has {n} tokens, which with --max-new-tokens {max_new} "
                        f"exceeds the base's context of {context}: {fix}")


# ---- answers -----------------------------------------------------------------------------------------------

@dataclass
class Book:
    """Takes answers as they end, and writes them with their verdicts to answers.jsonl."""
    run: RunDir
    verify: Callable
    max_rows: int                       # of one go of the judge, whose tests take memory
    n_samples: int                      # of a question
    have: dict[tuple, dict]             # the rows that are written, by place; none is written twice
    bar: tqdm
    call: list[Question] = field(default_factory=list)      # under way
    waiting: list[tuple] = field(default_factory=list)      # (item, row with its text), not judged yet
    written_s: float = field(default_factory=time.monotonic)

    def begin(self, call: list[Question]) -> None:
        """A call: its rows are the samples of its questions, in order."""
        self.call = call
        self.run.write_json(CALL, [question.name for question in call])

    def ended(self, given: dict[int, dict]) -> None:
        """What `answer_call` says: answers of the call, by number; perhaps none, for time passes."""
        for number, more in given.items():
            place, sample = divmod(number, self.n_samples)
            question = self.call[place]
            bench, id, member = question.name
            row = dict(bench=bench, id=id, member=member, sample=sample) | more
            if place_of(row) not in self.have:
                row["text"] = question.prompt.opening + row["text"]
                self.waiting.append((question.item, row))
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


def calls_of(
    questions: list[Question],          # from short to long ones
    missing: set[tuple],                # names of those of which an answer is missing
    n: int,                             # questions of a call
    run: RunDir,
) -> list[list[Question]]:
    """The questions of which an answer is missing, in calls; an interrupted call first, with all of its
    questions, lest other rows stand beside its missing ones than did before."""
    path = run.path / CALL
    began = set()
    if path.exists():
        began = set(map(tuple, json.loads(path.read_bytes())))
    first, rest = [], []
    for question in questions:
        if question.name in began:
            first.append(question)
        elif question.name in missing:
            rest.append(question)
    calls = [rest[start:start + n] for start in range(0, len(rest), n)]
    if began & missing:
        calls.insert(0, first)
    return calls


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
    questions, places = [], []
    for item in exam.items:
        prompt = put(exam.ask(item), exam.prompt_format, population.base)
        for member in population.slots:
            questions.append(Question(item, prompt, member))
            places += [(item.bench, item.id, member, sample) for sample in range(args.samples)]
    missing = set(places) - have.keys()
    by_length = sorted(questions, key=lambda question: len(question.prompt.ids))
    longest = by_length[-1]
    fits(longest, args.max_new, population.base.model.cfg.max_position_embeddings)
    n_tokens = len(longest.prompt.ids) + args.max_new
    n_rows = args.max_rows * max(1, CALL_TOKENS // (args.max_rows * n_tokens))
    names = {place[:-1] for place in missing}
    calls = calls_of(by_length, names, max(1, n_rows // args.samples), run)
    with tqdm(total=len(missing), desc="answers", disable=None) as bar:         # None: not into a file
        book = Book(run, exam.verify, args.max_rows, args.samples, have, bar)
        answer = exam.answer or answer_call
        for call in calls:
            book.begin(call)
            answer(population, call, args, exam.prompt_format, book.ended)
            book.close()
    rows = [have[place] for place in places]
    n_failed = sum(row["correct"] is None for row in rows)
    n_errors = sum("grader_error" in row for row in rows)
    if n_failed or n_errors:
        print(f"note: the sandbox failed on {n_failed} answers, whose questions count for nobody (the same "
              f"command asks them again); {n_errors} could not be graded and count as wrong", file=sys.stderr)
    return rows


def answer_call(
    population: Population,
    call: list[Question],
    args: argparse.Namespace,
    prompt_format: str,
    ended: Callable,
) -> None:
    """Answers questions by one call of `generate`, --samples rows each. As they end, they go to
    ended({number: dict(tokens, text)}), which is also called while none ends."""
    base = population.base
    prompts, slots, keys = [], [], []
    for question in call:
        prompts.append(question.prompt.ids)
        slots.append(population.slots[question.member])
        bench, id, member = question.name
        key = args.seed, crc32(f"{bench}/{id}".encode()), crc32(member.encode())
        keys += [(*key, sample) for sample in range(args.samples)]
    closing, = {question.prompt.closing for question in call}
    sampling = SamplingParams(args.samples, args.temperature, args.max_new, args.max_rows, closing)

    def watch(rollout: Rollout, numbers: list[int]) -> None:
        given = {}
        if numbers:
            part = rollout.select(torch.tensor(numbers, device=rollout.ids.device))
            texts = decode_answers(part.answers(base.eos_ids), base.tokenizer, special=False)
            for number, text, tokens in zip(numbers, texts, part.n_tokens.tolist()):
                if prompt_format == "plain":        # a base goes on to ask itself
                    text = text.partition("\nQuestion:")[0]
                given[number] = dict(tokens=tokens, text=text)
        ended(given)

    generate(base, population.adapters, Prompts(prompts, slots, keys), sampling, ALONE, watch)
