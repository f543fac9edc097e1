"""The population: matching, outcomes, selection, births, genealogy."""
import contextlib
import dataclasses
import json
import math
import random
from collections import Counter

import pytest
import torch
from factors import RANK, fresh, gen, names, trained

import evolve
from config import EVOLVE, MATCHING, Config, resolve_config
from evolve import Member, apply_operator, cross, learning_rates, match, newborn, plan_births, winner_of
from common import UserError
from lora import Adapters
from operators import CROSSOVERS, EXACT, MUTATIONS, OPERATORS, dw_norm, n_children
from run import founders
from trueskill_lite import Rating
from weights import read_peft, save_peft


def team(letter, n, **more):
    """n members of a role that have played, the last the fittest."""
    role = {"T": "teacher", "S": "student"}[letter]
    return [Member(f"{letter}{i}", role, i, Rating(20 + i, 2.0), matches=1, **more) for i in range(n)]


def in_niches(letter, *niches):
    """A team by the letters of its types."""
    return [dataclasses.replace(m, niche=tuple(niche)) for m, niche in zip(team(letter, len(niches)), niches)]


def fitness(m):
    return m.rating.mu - 3 * m.rating.sigma


def births_of(members, seed=0, replace_frac=0.25, grace=10, step=10, mode="mixed"):
    return [birth for birth, in plan_births(members, fitness, replace_frac, grace, step, mode, random.Random(seed))]


def meet(teachers, students, mode, seed, p=None, floor=0.1, **more):
    """Names of the pairs of a step; p: of a student in a slot to win."""
    pairs = match(teachers, students, p or (lambda t, s: 0.3), mode, floor, random.Random(seed), **more)
    return [(t.name, s.name) for t, s in pairs]


def test_members_stand_in_the_order_of_slots():
    assert sorted(["S0", "T10", "adapter", "T2", "x"], key=evolve.member_order) == ["x", "adapter", "T2", "T10", "S0"]


@pytest.mark.parametrize("n_teachers,n_students", [(4, 4), (5, 2), (2, 5), (1, 1)])
@pytest.mark.parametrize("mode", MATCHING)
def test_every_teacher_plays_and_every_student_gets_data(mode, n_teachers, n_students):
    teachers, students = team("T", n_teachers), team("S", n_students)
    for step in range(5):
        pairs = meet(teachers, students, mode, step, lambda t, s: 0.1 + 0.15 * s.slot, step=step)
        if mode == "all":
            assert len(set(pairs)) == len(pairs) == n_teachers * n_students
            continue
        met, played = Counter(s for _, s in pairs), Counter(t for t, _ in pairs)
        assert set(played.values()) == {1} and len(played) == n_teachers
        assert max(met.values()) - min(met[s.name] for s in students) <= 1


@pytest.mark.parametrize("mode,floor,weight", [("pfsp", 0.0, lambda p: p * (1 - p)), ("hard", 0.0, lambda p: (1 - p) ** 2),
                                               ("uniform", 0.0, lambda p: 1.0), ("hard", 1.0, lambda p: 1.0),
                                               ("pfsp", 0.4, lambda p: 0.6 * p * (1 - p) / 0.5975 + 0.1)])
def test_matching_weights_by_frequency(mode, floor, weight):
    p, rng, n = [0.05, 0.3, 0.5, 0.9], random.Random(0), 6000
    teacher, students = team("T", 1), team("S", 4)
    met = Counter(match(teacher, students, lambda t, s: p[s.slot], mode, floor, rng)[0][1].slot for _ in range(n))
    want = [weight(x) for x in p]
    assert [met[slot] / n for slot in range(4)] == pytest.approx([w / sum(want) for w in want], abs=0.025)


@pytest.mark.parametrize("mode", MATCHING)
def test_so_many_matches(mode):
    """--matches: in the long run all teachers play, in a step no more than n, and the draw is by the generator alone."""
    teachers, students = team("T", 9), team("S", 4)
    assert len(meet(teachers, students, mode, 0, n=3)) == 3
    assert meet(teachers, students, mode, 0, n=3) == meet(teachers, students, mode, 0, n=3)
    assert {t for seed in range(40) for t, _ in meet(teachers, students, mode, seed, n=3)} == {m.name for m in teachers}
    certain = meet(teachers, students[:3], mode, 0, lambda t, s: 1.0, floor=0.0)
    assert len({s for _, s in certain}) == 3, "weights of zero fall back to uniform"


