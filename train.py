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
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Callable

from infra.errors import demand

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
from config import FREE, Config, config_of_run, flags_of, parse_args
from evolve import ROLES, Member, members_of
from infra import command
from infra.distributed import Ranks, leave
from infra.gpu import memory
from measure.metrics import HEADER, StepRecord, line, measures, summary
from measure.monitors import EXIT_HALTED, Halted, Monitors
from measure.probes import probe
from run.checkpoint import RunDir, State, differing, init_state, restore, save, task_rows
from run.platform import Interrupted, Signals, Stopwatch, environment
from run.startup import flags_of_run, hash_base, keep_date, open_run, populate, prepare, show_plan
from run.terminal import first_of_each, format_task, print_safely
from selfplay import ProposalRecord, Setup
from trueskill_lite import RATINGS, child_rating
from verifier import Verifier, open_sandbox

# Whether a run may end after the step with this line of metrics.jsonl; None = not before its last step
Enough = Callable[[dict], bool] | None


@dataclasses.dataclass
class Observers:
    """Who looks at every step's line of metrics.jsonl."""
    monitors: Monitors              # for alarms
    enough: Enough                  # for whether it may end now


# --- the loop -----------------------------------------------------------------------------------------------

def train(setup: Setup, state: State, run: RunDir, signals: Signals, enough: Enough = None) -> None:
    """Steps up to cfg.steps or enough(row). Interrupted leaves the state as before the step."""
    cfg, adapters = setup.cfg, setup.adapters
    desc = "update" if setup.shows_bars else ""     # title of a progress bar
    observers = Observers(Monitors(run.rows("metrics.jsonl") if run.writes else ()), enough)
    while state.step < cfg.steps:
        step, clock = state.step, Stopwatch()

        # 1. match: every teacher, or --matches of them, draws a student
        pairs = selfplay.match(setup, state.members, step)
        # of a large population only those who play have their adapters in the device's memory
        adapters.to_device(member.slot for pair in pairs for member in pair)
        clock.lap("match")

        # 2. propose: teachers write tasks, the verifier says which are valid
        rollout, proposed = selfplay.propose(setup, state.archive, pairs, step)
        clock.lap("propose")
        selfplay.verify_proposals(setup, state.archive, proposed, step)
        clock.lap("verify")

        # 3. solve: each student attempts the valid tasks of its teachers; now and then a probe asks old tasks
        solved, attempts = selfplay.solve(setup, pairs, proposed, step)
        clock.lap("solve")
        probes = probe(setup, state.members, state.heldout, state.unseen, proposed, step)
        clock.lap("probe")

        # 4. reward and update: one batch for all members, each learns from its own rows; then the ratings
        selfplay.pay_teachers(setup, state.archive, proposed)
        written = [selfplay.teacher_rows(rollout, proposed), selfplay.student_rows(setup, solved, attempts)]
        batch = selfplay.training_batch(setup, written)
        objective = rl.Objective(setup.base, adapters, batch, rl.advantages(batch, cfg), cfg)
        first_epoch = rl.accumulate(objective, setup.ranks, desc)
        with signals:       # until here a signal ends the step at once; now it waits for the step's end
            state.adam.lr.copy_(torch.tensor(evolve.learning_rates(cfg, state.members, step)))
            update = rl.update(objective, state.adam, first_epoch, setup.ranks, desc)
            # fewer from now on, where memory was short
            cfg = dataclasses.replace(cfg, tokens_per_microbatch=update["tokens_per_microbatch"])
            clock.lap("update")
            matches = update_ratings(cfg, pairs, proposed, step)
            clock.lap("rate")
            done = StepRecord(proposed, batch, objective.adv, update, matches)
            row = record(setup, state, done, probes)
            clock.lap("record")

            # 5. evolve: the weakest are replaced by children of the others
            births = evolve_population(setup, state, step)
            clock.lap("evolve")
            logs = dict(metrics=[row], tasks=task_rows(proposed, step), matches=matches, genealogy=births)
            if conclude(setup, state, run, observers, logs, clock):
                return


# --- the end of a step --------------------------------------------------------------------------------------

def record(setup: Setup, state: State, done: StepRecord, probes: dict) -> dict:
    """Add a step's tasks to the archive and its tokens to the totals; returns its line of metrics.jsonl."""
    valid = [p for p in done.proposed if p.task]
    for p in valid:
        state.archive.add(p.task, p.structure)
    n_tokens = done.batch.rollout.n_tokens
    state.totals["generated"] += int(n_tokens.sum()) + probes.get("probe_tokens", 0)
    state.totals["trained"] += done.update["trained_tokens"]
    measured = measures(setup.cfg, setup.base.prompt_format, setup.adapters, state, done)
    row = dict(step=state.step, **measured, **memory(setup.ranks.device), **probes)
    row["sandbox_failures"] += row.pop("probe_failures", 0)
    if not state.heldout:                       # a base without held-out tasks: the run's first valid ones
        state.heldout = [p.task for p in valid][:setup.cfg.n_heldout]
    return row


