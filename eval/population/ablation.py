"""Which part of a population is worth its compute? Arms that spend the same budget, on any base.

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan       # the runs and their cost
    python -m eval.population.ablation --base micro/base --seeds 0,1,2              # the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2
    python -m eval.population.ablation --from out/mine out/yours                    # finished runs, one table
    python -m eval.population.ablation --from out/a out/b --map --reference single-long   # ground by arm

`full` (the population as it is) sets the budget: what it spends in --steps with a seed, in generated tokens
without those of probes (or in rows, or in proposals: --budget), is the budget of every other arm with this
seed, of all its runs together (of `single`: of one pair). A run stops inside the loop, after the step that
brings it nearest. Runs are trained in this process, one after the other, seed by seed. Many can share the
seeds (--seeds 0,1 --out A here, --seeds 2,3 --out B there, then --from A B): what the tables need of a run is
a line of OUT/runs.jsonl, beside OUT/config.json. Words after -- are flags of train.py for every arm.
"""
import argparse
import contextlib
import dataclasses
import json
import re
import shlex
import time
from pathlib import Path

import evolve
import train
from config import Config, parse_args, resolve_config
from eval import common
from eval.population import heldout, measures, runs
from eval.population.heldout import LONG
from eval.population.runs import FULL, SEED_STRIDE, Arm, Experiment, runs_of
from operators import OPERATORS
from run.checkpoint import RunDir, differing
from run.platform import Interrupted
from weights import load_tokenizer, resolve

