"""Answers in mixed batches: questions become token ids, members answer side by side, verdicts go to the disk.

A benchmark gives its items (anything with .bench and .id), a question per item, and judge([(item, text)]) ->
list of dicts with "correct" and whatever else its line in answers.jsonl should hold. All members and the bare
base answer side by side, one member index a row; every answer is drawn from (seed, item, member, sample)
alone, so that an interrupted run goes on as if it had not been. Where the last bits of a row hang on those
beside it (bfloat16, GPUs): which these are depends on questions and flags alone.
"""
import argparse
import itertools
import sys
from collections.abc import Callable
from zlib import crc32

from tqdm import tqdm

from eval.common import Population
from generate import Prompts, SamplingParams, generate
from model import Base
from run.checkpoint import RunDir
from tasks.prompts import ENVELOPE, FORMATS, Prompt, chat_text, render
from weights import closing_table, is_chat_model

# A call of `generate` is given several rollout batches, so that waiting rows take the places of those that
# have ended: at least one, and at most so many tokens. Its answers reach the disk together, so that after a
# kill, which costs one call, the remaining calls are the same.
CALL_TOKENS = 1 << 18


# ---- questions ---------------------------------------------------------------------------------------------

def pick_prompt_format(args: argparse.Namespace, base: Base) -> str:
    """--prompt with auto decided. Raises ValueError for a chat template that is not there."""
    if args.prompt in ("chat", "direct") and not base.tokenizer.chat_template:
        raise ValueError(f"--prompt {args.prompt}: {base.path} has no chat template; use envelope or plain")
    if args.prompt == "auto":
        return "chat" if is_chat_model(base.tokenizer, base.eos_ids) else "plain"
    return args.prompt


def put(question: str | Prompt | list[int], prompt_format: str, base: Base) -> list[int]:
    """Token ids of a question: by the chat template, in the R1 envelope, or as "Question: ... Answer:".

    A task's Prompt is put as in training; token ids, of a benchmark with its own words, stay as they are.
    """
    if isinstance(question, list):
        return question
    if isinstance(question, Prompt):
        return render(question, base.prompt_format, base.tokenizer)
    if prompt_format in ("chat", "direct"):
        said = [{"role": "user", "content": question}]
        text = chat_text(said, prompt_format, base.tokenizer)
        return list(base.tokenizer(text, add_special_tokens=False).input_ids)
    text = f"Question: {question}\nAnswer:"
    if prompt_format == "envelope":
        text = ENVELOPE.format(question) + "<think>"
    return list(base.tokenizer(text).input_ids)


def closing_text(prompt_format: str) -> str:
    """The text that ends an answer, "" where only end tokens do. The envelope is that of the base format."""
    if prompt_format == "plain":
        return ""
    return FORMATS["base" if prompt_format == "envelope" else prompt_format].closing


def fits(ids: dict, max_new: int, context: int) -> None:
    """Raises ValueError where the longest question and max_new tokens exceed the base's context."""
    longest = max(ids, key=lambda name: len(ids[name]))
    n = len(ids[longest])
    if n + max_new > context:
        fix = f"lower --max-new-tokens to at most {context - n}" if n < context else "it is too long"
        raise ValueError(f"{'/'.join(longest)} has {n} tokens, which with --max-new-tokens {max_new} exceeds "
                         f"the base's context of {context}: {fix}")


# ---- answers -----------------------------------------------------------------------------------------------

def place_of(row: dict) -> tuple[str, str, str, int]:
    """Which answer a row of answers.jsonl is."""
    return row["bench"], row["id"], row["member"], row["sample"]


