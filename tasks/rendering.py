"""Turns prompts into token ids, and token ids back into texts.

The words are those of prompts.py. Here the base has its say: its chat template, its special tokens and its
decoder, which differ from family to family.
"""
from dataclasses import dataclass

from common import UserError
from tasks.prompts import ENVELOPE, FORMATS, THINK, THOUGHT, TURN, Prompt


def chat_text(messages: list[dict], prompt_format: str, tokenizer: object, begins: bool = True) -> str:
    """Returns messages as the tokenizer's chat template writes them. begins: the assistant's turn follows.
    Raises UserError if there is no template, or if it raises: it is a program of the base's makers."""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False,
                                             add_generation_prompt=begins,
                                             enable_thinking=FORMATS[prompt_format].thinking)
    except Exception as e:
        raise UserError(f"the base's chat template makes no prompt ({type(e).__name__}: {e!s:.200}): take "
                         "the prompt format base, or a model with another template") from None


@dataclass(frozen=True)
class Rendered:
    """Holds a prompt as a model is given it, and what of the model's answer it holds already: a prefix, or
    the "<think>" of a template that opens the thinking itself. Parsers are shown the opening and the answer.
    closing: a text that ends the answer; "" = the end token alone does."""
    ids: list[int]
    opening: str = ""
    closing: str = ""


def render(prompt: Prompt, prompt_format: str, tokenizer: object) -> Rendered:
    """Returns the token ids of a prompt and its prefix. They are tokenised together, because tokenizers of
    the SentencePiece kind put a space before a text that stands alone.

    Where a template ends inside thinking, a prefix would become a thought, and a student that is to answer at
    once (direct) would think: there the thinking is closed first, with nothing in it.
    """
    text = prompt.user
    opening = prompt.prefix
    if prompt_format in ("chat", "direct"):
        messages = []
        if prompt.system:
            messages.append(dict(role="system", content=prompt.system))
        for asked, answered in prompt.turns:
            messages += [dict(role="user", content=asked), dict(role="assistant", content=answered)]
        messages.append(dict(role="user", content=prompt.user))
        text = chat_text(messages, prompt_format, tokenizer)
        without_turn = chat_text(messages, prompt_format, tokenizer, begins=False)
        thought = open_thought(text.removeprefix(without_turn))
        answers_at_once = prompt.prefix or not FORMATS[prompt_format].thinking
        if thought and answers_at_once:
            text = f"{text.rstrip()}\n\n{THOUGHT}\n\n"
        elif thought:
            opening = thought
    elif prompt_format == "base":
        text = ENVELOPE
        for asked, answered in prompt.turns:
            text += TURN.format(asked, answered) + "\n"
        text += TURN.format(prompt.user, "")
    # A chat template has written the special tokens already; a second begin token would be one too many.
    special = prompt_format == "base"
    # Without its warning of a long text: whoever asks compares the length with the base's context.
    tokens = tokenizer(text + prompt.prefix, add_special_tokens=special, return_special_tokens_mask=True,
                       verbose=False)
    ids = tokens.input_ids
    while tokens.special_tokens_mask[len(ids) - 1]:     # an end token that the tokenizer appends
        ids.pop()
    return Rendered(ids, opening, prompt.closing or FORMATS[prompt_format].closing)


def open_thought(turn: str) -> str:
    """Returns the thinking that the beginning of an assistant's turn leaves open, with its tag; "" if it does
    not think."""
    _, tag, thought = turn.rpartition(THINK)
    if THOUGHT in thought:
        return ""
    return tag and tag + thought


def decode_answers(answers: list[list[int]], tokenizer: object) -> list[str]:
    """Returns the texts of answers' token ids, special tokens included, as they go on where a prompt ends.

    An answer is decoded behind a letter, which is taken away again: decoders of the SentencePiece kind drop
    the space that a text begins with. Behind its prompt it would not do: if an answer begins with half a
    character in bytes, they make the bytes before it, such as a line's end, unreadable as well."""
    letter = tokenizer("a", add_special_tokens=False).input_ids
    rows = [letter + answer for answer in answers]
    # Cleaning up would take the spaces before punctuation from a program.
    how = dict(skip_special_tokens=False, clean_up_tokenization_spaces=False)
    n = len(tokenizer.decode(letter, **how))
    return [text[n:] for text in tokenizer.batch_decode(rows, **how)]