def conclude(
    setup: Setup,
    state: State,
    run: RunDir,
    observers: Observers,
    logs: dict[str, list[dict]],    # name of a log -> the step's lines
    clock: Stopwatch,
) -> bool:
    """End a step: complete its line of metrics.jsonl, write its lines, and a checkpoint where one is due.
    Returns whether the run is over. Raises Halted where an alarm of --halt-on begins, and UserError where the
    processes have gone apart."""
    cfg, ranks = setup.cfg, setup.ranks
    ranks.check_population(setup.adapters, state.members, f"step {state.step}")
    state.step += 1
    [row] = logs["metrics"]
    row["alarms"], begun, notes = ranks.broadcast(lambda: observers.monitors.look(row))
    row["births"] = [birth["child"] for birth in logs["genealogy"] if birth["child"]]
    row["tokens_generated"] = state.totals["generated"]         # once more: litters have added to it
    row["seconds"] = clock.seconds
    tell(run, logs, notes, cfg.show)
    if state.step % cfg.save_every == 0:
        save(run, state, setup)
    # it is asked after the last step, too: callers also use it to look at every row
    if observers.enough and observers.enough(row) or state.step == cfg.steps:
        return True
    for name in begun:
        if name in cfg.halt_on:
            raise Halted(f"halted by --halt-on ({name}: {row['alarms'][name]})")
    return False


def tell(run: RunDir, logs: dict[str, list[dict]], notes: list[str], n_shown: int) -> None:
    """A step's lines in the run's logs and on the terminal."""
    for name, rows in logs.items():
        run.append(f"{name}.jsonl", rows)
    if run.writes:
        print(line(logs["metrics"][0]), flush=True)
        shown = [format_task(row) for row in first_of_each(logs["tasks"], n_shown)]
        for words in shown + notes:
            print_safely(words)


# --- ratings ------------------------------------------------------------------------------------------------

def update_ratings(
    cfg: Config,
    pairs: list[tuple[Member, Member]],             # (teacher, student)
    proposed: list[ProposalRecord],
    step: int,
) -> list[dict]:
    """Update both ratings of each match; lines of matches.jsonl with predicted and observed solve rate."""
    system = RATINGS[cfg.rating]()                  # TrueSkill or Elo
    rows = []
    for teacher, student in pairs:
        tasks, verdicts = [], []                    # of this match
        for p in proposed:
            if p.teacher is teacher and evolve.plays(student, p.kind):
                tasks.append(p)
                verdicts += p.attempts.get(student.name, [])
        solve_rate = selfplay.solve_rate(verdicts)
        if solve_rate is None:                      # a teacher without a valid task has lost, but:
            sandbox_failed = any(p.unjudged for p in tasks)
            if sandbox_failed or not tasks:
                continue                            # nobody has won
        expected = system.p_win(student.rating, teacher.rating)
        winner = evolve.winner_of(solve_rate, expected, rule=cfg.outcome)
        better, worse = student, teacher            # of a draw in this order, too
        if winner == "teacher":
            better, worse = teacher, student
        better.rating, worse.rating = system.rate(better.rating, worse.rating, draw=winner == "draw")
        teacher.matches += 1
        student.matches += 1
        rows.append(dict(
            step=step,
            teacher=teacher.name,
            student=student.name,
            expected=expected,
            solve_rate=solve_rate,
            winner=winner,
            brier=None if solve_rate is None else (expected - solve_rate) ** 2,
            teacher_mu=teacher.rating.mu,
            student_mu=student.rating.mu))
    return rows


# --- evolution ----------------------------------------------------------------------------------------------

# What a birth draws depends on (seed, step, EVOLVE, role, number of the victim), a key of selfplay.make_rng.
# One more number behind it makes the keys of other draws: 0 of the tasks that children are compared on, 1 of
# a child's learning rate, 2, 3, ... of the second child of a litter and those after it.
Key = tuple[int, ...]


def make_child(setup: Setup, birth: evolve.Birth, key: Key) -> float:
    """Write a child over its victim, in all processes. Returns its norm ratio."""
    gen = torch.Generator().manual_seed(selfplay.make_rng(*key).getrandbits(60))
    # A GPU's linear algebra must not divide the processes: process 0 makes the child for all.
    ratio = setup.ranks.broadcast(lambda: evolve.apply_operator(setup.adapters, birth, gen))
    setup.ranks.broadcast_member(setup.adapters, birth.victim.slot)
    return ratio


