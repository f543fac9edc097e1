"""What is told of a run: the step's line of metrics.jsonl, its one line on the terminal, and the last words in plain English."""
import torch

from infra.checkpoint import State
from operators import adapter_cosines
from rl import Batch
from selfplay import Setup, describe, mean
from tasks.prompts import reasoning


def measures(setup: Setup, state: State, proposed: list, update: dict, batch: Batch, adv: torch.Tensor,
             matches: list[dict]) -> dict:
    """The step's line of metrics.jsonl, except probes and seconds: overall, per kind and per member."""
    archive, task_types = state.archive, setup.task_types
    guess = {kind: archive.modal_output(kind)[1] for kind in task_types}
    solved = [p for p in proposed if p.attempts]
    return dict(
        **describe(proposed), task_types={kind: describe([p for p in proposed if p.kind == kind]) for kind in task_types},
        members=member_measures(setup, state, proposed, update, batch, adv),
        unique_structures=len(archive.structures), unique_at_64=archive.unique_at_64(), majority_baseline=guess,
        beats_guessing=mean(float(p.solve_rate > guess[p.kind] + setup.cfg.noise_margin) for p in solved),
        think=mean(thinks(setup, text) for text in texts_of(solved)), brier=mean(m["brier"] for m in matches), frac_zero_advantage=(adv == 0).float().mean().item(),
        kl=update["kl"], entropy=update["entropy"], train_rollout_logprob_diff=update["train_rollout_logprob_diff"], skipped=update["skipped"],
        tokens_generated=state.totals["generated"], tokens_trained=state.totals["trained"])


def texts_of(proposed: list, student: str = "") -> list[str]:
    """All students' answers to these tasks, or those of one student."""
    return [text for p in proposed for name, texts in p.answers.items() for text in texts if student in ("", name)]


def thinks(setup: Setup, text: str) -> float:
    """1 where an answer shows reasoning before it answers, else 0."""
    return float(bool(reasoning(text, setup.base.prompt_format)))


def member_measures(setup: Setup, state: State, proposed: list, update: dict, batch: Batch, adv: torch.Tensor) -> dict[str, dict]:
    """What the step was for each member, by name; `cosine` is the mean of its dW's cosines with the others of its role."""
    cosines = adapter_cosines([setup.adapters.factors(p) for p in range(setup.adapters.n_members)])
    members, r = {}, batch.rollout
    for m in state.members:
        rows = (r.member == m.slot) & (batch.role == (m.role == "student"))
        others = [cosines[m.slot, o.slot].item() for o in state.members if o.role == m.role and o is not m]
        given = dict(role=m.role, mu=m.rating.mu, sigma=m.rating.sigma, reward=mean(batch.reward[rows].tolist()),
                     response_tokens=mean(r.n_tokens[rows].tolist()), adv_abs=mean(adv[rows].abs().tolist()),
                     entropy=-r.logp[rows].sum().item() / max(1, r.n_tokens[rows].sum().item()),
                     grad_norm=update["grad_norm"][m.slot], cosine=mean(others))
        texts = [p.text for p in proposed if p.teacher is m] if m.role == "teacher" else texts_of(proposed, m.name)
        given |= dict(think=mean(thinks(setup, text) for text in texts),
                      reasoning_chars=mean(len(reasoning(text, setup.base.prompt_format)) for text in texts))
        if m.role == "teacher":
            given |= {k: v for k, v in describe([p for p in proposed if p.teacher is m]).items() if k != "teacher_reward"}
        else:
            verdicts = [v for p in proposed for v in p.attempts.get(m.name, [])]
            given |= dict(n=len(verdicts), solve_rate=verdicts.count("correct") / len(verdicts) if verdicts else None)
        members[m.name] = given
    return members


COLUMNS = (("step", 5), ("valid", 6), ("statements", 10), ("solve", 6), ("base", 6), ("anchor", 7), ("greedy", 7), ("think", 6), ("reward", 6),
           ("unique", 6), ("best T", 12), ("best S", 12), ("sec", 6), ("", 0))


def header() -> str:
    """Names over the columns of `line`."""
    return " ".join(name.rjust(width) for name, width in COLUMNS).rstrip()


