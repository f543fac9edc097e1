"""The table of an ablation: from made-up runs whose numbers are known, from packs, from many people's."""
import copy
import dataclasses
import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from eval.population import ablation, children, compare, measures, records, retention
from eval.population.arms import FULL, PLANNED, arms_of, runs_of
from eval.population.records import Experiment, Record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
SEEDS = list(range(10, 18))
STEPS = 8


def answers(rng: np.random.Generator, members: dict[str, float], families: tuple[str, ...], n: int) -> dict:
    """An evaluation of n tasks of each family in which a member is right, and thinks, with its own chance."""
    found = {}
    for family in families:
        size = 8 if family.endswith("long") else 3
        ids = [f"{size}/{i}" for i in range(n)]
        right = {name: rng.binomial(1, chance, n).tolist() for name, chance in members.items()}
        found[family] = dict(ids=ids, right=right, think=copy.deepcopy(right))
    return dict(samples=1, temperature=0.0, limit=n, data={"code_o": "a"}, base_hash="b", answers=found)


def made_up(name: str, seed: int, part: float, learned: float) -> Record:
    """A run whose two students' accuracy on the anchors is .2 until the middle and `learned` after it."""
    rng = np.random.default_rng([seed, *name.encode()])
    metrics = []
    for step in range(STEPS):
        accuracy = 0.2 if step < STEPS / 2 else learned
        students = {who: dict(role="student", n=8, think=accuracy) for who in ("S0", "S1")}
        probe = dict(anchors_greedy={"S0": accuracy, "S1": accuracy}, base_solve=0.5) if step % 2 == 0 else {}
        complexity = dict(statements=2 + step / 4, mccabe=1.5, depth=6.0)
        members = dict(T0=dict(role="teacher", n=8), **students)
        metrics.append(dict(step=step, n=8, valid=0.5, members=members, seconds=dict(solve=1.0),
                            tokens_generated=int(part * 1000) * (step + 1), tokens_trained=100,
                            complexity=complexity, unique_at_64=60, **probe))
    birth = dict(step=1, child="S1", operator="noise", parents=[dict(name="S0")],
                 victim=dict(role="student"))
    who = {"S0": learned, "S1": learned, "base": 0.2}
    families = (*measures.OUTPUT, "code_i", "code_f", "math", "logic")
    evaluations = {"heldout-validation": answers(rng, who, measures.OUTPUT, 12),
                   "heldout-test": answers(rng, who, families, 12)}
    config = dict(seed=seed, base="micro/base", out="o", lr=0.001)
    return Record(name, config, dict(commit="abc"), "hash", metrics, [dict(brier=0.1)], [birth], evaluations)


def experiment(learned: dict[str, float], seeds: list[int] = SEEDS, noise: float = 0.0) -> Experiment:
    """Runs of full and of other arms; learned: arm -> accuracy after the middle, the same for all seeds."""
    arms = arms_of(8, 3)
    plan = dict(base="micro/base", pop=8, steps=STEPS, budget="tokens", probe_every=2, train=[], seeds=seeds,
                arms={name: json.loads(json.dumps(dataclasses.asdict(arms[name]))) for name in learned})
    runs = {}
    for name, accuracy in learned.items():
        for seed in seeds:
            for run in runs_of(name, arms, seed):
                shift = noise * np.random.default_rng([run.seed, *name.encode()]).normal()
                runs[run.name] = made_up(run.name, run.seed, run.part, float(np.clip(accuracy + shift, 0, 1)))
    return Experiment(plan, runs)


ALIKE = dict.fromkeys((FULL, *PLANNED), 0.6)


def said(result: dict) -> dict[str, str]:
    """Arm -> verdict of its primary contrast."""
    return {line["other"]: line["verdict"] for line in result["primary"]}


# ---- the plan's rules --------------------------------------------------------------------------------------

