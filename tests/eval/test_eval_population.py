"""Evaluation of populations: held-out tasks, generations, the runs of an ablation."""
import argparse
import itertools
import json
import re
import shlex
import shutil

import numpy as np
import pytest

import train
from eval import common, stats
from eval.population import ablation, crossplay, deployed, heldout, runs
from eval.summary import against, summarise, with_means
from micro import programs
from run.checkpoint import RunDir
from tasks import TASK_TYPES, read_tasks
from tasks.validation import Limits

CPU = ["--device", "cpu", "--workers", "1"]


@pytest.fixture(scope="module")
def grown(micro_base, tmp_path_factory):
    """A finished run that keeps every checkpoint: four members, three steps, a birth in each role a step."""
    out = str(tmp_path_factory.mktemp("out"))
    cfg = train.Config(base=str(micro_base), out=out, name="grown", steps=3, pop=4, n_prompts=1,
                       proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=4,
                       evolve_every=1, grace=0, probe_every=1, save_every=1, keep=9)
    return train.main(cfg).path


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(bench, i, member, correct, sample=0, **more):
    return dict(bench=bench, id=i, member=member, sample=sample, correct=correct, tokens=5, **more)


def test_the_members_mean_and_another_run():
    answers = dict(base=(1, 1, 0, 0), S0=(1, 1, 1, 0), S1=(1, 0, 0, 0))
    mine = []
    for name, rights in answers.items():
        mine += [row("b", str(i), name, right) for i, right in enumerate(rights)]
    found = {line["member"]: line for line in summarise(mine, 9)}
    assert list(found) == ["base", "S0", "S1", "mean"]
    assert found["mean"]["accuracy"] == 0.5 and found["mean"]["minus_base"] == 0
    assert found["S0"]["minus_base"] == 0.25 and found["mean"]["interval"] == stats.wilson(2, 4)
    other = [row("b", str(i), "S7", right) for i, right in ((3, 1), (2, 0), (9, 1))]      # two are common
    versus = {line["member"]: line for line in against(mine, other)}
    assert versus["S0"]["n"] == 2 and versus["S0"]["difference"] == 0 and versus["S1"]["difference"] == -0.5
    half = with_means({"S0": {"1": 1.0, "2": 0.0}, "S1": {"2": 1.0}})     # an evaluation cut off in between
    assert half["mean"] == {"2": 0.5} and list(half) == ["S0", "S1", "mean"]
    assert list(with_means({"S0": {}, "base": {}})) == ["base", "S0"]
    both = with_means({"T0": {"1": 0.0}, "o/step_3/S0": {"1": 1.0}, "S1": {"1": 0.5}, "base": {"1": 1.0}})
    means = {name: both[name]["1"] for name in list(both)[-3:]}
    assert means == {"mean": 0.5, "mean T": 0.0, "mean S": 0.75}
    with pytest.raises(ValueError, match="answered none of these questions"):
        against(mine, [row("c", "0", "S0", 1)])


# ---- held-out tasks ----------------------------------------------------------------------------------------

def test_no_program_is_in_both_splits_nor_in_the_training_text():
    def text(item: heldout.Item) -> str:
        return item.task.message or item.task.program
    for family in heldout.ROWS:
        test, validation = (heldout.draw(family, split, 2) for split in heldout.SPLITS)
        assert not {text(i) for i in test} & {text(i) for i in validation}
        fewer = heldout.draw(family, "test", 1)
        assert fewer == test[:len(fewer)] and len(fewer) == len(heldout.SIZES[heldout.ROWS[family]])
        for item in test + validation:
            seen = heldout.is_seen(item.bench, item.id)
            if family.startswith("code"):
                assert seen or programs.held_out(item.task.program + "\n"), item
            if family == "math" and not seen:
                story = [line[1:] for line in item.task.message.splitlines()]
                assert programs.held_out("\n".join(story))
    assert [i.id for i in heldout.draw("logic", "test", 2)] == ["2/0", "3/0", "4/0", "2/1", "3/1", "4/1"]


