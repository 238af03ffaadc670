#!/usr/bin/env python3
"""A PyTorch language model whose mixer is linnet's gated delta rule, and its training: python3 examples/torch_mixer.py [--device cuda] [--dtype bfloat16]

What is linnet's is one line, the call of linnet.ops.gated_delta_rule in Mixer.forward; projections, norms, MLP, loss and optimizer are torch's. The
text is counting by a step that the model has to find out."""
import argparse
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

if (Path(__file__).resolve().parents[1] / "python/linnet").exists():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from linnet import ops  # noqa: E402


class Mixer(nn.Module):
    """q, k of unit norm, a gate and a write strength of each head; the state decays, forgets what a key held, and learns what it holds now."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gates = nn.Linear(width, 2 * heads)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width // heads)

    def recurrence(self, q, k, v, g, beta):
        return ops.gated_delta_rule(q, k, v, g, beta)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        g, beta = self.gates(x).float().chunk(2, -1)
        o, _ = self.recurrence(F.normalize(q, dim=-1), F.normalize(k, dim=-1), F.silu(v), F.logsigmoid(g + 4), beta.sigmoid())
        return self.out(self.norm(o).flatten(-2))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mixer = Mixer(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width))

    def forward(self, x):
        x = x + self.mixer(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, width=256, layers=4, heads=4, vocabulary=64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def loss(self, ids):
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def batch_of(batch, length, vocabulary, generator):
    """Rows that count by a step of their own."""
    start = torch.randint(vocabulary, (batch, 1), generator=generator)
    step = torch.randint(1, 5, (batch, 1), generator=generator)
    return (start + step * torch.arange(length)) % vocabulary


def train(steps, device, dtype, width=256, layers=4, heads=4, length=128, batch=16, vocabulary=64, say=None):
    """Losses of all steps."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    model = Model(width, layers, heads, vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        begin = time.perf_counter()
        ids = batch_of(batch, length + 1, vocabulary, generator).to(device)
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
            loss = model.loss(ids)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if say:
            say(f"step {step + 1:4}  loss {losses[-1]:.4f}  {batch * length / (time.perf_counter() - begin):,.0f} tokens/s")
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=100)
    a = parser.parse_args()
    losses = train(a.steps, a.device, getattr(torch, a.dtype), say=print)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
