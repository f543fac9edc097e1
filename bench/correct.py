"""Whether a card computes what it should: each check an error, its bound, and what a wrong answer would show.

Small models of the shape's family, with its head size and queries a key, are drawn on the CPU, so that every
card has the same numbers. An error is a relative root mean square (common.relative_rms) if not said
otherwise.
"""
import dataclasses
from dataclasses import dataclass

import torch

import rl
from bench.common import BOUNDS, TOLD_APART, relative_rms
from bench.peers import transformers_twin
from bench.workload import base_of, batch_of, in_int8, population, prompts_of, random_model, without_end
from generate import Rollout, SamplingParams, generate
from infra.gpu import CUDAGraphRunner
from lora import Adapters, AdapterWeights
from model import Base, ModelConfig

MEMBERS = 4
LONG = 300                  # tokens of a prompt that fills a page of the cache and begins another


@dataclass(frozen=True)
class Check:
    """One comparison. control: the error of a deliberately wrong answer; None where none is made."""
    name: str
    error: float
    bound: float
    control: float | None = None

    @property
    def held(self) -> bool:
        """The right answer is near enough (NaN is not), and a wrong one is told apart from it."""
        return self.error <= self.bound and (self.control is None or self.control > TOLD_APART * self.error)


def small(shape: ModelConfig) -> ModelConfig:
    """A shape of the same family that a CPU runs in a moment: three layers, 500 words."""
    group = shape.num_attention_heads // shape.num_key_value_heads
    return dataclasses.replace(shape, vocab_size=512, hidden_size=256, intermediate_size=512,
                               num_hidden_layers=3, num_attention_heads=2 * group, num_key_value_heads=2,
                               head_dim=shape.head_dim, max_position_embeddings=1024)


def small_base(shape: ModelConfig, dtype: torch.dtype, device, like: torch.dtype | None = None) -> Base:
    """The small model in dtype on the device; like: its weights are rounded to this type first."""
    model = random_model(small(shape), torch.float32, "cpu")
    return base_of(model.to(like or dtype).to(device, dtype), "small")


def small_population(base: Base) -> Adapters:
    """MEMBERS members that are easily told apart."""
    adapters = population(base, 8, MEMBERS)
    for B in adapters.B.values():
        B.data *= 10
    return adapters


@torch.no_grad()
def forced_logp(base: Base, adapters: Adapters, rollout: Rollout, shift: int = 0) -> torch.Tensor:
    """Log-probabilities of all answer tokens by running whole rows at once; shift: by a wrong member."""
    member = (rollout.member + shift) % adapters.n_members
    route = adapters.route(member, base.model.embedding.dtype)
    logits = base.model.logits(base.model(rollout.ids, lora=route)).float()
    logp = logits[:, :-1].log_softmax(-1).gather(2, rollout.ids[:, 1:, None]).squeeze(2)
    return logp[rollout.mask[:, 1:]]


