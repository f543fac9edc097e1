"""Weights and settings on the disk: a base in Hugging Face's files, members in PEFT's.

    python -m weights --check Qwen/Qwen2.5-Coder-0.5B-Instruct     # against transformers
    python -m weights --check micro/base

Loading a base: build it on the meta device, stream the shards, assign strictly. An architecture is a line of
ARCHITECTURES: what config.json says, with what it leaves out, becomes fields of model.ModelConfig.
"""
import argparse
import hashlib
import json
import os
import sys
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from attention import KVCache
from infra.precision import quantize
from lora import Adapters, Factors
from model import Base, Model, ModelConfig

# model_type -> what holds whatever its config.json says, and transformers' defaults where that is silent
ARCHITECTURES = {
    "qwen2": (dict(attention_bias=True, output_bias=False, mlp_bias=False), {}),
    "qwen3": (dict(mlp_bias=False, qk_norm=True), dict(head_dim=128)),
    "llama": (dict(use_sliding_window=False), dict(max_position_embeddings=2048)),
    "mistral": (dict(attention_bias=False, mlp_bias=False, use_sliding_window=True),
                dict(max_position_embeddings=131072))}
SILENT = dict(attention_bias=False, use_sliding_window=False, max_position_embeddings=32768)
# rope_type -> the numbers that it needs
ROPES = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
HEAD = "lm_head.weight"


# --- a base -------------------------------------------------------------------------------------------------

def read_config(path: Path) -> ModelConfig:
    """Read config.json. Raises ValueError if it is missing or of an architecture that model.py lacks."""
    try:
        raw = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} has no config.json: --base wants a Hugging Face model directory") from None
    except ValueError as e:
        raise ValueError(f"{path / 'config.json'} is not valid JSON ({e}): fetch the model again") from None
    rope = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    rope["rope_type"] = rope.get("rope_type", rope.pop("type", "default"))
    if odd := unsupported(raw, rope):
        raise ValueError(f"{path}: unsupported architecture ({', '.join(odd)}); "
                         f"supported: {', '.join(ARCHITECTURES)}, rope {', '.join(ROPES)}")
    fixed, silent = ARCHITECTURES[raw["model_type"]]
    full = SILENT | silent | {key: value for key, value in raw.items() if value is not None} | fixed
    full.setdefault("num_key_value_heads", full.get("num_attention_heads"))
    full.setdefault("output_bias", full["attention_bias"])
    needed = [f.name for f in fields(ModelConfig) if f.default is f.default_factory is MISSING]
    if missing := [name for name in needed if name not in full]:
        raise ValueError(f"{path / 'config.json'} lacks {', '.join(missing)}: is it a whole model's?")
    full["rope_theta"] = rope.pop("rope_theta", full.get("rope_theta", ModelConfig.rope_theta))
    full["rope_parameters"] = {"original_max_position_embeddings": full["max_position_embeddings"], **rope}
    if full["use_sliding_window"]:              # no row is to be longer: within the window all keys are seen
        window = raw.get("sliding_window", 4096)
        full["max_position_embeddings"] = min(full["max_position_embeddings"], window or 10 ** 9)
    return ModelConfig(**{f.name: full[f.name] for f in fields(ModelConfig) if f.name in full})


