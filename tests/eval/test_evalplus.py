"""eval.code and EvalPlus 0.3.1 say the same of mutants of each published solution (mutants.py, evalplus_verdicts.txt)."""
from pathlib import Path

import pytest
from mutants import mutants

from eval import code
from eval.answer import NOT_PLAIN, Item, published_rows
from verifier import Sandbox

SHARED = Path(__file__).resolve().parents[3] / "shared" / "evaldata"
THEIRS = dict(line.split(" ", 1) for line in Path(__file__).with_name("evalplus_verdicts.txt").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not here")
@pytest.mark.parametrize("bench", ["humaneval+", "mbpp+"])
def test_the_verdicts_are_those_of_evalplus(bench):
    """But where either of the two ran out of time, and for results that are no plain values: EvalPlus takes an iterator for a
    list and a Fraction for a number, which a mutant of the third kind returns."""
    differ, n = [], 0
    with Sandbox(2, profile="eval") as sandbox:
        judge = code.Judge(sandbox, "chat")
        for row in published_rows(str(SHARED), bench):
            problem = code.problem_of(bench, row)
            theirs = THEIRS.get(problem.id, "").split()
            asked = []
            for mutant in mutants(problem.id, problem.canonical if bench == "humaneval+" else row["prompt"] + problem.canonical, problem.entry):
                asked.append((Item(bench, problem.id, None, problem), f"```python\n{mutant}\n```"))
            for number, (their, ours) in enumerate(zip(theirs, judge(asked))):
                odd = ours["verdict"] == NOT_PLAIN or "t" in their or "timeout" in ours["why"] or "unsupported" in ours["why"]
                n += not odd
                if not odd and (ours["verdict"] == "correct") != (their == "pp"):
                    differ.append((problem.id, number, their, ours["verdict"], ours["why"]))
    assert not differ and n > 400
