"""PopuLoRA: a population of LoRA adapters on one frozen base teaches itself Python by self-play.

    python train.py --pop 8                                         # bundled micro base, minutes on a laptop
    python train.py --single                                        # AZR: one adapter in both roles
    python train.py --base Qwen/Qwen2.5-Coder-7B --pop 8 --device cuda      # the paper's, not tried here
    torchrun --local-addr=127.0.0.1 --nproc_per_node=2 train.py --name two  # rows dealt out to two processes
    python train.py --resume out/two                                # go on where it was cut off
    python train.py --show 3                                        # print three tasks a step with attempts

Five phases a step, all in `train`: match, propose, solve, reward and update, evolve. arXiv 2605.16727 on top
of 2505.03335.
"""
import contextlib
import os
import signal
import sys
from collections.abc import Callable

os.environ.setdefault("GOMP_SPINCOUNT", "0")           # waiting threads that spin cost more than they save
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

import evolve
import rl
import selfplay
from common import demand, leave
from ranks import Ranks
from config import FREE, Config, config_of, flags_of, parse_args, spelled
from evolve import ROLES, Member, members_of
from measure import HEADER, alarms, format_task, is_best, line, measures, probe, summary
from run import RunDir, State, Stopwatch, choose_directory, environment, init_state, populate, prepare, restore, save, task_rows
from selfplay import RATINGS, ProposalRecord, Setup
from trueskill_lite import child_rating
from verifier import open_sandbox

# Whether a run may end after the step with this line of metrics.jsonl; None = not before its last step
Enough = Callable[[dict], bool] | None


# --- the loop -----------------------------------------------------------------------------------------------

def train(setup: Setup, state: State, run: RunDir, enough: Enough = None) -> None:
    """Steps up to cfg.steps, enough(row), an alarm of --halt-on, or Ctrl-C, which ends the step first."""
    cfg, ranks = setup.cfg, setup.ranks
    desc = "update" if setup.shows_bars else ""     # title of a progress bar
    history = run.rows("metrics.jsonl")
    stopped = []                                    # by a signal; a second one leaves at once
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(1) if not stopped else os._exit(130))
    while state.step < cfg.steps:
        step, clock = state.step, Stopwatch()

        # 1. match: every teacher draws a student
        pairs = selfplay.match(setup, state.members, step)

        # 2. propose: teachers write tasks, the verifier says which are valid
        rollout, proposed = selfplay.propose(setup, state.archive, pairs, step)
        clock.lap("propose")
        selfplay.verify_proposals(setup, state.archive, proposed, step)
        clock.lap("verify")

        # 3. solve: each student attempts the valid tasks of its teachers; now and then a probe asks old tasks
        solved, attempts = selfplay.solve(setup, pairs, proposed, step)
        clock.lap("solve")
        probes = probe(setup, state, proposed, step)
        if is_best(probes, history):                # the state is still the one that was probed
            save(run, state, setup)
            run.mark_best(step)
        clock.lap("probe")

        # 4. reward and update: one batch for all members, each learns from its own rows; then the ratings
        selfplay.pay_teachers(setup, state.archive, proposed)
        written = [selfplay.teacher_rows(rollout, proposed), selfplay.student_rows(setup, solved, attempts)]
        batch = selfplay.training_batch(setup, written)
        adv = rl.advantages(batch, cfg)
        state.adam.lr.copy_(torch.tensor(evolve.learning_rates(cfg, state.members, step)))
        update = rl.update(setup.base, setup.adapters, batch, adv, state.adam, cfg, ranks, desc)
        clock.lap("update")
        matches = rate_matches(pairs, proposed, step)

        # the step's line of metrics.jsonl
        valid = [p for p in proposed if p.task]
        for p in valid:
            state.archive.add(p.task, p.structure)
        state.totals["generated"] += int(batch.rollout.n_tokens.sum()) + probes.get("probe_tokens", 0)
        state.totals["trained"] += update["trained_tokens"]
        row = dict(step=step, **measures(setup, state, proposed, batch, adv, update, matches), **probes)
        if not state.heldout:                       # a base without held-out tasks: the run's first valid ones
            state.heldout = [p.task for p in valid][:cfg.n_heldout]
        clock.lap("record")

        # 5. evolve: the weakest are replaced by children of the others
        births = evolve_population(setup, state, step)
        clock.lap("evolve")

        # the end of the step
        ranks.check_equal(setup.adapters.parameters(), f"step {step}")
        state.step += 1
        before = history[-1]["alarms"] if history else {}
        history.append(row)
        row |= dict(alarms=alarms(history), births=[birth["child"] for birth in births], seconds=clock.seconds)
        tasks = task_rows(proposed, step)
        for name, rows in dict(metrics=[row], tasks=tasks, matches=matches, genealogy=births).items():
            run.append(f"{name}.jsonl", rows)
        begun = [name for name in row["alarms"] if name not in before]
        if run.writes:
            shown = sorted(tasks, key=lambda task: bool(task["reason"]))[:cfg.show]
            notes = [f"alarm {name}: {row['alarms'][name]}" for name in begun]
            print(line(row), *map(format_task, shown), *notes, sep="\n", flush=True)
        ends = stopped or enough and enough(row) or set(begun) & set(cfg.halt_on)
        ends = ranks.broadcast(lambda: bool(ends))
        if ends or state.step % cfg.save_every == 0 or state.step == cfg.steps:
            save(run, state, setup)
        if ends:
            return


