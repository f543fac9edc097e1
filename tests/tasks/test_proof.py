"""Theorems as tasks: from a teacher's text through the real sandbox to the verdicts on students' proofs."""
import dataclasses
import random
import time
from types import SimpleNamespace

import pytest
import torch
from proposals import fate

import config
import selfplay
from evolve import Member
from infra.distributed import Ranks
from run.metrics import describe
from run.task_log import task_from_row, task_rows
from tasks import TASK_TYPES, proof, read_tasks, verify_answers
from tasks.archive import Archive
from tasks.base import Proposal, Reject, Task
from tasks.prompts import PROMPT_FORMATS
from tasks.validation import Limits
from trueskill_lite import Rating

PROOF, LIMITS = TASK_TYPES["proof"], Limits()
MIU = dataclasses.replace(LIMITS, theory="miu.mm")
SYL3 = ("h1 $e |- ( p -> q ) $. h2 $e |- ( q -> r ) $. h3 $e |- ( r -> s ) $.\n"
        "syl3 $p |- ( p -> s ) $= wp wq ws h1 wq wr ws h2 h3 syl syl $.")


def outcome(sandbox, text: str, limits: Limits = LIMITS):
    """The whole way of a proposal -> Task or the reason."""
    return fate(sandbox, PROOF.parse_proposal(f"```metamath\n{text}\n```", "chat", [], limits), limits)


# ---------------------------------------------------------------- proposals

def test_a_theorem_becomes_a_task(sandbox):
    task = outcome(sandbox, SYL3)
    assert task.message == ("h1 $e |- ( p -> q ) $.\nh2 $e |- ( q -> r ) $.\nh3 $e |- ( r -> s ) $.\n"
                            "theorem $p |- ( p -> s )")
    assert task.program == "syl(h1,\n    syl(h2, h3))"
    prompt = PROOF.solve("chat", task, LIMITS).user
    assert task.message in prompt and task.inputs[0] not in prompt, "the student does not see the proof"
    assert "syl.1 $e |- ( p -> q ) $." in prompt and "wp $f wff p $." in prompt, "what may be cited is shown"
    shown = PROOF.propose("chat", [task], random.Random(0), LIMITS).user
    assert f"{task.message} $= {task.inputs[0]} $." in shown


def test_a_block_may_hold_more(sandbox):
    """Scopes, comments, declarations that the database has already, another name, a compressed proof."""
    extra = f"$c wff $. $v p $. wp $f wff p $. ${{ $( a chain $) {SYL3} $}}\nlater $p |- p $= wp $."
    assert outcome(sandbox, extra).message == outcome(sandbox, SYL3).message
    short = SYL3.partition("$=")[0] + "$= ( syl ) ABDEBCDFGHH $."
    assert outcome(sandbox, short).program == outcome(sandbox, SYL3).program


@pytest.mark.parametrize("text, reason", [
    ("", "no_proof"), ("x $a |- p $.", "no_proof"), ("x $p |- ( p -> p ) $.", "no_proof"),
    ("x $p |- ( p -> p ) $= $.", "no_proof"), ("x $p |- é $= wp $.", "syntax"),
    ("x $p |- p $= wp $.", "unproved"), ("x $p |- p $= ? $.", "unproved"),
    ("x $p |- p $= x $.", "unproved"), ("a $a |- p $. x $p |- p $= a $.", "unproved"),
    (f"x $p |- p $= {'wp ' * 2000} $.", "too_long"), (f"x $p |- {'~ ' * 61} p $= wp $.", "too_long"),
    ("x $p |- ( p -> ( q -> p ) ) $= wp wq ax1 $.", "trivial"), ("x $p |- ( s -> s ) $= ws id $.", "trivial"),
    ("x $p |- ( ~ q -> ( ( p -> p ) -> ~ q ) ) $= wq wn wp wp wi ax1 $.", "trivial"),
    ("h $e |- ~ p $. x $p |- ( q -> ~ p ) $= wp wn wq h a1i $.", "trivial"),
    ("h $e |- p $. x $p |- p $= h $.", "trivial"),
    ("x $p |- ( p -> p ) $= wp wp wp wi wp wp wp ax1 wp wp wp wi ax1 mpd $.", "trivial"),
    ("x $p wff ( p -> p ) $= wp wp wi $.", "trivial"), ("h $e wff ~ $. x $p |- p $= h $.", "unproved"),
    ("h $e |- p $. k $e |- p $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq h a1i a1i $.", "trivial"),
    ("h $e |- p $. k $e |- r $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq h a1i a1i $.",
     "unused_hypothesis"),
    ("".join(f"h{i} $e |- p $. " for i in range(5)) + "x $p |- q $= wq $.", "too_long")])
def test_theorems_are_refused_by_name(sandbox, text, reason):
    assert outcome(sandbox, text) == reason


