"""Every switch of a run: default, meaning, legal values; what a prompt format presets; the command line."""
import argparse
from collections.abc import Collection
from dataclasses import Field, dataclass, field, fields, replace

from common import demand
from lora import TARGETS
from operators import OPERATORS
from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from tasks import TASK_TYPES
from tasks.prompts import FORMATS, template

# Flags with several values, which the command line and config.json write with commas between them
Names = tuple[str, ...]
Numbers = tuple[float, ...]
MATCHING = ("pfsp", "uniform")
EVOLVE = ("mixed", "mutation", "crossover", *OPERATORS, "none")
ALARMS = ("collapse", "gaming", "forgetting", "flat")
MANY = 10**9

# What --algo sets where the command line says nothing. Sources: rl.py.
ALGORITHMS = {
    "reinforce++": dict(baseline="group", normalize_advantages="member", token_weight="member"),
    "rloo": dict(baseline="leave-one-out", normalize_advantages="off", token_weight="member"),
    "grpo": dict(baseline="standardized", normalize_advantages="off", token_weight="row"),
    "dr_grpo": dict(baseline="group", normalize_advantages="off", token_weight="constant"),
}


def flag(
    default: object,                # None = a preset's
    help: str,
    choices: Collection[str] = (),  # legal names; of Names each must be one of them
    within: tuple = (0, MANY),      # least and largest number
) -> Field:
    """A field of Config, and all that is known of its flag."""
    return field(default=default, metadata=dict(help=help, choices=choices, within=within))


