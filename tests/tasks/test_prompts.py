"""What a prompt format decides beside its words."""
import dataclasses
import itertools

import pytest

from common import UserError
from config import Config
from tasks import TASK_TYPES, verify_answers
from tasks.literals import read_blocks
from tasks.programs import Limits
from tasks.prompts import FORMATS, TEMPLATES, Answer, Prompt, reasoning, template
from tasks.rendering import render

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no users') }}", "{{ messages[0].nothing.at_all }}", "{% if %}"])
def test_a_template_that_raises_is_one_sentence(base, monkeypatch, template):
    """It is a program of the base's makers, and raises what it likes."""
    monkeypatch.setattr(base.tokenizer, "chat_template", template)
    with pytest.raises(UserError, match="chat template makes no prompt .*take the prompt format base"):
        render(Prompt("Why?"), "chat", base.tokenizer)


def test_every_type_has_words_or_is_refused():
    for name, prompt_format in itertools.product(TASK_TYPES, FORMATS):
        cfg = Config(prompt_format=prompt_format)
        if name == "proof" and prompt_format == "micro":
            with pytest.raises(UserError, match="no template of it for the micro prompt format"):
                TASK_TYPES[name].ready(cfg)
        elif prompt_format != "micro":          # a type of somebody's own may be for chat alone
            TASK_TYPES[name].ready(cfg)


def test_a_direct_answer_ends_with_its_fence(base, monkeypatch):
    """The prompt has opened it; a proposal has several, and chat's reasoning may."""
    monkeypatch.setattr(base.tokenizer, "chat_template", TURNS)
    for name, phase in itertools.product(("chat", "direct", "base"), ("propose", "solve")):
        prompt = template("code_o", name, phase)
        closing = {("direct", "solve"): "\n```\n"}.get((name, phase), "</answer>" if name == "base" else "")
        assert render(prompt, name, base.tokenizer).closing == closing
        assert "```" not in closing or prompt.prefix.startswith("```")


def task_of(kind, shown, sandbox):
    """The task that is shown solved, with its gold from a run; hidden pairs of code_f are of its program."""
    answer = shown.answer
    inputs = [body for tag, body in read_blocks(shown.fields.get("pairs", "")) if tag == "input"]
    row = {"code_o": dict(shown.fields), "code_i": dict(shown.fields, input=answer),
           "code_f": dict(program=answer, inputs=inputs + [["[]", "[7]"], ["'x'", "'y z'"]]["split" in answer]),
           "math": dict(shown.fields, program=f"def f():\n    return {'3 * 40' if 'train' in str(shown.fields) else '3 * 6 - 4'}"),
           "logic": dict(constraints=shown.fields.get("constraints", "").split("\n"))}[kind.name]
    proposal = kind.from_row(row)
    verdict, = sandbox.run([kind.job(proposal)])
    return kind.make(proposal, verdict, dataclasses.replace(Limits(), n_shown=2), "")


@pytest.mark.parametrize("prompt_format", ["chat", "base"])
@pytest.mark.parametrize("name", ["code_o", "code_i", "code_f", "math", "logic"])
def test_what_is_shown_solved_is_true_and_right(sandbox, name, prompt_format):
    """Of a task that a student could get, put in the same words, and correct by the verifier."""
    kind, limits = TASK_TYPES[name], dataclasses.replace(Limits(), n_shown=2)
    assert TEMPLATES[name].solved
    for number, shown in enumerate(TEMPLATES[name].solved):
        task = task_of(kind, shown, sandbox)
        prompt = kind.solve(prompt_format, task, limits)
        asked, written = prompt.turns[number]
        assert asked == prompt.user, "every {name} of the template is filled in as for the task itself"
        assert written.count(shown.thoughts) == 1 and shown.thoughts in reasoning(written, prompt_format)
        assert verify_answers([task], [[written]], prompt_format, limits, sandbox.run) == [["correct"]]


def test_turns_stand_before_the_question(base, monkeypatch):
    prompt = Prompt("And now?", turns=(("Why?", "So."),))
    monkeypatch.setattr(base.tokenizer, "chat_template", TURNS)
    chat, envelope = (base.tokenizer.decode(render(prompt, name, base.tokenizer).ids) for name in ("chat", "base"))
    assert chat == "<user>Why?<|im_end|><assistant>So.<|im_end|><user>And now?<|im_end|><assistant>"
    assert envelope.endswith("\nUser: Why?\nAssistant: So.\nUser: And now?\nAssistant: ")


def test_no_question_holds_a_block_that_could_be_copied_as_its_answer():
    """A placeholder such as VALUE was copied, by a model of 0.5B, instead of an answer."""
    for name, prompt_format in itertools.product(TASK_TYPES, ("chat", "direct", "base")):
        tag = TASK_TYPES[name].tags[0]
        asked = template(name, prompt_format, "solve")
        assert "```{tag}" not in asked.user and not Answer(asked.user, "chat").bodies(tag)
