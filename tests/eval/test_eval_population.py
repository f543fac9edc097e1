"""Cross-play, the runs of an ablation, runs made by hand."""
import argparse
import itertools
import json
import re
import shlex
import shutil
from collections import Counter

import numpy as np
import pytest
from tiny_run import rows as rows_of

import train
from config import flags_of, parse_args, resolve_config
from eval import stats
from eval.population import ablation, crossplay, deployed, heldout, runs
from common import UserError
from run import RunDir
from tasks import TASK_TYPES, read_tasks
from tasks.programs import Limits

CPU = ["--device", "cpu", "--workers", "1"]


@pytest.fixture(scope="module")
def grown(micro_base, tmp_path_factory):
    """A run stopped after three steps that keeps every checkpoint: four members, a birth in each role a step."""
    out = str(tmp_path_factory.mktemp("out"))
    cfg = train.Config(base=str(micro_base), out=out, name="grown", steps=9, pop=4, n_prompts=1,
                       proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=4,
                       evolve_every=1, grace=0, probe_every=1, save_every=1, keep=9)
    return train.main(cfg, lambda row: row["step"] == 2).path


def test_forgetting_is_not_the_luck_of_the_best_of_many():
    rng = np.random.default_rng(0)
    n = 4000
    same = {str(g): {"1": (rng.random(n) < 0.5).astype(float)} for g in range(9)}      # nothing is forgotten
    naive = max(same[str(g)]["1"].mean() for g in range(8)) - same["8"]["1"].mean()
    behind = crossplay.forgetting(same, "1", "8", [str(g) for g in range(8)])
    assert behind.mean() < naive and stats.bootstrap(behind)[0] < 0
    same["3"]["1"] = (rng.random(n) < 0.7).astype(float)        # one that was better
    behind = crossplay.forgetting(same, "1", "8", [str(g) for g in range(8)])
    assert behind.mean() == pytest.approx(same["3"]["1"].mean() - same["8"]["1"].mean())


