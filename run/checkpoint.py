"""What a checkpoint holds: where it comes from at step 0, how it is written and read back.

    step_N/state.json
    step_N/MEMBER/adapter_model.safetensors ... one PEFT directory a member
    step_N/optimizer/MEMBER.safetensors     ... its moments, once it has learned
"""
import dataclasses
import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import selfplay
from config import Config
from evolve import ROLES, Member, member_order, spread
from infra.errors import demand
from infra.files import demand_fields, json_object, read_log
from rl import Adam
from run.directory import LOGS, RunDir
from selfplay import ProposalRecord, Setup
from tasks import IDENTITY, TASK_TYPES, cruxeval, read_tasks
from tasks.archive import Archive
from tasks.base import Proposal, Task
from trueskill_lite import RATINGS
from weights import load_peft, save_peft

OPTIMIZER = "optimizer"
HELD_OUT = "heldout.jsonl"              # beside a base's weights
CRUXEVAL = "cruxeval"                   # as --heldout: the file that eval.code has fetched
MAX_LOGGED = 600                    # characters of a text in tasks.jsonl
STATE = {"members", "heldout", "unseen", "seeds", "base_files", "totals", "optimizer_steps", "logs"}
NAME = re.compile("[A-Z][0-9]{1,9}", re.ASCII)      # a member's, which becomes a directory's


def differing(old: dict, new: dict, free: tuple[str, ...]) -> list[str]:
    """Names of configuration fields that differ, other than those that may."""
    changed = []
    for name in new:
        before = old.get(name)
        if name not in free and before != new[name]:
            changed.append(f"{name} ({before!r} -> {new[name]!r})")
    return changed


@dataclass
class State:
    """What a checkpoint holds: `step` is the next to do."""
    step: int
    members: list[Member]
    archive: Archive
    heldout: list[Task]                 # of the types that the run plays
    unseen: list[Task]                  # held-out tasks of types that it does not play
    totals: dict[str, int]              # tokens generated and trained so far
    adam: Adam


# --- the state before step 0 --------------------------------------------------------------------------------

def founders(cfg: Config) -> list[Member]:
    """The members that a run begins with, role by role; with --single one adapter, in slot 0, has all roles.
    --teachers of --pop are teachers, the others students; a role that somebody adds has as many as these."""
    members = []
    new_rating = RATINGS[cfg.rating]().new
    types = cfg.task_types
    for number, role in enumerate(ROLES):
        rng = selfplay.make_rng(cfg.seed, -1, selfplay.INIT, number)
        factor = cfg.lr_spread
        if hasattr(cfg, f"lr_{role}"):              # a role with a rate of its own
            factor = 1.0
        size = cfg.teachers if role == "teacher" else cfg.pop - cfg.teachers
        for i, scale in enumerate(spread(size, factor, rng)):
            name = f"{role[0].upper()}{i}"
            slot = 0 if cfg.single else len(members)
            m = Member(name, role, slot, new_rating(), lr_scale=scale)
            if cfg.niches:
                m.niche = (types[i % len(types)],)
            members.append(m)
    return members


def init_state(setup: Setup, adam: Adam) -> State:
    """The state before step 0: fresh members (or --init), the archive's seeds, the held-out tasks."""
    cfg = setup.cfg
    init_adapters(setup)
    archive = seeded_archive(setup)
    heldout, unseen = [], []
    for task in held_out(setup):
        if task.kind in cfg.task_types:
            heldout.append(task)
        else:
            unseen.append(task)
    return State(
        step=0,
        members=founders(cfg),
        archive=archive,
        heldout=heldout,
        unseen=unseen,
        totals=dict(generated=0, trained=0),
        adam=adam)


def held_out(setup: Setup) -> list[Task]:
    """The tasks of --heldout, else of the file beside the base's weights, if any: the first of each type. Of
    CRUXEval the validation split, so that a claim can be made on the other one after the run."""
    cfg = setup.cfg
    path = Path(cfg.heldout or setup.base.path / HELD_OUT)
    if cfg.heldout == CRUXEVAL and not path.exists():
        path = cruxeval.FILE
        demand(path.exists(), f"--heldout {CRUXEVAL}: {path} is not there; `python -m eval.code --self-test "
               "--bench cruxeval-o` fetches it, or give the path of the file")
    if not path.exists():
        demand(not cfg.heldout, f"--heldout {cfg.heldout}: no such file")
        return []
    rows = cruxeval.rows_of(path.read_text(encoding="utf-8", errors="replace"), "validation")
    if rows:
        tasks = []
        run = functools.partial(selfplay.run_jobs, setup)
        for kind in cruxeval.KINDS.values():
            tasks += cruxeval.tasks_of(rows, kind, cfg.dedupe, run).values()
        return first_of_types(tasks, cfg.n_heldout, cfg.task_types)
    given = first_of_types(read_tasks(path), cfg.n_heldout, cfg.task_types)
    return selfplay.make_tasks(setup, given, cfg.heldout or "the base's held-out tasks")


