"""Answers in mixed batches: questions become token ids, members answer side by side, verdicts go to the disk.

A benchmark gives its items (anything with .bench and .id), a question per item, and verify([(item, text)]) ->
list of dicts with "correct" and whatever else its line in answers.jsonl should hold. All members and the bare
base answer side by side, one member index a row; every answer is drawn from (seed, item, member, sample)
alone, so that an interrupted run goes on as if it had not been. Where the last bits of a row hang on those
beside it (bfloat16, GPUs): which these are depends on questions and flags alone.
"""
import argparse
import json
import sys
from collections.abc import Callable
from operator import itemgetter
from zlib import crc32

from tqdm import tqdm

from eval import common
from eval.common import Population
from generate import Prompts, SamplingParams, generate
from model import Base
from run.checkpoint import RunDir
from tasks.prompts import FORMATS, THINK, Prompt, Rendered, decode_answers, render
from weights import is_chat_model

# A call of `generate` is given several rollout batches, so that waiting rows take the places of those that
# have ended: at least one, and at most so many tokens. Its answers reach the disk together, so that after a
# kill, which costs one call, the remaining calls are the same.
CALL_TOKENS = 1 << 18
place_of = itemgetter("bench", "id", "member", "sample")                # which answer a row is


def evaluate(args: argparse.Namespace, name: str, items: list, hashes: dict[str, str], ask: Callable,
             verify: Callable, answer: Callable | None = None) -> tuple[RunDir, list[dict]]:
    """The directory of results and the rows of a whole benchmark. name: that of the directory; hashes:
    SHA-256 of its files; ask(item, prompt format, base), verify(answers, prompt format) and answer are those
    of `answer_all`."""
    population = common.load(args)
    prompt_format = pick_prompt_format(args, population.base)
    run, done = common.open_out(args, population, prompt_format, hashes, name)
    return run, answer_all(population, items, lambda item: ask(item, prompt_format, population.base),
                           lambda answers: verify(answers, prompt_format), args, run, done, prompt_format,
                           answer)


def self_test(items: list, published: Callable, verify: Callable) -> int:
    """Prints as JSON how many published(item) answers pass, by benchmark. Returns 0 where all do."""
    counts = {item.bench: dict(n=0, right=0) for item in items}
    for item, row in zip(items, verify([(item, published(item)) for item in items], "envelope")):
        counts[item.bench]["n"] += 1
        counts[item.bench]["right"] += bool(row["correct"])
        if not row["correct"]:
            print(f"{item.bench} {item.id}: the published answer does not pass: {row}"[:400], file=sys.stderr)
    print(json.dumps(counts))
    return int(any(count["right"] < count["n"] for count in counts.values()))


def pick_prompt_format(args: argparse.Namespace, base: Base) -> str:
    """--prompt with auto decided. Raises ValueError for a chat template that is not there."""
    if args.prompt in ("chat", "direct") and not base.tokenizer.chat_template:
        raise ValueError(f"--prompt {args.prompt}: {base.path} has no chat template; use envelope or plain")
    if args.prompt == "auto":
        return "chat" if is_chat_model(base.tokenizer, base.eos_ids) else "plain"
    return args.prompt


def put(question: str | Prompt | list[int], prompt_format: str, base: Base) -> Rendered:
    """A question as the model is given it: by the chat template, in the R1 envelope, or as "Question: ...
    Answer:". A Prompt is put as in training; token ids, of a benchmark with its own words, stay as they
    are."""
    if isinstance(question, list):
        return Rendered(question)
    if isinstance(question, str) and prompt_format == "plain":
        return Rendered(list(base.tokenizer(f"Question: {question}\nAnswer:").input_ids))
    if isinstance(question, str):
        question = Prompt(question, THINK if prompt_format == "envelope" else "")
    form = "base" if prompt_format == "envelope" else prompt_format
    return render(question, form, base.tokenizer, base.day)


def fits(ids: dict, max_new: int, context: int) -> int:
    """Tokens of the longest question. Raises ValueError where it and max_new exceed the base's context."""
    n, name = max((len(tokens), name) for name, tokens in ids.items())
    if n + max_new > context:
        fix = f"lower --max-new-tokens to at most {context - n}" if n < context else "it is too long"
        raise ValueError(f"{'/'.join(name)} has {n} tokens, which with --max-new-tokens {max_new} exceeds "
                         f"the base's context of {context}: {fix}")
    return n


