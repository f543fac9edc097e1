"""Holds all of PopuLoRA in one file, to be read top to bottom with the paper beside it.

    python nano.py --seed 0 --pop 8 --steps 30           # four minutes on one core

A population of LoRA adapters on one frozen base teaches itself to read Python. Teachers write small
programs. Students say what the programs return. A sandboxed interpreter is the only verifier. A step
has five phases:

    1. match     every teacher draws a student, most likely one about as good as itself
    2. propose   the teacher writes programs with an input; one that runs, and is new, is a task
    3. solve     its student makes four attempts at every task
    4. update    both are paid and take one step of REINFORCE++; TrueSkill rates the match
    5. evolve    every eighth step the worst of each role is replaced by a child of the others

The paper is arXiv 2605.16727, on top of 2505.03335 (AZR). train.py does the same fast, in one batch
for all members and with more to choose from; tests compare the two. Left out is what long runs need:
KL to the base, rates that fall, and that a student stays if its child is no better at tasks.

    a teacher reads "propose out list" and writes        its student reads that and answers
        def f(x):                                            >[3,7,5]
         x=x[1:]+x[:1]                                       =[3,7,5]
         return x
        f([5,3,7])

Watch the students start to think, in steps 10 to 20. With a trace (">", x after each statement) the
base is right seven times in ten. But by habit it answers at once ("="), and is right twice in ten.

Shapes have the letters N rows (each an answer), T tokens, V vocabulary, R rank. logits[:, t] predict
ids[:, t + 1].
"""
import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("nano.py: torch is not installed: run `make setup`, use .venv") from None
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

# These are not the paper's own: the kinds of tasks, a sandbox for programs, TrueSkill.
from common import Refused
from tasks import TASK_TYPES, read_tasks, verify_answers
from tasks.base import Proposal, Task
from tasks.programs import Limits
from tasks.prompts import Answer, Prompt
from trueskill_lite import Rating, TrueSkill, child_rating
from verifier import Sandbox, open_sandbox

BASE_DIR = Path(__file__).resolve().parent / "micro" / "base"
FORMAT = "micro"                                    # the prompt format that this base knows
LIMITS = Limits.for_format(FORMAT)                  # how long programs and values may be
DEDUCTION = TASK_TYPES["code_o"]                    # given a program and an input, find the output
TRUESKILL = TrueSkill()
RANK = 8
ALPHA = 32.0                                        # a member changes a weight by ALPHA / RANK * B A
N_PROMPTS = 3                                       # that a teacher gets in a step
N_PROPOSALS = 8                                     # that a teacher writes to each prompt
N_ATTEMPTS = 4                                      # that a student makes at each task
MAX_NEW_TOKENS = 80                                 # in a proposal or an attempt
REWARD = {"correct": 1.0, "wrong": -0.5, "malformed": -1.0}        # for an attempt
LEARNING_RATE = {"teacher": 3e-3, "student": 2e-3}
EVOLVE_EVERY = 8                                    # steps
DRAW_BAND = 0.05                                    # how near to the expected solve rate is a draw

# ---- the population ------------------------------------------------------------------------------
Factors = tuple[Tensor, Tensor]                     # A (R, in) and B (out, R) of one layer

@dataclass(eq=False)
class Member:
    """Holds one of the population: a LoRA adapter with an optimiser and a rating of its own."""
    name: str                                       # "T0", "S3": unique over the run
    role: str                                       # "teacher" | "student"
    factors: dict[str, Factors]                     # by the layer's name
    rating: Rating = Rating()
    born: int = -EVOLVE_EVERY                       # step of its birth; a founder counts as old

    def __post_init__(self) -> None:
        self.parameters = []
        for A, B in self.factors.values():
            self.parameters += [A.requires_grad_(), B.requires_grad_()]
        rate = LEARNING_RATE[self.role]
        self.adam = torch.optim.Adam(self.parameters, rate, betas=(0.9, 0.95))