def test_heldout_on_a_run_resumes_and_compares(grown, tmp_path, capsys):
    flags = ["--run", str(grown), "--bench", "code_o,logic", *CPU]
    assert heldout.main([*flags, "--limit", "6", "--out", str(tmp_path / "o")]) == 0
    assert "minus base" in capsys.readouterr().out
    first = lines(tmp_path / "o/answers.jsonl")
    assert len(first) == (6 + 6) * 5 and {r["verdict"] for r in first} <= {"correct", "wrong", "malformed"}
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    counts = [line["n"] for line in summary["results"] if line["member"] == "mean"]
    assert counts == [5, 4, 9], "of size 1 (logic: 2) none"
    size = summary["sizes"][0]
    assert size["bench"] == "code_o 1*" and size["minus_base_interval"][0] <= size["minus_base"]
    solved = {line["member"] for line in summary["results"] if line["accuracy"] > 0}
    assert solved, "the micro base solves some of these"

    out = str(tmp_path / "o")
    assert heldout.main([*flags, "--limit", "8", "--out", out, "--against", out]) == 0
    assert lines(tmp_path / "o/answers.jsonl")[:len(first)] == first, "what is on disk is not generated again"
    differences = json.loads((tmp_path / "o/summary.json").read_text())["differences"]
    assert next(line for line in differences if line["member"] == "mean S")["difference"] == 0
    with pytest.raises(ValueError, match="made otherwise: temperature"):
        other = str(tmp_path / "p")
        heldout.main([*flags, "--temperature", "1", "--limit", "2", "--out", other, "--against", out])
    with pytest.raises(ValueError, match="made otherwise: data code_o"):   # of another split
        heldout.main([*flags, "--split", "validation", "--out", out, "--limit", "2"])


def test_what_a_user_gets_wrong_in_heldout_is_said(grown, tmp_path, tiny):
    with pytest.raises(ValueError, match="did you mean code_o"):
        heldout.main(["--run", str(grown), "--bench", "code_0", *CPU])
    with pytest.raises(ValueError, match="no complete checkpoint there"):
        heldout.main(["--run", str(tmp_path), *CPU])
    with pytest.raises(ValueError, match="no answers.jsonl there nor in its eval-heldout"):
        heldout.main(["--run", str(grown), "--bench", "logic", "--limit", "1", "--out", str(tmp_path / "o"),
                      "--against", str(tmp_path), *CPU])
    assert not (tmp_path / "o/answers.jsonl").exists(), "said before the work, not after it"
    with pytest.raises(ValueError, match="--bench math: its template is that of the micro prompt format"):
        heldout.main(["--base", str(tiny.path), "--bench", "math", "--out", str(tmp_path / "t"), *CPU])


# ---- generations -------------------------------------------------------------------------------------------

def test_forgetting_is_not_the_luck_of_the_best_of_many():
    rng = np.random.default_rng(0)
    n = 4000
    same = {str(g): {"1": (rng.random(n) < 0.5).astype(float)} for g in range(9)}      # nothing is forgotten
    naive = max(same[str(g)]["1"].mean() for g in range(8)) - same["8"]["1"].mean()
    behind = crossplay.forgetting(same, "1", "8", [str(g) for g in range(8)])
    assert behind.mean() < naive and stats.paired_bootstrap(behind)[0] < 0
    same["3"]["1"] = (rng.random(n) < 0.7).astype(float)        # one that was better
    behind = crossplay.forgetting(same, "1", "8", [str(g) for g in range(8)])
    assert behind.mean() == pytest.approx(same["3"]["1"].mean() - same["8"]["1"].mean())


