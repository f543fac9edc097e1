"""Each monitor is provoked once: on lines of metrics.jsonl made up here, by real texts, and in a run that --halt-on ends."""
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_tokenizers import CHATML, byte_level, fast
from tiny_base import write_tiny
from tiny_run import play, timeless, words

import train
from measure import monitors
from measure.metrics import equal_rewards
from measure.monitors import WINDOW, Halted, Monitors
from run import RunDir


def row(step: int = 0, **changes) -> dict:
    """What monitors read of a step's line, of a healthy run."""
    members = {name: dict(role=role, cosine=0.4) for name, role in (("T0", "teacher"), ("S1", "student"))}
    return dict(step=step, n=24, valid=0.75, unique_at_64=60.0, members=members, majority_baseline=dict(code_o=0.06), output_chars=6.0,
                output_digits=0.9, solve_0=0.2, violations=0, reasons=dict(syntax=2), malformed=0.1, frac_zero_advantage=0.3) | changes


def alarms(rows: list[dict]) -> dict[str, str]:
    """The alarms after these lines."""
    watching = Monitors(rows[:-1])
    return watching.look(rows[-1])[0]


def probe(step: int, accuracy: float, se: float | None = 0.02) -> dict:
    """The line of a step with a probe of held-out tasks."""
    return row(step, heldout_greedy=dict(S1=accuracy, S2=accuracy), heldout_greedy_se=se)


HEALTHY = [row(step) for step in range(20)]
LIKE = dict(T0=dict(role="teacher", cosine=0.3), S1=dict(role="student", cosine=0.97))
DRIFTING = {
    "collapse": [("structures", dict(unique_at_64=20.0)), ("mean cosine of 0.97", dict(members=LIKE))],
    "gaming": [("one output is right for 55%", dict(majority_baseline=dict(code_o=0.1, code_i=0.55))),
               ("characters of an output grew from 6.0 to 18.0", dict(output_chars=18.0)),
               ("digits of an output grew from 0.9 to 3.0", dict(output_digits=3.0)), ("nobody solves 80%", dict(solve_0=0.8))],
    "escape": [("5 programs", dict(violations=1))]}
CASES = [(name, words, changes) for name, some in DRIFTING.items() for words, changes in some]


def test_a_healthy_run_gives_no_alarm():
    assert not alarms(HEALTHY) and not alarms(HEALTHY[:1])
    assert not alarms([probe(0, 0.3), *HEALTHY, probe(20, 0.7)])


@pytest.mark.parametrize("name, words, changes", CASES)
def test_what_drifts_is_told(name, words, changes):
    drifted = [*HEALTHY, *[row(**changes)] * WINDOW]
    told = alarms(drifted)
    assert list(told) == [name] and words in told[name]
    assert not alarms([*drifted, *HEALTHY[:WINDOW]]), "it is over"
    assert name == "escape" or not alarms([*HEALTHY, row(**changes)]), "one odd step is no drift"


def test_rewards_that_are_all_equal_are_told_with_a_flag_to_turn():
    """Of a role, whatever the others get; or of every group."""
    steady, wrong = dict(equal_rewards=dict(student=-0.5)), dict(equal_rewards=dict(student=-1.0))
    told = alarms([*HEALTHY, *[row(**steady)] * (WINDOW - 1), row(**wrong)])
    assert list(told) == ["flat"] and "all rewards of students were equal for 5 steps, the latest -1" in told["flat"] and "lower --lr if" in told["flat"]
    of_teachers = alarms([row(equal_rewards=dict(teacher=-1.0))] * WINDOW)["flat"]
    assert "of teachers" in of_teachers and "--lr-teacher" in of_teachers
    assert not alarms([row(**steady)] * (WINDOW - 1)), "several steps"
    assert not alarms([*[row(**steady)] * (WINDOW - 1), row(equal_rewards=dict(teacher=1.0))]), "of one role in each"
    assert "--samples-per-task" in alarms([*HEALTHY, *[row(frac_zero_advantage=1.0)] * WINDOW])["flat"]


def answered(n: int, malformed: float) -> dict:
    """Of a step in which a student has given so many answers, this share of them malformed."""
    return dict(members=dict(T0=dict(role="teacher"), S1=dict(role="student", n=n)), malformed=malformed)


def test_a_base_that_is_never_in_the_demanded_format_is_told():
    """At once where there are many texts, of proposals or answers; a few prove nothing."""
    told = alarms([row(n=96, valid=0, reasons=dict(no_program=90, syntax=5, duplicate=1))])
    assert list(told) == ["format"] and "99% of the latest proposals" in told["format"] and "--prompt-format (direct" in told["format"]
    assert "100% of the latest answers" in alarms([row(**answered(64, 1.0))])["format"]
    assert not alarms([row(n=24, valid=0, reasons=dict(no_input=24))] * 2) and alarms([row(n=24, valid=0, reasons=dict(no_input=24))] * 3)
    assert not alarms([row(**answered(63, 1.0))]) and not alarms([row(n=96, reasons=dict(duplicate=96))]), "which is another trouble"
    assert not alarms([row(**answered(64, 1.0)), row(**answered(64, 0.5))]), "the latest count"


