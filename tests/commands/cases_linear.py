"""Linear attention with feature maps and decays, against the papers' formulas written out token by token."""
import math

from cases_mixers import WIDTH, convolved, head_of, held_to, matrix, projected, rms, rotated, sigmoid, silu, times
from harness import case


def kernel_mean(kernel, q, k, v, eps):
    """o_t = sum_j kernel(q_t, k_j) v_j / (sum_j kernel(q_t, k_j) + eps)."""
    out = []
    for t, qt in enumerate(q):
        weights = [kernel(qt, kj) for kj in k[:t + 1]]
        out.append([sum(w * vj[c] for w, vj in zip(weights, v)) / (sum(weights) + eps) for c in range(len(v[0]))])
    return out


def recurrence(rows, columns, q, k, v, scale):
    """S_t = diag(rows_t) S_{t-1} diag(columns_t) + k_t v_t^T, o_t = scale S_t^T q_t."""
    S, out = [[0.0] * len(v[0]) for _ in k[0]], []
    for a, b, qt, kt, vt in zip(rows, columns, q, k, v):
        S = [[a[i] * b[j] * S[i][j] + kt[i] * vt[j] for j in range(len(vt))] for i in range(len(kt))]
        out.append([scale * sum(x * row[j] for x, row in zip(qt, S)) for j in range(len(vt))])
    return out


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def joined(heads, t):
    return [v for head in heads for v in head[t]]


def based(w, xs, heads, d):
    q, k, v = (projected(w, xs, name) for name in "qkv")
    taylor = lambda a, b: 1 + dot(a, b) / math.sqrt(d) + dot(a, b) ** 2 / (2 * d)
    each = [kernel_mean(taylor, head_of(q, h, heads), head_of(k, h, heads), head_of(v, h, heads), 0) for h in range(heads)]
    return [times(matrix(w["o_proj.weight"], WIDTH), joined(each, t)) for t in range(len(xs))]


def layernorm(x, eps=1e-5):
    mean = sum(x) / len(x)
    r = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + eps)
    return [(v - mean) * r for v in x]


def rebased(w, xs, heads, d, norm, eps):
    q, k, v = (projected(w, xs, name) for name in "qkv")
    gamma, beta = w.get("feature_map.gamma", [1.0] * d), w.get("feature_map.beta", [0.0] * d)
    affine = lambda rows: [[g * a + b for g, a, b in zip(gamma, layernorm(r) if norm else r, beta)] for r in rows]
    square = lambda a, b: dot(a, b) ** 2 / d
    each = [kernel_mean(square, affine(head_of(q, h, heads)), affine(head_of(k, h, heads)), head_of(v, h, heads), eps) for h in range(heads)]
    return [times(matrix(w["o_proj.weight"], WIDTH), joined(each, t)) for t in range(len(xs))]


@case("based and rebased, whole and without norm or affine map, are normalised sums of their kernels")
def kernels(folder):
    held_to(folder, "based", dict(num_heads=2, feature_dim=3), 2, 1e-6, lambda w, xs, layer, all_: based(w, xs, 2, 3))
    held_to(folder, "rebased", dict(num_heads=2, feature_dim=3), 1, 1e-6, lambda w, xs, layer, all_: rebased(w, xs, 2, 3, True, 1e-5))
    held_to(folder, "rebased", dict(num_heads=2, feature_dim=3, normalize="false", use_gamma="false", use_beta="false", eps=0.1), 2, 1e-6,
            lambda w, xs, layer, all_: rebased(w, xs, 2, 3, False, 0.1))


def lightning(w, xs, heads, slope):
    q, k, v = ([[silu(a) for a in r] for r in projected(w, xs, name)] for name in "qkv")
    g, size = projected(w, xs, "g"), len(q[0]) // heads
    of = lambda rows, h: head_of(rows, h, heads)
    each = [recurrence([[math.exp(-slope(h))] * size] * len(xs), [[1.0] * size] * len(xs), of(q, h), of(k, h), of(v, h), 1.0) for h in range(heads)]
    return [times(matrix(w["o_proj.weight"], len(q[0])), [sigmoid(c) * a * b for a, b, c in zip(rms(joined(each, t), 1e-6), w["norm.weight"], g[t])])
            for t in range(len(xs))]


def gated_retention(w, xs, heads, normalizer):
    q, k, v, gamma, g = (projected(w, xs, name) for name in ("q", "k", "v", "gt", "g"))
    turned = lambda rows, h: [rotated(r, t) for t, r in enumerate(head_of(rows, h, heads))]
    each = []
    for h in range(heads):
        qh, vh = turned(q, h), head_of(v, h, heads)
        a = [[sigmoid(r[h]) ** (1 / normalizer)] * len(qh[0]) for r in gamma]
        each.append(recurrence(a, [[1.0] * len(vh[0])] * len(xs), qh, turned(k, h), vh, len(qh[0]) ** -0.5))
    return [times(matrix(w["o_proj.weight"], len(v[0])),
                  [a * b * silu(c) for h in range(heads) for a, b, c in zip(rms(each[h][t], 1e-6), w["g_norm.weight"], head_of(g, h, heads)[t])])
            for t in range(len(xs))]