def test_crossplay_on_a_run(grown, tmp_path, capsys):
    flags = ["--run", str(grown), "--tasks", "4", "--samples", "1", "--generations", "2",
             "--out", str(tmp_path / "o"), *CPU]
    assert crossplay.main(flags) == 0
    result = json.loads((tmp_path / "o/summary.json").read_text())
    rows = lines(tmp_path / "o/answers.jsonl")
    assert result["students"] == ["base", "1", "3"] and result["teachers"] == ["1", "3"]
    assert "forgetting" in capsys.readouterr().out
    for line in result["matrix"].values():
        assert all(cell["n"] == 4 and 0 <= cell["rate"] <= 1 for cell in line.values())
    assert list(result["forgetting"]) == ["1", "all"] and len(rows) == 2 * 4 * (1 + 2 + 2)
    seen = {r["program"] for r in lines(grown / "tasks.jsonl") if not r["reason"]}
    for step in (1, 3):                            # two generations may well write the same task
        tasks = json.loads((tmp_path / "o/tasks.json").read_text())[str(step)]
        made = {t["task"]["program"] for t in tasks}
        assert len(made) == 4 and not made & seen, "new tasks, which no student was trained on"
    (tmp_path / "o/answers.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[:7]))
    assert crossplay.main(flags) == 0
    assert json.loads((tmp_path / "o/summary.json").read_text()) == result, "resumed: the same"
    with pytest.raises(ValueError, match="made otherwise: data 1, data 3"):
        crossplay.main([*flags, "--tasks", "6"])
    with pytest.raises(ValueError, match="give --run"):
        crossplay.main(CPU)
    with pytest.raises(ValueError, match="--keep 1000"):
        crossplay.main([*flags, "--generations", "1"])


def test_theorems_are_asked_and_judged_over_the_run_s_own_theory(grown, sandbox, tmp_path):
    """As --theory of the run's config.json says: crossplay's teachers may have written proofs."""
    limits, kind = Limits(theory="miu.mm"), TASK_TYPES["proof"]
    theorem = "x $p |- M I I I I $= se sI sI se sI mi double double $."
    proposal = kind.parse_proposal(f"```metamath\n{theorem}\n```", "chat", [], limits)
    verdict, = sandbox.run([kind.job(proposal)])
    task = kind.accept(proposal, verdict, limits, "key")
    answer = heldout.Item("1", "0", task), f"```metamath\n{proposal.inputs[0]}\n```"
    for given, right in ((limits, True), (None, False)):
        ask, judge = heldout.examiner(sandbox, "chat", given)
        assert ("string x M" in ask(answer[0]).user) is right and judge([answer])[0]["correct"] is right
    run = tmp_path / "run"
    shutil.copytree(grown, run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | dict(theory="/its/own.mm")))
    args = common.parser_of("eval", "", None).parse_args(["--run", str(run), "--device", "cpu"])
    args.prompt_format, args.max_rows = "", None
    players = crossplay.Players(args, RunDir(run, writes=False), sandbox)
    assert (players.limits.theory, players.limits.compact) == ("/its/own.mm", True)


# ---- runs of an ablation -----------------------------------------------------------------------------------

def test_arms_spend_what_they_say():
    every = ablation.arms_of(8, 3)
    assert every["single-wide"].flags == ("--single", "--n-prompts", "12")
    assert all(train.parse_args(None, list(arm.flags)) for arm in every.values()), "flags that train.py has"
    for one, other, varied in (("full", "uniform", "matching"), ("copy", "no-evolution", "evolution"), ("full", "pair", ""),
                               ("uniform", "copy", ""), ("niches-add", "no-evolution", ""), ("niches-add", "niches", "evolution")):
        assert every[one].varies(every[other]) == every[other].varies(every[one]) == varied, (one, other)
    assert (every["single"].part, every["singles"].part, every["singles"].runs) == (0.25, 0.25, 4)
    assert {arm.part for name, arm in every.items() if name not in ("single", "singles")} == {1}
    assert all(set(preset) <= set(every) for preset in ablation.PRESETS.values())
    assert list(runs.runs_of("singles", every["singles"], 2)) == ["single-s2", "single-s1002", "single-s2002", "single-s3002"]


def test_an_arm_of_ones_own():
    assert ablation.given_arm("slow: --lr 3e-4", 8) == ("slow", runs.Arm(("--pop", "8", "--lr", "3e-4")))
    assert ablation.given_arm("one:--single", 8)[1].flags == ("--single",)
    assert ablation.given_arm("two: --pop=2 --evolve copy", 8)[1].flags == ("--pop=2", "--evolve", "copy")
    for text in ("--lr 3e-4", "a b: --lr 1", ": --lr 1", "copy: --lr 1"):
        with pytest.raises(ValueError, match="give a new name of small letters"):
            ablation.given_arm(text, 8)


def metric_row(tokens: int, probe_tokens: int = 0) -> dict:
    """A row of metrics.jsonl; tokens: in all so far, with those of probes."""
    return dict(tokens_generated=tokens, probe_tokens=probe_tokens)


def test_a_probe_s_tokens_are_no_part_of_the_budget():
    rows = [metric_row(150, 50), metric_row(250), metric_row(400, 50)]
    assert runs.spent(rows) == [100, 200, 300]


