"""Solution of exercise 1. Merged weights serve one member: eight need eight copies of the base in memory."""


def forward(x, W, A, B, member, scale):
    rows = (member >= 0).nonzero().squeeze(1)                 # those of the base take no part in what follows
    own = member[rows]
    h = x[rows] @ A[own].transpose(1, 2)                      # (rows, T, R)
    return (x @ W.T).index_add(0, rows, scale * h @ B[own].transpose(1, 2))
