"""The population: who meets whom, who won, who is replaced, and who is born of whom.

In the words of evolutionary computation: fitness = conservative rating mu - 3 sigma; selection = truncation;
replacement = steady state, worst out; operators = mutations and crossovers in weight space (operators.py);
evaluation = competitive two-population co-evolution.

    python -m evolve out/a/step_40/S0 out/b/step_40/S1 --operator add --out child     # two adapters by hand
"""
import argparse
import itertools
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from config import numbers_of
from infra.errors import UserError, demand
from infra.files import demand_fields
from lora import TARGETS, Adapters
from operators import BY_NAME, CROSSOVERS, EXACT, MUTATIONS, OPERATORS, adapter_cosines, dw_norm, n_children
from trueskill_lite import Rating
from weights import load_peft, read_peft, save_peft

# What a member can be. A role's first letter begins its members' names ("T0"), its place here is Batch.role
# of rl.py. docs/change-it.md adds one.
ROLES = ("teacher", "student")


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
    def from_json(cls, data):
        """Member from asdict's dict, read back from JSON. Raises UserError where a field is missing."""
        demand_fields(data, {"name", "role", "slot", "rating", "parents", "niche"})
        return cls(**data | {"parents": tuple(data["parents"]), "niche": tuple(data["niche"]),
                             "rating": Rating(**data["rating"])})


def members_of(members, role):
    """Those of a role."""
    return [m for m in members if m.role == role]


def member_order(name):
    """Sorts members' names as slots are numbered, T2 before T10 before S0; other names come first."""
    letters = [role[0].upper() for role in ROLES]
    return letters.index(name[0]) if name[0] in letters else 0, len(name), name


def plays(member, kind):
    """Whether a task type is in the member's niche."""
    return not member.niche or kind in member.niche


def can_meet(a, b):
    """Whether a type is in both niches."""
    return not a.niche or any(plays(b, kind) for kind in a.niche)


def cover(members):
    """The types in the members' niches, as a set."""
    return {kind for m in members for kind in m.niche}


def learning_rates(cfg, members, step):
    """Adam's rate of each slot: --lr-ROLE where it exists, else --lr (with --single always), times the
    member's scale and what --lr-decay leaves by the run's step, so that no child starts hot again.
    Raises UserError for a rate that is not finite."""
    hold, end, floor = numbers_of(cfg, "lr_decay")
    left = 1 - (1 - floor) * min(max((step + 1 - hold) / (end - hold), 0.0), 1.0)
    rates = {}
    for m in members:
        rate = cfg.lr if cfg.single else getattr(cfg, f"lr_{m.role}", cfg.lr)
        rates[m.slot] = rate = left * m.lr_scale * rate             # float32 ends at 3e38
        demand(rate < 1e30, f"the rate of {m.name} is beyond all numbers: lower --lr-spread or --lr-mutate")
    return [rates[slot] for slot in sorted(rates)]


def spread(n, factor, rng):
    """n scales from 1 / sqrt(factor) to sqrt(factor): log-uniform, one in each of n ranges of equal ratio."""
    places = [(i + rng.random()) / n for i in range(n)]
    return [factor ** (place - 0.5) for place in rng.sample(places, n)]


# --matching -> weight with which a student is drawn that beats the teacher with probability p
WEIGHTS = {"pfsp": lambda p: p * (1 - p), "uniform": lambda p: 1.0, "hard": lambda p: (1 - p) ** 2}


def match(teachers, students, p_beats, mode, floor, rng, step=0, n=0):
    """Pairs (teacher, student) of one step, of all teachers, or of n that are drawn, in shuffled order.

    p_beats(teacher, student) = P(student beats teacher) = p. A student is drawn with weight WEIGHTS[mode](p),
    mixed with `floor` of the uniform distribution; without replacement until all are used, so that everybody
    gets data. "round-robin" turns with `step`; "all" is every pair, or n of them. Only members with a common
    task type meet. rng: random.Random.
    """
    assert teachers and students, f"{len(teachers)} teachers cannot meet {len(students)} students"
    if mode == "all":
        pairs = [(t, s) for t in teachers for s in students if can_meet(t, s)]
        return rng.sample(pairs, n) if n else pairs
    pairs, pool = [], []
    if mode == "round-robin":
        for i, teacher in enumerate(teachers, step):
            able = [s for s in students if can_meet(teacher, s)]
            pairs.append((teacher, able[i % len(able)]))
        return rng.sample(pairs, n or len(pairs))
    for teacher in rng.sample(teachers, n or len(teachers)):
        if not any(can_meet(teacher, s) for s in pool):
            pool += students
        able = [s for s in pool if can_meet(teacher, s)]
        weight = [WEIGHTS[mode](p_beats(teacher, s)) for s in able]
        if total := sum(weight):        # else every result is certain: nothing but the floor is left
            weight = [(1 - floor) * w / total + floor / len(able) for w in weight]
        [student] = rng.choices(able, weight if total else [1.0] * len(able))
        pool.remove(student)
        pairs.append((teacher, student))
    return pairs


