"""Two steps of the loop for every value of every switch, what a run leaves, bad input, two processes."""
import dataclasses
import json
import os

import pytest
from factors import same
from tiny_run import SIZES, TORCHRUN, play, python, rows, words

import config
import train
from common import UserError
from evolve import ROLES
from operators import CROSSOVERS, MUTATIONS, OPERATORS
from rewards import INVALID
from run import LOGS, init_state
from selfplay import make_tasks
from tasks.base import Proposal
from trueskill_lite import Rating

TINY = SIZES | dict(steps=2, pop=6, evolve_every=1, probe_every=0, kl_every=1)         # else no run of two steps has a KL
# A test's run takes the i-th value of each switch, so that as many runs as the longest list has cover them all.
WITH_CHOICES = [f for f in dataclasses.fields(config.Config) if f.metadata["choices"] and f.type is str]
SWITCHES = {f.name: list(f.metadata["choices"]) for f in WITH_CHOICES} | dict(
    task_types=["code_o", "code_i", "code_f", "code_o,code_i,code_f", "math,logic", "code_o,code_i,code_f,math,logic"],
    prompt_format=["auto", "micro"], dtype=["auto", "float32", "int8", "float32", "auto", "auto", "bfloat16"],  # slow on a CPU
    kl_coef=[0.0, 0.05], entropy_coef=[0.0, 0.01], n_few_shot=[0, 2], save_every=[1, 10], keep=[1, 2], grace=[0, 1],
    temperature=[1.0, 0.7], probe_every=[0, 1], tokens_per_microbatch=[8192, 256], rollout_batch=[512, 16], seed=[0, 7], rank=[8, 2])
EVOLVE = SWITCHES.pop("evolve")


@pytest.fixture(scope="session")
def run(micro_base, tmp_path_factory):
    """run(**switches) -> the finished run's directory; sizes are tiny where nothing else is said."""
    return lambda **switches: play(**TINY | dict(base=micro_base, out=tmp_path_factory.mktemp("runs")) | switches)


# the operators have tests of their own: here most are slow ones
@pytest.mark.parametrize("i,mode", [pytest.param(i, mode, id=mode, marks=() if mode in ("none", "copy") else pytest.mark.slow)
                                    for i, mode in enumerate(EVOLVE)])
def test_two_steps(run, i, mode):
    switches = dict(evolve=mode, **{name: values[i % len(values)] for name, values in SWITCHES.items()})
    if mode == "none":                              # which switches these off
        switches = {name: value for name, value in switches.items() if name != "grace"} | dict(evolve_every=8)
    path = run(**switches)
    metrics, tasks, matches, births = (rows(path, name) for name in ("metrics", "tasks", "matches", "genealogy"))
    assert [row["step"] for row in metrics] == [0, 1] and len(tasks) == 4 * 3 * 2 and len(matches) == 2 * 3
    allowed = dict(mixed=[*MUTATIONS, *CROSSOVERS], mutation=MUTATIONS, crossover=CROSSOVERS, none=[]).get(mode, [mode])
    assert all(b["operator"] in allowed or b["note"] for b in births) and bool(births) == (mode != "none")
    assert len({m for row in metrics for m in row["members"]}) == 3 * len(ROLES) + sum(b["step"] == 0 for b in births)
    for row in metrics:
        gap = 0.1 if switches["dtype"] == "bfloat16" else 1e-3
        assert row["skipped"] == [] and row["train_rollout_logprob_diff"] < gap, "rollout and training disagree"
    best = 1 if switches["probe_every"] and any(row.get("heldout_greedy") for row in metrics) else 0
    assert len(list(path.glob("step_*"))) <= switches["keep"] + best and (path / "step_2").is_dir()
    assert {row["kind"] for row in tasks} <= set(switches["task_types"].split(","))


def test_the_table_covers_every_choice():
    assert all(len(values) <= len(EVOLVE) for values in SWITCHES.values()) and set(OPERATORS) < set(EVOLVE)


def test_single(run):
    path = run(single=True, pop=2, evolve_every=8)
    assert {p.name for p in (path / "step_2").iterdir()} == {"T0", "optimizer", "state.json"}
    assert not rows(path, "genealogy") and sorted(rows(path)[0]["members"]) == sorted(f"{role[0].upper()}0" for role in ROLES)


@pytest.fixture(scope="module")
def finished(run):
    """A run of all three kinds with probes and evolution."""
    return run(steps=4, task_types="code_o,code_i,code_f", n_prompts=3, pop=4, save_every=1, keep=2, probe_every=2, n_few_shot=1)


