"""Holds all members' LoRA adapters in two tensors per layer, and sends each row through its member's.

Shapes: P members, k of them present in a batch, R rank, B rows, T tokens; factors A (P, R, in) and
B (P, out, R), update dW = alpha/R * B A (LoRA, Hu et al. 2021, section 4.1). Any routing of rows to members
goes through one batch, by one of four products that compute the same:

    equal     rows in the order of their members, equally many each: two batched products over (k, B/k T, in)
    grouped   rows put into the order of their members, two products over groups of any size
    looped    each member's rows by themselves, where `grouped` does not run
    dense     every row through all members, then 0 in place of what is not its own member's: no order is
              needed and no value is looked at, but there is k times the arithmetic; for decoding

No member changes another's row or gradient, whatever its factors hold. The first three never bring two
members together. The last masks, because 0 times NaN is NaN. Layers that read the same x (q, k, v; gate, up)
share the first product.
"""
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from common import UserError
from ranks import send

# The linear layers of a block that can carry adapters, by the names that Hugging Face gives them
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Factors = dict[str, tuple[Tensor, Tensor]]      # layer path -> A (R, in), B (out, R)
DENSE = 16                 # members up to which decoding without graphs takes the dense product


def name_of(path: str) -> str:
    """Returns a layer's own name, "q_proj" of "model.layers.0.self_attn.q_proj"."""
    return path.rsplit(".")[-1]


# --- the population -----------------------------------------------------------------------------------------

class Adapters:
    """Holds P members' float32 master factors, stacked per layer: A[path] (P, R, in), B[path] (P, out, R)."""

    def __init__(
        self,
        shapes: dict[str, tuple[int, int]],             # layer path -> (in, out)
        n_members: int,
        rank: int,
        alpha: float,
        device: torch.device | str = "cpu",
    ):
        self.n_members = n_members
        self.rank = rank
        self.alpha = alpha
        self.scale = alpha / rank
        self.device = torch.device(device)
        zeros = partial(torch.zeros, device=self.device, requires_grad=True)
        self.A, self.B = {}, {}
        for path, (n_in, n_out) in shapes.items():
            self.A[path] = zeros(n_members, rank, n_in)
            self.B[path] = zeros(n_members, n_out, rank)

    @classmethod
    def on(
        cls,
        model: torch.nn.Module,                         # a model.Model
        n_members: int,
        rank: int,
        alpha: float,
        targets: Iterable[str] = TARGETS,
        device: torch.device | str = "cpu",
    ) -> "Adapters":
        """Returns adapters for a model's linear layers whose last name, or whole path, is in targets."""
        shapes = {}
        for path, layer in model.linears().items():
            if path in targets or name_of(path) in targets:
                shapes[path] = (layer.in_features, layer.out_features)
        return cls(shapes, n_members, rank, alpha, device)

    def parameters(self) -> list[Tensor]:
        """Returns all stacked factors, in one fixed order: A then B of each layer."""
        factors = []
        for path in self.A:
            factors += [self.A[path], self.B[path]]
        return factors

    @torch.no_grad()
    def init_member(self, slot: int, gen: torch.Generator) -> None:
        """Makes a fresh member, which equals the base bit for bit: A is Kaiming-uniform (as PEFT), B zero."""
        for path in self.A:
            A, B = self.A[path], self.B[path]
            bound = 1 / math.sqrt(A.shape[2])           # kaiming_uniform_(a=sqrt(5)) on (R, in)
            drawn = torch.empty(A.shape[1:]).uniform_(-bound, bound, generator=gen)     # drawn on the CPU
            A[slot].copy_(drawn)
            B[slot].zero_()

    def factors(self, slot: int) -> Factors:
        """Returns a copy of a member's factors, detached."""
        copied = {}
        for path in self.A:
            A = self.A[path][slot].detach().clone()
            B = self.B[path][slot].detach().clone()
            copied[path] = A, B
        return copied

    @torch.no_grad()
    def set_factors(self, slot: int, factors: Factors) -> None:
        """Overwrites a member, or leaves it whole and raises UserError if layers or shapes differ, or a
        number is not finite."""
        odd = min(set(factors) ^ set(self.A), default="")
        if odd:
            raise UserError(f"adapter covers other layers than this population ({odd}): use its base, and "
                            "TARGETS of lora.py")
        for path, (A, B) in factors.items():            # all of them before the first is written
            for x, ours in ((A, self.A[path]), (B, self.B[path])):
                if x.shape != ours.shape[1:]:
                    raise UserError(f"adapter {path} has a factor {tuple(x.shape)}: another rank or base "
                                    "than ours")
                if not x.isfinite().all():
                    raise UserError(f"adapter {path} holds numbers that are not finite: take an earlier one")
        for path, (A, B) in factors.items():
            self.A[path][slot].copy_(A)
            self.B[path][slot].copy_(B)

    def route(self, member: Tensor, dtype: torch.dtype) -> "Route | None":
        """Returns what a Model takes as `lora` for rows of members (B,) int64, -1 = bare base; None if all
        rows are the base's."""
        assert -1 <= member.min() and member.max() < self.n_members, f"not in -1..{self.n_members - 1}"
        return AdapterWeights(self, member, dtype).route(member)


