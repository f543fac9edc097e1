"""The table of an ablation: from made-up records whose numbers are known, and from the published ones."""
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from eval.population import ablation, measures, runs
from eval.population.measures import Births
from eval.population.runs import FULL, Experiment
from common import UserError
from run import platform

ROOT = Path(__file__).resolve().parents[2]
SEEDS = list(range(10, 18))
ALIKE = dict.fromkeys((FULL, *ablation.PRIMARY), 0.6)


def record(run: str, part: float, learned: float, differ: bool = True) -> dict:
    """A run of 8 steps whose students' accuracy is .2 until the middle of its budget and `learned` after it."""
    spent = [int(part * 1000) * (i + 1) for i in range(8)]
    probes = [[before, 0.2 if i < 2 else learned, learned] for i, before in enumerate([0, *spent[1::2]])]
    return dict(run=run, commit="abc", base_hash="hash", spent=spent, probes=probes, validation=learned,
                end=dict(code_o=learned), deployed=dict(code_o=learned), births=[[3, 0.5, 0.2], [3, 0.5, 0.49]],
                pairings=[dict(T0="S0", T1="S1") if step % 2 or not differ else dict(T0="S1", T1="S0")
                          for step in range(8)])


def experiment(learned: dict[str, float], seeds: list[int] = SEEDS, noise: float = 0.0) -> Experiment:
    """Runs of full and of other arms; learned: arm -> accuracy after the middle, the same for all seeds."""
    arms = {name: arm for name, arm in ablation.arms_of(8).items() if name in learned}
    records = {}
    for name, accuracy in learned.items():
        for seed in seeds:
            for run, own in runs.runs_of(name, arms[name], seed).items():
                shift = noise * np.random.default_rng([own, *name.encode()]).normal()
                records[run] = record(run, arms[name].part, accuracy + shift, name == FULL)
    return Experiment(dict(commit=["abc"], types=["code_o"]), arms, records)


def concluded(some: Experiment, reference: str = FULL, measure: str = "area") -> dict[str, dict]:
    """Other arm -> its contrast with the reference."""
    result = measures.conclude(some, list(some.arms), reference, measure, 0.6)
    assert measures.table(result).count("\n") > len(some.arms)
    return {line["other"]: line for line in result["contrasts"]}


def test_the_area_is_that_by_hand():
    by_hand = 0.25 * (0.2 + 0.4 + 0.6 + 0.6)
    values = measures.measured([record("full-s1", 1, 0.6)], 8000, 0.6, ["code_o"])
    assert values["area"] == pytest.approx(by_hand) and values["goal"] == 0
    over = np.array([0, 0.8, 1.2]), np.array([0.0, 0.8, 0.4])
    assert measures.area(*over) == pytest.approx(0.8 * 0.4 + 0.2 * (0.8 + 0.6) / 2), "cut off at the budget"
    assert measures.first_at(*over, 0.4) == pytest.approx(0.4) and measures.first_at(*over, 0.9) == 1


def test_coverage_of_students_and_of_the_deployed_one():
    """Four single runs with one answer each, against all four of the best one; of three students none can be dealt out."""
    right = [dict(a=4, b=0), dict(a=0, b=2), dict(a=0, b=1), dict(a=0, b=0)]
    four = [record(f"single-s{i}", 0.25, 0.6 - i / 10) | dict(best="T0", sampled=dict(code_o=dict(T0=own))) for i, own in enumerate(right)]
    found = measures.measured(four, 2000, 0.6, ["code_o"])
    assert found["coverage"] == pytest.approx((1 + 1 - 1 / 2 * 3 / 4) / 2) and found["repeated"] == pytest.approx(1 / 2)
    of_three = measures.measured(four[:3], 2000, 0.6, ["code_o"])
    assert np.isnan(of_three["coverage"]) and of_three["repeated"] == pytest.approx(1 / 2)
    assert "coverage" not in measures.measured([record("full-s1", 1, 0.6)], 8000, 0.6, ["code_o"])


def test_verdicts_are_the_plan_s():
    for p, interval, difference, words in (
            (0.04, (0.01, 0.2), 0.1, "ahead"), (0.04, (-0.2, -0.01), -0.1, "behind"), (0.04, (0.001, 0.049), 0.02, "ahead, by little"),
            (0.05, (-0.05, 0.05), 0.0, "level"), (0.05, (-0.051, 0.05), 0.0, "cannot tell"), (1.0, (-0.04, 0.2), 0.1, "cannot tell")):
        line = dict(seeds=SEEDS, p_holm=p, interval=interval, difference=difference, check=dict(tested=True))
        assert measures.verdict(line) == words
        assert measures.verdict(line | dict(check=dict(tested=False))) == "not tested"
        assert measures.verdict(line | dict(seeds=SEEDS[:7])) == "too few seeds"


