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
from linnet.ops._calls import BF16, F32, F64, Call, How, Operator, Output, Plan, missing, results, state_tuple

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
_is_grad_enabled = torch.is_grad_enabled
_transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
LOOKS = 4  # kinds of tensors that are looked for at once
_is_contiguous = torch.Tensor.is_contiguous
_address = torch.Tensor.data_ptr


class Device:
    """Where calls run: a context for the CPU, one for each stream of a GPU (Cuda); `lock` is held around calls, which share prepared structures."""

    cuda = False
    address = 0  # of the context on the CPU

    def __init__(self, device: torch.device):
        self.device = device
        self.lock = threading.Lock()
        self.lib = library()
        self.forward, self.backward = self.lib.linnet_operator_forward, self.lib.linnet_operator_backward
        self.contexts: dict[int, Context] = {}
        self.addresses: dict[int, int] = {}  # theirs
        self.room, self.room_bytes = 0, -1   # a workspace for all calls
        self.memory: Any = None

    def context(self, stream: int = 0) -> int:
        """The context of a stream, as an address."""
        address = self.addresses.get(stream)
        if address is None:
            found = self.contexts[stream] = self._make(stream)
            address = self.address = self.addresses[stream] = found.pointer.value or 0
        return address

    def _make(self, stream: int) -> Context:
        return Context("cpu", threads=torch.get_num_threads())

    def run(self, call: Call, addresses: Sequence[int]) -> None:
        with self.lock:
            context = self.address or self.context()
            call.view[call.places] = addresses
            if call.workspace > self.room_bytes:
                call.ask(self.lib, context)
                if call.workspace > self.room_bytes:
                    self.memory, self.room_bytes = _empty(call.workspace + 63, dtype=_uint8), call.workspace
                    self.room = (self.memory.data_ptr() + 63) & -64
            if call.room != self.room:
                call.struct.workspace = call.room = self.room
            status = (self.backward if call.backward else self.forward)(context, call.pointer)
            if status:
                raise error_of(self.lib, context, status)


class Cuda(Device):
    """A GPU: what is put on a stream runs in turn, so that its calls share a workspace."""

    cuda = True

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.index = device.index
        self.kept: dict[int, tuple[int, int, Any]] = {}  # by stream: size, place and memory
        self.capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.stream = partial(raw, self.index) if raw else lambda: torch.cuda.current_stream(self.index).cuda_stream
        self.current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device

    def _make(self, stream: int) -> Context:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the first call on a stream cannot be recorded: call once on that stream before, and record with "
                               "torch.cuda.graph(graph, stream=stream)")
        with torch.cuda.device(self.index):
            torch.cuda.current_stream()  # torch's own context is there first
            # torch's default stream is the driver's, whose number 0 would stand for "a stream of its own": 1 names it (cudaStreamLegacy)
            return Context(f"cuda:{self.index}", stream=stream or 1)

    def workspace(self, bytes: int, stream: int) -> tuple[int, Any]:
        """An address, and what has to be kept for it until the call is made."""
        size, place, found = self.kept.get(stream, (0, 0, None))
        if size >= bytes and not self.capturing():  # a recorded call is played on any stream, and has memory of its own
            return place, found
        made = _empty(bytes + 63, dtype=_uint8, device=self.device)  # from torch's pool, whose memory follows the stream
        place = (made.data_ptr() + 63) & -64
        if bytes <= KEPT and not self.capturing():
            self.kept[stream] = (bytes, place, made)
        return place, made

    def run(self, call: Call, addresses: Sequence[int]) -> None:
        if self.current_device() != self.index:
            with torch.cuda.device(self.index):
                return self.run(call, addresses)
        stream = self.stream()
        with self.lock:
            context = self.addresses.get(stream) or self.context(stream)
            call.view[call.places] = addresses
            if call.workspace:
                call.ask(self.lib, context)
                place, keep = self.workspace(call.workspace, stream)
                if call.room != place:
                    call.struct.workspace = call.room = place
            status = (self.backward if call.backward else self.forward)(context, call.pointer)
            if status:
                raise error_of(self.lib, context, status)


