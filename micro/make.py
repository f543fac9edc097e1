"""Makes micro/base, the bundled base of 0.84M parameters: tokenizer, two phases of training, held-out tasks.

    python -m micro.make                                            # both phases: hours on one core
    python -m micro.make --phase 2                                  # the second alone, on micro/phase1
    python -m micro.make --phase 1 --tokens 2e6 --out out/tiny      # a quick one to try a change on
    python -m micro.evaluate micro/base                             # what it can do

Phase 1 (OUT/phase1) teaches the skills: write programs, and answer with a trace of the values. Phase 2
(OUT/base) takes the habit away and leaves the skill (micro/README.md). The data (micro/data.py) are generated
as training goes, and no program reserved for evaluation enters them. Every draw is keyed by SEED and the
number of the pool of examples, and the schedule counts tokens, so a run can be repeated.
"""
import json
from pathlib import Path
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence

from common import leave, parser_of
from micro import data
from model import Model, ModelConfig
from weights import read_weights

# Digits, capitals and the openings of lists are tokens of their own: a value is always cut the same way.
PRE_TOKENS = r"\[::-1\]|[A-Z]|[\[,]\d|\d|[^\dA-Z\[,]+|[\[,]"
SEED = 1
PAD, EOS = 0, 1
NO_TARGET = -100                # F.cross_entropy leaves it out
VOCAB = 384
SHAPE = dict(
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    tie_word_embeddings=True)
WARMUP_STEPS = 60
DECAY = 1 / 3                   # of a phase's tokens, its last ones: the rate falls linearly ...
FLOOR = .02                     # ... to this share of its peak
ROWS = 96                       # of a batch
BATCHES_PER_POOL = 48
MAX_TOKENS = 152                # of a row
COMMITTED = Path(__file__).parent
Row = tuple[torch.Tensor, torch.Tensor]         # a training row: token ids (T,), and their targets (T-1,)
# The base's files of settings, without their ending: a Qwen2 with our prompt format
SETTINGS = dict(
    config=dict(
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        prompt_format="micro",
        vocab_size=VOCAB,
        **SHAPE,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        use_sliding_window=False,
        attention_dropout=0.0,
        initializer_range=.02,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        torch_dtype="bfloat16"),
    generation_config=dict(eos_token_id=EOS, pad_token_id=PAD, do_sample=True, temperature=1.0),
    tokenizer_config=dict(
        tokenizer_class="TokenizersBackend",
        auto_map={"AutoTokenizer": [None, None]},   # empty: else AutoTokenizer splits texts as for any qwen2
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
        model_max_length=SHAPE["max_position_embeddings"],
        padding_side="left"))


