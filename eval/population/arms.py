"""The arms of an ablation: ways to spend the same budget, and the training runs that each of them takes."""
import dataclasses
import re
import shlex

from config import Config, parse_args, resolve_config
from operators import OPERATORS

FULL = "full"
PAPER = ("single", "single-long", "singles", "pair", "no-evolution", "copy", "mutation", "crossover",
         "uniform", "frozen-teachers", "novelty", "full-nodedupe", "single-long-nodedupe")
PLANNED = ("no-evolution", "uniform", "pair", "single-long", "single", "frozen-teachers")      # primary
SECONDARY = (("pair", "single-long"), (FULL, "singles"), (FULL, "copy"), ("mutation", "crossover"),
             (FULL, "novelty"), (FULL, "full-nodedupe"), ("single-long", "single-long-nodedupe"),
             ("pair", "pair-wide"), ("single-long", "single-wide"))
SECOND_PLAN = ("pair-wide", "single-wide")          # against full, too
PRESETS = {"paper": PAPER,
           "primary": PLANNED,
           "operators": ("no-evolution", *OPERATORS),
           "quick": ("single-long", "no-evolution")}
SEED_STRIDE = 1000                  # between the seeds of independent singles


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to spend the budget: flags, one run's part of full's budget, runs of one seed."""
    what: str
    flags: tuple[str, ...]
    part: float = 1.0
    runs: int = 1


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run: its directory's name, its part of full's budget, its steps for one step of full."""
    name: str
    flags: tuple[str, ...]
    seed: int
    part: float
    stretch: int


def arms_of(pop: int, n_prompts: int) -> dict[str, Arm]:
    """Every arm by name, for a population of `pop` whose teachers answer n_prompts prompts a step."""
    pairs = pop // 2
    population = ("--pop", str(pop))
    wide = ("--n-prompts", str(n_prompts * pairs))
    off = ("--dedupe", "off")
    one = "one adapter in both roles"
    two = "one teacher and one student"
    arms = {
        FULL: Arm("the population as it is", population),
        "single": Arm(f"{one}, at the budget of one teacher and its student", ("--single",), 1 / pairs),
        "single-long": Arm(f"{one}, at the total budget: more steps", ("--single",)),
        "single-wide": Arm(f"{one}, at the total budget: larger steps", ("--single", *wide)),
        "singles": Arm(f"{pairs} singles, the first that of `single`", ("--single",), 1 / pairs, pairs),
        "pair": Arm(f"{two}, at the total budget: more steps", ("--pop", "2")),
        "pair-wide": Arm(f"{two}, at the total budget: larger steps", ("--pop", "2", *wide)),
        "no-evolution": Arm("nobody is replaced", (*population, "--evolve", "none")),
        "uniform": Arm("students are drawn uniformly", (*population, "--matching", "uniform")),
        "frozen-teachers": Arm("teachers do not learn", (*population, "--lr-teacher", "0")),
        "novelty": Arm("teachers are paid for novelty", (*population, "--teacher-reward", "novelty")),
        "full-nodedupe": Arm("the archive does not look for duplicates", (*population, *off)),
        "single-long-nodedupe": Arm("single-long without a look for duplicates", ("--single", *off))}
    for name in ("mutation", "crossover", *OPERATORS):
        arms[name] = Arm(f"children by {name} alone", (*population, "--evolve", name))
    arms["copy"] = dataclasses.replace(arms["copy"], what="children are copies: selection without variation")
    return arms


def given_arm(text: str, pop: int) -> tuple[str, Arm]:
    """An arm from the command line, "name: --flag value ...": a population of `pop` unless its flags differ.

    Raises ValueError where the text is not of this form.
    """
    name, colon, words = text.partition(":")
    if not colon or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name.strip()):
        raise ValueError(f"--arm {text!r}: give a name of small letters, digits, '-' and '.', a colon, and "
                         'flags of train.py, as in --arm "slow: --lr 3e-4"')
    flags = tuple(shlex.split(words))
    own_size = {"--single", "--pop"} & {flag.split("=")[0] for flag in flags}
    return name.strip(), Arm(f"given: {words.strip()}", flags if own_size else ("--pop", str(pop), *flags))


def rows_of_step(cfg: Config) -> int:
    """Proposals of one step and, at most, attempts at them."""
    return cfg.teachers * cfg.n_prompts * cfg.proposals_per_prompt * (1 + cfg.samples_per_task)


def stretch_of(arm: Arm, full: Config, common_flags: list[str]) -> int:
    """How many steps of an arm go on one step of full. Raises ValueError for flags that train.py refuses."""
    cfg = resolve_config(parse_args(None, [*common_flags, *arm.flags]), full.prompt_format)
    return max(1, round(arm.part * rows_of_step(full) / rows_of_step(cfg)))


def runs_of(name: str, arms: dict[str, Arm], seed: int, stretch: int = 1) -> list[Run]:
    """The runs of one arm and seed. Those of `singles` are 1000 apart; the first is that of `single`."""
    arm = arms[name]
    stem = "single" if name == "singles" else name
    seeds = [seed + SEED_STRIDE * i for i in range(arm.runs)]
    return [Run(f"{stem}-s{s}", arm.flags, s, arm.part, stretch) for s in seeds]
