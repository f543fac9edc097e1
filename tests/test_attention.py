"""Decoding by pages equals decoding with a dense cache, no page is lost or in two prompts, and a kernel that errs is not believed."""
import inspect

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn
from varlen import varlen_reference

import attention
from attention import KVCache, PagedCache, Pages, attend, check_kernel, paged_kernel, pages_of, pool_pages
from generate import SamplingParams, generate
from model import Model, ModelConfig

PROMPTS = [[7, 8, 9], [10, 3, 4, 12, 33, 2], [40], [22, 23, 24, 25], [9] * 11, [5, 6, 7, 8, 9, 10, 11, 12]]
MEMBER = [0, 2, -1, 1, 0, 1]


def keys_for(n_rows: int) -> list[tuple[int, ...]]:
    return [(11, 0, i) for i in range(n_rows)]


class Watched(PagedCache):
    """A PagedCache that checks its books whenever they change, and remembers the most pages that it held."""
    made = []

    def __init__(self, *args):
        super().__init__(*args)
        self.prompt = {}                    # row -> a number of the prompt that it answers
        self.n_admitted, self.n_most, self.n_reused, self.n_refused, self.before = 0, 0, 0, 0, set()
        Watched.made.append(self)

    def check(self):
        holders = {}
        for row, pages in enumerate(self.pages):
            assert len(set(pages)) == len(pages) <= self.table.shape[1]
            assert self.table[row].tolist() == pages + [0] * (self.table.shape[1] - len(pages))
            for at, page in enumerate(pages):
                holders.setdefault(page, []).append((row, at))
        assert 0 not in holders and 0 not in self.free and len(set(self.free)) == len(self.free)
        assert set(holders) | set(self.free) == set(range(1, len(self.n_users))) and not set(holders) & set(self.free)
        for page, places in holders.items():
            assert self.n_users[page] == len(places)
            assert len({self.prompt[row] for row, _ in places}) == 1, "a page of two prompts"
            assert len({at for _, at in places}) == 1
        self.n_most = max(self.n_most, len(holders))
        self.n_reused += len(set(holders) & self.before)
        self.before = set(self.free)

    def fitting(self, lengths, n, n_new):
        self.n_refused += len(lengths) - super().fitting(lengths, n, n_new)
        return super().fitting(lengths, n, n_new)

    def admit(self, rows, lengths, n_new):
        super().admit(rows, lengths, n_new)
        n = len(rows) // len(lengths)
        for i, row in enumerate(rows):
            self.prompt[row] = self.n_admitted + i // n
        self.n_admitted += len(lengths)
        for i, length in enumerate(lengths):
            first, *others = (self.pages[row] for row in rows[i * n:(i + 1) * n])
            shared = length // attention.PAGE
            assert all(pages[:shared] == first[:shared] and not set(pages[shared:]) & set(first) for pages in others)
        self.check()

    def release(self, idle):
        super().release(idle)
        self.check()

    def select(self, rows):
        self.prompt = {i: self.prompt[row] for i, row in enumerate(rows.tolist())}
        super().select(rows)
        self.check()


@pytest.fixture
def watched(monkeypatch):
    """The caches that calls of generate make, with pages of 4 tokens."""
    monkeypatch.setattr("attention.PAGE", 4)
    monkeypatch.setattr("generate.PagedCache", Watched)
    Watched.made = []
    return Watched.made


def both(base, adapters, prompts, member, n, **options):
    """The same rollout from a dense cache and from pages."""
    args = base, adapters, prompts, member, keys_for(len(prompts) * n), SamplingParams(n, **options)
    return generate(*args), generate(*args, kernel=varlen_reference)


def assert_same(dense, paged):
    assert torch.equal(dense.ids, paged.ids) and torch.equal(dense.length, paged.length)
    assert (dense.logp - paged.logp).abs().max() < 1e-5


