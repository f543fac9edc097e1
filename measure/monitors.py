"""Drift is noticed: six monitors read every step's line of metrics.jsonl (docs/advanced/drift.md).

An alarm is a monitor's name and a sentence, in the line's `alarms`, and a line on the terminal when it begins
and when it is over. --halt-on NAMES ends the run when one of these begins; resumed, the run goes on.
"""
from config import ALARMS
from evolve import ROLES
from infra.errors import Interrupted
from selfplay import mean

WINDOW = 5                  # steps: "now" is a mean over the latest, "the start" over the first
ENOUGH = 64                 # gaming: valid tasks before the commonest output can mean anything; format: texts
EXIT_HALTED = 3             # exit code of a run that --halt-on ended
# What is alarming; docs/advanced/drift.md says whence.
UNIQUE_SHARE = 0.5          # collapse: distinct structures among 64 of the latest tasks, of their most so far
LIKENESS = 0.9              # collapse: mean cosine of the updates of a role's members
GUESSABLE = 0.3             # gaming: share of a type's tasks for which its most frequent output is right
GROWTH = 2.5                # gaming: an output's characters, or its longest number's digits, of the start
UNSOLVED = 0.5              # gaming: share of the valid tasks that nobody solves
INTERVAL = 1.96             # forgetting: standard errors of held-out accuracy below the first probe
VIOLATIONS = 1              # escape: programs in 5 steps that the sandbox ended for a forbidden system call
MISSHAPEN = 0.95            # format: share of the latest proposals, or of the answers, that could not be read
# Reasons of proposals that are not in the demanded format.
UNREADABLE = ("no_program", "no_input", "few_inputs", "no_question", "syntax")
# What to turn where rewards are all equal: of a role, or within every group.
WAYS_OUT = dict(
    teacher="lower --lr-teacher if proposals were better before, else raise --temperature or "
            "--max-new-tokens, or take another --teacher-reward",
    student="lower --lr if answers were better before, else raise --temperature or --max-new-tokens, or "
            "take another --student-reward",
    group="raise --samples-per-task, --proposals-per-prompt or --temperature")


class Halted(Interrupted):
    """An alarm of --halt-on has begun; the step in which it did is finished and in the logs."""


def highest_cosine(members: dict[str, dict]) -> float | None:
    """The mean cosine of the updates of a role's members, of the role where it is highest."""
    by_role = {}
    for member in members.values():
        by_role.setdefault(member["role"], []).append(member.get("cosine"))
    means = []
    for cosines in by_role.values():
        measured = mean(cosines)
        if measured is not None:
            means.append(measured)
    return max(means, default=None)


def readings(row: dict) -> dict:
    """What the monitors keep of a step's line of metrics.jsonl; None = not measured."""
    n_answers = 0
    for member in row["members"].values():
        if member["role"] == "student":
            n_answers += member.get("n", 0)
    n_unreadable = 0
    for reason in UNREADABLE:
        n_unreadable += row["reasons"].get(reason, 0)
    return dict(
        tasks=row["n"] * (row["valid"] or 0.0),
        unique=row["unique_at_64"],
        cosine=highest_cosine(row["members"]),
        guess=max(row["majority_baseline"].values(), default=None),
        unsolved=row["solve_0"],
        characters=row["output_chars"],
        digits=row["output_digits"],
        heldout=mean(row.get("heldout_greedy", {}).values()),
        heldout_se=row.get("heldout_greedy_se"),
        violations=row["violations"],
        equal=row.get("equal_rewards", {}),
        idle=row["frac_zero_advantage"] == 1,
        proposals=row["n"],
        bad_proposals=n_unreadable,
        answers=n_answers,
        bad_answers=row["malformed"] * n_answers)


def now(history: list[dict], name: str) -> float | None:
    """Mean of a reading over the latest steps; None of a shorter run, or where it was not measured."""
    if len(history) < WINDOW:
        return None
    return mean(step[name] for step in history[-WINDOW:])


def collapse(history: list[dict]) -> str:
    """Structures at 64 against their most so far, and the members' likeness."""
    unique = now(history, "unique")
    cosine = now(history, "cosine")
    most = max(step["unique"] for step in history)
    if unique is not None and unique < UNIQUE_SHARE * most:
        return f"distinct structures among 64 tasks fell from {most:.1f} to {unique:.1f}"
    if cosine is not None and cosine > LIKENESS:
        return f"the updates of a role's members have a mean cosine of {cosine:.2f}"
    return ""


