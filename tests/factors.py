"""Adapters' factors of a small model, for the tests of operators and population."""
import torch

SHAPES = {"self_attn.q_proj": (24, 24), "self_attn.k_proj": (24, 8), "mlp.up_proj": (24, 40), "mlp.down_proj": (40, 24)}
N_BLOCKS, RANK = 5, 6


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def shapes():
    """Inputs and outputs of each module."""
    return {f"model.layers.{i}.{name}": shape for i in range(N_BLOCKS) for name, shape in SHAPES.items()}


def trained(seed):
    """Factors with a spread spectrum, as after training: |A| about 1, |B| small."""
    g, decay = gen(seed), torch.linspace(1, 0.2, RANK)
    return {n: (torch.randn(RANK, i, generator=g), torch.randn(o, RANK, generator=g) * 0.02 * decay) for n, (i, o) in shapes().items()}


def same(one, other):
    """Whether two members' factors are equal bit for bit."""
    return all(torch.equal(x, y) for path in one for x, y in zip(one[path], other[path]))


def fresh(seed):
    return {n: (A, torch.zeros_like(B)) for n, (A, B) in trained(seed).items()}
