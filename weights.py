"""Weights and settings on the disk: a base in Hugging Face's files, members in PEFT's.

    python -m weights --check Qwen/Qwen2.5-Coder-0.5B-Instruct     # against transformers
    python -m weights --check micro/base

transformers reads config.json and knows what it leaves out; an architecture is a line of ARCHITECTURES.
"""
import argparse
import hashlib
import json
import sys
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from config import demand
from infra.precision import quantize
from lora import Adapters, Factors
from model import Base, Model, ModelConfig

# model_type -> fields of model.ModelConfig that its config.json does not have
ARCHITECTURES = {"qwen2": dict(attention_bias=True, output_bias=False, mlp_bias=False),
                 "qwen3": dict(mlp_bias=False, qk_norm=True),
                 "llama": {},
                 "mistral": dict(attention_bias=False, output_bias=False, mlp_bias=False)}
# What model.py computes: legal values of config.json
SUPPORTED = dict(model_type=ARCHITECTURES, hidden_act=("silu",), rope_type=("default", "linear", "llama3"),
                 partial_rotary_factor=(1, None), quantization_config=(None,),
                 layer_types=(None, "full_attention", "sliding_attention"))


@contextmanager
def explained(sentence: str, errors: type | tuple = Exception):
    """Of the errors that a library raises within, many types that mean the same to a user, one sentence."""
    try:
        yield
    except errors as e:
        raise ValueError(f"{sentence} ({type(e).__name__}: {' '.join(str(e).split()):.300})") from None


def read_config(path: Path) -> ModelConfig:
    """Read config.json. Raises ValueError if it is damaged or of an architecture that model.py lacks."""
    from transformers import AutoConfig
    with explained(f"{path / 'config.json'} is missing, damaged or of no known architecture: give --base a "
                   "complete Hugging Face model directory"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False).to_dict()
    rope, context = config.get("rope_parameters") or {}, config.get("max_position_embeddings")
    for name, supported in SUPPORTED.items():
        values = rope.get(name, config.get(name))
        for value in values if isinstance(values, list) else [values]:
            demand(value in supported, f"{path}: unsupported architecture ({name} {value!r:.60}); supported: "
                   f"{', '.join(map(str, supported))}")
    full = dict(output_bias=config.get("attention_bias")) | config | ARCHITECTURES[config["model_type"]]
    full["rope_theta"] = rope["rope_theta"]
    full["rope_parameters"] = {"original_max_position_embeddings": context} | rope
    # no row is to be longer: within the window all keys are seen
    full["max_position_embeddings"] = min(context, config.get("sliding_window") or context)
    return ModelConfig(**{f.name: full[f.name] for f in fields(ModelConfig) if f.name in full})


def resolve(name: str, weights: bool = True) -> Path:
    """Directory of a model directory or hub id (HF_HOME is honoured). Raises ValueError."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    wanted = ["*.json", "*.txt", "*.jinja", "*.jsonl"] + ["*.safetensors"] * weights
    with explained(f"--base {name}: no such directory, and no model of the hub that can be had: give a "
                   "directory or id like Qwen/Qwen2.5-Coder-7B"):
        return Path(snapshot_download(name, allow_patterns=wanted))


def shards(path: Path) -> list[Path]:
    """The safetensors files of a model directory. Raises ValueError where one is missing."""
    index, names = path / "model.safetensors.index.json", {"model.safetensors"}
    if index.exists():
        with explained(f"{index} is damaged: fetch it again"):
            names = set(json.loads(index.read_text())["weight_map"].values())
    missing = sorted(name for name in names if not (path / name).exists())
    demand(not missing, f"{path} has no {', '.join(missing)}: finish the download (pickled .bin weights are "
           "not loaded)")
    return [path / name for name in sorted(names)]


def load_model(path: Path, dtype: torch.dtype, device="cpu", int8: bool = False) -> Model:
    """Build on the meta device, stream each shard, assign strictly, freeze. Raises ValueError where files are
    damaged or do not belong together. dtype: what it computes in; int8: the weights of its linear layers."""
    cfg = read_config(path)
    with torch.device("meta"):
        model = Model(cfg).requires_grad_(False)
    state, layers = {}, model.linears() if int8 else {}
    unused = ("rotary_emb.inv_freq",) + ("lm_head.weight",) * cfg.tie_word_embeddings
    for file in shards(path):
        with (explained(f"{file} is truncated or damaged: fetch it again", (SafetensorError, OSError)),
              safe_open(file, framework="pt", device=str(device)) as f):
            for name in f.keys():
                layer = layers.get(name.removesuffix(".weight"))
                if layer:
                    state[name], scale = quantize(f.get_tensor(name), dtype)
                    demand(scale.isfinite().all(), f"{file}: {name} holds numbers that are not finite")
                    layer.scale = state[f"{layer.path}.scale"] = nn.Parameter(scale, requires_grad=False)
                elif not name.endswith(unused):
                    state[name] = f.get_tensor(name).to(dtype)
    with explained(f"{path}: weights and config.json do not belong together", RuntimeError):
        model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def end_tokens(path: Path, tokenizer) -> tuple[int, ...]:
    """Every id that ends an answer, from config.json, generation_config.json and the tokenizer together."""
    ids = {tokenizer.eos_token_id}
    for file in {path / "config.json", path / "generation_config.json"} & set(path.iterdir()):
        eos = json.loads(file.read_text()).get("eos_token_id")
        ids |= set(eos) if isinstance(eos, list) else {eos}
    return tuple(sorted(ids - {None}))


def is_chat_model(tokenizer, eos_ids: tuple[int, ...]) -> bool:
    """Whether the chat template ends an answer with a token that ends the model's answers: base models may
    carry the template of their family (those of Qwen2.5 do) without being trained in it."""
    talk, end = [dict(role="user", content="question"), dict(role="assistant", content="answer")], ""
    with suppress(Exception):   # there is none, or it raises what it likes: it cannot be talked in
        end = tokenizer.apply_chat_template(talk, tokenize=False).rpartition("answer")[2]
    return any(token in end for token in tokenizer.convert_ids_to_tokens(list(eos_ids)))


def load_tokenizer(path: Path):
    """The directory's tokenizer, and the prompt format that model and tokenizer want. Raises ValueError."""
    from transformers import PreTrainedTokenizerFast  # an architecture's own class may split text otherwise
    with explained(f"{path} has no usable tokenizer.json: fetch the model again (--plan does without one "
                   "where --prompt-format is given)"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, tokenizer_file=str(path / "tokenizer.json"))
    usual = "chat" if is_chat_model(tokenizer, end_tokens(path, tokenizer)) else "base"
    return tokenizer, json.loads((path / "config.json").read_text()).get("prompt_format", usual)


