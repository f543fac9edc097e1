"""Every switch of a run: default, meaning, legal values; what a prompt format presets; the command line."""
import argparse
import dataclasses
import difflib
import math
from dataclasses import dataclass, field

from operators import OPERATORS
from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from tasks import TASK_TYPES, miu
from tasks.prompts import PROMPT_FORMATS
from tasks.proof import load
from trueskill_lite import RATINGS

# Legal values whose meaning stands in modules that import this one: lora.py, evolve.py, rl.py.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MATCHING = ("pfsp", "uniform", "hard", "round-robin", "all")
OUTCOMES = ("expected", "half", "raw")
EVOLVE = ("mixed", "mutation", "crossover", *OPERATORS, "none")
BASELINES = ("group", "leave-one-out", "none")
NORMALIZE = ("member", "kind", "off")
TOKEN_WEIGHTS = ("member", "row", "constant")
# What --algo sets where the command line says nothing. Sources: rl.py.
ALGORITHMS = {"reinforce++": dict(
    baseline="group", scale_rewards="none", normalize_advantages="member", token_weight="member",
    ratio="token", loss="clip", clip_low=0.2, clip_high=0.2)}
ALGORITHMS["rloo"] = ALGORITHMS["reinforce++"] | dict(baseline="leave-one-out", normalize_advantages="off")
ALGORITHMS["dr_grpo"] = ALGORITHMS["reinforce++"] | dict(normalize_advantages="off", token_weight="constant")
ALGORITHMS["grpo"] = ALGORITHMS["dr_grpo"] | dict(scale_rewards="group", token_weight="row")
ALGORITHMS["gspo"] = ALGORITHMS["grpo"] | dict(ratio="sequence", clip_low=3e-4, clip_high=4e-4)
ALGORITHMS["dapo"] = ALGORITHMS["grpo"] | dict(token_weight="member", clip_high=0.28)
ALGORITHMS["cispo"] = ALGORITHMS["dapo"] | dict(loss="cispo", clip_low=1.0, clip_high=4.0)


def flag(default, help, values=""):
    """A field of Config: default (None = a preset's), help text, legal values; those of a number are an
    interval, "[0, 1)" is 0 to 1 without 1. Beyond it runs would not end, or numbers overflow."""
    within, choices = (values, None) if isinstance(values, str) else ("", values)
    return field(default=default, metadata=dict(help=help, choices=choices, within=within))


