"""Runs of the plan on litters (docs/plans.md); the same command goes on where it stopped.

    python -m eval.population.litter_runs out/rates litter 40
    python -m eval.population.litter_runs out/rates selection-singles 40
"""
import contextlib
import json
import shutil
import sys
from pathlib import Path

import train
from config import Config, parse_args, resolve_config
from eval.population import runs
from run.checkpoint import founders

TOKENS = 240_000
HELDOUT = Path("micro/base/heldout.jsonl")      # asked are the first 60 output tasks
GROUND = "--lr-decay 0,1,1 --steps 400 --n-heldout 60 --keep 1 --resume auto".split()
PLAN = dict(tokens=TOKENS, types=["code_o"], asked=["code_o"], limit=120)
WORDS = ["--workers", 1, "--prompt-format", "micro"]
POPULATION = "--pop 8 --lr-spread 64 --lr-mutate 1.25 --evolve copy --evolve-every 5 --litter 3".split()
COPIED_AT = (0.25, 0.5, 0.75)           # of each single run's tokens


def go_on(out: Path, name: str, words: list[str], due: float) -> Path:
    """Train a run until it has spent `due`."""
    path = out / name
    rows = runs.logged(path)

    def enough(row: dict | None = None) -> bool:
        rows.extend([row] if row else [])
        return runs.met(runs.spent(rows), due)
    if not enough():
        with open(f"{path}.log", "a") as log, contextlib.redirect_stdout(log):
            files = ["--heldout", str(out / "heldout.jsonl"), "--out", str(out), "--name", name]
            train.main(parse_args(None, [*GROUND, *words, *files]), enough)
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


def selection(out: Path, seed: int) -> tuple[list[Path], list[dict]]:
    """Four single runs at the rates of a population's students; three times the best on validation is put in
    the place of the others, who keep their archives. Returns the runs and what was copied."""
    members = founders(resolve_config(Config(pop=8, lr_spread=64.0, lr=2e-3, seed=seed), "micro"))
    rates = [2e-3 * m.lr_scale for m in members if m.role == "student"]
    names = [f"selection-singles-{seed}-{i}" for i in range(4)]
    own = []
    for i, rate in enumerate(rates):
        own.append(["--single", "--lr", repr(rate), "--seed", str(seed + 1000 * i), "--probe-every", "20"])
    log = out / f"copied-{seed}.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for number, share in enumerate((*COPIED_AT, 1.0)):
        if number < len(done):
            continue
        paths = [go_on(out, name, words, share * TOKENS / 4) for name, words in zip(names, own)]
        if share == 1.0:
            return paths, done
        place = out / f"validation-{seed}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        adapters = [last_step(path) / "T0" for path in paths]
        with open(out / f"copied-{seed}.log", "a") as text, contextlib.redirect_stdout(text):
            right = runs.answered(adapters, "validation", PLAN, place, WORDS)["code_o"]
        scores = [runs.mean_of(right["/".join(path.parts[-3:])].values()) for path in adapters]
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


def main(out: Path, name: str, seed: int) -> None:
    """One arm with one seed; a record of each of its runs, in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    asked = [line for line in HELDOUT.read_text().splitlines() if json.loads(line)["kind"] == "code_o"]
    (out / "heldout.jsonl").write_text("".join(line + "\n" for line in asked[:60]))
    copied = []
    if name == "litter":
        arm = runs.Arm(tuple(POPULATION))
        words = [*POPULATION, "--lr", "2e-3", "--seed", str(seed), "--probe-every", "5"]
        paths = [go_on(out, f"litter-{seed}", words, TOKENS)]
    else:
        arm = runs.Arm(("--single",), 0.25, 4)
        paths, copied = selection(out, seed)
    for run, path in zip(runs.runs_of(name, arm, seed), paths):
        step = int(last_step(path).name[5:])
        record = runs.examined(out / f"asked-{run}", [(path, step)], "", PLAN, ["--workers", 1])
        trials = []
        for birth in runs.logged(path, step, "genealogy.jsonl"):
            if "trial" in birth:
                solved = [child["solved"] for child in birth["trial"]["children"]]
                trials.append([birth["step"], birth["trial"]["victim"], solved, birth["child"]])
        record |= dict(run=run, trials=trials, copied=copied)
        (out / f"record-{run}.json").write_text(json.dumps(record))
        print(run, record["spent"][-1], record["validation"], record["end"], record["deployed"], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3]))
