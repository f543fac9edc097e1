"""decode, update, step, scale and evolve: the engine beside transformers, PEFT and itself adapter by adapter.

All ways of one command share weights, adapters, prompts, lengths and process. Every row decodes exactly --new
tokens (no end token), so that the ways do the same work. Before anything is timed, gates compare numbers and
fail the run where they differ.
"""
import copy
import dataclasses
import tempfile
from functools import partial
from pathlib import Path

import torch

import operators
import pack
import rl
from bench.common import alone, peak_memory, ratio, show, take_turns, timed
from generate import Rollout, generate
from infra.distributed import Ranks
from infra.weights import load_base, save_peft
from lora import Adapters
from model import Base, Model, ModelConfig

SHAPES = {"7b": dict(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                     num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768,
                     tie_word_embeddings=False)}
POP = 8


def flags(parser) -> None:
    """What all engine commands take."""
    parser.add_argument("--base", default="micro/base", help="directory of the base")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead, and no peers")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 16], help="rows of a batch")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt, at least 1")
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cuda-graphs", action="store_true", help="our engine decodes by CUDA graphs")
    device, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
    parser.add_argument("--device", default=device)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=dtype)


def open_base(args) -> Base:
    """The base of the flags, whose answers never end by themselves."""
    torch.set_num_threads(args.threads)
    Ranks.join(args.device)             # sets the device up as a run does
    dtype = getattr(torch, args.dtype)
    if not args.shape:
        base = load_base(args.base, dtype, torch.device(args.device))
        return dataclasses.replace(base, eos_ids=(), graphs=args.cuda_graphs)
    with torch.device(args.device):
        torch.set_default_dtype(dtype)
        model = Model(ModelConfig(**SHAPES[args.shape])).requires_grad_(False).eval()
        torch.set_default_dtype(torch.float32)
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, .02)
    return Base(model, None, (), "base", Path(args.shape), args.cuda_graphs)


def population(base: Base, rank: int, n: int = POP, paged: bool = False) -> Adapters:
    """n members that all differ from the base by about a percent of its activations."""
    device = base.model.embedding.device
    adapters = Adapters.on(base.model, n, rank, 2.0 * rank, device=device, paged=paged)
    gen = torch.Generator().manual_seed(0)
    for p in range(n):
        adapters.init_member(p, gen)
        for _, B in adapters.masters.values():
            B.data[p] = (torch.randn(B.shape[1:], generator=gen) * .01).to(B)
    return adapters


def prompts_of(base: Base, rows: int, length: int) -> list[list[int]]:
    """Random token ids, the same on every call."""
    gen = torch.Generator().manual_seed(1)
    return torch.randint(10, base.model.cfg.vocab_size, (rows, length), generator=gen).tolist()


