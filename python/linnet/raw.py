"""linnet's raw operators from Python, on any buffers, by ctypes and the standard library alone.

    from linnet import raw
    ops = raw.Linnet()            # or device="cuda"; raw.Linnet("build/liblinnet.so") for a library that is named
    o = ops.forward("linear_attn", tensors={"q": q, "k": k, "v": v, "o": o}, sizes={"Hq": 2, "K": 16}, tokens=100)

A buffer is an address, or anything that has one: .data_ptr() (torch), .ctypes.data (NumPy), a ctypes array, an array.array. Tensors are dense; those
that the description calls wide have the call's dtype, the others float32. On "cuda" addresses are the device's. Nothing is copied.
include/linnet/recurrence.h is the contract; describe() says what an operator has. linnet.ops is the same for torch and NumPy with less to say."""
from __future__ import annotations

import ctypes
import json
from typing import Any, Mapping, Optional, Sequence

from linnet._library import DTYPES, FORMS, Context, Error, OperatorCall, OperatorOption, OperatorSize, OperatorTensor, load, option_of

__all__ = ["Linnet", "Error", "address"]


def address(buffer: Any) -> Optional[int]:
    """The address of a buffer; None stays None."""
    if buffer is None or isinstance(buffer, int):
        return buffer
    if hasattr(buffer, "data_ptr"):
        return buffer.data_ptr()
    if hasattr(buffer, "buffer_info"):  # array.array
        return buffer.buffer_info()[0]
    if hasattr(buffer, "__array_interface__"):
        return buffer.ctypes.data
    return ctypes.addressof(buffer)


class Linnet:
    """A context and the calls on it; for one thread."""

    def __init__(self, library: Any = None, device: str = "cpu", threads: int = 0):
        self._context = Context(device, threads, lib=load(library) if library is not None else None)
        self._lib = self._context.lib
        self._workspace: Any = None

    def close(self) -> None:
        self._context.close()

    def __enter__(self) -> "Linnet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def operators(self) -> list[str]:
        """Names of all operators."""
        names: list[str] = []
        while name := self._lib.linnet_operator_at(len(names)):
            names.append(name.decode())
        return names

    def describe(self, op: str) -> dict[str, Any]:
        """Sizes, tensors, options and implementations of an operator."""
        length = self._lib.linnet_operator_describe(op.encode(), None, 0)
        if not length:
            raise Error(f'unknown operator "{op}"; there are: {", ".join(self.operators())}')
        text = ctypes.create_string_buffer(length + 1)
        self._lib.linnet_operator_describe(op.encode(), text, length + 1)
        return json.loads(text.value)

    @property
    def ran(self) -> str:
        """The implementation that the last call took."""
        return self._lib.linnet_operator_ran(self._context.pointer).decode()

    def forward(self, op: str, **call: Any) -> None:
        """Run with tensors={name: buffer}, sizes={letter: number}, tokens=, and cu_seqlens=, cu_seqlens_device=, dtype="f32", form="auto", chunk=0,
        impl=None, options={key: number or word}, workspace=, workspace_size= (of a GPU, which is the caller's)."""
        self._run(op, False, **call)

    def backward(self, op: str, **call: Any) -> None:
        """The same with the forward call's inputs, the outputs that are read back, cotangents ("do") and gradients ("dq")."""
        self._run(op, True, **call)

    def workspace_bytes(self, op: str, backward: bool = False, **call: Any) -> int:
        packed = self._pack(op, **call)
        need = ctypes.c_size_t()
        self._context.check(self._lib.linnet_operator_workspace(self._context.pointer, ctypes.byref(packed), int(backward), ctypes.byref(need)))
        return need.value

    def _pack(self, op: str, tensors: Mapping[str, Any], sizes: Mapping[str, int], tokens: int, cu_seqlens: Optional[Sequence[int]] = None,
              cu_seqlens_device: Any = None, dtype: str = "f32", form: str = "auto", chunk: int = 0, impl: Optional[str] = None,
              options: Optional[Mapping[str, Any]] = None, workspace: Any = None, workspace_size: int = 0) -> OperatorCall:
        options = options or {}
        cu = cu_seqlens if cu_seqlens is not None else (0, tokens)
        call = OperatorCall(size=ctypes.sizeof(OperatorCall), op=op.encode(), impl=impl and impl.encode(), dtype=DTYPES[dtype], form=FORMS[form],
                            chunk=chunk, n_sizes=len(sizes), n_tensors=len(tensors), n_options=len(options), tokens=tokens, sequences=len(cu) - 1,
                            cu_seqlens_device=address(cu_seqlens_device), workspace=address(workspace), workspace_size=workspace_size)
        call.cu_seqlens = (ctypes.c_int64 * len(cu))(*cu)
        call.sizes = (OperatorSize * len(sizes))(*[OperatorSize(k.encode(), v) for k, v in sizes.items()])
        call.tensors = (OperatorTensor * len(tensors))(*[OperatorTensor(k.encode(), address(v)) for k, v in tensors.items()])
        call.options = (OperatorOption * len(options))(*[option_of(k, v) for k, v in options.items()])
        return call

    def _run(self, op: str, backward: bool, **call: Any) -> None:
        packed = self._pack(op, **call)
        if not packed.workspace:  # host memory of our own, kept; a GPU's caller brings the workspace
            need = ctypes.c_size_t()
            self._context.check(self._lib.linnet_operator_workspace(self._context.pointer, ctypes.byref(packed), int(backward), ctypes.byref(need)))
            if self._workspace is None or len(self._workspace) < need.value + 64:
                self._workspace = ctypes.create_string_buffer(need.value + 64)
            packed.workspace = (ctypes.addressof(self._workspace) + 63) // 64 * 64
            packed.workspace_size = need.value
        run = self._lib.linnet_operator_backward if backward else self._lib.linnet_operator_forward
        self._context.check(run(self._context.pointer, ctypes.byref(packed)))
