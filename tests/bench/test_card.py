"""bench card: its checks find what is wrong, its parts survive each other, and all of it runs on a CPU and on a pretended card."""
import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch

from bench import card, checks
from bench.__main__ import parser
from bench.card import Sizes
from bench.checks import Check
from bench.workload import population, random_base
from generate import sample

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "card"))
from pretend import inserted

TINY = Sizes((8, 8), prompt=12, new=6, attempts=1, rank=4, tokens_per_microbatch=128, checked=160)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*words) -> what the command returns, what it wrote as JSON and as a page."""
    def command(*words) -> tuple[dict, dict, str]:
        monkeypatch.setattr(card, "MICRO", TINY)
        path = tmp_path / "card.json"
        shown = card.try_card(parser().parse_args(["card", "--shape", "micro", "--out", str(path), *words]))
        return shown, json.loads(path.read_text()), path.with_suffix(".md").read_text()
    return command


@pytest.mark.parametrize("error, control, held", [(.01, None, True), (.06, None, False), (math.nan, None, False),
                                                  (.01, .06, True), (.01, .04, False), (.01, math.nan, False)])
def test_a_check_holds_where_the_answer_is_near_and_a_wrong_one_is_not(error, control, held):
    assert Check("x", error, .05, control).held == held


def wrong_members(base, adapters, plain=checks.drawn, **sizes):
    rollout = plain(base, adapters, **sizes)
    rollout.member.zero_()
    return rollout


@pytest.mark.parametrize("broken, change, check", [
    ("bench.checks.sample", lambda logits, temperature, u: sample(-logits, temperature, u), lambda base, adapters: checks.sampling(base)),
    ("bench.checks.drawn", wrong_members, lambda base, adapters: checks.decoding(base, adapters, 12, 8)),
    ("rl.policy_loss", lambda logp, old, p, adv, cfg: (-1.1 * adv[p.row] * logp, logp > 0),
     lambda base, adapters: checks.gradients(base, adapters, 80))])
def test_a_check_finds_a_broken_engine(monkeypatch, broken, change, check):
    base = random_base("micro", torch.float32, "cpu")
    adapters = population(base, 4)
    assert all(found.held for found in check(base, adapters))
    monkeypatch.setattr(broken, change)
    assert not all(found.held for found in check(base, adapters))


def test_all_of_it_on_a_cpu(run):
    shown, wrote, page = run("--device", "cpu", "--minutes", "1")
    assert shown["correct"] and not shown["failed"], wrote["parts"]
    assert {"decode_8_8", "decode_8_1", "update_8", "update_1"} == set(wrote["figures"])
    assert all(row["value"] > 0 for row in wrote["figures"].values())
    assert wrote["memory"]["update"]["planned"] > 0 and "held   decoding with refill against rows at once: " in page


@pytest.mark.slow
def test_all_of_it_on_a_pretended_card(run, monkeypatch):
    with inserted(monkeypatch, (9, 0)) as pretended:
        shown, wrote, page = run("--device", "cuda", "--minutes", "5")
    assert shown["correct"] and not shown["failed"], (wrote["parts"], wrote["checks"])
    assert pretended.n_recorded and pretended.attention["pages"] and not wrote["notes"]
    assert [check["name"] for check in wrote["checks"] if "CUDA graphs" in check["name"]]
    assert wrote["card"] == "Pretend H200" and wrote["memory"]["update"]["reserved"] is not None


def test_parts_survive_each_other(run, monkeypatch):
    """What fails is named with its last line, what finds no time is named too; notes are kept; a check that was not made is no success."""
    def out_of_memory(card):
        print("note: memory is short", file=sys.stderr)
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB")

    def slow(card):
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    todo = dict(checks=out_of_memory, update=card.update, slow=slow, late=slow)
    monkeypatch.setattr(card, "parts", lambda sizes: todo)
    shown, wrote, page = run("--device", "cpu", "--minutes", "0.9")
    assert shown["failed"] == ["checks", "late"] and not shown["correct"] and wrote["figures"]["update_8"]["value"] > 0
    assert wrote["parts"]["checks"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB" and wrote["parts"]["checks"] in page
    assert wrote["notes"] == "note: memory is short" and "note: memory is short" in page
