"""What people study of a run: probes, the measures of a step, alarms, and what the terminal says.

Ratings only compare members with each other. A probe asks the same tasks each time, greedily. Students and
base get the held-out tasks of the types that the run plays, all members and the base those of other types.
The base also gets the teachers' current tasks, sampled.
"""
import datetime
import sys
from collections import Counter
from collections.abc import Iterable

import torch

from common import visible
from evolve import ROLES, learning_rates, members_of
from operators import adapter_cosines
from rewards import NOISE_MARGIN
from rl import Batch
from run import State
from selfplay import BASE_RATE, PROBE, ProposalRecord, Setup, attempt, make_rng, solve_rate
from tasks.base import UNJUDGED, Task
from tasks.prompts import reasoning

BASE = "base"                       # the frozen base's name among the members
WINDOW = 5                          # steps: "now" is a mean over the latest
N_TRIAL = 24                        # tasks of a type that a child and its victim attempt
ENOUGH = 64                         # tasks or texts of which a share means something
# Bounds of alarms; docs/runs.md says whence they come.
UNIQUE_SHARE = 0.5                  # collapse: distinct structures among 64 tasks, of their most so far
UNSOLVED = 0.5                      # gaming: share of the valid tasks that nobody solves
GUESSABLE = 0.3                     # gaming: share of a type's tasks for which its commonest output is right
MISSHAPEN = 0.95                    # format: share of the latest texts that could not be read
# Reasons of proposals that are not in the demanded format.
UNREADABLE = ("no_program", "no_input", "few_inputs", "no_question", "syntax")


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if there are none, since JSON has no nan."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return sum(known) / len(known)


def thinks(s: Setup, text: str) -> bool:
    """Returns whether an answer shows reasoning."""
    return bool(reasoning(text, s.base.prompt_format))


# --- probes -------------------------------------------------------------------------------------------------

def ask_greedily(
    s: Setup,
    slots: dict[str, int],              # name -> slot
    tasks: list[Task],
    step: int,
) -> tuple[dict[str, list], dict[str, list], int]:
    """Lets each member attempt each task once, greedily, in one batch. Returns two lists by name with an
    entry a task, and the number of tokens. The lists say whether an answer is right (1, 0; None if the
    sandbox failed) and whether it shows reasoning."""
    asked, stride = list(slots.values()), len(tasks)        # rows from one member's first to the next one's
    if not any(map(torch.any, s.adapters.B.values())):
        asked, stride = [-1], 0          # fresh members are the base, bit for bit: it alone is asked
    by_row = []
    for slot in asked:
        by_row += [slot] * len(tasks)
    done = attempt(s, tasks * len(asked), by_row, step, PROBE, 1, 0.0)
    correct, thought = {}, {}
    for i, name in enumerate(slots):
        own = slice(i * stride, i * stride + len(tasks))
        correct[name] = list(map(solve_rate, done.verdicts[own]))
        thought[name] = [thinks(s, text) for (text,) in done.texts[own]]
    return correct, thought, int(done.rollout.n_tokens.sum())


def trial(s: Setup, state: State, slot: int, key: tuple[int, ...]) -> int:
    """Returns how many of N_TRIAL tasks of each type from the archive, drawn by `key`, a member solves."""
    rng, tasks = make_rng(*key), []
    for kind in s.cfg.task_types:
        tasks += state.archive.references(kind, N_TRIAL, rng)
    correct, _, n_tokens = ask_greedily(s, {"": slot}, tasks, state.step)
    state.totals["generated"] += n_tokens
    return correct[""].count(1)


def by_type(tasks: list[Task], columns: dict[str, list]) -> dict[str, dict[str, float | None]]:
    """Returns task type -> name -> mean of what its column has for the tasks of this type."""
    kinds = [task.kind for task in tasks]
    table = {}
    for kind in sorted(set(kinds)):
        table[kind] = {}
        for name, own in columns.items():
            table[kind][name] = mean(x for x, other in zip(own, kinds) if other == kind)
    return table


