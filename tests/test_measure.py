"""What people study of a run: probes of what never changes, alarms on what drifts, and the terminal, which nothing steers."""
import dataclasses
import re
from collections import Counter

import pytest
import torch
from small_tokenizers import write_chat_base
from test_selfplay import with_fates
from tiny_run import play, timeless

import config
import measure
import selfplay
from evolve import ROLES, Member
from generate import Rollout
from measure import ENOUGH, WINDOW, alarms
from rl import Batch
from run import State
from tasks.base import Proposal, Task
from trueskill_lite import Rating

# -- probes --------------------------------------------------------------------------------------------------

T0, S0, S1 = (Member(name, "teacher" if name[0] == "T" else "student", slot, Rating()) for slot, name in ((0, "T0"), (2, "S0"), (3, "S1")))


def made(s, kind: str, *bodies: str) -> list[Task]:
    """Returns tasks of one-statement programs on 4."""
    return selfplay.make_tasks(s, [Proposal(kind, f"def f(x):\n {body}\n return x", ("4",)) for body in bodies], "")


def state_of(people: list[Member], heldout: list[Task] = (), unseen: list[Task] = ()) -> State:
    """Returns a state with what a probe looks at."""
    return State(0, people, None, heldout, unseen, {}, None)


def test_probe(setup):
    s, batch = setup(probe_every=4, steps=10), with_fates()[:2]
    current = made(s, "code_o", "x=x+1", "x=x*2")
    for p, task in zip(batch, current):
        p.task = task
    unseen = made(s, "code_i", "x=x+1", "x=x*2", "x=x-1")
    state = state_of([T0, S0, S1], current[:1], unseen)
    told = measure.probe(s, state, batch, 0)
    assert set(told["heldout_greedy"]) == {"S0", "S1"} and told["heldout_n"] == 1
    assert told["heldout_greedy_base"] in (0.0, 1.0)
    assert told["probe_tokens"] > 0
    assert measure.mean(p.base_rate for p in batch) == told["base_solve"] > 0, "each task notes what the base did"
    assert set(told["unseen"]["code_i"]) == set(told["unseen_think"]["code_i"]) == {"T0", "S0", "S1", "base"}
    assert told["unseen_n"] == Counter(code_i=3)
    later = measure.probe(s, state, [], 9)                      # the last step has a probe, too
    assert later["heldout_greedy_base"] == told["heldout_greedy_base"] and later["unseen"] == told["unseen"]
    assert measure.probe(s, state, batch, 5) == {} and measure.probe(s, state_of([S0]), [], 4) == dict(probe_tokens=0)


def test_fresh_members_are_not_asked_what_the_base_is_asked(setup, population):
    """Greedily they say the same, bit for bit; members that have learned are asked themselves."""
    s = setup(probe_every=1)
    tasks = made(s, "code_o", "x=x+1", "x=x*2")
    names = {"S0": 0, "S1": 1, "base": -1}
    for b_std in 0.0, 3.0:
        s = dataclasses.replace(s, adapters=population(s.base, s.adapters.n_members, rank=8, b_std=b_std))
        found, _, n_tokens = measure.ask_greedily(s, names, tasks, 0)
        alone, _, n_alone = measure.ask_greedily(s, {"base": -1}, tasks, 0)
        assert found["base"] == alone["base"] and (found["S0"] == found["base"]) == (b_std == 0) == (n_tokens == n_alone)


def test_a_type_has_its_own_tasks():
    """None, on which the sandbox failed, counts for nobody."""
    tasks = [Task(kind, "", (), (), "", "") for kind in ("code_o", "code_i", "code_o", "code_o")]
    assert measure.by_type(tasks, {"S0": [1, 0, 0, None]}) == dict(code_i=dict(S0=0), code_o=dict(S0=.5))


