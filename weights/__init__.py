"""Weights and settings on the disk: a base in Hugging Face's files, members in PEFT's.

`python -m weights --check DIR` (__main__.py) compares a base with transformers, and shows how it is read.
transformers reads config.json and knows what it leaves out; an architecture is a line of ARCHITECTURES.
"""
import hashlib
import json
import re
import sys
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from infra.errors import UserError, demand, explained
from infra.precision import quantize
from lora import TARGETS, Adapters, Factors, name_of
from model import Base, Model, ModelConfig, rope_frequencies

# Files of a base, and tensors in them
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
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
    rope_type=("default", "linear", "llama3"),
    partial_rotary_factor=(1, None),
    quantization_config=(None,),
    transformers_weights=(None,),                   # another file name for the weights
    layer_types=(None, "full_attention", "sliding_attention"),
)
# What a rope_type computes with, besides rope_theta
ROPE_NUMBERS = dict(linear=("factor",), llama3=("factor", "low_freq_factor", "high_freq_factor"))

# Keys of PEFT's adapter_config.json. ANY may hold any value: where an adapter comes from, how it was trained,
# and which layers it covers, which the names of its tensors say better (target_modules may be a pattern, a
# path, "all-linear"). Biases that were trained lie in the file, too, where they are refused.
ANY = frozenset("task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r "
                "lora_alpha lora_dropout target_modules exclude_modules layers_to_transform layers_pattern "
                "fan_in_fan_out bias ensure_weight_tying "
                "eva_config corda_config loftq_config lora_ga_config".split())
# Every other key, known here or not, must be empty or one of these: other ways to begin (pissa, olora, corda,
# loftq, lora_ga, mica) take something away from the base, which is then another. The last two are what PEFT
# writes where nobody asked for anything.
PLAIN = dict(
    peft_type=("LORA",),
    init_lora_weights=(True, "gaussian", "orthogonal", "eva"),
    qalora_group_size=(16,),
    megatron_core=("megatron.core",))
WAY_OUT = ("PEFT can make it plain: save_pretrained(DIR, path_initial_model_for_weight_conversion=BEFORE) "
           "after training from pissa, olora, corda or lora_ga, else peft.save_as_lora(DIR, model, RANK)")
# Of a member's README.md: what the Hugging Face hub reads, and what people do
CARD_HEAD = """library_name: peft
pipeline_tag: text-generation
tags:
- lora
- self-play
"""
CARD = """# A member of a population

A LoRA adapter (rank {rank}, alpha {alpha}) that was trained by self-play as one member of a population
([PopuLoRA](https://arxiv.org/abs/2605.16727)), with nanoPopuLoRA. Its base is `{base}`, which training leaves
unchanged (SHA-256 of its weights files: {files}).

```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("the directory of this file, or its id of the hub")
```
"""
NO_ID = """
The base above is no id of the hub. Where it has one, write `base_model: ID` into the head of this file, and
ID into `base_model_name_or_path` of adapter_config.json, before you upload them.
"""
LARGE = 1e30                # of a lora_alpha: float32 ends at 3e38


def read_config(path: Path) -> ModelConfig:
    """Read config.json. Raises UserError if it is damaged or of an architecture that model.py lacks."""
    from transformers import AutoConfig
    file = path / "config.json"
    with explained(f"{file} is missing, damaged or of no known architecture: give --base a complete "
                   "Hugging Face model directory"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False).to_dict()
    rope = config.get("rope_parameters") or {}
    context = config.get("max_position_embeddings")
    for name, supported in SUPPORTED.items():
        values = rope.get(name, config.get(name))
        for value in values if isinstance(values, list) else [values]:
            demand(value in supported, f"{path}: unsupported architecture ({name} {value!r:.60}); supported: "
                   f"{', '.join(map(str, supported))}")
    known = {f.name for f in fields(ModelConfig)}
    odd = ARCHITECTURES[config["model_type"]].keys() - known
    assert not odd, f"ARCHITECTURES of weights/__init__.py: model.ModelConfig has no field {', '.join(odd)}"
    full = dict(output_bias=config.get("attention_bias"))       # Llama has one flag for both
    full |= config
    full |= ARCHITECTURES[config["model_type"]]
    full["rope_parameters"] = {"original_max_position_embeddings": context} | rope
    window = config.get("sliding_window")
    # transformers takes whatever stands there, null too, and raises when the first token is computed
    impossible = (f"{file}: positions cannot be computed with {rope} and sliding_window {window!r}: correct "
                  "these, or fetch the file again")
    needed = [rope.get(name) for name in ("rope_theta", *ROPE_NUMBERS.get(rope.get("rope_type"), ()))]
    for number in (context, window or context, *needed):
        demand(type(number) in (int, float) and number > 0, impossible)
    full["rope_theta"] = rope["rope_theta"]
    # no row is to be longer: within the window all keys are seen
    full["max_position_embeddings"] = min(context, window or context)
    cfg = ModelConfig(**{name: full[name] for name in known & full.keys()})
    demand(rope_frequencies(cfg, "cpu").isfinite().all(), impossible)
    return cfg


