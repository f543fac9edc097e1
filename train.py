"""PopuLoRA: a population of LoRA adapters on one frozen base teaches itself Python by self-play.

    python train.py --pop 8                                         # bundled micro base, minutes on a laptop
    python train.py --single                                        # AZR: one adapter in both roles
    python train.py --base Qwen/Qwen2.5-Coder-7B --pop 8 --device cuda      # the paper's, not tried here
    torchrun --local-addr=127.0.0.1 --nproc_per_node=2 train.py --name two  # rows dealt out to two processes
    python train.py --resume out/two                                # go on where it was cut off
    python train.py --base Qwen/Qwen2.5-Coder-7B --plan             # would it fit? memory by use
    python train.py --show 3                                        # print three tasks a step with attempts

Five phases a step, all in `train`: match, propose, solve, reward and update, evolve. arXiv 2605.16727 on top
of 2505.03335.
"""
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))     # PYTHONSAFEPATH leaves it out
os.environ.setdefault("GOMP_SPINCOUNT", "0")           # waiting threads that spin cost more than they save
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

import evolve
import measure
import rl
import selfplay
from common import Stopped, UserError, leave
from config import Config, config_of, parse_args
from evolve import ROLES, Member, members_of
from ranks import Ranks
from run import (
    RunDir,
    State,
    Stopwatch,
    begin,
    choose_directory,
    init_state,
    open_run,
    plan,
    populate,
    prepare,
    restore,
    save,
    stop_flag,
    task_rows,
)
from selfplay import RATINGS, ProposalRecord, Setup
from trueskill_lite import child_rating
from verifier import open_sandbox

# Whether a run may end after the step with this line of metrics.jsonl; None = not before its last step
Enough = Callable[[dict], bool] | None
HALTED, INTERRUPTED = 3, 130        # exit codes


# --- the loop -----------------------------------------------------------------------------------------------

def train(setup: Setup, state: State, run: RunDir, stopped: list[str], enough: Enough) -> None:
    """Takes steps up to --steps or until enough(row). Raises Stopped after the step in which a signal filled
    `stopped` or an alarm of --halt-on began; the state is saved by then."""
    cfg, ranks = setup.cfg, setup.ranks
    history = run.rows("metrics.jsonl")
    first = state.step
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
        probes = measure.probe(setup, state, proposed, step)
        if measure.best_probe([probes]) > measure.best_probe(history):
            save(run, state, setup, is_best=True)   # the state is still the one that was probed
        clock.lap("probe")

        # 4. reward and update: one batch for all members, each learns from its own rows; then the ratings
        selfplay.pay_teachers(setup, state.archive, proposed)
        written = [selfplay.teacher_rows(rollout, proposed), selfplay.student_rows(setup, solved, attempts)]
        batch = selfplay.training_batch(setup, written)
        adv = rl.advantages(batch, cfg)
        state.adam.lr.copy_(torch.tensor(evolve.learning_rates(cfg, state.members, step)))
        kl_coef = cfg.kl_coef * cfg.kl_every * ((step + 1) % cfg.kl_every == 0)
        now = replace(cfg, kl_coef=kl_coef)             # seldom a KL: it costs a pass through the base
        update = rl.update(
            setup.base, setup.adapters, batch, adv, state.adam, now, ranks, setup.shows_bars)
        clock.lap("update")
        matches = rate_matches(pairs, proposed, step)
        remember(state, proposed, cfg.n_heldout)
        state.totals["generated"] += int(batch.rollout.n_tokens.sum()) + probes.get("probe_tokens", 0)
        state.totals["trained"] += update["trained_tokens"]
        measured = measure.measures(setup, state, proposed, batch, adv, update)
        clock.lap("measure")

        # 5. evolve: the weakest are replaced by children of the others
        births = evolve_population(setup, state, step)
        clock.lap("evolve")

        # the end of the step: write its lines, and decide whether the run goes on
        ranks.check_equal(setup.adapters.parameters(), f"step {step}")
        state.step += 1
        row = dict(step=step, **measured, **probes, births=[birth["child"] for birth in births],
                   tokens_generated=state.totals["generated"], seconds=clock.seconds)
        before = history[-1]["alarms"] if history else {}
        history.append(row)
        row["alarms"] = measure.alarms(history)
        begun = {name: told for name, told in row["alarms"].items() if name not in before}
        tasks = task_rows(proposed, step)
        if run.writes:
            run.append(metrics=[row], tasks=tasks, matches=matches, genealogy=births)
            measure.tell(row, tasks, cfg.show, begun)
            if first + 3 == state.step < cfg.steps:
                print(measure.ends_about(history[-3:], cfg.steps - state.step), flush=True)
        ends = *why_stop(stopped, begun, cfg.halt_on), bool(enough and enough(row))
        code, why, is_enough = ranks.broadcast(lambda: ends)
        if code or is_enough or state.step % cfg.save_every == 0 or state.step == cfg.steps:
            ranks.broadcast(lambda: save(run, state, setup))        # nobody leaves before it is on the disk
        if code:
            raise Stopped(f"{why}: saved before step {state.step}; go on with --resume {run}", code)
        if is_enough:
            return