def test_the_area_of_a_made_up_run_is_that_by_hand():
    """Probes at 0, 2, 4, 6 of 8 steps: .2, .2, .6, .6, and the end; lines between them."""
    result = compare.conclude(experiment(ALIKE), 0.05)
    run = experiment(ALIKE).runs["full-s10"]
    end = measures.final_accuracy(run)
    by_hand = 0.25 * (0.2 + 0.4 + 0.6 + (0.6 + end) / 2)
    due = 8000
    assert measures.area(measures.curve(run.metrics, "tokens", due, end)) == pytest.approx(by_hand)
    values = result["measures"]
    assert values["statements"][FULL]["mean"] == 3.75 and values["base_solve"][FULL]["mean"] == 0.5
    assert values["brier"][FULL]["mean"] == 0.1 and values["spread"][FULL]["mean"] == 0
    assert 0.25 < values["half"][FULL]["mean"] < 0.5 and values["pass16"][FULL]["mean"] is None


def test_what_is_seen_not_seen_and_what_cannot_be_told():
    clear = experiment(ALIKE | {"uniform": 0.3}, noise=0.02)
    result = compare.conclude(clear, 0.05)
    assert said(result)["uniform"] == "seen, +"
    line, = [line for line in result["primary"] if line["other"] == "uniform"]
    assert line["p"] == 2 / 256 and line["p_holm"] == 6 * 2 / 256 and len(line["by_seed"]) == 8
    assert line["interval"][0] < line["difference"] < line["interval"][1]
    assert line["difference"] == pytest.approx(np.mean(line["by_seed"]))
    others = {verdict for arm, verdict in said(result).items() if arm != "uniform"}
    assert others <= {"not seen", "cannot tell"}

    few = experiment(ALIKE | {"uniform": 0.3}, SEEDS[:7], noise=0.02)
    few.plan["seeds"] = SEEDS
    result = compare.conclude(few, 0.05)
    assert set(said(result).values()) == {"cannot tell"} and result["missing"]["uniform"] == [17]
    shown = compare.table(result)
    assert "AN INTERIM TABLE" in shown and "7 of 8 seeds" in shown
    assert "missing: seeds 17 of full, no-evolution" in shown


@pytest.mark.parametrize("p, interval, difference, words", [
    (0.04, (0.01, 0.2), 0.1, "seen, +"), (0.04, (-0.2, -0.01), -0.1, "seen, -"),
    (0.04, (0.001, 0.049), 0.02, "seen, +, small"), (0.05, (-0.05, 0.05), 0.0, "not seen"),
    (0.05, (-0.051, 0.05), 0.0, "cannot tell"), (1.0, (-0.04, 0.2), 0.1, "cannot tell")])
def test_verdicts_are_the_plan_s(p, interval, difference, words):
    line = dict(seeds=SEEDS, p_holm=p, interval=interval, difference=difference)
    assert compare.verdict(line, 0.05) == words
    assert compare.verdict(line | dict(seeds=SEEDS[:7]), 0.05) == "cannot tell"


def test_a_seed_counts_for_primary_contrasts_only_if_it_is_whole():
    some = experiment(ALIKE, noise=0.1)
    del some.runs["pair-s12"]
    result = compare.conclude(some, 0.05)
    assert result["complete"] == [seed for seed in SEEDS if seed != 12]
    assert all(12 not in line["seeds"] for line in result["primary"])
    assert result["measures"]["area"]["uniform"]["seeds"] == SEEDS, "described over all that there is"
    del some.runs["full-s13"]
    assert 13 not in compare.conclude(some, 0.05)["complete"], "a budget that is not known"


def test_the_same_arm_under_two_names_is_not_shown():
    """A null experiment over eight seeds: every planned arm is full with other luck."""
    result = compare.conclude(experiment(ALIKE, noise=0.1), 0.05)
    assert min(line["p_holm"] for line in result["primary"]) >= 0.05
    assert not any(verdict.startswith("seen") for verdict in said(result).values())


