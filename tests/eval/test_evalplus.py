"""eval.code and EvalPlus 0.3.1 say the same of three mutants of each published solution (mutants.py, evalplus_verdicts.txt)."""
import ast
from argparse import Namespace
from pathlib import Path

import pytest
from mutants import mutants

from eval import fetch
from eval.code import suites
from eval.code.problems import SETS, problem_of
from verifier import Sandbox

SHARED = Path(__file__).resolve().parents[3] / "shared" / "evaldata"
THEIRS = dict(line.split(" ", 1) for line in Path(__file__).with_name("evalplus_verdicts.txt").read_text().splitlines())
ALWAYS_FAILED = "HumanEval/32"                      # by EvalPlus 0.3.1, also the published solution: docs/evaluation.md


def test_mutants_are_programs_that_differ():
    canonical = "def f(x):\n    return [y + 1 for y in x if y > 2] or len(x) * 0.5"
    made = mutants("HumanEval/0", canonical, "f")
    assert len(set(made)) == 3 and all(ast.dump(ast.parse(m)) != ast.dump(ast.parse(canonical)) for m in made)
    assert made == mutants("HumanEval/0", canonical, "f") != mutants("HumanEval/1", canonical, "f")


def test_the_table_has_all_kinds_of_verdicts():
    verdicts = [word for line in THEIRS.values() for word in line.split()]
    assert len(verdicts) == 3 * len(THEIRS) and set(verdicts) <= {"pp", "pf", "ff", "pt", "fp", "tp", "ft", "tf", "tt"}
    assert len(THEIRS) == 542 and min(map(verdicts.count, ("pp", "pf", "ff"))) > 100


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not here")
@pytest.mark.parametrize("bench", ["humaneval+", "mbpp+"])
def test_the_verdicts_are_those_of_evalplus(bench):
    """But where either of the two ran out of time."""
    problems = fetch.load(Namespace(bench=bench, data=str(SHARED), limit=0), SETS, problem_of)[0]
    differ = []
    with Sandbox(2, profile="eval") as sandbox:
        for problem in problems:
            if problem.id not in THEIRS or problem.id == ALWAYS_FAILED:
                continue
            source = problem.canonical if bench == "humaneval+" else problem.prompt + problem.canonical
            suite, = suites.suites(sandbox, [problem])
            rows = suites.verify(sandbox, [(suite, mutant) for mutant in mutants(problem.id, source, problem.entry)])
            for number, (theirs, row) in enumerate(zip(THEIRS[problem.id].split(), rows, strict=True)):
                ours = "pf"[not row["base"]], "pf"[not row["plus"]]
                expected = theirs[0], "p" if theirs == "pp" else "f"
                if ours != expected and "t" not in theirs and "timeout" not in row["why"]:
                    differ.append((problem.id, number, theirs, row))
    assert not differ
