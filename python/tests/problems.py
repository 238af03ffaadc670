"""Random inputs of any operator, from its description, for the tests."""
import math

import torch

from linnet.ops._calls import operator

# Sizes by letter, small, the ones of heads different where an operator lets them be.
SIZES = {"Hq": 2, "Hk": 2, "Hv": 4, "H": 2, "K": 3, "V": 5, "D": 4, "M": 3, "F": 6, "P": 2, "mini_batch": 4}
# Options with which an operator's result is a smooth function to the last digit, or small enough for a check of its gradient; by operator.
OPTIONS = {"mesa": {"cg_tol": 0.0, "cg_max_iter": 60}, "gated_delta_product": {"n_householder": 2}, "ttt_linear": {"mini_batch": 4},
           "ttt_mlp": {"mini_batch": 4}, "titans": {"mini_batch": 4}}


def draw(values, shape, generator, dtype):
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if values == "unit":
        x = x / x.norm(dim=-1, keepdim=True)
    elif values == "decay":
        x = -0.05 - 0.8 * x.abs()
    elif values == "strength":
        x = 0.1 + 0.8 * torch.sigmoid(x)
    elif values == "positive":
        x = 0.5 + torch.sigmoid(x)
    elif values == "negative":
        x = -0.5 - torch.sigmoid(x)
    elif values == "sign":
        x = torch.tanh(x)
    elif values == "symmetric":
        x = x @ x.transpose(-1, -2) / x.shape[-1]
    elif values == "count":
        x = torch.zeros_like(x)
    else:
        x = 0.5 * x
    return x.to(dtype)


class Problem:
    """Inputs and states of an operator: `arguments` by name for its function."""

    def __init__(self, name, B=2, T=7, dtype=torch.float64, device="cpu", states=True, seed=1, sizes=None, options=None, skip=()):
        self.op = op = operator(name)
        self.options = dict(OPTIONS.get(name, {}), **(options or {}))
        self.sizes = dict(SIZES, **(sizes or {}))
        if name == "attention":
            self.sizes.update(Hq=4, Hk=2, Hv=2)
        if name == "slstm":
            self.sizes["E"] = 4 * self.sizes["D"]
        self.B, self.T = B, T
        generator = torch.Generator().manual_seed(seed)
        self.inputs = {}
        for row in op.inputs:
            if (row.absent and row.argument in skip) or not op.has(row, self.options):
                continue
            self.inputs[row.argument] = draw(row.values, self.shape(row), generator, dtype if row.wide or dtype == torch.float64 else torch.float32).to(device)
        self.states = {}
        for s in op.states:
            if states and op.has(s.first, self.options):
                self.states[s.name] = draw(s.first.values, self.shape(s.first), generator, torch.float64 if dtype == torch.float64 else torch.float32).to(device)

    def shape(self, row):
        dims = []
        for letter in row.letters:
            if letter == "T" or letter == "Tk" or letter.startswith("T*"):
                dims += [self.B, self.T * (int(self.options.get(letter[2:], 1)) if "*" in letter else 1)]
            elif letter == "N":
                dims.append(self.B)
            else:
                dims.append(self.sizes[letter])
        return tuple(dims)

    def call(self, function, inputs=None, states=None, **more):
        inputs, states = inputs or self.inputs, self.states if states is None else states
        needed = {} if not self.op.states else {"initial_state": states or None, "output_final_state": True}
        return function(**inputs, **self.options, **needed, **more)


def flat(result):
    """All tensors of a result in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [x for k in sorted(result) for x in flat(result[k])]
    return [x for part in result if part is not None for x in flat(part)]


def error(a, b):
    """rms(a - b) / rms(b)."""
    a, b = a.double(), b.double()
    scale = b.square().mean().sqrt().item() or 1.0
    e = (a - b).square().mean().sqrt().item() / scale
    return e if math.isfinite(e) else math.inf
