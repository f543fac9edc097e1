"""What a run needs around the loop: its directory, its checkpoints, its beginning.

    out/NAME/config.json env.json metrics.jsonl tasks.jsonl matches.jsonl genealogy.jsonl
    out/NAME/step_N/state.json                    members, totals, and how long each log was
    out/NAME/step_N/S0/adapter_model.safetensors  one PEFT directory a member
    out/NAME/step_N/optimizer/S0.safetensors      its moments, once it has learned
    out/NAME/best                                 a link to the step_N whose students did best at a probe

A checkpoint is written under a temporary name and renamed: a kill at any moment leaves the previous one
whole. Resuming cuts the logs back to where they were then, so that no step stands there twice.
"""
import datetime
import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:                 # Windows has another lock
    import msvcrt
    fcntl = None

import torch
from safetensors.torch import load_file, save_file

from common import UserError, json_object, read_log, readable
from config import FREE, Config, flags_of, resolve_config, spelled
from evolve import ROLES, Member, member_order, spread
from lora import TARGETS, Adapters, name_of
from model import Base, Model, ModelConfig
from ranks import DTYPES, Ranks, pick_dtype
from rl import CHUNK, Adam
from selfplay import INIT, RATINGS, ProposalRecord, Setup, make_rng, make_tasks
from tasks import FRESH, IDENTITY, TASK_TYPES, read_given, read_tasks
from tasks.archive import Archive
from tasks.base import Proposal, Task
from tasks.programs import Limits
from verifier import Verifier
from weights import files_hash, load_base, load_peft, load_tokenizer, read_config, resolve, save_peft

ROOT = Path(__file__).resolve().parent
LOGS = ("metrics.jsonl", "tasks.jsonl", "matches.jsonl", "genealogy.jsonl")
MAX_LOGGED = 600                    # characters of a text in tasks.jsonl
# Linux's file with a container's limit -> what memory.stat beside it calls memory that is not given back
CGROUPS = {"memory.max": "anon", "memory/memory.limit_in_bytes": "total_rss"}       # versions 2 and 1


# --- a run's directory --------------------------------------------------------------------------------------

def lock(file: TextIO) -> None:
    """Holds a file until it is closed. Raises OSError if another run holds it."""
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


