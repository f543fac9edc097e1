"""bench card: its checks find what is wrong, its parts survive each other, and, slowly, all of it on a CPU."""
import argparse
import copy
import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import bounds, card, correct, speed
from bench.card import Part
from bench.common import relative_rms
from bench.correct import Check
from bench.enlarge import enlarge
from bench.speed import MICRO, Bench, Figure
from bench.workload import SHAPES, base_of, fixed_rollout, in_int8, members_of, population, random_model, updater
from generate import SamplingParams, generate
from infra.distributed import Ranks
from infra.precision import quantize

ROOT = Path(card.__file__).parent.parent
CPU = torch.device("cpu")


def shape(name: str, **changes):
    return dataclasses.replace(SHAPES[name], **changes)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(parts, minutes) -> what the command returns on the CPU, and what it wrote."""
    def command(parts: list[Part], minutes: float = 1.0) -> tuple[dict, dict]:
        parser = argparse.ArgumentParser()
        card.card_flags(parser)
        path = tmp_path / "card.json"
        monkeypatch.setattr(card, "parts", lambda device, sizes: parts)
        words = ["--shape", "micro", "--device", "cpu", "--dtype", "float32", "--out", str(path)]
        said = card.card(parser.parse_args([*words, "--minutes", str(minutes)]))
        return said, json.loads(path.read_text())
    return command


# --- the micro base inside a larger shape

@pytest.mark.parametrize("larger", [shape("7b", hidden_size=512, intermediate_size=600, num_hidden_layers=6, vocab_size=1000),
                                    shape("0.5b", hidden_size=256, intermediate_size=400, num_hidden_layers=4, vocab_size=600),
                                    shape("micro")])
def test_a_larger_shape_says_what_the_micro_base_says(base, larger):
    model = random_model(larger, torch.float32, "cpu").fuse()
    enlarge(model, base.model)
    prompt = base.tokenizer("propose out int\n")["input_ids"]
    ids = torch.tensor([prompt])
    wanted, logits = base.model.logits(base.model(ids)), model.logits(model(ids))
    known = base.model.cfg.vocab_size
    assert relative_rms(logits.log_softmax(-1)[..., :known], wanted.log_softmax(-1)) < 1e-4
    assert (logits[..., known:] < -50).all(), "words that the micro base lacks could be drawn"
    rollouts = []
    for other in (base, dataclasses.replace(base, model=model)):
        rollouts.append(generate(other, None, [prompt], [-1], [(0, i) for i in range(4)], SamplingParams(4, max_new_tokens=40)))
    assert torch.equal(rollouts[0].ids, rollouts[1].ids)


@pytest.mark.parametrize("changes", [dict(hidden_size=128, vocab_size=400), dict(head_dim=48), dict(num_attention_heads=2),
                                     dict(rope_theta=1e6), dict(num_hidden_layers=2)])
def test_a_shape_without_room_is_refused(base, changes):
    with pytest.raises(ValueError, match="has no room"):
        enlarge(random_model(shape("micro", **dict(hidden_size=256) | changes), torch.float32, "cpu"), base.model)


# --- checks

@pytest.mark.parametrize("error, control, held", [(.01, None, True), (.06, None, False), (math.nan, None, False),
                                                  (.01, .06, True), (.01, .04, False), (.01, math.nan, False)])
def test_a_check_holds_where_the_answer_is_near_and_a_wrong_one_is_not(error, control, held):
    assert Check("x", error, .05, control).held == held


@pytest.mark.parametrize("broken, change, check, failing", [
    ("lora.LoRARouter.dense", lambda self, A, B, x, y: y, correct.check_routing, 1),
    ("lora.LoRARouter.dense", lambda self, A, B, x, y: y, correct.check_decoding, 0),
    ("rl.policy_loss", lambda logp, old, p, adv, cfg: (-1.1 * adv[p.row] * logp, logp > 0), correct.check_gradients, 0),
    ("bench.workload.quantize", lambda weight, dtype: (quantize(weight, dtype)[0], 1.1 * quantize(weight, dtype)[1]), correct.check_int8, 0),
    ("model.rope_table", lambda positions, cfg, dtype: (torch.ones(1), torch.zeros(1)), correct.check_logits, 0)])
def test_a_check_finds_a_broken_engine(monkeypatch, broken, change, check, failing):
    assert all(found.held for found in check(SHAPES["micro"], torch.float32, CPU))
    monkeypatch.setattr(broken, change)
    assert not check(SHAPES["micro"], torch.float32, CPU)[failing].held


# --- bounds and goals

def test_operations_are_those_that_torch_counts():
    """Without attention, of which torch counts the hidden half, too; adapters of rank 8 are not ours to count."""
    base = base_of(random_model(shape("micro", vocab_size=5000, intermediate_size=2000), torch.float32, "cpu"), "x")
    rollout = fixed_rollout(base, members_of(8, 2), 12, 8, 4)
    with FlopCounterMode(display=False) as counter:
        base.model.logits(base.model(rollout.ids)[:, -1])
    counted = counter.get_total_flops() - sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" in str(op))
    assert counted == bounds.forward_flops(base, 8 * 20, 8, 0)[0]
    work = updater(base, population(base, 8, 2), rollout, 10 ** 4)
    with FlopCounterMode(display=False) as counter:
        work()
    assert 1 < counter.get_total_flops() / bounds.update_flops(base, rollout, 4) < 1.2
    assert bounds.seen_keys(0, 3) == 6 and bounds.seen_keys(2, 4) == 7


def test_a_step_of_decoding_reads_each_thing_once():
    for name, skipped in (("micro", 0), ("7b", 64 * 128)):              # an untied embedding is not read
        base = base_of(random_model(shape(name, vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
                                          head_dim=32), torch.bfloat16, "cpu"), name)
        cfg, adapters = base.model.cfg, population(base, 8, 4)
        n_bytes = bounds.decode_bytes(base, adapters, 2, rows=10, slots=30.5)
        numbers = sum(p.numel() for p in base.model.parameters()) - skipped + sum(p.numel() for p in adapters.parameters()) / 2
        assert n_bytes == 2 * (numbers + 10 * 30.5 * 2 * 2 * cfg.num_key_value_heads * 32)


@pytest.mark.parametrize("row, met", [
    (Figure("", "tokens/s", 12_000, values=[13_000, 9_000, 12_500]), True), (Figure("", "tokens/s", 12_000, values=[11_000]), False),
    (Figure("", "ratio", 1.05, values=[1.04]), True), (Figure("", "ratio", 1.05, values=[1.06]), False),
    (Figure("", "TFLOP/s", .4, of_bound=True, values=[350.], bound=700.), True),
    (Figure("", "TFLOP/s", .4, of_bound=True, values=[250.], bound=700.), False),
    (Figure("", "ratio", 1.05, values=[1.04], part=2), None), (Figure("", "ratio", 1.05), None), (Figure("", "s", values=[3.]), None)])
def test_a_goal_is_met_by_the_median_at_full_size(row, met):
    assert row.met == met


def test_goals_are_those_of_the_issue():
    goals = {name: row.goal for name, row in speed.figures(speed.Sizes(), True).items() if row.goal}
    assert goals == {"decode_64": 12_000, "decode_256": 24_000, "decode_64_8_over_1": 1.05, "decode_256_8_over_1": 1.05,
                     "update": .4, "step_8_over_1": 1.05}
    assert not any(row.goal for row in speed.figures(speed.Sizes(), False).values())


# --- parts

@pytest.mark.parametrize("gigabytes, shape", [(139.8, "7b"), (79.1, "7b"), (39.4, "7b"), (23.6, "1.5b"), (14.6, "1.5b"), (7.6, "0.5b")])
def test_a_card_gets_the_shape_that_fits(monkeypatch, gigabytes, shape):
    """Memory as torch tells it of an H200, H100, A100, RTX 4090, T4 and RTX 3070; nothing else of a card is asked."""
    memory = argparse.Namespace(total_memory=gigabytes * 2 ** 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert card.default_shape(torch.device("cuda")) == shape
    assert "CUDA graphs" in [part.name for part in card.parts(torch.device("cuda"), speed.Sizes())]


def test_parts_survive_each_other(run, capsys, monkeypatch):
    """What fails is named with its last line, what finds no time is named too, and the others run."""
    def out_of_memory(b):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB")

    def slow(b):
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 60)

    def routing(b):
        return correct.check_routing(SHAPES["micro"], b.dtype, b.ranks.device)

    said, wrote = run([Part("routing", routing, 1, True), Part("big", out_of_memory, 1), Part("a copy", speed.roofs, 1),
                       Part("slow", slow, 1), Part("late", slow, 1)])
    assert said["failed"] == ["big"] and said["not_run"] == ["late"] and said["correct"]
    assert wrote["parts"][1]["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    assert "in out_of_memory" in wrote["parts"][1]["traceback"]
    assert len(wrote["checks"]) == 4 and wrote["figures"]["bandwidth"]["value"] > 0
    out = capsys.readouterr().out
    assert "| routing, grouped |" in out and "big: failed. OutOfMemoryError: CUDA" in out and "late: not run." in out


@pytest.mark.parametrize("check", ["raises", "fails", "is no number", "late"])
def test_not_correct_where_a_check_failed_or_was_not_made(run, check):
    def work(b):
        if check == "raises":
            raise RuntimeError("no kernel")
        return [Check("x", 1.0 if check == "fails" else math.nan, .05)]
    said, wrote = run([Part("check", work, 1, True)], minutes=0 if check == "late" else 1)
    assert not said["correct"]
    assert wrote["parts"][0]["status"] == {"raises": "failed", "late": "not run"}.get(check, "done")


def test_sizes_shrink_to_the_time_left():
    """Twice as many tokens are tried for as long as what is left to do would end in time."""
    bench = Bench("micro", torch.float32, Ranks(0, 1, CPU), MICRO, speed.figures(MICRO, False))
    tried = []

    def work(part: int) -> float:
        tried.append(part)
        return 16 / part                                                # seconds, as if
    bench.deadline = time.monotonic() + 30
    assert bench.fit(work, n_runs=4) == 4 and tried == [16, 16, 8, 4, 4]    # at 2 its four runs would take 32
    slow = [9, 1, 50, 2, 40, 16]                                        # the first of a shape compiles
    assert bench.fit(lambda part: slow.pop(0), n_runs=1) == 4 and not slow
    bench.deadline = time.monotonic() + 1000
    assert bench.fit(work, n_runs=4) == 1


def test_the_loop_is_the_real_one(micro_base):
    """Without time it makes one step: tasks are written, solved and learned from, in the base of the shape."""
    bench = Bench("micro", torch.float32, Ranks(0, 1, CPU), MICRO, speed.figures(MICRO, False))
    speed.loop(bench)
    step, = bench.loop
    assert step["valid"] > .3 and step["tokens_trained"] > 500 and step["seconds"]["update"] > 0
    assert bench.figures["loop"].value > 0 and bench.made is None


@pytest.mark.parametrize("name, make", [("int8", in_int8), ("compile", copy.copy)])
def test_another_model_takes_turns_with_the_plain_one(monkeypatch, name, make):
    """And where there is none, the part says so."""
    sizes = dataclasses.replace(MICRO, rows=(8, 8), prompt=16, new=4)
    bench = Bench("micro", torch.float32, Ranks(0, 1, CPU), sizes, speed.figures(sizes, False), deadline=time.monotonic() + 5)
    speed.roofs(bench)
    speed.other_model(bench, name, make)
    rows = {key: row for key, row in bench.figures.items() if row.values}
    assert set(rows) == {"bandwidth", "arithmetic", "decode_8", f"decode_8_{name}", f"decode_8_{name}_over_plain"}
    plain = bench.figures["decode_8"].values
    with pytest.raises(ValueError, match="does not work here"):
        speed.other_model(bench, name, lambda model: model)
    speed.other_model(bench, name, make)
    assert bench.figures["decode_8"].values is plain, "measured beside the others"


@pytest.mark.slow
def test_all_of_it_on_a_cpu_in_two_minutes(tmp_path, micro_base):
    """As a user calls it. On a machine that has much else to do, the last parts may find no time."""
    words = [sys.executable, "-m", "bench", "card", "--shape", "micro", "--minutes", "2", "--threads", "1", "--device", "cpu"]
    said = subprocess.run([*words, "--out", str(tmp_path / "card.json")], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    last = json.loads(said.stdout.strip().splitlines()[-1])
    assert last["correct"] and not last["failed"] and set(last["not_run"]) <= {"loop", "PEFT"}
    wrote = json.loads((tmp_path / "card.json").read_text())
    missing = {name for name, row in wrote["figures"].items() if row["value"] is None and "eager" not in name and "compile" not in name}
    assert missing <= {"loop", "peft_decode", "peft_update"}
