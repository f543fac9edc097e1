"""What a checkpoint holds: where it comes from at step 0, how it is written and read back.

    step_N/state.json
    step_N/MEMBER/adapter_model.safetensors ... one PEFT directory a member
    step_N/optimizer/MEMBER.safetensors     ... its moments, once it has learned
"""
import dataclasses
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import selfplay
from evolve import ROLES, Member, member_order, spread
from infra.errors import UserError, demand
from infra.files import demand_fields, json_object
from lora import Adapters
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
    changed = [name for name in new if name not in free and old.get(name) != new[name]]
    return [f"{name} ({old.get(name)!r} -> {new[name]!r})" for name in changed]


@dataclass
class State:
    """What a checkpoint holds: `step` is the next to do."""
    step: int
    members: list[Member]
    archive: Archive
    heldout: list[Task]                 # of the types that the run plays
    unseen: list[Task]                  # held-out tasks of types that it does not play
    totals: dict[str, int]              # tokens generated and trained so far


# --- the state before step 0 --------------------------------------------------------------------------------

def founders(cfg) -> list[Member]:
    """The members that a run begins with, role by role; with --single one adapter, in slot 0, has all roles.
    --teachers of --pop are teachers, the others students; a role that somebody adds has as many as these."""
    members, new_rating, types = [], RATINGS[cfg.rating]().new, cfg.task_types.split(",")
    for number, role in enumerate(ROLES):
        rng = selfplay.make_rng(cfg.seed, -1, selfplay.INIT, number)
        factor = 1.0 if hasattr(cfg, f"lr_{role}") else cfg.lr_spread       # a role with a rate of its own
        size = cfg.teachers if role == "teacher" else cfg.pop - cfg.teachers
        for i, scale in enumerate(spread(size, factor, rng)):
            slot = 0 if cfg.single else len(members)
            niche = (types[i % len(types)],) if cfg.niches else ()
            members.append(Member(f"{role[0].upper()}{i}", role, slot, new_rating(), niche=niche,
                                  lr_scale=scale))
    return members


def init_state(cfg, setup: Setup, base_hash: str = "") -> State:
    """The state before step 0: fresh members (or --init), the archive's seeds, the held-out tasks."""
    init_adapters(cfg, setup.adapters, base_hash)
    archive = seeded_archive(setup)
    tasks = held_out(cfg, setup)
    heldout = [task for task in tasks if task.kind in setup.task_types]
    unseen = [task for task in tasks if task.kind not in setup.task_types]
    return State(0, founders(cfg), archive, heldout, unseen, dict(generated=0, trained=0))


def held_out(cfg, setup: Setup) -> list[Task]:
    """The tasks of --heldout, else of the file beside the base's weights, if any: the first of each type. Of
    CRUXEval the validation split, so that a claim can be made on the other one after the run."""
    path = Path(cfg.heldout or setup.base.path / HELD_OUT)
    if cfg.heldout == CRUXEVAL and not path.exists():
        path = cruxeval.FILE
        demand(path.exists(), f"--heldout {CRUXEVAL}: {path} is not there; `python -m eval.code --self-test "
               "--bench cruxeval-o` fetches it, or give the path of the file")
    demand(path.exists() or not cfg.heldout, f"--heldout {cfg.heldout}: no such file")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    rows = cruxeval.rows_of(text, "validation")
    if rows:
        tasks = []
        for kind in cruxeval.KINDS.values():
            run = functools.partial(selfplay.run_jobs, setup)
            tasks += cruxeval.tasks_of(rows, kind, cfg.dedupe, run).values()
        return first_of_types(tasks, cfg.n_heldout, setup.task_types)
    given = first_of_types(read_tasks(path) if path.exists() else [], cfg.n_heldout, setup.task_types)
    return selfplay.make_tasks(setup, given, cfg.heldout or "the base's held-out tasks")


