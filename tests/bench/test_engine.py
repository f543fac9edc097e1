"""bench decode, update and step: what they time computes the same as each member alone and as PEFT; small sizes."""
import argparse

import pytest
import torch

from bench import engine
from bench.common import relative_rms
from bench.peers import Peers
from bench.workload import POP, fixed_rollout, members_of, population, prompts_of, random_base, updater


@torch.no_grad()
def test_a_mixed_batch_is_each_member_merged_in():
    base = random_base("micro", torch.float32, "cpu")
    adapters = population(base, 8)
    ids = torch.tensor(prompts_of(base, POP, 24))
    mixed = base.model.logits(base.model(ids, lora=adapters.route(torch.arange(POP), torch.float32)))
    adapted = {path: layer.weight for path, layer in base.model.linears().items() if path in adapters.A}
    p = POP - 1
    for path, weight in adapted.items():
        weight += adapters.scale * adapters.B[path][p] @ adapters.A[path][p]
    alone = base.model.logits(base.model(ids))
    for path, weight in adapted.items():
        weight -= adapters.scale * adapters.B[path][p] @ adapters.A[path][p]
    assert relative_rms(mixed[p], alone[p]) < 1e-4 < 1e-3 < relative_rms(mixed[1], alone[1])


def test_an_update_is_pefts(base):
    pytest.importorskip("peft")
    adapters = population(base, 8)
    peers, rollout = Peers(base, adapters), fixed_rollout(base, members_of(16), 6, 4, 2)
    peers.updater(rollout)()
    updater(base, adapters, rollout, 2048)()
    theirs = dict(peers.model.named_parameters())
    for path in adapters.A:
        for side, factor in (("A", adapters.A[path]), ("B", adapters.B[path])):
            for p in range(POP):
                wanted = theirs[f"base_model.model.{path}.lora_{side}.m{p}.weight"].grad
                assert relative_rms(factor.grad[p], wanted) < 1e-4, (path, side, p)


@pytest.mark.parametrize("command, names", [("decode", {"pop8", "pop1", "base"}), ("update", {"pop8", "pop1"}), ("step", {"pop8", "pop1"})])
def test_figures(command, names, capsys):
    function, flags = engine.COMMANDS[command]
    flags(parser := argparse.ArgumentParser())
    small = ["--shape", "micro", "--prompt", "6", "--new", "4", "--repeats", "1", "--rows", "16", "--device", "cpu"]
    figures = function(parser.parse_args(small))
    assert set(figures) == {f"x_{name}_16" for name in names} and figures["x_pop8_16"] == 1 and min(figures.values()) > 0
    assert "16 rows: pop8" in capsys.readouterr().out
