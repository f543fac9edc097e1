"""The base: logits equal transformers' on every architecture; every broken model directory is refused in one clear sentence."""
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tiny_base import LLAMA3, OTHERS, SIZES, cut, edit_json, write_tiny
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import weights
from common import UserError
from model import Float32Product, Model, ModelConfig
from weights import load_base, load_model, read_config
from weights.__main__ import compare, main

SHAPES = {
    "qwen2 tied": dict(tie_word_embeddings=True), "qwen2 untied": dict(), "qwen2, as many kv heads as heads": dict(num_key_value_heads=4),
    "qwen2, seven heads a group, rope 1e6": dict(hidden_size=112, num_attention_heads=14, rope_theta=1e6, rms_norm_eps=1e-5),
    "qwen2, window switched off": dict(use_sliding_window=False, sliding_window=4, max_window_layers=0),
    "qwen3 tied": dict(kind="qwen3", head_dim=8, tie_word_embeddings=True),
    "qwen3 untied, biases, wide heads": dict(kind="qwen3", head_dim=16, attention_bias=True), "llama untied": dict(kind="llama"),
    "llama tied, biases everywhere": dict(kind="llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, head_dim of its own": dict(kind="llama", head_dim=16, num_key_value_heads=1),
    "llama, rope llama3": dict(kind="llama", rope_parameters=LLAMA3),
    "llama, rope linear": dict(kind="llama", rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=1e4)),
    "mistral untied, window longer than the rows": dict(kind="mistral"),
    "mistral tied, no window, wide heads": dict(kind="mistral", sliding_window=None, head_dim=16, tie_word_embeddings=True),
    **{f"{kind} of OTHERS": dict(kind=kind, **changes) for kind, changes in OTHERS.items()},
}


@pytest.fixture
def small(tmp_path) -> Path:
    """A complete small model directory in one shard, with a tokenizer; tests then break it."""
    write_tiny(tmp_path, "qwen2")
    return tmp_path


@torch.inference_mode()
def largest_difference(ours: Model, reference) -> float:
    ids = torch.randint(0, ours.cfg.vocab_size, (3, 90), generator=torch.Generator().manual_seed(1))
    return (ours.logits(ours(ids)) - reference(ids).logits).abs().max().item()


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_logits_and_greedy_tokens_equal_transformers(tmp_path, changes):
    """From several shards, and by `python -m weights --check DIR`."""
    reference = write_tiny(tmp_path, **dict(kind="qwen2", shard_size="20KB") | changes)
    assert len(weights.shards(tmp_path)) > 2
    assert largest_difference(load_model(tmp_path, torch.float32), reference) < 1e-4
    result = compare(load_base(str(tmp_path)), n_new=40)
    assert result["tokens"] == result["of"] > 0 and result["max_abs_diff"] < 1e-4, result


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_float32_on_a_gpu(monkeypatch, tied, dtype=torch.bfloat16):
    """torch's product for that has no CPU version and no derivative: its shape and type on the meta device, its numbers here."""
    cfg = ModelConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
                      num_key_value_heads=2, tie_word_embeddings=tied)
    model = Model(cfg).to(dtype).requires_grad_(False)
    hidden = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    on_gpu = hidden.to("meta").requires_grad_()
    logits = Model(cfg).to(dtype).to("meta").requires_grad_(False).logits(on_gpu)
    assert logits.shape == (2, 5, 97) and logits.dtype == torch.float32 and model.logits(hidden).dtype == dtype
    logits.sum().backward()
    assert on_gpu.grad.shape == hidden.shape and on_gpu.grad.dtype == dtype

    weight = model.embedding if tied else model.lm_head.weight
    monkeypatch.setattr(torch, "mm", lambda h, W, out_dtype: h.to(out_dtype) @ W.to(out_dtype))
    h = hidden.flatten(0, 1).requires_grad_()
    ours = Float32Product.apply(h, weight)
    ours.logsumexp(-1).sum().backward()
    exact = hidden.flatten(0, 1).float().requires_grad_()
    wanted = F.linear(exact, weight.float())
    wanted.logsumexp(-1).sum().backward()
    assert torch.equal(ours, wanted) and (h.grad - exact.grad).abs().max() < 0.01 * exact.grad.abs().max()
    rounded = model.logits(hidden).float().flatten(0, 1)
    assert (rounded - wanted).abs().max() > 1e-4, "the case must be able to fail: half precision rounds"