def outcome(solve_rate, expected, band=0.05, rule="expected"):
    """Who won a match: "student" | "teacher" | "draw", by the student's solve rate on the teacher's tasks.
    "expected": against the predicted solve rate, a draw within +-band; "half": against 1/2, with the band;
    "raw": against 1/2 without it. solve_rate None = the teacher had no valid task: the student wins."""
    if solve_rate is None:
        return "student"
    surprise = solve_rate - (expected if rule == "expected" else 0.5)
    if abs(surprise) <= (0.0 if rule == "raw" else band):
        return "draw"
    return "student" if surprise > 0 else "teacher"


class Birth(NamedTuple):
    """A decided replacement: `child` takes the victim's slot."""
    child: str
    victim: Member
    parents: tuple[Member, ...]         # fitter first
    operator: str
    note: str = ""                      # where the plan had to deviate


def choose_operator(mode, n_parents, rng):
    """(operator, note) for an evolve mode when `n_parents` survivors can be parents."""
    pools = dict(mixed=MUTATIONS | CROSSOVERS, mutation=MUTATIONS, crossover=CROSSOVERS)
    wanted = rng.choice(list(pools.get(mode, [mode])))
    if OPERATORS[wanted].n_parents <= n_parents:
        return wanted, ""
    instead = "copy" if wanted in BY_NAME else rng.choice([*MUTATIONS])
    return instead, f"{wanted} needs two parents, one survived"


def choose_parents(survivors, n, i, rng):
    """n parents of the i-th child of a step, drawn uniformly; with niches the pair that covers most types, of
    these the one with the fewest in common, then the fittest, and so on in turn. survivors: worst first."""
    if n == 1 or not survivors[0].niche:
        return rng.sample(survivors, n)

    def key(pair):
        a, b = (set(survivors[place].niche) for place in pair)
        return len(a | b), -len(a & b), sum(pair)

    pairs = sorted(itertools.combinations(range(len(survivors)), 2), key=key, reverse=True)
    return [survivors[place] for place in pairs[(i - 1) % len(pairs)]]


def plan(members, fitness, replace_frac, grace, step, mode, rng, litter: int = 1) -> list[list[Birth]]:
    """Truncation selection in one role: Births for the bottom `replace_frac` by fitness(member) -> float.

    For each victim a list: `litter` children of one name that could replace it, no two of them the same, or
    as many as the survivors can have.

    Only members that have played take part. At least one is replaced where there are two or more, but never
    the fittest, nor a child of an age in steps <= grace (founders have no grace), nor the last with a type in
    its niche; with niches founders have grace too. No births at replace_frac 0 or in mode "none".
    rng: random.Random, also breaks ties.
    """
    played = [m for m in members if m.matches]
    if mode == "none" or replace_frac == 0 or len(played) < 2:
        return []
    survivors = sorted(rng.sample(played, len(played)), key=fitness)        # worst first
    n_cull = max(1, int(replace_frac * len(played)))
    staying, victims = list(members), []
    for m in survivors[:-1]:
        is_old = not (m.parents or m.niche) or step - m.born > grace
        if is_old and len(victims) < n_cull and cover(staying) == cover(x for x in staying if x is not m):
            victims.append(m)
            staying.remove(m)
            survivors.remove(m)
    serial = max(int(m.name[1:]) for m in members)          # of all: no name ever comes twice
    litters, n_drawn = [], 0
    for i, victim in enumerate(victims, 1):
        births = []
        while len(births) < min(litter, n_children(mode, len(survivors))):
            n_drawn += 1
            operator, note = choose_operator(mode, len(survivors), rng)
            parents = choose_parents(survivors, OPERATORS[operator].n_parents, n_drawn, rng)
            parents.sort(key=survivors.index, reverse=True)
            birth = Birth(f"{victim.name[0]}{serial + i}", victim, tuple(parents), operator, note)
            if operator not in EXACT or birth not in births:
                births.append(birth)
        litters.append(births)
    return litters


