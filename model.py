"""The frozen base: Qwen2, Qwen3, Llama and Mistral by hand, loaded from a Hugging Face directory or hub id.

    python model.py --check Qwen/Qwen2.5-Coder-0.5B-Instruct     # against transformers: logits and 64 greedy tokens
    python model.py --check micro/base

Shapes: B rows, T tokens, S cache slots, C width, H heads, K kv heads, G = H/K query heads per kv head, D head size,
V vocabulary. Parameter names are Hugging Face's, so loading is: build on the meta device, stream the shards, assign
strictly. Caches, masks and adapters are arguments: the model itself holds nothing but weights. An architecture is a line
of architectures.py: what differs between them are fields of Config, never classes.
"""
import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch.utils.checkpoint import checkpoint

from architectures import Config, rope_table


class KVCache:
    """Keys and values of all layers, each (B, K, S, D). A token lies in the slot of its position; `length` slots are seen."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor], length: int = 0):
        self.keys, self.values, self.length = keys, values, length

    @classmethod
    def empty(cls, cfg: Config, n_rows: int, n_slots: int, dtype: torch.dtype, device) -> "KVCache":
        """Zeroed cache for n_rows rows of up to n_slots tokens."""
        shape = (n_rows, cfg.num_key_value_heads, n_slots, cfg.head_dim)
        make = lambda: [torch.zeros(shape, dtype=dtype, device=device) for _ in range(cfg.num_hidden_layers)]
        return cls(make(), make())

    def select(self, rows: torch.Tensor) -> None:
        """Keep the given rows (n,); layer by layer, as two whole caches may not fit."""
        for all_layers in (self.keys, self.values):
            for i, x in enumerate(all_layers):
                all_layers[i] = x.index_select(0, rows)

    def put(self, rows: torch.Tensor, other: "KVCache", source: torch.Tensor) -> None:
        """Overwrite the beginning of the given rows (n,) with the rows `source` (n,) of another cache."""
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for x, y in zip(mine, theirs):
                x[rows, :, :y.shape[2]] = y[source]

    def slots(self, position: torch.Tensor) -> torch.Tensor:
        """Where in the flattened (B K S, D) keys one token of each row at position (B,) belongs: (B K,)."""
        B, K, S, _ = self.keys[0].shape
        head = torch.arange(B * K, device=position.device)
        return head * S + position.repeat_interleave(K)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor | None):
        """Write k and v (B, K, T, D) from slot 0 on, or one token a row into its slot; returns the keys and values to be seen."""
        keys, values, T = self.keys[layer], self.values[layer], k.shape[2]
        if slots is None:
            keys[:, :, :T], values[:, :, :T] = k, v
        else:
            keys.view(-1, keys.shape[3]).index_copy_(0, slots, k.reshape(-1, keys.shape[3]))
            values.view(-1, keys.shape[3]).index_copy_(0, slots, v.reshape(-1, keys.shape[3]))
        return keys[:, :, :self.length], values[:, :, :self.length]


class Linear(nn.Linear):
    """A linear layer that knows its full name, so that adapters can be handed in instead of being patched on."""

    def __init__(self, path: str, n_in: int, n_out: int, bias: bool = False):
        super().__init__(n_in, n_out, bias=bias)
        self.path = path


class Project:
    """Layers that read the same x: one product computes them all once `fuse` has laid their weights side by side."""

    def __init__(self, *layers: Linear):
        self.layers, self.paths = layers, tuple(layer.path for layer in layers)
        self.sizes = [layer.out_features for layer in layers]
        self.weight, self.bias, self.places = None, None, []

    @torch.no_grad()
    def fuse(self) -> None:
        """Copy the layers' frozen weights into one tensor, of which they become views."""
        for name in ("weight", "bias") if self.layers[0].bias is not None else ("weight",):
            whole = torch.cat([getattr(layer, name) for layer in self.layers])
            setattr(self, name, whole)
            for layer, view in zip(self.layers, whole.split(self.sizes)):
                setattr(layer, name, nn.Parameter(view, requires_grad=False))
        self.places = [layer.weight.data_ptr() for layer in self.layers]

    def __call__(self, x: torch.Tensor, lora=None) -> tuple[torch.Tensor, ...]:
        """One output (B, T, out) a layer; computed one by one where a layer was copied or given another weight since `fuse`."""
        fused = self.places == [layer.weight.data_ptr() for layer in self.layers]
        y = F.linear(x, self.weight, self.bias) if fused else torch.cat([layer(x) for layer in self.layers], -1)
        if lora is not None:
            y = lora(self.paths, self.sizes, x, y)
        return y.split(self.sizes, -1)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def window_mask(mask: torch.Tensor | None, positions: torch.Tensor, n_slots: int, window: int) -> torch.Tensor:
    """The mask (B, 1, T, S), or the causal one where None, less the keys `window` or more positions before their query.

    Without a cache the keys are the queries; in a cache a token lies in the slot of its position.
    """
    T = positions.shape[1]
    key = positions if n_slots == T else torch.arange(n_slots, device=positions.device)[None]
    far = key[:, None] <= positions[:, :, None] - window                                # (B, T, S)
    causal = torch.ones(T, n_slots, dtype=torch.bool, device=positions.device).tril(n_slots - T)
    return (causal if mask is None else mask) & ~far[:, None]


def additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """0 where a boolean mask allows a key, else -inf: what the attention kernels make of it in every layer otherwise."""
    return None if mask is None else torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves (a, b) of each head (..., T, D) by the table's angles: (a cos - b sin, b cos + a sin)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Attention(nn.Module):
    def __init__(self, cfg: Config, layer: int, path: str):
        super().__init__()
        C, self.layer, self.D = cfg.hidden_size, layer, cfg.head_dim
        q, kv, bias = cfg.num_attention_heads * self.D, cfg.num_key_value_heads * self.D, cfg.attention_bias
        norm = (lambda: RMSNorm(self.D, cfg.rms_norm_eps)) if cfg.qk_norm else nn.Identity
        self.q_proj = Linear(f"{path}.q_proj", C, q, bias)
        self.k_proj = Linear(f"{path}.k_proj", C, kv, bias)
        self.v_proj = Linear(f"{path}.v_proj", C, kv, bias)
        self.o_proj = Linear(f"{path}.o_proj", q, C, cfg.output_bias)
        self.q_norm, self.k_norm = norm(), norm()
        self.qkv, self.out = Project(self.q_proj, self.k_proj, self.v_proj), Project(self.o_proj)

    def forward(self, x, cos, sin, mask, cache, slots, lora):
        """x (B, T, C) -> (B, T, C); cos and sin (B, 1, T, D), mask as in Model.forward, slots as in KVCache.append."""
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, -1, self.D) for y in self.qkv(x, lora))
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)                                # (B, H, T, D)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)                                # (B, K, T, D)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(self.layer, k, v, slots)
        if T == 1:      # decoding: fold the query group into the rows, which avoids repeating keys and the slow masked kernel
            y = F.scaled_dot_product_attention(q.view(B, k.shape[1], -1, self.D), k, v, attn_mask=mask).view(B, -1, 1, self.D)
        else:
            if mask is not None and q.is_cuda:      # with a mask and unequal heads CUDA falls to its slow kernel
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1), lora)[0]


class MLP(nn.Module):
    def __init__(self, cfg: Config, path: str):
        super().__init__()
        self.gate_proj = Linear(f"{path}.gate_proj", cfg.hidden_size, cfg.intermediate_size, cfg.mlp_bias)
        self.up_proj = Linear(f"{path}.up_proj", cfg.hidden_size, cfg.intermediate_size, cfg.mlp_bias)
        self.down_proj = Linear(f"{path}.down_proj", cfg.intermediate_size, cfg.hidden_size, cfg.mlp_bias)
        self.gate_up, self.down = Project(self.gate_proj, self.up_proj), Project(self.down_proj)

    def forward(self, x, lora):
        gate, up = self.gate_up(x, lora)
        return self.down(F.silu(gate) * up, lora)[0]


class Block(nn.Module):
    def __init__(self, cfg: Config, layer: int):
        super().__init__()
        path = f"model.layers.{layer}"
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg, layer, f"{path}.self_attn")
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg, f"{path}.mlp")

    def forward(self, x, cos, sin, mask, cache, slots, lora):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache, slots, lora)
        return x + self.mlp(self.post_attention_layernorm(x), lora)