@pytest.mark.parametrize("mode", MATCHING)
def test_who_meets_has_a_type_in_common(mode):
    teachers, students = in_niches("T", "a", "b", "ab", "b"), in_niches("S", "b", "a", "a", "ab")
    steps = [match(teachers, students, lambda t, s: 0.3, mode, 0.5, random.Random(step), step) for step in range(40)]
    assert all({t.name for t, _ in pairs} == {"T0", "T1", "T2", "T3"} for pairs in steps)
    met = {(t.name, s.name) for pairs in steps for t, s in pairs}
    assert met == {(t.name, s.name) for t in teachers for s in students if set(t.niche) & set(s.niche)}


def test_outcomes():
    assert winner_of(None, 0.5) == "student"
    assert [winner_of(r, 0.7) for r in (0.8, 0.7, 0.66, 0.6)] == ["student", "draw", "draw", "teacher"]
    assert [winner_of(r, 0.9, "half") for r in (0.7, 0.54, 0.3)] == ["student", "draw", "teacher"]
    assert [winner_of(r, 0.9, "raw") for r in (0.55, 0.5, 0.45)] == ["student", "draw", "teacher"]


def test_rates_decay_by_the_step_of_the_run():
    """Whole for 2 steps, half way down in the 4th, a fifth from the 6th on; a newborn's as anybody's."""
    members = team("T", 1) + [Member("S9", "student", 1, Rating(), born=3)]
    cfg = resolve_config(Config(lr=0.5, lr_teacher=1.0, lr_decay=(2, 6, 0.2)), "micro")
    rates = [learning_rates(cfg, members, step) for step in range(8)]
    assert [rate for _, rate in rates] == pytest.approx([0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1])
    assert [rate for rate, _ in rates] == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    constant = resolve_config(Config(lr=1e-3, lr_teacher=3e-3, lr_decay=(0, 1, 1)), "micro")
    assert learning_rates(constant, members, 10 ** 6) == [3e-3, 1e-3]


def test_founders_rates_are_spread_and_inherited():
    """Four students in four ranges of factor 2 around --lr, teachers at theirs; a child moves by one factor."""
    cfg = resolve_config(Config(pop=8, lr=1e-3, lr_teacher=3e-3, lr_spread=16.0, lr_mutate=1.25), "micro")
    rates = learning_rates(cfg, founders(cfg), 0)
    assert rates[:4] == [3e-3] * 4 and rates == learning_rates(cfg, founders(cfg), 0)
    assert sorted(math.floor(math.log2(rate / 1e-3)) for rate in rates[4:]) == [-2, -1, 0, 1]
    first = {founders(dataclasses.replace(cfg, seed=seed))[4].lr_scale > 1 for seed in range(9)}
    assert first == {True, False}, "which student has which range is drawn"
    (birth,) = births_of(team("S", 4), mode="mean")
    birth.parents[0].lr_scale = 2.0
    scales = [newborn(birth, Rating(), 10, 1.25, random.Random(seed)).lr_scale for seed in range(20)]
    assert set(scales) == {2.5, 1.6} and scales[0] == newborn(birth, Rating(), 10, 1.25, random.Random(0)).lr_scale
    child = newborn(birth, Rating(), 10)
    assert child.lr_scale == 2.0 and evolve.genealogy_line(birth, child, 1.0)["lr_scale"] == 2.0
    with pytest.raises(UserError, match="rate of S4 is beyond all numbers"):
        learning_rates(cfg, [dataclasses.replace(child, lr_scale=math.inf)], 0)


@pytest.mark.parametrize("n,replace_frac,dead", [(4, 0.25, 1), (8, 0.25, 2), (2, 0.25, 1), (3, 0.9, 2), (1, 0.5, 0), (4, 0.0, 0), (6, 0.99, 5)])
def test_the_worst_are_replaced_and_survivors_are_parents(n, replace_frac, dead):
    members = team("T", n)
    for seed in range(20):
        births = births_of(members, seed, replace_frac)
        assert sorted(b.victim.slot for b in births) == list(range(dead))
        assert [b.child for b in births] == [f"T{n + i}" for i in range(dead)]
        for b in births:
            assert all(p.slot >= dead for p in b.parents) and len({p.name for p in b.parents}) == len(b.parents)
            assert len(b.parents) == OPERATORS[b.operator].n_parents
            assert [p.slot for p in b.parents] == sorted((p.slot for p in b.parents), reverse=True), "fitter first"


