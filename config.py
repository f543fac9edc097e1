"""Every switch of a run: its name, default, meaning and legal values; what a style of base presets; the command line."""
import argparse
import dataclasses
import difflib
import math
from dataclasses import dataclass, field

from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from tasks import KINDS
from tasks.prompts import STYLES, wording
from trueskill_lite import CHILD_RATINGS, RATINGS

# Legal values whose meaning stands in modules that need torch, which this one does without: --help is there at once.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")     # lora.py
MATCHING = ("pfsp", "uniform", "hard", "round-robin", "all")                                # evolve.py, as the next two
OUTCOMES = ("expected", "half", "raw")
EVOLVE = ("mixed", "mutation", "crossover", "svd", "layers", "mask", "noise", "dare", "layerwise", "svd_mix", "extrapolate",
          "copy", "mean", "none")                   # each operator of operators.py by its name
ADVANTAGES = ("reinforce++", "grpo", "dr_grpo", "rloo")                                     # rl.py, as the next
WHITEN = ("auto", "member", "kind", "off")


def flag(default, help, choices=None, kind=None):
    """A configuration field: default, help text, legal values. None = the style's preset, of the given kind."""
    return field(default=default, metadata=dict(help=help, choices=choices, kind=kind or type(default)))


@dataclass(frozen=True)
class Config:
    """Every switch of a run: name, default, meaning. `python train.py --help` prints this table."""
    base: str = flag("micro/base", "Hugging Face directory or hub id of the frozen base")
    name: str = flag("", "the run's directory under --out; default: the base's name and a free number")
    out: str = flag("out", "where runs are kept")
    resume: str = flag("", "auto (the latest checkpoint of --name) or a run's directory")
    init: str = flag("", "directory of PEFT adapters, one folder a member in slot order, to start from")
    seed: int = flag(0, "every random draw is keyed by (seed, step, phase, member, index)")
    steps: int = flag(None, "steps of the run", kind=int)
    device: str = flag("auto", "auto, cpu or cuda")
    style: str = flag("auto", "how the model is talked to; auto: as config.json and the tokenizer say", ("auto", *STYLES))
    dtype: str = flag("auto", "of the frozen base", ("auto", "float32", "bfloat16"))
    cuda_graphs: bool = flag(False, "on a GPU, decode by CUDA graphs (no GPU has run this yet: see README, Measured)")
    threads: int = flag(None, "CPU threads a process; 0 = torch's choice", kind=int)
    plan: bool = flag(False, "only print the memory plan of these flags; exit code 0 if it fits, 2 if not")
    show: int = flag(0, "tasks printed each step, with their attempts")
    replay: str = flag("", "a run's directory: play --step of it again and print it, writing nothing; the run's own flags hold. "
                       "Starts from the nearest checkpoint at or before the step (--keep 999 leaves all), else from step 0, and "
                       "computes the steps in between again; exit code 1 where the texts are not those of tasks.jsonl, as on "
                       "another device")
    step: int = flag(0, "the step to replay")
    match: str = flag("", "the match to replay, as T2:S1; default: all of the step")
    # the population
    pop: int = flag(8, "members: half teachers, half students")
    teachers: int = flag(0, "number of teachers, instead of half of --pop")
    students: int = flag(0, "number of students, instead of half of --pop")
    single: bool = flag(False, "one adapter in both roles, compute per adapter matched (Absolute Zero Reasoner)")
    rank: int = flag(None, "LoRA rank R", kind=int)
    alpha: float = flag(None, "LoRA alpha; the update is scaled by alpha / R", kind=float)
    lora_targets: str = flag(",".join(TARGETS), "linear layers that carry adapters")
    # phase 1: match
    matching: str = flag("pfsp", "how a teacher draws its student", MATCHING)
    matching_floor: float = flag(0.1, "share of the uniform distribution in matching: exploration")
    # phase 2: propose
    kinds: str = flag(None, "task kinds in turn, of " + ",".join(KINDS), kind=str)
    n_prompts: int = flag(None, "prompts a teacher answers each step", kind=int)
    group: int = flag(8, "proposals sampled from one prompt (the baseline's group)")
    n_refs: int = flag(None, "reference tasks shown in a prompt (K)", kind=int)
    seed_tasks: str = flag("", "JSON lines of tasks to start the archive from; default: the identity program, and each kind's "
                               "own example")
    dedupe: str = flag("structural", "what counts as a duplicate of the run's archive, so as invalid",
                       ("structural", "exact", "off"))
    max_digits: int = flag(0, "digits of a number in inputs and outputs, at most; 0 = the style's own limit")
    max_output: int = flag(0, "characters of an output, at most; 0 = the style's own limit")
    max_guess: float = flag(1.0, "refuse the archive's most frequent output while its share of the latest tasks is above this")
    archive_cap: int = flag(16384, "tasks kept per kind, oldest out; keys are remembered for the whole run")
    # phase 3: solve
    attempts: int = flag(None, "attempts at each task (n): a difficulty knob, keep it fixed across arms", kind=int)
    temperature: float = flag(1.0, "of proposals and attempts")
    max_new: int = flag(None, "tokens of a proposal or an answer, at most", kind=int)
    # phase 4: reward and update
    teacher_reward: str = flag("difficulty", "reward of a valid proposal by its solve rate", tuple(TEACHER_REWARDS))
    invalid_penalty: float = flag(-1.0, "reward of an invalid proposal (-1, -0.1 and 0 have been studied)")
    duplicate_penalty: float = flag(None, "reward of a duplicate; default: that of any invalid proposal", kind=float)
    gate_leak: float = flag(0.0, "probability that an invalid proposal is rewarded as a valid one that nobody solves")
    noise_margin: float = flag(0.1, "noise-proof: by how much the solve rate must beat guessing")
    student_reward: str = flag("graded", "graded: correct 1, wrong -0.5, malformed -1; binary: 1, 0, 0", tuple(STUDENT_REWARDS))
    advantage: str = flag("reinforce++", "baseline and scale of rewards", ADVANTAGES)
    whiten: str = flag("auto", "whitening over a member's tokens: per member, per member and kind (TRR++), or off", WHITEN)
    clip: float = flag(0.2, "PPO clip; with one epoch on policy the ratio is 1")
    kl: float = flag(0.0, "weight of the KL to the base")
    entropy: float = flag(0.0, "weight of the entropy bonus")
    lr: float = flag(None, "Adam's learning rate of students, and of --single", kind=float)
    lr_teacher: float = flag(None, "the same for teachers", kind=float)
    rating: str = flag("trueskill", "rating system", tuple(RATINGS))
    outcome: str = flag("expected", "who won: solve rate against its prediction, against 1/2 with a band, or without", OUTCOMES)
    outcome_band: float = flag(0.05, "half-width of a draw in solve rate")
    # phase 5: evolve
    evolve: str = flag("mixed", "operators of replacement, or none", EVOLVE)
    evolve_every: int = flag(None, "steps between replacements", kind=int)
    cull: float = flag(0.25, "share of each role that is replaced, at least one")
    grace: int = flag(-1, "steps during which a child cannot be replaced; -1 = one interval")
    child_rating: str = flag("mean", "rating of a child: mean of its parents, widened; or fresh", CHILD_RATINGS)
    # probes, books and machine
    probe_every: int = flag(None, "steps between absolute probes (anchor tasks, frozen base); 0 = never", kind=int)
    anchors: str = flag("", "JSON lines of held-out tasks; default: the base's anchors.jsonl, else the run's first valid tasks")
    n_anchors: int = flag(None, "anchor tasks, at most", kind=int)
    heldout: str = flag("", "JSON lines of tasks of kinds that the run does not play; default: the base's heldout.jsonl, else none")
    n_heldout: int = flag(None, "of these, tasks of each kind, at most", kind=int)
    probe_share: float = flag(None, "share of the anchors and held-out tasks asked at probes between the first and the last",
                              kind=float)
    save_every: int = flag(10, "steps between checkpoints")
    keep: int = flag(2, "checkpoints kept")
    max_rows: int = flag(None, "rows that decode together", kind=int)
    token_budget: int = flag(None, "padded tokens of a micro-batch of the update", kind=int)
    workers: int = flag(2, "sandbox processes")
    cpu_s: float = flag(0.5, "CPU seconds a program may use")
    weak_sandbox: bool = flag(False, "run model code with weaker walls where the system has no seccomp (dangerous)")


