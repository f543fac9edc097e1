"""The phases between models and judge: keyed draws, verification, rewards by hand, the archive."""
import copy
import dataclasses
import json
import random

import pytest
from tiny_run import write

import rewards
import selfplay
import train
from common import UserError
from evolve import Member
from selfplay import ProposalRecord
from tasks import TASK_TYPES, read_given, verify_answers
from tasks.archive import WINDOW, Archive
from tasks.base import UNJUDGED, Proposal, Task
from tasks.programs import Limits, structural_hash
from tasks.prompts import FORMATS
from tasks.rendering import render
from trueskill_lite import Rating


def members(role: str = "teacher") -> list[Member]:
    """Two members of a role, in the slots of `setup`."""
    return [Member(f"{role[0].upper()}{i}", role, i + 2 * (role == "student"), Rating()) for i in range(2)]


def matched() -> list[tuple[Member, Member]]:
    """Each teacher with a student."""
    return list(zip(members(), members("student")))


def task(i: int, kind: str = "code_o", output: str = "1", program: str = "", step: int = 0) -> Task:
    """A task for the archive."""
    return Task(kind, program or f"def f(x):\n return x+{i}", ("1",), (output,), "", f"key{i}", i, "T0", step)


def filled(*tasks: Task, cap: int = 100) -> Archive:
    """An archive after these tasks."""
    archive = Archive(cap)
    for t in tasks:
        archive.add(t, structural_hash(t.program))
    return archive


def seeded() -> Archive:
    """An archive as a run begins with."""
    return filled(task(0, step=-1))


