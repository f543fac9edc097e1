"""PopuLoRA: a population of LoRA adapters on one frozen base teaches itself Python by self-play.

    torchrun --standalone train.py --pop 8                                  # bundled micro base, minutes on a laptop
    python train.py --single                                                # the AZR baseline: one adapter in both roles
    python train.py --base Qwen/Qwen2.5-Coder-7B --pop 8 --device cuda      # the paper's setting
    torchrun --standalone --nproc_per_node=2 train.py --name two            # rows shared out over two processes
    python train.py --name two --resume auto                                # go on where it was cut off
    python train.py --base Qwen/Qwen2.5-Coder-7B --plan                     # would it fit? memory by use, largest micro-batch
    python train.py --show 3                                                # also print three tasks a step, with their attempts
    python -m infra.replay out/two 75 T2:S1                                 # one match again: prompts, texts, verdicts

Five phases a step, all in `train`: match, propose, solve, reward and update, evolve. arXiv 2605.16727 on top of 2505.03335.
"""
import contextlib
import dataclasses
import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")           # waiting threads that spin cost more than they save
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

import evolve
import rl
import selfplay
from config import FREE, Config, config_of_run, parse_args, resolve_config
from infra.checkpoint import LOGS, RunDir, State, differing, init_state, restore, save, snapshot_student
from infra.distributed import Ranks
from infra.memory import autotune_batch, free_memory, plan_table
from infra.metrics import header, line, measures, summary
from infra.platform import Interrupted, Signals, Stopwatch, check_system, environment, open_sandbox
from infra.probes import probe
from infra.terminal import colored, first_of_each, format_task, print_safely
from infra.weights import load_base, load_tokenizer, pick_dtype, read_config, resolve, weights_hash
from lora import Adapters
from model import Base
from selfplay import Setup
from tasks.complexity import structural_hash
from tasks.validation import Limits
from trueskill_lite import RATINGS, child_rating
from verifier import Sandbox

HERE = Path(__file__).resolve().parent



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
        rows.append(dict(step=step, teacher=teacher.name, student=student.name, expected=expected, solve_rate=solve_rate,
                         winner=winner, brier=(expected - solve_rate) ** 2 if solve_rate is not None else None,
                         teacher_mu=teacher.rating.mu, student_mu=student.rating.mu))
    return rows


def evolve_population(setup: Setup, state: State, adam: rl.Adam, step: int) -> list[dict]:
    """Replace the weakest of each role by children of the others, in LoRA weight space; lines of genealogy.jsonl."""
    cfg, system, rows = setup.cfg, RATINGS[setup.cfg.rating](), []
    for number, role in enumerate(("teacher", "student")):
        rng = selfplay.make_rng(cfg.seed, step, selfplay.EVOLVE, number)
        members = [m for m in state.members if m.role == role]
        births = evolve.plan(members, lambda m: system.fitness(m.rating), cfg.replace_frac, cfg.grace, step, cfg.evolve, rng)
        for i, b in enumerate(births):
            gen = torch.Generator().manual_seed(selfplay.make_rng(cfg.seed, step, selfplay.EVOLVE, number, i).getrandbits(60))
            ratio = evolve.apply_operator(setup.adapters, b, gen)
            adam.reset(b.victim.slot)
            rating = child_rating(system, [m.rating for m in b.parents], cfg.child_rating)
            rows.append(evolve.genealogy(b, rating, step, ratio))
            state.members[state.members.index(b.victim)] = evolve.newborn(b, rating, step)
    return rows