def members_of(rows: int, n_members: int = POP) -> list[int]:
    """The member of each row: equally many each, in order."""
    return [i * n_members // rows for i in range(rows)]


def decoder(base: Base, adapters: Adapters | None, prompts: list[list[int]], members: list[int], new: int,
            n: int = 1):
    """A function that decodes n answers to each prompt in one batch and returns its seconds."""
    keys = [(0, i) for i in range(len(prompts) * n)]

    @timed
    def run() -> None:
        rollout = generate(base, adapters, prompts, members, keys, n, max_new_tokens=new,
                           rollout_batch=len(keys))
        assert int(rollout.n_tokens.sum()) == new * len(keys)
    return run


def one_after_another(runs: list):
    """A function that runs several in turn and returns the sum of their seconds."""
    return lambda: sum(run() for run in runs)


# ---------------------------------------------------------------- gates

@torch.no_grad()
def check_routing(base: Base, adapters: Adapters, tolerance: float) -> float:
    """Largest difference between the logits of a mixed batch and those of bases with one member merged in.

    Raises AssertionError above the tolerance, and where a wrong member would pass as well.
    """
    dtype = base.model.embedding.dtype
    ids = torch.tensor(prompts_of(base, POP, 24), device=base.model.embedding.device)
    own = torch.arange(POP, device=ids.device)
    mixed = base.model.logits(base.model(ids, lora=adapters.route(own, dtype)))
    moved = base.model.logits(base.model(ids, lora=adapters.route(own.roll(1), dtype)))
    worst = 0.0
    for p in (0, POP - 1):
        merged = copy.deepcopy(base.model)
        for path, layer in merged.linears().items():
            if path in adapters.A:
                layer.weight += (adapters.scale * adapters.B[path][p] @ adapters.A[path][p]).to(layer.weight)
        alone = merged.logits(merged(ids[p:p + 1]))
        worst = max(worst, (alone - mixed[p:p + 1]).abs().max().item())
        of_another = (alone - moved[p:p + 1]).abs().max().item()
        assert of_another > 10 * tolerance, "a wrong member is not told apart"
    assert worst < tolerance, f"mixed batch and merged weights differ by {worst}"
    return worst


# ---------------------------------------------------------------- peers

class Peers:
    """transformers, and PEFT (a development package, imported only here) with the same adapters."""

    def __init__(self, base: Base, adapters: Adapters, dtype: torch.dtype):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, logging
        logging.disable_progress_bar()
        device = base.model.embedding.device
        self.plain = AutoModelForCausalLM.from_pretrained(base.path, dtype=dtype).to(device).eval()
        with tempfile.TemporaryDirectory() as folder:
            for p in range(POP):
                save_peft(adapters, p, Path(folder, f"m{p}"), str(base.path))
            wrapped = copy.deepcopy(self.plain)
            self.lora = PeftModel.from_pretrained(wrapped, f"{folder}/m0", "m0", is_trainable=True)
            for p in range(1, POP):
                self.lora.load_adapter(f"{folder}/m{p}", f"m{p}", is_trainable=True)
        self.lora.eval()

    def decoder(self, model, prompts: list[list[int]], new: int, names: list[str] | None = None,
                active: str = ""):
        """A function that samples with Hugging Face's generate at temperature 1 and returns its seconds."""
        ids = torch.tensor(prompts, device=model.device)
        mixed = dict(adapter_names=names) if names else {}

        @timed
        @torch.inference_mode()
        def run() -> None:
            if active:
                model.set_adapter(active)
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                                 max_new_tokens=new, min_new_tokens=new, eos_token_id=None, pad_token_id=0,
                                 **mixed)
            assert out.shape[1] == ids.shape[1] + new
        return run


# ---------------------------------------------------------------- commands

def decode(args) -> dict:
    """Rollouts: 8 members in one batch, one after another, 1 member, none; PEFT mixed and one by one."""
    base = open_base(args)
    adapters = population(base, args.rank)
    new = args.new
    figures = {"max_abs_diff": check_routing(base, adapters, 1e-3 if args.dtype == "float32" else .3)}
    lines = []
    peers = None if args.shape else Peers(base, adapters, getattr(torch, args.dtype))
    for rows in args.rows:
        prompts = prompts_of(base, rows, args.prompt)
        members = members_of(rows)
        of = [[] for _ in range(POP)]
        for prompt, member in zip(prompts, members):
            of[member].append(prompt)
        alone = [decoder(base, adapters, of[p], [p] * len(of[p]), new) for p in range(POP)]
        ways = {"8 members, one batch": decoder(base, adapters, prompts, members, new),
                "1 member": decoder(base, adapters, prompts, [0] * rows, new),
                "no adapter": decoder(base, None, prompts, [-1] * rows, new),
                "8 members, one after another": one_after_another(alone)}
        if peers:
            alone = [peers.decoder(peers.lora, of[p], new, active=f"m{p}") for p in range(POP)]
            ways |= {"transformers, no adapter": peers.decoder(peers.plain, prompts, new),
                     "PEFT, adapter_names": peers.decoder(peers.lora, prompts, new,
                                                          [f"m{p}" for p in members]),
                     "PEFT, one after another": one_after_another(alone)}
        seen = take_turns(ways, args.repeats)
        for name, seconds in seen.items():
            lines.append((f"{rows} rows: {name}", "tokens/s", [rows * new / s for s in seconds]))
        ours = seen["8 members, one batch"]
        others = {"x_own_sequential": "8 members, one after another", "x_peft_mixed": "PEFT, adapter_names",
                  "x_peft_sequential": "PEFT, one after another",
                  "x_transformers": "transformers, no adapter"}
        figures |= {f"{key}_{rows}": ratio(seen[name], ours) for key, name in others.items() if name in seen}
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(ours, seen["1 member"])
        figures[f"x_pop8_over_base_{rows}"] = ratio(ours, seen["no adapter"])
    show(lines)
    return figures


