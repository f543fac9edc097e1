"""Which part of a population is worth its compute? Arms that spend the same budget, on any base.

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan       # the runs and their cost
    python -m eval.population.ablation --base micro/base --seeds 0,1,2              # the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2
    python -m eval.population.ablation --from out/mine out/yours                    # finished runs, one table

What `full` (the population as it is) spends in --steps with a seed, in generated tokens without those of
probes, is the budget of every other arm with this seed, of all its runs together (`single`'s is that of one
pair). A run stops after the step that brings it nearest. Three seeds are a first look: intervals take five, a
verdict takes eight, and the same command with more --seeds goes on. What the tables need of it is a line of
OUT/runs.jsonl, beside OUT/config.json. Words after -- are flags of train.py for every arm.
"""
import argparse
import contextlib
import dataclasses
import itertools
import re
import shlex
from pathlib import Path

import train
from config import Config, parse_args, resolve_config
from eval import common
from eval.population import measures, runs
from eval.population.runs import FULL, SEED_STRIDE, Arm, runs_of
from eval.stats import FEWEST_RUNS
from infra import command
from infra.errors import demand
from operators import OPERATORS
from run.checkpoint import RunDir
from weights import load_tokenizer, resolve

OWNED = set("--base --name --out --resume --seed --steps --pop --teachers --single --keep --plan "
            "--device --heldout --n-heldout".split())           # flags of train.py that the arms set
# name -> flags of train.py
ARMS = {
    FULL: "",
    "no-evolution": "--evolve none",
    "uniform": "--matching uniform",
    "pair": "--pop 2",
    "single-long": "--single",
    "frozen-teachers": "--lr-teacher 0",
    "novelty": "--teacher-reward novelty",
    "niches": "--niches",
    "niches-add": "--niches --evolve add",
    "niches-layerwise": "--niches --evolve layerwise",
    "static": "--tasks micro",
    "pbt": "--lr-spread 8 --lr-mutate 1.25",
    "litter": "--litter 4",
}
ARMS |= {name: f"--evolve {name}" for name in ("mutation", "crossover", *OPERATORS)}
# Of the tokens that --plan calls the most, what full took in its first 12 and in all 40 steps (docs/results)
USUAL = (0.09, 0.16)
PRIMARY = ("no-evolution", "uniform", "pair", "single-long", "single", "frozen-teachers")


