"""linnet's raw operators from Python, on any buffers, by ctypes and the standard library alone.

    import linnet_ops
    ops = linnet_ops.Linnet("build/liblinnet.so")            # or device="cuda"
    o = ops.forward("linear_attn", tensors={"q": q, "k": k, "v": v, "o": o}, sizes={"Hq": 2, "K": 16}, tokens=100)

A buffer is an address, or anything that has one: .data_ptr() (torch), .ctypes.data (NumPy), a ctypes array, an array.array. Tensors are dense; those
that the description calls wide have the call's dtype, the others float32. On "cuda" addresses are the device's. Nothing is copied.
include/linnet/recurrence.h is the contract; describe() says what an operator has."""
import ctypes
import json

DTYPES = {"f32": 0, "bf16": 1, "f64": 2}
FORMS = {"auto": 0, "recurrent": 1, "chunk": 2, "parallel": 3}


class _Size(ctypes.Structure):
    _fields_ = [("letter", ctypes.c_char_p), ("value", ctypes.c_int64)]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p)]


class _Option(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_double), ("text", ctypes.c_char_p)]


class _Call(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("op", ctypes.c_char_p), ("impl", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("form", ctypes.c_int32),
                ("chunk", ctypes.c_int32), ("n_sizes", ctypes.c_int32), ("n_tensors", ctypes.c_int32), ("n_options", ctypes.c_int32),
                ("tokens", ctypes.c_int64), ("sequences", ctypes.c_int64), ("cu_seqlens", ctypes.POINTER(ctypes.c_int64)),
                ("cu_seqlens_device", ctypes.c_void_p), ("sizes", ctypes.POINTER(_Size)), ("tensors", ctypes.POINTER(_Tensor)),
                ("options", ctypes.POINTER(_Option)), ("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_size_t)]


class _ContextOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", ctypes.c_int), ("device", ctypes.c_char_p), ("log", ctypes.c_void_p),
                ("log_user", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


class Error(RuntimeError):
    """A refused call: message, detail and hint."""


def address(buffer):
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
    def __init__(self, library, device="cpu", threads=0):
        self._lib = lib = ctypes.CDLL(str(library))
        for name in ("linnet_operator_forward", "linnet_operator_backward"):
            getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.POINTER(_Call)]
        lib.linnet_operator_workspace.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Call), ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)]
        lib.linnet_operator_describe.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        lib.linnet_operator_describe.restype = ctypes.c_size_t
        for name in ("linnet_operator_ran", "linnet_error_message", "linnet_error_detail", "linnet_error_hint"):
            getattr(lib, name).argtypes = [ctypes.c_void_p]
            getattr(lib, name).restype = ctypes.c_char_p
        lib.linnet_operator_at.argtypes = [ctypes.c_int]
        lib.linnet_operator_at.restype = ctypes.c_char_p
        lib.linnet_context_create.argtypes = [ctypes.POINTER(_ContextOptions), ctypes.POINTER(ctypes.c_void_p)]
        lib.linnet_context_destroy.argtypes = [ctypes.c_void_p]
        self._context = ctypes.c_void_p()
        options = _ContextOptions(size=ctypes.sizeof(_ContextOptions), threads=threads, device=device.encode())
        if lib.linnet_context_create(ctypes.byref(options), ctypes.byref(self._context)):
            raise Error(self._text())
        self._workspace = None

    def close(self):
        self._lib.linnet_context_destroy(self._context)
        self._context = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def operators(self):
        """Names of all operators."""
        names, i = [], 0
        while name := self._lib.linnet_operator_at(i):
            names.append(name.decode())
            i += 1
        return names

    def describe(self, op):
        """Sizes, tensors, options and implementations of an operator."""
        length = self._lib.linnet_operator_describe(op.encode(), None, 0)
        if not length:
            raise Error(f'unknown operator "{op}"; there are: {", ".join(self.operators())}')
        text = ctypes.create_string_buffer(length + 1)
        self._lib.linnet_operator_describe(op.encode(), text, length + 1)
        return json.loads(text.value)

    @property
    def ran(self):
        """The implementation that the last call took."""
        return self._lib.linnet_operator_ran(self._context).decode()

    def forward(self, op, **call):
        self._run(op, False, **call)

    def backward(self, op, **call):
        self._run(op, True, **call)

    def workspace_bytes(self, op, backward=False, **call):
        packed = self._pack(op, **call)
        need = ctypes.c_size_t()
        self._check(self._lib.linnet_operator_workspace(self._context, ctypes.byref(packed), int(backward), ctypes.byref(need)))
        return need.value

    def _pack(self, op, tensors, sizes, tokens, cu_seqlens=None, cu_seqlens_device=None, dtype="f32", form="auto", chunk=0, impl=None, options=None,
              workspace=None, workspace_size=0):
        options = options or {}
        cu = cu_seqlens if cu_seqlens is not None else (0, tokens)
        call = _Call(size=ctypes.sizeof(_Call), op=op.encode(), impl=impl and impl.encode(), dtype=DTYPES[dtype], form=FORMS[form], chunk=chunk,
                     n_sizes=len(sizes), n_tensors=len(tensors), n_options=len(options), tokens=tokens, sequences=len(cu) - 1,
                     cu_seqlens_device=address(cu_seqlens_device), workspace=address(workspace), workspace_size=workspace_size)
        call.cu_seqlens = (ctypes.c_int64 * len(cu))(*cu)
        call.sizes = (_Size * len(sizes))(*((k.encode(), v) for k, v in sizes.items()))
        call.tensors = (_Tensor * len(tensors))(*((k.encode(), address(v)) for k, v in tensors.items()))
        call.options = (_Option * len(options))(*((k.encode(), 0.0 if isinstance(v, str) else float(v), v.encode() if isinstance(v, str) else None)
                                                  for k, v in options.items()))
        return call

    def _run(self, op, backward, **call):
        packed = self._pack(op, **call)
        if not packed.workspace:  # host memory of our own, kept; a GPU's caller brings the workspace
            need = ctypes.c_size_t()
            self._check(self._lib.linnet_operator_workspace(self._context, ctypes.byref(packed), int(backward), ctypes.byref(need)))
            if self._workspace is None or len(self._workspace) < need.value + 64:
                self._workspace = ctypes.create_string_buffer(need.value + 64)
            packed.workspace = (ctypes.addressof(self._workspace) + 63) // 64 * 64
            packed.workspace_size = need.value
        run = self._lib.linnet_operator_backward if backward else self._lib.linnet_operator_forward
        self._check(run(self._context, ctypes.byref(packed)))

    def _text(self):
        parts = (self._lib.linnet_error_message, self._lib.linnet_error_detail, self._lib.linnet_error_hint)
        return " ".join(text for text in (part(self._context).decode() for part in parts) if text)

    def _check(self, status):
        if status:
            raise Error(self._text())