def test_a_run_stops_as_near_to_its_budget_as_whole_steps_can_be():
    assert not runs.met([], 100) and not runs.met([40, 80], 101) and runs.met([40, 80], 100)
    assert runs.met([60], 90) and not runs.met([60], 91)
    for costs in ([7] * 60, list(range(1, 60)), [30, 1] * 30):
        done = list(itertools.accumulate(costs))
        for target in (50, 111, 333):
            stop = next(i for i in range(len(done)) if runs.met(done[:i + 1], target))
            near = abs(done[stop] - target) <= costs[stop] / 2
            assert near or stop == 0 or target - done[stop - 1] > costs[stop - 1] / 2


def test_the_loop_asks_after_every_step(micro_base, tmp_path):
    """Steps take less than any polling: the run ends with the very step, and its checkpoint."""
    cfg = train.Config(base=str(micro_base), out=str(tmp_path), name="run", steps=9, pop=2, n_prompts=1,
                       proposals_per_prompt=2, samples_per_task=2, max_new_tokens=32, probe_every=0)
    run = train.main(cfg, lambda row: row["step"] == 1)
    assert run.steps() == [2] and [row["step"] for row in runs.logged(run.path)] == [0, 1]


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
    args = argparse.Namespace(steps=3)
    assert ablation.train_run(args, tmp_path / "a", ["--steps", "99"], 1000) == 1000 and set(asked) == {99}
    asked.clear()
    assert ablation.train_run(args, tmp_path / "a", [], None) == 300 and not asked, "full has its steps already"


def test_probes_ask_the_validation_tasks_that_are_asked_after_the_run(tmp_path):
    types = ["code_o", "code_i"]
    runs.write_heldout(tmp_path / "heldout.jsonl", types, 12)
    asked = [i.task for i in heldout.items_of(types, "validation", 12) if not heldout.is_seen(i.bench, i.id)]
    read = [(p.kind, p.program, p.inputs) for p in read_tasks(tmp_path / "heldout.jsonl")]
    assert set(read) == {(task.kind, task.program, task.inputs) for task in asked} and len(read) == 2 * 10
    assert [kind for kind, *_ in read[:4]] == types * 2
    assert all(programs.held_out(program + "\n") for _, program, _ in read)


def test_what_a_user_gets_wrong_in_arms_is_said(micro_base, tmp_path, capsys):
    flags = ["--base", str(micro_base), "--out", str(tmp_path / "arms"), "--device", "cpu"]
    for words, match in (("--arms no_evolution", "did you mean no-evolution"), ("--seeds 0,x", "whole numbers"),
                         ("--pop 3", "an even number from 4"), ("-- --steps 4", "the arms set it themselves"),
                         ("-- --lr -1", "--lr -1.0: give a number in"), ("--seeds 1000", "from 0 to 999"),
                         ("--steps 15", "nobody would be replaced before the end"),
                         ("--arms crossed", "arm crossed crosses a specialist of each type"),
                         ("-- --task-types logic", "has those of code_o, code_i, code_f"),
                         ("--probe-every 0", "--probe-every 1")):
        with pytest.raises(ValueError, match=match):
            ablation.main([*flags, "--plan", *words.split()])
    with pytest.raises(SystemExit) as end:
        ablation.main([*flags, "--plan", "--", "--learning-rate", "1"])
    assert end.value.code == 2 and "unknown argument" in capsys.readouterr().err
    words = ["--plan", "--seeds", "0,1", "--steps", "20", "--arms", "singles,copy", "--arm", "slow: --lr 1e-4"]
    assert ablation.main([*flags, *words, "--", "--lr", "1e-3"]) == 0
    plan = capsys.readouterr().out
    assert plan.count("--lr 1e-3 --pop 8") == 6 and plan.count("--single") == 2 * 4
    assert "14 runs" in plan and not (tmp_path / "arms").exists()
    for words in re.findall(r"^full-s\d: (.*)$", plan, re.M):
        assert train.parse_args(None, shlex.split(words)).heldout == str(tmp_path / "arms" / "heldout.jsonl")