# --- the factors of a call ----------------------------------------------------------------------------------

@dataclass
class AdapterWeights:
    """Holds the factors of the members that a call needs, at the base's precision, laid out for the products.

    There are two layouts for m layers that share an input. Usually A is one tensor (k, m R, in) and B another
    (k, m R, sum of sizes), which is 0 in the columns of other layers. Products are few then, and gradients go
    through them. With `in_graph`, for steps that a CUDA graph can hold, A is (m, k, R, in), times alpha/R,
    and each layer has its own B (k, R, out). It has no zeros, because decoding on a card waits for what is
    read. With `trains` gradients go to detached parts, and add_gradients adds them to the stacked factors.
    """
    adapters: Adapters
    member: Tensor                                      # (B,) for all rows that will be routed; -1 = base
    dtype: torch.dtype
    in_graph: bool = False
    trains: bool = False

    def __post_init__(self):
        member = self.member
        self.device = self.adapters.device
        self.present = member[member >= 0].unique()     # (k,) on the CPU, if `member` is: no wait for a GPU
        self.slots = send(self.present, self.device)     # (k,) of these members
        self.made = {}                                  # layers on one input -> what `for_layers` returns
        self.copies = []                                # (factor, copy of these members' part)

    def pick(self, factor: Tensor) -> Tensor:
        """Returns these members' part (k, ...) of a stacked factor (P, ...)."""
        part = factor
        if len(self.slots) < len(factor):                # all members together need no copy
            part = factor[self.slots]
        if self.trains:
            part = part.detach().requires_grad_()
            self.copies.append((factor, part))
        return part.to(self.dtype)

    def for_layers(
        self,
        paths: tuple[str, ...],         # the layers' names
        sizes: list[int],               # their numbers of outputs
    ) -> tuple | None:
        """Returns the factors of layers that read the same input: A, and B with the layers' outputs, `sizes`,
        side by side; with in_graph B is a list of (columns, B). Returns None if no layer has an adapter. The
        result is kept."""
        if paths not in self.made:
            self.made[paths] = self.lay_out(paths, sizes)
        return self.made[paths]

    def lay_out(
        self,
        paths: tuple[str, ...],
        sizes: list[int],
    ) -> tuple | None:
        """Makes what `for_layers` returns."""
        columns = []                                    # places of the adapted layers in the joint output
        As, Bs = [], []                                 # (k, R, in), (k, R, out)
        end = 0
        for path, n_out in zip(paths, sizes):
            end += n_out
            if path in self.adapters.A:
                columns.append(slice(end - n_out, end))
                As.append(self.pick(self.adapters.A[path]))
                Bs.append(self.pick(self.adapters.B[path]).transpose(1, 2))
        if not columns:
            return None
        if not self.trains:
            As, Bs = with_finite_B(As, Bs)

        if self.in_graph:
            scaled = torch.stack(As) * self.adapters.scale      # once, and not in every step
            Bs = [B.contiguous() for B in Bs]
            return scaled, list(zip(columns, Bs))
        if len(sizes) == 1:
            [A], [B] = As, Bs
            picked = len(A) < self.adapters.n_members
            is_copy = self.dtype != torch.float32 or (self.trains and picked)
            if is_copy:                                 # not worth a copy of the masters themselves
                B = B.contiguous()                      # else every dense product would copy it
            return A, B
        # each (k, R, sum of sizes), 0 to the left and right of its columns
        padded = [F.pad(B, (at.start, end - at.stop)) for at, B in zip(columns, Bs)]
        return torch.cat(As, 1), torch.cat(padded, 1)

    def add_gradients(self) -> None:
        """Adds the copies' gradients to .grad of the stacked factors, in float32."""
        for factor, part in self.copies:
            factor.grad.index_add_(0, self.slots, part.grad)

    def can_group(self) -> bool:
        """Returns whether the grouped product takes these factors, and is the faster one on this device."""
        for factor in self.adapters.parameters():
            for width in factor.shape[1:]:
                if width * self.dtype.itemsize % 16:    # torch.grouped_mm reads 16 bytes at a time
                    return False
        if self.device.type != "cuda":
            return True
        major, _ = torch.cuda.get_device_capability(self.device)
        at_once = major in (9, 10)                      # other cards compute and wait for group after group
        return self.dtype == torch.bfloat16 and (at_once or len(self.present) > DENSE)

    def route(self, member: Tensor, one_token: bool = False) -> "Route | None":
        """Returns what Adapters.route does, by the product that is cheapest for rows (B,) of these members.
        With one_token each row has one token, as in decoding."""
        if self.in_graph:
            return self.static_route(member)
        if not (member >= 0).any():
            return None
        scale = self.adapters.scale
        n_rows = (member[:, None] == self.present).sum(0)           # (k,)
        n_bare = (member < 0).sum()
        rows = member.argsort(stable=True)[n_bare:]                 # the adapted rows, member after member
        in_order = torch.equal(rows, torch.arange(len(member), device=member.device))
        if in_order and (n_rows == n_rows[0]).all():
            return Route(self, partial(equal, scale=scale))
        can_group = self.can_group()
        if one_token and (len(self.present) <= DENSE or not can_group):
            return self.static_route(member)
        rows = send(rows, self.device)
        if not can_group:
            own = rows.split(n_rows.tolist())                       # the rows of each member
            return Route(self, partial(looped, own=own, scale=scale))
        ends = send(n_rows.cumsum(0).int(), self.device)            # where each member's rows end
        if in_order:
            rows = None
        return Route(self, partial(grouped, ends=ends, rows=rows, scale=scale))

    def static_route(self, member: Tensor) -> "Route | None":
        """Returns a route by the dense product. It looks at no value, so that a graph can hold it."""
        if len(self.present) == 0:
            return None
        bits = torch.int16
        if self.dtype == torch.float32:                         # as wide as a number of the base
            bits = torch.int32
        is_own = member[:, None] == self.present                # (B, k)
        is_own = is_own[:, None, :, None]                       # (B, 1, k, 1)
        own = send(-is_own.to(bits), self.device)               # -1 has all bits set
        if self.in_graph:
            return Route(self, partial(dense_by_layer, own=own))
        return Route(self, partial(dense, own=own, scale=self.adapters.scale))