@dataclass(frozen=True)
class Config:
    """Every switch of a run. `python train.py --help` shows it, by the groups below."""
    # run
    base: str = flag("micro/base", "Hugging Face directory or hub id of the frozen base")
    prompt_format: str = flag("auto", "how tasks are put; auto: as the base says", ("auto", *FORMATS))
    name: str = flag("", "the run's directory under --out; default: the base's name and a free number")
    out: str = flag("out", "where runs are kept")
    init: str = flag("", "directory of PEFT adapters, one folder a member, to start from")
    resume: str = flag("", "a run's directory, with whose flags it goes on")
    seed: int = flag(0, "every draw is keyed by (seed, step, phase, member, index)")
    steps: int = flag(None, "steps of the run", within=(1, MANY))
    save_every: int = flag(10, "steps between checkpoints", within=(1, MANY))
    keep: int = flag(2, "checkpoints kept", within=(1, MANY))
    show: int = flag(0, "tasks printed each step, with their attempts")
    # population
    pop: int = flag(None, "members, half of them teachers; with --single 2", within=(2, 10_000))
    single: bool = flag(False, "one adapter in both roles (Absolute Zero)")
    rank: int = flag(None, "LoRA rank R", within=(1, 4096))
    alpha: float = flag(None, "LoRA alpha; the update is scaled by alpha / R")
    lora_targets: Names = flag(TARGETS, "linear layers that carry adapters", TARGETS)
    # 1 match
    matching: str = flag("pfsp", "how a teacher draws its student", MATCHING)
    # 2 propose
    task_types: Names = flag(None, "task types in turn, of " + ",".join(TASK_TYPES), TASK_TYPES)
    n_prompts: int = flag(3, "prompts a teacher answers each step", within=(1, MANY))
    proposals_per_prompt: int = flag(8, "proposals from one prompt (the baseline's group)", within=(1, MANY))
    n_few_shot: int = flag(None, "earlier tasks shown in a prompt (K)")
    tasks: str = flag("", "no teacher writes: tasks of a file (JSON lines), or micro: fresh random programs")
    dedupe: str = flag("structural", "what repeats the archive, so is refused", ("structural", "exact", "off"))
    # 3 solve
    samples_per_task: int = flag(None, "attempts at each task (n); fix it across arms", within=(1, MANY))
    temperature: float = flag(1.0, "of proposals and attempts", within=(0.01, 100))
    max_new_tokens: int = flag(None, "tokens of a proposal or an answer, at most", within=(1, MANY))
    # 4 reward and update
    teacher_reward: str = flag("difficulty", "of a valid proposal, by its solve rate", TEACHER_REWARDS)
    invalid_penalty: float = flag(-1.0, "reward of an invalid proposal", within=(-100, 100))
    student_reward: str = flag("graded", "correct 1, wrong -0.5, malformed -1; or 1, 0, 0", STUDENT_REWARDS)
    algo: str = flag("reinforce++", "sets those of the next three flags that are not given", ALGORITHMS)
    baseline: str = flag(None, "taken from a reward: its group's mean, or the others'; standardized: and divided by "
                         "the group's standard deviation", ("group", "standardized", "leave-one-out", "none"))
    normalize_advantages: str = flag(None, "whiten by member and role (kind: + task type)", ("member", "kind", "off"))
    token_weight: str = flag(None, "mean over all tokens, mean of rows' means, or Dr. GRPO's",
                             ("member", "row", "constant"))
    kl_coef: float = flag(0.0, "weight of the KL to the base")
    entropy_coef: float = flag(0.0, "weight of the entropy bonus")
    lr: float = flag(None, "Adam's learning rate of students, and of --single", within=(0, 1))
    lr_teacher: float = flag(None, "the same for teachers; 0 freezes them", within=(0, 1))
    lr_decay: Numbers = flag(None, "HOLD,END,FLOOR: rates hold for HOLD steps of the run, then fall linearly to FLOOR "
                             "times as much at step END; 0,1,1: constant")
    lr_spread: float = flag(1.0, "founding students' rates: log-uniform over this factor", within=(1, MANY))
    lr_mutate: float = flag(1.0, "a child's rate is its fitter parent's times or over this", within=(1, 100))
    # 5 evolve
    evolve: str = flag("mixed", "operators of replacement, or none", EVOLVE)
    evolve_every: int = flag(None, "steps between replacements", within=(1, MANY))
    replace_frac: float = flag(0.25, "share of each role that is replaced, at least one", within=(0, 0.999))
    grace: int = flag(-1, "steps before a child can be replaced; -1 = one interval", within=(-1, MANY))
    # probes
    probe_every: int = flag(None, "steps between probes of held-out tasks; 0 = never")
    heldout: str = flag("", "JSON lines of held-out tasks; default: the base's, else the first valid ones")
    n_heldout: int = flag(120, "held-out tasks asked of each played type; of other types a third")
    halt_on: Names = flag((), "alarms that end the run, of " + ",".join(ALARMS), ALARMS)
    # machine
    device: str = flag("auto", "auto (cuda or cpu), cpu, cuda or cuda:1")
    dtype: str = flag("auto", "of the base; auto: bfloat16 where a card has it; int8: its weights",
                     ("auto", "float32", "bfloat16", "int8"))
    verifier: str = flag("auto", "fork: Linux's walls; portable: an interpreter, for the micro format alone",
                         ("auto", "fork", "portable"))
    rollout_batch: int = flag(None, "rows that decode together", within=(1, MANY))
    tokens_per_microbatch: int = flag(None, "padded tokens of a micro-batch of the update", within=(1, MANY))


# Where each group of --help begins: its first field, and its title.
GROUPS = {"base": "run", "pop": "population", "matching": "1 match", "task_types": "2 propose",
          "samples_per_task": "3 solve", "teacher_reward": "4 reward and update", "evolve": "5 evolve",
          "probe_every": "probes", "device": "machine"}
# What a prompt format wants where the command line says nothing. The micro values are measured in LOG.md; of the
# others the rate is, on a base of 0.5B and for students alone (docs/findings.md).
PRESETS = {}
PRESETS["micro"] = dict(
    pop=8, steps=30, rank=8, alpha=32.0, rollout_batch=512, tokens_per_microbatch=1024, task_types=("code_o",),
    n_few_shot=0, samples_per_task=4, max_new_tokens=80, lr=2e-3, lr_teacher=3e-3, lr_decay=(12, 25, 0.15),
    evolve_every=8, probe_every=10)
PRESETS["chat"] = dict(
    pop=8, steps=200, rank=32, alpha=64.0, rollout_batch=128, tokens_per_microbatch=2048,
    task_types=("code_o", "code_i", "code_f"), n_few_shot=6, samples_per_task=8, max_new_tokens=512, lr=3e-5,
    lr_teacher=3e-5, lr_decay=(0, 1, 1), evolve_every=10, probe_every=20)
