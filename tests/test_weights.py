"""Bases and members on the disk: equal to transformers and PEFT, in and out; whatever cannot be used is refused in one sentence."""
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from batches import logits, tokens
from factors import same
from huggingface_hub.utils import filter_repo_objects
from small_tokenizers import CHATML, byte_level, fast, legacy
from tiny_base import LLAMA3, change, cut, edit_json, write_tiny
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

import weights
from common import UserError
from lora import TARGETS, Adapters
from tasks.prompts import Prompt
from tasks.rendering import render
from weights import compare, load_base, load_model, load_peft, read_peft, save_peft

SHAPES = {
    "qwen2, tied, seven heads a group": dict(hidden_size=112, num_attention_heads=14, rope_theta=1e6, tie_word_embeddings=True),
    "qwen2, window switched off": dict(use_sliding_window=False, sliding_window=4),
    "qwen3": dict(kind="qwen3", head_dim=16, attention_bias=True),
    "llama, biases everywhere, rope llama3": dict(kind="llama", attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3),
    "llama, rope linear": dict(kind="llama", head_dim=16, rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=1e4)),
    "mistral": dict(kind="mistral", head_dim=16, sliding_window=100)}
SINGLE, EMBEDDING, HEAD = "model.safetensors", "model.embed_tokens.weight", "lm_head.weight"
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
IDS = tokens(3, 90)