@pytest.mark.slow
def test_arms_end_to_end(micro_base, tmp_path, capsys):
    """Two types; gone on with after an evaluation and a run were lost: as if nothing had happened."""
    out = tmp_path / "arms"
    flags = ["--base", str(micro_base), "--device", "cpu", "--seeds", "0", "--pop", "4", "--steps", "8", "--limit", "6",
             "--arms", "single-long,crossed", "--probe-every", "4"]
    words = ["--", "--max-new-tokens", "48", "--evolve-every", "3", "--task-types", "code_o,code_i", "--save-every", "1"]
    assert ablation.main([*flags, "--out", str(out), *words]) == 0
    table = capsys.readouterr().out.partition("; seeds 0;")[2]
    records = (out / "runs.jsonl").read_text()
    assert [len(record["spent"]) for record in runs.read(out / "runs.jsonl").values()][0] == 8
    assert ablation.main([*flags, "--out", str(out), *words]) == 0, "nothing is run twice"
    assert capsys.readouterr().out.partition("; seeds 0;")[2] == table and (out / "runs.jsonl").read_text() == records
    assert ablation.main(["--from", str(out)]) == 0 and capsys.readouterr().out.partition("; seeds 0;")[2] == table
    full, single, crossed = runs.read(out / "runs.jsonl").values()
    assert abs(crossed["spent"][-1] / full["spent"][-1] - 1) <= 0.05 and sorted(crossed["spent"]) == crossed["spent"]
    assert (out / "crossed-s0/S0/adapter_model.safetensors").exists() and len(crossed["students"]) == 2
    assert abs(single["spent"][-1] / full["spent"][-1] - 1) <= 0.05 and "code_i" in table
    assert str(tmp_path) not in records and full["births"]
    copied = tmp_path / "copied"
    shutil.copytree(out, copied)
    shutil.rmtree(copied / "full-s0" / "heldout-test")
    shutil.rmtree(copied / "single-long-s0")
    assert ablation.main([*flags, "--out", str(copied), *words]) == 0
    assert (copied / "runs.jsonl").read_text() == records
    with pytest.raises(ValueError, match="arms of another comparison: probe_every"):
        ablation.main([*flags, "--out", str(out), "--probe-every", "2", *words])


def test_runs_made_by_hand_become_records(grown, tmp_path, capsys):
    """At the checkpoint nearest to the tokens; a child of two; the table; every verdict is kept."""
    out, spent = tmp_path / "o", runs.spent(runs.logged(grown))
    flags = ["--tokens", str(2 * spent[1]), "--limit", "6", "--also", "math", "--out", str(out), "--device", "cpu"]
    second = tmp_path / "second"
    shutil.copytree(grown, second)
    assert deployed.main([*flags, "--arm", "two:7", str(grown), str(second)]) == 0
    assert deployed.main([*flags, "--arm", "child:7", "--cross", "add", str(grown), str(second)]) == 0
    records = runs.read(out / "runs.jsonl")
    assert list(records) == ["two-s7", "two-s1007", "child-s7"]
    first, child = records["two-s7"], records["child-s7"]
    assert first["spent"] == spent[:2] and child["spent"][-1] == 2 * spent[1]
    assert set(child["answers"]["test"]["code_o"]) == {"base", "S0"}
    for split, kind in itertools.product(heldout.SPLITS, ("code_o", "math")):
        asked = lines(out / f"two-s7/heldout-{split}/answers.jsonl")
        for name, digits in first["answers"][split][kind].items():
            of = {r["id"]: r["correct"] for r in asked if (r["bench"], r["member"]) == (kind, name) and r["id"][0] != "1"}
            assert digits == "".join("01"[of[i]] for i in sorted(of, key=lambda i: [*map(int, i.split("/"))]))
    assert first["validation"] == max(runs.accuracies(first["answers"]["validation"]["code_o"]).values())
    assert ablation.main(["--from", str(out), "--reference", "child", "--measure", "deployed"]) == 0
    assert "child - two" in capsys.readouterr().out
    with pytest.raises(ValueError, match="arms of another comparison: limit"):
        deployed.main([*flags, "--limit", "3", "--arm", "two:8", str(grown)])
    with pytest.raises(ValueError, match="no checkpoint there"):
        deployed.main([*flags, "--arm", "two:8", str(tmp_path / "nothing")])
    with pytest.raises(ValueError, match="give NAME:SEED"):
        deployed.main([*flags, "--arm", "two", str(grown)])
