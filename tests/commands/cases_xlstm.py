"""The layers of xLSTM against the papers' formulas written out token by token."""
import math

from cases_mixers import WIDTH, convolved, held_to, matrix, sigmoid, silu, times
from harness import case


def heads_of(row, heads):
    n = len(row) // heads
    return [row[h * n:(h + 1) * n] for h in range(heads)]


def layer_norm(x, eps):
    mean = sum(x) / len(x)
    r = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + eps)
    return [(v - mean) * r for v in x]


def capped(x, cap):
    return cap * math.tanh(x / cap) if cap else x


def mlstm(w, xs, heads, cap, eps):
    """The layer of arXiv 2503.13427 on the rows xs, its states as they are (eps = 0 makes them the formula's own)."""
    rows = {name: matrix(w[f"{name}.weight"], WIDTH) for name in ("q", "k", "v", "ogate_preact", "igate_preact", "fgate_preact")}
    q_size, v_size = len(rows["q"]) // heads, len(rows["v"]) // heads
    C = [[[0.0] * v_size for _ in range(q_size)] for _ in range(heads)]
    n = [[0.0] * q_size for _ in range(heads)]
    out = []
    for x in xs:
        q, k, v = (heads_of(times(rows[name], x), heads) for name in "qkv")
        i, f = ([capped(a + b, cap) for a, b in zip(times(rows[f"{g}gate_preact"], x), w[f"{g}gate_preact.bias"])] for g in "if")
        y = []
        for h in range(heads):
            keep, write = sigmoid(f[h]), math.exp(i[h])
            C[h] = [[keep * c + write * key * value for c, value in zip(row, v[h])] for row, key in zip(C[h], k[h])]
            n[h] = [keep * a + write * key for a, key in zip(n[h], k[h])]
            query = [a / math.sqrt(q_size) for a in q[h]]
            den = max(abs(sum(a * b for a, b in zip(n[h], query))), 1)
            y += layer_norm([sum(a * row[j] for a, row in zip(query, C[h])) / den for j in range(v_size)], eps)
        y = [sigmoid(o) * a * b for o, a, b in zip(times(rows["ogate_preact"], x), y, w["multihead_norm.weight"])]
        out.append(times(matrix(w["out_proj.weight"], v_size * heads), y))
    return out


@case("mlstm with gates capped and not is the paper's formula without a stabiliser, token by token")
def mlstm_options(folder):
    for heads, cap, keys, values in ((2, 15.0, 0.5, 1), (4, None, 1, 1.5)):
        held_to(folder, "mlstm", dict(num_heads=heads, qk_dim_factor=keys, v_dim_factor=values, gate_soft_cap=cap or "null", eps=0,
                                      logit_soft_cap="null"), 2, 1e-6, lambda w, xs, layer, all_: mlstm(w, xs, heads, cap, 1e-6))


def slstm(w, xs, heads, eps):
    """The layer of arXiv 2405.04517, figure 10, on the rows xs."""
    n = WIDTH // heads
    seen = [[silu(v) for v in row] for row in convolved(xs, matrix(w["conv1d.weight"], len(w["conv1d.weight"]) // WIDTH))] if "conv1d.weight" in w else xs
    maps = {g: matrix(w[f"{g}gate.weight"], WIDTH) for g in "ifzo"}
    R = matrix(w["recurrent_kernel"], 4 * n)
    y, c, norm, out = [0.0] * WIDTH, [0.0] * WIDTH, [0.0] * WIDTH, []
    for x, s in zip(xs, seen):
        into = {}
        for at, (g, row) in enumerate(zip("ifzo", (s, s, x, x))):
            into[g] = [sum(maps[g][j % n][j // n * n + k] * row[j // n * n + k] for k in range(n)) + w[f"{g}gate.bias"][j]
                       + sum(y[j // n * n + k] * R[j // n * n + k][at * n + j % n] for k in range(n)) for j in range(WIDTH)]
        c = [sigmoid(f) * a + math.exp(i) * math.tanh(z) for f, a, i, z in zip(into["f"], c, into["i"], into["z"])]
        norm = [sigmoid(f) * a + math.exp(i) for f, a, i in zip(into["f"], norm, into["i"])]
        y = [sigmoid(o) * a / b for o, a, b in zip(into["o"], c, norm)]
        out.append([a * b for a, b in zip(sum((layer_norm(part, eps) for part in heads_of(y, heads)), []), w["group_norm.weight"])])
    return out


@case("slstm with convolution and without is the paper's formula without a stabiliser, token by token")
def slstm_options(folder):
    for heads, convolution in ((2, "true"), (4, "false")):
        held_to(folder, "slstm", dict(num_heads=heads, use_short_conv=convolution), 2, 1e-6, lambda w, xs, layer, all_: slstm(w, xs, heads, 1e-6))
