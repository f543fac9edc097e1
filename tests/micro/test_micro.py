"""The micro domain: its rows are tasks and answers of self-play, its traces are true, what is reserved stays out of training."""
import hashlib
import random
import re
import sys
from copy import copy

import pytest
import torch
from proposals import MICRO, fate, judge, outcome, read
from tiny_run import rows
from transformers import AutoTokenizer

from micro import data, make, programs
from micro.evaluate import LIMITS, OPENS_TRACE, answers, draw_tasks, task_of
from sandbox.values import decode
from tasks import TASK_TYPES, read_tasks
from tasks.math import exact
from tasks.prompts import reasoning
from weights import compare, load_base


def test_stream_is_that_of_the_bundled_base():
    """A change of the generator is a change of the base: make it anew, and this digest with it."""
    rng = random.Random("golden")
    examples = [data.example(rng) for _ in range(200)]
    digest = hashlib.sha256("".join(e.prompt + e.answer for e in examples).encode()).hexdigest()
    assert digest[:16] == "19dc21efe46b5dfb"


@pytest.mark.parametrize("thinking", [None, data.THINKING])
def test_the_mixture_is_what_is_drawn(thinking):
    """In phase 2 the wanted share of the answers that can have a trace has one; all else is asked as often as in phase 1."""
    mixture = data.habit() if thinking else data.MIXTURE
    rng = random.Random(1)
    drawn = [data.example(rng, mixture=mixture) for _ in range(2000)]
    for kind, share in mixture.items():
        assert sum(e.kind == kind for e in drawn) / len(drawn) == pytest.approx(share / sum(mixture.values()), abs=.03), kind
        assert kind.split()[0] in data.TRACED or share == data.MIXTURE[kind]
    for kind in data.TRACED:
        assert not thinking or mixture[kind] == pytest.approx(thinking * (mixture[kind] + mixture[f"{kind} direct"]))
        traced = [e for e in drawn if e.kind == f"{kind} direct" or e.kind == kind and "\n" in e.answer]
        assert traced and all(bool(reasoning(e.answer, "micro")) == (e.kind == kind) for e in traced)


@pytest.mark.parametrize("kind", ["out", "out direct", "inp", "inp direct", "fun"])
def test_a_row_asks_as_self_play_does_and_its_answer_is_right(sandbox, kind):
    rng, name = random.Random(4), {"out": "code_o", "inp": "code_i", "fun": "code_f"}[kind.split()[0]]
    for _ in range(12):
        e = data.example(rng, kind)
        text = e.prompt.partition("\n")[2]
        if kind == "fun":                   # the pairs shown, and as many hidden ones
            shown = [line[2:].split(")=") for line in text.split("\n")[:-1]] * 2
            task = task_of(dict(kind="code_f", program=e.answer, inputs=[x for x, _ in shown]), [eval(y) for _, y in shown])
        else:
            if kind.startswith("inp"):
                text = text.rsplit("\n", 2)[0] + f"\nf({e.answer.rpartition(chr(10))[2][1:]})"
            task = fate(sandbox, read(name, text, "micro"), MICRO.of_user())
        assert TASK_TYPES[name].solve("micro", task, LIMITS).user == e.prompt
        assert judge(sandbox, task, "micro", e.answer) == ["correct"], e


@pytest.mark.parametrize("kind", ["propose", "args", "propose math", "propose logic"])
def test_what_is_learned_as_a_proposal_is_asked_and_valid(sandbox, kind):
    """And of words and clauses: what a teacher is taught to write is shown to a student as a student is taught to read."""
    rng, fates = random.Random(6), []
    for _ in range(30):
        e = data.example(rng, kind)
        name = {"args": "code_f", "propose": "code_o"}.get(kind, kind.split()[-1])
        few_shot = [task_of(dict(kind="code_o", program=e.prompt.partition("\n")[2], input="1"), [1])] if kind == "args" else []
        if e.prompt.startswith("propose inp"):
            name = "code_i"
        assert e.prompt in {TASK_TYPES[name].propose("micro", few_shot, random.Random(i), LIMITS).user for i in range(30)}
        task = outcome(sandbox, name, e.answer, "micro", few_shot)
        fates.append(task if isinstance(task, str) else "a task")
        if fates[-1] == "a task" and name in ("math", "logic"):
            asked = TASK_TYPES[name].solve("micro", task, MICRO).user.split("\n")
            assert asked[0] == name == data.example(rng, name).prompt.split("\n")[0] and set(asked[1:-1]) <= set(e.answer.split("\n"))
            gold = decode(task.outputs[0]) if name == "logic" else [exact(decode(task.outputs[0]))]
            assert judge(sandbox, task, "micro", "=" + ",".join(str(+value) for value in gold), "=") == ["correct", "malformed"]
    assert fates.count("a task") > 18 and fates.count("a task") + fates.count("echo") >= 28, "few tell their answer, hardly any is refused"


def test_programs_are_what_python_computes_and_stay_small():
    rng = random.Random(0)
    for p in [programs.generate(rng) for _ in range(400)]:
        names = dict(x=copy(p.x))
        for statement, value in zip(p.body, p.trace, strict=True):
            exec(statement, names)
            assert names["y" if programs.assigns_y(statement) else "x"] == value, (p, statement)
        assert programs.run(p.body, p.x) == (p.y, p.trace) and names["x"] == p.y
        assert len(programs.literal(p.y)) <= LIMITS.output_chars