_devices: dict[torch.device, Device] = {}


def device_of(device: torch.device) -> Device:
    found = _devices.get(device)
    if found is None:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"tensors are on {device}, expected the CPU or a CUDA device")
        found = _devices[device] = Cuda(device) if device.type == "cuda" else Device(device)
    return found


def _caller(plan: Plan, call: Call, outputs: Sequence[Output], given: Sequence[torch.Tensor]) -> Any:
    """The call as a function of tensors that lie like `given`, which makes its outputs."""
    device, run, cuda, makes = plan.device.device, plan.device.run, plan.device.cuda, []
    for o in outputs:
        dtype = plan.dtypes[0] if o.row.wide else plan.dtypes[1]
        like = [i for i, t in enumerate(given) if t.shape == o.shape and t.dtype == dtype]
        makes.append((like[0] if like else -1, o.shape, dtype))  # -1: none is made like this one

    def called(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        addresses = [*map(_address, given)]
        if cuda and reduce(or_, addresses) % ALIGNED:
            return called([_dense(t, cuda) for t in given])
        outs = []
        for like, shape, dtype in makes:
            t = _like(given[like]) if like >= 0 else _empty(shape, dtype=dtype, device=device)
            outs.append(t)
            addresses.append(t.data_ptr())
        run(call, addresses)
        return outs

    return called


def _recorder(plan: Plan) -> Any:
    """The plan's call recording for the backward pass: a torch.autograd.Function of its own, whose arguments are tensors alone, as torch is fastest."""
    called, n, read_back, no_gradient = plan.called_kept, len(plan.outputs), plan.kept_outputs, plan.no_gradient
    more = bool(plan.kept or read_back)

    def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs = called(given)
        ctx.set_materialize_grads(False)
        if more:
            ctx.save_for_backward(*given, *[outs[i] for i in read_back], *outs[n:])
        else:
            ctx.save_for_backward(*given)
        if no_gradient:
            ctx.mark_non_differentiable(*[outs[i] for i in no_gradient])
        return tuple(outs[:n])

    def backward(ctx: Any, *cotangents: Optional[torch.Tensor]) -> tuple[Any, ...]:
        if _is_grad_enabled():  # create_graph: what comes back would be a constant to whoever differentiates it
            raise RuntimeError(f"{plan.op.name}: gradients of gradients (create_graph) are not offered")
        return _backward(plan, ctx.needs_input_grad, ctx.saved_tensors, cotangents)

    return type(plan.op.name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def _backward(plan: Plan, needs: tuple[bool, ...], saved: Sequence[torch.Tensor], cotangents: Sequence[Optional[torch.Tensor]]) -> tuple[Any, ...]:
    device = plan.device
    wanted = plan.wanted.get(needs)
    if wanted is None:
        wanted = plan.wanted[needs] = tuple([w and h for w, h in zip(needs, plan.has_gradient)])
    addresses = [*map(_address, saved)]
    if device.cuda and reduce(or_, addresses) % ALIGNED:
        saved = [_dense(t, True) for t in saved]
        addresses = [*map(_address, saved)]
    alive = []  # until the call is made
    for c in cotangents:
        if c is not None:
            c = _dense(c, device.cuda)
            alive.append(c)
            addresses.append(c.data_ptr())
    gradients = [_like(t) if w else None for t, w in zip(saved, wanted)]
    addresses += [g.data_ptr() for g in gradients if g is not None]
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
        if t is None and row.argument in op.needed:
            raise missing(op, row)
        if t is not None and not isinstance(t, torch.Tensor):
            raise TypeError(f"{op.name}: {row.argument} is a {type(t).__name__}, expected a torch.Tensor as the others are")


def _make(op: Operator, key: Any, inputs: Sequence[Any], states: Sequence[Any], how: How) -> Plan:
    _only_tensors(op, inputs, states)
    tensors = [*inputs, *states]
    rows = [*op.inputs, *(s.first for s in op.states)]
    first = next(t for t in tensors if t is not None)
    for row, t in zip(rows, tensors):
        if t is not None and t.device != first.device:
            raise ValueError(f"{op.name}: {row.argument} is on {t.device}, but {rows[0].argument} is on {first.device}")
    wide, narrow = _dtypes(op, inputs)
    plan = op.plan(key, shapes=[None if t is None else tuple(t.shape) for t in inputs], states=[None if t is None else tuple(t.shape) for t in states],
                   code=CODES[wide], how=how)
    plan.dtypes = (wide, narrow)
    given = [t for t in tensors if t is not None]
    plan.casts = _casts(op, plan, given)
    if plan.casts:
        given = [t.to(c) for t, c in zip(given, plan.casts)]
    plan.device = device_of(given[0].device)
    plan.called = _caller(plan, plan.forward, plan.outputs, given)
    plan.called_kept = _caller(plan, plan.forward_kept, [*plan.outputs, *plan.kept], given)
    return plan


def _alike(given: Sequence[torch.Tensor]) -> Any:
    """Whether other tensors have the shapes, strides, dtypes and devices of these, and require gradients where these do."""
    try:
        return _Guards(*given, dynamic_dims_sizes=[[*t.shape] for t in given], dynamic_dims_strides=[[*t.stride()] for t in given]).check
    except (TypeError, RuntimeError):  # another torch
        return None


def _find(op: Operator, inputs: tuple[Any, ...], states: tuple[Any, ...], given: Sequence[torch.Tensor], key: Any,
          compiling: bool) -> tuple[Plan, bool, bool]:
    """The plan of these tensors, whether they can be taken as they lie, and whether the call is to be recorded."""
    there, how, recording = key
    try:
        plan_key = (*map(_kind, given), there, how)
        plain = all(map(_is_contiguous, given))
    except (AttributeError, TypeError):
        _only_tensors(op, inputs, states)
        raise
    plan = op.plans.get(plan_key)
    if plan is None:
        plan = _make(op, plan_key, inputs, states or (None,) * len(op.states), how)
    plain = plain and plan.casts is None
    records = recording and any(map(_needs_gradient, given))
    if records and plan.record is None:
        record = _recorder(plan)
        plan.apply = super(torch.autograd.Function, record).apply  # the same less what functorch's transforms need
        plan.record = record
    alike = _alike(given) if _Guards and not compiling else None
    if alike:
        op.seen[key] = [(alike, plan, plain, records), *op.seen.get(key, ())[:LOOKS - 1]]
    return plan, plain, records


def run(op: Operator, inputs: tuple[Any, ...], there: Any, state: Any, how: How) -> Any:
    """`there`: bits of the inputs that may be left out and are given."""
    states: tuple[Any, ...] = ()
    given: Sequence[torch.Tensor] = inputs if there == op.all_there else [t for t in inputs if t is not None]
    if state is not None:
        states = state_tuple(op, state)
        given = [*given, *[t for t in states if t is not None]]
        there = (there, *[t is not None for t in states])
    if how[0] is not None:
        how = (offsets_of(how[0]), *how[1:])
    key = (there, how, _is_grad_enabled())
    compiling = _is_compiling()  # torch.compile cannot look into these
    for alike, plan, plain, records in () if compiling else op.seen.get(key, ()):
        if alike(*given):
            break
    else:
        plan, plain, records = _find(op, inputs, states, given, key, compiling)
    if not plain:
        given = [t.contiguous() for t in (given if plan.casts is None else [t.to(c) for t, c in zip(given, plan.casts)])]
    if records:
        outs: Any = (plan.record.apply if compiling or _transforms() else plan.apply)(*given)
    else:
        outs = plan.called(given)
    if plan.alone:
        return (outs[0], None) if op.states else outs[0]
    return results(plan, op, outs)
