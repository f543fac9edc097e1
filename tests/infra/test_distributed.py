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
from infra.distributed import BITS, Ranks, checksum, leave
from model import Base
from run import startup
from run.directory import RunDir
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
    with pytest.raises(ValueError, match=match):
        Ranks.join(asked)


# -- two processes -------------------------------------------------------------------------------------------

# prompts x attempts: fewer rows than processes, fewer prompts, an even number of halves, what cannot be halved
DEALT = [(1, 1), (1, 4), (3, 4), (5, 3), (6, 2)]
SIZES = dict(steps=3, pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=2,
             evolve_every=1, probe_every=0, save_every=1, name="run", grace=-1)


def rollout_of(ranks: Ranks, base, n_prompts: int, n: int) -> dict:
    """What a process holds after n attempts of three members at some prompts of 2, 3, 4, ... tokens."""
    keys = [(n_prompts, n, row) for row in range(n_prompts * n)]
    prompts = Prompts([list(range(6, 8 + i)) for i in range(n_prompts)], [i % 3 for i in range(n_prompts)], keys)
    return vars(generate(base, population(base, 4, 3, std=.3), prompts, SamplingParams(n, max_new_tokens=6), ranks))


def said_by(make) -> str:
    """The sentence of the ValueError that make() raises; "" = it raises none."""
    try:
        make()
    except ValueError as e:
        return str(e)
    return ""


def only_in(rank: int, wanted: int, said: str) -> int:
    """Raises ValueError in one process; the others get 1."""
    if rank == wanted:
        raise ValueError(said)
    return 1


def forbidden(*args):
    """What process 0 alone may do."""
    raise AssertionError("computed in every process")


def altered_run(ranks: Ranks, folder: Path, micro_base: Path) -> str:
    """What a run says in whose second step process 1 changes the last bit of one number."""
    evolve_population = train.evolve_population

    def alter(setup, state, adam, step):
        births = evolve_population(setup, state, adam, step)
        if step == 1 and ranks.rank == 1:
            number = setup.adapters.B[ALTERED].detach()[2, :1, 0]
            number.copy_(number.nextafter(torch.ones(1)))
        return births

    train.evolve_population = alter
    if ranks.rank == 1:
        train.evolve.apply_operator = forbidden
        startup.weights_hash = forbidden
    os.environ.update(WORLD_SIZE="2", RANK=str(ranks.rank))
    return said_by(lambda: train.main(Config(base=str(micro_base), out=str(folder), device="cpu", **SIZES)))


ALTERED = "model.layers.0.self_attn.v_proj"


def one_of_two(rank: int, folder: Path, base_path: Path, micro_base: Path) -> None:
    """A process: all that it saw, in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    base = Base(load_model(base_path, torch.float32), None, (1, 5), "base", base_path)
    saw = dict(rollouts=[rollout_of(ranks, base, *sizes) for sizes in DEALT])
    saw["told"] = ranks.broadcast(lambda: ["ä", None, rank])
    saw["refused"] = said_by(lambda: ranks.broadcast(lambda: only_in(rank, 0, "mend it")))
    saw["together"] = [said_by(lambda: ranks.together(lambda: only_in(rank, at, f"{at} fails"))) for at in range(3)]
    saw["equal"] = said_by(lambda: ranks.check_equal(dict(a=torch.ones(3), b=7), "here"))
    saw["different"] = said_by(lambda: ranks.check_equal(dict(a=torch.ones(3), b=7, c=torch.tensor([0., -0.][rank])), "here"))
    saw["altered"] = altered_run(ranks, folder, micro_base)
    torch.save(saw, folder / f"process_{rank}.pt")
    leave()
    assert not dist.is_initialized()


@pytest.fixture(scope="module")
def two(tiny, micro_base, tmp_path_factory):
    """What each of two processes saw, and the folder they were in."""
    folder = tmp_path_factory.mktemp("two")
    mp.spawn(one_of_two, (folder, tiny.path, micro_base), nprocs=2)
    return [torch.load(folder / f"process_{rank}.pt") for rank in range(2)], folder


@pytest.mark.parametrize("case, sizes", list(enumerate(DEALT)), ids=str)
def test_rows_are_dealt_and_all_processes_hold_the_same_bytes(two, tiny, case, sizes):
    mine, theirs = two[0]
    alone = rollout_of(Ranks(0, 1, torch.device("cpu")), tiny, *sizes)
    for name, whole in alone.items():
        assert torch.equal(mine["rollouts"][case][name], theirs["rollouts"][case][name])
        torch.testing.assert_close(mine["rollouts"][case][name], whole, rtol=0, atol=1e-5)


def test_what_process_0_finds_out_all_are_told_its_errors_too(two):
    for saw in two[0]:
        assert saw["told"] == ["ä", None, 0] and saw["refused"] == "mend it"
        assert saw["together"] == ["0 fails", "1 fails", ""]


def test_a_process_that_differs_stops_all_with_the_name(two):
    for saw in two[0]:
        assert not saw["equal"] and saw["different"] == "here: c is not the same in process 1 as in process 0"
        assert saw["altered"].startswith(f"step 1: {ALTERED}.lora_B is not the same in process 1 as in process 0")


def test_children_and_the_hash_come_from_process_0(two):
    """Process 1 may make neither; the step whose children it was given was saved, the one that it spoilt was not."""
    path = two[1] / "run"
    assert RunDir(path, writes=False).steps() == [1]
    assert [birth["step"] for birth in rows(path, "genealogy")] == [0, 0]


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


# -- leaving -------------------------------------------------------------------------------------------------

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
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py",
               *words(base=micro_base, out=tmp_path, **SIZES | dict(steps=40, epochs=2, save_every=50))]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    for row in process.stdout:
        if row.split()[:1] == ["0"]:
            break
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)           # as a terminal does
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1 and said.count("SIGINT: saved before step ") == 1, said
    assert said.count("Traceback") == 1 and str(ROOT / "train.py") not in said, said
    assert RunDir(tmp_path / "run", writes=False).steps()
