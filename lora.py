"""Stacked LoRA adapters: the whole population in two tensors per layer, one member index per row of a batch.

Shapes: P members, k of them present in a batch, R rank, B rows, T tokens; factors A (P, R, in) and
B (P, out, R), update dW = alpha/R * B A (LoRA, Hu et al. 2021, section 4.1). Any routing of rows to members
goes through one batch, by one of three products that compute the same (LOG.md has their times):

    equal     rows in the order of their members, equally many each: two batched products over (k, B/k T, in)
    dense     y + ((x A_all^T) * own_scale) B_all^T, with A_all (k R, in), B_all (out, k R), own_scale
              (B, 1, k R) in {0, alpha/R}: no order, k times the arithmetic: for single tokens, few members
    grouped   rows put into the order of their members, two products over groups of any size

Layers that read the same x (q, k, v; gate, up) share the first product. Decoding in pages is always dense: it
needs no order, and rows may come and go while a CUDA graph holds the step.
"""
import copy
import math
from collections.abc import Iterable
from itertools import accumulate

import torch
import torch.nn.functional as F

from config import TARGETS
from infra.gpu import send
from infra.precision import detached

Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]      # layer path -> A (R, in), B (out, R)
DENSE = 16                 # members up to which single tokens take the dense product


class Adapters:
    """P members' float32 master factors, stacked per layer; `A[path]` (P, R, in), `B[path]` (P, out, R).

    Of a large population few play in a step. Where it is `paged`, all masters lie in the host's memory, and A
    and B hold copies on the device of the k members that page_in named last, (k, R, in) and (k, out, R).
    `here` (k,) says who they are, in ascending order; write_back brings home what a step has changed.
    """

    def __init__(self, shapes: dict[str, tuple[int, int]], n_members: int, rank: int, alpha: float,
                 device="cpu", paged: bool = False):
        self.n_members = n_members
        self.rank = rank
        self.alpha = alpha
        self.scale = alpha / rank
        self.device = torch.device(device)
        self.paged = paged
        self.changed = set()                                # members that differ from the last checkpoint
        self.masters = {}
        for path, (n_in, n_out) in shapes.items():
            home = "cpu" if paged else device
            A = torch.zeros(n_members, rank, n_in, device=home, requires_grad=not paged)
            B = torch.zeros(n_members, n_out, rank, device=home, requires_grad=not paged)
            self.masters[path] = A, B
        self.A = {path: A for path, (A, _) in self.masters.items()}
        self.B = {path: B for path, (_, B) in self.masters.items()}
        self.here = torch.arange(n_members)
        self.page_in([])

    @classmethod
    def on(cls, model, n_members: int, rank: int, alpha: float, targets=TARGETS, device="cpu",
           paged: bool = False) -> "Adapters":
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
        return cls(shapes, n_members, rank, alpha, device, paged)

    def parameters(self) -> list[torch.Tensor]:
        """All stacked factors on the device, in one fixed order: A then B of each layer."""
        return [factor[path] for path in self.A for factor in (self.A, self.B)]

    def page_in(self, members: Iterable[int]) -> None:
        """Put these members' factors on the device, in place of those there; unless paged, all are there.

        They are copies: set_factors and init_member change the masters, which the next call shows.
        """
        if not self.paged:
            return
        self.here = torch.tensor(sorted(set(members)), dtype=torch.int64)
        for path, (A, B) in self.masters.items():
            self.A[path] = A[self.here].to(self.device).requires_grad_()
            self.B[path] = B[self.here].to(self.device).requires_grad_()

    def rows(self, members: torch.Tensor) -> torch.Tensor:
        """Where these members (n,), all of them on the device, stand in A and B."""
        if not self.paged:
            return members
        here = self.here.to(members.device)
        assert torch.isin(members, here).all(), "page_in those who play in a step before they do"
        return torch.searchsorted(here, members)

    @torch.no_grad()
    def write_back(self, members: torch.Tensor) -> None:
        """What a step made of these members' (n,) factors on the device is what they are from now on."""
        self.changed.update(members.tolist())
        if self.paged:
            home, rows = members.cpu(), self.rows(members)
            for path, (A, B) in self.masters.items():
                A[home] = self.A[path][rows].cpu()
                B[home] = self.B[path][rows].cpu()

    @torch.no_grad()
    def init_member(self, p: int, gen: torch.Generator) -> None:
        """Fresh member: A Kaiming-uniform (as PEFT), B zero, so that it equals the base bit for bit."""
        self.changed.add(p)
        for A, B in self.masters.values():
            bound = 1 / math.sqrt(A.shape[2])                 # kaiming_uniform_(a=sqrt(5)) on (R, in)
            A[p].copy_(torch.empty(A.shape[1:]).uniform_(-bound, bound, generator=gen))
            B[p].zero_()

    def factors(self, p: int) -> Factors:
        """A copy of member p's factors, detached, where float64 is: the operators and distances need it."""
        return {path: (detached(A[p]), detached(B[p])) for path, (A, B) in self.masters.items()}

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
        self.changed.add(p)
        for path, factor_pair in factors.items():
            for master, given in zip(self.masters[path], factor_pair):
                master[p].copy_(given)

    def route(self, member: torch.Tensor, dtype: torch.dtype) -> "Route | None":
        """What a Model takes as `lora` for rows of members (B,) int64, -1 = bare base; None if all are."""
        in_range = member.min() >= -1 and member.max() < self.n_members
        assert in_range, f"member index outside -1..{self.n_members - 1}"
        return AdapterWeights(self, member, dtype).route(member)


