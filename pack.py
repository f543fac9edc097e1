"""One copy of each prompt, its answers behind it: what the update runs instead of one row an answer.

    p p p p a a a b b         a line: prompt p, then answers a and b of one member to it, each without its last token
    0 1 2 3 4 5 6 4 5         positions: every answer goes on from the prompt

A token sees the prompt and its own answer up to itself, so that the states and gradients are those of separate rows. The
prompt's are computed once: eight proposals of 40 tokens to a prompt of 500 cost 812 tokens instead of 4,312.

All functions read single numbers of a rollout: it should lie in the processor's memory, where that makes nobody wait.
"""
from dataclasses import dataclass

import torch

from generate import Rollout

Line = list[int]                       # rows of a rollout that share a member and a prompt


@dataclass
class Packed:
    """G lines of T tokens, padded on the right and ordered by member, and where their M answer tokens are predicted."""
    ids: torch.Tensor                  # (G, T) int64
    positions: torch.Tensor            # (G, T)
    mask: torch.Tensor | None          # (G, 1, T, T) true where a token is seen; None = causal, no line holds two answers
    member: torch.Tensor               # (G,)
    source: torch.Tensor               # (M,) index into the flattened (G T) states
    target: torch.Tensor               # (M,) the answer token
    row: torch.Tensor                  # (M,) its row in the rollout
    logp: torch.Tensor                 # (M,) its log-probability in the rollout


def size(rollout: Rollout, line: Line) -> int:
    """Tokens of a line."""
    return int(rollout.prompt_len[line[0]] + (rollout.n_tokens[line] - 1).sum())


def lines(rollout: Rollout, rows: list[int], budget: int) -> list[Line]:
    """Put rows of one member and prompt into lines of at most `budget` tokens; a longer row has a line of its own."""
    same: dict[tuple, list[Line]] = {}
    cost = (rollout.n_tokens - 1).tolist()
    for i in rows:
        prompt = rollout.ids[i, :rollout.prompt_len[i]].tolist()
        group = same.setdefault((int(rollout.member[i]), *prompt), [[]])
        if group[-1] and len(prompt) + sum(cost[j] for j in group[-1]) + cost[i] > budget:
            group.append([])
        group[-1].append(i)
    return [line for group in same.values() for line in group]


def micro_batches(rollout: Rollout, rows: list[int], budget: int) -> list[list[Line]]:
    """Split rows into batches of lines of at most `budget` padded tokens, similar lengths together; at least one line each."""
    todo, out = sorted((size(rollout, line), line) for line in lines(rollout, rows, budget)), []
    while todo:
        n = 1
        while n < len(todo) and (n + 1) * todo[n][0] <= budget:
            n += 1
        out.append([line for _, line in todo[:n]])
        todo = todo[n:]
    return out


def pack(rollout: Rollout, batch: list[Line], device="cpu") -> Packed:
    """Lay out a batch of lines, on the given device."""
    batch = sorted(batch, key=lambda line: int(rollout.member[line[0]]))
    G, T = len(batch), max(size(rollout, line) for line in batch)
    row, position, answer = (torch.full((G, T), fill) for fill in (0, 0, -1))          # answer: 0 = the prompt, -1 = padding
    source, targets = [], []
    start, end = rollout.prompt_len.tolist(), rollout.length.tolist()
    for g, line in enumerate(batch):
        P = at = start[line[0]]
        row[g, :P], position[g, :P], answer[g, :P] = line[0], torch.arange(P), 0
        for a, i in enumerate(line, 1):
            n = end[i] - P
            here = slice(at, at + n - 1)
            row[g, here], position[g, here], answer[g, here] = i, torch.arange(P, end[i] - 1), a
            source += [g * T + P - 1, *range(g * T + at, g * T + at + n - 1)]      # the prompt's last token predicts the first
            targets += [(i, t) for t in range(P, end[i])]
            at += n - 1
    of, t = torch.tensor(targets).unbind(1)
    ids, answer = rollout.ids[row, position] * (answer >= 0), answer.to(device)
    seen = (answer[:, None] == answer[..., None]) | (answer[:, None] == 0)             # (G, T, T): query, key
    mask = None if max(map(len, batch)) == 1 else (seen & torch.ones_like(seen).tril())[:, None]
    here = ids, position, rollout.member[row[:, 0]], torch.tensor(source), rollout.ids[of, t], of, rollout.logp[of, t]
    ids, position, *rest = (x.to(device) for x in here)
    return Packed(ids, position, mask, *rest)
