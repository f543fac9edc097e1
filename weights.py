"""Weights on the disk: a base in Hugging Face's files, members in PEFT's.

    python weights.py DIR        # does a base load right?

transformers reads config.json and knows what it leaves out. An architecture is a line of ARCHITECTURES.
"""
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from common import UserError, json_object, leave, parser_of, readable
from generate import Prompts, SamplingParams, generate
from lora import TARGETS, Adapters, Factors, name_of
from model import Base, Model, ModelConfig

BUNDLED = Path(__file__).resolve().parent / "micro" / "base"
SINGLE = "model.safetensors"            # a base in one file; a large one has an index of several
INDEX = "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TENSORS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"          # PEFT's files
# model_type -> fields of model.ModelConfig that its config.json does not have
ARCHITECTURES = {
    "qwen2": dict(attention_bias=True, output_bias=False, mlp_bias=False),
    "qwen3": dict(mlp_bias=False, qk_norm=True),
    "llama": {},
    "mistral": dict(attention_bias=False, output_bias=False, mlp_bias=False),
}
# What model.py computes: legal values in config.json, if it says anything
SUPPORTED = dict(
    model_type=ARCHITECTURES,
    hidden_act=("silu",),
    rope_type=("default", "linear", "llama3"),
    partial_rotary_factor=(1,),
    quantization_config=("weights that are not quantized, which --dtype int8 makes integers",))
# What adapter_config.json may say of a plain LoRA. The keys of ANY may have any value. Every other one must
# be empty or have a value of PLAIN, because PEFT would compute something else (DoRA, rsLoRA, PiSSA ...).
ANY = frozenset("task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r "
                "lora_alpha lora_dropout target_modules exclude_modules layers_to_transform layers_pattern "
                "fan_in_fan_out".split())
PLAIN = dict(
    peft_type=("LORA",),
    init_lora_weights=(True, "gaussian", "orthogonal"),
    bias=("none",),
    qalora_group_size=(16,),                            # as PEFT writes it of its own accord
    megatron_core=("megatron.core",))


# --- where a base is ----------------------------------------------------------------------------------------

def local_base(name: str) -> Path | None:
    """Returns the directory on this machine that a base's name means, or None for an id of the hub. The
    bundled base is found from every directory, and by the path that it had on another machine."""
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path.resolve()
    if path.parts[-2:] == BUNDLED.parts[-2:]:
        return BUNDLED
    return None


def resolve(name: str, weights: bool = True) -> Path:
    """Returns the directory of a base: one on this machine, or what the hub has under this id (HF_HOME is
    honoured). Of the hub's weights only the files that `shards` reads are fetched, or none of them."""
    path = local_base(name)
    if path:
        return path
    from huggingface_hub import snapshot_download
    small = ["*.json", "*.jsonl", "*.txt", "*.jinja"]
    with readable(f"{name}: no such directory, and no model of the hub that can be had: give a "
                  "directory or an id like Qwen/Qwen2.5-Coder-7B"):
        path = Path(snapshot_download(name, allow_patterns=small, ignore_patterns="*/*"))
        if weights:
            snapshot_download(name, allow_patterns=shard_names(path))
    return path


def shard_names(path: Path) -> list[str]:
    """Returns the names of a base's safetensors files. A single file wins over an index, as in
    transformers."""
    index = path / INDEX
    if (path / SINGLE).exists() or not index.exists():
        return [SINGLE]
    with readable(f"{index} is damaged: fetch it again"):
        files = json.loads(index.read_text())["weight_map"].values()
    return sorted(set(files))


