"""PopuLoRA: a population of LoRA adapters on one frozen base teaches itself Python by self-play.

    torchrun --standalone train.py --pop 8                          # bundled micro base, minutes on a laptop
    python train.py --single                                        # AZR: one adapter in both roles
    python train.py --base Qwen/Qwen2.5-Coder-7B --pop 8 --device cuda      # the paper's, not tried here
    torchrun --standalone --nproc_per_node=2 train.py --name two    # rows dealt out to two processes
    python train.py --resume out/two                                # go on where it was cut off
    python train.py --base Qwen/Qwen2.5-Coder-7B --plan             # would it fit? memory by use
    python train.py --show 3                                        # print three tasks a step with attempts

Five phases a step, all in `train`: match, propose, solve, reward and update, evolve. arXiv 2605.16727 on top
of 2505.03335.
"""
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Callable

from infra.errors import UserError

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)       # imports take seconds: Ctrl-C ends them in silence
os.environ.setdefault("GOMP_SPINCOUNT", "0")           # waiting threads that spin cost more than they save
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import torch
except ModuleNotFoundError:
    sys.exit("train.py: torch is not installed: `make setup`, then . .venv/bin/activate")

import evolve
import rl
import selfplay
from config import FREE, Config, config_of_run, parse_args
from evolve import ROLES, Member, members_of
from infra.distributed import Ranks, leave
from infra.gpu import memory
from measure.metrics import HEADER, Step, line, measures, summary
from measure.monitors import EXIT_HALTED, Halted, Monitors
from measure.probes import probe
from rl import Adam
from run.checkpoint import RunDir, State, differing, init_state, restore, save, task_rows
from run.duration import Forecast
from run.platform import Interrupted, Signals, Stopwatch, environment
from run.startup import flags_of_run, hash_base, keep_date, open_run, populate, prepare, show_plan
from run.terminal import first_of_each, format_task, print_safely
from selfplay import ProposalRecord, Setup
from tasks.archive import Archive
from trueskill_lite import RATINGS, child_rating
from verifier import open_sandbox


def rate(cfg: Config, pairs: list[tuple[Member, Member]], proposed: list[ProposalRecord],
         step: int) -> list[dict]:
    """Update both ratings of each match; lines of matches.jsonl with predicted and observed solve rate."""
    system, rows = RATINGS[cfg.rating](), []
    for teacher, student in pairs:
        tasks = [p for p in proposed if p.teacher is teacher and evolve.plays(student, p.kind)]
        solve_rate = selfplay.solve_rate([x for p in tasks for x in p.attempts.get(student.name, [])])
        if solve_rate is None and (not tasks or any(p.unjudged for p in tasks)):
            continue                                # nothing to try, or the sandbox failed: nobody has won
        expected = system.p_win(student.rating, teacher.rating)
        winner = evolve.outcome(solve_rate, expected, rule=cfg.outcome)
        first, second = (teacher, student) if winner == "teacher" else (student, teacher)
        first.rating, second.rating = system.rate(first.rating, second.rating, draw=winner == "draw")
        teacher.matches += 1
        student.matches += 1
        rows.append(dict(step=step, teacher=teacher.name, student=student.name, expected=expected,
                         solve_rate=solve_rate, winner=winner,
                         brier=None if solve_rate is None else (expected - solve_rate) ** 2,
                         teacher_mu=teacher.rating.mu, student_mu=student.rating.mu))
    return rows


def make_child(setup: Setup, birth: evolve.Birth, *key: int) -> float:
    """Write a child over its victim, drawn by the key, in all processes. Returns its norm ratio."""
    gen = torch.Generator().manual_seed(selfplay.make_rng(*key).getrandbits(60))
    # a GPU's linear algebra must not divide the processes: process 0 makes the child for all
    ratio = setup.ranks.broadcast(lambda: evolve.apply_operator(setup.adapters, birth, gen))
    setup.ranks.broadcast_member(setup.adapters, birth.victim.slot)
    return ratio


