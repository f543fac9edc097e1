"""The way of a run on a card, walked on a pretend one (pretend.py): nothing mixes devices, nothing waits where it must not, no memory leaks."""
import dataclasses

import pytest
import torch
from pretend import inserted
from tiny_run import rows
from varlen import needs_pages

import rl
import train
from bench.workload import batch_of, drawn, fixed_rollout, population
from config import Config, resolve_config
from weights import load_base

RUN = dict(pop=4, name="run", n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=20, rollout_batch=16,
           tokens_per_microbatch=256, evolve_every=1, grace=0, probe_every=2, n_heldout=1, save_every=1)


@pytest.fixture
def card(monkeypatch):
    with inserted(monkeypatch, (9, 0)) as card:
        yield card


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(7, 5), pytest.param((9, 0), marks=needs_pages)])
def test_a_run_with_evolution_probes_and_resume(capability, tmp_path, monkeypatch, micro_base, capfd):
    """Three steps, the last after a restart: float32, a dense cache and no graphs on an old card; pages and graphs on a new one."""
    pages = capability >= (8, 0)
    few = {} if pages else dict(probe_every=0, n_heldout=0)         # every op of a step is a call of Python
    cfg = Config(**RUN | few, base=str(micro_base), steps=2, device="cuda", out=str(tmp_path))
    with inserted(monkeypatch, capability) as card:
        train.main(cfg)
        train.main(dataclasses.replace(cfg, steps=3, resume="auto"))
    steps = rows(tmp_path / "run")
    assert [row["step"] for row in steps] == [0, 1, 2] and steps[-1]["tokens_trained"] > 0
    assert len(rows(tmp_path / "run", "genealogy")) > 4, "nobody was born"
    assert {path.name for path in (tmp_path / "run").glob("step_*")} >= {"step_3"}
    assert (card.attention["pages"] > 0) == pages and card.attention["efficient"] > 0
    assert card.n_replayed > 2 * card.n_recorded > 0 if pages else not card.n_recorded
    assert card.most_private <= card.largest_recording, f"recordings hold {card.most_private} bytes, the largest {card.largest_recording}"
    assert not card.attention["math"], "SDPA took its slow way"
    assert "CUDA graph" not in capfd.readouterr().err
    if not pages:                           # in float32 both compute the same to the sixth digit
        train.main(dataclasses.replace(cfg, steps=1, device="cpu", name="cpu"))
        ours, theirs = [[row.get("program", row.get("text")) for row in rows(tmp_path / name, "tasks")] for name in ("run", "cpu")]
        assert ours[:8] == theirs and len(theirs) == 8


@needs_pages
def test_graphs_decode_what_single_steps_do(card, tiny):
    """Bit for bit, while rows of all members come and go."""
    base, rollouts = load_base(str(tiny.path), torch.bfloat16, torch.device("cuda:0")), []
    adapters = population(base, 8, 3)
    for graphs in (False, True):
        rollouts.append(drawn(dataclasses.replace(base, graphs=graphs), adapters, prompt=40, new=24).to("cpu"))
        assert (card.n_recorded > 0) == graphs
    for name in ("ids", "logp", "length", "member"):
        assert torch.equal(*(getattr(rollout, name) for rollout in rollouts)), name