def test_independent_runs_of_one_arm_are_held_against_each_other():
    """Six pairs of four; what is known of their numbers is that by hand, and one that differs is seen."""
    some = experiment({FULL: 0.6, "singles": 0.5}, noise=0.02)
    lines = compare.conclude(some, 0.05)["null"]
    assert [(line["one"], line["other"]) for line in lines][:2] == [("singles 1", "singles 2"), ("singles 1", "singles 3")]
    assert len(lines) == 6 and not any(line["verdict"].startswith("seen") for line in lines)
    for seed in SEEDS:
        for row in some.runs[f"single-s{seed + 3000}"].metrics:
            row["anchors_greedy"] = row.get("anchors_greedy") and {"S0": 0.9, "S1": 0.9}
    changed = compare.conclude(some, 0.05)
    assert [line["verdict"] for line in changed["null"] if "singles 4" in line["other"]] == ["seen, -"] * 3
    assert "singles 3 - singles 4" in compare.table(changed) and not compare.conclude(experiment(ALIKE), 0.05)["null"]


def test_a_few_arms_of_one_s_own_are_all_primary():
    result = compare.conclude(experiment({FULL: 0.6, "no-evolution": 0.3}), 0.05)
    line, = result["primary"]
    assert line["p"] == line["p_holm"] == 2 / 256 and line["verdict"] == "seen, +"
    assert not result["secondary"]


def test_several_singles_are_one_arm_and_the_best_is_chosen_on_validation():
    some = experiment({FULL: 0.6, "single": 0.5, "singles": 0.5})
    best = some.runs["single-s2010"]
    for split, share in (("validation", 1.0), ("test", 0.75)):
        for found in best.evaluations[f"heldout-{split}"]["answers"].values():
            found["right"]["S0"] = [int(i < share * 12) for i in range(12)]
    result = compare.conclude(some, 0.05)
    assert result["spent"]["singles"]["runs"] == 4 and result["spent"]["singles"]["share"] == 1
    due = compare.due_of(some, "singles", 10)
    found = measures.measured(compare.runs_there(some, "singles", 10), "tokens", due, 0.4)
    assert found["best"].mean() == 0.75, "chosen for its 1.0 on validation, told by its test"


def test_pass_at_16_is_told_where_it_was_asked():
    some = experiment({FULL: 0.6, "single": 0.5})
    assert compare.conclude(some, 0.05)["measures"]["pass16"][FULL]["mean"] is None
    for run in some.runs.values():
        sixteen = answers(np.random.default_rng(0), {"S0": 0, "S1": 0, "base": 0}, measures.OUTPUT, 12)
        for found in sixteen["answers"].values():
            found["right"] = {"S0": [0] * 12, "S1": [1] * 6 + [0] * 6, "base": [16] * 12}
        run.evaluations["heldout-pass"] = sixteen | dict(samples=16)
    result = compare.conclude(some, 0.05)
    assert result["measures"]["pass16"][FULL]["mean"] == 0.25, "one right of sixteen suffices"
    assert result["base_passes"] == 1.0 and "its pass@16 1.000" in compare.table(result)


def test_budgets_off_by_more_than_a_twentieth_are_refused():
    some = experiment(ALIKE)
    run = some.runs["pair-s11"]
    some.runs["pair-s11"] = dataclasses.replace(run, metrics=run.metrics[:7])
    with pytest.raises(ValueError, match="pair-s11 spent 7,000 where 8,000 are due"):
        compare.conclude(some, 0.05)


def test_claims_need_the_sign_that_bears_them_out():
    line = dict(seeds=SEEDS, measure="end", difference=0.15, p=0.01, interval=(0.1, 0.2))
    assert compare.borne_out(line, 1, 0.05) == "borne out"
    assert compare.borne_out(line, -1, 0.05) == "the other way"
    assert compare.borne_out(line | dict(p=0.06), 1, 0.05) == "cannot tell", "whatever the interval says"
    assert compare.borne_out(line | dict(seeds=SEEDS[:7]), 1, 0.05) == "cannot tell"
    none = line | dict(p=0.3, interval=(-0.04, 0.01))
    assert compare.borne_out(none, 1, 0.05) == "not seen"
    assert compare.borne_out(none | dict(measure="statements"), 1, 0.05) == "cannot tell", "in other units"


