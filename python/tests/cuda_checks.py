"""linnet.ops and linnet.Model on a CUDA device against the CPU's float64 reference, with torch and the library alone: python3 python/tests/cuda_checks.py

Every operator that has kernels there, forward and backward, float32 and bf16; streams, graphs, slices, offsets, a second device; a model and its
training. One line a check; ends with 1 when one fails. test_cuda.py runs the same under pytest."""
import sys
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
import torch  # noqa: E402

import linnet  # noqa: E402
from linnet import ops  # noqa: E402
from problems import Problem, both_of, delta_inputs, error  # noqa: E402

SIZES = {"K": 64, "V": 64, "D": 64, "M": 16, "F": 128, "mini_batch": 16}
BUDGETS = {"float32": 2e-4, "bfloat16": 3e-2}


class Skip(Exception):
    """What this device or library does not offer."""


def check_operator(name, dtype):
    op = ops.operator(name)
    batched = "mini_batch" in op.options
    p = Problem(name, T=128 if batched else 130, sizes=SIZES,
                options={"mini_batch": 16} if batched else {"cg_tol": 1e-6, "cg_max_iter": 60} if name == "mesa" else None)
    kind, budget = getattr(torch, dtype), BUDGETS[dtype]
    inputs = {r.argument: (p.inputs[r.argument].to(kind) if r.wide else p.inputs[r.argument].float()) for r in op.inputs if r.argument in p.inputs}
    states = {k: v.float() for k, v in p.states.items()}
    there = lambda x: {k: v.cuda() for k, v in x.items()}  # noqa: E731
    try:
        ours, mine = both_of(p, there(inputs), there(states))
    except linnet.Error as e:
        if e.kind == "unsupported":
            raise Skip(str(e)) from None
        raise
    truth, theirs = both_of(p, {k: v.double() for k, v in inputs.items()}, {k: v.double() for k, v in states.items()})
    for a, b in zip(ours, truth):
        assert a.is_cuda and error(a.cpu(), b) < budget, error(a.cpu(), b)
    for leaf, a, b in zip([*inputs, *states], mine, theirs):
        if a is not None and b.abs().max() > 1e-9:
            assert error(a.cpu(), b) < 5 * budget, (leaf, error(a.cpu(), b))


def on_device(T=64, B=2, gradient=False):
    return [t.cuda().requires_grad_(gradient) for t in delta_inputs(B=B, T=T, K=64, V=64)[:5]]


def check_float64_is_refused():
    try:
        ops.gated_delta_rule(*[t.double() for t in on_device()])
    except linnet.Error:
        return
    raise AssertionError("no error")


def check_current_stream():
    """On a side stream too, work waits for what the stream was given before."""
    x = on_device()
    truth = ops.gated_delta_rule(*x)[0]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # what comes first takes a while
        o = ops.gated_delta_rule(*[t * 1.0 for t in x])[0]
    side.synchronize()
    assert torch.equal(o, truth)


def check_graph():
    """A recorded graph computes anew."""
    x = on_device()
    truth = ops.gated_delta_rule(*x)[0]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a stream's first call makes is made outside of the recording
        ops.gated_delta_rule(*x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        recorded = ops.gated_delta_rule(*x)[0]
    x[2].mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert error(recorded, 2 * truth) < 1e-6


def check_workspaces_in_turn():
    """Calls behind one another share a workspace of their stream; a recorded one has its own, and is not disturbed where both run at once."""
    from linnet.ops import _torch
    x, y = on_device(T=512), [t.flip(1).contiguous() for t in on_device(T=512)]
    device = _torch.device_of(x[0].device)
    truth, other = ops.gated_delta_rule(*x)[0], ops.gated_delta_rule(*y)[0]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ops.gated_delta_rule(*x)
    torch.cuda.synchronize()
    kept = {stream: id(made) for stream, (*_, made) in device.kept.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        recorded = ops.gated_delta_rule(*x)[0]
    assert kept == {stream: id(made) for stream, (*_, made) in device.kept.items()}, "a recording took a workspace, or left one"
    for _ in range(20):
        graph.replay()
        with torch.cuda.stream(side):
            o = ops.gated_delta_rule(*y)[0]
        torch.cuda.synchronize()
        assert torch.equal(recorded, truth) and torch.equal(o, other)


def check_backward_on_a_stream():
    x = on_device(gradient=True)
    ops.gated_delta_rule(*x)[0].sum().backward()
    truth = [t.grad.clone() for t in x]
    for t in x:
        t.grad = None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ops.gated_delta_rule(*x)[0].sum().backward()
    torch.cuda.synchronize()
    for t, g in zip(x, truth):
        assert torch.equal(t.grad, g)


def check_offsets():
    x = on_device(B=1)
    truth = ops.gated_delta_rule(*x, cu_seqlens=[0, 10, 64])[0]
    for kind in (torch.int64, torch.int32):
        assert torch.equal(ops.gated_delta_rule(*x, cu_seqlens=torch.tensor([0, 10, 64], device="cuda", dtype=kind))[0], truth)


def check_misaligned_slices():
    x = on_device()
    flat = torch.empty(x[0].numel() + 1, device="cuda")
    flat[1:] = x[0].flatten()
    assert torch.equal(ops.gated_delta_rule(flat[1:].view_as(x[0]), *x[1:])[0], ops.gated_delta_rule(*x)[0])


def check_second_device():
    if torch.cuda.device_count() < 2:
        raise Skip("one CUDA device")
    x = on_device()
    one, two = (ops.gated_delta_rule(*[t.to(f"cuda:{i}") for t in x])[0] for i in (0, 1))
    assert torch.equal(one.cpu(), two.cpu()) and torch.cuda.current_device() == 0


def check_model_and_training():
    """A model has the CPU's logits, and learns."""
    keys = dict(hidden_size=128, num_hidden_layers=2, num_heads=2, head_dim=64, vocab_size=256)
    a, b = (linnet.Model.create("gated_deltanet", device=d, **keys) for d in ("cpu", "cuda"))
    ids = (torch.arange(100).view(2, 50) * 7) % 64
    assert error(b.logits(ids), a.logits(ids)) < 1e-4
    trainer = linnet.Trainer(b, batch=2, length=50)
    losses = [trainer.step([ids], 1e-2).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0], losses


def check_torch_model():
    """A torch model whose mixer is linnet's trains."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from torch_mixer import train
    for dtype in (torch.float32, torch.bfloat16):
        losses = train(steps=60, device="cuda", dtype=dtype, width=128, layers=2, heads=2, length=64, batch=8)
        assert losses[-1] < 0.6 * losses[0], losses


CHECKS = [(f"{name} {dtype}", lambda name=name, dtype=dtype: check_operator(name, dtype)) for name in ops.names() for dtype in BUDGETS]
CHECKS += [(name[6:].replace("_", " "), function) for name, function in list(globals().items()) if name.startswith("check_") and name != "check_operator"]


def main():
    count = {"ok": 0, "skipped": 0, "FAILED": 0}
    for name, check in CHECKS:
        try:
            check()
            word, why = "ok", ""
        except Skip as e:
            word, why = "skipped", str(e)
        except Exception as e:
            word, why = "FAILED", "".join(traceback.format_exception_only(type(e), e)).strip()
            traceback.print_exc()
        count[word] += 1
        print(f"{word:8} {name}  {why}", flush=True)
    print(f"{count['ok']} passed, {count['FAILED']} failed, {count['skipped']} skipped")
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
