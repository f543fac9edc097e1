"""Says what teachers and students are paid.

A teacher's reward is a function (outcome: Outcome) -> float; its entry in TEACHER_REWARDS makes it a value of
--teacher-reward. It is asked about valid proposals only: invalid ones are paid INVALID.

With n attempts at a task the default (1 - p, but 0 when nobody solved it) pays most, in expectation, if its
true solve rate is 1 - n^(-1/(n-1)): 0.37 at 4, 0.26 at 8. So n sets the difficulty: compare runs of equal n.
"""
from dataclasses import dataclass, field

INVALID = -1.0                          # reward of a proposal that is not valid (AZR, eq. 4)
NOISE_MARGIN = 0.1                      # noise-proof: by how much the solve rate must beat guessing


@dataclass(frozen=True)
class Outcome:
    """Holds what became of a valid proposal, which is all that a reward may look at. What it says of the
    archive was counted before the step."""
    solve_rate: float                   # share of all attempts at it that the verifier called correct
    solve_rates: dict[str, float] = field(default_factory=dict)     # the same of each student, by name
    n_attempts: int = 1                 # by all students together
    base_rate: float | None = None      # 1 or 0, the frozen base's one attempt; None without a probe
    kind: str = "code_o"                # task type
    majority_baseline: float = 0.0      # solve rate of guessing the type's most frequent output of late
    n_tasks: int = 0                    # tasks that the archive has seen
    n_of_kind: int = 0                  # tasks of this type that it holds
    # tasks among its latest 512 whose programs differ from this one in names and constants alone. It is above
    # 0 only with --dedupe exact or off, or in code_f: else such a proposal is refused
    n_same_structure: int = 0
    unique_at_64: float = 0.0           # different programs among 64 of the latest, on average
    statements: int = 0                 # in the program
    program: str = ""
    inputs: tuple[str, ...] = ()        # texts, such as "[1, 2], 3"
    outputs: tuple[str, ...] = ()       # one for each input, a literal such as "'abc'"

    @property
    def n_correct(self) -> int:
        """Returns the number of correct attempts."""
        return round(self.solve_rate * self.n_attempts)


def difficulty(outcome: Outcome) -> float:
    """Returns 1 - p of solve rate p, but 0 for what nobody solved (Absolute Zero, eq. 4). The default."""
    return 1 - outcome.solve_rate if outcome.solve_rate > 0 else 0.0


def learnability(outcome: Outcome) -> float:
    """Returns 4 p (1 - p) of solve rate p, which is most where attempts disagree most."""
    return 4 * outcome.solve_rate * (1 - outcome.solve_rate)


def band(outcome: Outcome) -> float:
    """Returns 1 - 2 |p - 1/2| of solve rate p."""
    return 1 - 2 * abs(outcome.solve_rate - 0.5)


def nontrivial(outcome: Outcome) -> float:
    """Returns 1 for anything that is neither always nor never solved."""
    return float(0 < outcome.solve_rate < 1)


def noise_proof(outcome: Outcome) -> float:
    """Returns learnability, but 0 unless the solve rate beats guessing the commonest output by a margin."""
    lucky = outcome.majority_baseline + NOISE_MARGIN
    return learnability(outcome) if outcome.solve_rate > lucky else 0.0


def novelty(outcome: Outcome) -> float:
    """Returns 0 for any valid task, so that only invalid proposals cost. Claims about difficulty need this
    control."""
    return 0.0


TEACHER_REWARDS = {"difficulty": difficulty, "learnability": learnability, "band": band,
                   "nontrivial": nontrivial, "noise-proof": noise_proof, "novelty": novelty}

STUDENT_REWARDS = {"graded": {"correct": 1.0, "wrong": -0.5, "malformed": -1.0},
                   "binary": {"correct": 1.0, "wrong": 0.0, "malformed": 0.0}}
