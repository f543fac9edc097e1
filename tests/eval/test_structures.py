"""Whether tasks go on being new: shapes of loops, structures without operators, the table of a run."""
import json

import pytest

from eval.population import structures
from infra.errors import UserError
from tasks.complexity import parse, structural_hash

MAPPED = "def f(x):\n x=[v{}{} for v in x]\n return x"
NESTED = "def f(x):\n for i in range({}):\n  x=[v for v in [w for w in x]]\n while x>{}:\n  x-=1\n return sum(v for v in x)"


def test_the_shape_of_loops():
    shapes = {"def f(x):\n return x+1": "", MAPPED.format("+", 1): "list", NESTED.format(3, 4): "for(list(list)) while generator",
              "def f(x):\n if x:\n  for i in x:\n   for j in x:\n    pass\n return {v for v in x}": "for(for) set"}
    for program, shape in shapes.items():
        assert structures.loop_shape(parse(program)) == shape


def test_operators_count_in_one_hash_and_not_in_the_other():
    one, other = MAPPED.format("+", 1), MAPPED.format("*", 2)
    assert structural_hash(one) != structural_hash(other) and structures.coarse_hash(one) == structures.coarse_hash(other)
    pairs = [("def f(x):\n x+=1\n return x", "def f(x):\n x//=7\n return x"), ("def f(x):\n return x<1", "def f(x):\n return x!=3")]
    assert all(structures.coarse_hash(a) == structures.coarse_hash(b) for a, b in pairs)
    assert len({structures.coarse_hash(program) for program in (one, NESTED.format(1, 2), *pairs[0], *pairs[1])}) == 4


def test_the_table_of_a_run(tmp_path, capsys):
    """Two windows of two steps: in the second all valid tasks are variants of one loop, which only the coarse measures see."""
    tasks = [(0, ""), (0, NESTED.format(1, 2)), (1, MAPPED.format("+", 1)), (1, "def f(x):\n return x"),
             (2, MAPPED.format("*", 2)), (2, MAPPED.format("-", 3)), (3, MAPPED.format("//", 4)), (3, "")]
    rows = [dict(step=step, reason="" if program else "duplicate", program=program) for step, program in tasks]
    metrics = [dict(step=0, heldout_greedy=dict(S0=.2, S1=.4)), dict(step=1), dict(step=2, heldout_greedy=dict(S0=.5, S1=.7)), dict(step=3)]
    for name, lines in (("tasks", rows), ("metrics", metrics)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = structures.described(tmp_path, 2)
    assert (first["repeats"], first["tasks"], first["structures"], first["shapes"]) == (1 / 4, 3, 3, 2)
    assert first["new_without_operators"] == 1 and first["share"] == pytest.approx(1 / 3)
    assert (second["structures"], second["new_without_operators"], second["share"], second["commonest"]) == (3, 0, 1, "list")
    assert [first["heldout"], second["heldout"]] == pytest.approx([0.3, 0.6])
    assert structures.main([str(tmp_path), "--every", "2"]) == 0 and "2 to 3" in capsys.readouterr().out
    for words, match in (([str(tmp_path / "nothing")], "no tasks in these runs"), ([str(tmp_path), "--every", "0"], "give at least 1")):
        with pytest.raises(UserError, match=match):
            structures.main(words)
