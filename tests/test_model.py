"""The base: logits equal transformers', and every broken model directory is refused with one clear sentence."""
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import model
from model import Config, KVCache, load_base, load_model

SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=128, eos_token_id=1)
SHAPES = {
    "tied": {},
    "untied": dict(tie_word_embeddings=False),
    "one kv head": dict(num_key_value_heads=1, tie_word_embeddings=False),
    "as many kv heads as heads": dict(num_key_value_heads=4),
    "seven heads a group, rope 1e6": dict(hidden_size=112, num_attention_heads=14, rope_theta=1e6, rms_norm_eps=1e-5),
}


def make_reference(directory: Path, shard_size: str = "1GB", **changes) -> Qwen2ForCausalLM:
    """Save a random Qwen2 as transformers writes it, biases and norms away from their initial 0 and 1."""
    torch.manual_seed(7)
    reference = Qwen2ForCausalLM(Qwen2Config(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for name, p in reference.named_parameters():
            p.normal_(mean=float("norm" in name), std=0.3)
    reference.save_pretrained(directory, max_shard_size=shard_size)
    return reference


def add_tokenizer(directory: Path) -> None:
    """A word-level tokenizer of the small vocabulary, in the files that AutoTokenizer reads."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(SMALL["vocab_size"])}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1").save_pretrained(directory)


@pytest.fixture
def small(tmp_path) -> Path:
    """A complete small model directory in one shard, with a tokenizer; tests then break it."""
    make_reference(tmp_path, tie_word_embeddings=False)
    add_tokenizer(tmp_path)
    return tmp_path


def edit_config(directory: Path, **changes) -> None:
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**raw, **changes}))


@torch.inference_mode()
def largest_difference(ours: model.Model, reference) -> float:
    ids = torch.randint(0, ours.cfg.vocab_size, (3, 17), generator=torch.Generator().manual_seed(1))
    return (ours.logits(ours(ids)) - reference(ids).logits).abs().max().item()


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_logits_equal_transformers(tmp_path, changes):
    reference = make_reference(tmp_path, **changes)
    assert largest_difference(load_model(tmp_path, torch.float32), reference) < 1e-4


def test_sharded_weights_give_the_same_logits(tmp_path):
    reference = make_reference(tmp_path, shard_size="20KB", tie_word_embeddings=False)
    assert len(model.shards(tmp_path)) > 2, "the case needs several shards"
    assert largest_difference(load_model(tmp_path, torch.float32), reference) < 1e-4


@torch.inference_mode()
def test_left_padded_rows_equal_transformers(tmp_path):
    """positions and mask are arguments: a row padded on the left scores like the row alone."""
    reference = make_reference(tmp_path)
    ours = load_model(tmp_path, torch.float32)
    ids = torch.randint(0, SMALL["vocab_size"], (1, 9), generator=torch.Generator().manual_seed(2))
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), ids), dim=1)
    real = torch.arange(13)[None] >= 4                                             # (1, 13)
    mask = real[:, None, None, :] & torch.ones(13, 13, dtype=torch.bool).tril()    # (1, 1, 13, 13)
    mask |= torch.eye(13, dtype=torch.bool)                                        # no row of all False: softmax of nothing
    positions = (torch.arange(13)[None] - 4).clamp(min=0)
    logits = ours.logits(ours(padded, positions=positions, mask=mask))[:, 4:]
    assert (logits - reference(ids).logits).abs().max() < 1e-4


@torch.inference_mode()
def test_cached_decoding_equals_one_pass(tmp_path):
    make_reference(tmp_path, num_key_value_heads=1)
    ours = load_model(tmp_path, torch.float32)
    ids = torch.randint(0, SMALL["vocab_size"], (2, 12), generator=torch.Generator().manual_seed(3))
    cache = KVCache.empty(ours.cfg, 2, 12, torch.float32, "cpu")
    parts = [ours(ids[:, :5], cache=cache)] + [ours(ids[:, t:t + 1], cache=cache) for t in range(5, 12)]
    assert cache.length == 12
    assert (torch.cat(parts, dim=1) - ours(ids)).abs().max() < 1e-5


def test_micro_base_equals_transformers(micro_base):
    reference = AutoModelForCausalLM.from_pretrained(micro_base, dtype=torch.float32).eval()
    base = load_base(str(micro_base))
    assert base.style == "micro"
    assert largest_difference(base.model, reference) < 1e-4
    result = model.check(str(micro_base))
    assert result["greedy_same"] and result["max_abs_diff"] < 1e-4, result


def test_base_is_frozen_and_knows_its_end_tokens(small):
    (small / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[5, 1])))
    edit_config(small, eos_token_id=9)
    base = load_base(str(small))
    assert base.eos_ids == (1, 5, 9), "config, generation config and tokenizer are read together"
    assert base.style == "base", "no chat template: the text envelope"
    assert not any(p.requires_grad for p in base.model.parameters())
    before = model.weights_hash(base.model)
    with torch.no_grad():
        base.model.embedding[0, 0] += 1
    assert model.weights_hash(base.model) != before, "the hash sees one changed number"


def cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:int(len(data) * keep)])


def test_missing_directory(tmp_path):
    with pytest.raises(ValueError, match="no such directory"):
        load_base(str(tmp_path / "nowhere"))


def test_directory_without_config(tmp_path):
    with pytest.raises(ValueError, match="no config.json"):
        load_base(str(tmp_path))


def test_config_that_is_not_json(small):
    (small / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load_base(str(small))


def test_config_without_a_size(small):
    raw = json.loads((small / "config.json").read_text())
    del raw["intermediate_size"]
    (small / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="lacks intermediate_size"):
        load_base(str(small))


@pytest.mark.parametrize("changes, word", [
    (dict(model_type="gpt_neox"), "gpt_neox"), (dict(use_sliding_window=True), "sliding window"),
    (dict(hidden_act="gelu"), "gelu"), (dict(rope_scaling={"rope_type": "yarn", "factor": 4.0}, rope_parameters=None), "yarn")])
def test_unsupported_architecture(small, changes, word):
    edit_config(small, **changes)
    with pytest.raises(ValueError, match=f"unsupported architecture.*{word}"):
        load_base(str(small))


def test_no_weights(small):
    (small / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no .*safetensors"):
        load_base(str(small))


@pytest.mark.parametrize("keep", [0.0, 0.0005, 0.6])
def test_truncated_shard(small, keep):
    cut(small / "model.safetensors", keep)
    with pytest.raises(ValueError, match="model.safetensors.*truncated"):
        load_base(str(small))


def test_missing_shard(tmp_path):
    make_reference(tmp_path, shard_size="20KB", tie_word_embeddings=False)
    add_tokenizer(tmp_path)
    gone = model.shards(tmp_path)[1]
    gone.unlink()
    with pytest.raises(ValueError, match=gone.name):
        load_base(str(tmp_path))


def test_shard_of_another_model(tmp_path):
    """One shard overwritten by that of a wider model: the index is whole, the shapes are wrong."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    make_reference(right, shard_size="20KB", tie_word_embeddings=False)
    make_reference(wrong, shard_size="20KB", tie_word_embeddings=False, intermediate_size=52)
    add_tokenizer(right)
    index = json.loads((right / "model.safetensors.index.json").read_text())
    name = index["weight_map"]["model.layers.0.mlp.gate_proj.weight"]
    shutil.copy(wrong / name, right / name)
    with pytest.raises(ValueError, match="do not belong together"):
        load_base(str(right))


@pytest.mark.parametrize("changes, word", [
    (dict(intermediate_size=64), "mlp.*do not belong together"), (dict(num_hidden_layers=3), "missing.*model.layers.2"),
    (dict(num_hidden_layers=1), "model.layers.1.*no place")])
def test_config_of_another_model(small, changes, word):
    edit_config(small, layer_types=None, **changes)
    with pytest.raises(ValueError, match=word):
        load_base(str(small))


def test_missing_tokenizer(small):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (small / name).unlink()
    with pytest.raises(ValueError, match="no tokenizer"):
        load_base(str(small))


def test_unreadable_tokenizer(small):
    cut(small / "tokenizer.json", 0.5)
    with pytest.raises(ValueError, match="no usable tokenizer"):
        load_base(str(small))


def test_config_defaults_are_qwen2(tmp_path):
    """A config.json from before rope_parameters existed (theta at the top level) reads the same as one after."""
    make_reference(tmp_path, rope_theta=1e6)
    raw = json.loads((tmp_path / "config.json").read_text())
    new = Config.from_pretrained(tmp_path)
    raw.pop("rope_parameters", None)
    raw["rope_theta"] = 1e6
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert Config.from_pretrained(tmp_path) == new and new.rope_theta == 1e6 and new.attention_bias