def answer_all(population: Population, items: list, question: Callable, judge: Callable,
               args: argparse.Namespace, run: RunDir, done: list[dict], prompt_format: str) -> list[dict]:
    """Every member's answers to every item, those on disk first: dicts as in answers.jsonl, written by batch.

    question(item) -> text, token ids, or Prompt (whose prefix the judge puts before the text); judge as in
    `judged`; summary.comparable leaves out what the sandbox failed on. Raises ValueError where a question
    does not fit the context.
    """
    have = {place_of(row): row for row in done}
    ids = {(item.bench, item.id): put(question(item), prompt_format, population.base) for item in items}
    fits(ids, args.max_new, population.base.model.cfg.max_position_embeddings)
    wanted, places = [], []
    for item, member in itertools.product(items, population.slots):
        each = [(item.bench, item.id, member, sample) for sample in range(args.samples)]
        places += each
        if missing := [sample for sample, place in enumerate(each) if place not in have]:
            wanted.append((item, member, missing))
    wanted.sort(key=lambda unit: (len(unit[2]), len(ids[unit[0].bench, unit[0].id])))
    n_rows = args.max_rows * max(1, CALL_TOKENS // (args.max_rows * args.max_new))
    with tqdm(total=len(places), desc="answers", disable=not sys.stderr.isatty()) as bar:
        bar.update(bar.total - sum(len(missing) for _, _, missing in wanted))
        while wanted:
            n = len(wanted[0][2])
            several = wanted[:max(1, n_rows // n)]
            several = [unit for unit in several if len(unit[2]) == n]
            wanted = wanted[len(several):]
            answers, rows = answer_units(population, several, ids, args, prompt_format), []
            for start in range(0, len(answers), args.max_rows):     # a suite of tests in memory is large
                rows += judged_rows(answers[start:start + args.max_rows], judge)
            run.append("answers.jsonl", rows)
            have |= {place_of(row): row for row in rows}
            bar.update(len(rows))
    rows = [have[place] for place in places]
    if n_failed := sum(row["correct"] is None for row in rows):
        print(f"note: the sandbox failed on {n_failed} answers, whose questions count for nobody; the same "
              "command asks them again", file=sys.stderr)
    if errors := [row["grader_error"] for row in rows if "grader_error" in row]:
        print(f"note: the grader failed on {len(errors)} answers ({', '.join(sorted(set(errors)))}), which "
              f"count as wrong: see grader_error in {run.path / 'answers.jsonl'}", file=sys.stderr)
    return rows


def answer_units(population: Population, units: list[tuple], ids: dict, args: argparse.Namespace,
                 prompt_format: str) -> list[tuple]:
    """(item, which answer, what it says) for units (item, member, numbers of samples), all of one length."""
    base, asked, keys = population.base, [], []
    for item, member, samples in units:
        drawn = (args.seed, crc32(f"{item.bench}/{item.id}".encode()), crc32(member.encode()))
        for sample in samples:
            asked.append((item, dict(bench=item.bench, id=item.id, member=member, sample=sample)))
            keys.append((*drawn, sample))
    prompts = [ids[item.bench, item.id] for item, _, _ in units]
    slots = [population.slots[member] for _, member, _ in units]
    closing = closing_table(base.tokenizer, closing_text(prompt_format), base.model.cfg.vocab_size,
                            base.model.embedding.device)
    sampling = SamplingParams(len(units[0][2]), args.temperature, args.max_new, args.max_rows, closing)
    rollout = generate(base, population.adapters, Prompts(prompts, slots, keys), sampling)
    texts = base.tokenizer.batch_decode(rollout.answers(base.eos_ids), skip_special_tokens=True,
                                        clean_up_tokenization_spaces=False)
    answers = []
    for (item, which), tokens, text in zip(asked, rollout.n_tokens.tolist(), texts):
        if prompt_format == "plain":
            text = text.partition("\nQuestion:")[0]                  # a base that goes on to ask itself
        answers.append((item, which, dict(tokens=tokens, text=text)))
    return answers


def judged_rows(answers: list[tuple], judge: Callable) -> list[dict]:
    """Rows of answers.jsonl for what `answer_units` gives."""
    verdicts = judged(judge, [(item, said["text"]) for item, _, said in answers])
    return [which | verdict | said for (_, which, said), verdict in zip(answers, verdicts)]


def judged(judge: Callable, answers: list[tuple]) -> list[dict]:
    """judge([(item, text)]) -> [dict with "correct"]; an answer on which it raises counts as wrong.

    Its verdict is that of an empty answer, with the exception's name as "grader_error". What is wrong with
    the machine is raised: OSError (sympy does not start) and RuntimeError itself (the sandbox does not).
    """
    try:
        return judge(answers)
    except Exception as e:
        if isinstance(e, OSError) or type(e) is RuntimeError:
            raise
        if len(answers) == 1:
            empty, = judge([(answers[0][0], "")])
            return [empty | dict(correct=False, grader_error=type(e).__name__)]
    return [verdict for answer in answers for verdict in judged(judge, [answer])]
