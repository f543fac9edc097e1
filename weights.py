"""Weights on the disk: a base in Hugging Face's files, members in PEFT's.

    python weights.py DIR        does the base load right? compares it with transformers

transformers reads config.json and knows what it leaves out; an architecture is a line of ARCHITECTURES.
"""
import hashlib
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from common import demand, leave, parser_of
from lora import TARGETS, Adapters, Factors, name_of
from model import Base, Model, ModelConfig

# model_type -> fields of model.ModelConfig that its config.json does not have
ARCHITECTURES = {
    "qwen2": dict(attention_bias=True, output_bias=False, mlp_bias=False),
    "qwen3": dict(mlp_bias=False, qk_norm=True),
    "llama": {},
    "mistral": dict(attention_bias=False, output_bias=False, mlp_bias=False),
}
# What model.py computes: legal values of config.json
SUPPORTED = dict(
    model_type=ARCHITECTURES,
    hidden_act=("silu",),
    rope_type=(None, "default", "linear", "llama3"),
    partial_rotary_factor=(1, None),
    quantization_config=(None,))
# What a plain LoRA's adapter_config.json may say; whatever else it says must be empty or false, for PEFT would
# compute something else (DoRA, rsLoRA, PiSSA, trained biases ...)
PLAIN = dict(peft_type=("LORA",), init_lora_weights=(True, "gaussian"), bias=("none",),
             qalora_group_size=(16,), megatron_core=("megatron.core",))
ANY = frozenset("task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r lora_alpha "
                "lora_dropout target_modules exclude_modules layers_to_transform layers_pattern".split())


def read_config(path: Path) -> ModelConfig:
    """Read config.json. Raises UserError for an architecture that model.py lacks."""
    from transformers import AutoConfig
    config = AutoConfig.from_pretrained(path, trust_remote_code=False).to_dict()
    rope = config.get("rope_parameters") or {}
    for name, legal in SUPPORTED.items():
        value = rope.get(name, config.get(name))
        demand(value in legal, f"{path}: unsupported architecture ({name} {value!r:.60}); supported: "
               f"{', '.join(map(str, legal))}")
    context = config["max_position_embeddings"]
    full = dict(output_bias=config.get("attention_bias")) | config      # Llama has one flag for both
    full |= ARCHITECTURES[config["model_type"]]
    full["rope_parameters"] = {"original_max_position_embeddings": context} | rope
    full["rope_theta"] = rope["rope_theta"]
    # no row is to be longer: within the window all keys are seen
    full["max_position_embeddings"] = min(context, config.get("sliding_window") or context)
    return ModelConfig(**{f.name: full[f.name] for f in fields(ModelConfig) if f.name in full})


def resolve(name: str) -> Path:
    """Directory of a model directory or hub id (HF_HOME is honoured)."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    return Path(snapshot_download(name, allow_patterns=["*.json", "*.txt", "*.jinja", "*.safetensors"]))


def shards(path: Path) -> list[Path]:
    """The safetensors files of a model directory: one whole file, else those of its index."""
    index = path / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.exists() and not (path / "model.safetensors").exists():
        names = set(json.loads(index.read_text())["weight_map"].values())
    files = [path / name for name in sorted(names)]
    missing = [file.name for file in files if not file.exists()]
    demand(not missing, f"{path} has no {', '.join(missing)}: finish the download")
    return files


def load_model(path: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> Model:
    """Read the files, build on the meta device, assign strictly, freeze. Raises UserError for a weight that is
    not finite: the model would answer nothing, and no member would learn."""
    cfg = read_config(path)
    state = {}
    for file in shards(path):
        with safe_open(file, framework="pt", device=str(device)) as f:
            for name in f.keys():
                if not name.endswith("rotary_emb.inv_freq"):            # written by old versions
                    state[name] = f.get_tensor(name).to(dtype)
                    finite = torch.stack(state[name].aminmax()).isfinite().all()
                    demand(finite, f"{file}: {name} holds numbers that are not finite: fetch it again")
    if cfg.tie_word_embeddings and "lm_head.weight" in state:
        head = state.pop("lm_head.weight")
        if not torch.equal(head, state.setdefault("model.embed_tokens.weight", head)):
            state["lm_head.weight"], cfg = head, replace(cfg, tie_word_embeddings=False)    # as transformers 5
    with torch.device("meta"):
        model = Model(cfg).requires_grad_(False)
    model.load_state_dict(state, assign=True)
    return model.eval().fuse()


# Here and in model.Base a tokenizer is `object`: transformers takes a second to import, and says its type.

def end_tokens(path: Path, tokenizer: object) -> tuple[int, ...]:
    """Every id that ends an answer, from config.json, generation_config.json and the tokenizer together."""
    ids = {tokenizer.eos_token_id}
    for file in (path / "config.json", path / "generation_config.json"):
        if file.exists():
            eos = json.loads(file.read_text()).get("eos_token_id")
            ids.update(eos if isinstance(eos, list) else [eos])
    return tuple(sorted(ids - {None}))


def is_chat_model(tokenizer: object, eos_ids: tuple[int, ...]) -> bool:
    """Whether the chat template ends an answer with a token that ends the model's answers: base models may
    carry the template of their family (those of Qwen2.5 do) without being trained in it."""
    if not tokenizer.chat_template:
        return False
    turns = [dict(role="user", content="question"), dict(role="assistant", content="answer")]
    end = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("answer")[2]
    return any(token in end for token in tokenizer.convert_ids_to_tokens(list(eos_ids)))


def load_tokenizer(path: Path) -> tuple[object, str]:
    """The directory's tokenizer, and the prompt format that model and tokenizer want."""
    from transformers import PreTrainedTokenizerFast  # an architecture's own class may split text otherwise
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path, tokenizer_file=str(path / "tokenizer.json"))
    prompt_format = "chat" if is_chat_model(tokenizer, end_tokens(path, tokenizer)) else "base"
    config = json.loads((path / "config.json").read_text())
    return tokenizer, config.get("prompt_format", prompt_format)        # the bundled base says its own