def resolve(name: str, weights: bool = True) -> Path:
    """Directory of a model directory or hub id (HF_HOME is honoured). Raises UserError."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    wanted = ["*.json", "*.txt", "*.jinja", "*.jsonl"] + ["*.safetensors"] * weights
    with explained(f"--base {name}: no such directory, and no model of the hub that can be had: give a "
                   "directory or id like Qwen/Qwen2.5-Coder-7B"):
        return Path(snapshot_download(name, allow_patterns=wanted))


def shards(path: Path) -> list[Path]:
    """The safetensors files of a model directory: a single file wins over an index of shards, as in
    transformers. Raises UserError where one is missing."""
    index = path / INDEX
    names = {SINGLE}
    if index.exists() and not (path / SINGLE).exists():
        with explained(f"{index} is damaged: fetch it again"):
            names = set(json.loads(index.read_text())["weight_map"].values())
    missing = sorted(name for name in names if not (path / name).exists())
    demand(not missing, f"{path} has no {', '.join(missing)}: finish the download (pickled .bin weights are "
           "not loaded)")
    return [path / name for name in sorted(names)]


def read_weights(path: Path, dtype: torch.dtype, device: torch.device | str = "cpu",
                 int8: bool = False) -> dict[str, torch.Tensor]:
    """A base's tensors by name, read one after another. Raises UserError where a file is damaged."""
    if (path / INDEX).exists() and (path / SINGLE).exists():
        print(f"note: {path} holds {SINGLE} and an index of shards: {SINGLE} is read, as by transformers",
              file=sys.stderr)
    state = {}
    for file in shards(path):
        with (explained(f"{file} is truncated or damaged: fetch it again", (SafetensorError, OSError)),
              safe_open(file, framework="pt", device=str(device)) as f):
            for name in f.keys():
                if not name.endswith("rotary_emb.inv_freq"):    # written by old versions; computed here
                    # no name is bound to a tensor: in int8 a matrix is to be gone before the next is read
                    state |= converted(file, name, f.get_tensor(name), dtype, int8)
    return state


def converted(file: Path, name: str, tensor: torch.Tensor, dtype: torch.dtype,
              int8: bool) -> dict[str, torch.Tensor]:
    """A file's tensor as it is computed with; of a block's matrix in int8 q and its scale. Raises UserError
    where it holds NaN or infinity: the model would answer nothing, and no member would learn."""
    if int8 and name.startswith("model.layers.") and tensor.ndim == 2:
        q, checked = quantize(tensor, dtype)
        layer = name.removesuffix(".weight")
        parts = {name: q, f"{layer}.scale": checked}
    else:
        checked = tensor.to(dtype)
        parts = {name: checked}
    demand(is_finite(checked), f"{file}: {name} holds numbers that are not finite: fetch it again, or take "
           "an earlier checkpoint")
    return parts


def is_finite(x: torch.Tensor) -> bool:
    """Whether all numbers are finite: in one pass, by the smallest and the largest, which NaN would be."""
    return not x.numel() or bool(torch.stack(x.aminmax()).isfinite().all())