class LoRALinear(torch.nn.Linear):
    """Adds to a frozen linear layer the low-rank update of the member that is plugged in."""
    member = None                                   # whose factors all layers use now

    def forward(self, x: Tensor) -> Tensor:         # (N, T, in) -> (N, T, out)
        A, B = LoRALinear.member.factors[self.name]
        return super().forward(x) + ALPHA / RANK * (x @ A.T @ B.T)

def load_base() -> PreTrainedModel:
    """Returns the frozen base with its tokenizer. The blocks' linear layers are LoRALinear now."""
    model = AutoModelForCausalLM.from_pretrained(BASE_DIR, dtype=torch.float32)
    model.requires_grad_(False)
    for name, layer in model.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.__class__ = LoRALinear            # the weights stay, forward is ours
            layer.name = f"model.{name}"
    model.tokenizer = AutoTokenizer.from_pretrained(BASE_DIR)
    return model

def founder(model: PreTrainedModel, role: str, number: int) -> Member:
    """Returns a member that equals the base: its A are Kaiming-uniform, and its B are zero."""
    factors = {}
    for layer in model.modules():
        if isinstance(layer, LoRALinear):
            n_out, n_in = layer.weight.shape
            bound = n_in ** -0.5
            A = torch.empty(RANK, n_in).uniform_(-bound, bound)
            factors[layer.name] = A, torch.zeros(n_out, RANK)
    name = role[0].upper() + str(number)
    return Member(name, role, factors)

# ---- sampling ------------------------------------------------------------------------------------
@dataclass
class Row:
    """Holds one answer: a teacher's proposal, or a student's attempt at a task."""
    prompt: list[int]                               # token ids
    answer: list[int]                               # with the end token, unless cut off
    text: str = ""                                  # the answer in words
    task: Task | None = None                        # that a valid proposal has become
    verdict: str = ""                               # on an attempt
    reward: float = -1.0                            # what an invalid proposal is paid
    advantage: float = 0.0                          # for each of the answer's tokens

Group = list[Row]                                   # all answers of a member to one prompt

def flat(groups: list[Group]) -> list[Row]:
    """Returns the rows of all groups."""
    rows = []
    for group in groups:
        rows += group
    return rows

def pad(lists: list[list], side: str = "right") -> Tensor:
    """Returns lists of numbers as one tensor (N, T), padded with zeros."""
    rows = [torch.tensor(numbers) for numbers in lists]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)

@torch.inference_mode()
def sample(model: PreTrainedModel, member: Member, prompts: list[Prompt], n: int,
           greedy: bool = False) -> list[Group]:
    """Returns n answers of a member to each prompt, drawn at temperature 1 or greedily."""
    if not prompts:
        return []
    LoRALinear.member = member
    groups = []
    for prompt in prompts:
        ids = model.tokenizer(prompt.user).input_ids
        groups.append([Row(ids, []) for _ in range(n)])
    growing = flat(groups)                          # rows whose answers have not ended
    # Padded on the left, prompts of all lengths end in the last column, where their answers begin.
    # A short prompt then starts at a later position, which changes nothing: with RoPE attention
    # depends on the distance of two tokens alone.
    ids = pad([row.prompt for row in growing], "left")          # (N, T)
    mask = (ids != 0).float()                       # (N, T): token 0 is <pad>, which no text holds
    cache = DynamicCache()
    for _ in range(MAX_NEW_TOKENS):
        # the cache by its place, because transformers 5.24 changes its name
        out = model(ids, mask, None, cache, logits_to_keep=1)
        p = out.logits[:, -1].softmax(-1)           # (N, V)
        if greedy:
            token = p.argmax(-1)                    # (N,)
        else:
            token = torch.multinomial(p, 1).squeeze(1)
        for row, t in zip(growing, token.tolist()):
            row.answer.append(t)
        # A row that has ended leaves the batch, and the cache with it: N falls.
        alive = (token != model.config.eos_token_id).nonzero().squeeze(1)
        if len(alive) == 0:
            break
        growing = [growing[i] for i in alive]
        cache.batch_select_indices(alive)
        ids = token[alive, None]                    # (N, 1): what came before is in the cache
        mask = torch.cat([mask[alive], torch.ones(len(alive), 1)], dim=1)
    for row in flat(groups):
        row.text = model.tokenizer.decode(row.answer, skip_special_tokens=True)
    return groups