def train_tokenizer(n: int = 20000) -> Tokenizer:
    """Returns a BPE over n examples. Ids 0 and 1 are <pad> and <eos>; printable ASCII and newline are in
    it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PRE_TOKENS), "isolated")
    tokenizer.decoder = decoders.Fuse()
    rng = Random(f"{SEED}/tokenizer")
    texts = []
    for _ in range(n):
        example = data.example(rng)
        texts.append(example.prompt + example.answer)
    printable = [chr(i) for i in range(32, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<pad>", "<eos>"],
        show_progress=False,
        initial_alphabet=[*printable, "\n"])
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def row_of(example: data.Example, tokenizer: Tokenizer) -> Row:
    """Returns a training row. Prompt and answer are tokenised apart, as in generation, because the newline
    between them would merge with the answer."""
    prompt = tokenizer.encode(example.prompt).ids
    answer = tokenizer.encode(example.answer).ids + [EOS]
    unasked = [NO_TARGET] * (len(prompt) - 1)           # the prompt's first token is nobody's target
    return torch.tensor(prompt + answer), torch.tensor(unasked + answer)


def pool_batches(key: str, mixture: dict[str, float], tokenizer: Tokenizer) -> list[list[Row]]:
    """Returns batches of fresh examples in random order. The rows of a batch have similar lengths."""
    rng = Random(key)
    rows = []
    for _ in range(ROWS * BATCHES_PER_POOL):
        row = row_of(data.example(rng, mixture=mixture), tokenizer)
        if len(row[0]) <= MAX_TOKENS:
            rows.append(row)
    rows.sort(key=lambda row: len(row[0]))
    batches = []
    for i in range(0, len(rows) - ROWS + 1, ROWS):
        batches.append(rows[i:i + ROWS])
    rng.shuffle(batches)
    return batches


def new_model() -> Model:
    """Returns a fresh float32 model: normal(0.02), smaller where a residual branch ends; biases are zero."""
    torch.manual_seed(SEED)
    model = Model(ModelConfig(vocab_size=VOCAB, **SHAPE))
    n_branches = 2 * SHAPE["num_hidden_layers"]     # whose results the residual stream adds up
    for name, p in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(p, 0, .02 * n_branches ** -.5)
        elif p.dim() == 2:
            torch.nn.init.normal_(p, 0, .02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(p)
    return model


def loss_of(model: Model, batch: list[Row]) -> torch.Tensor:
    """Returns the loss in nats per answer token."""
    ids, targets = zip(*batch)
    ids = pad_sequence(ids, batch_first=True, padding_value=PAD)                        # (B, T)
    targets = pad_sequence(targets, batch_first=True, padding_value=NO_TARGET)          # (B, T-1)
    logits = model.logits(model(ids[:, :-1]))                                           # (B, T-1, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(peak: float, step: int, n_left: float, n_tokens: float) -> float:
    """Returns the learning rate of a step before which n_left of n_tokens are left. It rises, stays,
    falls."""
    warm = min(1, (step + 1) / WARMUP_STEPS)
    decay = max(FLOOR, min(1, n_left / (n_tokens * DECAY)))
    return peak * warm * decay


def train(model: Model, tokenizer: Tokenizer, seed: str, mixture: dict[str, float], tokens: float,
          lr: float) -> None:
    """Trains for this many tokens, prompts included, with the peak rate lr: the blocks' matrices by Muon, the
    rest by AdamW. seed: that of the stream of examples."""
    matrices = []
    others = []
    for name, p in model.named_parameters():
        if p.dim() == 2 and "embed" not in name:
            matrices.append(p)
        else:
            others.append(p)
    # Liu 2025: at the size of AdamW's updates, so that one rate fits both
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=.05, adjust_lr_fn="match_rms_adamw")
    opts = [muon, torch.optim.AdamW(others, lr=lr, betas=(.9, .95), weight_decay=0.)]
    step = n_tokens = pool = 0
    while n_tokens < tokens:
        losses = []
        for batch in pool_batches(f"{seed}/pool/{pool}", mixture, tokenizer):
            loss = loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rate = learning_rate(lr, step, tokens - n_tokens, tokens)
            for opt in opts:
                opt.param_groups[0]["lr"] = rate
                opt.step()
                opt.zero_grad()
            step += 1
            n_tokens += sum(len(ids) for ids, _ in batch)
        pool += 1
        print(f"step {step:6d}  tokens {n_tokens / 1e6:6.2f}M  loss {fmean(losses):.4f}  lr {rate:.1e}",
              flush=True)


def write_directory(model: Model, tokenizer: Tokenizer, out: Path) -> None:
    """Writes the Hugging Face directory: weights in bfloat16, tokenizer, held-out tasks."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: p.bfloat16() for name, p in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    for name, values in SETTINGS.items():
        (out / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))
    lines = [json.dumps(task) + "\n" for task in heldout()]
    (out / "heldout.jsonl").write_text("".join(lines))


def heldout(n_outputs: int = 476, n: int = 96) -> list[dict]:
    """Returns held-out tasks as lines of a file of tasks: output tasks of 2 to 8 statements, then n input
    tasks and n word problems of 2 to 6, and n puzzles of 3 and 4 variables. All differ; the sizes come in
    turn."""
    rows = []
    # The last ones are keys of the draws: these made the committed file.
    for kind, n_tasks, sizes, key in (
            ("code_o", n_outputs, range(2, 9), "anchors"),
            ("code_i", n, range(2, 7), "heldout/code_i"),
            ("math", n, range(2, 7), "heldout/math"),
            ("logic", n, range(3, 5), "heldout/logic")):
        rng = Random(f"1234/{key}")
        unique = {}
        while len(unique) < n_tasks:
            row, _ = data.task_row(kind, rng, sizes[len(unique) % len(sizes)])
            text = row.get("question") or row.get("program") or str(row["constraints"])
            unique[text] = row
        rows += unique.values()
    return rows


def main() -> None:
    """Runs the phases asked for, each into its directory under --out."""
    parser = parser_of("python -m micro.make", __doc__)
    parser.add_argument("--phase", choices=("1", "2", "both"), default="both")
    parser.add_argument("--tokens", type=float, help="of a phase, prompts included; 48e6 and 1.6e6")
    parser.add_argument("--out", default="micro", help="writes OUT/phase1 and OUT/base")
    args = parser.parse_args()
    start = Path(args.out, "phase1")
    torch.set_num_threads(1)
    if args.phase != "2":
        tokenizer = train_tokenizer()
        model = new_model()
        train(model, tokenizer, f"{SEED}", data.MIXTURE, args.tokens or 48e6, 3e-3)
        write_directory(model, tokenizer, start)
    if args.phase != "1":
        if not start.exists():
            start = COMMITTED / "phase1"
        tokenizer = Tokenizer.from_file(f"{start}/tokenizer.json")
        model = new_model()                     # its layers apart: load_model fuses them, for frozen weights
        model.load_state_dict(read_weights(start, torch.float32, "cpu"))
        train(model, tokenizer, f"{SEED}/habit", data.habit(), args.tokens or 1.6e6, 3e-4)
        write_directory(model, tokenizer, Path(args.out, "base"))


if __name__ == "__main__":
    leave("micro.make", main)