def with_finite_B(
    As: list[Tensor],               # (k, R, in) of each layer
    Bs: list[Tensor],               # (k, R, out) of each layer
) -> tuple[list, list]:
    """Returns factors A (k, R, in) and B (k, R, out) of layers on one input, with all B finite.

    `dense` multiplies the B of others by 0, and 0 times NaN is NaN. So a B that is not finite becomes 0, and
    its A NaN. Others' rows are masked before they meet this B, and the member's own rows stay NaN.
    """
    broken = False
    for B in Bs:
        finite = B.isfinite().all(2).all(1)                     # (k,)
        broken = broken | ~finite
    if not broken.any():
        return As, Bs
    broken = broken[:, None, None]
    As = [A.masked_fill(broken, torch.nan) for A in As]
    Bs = [B.masked_fill(broken, 0) for B in Bs]
    return As, Bs


# --- the products -------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Route:
    """Adds the update of each row's own member to the outputs of layers that read the same x, by one of the
    products below. Without gradients it may do so in place, as y is fresh from the base's product."""
    weights: AdapterWeights
    product: Callable[..., Tensor]

    def __call__(
        self,
        paths: tuple[str, ...],         # the layers' names
        sizes: list[int],               # their numbers of outputs
        x: Tensor,                      # (B, T, in)
        y: Tensor,                      # (B, T, sum of sizes)
    ) -> Tensor:
        """Returns outputs y (B, T, sum of sizes) of the layers `paths` plus the updates for x (B, T, in)."""
        factors = self.weights.for_layers(paths, sizes)
        if factors is None:
            return y
        A, B = factors
        return self.product(A, B, x, y)


