"""nano.py: all of PopuLoRA in one file, to be read top to bottom with the paper beside it.

    python nano.py --seed 0 --pop 8 --steps 30           # two minutes on one core

A population of LoRA adapters on one frozen base teaches itself to read Python. Teachers write small
programs, students say what these return, a sandboxed interpreter is the only verifier. Five phases:

    1. match     every teacher draws a student, most likely one about as good as itself
    2. propose   the teacher writes programs with an input; one that runs, and is new, is a task
    3. solve     its student makes four attempts at every task
    4. update    both are paid and take one step of REINFORCE++; TrueSkill rates the match
    5. evolve    now and then the worst of each role makes room for a child of the others

arXiv 2605.16727, on top of 2505.03335 (AZR). train.py is the same, fast; tests compare the two.

    a teacher reads "propose out list" and writes        its student reads that and answers
        def f(x):                                            >[3,7,5]
         x=x[1:]+x[:1]                                       =[3,7,5]
         return x
        f([5,3,7])

What to watch: with a trace (">", x after each statement) the base is right seven times in ten, but
by habit it answers at once ("="), right twice in ten. In steps 10 to 20 students start to think.

Shapes: N rows (an answer each), T tokens, V vocabulary, R rank. logits[:, t] predict ids[:, t + 1].
"""
import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, pstdev

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("nano.py: torch is not installed: run `make setup`, use .venv") from None
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from tasks import TASK_TYPES, read_tasks, verify_answers  # what a task is, how it is spoken of
from tasks.base import Reject  # what a proposal becomes that is no task
from tasks.validation import Limits  # how long programs and values may be
from verifier import open_sandbox  # where programs run

BASE_DIR = Path(__file__).resolve().parent / "micro" / "base"
FORMAT = "micro"                                    # the prompt format that this base knows
LIMITS = Limits.for_format(FORMAT)
DEDUCTION = TASK_TYPES["code_o"]                    # given a program and an input, find the output
RANK = 8
ALPHA = 32.0                                        # a member's update is ALPHA / RANK * B A
N_PROMPTS = 3                                       # of a teacher in a step
N_PROPOSALS = 8                                     # of a teacher to each of them
N_ATTEMPTS = 4                                      # of a student at each task
MAX_NEW_TOKENS = 80                                 # of a proposal or an attempt
REWARD = {"correct": 1.0, "wrong": -0.5, "malformed": -1.0}        # of an attempt
LEARNING_RATE = {"teacher": 3e-3, "student": 2e-3}
EVOLVE_EVERY = 8
SURPRISE = 0.05                                     # a solve rate that near to the expected: a draw
NEWCOMER = NormalDist(25.0, 25.0 / 3.0)             # what is believed of a new member's skill
NOISE = NormalDist(0.0, 25.0 / 6.0)                 # of a performance around the skill (beta)
DRIFT = NormalDist(0.0, 25.0 / 300.0)               # of a skill between two matches (tau)
# TrueSkill takes a draw for two performances that differ by less than a margin. By this margin one
# match in ten of equals is a draw, however many of ours end within SURPRISE.
P_DRAW = 0.1
DRAW_MARGIN = NormalDist().inv_cdf((1.0 + P_DRAW) / 2.0) * 2.0 ** 0.5 * NOISE.stdev

# ---- the population ------------------------------------------------------------------------------
@dataclass(eq=False)
class Member:
    """One of the population: an adapter with an optimiser and a rating of its own."""
    name: str                                       # "T0", "S3": unique over the run
    role: str                                       # "teacher" | "student"
    factors: dict                                   # layer -> (A (R, in), B (out, R))
    rating: NormalDist = NEWCOMER
    born: int = -EVOLVE_EVERY                       # its step; founders may be replaced at once

    def __post_init__(self):
        self.parameters = []
        for A, B in self.factors.values():
            self.parameters += [A.requires_grad_(), B.requires_grad_()]
        self.adam = torch.optim.Adam(self.parameters, LEARNING_RATE[self.role], betas=(0.9, 0.95))

class LoRALinear(torch.nn.Linear):
    """A frozen linear layer plus the low-rank update of the member that is plugged in."""
    member = None                                   # one at a time, the same for all layers

    def forward(self, x):                           # (N, T, in)
        A, B = LoRALinear.member.factors[self.name]     # (R, in), (out, R)
        return super().forward(x) + ALPHA / RANK * (x @ A.T @ B.T)

