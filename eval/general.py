"""General knowledge: MMLU (Hendrycks et al. 2021, arXiv 2009.03300) by the likelihood of the letter.

    python -m eval.general --self-test --data DIR   # can every question be read? JSON line last
    python -m eval.general --run out/NAME           # base and members of the last checkpoint, 57 subjects
    python -m eval.general --run out/NAME --subjects anatomy,virology --limit 20

The data are the authors' archive, mmlu.tar: data/{dev,val,test}/SUBJECT_{dev,val,test}.csv with question, A,
B, C, D, letter and no header. The prompt is that of hendrycks/test (evaluate.py), to the character, with the
five examples of dev; so is the choice: the letter whose token, with the space before it, has the highest
log-probability after the prompt, the first of equals. (Texts stay as they stand in the archive; the published
code reads with pandas, which writes 0.50 in a column of numbers as 0.5.)
"""
import argparse
import csv
import io
import json
import re
import tarfile
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from eval import answering, common
from eval.fetch import FILES, locate
from eval.summary import aligned, summarise

LETTERS = "ABCD"
CSV = re.compile(r"(?:.*/)?(?P<split>dev|val|test)/(?P<subject>\w+)_(?P=split)\.csv")


@dataclass(frozen=True)
class Item:
    """One question with its four choices, the letter of the right one, and the examples before it."""
    bench: str
    id: str
    subject: str
    text: str
    choices: tuple[str, ...]
    gold: str
    shots: tuple["Item", ...] = field(default=(), repr=False)


# ---- the questions -----------------------------------------------------------------------------------------

def items_of(subject: str, split: str, raw: bytes, shots: tuple[Item, ...] = ()) -> list[Item]:
    """The questions in a CSV file. Raises ValueError that names file and line."""
    out = []
    try:
        reader = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        for row in filter(None, reader):
            if len(row) != 6 or row[5].strip() not in tuple(LETTERS):
                raise ValueError(f"line {reader.line_num}: expected a question, four choices and a letter")
            name = f"{split}/{subject}/{len(out)}"
            out.append(Item("mmlu", name, subject, row[0], tuple(row[1:5]), row[5].strip(), shots))
    except (ValueError, csv.Error) as e:
        raise ValueError(f"{subject}_{split}.csv: {e}: fetch it again (python -m eval.fetch mmlu)") from None
    return out


def load(data: str, split: str = "test") -> tuple[dict[str, list[Item]], str]:
    """The questions of a split by subject, and the archive's SHA-256. Raises ValueError for a damaged one."""
    path, sha = locate("mmlu", FILES["mmlu"][0], data)
    files: dict[str, dict] = {"dev": {}, split: {}}
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                match = CSV.fullmatch(member.name)
                if match and member.isfile() and match["split"] in files:
                    files[match["split"]][match["subject"]] = tar.extractfile(member).read()
    except (tarfile.TarError, EOFError, OSError) as e:
        raise ValueError(f"{path} cannot be read ({e}): fetch it again (python -m eval.fetch mmlu)") from None
    if not files[split] or set(files[split]) - set(files["dev"]):
        raise ValueError(f"{path} lacks questions ({split}) or examples (dev): fetch it again (python -m "
                         "eval.fetch mmlu)")
    subjects = {}
    for name, raw in sorted(files[split].items()):
        shots = items_of(name, "dev", files["dev"][name])[:5]
        subjects[name] = items_of(name, split, raw, tuple(shots))
    return subjects, sha


# ---- the likeliest letter ----------------------------------------------------------------------------------

def prompt(item: Item) -> str:
    """The published prompt. (Its two spaces before the subject's name are the published code's.)"""
    text = "The following are multiple choice questions (with answers) about  "
    text += item.subject.replace("_", " ") + ".\n\n"
    for question in (*item.shots, item):
        choices = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices)]
        text += "\n".join([question.text, *choices, "Answer:"])
        text += f" {question.gold}\n\n" if question is not item else ""
    return text


def ask(item: Item, prompt_format: str, base) -> list[int]:
    """Token ids of the prompt, and of what comes before the letter itself (in most vocabularies nothing)."""
    return list(base.tokenizer(f"{prompt(item)} {LETTERS[0]}").input_ids[:-1])


def letter_ids(tokenizer) -> list[int]:
    """The tokens of " A" to " D" after "Answer:". Raises ValueError where more than the last one differs."""
    whole = [tokenizer(f"Answer: {letter}").input_ids for letter in LETTERS]
    if len({tuple(ids[:-1]) for ids in whole}) > 1 or len({ids[-1] for ids in whole}) < len(LETTERS):
        raise ValueError("this base's tokenizer has no token for each letter, so MMLU cannot be asked")
    return [ids[-1] for ids in whole]