@torch.inference_mode()
def theirs(directory):
    """The logits that transformers computes, of whatever lies in a directory."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()(IDS).logits


def off(a, b):
    return (a - b).abs().max().item()


@pytest.fixture
def small(tmp_path) -> Path:
    """A complete model directory, which a test may break."""
    write_tiny(tmp_path / "small", "qwen2")
    return tmp_path / "small"


# ---------------------------------------------------------------- bases

@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_and_greedy_tokens_equal_transformers(tmp_path, changes):
    """From several shards, with a cache and without."""
    write_tiny(tmp_path, **dict(kind="qwen2", shard_size="20KB") | changes)
    base = load_base(str(tmp_path))
    difference, n_other = compare(base)
    assert len(weights.shards(tmp_path)) > 2 and off(logits(base.model, IDS), theirs(tmp_path)) < 1e-4
    assert difference < 1e-4 and n_other == 0


def test_a_pretrained_length_at_the_top_level_counts(tmp_path):
    write_tiny(tmp_path, "llama", rope_parameters=LLAMA3)
    before = theirs(tmp_path)
    edit_json(tmp_path / "config.json", original_max_position_embeddings=100)
    assert off(logits(load_model(tmp_path, torch.float32), IDS), theirs(tmp_path)) < 1e-4 < 1e-2 < off(before, theirs(tmp_path))


@pytest.mark.parametrize("edit, tied", [
    (lambda s: s.update({HEAD: s[EMBEDDING]}), True), (lambda s: s.update({HEAD: s[EMBEDDING].flip(0)}), False),
    (lambda s: s.update({HEAD: s.pop(EMBEDDING)}), True)], ids=["an equal copy", "another head", "a head alone"])
def test_the_files_say_whether_the_head_is_tied(tmp_path, edit, tied):
    write_tiny(tmp_path, "llama", tie_word_embeddings=True)
    change(tmp_path / SINGLE, edit)
    model = load_model(tmp_path, torch.float32)
    assert model.cfg.tie_word_embeddings is tied and off(logits(model, IDS), theirs(tmp_path)) < 1e-4


def test_the_bundled_base_is_found_from_everywhere(micro_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert weights.resolve("micro/base") == weights.resolve("/another/machine/micro/base") == micro_base
    (tmp_path / "own").mkdir()
    assert weights.resolve("own") == tmp_path / "own"


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_of_a_hub_only_what_is_read_is_fetched(tmp_path, monkeypatch, shard_size):
    """A copy for another program, other formats and folders stay where they are."""
    hub, cache = tmp_path / "hub", tmp_path / "cache"
    write_tiny(hub, "mistral", shard_size)
    wanted = {file.name for file in hub.iterdir()}
    for name in ("consolidated.safetensors", "original/params.json", "onnx/model.onnx", "model.fp16.safetensors", "pytorch_model.bin"):
        (hub / name).parent.mkdir(exist_ok=True)
        (hub / name).write_text("{}")

    def snapshot_download(name, **patterns):
        files = [str(file.relative_to(hub)) for file in hub.rglob("*") if file.is_file()]
        for file in filter_repo_objects(files, **patterns):
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(hub / file, cache / file)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load_base("somebody/model").path == cache
    assert {str(file.relative_to(cache)) for file in cache.rglob("*")} == wanted


def learn_a_word(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens("<pad>")
    tokenizer.save_pretrained(directory)


def lose_a_shard(directory):
    (directory / SINGLE).unlink()
    write_tiny(directory, "qwen2", "20KB")
    weights.shards(directory)[1].unlink()


def lose_the_end(directory):
    for name in ("config", "generation_config"):
        edit_json(directory / f"{name}.json", eos_token_id=None)
    edit_json(directory / "tokenizer_config.json", eos_token=None)


def put_an_adapter(directory):
    save_peft(Adapters.on(load_model(directory, torch.float32), 1, 4, 8), 0, directory, str(directory))


def edit_config(**changes):
    return lambda d: edit_json(d / "config.json", **changes)


MATRIX = "model.layers.0.mlp.up_proj.weight"
BROKEN = {
    "no end token": (lose_the_end, "no eos_token_id"),
    "half a config": (lambda d: cut(d / "config.json", 0.5), "config.json is missing, damaged"),
    "an end token in words": (lambda d: edit_json(d / "generation_config.json", eos_token_id="<end>"), "eos_token_id '<end>' is no number"),
    "no weights": (lambda d: (d / SINGLE).unlink(), "has no model.safetensors: finish"),
    "a truncated file": (lambda d: cut(d / SINGLE, 0.6), "model.safetensors is truncated"),
    "a shard missing": (lose_a_shard, "has no model-00002.*finish the download"),
    "a number that is none": (lambda d: change(d / SINGLE, lambda s: s[MATRIX].view(-1)[3:4].fill_(float("nan"))), f"{MATRIX} holds"),
    "a wider config": (edit_config(intermediate_size=64), "do not belong together.*mlp"),
    "half a tokenizer": (lambda d: cut(d / "tokenizer.json", 0.5), "no usable tokenizer"),
    "no directory": (shutil.rmtree, "no such directory"),
    "a word too many": (learn_a_word, "a token 6. beyond the model's 61"),
    "an adapter beside it": (put_an_adapter, "adapter beside.*merge it.*or move adapter_config.json away"),
    "quantised": (edit_config(quantization_config=dict(quant_method="gptq", bits=4)), "supported: weights that are not quantized.*int8"),
    "another rope": (edit_config(rope_scaling={"type": "yarn", "factor": 4.0}), "rope_type 'yarn'.*supported: default, linear, llama3")}


@pytest.mark.parametrize("damage, words", BROKEN.values(), ids=BROKEN)
def test_a_base_that_cannot_be_used_is_refused_in_one_sentence(small, damage, words):
    damage(small)
    with pytest.raises(UserError, match=words) as refused:
        load_base(str(small))
    assert str(small) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("generation, ends", [("{", (1, 9)), ("[]", (1, 9)), ('{"eos_token_id": -1}', (1, 9)), ('{"eos_token_id": [50, 5]}', (1, 5, 9, 50))])
def test_end_tokens_are_those_of_all_files(small, generation, ends):
    """The tokenizer has 1; a generation_config.json that is no JSON says nothing, and no id is below 0, as in transformers."""
    edit_json(small / "config.json", eos_token_id=9)
    (small / "generation_config.json").write_text(generation)
    assert load_base(str(small)).eos_ids == ends


def test_a_chat_model_ends_its_turns_with_its_end_token(small):
    edit_json(small / "generation_config.json", eos_token_id=[1, 99])        # 99 is no token
    turns = "{%% for m in messages %%}<{{ m['role'] }}>{{ m['content'] }} w%d{%% endfor %%}"
    for template, prompt_format in ((turns % 1, "chat"), (turns % 44, "base"), ("{{ raise_exception('never') }}", "base")):
        (small / "chat_template.jinja").write_text(template)
        assert load_base(str(small)).prompt_format == prompt_format


@pytest.mark.parametrize("made, end, begin", [(byte_level, "<|endoftext|>", []), (legacy, "</s>", ["<s>"])])
def test_no_prompt_ends_in_an_end_token(made, end, begin):
    """Though the tokenizer appends one to every text; a token that it puts before a text stays."""
    plain, ends = made(), made()
    around = [(word, plain.token_to_id(word)) for word in [*begin, end]]
    ends.post_processor = processors.TemplateProcessing(single=[*begin, "$A", end], special_tokens=around)
    plain, ends = fast(plain, CHATML), fast(ends, CHATML)
    assert ends("a").input_ids[-1] == ends.convert_tokens_to_ids(end)
    for prompt_format in ("base", "chat", "direct"):
        prompt = Prompt("Why?", "```output\n")
        assert render(prompt, prompt_format, ends).ids == render(prompt, prompt_format, plain).ids


def test_the_command_compares(micro_base, monkeypatch, capsys):
    """Exit code 0 for equal logits, 1 for others."""
    monkeypatch.setattr("sys.argv", ["weights.py", str(micro_base)])
    assert weights.main() == 0
    shown = capsys.readouterr().out
    assert "and 0 of 64 greedy tokens differ\nprompt format: micro" in shown
    changed = load_base(str(micro_base))
    with torch.no_grad():
        changed.model.embedding[5] += 1
    monkeypatch.setattr(weights, "load_base", lambda name: changed)
    assert weights.main() == 1


# ---------------------------------------------------------------- members

@torch.inference_mode()
def test_peft_computes_what_we_save(any_base, population, tmp_path):
    """In a mixed batch, on every linear layer; by PEFT, merged, and by transformers' own way to load an adapter."""
    peft = pytest.importorskip("peft")
    adapters = population(any_base, 2)
    ours = logits(any_base.model, IDS, adapters, (1, -1, 0))
    bare = theirs(any_base.path)
    assert off(ours[1], bare[1]) < 1e-4
    save_peft(adapters, 1, tmp_path / "S1", str(any_base.path))
    plain = AutoModelForCausalLM.from_pretrained(any_base.path, dtype=torch.float32)
    plain.load_adapter(str(tmp_path / "S1"))
    wrapped = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "S1", dtype=torch.float32)
    found = [model(IDS).logits[0] for model in (plain, wrapped, wrapped.merge_and_unload())]
    assert all(off(ours[0], row) < 1e-4 for row in found) and off(ours[0], bare[0]) > 1e-2