def load_base():
    """The base, frozen, with its tokenizer, the blocks' linear layers having become LoRALinear."""
    model = AutoModelForCausalLM.from_pretrained(BASE_DIR, dtype=torch.float32).requires_grad_(False)
    for name, layer in model.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.__class__ = LoRALinear            # the same weights, our forward
            layer.name = f"model.{name}"
    model.tokenizer = AutoTokenizer.from_pretrained(BASE_DIR)
    return model

def founder(model, role, number, gen):
    """A member that equals the base: its A are Kaiming-uniform and its B zero."""
    factors = {}
    for layer in model.modules():
        if isinstance(layer, LoRALinear):
            n_out, n_in = layer.weight.shape
            A = torch.empty(RANK, n_in).uniform_(-n_in ** -0.5, n_in ** -0.5, generator=gen)
            factors[layer.name] = (A, torch.zeros(n_out, RANK))
    return Member(f"{role[0].upper()}{number}", role, factors)

# ---- sampling ------------------------------------------------------------------------------------
@dataclass
class Row:
    """One answer: of a teacher a proposal, of a student an attempt at a task."""
    prompt: list[int]                               # token ids
    answer: list[int]                               # with the end token, unless cut off
    text: str = ""
    task: object = None                             # in a proposal, if it is valid
    verdict: str = ""                               # on an attempt
    reward: float = -1.0                            # what a proposal costs that is no task
    advantage: float = 0.0                          # of each of the answer's tokens

def flat(groups):
    """What is in all groups as one list."""
    return [x for group in groups for x in group]

def pad(lists, side="right"):
    """Lists of numbers as one tensor (N, T), padded with zeros."""
    rows = [torch.tensor(numbers) for numbers in lists]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)

@torch.inference_mode()
def sample(model, member, prompts, n, gen, greedy=False):
    """n answers of a member to each prompt, at temperature 1 or greedy: a group for each prompt."""
    if not prompts:
        return []
    LoRALinear.member = member
    groups = []
    for prompt in prompts:
        ids = model.tokenizer(prompt.user).input_ids
        groups.append([Row(ids, []) for _ in range(n)])
    growing = flat(groups)                          # rows whose answers have not ended
    # Padded on the left, prompts end in one column, and all answers go on from there. A short one
    # begins at a later position, which changes nothing: RoPE knows only distances.
    ids = pad([row.prompt for row in growing], "left")                        # (N, T)
    mask = (ids != 0).float()                       # (N, T): token 0 is <pad>, which no text holds
    cache = DynamicCache()
    for _ in range(MAX_NEW_TOKENS):
        out = model(ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1)
        p = out.logits[:, -1].softmax(-1)           # (N, V)
        if greedy:
            token = p.argmax(-1)                    # (N,)
        else:
            token = torch.multinomial(p, 1, generator=gen)[:, 0]
        for row, t in zip(growing, token.tolist()):
            row.answer.append(t)
        # Rows that have ended leave the batch, and the cache with it: N shrinks from here on.
        alive = (token != model.config.eos_token_id).nonzero()[:, 0]
        if len(alive) == 0:
            break
        growing = [growing[i] for i in alive.tolist()]
        cache.batch_select_indices(alive)
        ids = token[alive, None]                    # (N, 1): what came before is in the cache
        mask = torch.cat([mask[alive], torch.ones(len(alive), 1)], 1)
    for row in flat(groups):
        row.text = model.tokenizer.decode(row.answer, skip_special_tokens=True)
    return groups

# ---- tasks: teachers propose them, the sandbox verifies, students solve --------------------------
def task_of(proposal, sandbox, seen):
    """The task in a proposal, or None: it must parse, run, be deterministic, and new. `seen` is the
    memory of the run: without it teachers end up repeating one short program that is hard."""
    if isinstance(proposal, Reject) or DEDUCTION.check(proposal, LIMITS):
        return None
    key = DEDUCTION.key(proposal, "structural")     # of the program without names and constants
    if key in seen:
        return None
    [result] = sandbox.run([DEDUCTION.job(proposal)])
    task = DEDUCTION.accept(proposal, result, LIMITS, key)      # what it returned is the solution
    if isinstance(task, Reject):
        return None
    seen.add(key)
    return task

def propose(model, sandbox, teacher, seen, rng, gen):
    """A teacher's proposals, a group for each prompt; those that are tasks know it."""
    prompts = [DEDUCTION.propose(FORMAT, [], rng, LIMITS) for _ in range(N_PROMPTS)]
    groups = sample(model, teacher, prompts, N_PROPOSALS, gen)
    for row in flat(groups):
        proposal = DEDUCTION.parse_proposal(row.text, FORMAT, [], LIMITS)
        row.task = task_of(proposal, sandbox, seen)
    return groups

