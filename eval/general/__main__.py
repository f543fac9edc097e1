"""General knowledge: MMLU by the likelihood of the letter, with five examples, as published.

    python -m eval.general --self-test --data DIR   # can every question be read? JSON line last
    python -m eval.general --run out/NAME           # base and members of the last checkpoint, 57 subjects
    python -m eval.general --run out/NAME --subjects anatomy,virology --limit 20

Asked is the published prompt, and the answer is the likeliest of " A" to " D": one forward pass for many
questions and all members. Answers go to answers.jsonl as they come; the means over questions (micro) and over
subjects (macro), and the subjects, to summary.json and the terminal. The same command goes on where it
stopped.
"""
import json
import sys
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from eval import common
from eval.answering import place_of
from eval.general.data import LETTERS, N_QUESTIONS, N_SHOTS, Question, Subject, load
from eval.general.scoring import cropped, letter_ids, letter_logps, shared_length
from eval.stats import bootstrap
from eval.summary import BASE, aligned, shares, summarise, table, with_means
from run.checkpoint import RunDir

LINE = 4096                     # tokens of a line of questions, if one alone is not longer
PASS = 1 << 15                  # tokens of a forward pass, a line for each of the members


@dataclass(frozen=True)
class Item:
    """A question with its prompt's tokens and how many examples these hold."""
    bench: str
    id: str
    question: Question
    ids: list[int]
    n_shots: int


def items_of(subjects: list[Subject], split: str, limit: int, base) -> list[Item]:
    """The first `limit` questions (0 = all) of each subject. Raises ValueError where one does not fit."""
    items, context = [], base.model.cfg.max_position_embeddings
    for subject in subjects:
        for number, question in enumerate(subject.questions[:limit or None]):
            ids, n_shots = cropped(subject.shots, question, base.tokenizer, context)
            items.append(Item("mmlu", f"{split}/{subject.name}/{number}", question, ids, n_shots))
    return items


def lines_of(items: list[Item]) -> list[list[Item]]:
    """Items that share a line: of one subject, with as many examples, together LINE tokens or one item."""
    groups, lines = {}, []
    for item in items:
        groups.setdefault((item.question.subject, item.n_shots), []).append(item)
    for group in groups.values():
        n_shared = shared_length([item.ids for item in group])
        room = 0
        for item in group:
            n_own = len(item.ids) - n_shared
            if n_own > room:
                lines.append([])
                room = LINE - n_shared
            lines[-1].append(item)
            room -= n_own
    return lines


def row_of(item: Item, member: str, logps: list[float]) -> dict:
    """A line of answers.jsonl: the likeliest letter, the first of equals."""
    answer = LETTERS[max(range(len(LETTERS)), key=logps.__getitem__)]
    asked = item.question
    return dict(bench=item.bench, id=item.id, member=member, sample=0, correct=answer == asked.gold,
                answer=answer, gold=asked.gold, subject=asked.subject, shots=item.n_shots,
                logp=[round(x, 4) for x in logps], tokens=0)


