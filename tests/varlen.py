"""torch.nn.attention.varlen.varlen_attn by plain loops, with what flash attention demands of its arguments: for tests without a GPU."""
import inspect

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

needs_pages = pytest.mark.skipif("block_table" not in inspect.signature(varlen_attn).parameters,
                                 reason="torch before 2.13 has no pages: the cache is dense")


def varlen_reference(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
                     enable_gqa=False, seqused_k=None, block_table=None, num_splits=None):
    """Queries (T, H, D) on pages (P, page, K, D) by block_table (N, n), of which row i has seqused_k[i] tokens: outputs (T, H, D)."""
    N, page, (T, H, D), K = len(block_table), key.shape[1], query.shape, key.shape[2]
    assert key.shape == value.shape == (len(key), page, K, D) and (K == H or enable_gqa and H % K == 0)
    assert all(x.dtype == torch.int32 and x.device == query.device for x in (cu_seq_q, cu_seq_k, seqused_k, block_table))
    assert cu_seq_q.shape == cu_seq_k.shape == (N + 1,) and seqused_k.shape == (N,) and cu_seq_q[-1] == T
    assert all(x.stride(-1) == 1 for x in (query, key, value, block_table)) and seqused_k.is_contiguous()
    assert max_k == block_table.shape[1] * page and seqused_k.min() > 0 and seqused_k.max() <= max_k
    assert max_q == cu_seq_q.diff().max() and return_aux is None and num_splits == 1
    out = torch.full_like(query, torch.nan)
    for i in range(N):
        S, first, last = int(seqused_k[i]), int(cu_seq_q[i]), int(cu_seq_q[i + 1])
        slot = torch.arange(S)
        keys, values = (x[block_table[i][slot // page].long(), slot % page] for x in (key, value))      # (S, K, D)
        for t in range(first, last):
            at = S - (last - t)                                         # the last query is the last key's
            seen = torch.ones(S, dtype=torch.bool)
            seen &= slot >= at - window_size[0] if window_size[0] >= 0 else True
            seen &= slot <= at + window_size[1] if window_size[1] >= 0 else True
            for h in range(H):
                score = keys[:, h * K // H] @ query[t, h] * (D ** -0.5 if scale is None else scale)
                out[t, h] = score.masked_fill(~seen, -torch.inf).softmax(0) @ values[:, h * K // H]
    return out
