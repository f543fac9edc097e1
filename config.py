"""Every switch of a run: default, meaning, legal values; what a prompt format presets; the command line.

A switch is read three times: by argparse from the command line, from config.json where a run is resumed, and
by whoever writes Config(...) in Python. All three meet in `resolve_config`, which checks them.
"""
import argparse
import datetime
import difflib
from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path

from infra.errors import UserError, demand, explained
from lora import TARGETS
from operators import OPERATORS, n_children
from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from tasks import TASK_TYPES
from tasks.prompts import FORMATS, template
from trueskill_lite import RATINGS

# Flags with several values, which the command line and config.json write with commas between them
Names = tuple[str, ...]
Numbers = tuple[float, ...]
# Legal values whose meaning stands in modules that import this one: evolve.py, rl.py, measure/.
MATCHING = ("pfsp", "uniform", "hard", "round-robin", "all")
EVOLVE = ("mixed", "mutation", "crossover", *OPERATORS, "none")
NORMALIZE = ("member", "kind", "off")
ALARMS = ("collapse", "gaming", "forgetting", "escape", "flat", "format")

# What --algo sets where the command line says nothing; most begin with what another one sets. Sources: rl.py.
ALGORITHMS: dict[str, dict] = {}
ALGORITHMS["reinforce++"] = dict(
    baseline="group",
    normalize_advantages="member",
    token_weight="member",
    loss="clip",
    clip=(0.2, 0.2))
ALGORITHMS["rloo"] = ALGORITHMS["reinforce++"] | dict(baseline="leave-one-out", normalize_advantages="off")
ALGORITHMS["dr_grpo"] = ALGORITHMS["reinforce++"] | dict(normalize_advantages="off", token_weight="constant")
ALGORITHMS["grpo"] = ALGORITHMS["dr_grpo"] | dict(baseline="standardized", token_weight="row")
ALGORITHMS["gspo"] = ALGORITHMS["grpo"] | dict(loss="sequence", clip=(0.0003, 0.0004))
ALGORITHMS["dapo"] = ALGORITHMS["grpo"] | dict(token_weight="member", clip=(0.2, 0.28))
ALGORITHMS["cispo"] = ALGORITHMS["dapo"] | dict(loss="cispo", clip=(1.0, 4.0))
# Ranges: beyond them runs would not end, or numbers overflow.
FROM_0 = (0, 10**9)
FROM_1 = (1, 10**9)
SHARE = (0, 1)
LARGE = 10**6


def flag(
    default: object,                # None = a preset's
    help: str,
    choices: Collection[str] = (),  # legal names; of Names each must be one of them
    within: tuple = (),             # least and largest number
    form: str = "",                 # of Numbers: what each is called, "LOW,HIGH"
) -> Field:
    """A field of Config, and all that is known of its flag."""
    if form:
        help = f"{form}: {help}"
    return field(default=default, metadata=dict(help=help, choices=choices, within=within, form=form))


