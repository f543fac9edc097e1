"""Two steps of the loop for every value of every switch, what a run leaves, bad input, two processes."""
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import play, rows, words

import config
import train
from eval.population.runs import births_of
from common import UserError
from lora import TARGETS
from operators import CROSSOVERS, MUTATIONS, OPERATORS
from report import page
from report.run import RunLog
from run import LOGS
from weights import files_hash, save_peft

ROOT = Path(train.__file__).parent
TINY = dict(name="run", steps=2, pop=6, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=2,
            evolve_every=1, probe_every=0)
# A test's run takes the i-th value of each switch, so that as many runs as the longest list has cover them all.
WITH_CHOICES = [f for f in dataclasses.fields(config.Config) if f.metadata["choices"] and f.type is str]
SWITCHES = {f.name: list(f.metadata["choices"]) for f in WITH_CHOICES} | dict(
    task_types=["code_o", "code_i", "code_f", "code_o,code_i,code_f", "math,logic", "code_o,code_i,code_f,math,logic"],
    prompt_format=["auto", "micro"], dtype=["auto", "float32", "auto", "float32", "auto", "auto", "bfloat16"],  # slow on a CPU
    kl_coef=[0.0, 0.05], entropy_coef=[0.0, 0.01], invalid_penalty=[-1.0, 0.0, -0.1], n_few_shot=[0, 2], save_every=[1, 10],
    keep=[1, 2], lora_targets=[",".join(TARGETS), "q_proj,v_proj"], grace=[0, -1], matches=[0, 0, 2], temperature=[1.0, 0.7],
    probe_every=[0, 1], tokens_per_microbatch=[8192, 256], rollout_batch=[512, 16], seed=[0, 7], rank=[8, 2],
    clip=["0.2,0.2", "0.1,0.3"], epochs=[1, 2])
EVOLVE = SWITCHES.pop("evolve")


@pytest.fixture(scope="session")
def run(micro_base, tmp_path_factory):
    """run(**switches) -> the finished run's directory; sizes are tiny where nothing else is said."""
    return lambda **switches: play(**TINY | dict(base=micro_base, out=tmp_path_factory.mktemp("runs")) | switches)


QUICK = ("none", "copy")                    # the operators have tests of their own: here they are slow ones


@pytest.mark.parametrize("i,mode", [pytest.param(i, mode, id=mode, marks=() if mode in QUICK else pytest.mark.slow)
                                    for i, mode in enumerate(EVOLVE)])
def test_two_steps(run, i, mode):
    switches = dict(evolve=mode, **{name: values[i % len(values)] for name, values in SWITCHES.items()})
    path = run(**switches)
    metrics, tasks, matches, births = (rows(path, name) for name in ("metrics", "tasks", "matches", "genealogy"))
    met = {(m["step"], m["teacher"]) for m in matches}
    assert [row["step"] for row in metrics] == [0, 1] and len(tasks) == 4 * len(met)
    assert len(matches) == 2 * (switches["matches"] or (9 if switches["matching"] == "all" else 3))
    pools = dict(mixed=[*MUTATIONS, *CROSSOVERS], mutation=MUTATIONS, crossover=CROSSOVERS, none=[])
    allowed = pools.get(mode, [mode])
    assert all(b["operator"] in allowed or b["note"] for b in births) and bool(births) == (mode != "none")
    assert len({m for row in metrics for m in row["members"]}) == 6 + sum(b["step"] == 0 for b in births)
    gap = 0.1 if switches["dtype"] == "bfloat16" else 1e-3
    for row in metrics:
        assert row["skipped"] == [] and row["train_rollout_logprob_diff"] < gap, "rollout and training disagree"
        assert ("clip_frac" in row) == ("approx_kl" in row) == (switches["epochs"] > 1)
    assert (metrics[-1]["kl"] is not None) == (switches["kl_coef"] > 0)
    assert (metrics[-1]["entropy"] is not None) == (switches["entropy_coef"] > 0)
    assert len(list(path.glob("step_*"))) == min(switches["keep"], 2 if switches["save_every"] == 1 else 1)
    valid = [row for row in tasks if not row["reason"]]
    assert all(0 <= row["solve_rate"] <= 1 for row in valid)
    assert {row["kind"] for row in tasks} <= set(switches["task_types"].split(","))
    assert all(row["reward"] == switches["invalid_penalty"] for row in tasks if row["reason"])
    assert len({row["id"] for row in valid}) == len(valid)


def test_the_table_covers_every_choice():
    assert all(len(values) <= len(EVOLVE) for values in SWITCHES.values()) and set(OPERATORS) < set(EVOLVE)


