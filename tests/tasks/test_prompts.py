"""What a prompt format decides beside its words, and what is refused of a new template before a run begins."""
import dataclasses
import random

import pytest

import config
from sandbox.values import encode
from tasks import TASK_TYPES, prompts
from tasks.base import Task
from tasks.prompts import FORMATS, PROMPT_FORMATS, TEMPLATES, Prompt, chat_text, first_answer, render
from tasks.validation import Limits

# How Qwen3's own template has it: thinking is switched off by an empty thought that the template writes.
SWITCH = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant>"
          "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}")
WITHOUT = SWITCH.partition("{% if enable_thinking")[0] + "{% endif %}"


@pytest.fixture(scope="module")
def tokenizer():
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)} | {"<|im_end|>": 256}, []))
    letters.pre_tokenizer, letters.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<|im_end|>")


# ---------------------------------------------------------------- thinking

def test_thinking_is_the_prompt_formats_choice(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", SWITCH)
    asked = Prompt("Why?", "```answer\n")
    assert FORMATS["chat"].thinking and not FORMATS["direct"].thinking
    rendered = {name: tokenizer.decode(render(asked, name, tokenizer)) for name in ("chat", "direct")}
    assert rendered == {"chat": "<user>Why?<|im_end|><assistant>```answer\n",
                        "direct": "<user>Why?<|im_end|><assistant><think>\n\n</think>\n\n```answer\n"}
    monkeypatch.setitem(FORMATS, "chat", dataclasses.replace(FORMATS["chat"], thinking=False))
    assert tokenizer.decode(render(asked, "chat", tokenizer)) == rendered["direct"]
    assert chat_text([dict(role="user", content="Why?")], "direct", tokenizer, begins=False) == "<user>Why?<|im_end|>"


def test_a_template_without_the_switch_passes_over_it(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", WITHOUT)
    texts = {tokenizer.decode(render(Prompt("Why?"), name, tokenizer)) for name in ("chat", "direct")}
    assert texts == {"<user>Why?<|im_end|><assistant>"}


def test_the_first_answer():
    assert first_answer("a </think> <answer>1</answer> <answer>2</answer>") == "a </think> <answer>1</answer>"
    assert first_answer("<answer>1") == "<answer>1" and first_answer("") == ""


# ---------------------------------------------------------------- fields

@pytest.mark.parametrize("prompt_format", PROMPT_FORMATS)
def test_every_template_names_fields_that_there_are(prompt_format):
    for name, kind in TASK_TYPES.items():
        if prompt_format != "micro" or TEMPLATES[name].micro[0]:
            kind.check_templates(prompt_format)


def test_types_fill_in_what_they_say():
    limits = Limits()
    rows = {"logic": dict(constraints="a or b\nnot a"), "math": dict(question="How many?", program="def f():\n    return 3"),
            "proof": dict(theorem="t $p |- ( p -> p ) $= wff $.")}
    for name, kind in TASK_TYPES.items():
        given = kind.from_row(rows.get(name, dict(program="def f(x):\n    return x", input="1")))
        task = Task(name, given.program, given.inputs, (encode(1),) * len(given.inputs), given.message, "key")
        assert {*kind.fields("chat", task, limits), "given"} == {*kind.solve_fields, "given"}, name     # of MIU alone
        named = prompts.Template(**{"propose": "".join(f"<{{{field}}}>" for field in kind.propose_fields)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(TEMPLATES, name, named)
            assert kind.propose("chat", [task], random.Random(0), limits).user.count("<") >= len(kind.propose_fields)


@pytest.mark.parametrize("change, said", [
    (dict(propose="Write about {topics}."), r"tasks/prompts.py, template of math, propose: \{topics\} is no field; valid: type, topic"),
    (dict(opening="```{tga}\n"), r"template of math, propose: \{tga\} is no field"),
    (dict(solve="{Question}\n"), r"template of math, solve: \{Question\} is no field; valid: program, input, .* your own stands in"),
    (dict(give="{}"), r"template of math, solve: \{\} is no field"),
    (dict(example="{program}{puzzle}"), r"template of math, example: \{puzzle\} is no field"),
    (dict(solve="A set {1, 2} of {question}"), r"template of math, solve: \{1, 2\} is no field"),
    (dict(solve="{question"), r"template of math, solve: .*; a brace of the text itself is written twice"),
    (dict(solve="}"), "a brace of the text itself is written twice")])
def test_a_misspelt_field_is_named_before_the_run(change, said, monkeypatch):
    monkeypatch.setitem(TEMPLATES, "math", dataclasses.replace(TEMPLATES["math"], **change))
    with pytest.raises(ValueError, match=said):
        config.resolve_config(config.Config(task_types="code_o,math"), "chat")
    if set(change) <= {"propose", "opening", "give"}:
        config.resolve_config(config.Config(task_types="code_o"), "chat")


def test_a_misspelt_field_of_the_compact_protocol(monkeypatch):
    monkeypatch.setitem(TEMPLATES, "logic", dataclasses.replace(TEMPLATES["logic"], micro=("propose logic\n", "logic\n{lines}\n")))
    with pytest.raises(ValueError, match=r"template of logic, solve: \{lines\} is no field; .* hint, tag, form, constraints"):
        config.resolve_config(config.Config(task_types="logic"), "micro")