def drawn(base: Base, adapters: Adapters, attempts: int = 2, prompt: int = 40, new: int = 24) -> Rollout:
    """Answers of all members to prompts of several lengths, in half as many places as there are answers.

    One token in sixteen ends a row, so that rows come and go in any order of members."""
    base = dataclasses.replace(base, eos_ids=tuple(range(0, base.model.cfg.vocab_size, 16)))
    prompts = prompts_of(base, 2 * adapters.n_members, prompt)
    prompts = [ids[:prompt - prompt // 20 * i] for i, ids in enumerate(prompts)]
    members = [i % adapters.n_members for i in range(len(prompts))]
    keys = [(7, i) for i in range(len(prompts) * attempts)]
    sampling = SamplingParams(attempts, max_new_tokens=new, rollout_batch=len(keys) // 2)
    return generate(base, adapters, prompts, members, keys, sampling)


def compare_decoding(name: str, base: Base, adapters: Adapters, **sizes) -> Check:
    """Log-probabilities of a rollout as it was drawn, against those of its rows run at once."""
    rollout = drawn(base, adapters, **sizes)
    wanted = forced_logp(base, adapters, rollout)
    control = relative_rms(forced_logp(base, adapters, rollout, 1), wanted)
    return Check(name, relative_rms(rollout.logp[rollout.mask], wanted), BOUNDS[base.model.embedding.dtype],
                 control)


@torch.no_grad()
def check_logits(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Our logits against transformers' on the same weights."""
    base = small_base(shape, dtype, device)
    ids = torch.tensor(prompts_of(base, 4, 40), device=device)
    ours, theirs = base.model.logits(base.model(ids)), transformers_twin(base)(ids).logits
    control = relative_rms(base.model.logits(base.model(ids.roll(1, 0))), theirs)
    return [Check("logits against transformers", relative_rms(ours, theirs), BOUNDS[dtype], control)]


@torch.no_grad()
def check_int8(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Logits of a base in int8 against the one it was made from; docs/own-base.md has 3% on real weights."""
    base = small_base(shape, dtype, device)
    narrow, ids = in_int8(base.model), torch.tensor(prompts_of(base, 4, 40), device=device)
    ours, wanted = narrow.logits(narrow(ids)), base.model.logits(base.model(ids))
    control = relative_rms(narrow.logits(narrow(ids.roll(1, 0))), wanted)
    return [Check("logits of an int8 base against the wide one", relative_rms(ours, wanted), .05, control)]


def check_decoding(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Decoding token by token, while rows come and go, against whole rows at once."""
    base = small_base(shape, dtype, device)
    return [compare_decoding("decode against prefill", base, small_population(base), prompt=LONG)]


def check_graphs(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Decoding by CUDA graphs: its log-probabilities, and the share of tokens that differ from those drawn
    without (a rounding may turn a draw, and with it the rest of its row)."""
    plain = without_end(small_base(shape, dtype, device), False)
    graphs = without_end(plain, True)
    adapters = small_population(plain)
    one, other = drawn(plain, adapters, prompt=LONG), drawn(graphs, adapters, prompt=LONG)
    failed = float(not CUDAGraphRunner.can_record)
    T = min(one.ids.shape[1], other.ids.shape[1])
    differ = (one.ids[:, :T] != other.ids[:, :T])[one.mask[:, :T]].float().mean().item()
    return [compare_decoding("decode by CUDA graphs against prefill", graphs, adapters, prompt=LONG),
            Check("CUDA graphs against none (share of tokens that differ)", differ, .3),
            Check("CUDA graphs that could not be recorded (1 = all)", failed, 0.0)]


def fixed_rows(base: Base, device) -> Rollout:
    """Twelve rows of unequal lengths and numbers a member, three to a prompt."""
    ids = torch.tensor(prompts_of(base, 12, 48), device=device)
    prompt_len = torch.tensor([8, 8, 8, 16, 16, 16, 11, 11, 11, 20, 20, 20], device=device)
    member = torch.tensor([0, 0, 0, 3, 3, 3, 1, 1, 1, 1, 1, 1], device=device)
    for i in range(12):
        ids[i, :20] = ids[i // 3 * 3, :20]
    length = prompt_len + torch.arange(12, device=device) % 5 * 5 + 3
    return Rollout(ids, prompt_len, length, torch.zeros(ids.shape, device=device), member)


def looped_gradients(base: Base, adapters: Adapters, rollout: Rollout) -> None:
    """Put into .grad what rl.accumulate does, row after row, unpacked, by the loss as it is defined."""
    weight = batch_of(rollout)[1] * rl.token_weight(rollout)
    for i in range(len(rollout.ids)):
        prompt, end = int(rollout.prompt_len[i]), int(rollout.length[i])
        ids = rollout.ids[i:i + 1, :end]
        route = adapters.route(rollout.member[i:i + 1], torch.float32)
        logits = base.model.logits(base.model(ids, lora=route))
        logp = logits[0, prompt - 1:-1].log_softmax(-1).gather(1, ids[0, prompt:, None])
        (-weight[i] * logp.sum()).backward()


def gradient(adapters: Adapters, p: int) -> torch.Tensor:
    """All of member p's, in a row."""
    return torch.cat([x.grad[p].flatten().cpu() for x in adapters.parameters()])


def check_gradients(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """The update of several members, packed, in small micro-batches and one that runs checkpointed, against
    rows one by one in float32 on the CPU; the worst member."""
    base, exact = small_base(shape, dtype, device), small_base(shape, torch.float32, "cpu", like=dtype)
    ours, wanted = small_population(base), small_population(exact)
    batch, adv = batch_of(fixed_rows(base, device))
    rl.accumulate(base, ours, batch, adv, rl.UpdateConfig(tokens_per_microbatch=40))
    looped_gradients(exact, wanted, fixed_rows(exact, "cpu"))
    present = (0, 1, 3)
    errors = [relative_rms(gradient(ours, p), gradient(wanted, p)) for p in present]
    control = relative_rms(gradient(ours, 1), gradient(wanted, 0))
    idle = gradient(ours, 2).abs().max().item()
    return [Check("update's gradients against float32 on the CPU", max(errors), BOUNDS[dtype], control),
            Check("gradient of a member without rows (largest number)", idle, 0.0)]


@torch.no_grad()
def check_routing(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """The three ways of lora.py to add adapters, against a loop over rows in float64."""
    base = small_base(shape, dtype, device)
    adapters = small_population(base)
    everybody = AdapterWeights(adapters, torch.arange(MEMBERS, device=device), dtype)
    layers = base.model.fused_linears()[0]
    checks = []
    for name, member, T in (("equal", [0, 0, 1, 1, 2, 2, 3, 3], 5), ("dense", [3, 0, -1, 1, 2, 2, 0, 3], 1),
                            ("grouped", [3, 0, -1, 1, 2, 2, 0, 3], 5)):
        member = torch.tensor(member)
        route = everybody.route(member.to(device), one_token=T == 1)
        x = torch.randn(len(member), T, layers.layers[0].in_features,
                        generator=torch.Generator().manual_seed(2)).to(dtype)
        y = torch.zeros(len(member), T, sum(layers.sizes), dtype=dtype, device=device)
        ours = route(layers.paths, layers.sizes, x.to(device), y)
        wanted = looped_updates(adapters, layers, member, x)
        control = relative_rms(looped_updates(adapters, layers, (member + 1) % MEMBERS, x), wanted)
        checks.append(Check(f"routing, {name}", relative_rms(ours, wanted), BOUNDS[dtype], control))
    return checks


def looped_updates(adapters: Adapters, layers, member: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What the adapters of each row's member add to the layers' outputs, row by row in float64."""
    rows = []
    for own, row in zip(member.tolist(), x.double()):
        parts = []
        for path in layers.paths:
            A, B = adapters.A[path].cpu().double(), adapters.B[path].cpu().double()
            parts.append(adapters.scale * row @ A[own].T @ B[own].T * (own >= 0))
        rows.append(torch.cat(parts, 1))
    return torch.stack(rows)
