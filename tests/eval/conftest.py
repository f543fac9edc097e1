"""A base that reads and writes bytes, and a run with two members on it, for the evaluations of any text."""
import json

import pytest
import torch

from lora import Adapters
from weights import files_hash, load_base, save_peft


@pytest.fixture(scope="session")
def bytes_base(tmp_path_factory):
    """Directory of a tiny random Qwen2 that reads and writes bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    directory = tmp_path_factory.mktemp("bytes")
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | {"<end>": 256}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(directory)
    torch.manual_seed(3)
    config = Qwen2Config(vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=256)
    made = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.normal_(mean=float("norm" in name), std=0.2)
    made.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def members(bytes_base, tmp_path_factory):
    """Two adapters that differ, as a run's checkpoint: out/step_3/{T0,S0}."""
    base, run = load_base(str(bytes_base)), tmp_path_factory.mktemp("out")
    adapters, gen = Adapters.on(base.model, 2, 4, 8), torch.Generator().manual_seed(0)
    for p, name in enumerate(("T0", "S0")):
        adapters.init_member(p, gen)
        with torch.no_grad():
            for B in adapters.B.values():
                B[p].normal_(0, 0.1, generator=gen)
        save_peft(adapters, p, run / "step_3" / name, str(bytes_base), files_hash(base.path))
    (run / "step_3" / "state.json").write_text("{}")
    (run / "config.json").write_text(json.dumps(dict(base=str(bytes_base))))
    return run