def dfw(w, xs, heads, gated):
    q, k, v, gk, gv = (projected(w, xs, name) for name in ("q", "k", "v", "gk", "gv"))
    g = projected(w, xs, "g") if gated else None
    decays = lambda rows, bias: [[sigmoid(a + b) for a, b in zip(r, bias)] for r in rows]
    gk, gv = decays(gk, w["gk_proj.bias"]), decays(gv, w["gv_proj.bias"])
    of = lambda rows, h: head_of(rows, h, heads)
    each = [recurrence(of(gk, h), of(gv, h), of(q, h), of(k, h), of(v, h), (len(q[0]) // heads) ** -0.5) for h in range(heads)]
    out = []
    for t in range(len(xs)):
        y = [a * b for h in range(heads) for a, b in zip(rms(each[h][t], 1e-6), w["g_norm.weight"])]
        out.append(times(matrix(w["o_proj.weight"], len(y)), [a * silu(c) for a, c in zip(y, g[t])] if gated else y))
    return out


@case("lightning_attn with both slopes, gated_retention and decaying_fast_weight, gated and not, are their formulas")
def decays(folder):
    for word, slope in (("exponential", lambda h, l: 2 ** (-4 * (h + 1)) * (1 - l / (2 + 1e-5) + 1e-5)), ("linear", lambda h, l: 4 * (1 - l / 3) * h)):
        held_to(folder, "lightning_attn", dict(num_heads=2, slopes=word, head_dim=3), 3, 1e-6,
                lambda w, xs, layer, all_: lightning(w, xs, 2, lambda h: slope(h, layer)))
    held_to(folder, "gated_retention", dict(num_heads=2, expand_v=1.5, gate_logit_normalizer=2), 2, 1e-6,
            lambda w, xs, layer, all_: gated_retention(w, xs, 2, 2))
    for gated in (True, False):
        held_to(folder, "dfw", dict(num_heads=2, expand_k=0.5, expand_v=1.5, use_output_gate=str(gated).lower()), 2, 1e-6,
                lambda w, xs, layer, all_: dfw(w, xs, 2, gated))


def gated_rfa(w, xs, heads, count, floor):
    q, k, v, f = (projected(w, xs, name) for name in ("q", "k", "v", "gk"))
    size = len(q[0]) // heads
    W = matrix(w["features.weight"], size)

    def features(row):
        unit = [a / math.sqrt(dot(row, row) + 1e-6) for a in row]
        return [math.sin(a) for a in times(W, unit)] + [math.cos(a) for a in times(W, unit)]
    each = []
    for h in range(heads):
        g = [sigmoid(r[h] + w["gk_proj.bias"][h]) for r in f]
        qh, kh = ([features(r) for r in head_of(rows, h, heads)] for rows in (q, k))
        kh = [[(1 - a) * b for b in r] for a, r in zip(g, kh)]
        ones = [r + [1.0] for r in head_of(v, h, heads)]
        both = recurrence([[a] * len(qh[0]) for a in g], [[1.0] * len(ones[0])] * len(xs), qh, kh, ones, 1 / count)
        each.append([[a / max(abs(r[-1]), floor) for a in r[:-1]] for r in both])
    return [times(matrix(w["o_proj.weight"], WIDTH), joined(each, t)) for t in range(len(xs))]


def metala(w, xs, heads, normalizer, augmented):
    xs = [[silu(a) for a in r] for r in convolved(xs, matrix(w["conv1d.weight"], len(w["conv1d.weight"]) // WIDTH))]
    through = lambda name: [times(matrix(w[f"{name}.weight"], WIDTH), x) for x in xs]
    q, f, v = through("q_proj"), through("k_gate"), through("v_proj")
    g = [[a + b for a, b in zip(r, w["g_proj.bias"])] for r in through("g_proj")]
    decay = [[sigmoid(a) ** (1 / normalizer) for a in r] for r in f]
    k = [[1 - a for a in r] for r in decay]
    each = []
    for h in range(heads):
        of = lambda rows: head_of(rows, h, heads)
        y = recurrence(of(decay), [[1.0] * len(of(v)[0])] * len(xs), of(q), of(k), of(v), len(of(q)[0]) ** -0.5)
        if augmented:
            balance = head_of([w["aug_balance"]], h, heads)[0]
            y = [[a + sigmoid(sum(c * d * e for c, d, e in zip(qt, kt, balance)) * b) for a, b in zip(yt, vt)]
                 for yt, qt, kt, vt in zip(y, of(q), of(k), of(v))]
        each.append([layernorm(r) for r in y])
    return [times(matrix(w["out_proj.weight"], len(v[0])), [a * silu(c) for a, c in zip(joined(each, t), g[t])]) for t in range(len(xs))]


@case("gated_rfa and metala, with its augmentation and without, are their formulas")
def features_and_augmentation(folder):
    for floor in (0.1, 0.6):  # few denominators are below the first, most are below the second
        held_to(folder, "gated_rfa", dict(num_heads=2, num_features=40, denominator_floor=floor), 2, 1e-6, lambda w, xs, layer, all_: gated_rfa(w, xs, 2, 40, floor))
    for augmented in (True, False):
        held_to(folder, "metala", dict(num_heads=2, conv_size=3, gate_logit_normalizer=2, use_self_augmentation=str(augmented).lower()), 2, 1e-6,
                lambda w, xs, layer, all_: metala(w, xs, 2, 2, augmented))