@dataclass(frozen=True)
class Config:
    """Every switch of a run. `python train.py --help` and docs/flags.md show it, by the groups below."""
    # run
    base: str = flag("micro/base", "Hugging Face directory or hub id of the frozen base")
    prompt_format: str = flag("auto", "how tasks are put; auto: as the base's config.json and tokenizer say",
                              ("auto", *PROMPT_FORMATS))
    name: str = flag("", "the run's directory under --out; default: the base's name and a free number")
    out: str = flag("out", "where runs are kept")
    init: str = flag("", "directory of PEFT adapters, one folder a member in slot order, to start from")
    seed: int = flag(0, "every random draw is keyed by (seed, step, phase, member, index)", "[0, 1e18]")
    steps: int = flag(None, "steps of the run", "[1, 1e9]")
    save_every: int = flag(10, "steps between checkpoints", "[1, 1e9]")
    keep: int = flag(2, "checkpoints kept", "[1, 1e9]")
    resume: str = flag("", "auto (the latest checkpoint of --name) or a run's directory")
    show: int = flag(0, "tasks printed each step, with their attempts", "[0, 1e9]")
    # population
    pop: int = flag(None, "members, teachers and students; with --single 2", "[2, 10000]")
    teachers: int = flag(0, "so many of --pop are teachers; 0 = half", "[0, 10000]")
    single: bool = flag(False, "one adapter in both roles, compute per adapter matched (Absolute Zero)")
    niches: bool = flag(False, "deal --task-types to members in turn: each plays its own, a child those of "
                        "both parents")
    rank: int = flag(None, "LoRA rank R", "[1, 4096]")
    alpha: float = flag(None, "LoRA alpha; the update is scaled by alpha / R", "(0, 1e6]")
    lora_targets: str = flag(",".join(TARGETS), "linear layers that carry adapters")
    # 1 match
    matching: str = flag("pfsp", "how a teacher draws its student", MATCHING)
    matches: int = flag(0, "matches a step, of teachers drawn for it; 0 = every teacher's", "[0, 10000]")
    # 2 propose
    task_types: str = flag(None, "task types in turn, of " + ",".join(TASK_TYPES))
    n_prompts: int = flag(None, "prompts a teacher answers each step", "[1, 10000]")
    proposals_per_prompt: int = flag(8, "proposals sampled from one prompt (the baseline's group)",
                                     "[1, 10000]")
    n_few_shot: int = flag(None, "earlier tasks shown in a prompt (K)", "[0, 1000]")
    seed_tasks: str = flag("", "JSON lines of tasks to start the archive from; default: the identity "
                           "program, and each kind's own example")
    tasks: str = flag("", "no teacher writes: students train on a file of tasks (JSON lines), or on "
                      "micro, fresh random programs")
    theory: str = flag(None, "Metamath database of proof: a file, or the bundled prop.mm or miu.mm")
    dedupe: str = flag("structural", "what counts as a duplicate of the run's archive, so as invalid",
                       ("structural", "exact", "off"))
    # 3 solve
    samples_per_task: int = flag(None, "attempts at each task (n): a difficulty knob, fixed across arms",
                                 "[1, 10000]")
    temperature: float = flag(1.0, "of proposals and attempts", "[0.01, 100]")
    max_new_tokens: int = flag(None, "tokens of a proposal or an answer, at most", "[1, 1e6]")
    # 4 reward and update
    teacher_reward: str = flag("difficulty", "a valid proposal's reward by its solve rate", TEACHER_REWARDS)
    invalid_penalty: float = flag(-1.0, "reward of an invalid proposal (-1, -0.1 and 0 have been studied)",
                                  "[-100, 100]")
    student_reward: str = flag("graded", "graded: correct 1, wrong -0.5, malformed -1; binary: 1, 0, 0",
                               STUDENT_REWARDS)
    algo: str = flag("reinforce++", "sets those of the next eight flags that are not given", ALGORITHMS)
    baseline: str = flag(None, "taken from a reward: the mean of its group, or of the others", BASELINES)
    scale_rewards: str = flag(None, "divide by the group's standard deviation", ("none", "group"))
    normalize_advantages: str = flag(None, "whiten by member and role (kind: + task type)", NORMALIZE)
    token_weight: str = flag(None, "mean over all tokens, mean of rows' means, or Dr. GRPO's", TOKEN_WEIGHTS)
    ratio: str = flag(None, "new to old probability of a token, or of the answer", ("token", "sequence"))
    loss: str = flag(None, "PPO's, or CISPO's: clipped ratio x log-probability", ("clip", "cispo"))
    clip_low: float = flag(None, "the ratio is at least 1 - this; in the first epoch it is 1", "(0, 100]")
    clip_high: float = flag(None, "the ratio is at most 1 + this", "(0, 100]")
    epochs: int = flag(1, "optimiser steps on the same rollouts", "[1, 1000]")
    importance_cap: float = flag(None, "weight a token by its probability in training over that in the "
                                 "rollout, at most this; 0 = off; default: 0 on a CPU in float32, else 2",
                                 "[0, 1e6]")
    kl_coef: float = flag(0.0, "weight of the KL to the base", "[0, 1000]")
    entropy_coef: float = flag(0.0, "weight of the entropy bonus", "[0, 1000]")
    lr: float = flag(None, "Adam's learning rate of students, and of --single", "[0, 1]")
    lr_teacher: float = flag(None, "the same for teachers; 0 freezes them", "[0, 1]")
    lr_decay: str = flag("", "HOLD,END,FLOOR: both rates whole for HOLD steps of the run, then linear to "
                         "FLOOR times as much at step END and from there on; default: constant")
    lr_spread: float = flag(1.0, "founders' rates around --lr differ by up to this factor: log-uniform, "
                            "stratified", "[1, 1e6]")
    lr_mutate: float = flag(1.0, "a child has its fitter parent's rate, times or divided by this", "[1, 100]")
    rating: str = flag("trueskill", "rating system", RATINGS)
    outcome: str = flag("expected", "who won: solve rate against its prediction, against 1/2 with a band, or "
                        "without", OUTCOMES)
    # 5 evolve
    evolve: str = flag("mixed", "operators of replacement, or none", EVOLVE)
    evolve_every: int = flag(None, "steps between replacements", "[1, 1e9]")
    replace_frac: float = flag(0.25, "share of each role that is replaced, at least one", "[0, 1)")
    grace: int = flag(-1, "steps during which a child cannot be replaced; -1 = one interval", "[-1, 1e9]")
    # probes
    probe_every: int = flag(None, "steps between absolute probes (held-out tasks, frozen base); 0 = never",
                            "[0, 1e9]")
    heldout: str = flag("", "JSON lines of held-out tasks, of types that the run plays or not; default: the "
                        "base's, else the run's first valid tasks")
    n_heldout: int = flag(None, "of these, tasks of each type, at most", "[0, 1e6]")
    probe_share: float = flag(None, "share of held-out tasks asked at probes between the first and the last",
                              "(0, 1]")
    halt_on: str = flag("", "monitors whose alarm ends the run with a checkpoint: collapse, gaming, "
                        "forgetting, escape (by commas)")
    # machine
    device: str = flag("auto", "auto (cuda or cpu), cpu, cuda, cuda:1, or mps for an Apple GPU")
    dtype: str = flag("auto", "the base computes in it; auto: bfloat16 or float16 on a CUDA card, "
                      "else float32", ("auto", "float32", "bfloat16", "float16"))
    base_dtype: str = flag("same", "of the base's linear layers: that of --dtype, or int8 by output channel",
                           ("same", "int8"))
    rollout_batch: int = flag(None, "rows that decode together; 0, the default on a CUDA card = as many as "
                              "fit into its memory", "[0, 1e12]")
    tokens_per_microbatch: int = flag(None, "padded tokens of a micro-batch of the update", "[1, 1e12]")
    plan: bool = flag(False, "only print the memory plan of these flags; exit code 0 if it fits, 2 if not")
    weak_sandbox: bool = flag(False, "run model code behind weaker walls where seccomp is missing: dangerous")


