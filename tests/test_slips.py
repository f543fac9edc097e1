"""A slip in what somebody has just written into the source ends a run with a traceback that points at its line; once it is
mended, the run goes on."""
import dataclasses
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import make_batch
from tiny_base import write_tiny
from tiny_run import play, rows, words

import config
import evolve
import lora
import operators
import rewards
import rl
import selfplay
import weights
from common import Refused, UserError

ROOT = Path(config.__file__).parent
FLAGS = dict(steps=1, pop=4, n_prompts=1, proposals_per_prompt=8, samples_per_task=2, max_new_tokens=48, n_heldout=0, evolve_every=1,
             evolve="copy", grace=0, probe_every=0, save_every=1, name="run")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc_per_node=2"]
# file -> what is written at its end, the line that fails, and what Python says of it
SLIPS = {
    "rewards.py": ('def slip(outcome):\n    return max([])\n\n\nTEACHER_REWARDS["difficulty"] = slip\n', "return max([])",
                   "ValueError: max() "),
    "tasks/code.py": ('class Mine(Deduction):\n    def read(self, written, few_shot, limits):\n        return int("x")\n\n\n'
                      "Deduction = Mine\n", 'return int("x")', "ValueError: invalid literal for int()"),
    "operators.py": ('def slip(parents, gen):\n    return {}["x"]\n\n\nOPERATORS["copy"] = Operator(slip, 1)\n', 'return {}["x"]',
                     "KeyError: 'x'")}


@pytest.fixture(scope="module")
def begun(micro_base, tmp_path_factory) -> Path:
    """A run of one step, saved."""
    return play(base=micro_base, out=tmp_path_factory.mktemp("runs"), **FLAGS)