@pytest.fixture
def by_peft(tiny, tmp_path):
    """by_peft(**config) -> the directory of an adapter that PEFT saved, and its logits."""
    peft = pytest.importorskip("peft")

    def make(**config):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
        how = dict(r=4, lora_alpha=8, target_modules=list(TARGETS), task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, peft.LoraConfig(**how | config)).eval()
        with torch.inference_mode():
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.add_(torch.randn_like(p) * 0.05)
            model.save_pretrained(tmp_path / "peft")
            return tmp_path / "peft", model(IDS).logits
    return make


PLAIN = [dict(init_lora_weights="gaussian", lora_dropout=0.5), dict(target_modules="all-linear"), dict(layers_to_transform=[1]),
         dict(target_modules=r".*layers\.\d\.(self_attn\.(q|o)|mlp\.up)_proj", exclude_modules=["o_proj"], lora_alpha=2.5, r=3)]
OTHER = [dict(init_lora_weights="pissa"), dict(use_dora=True), dict(use_rslora=True), dict(rank_pattern={"q_proj": 8}),
         dict(alpha_pattern={"q_proj": 80}), dict(bias="all"), dict(target_modules=[*TARGETS, "lm_head"])]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", PLAIN, ids=str)
def test_we_compute_what_peft_saves(tiny, by_peft, config):
    directory, wanted = by_peft(**config)
    settings, _, factors = read_peft(directory)
    adapters = Adapters.on(tiny.model, 2, settings["r"], settings["lora_alpha"], set(factors))
    load_peft(adapters, 1, directory)
    assert off(logits(tiny.model, IDS, adapters, (1, 1, 1)), wanted) < 1e-4 < 1e-2 < off(wanted, logits(tiny.model, IDS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", OTHER, ids=str)
def test_what_peft_would_compute_otherwise_is_refused(by_peft, config):
    with pytest.raises(UserError, match="no plain LoRA|no factor of a plain LoRA"):
        read_peft(by_peft(**config)[0])


def test_a_member_is_written_whole_and_as_peft_writes(tiny, population, tmp_path, monkeypatch, micro_base):
    """A whole alpha as an integer; a relative base by its path, which PEFT would look for on the hub; a kill leaves the old files."""
    monkeypatch.chdir(tmp_path)
    for alpha, base, written in ((8.0, "micro/base", ["8", str(micro_base)]), (2.5, "somebody/model", ["2.5", "somebody/model"])):
        adapters = population(tiny, 1, alpha=alpha)
        save_peft(adapters, 0, Path("S2"), base, "hash")
        config, made_on, factors = read_peft("S2")
        assert [str(config["lora_alpha"]), config["base_model_name_or_path"]] == written
        assert made_on == "hash" and same(factors, adapters.factors(0))

    def ends_early(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(weights, "save_file", ends_early)
    with pytest.raises(OSError):
        save_peft(population(tiny, seed=1), 0, Path("S2"), "")
    assert same(read_peft("S2")[2], factors)


def edit_last(edit):
    """Changes an adapter's tensors; edit(tensors, names of a layer's A and B)."""
    names = [f"base_model.model.model.layers.1.mlp.up_proj.lora_{x}.weight" for x in "AB"]
    return lambda d: change(d / TENSORS, lambda tensors: edit(tensors, *names))


REFUSED = {
    "half the tensors": (lambda d: cut(d / TENSORS, 0.6), "no readable PEFT adapter"),
    "no alpha": (lambda d: (d / CONFIG).write_text('{"r": 4}'), "no readable PEFT adapter.*lora_alpha"),
    "a key of tomorrow": (lambda d: edit_json(d / CONFIG, use_whatever=dict(strength=1)), "no plain LoRA: its use_whatever"),
    "another rank": (lambda d: edit_json(d / CONFIG, r=2), "not both factors of the rank"),
    "another alpha": (lambda d: edit_json(d / CONFIG, lora_alpha=16), r"rank and alpha \(4, 16\), the others have \(4, 8\).*--alpha"),
    "a layer less": (edit_last(lambda tensors, A, B: [tensors.pop(A), tensors.pop(B)]), "layers.1.mlp.up_proj"),
    "a wider base": (edit_last(lambda tensors, A, B: tensors.update({A: tensors[A].repeat(1, 2)})), "up_proj has a factor"),
    "fused layers": (edit_last(lambda tensors, A, B: tensors.update({A.replace("up", "gate_up"): tensors[A]})), "gate_up_proj.* is no factor"),
    "another base": (lambda d: None, "trained on another base: ")}


@pytest.mark.parametrize("damage, words", REFUSED.values(), ids=REFUSED)
def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(tiny, population, tmp_path, damage, words):
    adapters = population(tiny)
    before = adapters.factors(0)
    save_peft(population(tiny, seed=4), 0, tmp_path, str(tiny.path), "hash of its base")
    damage(tmp_path)
    with pytest.raises(UserError, match=words) as refused:
        load_peft(adapters, 0, tmp_path, "hash of ours" if words == "trained on another base: " else "")
    assert "\n" not in str(refused.value)
    assert same(adapters.factors(0), before)
