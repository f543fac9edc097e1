"""PopuLoRA: a population of LoRA adapters on one frozen base teaches itself Python by self-play.

    torchrun --standalone train.py --pop 8                                  # bundled micro base, minutes on a laptop
    python train.py --single                                                # the AZR baseline: one adapter in both roles
    python train.py --base Qwen/Qwen2.5-Coder-7B --pop 8 --device cuda      # the paper's setting
    torchrun --standalone --nproc_per_node=2 train.py --name two            # rows shared out over two processes
    python train.py --name two --resume auto                                # go on where it was cut off
    python train.py --base Qwen/Qwen2.5-Coder-7B --plan                     # would it fit? memory by use, largest micro-batch

Five phases a step, all in `main`: match, propose, solve, reward and update, evolve. arXiv 2605.16727 on top of 2505.03335.
"""
import argparse
import contextlib
import dataclasses
import difflib
import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")           # waiting threads that spin cost more than they save
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

import evolve
import rl
import selfplay
from books import header, line, measures, summary
from checks import Limits
from checkpoint import LOGS, Interrupted, RunDir, Signals, differing
from complexity import structural_hash
from lora import TARGETS, Adapters
from machine import Stopwatch, environment, free_memory, plan_table
from model import Base, Config as ModelConfig, load_base, load_tokenizer, resolve, weights_hash
from parallel import Ranks
from prompts import STYLES
from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from selfplay import Setup, mean
from state import State, found, restore, save
from tasks import KINDS
from trueskill_lite import CHILD_RATINGS, RATINGS, child_rating
from verifier import Sandbox

HERE = Path(__file__).resolve().parent


def flag(default, help, choices=None, kind=None):
    """A configuration field: default, help text, legal values. None = the style's preset, of the given kind."""
    return field(default=default, metadata=dict(help=help, choices=choices, kind=kind or type(default)))


