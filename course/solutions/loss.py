"""Solution of exercise 2. With a mean over each row first, a long wrong answer is blamed less for each of its
tokens than a short one, and wrong answers grow (Dr. GRPO, arXiv 2503.20783)."""
import torch
from torch import Tensor


def loss(
    logits: Tensor,                     # (N, T, V)
    ids: Tensor,                        # (N, T)
    prompt_len: Tensor,                 # (N,)
    length: Tensor,                     # (N,)
    member: Tensor,                     # (N,) int64
    advantage: Tensor,                  # (N,)
) -> Tensor:
    """The sum over members of the mean over their answers' tokens."""
    position = torch.arange(1, ids.shape[1])            # (T - 1,) of the tokens that are scored
    after_prompt = position >= prompt_len[:, None]      # (N, T - 1)
    in_answer = after_prompt & (position < length[:, None])     # (N, T - 1)
    target = ids[:, 1:, None]                           # (N, T - 1, 1)
    logp = logits[:, :-1].log_softmax(-1)               # (N, T - 1, V)
    logp = logp.gather(2, target).squeeze(2)            # (N, T - 1)
    # The tokens of all rows of a member count, also of those without an advantage.
    same_member = member[:, None] == member             # (N, N)
    n_tokens = (same_member * (length - prompt_len)).sum(1)     # (N,) of each row's member
    weight = -advantage / n_tokens                      # (N,)
    terms = weight[:, None] * logp                      # (N, T - 1)
    return terms[in_answer].sum()
