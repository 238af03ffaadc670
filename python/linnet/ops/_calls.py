"""Calls of operators, prepared: what an operator is, from its description, and for each combination of shapes and options the C structure of the call,
made once, into which a run only writes addresses. Knows neither torch nor NumPy."""
from __future__ import annotations

import ctypes
import json
import keyword
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from linnet._library import (BF16, F32, F64, FORMS, Error, OperatorCall, OperatorOption, OperatorSize, OperatorTensor, error_of,
                             library, option_of)

Shape = tuple[int, ...]
# How a function is called besides its tensors: cu_seqlens, options in the order of the operator's, final state, form, chunk, implementation, reports
How = tuple[Any, tuple[Any, ...], bool, str, Optional[int], Optional[str], bool]
UNASKED = 1 << 62  # bytes of a workspace
MOST_PLANS = 512  # kept of an operator; more shapes than that, and it begins again


class Row(NamedTuple):
    """A tensor of a description."""
    name: str
    letters: tuple[str, ...]
    role: str
    values: str
    wide: bool
    read_back: bool
    present_with: Optional[str]
    present_without: Optional[str]
    absent: Optional[str]
    help: Optional[str]

    @property
    def argument(self) -> str:
        """Its name as an argument of a function: "lambda" is Python's."""
        return self.name + "_" if keyword.iskeyword(self.name) else self.name

    @property
    def counts(self) -> bool:
        return self.values == "count"


class StateRow(NamedTuple):
    """A state: what it is called, and how it goes in and comes out."""
    name: str
    first: Row
    last: Row


class Operator:
    """What an operator takes and gives, from its description."""

    def __init__(self, description: dict[str, Any]):
        d = description
        rows = [Row(t["name"], tuple(t["shape"].split()), t["role"], t["values"], t["wide"], t["read_back"], t["with"], t["without"], t["absent"],
                    t["help"]) for t in d["tensors"]]
        self.name: str = d["name"]
        self.equation: str = d["equation"] or ""
        self.sizes: dict[str, dict[str, Any]] = {s["letter"]: s for s in d["sizes"]}
        self.options: dict[str, dict[str, Any]] = {o["key"]: o for o in d["options"]}
        self.implementations: list[str] = d["implementations"]
        self.inputs = [r for r in rows if r.role == "input"]
        self.states = [StateRow(r.name.replace("0", "", 1), r, rows[i + 2]) for i, r in enumerate(rows) if r.role == "state"]
        ends = {s.last.name for s in self.states}
        self.outputs = [r for r in rows if r.role == "output" and r.name not in ends]
        self.saved = [r for r in rows if r.role == "saved"]
        self.reports = [r for r in rows if r.role == "report"]
        self.gradients = {r.name for r in rows if r.role == "gradient"}
        self.needed = [r.argument for r in self.inputs if r.absent is None and not r.present_with and not r.present_without]
        self.optional = [r.argument for r in self.inputs if r.argument not in self.needed]
        self.all_there = (1 << len(self.optional)) - 1  # bits: all that may be left out
        self.plans: dict[Any, "Plan"] = {}
        self.seen: dict[Any, Any] = {}  # the caller's: what it knows its tensors again by

    def value(self, key: str, options: dict[str, Any]) -> float:
        """An option's value as a number; a word's is its place."""
        o = self.options[key]
        value = options.get(key)
        if value is None:
            return o["standard"] or 0.0
        return float(o["words"].split().index(value)) if isinstance(value, str) and o["words"] else float(value)

    def has(self, row: Row, options: dict[str, Any]) -> bool:
        """Whether a tensor is there under these options."""
        return ((not row.present_with or bool(self.value(row.present_with, options))) and
                (not row.present_without or not self.value(row.present_without, options)))

    def plan(self, key: Any, **call: Any) -> "Plan":
        """The plan of a key, made from the rest when it is new."""
        plan = self.plans.get(key)
        if plan is None:
            plan = Plan(self, **call)
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
                self.seen.clear()
            self.plans[key] = plan
        return plan


_operators: dict[str, Operator] = {}


def names() -> Iterator[str]:
    """All operators, in the library's order."""
    lib, i = library(), 0
    while name := lib.linnet_operator_at(i):
        yield name.decode()
        i += 1


