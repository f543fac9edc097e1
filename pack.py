"""One copy of each prompt, its answers behind it: what the update runs instead of one row an answer.

    p p p p a a a b b       a line: prompt p, then answers a and b of one member, each less its last token
    0 1 2 3 4 5 6 4 5       positions: every answer goes on from the prompt

A token sees the prompt and its own answer up to itself, so that states and gradients are those of separate
rows. Eight proposals of 40 tokens to a prompt of 500 cost 812 tokens instead of 4,312.
"""
import itertools
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from generate import Rollout
from ranks import send

Line = list[int]                           # rows of a rollout that share a member and a prompt


@dataclass
class Packed:
    """G lines of T tokens by member, padded on the right, and where M answer tokens are predicted."""
    ids: Tensor                      # (G, T) int64
    positions: Tensor                # (G, T)
    mask: Tensor | None              # (G, 1, T, T) true where seen; None = causal: one answer a line
    member: Tensor                   # (G,) on the CPU: adapters are routed there, without a wait
    source: Tensor                   # (M,) index into the flattened (G T) states
    target: Tensor                   # (M,) the answer token
    row: Tensor                      # (M,) its row in the rollout
    column: Tensor                   # (M,) its place in that row
    logp: Tensor                     # (M,) its log-probability in the rollout


def size(rollout: Rollout, line: Line) -> int:
    """Tokens of a line: the prompt once, and each answer without its last token, which predicts nothing."""
    prompt = rollout.prompt_len[line[0]]
    answers = rollout.n_tokens[line] - 1
    return int(prompt + answers.sum())


def lines(rollout: Rollout, rows: list[int], budget: int) -> list[Line]:
    """Put rows of one member and prompt into lines of at most `budget` tokens, a longer row into its own."""
    groups: dict[tuple, list[Line]] = {}                   # lines by member and prompt
    cost = (rollout.n_tokens - 1).tolist()
    for i in rows:
        prompt = rollout.ids[i, :rollout.prompt_len[i]].tolist()
        key = (int(rollout.member[i]), *prompt)
        group = groups.setdefault(key, [[]])
        last = group[-1]
        used = len(prompt) + sum(cost[j] for j in last)
        if last and used + cost[i] > budget:
            last = []
            group.append(last)
        last.append(i)
    return list(itertools.chain.from_iterable(groups.values()))


def micro_batches(rollout: Rollout, rows: list[int], budget: int) -> list[list[Line]]:
    """Split rows into batches of lines of at most `budget` padded tokens, similar lengths together."""
    todo = [(size(rollout, line), line) for line in lines(rollout, rows, budget)]
    todo.sort()                                            # the shortest first, then by their rows
    batches = []
    batch = []
    for n_tokens, line in todo:
        # all are padded to the latest, which is the longest; a line beyond the budget runs alone
        if batch and (len(batch) + 1) * n_tokens > budget:
            batches.append(batch)
            batch = []
        batch.append(line)
    if batch:
        batches.append(batch)
    return batches


def seen(answer: Tensor) -> Tensor:
    """Which keys a query of a packed line sees (G, 1, T, T): the prompt and its own answer up to itself.
    answer (G, T): 0 = the prompt, 1, 2, ... = the answers, -1 = padding."""
    same = answer[:, :, None] == answer[:, None, :]        # (G, query, key)
    prompt = answer[:, None, :] == 0
    causal = torch.ones_like(same).tril()
    allowed = (same | prompt) & causal
    return allowed[:, None]                                # (G, 1, T, T), the same for all heads


def pack(rollout: Rollout, batch: list[Line], device: torch.device | str = "cpu") -> Packed:
    """Lay out a batch of lines of a rollout on the CPU, for the given device."""
    batch = sorted(batch, key=lambda line: int(rollout.member[line[0]]))
    G = len(batch)
    T = max(size(rollout, line) for line in batch)
    row = torch.zeros(G, T, dtype=torch.int64)             # whose token stands there
    position = torch.zeros_like(row)
    answer = torch.full_like(row, -1)                      # 0 = prompt; 1, 2, ... = answers; -1 = padding
    source = []                                            # place of the state that predicts a token
    target_row, column = [], []                            # that token
    for g, line in enumerate(batch):
        P = int(rollout.prompt_len[line[0]])
        row[g, :P] = line[0]
        position[g, :P] = torch.arange(P)
        answer[g, :P] = 0
        at = P                                             # where the next answer begins
        for number, i in enumerate(line, 1):
            n = int(rollout.n_tokens[i]) - 1               # the last token is predicted, and not read
            here = slice(at, at + n)
            row[g, here] = i
            position[g, here] = torch.arange(P, P + n)
            answer[g, here] = number
            first = g * T                                  # of the line, among the flattened states
            source.append(first + P - 1)                   # the prompt's end predicts the first token
            source += range(first + at, first + at + n)
            target_row += [i] * (n + 1)
            column += range(P, P + n + 1)
            at += n
    target_row = torch.tensor(target_row)
    column = torch.tensor(column)
    ids = rollout.ids[row, position] * (answer >= 0)

    put = partial(send, device=device)                     # the processor goes on while a GPU is busy
    mask = None
    if max(map(len, batch)) > 1:
        mask = seen(put(answer))
    return Packed(
        ids=put(ids),
        positions=put(position),
        mask=mask,
        member=rollout.member[row[:, 0]],
        source=put(torch.tensor(source)),
        target=put(rollout.ids[target_row, column]),
        row=put(target_row),
        column=put(column),
        logp=put(rollout.logp[target_row, column]))
