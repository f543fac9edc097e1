"""What a run needs around the loop: its directory, its checkpoints, its beginning.

    out/NAME/config.json env.json metrics.jsonl tasks.jsonl matches.jsonl genealogy.jsonl
    out/NAME/step_N/state.json                    members, totals, and how long each log was
    out/NAME/step_N/S0/adapter_model.safetensors  one PEFT directory a member
    out/NAME/step_N/optimizer/S0.safetensors      its moments, once it has learned
    out/NAME/best                                 a link to the step_N whose students did best at a probe

A checkpoint is written under a temporary name and renamed: a kill at any moment leaves the previous one whole. Resuming
cuts the logs back to where they were then, so that no step stands there twice.
"""
import contextlib
import dataclasses
import datetime
import fcntl
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import selfplay
from common import demand, json_object, read_log
from ranks import DTYPES, Ranks, pick_dtype
from config import Config, config_of, flags_of, resolve_config
from evolve import ROLES, Member, member_order, spread
from lora import Adapters
from model import Base
from rl import Adam
from selfplay import RATINGS, ProposalRecord, Setup
from tasks import IDENTITY, TASK_TYPES, read_tasks
from tasks.archive import Archive
from tasks.base import Proposal, Task
from tasks.programs import Limits
from verifier import Verifier, open_sandbox
from weights import files_hash, load_base, load_peft, save_peft

ROOT = Path(__file__).resolve().parent
LOGS = ("metrics.jsonl", "tasks.jsonl", "matches.jsonl", "genealogy.jsonl")
MAX_LOGGED = 600                    # characters of a text in tasks.jsonl


class RunDir:
    """One run's directory. Process 0 alone writes; the others hold one with writes=False and only read."""

    def __init__(self, path: Path | str, writes: bool = True):
        self.path = Path(path)
        self.writes = writes
        if writes:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / "lock", "a")          # held while this object lives
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                demand(False, f"{path} is in use by a run that still goes: choose another --name")

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, ascending."""
        found = [path.name.removeprefix("step_") for path in self.path.glob("step_*")]
        return sorted(int(n) for n in found if n.isdigit())      # "12.part" is not complete

    def best(self) -> str:
        """Name of the checkpoint whose students did best at a probe; "" where none is marked."""
        link = self.path / "best"
        return os.readlink(link) if link.is_symlink() else ""

    def mark_best(self, step: int) -> None:
        """Let `best` point to a checkpoint. A kill in between leaves the old link."""
        if self.writes:
            part = self.path / "best.part"
            part.unlink(missing_ok=True)
            part.symlink_to(f"step_{step}", target_is_directory=True)
            part.replace(self.path / "best")

    def prune(self, keep: int) -> None:
        """Remove all checkpoints but the last `keep` and the best."""
        for old in self.steps()[:-keep]:
            if f"step_{old}" != self.best():
                shutil.rmtree(self.path / f"step_{old}")

    def config(self) -> dict:
        """The flags that the run was started with."""
        return json_object((self.path / "config.json").read_text())

    def rows(self, name: str) -> list[dict]:
        """A log, read back; [] without the file."""
        path = self.path / name
        return list(read_log(path)) if path.exists() else []

    def write_json(self, name: str, data: dict) -> None:
        """Write a small file whole: a kill in between leaves the old one."""
        if self.writes:
            part = self.path / f"{name}.part"
            part.write_text(json.dumps(data, indent=1) + "\n")
            part.replace(self.path / name)

    def append(self, name: str, rows: list[dict]) -> None:
        """Append rows to a log as JSON lines, in one go."""
        if self.writes and rows:
            with open(self.path / name, "a") as f:
                f.write("".join(json.dumps(row) + "\n" for row in rows))

    def sizes(self) -> dict[str, int]:
        """Length of each log in bytes; 0 where it is not there."""
        return {name: (self.path / name).stat().st_size if (self.path / name).exists() else 0 for name in LOGS}

    def cut_logs(self, sizes: dict[str, int]) -> None:
        """Forget what the logs say after a checkpoint."""
        for name in LOGS:
            if self.writes and (self.path / name).exists():
                os.truncate(self.path / name, sizes[name])


@dataclass
class State:
    """What changes during a run; `step` is the next to do."""
    step: int
    members: list[Member]
    archive: Archive
    heldout: list[Task]                 # of the types that the run plays
    unseen: list[Task]                  # held-out tasks of types that it does not play
    totals: dict[str, int]              # tokens generated and trained so far
    adam: Adam


class Stopwatch:
    """Seconds per phase of one step."""

    def __init__(self):
        self.last = time.perf_counter()
        self.seconds = {}

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under this phase."""
        now = time.perf_counter()
        self.seconds[phase] = round(now - self.last, 3)
        self.last = now


