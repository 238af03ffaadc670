"""Operators on torch tensors, on the CPU and on CUDA devices: nothing is copied that lies dense in the right dtype, work is put on the current stream,
and gradients are those of the library's own backward pass.

What a call costs on top of the C call is what stands in run() and below: tensors like those of a call before are known by one look of torch's own at
all of them, others by a key of shapes; then allocations of results and addresses."""
from __future__ import annotations

import threading
import weakref
from functools import partial, reduce
from operator import attrgetter, or_
from typing import Any, Optional, Sequence

import torch

from linnet._library import Context, error_of, library
from linnet.ops._calls import BF16, F32, F64, Call, Operator, Output, Plan, results, state_tuple

CODES = {torch.float32: F32, torch.bfloat16: BF16, torch.float64: F64}
ALIGNED = 16  # bytes that a GPU's kernels read at once
KEPT = 32 << 20  # bytes of a workspace on a GPU that is kept for the next call on its stream

_empty = torch.empty
_like = torch.empty_like  # half as long as the other
_uint8 = torch.uint8
_kind = attrgetter("shape", "dtype", "device")  # mapped over tensors: no step of Python's in between
_needs_gradient = attrgetter("requires_grad")
_Guards = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)  # torch's own; without it calls take longer
_is_compiling = torch.compiler.is_compiling
LOOKS = 4  # kinds of tensors that are looked for at once
_is_contiguous = torch.Tensor.is_contiguous
_address = torch.Tensor.data_ptr


class Device:
    """Where calls run: a context for the CPU, one for each stream of a GPU; `lock` is held around calls, which share prepared structures."""

    def __init__(self, device: torch.device):
        self.device = device
        self.cuda = device.type == "cuda"
        self.lock = threading.Lock()
        self.lib = library()
        self.calls = (self.lib.linnet_operator_forward, self.lib.linnet_operator_backward)
        self.contexts: dict[int, Context] = {}
        self.addresses: dict[int, int] = {}  # theirs
        self.scratch: Any = None
        self.scratch_bytes = -1
        if self.cuda:
            self.index = device.index
            self.kept: dict[int, tuple[int, int, Any]] = {}  # by stream, where what is put runs in turn: size, place and memory
            self.capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
            raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
            self.stream = partial(raw, self.index) if raw else lambda: torch.cuda.current_stream(self.index).cuda_stream
            self.current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device

    def context(self, stream: Optional[int] = None) -> int:
        """The context of the current stream, as an address."""
        if stream is None:
            stream = self.stream() if self.cuda else 0
        address = self.addresses.get(stream)
        if address is None:
            if self.cuda:
                if torch.cuda.is_current_stream_capturing():
                    raise RuntimeError("the first call on a stream cannot be recorded: call once on that stream before, and record with "
                                       "torch.cuda.graph(graph, stream=stream)")
                with torch.cuda.device(self.index):
                    torch.cuda.current_stream()  # torch's own context is there first
                    # torch's default stream is the driver's, whose number 0 would stand for "a stream of its own": 1 names it (cudaStreamLegacy)
                    found = Context(f"cuda:{self.index}", stream=stream or 1)
            else:
                found = Context("cpu", threads=torch.get_num_threads())
            self.contexts[stream] = found
            address = self.addresses[stream] = found.pointer.value or 0
        return address

    def workspace(self, bytes: int, stream: int) -> tuple[int, Any]:
        """An address, and what has to be kept for it until the call is made."""
        if self.cuda:
            size, place, found = self.kept.get(stream, (0, 0, None))
            if size >= bytes and not self.capturing():  # a recorded call is played on any stream, and has memory of its own
                return place, found
            made = _empty(bytes + 63, dtype=_uint8, device=self.device)  # from torch's pool, whose memory follows the stream
            place = (made.data_ptr() + 63) & -64
            if bytes <= KEPT and not self.capturing():
                self.kept[stream] = (bytes, place, made)
            return place, made
        if self.scratch_bytes < bytes:
            self.scratch, self.scratch_bytes = _empty(bytes + 63, dtype=_uint8), bytes
        return (self.scratch.data_ptr() + 63) & -64, self.scratch

    def run(self, call: Call, addresses: Sequence[int]) -> None:
        stream = 0
        if self.cuda:
            if self.current_device() != self.index:
                with torch.cuda.device(self.index):
                    return self.run(call, addresses)
            stream = self.stream()
        with self.lock:
            context = self.addresses.get(stream) or self.context(stream)
            view = call.view
            for place, address in zip(call.places, addresses):
                view[place] = address
            if call.workspace:
                if call.workspace < 0:
                    self._ask(call, context)
                call.struct.workspace, keep = self.workspace(call.workspace, stream)
            status = self.calls[call.backward](context, call.pointer)
            if status:
                raise error_of(self.lib, context, status)

    def _ask(self, call: Call, context: int) -> None:
        import ctypes
        need = ctypes.c_size_t()
        status = self.lib.linnet_operator_workspace(context, ctypes.byref(call.struct), int(call.backward), ctypes.byref(need))
        if status:
            raise error_of(self.lib, context, status)
        call.workspace = need.value
        call.struct.workspace_size = need.value


