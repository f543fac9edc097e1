"""Prompts into tokens and answers back into text, with every family of tokenizers; templates that open the thinking themselves."""
import dataclasses

import pytest
from proposals import CHAT, judge, made
from small_tokenizers import CHATML, FAMILIES, LLAMA, THINKS, byte_level, fast, legacy, qwen, write_chat_base

import selfplay
from tasks.prompts import ENVELOPE, TURN, Prompt, concluded, reasoning
from tasks.rendering import decode_answers, render
from weights import load_base

GUESS = "It adds 2, so a first guess is\n```output\n5\n```\n"
CONTINUED = ("    c = a + b\n    return c\n", " x", "x", "\n\n  y", "é", "")


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request):
    return FAMILIES[request.param]()


@pytest.mark.parametrize("text", CONTINUED)
def test_an_answer_is_the_text_that_goes_on_where_the_prompt_ends(tokenizer, text):
    """Also in half a character, and behind a prompt that ends in bytes."""
    prompt = "def add(a, b):\n    'Sum.'\n"
    whole, ids = (tokenizer(given, add_special_tokens=False).input_ids for given in (prompt + text, prompt))
    while whole[:len(ids)] != ids:              # a merge over the border
        ids = ids[:-1]
    over = prompt.removeprefix(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
    assert len(over) < 2 and decode_answers([whole[len(ids):]], tokenizer) == [over + text]


def test_half_a_character_leaves_the_others_alone():
    wrapped = FAMILIES["legacy"]()
    half = wrapped.convert_tokens_to_ids(["<0xC3>", "x", "▁"])
    assert decode_answers([half, half[1:], []], wrapped) == ["\ufffdx ", "x ", ""]


def test_special_tokens_are_kept():
    wrapped = fast(byte_level(("<|end|>", "<|im_start|>", "<think>", "</think>")), CHATML, eos_token="<|end|>")
    ids = wrapped("<think>x</think><|im_start|>5", add_special_tokens=False).input_ids
    assert len(ids) == 5 and decode_answers([ids], wrapped) == ["<think>x</think><|im_start|>5"]


@pytest.mark.parametrize("prompt_format, prefix", [("direct", "```output\n"), ("base", "<think>"), ("chat", "Example about x:\n\n```input\n[")])
def test_a_prefix_follows_its_prompt_without_another_space(tokenizer, prompt_format, prefix):
    """And in the tokens that the whole text has, as an evaluation's."""
    asked = render(Prompt("Why?", prefix), prompt_format, tokenizer)
    bare = render(Prompt("Why?"), prompt_format, tokenizer)
    shown, before = (tokenizer.decode(found.ids, clean_up_tokenization_spaces=False) for found in (asked, bare))
    assert shown == before + prefix and asked.opening == prefix and bare.opening == ""
    if prompt_format == "base":
        assert asked.ids == tokenizer(ENVELOPE + TURN.format("Why?", prefix)).input_ids


# ---------------------------------------------------------------- templates that open the thinking

BEGUN = THINKS.replace("<think>\n{% endif", "<think>\nOkay, {% endif")
EMPTY = THINKS.replace("<think>\n{% endif", "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif")     # Qwen3's
TAUGHT = CHATML.replace("{% for", "Write <think> first.{% for", 1)
SWITCHED = CHATML.replace("assistant\n{% endif %}", "assistant\n{% if enable_thinking %}<think>{% endif %}{% endif %}")


@pytest.mark.parametrize("template, prompt_format, prefix, end, opening", [
    (THINKS, "chat", "", "<think>\n", "<think>\n"), (BEGUN, "chat", "", "<think>\nOkay, ", "<think>\nOkay, "),
    (THINKS, "direct", "```output\n", "<think>\n\n</think>\n\n```output\n", "```output\n"),
    (THINKS, "direct", "", "<think>\n\n</think>\n\n", ""), (SWITCHED, "chat", "", "<think>", "<think>"), (SWITCHED, "direct", "", "assistant\n", ""),
    (THINKS, "chat", "Example:\n", "<think>\n\n</think>\n\nExample:\n", "Example:\n"),
    (TAUGHT, "chat", "", "assistant\n", ""), (EMPTY, "chat", "```\n", "```\n", "```\n"), (EMPTY, "direct", "```\n", "<think>\n\n</think>\n\n```\n", "```\n")])
def test_who_renders_a_prompt_says_whether_it_ends_inside_thinking(template, prompt_format, prefix, end, opening):
    wrapped = qwen(template)
    found = render(Prompt("What is <think>?", prefix), prompt_format, wrapped)
    text = wrapped.decode(found.ids)
    assert text.rpartition("assistant\n")[2] == end.removeprefix("assistant\n") and text.endswith(end) and found.opening == opening


TASK = made("code_o", "def f(x):\n    return x + 2", ("3", 5))


@pytest.mark.parametrize("text, prompt_format, wanted", [
    ("<think>\n" + GUESS + "No, 7.\n</think>\n```output\n7\n```", "chat", "wrong"),
    ("<think>\nSo <answer>5</answer>, or", "chat", "malformed"), ("<think>\nHm.</think>\n<think>\n" + GUESS, "chat", "malformed"),
    ("<think>\nHm.</think>\n<answer>5</answer>", "chat", "correct"), ("```output\n<think>\n5\n```", "direct", "malformed"),
    ("<think>so <answer>5</answer>", "base", "correct"), ("<think>\n" + GUESS, "base", "malformed")])
def test_unfinished_thinking_is_no_answer(sandbox, text, prompt_format, wanted):
    assert judge(sandbox, TASK, prompt_format, text) == [wanted]


def test_nor_is_it_whatever_the_format():
    cut = "<think>\nIt may be \\boxed{5}, or"
    assert {concluded(cut, prompt_format) for prompt_format in ("chat", "direct", "envelope", "plain")} == {""}
    assert concluded("<think>a</think>b", "plain") == "b" and concluded("<think>a", "micro") == "<think>a"


def test_thinking_counts_as_reasoning_whoever_opened_it():
    assert reasoning("<think>\n```output\n5\n```\nor 6", "chat") and reasoning("<think>\n```\nx\n```\n</think>\n```output\n5\n```", "chat")
    assert reasoning("<think>\n\n</think>\n\n```output\n5\n```", "chat") == "" == reasoning("```output\n5\n```\nBecause.", "direct")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A small random base whose template opens the thinking."""
    return load_base(str(write_chat_base(tmp_path_factory.mktemp("thinker"), THINKS)))


def test_students_and_teachers_of_such_a_base(setup, thinker, population):
    """Students think, and what they wrote begins with it; teachers go on where their prefix ends."""
    s = dataclasses.replace(setup(max_new_tokens=8), base=thinker, adapters=population(thinker, 4, rank=2), limits=CHAT)
    done = selfplay.attempt(s, [TASK], [2], 0, selfplay.SOLVE, 3)
    assert [text.startswith("<think>\n") for text in done.texts[0]] == [True] * 3 and done.verdicts == [["malformed"] * 3]
    asked = Prompt("Write one.", "```input\n")
    _, texts = selfplay.ask(s, [asked], [0], 0, selfplay.PROPOSE, 2)
    assert all(text.startswith("```input\n") for text in texts)


def test_a_llama_like_tokenizer_puts_its_own_space_after_a_special_token():
    """As transformers does, which these models were trained by: the prefix adds none of its own."""
    inst = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}</s>{% endif %}"
    wrapped = fast(legacy(), inst, **LLAMA)
    found = render(Prompt("Why?", "```output\n"), "direct", wrapped)
    assert found.ids == wrapped("Why?</s>```output\n", add_special_tokens=False).input_ids