def operator(name: str) -> Operator:
    """By name; described once."""
    found = _operators.get(name)
    if found is None:
        lib = library()
        length = lib.linnet_operator_describe(name.encode(), None, 0)
        if not length:
            raise Error(f'unknown operator "{name}"; there are: {", ".join(names())}')
        text = ctypes.create_string_buffer(length + 1)
        lib.linnet_operator_describe(name.encode(), text, length + 1)
        found = _operators[name] = Operator(json.loads(text.value))
    return found


class Call:
    """A C call with its tensors in fixed places: `view[places] = addresses` is all of them at once. `workspace` is UNASKED until someone has asked how much it
    needs; `room` is the address that the structure has for it."""

    __slots__ = ("struct", "pointer", "view", "places", "workspace", "room", "backward", "names", "_arrays")

    def __init__(self, plan: "Plan", tensors: Sequence[str], backward: bool):
        arrays = (OperatorTensor * len(tensors))(*[OperatorTensor(name.encode(), None) for name in tensors])
        s = OperatorCall(size=ctypes.sizeof(OperatorCall), op=plan.op.name.encode(), impl=plan.impl and plan.impl.encode(), dtype=plan.code,
                         form=plan.form, chunk=plan.chunk, n_sizes=len(plan.sizes), n_tensors=len(tensors), n_options=len(plan.options),
                         tokens=plan.tokens, sequences=plan.sequences)
        s.cu_seqlens, s.sizes, s.options, s.tensors = plan.cu_seqlens, plan.c_sizes, plan.c_options, arrays
        self.struct, self._arrays = s, arrays
        self.pointer = ctypes.addressof(s)
        self.view = (ctypes.c_size_t * (2 * len(tensors))).from_buffer(arrays)
        self.places = slice(1, 2 * len(tensors), 2)
        self.workspace, self.room = UNASKED, 0
        self.names, self.backward = tensors, backward

    def ask(self, lib: Any, context: Any) -> None:
        """How much workspace it needs, which is asked once."""
        if self.workspace == UNASKED:
            need = ctypes.c_size_t()
            status = lib.linnet_operator_workspace(context, ctypes.byref(self.struct), int(self.backward), ctypes.byref(need))
            if status:
                raise error_of(lib, context, status)
            self.workspace = self.struct.workspace_size = need.value


class Output(NamedTuple):
    row: Row
    shape: Shape


def _spelt(row: Row) -> str:
    return "[" + ", ".join(("B, " + x if x.startswith("T") else x) for x in row.letters) + "]"


def missing(op: Operator, row: Row) -> TypeError:
    return TypeError(f"{op.name}: {row.argument} {_spelt(row)} is missing")


