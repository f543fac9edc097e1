"""Exercise 2: the loss of the policy gradient.

Check it with: python -m pytest course/tests/test_loss.py

REINFORCE (Williams 1992) on sampled tokens. Row i of a batch is a prompt of prompt_len[i] tokens, then the
answer that was sampled, up to length[i], with the end token E if the model ended it; behind it is padding:

    position            0 1 2 3 4 5 6 7 8         prompt_len 3, length 7:
    ids                 p p p a a a E 0 0         the answer's tokens, four of them, are at 3 4 5 6

    loss_q = 1 / n_q * sum over q's rows i and their answers' positions t of  -advantage_i log p(ids[i, t])
    loss   = sum over members q of loss_q

where n_q counts the answer tokens of all rows of member q, those with advantage 0 included, and p is the
softmax of the logits that score the token. Traps:

    1. logits[i, t] were computed from the tokens up to t: they score ids[i, t + 1].
    2. The prompt was not sampled and is not trained. The end token was, and is: else nobody learns to stop.
    3. Padding is known by the lengths and not by its id: in an answer, 0 is a token like any other.

Why is the mean taken over all of a member's tokens at once, and not over each row's first (as in GRPO)?
"""
from torch import Tensor


def loss(
    logits: Tensor,                     # (N, T, V)
    ids: Tensor,                        # (N, T)
    prompt_len: Tensor,                 # (N,)
    length: Tensor,                     # (N,)
    member: Tensor,                     # (N,) int64
    advantage: Tensor,                  # (N,)
) -> Tensor:
    """The loss, a scalar."""
    raise NotImplementedError("exercise 2")