def test_micro_base_equals_transformers(micro_base):
    assert load_base(str(micro_base)).prompt_format == "micro"
    result = compare(load_base(str(micro_base)))
    assert result["tokens"] == result["of"] == 64 and result["max_abs_diff"] < 1e-4, result


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def edit_weights(directory: Path, edit) -> None:
    """Change the tensors of a single file."""
    state = load_file(directory / "model.safetensors")
    edit(state)
    save_file({name: x.contiguous().clone() for name, x in state.items()}, directory / "model.safetensors", metadata={"format": "pt"})


def read_by_transformers(directory: Path):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("files, tied", [
    (lambda s: s.update({HEAD: s[EMBEDDING]}), True), (lambda s: s.update({HEAD: s[EMBEDDING].flip(0)}), False),
    (lambda s: s.update({HEAD: s.pop(EMBEDDING)}), True), (lambda s: None, True)], ids=["an equal copy", "another head", "a head alone", "no head"])
def test_the_files_say_whether_the_head_is_tied(tmp_path, kind, files, tied, capsys):
    """config.json says tied. transformers 5 looks into the files, and what was trained untied computes something else tied."""
    write_tiny(tmp_path, kind, tie_word_embeddings=True)
    edit_weights(tmp_path, files)
    ours = load_model(tmp_path, torch.float32)
    assert ours.cfg.tie_word_embeddings is tied and ("differs" in capsys.readouterr().err) is not tied
    assert largest_difference(ours, read_by_transformers(tmp_path)) < 1e-4
    assert compare(load_base(str(tmp_path)), n_new=8)["max_abs_diff"] < 1e-4
    int8 = load_model(tmp_path, torch.float32, int8=True)
    assert int8.cfg.tie_word_embeddings is tied and all(layer.scale is not None for layer in int8.linears().values())


@pytest.mark.parametrize("index", ["whole", "stale", "damaged"])
def test_a_single_file_wins_over_an_index(tmp_path, index, capsys):
    """As in transformers, whether the index beside it leads to shards of other weights, to nothing, or is no JSON."""
    write_tiny(tmp_path, "llama", "20KB")
    names = weights.shards(tmp_path)
    if index == "stale":
        for file in names:
            file.unlink()
    if index == "damaged":
        cut(tmp_path / "model.safetensors.index.json", 0.5)
    state = write_tiny(tmp_path / "other", "llama").state_dict()
    save_file({name: x * 1.25 for name, x in state.items()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours = load_model(tmp_path, torch.float32)
    assert len(names) > 2 and weights.shards(tmp_path) == [tmp_path / "model.safetensors"]
    assert capsys.readouterr().err.count("model.safetensors is read") == 1
    assert largest_difference(ours, read_by_transformers(tmp_path)) < 1e-4


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("name", [EMBEDDING, HEAD, "model.norm.weight", "model.layers.1.self_attn.q_proj.bias", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("number", [float("nan"), -float("inf")])
def test_a_base_with_a_number_that_is_not_finite_is_refused(small, name, number, int8):
    """It answers nothing, and trains to the end."""
    edit_weights(small, lambda state: state[name].view(-1)[3:4].fill_(number))
    with pytest.raises(UserError, match=f"{name} holds numbers that are not finite"):
        load_model(small, torch.float32, int8=int8)


def test_rotary_tables_of_old_files_are_passed_over(small):
    edit_weights(small, lambda state: state.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.tensor([float("nan")])}))
    assert load_model(small, torch.float32).cfg.vocab_size == 61


GENERATION = dict(num_beams=3, no_repeat_ngram_size=2, suppress_tokens=[*range(6, 40)], guidance_scale=2.0, stop_strings=["w7"],
                  repetition_penalty=5.0, bad_words_ids=[[8]], min_new_tokens=9, forced_eos_token_id=5, sequence_bias=[[[9], 10.0]])


@pytest.mark.parametrize("name", GENERATION)
def test_check_compares_logits_whatever_generation_config_says(small, name):
    """transformers' `generate` follows it, and raises or writes something else; the weights are the same."""
    edit_json(small / "generation_config.json", **{name: GENERATION[name]})
    result = compare(load_base(str(small)), n_new=12)
    assert result["tokens"] == result["of"] == 12 and result["max_abs_diff"] < 1e-4, result


def test_check_shows_what_the_parsers_make_of_the_base(micro_base, small, monkeypatch, capsys):
    """The micro base writes its protocol; a base that has never seen a format is refused, and the code says what the logits say."""
    def check(directory: Path) -> str:
        monkeypatch.setattr("sys.argv", ["weights", "--check", str(directory), "--max-new-tokens", "60"])
        assert main() == 0
        return capsys.readouterr().out

    shown = check(micro_base)
    assert "prompt format micro, it writes\ndef f(" in shown and "read as the program and the call\ndef f(" in shown
    assert "it writes\n=[" in shown and "read as the answer\n[" in shown
    edit_json(small / "config.json", max_position_embeddings=4096)
    shown = check(small)
    assert "in the prompt format base, it writes\n<think>" in shown and "which is refused: no_program" in shown and "which is malformed" in shown


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_tokenizer_json_alone_is_enough(tmp_path, kind):
    """Whatever class transformers has for an architecture, the words are those of tokenizer.json, the end tokens Llama 3's."""
    write_tiny(tmp_path, kind)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[50, 55, 60])))
    base = load_base(str(tmp_path))
    assert base.tokenizer("w5 w7 w60", add_special_tokens=False)["input_ids"] == [5, 7, 60]
    assert base.eos_ids == (1, 50, 55, 60)


