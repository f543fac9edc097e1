"""What is told of a run: the step's line of metrics.jsonl, its one line on the terminal, the last words."""
from collections import Counter

import torch

import selfplay
from evolve import ROLES, Member, learning_rates, members_of
from infra.gpu import memory
from operators import adapter_cosines
from rewards import NOISE_MARGIN
from rl import Batch
from run.checkpoint import State
from selfplay import ProposalRecord, Setup, mean, solve_rate
from tasks.base import UNJUDGED, VIOLATION
from tasks.escapes import attempts
from tasks.prompts import reasoning

# --- metrics.jsonl ------------------------------------------------------------------------------------------

# What is told of rl.update; clip_frac and approx_kl exist from two epochs on.
GAP = tuple(f"train_rollout_logprob_{name}" for name in ("diff", "signed", "p50", "p99", "max"))
OF_UPDATE = ("kl", "entropy", *GAP, "capped_frac", "clip_frac", "approx_kl", "skipped")
N_COMPARED = 64                     # members whose updates are all compared with each other


def describe(proposed: list[ProposalRecord]) -> dict:
    """What one group of proposals looks like: validity by reason, solve rate, reward, complexity."""
    valid = [p for p in proposed if p.task]
    rates = [p.solve_rate for p in valid if p.solve_rate is not None]
    sizes, outputs = [p.complexity for p in valid], [p.output_size for p in valid]
    verdicts = Counter(verdict for p in valid for verdict in p.verdicts)
    return dict(
        n=len(proposed),
        valid=len(valid) / len(proposed) if proposed else None,
        reasons=dict(Counter(p.reason for p in proposed if p.reason)),
        teacher_reward=mean(p.reward for p in proposed),
        solve_rate=mean(rates),
        solve_0=mean(float(rate == 0) for rate in rates),
        solve_1=mean(float(rate == 1) for rate in rates),
        malformed=verdicts["malformed"] / max(1, verdicts.total()),
        complexity={name: mean(size[name] for size in sizes) for name in sizes[0]} if sizes else {},
        duplicates=mean(float(p.reason == "duplicate") for p in proposed),
        distinct=len({p.key for p in valid}) / len(valid) if valid else None,
        output_chars=mean(chars for chars, _ in outputs),
        output_digits=mean(digits for _, digits in outputs))


def reasoning_lengths(proposed: list[ProposalRecord], prompt_format: str) -> dict[str, list[int]]:
    """Characters of reasoning in each text of the step, by who wrote it; 0 = it answers at once."""
    lengths = {}
    for p in proposed:
        for name, texts in [(p.teacher.name, [p.text]), *p.answers.items()]:
            lengths.setdefault(name, []).extend(len(reasoning(text, prompt_format)) for text in texts)
    return lengths


def escape_attempts(proposed: list[ProposalRecord], prompt_format: str) -> tuple[Counter, Counter]:
    """Texts of the step whose programs try what one must not, by who wrote them; and what they try, by name:
    what reading finds (tasks.escapes), and the violations that the sandbox ended."""
    by_member, by_what = Counter(), Counter()
    for p in proposed:
        said = [(p.teacher.name, p.text, p.reason)]
        for name, texts in p.answers.items():
            said += [(name, text, verdict) for text, verdict in zip(texts, p.attempts[name], strict=True)]
        for name, text, fate in said:
            tried = attempts(text, prompt_format)
            if fate == VIOLATION:
                tried.append(VIOLATION)
            by_what.update(tried)
            by_member[name] += bool(tried)
    return by_member, by_what


def share_that_think(lengths: list[int]) -> float | None:
    """Share of texts that show reasoning before they answer."""
    return mean(float(length > 0) for length in lengths)