def train(setup: Setup, state: State, run: RunDir, adam: rl.Adam, base_hash: str, signals: Signals) -> None:
    """The loop: five phases a step until cfg.steps. Interrupted leaves the state as it was before the step."""
    cfg, base, adapters = setup.cfg, setup.base, setup.adapters
    learning = rl.UpdateConfig.of(cfg)
    bar = lambda phase: phase if run.writes and sys.stderr.isatty() else ""
    where = dict(rank=setup.ranks.rank, world=setup.ranks.world, desc=bar("update"))
    while state.step < cfg.steps:
        step, clock = state.step, Stopwatch()
        teachers, students = ([m for m in state.members if m.role == role] for role in ("teacher", "student"))

        # 1. match: every teacher draws a student
        pairs = selfplay.match(setup, state.members, step)

        # 2. propose: teachers write tasks, the sandbox says which are valid
        rollout, proposed = selfplay.propose(setup, state.archive, teachers, step, bar("propose"))
        clock.lap("propose")
        selfplay.verify(setup, state.archive, proposed, step)
        clock.lap("verify")

        # 3. solve: each student attempts the valid tasks of its teachers
        solved, attempts = selfplay.solve(setup, pairs, proposed, step, bar("solve"))
        clock.lap("solve")

        # 4. reward and update: one batch for all members, each learns from its own rows; then the ratings
        selfplay.pay_teachers(setup, state.archive, proposed)
        batch = selfplay.training_batch(setup, rollout, proposed, solved, attempts)
        adv = rl.advantages(batch, learning)
        probing = cfg.probe_every and (step % cfg.probe_every == 0 or step == cfg.steps - 1)
        probes = {}
        if probing:
            probes = probe(setup, state.members, state.anchors, state.heldout, proposed, step, state.frozen)
        clock.lap("probe")                                  # members as they were when they proposed and solved
        first = rl.accumulate(base, adapters, batch, adv, learning, **where)
        with signals:               # a signal may end the first gradient; from here to the checkpoint it waits
            update = rl.update(base, adapters, adam, batch, adv, learning, first, **where)
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
            if probing and step and not state.frozen:
                snapshot_student(state, setup)
            state.step += 1
            row |= dict(births=[b["child"] for b in births], seconds=clock.seconds)
            logs = dict(metrics=[row], tasks=selfplay.task_rows(proposed, step), matches=matches, genealogy=births)
            for name, rows in logs.items():
                run.append(f"{name}.jsonl", rows)
            if run.writes:
                print(line(row), flush=True)
                for task in first_of_each(logs["tasks"], cfg.show):
                    print_safely(format_task(task, colored()))
            if state.step % cfg.save_every == 0 or state.step == cfg.steps:
                save(run, state, setup, adam, base_hash, cfg.keep)


def open_run(cfg: Config, ranks: Ranks) -> tuple[RunDir, bool]:
    """The run's directory and whether to resume it. Raises ValueError where it is in use or resuming finds nothing."""
    def choose() -> str:
        """Looks at what is on disk, so only rank 0 may call it: --resume's run, --name's, or the next free number."""
        out = Path(cfg.out)
        if cfg.resume and cfg.resume != "auto":
            path = Path(cfg.resume)
            return str(path.parent if path.name.startswith("step_") else path)
        if cfg.name:
            return str(out / cfg.name)
        stem = Path(cfg.base).name if Path(cfg.base).name != "base" else Path(cfg.base).parent.name
        taken = [int(n) for p in out.glob(f"{stem}-*") if (n := p.name.rsplit("-", 1)[1]).isdigit()]
        return str(out / f"{stem}-{max(taken, default=0) + (0 if cfg.resume and taken else 1)}")
    path = Path(ranks.broadcast(choose))
    if cfg.resume and cfg.resume != "auto" and not path.is_dir():
        raise ValueError(f"--resume {cfg.resume}: no such directory; runs are under {cfg.out}/")
    run = RunDir(path, ranks.rank == 0)              # from here on nobody else writes there
    steps = ranks.broadcast(run.steps)
    if not cfg.resume and ranks.broadcast(lambda: bool(steps or (path / "metrics.jsonl").exists())):
        raise ValueError(f"{path} holds an earlier run: go on with --resume auto --name {path.name}, or choose another --name")
    if cfg.resume and cfg.resume != "auto" and not steps:
        raise ValueError(f"--resume {cfg.resume}: no complete checkpoint in {path}")
    if (wanted := Path(cfg.resume).name).startswith("step_") and wanted != f"step_{steps[-1]}":
        raise ValueError(f"--resume {cfg.resume}: only the latest checkpoint, step_{steps[-1]}, can go on; remove it to go back")
    if not steps:
        if cfg.resume and run.writes:
            print(f"note: nothing to resume in {path}: starting at step 0", file=sys.stderr)
        run.truncate_logs(dict.fromkeys(LOGS, 0))               # killed before its first checkpoint: what it told is told again
    return run, bool(steps)


def estimate_memory(cfg: Config, ranks: Ranks) -> tuple[Config, Path, torch.dtype, str, bool]:
    """Settled configuration, the base's directory and type, the memory plan as a table, whether it fits. Raises ValueError."""
    path = resolve(str(HERE / cfg.base) if cfg.base == Config.base and not Path(cfg.base).is_dir() else cfg.base)
    if cfg.cuda_graphs and ranks.device.type != "cuda":
        raise ValueError("--cuda-graphs needs a GPU: leave it out, or pass --device cuda where there is one")
    dtype, shape = pick_dtype(cfg.dtype, ranks.device), read_config(path)
    cfg = resolve_config(cfg, load_tokenizer(path)[1] if cfg.prompt_format == "auto" else cfg.prompt_format)
    n_members = 1 if cfg.single else cfg.teachers + cfg.students
    return cfg, path, dtype, *plan_table(cfg, shape, dtype, n_members, free_memory(ranks.device))