def test_grace_spares_children_but_not_founders():
    members = team("S", 4)
    members[0].parents, members[0].born = ("S2",), 10
    assert [births_of(members, step=step)[0].victim.name for step in (20, 21)] == ["S1", "S0"]
    assert births_of(team("S", 4, born=10, parents=("S9",)), step=20) == []
    for m in members[1:3]:
        m.parents, m.born = ("S3",), 10
    assert births_of(members, step=20) == [], "the fittest stays, even if the others are spared"
    equal = [dataclasses.replace(m, rating=Rating()) for m in team("T", 4)]
    assert len({births_of(equal, seed)[0].victim.name for seed in range(40)}) == 4, "ties are broken by the seed"


@pytest.mark.parametrize("mode", EVOLVE)
def test_evolve_modes(mode):
    pools = {"mixed": {*MUTATIONS, *CROSSOVERS}, "mutation": {*MUTATIONS}, "crossover": {*CROSSOVERS}, "none": set()}
    assert {b.operator for seed in range(120) for b in births_of(team("T", 4), seed, mode=mode)} == pools.get(mode, {mode})
    for b in births_of(team("T", 2), replace_frac=0.5, mode=mode):  # one survivor
        assert OPERATORS[b.operator].n_parents == 1
        assert bool(b.note) == (mode in ("crossover", "mean", "add", *CROSSOVERS)) or mode == "mixed"


@pytest.mark.parametrize("mode", [mode for mode in EVOLVE if mode != "none"])
def test_a_litter_is_of_different_children(mode):
    """The first is the one that a litter of 1 has; as many as asked for, or as the survivors can have."""
    members, most = team("S", 8), min(5, n_children(mode, 6))
    for seed in range(20):
        litters = plan_births(members, fitness, 0.25, 10, 10, mode, random.Random(seed), litter=5)
        assert [len(litter) for litter in litters] == [most, most] and litters[0][0] == births_of(members, seed, mode=mode)[0]
        for litter, name in zip(litters, ("S8", "S9")):
            assert {(b.child, b.victim.name) for b in litter} == {(name, litter[0].victim.name)}
            same = [(b.operator, [p.name for p in b.parents]) for b in litter if b.operator in EXACT]
            assert all(same.count(x) == 1 for x in same)
    assert n_children(mode, 6) == {"copy": 6, "mean": 15, "add": 15, "svd_mix": 15}.get(mode, math.inf)


def test_who_has_not_played_is_neither_replaced_nor_a_parent():
    """With --matches most members wait for their first match; the share is of those that have had it."""
    members = team("T", 20)
    for m in members[8:]:
        m.matches = 0
    for seed in range(20):
        births = births_of(members, seed)
        assert sorted(b.victim.slot for b in births) == [0, 1]
        assert [b.child for b in births] == ["T20", "T21"], "no name comes twice"
        assert all(p.slot in range(2, 8) for b in births for p in b.parents)


def test_partners_complement_each_other_and_a_child_plays_what_both_play():
    """Of the pairs that cover a, b and c those with nothing in common, of these the fittest; then the next one."""
    members = in_niches("S", "a", "a", "a", "b", "ab", "c", "bc", "a", "abc")
    births = births_of(members, step=11, mode="add")
    assert [[m.name for m in b.parents] for b in births] == [["S7", "S6"], ["S5", "S4"]]
    row = evolve.genealogy_line(births[0], newborn(births[0], Rating(), 11), 1.0)
    assert row["niche"] == ("a", "b", "c") and row["parents"][0]["niche"] == ("a",)
    assert births_of(members, mode="add") == [], "founders of niches have grace"
    assert all(newborn(b, Rating(), 11).niche == b.parents[0].niche for b in births_of(members, step=11, mode="copy"))
    for seed in range(5):                       # the last of a niche stays
        births = births_of(in_niches("S", "a", "b", "b", "c"), seed, 0.9, 0, 9, "copy")
        assert [b.victim.name for b in births] == ["S1"]