def probe(s: Setup, state: State, proposed: list[ProposalRecord], step: int) -> dict:
    """Returns what a probe measures, as keys of metrics.jsonl. There is a probe every --probe-every
    steps and in the last one; {} in other steps."""
    every = s.cfg.probe_every
    if every == 0 or step % every and step != s.cfg.steps - 1:
        return {}
    students, everybody = {BASE: -1}, {BASE: -1}            # name -> slot
    for m in state.members:
        everybody[m.name] = m.slot
        if m.role == "student":
            students[m.name] = m.slot
    row = dict(probe_tokens=0)
    if state.heldout:
        correct, _, n_tokens = ask_greedily(s, students, state.heldout, step)
        row["probe_tokens"] += n_tokens
        row["heldout_n"] = len(state.heldout)
        row["heldout_greedy_base"] = mean(correct.pop(BASE))
        row["heldout_greedy"] = dict(zip(correct, map(mean, correct.values())))
    if state.unseen:
        correct, thought, n_tokens = ask_greedily(s, everybody, state.unseen, step)
        row["probe_tokens"] += n_tokens
        row["unseen"] = by_type(state.unseen, correct)
        row["unseen_think"] = by_type(state.unseen, thought)
        row["unseen_n"] = Counter(task.kind for task in state.unseen)
    valid = [p for p in proposed if p.task]
    if valid:
        done = attempt(s, [p.task for p in valid], [-1] * len(valid), step, BASE_RATE, 1)
        row["probe_tokens"] += int(done.rollout.n_tokens.sum())
        for p, verdicts in zip(valid, done.verdicts):
            p.base_rate = solve_rate(verdicts)
        row["base_solve"] = mean(p.base_rate for p in valid)
    return row


def heldout_mean(row: dict) -> float | None:
    """Returns the students' mean accuracy on held-out tasks in a line of metrics.jsonl; None without a
    probe."""
    return mean(row.get("heldout_greedy", {}).values())


def best_probe(rows: list[dict]) -> float:
    """Returns the highest heldout_mean of these lines; -1 without a probe."""
    highest = -1.0
    for row in rows:
        accuracy = heldout_mean(row)
        if accuracy is not None:
            highest = max(highest, accuracy)
    return highest


# --- a step's measures --------------------------------------------------------------------------------------

def describe(proposed: list[ProposalRecord]) -> dict:
    """Returns what one group of proposals looks like: validity by reason, solve rate, reward, length."""
    reasons, verdicts = Counter(), Counter()
    rates, statements, complexity = [], [], {}          # of valid ones
    for p in proposed:
        if p.reason:
            reasons[p.reason] += 1
        if p.task:
            verdicts.update(p.verdicts)
            statements.append(p.statements)
            if p.solve_rate is not None:
                rates.append(p.solve_rate)
            for name, value in p.complexity.items():
                complexity.setdefault(name, []).append(value)
    n_answers = verdicts.total()
    return dict(
        n=len(proposed),
        valid=len(statements) / max(1, len(proposed)),
        reasons=reasons,
        teacher_reward=mean(p.reward for p in proposed),
        solve_rate=mean(rates),
        solve_0=rates.count(0) / max(1, len(rates)),
        solve_1=rates.count(1) / max(1, len(rates)),
        answers=n_answers,
        malformed=verdicts["malformed"] / max(1, n_answers),
        statements=mean(statements),
        complexity=dict(zip(complexity, map(mean, complexity.values()))))


def member_measures(
    s: Setup,
    state: State,
    proposed: list[ProposalRecord],
    batch: Batch,
    grad_norm: list[float],             # of each slot
) -> dict[str, dict]:
    """Returns what the step was for each member, by name."""
    rates = learning_rates(s.cfg, state.members, state.step)
    rollout = batch.rollout
    table = {}
    for number, role in enumerate(ROLES):
        members = members_of(state.members, role)
        cosines = adapter_cosines([s.adapters.factors(m.slot) for m in members]).tolist()       # (P, P)
        for i, m in enumerate(members):
            written, verdicts, texts = [], [], []
            for p in proposed:
                verdicts += p.attempts.get(m.name, [])
                texts += p.answers.get(m.name, [])
                if p.teacher is m:
                    written.append(p)
                    texts.append(p.text)
            own = (rollout.member == m.slot) & (batch.role == number)       # (N,)
            row = dict(
                role=role,
                mu=m.rating.mu,
                sigma=m.rating.sigma,
                lr=rates[m.slot],
                cosine=mean(cosines[i][:i] + cosines[i][i + 1:]),           # with the others of its role
                think=mean(thinks(s, text) for text in texts),
                reward=mean(batch.reward[own].tolist()),
                entropy=mean((-rollout.logp)[rollout.mask & own[:, None]].tolist()),
                grad_norm=grad_norm[m.slot])
            if role == "teacher":
                row |= describe(written)
            else:
                row["solve_rate"] = solve_rate(verdicts)
            table[m.name] = row
    return table


