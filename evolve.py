"""Decides about the population: who meets whom, who won, who is replaced, and who is born of whom.

In the words of evolutionary computation: fitness = conservative rating mu - 3 sigma; selection = truncation;
replacement = steady state, worst out; operators = mutations and crossovers in weight space (operators.py);
evaluation = competitive two-population co-evolution.

    python evolve.py out/a/best/S0 out/b/best/S1 --operator add --out child     # a child by hand
"""
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from common import UserError, leave, parser_of
from config import Config, Numbers
from lora import TARGETS, Adapters, name_of
from operators import BY_NAME, CROSSOVERS, MUTATIONS, OPERATORS, adapter_cosines, dw_norm
from trueskill_lite import Rating
from weights import load_peft, read_peft, save_peft

# What a member can be. A role's first letter begins its members' names ("T0"). Its place here is its number
# in Batch.role of rl.py. docs/change-it.md adds a role.
ROLES = ("teacher", "student")
DRAW_BAND = 0.05                # a match is a draw if the solve rate is this close to the expected one


# --- members ------------------------------------------------------------------------------------------------

@dataclass
class Member:
    """Holds what the population knows of one adapter."""
    name: str                           # "T0": role initial and a serial number that only counts up
    role: str                           # "teacher" | "student"
    slot: int                           # its row in the stacked tensors
    rating: Rating
    born: int = 0                       # step
    parents: tuple[str, ...] = ()       # founders have none
    operator: str = "founder"
    matches: int = 0
    lr_scale: float = 1.0               # its learning rate, as a multiple of its role's

    @classmethod
    def from_json(cls, data: dict) -> "Member":
        """Returns a Member from what `asdict` made of it, after a way through JSON."""
        made = cls(**data)
        made.parents = tuple(data["parents"])
        made.rating = Rating(**data["rating"])
        return made


def members_of(members: list[Member], role: str) -> list[Member]:
    """Returns the members that have this role, in the order given."""
    return [m for m in members if m.role == role]


def member_order(name: str) -> tuple[int, int, str]:
    """Returns a sort key for members' names: T2 before T10 before S0, as slots are numbered."""
    initials = "".join(role[0].upper() for role in ROLES)
    return initials.find(name[0]), len(name), name


# --- learning rates -----------------------------------------------------------------------------------------

def decay(lr_decay: Numbers, step: int) -> float:
    """Returns the share of every learning rate that --lr-decay HOLD,END,FLOOR leaves at a step of the run. It
    is 1 for the first HOLD steps, then falls on a straight line, and is FLOOR after END steps."""
    hold, end, floor = lr_decay
    way_down = (step + 1 - hold) / (end - hold)
    way_down = min(max(way_down, 0.0), 1.0)
    return 1 - (1 - floor) * way_down


def learning_rates(cfg: Config, members: list[Member], step: int) -> list[float]:
    """Returns Adam's learning rate for each slot: --lr-ROLE if there is such a flag, else --lr, times the
    member's own scale and the decay. The decay goes by the step of the run, so no child starts hot again."""
    left = decay(cfg.lr_decay, step)
    rates = {}                          # slot -> rate
    for m in members:
        rate = cfg.lr
        if not cfg.single:
            rate = getattr(cfg, f"lr_{m.role}", cfg.lr)
        rates[m.slot] = left * m.lr_scale * rate
    return [rates[slot] for slot in sorted(rates)]


def spread(n: int, factor: float, rng: Random) -> list[float]:
    """Returns n scales between 1 / sqrt(factor) and sqrt(factor), in random order. The range is cut into n
    parts of equal ratio, and one scale is drawn log-uniformly from each part."""
    scales = []
    for i in range(n):
        share = (i + rng.random()) / n                  # place in the range, from 0 to 1
        scales.append(factor ** (share - 0.5))
    return rng.sample(scales, n)


# --- matching -----------------------------------------------------------------------------------------------

def pfsp(p: float) -> float:
    """Weighs a student the more, the more open the result is: prioritized fictitious self-play."""
    return p * (1 - p)


def uniform(p: float) -> float:
    """Weighs every student equally."""
    return 1.0


# --matching -> the weight of a student that beats the teacher with probability p
WEIGHTS = {"pfsp": pfsp, "uniform": uniform}


