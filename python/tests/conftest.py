"""pytest finds the package in the tree, and the library where LINNET_LIBRARY says or in build/."""
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

try:
    import torch
    torch.set_num_threads(1)  # small problems, and whoever else is on the machine
except ImportError:
    collect_ignore_glob = ["test_ops.py", "test_torch_*.py", "test_cuda.py"]
