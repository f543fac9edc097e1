"""Weights and settings on the disk: a base in Hugging Face's files, members in PEFT's.

    python -m infra.weights --check Qwen/Qwen2.5-Coder-0.5B-Instruct     # against transformers: logits and 64 greedy tokens
    python -m infra.weights --check micro/base

Loading a base: build it on the meta device, stream the shards, assign strictly. An architecture is a line of ARCHITECTURES: what
config.json says, with what it leaves out, becomes fields of model.ModelConfig. The lower half writes a member as the PEFT directory
that other tools read, and reads one back.
"""
import argparse
import hashlib
import json
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from lora import Adapters
from model import Base, KVCache, Model, ModelConfig

# model_type -> what holds whatever its config.json says, and what applies where config.json is silent (transformers' defaults)
ARCHITECTURES = {
    "qwen2": (dict(attention_bias=True, output_bias=False, mlp_bias=False), {}),
    "qwen3": (dict(mlp_bias=False, qk_norm=True), dict(head_dim=128)),
    "llama": (dict(use_sliding_window=False), dict(max_position_embeddings=2048)),
    "mistral": (dict(attention_bias=False, mlp_bias=False, use_sliding_window=True, max_window_layers=0, layer_types=None),
                dict(max_position_embeddings=131072))}
SILENT = dict(attention_bias=False, use_sliding_window=False, max_window_layers=28, max_position_embeddings=32768)
ROPES = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}


# --- a base ------------------------------------------------------------------------------------------------------------

def read_config(path: Path) -> ModelConfig:
    """Read config.json. Raises ValueError for a missing file or an architecture that model.py does not compute."""
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
    missing = [f.name for f in fields(ModelConfig) if f.default is f.default_factory is MISSING and f.name not in full]
    if missing:
        raise ValueError(f"{path / 'config.json'} lacks {', '.join(missing)}: is it a complete model directory?")
    full["rope_theta"] = rope.pop("rope_theta", full.get("rope_theta", ModelConfig.rope_theta))
    full["rope_parameters"] = {"original_max_position_embeddings": full["max_position_embeddings"], **rope}
    full["sliding_window"] = (raw.get("sliding_window", 4096) or 0) if full["use_sliding_window"] else 0
    types, late = full.get("layer_types"), full["max_window_layers"]
    slides = lambda i: types[i] == "sliding_attention" if types else i >= late
    full["sliding_layers"] = tuple(i for i in range(full["num_hidden_layers"]) if full["sliding_window"] and slides(i))
    return ModelConfig(**{f.name: full[f.name] for f in fields(ModelConfig) if f.name in full})


def unsupported(raw: dict, rope: dict) -> list[str]:
    """What in a config.json and its rope parameters model.py does not compute, in words."""
    kind, layers = rope["rope_type"], {*(raw.get("layer_types") or ())} - {"full_attention", "sliding_attention"}
    part = (rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1) != 1
    cases = [(raw.get("model_type") not in ARCHITECTURES, f"model_type {raw.get('model_type')!r}"),
             (raw.get("hidden_act", "silu") != "silu", f"activation {raw.get('hidden_act')}"),
             (layers, f"layers of type {', '.join(sorted(layers))}"),
             (raw.get("quantization_config"), "quantized weights"), (kind not in ROPES, f"rope {kind}"),
             (part, "rope on a part of each head"),
             (any(isinstance(v, dict) for v in rope.values()), "rope by layer type")]
    return [text for wrong, text in cases if wrong] + [f"rope {kind} without {k}" for k in ROPES.get(kind, ()) if not rope.get(k)]


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
    cfg = read_config(path)
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
    """The directory's tokenizer through transformers, and the prompt format that model and tokenizer call for."""
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
    prompt_format = json.loads((path / "config.json").read_text()).get("prompt_format")
    return tokenizer, prompt_format or ("chat" if is_chat_model(tokenizer, end_tokens(path, tokenizer)) else "base")


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type of a --dtype flag: float32, bfloat16, or auto, which is bfloat16 on a GPU alone."""
    auto = torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"auto": auto, "float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_base(name: str, dtype: torch.dtype = torch.float32, device="cpu") -> Base:
    """Model, tokenizer, end tokens and prompt format of a directory or hub id. Raises ValueError with the fix."""
    path = resolve(name)
    read_config(path)                  # complain about the architecture before anything slow
    tokenizer, prompt_format = load_tokenizer(path)
    eos_ids = end_tokens(path, tokenizer)
    if not eos_ids:
        raise ValueError(f"{path}: no end token in config.json, generation_config.json or the tokenizer; add eos_token_id")
    return Base(load_model(path, dtype, device).fuse(), tokenizer, eos_ids, prompt_format, path)


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over every parameter's name and bytes: proves that training left the base unchanged."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(name.encode())
        digest.update(p.detach().contiguous().cpu().view(torch.uint8).numpy())
    return digest.hexdigest()


# --- a member ----------------------------------------------------------------------------------------------------------

def save_peft(adapters: Adapters, p: int, directory: Path, base_name: str, base_hash: str = "") -> None:
    """Write member p as a PEFT directory: adapter_config.json and adapter_model.safetensors, float32."""
    directory.mkdir(parents=True, exist_ok=True)
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=base_name, r=adapters.rank,
                  lora_alpha=adapters.alpha, lora_dropout=0.0, bias="none", fan_in_fan_out=False, inference_mode=True,
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
        raise ValueError(f"{directory} was trained on another base, {config.get('base_model_name_or_path')}: pass that as --base")
    layers = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    absent = [path for path in layers if f"{path}.lora_B.weight" not in tensors]
    if absent:
        raise ValueError(f"{directory}: {absent[0]} has an A factor but no B: the file is incomplete")
    adapters.set_factors(p, {path: (tensors[f"{path}.lora_A.weight"], tensors[f"{path}.lora_B.weight"]) for path in layers})


# --- --check -----------------------------------------------------------------------------------------------------------

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
        print(f"infra.weights: {e}", file=sys.stderr)
        sys.exit(2)
    print(result.pop("text"))
    print(json.dumps(result))
    sys.exit(0 if result["greedy_same"] and result["max_abs_diff"] < 1e-3 else 1)
