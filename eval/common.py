"""What every benchmark shares: flags, base and adapters, the directory of results, the end.

The answers themselves are `eval.answering`'s.
"""
import argparse
import dataclasses
import difflib
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eval.summary import BASE, comparable, coverage, pass_table, passes, summarise, table
from evolve import member_order
from infra import command as shell
from infra.distributed import Ranks
from infra.errors import UserError, demand
from infra.precision import DTYPES, pick_dtype
from lora import Adapters
from model import Base
from run.directory import RunDir
from tasks.rendering import day_told
from weights import files_hash, load_base, load_peft, read_peft

CACHE = Path("~/.cache/nanopopulora").expanduser()      # of the published benchmark files


# ---- the command line --------------------------------------------------------------------------------------

def parser_of(
    name: str,                                  # the command is `python -m name`
    doc: str,
    default_max_new: int | None,                # None = as in training
    without: tuple[str, ...] = (),              # flags that this benchmark does not have
) -> argparse.ArgumentParser:
    """A command line with the flags that benchmarks share."""
    parser = shell.parser_of(f"python -m {name}", doc)

    def add(flag: str, **how: object) -> None:
        if flag not in without:
            parser.add_argument(f"--{flag}", **how)

    add("base", default="", help="directory or hub id; default: what the run or adapters were trained on")
    add("self-test", action="store_true", help="read and grade the published answers; needs no model")
    add("run", default="", help="a run's directory, out/NAME: every member of its last checkpoint")
    add("adapters", nargs="+", default=[], metavar="DIR", help="PEFT directories, or directories of these")
    add("bench", default="", help="names, separated by commas; default: all (livecodebench only by name)")
    add("limit", type=int, default=0, help="questions of each benchmark or subject; 0 = all")
    add("samples", type=int, default=1, help="answers to each question; several give pass@k")
    add("temperature", type=float, default=0.0, help="0 = greedy")
    add("max-new-tokens", type=int, dest="max_new", default=default_max_new,
        help=f"tokens of an answer, at most; default {default_max_new or 'as in training'}")
    add("data", default=str(CACHE), metavar="DIR", help=f"published files; default {CACHE}")
    add("out", default="", help="for answers and summary; default: eval-... under the run, or under out/")
    add("prompt", default="auto", choices=("auto", "chat", "direct", "envelope", "plain"),
        help="how a question is put; auto: the tokenizer's chat template, else plain; direct: chat without "
             "a model's own thinking")
    add("seed", type=int, default=0)
    add("rollout-batch", type=int, dest="max_rows", default=64, help="rows that decode together")
    add("device", default="auto", help="auto, cpu or cuda")
    add("dtype", default="auto", choices=("auto", *DTYPES, "int8"),
        help="auto: as train.py; int8 where the run had it")
    return parser


def check(args: argparse.Namespace) -> argparse.Namespace:
    """The flags. Raises UserError where they contradict themselves."""
    for n in (args.samples, args.max_new, args.max_rows):
        demand(n is None or n >= 1, "--samples, --max-new-tokens and --rollout-batch must be at least 1")
    demand(getattr(args, "limit", 0) >= 0 and 0 <= args.temperature < math.inf,
           "--limit and --temperature must not be negative")
    demand(args.samples == 1 or args.temperature > 0, f"--samples {args.samples} at temperature 0 are the "
           f"same answer {args.samples} times: give --temperature 0.6 or one sample")
    return args


def choose(
    names: str,                                 # with commas between them
    valid: tuple[str, ...],
    flag: str = "--bench",
    thing: str = "benchmark",
) -> list[str]:
    """The names that a flag gives, in order. Raises UserError with the near name for one not valid."""
    wanted = []
    for name in names.lower().split(","):
        name = name.strip()
        if name and name not in wanted:
            wanted.append(name)
    for name in wanted:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UserError(f"{flag} {name}: no such {thing}{hint} Valid: {', '.join(valid)}")
    return wanted


def command(name: str, main: Callable[[], int]) -> None:
    """Leaves with main's exit code, or as every command does that fails."""
    shell.leave(name, main, "; the same command goes on from what is on disk")


# ---- the base and its adapters -----------------------------------------------------------------------------

@dataclass
class Population:
    """The base and who answers on it: slots by member name, "base" (-1) last; SHA-256 of their files."""
    base: Base
    adapters: Adapters | None
    slots: dict[str, int]
    hashes: dict[str, str]
    base_hash: str


def load(args: argparse.Namespace) -> Population:
    """The base, --run's last checkpoint and --adapters. Raises UserError for what `stack` cannot stack."""
    given = [Path(directory).expanduser() for directory in args.adapters]
    if args.run:
        run = Path(args.run).expanduser()
        steps = RunDir(run, writes=False).steps()
        demand(steps, f"--run {args.run}: no complete checkpoint there; give a run's directory (out/NAME), "
               "or --adapters DIR...")
        given.insert(0, run / f"step_{steps[-1]}")
    directories = peft_directories(given)

    name = args.base or of_run(args, "base")
    if not name and directories:
        config, *_ = read_peft(next(iter(directories.values())))
        name = config.get("base_model_name_or_path")
    demand(name, "give --base (a directory or hub id), or --run out/NAME, which knows its own")
    dtype = args.dtype
    if dtype == "auto" and of_run(args, "dtype") == "int8":
        dtype = "int8"
    device = Ranks.join(args.device).device
    base = load_base(name, DTYPES[pick_dtype(args.dtype, device)], device, dtype == "int8")
    base = dataclasses.replace(base, day=of_run(args, "date") or day_told(base.tokenizer))
    return stack(base, files_hash(base.path), directories)