@pytest.mark.parametrize("member", [pytest.param([0, 0, 1, 1, 2, 2], marks=pytest.mark.slow), [2, 2, 2, 0, 0, 1]])
@pytest.mark.parametrize("options", [dict(), dict(kl_coef=.1, entropy_coef=.1, importance_cap=2.0, loss="sequence", epochs=2)])
def test_an_update_moves_members_as_on_the_cpu(monkeypatch, tiny, member, options):
    """In float32, by equal and by ragged rows; a long row is checkpointed."""
    cfg = resolve_config(Config(tokens_per_microbatch=40, **options), "micro")

    def learned(device: str) -> list[torch.Tensor]:
        base = load_base(str(tiny.path), torch.float32, torch.device(device))
        adapters = population(base, 4, 3)
        batch, adv = batch_of(fixed_rollout(base, member, 30, 14, 2))
        found = rl.update(rl.Objective(base, adapters, batch, adv, cfg), rl.Adam(adapters, [1e-3] * 3))
        assert found["trained_tokens"] == 6 * 14 * cfg.epochs and not found["skipped"]
        return [p.detach().cpu() for p in adapters.parameters()]
    wanted = learned("cpu")
    with inserted(monkeypatch, (8, 9)):
        torch.testing.assert_close(learned("cuda:0"), wanted, rtol=1e-3, atol=2e-5)


@needs_pages
@pytest.mark.parametrize("error, recorded", [pytest.param(torch.OutOfMemoryError("CUDA out of memory"), True, marks=pytest.mark.slow),
                                             (RuntimeError("no such kernel"), False)])
def test_a_recording_that_fails_says_why(card, tiny, capfd, error, recorded):
    """The run goes on; after a lack of memory the next call of generate records again."""
    base = load_base(str(tiny.path), torch.bfloat16, torch.device("cuda:0"))
    card.next_capture_fails = error
    assert torch.equal(*[drawn(base, population(base, 8, 3)).ids.cpu() for _ in range(2)])
    assert str(error) in capfd.readouterr().err
    assert (card.n_recorded > 0) == recorded


# --- the card itself can fail

WRONG = {"a tensor of the CPU": lambda x: x + torch.ones(3), "an index of the card": lambda x: torch.ones(3)[x.long()],
         "cat": lambda x: torch.cat([x, torch.ones(1)]), "where": lambda x: torch.where(x > 0, x, torch.ones(3)), "numpy": lambda x: x.numpy(),
         "matmul": lambda x: torch.ones(2, 3) @ x, "out": lambda x: torch.ones(3).add_(x)}
WAITING = {"item": lambda x: x[0].item(), "tolist": lambda x: x.tolist(), "if": lambda x: bool((x > 0).any()), "cpu": lambda x: x.cpu(),
           "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0], "write by mask": lambda x: x.index_put_((x > 0,), 2 * x),
           "unique": lambda x: x.unique(), "repeats": lambda x: x.repeat_interleave(x.long()), "list": lambda x: torch.tensor([1], device="cuda"),
           "to the card": lambda x: torch.ones(3).to("cuda"), "copy_": lambda x: x.copy_(torch.ones(3)), "equal": lambda x: torch.equal(x, x + 1),
           "index": lambda x: x[torch.tensor([0])], "synchronize": lambda x: torch.cuda.synchronize()}


@pytest.mark.parametrize("mixed", WRONG.values(), ids=WRONG)
def test_devices_do_not_mix(card, mixed):
    with pytest.raises((RuntimeError, TypeError)):
        mixed(torch.ones(3, device="cuda"))


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("ask", WAITING.values(), ids=WAITING)
def test_what_waits_is_noticed(card, ask, inference):
    """Counted anywhere, refused where nothing may wait, and in a capture."""
    with torch.inference_mode(inference):
        x = torch.ones(3, device="cuda")
        ask(x)
        assert card.n_waits == 1
        card.region = "here"
        with pytest.raises(AssertionError, match="here waits for the card"):
            ask(x)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            ask(x)
        with pytest.raises(RuntimeError, match="previous error"):
            graph.capture_end()


@torch.inference_mode()
def test_a_graph_repeats_its_ops_on_the_same_memory(card):
    x, total = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    y = 2 * x
    total += y.view(3, 1)[:, 0]
    graph.capture_end()
    assert total.tolist() == [0, 0, 0] and y.isnan().all().item()
    x.fill_(5)
    graph.replay()
    graph.replay()
    assert total.tolist() == [20, 20, 20] and y.tolist() == [10, 10, 10]