def match(
    teachers: list[Member],
    students: list[Member],
    p_beats: Callable[[Member, Member], float],     # (teacher, student) -> P(the student wins)
    mode: str,                                      # --matching
    floor: float,                                   # share of the uniform distribution in the weights
    rng: Random,
) -> list[tuple[Member, Member]]:
    """Returns a pair (teacher, student) for every teacher. A teacher draws its student by WEIGHTS. Nobody is
    drawn twice before all have been drawn once, so that every student gets data."""
    pairs, pool = [], []
    for teacher in rng.sample(teachers, len(teachers)):
        if not pool:
            pool = list(students)
        weights = []
        for student in pool:
            weights.append(WEIGHTS[mode](p_beats(teacher, student)))
        total = sum(weights) or 1.0                 # 0: every result is certain, and only the floor is left
        shares = []
        for weight in weights:
            shares.append((1 - floor) * weight / total + floor / len(pool))
        [student] = rng.choices(pool, shares)
        pool.remove(student)
        pairs.append((teacher, student))
    return pairs


def winner_of(solve_rate: float | None, expected: float) -> str:
    """Returns who won a match: "student" if its solve rate on the teacher's tasks is above the one that the
    ratings predict, "teacher" if it is below, or "draw". Without a valid task (None) the student has won."""
    if solve_rate is None:
        return "student"
    surprise = solve_rate - expected
    if abs(surprise) <= DRAW_BAND:
        return "draw"
    if surprise > 0:
        return "student"
    return "teacher"


# --- selection and birth ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Birth:
    """Holds a replacement that is decided and not yet done: the child will take the victim's slot."""
    child: str                          # its name
    victim: Member
    parents: tuple[Member, ...]         # fitter first
    operator: str


def choose_operator(mode: str, n_survivors: int, rng: Random) -> str:
    """Draws an operator for --evolve. A single survivor can only mutate."""
    pools = dict(mixed=MUTATIONS | CROSSOVERS, mutation=MUTATIONS, crossover=CROSSOVERS)
    wanted = rng.choice(list(pools.get(mode, [mode])))          # else the mode is an operator's name
    if OPERATORS[wanted].n_parents <= n_survivors:
        return wanted
    return "copy" if wanted in BY_NAME else rng.choice(list(MUTATIONS))


def plan_births(
    members: list[Member],
    fitness: Callable[[Member], float],
    replace_frac: float,
    grace: int,
    step: int,
    mode: str,                          # --evolve
    rng: Random,                        # it also puts equally fit members into order
) -> list[Birth]:
    """Returns the births that replace the bottom `replace_frac` of a role by fitness, but at least one
    (truncation selection). It spares the fittest, and a child whose age in steps is at most `grace`."""
    played = [m for m in members if m.matches]
    if mode == "none" or replace_frac == 0 or len(played) < 2:
        return []
    ranked = sorted(rng.sample(played, len(played)), key=fitness)       # worst first; equals in random order
    old_enough = [m for m in ranked[:-1] if not m.parents or step - m.born > grace]
    victims = old_enough[:max(1, int(replace_frac * len(played)))]
    survivors = [m for m in ranked if m not in victims]
    serial = max(int(m.name[1:]) for m in members)      # the highest of all, so that no name comes twice
    births = []
    for number, victim in enumerate(victims, serial + 1):
        operator = choose_operator(mode, len(survivors), rng)
        parents = rng.sample(survivors, OPERATORS[operator].n_parents)
        parents.sort(key=survivors.index, reverse=True)
        births.append(Birth(f"{victim.name[0]}{number}", victim, tuple(parents), operator))
    return births


@torch.no_grad()
def apply_operator(adapters: Adapters, birth: Birth, gen: torch.Generator, **knobs: float) -> float:
    """Makes the child and writes it over the victim. Returns the norm of its dW over the mean norm of its
    parents' dW, or 0 if the parents have not learned anything."""
    parents = [adapters.factors(m.slot) for m in birth.parents]
    child = OPERATORS[birth.operator].fn(parents, gen, **knobs)
    adapters.set_factors(birth.victim.slot, child)
    mean_norm = sum(map(dw_norm, parents)) / len(parents)
    return dw_norm(child) / mean_norm if mean_norm > 0 else 0.0