def measures(setup: Setup, state: State, proposed: list[ProposalRecord], update: dict, batch: Batch,
             adv: torch.Tensor, matches: list[dict]) -> dict:
    """The step's line of metrics.jsonl, except probes and seconds: overall, per task type and per member."""
    archive, by_kind = state.archive, {kind: [] for kind in setup.task_types}
    for p in proposed:
        by_kind[p.kind].append(p)
    baseline = {kind: archive.modal_output(kind)[1] for kind in setup.task_types}
    solved = [p for p in proposed if p.solve_rate is not None]
    tried_by, tried = escape_attempts(proposed, setup.base.prompt_format)
    lucky = {kind: share + NOISE_MARGIN for kind, share in baseline.items()}
    lengths = reasoning_lengths(proposed, setup.base.prompt_format)
    of_students = []
    for student in members_of(state.members, "student"):
        of_students += lengths.get(student.name, [])
    return dict(
        **describe(proposed),
        task_types={kind: describe(some) for kind, some in by_kind.items()},
        members=member_measures(setup, state, proposed, update, batch, adv, matches, lengths, tried_by),
        unique_structures=len(archive.structures),
        unique_at_64=archive.unique_at_64(),
        majority_baseline=baseline,
        beats_guessing=mean(float(p.solve_rate > lucky[p.kind]) for p in solved),
        think=share_that_think(of_students),
        brier=mean(match["brier"] for match in matches),
        frac_zero_advantage=(adv == 0).float().mean().item(),
        **{name: update[name] for name in OF_UPDATE if name in update} | unmeasured(setup.cfg),
        escapes=dict(tried),
        sandbox_failures=sum(p.reason == "sandbox_failure" for p in proposed)
        + sum(p.verdicts.count(UNJUDGED) for p in proposed),
        tokens_generated=state.totals["generated"],
        tokens_trained=state.totals["trained"],
        **memory(setup.ranks.device))


def unmeasured(cfg) -> dict[str, None]:
    """What the update computes only where its coefficient is not 0."""
    return {name: None for name in ("kl", "entropy") if getattr(cfg, f"{name}_coef") == 0}


