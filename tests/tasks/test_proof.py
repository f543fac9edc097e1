"""Theorems as tasks: from a teacher's text through the real sandbox to the verdicts on students' proofs."""
import dataclasses
import random

import pytest
from proposals import CHAT, judge, outcome

import config
from infra.errors import Refused, UserError
from tasks import TASK_TYPES, proof
from tasks.base import Task

PROOF = TASK_TYPES["proof"]
SYL3 = ("h1 $e |- ( p -> q ) $. h2 $e |- ( q -> r ) $. h3 $e |- ( r -> s ) $.\n"
        "syl3 $p |- ( p -> s ) $= wp wq ws h1 wq wr ws h2 h3 syl syl $.")


def proposed(sandbox, text: str):
    """What becomes of a block of Metamath -> Task or the reason."""
    return outcome(sandbox, "proof", f"```metamath\n{text}\n```")


# ---------------------------------------------------------------- proposals

def test_a_theorem_becomes_a_task(sandbox):
    task = proposed(sandbox, SYL3)
    assert task.message == ("h1 $e |- ( p -> q ) $.\nh2 $e |- ( q -> r ) $.\nh3 $e |- ( r -> s ) $.\n"
                            "theorem $p |- ( p -> s )")
    assert task.program == "$0 $1 $2 syl syl" and PROOF.statements(task.program) == 2
    prompt = PROOF.solve("chat", task, CHAT).user
    assert task.message in prompt and task.inputs[0] not in prompt, "the student does not see the proof"
    assert "syl.1 $e |- ( p -> q ) $." in prompt and "wp $f wff p $." in prompt, "what may be cited is shown"
    shown = PROOF.propose("chat", [task], random.Random(0), CHAT).user
    assert f"{task.message} $= {task.inputs[0]} $." in shown


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


def test_a_long_proof_is_refused_and_costs_little(sandbox):
    """Two assumptions that change places again and again; formulas that double, up to their limit."""
    def swapped(n):
        labels = "h"
        for i in range(n):
            labels = f"{'wp wq' if i % 2 == 0 else 'wq wp'} wr {labels} com12"
        goal, formula = "( p -> ( q -> r ) )", "wp wq wr wi wi"
        labels = f"ws {formula} wi ws {formula} ws {labels} a1i a1i"
        return f"h $e |- {goal} $. x $p |- ( s -> ( s -> {goal} ) ) $= {labels} $."
    assert PROOF.statements(proposed(sandbox, swapped(98)).program) == 100
    assert proposed(sandbox, swapped(100)) == "too_long"
    doubles = "".join(f"Z{letter}{letter}B" for letter in "CDEFGHIJKLMNOPQRST")
    with pytest.raises(Refused, match="too many symbols .in the proof of theorem"):
        proof.check(proof.load("prop.mm").fresh(), "theorem $p |- p", f"( wi ) AAB{doubles}")


def test_duplicates_are_statements_up_to_renaming():
    def key(text, dedupe="structural"):
        return PROOF.key(proof.read_theorem(text, "prop.mm"), dedupe)
    other = ("$d r s $. b $e |- ( q -> p ) $. a $e |- ( r -> q ) $. c $e |- ( p -> s ) $.\n"
             "name $p |- ( r -> s ) $= wr wq ws a wq wp ws b c syl syl $.")
    assert key(SYL3) == key(other) and key(SYL3, "exact") != key(other, "exact")
    assert key(SYL3) != key(SYL3.replace("( p -> s )", "( q -> s )"))
    assert key("x $p |- ( p -> q ) $= wp $.") != key("x $p |- ( p -> p ) $= wp $.")
    assert key("x $p |- ( p -> q ) $= wp $.") == key("y $p |- ( s -> p ) $= ws wp $.")


# ---------------------------------------------------------------- answers

@pytest.mark.parametrize("text, verdict", [
    ("```proof\nwp wq ws h1 wq wr ws h2 h3 syl syl\n```", "correct"), ("```proof\nwp wr ws wp wq wr h1 h2 syl h3 syl\n```", "correct"),
    ("First h1.\n```metamath\nx $p |- ( p -> s ) $= wp wr ws wp wq wr h1 h2 syl h3 syl $.\n```", "correct"),
    ("```proof\n( syl ) ABDEBCDFGHH\n```", "correct"), ("<answer>wp wq ws h1 wq wr ws h2 h3 syl syl $.</answer>", "correct"),
    ("```proof\nwp wq ws h1 wq wr ws h3 h2 syl syl\n```", "wrong"),
    ("```proof\nwp wq wr h1 h2 syl\n```", "wrong"), ("```proof\n?\n```", "wrong"), ("```proof\ntheorem\n```", "wrong"),
    ("```proof\nwp $. k $a |- p\n```", "wrong"), ("```proof\nwp $} ${\n```", "malformed"),
    ("```proof\n$[ x $]\n```", "malformed"), (f"```proof\n{'wp ' * 3000}\n```", "malformed"), ("I do not know.", "malformed"), ("", "malformed")])
def test_proofs_deserve_their_verdicts(sandbox, text, verdict):
    assert judge(sandbox, proposed(sandbox, SYL3), "chat", text) == [verdict]


# ---------------------------------------------------------------- theories and flags

def test_theories_are_refused_by_name(tmp_path):
    head = "$c w |- $. $v x y $. wx $f w x $. wy $f w y $.\n"
    texts = {"$c a": "line 1, token 'a'", f"{head}t $p |- x $= ? $.": "t uses a $f in", f"{head}theorem $a |- x $.": "theorem uses a $f in",
             f"{head}${{ $v z $. wz $f w z $. t $a |- z $. $}}": "t uses a $f in", f"{head}h $e |- x $. t $a |- y $.": "t uses a $f in"}
    for i, (text, why) in enumerate(texts.items()):
        file = tmp_path / f"{i}.mm"
        file.write_text(text)
        with pytest.raises(UserError, match="--theory") as caught:
            proof.load(str(file))
        assert why in str(caught.value), text[:100]
    with pytest.raises(UserError, match="--theory none.mm: .*bundled are miu.mm, prop.mm"):
        config.resolve_config(config.Config(task_types=("proof",), theory="none.mm"), "chat")
    assert config.resolve_config(config.Config(theory="none.mm"), "chat"), "without proofs, no theory is read"


def test_a_large_theory_shows_a_part(tmp_path):
    """Types, what the proof cites, and others up to a number, the same for one task each time."""
    many = "".join(f"a{i} $a |- ( x -> {'~ ' * i}x ) $.\n" for i in range(99))
    file = tmp_path / "many.mm"
    grammar = "$v x $. wx $f wff x $. wn $a wff ~ x $. wi $a wff ( x -> x ) $."
    file.write_text(f"$c ( ) -> ~ wff |- $. {grammar}\n{many}")
    limits = dataclasses.replace(CHAT, theory=str(file))
    task = Task("proof", "", ("wx a77",), ("",), "theorem $p |- x", "key")
    shown = PROOF.solve("chat", task, limits).user
    assert shown == PROOF.solve("chat", task, limits).user and "a77 $a" in shown and "wi $a" in shown
    assert shown.count("$a") == proof.N_SHOWN
    teacher = PROOF.propose("chat", [], random.Random(1), limits).user
    assert teacher.count(" $a |-") == proof.N_SHOWN - 2 and "```metamath\nwx $f" in teacher
