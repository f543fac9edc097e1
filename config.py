"""Holds every switch of a run: default, meaning, legal values, presets; and reads the command line."""
import argparse
import difflib
from collections.abc import Collection
from dataclasses import Field, dataclass, field, fields, replace

from common import UserError
from operators import OPERATORS
from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from tasks import FRESH, TASK_TYPES
from tasks.prompts import FORMATS

# Flags with several values, which the command line and config.json write with commas between them
Names = tuple[str, ...]
Numbers = tuple[float, ...]
MATCHING = ("pfsp", "uniform")
EVOLVE = ("mixed", "mutation", "crossover", *OPERATORS, "none")
ALARMS = ("collapse", "gaming", "forgetting", "flat", "format")
MANY = 10**9
AT_LEAST_1 = (1, MANY)                # what a count may be

# What --algo sets where the command line says nothing. Sources: rl.py.
ALGORITHMS = {
    "reinforce++": dict(baseline="group", normalize_advantages="member", token_weight="member"),
    "rloo": dict(baseline="leave-one-out", normalize_advantages="off", token_weight="member"),
    "grpo": dict(baseline="standardized", normalize_advantages="off", token_weight="row"),
    "dr_grpo": dict(baseline="group", normalize_advantages="off", token_weight="constant"),
}


def flag(
    default: object,                # None = it depends on other flags, see `usual`
    help: str,
    choices: Collection[str] = (),  # legal names
    within: tuple = (0, MANY),      # least and largest number
) -> Field:
    """Returns a field of Config with all that is known of its flag."""
    return field(default=default, metadata=dict(help=help, choices=choices, within=within))


