"""linnet beside flash-linear-attention and PyTorch on one GPU: one process, the same tensors, the same stream; forward, and forward with backward.

    pip install torch flash-linear-attention einops;  LINNET_LIBRARY=build python bench/peer_gpu.py [OPERATOR ...] [--json FILE]

Prints a table in markdown. Times are medians in ms by events of the stream, the sides by turns. Errors are rms(error) / rms(truth), of o and of that
gradient which is worst, against the recurrence as it is written, token by token in float64, which torch differentiates; on a shorter problem (--truth
TOKENS), drawn alike. A peer that is not installed, or refuses, leaves its columns empty and says why below the table.

    python bench/peer_gpu.py --dry      on the CPU, tiny, linnet alone: that the table is made and the recurrences are what linnet computes"""
import argparse
import importlib
import json
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(f"{__doc__}\n\nPyTorch is not installed: pip install torch")

FULL = {"T": 8192, "H": 32, "K": 128, "V": 128, "M": 64}
TRUTH = {"T": 512, "H": 2, "K": 128, "V": 128, "M": 64}
DRY = {"T": 40, "H": 2, "K": 16, "V": 16, "M": 8}


# ---- inputs ---------------------------------------------------------------------------------------------------------------------------------

class Draw:
    """Tensors of one problem, bf16 where both sides take bf16 and float32 for gates: nobody converts before the work begins."""

    def __init__(self, size, device, wide, seed=1):
        self.size, self.device, self.wide = size, device, wide
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *letters, writes=1):
        shape = [1, self.size["T"] * writes, *[self.size[x] for x in letters]]
        return torch.randn(shape, generator=self.generator, device=self.device)

    def rows(self, letter, writes=1):
        return self.normal("H", letter, writes=writes).to(self.wide)

    def keys(self, writes=1):
        return F.normalize(self.normal("H", "K", writes=writes), dim=-1).to(self.wide)

    def strength(self, writes=1):
        return self.normal("H", writes=writes).sigmoid()

    def gate(self, *letters):
        return F.logsigmoid(self.normal("H", *letters) + 3).clamp_min(-5)


def qkv(d):
    return {"q": d.rows("K"), "k": d.keys(), "v": d.rows("V")}


def rwkv7(d):
    k = d.keys()
    return {"r": d.rows("K"), "w": -0.6065306597126334 * d.normal("H", "K").sigmoid(), "k": k, "v": d.rows("V"), "a": -k,
            "b": (k.float() * d.strength()[..., None]).to(d.wide)}


def rwkv6(d):
    u = torch.randn(d.size["H"], d.size["K"], generator=d.generator, device=d.device)
    return {"r": d.rows("K"), "k": d.keys(), "v": d.rows("V"), "w": d.gate("K"), "u": u}


# ---- the recurrences ------------------------------------------------------------------------------------------------------------------------

def walk(q, k, v, gk=None, g=None, gv=None, beta=None, a=None, b=None, u=None, scale=None, writes=1):
    """o of S <- diag(e^gk) S diag(e^gv), written by k and v (beta: less what S knows of v; a, b: a second write of what a reads before the decay),
    read by q; u: read before the write, whose row is u.k. [1,T,H,*], a token's writes one behind the other."""
    _, T, H, K = q.shape
    S, out = v.new_zeros(H, K, v.shape[-1]), []
    for t in range(T):
        known = None if a is None else torch.einsum("hk,hkv->hv", a[0, t], S)
        before = S
        if g is not None:
            S = S * g[0, t].exp()[:, None, None]
        if gk is not None:
            S = S * gk[0, t].exp()[:, :, None]
        if gv is not None:
            S = S * gv[0, t].exp()[:, None, :]
        if known is not None:
            S = S + b[0, t, :, :, None] * known[:, None]
        for i in range(t * writes, (t + 1) * writes):
            write = v[0, i]
            if beta is not None:
                write = beta[0, i, :, None] * (write - torch.einsum("hk,hkv->hv", k[0, i], S))
            S = S + k[0, i, :, :, None] * write[:, None]
        read = S if u is None else before + (u * k[0, t])[:, :, None] * v[0, t, :, None, :]
        out.append(torch.einsum("hk,hkv->hv", q[0, t], read))
    return torch.stack(out)[None] * (K ** -0.5 if scale is None else scale)


def slots(q, k, v, s, g):
    p = walk(q, k, s, gv=g).softmax(-1)
    return walk(p, s, v, gk=g, scale=1.0)


def softmax(q, k, v):
    x = torch.einsum("bihk,bjhk->bhij", q, k) * q.shape[-1] ** -0.5
    seen = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return torch.einsum("bhij,bjhv->bihv", x.masked_fill(~seen, -math.inf).softmax(-1), v)


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(*[x.transpose(1, 2) for x in (q, k, v)], is_causal=True).transpose(1, 2)


