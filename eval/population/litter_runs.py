"""Runs of the plan on litters (docs/plans.md); the same command goes on where it stopped.

    python -m eval.population.litter_runs OUT rates selection-singles 40
    python -m eval.population.litter_runs OUT speedrun full 200               # first: its tokens are due
    python -m eval.population.litter_runs OUT speedrun singles 200            # before the next, which begins
    python -m eval.population.litter_runs OUT speedrun selection-singles 200  # with its first quarters
    python -m eval.population.litter_runs OUT hills litter 60                 # on the base OUT/hills-base
    python -m eval.population.litter_runs OUT thousand single 300

Records and plan of a ground lie in OUT/GROUND, as `eval.population.ablation --from` reads them. A base of two
hills: python -m micro.make --phase 2 --thinking .01 --shallow .25 --out OUT/hills-base
"""
import contextlib
import dataclasses
import json
import shutil
import statistics
import sys
from pathlib import Path

import train
from config import Config, parse_args, resolve_config
from eval.population import runs
from run.checkpoint import founders

HELDOUT = Path("micro/base/heldout.jsonl")      # asked are the first 60 output tasks
SHARED = "--steps 400 --n-heldout 60 --keep 1 --resume auto".split()
WORDS = ["--workers", 1, "--prompt-format", "micro"]
COPIED_AT = (0.25, 0.5, 0.75)                   # of each single run's tokens
ALONE = ("singles", "selection-singles")


@dataclasses.dataclass(frozen=True)
class Ground:
    """Where arms meet: flags of all runs, tokens (0: what `full` takes in 30 steps), the rate of students,
    the factor over which founders' rates spread, steps between probes of populations and of single runs,
    flags of the populations by arm."""
    flags: str
    tokens: int
    lr: float
    spread: float
    probes: tuple[int, int]
    arms: dict[str, str]


RATES = "--pop 8 --lr-spread 64 --lr-mutate 1.25 --evolve copy --evolve-every 5"
NO_BIRTHS = "--pop 8 --evolve none"
MIXED = "--pop 8 --evolve mixed --evolve-every 5"
GROUNDS = dict(
    rates=Ground("--lr-decay 0,1,1", 240_000, 2e-3, 64.0, (5, 20), dict(litter=f"{RATES} --litter 3")),
    speedrun=Ground("", 0, 2e-3, 1.0, (8, 0),
                    {"full": "--pop 8", "litter": "--pop 8 --litter 4", "no-evolution": NO_BIRTHS}),
    hills=Ground("--lr-decay 0,1,1", 400_000, 2e-3, 1.0, (5, 0),
                 {"full": MIXED, "litter": f"{MIXED} --litter 4", "no-evolution": NO_BIRTHS}))
THOUSAND = {"single": "--single", "pair": "--pop 2", "full": "--pop 8"}
FULL_STEPS = 30


def go_on(out: Path, name: str, words: list[str], due: float, steps: int = 0) -> Path:
    """Train a run until it has spent `due`, or made so many steps."""
    path = out / name
    rows = runs.logged(path)

    def enough(row: dict | None = None) -> bool:
        rows.extend([row] if row else [])
        return len(rows) >= steps if steps else runs.met(runs.spent(rows), due)
    if not enough():
        with open(f"{path}.log", "a") as log, contextlib.redirect_stdout(log):
            files = ["--heldout", str(out / "heldout.jsonl"), "--out", str(out), "--name", name]
            train.main(parse_args(None, [*SHARED, *words, *files]), enough)
    return path


def last_step(path: Path) -> Path:
    """A run's last checkpoint."""
    return max(path.glob("step_*"), key=lambda place: int(place.name[5:]))


def put_in_place(best: Path, other: Path, scale: float) -> None:
    """Copy the adapter of one run over another's, with its rate: fresh moments, as those of a child."""
    source, place = last_step(best), last_step(other)
    shutil.rmtree(place / "T0")
    shutil.copytree(source / "T0", place / "T0")
    shutil.rmtree(place / "optimizer")
    (place / "optimizer").mkdir()
    state = json.loads((place / "state.json").read_text())
    state["optimizer_steps"] = [0]
    for member in state["members"]:
        member["lr_scale"] = scale
    (place / "state.json").write_text(json.dumps(state))


def words_alone(ground: Ground, seed: int) -> tuple[list[float], list[list[str]]]:
    """Rates of four single runs, those of a population's students, and their flags."""
    cfg = resolve_config(Config(pop=8, lr_spread=ground.spread, lr=ground.lr, seed=seed), "micro")
    rates = [ground.lr * m.lr_scale for m in founders(cfg) if m.role == "student"]
    own = []
    for i, rate in enumerate(rates):
        own.append([*ground.flags.split(), "--single", "--lr", repr(rate), "--seed", str(seed + 1000 * i),
                    "--probe-every", str(ground.probes[1])])
    return rates, own


def singles(out: Path, ground: Ground, seed: int, tokens: float) -> list[Path]:
    """Four single runs. Their first quarters are kept: those of `selection-singles` are the same."""
    _, own = words_alone(ground, seed)
    paths = []
    for i, words in enumerate(own):
        name, twin = f"singles-{seed}-{i}", out / f"selection-singles-{seed}-{i}"
        path = go_on(out, name, words, COPIED_AT[0] * tokens / 4)
        if not twin.exists():
            shutil.copytree(path, f"{twin}.part", dirs_exist_ok=True)
            Path(f"{twin}.part").rename(twin)
        paths.append(go_on(out, name, words, tokens / 4))
    return paths


