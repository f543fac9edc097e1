"""Exercise 7: whom should a teacher meet?

Check it with: python -m pytest course/tests/test_matching.py

Prioritised fictitious self-play (Vinyals et al. 2019, AlphaStar, Methods: "Prioritized fictitious
self-play"). p_i is the predicted probability that student i beats the teacher. The weight of student i is

    pfsp      p_i (1 - p_i)      most where the result is open: both sides learn
    hard      (1 - p_i)^2        most where the student loses
    uniform   1

and the probability of drawing it is (1 - floor) weight_i / sum(weight) + floor / n for n students: the floor
keeps everybody in play. Where every weight is 0 (every result is certain) all students are equally likely.
Why is there a floor at all?
"""


def probabilities(p: list[float], mode: str = "pfsp", floor: float = 0.1) -> list[float]:
    """The n probabilities, which sum to 1. p: n floats in [0, 1]; mode: "pfsp", "hard" or "uniform"."""
    raise NotImplementedError("exercise 7")
