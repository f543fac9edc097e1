"""A pretend CUDA card, for machines without one.

Its tensors say `cuda:0` and hold real numbers on the CPU. They refuse to be mixed with CPU tensors; what would make the processor wait
for a card is counted, with the line that caused it, and raises inside a capture, as in CUDA, and inside `card.quiet(...)`. Attention
answers with the layouts of CUDA's kernels. A capture runs nothing for good: what it overwrites is put back, what it made is NaN until
the graph's first replay, which repeats its ops on the same memory. Private pools of graphs are booked as torch's allocator does.

Not pretended: real kernels, their speed and rounding, NCCL, torch.compile, the rest of the allocator.
"""
import contextlib
import functools
import sys
import types
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import torch.nn.attention.varlen  # registers its op
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from varlen import varlen_reference

import generate
import rl
import weights
from infra.distributed import Ranks

ROOT = f"{Path(__file__).resolve().parents[2]}/"
CUDA = torch.device("cuda:0")
GIGABYTES = 141 << 30
aten = torch.ops.aten
# What asks the card for a number or a shape, and therefore waits for it.
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default, aten.unique_dim.default,
           aten.unique_consecutive.default, aten.is_nonzero.default, aten.equal.default, aten.masked_select.default,
           aten.repeat_interleave.Tensor, aten.bincount.default, aten._linalg_check_errors.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
ALLOCATING = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default,
              aten.new_empty_strided.default}


def site() -> str:
    """The innermost line of the project that is being run."""
    frame = sys._getframe(1)
    while frame:
        name = frame.f_code.co_filename
        if name.startswith(ROOT) and "/." not in name and name != __file__:
            return f"{name[len(ROOT):]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def tensors(tree) -> list[torch.Tensor]:
    """Those in the arguments or results of an op."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [x for part in tree for x in tensors(part)]


def mapped(change, tree):
    """The same arguments or results with change(x) in the place of each x that is no list, tuple or dict."""
    if isinstance(tree, dict):
        return {key: mapped(change, x) for key, x in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(change, x) for x in tree])
    return change(tree)


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


@dataclass
class Pool:
    """A private pool of the allocator; graphs and MemPools that use it keep it from being given back."""
    users: int = 0
    n_bytes: int = 0
    last: int = 0                           # id of the graph whose memory it holds


@dataclass
class PretendCard:
    """What is known of the card, and all that was asked of it."""
    capability: tuple[int, int]
    waits: Counter = field(default_factory=Counter)             # (why, line of the project)
    launches: Counter = field(default_factory=Counter)          # kernels by op
    attention: Counter = field(default_factory=Counter)         # SDPA's backends, and "pages"
    n_recorded: int = 0
    n_replayed: int = 0
    largest_recording: int = 0                                  # bytes
    most_private: int = 0                                       # bytes of all pools at the worst moment
    next_capture_fails: Exception | None = None
    recording: "Graph | None" = None
    region: str = ""                                            # where nothing may wait
    meta: bool = False                                          # the user asks for torch's meta device
    pinned: dict = field(default_factory=dict)
    pools: dict = field(default_factory=dict)

    def wait(self, why: str) -> None:
        if self.recording is not None:
            self.refuse(why)
        assert not self.region, f"{self.region} waits for the card: {why}, {site()}"
        self.waits[why, site()] += 1

    def refuse(self, why: str) -> None:
        self.recording.broken = True
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {why}, {site()}")

    @contextlib.contextmanager
    def quiet(self, region: str):
        """Nothing in here may wait for the card; else AssertionError."""
        before, self.region = self.region, region
        try:
            yield
        finally:
            self.region = before

    def guard(self, patch, region: str, owner, name: str) -> None:
        """Make a function of the project a region in which nothing may wait."""
        work = getattr(owner, name)

        @functools.wraps(work)
        def quiet(*args, **kwargs):
            with self.quiet(region):
                return work(*args, **kwargs)
        patch.setattr(owner, name, quiet)

    def before(self, patch, owner, name: str, region: str) -> None:
        """From a call of this function on, the region is another one; "": anything may wait."""
        work = getattr(owner, name)

        @functools.wraps(work)
        def other(*args, **kwargs):
            self.region = region
            return work(*args, **kwargs)
        patch.setattr(owner, name, other)

    def arrive(self, source: torch.Tensor, non_blocking: bool) -> None:
        """Book a copy from the CPU. One from pageable memory may wait, and so does every blocking one."""
        if self.recording is not None:
            self.refuse("copy from the CPU")
        if not non_blocking:
            self.wait("blocking copy to the card")
        elif source.untyped_storage().data_ptr() not in self.pinned:
            self.wait("copy from pageable memory")

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        self.pinned[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    def empty_cache(self) -> None:
        if self.recording is not None:
            self.refuse("cudaFree")
        self.pools = {key: pool for key, pool in self.pools.items() if pool.users}

    @property
    def n_private(self) -> int:
        return sum(pool.n_bytes for pool in self.pools.values())


CARD: PretendCard


class CardTensor(torch.Tensor):
    """A tensor of the card; `elem` holds its numbers. Below Python it is one of torch's meta device, as torch without CUDA has no guard
    for the streams of its devices."""
    __slots__ = ["elem"]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: torch.Tensor):
        assert type(elem) is torch.Tensor, type(elem)
        x = torch.Tensor._make_wrapper_subclass(cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(),
                                                dtype=elem.dtype, device="meta")
        x.elem = elem
        return x

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return dispatch(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = is_cpu = property(lambda self: False)

    def __repr__(self) -> str:
        return f"CardTensor({self.elem})"

    def data_ptr(self) -> int:
        return self.elem.data_ptr()

    def get_device(self) -> int:
        return 0

    def is_pinned(self) -> bool:
        return False

    def cpu(self) -> torch.Tensor:
        return self.to("cpu")

    def to(self, *args, **kwargs):
        device, dtype = wanted(args, kwargs)
        if on_card(device) or device is None:
            same = dtype in (None, self.dtype) and not kwargs.get("copy")
            return self if same else torch.Tensor.to(self, dtype or self.dtype, copy=bool(kwargs.get("copy")))
        return torch.Tensor.to(self, torch.device(device), dtype or self.dtype)

    def tolist(self):
        CARD.wait("tolist")
        return self.elem.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")


def wanted(args: tuple, kwargs: dict):
    """The device and type that the arguments of Tensor.to ask for."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for x in args:
        if isinstance(x, torch.dtype):
            dtype = x
        elif isinstance(x, torch.Tensor):
            device, dtype = x.device, x.dtype
        elif isinstance(x, (str, torch.device)):
            device = torch.device(x)
    return device, dtype