class RunDir:
    """Holds one run's directory. Process 0 alone writes; the others have one with writes=False and only
    read."""

    def __init__(self, path: Path | str, writes: bool = True):
        self.path = Path(path)
        self.writes = writes
        if not writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / "lock", "a")          # held while this object lives
        try:
            lock(self._lock)
        except OSError:
            raise UserError(f"{path} is in use by a run that still goes: choose another --name") from None

    def __str__(self) -> str:
        """Returns the path as a shell reads it."""
        return shlex.quote(str(self.path))

    def release(self) -> None:
        """Lets another run write here; a traceback may keep this object alive."""
        if self.writes:
            self._lock.close()

    def steps(self) -> list[int]:
        """Returns the numbers of the complete checkpoints, ascending."""
        numbers = []
        for path in self.path.glob("step_*"):
            ending = path.name.removeprefix("step_")        # "12.part" is not complete
            if ending.isdigit():
                numbers.append(int(ending))
        return sorted(numbers)

    def best(self) -> str:
        """Returns the name of the checkpoint whose students did best at a probe; "" if none is marked."""
        link = self.path / "best"
        return os.readlink(link) if link.is_symlink() else ""

    def mark_best(self, step: int) -> None:
        """Lets `best` point to a checkpoint. A kill in between leaves the old link."""
        part = self.path / "best.part"
        part.unlink(missing_ok=True)
        with suppress(OSError):                             # Windows lets not everybody make links
            part.symlink_to(f"step_{step}", target_is_directory=True)
            part.replace(self.path / "best")

    def prune(self, keep: int) -> None:
        """Removes all checkpoints but the last `keep` and the best."""
        for step in self.steps()[:-keep]:
            if f"step_{step}" != self.best():
                shutil.rmtree(self.path / f"step_{step}")

    def config(self) -> dict:
        """Returns the flags that the run was started with. Raises UserError for a damaged config.json, and
        for one of another version: a flag that has come or gone may mean another computation."""
        if not (self.path / "config.json").exists():
            raise UserError(f"{self.path} holds no run: give the directory of one, such as out/NAME")
        flags = self.read_json("config.json")
        odd = sorted(flags.keys() ^ Config.__dataclass_fields__.keys())
        if odd:
            raise UserError(f"{self.path} was made by another version, whose flags differ in "
                            f"{', '.join(map(spelled, odd))}: use the commit that its env.json names")
        return flags

    def rows(self, name: str) -> list[dict]:
        """Returns the lines of a log; none without the file. Raises UserError for a damaged one."""
        path = self.path / name
        return list(read_log(path)) if path.exists() else []

    def read_json(self, name: str) -> dict:
        """Returns what a small file holds. Raises UserError for a damaged one."""
        path = self.path / name
        with readable(f"{path} is damaged: restore it"):
            return json_object(path.read_bytes())

    def write_json(self, name: str, data: dict) -> None:
        """Writes a small file whole: a kill in between leaves the old one."""
        part = self.path / f"{name}.part"
        part.write_text(json.dumps(data, indent=1) + "\n")
        part.replace(self.path / name)

    def note(self, made: dict) -> None:
        """Writes into made.json what the results here depend on. Raises UserError if a value is not that of
        earlier results."""
        before = self.read_json("made.json") if (self.path / "made.json").exists() else {}
        changed = [name for name in made if before.get(name, made[name]) != made[name]]
        if changed:
            raise UserError(f"{self.path} holds what was made otherwise ({', '.join(changed)}): give another "
                            "--out")
        self.write_json("made.json", before | made)

    def append(self, **logs: list[dict]) -> None:
        """Appends rows to the logs of these names as JSON lines. What is not finite becomes null, JSON's only
        word for it."""
        for name, rows in logs.items():
            finite = json.loads(json.dumps(rows), parse_constant=lambda name: None)
            lines = [json.dumps(row) + "\n" for row in finite]
            with open(self.path / f"{name}.jsonl", "a") as file:
                file.write("".join(lines))

    def sizes(self) -> dict[str, int]:
        """Returns the length of each log in bytes; 0 if it is not there."""
        sizes = {}
        for name in LOGS:
            path = self.path / name
            sizes[name] = path.stat().st_size if path.exists() else 0
        return sizes

    def cut_logs(self, sizes: dict[str, int]) -> None:
        """Forgets what the logs say beyond these lengths in bytes; a log that is not named is emptied."""
        for name in LOGS:
            if self.writes and (self.path / name).exists():
                os.truncate(self.path / name, sizes.get(name, 0))


def members_dir(path: str | Path) -> Path:
    """Returns the directory that holds one PEFT directory for each member. For a run that is its best
    checkpoint, or its last one if no probe has marked a best. Any other directory, such as a checkpoint, is
    returned as it is."""
    run = RunDir(path, writes=False)
    if (run.path / "best").exists():
        return run.path / "best"
    steps = run.steps()
    return run.path / f"step_{steps[-1]}" if steps else run.path


def peft_directories(given: str) -> list[Path]:
    """Returns the adapters in a run or in a checkpoint, or the PEFT directory itself. Raises UserError for
    none."""
    path = Path(given).expanduser()
    if (path / "adapter_config.json").exists():
        return [path]
    found = [file.parent for file in members_dir(path).glob("*/adapter_config.json")]
    if not found:
        raise UserError(f"{given} holds no adapter: give a run (out/NAME), a checkpoint or a PEFT directory")
    return sorted(found, key=lambda path: member_order(path.name))


# --- the operating system -----------------------------------------------------------------------------------

class Stopwatch:
    """Measures the seconds of each phase of one step."""

    def __init__(self):
        self.last = time.perf_counter()
        self.seconds = {}

    def lap(self, phase: str) -> None:
        """Books the time since the last lap under this phase."""
        now = time.perf_counter()
        self.seconds[phase] = round(now - self.last, 3)
        self.last = now