# What a style of base wants where the command line says nothing. The micro values are measured in LOG.md.
PRESETS = {
    "micro": dict(steps=80, rank=8, alpha=32.0, kinds="code_o", n_prompts=3, n_refs=0, attempts=4, max_new=80, lr=1e-3,
                  lr_teacher=3e-3, evolve_every=15, probe_every=20, n_anchors=476, n_heldout=64,
                  probe_share=.2, max_rows=512, token_budget=1024, threads=1),
    "chat": dict(steps=200, rank=32, alpha=64.0, kinds="code_o,code_i,code_f", n_prompts=3, n_refs=6, attempts=8, max_new=512,
                 lr=1e-5, lr_teacher=1e-5, evolve_every=10, probe_every=20, n_anchors=96,
                 n_heldout=96, probe_share=1.0, max_rows=128, token_budget=2048, threads=0)}
PRESETS["base"] = PRESETS["chat"] | dict(max_new=1024)
PRESETS["direct"] = PRESETS["chat"] | dict(max_new=192)
POSITIVE = ("steps", "rank", "alpha", "n_prompts", "group", "archive_cap", "attempts", "max_new", "clip", "lr", "lr_teacher",
            "evolve_every", "save_every", "keep", "max_rows", "token_budget", "workers", "cpu_s")