def test_base_is_frozen_and_knows_its_end_tokens(small):
    (small / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[5, 1])))
    edit_json(small / "config.json", eos_token_id=9)
    base = load_base(str(small))
    assert base.eos_ids == (1, 5, 9), "config, generation config and tokenizer are read together"
    assert base.prompt_format == "base", "no chat template: the text envelope"
    words, template = "{%% for m in messages %%}<{{ m['role'] }}>{{ m['content'] }} w%d{%% endfor %%}", small / "chat_template.jinja"
    for text, prompt_format in ((words % 44, "base"), ("{{ raise_exception('never') }}", "base"), (words % 9, "chat"),
                                ("{% if add_generation_prompt %}{{ raise_exception('not begun') }}{% endif %}" + words % 9, "base")):
        template.write_text(text)
        assert load_base(str(small)).prompt_format == prompt_format, "chat where answers end as this model ends them"
    assert not any(p.requires_grad for p in base.model.parameters())
    before = weights.weights_hash(base.model)
    with torch.no_grad():
        base.model.embedding[0, 0] += 1
    assert weights.weights_hash(base.model) != before, "the hash sees one changed number"


OLD = tuple(map(int, transformers.__version__.split(".")[:2])) <= (5, 17)
OWN_ROPE = "no attribute 'get'" if OLD else "rope_type None"                # the former raises within transformers


