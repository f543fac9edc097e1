"""Does a base load right, and is it understood? Against transformers, and by what its own texts are read as.

    python -m weights --check Qwen/Qwen2.5-Coder-0.5B-Instruct
    python -m weights --check micro/base

The comparison decides on the exit code. The two texts do not: a base that has never seen a prompt format may
miss it, and that is better seen here than after a night of training.
"""
import json
from dataclasses import replace

import torch

from config import Config, resolve_config
from generate import Prompts, SamplingParams, generate
from infra.command import leave, parser_of
from infra.distributed import ALONE
from model import Base
from sandbox.values import encode
from selfplay import PROPOSE, Setup, ask, make_rng
from tasks import IDENTITY, TASK_TYPES
from tasks.base import Reject, Task
from tasks.validation import Limits
from weights import load_base

KIND = "code_o"
# What the teacher is shown, and what the student is asked: gold outputs are known, no sandbox is needed.
EXAMPLE = Task(KIND, IDENTITY.program, IDENTITY.inputs, (encode([1, 2, 3]),), "", "")
TASK = Task(KIND, "def f(x):\n x=x+[4]\n return x[::-1]", ("[1,2,3]",), (encode([4, 3, 2, 1]),), "", "")


@torch.inference_mode()
def compare(base: Base, n_new: int = 64) -> dict:
    """Greedy tokens, decoded here one after another, and all logits, compared with transformers in float32.

    Only logits are compared: transformers' `generate` follows generation_config.json (beams, penalties,
    suppressed tokens), which says nothing about the weights."""
    from transformers import AutoModelForCausalLM
    reference = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32).eval()
    prompt = base.tokenizer("def fibonacci(n):\n")["input_ids"]
    n_new = min(n_new, base.model.cfg.max_position_embeddings - len(prompt))
    endless = replace(base, eos_ids=())         # a base that ends at once would have nothing to compare
    rollout = generate(endless, None, Prompts([prompt], [-1], [(0,)]), SamplingParams(1, 0.0, n_new))
    ids = rollout.ids[:, :int(rollout.length)]                  # (1, T)
    ours = base.model.logits(base.model(ids))                   # (1, T, V)
    theirs = reference(ids).logits
    answer = ids[0, len(prompt):]
    likeliest = theirs[0, len(prompt) - 1:-1].argmax(-1)        # what stands before a token predicts it
    same = likeliest == answer
    return dict(
        base=str(base.path),
        max_abs_diff=(ours - theirs).abs().max().item(),
        tokens=int(same.sum()),
        of=len(same),
        text=base.tokenizer.decode(answer))


def show_parsed(base: Base, n_new: int) -> None:
    """Print the likeliest text of the base as a teacher and as a student, in training's prompt format, and
    what the parsers make of it. n_new: tokens of a text, at most; 0 = as in training."""
    prompt_format = base.prompt_format
    task_type = TASK_TYPES[KIND]
    cfg = resolve_config(Config(max_new_tokens=n_new or None), prompt_format)
    limits = Limits.of_run(cfg, prompt_format, base.tokenizer)
    asked = [task_type.propose(prompt_format, [EXAMPLE], make_rng(cfg.seed, 0, PROPOSE), limits),
             task_type.solve(prompt_format, TASK, limits)]
    setup = Setup(cfg, base, None, ALONE, None, limits)
    _, (proposed, answered) = ask(setup, asked, [-1, -1], 0, PROPOSE, 1, temperature=0.0)

    print(f"--- as a teacher of {KIND}, in the prompt format {prompt_format}, it writes\n{proposed}")
    proposal = task_type.parse_proposal(proposed, prompt_format, [EXAMPLE], limits)
    refused = proposal if isinstance(proposal, Reject) else task_type.check(proposal, limits)
    if refused:
        print(f"--- which is refused: {refused.reason}")
    else:
        print(f"--- which is read as the program and the call\n{proposal.program}\nf({proposal.inputs[0]})")

    print(f"--- as a student, asked for f({TASK.inputs[0]}) of\n{TASK.program}\n--- it writes\n{answered}")
    answer = task_type.parse_answer(answered, prompt_format, TASK, limits)
    if answer is None:
        print("--- which is malformed")
    else:
        print(f"--- which is read as the answer\n{answer}")


def main() -> int:
    """The command line: prints both, 0 where the base computes what transformers computes."""
    parser = parser_of("python -m weights", __doc__)
    parser.add_argument("--check", metavar="DIR", required=True, help="model directory or hub id")
    parser.add_argument("--max-new-tokens", type=int, default=0, help="of the two texts; 0 = as in training")
    args = parser.parse_args()
    base = load_base(args.check)
    result = compare(base)
    print(json.dumps(result, indent=1), flush=True)
    show_parsed(base, args.max_new_tokens)
    is_same = result["tokens"] == result["of"] and result["max_abs_diff"] < 1e-3
    return int(not is_same)


if __name__ == "__main__":
    leave("weights", main)