def settle_head(cfg: ModelConfig, state: dict[str, torch.Tensor], path: Path) -> ModelConfig:
    """Whether the output head is the embedding, where config.json says so but the files hold a head: as in
    transformers 5 an equal copy is dropped, a different one is kept, a head alone is the embedding, too.
    Changes the state; returns the configuration that is true of it."""
    if not cfg.tie_word_embeddings or HEAD not in state:
        return cfg
    head = state.pop(HEAD)
    if torch.equal(state.setdefault(EMBEDDING, head), head):
        return cfg
    print(f"note: {path}: config.json says tie_word_embeddings, but {HEAD} differs from {EMBEDDING}: each is "
          "used, as by transformers", file=sys.stderr)
    state[HEAD] = head
    return replace(cfg, tie_word_embeddings=False)


def load_model(path: Path, dtype: torch.dtype, device: torch.device | str = "cpu",
               int8: bool = False) -> Model:
    """Read the files, build on the meta device, assign strictly, freeze. Raises UserError where files are
    damaged or do not belong together. dtype: what it computes in; int8: the weights of its linear layers."""
    cfg = read_config(path)
    state = read_weights(path, dtype, device, int8)
    with torch.device("meta"):
        model = Model(settle_head(cfg, state, path)).requires_grad_(False)
    for layer in model.linears().values():
        if f"{layer.path}.scale" in state:
            layer.scale = nn.Parameter(state[f"{layer.path}.scale"], requires_grad=False)
    with explained(f"{path}: weights and config.json do not belong together", RuntimeError):
        model.load_state_dict(state, assign=True)
    return model.eval()


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
    question, answer = dict(role="user", content="question"), dict(role="assistant", content="answer")
    end = ""
    with suppress(Exception):   # there is none, or it raises what it likes: it cannot be talked in
        tokenizer.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
        end = tokenizer.apply_chat_template([question, answer], tokenize=False).rpartition("answer")[2]
    return any(token in end for token in tokenizer.convert_ids_to_tokens(list(eos_ids)))


def load_tokenizer(path: Path) -> tuple[object, str]:
    """The directory's tokenizer, and the prompt format that model and tokenizer want. Raises UserError."""
    from transformers import PreTrainedTokenizerFast  # an architecture's own class may split text otherwise
    with explained(f"{path} has no usable tokenizer.json: fetch the model again (--plan does without one "
                   "where --prompt-format is given)"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, tokenizer_file=str(path / "tokenizer.json"))
    prompt_format = "base"
    if is_chat_model(tokenizer, end_tokens(path, tokenizer)):
        prompt_format = "chat"
    config = json.loads((path / "config.json").read_text())
    return tokenizer, config.get("prompt_format", prompt_format)        # the bundled base says its own


def load_base(name: str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
              int8: bool = False) -> Base:
    """Everything about the base of a directory or hub id; see load_model. Raises UserError."""
    path = resolve(name)
    model = load_model(path, dtype, device, int8).fuse()
    tokenizer, prompt_format = load_tokenizer(path)
    last, number = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    demand(number < model.cfg.vocab_size, f"{path}: the tokenizer's token {number} ({last!r:.40}) is beyond "
           f"the model's {model.cfg.vocab_size}: take the tokenizer that the model was trained with, or "
           "enlarge the model by transformers' resize_token_embeddings")
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


def model_card(adapters: Adapters, base_name: str | None, base_hash: str) -> str:
    """The README.md of a member: by its head the Hugging Face hub knows the member for a LoRA of its base.

    The hub refuses a base_model that is no id of its own, so that a base of a directory gets no such line."""
    head = CARD_HEAD
    text = CARD.format(base=base_name, rank=adapters.rank, alpha=adapters.alpha, files=base_hash or "unknown")
    is_id = base_name and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base_name) and not Path(base_name).is_dir()
    if is_id:           # in quotes: without them YAML would read a name like 1e5 as a number
        head = f'base_model: "{base_name}"\n{CARD_HEAD}- "base_model:adapter:{base_name}"\n'
    else:
        text += NO_ID
    return f"---\n{head}---\n{text}"


def save_peft(adapters: Adapters, p: int, directory: Path, base_name: str, base_hash: str = "") -> None:
    """Write member p as a PEFT directory: adapter_config.json, adapter_model.safetensors in float32, and the
    model card README.md."""
    config = dict(
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=False,
        inference_mode=True,
        target_modules=sorted(set(map(name_of, adapters.A))))
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, (A, B) in adapters.factors(p).items():
        layer = f"base_model.model.{path}"
        tensors[f"{layer}.lora_A.weight"] = A.cpu()
        tensors[f"{layer}.lora_B.weight"] = B.cpu()
    # a single entry: the library leaves the order of several to chance, and files of equal content are equal
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"base_files": base_hash})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))
    (directory / "README.md").write_text(model_card(adapters, base_name, base_hash), encoding="utf-8")


