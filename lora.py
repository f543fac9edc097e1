"""Stacked LoRA adapters: the whole population in two tensors per layer, one member index per row of a batch.

Shapes: P members, k of them present in a batch, R rank, B rows, T tokens; factors A (P, R, in) and
B (P, out, R), update dW = alpha/R * B A (LoRA, Hu et al. 2021, section 4.1). Any routing of rows to members
goes through one batch, by one of four products that compute the same (LOG.md has their times):

    equal     rows in the order of their members, equally many each: two batched products over (k, B/k T, in)
    grouped   rows put into the order of their members, two products over groups of any size
    looped    each member's rows by themselves: where `grouped` is not to be had
    dense     y + masked(x A_all^T) alpha/R B_all^T, with A_all (k R, in), B_all (out, k R), masked: 0 for all
              but a row's own member: no order, k times the arithmetic: for single tokens, few members

No member changes another's row or gradient, whatever its factors hold: the first three never bring the two
together, and the last masks, as 0 times NaN is NaN.

Layers that read the same x (q, k, v; gate, up) share the first product. With pages all of generation is
dense: it needs no order, and rows may come and go while a CUDA graph holds the step.
"""
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F

from infra.errors import demand
from infra.gpu import send

# The linear layers of a block that can carry adapters, by the names that Hugging Face gives them
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
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
        self.n_members, self.rank, self.alpha, self.scale = n_members, rank, alpha, alpha / rank
        self.device, self.paged = torch.device(device), paged
        zeros = partial(torch.zeros, device="cpu" if paged else device, requires_grad=not paged)
        self.masters = {path: (zeros(n_members, rank, n_in), zeros(n_members, n_out, rank))
                        for path, (n_in, n_out) in shapes.items()}
        self.A = {path: A for path, (A, _) in self.masters.items()}
        self.B = {path: B for path, (_, B) in self.masters.items()}
        self.here = torch.arange(n_members)
        self.page_in([])

    @classmethod
    def on(cls, model, n_members: int, rank: int, alpha: float, targets=TARGETS, device="cpu",
           paged: bool = False) -> "Adapters":
        """Adapters for a model's linear layers whose last name, or whole path, is in targets."""
        shapes = {}
        for path, layer in model.linears().items():
            if path in targets or path.rsplit(".")[-1] in targets:
                shapes[path] = (layer.in_features, layer.out_features)
        return cls(shapes, n_members, rank, alpha, device, paged)

    def parameters(self) -> list[torch.Tensor]:
        """All stacked factors on the device, in one fixed order: A then B of each layer."""
        return [factor[path] for path in self.A for factor in (self.A, self.B)]

    def page_in(self, members: Iterable[int]) -> None:
        """Put copies of these members' masters on the device, in place of those there, where all are not."""
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
        if self.paged:
            home, rows = members.cpu(), self.rows(members)
            for path, (A, B) in self.masters.items():
                A[home] = self.A[path][rows].cpu()
                B[home] = self.B[path][rows].cpu()

    @torch.no_grad()
    def init_member(self, p: int, gen: torch.Generator) -> None:
        """Fresh member: A Kaiming-uniform (as PEFT), B zero, so that it equals the base bit for bit."""
        for A, B in self.masters.values():
            bound = 1 / math.sqrt(A.shape[2])                 # kaiming_uniform_(a=sqrt(5)) on (R, in)
            A[p].copy_(torch.empty(A.shape[1:]).uniform_(-bound, bound, generator=gen))
            B[p].zero_()

    def factors(self, p: int) -> Factors:
        """A copy of member p's factors, detached."""
        return {path: (A[p].detach().clone(), B[p].detach().clone()) for path, (A, B) in self.masters.items()}

    @torch.no_grad()
    def set_factors(self, p: int, factors: Factors) -> None:
        """Overwrite member p, wholly or not at all. Raises UserError where layers or shapes differ, or a
        number is not finite: 0 * inf reaches others."""
        odd = min(set(factors) ^ set(self.A), default="")
        demand(not odd, f"adapter covers other layers than this population ({odd}): use the same base and "
               "--lora-targets")
        for path, (A, B) in factors.items():
            demand(A.shape == self.A[path].shape[1:] and B.shape == self.B[path].shape[1:], f"adapter {path} "
                   f"has factors {tuple(A.shape)} and {tuple(B.shape)}: another rank or base than ours")
            demand(A.isfinite().all() and B.isfinite().all(),
                   f"adapter {path} holds numbers that are not finite: take an earlier one")
        for path, (A, B) in factors.items():
            self.masters[path][0][p].copy_(A)
            self.masters[path][1][p].copy_(B)

    def route(self, member: torch.Tensor, dtype: torch.dtype) -> "Route | None":
        """What a Model takes as `lora` for rows of members (B,) int64, -1 = bare base; None if all are."""
        in_range = member.min() >= -1 and member.max() < self.n_members
        assert in_range, f"member index outside -1..{self.n_members - 1}"
        return AdapterWeights(self, member, dtype).route(member)


