"""A pretend CUDA card, for machines without one.

Its tensors say `cuda:0` and hold real numbers on the CPU. They refuse to be mixed with CPU tensors; what would make the processor wait
for a card is counted, and raises inside a capture, as in CUDA, and inside the regions where nothing may wait. Attention answers with
the layouts of CUDA's kernels. A capture runs nothing for good: what it overwrites is put back, what it made is NaN until the graph's
first replay, which repeats its ops on the same memory. Private pools of graphs are booked as torch's allocator does.
"""
import contextlib
import functools
import types
from collections import Counter
from dataclasses import dataclass, field
from weakref import WeakSet

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
from infra.gpu import CUDAGraphRunner

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
GIGABYTES = 141 << 30
aten = torch.ops.aten
# What asks the card for a number or a shape, and therefore waits for it.
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default, aten.unique_dim.default,
           aten.unique_consecutive.default, aten.is_nonzero.default, aten.equal.default, aten.masked_select.default,
           aten.repeat_interleave.Tensor, aten.bincount.default, aten._linalg_check_errors.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


@dataclass(eq=False)
class Pool:
    """A private pool of the allocator; graphs and MemPools that use it keep it from being given back."""
    users: WeakSet = field(default_factory=WeakSet)
    n_bytes: int = 0
    last: int = 0                           # id of the graph whose memory it holds


@dataclass
class PretendCard:
    """What is known of the card, and all that was asked of it."""
    capability: tuple[int, int]
    n_waits: int = 0
    attention: Counter = field(default_factory=Counter)         # SDPA's backends, and "pages"
    n_recorded: int = 0
    n_replayed: int = 0
    largest_recording: int = 0                                  # bytes
    most_private: int = 0                                       # bytes of all pools at the worst moment
    next_capture_fails: Exception | None = None
    recording: "Graph | None" = None
    region: str = ""                                            # where nothing may wait
    pinned: dict = field(default_factory=dict)                  # by address
    pools: list[Pool] = field(default_factory=list)

    def wait(self, why: str) -> None:
        self.refuse(why)
        assert not self.region, f"{self.region} waits for the card: {why}"
        self.n_waits += 1

    def refuse(self, why: str) -> None:
        if self.recording:
            self.recording.broken = True
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {why}")

    def arrive(self, source: torch.Tensor, non_blocking: bool) -> None:
        """Book a copy from the CPU. One from pageable memory may wait, and so does every blocking one."""
        self.refuse("copy from the CPU")
        if not non_blocking or source.untyped_storage().data_ptr() not in self.pinned:
            self.wait("blocking copy, or one from pageable memory")

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        self.pinned[x.untyped_storage().data_ptr()] = x
        return x

    def empty_cache(self) -> None:
        self.refuse("cudaFree")
        self.pools = [pool for pool in self.pools if pool.users]

    def n_private(self, device=None) -> int:
        return sum(pool.n_bytes for pool in self.pools)


class CardTensor(torch.Tensor):
    """A tensor of the card; `elem` holds its numbers. Below Python it is one of torch's meta device, as torch without CUDA has no guard
    for the streams of its devices."""
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: torch.Tensor):
        x = torch.Tensor._make_wrapper_subclass(cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(),
                                                dtype=elem.dtype, device="meta")
        x.elem = elem
        return x

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with Ops():
            return func(*args, **(kwargs or {}))

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = is_cpu = property(lambda self: False)
    __repr__ = object.__repr__

    def tolist(self):
        return self.cpu().tolist()


