"""The verifier: the published suite, malformed files by line and token, limits, proofs changed at random."""
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks import metamath
from tasks.metamath import Database

ROOT = Path(metamath.__file__).resolve().parents[1]
SUITE = ROOT.parent / "shared" / "evaldata" / "metamath"
FILES = sorted(SUITE.glob("*.mm"))
THEORIES = sorted((ROOT / "tasks" / "theories").glob("*.mm"))
HEAD = ("$c ( ) -> wff |- $. $v p q $. wp $f wff p $. wq $f wff q $. wi $a wff ( p -> q ) $. "
        "${ m1 $e |- p $. m2 $e |- ( p -> q ) $. mp $a |- q $. $} ")


def refusal(text: str, **limits) -> str:
    """Why a database is refused; "" where it is not."""
    try:
        Database().read(text, **limits)
    except metamath.Mistake as error:
        return str(error)
    return ""


# ---------------------------------------------------------------- the published suite

@pytest.mark.skipif(not FILES, reason="needs the published suite in ../shared/evaldata/metamath")
def test_the_published_suite_is_judged_as_it_should_be(capsys):
    """All but *-bad*.mm hold. Includes are refused; with the other file in its place, that file holds too."""
    for path in FILES:
        includes, bad = path.stem == "demo0-includer", "-bad" in path.stem
        assert metamath.main([str(path)]) == int(includes or bad), path.name
        printed = capsys.readouterr().out
        assert (", token '" in printed) == (includes or bad) and ("token '$['" in printed) == includes
    text, other = ((SUITE / f"demo0-include{who}.mm").read_text() for who in ("r", "e"))
    assert refusal(text.replace("$[ demo0-includee.mm $]", other)) == ""
    assert refusal(text.replace("$[ demo0-includee.mm $]", other).replace("tze tpl", "tpl tze", 1)) != ""