@contextmanager
def stop_flag() -> Iterator[list[str]]:
    """Yields a list to which SIGINT and SIGTERM add their names, for the loop to look at when a step ends. A
    second SIGINT leaves at once: the last checkpoint stands. In a thread the list stays empty."""
    stopped = []

    def on_signal(number: int, frame: object) -> None:
        if stopped and number == signal.SIGINT:
            os._exit(130)
        stopped.append(signal.Signals(number).name)
        print("\nends after this step (Ctrl-C once more: at once)", file=sys.stderr)

    before = {}
    with suppress(ValueError):                          # a thread may not take over signals
        for number in signal.SIGINT, signal.SIGTERM:
            before[number] = signal.signal(number, on_signal)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_memory(device: torch.device, root: Path = Path("/")) -> float:
    """Returns the free gigabytes of a card, else a process's share of the machine's or of its container's,
    whichever is smaller; infinite where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / 2 ** 30
    free = math.inf
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        [kilobytes] = re.findall(r"MemAvailable: *(\d+)", meminfo.read_text())
        free = int(kilobytes) / 2 ** 20
    for limit, name in CGROUPS.items():
        path = root / "sys/fs/cgroup" / limit
        text = path.read_text().strip() if path.exists() else "max"
        if text != "max":
            stat = path.with_name("memory.stat").read_text()
            [used] = re.findall(rf"^{name} (\d+)", stat, re.M)
            free = min(free, (int(text) - int(used)) / 2 ** 30)
    return free / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def memory_plan(cfg: Config, shape: ModelConfig, dtype: torch.dtype, free: float) -> tuple[str, bool]:
    """Returns what a run needs as a table, and whether it fits into `free` gigabytes. An estimate: rows have
    twice --max-new-tokens, and 512 tokens of references; autograd keeps some 14 numbers of width C for each
    token and layer, and three float32 numbers for each logit."""
    with torch.device("meta"):
        model = Model(shape)
    size = dtype.itemsize
    weights = sum(p.numel() for p in model.parameters()) * size
    factors = 0                         # numbers in one member
    for path, layer in model.linears().items():
        if cfg.dtype == "int8":         # a byte for each number, and one layer at a time in full
            weights -= layer.in_features * layer.out_features * (size - 1)
        if name_of(path) in TARGETS:
            factors += cfg.rank * (layer.in_features + layer.out_features)
    n = 1 if cfg.single else cfg.pop // 2 * len(ROLES)
    adapters = n * factors * 4 * 4
    length = min(shape.max_position_embeddings, 2 * cfg.max_new_tokens + 512 * (cfg.n_few_shot > 0))
    keys = 2 * shape.num_key_value_heads * shape.head_dim
    cache = cfg.rollout_batch * length * shape.num_hidden_layers * keys * size
    tokens = cfg.tokens_per_microbatch
    width = 10 * shape.hidden_size + 4 * shape.intermediate_size
    update = tokens * shape.num_hidden_layers * width * size + min(CHUNK, tokens * shape.vocab_size) * 12
    peak = weights + adapters + max(cache, update)
    table = ""
    for n_bytes, use in (
            (weights, f"weights of the base, {cfg.dtype}"),
            (adapters, f"{n} adapters of rank {cfg.rank} with gradients and Adam"),
            (cache, f"cache of {cfg.rollout_batch} rows (--rollout-batch) of {length} tokens"),
            (update, f"one micro-batch of {tokens} tokens (--tokens-per-microbatch)"),
            (peak, f"at the worst moment; free: {free:.2f} GB")):
        table += f"{n_bytes / 2 ** 30:9.2f} GB  {use}\n"
    fits = peak / 2 ** 30 <= free
    if not fits:
        table += ("It does not fit: lower these two flags, --max-new-tokens, --rank or --pop, or give "
                  "--dtype int8")
    return table.rstrip(), fits


# --- the beginning ------------------------------------------------------------------------------------------

def choose_directory(cfg: Config) -> str:
    """Returns --resume's run, --name's, or the next free number."""
    out = Path(cfg.out)
    if cfg.resume:
        return cfg.resume
    if cfg.name:
        return str(out / cfg.name)
    base = Path(cfg.base)
    stem = base.parent.name if base.name == "base" else base.name
    number = 1
    while (out / f"{stem}-{number}").exists():
        number += 1
    return str(out / f"{stem}-{number}")


def plan(cfg: Config, ranks: Ranks) -> tuple[Config, torch.dtype, str, bool]:
    """Returns the resolved configuration, what it computes in, its memory plan and whether that fits, without
    the base's weights."""
    path = resolve(cfg.base, weights=False)
    shape = read_config(path)
    prompt_format = cfg.prompt_format
    if prompt_format == "auto":
        *_, prompt_format = load_tokenizer(path)
    name = pick_dtype(cfg.dtype, ranks.device)
    cfg = resolve_config(cfg, prompt_format, name)
    context = shape.max_position_embeddings
    if cfg.max_new_tokens >= context:
        raise UserError(f"--max-new-tokens {cfg.max_new_tokens} exceed the base's context, {context} "
                        "tokens, which a prompt shares: give fewer")
    dtype = DTYPES[name]
    return cfg, dtype, *memory_plan(cfg, shape, dtype, free_memory(ranks.device))


