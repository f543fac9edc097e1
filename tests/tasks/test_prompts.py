"""What a prompt format decides beside its words."""
import dataclasses
import itertools

import pytest

from infra.errors import UserError
from tasks import TASK_TYPES
from tasks.prompts import FORMATS, Prompt, chat_text, render, template

# How Qwen3's own template has it: thinking is switched off by an empty thought that the template writes.
SWITCH = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant>"
          "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}")
WITHOUT = SWITCH.partition("{% if enable_thinking")[0] + "{% endif %}"


def test_thinking_is_the_prompt_formats_choice(base, monkeypatch):
    tokenizer = base.tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", SWITCH)
    asked = Prompt("Why?", "```answer\n")
    assert FORMATS["chat"].thinking and not FORMATS["direct"].thinking
    rendered = {name: tokenizer.decode(render(asked, name, tokenizer).ids) for name in ("chat", "direct")}
    assert rendered == {"chat": "<user>Why?<|im_end|><assistant>```answer\n",
                        "direct": "<user>Why?<|im_end|><assistant><think>\n\n</think>\n\n```answer\n"}
    monkeypatch.setitem(FORMATS, "chat", dataclasses.replace(FORMATS["chat"], thinking=False))
    assert tokenizer.decode(render(asked, "chat", tokenizer).ids) == rendered["direct"]
    assert chat_text([dict(role="user", content="Why?")], "direct", tokenizer, begins=False) == "<user>Why?<|im_end|>"


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no users') }}", "{{ messages[0].nothing.at_all }}", "{% if %}"])
def test_a_template_that_raises_is_one_sentence(base, monkeypatch, template):
    """It is a program of the base's makers, and raises what it likes."""
    monkeypatch.setattr(base.tokenizer, "chat_template", template)
    with pytest.raises(UserError, match="chat template makes no prompt .*take the prompt format base"):
        render(Prompt("Why?"), "chat", base.tokenizer)


def test_a_template_without_the_switch_passes_over_it(base, monkeypatch):
    tokenizer = base.tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", WITHOUT)
    texts = {tokenizer.decode(render(Prompt("Why?"), name, tokenizer).ids) for name in ("chat", "direct")}
    assert texts == {"<user>Why?<|im_end|><assistant>"}


@pytest.mark.parametrize("prompt_format", FORMATS)
def test_every_type_has_words_or_is_refused(prompt_format):
    for name, phase in itertools.product(TASK_TYPES, ("propose", "solve")):
        if name == "proof" and prompt_format == "micro":
            with pytest.raises(UserError, match="no template of it for the micro prompt format"):
                template(name, prompt_format, phase)
        else:
            assert template(name, prompt_format, phase).user