class AdapterWeights:
    """The factors of the members that a call needs, at the base's precision, laid out for the products.

    Of the m layers that share an input, A is one tensor (k, m R, in), and so is B (k, m R, sum of sizes), in
    blocks between zeros: fewest products, the form that gradients go through. For `pages` A is (m, k, R, in),
    times alpha/R, and each layer has its own B (k, R, out): nothing is read but factors, which decoding on a
    card waits for.
    With `trains` a backward pass leaves the gradients with copies, and add_gradients passes them on.
    """

    def __init__(self, adapters: Adapters, member: torch.Tensor, dtype: torch.dtype, pages: bool = False,
                 trains: bool = False):
        self.adapters, self.dtype, self.pages, self.trains = adapters, dtype, pages, trains
        self.device = next(iter(adapters.A.values())).device
        self.present = member[member >= 0].unique()     # where `member` is: on the CPU no GPU is waited for
        self.made = {}                                  # of layers on one input: what `together` returns
        self.copies = []                                # (factor, copy of these members' part)

    def pick(self, factor: torch.Tensor) -> torch.Tensor:
        """These members' part (k, ...) of a stacked factor (P, ...)."""
        rows = self.adapters.rows(self.present)
        part = factor[send(rows, self.device)] if len(rows) < len(factor) else factor
        if self.trains:
            part = part.detach().requires_grad_()
            self.copies.append((factor, part))
        return part.to(self.dtype)

    def together(self, paths: tuple[str, ...], sizes: list[int]) -> tuple | None:
        """Of layers on one input, with these numbers of outputs: A and B; for pages A and a list of (columns
        of the joint output, B). None if none of them has adapters."""
        if paths in self.made:
            return self.made[paths]
        own = {path: slice(end - n, end) for path, end, n in zip(paths, accumulate(sizes), sizes)
               if path in self.adapters.A}                      # columns of each layer in the joint output
        As = [self.pick(self.adapters.A[path]) for path in own]
        Bs = [self.pick(self.adapters.B[path]).transpose(1, 2) for path in own]
        if own and not self.trains:
            As, Bs = contained(As, Bs)
        made = None
        if self.pages and own:
            scaled = torch.stack(As) * self.adapters.scale      # else every step would have to multiply
            made = scaled, [(at, B.contiguous()) for at, B in zip(own.values(), Bs)]
        elif len(sizes) == 1 and own:
            made = As[0], Bs[0]
            if self.dtype != torch.float32 or (self.trains and len(As[0]) < self.adapters.n_members):
                made = As[0], Bs[0].contiguous()        # else every dense product would copy it
        elif own:
            padded = [F.pad(B, (at.start, sum(sizes) - at.stop)) for at, B in zip(own.values(), Bs)]
            made = torch.cat(As, 1), torch.cat(padded, 1)
        self.made[paths] = made
        return made

    def add_gradients(self) -> None:
        """Add the copies' gradients to .grad of the stacked factors, in float32."""
        rows = send(self.adapters.rows(self.present), self.device)
        for factor, part in self.copies:
            factor.grad.index_add_(0, rows, part.grad)

    def can_group(self) -> bool:
        """Whether the grouped product is there for these, and worth its waits on cards but Hopper's."""
        widths = {n for factor in self.adapters.parameters() for n in factor.shape[1:]}
        aligned = all(n * self.dtype.itemsize % 16 == 0 for n in widths)
        if self.device.type != "cuda":
            return aligned
        at_once = torch.cuda.get_device_capability(self.device)[0] in (9, 10)
        return aligned and self.dtype == torch.bfloat16 and (at_once or len(self.present) > DENSE)

    def route(self, member: torch.Tensor, one_token: bool = False) -> "Route | None":
        """As Adapters.route, by the cheapest product for the order of rows of no other members than these."""
        if self.pages:
            return self.static_route(member)
        if not (member >= 0).any():
            return None
        k, scale = len(self.present), self.adapters.scale
        n_rows = (member[:, None] == self.present).sum(0)
        rows = member.argsort(stable=True)[(member < 0).sum():]     # in order, without those of the base
        in_order = torch.equal(rows, torch.arange(len(member), device=member.device))
        if in_order and (n_rows == n_rows[0]).all():
            return Route(self, partial(equal, k=k, scale=scale))
        can_group = self.can_group()
        if one_token and (k <= DENSE or not can_group):
            return self.static_route(member)
        if not can_group:
            own = [send((member == p).nonzero().squeeze(1), self.device) for p in self.present]
            return Route(self, partial(looped, own=own, scale=scale))
        ends = send(n_rows.cumsum(0).int(), self.device)            # of each member among rows in order
        rows = None if in_order else send(rows, self.device)
        return Route(self, partial(grouped, ends=ends, rows=rows, scale=scale))

    def static_route(self, member: torch.Tensor) -> "Route | None":
        """The same by the dense product, without a look at any value: a CUDA graph can hold it."""
        if not len(self.present):
            return None
        bits = torch.int32 if self.dtype == torch.float32 else torch.int16
        is_own = (member[:, None] == self.present)[:, None, :, None]                            # (B, 1, k, 1)
        own = send(-is_own.to(bits), self.device)               # -1 has all bits set
        if self.pages:
            return Route(self, partial(dense_by_layer, own=own))
        return Route(self, partial(dense, own=own, scale=self.adapters.scale))