LONGEST = 4             # times the steps first thought of: a run that needs more has stopped to spend
VALIDATION_LIMIT = 72   # tasks of a family asked of the validation split, those of probes included
BUDGETS = ("tokens", "rows", "proposals")
OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "keep",
         "plan", "device", "probe_every", "probe_share", "heldout", "n_heldout")
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
             "device": args.device, "probe-every": args.probe_every * stretch, "probe-share": 1,
             "heldout": args.out / "heldout.jsonl", "n-heldout": args.n_heldout, "keep": 1,
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
        return len(rows) >= args.steps if due is None else runs.met(runs.spent(rows, args.budget), due)
    if not enough():
        with open(f"{directory}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(parse_args(None, words), enough)
    return runs.spent(rows, args.budget)[-1]


def students_of(directory: Path) -> list[Path]:
    """PEFT directories of a run's students at its last checkpoint; of a child of runs, its own."""
    steps = RunDir(directory, writes=False).steps()
    place = directory / f"step_{steps[-1]}" if steps else directory
    members = sorted(path.parent for path in place.glob("*/adapter_config.json"))
    return [path for path in members if path.name.startswith("S")] or members


def train_arm(args: argparse.Namespace, arm: str, run: str, seed: int,
              budget: int | None) -> tuple[int, list[Path]]:
    """Train a run of an arm; what it has spent, and of one that crosses specialists their directories."""
    what, directory = args.wanted[arm], args.out / run
    if not what.cross:
        due = what.part * budget if budget else None
        return train_run(args, directory, words_of(args, arm, run, seed), due), []
    parents = [args.out / f"{run}.{kind}" for kind in args.types]
    done = 0
    for kind, parent in zip(args.types, parents):
        words = [*words_of(args, arm, parent.name, seed), "--task-types", kind]
        done += train_run(args, parent, words, what.part * budget / len(parents))
    evolve.cross([str(students_of(parent)[0]) for parent in parents], what.cross, directory / "S0", seed)
    return done, parents


def evaluate(args: argparse.Namespace, directory: Path, name: str) -> None:
    """A run's students answer one of args.evaluations, unless their answers are there; a child of two runs
    lies in its directory itself."""
    split, families, limit, samples = args.evaluations[name]
    out = directory / f"heldout-{name}"
    if (out / "summary.json").exists() and json.loads((out / "summary.json").read_text())["limit"] == limit:
        return
    words = ["--base", args.base, "--adapters", *students_of(directory), "--split", split,
             "--bench", ",".join(families), "--limit", limit, "--samples", samples,
             "--max-new-tokens", args.max_new, "--out", out, "--device", args.device, "--workers", 1]
    words += [word for word in args.train if word == "--weak-sandbox"]
    with open(f"{directory}.log", "a") as log, contextlib.redirect_stdout(log):
        heldout.main([str(word) for word in words])


def run_all(args: argparse.Namespace) -> None:
    """Train and evaluate every run that is not yet on disk, seed by seed, full first; runs.jsonl grows by
    each."""
    for seed in args.seeds:
        budget = None
        for arm, what in args.wanted.items():
            for run, own_seed in runs_of(arm, what, seed).items():
                directory, started = args.out / run, time.monotonic()
                done, parents = train_arm(args, arm, run, own_seed, budget)
                budget = budget or done
                for evaluation in args.evaluations:
                    evaluate(args, directory, evaluation)
                record = runs.record_of(directory, args.budget, args.types, args.samples, parents)
                runs.add(args.out / "runs.jsonl", record)
                share, seconds = done / (what.part * budget), time.monotonic() - started
                print(f"{time.strftime('%X')} {run}: {len(record['spent'])} steps, {done} {args.budget}, "
                      f"{share:.3f} of its budget; {seconds:.0f} s", flush=True)


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
    add("--budget", default="tokens", choices=BUDGETS, help="what is matched; rows: also attempts")
    add("--probe-every", type=int, default=5, help="steps of full between probes")
    add("--out", default="out/ablation", help="where runs and runs.jsonl go")
    add("--limit", type=int, default=72, help="held-out test tasks of each family; 0 = all")
    add("--samples", type=int, default=1, help="answers to each output task; 16 for pass@16")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run")
    add("--tokens-per-s", type=float, default=0.0, help="of --plan: what your machine generates")
    add("--from", dest="source", nargs="+", default=[], metavar="DIR", help="only the table of finished runs")
    add("--reference", default=FULL, help="the arm with which the others are compared")
    add("--measure", default="area", choices=tuple(measures.MEASURES), help="contrasts of it are corrected")
    add("--effect", type=float, default=0.05, help="difference that counts as small")
    add("--goal", type=float, default=0.6, help="accuracy in all played types that counts as reached")
    add("--map", action="store_true", help="each directory of --from is a ground: one table, ground by arm")
    add("--brief", action="store_true", help="leave out the contrasts of the other measures")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of full; sets args.base, .train, .seeds, .steps. Raises ValueError."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    for word in args.train:
        if word.startswith("--") and word[2:].split("=")[0].replace("-", "_") in OWNED:
            raise ValueError(f"{word} after --: the arms set it themselves; this command has --base, "
                             "--steps, --pop, --seeds, --probe-every, --out and --device")
    if args.pop < 4 or args.pop % 2:
        raise ValueError(f"--pop {args.pop}: a population of at least two teachers and two students, an even "
                         "number from 4 on")
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
    args.steps, args.max_new, args.rows = cfg.steps, cfg.max_new_tokens, rows_of_step(cfg)
    args.out = Path(args.out).expanduser().resolve()
    return cfg


def choose_arms(args: argparse.Namespace, cfg: Config) -> None:
    """Sets args.wanted (arms by name, full first), .stretch (their steps for one of full), .types that are
    played, and .evaluations. Raises ValueError."""
    given = dict(given_arm(text, args.pop) for text in args.arm)
    every = arms_of(args.pop, cfg.n_prompts) | given
    names = args.arms or ("" if given else ",".join(PRESETS[args.preset]))
    wanted = [FULL, *common.choose(names, tuple(every), "--arms", "arm"), *given]
    args.wanted = {name: every[name] for name in dict.fromkeys(wanted)}
    args.stretch = {}
    for name, arm in args.wanted.items():
        own = resolve_config(parse_args(None, [*args.train, *arm.flags]), cfg.prompt_format)
        args.stretch[name] = max(1, round(arm.part * rows_of_step(cfg) / rows_of_step(own)))
    families = (*heldout.families_for(cfg.prompt_format), LONG)
    args.types = cfg.task_types.split(",")
    if not set(args.types) <= set(runs.PLAYABLE):
        raise ValueError(f"--task-types {cfg.task_types}: an ablation asks held-out tasks of what is played, "
                         f"and has those of {', '.join(runs.PLAYABLE)}")
    for name, arm in args.wanted.items():
        if arm.cross and len(args.types) != OPERATORS[arm.cross].n_parents:
            raise ValueError(f"arm {name} crosses a specialist of each type: -- --task-types code_o,code_i")
    asked = [family for kind in args.types for family in runs.families_of(kind)]
    args.evaluations = dict(validation=("validation", asked, VALIDATION_LIMIT, 1),
                            test=("test", families, args.limit, 1))
    if args.samples > 1:
        args.evaluations["pass"] = "test", runs.families_of("code_o"), args.limit, args.samples


def show_plan(args: argparse.Namespace) -> str:
    """Every run with its flags; tokens at most, and hours where a rate is given."""
    out, parts = [], 0.0
    for seed in args.seeds:
        for arm, what in args.wanted.items():
            for run, own_seed in runs_of(arm, what, seed).items():
                out.append(f"{run}: {shlex.join(words_of(args, arm, run, own_seed))}")
                parts += what.part
    tokens = parts * args.steps * args.rows * args.max_new
    hours = f", {tokens / args.tokens_per_s / 3600:.0f} hours" if args.tokens_per_s else ""
    cost = f"{len(out)} runs: {tokens:,.0f} tokens{hours}, were every answer {args.max_new} tokens long"
    return "\n".join([*out, f"\n{cost}. Matched: {args.budget}, probes not counted"])


def show(args: argparse.Namespace, experiment: Experiment) -> dict:
    """What finished runs say."""
    arms = common.choose(args.arms, tuple(experiment.arms), "--arms", "arm") or list(experiment.arms)
    common.choose(args.reference, tuple(experiment.arms), "--reference", "arm")
    return measures.conclude(experiment, arms, args.reference, args.measure, args.effect, args.goal)


def open_out(args: argparse.Namespace) -> None:
    """--out with its config.json, to which arms may come. Raises ValueError for another plan."""
    plan = dict(base="/".join(Path(args.base).parts[-2:]), pop=args.pop, steps=args.steps, budget=args.budget,
                probe_every=args.probe_every, types=args.types, limit=args.limit, train=args.train)
    out = RunDir(args.out)
    before = out.config() if (out.path / "config.json").exists() else plan
    if changed := differing(before, plan, ("arms",)):
        raise ValueError(f"{out.path} holds arms of another comparison: {', '.join(changed)}; use the old "
                         "values or another --out")
    arms = before.get("arms", {}) | {name: dataclasses.asdict(arm) for name, arm in args.wanted.items()}
    out.write_json("config.json", plan | dict(arms=arms))


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    if not args.effect > 0 or args.limit < 0 or args.probe_every < 1 or args.samples < 1:
        raise ValueError("--limit must not be negative, --effect, --probe-every and --samples be positive")
    if args.source and args.map:
        grounds = {Path(name).name: show(args, runs.opened([name])) for name in args.source}
        print(measures.ground_by_arm(grounds))
        return 0
    if not args.source:
        if not args.base:
            raise ValueError("give --base, or --from DIR...")
        choose_arms(args, settled(args))
        items = runs.heldout_items(args.types)
        args.n_heldout = len(items)
        if args.plan:
            print(show_plan(args))
            return 0
        open_out(args)
        runs.write_heldout(args.out / "heldout.jsonl", items)
        try:
            run_all(args)
        except Interrupted:
            raise KeyboardInterrupt from None
        args.source, args.arms = [str(args.out)], ",".join(args.wanted)
    print(measures.table(show(args, runs.opened(args.source)), args.brief))
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