@dataclass(frozen=True)
class Config:
    """Every switch of a run: name, default, meaning. `python train.py --help` prints this table."""
    base: str = flag("micro/base", "Hugging Face directory or hub id of the frozen base")
    name: str = flag("", "the run's directory under --out; default: the base's name and a free number")
    out: str = flag("out", "where runs are kept")
    resume: str = flag("", "auto (the latest checkpoint of --name) or a run's directory")
    init: str = flag("", "directory of PEFT adapters, one folder a member in slot order, to start from")
    seed: int = flag(0, "every random draw is keyed by (seed, step, phase, member, index)")
    steps: int = flag(None, "steps of the run", kind=int)
    device: str = flag("auto", "auto, cpu or cuda")
    style: str = flag("auto", "how the model is talked to (prompts.py); auto: as config.json and the tokenizer say", ("auto", *STYLES))
    dtype: str = flag("auto", "of the frozen base", ("auto", "float32", "bfloat16"))
    threads: int = flag(None, "CPU threads a process; 0 = torch's choice", kind=int)
    plan: bool = flag(False, "only print the memory plan of these flags; exit code 0 if it fits, 2 if not")
    # the population
    pop: int = flag(8, "members: half teachers, half students")
    teachers: int = flag(0, "number of teachers, instead of half of --pop")
    students: int = flag(0, "number of students, instead of half of --pop")
    single: bool = flag(False, "one adapter in both roles, compute per adapter matched (Absolute Zero Reasoner)")
    rank: int = flag(None, "LoRA rank R", kind=int)
    alpha: float = flag(None, "LoRA alpha; the update is scaled by alpha / R", kind=float)
    lora_targets: str = flag(",".join(TARGETS), "linear layers that carry adapters")
    # phase 1: match
    matching: str = flag("pfsp", "how a teacher draws its student", evolve.MATCHING)
    matching_floor: float = flag(0.1, "share of the uniform distribution in matching: exploration")
    # phase 2: propose
    kinds: str = flag(None, "task kinds in turn, of " + ",".join(KINDS), kind=str)
    n_prompts: int = flag(None, "prompts a teacher answers each step", kind=int)
    group: int = flag(8, "proposals sampled from one prompt (the baseline's group)")
    n_refs: int = flag(None, "reference tasks shown in a prompt (K)", kind=int)
    seed_tasks: str = flag("", "JSON lines of tasks to start the archive from; default: the identity program alone")
    dedupe: str = flag("structural", "what counts as a duplicate of the run's archive, and so as invalid", ("structural", "exact", "off"))
    max_digits: int = flag(0, "digits of a number in inputs and outputs, at most; 0 = the style's own limit")
    max_output: int = flag(0, "characters of an output, at most; 0 = the style's own limit")
    max_guess: float = flag(1.0, "refuse the archive's most frequent output while its share of the latest tasks is above this")
    archive_cap: int = flag(16384, "tasks kept per kind, oldest out; keys are remembered for the whole run")
    # phase 3: solve
    attempts: int = flag(None, "attempts at each task (n): a difficulty knob, keep it fixed across arms", kind=int)
    temperature: float = flag(1.0, "of proposals and attempts")
    max_new: int = flag(None, "tokens of a proposal or an answer, at most", kind=int)
    # phase 4: reward and update
    teacher_reward: str = flag("difficulty", "reward of a valid proposal by its solve rate", tuple(TEACHER_REWARDS))
    invalid_penalty: float = flag(-1.0, "reward of an invalid proposal (-1, -0.1 and 0 have been studied)")
    duplicate_penalty: float = flag(None, "reward of a duplicate; default: that of any invalid proposal", kind=float)
    gate_leak: float = flag(0.0, "probability that an invalid proposal is rewarded as a valid one that nobody solves")
    noise_margin: float = flag(0.1, "noise-proof: by how much the solve rate must beat guessing")
    student_reward: str = flag("graded", "graded: correct 1, wrong -0.5, malformed -1; binary: 1, 0, 0", tuple(STUDENT_REWARDS))
    advantage: str = flag("reinforce++", "baseline and scale of rewards", rl.ADVANTAGES)
    whiten: str = flag("auto", "whitening over a member's tokens: per member, per member and kind (TRR++), or off", rl.WHITEN)
    clip: float = flag(0.2, "PPO clip; with one epoch on policy the ratio is 1")
    kl: float = flag(0.0, "weight of the KL to the base")
    entropy: float = flag(0.0, "weight of the entropy bonus")
    lr: float = flag(None, "Adam's learning rate", kind=float)
    lr_teacher: float = flag(None, "the same for teachers", kind=float)
    rating: str = flag("trueskill", "rating system", tuple(RATINGS))
    outcome: str = flag("expected", "who won: solve rate against its prediction, against 1/2 with a band, or without", evolve.OUTCOMES)
    outcome_band: float = flag(0.05, "half-width of a draw in solve rate")
    # phase 5: evolve
    evolve: str = flag("mixed", "operators of replacement, or none", evolve.EVOLVE)
    evolve_every: int = flag(None, "steps between replacements", kind=int)
    cull: float = flag(0.25, "share of each role that is replaced, at least one")
    grace: int = flag(-1, "steps during which a child cannot be replaced; -1 = one interval")
    child_rating: str = flag("mean", "rating of a child: mean of its parents, widened; or fresh", CHILD_RATINGS)
    # probes, books and machine
    probe_every: int = flag(None, "steps between absolute probes (anchor tasks, frozen base); 0 = never", kind=int)
    anchors: str = flag("", "JSON lines of held-out tasks; default: the base's anchors.jsonl, else the run's first valid tasks")
    n_anchors: int = flag(96, "anchor tasks, at most")
    save_every: int = flag(10, "steps between checkpoints")
    keep: int = flag(2, "checkpoints kept")
    max_rows: int = flag(None, "rows that decode together", kind=int)
    token_budget: int = flag(None, "padded tokens of a micro-batch of the update", kind=int)
    workers: int = flag(2, "sandbox processes")
    cpu_s: float = flag(0.5, "CPU seconds a program may use")
    weak_sandbox: bool = flag(False, "run model code with weaker walls where the system has no seccomp (dangerous)")


# What a style of base wants where the command line says nothing. The micro values are measured in LOG.md.
PRESETS = {
    "micro": dict(steps=80, rank=8, alpha=32.0, kinds="code_o", n_prompts=3, n_refs=0, attempts=4, max_new=80, lr=1e-3, lr_teacher=3e-3,
                  evolve_every=15, probe_every=10, max_rows=512, token_budget=1024, threads=1),
    "chat": dict(steps=200, rank=32, alpha=64.0, kinds="code_o,code_i,code_f", n_prompts=3, n_refs=6, attempts=8, max_new=512, lr=1e-5,
                 lr_teacher=1e-5, evolve_every=10, probe_every=20, max_rows=128, token_budget=2048, threads=0)}