def test_reserved_programs_never_reach_training():
    """Whatever of a row may be reserved: its program, its story or its clauses."""
    rng = random.Random(3)
    for _ in range(500):
        e = data.example(rng)
        text = f"{e.prompt}{e.answer}"
        found = re.findall(r"def f\(.*?return x\n", e.answer if e.kind == "fun" else text, re.DOTALL)
        found.append("\n".join(re.findall(r"^\?(.*)", text, re.M)))
        found.append({"logic": e.prompt[6:-1], "propose logic": e.answer}.get(e.kind))
        assert not any(map(programs.held_out, filter(None, found))), text
    assert not programs.held_out(programs.program_text(())), "the identity program starts code_f"


def test_bundled_base(micro_base, sandbox):
    """Its held-out tasks are those that `make` draws: reserved, distinct, sizes in turn, and valid for self-play."""
    agree(micro_base)
    of_kind = {kind: [row for row in rows(micro_base, "heldout") if row["kind"] == kind] for kind in ("code_o", "code_i", "math", "logic")}
    first = [row for kind, some in of_kind.items() for row in some[:7 if kind == "code_o" else 5]]
    drawn, first = [[row | dict(input="") for row in some] for some in (make.heldout(7, 5), first)]
    assert drawn == first, "the last input drawn for a program counts"
    code = {row["program"] for row in of_kind["code_o"]}
    assert len(code) == 476 and all(map(programs.held_out, code))
    given = read_tasks(micro_base / "heldout.jsonl")[::24]
    for p, verdict in zip(given, sandbox.run([TASK_TYPES[p.kind].job(p) for p in given])):
        TASK_TYPES[p.kind].check(p, LIMITS.of_user())               # which raises Refused for what is not valid
        assert TASK_TYPES[p.kind].make(p, verdict, LIMITS, "").outputs


@pytest.fixture(scope="module")
def tokenizer():
    return make.train_tokenizer(n=3000)


def test_tokenizer_round_trip(tokenizer):
    rng = random.Random(8)
    assert [tokenizer.token_to_id(word) for word in ("<pad>", "<eos>")] == [make.PAD, make.EOS] and tokenizer.get_vocab_size() == make.VOCAB
    for _ in range(300):
        e = data.example(rng)
        ids = tokenizer.encode(e.prompt + e.answer).ids
        assert tokenizer.decode(ids) == e.prompt + e.answer and len(ids) < make.MAX_TOKENS, "cut examples would never be learnt"
    assert {"[1", "2", ",3", "A", "B"} <= set(tokenizer.encode("f([12,3,'AB'])").tokens)


def test_loss_is_on_answers_only(tokenizer):
    """And on their end token, whatever else the batch pads."""
    batch = [make.row_of(data.Example("out", prompt, answer), tokenizer) for prompt, answer in (("f(1)\n", "=A"), ("B", "[1,2]"))]
    model, answers = make.new_model(), 0
    for (ids, targets), answer in zip(batch, ("=A", "[1,2]")):
        asked = targets != make.NO_TARGET
        assert tokenizer.decode(targets[asked].tolist(), skip_special_tokens=False) == f"{answer}<eos>"
        assert (ids[1:] == targets)[asked].all() and asked.tolist() == sorted(asked.tolist())
        answers += asked.sum() * make.loss_of(model, [(ids, targets)])
    n = sum((targets != make.NO_TARGET).sum() for _, targets in batch)
    torch.testing.assert_close(make.loss_of(model, batch), answers / n)


def test_the_second_phase_starts_from_the_first(tmp_path, tokenizer, monkeypatch):
    """One command, both phases; the second reads the directory that the first wrote, and changes its weights."""
    for name, value in dict(ROWS=8, BATCHES_PER_POOL=2, heldout=lambda: [], train_tokenizer=lambda: tokenizer).items():
        monkeypatch.setattr(make, name, value)
    monkeypatch.setattr(sys, "argv", ["make", "--tokens", "600", "--out", str(tmp_path)])
    make.main()
    agree(tmp_path / "base", tokenizer)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("phase1", "base")]
    assert weights[0] != weights[1]
    sys.argv += ["--phase", "2"]
    make.main()
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == weights[1], "the second phase alone is the same again"


def agree(path, tokenizer=None):
    ours, auto = load_base(str(path)), AutoTokenizer.from_pretrained(path)
    text = data.example(random.Random(2), "out").prompt
    ids = auto(text).input_ids
    assert auto.decode(ids) == text and (tokenizer is None or ids == tokenizer.encode(text).ids)
    assert ours.prompt_format == "micro" and ours.eos_ids == (make.EOS,) == (auto.eos_token_id,) and auto.pad_token_id == make.PAD
    assert compare(ours)[0] < 1e-3


def test_bundled_base_can_think_but_seldom_does(base, sandbox):
    """Coarse bounds far from the measured figures: direct by habit, able with a trace."""
    tasks = draw_tasks("out", 2, 40, seed=5)
    by_habit, thinks = answers(base, sandbox, tasks, (5,), 0.0)
    thinking, thinks_when_forced = answers(base, sandbox, tasks, (5,), 0.0, OPENS_TRACE["out"])
    _, thinks_at_1 = answers(base, sandbox, tasks * 3, (5,), 1.0)
    assert thinks < .1 and thinks_when_forced == 1 and .03 < thinks_at_1 < .4
    assert thinking > by_habit + .2 and thinking > .8
