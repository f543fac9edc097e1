"""How a run begins: its directory, its base, its population, and whether they fit into memory."""
import contextlib
import dataclasses
import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import selfplay
from config import Config, config_of_run, for_new_tasks, resolve_config
from evolve import ROLES, learning_rates
from infra.distributed import Ranks
from infra.errors import demand
from infra.gpu import free_memory
from infra.precision import DTYPES, pick_dtype
from lora import Adapters
from model import Base
from rl import Adam
from run.checkpoint import State, founders, init_state, restore
from run.directory import LOGS, RunDir
from run.memory import fitted, plan_table
from selfplay import Setup
from tasks import FRESH, read_given
from tasks.rendering import day_told
from tasks.validation import Limits
from verifier import Verifier, open_sandbox
from weights import files_hash, load_base, load_tokenizer, read_config, resolve, weights_hash

ROOT = Path(__file__).resolve().parent.parent


def choose_directory(cfg: Config) -> Path:
    """--resume's run, --name's, or the next free number; for process 0. Raises UserError."""
    out, base = Path(cfg.out), Path(cfg.base)
    if cfg.resume and cfg.resume != "auto":
        demand(Path(cfg.resume).is_dir(), f"--resume {cfg.resume}: no such directory; runs are under {out}/")
        return Path(cfg.resume)
    if cfg.name:
        return out / cfg.name
    stem = base.parent.name if base.name == "base" else base.name
    last = 0
    for path in out.glob(f"{glob.escape(stem)}-*"):
        ending = path.name[len(stem) + 1:]
        if ending.isdigit():
            last = max(last, int(ending))
    if not last or not cfg.resume:              # --resume alone goes on with the latest
        last += 1
    return out / f"{stem}-{last}"


def flags_of_run(cfg: Config) -> dict:
    """Flags of the run to be resumed, but those that name it; {} without one. Raises UserError."""
    run = RunDir(choose_directory(cfg), writes=False)
    if not (run.path / "config.json").exists():
        return {}
    flags = vars(config_of_run(run.config(), run.path)).copy()
    for name in ("name", "out", "resume", "plan"):
        del flags[name]
    return flags


def steps_to_resume(cfg: Config, run: RunDir) -> list[int]:
    """Checkpoints to go on from, none = step 0; for process 0. Raises UserError for wrong flags."""
    path, steps = run.path, run.steps()
    is_new = not steps and not (path / "metrics.jsonl").exists()
    demand(cfg.resume or is_new, f"{path} holds an earlier run: python train.py --resume {path} goes on with "
           "it, another --name begins anew")
    may_be_new = cfg.resume in ("", "auto")
    is_run = steps or (path / "config.json").exists()
    demand(may_be_new or is_run, f"--resume {cfg.resume}: no run in {path}")
    return steps


def open_run(cfg: Config, ranks: Ranks) -> tuple[RunDir, bool]:
    """The run's directory and whether to resume it. Raises UserError in all processes."""
    path = Path(ranks.broadcast(lambda: str(choose_directory(cfg))))
    run = ranks.together(lambda: RunDir(path, ranks.rank == 0))     # from here on nobody else writes there
    steps = ranks.broadcast(lambda: steps_to_resume(cfg, run))
    if not steps:
        if cfg.resume and run.writes:
            print(f"note: nothing to resume in {path}: starting at step 0", file=sys.stderr)
        run.truncate_logs(dict.fromkeys(LOGS, 0))    # killed before its first checkpoint: steps come again
    return run, bool(steps)


def n_adapters(cfg: Config) -> int:
    """How many adapters the population has."""
    return len({m.slot for m in founders(cfg)})


def n_on_device(cfg: Config) -> int:
    """How many of them the device holds at a time: all, or with --matches those that play or are probed."""
    if not cfg.matches:
        return n_adapters(cfg)
    n_playing = 2 * cfg.matches
    n_probed = len(ROLES) * selfplay.N_PROBED
    return min(n_adapters(cfg), max(n_playing, n_probed))


def base_name(cfg: Config) -> str:
    """--base, wherever the run is started from."""
    bundled = cfg.base == Config.base and not Path(cfg.base).is_dir()
    return str(ROOT / cfg.base) if bundled else cfg.base


@dataclasses.dataclass
class Estimate:
    """What is known of a run before the base's weights are read."""
    cfg: Config                 # resolved
    dtype: torch.dtype          # that the base computes in
    table: str                  # the memory plan
    fits: bool