def try_litter(setup: Setup, archive: Archive, litter: list[evolve.Birth], step: int,
               *key: int) -> tuple[evolve.Birth | None, float, dict]:
    """Let a victim and the children that could replace it attempt the same tasks. Whoever solves most of them
    is in the slot then, the victim where no child is better. Returns the child's birth (None: the victim
    stays), its norm ratio, and the trial as genealogy.jsonl tells it."""
    adapters, slot = setup.adapters, litter[0].victim.slot
    tasks = archive.sample(setup.task_types, selfplay.N_TRIAL, selfplay.make_rng(*key, 0))
    best, ratio, factors = None, 0.0, adapters.factors(slot)
    highest, tokens = selfplay.trial(setup, tasks, slot, step)
    told = dict(n_tasks=len(tasks), victim=highest, children=[])
    for number, birth in enumerate(litter):
        # the first one is the child of a run without trials; key 1 draws a child's rate
        norm_ratio = make_child(setup, birth, *key, *([1 + number] if number else []))
        solved, n_tokens = selfplay.trial(setup, tasks, slot, step)
        tokens += n_tokens
        parents = [m.name for m in birth.parents]
        told["children"].append(dict(operator=birth.operator, parents=parents, solved=solved))
        if solved > highest:
            best, highest, ratio, factors = birth, solved, norm_ratio, adapters.factors(slot)
    adapters.set_factors(slot, factors)
    return best, ratio, told | dict(tokens=tokens)


def evolve_population(setup: Setup, state: State, adam: Adam, step: int) -> list[dict]:
    """Replace the weakest of each role by children, in LoRA weight space; lines of genealogy.jsonl."""
    cfg, system, rows = setup.cfg, RATINGS[setup.cfg.rating](), []
    for number, role in enumerate(ROLES):
        if role == "teacher" and (cfg.tasks or cfg.lr and not cfg.lr_teacher):      # silent, or frozen
            continue
        rng = selfplay.make_rng(cfg.seed, step, selfplay.EVOLVE, number)
        place = {m.name: i for i, m in enumerate(state.members)}
        # a teacher's worth shows only in matches: of new valid tasks most has who writes the easiest
        size = cfg.litter if role == "student" else 1
        litters = evolve.plan(members_of(state.members, role), lambda m: system.fitness(m.rating),
                              cfg.replace_frac, cfg.grace, step, cfg.evolve, rng, size)
        for i, litter in enumerate(litters):
            key, birth, trial = (cfg.seed, step, selfplay.EVOLVE, number, i), litter[0], {}
            victim = birth.victim
            if size == 1:
                ratio = make_child(setup, birth, *key)
            else:
                birth, ratio, told = try_litter(setup, state.archive, litter, step, *key)
                state.totals["generated"] += told["tokens"]
                trial = dict(trial=told)
            if birth is None:
                rows.append(dict(step=step, child=None, victim=dataclasses.asdict(victim)) | trial)
                continue
            adam.reset(victim.slot)
            rating = child_rating(system, [parent.rating for parent in birth.parents])
            child = evolve.newborn(birth, rating, step, cfg.lr_mutate, selfplay.make_rng(*key, 1))
            rows.append(evolve.genealogy(birth, child, ratio) | trial)
            state.members[place[victim.name]] = child
    return rows


