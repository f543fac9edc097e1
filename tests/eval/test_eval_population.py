"""Evaluation of populations: held-out tasks, generations, children and parents, arms of an ablation."""
import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import train
from eval import common, stats
from eval.population import ablation, arms, crossplay, heldout, measures, records, retention
from eval.population.crew import Crew
from eval.summary import against, summarise, with_means
from run.checkpoint import RunDir
from micro import programs
from operators import OPERATORS
from tasks import TASK_TYPES, read_tasks
from tasks.validation import Limits

CPU = ["--device", "cpu", "--workers", "1"]


@pytest.fixture(scope="module")
def grown(micro_base, tmp_path_factory):
    """A finished run that keeps every checkpoint: four members, three steps, a birth in each role a step."""
    out = str(tmp_path_factory.mktemp("out"))
    cfg = train.Config(base=str(micro_base), out=out, name="grown", steps=3, pop=4, n_prompts=1,
                       proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_anchors=4,
                       n_heldout=2, evolve_every=1, grace=0, probe_every=1, workers=1, save_every=1, keep=9)
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
            if family.startswith("code"):
                assert item.seen or programs.held_out(item.task.program + "\n"), item
            if family == "math" and not item.seen:
                story = [line[1:] for line in item.task.message.splitlines()]
                assert programs.held_out("\n".join(story))
    assert [i.size for i in heldout.draw("logic", "test", 2)] == [2, 3, 4, 2, 3, 4]


@pytest.mark.slow
def test_the_test_split_has_a_thousand_unseen_items_of_five_families():
    items = heldout.items_of(list(heldout.ROWS), "test", 0)
    assert sum(not item.seen for item in items) == 1200
    assert len(heldout.hashes_of(list(heldout.ROWS), "test")) == 5
    assert len({(item.bench, item.id) for item in items}) == len(items) == 1500


def test_tasks_are_kept_beside_their_answers(tmp_path):
    path = tmp_path / "items.jsonl"
    items = heldout.kept_items(path, ["code_o", "logic"], "test", 6)
    assert items == heldout.items_of(["code_o", "logic"], "test", 6) == heldout.read_items(path)
    assert not set(items) & set(heldout.kept_items(path, ["code_o", "logic"], "validation", 6))
    assert len(heldout.kept_items(path, ["code_o"], "test", 7)) == 7 == len(heldout.read_items(path))


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
    assert size["seen"] and size["difference_interval"][0] <= size["difference"]
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
    with pytest.raises(ValueError, match="no run there"):
        heldout.main(["--run", str(tmp_path), *CPU])
    (tmp_path / "config.json").write_text(json.dumps(dict(style="micro", attempts=4)))
    with pytest.raises(ValueError, match="made by another version, whose flags differ"):
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
        tasks = json.loads((tmp_path / f"o/tasks_{step}.json").read_text())["tasks"]
        made = {t["program"] for t in tasks}
        assert len(made) == 4 and not made & seen, "new tasks, which no student was trained on"
    (tmp_path / "o/answers.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[:7]))
    assert crossplay.main(flags) == 0
    assert json.loads((tmp_path / "o/summary.json").read_text()) == result, "resumed: the same"
    with pytest.raises(ValueError, match="tasks for --tasks 4"):
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
    answer = crossplay.Item("1", "0", task), f"```metamath\n{proposal.inputs[0]}\n```"
    for given, right in ((limits, True), (None, False)):
        assert ("string x M" in heldout.asking("chat", given)(answer[0]).user) is right
        assert heldout.judging(sandbox, "chat", given)([answer])[0]["correct"] is right
    run = tmp_path / "run"
    shutil.copytree(grown, run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | dict(theory="/its/own.mm", max_output=17)))
    args = common.parser_of("eval", "", None).parse_args(["--run", str(run), "--device", "cpu"])
    args.prompt_format, args.max_rows = "", None
    players = crossplay.Players(args, RunDir(run, writes=False), sandbox)
    assert (players.limits.theory, players.limits.output_chars, players.limits.compact) == ("/its/own.mm", 17, True)


# ---- children and parents ----------------------------------------------------------------------------------

