"""The population: who meets whom, who won, who is replaced, and who is born of whom.

In the words of evolutionary computation: fitness = conservative rating mu - 3 sigma; selection = truncation;
replacement = steady state, worst out; operators = mutations and crossovers in weight space (operators.py);
evaluation = competitive two-population co-evolution.

A member is replaced in four steps: plan_births decides who, by which parents and operator (a Birth);
apply_operator makes its factors in the victim's slot; newborn makes its Member; genealogy_line tells of it.

    python -m evolve out/a/step_40/S0 out/b/step_40/S1 --operator add --out child     # two adapters by hand
"""
import itertools
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch

from config import Config, Numbers
from infra.command import leave, parser_of
from infra.errors import demand, number_from, place
from infra.files import demand_fields
from lora import TARGETS, Adapters, Factors, name_of
from operators import BY_NAME, CROSSOVERS, EXACT, MUTATIONS, OPERATORS, adapter_cosines, dw_norm, n_children
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
    niche: tuple[str, ...] = ()         # task types that it plays; () = all
    lr_scale: float = 1.0               # its rate over that of its role

    @classmethod
    def from_json(cls, data: dict) -> "Member":
        """The Member of which `asdict` made this dictionary, after a way through JSON. Raises UserError where
        a field is missing."""
        demand_fields(data, {"name", "role", "slot", "rating", "parents", "niche"})
        fields = dict(data)
        # JSON knows neither tuples nor our classes
        fields["parents"] = tuple(data["parents"])
        fields["niche"] = tuple(data["niche"])
        fields["rating"] = Rating(**data["rating"])
        return cls(**fields)


def members_of(members: list[Member], role: str) -> list[Member]:
    """The members that have this role, in the order given."""
    # nobody would have a role that is not in the list, and nobody would notice
    assert role in ROLES, f"{role!r} is not in evolve.ROLES {ROLES}: add it there"
    return [m for m in members if m.role == role]


def member_order(name: str) -> tuple[int, int, str]:
    """A sort key for members' names: T2 comes before T10 and T10 before S0, as slots are numbered; names of
    no role come first."""
    letters = "".join(role[0].upper() for role in ROLES)
    role = letters.find(name[0])        # -1: none
    return role, len(name), name        # the length: a shorter number is a smaller one


# --- niches: task types that only some members play ---------------------------------------------------------

def plays(member: Member, kind: str) -> bool:
    """Whether the member gets tasks of this type. A member without a niche plays every type."""
    return not member.niche or kind in member.niche


def can_meet(a: Member, b: Member) -> bool:
    """Whether there is a task type that both members play."""
    return not a.niche or any(plays(b, kind) for kind in a.niche)


def able_to_meet(teacher: Member, students: list[Member]) -> list[Member]:
    """The students that have a task type in common with the teacher."""
    return [student for student in students if can_meet(teacher, student)]


def cover(members: Iterable[Member]) -> set[str]:
    """All task types that are in the niche of at least one of the members."""
    types = set()
    for m in members:
        types.update(m.niche)
    return types


def is_last_of_a_type(member: Member, members: list[Member]) -> bool:
    """Whether a task type would be in no niche any more if this one of the members left."""
    others = list(members)
    others.remove(member)
    return cover(others) != cover(members)


# --- learning rates -----------------------------------------------------------------------------------------

def decay(lr_decay: Numbers, step: int) -> float:
    """The share of every learning rate that --lr-decay HOLD,END,FLOOR leaves at a step of the run. It is 1
    for the first HOLD steps, then falls on a straight line, and is FLOOR from step END on."""
    hold, end, floor = lr_decay
    way_down = (step + 1 - hold) / (end - hold)
    way_down = min(max(way_down, 0.0), 1.0)
    return 1 - (1 - floor) * way_down