def test_files_of_a_run(finished):
    kept = {p.name for p in finished.glob("step_*")}
    assert {p.name for p in finished.iterdir()} == {"config.json", "env.json", "lock", "best", *LOGS, *kept}
    assert {"step_3", "step_4", os.readlink(finished / "best")} == kept
    given, env = (json.loads((finished / name).read_text()) for name in ("config.json", "env.json"))
    assert given["pop"] == 4 and given["lr"] == config.PRESETS["micro"]["lr"] and None not in given.values()
    assert {"commit", "python", "torch", "device", "processes", "threads"} <= set(env) and given["dtype"] == "float32"
    living = {b["child"] for b in rows(finished, "genealogy")} | {f"{role[0].upper()}{i}" for role in ROLES for i in (0, 1)}
    members = {p.name for p in (finished / "step_4").iterdir()} - {"state.json", "optimizer"}
    assert len(members) == 2 * len(ROLES) and members < living
    assert not list(finished.rglob("model.safetensors")), "the base is never copied"


def test_metrics(finished):
    """What a run measures in which step."""
    metrics = rows(finished)
    for row in metrics:
        assert ("heldout_greedy" in row) == ("base_solve" in row) == (row["step"] in (0, 2, 3)), row["step"]
        assert set(row["task_types"]) == {"code_o", "code_i", "code_f"} and len(row["members"]) == 2 * len(ROLES)
        assert set(row["seconds"]) == set("propose verify solve probe update measure evolve".split())
        assert sum(row["reasons"].values()) == round((1 - row["valid"]) * row["n"])
        for name, m in row["members"].items():              # what thinks begins with its trace
            answers = [text for task in rows(finished, "tasks") if task["step"] == row["step"] for text in task.get("answers", {}).get(name, ())]
            if m["role"] == "student" and answers:
                assert m["think"] == pytest.approx(sum(text.lstrip()[:1] in "<>" for text in answers) / len(answers))
    assert [row["tokens_generated"] for row in metrics] == sorted({row["tokens_generated"] for row in metrics})


def test_tasks_matches_genealogy(finished):
    tasks, matches, births = (rows(finished, name) for name in ("tasks", "matches", "genealogy"))
    met = {(m["step"], m["teacher"], m["student"]) for m in matches}
    valid = [row for row in tasks if not row["reason"]]
    assert len(tasks) == 4 * 2 * 3 * 4 and valid and len(valid) < len(tasks)
    for row in valid:
        assert "def f(" in row["program"] and row["inputs"] and len(row["outputs"]) == len(row["inputs"])
        ((student, verdicts),) = row["attempts"].items()
        assert set(verdicts) <= {"correct", "wrong", "malformed"} and (row["step"], row["teacher"], student) in met
        assert row["solve_rate"] == verdicts.count("correct") / 2
        assert row["reward"] == (0 if row["solve_rate"] == 0 else 1 - row["solve_rate"])
        assert all(parent < row["id"] for parent in row["parents"])
    assert [row["id"] for row in valid] == list(range(1, len(valid) + 1))  # 0 is the identity program
    assert all(row["reward"] == INVALID and row["text"] is not None for row in tasks if row["reason"])
    assert len({b["child"] for b in births}) == len(births) > 0


@pytest.mark.parametrize("victim", [2, 3])
def test_a_child_takes_a_students_place_if_it_solves_more(setup, victim):
    """S0 is the base, S1 a ruin: a copy of the ruin is refused, a copy of the base is not."""
    s = setup(evolve="copy", evolve_every=1)
    state = init_state(s)
    for task in make_tasks(s, [Proposal("code_o", f"def f(x):\n x=x+{n}\n return x", ("4",)) for n in range(1, 9)], ""):
        state.archive.add(task, task.program)
    for B in s.adapters.B.values():
        B.data[3].normal_()
    for m in state.members[2:]:
        m.matches, m.rating = 1, Rating(10.0 if m.slot == victim else 30.0, 1.0)
    before = s.adapters.factors(victim)
    births = train.evolve_population(s, state, 0)
    assert [birth["victim"]["name"] for birth in births] == (["S1"] if victim == 3 else [])
    child = s.adapters.factors(victim)
    assert same(child, before) == (victim == 2)


