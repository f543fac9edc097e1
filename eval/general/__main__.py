"""General knowledge: MMLU, by the likelihood of the letter and by generation, with five examples.

    python -m eval.general --self-test --data DIR   # right letters right, wrong ones wrong? JSON line last
    python -m eval.general --run out/NAME           # base and members of the last checkpoint, 57 subjects
    python -m eval.general --run out/NAME --bench mmlu --subjects anatomy,virology --limit 20

`mmlu` asks with the published prompt and takes the likeliest of " A" to " D", as published: one forward pass,
whatever --prompt says. `mmlu-gen` puts the same text by --prompt and takes the letter that the answer gives
first. Answers go to answers.jsonl as they come; the means over questions (micro) and over subjects (macro) to
summary.json and the terminal, and so do the subjects. The same command goes on where it stopped.
"""
import argparse
import functools
import json
import sys
from dataclasses import dataclass

from tqdm import tqdm

from eval import answering, common
from eval.general.data import LETTERS, N_QUESTIONS, N_SHOTS, Question, Subject, load
from eval.general.scoring import (before_letter, cropped, extract, letter_ids, letter_logps, likeliest,
                                  shared_length)
from eval.general.tables import by_subject, macro, subject_table
from eval.summary import table
from run.checkpoint import RunDir

BENCHES = ("mmlu", "mmlu-gen")
LINE = 4096                     # tokens of a line of questions, if one alone is not longer
PASS = 1 << 15                  # tokens of a forward pass, a line for each of the members
# How an answer may give its letter: the self-test's.
FORMS = (" {}", "{}. A choice", "({})", "**{}**", "The answer is {}.", "It is $\\boxed{{\\text{{{}}}}}$.",
         "Is it A? No.</think> <answer>{}</answer>\nUser: And then?\nAssistant: <answer>E</answer>")


@dataclass(frozen=True)
class Item:
    """A question of one of the benches, with its subject's examples."""
    bench: str
    id: str
    question: Question
    shots: tuple[Question, ...]


def items_of(bench: str, subjects: list[Subject], split: str, limit: int) -> list[Item]:
    """The first `limit` questions (0 = all) of each subject."""
    items = []
    for subject in subjects:
        for number, question in enumerate(subject.questions[:limit or None]):
            items.append(Item(bench, f"{split}/{subject.name}/{number}", question, subject.shots))
    return items


def noted(item: Item, answer: str, n_shots: int) -> dict:
    """The verdict on a letter, and what else stands in its row."""
    asked = item.question
    return dict(correct=answer == asked.gold, answer=answer, gold=asked.gold, subject=asked.subject,
                shots=n_shots)


# ---- by likelihood -----------------------------------------------------------------------------------------

def lines_of(items: list[Item], asked: dict[str, tuple[list[int], int]]) -> list[list[Item]]:
    """Items that share a line: of one subject, with as many examples, together LINE tokens or one item.

    asked: token ids of each item's prompt and how many examples it has, by the item's id.
    """
    groups, lines = {}, []
    for item in items:
        groups.setdefault((item.question.subject, asked[item.id][1]), []).append(item)
    for group in groups.values():
        n_shared = shared_length([asked[item.id][0] for item in group])
        room = 0
        for item in group:
            n_own = len(asked[item.id][0]) - n_shared
            if n_own > room:
                lines.append([])
                room = LINE - n_shared
            lines[-1].append(item)
            room -= n_own
    return lines


