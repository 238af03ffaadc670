"""Random inputs of any operator, from its description, for the tests."""
import math

import torch
import torch.nn.functional as F

from linnet import ops
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
    elif values in ("strength", "step"):
        x = 0.1 + 0.8 * torch.sigmoid(x)
    elif values in ("positive", "weight"):
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
        self.sizes.setdefault("L", T)  # filters as long as the text, whose states are too
        self.sizes.setdefault("R", self.sizes["L"])
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


def both_of(p, inputs, states):
    """Results that have gradients, and the gradients of everything for cotangents that are the same each time."""
    inputs = {k: v.detach().requires_grad_() for k, v in inputs.items()}
    states = {k: v.detach().requires_grad_() for k, v in states.items()}
    outs = [x for x in flat(p.call(getattr(ops, p.op.name), inputs, states)) if x.requires_grad]
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outs]
    return outs, torch.autograd.grad(outs, [*inputs.values(), *states.values()], cotangents, allow_unused=True)


def gated_delta_formula(q, k, v, g, beta, scale=None, S=None):
    """Token by token in torch, which differentiates it."""
    B, T, H, K = q.shape
    heads = v.shape[2] // H
    q, k = q.repeat_interleave(heads, 2), k.repeat_interleave(heads, 2)
    S = v.new_zeros(B, v.shape[2], K, v.shape[3]) if S is None else S
    out = []
    for t in range(T):
        S = S * g[:, t].exp()[..., None, None]
        wrong = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t] * beta[:, t, :, None], wrong)
        out.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * (scale or K ** -0.5))
    return torch.stack(out, 1), S


def delta_inputs(B=2, T=40, H=2, HV=4, K=16, V=24, dtype=torch.float32, seed=0):
    r = torch.Generator().manual_seed(seed)
    draw = lambda *s: torch.randn(*s, generator=r, dtype=torch.float64)  # noqa: E731
    x = [draw(B, T, H, K), F.normalize(draw(B, T, H, K), dim=-1), draw(B, T, HV, V), F.logsigmoid(draw(B, T, HV)), draw(B, T, HV).sigmoid(),
         draw(B, HV, K, V)]
    return [t.to(dtype) for t in x]