def test_the_kl_is_taken_in_every_so_many_steps(run, monkeypatch):
    seen, update = [], train.rl.update
    monkeypatch.setattr(train.rl, "update", lambda *given: seen.append(given[5].kl_coef) or update(*given))
    run(steps=4, pop=2, evolve="none", evolve_every=8, kl_coef=0.1, kl_every=2)
    assert seen == [0, 0.2, 0, 0.2]


GIVEN = [dict(program="def f(x):\n return x+1", input="1"), dict(program="def f(x):\n return x/0", input="1"),
         dict(program="def f(x):\n" + " x=x-1\n" * 50 + " return x", input="1"), dict(program="def f(x):\n return y", input="2")]


@pytest.mark.parametrize("flags, match", [
    ("--base /nowhere/at/all", "/nowhere/at/all"), ("--heldout /nowhere", "/nowhere cannot be read"), ("--init /nowhere", "holds no adapter"),
    ("--rollout-batch 100000000", r"(?s)not enough memory:\n.*weights .*cache .*free: .*lower these two flags"),
    ("--max-new-tokens 100000", "exceed the base's context, 256 tokens"),
    ("--tasks /nowhere", "/nowhere cannot be read"), ("--tasks /dev/null", "--tasks /dev/null holds no task"),
    ("--tasks GIVEN --max-new-tokens 200", r"(?s)--tasks .*: task 2, line 3, is not valid \(error\): .*x/0.*\ntask 3, line 4, .*prompt_too_long.*\ntask 4, line 5, .*\(error\)"),
    ("--heldout GIVEN --n-heldout 4", r"task 2, line 3, is not valid")])
def test_a_clear_sentence(micro_base, tmp_path, flags, match):
    """And no run is left behind."""
    (tmp_path / "GIVEN").write_text("\n" + "".join(json.dumps(row) + "\n" for row in GIVEN))
    given = words(**TINY, base=micro_base, out=tmp_path) + flags.replace("GIVEN", str(tmp_path / "GIVEN")).split()
    with pytest.raises(UserError, match=match):
        train.main(config.config_of(config.parse_args(None, given)))
    assert not list(tmp_path.glob("run/*.jsonl"))


def test_a_step_without_valid_proposals_is_survived(run):
    path = run(max_new_tokens=1, probe_every=1)
    for row in rows(path):
        assert row["valid"] == 0 and row["solve_rate"] is None and row["frac_zero_advantage"] == 1
        assert sum(row["reasons"].values()) == row["n"]
    assert all(m["winner"] == "student" for m in rows(path, "matches")) and (path / "step_2").is_dir()


def test_whoever_asks_for_every_row_gets_the_last_one(micro_base, tmp_path):
    """`enough` is called after every step, and ends a run early where it says so."""
    flags, seen = TINY | dict(base=micro_base, out=tmp_path, pop=2, max_new_tokens=16, n_heldout=0), []
    path = play(seen.append, **flags)
    assert json.loads(json.dumps(seen)) == rows(path) and [row["step"] for row in seen] == [0, 1]
    early = play(lambda row: True, **flags | dict(name="early"))
    assert len(rows(early)) == 1 and (early / "step_1" / "state.json").exists()


@pytest.mark.slow
def test_two_processes(run, micro_base, tmp_path):
    """torchrun over gloo trains the same population: the same proposals, the same update up to rounding."""
    flags = dict(steps=1, temperature=0.05, probe_every=1, dtype="float32")
    alone, both = run(**flags), tmp_path / "run"
    done = python(*TORCHRUN, "train.py", *words(**TINY | dict(base=micro_base, out=tmp_path) | flags))
    assert done.returncode == 0, done.stderr
    (a,), (b,) = rows(alone), rows(both)
    assert all(a[key] == b[key] for key in ("reasons", "tokens_generated", "tokens_trained"))
    assert rows(alone, "tasks") == rows(both, "tasks") and rows(alone, "matches") == rows(both, "matches")
    assert json.loads((both / "env.json").read_text())["processes"] == 2
    for name, member in a["members"].items():
        assert member["grad_norm"] == pytest.approx(b["members"][name]["grad_norm"], rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_student_discovers_thinking(micro_base, tmp_path, seed):
    """On the presets: a student thinks in most of its answers at the end and is twice as right."""
    metrics = rows(play(base=micro_base, out=tmp_path, name="run", seed=seed, pop=2, n_heldout=70))
    (before,), *_, (after,) = [[m["think"] for m in row["members"].values() if m["role"] == "student"] for row in metrics]
    assert before < .5 < after
    first, last = (max(metrics[i]["heldout_greedy"].values()) for i in (0, -1))
    assert first < .4 and last > .6, (first, last)
