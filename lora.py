"""Stacked LoRA adapters: the whole population in two tensors per layer, one member index per row of a batch.

Shapes: P members, R rank, B rows, T tokens; factors A (P, R, in) and B (P, out, R), update dW = alpha/R * B A (LoRA, Hu et
al. 2021, section 4.1). One mixed batch serves any routing of rows to members with two matrix products per layer:

    y = W x + ((x A_all^T) * route) B_all^T      A_all (k R, in), B_all (out, k R), route (B, 1, k R) in {0, alpha/R}

where k counts the members present in the batch. Columns of other members are multiplied by zero, so a row sees its own
member only and every member's gradient comes from its own rows only; no sorting, no loop over members.
"""
import json
import math
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]      # layer path -> A (R, in), B (out, R)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Adapters:
    """P members' float32 master factors, stacked per layer; `A[path]` (P, R, in), `B[path]` (P, out, R)."""

    def __init__(self, shapes: dict[str, tuple[int, int]], n_members: int, rank: int, alpha: float, device="cpu"):
        self.n_members, self.rank, self.alpha, self.scale = n_members, rank, alpha, alpha / rank
        zeros = lambda *shape: torch.zeros(shape, device=device, requires_grad=True)
        self.A = {path: zeros(n_members, rank, n_in) for path, (n_in, _) in shapes.items()}
        self.B = {path: zeros(n_members, n_out, rank) for path, (_, n_out) in shapes.items()}

    @classmethod
    def on(cls, model, n_members: int, rank: int, alpha: float, targets=TARGETS, device="cpu") -> "Adapters":
        """Adapters for a model's linear layers whose last name is in targets. Raises ValueError where none is."""
        shapes = {path: (m.in_features, m.out_features) for path, m in model.linears().items() if path.rsplit(".")[-1] in targets}
        unknown = set(targets) - set(TARGETS)
        if unknown or not shapes:
            raise ValueError(f"--lora-targets {','.join(targets)}: {', '.join(sorted(unknown)) or 'nothing'} is not a linear layer; "
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
        """A detached copy of member p's factors."""
        return {path: (A[p].detach().clone(), self.B[path][p].detach().clone()) for path, A in self.A.items()}

    @torch.no_grad()
    def set_factors(self, p: int, factors: Factors) -> None:
        """Overwrite member p, wholly or not at all. Raises ValueError where layers or shapes differ from this population's, or a
        number is not finite (it would reach the other members' rows as 0 * inf)."""
        if set(factors) != set(self.A):
            odd = sorted(set(factors) ^ set(self.A))
            raise ValueError(f"adapter covers other layers than this population ({len(odd)} differ, first {odd[0]}): "
                             "use the same base and --lora-targets")
        for path, (A, B) in factors.items():
            if A.shape != self.A[path].shape[1:] or B.shape != self.B[path].shape[1:]:
                raise ValueError(f"adapter {path} has rank {A.shape[0]} and maps {A.shape[1]} to {B.shape[0]}; this population has rank "
                                 f"{self.rank} and maps {self.A[path].shape[2]} to {self.B[path].shape[1]}: another rank or base")
            if not (A.isfinite().all() and B.isfinite().all()):
                raise ValueError(f"adapter {path} holds numbers that are not finite: it is damaged, take an earlier one")
        for path, (A, B) in factors.items():
            self.A[path][p].copy_(A)
            self.B[path][p].copy_(B)

    def route(self, member: torch.Tensor, dtype: torch.dtype) -> "Route | None":
        """The function a Model takes as `lora` for rows of the given members (B,) int64, -1 = bare base. None if all are."""
        assert member.min() >= -1 and member.max() < self.n_members, f"member index outside -1..{self.n_members - 1}"
        present = member[member >= 0].unique()
        return Route(self, member, present, dtype) if len(present) else None


class Route:
    """Adds to each layer's output y (B, T, out) the update of each row's own member."""

    def __init__(self, adapters: Adapters, member: torch.Tensor, present: torch.Tensor, dtype: torch.dtype):
        pick = (lambda x: x) if len(present) == adapters.n_members else (lambda x: x[present])
        self.A = {path: pick(A).flatten(0, 1).to(dtype) for path, A in adapters.A.items()}                      # (k R, in)
        self.B = {path: pick(B).permute(1, 0, 2).flatten(1, 2).to(dtype) for path, B in adapters.B.items()}     # (out, k R)
        own = (member[:, None] == present[None]).to(dtype) * adapters.scale                                     # (B, k)
        self.own = own.repeat_interleave(adapters.rank, dim=1)[:, None]                                         # (B, 1, k R)

    def __call__(self, path: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if path not in self.A:
            return y
        return y + F.linear(F.linear(x, self.A[path]) * self.own, self.B[path])

    def keep(self, rows: torch.Tensor) -> "Route":
        """The same routing for a selection (n,) of the rows, in their order; shares the factors."""
        other = object.__new__(Route)
        other.A, other.B, other.own = self.A, self.B, self.own[rows]
        return other


def save_peft(adapters: Adapters, p: int, directory: Path, base_name: str, base_hash: str = "") -> None:
    """Write member p as a PEFT directory: adapter_config.json and adapter_model.safetensors, float32."""
    directory.mkdir(parents=True, exist_ok=True)
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=base_name, r=adapters.rank, lora_alpha=adapters.alpha,
                  lora_dropout=0.0, bias="none", fan_in_fan_out=False, inference_mode=True,
                  target_modules=sorted({path.rsplit(".")[-1] for path in adapters.A}))
    tensors = {}
    for path, (A, B) in adapters.factors(p).items():
        tensors[f"base_model.model.{path}.lora_A.weight"], tensors[f"base_model.model.{path}.lora_B.weight"] = A.cpu(), B.cpu()
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt", "base_weights": base_hash})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))


def load_peft(adapters: Adapters, p: int, directory: str | os.PathLike, base_hash: str = "") -> None:
    """Read a PEFT directory into member p. Raises ValueError for a missing or damaged file, another rank, alpha or base."""
    directory = Path(directory)
    try:
        config = json.loads((directory / "adapter_config.json").read_text())
        with safe_open(directory / "adapter_model.safetensors", framework="pt") as f:
            made_on = (f.metadata() or {}).get("base_weights", "")
            tensors = {name.removeprefix("base_model.model."): f.get_tensor(name).float() for name in f.keys()}
    except (OSError, SafetensorError, json.JSONDecodeError) as e:
        raise ValueError(f"{directory} is not a readable PEFT adapter ({e})") from None
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("use_rslora"):
        raise ValueError(f"{directory}: only plain LoRA adapters can be members (no DoRA, no rsLoRA)")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if (rank, alpha) != (adapters.rank, adapters.alpha):
        raise ValueError(f"{directory} has rank {rank} and alpha {alpha}, this population {adapters.rank} and {adapters.alpha}: "
                         f"pass --rank {rank} --alpha {alpha}")
    if made_on and base_hash and made_on != base_hash:
        raise ValueError(f"{directory} was trained on another base ({config.get('base_model_name_or_path')}): pass that as --base")
    layers = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    absent = [path for path in layers if f"{path}.lora_B.weight" not in tensors]
    if absent:
        raise ValueError(f"{directory}: {absent[0]} has an A factor but no B: the file is incomplete")
    adapters.set_factors(p, {path: (tensors[f"{path}.lora_A.weight"], tensors[f"{path}.lora_B.weight"]) for path in layers})
