"""What other people's tools make of a member: PEFT and transformers write the tokens that we write, and the hub reads its card."""
import json

import pytest
import torch

import evolve
from generate import Prompts, SamplingParams, generate
from lora import Adapters
from weights import load_peft, read_peft, save_peft

PROMPT = "def f(x):\n return x[::-1]\nf([1,2,3])="
N_NEW = 24


@pytest.fixture
def member(base, population, tmp_path):
    """The directory of a member of the micro base, and the text that it writes after PROMPT at temperature 0."""
    adapters = population(base, 2, b_std=0.2)
    save_peft(adapters, 1, tmp_path / "S1", str(base.path))
    ids = base.tokenizer(PROMPT)["input_ids"]
    rollout = generate(base, adapters, Prompts([ids], [1], [(0,)]), SamplingParams(1, 0.0, N_NEW))
    return tmp_path / "S1", base.tokenizer.decode(rollout.ids[0, len(ids):int(rollout.length)], skip_special_tokens=True)


def written(model, tokenizer) -> str:
    """What a model of transformers or PEFT writes after PROMPT at temperature 0."""
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    out = model.generate(input_ids=ids, max_new_tokens=N_NEW, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)


@pytest.mark.slow
@torch.inference_mode()
def test_every_door_of_peft_and_transformers_writes_what_we_write(base, member, tmp_path):
    """AutoPeftModelForCausalLM, merge_and_unload, a merged model that is saved and read again, transformers' load_adapter, a pipeline."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    directory, ours = member
    tokenizer = transformers.AutoTokenizer.from_pretrained(base.path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    assert ours and ours != written(plain, tokenizer), "the member must differ from its base"

    wrapped = peft.AutoPeftModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert written(wrapped, tokenizer) == ours
    merged = wrapped.merge_and_unload()
    assert written(merged, tokenizer) == ours
    merged.save_pretrained(tmp_path / "merged")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert written(again, tokenizer) == ours

    plain.load_adapter(str(directory))
    assert written(plain, tokenizer) == ours
    pipe = transformers.pipeline("text-generation", str(directory), tokenizer=tokenizer, dtype=torch.float32)
    said = pipe(PROMPT, max_new_tokens=N_NEW, do_sample=False, return_full_text=False)
    assert said[0]["generated_text"] == ours


@pytest.mark.parametrize("name, known", [("Qwen/Qwen2.5-Coder-7B", True), ("gpt2", True), ("1e5", True), ("an/id/with/more", False),
                                         ("/models/qwen", False), ("a directory: [x]\n---\ntags: no", False), (None, False)])
def test_the_hub_knows_an_uploaded_member_for_an_adapter(tiny, population, tmp_path, name, known):
    """The head of README.md: PEFT's library, and as base an id of the hub, which refuses anything else."""
    hub = pytest.importorskip("huggingface_hub")
    save_peft(population(tiny), 0, tmp_path, name, "hash of its files")
    text = (tmp_path / "README.md").read_text()
    card = hub.ModelCard(text)
    assert (card.data.library_name, card.data.pipeline_tag) == ("peft", "text-generation")
    assert card.data.base_model == (name if known else None)
    tags = ["lora", "self-play"] + [f"base_model:adapter:{name}"] * known
    assert card.data.tags == tags
    assert "hash of its files" in card.text and ("write `base_model: ID`" in card.text) != known
    if known:
        hub.utils.validate_repo_id(card.data.base_model)


def test_a_directory_is_no_id_of_the_hub(tiny, population, tmp_path, monkeypatch):
    """micro/base looks like an id, and would send readers to somebody else's model."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "micro" / "base").mkdir(parents=True)
    save_peft(population(tiny), 0, tmp_path / "S0", "micro/base")
    assert hub.ModelCard.load(tmp_path / "S0" / "README.md").data.base_model is None


def test_a_card_of_somebody_else_changes_nothing(tiny, population, tmp_path):
    """A README.md in a member's directory is nobody's input: members are read, crossed and written without a look at it."""
    adapters = population(tiny)
    for p in range(2):
        save_peft(adapters, p, tmp_path / str(p), str(tiny.path))
        (tmp_path / str(p) / "README.md").write_bytes(b"\xff---\nlibrary_name: [")
    load_peft(Adapters.on(tiny.model, 1, 4, 8), 0, tmp_path / "0")
    evolve.cross([tmp_path / "0", tmp_path / "1"], "add", tmp_path / "child")
    assert read_peft(tmp_path / "child")[0] == json.loads((tmp_path / "0" / "adapter_config.json").read_text())