@dataclass(frozen=True)
class Config:
    """Every switch of a run. `python train.py --help` shows it, by the groups below."""
    # run
    base: str = flag("micro/base", "Hugging Face directory or hub id of the frozen base")
    prompt_format: str = flag("auto", "how tasks are put; auto: as the base says", ("auto", *FORMATS))
    name: str = flag("", "the run's directory under --out; default: the base's name and a free number")
    out: str = flag("out", "where runs are kept")
    init: str = flag("", "directory of PEFT adapters, one folder a member in slot order, to start from")
    seed: int = flag(0, "every draw is keyed by (seed, step, phase, member, index)", within=(0, 10**18))
    date: str = flag("", "the day that a chat template is told, YYYY-MM-DD; default: the run's first")
    steps: int = flag(None, "steps of the run", within=FROM_1)
    save_every: int = flag(10, "steps between checkpoints", within=FROM_1)
    keep: int = flag(2, "checkpoints kept", within=FROM_1)
    resume: str = flag("", "a run's directory, or auto: that of --name, else the base's last run")
    show: int = flag(0, "tasks printed each step, with their attempts", within=FROM_0)
    # population
    pop: int = flag(None, "members, teachers and students; with --single 2", within=(2, 10_000))
    teachers: int = flag(0, "so many of --pop are teachers; 0 = half", within=FROM_0)
    single: bool = flag(False, "one adapter in both roles, compute per adapter matched (Absolute Zero)")
    niches: bool = flag(False, "deal --task-types to members in turn; a child has those of both parents")
    rank: int = flag(None, "LoRA rank R", within=(1, 4096))
    alpha: float = flag(None, "LoRA alpha; the update is scaled by alpha / R", within=(1e-9, LARGE))
    lora_targets: Names = flag(TARGETS, "linear layers that carry adapters", TARGETS)
    # 1 match
    matching: str = flag("pfsp", "how a teacher draws its student", MATCHING)
    matches: int = flag(0, "matches a step, of teachers drawn for it; 0 = every teacher's", within=FROM_0)
    # 2 propose
    task_types: Names = flag(None, "task types in turn, of " + ",".join(TASK_TYPES), TASK_TYPES)
    n_prompts: int = flag(3, "prompts a teacher answers each step", within=FROM_1)
    proposals_per_prompt: int = flag(8, "proposals from one prompt (the baseline's group)", within=FROM_1)
    n_few_shot: int = flag(None, "earlier tasks shown in a prompt (K)", within=(0, 1000))
    seed_tasks: str = flag("", "JSON lines of tasks to start the archive from; default: each type's example")
    tasks: str = flag("", "no teacher writes: tasks of a file (JSON lines), or micro: fresh random programs")
    dedupe: str = flag("structural", "what repeats the archive, so is refused",
                       ("structural", "exact", "off"))
    verifier: str = flag("auto", "fork: Linux's walls; portable: an interpreter, for the micro format alone; "
                         "auto: fork where it can be had", ("auto", "fork", "portable"))
    # 3 solve
    samples_per_task: int = flag(None, "attempts at each task (n); fix it across arms", within=FROM_1)
    temperature: float = flag(1.0, "of proposals and attempts", within=(0.01, 100))
    max_new_tokens: int = flag(None, "tokens of a proposal or an answer, at most", within=(1, LARGE))
    # 4 reward and update
    teacher_reward: str = flag("difficulty", "of a valid proposal, by its solve rate", TEACHER_REWARDS)
    invalid_penalty: float = flag(-1.0, "reward of an invalid proposal", within=(-100, 100))
    student_reward: str = flag("graded", "correct 1, wrong -0.5, malformed -1; or 1, 0, 0", STUDENT_REWARDS)
    algo: str = flag("reinforce++", "sets those of the next five flags that are not given", ALGORITHMS)
    baseline: str = flag(None, "taken from a reward: its group's mean, or the others'; standardized: and "
                         "divided by the group's standard deviation",
                         ("group", "standardized", "leave-one-out", "none"))
    normalize_advantages: str = flag(None, "whiten by member and role (kind: + task type)", NORMALIZE)
    token_weight: str = flag(None, "mean over all tokens, mean of rows' means, or Dr. GRPO's",
                             ("member", "row", "constant"))
    loss: str = flag(None, "PPO's; with an answer's ratio; or CISPO's: clipped ratio x log-prob.",
                     ("clip", "sequence", "cispo"))
    clip: Numbers = flag(None, "the ratio lies in 1 - LOW to 1 + HIGH; in the first epoch it is 1",
                         form="LOW,HIGH")
    epochs: int = flag(1, "optimiser steps on the same rollouts", within=(1, 1000))
    importance_cap: float = flag(None, "weigh tokens by training / rollout probability, at most this; 0 = "
                                 "off; default: 0 on a CPU in float32, else 2", within=(0, LARGE))
    kl_coef: float = flag(0.0, "weight of the KL to the base", within=(0, 1000))
    entropy_coef: float = flag(0.0, "weight of the entropy bonus", within=(0, 1000))
    lr: float = flag(None, "Adam's learning rate of students, and of --single", within=SHARE)
    lr_teacher: float = flag(None, "the same for teachers; 0 freezes them", within=SHARE)
    lr_decay: Numbers = flag(None, "rates hold for HOLD steps of the run, then fall linearly to FLOOR times "
                             "as much at step END; 0,1,1: constant", form="HOLD,END,FLOOR")
    lr_spread: float = flag(1.0, "founding students' rates: log-uniform over this factor", within=(1, LARGE))
    lr_mutate: float = flag(1.0, "a child's rate is its fitter parent's times or over this", within=(1, 100))
    rating: str = flag("trueskill", "rating system", RATINGS)
    outcome: str = flag("expected", "who won: solve rate against prediction, 1/2 with a band, 1/2",
                        ("expected", "half", "raw"))
    # 5 evolve
    evolve: str = flag("mixed", "operators of replacement, or none", EVOLVE)
    evolve_every: int = flag(None, "steps between replacements", within=FROM_1)
    replace_frac: float = flag(0.25, "share of each role that is replaced, at least one", within=(0, 0.999))
    litter: int = flag(1, "children that try for a student's place: the best takes it, if better than who "
                       "has it; 1: the only child takes it untried", within=(1, 1000))
    grace: int = flag(-1, "steps before a child can be replaced; -1 = one interval", within=(-1, 10**9))
    # probes
    probe_every: int = flag(None, "steps between probes of held-out tasks; 0 = never", within=FROM_0)
    heldout: str = flag("", "JSON lines of held-out tasks, or cruxeval; default: the base's, else the first "
                         "valid ones")
    n_heldout: int = flag(120, "held-out tasks asked of each played type; of other types a third",
                          within=FROM_0)
    halt_on: Names = flag((), "alarms that end the run, of " + ",".join(ALARMS), ALARMS)
    # machine
    device: str = flag("auto", "auto (cuda or cpu), cpu, cuda or cuda:1")
    dtype: str = flag("auto", "of the base; auto: bfloat16 where a card has it; int8: its weights",
                      ("auto", "float32", "bfloat16", "int8"))
    rollout_batch: int = flag(None, "rows that decode together; 0, a card's default: all", within=FROM_0)
    tokens_per_microbatch: int = flag(None, "padded tokens of a micro-batch of the update", within=FROM_1)
    plan: bool = flag(False, "only print the memory plan of these flags; exit code 0 if it fits, 2 if not")


