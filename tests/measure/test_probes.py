"""Absolute measures: what is asked of whom, what is recognised as thinking, and how sure the means are."""
import dataclasses

import pytest

import selfplay
from evolve import Member
from measure import metrics, probes
from selfplay import Attempts
from tasks.base import Task
from tasks.prompts import reasoning
from tests.test_selfplay import asked, members, with_fates
from trueskill_lite import Rating


@pytest.mark.parametrize("prompt_format, text, wanted", [
    ("micro", ">[3,2]\n>5\n=5", "[3,2]\n5"), ("micro", "<4\n=3", "4"), ("micro", "=5", ""),
    ("micro", "=5" + "0" * 60, ""), ("micro", ">", ""),              # long is not thoughtful, nor is a mark alone
    ("chat", "First x is 3.\n\n```answer\n4\n```", "First x is 3."),
    ("chat", "```answer\n4\n```\nBecause x is 3.", ""), ("chat", "<think>x is 3</think>\n```answer\n4\n```", "x is 3"),
    ("direct", "```answer\n4\n```", ""),
    ("base", "<think>x is 3</think> <answer>4</answer>", "x is 3"), ("base", "<think></think> <answer>4</answer>", ""),
    ("base", "<think>x is 3 and so", "x is 3 and so")])
def test_thinking_is_what_the_styles_parser_says(prompt_format, text, wanted):
    assert reasoning(text, prompt_format) == wanted


def test_who_thinks():
    """Of hand-made answers: two of S0's four think, none of S1's two."""
    batch = with_fates()[:2]
    batch[0].answers = {"S0": [">1\n=2", "=2"], "S1": ["=2", "=3"]}
    batch[1].answers = {"S0": [">1\n>2\n=2", "=20"]}
    batch[0].attempts, batch[1].attempts = ({name: ["wrong"] * len(texts) for name, texts in p.answers.items()} for p in batch)
    thinks = {"T0": [False], "T1": [False], "S0": [True, False, True, False], "S1": [False, False]}
    assert metrics.thinking(batch, "micro") == thinks


def test_standard_error_counts_a_task_once():
    """Members that answer alike are no more information than one of them."""
    one, other = [True, True, False, False], [False, False, True, True]
    assert probes.standard_error({"S0": one, "S1": one}) == probes.standard_error({"S0": one}) == pytest.approx((1 / 3) ** .5 / 2)
    assert probes.standard_error({"S0": one, "S1": other}) == 0


def test_a_type_has_its_own_tasks():
    """None, on which the sandbox failed, counts for nobody."""
    tasks = [Task(kind, "", (), (), "", "") for kind in ("code_o", "code_i", "code_o", "code_o")]
    assert probes.by_type(tasks, {"S0": [1, 0, 0, None]}) == dict(code_i=dict(S0=0), code_o=dict(S0=.5))


def made(s, kind: str, *bodies: str) -> list[Task]:
    """Tasks of one-statement programs on 4."""
    return selfplay.make_tasks(s, [asked(kind, body, "4") for body in bodies], "")


def crowd_of(n_teachers: int, n_students: int) -> list[Member]:
    """So many members, each with a slot of its own."""
    names = [f"T{i}" for i in range(n_teachers)] + [f"S{i}" for i in range(n_students)]
    return [Member(name, "teacher" if name[0] == "T" else "student", slot, Rating()) for slot, name in enumerate(names)]


def test_probe(setup, monkeypatch):
    s, students, batch = setup(probe_every=1), members("student"), with_fates()[:2]
    current = made(s, "code_o", "x=x+1", "x=x*2")
    for p, task in zip(batch, current):
        p.task = task
    told = probes.probe(s, students, current[:1], [], batch, 0)
    assert set(told["heldout_greedy"]) == {"S0", "S1"} and told["heldout_n"] == 1
    assert told["heldout_greedy_base"] in (0.0, 1.0) and told["heldout_by_type"]["code_o"].keys() == {"S0", "S1", "base"}
    assert told["heldout_greedy_se"] is None, "one task has no spread"
    assert told["student_solve"] == 0.25 and told["probe_tokens"] > 0
    assert selfplay.mean(p.base_rate for p in batch) == told["base_solve"] > 0, "each task notes what the base did"
    later = probes.probe(s, students, current[:1], [], batch, 1)
    done = probes.ask_greedily(s, {0: "S0", 1: "S1", -1: "base"}, current[:1], 1).done
    assert later["heldout_greedy_base"] == told["heldout_greedy_base"], "asked each time, it never changes"
    monkeypatch.setattr(probes, "attempt", lambda *args: Attempts(done.rollout, done.texts, [["unjudged"] for _ in done.texts]))
    failed = probes.probe(s, students, current[:1], [], [], 1)
    assert failed["probe_failures"] == 3 and failed["heldout_greedy"] == {}
    assert probes.probe(s, students, [], [], [], 1) == dict(probe_tokens=0, probe_failures=0)


