"""What every benchmark shares: base and members answer the same questions in mixed batches, and a table compares them.

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal; the same command goes on where it
stopped. A question counts once, as the mean of its samples. Shares have Wilson intervals, differences to the base paired
bootstrap intervals.
"""
import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from tqdm import tqdm

from common import demand, parser_of
from ranks import DTYPES, Ranks, pick_dtype
from config import PRESETS
from eval.stats import bootstrap, pass_at_k, wilson
from evolve import member_order
from generate import Prompts, SamplingParams, generate
from lora import Adapters
from model import Base
from run import RunDir
from tasks.prompts import Prompt
from tasks.rendering import decode_answers, render
from weights import files_hash, load_base, load_peft, read_peft

BASE = "base"                       # the bare base's name among the members
AT_ONCE = 8                         # rollout batches of one call of generate, after which answers are written


@dataclass(frozen=True)
class Item:
    """One question: a prompt, and whatever its judge wants to know."""
    bench: str
    id: str
    prompt: Prompt
    gold: object


@dataclass
class Population:
    """The base and who answers on it: slots by member name, "base" (-1) last."""
    base: Base
    adapters: Adapters | None
    slots: dict[str, int]


def parser(name: str, doc: str) -> argparse.ArgumentParser:
    """The flags that benchmarks share."""
    p = parser_of(f"python -m eval.{name}", doc)
    p.add_argument("--base", default="", help="directory or hub id; default: what the members were trained on")
    p.add_argument("--run", default="", help="a run's directory, out/NAME: every member of its last checkpoint")
    p.add_argument("--adapters", nargs="+", default=[], metavar="DIR", help="PEFT directories")
    p.add_argument("--prompt-format", default="", help="default: as the base wants")
    p.add_argument("--bench", default="", help="names, separated by commas; default: all")
    p.add_argument("--limit", type=int, default=None, help="questions of each benchmark")
    p.add_argument("--samples", type=int, default=1, help="answers to each question; several give pass@k")
    p.add_argument("--temperature", type=float, default=0.0, help="0 = greedy")
    p.add_argument("--max-new-tokens", type=int, default=None, help="of an answer; default: as in training")
    p.add_argument("--out", default="", help="for answers and summary; default: eval-NAME under the run")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="auto")
    p.add_argument("--dtype", default="auto", choices=("auto", *DTYPES, "int8"))
    return p


def load(args: argparse.Namespace) -> Population:
    """The base, --run's last checkpoint and --adapters."""
    paths = [Path(path) for path in args.adapters]
    if args.run:
        steps = RunDir(args.run, writes=False).steps()
        demand(steps, f"--run {args.run}: no checkpoint there")
        found = Path(args.run, f"step_{steps[-1]}").glob("*/adapter_config.json")
        paths += sorted((path.parent for path in found), key=lambda path: member_order(path.name))
    first = read_peft(paths[0])[0] if paths else {}
    name = args.base or first.get("base_model_name_or_path")
    demand(name, "give --base (a directory or hub id), --run or --adapters")
    device = Ranks.join(args.device).device
    dtype = DTYPES[pick_dtype(args.dtype, device)]
    base = load_base(name, dtype, device, int8=args.dtype == "int8")
    base = Base(**vars(base) | dict(prompt_format=args.prompt_format or base.prompt_format))
    args.max_new_tokens = args.max_new_tokens or PRESETS[base.prompt_format]["max_new_tokens"]
    adapters = None
    if paths:
        layers = set(read_peft(paths[0])[2])
        adapters = Adapters.on(base.model, len(paths), first["r"], first["lora_alpha"], layers, device)
        base_hash = files_hash(base.path)
        for slot, path in enumerate(paths):
            load_peft(adapters, slot, path, base_hash)
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = ["/".join(path.resolve().parts[-3:]) for path in paths]
    return Population(base, adapters, dict(zip(names, range(len(paths)))) | {BASE: -1})


