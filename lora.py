"""Stacked LoRA adapters: the whole population in two tensors per layer, one member index per row of a batch.

Shapes: P members, k of them present in a batch, R rank, B rows, T tokens; factors A (P, R, in) and
B (P, out, R), update dW = alpha/R * B A (LoRA, Hu et al. 2021, section 4.1). Any routing of rows to members
goes through one batch, in one of three ways that compute the same (LOG.md has their times):

    equal     rows in the order of their members, equally many each: two batched products over (k, B/k T, in)
    dense     y + ((x A_all^T) * own) B_all^T, with A_all (k R, in), B_all (out, k R) and own (B, 1, k R) in
              {0, alpha/R}: needs no order, costs k times the arithmetic: for single tokens of few members
    grouped   rows put into the order of their members, two products over groups of any size

Layers that read the same x (q, k, v; gate, up) share the first product. On a GPU decoding takes the dense one
for any number of members: a step reads every factor once whichever the product, and this one needs no order,
so that rows may come and go while a CUDA graph holds the step.
"""
import math

import torch
import torch.nn.functional as F

from config import TARGETS
from infra.precision import detached

Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]      # layer path -> A (R, in), B (out, R)
DENSE = 16                 # members up to which single tokens take the dense product


class Adapters:
    """P members' float32 master factors, stacked per layer; `A[path]` (P, R, in), `B[path]` (P, out, R)."""

    def __init__(self, shapes: dict[str, tuple[int, int]], n_members: int, rank: int, alpha: float,
                 device="cpu"):
        self.n_members = n_members
        self.rank = rank
        self.alpha = alpha
        self.scale = alpha / rank
        self.A = {}
        self.B = {}
        for path, (n_in, n_out) in shapes.items():
            self.A[path] = torch.zeros(n_members, rank, n_in, device=device, requires_grad=True)
            self.B[path] = torch.zeros(n_members, n_out, rank, device=device, requires_grad=True)

    @classmethod
    def on(cls, model, n_members: int, rank: int, alpha: float, targets=TARGETS, device="cpu") -> "Adapters":
        """Adapters for a model's linear layers with a last name in targets. Raises ValueError if none has."""
        shapes = {}
        for path, layer in model.linears().items():
            if path.rsplit(".")[-1] in targets:
                shapes[path] = (layer.in_features, layer.out_features)
        unknown = set(targets) - set(TARGETS)
        if unknown or not shapes:
            wrong = ", ".join(sorted(unknown)) or "nothing"
            raise ValueError(f"--lora-targets {','.join(targets)}: {wrong} is not a linear layer; "
                             f"valid: {', '.join(TARGETS)}")
        return cls(shapes, n_members, rank, alpha, device)

    def parameters(self) -> list[torch.Tensor]:
        """All stacked factors, in one fixed order: A then B of each layer."""
        return [factor[path] for path in self.A for factor in (self.A, self.B)]

    @torch.no_grad()
    def init_member(self, p: int, gen: torch.Generator) -> None:
        """Fresh member: A Kaiming-uniform (as PEFT), B zero, so that it equals the base bit for bit."""
        for path, A in self.A.items():
            bound = 1 / math.sqrt(A.shape[2])                 # kaiming_uniform_(a=sqrt(5)) on (R, in)
            A[p].copy_(torch.empty(A.shape[1:]).uniform_(-bound, bound, generator=gen))
            self.B[path][p].zero_()

    def factors(self, p: int) -> Factors:
        """A copy of member p's factors, detached, where float64 is: the operators and distances need it."""
        return {path: (detached(self.A[path][p]), detached(self.B[path][p])) for path in self.A}

    @torch.no_grad()
    def set_factors(self, p: int, factors: Factors) -> None:
        """Overwrite member p, wholly or not at all.

        Raises ValueError where layers or shapes differ from this population's, or a number is not finite (it
        would reach the other members' rows as 0 * inf).
        """
        if set(factors) != set(self.A):
            odd = sorted(set(factors) ^ set(self.A))
            raise ValueError(f"adapter covers other layers than this population ({len(odd)} differ, first "
                             f"{odd[0]}): use the same base and --lora-targets")
        for path, (A, B) in factors.items():
            theirs = f"rank {A.shape[-2]} and maps {A.shape[-1]} to {B.shape[-2]}"
            ours = f"rank {self.rank} and maps {self.A[path].shape[-1]} to {self.B[path].shape[-2]}"
            if A.shape != self.A[path].shape[1:] or B.shape != self.B[path].shape[1:]:
                raise ValueError(f"adapter {path} has {theirs}; this population has {ours}: "
                                 "another rank or base")
            if not (A.isfinite().all() and B.isfinite().all()):
                raise ValueError(f"adapter {path} holds numbers that are not finite: it is damaged, "
                                 "take an earlier one")
        for path, (A, B) in factors.items():
            self.A[path][p].copy_(A)
            self.B[path][p].copy_(B)

    def route(self, member: torch.Tensor, dtype: torch.dtype) -> "LoRARouter | None":
        """What a Model takes as `lora` for rows of members (B,) int64, -1 = bare base; None if all are."""
        in_range = member.min() >= -1 and member.max() < self.n_members
        assert in_range, f"member index outside -1..{self.n_members - 1}"
        return AdapterWeights(self, member, dtype).route(member)


