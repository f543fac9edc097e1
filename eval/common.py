"""What every benchmark shares: flags, base and adapters, the directory of results, the end.

The answers themselves are `eval.answering`'s.
"""
import argparse
import dataclasses
import difflib
import hashlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eval.summary import BASE, comparable, coverage, pass_table, passes, summarise, table
from evolve import member_order
from infra.distributed import Ranks
from infra.errors import UserError, demand
from infra.precision import DTYPES, pick_dtype
from lora import Adapters
from model import Base
from run.directory import RunDir
from run.platform import Interrupted
from tasks.prompts import day_told
from weights import files_hash, load_base, load_peft, read_peft

CACHE = Path("~/.cache/nanopopulora").expanduser()      # of the published benchmark files


def parser_of(name: str, doc: str, default_max_new: int | None, without: tuple = ()):
    """The command line of `python -m name`: the flags that benchmarks share, but those `without`.
    default_max_new: None = as in training."""
    form, default = argparse.RawDescriptionHelpFormatter, default_max_new or "as in training"
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=doc, formatter_class=form)

    def add(flag: str, **how) -> None:
        if flag[2:] not in without:
            parser.add_argument(flag, **how)

    add("--base", default="", help="directory or hub id; default: what the run or adapters were trained on")
    add("--self-test", action="store_true", help="read and grade the published answers; needs no model")
    add("--run", default="", help="a run's directory, out/NAME: every member of its last checkpoint")
    add("--adapters", nargs="+", default=[], metavar="DIR", help="PEFT directories, or directories of these")
    add("--bench", default="", help="names, separated by commas; default: all (livecodebench only by name)")
    add("--limit", type=int, default=0, help="questions of each benchmark or subject; 0 = all")
    add("--samples", type=int, default=1, help="answers to each question; several give pass@k")
    add("--temperature", type=float, default=0.0, help="0 = greedy")
    add("--max-new-tokens", type=int, dest="max_new", default=default_max_new,
        help=f"tokens of an answer, at most; default {default}")
    add("--data", default=str(CACHE), metavar="DIR", help=f"published files; default {CACHE}")
    add("--out", default="", help="for answers and summary; default: eval-... under the run, or under out/")
    add("--prompt", default="auto", choices=("auto", "chat", "direct", "envelope", "plain"),
        help="how a question is put; auto: the tokenizer's chat template, else plain; direct: chat without "
             "a model's own thinking")
    add("--seed", type=int, default=0)
    add("--rollout-batch", type=int, dest="max_rows", default=64, help="rows that decode together")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--dtype", default="auto", choices=("auto", *DTYPES, "int8"),
        help="auto: as train.py; int8 where the run had it")
    return parser


def check(args: argparse.Namespace) -> argparse.Namespace:
    """The flags. Raises UserError where they contradict themselves."""
    if min(n for n in (args.samples, args.max_new, args.max_rows) if n is not None) < 1:
        raise UserError("--samples, --max-new-tokens and --rollout-batch must be at least 1")
    if getattr(args, "limit", 0) < 0 or not 0 <= args.temperature < math.inf:
        raise UserError("--limit and --temperature must not be negative")
    demand(args.samples == 1 or args.temperature > 0, f"--samples {args.samples} at temperature 0 are the "
           f"same answer {args.samples} times: give --temperature 0.6 or one sample")
    return args


def choose(names: str, valid: tuple[str, ...], flag: str = "--bench", thing: str = "benchmark") -> list[str]:
    """The names that a flag gives, in order. Raises UserError with the near name for one not valid."""
    wanted = dict.fromkeys(name.strip().lower() for name in names.split(",") if name.strip())
    for name in [name for name in wanted if name not in valid]:
        near = "".join(difflib.get_close_matches(name, valid, 1, 0.4))
        hint = f"; did you mean {near}?" if near else "."
        raise UserError(f"{flag} {name}: no such {thing}{hint} Valid: {', '.join(valid)}")
    return list(wanted)