def train(setup: Setup, state: State, run: RunDir, adam: Adam, base_hash: str, signals: Signals,
          enough: Callable[[dict], bool] | None = None) -> None:
    """Steps up to cfg.steps or enough(row). Interrupted leaves the state as before the step."""
    cfg, base, adapters = setup.cfg, setup.base, setup.adapters
    learning = cfg                                                  # with micro-batches that fit
    shows = run.writes and sys.stderr.isatty()
    bars = {phase: phase if shows else "" for phase in ("propose", "solve", "update")}      # "" = none
    where = dict(ranks=setup.ranks, desc=bars["update"])
    monitors = Monitors(run.rows("metrics.jsonl") if run.writes else ())
    forecast = Forecast(setup)
    while state.step < cfg.steps:
        step, clock = state.step, Stopwatch()

        # 1. match: every teacher, or --matches of them, draws a student; who plays is on the device
        pairs = selfplay.match(setup, state.members, step)
        adapters.page_in(m.slot for pair in pairs for m in pair)
        clock.lap("match")

        # 2. propose: teachers write tasks, the verifier says which are valid
        rollout, proposed = selfplay.propose(setup, state.archive, pairs, step, bars["propose"])
        clock.lap("propose")
        selfplay.verify(setup, state.archive, proposed, step)
        clock.lap("verify")

        # 3. solve: each student attempts the valid tasks of its teachers
        solved, attempts = selfplay.solve(setup, pairs, proposed, step, bars["solve"])
        clock.lap("solve")
        # members as they were when they proposed and solved
        probes = probe(setup, state.members, state.heldout, state.unseen, proposed, step)
        clock.lap("probe")

        # 4. reward and update: one batch for all members, each learns from its own rows; then the ratings
        selfplay.pay_teachers(setup, state.archive, proposed)
        written = [selfplay.teacher_rows(rollout, proposed), selfplay.student_rows(setup, solved, attempts)]
        batch = selfplay.training_batch(setup, written)
        adv = rl.advantages(batch, learning)
        objective = rl.Objective(base, adapters, batch, adv, learning)
        first = rl.accumulate(objective, **where)
        with signals:       # a signal may end the first gradient; from here to the checkpoint it waits
            adam.lr.copy_(torch.tensor(evolve.learning_rates(cfg, state.members, step)))
            update = rl.update(objective, adam, first, **where)
            learning = dataclasses.replace(learning, tokens_per_microbatch=update["tokens_per_microbatch"])
            clock.lap("update")
            matches = rate(cfg, pairs, proposed, step)
            clock.lap("rate")
            row = record(setup, state, Step(proposed, batch, adv, update, matches), probes)
            clock.lap("record")

            # 5. evolve: the weakest are replaced by children of the others
            due = (step + 1) % cfg.evolve_every == 0 and not cfg.single
            births = evolve_population(setup, state, adam, step) if due else []
            setup.ranks.check_population(adapters, state.members, f"step {step}")
            clock.lap("evolve")

            state.step += 1
            row["alarms"], begun, notes = setup.ranks.broadcast(lambda: monitors.look(row))
            # trials have added to the tokens
            row |= dict(births=[birth["child"] for birth in births if birth["child"]],
                        tokens_generated=state.totals["generated"], seconds=clock.seconds)
            tell(run, dict(metrics=[row], tasks=task_rows(proposed, step), matches=matches, genealogy=births),
                 notes + forecast.look(state, row), cfg.show)
            # it is asked after the last step, too: callers also use it to look at every row
            last = (enough is not None and enough(row)) or state.step == cfg.steps
            if last or state.step % cfg.save_every == 0:
                save(run, state, setup, adam, base_hash)
            if last:
                return
            if names := [name for name in begun if name in cfg.halt_on.split(",")]:
                raise Halted(f"halted by --halt-on ({names[0]}: {row['alarms'][names[0]]})")


def record(setup: Setup, state: State, step: Step, probes: dict) -> dict:
    """Add a step's tasks to the archive and its tokens to the totals; returns its line of metrics.jsonl."""
    valid = [p for p in step.proposed if p.task]
    for p in valid:
        state.archive.add(p.task, p.structure)
    n_tokens = step.batch.rollout.n_tokens
    state.totals["generated"] += int(n_tokens.sum()) + probes.get("probe_tokens", 0)
    state.totals["trained"] += step.update["trained_tokens"]
    measured = measures(setup.cfg, setup.base.prompt_format, setup.adapters, state, step)
    row = dict(step=state.step, **measured, **memory(setup.ranks.device), **probes)
    row["sandbox_failures"] += row.pop("probe_failures", 0)
    if not state.heldout:                       # a base without held-out tasks: the run's first valid ones
        state.heldout = [p.task for p in valid][:setup.cfg.n_heldout]
    return row


def tell(run: RunDir, logs: dict[str, list[dict]], notes: list[str], n_shown: int) -> None:
    """A step's lines in the run's logs and on the terminal."""
    for name, rows in logs.items():
        run.append(f"{name}.jsonl", rows)
    if run.writes:
        print(line(logs["metrics"][0]), flush=True)
        for words in [*map(format_task, first_of_each(logs["tasks"], n_shown)), *notes]:
            print_safely(words)


