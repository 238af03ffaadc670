"""Models: loading, logits, generation, evaluation; states as objects (include/linnet/linnet.h, state.h)."""
from __future__ import annotations

import ctypes
import json
import os
import sys
import weakref
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Tuple, Union

from linnet import _library as L
from linnet._arrays import Floats, numbers, strings, widened
from linnet._library import Context, Error

Path = Union[str, "os.PathLike[str]"]
ENDED = ("length", "separator", "stop", "caller")
LOGITS = {None: 0, "last": 1, "all": 2}


def _path(path: Path) -> bytes:
    return os.fsencode(path)


def _dtype(dtype: Any, what: str = "dtype") -> int:
    name = str(dtype).removeprefix("torch.")
    if L.DTYPES.get(name) not in (L.F32, L.BF16):
        raise ValueError(f"{what} is {name}, expected float32 or bfloat16")
    return L.DTYPES[name]


class _Owned:
    """Something of the library's that is destroyed once: before its context, and before what it lives on, in whatever order Python lets go of them."""

    _destroy = ""
    _with_owner = False  # whether the owner's own destruction takes it along

    def __init__(self, context: Context):
        self.context = context
        self.pointer = c_void_p()
        self._owner: Optional[_Owned] = None
        self._children: dict[int, Optional[str]] = {}

    def _made(self, owner: Optional["_Owned"] = None) -> None:
        """The pointer is there: from now on the context has to last."""
        self.context.users += 1
        self._owner = owner
        if owner is not None:
            owner._children[self.pointer.value or 0] = None if self._with_owner else self._destroy

    def _there(self) -> bool:
        """Not closed, and has not gone with an owner."""
        return bool(self.pointer) and (self._owner is None or (self.pointer.value in self._owner._children and self._owner._there()))

    def close(self) -> None:
        """Free it now; otherwise it goes with the object."""
        if not self.pointer:
            return
        there, pointer = self._there(), self.pointer.value or 0
        self.pointer = c_void_p()
        with self.context.lock:
            if there:
                if self._owner is not None:
                    del self._owner._children[pointer]
                for child, destroy in self._children.items():
                    if destroy:
                        getattr(self.context.lib, destroy)(child)
                self._children.clear()
                getattr(self.context.lib, self._destroy)(pointer)
        self.context.release()

    def __del__(self) -> None:
        if getattr(self, "pointer", None) and not sys.is_finalizing():
            self.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        if not self._there():
            raise Error(f"{type(self).__name__} is closed")
        with self.context.lock:
            self.context.check(getattr(self.context.lib, name)(*arguments))


class Tokenizer(_Owned):
    """Text to ids and back: "bytes", a tokenizer.json, or a folder with one (or with GPT-2's two files)."""

    _destroy = "linnet_tokenizer_destroy"

    def __init__(self, path: Path = "bytes", context: Optional[Context] = None):
        super().__init__(context or Context())
        self.context.check(self.context.lib.linnet_tokenizer_open(self.context.pointer, _path(path), byref(self.pointer)))
        self._made()

    @classmethod
    def train(cls, text: Union[str, bytes], vocabulary: int) -> "Tokenizer":
        """Byte-level BPE of up to so many ids, learned from a text."""
        t = cls.__new__(cls)
        _Owned.__init__(t, Context())
        data = text.encode() if isinstance(text, str) else text
        t.context.check(t.context.lib.linnet_tokenizer_train(t.context.pointer, data, len(data), vocabulary, byref(t.pointer)))
        t._made()
        return t

    def save(self, folder: Path) -> None:
        self._call("linnet_tokenizer_save", self.context.pointer, self.pointer, _path(folder))

    @property
    def vocabulary(self) -> int:
        return self.context.lib.linnet_tokenizer_vocabulary(self.pointer)

    @property
    def separator(self) -> Optional[int]:
        """The id between documents; None: there is none."""
        found = self.context.lib.linnet_tokenizer_separator(self.pointer)
        return found if found >= 0 else None

    def encode(self, text: Union[str, bytes]) -> list[int]:
        data = text.encode() if isinstance(text, str) else bytes(text)
        ids, n = ctypes.POINTER(c_int32)(), c_int64()
        self._call("linnet_tokenizer_encode", self.context.pointer, self.pointer, data, len(data), byref(ids), byref(n))
        try:
            return ids[:n.value]
        finally:
            self.context.lib.linnet_free(ids)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        parts, n = [], c_size_t()
        for i in ids:
            piece = self.context.lib.linnet_tokenizer_piece(self.pointer, int(i), byref(n))
            if piece is None and not n.value and not 0 <= int(i) < self.vocabulary:
                raise ValueError(f"id {i} is outside the vocabulary of {self.vocabulary}")
            parts.append(ctypes.string_at(piece, n.value) if piece else b"")
        return b"".join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")