# ---- tasks: teachers propose them, the sandbox verifies, students solve --------------------------
def task_of(proposal: Proposal, sandbox: Sandbox, seen: set[str]) -> Task | None:
    """Returns the task that a proposal becomes if it runs, is deterministic and is new; else None.
    `seen` holds the structures of all tasks so far. Without `seen` teachers end up repeating one
    short program that is hard."""
    try:
        DEDUCTION.check(proposal, LIMITS)
        key = DEDUCTION.key(proposal, "structural")     # without names and constants
        if key in seen:
            return None
        [result] = sandbox.run([DEDUCTION.job(proposal)])
        task = DEDUCTION.make(proposal, result, LIMITS, key)    # what it returned is the solution
    except Refused:
        return None
    seen.add(key)
    return task

def propose(model: PreTrainedModel, sandbox: Sandbox, teacher: Member,
            seen: set[str]) -> list[Group]:
    """Returns a teacher's proposals. A valid proposal has its task in row.task."""
    prompts = []
    for _ in range(N_PROMPTS):                      # each asks for an int, a list or a str
        prompts.append(DEDUCTION.propose(FORMAT, [], random, LIMITS))
    groups = sample(model, teacher, prompts, N_PROPOSALS)
    for row in flat(groups):
        try:
            proposal = DEDUCTION.read(Answer(row.text, FORMAT), [], LIMITS)
        except Refused:                             # the text is no proposal
            continue
        row.task = task_of(proposal, sandbox, seen)
    return groups

def solve(model: PreTrainedModel, sandbox: Sandbox, student: Member, tasks: list[Task], n: int,
          greedy: bool = False) -> list[Group]:
    """Returns n attempts of a student at each task, judged and paid."""
    prompts = []
    for task in tasks:
        prompts.append(DEDUCTION.solve(FORMAT, task, LIMITS))
    groups = sample(model, student, prompts, n, greedy)
    for task, group in zip(tasks, groups):
        texts = [row.text for row in group]
        [verdicts] = verify_answers([task], [texts], FORMAT, LIMITS, sandbox.run)
        for row, verdict in zip(group, verdicts):
            row.verdict = verdict
            row.reward = REWARD.get(verdict, 0.0)   # 0 where the verifier itself failed
    return groups

def solve_rate(rows: list[Row]) -> float:
    """Returns the share of attempts that were correct."""
    return sum(row.verdict == "correct" for row in rows) / max(1, len(rows))

def think_rate(rows: list[Row]) -> float:
    """Returns the share of attempts that trace the program's values before they answer."""
    return sum(row.text.startswith(">") for row in rows) / max(1, len(rows))

def teacher_reward(p: float) -> float:
    """Returns what a task of solve rate p pays: harder is better, unsolvable pays 0 (AZR, eq. 4)."""
    if p == 0:
        return 0.0
    return 1.0 - p

# ---- REINFORCE++ with baseline (2501.03262) ------------------------------------------------------
def advantages(groups: list[Group]) -> None:
    """Sets the advantages of one member's rows: the reward less the group's mean, whitened over all
    tokens. A group of equal rewards does not say which answer is better, so its rows keep 0."""
    rows = []
    for group in groups:
        rewards = [row.reward for row in group]
        if pstdev(rewards) > 1e-6:
            rows += group
            for row in group:
                row.advantage = row.reward - fmean(rewards)
    of_tokens = []
    for row in rows:
        of_tokens += [row.advantage] * len(row.answer)
    if of_tokens:
        mean = fmean(of_tokens)
        std = pstdev(of_tokens)
        for row in rows:
            row.advantage = (row.advantage - mean) / (std + 1e-6)