@dataclasses.dataclass
class Chosen:
    """Who is in a victim's slot after its replacement was decided."""
    birth: evolve.Birth | None      # None: no child was better than the victim, which stays
    norm_ratio: float               # of that child
    told: dict = dataclasses.field(default_factory=dict)        # what genealogy.jsonl says of the comparison


def choose_from_litter(
    setup: Setup,
    state: State,
    litter: list[evolve.Birth],
    step: int,
    key: Key,
) -> Chosen:
    """Let a victim and the children that could replace it attempt the same tasks. Whoever solves most of them
    is in the slot then, the victim where no child is better."""
    adapters = setup.adapters
    slot = litter[0].victim.slot
    tasks = state.archive.sample(setup.cfg.task_types, selfplay.N_TRIAL, selfplay.make_rng(*key, 0))
    of_victim, n_tokens = selfplay.solve_greedily(setup, tasks, slot, step)
    highest = of_victim
    best, best_ratio = None, 0.0                    # the best birth so far, and its child's norm ratio
    factors = adapters.factors(slot)                # all are made in this slot: the best so far is kept here
    children = []
    for number, birth in enumerate(litter):
        child_key = key                             # the first one is the child of a run without litters
        if number > 0:
            child_key = (*key, 1 + number)
        norm_ratio = make_child(setup, birth, child_key)
        solved, tokens = selfplay.solve_greedily(setup, tasks, slot, step)
        n_tokens += tokens
        parents = [parent.name for parent in birth.parents]
        children.append(dict(operator=birth.operator, parents=parents, solved=solved))
        if solved > highest:
            highest = solved
            best, best_ratio = birth, norm_ratio
            factors = adapters.factors(slot)
    adapters.set_factors(slot, factors)
    state.totals["generated"] += n_tokens
    trial = dict(n_tasks=len(tasks), victim=of_victim, children=children, tokens=n_tokens)
    return Chosen(best, best_ratio, dict(trial=trial))


def evolve_population(setup: Setup, state: State, step: int) -> list[dict]:
    """Every --evolve-every steps, replace the weakest of each role by children, in LoRA weight space. Returns
    lines of genealogy.jsonl."""
    cfg = setup.cfg
    if cfg.single or (step + 1) % cfg.evolve_every:
        return []
    system = RATINGS[cfg.rating]()
    rows = []
    for number, role in enumerate(ROLES):
        writes_nothing = bool(cfg.tasks)
        # with --lr 0, too, evolution is all that changes anybody: then teachers take part
        is_frozen = cfg.lr_teacher == 0 and cfg.lr > 0
        if role == "teacher" and (writes_nothing or is_frozen):
            continue
        key = (cfg.seed, step, selfplay.EVOLVE, number)
        # students alone are compared before they are replaced: what a teacher is worth, only matches show
        size = cfg.litter if role == "student" else 1
        litters = evolve.plan_births(
            members_of(state.members, role),
            lambda m: system.fitness(m.rating),
            cfg.replace_frac,
            cfg.grace,
            step,
            cfg.evolve,
            selfplay.make_rng(*key),
            size)
        for i, litter in enumerate(litters):
            rows.append(replace_victim(setup, state, litter, size > 1, step, (*key, i)))
    return rows


def replace_victim(
    setup: Setup,
    state: State,
    litter: list[evolve.Birth],     # of one victim
    is_tried: bool,                 # whether the children have to be better than the victim
    step: int,
    key: Key,
) -> dict:
    """Put a child into its victim's slot, with a new optimiser and a rating from its parents. Returns its
    line of genealogy.jsonl, or the victim's where that one stays."""
    [first, *_] = litter
    victim = first.victim
    if is_tried:
        chosen = choose_from_litter(setup, state, litter, step, key)
    else:
        chosen = Chosen(first, make_child(setup, first, key))
    birth = chosen.birth
    if birth is None:
        return dict(step=step, child=None, victim=dataclasses.asdict(victim)) | chosen.told
    state.adam.reset(victim.slot)
    rating = child_rating(RATINGS[setup.cfg.rating](), [parent.rating for parent in birth.parents])
    child = evolve.newborn(birth, rating, step, setup.cfg.lr_mutate, selfplay.make_rng(*key, 1))
    place = state.members.index(victim)
    state.members[place] = child
    return evolve.genealogy_line(birth, child, chosen.norm_ratio) | chosen.told


# --- a whole run --------------------------------------------------------------------------------------------