# Where each group of --help begins: its first field, and its title.
GROUPS = {
    "base": "run",
    "pop": "population",
    "matching": "1 match",
    "task_types": "2 propose",
    "samples_per_task": "3 solve",
    "teacher_reward": "4 reward and update",
    "evolve": "5 evolve",
    "probe_every": "probes",
    "device": "machine",
}
# What a prompt format wants where the command line says nothing. The micro values are measured in LOG.md; of
# the others the rate is, on a base of 0.5B and for students alone (docs/real.md).
PRESETS: dict[str, dict] = {}
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
    lr=2e-3,
    lr_teacher=3e-3,
    lr_decay=(12, 25, 0.15),
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
    lr=3e-5,
    lr_teacher=3e-5,
    lr_decay=(0, 1, 1),
    evolve_every=10,
    probe_every=20)
PRESETS["base"] = PRESETS["chat"] | dict(max_new_tokens=1024)
PRESETS["direct"] = PRESETS["chat"] | dict(max_new_tokens=192)
# Fields that may change between a run and its resumption without changing what it computes. From one kind of
# device to another also give the --importance-cap of before, whose default depends on it.
FREE = ("base", "name", "out", "resume", "init", "steps", "device", "plan",
        "show", "save_every", "keep", "halt_on")


def check_presets(table: str, presets: dict[str, dict]) -> None:
    """That the presets of a table all set the same flags, and only flags whose default is None: a preset
    fills in what is None, and nobody would notice that it sets another flag in vain."""
    fillable = [f.name for f in fields(Config) if f.default is None]
    first, *_ = presets
    for name, preset in presets.items():
        entry = f"{table}[{name!r}] of config.py"
        for key in preset.keys() - set(fillable):
            [nearest] = difflib.get_close_matches(key, fillable, n=1, cutoff=0)
            raise AssertionError(f"{entry} sets {key!r}, which is no flag whose default is None: did you "
                                 f"mean {nearest!r}?")
        missing = sorted(presets[first].keys() - preset.keys())
        assert not missing, f"{entry} does not set {', '.join(missing)}, as {first!r} does"