def adapters_of(make):
    """Four members' adapters with factors make(slot)."""
    adapters = Adapters({n: (i, o) for n, i, o in names()}, n_members=4, rank=RANK, alpha=8.0)
    for p in range(4):
        adapters.set_factors(p, make(p))
    return adapters


def saved(tmp_path, factors, name, alpha=8.0, base_hash="abc"):
    """A PEFT directory of one adapter."""
    adapters = Adapters({n: (i, o) for n, i, o in names()}, 1, len(next(iter(factors.values()))[0]), alpha)
    adapters.set_factors(0, factors)
    save_peft(adapters, 0, tmp_path / name, "some/base", base_hash)
    return str(tmp_path / name)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_child_takes_the_victims_place_and_is_the_one_made_by_hand(operator, tmp_path):
    adapters = adapters_of(trained)
    (b,) = births_of(team("T", 4), mode=operator)
    before = [adapters.factors(p) for p in range(4)]
    ratio = apply_operator(adapters, b, gen(5))
    same = [all(torch.equal(x, y) for n in before[p] for x, y in zip(before[p][n], adapters.factors(p)[n])) for p in range(4)]
    assert same == [False, True, True, True] and 0.4 < ratio < 2
    child = newborn(b, Rating(22.0, 4.0), 10)
    assert (child.slot, child.name, child.operator, child.born) == (0, "T4", operator, 10)
    line = json.loads(json.dumps(evolve.genealogy_line(b, child, ratio)))
    assert line["child"] == "T4" and line["victim"]["name"] == "T0" and line["operator"] == operator and line["mu"] == 22.0
    assert [p["name"] for p in line["parents"]] == list(child.parents)
    given = [saved(tmp_path, trained(m.slot), m.name) for m in b.parents]
    by_hand, cosines = cross(given, operator, tmp_path / "child", seed=5)
    _, base_hash, factors = read_peft(tmp_path / "child")
    assert base_hash == "abc" and by_hand == ratio and len(cosines) == len(given) + 1
    assert all(torch.equal(x, y) for n, pair in adapters.factors(0).items() for x, y in zip(pair, factors[n]))


def test_birth_from_fresh_parents():
    """No ratio of norms to speak of, and with noise a first update: evolution alone can leave the base."""
    adapters = adapters_of(fresh)
    (birth,) = births_of(team("T", 4), mode="noise")
    assert apply_operator(adapters, birth, gen()) == 0.0 < dw_norm(adapters.factors(birth.victim.slot))


def test_adapters_that_do_not_fit_are_not_crossed(tmp_path, capsys, monkeypatch):
    narrow = {n: (A[:2], B[:, :2]) for n, (A, B) in trained(2).items()}
    one, two = saved(tmp_path, trained(1), "one"), saved(tmp_path, trained(2), "two")
    wrong = [("another base: a run on some/base", [one, saved(tmp_path, trained(2), "elsewhere", base_hash="xyz")]),
             ("has rank 2", [one, saved(tmp_path, narrow, "narrow")]),
             ("alpha 9.0, not 6 and 8.0", [one, saved(tmp_path, trained(2), "loud", alpha=9.0)]),
             ("not a readable", [one, str(tmp_path)]), ("add makes a child of 2", [one])]
    for words, parents in wrong:
        with pytest.raises(UserError, match=words):
            cross(parents, "add", tmp_path / "child")
    for share, out in (("nan", "child"), ("0.5", "half")):
        monkeypatch.setattr("sys.argv", ["evolve", one, two, "--share", share, "--out", str(tmp_path / out)])
        with pytest.raises(UserError, match="--share nan") if share == "nan" else contextlib.nullcontext():
            evolve.main()
    cross([one, two], "mean", tmp_path / "mean")
    half, mean = [read_peft(tmp_path / name)[2] for name in ("half", "mean")]
    assert all(torch.equal(x, y) for n in mean for x, y in zip(half[n], mean[n]))
    assert " 1.00" in capsys.readouterr().out and not (tmp_path / "child").exists()
