"""bench decode, update and step: what they time computes the same as transformers and PEFT do; small sizes."""
import argparse

import pytest
import torch

from bench import engine
from bench.common import relative_rms
from bench.peers import Peers
from bench.workload import POP, fixed_rollout, members_of, population, prompts_of, updater


def flags(command: str, *words) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engine.COMMANDS[command][1](parser)
    small = ["--prompt", "6", "--new", "4", "--repeats", "1", "--rows", "16", "--device", "cpu", "--dtype", "float32"]
    return parser.parse_args([*small, *map(str, words)])


@torch.no_grad()
def test_a_mixed_batch_is_each_member_merged_in(micro_base):
    base = engine.open_base(flags("decode", "--base", micro_base))
    adapters = population(base, 8)
    ids = torch.tensor(prompts_of(base, POP, 24))
    mixed = base.model.logits(base.model(ids, lora=adapters.route(torch.arange(POP), torch.float32)))
    adapted = {path: layer.weight for path, layer in base.model.linears().items() if path in adapters.A}
    for p in (0, POP - 1):
        for path, weight in adapted.items():
            weight += adapters.scale * adapters.B[path][p] @ adapters.A[path][p]
        alone = base.model.logits(base.model(ids))
        for path, weight in adapted.items():
            weight -= adapters.scale * adapters.B[path][p] @ adapters.A[path][p]
        assert relative_rms(mixed[p], alone[p]) < 1e-4 < 1e-3 < relative_rms(mixed[1], alone[1])


@pytest.mark.parametrize("words", [["--shape", "micro"], []])
def test_an_update_is_pefts(words, micro_base):
    """Of a directory, and of random weights without one."""
    pytest.importorskip("peft")
    base = engine.open_base(flags("update", *(words or ["--base", micro_base])))
    adapters = population(base, 8)
    peers, rollout = Peers(base, adapters), fixed_rollout(base, members_of(16), 6, 4, 2)
    peers.updater(rollout)()
    updater(base, adapters, rollout, 2048)()
    for path in adapters.A:
        for side, factor in (("A", adapters.A[path]), ("B", adapters.B[path])):
            for p in range(POP):
                assert relative_rms(factor.grad[p], peers.gradient(path, side, p)) < 1e-4, (path, side, p)


def test_figures(micro_base, capsys):
    found = engine.decode(flags("decode", "--base", micro_base, "--no-peers"))
    assert {"x_pop8_over_pop1_16", "x_pop8_over_base_16"} == set(found)
    assert "16 rows: 8 members, one batch" in capsys.readouterr().out
    assert engine.step(flags("step", "--base", micro_base))["x_pop8_over_pop1_16"] > 0
    assert engine.update(flags("update", "--base", micro_base, "--no-peers"))["x_pop8_over_pop1_16"] > 0