def load_base(name: str, dtype: torch.dtype = torch.float32, device="cpu", int8: bool = False) -> Base:
    """Everything about the base of a directory or hub id; see load_model. Raises ValueError."""
    path = resolve(name)
    model = load_model(path, dtype, device, int8).fuse()
    tokenizer, prompt_format = load_tokenizer(path)
    eos_ids = end_tokens(path, tokenizer)
    demand(eos_ids, f"{path}: no end token in config.json, generation_config.json or the tokenizer; add "
           "eos_token_id")
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


def save_peft(adapters: Adapters, p: int, directory: Path, base_name: str, base_hash: str = "") -> None:
    """Write member p as a PEFT directory: adapter_config.json and adapter_model.safetensors, float32."""
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=base_name, r=adapters.rank,
                  lora_alpha=adapters.alpha, lora_dropout=0.0, bias="none", fan_in_fan_out=False,
                  inference_mode=True, target_modules=sorted({path.rsplit(".")[-1] for path in adapters.A}))
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"base_model.model.{path}.lora_{which}.weight": factor.cpu()
               for path, pair in adapters.factors(p).items() for which, factor in zip("AB", pair)}
    # a single entry: the library leaves the order of several to chance, and files of equal content are equal
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"base_files": base_hash})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))


def read_peft(directory: Path) -> tuple[dict, str, Factors]:
    """A PEFT directory's configuration, the hash of its base ("" where nobody wrote it down) and factors, in
    float32 and in the order of their files. Raises ValueError where it is damaged or no plain LoRA."""
    factors = {}
    with explained(f"{directory} is not a readable PEFT adapter"):
        config = dict(json.loads((directory / "adapter_config.json").read_text()))
        int(config["r"]), float(config["lora_alpha"])           # which raise where they are no numbers
        with safe_open(directory / "adapter_model.safetensors", framework="pt") as f:
            made_on = (f.metadata() or {}).get("base_files", "")
            for name in f.keys():
                path, is_A, _ = name.removeprefix("base_model.model.").partition(".lora_A.weight")
                demand(is_A or name.endswith(".lora_B.weight"), f"{name} is no factor of a plain LoRA")
                if is_A:
                    B = f.get_tensor(name.replace("lora_A", "lora_B"))
                    factors[path] = f.get_tensor(name).float(), B.float()
    others = filter(config.get, ("use_dora", "use_rslora", "alpha_pattern", "rank_pattern"))
    demand(config.get("peft_type") == "LORA" and not any(others),
           f"{directory}: only plain LoRA adapters can be members (no DoRA, no rsLoRA, one rank and alpha)")
    return config, made_on, factors


def load_peft(adapters: Adapters, p: int, directory: str | Path, base_hash: str = "",
              base_name: str = "") -> None:
    """Read a PEFT directory into member p. Raises ValueError if it is damaged or does not fit the others, or
    was trained on another base than that of this hash; by the name, if given, where a hash is not known."""
    config, made_on, factors = read_peft(Path(directory))
    rank, alpha, name = map(config.get, ("r", "lora_alpha", "base_model_name_or_path"))
    demand((rank, alpha) == (adapters.rank, adapters.alpha), f"{directory} has rank {rank} and alpha "
           f"{alpha}, not {adapters.rank} and {adapters.alpha}: its run takes --rank {rank} --alpha {alpha}")
    same = base_hash == made_on if base_hash and made_on else base_name in ("", name)
    demand(same, f"{directory} was trained on another base: a run on {name} takes it as --base")
    with explained(f"{directory} does not fit", ValueError):
        adapters.set_factors(p, factors)


@torch.inference_mode()
def check(name: str, n_new: int = 64, text: str = "def fibonacci(n):\n") -> dict:
    """Greedy tokens and the largest difference of a logit, compared with transformers in float32."""
    from transformers import AutoModelForCausalLM
    base = load_base(name)
    reference = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32).eval()
    prompt = torch.tensor([base.tokenizer(text)["input_ids"]])
    ids = reference.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_new,
                             do_sample=False, eos_token_id=list(base.eos_ids), repetition_penalty=1.0)
    ours = base.model.logits(base.model(ids))
    theirs = ids[0, prompt.shape[1]:]
    same = ours[0, prompt.shape[1] - 1:-1].argmax(-1) == theirs
    return dict(base=str(name), max_abs_diff=(ours - reference(ids).logits).abs().max().item(),
                tokens=int(same.sum()), of=len(same), text=base.tokenizer.decode(theirs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m weights")
    parser.add_argument("--check", metavar="DIR", required=True, help="model directory or hub id")
    try:
        result = check(parser.parse_args().check)
    except ValueError as e:
        parser.error(str(e))
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["tokens"] == result["of"] and result["max_abs_diff"] < 1e-3 else 1)
