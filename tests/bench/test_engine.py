"""bench decode, update and step: on small sizes, their gates, and that a base of a shape is timed as a loaded one is."""
import argparse

import pytest
import torch

from bench import engine
from bench.workload import SHAPES, population
from lora import LoRARouter


def flags(command: str, *words) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engine.COMMANDS[command][1](parser)
    small = ["--prompt", "6", "--new", "4", "--repeats", "1", "--rows", "16", "--device", "cpu", "--dtype", "float32"]
    return parser.parse_args([*small, *map(str, words)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_of_a_shape_is_fused(dtype):
    base = engine.open_base(flags("decode", "--shape", "micro", "--dtype", dtype))
    assert base.model.embedding.dtype == getattr(torch, dtype) and base.model.cfg == SHAPES["micro"]
    for linear in base.model.fused_linears():
        x = torch.ones(1, 1, linear.layers[0].in_features, dtype=getattr(torch, dtype))
        assert torch.equal(torch.cat(linear(x), -1), torch.nn.functional.linear(x, linear.weight, linear.bias))


def test_rollouts_take_turns(micro_base, capsys):
    figures = engine.decode(flags("decode", "--base", micro_base, "--no-peers"))
    assert figures["routing_error"] < 1e-5
    assert {"x_pop8_over_pop1_16", "x_pop8_over_base_16"} < set(figures)
    assert "16 rows: 8 members, one batch" in capsys.readouterr().out


def test_the_gate_tells_a_wrong_member_apart(monkeypatch):
    base = engine.open_base(flags("decode", "--shape", "micro"))
    adapters = population(base, 8)
    monkeypatch.setattr(LoRARouter, "__call__", lambda self, paths, sizes, x, y: y)
    with pytest.raises(AssertionError, match="mixed batch and merged weights differ"):
        engine.check_routing(base, adapters)
    monkeypatch.undo()
    before = base.model.state_dict()["model.layers.0.mlp.gate_proj.weight"].clone()
    assert engine.check_routing(base, adapters) < 1e-5
    assert torch.equal(before, base.model.state_dict()["model.layers.0.mlp.gate_proj.weight"]), "a member stayed merged in"


def test_nothing_is_timed_where_rows_get_no_adapter(micro_base, monkeypatch):
    monkeypatch.setattr(LoRARouter, "__call__", lambda self, paths, sizes, x, y: y)
    with pytest.raises(AssertionError, match="mixed batch and merged weights differ"):
        engine.decode(flags("decode", "--base", micro_base, "--no-peers"))


@pytest.mark.parametrize("base", ["micro/base", "shape"])
def test_an_update_is_pefts(base, micro_base):
    """Of a directory, and of random weights without one."""
    pytest.importorskip("peft")
    words = ["--shape", "micro"] if base == "shape" else ["--base", micro_base]
    figures = engine.update(flags("update", *words))
    assert figures["gradient_error_16"] < 1e-4 and figures["x_peft_loop_16"] > 0


def test_a_step(micro_base):
    assert engine.step(flags("step", "--base", micro_base))["x_pop8_over_pop1_16"] > 0