def test_contrasts_are_corrected_and_checked():
    """Matching is not tested where under a fifth of the pairings differ, evolution under half of helpful births."""
    some = experiment(ALIKE | {"uniform": 0.3, "pair": 0.9}, noise=0.02)
    lines = concluded(some)
    line = lines["uniform"]
    assert line["verdict"] == "ahead" and lines["pair"]["verdict"] == "behind"
    assert line["p"] == 2 / 256 and line["p_holm"] == 6 * 2 / 256 and len(line["by_seed"]) == 8
    assert line["interval"][0] < line["difference"] < line["interval"][1]
    assert line["check"]["pairings"] == (64, 128) and line["check"]["births"] == [Births(8, 16, 16)] * 2
    assert lines["no-evolution"]["check"]["tested"]
    for seed in SEEDS:
        some.records[f"uniform-s{seed}"]["pairings"] = some.records[f"full-s{seed}"]["pairings"]
    for run in some.records.values():
        run["births"] = [[3, 0.5, 0.48], [3, 0.5, None], [3, 0.9, 0.2], [3, 0.2, 0.6]]
    lines = concluded(some)
    assert lines["uniform"]["check"]["pairings"] == (0, 128) and lines["uniform"]["verdict"] == "not tested"
    assert lines["no-evolution"]["check"]["births"][0] == Births(8, 24, 32) and lines["no-evolution"]["verdict"] == "not tested"
    some.records["pair-s11"]["spent"].pop()
    with pytest.raises(UserError, match="pair-s11 spent 7,000 where 8,000 are due"):
        concluded(some)


def test_types_are_told_apart():
    """Two types: the deployed member by type beside the mean, and the goal is all types in one member."""
    some = record("pair-s10", 1, 0.6) | dict(end=dict(code_o=0.8, code_i=0.4, math=0), deployed=dict(code_o=0.7, code_i=0.5, math=0.1))
    found = measures.measured([some], 8000, 0.6, ["code_o", "code_i"])
    assert found["end"] == pytest.approx(0.6) == found["deployed"] and (found["code_i"], found["math"]) == (0.5, 0.1)
    by_type = dict(code_o=dict(S0=0.8, S1=0.6, base=0.9), code_i=dict(S0=0.2, S1=0.5, base=0.9))
    assert runs.heights(by_type, ["S0", "S1"]) == (pytest.approx(0.525), 0.5)


def test_several_singles_are_one_arm_and_the_best_is_chosen_on_validation():
    some = experiment({FULL: 0.6, "single": 0.5, "singles": 0.5})
    some.records["single-s2010"] |= dict(validation=0.9, deployed=dict(code_o=0.75))
    own, due = some.of("singles", 10)
    values = measures.measured(own, due, 0.6, ["code_o"])
    assert len(own) == 4 and due == 2000 and values["deployed"] == 0.75 and values["end"] == 0.5
    assert concluded(some, "single", "deployed")["singles"]["by_seed"][0] == -0.25
    with pytest.raises(UserError, match="--measure math: these runs have area, goal, end, deployed"):
        concluded(some, FULL, "math")
    del some.records["single-s2010"]
    assert not some.of("singles", 10)[0] and some.of("single", 10)[0]
    del some.records["full-s11"]
    assert not some.of("single", 11)[0], "a budget that is not known"


def test_births_that_could_help():
    metrics = [dict(step=0, heldout_greedy=dict(S0=0.2, S1=0.3)), dict(step=3),
               dict(step=5, heldout_greedy=dict(S0=0.7, S1=0.3)), dict(step=8, heldout_greedy=dict(S0=0.1))]
    birth = dict(step=6, parents=[dict(name="S0")], victim=dict(role="student", name="S1"))
    log = [birth, birth | dict(step=4), birth | dict(victim=dict(role="teacher", name="T0"))]
    assert runs.births_of(metrics, log) == [[6, 0.7, 0.3], [4, 0.2, 0.3]]
    assert measures.births_that_can_help([dict(births=runs.births_of(metrics, log))]) == Births(1, 2, 2)