@pytest.mark.parametrize("path", THEORIES, ids=lambda path: path.name)
def test_the_command_line(path, tmp_path, capsys):
    """Exit code 0, or 1 with line and token; and the file needs nothing but the standard library."""
    for how in ("-I", metamath.__file__), ("-m", "tasks.metamath"):
        done = subprocess.run([sys.executable, *how, path], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "0 with incomplete proofs" in done.stdout and not done.stderr
    broken, text = tmp_path / "broken.mm", path.read_text()
    broken.write_text(f"{text}\n$a")
    assert metamath.main([str(broken)]) == metamath.main([str(tmp_path / "none.mm")]) == 1
    last_line = text.count("\n") + 2
    assert f"line {last_line}, token '$a': no label" in capsys.readouterr().out


# ---------------------------------------------------------------- malformed files

# a text, the token where it is refused, and why
MALFORMED = """\
$c a $. $( open | $( | not closed
$( a $( b $) | $( | do not nest
$c a\v $. | \\x0b | ASCII
$[ other.mm $] | $[ | refused
$. a | $. | no such keyword
$c a | a | ends before $.
$c $. | $. | missing
$c a $= $. | $= | $. was expected
${ $c a $. $} | a | outside of blocks
$v x $. $c x $. | x | in use
${ $v x $. $} $c x $. | x | in use
$} | $} | no block is open
a | a | ends inside
a*b $c c $. | a*b | label
l $c a $. | $c | not after l
$c a $. a $a a $. | a | in use
$c a $. l $a a $. l $a a $. | l | in use
$c a $. $v x $. l $a a x $. | x | neither a constant
$c w $. ${ $v x $. l $f w x $. $} k $a w x $. | x | neither a constant
$c w $. $v x $. l $f w $. | w | a $f is
$c w $. $v x $. l $f w x $. k $f w x $. | x | a $f is
$v x $. $d x $. | x | a $d names
HEAD t $p wff p $. | $. | $= was expected
HEAD t $p wff p $= $. | $. | leaves 0
HEAD t $p wff p $= t $. | t | is called t
HEAD ${ h $e |- p $. $} t $p |- p $= h $. | h | is called h
HEAD t $p wff p $= wq $. | wq | what it proves is wff q
HEAD t $p wff p $= wp wi $. | wi | needs 2 expressions, not 1
HEAD t $p wff p $= ( wp ) A $. | ( | none mandatory
HEAD t $p wff p $= ( wq wq ) A $. | ( | each once
HEAD t $p wff p $= ( ) B $. | B | beyond
HEAD t $p wff p $= ( ) ZA $. | ZA | follows no step
HEAD t $p wff p $= ( ) Aa $. | Aa | letters
HEAD t $p wff p $= ( wi wq ) AU $. | AU | inside a number
HEAD ${ h $e |- p $. t $p |- q $= wp wq h h mp $. $} | mp | mp, m2: not met by |- p
"""


@pytest.mark.parametrize("case", MALFORMED.strip().split("\n"))
def test_malformed_files_are_refused_with_line_and_token(case):
    text, token, why = case.split(" | ")
    said = refusal(f"\n\n{text.replace('HEAD', HEAD)}")
    assert said.startswith(f"line 3, token '{token}': ") and why in said, said
    assert said.endswith(" (in the proof of t)") == ("t $p" in text and "expected" not in why), said


def test_every_damage_to_a_database_is_survived_or_refused_by_name():
    """Databases that are cut off anywhere, and databases with tokens replaced, moved, doubled or left out."""
    text, rng = THEORIES[0].read_text(), random.Random(3)
    damaged = [text[:end] for end in range(0, len(text), 7)]
    for _ in range(500):
        words = re.split(r"(\s+)", text)
        for at in rng.choices(range(0, len(words), 2), k=rng.choice((1, 1, 3))):
            other = rng.choice(words)
            words[at] = rng.choice(["", other, words[at] * 2, f"{words[at]} {words[at]}", "$.", "?", "( )"])
        damaged.append("".join(words))
    for one in damaged:
        said = refusal(one, max_work=10_000)
        assert not said or re.match(r"line \d+, token '.*': ", said), said


# ---------------------------------------------------------------- what may be proved

def test_scopes_and_incomplete_proofs():
    """A block takes back its variables and hypotheses, not its assertions; "?" proves nothing, and counts."""
    blocks = ("${ $v z $. wz $f wff z $. ${ h $e |- z $. t $p |- z $= h $. $} $}\n"
              "${ $v z $. wy $f wff z $. u $a |- z $. $}\n")
    use = "v $p |- p $= wp u $.\nw $p |- p $= wp wp u t $.\n"
    database = Database().read(f"{HEAD}{blocks}{use}x $p |- q $= ? $.\ny $p |- q $= ( u ) A? $.")
    assert [h.label for h in database.assertions["t"].hypotheses] == ["wz", "h"] and not database.scopes
    assert database.incomplete == ["x", "y"]


@pytest.mark.parametrize("given, formula, proof, holds", [
    ("$d p q $.", "p != q", "wp wq", True), ("", "p != q", "wp wq", False), ("$d p q $.", "p != p", "wp wp", False),
    ("$d p q r $.", "p != ( q -> r )", "wp wq wr wi", True), ("$d p q $.", "p != ( q -> r )", "wp wq wr wi", False),
    ("$d q r $. $d p r $.", "r != ( p -> q )", "wr wp wq wi", True),
    ("$d p q $. $d p r $. $d q r $.", "( p -> q ) != ( r -> p )", "wp wq wi wr wp wi", False)])
def test_distinct_variables(given, formula, proof, holds):
    """What stands for distinct variables shares none, and all pairs of its variables are distinct."""
    text = ("$c ( ) -> wff |- != $. $v p q r $. wp $f wff p $. wq $f wff q $. wr $f wff r $.\n"
            "wi $a wff ( p -> q ) $. ${ $d p q $. ne $a |- p != q $. $}\n"
            f"${{ {given} t $p |- {formula} $= {proof} ne $. $}}")
    said = refusal(text)
    assert (said == "") == holds and (holds or "must not meet" in said), said


@pytest.mark.slow
def test_a_proof_costs_its_limit_only():
    """Megabytes of labels, formulas that double at every step, saved steps without end, endless numbers."""
    doubles = "".join(f"Z{letter}{letter}B" for letter in "CDEFGHIJKLMNOPQRST")
    hostile = {"wp " * 400_000: "too many symbols", f"( wi ) AAB{doubles}": "too many symbols",
               "( ) " + "U" * 1_000_000: "beyond", "( ) " + "AZ" * 500_000: "too many symbols"}
    for proof, why in hostile.items():
        started = time.process_time()
        assert why in refusal(HEAD + f"t $p wff p $= {proof} $.", max_work=200_000), proof[:40]
        assert time.process_time() - started < 20
    assert "too many blocks" in refusal("${ " * 100_000)
    names = " ".join(f"v{i}" for i in range(5_000))
    started = time.process_time()
    assert "too many pairs" in refusal(f"$c a $. $v {names} $. " + f"$d {names} $. " * 3)
    small = " ".join(names.split()[:300])
    assert "too many pairs" in refusal(f"$c a $. $v {small} $. $d {small} $. " + "".join(f"x{i} $a a $. " for i in range(999)))
    assert time.process_time() - started < 10
    cites = "ne $a |- ( p -> q ) $. t $p |- ( p -> q ) $= wp wq ne $."
    least = [next(n for n in range(99) if not refusal(HEAD + given + cites, max_work=n)) for given in ("", "$d p q $. ")]
    assert least[0] < least[1], "a pair that is compared is work"
