"""Which device a process takes, and two processes over gloo: they hold the same bytes, or stop together and say what differs."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny_run import rows, words

import train
from bench.workload import population
from config import Config
from generate import Prompts, SamplingParams, generate
from common import BITS, checksum, leave
from ranks import ALONE, Ranks
from common import UserError
from model import Base
from run import startup
from run import RunDir
from run.platform import Interrupted, Signals
from weights import load_model

ROOT = Path(train.__file__).parent


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
def test_a_cuda_device_is_made_current_and_cudnn_s_attention_is_off(monkeypatch, cards, asked, local_rank, chosen):
    """Else libraries that ask for the current device go to card 0, and every new shape costs half a second."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert Ranks.join(asked).device == torch.device(chosen)
    assert cards == [chosen] and not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("asked, local_rank, world, match", [
    ("cuda", "3", "4", "there is no card 3, torch sees 3: name another, or lower torchrun's --nproc_per_node"),
    ("cuda:5", "0", "1", "there is no card 5"), ("cuda:1", "0", "2", "names one card for 2 processes: pass --device cuda")])
def test_a_card_that_is_not_there_is_named(monkeypatch, cards, asked, local_rank, world, match):
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(UserError, match=match):
        Ranks.join(asked)


@pytest.mark.parametrize("rank, world", [("1", None), ("-1", None), ("2", "2")])
def test_a_place_among_no_processes_is_refused(monkeypatch, rank, world):
    """RANK left over in a shell: a process that is not the first writes nothing, and there would be no first."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(UserError, match=f"RANK is {rank} .*start by torchrun"):
        Ranks.join("cpu")


# prompts x attempts: fewer rows than processes, fewer prompts, an even number of halves, what cannot be halved
DEALT = [(1, 1), (1, 4), (3, 4), (5, 3), (6, 2)]
SIZES = dict(steps=3, pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=2,
             evolve_every=1, probe_every=0, save_every=1, name="run", grace=-1)


def answers(base: Base, ranks: Ranks, n_prompts: int, n: int) -> dict:
    """What a process holds after n attempts of three members at some prompts of 2, 3, 4, ... tokens."""
    keys = [(n_prompts, n, row) for row in range(n_prompts * n)]
    prompts = Prompts([list(range(6, 8 + i)) for i in range(n_prompts)], [i % 3 for i in range(n_prompts)], keys)
    return vars(generate(base, population(base, 4, 3, std=.3), prompts, SamplingParams(n, max_new_tokens=6), ranks))


def talk(ranks: Ranks, base: Base) -> None:
    """Rows are dealt and all hold the same bytes; what one finds out all are told, errors too; one that differs stops all."""
    def fails_in(rank: int) -> list:
        if ranks.rank == rank:
            raise UserError(f"{rank} fails")
        return ["ä", None, ranks.rank]

    def checked(c: float) -> None:
        ranks.check_equal(dict(a=torch.ones(3), b=7, c=torch.tensor(c)), "here")
    for sizes in DEALT:
        ours = answers(base, ranks, *sizes)
        ranks.check_equal(ours, str(sizes))
        torch.testing.assert_close(ours, answers(base, ALONE, *sizes), rtol=0, atol=1e-5)
    assert ranks.broadcast(lambda: fails_in(1)) == ["ä", None, 0]
    with pytest.raises(UserError, match="^0 fails$"):
        ranks.broadcast(lambda: fails_in(0))
    ranks.together(lambda: fails_in(2))
    for rank in range(2):
        with pytest.raises(UserError, match=f"^{rank} fails$"):
            ranks.together(lambda: fails_in(rank))
    checked(0.)
    with pytest.raises(UserError, match="^here: c is not the same in process 1 as in process 0"):
        checked([0., -0.][ranks.rank])


def run_altered(ranks: Ranks, folder: Path, micro_base: Path) -> None:
    """A run in whose second step process 1, which makes neither children nor the hash, changes the last bit of one number."""
    evolve_population, path = train.evolve_population, "model.layers.0.self_attn.v_proj"

    def alter(setup, state, step):
        births = evolve_population(setup, state, step)
        if step == 1 and ranks.rank == 1:
            number = setup.adapters.B[path].detach()[2, :1, 0]
            number.copy_(number.nextafter(torch.ones(1)))
        return births

    train.evolve_population = alter
    if ranks.rank == 1:
        train.evolve.apply_operator = startup.weights_hash = None
    os.environ.update(WORLD_SIZE="2", RANK=str(ranks.rank))
    with pytest.raises(UserError, match=f"^step 1: {path}.lora_B is not the same in process 1 as in process 0"):
        train.main(Config(base=str(micro_base), out=str(folder), device="cpu", **SIZES))


def one_of_two(rank: int, folder: Path, base_path: Path, micro_base: Path) -> None:
    """A process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    talk(ranks, Base(load_model(base_path, torch.float32), None, (1, 5), "base", base_path))
    run_altered(ranks, folder, micro_base)
    leave()
    assert not dist.is_initialized()


def test_two_processes_hold_the_same_bytes_or_stop_together(tiny, micro_base, tmp_path):
    """The step whose children process 1 was given was saved, the one that it spoilt was not."""
    mp.spawn(one_of_two, (tmp_path, tiny.path, micro_base), nprocs=2)
    assert RunDir(tmp_path / "run", writes=False).steps() == [1]
    assert [birth["step"] for birth in rows(tmp_path / "run", "genealogy")] == [0, 0]


def test_a_checksum_sees_every_bit():
    """Also of a tensor that cannot be read in words of eight bytes, for its size, its strides or where it begins."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for part in (slice(0, 1000), slice(0, 999), slice(1, 999), slice(0, 1000, 2)):
            y = x.to(dtype)[part]
            before = checksum(y)
            assert before == checksum(x.to(dtype)[part]) and before.dtype == torch.int64
            y.view(BITS[y.element_size()])[77] ^= 1
            assert checksum(y) != before


def test_a_patient_process_leaves_at_the_end_of_a_step_alone():
    """Else process 0 would wait in the middle of a step for one that is gone, and could not save."""
    before = signal.getsignal(signal.SIGINT)
    signals = Signals(patient=True).install()
    try:
        with signals:
            pass
        os.kill(os.getpid(), signal.SIGINT)         # between two blocks
        with pytest.raises(Interrupted, match="SIGINT"), signals:
            done = True
    finally:
        signals.restore()
    assert done and signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_ctrl_c_under_torchrun(micro_base, tmp_path):
    """One line of ours and a whole checkpoint. The one traceback is torchrun's own, without a file of ours in it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc_per_node=2", "train.py",
               *words(base=micro_base, out=tmp_path, **SIZES | dict(steps=40, epochs=2, save_every=50))]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert any(row.split()[:1] == ["0"] for row in process.stdout)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)           # as a terminal does
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1 and said.count("SIGINT: saved before step ") == 1, said
    assert said.count("Traceback") == 1 and str(ROOT / "train.py") not in said, said
    assert RunDir(tmp_path / "run", writes=False).steps()