def arms_of(pop: int, given: tuple | list = ()) -> dict[str, Arm]:
    """The arms by name, and those of --arm, "name: --flag value ...". Raises UserError."""
    arms = {
        "single": Arm(("--single",), 2 / pop),
        "singles": Arm(("--single",), 2 / pop, pop // 2),
    }
    ours = [f"{name}:{words}" for name, words in ARMS.items()]
    for text in [*ours, *given]:
        name, _, words = text.partition(":")
        flags = shlex.split(words)
        is_new = re.fullmatch(r"[a-z0-9._-]+", name) and name not in arms
        demand(is_new and (flags or name == FULL),
               f'--arm {text}: give a new name and flags of train.py: --arm "slow: --lr 3e-4"')
        if not {"--single", "--pop"} & set(flags):
            flags = ["--pop", str(pop), *flags]
        arms[name] = Arm(tuple(flags))
    return arms


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run that is to be trained: its arm, and the flags that train it or go on with it."""
    seed: int                   # of the comparison, which several runs of an arm share
    arm: Arm
    run: str
    words: list[str]


def planned(args: argparse.Namespace) -> list[Planned]:
    """Every run, seed by seed, full first."""
    out = []
    for seed, (name, arm) in itertools.product(args.seeds, args.wanted.items()):
        # Others stop at their budget, long before that: even one adapter is done by then.
        steps = args.steps if name == FULL else args.pop * args.steps
        for run, own in runs_of(name, arm, seed).items():
            flags = {
                "base": args.base,
                "seed": own,
                "steps": steps,
                "device": args.device,
                "heldout": args.out / "heldout.jsonl",
                "n-heldout": args.limit,
                "keep": 1,
                "out": args.out,
                "name": run,
                "resume": "auto",
            }
            words = ["--probe-every", "5", *args.train, *arm.flags]
            for flag, value in flags.items():
                words += [f"--{flag}", str(value)]
            out.append(Planned(seed, arm, run, words))
    return out


def train_run(args: argparse.Namespace, directory: Path, words: list[str], due: float | None) -> None:
    """Train a run until it has spent `due`, or, without one, for --steps. What is on disk counts."""
    rows = runs.logged(directory)

    def is_done() -> bool:
        if due is None:
            return len(rows) >= args.steps
        return runs.met(runs.spent(rows), due)

    def enough(row: dict) -> bool:
        rows.append(row)
        return is_done()

    if not is_done():
        with open(f"{directory}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(parse_args(None, words), enough)


def run_all(args: argparse.Namespace, plan: dict) -> None:
    """Train and evaluate every run that is not yet on disk; runs.jsonl grows by each."""
    asking = ["--base", args.base, "--device", args.device]
    budgets = {}                                        # by seed: what full has spent
    for one in planned(args):
        out, due = args.out / one.run, None
        if one.seed in budgets:
            due = one.arm.part * budgets[one.seed]
        train_run(args, out, one.words, due)
        step = RunDir(out, writes=False).steps()[-1]
        record = runs.examined(out, [(out, step)], "", plan, asking)
        done, last = record["spent"][-1], record["accuracy"]["validation"]
        # The end is probed as well: on the same tasks.
        record["probes"].append([done, *runs.heights(last, last[plan["types"][0]])])
        runs.add(args.out, record)
        part = done / (one.arm.part * budgets.setdefault(one.seed, done))
        print(f"{one.run}: {len(record['spent'])} steps, {done:,} tokens, {part:.3f} of its budget",
              flush=True)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = command.parser_of("python -m eval.population.ablation", __doc__)
    add = p.add_argument
    add("--base", default="", help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help=f"names, with commas; default: {','.join(PRIMARY)}, or all of --from")
    add("--arm", action="append", default=[], help='one of your own, "name: --flag value ..."; several times')
    add("--seeds", default="0,1,2", help=f"whole numbers under {SEED_STRIDE}, separated by commas; an "
        f"interval takes {FEWEST_RUNS}, a verdict {measures.FEWEST}")
    add("--steps", type=int, default=None, help="of full; default: the prompt format's")
    add("--pop", type=int, default=8, help="members of full, an even number from 4 on")
    add("--out", default="out/ablation", help="where runs and runs.jsonl go")
    add("--limit", type=int, default=72, help="held-out tasks of each played type and split")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run")
    add("--from", dest="source", nargs="+", default=[], metavar="DIR", help="the table of finished runs")
    add("--reference", default=FULL, help="the arm with which the others are compared")
    add("--contrast", action="append", default=[], metavar="ONE,OTHER",
        help="a further pair of arms, corrected with those of the reference; several times")
    add("--measure", default="area", help="what is compared: area, goal, end, deployed, a task type, "
        "coverage or repeated")
    add("--goal", type=float, default=0.6, help="accuracy in all played types that counts as reached")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of full; sets args.out, .steps, .train, .wanted (arms by name, full first) and
    .types (those played). Raises UserError for what the user can mend."""
    demand(args.pop >= 4 and args.pop % 2 == 0 and args.limit >= 2 and args.base,
           "give --base, or --from DIR..., an even --pop from 4 on, and --limit of at least 2")
    seeds = args.seeds.split(",")
    demand(all(re.fullmatch("[0-9]{1,3}", seed) for seed in seeds),
           f"--seeds {args.seeds}: give whole numbers under {SEED_STRIDE}, as in 0,1,2")
    args.seeds = sorted(set(map(int, seeds)))
    if args.train[:1] == ["--"]:
        args.train = args.train[1:]
    for word in args.train:
        flag = word.partition("=")[0]
        demand(flag not in OWNED,
               f"{flag} after --: the arms set it themselves; this command has flags for it")

    cfg = dataclasses.replace(parse_args(None, args.train), base=args.base, pop=args.pop, steps=args.steps)
    prompt_format = cfg.prompt_format
    if prompt_format == "auto":
        prompt_format = load_tokenizer(resolve(args.base))[1]
    cfg = resolve_config(cfg, prompt_format)
    args.steps, args.out = cfg.steps, Path(args.out).expanduser().resolve()
    played = ",".join(cfg.task_types)
    args.types = common.choose(played, ("code_o", "code_i", "code_f"), "--task-types", "ablation")

    every = arms_of(args.pop, args.arm)
    own = [text.partition(":")[0] for text in args.arm]
    names = common.choose(",".join([args.arms, *own]), tuple(every), "--arms", "arm")
    args.wanted = {}
    for name in [FULL, *(names or PRIMARY)]:
        args.wanted[name] = arm = every[name]
        resolve_config(parse_args(None, [*args.train, *arm.flags]), prompt_format)      # raises for bad flags
    return cfg


def show_plan(args: argparse.Namespace, cfg: Config) -> None:
    """Print the runs and what they cost. cfg: of full."""
    budgets = 0.0
    each = planned(args)
    for one in each:
        budgets += one.arm.part
        ends = f"{args.steps} steps"
        if one.run != f"{FULL}-s{one.seed}":
            part = "" if one.arm.part == 1 else f" {one.arm.part:g} of"
            ends = f"ends when it has spent{part} the tokens of {FULL}-s{one.seed}"
        print(f"{one.run}, {ends}: {shlex.join(one.words)}")
    proposals = cfg.teachers * cfg.n_prompts * cfg.proposals_per_prompt
    answers = proposals * (1 + cfg.samples_per_task)
    most = budgets * cfg.steps * answers * cfg.max_new_tokens
    print(f"\n{len(each)} runs, without probes: at most {most:,.0f} tokens, were every proposal valid and "
          "every answer as long as --max-new-tokens")
    if cfg.prompt_format == "micro":
        low, high = USUAL
        print(f"what runs of the bundled base usually take of it: {low * most:,.0f} to {high * most:,.0f}")


def warn_of_seeds(seeds: list[int]) -> None:
    """Say before anything is run what so few seeds cannot show."""
    missing = []
    if len(seeds) < FEWEST_RUNS:
        missing.append(f"no intervals (from {FEWEST_RUNS} seeds on)")
    if len(seeds) < measures.FEWEST:
        missing.append(f"no verdicts (from {measures.FEWEST} seeds on)")
    if missing:
        print(f"note: {len(seeds)} seed(s): the table will have {' and '.join(missing)}. Seeds can be added: "
              "the same command with more --seeds runs only what is missing", flush=True)


def train_arms(args: argparse.Namespace) -> None:
    """Train what the flags ask for; it lies in args.out then."""
    plan = {
        "base": "/".join(Path(args.base).parts[-2:]),
        "pop": args.pop,
        "steps": args.steps,
        "types": args.types,
        "asked": args.types,
        "limit": args.limit,
        "train": args.train,
    }
    if args.measure in ("coverage", "repeated"):
        plan["samples"] = runs.SAMPLES
    runs.write_plan(args.out, plan, args.wanted)
    runs.write_heldout(args.out / "heldout.jsonl", args.types, args.limit)
    run_all(args, plan)


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    args = parser().parse_args(argv)
    if not args.source:
        cfg = settled(args)
        warn_of_seeds(args.seeds)
        if args.plan:
            show_plan(args, cfg)
            return 0
        train_arms(args)
        args.source, args.arms = [str(args.out)], ",".join(args.wanted)
    experiment = runs.opened(args.source)
    known = tuple(experiment.arms)
    common.choose(args.reference, known, "--reference", "arm")
    arms = common.choose(args.arms, known, "--arms", "arm") or known
    further = []
    for text in args.contrast:
        pair = common.choose(text, known, "--contrast", "arm")
        demand(len(pair) == 2,
               f"--contrast {text}: give two arms with a comma between, as in spread,one")
        further.append(tuple(pair))
    result = measures.conclude(experiment, arms, args.reference, args.measure, args.goal, further)
    print(measures.table(result))
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
