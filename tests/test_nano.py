"""nano.py is short, imports little and learns; the engine agrees with it: same rows in, same numbers out."""
import random
import re
import runpy
import sys

import pytest
import torch
from batches import ask, logits, make_batch, pick
from factors import fresh, gen, trained
from tiny_run import ROOT

import evolve
import nano
import rl
from config import Config, resolve_config
from operators import OPERATORS
from rewards import STUDENT_REWARDS, TEACHER_REWARDS, Outcome
from tasks.prompts import Prompt
from trueskill_lite import Rating, TrueSkill, child_rating

TRUESKILL = TrueSkill()


def test_its_rewards_are_in_the_engines_tables():
    assert nano.REWARD == STUDENT_REWARDS["graded"]
    assert all(nano.teacher_reward(p) == TEACHER_REWARDS["difficulty"](Outcome(p)) for p in (0.0, 0.25, 0.75, 1.0))


def test_a_step(micro_base, capsys):
    nano.main(seed=0, pop=2, steps=1)
    head, line = capsys.readouterr().out.splitlines()
    n_tasks, solved = re.match(r"step +0 .*tasks +(\d+) .* solved ([\d.]+) ", line).groups()
    assert head.startswith("held-out") and int(n_tasks) > 0 and 0 < float(solved) < 1


def test_the_example_of_its_docstring_is_true_and_a_task_once(sandbox):
    left, right, seen = [], [], set()
    for line in nano.__doc__.split("writes  ")[1].split("\n")[1:5]:
        left.append(line[8:50].rstrip())
        right += line[50:].split()

    def task_in(text):
        return nano.task_of(nano.DEDUCTION.read(nano.Answer(text, nano.FORMAT), [], nano.LIMITS), sandbox, seen)

    assert "=" + task_in("\n".join(left)).outputs[0] == right[-1]
    for text in ("\n".join(left), "def f(x):\n return x/0\nf(1)", "def f(x):\n return id(x)\nf('a')"):
        assert task_in(text) is None


def test_a_population_that_cannot_be_halved_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nano.py", "--pop", "3"])
    with pytest.raises(SystemExit) as refused:
        runpy.run_path(str(ROOT / "nano.py"), run_name="__main__")
    assert refused.value.code == 2 and "--pop 3: give an even number" in capsys.readouterr().err


@pytest.mark.slow
def test_it_learns(micro_base, capsys):
    nano.main()
    accuracy = [float(x) for x in re.findall(r"greedy: ([\d.]+)", capsys.readouterr().out)]
    assert accuracy[0] < 0.35 and accuracy[-1] > 0.6


@pytest.fixture(scope="module")
def model(micro_base):
    """nano.py's model on the bundled base."""
    return nano.load_base()


def groups_of(batch, member):
    """A member's groups in the engine's batch, as nano.py has them."""
    rollout, groups = batch.rollout, {}
    for i in (rollout.member == member).nonzero()[:, 0].tolist():
        ids, start = rollout.ids[i, :rollout.length[i]].tolist(), int(rollout.prompt_len[i])
        groups.setdefault(int(batch.group[i]), []).append(nano.Row(ids[:start], ids[start:], reward=batch.reward[i].item()))
    return [*groups.values()]


def member_of(adapters, p, role="student"):
    """nano.py's member with the factors of the engine's member p."""
    return nano.Member(f"S{p}", role, adapters.factors(p))


