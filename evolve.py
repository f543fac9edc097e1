"""The population: who meets whom, who won, who is replaced, and who is born of whom.

In the words of evolutionary computation: fitness = conservative rating mu - 3 sigma; selection = truncation;
replacement = steady state, worst out; operators = mutations and crossovers in weight space (operators.py);
evaluation = competitive two-population co-evolution.

    python evolve.py out/a/step_40/S0 out/b/step_40/S1 --operator add --out child     # two adapters by hand
"""
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from common import demand, leave, number_from, parser_of
from config import Config, Numbers
from lora import TARGETS, Adapters, name_of
from operators import BY_NAME, CROSSOVERS, MUTATIONS, OPERATORS, adapter_cosines, dw_norm
from trueskill_lite import Rating
from weights import load_peft, read_peft, save_peft

# What a member can be. A role's first letter begins its members' names ("T0"), its place here is Batch.role
# of rl.py. docs/change-it.md adds one.
ROLES = ("teacher", "student")
DRAW_BAND = 0.05                        # a solve rate that is no further from the one compared with is a draw


# --- members ------------------------------------------------------------------------------------------------

@dataclass
class Member:
    """One adapter of the population."""
    name: str                           # "T0": role initial and a serial number that only counts up
    role: str                           # "teacher" | "student"
    slot: int                           # its row in the stacked tensors
    rating: Rating
    born: int = 0                       # step
    parents: tuple[str, ...] = ()       # founders have none
    operator: str = "founder"
    matches: int = 0
    lr_scale: float = 1.0               # its rate over that of its role

    @classmethod
    def from_json(cls, data: dict) -> "Member":
        """The Member of which `asdict` made this dictionary, after a way through JSON."""
        return cls(**data | dict(parents=tuple(data["parents"]), rating=Rating(**data["rating"])))


def members_of(members: list[Member], role: str) -> list[Member]:
    """The members that have this role, in the order given."""
    return [m for m in members if m.role == role]


def member_order(name: str) -> tuple[int, int, str]:
    """A sort key for members' names: T2 comes before T10 and T10 before S0, as slots are numbered."""
    return "TS".find(name[0]), len(name), name


# --- learning rates -----------------------------------------------------------------------------------------

def decay(lr_decay: Numbers, step: int) -> float:
    """The share of every learning rate that --lr-decay HOLD,END,FLOOR leaves at a step of the run. It is 1
    for the first HOLD steps, then falls on a straight line, and is FLOOR from step END on."""
    hold, end, floor = lr_decay
    way_down = (step + 1 - hold) / (end - hold)
    way_down = min(max(way_down, 0.0), 1.0)
    return 1 - (1 - floor) * way_down


def learning_rates(cfg: Config, members: list[Member], step: int) -> list[float]:
    """Adam's learning rate for each slot: --lr-ROLE if there is such a flag, else --lr, times the member's own
    scale and the decay, which goes by the step of the run: no child starts hot again."""
    left = decay(cfg.lr_decay, step)
    rates = {}                          # slot -> rate
    for m in members:
        rate = cfg.lr
        if not cfg.single:
            rate = getattr(cfg, f"lr_{m.role}", cfg.lr)
        rates[m.slot] = left * m.lr_scale * rate
    return [rates[slot] for slot in sorted(rates)]


def spread(n: int, factor: float, rng: Random) -> list[float]:
    """n scales between 1 / sqrt(factor) and sqrt(factor), in random order. The range is cut into n parts of
    equal ratio, and one scale is drawn log-uniformly from each part."""
    shares = [(i + rng.random()) / n for i in range(n)]                 # of the range, from 0 to 1
    return [factor ** (share - 0.5) for share in rng.sample(shares, n)]


# --- matching -----------------------------------------------------------------------------------------------

def pfsp(p: float) -> float:
    """Prioritized fictitious self-play: a student is drawn the more often, the more open the result is."""
    return p * (1 - p)


def uniform(p: float) -> float:
    """Every student is drawn equally often."""
    return 1.0