class Model(nn.Module):
    """The decoder. Parameter names equal those of transformers' ...ForCausalLM; a tied head has no parameter of its own."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.model.layers = nn.ModuleList(Block(cfg, i) for i in range(cfg.num_hidden_layers))
        self.model.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        if not cfg.tie_word_embeddings:
            self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    @property
    def embedding(self) -> torch.Tensor:
        return self.model.embed_tokens.weight

    def forward(self, ids, positions=None, mask=None, cache: KVCache | None = None, lora=None,
                checkpointing: bool = False) -> torch.Tensor:
        """Final hidden states (B, T, C) of ids (B, T).

        positions (B, T) default to what follows the cache; mask is a boolean (B, 1, T, S) of allowed keys, None means
        causal (one token with a cache sees every filled slot); a cache takes several tokens only while it is empty;
        lora(paths, sizes, x, y) adds the rows' adapters to the joint output y of layers that share an input x;
        checkpointing keeps only each block's input for the backward pass, which computes the rest again (1604.06174).
        """
        (B, T), cfg = ids.shape, self.cfg
        start = cache.length if cache is not None else 0
        assert start == 0 or T == 1, "only an empty cache takes several tokens"
        if positions is None:
            positions = torch.arange(start, start + T, device=ids.device).expand(B, T)
        S = mask.shape[-1] if mask is not None else start + T
        slots = cache.slots(positions[:, 0]) if cache is not None and T == 1 else None
        if cache is not None:
            cache.length = S
        x = self.model.embed_tokens(ids)
        cos, sin = rope_table(positions, cfg, x.dtype)
        cut = cfg.sliding_layers and S > cfg.sliding_window
        near = additive(window_mask(mask, positions, S, cfg.sliding_window), x.dtype) if cut else None
        mask = additive(mask, x.dtype)
        for i, block in enumerate(self.model.layers):
            args = x, cos, sin, near if cut and i in cfg.sliding_layers else mask, cache, slots, lora
            x = checkpoint(block, *args, use_reentrant=False) if checkpointing else block(*args)
        return self.model.norm(x)

    def projects(self) -> list[Project]:
        """The adaptable layers, those together that share an input."""
        of = lambda block: (block.self_attn.qkv, block.self_attn.out, block.mlp.gate_up, block.mlp.down)
        return [project for block in self.model.layers for project in of(block)]

    def fuse(self) -> "Model":
        """Lay the frozen weights of layers that share their input side by side. Before that each can be trained by itself."""
        for project in self.projects():
            project.fuse()
        return self

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary (..., V) of hidden states (..., C)."""
        return F.linear(hidden, self.embedding if self.cfg.tie_word_embeddings else self.lm_head.weight)

    def linears(self) -> dict[str, Linear]:
        """Every adaptable linear layer (q, k, v, o, gate, up, down of each block) by full name, in order."""
        return {layer.path: layer for project in self.projects() for layer in project.layers}


@dataclass(frozen=True)
class Base:
    """A loaded base: frozen model, its tokenizer, every id that ends an answer, and the prompt style it understands."""
    model: Model
    tokenizer: object
    eos_ids: tuple[int, ...]
    style: str                       # how it is talked to: one of prompts.STYLES
    path: Path
    graphs: bool = False             # decode by CUDA graphs


def resolve(name: str) -> Path:
    """Local directory of a model directory or hub id (HF_HOME and HF_HUB_OFFLINE are honoured). Raises ValueError."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ValueError(f"--base {name}: no such directory; give a Hugging Face model directory or a hub id "
                         "like Qwen/Qwen2.5-Coder-7B")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.jsonl"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as e:
        raise ValueError(f"--base {name}: no such directory, and the hub did not give it ({type(e).__name__}): "
                         "check the name and the network, or download it first and pass the directory") from None


def shards(path: Path) -> list[Path]:
    """The safetensors files of a model directory. Raises ValueError when there are none or one of the index is missing."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        files = sorted({path / name for name in json.loads(index.read_text())["weight_map"].values()})
        missing = [f.name for f in files if not f.exists()]
        if missing:
            raise ValueError(f"{path}: the index names {', '.join(missing)}, which is not there: finish the download")
        return files
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{path} has no *.safetensors file: finish the download (pickled .bin weights are not loaded)")
    return files


def load_model(path: Path, dtype: torch.dtype, device="cpu") -> Model:
    """Build on the meta device, stream each shard, assign strictly, freeze. Raises ValueError where file and config differ."""
    cfg = Config.from_pretrained(path)
    with torch.device("meta"):
        model = Model(cfg)
    want, state = dict(model.named_parameters()), {}
    for file in shards(path):
        try:
            with safe_open(file, framework="pt", device=str(device)) as f:
                for name in f.keys():
                    if name not in want:
                        if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and cfg.tie_word_embeddings):
                            continue
                        raise ValueError(f"{file} holds {name}, which config.json has no place for: "
                                         "weights and config do not belong together")
                    tensor = f.get_tensor(name)
                    if tensor.shape != want[name].shape:
                        raise ValueError(f"{file}: {name} is {tuple(tensor.shape)}, but config.json makes it "
                                         f"{tuple(want[name].shape)}: weights and config do not belong together")
                    state[name] = tensor.to(dtype)
        except (SafetensorError, OSError) as e:
            raise ValueError(f"{file} cannot be read ({e}): the download is truncated or damaged, fetch it again") from None
    if missing := sorted(set(want) - set(state)):
        raise ValueError(f"{path}: {len(missing)} tensors are missing, the first is {missing[0]}: "
                         "a shard is absent or belongs to another model")
    model.load_state_dict(state, strict=True, assign=True)
    return model.requires_grad_(False).eval()


