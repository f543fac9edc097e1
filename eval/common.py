"""What every benchmark shares: flags, the base and its adapters, answers in mixed batches with resume, statistics, the table.

A benchmark gives its items (anything with .bench and .id), a question per item, and judge(list of (item, text)) -> list of dicts
with "correct" and whatever else its line in answers.jsonl should hold. All members and the bare base answer side by side, one
member index a row; every answer is drawn from (seed, item, member, sample) alone, so that an interrupted run goes on as if it
had not been.
"""
import argparse
import difflib
import hashlib
import json
import math
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from eval.summary import BASE, against, against_table, summarise, table
from generate import generate
from infra.checkpoint import RunDir, differing
from infra.distributed import Ranks
from infra.weights import is_chat_model, load_base, load_model, load_peft, pick_dtype, weights_hash
from lora import Adapters
from model import Base
from tasks.prompts import ENVELOPE, Prompt, render

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ("auto", "chat", "envelope", "plain")


def parser_of(name: str, doc: str, default_max_new: int | None, without: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """The command line of `python -m name`: its module's docstring, and the flags that every benchmark has, less those it cannot
    use; default_max_new None = as in training."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=doc, formatter_class=form)
    default = "as in training" if default_max_new is None else default_max_new

    def add(name: str, **how) -> None:
        if name[2:] not in without:
            parser.add_argument(name, **how)
    add("--base", default="", help="Hugging Face directory or hub id; default: what the run or the adapters were trained on")
    add("--run", default="", help="a run's directory, out/NAME: every member of its last checkpoint")
    add("--adapters", nargs="+", default=[], metavar="DIR", help="PEFT directories, or directories of these")
    held = "" if "data" in without else " that --data (or the cache) holds"
    add("--bench", default="", help=f"names, separated by commas; default: all{held}")
    add("--limit", type=int, default=0, help="questions of each benchmark, the first ones; 0 = all")
    add("--samples", type=int, default=1, help="answers to each question")
    add("--temperature", type=float, default=0.0, help="0 = greedy")
    add("--max-new", type=int, default=default_max_new, help=f"tokens of an answer, at most; default {default}")
    add("--data", default=None, metavar="DIR",
        help="published files already on this machine; default: the cache of python -m eval.fetch")
    add("--out", default="", help="where answers and summary go; default: a folder eval-... under the run, or under out/")
    add("--against", default="", metavar="DIR",
        help="a run, or a directory of results: paired differences to its students' mean")
    add("--prompt", default="auto", choices=PROMPTS,
        help="how a question is put; auto: the tokenizer's chat template, else plain")
    add("--seed", type=int, default=0)
    add("--max-rows", type=int, default=64, help="rows that decode together")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="of the base; auto: bfloat16 on cuda")
    return parser


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for flags that contradict themselves."""
    for name in ("samples", "max_new", "max_rows"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least 1")
    if getattr(args, "limit", 0) < 0 or not (math.isfinite(args.temperature) and args.temperature >= 0):
        raise ValueError("--limit and --temperature must not be negative")
    if args.samples > 1 and args.temperature == 0:
        raise ValueError(f"--samples {args.samples} at temperature 0 are the same answer {args.samples} times: give "
                         "--temperature 0.6 or one sample")


def choose(names: str, valid: tuple[str, ...], flag: str = "--bench", thing: str = "benchmark") -> list[str]:
    """The names that a flag gives, in order. Raises ValueError with the near name for one that is not valid."""
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{flag} {name}: no such {thing}{hint} Valid: {', '.join(valid)}")
    return list(dict.fromkeys(wanted))


# ---- the base and its adapters -------------------------------------------------------------------------------------------

@dataclass
class Population:
    """The base and who answers on it: member names in slot order, "base" (slot -1) last; hashes tell one adapter from another."""
    base: Base
    adapters: Adapters | None
    slots: dict[str, int]
    hashes: dict[str, str]
    base_hash: str


def adapter_directories(args: argparse.Namespace) -> dict[str, Path]:
    """Member name -> PEFT directory, of --run's last checkpoint and --adapters. Raises ValueError where there is none."""
    given = [Path(directory).expanduser() for directory in args.adapters]
    if args.run:
        run = Path(args.run).expanduser()
        steps = RunDir(run, writes=False).steps() if run.is_dir() else []
        if not steps:
            raise ValueError(f"--run {args.run}: no complete checkpoint there; give a run's directory (out/NAME), or --adapters "
                             "DIR...")
        given.insert(0, run / f"step_{steps[-1]}")
    return peft_directories(given)


def peft_directories(given: list[Path]) -> dict[str, Path]:
    """Member name -> PEFT directory, of directories that are one or hold some. Raises ValueError for one that is neither."""
    found = []
    for directory in given:
        inside = [p.parent for p in directory.glob("*/adapter_config.json")] if directory.is_dir() else []
        inside.sort(key=lambda p: (p.name[0] == "S", len(p.name), p.name))         # T2 before T10 before S0
        single = (directory / "adapter_config.json").exists()
        if not single and not inside:
            raise ValueError(f"{directory} is no PEFT directory (no adapter_config.json) and holds none: give for example "
                             "out/NAME/step_80/S0")
        found += [directory] if single else inside
    names = [p.resolve().name for p in found]
    unique = lambda name: names.count(name) == 1 and name != BASE
    return {name if unique(name) else "/".join(p.resolve().parts[-3:]): p for name, p in zip(names, found)}


def adapter_config(directory: Path) -> dict:
    """adapter_config.json. Raises ValueError where it cannot be read."""
    try:
        return json.loads((directory / "adapter_config.json").read_text())
    except (OSError, json.JSONDecodeError) as e:
        raise ValueError(f"{directory} is not a readable PEFT adapter ({e})") from None


def base_name(args: argparse.Namespace, configs: list[dict]) -> str:
    """--base, or what the run or the adapters say they were trained on. Raises ValueError where nobody does."""
    config = Path(args.run).expanduser() / "config.json"
    name = args.base or (json.loads(config.read_text())["base"] if args.run and config.exists() else "") or \
        next((c["base_model_name_or_path"] for c in configs if c.get("base_model_name_or_path")), "")
    if not name:
        raise ValueError("give --base (a Hugging Face directory or hub id), or --run out/NAME, which knows its own")
    return str(ROOT / name) if not Path(name).is_dir() and (ROOT / name).is_dir() else name


def noted_base(directory: Path) -> str:
    """The hash of the base that an adapter was trained on, "" where none is noted (or nothing can be read: load_peft says so)."""
    try:
        with safe_open(directory / "adapter_model.safetensors", framework="pt") as f:
            return (f.metadata() or {}).get("base_weights", "")
    except (OSError, SafetensorError):
        return ""


def hash_otherwise(base: Base) -> str:
    """Hash of the same weights at the other precision, at which the adapter may have been trained: they are read again."""
    other = torch.bfloat16 if base.model.embedding.dtype == torch.float32 else torch.float32
    return weights_hash(load_model(base.path, other))


def load(args: argparse.Namespace) -> Population:
    """Base and adapters, stacked. Raises ValueError for adapters of another base, of several ranks, or damaged."""
    directories = adapter_directories(args)
    device, configs = Ranks.join(args.device).device, list(map(adapter_config, directories.values()))
    base = load_base(base_name(args, configs), pick_dtype(args.dtype, device), device)
    return stack(base, weights_hash(base.model), directories)


def stack(base: Base, base_hash: str, directories: dict[str, Path]) -> Population:
    """The adapters in these PEFT directories, stacked on the base, which joins as slot -1. Raises ValueError as load does."""
    configs = {name: adapter_config(path) for name, path in directories.items()}
    targets = lambda config: tuple(sorted(config.get("target_modules") or ()))
    shapes = {name: (c.get("r"), c.get("lora_alpha"), targets(c)) for name, c in configs.items()}
    first = next(iter(shapes), None)
    for name, shape in shapes.items():
        if shape != shapes[first]:
            says = ["rank {}, alpha {} and layers {}".format(*shapes[who][:2], ",".join(shapes[who][2])) for who in (name, first)]
            raise ValueError(f"{directories[name]} has {says[0]}, but {directories[first]} {says[1]}: adapters of one shape "
                             "share batches; evaluate the others in a run of their own")
    adapters = None
    if directories:
        rank, alpha, targets = shapes[first]
        adapters = Adapters.on(base.model, len(directories), rank, alpha, targets, base.model.embedding.device)
        for slot, path in enumerate(directories.values()):
            load_peft(adapters, slot, path, base_hash if noted_base(path) in ("", base_hash) else hash_otherwise(base))
    sha = lambda path: hashlib.sha256((path / "adapter_model.safetensors").read_bytes()).hexdigest()
    hashes = {name: sha(path) for name, path in directories.items()}
    return Population(base, adapters, {**{name: i for i, name in enumerate(directories)}, BASE: -1}, hashes, base_hash)


# ---- answers -------------------------------------------------------------------------------------------------------------

def prompt_style(args: argparse.Namespace, base: Base) -> str:
    """--prompt with auto decided. Raises ValueError for a chat template that is not there."""
    if args.prompt == "chat" and not base.tokenizer.chat_template:
        raise ValueError(f"--prompt chat: the tokenizer of {base.path} has no chat template; use envelope or plain")
    return ("chat" if is_chat_model(base.tokenizer, base.eos_ids) else "plain") if args.prompt == "auto" else args.prompt


def put(question: str | Prompt | list[int], style: str, base: Base) -> list[int]:
    """Token ids of a question: by the chat template, in the R1 envelope (with <think> begun), or as "Question: ... Answer:".
    A task's Prompt is put as in training; token ids, of a benchmark with words of its own, are taken as they are."""
    if isinstance(question, list):
        return question
    if isinstance(question, Prompt):
        return render(question, base.prompt_format, base.tokenizer)
    if style == "chat":
        said = [{"role": "user", "content": question}]
        text = base.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        return list(base.tokenizer(text, add_special_tokens=False).input_ids)
    text = ENVELOPE.format(question) + "<think>" if style == "envelope" else f"Question: {question}\nAnswer:"
    return list(base.tokenizer(text).input_ids)


def open_out(args: argparse.Namespace, population: Population, style: str, data: dict[str, str],
             default: str) -> tuple[RunDir, list[dict]]:
    """The directory of results and the answers already there. Raises ValueError where those, or --against's, were made otherwise.

    data: SHA-256 of each benchmark's file. A half-written last line is cut off.
    """
    run = RunDir(Path(args.out or (Path(args.run).expanduser() / default if args.run else f"out/{default}")).expanduser())
    config = dict(base=str(population.base.path), base_hash=population.base_hash, prompt=style, temperature=args.temperature,
                  max_new=args.max_new, seed=args.seed, adapters=population.hashes, data=data)
    if getattr(args, "against", ""):
        answers_of(args.against, default, config)                   # what is not comparable is said before hours of work
    path, answers = run.path / "config.json", run.path / "answers.jsonl"
    if path.exists():
        old = json.loads(path.read_text())
        changed = differing(old, config, ("adapters", "data", "base"))
        for part in ("adapters", "data"):
            changed += [f"{part} {name}" for name, sha in config[part].items() if old[part].get(name, sha) != sha]
        if changed:
            raise ValueError(f"{run.path} holds answers made otherwise: {', '.join(changed)}; use the old values or another "
                             "--out")
        config |= {part: old[part] | config[part] for part in ("adapters", "data")}
    run.write_json("config.json", config)
    if answers.exists():
        whole = answers.read_bytes().rfind(b"\n") + 1
        os.truncate(answers, whole)
        return run, run.rows("answers.jsonl", whole)
    return run, []


def answer_all(population: Population, items: list, question: Callable, judge: Callable, args: argparse.Namespace, run: RunDir,
               done: list[dict], style: str) -> list[dict]:
    """Every member's answers to every item, those on disk first: dicts as in answers.jsonl, written batch by batch.

    question(item) -> text, token ids, or Prompt (whose prefix the judge puts before the text); judge([(item, text)]) -> [dict
    with "correct"]. Raises ValueError where a question does not fit the context.
    """
    key = lambda row: (row["bench"], row["id"], row["member"], row["sample"])
    have = {key(row): row for row in done}
    ids = {(item.bench, item.id): put(question(item), style, population.base) for item in items}
    fits(ids, args.max_new, population.base.model.cfg.max_position_embeddings)
    missing = lambda item, name: [s for s in range(args.samples) if (item.bench, item.id, name, s) not in have]
    wanted = [(item, name, missing(item, name)) for item in items for name in population.slots]
    wanted = sorted((unit for unit in wanted if unit[2]), key=lambda unit: (len(unit[2]), len(ids[unit[0].bench, unit[0].id])))
    with tqdm(total=len(items) * len(population.slots) * args.samples, desc="answers", disable=not sys.stderr.isatty()) as bar:
        bar.update(bar.total - sum(len(unit[2]) for unit in wanted))
        while wanted:
            n = len(wanted[0][2])
            batch = [unit for unit in wanted[:max(1, args.max_rows // n)] if len(unit[2]) == n]
            wanted = wanted[len(batch):]
            rows = answer_batch(population, batch, ids, judge, args, style)
            run.append("answers.jsonl", rows)
            have.update((key(row), row) for row in rows)
            bar.update(len(rows))
    return [have[item.bench, item.id, name, s] for item in items for name in population.slots for s in range(args.samples)]


def fits(ids: dict, max_new: int, context: int) -> None:
    """Raises ValueError where the longest question and an answer of max_new tokens exceed the base's context."""
    longest = max(ids, key=lambda name: len(ids[name]))
    n = len(ids[longest])
    if n + max_new > context:
        fix = f"lower --max-new to at most {context - n}" if n < context else "this base cannot be asked that"
        raise ValueError(f"{'/'.join(longest)} has {n} tokens, which with --max-new {max_new} exceeds the base's context of "
                         f"{context}: {fix}")


def answer_batch(population: Population, batch: list[tuple], ids: dict, judge: Callable, args: argparse.Namespace,
                 style: str) -> list[dict]:
    """Answers to a batch of (item, member, samples), each with equally many samples, judged."""
    n, crc = len(batch[0][2]), lambda text: zlib.crc32(text.encode())
    keys = [(args.seed, crc(f"{item.bench}/{item.id}"), crc(name), s) for item, name, samples in batch for s in samples]
    rollout = generate(population.base, population.adapters, [ids[item.bench, item.id] for item, _, _ in batch],
                       [population.slots[name] for _, name, _ in batch], keys, n, args.temperature, args.max_new, args.max_rows)
    texts = population.base.tokenizer.batch_decode(rollout.answers(population.base.eos_ids), skip_special_tokens=True,
                                                   clean_up_tokenization_spaces=False)
    if style == "plain":
        texts = [text.partition("\nQuestion:")[0] for text in texts]     # a base that goes on to ask itself
    each = [(item, name, s) for item, name, samples in batch for s in samples]
    verdicts = judge([(item, text) for (item, _, _), text in zip(each, texts)])
    return [dict(bench=item.bench, id=item.id, member=name, sample=s, **verdict, tokens=tokens, text=text)
            for (item, name, s), text, verdict, tokens in zip(each, texts, verdicts, rollout.n_tokens.tolist())]


# ---- the end of an evaluation ---------------------------------------------------------------------------------------------

def answers_of(directory: str, default: str, config: dict) -> list[dict]:
    """Answers in a directory of results, or in the folder `default` of a run. Raises ValueError where there are none, or where
    they were made in another way than `config` says (prompt, temperature, limits, questions; base and adapters may differ)."""
    given = Path(directory).expanduser()
    place = given if (given / "answers.jsonl").exists() else given / default
    if not (place / "answers.jsonl").exists():
        raise ValueError(f"--against {directory}: no answers.jsonl there nor in its {default}/: run this evaluation on that run "
                         "first")
    old = json.loads((place / "config.json").read_text())
    changed = differing(old, config, ("base", "base_hash", "adapters", "seed", "data"))
    changed += [f"data {name}" for name, sha in config["data"].items() if old["data"].get(name, sha) != sha]
    if changed:
        raise ValueError(f"--against {directory}: those answers were made otherwise: {', '.join(changed)}; repeat one of both in "
                         "the other's way")
    return RunDir(place, writes=False).rows("answers.jsonl", (place / "answers.jsonl").read_bytes().rfind(b"\n") + 1)


def conclude(args: argparse.Namespace, run: RunDir, rows: list[dict], default: str, counted: Callable = list, **more) -> None:
    """Write summary.json (`more` goes along) and print the table of all answers, with --against the differences to that run too.

    default: the folder of this evaluation in a run, as given to open_out; counted(rows) -> rows: which answers the table counts,
    and under which names.
    """
    lines, config = summarise(counted(rows), args.max_new), json.loads((run.path / "config.json").read_text())
    compared = against(counted(rows), counted(answers_of(args.against, default, config))) if args.against else []
    found = dict(results=lines, **(dict(against=args.against, differences=compared) if compared else {}), **more)
    run.write_json("summary.json", dict(base=config["base"], samples=args.samples, temperature=args.temperature,
                                        prompt=config["prompt"], **found))
    print(table(lines))
    if compared:
        print(f"\nagainst the students (or whoever there is) of {args.against}, their mean\n{against_table(compared)}")
    print(f"every answer with its verdict: {run.path / 'answers.jsonl'}")


def command(name: str, main: Callable[[], int]) -> None:
    """Runs main and leaves with its exit code: 2 for what the user can mend, 1 for the machine's trouble, 130 for Ctrl-C."""
    try:
        sys.exit(main())
    except (ValueError, OSError) as e:
        print(f"{name}: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command goes on from what is on disk", file=sys.stderr)
        sys.exit(130)
