"""cuda_checks.py, one by one."""
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from cuda_checks import CHECKS, Skip  # noqa: E402


@pytest.mark.parametrize("name,check", CHECKS, ids=[name for name, _ in CHECKS])
def test_cuda(name, check):
    try:
        check()
    except Skip as e:
        pytest.skip(str(e))