def proposed(*programs) -> list[ProposalRecord]:
    """Proposals as the parser leaves them: (program, input) each, or None for text that did not parse."""
    teachers, batch = members(), []
    for i, given in enumerate(programs):
        proposal = given and Proposal("code_o", given[0], (given[1],))
        batch.append(ProposalRecord(teachers[i % 2], "code_o", i // 2, [], "text", proposal, reason="" if given else "syntax"))
    return batch


def program(line: str, name: str = "x") -> str:
    """A program of one statement."""
    return f"def f({name}):\n {line}\n return {name}"


def asked(kind: str, line: str, given: str) -> Proposal:
    """A proposal of a program of one statement."""
    return Proposal(kind, program(line), (given,))


def test_a_members_proposals_do_not_depend_on_its_neighbours(setup):
    s, archive, pairs = setup(), seeded(), matched()
    _, both = selfplay.propose(s, archive, pairs, 4)
    _, alone = selfplay.propose(s, archive, pairs[:1], 4)
    _, later = selfplay.propose(s, archive, pairs[:1], 5)
    assert [p.text for p in both[:3]] == [p.text for p in alone] != [p.text for p in later]
    assert [p.group for p in both] == [0, 0, 0, 1, 1, 1]


def test_kinds_take_turns_over_prompts_and_steps(setup):
    s = setup(task_types="code_o,code_i,code_f", n_prompts=2, proposals_per_prompt=1)
    kinds = [p.kind for step in range(3) for p in selfplay.propose(s, seeded(), matched()[:1], step)[1]]
    assert kinds == ["code_o", "code_i", "code_f"] * 2


def test_tasks_that_no_teacher_writes(setup, tmp_path):
    """A step deals 6 tasks to each of two teachers; a file of 4 comes round three times a step, each time whole."""
    path = tmp_path / "some.jsonl"
    rows = [dict(kind=kind, program=program(f"x=x+{i}"), input="4") for i, kind in enumerate(["code_o", "code_i"] * 2)]
    write(path, rows)
    for tasks in "micro", str(path):
        s, steps = setup(tasks=tasks, task_types="code_o,code_i", n_prompts=2), []
        for step in 3, 3, 4:
            rollout, batch = selfplay.propose(s, filled(), matched(), step)
            selfplay.verify_proposals(s, filled(), batch, step)
            assert rollout is None and selfplay.teacher_rows(rollout, batch) is None
            assert [p.teacher.name for p in batch] == ["T0"] * 6 + ["T1"] * 6 and {p.reason for p in batch} == {""}
            steps.append([(p.kind, p.task.program, p.task.inputs) for p in batch])
        one, again, other = steps
        assert one == again != other and {kind for kind, _, _ in one} == {"code_o", "code_i"}
        assert tasks == "micro" or all(len(set(one[i:i + 4])) == 4 for i in (0, 4, 8))
    with pytest.raises(UserError, match="--tasks .*some.jsonl and --task-types code_o differ in code_i"):
        read_given(str(path), ("code_o",))


BATCH = [(program("x=x+1"), "3"), (program("y=y+7", "y"), "3"), (program("x=x+1"), "4"), (program("x=x+1"), "3"), None,
         (program("x=x*2"), "3"), (program("x=x//(x-3)"), "3"), (program("x=x//(x-3)"), "5")]
KNOWN = ["duplicate"] * 4 + ["syntax", "duplicate"]
FAILS = ["error", ""]                       # a duplicate of what failed is welcome


@pytest.mark.parametrize("dedupe, reasons, again", [
    ("structural", ["", "duplicate", "duplicate", "duplicate", "syntax", "", *FAILS], [*KNOWN, "duplicate", "duplicate"]),
    ("exact", ["", "", "", "duplicate", "syntax", "", *FAILS], [*KNOWN, "error", "duplicate"]),
    ("off", [""] * 4 + ["syntax", "", *FAILS], [""] * 4 + ["syntax", "", *FAILS])])
def test_duplicates(setup, dedupe, reasons, again):
    s, archive = setup(dedupe=dedupe), seeded()
    first, second = proposed(*BATCH), proposed(*BATCH)
    selfplay.verify_proposals(s, archive, first, 0)
    assert [p.reason for p in first] == reasons
    valid = [p.task for p in first if not p.reason]
    assert [t.id for t in valid] == list(range(1, len(valid) + 1)) and {t.step for t in valid} == {0}
    for t in valid:
        archive.add(t, structural_hash(t.program))
    selfplay.verify_proposals(s, archive, second, 1)
    assert [p.reason for p in second] == again


def test_echoes_are_refused_of_teachers_alone(setup, tmp_path):
    """Sorting twice is sorting once; --admit-echo and a user's file admit it."""
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(dict(kind="code_i", program=program("x=sorted(x)"), input="[2,1]")))
    for switches, reason in (dict(), "echo"), (dict(admit_echo=True), ""), (dict(tasks=str(path)), ""):
        s = setup(task_types="code_i", **switches)
        s = dataclasses.replace(s, limits=Limits.of_run(s.cfg, "micro", s.base.tokenizer))
        batch = selfplay.deal(s, members()[:1], 0) if s.cfg.tasks else proposed((program("x=sorted(x)"), "[2,1]"))
        for p in batch:
            p.kind, p.proposal = "code_i", asked("code_i", "x=sorted(x)", "[2,1]")
        selfplay.verify_proposals(s, seeded(), batch, 0)
        assert {(p.reason, bool(p.task)) for p in batch} == {(reason, not reason)}, switches


def test_a_task_that_leaves_no_room_for_an_answer_is_refused(setup):
    """The micro base has 256 tokens: an answer may fit behind a short program and not behind a longer one."""
    short, long = (program("x=x+1"), "3"), (program("\n ".join(f"x=x+{i}" for i in range(7, 13))), "3")
    s = setup()
    prompt = TASK_TYPES["code_o"].solve("micro", task(0, program=short[0]), s.limits)
    room = 256 - len(render(prompt, "micro", s.base.tokenizer).ids)
    for max_new_tokens, reasons in ((room, ["", "prompt_too_long"]), (80, ["", ""])):
        batch = proposed(short, long)
        selfplay.verify_proposals(setup(max_new_tokens=max_new_tokens), seeded(), batch, 0)
        assert [p.reason for p in batch] == reasons


def test_references_are_passed_over_until_the_prompt_fits(setup):
    """Of several, as many as leave room for an answer; of programs that need inputs, one that does."""
    s, long = setup(n_few_shot=6, max_new_tokens=32), "\n ".join(["x=x+1"] * 40)
    archive, model = filled(*(task(i, program=program(long)) for i in range(8)), task(9)), copy.copy(s.base.model)
    s = dataclasses.replace(s, base=dataclasses.replace(s.base, prompt_format="base", model=model), limits=Limits.for_format("base"))

    def shown(kind, seed, context):
        model.cfg = dataclasses.replace(model.cfg, max_position_embeddings=context)
        return selfplay.prompt_teacher(s, archive, kind, random.Random(seed))[1]

    counts = [len(shown("code_o", 0, context)) for context in (100, 1000, 10_000)]
    assert counts[0] == 0 < counts[1] < counts[2] == 6
    needed = TASK_TYPES["code_f"].propose("base", [task(9)], random.Random(0), s.limits)
    room = len(render(needed, "base", s.base.tokenizer).ids) + 48
    assert all(shown("code_f", seed, room)[0] == task(9) for seed in range(9))


def test_parents_are_what_the_prompt_showed(setup):
    """A program that was given is a parent; what was shown as an example is none."""
    pair, few_shot = proposed(BATCH[0], BATCH[5]), [task(1), task(2, "code_f")]
    pair[0].few_shot, pair[1].few_shot, pair[1].kind = few_shot, few_shot, "code_f"
    pair[1].proposal = Proposal("code_f", few_shot[0].program, tuple(map(str, range(8))))
    selfplay.verify_proposals(setup(), filled(), pair, 0)
    assert [p.task.parents for p in pair] == [(), (1,)]


def test_given_tasks_are_verified_too(setup):
    good, bad = asked("code_o", "x=x[::-1]", "[1,2]"), asked("code_o", "x=x/0", "1")
    made, = selfplay.make_tasks(setup(), [good], "seeds")
    assert made.step == -1 and made.outputs == ("[2,1]",)
    with pytest.raises(UserError, match="seeds: task 2 is not valid .error.*x=x/0"):
        selfplay.make_tasks(setup(), [good, bad], "seeds")


def test_attempts_are_judged_in_order(setup):
    s = setup()
    given = selfplay.make_tasks(s, [asked("code_o", "x=x+1", "4"), asked("code_i", "x=x[::-1]", "[1,2]")], "")
    done = selfplay.attempt(s, given, [2, -1], 0, selfplay.SOLVE, 3)
    assert done.rollout.member.tolist() == [2] * 3 + [-1] * 3
    judged = [verify_answers([t], [texts], "micro", s.limits, s.sandbox.run)[0] for t, texts in zip(given, done.texts)]
    assert done.verdicts == judged


@pytest.mark.parametrize("name, paid", [
    ("difficulty", [0, 0.75, 0.5, 0.25, 0]), ("learnability", [0, 0.75, 1, 0.75, 0]), ("band", [0, 0.5, 1, 0.5, 0]),
    ("nontrivial", [0, 1, 1, 1, 0]), ("noise-proof", [0, 0, 1, 0.75, 0])])
def test_teacher_rewards(name, paid):
    outcomes = [rewards.Outcome(p, majority_baseline=0.2) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert [rewards.TEACHER_REWARDS[name](outcome) for outcome in outcomes] == paid


def with_fates() -> list[ProposalRecord]:
    """Four proposals: never solved, half solved over two students, always solved, invalid."""
    batch = proposed(BATCH[0], BATCH[1], BATCH[2], None)
    for i, (p, verdicts) in enumerate(zip(batch, (["wrong", "malformed"], ["correct", "wrong"], ["correct", "correct"]))):
        p.task = task(i, program=program(f"x=x+{i}"))
        p.attempts = {"S0": verdicts, "S1": verdicts[::-1]}
    return batch


def test_pay(setup):
    """A valid proposal is paid by its outcome; one that is not valid costs INVALID."""
    batch = with_fates()
    selfplay.pay_teachers(setup(), filled(), batch)
    assert [p.reward for p in batch] == [0, 0.5, 0, rewards.INVALID]


def test_what_a_reward_may_look_at():
    """Each field that is named here, by hand; the archive's memory has one program of the first proposal's structure."""
    batch = with_fates()
    batch[0].task = dataclasses.replace(task(0, program=program("x=x*7")), outputs=('"ab"',))
    batch[0].attempts = {"S0": ["correct", "wrong"], "S1": ["correct", "correct"]}
    batch[0].base_rate = 0.5
    archive = filled(task(1, program=program("x=x*2"), output="1"), task(2, output="1"), task(3, "code_i"), cap=1)
    outcome, other = (selfplay.outcome_of(p, archive, archive.unique_at_64()) for p in batch[:2])
    fields = dict(solve_rate=0.75, solve_rates={"S0": 0.5, "S1": 1.0}, n_attempts=4, n_correct=3, base_rate=0.5, kind="code_o", majority_baseline=1.0, n_tasks=3,
                  n_of_kind=1, n_same_structure=1, unique_at_64=archive.unique_at_64(), statements=1, program=program("x=x*7"), inputs=("1",), outputs=("'ab'",))
    assert {name: getattr(outcome, name) for name in fields} == fields
    assert other.base_rate is None and other.solve_rates == {"S0": 0.5, "S1": 0.5}


def test_training_batch(setup):
    """Rows of both roles; those on which the sandbox failed are left out, and groups stay apart."""
    s, (teacher, _), (student, other) = setup(task_types="code_o,code_i", n_prompts=4, proposals_per_prompt=1), members(), members("student")
    rollout, batch = selfplay.propose(s, seeded(), [(teacher, student)], 0)
    given = selfplay.make_tasks(s, [asked("code_i", "x=x+1", "4"), asked("code_o", "x=x*2", "4")], "")
    for p, reward, t in zip(batch, (0.5, -1.0, 0.25, 9.0), [given[0], None, given[1], None]):
        p.reward, p.task, p.kind = reward, t, t.kind if t else "code_o"
    batch[3].reason = "sandbox_failure"
    attempts = selfplay.attempt(s, given, [student.slot, other.slot], 0, selfplay.SOLVE, 2)
    batch[0].attempts, batch[2].attempts = {student.name: ["correct", "violation"]}, {other.name: [UNJUDGED, "correct"]}
    parts = [selfplay.teacher_rows(rollout, batch), selfplay.student_rows(s, [(batch[0], student), (batch[2], other)], attempts)]
    made = selfplay.training_batch(s, parts)
    assert made.reward.tolist() == [0.5, -1, 0.25, 1, -0.5, 1] and made.role.tolist() == [0, 0, 0, 1, 1, 1]
    assert made.group.tolist() == [0, 2, 4, 1, 1, 3] and made.kind.tolist() == [1, 0, 0, 1, 1, 0]
    assert made.rollout.member.tolist() == [0, 0, 0, 2, 2, 3]
    for part, joined in ((rollout.ids[:3], made.rollout.ids[:3]), (attempts.rollout.ids[[0, 1, 3]], made.rollout.ids[3:])):
        assert (joined[:, :part.shape[1]] == part).all() and not joined[:, part.shape[1]:].any()
    assert selfplay.training_batch(s, [parts[0], selfplay.student_rows(s, [], None)]).reward.tolist() == [0.5, -1, 0.25]
    parts[0].paid = parts[1].paid = [(None, 0, "code_o")] * 4
    with pytest.raises(OSError, match="failed on every row"):
        selfplay.training_batch(s, parts)


def test_nobody_is_paid_or_blamed_for_what_the_sandbox_failed_on(setup):
    batch = with_fates()
    batch[0].attempts, batch[1].attempts = {"S0": ["correct", "wrong", UNJUDGED]}, {"S0": [UNJUDGED]}
    batch[3].reason = "sandbox_failure"
    selfplay.pay_teachers(setup(), filled(), batch)
    assert [(p.solve_rate, p.unjudged, p.reward) for p in batch] == [(0.5, False, 0.5), (None, True, 0), (1, False, 0), (None, True, 0)]


def test_matches():
    (one, two), students = members(), members("student")
    batch = with_fates()  # of T0: rows 0 and 2, half solved by each; of T1: row 1 and the invalid one
    weaker = students[0]
    for _ in range(20):         # whatever the rating system: who has lost so often is not expected to solve half
        one.rating, weaker.rating = selfplay.RATINGS.rate(one.rating, weaker.rating, draw=False)
    before = one.rating.mu, weaker.rating.mu
    batch[0].teacher = batch[2].teacher = one
    batch[1].teacher = batch[3].teacher = two
    first, drawn = train.rate_matches([(one, weaker), (two, students[1])], batch, 3)
    assert (first["solve_rate"], first["winner"]) == (0.5, "student") and first["expected"] < 0.45, "more than the ratings expected"
    assert (drawn["solve_rate"], drawn["winner"]) == (0.5, "draw") and drawn["expected"] == pytest.approx(0.5)
    assert one.rating.mu < before[0] and weaker.rating.mu > before[1] and two.rating.mu == pytest.approx(students[1].rating.mu)
    assert one.matches == 1 and first["brier"] == pytest.approx((first["expected"] - 0.5) ** 2)
    row, = train.rate_matches([(two, weaker)], [p for p in batch if p.reason], 4)
    assert row["winner"] == "student" and row["solve_rate"] is row["brier"] is None  # nothing valid is a loss
    batch[3].reason = "sandbox_failure"             # which nobody has won
    assert not train.rate_matches([(two, weaker)], batch[3:], 4)


def test_the_oldest_leave_and_their_keys_stay():
    archive = filled(*(task(i) for i in range(5)), task(9, "code_i"), cap=3)
    assert [[t.id for t in archive.tasks[kind]] for kind in ("code_o", "code_i")] == [[2, 3, 4], [9]]
    assert archive.keys == {f"key{i}" for i in (0, 1, 2, 3, 4, 9)} and archive.n_added == 6
    assert len(archive.structures) == 1  # x+0 and x+4 are one structure


def test_references():
    seed, rng = task(0, step=-1), random.Random(0)
    assert filled(seed).references("code_i", 3, rng) == [seed]  # seeds stand in for a kind without tasks
    archive = filled(seed, task(1), task(2), task(3, "code_i"), task(4, "code_f"), task(5, "code_f"))
    for k in (1, 6):
        drawn = {t.id for t in archive.references("code_o", k, rng)}
        first, *shown = archive.references("code_f", k, rng)
        assert len(drawn) == min(k, 3) and drawn <= {0, 1, 2}
        assert first.kind in ("code_o", "code_i") and [t.kind for t in shown] == ["code_f"] * min(k - 1, 2)


def test_the_share_of_the_most_frequent_output():
    archive = filled(task(0, output="7"), task(1, output="7"), task(2, output="8"), task(3, "code_i", "8"), cap=1000)
    assert [archive.majority_baseline(kind) for kind in ("code_o", "code_i", "code_f")] == [pytest.approx(2 / 3), 1.0, 0.0]
    for i in range(WINDOW):
        archive.add(task(10 + i, output=str(i)), "s")
    assert archive.majority_baseline("code_o") == 1 / WINDOW  # only the latest count


def test_rarefied_coverage():
    archive = Archive(10)
    assert archive.unique_at_64() == 0.0
    for structure in "aabc":
        archive.add(task(0), structure)
    # two of a, a, b, c: 5 of the 6 pairs hold two structures, one holds one
    assert [archive.unique_at_64(n) for n in (2, 4, 99)] == [pytest.approx(11 / 6), 3, 3]
    for _ in range(WINDOW):
        archive.add(task(0), "a")
    assert len(archive.recent) == WINDOW and archive.unique_at_64() == pytest.approx(1) and len(archive.structures) == 3


def test_rows_end_at_a_closing_text(setup, monkeypatch):
    """The format's or the prompt's: a "=" stands for "</answer>", which the micro base never writes."""
    s = setup(max_new_tokens=40)
    prompt = TASK_TYPES["code_o"].propose("micro", [], random.Random(0), s.limits)
    _, whole = selfplay.ask(s, [prompt] * 4, [0, 1, 2, 3], 0, 0, 2)
    _, asked = selfplay.ask(s, [dataclasses.replace(prompt, closing="=")] * 4, [0, 1, 2, 3], 0, 0, 2)
    monkeypatch.setitem(FORMATS, "micro", dataclasses.replace(FORMATS["micro"], closing="="))
    assert asked == selfplay.ask(s, [prompt] * 4, [0, 1, 2, 3], 0, 0, 2)[1] != whole


def forgets(outcome: rewards.Outcome) -> None:
    """Stands for a function whose `return` was forgotten."""


@pytest.mark.parametrize("slip, told", [(forgets, r"^forgets \(.*test_selfplay.py, line \d+\) returned None"), (lambda outcome: float("nan"), "returned nan")])
def test_a_reward_that_somebody_added_returns_a_number(setup, monkeypatch, slip, told):
    monkeypatch.setitem(rewards.TEACHER_REWARDS, "difficulty", slip)
    with pytest.raises(AssertionError, match=f"{told}: it has to return a finite int or float"):
        selfplay.pay_teachers(setup(), filled(), with_fates())