def why_stop(stopped: list[str], begun: dict[str, str], halt_on: tuple[str, ...]) -> tuple[int, str]:
    """Returns the exit code with which a run is to end now, and why; 0 if it goes on."""
    if stopped:
        return INTERRUPTED, stopped[0]
    for name, told in begun.items():
        if name in halt_on:
            return HALTED, f"halted by --halt-on ({name}: {told})"
    return 0, ""


def remember(state: State, proposed: list[ProposalRecord], n_heldout: int) -> None:
    """Adds a step's valid tasks to the archive. A run without held-out tasks takes the first as such."""
    valid = []
    for p in proposed:
        if p.task:
            state.archive.add(p.task, p.structure)
            valid.append(p.task)
    if not state.heldout:
        state.heldout = valid[:n_heldout]


def rate_matches(pairs: list[tuple[Member, Member]], proposed: list[ProposalRecord], step: int) -> list[dict]:
    """Updates both ratings of each match. Returns lines of matches.jsonl with predicted and observed solve
    rate."""
    rows = []
    for teacher, student in pairs:
        verdicts, sandbox_failed = [], False        # in this match
        for p in proposed:
            if p.teacher is teacher:
                verdicts += p.attempts.get(student.name, [])
                sandbox_failed = sandbox_failed or p.unjudged
        solve_rate = selfplay.solve_rate(verdicts)
        if solve_rate is None and sandbox_failed:
            continue                                # nobody has won
        expected = RATINGS.p_win(student.rating, teacher.rating)
        winner = evolve.winner_of(solve_rate, expected)
        better, worse = student, teacher            # this order holds for a draw, too
        if winner == "teacher":
            better, worse = teacher, student
        better.rating, worse.rating = RATINGS.rate(better.rating, worse.rating, draw=winner == "draw")
        teacher.matches += 1
        student.matches += 1
        rows.append(dict(
            step=step,
            teacher=teacher.name,
            student=student.name,
            expected=expected,
            winner=winner,
            solve_rate=solve_rate,
            brier=None if solve_rate is None else (expected - solve_rate) ** 2,
            teacher_mu=teacher.rating.mu,
            student_mu=student.rating.mu))
    return rows