class Plan:
    """A combination of shapes, options and what is wanted: sizes, shapes of results, the forward call, and a backward call for each set of gradients."""

    def __init__(self, op: Operator, shapes: Sequence[Optional[Shape]], states: Sequence[Optional[Shape]], code: int, how: How):
        cu_seqlens, options, final, form, chunk, impl, reports = how
        self.op, self.code, self.impl, self.chunk = op, code, impl, chunk or 0
        if form not in FORMS:
            raise ValueError(f'{op.name}: form is "{form}", expected one of {", ".join(FORMS)}')
        self.form = FORMS[form]
        self.options = {k: v for k, v in zip(op.options, options) if v is not None}
        self._infer_options(shapes)
        self.sizes: dict[str, int] = {}
        self.batch, self.length = -1, -1
        for row, shape in zip(op.inputs, shapes):
            if shape is not None:
                self._take(row, shape)
            elif row.absent is None and op.has(row, self.options):
                raise missing(op, row)
        if self.batch < 0:
            raise TypeError(f"{op.name}: no input has tokens")
        self._take_sequences(cu_seqlens)
        for state, shape in zip(op.states, states):
            if shape is not None:
                self._take(state.first, shape)
        for letter, size in op.sizes.items():  # what the library would fill in, for the shapes of results
            if letter not in self.sizes and size["same_as"]:
                self.sizes[letter] = self.tokens if size["same_as"] == "T" else self.sizes.get(size["same_as"], 0)
            elif letter not in self.sizes and size["least"] == size["most"]:
                self.sizes[letter] = size["least"]
        self.c_sizes = (OperatorSize * len(self.sizes))(*[OperatorSize(k.encode(), v) for k, v in self.sizes.items()])
        self.c_options = (OperatorOption * len(self.options))(*[option_of(k, v) for k, v in self.options.items()])
        self.given = [r for r, s in zip(op.inputs, shapes) if s is not None] + [x.first for x, s in zip(op.states, states) if s is not None]
        self.states = [x for x in op.states if final and op.has(x.last, self.options)]
        self.reports = [r for r in op.reports if reports]
        rows = op.outputs + [x.last for x in self.states] + self.reports
        self.outputs = [Output(r, self._shape_of(r)) for r in rows]
        self.alone = len(rows) == 1
        self.kept = [Output(r, self._shape_of(r)) for r in op.saved]  # what backward needs besides
        self.kept_outputs = [i for i, o in enumerate(self.outputs) if o.row.read_back]
        self.no_gradient = [i for i, o in enumerate(self.outputs) if o.row.role != "output" or o.row.counts]
        self.has_gradient = ["d" + r.name in op.gradients and not r.counts for r in self.given]
        names = [r.name for r in self.given] + [o.row.name for o in self.outputs]
        self.forward = Call(self, names, False)
        self.forward_kept = Call(self, names + [o.row.name for o in self.kept], False) if self.kept else self.forward
        self.backwards: dict[tuple[tuple[bool, ...], tuple[bool, ...]], Call] = {}
        self.wanted: dict[tuple[bool, ...], tuple[bool, ...]] = {}  # gradients, by what torch asks for
        self.dtypes: Any = None  # the caller's: of wide tensors and of the others
        self.casts: Any = None   # which inputs are to be converted to what
        self.device: Any = None  # and where calls run
        self.called: Any = None  # the forward call as the caller makes it, and
        self.called_kept: Any = None  # with what is kept for the backward pass,
        self.record: Any = None  # that as a function that torch can differentiate, and
        self.apply: Any = None   # its quickest way in

    def backward(self, cotangents: tuple[bool, ...], wanted: tuple[bool, ...]) -> Call:
        """The call for cotangents of these outputs and gradients of these given tensors."""
        call = self.backwards.get((cotangents, wanted))
        if call is None:
            names = [r.name for r in self.given] + [self.outputs[i].row.name for i in self.kept_outputs] + [o.row.name for o in self.kept]
            names += ["d" + o.row.name for o, c in zip(self.outputs, cotangents) if c]
            names += ["d" + r.name for r, w in zip(self.given, wanted) if w]
            call = self.backwards[cotangents, wanted] = Call(self, names, True)
        return call

    # ---- sizes ----

    def _infer_options(self, shapes: Sequence[Optional[Shape]]) -> None:
        """A tensor that comes with a switch turns it on; a size that is an option is read off the shape."""
        for row, shape in zip(self.op.inputs, shapes):
            if shape is None:
                continue
            switch = row.present_with
            if switch and switch not in self.options and self.op.options[switch]["kind"] == "switch":
                self.options[switch] = 1
            dims = self._dims(row, shape)
            for letter, n in zip(row.letters, dims):
                if letter in self.op.options and letter not in self.options:
                    self.options[letter] = n

    def _dims(self, row: Row, shape: Shape) -> Shape:
        """The sizes of a row's letters; rows of the token axis are two dimensions, of which the second counts here."""
        tokens = row.letters[0].startswith("T")
        if len(shape) != len(row.letters) + tokens:
            raise ValueError(f"{self.op.name}: {row.argument} has shape {list(shape)}, expected {_spelt(row)}")
        return shape[1:] if tokens else shape

    def _wrong(self, row: Row, shape: Shape, letter: str, n: int, known: int) -> ValueError:
        return ValueError(f"{self.op.name}: {row.argument} has shape {list(shape)}, so that {letter} is {n}, but elsewhere it is {known}; expected {_spelt(row)}")

    def _take(self, row: Row, shape: Shape) -> None:
        dims = self._dims(row, shape)
        if row.letters[0].startswith("T"):
            if self.batch < 0:
                self.batch = shape[0]
            elif self.batch != shape[0]:
                raise self._wrong(row, shape, "B", shape[0], self.batch)
        for letter, n in zip(row.letters, dims):
            if letter == "T" or letter.startswith("T*"):
                times = int(self.op.value(letter[2:], self.options)) if letter != "T" else 1
                if n % times or (self.length >= 0 and n != self.length * times):
                    raise self._wrong(row, shape, letter, n, self.length * times)
                self.length = n // times
            elif letter == "N":
                if n != self.sequences:
                    raise self._wrong(row, shape, letter, n, self.sequences)
            elif letter in self.op.options and letter not in self.op.sizes:
                if n != int(self.op.value(letter, self.options)):
                    raise self._wrong(row, shape, letter, n, int(self.op.value(letter, self.options)))
            else:
                if letter.startswith("T"):  # rows of keys: of all sequences
                    n *= self.batch
                size = self.op.sizes[letter]
                if size["least"] == size["most"] and n != size["least"]:
                    raise self._wrong(row, shape, letter, n, size["least"])
                if self.sizes.setdefault(letter, n) != n:
                    raise self._wrong(row, shape, letter, n, self.sizes[letter])

    def _take_sequences(self, cu_seqlens: Optional[Sequence[int]]) -> None:
        self.tokens = self.batch * self.length
        if cu_seqlens is None:
            offsets: Sequence[int] = range(0, self.tokens + 1, self.length) if self.length else [0] * (self.batch + 1)
        else:
            offsets = cu_seqlens
            if self.batch != 1:
                raise ValueError(f"{self.op.name}: with cu_seqlens all sequences lie in one row, but there are {self.batch}")
        self.sequences = len(offsets) - 1
        self.cu_seqlens = (ctypes.c_int64 * len(offsets))(*offsets)

    def _shape_of(self, row: Row) -> Shape:
        dims: list[int] = []
        for letter in row.letters:
            if letter == "T" or letter.startswith("T*"):
                dims += [self.batch, self.length * (int(self.op.value(letter[2:], self.options)) if letter != "T" else 1)]
            elif letter == "N":
                dims.append(self.sequences)
            elif letter in self.sizes:
                dims.append(self.sizes[letter])
            elif letter in self.op.options:
                dims.append(int(self.op.value(letter, self.options)))
            else:  # as the library says it: nothing that is given has the size
                raise Error(f"{self.op.name} needs the size {letter}")
        return tuple(dims)