def prepare(cfg: Config, ranks: Ranks) -> tuple[Config, Base]:
    """Returns the resolved configuration and the loaded base. Raises UserError, also if memory is too
    small."""
    cfg, dtype, table, fits = plan(cfg, ranks)
    if not fits:
        raise UserError(f"not enough memory:\n{table}")
    if cfg.prompt_format == "micro" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)        # on small matrices threads wait longer than they compute
    base = load_base(cfg.base, dtype, ranks.device, int8=cfg.dtype == "int8")
    return cfg, replace(base, prompt_format=cfg.prompt_format)


def open_run(path: str, cfg: Config, writes: bool) -> tuple[RunDir, list[int]]:
    """Returns the run's directory, in which nobody else writes from now on, and the checkpoints in it. Raises
    UserError for an earlier run that is not resumed, or was started with other flags."""
    run = RunDir(path, False)           # who is refused below holds no lock
    steps = run.steps()
    is_new = not steps and not run.rows("metrics.jsonl")
    if not (cfg.resume or is_new):
        raise UserError(f"{run.path} holds an earlier run: python train.py --resume {run} goes on with it, "
                        "another --name begins anew")
    if cfg.resume:
        before, changed = run.config(), []
        for name, value in sorted(flags_of(cfg).items()):
            if name not in FREE and before[name] != value:
                changed.append(f"{spelled(name)} ({before[name]} -> {value})")
        if changed:
            raise UserError(f"{run.path} was started with other flags: {', '.join(changed)}")
    run = RunDir(path, writes)
    if not steps:
        run.cut_logs({})                # killed before its first checkpoint: the steps come again
    return run, steps


def populate(cfg: Config, base: Base, ranks: Ranks, sandbox: Verifier | None,
             shows_bars: bool = False) -> Setup:
    """Returns what stays the same during a run, with the members' adapters in it."""
    tasks_hash = ""
    if cfg.tasks and cfg.tasks != FRESH:
        read_given(cfg.tasks, cfg.task_types)       # complains before anything slow
        tasks_hash = hashlib.sha256(Path(cfg.tasks).read_bytes()).hexdigest()
    n = 1 if cfg.single else cfg.pop // 2 * len(ROLES)
    return Setup(
        cfg=cfg,
        base=base,
        adapters=Adapters.on(base.model, n, cfg.rank, cfg.alpha, TARGETS, ranks.device),
        ranks=ranks,
        sandbox=sandbox,
        limits=Limits.of_run(cfg, base.prompt_format, base.tokenizer),
        base_hash=files_hash(base.path),
        tasks_hash=tasks_hash,
        shows_bars=shows_bars)


@dataclass
class State:
    """Holds all that changes during a run; `step` is the next to do."""
    step: int
    members: list[Member]
    archive: Archive
    heldout: list[Task]                 # of the types that the run plays
    unseen: list[Task]                  # held-out tasks of types that it does not play
    totals: dict[str, int]              # tokens generated and trained so far
    adam: Adam