_devices: dict[torch.device, Device] = {}


def device_of(device: torch.device) -> Device:
    found = _devices.get(device)
    if found is None:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"tensors are on {device}, expected the CPU or a CUDA device")
        found = _devices[device] = Device(device)
    return found


def _makes(plan: Plan, given: Sequence[torch.Tensor], outputs: Sequence[Output]) -> list[Any]:
    """Of each output: the given tensor that it is made like (its place), shape and dtype; place -1: there is none such."""
    wide, narrow = plan.dtypes
    made = []
    for o in outputs:
        dtype = wide if o.row.wide else narrow
        like = [i for i, t in enumerate(given) if t.shape == o.shape and t.dtype == dtype]
        made.append((like[0] if like else -1, o.shape, dtype))
    return made


def _forward(plan: Plan, addresses: list[int], call: Call, makes: Sequence[Any], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, and behind them what is kept besides; the inputs' addresses are there."""
    device = plan.device
    outs = []
    for like, shape, dtype in makes:
        t = _like(given[like]) if like >= 0 else _empty(shape, dtype=dtype, device=device.device)
        outs.append(t)
        addresses.append(t.data_ptr())
    device.run(call, addresses)
    return outs


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, addresses: list[int], *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs = _forward(plan, addresses, plan.forward_kept, plan.makes_kept, given)
        n = len(plan.outputs)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *[outs[i] for i in plan.kept_outputs], *outs[n:])
        if plan.no_gradient:
            ctx.mark_non_differentiable(*[outs[i] for i in plan.no_gradient])
        return tuple(outs[:n])

    @staticmethod
    def backward(ctx: Any, *cotangents: Optional[torch.Tensor]) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        device = plan.device
        if torch.is_grad_enabled():  # create_graph: what comes back would be a constant to whoever differentiates it
            raise RuntimeError(f"{plan.op.name}: gradients of gradients (create_graph) are not offered")
        needs = ctx.needs_input_grad
        wanted = plan.wanted.get(needs)
        if wanted is None:
            wanted = plan.wanted[needs] = tuple([w and h for w, h in zip(needs[2:], plan.has_gradient)])
        saved = ctx.saved_tensors
        addresses = [t.data_ptr() for t in saved]
        alive = []  # until the call is made
        for c in cotangents:
            if c is not None:
                c = _dense(c, device.cuda)
                alive.append(c)
                addresses.append(c.data_ptr())
        gradients: list[Optional[torch.Tensor]] = [None, None]
        for t, w in zip(saved, wanted):
            g = _like(t) if w else None
            if g is not None:
                addresses.append(g.data_ptr())
            gradients.append(g)
        device.run(plan.backward(tuple([c is not None for c in cotangents]), wanted), addresses)
        del alive
        return tuple(gradients)


def _dense(t: torch.Tensor, cuda: bool) -> torch.Tensor:
    if not t.is_contiguous():
        return t.contiguous()
    if cuda and t.data_ptr() % ALIGNED:
        return t.clone()
    return t


# ---- offsets of sequences ------------------------------------------------------------------------------------------------------------------

_offsets: dict[int, tuple[Any, int, tuple[int, ...]]] = {}


def offsets_of(cu_seqlens: Any) -> tuple[int, ...]:
    """cu_seqlens as numbers. Those of a tensor are read once, which waits for a GPU; it is known again as long as it is the same and unchanged."""
    if not isinstance(cu_seqlens, torch.Tensor):
        return tuple(int(x) for x in cu_seqlens)
    known = _offsets.get(id(cu_seqlens))
    if known is not None and known[0]() is cu_seqlens and known[1] == cu_seqlens._version:
        return known[2]
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype.is_floating_point:
        raise ValueError(f"cu_seqlens is {cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}, expected whole numbers in one row")
    numbers = tuple(cu_seqlens.tolist())
    if len(_offsets) > 256:
        _offsets.clear()
    _offsets[id(cu_seqlens)] = (weakref.ref(cu_seqlens), cu_seqlens._version, numbers)
    return numbers


# ---- calls ---------------------------------------------------------------------------------------------------------------------------------------

def _casts(op: Operator, plan: Plan, given: Sequence[torch.Tensor]) -> Any:
    """For each given tensor the dtype that it is to be brought to; None: all are right."""
    wide, narrow = plan.dtypes
    casts = [wide if r.wide else narrow for r in plan.given]
    return casts if any(t.dtype != c for t, c in zip(given, casts)) else None


def _dtypes(op: Operator, tensors: Sequence[Optional[torch.Tensor]]) -> tuple[torch.dtype, torch.dtype]:
    """Of wide tensors and of the others: the widest that any wide tensor has, or float64 for all where one is."""
    wide: Any = None
    for row, t in zip(op.inputs, tensors):
        if t is None:
            continue
        if t.dtype not in CODES:
            raise TypeError(f"{op.name}: {row.argument} is {str(t.dtype).removeprefix('torch.')}, expected float32, bfloat16 or float64")
        if row.wide:
            wide = t.dtype if wide is None else torch.promote_types(wide, t.dtype)
    if any(t is not None and t.dtype == torch.float64 for t in tensors):
        return torch.float64, torch.float64
    return wide or torch.float32, torch.float32