@dataclass
class Token:
    """A token of a generation, and what the model gave it: natural logarithms of probabilities, before temperature and cuts."""
    id: int
    bytes: bytes
    logprob: float
    top: list[Tuple[int, float]] = field(default_factory=list)


@dataclass
class Generation:
    """What was written. `ended`: "length", "separator", "stop" or "caller"."""
    text: str
    bytes: bytes
    ids: list[int]
    ended: str
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    tokens: list[Token] = field(default_factory=list)


class Model(_Owned):
    """A model on a device, with a context of its own. Uses from several threads wait for one another.

        model = linnet.Model.load("model/", device="cuda", dtype="bfloat16")
        model.logits([[1, 2, 3]])
        model.generate("Once upon a time").text
    """

    _destroy = "linnet_model_destroy"

    def __init__(self, context: Context):
        super().__init__(context)
        self._tokenizer: Optional[Tokenizer] = None
        self._folder: Optional[str] = None
        self._session: Optional[weakref.ref[Session]] = None

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: Any = "float32", threads: int = 0) -> "Model":
        """A checkpoint folder: config.json, weights in safetensors, and the tokenizer that is beside them."""
        m = cls(Context(device, threads))
        m._folder = os.fspath(folder)
        m.context.check(m.context.lib.linnet_model_load(m.context.pointer, _path(folder), _dtype(dtype), byref(m.pointer)))
        m._made()
        return m

    @classmethod
    def create(cls, model_type: str = "gated_deltanet", preset: Optional[str] = None, pattern: Optional[str] = None, seed: int = 1,
               device: str = "cpu", dtype: Any = "float32", threads: int = 0, **keys: Any) -> "Model":
        """A model with freshly drawn weights: a kind of layer, a named size, and keys of config.json."""
        m = cls(Context(device, threads))
        c, lib, config = m.context, m.context.lib, c_void_p()
        c.check(lib.linnet_config_create(c.pointer, model_type.encode(), byref(config)))
        try:
            if preset:
                c.check(lib.linnet_config_preset(c.pointer, config, preset.encode()))
            layers = {k: keys.pop(k) for k in ("num_hidden_layers",) if k in keys}
            for some in (layers, keys):  # a pattern needs the number of layers, brings the keys of its kinds, and takes what these say of windows
                for key, given in some.items():
                    value = given if isinstance(given, str) else json.dumps(given)
                    c.check(lib.linnet_config_set(c.pointer, config, key.encode(), value.encode()))
                if pattern:
                    c.check(lib.linnet_config_pattern(c.pointer, config, pattern.encode()))
            c.check(lib.linnet_model_create(c.pointer, config, _dtype(dtype), seed, byref(m.pointer)))
            m._made()
        finally:
            lib.linnet_config_destroy(config)
        return m

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        self._call("linnet_model_save", self.context.pointer, self.pointer, _path(folder))

    @property
    def info(self) -> L.ModelInfo:
        found = L.ModelInfo(size=ctypes.sizeof(L.ModelInfo))
        self._call("linnet_model_get_info", self.pointer, byref(found))
        return found

    @property
    def vocabulary(self) -> int:
        return self.info.vocabulary

    @property
    def model_type(self) -> str:
        return self.info.model_type.decode()

    def describe(self) -> dict[str, Any]:
        """The whole model: configuration, parameters, program."""
        with self.context.lock:
            return json.loads(L.text_of(self.context.lib, self.context.lib.linnet_model_describe(self.pointer, 3)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The one beside the checkpoint, raw bytes for a vocabulary of 256; may be set."""
        if self._tokenizer is None:
            folder = self._folder
            beside = folder and any(os.path.exists(os.path.join(folder, f)) for f in ("tokenizer.json", "vocab.bpe"))
            if not beside and self.vocabulary != 256:
                raise Error(f"{folder or 'the model'} has no tokenizer.json: set model.tokenizer = linnet.Tokenizer(path)")
            self._tokenizer = Tokenizer(folder if beside and folder else "bytes")
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def logits(self, ids: Any) -> Any:
        """float32 [.., T, vocabulary] of ids [T] or [B, T], each sequence from its beginning. On a CPU tensor of torch's a tensor, else NumPy's (without
        NumPy a memoryview)."""
        array, shape = numbers(ids, c_int64, "ids")
        if len(shape) > 2:
            raise ValueError(f"ids have shape {list(shape)}, expected [T] or [B, T]")
        B, T = (1, shape[0]) if len(shape) == 1 else shape
        out = Floats((*shape, self.vocabulary), ids)
        self._call("linnet_model_logits", self.context.pointer, self.pointer, array, B, T, out.pointer)
        return out.value()

    def generate(self, prompt: Union[str, bytes] = "", max_tokens: int = 256, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
                 min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 1, stop: Sequence[str] = (), stop_at_separator: bool = True,
                 logprobs: bool = False, alternatives: int = 0, draft: Optional["Model"] = None, draft_tokens: int = 4,
                 on_text: Optional[Callable[[bytes], Any]] = None) -> Generation:
        """Write on from a prompt. `on_text` gets bytes as they come, and ends it by returning something true; `logprobs` and `alternatives` fill
        Generation.tokens."""
        data = prompt.encode() if isinstance(prompt, str) else bytes(prompt)
        written: list[bytes] = []
        ids: list[int] = []
        scored: list[Token] = []
        failed: list[BaseException] = []

        def token(_: Any, id: int, text: Any, n: int) -> int:
            try:
                piece = ctypes.string_at(text, n) if n else b""
                written.append(piece)
                if id >= 0:
                    ids.append(id)
                return int(bool(on_text(piece))) if on_text is not None else 0
            except BaseException as e:  # a C function is between here and whoever is to see it
                failed.append(e)
                return 1

        def score(_: Any, t: Any) -> int:
            s = t.contents
            top = [(s.top[i], s.top_logprob[i]) for i in range(s.n_top)]
            scored.append(Token(s.id, ctypes.string_at(s.bytes, s.n_bytes) if s.n_bytes else b"", s.logprob, top))
            return 0

        o = L.GenerateOptions(size=ctypes.sizeof(L.GenerateOptions), prompt=data, prompt_bytes=len(data), max_tokens=max_tokens,
                              temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop_at_separator=int(stop_at_separator),
                              token=L.TOKEN(token), draft=draft.pointer if draft else None, draft_tokens=draft_tokens, min_p=min_p,
                              repetition_penalty=repetition_penalty, stop=strings(list(stop)), n_stop=len(stop), alternatives=alternatives)
        if logprobs or alternatives:
            o.scored = L.SCORED(score)
        r = L.GenerateResult(size=ctypes.sizeof(L.GenerateResult))
        with self.context.lock:
            status = self.context.lib.linnet_generate(self.context.pointer, self.pointer, self.tokenizer.pointer, byref(o), byref(r))
            if failed:
                raise failed[0]
            if status != L.INTERRUPTED:
                self.context.check(status)
        out = b"".join(written)
        return Generation(out.decode("utf-8", "replace"), out, ids, ENDED[r.ended], r.prompt_tokens, r.prefill_seconds, r.decode_seconds, scored)

    def evaluate(self, texts: Union[Path, Sequence[Path]], length: int = 1024, stride: int = 0, max_tokens: int = 0,
                 field: Optional[str] = None) -> dict[str, float]:
        """Loss on files or folders (compressed ones too; `field` of JSON lines): tokens, bytes, nats_per_token, perplexity, bits_per_byte."""
        names = [os.fspath(t) for t in ([texts] if isinstance(texts, (str, os.PathLike)) else texts)]
        o = L.EvalOptions(size=ctypes.sizeof(L.EvalOptions), texts=strings(names), n_texts=len(names), length=length, stride=stride,
                          max_tokens=max_tokens, field=field.encode() if field is not None else None)
        r = L.EvalResult(size=ctypes.sizeof(L.EvalResult))
        self._call("linnet_eval", self.context.pointer, self.pointer, self.tokenizer.pointer, byref(o), byref(r))
        return {f[0]: getattr(r, f[0]) for f in r._fields_ if f[0] != "size"}

    # ---- parameters ----

    def parameters(self) -> dict[str, Tuple[int, ...]]:
        """Shapes by name."""
        found = {}
        for i in range(self.context.lib.linnet_parameter_count(self.pointer)):
            p = L.ParameterInfo(size=ctypes.sizeof(L.ParameterInfo))
            self._call("linnet_parameter_at", self.context.pointer, self.pointer, i, byref(p))
            found[p.name.decode()] = tuple(p.shape[:p.rank])
        return found

    def _parameter(self, name: str) -> L.ParameterInfo:
        p = L.ParameterInfo(size=ctypes.sizeof(L.ParameterInfo))
        self._call("linnet_parameter_find", self.context.pointer, self.pointer, name.encode(), byref(p))
        return p

    def parameter(self, name: str) -> Any:
        """A copy of its values, float32."""
        p = self._parameter(name)
        out = Floats(tuple(p.shape[:p.rank]))
        self._call("linnet_parameter_read", self.context.pointer, self.pointer, name.encode(), 0, p.elements, out.pointer)
        return out.value()

    def set_parameter(self, name: str, values: Any) -> None:
        """Write all of its values."""
        from linnet._arrays import floats_from
        p = self._parameter(name)
        pointer, n, _alive = floats_from(values, name)
        if n != p.elements:
            raise ValueError(f"{name} has {p.elements} elements, {n} were given")
        self._call("linnet_parameter_write", self.context.pointer, self.pointer, name.encode(), 0, n, pointer)

    # ---- states ----

    def session(self, slots: int = 1, capacity: int = 0, rollback: int = 0, chunk: int = 256) -> "Session":
        """Room for so many states at once, which are then run together."""
        return Session(self, slots, capacity, rollback, chunk)

    def state(self) -> "State":
        """A state of no tokens, in a session of eight slots that lasts as long as its states; by 256 tokens it can be taken back."""
        session = self._session() if self._session else None
        if session is None or not session.pointer:
            session = Session(self, 8, 0, 256, 256)
            self._session = weakref.ref(session)
        return session.state()


class Session(_Owned):
    """Slots for states of a model, and what runs them."""

    _destroy = "linnet_session_destroy"

    def __init__(self, model: Model, slots: int = 1, capacity: int = 0, rollback: int = 0, chunk: int = 256):
        super().__init__(model.context)
        self.model = model
        o = L.SessionOptions(ctypes.sizeof(L.SessionOptions), slots, capacity, rollback, chunk)
        with self.context.lock:
            self.context.check(self.context.lib.linnet_session_create(self.context.pointer, model.pointer, byref(o), byref(self.pointer)))
        self._made(model)

    @property
    def info(self) -> L.SessionInfo:
        found = L.SessionInfo(size=ctypes.sizeof(L.SessionInfo))
        self._call("linnet_session_get_info", self.pointer, byref(found))
        return found

    def _new(self, function: str, *arguments: Any) -> "State":
        state = State(self)
        self._call(function, *arguments, byref(state.pointer))
        state._made(self)
        return state

    def state(self) -> "State":
        """A state of no tokens."""
        return self._new("linnet_state_create", self.pointer)

    def load(self, path: Path) -> "State":
        """One that State.save wrote, of the same model."""
        return self._new("linnet_state_load", self.pointer, _path(path))

    def run(self, work: Mapping["State", Any], logits: Optional[str] = "last", hidden: Optional[int] = None, steps: bool = False) -> dict["State", Any]:
        """Feed several states at once, each its ids. Results by state: logits of the last id [V] ("last"), of every id [n, V] ("all"), None (None); with
        `hidden`, the number of a layer, (logits, what that layer gave [n, width])."""
        if logits not in LOGITS:
            raise ValueError(f'logits is {logits!r}, expected "last", "all" or None')
        calls = (L.SessionCall * len(work))()
        alive, outs = [], []
        info = self.info
        for call, (state, ids) in zip(calls, work.items()):
            array, shape = numbers(ids, c_int32, "ids")
            if len(shape) != 1:
                raise ValueError(f"ids have shape {list(shape)}, expected [n]")
            out = Floats((info.vocabulary,) if logits == "last" else (shape[0], info.vocabulary), ids) if logits and shape[0] else None
            inner = Floats((shape[0], info.width), ids) if hidden is not None else None
            call.size, call.state, call.n_ids, call.wants = ctypes.sizeof(L.SessionCall), state.pointer, shape[0], LOGITS[logits] if out else 0
            call.ids, call.layer, call.steps = array, hidden or 0, int(steps)
            call.logits, call.hidden = out.pointer if out else None, inner.pointer if inner else None
            alive.append(array)
            outs.append((out, inner))
        self._call("linnet_session_run", self.pointer, calls, len(work))
        results = {}
        for state, (out, inner) in zip(work, outs):
            value = out.value() if out else None
            results[state] = (value, inner.value()) if inner else value
        return results


class State(_Owned):
    """What a text has left in a model."""

    _destroy = "linnet_state_destroy"
    _with_owner = True

    def __init__(self, session: Session):
        super().__init__(session.context)
        self.session = session

    def feed(self, ids: Any, logits: Optional[str] = "last") -> Any:
        """Feed ids (or a text, by the model's tokenizer); their logits, as Session.run has them."""
        if isinstance(ids, (str, bytes)):
            ids = self.session.model.tokenizer.encode(ids)
        return self.session.run({self: ids}, logits)[self]

    def fork(self) -> "State":
        """A second one that is as this one is."""
        return self.session._new("linnet_state_fork", self.pointer)

    def copy_to(self, other: "State") -> None:
        self._call("linnet_state_copy", self.pointer, other.pointer)

    def rollback(self, tokens: int) -> None:
        """Take the last tokens back, exactly."""
        self._call("linnet_state_rollback", self.pointer, tokens)

    def save(self, path: Path) -> None:
        """Into a safetensors file, for Session.load."""
        self._call("linnet_state_save", self.pointer, _path(path))

    @property
    def info(self) -> L.StateInfo:
        found = L.StateInfo(size=ctypes.sizeof(L.StateInfo))
        self._call("linnet_state_get_info", self.pointer, byref(found))
        return found

    @property
    def tokens(self) -> int:
        """Fed so far."""
        return self.info.tokens

    @property
    def bytes(self) -> int:
        return self.info.bytes

    def tensors(self) -> dict[str, Any]:
        """Copies of all it holds, by name; bf16 as float32."""
        found = {}
        for i in range(self.context.lib.linnet_state_tensor_count(self.pointer)):
            t = L.StateTensor(size=ctypes.sizeof(L.StateTensor))
            self._call("linnet_state_tensor_at", self.pointer, i, byref(t))
            data = (ctypes.c_char * t.bytes)()
            self._call("linnet_state_tensor_read", self.pointer, i, data, t.bytes)
            found[t.name.decode()] = widened(bytes(data), t.dtype, tuple(t.dims[:t.n_dims]))
        return found


__all__ = ["Generation", "Model", "Session", "State", "Token", "Tokenizer"]