def by_likelihood(population: common.Population, items: list[Item], run: RunDir,
                  done: list[dict]) -> list[dict]:
    """Every member's likeliest letter for every item, those on disk first: see answering.answer_all.

    Raises ValueError where a question does not fit the context, or the vocabulary has no letters.
    """
    base, have = population.base, {answering.place_of(row): row for row in done}
    letter_ids(base.tokenizer)
    tokens_of = functools.partial(before_letter, base.tokenizer)
    context = base.model.cfg.max_position_embeddings
    asked = {item.id: cropped(item.shots, item.question, tokens_of, context) for item in items}
    places = [(item.bench, item.id, name, 0) for item in items for name in population.slots]
    with tqdm(total=len(places), desc="likelihoods", disable=not sys.stderr.isatty()) as bar:
        bar.update(sum(place in have for place in places))
        for line in lines_of(items, asked):
            wanted = []
            for name in population.slots:
                if any((item.bench, item.id, name, 0) not in have for item in line):
                    wanted.append(name)
            prompts = [asked[item.id][0] for item in line]
            n_members = max(1, PASS // LINE)
            for start in range(0, len(wanted), n_members):
                some = wanted[start:start + n_members]
                rows = []
                for name, logps in zip(some, letter_logps(population, prompts, some).tolist()):
                    for item, four in zip(line, logps):
                        which = dict(bench=item.bench, id=item.id, member=name, sample=0)
                        said = dict(logp=[round(x, 4) for x in four], tokens=0, text="")
                        rows.append(which | noted(item, likeliest(four), asked[item.id][1]) | said)
                rows = [row for row in rows if answering.place_of(row) not in have]
                run.append("answers.jsonl", rows)
                have |= {answering.place_of(row): row for row in rows}
                bar.update(len(rows))
    return [have[place] for place in places]


# ---- by generation -----------------------------------------------------------------------------------------

def by_generation(population: common.Population, items: list[Item], args: argparse.Namespace, run: RunDir,
                  done: list[dict], prompt_format: str) -> list[dict]:
    """Every member's generated answers to every item. Raises ValueError where a question does not fit."""
    base, n_shots = population.base, {}
    room = base.model.cfg.max_position_embeddings - args.max_new

    def tokens_of(text: str) -> list[int]:
        if prompt_format == "plain":
            return list(base.tokenizer(text).input_ids)
        return answering.put(text, prompt_format, base)

    def ask(item: Item) -> list[int]:
        ids, n_shots[item.id] = cropped(item.shots, item.question, tokens_of, room)
        return ids

    def judge(answers: list[tuple[Item, str]]) -> list[dict]:
        return [noted(item, extract(text), n_shots[item.id]) for item, text in answers]

    return answering.answer_all(population, items, ask, judge, args, run, done, prompt_format)


# ---- the command -------------------------------------------------------------------------------------------

def self_test(subjects: list[Subject], limit: int) -> dict:
    """Per bench: n questions, how many right letters are judged right in every form, how many wrong ones are
    in any."""
    result = {}
    for bench in BENCHES:
        counts = dict(n=0, right=0, wrong_right=0)
        for item in items_of(bench, subjects, "self-test", limit):
            gold = item.question.gold
            other = LETTERS[(LETTERS.index(gold) + 1) % len(LETTERS)]
            verdicts = {}
            for letter in (gold, other):
                answers = [extract(form.format(letter)) for form in FORMS]
                if bench == "mmlu":
                    answers = [likeliest([-1.0 - (x != letter) for x in LETTERS])]
                verdicts[letter] = [noted(item, answer, N_SHOTS)["correct"] for answer in answers]
            counts["n"] += 1
            counts["right"] += all(verdicts[gold])
            counts["wrong_right"] += any(verdicts[other])
        result[bench] = counts
    return result


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 where the self-test fails. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.general", __doc__, default_max_new=16, without=("limit",))
    parser.add_argument("--limit", type=int, default=0, help="questions of each subject, the first; 0 = all")
    parser.add_argument("--subjects", default="", help="names, separated by commas; default: all")
    parser.add_argument("--split", default="test", choices=tuple(N_QUESTIONS),
                        help="choose members on val, claim on test")
    parser.add_argument("--self-test", action="store_true", help="judge the right letters; needs no model")
    args = parser.parse_args(argv)
    common.check(args)
    benches = common.choose(args.bench, BENCHES) or list(BENCHES)
    subjects = load(args.data, args.split)
    wanted = common.choose(args.subjects, tuple(s.name for s in subjects), "--subjects", "subject")
    subjects = [subject for subject in subjects if not wanted or subject.name in wanted]
    if args.self_test:
        result = self_test(subjects, args.limit)
        print(json.dumps(result))
        return int(any(counts["right"] != counts["n"] or counts["wrong_right"] for counts in result.values()))
    evaluate(benches, subjects, args)
    return 0


def evaluate(benches: list[str], subjects: list[Subject], args: argparse.Namespace) -> None:
    """Answers, verdicts and the tables of the base and its adapters."""
    population = common.load(args)
    prompt_format = answering.pick_prompt_format(args, population.base)
    default = "eval-general" if args.split == "test" else f"eval-general-{args.split}"
    hashes = {f"{args.split} {subject.name}": subject.sha256 for subject in subjects}
    run, done = common.open_out(args, population, prompt_format, hashes, default)
    rows = []
    for bench in benches:
        items = items_of(bench, subjects, args.split, args.limit)
        if bench == "mmlu":
            rows += by_likelihood(population, items, run, done)
        else:
            rows += by_generation(population, items, args, run, done, prompt_format)
    if n_cropped := len({row["id"] for row in rows if row["shots"] < N_SHOTS}):
        print(f"note: {n_cropped} prompts have fewer than {N_SHOTS} examples: no more are there, or fit the "
              "base's context", file=sys.stderr)
    if n_none := sum(not row["answer"] for row in rows):
        print(f"note: {n_none} generated answers name no letter and count as wrong; with --prompt plain a "
              "model goes on as the examples do", file=sys.stderr)
    by_subjects, macros = by_subject(rows, args.max_new), macro(rows, args.max_new)
    print(f"{subject_table(by_subjects)}\n\nmeans over subjects (macro):\n{table(macros)}\n\n"
          "means over questions (micro):")
    common.conclude(args, run, rows, default, split=args.split, limit=args.limit, macro=macros,
                    subjects=by_subjects)


if __name__ == "__main__":
    common.command("eval.general", main)