def unsupported(raw: dict, rope: dict) -> list[str]:
    """What in a config.json and its rope parameters model.py does not compute, in words."""
    kind = rope["rope_type"]
    layers = set(raw.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    part = rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1
    cases = [(raw.get("model_type") not in ARCHITECTURES, f"model_type {raw.get('model_type')!r}"),
             (raw.get("hidden_act", "silu") != "silu", f"activation {raw.get('hidden_act')}"),
             (layers, f"layers of type {', '.join(sorted(layers))}"),
             (raw.get("quantization_config"), "quantized weights"),
             (kind not in ROPES, f"rope {kind}"),
             (part != 1, "rope on a part of each head"),
             (any(isinstance(v, dict) for v in rope.values()), "rope by layer type")]
    cases += [(not rope.get(key), f"rope {kind} without {key}") for key in ROPES.get(kind, ())]
    return [text for wrong, text in cases if wrong]


def resolve(name: str, weights: bool = True) -> Path:
    """The directory of a model directory or hub id (HF_HOME, HF_HUB_OFFLINE are honoured), or ValueError.
    weights: a hub's gigabytes too."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    wanted = ["*.json", "*.txt", "*.jinja", "*.jsonl"] + ["*.safetensors"] * weights
    try:
        if path.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise OSError("no hub id")
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as e:      # the hub raises many types; all mean the same to the user
        raise ValueError(f"--base {name}: no such directory, and no model of the hub that can be had "
                         f"({type(e).__name__}): give a directory or id like Qwen/Qwen2.5-Coder-7B") from None


def shards(path: Path) -> list[Path]:
    """The safetensors files of a model directory. Raises ValueError if there are none, or one is missing."""
    index, files = path / "model.safetensors.index.json", sorted(path.glob("*.safetensors"))
    if index.exists():
        files = sorted({path / name for name in json.loads(index.read_text())["weight_map"].values()})
    missing = [f.name for f in files if not f.exists()]
    if missing or not files:
        raise ValueError(f"{path} has no {', '.join(missing) or '*.safetensors file'}: finish the download "
                         "(pickled .bin weights are not loaded)")
    return files


def load_model(path: Path, dtype: torch.dtype, device="cpu", int8: bool = False) -> Model:
    """Build on the meta device, stream each shard, assign strictly, freeze. Raises ValueError where files are
    damaged or do not belong together. dtype: what it computes in; int8: the weights of its linear layers."""
    cfg = read_config(path)
    with torch.device("meta"):
        model = Model(cfg).requires_grad_(False)
    want, state, layers = dict(model.named_parameters()), {}, model.linears() if int8 else {}
    for file in shards(path):
        try:
            with safe_open(file, framework="pt", device=str(device)) as f:
                for name in f.keys():
                    if name.endswith("rotary_emb.inv_freq") or cfg.tie_word_embeddings and name == HEAD:
                        continue
                    if name not in want or f.get_slice(name).get_shape() != list(want[name].shape):
                        raise ValueError(f"{file}: {name} has no place of its shape in config.json: weights "
                                         "and config do not belong together")
                    linear = name.removesuffix(".weight")
                    if linear == name or linear not in layers:
                        state[name] = f.get_tensor(name).to(dtype)
                        continue
                    state[name], scale = quantize(f.get_tensor(name), dtype)
                    if not scale.isfinite().all():
                        raise ValueError(f"{file}: {name} holds numbers that are not finite: fetch it again")
                    state[f"{linear}.scale"] = layers[linear].scale = nn.Parameter(scale, requires_grad=False)
        except (SafetensorError, OSError) as e:
            raise ValueError(f"{file} is truncated or damaged ({e}): fetch it again") from None
    if missing := sorted(set(want) - set(state)):
        raise ValueError(f"{path}: {len(missing)} tensors are missing, the first is {missing[0]}: a shard is "
                         "absent or belongs to another model")
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def end_tokens(path: Path, tokenizer) -> tuple[int, ...]:
    """Every id that ends an answer, from config.json, generation_config.json and the tokenizer together."""
    ids = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        if (path / name).exists():
            eos = json.loads((path / name).read_text()).get("eos_token_id")
            ids |= set(eos) if isinstance(eos, list) else {eos}
    return tuple(sorted(ids - {None}))


def is_chat_model(tokenizer, eos_ids: tuple[int, ...]) -> bool:
    """Whether the chat template ends an answer with a token that ends the model's answers: base models may
    carry the template of their family (those of Qwen2.5 do) without being trained in it."""
    if not tokenizer.chat_template:
        return False
    talk = [dict(role="user", content="question"), dict(role="assistant", content="answer")]
    try:
        end = tokenizer.apply_chat_template(talk, tokenize=False).rpartition("answer")[2]
    except Exception:           # a template raises what it likes; one that fails here cannot be talked in
        return False
    return any(token in end for token in tokenizer.convert_ids_to_tokens(list(eos_ids)))


def load_tokenizer(path: Path):
    """The directory's tokenizer through transformers, and the prompt format that model and tokenizer want."""
    if not any((path / name).exists() for name in ("tokenizer.json", "vocab.json", "tokenizer.model")):
        # transformers would make up an empty one
        raise ValueError(f"{path} has no tokenizer: tokenizer.json is needed (--plan does without one where "
                         "--prompt-format is given)")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    # transformers 5 picks a class by architecture, which may split text otherwise than tokenizer.json does
    kind = PreTrainedTokenizerFast if (path / "tokenizer.json").exists() else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(path)
    except Exception as e:      # transformers raises many types here; all mean the same to the user
        raise ValueError(f"{path} has no usable tokenizer ({type(e).__name__}): "
                         "tokenizer.json and tokenizer_config.json are needed") from None
    prompt_format = json.loads((path / "config.json").read_text()).get("prompt_format")
    if not prompt_format:
        prompt_format = "chat" if is_chat_model(tokenizer, end_tokens(path, tokenizer)) else "base"
    return tokenizer, prompt_format


@lru_cache(maxsize=2)
def closing_table(tokenizer, tag: str, vocab_size: int, device) -> torch.Tensor | None:
    """By which tokens a text comes to contain `tag`, in whatever tokens it is written.

    table[k, token]: a text ends in the first k characters of the tag; after the token it ends in so many.
    k = len(tag) is never left. Shape (len(tag) + 1, vocab_size), uint8; None without a tag, which must be of
    printable ASCII without spaces: only those are written in a vocabulary as they are.
    """
    if not tag:
        return None

    def n_matched(text: str) -> int:
        return len(tag) if tag in text else max(k for k in range(len(tag)) if text.endswith(tag[:k]))

    table = torch.zeros(len(tag) + 1, vocab_size, dtype=torch.uint8)
    for text, token in tokenizer.get_vocab().items():
        takes_part = text in tag or tag[0] in text or tag[-1] in text       # few do
        if takes_part and token < vocab_size:
            column = [n_matched(tag[:k] + text) for k in range(len(tag))]
            table[:-1, token] = torch.tensor(column, dtype=torch.uint8)
    table[-1] = len(tag)
    return table.to(device)


def load_base(name: str, dtype: torch.dtype = torch.float32, device="cpu", int8: bool = False) -> Base:
    """Model (see load_model), tokenizer, end tokens and prompt format of a directory or hub id. Raises
    ValueError."""
    path = resolve(name)
    read_config(path)                  # complain about the architecture before anything slow
    tokenizer, prompt_format = load_tokenizer(path)
    eos_ids = end_tokens(path, tokenizer)
    if not eos_ids:
        raise ValueError(f"{path}: no end token in config.json, generation_config.json or the tokenizer; "
                         "add eos_token_id")
    model = load_model(path, dtype, device, int8).fuse()
    return Base(model, tokenizer, eos_ids, prompt_format, path, graphs=model.embedding.is_cuda)


def files_hash(path: Path) -> str:
    """SHA-256 over a base's weights files, which says what members were trained on, at whatever precision."""
    digest = hashlib.sha256()
    for file in shards(path):
        digest.update(np.memmap(file, mode="r"))
    return digest.hexdigest()


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over every parameter's name and bytes: proves that training left the base unchanged."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(name.encode())
        digest.update(p.detach().contiguous().cpu().view(torch.uint8).numpy())
    return digest.hexdigest()


# --- a member -----------------------------------------------------------------------------------------------

def save_peft(adapters: Adapters, p: int, directory: Path, base_name: str, base_hash: str = "") -> None:
    """Write member p as a PEFT directory: adapter_config.json and adapter_model.safetensors, float32."""
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=base_name, r=adapters.rank,
                  lora_alpha=adapters.alpha, lora_dropout=0.0, bias="none", fan_in_fan_out=False,
                  inference_mode=True, target_modules=sorted({path.rsplit(".")[-1] for path in adapters.A}))
    write_peft(directory, adapters.factors(p), config, base_hash)


