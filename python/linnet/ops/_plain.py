"""The operators under their own names, made from their descriptions: gated_delta_rule(q, k, v, g, beta, ...) and all the others."""
from __future__ import annotations

import sys
from typing import Any, Callable

from linnet.ops._calls import How, Operator, names, operator

def _shape(letters: tuple[str, ...]) -> str:
    return "[" + ", ".join("B, " + x if x.startswith("T") else x for x in letters) + "]"


def documentation(op: Operator) -> str:
    """A function's docstring."""
    lines = [f"{op.equation}" if op.equation else op.name, "", "Args:"]
    for r in op.inputs:
        says = [f"{_shape(r.letters)}"]
        if not r.wide:
            says.append("float32")
        if r.values == "decay":
            says.append("logarithms of decays, at most 0")
        if r.absent:
            says.append(f"None: {r.absent}")
        if r.present_with:
            says.append(f"with {r.present_with}")
        if r.help:
            says.append(r.help)
        lines.append(f"    {r.argument}: {'; '.join(says)}")
    for key, o in op.options.items():
        words = f" ({o['words'].replace(' ', ', ')})" if o["words"] else ""
        lines.append(f"    {key}: {o['help']}{words}")
    if op.states:
        shapes = ", ".join(f"{s.name} {_shape(s.first.letters)}" for s in op.states)
        lines.append(f"    initial_state: {shapes}; float32, zeros where None" + ("" if len(op.states) == 1 else "; a dict by these names, or the first alone"))
        lines.append("    output_final_state: return the state behind the last token too")
    lines.append("    cu_seqlens: offsets [N+1] of sequences that lie one behind another in a batch of 1; None: N = B sequences")
    lines.append('    form: "auto", "recurrent", "chunk" or "parallel"; chunk_size: of the chunk form; impl: an implementation by name')
    if op.reports:
        lines.append(f"    reports: return {', '.join(r.name for r in op.reports)} too, by name")
    outputs = ", ".join(f"{r.name} {_shape(r.letters)}" for r in op.outputs)
    lines += ["", "Returns:", f"    {outputs}" + ("; and the final state, None unless asked for" if op.states else "")]
    return "\n".join(lines)


def source(op: Operator) -> str:
    """The function's text: the call with everything in its place."""
    options = list(op.options)
    arguments = op.needed + [f"{a}=None" for a in op.optional] + ["*"] + [f"{k}=None" for k in options]
    if op.states:
        arguments += ["initial_state=None", "output_final_state=False"]
    arguments += ["cu_seqlens=None", 'form="auto"', "chunk_size=None", "impl=None"] + (["reports=False"] if op.reports else [])
    order = [r.argument for r in op.inputs]
    inputs = "(" + ", ".join(order) + ",)"
    values = "(" + ", ".join(options) + ("," if options else "") + ")"
    state, final = ("initial_state", "output_final_state") if op.states else ("None", "False")
    there = " | ".join(f"({a} is not None) << {i}" for i, a in enumerate(op.optional)) or "0"
    call = f"_op, {inputs}, {there}, {state}, (cu_seqlens, {values}, {final}, form, chunk_size, impl, {'reports' if op.reports else 'False'})"
    return (f"def {op.name}({', '.join(arguments)}):\n"
            f"    if type({order[0]}) is _tensor[0]:\n"
            f"        return _torch_run[0]({call})\n"
            f"    return _dispatch({call})\n")


# The torch functions, once torch is there: lists, so that functions made before see them.
_tensor: list[Any] = [None]
_torch_run: list[Any] = [None]


def _with_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and _tensor[0] is None:
        from linnet.ops import _torch
        _tensor[0], _torch_run[0] = torch.Tensor, _torch.run


def _dispatch(op: Operator, inputs: tuple[Any, ...], there: int, state: Any, how: How) -> Any:
    """By what the inputs are: torch's (parameters and other kinds of tensor too) or NumPy's."""
    _with_torch()
    if _tensor[0] is not None and any(isinstance(t, _tensor[0]) for t in inputs):
        return _torch_run[0](op, inputs, there, state, how)
    from linnet.ops import _numpy
    return _numpy.run(op, inputs, state, how)


def make(name: str) -> Callable[..., Any]:
    """The function of an operator."""
    op = operator(name)
    scope: dict[str, Any] = {"_op": op, "_dispatch": _dispatch, "_tensor": _tensor, "_torch_run": _torch_run}
    exec(compile(source(op), f"<linnet.ops.{name}>", "exec"), scope)
    function = scope[name]
    function.__doc__, function.__module__ = documentation(op), "linnet.ops"
    return function


def stub() -> str:
    """The functions as a .pyi file, which the build of the package makes."""
    lines = ["# Made by linnet.ops._plain from the operators' descriptions.", "from typing import Any, Mapping, Optional, TypeVar, Union", "",
             'Array = TypeVar("Array")  # torch.Tensor or numpy.ndarray', ""]
    for name in names():
        op = operator(name)
        needed, optional, options = op.needed, op.optional, list(op.options)
        kinds = {"real": "Optional[float]", "int": "Optional[int]", "switch": "Optional[bool]", "word": "Optional[str]"}
        arguments = [f"{a}: Array" for a in needed] + [f"{a}: Optional[Array] = ..." for a in optional] + ["*"]
        arguments += [f"{k}: {kinds[op.options[k]['kind']]} = ..." for k in options]
        state = "Array" if len(op.states) == 1 else "Union[Array, Mapping[str, Array]]"
        if op.states:
            arguments += [f"initial_state: Optional[{state}] = ...", "output_final_state: bool = ..."]
        arguments += ["cu_seqlens: Any = ...", "form: str = ...", "chunk_size: Optional[int] = ...", "impl: Optional[str] = ..."]
        result = f"tuple[Array, Optional[{'Array' if len(op.states) == 1 else 'Any'}]]" if op.states else "Array"
        if op.reports:
            arguments.append("reports: bool = ...")
            result = "Any"
        lines.append(f"def {name}(" + ", ".join(arguments) + f") -> {result}: ...")
    return "\n".join(lines) + "\n"