check_presets("ALGORITHMS", ALGORITHMS)
check_presets("PRESETS", PRESETS)


def for_new_tasks(cfg: Config, **changes: object) -> Config:
    """A run's flags with which its teachers write anew: no given tasks, none that repeats the run's."""
    return replace(cfg, tasks="", dedupe=cfg.dedupe.replace("off", "structural"), **changes)


# --- a Config as text, and back -----------------------------------------------------------------------------

def spelled(name: str) -> str:
    """A field as the command line writes it."""
    return "--" + name.replace("_", "-")


def text_of(value: object) -> str:
    """A flag's value as the command line writes it."""
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(str(member).removesuffix(".0") for member in value)


def flags_of(cfg: Config) -> dict[str, object]:
    """What config.json holds: each flag as the command line writes it."""
    flags = {}
    for name, value in vars(cfg).items():
        # numbers stay numbers: a report compares them
        flags[name] = text_of(value) if isinstance(value, tuple) else value
    return flags


def config_of(flags: dict[str, object]) -> Config:
    """Inverse of flags_of. The one place where text becomes a tuple. Raises UserError for text that is no
    number where numbers are wanted."""
    given = dict(flags)
    for f in fields(Config):
        text = given.get(f.name)
        if f.type not in (Names, Numbers) or not isinstance(text, str):
            continue                                # it is no tuple, or is one already, or a preset's
        parts = tuple(text.split(",")) if text else ()
        if f.type == Numbers:
            try:
                parts = tuple(map(float, parts))
            except ValueError:
                raise UserError(no_numbers(f, text)) from None
        given[f.name] = parts
    return Config(**given)


def no_numbers(f: Field, text: str) -> str:
    """What a user is told of such numbers."""
    return f"{spelled(f.name)} {text}: give {f.metadata['form']}, numbers from 0 on"


def default_of(f: Field) -> str:
    """A default in words, by prompt format or --algo where these differ ("micro: 8; chat: 32"); "" = none."""
    presets = PRESETS
    if f.name in ALGORITHMS[Config.algo]:
        presets = ALGORITHMS
    # What all presets have in common is said once.
    names_of = {}                       # default -> the presets that have it
    for name, preset in presets.items():
        value = preset.get(f.name, f.default)
        names_of.setdefault(value, []).append(name)
    if len(names_of) == 1:
        [value] = names_of
        return "" if value is None or value is False else text_of(value)
    parts = []
    for value, names in names_of.items():
        parts.append(f"{', '.join(names)}: {text_of(value)}")
    return "; ".join(parts)


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser with a flag for each field of Config; what is not given is not in its result."""
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        usage="train.py [--flag value ...]   (--help lists every switch)",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    for f in fields(Config):
        if f.name in GROUPS:
            group = parser.add_argument_group(GROUPS[f.name])
        how = dict(type=f.type, choices=f.metadata["choices"] or None)
        if f.type is bool:
            how = dict(action="store_true")
        elif f.type in (Names, Numbers):            # config_of cuts the text, check_tuple looks at the parts
            how = dict(type=str, metavar=f.metadata["form"] or "name,name")
        elif not how["choices"]:
            how["metavar"] = f.type.__name__
        help = f.metadata["help"]
        if default_of(f):
            help += f" ({default_of(f)})"
        help = help.replace("%", "%%")              # to argparse a % begins a placeholder
        group.add_argument(spelled(f.name), default=argparse.SUPPRESS, help=help, **how)
    return parser


def parse_args(
    description: str | None,
    argv: list[str] | None = None,
    saved: Callable[[Config], dict] | None = None,      # (cfg) -> the flags of the run that --resume names
) -> Config:
    """Command line to Config; exits with code 2. What the command line says goes before what a run says."""
    given = vars(command_line(description).parse_args(argv))
    # --resume itself says which run: its flags are read second, and what is given now goes before them
    cfg = config_of(given)
    if saved and cfg.resume:
        cfg = config_of(saved(cfg) | given)
    return cfg


def config_of_run(saved: dict, path: Path | str) -> Config:
    """The Config that the config.json of the run at `path` holds. Raises UserError for another version's."""
    # A flag that has come or gone may mean another computation: nothing is guessed.
    odd = sorted(set(saved) ^ {f.name for f in fields(Config)})
    flags = ", ".join(map(spelled, odd))
    demand(not odd, f"{path} was made by another version, whose flags differ in {flags}: use the commit that "
           "its env.json names")
    with explained(f"config.json of {path} is damaged", UserError):
        cfg = config_of(saved)
        check_values(cfg)
    return cfg