class Row:
    """An operator: where flash-linear-attention has it (linnet.ops has the same name), its inputs, the recurrence, what else both are told."""

    def __init__(self, module, function, inputs, truth, ours=None, torch=None, **more):
        self.module, self.function, self.inputs, self.truth, self.torch, self.more = module, function, inputs, truth, torch, more
        self.ours = ours or function


ROWS = {
    "linear_attn": Row("linear_attn", "chunk_linear_attn", qkv, walk, normalize=False),
    "simple_gla": Row("simple_gla", "chunk_simple_gla", lambda d: {**qkv(d), "g": d.gate()}, walk),
    "gla": Row("gla", "chunk_gla", lambda d: {**qkv(d), "g": d.gate("K")}, lambda q, k, v, g: walk(q, k, v, gk=g)),
    "rwkv6": Row("rwkv6", "chunk_rwkv6", rwkv6, lambda r, k, v, w, u: walk(r, k, v, gk=w, u=u)),
    "gsa": Row("gsa", "chunk_gsa", lambda d: {**qkv(d), "s": d.rows("M"), "g": d.gate("M")}, slots),
    "delta_rule": Row("delta_rule", "chunk_delta_rule", lambda d: {**qkv(d), "beta": d.strength()}, walk),
    "gated_delta_rule": Row("gated_delta_rule", "chunk_gated_delta_rule", lambda d: {**qkv(d), "g": d.gate(), "beta": d.strength()}, walk),
    "gated_delta_product": Row("gated_delta_product", "chunk_gated_delta_product",
                               lambda d: {"q": d.rows("K"), "k": d.keys(2), "v": d.rows("V", 2), "g": d.gate(), "beta": d.strength(2)},
                               lambda q, k, v, g, beta: walk(q, k, v, g=g, beta=beta, writes=2), num_householder=2),
    "kda": Row("kda", "chunk_kda", lambda d: {**qkv(d), "g": d.gate("K"), "beta": d.strength()},
               lambda q, k, v, g, beta: walk(q, k, v, gk=g, beta=beta)),
    "dplr": Row("rwkv7", "chunk_rwkv7", rwkv7, lambda r, w, k, v, a, b: walk(r, k, v, gk=w, a=a, b=b, scale=1.0), scale=1.0),
    "attention": Row("attn", "parallel_attn", qkv, softmax, torch=sdpa),
}


# ---- measuring ------------------------------------------------------------------------------------------------------------------------------

def first(result):
    return result[0] if isinstance(result, tuple) else result