def test_gradients_and_steps_of_adam_are_the_engines(model, base, population):
    """Three updates; the second member sits out the second one, and the first has nothing to learn from the third. The
    moments after the first one are the clipped gradients. Every third group's rewards are all equal, and so say nothing."""
    cfg = resolve_config(Config(algo="reinforce++", kl_coef=0.0), "micro")
    adapters = population(base, n_members=2, rank=nano.RANK, alpha=nano.ALPHA)
    members = [member_of(adapters, p, role) for p, role in enumerate(nano.LEARNING_RATE)]
    before = [adapters.factors(p) for p in range(2)]
    adam = rl.Adam(adapters)
    adam.lr[:] = torch.tensor(list(nano.LEARNING_RATE.values()))
    for step in range(3):
        batch = make_batch(96, (0, 1), step, answer=(1, 21), roles=2)
        first, silent = batch.rollout.member == 0, batch.group % 3 == 2
        batch.reward[silent] = 0.1
        if step == 1:
            batch = pick(batch, first.nonzero()[:, 0])
        if step == 2:                           # equal rewards: momentum alone moves nobody
            batch = pick(batch, (silent | ~first).nonzero()[:, 0])
        rl.update(base, adapters, batch, rl.advantages(batch, cfg), adam, cfg)
        for p, member in enumerate(members):
            nano.update(model, member, groups_of(batch, p))
            for factor, theirs in zip(member.parameters, adam.m):
                mine = member.adam.state[factor]["exp_avg"] if step == 0 else theirs[p]
                assert (mine - theirs[p]).norm() <= 1e-4 * theirs[p].norm()
    for p, member in enumerate(members):
        after = adapters.factors(p)
        for layer, factors in member.factors.items():
            for mine, theirs, old in zip(factors, after[layer], before[p][layer]):
                moved = (mine - old).norm()
                assert moved > 0.01 and (mine - theirs).norm() < 1e-3 * moved, layer


PROMPTS = ["out\ndef f(x):\n x=x+1\n return x\nf(3)\n",
           "out\ndef f(x):\n x=[v*2 for v in x]\n x=x[::-1]\n x=sum(x)\n return x\nf([1,2,3])\n", "propose out int\n",
           "out\ndef f(x):\n x=x.replace('A','B')\n x=x*2\n return x\nf('ABA')\n", "propose out list\n"]


def test_greedy_answers_are_the_engines(model, base, population):
    """Prompts of different lengths beside each other, padded on the left; they end at different times."""
    adapters = population(base, n_members=1, rank=nano.RANK, alpha=nano.ALPHA, b_std=0.003)
    got = nano.sample(model, member_of(adapters, 0), [Prompt(text) for text in PROMPTS], 1, greedy=True)
    ids = [group[0].prompt for group in got]
    want = ask(base, adapters, ids, [0] * len(ids), temperature=0.0, max_new_tokens=nano.MAX_NEW_TOKENS)
    for i, [row] in enumerate(got):
        assert row.answer == want.ids[i, want.prompt_len[i]:want.length[i]].tolist()
    assert len({len(row.answer) for [row] in got}) > 1


def test_draws_follow_the_model(model, base, population, monkeypatch):
    """The first tokens of many answers to two prompts have the probabilities that the engine computes."""
    adapters = population(base, n_members=1, rank=nano.RANK, alpha=nano.ALPHA, b_std=0.003)
    monkeypatch.setattr(nano, "MAX_NEW_TOKENS", 1)
    n = 300
    torch.manual_seed(0)
    for group in nano.sample(model, member_of(adapters, 0), [Prompt(text) for text in PROMPTS[:2]], n):
        ids = torch.tensor([group[0].prompt])
        p = logits(base.model, ids, adapters, [0])[0, -1].softmax(-1)
        share = torch.tensor([row.answer[0] for row in group]).bincount(minlength=len(p)) / n
        assert (share - p).abs().max() < 4 * 0.5 / n ** 0.5             # four standard errors, at most
        assert (share > 0.05).sum() > 1


def tiny_member(name, rating=Rating(), **more):
    """A member with one small layer: what ratings, matching and selection do not look at."""
    role = dict(T="teacher", S="student")[name[0]]
    factors = {"model.layers.0.mlp.up_proj": (torch.ones(1, 3), torch.ones(2, 1))}
    return nano.Member(name, role, factors, rating, **more)


def random_ratings(n, seed):
    rng = random.Random(seed)
    return [Rating(rng.uniform(10, 40), rng.uniform(1, 8.5)) for _ in range(n)]


def same_rating(a, b):
    return (a.mu, a.sigma) == pytest.approx((b.mu, b.sigma), rel=1e-9)


