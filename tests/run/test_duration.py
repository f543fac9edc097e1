"""How long a run takes: the arithmetic by hand, what a trial needs and leaves alone, and what a run says after three steps."""
import json
from types import SimpleNamespace

import pytest
from tiny_run import play, rows

import config
import rl
import selfplay
import train
from config import Config
from run import duration
from run.duration import Forecast, Pace, Watch, pace, probe_due, told

SMALL = dict(pop=4, n_prompts=1, proposals_per_prompt=8, samples_per_task=2, n_heldout=2, evolve="none", probe_every=2)


@pytest.mark.parametrize("steps, every, due", [(12, 5, [0, 5, 10, 11]), (11, 5, [0, 5, 10]), (3, 0, [])])
def test_probes_are_due(steps, every, due):
    cfg = Config(steps=steps, probe_every=every)
    assert [step for step in range(steps) if probe_due(cfg, step)] == due
    assert Pace(2.0, 7.0).until_end(cfg, 1) == 2.0 * (steps - 1) + 7.0 * len([step for step in due if step])


def state_of(step: int):
    members = [SimpleNamespace(role=role, name=role[0].upper()) for role in ("teacher", "student", "student")]
    return SimpleNamespace(step=step, members=members, heldout=[None] * 10, unseen=[None] * 3)


def line(step: int, solve: float, probe: float = 0.0) -> dict:
    return dict(step=step, seconds=dict(propose=1.0, verify=.5, solve=solve, probe=probe, update=2.0))


def test_a_pace_leaves_out_the_first_step_and_counts_a_probe_by_its_answers():
    """Of two students, a teacher and the base: 10 x 3 + 3 x 4 answers, where the base alone was asked 10 + 3 at step 0."""
    s = SimpleNamespace(cfg=Config(steps=90, probe_every=4))
    found = pace(s, state_of(3), [line(0, 99.0, 26.0), line(1, 4.0), line(2, 6.0)])
    assert (found.step, found.probe) == (8.5, pytest.approx(26.0 / 13 * 42))
    assert pace(s, state_of(10), [line(7, 1.0), line(8, 1.0, 26.0), line(9, 3.0)]) == Pace(5.5, pytest.approx(26.0)), "resumed"
    assert pace(s, state_of(4), [line(1, 1.0), line(2, 1.0), line(3, 1.0)]) == Pace(4.5, 0.0)


def test_a_run_is_told_once_when_it_will_end():
    s = SimpleNamespace(cfg=Config(steps=9, probe_every=0))
    forecast = Forecast(s)
    notes = [forecast.look(state_of(step), line(step - 1, 4.0)) for step in range(5, 9)]
    assert [len(note) for note in notes] == [0, 0, 1, 0]
    assert notes[2][0].startswith("by its first 3 steps this run will end in 15 s, ")
    short = Forecast(SimpleNamespace(cfg=Config(steps=3)))
    assert not any(short.look(state_of(step), line(step - 1, 4.0)) for step in (1, 2, 3))


def test_rows_that_are_cut_off_go_on_as_the_others_ended():
    watch = Watch()
    n_tokens = SimpleNamespace(sum=lambda: 40)
    watch.rows, watch.n_ended = SimpleNamespace(length=[0] * 10, n_tokens=n_tokens), 4
    assert watch.tokens_left(1000) == pytest.approx(6 * 10)         # one token in ten was the last
    assert watch.tokens_left(1) == pytest.approx(6)
    watch.n_ended = 0
    assert watch.tokens_left(50) == 10 * 50 - 40


def test_durations_are_told():
    assert [told(x) for x in (.2, 99, 100, 5000, 7200)] == ["0.2 s", "99 s", "2 minutes", "83 minutes", "2.0 hours"]


@pytest.mark.parametrize("limit", [15.0, 0.0])
def test_a_plan_with_a_device_tries_a_step(micro_base, tmp_path, monkeypatch, capsys, limit):
    """Also where its time is over at the first token; without --device nothing is loaded. It writes nothing."""
    monkeypatch.setattr(duration, "LIMIT", limit)
    words = ["--base", str(micro_base), "--plan", "--steps", "12", "--n-prompts", "1", "--pop", "2", "--samples-per-task", "2", "--n-heldout", "2", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("run.startup.load_base", lambda *args, **kw: pytest.fail("a plan without --device loads the base"))
    assert train.show_plan(config.parse_args(None, words)) == 0
    assert "by a trial" not in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.setattr(duration, "LIMIT", limit)
    assert train.show_plan(config.parse_args(None, [*words, "--device", "cpu"])) == 0
    said = capsys.readouterr().out.strip().split("\n")[-1]
    assert said.startswith("by a trial a step takes ") and said.endswith(" hours") and ": 12 steps " in said
    assert not (tmp_path / "out").exists()


TRIAL = ["--plan", "--device", "cpu", "--pop", "2", "--n-prompts", "1", "--samples-per-task", "2", "--n-heldout", "2", "--probe-every", "0"]


def test_an_update_is_timed_by_one_micro_batch_after_the_other(micro_base, monkeypatch):
    """Each of its rows once, also where a KL term gives every row a gradient, whatever its advantage."""
    learned, backward = [], rl.backward

    def watched(o, p, *rest, **more):
        learned.append(set(p.row.tolist()))
        return backward(o, p, *rest, **more)

    monkeypatch.setattr(rl, "backward", watched)
    train.show_plan(config.parse_args(None, ["--base", str(micro_base), *TRIAL, "--kl-coef", "0.1", "--tokens-per-microbatch", "128"]))
    assert len(learned) > 1 and len(set.union(*learned)) == sum(map(len, learned))


def test_a_step_without_a_valid_proposal_is_timed_by_known_tasks(micro_base, monkeypatch, capsys):
    """Also where these are as many as the step would have."""
    def refuse(s, archive, proposed, step):
        for p in proposed:
            p.reason = "syntax"

    monkeypatch.setattr(selfplay, "verify_proposals", refuse)
    monkeypatch.setattr(duration, "VALID", 1.0)
    train.show_plan(config.parse_args(None, ["--base", str(micro_base), *TRIAL, "--proposals-per-prompt", "1", "--rollout-batch", "2"]))
    assert "by a trial a step takes " in capsys.readouterr().out


def test_a_run_says_after_its_third_step_when_it_will_end(micro_base, tmp_path, capsys):
    flags = SMALL | dict(base=micro_base, out=tmp_path, name="run")
    play(steps=4, **flags)
    said = capsys.readouterr().out.split("\n")
    at = [i for i, text in enumerate(said) if text.startswith("by its first 3 steps this run will end in ")]
    assert len(at) == 1 and said[at[0] + 1].split()[0] == "3", said


@pytest.mark.slow
def test_both_are_twenty_per_cent_off_at_most(micro_base, tmp_path, capsys):
    """Half as much again is let pass: a machine is seldom as busy now as a minute ago."""
    words = ["--base", str(micro_base), "--steps", "12", "--probe-every", "6", "--n-heldout", "60", "--out", str(tmp_path), "--name", "run"]
    train.show_plan(config.parse_args(None, [*words, "--plan", "--device", "cpu"]))
    planned = float(capsys.readouterr().out.split("12 steps ")[1].split(" s,")[0].replace(",", ""))
    path = train.main(config.parse_args(None, words)).path
    done = rows(path)
    took = sum(sum(row["seconds"].values()) for row in done)
    print(json.dumps(dict(planned=planned, took=took)))
    assert 1 / 1.5 < planned / took < 1.5