def of_run(args: argparse.Namespace, name: str) -> object:
    """A flag's value in the run that --run names; None where there is no run, or it does not say."""
    if not args.run:
        return None
    run = RunDir(Path(args.run).expanduser(), writes=False)
    return run.config().get(name)


def peft_directories(given: list[Path]) -> dict[str, Path]:
    """Member name -> PEFT directory, of directories that are one or hold some; else raises UserError."""
    paths = []
    for directory in given:
        inside = [path.parent for path in directory.glob("*/adapter_config.json")]
        if (directory / "adapter_config.json").exists():
            inside = [directory]
        demand(inside, f"{directory} is no PEFT directory (no adapter_config.json) and holds none: give for "
               "example out/NAME/step_80/S0")
        paths += sorted(inside, key=lambda path: member_order(path.name))
    names = [path.resolve().name for path in paths]
    if len({*names, BASE}) <= len(names):           # several of one name
        names = ["/".join(path.resolve().parts[-3:]) for path in paths]
    return dict(zip(names, paths))


def stack(base: Base, base_hash: str, directories: dict[str, Path]) -> Population:
    """Base and PEFT adapters, stacked. Raises UserError for damaged ones, other bases, several shapes."""
    adapters = None
    slots, hashes = {}, {}
    for slot, (name, path) in enumerate(directories.items()):
        if adapters is None:
            config, _, factors = read_peft(path)        # whose names say which layers: a pattern may not
            device = base.model.embedding.device
            adapters = Adapters.on(base.model, len(directories), config["r"], config["lora_alpha"],
                                   set(factors), device)
        load_peft(adapters, slot, path, base_hash)
        weights = (path / "adapter_model.safetensors").read_bytes()
        hashes[name] = hashlib.sha256(weights).hexdigest()
        slots[name] = slot
    slots[BASE] = -1
    return Population(base, adapters, slots, hashes, base_hash)


# ---- a directory of results --------------------------------------------------------------------------------

def open_out(
    args: argparse.Namespace,
    population: Population,             # its base is told the date of the answers that are there
    prompt_format: str,
    data: dict[str, str],               # SHA-256 of each benchmark's file
    default: str,                       # the directory's name where --out gives none
) -> tuple[RunDir, list[dict]]:
    """The directory of results and the answers already there. Raises UserError where they were made otherwise
    (members and benchmarks may be new ones)."""
    run = RunDir(Path(args.out or Path(args.run or "out", default)).expanduser())
    base = population.base
    config = {
        "base": str(base.path),
        "base_hash": population.base_hash,
        "dtype": sorted({str(p.dtype) for p in base.model.parameters()}),
        "prompt": prompt_format,
        "temperature": args.temperature,
        "max_new": args.max_new,
        "seed": args.seed,
    }
    for name, sha in population.hashes.items():
        config[f"adapter {name}"] = sha
    for name, sha in data.items():
        config[f"data {name}"] = sha
    old = run.config() if (run.path / "config.json").exists() else {}
    config["date"] = old.get("date", base.day)
    population.base = dataclasses.replace(base, day=config["date"])
    changed = [name for name in config if old.get(name, config[name]) != config[name] and name != "base"]
    demand(not changed, f"{run.path} holds answers made otherwise: {', '.join(changed)}; use the old values "
           "(config.json there has them) or another --out")
    run.write_json("config.json", old | config)
    return run, saved_answers(run)


def saved_answers(run: RunDir) -> list[dict]:
    """The rows of answers.jsonl but those that the sandbox failed on; half a last line is cut off."""
    path = run.path / "answers.jsonl"
    if not path.exists():
        return []
    whole = path.read_bytes().rfind(b"\n") + 1
    os.truncate(path, whole)
    return [row for row in run.rows(path.name) if row["correct"] is not None]


def conclude(
    args: argparse.Namespace,
    run: RunDir,
    rows: list[dict],
    counted: Callable = list,           # counted(rows) -> rows: what the tables count, under which names
    **more: object,                     # goes into summary.json
) -> None:
    """Writes summary.json, prints the table and, of several samples, that of pass@k."""
    config, rows = run.config(), counted(comparable(rows))
    result = {
        "base": config["base"],
        "samples": args.samples,
        "temperature": args.temperature,
        "prompt": config["prompt"],
        "results": summarise(rows, args.max_new),
    }
    print(table(result["results"]))
    if args.samples > 1:
        result["pass_at_k"] = passes(rows)
        result["coverage"] = coverage(rows)
        print(f"\npass@k: the chance that one of k answers is right, from {args.samples}; 95% intervals, "
              f"paired over questions\n{pass_table(result['pass_at_k'])}")
        if result["coverage"]:
            print("\ncoverage: the chance that one of k answers is right, one from each of k members; all "
                  f"from one (mean),\nor from the best\n{table(result['coverage'])}")
    run.write_json("summary.json", result | more)
    print(f"every answer with its verdict: {run.path / 'answers.jsonl'}")