def loss_of(model: PreTrainedModel, member: Member, rows: list[Row], n_tokens: int) -> Tensor:
    """Returns -sum(advantage * logp) / n_tokens over the tokens of the rows' answers. The rows were
    sampled just now, so PPO's ratio is 1, and its clipped loss has the same gradient."""
    LoRALinear.member = member
    texts = []
    weights = []
    for row in rows:
        texts.append(row.prompt + row.answer)
        of_prompt = [0.0] * len(row.prompt)         # it was not sampled
        weights.append(of_prompt + [row.advantage] * len(row.answer))
    ids = pad(texts)                                # (N, T): no token sees the padding behind it
    weight = pad(weights)[:, 1:]                    # (N, T-1)
    logits = model(ids).logits[:, :-1]              # (N, T-1, V)
    target = ids[:, 1:, None]                       # (N, T-1, 1)
    logp = logits.log_softmax(-1).gather(2, target).squeeze(2)      # (N, T-1)
    return -(weight * logp).sum() / n_tokens

def update(model: PreTrainedModel, member: Member, groups: list[Group]) -> None:
    """Takes one step of Adam on a member's own groups of rows, its gradient clipped to norm 1."""
    advantages(groups)
    # The loss is a mean over the tokens of all rows. Rows of advantage 0 are not run, because they
    # add nothing to the sum. But their tokens count, so a few telling rows move a member little.
    n_tokens = 0
    rows = []
    for row in flat(groups):
        n_tokens += len(row.answer)
        if row.advantage != 0:
            rows.append(row)
    if not rows:
        return                                      # Adam's momentum alone would move the member
    member.adam.zero_grad()
    loss_of(model, member, rows, n_tokens).backward()
    torch.nn.utils.clip_grad_norm_(member.parameters, 1.0)
    member.adam.step()

# ---- ratings, and matching by them ---------------------------------------------------------------
def rate_match(teacher: Member, student: Member, rows: list[Row]) -> None:
    """Rates a match. The student wins if it solved more than the ratings expect, or was given no
    task at all. A solve rate within DRAW_BAND of the expected one is a draw. TrueSkill itself
    assumes that one in ten matches of equals is a draw, and DRAW_BAND does not change that."""
    surprise = 1.0                                  # a teacher that wrote no task has lost
    if rows:
        surprise = solve_rate(rows) - TRUESKILL.p_win(student.rating, teacher.rating)
    winner, loser = student, teacher
    if surprise < 0:
        winner, loser = teacher, student
    draw = abs(surprise) <= DRAW_BAND
    winner.rating, loser.rating = TRUESKILL.rate(winner.rating, loser.rating, draw)

def match(teachers: list[Member], students: list[Member]) -> list[tuple[Member, Member]]:
    """Returns pairs by prioritised fictitious self-play: a student that beats the teacher with
    probability p is drawn with weight p (1 - p), and one time in ten at random. Nobody is drawn
    twice before all have been drawn once."""
    pairs = []
    pool = []                                       # students that have not been drawn yet
    for teacher in random.sample(teachers, len(teachers)):
        if not pool:
            pool = list(students)
        weights = []                                # largest if the result is open
        for student in pool:
            p = TRUESKILL.p_win(student.rating, teacher.rating)
            weights.append(p * (1.0 - p))
        shares = [0.9 * x / sum(weights) + 0.1 / len(pool) for x in weights]
        [student] = random.choices(pool, shares)
        pool.remove(student)
        pairs.append((teacher, student))
    return pairs

# ---- evolution: operators make a child's factors of a layer from its parents' --------------------
def factors_of(dW: Tensor, R: int) -> Factors:
    """Returns the best A (R, in) and B (out, R) for dW (out, in). A component whose singular value
    is 0 starts anew, as in a founder, because zeros in both factors would never get a gradient."""
    U, S, V = torch.linalg.svd(dW, full_matrices=False)
    root = S[:R].sqrt()
    A = (root[:, None] * V[:R]).float()
    B = (U[:, :R] * root).float()
    dead = S[:R] <= 1e-6 * S[0]
    bound = A.shape[1] ** -0.5
    A[dead] = A[dead].uniform_(-bound, bound)
    B[:, dead] = 0.0
    return A, B

