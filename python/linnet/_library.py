"""The shared library: where it is, its structures (include/linnet/*.h), its errors, contexts. Standard library alone."""
from __future__ import annotations

import ctypes
import os
import sys
import threading
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Iterator, Optional

NAME = "liblinnet.so"
VERSION = "0.1"  # of the interface: a library of another one is refused

F32, BF16, F64 = 0, 1, 2
DTYPES = {"f32": F32, "float32": F32, "bf16": BF16, "bfloat16": BF16, "f64": F64, "float64": F64}
FORMS = {"auto": 0, "recurrent": 1, "chunk": 2, "parallel": 3}
STATUS = {-1: "invalid", -2: "no memory", -3: "input or output", -4: "malformed", -5: "unsupported", -6: "interrupted", -7: "internal"}
INTERRUPTED = -6


class Error(RuntimeError):
    """A refused call. The text is the library's message, detail and hint; `status` is one of its codes (linnet.h), `kind` its name here."""

    def __init__(self, text: str, status: int = -1, hint: str = ""):
        super().__init__(text)
        self.status, self.kind, self.hint = status, STATUS.get(status, "unknown"), hint


# ---- structures, in the order of the headers; test_plain.py holds them to these --------------------------------------------------------------

Callback = ctypes.CFUNCTYPE
LOG = Callback(None, c_void_p, c_char_p)


class ContextOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("threads", c_int32), ("device", c_char_p), ("log", LOG), ("log_user", c_void_p), ("stream", c_void_p)]


class ModelInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("parameters", c_int64), ("vocabulary", c_int64), ("width", c_int64), ("layers", c_int64),
                ("state_bytes_per_sequence", c_int64), ("state_capacity", c_int64), ("model_type", c_char_p)]


EVAL_PROGRESS = Callback(c_int, c_void_p, c_int64, c_int64)


class EvalOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("texts", POINTER(c_char_p)), ("n_texts", c_int32), ("length", c_int64), ("max_tokens", c_int64),
                ("csv", c_char_p), ("plot", c_char_p), ("progress", EVAL_PROGRESS), ("user", c_void_p), ("stride", c_int64),
                ("check_finite", c_int32), ("field", c_char_p)]


class EvalResult(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tokens", c_int64), ("bytes", c_int64), ("nats_per_token", c_double), ("perplexity", c_double),
                ("bits_per_byte", c_double), ("tokens_per_second", c_double)]


class ScoredToken(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("id", c_int64), ("bytes", c_void_p), ("n_bytes", c_size_t), ("logprob", c_double), ("n_top", c_int32),
                ("top", POINTER(c_int32)), ("top_logprob", POINTER(c_double))]


TOKEN = Callback(c_int, c_void_p, c_int64, c_void_p, c_size_t)
SCORED = Callback(c_int, c_void_p, POINTER(ScoredToken))


class GenerateOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("prompt", c_char_p), ("prompt_bytes", c_size_t), ("max_tokens", c_int64), ("temperature", c_double),
                ("top_k", c_int64), ("top_p", c_double), ("seed", c_uint64), ("stop_at_separator", c_int32), ("token", TOKEN), ("user", c_void_p),
                ("check_finite", c_int32), ("draft", c_void_p), ("draft_tokens", c_int64), ("min_p", c_double), ("repetition_penalty", c_double),
                ("stop", POINTER(c_char_p)), ("n_stop", c_int32), ("scored", SCORED), ("alternatives", c_int32)]


class GenerateResult(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("prompt_tokens", c_int64), ("tokens", c_int64), ("prefill_seconds", c_double), ("decode_seconds", c_double),
                ("state_bytes", c_int64), ("guessed", c_int64), ("guessed_right", c_int64), ("ended", c_int32)]


class OperatorSize(ctypes.Structure):
    _fields_ = [("letter", c_char_p), ("value", c_int64)]


class OperatorTensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p)]


class OperatorOption(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("value", c_double), ("text", c_char_p)]


def option_of(key: str, value: Any) -> OperatorOption:
    """A word by name, or a number."""
    return OperatorOption(key.encode(), 0.0, value.encode()) if isinstance(value, str) else OperatorOption(key.encode(), float(value), None)