@pytest.mark.slow
def test_crossplay_on_a_run(grown, tmp_path, capsys):
    flags = ["--run", str(grown), "--tasks", "4", "--samples", "1", "--every", "2", "--out", str(tmp_path / "o"), *CPU]
    assert crossplay.main(flags) == 0
    result = json.loads((tmp_path / "o/summary.json").read_text())
    rows = rows_of(tmp_path / "o", "answers")
    assert result["students"] == ["base", "1", "3"] and result["teachers"] == ["1", "3"]
    assert "forgetting" in capsys.readouterr().out
    for row, line in result["matrix"].items():
        for column, rate in line.items():
            own = [r["correct"] for r in rows if r["bench"] == column and r["member"].split("/")[0] == row]
            assert rate == pytest.approx(np.mean(own)) and len(own) in (4, 8)
    assert list(result["forgetting"]) == ["1", "all"] and len(rows) == 2 * 4 * (1 + 2 + 2)
    seen = {r["program"] for r in rows_of(grown, "tasks") if not r["reason"]}
    for step in (1, 3):                            # two generations may well write the same task
        made = {t["task"]["program"] for t in json.loads((tmp_path / "o/tasks.json").read_text()) if t["bench"] == str(step)}
        assert len(made) == 4 and not made & seen, "new tasks, which no student was trained on"
    (tmp_path / "o/answers.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[:7]))
    assert crossplay.main(flags) == 0
    assert json.loads((tmp_path / "o/summary.json").read_text()) == result, "resumed: the same"
    for words, match in (("--tasks 6", "made otherwise: data 1, data 3"), ("--every 9", "--keep 1000"), ("--run=", "give --run")):
        with pytest.raises(UserError, match=match):
            crossplay.main([*flags, *words.split()])


def test_theorems_are_asked_and_judged_over_the_run_s_own_theory(sandbox):
    """As --theory of the run's config.json says: crossplay's teachers may have written proofs."""
    limits, kind = Limits(theory="miu.mm"), TASK_TYPES["proof"]
    theorem = "x $p |- M I I I I $= se sI sI se sI mi double double $."
    proposal = kind.parse_proposal(f"```metamath\n{theorem}\n```", "chat", [], limits)
    verdict, = sandbox.run([kind.job(proposal)])
    task = kind.accept(proposal, verdict, limits, "key")
    answer = heldout.Item("1", "0", task), f"```metamath\n{proposal.inputs[0]}\n```"
    for given, right in ((limits, True), (None, False)):
        ask, verify = heldout.examiner(sandbox, "chat", given)
        assert ("string x M" in ask(answer[0]).user) is right and verify([answer])[0]["correct"] is right


# ---- runs of an ablation -----------------------------------------------------------------------------------

def test_arms_spend_what_they_say():
    every = ablation.arms_of(8, ["slow: --lr 3e-4", "one:--single"])
    assert all(train.parse_args(None, list(arm.flags)) for arm in every.values()), "flags that train.py has"
    for one, other, varied in (("full", "uniform", "matching"), ("copy", "no-evolution", "evolution"), ("full", "pair", ""),
                               ("uniform", "copy", ""), ("niches-add", "no-evolution", ""), ("niches-add", "niches", "evolution")):
        assert every[one].varies(every[other]) == every[other].varies(every[one]) == varied, (one, other)
    assert (every["single"].part, every["singles"].part, every["singles"].runs) == (0.25, 0.25, 4)
    assert {arm.part for name, arm in every.items() if name not in ("single", "singles")} == {1}
    assert every["slow"].flags == ("--pop", "8", "--lr", "3e-4") and every["one"].flags == ("--single",)
    assert list(runs.runs_of("singles", every["singles"], 2)) == ["single-s2", "single-s1002", "single-s2002", "single-s3002"]


def metric_row(tokens: int, probe_tokens: int = 0) -> dict:
    """A row of metrics.jsonl; tokens: in all so far, with those of probes."""
    return dict(tokens_generated=tokens, probe_tokens=probe_tokens)


def test_a_run_stops_as_near_to_its_budget_as_whole_steps_can_be():
    assert runs.spent([metric_row(150, 50), metric_row(250), metric_row(400, 50)]) == [100, 200, 300], "probes train nobody"
    assert not runs.met([], 100) and not runs.met([40, 80], 101) and runs.met([40, 80], 100)
    for costs in ([7] * 60, list(range(1, 60)), [30, 1] * 30):
        done = list(itertools.accumulate(costs))
        for target in (50, 111, 333):
            stop = next(i for i in range(len(done)) if runs.met(done[:i + 1], target))
            near = abs(done[stop] - target) <= costs[stop] / 2
            assert near or stop == 0 or target - done[stop - 1] > costs[stop - 1] / 2


def test_a_run_is_trained_up_to_its_budget_and_no_further(monkeypatch, tmp_path):
    """What is on disk counts."""
    asked = []

    def loop(cfg, enough):
        """Stands for train.main: steps of 100 tokens until enough."""
        while not enough(metric_row(100 * len(asked) + 400)):
            asked.append(cfg.steps)
            assert len(asked) < 50
    monkeypatch.setattr(ablation.train, "main", loop)
    monkeypatch.setattr(runs, "logged", lambda directory: [metric_row(100), metric_row(200), metric_row(300)])
    ablation.train_run(argparse.Namespace(steps=3), tmp_path / "a", ["--steps", "99"], 1000)
    assert asked == [99] * 6
    ablation.train_run(argparse.Namespace(steps=3), tmp_path / "a", [], None)
    assert len(asked) == 6, "full has its steps already"


def test_probes_ask_the_validation_tasks_that_are_asked_after_the_run(tmp_path):
    types = ["code_o", "code_i"]
    runs.write_heldout(tmp_path / "heldout.jsonl", types, 12)
    asked = [i.task for i in heldout.items_of(types, "validation", 12) if not heldout.is_seen(i.bench, i.id)]
    read = [(p.kind, p.program, p.inputs) for p in read_tasks(tmp_path / "heldout.jsonl")]
    assert read == [(task.kind, task.program, task.inputs) for task in asked] and len(read) == 2 * 10


def test_what_a_user_gets_wrong_in_arms_is_said(micro_base, tmp_path, capsys):
    flags = ["--base", str(micro_base), "--out", str(tmp_path / "arms"), "--device", "cpu"]
    for words, match in (("--arms no_evolution", "did you mean no-evolution"), ("--pop 3", "an even --pop from 4"), ("--arm slow", "give a new name"),
                         ("--arm copy:--single", "give a new name"), ("-- --steps 4", "the arms set it themselves"), ("-- --lr -1", "--lr -1.0: give a number in"),
                         ("-- --task-types logic", "--task-types logic: no such ablation"), ("--seeds 0,x", "--seeds 0,x: give whole"), ("--seeds 1000", "under 1000")):
        with pytest.raises(UserError, match=match):
            ablation.main([*flags, "--plan", *words.split()])
    words = ["--plan", "--seeds", "0,1", "--steps", "20", "--arms", "singles,copy", "--arm", "slow: --lr-teacher 0", "--arm", "one:--single"]
    assert ablation.main([*flags, *words, "--", "--lr", "1e-3"]) == 0
    plan = capsys.readouterr().out
    assert plan.count("--lr 1e-3 --pop 8") == 6 and plan.count("--single") == 2 * 5
    assert "16 runs" in plan and not (tmp_path / "arms").exists()
    assert "note: 2 seed(s): the table will have no intervals (from 5 seeds on) and no verdicts (from 8 seeds on)" in plan
    assert "copy-s1, ends when it has spent the tokens of full-s1: " in plan and "single-s1001, ends when it has spent 0.25 of the tokens" in plan
    of_full = re.findall(r"^full-s\d, 20 steps: (.*)$", plan, re.M)
    assert len(of_full) == 2
    for words in of_full:
        assert train.parse_args(None, shlex.split(words)).steps == 20
        assert train.parse_args(None, shlex.split(words)).heldout == str(tmp_path / "arms" / "heldout.jsonl")


@pytest.mark.slow
def test_arms_end_to_end(micro_base, tmp_path, capsys):
    """Two types; gone on with after an evaluation and a run were lost: as if nothing had happened."""
    out = tmp_path / "arms"
    flags = ["--base", str(micro_base), "--device", "cpu", "--seeds", "0", "--pop", "4", "--steps", "8", "--limit", "6", "--arms", "single-long",
             "--measure", "coverage"]
    words = ["--", "--max-new-tokens", "48", "--evolve-every", "3", "--task-types", "code_o,code_i", "--save-every", "1"]
    assert ablation.main([*flags, "--out", str(out), *words]) == 0
    table = capsys.readouterr().out.partition("; seeds 0;")[2]
    assert ablation.main(["--from", str(out), "--measure", "coverage"]) == 0 and capsys.readouterr().out.partition("; seeds 0;")[2] == table
    full, single = runs.read(out).values()
    for record, name in ((full, "full-s0"), (single, "single-long-s0")):
        answers = [row for row in rows_of(out / name / "heldout-sampled", "answers") if row["id"][0] != "1"]
        assert list(record["accuracy"]["test"]["code_o"]) == list(record["sampled"]["code_o"]) and record["best"] in record["sampled"]["code_i"]
        for kind, members in record["sampled"].items():
            for student, tasks in members.items():
                own = Counter(row["id"] for row in answers if (row["bench"], row["member"]) == (kind, student) and row["correct"])
                assert tasks == {i: own[i] for i in tasks} and len(tasks) == 5
    assert len(full["spent"]) == 8 and full["births"] and full["probes"][-1][0] == full["spent"][-1]
    assert abs(single["spent"][-1] / full["spent"][-1] - 1) <= 0.05 and "code_i" in table
    copied = tmp_path / "copied"
    shutil.copytree(out, copied)
    shutil.rmtree(copied / "full-s0" / "heldout-test")
    shutil.rmtree(copied / "single-long-s0")
    assert ablation.main([*flags, "--out", str(copied), *words]) == 0
    told = json.loads((out / "full-s0" / "heldout-sampled" / "summary.json").read_text())["coverage"]
    assert [(line["bench"], line["k"], line["n"]) for line in told] == [("code_o", 2, 5), ("code_i", 2, 5), ("all", 2, 10)]
    again, one_more = runs.read(copied), single.pop("made")
    assert again["full-s0"] == full and again["single-long-s0"].pop("made")[0]["started"] > one_more[0]["started"]
    assert again["single-long-s0"] == single and str(tmp_path) not in (out / "runs.jsonl").read_text()
    line = full["made"][0]["command"].removeprefix("python train.py ")
    given, settled = resolve_config(parse_args(None, shlex.split(line)), "micro"), RunDir(out / "full-s0", writes=False).config()
    differ = {name for name, value in flags_of(given).items() if value != settled[name]}
    assert differ == {"base", "heldout", "name", "out", "resume"} and given.evolve_every == 3, "the whole command, but for paths"
    with pytest.raises(UserError, match="arms of another comparison: steps"):
        ablation.main([*flags, "--out", str(out), "--steps", "9", *words])


@pytest.mark.slow
def test_runs_made_by_hand_become_records(grown, tmp_path, capsys):
    """At the checkpoint nearest to the tokens; a child of two; the table."""
    out, spent = tmp_path / "o", runs.spent(runs.logged(grown))
    flags = ["--tokens", str(2 * spent[1]), "--limit", "6", "--also", "math", "--out", str(out)]
    second = tmp_path / "second"
    shutil.copytree(grown, second)
    shutil.copytree(grown / "step_1", second / "step_0")                  # interrupted before anything was spent
    assert deployed.nearest(second, spent[-1]) == len(spent)
    assert deployed.main([*flags, "--arm", "two:7", "--flags=--evolve none", str(grown), str(second)]) == 0
    assert deployed.main([*flags, "--arm", "child:7", "--cross", "add", str(grown), str(second)]) == 0
    records = runs.read(out)
    assert list(records) == ["two-s7", "two-s1007", "child-s7"]
    arms = runs.opened([str(out)]).arms
    assert arms["two"] == runs.Arm(["--evolve", "none"], 0.5, 2) and arms["child"] == runs.Arm([], cross="add")
    first, child = records["two-s7"], records["child-s7"]
    assert first["spent"] == spent[:2] and child["spent"][-1] == 2 * spent[1]
    assert set(child["accuracy"]["test"]["code_o"]) == {"S0"}
    for split, kind in itertools.product(heldout.SPLITS, ("code_o", "math")):
        asked = rows_of(out / f"two-s7/heldout-{split}", "answers")
        for name, accuracy in first["accuracy"][split][kind].items():
            own = [r["correct"] for r in asked if (r["bench"], r["member"]) == (kind, name) and r["id"][0] != "1"]
            assert accuracy == pytest.approx(np.mean(own)) and len(own) in (5, 6)
    validation = first["accuracy"]["validation"]["code_o"]
    best = max(validation, key=validation.get)
    assert first["validation"] == validation[best] and first["deployed"]["math"] == first["accuracy"]["test"]["math"][best]
    assert ablation.main(["--from", str(out), "--reference", "child", "--measure", "deployed"]) == 0
    assert "child - two" in capsys.readouterr().out
    for words, match in ((f"--limit 3 --arm two:8 {grown}", "arms of another comparison: limit"), (f"--arm two:8 {tmp_path}/nothing", "no checkpoint there"),
                         (f"--arm two {grown}", "give NAME:SEED")):
        with pytest.raises(UserError, match=match):
            deployed.main([*flags, *words.split()])