def on_card(device) -> bool:
    """cuda; or meta where torch's own C++ code asks for a tensor like a card's."""
    kind = device is not None and torch.device(device).type
    return kind == "cuda" or kind == "meta" and not CARD.meta


def bare(x):
    return x.elem if isinstance(x, CardTensor) else x


# --- ops ----------------------------------------------------------------------------------------------------

def check_devices(func, args: tuple, found: list[torch.Tensor]) -> None:
    """Raise where an op mixes devices as CUDA does not allow; count the waits of what it does allow."""
    if func in INDEXING:
        ours = isinstance(args[0], CardTensor)
        for index in args[1]:
            if index is None:
                continue
            if isinstance(index, CardTensor) and not ours:
                raise RuntimeError("indices should be on the same device as the indexed tensor (cpu)")
            filled = func is not aten.index.Tensor and args[2].numel() == 1
            if index.dtype == torch.bool and not filled:
                CARD.wait("boolean index")
            if not isinstance(index, CardTensor):
                CARD.wait("index on the CPU")
        found = [x for x in found if x is args[0] or len(args) > 2 and x is args[2]]
    cpu = [x for x in found if not isinstance(x, CardTensor)]
    if any(x.dim() for x in cpu) or cpu and func in (aten.cat.default, aten.stack.default):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {tuple(cpu[0].shape)} of the CPU at {site()}")


def dispatch(func, args: tuple, kwargs: dict):
    """Run an op; on the card where it has a tensor or is told to make one there."""
    found = tensors((args, kwargs))
    if not any(isinstance(x, CardTensor) for x in found) and not on_card(kwargs.get("device")):
        return func(*args, **kwargs)
    if func in (aten.lift_fresh.default, aten.lift.default):
        return args[0]
    if is_composite(func):                              # as which they come in inference mode
        with Ops():
            return func.decompose(*args, **kwargs)
    if func in (aten._to_copy.default, aten.copy_.default):
        out = copied(func, args, kwargs)
        if out is not None:
            return out
    elif func not in ALLOCATING:                        # empty_like takes its shape from any device
        check_devices(func, args, found)
    if func in WAITING:
        CARD.wait(str(func))
    if func in KERNELS:
        return KERNELS[func](func, args, kwargs)
    kwargs = {key: x for key, x in kwargs.items() if key not in ("device", "pin_memory")} | on_cpu(kwargs)
    return launch(func, args, kwargs)