def test_what_a_group_of_proposals_looks_like():
    told = measure.describe(with_fates())
    assert (told["n"], told["valid"], told["reasons"]) == (4, 3 / 4, dict(syntax=1))
    assert (told["solve_rate"], told["solve_0"], told["solve_1"]) == (.5, 1 / 3, 1 / 3)
    assert (told["answers"], told["malformed"], told["statements"]) == (12, 1 / 6, 1), "a return counts for nothing"
    empty = measure.describe([])
    assert empty["valid"] == 0 and empty["solve_rate"] is None and empty["statements"] is None


# -- alarms --------------------------------------------------------------------------------------------------

def row(step: int = 0, **changes) -> dict:
    """Returns what monitors read of a step's line, of a healthy run."""
    return dict(step=step, n=24, unique_at_64=60.0, unique_structures=500, majority_baseline=dict(code_o=0.06), solve_0=0.2, answers=60,
                reasons=dict(syntax=2), malformed=0.1, frac_zero_advantage=0.3) | changes


def probe(step: int, accuracy: float, n: int = 100) -> dict:
    """Returns the line of a step with a probe of held-out tasks."""
    return row(step, heldout_greedy=dict(S1=accuracy - .1, S2=accuracy + .1), heldout_n=n)


HEALTHY = [row(step) for step in range(20)]


def test_a_healthy_run_gives_no_alarm():
    assert not alarms(HEALTHY) and not alarms(HEALTHY[:1]) and not alarms([probe(0, 0.3), *HEALTHY, probe(20, 0.7)])
    assert set(measure.MONITORS) == set(config.ALARMS), "--halt-on knows them all"


@pytest.mark.parametrize("name, said, changes", [
    ("collapse", "structures among 64 tasks fell from 60.0 to 20.0", dict(unique_at_64=20.0)),
    ("gaming", "one output is right for 55%", dict(majority_baseline=dict(code_o=0.1, code_i=0.55))),
    ("gaming", "nobody solves 80%", dict(solve_0=0.8)),
    ("flat", "every advantage was 0 for 5 steps.*--samples-per-task", dict(frac_zero_advantage=1.0)),
    ("format", "99% of the latest proposals.*--prompt-format .direct", dict(n=96, reasons=dict(no_program=90, syntax=5, duplicate=1))),
    ("format", "100% of the latest answers", dict(malformed=1.0))])
def test_what_drifts_is_told_by_the_mean_of_the_latest_steps(name, said, changes):
    told = alarms([*HEALTHY, *[row(**changes)] * WINDOW])
    assert list(told) == [name] and re.search(said, told[name])
    assert not alarms([*HEALTHY, row(**changes)]) and not alarms([*HEALTHY, *[row(**changes)] * WINDOW, *HEALTHY[:WINDOW]])


def test_few_prove_nothing():
    """Of few structures the commonest output, of few texts the format, at the beginning."""
    lucky = row(majority_baseline=dict(code_o=0.5), unique_structures=ENOUGH)
    assert not alarms([lucky] * WINDOW) and "gaming" in alarms([*[lucky] * WINDOW, lucky | dict(unique_structures=ENOUGH + 1)])
    wrong = row(n=32, reasons=dict(no_input=32), answers=0, malformed=0.0)
    assert not alarms([wrong]) and list(alarms([wrong] * 2)) == ["format"], "at once where there are enough"
    assert not alarms([row(n=96, reasons=dict(duplicate=96))]), "which is another trouble"


def test_forgetting_is_told_beyond_its_bound_of_the_best_probe():
    """sqrt(1 / 100) = .1 below the best of all probes, not the first."""
    told = alarms([probe(0, 0.2), row(1), probe(2, 0.5), row(3), probe(4, 0.39)])
    assert "fell from 0.50, at the best probe, to 0.39" in told["forgetting"]
    assert not alarms([probe(0, 0.2), probe(2, 0.5), probe(4, 0.41)]) and not alarms([probe(0, 0.5, n=16), probe(1, 0.3, n=16)])
    assert not alarms([probe(0, 0.5), probe(1, 0.1), probe(2, 0.5)]), "the latest counts"