def solve(model, sandbox, student, tasks, n, gen, greedy=False):
    """n attempts of a student at each task, judged and paid: a group of rows for each."""
    prompts = [DEDUCTION.solve(FORMAT, task, LIMITS) for task in tasks]
    groups = sample(model, student, prompts, n, gen, greedy)
    texts = []
    for group in groups:
        texts.append([row.text for row in group])
    verdicts = verify_answers(tasks, texts, FORMAT, LIMITS, sandbox.run)
    for row, verdict in zip(flat(groups), flat(verdicts)):
        row.verdict = verdict
        row.reward = REWARD.get(verdict, 0.0)       # 0 where the verifier itself failed
    return groups

def solve_rate(rows):
    """Share of attempts that were correct."""
    return sum(row.verdict == "correct" for row in rows) / max(1, len(rows))

def think_rate(rows):
    """Share of attempts that trace the program's values, in lines with ">", before they answer."""
    return sum(row.text.startswith(">") for row in rows) / max(1, len(rows))

def teacher_reward(p):
    """Of a task with solve rate p: harder is better, unsolvable is worth nothing (AZR, eq. 4)."""
    return 0.0 if p == 0 else 1.0 - p

# ---- REINFORCE++ with baseline (2501.03262) ------------------------------------------------------
def advantages(groups):
    """Set the advantages of one member's rows, a group for each prompt: the reward less the group's
    mean, whitened over all tokens. A group of equal rewards says nothing, and its rows keep 0."""
    varied = []
    for group in groups:
        rewards = [row.reward for row in group]
        if pstdev(rewards) > 1e-6:
            varied += group
            for row in group:
                row.advantage = row.reward - fmean(rewards)
    of_tokens = []
    for row in varied:
        of_tokens += [row.advantage] * len(row.answer)
    if of_tokens:
        mean, std = fmean(of_tokens), pstdev(of_tokens)
        for row in varied:
            row.advantage = (row.advantage - mean) / (std + 1e-6)

def policy_gradient(model, member, rows):
    """Fill .grad with the gradient of -sum(advantage * logp) / n over the rows' n answer tokens.
    One step on what was just sampled: PPO's ratio is 1, and its clipped loss has this gradient."""
    member.adam.zero_grad()
    LoRALinear.member = member
    # Rows of advantage 0 need not be run. Their tokens count in n all the same: where few rows say
    # something, the gradient is small.
    n_tokens = sum(len(row.answer) for row in rows)
    rows = [row for row in rows if row.advantage != 0]
    rows.sort(key=lambda row: len(row.prompt) + len(row.answer))    # little padding
    for i in range(0, len(rows), 32):               # in micro-batches
        texts, weights = [], []
        for row in rows[i:i + 32]:
            texts.append(row.prompt + row.answer)
            weights.append([0.0] * len(row.prompt) + [row.advantage] * len(row.answer))
        ids = pad(texts)                                            # (N, T)
        weight = pad(weights)[:, 1:]                                # (N, T-1)
        logp = model(ids).logits[:, :-1].log_softmax(-1)            # (N, T-1, V)
        logp = logp.gather(2, ids[:, 1:, None])[:, :, 0]            # (N, T-1)
        (-(weight * logp).sum() / n_tokens).backward()

def update(model, member, groups):
    """One step of Adam, its gradient clipped to norm 1, on a member's own groups of rows."""
    advantages(groups)
    rows = flat(groups)
    if any(row.advantage for row in rows):
        policy_gradient(model, member, rows)
        torch.nn.utils.clip_grad_norm_(member.parameters, 1.0)
        member.adam.step()

# ---- TrueSkill for two players (Herbrich, Minka & Graepel 2006), and matching by it --------------
# Ratings are normal distributions. Of two, + and - give the distribution of the sum or difference
# of a draw from each: means are added or subtracted, variances added.
def p_win(a, b):
    """Probability that a member rated a performs better than one rated b."""
    behind = (b + NOISE) - (a + NOISE)
    return behind.cdf(0.0)

def truncated(low, high):
    """How a standard normal distribution changes once a draw from it is known to be between low and
    high: v is its new mean, w what its variance loses (the paper's functions V and W)."""
    unit = NormalDist()
    p = unit.cdf(high) - unit.cdf(low)
    v = (unit.pdf(low) - unit.pdf(high)) / p
    w = v ** 2 + (high * unit.pdf(high) - low * unit.pdf(low)) / p
    return v, w

