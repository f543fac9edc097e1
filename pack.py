"""One copy of each prompt, its answers behind it: what the update runs instead of one row an answer.

    p p p p a a a b b       a line: prompt p, then answers a and b of one member, each less its last token
    0 1 2 3 4 5 6 4 5       positions: every answer goes on from the prompt

A token sees the prompt and its own answer up to itself, so that states and gradients are those of separate
rows. Eight proposals of 40 tokens to a prompt of 500 cost 812 tokens instead of 4,312.
"""
from dataclasses import dataclass
from functools import partial

import torch

from generate import Rollout
from infra.gpu import send

Line = list[int]                           # rows of a rollout that share a member and a prompt


@dataclass
class Packed:
    """G lines of T tokens by member, padded on the right, and where M answer tokens are predicted."""
    ids: torch.Tensor                      # (G, T) int64
    positions: torch.Tensor                # (G, T)
    mask: torch.Tensor | None              # (G, 1, T, T) true where seen; None = causal: one answer a line
    member: torch.Tensor                   # (G,) on the CPU: adapters are routed there, without a wait
    source: torch.Tensor                   # (M,) index into the flattened (G T) states
    target: torch.Tensor                   # (M,) the answer token
    row: torch.Tensor                      # (M,) its row in the rollout
    column: torch.Tensor                   # (M,) its place in that row
    logp: torch.Tensor                     # (M,) its log-probability in the rollout


def size(rollout: Rollout, line: Line) -> int:
    """Tokens of a line."""
    return int(rollout.prompt_len[line[0]] + (rollout.n_tokens[line] - 1).sum())


def lines(rollout: Rollout, rows: list[int], budget: int) -> list[Line]:
    """Put rows of one member and prompt into lines of at most `budget` tokens, a longer row into its own."""
    groups: dict[tuple, list[Line]] = {}                   # lines by member and prompt
    cost = (rollout.n_tokens - 1).tolist()
    for i in rows:
        prompt = rollout.ids[i, :rollout.prompt_len[i]].tolist()
        group = groups.setdefault((int(rollout.member[i]), *prompt), [[]])
        used = len(prompt) + sum(cost[j] for j in group[-1])
        if group[-1] and used + cost[i] > budget:
            group.append([])
        group[-1].append(i)
    return sum(groups.values(), [])


def micro_batches(rollout: Rollout, rows: list[int], budget: int) -> list[list[Line]]:
    """Split rows into batches of lines of at most `budget` padded tokens, similar lengths together."""
    todo = sorted((size(rollout, line), line) for line in lines(rollout, rows, budget))
    out = []
    while todo:
        n = 1                                              # a line beyond the budget runs alone
        while n < len(todo) and (n + 1) * todo[n][0] <= budget:
            n += 1
        out.append([line for _, line in todo[:n]])
        todo = todo[n:]
    return out


def seen(answer: torch.Tensor) -> torch.Tensor:
    """Which keys a query of a packed line sees (G, 1, T, T): the prompt and its own answer up to itself.
    answer (G, T): 0 = the prompt, 1, 2, ... = the answers, -1 = padding."""
    same = answer[:, :, None] == answer[:, None, :]                     # query, key
    prompt = answer[:, None, :] == 0
    causal = torch.ones_like(same).tril()
    return ((same | prompt) & causal)[:, None]


def pack(rollout: Rollout, batch: list[Line], device="cpu") -> Packed:
    """Lay out a batch of lines of a rollout on the CPU, for the given device."""
    batch = sorted(batch, key=lambda line: int(rollout.member[line[0]]))
    G, T = len(batch), max(size(rollout, line) for line in batch)
    row, position = torch.zeros(2, G, T, dtype=torch.int64)
    answer = torch.full((G, T), -1)                        # 0 = prompt; 1, 2, ... = answers; -1 = padding
    source, targets = [], []
    for g, line in enumerate(batch):
        P = at = int(rollout.prompt_len[line[0]])
        row[g, :P] = line[0]
        position[g, :P] = torch.arange(P)
        answer[g, :P] = 0
        for a, i in enumerate(line, 1):
            n = int(rollout.n_tokens[i]) - 1               # the last token is predicted, and not read
            here = slice(at, at + n)
            row[g, here] = i
            position[g, here] = torch.arange(P, P + n)
            answer[g, here] = a
            source += [g * T + P - 1, *range(g * T + at, g * T + at + n)]      # the prompt predicts the first
            targets += [(i, t) for t in range(P, P + n + 1)]
            at += n
    target_row, column = torch.tensor(targets).unbind(1)
    ids = rollout.ids[row, position] * (answer >= 0)

    put = partial(send, device=device)                     # the processor goes on while a GPU is busy
    mask = seen(put(answer)) if max(map(len, batch)) > 1 else None
    return Packed(put(ids), put(position), mask, rollout.member[row[:, 0]], put(torch.tensor(source)),
                  put(rollout.ids[target_row, column]), put(target_row), put(column),
                  put(rollout.logp[target_row, column]))
