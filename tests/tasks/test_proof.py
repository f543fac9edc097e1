"""The corner of theorems: a verifier of Metamath, and proofs as tasks, from a teacher's text to the verdicts on students' proofs."""
import dataclasses
import random
import re

import pytest
from proposals import CHAT, judge, outcome
from tiny_run import python

from common import UserError
from tasks import TASK_TYPES, metamath, proof
from tasks.base import Task
from tasks.metamath import Database

PROOF = TASK_TYPES["proof"]
SYL3 = ("h1 $e |- ( p -> q ) $. h2 $e |- ( q -> r ) $. h3 $e |- ( r -> s ) $.\n"
        "syl3 $p |- ( p -> s ) $= wp wq ws h1 wq wr ws h2 h3 syl syl $.")
HEAD = ("$c ( ) -> wff |- $. $v p q $. wp $f wff p $. wq $f wff q $. wi $a wff ( p -> q ) $. "
        "${ m1 $e |- p $. m2 $e |- ( p -> q ) $. mp $a |- q $. $} ")


def test_the_corner_is_imported_only_when_it_is_asked_for():
    code = "import sys, tasks; print('tasks.proof' in sys.modules); tasks.TASK_TYPES['proof'].name; print('tasks.proof' in sys.modules)"
    done = python("-c", code)
    assert done.stdout.split() == ["False", "True"], done.stderr


# --- the verifier -------------------------------------------------------------------------------------------

def refusal(text: str, **limits) -> str:
    """Returns why a database is refused; "" if it is not."""
    try:
        Database().read(text, **limits)
    except metamath.Mistake as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["miu.mm", "prop.mm"])
def test_the_command_line(name, tmp_path, capsys):
    """Exit code 0, or 1 with line and token."""
    path, broken = proof.THEORIES / name, tmp_path / "broken.mm"
    broken.write_text(f"$a\n{path.read_text()}")
    assert metamath.main([str(path)]) == 0 and metamath.main([str(broken)]) == metamath.main([str(tmp_path / "none.mm")]) == 1
    said = capsys.readouterr().out
    assert "0 with incomplete proofs" in said and "line 1, token '$a': no label" in said


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


def test_malformed_files_are_refused_with_line_and_token():
    for case in MALFORMED.strip().split("\n"):
        text, token, why = case.split(" | ")
        said = refusal(f"\n\n{text.replace('HEAD', HEAD)}")
        assert said.startswith(f"line 3, token '{token}': ") and why in said, said
        assert said.endswith(" (in the proof of t)") == ("t $p" in text and "expected" not in why), said


def test_every_damage_to_a_database_is_survived_or_refused_by_name():
    """Databases that are cut off anywhere, and databases with tokens replaced, doubled or left out."""
    text, rng = (proof.THEORIES / "miu.mm").read_text(), random.Random(3)
    damaged = [text[:end] for end in range(0, len(text), 17)]
    for _ in range(200):
        words = re.split(r"(\s+)", text)
        at = rng.randrange(0, len(words), 2)
        words[at] = rng.choice(["", rng.choice(words), words[at] * 2, f"{words[at]} {words[at]}", "$.", "?", "( )"])
        damaged.append("".join(words))
    for one in damaged:
        said = refusal(one, max_work=10_000)
        assert not said or re.match(r"line \d+, token '.*': ", said), said


def test_scopes_and_incomplete_proofs():
    """A block takes back its variables and hypotheses, not its assertions; "?" proves nothing, and counts."""
    blocks = ("${ $v z $. wz $f wff z $. ${ h $e |- z $. t $p |- z $= h $. $} $}\n"
              "${ $v z $. wy $f wff z $. u $a |- z $. $}\n")
    use = "v $p |- p $= wp u $.\nw $p |- p $= wp wp u t $.\n"
    database = Database().read(f"{HEAD}{blocks}{use}x $p |- q $= ? $.\ny $p |- q $= ( u ) A? $.")
    assert [h.label for h in database.assertions["t"].hypotheses] == ["wz", "h"] and not database.scopes
    assert database.incomplete == ["x", "y"]


@pytest.mark.parametrize("given, formula, proof, holds", [
    ("", "p != q", "wp wq", False), ("$d p q $.", "p != p", "wp wp", False),
    ("$d p q r $.", "p != ( q -> r )", "wp wq wr wi", True), ("$d p q $.", "p != ( q -> r )", "wp wq wr wi", False),
    ("$d p q $. $d p r $. $d q r $.", "( p -> q ) != ( r -> p )", "wp wq wi wr wp wi", False)])
