"""The questions that the paper leaves open, on any base: which part of a population is worth its compute?

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan       # the runs, their cost
    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --jobs 2     # the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2
    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --pack DIR   # logs without weights
    python -m eval.population.ablation --from DIR --svg forest.svg      # a pack's table, no training
    python -m eval.population.ablation --pool DIR DIR DIR               # one table of many people's

`full` (the population as it is) is the reference and always run. What it spends with seed S, counted in
generated tokens without those of probes (or in rows, or in proposals: --budget), is the budget of every other
arm with seed S: once per run, or, for `single` and `singles`, once per pair of teacher and student. Every run
is stopped after the step that brings it nearest to its budget; one that misses it by more than 5% is refused.
Seeds are run one after the other, so that what is on disk is always whole seeds. Words after -- are flags of
train.py for every arm. --samples 16 asks the output tasks again after all runs, for pass@16.
docs/ablations.md holds the plan of our own comparison, by whose rules the table is made.
"""
import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np

from config import Config, parse_args, resolve_config
from eval import common
from eval.population import compare, heldout, measures, records
from eval.population.arms import (FULL, PRESETS, Arm, Run, arms_of, given_arm, rows_of_step, runs_of,
                                  stretch_of)
from eval.population.crew import Crew, cores
from eval.population.records import Experiment
from run.checkpoint import RunDir, differing
from weights import load_tokenizer, resolve

LONGEST = 4             # times the steps first thought of: a run that needs more has stopped to spend
OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "keep",
         "plan", "device", "probe_every", "heldout", "n_heldout")


def spent_by(args: argparse.Namespace, run: Run) -> list[dict]:
    """measures.spent of a run on disk."""
    return measures.spent(records.logged(args.out / run.name))


# ---- running -----------------------------------------------------------------------------------------------

def seed_runs(args: argparse.Namespace, arms: dict[str, Arm], seed: int) -> list[Run]:
    """The runs of all wanted arms with one seed, full first; what two arms share is there once."""
    runs = {}
    for name in args.wanted:
        for run in runs_of(name, arms, seed, args.stretch[name]):
            runs.setdefault(run.name, run)
    return list(runs.values())


def in_order(args: argparse.Namespace, arms: dict[str, Arm]) -> list[tuple[int, Run]]:
    """(seed, run) as they begin: a seed's full comes one seed ahead of its other runs, which wait for it."""
    fulls, others = [], []
    for seed in args.seeds:
        first, *rest = seed_runs(args, arms, seed)
        fulls.append((seed, first))
        others.append([(seed, run) for run in rest])
    out = fulls[:1]
    for i, rest in enumerate(others):
        out += fulls[i + 1:i + 2] + rest
    return out


def words_of(args: argparse.Namespace, run: Run) -> list[str]:
    """The command that trains a run, or goes on with it. It is stopped at its budget, long before its steps.

    Arms of more and smaller steps probe as often as the others by what they spend.
    """
    flags = {"base": args.base, "seed": run.seed, "steps": LONGEST * args.steps * run.stretch,
             "device": args.device, "probe-every": args.probe_every * run.stretch, "probe-share": 1,
             "heldout": args.out / "anchors.jsonl", "n-heldout": len(measures.anchor_items()),
             "keep": 1, "out": args.out, "name": run.name, "resume": "auto"}
    words = [str(common.ROOT / "train.py"), *args.train, *run.flags]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words


def train(args: argparse.Namespace, crew: Crew, run: Run, due: float | None) -> None:
    """Train a run until it has spent `due`, or, without one, for --steps; what is on disk counts."""
    def finished(rows: list[dict]) -> bool:
        if due is None:
            return len(rows) >= args.steps
        return measures.met([state[args.budget] for state in measures.spent(rows)], due)

    directory = args.out / run.name
    if not finished(records.logged(directory)):
        log = args.out / f"{run.name}.log"
        crew.call(words_of(args, run), log, lambda: finished(records.logged_so_far(directory)))