def mean_cosines(setup: Setup, members: list[Member], step: int) -> dict[str, float | None]:
    """Of each member the mean of its dW's cosines with the others of its role, by name; of more members than
    N_COMPARED with those of a group drawn for the step: all pairs of a thousand cost minutes."""
    groups, cosine = [members], {}
    if len(members) > N_COMPARED:
        groups = []
        for number, role in enumerate(ROLES):
            own = members_of(members, role)
            selfplay.make_rng(setup.cfg.seed, step, selfplay.PROBE, -1, number).shuffle(own)
            n_groups = -(-2 * len(own) // N_COMPARED)
            groups += [own[i::n_groups] for i in range(n_groups)]
    for group in groups:
        place = {slot: i for i, slot in enumerate(sorted({m.slot for m in group}))}
        cosines = adapter_cosines([setup.adapters.factors(slot) for slot in place])
        for m in group:
            others = [place[other.slot] for other in members_of(group, m.role) if other is not m]
            cosine[m.name] = mean(cosines[place[m.slot], other].item() for other in others)
    return cosine


def member_measures(setup: Setup, state: State, proposed: list[ProposalRecord], update: dict, batch: Batch,
                    adv: torch.Tensor, matches: list[dict], lengths: dict[str, list[int]],
                    tried_by: Counter) -> dict[str, dict]:
    """What the step was for each member, by name; of those that had no match with --matches, the rating.
    cosine: see mean_cosines; lengths: those of reasoning_lengths; tried_by: those of escape_attempts."""
    names = {name for match in matches for name in (match["teacher"], match["student"])}
    told = [m for m in state.members if m.name in names or not setup.cfg.matches]
    cosines, rollout = mean_cosines(setup, told, state.step), batch.rollout
    members = {m.name: dict(role=m.role, mu=m.rating.mu, sigma=m.rating.sigma) for m in state.members}
    cfg = setup.cfg
    rates = learning_rates(cfg, state.members, state.step)
    for m in state.members:
        members[m.name] |= m.traits()
        if cfg.lr_decay or cfg.lr_spread > 1 or cfg.lr_mutate > 1:
            members[m.name]["lr"] = rates[m.slot]
    proposals, attempts = {}, {}                                        # by who wrote them
    for p in proposed:
        proposals.setdefault(p.teacher.name, []).append(p)
        for name, verdicts in p.attempts.items():
            attempts.setdefault(name, []).extend(verdicts)
    for m in told:
        rows = (rollout.member == m.slot) & (batch.role == ROLES.index(m.role))
        n_tokens, said = rollout.n_tokens[rows], lengths.get(m.name, [])
        members[m.name] |= dict(
            reward=mean(batch.reward[rows].tolist()),
            response_tokens=mean(n_tokens.tolist()),
            adv_abs=mean(adv[rows].abs().tolist()),
            entropy=-rollout.logp[rows].sum().item() / max(1, n_tokens.sum().item()),
            grad_norm=update["grad_norm"][m.slot],
            cosine=cosines[m.name],
            think=share_that_think(said),
            reasoning_chars=mean(said),
            escapes=tried_by[m.name])
        if m.role == "teacher":
            own = describe(proposals.get(m.name, []))
            del own["teacher_reward"]                                   # is its `reward`
            members[m.name] |= own
        else:
            verdicts = attempts.get(m.name, [])
            members[m.name] |= dict(n=len(verdicts), solve_rate=solve_rate(verdicts))
    return members


# --- the terminal -------------------------------------------------------------------------------------------

N_BORN = 8                          # names of children on a line, at most


def columns() -> list[tuple[str, int]]:
    """Names and widths of what `line` shows."""
    best = [(f"best {role[0].upper()}", 12) for role in ROLES]
    return [("step", 5), ("valid", 6), ("statements", 10), ("solve", 6), ("base", 6), ("heldout", 7),
            ("greedy", 7), ("think", 6), ("reward", 6), ("unique", 6), *best, ("sec", 6)]


def header() -> str:
    """Names over the columns of `line`."""
    return " ".join(name.rjust(width) for name, width in columns())


def two_digits(x: float | None) -> str:
    """A measure on the terminal; a dash where nothing was measured."""
    return "-" if x is None else f"{x:.2f}"


def best_of(row: dict, role: str) -> str:
    """Name and rating of the role's member with the highest rating."""
    mu, name = max((m["mu"], name) for name, m in row["members"].items() if m["role"] == role)
    return f"{name} {mu:.1f}"


def line(row: dict) -> str:
    """One aligned line from the dict that goes to metrics.jsonl."""
    heldout = [mean(row.get(f"heldout_{how}", {}).values()) for how in ("sampled", "greedy")]
    measured = [row["valid"], row["complexity"].get("statements"), row["solve_rate"], row.get("base_solve"),
                *heldout, row["think"], row["teacher_reward"]]
    cells = [str(row["step"]), *map(two_digits, measured), str(row["unique_structures"]),
             *(best_of(row, role) for role in ROLES), f"{sum(row['seconds'].values()):.1f}"]
    notes = []
    if row["births"]:
        more = len(row["births"]) - N_BORN
        notes.append("born " + " ".join(row["births"][:N_BORN]) + (f" and {more} more" if more > 0 else ""))
    if row["skipped"]:
        notes.append(f"skipped slots {row['skipped']}")
    if row["sandbox_failures"]:
        notes.append(f"{row['sandbox_failures']} left out: the sandbox failed")
    aligned = " ".join(cell.rjust(width) for cell, (_, width) in zip(cells, columns(), strict=True))
    return aligned + ("  " + ", ".join(notes) if notes else "")


# --- last words ---------------------------------------------------------------------------------------------

# What the last words compare, by its key of metrics.jsonl; statements are below "complexity".
COMPARED = {"statements": "statements per task",
            "valid": "share of proposals that are valid",
            "think": "share of the students' answers that think",
            "solve_rate": "the students' solve rate on the teachers' current tasks",
            "base_solve": "  of which at the probes: the frozen base's solve rate on these tasks",
            "student_solve": "  of which at the probes: the students' solve rate on the same tasks"}


def summary(rows: list[dict]) -> str:
    """What rose and fell between the first and the last twentieth of a run, in words."""
    n = max(1, len(rows) // 20)
    first, last = rows[:n], rows[-n:]
    out = [f"first {n} against last {n} of {len(rows)} steps "
           "(ratings are relative and say nothing about progress):"]
    for key, what in COMPARED.items():
        before, after = (mean((row | row["complexity"]).get(key) for row in some) for some in (first, last))
        if before is None or after is None:
            continue
        if round(before, 2) == round(after, 2):
            out.append(f"  {what} stayed at {after:.2f}")
        else:
            out.append(f"  {what} {'rose' if after > before else 'fell'} from {before:.2f} to {after:.2f}")
    out += discovery_words(rows)
    out += probe_words([row for row in rows if row.get("heldout_greedy")])
    out += alarm_words(rows)
    n_born = sum(len(row["births"]) for row in rows)
    out.append(f"  {rows[-1]['unique_structures']} distinct program structures, {n_born} members replaced, "
               f"{rows[-1]['tokens_generated']:,} tokens generated, {rows[-1]['tokens_trained']:,} trained")
    return "\n".join(out)


def discovery(rows: list[dict]) -> tuple[int | None, int | None]:
    """The first step in which one student thinks in most of its answers, and in which all do, or None."""
    first = everybody = None
    for row in rows:
        shares = [m.get("think") for m in row["members"].values() if m["role"] == "student"]
        most = [share > .5 for share in shares if share is not None]
        if any(most) and first is None:
            first = row["step"]
        if most and all(most) and everybody is None:
            everybody = row["step"]
    return first, everybody


def discovery_words(rows: list[dict]) -> list[str]:
    """When thinking was discovered, in words."""
    first, everybody = discovery(rows)
    if first is None:
        return ["  no student thinks in most of its answers"]
    if first == rows[0]["step"]:
        return []                                       # a base that thinks by itself has nothing to discover
    return [f"  first step in which one student thinks in most of its answers: {first}; in which all do: "
            f"{'none' if everybody is None else everybody}"]


def alarm_words(rows: list[dict]) -> list[str]:
    """When which monitor gave alarm, in words."""
    steps = {}
    for row in rows:
        for name in row.get("alarms", {}):
            steps.setdefault(name, []).append(row["step"])
    return [f"  alarm {name} in {len(some)} steps, the first {some[0]}, the last {some[-1]}"
            for name, some in steps.items()]


def probe_words(probes: list[dict]) -> list[str]:
    """What the first and the last probe say of held-out tasks, a line a measure."""
    if len(probes) < 2:
        return []
    first, last = probes[0], probes[-1]
    out = []
    for how, words in (("greedy", "greedily decoded"), ("sampled", "at the run's temperature")):
        before, after = (mean(row.get(f"heldout_{how}", {}).values()) for row in (first, last))
        if before is None or after is None:
            continue                            # the run's own first tasks: probed later
        error = last.get("heldout_greedy_se") if how == "greedy" else None
        spread = f" (standard error {error:.3f})" if error else ""
        out.append(f"  the students' accuracy on held-out tasks, {words}: "
                   f"{before:.2f} at step {first['step']}, {after:.2f} at step {last['step']}{spread}")
    for kind, at_first in first.get("unseen", {}).items():
        told = unseen_words(last.get("unseen", {}).get(kind, {}))
        if told and "base" in at_first:
            out.append(f"  unseen task type {kind}, greedily decoded: "
                       f"frozen base {at_first['base']:.2f}, {told}")
    return out


def unseen_words(accuracy: dict[str, float]) -> str:
    """Mean accuracy of each role, students first, from that of each member by name."""
    told = []
    for role in reversed(ROLES):
        own = [value for name, value in accuracy.items() if name.startswith(role[0].upper())]
        if own:
            told.append(f"{role}s {mean(own):.2f}")
    return ", ".join(told)