# --- what is not given, and what does not fit ---------------------------------------------------------------

def resolve_config(cfg: Config, prompt_format: str, device: str = "cpu") -> Config:
    """Fill in what prompt format, --algo, device and other flags imply. Raises UserError with the fix."""
    demand(cfg.algo in ALGORITHMS, f"--algo {cfg.algo!r}: give one of {', '.join(ALGORITHMS)}")
    # in float32 on a CPU rollout and training agree to 1e-6
    exact = device == "cpu" and cfg.dtype in ("auto", "float32")
    implied = dict(importance_cap=0.0 if exact else 2.0)
    implied |= PRESETS[prompt_format] | ALGORITHMS[cfg.algo]
    if device == "cuda":
        implied["rollout_batch"] = 0                # as many rows as fit into its memory
    if cfg.single:
        implied["pop"] = 2                          # of one adapter, once in each role
    changes = dict(prompt_format=prompt_format)
    for name, value in implied.items():
        if getattr(cfg, name) is None:
            changes[name] = value
    cfg = replace(cfg, **changes)
    check_values(cfg)

    demand(cfg.teachers or cfg.pop % 2 == 0,
           f"--pop {cfg.pop} cannot be halved into teachers and students: give an even number, or --teachers")
    # what follows from other flags, once these are known
    changes = {}
    if not cfg.teachers:
        changes["teachers"] = cfg.pop // 2
    if cfg.grace < 0:
        changes["grace"] = cfg.evolve_every
    if cfg.tasks:
        changes["dedupe"] = "off"                   # given tasks come again
    cfg = replace(cfg, **changes)
    check_run(cfg)
    check_population(cfg)
    check_litter(cfg)
    check_tasks(cfg)
    return cfg


def check_values(cfg: Config) -> None:
    """Raises UserError where a flag by itself cannot have its value."""
    for f in fields(cfg):
        check_value(f, getattr(cfg, f.name))


def check_value(f: Field, value: object) -> None:
    """Raises UserError where a flag cannot have this value: another type, or out of its range."""
    if f.type in (Names, Numbers):
        check_tuple(f, value)
        return
    given = f"{spelled(f.name)} {value!r:.60}"
    of_type = type(value) is f.type
    if f.type is float:
        of_type = type(value) in (int, float)       # not isinstance: True is an int
    demand(of_type, f"{given}: give a value of type {f.type.__name__}")
    choices, within = f.metadata["choices"], f.metadata["within"]
    if choices:
        demand(value in choices, f"{given}: give one of {', '.join(choices)}")
    if within:
        low, high = within
        demand(low <= value <= high, f"{given}: give a number in {[low, high]}")        # which nan is not