def test_distinct_variables(given, formula, proof, holds):
    """What stands for distinct variables shares none, and all pairs of its variables are distinct."""
    text = ("$c ( ) -> wff |- != $. $v p q r $. wp $f wff p $. wq $f wff q $. wr $f wff r $.\n"
            "wi $a wff ( p -> q ) $. ${ $d p q $. ne $a |- p != q $. $}\n"
            f"${{ {given} t $p |- {formula} $= {proof} ne $. $}}")
    said = refusal(text)
    assert (said == "") == holds and (holds or "must not meet" in said), said


def test_a_proof_costs_its_limit_only():
    """Labels without end, formulas that double at every step, saved steps without end, pairs without end."""
    doubles = "".join(f"Z{letter}{letter}B" for letter in "CDEFGHIJKLMNOPQRST")
    hostile = {"wp " * 4_000: "too many symbols", f"( wi ) AAB{doubles}": "too many symbols", "( ) " + "U" * 10_000: "beyond",
               "( ) " + "AZ" * 5_000: "too many symbols"}
    for steps, why in hostile.items():
        assert why in refusal(HEAD + f"t $p wff p $= {steps} $.", max_work=2_000), steps[:40]
    names = " ".join(f"v{i}" for i in range(500))
    assert "too many pairs" in refusal(f"$c a $. $v {names} $. $d {names} $.", max_work=20_000)


# --- theorems as tasks --------------------------------------------------------------------------------------

def proposed(sandbox, text: str) -> Task | str:
    """Returns what becomes of a block of Metamath, a task or the reason."""
    return outcome(sandbox, "proof", f"```metamath\n{text}\n```")


def test_a_theorem_becomes_a_task(sandbox):
    task = proposed(sandbox, SYL3)
    assert task.message == ("h1 $e |- ( p -> q ) $.\nh2 $e |- ( q -> r ) $.\nh3 $e |- ( r -> s ) $.\n"
                            "theorem $p |- ( p -> s )")
    assert task.program == "$0 $1 $2 syl syl" and PROOF.statements(task.program) == 2
    prompt = PROOF.solve("chat", task, CHAT).user
    assert task.message in prompt and task.inputs[0] not in prompt, "the student does not see the proof"
    assert "syl.1 $e |- ( p -> q ) $." in prompt and "wp $f wff p $." in prompt, "what may be cited is shown"
    assert f"{task.message} $= {task.inputs[0]} $." in PROOF.propose("chat", [task], random.Random(0), CHAT).user


def test_a_block_may_hold_more(sandbox):
    """Scopes, comments, declarations and labels that the database has already, another name, a compressed proof."""
    extra = f"$c wff $. $v p $. wp $f wff p $. ${{ $( a chain $) {SYL3} $}}\nlater $p |- p $= wp $."
    assert proposed(sandbox, extra).message == proposed(sandbox, SYL3).message
    short = SYL3.partition("$=")[0] + "$= ( syl ) ABDEBCDFGHH $."
    assert proposed(sandbox, short).program == "$0 $1 $2 syl syl"
    assert proposed(sandbox, "x $p |- p $.\n```\n```metamath\n" + SYL3.replace("h1", "mp.1")).program == "$0 $1 $2 syl syl"


@pytest.mark.parametrize("text, reason", [
    ("", "no_proof"), ("x $a |- p $.", "no_proof"), ("x $p |- ( p -> p ) $.", "no_proof"),
    ("x $p |- p $= <|im_end|> $.", "control_text"), ("x $p |- é $= wp $.", "syntax"), ("x $p |- p $= wp $.", "unproved"), ("x $p |- p $= ? $.", "unproved"),
    ("x $p |- p $= x $.", "unproved"), ("a $a |- p $. x $p |- p $= a $.", "unproved"),
    (f"x $p |- p $= {'wp ' * 2000} $.", "too_long"), (f"x $p |- {'~ ' * 61} p $= wp $.", "too_long"), ("x $p |- ( s -> s ) $= ws id $.", "trivial"),
    ("x $p |- ( ~ q -> ( ( p -> p ) -> ~ q ) ) $= wq wn wp wp wi ax1 $.", "trivial"),
    ("h $e |- p $. x $p |- p $= h $.", "trivial"), ("x $p wff ( p -> p ) $= wp wp wi $.", "trivial"),
    ("h $e |- p $. k $e |- p $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq h a1i a1i $.", "trivial"),
    # told apart by their labels, though no Python name could tell
    ("h.1 $e |- p $. h-1 $e |- r $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq h.1 a1i a1i $.", "unused_hypothesis"),
    ("".join(f"h{i} $e |- p $. " for i in range(5)) + "x $p |- q $= wq $.", "too_long")])