def on_cpu(kwargs: dict) -> dict:
    return {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}


def copied(func, args: tuple, kwargs: dict):
    """A copy from one device to the other; None of one on the card."""
    if func is aten._to_copy.default:
        source, to = args[0], kwargs.get("device")
        leaves = isinstance(source, CardTensor) and to is not None and not on_card(to)
        kwargs = {key: x for key, x in kwargs.items() if key not in ("device", "non_blocking")}
        if leaves:
            CARD.wait("copy to the CPU")
            return func(bare(source), **kwargs)
        return None if isinstance(source, CardTensor) else CardTensor(func(source, **kwargs).clone())
    target, source = args[:2]
    if isinstance(target, CardTensor) == isinstance(source, CardTensor):
        return None
    if isinstance(target, CardTensor):
        CARD.arrive(source, len(args) > 2 and args[2] or kwargs.get("non_blocking", False))
    else:
        CARD.wait("copy to the CPU")
    bare(target).copy_(bare(source))
    return target


@cache
def is_composite(func) -> bool:
    """Whether an op is made of others: item() is _local_scalar_dense, to() may copy, ..."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch._C.DispatchKey.CompositeImplicitAutograd)


@cache
def effects(func) -> tuple[list[tuple[int, str]], bool]:
    """The arguments that an op writes to, by place and name, and whether what it returns may be views (to and reshape may copy)."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return [], False
    written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return written, not written and all(out.alias_info is not None for out in schema.returns)


def launch(func, args: tuple, kwargs: dict, name: str = ""):
    """Run an op on what the card's tensors hold; book and record it if it is a kernel, not a view."""
    ours = {id(x.elem): x for x in tensors((args, kwargs)) if isinstance(x, CardTensor)}
    args, kwargs = mapped(bare, args), mapped(bare, kwargs)
    written, may_be_view = effects(func)
    if written and CARD.recording is not None:
        for place, key in written:
            x = args[place] if place < len(args) else kwargs.get(key)
            for one in tensors(x):
                CARD.recording.save(one)
    out = func(*args, **kwargs)
    is_view = may_be_view and set(map(storage, tensors(out))) <= set(map(storage, tensors([args, kwargs])))
    if func in ALLOCATING:
        if CARD.recording is not None:
            CARD.recording.allocate(tensors(out))
    elif not is_view:
        CARD.launches[name or func.__name__] += 1
        if CARD.recording is not None:
            CARD.recording.add(func, args, kwargs, tensors(out), bool(written))

    def wrap(x):
        if not isinstance(x, torch.Tensor) or isinstance(x, CardTensor):
            return x
        if id(x) in ours:
            return ours[id(x)]
        with torch.inference_mode(x.is_inference()):
            return CardTensor(x)
    return mapped(wrap, out)


# --- kernels that differ from the CPU's ---------------------------------------------------------------------

def wide_product(func, args: tuple, kwargs: dict):
    """mm(a, b, out_dtype), which the CPU has not."""
    dtype = args[2] if len(args) > 2 else kwargs["out_dtype"]
    return launch(lambda a, b: a.to(dtype) @ b.to(dtype), args[:2], {}, "mm")


def grouped_product(func, args: tuple, kwargs: dict):
    """_grouped_mm: bfloat16 only, 16-byte rows; before Hopper a loop that waits for the offsets."""
    a, b = args[:2]
    if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
        raise RuntimeError(f"grouped_mm: expected bfloat16, got {a.dtype} and {b.dtype}")
    for x in (a, b):
        long = x.stride(-1) if x.stride(-1) != 1 else x.stride(-2)
        if long * x.element_size() % 16:
            raise RuntimeError(f"grouped_mm: strides should be multiples of 16 bytes, got {x.stride()} of {tuple(x.shape)}")
    if CARD.capability[0] not in (9, 10):
        CARD.wait("grouped_mm before Hopper")
    return launch(func, args, kwargs)


