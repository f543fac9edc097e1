"""docs/map.md, its notes and crossing.md say what their packed runs say."""
import functools
import json
import re
from collections import Counter
from pathlib import Path
from statistics import NormalDist, stdev

import numpy as np
import pytest

import config
from eval.population import ablation, measures, runs
from eval.stats import covered, holm, interval_of_runs, sign_flip
from run import founders

PAGE = Path(__file__).resolve().parents[2] / "docs" / "map.md"
NOTES = PAGE.with_name("map-notes.md")


def test_the_page_s_blocks_are_what_their_commands_print(capsys, monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    blocks = re.findall(r"```sh\npython -m eval.population.ablation (.+)\n```\n\n```text\n((?:.*\n)*?)```", PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 9
    for words, block in blocks:
        ablation.main(words.split())
        assert capsys.readouterr().out.strip() == block.strip()


@functools.cache
def opened(ground: str) -> runs.Experiment:
    return runs.opened([str(PAGE.parent / "results" / ground)])


def concluded(ground: str, one: str, other: str, measure: str) -> dict:
    return measures.conclude(opened(ground), [other], one, measure, 0.6)


def unwrapped(*names: str) -> str:
    """Pages, the map and its notes where none is named, with every run of white space as one space."""
    pages = [(PAGE.parent / name).read_text(encoding="utf-8") for name in names or (PAGE.name, NOTES.name)]
    return re.sub(r"\s+", " ", " ".join(pages))


def test_the_other_arms():
    """Every row from its pack. Of every pair whose means over students stand there, and of the page's sentences, the copy of the best stands there, too."""
    rows = re.findall(r"\| (\w+) \| (\w+) \| (\S+) - (\S+) \| (\S+) \| (\S+) \((\S+) \.\. (\S+)\) \|", PAGE.read_text(encoding="utf-8"))
    assert len(rows) == 71
    for ground, measure, one, other, *numbers in rows:
        of = dict(copied="end").get(measure, measure)
        result = concluded(ground, one, other, of)
        line = next(line for line in result["copied" if measure == "copied" else "contrasts"] if line["other"] == other)
        mean = result["means"][other]["deployed" if measure == "copied" else measure]
        found = [mean, line["difference"], *line["interval"]]
        assert list(map(float, numbers)) == pytest.approx(found, abs=6e-4), (ground, other)
    beside = {row[:1] + row[2:4] for row in rows if row[1] == "copied"}
    assert {row[:1] + row[2:4] for row in rows if row[1] == "end"} <= beside


PLANNED = {"niches": ["niches-add - generalists", "niches-add - single-long", "niches-add - crossed"], "rates": ["pbt - spread", "pbt - singles", "spread - one"],
           "rare": ["copy - single-long", "copy - singles", "copy - no-evolution"], "hills": ["copy - single-long", "copy - singles"], "matching2": ["pfsp - uniform"]}


def test_the_verdicts_are_counted_and_what_they_could_see():
    """Of the planned contrasts, Holm over those of a ground; the smallest difference that a normal test at Holm's first step sees in 80%."""
    verdicts, seen = Counter(), []
    for ground, names in PLANNED.items():
        pairs = [tuple(name.split(" - ")) for name in names]
        for line in measures.conclude(opened(ground), [], pairs[0][0], "deployed", 0.6, pairs)["contrasts"]:
            verdicts[line["verdict"]] += 1
            if line["verdict"] == "cannot tell":
                x = line["by_seed"]
                quantile = NormalDist().inv_cdf
                seen.append((quantile(1 - 0.025 / len(pairs)) + quantile(0.8)) * stdev(x) / len(x) ** 0.5)
    assert verdicts == {"level": 3, "behind": 1, "not tested": 1, "cannot tell": 7}
    stated = re.search(r"it has to be (\S+) to (\S+)\. ", unwrapped()).groups()
    assert list(stated) == [f"{x:.2f}"[1:] for x in (min(seen), max(seen))]


def test_what_was_not_planned():
    """Sums over seeds that were added, or over two tries; and a copy over the worst of four single runs alone."""
    page = unwrapped()
    first = [concluded("hills", "copy", "singles", "deployed"), concluded("hills2", "copy", "singles", "deployed")]
    twelve, eight = (result["contrasts"][0]["by_seed"] for result in first)
    together = np.array(twelve + eight)
    assert (round(np.mean(twelve[:8]), 3), round(sign_flip(np.array(twelve[:8])), 2)) == (-0.111, 0.18) and "there -.111, p .18" in page
    assert (round(together.mean(), 3), round(sign_flip(together), 3), len(together)) == (-0.082, 0.022, 20) and "-.082, p .022" in page
    tries = np.array([x for ground in ("matching", "matching2") for x in concluded(ground, "pfsp", "uniform", "deployed")["contrasts"][0]["by_seed"]])
    low, high = interval_of_runs(tries)
    assert f"{tries.mean():+.3f} ({low:+.3f} .. {high:+.3f})".replace("0.", ".") in page
    rates, worst_replaced = opened("rates"), []
    values, records = measures.collected(rates, ["pbt", "singles"], 0.6)
    for seed in rates.seeds:
        by_rank = sorted(records["singles", seed], key=lambda record: record["validation"])
        by_rank[0] = by_rank[-1]
        worst_replaced.append(values["pbt", seed]["end"] - sum(record["end"]["code_o"] for record in by_rank) / 4)
    assert (round(np.mean(worst_replaced), 3), round(sign_flip(np.array(worst_replaced)), 2)) == (-0.047, 0.25)
    assert "still .047 under them (p .25)" in page


def test_seeds_at_the_goal():
    (_, head), *rows = re.findall(r"\| (ground|rare|hills) \| (`singles`.*|\d+ .*) \|\n", PAGE.read_text(encoding="utf-8"))
    arms = head.replace("`", "").split(" | ")
    assert len(rows) == 2
    for ground, counts in rows:
        values, _ = measures.collected(runs.opened([str(PAGE.parent / "results" / ground)]), arms, 0.6)
        reached = [sum(x["deployed"] >= 0.6 for (name, _), x in values.items() if name == arm) for arm in arms]
        assert reached == list(map(int, counts.split(" | "))), ground


def test_no_other_decay_is_better_by_more():
    """The tenth plan's tuning: validation of the best run, mean of two seeds."""
    best = {}
    for name, record in runs.read(PAGE.parent / "results" / "decays").items():
        arm, decay, seed = re.fullmatch(r"(.+)-(\d+\.\d+)-s(\d+)", name).groups()
        best.setdefault(arm, {}).setdefault(decay, {}).setdefault(int(seed) % 1000, []).append(record["validation"])
    ours = {"niches-layerwise": "12.25", "niches-mixed": "12.25", "generalists-mixed": "25.50", "singles": "25.50"}
    assert best.keys() == ours.keys()
    for arm, decays in best.items():
        mean = {decay: sum(map(max, seeds.values())) / len(seeds) for decay, seeds in decays.items()}
        assert len(mean) == 3 and max(mean.values()) - mean[ours[arm]] <= 0.0051, mean


def test_children_that_do_both():
    """README's 38 of 40 and the table: right on .6 of code_o and .55 of code_i, without the 20 tasks of one statement."""
    does, page = Counter(), (PAGE.parent / "crossing.md").read_text(encoding="utf-8")
    for row in map(json.loads, (PAGE.parent / "results" / "crossing.jsonl").read_text().splitlines()):
        if row["what"] == "specialists":
            right = [f"{int(row[kind], 16):0120b}"[20:].count("1") for kind in ("code_o", "code_i")]
            does[row["operator"], row["age"]] += right[0] >= 60 and right[1] >= 55
    table = re.findall(r"^\| `(\w+)`.*?\| (\d+) of 20 .* (\d+) of 20 \|", page, re.M)
    assert len(table) == 6 and [(does[name, 24], does[name, 60]) for name, *_ in table] == [(int(young), int(old)) for _, young, old in table]
    assert does["add", 24] + does["add", 60] == 38


def test_falls():
    grounds = [runs.read(PAGE.parent / "results" / ground) for ground in ("", "niches", "hills2", "rare2", "hills", "rare", "rates")]
    best = [[height for *_, height in record["probes"]] for records in grounds for record in records.values()]
    lows = [min(own[next(i for i, height in enumerate(own) if height >= 0.6):]) for own in best if max(own, default=0) >= 0.6]
    stated = re.search(r"of (\d+) runs .* under \.3 in (\d+), under \.5 in (\d+)", NOTES.read_text(encoding="utf-8"))
    assert [len(lows), *(sum(low < height for low in lows) for height in (0.3, 0.5))] == list(map(int, stated.groups()))


def first_eight(ground: str, measure: str = "deployed") -> dict[str, list[float]]:
    """Arm -> the measure by seed, of the seeds that the first plans had."""
    seeds = opened(ground).seeds[:8]
    values, _ = measures.collected(opened(ground), list(opened(ground).arms), 0.6)
    return {arm: [values[arm, seed][measure] for seed in seeds if (arm, seed) in values] for arm in opened(ground).arms}


def test_predictions_that_failed():
    """The numbers of the table in plans.md, from the packs."""
    rare, hills, rates, again, niches = map(first_eight, ("rare", "hills", "rates", "hills2", "niches"))

    def at(arms: dict, goal: float, *names: str) -> str:
        return ", ".join(str(sum(x >= goal for x in arms[name])) for name in names)

    def over(arms: dict, one: str, other: str) -> str:
        return f"{np.mean(arms[one]) - np.mean(arms[other]):+.3f}".replace("0.", ".")

    def births(ground: str, arm: str) -> str:
        return str(measures.births_that_can_help([record for seed in opened(ground).seeds for record in opened(ground).of(arm, seed)[0]]))

    in_words = {"7, 7": "seven, seven", "8": "eight"}
    singles_twelve = [sum(x["deployed"] >= 0.6 for x in measures.collected(opened(ground), ["singles"], 0.6)[0].values()) for ground in ("rare", "hills")]
    found = [over(niches, "niches-add", "generalists"), over(niches, "crossed", "niches-add"), over(niches, "niches-add", "niches-layerwise"),
             "in five seeds of eight", in_words[at(rare, 0.6, "copy", "no-evolution")], f"{in_words[at(rare, 0.6, 'singles')]}, {over(rare, 'copy', 'singles')}",
             over(rare, "copy", "single-long"), over(first_eight("rare", "end"), "copy", "no-evolution"), at(hills, 0.5, "singles", "copy", "single-long"),
             f"{over(hills, 'single-long', 'copy')}, {over(hills, 'singles', 'copy')}", f"{over(hills, 'pair', 'single-long')}, {over(rates, 'pair', 'one')}",
             f"{at(hills, 0.6, 'pair')}, {at(rates, 0.6, 'pair')}", f"{over(rare, 'copy', 'full')}, {over(hills, 'copy', 'full')}",
             over(hills, "no-evolution", "copy"), f"{births('rare2', 'copy')}, {births('hills2', 'copy')}",
             f"{over(again, 'copy', 'no-evolution')}, {over(again, 'copy', 'singles')}", "planned, never run",
             "cannot tell; `copy` behind `singles` on two hills", ", ".join(map(str, singles_twelve)), births("rates", "pbt"),
             f"{over(rates, 'litter', 'pbt')}, {over(first_eight('rates', 'end'), 'litter', 'pbt')}", f"{len([child for *_, child in trials_of_litters() if child is None])} of {len(trials_of_litters())}",
             f"{np.mean(sampled_of_litters()['coverage']) - np.mean(sampled_of_litters()['anybody']):+.3f}".replace("0.", "."), over(rates, "selection-singles", "singles"),
             *[f"{concluded(ground, 'litter', 'full', 'end')['contrasts'][0]['difference']:+.3f}".replace("0.", ".") for ground in ("speedrun", "hills3")]]
    table = (PAGE.parent / "plans.md").read_text(encoding="utf-8").partition("## Predictions that failed")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?:\w+|tenth, eleventh) \| .+ \| (.+) \|$", table, re.M)
    assert rows[1:] == found and "single-long" not in again


def test_commands_of_packed_runs():
    """recovered.json has every arm, seed and commit of the packs, with a command that train.py takes and that has the pack's own flags."""
    results = PAGE.parent / "results"
    recovered = json.loads((results / "recovered.json").read_text())["packs"]
    packs = {"." if path.parent == results else path.parent.name: path for path in results.rglob("runs.jsonl")}
    assert set(recovered) <= set(packs)
    for name, pack in recovered.items():
        experiment = runs.opened([str(packs[name].parent)])
        found, told = set(), set()
        for run, record in experiment.records.items():
            if "made" in record:                        # by a run that told its own command
                continue
            arm, _, seed = run.replace("singles", "single").rpartition("-s")
            found.add((arm, int(seed) % 1000, record["commit"]))
        for arm, given in pack["arms"].items():
            words = given["command"].replace("SEED", "1").replace("RATE", "1e-3").replace("TYPE", "code_o").split()
            config.parse_args(None, words[2:])
            assert set(experiment.arms[arm].flags) <= set(words)
            for batch in given["batches"]:
                assert batch["after"] < batch["before"]
                for seed in batch["seeds"]:
                    told.add((arm.replace("singles", "single"), seed, batch["commit"]))
        assert told == found, name
    for seed, rates in recovered["rates"]["rates"]["students of spread and pbt, and the four of singles"].items():
        words = f"--base micro/base --pop 8 --lr 2e-3 --lr-spread 64 --evolve none --seed {seed}"
        members = founders(config.resolve_config(config.parse_args(None, words.split()), "micro"))
        assert rates == pytest.approx([2e-3 * member.lr_scale for member in members if member.role == "student"], rel=5e-3)


def test_two_single_runs_or_one_adapter_do_both():
    """README's and crossing.md's correction: of two crossed --single runs, and of one adapter with as many tokens, from the map's pack."""
    readme, page = [(PAGE.parents[1] / name).read_text(encoding="utf-8") for name in ("README.md", "docs/crossing.md")]
    experiment, found = runs.opened([str(PAGE.parent / "results" / "niches")]), {}
    for arm in ("crossed", "single-long"):
        deployed = [experiment.of(arm, seed)[0][0]["deployed"] for seed in experiment.seeds]
        both = sum(right["code_o"] >= 0.6 and right["code_i"] >= 0.55 for right in deployed)
        means = [f"{sum(right[kind] for right in deployed) / len(deployed):.2f}"[1:] for kind in ("code_o", "code_i")]
        found[arm] = [f"{both} of {len(deployed)}", *means]
        assert f"| `{arm}` | {' | '.join(found[arm])} |" in page
    assert re.search(r"in (8 of 8) longer pairs\s\((\S+), (\S+)\)", readme).groups() == tuple(found["crossed"])
    both, *means = found["single-long"]
    assert re.search(r"as\sgood\s\((\S+), (\S+); (8 of 8);", readme).groups() == (*means, both)


def single_parents() -> dict[str, dict[int, tuple[int, int]]]:
    """Member -> seed -> right of the 100 counted tasks forwards and backwards, of crossing's single runs."""
    found = {}
    for row in map(json.loads, (PAGE.parent / "results" / "crossing-single.jsonl").read_text().splitlines()):
        right = tuple(f"{int(row[kind], 16):0120b}"[20:].count("1") for kind in ("code_o", "code_i"))
        found.setdefault(row["member"], {})[row["seed"]] = right
        assert row.get("same_texts_as_add") == row.get("texts"), "PEFT's child answers as add's, text for text"
    return found


def test_the_readme_s_child():
    """The accuracies under README's commands are those of the packed seed, and the commands those of its runs."""
    readme, found = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8"), single_parents()
    stated = re.search(r"parents (\S+), (\S+) and (\S+), (\S+); child (\S+), (\S+)\. \*\*", readme).groups()
    assert [round(100 * float(x)) for x in stated] == [*found["code_o"][90], *found["code_i"][90], *found["add .7"][90]]
    rows = [json.loads(row) for row in (PAGE.parent / "results" / "crossing-single.jsonl").read_text().splitlines()]
    for row in rows:
        if row["what"] == "parent" and row["seed"] == 90:
            assert re.sub(" --probe-every 0| --keep 1", "", row["command"]) in re.sub(" --name .*", "", readme)


def test_children_of_single_runs():
    """crossing.md's table of single parents: every cell from the pack; all children do both."""
    page, found = unwrapped("crossing.md"), single_parents()
    columns = ["code_o", "code_i", "add .7", "add 1.0", "mean", "PEFT svd .7"]
    for seed in sorted(found["code_o"]):
        cells = [", ".join(f"{right / 100:.2f}"[1:] for right in found[name][seed]) for name in columns]
        assert f"| {seed} | {' | '.join(cells)} |" in page
        assert all(found[name][seed][0] >= 60 and found[name][seed][1] >= 55 for name in columns[2:])
    assert found["base"] == {90: (29, 34)}


def test_mutations_twins_and_the_base():
    """Crossing's counts beside the table: children that do both by operator, and the base on the counted tasks."""
    does, parents, base = Counter(), 0, set()
    for row in map(json.loads, (PAGE.parent / "results" / "crossing.jsonl").read_text().splitlines()):
        if "code_o" in row and row["age"] == 24:
            right = [f"{int(row[kind], 16):0120b}"[20:].count("1") for kind in ("code_o", "code_i")]
            both = right[0] >= 60 and right[1] >= 55
            does[row["what"], row.get("operator")] += both
            parents += both and row["what"] == "parent" and row["member"].startswith("code_o")
            base |= {tuple(right)} if row["what"] == "base" else set()
    page = re.sub(r"\s+", " ", (PAGE.parent / "crossing.md").read_text(encoding="utf-8"))
    stated = re.search(r"`mask` (\d+), `svd` (\d+), `layers` (\d+), `noise` (\d+) do", page).groups()
    assert list(map(int, stated)) == [does["specialists", name] for name in ("mask", "svd", "layers", "noise")]
    assert f"{does['twins', 'mean']} of 20 young twins' means do both, of 20 forwards parents {parents} did" in page
    assert base == {(29, 34)} and "base .29 and .34 on the 100 counted tasks" in page


def covered_by_four(records: list[dict], types: list[str]) -> tuple[float, float]:
    """Of one arm and seed: the share of test tasks that one of its four students solves greedily, and that the deployed one solves."""
    chosen = max(records, key=lambda record: record["validation"])
    shares = []
    for kind in types:
        students = [texts for record in records for name, texts in record["answers"]["test"][kind].items() if name != "base"]
        assert len(students) == 4 and len({*map(len, students)}) == 1
        shares.append(sum("1" in answers for answers in zip(*students)) / len(students[0]))
    return sum(shares) / len(types), sum(chosen["deployed"][kind] for kind in types) / len(types)


def test_coverage():
    """The table of what at least one of four members solves."""
    p, found, arms = [], {}, re.findall(r"\| (niches|rates|rare) \| (?:four )?`([\w-]+)`.*? \| (\.\d+) \| (\.\d+) \| (.*?) ?\|", PAGE.read_text(encoding="utf-8"))
    assert len(arms) == 15
    for ground, arm, *numbers, minus in arms:
        experiment = runs.opened([str(PAGE.parent / "results" / ground)])
        own = {seed: experiment.of(arm, seed)[0] for seed in experiment.seeds}
        seeds = [seed for seed, records in own.items() if records and all("answers" in record for record in records)]
        values = {seed: covered_by_four(own[seed], experiment.plan["types"]) for seed in seeds}
        found[ground, arm] = values
        assert len(seeds) == 8
        means = [sum(column) / 8 for column in zip(*values.values())]
        assert list(map(float, numbers)) == pytest.approx(means, abs=6e-4), (ground, arm)
        if arm != "singles":
            differences = np.array([values[seed][0] - found[ground, "singles"][seed][0] for seed in seeds])
            stated = [float(number) for number in re.findall(r"[+-]?\d?\.\d+", minus.replace(" .. ", " "))]
            computed = [differences.mean(), *interval_of_runs(differences), sign_flip(differences)]
            assert stated == pytest.approx(computed, abs=6e-4), (ground, arm)
            p.append(computed[-1])
    assert len(p) == 12 and min(holm(p)) == pytest.approx(0.094, abs=6e-4), "as the page says of all twelve"


@functools.cache
def trials_of_litters() -> list[list]:
    """Step, what the victim solved, what the children solved, and who took the place, of the eight packed runs."""
    return [trial for seed in range(40, 48) for trial in opened("rates").of("litter", seed)[0][0]["trials"]]


@functools.cache
def sampled_of_litters() -> dict[str, np.ndarray]:
    """By seed the chance that four sampled answers hold a right one: one of each member, all of the deployed one, all of any."""
    values, records = measures.collected(opened("rates"), ["litter"], 0.6)
    out = {name: np.array([own[name] for own in values.values()]) for name in ("coverage", "repeated")}
    anybody = []
    for (record,) in records.values():
        each = [covered([(runs.SAMPLES, n)], runs.SAMPLES) for tasks in record["sampled"]["code_o"].values() for n in tasks.values()]
        anybody.append(np.mean(each))
    return out | dict(anybody=np.array(anybody))


def test_litters():
    """What the page says of trials and births, and of sampled answers."""
    page, trials = unwrapped(), trials_of_litters()
    _, records = measures.collected(opened("rates"), ["litter", "pbt"], 0.6)
    own = {seed: record for (arm, seed), (record,) in records.items() if arm == "litter"}
    stayed, first = sum(child is None for *_, child in trials), sum(solved[0] > victim for _, victim, solved, _ in trials)
    assert f"Of {len(trials)} litters {stayed} left the victim in its place; in {first} the first child" in page
    assert all((child is not None) == (max(solved) > victim) for _, victim, solved, child in trials)
    births = [measures.births_that_can_help([records[arm, seed][0] for seed in own]) for arm in ("litter", "pbt")]
    assert f"{births[0]} births had a parent better than the victim (of `pbt`, same seeds, {births[1]})" in page
    coverage, repeated, anybody = sampled_of_litters().values()
    low, high = interval_of_runs(coverage - repeated)
    difference = f"{(coverage - repeated).mean():+.3f} ({low:+.3f} .. {high:+.3f})"
    stated = f"with chance {coverage.mean():.3f}, four of the deployed member {repeated.mean():.3f}: level, {difference}. Four of a member drawn by lot: {anybody.mean():.3f}."
    assert re.sub(r"\b0\.", ".", stated) in page
    assert all(record["made"][0]["started"] and "--litter 3" in record["made"][0]["command"] and not record["sandbox_failures"] for record in own.values())
    assert len(own) == 8 and own[47]["deployed"]["code_o"] == 0.39


def test_selection_without_a_population():
    """Four single runs, the best copied over the others on the way: behind in every seed. Of packed `singles` the rates ascend with the runs."""
    values, records = measures.collected(opened("rates"), ["singles", "selection-singles"], 0.6)
    ends, alike, chosen = [], [], []
    for seed in range(40, 48):
        own, other = records["selection-singles", seed], records["singles", seed]
        assert values["selection-singles", seed]["deployed"] < values["singles", seed]["deployed"]
        assert len(own[0]["copied"]) == 3 and not any(record["sandbox_failures"] for record in own)
        members = founders(config.resolve_config(config.Config(pop=8, lr=2e-3, lr_spread=64.0, seed=seed), "micro"))
        rates = sorted(2e-3 * member.lr_scale for member in members if member.role == "student")
        for record, rate in zip(own, [2e-3 * member.lr_scale for member in members if member.role == "student"]):
            assert f"--lr {rate!r}" in record["made"][0]["command"]
        chosen.append(own[0]["copied"][0]["rate"])
        place = int(np.argmin(np.abs(np.array(rates) - chosen[-1])))
        assert rates[place] == pytest.approx(chosen[-1])
        assert max(range(4), key=lambda i: other[i]["validation"]) < place, "a slower one is deployed"
        alike.append(other[place]["end"]["code_o"])
        ends += [record["end"]["code_o"] for record in own]
    page = unwrapped()
    assert sign_flip(np.array([values["selection-singles", seed]["deployed"] - values["singles", seed]["deployed"] for seed in range(40, 48)])) == pytest.approx(0.0078, abs=1e-4)
    assert f"a rate of {min(chosen):.4f} to {max(chosen):.4f} is ahead in every seed".replace("0.", ".") in page
    assert f"(.{np.mean(ends) * 100:.0f}, .{np.mean(alike) * 100:.0f})" in page


@pytest.mark.parametrize("ground", ["speedrun", "hills3"])
def test_litters_of_four(ground):
    """What the notes say of births, trials and members on the speedrun's ground and on two hills."""
    page = unwrapped()
    _, records = measures.collected(opened(ground), ["litter", "full"], 0.6)
    assert opened(ground).plan["commit"] == ["de5322c"] and len(records) == 16
    own = {arm: {seed: record for (name, seed), (record,) in records.items() if name == arm} for arm in ("litter", "full")}
    births = {arm: measures.births_that_can_help(list(own[arm].values())) for arm in own}
    assert f"{births['litter']} births had a better parent, of `full` {births['full']}" in page
    trials = [trial for record in own["litter"].values() for trial in record["trials"]]
    stayed = sum(child is None for *_, child in trials)
    assert f"of {len(trials)} litters {stayed} left the victim where it was" in page
    lowest = {arm: min(min(record["accuracy"]["test"]["code_o"].values()) for record in own[arm].values()) for arm in own}
    assert f"the lowest student of all runs is at {lowest['litter']:.2f}, of `full` at {lowest['full']:.2f}".replace("0.", ".") in page
    covered_by = {arm: np.array([covered_by_four([own[arm][seed]], ["code_o"])[0] for seed in own["litter"]]) for arm in own}
    low, high = interval_of_runs(covered_by["litter"] - covered_by["full"])
    difference = f"{(covered_by['litter'] - covered_by['full']).mean():+.3f} ({low:+.3f} .. {high:+.3f})"
    assert re.sub(r"\b0\.", ".", f"at least one of four solves {covered_by['litter'].mean():.3f}, of `full` {covered_by['full'].mean():.3f}: {difference}") in page
    assert not any(record["sandbox_failures"] for arm in own.values() for record in arm.values())


def test_litters_on_two_hills_beside_four_single_runs():
    """The map's sentences of this ground that stand in no table."""
    page = unwrapped()
    values, records = measures.collected(opened("hills3"), ["litter", "full", "singles", "selection-singles"], 0.6)
    at_goal = Counter(arm for (arm, _), own in values.items() if own["deployed"] >= 0.6)
    assert (at_goal["litter"], at_goal["full"]) == (8, 6) and "at .6 in all eight seeds, that of `full` in six" in page
    on_the_way, at_the_end = [np.mean([values[arm, seed][measure] for seed in range(60, 68)]) for arm, measure in (("selection-singles", "end"), ("singles", "deployed"))]
    assert f"the mean of four runs is {on_the_way:.3f}, with the best copied at the end {at_the_end:.3f}".replace("0.", ".") in page
    covered_by = np.mean([covered_by_four(records["singles", seed], ["code_o"])[0] for seed in range(60, 68)])
    assert f"of four single runs {covered_by:.3f}.".replace("0.", ".") in page
    for own in records.values():
        assert not any(record["sandbox_failures"] for record in own) and all(record["made"][0]["started"] for record in own)
    for seed in range(60, 68):
        copied = records["selection-singles", seed][0]["copied"]
        assert len(copied) == 3 and {line["rate"] for line in copied} == {2e-3}