def newborn(birth: Birth, rating: Rating, step: int, mutate: float, rng: Random) -> Member:
    """Returns the Member that replaces the victim. Its learning rate is that of the fitter parent, multiplied
    or divided by `mutate`."""
    scale = birth.parents[0].lr_scale
    if mutate != 1:
        scale *= rng.choice((mutate, 1 / mutate))
    return Member(
        name=birth.child,
        role=birth.victim.role,
        slot=birth.victim.slot,
        rating=rating,
        born=step,
        parents=tuple(m.name for m in birth.parents),
        operator=birth.operator,
        lr_scale=scale)


def genealogy_line(birth: Birth, child: Member, norm_ratio: float) -> dict:
    """Returns a line of genealogy.jsonl: a child, how it was made, its parents, and its victim as it was."""
    return dict(
        step=child.born,
        child=child.name,
        operator=birth.operator,
        norm_ratio=norm_ratio,
        mu=child.rating.mu,
        sigma=child.rating.sigma,
        lr_scale=child.lr_scale,
        parents=list(map(asdict, birth.parents)),
        victim=asdict(birth.victim))


# --- by hand ------------------------------------------------------------------------------------------------

def module_order(path: str) -> tuple[list[int], int]:
    """Returns a sort key for modules' paths. It gives the model's own order, in which operators draw."""
    return list(map(int, re.findall(r"\d+", path))), TARGETS.index(name_of(path))


def cross(
    directories: list[str],                         # the parents', the fitter first
    operator: str,
    out: str | Path,
    seed: int = 0,
    **knobs: float,                                 # the operator's
) -> tuple[float, torch.Tensor]:
    """Makes a child of PEFT directories, and writes it into the new directory `out`. Returns its norm ratio
    and the cosines (P + 1, P + 1) between the dW of the parents and the child, which is the last."""
    out = Path(out)
    if out.exists() and list(out.iterdir()):
        raise UserError(f"--out {out} holds files already: give a new directory")
    n = OPERATORS[operator].n_parents
    if len(directories) != n:
        raise UserError(f"{operator} makes a child of {n} adapter(s): got {len(directories)}")
    config, base_hash, first = read_peft(directories[0])
    shapes = {}                                     # path -> (in, out)
    for path in sorted(first, key=module_order):
        A, B = first[path]                          # (R, in), (out, R)
        shapes[path] = A.shape[1], len(B)
    adapters = Adapters(shapes, n + 1, config["r"], config["lora_alpha"])
    members = []
    for slot in range(n + 1):
        members.append(Member("", "", slot, Rating()))
        if slot < n:
            load_peft(adapters, slot, directories[slot], base_hash)
    birth = Birth("", members[n], tuple(members[:n]), operator)
    ratio = apply_operator(adapters, birth, torch.Generator().manual_seed(seed), **knobs)
    save_peft(adapters, n, out, config.get("base_model_name_or_path") or "", base_hash)
    return ratio, adapter_cosines(list(map(adapters.factors, range(n + 1))))


def main() -> None:
    """Makes the child that the command line asks for."""
    parser = parser_of("evolve.py", "Make a child of adapters by hand.")
    parser.add_argument("parents", nargs="+", help="PEFT directories of one base and rank, the fitter first")
    parser.add_argument("--operator", default="add", choices=tuple(OPERATORS))
    parser.add_argument("--share", type=float, help="add: how much of each parent's update (0.7)")
    parser.add_argument("--seed", type=int, default=0, help="of what the operator draws")
    parser.add_argument("--out", required=True, help="the child's directory: a new or an empty one")
    args = parser.parse_args()
    knobs = {}
    if args.share is not None:
        if args.operator != "add":
            raise UserError(f"--share is a flag of add: --operator {args.operator} has no share")
        knobs = dict(share=args.share)
    ratio, cosines = cross(args.parents, args.operator, args.out, args.seed, **knobs)
    print(f"{args.out} = {args.operator}({', '.join(args.parents)})\nnorm of its update over the mean of its "
          f"parents': {ratio:.2f}\ncosines of the updates, the child last:\n{cosines}")


if __name__ == "__main__":
    leave("evolve.py", main)