def estimate_memory(cfg: Config, ranks: Ranks) -> Estimate:
    """The resolved configuration and its memory plan, without the base's weights. Raises UserError."""
    path = resolve(base_name(cfg), weights=False)
    shape = read_config(path)
    prompt_format = cfg.prompt_format
    if prompt_format == "auto":
        prompt_format = load_tokenizer(path)[1]
    absent = cfg.device.startswith("cuda") and ranks.device.type == "cpu"       # --plan without the card
    device = "cuda" if absent else ranks.device.type
    number = pick_dtype(cfg.dtype, ranks.device)
    if absent and cfg.dtype not in DTYPES:
        number = "bfloat16"
    if cfg.dtype == "auto":
        cfg = dataclasses.replace(cfg, dtype=number)
    cfg = resolve_config(cfg, prompt_format, device)
    demand(cfg.max_new_tokens < shape.max_position_embeddings,
           f"--max-new-tokens {cfg.max_new_tokens} exceed the base's context, "
           f"{shape.max_position_embeddings} tokens, which a prompt shares: give fewer")
    # a CPU has but one memory: nothing is paged out of it
    n = n_adapters(cfg) if device == "cpu" else n_on_device(cfg)
    free = float("inf") if absent else free_memory(ranks.device)
    dtype = DTYPES[number]
    table, fits = plan_table(cfg, shape, dtype, n, free)
    return Estimate(cfg, dtype, table, fits)


def prepare(cfg: Config, ranks: Ranks) -> tuple[Config, Base]:
    """Resolved configuration and loaded base. Raises UserError, also where the memory plan does not fit."""
    estimate = estimate_memory(cfg, ranks)
    cfg = estimate.cfg
    if cfg.prompt_format == "micro" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)        # on small matrices threads wait longer than they compute
    demand(estimate.fits, f"not enough memory:\n{estimate.table}")
    base = load_base(base_name(cfg), estimate.dtype, ranks.device, int8=cfg.dtype == "int8")
    return cfg, dataclasses.replace(base, prompt_format=cfg.prompt_format, day=cfg.date)


def keep_date(cfg: Config, base: Base, of_run: str, ranks: Ranks) -> tuple[Config, Base]:
    """Both with the date that a chat template which writes one is told (Llama's do): --date, that of the run
    that is resumed, or today's. A run that went on tomorrow with tomorrow's date would be another run."""
    day = cfg.date or of_run
    if not day:
        day = ranks.broadcast(lambda: day_told(base.tokenizer))         # midnight divides no processes
    cfg = dataclasses.replace(cfg, date=day)
    base = dataclasses.replace(base, day=day)
    return cfg, base


def show_plan(cfg: Config) -> int:
    """Print the memory plan, for --device cuda also without a card; the exit code. Raises UserError."""
    absent = cfg.device.startswith("cuda") and not torch.cuda.is_available()
    ranks = Ranks.join("cpu" if absent else cfg.device)
    estimate = estimate_memory(cfg, ranks)
    print(estimate.table)
    if not estimate.fits:
        return 2
    return 0


def populate(cfg: Config, base: Base, ranks: Ranks,
             sandbox: Verifier | None, shows_bars: bool = False) -> tuple[Setup, Adam]:
    """What stays the same during a run, with the members' adapters in it and sizes that fit this machine, and
    their optimiser."""
    if cfg.tasks:
        given = read_given(cfg.tasks, cfg.task_types)       # complains before anything slow
        compared = cfg.litter > 1 and cfg.tasks != FRESH
        demand(not compared or len(set(given)) > 1, f"--litter {cfg.litter} compares children on the run's "
               f"tasks, and --tasks {cfg.tasks} holds only one: give more tasks, or leave --litter out")
    # with --matches members wait outside of the device's memory
    adapters = Adapters.on(
        base.model,
        n_adapters(cfg),
        cfg.rank,
        cfg.alpha,
        cfg.lora_targets,
        ranks.device,
        offloaded=cfg.matches > 0)
    adam = Adam(adapters, learning_rates(cfg, founders(cfg), 0))
    free = free_memory(ranks.device)
    cfg = fitted(cfg, base.model.cfg, base.model.embedding.dtype, n_on_device(cfg), free)
    n_rows = ranks.all_reduce_min(cfg.rollout_batch)    # the same in all processes
    cfg = dataclasses.replace(cfg, rollout_batch=n_rows)
    limits = Limits.of_run(cfg, base.prompt_format, base.tokenizer)
    base_hash = ranks.broadcast(lambda: files_hash(base.path))
    setup = Setup(
        cfg=cfg,
        base=base,
        adapters=adapters,
        ranks=ranks,
        sandbox=sandbox,
        limits=limits,
        base_hash=base_hash,
        shows_bars=shows_bars)
    return setup, adam


def hash_base(base: Base, ranks: Ranks) -> str:
    """SHA-256 of the base. Raises UserError, in all processes, where one has other weights."""
    ranks.check_equal(dict(base.model.named_parameters()), f"--base {base.path}")
    return ranks.broadcast(lambda: weights_hash(base.model))


@contextlib.contextmanager
def opened(path: str, device: str = "auto",
           **changes: object) -> Iterator[tuple[Setup, State]]:
    """A run at its last checkpoint: (Setup, State); changes: of its flags. Raises UserError."""
    ranks, run = Ranks.join(device), RunDir(Path(path), writes=False)
    demand(run.steps(), f"{path}: no checkpoint; give the directory of a run, out/NAME")
    cfg = for_new_tasks(config_of_run(run.config(), run.path), **changes)
    cfg, base = prepare(cfg, ranks)
    with open_sandbox(cfg.verifier, cfg.prompt_format) as sandbox:
        setup, adam = populate(cfg, base, ranks, sandbox)
        last = run.steps()[-1]
        yield setup, restore(run, setup, adam, last)