@dataclass(frozen=True)
class Config:
    """Holds every switch of a run. `python train.py --help` shows them, by the groups below."""
    # run
    base: str = flag("micro/base", "Hugging Face directory or hub id of the frozen base")
    prompt_format: str = flag("auto", "wording of tasks; auto: as the base says", ("auto", *FORMATS))
    name: str = flag("", "the run's directory under --out; default: the base's name and a free number")
    out: str = flag("out", "where runs are kept")
    init: str = flag("", "adapters to start from: a run, a checkpoint, or a folder of PEFT folders")
    resume: str = flag("", "directory of a run to go on with, by its flags")
    seed: int = flag(0, "every draw is keyed by (seed, step, phase, member, index)")
    steps: int = flag(None, "steps of the run", within=AT_LEAST_1)
    save_every: int = flag(10, "steps between checkpoints", within=AT_LEAST_1)
    keep: int = flag(2, "checkpoints kept", within=AT_LEAST_1)
    plan: bool = flag(False, "print the memory that the run would need, and leave")
    show: int = flag(0, "tasks printed each step, with their attempts")
    # population
    pop: int = flag(None, "members, half of them teachers; with --single 2", within=(2, 10_000))
    single: bool = flag(False, "one adapter in both roles (Absolute Zero)")
    rank: int = flag(None, "LoRA rank R", within=(1, 4096))
    alpha: float = flag(None, "LoRA alpha; the update is scaled by alpha / R")
    # 1 match
    matching: str = flag("pfsp", "how a teacher draws its student", MATCHING)
    # 2 propose
    task_types: Names = flag(None, "task types in turn, of " + ",".join(TASK_TYPES), TASK_TYPES)
    n_prompts: int = flag(3, "prompts a teacher answers each step", within=AT_LEAST_1)
    proposals_per_prompt: int = flag(8, "proposals from one prompt (the baseline's group)", within=AT_LEAST_1)
    n_few_shot: int = flag(None, "earlier tasks shown in a prompt (K); micro shows none")
    tasks: str = flag("", "no teacher writes: tasks of a file (JSON lines), or micro: fresh random programs")
    admit_echo: bool = flag(False, "admit tasks that a copy of what their prompt shows solves")
    dedupe: str = flag(
        None, "which repeats of old tasks are refused (structural)", ("structural", "exact", "off"))
    # 3 solve
    samples_per_task: int = flag(
        None, "attempts at each task (n); compare runs of equal n", within=AT_LEAST_1)
    temperature: float = flag(1.0, "of proposals and attempts", within=(0.01, 100))
    max_new_tokens: int = flag(None, "tokens of a proposal or an answer, at most", within=AT_LEAST_1)
    # 4 reward and update
    teacher_reward: str = flag("difficulty", "of a valid proposal, by its solve rate", TEACHER_REWARDS)
    student_reward: str = flag("graded", "correct 1, wrong -0.5, malformed -1; or 1, 0, 0", STUDENT_REWARDS)
    algo: str = flag("reinforce++", "sets those of the next three flags that are not given", ALGORITHMS)
    baseline: str = flag(
        None,
        "what is subtracted from a reward: the mean of its group, or of the group's other rows; standardized "
        "also divides by the group's standard deviation",
        ("group", "standardized", "leave-one-out", "none"))
    normalize_advantages: str = flag(
        None, "whiten by member and role (kind: + task type)", ("member", "kind", "off"))
    token_weight: str = flag(
        None, "mean over all tokens, mean of rows' means, or Dr. GRPO's", ("member", "row", "constant"))
    kl_coef: float = flag(None, "weight of the KL to the base, without which long runs collapse")
    kl_every: int = flag(4, "every n-th step has a KL, which then counts n times", within=AT_LEAST_1)
    entropy_coef: float = flag(0.0, "weight of the entropy bonus")
    lr: float = flag(None, "Adam's learning rate of students, and of --single", within=(0, 1))
    lr_teacher: float = flag(None, "the same for teachers; 0 freezes them", within=(0, 1))
    lr_decay: Numbers = flag(
        None,
        "HOLD,END,FLOOR: rates hold for HOLD steps of the run, then fall linearly; after END steps they "
        "are FLOOR times as much; 0,1,1: constant")
    lr_spread: float = flag(1.0, "founding students' rates: log-uniform over this factor", within=AT_LEAST_1)
    lr_mutate: float = flag(1.0, "a child's rate is its fitter parent's, times or by this", within=(1, 100))
    # 5 evolve
    evolve: str = flag("mixed", "operators of replacement, or none; crossovers want --pop 6", EVOLVE)
    evolve_every: int = flag(None, "steps between replacements", within=AT_LEAST_1)
    replace_frac: float = flag(0.25, "share of each role that is replaced, at least one", within=(0, 0.999))
    grace: int = flag(None, "steps before a child can be replaced (as --evolve-every)")
    # probes
    probe_every: int = flag(None, "steps between probes of held-out tasks; 0 = never")
    heldout: str = flag("", "held-out file; default: the base's, else first valid tasks, which also train")
    n_heldout: int = flag(120, "held-out tasks asked of each played type; of other types a third")
    halt_on: Names = flag((), "alarms that end the run, of " + ",".join(ALARMS), ALARMS)
    # machine
    device: str = flag("auto", "auto (cuda or cpu), cpu, cuda or cuda:1")
    dtype: str = flag(
        "auto", "of the base; auto: bfloat16 where a card has it", ("auto", "float32", "bfloat16", "int8"))
    rollout_batch: int = flag(None, "rows that decode together", within=AT_LEAST_1)
    tokens_per_microbatch: int = flag(None, "padded tokens of a micro-batch of the update", within=AT_LEAST_1)

    def __post_init__(self):
        """Raises UserError for a value that its flag cannot have; None is filled in by `resolve_config`."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None:
                check_value(f, value)


# Where each group of --help begins: its first field, and its title.
GROUPS = {"base": "run", "pop": "population", "matching": "1 match", "task_types": "2 propose",
          "samples_per_task": "3 solve", "teacher_reward": "4 reward and update", "evolve": "5 evolve",
          "probe_every": "probes", "device": "machine"}
# What a prompt format wants where the command line says nothing. LOG.md has the measurements behind the micro
# values. Of the others only the rate was measured, on a base of 0.5B and for students (docs/findings.md).
PRESETS = {}
PRESETS["micro"] = dict(
    pop=8,
    steps=30,
    rank=8,
    alpha=32.0,
    rollout_batch=512,
    tokens_per_microbatch=1024,
    task_types=("code_o",),
    n_few_shot=0,
    samples_per_task=4,
    max_new_tokens=80,
    kl_coef=0.1,
    lr=2e-3,
    lr_teacher=3e-3,
    lr_decay=(12, 25, 0.5),
    evolve_every=8,
    probe_every=10)
PRESETS["chat"] = dict(
    pop=8,
    steps=200,
    rank=32,
    alpha=64.0,
    rollout_batch=128,
    tokens_per_microbatch=2048,
    task_types=("code_o", "code_i", "code_f"),
    n_few_shot=6,
    samples_per_task=8,
    max_new_tokens=512,
    kl_coef=0.0,
    lr=3e-5,
    lr_teacher=3e-5,
    lr_decay=(0, 1, 1),
    evolve_every=10,
    probe_every=20)
PRESETS["base"] = PRESETS["chat"] | dict(max_new_tokens=1024)
PRESETS["direct"] = PRESETS["chat"] | dict(max_new_tokens=192)
# Flags that may change when a run is resumed, because they do not change what it computes. (The sizes of
# batches change how sums are rounded.)
FREE = ("base", "name", "out", "resume", "steps", "device", "plan", "show", "save_every", "keep",
        "halt_on", "rollout_batch", "tokens_per_microbatch")
# A flag, when it is on, and the flags that do nothing then and are refused beside it.
SWITCHED_OFF = {
    "--single": (
        lambda cfg: cfg.single,
        ("pop", "matching", "lr_teacher", "lr_spread", "lr_mutate", "evolve", "evolve_every", "replace_frac",
         "grace")),
    "--evolve none": (
        lambda cfg: cfg.evolve == "none",
        ("lr_mutate", "evolve_every", "replace_frac", "grace")),
    "--tasks": (
        lambda cfg: cfg.tasks,
        ("lr_teacher", "teacher_reward", "n_few_shot", "dedupe", "admit_echo")),
}


# --- a Config as text, and back -----------------------------------------------------------------------------

def spelled(name: str) -> str:
    """Returns a field's name as the command line writes it."""
    return "--" + name.replace("_", "-")