def test_one_step_is_trivial_whatever_the_proof():
    """An instance of an assertion, its hypotheses among the theorem's own; by formulas, not letters alone."""
    def is_trivial(*said, name="prop.mm"):
        theory, said = proof.load(name), [tuple(f"|- {one}".split()) for one in said]
        return proof.one_step(theory.assertions, said, theory.variables)
    assert is_trivial("( ( p -> q ) -> r )", "r") and is_trivial("r", "( ~ p -> r )", "q", "~ p")
    assert is_trivial("( q -> ~ q )", "( q -> ( q -> ~ q ) )")
    assert not is_trivial("( q -> ~ q )", "( p -> ( p -> ~ p ) )")
    assert not is_trivial("( p -> ( q -> q ) )") and not is_trivial("r", "( p -> r )", "q")
    assert not is_trivial("( p -> ) -> ( p -> )"), "id with something in place of p that is no formula"
    assert is_trivial("M I U I U", "M I U", name="miu.mm") and not is_trivial("M U", "M I U", name="miu.mm")


def test_a_long_or_deep_proof_is_refused_and_costs_little(sandbox):
    """Two assumptions that change places again and again; formulas that double, up to their limit."""
    def swapped(n):
        labels = "h"
        for i in range(n):
            labels = f"{'wp wq' if i % 2 == 0 else 'wq wp'} wr {labels} com12"
        goal, formula = "( p -> ( q -> r ) )", "wp wq wr wi wi"
        labels = f"ws {formula} wi ws {formula} ws {labels} a1i a1i"
        return f"h $e |- {goal} $. x $p |- ( s -> ( s -> {goal} ) ) $= {labels} $."
    assert PROOF.measure(outcome(sandbox, swapped(16)).program).lines == 18
    assert outcome(sandbox, swapped(20)) == "too_long"
    doubles = "".join(f"Z{letter}{letter}B" for letter in "CDEFGHIJKLMNOPQRST")
    assert outcome(sandbox, f"x $p |- ( p -> p ) $= ( wi ) AAB{doubles} $.") == "unproved"
    with pytest.raises(ValueError, match="too many symbols .in the proof of theorem"):
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
    ("```proof\nwp wq ws h1 wq wr ws h2 h3 syl syl\n```", "correct"),
    ("```proof\nwp wr ws wp wq wr h1 h2 syl h3 syl\n```", "correct"),
    ("First h1.\n```metamath\nx $p |- ( p -> s ) $= wp wr ws wp wq wr h1 h2 syl h3 syl $.\n```", "correct"),
    ("```proof\n( syl ) ABDEBCDFGHH\n```", "correct"),
    ("<answer>wp wq ws h1 wq wr ws h2 h3 syl syl $.</answer>", "correct"),
    ("```proof\nwp wq ws h1 wq wr ws h3 h2 syl syl\n```", "wrong"),
    ("```proof\nwp wq wr h1 h2 syl\n```", "wrong"),
    ("```proof\n?\n```", "wrong"), ("```proof\ntheorem\n```", "wrong"), ("```proof\nLABELS\n```", "wrong"),
    ("```proof\nwp $. k $a |- p\n```", "wrong"), ("```proof\nwp $} ${\n```", "malformed"),
    ("```proof\n$[ x $]\n```", "malformed"), (f"```proof\n{'wp ' * 3000}\n```", "malformed"),
    ("```proof\né\n```", "malformed"), ("I do not know.", "malformed"), ("", "malformed")])
def test_proofs_deserve_their_verdicts(sandbox, text, verdict):
    assert verify_answers([outcome(sandbox, SYL3)], [[text]], "chat", LIMITS, sandbox.run) == [[verdict]]


def test_nothing_runs_and_the_database_is_what_the_flag_says(sandbox):
    miiii = "x $p |- M I I I I $= se sI sI se sI mi double double $."
    tasks = [outcome(sandbox, SYL3), outcome(sandbox, miiii, MIU)]
    answers = ["wp wq ws h1 wq wr ws h2 h3 syl syl", None, "wp", "se sI sI se sI mi double double"]
    for task, limits, wanted in zip(tasks, (LIMITS, MIU), (0, 3)):
        assert PROOF.answer_jobs(task, answers, limits) == []
        judged = PROOF.verify(task, answers, [], limits)
        assert judged == ["malformed" if i == 1 else "correct" if i == wanted else "wrong" for i in range(4)]
    other = Proposal("proof", "miu.mm", tasks[1].inputs, tasks[1].message)
    assert PROOF.check(other, LIMITS).reason == "other_theory"


def test_names_are_not_banned_where_nothing_runs(sandbox):
    """A proof that cites the theorem `id`, which Python has too."""
    task = outcome(sandbox, "x $p |- ( q -> ( p -> p ) ) $= wp wp wi wq wp id a1i $.")
    assert task.program == "a1i(\n    id())"


