"""linnet: linear-time sequence models. Operators for torch and NumPy (linnet.ops), models, states and training over the C library (linnet.Model,
linnet.Tokenizer, linnet.Trainer), raw calls on any buffers (linnet.raw). docs/python.md is the guide.

Nothing but the standard library is needed; torch and NumPy are used when what is handed in is theirs, NumPy for results where it is there."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from linnet._library import Error, library

if TYPE_CHECKING:
    from linnet import ops, raw
    from linnet.model import Generation, Model, Session, State, Tokenizer
    from linnet.trainer import Trainer, Update, Windows, learning_rate

__all__ = ["Error", "Generation", "Model", "Session", "State", "Tokenizer", "Trainer", "Update", "Windows", "learning_rate", "library_version", "ops",
           "raw"]

_HOMES = {"ops": "linnet.ops", "raw": "linnet.raw", "Generation": "linnet.model", "Model": "linnet.model", "Session": "linnet.model",
          "State": "linnet.model", "Tokenizer": "linnet.model", "Trainer": "linnet.trainer", "Update": "linnet.trainer", "Windows": "linnet.trainer",
          "learning_rate": "linnet.trainer"}


def library_version() -> str:
    """Of the shared library, "0.1.0"."""
    return library().linnet_version().decode()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'linnet' has no attribute '{name}'")
    module = importlib.import_module(home)
    value = module if home == f"linnet.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
