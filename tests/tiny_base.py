"""Small random bases of every architecture."""
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
OTHERS = {
    "llama": dict(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3),
    "mistral": dict(head_dim=16),
    "qwen3": dict(head_dim=16, tie_word_embeddings=True),
}


SIZES = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, eos_token_id=1)


def write_tiny(directory: Path, kind: str, shard_size: str = "1GB", **changes):
    """A small random model of an architecture (61 tokens; 1 and 5 end a row), as transformers writes it, with a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
    torch.manual_seed(5)
    config = AutoConfig.for_model(kind, **SIZES | changes)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.normal_(mean=float("norm" in name), std=0.2)
    made.generation_config = GenerationConfig(eos_token_id=[1, 5])
    made.save_pretrained(directory, max_shard_size=shard_size)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1").save_pretrained(directory)
    return made


def make_tiny(directory: Path, kind: str):
    """The base that such a model is, with what sets the architecture apart from Qwen2."""
    from weights import load_base
    write_tiny(directory, kind, **OTHERS.get(kind, {}))
    return load_base(str(directory))


def edit_json(file: Path, **changes) -> None:
    """Change a file of JSON."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change(file: Path, edit) -> None:
    """Changes the tensors of a file."""
    state = load_file(file)
    edit(state)
    save_file({name: x.contiguous().clone() for name, x in state.items()}, file, metadata={"format": "pt"})


def cut(file: Path, keep: float) -> None:
    """Leave the beginning of a file."""
    data = file.read_bytes()
    file.write_bytes(data[:int(len(data) * keep)])