def test_retention_on_a_run(grown, tmp_path, capsys):
    flags = ["--bench", "code_o", "--limit", "3", "--draws", "1", "--k", "1", *CPU]
    assert retention.main([*flags, "--run", str(grown), "--out", str(tmp_path / "o")]) == 0
    shown = capsys.readouterr().out
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    birth = {line["operator"]: line for line in summary["birth"]}
    assert set(birth) == set(OPERATORS)
    assert all(line["n"] == 2 and line["draws"] == 1 for line in birth.values())
    assert all(0 <= line["still_think"] <= line["thinking_parents"] <= 1 for line in birth.values())
    assert birth["copy"]["still_think"] == birth["copy"]["thinking_parents"]
    assert birth["copy"]["retention"] == 1 and birth["copy"]["difference"] == 0
    assert birth["copy"]["norm_ratio"] == pytest.approx(1)
    assert abs(birth["copy"]["kl"]) < 1e-10 < birth["mask"]["kl"] and birth["mask"]["norm_ratio"] < 1
    births = [b for b in lines(grown / "genealogy.jsonl") if b["victim"]["role"] == "student"]
    assert "children some steps after their birth" in shown
    assert sum(line["births"] for line in summary["later"] if line["wait"] == 1) == len(births) == 3
    probes = {r["step"]: r["anchors_greedy"] for r in lines(grown / "metrics.jsonl")}
    line = next(line for line in summary["later"] if line["group"] == births[0]["operator"])
    if line["births"] == 1:
        assert line["child"] == probes[births[0]["step"] + 1][births[0]["child"]]
        before = [probes[births[0]["step"]][p["name"]] for p in births[0]["parents"]]
        assert line["before"] == np.mean(before)


def test_a_pack_of_children_gives_the_table(tmp_path, capsys):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(6):
        found.append([retained(rng.integers(0, 2, 6).tolist(), [0.5] * 6) for _ in range(3)])
    retention.pack(found, tmp_path / "born.json.xz")
    assert retention.main(["--from", str(tmp_path / "born.json.xz")]) == 0
    table = retention.birth_table(retention.lines_of(found))
    assert capsys.readouterr().out == table + "\n" and "mask           18    6" in table and "nan" not in table
    few = retention.birth_table(retention.lines_of(found[:3]))
    assert "nan .. nan" in few
    (tmp_path / "other").write_text("{}")
    with pytest.raises(ValueError, match="other is no pack of children"):
        retention.main(["--from", str(tmp_path / "other")])


def retained(right: list[float], parents: list[float], think: float = 1.0) -> retention.Child:
    """A child of thinking parents by what it and its parents solve."""
    none = np.zeros(len(right))
    return retention.Child("mask", none, np.array(parents), np.array(right), 1.0, think, 0.5, 0.1)


def test_a_run_counts_once_however_many_children_it_has():
    """Two runs, the first with three children: retention is the mean of the runs, not of the children."""
    kept, lost = retained([1, 1, 0, 0], [1, 1, 0, 0]), retained([0, 0, 0, 0], [1, 1, 0, 0], think=0.2)
    line = retention.judged("mask", [[kept, kept, kept], [lost]])
    assert line["retention"] == 0.5 and line["runs"] == 2 and line["draws"] == 4
    assert (line["still_think"], line["thinking_parents"]) == (3, 4)
    assert line["difference"] == -0.25 and line["difference_interval"] is None, "too few runs for one"
    low, high = retention.judged("mask", [[kept, kept, kept], [lost], [kept], [lost], [lost]])["difference_interval"]
    assert low < -0.3 < high
    assert retention.judged("mask", [[kept, kept, kept, lost]])["retention"] == 0.75, "one run: its children"


# ---- arms --------------------------------------------------------------------------------------------------

def test_every_arm_is_train_py_s_own_flags():
    from config import parse_args, resolve_config
    every = arms.arms_of(8, 3)
    full = resolve_config(parse_args(None, list(every["full"].flags)), "micro")
    for name, arm in every.items():
        stretch = arms.stretch_of(arm, full, [])
        rows = arms.rows_of_step(resolve_config(parse_args(None, list(arm.flags)), "micro"))
        assert rows * stretch == arm.part * arms.rows_of_step(full), name
        assert arm.part == (0.25 if name in ("single", "singles") else 1)
    assert arms.stretch_of(every["single-long"], full, []) == 4
    assert arms.stretch_of(every["pair-wide"], full, []) == 1
    assert set(OPERATORS) <= set(every)
    assert all(set(preset) <= set(every) for preset in arms.PRESETS.values())
    names = [run.name for run in arms.runs_of("singles", every, 2)]
    assert names == ["single-s2", "single-s1002", "single-s2002", "single-s3002"]


def test_an_arm_of_ones_own():
    slow = arms.Arm("given: --lr 3e-4", ("--pop", "8", "--lr", "3e-4"))
    assert arms.given_arm("slow: --lr 3e-4", 8) == ("slow", slow)
    assert arms.given_arm("one:--single", 8)[1].flags == ("--single",)
    assert arms.given_arm("two: --pop=2 --evolve copy", 8)[1].flags == ("--pop=2", "--evolve", "copy")
    for text in ("--lr 3e-4", "a b: --lr 1", ": --lr 1"):
        with pytest.raises(ValueError, match="give a name of small letters"):
            arms.given_arm(text, 8)


