"""The layers of xLSTM against the papers' formulas written out token by token."""
import math

from cases_mixers import WIDTH, held_to, matrix, sigmoid, times
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