def selection(out: Path, ground: Ground, seed: int, tokens: float) -> tuple[list[Path], list[dict]]:
    """Four single runs at the rates of a population's students; three times the best on validation is put in
    the place of the others, who keep their archives. Returns the runs and what was copied."""
    rates, own = words_alone(ground, seed)
    names = [f"selection-singles-{seed}-{i}" for i in range(4)]
    log = out / f"copied-{seed}.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for number, share in enumerate((*COPIED_AT, 1.0)):
        if number < len(done):
            continue
        paths = [go_on(out, name, words, share * tokens / 4) for name, words in zip(names, own)]
        if share == 1.0:
            return paths, done
        place = out / f"validation-{seed}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        adapters = [last_step(path) / "T0" for path in paths]
        with open(out / f"copied-{seed}.log", "a") as text, contextlib.redirect_stdout(text):
            right = runs.answered(adapters, "validation", plan_of(tokens), place, WORDS)["code_o"]
        scores = [statistics.fmean(right["/".join(path.parts[-3:])].values()) for path in adapters]
        best = scores.index(max(scores))
        state = json.loads((last_step(paths[best]) / "state.json").read_text())
        rate = rates[best] * state["members"][0]["lr_scale"]
        for i, path in enumerate(paths):
            if i != best:
                put_in_place(paths[best], path, rate / rates[i])
        spent = [runs.spent(runs.logged(path))[-1] for path in paths]
        done.append(dict(spent=spent, validation=scores, best=best, rate=rate))
        log.write_text("".join(json.dumps(line) + "\n" for line in done))
    raise AssertionError("the last share is 1")


def plan_of(tokens: int) -> dict:
    """What the runs of a ground share; without tokens `full` sets the budget."""
    plan = dict(types=["code_o"], asked=["code_o"], limit=120)
    return dict(tokens=tokens) | plan if tokens else plan


def recorded(out: Path, ground: Ground, name: str, arm: runs.Arm, seed: int, paths: list[Path],
             copied: list[dict]) -> None:
    """Records of an arm's runs with a seed; with the first stands what was copied."""
    runs.write_plan(out, plan_of(ground.tokens), {name: arm})
    for i, (run, path) in enumerate(zip(runs.runs_of(name, arm, seed), paths)):
        step = int(last_step(path).name[5:])
        record = runs.examined(out / f"asked-{run}", [(path, step)], "", plan_of(ground.tokens), WORDS)
        trials = []
        for birth in runs.logged(path, step, "genealogy.jsonl"):
            if "trial" in birth:
                solved = [child["solved"] for child in birth["trial"]["children"]]
                trials.append([birth["step"], birth["trial"]["victim"], solved, birth["child"]])
        record["run"] = run
        record["sandbox_failures"] = sum(row["sandbox_failures"] for row in runs.logged(path, step))
        for made in record["made"]:
            made["command"] = made["command"].replace(str(out / "heldout.jsonl"), "heldout.jsonl")
        record |= dict(trials=trials) if trials else {}
        record |= dict(copied=copied) if copied and i == 0 else {}
        runs.add(out, record)
        print(out.name, run, record["spent"][-1], round(record["validation"], 3), record["end"],
              record["deployed"], flush=True)


def main(out: Path, where: str, name: str, seed: int) -> None:
    """One arm with one seed; a record of each of its runs, in out/GROUND."""
    if where == "thousand":
        words = f"{THOUSAND[name]} --seed {seed} --steps 1000 --lr-decay 0,1,1 --probe-every 50 --resume auto"
        place = out / where
        place.mkdir(parents=True, exist_ok=True)
        with open(place / f"{name}-{seed}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(parse_args(None, [*words.split(), "--out", str(place), "--name", f"{name}-{seed}"]))
        return
    ground = GROUNDS[where]
    if where == "hills":
        base = str(out / "hills-base")
        WORDS.extend(["--base", base])
        ground = dataclasses.replace(ground, flags=f"{ground.flags} --base {base}")
    out = out / where
    out.mkdir(parents=True, exist_ok=True)
    asked = [line for line in HELDOUT.read_text().splitlines() if json.loads(line)["kind"] == "code_o"]
    (out / "heldout.jsonl").write_text("".join(line + "\n" for line in asked[:60]))
    tokens = ground.tokens
    if not tokens and name != runs.FULL:
        tokens = runs.read(out)[f"{runs.FULL}-s{seed}"]["spent"][-1]
    copied = []
    if name in ALONE:
        arm = runs.Arm(("--single",), 0.25, 4)
        if name == "singles":
            paths = singles(out, ground, seed, tokens)
        else:
            paths, copied = selection(out, ground, seed, tokens)
    else:
        arm = runs.Arm(tuple(ground.arms[name].split()))
        words = [*ground.flags.split(), *ground.arms[name].split(), "--lr", repr(ground.lr),
                 "--seed", str(seed), "--probe-every", str(ground.probes[0])]
        paths = [go_on(out, f"{name}-{seed}", words, tokens, 0 if tokens else FULL_STEPS)]
    recorded(out, ground, name, arm, seed, paths, copied)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3], int(sys.argv[4]))
