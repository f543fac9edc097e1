"""The micro domain: its texts are those of tasks/, its traces are true, evaluation programs stay out of training."""
import argparse
import hashlib
import json
import random

import pytest
import torch

from micro import data, make, programs
from micro.evaluate import LIMITS, OPENS_TRACE, PROPOSED, SIZES, answers, draw_tasks, proposals, show, task_of
from tasks import TASK_TYPES, read_tasks
from tasks.base import Reject
from tasks.prompts import reasoning


def some_programs(count: int, seed: int = 0, **knobs):
    rng = random.Random(seed)
    return [programs.generate(rng, **knobs) for _ in range(count)]


def judged(sandbox, kind, task, text):
    """Verdict on one answer, by the way of self-play."""
    answers = [kind.parse_answer(text, "micro", task, LIMITS)]
    return kind.judge(task, answers, sandbox.run(kind.answer_jobs(task, answers, LIMITS)), LIMITS)[0]


def test_stream_is_that_of_the_bundled_base():
    """A change of the generator is a change of the base: make it anew, and this digest with it."""
    rng, digest = random.Random("golden"), hashlib.sha256()
    for _ in range(200):
        e = data.example(rng)
        digest.update((e.prompt + e.answer).encode())
    assert digest.hexdigest()[:16] == "19dc21efe46b5dfb"


def test_mixture_and_statement_counts():
    rng = random.Random(1)
    rows = [data.example(rng) for _ in range(2000)]
    assert sum(data.MIXTURE.values()) == pytest.approx(1)
    for kind, share in data.MIXTURE.items():
        assert sum(e.kind == kind for e in rows) / len(rows) == pytest.approx(share, abs=.03), kind
    proposed = [e.n for e in rows if e.kind == "propose"]
    assert sum(n == 1 for n in proposed) / len(proposed) == pytest.approx(.5, abs=.08) and max(proposed) <= 6
    assert all(e.n == e.answer.count("\n") for e in rows if e.kind == "out"), "one line of trace per statement"


@pytest.mark.parametrize("thinking", [.1, .24])
def test_the_habits_mixture(thinking):
    """Phase 2: the wanted share of the answers that can have a trace has one; all else is asked as often as in phase 1."""
    mixture, rng = data.habit(thinking), random.Random(2)
    for kind in data.TRACED:
        both = mixture[kind] + mixture[f"{kind} direct"]
        assert mixture[kind] == pytest.approx(thinking * both)
        assert kind == "math" or both == pytest.approx(data.MIXTURE[kind] + data.MIXTURE[f"{kind} direct"])
    untouched = set(data.MIXTURE) - {k for kind in data.TRACED for k in (kind, f"{kind} direct")}
    assert untouched == {"propose", "fun", "args", "propose math", "propose logic", "logic"}
    assert all(mixture[kind] == data.MIXTURE[kind] for kind in untouched)
    rows = [data.example(rng, mixture=mixture) for _ in range(2000)]
    for kind in data.TRACED:
        thoughts = [bool(reasoning(e.answer, "micro")) for e in rows if e.kind == kind and e.n > 1]
        direct = [bool(reasoning(e.answer, "micro")) for e in rows if e.kind == f"{kind} direct"]
        assert all(thoughts) and thoughts and direct and not any(direct), kind
        assert len(thoughts) < len(direct)


def test_a_ground_of_two_hills(sandbox):
    """A share of the direct answers to output tasks gets a shallow trace: one true value, opened by <."""
    plain, mixture = data.habit(.01), data.habit(.01, shallow=.25)
    assert mixture["out shallow"] == pytest.approx(.25 * plain["out direct"]) and not plain["out shallow"]
    assert sum(mixture.values()) == pytest.approx(sum(plain.values()))
    for p in some_programs(12, seed=6):
        trace, value = data.shallow_answer(p).split("\n")
        assert trace == f"<{programs.literal(p.trace[-(-len(p.body) // 2) - 1])}"
        assert judged(sandbox, TASK_TYPES["code_o"], task_of("code_o", p, [p.x]), f"{trace}\n{value}") == "correct"
    e = data.example(random.Random(7), "out shallow")
    assert e.answer.startswith("<") and e.answer.count("\n") == 1 and e.prompt.startswith("out\n")