def seeded_archive(setup: Setup) -> Archive:
    """The archive that a run begins with. Raises UserError for a seed that is no valid task."""
    cfg = setup.cfg
    tasks = selfplay.make_tasks(setup, seeds(cfg), cfg.seed_tasks or "seed")
    return archive_of(tasks)


def archive_of(tasks: list[Task]) -> Archive:
    """An archive to which these tasks came in this order, which gives each its id."""
    archive = Archive()
    for task in tasks:
        structure = TASK_TYPES[task.kind].structure(task.program)
        archive.add(dataclasses.replace(task, id=archive.n_added), structure)
    return archive


def init_adapters(setup: Setup) -> None:
    """Fresh adapters, or those of --init. Raises UserError where these are more or fewer than members."""
    cfg, adapters = setup.cfg, setup.adapters
    if not cfg.init:
        for slot in range(adapters.n_members):
            seed = selfplay.make_rng(cfg.seed, 0, selfplay.INIT, slot).getrandbits(60)
            adapters.init_member(slot, torch.Generator().manual_seed(seed))
        return
    given = [path.parent for path in Path(cfg.init).glob("*/adapter_config.json")]
    given.sort(key=lambda path: member_order(path.name))
    demand(len(given) == adapters.n_members,
           f"--init {cfg.init} holds {len(given)} adapters for {adapters.n_members} members")
    for slot, path in enumerate(given):
        load_peft(adapters, slot, path, setup.base_hash)


def seeds(cfg: Config) -> list[Proposal]:
    """What the archive begins with: --seed-tasks or the identity program, and the own examples of types that
    have no task there. Raises UserError for a file without tasks."""
    proposals = read_tasks(cfg.seed_tasks) if cfg.seed_tasks else [IDENTITY]
    demand(proposals,
           f"--seed-tasks {cfg.seed_tasks} holds no tasks: give at least one, or leave it out")
    given = {p.kind for p in proposals}
    if has_code(cfg.task_types) and not has_code(given):
        proposals.append(IDENTITY)
    for kind in cfg.task_types:
        own = TASK_TYPES[kind].seed
        if own and kind not in given:
            proposals.append(own)
    return proposals


def has_code(kinds: Iterable[str]) -> bool:
    """Whether a task type of code is among these."""
    return any(kind.startswith("code") for kind in kinds)


def first_of_types(proposals: list[Proposal] | list[Task], n: int, played: tuple[str, ...]) -> list:
    """The first n tasks of each type that is played and n / 3, rounded up, of others, type by type."""
    by_kind = {}
    for p in proposals:
        by_kind.setdefault(p.kind, []).append(p)
    chosen = []
    for kind, own in by_kind.items():
        n_of_kind = n if kind in played else math.ceil(n / 3)
        chosen += own[:n_of_kind]
    return chosen


# --- tasks.jsonl --------------------------------------------------------------------------------------------

def task_rows(proposed: list[ProposalRecord], step: int) -> list[dict]:
    """A line a proposal, valid or not; texts are cut to MAX_LOGGED characters."""
    rows = []
    for p in proposed:
        row = dict(
            step=step,
            teacher=p.teacher.name,
            kind=p.kind,
            reason=p.reason,
            reward=p.reward)
        if p.task:
            answers = {}
            for name, texts in p.answers.items():
                answers[name] = [text[-MAX_LOGGED:] for text in texts]      # what it answers stands last
            for name in ("id", "program", "inputs", "outputs", "message", "key", "parents"):
                row[name] = getattr(p.task, name)
            row |= dict(
                solve_rate=p.solve_rate,
                attempts=p.attempts,
                answers=answers,
                statements=p.statements)
        else:
            row["text"] = p.text[:MAX_LOGGED]
        rows.append(row)
    return rows


def task_of(row: dict) -> Task:
    """The task of a valid proposal's line, or of state.json. Raises UserError for an unknown type."""
    names = Task.__dataclass_fields__.keys()
    demand_fields(row, names)
    demand(row["kind"] in TASK_TYPES, f"{str(row['kind'])[:40]!r} is no task type")
    own = {}
    for name in names:
        value = row[name]
        own[name] = tuple(value) if isinstance(value, list) else value
    return Task(**own)


# --- written and read back ----------------------------------------------------------------------------------

