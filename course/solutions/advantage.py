"""Solution of exercise 3. Per learner: a loud learner would otherwise set the step size of a quiet one."""
import torch
from torch import Tensor


def advantages(reward: Tensor, group: Tensor, learner: Tensor, n_tokens: Tensor) -> Tensor:
    """The advantages (N,), float64."""
    N = len(reward)
    d = torch.zeros(N, dtype=torch.float64)             # a row's reward less its group's mean
    live = torch.zeros(N, dtype=torch.bool)
    for number in group.unique():
        rows = group == number                          # (N,) bool
        rewards = reward[rows].double()
        d[rows] = rewards - rewards.mean()
        spread = rewards.std(correction=0)
        live[rows] = bool(spread > 1e-6)
    adv = torch.zeros(N, dtype=torch.float64)           # stays 0 where a row is not live
    for one in learner.unique():
        rows = (learner == one) & live
        if not rows.any():
            continue
        own = d[rows]
        own_tokens = n_tokens[rows].double()
        share = own_tokens / own_tokens.sum()
        mean = (share * own).sum()
        variance = (share * (own - mean) ** 2).sum()
        adv[rows] = (own - mean) / (variance.sqrt() + 1e-6)
    return adv