def seeded_archive(setup: Setup) -> Archive:
    """The archive that a run begins with. Raises UserError for a seed that is no valid task."""
    cfg, archive = setup.cfg, Archive(list(setup.task_types))
    for task in selfplay.make_tasks(setup, seeds(cfg, setup.task_types), cfg.seed_tasks or "seed"):
        archive.add(dataclasses.replace(task, id=archive.n_added),
                    TASK_TYPES[task.kind].structure(task.program))
    return archive


def init_adapters(cfg, adapters: Adapters, base_hash: str) -> None:
    """Fresh adapters, or those of --init. Raises UserError where these are more or fewer than members."""
    if not cfg.init:
        for slot in range(adapters.n_members):
            seed = selfplay.make_rng(cfg.seed, 0, selfplay.INIT, slot).getrandbits(60)
            adapters.init_member(slot, torch.Generator().manual_seed(seed))
        return
    given = [path.parent for path in Path(cfg.init).glob("*/adapter_config.json")]
    given.sort(key=lambda path: member_order(path.name))
    if len(given) != adapters.n_members:
        raise UserError(f"--init {cfg.init} holds {len(given)} adapters for {adapters.n_members} members")
    for slot, path in enumerate(given):
        load_peft(adapters, slot, path, base_hash)


def seeds(cfg, task_types: tuple[str, ...]) -> list[Proposal]:
    """What the archive begins with: --seed-tasks or the identity program, and the own examples of types that
    have no task there. Raises UserError for a file without tasks."""
    proposals = read_tasks(cfg.seed_tasks) if cfg.seed_tasks else [IDENTITY]
    if not proposals:
        raise UserError(f"--seed-tasks {cfg.seed_tasks} holds no tasks: give at least one, or leave it out")
    given = {p.kind for p in proposals}
    plays_code, has_code = (any(kind.startswith("code") for kind in kinds) for kinds in (task_types, given))
    if plays_code and not has_code:
        proposals.append(IDENTITY)
    return proposals + [TASK_TYPES[kind].seed for kind in task_types
                        if TASK_TYPES[kind].seed and kind not in given]