def check_plain(directory: Path, config: dict) -> None:
    """Raises UserError where an adapter_config.json describes something else than W + alpha/r B A."""
    for name, value in config.items():
        known = name in ANY or not value or value in PLAIN.get(name, ())
        demand(known, f"{directory} is no plain LoRA, and nothing else can be a member: its {name} is "
               f"{value!r:.60}. {WAY_OUT}")
    demand(config.get("peft_type") == "LORA", f"{directory}: adapter_config.json lacks peft_type LORA")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    # by type, as true is an int for Python; NaN is not below anything
    demand(type(rank) is int and rank >= 1, f"{directory}: its rank r is {rank!r:.40}, not a whole number "
           "from 1 on: correct adapter_config.json")
    demand(type(alpha) in (int, float) and abs(alpha) < LARGE, f"{directory}: its lora_alpha is "
           f"{alpha!r:.40}, not a finite number: correct adapter_config.json")


def read_factors(directory: Path, tensors: dict[str, torch.Tensor], rank: int) -> Factors:
    """A PEFT file's tensors as factors by layer, in float32. Raises UserError where one is no factor, is of
    another shape than A (rank, in) or B (out, rank), or lacks the other."""
    pairs = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
        demand(found, f"{directory}: {name} is no factor of a plain LoRA as PEFT names it "
               "(base_model.model.LAYER.lora_A.weight): train or save it without this tensor")
        path, which = found.groups()
        demand(name_of(path) in TARGETS, f"{directory} covers {path}, but members can cover only "
               f"{', '.join(TARGETS)}: train it again with target_modules of these")
        size = tensor.shape["AB".index(which)] if tensor.ndim == 2 else 0
        demand(size == rank and tensor.is_floating_point(), f"{directory}: {name} {tuple(tensor.shape)} is "
               f"no factor of rank {rank}, which adapter_config.json says: save it again")
        pairs.setdefault(path, {})[which] = tensor.float()
    demand(pairs, f"{directory}: adapter_model.safetensors holds no factors: save it again")
    for path, pair in pairs.items():
        demand(len(pair) == 2, f"{directory}: {path} has lora_{min(pair)} without its partner: save it again")
    return {path: (pair["A"], pair["B"]) for path, pair in pairs.items()}


def read_peft(directory: Path) -> tuple[dict, str, Factors]:
    """A PEFT directory's configuration, the hash of its base ("" where nobody wrote it down) and factors, in
    the order of their file. Raises UserError where it is damaged or no plain LoRA."""
    with explained(f"{directory} is not a readable PEFT adapter"):
        config = dict(json.loads((directory / "adapter_config.json").read_text()))
        with safe_open(directory / "adapter_model.safetensors", framework="pt") as f:
            made_on = (f.metadata() or {}).get("base_files", "")
            tensors = {name: f.get_tensor(name) for name in f.keys()}
    check_plain(directory, config)
    return config, made_on, read_factors(directory, tensors, config["r"])


def load_peft(adapters: Adapters, p: int, directory: str | Path, base_hash: str = "",
              base_name: str = "") -> None:
    """Read a PEFT directory into member p. Raises UserError if it is damaged or does not fit the others, or
    was trained on another base than that of this hash; by the name, if given, where a hash is not known."""
    config, made_on, factors = read_peft(Path(directory))
    rank, alpha, name = map(config.get, ("r", "lora_alpha", "base_model_name_or_path"))
    demand((rank, alpha) == (adapters.rank, adapters.alpha), f"{directory} has rank {rank} and alpha "
           f"{alpha}, not {adapters.rank} and {adapters.alpha}: its run takes --rank {rank} --alpha {alpha}")
    same = base_hash == made_on if base_hash and made_on else base_name in ("", name)
    demand(same, f"{directory} was trained on another base: a run on {name} takes it as --base")
    with explained(f"{directory} does not fit", UserError):
        adapters.set_factors(p, factors)