def test_equal_rewards_are_found_by_role():
    batch = SimpleNamespace(reward=torch.tensor([-1.0, -1, 1, -1, -1]), role=torch.tensor([0, 0, 1, 1, 1]))
    assert equal_rewards(batch) == dict(teacher=-1.0)
    batch.reward[2] = -0.5
    assert equal_rewards(SimpleNamespace(reward=batch.reward[1:3], role=batch.role[1:3])) == {}, "of one row nothing can be said"


def test_forgetting_is_told_beyond_its_interval():
    assert "0.10 below" in alarms([probe(0, 0.4), row(1), probe(2, 0.3)])["forgetting"]
    assert not alarms([probe(0, 0.4), row(1), probe(2, 0.36)]), "within the interval"
    assert not alarms([probe(0, 0.4, se=None), probe(2, 0.1, se=None)]), "one task has no interval"
    assert not alarms([row(0), probe(2, 0.1)])


def test_few_tasks_prove_no_guessing():
    lucky = [row(step, n=4, majority_baseline=dict(code_o=0.5)) for step in range(30)]
    assert not alarms(lucky[:20]) and "gaming" in alarms(lucky)


def test_what_was_not_measured_gives_no_alarm():
    nothing = row(valid=None, output_chars=None, output_digits=None, solve_0=None, majority_baseline={},
                  members=dict(T0=dict(role="teacher", cosine=None)))
    assert not alarms([nothing] * 10)


def test_an_alarm_begins_once_and_a_resumed_run_knows_it():
    watching, rows, seen, said = Monitors(), [], {}, []
    for step in range(8):
        rows.append(row(step, members=LIKE if step < 6 else HEALTHY[0]["members"]))
        rows[-1]["alarms"], seen[step], notes = watching.look(rows[-1])
        said += notes
        watching = Monitors(rows)             # as after --resume
    assert {step: names for step, names in seen.items() if names} == {4: ["collapse"]}
    assert len(said) == 2 and said[0].startswith("alarm collapse: the updates") and said[1] == "alarm collapse is over"


TINY = dict(steps=6, pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=2, probe_every=0, evolve="none", save_every=3)


@pytest.mark.slow
def test_a_run_halts_with_a_checkpoint_and_goes_on(micro_base, tmp_path, capsys, monkeypatch):
    flags = TINY | dict(base=micro_base, out=tmp_path)
    monkeypatch.setattr(monitors, "LIKENESS", -1)
    with pytest.raises(Halted):
        play(**flags, name="run", halt_on="collapse,escape")
    said = capsys.readouterr()
    run = RunDir(tmp_path / "run", writes=False)
    assert run.steps()[-1] == WINDOW and "alarm collapse: the updates" in said.out
    assert re.fullmatch("halted by --halt-on .collapse: .*: saved before step 5; go on with --resume .*\n", said.err)
    *others, last = timeless(run.path)
    assert list(last["alarms"]) == ["collapse"] and not any(row["alarms"] for row in others)
    whole, resumed = play(**flags, name="whole"), play(**flags, name="run", halt_on="collapse,escape", resume="auto")
    assert timeless(resumed) == timeless(whole) and len(timeless(whole)) == TINY["steps"]


def test_a_base_that_cannot_do_it_is_told_in_a_run(tmp_path, capsys):
    """A random one, whose proposals are noise: after 64 of them, and after 5 steps of equal rewards."""
    wrapped = fast(byte_level(), CHATML, eos_token="<|im_end|>")
    write_tiny(tmp_path / "base", "qwen2", vocab_size=len(wrapped), max_position_embeddings=4096, eos_token_id=2)
    wrapped.save_pretrained(tmp_path / "base")
    run = play(base=tmp_path / "base", out=tmp_path, name="run", device="cpu", steps=WINDOW, pop=2, task_types="code_o", n_prompts=1, n_few_shot=1,
               proposals_per_prompt=32, max_new_tokens=4, rank=2, evolve="none", probe_every=0, save_every=WINDOW, n_heldout=0)
    said = capsys.readouterr().out
    assert [list(row["alarms"]) for row in timeless(run)] == [[], ["format"], ["format"], ["format"], ["flat", "format"]]
    assert all(row["equal_rewards"] == dict(teacher=-1.0) for row in timeless(run))
    assert "alarm format: 100% of the latest proposals" in said and "--prompt-format (direct" in said
    assert "alarm flat: all rewards of teachers were equal for 5 steps, the latest -1" in said and "--lr-teacher" in said


@pytest.mark.slow
def test_all_processes_halt_together(micro_base, tmp_path):
    """Under torchrun, whose own exit code is 1 for any of a process; each says 3, and the checkpoint is whole."""
    alarmed = 'import runpy\nfrom measure import monitors\nmonitors.LIKENESS = -1\nrunpy.run_path("train.py", run_name="__main__")'
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc_per_node=2", "--no-python", sys.executable,
                           "-c", alarmed, *words(**TINY, base=micro_base, out=tmp_path, name="run", halt_on="collapse")],
                          cwd=Path(train.__file__).parent, capture_output=True, text=True, timeout=280, env=os.environ | dict(OMP_NUM_THREADS="1"))
    assert done.returncode == 1 and done.stderr.count("halted by --halt-on") == 1 and "exitcode  : 3" in done.stderr, done.stderr
    assert RunDir(tmp_path / "run", writes=False).steps()[-1] == WINDOW == len(timeless(tmp_path / "run"))