def _only_tensors(op: Operator, inputs: Sequence[Any], states: Sequence[Any]) -> None:
    for row, t in zip([*op.inputs, *(s.first for s in op.states)], [*inputs, *states]):
        if t is not None and not isinstance(t, torch.Tensor):
            raise TypeError(f"{op.name}: {row.argument} is a {type(t).__name__}, expected a torch.Tensor as the others are")


def _make(op: Operator, key: Any, inputs: Sequence[Any], states: Sequence[Any], options: dict[str, Any], final: bool, offsets: Any, form: str, chunk: int,
          impl: Optional[str], reports: bool) -> Plan:
    _only_tensors(op, inputs, states)
    tensors = [*inputs, *states]
    rows = [*op.inputs, *(s.first for s in op.states)]
    first = next(t for t in tensors if t is not None)
    for row, t in zip(rows, tensors):
        if t is not None and t.device != first.device:
            raise ValueError(f"{op.name}: {row.argument} is on {t.device}, but {rows[0].argument} is on {first.device}")
    wide, narrow = _dtypes(op, inputs)
    plan = op.plan(key, shapes=[None if t is None else tuple(t.shape) for t in inputs], states=[None if t is None else tuple(t.shape) for t in states],
                   code=CODES[wide], options=options, final=final, cu_seqlens=offsets, form=form, chunk=chunk, impl=impl, reports=reports)
    plan.dtypes = (wide, narrow)
    given = [t for t in tensors if t is not None]
    plan.casts = _casts(op, plan, given)
    if plan.casts:
        given = [t.to(c) for t, c in zip(given, plan.casts)]
    plan.makes = _makes(plan, given, plan.outputs)
    plan.makes_kept = _makes(plan, given, [*plan.outputs, *plan.kept])
    return plan


def _alike(given: Sequence[torch.Tensor]) -> Any:
    """Whether other tensors have the shapes, strides, dtypes and devices of these, and require gradients where these do."""
    try:
        return _Guards(*given, dynamic_dims_sizes=[[*t.shape] for t in given], dynamic_dims_strides=[[*t.stride()] for t in given]).check
    except (TypeError, RuntimeError):  # another torch
        return None


def _find(op: Operator, inputs: tuple[Any, ...], states: tuple[Any, ...], given: Sequence[torch.Tensor], options: dict[str, Any], rest: Any) -> tuple[Plan, bool]:
    """The plan of these tensors, and whether all lie dense."""
    try:
        key = (*map(_kind, given), rest)
        dense = all(map(_is_contiguous, given))
    except (AttributeError, TypeError):
        _only_tensors(op, inputs, states)
        raise
    plan = op.plans.get(key)
    if plan is None:
        _, _, final, offsets, form, chunk, impl, reports = rest
        plan = _make(op, key, inputs, states or (None,) * len(op.states), options, final, offsets, form, chunk or 0, impl, reports)
        plan.device = device_of(given[0].device)
    alike = _alike(given) if _Guards and not _is_compiling() else None
    if alike:
        op.seen[rest] = [(alike, plan, dense), *op.seen.get(rest, ())[:LOOKS - 1]]
    return plan, dense


def run(op: Operator, inputs: tuple[Any, ...], keys: tuple[str, ...], values: tuple[Any, ...], state: Any, final: bool, cu_seqlens: Any, form: str,
        chunk: Optional[int], impl: Optional[str], reports: bool) -> Any:
    states: tuple[Any, ...] = state_tuple(op, state) if state is not None else ()
    offsets = None if cu_seqlens is None else offsets_of(cu_seqlens)
    tensors = inputs + states
    given = [t for t in tensors if t is not None]
    there: Any = len(tensors) if len(given) == len(tensors) else tuple([t is not None for t in tensors])
    rest = (there, values, final, offsets, form, chunk, impl, reports)
    for alike, plan, dense in () if _is_compiling() else op.seen.get(rest, ()):  # which torch.compile cannot look into
        if alike(*given):
            break
    else:
        plan, dense = _find(op, inputs, states, given, dict(zip(keys, values)), rest)
    if plan.casts is not None:
        given = [t.to(c) for t, c in zip(given, plan.casts)]
    if not dense or plan.casts is not None:
        given = [t.contiguous() for t in given]
    addresses = [*map(_address, given)]
    if plan.device.cuda and reduce(or_, addresses) % ALIGNED:
        given = [t.clone() if address % ALIGNED else t for t, address in zip(given, addresses)]
        addresses = [*map(_address, given)]
    if torch.is_grad_enabled() and any(map(_needs_gradient, given)):
        outs: Any = _Function.apply(plan, addresses, *given)
    else:
        outs = _forward(plan, addresses, plan.forward, plan.makes, given)
    return results(plan, op, outs, final, reports)
