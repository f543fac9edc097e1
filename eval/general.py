"""General knowledge: MMLU (Hendrycks et al. 2021, arXiv 2009.03300) by the likelihood of the letter.

    python -m eval.general --self-test              # can every question be read? JSON line last
    python -m eval.general --run out/NAME           # base and members of the last checkpoint, 57 subjects
    python -m eval.general --run out/NAME --split val --limit 20

The data are the authors' archive, mmlu.tar: data/{dev,val,test}/SUBJECT_{dev,val,test}.csv with question, A,
B, C, D, letter and no header. The prompt is that of hendrycks/test (evaluate.py), to the character, with the
five examples of dev; so is the choice: the letter whose token, with the space before it, has the highest
log-probability after the prompt, the first of equals. (Texts stay as they stand in the archive; the published
code reads with pandas, which writes 0.50 in a column of numbers as 0.5.)
"""
import argparse
import csv
import io
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from eval import answering, common, fetch
from eval.fetch import Item, published
from eval.summary import summarise
from infra.errors import demand, explained
from model import Base

LETTERS = "ABCD"
CSV = re.compile(r"(?:.*/)?(?P<split>dev|val|test)/(?P<subject>\w+)_(?P=split)\.csv")


def questions(raw: bytes, name: str) -> list[tuple[str, str]]:
    """(question with its choices, letter) of a CSV file. Raises UserError that names file and line."""
    damaged = f"mmlu.tar, {name}.csv: remove it, and it is fetched again"
    rows = []
    with explained(damaged, (ValueError, csv.Error)):
        reader = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        for row in reader:
            if row:
                rows.append((reader.line_num, row))
    out = []
    for line, row in rows:
        demand(len(row) == 6 and row[5].strip() in tuple(LETTERS),
               f"{damaged} (line {line}: expected a question, four choices and a letter)")
        question, *choices, letter = row
        lines = [
            question,
            *map("{}. {}".format, LETTERS, choices),
            "Answer:",
        ]
        out.append(("\n".join(lines), letter.strip()))
    return out


def unpack(path: Path, raw: bytes) -> dict[str, dict[str, bytes]]:
    """Split -> subject -> CSV file, of the published archive. Raises UserError for a damaged one."""
    files = defaultdict(dict)
    with explained(f"{path} cannot be read: remove it, and it is fetched again",
                   (tarfile.TarError, EOFError, OSError, ValueError)):
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            for member in tar:
                match = CSV.fullmatch(member.name)
                if match and member.isfile():
                    text = tar.extractfile(member).read()
                    files[match["split"]][match["subject"]] = text
    return files


def load(
    data: str,                          # the folder of the published files
    split: str = "test",
    limit: int = 0,                     # questions of a subject, the first ones; 0 = all
) -> tuple[list[Item], dict[str, str]]:
    """Questions of every subject, and the archive's SHA-256. Raises UserError for a damaged one. (The two
    spaces before the subject's name are the published code's.)"""
    [known] = fetch.FILES["mmlu"]
    path, raw, sha = fetch.read("mmlu", known, data)
    files = unpack(path, raw)
    examples, tested = files["dev"], files[split]
    demand(tested and tested.keys() <= examples.keys(), f"{path} cannot be read: remove it, and it is "
           f"fetched again (it lacks questions ({split}) or examples (dev))")
    items = []
    for subject, text in sorted(tested.items()):
        named = subject.replace("_", " ")
        head = [f"The following are multiple choice questions (with answers) about  {named}."]
        shots = questions(examples[subject], f"{subject}_dev")
        head += map(" ".join, shots[:5])
        asked = questions(text, f"{subject}_{split}")
        for number, (question, gold) in enumerate(asked[:limit or None]):
            prompt = "\n\n".join([*head, question])
            items.append(Item("mmlu", f"{split}/{subject}/{number}", prompt, gold))
    return items, dict(mmlu=sha)


def ask(item: Item, prompt_format: str, base: Base) -> list[int]:
    """Token ids of the prompt, and of what comes before the letter itself (in most vocabularies nothing)."""
    return base.tokenizer(f"{item.question} {LETTERS[0]}").input_ids[:-1]


def letter_ids(tokenizer: object) -> list[int]:
    """The tokens of " A" to " D" after "Answer:". Raises UserError where more than the last one differs."""
    before, letters = set(), []
    for letter in LETTERS:
        *ids, last = tokenizer(f"Answer: {letter}").input_ids
        before.add(tuple(ids))
        letters.append(last)
    demand(len(before) == 1 and len(set(letters)) == len(LETTERS),
           "this base's tokenizer has no token for each letter, so MMLU cannot be asked")
    return letters


@torch.inference_mode()
def letter_logps(
    population: common.Population,
    asked: list[answering.Question],
) -> torch.Tensor:
    """Log-probabilities (B, 4) of the letters after each question, in one forward pass."""
    base = population.base
    embedding = base.model.embedding
    device = embedding.device
    prompts = [torch.tensor(question.prompt.ids) for question in asked]
    ids = pad_sequence(prompts, batch_first=True)                                             # (B, T)
    last = torch.tensor(list(map(len, prompts)), device=device) - 1                           # (B,)
    slots = [population.slots[question.member] for question in asked]
    lora = None
    if population.adapters:
        member = torch.tensor(slots, device=device)
        lora = population.adapters.route(member, embedding.dtype)
    rows = torch.arange(len(prompts), device=device)
    hidden = base.model(ids.to(device), lora=lora)[rows, last]                                # (B, C)
    logits = base.model.logits(hidden).float()                                                # (B, V)
    letters = letter_ids(base.tokenizer)
    return logits[:, letters] - logits.logsumexp(-1, keepdim=True)


def likeliest(
    population: common.Population,
    call: list[answering.Question],
    args: argparse.Namespace,
    prompt_format: str,
    ended: Callable,
) -> None:
    """As answering.answer_call, but the answer is the likeliest letter."""
    for start in range(0, len(call), args.max_rows):
        logps = letter_logps(population, call[start:start + args.max_rows])
        answers = {}
        for number, logp in enumerate(logps.tolist(), start):
            best = logp.index(max(logp))
            digits = [round(x, 4) for x in logp]
            answers[number] = dict(tokens=0, text=LETTERS[best], logp=digits)
        ended(answers)


def verify(
    answers: list[tuple[Item, str]],
    prompt_format: str,
) -> list[dict]:
    """Are the letters right?"""
    rows = []
    for item, letter in answers:
        rows.append(dict(correct=letter == item.gold, gold=item.gold))
    return rows


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    without = "bench", "samples", "temperature", "prompt", "seed", "max-new-tokens"
    parser = common.parser_of("eval.general", __doc__, None, without)
    parser.add_argument("--split", default="test", choices=("test", "val"),
                        help="choose members on val, claim on test")
    parser.set_defaults(
        samples=1,
        temperature=0.0,
        max_new=1,
        seed=0,
        prompt="plain",
    )
    args = common.check(parser.parse_args(argv))
    items, hashes = load(args.data, args.split, args.limit)
    if args.self_test:
        return answering.self_test(items, published, verify)
    name = "eval-general"
    if args.split != "test":
        name += f"-{args.split}"
    run, rows = answering.evaluate(args, name, items, hashes, ask, verify, likeliest)
    by_subject = []
    for row in rows:
        _, subject, _ = row["id"].split("/")
        by_subject.append(row | dict(bench=subject))
    subjects = summarise(by_subject, max_new=1)
    common.conclude(args, run, rows, split=args.split, subjects=subjects)
    return 0


if __name__ == "__main__":
    common.command("eval.general", main)