def metric_row(step: int, tokens: int, probe_tokens: int = 0, accuracy: dict | None = None) -> dict:
    """A row of metrics.jsonl with 2 proposals and 3 attempts; tokens: in all so far, with those of probes."""
    members = dict(T0=dict(role="teacher", n=2), S0=dict(role="student", n=3))
    row = dict(step=step, n=2, members=members, seconds=dict(solve=1.0, probe=0.5), tokens_generated=tokens,
               tokens_trained=1)
    return row | (dict(probe_tokens=probe_tokens, anchors_greedy=accuracy) if accuracy else {})


def test_a_probe_s_tokens_are_no_part_of_the_budget():
    rows = [metric_row(0, 150, 50, dict(S0=0.2, S1=0.4)), metric_row(1, 250),
            metric_row(2, 400, 50, dict(S0=0.7, S1=0.9))]
    done = measures.spent(rows)
    assert [state["tokens"] for state in done] == [100, 200, 300] and done[-1]["probe_tokens"] == 100
    assert done[-1]["rows"] == 15 and done[-1]["proposals"] == 6 and done[-1]["seconds"] == 4.5
    points = measures.curve(rows, "tokens", 400, 0.5)
    assert points == [(0, pytest.approx(0.3)), (0.5, pytest.approx(0.8)), (0.75, 0.5)]
    by_hand = 0.5 * (0.3 + 0.8) / 2 + 0.25 * (0.8 + 0.5) / 2 + 0.25 * 0.5
    assert measures.area(points) == pytest.approx(by_hand), "level after the last probe"
    over = [(0, 0.0), (0.8, 0.8), (1.2, 0.4)]
    cut = 0.8 * 0.4 + 0.2 * (0.8 + 0.6) / 2
    assert measures.area(over) == pytest.approx(cut), "cut off at the budget, between two probes"
    assert measures.first_at(over, 0.4) == pytest.approx(0.4) and measures.first_at(over, 0.9) == 1
    assert measures.first_at(over, 0.0) == 0


def test_a_run_stops_as_near_to_its_budget_as_whole_steps_can_be():
    assert not measures.met([], 100) and not measures.met([40, 80], 101) and measures.met([40, 80], 100)
    assert measures.met([60], 90) and not measures.met([60], 91)
    for costs in ([7] * 60, list(range(1, 60)), [30, 1] * 30):
        done = list(itertools.accumulate(costs))
        for target in (50, 111, 333):
            stop = next(i for i in range(len(done)) if measures.met(done[:i + 1], target))
            near = abs(done[stop] - target) <= costs[stop] / 2
            assert near or stop == 0 or target - done[stop - 1] > costs[stop - 1] / 2


def test_anchors_are_reserved_programs_of_two_to_ten_statements(tmp_path):
    items = measures.anchor_items()
    assert [item.size for item in items[:9]] == list(range(2, 11)) and len(items) == 9 * measures.PER_SIZE
    assert all(programs.held_out(item.task.program + "\n") for item in items)
    measures.write_anchors(tmp_path / "anchors.jsonl")
    read = read_tasks(tmp_path / "anchors.jsonl")
    assert [(p.program, p.inputs) for p in read] == [(item.task.program, item.task.inputs) for item in items]
    asked = heldout.items_of(list(measures.OUTPUT), "validation", measures.VALIDATION_LIMIT)
    found = {item for item in asked if not item.seen and measures.is_anchor(item.bench, item.id)}
    assert found == set(items), "the evaluation after a run asks them too, and they are known by their ids"


def test_seeds_are_run_one_after_the_other_and_full_is_ahead():
    every = arms.arms_of(4, 3)
    wanted = ["full", "single", "singles"]
    args = argparse.Namespace(seeds=[0, 1, 2], wanted=wanted, stretch=dict.fromkeys(wanted, 1))
    names = [run.name for _, run in ablation.in_order(args, every)]
    assert names == ["full-s0", "full-s1", "single-s0", "single-s1000", "full-s2", "single-s1",
                     "single-s1001",
                     "single-s2", "single-s1002"]