def sides_of(row, linnet_ops):
    """Name and function of every side there is, and why there is none of the others."""
    sides, missing = {"linnet": getattr(linnet_ops, row.ours)}, {}
    try:
        sides["fla"] = getattr(importlib.import_module(f"fla.ops.{row.module}"), row.function)
    except Exception as e:  # noqa: BLE001  a peer's import may end in anything
        missing["fla"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    if row.torch:
        sides["torch"] = lambda *x, **_: row.torch(*x)
    return sides, missing


def error(x, truth):
    scale = truth.square().mean().sqrt().item() or 1.0
    e = (x.double() - truth).square().mean().sqrt().item() / scale
    return e if math.isfinite(e) else math.inf


def with_gradients(function, inputs, cotangent, more):
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = first(function(*leaves, **more))
    return o.detach(), torch.autograd.grad(o, leaves, cotangent.to(o.dtype))


def errors(row, sides, size, device, wide):
    """By side: the error of o, and the worst gradient's with its name."""
    d = Draw(size, device, wide, seed=2)
    inputs = row.inputs(d)
    shape = [1, size["T"], size["H"], size["V"]]
    cotangent = torch.randn(shape, generator=d.generator, device=device).to(wide)
    truth_o, truth_d = with_gradients(lambda *x: row.truth(**dict(zip(inputs, x))), [x.double() for x in inputs.values()], cotangent, {})
    found = {}
    for name, function in sides.items():
        try:
            o, gradients = with_gradients(function, list(inputs.values()), cotangent, row.more)
            worst = max((error(x, y), leaf) for x, y, leaf in zip(gradients, truth_d, inputs))
            found[name] = error(o, truth_o), *worst
        except Exception as e:  # noqa: BLE001  a side that refuses is said so in the table
            found[name] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    return found


class Clock:
    """Events of the current stream; on a CPU the host's clock."""

    def __init__(self, cuda):
        self.cuda = cuda

    def now(self):
        if not self.cuda:
            return time.perf_counter()
        e = torch.cuda.Event(enable_timing=True)
        e.record()
        return e

    def between(self, a, b):
        if not self.cuda:
            return 1e3 * (b - a)
        b.synchronize()
        return a.elapsed_time(b)


def times(row, sides, size, device, wide, repeats):
    """By side: medians in ms of forward, and of forward with backward; the sides by turns."""
    d = Draw(size, device, wide)
    inputs = list(row.inputs(d).values())
    cotangent = torch.randn([1, size["T"], size["H"], size["V"]], generator=d.generator, device=device).to(wide)
    clock, found = Clock(device == "cuda"), {name: ([], []) for name in sides}
    for turn in range(-2, repeats):  # the first two turns tune, load and fill pools
        for name, function in list(sides.items()):
            try:
                a = clock.now()
                with torch.no_grad():
                    function(*inputs, **row.more)
                b = clock.now()
                both = with_gradients(function, inputs, cotangent, row.more)
                c = clock.now()
                del both
            except Exception as e:  # noqa: BLE001
                found[name] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
                del sides[name]
                continue
            if turn >= 0:
                found[name][0].append(clock.between(a, b))
                found[name][1].append(clock.between(b, c))
    return {name: x if isinstance(x, str) else tuple(statistics.median(y) for y in x) for name, x in found.items()}


# ---- the table ------------------------------------------------------------------------------------------------------------------------------

SIDES = ("linnet", "fla", "torch")


def cells(found, place):
    return [f"{x[place]:.3g}" if isinstance(x := found.get(side), tuple) else "" for side in SIDES]


def line(name, timed, wrong):
    gradients = [f"{x[1]:.1e} ({x[2]})" if isinstance(x := wrong.get(side), tuple) else "" for side in SIDES]
    outputs = [f"{x[0]:.1e}" if isinstance(x := wrong.get(side), tuple) else "" for side in SIDES]
    return "| " + " | ".join([name, *cells(timed, 0), *cells(timed, 1), *outputs, *gradients]) + " |"


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("operators", nargs="*", help=f"of {', '.join(ROWS)}; all of them")
    ask.add_argument("--json", help="append one line an operator here")
    ask.add_argument("--repeats", type=int, default=20)
    ask.add_argument("--truth", type=int, default=TRUTH["T"], metavar="TOKENS")
    ask.add_argument("--dry", action="store_true")
    for letter in FULL:
        ask.add_argument(f"--{letter}", type=int)
    a = ask.parse_args()
    if unknown := [x for x in a.operators if x not in ROWS]:
        ask.error(f"no operator {', '.join(unknown)}; there are: {', '.join(ROWS)}")
    from linnet import ops
    device, wide, repeats = ("cpu", torch.float32, 2) if a.dry else ("cuda", torch.bfloat16, a.repeats)
    size = {k: getattr(a, k) or v for k, v in (DRY if a.dry else FULL).items()}
    small = {**size, "T": size["T"] if a.dry else a.truth, "H": min(size["H"], TRUTH["H"])}
    where = "a CPU" if a.dry else torch.cuda.get_device_name()
    print(f"{where}, torch {torch.__version__}, {str(wide).removeprefix('torch.')}, {', '.join(f'{k}={v}' for k, v in size.items())}; "
          f"errors at T={small['T']}, H={small['H']}\n")
    heads = [f"{what} {side}" for what in ("forward", "both", "error of o", "worst gradient") for side in SIDES]
    print("| operator | " + " | ".join(heads) + " |\n|" + "---|" * (len(heads) + 1))
    notes, failed = [], False
    for name in a.operators or ROWS:
        row = ROWS[name]
        sides, missing = sides_of(row, ops)
        if a.dry:
            sides = {"linnet": sides["linnet"]}
        wrong = errors(row, sides, small, device, wide)
        timed = times(row, {k: v for k, v in sides.items() if isinstance(wrong[k], tuple)}, size, device, wide, repeats)
        print(line(name, timed, wrong), flush=True)
        notes += [f"{name}, {side}: {why}" for side, why in missing.items() if not a.dry]
        notes += [f"{name}, {side}: {x}" for found in (wrong, timed) for side, x in found.items() if isinstance(x, str)]
        ours = wrong["linnet"]
        failed |= not isinstance(ours, tuple) or max(ours[:2]) > (1e-4 if a.dry else 5e-2)
        if a.json:
            with open(a.json, "a") as f:
                f.write(json.dumps({"bench": "peer_gpu", "operator": name, "device": where, "size": size, "ms": timed, "error": wrong}) + "\n")
        if device == "cuda":
            torch.cuda.empty_cache()
    print("\n".join(["", *notes]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