def line(row: dict) -> str:
    """One aligned line from the dict that goes to metrics.jsonl; a dash where nothing was measured this step."""
    number = lambda x: "-" if x is None else f"{x:.2f}"
    best = lambda role: max(((m["mu"], name) for name, m in row["members"].items() if m["role"] == role))
    name = lambda role: "{1} {0:.1f}".format(*best(role))
    anchors = [mean(row.get(f"anchors_{k}", {}).values()) for k in ("sampled", "greedy")]
    cells = [str(row["step"]), number(row["valid"]), number(row["complexity"].get("statements")), number(row["solve_rate"]),
             number(row.get("base_solve")), *map(number, anchors), number(row["think"]),
             number(row["teacher_reward"]), str(row["unique_structures"]),
             name("teacher"), name("student"), f"{sum(row['seconds'].values()):.1f}"]
    notes = ["born " + " ".join(row["births"])] if row["births"] else []
    notes += [f"skipped slots {row['skipped']}"] if row["skipped"] else []
    return " ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS)) + ("  " + ", ".join(notes) if notes else "")


def summary(rows: list[dict]) -> str:
    """What rose and fell between the first and the last twentieth of a run, in words, and no more than that."""
    n = max(1, len(rows) // 20)
    first, last = rows[:n], rows[-n:]
    out = []

    def compare(what: str, value) -> None:
        a, b = mean(map(value, first)), mean(map(value, last))
        if a is not None and b is not None:
            moved = f"{'rose' if b > a else 'fell'} from {a:.2f} to {b:.2f}"
            out.append(f"  {what} " + (moved if round(a, 2) != round(b, 2) else f"stayed at {b:.2f}"))

    compare("statements per task", lambda r: r["complexity"].get("statements"))
    compare("share of proposals that are valid", lambda r: r["valid"])
    compare("share of the students' answers that think", lambda r: r.get("think"))
    compare("the students' solve rate on the teachers' current tasks", lambda r: r["solve_rate"])
    compare("  of which at the probes: the frozen base's solve rate on these tasks", lambda r: r.get("base_solve"))
    compare("  of which at the probes: the students' solve rate on the same tasks", lambda r: r.get("student_solve"))
    out += discovery_words(rows)
    out += probe_words([row for row in rows if row.get("anchors_greedy")])
    out.append(f"  {rows[-1]['unique_structures']} distinct program structures, {sum(len(r['births']) for r in rows)} members replaced, "
               f"{rows[-1]['tokens_generated']:,} tokens generated, {rows[-1]['tokens_trained']:,} trained")
    title = f"first {n} against last {n} of {len(rows)} steps (ratings are relative and say nothing about progress):"
    return "\n".join([title, *out])


def discovery(rows: list[dict]) -> tuple[int | None, int | None]:
    """The first step at which one student thinks in most of its answers, and the first at which all students do; None = never."""
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
        return []                                         # a base that thinks by itself has nothing to discover
    all_of_them = everybody if everybody is not None else "none"
    return [f"  first step in which one student thinks in most of its answers: {first}; in which all do: {all_of_them}"]


def probe_words(probes: list[dict]) -> list[str]:
    """What the first and the last probe say of held-out tasks, a line a measure."""
    if len(probes) < 2:
        return []
    first, last = probes[0], probes[-1]
    out = []
    for kind, words in (("greedy", "greedily decoded"), ("sampled", "at the run's temperature")):
        a, b = (mean(row.get(f"anchors_{kind}", {}).values()) for row in (first, last))
        if a is None or b is None:
            continue                                      # anchors that are the run's own first tasks: first probed later
        se = last.get("anchors_greedy_se") if kind == "greedy" else None
        out.append(f"  the students' accuracy on held-out anchor tasks, {words}: {a:.2f} at step {first['step']}, "
                   f"{b:.2f} at step {last['step']}" + (f" (standard error {se:.3f})" if se else ""))
    for kind, base in first.get("heldout", {}).items():
        found = last.get("heldout", {}).get(kind, {})
        told = []
        for word, letter in (("students", "S"), ("teachers", "T")):
            own = [value for name, value in found.items() if name.startswith(letter)]
            told += [f"{word} {mean(own):.2f}"] if own else []
        if told and "base" in base:
            out.append(f"  held-out {kind} tasks, which nobody played, greedily decoded: frozen base {base['base']:.2f}, "
                       + ", ".join(told))
    return out
