"""Arrays in and out: lists, array.array, NumPy and torch in; out, what went in (torch), NumPy where it is there, memoryviews otherwise."""
from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import Any, Sequence

_HAS_NUMPY = importlib.util.find_spec("numpy") is not None


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def numbers(x: Any, kind: Any, what: str) -> tuple[Any, tuple[int, ...]]:
    """Whole numbers (or kind c_float: numbers) as a dense ctypes array of `kind`, and their shape."""
    if _is_torch(x):
        x = x.detach().cpu().tolist()
    elif hasattr(x, "tolist"):
        x = x.tolist()
    shape: list[int] = []
    rows = x
    while isinstance(rows, (list, tuple)):
        shape.append(len(rows))
        rows = rows[0] if rows else None
    if not shape:
        raise TypeError(f"{what} is {x!r}, expected a list or an array")
    flat: Sequence[Any] = x
    for n in shape[1:]:
        if any(not isinstance(row, (list, tuple)) or len(row) != n for row in flat):
            raise ValueError(f"rows of {what} are of different lengths")
        flat = [v for row in flat for v in row]
    try:
        return (kind * len(flat))(*flat), tuple(shape)
    except TypeError:
        raise TypeError(f"{what} holds something else than {'numbers' if kind is ctypes.c_float else 'whole numbers'}") from None


class Floats:
    """float32 of a shape that a C call writes: `pointer`, and `value()` as an array of the kind that `like` is."""

    def __init__(self, shape: tuple[int, ...], like: Any = None):
        self.shape, self.torch = shape, _is_torch(like)
        count = 1
        for n in shape:
            count *= n
        if self.torch:
            torch = sys.modules["torch"]
            self.array: Any = torch.empty(shape, dtype=torch.float32)
            self.pointer = self.array.data_ptr()
        elif _HAS_NUMPY:
            import numpy
            self.array = numpy.empty(shape, numpy.float32)
            self.pointer = self.array.ctypes.data
        else:
            self.array = (ctypes.c_float * count)()
            self.pointer = ctypes.addressof(self.array)

    def value(self) -> Any:
        if self.torch or _HAS_NUMPY:
            return self.array
        view = memoryview(self.array).cast("B")
        return view.cast("f", self.shape) if 0 not in self.shape and self.shape else view.cast("f")


def floats_from(x: Any, what: str) -> tuple[Any, int, Any]:
    """float32 values for a C call: address, how many, and what has to stay alive."""
    if _is_torch(x):
        torch = sys.modules["torch"]
        x = x.detach().to("cpu", torch.float32).contiguous()
        return x.data_ptr(), x.numel(), x
    if _HAS_NUMPY and hasattr(x, "__array_interface__"):
        import numpy
        x = numpy.ascontiguousarray(x, numpy.float32)
        return x.ctypes.data, x.size, x
    array, _ = numbers(x, ctypes.c_float, what)
    return ctypes.addressof(array), len(array), array


def widened(data: bytes, dtype: int, shape: tuple[int, ...]) -> Any:
    """Bytes of a tensor (linnet_dtype) as an array; bf16 becomes float32, which holds it exactly."""
    if dtype == 1:
        words = memoryview(data).cast("H")
        data = b"".join((w << 16).to_bytes(4, "little") for w in words) if not _HAS_NUMPY else _bf16(data)
        dtype = 0
    kind = {0: ("f", "float32"), 2: ("d", "float64"), 4: ("q", "int64"), 5: ("i", "int32"), 6: ("B", "uint8")}[dtype]
    if _HAS_NUMPY:
        import numpy
        return numpy.frombuffer(data, kind[1]).reshape(shape).copy()
    view: Any = memoryview(data)
    return view.cast(kind[0], shape) if shape and 0 not in shape else view.cast(kind[0])


def _bf16(data: bytes) -> bytes:
    import numpy
    return (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).tobytes()


def strings(values: Sequence[str]) -> Any:
    """A char ** ; None for none."""
    return (ctypes.c_char_p * len(values))(*[v.encode() for v in values]) if values else None


__all__ = ["Floats", "floats_from", "numbers", "strings", "widened"]
