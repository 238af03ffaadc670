"""Training under a loop of the caller's own (include/linnet/train.h)."""
from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int32, c_int64, c_uint8
from dataclasses import dataclass
from typing import Any, Iterable, Optional

from linnet import _library as L
from linnet._arrays import Floats, floats_from, numbers
from linnet._library import Context, library
from linnet.model import Model, Path, _dtype, _Owned

RECOMPUTE = {"none": 0, "blocks": 1, "cheap": 2}


def learning_rate(step: int, steps: int, warmup: int, peak: float, floor: float = 0.1) -> float:
    """A linear rise to `peak` over `warmup` steps, then a cosine to peak * floor at `steps`; steps 0: no fall."""
    return library().linnet_learning_rate(step, steps, warmup, peak, floor)


@dataclass
class Update:
    """What an update left behind; the gradient's norm is that before clipping."""
    step: int
    tokens: int
    predictions: int
    nats: float
    loss: float
    gradient_norm: float
    learning_rate: float


class Windows(_Owned):
    """Windows of a text in the order of `linnet train`: windows[i] is (ids, targets), a function of the seed and i."""

    _destroy = "linnet_windows_destroy"

    def __init__(self, ids: Any, length: int, seed: int = 1):
        super().__init__(Context())
        self.length = length
        self._ids, shape = numbers(ids, c_int32, "ids")
        with self.context.lock:
            self.context.check(self.context.lib.linnet_windows_create(self.context.pointer, self._ids, shape[0], length, seed, byref(self.pointer)))
        self._made()

    def __getitem__(self, i: int) -> tuple[list[int], list[int]]:
        ids, targets = (c_int32 * self.length)(), (c_int32 * self.length)()
        self._call("linnet_windows_get", self.pointer, i, ids, targets)
        return list(ids), list(targets)


class Trainer(_Owned):
    """AdamW for a model, one trainer at a time.

        trainer = linnet.Trainer(model, batch=8, length=256)
        for step in range(steps):
            trainer.micro(ids)                                   # [B, T], as often as there are parts of a batch
            update = trainer.update(linnet.learning_rate(step, steps, 100, 2e-3))
        trainer.save("folder")
    """

    _destroy = "linnet_trainer_destroy"

    def __init__(self, model: Model, batch: int = 8, length: int = 256, accumulate: int = 1, recompute: str = "none", learning_rate: float = 2e-3,
                 beta1: float = 0.9, beta2: float = 0.95, epsilon: float = 1e-8, weight_decay: float = 0.1, clip: float = 1.0, seed: int = 1,
                 moments: Any = "float32"):
        super().__init__(model.context)
        self.model, self.learning_rate = model, learning_rate
        if recompute not in RECOMPUTE:
            raise ValueError(f'recompute is "{recompute}", expected one of {", ".join(RECOMPUTE)}')
        o = L.TrainerOptions(size=ctypes.sizeof(L.TrainerOptions), batch=batch, length=length, accumulate=accumulate, recompute=RECOMPUTE[recompute],
                             learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay, clip=clip, seed=seed,
                             moments=_dtype(moments, "moments"))
        with self.context.lock:
            self.context.check(self.context.lib.linnet_trainer_create(self.context.pointer, model.pointer, byref(o), byref(self.pointer)))
        self._made(model)

    def micro(self, ids: Any, targets: Any = None, mask: Any = None, cu_seqlens: Any = None, scale: float = 0.0) -> None:
        """Add the gradients of a micro-batch: ids [B, T], or [T] with cu_seqlens [N+1]. Targets of the same shape (None: the next id), negative ones
        and those under a mask of 0 do not count; gradients are those of `scale` times the sum of the losses (0: one over the tokens of a whole batch)."""
        array, shape = numbers(ids, c_int32, "ids")
        b = L.MicroBatch(size=ctypes.sizeof(L.MicroBatch), tokens=len(array), sequences=shape[0] if len(shape) == 2 else 1, scale=scale)
        b.ids = array
        for name, value, kind in (("targets", targets, c_int32), ("mask", mask, c_uint8)):
            if value is None:
                continue
            other, its = numbers(value, kind, name)
            if its != shape:
                raise ValueError(f"{name} has shape {list(its)}, expected that of ids, {list(shape)}")
            setattr(b, name, other)
        if cu_seqlens is not None:
            offsets, _ = numbers(cu_seqlens, c_int64, "cu_seqlens")
            b.sequences, b.cu_seqlens = len(offsets) - 1, offsets
        self._call("linnet_trainer_micro", self.pointer, byref(b))

    def update(self, learning_rate: Optional[float] = None) -> Update:
        """Clip, AdamW, gradients to zero. Refused, and nothing changed, when loss or gradient is not finite."""
        r = L.TrainerResult(size=ctypes.sizeof(L.TrainerResult))
        self._call("linnet_trainer_update", self.pointer, self.learning_rate if learning_rate is None else learning_rate, byref(r))
        return Update(*(getattr(r, f[0]) for f in r._fields_ if f[0] != "size"))

    def step(self, batches: Iterable[Any], learning_rate: Optional[float] = None) -> Update:
        """One update of several micro-batches, each ids or (ids, targets)."""
        for batch in batches:
            self.micro(*batch) if isinstance(batch, tuple) else self.micro(batch)
        return self.update(learning_rate)

    def drop(self) -> None:
        """Forget gradients since the last update."""
        self._call("linnet_trainer_drop", self.pointer)

    def gradient(self, name: str) -> Any:
        """A copy of a parameter's gradient, float32."""
        p = self.model._parameter(name)
        out = Floats(tuple(p.shape[:p.rank]))
        self._call("linnet_gradient_read", self.pointer, name.encode(), 0, p.elements, out.pointer)
        return out.value()

    def set_gradient(self, name: str, values: Any) -> None:
        p = self.model._parameter(name)
        pointer, n, _alive = floats_from(values, name)
        if n != p.elements:
            raise ValueError(f"{name} has {p.elements} elements, {n} were given")
        self._call("linnet_gradient_write", self.pointer, name.encode(), 0, n, pointer)

    def save(self, folder: Path) -> None:
        """Model, moments and number of updates."""
        self._call("linnet_trainer_save", self.pointer, os.fsencode(folder))

    def load(self, folder: Path) -> None:
        """What save wrote, into a trainer of a model of the same shape: training goes on bit for bit."""
        self._call("linnet_trainer_load", self.pointer, os.fsencode(folder))


__all__ = ["Trainer", "Update", "Windows", "learning_rate"]