@torch.no_grad()
def apply_operator(adapters, b, gen, **knobs):
    """Make b's child and write it over the victim in `adapters`. Returns |dW child| / mean |dW parent|."""
    parents = [adapters.factors(m.slot) for m in b.parents]
    child = OPERATORS[b.operator].fn(parents, gen, **knobs)
    adapters.set_factors(b.victim.slot, child)
    mean = sum(map(dw_norm, parents)) / len(parents)
    return dw_norm(child) / mean if mean > 0 else 0.0


def newborn(b, rating, step, mutate=1.0, rng=None):
    """The Member that replaces b.victim; its rate is the fitter parent's, times or over `mutate`."""
    parents, scale = tuple(m.name for m in b.parents), b.parents[0].lr_scale
    if mutate != 1:
        scale *= rng.choice((mutate, 1 / mutate))
    return Member(b.child, b.victim.role, b.victim.slot, rating, step, parents, b.operator,
                  niche=tuple(sorted(cover(b.parents))), lr_scale=scale)


def genealogy(b, child, norm_ratio):
    """One line of genealogy.jsonl."""
    return {"step": child.born, "child": b.child, "operator": b.operator, "note": b.note,
            "norm_ratio": norm_ratio, "mu": child.rating.mu, "sigma": child.rating.sigma,
            "niche": child.niche, "lr_scale": child.lr_scale,
            "parents": [asdict(m) for m in b.parents], "victim": asdict(b.victim)}


def cross(directories, operator, out, seed=0, **knobs):
    """Make a child of PEFT directories, the fitter first, in the directory `out`. Returns its norm ratio and
    the cosines (P + 1, P + 1) of the parents' and the child's dW. Raises UserError where the adapters do not
    fit together."""
    def place(path):        # of a module in its model: in this order operators draw for them
        return [int(number) for number in re.findall(r"\d+", path)], TARGETS.index(path.rsplit(".")[-1])

    n = OPERATORS[operator].n_parents
    demand(len(directories) == n, f"{operator} makes a child of {n} adapter(s): got {len(directories)}")
    config, base_hash, first = read_peft(Path(directories[0]))
    base_name = config.get("base_model_name_or_path")
    shapes = {path: (first[path][0].shape[1], len(first[path][1])) for path in sorted(first, key=place)}
    adapters = Adapters(shapes, n + 1, config["r"], config["lora_alpha"])
    for slot, directory in enumerate(directories):
        load_peft(adapters, slot, directory, base_hash, base_name)
    *parents, child = [Member("", "", slot, Rating()) for slot in range(n + 1)]
    birth, gen = Birth("", child, tuple(parents), operator), torch.Generator().manual_seed(seed)
    ratio = apply_operator(adapters, birth, gen, **knobs)
    save_peft(adapters, n, Path(out), base_name, base_hash)
    return ratio, adapter_cosines([adapters.factors(slot) for slot in range(n + 1)])


def main():
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m evolve", description="Make a child of adapters by hand.")
    parser.add_argument("parents", nargs="+", help="PEFT directories of one base and rank, the fitter first")
    parser.add_argument("--operator", default="add", choices=tuple(OPERATORS))
    parser.add_argument("--share", type=float, default=0.7, help="add: of each parent's update")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="the child's directory")
    args = parser.parse_args()
    knobs = {"share": args.share} if args.operator == "add" else {}
    try:
        demand(0 < args.share <= 10, f"--share {args.share}: give a number in (0, 10]")
        ratio, cosines = cross(args.parents, args.operator, args.out, args.seed, **knobs)
    except (UserError, OSError) as e:
        sys.exit(f"evolve: {e}")
    print(f"{args.out} = {args.operator}({', '.join(args.parents)}), norm of its update over its parents' "
          f"mean {ratio:.2f}; cosines, the child last:")
    print("\n".join(" ".join(f"{x:5.2f}" for x in row) for row in cosines.tolist()))


if __name__ == "__main__":
    main()
