"""Holds what every benchmark shares: base and members answer the same questions in mixed batches.

Answers go to answers.jsonl as they come, the numbers go to summary.json and to the terminal. The same command
goes on where it stopped. A question counts once, as the mean of its samples. Shares have Wilson intervals.
Differences to the base have bootstrap intervals, paired by question.
"""
import argparse
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from tqdm import tqdm

from common import UserError, json_object, parser_of, readable, wilson
from config import Config
from eval.stats import bootstrap
from lora import Adapters
from ranks import Ranks
from run import RunDir, peft_directories, prepare
from selfplay import Setup, write
from tasks.base import UNJUDGED
from tasks.programs import Limits
from tasks.prompts import Prompt
from tasks.rendering import render
from weights import files_hash, load_peft, read_peft

BASE = "base"                       # the bare base's name among the members
NOT_PLAIN = "not plain"             # the verdict on an answer that plain values cannot judge
CALL_BATCHES = 4                    # rollout batches of one call, after which answers are on the disk
# benchmark -> its published files and their addresses
PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
# name, default, help
FLAGS = (
    ("base", "", "directory or hub id; default: what the members were trained on"),
    ("run", "", "a run's directory, out/NAME: the members of its best checkpoint"),
    ("prompt-format", "", "default: the run's, else the base's"),
    ("bench", "", "names, separated by commas; default: all that are there"),
    ("limit", None, "questions of each benchmark"),
    ("samples", 1, "answers to each question; several give pass@k"),
    ("temperature", 0.0, "0 = greedy"),
    ("rollout-batch", None, "rows that decode together"),
    ("out", "", "for answers and summary; default: eval-NAME under the run, else under out"),
    ("seed", 0, "of the draws"),
    ("device", "auto", "auto, cpu or cuda"),
    ("dtype", "auto", "as train.py's")
)


@dataclass(frozen=True)
class Item:
    """Holds one question: its prompt, and whatever its judge wants to know."""
    bench: str
    id: str
    prompt: Prompt
    gold: object


# --- the base and its members -------------------------------------------------------------------------------

def parser(name: str, doc: str, max_new_tokens: int | None = None) -> argparse.ArgumentParser:
    """Returns a command line with the flags that benchmarks share."""
    p = parser_of(f"python -m eval.{name}", doc)
    for flag, default, help in FLAGS:
        kind = int if default is None else type(default)
        p.add_argument(f"--{flag}", default=default, type=kind, help=help)
    p.add_argument(
        "--adapters", nargs="+", default=[], metavar="DIR", help="PEFT directories, checkpoints or runs"
    )
    p.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help="tokens of an answer")
    return p


def load(args: argparse.Namespace) -> tuple[Setup, dict[str, int]]:
    """Returns the base with the members of --run and --adapters on it, and each one's slot by name. The
    bare base is the last name, with slot -1."""
    paths = []
    prompt_format = args.prompt_format
    for given in filter(None, [args.run, *args.adapters]):
        paths += peft_directories(given)
        flags = Path(given, "config.json")                      # of a run
        if not prompt_format and flags.exists():
            prompt_format = json_object(flags.read_text()).get("prompt_format")
    name = args.base
    if paths:
        config, _, factors = read_peft(paths[0])
        name = name or config.get("base_model_name_or_path")
    if not name:
        raise UserError("give --base (a directory or hub id), --run or --adapters")
    ranks = Ranks.join(args.device)
    cfg = Config(
        base=name,
        prompt_format=prompt_format or "auto",
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
        rollout_batch=args.rollout_batch,
        dtype=args.dtype,
        dedupe="off",
        pop=2
    )
    cfg, base = prepare(cfg, ranks)
    base_hash = files_hash(base.path)
    adapters = None
    if paths:
        adapters = Adapters.on(
            base.model, len(paths), config["r"], config["lora_alpha"], set(factors), ranks.device
        )
    names = [path.name for path in paths]
    if len({*names, BASE}) <= len(names):
        names = list(map(str, paths))
    slots = {}
    for slot, path in enumerate(paths):
        load_peft(adapters, slot, path, base_hash)
        slots[names[slot]] = slot
    slots[BASE] = -1
    limits = Limits.of_run(cfg, base.prompt_format, base.tokenizer)
    return Setup(cfg, base, adapters, ranks, None, limits, base_hash), slots


# --- published files ----------------------------------------------------------------------------------------

def located(data: str, file: str) -> Path | None:
    """Returns the path of a published file, perhaps compressed, in the directory `data`."""
    return next(Path(data).expanduser().glob(f"{file}*"), None)


