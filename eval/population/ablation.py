"""Which part of a population is worth its compute? Arms that spend the same budget, on any base.

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan       # the runs and their cost
    python -m eval.population.ablation --base micro/base --seeds 0,1,2              # the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2
    python -m eval.population.ablation --from out/mine out/yours                    # finished runs, one table

`full` (the population as it is) sets the budget: what it spends in --steps with a seed, in generated tokens
without those of probes, is the budget of every other arm with this seed, of all its runs together (`single`'s
is that of one pair). A run stops inside the loop, after the step that brings it nearest. Many can share the
seeds: what the tables need of a run is a line of OUT/runs.jsonl, beside OUT/config.json. Words after -- are
flags of train.py for every arm.
"""
import argparse
import contextlib
import dataclasses
import re
import shlex
import time
from pathlib import Path

import train
from config import Config, parse_args, resolve_config
from eval import common
from eval.population import measures, runs
from eval.population.runs import FULL, SEED_STRIDE, Arm, Experiment, runs_of
from operators import OPERATORS
from run.platform import Interrupted
from weights import load_tokenizer, resolve

OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "keep",
         "plan", "device", "probe_every", "heldout", "n_heldout")
POPULATIONS = {FULL: "", "no-evolution": "--evolve none", "uniform": "--matching uniform",
               "frozen-teachers": "--lr-teacher 0", "novelty": "--teacher-reward novelty",
               "niches": "--niches", "niches-add": "--niches --evolve add",
               "niches-layerwise": "--niches --evolve layerwise", "static": "--tasks micro",
               "pbt": "--lr-spread 8 --lr-mutate 1.25"}         # name -> flags of train.py
POPULATIONS |= {name: f"--evolve {name}" for name in ("mutation", "crossover", *OPERATORS)}
PRIMARY = ("no-evolution", "uniform", "pair", "single-long", "single", "frozen-teachers")


# ---- arms --------------------------------------------------------------------------------------------------

def arms_of(pop: int) -> dict[str, Arm]:
    """The arms by name, for a population of `pop`."""
    arms = {name: Arm(("--pop", str(pop), *words.split())) for name, words in POPULATIONS.items()}
    pairs, alone = pop // 2, ("--single",)
    return arms | {"single": Arm(alone, 1 / pairs), "singles": Arm(alone, 1 / pairs, pairs),
                   "single-long": Arm(alone), "pair": Arm(("--pop", "2")), "crossed": Arm(alone, cross="add")}


def given_arm(text: str, pop: int) -> tuple[str, Arm]:
    """An arm of --arm, "name: --flag value ...", a population of `pop` unless its flags say otherwise. Raises
    ValueError where the text is not of this form."""
    name, _, words = text.partition(":")
    flags = shlex.split(words)
    if not re.fullmatch(r"[a-z0-9.-]+", name) or name in arms_of(pop) or not flags:
        raise ValueError(f'--arm {text}: give a new name and flags of train.py: --arm "slow: --lr 3e-4"')
    return name, Arm(tuple(flags) if {"--single", "--pop"} & set(flags) else ("--pop", str(pop), *flags))


# ---- running -----------------------------------------------------------------------------------------------

def words_of(args: argparse.Namespace, arm: Arm, run: str, seed: int) -> list[str]:
    """The flags that train a run, or go on with it. It stops at its budget, long before its steps."""
    flags = {"base": args.base, "seed": seed, "steps": args.pop * args.steps, "device": args.device,
             "probe-every": args.probe_every, "heldout": args.out / "heldout.jsonl", "n-heldout": args.limit,
             "keep": 1, "out": args.out, "name": run, "resume": "auto"}
    words = [*args.train, *arm.flags]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words