MAX_ROWS = 1_000_000                    # attempts in a step: more would fill any memory
# Where each group of --help begins: its first field, and its title.
GROUPS = {"base": "run", "pop": "population", "matching": "1 match", "task_types": "2 propose",
          "samples_per_task": "3 solve", "teacher_reward": "4 reward and update", "evolve": "5 evolve",
          "probe_every": "probes", "device": "machine"}
# What a prompt format wants where the command line says nothing. The micro values are measured in LOG.md.
PRESETS = {
    "micro": dict(pop=8, steps=80, rank=8, alpha=32.0, rollout_batch=512, tokens_per_microbatch=1024,
                  task_types="code_o", n_prompts=3, n_few_shot=0, samples_per_task=4, max_new_tokens=80,
                  lr=1e-3, lr_teacher=3e-3, evolve_every=15,
                  probe_every=20, n_heldout=1000000, probe_share=0.2, theory="miu.mm"),
    "chat": dict(pop=8, steps=200, rank=32, alpha=64.0, rollout_batch=128, tokens_per_microbatch=2048,
                 task_types="code_o,code_i,code_f", n_prompts=3, n_few_shot=6, samples_per_task=8,
                 max_new_tokens=512,
                 lr=1e-5, lr_teacher=1e-5, evolve_every=10,
                 probe_every=20, n_heldout=96, probe_share=1.0, theory="prop.mm")}
PRESETS["base"] = PRESETS["chat"] | dict(max_new_tokens=1024)
PRESETS["direct"] = PRESETS["chat"] | dict(max_new_tokens=192)
# Fields that may change between a run and its resumption without changing what it computes. From one kind of
# device to another also give the --importance-cap of before, whose default depends on it.
FREE = ("base", "name", "out", "resume", "init", "steps", "device", "plan",
        "show", "save_every", "keep", "halt_on")


def spelled(name: str) -> str:
    """A field as the command line writes it."""
    return "--" + name.replace("_", "-")


def default_of(f: dataclasses.Field) -> str:
    """A default in words, by prompt format or --algo where these differ ("micro: 8; chat: 32"); "" = none."""
    names_of = {}
    for name, preset in (ALGORITHMS if f.name in ALGORITHMS[Config.algo] else PRESETS).items():
        names_of.setdefault(preset.get(f.name, f.default), []).append(name)
    if len(names_of) > 1:
        return "; ".join(f"{', '.join(names)}: {value}" for value, names in names_of.items())
    value, = names_of
    return "" if value is None or value is False else str(value)