def benchmarks(args: argparse.Namespace, known: tuple[str, ...]) -> list[str]:
    """Returns the benchmarks of --bench, else those whose files lie in --data. Raises UserError where one is
    unknown, or a file is missing."""
    there = []
    for name in known:
        if all(located(args.data, file) for file in PUBLISHED[name]):
            there.append(name)
    chosen = list(dict.fromkeys(args.bench.split(","))) if args.bench else there
    if not chosen or not set(chosen) <= set(there):
        raise UserError(f"--bench {args.bench}, --data {args.data}: files are there of "
                        f"{', '.join(there) or 'none'}; eval/published.json has the addresses of "
                        f"{', '.join(known)}")
    return chosen


def sums(data: str, benches: list[str]) -> dict[str, int]:
    """Returns a checksum of each file of these benchmarks, by its name."""
    found = {}
    for bench in benches:
        for file in PUBLISHED[bench]:
            found[file] = crc32(located(data, file).read_bytes())
    return found


def published_rows(data: str, bench: str) -> Iterator[dict]:
    """Yields the rows of a benchmark's files, which are JSON lines."""
    for file in PUBLISHED[bench]:
        path = located(data, file)
        opened = gzip.open if path.suffix == ".gz" else open
        with readable(f"{path} is damaged: fetch it again"), opened(path, "rt", encoding="utf-8") as f:
            yield from map(json_object, f)


# --- answers ------------------------------------------------------------------------------------------------

def open_results(
    args: argparse.Namespace,
    name: str,                          # of the directory, where --out gives none
    setup: Setup,
    slots: dict[str, int],
    **more: object,                     # what else the answers depend on
) -> RunDir:
    """Returns the directory of the answers. Raises UserError where it holds answers that were made
    otherwise, for example by a member that has learned since. Other members and benchmarks may be added."""
    if args.samples < 1 or args.temperature < 0:
        raise UserError("--samples is at least 1, --temperature at least 0")
    if args.samples > 1 and args.temperature == 0:
        raise UserError(f"--samples {args.samples} at temperature 0 are as many times the same answer: give "
                        "--temperature 1, too")
    out = RunDir(args.out or Path(args.run or "out", f"eval-{name}"))
    cfg = setup.cfg
    made = dict(
        base_hash=setup.base_hash,
        prompt_format=cfg.prompt_format,
        max_new_tokens=cfg.max_new_tokens,
        dtype=cfg.dtype,
        seed=cfg.seed,
        samples=args.samples,
        temperature=args.temperature,
        **more
    )
    for member, slot in slots.items():
        made[member] = 0
        for _, B in setup.adapters.factors(slot).values() if slot >= 0 else ():
            made[member] = crc32(B.cpu().numpy(), made[member])
    out.note(made)
    return out


def question_of(row: dict) -> tuple[str, str, str]:
    """Returns which question to whom a row of answers.jsonl answers."""
    return row["bench"], row["id"], row["member"]


