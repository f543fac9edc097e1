"""How a run begins: its directory, its base, its population, and whether they fit into memory."""
import contextlib
import dataclasses
import glob
import os
import sys
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
from run.checkpoint import founders, restore
from run.directory import LOGS, RunDir
from run.memory import fitted, plan_table
from selfplay import Setup
from tasks import FRESH, read_given
from tasks.prompts import day_told
from tasks.validation import Limits
from verifier import PortableVerifier, Sandbox, open_sandbox
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
    endings = [path.name[len(stem) + 1:] for path in out.glob(f"{glob.escape(stem)}-*")]
    last = max((int(ending) for ending in endings if ending.isdigit()), default=0)
    return out / f"{stem}-{last if last and cfg.resume else last + 1}"


def flags_of_run(cfg: Config) -> dict:
    """Flags of the run to be resumed, but those that name it; {} without one. Raises UserError."""
    run = RunDir(choose_directory(cfg), writes=False)
    if not (run.path / "config.json").exists():
        return {}
    saved = vars(config_of_run(run.config(), run.path))
    return {name: saved[name] for name in saved if name not in ("name", "out", "resume", "plan")}


def steps_to_resume(cfg: Config, run: RunDir) -> list[int]:
    """Checkpoints to go on from, none = step 0; for process 0. Raises UserError for wrong flags."""
    path, steps = run.path, run.steps()
    demand(cfg.resume or not steps and not (path / "metrics.jsonl").exists(),
           f"{path} holds an earlier run: python train.py --resume {path} goes on with it, another --name "
           "begins anew")
    demand(steps or cfg.resume in ("", "auto") or (path / "config.json").exists(),
           f"--resume {cfg.resume}: no run in {path}")
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
    return min(n_adapters(cfg), max(2 * cfg.matches, len(ROLES) * selfplay.N_PROBED))


def base_name(cfg: Config) -> str:
    """--base, wherever the run is started from."""
    bundled = cfg.base == Config.base and not Path(cfg.base).is_dir()
    return str(ROOT / cfg.base) if bundled else cfg.base


def estimate_memory(cfg: Config, ranks: Ranks) -> tuple[Config, torch.dtype, str, bool]:
    """Resolved configuration, the dtype that the base computes in, the memory plan as a table, whether it
    fits: all without the base's weights. Raises UserError."""
    path = resolve(base_name(cfg), weights=False)
    shape = read_config(path)
    prompt_format = load_tokenizer(path)[1] if cfg.prompt_format == "auto" else cfg.prompt_format
    absent = cfg.device.startswith("cuda") and ranks.device.type == "cpu"       # --plan without the card
    if cfg.dtype == "auto":
        cfg = dataclasses.replace(cfg, dtype="bfloat16" if absent else pick_dtype("auto", ranks.device))
    cfg = resolve_config(cfg, prompt_format, "cuda" if absent else ranks.device.type)
    demand(cfg.max_new_tokens < shape.max_position_embeddings,
           f"--max-new-tokens {cfg.max_new_tokens} exceed the base's context, "
           f"{shape.max_position_embeddings} tokens, which a prompt shares: give fewer")
    dtype = DTYPES["bfloat16" if absent and cfg.dtype == "int8" else pick_dtype(cfg.dtype, ranks.device)]
    on_cpu = ranks.device.type == "cpu" and not absent
    n = n_adapters(cfg) if on_cpu else n_on_device(cfg)                 # a CPU has but one memory
    free = float("inf") if absent else free_memory(ranks.device)
    return cfg, dtype, *plan_table(cfg, shape, dtype, n, free)


def prepare(cfg: Config, ranks: Ranks) -> tuple[Config, Base]:
    """Resolved configuration and loaded base. Raises UserError, also where the memory plan does not fit."""
    cfg, dtype, table, fits = estimate_memory(cfg, ranks)
    if cfg.prompt_format == "micro" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)        # on small matrices threads wait longer than they compute
    demand(fits, f"not enough memory:\n{table}")
    base = load_base(base_name(cfg), dtype, ranks.device, int8=cfg.dtype == "int8")
    return cfg, dataclasses.replace(base, prompt_format=cfg.prompt_format, day=cfg.date)


def keep_date(cfg: Config, base: Base, of_run: str, ranks: Ranks) -> tuple[Config, Base]:
    """Both with the date that a chat template which writes one is told (Llama's do): --date, that of the run
    that is resumed, or today's. A run that went on tomorrow with tomorrow's date would be another run."""
    day = cfg.date or of_run
    if not day:
        day = ranks.broadcast(lambda: day_told(base.tokenizer))         # midnight divides no processes
    return dataclasses.replace(cfg, date=day), dataclasses.replace(base, day=day)


def show_plan(cfg: Config) -> int:
    """Print the memory plan, for --device cuda also without a card; the exit code. Raises UserError."""
    absent = cfg.device.startswith("cuda") and not torch.cuda.is_available()
    *_, table, fits = estimate_memory(cfg, Ranks.join("cpu" if absent else cfg.device))
    print(table)
    return 0 if fits else 2


def populate(cfg: Config, base: Base, ranks: Ranks,
             sandbox: Sandbox | PortableVerifier | None) -> tuple[Setup, Adam, str]:
    """What stays the same during a run, with the members' adapters in it and sizes that fit this machine,
    their optimiser, and the hash of the base's files."""
    task_types = tuple(cfg.task_types.split(","))
    if cfg.tasks:
        given = read_given(cfg.tasks, task_types)       # complains before anything slow
        enough = cfg.litter == 1 or cfg.tasks == FRESH or len(set(given)) > 1
        demand(enough, f"--litter {cfg.litter} compares children on the run's tasks, and --tasks {cfg.tasks} "
               "holds only one: give more tasks, or leave --litter out")
    targets = cfg.lora_targets.split(",")
    adapters = Adapters.on(base.model, n_adapters(cfg), cfg.rank, cfg.alpha, targets, ranks.device,
                           paged=cfg.matches > 0)
    adam = Adam(adapters, learning_rates(cfg, founders(cfg), 0))
    free = free_memory(ranks.device)
    cfg = fitted(cfg, base.model.cfg, base.model.embedding.dtype, n_on_device(cfg), free)
    cfg = dataclasses.replace(cfg, rollout_batch=ranks.all_reduce_min(cfg.rollout_batch))
    limits = Limits.of_run(cfg, base.prompt_format, base.tokenizer)
    setup = Setup(cfg, base, adapters, ranks, sandbox, limits, task_types)
    return setup, adam, ranks.broadcast(lambda: files_hash(base.path))


def hash_base(base: Base, ranks: Ranks) -> str:
    """SHA-256 of the base. Raises UserError, in all processes, where one has other weights."""
    ranks.check_equal(dict(base.model.named_parameters()), f"--base {base.path}")
    return ranks.broadcast(lambda: weights_hash(base.model))


@contextlib.contextmanager
def opened(path: str, device: str = "auto", **changes):
    """A run at its last checkpoint: (Setup, State); changes: of its flags. Raises UserError."""
    ranks, run = Ranks.join(device), RunDir(Path(path), writes=False)
    demand(run.steps(), f"{path}: no checkpoint; give the directory of a run, out/NAME")
    cfg = for_new_tasks(config_of_run(run.config(), run.path), **changes)
    cfg, base = prepare(cfg, ranks)
    with open_sandbox(cfg.verifier, cfg.prompt_format) as sandbox:
        setup, adam, base_hash = populate(cfg, base, ranks, sandbox)
        yield setup, restore(run, cfg, setup, adam, base_hash, run.steps()[-1])