def paged_attention(func, args: tuple, kwargs: dict):
    """varlen_attn over pages."""
    given = dict(zip([a.name for a in func._schema.arguments], args)) | kwargs
    q = given["query"]
    if CARD.capability < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    names = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "seqused_k", "block_table")

    def kernel(q, k, v, starts_q, starts_k, used, table):
        return varlen_reference(q, k, v, starts_q, starts_k, given["max_q"], given["max_k"], seqused_k=used, block_table=table,
                                window_size=tuple(given["window_size"]), enable_gqa=True, num_splits=given["num_splits"])
    CARD.attention["pages"] += 1
    out = launch(kernel, tuple(given[name] for name in names), {}, "varlen_attn")
    return out, CardTensor(torch.zeros(q.shape[1], len(q))), CardTensor(torch.zeros(2, dtype=torch.int64))


def attention(cpu, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention: CUDA's choice of a backend, and the layout of what that one returns; `cpu` is torch's own."""
    if not isinstance(q, CardTensor):
        return cpu(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    H, K, D = q.shape[1], k.shape[1], q.shape[-1]
    assert H == K or enable_gqa, "unequal heads need enable_gqa"
    dense = all(x.stride(-1) == 1 for x in (q, k, v))
    modern = CARD.capability >= (8, 0)
    flash = dense and modern and q.dtype != torch.float32 and attn_mask is None and D <= 256
    efficient = dense and H == K and (modern or q.dtype != torch.bfloat16)
    CARD.attention["flash" if flash else "efficient" if efficient else "math"] += 1
    if H != K:
        k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
    scores = (q.float() @ k.float().mT) * (D ** -.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    y = (scores.softmax(-1) @ v.float()).to(q.dtype)
    return y.transpose(1, 2).contiguous().transpose(1, 2) if flash or efficient else y.contiguous()


KERNELS = {aten.mm.dtype: wide_product, aten._grouped_mm.default: grouped_product,
           torch.ops.torch_attn._varlen_attn.default: paged_attention}


# --- the two doors through which every call goes ------------------------------------------------------------

class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return dispatch(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """Calls that torch would answer differently for a card before any op is seen."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not kwargs and func is not torch.Tensor.to:
            return func(*args)
        device, dtype = wanted(args[1:], kwargs) if func is torch.Tensor.to else (kwargs.get("device"), None)
        if device is not None and torch.device(device).type == "meta" and not CARD.meta:
            CARD.meta = True
            try:
                return func(*args, **kwargs)
            finally:
                CARD.meta = False
        if device is not None and torch.device(device).type == "cuda":
            if func in (torch.tensor, torch.as_tensor):
                made = func(*args, **{key: x for key, x in kwargs.items() if key != "device"})
                CARD.arrive(made, False)
                return made if isinstance(made, CardTensor) else CardTensor(made)
            if func is torch.Tensor.to and not isinstance(args[0], CardTensor):
                CARD.arrive(args[0], kwargs.get("non_blocking", False))
                return CardTensor(args[0].detach().to(dtype or args[0].dtype).clone())
        return func(*args, **kwargs)


# --- graphs -------------------------------------------------------------------------------------------------

class Graph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False):
        self.ops, self.kept, self.saved, self.born = [], [], {}, set()
        self.n_bytes, self.broken, self.pool = 0, False, None

    def capture_begin(self, pool=None, capture_error_mode: str = "global") -> None:
        assert CARD.recording is None
        self.pool = pool or new_pool()
        CARD.pools.setdefault(self.pool, Pool()).users += 1
        CARD.recording = self

    def allocate(self, made: list[torch.Tensor]) -> None:
        if CARD.next_capture_fails is not None:
            error, CARD.next_capture_fails, self.broken = CARD.next_capture_fails, None, True
            raise error
        self.kept += made
        self.n_bytes += sum(x.untyped_storage().nbytes() for x in made if storage(x) not in self.born)
        self.born |= set(map(storage, made))

    def save(self, x: torch.Tensor) -> None:
        """What a capture overwrites is put back when it ends."""
        if storage(x) not in self.born and storage(x) not in self.saved:
            self.saved[storage(x)] = x.untyped_storage(), x.untyped_storage().clone()

    def add(self, func, args: tuple, kwargs: dict, out: list[torch.Tensor], mutates: bool) -> None:
        if not mutates:
            self.allocate(out)
        self.ops.append((func, args, kwargs, out, mutates))

    def capture_end(self) -> None:
        CARD.recording = None
        for whole, before in self.saved.values():
            whole.copy_(before)
        if self.broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        for _, _, _, out, mutates in self.ops:
            for x in out:
                if x.is_floating_point() and not mutates:
                    x.fill_(torch.nan)
        CARD.n_recorded += 1
        CARD.largest_recording = max(CARD.largest_recording, self.n_bytes)
        pool = CARD.pools[self.pool]
        pool.n_bytes, pool.last = max(pool.n_bytes, self.n_bytes), id(self)     # what died in one recording serves the next
        CARD.most_private = max(CARD.most_private, CARD.n_private)

    def replay(self) -> None:
        assert not self.broken and CARD.pools[self.pool].last == id(self), "a later recording has taken this graph's memory"
        CARD.n_replayed += 1
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.inference_mode():
            for func, args, kwargs, out, mutates in self.ops:
                again = tensors(func(*args, **kwargs))
                if not mutates:
                    for x, y in zip(out, again):
                        x.copy_(y)

    def reset(self) -> None:
        if self.pool in CARD.pools:
            CARD.pools[self.pool].users -= 1
        self.pool = None

    __del__ = reset


