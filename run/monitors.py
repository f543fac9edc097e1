"""Drift is noticed: four monitors read every step's line of metrics.jsonl and say what has gone wrong.

    collapse      the tasks are all alike, or the members are
    gaming        a teacher's reward is won by lucky guesses, long outputs, or tasks that nobody solves
    forgetting    the students answer held-out tasks worse than at the start
    escape        somebody writes what a program must not try

What a monitor finds is an alarm: its name and a sentence in the line's `alarms`, and a line on the terminal
when it begins and when it is over. --halt-on NAMES ends the run when one of these alarms begins; resumed, the
run goes on, for an alarm that was there already does not begin again before it was over.

    python -m run.monitors RUN          # what they would have said of a run that is there
"""
import argparse
import sys
from collections import Counter
from pathlib import Path

from config import Config
from infra.distributed import Ranks
from run.directory import RunDir
from run.platform import Interrupted
from selfplay import mean

WINDOW = 5                  # steps: "now" is a mean over the latest, "the start" over the first
ENOUGH = 64                 # valid tasks before the commonest output of a few can mean anything
EXIT_HALTED = 3             # exit code of a run that --halt-on ended
# Name: bound, and what is alarming; drift.md says whence. BOUNDS is what the monitors are called with.
THRESHOLDS = {
    "unique_share": (0.5, "collapse: distinct structures among 64 of the latest tasks are below this share "
                          "of their most so far"),
    "cosine": (0.9, "collapse: the updates of a role's members have a mean cosine above this"),
    "guess": (0.3, "gaming: a type's most frequent output is right for more than this share of its tasks"),
    "growth": (2.5, "gaming: an output's characters, or its longest number's digits, are more than this many "
                    "times those of the start"),
    "unsolved": (0.5, "gaming: nobody solves more than this share of the valid tasks"),
    "interval": (1.96, "forgetting: the students' greedy accuracy on held-out tasks is below that of the "
                       "first probe by more than this many standard errors of the difference"),
    "escapes": (10, "escape: this many texts of one member in 5 steps try what a program must not"),
    "violations": (1, "escape: the sandbox ended this many programs in 5 steps for a forbidden system call")}
BOUNDS = {name: bound for name, (bound, _) in THRESHOLDS.items()}


class Halted(Interrupted):
    """An alarm of --halt-on has begun; the step in which it did is finished and in the logs."""


# --- what monitors look at ----------------------------------------------------------------------------------

def largest(values) -> float | None:
    """The largest of those that are not None; None of nothing."""
    return max((value for value in values if value is not None), default=None)


def readings(row: dict) -> dict:
    """What the monitors keep of a step's line of metrics.jsonl, small whatever the population."""
    by_role = {}
    for member in row["members"].values():
        by_role.setdefault(member["role"], []).append(member.get("cosine"))
    tried = {name: member.get("escapes", 0) for name, member in row["members"].items()}
    return dict(
        tasks=row["n"] * (row["valid"] or 0.0),
        unique=row["unique_at_64"],
        cosine=largest(map(mean, by_role.values())),
        guess=largest(row["majority_baseline"].values()),
        characters=row["output_chars"],
        digits=row["output_digits"],
        unsolved=row["solve_0"],
        heldout=mean(row.get("heldout_greedy", {}).values()),
        heldout_base=row.get("heldout_greedy_base"),
        heldout_se=row.get("heldout_greedy_se"),
        escapes={name: n for name, n in tried.items() if n},
        violations=row.get("escapes", {}).get("violation", 0))


def now(history: list[dict], name: str) -> float | None:
    """Mean of a reading over the latest steps; None of a shorter run, or where it was not measured."""
    return mean(step[name] for step in history[-WINDOW:]) if len(history) >= WINDOW else None


def start(history: list[dict], name: str) -> float | None:
    """The same over the first steps."""
    return now(history[:WINDOW], name)


def above(value: float | None, bound: float) -> bool:
    """Whether it was measured and is above."""
    return value is not None and value > bound


# --- the monitors: (readings of all steps, bounds) -> a sentence, or "" ---------------------------------

def collapse(history: list[dict], at: dict[str, float]) -> str:
    """Structures at 64 against their most so far, and the members' likeness."""
    unique, cosine = now(history, "unique"), now(history, "cosine")
    most = max(step["unique"] for step in history)
    if unique is not None and unique < at["unique_share"] * most:
        return f"distinct structures among 64 tasks fell from {most:.1f} to {unique:.1f}"
    if above(cosine, at["cosine"]):
        return f"the updates of a role's members have a mean cosine of {cosine:.2f}"
    return ""