PRESETS["base"] = PRESETS["chat"] | dict(max_new_tokens=1024)
PRESETS["direct"] = PRESETS["chat"] | dict(max_new_tokens=192)
# Fields that may change between a run and its resumption without changing what it computes.
FREE = ("base", "name", "out", "resume", "init", "steps", "device", "show", "save_every", "keep", "halt_on")


def spelled(name: str) -> str:
    """A field as the command line writes it."""
    return "--" + name.replace("_", "-")


def parse_value(f: Field, text: str) -> object:
    """A flag's value in what the command line or config.json says."""
    if f.type in (Names, Numbers):
        parts = text.split(",") if text else []
        return tuple(map(float, parts)) if f.type is Numbers else tuple(parts)
    return f.type(text)


def flags_of(cfg: Config) -> dict[str, object]:
    """What config.json holds: tuples as the command line writes them."""
    return {name: ",".join(map(str, x)) if isinstance(x, tuple) else x for name, x in vars(cfg).items()}


def config_of(flags: dict[str, object]) -> Config:
    """Inverse of flags_of."""
    kinds = {f.name: f for f in fields(Config)}
    return Config(**{n: parse_value(kinds[n], x) if isinstance(x, str) else x for n, x in flags.items()})


def parse_args(description: str | None, argv: list[str] | None = None) -> dict:
    """The flags that the command line gives; an unknown one exits with code 2."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for f in fields(Config):
        if f.name in GROUPS:
            group = parser.add_argument_group(GROUPS[f.name])
        defaults = {name: preset[f.name] for name, preset in PRESETS.items() if f.name in preset}
        help = f"{f.metadata['help']} ({defaults or f.default})".replace("%", "%%")
        if f.type is bool:
            group.add_argument(spelled(f.name), action="store_true", help=help)
        else:
            group.add_argument(spelled(f.name), help=help, metavar=f.name.upper())
    return vars(parser.parse_args(argv))


def resolve_config(cfg: Config, prompt_format: str) -> Config:
    """Fill in what prompt format, --algo and other flags imply. Raises UserError for what cannot be."""
    demand(cfg.algo in ALGORITHMS, f"--algo {cfg.algo}: give one of {', '.join(ALGORITHMS)}")
    implied = PRESETS[prompt_format] | ALGORITHMS[cfg.algo]
    if cfg.single:
        implied["pop"] = 2                          # of one adapter, once in each role
    missing = {name: value for name, value in implied.items() if getattr(cfg, name) is None}
    cfg = replace(cfg, prompt_format=prompt_format, **missing)
    if cfg.grace < 0:
        cfg = replace(cfg, grace=cfg.evolve_every)
    if cfg.tasks:
        cfg = replace(cfg, dedupe="off")            # given tasks come again
    check(cfg)
    return cfg


def check(cfg: Config) -> None:
    """Raises UserError with the fix where a flag cannot have its value, or two do not go together."""
    for f in fields(cfg):
        value, choices, within = getattr(cfg, f.name), f.metadata["choices"], f.metadata["within"]
        if choices:
            odd = set(value if isinstance(value, tuple) else [value]) - set(choices)
            demand(not odd, f"{spelled(f.name)} {', '.join(odd)}: give {', '.join(choices)}")
        elif f.type in (int, float):
            demand(within[0] <= value <= within[1], f"{spelled(f.name)} {value}: give a number in {list(within)}")
    demand(cfg.pop % 2 == 0, f"--pop {cfg.pop}: give an even number, half of them are teachers")
    demand(not cfg.single or cfg.pop == 2, "--single is one adapter in both roles: leave out --pop")
    demand(cfg.task_types and cfg.lora_targets, "--task-types and --lora-targets: give at least one each")
    demand(len(cfg.lr_decay) == 3 and cfg.lr_decay[0] < cfg.lr_decay[1], "--lr-decay: give HOLD,END,FLOOR, HOLD below END")
    demand(cfg.tasks != "micro" or set(cfg.task_types) <= {"code_o", "code_i"}, "--tasks micro draws code_o and code_i")
    demand(cfg.prompt_format == "micro" or cfg.n_few_shot >= 1, "--n-few-shot: prompts show tasks, give at least 1")
    for kind in cfg.task_types:
        for phase in ("propose", "solve"):
            template(kind, cfg.prompt_format, phase)        # which raises UserError where there is none