def answer_all(population: common.Population, items: list[Item], run: RunDir, done: list[dict]) -> list[dict]:
    """Every member's likeliest letter for every item, those on disk first, written by line of questions."""
    letter_ids(population.base.tokenizer)               # raises where the vocabulary has no letters
    have = {place_of(row): row for row in done}
    places = [(item.bench, item.id, name, 0) for item in items for name in population.slots]
    n_members = max(1, PASS // LINE)
    with tqdm(total=len(places), desc="likelihoods", disable=not sys.stderr.isatty()) as bar:
        bar.update(sum(place in have for place in places))
        for line in lines_of(items):
            wanted = [name for name in population.slots
                      if any((item.bench, item.id, name, 0) not in have for item in line)]
            for start in range(0, len(wanted), n_members):
                some, rows = wanted[start:start + n_members], []
                logps = letter_logps(population, [item.ids for item in line], some).tolist()
                for name, of_member in zip(some, logps):
                    rows += [row_of(item, name, four) for item, four in zip(line, of_member)]
                rows = [row for row in rows if place_of(row) not in have]
                run.append("answers.jsonl", rows)
                have |= {place_of(row): row for row in rows}
                bar.update(len(rows))
    return [have[place] for place in places]


# ---- tables ------------------------------------------------------------------------------------------------

def by_subject(share: dict[str, float]) -> list[np.ndarray]:
    """The values of items SPLIT/SUBJECT/NUMBER, subject by subject."""
    subjects = {}
    for id, value in share.items():
        subjects.setdefault(id.split("/")[1], []).append(value)
    return [np.array(values) for values in subjects.values()]


def macro(rows: list[dict]) -> list[dict]:
    """The lines of `summarise` with means over subjects, not over questions; n is the number of subjects.

    Intervals by bootstrap over the questions within each subject.
    """
    share, out = with_means(shares(rows)["mmlu"]), []
    for line in summarise(rows, 1):
        ours = share[line["member"]]
        parts = by_subject(ours)
        line |= dict(n=len(parts), accuracy=float(np.mean([part.mean() for part in parts])),
                     interval=bootstrap(parts).tolist())
        if "minus_base" in line:
            gains = by_subject({id: value - share[BASE][id] for id, value in ours.items()})
            line |= dict(minus_base=float(np.mean([gain.mean() for gain in gains])),
                         minus_base_interval=bootstrap(gains).tolist())
        out.append(line)
    return out


def subject_table(lines: list[dict]) -> str:
    """Shares by subject for the terminal: of the base, and of those whom the run trained to solve, who come
    last (summary.with_means)."""
    subjects = {}
    for line in lines:
        subjects.setdefault(line["bench"], []).append(line)
    out = [["subject", "    n", next(iter(subjects.values()))[0]["member"], lines[-1]["member"]]]
    for subject, some in subjects.items():
        out.append([subject, f"{some[0]['n']:5}", *(f"{some[end]['accuracy']:.3f}" for end in (0, -1))])
    return aligned(out)


# ---- the command -------------------------------------------------------------------------------------------

def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    without = ("bench", "limit", "samples", "temperature", "max-new-tokens", "prompt", "seed",
               "rollout-batch")
    parser = common.parser_of("eval.general", __doc__, None, without)
    parser.add_argument("--limit", type=int, default=0, help="questions of each subject, the first; 0 = all")
    parser.add_argument("--subjects", default="", help="names, separated by commas; default: all")
    parser.add_argument("--split", default="test", choices=tuple(N_QUESTIONS),
                        help="choose members on val, claim on test")
    parser.add_argument("--self-test", action="store_true", help="read the questions; needs no model")
    parser.set_defaults(samples=1, temperature=0.0, max_new=1, max_rows=1, seed=0)
    args = parser.parse_args(argv)
    common.check(args)
    subjects = load(args.data, args.split)
    names = common.choose(args.subjects, tuple(s.name for s in subjects), "--subjects", "subject")
    subjects = [subject for subject in subjects if not names or subject.name in names]
    if args.self_test:
        print(json.dumps({"mmlu": dict(subjects=len(subjects), n=sum(len(s.questions) for s in subjects))}))
        return 0
    population = common.load(args)
    default = "eval-general" if args.split == "test" else f"eval-general-{args.split}"
    hashes = {f"{args.split} {subject.name}": subject.sha256 for subject in subjects}
    run, done = common.open_out(args, population, "plain", hashes, default)
    rows = answer_all(population, items_of(subjects, args.split, args.limit, population.base), run, done)
    if n_cropped := len({row["id"] for row in rows if row["shots"] < N_SHOTS}):
        print(f"note: {n_cropped} prompts have fewer than {N_SHOTS} examples: no more are there, or fit the "
              "base's context", file=sys.stderr)
    lines, macros = summarise([row | dict(bench=row["subject"]) for row in rows], 1), macro(rows)
    print(f"{subject_table(lines)}\n\nmeans over subjects (macro):\n{table(macros)}\n\n"
          "means over questions (micro):")
    common.conclude(args, run, rows, split=args.split, limit=args.limit, macro=macros,
                    subjects=lines)
    return 0


if __name__ == "__main__":
    common.command("eval.general", main)