def new_pool() -> tuple[int, int]:
    new_pool.n = getattr(new_pool, "n", 0) + 1
    return 0, new_pool.n


class MemPool:
    """torch.cuda.MemPool."""

    def __init__(self, *args, **kwargs):
        self.id = new_pool()
        CARD.pools[self.id] = Pool(users=1)

    def __del__(self) -> None:
        CARD.pools.get(self.id, Pool()).users -= 1      # a graph may use it still


class Shards:
    """safetensors.safe_open, which copies to the card by itself."""

    def __init__(self, opener, file, device="cpu", **kwargs):
        self.device, self.file = device, opener(file, device="cpu", **kwargs)

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *args):
        return self.file.__exit__(*args)

    def __getattr__(self, name: str):
        return getattr(self.file, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.file.get_tensor(name).to(self.device)


@contextlib.contextmanager
def inserted(monkeypatch, capability: tuple[int, int]):
    """A machine that has such a card. No step of decoding and no micro-batch may wait for it."""
    global CARD
    CARD = PretendCard(capability)
    properties = types.SimpleNamespace(name="Pretend H200", total_memory=GIGABYTES, major=capability[0], minor=capability[1],
                                       multi_processor_count=132)
    pretences = dict(
        _lazy_init=lambda: None, is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, set_device=lambda device: None,
        get_device_capability=lambda device=None: capability, get_device_name=lambda device=None: properties.name,
        get_device_properties=lambda device=None: properties, is_bf16_supported=lambda including_emulation=True: capability >= (8, 0),
        synchronize=lambda device=None: CARD.wait("synchronize"), empty_cache=CARD.empty_cache,
        mem_get_info=lambda device=None: (GIGABYTES - (1 << 30), GIGABYTES), max_memory_allocated=lambda device=None: CARD.n_private,
        max_memory_reserved=lambda device=None: CARD.n_private, memory_reserved=lambda device=None: CARD.n_private,
        reset_peak_memory_stats=lambda device=None: None, Stream=type("Stream", (), {}),
        stream=lambda stream: contextlib.nullcontext(), device=lambda device: contextlib.nullcontext(), CUDAGraph=Graph, MemPool=MemPool,
        graph_pool_handle=new_pool)
    with monkeypatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
        for name, value in pretences.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *args: None, raising=False)
        patch.setattr(torch.Tensor, "pin_memory", lambda x, device=None: CARD.pin(x))
        CARD.guard(patch, "a step of decoding", generate.DecodeBatch, "step")
        CARD.before(patch, rl, "pack", "a micro-batch")
        CARD.before(patch, Ranks, "all_reduce", "")
        patch.setattr(F, "scaled_dot_product_attention", functools.partial(attention, F.scaled_dot_product_attention))
        opener = weights.safe_open
        patch.setattr(weights, "safe_open", lambda file, **kwargs: Shards(opener, file, **kwargs))
        with Functions(), Ops():
            yield CARD