def test_direct_answers_are_right(sandbox):
    for kind, direct in (("code_o", "out direct"), ("code_i", "inp direct")):
        rng = random.Random(4)
        for _ in range(10):
            e = data.example(rng, direct)
            text, given = e.prompt.partition("\n")[2].rsplit("\n", 2)[:2]
            *_, body = TASK_TYPES[kind].parse_proposal(f"{text}\nf(1)" if kind == "code_i" else f"{text}\n{given}", "micro", [], LIMITS).program,
            names = {}
            exec(body, names)                            # a program of our own generator
            answer = eval(e.answer.removeprefix("="))
            if kind == "code_o":
                assert names["f"](eval(given[2:-1])) == answer
            else:
                assert names["f"](answer) == eval(given)


@pytest.mark.parametrize("type_", programs.TYPES)
def test_trace_is_what_python_computes(type_):
    for p in some_programs(150, type_=type_):
        for k, value in enumerate(p.trace, 1):
            names = {}
            result = "y" if p.body[k - 1].startswith("y") else "x"
            exec(programs.program_text(p.body[:k]).replace("return x", f"return {result}"), names)
            assert names["f"](list(p.x) if type_ == "list" else p.x) == value, (p, k)
        assert programs.run(p.body, p.x) == (p.y, p.trace) and programs.type_of(p.x) == type_


def test_programs_depend_on_their_input_and_stay_small():
    for p in some_programs(300):
        assert programs.presentable(p.y) and len(p.trace) == len(p.body)
        assert len(programs.literal(p.y)) <= LIMITS.output_chars and len(programs.program_text(p.body)) <= LIMITS.source_chars


def test_knobs():
    assert all(len(p.body) == 4 for p in some_programs(50, n=4))
    hard = {t.split("{")[0] for table in programs.HARD.values() for t, *_ in table}

    def share(p_hard):
        statements = [s for p in some_programs(150, n=3, p_hard=p_hard) for s in p.body]
        return sum(any(s.startswith(h) for h in hard) for s in statements) / len(statements)

    assert share(.5) > share(0.) + .15


def test_reserved_programs_never_reach_training():
    rng = random.Random(3)
    for _ in range(1500):
        e = data.example(rng)
        text = e.prompt + e.answer
        if e.kind.endswith("math"):
            assert not programs.held_out("\n".join(line[1:] for line in text.split("\n") if line.startswith("?")))
            continue
        if e.kind.endswith("logic"):
            assert not programs.held_out(e.prompt[6:-1] if e.kind == "logic" else e.answer)
            continue
        if e.kind == "fun":
            text = e.answer
        start, end = text.index("def f"), text.index(" return x\n") + len(" return x\n")
        assert not programs.held_out(text[start:end]), text
    assert all(programs.held_out(programs.program_text(p.body)) for p in some_programs(40, n=3, reserved=True))
    assert not programs.held_out(programs.program_text(())), "the identity program starts code_f"


def test_heldout_output_tasks(tmp_path, sandbox):
    """Held-out, distinct, 2 to 8 statements in turn, and valid tasks for self-play."""
    rows = make.output_tasks(70)
    assert len({r["program"] for r in rows}) == 70 and all(programs.held_out(r["program"]) for r in rows)
    assert [r["program"].count("\n") - 2 for r in rows] == [2, 3, 4, 5, 6, 7, 8] * 10
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    kind, given = TASK_TYPES["code_o"], read_tasks(tmp_path / "heldout.jsonl")
    for p, verdict in zip(given, sandbox.run([kind.job(p) for p in given])):
        assert kind.check(p, LIMITS) in (None, Reject("ignores_input"))
        assert not isinstance(kind.accept(p, verdict, LIMITS, ""), Reject)


def test_solving_texts_are_those_of_tasks(sandbox):
    """Prompts equal tasks/prompts.py's to the letter, and the training answers are judged correct."""
    for p in some_programs(12, seed=5):
        text = programs.program_text(p.body)
        task = task_of("code_o", p, [p.x])
        assert TASK_TYPES["code_o"].solve("micro", task, LIMITS).user == data.out_prompt(text, p.x)
        assert judged(sandbox, TASK_TYPES["code_o"], task, data.out_answer(p)) == "correct"
        assert judged(sandbox, TASK_TYPES["code_o"], task, f"={programs.literal(p.y)}") == "correct"
        task = task_of("code_i", p, [p.x])
        assert TASK_TYPES["code_i"].solve("micro", task, LIMITS).user == data.inp_prompt(text, p.y)
        assert judged(sandbox, TASK_TYPES["code_i"], task, data.inp_answer(p)) == "correct"
        found = programs.pairs(random.Random(0), p.body, programs.type_of(p.x), data.N_INPUTS)
        if found:
            task = task_of("code_f", p, [x for x, _ in found])
            assert TASK_TYPES["code_f"].solve("micro", task, LIMITS).user == data.fun_prompt(found[:data.N_SHOWN])
            assert judged(sandbox, TASK_TYPES["code_f"], task, text) == "correct"