class OperatorCall(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("op", c_char_p), ("impl", c_char_p), ("dtype", c_int32), ("form", c_int32), ("chunk", c_int32),
                ("n_sizes", c_int32), ("n_tensors", c_int32), ("n_options", c_int32), ("tokens", c_int64), ("sequences", c_int64),
                ("cu_seqlens", POINTER(c_int64)), ("cu_seqlens_device", c_void_p), ("sizes", POINTER(OperatorSize)),
                ("tensors", POINTER(OperatorTensor)), ("options", POINTER(OperatorOption)), ("workspace", c_void_p), ("workspace_size", c_size_t)]


class SessionOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("slots", c_int64), ("capacity", c_int64), ("rollback", c_int64), ("chunk", c_int64)]


class SessionInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("slots", c_int64), ("used", c_int64), ("capacity", c_int64), ("rollback", c_int64), ("chunk", c_int64),
                ("vocabulary", c_int64), ("width", c_int64), ("layers", c_int64), ("state_bytes", c_int64), ("rollback_bytes", c_int64)]


class SessionCall(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("state", c_void_p), ("ids", POINTER(c_int32)), ("n_ids", c_int64), ("wants", c_int32), ("layer", c_int32),
                ("logits", c_void_p), ("hidden", c_void_p), ("steps", c_int32), ("on_device", c_int32)]


class StateInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tokens", c_int64), ("rollback", c_int64), ("bytes", c_int64), ("slot", c_int64)]


class StateTensor(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("layer", c_int64), ("dtype", c_int32), ("n_dims", c_int32), ("dims", c_int64 * 4),
                ("bytes", c_int64)]


class ParameterInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("elements", c_int64), ("shape", c_int64 * 4), ("rank", c_int32), ("kept", c_int32),
                ("weight_decay", c_int32)]


class MicroBatch(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("ids", POINTER(c_int32)), ("targets", POINTER(c_int32)), ("mask", POINTER(c_uint8)), ("tokens", c_int64),
                ("sequences", c_int64), ("cu_seqlens", POINTER(c_int64)), ("scale", c_double)]


class TrainerOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("batch", c_int64), ("length", c_int64), ("accumulate", c_int64), ("recompute", c_int32),
                ("learning_rate", c_double), ("beta1", c_double), ("beta2", c_double), ("epsilon", c_double), ("weight_decay", c_double),
                ("clip", c_double), ("seed", c_uint64), ("user", c_void_p), ("next", c_void_p), ("schedule", c_void_p), ("before_update", c_void_p),
                ("windows", c_void_p), ("moments", c_int32)]


class TrainerResult(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("tokens", c_int64), ("predictions", c_int64), ("nats", c_double), ("loss", c_double),
                ("gradient_norm", c_double), ("learning_rate", c_double)]


# ---- functions: result, arguments. A result of int is a status -------------------------------------------------------------------------------

