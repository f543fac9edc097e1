"""The ablation: budgets, what is checked before the first run, tables by hand; two arms end to end."""
import itertools

import numpy as np
import pytest
from tiny_run import rows as rows_of
from tiny_run import write

from common import UserError
from config import config_of
from eval import ablate
from eval.stats import interval_of_runs

SEEDS = range(10, 18)


def args_of(*words):
    """The flags."""
    args = ablate.parser().parse_args([*words])
    args.train, args.seeds = [], list(SEEDS)
    return args


def test_a_run_stops_as_near_to_its_budget_as_whole_steps_can_be(monkeypatch, tmp_path):
    """Probes are no part of it, and what is on the disk counts."""
    for costs, due in itertools.product(([7] * 60, list(range(1, 60)), [30, 1] * 30), (50, 111, 333)):
        lines, total = [], 0
        for cost in costs:
            total += cost + 5
            lines.append(dict(tokens_generated=total, probe_tokens=5))
        (tmp_path / "a").mkdir(exist_ok=True)

        def loop(cfg, enough):
            """Stands for train.main, which is asked for a million steps."""
            assert any(map(enough, lines)) and cfg.steps == 10 ** 6
        monkeypatch.setattr(ablate.train, "main", loop)
        args = args_of("--out", str(tmp_path), "--base", "b", "--steps", "9")
        rows = ablate.train_run(args, ablate.Run("x", 10, "a", 1.0, dict(steps=10 ** 6)), due)
        done = list(itertools.accumulate(costs[:len(rows)]))
        near = abs(done[-1] - due) <= costs[len(rows) - 1] / 2
        assert near or due - done[-2] > costs[len(rows) - 2] / 2


def test_the_area_is_that_by_hand():
    def line(tokens, accuracy):
        return dict(tokens_generated=tokens, heldout_greedy=dict(S0=accuracy, S1=accuracy) if accuracy is not None else {})
    rows = [line(25, 0.2), line(50, None), line(75, 0.4), line(100, 0.6)]           # probes at 0, 50 and 75 of 100
    assert ablate.area(rows, 100) == pytest.approx(0.5 * 0.3 + 0.25 * 0.5 + 0.25 * 0.6)
    assert ablate.area(rows, 60) == pytest.approx(50 / 60 * 0.3 + 10 / 60 * (0.4 + 0.48) / 2), "cut off at the budget"


def result(arm, seed, value, run="", **more):
    return dict(arm=arm, seed=seed, run=run or f"{arm}-s{seed}", spent=1.0, steps=9, births=0, area=value, end=value, deployed=value, validation=value) | more


def test_contrasts_are_paired_by_seed_and_corrected():
    noise = np.random.default_rng(0).normal(0, 0.01, 8)
    rows = []
    for seed, shift in zip(SEEDS, noise):
        rows += [result("full", seed, 0.6 + shift), result("uniform", seed, 0.3), result("pair", seed, 0.6), result("pbt", seed, 0.9)]
    rows += [result("pair", 99, 0.1)]                           # a seed that full does not have
    lines = {line["contrast"]: line for line in ablate.contrasts(rows, "area", "full")}
    line = lines["full - uniform"]
    assert line["difference"] == pytest.approx(0.3 + noise.mean()) and line["seeds"] == 8
    assert line["p"] == 2 / 256 and line["p_holm"] == 3 * 2 / 256 and line["interval"] == pytest.approx(interval_of_runs(noise + 0.3))
    assert [line["verdict"] for line in lines.values()] == ["ahead", "cannot tell", "behind"]
    few = [row for row in rows if row["seed"] < 17]
    assert {line["verdict"] for line in ablate.contrasts(few, "area", "full")} == {"too few seeds"}
    singles = [result("singles", 10, 0.5, "a", deployed=0.4), result("singles", 10, 0.7, "b", validation=0.4)]
    assert ablate.by_arm(singles, "end") == dict(singles={10: 0.6}) and ablate.by_arm(singles, "deployed") == dict(singles={10: 0.4})
    assert {line["arm"]: line["area"] for line in ablate.means(rows)} == pytest.approx(
        dict(full=0.6 + noise.mean(), uniform=0.3, pair=(8 * 0.6 + 0.1) / 9, pbt=0.9))