def rate(winner, loser, draw=False):
    """New ratings of both after a match; after a draw their order does not matter."""
    winner, loser = winner + DRIFT, loser + DRIFT
    lead = (winner + NOISE) - (loser + NOISE)       # what was believed before the match
    low, high = DRAW_MARGIN, 1e3                    # of a winner: any lead above the margin
    if draw:
        low, high = -DRAW_MARGIN, DRAW_MARGIN
    c = lead.stdev
    v, w = truncated((low - lead.mean) / c, (high - lead.mean) / c)
    ratings = []
    for member, shift in ((winner, v), (loser, -v)):
        mean = member.mean + shift * member.variance / c
        variance = member.variance * (1.0 - w * member.variance / c ** 2)
        ratings.append(NormalDist(mean, variance ** 0.5))
    return ratings

def rate_match(teacher, student, rows):
    """The student wins if it solved more than the ratings expect, or was given no task at all."""
    surprise = 1.0                                  # no task: whoever writes none has lost
    if rows:
        surprise = solve_rate(rows) - p_win(student.rating, teacher.rating)
    winner, loser = (student, teacher) if surprise > 0 else (teacher, student)
    winner.rating, loser.rating = rate(winner.rating, loser.rating, draw=abs(surprise) <= SURPRISE)

def match(teachers, students, rng):
    """Pairs by prioritised fictitious self-play: a student that beats the teacher with probability
    p is drawn with weight p (1 - p), one time in ten at random; all once before any comes twice."""
    pairs = []
    pool = []                                       # students that wait for their turn
    for teacher in rng.sample(teachers, len(teachers)):
        pool = pool or list(students)
        wins = [p_win(student.rating, teacher.rating) for student in pool]
        even = [p * (1.0 - p) for p in wins]        # largest where both may win
        weights = [0.9 * x / sum(even) + 0.1 / len(pool) for x in even]
        [student] = rng.choices(pool, weights)
        pool.remove(student)
        pairs.append((teacher, student))
    return pairs

# ---- evolution: operators make a child's factors of a layer from its parents', the fitter first --
def components(A, B):
    """Singular components of dW = B A: U (out, R), S (R,), V (R, in), float64. Operators work on
    dW: many factors make the same, so that averages and parts of factors mean nothing."""
    U, S, V = torch.linalg.svd(B.double() @ A.double(), full_matrices=False)
    return U[:, :len(A)], S[:len(A)], V[:len(A)]

def factors_of(dW, R, gen):
    """The best A (R, in) and B (out, R) for dW (out, in). A component without a singular value
    starts anew, as in a founder: with zeros in both factors it would never get a gradient."""
    U, S, V = torch.linalg.svd(dW, full_matrices=False)
    root = S[:R].sqrt()
    A = (root[:, None] * V[:R]).float()
    B = (U[:, :R] * root).float()
    dead = S[:R] <= 1e-6 * S[0]
    A[dead] = (2.0 * torch.rand(A[dead].shape, generator=gen) - 1.0) / A.shape[1] ** 0.5
    B[:, dead] = 0.0
    return A, B

def noise(parents, gen):
    """Mutation: Gaussian noise on both factors, a tenth of their deviation (A's where B is 0)."""
    A, B = parents[0]
    std_A = A.std(correction=0)
    std_B = B.std(correction=0) if B.any() else std_A
    A = A + 0.1 * std_A * torch.randn(A.shape, generator=gen)
    B = B + 0.1 * std_B * torch.randn(B.shape, generator=gen)
    return A, B

def mask(parents, gen):
    """Mutation: a random 30% of the singular components are cut."""
    U, S, V = components(*parents[0])
    cut = torch.rand(len(S), generator=gen).argsort()[:max(1, round(0.3 * len(S)))]
    S[cut] = 0.0
    return factors_of((U * S) @ V, len(S), gen)

def dare(parents, gen):
    """Crossover: each singular component of each parent is inherited with probability 1/2."""
    dW = 0.0
    for A, B in parents:
        U, S, V = components(A, B)
        inherited = torch.rand(len(S), generator=gen) >= 0.5
        dW += (U * S * inherited) @ V
    return factors_of(dW, len(S), gen)