def write_peft(directory: Path, factors: Factors, config: dict, base_hash: str) -> None:
    """Write an adapter_config.json and these factors."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, (A, B) in factors.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = A.cpu().contiguous()
        tensors[f"base_model.model.{path}.lora_B.weight"] = B.cpu().contiguous()
    # a single entry: the library leaves the order of several to chance, and files of equal content are equal
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"base_files": base_hash})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))


def read_peft(directory: Path) -> tuple[dict, str, Factors]:
    """A PEFT directory's configuration, the hash of its base ("" where nobody wrote it down) and factors, in
    float32 and in the order of their files. Raises ValueError where it is damaged or no plain LoRA."""
    try:
        config = dict(json.loads((directory / "adapter_config.json").read_text()))
        with safe_open(directory / "adapter_model.safetensors", framework="pt") as f:
            made_on = (f.metadata() or {}).get("base_files", "")
            tensors = {}
            for name in f.keys():
                tensors[name.removeprefix("base_model.model.")] = f.get_tensor(name).float()
    except (OSError, SafetensorError, ValueError, TypeError) as e:
        raise ValueError(f"{directory} is not a readable PEFT adapter ({e})") from None
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("use_rslora"):
        raise ValueError(f"{directory}: only plain LoRA adapters can be members (no DoRA, no rsLoRA)")
    factors = {}
    for name, A in tensors.items():
        if name.endswith(".lora_A.weight"):
            path = name.removesuffix(".lora_A.weight")
            if f"{path}.lora_B.weight" not in tensors:
                raise ValueError(f"{directory}: {path} has an A factor but no B: the file is incomplete")
            factors[path] = (A, tensors[f"{path}.lora_B.weight"])
            if not all(factor.isfinite().all() for factor in factors[path]):
                raise ValueError(f"{directory}: {path} holds numbers that are not finite")
    return config, made_on, factors


def load_peft(adapters: Adapters, p: int, directory: str | os.PathLike, base_hash: str = "") -> None:
    """Read a PEFT directory into member p. Raises ValueError if it is damaged or does not fit the others."""
    config, made_on, factors = read_peft(Path(directory))
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if (rank, alpha) != (adapters.rank, adapters.alpha):
        raise ValueError(f"{directory} has rank {rank} and alpha {alpha}, this population {adapters.rank} "
                         f"and {adapters.alpha}: pass --rank {rank} --alpha {alpha}")
    if made_on and base_hash and made_on != base_hash:
        raise ValueError(f"{directory} was trained on another base, {config.get('base_model_name_or_path')}: "
                         "pass that as --base")
    adapters.set_factors(p, factors)


# --- --check ------------------------------------------------------------------------------------------------

@torch.inference_mode()
def check(name: str, n_new: int = 64, text: str = "def fibonacci(n):\n") -> dict:
    """Compare with transformers in float32: largest logit difference on a prompt, and n_new greedy tokens."""
    from transformers import AutoModelForCausalLM
    base = load_base(name)
    reference = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32).eval()
    prompt = torch.tensor([base.tokenizer(text)["input_ids"]])
    ours = base.model.logits(base.model(prompt))
    theirs = reference(prompt).logits
    cache = KVCache(base.model.cfg, 1, prompt.shape[1] + n_new, torch.float32, "cpu")
    ids, mine = prompt, []
    for _ in range(n_new):
        ids = base.model.logits(base.model(ids, cache=cache)[:, -1:]).argmax(-1)
        mine.append(ids.item())
        if mine[-1] in base.eos_ids:
            break
    out = reference.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_new,
                             do_sample=False, eos_token_id=list(base.eos_ids), repetition_penalty=1.0)
    want = out[0, prompt.shape[1]:].tolist()
    return dict(base=str(name), max_abs_diff=(ours - theirs).abs().max().item(), greedy_same=mine == want,
                tokens=sum(a == b for a, b in zip(mine, want)), of=len(want),
                text=base.tokenizer.decode(mine))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", required=True, help="model directory or hub id")
    try:
        result = check(parser.parse_args().check)
    except ValueError as e:
        print(f"weights: {e}", file=sys.stderr)
        sys.exit(2)
    print(result.pop("text"))
    print(json.dumps(result))
    sys.exit(0 if result["greedy_same"] and result["max_abs_diff"] < 1e-3 else 1)
