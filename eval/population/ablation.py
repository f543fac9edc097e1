"""Which part of a population is worth its compute? Arms that spend the same budget, on any base.

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan       # the runs and their cost
    python -m eval.population.ablation --base micro/base --seeds 0,1,2              # the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2
    python -m eval.population.ablation --from out/mine out/yours                    # finished runs, one table
    python -m eval.population.ablation --from out/a out/b --map --reference single-long   # ground by arm

`full` (the population as it is) sets the budget: what it spends in --steps with a seed, in generated tokens
without those of probes, is the budget of every other arm with this seed, of all its runs together (of
`single`: of one pair). A run stops inside the loop, after the step that
brings it nearest. Runs are trained in this process, one after the other, seed by seed. Many can share the
seeds (--seeds 0,1 --out A here, --seeds 2,3 --out B there, then --from A B): what the tables need of a run is
a line of OUT/runs.jsonl, beside OUT/config.json. Words after -- are flags of train.py for every arm.
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

LONGEST = 4             # times the steps first thought of: a run that needs more has stopped to spend
OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "keep",
         "plan", "device", "probe_every", "heldout", "n_heldout")
POP, PAIR = "--pop {pop}", "--pop 2"
# name -> flags of train.py; part "pair": a run's budget is one pair's; runs "pairs": as many as there are
# pairs; cross: see runs.Arm. {wide}: as many prompts a step as all teachers answer.
ARMS = {
    FULL: dict(flags=POP),
    "single": dict(flags="--single", part="pair"),
    "singles": dict(flags="--single", part="pair", runs="pairs"),
    "single-long": dict(flags="--single"),
    "single-wide": dict(flags="--single --n-prompts {wide}"),
    "pair": dict(flags=PAIR),
    "pair-wide": dict(flags=f"{PAIR} --n-prompts {{wide}}"),
    "no-evolution": dict(flags=f"{POP} --evolve none"),
    "uniform": dict(flags=f"{POP} --matching uniform"),
    "frozen-teachers": dict(flags=f"{POP} --lr-teacher 0"),
    "novelty": dict(flags=f"{POP} --teacher-reward novelty"),
    "full-nodedupe": dict(flags=f"{POP} --dedupe off"),
    "single-long-nodedupe": dict(flags="--single --dedupe off"),
    "niches": dict(flags=f"{POP} --niches"),
    "niches-add": dict(flags=f"{POP} --niches --evolve add"),
    "niches-layerwise": dict(flags=f"{POP} --niches --evolve layerwise"),
    "pbt": dict(flags=f"{POP} --lr-spread 8 --lr-mutate 1.25"),
    "static": dict(flags=f"{POP} --tasks micro"),
    "crossed": dict(flags="--single", cross="add"),
}
for name in ("mutation", "crossover", *OPERATORS):
    ARMS[name] = dict(flags=f"{POP} --evolve {name}")
PRIMARY = ("no-evolution", "uniform", "pair", "single-long", "single", "frozen-teachers")
PRESETS = {"primary": PRIMARY,
           "paper": (*PRIMARY, "singles", "copy", "mutation", "crossover", "novelty", "full-nodedupe",
                     "single-long-nodedupe"),
           "operators": ("no-evolution", *OPERATORS),
           "niches": ("niches-add", "niches-layerwise", "niches", "no-evolution", "single-long", "singles",
                      "crossed", "copy"),
           "quick": ("single-long", "no-evolution")}


# ---- arms --------------------------------------------------------------------------------------------------

def arms_of(pop: int, n_prompts: int) -> dict[str, Arm]:
    """ARMS for a population of `pop` whose teachers answer n_prompts prompts a step."""
    pairs = pop // 2
    arms = {}
    for name, arm in ARMS.items():
        flags = arm["flags"].format(pop=pop, wide=n_prompts * pairs).split()
        part = 1 / pairs if arm.get("part") == "pair" else 1.0
        runs = pairs if arm.get("runs") == "pairs" else 1
        arms[name] = Arm(tuple(flags), part, runs, arm.get("cross", ""))
    return arms


def given_arm(text: str, pop: int) -> tuple[str, Arm]:
    """An arm from the command line, "name: --flag value ...": a population of `pop` unless its flags differ.

    Raises ValueError where the text is not of this form.
    """
    name, colon, words = text.partition(":")
    name = name.strip()
    if not colon or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) or name in ARMS:
        raise ValueError(f"--arm {text!r}: give a new name of small letters, digits, '-' and '.', a colon, "
                         'and flags of train.py, as in --arm "slow: --lr 3e-4"')
    flags = tuple(shlex.split(words))
    own_size = {"--single", "--pop"} & {flag.split("=")[0] for flag in flags}
    return name, Arm(flags if own_size else ("--pop", str(pop), *flags))


def rows_of_step(cfg: Config) -> int:
    """Proposals of one step and, at most, attempts at them."""
    return cfg.teachers * cfg.n_prompts * cfg.proposals_per_prompt * (1 + cfg.samples_per_task)


# ---- running -----------------------------------------------------------------------------------------------

def words_of(args: argparse.Namespace, arm: str, run: str, seed: int) -> list[str]:
    """The flags that train a run, or go on with it. It stops at its budget, long before its steps.

    Arms of more and smaller steps probe as often as the others by what they spend.
    """
    stretch = args.stretch[arm]
    flags = {"base": args.base, "seed": seed, "steps": LONGEST * args.steps * stretch,
             "device": args.device, "probe-every": args.probe_every * stretch,
             "heldout": args.out / "heldout.jsonl", "n-heldout": args.limit or 1000, "keep": 1,
             "out": args.out, "name": run, "resume": "auto"}
    words = [*args.train, *args.wanted[arm].flags]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words


def train_run(args: argparse.Namespace, directory: Path, words: list[str], due: float | None) -> int:
    """Train a run until it has spent `due`, or, without one, for --steps; returns what it has spent. What is
    on disk counts."""
    rows = runs.logged(directory)

    def enough(row: dict | None = None) -> bool:
        rows.extend([row] if row else [])
        return len(rows) >= args.steps if due is None else runs.met(runs.spent(rows), due)
    if not enough():
        with open(f"{directory}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(parse_args(None, words), enough)
    return runs.spent(rows)[-1]


def train_arm(args: argparse.Namespace, arm: str, run: str, seed: int, budget: int | None) -> list[Path]:
    """Train a run of an arm; its directory, or those of the specialists that it crosses."""
    what, directory = args.wanted[arm], args.out / run
    due = what.part * budget if budget else None
    if not what.cross:
        train_run(args, directory, words_of(args, arm, run, seed), due)
        return [directory]
    parents = [args.out / f"{run}.{kind}" for kind in args.types]
    for kind, parent in zip(args.types, parents):
        words = [*words_of(args, arm, parent.name, seed), "--task-types", kind]
        train_run(args, parent, words, due / len(parents))
    runs.cross(parents, [0] * len(parents), what.cross, directory, seed)
    return parents


def run_all(args: argparse.Namespace) -> None:
    """Train and evaluate every run that is not yet on disk, seed by seed, full first; runs.jsonl grows by
    each."""
    words = ["--base", args.base, "--device", args.device, "--workers", 1]
    words += [word for word in args.train if word == "--weak-sandbox"]
    for seed in args.seeds:
        budget = None
        for arm, what in args.wanted.items():
            for run, own_seed in runs_of(arm, what, seed).items():
                directory, started = args.out / run, time.monotonic()
                parts = train_arm(args, arm, run, own_seed, budget)
                runs.ask(directory, runs.students_of(directory), args.types, args.limit, words)
                parts = [(part, 0) for part in parts]
                record = runs.record_of(directory, parts, args.types, args.types, True)
                runs.add(args.out / "runs.jsonl", record)
                done = record["spent"]
                budget = budget or done[-1]
                print(f"{time.strftime('%X')} {run}: {len(done)} steps, {done[-1]:,} tokens, "
                      f"{done[-1] / (what.part * budget):.3f} of its budget; "
                      f"{time.monotonic() - started:.0f} s", flush=True)


# ---- the command line --------------------------------------------------------------------------------------

def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = argparse.ArgumentParser(prog="python -m eval.population.ablation", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add = p.add_argument
    presets = "; ".join(f"{name}: {', '.join(arms)}" for name, arms in PRESETS.items())
    add("--base", default="", help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help="names, separated by commas; default: those of --preset, or all of --from")
    add("--arm", action="append", default=[], help='an arm of your own, "name: --flag value ..."')
    add("--preset", default="primary", choices=tuple(PRESETS), help=presets)
    add("--seeds", default="0,1,2", help="separated by commas")
    add("--steps", type=int, default=None, help="of full; default: the prompt format's")
    add("--pop", type=int, default=8, help="members of full")
    add("--probe-every", type=int, default=5, help="steps of full between probes")
    add("--out", default="out/ablation", help="where runs and runs.jsonl go")
    add("--limit", type=int, default=72, help="held-out tasks of each played type and split; 0 = all")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run")
    add("--from", dest="source", nargs="+", default=[], metavar="DIR", help="the table of finished runs")
    add("--reference", default=FULL, help="the arm with which the others are compared")
    add("--measure", default="area", help="what is compared: " + ", ".join(measures.MEASURES)
        + ", or a task type (what the deployed member solves of it)")
    add("--goal", type=float, default=0.6, help="accuracy in all played types that counts as reached")
    add("--map", action="store_true", help="each directory of --from is a ground: one table, ground by arm")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of full; sets args.base, .train, .seeds, .steps. Raises ValueError."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    for word in args.train:
        if word.startswith("--") and word[2:].split("=")[0].replace("-", "_") in OWNED:
            raise ValueError(f"{word} after --: the arms set it themselves; this command has --base, "
                             "--steps, --pop, --seeds, --probe-every, --out and --device")
    if args.pop < 4 or args.pop % 2 or args.limit < 0 or args.probe_every < 1:
        raise ValueError("--pop must be an even number from 4 on, --limit at least 0, --probe-every 1")
    try:
        args.seeds = sorted({int(seed) for seed in args.seeds.split(",")})
    except ValueError:
        raise ValueError(f"--seeds {args.seeds}: whole numbers, separated by commas") from None
    if args.seeds[0] < 0 or args.seeds[-1] >= SEED_STRIDE:
        raise ValueError("--seeds: from 0 to 999 (those of independent singles are counted on from 1000)")
    cfg = dataclasses.replace(parse_args(None, args.train), pop=args.pop, steps=args.steps)
    prompt_format = cfg.prompt_format
    if prompt_format == "auto" or not args.plan:          # a plan needs no base where its format is given
        args.base = common.base_name(argparse.Namespace(base=args.base, run=""), [])
        path = resolve(args.base)
        args.base = str(path.resolve()) if Path(args.base).is_dir() else args.base
        prompt_format = load_tokenizer(path)[1] if prompt_format == "auto" else prompt_format
    cfg = resolve_config(dataclasses.replace(cfg, base=args.base), prompt_format)
    if cfg.steps <= cfg.evolve_every:
        raise ValueError(f"--steps {cfg.steps}: nobody would be replaced before the end, so that full and "
                         f"no-evolution are one; give more than {cfg.evolve_every}, or -- --evolve-every N")
    args.steps, args.out = cfg.steps, Path(args.out).expanduser().resolve()
    args.most = cfg.steps * rows_of_step(cfg) * cfg.max_new_tokens
    return cfg


def choose_arms(args: argparse.Namespace, cfg: Config) -> None:
    """Sets args.wanted (arms by name, full first), .stretch (their steps for one of full) and .types, those
    played. Raises ValueError."""
    given = dict(given_arm(text, args.pop) for text in args.arm)
    every = arms_of(args.pop, cfg.n_prompts) | given
    names = args.arms or ("" if given else ",".join(PRESETS[args.preset]))
    wanted = [FULL, *common.choose(names, tuple(every), "--arms", "arm"), *given]
    args.wanted = {name: every[name] for name in dict.fromkeys(wanted)}
    args.types, args.stretch = cfg.task_types.split(","), {}
    if not set(args.types) <= set(runs.PLAYABLE):
        raise ValueError(f"--task-types {cfg.task_types}: an ablation asks held-out tasks of what is played, "
                         f"and has those of {', '.join(runs.PLAYABLE)}")
    for name, arm in args.wanted.items():
        own = resolve_config(parse_args(None, [*args.train, *arm.flags]), cfg.prompt_format)
        args.stretch[name] = max(1, round(arm.part * rows_of_step(cfg) / rows_of_step(own)))
        if arm.cross and len(args.types) != OPERATORS[arm.cross].n_parents:
            raise ValueError(f"arm {name} crosses a specialist of each type: -- --task-types code_o,code_i")


def show_plan(args: argparse.Namespace) -> str:
    """Every run with its flags, and tokens at most."""
    out, parts = [], 0.0
    for seed in args.seeds:
        for arm, what in args.wanted.items():
            for run, own_seed in runs_of(arm, what, seed).items():
                out.append(f"{run}: {shlex.join(words_of(args, arm, run, own_seed))}")
                parts += what.part
    return "\n".join([*out, f"\n{len(out)} runs: {parts * args.most:,.0f} tokens, were every answer as "
                      "long as it may be. Matched: tokens, probes not counted"])


def show(args: argparse.Namespace, experiment: Experiment) -> dict:
    """What finished runs say."""
    arms = common.choose(args.arms, tuple(experiment.arms), "--arms", "arm") or list(experiment.arms)
    common.choose(args.reference, tuple(experiment.arms), "--reference", "arm")
    return measures.conclude(experiment, arms, args.reference, args.measure, args.goal)


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    if args.source and args.map:
        grounds = {Path(name).name: show(args, runs.opened([name])) for name in args.source}
        print(measures.ground_by_arm(grounds))
        return 0
    if not args.source:
        if not args.base:
            raise ValueError("give --base, or --from DIR...")
        choose_arms(args, settled(args))
        if args.plan:
            print(show_plan(args))
            return 0
        plan = dict(base="/".join(Path(args.base).parts[-2:]), pop=args.pop, steps=args.steps,
                    budget="tokens", probe_every=args.probe_every, types=args.types, limit=args.limit,
                    train=args.train)
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