def end_tokens(path: Path, tokenizer) -> tuple[int, ...]:
    """Every id that ends an answer, from config.json, generation_config.json and the tokenizer together."""
    ids = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        eos = json.loads((path / name).read_text()).get("eos_token_id") if (path / name).exists() else None
        ids |= set(eos) if isinstance(eos, list) else {eos}
    return tuple(sorted(ids - {None}))


def is_chat_model(tokenizer, eos_ids: tuple[int, ...]) -> bool:
    """Whether the chat template ends an answer with a token that ends the model's answers. Base models may carry the template of
    their family (those of Qwen2.5 do) and end with another token: they were not trained in it."""
    if not tokenizer.chat_template:
        return False
    said = [dict(role="user", content="question"), dict(role="assistant", content="answer")]
    try:
        end = tokenizer.apply_chat_template(said, tokenize=False).rpartition("answer")[2]
    except Exception:                             # a template raises what it likes; one that fails here cannot be talked in
        return False
    return any(token in end for token in tokenizer.convert_ids_to_tokens(list(eos_ids)))


def load_tokenizer(path: Path):
    """The directory's tokenizer through transformers, and the prompt style that model and tokenizer call for."""
    if not any((path / name).exists() for name in ("tokenizer.json", "vocab.json", "tokenizer.model")):
        raise ValueError(f"{path} has no tokenizer: tokenizer.json is needed")     # transformers would make up an empty one
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    # transformers 5 picks a class by architecture, which may split text otherwise than the tokenizer.json that lies there
    kind = PreTrainedTokenizerFast if (path / "tokenizer.json").exists() else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(path)
    except Exception as e:                        # transformers raises many types here; all mean the same to the user
        raise ValueError(f"{path} has no usable tokenizer ({type(e).__name__}): "
                         "tokenizer.json and tokenizer_config.json are needed") from None
    style = json.loads((path / "config.json").read_text()).get("task_style")
    return tokenizer, style or ("chat" if is_chat_model(tokenizer, end_tokens(path, tokenizer)) else "base")


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type of a --dtype flag: float32, bfloat16, or auto, which is bfloat16 on a GPU alone."""
    auto = torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"auto": auto, "float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_base(name: str, dtype: torch.dtype = torch.float32, device="cpu") -> Base:
    """Model, tokenizer, end tokens and prompt style of a directory or hub id. Raises ValueError with the fix."""
    path = resolve(name)
    Config.from_pretrained(path)                  # complain about the architecture before anything slow
    tokenizer, style = load_tokenizer(path)
    eos_ids = end_tokens(path, tokenizer)
    if not eos_ids:
        raise ValueError(f"{path}: no end token in config.json, generation_config.json or the tokenizer; add eos_token_id")
    return Base(load_model(path, dtype, device).fuse(), tokenizer, eos_ids, style, path)


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over every parameter's name and bytes: proves that training left the base unchanged."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(name.encode())
        digest.update(p.detach().contiguous().cpu().view(torch.uint8).numpy())
    return digest.hexdigest()


@torch.inference_mode()
def check(name: str, n_new: int = 64, text: str = "def fibonacci(n):\n") -> dict:
    """Compare with transformers in float32: largest logit difference on a prompt, and n_new greedy tokens."""
    from transformers import AutoModelForCausalLM
    base = load_base(name)
    reference = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32).eval()
    prompt = torch.tensor([base.tokenizer(text)["input_ids"]])
    ours, theirs = base.model.logits(base.model(prompt)), reference(prompt).logits
    cache = KVCache.empty(base.model.cfg, 1, prompt.shape[1] + n_new, torch.float32, "cpu")
    ids, mine = prompt, []
    for _ in range(n_new):
        ids = base.model.logits(base.model(ids, cache=cache)[:, -1:]).argmax(-1)
        mine.append(ids.item())
        if mine[-1] in base.eos_ids:
            break
    want = reference.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_new, do_sample=False,
                              eos_token_id=list(base.eos_ids), repetition_penalty=1.0)[0, prompt.shape[1]:].tolist()
    return dict(base=str(name), max_abs_diff=(ours - theirs).abs().max().item(), greedy_same=mine == want,
                tokens=sum(a == b for a, b in zip(mine, want)), of=len(want), text=base.tokenizer.decode(mine))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", required=True, help="model directory or hub id")
    try:
        result = check(parser.parse_args().check)
    except ValueError as e:
        print(f"model.py: {e}", file=sys.stderr)
        sys.exit(2)
    print(result.pop("text"))
    print(json.dumps(result))
    sys.exit(0 if result["greedy_same"] and result["max_abs_diff"] < 1e-3 else 1)