def evaluate(args: argparse.Namespace, crew: Crew, run: Run, name: str) -> None:
    """A run's students answer one of args.evaluations, unless their answers are there."""
    directory = args.out / run.name
    split, families, limit, samples = args.evaluations[name]
    out = directory / records.folder(name)
    summary = out / "summary.json"
    if summary.exists():
        done = json.loads(summary.read_text())
        if (done["limit"], done["samples"]) == (limit, samples):
            return
    last = RunDir(directory, writes=False).steps()[-1]
    members = sorted(p.parent for p in (directory / f"step_{last}").glob("*/adapter_config.json"))
    students = [path for path in members if path.name.startswith("S")] or members
    words = ["-m", "eval.population.heldout", "--base", args.base, "--adapters", *map(str, students),
             "--split", split, "--bench", ",".join(families), "--limit", str(limit),
             "--samples", str(samples), "--max-new", str(args.max_new), "--out", str(out),
             "--device", args.device, "--workers", "1"]
    words += [word for word in args.train if word == "--weak-sandbox"]
    crew.call(words, args.out / f"{run.name}.log")


def run_all(args: argparse.Namespace, arms: dict[str, Arm]) -> None:
    """Train and evaluate every run that is not yet on disk."""
    crew = Crew(args.jobs)
    budget = {}                                       # of each seed, once its full is trained

    def work(job: tuple[int, Run]) -> None:
        """Train and evaluate a run, once its seed's budget is known, and tell what it spent."""
        seed, run = job
        due = None
        if run.name != f"{FULL}-s{seed}":
            crew.wait(lambda: seed in budget)
            due = run.part * budget[seed]
        started = time.monotonic()
        train(args, crew, run, due)
        history = spent_by(args, run)
        if due is None:
            budget[seed] = history[-1][args.budget]
        for split in heldout.SPLITS:
            evaluate(args, crew, run, split)
        last, due = history[-1], due or budget[seed]
        area = measures.area(measures.curve_of(records.record_of(args.out / run.name), args.budget, due))
        print(f"{time.strftime('%H:%M:%S')} {run.name}: {len(history)} steps, {last['tokens']} tokens, "
              f"{last[args.budget] / due:.3f} of its budget, and {last['probe_tokens']} for probes; "
              f"area {area:.3f}; {time.monotonic() - started:.0f} s", flush=True)

    def ask_again(job: tuple[int, Run]) -> None:
        evaluate(args, crew, job[1], "pass")
    crew.each(work, in_order(args, arms))
    if "pass" in args.evaluations:
        crew.each(ask_again, in_order(args, arms))


# ---- the command line --------------------------------------------------------------------------------------

def chosen_arms(args: argparse.Namespace, cfg: Config) -> dict[str, Arm]:
    """Every arm by name, --arm's among them; sets args.wanted and each one's stretch.

    Wanted are full, those of --arms and of --arm, and where neither is given those of the preset.
    Raises ValueError with the near name for one that is not valid.
    """
    arms = arms_of(args.pop, cfg.n_prompts)
    given = []
    for text in args.arm:
        name, arm = given_arm(text, args.pop)
        if name in arms:
            raise ValueError(f"--arm {name}: there is an arm of this name; give it another")
        arms[name] = arm
        given.append(name)
    names = args.arms or ("" if given else ",".join(PRESETS[args.preset]))
    wanted = common.choose(names, tuple(arms), "--arms", "arm")
    args.wanted = list(dict.fromkeys([FULL, *wanted, *given]))
    args.stretch = {name: stretch_of(arms[name], cfg, args.train) for name in args.wanted}
    return arms


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of full; sets args.base, .steps, .seeds and the like. Raises ValueError."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    for word in args.train:
        if word.startswith("--") and word[2:].split("=")[0].replace("-", "_") in OWNED:
            raise ValueError(f"{word} after --: the arms set it themselves; this command has --base, "
                             "--steps, --pop, --seeds, --probe-every, --out and --device")
    if args.pop < 4 or args.pop % 2:
        raise ValueError(f"--pop {args.pop}: a population of at least two teachers and two students, an even "
                         "number from 4 on")
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
    try:
        args.seeds = list(dict.fromkeys(int(s) for s in args.seeds.split(",")))
    except ValueError:
        raise ValueError(f"--seeds {args.seeds}: whole numbers, separated by commas") from None
    if min(args.seeds) < 0 or max(args.seeds) >= 1000:
        raise ValueError("--seeds: from 0 to 999 (those of independent singles are counted on from 1000)")
    families = (*heldout.families_for(cfg.prompt_format), heldout.LONG)
    args.evaluations = {"validation": ("validation", measures.OUTPUT, measures.VALIDATION_LIMIT, 1),
                        "test": ("test", families, args.limit, 1)}
    if args.samples > 1:
        args.evaluations["pass"] = ("test", measures.OUTPUT, args.limit, args.samples)
    args.steps, args.max_new, args.out = cfg.steps, cfg.max_new_tokens, Path(args.out).expanduser().resolve()
    return cfg


