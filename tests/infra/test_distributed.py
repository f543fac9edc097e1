"""Which device a process takes, and what is set there before anything runs."""
import pytest
import torch

from infra.distributed import Ranks


@pytest.mark.parametrize("asked, local_rank, chosen", [("cuda:1", "0", "cuda:1"), ("cuda", "2", "cuda:2"),
                                                       ("auto", "0", "cuda:0")])
def test_a_cuda_device_is_made_current_and_cudnn_s_attention_is_off(monkeypatch, asked, local_rank, chosen):
    """Else libraries that ask for the current device go to card 0, and every new shape costs half a second."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        assert Ranks.join(asked).device == torch.device(chosen)
        assert current == [chosen] and not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


@pytest.mark.parametrize("there, world, fallback, match", [(False, "1", "1", "sees no Apple GPU; use --device cpu"),
                                                           (True, "2", "1", "one process: start it without torchrun"),
                                                           (True, "1", "0", "export PYTORCH_ENABLE_MPS_FALLBACK=1")])
def test_an_apple_gpu_that_cannot_be_used_is_refused(monkeypatch, there, world, fallback, match):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there)
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", fallback)
    with pytest.raises(ValueError, match=match):
        Ranks.join("mps")


def test_an_apple_gpu_is_taken_where_asked_for_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    assert Ranks.join("mps") == Ranks(0, 1, torch.device("mps")) and Ranks.join("auto").device.type == "cpu"


def test_a_processor_needs_none_of_it(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert Ranks.join("cpu") == Ranks(0, 1, torch.device("cpu")) and not current