def test_hypotheses_are_told_apart_by_their_labels(sandbox):
    """h.1 and h-1 are two, though no Python name could tell."""
    text = "h.1 $e |- p $. h-1 $e |- r $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq {} a1i a1i $."
    assert outcome(sandbox, text.format("h.1")) == "unused_hypothesis"
    assert outcome(sandbox, "mp.1 $e |- p $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq mp.1 a1i a1i $.").id == -1


def test_matching_has_a_bound(tmp_path):
    """A grammar that reads a string in any number of ways costs its bound, not more."""
    types = "".join(f"w{v} $f w {v} $. " for v in "uvxyz")
    (tmp_path / "odd.mm").write_text(f"$c w |- a b $. $v u v x y z $. {types} wa $a w a $. ws $a w x y $. t $a |- u v x y z b $.")
    theory, started = proof.load(str(tmp_path / "odd.mm")), time.process_time()
    with pytest.raises(ValueError, match="timeout"):
        proof.one_step(theory.assertions, [("|-", *"a" * 60)], theory.variables)
    assert time.process_time() - started < 10


# ---------------------------------------------------------------- theories and flags

def test_theories_are_refused_by_name(tmp_path):
    head = "$c w |- $. $v x y $. wx $f w x $. wy $f w y $.\n"
    texts = {"one.mm": "$c a", "two.mm": f"{head}t $p |- x $= ? $.", "three.mm": f"{head}theorem $a |- x $.",
             "four.mm": f"{head}${{ $v z $. wz $f w z $. t $a |- z $. $}}",
             "five.mm": f"{head}h $e |- x $. t $a |- y $.",
             "six.mm": head + "".join(f"t{i} $a |- {'x ' * 1000}$.\n" for i in range(251))}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        why = {"one.mm": "line 1, token 'a'", "three.mm": "theorem uses a $f in",
               "six.mm": "more than 500000"}.get(name, "t uses a $f in")
        with pytest.raises(ValueError, match="--theory") as caught:
            proof.load(str(tmp_path / name))
        assert why in str(caught.value), name
    with pytest.raises(ValueError, match="--theory none.mm: .*bundled are miu.mm, prop.mm"):
        config.resolve_config(config.Config(task_types="proof", theory="none.mm"), "chat")
    assert config.resolve_config(config.Config(theory="none.mm"), "chat"), "without proofs, no theory is read"


def test_a_large_theory_shows_a_part(tmp_path):
    """Types, what the proof cites, and others up to a number, the same for one task each time."""
    many = "".join(f"a{i} $a |- ( x -> {'~ ' * i}x ) $.\n" for i in range(99))
    file = tmp_path / "many.mm"
    grammar = "$v x $. wx $f wff x $. wn $a wff ~ x $. wi $a wff ( x -> x ) $."
    file.write_text(f"$c ( ) -> ~ wff |- $. {grammar}\n{many}")
    limits = dataclasses.replace(LIMITS, theory=str(file))
    task = Task("proof", "", ("wx a77",), ("",), "theorem $p |- x", "key")
    shown = PROOF.solve("chat", task, limits).user
    assert shown == PROOF.solve("chat", task, limits).user and "a77 $a" in shown and "wi $a" in shown
    assert shown.count("$a") == proof.N_SHOWN
    teacher = PROOF.propose("chat", [], random.Random(1), limits).user
    assert teacher.count(" $a |-") == proof.N_SHOWN - 2 and "```metamath\nwx $f" in teacher


@pytest.mark.parametrize("prompt_format", PROMPT_FORMATS[1:])
def test_prompts_are_complete_or_refused(sandbox, prompt_format):
    assert config.resolve_config(config.Config(task_types="proof"), prompt_format).theory == "prop.mm"
    task = outcome(sandbox, SYL3)
    asked = PROOF.propose(prompt_format, [], random.Random(0), LIMITS)
    for prompt in (asked, PROOF.solve(prompt_format, task, LIMITS)):
        assert "{" not in prompt.user.replace("${", "") and "wp $f wff p $." in prompt.user
    assert prompt_format != "direct" or PROOF.solve(prompt_format, task, LIMITS).prefix == "```proof\n"


def test_files_may_hold_theorems(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"kind": "proof", "theorem": "x $p |- ( p -> p ) $= wp id $."}\n'
                    '{"kind": "proof", "theory": "miu.mm", "theorem": "x $p |- M I I $= mii $."}\n')
    assert [(p.program, p.message) for p in read_tasks(file)] == [("prop.mm", "theorem $p |- ( p -> p )"),
                                                                  ("miu.mm", "theorem $p |- M I I")]
    file.write_text('{"kind": "proof", "theorem": "x $a |- p $."}\n')
    with pytest.raises(ValueError, match="line 1.*no_proof"):
        read_tasks(file)