class AdapterWeights:
    """The factors of the members that a call needs, at the base's precision, laid out for the products."""

    def __init__(self, adapters: Adapters, member: torch.Tensor, dtype: torch.dtype):
        self.adapters = adapters
        self.dtype = dtype
        self.made = {}
        self.present = member[member >= 0].unique()
        sizes = {adapters.rank}
        for path in adapters.A:
            sizes |= {adapters.A[path].shape[2], adapters.B[path].shape[1]}
        aligned = all(n * dtype.itemsize % 16 == 0 for n in sizes)
        self.can_group = aligned and (member.device.type == "cpu" or dtype == torch.bfloat16)   # grouped_mm

    def pick(self, factor: torch.Tensor) -> torch.Tensor:
        """Those members' part (k, ...) of a stacked factor (P, ...)."""
        if len(self.present) < self.adapters.n_members:
            factor = factor[self.present]
        return factor.to(self.dtype)

    def together(self, paths: tuple[str, ...], sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Factors of layers on one input: the A (k, m R, in), the B^T in blocks (k, m R, sum of sizes).

        sizes: the layers' outputs; m counts those of the layers that have adapters; None if none has.
        """
        if paths in self.made:
            return self.made[paths]
        As = []
        Bs = []
        before = 0
        for path, n in zip(paths, sizes):
            if path in self.adapters.A:
                As.append(self.pick(self.adapters.A[path]))
                B = self.pick(self.adapters.B[path]).transpose(1, 2)
                Bs.append(F.pad(B, (before, sum(sizes) - before - n)) if len(sizes) > 1 else B)
            before += n
        self.made[paths] = None
        if len(As) == 1:
            B = Bs[0]                               # no copy, but of what `pick` has copied anyway
            if self.dtype != torch.float32 and not torch.is_grad_enabled():
                B = B.contiguous()                  # else every dense product would copy it
            self.made[paths] = As[0], B
        elif As:
            self.made[paths] = torch.cat(As, 1), torch.cat(Bs, 1)
        return self.made[paths]

    def materialize(self, fused_linears) -> None:
        """Make the factors of all these layers (model.FusedLinear) now."""
        for linear in fused_linears:
            self.together(linear.paths, linear.sizes)

    def route(self, member: torch.Tensor) -> "LoRARouter | None":
        """As Adapters.route, for rows of no other members than these."""
        return LoRARouter(self, member) if (member >= 0).any() else None

    def dense_route(self, member: torch.Tensor) -> "DenseRouter | None":
        """The same without a look at any value: by the dense product; None if all rows of the call are -1."""
        return DenseRouter(self, member) if len(self.present) else None


class DenseRouter:
    """Adds to the joint output of layers on one input x (B, T, in) the update of each row's own member.

    Without a look at any value, and not for training: in place.
    """

    def __init__(self, weights: AdapterWeights, member: torch.Tensor):
        self.weights = weights
        self.k = len(weights.present)
        self.scale = weights.adapters.scale
        is_own = member[:, None] == weights.present                 # (B, k)
        self.member_mask = self.scale * is_own.to(weights.dtype)[:, None, :, None]          # (B, 1, k, 1)

    def __call__(self, paths: tuple[str, ...], sizes: list[int], x: torch.Tensor,
                 y: torch.Tensor) -> torch.Tensor:
        """Outputs y (B, T, sum of sizes) of the layers `paths`, plus the updates of those with adapters."""
        factors = self.weights.together(paths, sizes)
        return y if factors is None else self.add(*factors, x, y)

    def own_columns(self, A, x):
        """x (B, T, in) through every member's columns, all but the row's own times 0: (B, T, k m R)."""
        h = F.linear(x, A.flatten(0, 1)).view(*x.shape[:2], self.k, -1)
        return (h * self.member_mask).flatten(2)

    def add(self, A, B, x, y):
        """In place and with one product: y is fresh from the base's."""
        h = self.own_columns(A, x).flatten(0, 1)
        y.view(-1, y.shape[2]).addmm_(h, B.flatten(0, 1))
        return y


class LoRARouter(DenseRouter):
    """A DenseRouter that looks at the rows' order for the cheapest product, and may be trained through."""

    def __init__(self, weights: AdapterWeights, member: torch.Tensor):
        super().__init__(weights, member)
        count = (member[:, None] == weights.present).sum(0)
        self.ends = count.cumsum(0).int()                           # of each member among the rows in order
        rows = member.argsort(stable=True)[(member < 0).sum():]     # in order, without those of the base
        in_order = torch.equal(rows, torch.arange(len(member), device=member.device))
        self.rows = None if in_order else rows
        self.is_equal = in_order and bool((count == count[0]).all())

    def add(self, A, B, x, y):
        """y and the update, by the product that is due."""
        if self.is_equal:
            return self.equal(A, B, x, y)
        if (x.shape[1] == 1 and self.k <= DENSE) or not self.weights.can_group:
            return self.dense(A, B, x, y)
        return self.grouped(A, B, x, y)

    def dense(self, A, B, x, y):
        """Every row through the columns of all."""
        return y + self.own_columns(A, x) @ B.flatten(0, 1)

    def equal(self, A, B, x, y):
        """In place where no gradient is wanted: y is fresh from the base's product."""
        h = torch.bmm(x.reshape(self.k, -1, x.shape[2]), A.transpose(1, 2))             # (k, B/k T, m R)
        groups = y.view(self.k, -1, y.shape[2])
        if torch.is_grad_enabled():
            return torch.baddbmm(groups, h, B, alpha=self.scale).view(y.shape)
        groups.baddbmm_(h, B, alpha=self.scale)
        return y

    def grouped(self, A, B, x, y):
        """Rows in the order of their members, who own any number of them."""
        T = x.shape[1]
        ends = self.ends * T
        x = (x if self.rows is None else x[self.rows]).flatten(0, 1)
        h = F.grouped_mm(x, A.transpose(1, 2), offs=ends) * self.scale
        update = F.grouped_mm(h, B, offs=ends).view(-1, T, y.shape[2])
        return y + update if self.rows is None else y.index_add(0, self.rows, update)