def on_disk(args: argparse.Namespace, arms: dict[str, Arm]) -> dict[str, tuple[float, float]]:
    """Arm -> mean tokens and seconds of one of its runs, of the arms that have a run on disk."""
    known = {}
    for name in args.wanted:
        runs = [run for seed in args.seeds for run in runs_of(name, arms, seed)]
        last = [history[-1] for history in (spent_by(args, run) for run in runs) if history]
        if last:
            known[name] = tuple(float(np.mean([x[key] for x in last])) for key in ("tokens", "seconds"))
    return known


def show_plan(args: argparse.Namespace, cfg: Config, arms: dict[str, Arm]) -> str:
    """Every run with its command; tokens, and hours where a rate is given or a run of full is on disk."""
    known = on_disk(args, arms)
    out = [f"{name:21} {arms[name].what}" for name in args.wanted]
    out.append(f"\n{'run':25} {'rows at most':>12} {'steps, about':>12}  command")
    runs = [run for seed in args.seeds for run in seed_runs(args, arms, seed)]
    total = dict(tokens=0.0, seconds=0.0)
    for run in runs:
        rows = run.part * args.steps * rows_of_step(cfg)
        whole = known.get(FULL, (rows / run.part * cfg.max_new_tokens, 0.0))
        tokens, seconds = known.get(run.name.rsplit("-s", 1)[0], (run.part * whole[0], run.part * whole[1]))
        total["tokens"] += tokens
        total["seconds"] += seconds
        out.append(f"{run.name:25} {rows:12.0f} {args.steps * run.stretch:12}  "
                   f"train.py {' '.join(words_of(args, run)[1:])}")
    judged = "by the runs on disk" if known else f"if all answers were {cfg.max_new_tokens} tokens long"
    cost = f"{total['tokens']:,.0f} tokens without those of probes ({judged})"
    if args.tokens_per_s:
        cost += (f"; {total['tokens'] / args.tokens_per_s / 3600:.1f} hours at {args.tokens_per_s:g} tokens "
                 "a second, the rate that you give: generated tokens over the time of whole steps, updates "
                 "included, as a few steps of train.py on your machine show it")
    elif known:
        cost += f"; about {total['seconds'] / 3600:.1f} hours of training"
    else:
        cost += "; hours: with --tokens-per-s, or once a run of full is on disk"
    out.append(f"\n{len(runs)} runs: {cost}. Then {len(runs)} x {len(args.evaluations)} evaluations by "
               f"eval.population.heldout; {args.jobs} at a time. Matched: {args.budget}, probes not counted")
    return "\n".join(out)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = argparse.ArgumentParser(prog="python -m eval.population.ablation", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add = p.add_argument
    presets = "; ".join(f"{name}: {', '.join(arms)}" for name, arms in PRESETS.items())
    add("--base", default="", help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help="names, separated by commas; default: those of --preset")
    add("--arm", action="append", default=[], help='an arm of your own, "name: --flag value ..."')
    add("--preset", default="paper", choices=tuple(PRESETS), help=presets)
    add("--seeds", default="0,1,2", help="separated by commas")
    add("--steps", type=int, default=None, help="of full; default: the prompt format's")
    add("--pop", type=int, default=8, help="members of full")
    add("--budget", default="tokens", choices=measures.BUDGETS, help="what is matched; rows: also attempts")
    add("--probe-every", type=int, default=5, help="steps of full between probes")
    add("--out", default="out/ablation", help="where runs and summary go")
    add("--jobs", type=int, default=0, help="processes at a time; default: one a core, on cuda one")
    add("--limit", type=int, default=72, help="held-out test tasks of each family; 0 = all")
    add("--effect", type=float, default=0.05, help="difference that the seeds needed are to find")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--samples", type=int, default=1, help="answers to each output task after all runs; 16 for pass@16")
    add("--plan", action="store_true", help="only print what would be run and what it costs")
    add("--tokens-per-s", type=float, default=0.0, help="of --plan: what your machine generates, in hours")
    add("--pack", default="", metavar="DIR", help="only pack what is on disk of these runs, without weights")
    add("--from", dest="source", default="", metavar="DIR", help="only print the table of a pack or an --out")
    add("--pool", nargs="+", default=[], metavar="DIR", help="of several, of one commit and one base")
    add("--svg", default="", metavar="FILE", help="also draw the contrasts of areas")
    add("--born-after", type=int, default=0, metavar="STEPS", help="leave out children born earlier")
    add("--brief", action="store_true", help="leave out the tables by measure and by operator")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def show(args: argparse.Namespace, experiment: Experiment) -> dict:
    """Print what the runs say, draw it where that is asked for, and return it."""
    result = compare.conclude(experiment, args.effect, args.born_after)
    print(compare.table(result, not args.brief))
    if args.svg:
        Path(args.svg).write_text(compare.picture(result), encoding="utf-8")
    return result


def pooled(directories: list[str]) -> Experiment:
    """The runs of many people as one experiment; what does not fit is told by name and left out."""
    parts = {name: records.opened(Path(name).expanduser()) for name in directories}
    experiment, refused = records.joined(parts)
    wrong = compare.unmatched(experiment)
    for name in wrong:
        del experiment.runs[name]
    print(f"{len(experiment.runs)} runs of {len(parts)} directories")
    for why in [*refused, *wrong.values()]:
        print(f"refused: {why}")
    return experiment


def plan_of(args: argparse.Namespace, arms: dict[str, Arm]) -> dict:
    """What is planned, as it stands in config.json of --out and of a pack."""
    return dict(base=records.base_of(args.base), pop=args.pop, steps=args.steps, budget=args.budget,
                probe_every=args.probe_every, train=args.train, seeds=args.seeds,
                arms={name: dataclasses.asdict(arms[name]) for name in args.wanted})


def open_out(args: argparse.Namespace, plan: dict) -> RunDir:
    """--out with its config.json, to which arms and seeds may come. Raises ValueError for another plan."""
    out = RunDir(args.out)
    before = out.config() if (out.path / "config.json").exists() else plan
    before["base"] = records.base_of(before["base"])
    if changed := differing(before, plan, ("arms", "seeds")):
        raise ValueError(f"{out.path} holds arms of another comparison: {', '.join(changed)}; use the old "
                         "values or another --out")
    seeds = sorted({*before.get("seeds", []), *plan["seeds"]})
    out.write_json("config.json", plan | dict(arms=before.get("arms", {}) | plan["arms"], seeds=seeds))
    return out


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    if args.jobs < 0 or not args.effect > 0 or args.limit < 0 or args.probe_every < 1 or args.samples < 1:
        raise ValueError("--jobs and --limit must not be negative, --effect, --probe-every and --samples be "
                         "positive")
    if args.source or args.pool:
        show(args, pooled(args.pool) if args.pool else records.opened(Path(args.source).expanduser()))
        return 0
    if not args.base:
        raise ValueError("give --base, or --from DIR, or --pool DIR...")
    cfg = settled(args)
    arms = chosen_arms(args, cfg)
    if not args.jobs:
        on_gpu = common.Ranks.join(args.device).device.type == "cuda"
        args.jobs = 1 if on_gpu else cores()
    if args.plan:
        print(show_plan(args, cfg, arms))
        return 0
    plan = plan_of(args, arms)
    if args.pack:
        experiment = records.experiment_of(args.out, plan)
        size = records.pack(experiment, Path(args.pack).expanduser())
        print(f"{args.pack}: {len(experiment.runs)} finished runs, {size / 1e6:.2f} MB")
        return 0
    out = open_out(args, plan)
    measures.write_anchors(args.out / "anchors.jsonl")
    run_all(args, arms)
    result = show(args, records.experiment_of(args.out, plan))
    out.write_json("summary.json", result)
    print(out.path / "summary.json")
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