NOT_NEGATIVE = ("seed", "threads", "show", "step", "n_refs", "max_digits", "max_output", "noise_margin", "kl", "entropy",
                "outcome_band", "probe_every", "n_anchors", "n_heldout")
# Fields that may change between a run and its resumption without changing what it computes.
FREE = ("base", "name", "out", "resume", "init", "steps", "device", "cuda_graphs", "threads", "plan", "show", "replay", "step",
        "match", "save_every", "keep", "workers")


def parse_args(description: str | None, argv: list[str] | None = None) -> Config:
    """Command line to Config. Exits with code 2 and a suggestion for an unknown flag or value."""
    parser = argparse.ArgumentParser(description=description, usage="train.py [--flag value ...]   (--help lists every switch)",
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for f in dataclasses.fields(Config):
        preset = {style: values[f.name] for style, values in PRESETS.items() if f.name in values}      # of a flag without default
        shown = ", ".join(f"{style} {value}" for style, value in preset.items()) if f.default is None else f.default
        text = (f.metadata["help"] + ("" if shown == "" or shown is False else f" ({shown})")).replace("%", "%%")
        kind, choices = f.metadata["kind"], f.metadata["choices"]
        how = dict(action="store_true") if kind is bool else dict(type=kind, choices=choices)
        parser.add_argument("--" + f.name.replace("_", "-"), dest=f.name, default=f.default, help=text, **how)
    args, unknown = parser.parse_known_args(argv)
    for word in unknown:
        flags = [o for a in parser._actions for o in a.option_strings]
        near = difflib.get_close_matches(word.split("=")[0], flags, 1)
        parser.error(f"unknown argument {word}" + (f": did you mean {near[0]}?" if near else "; --help lists all"))
    return Config(**vars(args))


def settle(cfg: Config, style: str) -> Config:
    """Fill the style's presets in and check the numbers against each other. Raises ValueError with the fix."""
    cfg = dataclasses.replace(cfg, **{k: v for k, v in PRESETS[style].items() if getattr(cfg, k) is None})
    half = 1 if cfg.single else cfg.pop // 2
    n_teachers, n_students = cfg.teachers or half, cfg.students or half
    cfg = dataclasses.replace(cfg, style=style, teachers=n_teachers, students=n_students,
                              grace=cfg.evolve_every if cfg.grace < 0 else cfg.grace,
                              duplicate_penalty=cfg.invalid_penalty if cfg.duplicate_penalty is None else cfg.duplicate_penalty)
    unknown, flagged = set(cfg.kinds.split(",")) - set(KINDS), lambda name: f"--{name.replace('_', '-')} {getattr(cfg, name)}"
    problems = [
        (cfg.pop % 2 or cfg.pop < 2,
         f"--pop {cfg.pop} cannot be halved into teachers and students: give an even number from 2 on"),
        (cfg.single and (n_teachers, n_students) != (1, 1),
         "--single is one adapter in both roles: leave out --teachers and --students, or leave out --single"),
        (min(n_teachers, n_students) < 1, "--teachers and --students must be at least 1"),
        (bool(unknown), f"--kinds: {', '.join(sorted(unknown))} unknown; valid: {', '.join(KINDS)}"),
        (not 0 < cfg.probe_share <= 1, f"--probe-share {cfg.probe_share}: a share in (0, 1]"),
        (not 0 <= cfg.cull < 1, f"--cull {cfg.cull}: a share in [0, 1)"),
        (style != "micro" and cfg.n_refs < 1, f"--n-refs {cfg.n_refs}: the {style} style shows references; give at least 1"),
        (not 0 <= cfg.max_guess <= 1, f"--max-guess {cfg.max_guess}: a share in [0, 1]"),
        (not 0 <= cfg.gate_leak <= 1 or not 0 <= cfg.matching_floor <= 1, "--gate-leak and --matching-floor are probabilities"),
        (not cfg.temperature > 0,
         f"--temperature {cfg.temperature}: greedy attempts have solve rates of 0 or 1; give a positive number"),
        *[(not math.isfinite(v), f"{flagged(k)}: not a finite number") for k, v in vars(cfg).items() if isinstance(v, float)],
        *[(not getattr(cfg, k) > 0, f"{flagged(k)}: must be positive") for k in POSITIVE],
        *[(getattr(cfg, k) < 0, f"{flagged(k)}: must not be negative") for k in NOT_NEGATIVE]]
    for wrong, text in problems:
        if wrong:
            raise ValueError(text)
    for kind in cfg.kinds.split(","):
        for phase in ("propose", "solve"):
            wording(kind, style, phase)
    return cfg