P, PP, S = c_void_p, POINTER(c_void_p), c_char_p
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "linnet_version": (S, []),
    "linnet_context_create": (c_int, [POINTER(ContextOptions), PP]),
    "linnet_context_destroy": (None, [P]),
    "linnet_error_message": (S, [P]),
    "linnet_error_detail": (S, [P]),
    "linnet_error_hint": (S, [P]),
    "linnet_threads": (c_int, [P]),
    "linnet_machine": (S, [P]),
    "linnet_free": (None, [P]),
    "linnet_operator_at": (S, [c_int]),
    "linnet_operator_describe": (c_size_t, [S, S, c_size_t]),
    "linnet_operator_ran": (S, [P]),
    "linnet_operator_workspace": (c_int, [P, POINTER(OperatorCall), c_int, POINTER(c_size_t)]),
    "linnet_operator_forward": (c_int, [P, P]),   # a pointer to OperatorCall, as a number on the way that is run often
    "linnet_operator_backward": (c_int, [P, P]),
    "linnet_config_create": (c_int, [P, S, PP]),
    "linnet_config_load": (c_int, [P, S, PP]),
    "linnet_config_set": (c_int, [P, P, S, S]),
    "linnet_config_preset": (c_int, [P, P, S]),
    "linnet_config_pattern": (c_int, [P, P, S]),
    "linnet_config_json": (S, [P]),
    "linnet_config_destroy": (None, [P]),
    "linnet_model_create": (c_int, [P, P, c_int, c_uint64, PP]),
    "linnet_model_load": (c_int, [P, S, c_int, PP]),
    "linnet_model_load_kept": (c_int, [P, S, c_int, c_int, PP]),
    "linnet_model_save": (c_int, [P, P, S]),
    "linnet_model_destroy": (None, [P]),
    "linnet_model_get_info": (c_int, [P, POINTER(ModelInfo)]),
    "linnet_model_describe": (P, [P, c_int]),
    "linnet_model_logits": (c_int, [P, P, P, c_int64, c_int64, P]),
    "linnet_tokenizer_open": (c_int, [P, S, PP]),
    "linnet_tokenizer_destroy": (None, [P]),
    "linnet_tokenizer_save": (c_int, [P, P, S]),
    "linnet_tokenizer_train": (c_int, [P, S, c_size_t, c_int64, PP]),
    "linnet_tokenizer_vocabulary": (c_int64, [P]),
    "linnet_tokenizer_separator": (c_int64, [P]),
    "linnet_tokenizer_encode": (c_int, [P, P, S, c_size_t, POINTER(POINTER(c_int32)), POINTER(c_int64)]),
    "linnet_tokenizer_piece": (P, [P, c_int64, POINTER(c_size_t)]),
    "linnet_eval": (c_int, [P, P, P, POINTER(EvalOptions), POINTER(EvalResult)]),
    "linnet_generate": (c_int, [P, P, P, POINTER(GenerateOptions), POINTER(GenerateResult)]),
    "linnet_session_create": (c_int, [P, P, POINTER(SessionOptions), PP]),
    "linnet_session_destroy": (None, [P]),
    "linnet_session_get_info": (c_int, [P, POINTER(SessionInfo)]),
    "linnet_session_run": (c_int, [P, POINTER(SessionCall), c_int64]),
    "linnet_state_create": (c_int, [P, PP]),
    "linnet_state_fork": (c_int, [P, PP]),
    "linnet_state_copy": (c_int, [P, P]),
    "linnet_state_destroy": (None, [P]),
    "linnet_state_get_info": (c_int, [P, POINTER(StateInfo)]),
    "linnet_state_rollback": (c_int, [P, c_int64]),
    "linnet_state_save": (c_int, [P, S]),
    "linnet_state_load": (c_int, [P, S, PP]),
    "linnet_state_tensor_count": (c_int64, [P]),
    "linnet_state_tensor_at": (c_int, [P, c_int64, POINTER(StateTensor)]),
    "linnet_state_tensor_read": (c_int, [P, c_int64, P, c_size_t]),
    "linnet_parameter_count": (c_int64, [P]),
    "linnet_parameter_at": (c_int, [P, P, c_int64, POINTER(ParameterInfo)]),
    "linnet_parameter_find": (c_int, [P, P, S, POINTER(ParameterInfo)]),
    "linnet_parameter_read": (c_int, [P, P, S, c_int64, c_int64, P]),
    "linnet_parameter_write": (c_int, [P, P, S, c_int64, c_int64, P]),
    "linnet_windows_create": (c_int, [P, P, c_int64, c_int64, c_uint64, PP]),
    "linnet_windows_get": (c_int, [P, c_int64, P, P]),
    "linnet_windows_destroy": (None, [P]),
    "linnet_learning_rate": (c_double, [c_int64, c_int64, c_int64, c_double, c_double]),
    "linnet_trainer_create": (c_int, [P, P, POINTER(TrainerOptions), PP]),
    "linnet_trainer_destroy": (None, [P]),
    "linnet_trainer_micro": (c_int, [P, POINTER(MicroBatch)]),
    "linnet_trainer_update": (c_int, [P, c_double, POINTER(TrainerResult)]),
    "linnet_trainer_drop": (c_int, [P]),
    "linnet_trainer_save": (c_int, [P, S]),
    "linnet_trainer_load": (c_int, [P, S]),
    "linnet_gradient_read": (c_int, [P, S, c_int64, c_int64, P]),
    "linnet_gradient_write": (c_int, [P, S, c_int64, c_int64, P]),
}


# ---- finding and loading ------------------------------------------------------------------------------------------------------------------------