def rate_matches(pairs: list[tuple[Member, Member]], proposed: list[ProposalRecord], step: int) -> list[dict]:
    """Update both ratings of each match; lines of matches.jsonl with predicted and observed solve rate."""
    rows = []
    for teacher, student in pairs:
        tasks = [p for p in proposed if p.teacher is teacher]
        verdicts = [verdict for p in tasks for verdict in p.attempts.get(student.name, [])]
        solve_rate = selfplay.solve_rate(verdicts)
        if solve_rate is None and any(p.unjudged for p in tasks):
            continue                                # the sandbox failed: nobody has won
        expected = RATINGS.p_win(student.rating, teacher.rating)
        winner = evolve.winner_of(solve_rate, expected)
        better, worse = (teacher, student) if winner == "teacher" else (student, teacher)
        better.rating, worse.rating = RATINGS.rate(better.rating, worse.rating, draw=winner == "draw")
        teacher.matches += 1
        student.matches += 1
        brier = None if solve_rate is None else (expected - solve_rate) ** 2
        rows.append(dict(step=step, teacher=teacher.name, student=student.name, expected=expected, winner=winner,
                         solve_rate=solve_rate, brier=brier, teacher_mu=teacher.rating.mu, student_mu=student.rating.mu))
    return rows


def evolve_population(setup: Setup, state: State, step: int) -> list[dict]:
    """Every --evolve-every steps, replace the weakest of each role by children, in LoRA weight space, with a new
    optimiser and a rating from their parents. Returns lines of genealogy.jsonl."""
    cfg, adapters, ranks = setup.cfg, setup.adapters, setup.ranks
    if cfg.single or (step + 1) % cfg.evolve_every:
        return []
    rows = []
    for number, role in enumerate(ROLES):
        if role == "teacher" and (cfg.tasks or cfg.lr_teacher == 0 and cfg.lr > 0):
            continue                                # teachers who write nothing, or are frozen
        key = (cfg.seed, step, selfplay.EVOLVE, number)
        births = evolve.plan_births(members_of(state.members, role), lambda m: RATINGS.fitness(m.rating),
                                    cfg.replace_frac, cfg.grace, step, cfg.evolve, selfplay.make_rng(*key))
        for i, birth in enumerate(births):
            gen = torch.Generator().manual_seed(selfplay.make_rng(*key, i).getrandbits(60))
            # a GPU's linear algebra must not divide the processes: process 0 makes the child for all
            norm_ratio = ranks.broadcast(lambda: evolve.apply_operator(adapters, birth, gen))
            if ranks.world > 1:
                for factor in adapters.parameters():
                    torch.distributed.broadcast(factor.data[birth.victim.slot], 0)
            state.adam.reset(birth.victim.slot)
            rating = child_rating(RATINGS, [parent.rating for parent in birth.parents])
            child = evolve.newborn(birth, rating, step, cfg.lr_mutate, selfplay.make_rng(*key, i, 1))
            state.members[state.members.index(birth.victim)] = child
            rows.append(evolve.genealogy_line(birth, child, norm_ratio))
    return rows


# --- a whole run --------------------------------------------------------------------------------------------

def main(cfg: Config, enough: Enough = None) -> RunDir:
    """A whole run. enough(row) is called after every step with its line of metrics.jsonl; the run ends after the
    step in which it returns something true, else after cfg.steps."""
    ranks = Ranks.join(cfg.device)
    run = RunDir(ranks.broadcast(lambda: str(choose_directory(cfg))), ranks.rank == 0)
    steps = ranks.broadcast(run.steps)
    cfg, base = prepare(cfg, ranks)
    if not steps:
        demand(not cfg.resume, f"--resume {cfg.resume}: no checkpoint there")
        run.cut_logs(dict.fromkeys(("metrics.jsonl", "tasks.jsonl", "matches.jsonl", "genealogy.jsonl"), 0))
    else:
        demand(cfg.resume, f"{run.path} holds an earlier run: --resume {run.path} goes on with it")
        before, now = vars(config_of(run.config())), vars(cfg)
        changed = [f"{spelled(n)} ({before[n]} -> {now[n]})" for n in now if n not in FREE and before[n] != now[n]]
        demand(not changed, f"{run.path} was started with other flags: {', '.join(changed)}")
    with open_sandbox(cfg.verifier, cfg.prompt_format) if ranks.rank == 0 else contextlib.nullcontext() as sandbox:
        setup = populate(cfg, base, ranks, sandbox, run.writes and sys.stderr.isatty())
        state = restore(run, setup, steps[-1]) if steps else init_state(setup)
        if run.writes:
            run.write_json("config.json", flags_of(cfg))
            run.write_json("env.json", environment(ranks, sandbox))
            print(f"{run.path}: {cfg.pop} members on {cfg.base}, steps {state.step} to {cfg.steps}, {ranks.world} "
                  f"process(es) on {ranks.device}, sandbox: {sandbox.tier}\n{HEADER}", flush=True)
        train(setup, state, run, enough)
    if run.writes and run.rows("metrics.jsonl"):
        best = f"\nthe best checkpoint is {run.path}/best ({run.best()})" if run.best() else ""
        print(f"{summary(run.rows('metrics.jsonl'))}{best}\neverything lies in {run.path}")
    return run


def entry() -> None:
    """What the command line asks for; with --resume the run's own flags come first."""
    given = parse_args(__doc__)
    if "resume" in given:
        kept = RunDir(given["resume"], writes=False).config()
        given = {name: value for name, value in kept.items() if name not in ("name", "out", "resume")} | given
    main(config_of(given))


if __name__ == "__main__":
    leave("train.py", entry)