def fixed_rollout(base: Base, members: list[int], prompt: int, new: int, attempts: int) -> Rollout:
    """Rows of arbitrary tokens, equally long, so many attempts at each prompt, log-probabilities 0."""
    device, rows = base.model.embedding.device, len(members)
    ids = torch.tensor(prompts_of(base, rows, prompt + new), device=device)
    ids[:, :prompt] = ids[torch.arange(rows, device=device) // attempts * attempts, :prompt]
    return Rollout(ids, torch.full((rows,), prompt, device=device),
                   torch.full((rows,), prompt + new, device=device), torch.zeros(ids.shape, device=device),
                   torch.tensor(members, device=device))


def updater(base: Base, adapters: Adapters, rollout: Rollout, budget: int):
    """A function that accumulates the joint gradient and returns its seconds."""
    device, n = rollout.ids.device, len(rollout.ids)
    adv = torch.linspace(-1, 1, n, device=device) + .01
    column = torch.zeros(n, dtype=torch.int64, device=device)
    batch = rl.Batch(rollout, adv, column, column, column)
    cfg = rl.UpdateConfig(tokens_per_microbatch=budget)
    run = timed(lambda: rl.accumulate(base, adapters, batch, adv, cfg))
    run.adv, run.weight = adv, rl.token_weight(rollout)
    return run


def flops(base: Base, rollout: Rollout, budget: int) -> float:
    """Of an update: 2 for each weight of the frozen layers and token forward, 2 backward (weights have no
    gradient); without attention."""
    n_weights = sum(x.weight.numel() for x in base.model.linears().values())
    rollout = rollout.to("cpu")
    lines = pack.lines(rollout, list(range(len(rollout.ids))), budget)
    return 4 * n_weights * sum(pack.size(rollout, line) for line in lines)


def peft_loop(peers: Peers, rollout: Rollout, adv: torch.Tensor, weight: torch.Tensor):
    """A function that does the same with PEFT, member after member, and returns its seconds."""
    prompt = int(rollout.prompt_len[0])

    @timed
    def run() -> None:
        peers.lora.zero_grad()
        for p in rollout.member.unique().tolist():
            rows = (rollout.member == p).nonzero().squeeze(1)
            peers.lora.set_adapter(f"m{p}")
            ids = rollout.ids[rows]
            logits = peers.lora(input_ids=ids).logits[:, prompt - 1:-1].float()
            logp = logits.log_softmax(-1).gather(-1, ids[:, prompt:, None]).squeeze(-1)
            (-(logp * (adv * weight)[rows, None])).sum().backward()
    return run


def check_gradients(adapters: Adapters, peers: Peers) -> float:
    """Largest difference of a gradient to PEFT's after one run of each, relative to the largest gradient of
    its tensor."""
    theirs, worst = dict(peers.lora.named_parameters()), 0.0
    for path in adapters.A:
        for side, factor in (("A", adapters.A[path]), ("B", adapters.B[path])):
            for p in range(POP):
                grad = theirs[f"base_model.model.{path}.lora_{side}.m{p}.weight"].grad
                worst = max(worst, ((factor.grad[p] - grad).abs().max() / grad.abs().max()).item())
    assert worst < 1e-3, f"the joint gradient differs from the loop over PEFT adapters by {worst}"
    return worst


def update(args) -> dict:
    """The joint update of 8 members against a loop over PEFT adapters, and against one member with all the
    rows."""
    base = open_base(args)
    budget = args.tokens_per_microbatch
    adapters = population(base, args.rank)
    figures = {}
    lines = []
    peers = None if args.shape else Peers(base, adapters, getattr(torch, args.dtype))
    for rows in args.rows:
        rollout = fixed_rollout(base, members_of(rows), args.prompt, args.new, args.samples_per_task)
        single = dataclasses.replace(rollout, member=torch.zeros_like(rollout.member))
        joint = updater(base, adapters, rollout, budget)
        ways = {"8 members, one pass": joint, "1 member": updater(base, adapters, single, budget)}
        if peers:
            ways["PEFT, one after another"] = peft_loop(peers, rollout, joint.adv, joint.weight)
            ways["PEFT, one after another"]()
            joint()
            figures[f"gradient_diff_{rows}"] = check_gradients(adapters, peers)
        seen = take_turns(ways, args.repeats)
        lines += [(f"{rows} rows: {name}", "s", seconds) for name, seconds in seen.items()]
        ours = seen["8 members, one pass"]
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(ours, seen["1 member"])
        figures[f"tflops_{rows}"] = round(flops(base, rollout, budget) / min(ours) / 1e12, 4)
        if peers:
            figures[f"x_peft_loop_{rows}"] = ratio(seen["PEFT, one after another"], ours)
    show(lines)
    return figures


def stepper(base: Base, members: list[int], n_members: int, args, paged: bool = False):
    """A function that does a step of n_members (rollout, gradient, optimiser) and returns its seconds; row i
    is members[i]'s. paged: only those that have rows are on the device."""
    n = args.samples_per_task
    adapters = population(base, args.rank, n_members, paged)
    adam = rl.Adam(adapters, [1e-5] * n_members)
    rollout = fixed_rollout(base, members, args.prompt, args.new, n)
    active = torch.zeros(n_members, dtype=torch.bool, device=rollout.ids.device)
    active[rollout.member] = True

    prompts = rollout.ids[::n, :args.prompt].tolist()
    play = decoder(base, adapters, prompts, members[::n], args.new, n)
    learn = updater(base, adapters, rollout, args.tokens_per_microbatch)
    page = timed(lambda: adapters.page_in(members))
    return one_after_another([page, play, learn, timed(lambda: adam.step(active))])


def step(args) -> dict:
    """Rollout, joint gradient and optimiser step together, at equal rows: 8 members, 1 member."""
    base = open_base(args)
    figures = {}
    lines = []
    for rows in args.rows:
        seen = take_turns({"8 members": stepper(base, members_of(rows), POP, args),
                           "1 member": stepper(base, [0] * rows, 1, args)}, args.repeats)
        lines += [(f"{rows} rows: {name}", "s", seconds) for name, seconds in seen.items()]
        figures[f"x_pop8_over_pop1_{rows}"] = ratio(seen["8 members"], seen["1 member"])
    show(lines)
    return figures


def scale(args) -> dict:
    """Seconds of a step (of a CPU's own time) and memory at its worst, by the number of members: at --rows
    rows in all, where 32 of them play, with 8 rows each, and at 8 rows each of all."""
    base = open_base(args)
    figures, sizes = {}, args.members
    cases = [(f"{args.rows[0]} rows in all, {p} members", members_of(args.rows[0], p), p) for p in sizes]
    cases += [(f"32 of {p} members play", [i // 8 * p // 32 for i in range(256)], p) for p in sizes if p > 31]
    cases += [(f"8 rows a member, {p} members", members_of(8 * p, p), p) for p in sizes]
    for label, members, p in cases:
        begin = peak_memory(reset=True)
        run = stepper(base, members, p, args, paged="play" in label)
        seconds = [alone(run) for _ in range(args.repeats)]
        mb = (peak_memory() - begin) / 1e6
        show([(label, "s", seconds), (f"{label}, a step's memory", "MB", [mb])])
        figures[label] = dict(s=round(sorted(seconds)[len(seconds) // 2], 4), mb=round(mb))
        del run
    return figures


def update_flags(parser) -> None:
    flags(parser)
    parser.set_defaults(prompt=16, new=16)
    parser.add_argument("--samples-per-task", type=int, default=4,
                        help="rows that share a prompt; 1 = each has its own")
    parser.add_argument("--tokens-per-microbatch", type=int, default=2048,
                        help="padded tokens of a micro-batch")


def evolve(args) -> dict:
    """Seconds that each operator takes for one child, on all linear layers of the shape."""
    torch.set_num_threads(args.threads)
    shape = ModelConfig(**SHAPES[args.shape])
    with torch.device("meta"):
        linears = Model(shape).linears()
    gen = torch.Generator().manual_seed(0)
    parents = [{}, {}]
    for parent in parents:
        for path, layer in linears.items():
            A = torch.randn(args.rank, layer.in_features, generator=gen)
            B = torch.randn(layer.out_features, args.rank, generator=gen) * .01
            parent[path] = (A, B)

    ways = {}
    for name, operator in operators.OPERATORS.items():
        some = parents[:operator.n_parents]
        ways[name] = timed(partial(operator.fn, some, torch.Generator().manual_seed(1)))
    figures = {}
    for name, seconds in take_turns(ways, args.repeats).items():
        show([(f"{args.shape}, rank {args.rank}: {name}", "s", seconds)])
        figures[name] = round(sorted(seconds)[len(seconds) // 2], 3)
    return dict(s_per_child=figures)


def evolve_flags(parser) -> None:
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)


def scale_flags(parser) -> None:
    update_flags(parser)
    parser.set_defaults(rows=[512], repeats=3)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 32, 128, 512, 1024])


COMMANDS = {"decode": (decode, flags), "update": (update, update_flags), "step": (step, update_flags),
            "scale": (scale, scale_flags), "evolve": (evolve, evolve_flags)}