def candidates() -> Iterator[str]:
    """Where the library is looked for, in order: LINNET_LIBRARY (the file, or a build folder or prefix that holds it) and nothing else where that is set;
    beside this file, where pip has put it; build/ of the source tree that this file lies in; below the prefix of this Python; where the system's
    loader looks."""
    here = Path(__file__).resolve().parent
    named = os.environ.get("LINNET_LIBRARY")
    if named:
        if os.path.isdir(named):
            yield from (str(Path(named) / sub / NAME) for sub in ("", "lib", "lib64", "build") if (Path(named) / sub / NAME).exists())
        yield named
        return
    tree = here.parent.parent
    for path in (here / NAME, tree / "build" / NAME if (tree / "CMakeLists.txt").exists() else None, Path(sys.prefix) / "lib" / NAME):
        if path and path.exists():
            yield str(path)
    yield NAME + ".0"
    yield NAME


def _open(path: str) -> ctypes.CDLL:
    """Waiting threads of GCC's OpenMP sleep soon (linnet.h), unless the environment says otherwise; it is read when the library is loaded."""
    waits = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)
    if not waits:
        os.environ["GOMP_SPINCOUNT"] = "10000"
    try:
        return ctypes.CDLL(path)
    finally:
        if not waits:
            del os.environ["GOMP_SPINCOUNT"]


def load(path: Optional[str] = None) -> ctypes.CDLL:
    """The library at `path`, or the first of candidates() that is there."""
    tried = []
    for name in [str(path)] if path else candidates():
        try:
            library = _open(name)
            break
        except OSError as e:
            tried.append(f"{name}: {e}")
    else:
        raise Error("the library of linnet was not found. Build it (./run build) and name it by LINNET_LIBRARY=.../liblinnet.so, or install the package "
                    "with it (pip install ./python). Tried " + "; ".join(tried), -5)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = result, arguments
    version = library.linnet_version().decode()
    if version.rsplit(".", 1)[0] != VERSION:
        raise Error(f"{name} is version {version}, this package is for {VERSION}", -5)
    return library


_loaded: Optional[ctypes.CDLL] = None
_loading = threading.Lock()


def library() -> ctypes.CDLL:
    """The library, loaded once."""
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = load()
    return _loaded


# ---- contexts ---------------------------------------------------------------------------------------------------------------------------------------

def error_of(lib: ctypes.CDLL, context: Any, status: int) -> Error:
    """The last error of a context as an exception."""
    parts = [get(context).decode("utf-8", "replace") for get in (lib.linnet_error_message, lib.linnet_error_detail, lib.linnet_error_hint)]
    about = " ".join(p for p in parts[1:] if p)  # sentences with their stops; the message has none
    return Error((f"{parts[0]}. {about}" if about else parts[0]) or f"status {status}", status, parts[2])


class Context:
    """A linnet_context: a device, its threads or its stream. One thread at a time uses it: hold `lock` around calls."""

    def __init__(self, device: str = "cpu", threads: int = 0, stream: Optional[int] = None, lib: Optional[ctypes.CDLL] = None):
        self.lib = lib or library()
        self.pointer = c_void_p()
        self.lock = threading.RLock()
        self.device = device
        self.users, self.over = 0, False
        options = ContextOptions(size=ctypes.sizeof(ContextOptions), threads=threads, device=device.encode(), stream=stream)
        self.check(self.lib.linnet_context_create(byref(options), byref(self.pointer)))

    def check(self, status: int) -> None:
        if status:
            raise error_of(self.lib, self.pointer, status)

    def close(self) -> None:
        """Now, or when the last of what lives on it is closed."""
        self.over = True
        if self.pointer and not self.users:
            pointer, self.pointer = self.pointer, c_void_p()
            self.lib.linnet_context_destroy(pointer)

    def release(self) -> None:
        """One user less."""
        self.users -= 1
        if self.over:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "pointer", None) and not sys.is_finalizing():
            self.close()

    @property
    def machine(self) -> str:
        """What runs here, "cpu: avx512, 2 threads"."""
        return self.lib.linnet_machine(self.pointer).decode()


def text_of(lib: ctypes.CDLL, address: Optional[int]) -> str:
    """A text that the library handed out, which is freed."""
    if not address:
        raise MemoryError
    try:
        return ctypes.string_at(address).decode()
    finally:
        lib.linnet_free(address)