def save(run: RunDir, state: State, setup: Setup) -> None:
    """Checkpoint of the state before `state.step`: PEFT directories, optimiser, metadata; never the base."""
    n_learned = state.adam.steps.tolist()

    def fill(directory: Path) -> None:
        """The tensors; run.save adds the metadata and makes the whole appear at once."""
        (directory / OPTIMIZER).mkdir()
        for slot, name in slots(state.members).items():
            save_peft(setup.adapters, slot, directory / name, setup.cfg.base, setup.base_hash)
            if n_learned[slot]:
                save_file(state.adam.state_dict(slot), directory / OPTIMIZER / f"{name}.safetensors")

    metadata = dict(
        base_files=setup.base_hash,
        totals=state.totals,
        optimizer_steps=n_learned,
        members=as_rows(state.members),
        heldout=as_rows(state.heldout),
        unseen=as_rows(state.unseen),
        seeds=as_rows(state.archive.seeds))
    run.save(state.step, metadata, fill, setup.cfg.keep)


def as_rows(things: list) -> list[dict]:
    """Dataclasses as JSON has them."""
    return list(map(dataclasses.asdict, things))


def slots(members: list[Member]) -> dict[int, str]:
    """Slot -> the name under which its adapter is saved: the first of those that share it."""
    return {m.slot: m.name for m in reversed(members)}


def members_at(run: RunDir, step: int) -> tuple[list[Member], dict]:
    """The members and the metadata of a checkpoint, its tasks as Tasks. Raises UserError where state.json is
    damaged, or a member's name, which becomes a directory's, is none."""
    def read(path: Path) -> tuple[list[Member], dict]:
        """The same of a state.json; run.read explains what it raises."""
        state = json_object(path.read_bytes())
        demand_fields(state, STATE)
        members = list(map(Member.from_json, state["members"]))
        for m in members:
            demand(m.role in ROLES and NAME.fullmatch(m.name), f"{m.name[:40]!r} is no member's name")
        demand_fields(state["logs"], set(LOGS))
        for name in ("heldout", "unseen", "seeds"):
            state[name] = list(map(task_of, state[name]))
        return members, state | dict(step=step)
    return run.read(f"step_{step}/state.json", read)


def archive_at(run: RunDir, metadata: dict) -> Archive:
    """What a run had seen at a checkpoint with this state.json. Raises UserError for shorter logs."""
    for name, size in run.sizes().items():
        demand(size >= metadata["logs"][name], f"{run.path / name} is shorter than step_{metadata['step']} "
               "says: restore it, or start anew under another --name")

    def logged(path: Path) -> list[Task]:
        """The log's valid tasks."""
        tasks = []
        for row in read_log(path, metadata["logs"][path.name]):
            demand_fields(row, {"reason"})
            if not row["reason"]:
                tasks.append(task_of(row))
        return tasks

    return archive_of(metadata["seeds"] + run.read("tasks.jsonl", logged))


def restore(run: RunDir, setup: Setup, adam: Adam, step: int) -> State:
    """The state of checkpoint step_`step`; adapters and optimiser are filled in place, the logs of a run that
    writes are cut back to it. Raises UserError for another base, a damaged checkpoint or shorter logs."""
    cfg, base_hash = setup.cfg, setup.base_hash
    members, metadata = members_at(run, step)
    steps = metadata["optimizer_steps"]
    fits = places(members) == places(founders(cfg)) and len(steps) == setup.adapters.n_members
    demand(fits, f"{run.path}/step_{step} is damaged (state.json: other members than the flags say): "
           f"remove all of step_{step} to go on from an earlier one")
    demand(metadata["base_files"] == base_hash, f"{run.path} was trained on another base than {cfg.base} is "
           "here: pass the --base that it was started with")
    archive = archive_at(run, metadata)

    adam.steps.copy_(torch.tensor(steps))
    for slot, name in slots(members).items():
        run.read(f"step_{step}/{name}", lambda path: load_peft(setup.adapters, slot, path, base_hash))
        if adam.steps[slot]:
            run.read(f"step_{step}/{OPTIMIZER}/{name}.safetensors",
                     lambda path: adam.load_state_dict(slot, load_file(path)))
    run.truncate_logs(metadata["logs"])
    return State(
        step=step,
        members=members,
        archive=archive,
        heldout=metadata["heldout"],
        unseen=metadata["unseen"],
        totals=metadata["totals"],
        adam=adam)


def places(members: list[Member]) -> list[tuple[str, int]]:
    """Role and slot of each member, in an order that does not depend on who is in them."""
    return sorted((m.role, m.slot) for m in members)
