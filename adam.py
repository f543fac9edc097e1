"""Adam over stacked factors: every member has its own moments, count of steps, gradient norm and rate.

A member that has nothing to learn from in a step is not touched, and one whose gradient is not finite is
skipped, whatever its neighbours in the batch do (Adam: 1412.6980).
"""
import torch

from infra.precision import wide
from lora import Adapters


class Adam:
    """Adam over stacked factors; moments, steps, gradient norm, clipped to `clip`, and rate per member.

    The moments m and v (P, ...) lie where the masters are: a step takes those of the members that it moves.
    """

    def __init__(self, adapters: Adapters, lr: list[float], betas=(0.9, 0.95), eps=1e-8, clip=1.0):
        self.adapters = adapters
        self.lr = torch.tensor(lr, device=adapters.device)
        self.betas, self.eps, self.clip = betas, eps, clip
        masters = [master for pair in adapters.masters.values() for master in pair]
        self.m, self.v = [[torch.zeros_like(p, requires_grad=False) for p in masters] for _ in range(2)]
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=adapters.device)

    @torch.no_grad()
    def step(self, active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the active members (P,) bool from .grad and clear it; no bit of the others is touched.

        Returns gradient norms before clipping (P,) and who was skipped for a non-finite gradient (P,).
        """
        params = self.adapters.parameters()                                    # of the k members here
        dtype = wide(active.device)
        norm = torch.zeros(len(active), dtype=dtype, device=active.device)
        squares = torch.stack([p.grad.to(dtype).pow(2).sum((1, 2)) for p in params])
        norm[self.adapters.here] = squares.sum(0).sqrt()
        skipped = active & ~norm.isfinite()
        a = (active & norm.isfinite()).nonzero().squeeze(1)
        if len(a):
            self.steps[a] += 1
            b1, b2 = self.betas
            t = self.steps[a].to(dtype)
            scale = (self.clip / (norm[a] + 1e-6)).clamp_max(1.0).float()[:, None, None]
            lr_hat = (self.lr[a] / (1 - b1 ** t)).float()[:, None, None]       # with Adam's bias corrections
            root_hat = (1 - b2 ** t).rsqrt().float()[:, None, None]
            rows, home = self.adapters.rows(a), a.to(self.m[0].device)
            for p, m, v in zip(params, self.m, self.v):
                g = p.grad[rows] * scale
                mean = m[home].to(g).lerp(g, 1 - b1)
                square = v[home].to(g).lerp(g * g, 1 - b2)
                p[rows] -= lr_hat * mean / (square.sqrt() * root_hat + self.eps)
                m[home] = mean.to(m)
                v[home] = square.to(v)
            self.adapters.write_back(a)
        for p in params:
            p.grad = None
        return norm, skipped

    def reset(self, p: int) -> None:
        """Forget member p's moments and steps: a replaced member starts fresh."""
        for x in (*self.m, *self.v):
            x[p].zero_()
        self.steps[p] = 0
        self.adapters.changed.add(p)

    def state_dict(self, p: int) -> dict[str, torch.Tensor]:
        """Member p's moments, as flat named tensors for safetensors; its steps are beside them."""
        first = {f"m.{i}": x[p] for i, x in enumerate(self.m)}
        return first | {f"v.{i}": x[p] for i, x in enumerate(self.v)}

    def load_state_dict(self, p: int, state: dict[str, torch.Tensor]) -> None:
        """Inverse of state_dict, in place. Raises ValueError for another shape, KeyError for a lack."""
        for name, x in self.state_dict(p).items():
            if state[name].shape != x.shape:
                raise ValueError(f"{name} is {tuple(state[name].shape)}, not {tuple(x.shape)}")
            x.copy_(state[name])