def test_single(run):
    path = run(single=True, pop=2, evolve="mixed")
    assert {p.name for p in (path / "step_2").iterdir()} == {"T0", "optimizer", "state.json"}
    assert not rows(path, "genealogy") and sorted(rows(path)[0]["members"]) == ["S0", "T0"]


@pytest.fixture(scope="module")
def finished(run):
    """A run of all three kinds with probes and evolution."""
    return run(steps=4, task_types="code_o,code_i,code_f", n_prompts=3, pop=4, save_every=1, keep=2, probe_every=2, n_few_shot=1)


def test_files_of_a_run(finished):
    assert {p.name for p in finished.iterdir()} == {"config.json", "env.json", "lock", *LOGS, "step_3", "step_4"}
    given, env = (json.loads((finished / name).read_text()) for name in ("config.json", "env.json"))
    assert given["pop"] == 4 and given["lr"] == config.PRESETS["micro"]["lr"] and None not in given.values()
    assert {"commit", "python", "torch", "device", "processes", "threads"} <= set(env)
    assert env["sandbox"] in ("full", "no namespaces")
    living = {b["child"] for b in rows(finished, "genealogy")} | {"T0", "T1", "S0", "S1"}
    kept = {p.name for p in (finished / "step_4").iterdir()} - {"state.json", "optimizer"}
    assert len(kept) == 4 and kept < living
    assert not list(finished.rglob("model.safetensors")), "the base is never copied"


def test_metrics(finished):
    """What a run measures in which step; the names of all columns stand in same_bits.json."""
    metrics = rows(finished)
    for row in metrics:
        assert ("heldout_greedy" in row) == ("student_solve" in row) == (row["step"] in (0, 2, 3)), row["step"]
        assert set(row["task_types"]) == {"code_o", "code_i", "code_f"} and len(row["members"]) == 4
        assert set(row["seconds"]) == set("match propose verify solve probe update rate record evolve".split())
        assert sum(row["reasons"].values()) == round((1 - row["valid"]) * row["n"])
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
    assert all(row["reward"] == -1 and row["text"] is not None for row in tasks if row["reason"])
    assert len({b["child"] for b in births}) == len(births) > 0


@pytest.mark.parametrize("flags, match", [
    ("--pop 5", "--pop 5 cannot be halved"), ("--base /nowhere/at/all", "/nowhere/at/all"),
    ("--halt-on escape,colapse", "colapse.*valid: collapse, gaming, forgetting, escape"),
    ("--rollout-batch 100000000", r"(?s)not enough memory:\n.*base .*cache +[\d.]+ GB .*peak .*free .*lower .*--rollout-batch"),
    ("--seed-tasks /nowhere", "/nowhere cannot be read"), ("--seed-tasks /dev/null", "holds no tasks"),
    ("--heldout /nowhere", "--heldout /nowhere: no such file"), ("--init /nowhere", "holds 0 adapters for 6 members"),
    ("--device cuda", "sees no CUDA device"), ("--device nonsense", "--device nonsense: give auto, cpu, cuda or cuda:1"),
    ("--max-new-tokens 100000", "exceed the base's context, 256 tokens")])
def test_a_clear_sentence(micro_base, tmp_path, flags, match):
    """And no run is left behind."""
    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserError, match=match):
        train.main(config.parse_args(None, words(**TINY, base=micro_base, out=tmp_path) + flags.split()))
    assert not list(tmp_path.glob("run/*.jsonl"))


@pytest.mark.parametrize("flags, said", [
    (["--lr_teacher=1"], "unrecognized arguments: --lr_teacher=1"), (["--popul", "8"], "unrecognized"),
    (["--matching", "pfps"], "pfsp.*uniform.*hard.*round-robin.*all"), (["--steps", "many"], "invalid int")])
def test_wrong_flags(capsys, flags, said):
    with pytest.raises(SystemExit) as e:
        config.parse_args(None, flags)
    assert e.value.code == 2 and re.search(said, capsys.readouterr().err)