# ---------------------------------------------------------------- the loop

def test_a_theorem_goes_through_the_phases_and_the_records(base, sandbox, monkeypatch):
    """Verified, archived and logged as any task; length and depth of the proof are its complexity."""
    room = dataclasses.replace(base.model.cfg, max_position_embeddings=1 << 15)
    monkeypatch.setattr(base.model, "cfg", room)
    cfg = config.resolve_config(config.Config(task_types="proof", max_new_tokens=8), "base")
    asked, ranks = dataclasses.replace(base, prompt_format="base"), Ranks(0, 1, torch.device("cpu"))
    setup = selfplay.Setup(cfg, asked, None, ranks, sandbox, LIMITS, ("proof",))
    archive, teacher = Archive(["proof"], 9), Member("T0", "teacher", 0, Rating())
    texts = [SYL3, SYL3.replace("syl3", "same"), "x $p |- p $= wp $.", "nothing",
             "h $e |- p $. x $p |- ( q -> ( q -> p ) ) $= wq wp wi wq wp wq h a1i a1i $."]
    records = []
    for i, text in enumerate(texts):
        made = PROOF.parse_proposal(f"<answer>\n```metamath\n{text}\n```\n</answer>", "base", [], LIMITS)
        parsed = dict(reason=made.reason) if isinstance(made, Reject) else dict(proposal=made)
        records.append(selfplay.ProposalRecord(teacher, "proof", i, i, [], text, **parsed))
    selfplay.verify(setup, archive, records, 0)
    assert [record.reason for record in records] == ["", "duplicate", "unproved", "no_proof", ""]
    records[0].attempts["S0"], records[0].answers["S0"] = ["correct", "wrong"], ["a", "b"]
    for record in records:
        if record.task:
            archive.add(record.task, record.structure)
    assert len(archive.structures) == 2
    rows = task_rows(records, 0)
    assert rows[0]["complexity"]["lines"] == rows[4]["complexity"]["lines"] == 2
    assert task_from_row(rows[0]) == records[0].task
    assert describe(records)["valid"] == 2 / 5
    shown = archive.references("proof", 3, random.Random(0))
    assert records[4].task.message in PROOF.propose("base", shown, random.Random(0), LIMITS).user


def test_lines_and_levels_are_length_and_depth():
    """A balanced proof of seven steps is shorter than a chain of seven, and as long."""
    def of(text):
        found = PROOF.measure(text)
        return found.lines, found.depth
    chain = "a(\n" * 6 + "a(h)" + ")" * 6
    tree = "m(\nm(\na(h),\na(h)),\nm(\na(h),\na(h)))"
    assert of(chain) == (7, 7) and of(tree) == (7, 3)
    assert PROOF.structure("a.1( h-1,\n b(h.1))") == PROOF.structure("a.1(x, b(y))") != PROOF.structure("a.1(x, b(x))")


def test_nothing_a_model_writes_raises(sandbox):
    """Random texts through parsing; what parses goes through the sandbox and ends as a task or a reason."""
    rng, plain = random.Random(1), "|- p q wp ( ( p -> p ) ) id h x ? theorem Z AB \n".split(" ")
    pieces = [*plain, *plain, "$p", "$e", "$d", "$=", "$.", "${", "$}"]
    odd = ["```", "metamath", "proof", "$(", "$)", "\x00", "\ud800", "é", "<answer>", "</answer>", "x" * 300]
    task, proposals = outcome(sandbox, SYL3), []
    for _ in range(1500):
        words = rng.choices(pieces, k=rng.randrange(30)) + rng.choices(odd, k=rng.choice((0, 0, 3)))
        rng.shuffle(words)
        text = f"<answer>\n```metamath\nh $e |- q $. x $p |- p $= {' '.join(words)}\n```"
        for prompt_format in ("chat", "base"):
            PROOF.parse_answer(text, prompt_format, task, LIMITS)
            made = PROOF.parse_proposal(text[rng.randrange(60):], prompt_format, [], LIMITS)
            proposals += [made] if isinstance(made, Proposal) else []
    assert len(proposals) > 50
    for made in proposals:
        assert PROOF.accept(made, None, LIMITS, PROOF.key(made, "structural")).reason


@pytest.mark.parametrize("line", ["x $p |- p $= wp $.\n", "a" * 50, "$p ", "( ", "h $e |- p $.\n", "$= "])
def test_degenerate_repetition_is_read_in_linear_time(line):
    text = f"```metamath\n{line * (20_000 // len(line))}\n```"
    started = time.process_time()
    PROOF.parse_proposal(text, "chat", [], LIMITS)
    PROOF.parse_answer(text, "chat", SimpleNamespace(), LIMITS)
    assert time.process_time() - started < 0.5
