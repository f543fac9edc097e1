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

from tasks import TASK_TYPES, read_tasks  # what a task is, and how it is spoken of
from tasks.base import Reject  # what a proposal becomes that is no task
from tasks.validation import Limits  # how long programs and values may be
from verifier import open_sandbox  # where programs run

BASE = Path(__file__).resolve().parent / "micro" / "base"
FORMAT = "micro"                                    # the prompt format that this base knows
LIMITS = Limits.for_format(FORMAT)
DEDUCTION = TASK_TYPES["code_o"]                    # given a program and an input, find the output
RANK, ALPHA = 8, 32.0                               # a member's update is ALPHA / RANK * B A
N_PROMPTS, N_PROPOSALS = 3, 8                       # a teacher's a step, and to each of them
N_ATTEMPTS = 4                                      # of a student at each task
MAX_NEW_TOKENS = 80                                 # of a proposal or an attempt
REWARD = {"correct": 1.0, "wrong": -0.5, "malformed": -1.0}        # of an attempt
LEARNING_RATE = {"teacher": 3e-3, "student": 2e-3}
EVOLVE_EVERY = 8
NEWCOMER = NormalDist(25.0, 25.0 / 3.0)             # what is believed of a new member's skill
NOISE = NormalDist(0.0, 25.0 / 6.0)                 # of performance around skill (beta)
DRIFT = NormalDist(0.0, 25.0 / 300.0)               # of skill between two matches (tau)
DRAW_MARGIN = NormalDist().inv_cdf(0.55) * 2.0 ** 0.5 * NOISE.stdev        # one match in ten

# ---- the population ------------------------------------------------------------------------------
@dataclass(eq=False)
class Member:
    """One of the population: an adapter with an optimiser and a rating of its own."""
    name: str                                       # "T0", "S3": unique over the run
    role: str                                       # "teacher" | "student"
    factors: dict                                   # layer -> (A (R, in), B (out, R))
    rating: NormalDist = NEWCOMER
    born: int = -EVOLVE_EVERY                       # step; founders are of age

    def __post_init__(self):
        self.parameters = [x.requires_grad_() for pair in self.factors.values() for x in pair]
        self.adam = torch.optim.Adam(self.parameters, LEARNING_RATE[self.role], betas=(0.9, 0.95))

class LoRALinear(torch.nn.Linear):
    """A frozen linear layer plus the low-rank update of the member that is plugged in."""
    member = None                                   # one at a time, the same for all layers

    def forward(self, x):                           # (N, T, in)
        A, B = LoRALinear.member.factors[self.name]     # (R, in), (out, R)
        return super().forward(x) + ALPHA / RANK * (x @ A.T @ B.T)

def load_base():
    """The base, frozen, with its tokenizer, the blocks' linear layers having become LoRALinear."""
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).requires_grad_(False)
    for name, layer in model.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.__class__ = LoRALinear            # the same weights, our forward
            layer.name = f"model.{name}"
    model.tokenizer = AutoTokenizer.from_pretrained(BASE)
    return model

def fresh_factors(model, gen):
    """Of a founder: A Kaiming-uniform and B zero, so that it equals the base."""
    factors = {}
    for layer in model.modules():
        if isinstance(layer, LoRALinear):
            n_out, n_in = layer.weight.shape
            A = torch.empty(RANK, n_in).uniform_(-n_in ** -0.5, n_in ** -0.5, generator=gen)
            factors[layer.name] = (A, torch.zeros(n_out, RANK))
    return factors

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

def pad(lists, side="right"):
    """Lists of numbers as one tensor (N, T), padded with zeros."""
    return torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, lists)), True, padding_side=side)