@pytest.mark.parametrize("rollout_batch, patience", [(6, 1), (8, 8), (64, 3)])
def test_pages_give_the_same_rows(tiny, population, monkeypatch, watched, rollout_batch, patience):
    """Mixed members and base rows, prompts shared by three attempts, refills, rows that end at different times, a batch that shrinks;
    temperature 0 among them."""
    prompts, member = PROMPTS * 2, MEMBER * 2
    temperature = [1.0, 0.0, 1.3] * len(prompts)
    monkeypatch.setattr("generate.PATIENCE", {"cpu": patience})
    dense, paged = both(tiny, population(tiny), prompts, member, 3, temperature=temperature, max_new_tokens=40,
                        rollout_batch=rollout_batch)
    assert len(set(dense.n_tokens.tolist())) > 8, "the case needs rows that end at different times"
    assert_same(dense, paged)
    cache, = watched
    assert cache.n_admitted == len(prompts) and not any(cache.n_users) and len(cache.free) == len(cache.n_users) - 1
    assert len(cache.pages) < min(rollout_batch, 36), "the batch shrank"
    assert 0 < cache.n_most < len(cache.n_users), "page 0 is nobody's"
    if rollout_batch < 36:
        assert cache.n_reused > 20, "the case needs pages that a second prompt takes over"


@pytest.mark.parametrize("n", [1, 4])
def test_pages_on_other_architectures(other, population, watched, n):
    """Llama, Qwen3, and Mistral, whose window of 6 tokens is longer than a page and far shorter than the rows."""
    dense, paged = both(other, population(other), PROMPTS, MEMBER, n, max_new_tokens=30, rollout_batch=8)
    assert dense.n_tokens.max() > 20
    assert_same(dense, paged)
    assert watched and not any(watched[0].n_users)


def test_layers_with_and_without_a_window(watched):
    """As many kv heads as heads, a window in one layer of two: cached by pages equals one pass without a cache."""
    torch.manual_seed(3)
    cfg = ModelConfig(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=4, sliding_window=5, sliding_layers=(1,))
    model, lengths = Model(cfg).requires_grad_(False), torch.tensor([9, 3])
    ids = torch.randint(0, 61, (2, 16))
    prompts, cache = KVCache.empty(cfg, 2, 9, torch.float32, "cpu"), PagedCache(cfg, 2, 16, 11, torch.float32, "cpu", varlen_reference)
    model(ids[:, :9], cache=prompts)
    cache.admit([0, 1], [9, 3], 7)
    cache.put(torch.tensor([0, 1]), prompts, torch.tensor([0, 1]), lengths)
    whole = model(ids)
    for t in range(7):
        at = lengths + t
        row = torch.arange(2)
        hidden = model(ids[row, at][:, None], at[:, None], cache=cache)
        assert (hidden[:, 0] - whole[row, at]).abs().max() < 1e-5


def test_base_alone(tiny, watched):
    assert_same(*both(tiny, None, PROMPTS, [-1] * 6, 2, max_new_tokens=20, rollout_batch=5))


def test_members_that_a_call_does_not_have(tiny, population, watched):
    """Adapters are there, and every row is the base's."""
    assert_same(*both(tiny, population(tiny), PROMPTS, [-1] * 6, 2, max_new_tokens=20))


def test_prompts_wait_for_pages(tiny, population, monkeypatch, watched):
    """In a pool that has no more pages than the first prompts need, the rows are the same, only later."""
    def least(rollout_batch, n, longest_prompt, n_new):
        shared, own = pages_of(longest_prompt, n_new)
        return 1 + rollout_batch // n * (shared + n * own)

    monkeypatch.setattr("generate.pool_pages", least)
    prompts = [[7 + i] * 11 for i in range(12)]
    dense, paged = both(tiny, population(tiny), prompts, [0, 1, 2, -1] * 3, 3, max_new_tokens=9, rollout_batch=9)
    assert_same(dense, paged)
    assert watched[0].n_refused > 0, "the case needs prompts that find no pages"


