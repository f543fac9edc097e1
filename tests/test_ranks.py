"""Which device a process takes, and two processes over gloo: they hold the same bytes, or stop together and say what differs."""
import os
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from batches import one_of_two
from tiny_run import SIZES, rows

import train
from common import UserError
from config import Config
from generate import Prompts, SamplingParams, generate
from model import Base
from ranks import ALONE, Ranks
from run import RunDir
from weights import load_model


@pytest.fixture
def cards(monkeypatch):
    """A machine with three: the list of those that are made current."""
    current, was = [], torch.backends.cuda.cudnn_sdp_enabled()
    for name, value in dict(is_available=lambda: True, device_count=lambda: 3, set_device=current.append).items():
        monkeypatch.setattr(torch.cuda, name, value)
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield current
    torch.backends.cuda.enable_cudnn_sdp(was)


@pytest.mark.parametrize("asked, local_rank, chosen", [("cuda:1", "0", "cuda:1"), ("cuda", "2", "cuda:2"), ("auto", "0", "cuda:0")])
def test_a_card_is_made_current_and_cudnn_s_attention_is_off(monkeypatch, cards, asked, local_rank, chosen):
    """Else libraries that ask for the current device go to card 0, and every new shape costs half a second."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert Ranks.join(asked).device == torch.device(chosen)
    assert cards == [chosen] and not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("asked, local_rank, world, match", [
    ("cuda", "3", "4", "torch sees 3 card.*: name another, give cpu, or lower torchrun's --nproc_per_node"), ("cuda:5", "0", "1", "torch sees 3"),
    ("nonsense", "0", "1", "give auto, cpu, cuda or cuda:1")])
def test_a_card_that_is_not_there_is_named(monkeypatch, cards, asked, local_rank, world, match):
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(UserError, match=f"--device {asked}.*{match}"):
        Ranks.join(asked)



def talk(ranks: Ranks, base_path: Path) -> None:
    """Rows are dealt and all hold the same bytes; what one finds out all are told, errors too."""
    base = Base(load_model(base_path, torch.float32), None, (1, 5), "base", base_path)

    def fails_in(rank: int) -> list:
        if ranks.rank == rank:
            raise UserError(f"{rank} fails")
        return ["ä", None, ranks.rank]

    for n_prompts, n in ((1, 1), (1, 4), (3, 4), (6, 2)):       # fewer rows than processes, fewer prompts, what cannot be halved
        keys = [(n_prompts, n, row) for row in range(n_prompts * n)]
        prompts = Prompts([list(range(6, 8 + i)) for i in range(n_prompts)], [-1] * n_prompts, keys)
        ours, alone = (vars(generate(base, None, prompts, SamplingParams(n, max_new_tokens=6), r)) for r in (ranks, ALONE))
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-5)
    assert ranks.broadcast(lambda: fails_in(1)) == ["ä", None, 0]
    with pytest.raises(UserError, match="^0 fails$"):
        ranks.broadcast(lambda: fails_in(0))
    assert ranks.together(lambda: fails_in(2)) == ["ä", None, ranks.rank]
    for rank in range(2):
        with pytest.raises(UserError, match=f"^{rank} fails$"):
            ranks.together(lambda: fails_in(rank))
    assert ranks.gather(torch.full((ranks.rank + 1, 2), ranks.rank), [1, 2]).tolist() == [[0, 0], [1, 1], [1, 1]]
    given = torch.full((3,), float(ranks.rank))
    ranks.broadcast_tensors([given])
    assert given.tolist() == [0, 0, 0]
    ranks.check_equal([torch.ones(3), torch.zeros(2)], "here")
    with pytest.raises(AssertionError, match="^here: the processes hold different adapters"):
        ranks.check_equal([torch.ones(3), torch.tensor([0., -0.][ranks.rank:][:1])], "here")


def run_altered(ranks: Ranks, folder: Path, micro_base: Path) -> None:
    """A run in whose second step process 1, which makes no children, changes the last bit of one number."""
    evolve_population = train.evolve_population

    def alter(setup, state, step):
        births = evolve_population(setup, state, step)
        if step == 1 and ranks.rank == 1:
            number = setup.adapters.B["model.layers.0.self_attn.v_proj"].detach()[2, :1, 0]
            number.copy_(number.nextafter(torch.ones(1)))
        return births

    train.evolve_population = alter
    if ranks.rank == 1:
        train.evolve.apply_operator = None
    os.environ.update(WORLD_SIZE="2", RANK=str(ranks.rank))
    with pytest.raises(AssertionError, match="^step 1: the processes hold different adapters"):
        train.main(Config(base=str(micro_base), out=str(folder), device="cpu", steps=3, evolve_every=1, probe_every=0, save_every=1, **SIZES))


@pytest.mark.slow
def test_two_processes_hold_the_same_bytes(tiny, tmp_path):
    mp.spawn(one_of_two, (talk, tmp_path, tiny.path), nprocs=2)


@pytest.mark.slow
def test_processes_that_go_apart_stop_together(micro_base, tmp_path):
    """The step whose children process 1 was given was saved, the one that it spoilt was not."""
    mp.spawn(one_of_two, (run_altered, tmp_path, tmp_path, micro_base), nprocs=2)
    assert RunDir(tmp_path / "run", writes=False).steps() == [1]
    assert {birth["step"] for birth in rows(tmp_path / "run", "genealogy")} == {0}