@torch.inference_mode()
def sample(model, member, prompts, n, gen, greedy=False):
    """n answers of a member to each prompt, at temperature 1 or greedy: a list of rows for each."""
    if not prompts:
        return []
    LoRALinear.member = member
    starts = [model.tokenizer(prompt.user).input_ids for prompt in prompts for _ in range(n)]
    answers = [[] for _ in starts]
    growing = torch.arange(len(starts))             # rows whose answers have not ended
    # Padded on the left, so that positions begin late: RoPE knows only distances, nothing changes.
    ids = pad(starts, "left")                                                 # (N, T)
    mask = pad([[1.0] * len(start) for start in starts], "left")              # (N, T)
    cache = DynamicCache()
    for _ in range(MAX_NEW_TOKENS):
        out = model(ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1)
        p = out.logits[:, -1].softmax(-1)           # (N, V)
        token = p.argmax(-1) if greedy else torch.multinomial(p, 1, generator=gen)[:, 0]
        for i, t in zip(growing.tolist(), token.tolist()):
            answers[i].append(t)
        alive = (token != model.config.eos_token_id).nonzero()[:, 0]
        if len(alive) == 0:
            break
        cache.batch_select_indices(alive)
        growing = growing[alive]
        ids = token[alive, None]                    # (N, 1): what came before is in the cache
        mask = torch.cat([mask[alive], torch.ones(len(alive), 1)], 1)
    texts = model.tokenizer.batch_decode(answers, skip_special_tokens=True)
    rows = [Row(*row) for row in zip(starts, answers, texts)]
    return [rows[i:i + n] for i in range(0, len(rows), n)]

# ---- tasks: teachers propose them, the sandbox verifies, students solve --------------------------
def verify(sandbox, proposal, seen):
    """The task in a proposal, or None: it must parse, run, be deterministic, and new. `seen` is the
    memory of the run: without it teachers end up repeating one short program that is hard."""
    if isinstance(proposal, Reject) or DEDUCTION.check(proposal, LIMITS):
        return None
    key = DEDUCTION.key(proposal, "structural")     # of the program without names and constants
    if key in seen:
        return None
    [result] = sandbox.run([DEDUCTION.job(proposal)])
    task = DEDUCTION.accept(proposal, result, LIMITS, key)      # what it returned is the solution
    if not isinstance(task, Reject):
        seen.add(key)
        return task

def solve(model, sandbox, student, tasks, n, gen, greedy=False):
    """n attempts of a student at each task, judged and paid: a list of rows for each."""
    prompts = [DEDUCTION.solve(FORMAT, task, LIMITS) for task in tasks]
    groups = sample(model, student, prompts, n, gen, greedy)
    for task, group in zip(tasks, groups):
        answers = [DEDUCTION.parse_answer(row.text, FORMAT, task, LIMITS) for row in group]
        results = sandbox.run(DEDUCTION.answer_jobs(task, answers, LIMITS))
        for row, verdict in zip(group, DEDUCTION.verify(task, answers, results, LIMITS)):
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
    """Set the rows' advantages from one member's groups of rows, a prompt each: the reward less the
    group's mean, whitened over all tokens. A group of equal rewards says nothing: it keeps 0."""
    varied = []
    for group in groups:
        rewards = [row.reward for row in group]
        if pstdev(rewards) > 1e-6:
            varied += group
            for row in group:
                row.advantage = row.reward - fmean(rewards)
    of_tokens = [row.advantage for row in varied for _ in row.answer] or [0.0]
    mean, std = fmean(of_tokens), pstdev(of_tokens)
    for row in varied:
        row.advantage = (row.advantage - mean) / (std + 1e-6)

def policy_gradient(model, member, rows):
    """Fill .grad with the gradient of -sum(advantage * logp) / n over the rows' n answer tokens.
    One step on what was just sampled: PPO's ratio is 1, and its clipped loss has this gradient."""
    member.adam.zero_grad()
    LoRALinear.member = member
    n_tokens = sum(len(row.answer) for row in rows)
    rows = [row for row in rows if row.advantage != 0]              # others have no gradient
    rows.sort(key=lambda row: len(row.prompt) + len(row.answer))    # little padding
    for i in range(0, len(rows), 32):
        part = rows[i:i + 32]                                       # a micro-batch
        ids = pad([row.prompt + row.answer for row in part])                           # (N, T)
        weight = pad([[0.0] * len(r.prompt) + [r.advantage] * len(r.answer) for r in part])
        logp = model(ids).logits[:, :-1].log_softmax(-1)                               # (N, T-1, V)
        logp = logp.gather(2, ids[:, 1:, None])[:, :, 0]                               # (N, T-1)
        (-(weight[:, 1:] * logp).sum() / n_tokens).backward()