def test_births_that_were_not_probed_are_not_known_to_help():
    """17 of 207 births whose parent was better, of 72 that were probed, is .08 and not .24."""
    record = dict(births=[[3, 0.5, 0.2]] * 17 + [[4, 0.2, 0.2]] * 55 + [[5, None, 0.2]] * 100 + [[5, 0.9, None]] * 35)
    births = measures.births_that_can_help([record])
    assert str(births) == "17 of 207 (72 probed)" and births.share() == pytest.approx(17 / 207)
    assert str(Births(15, 39, 39)) == "15 of 39" and Births(0, 0, 0).share() == 0


def test_columns_compare_the_same_seeds():
    """Where an arm was probed in some seeds only, all arms' area and goal are of these, and the table says how many."""
    some = experiment({FULL: 0.6, "pair": 0.6})
    for seed in SEEDS[:5]:
        some.records[f"full-s{seed}"]["probes"] = []
        some.records[f"pair-s{seed}"]["probes"] = [[0, 0.0, 0.0]]
    result = measures.conclude(some, ["pair"], FULL, "end", 0.6)
    assert result["means"]["pair"]["area"] == pytest.approx(result["means"][FULL]["area"]) and result["n_seeds"]["area"] == 3
    assert result["n_seeds"]["end"] == 8 and "seeds of all arms          3      3      8" in measures.table(result)


def test_a_mean_stands_beside_what_copying_the_best_gives():
    """Four single runs of .5, one of .75, best on validation: a population of .6 is ahead of their mean and behind their best copied."""
    some = experiment({FULL: 0.6, "singles": 0.5})
    for seed in SEEDS:
        some.records[f"single-s{seed}"] |= dict(validation=0.9, deployed=dict(code_o=0.75), end=dict(code_o=0.75))
    result = measures.conclude(some, ["singles"], FULL, "end", 0.6)
    assert result["contrasts"][0]["difference"] == pytest.approx(0.6 - (0.75 + 3 * 0.5) / 4)
    assert {line["other"]: line["difference"] for line in result["copied"]} == {FULL: 0, "singles": pytest.approx(0.6 - 0.75)}
    assert re.search(r"end with the best copied .*\n.*\nfull - singles +-0\.150", measures.table(result))
    assert not measures.conclude(some, ["singles"], FULL, "deployed", 0.6)["copied"]


def test_further_pairs_are_corrected_together():
    """A primary contrast that does not have the reference in it: --contrast pair,uniform."""
    some = experiment({FULL: 0.6, "pair": 0.5, "uniform": 0.3}, noise=0.02)
    lines = measures.conclude(some, ["pair"], FULL, "area", 0.6, [("pair", "uniform")])["contrasts"]
    assert [(line["one"], line["other"]) for line in lines] == [(FULL, "pair"), ("pair", "uniform")]
    assert [line["p_holm"] for line in lines] == [2 * 2 / 256] * 2 and lines[1]["difference"] > 0.1


# ---- files -------------------------------------------------------------------------------------------------

def written(some: Experiment, path: Path) -> str:
    """The --out of an ablation, as far as tables need it."""
    path.mkdir()
    arms = {name: dataclasses.asdict(arm) for name, arm in some.arms.items()}
    (path / "config.json").write_text(json.dumps(some.plan | dict(arms=arms)))
    for run in some.records.values():
        runs.add(path, run)
    return str(path)


def test_seeds_dealt_out_by_hand_are_one_table(tmp_path, capsys):
    some = experiment({FULL: 0.6, "pair": 0.5, "uniform": 0.55}, SEEDS, 0.05)
    whole = written(some, tmp_path / "whole")
    parts = []
    for seed in SEEDS:
        mine = {name: run for name, run in some.records.items() if name.endswith(f"-s{seed}")}
        parts.append(written(Experiment(some.plan, some.arms, mine), tmp_path / str(seed)))
    assert ablation.main(["--from", *parts]) == 0
    table = capsys.readouterr().out
    assert ablation.main(["--from", whole]) == 0 and capsys.readouterr().out == table


def pack(path: Path, seed: int, plan: dict | None = None, arms: dict | None = None, **changes) -> str:
    """The --out of an ablation of one run of `full`, with changes of its record."""
    some = experiment({FULL: 0.6}, [seed])
    records = {run: record | changes for run, record in some.records.items()}
    return written(Experiment(some.plan | (plan or {}), some.arms | (arms or {}), records), path)