def parse_value(f: Field, text: str) -> object:
    """Returns a flag's value from the text that the command line or config.json has. Raises UserError."""
    try:
        if f.type is Numbers:
            return tuple(map(float, text.split(",")))
        if f.type is Names:
            return tuple(text.split(",")) if text else ()
        return f.type(text)
    except ValueError:
        said = "give a number, a whole one where things are counted"
        raise UserError(f"{spelled(f.name)} {text}: {said}") from None


def text_of(value: object) -> str:
    """Returns a flag's value as the command line writes it."""
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(str(part).removesuffix(".0") for part in value)


def flags_of(cfg: Config) -> dict[str, object]:
    """Returns what config.json holds: numbers as they are, tuples as the command line writes them."""
    flags = {}
    for name, value in vars(cfg).items():
        flags[name] = text_of(value) if isinstance(value, tuple) else value
    return flags


def config_of(flags: dict[str, object]) -> Config:
    """Returns the Config of some flags, from the command line or `flags_of`."""
    values = dict(flags)
    for f in fields(Config):
        if isinstance(flags.get(f.name), str):
            values[f.name] = parse_value(f, flags[f.name])
    return Config(**values)


def default_of(f: Field) -> str:
    """Returns a default in words, by prompt format or --algo if these differ ("micro: 8; chat, base: 32")."""
    presets = ALGORITHMS if f.name in ALGORITHMS["grpo"] else PRESETS
    names_of = {}                       # default in words -> the presets that have it
    for name, preset in presets.items():
        value = text_of(preset.get(f.name, f.default))
        names_of.setdefault(value, []).append(name)
    if len(names_of) == 1:
        [value] = names_of
        return "" if value in ("None", "False") else value
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in names_of.items())