def first_of_types(proposals: list[Proposal] | list[Task], n: int, played: tuple[str, ...]) -> list:
    """The first n tasks of each type that is played and n / 3, rounded up, of others, type by type."""
    by_kind = {}
    for p in proposals:
        by_kind.setdefault(p.kind, []).append(p)
    return [p for kind, own in by_kind.items() for p in own[:n if kind in played else -(-n // 3)]]


# --- tasks.jsonl --------------------------------------------------------------------------------------------

def task_rows(proposed: list[ProposalRecord], step: int) -> list[dict]:
    """A line a proposal, valid or not; texts are cut to MAX_LOGGED characters."""
    rows = []
    for p in proposed:
        row = dict(step=step, teacher=p.teacher.name, kind=p.kind, reason=p.reason, reward=p.reward)
        if p.task:
            t = p.task
            answers = {name: [text[-MAX_LOGGED:] for text in texts] for name, texts in p.answers.items()}
            row |= dict(id=t.id, program=t.program, inputs=t.inputs, outputs=t.outputs, message=t.message,
                        key=t.key, parents=t.parents, solve_rate=p.solve_rate, attempts=p.attempts,
                        answers=answers, statements=p.statements)
        else:
            row["text"] = p.text[:MAX_LOGGED]
        rows.append(row)
    return rows


def task_of(row: dict) -> Task:
    """The task of a valid proposal's line, or of state.json. Raises UserError for an unknown type."""
    names = {f.name for f in dataclasses.fields(Task)}
    demand_fields(row, names)
    demand(row["kind"] in TASK_TYPES, f"{str(row['kind'])[:40]!r} is no task type")
    own = {}
    for name in names:
        own[name] = tuple(row[name]) if isinstance(row[name], list) else row[name]
    return Task(**own)


# --- written and read back ----------------------------------------------------------------------------------

def save(run: RunDir, state: State, setup: Setup, adam: Adam, base_hash: str) -> None:
    """Checkpoint of the state before `state.step`: PEFT directories, optimiser, metadata; never the base."""
    n_learned, base = adam.steps.tolist(), setup.cfg.base

    def fill(directory: Path) -> None:
        """The tensors; run.save adds the metadata and makes the whole appear at once."""
        (directory / OPTIMIZER).mkdir()
        for slot, name in slots(state.members).items():
            save_peft(setup.adapters, slot, directory / name, base, base_hash)
            if n_learned[slot]:
                tensors = {key: x.contiguous() for key, x in adam.state_dict(slot).items()}
                save_file(tensors, directory / OPTIMIZER / f"{name}.safetensors")

    kept = dict(members=state.members, heldout=state.heldout, unseen=state.unseen, seeds=state.archive.seeds)
    rows = {name: list(map(dataclasses.asdict, own)) for name, own in kept.items()}
    run.save(state.step, dict(base_files=base_hash, totals=state.totals, optimizer_steps=n_learned, **rows),
             fill, setup.cfg.keep)


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
        members = [Member.from_json(m) for m in state["members"]]
        metadata = {name: [task_of(row) for row in state[name]] for name in ("heldout", "unseen", "seeds")}
        metadata |= dict(step=step, base_files=state["base_files"], totals=dict(state["totals"]),
                         optimizer_steps=list(map(int, state["optimizer_steps"])),
                         logs={name: int(state["logs"][name]) for name in LOGS})
        for m in members:
            demand(m.role in ROLES and NAME.fullmatch(m.name), f"{m.name[:40]!r} is no member's name")
        return members, metadata
    return run.read(f"step_{step}/state.json", read)


def archive_at(run: RunDir, metadata: dict, task_types) -> Archive:
    """What a run had seen at a checkpoint with this state.json. Raises UserError for shorter logs."""
    for name, size in run.sizes().items():
        demand(size >= metadata["logs"][name], f"{run.path / name} is shorter than step_{metadata['step']} "
               "says: restore it, or start anew under another --name")

    def logged(path: Path) -> list[Task]:
        """The log's valid tasks."""
        tasks = []
        for line in path.read_bytes()[:metadata["logs"][path.name]].splitlines():
            row = json_object(line)
            demand_fields(row, {"reason"})
            if not row["reason"]:
                tasks.append(task_of(row))
        return tasks

    archive = Archive(list(task_types))
    for task in metadata["seeds"] + run.read("tasks.jsonl", logged):
        archive.add(task, TASK_TYPES[task.kind].structure(task.program))
    return archive


def restore(run: RunDir, cfg, setup: Setup, adam: Adam, base_hash: str, step: int) -> State:
    """The state of checkpoint step_`step`; adapters and optimiser are filled in place, the logs of a run that
    writes are cut back to it. Raises UserError for another base, a damaged checkpoint or shorter logs."""
    members, metadata = members_at(run, step)
    places, steps = sorted((m.role, m.slot) for m in founders(cfg)), metadata["optimizer_steps"]
    if sorted((m.role, m.slot) for m in members) != places or len(steps) != setup.adapters.n_members:
        raise UserError(f"{run.path}/step_{step} is damaged (state.json: other members than the flags say): "
                         f"remove all of step_{step} to go on from an earlier one")
    demand(metadata["base_files"] == base_hash, f"{run.path} was trained on another base than {cfg.base} is "
           "here: pass the --base that it was started with")
    archive = archive_at(run, metadata, setup.task_types)

    adam.steps.copy_(torch.tensor(steps))
    for slot, name in slots(members).items():
        run.read(f"step_{step}/{name}", lambda path: load_peft(setup.adapters, slot, path, base_hash))
        if adam.steps[slot]:
            run.read(f"step_{step}/{OPTIMIZER}/{name}.safetensors",
                     lambda path: adam.load_state_dict(slot, load_file(path)))
    run.truncate_logs(metadata["logs"])
    own = {name: metadata[name] for name in ("heldout", "unseen", "totals")}
    return State(step, members, archive, **own)