def test_kinds_that_nobody_plays(setup):
    """Students, teachers and the frozen base; only at a step with a probe, and the last."""
    s = setup(probe_every=4, steps=10)
    everybody = crowd_of(1, 1)
    tasks = made(s, "code_i", "x=x+1", "x=x*2", "x=x-1", "x=x+5")
    told = {step: probes.probe(s, everybody, [], tasks, [], step) for step in (0, 4, 5, 9)}
    assert told.pop(5) == {}
    for row in told.values():
        assert list(row["unseen"]) == ["code_i"] and set(row["unseen"]["code_i"]) == {"T0", "S0", "base"}
        assert set(row["unseen_think"]["code_i"]) == {"T0", "S0", "base"} and row["unseen_n"] == dict(code_i=4)
        assert row["unseen"] == told[0]["unseen"], "the same tasks and members: the same answers"
    alone = [dataclasses.replace(m, slot=0) for m in everybody]
    assert len(probes.probe(s, alone, [], tasks, [], 4)["unseen"]["code_i"]) == 2, "one adapter in both roles is asked once"


def test_of_many_members_some_are_asked(setup):
    """Drawn for each step, in their order."""
    s, crowd = setup(), crowd_of(9, 9)
    by_step = [[m.name for m in probes.sample_members(s.cfg, crowd, step, 4)] for step in range(20)]
    assert all(len(names) == 8 and names == sorted(names, key=[m.name for m in crowd].index) for names in by_step)
    assert [m.name for m in probes.sample_members(s.cfg, crowd, 0, 4)] == by_step[0] and len(set(map(tuple, by_step))) > 15
    assert {name for names in by_step for name in names} == {m.name for m in crowd}
    assert probes.sample_members(s.cfg, crowd, 0, 9) == crowd, "where there are few, all"


def test_fresh_members_are_not_asked_what_the_base_is_asked(setup, population):
    """Greedily they say the same, bit for bit; members that have learned are asked themselves."""
    s = setup(probe_every=1)
    s = dataclasses.replace(s, adapters=population(s.base, s.adapters.n_members, rank=8, b_std=0.0))
    tasks = made(s, "code_o", "x=x+1", "x=x*2")
    names = {0: "S0", 1: "S1", -1: "base"}
    asked = probes.ask_greedily(s, names, tasks, 0)
    found, done = asked.correct, asked.done
    asked = probes.ask_greedily(s, {-1: "base"}, tasks, 0)
    alone, done_alone = asked.correct, asked.done
    assert done.texts == done_alone.texts and found["S0"] == found["S1"] == found["base"] == alone["base"]
    moved = dataclasses.replace(s, adapters=population(s.base, s.adapters.n_members, rank=8, b_std=3.0))
    found = probes.ask_greedily(moved, names, tasks, 0).correct
    assert found["base"] == alone["base"] and found["S0"] != found["base"]


def test_held_out_tasks_are_the_first_of_each_type():
    """And a third of those of a type that is not played."""
    from run import first_of_types
    from tasks.base import Proposal
    given = [Proposal(kind, f"{kind} {i}", ("1",)) for i in range(3) for kind in ("math", "logic")]
    found = [p.program for p in first_of_types(given, 2, ("math",))]
    assert found == ["math 0", "math 1", "logic 0"] and not first_of_types(given, 0, ("math",))


def test_members_are_compared_with_the_others_of_their_role(setup, population):
    s, crowd = setup(), crowd_of(2, 21)
    adapters = population(s.base, len(crowd), rank=2, b_std=0.01)
    whole = metrics.mean_cosines(s.cfg, adapters, crowd, 0)
    assert set(whole) == {m.name for m in crowd} and all(abs(cosine) < 0.1 for cosine in whole.values())
    for slot in range(3, len(crowd)):
        adapters.set_factors(slot, adapters.factors(2))
    found = metrics.mean_cosines(s.cfg, adapters, crowd, 0)
    assert all(cosine == pytest.approx(float(name[0] == "S"), abs=0.1) for name, cosine in found.items())