def test_a_member_s_entropy_is_over_its_answers_tokens(setup):
    """Several processes leave numbers behind the end of an answer. Who wrote nothing has none."""
    logp = torch.tensor([[0., -1, -2, -9], [0., -3, -9, -9]])
    rollout = Rollout(torch.zeros(2, 4, dtype=torch.int64), torch.tensor([1, 1]), torch.tensor([3, 2]), logp, torch.tensor([2, 2]))
    students = torch.ones(2)
    everybody = [T0, dataclasses.replace(T0, name="T1", slot=1), S0, S1]
    table = measure.member_measures(setup(), state_of(everybody), with_fates(), Batch(rollout, students, students, students, students), [0.] * 4)
    assert [table[name]["entropy"] for name in ("T0", "S0", "S1")] == [None, 2, None]


def test_a_base_that_cannot_do_it_is_told_in_a_run(tmp_path, capsys):
    """A random one, whose proposals are noise: after 64 of them, and after 5 steps of equal rewards."""
    run = play(base=write_chat_base(tmp_path / "base"), out=tmp_path, name="run", device="cpu", steps=WINDOW, pop=2, task_types="code_o", n_prompts=1, n_few_shot=1,
               proposals_per_prompt=32, max_new_tokens=4, rank=2, evolve="none", probe_every=0, save_every=WINDOW, n_heldout=0)
    said = capsys.readouterr().out
    assert [list(row["alarms"]) for row in timeless(run)] == [[], ["format"], ["format"], ["format"], ["flat", "format"]]
    assert said.count("alarm format: 100% of the latest proposals") == 1 and said.count("alarm flat: ") == 1


# -- the terminal --------------------------------------------------------------------------------------------

TASK = dict(step=3, teacher="T0", kind="code_o", reason="", reward=0.5, id=1, program="def f(x):\n return x", inputs=["7"], outputs=["7"],
            message="", solve_rate=0.5, attempts={"S1": ["correct", "wrong", "wrong", "malformed"]}, answers={"S1": [">7\n=7", "=8", "=8", "?"]})


def test_a_task_for_people():
    plain = measure.format_task(TASK)
    for said in "solved 0.50, reward 0.50", "    7 -> 7", "S1 wrong  =8", "S1 correct  >7 / =7":
        assert said in plain
    assert "refused: syntax" in measure.format_task(dict(step=0, teacher="T0", kind="code_o", reason="syntax", reward=-1.0, text="def"))
    assert "solved 0.50\n" in measure.format_task(TASK | dict(reward=None)), "sample.py pays nobody"


@pytest.mark.parametrize("bad", ["\x1b[2J\x1b]0;title\x07", "a\rb", "\u202egnp.exe", "\ud800", "\x9b31m", "\u2028"])
def test_no_control_reaches_the_terminal(bad):
    shown = measure.format_task(TASK | dict(program=bad, message=bad, inputs=[bad], outputs=[bad], answers={"S1": [bad] * 4}))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\ud800-\udfff]", shown)


def test_a_line_stands_under_its_header():
    members = {f"{role[0].upper()}0": dict(role=role, mu=20.0) for role in ROLES} | {"S1": dict(role="student", mu=26.3)}
    line = measure.line(dict(step=7, valid=.5, statements=None, solve_rate=.25, think=0.0, teacher_reward=-.5, unique_structures=12, members=members,
                             seconds=dict(solve=1.0, update=.5), births=["S2"], skipped=[], sandbox_failures=0, heldout_greedy=dict(S0=.5, S1=.7)))
    cells = dict(zip(measure.WIDTHS, re.findall(r"-?[\d.]+|-|[A-Z]\d \S+", line)))
    assert cells.items() >= {"step": "7", "valid": "0.50", "statements": "-", "solve": "0.25", "base": "-", "heldout": "0.60", "think": "0.00",
                     "reward": "-0.50", "unique": "12", "best T": "T0 20.0", "best S": "S1 26.3", "sec": "1.5"}.items()
    assert "births: ['S2']" in line and "skipped" not in line
    assert line[:len(measure.HEADER)].rindex("1.5") + 3 == len(measure.HEADER)