def test_theorems_are_refused_by_name(sandbox, text, reason):
    assert proposed(sandbox, text) == reason


def test_duplicates_are_statements_up_to_renaming():
    def key(text, dedupe="structural"):
        return PROOF.key(proof.read_theorem(text, "prop.mm"), dedupe)
    other = ("$d r s $. b $e |- ( q -> p ) $. a $e |- ( r -> q ) $. c $e |- ( p -> s ) $.\n"
             "name $p |- ( r -> s ) $= wr wq ws a wq wp ws b c syl syl $.")
    assert key(SYL3) == key(other) and key(SYL3, "exact") != key(other, "exact")
    assert key(SYL3) != key(SYL3.replace("( p -> s )", "( q -> s )"))
    assert key("x $p |- ( p -> q ) $= wp $.") == key("y $p |- ( s -> p ) $= ws wp $.")


@pytest.mark.parametrize("text, verdict", [
    ("```proof\nwp wq ws h1 wq wr ws h2 h3 syl syl\n```", "correct"),
    ("First h1.\n```metamath\nx $p |- ( p -> s ) $= wp wr ws wp wq wr h1 h2 syl h3 syl $.\n```", "correct"),
    ("```proof\n( syl ) ABDEBCDFGHH\n```", "correct"), ("<answer>wp wq ws h1 wq wr ws h2 h3 syl syl $.</answer>", "correct"),
    ("```proof\nwp wq ws h1 wq wr ws h3 h2 syl syl\n```", "wrong"),
    ("```proof\nwp wq wr h1 h2 syl\n```", "wrong"), ("```proof\n?\n```", "wrong"), ("```proof\ntheorem\n```", "wrong"),
    ("```proof\nwp $. k $a |- p\n```", "wrong"), ("```proof\nwp $} ${\n```", "malformed"),
    (f"```proof\n{'wp ' * 3000}\n```", "malformed"), ("I do not know.", "malformed")])
def test_proofs_deserve_their_verdicts(sandbox, text, verdict):
    assert judge(sandbox, proposed(sandbox, SYL3), "chat", text) == [verdict]


def test_theories_are_refused_by_name(tmp_path):
    head = "$c w |- $. $v x y $. wx $f w x $. wy $f w y $.\n"
    texts = {"$c a": "line 1, token 'a'", f"{head}t $p |- x $= ? $.": "t uses a $f in", f"{head}theorem $a |- x $.": "theorem uses a $f in",
             f"{head}${{ $v z $. wz $f w z $. t $a |- z $. $}}": "t uses a $f in", f"{head}h $e |- x $. t $a |- y $.": "t uses a $f in"}
    for i, (text, why) in enumerate(texts.items()):
        file = tmp_path / f"{i}.mm"
        file.write_text(text)
        with pytest.raises(UserError, match="theory") as caught:
            proof.load(str(file))
        assert why in str(caught.value), text[:100]
    with pytest.raises(UserError, match="theory none.mm: .*bundled are miu.mm, prop.mm"):
        proof.load("none.mm")


def test_a_large_theory_shows_a_part(tmp_path):
    """Types, what the proof cites, and others up to a number, the same for one task each time."""
    many = "".join(f"a{i} $a |- ( x -> x ) $.\n" for i in range(99))
    file = tmp_path / "many.mm"
    grammar = "$v x $. wx $f wff x $. wn $a wff ~ x $. wi $a wff ( x -> x ) $."
    file.write_text(f"$c ( ) -> ~ wff |- $. {grammar}\n{many}")
    limits = dataclasses.replace(CHAT, theory=str(file))
    task = Task("proof", "", ("wx a77",), ("",), "theorem $p |- x", "key")
    shown, again = (PROOF.solve("chat", task, limits).user for _ in range(2))
    assert shown == again and "a77 $a" in shown and "wi $a" in shown and shown.count("$a") == proof.N_SHOWN
    assert PROOF.propose("chat", [], random.Random(1), limits).user.count(" $a |-") == proof.N_SHOWN - 2
