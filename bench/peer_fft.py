#!/usr/bin/env python3
"""Hyena's convolution beside torch.fft: python3 bench/peer_fft.py [--device cuda] [--threads 2] [--channels 768] [--lengths 256 1024 ...] [--rounds 9] [--json]

Theirs is the convolution of Hyena's published code (rfft of inputs and filters at twice the length, irfft of the product, D u added) with channels in front,
as torch likes them; ours is long_conv as the Python package calls it, [1,T,D]. The two take turns, forward, and forward with backward in everything
(inputs, filters, D), on the CPU or on a GPU; the median of `rounds` turns and of the ratios within a turn, and how far the two results and gradients are apart (relative rms).
Needs torch and the library (LINNET_LIBRARY, or build/)."""
import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
try:
    import torch
except ImportError:
    sys.exit(f"{__doc__}\n\nPyTorch is not installed: pip install torch")

from linnet import ops  # noqa: E402


def theirs(u, h, D):
    """u and h [D,T]."""
    n = 2 * u.shape[-1]
    y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(h, n=n), n=n)[..., : u.shape[-1]]
    return y + u * D[:, None]


def ours(u, h, D):
    """u [1,T,D], h [T,D]."""
    return ops.long_conv(u, h, D)[0]


def now(x):
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(f, given, cotangent):
    start = now(given[0])
    if cotangent is None:
        with torch.no_grad():
            result = f(*given), None
    else:
        o = f(*given)
        result = o.detach(), torch.autograd.grad(o, given, cotangent)
    return now(given[0]) - start, result


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def at_length(T, D, rounds, device):
    u, h, c = (torch.randn(T, D, device=device) for _ in range(3))
    decay = torch.exp(-torch.arange(T, device=device)[:, None] * 6.0 / T)
    given = [[u[None].clone(), h * decay, torch.randn(D, device=device)], None]
    given[1] = [u.T.contiguous(), given[0][1].T.contiguous(), given[0][2].clone()]
    for x in given[0] + given[1]:
        x.requires_grad_()
    line = {"bench": "peer_fft", "T": T, "D": D, "device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
    for name, cotangents in (("forward", (None, None)), ("both", (c[None].clone(), c.T.contiguous()))):
        times, ratios = ([], []), []
        for turn in range(rounds + 1):
            one = [seconds(f, x, d) for f, x, d in zip((ours, theirs), given, cotangents)]
            if turn:
                for i in range(2):
                    times[i].append(one[i][0])
                ratios.append(one[0][0] / one[1][0])
        line[name] = {"ours_ms": 1e3 * statistics.median(times[0]), "torch_ms": 1e3 * statistics.median(times[1]), "ratio": statistics.median(ratios)}
        (o, g), (p, q) = one[0][1], one[1][1]
        line[name]["apart"] = apart(o[0].T, p)
        if g:
            line[name]["gradients_apart"] = max(apart(g[0][0].T, q[0]), apart(g[1].T, q[1]), apart(g[2], q[2]))
    return line


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--channels", type=int, default=768)
    p.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 2048, 4096, 8192, 32768])
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    if not a.json:
        print("| T | channels | forward ms, ours / torch.fft | ratio | forward and backward ms | ratio | apart |\n|---|---|---|---|---|---|---|")
    for T in a.lengths:
        x = at_length(T, a.channels, a.rounds, a.device)
        f, b = x["forward"], x["both"]
        print(json.dumps(x) if a.json else f"| {T} | {a.channels} | {f['ours_ms']:.2f} / {f['torch_ms']:.2f} | {f['ratio']:.2f} | "
              f"{b['ours_ms']:.2f} / {b['torch_ms']:.2f} | {b['ratio']:.2f} | {f['apart']:.1e}, {b['gradients_apart']:.1e} |", flush=True)


if __name__ == "__main__":
    main()