def learning_rates(cfg: Config, members: list[Member], step: int) -> list[float]:
    """Adam's learning rate for each slot: that of the member's role, times its own scale and the decay.

    A role's rate is --lr-ROLE if there is such a flag, else --lr; with --single it is always --lr. The decay
    goes by the step of the run and not by a member's age, so that no child starts hot again. Raises UserError
    for a rate that is too large for float32.
    """
    left = decay(cfg.lr_decay, step)
    rates = {}                          # slot -> rate
    for m in members:
        rate = cfg.lr
        if not cfg.single:
            rate = getattr(cfg, f"lr_{m.role}", cfg.lr)
        rate = left * m.lr_scale * rate
        demand(rate < 1e30,             # float32 ends at 3e38
               f"the rate of {m.name} is beyond all numbers: lower --lr-spread or --lr-mutate")
        rates[m.slot] = rate
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
    step: int = 0,
    n: int = 0,                                     # --matches; 0 = one for every teacher
) -> list[tuple[Member, Member]]:
    """The pairs (teacher, student) of one step. Only members with a common task type meet.

    With "all" these are all pairs, or n of them that are drawn. With "round-robin" the students take turns
    from step to step. Else each teacher, or each of n teachers that are drawn, draws a student by WEIGHTS.
    """
    if mode == "all":
        pairs = []
        for teacher in teachers:
            for student in able_to_meet(teacher, students):
                pairs.append((teacher, student))
        return rng.sample(pairs, n) if n else pairs
    if mode == "round-robin":
        pairs = take_turns(teachers, students, step)
        return rng.sample(pairs, n or len(pairs))

    pairs = []
    pool = []                           # students that may still be drawn
    for teacher in rng.sample(teachers, n or len(teachers)):
        # without replacement until all are used, so that every student gets data
        if not able_to_meet(teacher, pool):
            pool += students
        able = able_to_meet(teacher, pool)
        p_wins = [p_beats(teacher, student) for student in able]
        [student] = rng.choices(able, draw_weights(p_wins, mode, floor))
        pool.remove(student)
        pairs.append((teacher, student))
    return pairs


def take_turns(
    teachers: list[Member],
    students: list[Member],
    step: int,
) -> list[tuple[Member, Member]]:
    """A pair for each teacher: the next student in each step."""
    pairs = []
    for number, teacher in enumerate(teachers, step):
        able = able_to_meet(teacher, students)
        pairs.append((teacher, able[number % len(able)]))
    return pairs


def draw_weights(p_wins: list[float], mode: str, floor: float) -> list[float]:
    """The weight of each student from its probability to win: WEIGHTS, mixed with `floor` of the uniform
    distribution."""
    assert mode in WEIGHTS, f"--matching {mode} has no rule in evolve.WEIGHTS: add one there"
    rule = WEIGHTS[mode]
    weights = []
    for p in p_wins:
        weight = number_from(rule, p)
        assert weight >= 0, f"{place(rule)} returned {weight!r} for p = {p:.3g}: a weight is 0 or more"
        weights.append(weight)
    total = sum(weights)
    if not total:                       # every result is certain: nothing but the floor is left
        return [1.0] * len(weights)
    return [(1 - floor) * weight / total + floor / len(weights) for weight in weights]


def winner_of(
    solve_rate: float | None,           # None = the teacher had no valid task: the student wins
    expected: float,                    # the solve rate that the ratings predict
    rule: str = "expected",             # --outcome
) -> str:
    """Who won a match, "student", "teacher" or "draw", by the student's solve rate on the teacher's tasks.

    "expected" compares it with the predicted solve rate, and calls it a draw within DRAW_BAND of that. "half"
    compares it with 1/2 in the same way; "raw" compares it with 1/2, and calls only 1/2 itself a draw.
    """
    if solve_rate is None:
        return "student"
    surprise = solve_rate - 0.5
    band = DRAW_BAND
    if rule == "expected":
        surprise = solve_rate - expected
    elif rule == "raw":
        band = 0.0
    else:
        assert rule == "half", f"--outcome {rule} has no case in evolve.winner_of: add one"
    if abs(surprise) <= band:
        return "draw"
    return "student" if surprise > 0 else "teacher"


# --- selection ----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Birth:
    """A replacement that is decided and not yet done: `child` takes the victim's slot."""
    child: str                          # its name
    victim: Member
    parents: tuple[Member, ...]         # fitter first
    operator: str
    note: str = ""                      # where the plan had to deviate


def choose_operator(mode: str, n_parents: int, rng: Random) -> tuple[str, str]:
    """An operator for an evolve mode when `n_parents` survivors can be parents, and a note where it is not
    the one that was drawn."""
    pools = dict(mixed=MUTATIONS | CROSSOVERS, mutation=MUTATIONS, crossover=CROSSOVERS)
    pool = pools.get(mode, [mode])      # else the mode is an operator's name
    wanted = rng.choice(list(pool))     # from a list of one, too: every mode draws as often
    operator = OPERATORS[wanted]
    is_operator = hasattr(operator, "n_parents")
    assert is_operator, f"OPERATORS[{wanted!r}] is {place(operator)}: give an Operator, with n_parents"
    if operator.n_parents <= n_parents:
        return wanted, ""
    instead = "copy"
    if wanted not in BY_NAME:
        instead = rng.choice(list(MUTATIONS))
    return instead, f"{wanted} needs two parents, one survived"