def prepare(cfg: Config, ranks: Ranks) -> tuple[Config, Base]:
    """Settled configuration and loaded base, after checking that the plan fits into memory. Raises ValueError."""
    cfg, path, dtype, table, fits = estimate_memory(cfg, ranks)
    if not fits:
        raise ValueError(f"not enough memory:\n{table}")
    return cfg, dataclasses.replace(load_base(str(path), dtype, ranks.device), prompt_format=cfg.prompt_format, graphs=cfg.cuda_graphs)


def show_plan(cfg: Config) -> int:
    """Print the memory plan; returns the exit code. Raises ValueError for what the user can mend."""
    table, fits = estimate_memory(cfg, Ranks.join(cfg.device))[3:]
    print(table)
    return 0 if fits else 2


def populate(cfg: Config, base: Base, ranks: Ranks, sandbox: Sandbox | None) -> tuple[Setup, rl.Adam, str]:
    """What stays the same during a run, with the members' adapters in it and sizes that fit this machine, their optimiser, and
    the hash of the base."""
    n_members = 1 if cfg.single else cfg.teachers + cfg.students
    adapters = Adapters.on(base.model, n_members, cfg.rank, cfg.alpha, cfg.lora_targets.split(","), ranks.device)
    cfg = autotune_batch(cfg, base, adapters, ranks)
    rates = [cfg.lr] if cfg.single else [cfg.lr_teacher] * cfg.teachers + [cfg.lr] * cfg.students
    limits = Limits.for_format(base.prompt_format)
    limits = dataclasses.replace(limits, max_digits=cfg.max_digits or limits.max_digits,
                                 output_chars=cfg.max_output or limits.output_chars)
    setup = Setup(cfg, base, adapters, ranks, sandbox, limits, tuple(cfg.task_types.split(",")))
    return setup, rl.Adam(adapters, rates), weights_hash(base.model)


def main(cfg: Config) -> RunDir:
    """A whole run. Raises ValueError for what the user can mend, Interrupted after saving on a signal."""
    check_system(cfg.weak_sandbox)
    ranks = Ranks.join(cfg.device)
    cfg, base = prepare(cfg, ranks)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    run, resuming = open_run(cfg, ranks)
    config = dataclasses.asdict(cfg)
    if resuming and (changed := differing(dataclasses.asdict(config_of_run(run.config(), run.path)), config, FREE)):
        raise ValueError(f"{run.path} was started with another configuration: {', '.join(changed)}; "
                         "use the old values or another --name")
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(open_sandbox(cfg.workers, cfg.weak_sandbox, cpu_s=cfg.cpu_s)) if run.writes else None
        setup, adam, base_hash = populate(cfg, base, ranks, sandbox)
        state = restore(run, cfg, setup, adam, base_hash, run.steps()[-1]) if resuming else init_state(cfg, setup, base_hash)
        if state.step >= cfg.steps:
            if run.writes:
                print(f"{run.path}: already at step {state.step} of {cfg.steps}: nothing to do")
            return run
        if run.writes:
            run.write_json("config.json", config)
            run.write_json("env.json", environment(ranks, sandbox))
            print(f"{run.path}: {cfg.teachers} teachers, {cfg.students} students{' in one adapter' if cfg.single else ''} on "
                  f"{cfg.base}, steps {state.step} to {cfg.steps}, {ranks.world} process(es) on {ranks.device}, "
                  f"sandbox: {sandbox.tier}\n{header()}", flush=True)
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
            print(f"everything lies in {run.path}: metrics.jsonl, tasks.jsonl, matches.jsonl, genealogy.jsonl, "
                  f"step_{state.step}/ (one PEFT directory a member); python -m report {run.path} draws it")
    return run


if __name__ == "__main__":
    try:
        cfg = parse_args(__doc__)
        if cfg.plan:
            sys.exit(show_plan(cfg))
        main(cfg)
    except (ValueError, OSError) as e:
        print(f"train.py: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
    except Interrupted:
        sys.exit(130)
    except KeyboardInterrupt:
        print("train.py: interrupted outside the steps of a run", file=sys.stderr)
        sys.exit(130)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