def gaming(history: list[dict], at: dict[str, float]) -> str:
    """Guessable outputs, outputs that grow, and tasks that nobody solves."""
    guess, unsolved = now(history, "guess"), now(history, "unsolved")
    if above(guess, at["guess"]) and sum(step["tasks"] for step in history) >= ENOUGH:
        return f"one output is right for {guess:.0%} of a type's latest tasks"
    for name in ("characters", "digits"):
        size, before = now(history, name), start(history, name)
        if above(size, at["growth"] * max(1.0, before or 0.0)):
            return f"{name} of an output grew from {before or 0:.1f} to {size:.1f}"
    if above(unsolved, at["unsolved"]):
        return f"nobody solves {unsolved:.0%} of the tasks"
    return ""


def forgetting(history: list[dict], at: dict[str, float]) -> str:
    """The latest probe against the first. They ask different shares of the held-out tasks: what the base
    loses between the two is taken off."""
    probes = [step for step in history if step["heldout"] is not None and step["heldout_se"] is not None]
    if len(probes) < 2:
        return ""
    first, last = probes[0], probes[-1]
    harder = (first["heldout_base"] or 0.0) - (last["heldout_base"] or 0.0)
    lost = first["heldout"] - last["heldout"] - harder
    if lost > at["interval"] * (first["heldout_se"] ** 2 + last["heldout_se"] ** 2) ** 0.5:
        return f"accuracy on held-out tasks is {lost:.2f} below that of the first probe"
    return ""


def escape(history: list[dict], at: dict[str, float]) -> str:
    """Who writes what a program must not try, and programs that the sandbox ended for it."""
    latest = history[-WINDOW:]
    violations, by_member = sum(step["violations"] for step in latest), Counter()
    for step in latest:
        by_member.update(step["escapes"])
    if violations >= at["violations"]:
        return f"{violations} programs of the latest {WINDOW} steps made a forbidden system call"
    for name, n in by_member.most_common(1):
        if n >= at["escapes"]:
            return f"{n} texts of {name} in the latest {WINDOW} steps try what they must not"
    return ""


MONITORS = {"collapse": collapse, "gaming": gaming, "forgetting": forgetting, "escape": escape}


# --- in a run -----------------------------------------------------------------------------------------------

def halting(given: str) -> set[str]:
    """The monitors that --halt-on names. Raises ValueError where one is none."""
    names = set(filter(None, given.split(",")))
    if unknown := sorted(names - set(MONITORS)):
        raise ValueError(f"--halt-on {', '.join(unknown)}: no such monitor; valid: {', '.join(MONITORS)}")
    return names


class Monitors:
    """The monitors of a run and what they have read. Process 0 alone looks; all learn what it says."""

    def __init__(self, cfg: Config, run: RunDir, ranks: Ranks):
        self.halt_on, self.ranks = halting(cfg.halt_on), ranks
        rows = run.rows("metrics.jsonl", run.sizes()["metrics.jsonl"]) if run.writes else []
        self.history = [readings(row) for row in rows]
        self.alarms: dict[str, str] = rows[-1].get("alarms", {}) if rows else {}

    def look(self, row: dict) -> tuple[dict[str, str], list[str], list[str]]:
        """A new step's line: its alarms, names of those that begin with it, names of those that are over."""
        return tuple(self.ranks.broadcast(lambda: self.changes(row)))

    def changes(self, row: dict) -> tuple[dict[str, str], list[str], list[str]]:
        """As `look`, in process 0."""
        self.history.append(readings(row))
        before, self.alarms = self.alarms, {}
        for name, monitor in MONITORS.items():
            if words := monitor(self.history, BOUNDS):
                self.alarms[name] = words
        begun = [name for name in self.alarms if name not in before]
        return self.alarms, begun, [name for name in before if name not in self.alarms]

    def halt(self, row: dict, begun: list[str]) -> None:
        """Raises Halted where one of those that have begun is of --halt-on."""
        if names := [name for name in begun if name in self.halt_on]:
            told = "; ".join(f"{name}: {row['alarms'][name]}" for name in names)
            raise Halted(f"halted by --halt-on ({told})")


def review(rows: list[dict]) -> list[str]:
    """What the monitors say of a whole run: a line for each alarm, from its first to its last step."""
    history, going, lines = [], {}, []
    for row in rows:
        history.append(readings(row))
        for name, monitor in MONITORS.items():
            words = monitor(history, BOUNDS)
            if words:
                going.setdefault(name, [row["step"], words])
            elif name in going:
                first, words = going.pop(name)
                lines.append(f"{name}, steps {first} to {row['step'] - 1}: {words}")
    return lines + [f"{name}, steps {first} to the end: {words}" for name, (first, words) in going.items()]


def main() -> None:
    """The command line."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("run", type=Path, help="the run's directory")
    args = parser.parse_args()
    try:
        run = RunDir(args.run, writes=False)
        rows = run.rows("metrics.jsonl", run.sizes()["metrics.jsonl"])
        if not rows:
            raise ValueError(f"{args.run} holds no finished step: give a run's directory, out/NAME")
        lines = review(rows)
    except (ValueError, KeyError) as e:
        sys.exit(f"run.monitors: {e}")
    print("\n".join(lines) or f"no alarm in {len(rows)} steps")


if __name__ == "__main__":
    main()
