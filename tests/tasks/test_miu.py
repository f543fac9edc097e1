"""Derivations of the MIU system, as the micro format writes them: the verifier of Metamath judges them all."""
import random

import pytest
from proposals import fate

import config
from tasks import TASK_TYPES, verify_answers, miu, proof
from tasks.metamath import Database
from tasks.prompts import TEMPLATES
from tasks.validation import Limits

PROOF, LIMITS = TASK_TYPES["proof"], Limits.for_format("micro")


@pytest.mark.parametrize("before, after", [
    ("MI", {"MIU", "MII"}),
    ("MIIIU", {"MUU", "MIIIUIIIU"}),
    ("MUUIII", {"MUUIIIU", "MUUIIIUUIII", "MUUU", "MIII"}),
    ("MIIII", {"MIIIIU", "MIIIIIIII", "MUI", "MIU"}),
    ("MU", {"MUU"})])
def test_rules_are_hofstadters(before, after):
    assert set(miu.rules(before)) == after


def test_every_derivation_is_a_proof():
    """The kernel of Metamath accepts what the rules make, over the bundled database."""
    rng, theory = random.Random(0), (proof.THEORIES / miu.THEORY).read_text()
    for i in range(100):
        lines = miu.derivation(rng, 1 + i % 6)
        assert len(lines) == 2 + i % 6 and len(set(lines)) == len(lines)
        said = miu.statement(lines[0], lines[-1])
        Database().read(f"{theory}\n${{ {said} $= {miu.metamath(lines)} $. $}}")
        assert miu.ends_of(said) == ("h", lines[0], lines[-1])
    with pytest.raises(ValueError):
        Database().read(f"{theory}\n${{ {miu.statement('MI', 'MU')} $= {miu.metamath(['MI', 'MII'])} $. $}}")


def test_derivations_are_theorems_and_proofs(sandbox):
    assert PROOF.propose("micro", [], random.Random(1), LIMITS).user == "propose proof\n"
    task = fate(sandbox, PROOF.parse_proposal("MII\nMIIII\nMUI", "micro", [], LIMITS), LIMITS)
    assert task.program == "iii(\n    double(h))" and PROOF.solve("micro", task, LIMITS).user == "proof\nMII\nMUI\n"
    answers = ["MIIII\nMUI", "MIIII\nMUI\n", "MUI", "MIIII\nMIU", "MIIII", "MIIIIX", "", "MII\nMIIII\nMUI",
               "MIIII\nMIIIIU\nMIIIIUIIIIU\nMIIIIUUIU\nMIIIIIU\nMUIIU"]
    judged, = verify_answers([task], [answers], "micro", LIMITS, sandbox.run)
    assert judged == 2 * ["correct"] + 3 * ["wrong"] + 2 * ["malformed"] + 2 * ["wrong"]


@pytest.mark.parametrize("text, reason", [
    ("MII", "no_proof"), ("", "no_proof"), ("def f(x):\n return x", "no_proof"), ("MII\nMU", "unproved"),
    ("MII\nMIIII", "trivial"), ("MII\nMIIII\nMII", "unproved"), ("M" + 32 * "I" + "\nM" + 64 * "I", "too_long")])
def test_what_is_no_theorem(sandbox, text, reason):
    assert fate(sandbox, PROOF.parse_proposal(text, "micro", [], LIMITS), LIMITS) == reason


def test_theorems_of_a_file_may_have_any_hypotheses():
    """The first hypothesis is the given string, or else the axiom is."""
    for text, given in (("x $p |- M I I U $= se sM sI mii addu $.", "MI"),
                        ("a $e |- M U $. b $e |- M I I $. x $p |- M U U $= se sU a double $.", "MU")):
        proposal = PROOF.from_row({"theorem": text, "theory": miu.THEORY})
        label, first, last = miu.ends_of(proposal.message)
        assert (label, first, last) == (("mi", given, "MIIU") if given == "MI" else ("a", given, "MUU"))


def test_a_theorem_from_the_axiom_is_judged(sandbox):
    proposal = PROOF.from_row({"theorem": "x $p |- M I I U $= se sM sI mii addu $.", "theory": miu.THEORY})
    task = fate(sandbox, proposal, LIMITS)
    assert PROOF.solve("micro", task, LIMITS).user == "proof\nMI\nMIIU\n"
    judged, = verify_answers([task], [["MII\nMIIU", "MIU\nMIIU"]], "micro", LIMITS, sandbox.run)
    assert judged == ["correct", "wrong"]


def test_micro_has_words_for_this_theory_alone():
    assert TEMPLATES["proof"].micro[0] and config.resolve_config(config.Config(task_types="proof"), "micro").theory == miu.THEORY
    with pytest.raises(ValueError, match="--theory prop.mm: the micro prompt format has words for miu.mm alone"):
        config.resolve_config(config.Config(task_types="proof", theory="prop.mm"), "micro")
