"""The population: matching, results, rates, selection, births, and a child by hand."""
import dataclasses
import json
import math
import random
from collections import Counter

import pytest
from factors import RANK, fresh, gen, same, shapes, trained

import evolve
from common import UserError
from config import EVOLVE, Config, resolve_config
from evolve import (
    WEIGHTS,
    Member,
    apply_operator,
    cross,
    learning_rates,
    match,
    newborn,
    plan_births,
    winner_of,
)
from lora import Adapters
from operators import CROSSOVERS, MUTATIONS, OPERATORS
from run import founders
from trueskill_lite import Rating
from weights import read_peft, save_peft


def team(letter, n, **more):
    """n members of a role that have played, the last the fittest."""
    role = {"T": "teacher", "S": "student"}[letter]
    return [Member(f"{letter}{i}", role, i, Rating(20 + i, 2.0), matches=1, **more) for i in range(n)]


def births_of(members, seed=0, replace_frac=0.25, grace=10, step=10, mode="mixed"):
    return plan_births(members, lambda m: m.rating.mu, replace_frac, grace, step, mode, random.Random(seed))


@pytest.mark.parametrize("n_teachers, n_students", [(5, 2), (2, 5)])
@pytest.mark.parametrize("mode", WEIGHTS)
def test_every_teacher_plays_and_every_student_gets_data(mode, n_teachers, n_students):
    for seed in range(5):
        pairs = match(team("T", n_teachers), team("S", n_students), lambda t, s: s.slot / 4, mode, 0.1, random.Random(seed))
        met = [sum(student.slot == slot for _, student in pairs) for slot in range(n_students)]
        assert sorted(t.slot for t, _ in pairs) == list(range(n_teachers)) and max(met) - min(met) <= 1


@pytest.mark.parametrize("mode, floor, shares", [
    ("pfsp", 0.0, [0.0795, 0.3515, 0.4184, 0.1506]), ("uniform", 0.0, [0.25] * 4), ("pfsp", 0.4, [0.1477, 0.3109, 0.3510, 0.1904])])
def test_matching_weights_by_frequency(mode, floor, shares):
    """p (1 - p) over its sum .5975, for p = .05, .3, .5, .9; the floor mixes in a quarter each."""
    p, rng, n = [0.05, 0.3, 0.5, 0.9], random.Random(0), 6000
    met = Counter(match(team("T", 1), team("S", 4), lambda t, s: p[s.slot], mode, floor, rng)[0][1].slot for _ in range(n))
    assert [met[slot] / n for slot in range(4)] == pytest.approx(shares, abs=0.025)


def test_who_wins_and_who_stands_where():
    assert [winner_of(r, 0.7) for r in (None, 0.8, 0.7, 0.66, 0.6)] == ["student", "student", "draw", "draw", "teacher"]
    assert sorted(["S0", "T10", "adapter", "T2", "x"], key=evolve.member_order) == ["x", "adapter", "T2", "T10", "S0"]


def test_rates_decay_by_the_step_of_the_run():
    """Whole for 2 steps, half way down in the 4th, a fifth from the 6th on; a newborn's as anybody's."""
    members = team("T", 1) + [Member("S9", "student", 1, Rating(), born=3)]
    cfg = resolve_config(Config(lr=0.5, lr_teacher=1.0, lr_decay=(2, 6, 0.2)), "micro")
    for step, share in enumerate([1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]):
        assert learning_rates(cfg, members, step) == pytest.approx([share, share / 2])


def test_founders_rates_are_spread_and_inherited():
    """Four students in four ranges of factor 2 around --lr, teachers at theirs; a child moves by one factor."""
    cfg = resolve_config(Config(pop=8, lr=1e-3, lr_teacher=3e-3, lr_spread=16.0), "micro")
    rates = learning_rates(cfg, founders(cfg), 0)
    assert rates[:4] == [3e-3] * 4 and rates == learning_rates(cfg, founders(cfg), 0)
    assert sorted(math.floor(math.log2(rate / 1e-3)) for rate in rates[4:8]) == [-2, -1, 0, 1]
    [birth] = births_of(team("S", 4), mode="mean")
    birth.parents[0].lr_scale = 2.0
    assert {newborn(birth, Rating(), 10, 1.25, random.Random(seed)).lr_scale for seed in range(20)} == {2.5, 1.6}
    assert newborn(birth, Rating(), 10, 1, random.Random(0)).lr_scale == 2.0


@pytest.mark.parametrize("n, replace_frac, dead", [(8, 0.25, 2), (2, 0.25, 1), (3, 0.9, 2), (1, 0.5, 0), (4, 0.0, 0)])
def test_the_worst_are_replaced_and_survivors_are_parents(n, replace_frac, dead):
    """Who has not played is neither; no name comes twice; the fitter parent stands first."""
    members = team("T", n) + [Member("T30", "teacher", n, Rating())]
    for seed in range(20):
        births = births_of(members, seed, replace_frac)
        assert sorted(b.victim.slot for b in births) == list(range(dead))
        assert [b.child for b in births] == [f"T{31 + i}" for i in range(dead)]
        for b in births:
            slots = [p.slot for p in b.parents]
            assert slots == sorted(set(slots), reverse=True) and min(slots) >= dead and max(slots) < n
            assert len(slots) == OPERATORS[b.operator].n_parents