def gaming(history: list[dict]) -> str:
    """Guessable outputs, outputs that grow, and tasks that nobody solves."""
    guess = now(history, "guess") or 0.0
    unsolved = now(history, "unsolved") or 0.0
    if guess > GUESSABLE and sum(step["tasks"] for step in history) >= ENOUGH:
        return f"one output is right for {guess:.0%} of a type's latest tasks"
    for name in ("characters", "digits"):
        size = now(history, name) or 0.0
        before = now(history[:WINDOW], name) or 0.0             # at the start
        if size > GROWTH * max(1.0, before):
            return f"{name} of an output grew from {before:.1f} to {size:.1f}"
    if unsolved > UNSOLVED:
        return f"nobody solves {unsolved:.0%} of the tasks"
    return ""


def forgetting(history: list[dict]) -> str:
    """The latest probe against the first, which asked the same tasks."""
    probes = []
    for step in history:
        if step["heldout_se"] is not None:
            probes.append(step)
    if len(probes) < 2:
        return ""
    first, last = probes[0], probes[-1]
    lost = first["heldout"] - last["heldout"]
    error = (first["heldout_se"] ** 2 + last["heldout_se"] ** 2) ** 0.5
    if lost > INTERVAL * error:
        return f"accuracy on held-out tasks is {lost:.2f} below that of the first probe"
    return ""


def escape(history: list[dict]) -> str:
    """Programs that the sandbox ended for a forbidden system call."""
    n = sum(step["violations"] for step in history[-WINDOW:])
    if n >= VIOLATIONS:
        return f"{n} programs of the latest {WINDOW} steps made a forbidden system call"
    return ""


def flat(history: list[dict]) -> str:
    """Rewards that teach nothing: all of a role equal, or all of every group, in each of the latest steps."""
    latest = history[-WINDOW:]
    if len(latest) < WINDOW:
        return ""
    for role in ROLES:
        paid = [step["equal"].get(role) for step in latest]
        if None not in paid:
            way_out = WAYS_OUT.get(role, "take another reward")
            return (f"all rewards of {role}s were equal for {WINDOW} steps, the latest {paid[-1]:g}: they "
                    f"learn nothing. Look at what they write (--show 3); {way_out}")
    if all(step["idle"] for step in latest):
        return (f"every advantage was 0 for {WINDOW} steps: rewards differ in no group, and nobody learns; "
                f"{WAYS_OUT['group']}")
    return ""


def misshapen(history: list[dict], what: str) -> float | None:
    """Share of the latest ENOUGH proposals or answers, of whole steps, that could not be read; None of
    fewer."""
    n, n_bad = 0, 0
    for step in reversed(history):
        n += step[what]
        n_bad += step[f"bad_{what}"]
        if n >= ENOUGH:
            return n_bad / n
    return None


def wrong_format(history: list[dict]) -> str:
    """A base that does not keep to the format that its prompts demand: there is nothing to pay it for."""
    for what in ("proposals", "answers"):
        share = misshapen(history, what)
        if share is not None and share >= MISSHAPEN:
            return (f"{share:.0%} of the latest {what} are not in the demanded format. Look at them (--show "
                    "3); take another --prompt-format (direct for a small chat model, base for one without "
                    "chat training), raise --max-new-tokens where they are cut off, or take another --base")
    return ""


MONITORS = dict(zip(ALARMS, (collapse, gaming, forgetting, escape, flat, wrong_format)))


class Monitors:
    """The monitors of a run and what they have read."""

    def __init__(self, rows: list[dict] = ()):
        self.history = list(map(readings, rows))
        self.alarms: dict[str, str] = {}        # name -> sentence, of those that sound now
        if rows:
            self.alarms = rows[-1].get("alarms", {})

    def look(self, row: dict) -> tuple[dict[str, str], list[str], list[str]]:
        """A new step's line: its alarms, names of those that begin with it, and what the terminal says."""
        self.history.append(readings(row))
        before, self.alarms = self.alarms, {}
        begun, notes = [], []
        for name, monitor in MONITORS.items():
            sentence = monitor(self.history)
            if sentence:
                self.alarms[name] = sentence
                if name not in before:
                    begun.append(name)
                    notes.append(f"alarm {name}: {sentence}")
        for name in before:
            if name not in self.alarms:
                notes.append(f"alarm {name} is over")
        return self.alarms, begun, notes