def test_proposing_texts_are_those_of_tasks(sandbox):
    """The prompts are among tasks/prompts.py's, and what the model learns to write is a valid proposal."""
    rng, n_valid = random.Random(6), 0
    asked = {k: {TASK_TYPES[k].propose("micro", [], random.Random(i), LIMITS).user for i in range(60)} for k in ("code_o", "code_i")}
    assert asked["code_o"] == {data.propose_prompt("out", t) for t in programs.TYPES}
    assert asked["code_i"] == {data.propose_prompt("inp", t) for t in programs.TYPES}
    for _ in range(30):
        e = data.example(rng, "propose")
        kind = TASK_TYPES["code_o"]
        proposal = kind.parse_proposal(e.answer, "micro", [], LIMITS)
        assert not isinstance(proposal, Reject), e
        n_valid += not kind.check(proposal, LIMITS)
        assert not isinstance(kind.accept(proposal, sandbox.run([kind.job(proposal)])[0], LIMITS, ""), Reject), e
    assert n_valid >= 28, "hardly any program of the stream is refused before it runs"
    for p in some_programs(10, seed=7, n=2):
        few_shot = [task_of("code_o", p, [p.x])]
        assert TASK_TYPES["code_f"].propose("micro", few_shot, rng, LIMITS).user == data.args_prompt(programs.program_text(p.body))
        found = programs.pairs(rng, p.body, programs.type_of(p.x), data.N_INPUTS)
        if found:
            proposal = TASK_TYPES["code_f"].parse_proposal(data.args_answer(x for x, _ in found), "micro", few_shot, LIMITS)
            assert proposal.inputs == tuple(programs.literal(x) for x, _ in found)


@pytest.fixture(scope="module")
def tokenizer():
    return make.train_tokenizer(seed=1, n=3000)


def test_tokenizer_round_trip(tokenizer):
    rng, vocabulary = random.Random(8), tokenizer.get_vocab()
    assert tokenizer.get_vocab_size() == make.VOCAB and (vocabulary["<pad>"], vocabulary["<eos>"]) == (make.PAD, make.EOS)
    for _ in range(300):
        e = data.example(rng)
        parts = [tokenizer.encode(t).ids for t in (e.prompt, e.answer)]
        assert [tokenizer.decode(ids) for ids in parts] == [e.prompt, e.answer]
        assert sum(map(len, parts)) < make.MAX_TOKENS, "cut examples would never be learnt"
    tokens = tokenizer.encode("f([12,3,'AB'])").tokens
    assert "[1" in tokens and "2" in tokens and ",3" in tokens and "A" in tokens and "B" in tokens, tokens


def test_loss_is_on_answers_only(tokenizer):
    batch = [([5, 6, 7], [8, make.EOS]), ([9], [10, 11, 12, make.EOS])]
    ids, mask = make.tensors(batch)
    assert ids.tolist() == [[5, 6, 7, 8, make.EOS], [9, 10, 11, 12, make.EOS]]
    assert (ids[:, 1:] * mask).tolist() == [[0, 0, 8, make.EOS], [10, 11, 12, make.EOS]]


def test_muon_orthogonalises():
    """Every singular value of an update lies near .2 sqrt(longer side), whatever the gradient's scale."""
    torch.manual_seed(0)
    for shape in ((16, 48), (48, 16), (16, 16)):
        p = torch.nn.Parameter(torch.zeros(shape))
        p.grad = 1e-3 * torch.randn(shape)
        make.Muon([p], lr=1.0, weight_decay=0.0).step()
        values = torch.linalg.svdvals(p.detach()) / (.2 * max(shape) ** .5)
        assert values.max() < 1.3 and values.median() > .6, (shape, values)