def test_grace_spares_children_but_not_founders():
    members = team("S", 4)
    members[0].parents, members[0].born = ("S2",), 10
    assert [births_of(members, step=step)[0].victim.name for step in (20, 21)] == ["S1", "S0"]
    for m in members[1:3]:
        m.parents, m.born = ("S3",), 10
    assert births_of(members, step=20) == [], "the fittest stays, even if the others are spared"
    equal = [dataclasses.replace(m, rating=Rating()) for m in team("T", 4)]
    assert len({births_of(equal, seed)[0].victim.name for seed in range(40)}) == 4, "ties are broken by the seed"


@pytest.mark.parametrize("mode", EVOLVE)
def test_evolve_modes(mode):
    pools = {"mixed": {*MUTATIONS, *CROSSOVERS}, "mutation": {*MUTATIONS}, "crossover": {*CROSSOVERS}, "none": set()}
    assert {b.operator for seed in range(120) for b in births_of(team("T", 4), seed, mode=mode)} == pools.get(mode, {mode})
    for b in births_of(team("T", 2), replace_frac=0.5, mode=mode):
        assert OPERATORS[b.operator].n_parents == 1, "one survivor has no partner"


def saved(directory, factors, base_hash="abc"):
    """A PEFT directory of one adapter."""
    adapters = Adapters(shapes(), 1, len(next(iter(factors.values()))[0]), 8.0)
    adapters.set_factors(0, factors)
    save_peft(adapters, 0, directory, "some/base", base_hash)
    return directory


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_child_takes_the_victims_place_and_is_the_one_made_by_hand(operator, tmp_path):
    adapters = Adapters(shapes(), n_members=4, rank=RANK, alpha=8.0)
    [b] = births_of(team("T", 4), mode=operator)
    for factors in fresh, trained:              # parents that have not learned have no norm to compare with
        for p in range(4):
            adapters.set_factors(p, factors(p))
        ratio = apply_operator(adapters, b, gen(5))
        assert (ratio > 0) == (factors is trained)
    assert [same(adapters.factors(p), trained(p)) for p in range(4)] == [False, True, True, True]
    child = newborn(b, Rating(22.0, 4.0), 10, 1, random.Random(0))
    line = json.loads(json.dumps(evolve.genealogy_line(b, child, ratio)))
    assert [Member.from_json(m) for m in (line["victim"], *line["parents"])] == [b.victim, *b.parents]
    given = [saved(tmp_path / m.name, trained(m.slot)) for m in b.parents]
    by_hand, cosines = cross(given, operator, tmp_path / "child", seed=5)
    config, base_hash, factors = read_peft(tmp_path / "child")
    assert (base_hash, config["base_model_name_or_path"], len(cosines)) == ("abc", "some/base", len(given) + 1)
    assert by_hand == ratio and same(factors, adapters.factors(0))


def test_adapters_that_do_not_fit_are_not_crossed(tmp_path):
    narrow = {n: (A[:2], B[:, :2]) for n, (A, B) in trained(2).items()}
    one = saved(tmp_path / "one", trained(1))
    wrong = {"another base: some/base": [one, saved(tmp_path / "elsewhere", trained(2), base_hash="xyz")],
             r"rank and alpha \(2, 8\), the others have \(6, 8\)": [one, saved(tmp_path / "narrow", narrow)],
             "add makes a child of 2": [one]}
    for words, parents in wrong.items():
        with pytest.raises(UserError, match=words):
            cross(parents, "add", tmp_path / "child")
    assert not (tmp_path / "child").exists()


def test_the_command_writes_over_nothing(tmp_path, monkeypatch, capsys):
    """Neither a parent nor anything else that lies in --out; an empty directory will do."""
    parents = [str(saved(tmp_path / name, trained(i))) for i, name in enumerate("AB")]

    def command(*words):
        monkeypatch.setattr("sys.argv", ["evolve.py", *parents, *map(str, words)])
        evolve.main()

    for out in ("A", "."):
        with pytest.raises(UserError, match="holds files already"):
            command("--out", tmp_path / out)
    assert same(read_peft(parents[0])[2], trained(0))
    with pytest.raises(UserError, match="--share is a flag of add"):
        command("--operator", "mean", "--share", 0.9, "--out", tmp_path / "mean")
    (tmp_path / "mean").mkdir()
    command("--operator", "mean", "--out", tmp_path / "mean")
    command("--share", 0.5, "--out", tmp_path / "half")
    assert same(read_peft(tmp_path / "half")[2], read_peft(tmp_path / "mean")[2]) and "parents': 0." in capsys.readouterr().out