class AdapterWeights:
    """The factors of the members that a call needs, at the base's precision, laid out for the products.

    Of layers that share an input, A is one tensor (k, m R, in). With `joint` so is B, in blocks between zeros
    (k, m R, sum of sizes): fewest products, the form that gradients go through. Otherwise each layer has its
    own (k, R, out): nothing is read but factors, which decoding on a card waits for.
    """

    def __init__(self, adapters: Adapters, member: torch.Tensor, dtype: torch.dtype, joint: bool = True):
        self.adapters = adapters
        self.dtype = dtype
        self.joint = joint
        self.made = {}
        self.sizes = {}
        self.present = member[member >= 0].unique()     # where `member` is: on the CPU no GPU is waited for
        sizes = {adapters.rank}
        for path in adapters.A:
            sizes |= {adapters.A[path].shape[2], adapters.B[path].shape[1]}
        aligned = all(n * dtype.itemsize % 16 == 0 for n in sizes)
        on_gpu = self.device.type == "cuda"
        can_group = aligned and (not on_gpu or dtype == torch.bfloat16)                 # by grouped_mm
        at_once = not on_gpu or torch.cuda.get_device_capability(self.device)[0] in (9, 10)     # no waits
        self.groups = can_group and (at_once or len(self.present) > DENSE)

    @property
    def device(self) -> torch.device:
        """Where the factors are."""
        return next(iter(self.adapters.A.values())).device

    def pick(self, factor: torch.Tensor) -> torch.Tensor:
        """Those members' part (k, ...) of a stacked factor (P, ...)."""
        rows = self.adapters.rows(self.present)
        if len(rows) < len(factor):
            factor = factor[send(rows, self.device)]
        return factor.to(self.dtype)

    def together(self, paths: tuple[str, ...], sizes: list[int]) -> tuple[torch.Tensor, ...] | None:
        """Factors of layers on one input with these numbers of outputs: A, then B^T, or one for each layer
        that has adapters; None if none has."""
        if paths not in self.made:
            self.sizes[paths] = sizes
            As = [self.pick(self.adapters.A[path]) for path in paths if path in self.adapters.A]
            Bs = []
            for path, start, n in self.columns(paths):
                B = self.pick(self.adapters.B[path]).transpose(1, 2)
                if self.joint and len(sizes) > 1:
                    B = F.pad(B, (start, sum(sizes) - start - n))
                elif self.dtype != torch.float32 and not torch.is_grad_enabled():
                    B = B.contiguous()              # else every dense product would copy it
                Bs.append(B)
            if self.joint and len(Bs) > 1:
                Bs = [torch.cat(Bs, 1)]
            self.made[paths] = (As[0] if len(As) == 1 else torch.cat(As, 1), *Bs) if As else None
        return self.made[paths]

    def columns(self, paths: tuple[str, ...]) -> list[tuple[str, int, int]]:
        """(path, first column, columns) in the joint output of those layers that have adapters."""
        starts = accumulate([0, *self.sizes[paths]])
        return [place for place in zip(paths, starts, self.sizes[paths]) if place[0] in self.adapters.A]

    def blocks(self, paths: tuple[str, ...], Bs: list[torch.Tensor]) -> list[tuple]:
        """Each B with the columns of x A^T that it takes and those of the output that it adds to."""
        if self.joint:
            return [(slice(None), slice(None), *Bs)]
        R = self.adapters.rank
        return [(slice(i * R, (i + 1) * R), slice(start, start + n), B)
                for i, ((_, start, n), B) in enumerate(zip(self.columns(paths), Bs, strict=True))]

    def materialize(self, fused_linears) -> None:
        """Make the factors of all these layers (model.FusedLinear) now."""
        for linear in fused_linears:
            self.together(linear.paths, linear.sizes)

    def route(self, member: torch.Tensor, one_token: bool = False) -> "Route | None":
        """As Adapters.route, for rows of no other members than these."""
        return Route.cheapest(self, member, one_token) if (member >= 0).any() else None

    def static_route(self, member: torch.Tensor) -> "Route | None":
        """The same by the dense product, without a look at any value; None if all rows of the call are -1."""
        return Route(self, member) if len(self.present) else None

    def leaves(self, member: torch.Tensor) -> "AdapterWeights":
        """Of these, once materialized, the factors that rows of members (B,) need, as leaves: a backward pass
        leaves its gradients with them, and `add_gradients` passes them on."""
        part = copy.copy(self)
        part.present = member[member >= 0].unique()
        part.made = {}
        all_of_them = len(part.present) == len(self.present)
        place = send(torch.searchsorted(self.present, part.present), self.device)
        for paths, factors in self.made.items():
            leaves = []
            for x in factors or ():
                x = x.detach() if all_of_them else x.detach().index_select(0, place)
                leaves.append(x.requires_grad_())
            part.made[paths] = tuple(leaves) or None
        return part

    def add_gradients(self, scale: float | torch.Tensor = 1.0) -> None:
        """Add the leaves' gradients times `scale` to .grad of the stacked factors, in float32."""
        rows = send(self.adapters.rows(self.present), self.device)
        R = self.adapters.rank

        def add(grad: torch.Tensor, own: torch.Tensor) -> None:
            if len(rows) == len(grad):
                grad.add_(own, alpha=scale)
            else:
                grad.index_add_(0, rows, own.float(), alpha=scale)

        for paths, factors in self.made.items():
            for i, (path, start, n) in enumerate(self.columns(paths)):
                A, B = factors
                block = slice(i * R, (i + 1) * R)
                add(self.adapters.A[path].grad, A.grad[:, block])
                add(self.adapters.B[path].grad, B.grad[:, block, start:start + n].transpose(1, 2))