def on_card(device) -> bool:
    """cuda; or meta, where torch's own C++ code asks for a tensor like a card's."""
    return device is not None and torch.device(device).type in ("cuda", "meta")


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def mapped(change, tree):
    """The same arguments or results with change(x) in the place of each tensor x; torch's own pytree would double the time."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(change, x) for key, x in tree.items()}
    return type(tree)([mapped(change, x) for x in tree]) if isinstance(tree, (list, tuple)) else tree


def tensors(tree) -> list[torch.Tensor]:
    found = []
    mapped(found.append, tree)
    return found


# --- ops ----------------------------------------------------------------------------------------------------

def check_devices(func, args: tuple, found: list[torch.Tensor]) -> None:
    """Raise where an op mixes devices as CUDA does not allow; count the waits of what it does allow."""
    if func in INDEXING:
        filled = func is not aten.index.Tensor and args[2].numel() == 1
        for index in tensors(args[1]):
            ours = isinstance(index, CardTensor)
            if ours and not isinstance(args[0], CardTensor):
                raise RuntimeError("indices should be on the same device as the indexed tensor (cpu)")
            if not ours or index.dtype == torch.bool and not filled:
                CARD.wait("index by a mask or from the CPU")
        found = tensors([args[0], *args[2:]])
    cpu = [x for x in found if not isinstance(x, CardTensor)]
    if any(x.dim() for x in cpu) or cpu and func in (aten.cat.default, aten.stack.default):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {tuple(cpu[0].shape)} of the CPU")


def dispatch(func, args: tuple, kwargs: dict):
    """Run an op; on the card where it has a tensor or is told to make one there."""
    found = tensors((args, kwargs))
    device = kwargs.get("device") or next((x for x in args if isinstance(x, torch.device)), None)
    if not any(isinstance(x, CardTensor) for x in found) and not on_card(device):
        return func(*args, **kwargs)
    if func in (aten.lift_fresh.default, aten.lift.default):
        return args[0]
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):   # made of others, in inference mode
        with Ops():
            return func.decompose(*args, **kwargs)
    if func in (aten._to_copy.default, aten.copy_.default):
        return copy(func, args, kwargs)
    if device is None:
        check_devices(func, args, found)
    if func in WAITING:
        CARD.wait(str(func))
    return KERNELS.get(func, launch)(func, args, kwargs)


def copy(func, args: tuple, kwargs: dict):
    """copy_(target, source) or _to_copy(source), which may go from one device to the other."""
    source = args[1] if func is aten.copy_.default else args[0]
    leaves = isinstance(source, CardTensor)
    arrives = on_card(kwargs.get("device") or args[0].device)
    if arrives and not leaves:
        CARD.arrive(source, kwargs.get("non_blocking") or args[2:] == (True,))
    if leaves and not arrives:
        CARD.wait("copy to the CPU")
    out = launch(func, args, kwargs)
    return out if arrives else out.elem


def launch(func, args: tuple, kwargs: dict):
    """Run an op on what the card's tensors hold; record it if it is a kernel, not a view."""
    if kwargs.get("device") is not None:
        kwargs = kwargs | dict(device=CPU)
    ours = {id(x.elem): x for x in tensors((args, kwargs)) if isinstance(x, CardTensor)}
    args, kwargs = given = mapped(lambda x: x.elem if isinstance(x, CardTensor) else x, (args, kwargs))
    mutates = hasattr(func, "_schema") and func._schema.is_mutable
    if CARD.recording and mutates:
        CARD.recording.save(tensors(given))
    out = func(*args, **kwargs)
    if CARD.recording:
        if mutates or not set(map(storage, tensors(out))) <= set(map(storage, tensors(given))):
            CARD.recording.add(func, given, [] if mutates else tensors(out))

    def wrap(x):
        if id(x) in ours:
            return ours[id(x)]
        with torch.inference_mode(x.is_inference()):
            return CardTensor(x)
    return mapped(wrap, out)


# --- kernels that differ from the CPU's ---------------------------------------------------------------------

def grouped_product(func, args: tuple, kwargs: dict):
    """_grouped_mm: bfloat16 only, 16-byte rows; before Hopper a loop that waits for the offsets."""
    for x in args[:2]:
        if x.dtype != torch.bfloat16:
            raise RuntimeError(f"grouped_mm: expected bfloat16, got {x.dtype}")
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
    if CARD.capability < (8, 0) or q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer, fp16 and bf16 data type")
    assert not given.pop("is_causal", False)
    CARD.attention["pages"] += 1
    out = launch(varlen_reference, (), given | dict(window_size=tuple(given["window_size"])))
    return out, CardTensor(torch.zeros(q.shape[1], len(q))), CardTensor(torch.zeros(2, dtype=torch.int64))


def attention(plain, q, k, v, attn_mask=None, enable_gqa=False, **options):
    """scaled_dot_product_attention: CUDA's choice of a backend, and the layout of what that one returns; `plain` is torch's own."""
    y = plain(q, k, v, attn_mask, enable_gqa=enable_gqa, **options)
    if not isinstance(q, CardTensor):
        return y
    dense = all(x.stride(-1) == 1 for x in (q, k, v))
    modern = CARD.capability >= (8, 0)
    flash = dense and modern and q.dtype != torch.float32 and attn_mask is None and q.shape[-1] <= 256
    efficient = dense and q.shape[1] == k.shape[1] and (modern or q.dtype != torch.bfloat16)
    CARD.attention["flash" if flash else "efficient" if efficient else "math"] += 1
    return y.transpose(1, 2).contiguous().transpose(1, 2) if flash or efficient else y.contiguous()