def state_tuple(op: Operator, state: Any) -> tuple[Any, ...]:
    """An initial state in the order of the operator's: one that is alone, several by name; None: zeros."""
    if state is None:
        return (None,) * len(op.states)
    if isinstance(state, dict):
        known = [s.name for s in op.states]
        for name in state:
            if name not in known:
                raise TypeError(f'{op.name}: initial_state has no "{name}"; its states: {", ".join(known) or "none"}')
        return tuple(state.get(name) for name in known)
    if isinstance(state, (tuple, list)):
        if len(state) > len(op.states):
            raise TypeError(f"{op.name}: initial_state has {len(state)} parts, expected at most {len(op.states)}")
        return tuple(state) + (None,) * (len(op.states) - len(state))
    if not op.states:
        raise TypeError(f"{op.name} has no state")
    return (state,) + (None,) * (len(op.states) - 1)


def results(plan: Plan, op: Operator, outs: Sequence[Any]) -> Any:
    """What a function returns: the output; the final state, a tensor where there is one, else by name, None unless asked for; reports by name."""
    n, m = len(op.outputs), len(plan.states)
    o = outs[0] if n == 1 else tuple(outs[:n])
    if not op.states and not plan.reports:
        return o
    state: Any = None
    if m:
        state = outs[n] if len(op.states) == 1 or m == 1 else {s.name: x for s, x in zip(plan.states, outs[n:n + m])}
    if plan.reports:
        return o, state, {r.name: x for r, x in zip(plan.reports, outs[n + m:])}
    return o, state


__all__ = ["BF16", "F32", "F64", "Call", "Error", "How", "Operator", "Output", "Plan", "Row", "missing", "names", "operator", "results", "state_tuple"]