def answer_all(population: Population, items: list, ask: Callable, verify: Callable,
               args: argparse.Namespace, run: RunDir, done: list[dict], prompt_format: str,
               answer: Callable | None = None) -> list[dict]:
    """Every member's answers to every item, those on disk first: dicts as in answers.jsonl, written by call.

    ask(item) -> text, token ids or Prompt; verify as in `verified`, whose texts begin with what the prompt
    holds of the answer (Rendered.opening); answer: `answer_call`, or what stands for it; summary.comparable
    leaves out what the sandbox failed on. Raises ValueError where a question does not fit the context.
    """
    have = {place_of(row): row for row in done}
    rendered = {(item.bench, item.id): put(ask(item), prompt_format, population.base) for item in items}
    ids = {name: prompt.ids for name, prompt in rendered.items()}
    n_tokens = fits(ids, args.max_new, population.base.model.cfg.max_position_embeddings) + args.max_new
    groups = []                                     # a member's samples of an item, which are drawn together
    for item in items:
        for member in population.slots:
            groups.append([(item, dict(bench=item.bench, id=item.id, member=member, sample=sample))
                           for sample in range(args.samples)])
    wanted = [group for group in groups if any(place_of(row) not in have for _, row in group)]
    wanted.sort(key=lambda group: len(ids[group[0][0].bench, group[0][0].id]))
    n_rows = args.max_rows * max(1, CALL_TOKENS // (args.max_rows * n_tokens))
    size = max(1, n_rows // args.samples)
    for start in tqdm(range(0, len(wanted), size), "answers", disable=not sys.stderr.isatty()):
        asked = [pair for group in wanted[start:start + size] for pair in group]
        given = (answer or answer_call)(population, [row for _, row in asked], ids, args, prompt_format)
        answers, rows = [], []
        for (item, row), more in zip(asked, given):
            if place_of(row) not in have:
                opening = rendered[item.bench, item.id].opening
                answers.append((item, row | more | dict(text=opening + more["text"])))
        for first in range(0, len(answers), args.max_rows):             # tests in memory are large
            part = answers[first:first + args.max_rows]
            verdicts = verified(verify, [(item, row["text"]) for item, row in part])
            rows += [row | verdict for (_, row), verdict in zip(part, verdicts)]
        run.append("answers.jsonl", rows)
        have |= {place_of(row): row for row in rows}
    rows = [have[place_of(row)] for group in groups for _, row in group]
    n_failed = sum(row["correct"] is None for row in rows)
    n_errors = sum("grader_error" in row for row in rows)
    if n_failed or n_errors:
        print(f"note: the sandbox failed on {n_failed} answers, whose questions count for nobody (the same "
              f"command asks them again); {n_errors} could not be graded and count as wrong", file=sys.stderr)
    return rows


def answer_call(population: Population, rows: list[dict], ids: dict, args: argparse.Namespace,
                prompt_format: str) -> list[dict]:
    """dict(tokens, text) for each row, --samples of an item and member in turn, by one call of `generate`."""
    base = population.base
    keys = [(args.seed, crc32(f"{row['bench']}/{row['id']}".encode()), crc32(row["member"].encode()),
             row["sample"]) for row in rows]
    prompts = [ids[row["bench"], row["id"]] for row in rows[::args.samples]]
    slots = [population.slots[row["member"]] for row in rows[::args.samples]]
    form = FORMATS.get("base" if prompt_format == "envelope" else prompt_format)        # plain has none
    sampling = SamplingParams(args.samples, args.temperature, args.max_new, args.max_rows,
                              form.closing if form else "")
    rollout = generate(base, population.adapters, Prompts(prompts, slots, keys), sampling)
    texts = decode_answers(rollout.answers(base.eos_ids), base.tokenizer, special=False)
    if prompt_format == "plain":                    # a base goes on to ask itself
        texts = [text.partition("\nQuestion:")[0] for text in texts]
    return [dict(tokens=tokens, text=text) for tokens, text in zip(rollout.n_tokens.tolist(), texts)]


def verified(verify: Callable, answers: list[tuple]) -> list[dict]:
    """verify([(item, text)]) -> [dict with "correct"]; an answer on which it raises counts as wrong, with the
    exception's name as "grader_error". What is wrong with the machine is raised: OSError (sympy does not
    start) and RuntimeError itself (the sandbox does not)."""
    try:
        return verify(answers)
    except Exception as e:
        if isinstance(e, OSError) or type(e) is RuntimeError:
            raise
        if len(answers) == 1:
            return [dict(correct=False, grader_error=type(e).__name__)]
    return [verdict for answer in answers for verdict in verified(verify, [answer])]