def evolve_population(setup: Setup, state: State, step: int) -> list[dict]:
    """Replaces the weakest of each role every --evolve-every steps by children, made in LoRA weight space,
    with a new optimiser and a rating from their parents. A student stays if the child solves no more tasks of
    a trial: one in eleven has lost what its parents learned. Returns lines of genealogy.jsonl."""
    cfg, adapters, ranks = setup.cfg, setup.adapters, setup.ranks
    if cfg.single or (step + 1) % cfg.evolve_every:
        return []
    rows = []
    for number, role in enumerate(ROLES):
        is_frozen = cfg.lr_teacher == 0 and cfg.lr > 0          # --lr 0 for all: only births change members
        if role == "teacher" and (is_frozen or cfg.tasks):      # with --tasks no teacher writes
            continue
        key = (cfg.seed, step, selfplay.EVOLVE, number)
        births = evolve.plan_births(
            members_of(state.members, role), lambda m: RATINGS.fitness(m.rating), cfg.replace_frac, cfg.grace,
            step, cfg.evolve, selfplay.make_rng(*key))
        # (*key, i) draws for the operator; with 1 behind it the child's rate, with 2 the trial's tasks
        for i, birth in enumerate(births):
            slot = birth.victim.slot
            tried = partial(measure.trial, setup, state, slot, (*key, i, 2))
            if role == "student":                               # a teacher's worth only matches show
                replaced, before = adapters.factors(slot), tried()
            gen = torch.Generator().manual_seed(selfplay.make_rng(*key, i).getrandbits(60))
            # process 0 makes the child for all, because two GPUs' linear algebra may round differently
            norm_ratio = ranks.broadcast(lambda: evolve.apply_operator(adapters, birth, gen))
            ranks.broadcast_tensors([factor.data[slot] for factor in adapters.parameters()])
            if role == "student" and tried() <= before:
                adapters.set_factors(slot, replaced)
                continue
            state.adam.reset(slot)
            rating = child_rating(RATINGS, [parent.rating for parent in birth.parents])
            child = evolve.newborn(birth, rating, step, cfg.lr_mutate, selfplay.make_rng(*key, i, 1))
            state.members[state.members.index(birth.victim)] = child
            rows.append(evolve.genealogy_line(birth, child, norm_ratio))
    return rows


# --- a whole run --------------------------------------------------------------------------------------------

def main(given: Config, enough: Enough = None) -> RunDir:
    """Runs from step 0, or from the last checkpoint of --resume. enough(row) is called after every step, the
    last one included, with its line of metrics.jsonl; the run ends after the step in which it returns true,
    else after --steps. What fails in one process raises UserError in all, so that none waits for another."""
    ranks = Ranks.join(given.device)
    cfg, base = ranks.together(lambda: prepare(given, ranks))
    path = ranks.broadcast(lambda: choose_directory(cfg))
    # process 0 has the verifier, and tells the others its verdicts
    verifier = partial(open_sandbox, cfg.prompt_format) if ranks.rank == 0 else nullcontext
    with ranks.together(verifier) as sandbox, stop_flag() as stopped:
        run, steps = ranks.together(lambda: open_run(path, cfg, ranks.rank == 0))
        setup = populate(cfg, base, ranks, sandbox, run.writes and sys.stderr.isatty())
        state = ranks.together(lambda: restore(run, setup, steps[-1]) if steps else init_state(setup))
        if run.writes:
            begin(run, setup, state.step)
            print(measure.HEADER, flush=True)
        try:
            train(setup, state, run, stopped, enough)
        except torch.OutOfMemoryError:
            raise UserError("out of memory: lower --rollout-batch if rows were being written, "
                            "--tokens-per-microbatch if members were learning") from None
        finally:
            run.release()
    if run.writes and state.step:
        print(measure.summary(run.rows("metrics.jsonl")))
        best = run.best() or "unknown without a probe"
        print(f"its best checkpoint is {best}; python -m report {run} draws it")
    ranks.leave()
    return run


def entry() -> int:
    """Does what the command line asks for, and returns the exit code. With --resume the run's own flags come
    first."""
    flags = parse_args(__doc__)
    if "resume" in flags:
        flags = RunDir(flags["resume"], writes=False).config() | flags
    cfg = config_of(flags)
    if cfg.plan:
        *_, table, fits = plan(cfg, Ranks.join(cfg.device))
        print(table)
        return 0 if fits else 2
    sys.stdout.reconfigure(errors="backslashreplace")       # no character of a model's text ends a run
    main(cfg)
    return 0


if __name__ == "__main__":
    leave("train.py", entry)
