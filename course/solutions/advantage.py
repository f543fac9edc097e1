"""Solution of exercise 3. Per learner: a loud learner would otherwise set the step size of a quiet one."""
import torch


def advantages(reward, group, learner, n_tokens):
    d = torch.zeros(len(reward), dtype=torch.float64)
    out = torch.zeros(len(reward), dtype=torch.float64)
    live = torch.zeros(len(reward), dtype=torch.bool)
    for g in group.unique():
        rows = group == g
        r = reward[rows].double()
        d[rows] = r - r.mean()
        live[rows] = bool(r.std(correction=0) > 1e-6)
    for one in learner.unique():
        rows = (learner == one) & live
        if rows.any():
            weight = n_tokens[rows].double() / n_tokens[rows].sum()
            mean = (weight * d[rows]).sum()
            std = (weight * (d[rows] - mean) ** 2).sum().sqrt()
            out[rows] = (d[rows] - mean) / (std + 1e-6)
    return out