@pytest.mark.parametrize("n_correct", [None, *range(9)])
def test_matches_are_rated_as_the_engine_does(n_correct, monkeypatch):
    monkeypatch.setattr(evolve, "DRAW_BAND", nano.DRAW_BAND)
    rows = []
    if n_correct is not None:
        rows = [nano.Row([5], [6], verdict="correct" if i < n_correct else "wrong") for i in range(8)]
    for a, b in zip(random_ratings(60, seed=1), random_ratings(60, seed=2)):
        teacher, student = tiny_member("T0", a), tiny_member("S0", b)
        nano.rate_match(teacher, student, rows)
        rate = None if n_correct is None else n_correct / 8
        winner = evolve.winner_of(rate, TRUESKILL.p_win(b, a))
        if winner == "teacher":
            a, b = TRUESKILL.rate(a, b)
        else:
            b, a = TRUESKILL.rate(b, a, draw=winner == "draw")
        assert same_rating(teacher.rating, a) and same_rating(student.rating, b)


@pytest.mark.parametrize("n_students", [4, 2, 1])
def test_matching_is_the_engines(n_students):
    """By the same random numbers the same pairs, and so by the same weights."""
    for seed in range(300):
        teachers = [evolve.Member(f"T{i}", "teacher", i, r) for i, r in enumerate(random_ratings(4, seed))]
        students = [evolve.Member(f"S{i}", "student", i, r) for i, r in enumerate(random_ratings(n_students, -seed))]
        want = evolve.match(teachers, students, lambda t, s: TRUESKILL.p_win(s.rating, t.rating), "pfsp", 0.1, random.Random(seed))
        mine = [[tiny_member(m.name, m.rating) for m in some] for some in (teachers, students)]
        random.seed(seed)
        got = nano.match(*mine)
        assert [(t.name, s.name) for t, s in got] == [(t.name, s.name) for t, s in want]


def one_block(factors):
    """The modules of the first block: no two have one shape, so that the engine, too, draws for them in turn."""
    return {name: factors[name] for name in factors if name.startswith("model.layers.0.")}


PARENTS = {"trained": (trained(1), trained(2)), "fresh": (fresh(1), fresh(2)), "twins": (trained(1), trained(1))}


@pytest.mark.parametrize("parents", PARENTS)
@pytest.mark.parametrize("operator", nano.N_PARENTS, ids=lambda operator: operator.__name__)
def test_children_are_the_engines(operator, parents):
    """Their updates dW = B A; nano.py forms dW and takes its dense SVD, the engine never does."""
    n = nano.N_PARENTS[operator]
    assert OPERATORS[operator.__name__].n_parents == n
    for seed in range(5):
        pair = [one_block(factors) for factors in PARENTS[parents][:n]]
        want = OPERATORS[operator.__name__].fn(pair, gen(seed))
        torch.manual_seed(seed)
        for layer, (A, B) in want.items():
            got_A, got_B = operator([factors[layer] for factors in pair])
            dW = B @ A
            assert got_A.shape == A.shape and (got_B @ got_A - dW).norm() <= 1e-5 * dW.norm()
            assert (got_A.norm(dim=1) > 1e-3).all(), "zeros in both factors would never get a gradient"


@pytest.mark.parametrize("step", [14, 29])
def test_the_same_member_makes_room(step, capsys):
    """The victim and the rating of its child are the engine's; a child has a grace of one interval."""
    rng = random.Random(step)
    for seed in range(30):
        theirs, mine = [], []
        for i, rating in enumerate(random_ratings(4, seed)):
            born, parents = rng.choice([0, step - 15, step - 5]), rng.choice([(), ("S9",)])
            theirs.append(evolve.Member(f"S{i}", "student", i, rating, born, parents, matches=1))
            mine.append(tiny_member(f"S{i}", rating, **(dict(born=born) if parents else {})))
        births = evolve.plan_births(theirs, lambda m: TRUESKILL.fitness(m.rating), 0.25, nano.EVOLVE_EVERY, step, "mixed", rng)
        before = list(mine)
        nano.evolve(mine, step)
        said = capsys.readouterr().out
        changed = [i for i in range(4) if mine[i] is not before[i]]
        assert [f"S{i}" for i in changed] == [birth.victim.name for birth in births]
        for i in changed:
            parents = re.search(r"\((.*)\)", said)[1].split(", ")
            assert same_rating(mine[i].rating, child_rating(TRUESKILL, [m.rating for m in theirs if m.name in parents]))
            assert (mine[i].name, mine[i].born) == ("S4", step) and f"S{i}" not in parents and not mine[i].adam.state
