#!/usr/bin/env python3
"""What the Python package adds to an operator's C call, in microseconds: python3 bench/python_overhead.py [--device cuda] [--op NAME ...] [--json]

For each operator, at a shape that is so small that the call itself is next to nothing, medians over rounds in which the variants take turns:
  C           the C call, prepared: linnet_operator_forward of a structure that stands ready, outputs and workspace allocated (by ctypes, whose own
              share of a microsecond is counted as the C call's and printed in the last line)
  C kept      the same of the call that leaves what the backward pass needs, too
  C both      that and the backward call
  forward     linnet.ops.NAME of tensors that need no gradients, less C
  autograd    linnet.ops.NAME recording for the backward pass, less C kept
  both        that and torch.autograd.grad, less C both
  engine      of `both`, what the same takes with a torch.autograd.Function of as many tensors that does nothing: PyTorch's own
On a GPU calls are enqueued, not waited for: host time per call, with the queue kept short by waiting between rounds."""
import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python"), str(Path(__file__).resolve().parents[1] / "python/tests")]
import torch  # noqa: E402

from linnet import ops  # noqa: E402
from linnet.ops import _torch  # noqa: E402
from linnet.ops._calls import Call  # noqa: E402
from problems import Problem  # noqa: E402

USUAL = ["gated_delta_rule", "gla", "kda", "mesa", "scan", "attention"]


class Nothing(torch.autograd.Function):
    """As many tensors in and out, nothing computed."""

    @staticmethod
    def forward(ctx, out, *given):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, cotangent):
        return (None, *[torch.empty_like(t) for t in ctx.saved_tensors])


def variants(name, device, B, T, size, dtype):
    sizes = {"Hq": 2, "Hk": 2, "Hv": 2, "K": size, "V": size, "D": size, "M": 16, "L": T}
    p = Problem(name, B=B, T=T, dtype=torch.float32, device=device, states=False, sizes=sizes, options={"cg_max_iter": 2} if name == "mesa" else None)
    wide = {r.argument for r in p.op.inputs if r.wide}
    inputs = {k: (v.to(dtype) if k in wide else v) for k, v in p.inputs.items()}
    leaves = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    function, options = getattr(ops, name), p.options
    first = lambda r: r[0] if isinstance(r, tuple) else r  # noqa: E731
    o = first(function(**leaves, **options))
    do = torch.randn_like(o)
    torch.autograd.grad(o, list(leaves.values()), do)
    with torch.no_grad():
        function(**inputs, **options)
    where = _torch.device_of(o.device)
    plan = next(x for x in p.op.plans.values() if x.backwards)
    backward = next(iter(plan.backwards.values()))
    keep = []

    def prepared(shared, tensors):
        call = Call(plan, shared.names, shared.backward)  # the plan's own is written by every call
        call.struct.workspace_size = call.workspace = shared.workspace
        keep.append(call)
        call.view[call.places] = [t.data_ptr() for t in tensors]
        memory = torch.empty(max(call.workspace, 0) + 64, dtype=torch.uint8, device=device)
        keep.extend([memory, *tensors])
        call.struct.workspace = (memory.data_ptr() + 63) & -64
        run = where.lib.linnet_operator_backward if call.backward else where.lib.linnet_operator_forward
        context = where.context()
        return lambda: run(context, call.pointer)

    kept = [torch.empty(x.shape, dtype=plan.dtypes[0] if x.row.wide else plan.dtypes[1], device=device) for x in plan.kept]
    outs = [torch.empty(x.shape, dtype=plan.dtypes[0] if x.row.wide else plan.dtypes[1], device=device) for x in plan.outputs]
    out = outs[0]
    given = list(inputs.values())
    forward_c = prepared(plan.forward, [*given, *outs])
    kept_c = prepared(plan.forward_kept, [*given, *outs, *kept])
    kept_c()
    backward_c = prepared(backward, [*given, *[outs[i] for i in plan.kept_outputs], *kept, do, *[torch.empty_like(t) for t in given]])

    def both():
        torch.autograd.grad(first(function(**leaves, **options)), list(leaves.values()), do)

    def engine():
        torch.autograd.grad(Nothing.apply(out, *leaves.values()), list(leaves.values()), do)

    return {"C": forward_c, "C kept": kept_c, "C both": lambda: (kept_c(), backward_c()), "forward": lambda: function(**inputs, **options), "autograd": lambda: function(**leaves, **options),
            "both": both, "engine": engine, "ctypes": lambda: where.lib.linnet_threads(None), "_keep": keep}


def measure(found, cuda, rounds, calls):
    names = [n for n in found if not n.startswith("_")]
    times = {n: [] for n in names}
    for round in range(rounds + 2):  # two to warm up
        for n in names:
            run = found[n]
            if cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            if round >= 2:
                times[n].append((time.perf_counter() - begin) / calls * 1e6)
    return {n: statistics.median(t) for n, t in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--op", nargs="*", default=USUAL, help="all: every operator")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--calls", type=int, default=8, help="calls of a variant in a round; few, so that most rounds are disturbed by nobody")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    cuda = a.device.startswith("cuda")
    torch.set_num_threads(1)
    B, T, size, dtype = (1, 64, 64, torch.bfloat16) if cuda else (1, 4, 16, torch.float32)
    where = torch.cuda.get_device_name() if cuda else "CPU, one thread"
    if not a.json:
        print(f"{where}, torch {torch.__version__}, B {B}, T {T}, sizes {size}, {str(dtype)[6:]}: microseconds\n")
        print(f"{'operator':20} {'C':>8} {'forward':>8} | {'C kept':>8} {'autograd':>9} | {'C both':>8} {'both':>8} {'engine':>8} {'both-engine':>11}   (forward, autograd, both: more than C)")
    worst = dict.fromkeys(("forward", "autograd", "both", "less_engine"), 0.0)
    for name in list(ops.names()) if a.op == ["all"] else a.op:
        t = measure(variants(name, a.device, B, T, size, dtype), cuda, a.rounds, a.calls)
        row = {"operator": name, "device": where, "C": t["C"], "forward": t["forward"] - t["C"], "C_kept": t["C kept"],
               "autograd": t["autograd"] - t["C kept"], "C_both": t["C both"], "both": t["both"] - t["C both"], "engine": t["engine"],
               "less_engine": t["both"] - t["C both"] - t["engine"], "ctypes": t["ctypes"]}
        worst = {k: max(v, row[k]) for k, v in worst.items()}
        print(json.dumps(row) if a.json else f"{name:20} {row['C']:8.1f} {row['forward']:+8.1f} | {row['C_kept']:8.1f} {row['autograd']:+9.1f} | "
              f"{row['C_both']:8.1f} {row['both']:+8.1f} {row['engine']:8.1f} {row['less_engine']:+11.1f}", flush=True)
    if not a.json:
        print(f"\nmost: forward {worst['forward']:.1f}, autograd {worst['autograd']:.1f}, both {worst['both']:.1f}, less engine {worst['less_engine']:.1f}; a call of nothing by ctypes {t['ctypes']:.2f}")


if __name__ == "__main__":
    main()
