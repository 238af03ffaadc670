"""linnet.ops on a CUDA device against itself on the CPU: every operator that has kernels there, forward and backward, on streams, in graphs."""
import pytest
import torch

import linnet
from linnet import ops
from problems import Problem, error
from test_ops import NAMES, both_of, delta_inputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SIZES = {"K": 64, "V": 64, "D": 64, "M": 16, "F": 128, "mini_batch": 16}


def runs_there(call):
    """The result, or a skip where an operator says that it has no kernels."""
    try:
        return call()
    except linnet.Error as e:
        if "no implementation for a GPU" in str(e) or "not offered" in str(e):
            pytest.skip(str(e))
        raise


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype,budget", [(torch.float32, 2e-4), (torch.bfloat16, 3e-2)])
def test_operators(name, dtype, budget):
    op = ops.operator(name)
    p = Problem(name, T=130 if "mini_batch" not in op.options else 128, sizes=SIZES,
                options={"mini_batch": 16} if "mini_batch" in op.options else {"cg_tol": 1e-6, "cg_max_iter": 60} if name == "mesa" else None)
    inputs = {r.argument: (p.inputs[r.argument].to(dtype) if r.wide else p.inputs[r.argument].float()) for r in op.inputs if r.argument in p.inputs}
    states = {k: v.float() for k, v in p.states.items()}
    there = lambda x: {k: v.cuda() for k, v in x.items()}  # noqa: E731
    ours, mine = runs_there(lambda: both_of(p, there(inputs), there(states)))
    truth, theirs = both_of(p, {k: v.double() for k, v in inputs.items()}, {k: v.double() for k, v in states.items()})
    for a, b in zip(ours, truth):
        assert a.is_cuda and error(a.cpu(), b) < budget
    for leaf, a, b in zip([*inputs, *states], mine, theirs):
        if a is not None and b.abs().max() > 1e-9:
            assert error(a.cpu(), b) < 5 * budget, leaf


def test_float64_is_refused():
    with pytest.raises(linnet.Error):
        ops.gated_delta_rule(*[t.double().cuda() for t in delta_inputs()[:5]])


def test_current_stream_and_graphs():
    """Work waits for what the stream was given before, on a side stream too, and a recorded graph computes anew."""
    x = [t.cuda() for t in delta_inputs(T=64, K=64, V=64)[:5]]
    truth = ops.gated_delta_rule(*x)[0]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # what comes first takes a while
        late = [t * 1.0 for t in x]
        o = ops.gated_delta_rule(*late)[0]
    side.synchronize()
    assert torch.equal(o, truth)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = ops.gated_delta_rule(*x)[0]
    x[2].mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert error(recorded, 2 * truth) < 1e-6


def test_backward_on_a_stream():
    x = [t.cuda().requires_grad_() for t in delta_inputs(T=64, K=64, V=64)[:5]]
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


def test_offsets_on_the_device():
    x = [t.cuda() for t in delta_inputs(B=1, T=64, K=64, V=64)[:5]]
    a = ops.gated_delta_rule(*x, cu_seqlens=torch.tensor([0, 10, 64], device="cuda"))[0]
    assert torch.equal(a, ops.gated_delta_rule(*x, cu_seqlens=[0, 10, 64])[0])


def test_misaligned_slices():
    x = [t.cuda() for t in delta_inputs(T=32, K=64, V=64)[:5]]
    flat = torch.empty(x[0].numel() + 1, device="cuda")
    flat[1:] = x[0].flatten()
    assert torch.equal(ops.gated_delta_rule(flat[1:].view_as(x[0]), *x[1:])[0], ops.gated_delta_rule(*x)[0])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device():
    x = delta_inputs(T=32, K=64, V=64)[:5]
    one, two = (ops.gated_delta_rule(*[t.to(f"cuda:{i}") for t in x])[0] for i in (0, 1))
    assert torch.equal(one.cpu(), two.cpu()) and torch.cuda.current_device() == 0


def test_models():
    """A model on the GPU has the CPU's logits."""
    keys = dict(hidden_size=128, num_hidden_layers=2, num_heads=2, head_dim=64, vocab_size=256)
    a, b = (linnet.Model.create("gated_deltanet", device=d, **keys) for d in ("cpu", "cuda"))
    ids = torch.randint(256, (2, 50))
    assert error(b.logits(ids), a.logits(ids)) < 1e-4
    trainer = linnet.Trainer(b, batch=2, length=50)
    losses = [trainer.step([ids], 1e-2).loss for _ in range(20)]
    assert losses[-1] < 0.6 * losses[0]