def command(name: str, main: Callable[[], int]) -> None:
    """Leaves with main's exit code; 2: the user can mend it, 1: the machine's trouble, 130: Ctrl-C."""
    try:
        sys.exit(main())
    except (UserError, OSError) as e:
        print(f"{name}: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, UserError) else 1)
    except (KeyboardInterrupt, Interrupted):
        print(f"{name}: interrupted; the same command goes on from what is on disk", file=sys.stderr)
        sys.exit(130)


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
    device = Ranks.join(args.device).device
    int8 = args.dtype == "int8" or args.dtype == "auto" and of_run(args, "dtype") == "int8"
    name = args.base or of_run(args, "base")
    if not name and directories:
        name = read_peft(next(iter(directories.values())))[0].get("base_model_name_or_path")
    demand(name, "give --base (a directory or hub id), or --run out/NAME, which knows its own")
    base = load_base(name, DTYPES[pick_dtype(args.dtype, device)], device, int8)
    base = dataclasses.replace(base, day=of_run(args, "date") or day_told(base.tokenizer))
    return stack(base, files_hash(base.path), directories)


def of_run(args: argparse.Namespace, name: str):
    """A flag's value in the run that --run names; None where there is no run, or it does not say."""
    return RunDir(Path(args.run).expanduser(), writes=False).config().get(name) if args.run else None


def peft_directories(given: list[Path]) -> dict[str, Path]:
    """Member name -> PEFT directory, of directories that are one or hold some; else raises UserError."""
    paths = []
    for directory in given:
        is_one = (directory / "adapter_config.json").exists()
        inside = [directory] if is_one else [path.parent for path in directory.glob("*/adapter_config.json")]
        demand(inside, f"{directory} is no PEFT directory (no adapter_config.json) and holds none: give for "
               "example out/NAME/step_80/S0")
        paths += sorted(inside, key=lambda path: member_order(path.name))
    names = [path.resolve().name for path in paths]
    if len({*names, BASE}) <= len(names):           # several of one name
        names = ["/".join(path.resolve().parts[-3:]) for path in paths]
    return dict(zip(names, paths))


def stack(base: Base, base_hash: str, directories: dict[str, Path]) -> Population:
    """Base and PEFT adapters, stacked. Raises UserError for damaged ones, other bases, several shapes."""
    adapters, hashes = None, {}
    for slot, (name, path) in enumerate(directories.items()):
        if adapters is None:
            config, _, factors = read_peft(path)        # whose names say which layers: a pattern may not
            adapters = Adapters.on(base.model, len(directories), config["r"], config["lora_alpha"],
                                   set(factors), base.model.embedding.device)
        load_peft(adapters, slot, path, base_hash)
        hashes[name] = hashlib.sha256((path / "adapter_model.safetensors").read_bytes()).hexdigest()
    slots = {name: slot for slot, name in enumerate(directories)} | {BASE: -1}
    return Population(base, adapters, slots, hashes, base_hash)


# ---- a directory of results --------------------------------------------------------------------------------

def open_out(args: argparse.Namespace, population: Population, prompt_format: str, data: dict[str, str],
             default: str) -> tuple[RunDir, list[dict]]:
    """The directory of results (default: its name where --out gives none) and the answers already there.
    data: SHA-256 of each benchmark's file. The population's base is told the date of those answers. Raises
    UserError where they were made otherwise (members and benchmarks may be new ones)."""
    run = RunDir(Path(args.out or Path(args.run or "out", default)).expanduser())
    dtypes = sorted({str(p.dtype) for p in population.base.model.parameters()})
    config = dict(base=str(population.base.path), base_hash=population.base_hash, dtype=dtypes,
                  prompt=prompt_format, temperature=args.temperature, max_new=args.max_new, seed=args.seed)
    config |= {f"adapter {name}": sha for name, sha in population.hashes.items()}
    config |= {f"data {name}": sha for name, sha in data.items()}
    old = run.config() if (run.path / "config.json").exists() else {}
    config["date"] = old.get("date", population.base.day)
    population.base = dataclasses.replace(population.base, day=config["date"])
    changed = [name for name in config if name != "base" and old.get(name, config[name]) != config[name]]
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


def conclude(args: argparse.Namespace, run: RunDir, rows: list[dict], counted: Callable = list,
             **more) -> None:
    """Writes summary.json (`more` goes along), prints the table and, of several samples, that of pass@k.
    counted(rows) -> rows: which answers the tables count, and under which names."""
    config, rows = run.config(), counted(comparable(rows))
    result = dict(base=config["base"], samples=args.samples, temperature=args.temperature,
                  prompt=config["prompt"], results=summarise(rows, args.max_new))
    print(table(result["results"]))
    if args.samples > 1:
        result["pass_at_k"] = passes(rows)
        print(f"\npass@k: the chance that one of k answers is right, from {args.samples}; 95% intervals, "
              f"paired over questions\n{pass_table(result['pass_at_k'])}")
        result["coverage"] = coverage(rows)
        if result["coverage"]:
            print("\ncoverage: the chance that one of k answers is right, one from each of k members; all "
                  f"from one (mean),\nor from the best\n{table(result['coverage'])}")
    run.write_json("summary.json", result | more)
    print(f"every answer with its verdict: {run.path / 'answers.jsonl'}")