def parse_args(description: str | None, argv: list[str] | None = None) -> dict[str, str]:
    """Returns the flags that the command line gives. An unknown one exits with code 2 and the nearest known
    one."""
    parser = argparse.ArgumentParser(
        description=description,
        usage="train.py [--flag value ...]   (--help lists every switch)",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    for f in fields(Config):
        if f.name in GROUPS:
            group = parser.add_argument_group(GROUPS[f.name])
        help = f.metadata["help"]
        if default_of(f):
            help += f" ({default_of(f)})"
        how = dict(help=help.replace("%", "%%"))            # to argparse a % begins a placeholder
        if f.type is bool:
            how["action"] = "store_true"
        elif f.type is str and f.metadata["choices"]:
            how["metavar"] = f"{{{','.join(f.metadata['choices'])}}}"
        group.add_argument(spelled(f.name), **how)
    given, unknown = parser.parse_known_args(argv)
    for word in unknown:
        name = word.partition("=")[0].replace("_", "-")
        known = [spelled(f.name) for f in fields(Config)]
        [nearest] = difflib.get_close_matches(name, known, n=1, cutoff=0)
        parser.error(f"unknown argument {word}: did you mean {nearest}?")
    return vars(given)


# --- what is not given, and what does not fit ---------------------------------------------------------------

def usual(cfg: Config, prompt_format: str) -> dict[str, object]:
    """Returns what each flag is if nobody gives it: its default, or what prompt format, --algo and others
    imply."""
    values = vars(Config()) | PRESETS[prompt_format] | ALGORITHMS[cfg.algo]
    for name in values:
        assert hasattr(cfg, name), f"a preset of config.py sets {name!r}, which is no flag"
    if cfg.single:
        values["pop"] = 2                           # one adapter, counted in each role
    values["grace"] = cfg.evolve_every or values["evolve_every"]
    values["dedupe"] = "off" if cfg.tasks else "structural"         # given tasks come again
    return values


def resolve_config(cfg: Config, prompt_format: str, dtype: str = "auto") -> Config:
    """Returns a Config without a None: `usual` fills it in, prompt_format and dtype stand for "auto". Raises
    UserError for what cannot be."""
    usually = usual(cfg, prompt_format)
    filled = {name: usually[name] for name, value in vars(cfg).items() if value is None}
    if cfg.dtype == "auto":
        filled["dtype"] = dtype
    cfg = replace(cfg, prompt_format=prompt_format, **filled)
    for other, (is_on, names) in SWITCHED_OFF.items():
        for name in names:
            value = getattr(cfg, name)
            if is_on(cfg) and value not in (usually[name], "none"):
                raise UserError(f"{spelled(name)} {value} does nothing beside {other}: leave one of the two "
                                "out")
    check_together(cfg)
    return cfg


def check_value(f: Field, value: object) -> None:
    """Raises UserError with the fix if a flag cannot have this value."""
    given = f"{spelled(f.name)} {text_of(value)}"
    choices = f.metadata["choices"]
    if choices:
        for name in value if isinstance(value, tuple) else [value]:
            if name not in choices:
                raise UserError(f"{given}: {name!r} is none of {', '.join(choices)}")
    elif f.type in (int, float):
        low, high = f.metadata["within"]
        fits = isinstance(value, (int, float)) and low <= value <= high         # which nan is not
        if not fits:
            raise UserError(f"{given}: give a number from {low} to {high}")


def check_together(cfg: Config) -> None:
    """Raises UserError with the fix if flags do not go together, each of which may have its value."""
    if cfg.pop % 2:
        raise UserError(f"--pop {cfg.pop}: give an even number, half of them are teachers")
    if not cfg.task_types:
        raise UserError("--task-types: give at least one")
    decay = cfg.lr_decay
    if not (len(decay) == 3 and 0 <= decay[0] < decay[1] and 0 <= decay[2] <= 1):
        raise UserError(f"--lr-decay {text_of(decay)}: give HOLD,END,FLOOR, HOLD below END, FLOOR at most 1")
    if cfg.tasks == FRESH and not set(cfg.task_types) <= {"code_o", "code_i"}:
        raise UserError("--tasks micro draws code_o and code_i: give these as --task-types, or a file of "
                        "tasks")
    if cfg.prompt_format != "micro" and cfg.n_few_shot < 1:
        raise UserError(f"--n-few-shot {cfg.n_few_shot}: {cfg.prompt_format} prompts show tasks, give at "
                        "least 1")
    for kind in cfg.task_types:
        TASK_TYPES[kind].ready(cfg)