def measures(
    s: Setup,
    state: State,
    proposed: list[ProposalRecord],
    batch: Batch,
    adv: torch.Tensor,                  # (N,)
    update: dict,                       # what rl.update returned
) -> dict:
    """Returns what a step's line of metrics.jsonl says of the step: overall, by task type and by member."""
    archive = state.archive
    kinds, baseline = {}, {}
    for kind in s.cfg.task_types:
        kinds[kind] = describe([p for p in proposed if p.kind == kind])
        baseline[kind] = archive.majority_baseline(kind)
    beats_guessing, answers, n_failed = [], [], 0
    for p in proposed:
        n_failed += (p.reason == "sandbox_failure") + p.verdicts.count(UNJUDGED)
        for own in p.answers.values():
            answers += own
        if p.solve_rate is not None:
            beats_guessing.append(p.solve_rate > baseline[p.kind] + NOISE_MARGIN)
    return dict(
        **describe(proposed),
        train_rollout_logprob_diff=update["train_rollout_logprob_diff"],
        skipped=update["skipped"],
        task_types=kinds,
        members=member_measures(s, state, proposed, batch, update["grad_norm"]),
        unique_structures=len(archive.structures),
        unique_at_64=archive.unique_at_64(),
        majority_baseline=baseline,
        beats_guessing=mean(beats_guessing),
        think=mean(thinks(s, text) for text in answers),
        frac_zero_advantage=(adv == 0).float().mean().item(),
        sandbox_failures=n_failed,
        tokens_trained=state.totals["trained"])


def spent(rows: list[dict]) -> list[int]:
    """Returns the tokens generated by the end of each step, without those of probes, which train nobody."""
    out, probed = [], 0
    for row in rows:
        probed += row.get("probe_tokens", 0)
        out.append(row["tokens_generated"] - probed)
    return out


# --- alarms -------------------------------------------------------------------------------------------------

def latest_mean(rows: list[dict], name: str) -> float:
    """Returns the mean of a measure over the latest WINDOW steps; 0 in a shorter run."""
    if len(rows) < WINDOW:
        return 0.0
    return mean(row[name] for row in rows[-WINDOW:]) or 0.0


def collapse(rows: list[dict]) -> str:
    """Sounds when the tasks are all alike: structures among 64 tasks, against their most so far."""
    unique = latest_mean(rows, "unique_at_64")
    most = max(row["unique_at_64"] for row in rows)
    if len(rows) >= WINDOW and unique < UNIQUE_SHARE * most:
        return f"distinct structures among 64 tasks fell from {most:.1f} to {unique:.1f}"
    return ""


def gaming(rows: list[dict]) -> str:
    """Sounds when a teacher is paid for tasks that nobody solves, or whose output can be guessed."""
    unsolved = latest_mean(rows, "solve_0")
    if unsolved > UNSOLVED:
        return f"nobody solves {unsolved:.0%} of the tasks"
    guess = mean(max(row["majority_baseline"].values()) for row in rows[-WINDOW:])
    if len(rows) >= WINDOW and guess > GUESSABLE and rows[-1]["unique_structures"] > ENOUGH:
        return f"one output is right for {guess:.0%} of a type's latest tasks"
    return ""


def forgetting(rows: list[dict]) -> str:
    """Sounds when the students' mean accuracy at the latest probe is below that of the best probe so far. The
    bound is sqrt(1 / n) for n tasks, twice the largest standard error of a share."""
    probes = [row for row in rows if heldout_mean(row) is not None]
    if not probes:
        return ""
    best, last = best_probe(rows), heldout_mean(probes[-1])
    if best - last > probes[-1]["heldout_n"] ** -0.5:
        return f"accuracy on held-out tasks fell from {best:.2f}, at the best probe, to {last:.2f}"
    return ""


def flat(rows: list[dict]) -> str:
    """Sounds when rewards teach nothing: in each of the latest steps every advantage was 0."""
    if latest_mean(rows, "frac_zero_advantage") == 1:
        return (f"every advantage was 0 for {WINDOW} steps: rewards differ in no group and teach nobody. "
                "Look at what they write (--show 3); raise --samples-per-task, --proposals-per-prompt or "
                "--temperature")
    return ""


def wrong_format(rows: list[dict]) -> str:
    """Sounds when nearly all of the latest proposals, or answers, are not in the format that prompts demand:
    there is nothing to pay the base for."""
    n, n_bad = Counter(), Counter()
    for row in rows[-WINDOW:]:
        n["proposals"] += row["n"]
        n["answers"] += row["answers"]
        n_bad["answers"] += row["malformed"] * row["answers"]
        for reason in UNREADABLE:
            n_bad["proposals"] += row["reasons"].get(reason, 0)
    for what in n:
        if n[what] >= ENOUGH and n_bad[what] >= MISSHAPEN * n[what]:
            return (f"{n_bad[what] / n[what]:.0%} of the latest {what} are not in the demanded format. Look "
                    "at them (--show 3); take another --prompt-format (direct for a small chat model, base "
                    "for one without chat training), raise --max-new-tokens if they are cut off, or take "
                    "another --base")
    return ""