def update(model, member, groups):
    """One step of Adam, its gradient clipped to norm 1, on a member's own groups of rows."""
    advantages(groups)
    if any(row.advantage for group in groups for row in group):
        policy_gradient(model, member, sum(groups, []))
        torch.nn.utils.clip_grad_norm_(member.parameters, 1.0)
        member.adam.step()

# ---- TrueSkill for two players (Herbrich, Minka & Graepel 2006), and matching by it --------------
def p_win(a, b):
    """Probability that a member rated a performs better than one rated b."""
    return ((b + NOISE) - (a + NOISE)).cdf(0.0)

def rate(winner, loser, draw=False):
    """New ratings of both after a match; after a draw their order does not matter."""
    winner, loser = winner + DRIFT, loser + DRIFT
    c = ((winner + NOISE) - (loser + NOISE)).stdev
    t = (winner.mean - loser.mean) / c
    e = DRAW_MARGIN / c
    unit = NormalDist()
    if draw:
        a, b = e - abs(t), -e - abs(t)
        z = unit.cdf(a) - unit.cdf(b)
        v = (unit.pdf(b) - unit.pdf(a)) / z * (1.0 if t > 0 else -1.0)
        w = v ** 2 + (a * unit.pdf(a) - b * unit.pdf(b)) / z
    else:
        v = unit.pdf(t - e) / unit.cdf(t - e)
        w = v * (v + t - e)
    sigma_w, sigma_l = (m.stdev * (1.0 - w * m.variance / c ** 2) ** 0.5 for m in (winner, loser))
    return (NormalDist(winner.mean + winner.variance * v / c, sigma_w),
            NormalDist(loser.mean - loser.variance * v / c, sigma_l))

def rate_match(teacher, student, rows):
    """The student wins if it solved more than the ratings expect, or was given no task at all."""
    surprise = (solve_rate(rows) - p_win(student.rating, teacher.rating)) if rows else 1.0
    winner, loser = (student, teacher) if surprise > 0 else (teacher, student)
    winner.rating, loser.rating = rate(winner.rating, loser.rating, draw=abs(surprise) <= 0.05)

def match(teachers, students, rng):
    """Pairs by prioritised fictitious self-play: a student that beats the teacher with probability
    p is drawn with weight p (1 - p), one time in ten at random; all once before any comes twice."""
    pairs, pool = [], []
    for teacher in rng.sample(teachers, len(teachers)):
        pool = pool or list(students)
        p = [p_win(student.rating, teacher.rating) for student in pool]
        total = sum(x * (1.0 - x) for x in p)
        [student] = rng.choices(pool, [0.9 * x * (1.0 - x) / total + 0.1 / len(p) for x in p])
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
    stds = [A.std(correction=0), (B if B.any() else A).std(correction=0)]
    return [x + 0.1 * std * torch.randn(x.shape, generator=gen) for x, std in zip((A, B), stds)]

def mask(parents, gen):
    """Mutation: a random 30% of the singular components are cut."""
    U, S, V = components(*parents[0])
    cut = torch.rand(len(S), generator=gen).argsort()[:max(1, round(0.3 * len(S)))]
    S[cut] = 0.0
    return factors_of((U * S) @ V, len(S), gen)

def dare(parents, gen):
    """Crossover: each singular component of each parent is inherited with probability 1/2."""
    dW = 0.0
    for factors in parents:
        U, S, V = components(*factors)
        dW = dW + (U * S * (torch.rand(len(S), generator=gen) >= 0.5)) @ V
    return factors_of(dW, len(S), gen)