def test_seed_tasks_seed_the_archive(run, tmp_path):
    given = [dict(program=f"def f(x):\n return x+{i}", input="1") for i in range(3)]
    given += [dict(kind="code_f", program="def f(x):\n return x*2", inputs=[str(i) for i in range(8)])]
    (tmp_path / "seeds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    path = run(seed_tasks=tmp_path / "seeds.jsonl", steps=1, task_types="code_o,code_f", n_prompts=2, lr_teacher=0, evolve_every=1)
    assert {row["child"][0] for row in rows(path, "genealogy")} == {"S"}            # teachers at rate 0 are frozen
    seeds = json.loads((path / "step_1" / "state.json").read_text())["seeds"]
    assert [s["outputs"][0] for s in seeds] == ["1", "2", "3", "0"] and min(row["id"] for row in rows(path, "tasks") if "id" in row) == 4


def test_the_best_of_a_litter_takes_the_place_if_it_is_better(run, base, micro_base, population, tmp_path):
    """Of three students, none of which learns, two are broken: copies of the third replace them, then nobody is replaced."""
    adapters = population(base, 5, b_std=0.0)
    for slot, name in enumerate(("T0", "T1", "S0", "S1", "S2")):
        if name in ("S0", "S1"):
            broken = {path: (torch.full_like(A, 9.0), torch.full_like(B, 9.0)) for path, (A, B) in adapters.factors(slot).items()}
            adapters.set_factors(slot, broken)
        save_peft(adapters, slot, tmp_path / name, str(micro_base), files_hash(base.path))
    flags = dict(pop=5, teachers=2, steps=3, evolve="copy", grace=0, matching="all", lr=0.0, lr_teacher=0.0, max_new_tokens=24,
                 rank=4, alpha=8.0, init=tmp_path)
    path, untried = run(**flags, litter=2), run(**flags | dict(steps=1))
    first, second, third = [row for row in rows(path, "genealogy") if row["victim"]["role"] == "student"]
    assert {first["victim"]["name"], second["victim"]["name"]} == {"S0", "S1"}
    assert [row["child"] for row in (first, second, third)] == ["S3", "S4", None]
    assert [parent["name"] for parent in first["parents"]] == ["S2"]
    for row in (first, second, third):
        solved = [child["solved"] for child in row["trial"]["children"]]
        assert len(solved) == 2 and (max(solved) > row["trial"]["victim"]) == (row["child"] is not None)
    assert first["trial"]["victim"] == 0 == min(child["solved"] for child in first["trial"]["children"])
    weights = [load_file(path / "step_3" / name / "adapter_model.safetensors") for name in ("S2", "S3", "S4")]
    assert all(torch.equal(x, other[key]) for other in weights[1:] for key, x in weights[0].items())
    ours, theirs = rows(path), rows(untried)
    assert ours[0]["tokens_generated"] == theirs[0]["tokens_generated"] + first["trial"]["tokens"] > theirs[0]["tokens_generated"]
    assert [birth for row in ours for birth in row["births"]] == [row["child"] for row in rows(path, "genealogy") if row["child"]]
    assert all("trial" not in row for row in rows(untried, "genealogy")), "one child is untried"
    assert [step for step, *_ in births_of(ours, rows(path, "genealogy"))] == [0, 1], "who keeps its place is not born"
    text = page.page([RunLog(path)])
    assert "; best of 2 on " in text and "Of 3 litters 1 had no child better than its victim" in text


def test_a_litter_needs_tasks_to_tell_children_apart(run, tmp_path):
    (tmp_path / "one.jsonl").write_text(json.dumps(dict(program="def f(x):\n return x+1", input="1")) + "\n")
    with pytest.raises(UserError, match="--litter 2 compares children on the run's tasks, and --tasks .*one.jsonl holds only one"):
        run(tasks=tmp_path / "one.jsonl", litter=2)


def test_a_step_without_valid_proposals_is_survived(run):
    path = run(max_new_tokens=1, probe_every=1)
    for row in rows(path):
        assert row["valid"] == 0 and row["solve_rate"] is None and row["frac_zero_advantage"] == 1
        assert sum(row["reasons"].values()) == row["n"]
    assert all(m["winner"] == "student" for m in rows(path, "matches")) and (path / "step_2").is_dir()


def test_whoever_asks_for_every_row_gets_the_last_one(micro_base, tmp_path):
    """`enough` is called after every step, and ends a run early where it says so."""
    flags = TINY | dict(base=micro_base, out=tmp_path, pop=2, max_new_tokens=16, n_heldout=0, evolve="none")
    seen = []
    path = train.main(config.parse_args(None, words(**flags)), lambda row: seen.append(row)).path
    assert json.loads(json.dumps(seen)) == rows(path) and [row["step"] for row in seen] == [0, 1]
    early = train.main(config.parse_args(None, words(**flags | dict(name="early"))), lambda row: True).path
    assert len(rows(early)) == 1 and (early / "step_1" / "state.json").exists()


@pytest.mark.slow
def test_two_processes(run, micro_base, tmp_path):
    """torchrun over gloo trains the same population: the same proposals, the same update up to rounding."""
    flags = dict(steps=1, temperature=0.05, probe_every=1, evolve="none", dtype="float32")
    alone, both = run(**flags), tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc_per_node=2"]
    done = subprocess.run([*torchrun, "train.py", *words(**TINY | dict(base=micro_base, out=tmp_path) | flags)], cwd=ROOT,
                          capture_output=True, text=True, timeout=180, env=os.environ | {"OMP_NUM_THREADS": "1"})
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