MONITORS = dict(
    collapse=collapse,
    gaming=gaming,
    forgetting=forgetting,
    flat=flat,
    format=wrong_format)


def alarms(rows: list[dict]) -> dict[str, str]:
    """Returns what is going wrong, by the run's lines of metrics.jsonl so far: name -> sentence
    (docs/runs.md)."""
    found = {}
    for name, monitor in MONITORS.items():
        sentence = monitor(rows)
        if sentence:
            found[name] = sentence
    return found


# --- the terminal -------------------------------------------------------------------------------------------

WIDTHS = dict(                      # of the columns, in characters
    step=5,
    valid=6,
    statements=10,
    solve=6,
    base=6,
    heldout=7,
    think=6,
    reward=6,
    unique=6)
for role in ROLES:
    WIDTHS[f"best {role[0].upper()}"] = 12
WIDTHS["sec"] = 6
HEADER = " ".join(name.rjust(width) for name, width in WIDTHS.items())


def line(row: dict) -> str:
    """Returns one aligned line of what goes to metrics.jsonl; a dash if something was not measured."""
    cells = [str(row["step"])]
    measured = [
        row["valid"],
        row["statements"],
        row["solve_rate"],
        row.get("base_solve"),
        heldout_mean(row),
        row["think"],
        row["teacher_reward"]]
    for x in measured:
        cells.append("-" if x is None else f"{x:.2f}")
    cells.append(str(row["unique_structures"]))
    for role in ROLES:
        own = [(m["mu"], name) for name, m in row["members"].items() if m["role"] == role]
        mu, name = max(own)
        cells.append(f"{name} {mu:.1f}")
    cells.append(f"{sum(row['seconds'].values()):.1f}")
    aligned = list(map(str.rjust, cells, WIDTHS.values()))
    for name in ("births", "skipped", "sandbox_failures"):              # what does not happen in every step
        if row[name]:
            aligned.append(f" {name.replace('_', ' ')}: {row[name]}")
    return " ".join(aligned)


def ends_about(rows: list[dict], n_left: int) -> str:
    """Returns when a run will end, by the mean seconds of these steps' lines."""
    seconds = mean(sum(row["seconds"].values()) for row in rows) * n_left
    end = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    return f"ends about {end:%H:%M on %d %B}"


def format_task(row: dict) -> str:
    """Returns one line of tasks.jsonl as text for people: who wrote what, who tried, what the verifier
    said."""
    fate = "not tried"
    if row["reason"]:
        fate = f"refused: {row['reason']}"
    elif row.get("solve_rate") is not None:
        fate = f"solved {row['solve_rate']:.2f}"
    if row["reward"] is not None:               # sample.py pays nobody
        fate += f", reward {row['reward']:.2f}"
    out = [f"  step {row['step']} {row['teacher']} {row['kind']}  {fate}"]
    for key in ("text", "message", "program"):
        if row.get(key):
            out.append(row[key])
    for given, result in zip(row.get("inputs", ()), row.get("outputs", ())):
        out.append(f"{given} -> {result}")
    for student, verdicts in row.get("attempts", {}).items():
        for verdict, text in zip(verdicts, row["answers"][student]):
            short = text.strip().replace("\n", " / ")[-160:]
            out.append(f"{student} {verdict}  {short}")
    return visible("\n".join(out)).replace("\n", "\n    ")


def tell(row: dict, tasks: list[dict], n_shown: int, begun: dict[str, str]) -> None:
    """Prints a step's line, n_shown of its tasks, valid ones first, and the alarms that begin."""
    print(line(row))
    for task in sorted(tasks, key=lambda task: bool(task["reason"]))[:n_shown]:
        print(format_task(task))
    for name, sentence in begun.items():
        print(f"alarm {name}: {sentence}")
    sys.stdout.flush()


def summary(rows: list[dict]) -> str:
    """Returns in words what the first, the best and the last probe of a run measured, and what it cost."""
    told, n_born, probes = "", 0, []
    for row in rows:
        n_born += len(row["births"])
        if heldout_mean(row) is not None:
            probes.append(heldout_mean(row))
    if probes:
        told = (f"of the held-out tasks students solve {probes[0]:.2f} at the first probe, "
                f"{max(probes):.2f} at the best, {probes[-1]:.2f} at the last\n")
    last = rows[-1]
    return (f"{told}{last['unique_structures']} distinct program structures, {n_born} members replaced, "
            f"{last['tokens_generated']:,} tokens generated, {last['tokens_trained']:,} trained")