def answer_all(args: argparse.Namespace, population: Population, items: list[Item], name: str,
               judge: Callable[[list[tuple[Item, str]]], list[dict]]) -> tuple[Path, list[dict]]:
    """Everybody's answers to every item, judged: rows of answers.jsonl. judge: of (item, text) a dict with
    `correct`, None where it could not be judged. Each draw is keyed by item, member and sample."""
    out = Path(args.out or Path(args.run or "out") / f"eval-{name}")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "answers.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["bench"], row["id"], row["member"]) for row in rows}
    base = population.base
    todo = []
    for item in items:
        rendered = render(item.prompt, base.prompt_format, base.tokenizer)
        todo += [(item, member, rendered) for member in population.slots if (item.bench, item.id, member) not in done]
    todo.sort(key=lambda question: len(question[2].ids))
    n, batch = args.samples, PRESETS[base.prompt_format]["rollout_batch"]
    size = max(1, AT_ONCE * batch // n)
    with open(file, "a") as log:
        for start in tqdm(range(0, len(todo), size), "answers", disable=None):
            part = todo[start:start + size]
            keys = [(args.seed, crc32(f"{item.bench}/{item.id}".encode()), crc32(member.encode()), sample)
                    for item, member, _ in part for sample in range(n)]
            prompts = Prompts([r.ids for *_, r in part], [population.slots[m] for _, m, _ in part], keys)
            sampling = SamplingParams(n, args.temperature, args.max_new_tokens, batch, part[0][2].closing)
            rollout = generate(base, population.adapters, prompts, sampling)
            texts = decode_answers(rollout.answers(base.eos_ids), base.tokenizer)
            asked = [(part[i // n][0], part[i // n][2].opening + text) for i, text in enumerate(texts)]
            for i, ((item, text), verdict) in enumerate(zip(asked, judge(asked))):
                rows.append(dict(bench=item.bench, id=item.id, member=part[i // n][1], sample=i % n,
                                 tokens=int(rollout.n_tokens[i]), text=text, **verdict))
                log.write(json.dumps(rows[-1]) + "\n")
    return out, rows


def summarise(rows: list[dict]) -> list[dict]:
    """One dict per benchmark and member, and for the means of students and teachers: share of right answers with its
    interval, difference to the base, pass@k. What could not be judged for anybody counts for nobody."""
    failed = {(row["bench"], row["id"]) for row in rows if row["correct"] is None}
    marks = {}                          # bench -> member -> item -> whether each sample is right
    for row in rows:
        if (row["bench"], row["id"]) not in failed:
            members = marks.setdefault(row["bench"], {})
            members.setdefault(row["member"], {}).setdefault(row["id"], []).append(row["correct"])
    out = []
    for bench, members in marks.items():
        columns = {}
        for name, items in members.items():
            columns[name] = np.array([items[i] for i in sorted(items)], float)       # (questions, samples)
        for role in "ST":
            own = [x for name, x in columns.items() if name.rpartition("/")[2][0] == role]
            if len(own) > 1:
                columns[f"mean {role}"] = np.mean(own, axis=0)
        for name, right in columns.items():
            share = right.mean(1)
            line = dict(bench=bench, member=name, n=len(share), accuracy=share.mean(),
                        interval=wilson(share.sum(), len(share)))
            if BASE in columns and name != BASE:
                line["minus_base"] = (share - columns[BASE].mean(1)).mean()
                line["minus_base_interval"] = bootstrap(share - columns[BASE].mean(1)).tolist()
            n = right.shape[1]
            if n > 1 and not name.startswith("mean"):
                line[f"pass@{n}"] = np.mean([pass_at_k(n, int(c), n) for c in right.sum(1)])
            out.append(line)
    return out


def table(lines: list[dict]) -> str:
    """Dicts as text, a column for every key."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    cells = [names]
    for line in lines:
        row = []
        for name in names:
            x = line.get(name, "")
            numbers = x if isinstance(x, (list, tuple)) else [x]
            row.append(" .. ".join(f"{y:.3f}" if isinstance(y, float) else str(y) for y in numbers))
        cells.append(row)
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def conclude(out: Path, rows: list[dict]) -> None:
    """Writes summary.json and prints the table."""
    lines = summarise(rows)
    (out / "summary.json").write_text(json.dumps(lines, indent=1))
    print(f"{table(lines)}\nevery answer with its verdict: {out / 'answers.jsonl'}")
