"""What teachers and students are paid. A teacher's reward is a function (p, guess, margin) -> float, which becomes a value of
--teacher-reward by its entry in TEACHER_REWARDS.

p is the solve rate of a proposal: the share of its student's attempts that the verifier called correct. guess is the share that
guessing the archive's most frequent output would solve, margin is --noise-margin. Note that the expectation of the default
(1 - p, but 0 when nobody solved it) peaks at p* = 1 - n^(-1/(n-1)) for n attempts (0.26 at 8): n is a difficulty knob, keep it
fixed across the arms of an ablation.
"""


def difficulty(p: float, guess: float, margin: float) -> float:
    """Default: harder is better, unsolvable is worth nothing (Absolute Zero, eq. 4)."""
    return 0.0 if p == 0 else 1 - p


def learnability(p: float, guess: float, margin: float) -> float:
    """4 p (1 - p): most where attempts disagree most."""
    return 4 * p * (1 - p)


def band(p: float, guess: float, margin: float) -> float:
    """1 - 2 |p - 1/2|."""
    return 1 - 2 * abs(p - 0.5)


def nontrivial(p: float, guess: float, margin: float) -> float:
    """1 for anything that is neither always nor never solved."""
    return float(0 < p < 1)


def noise_proof(p: float, guess: float, margin: float) -> float:
    """Learnability, but only where the solve rate beats the rate of guessing the most frequent answer by a margin."""
    return 4 * p * (1 - p) if p > guess + margin else 0.0


def novelty(p: float, guess: float, margin: float) -> float:
    """0 for any valid new task: the control that any claim about difficulty needs (only invalid and duplicate cost)."""
    return 0.0


TEACHER_REWARDS = {"difficulty": difficulty, "learnability": learnability, "band": band, "nontrivial": nontrivial,
                   "noise-proof": noise_proof, "novelty": novelty}

STUDENT_REWARDS = {"graded": {"correct": 1.0, "wrong": -0.5, "malformed": -1.0},
                   "binary": {"correct": 1.0, "wrong": 0.0, "malformed": 0.0}}
