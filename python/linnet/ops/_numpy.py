"""Operators on NumPy arrays: forward, on the CPU. Gradients by linnet.ops.gradients."""
from __future__ import annotations

import threading
from typing import Any, Optional, Sequence

import numpy as np

from linnet._library import Context
from linnet.ops._calls import BF16, F32, F64, Call, How, Operator, Plan, results, state_tuple

CODES = {"float32": F32, "float64": F64, "bfloat16": BF16}  # the last of ml_dtypes

_lock = threading.Lock()
_context: Optional[Context] = None
_scratch = np.empty(0, np.uint8)


def _run(call: Call, arrays: Sequence[Any]) -> None:
    global _context, _scratch
    with _lock:
        if _context is None:
            _context = Context("cpu")
        call.view[call.places] = [a.__array_interface__["data"][0] if a.size else 0 for a in arrays]
        call.ask(_context.lib, _context.pointer)
        if call.workspace:
            if _scratch.size < call.workspace + 64:
                _scratch = np.empty(call.workspace + 64, np.uint8)
            call.struct.workspace = (_scratch.__array_interface__["data"][0] + 63) & -64
        lib = _context.lib
        _context.check((lib.linnet_operator_backward if call.backward else lib.linnet_operator_forward)(_context.pointer, call.pointer))


def prepare(op: Operator, inputs: Sequence[Any], state: Any, how: How) -> tuple[Plan, list[Any]]:
    """The plan of a call and its given arrays, dense and in the right dtype."""
    inputs = [None if a is None else np.asarray(a) for a in inputs]
    states = [None if a is None else np.asarray(a) for a in state_tuple(op, state)]
    rows = [*op.inputs, *(s.first for s in op.states)]
    wide: Any = None
    for row, a in zip(rows, [*inputs, *states]):
        if a is not None and a.dtype.name not in CODES:
            raise TypeError(f"{op.name}: {row.argument} is {a.dtype.name}, expected float32, float64 or bfloat16")
        if a is not None and row.wide:
            wide = a.dtype if wide is None or a.dtype.itemsize > wide.itemsize else wide
    if any(a is not None and a.dtype == np.float64 for a in [*inputs, *states]):
        wide = np.dtype(np.float64)
    wide = wide or np.dtype(np.float32)
    narrow = np.dtype(np.float64 if wide == np.float64 else np.float32)
    how = (None if how[0] is None else tuple(int(x) for x in np.asarray(how[0])), *how[1:])
    shapes = [None if a is None else a.shape for a in inputs]
    state_shapes = [None if a is None else a.shape for a in states]
    plan = op.plan(("numpy", *shapes, *state_shapes, wide.name, how), shapes=shapes, states=state_shapes, code=CODES[wide.name], how=how)
    plan.dtypes = (wide, narrow)
    arrays = [a for a in [*inputs, *states] if a is not None]
    return plan, [np.ascontiguousarray(a, wide if r.wide else narrow) for a, r in zip(arrays, plan.given)]


def _new(plan: Plan, outputs: Sequence[Any]) -> list[Any]:
    return [np.empty(o.shape, plan.dtypes[0] if o.row.wide else plan.dtypes[1]) for o in outputs]


def run(op: Operator, inputs: tuple[Any, ...], state: Any, how: How) -> Any:
    plan, given = prepare(op, inputs, state, how)
    outs = _new(plan, plan.outputs)
    _run(plan.forward, [*given, *outs])
    return results(plan, op, outs)


def gradients(op: Operator, inputs: Sequence[Any], state: Any, cotangents: dict[str, Any], how: How) -> dict[str, Any]:
    """Gradients by name of all that is given, for cotangents of outputs by the output's name ("o", and a final state's, "s")."""
    plan, given = prepare(op, inputs, state, how)
    outs, kept = _new(plan, plan.outputs), _new(plan, plan.kept)
    _run(plan.forward_kept, [*given, *outs, *kept])
    names = [s.name for s in plan.states]
    known = [o.row.name for o in plan.outputs[:len(op.outputs)]] + names
    for name in cotangents:
        if name not in known:
            raise TypeError(f'{op.name}: no output "{name}"; its outputs: {", ".join(known)}')
    there, come = [], []
    for name, out in zip(known, outs):
        c = cotangents.get(name)
        there.append(c is not None)
        if c is not None:
            come.append(np.ascontiguousarray(np.broadcast_to(np.asarray(c), out.shape), out.dtype))
    result = [np.empty_like(a) for a, has in zip(given, plan.has_gradient) if has]
    _run(plan.backward(tuple(there), tuple(plan.has_gradient)), [*given, *(outs[i] for i in plan.kept_outputs), *kept, *come, *result])
    starts = {s.first.name: s.name for s in op.states}
    return dict(zip((starts.get(r.name, r.argument) for r, has in zip(plan.given, plan.has_gradient) if has), result))