def train_run(args: argparse.Namespace, directory: Path, words: list[str], due: float | None) -> None:
    """Train a run until it has spent `due`, or, without one, for --steps. What is on disk counts."""
    rows = runs.logged(directory)

    def enough(row: dict | None = None) -> bool:
        rows.extend([row] if row else [])
        return len(rows) >= args.steps if due is None else runs.met(runs.spent(rows), due)
    if not enough():
        with open(f"{directory}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(parse_args(None, words), enough)


def train_arm(args: argparse.Namespace, arm: Arm, run: str, seed: int, budget: int | None) -> list[Path]:
    """Train a run of an arm; its directory, or those of the specialists that it crosses."""
    due, places = arm.part * budget if budget else None, {"": args.out / run}
    if arm.cross:
        places = {kind: args.out / f"{run}.{kind}" for kind in args.types}
    for kind, place in places.items():
        words = words_of(args, arm, place.name, seed) + (["--task-types", kind] if kind else [])
        train_run(args, place, words, due / len(places) if due else None)
    return list(places.values())


def run_all(args: argparse.Namespace) -> None:
    """Train and evaluate every run that is not yet on disk, seed by seed, full first; runs.jsonl grows by
    each."""
    words = ["--base", args.base, "--device", args.device, "--workers", 1]
    words += [word for word in args.train if word == "--weak-sandbox"]
    for seed in args.seeds:
        budget = None
        for name, arm in args.wanted.items():
            for run, own_seed in runs_of(name, arm, seed).items():
                started, out = time.monotonic(), args.out / run
                parts = [(place, 0) for place in train_arm(args, arm, run, own_seed, budget)]
                record = runs.examined(out, parts, arm.cross, args.types, args.types, args.limit, words)
                done = record["spent"][-1]
                record["probes"].append([done, *record["last"]])         # the probes asked these tasks
                runs.add(args.out / "runs.jsonl", record)
                budget = budget or done
                print(f"{time.strftime('%X')} {run}: {len(record['spent'])} steps, {done:,} tokens, "
                      f"{done / (arm.part * budget):.3f} of its budget; {time.monotonic() - started:.0f} s",
                      flush=True)


# ---- the command line --------------------------------------------------------------------------------------

def seeds_of(text: str) -> list[int]:
    """--seeds; those of independent singles are counted on from 1000."""
    seeds = sorted({int(seed) for seed in text.split(",")})
    if seeds[0] < 0 or seeds[-1] >= SEED_STRIDE:
        raise argparse.ArgumentTypeError(f"{text}: from 0 to {SEED_STRIDE - 1}")
    return seeds


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = argparse.ArgumentParser(prog="python -m eval.population.ablation", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add = p.add_argument
    add("--base", default="", help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help=f"names, with commas; default: {','.join(PRIMARY)}, or all of --from")
    add("--arm", action="append", default=[], help='one of your own, "name: --flag value ..."; several times')
    add("--seeds", type=seeds_of, default="0,1,2", help="whole numbers, separated by commas")
    add("--steps", type=int, default=None, help="of full; default: the prompt format's")
    add("--pop", type=int, default=8, help="members of full, an even number from 4 on")
    add("--probe-every", type=int, default=5, help="steps between probes")
    add("--out", default="out/ablation", help="where runs and runs.jsonl go")
    add("--limit", type=int, default=72, help="held-out tasks of each played type and split")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run")
    add("--from", dest="source", nargs="+", default=[], metavar="DIR", help="the table of finished runs")
    add("--reference", default=FULL, help="the arm with which the others are compared")
    add("--measure", default="area", help="what is compared: " + ", ".join(measures.MEASURES)
        + ", or a task type (what the deployed member solves of it)")
    add("--goal", type=float, default=0.6, help="accuracy in all played types that counts as reached")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of full; sets args.out, .steps, .train, .wanted (arms by name, full first) and
    .types (those played). Raises ValueError for what the user can mend."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    if args.pop < 4 or args.pop % 2 or args.limit < 2 or args.probe_every < 1 or not args.base:
        raise ValueError("give --base, or --from DIR..., an even --pop from 4 on, --limit of at least 2, and "
                         "--probe-every of at least 1")
    if owned := [word for word in args.train if word[2:].split("=")[0].replace("-", "_") in OWNED]:
        raise ValueError(f"{owned[0]} after --: the arms set it themselves; this command has flags for it")
    cfg = dataclasses.replace(parse_args(None, args.train), base=args.base, pop=args.pop, steps=args.steps)
    prompt_format = cfg.prompt_format
    if prompt_format == "auto":
        prompt_format = load_tokenizer(resolve(args.base))[1]
    cfg, every = resolve_config(cfg, prompt_format), arms_of(args.pop)
    given = dict(given_arm(text, args.pop) for text in args.arm)
    names = args.arms or ("" if given else ",".join(PRIMARY))
    names = common.choose(names, tuple(every), "--arms", "arm")
    args.wanted = {name: every[name] for name in dict.fromkeys([FULL, *names])} | given
    args.steps, args.out = cfg.steps, Path(args.out).expanduser().resolve()
    args.types = common.choose(cfg.task_types, ("code_o", "code_i", "code_f"), "--task-types", "ablation")
    for name, arm in args.wanted.items():
        resolve_config(parse_args(None, [*args.train, *arm.flags]), prompt_format)
        if arm.cross and len(args.types) != OPERATORS[arm.cross].n_parents:
            raise ValueError(f"arm {name} crosses a specialist of each type: -- --task-types code_o,code_i")
    return cfg


def show(args: argparse.Namespace, experiment: Experiment) -> dict:
    """What finished runs say."""
    arms = common.choose(args.arms, tuple(experiment.arms), "--arms", "arm") or list(experiment.arms)
    common.choose(args.reference, tuple(experiment.arms), "--reference", "arm")
    return measures.conclude(experiment, arms, args.reference, args.measure, args.goal)


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    if not args.source:
        cfg = settled(args)
        each = [(arm, run, own) for seed in args.seeds for name, arm in args.wanted.items()
                for run, own in runs_of(name, arm, seed).items()]
        if args.plan:
            for arm, run, own in each:
                print(f"{run}: {shlex.join(words_of(args, arm, run, own))}")
            answers = cfg.teachers * cfg.n_prompts * cfg.proposals_per_prompt * (1 + cfg.samples_per_task)
            tokens = sum(arm.part for arm, *_ in each) * cfg.steps * answers * cfg.max_new_tokens
            print(f"\n{len(each)} runs: at most {tokens:,.0f} tokens and those of probes")
            return 0
        plan = dict(base="/".join(Path(args.base).parts[-2:]), pop=args.pop, steps=args.steps,
                    probe_every=args.probe_every, types=args.types, limit=args.limit, train=args.train)
        runs.write_plan(args.out, plan, args.wanted)
        runs.write_heldout(args.out / "heldout.jsonl", args.types, args.limit)
        try:
            run_all(args)
        except Interrupted:
            raise KeyboardInterrupt from None
        args.source, args.arms = [str(args.out)], ",".join(args.wanted)
    print(measures.table(show(args, runs.opened(args.source))))
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