def choose_parents(survivors: list[Member], n: int, number: int, rng: Random) -> list[Member]:
    """n parents for the number-th child of a step (from 1). survivors: worst first.

    They are drawn uniformly. With niches the pair comes first that covers most task types, of these pairs the
    one with the fewest types in common, then the fittest; the next child has the next pair.
    """
    if n == 1 or not survivors[0].niche:
        return rng.sample(survivors, n)

    def worth(pair: tuple[Member, Member]) -> tuple[int, int, int]:
        first, second = pair
        a = set(first.niche)
        b = set(second.niche)
        return len(a | b), -len(a & b), survivors.index(first) + survivors.index(second)

    pairs = itertools.combinations(survivors, 2)
    best_first = sorted(pairs, key=worth, reverse=True)
    return list(best_first[(number - 1) % len(best_first)])


def choose_victims(
    members: list[Member],
    ranked: list[Member],               # those of them that have played, worst first
    n: int,
    grace: int,
    step: int,
) -> list[Member]:
    """At most n members to be replaced, the worst first.

    Never the fittest, nor a child of an age in steps <= grace, nor the last with a task type in its niche.
    Founders have grace only if there are niches.
    """
    victims = []
    staying = list(members)
    for m in ranked[:-1]:
        has_grace = bool(m.parents or m.niche)
        if has_grace and step - m.born <= grace:
            continue
        if len(victims) == n or is_last_of_a_type(m, staying):
            continue
        victims.append(m)
        staying.remove(m)
    return victims


def plan_births(
    members: list[Member],
    fitness: Callable[[Member], float],
    replace_frac: float,
    grace: int,
    step: int,
    mode: str,                          # --evolve
    rng: Random,                        # also breaks ties
    litter: int = 1,
) -> list[list[Birth]]:
    """Truncation selection in one role: the births that replace the bottom `replace_frac` by fitness.

    There is a list for each victim: `litter` different children of one name that could replace it, or as
    many as the survivors can have. Only members that have played take part. Where two or more have, at least
    one is replaced, if `choose_victims` may take it. No births at replace_frac 0 or in mode "none".
    """
    played = [m for m in members if m.matches]
    if mode == "none" or replace_frac == 0 or len(played) < 2:
        return []
    shuffled = rng.sample(played, len(played))          # sorting is stable: equals stay in random order
    ranked = sorted(shuffled, key=fitness)
    n_victims = max(1, int(replace_frac * len(played)))
    victims = choose_victims(members, ranked, n_victims, grace, step)
    survivors = [m for m in ranked if m not in victims]

    serial = max(int(m.name[1:]) for m in members)      # of all: no name ever comes twice
    size = min(litter, n_children(mode, len(survivors)))
    litters = []
    n_drawn = 0                                         # children of this step, with those drawn twice
    for victim in victims:
        serial += 1
        name = victim.name[0] + str(serial)
        births = []
        while len(births) < size:
            n_drawn += 1
            birth = draw_birth(name, victim, survivors, mode, n_drawn, rng)
            # an exact operator makes the same child of the same parents; others draw another one
            if birth.operator not in EXACT or birth not in births:
                births.append(birth)
        litters.append(births)
    return litters


def draw_birth(
    name: str,
    victim: Member,
    survivors: list[Member],            # worst first
    mode: str,
    number: int,
    rng: Random,
) -> Birth:
    """The Birth of the number-th child of a step (from 1), with an operator and parents that are drawn."""
    operator, note = choose_operator(mode, len(survivors), rng)
    n_parents = OPERATORS[operator].n_parents
    parents = choose_parents(survivors, n_parents, number, rng)
    parents.sort(key=survivors.index, reverse=True)     # operators take the fitter first
    return Birth(name, victim, tuple(parents), operator, note)


# --- birth --------------------------------------------------------------------------------------------------

def shared_generators() -> tuple:
    """The states of the generators that Python, numpy and torch draw from where none is given to them. An
    operator that draws without its `gen` changes one of these."""
    _, numbers, position, *_ = np.random.get_state()
    return random.getstate(), numbers.tobytes(), position, torch.get_rng_state().numpy().tobytes()


def check_child(make: Callable, child: Factors, parent: Factors) -> None:
    """That an operator made the factors of an adapter: the parent's layers, with the parent's shapes."""
    got = type(child).__name__
    assert isinstance(child, dict), f"{place(make)} returned {got}: give a dictionary, layer -> (A, B)"
    odd = sorted(child.keys() ^ parent.keys())
    assert not odd, f"{place(make)} left out layers, or added some: {', '.join(odd):.200}"
    for name, factors in child.items():
        shapes = [tuple(factor.shape) for factor in factors]
        wanted = [tuple(factor.shape) for factor in parent[name]]
        assert shapes == wanted, (f"{place(make)} gave {name} factors of the shapes {shapes}: A and B of its "
                                  f"parents have {wanted}")