def begin(run: RunDir, cfg: Config, state: State, setup: Setup) -> None:
    """Write down what runs where, and print the table's head. cfg: the flags as they were given, of which
    setup.cfg has those that memory limits made to fit."""
    ranks = setup.ranks
    run.write_json("config.json", flags_of(cfg))
    env = environment(cfg, ranks, setup.sandbox)
    started = run.started()
    if started:                                 # a resumed run's first day stays
        env["started"] = started
    run.write_json("env.json", env)
    counts = []
    for role in ROLES:
        counts.append(f"{len(members_of(state.members, role))} {role}s")
    adapters = " in one adapter" if cfg.single else ""
    print(f"{run.path}: {', '.join(counts)}{adapters} on {cfg.base}, steps {state.step} to {cfg.steps}, "
          f"{ranks.world} process(es) on {ranks.device}, sandbox: {setup.sandbox.tier}")
    print(HEADER, flush=True)


def main(cfg: Config, enough: Enough = None) -> RunDir:
    """A whole run. Raises UserError, or Interrupted after saving.

    enough(row) is called after every step, the last one included, with its line of metrics.jsonl; the run
    ends after the step in which it returns something true, else after cfg.steps.
    """
    ranks = Ranks.join(cfg.device)
    # What can fail here fails in all processes at once: none is left waiting for another.
    cfg, base = ranks.together(lambda: prepare(cfg, ranks))
    with ranks.together(lambda: sandbox_of(cfg, ranks)) as sandbox:
        run, resuming = open_run(cfg, ranks)
        before = config_of_run(run.config(), run.path) if resuming else cfg
        cfg, base = keep_date(cfg, base, before.date, ranks)
        if resuming:
            changed = differing(flags_of(before), flags_of(cfg), FREE)
            demand(not changed, f"{run.path} was started with another configuration: {', '.join(changed)}; "
                   "leave these flags out, or give another --name")
        setup, adam = populate(cfg, base, ranks, sandbox, shows_bars=run.writes and sys.stderr.isatty())
        hash_before = hash_base(base, ranks)
        if resuming:
            state = restore(run, setup, adam, run.steps()[-1])
        else:
            state = init_state(setup, adam)
        if state.step >= cfg.steps:
            if run.writes:
                print(f"{run.path}: already at step {state.step} of {cfg.steps}: nothing to do")
            return run
        ranks.check_population(setup.adapters, state.members, f"before step {state.step}")
        if run.writes:
            begin(run, cfg, state, setup)
        train_and_save(setup, state, run, enough)
        assert hash_base(base, ranks) == hash_before, "the frozen base was changed by training"
        if run.writes:
            print(summary(run.rows("metrics.jsonl")))
            print(f"everything lies in {run.path}; python -m report {run.path} draws it")
    return run


def train_and_save(setup: Setup, state: State, run: RunDir, enough: Enough) -> None:
    """`train`, and a checkpoint of the state in which it ends, also where a signal or an alarm ends it."""
    ranks = setup.ranks
    # Process 0, which saves, must not wait for a process that a signal has ended.
    signals = Signals(patient=ranks.rank > 0).install()
    try:
        train(setup, state, run, signals, enough)
        save_once(run, state, setup)
    except Interrupted as e:
        save_once(run, state, setup)
        if run.writes:
            print(f"{e}: saved before step {state.step}; go on with --resume {run.path}", file=sys.stderr)
        if isinstance(e, Halted):
            # All processes come here. torchrun ends the others when the first one leaves: each waits for
            # process 0, which has saved by then.
            ranks.broadcast(lambda: None)
        raise
    except RuntimeError:
        is_left_alone = ranks.rank > 0 and signals.pending      # by process 0, which has saved and left
        if not is_left_alone:
            raise
        raise Interrupted(signals.pending) from None
    finally:
        signals.restore()


def sandbox_of(cfg: Config, ranks: Ranks) -> Verifier | contextlib.nullcontext:
    """The verifier, in process 0 alone: its verdicts are told to the others."""
    if ranks.rank > 0:
        return contextlib.nullcontext()
    return open_sandbox(cfg.verifier, cfg.prompt_format)


def save_once(run: RunDir, state: State, setup: Setup) -> None:
    """A checkpoint of this state, unless there is one."""
    if state.step not in run.steps():
        save(run, state, setup)


def entry() -> int:
    """What the command line asks for. Returns the exit code."""
    cfg = parse_args(__doc__, saved=flags_of_run)
    if cfg.plan:
        return show_plan(cfg)
    try:
        main(cfg)
    except Interrupted as e:            # main has told of it
        return EXIT_HALTED if isinstance(e, Halted) else 130
    leave()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command.leave("train.py", entry, " outside the steps of a run")