PRESETS["base"] = PRESETS["chat"] | dict(max_new=1024)
PRESETS["direct"] = PRESETS["chat"] | dict(max_new=192)
POSITIVE = ("steps", "rank", "alpha", "n_prompts", "group", "archive_cap", "attempts", "max_new", "clip", "lr", "lr_teacher",
            "evolve_every", "save_every", "keep", "max_rows", "token_budget", "workers", "cpu_s")
NOT_NEGATIVE = ("seed", "threads", "n_refs", "max_digits", "max_output", "noise_margin", "kl", "entropy", "outcome_band", "probe_every", "n_anchors")
# Fields that may change between a run and its resumption without changing what it computes.
FREE = ("base", "name", "out", "resume", "init", "steps", "device", "threads", "plan", "save_every", "keep", "workers")


def parse_args(argv: list[str] | None = None) -> Config:
    """Command line to Config. Exits with code 2 and a suggestion for an unknown flag or value."""
    parser = argparse.ArgumentParser(description=__doc__, usage="train.py [--flag value ...]   (--help lists every switch)", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for f in dataclasses.fields(Config):
        preset = {style: values.get(f.name) for style, values in PRESETS.items()} if f.default is None else None
        text = f"{f.metadata['help']} ({preset or f.default})".replace("%", "%%")
        how = dict(action="store_true") if f.metadata["kind"] is bool else dict(type=f.metadata["kind"], choices=f.metadata["choices"])
        parser.add_argument("--" + f.name.replace("_", "-"), dest=f.name, default=f.default, help=text, **how)
    args, unknown = parser.parse_known_args(argv)
    for word in unknown:
        flags = [o for a in parser._actions for o in a.option_strings]
        near = difflib.get_close_matches(word.split("=")[0], flags, 1)
        parser.error(f"unknown argument {word}" + (f": did you mean {near[0]}?" if near else "; --help lists all"))
    return Config(**vars(args))


def settle(cfg: Config, style: str) -> Config:
    """Fill the style's presets in and check the numbers against each other. Raises ValueError with the fix."""
    cfg = dataclasses.replace(cfg, **{k: v for k, v in PRESETS[style].items() if getattr(cfg, k) is None})
    n_teachers, n_students = (1, 1) if cfg.single else (cfg.teachers or cfg.pop // 2, cfg.students or cfg.pop // 2)
    cfg = dataclasses.replace(cfg, style=style, teachers=n_teachers, students=n_students, grace=cfg.evolve_every if cfg.grace < 0 else cfg.grace,
                              duplicate_penalty=cfg.invalid_penalty if cfg.duplicate_penalty is None else cfg.duplicate_penalty)
    unknown, flagged = set(cfg.kinds.split(",")) - set(KINDS), lambda name: f"--{name.replace('_', '-')} {getattr(cfg, name)}"
    problems = [
        (cfg.pop % 2 or cfg.pop < 2, f"--pop {cfg.pop} cannot be halved into teachers and students: give an even number of at least 2"),
        (min(n_teachers, n_students) < 1, "--teachers and --students must be at least 1"),
        (bool(unknown), f"--kinds: {', '.join(sorted(unknown))} unknown; valid: {', '.join(KINDS)}"),
        (not 0 <= cfg.cull < 1, f"--cull {cfg.cull}: a share in [0, 1)"),
        (style != "micro" and cfg.n_refs < 1, f"--n-refs {cfg.n_refs}: the {style} style shows references; give at least 1"),
        (not 0 <= cfg.max_guess <= 1, f"--max-guess {cfg.max_guess}: a share in [0, 1]"),
        (not 0 <= cfg.gate_leak <= 1 or not 0 <= cfg.matching_floor <= 1, "--gate-leak and --matching-floor are probabilities"),
        (not cfg.temperature > 0, f"--temperature {cfg.temperature}: greedy attempts give solve rates of 0 or 1 only; give a positive number"),
        *[(not math.isfinite(v), f"{flagged(k)}: not a finite number") for k, v in vars(cfg).items() if isinstance(v, float)],
        *[(not getattr(cfg, k) > 0, f"{flagged(k)}: must be positive") for k in POSITIVE],
        *[(getattr(cfg, k) < 0, f"{flagged(k)}: must not be negative") for k in NOT_NEGATIVE]]
    for wrong, text in problems:
        if wrong:
            raise ValueError(text)
    return cfg


def rate(cfg: Config, pairs: list, proposed: list, step: int) -> list[dict]:
    """Update both ratings of each match; lines of matches.jsonl with the predicted and the observed solve rate."""
    system, rows = RATINGS[cfg.rating](), []
    for teacher, student in pairs:
        verdicts = [v for p in proposed if p.teacher is teacher for v in p.attempts.get(student.name, [])]
        solve_rate = verdicts.count("correct") / len(verdicts) if verdicts else None
        expected = system.p_win(student.rating, teacher.rating)
        winner = evolve.outcome(solve_rate, expected, cfg.outcome_band, cfg.outcome)
        first, second = (teacher, student) if winner == "teacher" else (student, teacher)
        first.rating, second.rating = system.rate(first.rating, second.rating, draw=winner == "draw")
        teacher.matches, student.matches = teacher.matches + 1, student.matches + 1
        rows.append(dict(step=step, teacher=teacher.name, student=student.name, expected=expected, solve_rate=solve_rate, winner=winner,
                         brier=(expected - solve_rate) ** 2 if solve_rate is not None else None,
                         teacher_mu=teacher.rating.mu, student_mu=student.rating.mu))
    return rows


def evolve_population(setup: Setup, state: State, adam: rl.Adam, step: int) -> list[dict]:
    """Replace the weakest of each role by children of the others, in LoRA weight space; lines of genealogy.jsonl."""
    cfg, system, rows = setup.cfg, RATINGS[setup.cfg.rating](), []
    for number, role in enumerate(("teacher", "student")):
        rng = selfplay.keyed(cfg.seed, step, selfplay.EVOLVE, number)
        members = [m for m in state.members if m.role == role]
        for i, b in enumerate(evolve.plan(members, lambda m: system.fitness(m.rating), cfg.cull, cfg.grace, step, cfg.evolve, rng)):
            gen = torch.Generator().manual_seed(selfplay.keyed(cfg.seed, step, selfplay.EVOLVE, number, i).getrandbits(60))
            ratio = evolve.birth(setup.adapters, b, gen)
            adam.reset(b.victim.slot)
            rating = child_rating(system, [m.rating for m in b.parents], cfg.child_rating)
            rows.append(evolve.genealogy(b, rating, step, ratio))
            state.members[state.members.index(b.victim)] = evolve.newborn(b, rating, step)
    return rows


def train(setup: Setup, state: State, run: RunDir, adam: rl.Adam, base_hash: str, signals: Signals) -> None:
    """The loop: five phases a step until cfg.steps. Interrupted leaves the state as it was before the step."""
    cfg, base, adapters = setup.cfg, setup.base, setup.adapters
    system = RATINGS[cfg.rating]()
    loss = dict(temperature=cfg.temperature, kl=cfg.kl, entropy=cfg.entropy, clip=cfg.clip, token_budget=cfg.token_budget,
                rank=setup.ranks.rank, world=setup.ranks.world)
    bar = lambda phase: phase if run.writes and sys.stderr.isatty() else ""
    while state.step < cfg.steps:
        step, clock = state.step, Stopwatch()
        teachers, students = ([m for m in state.members if m.role == role] for role in ("teacher", "student"))

        # 1. match: every teacher draws a student
        rng = selfplay.keyed(cfg.seed, step, selfplay.MATCH)
        pairs = evolve.match(teachers, students, lambda t, s: system.p_win(s.rating, t.rating), cfg.matching, cfg.matching_floor, rng, step)

        # 2. propose: teachers write tasks, the sandbox says which are valid
        rollout, proposed = selfplay.propose(setup, state.archive, teachers, step, bar("propose"))
        clock.lap("propose")
        selfplay.verify(setup, state.archive, proposed, step)
        clock.lap("verify")

        # 3. solve: each student attempts the valid tasks of its teachers
        solved = [(p, student) for teacher, student in pairs for p in proposed if p.teacher is teacher and p.task]
        attempts = selfplay.attempt(setup, [p.task for p, _ in solved], [m.slot for _, m in solved], step, selfplay.SOLVE, cfg.attempts,
                                    desc=bar("solve")) if solved else None
        for (p, student), verdicts in zip(solved, attempts.verdicts if attempts else []):
            p.attempts[student.name] = verdicts
        for i, (p, student) in enumerate(solved):
            p.answers[student.name] = attempts.texts[i * cfg.attempts:(i + 1) * cfg.attempts]
        clock.lap("solve")

        # 4. reward and update: one optimiser step for all members, each from its own rows; then the ratings
        selfplay.pay_teachers(setup, state.archive, proposed, step)
        batch = selfplay.training_batch(setup, rollout, proposed, solved, attempts)
        adv = rl.advantages(batch, cfg.advantage, cfg.whiten)
        weight = rl.token_weight(batch.rollout, cfg.advantage, cfg.max_new).float()
        probing = cfg.probe_every and (step % cfg.probe_every == 0 or step == cfg.steps - 1)
        probes = selfplay.probe(setup, students, state.anchors, proposed, step) if probing else {}
        clock.lap("probe")
        gradient = rl.accumulate(base, adapters, batch, adv, weight, desc=bar("update"), **loss)
        with signals:                                       # from here to the checkpoint a signal waits: no step is torn
            update = rl.finish(adam, batch, *gradient)
            matches = rate(cfg, pairs, proposed, step)
            for p in proposed:
                if p.task:
                    state.archive.add(p.task, structural_hash(p.task.program))
            state.totals["generated"] += int(batch.rollout.n_tokens.sum()) + probes.get("probe_tokens", 0)
            state.totals["trained"] += update["trained_tokens"]
            row = dict(step=step, **measures(setup, state, proposed, update, batch, adv, matches), **probes)
            clock.lap("update")

            # 5. evolve: the weakest are replaced by children of the others
            births = evolve_population(setup, state, adam, step) if (step + 1) % cfg.evolve_every == 0 and not cfg.single else []
            clock.lap("evolve")
            # without held-out tasks, the run's first ones are frozen as anchors
            state.anchors = state.anchors or [p.task for p in proposed if p.task][:cfg.n_anchors]
            state.step += 1
            row |= dict(births=[b["child"] for b in births], seconds=clock.seconds)
            for name, rows in (("metrics", [row]), ("tasks", selfplay.task_rows(proposed, step)), ("matches", matches), ("genealogy", births)):
                run.append(f"{name}.jsonl", rows)
            if run.writes:
                print(line(row), flush=True)
            if state.step % cfg.save_every == 0 or state.step == cfg.steps:
                save(run, state, setup, adam, base_hash, cfg.keep)


def open_run(cfg: Config, ranks: Ranks) -> tuple[RunDir, bool]:
    """The run's directory and whether to resume it. Raises ValueError where it is in use or resuming finds nothing."""
    def choose() -> str:
        out = Path(cfg.out)
        if cfg.resume and cfg.resume != "auto":
            path = Path(cfg.resume)
            return str(path.parent if path.name.startswith("step_") else path)
        if cfg.name:
            return str(out / cfg.name)
        stem = Path(cfg.base).name if Path(cfg.base).name != "base" else Path(cfg.base).parent.name
        taken = [int(n) for p in out.glob(f"{stem}-*") if (n := p.name.rsplit("-", 1)[1]).isdigit()]
        return str(out / f"{stem}-{max(taken, default=0) + (0 if cfg.resume and taken else 1)}")
    path = Path(ranks.share(choose))
    if cfg.resume and cfg.resume != "auto" and not path.is_dir():
        raise ValueError(f"--resume {cfg.resume}: no such directory; runs are under {cfg.out}/")
    run = RunDir(path, ranks.rank == 0)              # from here on nobody else writes there
    steps = ranks.share(run.steps)
    if not cfg.resume and ranks.share(lambda: bool(steps or (path / "metrics.jsonl").exists())):
        raise ValueError(f"{path} holds an earlier run: go on with --resume auto --name {path.name}, or choose another --name")
    if cfg.resume and cfg.resume != "auto" and not steps:
        raise ValueError(f"--resume {cfg.resume}: no complete checkpoint in {path}")
    if (wanted := Path(cfg.resume).name).startswith("step_") and wanted != f"step_{steps[-1]}":
        raise ValueError(f"--resume {cfg.resume}: only the latest checkpoint, step_{steps[-1]}, can go on; remove it to go back")
    if not steps:
        run.cut(dict.fromkeys(LOGS, 0))               # killed before its first checkpoint: what it told is told again
    return run, bool(steps)


def size_up(cfg: Config, ranks: Ranks) -> tuple[Config, Path, torch.dtype, str, bool]:
    """Settled configuration, the base's directory and type, the table of the memory plan and whether it fits. Raises ValueError."""
    path = resolve(str(HERE / cfg.base) if cfg.base == Config.base and not Path(cfg.base).is_dir() else cfg.base)
    auto = torch.bfloat16 if ranks.device.type == "cuda" else torch.float32
    dtype = {"auto": auto, "float32": torch.float32, "bfloat16": torch.bfloat16}[cfg.dtype]
    shape = ModelConfig.from_pretrained(path)
    cfg = settle(cfg, load_tokenizer(path)[1] if cfg.style == "auto" else cfg.style)
    return cfg, path, dtype, *plan_table(cfg, shape, dtype, 1 if cfg.single else cfg.teachers + cfg.students, free_memory(ranks.device))


def prepare(cfg: Config, ranks: Ranks) -> tuple[Config, Base]:
    """Settled configuration and loaded base, after checking that the plan fits into memory. Raises ValueError."""
    cfg, path, dtype, table, fits = size_up(cfg, ranks)
    if not fits:
        raise ValueError(f"not enough memory:\n{table}")
    return cfg, dataclasses.replace(load_base(str(path), dtype, ranks.device), style=cfg.style)


def show_plan(cfg: Config) -> int:
    """Print the memory plan; returns the exit code. Raises ValueError for what the user can mend."""
    table, fits = size_up(cfg, Ranks.join(cfg.device))[3:]
    print(table)
    return 0 if fits else 2


def open_sandbox(cfg: Config) -> Sandbox:
    """The judge. Raises ValueError where this machine cannot hold model code in."""
    try:
        return Sandbox(cfg.workers, cfg.cpu_s, weak=cfg.weak_sandbox)
    except RuntimeError as e:
        raise ValueError(str(e).replace("weak=True (--weak)", "--weak-sandbox")) from None


def main(cfg: Config) -> RunDir:
    """A whole run. Raises ValueError for what the user can mend, Interrupted after saving on a signal."""
    ranks = Ranks.join(cfg.device)
    cfg, base = prepare(cfg, ranks)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    run, resuming = open_run(cfg, ranks)
    config = dataclasses.asdict(cfg)
    if resuming and (changed := differing(json.loads((run.path / "config.json").read_text()), config, FREE)):
        raise ValueError(f"{run.path} was started with another configuration: {', '.join(changed)}; use the old values or another --name")
    adapters = Adapters.on(base.model, 1 if cfg.single else cfg.teachers + cfg.students, cfg.rank, cfg.alpha, cfg.lora_targets.split(","), ranks.device)
    rates = [cfg.lr] if cfg.single else [cfg.lr_teacher] * cfg.teachers + [cfg.lr] * cfg.students
    adam, base_hash = rl.Adam(adapters, rates), weights_hash(base.model)
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(open_sandbox(cfg)) if run.writes else None
        limits = Limits.for_style(base.style)
        limits = dataclasses.replace(limits, max_digits=cfg.max_digits or limits.max_digits, output_chars=cfg.max_output or limits.output_chars)
        setup = Setup(cfg, base, adapters, ranks, sandbox, limits, tuple(cfg.kinds.split(",")))
        state = restore(run, cfg, setup, adam, base_hash) if resuming else found(cfg, setup, base_hash)
        if run.writes:
            run.write_json("config.json", config)
            run.write_json("env.json", environment(ranks, sandbox))
            print(f"{run.path}: {cfg.teachers} teachers, {cfg.students} students{' in one adapter' if cfg.single else ''} on {cfg.base}, steps {state.step}"
                  f" to {cfg.steps}, {ranks.world} process(es) on {ranks.device}, sandbox: {sandbox.tier}\n{header()}", flush=True)
        signals = Signals().install()
        stack.callback(signals.restore)
        try:
            train(setup, state, run, adam, base_hash, signals)
        except Interrupted as e:
            if state.step not in run.steps():
                save(run, state, setup, adam, base_hash, cfg.keep)
            if run.writes:
                print(f"{e}: saved before step {state.step}; go on with the same flags and --resume {run.path}", file=sys.stderr)
            raise
        assert weights_hash(base.model) == base_hash, "the frozen base was changed by training"
        if run.writes:
            print(summary(run.rows("metrics.jsonl", run.sizes()["metrics.jsonl"])))
            print(f"everything lies in {run.path}: metrics.jsonl, tasks.jsonl, matches.jsonl, genealogy.jsonl, step_{state.step}/ (one PEFT directory a member)")
    return run


if __name__ == "__main__":
    try:
        cfg = parse_args()
        sys.exit(show_plan(cfg)) if cfg.plan else main(cfg)
    except (ValueError, OSError) as e:
        print(f"train.py: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
    except Interrupted:
        sys.exit(130)
    except KeyboardInterrupt:
        print("train.py: interrupted before the first step", file=sys.stderr)
        sys.exit(130)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