@pytest.mark.parametrize("page", [4, 256])
def test_the_pool_is_large_enough(monkeypatch, page):
    """Of any prompts up to the longest, as many as decode side by side fit, and before that one at least."""
    monkeypatch.setattr("attention.PAGE", page)
    for longest in (1, page - 1, page, 2 * page + 1, 3 * page):
        for n_new in (1, page // 2, page, 2 * page + 3):
            for n, rollout_batch in ((1, 8), (8, 64), (8, 70), (8, 3)):
                n_pages = pool_pages(rollout_batch, n, longest, n_new)
                for length in range(max(1, longest - page), longest + 1):
                    shared, own = pages_of(length, n_new)
                    assert max(1, rollout_batch // n) * (shared + n * own) < n_pages, (longest, n_new, n, length)


def test_the_pool_is_smaller_than_a_dense_cache_where_prompts_are_shared():
    """8 attempts at each of 8 prompts of 768 tokens, answers of 512: 10,240 slots a prompt without pages."""
    assert pool_pages(64, 8, 768, 512) * attention.PAGE < 0.8 * 64 * (768 + 512)


def call_of_decoding():
    """A kernel, and the list to which it appends what it is called with."""
    calls = []

    def kernel(*args, **options):
        calls.append((args, options))
        return torch.zeros_like(args[0])
    return kernel, calls


def test_torch_takes_our_call():
    """The arguments fit torch's own signature, and its meta function gives their shape."""
    kernel, calls = call_of_decoding()
    table, ones = torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
    q, pool = torch.zeros(3, 4, 1, 16, dtype=torch.bfloat16), torch.zeros(5, 256, 2, 16, dtype=torch.bfloat16)
    for window in (0, 9):
        attend(q, pool, pool, Pages.of(kernel, table, ones, window))
    for args, options in calls:
        inspect.signature(varlen_attn).bind(*args, **options)
        meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in args]
        named = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        y = varlen_attn(*meta, **named)
        assert y.shape == (3, 4, 16) and y.is_meta and y.dtype == torch.bfloat16
    assert [options["window_size"] for _, options in calls] == [(-1, -1), (8, 0)]


def forgets_rows(query, *args, **options):
    """As torch 2.13 with several splits: only the first sequence is written."""
    y = varlen_reference(query, *args, **options)
    y[1:] = torch.nan
    return y


def sees_all(*args, window_size, **options):
    return varlen_reference(*args, **options)


def sees_too_much(*args, seqused_k, **options):
    return varlen_reference(*args, seqused_k=(seqused_k + 1).int(), **options)


@pytest.mark.parametrize("K", [1, 2, 4])
def test_a_kernel_is_believed_when_it_agrees_with_sdpa(K):
    args = 4, K, 8, torch.float32, torch.device("cpu")
    check_kernel(varlen_reference, *args)
    for wrong in (forgets_rows, sees_all, sees_too_much):
        with pytest.raises(RuntimeError, match="it is off by .* in row"):
            check_kernel(wrong, *args)


def test_without_a_kernel_the_cache_is_dense(monkeypatch, capsys):
    """On a CPU silently; where torch's is missing or errs, said once for the whole process."""
    paged_kernel.cache_clear()
    gpu = 4, 2, 8, torch.bfloat16, torch.device("cuda")
    assert paged_kernel(*gpu[:-1], torch.device("cpu")) is None and not capsys.readouterr().err

    def refuse(kernel, *args):
        raise TypeError("varlen_attn() got an unexpected keyword argument 'block_table'")

    monkeypatch.setattr("attention.check_kernel", refuse)
    assert [paged_kernel(*gpu), paged_kernel(*gpu)] == [None, None]
    assert capsys.readouterr().err.count("dense cache: varlen_attn() got an unexpected") == 1
    paged_kernel.cache_clear()
    monkeypatch.setattr("attention.check_kernel", lambda *args: None)
    assert paged_kernel(*gpu) is varlen_attn and not capsys.readouterr().err
    paged_kernel.cache_clear()


@pytest.mark.parametrize("dtype, capability, fast", [(torch.float16, (7, 5), False), (torch.bfloat16, (8, 0), True),
                                                     (torch.float16, (9, 0), True), (torch.float32, (9, 0), False)])
def test_who_has_flash_attention(monkeypatch, dtype, capability, fast):
    """Others get their keys and values repeated: SDPA's other fast kernel takes no unequal heads."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert attention.has_flash(torch.zeros(1, dtype=dtype)) is fast
