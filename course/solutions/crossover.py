"""Solution of exercise 8."""
import torch


def midpoint(parent1, parent2):
    A1, B1 = parent1
    A2, B2 = parent2
    R = A1.shape[0]
    Q_b, R_b = torch.linalg.qr(torch.cat([B1, B2], dim=1))
    Q_a, R_a = torch.linalg.qr(torch.cat([A1, A2]).T)
    U, S, V_t = torch.linalg.svd(R_b @ R_a.T / 2)
    root = S[:R].sqrt()
    return (root[:, None] * V_t[:R]) @ Q_a.T, Q_b @ (U[:, :R] * root)