@torch.inference_mode()
def letter_logps(population: common.Population, prompts: list[list[int]], members: list[str]) -> torch.Tensor:
    """Log-probabilities (B, 4) of the letters after each prompt, by its row's member, in one forward pass."""
    base, device = population.base, population.base.model.embedding.device
    ids = pad_sequence([torch.tensor(tokens) for tokens in prompts], batch_first=True).to(device)   # (B, T)
    last = torch.tensor([len(tokens) - 1 for tokens in prompts], device=device)
    member = torch.tensor([population.slots[name] for name in members], device=device)
    lora = population.adapters and population.adapters.route(member, base.model.embedding.dtype)
    hidden = base.model(ids, lora=lora)[torch.arange(len(prompts), device=device), last]            # (B, C)
    logits = base.model.logits(hidden).float()                                                      # (B, V)
    return logits[:, letter_ids(base.tokenizer)] - logits.logsumexp(-1, keepdim=True)


def likeliest(population: common.Population, asked: list[tuple], ids: dict, args: argparse.Namespace,
              prompt_format: str) -> list[tuple]:
    """As answering.answer_call, but the answer is the likeliest letter."""
    answers = []
    for start in range(0, len(asked), args.max_rows):
        rows = asked[start:start + args.max_rows]
        prompts = [ids[item.bench, item.id] for item, _ in rows]
        logps = letter_logps(population, prompts, [member for _, member in rows]).tolist()
        for (item, member), logp in zip(rows, logps):
            row = dict(bench=item.bench, id=item.id, member=member, sample=0, tokens=0, subject=item.subject,
                       logp=[round(x, 4) for x in logp])
            answers.append((item, row | dict(text=LETTERS[int(np.argmax(logp))])))
    return answers


# ---- the command -------------------------------------------------------------------------------------------

def subject_table(lines: list[dict], macro: dict[str, float]) -> str:
    """Shares by subject for the terminal: of the base, and of those whom the run trained to solve, who come
    last (summary.with_means); then the means over subjects."""
    columns = list(macro)[0], list(macro)[-1]
    share = {(line["bench"], line["member"]): line["accuracy"] for line in lines}
    out = [["subject", "    n", *columns]]
    for subject, n in {line["bench"]: line["n"] for line in lines}.items():
        out.append([subject, f"{n:5}", *(f"{share[subject, member]:.3f}" for member in columns)])
    return aligned([*out, ["mean over subjects", "", *(f"{macro[member]:.3f}" for member in columns)]])


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    without = "bench", "samples", "temperature", "prompt", "seed", "max-new-tokens"
    parser = common.parser_of("eval.general", __doc__, None, without)
    parser.add_argument("--subjects", default="", help="names, separated by commas; default: all")
    parser.add_argument("--split", default="test", choices=("test", "val"),
                        help="choose members on val, claim on test")
    parser.add_argument("--self-test", action="store_true", help="read the questions; needs no model")
    parser.set_defaults(samples=1, temperature=0.0, max_new=1, seed=0, prompt="plain")
    args = common.check(parser.parse_args(argv))
    subjects, sha = load(args.data, args.split)
    names = common.choose(args.subjects, tuple(subjects), "--subjects", "subject") or list(subjects)
    items = [item for name in names for item in subjects[name][:args.limit or None]]
    if args.self_test:
        print(json.dumps({"mmlu": dict(subjects=len(names), n=len(items))}))
        return 0
    name = "eval-general" if args.split == "test" else f"eval-general-{args.split}"

    def verify(answers: list[tuple[Item, str]], prompt_format: str) -> list[dict]:
        return [dict(correct=letter == item.gold, gold=item.gold) for item, letter in answers]

    run, rows = answering.evaluate(args, name, items, dict(mmlu=sha), ask, verify, likeliest)
    lines, shares = summarise([row | dict(bench=row["subject"]) for row in rows], 1), {}
    for line in lines:
        shares.setdefault(line["member"], []).append(line["accuracy"])
    macro = {member: float(np.mean(accuracies)) for member, accuracies in shares.items()}
    print(f"{subject_table(lines, macro)}\n\nmeans over questions:")
    common.conclude(args, run, rows, split=args.split, macro=macro, subjects=lines)
    return 0


if __name__ == "__main__":
    common.command("eval.general", main)
