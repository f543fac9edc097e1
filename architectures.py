"""What sets Qwen2, Qwen3, Llama and Mistral apart, read from config.json: fields of one Config, and rotary angles."""
import json
import math
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

import torch

# model_type -> what holds whatever its config.json says, and what applies where config.json is silent (transformers' defaults)
ARCHITECTURES = {
    "qwen2": (dict(attention_bias=True, output_bias=False, mlp_bias=False), {}),
    "qwen3": (dict(mlp_bias=False, qk_norm=True), dict(head_dim=128)),
    "llama": (dict(use_sliding_window=False), dict(max_position_embeddings=2048)),
    "mistral": (dict(attention_bias=False, mlp_bias=False, use_sliding_window=True, max_window_layers=0, layer_types=None),
                dict(max_position_embeddings=131072))}
SILENT = dict(attention_bias=False, use_sliding_window=False, max_window_layers=28, max_position_embeddings=32768)
ROPES = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}


@dataclass(frozen=True)
class Config:
    """The fields of config.json that the forward pass needs, under Hugging Face's names where those exist."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0                                   # 0 = hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    rope_parameters: dict = field(default_factory=dict)  # rope_type and its numbers: see rope_frequencies
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    attention_bias: bool = True                         # of q, k and v
    output_bias: bool = False                           # of o
    mlp_bias: bool = False
    qk_norm: bool = False                               # RMSNorm over each head of q and k, before they are rotated
    sliding_window: int = 0                             # keys that a query of these layers sees, itself among them
    sliding_layers: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // self.num_attention_heads)

    @classmethod
    def from_pretrained(cls, path: Path) -> "Config":
        """Read config.json. Raises ValueError for a missing file or an architecture that this file does not compute."""
        try:
            raw = json.loads((path / "config.json").read_text())
        except FileNotFoundError:
            raise ValueError(f"{path} has no config.json: --base wants a Hugging Face model directory or hub id") from None
        except json.JSONDecodeError as e:
            raise ValueError(f"{path / 'config.json'} is not valid JSON ({e}): fetch the model again") from None
        rope = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
        rope["rope_type"] = rope.get("rope_type", rope.pop("type", "default"))
        if odd := unsupported(raw, rope):
            raise ValueError(f"{path}: unsupported architecture ({', '.join(odd)}); supported: {', '.join(ARCHITECTURES)}, "
                             f"rope {', '.join(ROPES)}")
        fixed, silent = ARCHITECTURES[raw["model_type"]]
        full = {**SILENT, **silent, **{k: v for k, v in raw.items() if v is not None}, **fixed}
        full.setdefault("num_key_value_heads", full.get("num_attention_heads"))
        full.setdefault("output_bias", full["attention_bias"])
        missing = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING and f.name not in full]
        if missing:
            raise ValueError(f"{path / 'config.json'} lacks {', '.join(missing)}: is it a complete model directory?")
        full["rope_theta"] = rope.pop("rope_theta", full.get("rope_theta", cls.rope_theta))
        full["rope_parameters"] = {"original_max_position_embeddings": full["max_position_embeddings"], **rope}
        full["sliding_window"] = (raw.get("sliding_window", 4096) or 0) if full["use_sliding_window"] else 0
        types, late = full.get("layer_types"), full["max_window_layers"]
        slides = lambda i: types[i] == "sliding_attention" if types else i >= late
        full["sliding_layers"] = tuple(i for i in range(full["num_hidden_layers"]) if full["sliding_window"] and slides(i))
        return cls(**{f.name: full[f.name] for f in fields(cls) if f.name in full})


def unsupported(raw: dict, rope: dict) -> list[str]:
    """What in a config.json and its rope parameters this file does not compute, in words."""
    kind, layers = rope["rope_type"], {*(raw.get("layer_types") or ())} - {"full_attention", "sliding_attention"}
    part = (rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1) != 1
    cases = [(raw.get("model_type") not in ARCHITECTURES, f"model_type {raw.get('model_type')!r}"),
             (raw.get("hidden_act", "silu") != "silu", f"activation {raw.get('hidden_act')}"),
             (layers, f"layers of type {', '.join(sorted(layers))}"),
             (raw.get("quantization_config"), "quantized weights"), (kind not in ROPES, f"rope {kind}"),
             (part, "rope on a part of each head"),
             (any(isinstance(v, dict) for v in rope.values()), "rope by layer type")]
    return [text for wrong, text in cases if wrong] + [f"rope {kind} without {k}" for k in ROPES.get(kind, ()) if not rope.get(k)]


def rope_frequencies(cfg: Config, device) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair of a head's numbers (D/2,) float32, and the factor on its cos and sin.

    linear divides every frequency by `factor`; llama3 those of less than low_freq_factor turns within the context of pretraining,
    blending up to high_freq_factor; yarn blends by index between beta_fast and beta_slow turns (2309.00071, section 3).
    """
    r, D = cfg.rope_parameters, cfg.head_dim
    freq = cfg.rope_theta ** -(torch.arange(0, D, 2, device=device, dtype=torch.float32) / D)
    if (kind := r.get("rope_type", "default")) == "default":
        return freq, 1.0
    factor = r["factor"]
    if kind == "linear":
        return freq / factor, 1.0
    old = r["original_max_position_embeddings"]
    if kind == "llama3":
        slow, fast = r["low_freq_factor"], r["high_freq_factor"]
        keep = ((old * freq / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)
        return keep * freq + (1 - keep) * freq / factor, 1.0
    index = lambda turns: D * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(cfg.rope_theta))
    low, high = index(r.get("beta_fast") or 32), index(r.get("beta_slow") or 1)
    if r.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, D - 1)
    far = ((torch.arange(D // 2, device=device) - low) / (high - low or 0.001)).clamp(0, 1)
    heat = lambda m: 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0
    scale = heat(r["mscale"]) / heat(r["mscale_all_dim"]) if r.get("mscale") and r.get("mscale_all_dim") else heat(1)
    return freq * (1 - far) + freq / factor * far, scale if r.get("attention_factor") is None else r["attention_factor"]


def rope_table(positions: torch.Tensor, cfg: Config, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (B, 1, T, D) of the rotary angles at integer positions (B, T), sin negative on a head's first half (see
    rotate); angles in float32 (RoFormer, eq. 34)."""
    freq, scale = rope_frequencies(cfg, positions.device)
    angle = positions[:, None, :, None].float() * freq
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