def hard(p: float) -> float:
    """A student is drawn the more often, the more surely it loses."""
    return (1 - p) ** 2


# --matching -> weight with which a student is drawn that beats the teacher with probability p
WEIGHTS = {"pfsp": pfsp, "uniform": uniform, "hard": hard}


def match(
    teachers: list[Member],
    students: list[Member],
    p_beats: Callable[[Member, Member], float],     # (teacher, student) -> P(the student wins)
    mode: str,                                      # --matching
    floor: float,                                   # share of the uniform distribution in the weights
    rng: Random,
) -> list[tuple[Member, Member]]:
    """A pair (teacher, student) for every teacher: it draws a student by WEIGHTS, nobody twice before all have
    been drawn once, so that every student gets data."""
    pairs, pool = [], []
    for teacher in rng.sample(teachers, len(teachers)):
        if not pool:
            pool = list(students)
        weights = [number_from(WEIGHTS[mode], p_beats(teacher, student)) for student in pool]
        total = sum(weights) or 1.0                 # 0: every result is certain, nothing but the floor is left
        shares = [(1 - floor) * weight / total + floor / len(pool) for weight in weights]
        [student] = rng.choices(pool, shares)
        pool.remove(student)
        pairs.append((teacher, student))
    return pairs


def winner_of(solve_rate: float | None, expected: float) -> str:
    """Who won a match, "student", "teacher" or "draw": the student's solve rate on the teacher's tasks against the
    one that the ratings predict. Without a valid task (None) the student has won."""
    if solve_rate is None:
        return "student"
    surprise = solve_rate - expected
    if abs(surprise) <= DRAW_BAND:
        return "draw"
    return "student" if surprise > 0 else "teacher"


# --- selection and birth ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Birth:
    """A replacement that is decided and not yet done: `child` takes the victim's slot."""
    child: str                          # its name
    victim: Member
    parents: tuple[Member, ...]         # fitter first
    operator: str


def choose_operator(mode: str, n_parents: int, rng: Random) -> str:
    """An operator for --evolve when `n_parents` survivors can be parents; one survivor can only mutate."""
    pools = dict(mixed=MUTATIONS | CROSSOVERS, mutation=MUTATIONS, crossover=CROSSOVERS)
    wanted = rng.choice(list(pools.get(mode, [mode])))          # else the mode is an operator's name
    if OPERATORS[wanted].n_parents <= n_parents:
        return wanted
    return "copy" if wanted in BY_NAME else rng.choice(list(MUTATIONS))


def plan_births(
    members: list[Member],
    fitness: Callable[[Member], float],
    replace_frac: float,
    grace: int,
    step: int,
    mode: str,                          # --evolve
    rng: Random,                        # also breaks ties
) -> list[Birth]:
    """Truncation selection in one role: the births that replace the bottom `replace_frac` by fitness, at least
    one. Never the fittest, nor a child whose age in steps is at most `grace`."""
    played = [m for m in members if m.matches]
    if mode == "none" or replace_frac == 0 or len(played) < 2:
        return []
    ranked = sorted(rng.sample(played, len(played)), key=fitness)       # worst first; equals in random order
    old_enough = [m for m in ranked[:-1] if not m.parents or step - m.born > grace]
    victims = old_enough[:max(1, int(replace_frac * len(played)))]
    survivors = [m for m in ranked if m not in victims]
    serial = max(int(m.name[1:]) for m in members)      # of all: no name ever comes twice
    births = []
    for number, victim in enumerate(victims, serial + 1):
        operator = choose_operator(mode, len(survivors), rng)
        parents = rng.sample(survivors, OPERATORS[operator].n_parents)
        parents.sort(key=survivors.index, reverse=True)
        births.append(Birth(f"{victim.name[0]}{number}", victim, tuple(parents), operator))
    return births