def wide(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    return a.to(out_dtype) @ b.to(out_dtype)


KERNELS = {aten.mm.dtype: lambda func, *given: launch(wide, *given), aten._grouped_mm.default: grouped_product,
           torch.ops.torch_attn._varlen_attn.default: paged_attention}


# --- the two doors through which every call goes ------------------------------------------------------------

class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return dispatch(func, args, kwargs or {})


def renamed(x):
    return "meta" if isinstance(x, (str, torch.device)) and str(x).startswith("cuda") else x


class Functions(TorchFunctionMode):
    """Calls a card by the name that it has below Python. What asks for torch's meta device itself gets it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device")) == "meta":
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is not torch.device:
            args, kwargs = [renamed(x) for x in args], {key: renamed(x) for key, x in kwargs.items()}
        if func in (torch.tensor, torch.as_tensor) and on_card(kwargs.get("device")):
            return func(*args, **kwargs | dict(device=None)).to("meta")
        return func(*args, **kwargs)


# --- graphs -------------------------------------------------------------------------------------------------

class Graph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False):
        self.ops, self.saved, self.born, self.broken = [], {}, {}, False

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
        assert CARD.recording is None
        self.pool = pool or Pool()
        self.pool.users.add(self)
        CARD.pools += [self.pool] * (self.pool not in CARD.pools)
        CARD.recording = self

    def save(self, changed: list[torch.Tensor]) -> None:
        """What a capture overwrites is put back when it ends."""
        for x in changed:
            if storage(x) not in self.born and storage(x) not in self.saved:
                self.saved[storage(x)] = x.untyped_storage(), x.untyped_storage().clone()

    def add(self, func, given: tuple, made: list[torch.Tensor]) -> None:
        if CARD.next_capture_fails is not None:
            error, CARD.next_capture_fails, self.broken = CARD.next_capture_fails, None, True
            raise error
        self.born |= {storage(x): x for x in made}
        self.ops.append((func, given, made))

    def capture_end(self) -> None:
        CARD.recording = None
        for whole, before in self.saved.values():
            whole.copy_(before)
        if self.broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        for x in self.born.values():
            if x.is_floating_point():
                x.fill_(torch.nan)
        n_bytes = sum(x.untyped_storage().nbytes() for x in self.born.values())
        CARD.n_recorded += 1
        CARD.largest_recording = max(CARD.largest_recording, n_bytes)
        self.pool.n_bytes = max(self.pool.n_bytes, n_bytes)                 # what died in one recording serves the next
        self.pool.last = id(self)
        CARD.most_private = max(CARD.most_private, CARD.n_private())

    def replay(self) -> None:
        assert not self.broken and self.pool.last == id(self), "a later recording has taken this graph's memory"
        CARD.n_replayed += 1
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.inference_mode():
            for func, (args, kwargs), made in self.ops:
                for x, y in zip(made, tensors(func(*args, **kwargs))):
                    x.copy_(y)


class MemPool:
    """torch.cuda.MemPool."""

    def __init__(self):
        self.id = Pool()
        self.id.users.add(self)                         # when it is gone, a graph may use it still


@contextlib.contextmanager
def opened(opener, file, device: str = "cpu", **options):
    """safetensors.safe_open, which copies to the card by itself."""
    with opener(file, device="cpu", **options) as shard:
        yield types.SimpleNamespace(keys=shard.keys, metadata=shard.metadata, get_tensor=lambda name: shard.get_tensor(name).to(device))


@contextlib.contextmanager
def inserted(monkeypatch, capability: tuple[int, int]):
    """A machine that has such a card. No step of decoding and no micro-batch may wait for it."""
    global CARD                                         # which all of the above asks
    CARD = PretendCard(capability)
    properties = types.SimpleNamespace(name="Pretend H200", total_memory=GIGABYTES, major=capability[0], minor=capability[1])
    pretences = dict(
        _lazy_init=lambda: None, is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, set_device=lambda device: None,
        get_device_capability=lambda device=None: capability, get_device_name=lambda device=None: properties.name,
        get_device_properties=lambda device=None: properties, is_bf16_supported=lambda including_emulation=True: capability >= (8, 0),
        synchronize=lambda device=None: CARD.wait("synchronize"), empty_cache=CARD.empty_cache,
        mem_get_info=lambda device=None: (GIGABYTES - (1 << 30), GIGABYTES), max_memory_reserved=CARD.n_private,
        memory_reserved=CARD.n_private, reset_peak_memory_stats=lambda device=None: None,
        Stream=type("Stream", (), {}), stream=lambda stream: contextlib.nullcontext(), device=lambda device: contextlib.nullcontext(),
        CUDAGraph=Graph, MemPool=MemPool)
    with monkeypatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
        def within(owner, name: str, region: str, after: str) -> None:
            """From a call of this function on, the region is this one; when it has returned, another; "": anything may wait."""
            work = getattr(owner, name)

            @functools.wraps(work)
            def watched(*args, **kwargs):
                CARD.region = region
                try:
                    return work(*args, **kwargs)
                finally:
                    CARD.region = after
            patch.setattr(owner, name, watched)

        for name, value in pretences.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *args: None, raising=False)
        patch.setattr(torch.Tensor, "pin_memory", lambda x, device=None: CARD.pin(x))
        for name, value in dict(can_record=True, pool=None, stream=None).items():
            patch.setattr(CUDAGraphRunner, name, value)
        within(generate.DecodeBatch, "step", "a step of decoding", after="")
        within(rl, "pack", "a micro-batch", after="a micro-batch")
        within(Ranks, "all_reduce", "", after="")
        patch.setattr(F, "scaled_dot_product_attention", functools.partial(attention, F.scaled_dot_product_attention))
        patch.setattr(weights, "safe_open", functools.partial(opened, weights.safe_open))
        with Functions(), Ops():
            yield CARD
