"""eval.code and EvalPlus 0.3.1 say the same of mutants of each published solution (mutants.py, evalplus_verdicts.txt)."""
from pathlib import Path

import pytest
from mutants import mutants

from eval import code
from eval.answer import NOT_PLAIN, Item, published_rows
from verifier import Sandbox

SLOW = {"Mbpp/583"}                 # an exponential recursion, for which EvalPlus had no time
THEIRS = dict(line.split(" ", 1) for line in Path(__file__).with_name("evalplus_verdicts.txt").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("bench, n_problems, n_not_plain, n_compared", [("humaneval+", 164, 3, 416), ("mbpp+", 378, 14, 868)])
def test_the_verdicts_are_those_of_evalplus(published, bench, n_problems, n_not_plain, n_compared):
    """But where either of the two ran out of time, and for results that are no plain values: EvalPlus takes an iterator for a
    list and a Fraction for a number, which a mutant of the third kind returns. The solutions themselves are correct."""
    differ, solutions, n = [], [], 0
    with Sandbox(2, profile="eval") as sandbox:
        for row in published_rows(str(published), bench):
            problem = code.problem_of(bench, row)
            whole = problem.canonical if bench == "humaneval+" else row["prompt"] + problem.canonical
            asked = []
            for program in (whole, *mutants(problem.id, whole, problem.entry)):
                asked.append((Item(bench, problem.id, None, problem), f"```python\n{program}\n```"))
            own, *ours = code.judge(sandbox, "chat", asked)
            solutions.append(own["verdict"])
            for number, (their, our) in enumerate(zip(THEIRS.get(problem.id, "").split(), ours)):
                odd = our["verdict"] == NOT_PLAIN or "t" in their or "timeout" in our["why"] or problem.id in SLOW or "unsupported" in our["why"]
                n += not odd
                if not odd and (our["verdict"] == "correct") != (their == "pp"):
                    differ.append((problem.id, number, their, our["verdict"], our["why"]))
    assert not differ and n >= n_compared, "fewer only where time runs out here"
    assert len(solutions) == n_problems and solutions.count(NOT_PLAIN) == n_not_plain and set(solutions) == {"correct", NOT_PLAIN}