@torch.no_grad()
def apply_operator(adapters: Adapters, birth: Birth, gen: torch.Generator, **knobs: float) -> float:
    """Make the child and write it over the victim. Returns the norm of its dW over the mean norm of the parents'
    dW; 0 where the parents have not learned anything."""
    parents = [adapters.factors(m.slot) for m in birth.parents]
    child = OPERATORS[birth.operator].fn(parents, gen, **knobs)
    adapters.set_factors(birth.victim.slot, child)
    mean_norm = sum(map(dw_norm, parents)) / len(parents)
    return dw_norm(child) / mean_norm if mean_norm > 0 else 0.0


def newborn(birth: Birth, rating: Rating, step: int, mutate: float, rng: Random) -> Member:
    """The Member that replaces the victim. Its learning rate is the fitter parent's, times or over `mutate`."""
    scale = birth.parents[0].lr_scale
    if mutate != 1:
        scale *= rng.choice((mutate, 1 / mutate))
    return Member(birth.child, birth.victim.role, birth.victim.slot, rating, step,
                  tuple(m.name for m in birth.parents), birth.operator, lr_scale=scale)


def genealogy_line(birth: Birth, child: Member, norm_ratio: float) -> dict:
    """One line of genealogy.jsonl: a child, how it was made, and its parents and victim as they were then."""
    return dict(step=child.born, child=child.name, operator=birth.operator, norm_ratio=norm_ratio,
                mu=child.rating.mu, sigma=child.rating.sigma, lr_scale=child.lr_scale,
                parents=list(map(asdict, birth.parents)), victim=asdict(birth.victim))


# --- by hand ------------------------------------------------------------------------------------------------

def module_order(path: str) -> tuple[list[int], int]:
    """A sort key for modules' paths that gives the model's own order, in which operators draw."""
    return list(map(int, re.findall(r"\d+", path))), TARGETS.index(name_of(path))


def cross(directories: list[str], operator: str, out: str | Path, seed: int = 0,
          **knobs: float) -> tuple[float, torch.Tensor]:
    """Make a child of PEFT directories, the fitter first, in the directory `out`. Returns its norm ratio and the
    cosines (P + 1, P + 1) of the parents' and the child's dW."""
    n = OPERATORS[operator].n_parents
    demand(len(directories) == n, f"{operator} makes a child of {n} adapter(s): got {len(directories)}")
    config, base_hash, first = read_peft(directories[0])
    shapes = {}                         # path -> (in, out)
    for path in sorted(first, key=module_order):
        A, B = first[path]              # (R, in), (out, R)
        shapes[path] = A.shape[1], len(B)
    adapters = Adapters(shapes, n + 1, config["r"], config["lora_alpha"])      # the child in the last slot
    for slot, directory in enumerate(directories):
        load_peft(adapters, slot, directory, base_hash)
    *parents, child = [Member("", "", slot, Rating()) for slot in range(n + 1)]
    gen = torch.Generator().manual_seed(seed)
    ratio = apply_operator(adapters, Birth("", child, tuple(parents), operator), gen, **knobs)
    save_peft(adapters, n, Path(out), config.get("base_model_name_or_path"), base_hash)
    return ratio, adapter_cosines(list(map(adapters.factors, range(n + 1))))


def main() -> None:
    """The command line."""
    parser = parser_of("evolve.py", "Make a child of adapters by hand.")
    parser.add_argument("parents", nargs="+", help="PEFT directories of one base and rank, the fitter first")
    parser.add_argument("--operator", default="add", choices=tuple(OPERATORS))
    parser.add_argument("--share", type=float, default=0.7, help="add: of each parent's update")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="the child's directory")
    args = parser.parse_args()
    knobs = dict(share=args.share) if args.operator == "add" else {}
    ratio, cosines = cross(args.parents, args.operator, args.out, args.seed, **knobs)
    print(f"{args.out} = {args.operator}({', '.join(args.parents)}), norm of its update over its parents' "
          f"mean {ratio:.2f}; cosines, the child last:\n{cosines}")


if __name__ == "__main__":
    leave("evolve.py", main)