@pytest.mark.parametrize("changes, word", [
    (dict(model_type="gpt_neox"), f"model_type 'gpt_neox'.*supported: {', '.join(weights.ARCHITECTURES)}"), (dict(model_type=None), "None"),
    (dict(hidden_act="gelu"), "gelu"), (dict(quantization_config=dict(bits=4)), "quantization_config"),
    (dict(layer_types=["linear_attention", "full_attention"]), "linear_attention"),
    (dict(rope_scaling={"type": "dynamic", "factor": 4.0}), "rope_type 'dynamic'.*default, linear, llama3"),
    (dict(rope_scaling={"rope_type": "longrope"}), "longrope"), (dict(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "low_freq_factor"),
    (dict(rope_theta=None, rope_parameters=None), "'rope_theta': None.*correct"), (dict(rope_parameters=dict(rope_theta=0.0)), "'rope_theta': 0.0.*correct"),
    (dict(rope_parameters=dict(rope_type="linear", factor=None, rope_theta=1e4)), "'factor': None.*correct"),
    (dict(transformers_weights="other.safetensors"), "transformers_weights 'other"),
    (dict(rope_scaling={"type": "yarn", "factor": 4.0}), "rope_type 'yarn'"), (dict(partial_rotary_factor=0.5), "partial_rotary_factor 0.5"),
    (dict(rope_parameters={"full_attention": {"rope_type": "default"}}), OWN_ROPE)])
def test_unsupported_architecture(small, changes, word):
    edit_json(small / "config.json", **changes)
    with pytest.raises(UserError, match=word):
        load_base(str(small))


def test_config_as_older_transformers_wrote_it(tmp_path):
    """rope_scaling with `type`, theta at the top, numbers that are null or absent: read as transformers reads them."""
    reference = write_tiny(tmp_path, "llama", rope_parameters=LLAMA3)
    raw = json.loads((tmp_path / "config.json").read_text())
    new = read_config(tmp_path)
    for name in ("rope_parameters", "attention_bias", "mlp_bias"):
        del raw[name]
    scaling = {("type" if k == "rope_type" else k): v for k, v in LLAMA3.items() if k != "rope_theta"}
    (tmp_path / "config.json").write_text(json.dumps({**raw, "rope_theta": 500.0, "rope_scaling": scaling, "head_dim": None}))
    old = read_config(tmp_path)
    assert old.rope_parameters.items() >= new.rope_parameters.items() >= LLAMA3.items()
    assert dataclasses.replace(old, rope_parameters=new.rope_parameters) == new and new.head_dim == 8
    assert largest_difference(load_model(tmp_path, torch.float32), reference) < 1e-4


@pytest.mark.parametrize("kind, silent", [
    ("mistral", ("sliding_window", "head_dim")), ("mistral", ("max_position_embeddings",)),
    ("llama", ("max_position_embeddings", "head_dim")), ("qwen3", ("max_position_embeddings", "head_dim", "attention_bias"))])
def test_what_a_config_leaves_unsaid(tmp_path, kind, silent):
    """Where config.json is silent, the architecture's defaults are those of transformers."""
    raw = {k: v for k, v in AutoConfig.for_model(kind, **SIZES).to_dict().items() if k not in silent}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ours, theirs = read_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    names = {"head_dim", "rms_norm_eps", "num_key_value_heads"}
    window = theirs.sliding_window if kind == "mistral" else None
    assert ours.max_position_embeddings == min(theirs.max_position_embeddings, window or 10 ** 9), "no row is longer than the window"
    assert {n: getattr(ours, n) for n in names} == {n: getattr(theirs, n) for n in names}
    assert ours.attention_bias == getattr(theirs, "attention_bias", False)


def lose(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).unlink()


def lose_a_shard(directory: Path) -> None:
    lose(directory, "model.safetensors")
    write_tiny(directory, "qwen2", "20KB")
    weights.shards(directory)[1].unlink()


def learn_a_word(directory: Path) -> None:
    """As a tokenizer that got a token for padding, and its model no row for it."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(directory)


BROKEN = {
    "a word too many": (learn_a_word, "token 6. .'<pad>'. is beyond the model's 61.*resize_token_embeddings"),
    "no directory": (lambda d: shutil.rmtree(d), "no such directory"),
    "half a config": (lambda d: cut(d / "config.json", 0.5), "config.json is missing, damaged"),
    "no size": (lambda d: edit_json(d / "config.json", intermediate_size=None), "intermediate_size"),
    "no weights": (lambda d: lose(d, "model.safetensors"), "no .*safetensors"),
    "an empty shard": (lambda d: cut(d / "model.safetensors", 0.0), "model.safetensors.*truncated"),
    "half a header": (lambda d: cut(d / "model.safetensors", 0.0005), "model.safetensors.*truncated"),
    "a truncated shard": (lambda d: cut(d / "model.safetensors", 0.6), "model.safetensors.*truncated"),
    "a shard missing": (lose_a_shard, r"has no model-00002.*finish the download"),
    "a wider config": (lambda d: edit_json(d / "config.json", layer_types=None, intermediate_size=64), "do not belong together.*mlp"),
    "a deeper config": (lambda d: edit_json(d / "config.json", layer_types=None, num_hidden_layers=3), "Missing key.*model.layers.2"),
    "a shallower config": (lambda d: edit_json(d / "config.json", layer_types=None, num_hidden_layers=1), "Unexpected key.*model.layers.1"),
    "no tokenizer": (lambda d: lose(d, "tokenizer.json", "tokenizer_config.json"), "no usable tokenizer"),
    "half a tokenizer": (lambda d: cut(d / "tokenizer.json", 0.5), "no usable tokenizer")}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_directory_is_refused_in_one_sentence(small, name):
    damage, message = BROKEN[name]
    damage(small)
    with pytest.raises(UserError, match=message):
        load_base(str(small))