def contained(As: list[torch.Tensor], Bs: list[torch.Tensor]) -> tuple[list, list]:
    """Factors A (k, R, in) and B (k, R, out) of layers on one input, such that all B are finite: `dense` adds
    up those of all members, times 0 for others. A member with NaN or infinity in a B gets NaN for its A: what
    A makes is masked, and its own rows are not finite, as they were."""
    broken = torch.stack([~B.isfinite().all(2).all(1) for B in Bs]).any(0)[:, None, None]       # (k, 1, 1)
    if not broken.any():
        return As, Bs
    return [A.masked_fill(broken, torch.nan) for A in As], [B.masked_fill(broken, 0) for B in Bs]


@dataclass(frozen=True)
class Route:
    """Adds to the joint output of layers on one input x (B, T, in) the update of each row's own member, by
    one of the products below. Without gradients in place: y is fresh from the base's product."""
    weights: AdapterWeights
    product: Callable

    def __call__(self, paths: tuple[str, ...], sizes: list[int], x: torch.Tensor, y: torch.Tensor):
        """Outputs y (B, T, sum of sizes) of the layers `paths`, plus the updates of those with adapters."""
        factors = self.weights.together(paths, sizes)
        return y if factors is None else self.product(*factors, x, y)


def equal(A, B, x, y, k: int, scale: float):
    """As many rows a member, in their order: one batched product."""
    h = torch.bmm(x.reshape(k, -1, x.shape[2]), A.transpose(1, 2))                      # (k, B/k T, m R)
    groups = y.view(k, -1, y.shape[2])
    if torch.is_grad_enabled():
        return torch.baddbmm(groups, h, B, alpha=scale).view(y.shape)
    groups.baddbmm_(h, B, alpha=scale)
    return y


def looped(A, B, x, y, own: list[torch.Tensor], scale: float):
    """Member after member on its own rows (n,)."""
    updates = [(x[rows] @ A[i].T * scale) @ B[i] for i, rows in enumerate(own)]
    return y.index_add(0, torch.cat(own), torch.cat(updates))


def masked(h: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """0 in place of what is not a row's own, in place: `own` has all bits set where it is, none elsewhere. As
    fast as to multiply by 1 and 0, and NaN becomes 0; masked_fill_ takes five times as long."""
    h.view(own.dtype).bitwise_and_(own)
    return h


def dense(A, B, x, y, own: torch.Tensor, scale: float):
    """Every row through the columns of all members; `own` (B, 1, k, 1) says which are its own: `masked`."""
    if torch.is_grad_enabled():
        # B's gradient would be a sum over all rows, 0 times the NaN of another's among them
        rows = [own[:, 0, i, 0].nonzero().squeeze(1) for i in range(len(A))]
        return looped(A, B, x, y, rows, scale)
    h = F.linear(x, A.flatten(0, 1)).view(*x.shape[:2], len(A), -1).mul_(scale)
    return y + masked(h, own).flatten(2) @ B.flatten(0, 1)


def dense_by_layer(A, Bs, x, y, own: torch.Tensor):
    """`dense` for pages: A (m, k, R, in) times alpha/R, and of each layer its columns of y and B. Without
    gradients."""
    h = masked(F.linear(x, A.flatten(0, 2)).view(*x.shape[:2], *A.shape[:3]), own[:, :, None])
    flat = y.view(-1, y.shape[2])
    for i, (columns, B) in enumerate(Bs):
        flat[:, columns].addmm_(h[:, :, i].view(len(flat), -1), B.flatten(0, 1))
    return y


def grouped(A, B, x, y, ends: torch.Tensor, rows: torch.Tensor | None, scale: float):
    """Rows put into the order of their members, who own any number of them: up to `ends` (k,)."""
    T = x.shape[1]
    x = (x if rows is None else x[rows]).flatten(0, 1)
    h = F.grouped_mm(x, A.transpose(1, 2), offs=ends * T) * scale
    update = F.grouped_mm(h, B, offs=ends * T).view(-1, T, y.shape[2])
    if rows is None:
        return y + update
    return y.index_add(0, rows, update) if torch.is_grad_enabled() else y.index_add_(0, rows, update)