def begin(run: RunDir, cfg: Config, state: State, setup: Setup) -> None:
    """Write down what runs where, and print the table's head. cfg: with sizes as asked, not as fitted."""
    ranks = setup.ranks
    run.write_json("config.json", dataclasses.asdict(cfg))
    started = run.started()
    env = environment(cfg, ranks, setup.sandbox)
    run.write_json("env.json", env | (dict(started=started) if started else {}))
    who = ", ".join(f"{len(members_of(state.members, role))} {role}s" for role in ROLES)
    print(f"{run.path}: {who}{' in one adapter' if cfg.single else ''} on {cfg.base}, steps {state.step} to "
          f"{cfg.steps}, {ranks.world} process(es) on {ranks.device}, sandbox: {setup.sandbox.tier}")
    print(HEADER, flush=True)


def main(cfg: Config, enough: Callable[[dict], bool] | None = None) -> RunDir:
    """A whole run. Raises UserError, or Interrupted after saving.

    enough(row) is called after every step, the last one included, with its line of metrics.jsonl; the run
    ends after the step in which it returns something true, else after cfg.steps.
    """
    ranks = Ranks.join(cfg.device)
    with contextlib.ExitStack() as stack:
        cfg, base = ranks.together(lambda: prepare(cfg, ranks))
        alone = ranks.rank == 0
        sandbox = ranks.together(lambda: open_sandbox(cfg.verifier, cfg.prompt_format) if alone else None)
        stack.enter_context(sandbox or contextlib.nullcontext())
        run, resuming = open_run(cfg, ranks)
        before = config_of_run(run.config(), run.path) if resuming else cfg
        cfg, base = keep_date(cfg, base, before.date, ranks)
        if resuming and (changed := differing(vars(before), vars(cfg), FREE)):
            raise UserError(f"{run.path} was started with another configuration: {', '.join(changed)}; "
                             "leave these flags out, or give another --name")
        setup, adam, base_hash = populate(cfg, base, ranks, sandbox)
        frozen = hash_base(base, ranks)
        if resuming:
            state = restore(run, cfg, setup, adam, base_hash, run.steps()[-1])
        else:
            state = init_state(cfg, setup, base_hash)
        if state.step >= cfg.steps:
            if run.writes:
                print(f"{run.path}: already at step {state.step} of {cfg.steps}: nothing to do")
            return run
        ranks.check_population(setup.adapters, state.members, f"before step {state.step}")
        if run.writes:
            begin(run, cfg, state, setup)
        signals = Signals(patient=ranks.rank > 0).install()
        stack.callback(signals.restore)
        try:
            train(setup, state, run, adam, base_hash, signals, enough)
        except Interrupted as e:
            if state.step not in run.steps():
                save(run, state, setup, adam, base_hash)
            if run.writes:
                print(f"{e}: saved before step {state.step}; go on with --resume {run.path}", file=sys.stderr)
            if isinstance(e, Halted):       # torchrun ends all when one leaves: first the checkpoint
                ranks.broadcast(lambda: None)
            raise
        except RuntimeError:
            if not (ranks.rank and signals.pending):
                raise
            raise Interrupted(signals.pending) from None    # process 0 has saved and left before this one
        assert hash_base(base, ranks) == frozen, "the frozen base was changed by training"
        if run.writes:
            print(summary(run.rows("metrics.jsonl")))
            print(f"everything lies in {run.path}; python -m report {run.path} draws it")
    return run


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cfg = parse_args(__doc__, saved=flags_of_run)
        if cfg.plan:
            sys.exit(show_plan(cfg))
        main(cfg)
        leave()
    except (UserError, OSError) as e:
        print(f"train.py: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, UserError) else 1)
    except Interrupted as e:
        sys.exit(EXIT_HALTED if isinstance(e, Halted) else 130)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print("train.py: interrupted outside the steps of a run", file=sys.stderr)
        sys.exit(130)