def markdown() -> str:
    """What --help shows, as the page docs/flags.md: a table a group."""
    lines = ["# The flags of train.py", "", "Written by `python train.py --help-md > docs/flags.md`."]
    for f in dataclasses.fields(Config):
        if f.name in GROUPS:
            lines += ["", f"## {GROUPS[f.name]}", ""]
            lines += ["| flag | values | default | meaning |", "|---|---|---|---|"]
        values = ", ".join(f.metadata["choices"] or [f.type.__name__])
        lines.append(f"| `{spelled(f.name)}` | {values} | {default_of(f)} | {f.metadata['help']} |")
    return "\n".join(lines)


def parse_args(description: str | None, argv: list[str] | None = None, saved=None) -> Config:
    """Command line to Config. Exits with code 2 and a suggestion for an unknown flag or value. saved: called
    with the Config where --resume was given; the flags that it returns hold where the command line says
    nothing."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     usage="train.py [--flag value ...]   (--help lists every switch)",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    # argparse calls it a version, yet what it does is print a text and exit
    parser.add_argument("--help-md", action="version", version=markdown(), help="print docs/flags.md, exit")
    for f in dataclasses.fields(Config):
        if f.name in GROUPS:
            group = parser.add_argument_group(GROUPS[f.name])
        kind, choices = f.type, f.metadata["choices"]
        how = dict(type=kind, choices=choices, metavar=None if choices else kind.__name__)
        if kind is bool:
            how = dict(action="store_true")
        text = f.metadata["help"] + (f" ({default_of(f)})" if default_of(f) else "")
        group.add_argument(spelled(f.name), default=argparse.SUPPRESS, help=text.replace("%", "%%"), **how)
    args, unknown = parser.parse_known_args(argv)
    for word in unknown:
        parser.error(f"unknown argument {word}: {advice(word.split('=')[0])}")
    for name, value in vars(args).items():
        if value == []:                         # what argparse makes of --steps=--
            parser.error(f"argument {spelled(name)}: give a value")
    cfg = Config(**vars(args))
    return Config(**saved(cfg) | vars(args)) if saved and cfg.resume else cfg


def advice(word: str) -> str:
    """What to write instead of an unknown flag."""
    flags = ["--help", "--help-md", *(spelled(f.name) for f in dataclasses.fields(Config))]
    word = word.replace("_", "-")
    near = difflib.get_close_matches(word, flags, 1, 0.8)
    near += sorted((flag for flag in flags if word.startswith(flag)), key=len, reverse=True)  # --population
    near += difflib.get_close_matches(word, flags, 1)
    return f"did you mean {near[0]}?" if near else "--help lists all"


def config_of_run(saved: dict, path) -> Config:
    """The Config that the config.json of the run at `path` holds. Raises ValueError for another version's."""
    if odd := sorted(set(saved) ^ {f.name for f in dataclasses.fields(Config)}):
        names = ", ".join(map(spelled, odd))
        raise ValueError(f"{path} was made by another version, whose flags differ in {names}: use the "
                         "commit that its env.json names")
    try:
        for f in dataclasses.fields(Config):
            check_value(f, saved[f.name])
    except ValueError as e:
        raise ValueError(f"config.json of {path} is damaged ({e}): restore it") from None
    return Config(**saved)


def resolve_config(cfg: Config, prompt_format: str, device: str = "cpu") -> Config:
    """Fill in what prompt format, --algo, device and other flags imply. Raises ValueError with the fix."""
    presets = PRESETS[prompt_format] | ALGORITHMS[cfg.algo]
    if device == "cuda":
        presets["rollout_batch"] = 0
    if cfg.single:
        presets["pop"] = 2
    missing = {name: value for name, value in presets.items() if getattr(cfg, name) is None}
    cfg = dataclasses.replace(cfg, prompt_format=prompt_format, **missing)
    grace = cfg.evolve_every if cfg.grace < 0 else cfg.grace
    importance_cap = cfg.importance_cap
    if importance_cap is None:              # in float32 on a CPU rollout and training agree to 1e-6
        importance_cap = 0.0 if device == "cpu" and cfg.dtype in ("auto", "float32") else 2.0
    if cfg.tasks:                           # which come again
        cfg = dataclasses.replace(cfg, dedupe="off")
    demand(cfg.teachers or cfg.pop % 2 == 0,
           f"--pop {cfg.pop} cannot be halved into teachers and students: give an even number, or --teachers")
    cfg = dataclasses.replace(cfg, teachers=cfg.teachers or cfg.pop // 2, grace=grace,
                              importance_cap=importance_cap)
    check(cfg)
    return cfg