def svd_mix(parents, gen):
    """Crossover: the leading half of the fitter's singular components, the rest of the other's."""
    U, S, V = components(*parents[0])
    X, D, Y = components(*parents[1])
    k = max(1, len(S) // 2)
    U[:, k:], S[k:], V[k:] = X[:, k:], D[k:], Y[k:]
    return factors_of((U * S) @ V, len(S), gen)

N_PARENTS = {noise: 1, mask: 1, dare: 2, svd_mix: 2}

def child_rating(ratings):
    """A child is rated as its parents are, less surely: with a newcomer's fitness, 0, it would be
    the next to go."""
    variance = fmean(r.variance for r in ratings) + NEWCOMER.variance / 16
    return NormalDist(fmean(r.mean for r in ratings), min(variance, NEWCOMER.variance) ** 0.5)

@torch.no_grad()
def evolve(members, step, rng, gen):
    """Replace the worst of a role by a child of others, with a new optimiser. Fitness is mean - 3
    sigma of the rating. The fittest is safe, and a child for one interval."""
    worst_first = sorted(members, key=lambda m: m.rating.mean - 3.0 * m.rating.stdev)
    may_go = [m for m in worst_first[:-1] if step - m.born > EVOLVE_EVERY]
    if not may_go:
        return
    victim = may_go[0]
    survivors = [m for m in reversed(worst_first) if m is not victim]
    operator = rng.choice([op for op, n in N_PARENTS.items() if n <= len(survivors)])
    parents = sorted(rng.sample(survivors, N_PARENTS[operator]), key=survivors.index)
    factors = {}
    for layer in victim.factors:
        factors[layer] = operator([m.factors[layer] for m in parents], gen)
    name = victim.name[0] + str(1 + max(int(m.name[1:]) for m in members))
    rating = child_rating([m.rating for m in parents])
    members[members.index(victim)] = Member(name, victim.role, factors, rating, step)
    print(f"{name} = {operator.__name__}({', '.join(m.name for m in parents)}) for {victim.name}")

# ---- the loop ------------------------------------------------------------------------------------
def main(seed=0, pop=8, steps=30):
    """A whole run: a line a step, and every tenth step the students on tasks that never change."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    gen = torch.Generator().manual_seed(seed)
    model = load_base()
    teachers = [founder(model, "teacher", i, gen) for i in range(pop // 2)]
    students = [founder(model, "student", i, gen) for i in range(pop // 2)]
    seen = set()
    with open_sandbox("auto", FORMAT, workers=1) as sandbox:
        heldout = [task_of(p, sandbox, set()) for p in read_tasks(BASE_DIR / "heldout.jsonl")[:56]]
        for step in range(steps + 1):
            if step % 10 == 0:
                rows = []
                for student in students:
                    rows += flat(solve(model, sandbox, student, heldout, 1, gen, greedy=True))
                print(f"held-out, greedy: {solve_rate(rows):.2f}, think {think_rate(rows):.2f}")
            if step == steps:
                break
            tasks, attempts = [], []
            # 1. match: every teacher draws a student; a pair plays by itself
            for teacher, student in match(teachers, students, rng):
                # 2. propose: the teacher writes programs, the sandbox says which of them are tasks
                proposals = propose(model, sandbox, teacher, seen, rng, gen)
                # 3. solve: the student attempts these
                valid = [row for row in flat(proposals) if row.task]
                given = [row.task for row in valid]
                tries = solve(model, sandbox, student, given, N_ATTEMPTS, gen)
                # 4. update: each is paid and learns from its own rows; then the ratings
                for row, group in zip(valid, tries):
                    row.reward = teacher_reward(solve_rate(group))
                update(model, teacher, proposals)
                update(model, student, tries)
                rate_match(teacher, student, flat(tries))
                tasks += given
                attempts += flat(tries)
            # 5. evolve: the worst of each role makes room for a child of the others
            if (step + 1) % EVOLVE_EVERY == 0:
                evolve(teachers, step, rng, gen)
                evolve(students, step, rng, gen)
            lines = sum(task.program.count("\n") for task in tasks) / max(1, len(tasks))
            print(f"step {step:3d}  tasks {len(tasks):3d}  lines {lines:4.1f}  "
                  f"solved {solve_rate(attempts):.2f}  think {think_rate(attempts):.2f}  "
                  f"CPU {time.process_time():4.0f} s", flush=True)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in dict(seed=0, pop=8, steps=30).items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    args = parser.parse_args()
    if args.pop < 2 or args.pop % 2:
        parser.error(f"--pop {args.pop}: give an even number from 2 on, half of them are teachers")
    try:
        main(**vars(args))
    except KeyboardInterrupt:
        parser.exit(130, "nano.py: interrupted\n")