def load_base(name: str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Base:
    """Everything about the base of a directory or hub id."""
    path = resolve(name)
    model = load_model(path, dtype, device)
    tokenizer, prompt_format = load_tokenizer(path)
    demand(len(tokenizer) <= model.cfg.vocab_size or max(tokenizer.get_vocab().values()) < model.cfg.vocab_size,
           f"{path}: the tokenizer has tokens beyond the embedding: take the model's own tokenizer")
    return Base(model, tokenizer, end_tokens(path, tokenizer), prompt_format, path, graphs=model.embedding.is_cuda)


def files_hash(path: Path) -> str:
    """SHA-256 over a base's weights files, which says what members were trained on."""
    digest = hashlib.sha256()
    for file in shards(path):
        digest.update(np.memmap(file, mode="r"))
    return digest.hexdigest()


# --- members ------------------------------------------------------------------------------------------------

def save_peft(adapters: Adapters, p: int, directory: Path, base_name: str | None, base_hash: str = "") -> None:
    """Write member p as a PEFT directory, in float32."""
    config = dict(
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        lora_dropout=0.0,
        bias="none",
        inference_mode=True,
        target_modules=sorted(set(map(name_of, adapters.A))))
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, (A, B) in adapters.factors(p).items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = A.cpu()
        tensors[f"base_model.model.{path}.lora_B.weight"] = B.cpu()
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"base_files": base_hash})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))


def read_peft(directory: str | Path) -> tuple[dict, str, Factors]:
    """A PEFT directory's configuration, the hash of its base ("" where nobody wrote it down) and factors in
    float32. Raises UserError where it is no plain W + alpha / r B A on layers that members can cover."""
    directory = Path(directory)
    demand((directory / "adapter_config.json").exists(), f"{directory} is no PEFT adapter")
    config = json.loads((directory / "adapter_config.json").read_text())
    for name, value in config.items():
        plain = name in ANY or not value or value in PLAIN.get(name, ())
        demand(plain, f"{directory} is no plain LoRA: its {name} is {value!r:.60} (peft.save_as_lora makes it one)")
    pairs = {}
    with safe_open(directory / "adapter_model.safetensors", framework="pt") as f:
        made_on = (f.metadata() or {}).get("base_files", "")
        for name in f.keys():
            found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
            demand(found and name_of(found[1]) in TARGETS, f"{directory}: {name} is no factor that members have")
            pairs.setdefault(found[1], {})[found[2]] = f.get_tensor(name).float()
    return config, made_on, {path: (pair["A"], pair["B"]) for path, pair in pairs.items()}


def load_peft(adapters: Adapters, p: int, directory: str | Path, base_hash: str = "") -> None:
    """Read a PEFT directory into member p. Raises UserError where it does not fit."""
    config, made_on, factors = read_peft(directory)
    own, theirs = (adapters.rank, adapters.alpha), (config["r"], config["lora_alpha"])
    demand(own == theirs, f"{directory} has rank and alpha {theirs}, not {own}: give --rank and --alpha")
    demand(not (base_hash and made_on) or base_hash == made_on, f"{directory} was trained on another base")
    adapters.set_factors(p, factors)


@torch.inference_mode()
def check(name: str, n_new: int = 64) -> int:
    """Compares logits and greedy tokens with transformers in float32; 0 where they are the same."""
    from transformers import AutoModelForCausalLM
    base = load_base(name)
    reference = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32).eval()
    ids = torch.tensor([base.tokenizer("def fibonacci(n):\n").input_ids])
    for _ in range(n_new):
        logits = base.model.logits(base.model(ids))                     # (1, T, V)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    theirs = reference(ids[:, :-1]).logits
    off = (logits - theirs).abs().max().item()
    same = torch.equal(theirs[:, -n_new:].argmax(-1), ids[:, -n_new:])
    print(f"{base.path}: largest difference of a logit {off:.2g}; greedy tokens {'equal' if same else 'DIFFER'}\n"
          f"prompt format: {base.prompt_format}\n{base.tokenizer.decode(ids[0])}")
    return int(not same or off > 1e-3)


def main() -> int:
    """The command line."""
    parser = parser_of("weights.py", __doc__)
    parser.add_argument("base", metavar="DIR", help="model directory or hub id")
    return check(parser.parse_args().base)


if __name__ == "__main__":
    leave("weights.py", main)