def noise(parents: list[Factors]) -> Factors:
    """Mutates: adds Gaussian noise to both factors, a tenth of their deviation (A's if B is 0)."""
    [(A, B)] = parents
    std_A = A.std(correction=0)
    std_B = B.std(correction=0)
    if std_B == 0:
        std_B = std_A
    A = A + 0.1 * std_A * torch.randn(A.shape)
    B = B + 0.1 * std_B * torch.randn(B.shape)
    return A, B

def dare(parents: list[Factors]) -> Factors:
    """Crosses: each singular component of each parent's dW = B A is inherited with probability 1/2.
    The factors themselves cannot be mixed, because many pairs of them have the same product."""
    dW = 0.0
    for A, B in parents:
        R = len(A)
        U, S, V = torch.linalg.svd(B.double() @ A.double(), full_matrices=False)
        S[R:] = 0.0                                 # B A has rank R: these are rounding errors
        S[:R] *= torch.rand(R) >= 0.5
        dW += (U * S) @ V                           # (out, in)
    return factors_of(dW, R)

N_PARENTS = {noise: 1, dare: 2}                     # operators.py has more

def weakest(members: list[Member], step: int) -> Member | None:
    """Returns who is to be replaced: never the fittest, nor a child younger than one interval.
    Fitness is mu - 3 sigma of the rating, the skill that a member has almost surely."""
    worst_first = sorted(members, key=lambda m: TRUESKILL.fitness(m.rating))
    for member in worst_first[:-1]:
        if step - member.born > EVOLVE_EVERY:
            return member
    return None

@torch.no_grad()
def evolve(members: list[Member], step: int) -> None:
    """Replaces the worst of a role by a child of others, with a new optimiser. The child's rating is
    its parents', less certain. With a newcomer's rating (fitness 0) it would be the next to go."""
    victim = weakest(members, step)
    if victim is None:
        return
    survivors = [m for m in members if m is not victim]
    operator = random.choice([noise, dare])
    if len(survivors) < N_PARENTS[operator]:
        operator = noise
    parents = random.sample(survivors, N_PARENTS[operator])
    factors = {}
    for layer in victim.factors:
        factors[layer] = operator([m.factors[layer] for m in parents])
    number = 1 + max(int(m.name[1:]) for m in members)
    child = Member(victim.name[0] + str(number), victim.role, factors, born=step)
    child.rating = child_rating(TRUESKILL, [m.rating for m in parents])
    members[members.index(victim)] = child
    names = ", ".join(m.name for m in parents)
    print(f"{child.name} = {operator.__name__}({names}) for {victim.name}")

# ---- the loop ------------------------------------------------------------------------------------
def main(seed: int = 0, pop: int = 8, steps: int = 30) -> None:
    """Runs it all: prints a line a step, and every tenth step asks the students held-out tasks."""
    torch.set_num_threads(1)
    model = load_base()
    random.seed(seed)
    torch.manual_seed(seed)
    teachers = [founder(model, "teacher", i) for i in range(pop // 2)]
    students = [founder(model, "student", i) for i in range(pop // 2)]
    seen = set()
    with open_sandbox(FORMAT, workers=1) as sandbox:
        heldout = []
        for proposal in read_tasks(BASE_DIR / "heldout.jsonl")[:56]:
            heldout.append(task_of(proposal, sandbox, seen=set()))
        for step in range(steps + 1):
            if step % 10 == 0:
                rows = []
                for student in students:
                    rows += flat(solve(model, sandbox, student, heldout, 1, greedy=True))
                print(f"held-out, greedy: {solve_rate(rows):.2f}, think {think_rate(rows):.2f}")
            if step == steps:
                break
            tasks = []
            attempts = []
            # 1. match: every teacher draws a student; a pair plays by itself
            for teacher, student in match(teachers, students):
                # 2. propose: the teacher writes programs, the sandbox says which of them are tasks
                proposals = propose(model, sandbox, teacher, seen)
                valid = []
                given = []
                for row in flat(proposals):
                    if row.task:
                        valid.append(row)
                        given.append(row.task)
                # 3. solve: the student attempts these
                tries = solve(model, sandbox, student, given, N_ATTEMPTS)
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
                evolve(teachers, step)
                evolve(students, step)
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