class Route:
    """Adds to the joint output of layers on one input x (B, T, in) the update of each row's own member.

    By one product, decided once. The dense one looks at no value and may be held by a CUDA graph. Without
    gradients all work in place: y is fresh from the base's product.
    """

    def __init__(self, weights: AdapterWeights, member: torch.Tensor):
        self.weights = weights
        self.k = len(weights.present)
        self.scale = weights.adapters.scale
        is_own = (member[:, None] == weights.present).to(weights.dtype)
        self.own_scale = send(self.scale * is_own[:, None, :, None], weights.device)    # (B, 1, k, 1): or 0
        self.product = self.dense

    @classmethod
    def cheapest(cls, weights: AdapterWeights, member: torch.Tensor, one_token: bool) -> "Route":
        """By the product that suits the order of the rows, which run one token each or several."""
        route = cls(weights, member)
        count = (member[:, None] == weights.present).sum(0)
        rows = member.argsort(stable=True)[(member < 0).sum():]     # in order, without those of the base
        in_order = torch.equal(rows, torch.arange(len(member), device=member.device))
        if in_order and (count == count[0]).all():
            route.product = route.equal
        elif weights.groups and not (one_token and route.k <= DENSE):
            route.product = route.grouped
            route.ends = send(count.cumsum(0).int(), weights.device)    # of each member among rows in order
            route.rows = None if in_order else send(rows, weights.device)
        return route

    def __call__(self, paths: tuple[str, ...], sizes: list[int], x: torch.Tensor,
                 y: torch.Tensor) -> torch.Tensor:
        """Outputs y (B, T, sum of sizes) of the layers `paths`, plus the updates of those with adapters."""
        factors = self.weights.together(paths, sizes)
        if factors is None:
            return y
        A, *Bs = factors
        return self.product(A, self.weights.blocks(paths, Bs), x, y)

    def equal(self, A, blocks, x, y):
        """As many rows a member, in their order: one batched product."""
        h = torch.bmm(x.reshape(self.k, -1, x.shape[2]), A.transpose(1, 2))             # (k, B/k T, m R)
        groups = y.view(self.k, -1, y.shape[2])
        if torch.is_grad_enabled():
            (_, _, B), = blocks
            return torch.baddbmm(groups, h, B, alpha=self.scale).view(y.shape)
        for rows, columns, B in blocks:
            groups[:, :, columns].baddbmm_(h[:, :, rows], B, alpha=self.scale)
        return y

    def dense(self, A, blocks, x, y):
        """Every row through the columns of all members, all but its own times 0."""
        h = F.linear(x, A.flatten(0, 1)).view(*x.shape[:2], self.k, -1) * self.own_scale
        if self.weights.joint:
            (_, _, B), = blocks
            return y + h.flatten(2) @ B.flatten(0, 1)
        flat = y.view(-1, y.shape[2])
        for rows, columns, B in blocks:
            flat[:, columns].addmm_(h[..., rows].reshape(len(flat), -1), B.flatten(0, 1))
        return y

    def grouped(self, A, blocks, x, y):
        """Rows put into the order of their members, who own any number of them."""
        T = x.shape[1]
        ends = self.ends * T
        x = (x if self.rows is None else x[self.rows]).flatten(0, 1)
        h = F.grouped_mm(x, A.transpose(1, 2), offs=ends) * self.scale
        parts = [F.grouped_mm(h[:, rows].contiguous(), B, offs=ends) for rows, _, B in blocks]
        for (_, columns, _), update in zip(blocks, parts):
            update = update.view(-1, T, update.shape[1])
            if torch.is_grad_enabled():
                return y + update if self.rows is None else y.index_add(0, self.rows, update)
            if self.rows is None:
                y[..., columns] += update
            else:
                y[..., columns].index_add_(0, self.rows, update)
        return y