def test_the_second_phase_starts_from_the_first(tmp_path, micro_base, monkeypatch):
    """One command, both phases; the second reads the directory that the first wrote, and changes its weights."""
    monkeypatch.setattr(make, "ROWS", 8)
    monkeypatch.setattr(make, "BATCHES_PER_POOL", 2)
    tasks = make.heldout(3, 3)
    monkeypatch.setattr(make, "heldout", lambda: tasks)
    cfg = argparse.Namespace(phase="both", tokens=600, lr=3e-3, habit_tokens=600, habit_lr=7e-4, thinking=.2, shallow=.25, theorems=.1, seed=1,
                             init=str(micro_base.parent / "phase1"), out=str(tmp_path))
    make.main(cfg)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("phase1", "base")]
    assert weights[0] != weights[1]
    make.main(argparse.Namespace(**vars(cfg) | dict(phase="2", init="", out=str(tmp_path))))
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == weights[1], "the second phase alone is the same again"


def share_a_batch(rank: int, folder: str, batch: list) -> None:
    """One of two processes: the gradient of its half of a batch, summed over both."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(gradient(batch[rank::2], batch), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def gradient(mine: list, batch: list) -> tuple[float, list[torch.Tensor]]:
    """Loss of a whole batch and its gradients, from the rows of this process."""
    torch.set_num_threads(1)
    model = make.new_model("1")
    loss = make.loss_of(model, *make.tensors(mine)) / sum(len(a) for _, a in batch)
    loss.backward()
    return make.all_reduce(loss, model), [p.grad for p in model.parameters()]


@pytest.mark.slow
def test_two_processes_share_a_batch(tokenizer, tmp_path):
    batch = make.pool_batches(make.Phase("phase1", "1", 0, 0, data.MIXTURE), 0, tokenizer)[0][:20]
    torch.multiprocessing.spawn(share_a_batch, (str(tmp_path), batch), nprocs=2)
    want, *shared = gradient(batch, batch), torch.load(tmp_path / "0.pt"), torch.load(tmp_path / "1.pt")
    for loss, grads in shared:
        assert loss == pytest.approx(want[0], rel=1e-5)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(grads, want[1]))


def test_directory_loads_everywhere(tokenizer, tmp_path):
    """transformers' model and AutoTokenizer, and our own loader, read what make.py writes, and agree."""
    model = make.new_model("3")
    make.write_directory(model, tokenizer, tmp_path)
    agree(tmp_path, tokenizer)


def agree(path, tokenizer=None):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from weights import load_base
    ours, theirs = load_base(str(path)), AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    auto = AutoTokenizer.from_pretrained(path)
    text = data.example(random.Random(2), "out").prompt
    ids = auto(text).input_ids
    assert auto.decode(ids) == text and (tokenizer is None or ids == tokenizer.encode(text).ids)
    assert ours.prompt_format == "micro" and ours.eos_ids == (make.EOS,)
    assert (auto.eos_token_id, auto.pad_token_id) == (make.EOS, make.PAD)
    with torch.no_grad():
        a, b = ours.model.logits(ours.model(torch.tensor([ids]))), theirs(torch.tensor([ids])).logits
    assert (a - b).abs().max() < 1e-3


def test_bundled_base(micro_base):
    agree(micro_base)
    assert (micro_base / "model.safetensors").stat().st_size < 5e6
    assert [json.loads(line) for line in (micro_base / "heldout.jsonl").open()] == make.heldout()


def test_bundled_base_can_think_but_seldom_does(base, sandbox):
    """Coarse bounds far from the measured figures: direct by habit, able with a trace, and valid proposals."""
    tasks = draw_tasks("out", 2, 40, seed=5)
    by_habit, thinks = answers(base, sandbox, "out", tasks, 0.0, (5,))
    thinking, thinks_when_forced = answers(base, sandbox, "out", tasks, 0.0, (5,), OPENS_TRACE["out"])
    sampled = answers(base, sandbox, "out", tasks * 3, 1.0, (5,))[1]
    assert thinks < .1 and thinks_when_forced == 1 and .03 < sampled < .4
    assert thinking > by_habit + .2 and thinking > .8
    table = proposals(base, sandbox, ("code_o", "code_i"), 36, seed=5)
    assert table["valid"] > .7 and 1 <= table["statements"] < 4, table


def test_table_shows_every_row():
    made = dict(valid=.9, statements=1.5, distinct=.8, reasons={"error": 1})
    cells = {row: {"greedy": [.94] * len(sizes), "thinks": [.25] * len(sizes)} for row, sizes in SIZES.items()}
    text = show(cells | dict.fromkeys(PROPOSED, made))
    assert len(text.splitlines()) == 1 + 2 * len(SIZES) + len(PROPOSED) and "0.94" in text and "{'error': 1}" in text
    assert text.splitlines()[1].endswith("0.940")