def test_courses_of_children():
    metrics = []
    probes = {0: dict(S0=0.2), 5: dict(S0=0.4, S1=0.1), 10: dict(S0=0.5, S1=0.3), 15: dict(S1=0.6)}
    for step, found in probes.items():
        metrics.append(dict(step=step, anchors_greedy=found))
    birth = dict(step=3, child="S1", operator="mask", parents=[dict(name="S0")],
                 victim=dict(role="student"))
    teacher = birth | dict(victim=dict(role="teacher"))
    course, = children.courses(metrics, [birth, teacher], 6)
    assert course == dict(operator="mask", born=3, before=0.2, child=0.3, then=0.5)
    assert children.courses(metrics, [birth], 20)[0]["child"] is None
    runs = [(str(seed), metrics, [birth] * (1 + seed)) for seed in range(5)]
    first, later, never = children.children(runs, lambda course: course["operator"], (1, 6, 20))
    assert first["births"] == 15 and first["gained"]["difference"] == pytest.approx(-0.1)
    assert first["then"] == pytest.approx(0.4) and first["behind"]["difference"] == pytest.approx(-0.3)
    assert later["gained"]["difference"] == pytest.approx(0.1)
    assert later["gained"]["interval"] == pytest.approx((0.1, 0.1))
    assert children.children(runs[:4], lambda course: "all", (1,))[0]["gained"]["interval"] is None
    assert not children.children(runs, lambda course: "", (1,))
    assert never["recorded"] == 0 and never["gained"]["difference"] is None
    shown = children.children_table([first, later, never]).splitlines()
    assert "-0.100" in shown[2] and "-0.300" in shown[2]
    assert shown[4].split()[3:] == ["0", *"-------"]


# ---- packs and pools ---------------------------------------------------------------------------------------

def test_a_pack_gives_the_table_to_the_last_digit(tmp_path, capsys):
    some = experiment(ALIKE | {"singles": 0.5}, noise=0.1)
    size = records.pack(some, tmp_path / "pack")
    assert records.opened(tmp_path / "pack") == some and size < 10_000 * len(some.runs)
    result = compare.conclude(some, 0.05)
    svg = tmp_path / "forest.svg"
    assert ablation.main(["--from", str(tmp_path / "pack"), "--svg", str(svg)]) == 0
    assert capsys.readouterr().out == compare.table(result) + "\n"
    drawn = ElementTree.parse(svg).getroot()
    words = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert drawn.get("viewBox").startswith("0 0 800 ")
    assert {"full - uniform", "full - singles", "pair - single-long"} <= set(words)
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == 6 + 2


def test_the_runs_of_many_people_are_one_table(tmp_path, capsys):
    """Three people with one seed each give what one with three seeds gives."""
    some = experiment(ALIKE, SEEDS[:3], noise=0.1)
    for seed in SEEDS[:3]:
        runs = {name: run for name, run in some.runs.items() if run.config["seed"] % 1000 == seed}
        records.pack(Experiment(some.plan | dict(seeds=[seed]), runs), tmp_path / str(seed))
    assert ablation.main(["--pool", *(str(tmp_path / str(seed)) for seed in SEEDS[:3])]) == 0
    table = compare.table(compare.conclude(some, 0.05))
    assert capsys.readouterr().out == f"{len(some.runs)} runs of 3 directories\n{table}\n"