@torch.no_grad()
def apply_operator(
    adapters: Adapters,
    birth: Birth,
    gen: torch.Generator,
    **knobs: float,                     # of the operator
) -> float:
    """Make the child and write it over the victim in `adapters`. Returns the norm of its dW over the mean
    norm of the parents' dW; 0 where the parents have not learned anything."""
    parents = [adapters.factors(m.slot) for m in birth.parents]
    make = OPERATORS[birth.operator].fn
    before = shared_generators()
    child = make(parents, gen, **knobs)
    assert shared_generators() == before, (f"{place(make)} draws random numbers without its `gen`: the run "
                                           "could not be repeated")
    check_child(make, child, parents[0])
    adapters.set_factors(birth.victim.slot, child)
    mean_norm = sum(map(dw_norm, parents)) / len(parents)
    if mean_norm > 0:
        return dw_norm(child) / mean_norm
    return 0.0


def newborn(
    birth: Birth,
    rating: Rating,
    step: int,
    mutate: float = 1.0,                # --lr-mutate
    rng: Random | None = None,
) -> Member:
    """The Member that replaces the victim. Its learning rate is the fitter parent's, multiplied or divided by
    `mutate`; it plays what its parents play."""
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
        niche=tuple(sorted(cover(birth.parents))),
        lr_scale=scale,
    )


def genealogy_line(birth: Birth, child: Member, norm_ratio: float) -> dict:
    """One line of genealogy.jsonl: a child, how it was made, and its parents and victim as they were then."""
    return {
        "step": child.born,
        "child": birth.child,
        "operator": birth.operator,
        "note": birth.note,
        "norm_ratio": norm_ratio,
        "mu": child.rating.mu,
        "sigma": child.rating.sigma,
        "niche": child.niche,
        "lr_scale": child.lr_scale,
        "parents": list(map(asdict, birth.parents)),
        "victim": asdict(birth.victim),
    }


# --- by hand ------------------------------------------------------------------------------------------------

def module_order(path: str) -> tuple[list[int], int]:
    """A sort key for modules' paths that gives the model's own order. An operator's random numbers go to one
    module after the other, so the order decides what a child looks like."""
    numbers = list(map(int, re.findall(r"\d+", path)))
    return numbers, TARGETS.index(name_of(path))


def cross(
    directories: list[str],             # PEFT adapters, the fitter first
    operator: str,
    out: str | Path,
    seed: int = 0,
    **knobs: float,
) -> tuple[float, torch.Tensor]:
    """Make a child of PEFT directories in the directory `out`. Returns its norm ratio and the cosines (P + 1,
    P + 1) of the parents' and the child's dW. Raises UserError where the adapters do not fit together."""
    n = OPERATORS[operator].n_parents
    demand(len(directories) == n, f"{operator} makes a child of {n} adapter(s): got {len(directories)}")
    config, base_hash, first = read_peft(Path(directories[0]))
    base_name = config.get("base_model_name_or_path")
    shapes = {}                         # path -> (in, out)
    for path in sorted(first, key=module_order):
        A, B = first[path]              # (R, in), (out, R)
        shapes[path] = A.shape[1], len(B)

    adapters = Adapters(shapes, n + 1, config["r"], config["lora_alpha"])      # the child in the last slot
    for slot, directory in enumerate(directories):
        load_peft(adapters, slot, directory, base_hash, base_name)
    *parents, child = [Member("", "", slot, Rating()) for slot in range(n + 1)]
    birth = Birth("", child, tuple(parents), operator)
    gen = torch.Generator().manual_seed(seed)
    ratio = apply_operator(adapters, birth, gen, **knobs)
    save_peft(adapters, n, Path(out), base_name, base_hash)
    cosines = adapter_cosines(list(map(adapters.factors, range(n + 1))))
    return ratio, cosines


def main() -> None:
    """The command line. Raises UserError for what the user can mend."""
    parser = parser_of("python -m evolve", "Make a child of adapters by hand.")
    parser.add_argument("parents", nargs="+", help="PEFT directories of one base and rank, the fitter first")
    parser.add_argument("--operator", default="add", choices=tuple(OPERATORS))
    parser.add_argument("--share", type=float, default=0.7, help="add: of each parent's update")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="the child's directory")
    args = parser.parse_args()
    knobs = {}
    if args.operator == "add":
        knobs["share"] = args.share
    demand(0 < args.share <= 10, f"--share {args.share}: give a number in (0, 10]")
    ratio, cosines = cross(args.parents, args.operator, args.out, args.seed, **knobs)
    print(f"{args.out} = {args.operator}({', '.join(args.parents)}), norm of its update over its parents' "
          f"mean {ratio:.2f}; cosines, the child last:")
    for row in cosines.tolist():
        print(" ".join(f"{x:5.2f}" for x in row))


if __name__ == "__main__":
    leave("evolve", main)