def demand(met: bool, otherwise: str) -> None:
    """Raise ValueError with this text where a condition is not met."""
    if not met:
        raise ValueError(otherwise)


def lies_within(value: float, interval: str) -> bool:
    """Whether a number lies in an interval written as "(0, 1]"; nan and infinities never do."""
    low, high = map(float, interval[1:-1].split(","))
    if value == low or value == high:
        return interval[0 if value == low else -1] in "[]"
    return low < value < high


def check_value(f: dataclasses.Field, value) -> None:
    """Raises ValueError where a flag cannot have this value: another type, or out of its range."""
    given, choices, within = f"{spelled(f.name)} {value!r:.60}", f.metadata["choices"], f.metadata["within"]
    of_type = type(value) is f.type or (f.type is float and type(value) is int)
    demand(of_type, f"{given}: give a value of type {f.type.__name__}")
    demand(not choices or value in choices, f"{given}: give one of {', '.join(choices or ())}")
    demand(not within or lies_within(value, within), f"{given}: give a number in {within}")


def read_decay(text: str) -> list[float]:
    """HOLD, END and FLOOR of --lr-decay. Raises ValueError with the fix."""
    try:
        hold, end, floor = [float(number) for number in (text or "0,1,1").split(",")]
        demand(0 <= hold < end < math.inf and 0 <= floor <= 1, "")
    except ValueError:
        raise ValueError(f"--lr-decay {text}: give HOLD,END,FLOOR: steps, steps and a share, as in "
                         "12,25,0.15") from None
    return [hold, end, floor]


def check(cfg: Config) -> None:
    """Values in their ranges, and flags that agree. Raises ValueError with the fix."""
    for f in dataclasses.fields(cfg):
        check_value(f, getattr(cfg, f.name))
    read_decay(cfg.lr_decay)
    demand(cfg.teachers < cfg.pop, f"--teachers {cfg.teachers}: of --pop {cfg.pop} one must be a student")
    demand(not cfg.single or cfg.pop == 2,
           "--single is one adapter in both roles: leave out --pop and --teachers, or --single itself")
    demand(cfg.matches <= cfg.teachers, f"--matches {cfg.matches}: there are {cfg.teachers} teachers")
    task_types = cfg.task_types.split(",")
    n_students = cfg.pop - cfg.teachers
    demand(not cfg.niches or 1 < len(task_types) <= min(cfg.teachers, n_students),
           f"--niches deals {len(task_types)} task type(s) to {cfg.teachers} teacher(s) and {n_students} "
           "student(s): give at least two types, and of each role at least as many members")
    unknown = sorted(set(task_types) - set(TASK_TYPES))
    demand(not unknown, f"--task-types: {', '.join(unknown)} unknown; valid: {', '.join(TASK_TYPES)}")
    for kind in task_types:
        TASK_TYPES[kind].check_templates(cfg.prompt_format)
    if "proof" in task_types and load(cfg.theory):          # which raises ValueError for a bad theory
        demand(cfg.prompt_format != "micro" or cfg.theory == miu.THEORY,
               f"--theory {cfg.theory}: the micro prompt format has words for {miu.THEORY} alone")
    demand(cfg.tasks != "micro" or set(task_types) <= {"code_o", "code_i"},
           "--tasks micro draws code_o and code_i: give these as --task-types, or a file of tasks")
    demand(cfg.prompt_format == "micro" or cfg.n_few_shot >= 1,
           f"--n-few-shot {cfg.n_few_shot}: {cfg.prompt_format} prompts show tasks: give at least 1")
    demand(cfg.importance_cap == 0 or cfg.importance_cap >= 1,
           f"--importance-cap {cfg.importance_cap}: give at least 1, or 0 for no weights")
    n_rows = cfg.teachers * cfg.n_prompts * cfg.proposals_per_prompt * cfg.samples_per_task
    demand(n_rows <= MAX_ROWS, f"{n_rows:,} attempts in a step, of at most {MAX_ROWS:,}, which memory holds: "
           "lower --pop, --n-prompts, --proposals-per-prompt or --samples-per-task")