def test_what_does_not_fit_a_pool_is_refused_by_name():
    seeds = dict(anna=10, ben=11, carl=12, dora=13, eve=10)
    parts = {who: experiment(ALIKE, [seed]) for who, seed in seeds.items()}
    for who, change in (("ben", dict(env=dict(commit="old"))), ("carl", dict(base_hash="other"))):
        for name, run in parts[who].runs.items():
            parts[who].runs[name] = dataclasses.replace(run, **change)
    run = parts["dora"].runs["pair-s13"]
    parts["dora"].runs["pair-s13"] = dataclasses.replace(run, config=run.config | dict(lr=0.1))
    whole, refused = records.joined(parts)
    assert {name.rpartition("-s")[2] for name in whole.runs} == {"10", "13"} and "pair-s13" not in whole.runs
    told = "\n".join(refused)
    assert "ben/full-s11: commit ('abc' -> 'old')" in told
    assert "carl/full-s12: base ('hash' -> 'other')" in told
    assert "dora/pair-s13: lr (0.001 -> 0.1)" in told
    assert "eve/full-s10: a run of this arm and seed is there already" in told
    assert len(refused) == 3 * 7 + 1 and whole.plan["seeds"] == [10, 11, 12, 13]
    other = experiment(ALIKE, [14])
    other.plan["train"] = ["--lr", "1"]
    refused = records.joined(parts | {"fay": other})[1]
    changed = experiment(ALIKE, [15])
    for name, run in changed.runs.items():
        changed.runs[name] = dataclasses.replace(run, env=dict(commit="abc-dirty"))
    told = records.joined(dict(gus=changed))[1]
    assert len(told) == 7 and all("files were changed since its commit" in why for why in told)
    assert sum("fay/" in why and "train ([] -> ['--lr', '1'])" in why for why in refused) == 7


def test_what_is_no_pack_is_said(tmp_path):
    with pytest.raises(ValueError, match="neither a pack nor the --out of an ablation: No such file"):
        ablation.main(["--from", str(tmp_path / "nothing")])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="names no arms"):
        ablation.main(["--pool", str(tmp_path)])
    records.pack(experiment({FULL: 0.5}, [10]), tmp_path)
    (tmp_path / "full-s10.json.xz").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="neither a pack"):
        ablation.main(["--from", str(tmp_path)])
    with pytest.raises(ValueError, match="give --base, or --from DIR"):
        ablation.main([])


def test_the_course_s_commands_are_understood():
    """Those of the lesson with thirty laptops: seeds, pack, pool."""
    text = (ROOT / "course" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python -m eval.population.ablation (.*)$", text, re.M)
    parsed = [ablation.parser().parse_args(shlex.split(words)) for words in commands]
    assert [(args.seeds, args.pack, len(args.pool)) for args in parsed] == [
        ("100", "", 0), ("0,1,2", "", 0), ("100", "out/seed-100", 0), ("0,1,2", "", 3)]
    assert parsed[1].source == "out/class" and parsed[0].train == parsed[2].train == ["--", "--evolve-every", "11"]


@pytest.fixture(scope="module")
def published() -> dict:
    """What the packed runs say."""
    return compare.conclude(records.opened(RESULTS), 0.05)


def test_the_published_page_is_that_of_the_published_runs(published):
    """table.txt is the table of the packed runs, to the digit, and so is every block of the page."""
    assert (RESULTS / "table.txt").read_text(encoding="utf-8") == compare.table(published) + "\n"
    later = compare.conclude(records.opened(RESULTS / "later"), 0.05, born_after=40)
    born = retention.lines_of(retention.opened(RESULTS / "retention" / "children.json.xz"))
    told = [compare.table(published, whole=False), compare.table(later, whole=False), retention.birth_table(born)]
    told = {section for text in told for section in text.split("\n\n")}
    page = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n(.*?)\n```", page, re.S)
    sections = {section for block in blocks for section in block.split("\n\n")}
    assert len(blocks) == 7
    for section in sections:
        assert any(set(section.split("\n")) <= set(text.split("\n")) for text in told), section


def test_the_same_arm_under_two_names_is_not_seen_in_real_runs(published):
    """Four independent runs of one arm, eight seeds each, against each other: docs/ablations.md."""
    lines = published["null"]
    assert len(lines) == 6 and all(len(line["seeds"]) == 8 for line in lines)
    assert not any(line["verdict"].startswith("seen") for line in lines)
