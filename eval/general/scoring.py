"""MMLU's prompt, and the likeliest letter after it.

The prompt is that of hendrycks/test (evaluate.py), to the character; so is the choice by likelihood: the
letter whose token, with the space before it, has the highest log-probability, the first of equals.

The prompts of a subject begin alike, with its five examples. So the members' forward pass takes lines of many
questions: the common beginning once, then the questions' own ends, each of which sees the beginning and
itself.

    ids        shared shared shared | own own own | own own
    positions       0      1      2 |   3   4   5 |   3   4
"""
import os.path

import torch

from eval.common import Population
from eval.general.data import LETTERS, Question

# ---- the prompt --------------------------------------------------------------------------------------------

def described(question: Question, answer: str = "") -> str:
    """A question with its choices as the prompt has it, up to "Answer:" and, for an example, its letter."""
    lines = [question.text, *(f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices))]
    return "\n".join(lines) + "\nAnswer:" + (f" {answer}\n\n" if answer else "")


def prompt(shots: tuple[Question, ...], question: Question) -> str:
    """The published prompt. (Its two spaces before the subject's name are the published code's.)"""
    name = " " + question.subject.replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {name}.\n\n"
    return head + "".join(described(shot, shot.gold) for shot in shots) + described(question)


def cropped(shots: tuple[Question, ...], question: Question, tokenizer, room: int) -> tuple[list[int], int]:
    """Token ids of the prompt, and of what comes before the letter itself (in most vocabularies nothing),
    with as many of the first examples as fit into `room` tokens, and how many. Raises ValueError where the
    question alone does not fit."""
    for k in range(len(shots), -1, -1):
        ids = list(tokenizer(f"{prompt(shots[:k], question)} {LETTERS[0]}").input_ids[:-1])
        if len(ids) <= room:
            return ids, k
    raise ValueError(f"a question of {question.subject} has {len(ids)} tokens without any example, and the "
                     f"base's context has room for {room}: leave such subjects out (--subjects)")


# ---- by likelihood -----------------------------------------------------------------------------------------

def letter_ids(tokenizer) -> list[int]:
    """The tokens of " A" to " D" after "Answer:". Raises ValueError where more than the last one differs."""
    whole = [tokenizer(f"Answer: {letter}").input_ids for letter in LETTERS]
    if len({tuple(ids[:-1]) for ids in whole}) > 1 or len({ids[-1] for ids in whole}) < len(LETTERS):
        raise ValueError("this base's tokenizer has no token for each letter, so MMLU cannot be asked")
    return [ids[-1] for ids in whole]


def shared_length(prompts: list[list[int]]) -> int:
    """How many tokens all prompts begin with; each keeps one token of its own."""
    return min(len(os.path.commonprefix(prompts)), min(map(len, prompts)) - 1)


def line(prompts: list[list[int]], n_shared: int) -> tuple[torch.Tensor, ...]:
    """ids and positions (1, T), mask (1, 1, T, T) and the last token of each prompt (k,), as drawn above."""
    ids, positions = list(prompts[0][:n_shared]), list(range(n_shared))
    part, last = [0] * n_shared, []
    for number, tokens in enumerate(prompts, 1):
        own = tokens[n_shared:]
        ids += own
        positions += range(n_shared, len(tokens))
        part += [number] * len(own)
        last.append(len(ids) - 1)
    part = torch.tensor(part)
    visible = (part == 0) | (part[:, None] == part)                     # (T, T): query, key
    mask = visible.tril()[None, None]
    return torch.tensor([ids]), torch.tensor([positions]), mask, torch.tensor(last)


@torch.inference_mode()
def letter_logps(population: Population, prompts: list[list[int]], members: list[str]) -> torch.Tensor:
    """Log-probabilities (members, prompts, 4) of the letters after each prompt, by one forward pass."""
    base, n_shared = population.base, shared_length(prompts)
    device = base.model.embedding.device
    ids, positions, mask, last = [x.to(device) for x in line(prompts, n_shared)]
    member = torch.tensor([population.slots[name] for name in members], device=device)
    lora = None
    if population.adapters is not None:
        lora = population.adapters.route(member, base.model.embedding.dtype)
    B, T = len(members), ids.shape[1]
    hidden = base.model(ids.expand(B, T), positions.expand(B, T), mask, lora=lora)
    logits = base.model.logits(hidden[:, last]).float()                 # (members, prompts, V)
    return logits[:, :, letter_ids(base.tokenizer)] - logits.logsumexp(-1, keepdim=True)