def equal(
    A: Tensor,                      # (k, m R, in)
    B: Tensor,                      # (k, m R, sum of sizes)
    x: Tensor,                      # (B, T, in)
    y: Tensor,                      # (B, T, sum of sizes)
    scale: float,
) -> Tensor:
    """Adds the updates of rows in the order of members, who have equally many, by batched products."""
    k = len(A)
    inputs = x.reshape(k, -1, x.shape[2])                       # (k, B/k T, in)
    groups = y.view(k, -1, y.shape[2])
    h = torch.bmm(inputs, A.transpose(1, 2))                    # (k, B/k T, m R)
    if torch.is_grad_enabled():
        return torch.baddbmm(groups, h, B, alpha=scale).view(y.shape)
    groups.baddbmm_(h, B, alpha=scale)
    return y


def looped(
    A: Tensor,                      # (k, m R, in)
    B: Tensor,                      # (k, m R, sum of sizes)
    x: Tensor,                      # (B, T, in)
    y: Tensor,                      # (B, T, sum of sizes)
    own: tuple[Tensor, ...],        # rows (n,) of each member
    scale: float,
) -> Tensor:
    """Adds the updates member after member, each on its own rows (n,)."""
    updates = []
    for i, rows in enumerate(own):
        h = x[rows] @ A[i].T * scale                            # (n, T, m R)
        updates.append(h @ B[i])
    return y.index_add(0, torch.cat(own), torch.cat(updates))


def masked(h: Tensor, own: Tensor) -> Tensor:
    """Puts 0 wherever h is not a row's own. `own` has all bits set where it is, else none. This is as fast as
    a product with 1 and 0, and also makes 0 of NaN. masked_fill_ takes five times as long."""
    h.view(own.dtype).bitwise_and_(own)
    return h


def dense(
    A: Tensor,                      # (k, m R, in)
    B: Tensor,                      # (k, m R, sum of sizes)
    x: Tensor,                      # (B, T, in)
    y: Tensor,                      # (B, T, sum of sizes)
    own: Tensor,                    # (B, 1, k, 1), all bits set for a row's own member, else none
    scale: float,
) -> Tensor:
    """Sends every row through the columns of all members, and masks those of others. It is not for training,
    because B's gradient would be a sum over all rows, with 0 times NaN from another member's."""
    h = F.linear(x, A.flatten(0, 1))                            # (B, T, k m R)
    h = h.view(*x.shape[:2], len(A), -1)                        # (B, T, k, m R)
    h = masked(h.mul_(scale), own)
    return y + h.flatten(2) @ B.flatten(0, 1)


def dense_by_layer(
    A: Tensor,                      # (m, k, R, in), times alpha/R
    Bs: list[tuple[slice, Tensor]],  # each layer's columns of y and B (k, R, out)
    x: Tensor,                      # (B, T, in)
    y: Tensor,                      # (B, T, sum of sizes)
    own: Tensor,                    # as in `dense`
) -> Tensor:
    """Does what `dense` does, in the layout of in_graph."""
    h = F.linear(x, A.flatten(0, 2))                            # (B, T, m k R)
    h = h.view(*x.shape[:2], *A.shape[:3])                      # (B, T, m, k, R)
    h = masked(h, own[:, :, None])
    flat = y.view(-1, y.shape[2])                               # (B T, sum of sizes)
    for i, (columns, B) in enumerate(Bs):
        of_layer = h[:, :, i].view(len(flat), -1)               # (B T, k R)
        flat[:, columns].addmm_(of_layer, B.flatten(0, 1))
    return y


def grouped(
    A: Tensor,
    B: Tensor,
    x: Tensor,
    y: Tensor,
    ends: Tensor,                                               # (k,) where each member's rows end
    rows: Tensor | None,                                        # (n,) member after member; None = they are
    scale: float,
) -> Tensor:
    """Adds the updates of rows, in the order of their members, each of whom may have any number of rows."""
    T = x.shape[1]
    if rows is not None:
        x = x[rows]
    ends = ends * T                                             # where each member's tokens end
    h = F.grouped_mm(x.flatten(0, 1), A.transpose(1, 2), offs=ends)
    h = h * scale                                               # (n T, m R)
    update = F.grouped_mm(h, B, offs=ends)
    update = update.view(-1, T, y.shape[2])
    if rows is None:
        return y + update
    if torch.is_grad_enabled():
        return y.index_add(0, rows, update)
    return y.index_add_(0, rows, update)