def test_all_is_checked_before_the_first_run(micro_base, tmp_path, capsys):
    mine, one = tmp_path / "mine.jsonl", tmp_path / "one.jsonl"
    lines = [dict(kind="code_o", program=f"def f(x): return x + {i}", input="1") for i in range(9)]
    write(mine, lines)
    write(one, lines[:1])
    flags = ["--base", str(micro_base), "--out", str(tmp_path / "arms"), "--device", "cpu", "--arms", "pair", "--seeds", "0", "1"]
    for words, match in (
            (["--arms", "no_evolution"], "--arms no_evolution: give some of full, no-evolution"), (["--seeds", "1000"], "below 1000"),
            (["--arm", "slow"], 'give a new name and flags, as in "slow: --lr 3e-4"'), (["--arm", "pair: --lr 1"], "give a new name"),
            *[(["--arm", f"x: --{flag} 3"], f"arm x: --{flag} is set by this command") for flag in "steps seed base keep heldout device".split()],
            (["--arm", "x: --lr 7"], "--lr 7"), (["--arm", "x: --single --evolve-every 3"], "does nothing beside --single"), (["--", "--steps", "4"], "--steps is set"),
            (["--arms", "frozen-teachers", "--", "--tasks", "micro"], "--lr-teacher 0.0 does nothing beside --tasks"),
            (["--", "--pop", "3"], "--pop 3"), (["--heldout", str(mine), "--", "--task-types", "code_i"], "of code_o alone"),
            (["--heldout", str(one)], "both splits have held-out tasks of no type alone"), (["--arm", "x: --lr '1"], "arm x .*No closing quotation"),
            (["--reference", "ful"], "--reference ful: give one of full")):
        with pytest.raises(UserError, match=match):
            ablate.main([*flags, "--plan", *words])
    with pytest.raises(SystemExit):
        ablate.main([*flags, "--measure", "deploid"])
    assert "invalid choice: 'deploid'" in capsys.readouterr().err and not (tmp_path / "arms").exists()
    ablate.main([*flags, "--plan", "--arms", ablate.USUAL, "--", "--tasks", "micro"])
    plan = capsys.readouterr().out
    assert "frozen-teachers is left out: --lr-teacher does nothing beside --tasks" in plan and "frozen-teachers-s" not in plan and "pair-s1" in plan
    ablate.main([*flags, "--plan", "--steps", "20", "--arms", "singles", "--arm", "slow: --lr 1e-4", "--", "--lr", "1e-3", "--evolve-every", "4"])
    plan = capsys.readouterr().out
    assert plan.count("full-s") == 2 and "singles-s3001: 0.25 of the tokens of full, which has 20 steps" in plan
    assert "12 runs to come, about 10 minutes" in plan, "2 seeds of 3 budgets of 20 steps of 8 members"
    args = ablate.parser().parse_args([*flags, "--arms", "singles", "--arm", "slow: --lr 1e-4"])
    args.train, args.steps, args.seeds, args.pop = ["--lr", "1e-3", "--evolve-every", "4"], 20, [3], 8
    arms = ablate.arms_of(args)
    assert arms["slow"]["lr"] == "1e-4" and arms["full"]["lr"] == "1e-3" and arms["slow"]["evolve_every"] == "4"
    assert "evolve_every" not in arms["singles"] and "pop" not in arms["singles"], "what is given for every arm leaves out where it does nothing"
    runs = {run.name: run for run in ablate.plan(args, arms)}
    assert list(runs) == ["full-s3", "singles-s3", "singles-s1003", "singles-s2003", "singles-s3003", "slow-s3"]
    cfg = config_of(runs["singles-s2003"].flags)
    assert (cfg.seed, cfg.single, cfg.steps, cfg.keep, cfg.lr) == (2003, True, 160, 1, 1e-3)
    assert cfg.heldout == str(tmp_path / "arms/heldout.jsonl")


@pytest.mark.slow
def test_arms_end_to_end(micro_base, tmp_path, capsys):
    """What was lost is made again, the same; another measure of finished runs trains nothing."""
    out = tmp_path / "arms"
    flags = ["--base", str(micro_base), "--device", "cpu", "--seeds", "0", "--steps", "8", "--limit", "6", "--arms", "single-long", "--out", str(out)]
    words = ["--", "--pop", "4", "--max-new-tokens", "48", "--evolve-every", "3", "--task-types", "code_o,code_i", "--n-prompts", "2"]
    ablate.main([*flags, *words])
    told = capsys.readouterr().out
    assert "1 of 2: full-s0, 8 steps" in told and "2 of 2: single-long-s0" in told and "ends about" in told and "full - single-long" in told
    full, single = rows_of(out, "results")
    assert abs(single["spent"] - 1) <= 0.2
    answers = [row["correct"] for row in rows_of(out / "full-s0/test", "answers") if row["member"] != "base"]
    assert full["end"] == pytest.approx(np.mean(answers)) and len(answers) == 2 * 6 * 2
    assert [row["run"] for row in (full, single)] == ["full-s0", "single-long-s0"] and full["births"] > single["births"] == 0
    logs = [(out / name).read_text() for name in ("full-s0/metrics.jsonl", "single-long-s0/metrics.jsonl")]
    ablate.main([*flags, "--measure", "area", *words])
    assert "1 of" not in capsys.readouterr().out and "area" in (out / "table.txt").read_text()
    with pytest.raises(UserError, match=r"made otherwise \(full, single-long\)"):
        ablate.main([*flags, *words, "--lr", "1e-3"])
    write(out / "results.jsonl", [full])
    ablate.main([*flags, *words])
    assert rows_of(out, "results") == [full, single] and "1 of 1: single-long-s0" in capsys.readouterr().out
    assert logs == [(out / name).read_text() for name in ("full-s0/metrics.jsonl", "single-long-s0/metrics.jsonl")], "nothing is trained again"