def shards(path: Path) -> list[Path]:
    """Returns the safetensors files of a base. Raises UserError if one is missing."""
    files = [path / name for name in shard_names(path)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise UserError(f"{path} has no {', '.join(missing)}: finish the download (.bin files are not read)")
    return files


def files_hash(path: Path) -> str:
    """Returns the SHA-256 of a base's weights files, which says what members were trained on."""
    digest = hashlib.sha256()
    for file in shards(path):
        digest.update(np.memmap(file, mode="r"))
    return digest.hexdigest()


# --- the model ----------------------------------------------------------------------------------------------

def read_config(path: Path) -> ModelConfig:
    """Reads config.json. Raises UserError for what model.py does not compute."""
    from transformers import AutoConfig
    if (path / SETTINGS).exists():
        raise UserError(f"{path} holds an adapter beside the base's weights, which transformers would "
                        f"apply: merge it (PEFT's merge_and_unload), or move {SETTINGS} away")
    with readable(f"{path}/config.json is missing, damaged or of no known architecture: fetch it again"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False).to_dict()
    rope = config.get("rope_parameters") or {}
    for name, legal in SUPPORTED.items():
        value = rope.get(name, config.get(name))
        if not (value is None or value in legal):
            raise UserError(f"{path}: unsupported architecture ({name} {value!r:.60}); supported: "
                            f"{', '.join(map(str, legal))}")
    context = config["max_position_embeddings"]
    full = dict(output_bias=config.get("attention_bias"))       # Llama has one flag for both
    full |= config
    full |= ARCHITECTURES[config["model_type"]]
    full["rope_theta"] = rope["rope_theta"]
    original = "original_max_position_embeddings"
    length = config.get(original, rope.get(original, context))  # the one at the top level wins
    full["rope_parameters"] = rope | {original: length}
    # No row is to be longer than the window: within it all keys are seen.
    full["max_position_embeddings"] = min(context, config.get("sliding_window") or context)
    known = {f.name: full[f.name] for f in fields(ModelConfig) if f.name in full}
    return ModelConfig(**known)


def read_weights(path: Path, dtype: torch.dtype, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Returns a base's tensors by name. Raises UserError for a damaged file, and for a number that is not
    finite: such a base answers nothing, and no member would learn."""
    state = {}
    for file in shards(path):
        damaged = readable(f"{file} is truncated or damaged: fetch it again", (SafetensorError, OSError))
        with damaged, safe_open(file, framework="pt", device=str(device)) as f:
            for name in f.keys():
                if name.endswith("rotary_emb.inv_freq"):        # written by old versions, computed here
                    continue
                state[name] = f.get_tensor(name).to(dtype)
                ends = torch.stack(state[name].aminmax())
                if not ends.isfinite().all():
                    raise UserError(f"{file}: {name} holds numbers that are not finite")
    return state


def load_model(
    path: Path,
    dtype: torch.dtype,                         # what it computes in
    device: torch.device | str = "cpu",
    int8: bool = False,                         # the weights of its blocks
) -> Model:
    """Builds a base's model on the meta device, assigns the files' tensors strictly, and freezes it."""
    cfg = read_config(path)
    state = read_weights(path, dtype, device)
    # Where config.json says that the head is the embedding, but the files hold a head: as transformers 5.
    if cfg.tie_word_embeddings and HEAD in state:
        head = state.pop(HEAD)
        if not torch.equal(head, state.setdefault(EMBEDDING, head)):
            state[HEAD] = head
            cfg = replace(cfg, tie_word_embeddings=False)
    with torch.device("meta"):
        model = Model(cfg).requires_grad_(False)
    with readable(f"{path}: the weights and config.json do not belong together", RuntimeError):
        model.load_state_dict(state, assign=True)
    if int8:
        state.clear()                           # else no matrix is gone before all are integers
        model.quantize()
    return model.eval().fuse()


# --- the tokenizer ------------------------------------------------------------------------------------------

# Here and in model.Base a tokenizer is `object`: transformers takes a second to import, and says its type.

def end_tokens(path: Path, tokenizer: object) -> tuple[int, ...]:
    """Returns every id that ends an answer, from config.json, generation_config.json and the tokenizer
    together. As in transformers, a damaged generation_config.json says nothing, and -1 ends nothing."""
    found = [tokenizer.eos_token_id]
    for name in ("config.json", "generation_config.json"):
        with suppress(UserError, FileNotFoundError):
            ids = json_object((path / name).read_bytes()).get("eos_token_id")
            found += ids if isinstance(ids, list) else [ids]
    ids = set()
    for token in found:
        if token is None:
            continue
        if not isinstance(token, int):
            raise UserError(f"{path}: eos_token_id {token!r:.40} is no number")
        if token >= 0:
            ids.add(token)
    if not ids:
        raise UserError(f"{path}: no eos_token_id in config.json, generation_config.json or the tokenizer: "
                        "add it")
    return tuple(sorted(ids))


def is_chat_model(tokenizer: object, eos_ids: tuple[int, ...]) -> bool:
    """Returns whether the chat template ends an answer with a token that ends the model's answers. A base
    model may carry the template of its family (those of Qwen2.5 do) without being trained in it."""
    turns = [dict(role="user", content="question"), dict(role="assistant", content="answer")]
    end = ""
    with suppress(Exception):           # there is no template, or it is a program that fails
        end = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("answer")[2]
    words = tokenizer.convert_ids_to_tokens(list(eos_ids))      # None of an id that is no token
    return any(word and word in end for word in words)


def load_tokenizer(path: Path) -> tuple[object, tuple[int, ...], str]:
    """Returns a base's tokenizer, its end tokens and its prompt format."""
    from transformers import PreTrainedTokenizerFast  # an architecture's own class may split text otherwise
    with readable(f"{path} has no usable tokenizer.json: fetch it again"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, tokenizer_file=str(path / "tokenizer.json"))
    eos_ids = end_tokens(path, tokenizer)
    style = "chat" if is_chat_model(tokenizer, eos_ids) else "base"
    config = json_object((path / "config.json").read_bytes())
    return tokenizer, eos_ids, config.get("prompt_format", style)       # the bundled base says its own


def load_base(
    name: str,                                  # directory or hub id
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    int8: bool = False,
) -> Base:
    """Loads a base: model (see load_model), tokenizer, end tokens and prompt format."""
    path = resolve(name)
    model = load_model(path, dtype, device, int8)
    tokenizer, eos_ids, style = load_tokenizer(path)
    last = max(tokenizer.get_vocab().values())
    if last >= model.cfg.vocab_size:
        raise UserError(f"{path}: the tokenizer has a token {last} beyond the model's "
                        f"{model.cfg.vocab_size}: take the tokenizer that the model was trained with")
    return Base(model, tokenizer, eos_ids, style, path, graphs=model.embedding.is_cuda)


# --- members ------------------------------------------------------------------------------------------------

def save_peft(
    adapters: Adapters,
    p: int,                                     # the member's slot
    directory: Path,
    base_name: str,                             # directory or hub id; "" = nobody knows
    base_hash: str = "",
) -> None:
    """Writes a member as a PEFT directory, in float32. Each file is written beside its place and renamed, so
    that a kill leaves no half of one."""
    directory.mkdir(parents=True, exist_ok=True)
    # PEFT would look for a relative path on the hub.
    base_name = str(local_base(base_name) or base_name)
    tensors = {}
    for path, (A, B) in adapters.factors(p).items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = A.cpu()
        tensors[f"base_model.model.{path}.lora_B.weight"] = B.cpu()
    part = directory / f"{TENSORS}.part"
    save_file(tensors, part, metadata={"base_files": base_hash})
    part.replace(directory / TENSORS)

    alpha = int(adapters.alpha)                 # as PEFT writes it: some importers want an integer
    config = dict(
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
        r=adapters.rank,
        lora_alpha=alpha if alpha == adapters.alpha else adapters.alpha,
        lora_dropout=0.0,
        bias="none",
        inference_mode=True,
        target_modules=sorted(set(map(name_of, adapters.A))))
    part = directory / f"{SETTINGS}.part"
    part.write_text(json.dumps(config, indent=1))
    part.replace(directory / SETTINGS)


def read_peft(directory: str | Path) -> tuple[dict, str, Factors]:
    """Returns a PEFT directory's configuration, the hash of its base ("" if its maker did not write it down)
    and its factors in float32. Raises UserError unless it is a plain W + alpha / r B A on layers that members
    can cover."""
    directory = Path(directory)
    pairs = {}
    with readable(f"{directory} is no readable PEFT adapter"):
        config = json_object((directory / SETTINGS).read_bytes())
        rank, _ = config["r"], config["lora_alpha"]         # PEFT writes both
        with safe_open(directory / TENSORS, framework="pt") as f:
            made_on = (f.metadata() or {}).get("base_files", "")
            tensors = {name: f.get_tensor(name) for name in f.keys()}
    for name, value in config.items():
        plain = name in ANY or not value or value in PLAIN.get(name, ())
        if not plain:
            raise UserError(f"{directory} is no plain LoRA: its {name} is {value!r:.60} (peft.save_as_lora "
                            "helps)")
    for name, tensor in tensors.items():
        found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
        if not (found and name_of(found[1]) in TARGETS):
            raise UserError(f"{directory}: {name} is no factor of a plain LoRA on {', '.join(TARGETS)}: "
                            "train it without this tensor")
        pairs.setdefault(found[1], {})[found[2]] = tensor.float()
    factors = {}
    for path, pair in pairs.items():
        whole = len(pair) == 2 and len(pair["A"]) == rank
        if not whole:
            raise UserError(f"{directory}: {path} has not both factors of the rank in {SETTINGS}: save it "
                            "again")
        factors[path] = pair["A"], pair["B"]
    return config, made_on, factors


def load_peft(adapters: Adapters, p: int, directory: str | Path, base_hash: str = "") -> None:
    """Reads a PEFT directory into slot p. Raises UserError if it does not fit, or was trained on another base
    than that of this hash; an unknown hash ("") is not compared."""
    config, made_on, factors = read_peft(directory)
    own = adapters.rank, adapters.alpha
    theirs = config["r"], config["lora_alpha"]
    if own != theirs:
        raise UserError(f"{directory} has rank and alpha {theirs}, the others have {own}: only adapters of "
                        "one rank and alpha go together (in a run, those of --rank and --alpha)")
    same = base_hash == made_on or not base_hash or not made_on
    if not same:
        raise UserError(f"{directory} was trained on another base: {config.get('base_model_name_or_path')}")
    adapters.set_factors(p, factors)


# --- the command --------------------------------------------------------------------------------------------

@torch.inference_mode()
def compare(base: Base) -> tuple[float, int]:
    """Compares a base with transformers in float32, on a prompt and 64 greedy tokens behind it. Returns
    the largest difference of a logit, and how many of the tokens transformers would not have taken."""
    from transformers import AutoModelForCausalLM, logging
    logging.disable_progress_bar()
    reference = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32).eval()
    prompt = base.tokenizer("def fibonacci(n):\n", add_special_tokens=False).input_ids
    endless = replace(base, eos_ids=())         # a base that ends at once would leave nothing to compare
    ids = generate(endless, None, Prompts([prompt], [-1], [(0,)]), SamplingParams(1, 0.0, 64)).ids
    ours = base.model.logits(base.model(ids))                   # (1, T, V)
    theirs = reference(ids).logits
    likeliest = theirs[0, len(prompt) - 1:-1].argmax(-1)        # what stands before a token predicts it
    n_other = (likeliest != ids[0, len(prompt):]).sum()
    return (ours - theirs).abs().max().item(), int(n_other)


def main() -> int:
    """Returns exit code 0 if the base computes what transformers computes."""
    parser = parser_of("weights.py", __doc__)
    parser.add_argument("base", metavar="DIR", help="model directory or hub id")
    base = load_base(parser.parse_args().base)
    off, n_other = compare(base)
    print(f"{base.path}: the largest difference to a logit of transformers is {off:.2g}, and {n_other} of 64 "
          f"greedy tokens differ\nprompt format: {base.prompt_format}; ask it: python sample.py base "
          f"--base {base.path}")
    return int(n_other > 0 or off > 1e-3)


if __name__ == "__main__":
    leave("weights.py", main)