# --- the beginning ------------------------------------------------------------------------------------------

def choose_directory(cfg: Config) -> Path:
    """--resume's run, --name's, or the next free number."""
    if cfg.resume or cfg.name:
        return Path(cfg.resume) if cfg.resume else Path(cfg.out) / cfg.name
    stem = Path(cfg.base).parent.name if Path(cfg.base).name == "base" else Path(cfg.base).name
    number = 1
    while (Path(cfg.out) / f"{stem}-{number}").exists():
        number += 1
    return Path(cfg.out) / f"{stem}-{number}"


def prepare(cfg: Config, ranks: Ranks) -> tuple[Config, Base]:
    """Resolved configuration and loaded base."""
    name = cfg.base if Path(cfg.base).is_dir() or cfg.base != Config.base else str(ROOT / cfg.base)
    dtype = DTYPES[pick_dtype(cfg.dtype, ranks.device)]
    base = load_base(name, dtype, ranks.device, int8=cfg.dtype == "int8")
    cfg = resolve_config(cfg, base.prompt_format if cfg.prompt_format == "auto" else cfg.prompt_format)
    if cfg.prompt_format == "micro":
        torch.set_num_threads(1)        # on small matrices threads wait longer than they compute
    return cfg, dataclasses.replace(base, prompt_format=cfg.prompt_format)


def populate(cfg: Config, base: Base, ranks: Ranks, sandbox: Verifier | None, bars: bool = False) -> Setup:
    """What stays the same during a run, with the members' adapters in it."""
    n = 1 if cfg.single else cfg.pop
    adapters = Adapters.on(base.model, n, cfg.rank, cfg.alpha, cfg.lora_targets, ranks.device)
    limits = Limits.of_run(cfg, base.prompt_format, base.tokenizer)
    return Setup(cfg, base, adapters, ranks, sandbox, limits, files_hash(base.path), bars)


