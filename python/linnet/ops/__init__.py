"""The operators on torch tensors (CPU and CUDA, with autograd) and NumPy arrays.

Two sets of names. The operators' own, made from the library's descriptions: `gated_delta_rule(q, k, v, g, beta, ...)`, `kda`, `gla`, `mesa`, ... ; help()
of one says what it takes. And those that flash-linear-attention has, with its arguments, shapes and defaults, so that only the import changes:

    from linnet.ops import chunk_gated_delta_rule        # from fla.ops.gated_delta_rule import chunk_gated_delta_rule

Both return what they compute without copying inputs that are dense and of the right dtype: float32 or bfloat16 (float64 runs the reference, on the CPU),
gates, write strengths and states float32, or brought to that. Work is put on torch's current stream. Gradients of gradients are refused."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from linnet.ops import fla as _fla
from linnet.ops._calls import Error, names, operator
from linnet.ops.fla import *  # noqa: F401,F403

if TYPE_CHECKING:
    from linnet.ops._operators import *  # type: ignore  # noqa: F401,F403  made by the build from the descriptions

__all__ = [*_fla.__all__, "Error", "gradients", "names"]


def gradients(name: str, *inputs: Any, cotangents: Any, initial_state: Any = None, cu_seqlens: Any = None, form: str = "auto",
              chunk_size: Optional[int] = None, impl: Optional[str] = None, **options: Any) -> dict[str, Any]:
    """Gradients of operator `name` on NumPy arrays, by the name of what they belong to (a state's is its own, "s").

    Args:
        inputs: in the order of the operator's function
        cotangents: of outputs by name, {"o": ..., "s": ...}; an array alone is that of the first output
        options: of the operator, and inputs by name behind those that are given in order"""
    from linnet.ops import _numpy
    op = operator(name)
    order = [r.argument for r in op.inputs]
    given = dict(zip(order, inputs))
    given.update({k: options.pop(k) for k in list(options) if k in order})
    if not isinstance(cotangents, dict):
        cotangents = {op.outputs[0].name: cotangents}
    for key in options:
        if key not in op.options:
            raise TypeError(f'{name}: no option "{key}"; its options: {", ".join(op.options) or "none"}')
    how = (cu_seqlens, tuple(options.get(k) for k in op.options), True, form, chunk_size, impl, False)
    return _numpy.gradients(op, [given.get(a) for a in order], initial_state, cotangents, how)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in names():
        raise AttributeError(f"module 'linnet.ops' has no attribute '{name}'")
    from linnet.ops import _plain
    globals()[name] = function = _plain.make(name)
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *names()})