def check_tuple(f: Field, value: object) -> None:
    """Raises UserError where a flag of several values, Names or Numbers, cannot have these."""
    flag = spelled(f.name)
    legal = (str,) if f.type == Names else (int, float)
    of_type = type(value) is tuple and {type(member) for member in value} <= set(legal)
    demand(of_type, f"{flag} {value!r:.60}: give a tuple of type {legal[-1].__name__}")
    if f.type == Names:
        choices = f.metadata["choices"]
        unknown = sorted(set(value) - set(choices))
        demand(not unknown, f"{flag}: {', '.join(unknown)} unknown; valid: {', '.join(choices)}")
        return
    n = len(f.metadata["form"].split(","))
    in_range = [0 <= number <= 1e9 for number in value]
    demand(len(value) == n and all(in_range), no_numbers(f, text_of(value)))


# Flags that have to agree. Each value by itself is legal here; all of these raise UserError with the fix.

def check_run(cfg: Config) -> None:
    """The date, the layers with adapters, and the fall of the learning rates."""
    if cfg.date:
        try:
            datetime.date.fromisoformat(cfg.date)
        except ValueError:
            raise UserError(f"--date {cfg.date}: give a day as YYYY-MM-DD") from None
    demand(cfg.lora_targets, f"--lora-targets: give one or more of {', '.join(TARGETS)}")
    hold, end, floor = cfg.lr_decay
    demand(hold < end and floor <= 1,
           f"--lr-decay {text_of(cfg.lr_decay)}: HOLD must be below END, FLOOR at most 1")


def check_population(cfg: Config) -> None:
    """Whether there are members of each role, enough for the matches and for every niche."""
    n_types = len(cfg.task_types)
    n_students = cfg.pop - cfg.teachers
    demand(n_students > 0, f"--teachers {cfg.teachers}: of --pop {cfg.pop} one must be a student")
    demand(not cfg.single or cfg.pop == 2,
           "--single is one adapter in both roles: leave out --pop and --teachers, or --single itself")
    demand(cfg.matches <= cfg.teachers, f"--matches {cfg.matches}: there are {cfg.teachers} teachers")
    demand(not cfg.niches or 1 < n_types <= min(cfg.teachers, n_students),
           f"--niches deals {n_types} task type(s) to {cfg.teachers} teacher(s) and {n_students} "
           "student(s): give at least two types, and of each role at least as many members")


def check_litter(cfg: Config) -> None:
    """Whether students are replaced, and by as many different children as --litter asks for."""
    if cfg.litter == 1:
        return
    n_students = cfg.pop - cfg.teachers
    replaces = cfg.evolve != "none" and cfg.replace_frac > 0 and n_students > 1 and not cfg.single
    demand(replaces, f"--litter {cfg.litter}: this run replaces no student: leave --litter out, or give an "
           "--evolve other than none, a --replace-frac above 0, and at least two students")
    # an operator that draws nothing makes but one child of the same parents
    n_parents = n_students - max(1, int(cfg.replace_frac * n_students))
    most = n_children(cfg.evolve, n_parents)
    demand(cfg.litter <= most, f"--litter {cfg.litter}: of {n_parents} student(s) that stay, --evolve "
           f"{cfg.evolve} makes {most} different child(ren): give at most {most}, or --evolve mixed")


def check_tasks(cfg: Config) -> None:
    """Whether the task types can be asked in this prompt format, and be verified here."""
    demand(cfg.task_types, f"--task-types: give one or more of {', '.join(TASK_TYPES)}")
    for kind in cfg.task_types:
        for phase in ("propose", "solve"):
            template(kind, cfg.prompt_format, phase)        # which raises UserError where there is none
    demand(cfg.tasks != "micro" or set(cfg.task_types) <= {"code_o", "code_i"},
           "--tasks micro draws code_o and code_i: give these as --task-types, or a file of tasks")
    demand(cfg.prompt_format == "micro" or cfg.n_few_shot >= 1,
           f"--n-few-shot {cfg.n_few_shot}: {cfg.prompt_format} prompts show tasks: give at least 1")
    demand(cfg.verifier != "portable" or cfg.prompt_format == "micro",
           f"--verifier portable knows programs of the micro prompt format, not of {cfg.prompt_format}: "
           "leave it out")