def test_what_a_user_gets_wrong_in_arms_is_said(micro_base, tmp_path, capsys):
    flags = ["--base", str(micro_base), "--out", str(tmp_path / "arms"), "--device", "cpu"]
    for words, match in (("--arms no_evolution", "did you mean no-evolution"),
                         ("--seeds 0,x", "whole numbers"),
                         ("--pop 3", "an even number from 4"), ("-- --steps 4", "the arms set it themselves"),
                         ("-- --lr -1", "--lr -1.0: give a number in"), ("--seeds 1000", "from 0 to 999"),
                         ("--steps 15", "nobody would be replaced before the end"),
                         ("--effect 0", "--effect, --probe-every and --samples be positive")):
        with pytest.raises(ValueError, match=match):
            ablation.main([*flags, "--plan", *words.split()])
    with pytest.raises(SystemExit) as end:
        ablation.main([*flags, "--plan", "--", "--learning-rate", "1"])
    assert end.value.code == 2 and "unknown argument" in capsys.readouterr().err
    words = ["--plan", "--seeds", "0,1", "--steps", "20", "--arms", "singles,copy",
             "--arm", "slow: --lr 1e-4"]
    assert ablation.main([*flags, *words, "--", "--lr", "1e-3"]) == 0
    plan = capsys.readouterr().out
    assert plan.count("train.py --lr 1e-3 --pop 8") == 6 and plan.count("--single") == 2 * 4
    assert "14 runs" in plan and not (tmp_path / "arms").exists()
    with pytest.raises(ValueError, match="there is an arm of this name"):
        ablation.main([*flags, *words, "--arm", "copy: --lr 1"])


def test_a_child_that_fails_stops_the_others_and_is_named(tmp_path):
    crew = Crew(2)

    def work(program: str) -> None:
        crew.call(["-c", program], tmp_path / f"{len(program)}.log")
    with pytest.raises(ValueError, match="ended with code 2: mend this"):
        crew.each(work, ["import time; time.sleep(60)", "print('mend this'); exit(2)", "pass"])
    assert crew.stopping and all(child.poll() is not None for child in crew.children)


@pytest.mark.slow
def test_arms_end_to_end(micro_base, tmp_path, capsys):
    flags = ["--base", str(micro_base), "--out", str(tmp_path / "arms"), "--device", "cpu", "--seeds", "0",
             "--pop", "4", "--steps", "8", "--limit", "6", "--arms", "single-long", "--jobs", "1"]
    words = ["--", "--max-new-tokens", "48", "--evolve-every", "3"]
    command = [sys.executable, "-m", "eval.population.ablation", *flags, *words]
    running = subprocess.Popen(command, cwd=Path(train.__file__).parent, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "arms/full-s0/metrics.jsonl"
    while not metrics.exists() or len(lines(metrics)) < 2:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert "interrupted; the same command goes on" in running.communicate()[1] and len(lines(metrics)) < 8
    assert ablation.main([*flags, *words]) == 0
    assert [row["step"] for row in lines(metrics)] == list(range(8))
    table = capsys.readouterr().out.partition("1 of 1 seeds")[2].rpartition("\n/")[0]
    first = json.loads((tmp_path / "arms/summary.json").read_text())
    assert set(first["spent"]) == {"full", "single-long"} and first["primary"][0]["needed"] is None
    assert abs(first["spent"]["single-long"]["share"] - 1) <= 0.05
    assert first["spent"]["full"]["steps"] == 8 and first["measures"]["pass16"]["full"]["mean"] is None
    logs = {path: path.read_bytes() for path in (tmp_path / "arms").glob("*.log")}
    assert ablation.main([*flags, *words]) == 0
    assert logs == {path: path.read_bytes() for path in logs}, "nothing is run twice"
    assert json.loads((tmp_path / "arms/summary.json").read_text()) == first

    capsys.readouterr()
    assert ablation.main([*flags, "--pack", str(tmp_path / "pack"), *words]) == 0
    assert "2 finished runs" in capsys.readouterr().out
    for source in ("pack", "arms"):
        assert ablation.main(["--from", str(tmp_path / source)]) == 0
        assert capsys.readouterr().out.partition("1 of 1 seeds")[2] == f"{table}\n", "without training"
    packed = "".join(path.read_text(errors="replace") for path in (tmp_path / "pack").glob("*.json"))
    assert str(tmp_path) not in packed and not list((tmp_path / "pack").rglob("*.safetensors"))
    for run in records.opened(tmp_path / "pack").runs.values():
        assert str(tmp_path) not in json.dumps(run.config)
    with pytest.raises(ValueError, match="arms of another comparison: budget"):
        ablation.main([*flags, "--budget", "rows", *words])
    metrics = tmp_path / "arms/single-long-s0/metrics.jsonl"
    text = metrics.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    rows = [row | dict(tokens_generated=row["tokens_generated"] * 9) for row in rows]
    metrics.write_text("".join(json.dumps(r) + "\n" for r in rows))
    checkpoints = (tmp_path / "arms/single-long-s0").glob("step_*/state.json")
    state = max(checkpoints, key=lambda path: int(path.parent.name[5:]))
    state.write_text(state.read_text().replace(str(len(text)), str(metrics.stat().st_size)))
    with pytest.raises(ValueError, match="single-long-s0 spent .* where .* are due"):
        ablation.main([*flags, *words])