def test_packs_are_compared_by_what_was_computed(tmp_path):
    """A clone with an edited exercise (-dirty), or without git, has computed the same; without hashes of the sources a commit has to do."""
    same = [pack(tmp_path / f"{commit}-{seed}", seed, commit=commit, source="5e1f")
            for seed, commit in enumerate(["abc", "abc-dirty", "unknown"], 10)]
    found = runs.opened(same)
    assert found.seeds == [10, 11, 12] and found.plan["commit"] == ["abc", "abc-dirty", "unknown"]
    old = [pack(tmp_path / "old-1", 10), pack(tmp_path / "old-2", 11, commit="abc-dirty")]
    with pytest.raises(UserError, match=r"old-2: source \(\['commit abc'\] -> \['commit abc-dirty'\]\)$"):
        runs.opened(old)


def test_all_that_do_not_belong_are_named_at_once(tmp_path):
    """Beside what most have computed, also where the first one is not like most."""
    other = dataclasses.replace(runs.Arm(("--pop", "8")), part=0.5)
    odd = [pack(tmp_path / "other-source", 10, source="0ld"), str(tmp_path / "nothing"), pack(tmp_path / "base", 13, source="5e1f", base_hash="x"),
           pack(tmp_path / "steps", 14, dict(types=["code_i"]), source="5e1f"), pack(tmp_path / "twice", 12, source="5e1f"),
           pack(tmp_path / "arm", 15, arms={FULL: other}, source="5e1f")]
    good = [pack(tmp_path / f"good-{seed}", seed, source="5e1f") for seed in (11, 12, 16, 17)]
    with pytest.raises(UserError) as error:
        runs.opened([odd[0], *good, *odd[1:]])
    lines = str(error.value).splitlines()
    assert lines[0].endswith("leave them out, or make them anew:")
    for path, words in zip(odd, ("source (['5e1f'] -> ['0ld'])", "config.json is damaged or missing", "base (['hash'] -> ['x'])",
                                 "types (['code_o'] -> ['code_i'])", "full-s12 is there twice", "arm full")):
        assert sum(path in line and words in line for line in lines[1:]) == 1, str(error.value)
    assert len(lines) == 1 + len(odd)


def test_sources_that_compute_the_same_have_one_hash(tmp_path, monkeypatch):
    """Whatever is written into course, pages and tests, whatever the ends of lines, with git or without."""
    names = ["rewards.py", "tasks/code.py", "tasks/theories/miu.mm", "course/play.py", "docs/map.md", "tests/test_slips.py", ".venv/lib/x.py",
             "env/pyvenv.cfg", "env/lib/x.py", "out/x/note.py", "run/platform.py"]

    def hashed(changed: str = "", end: str = "\n") -> str:
        root = tmp_path / f"{changed.replace('/', '-')}{len(end)}"
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(f"one{end}two{' ' * (name == changed)}{end}".encode())
        monkeypatch.setattr(platform, "__file__", str(root / "run" / "platform.py"))
        return platform.source_hash()

    plain = hashed()
    assert hashed(end="\r\n") == plain
    different = [name for name in names if hashed(name) != plain]
    assert different == ["rewards.py", "tasks/code.py", "tasks/theories/miu.mm", "run/platform.py"]


def test_a_contrast_has_two_arms(tmp_path):
    first = pack(tmp_path / "first", 10)
    with pytest.raises(UserError, match="--contrast full: give two arms with a comma between, as in spread,one"):
        ablation.main(["--from", first, "--contrast", "full"])
    with pytest.raises(UserError, match="give --base, or --from DIR"):
        ablation.main([])


def test_the_published_page_is_that_of_the_published_runs():
    """Every contrast of areas in docs/ablations.md, its interval and its p, from docs/results/runs.jsonl."""
    published = runs.opened([str(ROOT / "docs" / "results")])
    values, _ = measures.collected(published, list(published.arms), 0.6)
    page = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    shown = re.findall(r"^([a-z-]+) - ([a-z-]+) +([+-]\S+) +(\S+) \.\. +?(\S+)  (\S+)", page, re.M)
    for one, other, *numbers in shown:
        line = measures.contrast(values, one, other, "area")
        assert numbers == [f"{line['difference']:+.3f}", *(f"{end:+.3f}" for end in line["interval"]), f"{line['p']:.4f}"]
    assert len(shown) >= 8 and len(published.records) == 144
    primary = measures.conclude(published, list(ablation.PRIMARY), FULL, "area", 0.6)
    assert all(block in page for block in measures.table(primary).split("\n\n")[2:])