def founders(cfg: Config) -> list[Member]:
    """The members that a run begins with, role by role; with --single one adapter, in slot 0, has all roles."""
    members = []
    for number, role in enumerate(ROLES):
        rng = selfplay.make_rng(cfg.seed, -1, selfplay.INIT, number)
        factor = 1.0 if hasattr(cfg, f"lr_{role}") else cfg.lr_spread
        for i, scale in enumerate(spread(cfg.pop // 2, factor, rng)):
            slot = 0 if cfg.single else len(members)
            members.append(Member(f"{role[0].upper()}{i}", role, slot, RATINGS.new(), lr_scale=scale))
    return members


def init_state(setup: Setup) -> State:
    """The state before step 0: fresh members (or --init), the archive's seeds, the held-out tasks."""
    cfg, adapters = setup.cfg, setup.adapters
    given = sorted(members_dir(cfg.init).glob("*/adapter_config.json"), key=lambda path: member_order(path.parent.name))
    demand(not cfg.init or len(given) == adapters.n_members, f"--init {cfg.init} holds {len(given)} adapters for "
           f"{adapters.n_members} members")
    for slot in range(adapters.n_members):
        if cfg.init:
            load_peft(adapters, slot, given[slot].parent, setup.base_hash)
        else:
            seed = selfplay.make_rng(cfg.seed, 0, selfplay.INIT, slot).getrandbits(60)
            adapters.init_member(slot, torch.Generator().manual_seed(seed))
    heldout, unseen = held_out(setup)
    archive = archive_of(selfplay.make_tasks(setup, seeds(cfg), "seed"))
    return State(0, founders(cfg), archive, heldout, unseen, dict(generated=0, trained=0), Adam(adapters))


def held_out(setup: Setup) -> tuple[list[Task], list[Task]]:
    """Tasks of the types that the run plays, and of others a third as many: of --heldout, else of the file beside
    the base's weights, if any."""
    cfg = setup.cfg
    path = Path(cfg.heldout or setup.base.path / "heldout.jsonl")
    if not cfg.heldout and not path.exists():
        return [], []
    counts, chosen = {}, []
    for p in read_tasks(path):
        most = cfg.n_heldout if p.kind in cfg.task_types else math.ceil(cfg.n_heldout / 3)
        counts[p.kind] = counts.get(p.kind, 0) + 1
        if counts[p.kind] <= most:
            chosen.append(p)
    tasks = selfplay.make_tasks(setup, chosen, str(path))
    return [t for t in tasks if t.kind in cfg.task_types], [t for t in tasks if t.kind not in cfg.task_types]


def seeds(cfg: Config) -> list[Proposal]:
    """What the archive begins with: the identity program, and the own examples of types that have one."""
    own = [TASK_TYPES[kind].seed for kind in cfg.task_types if TASK_TYPES[kind].seed]
    has_code = any(kind.startswith("code") for kind in cfg.task_types)
    return [IDENTITY] * has_code + own or [IDENTITY]


def archive_of(tasks: list[Task]) -> Archive:
    """An archive to which these tasks came in this order, which gives each its id."""
    archive = Archive()
    for task in tasks:
        structure = TASK_TYPES[task.kind].structure(task.program)
        archive.add(dataclasses.replace(task, id=archive.n_added), structure)
    return archive


def environment(ranks: Ranks, sandbox: Verifier) -> dict:
    """Where a run ran."""
    commit = ""
    with contextlib.suppress(OSError):              # git is not installed
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        commit = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    gpu = ranks.device.type == "cuda"
    return dict(started=datetime.datetime.now().isoformat(timespec="seconds"), commit=commit,
                python=platform.python_version(), torch=torch.__version__, platform=platform.platform(),
                processes=ranks.world, device=torch.cuda.get_device_name() if gpu else f"CPU, {os.cpu_count()} cores",
                sandbox=sandbox.tier, sandbox_report=sandbox.report)


# --- tasks.jsonl --------------------------------------------------------------------------------------------

def task_rows(proposed: list[ProposalRecord], step: int) -> list[dict]:
    """A line a proposal, valid or not; texts are cut to MAX_LOGGED characters."""
    rows = []
    for p in proposed:
        row = dict(step=step, teacher=p.teacher.name, kind=p.kind, reason=p.reason, reward=p.reward)
        if p.task:
            answers = {name: [text[-MAX_LOGGED:] for text in texts] for name, texts in p.answers.items()}
            row |= asdict(p.task) | dict(solve_rate=p.solve_rate, attempts=p.attempts, answers=answers,
                                         statements=p.statements)
        else:
            row["text"] = p.text[:MAX_LOGGED]
        rows.append(row)
    return rows


def task_of(row: dict) -> Task:
    """The task of a valid proposal's line, or of state.json."""
    own = {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in Task.__dataclass_fields__}
    return Task(**own)


# --- checkpoints --------------------------------------------------------------------------------------------

def members_dir(path: str | Path) -> Path:
    """Returns the directory that holds one PEFT directory for each member. Of a run that is its best checkpoint, or
    its last one where no probe has marked a best. Any other directory, such as a checkpoint, is returned as it is."""
    run = RunDir(path, writes=False)
    if (run.path / "best").exists():
        return run.path / "best"
    steps = run.steps()
    return run.path / f"step_{steps[-1]}" if steps else run.path


def slots(members: list[Member]) -> dict[int, str]:
    """Slot -> the name under which its adapter is saved: the first of those that share it."""
    return {m.slot: m.name for m in reversed(members)}


def save(run: RunDir, state: State, setup: Setup) -> None:
    """Checkpoint of the state before `state.step`: PEFT directories, optimiser, metadata; never the base."""
    if not run.writes or state.step in run.steps():
        return
    part, final = run.path / f"step_{state.step}.part", run.path / f"step_{state.step}"
    shutil.rmtree(part, ignore_errors=True)
    (part / "optimizer").mkdir(parents=True)
    for slot, name in slots(state.members).items():
        save_peft(setup.adapters, slot, part / name, setup.cfg.base, setup.base_hash)
        if state.adam.steps[slot]:
            save_file(state.adam.state_dict(slot), part / "optimizer" / f"{name}.safetensors")
    metadata = dict(step=state.step, base_files=setup.base_hash, totals=state.totals, logs=run.sizes(),
                    optimizer_steps=state.adam.steps.tolist())
    for name in ("members", "heldout", "unseen"):
        metadata[name] = list(map(asdict, getattr(state, name)))
    metadata["seeds"] = list(map(asdict, state.archive.seeds))
    (part / "state.json").write_text(json.dumps(metadata))
    os.sync()                           # on the disk before the name says so
    part.rename(final)
    run.prune(setup.cfg.keep)


def read_state(run: RunDir, step: int) -> tuple[list[Member], Archive, dict]:
    """Members, archive and metadata of a checkpoint; what the logs say after it does not count."""
    metadata = json_object((run.path / f"step_{step}" / "state.json").read_text())
    tasks = [task_of(row) for row in run.rows("tasks.jsonl") if row["step"] < step and not row["reason"]]
    archive = archive_of(list(map(task_of, metadata["seeds"])) + tasks)
    return list(map(Member.from_json, metadata["members"])), archive, metadata


def restore(run: RunDir, setup: Setup, step: int) -> State:
    """The state of checkpoint step_`step`; adapters are filled in place, the logs cut back to it."""
    members, archive, metadata = read_state(run, step)
    demand(metadata["base_files"] == setup.base_hash, f"{run.path} was trained on another base: give its --base")
    adam = Adam(setup.adapters)
    adam.steps.copy_(torch.tensor(metadata["optimizer_steps"]))
    for slot, name in slots(members).items():
        load_peft(setup.adapters, slot, run.path / f"step_{step}" / name, setup.base_hash)
        if adam.steps[slot]:
            adam.load_state_dict(slot, load_file(run.path / f"step_{step}" / "optimizer" / f"{name}.safetensors"))
    run.cut_logs(metadata["logs"])
    heldout, unseen = list(map(task_of, metadata["heldout"])), list(map(task_of, metadata["unseen"]))
    return State(step, members, archive, heldout, unseen, metadata["totals"], adam)


@contextlib.contextmanager
def opened(path: str, device: str = "auto", **changes: object) -> Iterator[tuple[Setup, State]]:
    """A run at its last checkpoint, to be looked at; changes: of its flags."""
    ranks, run = Ranks.join(device), RunDir(path, writes=False)
    demand(run.steps(), f"{path}: no checkpoint; give the directory of a run, out/NAME")
    cfg = dataclasses.replace(config_of(run.config()), **changes)
    cfg, base = prepare(cfg, ranks)
    with open_sandbox(cfg.verifier, cfg.prompt_format) as sandbox:
        setup = populate(cfg, base, ranks, sandbox)
        yield setup, restore(run, setup, run.steps()[-1])