def svd_mix(parents, gen):
    """Crossover: the leading half of the fitter's singular components, the rest of the other's."""
    U, S, V = components(*parents[0])
    X, D, Y = components(*parents[1])
    k = max(1, len(S) // 2)
    return factors_of((U[:, :k] * S[:k]) @ V[:k] + (X[:, k:] * D[k:]) @ Y[k:], len(S), gen)

N_PARENTS = {noise: 1, mask: 1, dare: 2, svd_mix: 2}

@torch.no_grad()
def evolve(members, step, rng, gen):
    """Replace the worst of a role by a child of others. Fitness is mean - 3 sigma of the rating;
    the fittest is safe, and a child for one interval. A child is rated as its parents are, less
    surely: with a newcomer's fitness, 0, it would be the next to go. Its optimiser is new."""
    worst_first = sorted(members, key=lambda m: m.rating.mean - 3.0 * m.rating.stdev)
    victim = next((m for m in worst_first[:-1] if step - m.born > EVOLVE_EVERY), None)
    if victim is None:
        return
    survivors = [m for m in reversed(worst_first) if m is not victim]
    operator = rng.choice([op for op, n in N_PARENTS.items() if n <= len(survivors)])
    parents = sorted(rng.sample(survivors, N_PARENTS[operator]), key=survivors.index)
    of_parents = {layer: [m.factors[layer] for m in parents] for layer in victim.factors}
    factors = {layer: operator(pairs, gen) for layer, pairs in of_parents.items()}
    var = min(fmean(m.rating.variance for m in parents) + NEWCOMER.variance / 16, NEWCOMER.variance)
    rating = NormalDist(fmean(m.rating.mean for m in parents), var ** 0.5)
    name = victim.name[0] + str(1 + max(int(m.name[1:]) for m in members))
    members[members.index(victim)] = Member(name, victim.role, factors, rating, step)
    print(f"{name} = {operator.__name__}({', '.join(m.name for m in parents)}) for {victim.name}")

# ---- the loop ------------------------------------------------------------------------------------
def main(seed=0, pop=8, steps=30):
    """A whole run: a line a step, and every tenth step the students on tasks that never change."""
    torch.set_num_threads(1)
    rng, gen = random.Random(seed), torch.Generator().manual_seed(seed)
    model = load_base()
    teachers = [Member(f"T{i}", "teacher", fresh_factors(model, gen)) for i in range(pop // 2)]
    students = [Member(f"S{i}", "student", fresh_factors(model, gen)) for i in range(pop // 2)]
    seen = set()
    with open_sandbox("auto", FORMAT, workers=1) as sandbox:
        heldout = [verify(sandbox, p, set()) for p in read_tasks(BASE / "heldout.jsonl")[:56]]
        for step in range(steps + 1):
            if step % 10 == 0:
                rows = []
                for student in students:
                    rows += sum(solve(model, sandbox, student, heldout, 1, gen, greedy=True), [])
                print(f"held-out, greedy: {solve_rate(rows):.2f}, think {think_rate(rows):.2f}")
            if step == steps:
                break
            tasks, attempts = [], []

            # 1. match: every teacher draws a student; a pair plays by itself
            for teacher, student in match(teachers, students, rng):
                # 2. propose: the teacher writes programs, the sandbox says which of them are tasks
                prompts = [DEDUCTION.propose(FORMAT, [], rng, LIMITS) for _ in range(N_PROMPTS)]
                proposals = sample(model, teacher, prompts, N_PROPOSALS, gen)
                for row in sum(proposals, []):
                    program = DEDUCTION.parse_proposal(row.text, FORMAT, [], LIMITS)
                    row.task = verify(sandbox, program, seen)
                # 3. solve: the student attempts these
                valid = [row for row in sum(proposals, []) if row.task]
                tries = solve(model, sandbox, student, [row.task for row in valid], N_ATTEMPTS, gen)
                # 4. update: each is paid and learns from its own rows; then the ratings
                for row, group in zip(valid, tries):
                    row.reward = teacher_reward(solve_rate(group))
                update(model, teacher, proposals)
                update(model, student, tries)
                rate_match(teacher, student, sum(tries, []))
                tasks += [row.task for row in valid]
                attempts += sum(tries, [])

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
