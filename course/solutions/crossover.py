"""Solution of exercise 8."""
import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor]         # A (R, n), B (m, R)


def midpoint(parent1: Factors, parent2: Factors) -> Factors:
    """The child's factors, from an SVD of 2R x 2R."""
    A1, B1 = parent1
    A2, B2 = parent2
    R = len(A1)
    both_B = torch.cat([B1, B2], dim=1)                 # (m, 2R)
    both_A = torch.cat([A1, A2])                        # (2R, n)
    Q_b, R_b = torch.linalg.qr(both_B)                  # (m, 2R), (2R, 2R)
    Q_a, R_a = torch.linalg.qr(both_A.T)                # (n, 2R), (2R, 2R)
    U, S, V_t = torch.linalg.svd(R_b @ R_a.T / 2)
    root = S[:R].sqrt()                                 # half of each singular value for A, half for B
    A = root[:, None] * V_t[:R]
    B = U[:, :R] * root
    return A @ Q_a.T, Q_b @ B