def founders(cfg: Config) -> list[Member]:
    """Returns the members that a run begins with, role by role. With --single one adapter, in slot 0, has all
    roles."""
    members = []
    for number, role in enumerate(ROLES):
        rng = make_rng(cfg.seed, -1, INIT, number)
        has_own_rate = hasattr(cfg, f"lr_{role}")
        factor = 1.0 if has_own_rate else cfg.lr_spread
        for i, scale in enumerate(spread(cfg.pop // 2, factor, rng)):
            name = f"{role[0].upper()}{i}"
            slot = 0 if cfg.single else len(members)
            members.append(Member(name, role, slot, RATINGS.new(), lr_scale=scale))
    return members


def init_adapters(setup: Setup) -> None:
    """Fills the adapters with those of --init, or draws them. Raises UserError for another number of them."""
    cfg, adapters = setup.cfg, setup.adapters
    if not cfg.init:
        for slot in range(adapters.n_members):
            own_seed = make_rng(cfg.seed, 0, INIT, slot).getrandbits(60)
            adapters.init_member(slot, torch.Generator().manual_seed(own_seed))
        return
    found = peft_directories(cfg.init)
    if len(found) != adapters.n_members:
        raise UserError(f"--init {cfg.init} holds {len(found)} adapters for {adapters.n_members} members: "
                        "give a directory with one PEFT folder for each")
    for slot, path in enumerate(found):
        load_peft(adapters, slot, path, setup.base_hash)


def init_state(setup: Setup) -> State:
    """Returns the state before step 0: the members, the archive's seeds, the held-out tasks. Raises UserError
    for a task that the user gave and that is not valid."""
    cfg = setup.cfg
    if setup.tasks_hash:                # looked at once: the steps run them again
        make_tasks(setup, read_given(cfg.tasks, cfg.task_types), f"--tasks {cfg.tasks}")
    init_adapters(setup)
    heldout, unseen = [], []
    for task in held_out(setup):
        if task.kind in cfg.task_types:
            heldout.append(task)
        else:
            unseen.append(task)
    first = make_tasks(setup, seeds(cfg.task_types), "seed")
    return State(
        step=0,
        members=founders(cfg),
        archive=archive_of(first),
        heldout=heldout,
        unseen=unseen,
        totals=dict(generated=0, trained=0),
        adam=Adam(setup.adapters))


def held_out(setup: Setup) -> list[Task]:
    """Returns the tasks of --heldout, else of the file beside the base's weights, if any: the first
    --n-heldout of each type that is played, and a third as many of others."""
    cfg = setup.cfg
    path = Path(cfg.heldout or setup.base.path / "heldout.jsonl")
    if not cfg.heldout and not path.exists():
        return []
    by_kind = {}
    for p in read_tasks(path):
        by_kind.setdefault(p.kind, []).append(p)
    chosen = []
    for kind, own in by_kind.items():
        most = cfg.n_heldout
        if kind not in cfg.task_types:
            most = math.ceil(most / 3)
        chosen += own[:most]
    return make_tasks(setup, chosen, str(path))


def seeds(task_types: tuple[str, ...]) -> list[Proposal]:
    """Returns what the archive begins with: the identity program, and the own examples of types that have
    one."""
    own = []
    for kind in task_types:
        if TASK_TYPES[kind].seed:
            own.append(TASK_TYPES[kind].seed)
    if not own or any(kind.startswith("code") for kind in task_types):
        return [IDENTITY, *own]
    return own


def archive_of(tasks: list[Task]) -> Archive:
    """Returns an archive to which these tasks came in this order, which gives each its id."""
    archive = Archive()
    for task in tasks:
        structure = TASK_TYPES[task.kind].structure(task.program)
        archive.add(replace(task, id=archive.n_added), structure)
    return archive


def begin(run: RunDir, setup: Setup, step: int) -> None:
    """Writes down what runs where, and says so."""
    cfg, ranks, sandbox = setup.cfg, setup.ranks, setup.sandbox
    device = f"CPU, {os.cpu_count()} cores"
    if ranks.device.type == "cuda":
        device = torch.cuda.get_device_name()
    commit = ""
    with suppress(OSError):                         # git is not installed
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        commit = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    run.write_json("config.json", flags_of(cfg))
    run.write_json("env.json", dict(
        started=datetime.datetime.now().isoformat(timespec="seconds"),
        commit=commit,
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        processes=ranks.world,
        device=device,
        threads=torch.get_num_threads(),
        sandbox=sandbox.tier,
        sandbox_report=sandbox.report))
    print(f"{run.path}: {cfg.pop} members on {cfg.base}, steps {step} to {cfg.steps}, {ranks.world} "
          f"process(es) on {ranks.device}, sandbox: {sandbox.tier}")


# --- tasks.jsonl --------------------------------------------------------------------------------------------

def task_rows(proposed: list[ProposalRecord], step: int) -> list[dict]:
    """Returns a line for each proposal, valid or not; texts are cut to MAX_LOGGED characters."""
    rows = []
    for p in proposed:
        row = dict(step=step, teacher=p.teacher.name, kind=p.kind, reason=p.reason, reward=p.reward)
        if p.task:
            answers = {}
            for name, texts in p.answers.items():
                answers[name] = [text[-MAX_LOGGED:] for text in texts]      # what it answers stands last
            row |= asdict(p.task)
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
    """Returns the task of a valid proposal's line, or of state.json."""
    own = {}
    for name in Task.__dataclass_fields__:
        value = row[name]
        own[name] = tuple(value) if isinstance(value, list) else value
    return Task(**own)


# --- checkpoints --------------------------------------------------------------------------------------------

def slots(members: list[Member]) -> dict[int, str]:
    """Returns slot -> the name under which its adapter is saved: the first of those that share it."""
    return {m.slot: m.name for m in reversed(members)}


def save(run: RunDir, state: State, setup: Setup, is_best: bool = False) -> None:
    """Writes a checkpoint of the state before `state.step`, unless it is there, and lets `best` point to it
    if its students are the best so far. Removes what --keep leaves out."""
    if run.writes:
        if state.step not in run.steps():
            write_checkpoint(run, state, setup)
        if is_best:
            run.mark_best(state.step)
        run.prune(setup.cfg.keep)


def write_checkpoint(run: RunDir, state: State, setup: Setup) -> None:
    """Writes PEFT directories, optimiser and metadata; never the base."""
    final = run.path / f"step_{state.step}"
    part = run.path / f"step_{state.step}.part"
    shutil.rmtree(part, ignore_errors=True)
    (part / "optimizer").mkdir(parents=True)
    for slot, name in slots(state.members).items():
        save_peft(setup.adapters, slot, part / name, setup.cfg.base, setup.base_hash)
        if state.adam.steps[slot]:
            save_file(state.adam.state_dict(slot), part / "optimizer" / f"{name}.safetensors")
    metadata = dict(
        step=state.step,
        base_files=setup.base_hash,
        tasks_file=setup.tasks_hash,
        totals=state.totals,
        logs=run.sizes(),
        optimizer_steps=state.adam.steps.tolist(),
        members=state.members,
        heldout=state.heldout,
        unseen=state.unseen,
        seeds=state.archive.seeds)
    (part / "state.json").write_text(json.dumps(metadata, default=asdict))
    # On the disk before the name says so. Windows syncs only what is open for writing.
    for file in [*run.path.glob("*.jsonl"), *part.rglob("*.*")]:
        with open(file, "r+b") as f:
            os.fsync(f.fileno())
    shutil.rmtree(final, ignore_errors=True)
    part.rename(final)


def restore(run: RunDir, setup: Setup, step: int) -> State:
    """Returns the state of checkpoint step_`step`; adapters are filled in place, the logs cut back to it.
    Raises UserError for another base, another --tasks file, or a damaged checkpoint."""
    place = run.path / f"step_{step}"
    metadata = run.read_json(f"step_{step}/state.json")
    anew = "restore it, or start anew under another --name"
    if metadata["base_files"] != setup.base_hash:
        raise UserError(f"{run.path} was trained on another base: {anew}")
    if metadata["tasks_file"] != setup.tasks_hash:
        raise UserError(f"--tasks {setup.cfg.tasks} is another file than {run.path} began with: {anew}")
    for name, size in run.sizes().items():
        if size < metadata["logs"][name]:
            raise UserError(f"{run.path / name} is shorter than step_{step} says: {anew}")
    tasks = list(map(task_of, metadata["seeds"]))
    for row in run.rows("tasks.jsonl"):
        if row["step"] < step and not row["reason"]:
            tasks.append(task_of(row))
    members = list(map(Member.from_json, metadata["members"]))
    adam = Adam(setup.adapters)
    adam.steps.copy_(torch.tensor(metadata["optimizer_steps"]))
    for slot, name in slots(members).items():
        load_peft(setup.adapters, slot, place / name, setup.base_hash)
        if adam.steps[slot]:
            path = place / "optimizer" / f"{name}.safetensors"
            with readable(f"{path} is damaged: restore it"):
                moments = load_file(path)
            adam.load_state_dict(slot, moments)
    run.cut_logs(metadata["logs"])
    return State(
        step=step,
        members=members,
        archive=archive_of(tasks),
        heldout=list(map(task_of, metadata["heldout"])),
        unseen=list(map(task_of, metadata["unseen"])),
        totals=metadata["totals"],
        adam=adam)
