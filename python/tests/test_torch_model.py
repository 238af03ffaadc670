"""A torch model whose mixer is linnet's: steps of training on the CPU, and on a GPU where there is one."""
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from torch_mixer import Model, train  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_torch_model_learns(device, dtype):
    losses = train(steps=60, device=device, dtype=dtype, width=32, layers=2, heads=2, length=32, batch=4)
    assert losses[-1] < 0.6 * losses[0]


def test_the_step_of_the_formula():
    """One step's gradients are those of the same model with the recurrence written out in torch."""
    from problems import gated_delta_formula
    torch.manual_seed(0)
    model = Model(width=16, layers=1, heads=2, vocabulary=32)
    ids = torch.randint(32, (2, 12))
    model.loss(ids).backward()
    mine = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    for layer in model.layers:
        layer.mixer.recurrence = lambda q, k, v, g, beta: gated_delta_formula(q, k, v, g, beta)
    model.loss(ids).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(mine[name], p.grad, rtol=1e-4, atol=1e-6)