def answer_all(
    args: argparse.Namespace,
    out: RunDir,
    setup: Setup,
    slots: dict[str, int],              # who answers
    items: list[Item],
    judge: Callable
) -> list[dict]:
    """Returns everybody's answers to every item, judged, as rows of answers.jsonl. `correct` is None where
    the sandbox failed (such a row is not written) or plain values cannot judge. judge takes a list of
    (item, text) and returns a dict for each: its "verdict", and what else answers.jsonl is to hold."""
    rows = out.rows("answers.jsonl")
    n_answers = Counter(map(question_of, rows))         # a question counts as asked if all are there
    rows = [row for row in rows if n_answers[question_of(row)] == args.samples]
    part = out.path / "answers.jsonl.part"              # a kill leaves the old file whole
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.replace(out.path / "answers.jsonl")
    base, new = setup.base, setup.cfg.max_new_tokens
    context = base.model.cfg.max_position_embeddings
    wanted = set()                      # questions of this call
    asked = {}                          # closing text, which all questions of a call share -> questions
    for item in items:
        rendered = render(item.prompt, base.prompt_format, base.tokenizer)
        length = len(rendered.ids)
        if length + new > context:
            raise UserError(f"{item.bench} {item.id} has {length} tokens, which with --max-new-tokens {new} "
                            f"exceed the base's context of {context}")
        for member in slots:
            question = item.bench, item.id, member
            wanted.add(question)
            if n_answers[question] != args.samples:
                asked.setdefault(rendered.closing, []).append((length, item, member))
    size = max(1, CALL_BATCHES * setup.cfg.rollout_batch // args.samples)
    n_questions = sum(map(len, asked.values()))
    with tqdm(total=n_questions * args.samples, desc="answers", disable=None) as bar:
        for questions in asked.values():
            questions.sort(key=lambda question: question[0])
            for start in range(0, len(questions), size):
                own = answer_part(args, setup, slots, questions[start : start + size], judge)
                out.append(answers=[row for row in own if row["verdict"] != UNJUDGED])
                rows += own
                bar.update(len(own))
    return [row for row in rows if question_of(row) in wanted]


def answer_part(
    args: argparse.Namespace,
    setup: Setup,
    slots: dict[str, int],
    part: list[tuple],                  # questions of answer_all
    judge: Callable
) -> list[dict]:
    """Returns the rows of some questions, which are asked side by side. A draw is keyed by item, member and
    sample."""
    prompts, members, keys, rows, asked = [], [], [], [], []
    for _, item, member in part:
        prompts.append(item.prompt)
        members.append(slots[member])
        for sample in range(args.samples):
            key = f"{item.bench}/{item.id}/{member}/{sample}"
            keys.append((args.seed, crc32(key.encode())))
            rows.append(dict(bench=item.bench, id=item.id, member=member, sample=sample))
            asked.append(item)
    rollout, texts = write(setup, prompts, members, keys, args.samples, args.temperature)
    verdicts = judge(list(zip(asked, texts)))
    for row, text, tokens, verdict in zip(rows, texts, rollout.n_tokens.tolist(), verdicts):
        correct = None
        if verdict["verdict"] not in (UNJUDGED, NOT_PLAIN):
            correct = verdict["verdict"] == "correct"
        row |= dict(tokens=tokens, text=text, correct=correct) | verdict
    return rows


# --- the table ----------------------------------------------------------------------------------------------

def marks(rows: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Returns bench -> member -> whether its answers are right (questions, samples). What could not be
    judged for anybody counts for nobody."""
    failed = {(row["bench"], row["id"]) for row in rows if row["correct"] is None}
    found = {}
    for row in rows:
        if (row["bench"], row["id"]) not in failed:
            items = found.setdefault(row["bench"], {}).setdefault(row["member"], {})
            items.setdefault(row["id"], []).append(row["correct"])
    for members in found.values():
        for member, items in members.items():
            members[member] = np.array([items[id] for id in sorted(items)], float)
    return found


def summarise(rows: list[dict]) -> list[dict]:
    """Returns a dict per benchmark and member, and for the means of teachers and of students: the share of
    right answers with its interval, the difference to the base, malformed answers, pass@k of k samples."""
    lines = []
    for bench, members in marks(rows).items():
        whole = dict(members)
        for role in "TS":
            own = [right for name, right in members.items() if name.rpartition("/")[2][0] == role]
            if len(own) > 1:
                whole[f"mean {role}"] = np.mean(own, axis=0)
        for name, right in whole.items():
            n, k = right.shape
            share = right.mean(1)
            line = dict(
                bench=bench, member=name, n=n, accuracy=share.mean(), interval=wilson(share.sum(), n)
            )
            if BASE in members:
                gain = share - members[BASE].mean(1)
                line |= dict(minus_base=gain.mean(), minus_base_interval=bootstrap(gain).tolist())
            if name in members:
                own = [row["verdict"] for row in rows if (row["bench"], row["member"]) == (bench, name)]
                line["malformed"] = own.count("malformed") / len(own)
                if k > 1:
                    line[f"pass@{k}"] = right.max(1).mean()
            lines.append(line)
    return lines


def cell(value: object) -> str:
    """Returns a value as text: an interval as "low .. high", a number with three digits."""
    if isinstance(value, (list, tuple)):
        return " .. ".join(map(cell, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def table(lines: list[dict]) -> str:
    """Returns dicts as text, with a column for every key."""
    names = {}                          # in the order in which they first come
    for line in lines:
        names |= line
    columns = []
    for name in names:
        texts = [name, *(cell(line.get(name, "")) for line in lines)]
        width = max(map(len, texts))
        columns.append([text.ljust(width) for text in texts])
    return "\n".join(map(str.rstrip, map("  ".join, zip(*columns))))


def conclude(out: RunDir, rows: list[dict]) -> None:
    """Writes summary.json, prints the table, and names the questions that count for nobody."""
    lines = summarise(rows)
    out.write_json("summary.json", lines)
    print(table(lines))
    reasons = {
        NOT_PLAIN: "give answers.jsonl to EvalPlus",
        UNJUDGED: "the sandbox failed, the same command asks again"
    }
    for verdict, reason in reasons.items():
        ids = {row["id"] for row in rows if row["verdict"] == verdict}
        if ids:
            print(f"{len(ids)} questions count for nobody ({verdict}: {reason}): {', '.join(sorted(ids))}")
    print(f"every answer with its verdict: {out.path / 'answers.jsonl'}")