@pytest.mark.parametrize("n_processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ["rewards.py", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tasks/code.py", "operators.py"))])
def test_a_slip_is_a_traceback_and_the_run_goes_on(begun, micro_base, tmp_path, file, n_processes):
    source = shutil.copytree(ROOT, tmp_path / "source",
                             ignore=shutil.ignore_patterns(".*", "tests", "out", "base", "phase1", "__pycache__"))
    run = shutil.copytree(begun, tmp_path / "run")
    written, line, said = SLIPS[file]
    with open(source / file, "a") as f:
        f.write("\n\n" + written)
    flags = words(resume=run, steps=2)
    done = subprocess.run([sys.executable, *TORCHRUN * (n_processes == 2), "train.py", *flags], cwd=source, capture_output=True,
                          text=True, timeout=180, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 1, done.stderr
    number = (source / file).read_text().splitlines().index(next(x for x in written.splitlines() if line in x)) + 1
    where = f'File "{source / file}", line {number}, in {"read" if "tasks" in file else "slip"}'
    assert where in done.stderr and line in done.stderr and said in done.stderr, done.stderr
    assert len(rows(run)) == 1, "the step that failed left no line"
    play(**FLAGS | dict(base=micro_base, resume=run, steps=2))
    assert [row["step"] for row in rows(run)] == [0, 1] and (run / "step_2" / "state.json").exists()


def forgets(*_):
    """A function whose `return` was forgotten."""


def test_a_reward_without_a_return_is_named(monkeypatch, micro_base, tmp_path):
    monkeypatch.setitem(rewards.TEACHER_REWARDS, "forgets", forgets)
    flags = FLAGS | dict(pop=2, proposals_per_prompt=4, samples_per_task=1, teacher_reward="forgets")
    with pytest.raises(AssertionError, match=r"^forgets \(.*test_slips.py, line \d+\) returned None: it has to"):
        play(**flags, base=micro_base, out=tmp_path)


@pytest.mark.parametrize("weight, said", [(-0.1, "a weight is 0 or more"), (None, "a finite int or float"), (float("nan"), "a finite int")])
def test_a_matching_rule_gives_weights(monkeypatch, weight, said):
    def slip(p: float) -> float:
        return weight

    monkeypatch.setitem(evolve.WEIGHTS, "slip", slip)
    with pytest.raises(AssertionError, match=rf"slip \(.*test_slips.py, line \d+\) returned {weight}.*{said}"):
        evolve.draw_weights([0.5, 0.25], "slip", 0.1)


@pytest.mark.parametrize("pay", [dict(corect=1.0, wrong=0.0, malformed=0.0), dict(correct=1.0, malformed=0.0)])
def test_a_students_reward_pays_every_verdict(monkeypatch, pay):
    """A misspelt one was paid as wrong."""
    monkeypatch.setitem(rewards.STUDENT_REWARDS, "mine", pay)
    setup = SimpleNamespace(cfg=config.Config(student_reward="mine"))
    with pytest.raises(AssertionError, match=r"STUDENT_REWARDS\['mine'\] of rewards.py pays .*: it has to pay correct, malformed, wrong"):
        selfplay.student_rows(setup, [], SimpleNamespace(rollout=None, verdicts=[]))


@pytest.mark.parametrize("wrong", [lambda adv: adv[:, None], lambda adv: adv.mean(), lambda adv: adv[1:]])
def test_an_advantage_is_one_number_for_each_row(wrong):
    batch = make_batch(3, member=(0,))
    rl.Objective(None, None, batch, rl.advantages(batch))
    with pytest.raises(AssertionError, match=r"rl.advantages gave a Tensor of shape .* for 3 rows"):
        rl.Objective(None, None, batch, wrong(rl.advantages(batch)))
    for slip in (None, [0.0, 1.0, 2.0], 0.5):
        with pytest.raises(AssertionError, match=rf"rl.advantages gave a {type(slip).__name__} of shape \(\) for 3 rows: give a Tensor"):
            rl.Objective(None, None, batch, slip)


@pytest.mark.parametrize("name, compute", [
    ("baseline", lambda batch, cfg: rl.advantages(batch, cfg)),
    ("normalize_advantages", lambda batch, cfg: rl.advantages(batch, cfg)),
    ("token_weight", lambda batch, cfg: rl.token_weight(batch.rollout, cfg)),
    ("loss", lambda batch, cfg: rl.policy_loss(torch.zeros(3), torch.zeros(3), SimpleNamespace(row=torch.arange(3)), torch.ones(3), cfg))])
def test_a_value_without_its_case_is_named(name, compute):
    """config.py allows it, and no function knows it: it would compute what the default does."""
    batch = make_batch(3, member=(0,))
    compute(batch, rl.DEFAULT)
    cfg = dataclasses.replace(rl.DEFAULT, **{name: "positive"})
    with pytest.raises(AssertionError, match=f"^--{name.replace('_', '-')} positive has no case in rl.*: add one"):
        compute(batch, cfg)
    with pytest.raises(AssertionError, match="--outcome mine has no case in evolve.winner_of"):
        evolve.winner_of(0.4, 0.5, rule="mine")


def test_a_name_without_what_it_names_is_told(monkeypatch):
    """MATCHING of config.py allows a rule that nobody wrote; a function stands in OPERATORS without its number of parents."""
    with pytest.raises(AssertionError, match="--matching mine has no rule in evolve.WEIGHTS: add one"):
        evolve.draw_weights([0.5], "mine", 0.1)
    monkeypatch.setitem(operators.OPERATORS, "mine", forgets)
    with pytest.raises(AssertionError, match=r"OPERATORS\['mine'\] is forgets \(.*test_slips.py, line \d+\): give an Operator"):
        evolve.choose_operator("mine", 2, random.Random(0))


def test_a_role_is_in_the_list_of_roles():
    with pytest.raises(AssertionError, match="'critic' is not in evolve.ROLES"):
        evolve.members_of([], "critic")


def test_an_architecture_has_fields_that_there_are(monkeypatch, tmp_path):
    write_tiny(tmp_path, "qwen2")
    weights.read_config(tmp_path)
    monkeypatch.setitem(weights.ARCHITECTURES, "qwen2", dict(norm_ofset=True))
    with pytest.raises(AssertionError, match="ModelConfig has no field norm_ofset"):
        weights.read_config(tmp_path)


def draws_torch(parents, gen):
    return {name: (A * torch.rand(A.shape), B) for name, (A, B) in parents[0].items()}


def draws_python(parents, gen):
    return {name: (A * random.random(), B) for name, (A, B) in parents[0].items()}


def draws_numpy(parents, gen):
    return {name: (A * float(np.random.rand()), B) for name, (A, B) in parents[0].items()}


def turns_round(parents, gen):
    return {name: (B, A) for name, (A, B) in parents[0].items()}


def leaves_out(parents, gen):
    return dict(list(parents[0].items())[1:])


@pytest.mark.parametrize("slip, said", [
    (draws_torch, "draws random numbers without its `gen`"), (draws_python, "draws random numbers without its `gen`"),
    (draws_numpy, "draws random numbers without its `gen`"), (forgets, "returned NoneType: give a dictionary"),
    (turns_round, r"gave x factors of the shapes \[\(6, 2\), \(2, 4\)\]: A and B of its parents have \[\(2, 4\), \(6, 2\)\]"),
    (leaves_out, "left out layers, or added some: x")])
def test_an_operator_is_told_by_name(monkeypatch, slip, said):
    adapters = lora.Adapters({"x": (4, 6), "y": (4, 6)}, 2, 2, 4.0)
    before = [factor.clone() for factor in adapters.parameters()]
    parent, victim = (evolve.Member(f"S{i}", "student", i, None) for i in range(2))
    monkeypatch.setitem(operators.OPERATORS, "slip", operators.Operator(slip, 1))
    birth = evolve.Birth("S2", victim, (parent,), "slip")
    with pytest.raises(AssertionError, match=rf"^{slip.__name__} \(.*test_slips.py, line \d+\) {said}"):
        evolve.apply_operator(adapters, birth, torch.Generator().manual_seed(0))
    assert all(map(torch.equal, adapters.parameters(), before)), "the victim stays"


def test_neither_kind_is_one_of_pythons():
    """So that no `except ValueError` around a library's call takes them for something else."""
    for kind in UserError, Refused:
        assert kind.__bases__ == (Exception,)
