"""Layers whose options no stored model covers, against the paper's formulas written out token by token."""
import math
import struct

from harness import case, floats, linnet, read_safetensors, write_safetensors

WIDTH, HEADS, HEAD, STATE, GROUPS, TAPS, VOCABULARY = 8, 4, 4, 3, 2, 3, 256
INNER, MIXED = HEADS * HEAD, HEADS * HEAD + 2 * GROUPS * STATE


def matrix(values, columns):
    return [values[i:i + columns] for i in range(0, len(values), columns)]


def times(w, x):
    return [sum(a * b for a, b in zip(row, x)) for row in w]


def silu(x):
    return x / (1 + math.exp(-x))


def rms(x, eps=1e-5):
    r = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [v * r for v in x]


def mamba2(w, xs, norm_before_gate, rmsnorm):
    """The layer of arXiv 2405.21060 on the rows xs; w: its tensors by name."""
    tail, state, out = [[0.0] * MIXED for _ in range(TAPS - 1)], [[[0.0] * HEAD for _ in range(STATE)] for _ in range(HEADS)], []
    into, back, taps = matrix(w["in_proj.weight"], WIDTH), matrix(w["out_proj.weight"], INNER), matrix(w["conv1d.weight"], TAPS)
    for x in xs:
        row = [a + b for a, b in zip(times(into, x), w["in_proj.bias"])]
        z, mixed, dt = row[:INNER], row[INNER:INNER + MIXED], row[INNER + MIXED:]
        tail.append(mixed)
        mixed = [silu(sum(taps[c][j] * tail[j][c] for j in range(TAPS)) + w["conv1d.bias"][c]) for c in range(MIXED)]
        tail.pop(0)
        y = []
        for h in range(HEADS):
            step = math.log1p(math.exp(dt[h] + w["dt_bias"][h]))
            decay, group = math.exp(-step * math.exp(w["A_log"][h])), h // (HEADS // GROUPS)
            v = mixed[h * HEAD:(h + 1) * HEAD]
            key = mixed[INNER + group * STATE:INNER + (group + 1) * STATE]
            query = mixed[INNER + (GROUPS + group) * STATE:INNER + (GROUPS + group + 1) * STATE]
            for i in range(STATE):
                state[h][i] = [decay * s + key[i] * step * b for s, b in zip(state[h][i], v)]
            y += [sum(query[i] * state[h][i][j] for i in range(STATE)) + w["D"][h] * v[j] for j in range(HEAD)]
        size = INNER // GROUPS
        norm = (lambda v: [a * b for a, b in zip(sum((rms(v[i:i + size]) for i in range(0, INNER, size)), []), w["norm.weight"])]) if rmsnorm else list
        y = [silu(g) * v for g, v in zip(z, norm(y))] if norm_before_gate else norm([silu(g) * v for g, v in zip(z, y)])
        out.append([a + b for a, b in zip(times(back, y), w["out_proj.bias"])])
    return out


def convolved(rows, taps):
    """A causal convolution of every column, the last tap at the row itself."""
    return [[sum(taps[c][j] * rows[t - len(taps[c]) + 1 + j][c] for j in range(len(taps[c])) if t - len(taps[c]) + 1 + j >= 0)
             for c in range(len(taps))] for t in range(len(rows))]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def hgrn(w, xs, bound):
    """The layer of arXiv 2311.04823 on the rows xs, with decays above `bound` (None: above 0)."""
    n = len(w["g_norm.weight"])
    into = {name: [times(matrix(w[f"{name}_proj.weight"], WIDTH), x) for x in xs] for name in "ifg"}
    for name in "if":
        if f"{name}_conv1d.weight" in w:
            into[name] = convolved(into[name], matrix(w[f"{name}_conv1d.weight"], len(w[f"{name}_conv1d.weight"]) // n))
    back, h, out = matrix(w["o_proj.weight"], n), [0.0] * n, []
    for i, f, g in zip(into["i"], into["f"], into["g"]):
        f = [b + (1 - b) * sigmoid(v) for v, b in zip(f, bound or [0.0] * n)]
        h = [a * s + (1 - a) * silu(v) for a, s, v in zip(f, h, i)]
        out.append(times(back, [a * b * silu(c) for a, b, c in zip(rms(h, 1e-6), w["g_norm.weight"], g)]))
    return out


def bounds_of(w, layers):
    """Of each layer: a softmax over the layers, summed from the second on."""
    p = matrix(next(v for name, v in w.items() if name.endswith("lower_bounds")), WIDTH)
    total = [sum(math.exp(p[i][c]) for i in range(layers)) for c in range(WIDTH)]
    return [[sum(math.exp(p[i][c]) / total[c] for i in range(1, layer + 1)) for c in range(WIDTH)] for layer in range(layers)]


def mamba(w, xs, inner, states):
    """The layer of arXiv 2312.00752 on the rows xs."""
    rank = len(w["dt_proj.weight"]) // inner
    both = [[a + b for a, b in zip(times(matrix(w["in_proj.weight"], WIDTH), x), w.get("in_proj.bias", [0.0] * 2 * inner))] for x in xs]
    rows = convolved([r[:inner] for r in both], matrix(w["conv1d.weight"], len(w["conv1d.weight"]) // inner))
    A, h, out = matrix(w["A_log"], states), [[0.0] * states for _ in range(inner)], []
    for row, z in zip(rows, (r[inner:] for r in both)):
        x = [silu(v + b) for v, b in zip(row, w.get("conv1d.bias", [0.0] * inner))]
        made = times(matrix(w["x_proj.weight"], inner), x)
        B, C = made[rank:rank + states], made[rank + states:]
        steps = [math.log1p(math.exp(v + b)) for v, b in zip(times(matrix(w["dt_proj.weight"], rank), made[:rank]), w["dt_proj.bias"])]
        h = [[math.exp(-d * math.exp(a)) * s + d * u * b for a, s, b in zip(A[c], h[c], B)]
             for c, (d, u) in enumerate(zip(steps, x))]
        y = [silu(g) * (sum(a * b for a, b in zip(C, h[c])) + w["D"][c] * x[c]) for c, g in enumerate(z)]
        out.append([a + b for a, b in zip(times(matrix(w["out_proj.weight"], inner), y), w.get("out_proj.bias", [0.0] * WIDTH))])
    return out


def slots_attention(decays, writes, q, k, v, scale):
    """One head token by token: slots of keys and of values, each decaying by its own factor and written to with its own weight."""
    keys, values, out = [[0.0] * len(k[0]) for _ in writes[0]], [[0.0] * len(v[0]) for _ in writes[0]], []
    for a, w, qt, kt, vt in zip(decays, writes, q, k, v):
        keys = [[a[m] * s + w[m] * b for s, b in zip(keys[m], kt)] for m in range(len(w))]
        values = [[a[m] * s + w[m] * b for s, b in zip(values[m], vt)] for m in range(len(w))]
        scores = [math.exp(scale * sum(x * y for x, y in zip(qt, keys[m]))) for m in range(len(w))]
        out.append([sum(p * s[j] for p, s in zip(scores, values)) / sum(scores) for j in range(len(vt))])
    return out


def head_of(rows, h, heads):
    size = len(rows[0]) // heads
    return [r[h * size:(h + 1) * size] for r in rows]


def projected(w, xs, name):
    """Behind the projection, and the convolution with silu where there is one."""
    rows = [times(matrix(w[f"{name}_proj.weight"], WIDTH), x) for x in xs]
    if f"{name}_conv1d.weight" not in w:
        return rows
    return [[silu(v) for v in r] for r in convolved(rows, matrix(w[f"{name}_conv1d.weight"], len(w[f"{name}_conv1d.weight"]) // len(rows[0])))]


def gsa(w, xs, heads, kv_heads, phi, normalizer):
    """The layer of arXiv 2409.07146 on the rows xs; phi: of one head's row; relu(Lx) where there is an L."""
    q, k, v, f = (projected(w, xs, name) for name in "qkvf")
    if "feature_map.layer.weight" in w:
        L = matrix(w["feature_map.layer.weight"], len(q[0]) // heads)
        phi = lambda row: [max(a, 0.0) for a in times(L, row)]
    decays = [[sigmoid(a) ** (1 / normalizer) for a in row] for row in f]
    each = []
    for h in range(heads):
        of = lambda rows: head_of(rows, h * kv_heads // heads, kv_heads)
        a = of(decays)
        each.append(slots_attention(a, [[1 - b for b in row] for row in a], [phi(r) for r in head_of(q, h, heads)], [phi(r) for r in of(k)],
                                    [[silu(b) for b in row] for row in of(v)], 1.0))
    out = [[silu(a) for head in each for a in head[t]] for t in range(len(xs))]
    return [times(matrix(w["o_proj.weight"], len(o)), [a * b for a, b in zip(rms(o), w["g_norm.weight"])]) for o in out]


def rotated(row, t, base=10000):
    half = len(row) // 2
    turns = [t * base ** (-i / half) for i in range(half)]
    return [a * math.cos(x) - b * math.sin(x) for a, b, x in zip(row, row[half:], turns)] + \
        [a * math.sin(x) + b * math.cos(x) for a, b, x in zip(row, row[half:], turns)]


def abc(w, xs, heads, rope, low, high):
    """Attention with bounded memory (arXiv 2110.02488) with a softmax over time for each slot, carried as it is: decays z_{t-1} / z_t."""
    q, k, v, s, g = (projected(w, xs, name) for name in "qkvsg")
    each = []
    for h in range(heads):
        qh, kh, decays, writes, z = head_of(q, h, heads), head_of(k, h, heads), [], [], [0.0] * (len(s[0]) // heads)
        if rope:
            qh, kh = [rotated(r, t) for t, r in enumerate(qh)], [rotated(r, t) for t, r in enumerate(kh)]
        for row in head_of(s, h, heads):
            e = [math.exp(min(max(a, low), high)) for a in row]
            decays.append([a / (a + b) for a, b in zip(z, e)])
            z = [a + b for a, b in zip(z, e)]
            writes.append([b / a for a, b in zip(z, e)])
        each.append(slots_attention(decays, writes, qh, kh, head_of(v, h, heads), len(qh[0]) ** -0.5))
    out = [[a * b * silu(c) for head, gate in zip(each, (head_of(g, h, heads) for h in range(heads)))
            for a, b, c in zip(rms(head[t], 1e-6), w["g_norm.weight"], gate[t])] for t in range(len(xs))]
    return [times(matrix(w["o_proj.weight"], len(o)), o) for o in out]


def part(w, layer, which):
    """The tensors of a layer's mixer, or its norm, by their own names."""
    of = {name.split(f"layers.{layer}.")[1]: v for name, v in w.items() if f"layers.{layer}." in name}
    if which == "norm":
        return of["attn_norm.weight"] if "attn_norm.weight" in of else of["norm.weight"]
    return {name.split(".", 1)[1]: v for name, v in of.items() if name.startswith(("attn.", "mixer."))}


def held_to(folder, mixer, sizes, layers, eps, formula):
    """A model of `layers` layers of the mixer and nothing else, after some steps: its logits are those of formula(tensors of the mixer, rows, layer,
    all tensors)."""
    text, model, ids = folder / "text", folder / f"{mixer}-{len(list(folder.iterdir()))}", list(b"linnets, sing!")
    text.write_text("the linnets sing " * 40)
    write_safetensors(folder / "ids", {"input_ids": ("I64", [1, len(ids)], struct.pack(f"<{len(ids)}q", *ids))})
    sizes = dict(sizes, hidden_size=WIDTH, num_hidden_layers=layers, mlp="none")
    linnet("train", text, "--out", model, "--mixer", mixer, *sum((["--set", f"{k}={v}"] for k, v in sizes.items()), []), "--steps", "30", "--batch", "2",
           "--length", "16", "--learning-rate", "0.05")
    w = {name: floats(tensor) for name, tensor in read_safetensors(model / "model.safetensors").items()}
    of = lambda end: next(v for name, v in w.items() if name.endswith(end))
    weighted = lambda v, n: [a * b for a, b in zip(rms(v, eps), n)]
    xs = [matrix(of("embeddings.weight"), WIDTH)[i] for i in ids]
    for layer in range(layers):
        ys = formula(part(w, layer, "mixer"), [weighted(x, part(w, layer, "norm")) for x in xs], layer, w)
        xs = [[a + b for a, b in zip(x, y)] for x, y in zip(xs, ys)]
    last = next(v for name, v in w.items() if "layers" not in name and "norm" in name)
    want = sum((times(matrix(of("lm_head.weight"), WIDTH), weighted(x, last)) for x in xs), [])
    for more in ([], ["--step"]):
        linnet("logits", model, folder / "ids", folder / "out", *more)
        got = floats(read_safetensors(folder / "out")["logits"])
        error = math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))
        assert error < 1e-5, (mixer, sizes, more, error)


@case("hgrn with bounds that rise from layer to layer, and wide with convolutions and without, is the paper's formula, token by token")
def hgrn_options(folder):
    held_to(folder, "hgrn", {}, 3, 1e-6, lambda w, xs, layer, all_: hgrn(w, xs, bounds_of(all_, 3)[layer] if layer else None))
    held_to(folder, "hgrn", dict(use_lower_bound="false", expand_ratio=1.5, use_short_conv="true", conv_size=3), 1, 1e-6,
            lambda w, xs, layer, all_: hgrn(w, xs, None))


@case("gsa with grouped heads, each feature map and convolutions, and abc with positions and without are the papers' formulas, token by token")
def slots(folder):
    maps = {"swish": lambda r: [silu(a) for a in r], "relu": lambda r: [max(a, 0.0) for a in r], "t2r": None}
    for name, phi in maps.items():
        sizes = dict(num_heads=4, num_kv_heads=2, num_slots=3, feature_map=name, expand_k=1.5, gate_logit_normalizer=2)
        held_to(folder, "gsa", dict(sizes, use_short_conv=str(name == "relu").lower(), conv_size=3), 2, 1e-6,
                lambda w, xs, layer, all_: gsa(w, xs, 4, 2, phi, 2))
    for rope in (True, False):
        sizes = dict(num_heads=2, num_slots=3, expand_k=1, use_rope=str(rope).lower(), use_short_conv=str(not rope).lower(), clamp_min=-0.3, clamp_max=0.5)
        held_to(folder, "abc", sizes, 2, 1e-6, lambda w, xs, layer, all_: abc(w, xs, 2, rope, -0.3, 0.5))


@case("mamba with biases of all and of none is the paper's formula, token by token")
def mamba_options(folder):
    for biases in ("true", "false"):
        held_to(folder, "mamba", dict(state_size=3, dt_rank=2, conv_kernel=3, use_bias=biases, use_conv_bias=biases), 2, 1e-5,
                lambda w, xs, layer, all_: mamba(w, xs, 2 * WIDTH, 3))


@case("mamba2 with groups, biases, and each order of norm and gate is the paper's formula, token by token")
def mamba2_options(folder):
    text = folder / "text"
    text.write_text("the linnets sing " * 40)
    ids = list(b"linnets, sing!")
    write_safetensors(folder / "ids", {"input_ids": ("I64", [1, len(ids)], struct.pack(f"<{len(ids)}q", *ids))})
    for before, rmsnorm in ((False, True), (True, True), (False, False)):
        model = folder / f"model-{before}-{rmsnorm}"
        sizes = dict(hidden_size=WIDTH, num_hidden_layers=1, num_heads=HEADS, head_dim=HEAD, state_size=STATE, n_groups=GROUPS, conv_kernel=TAPS,
                     use_bias="true", norm_before_gate=str(before).lower(), rmsnorm=str(rmsnorm).lower(), mlp="none")
        linnet("train", text, "--out", model, "--mixer", "mamba2", *sum((["--set", f"{k}={v}"] for k, v in sizes.items()), []), "--steps", "30", "--batch",
               "2", "--length", "16", "--learning-rate", "0.05")
        w = {name: floats(tensor) for name, tensor in read_safetensors(model / "model.safetensors").items()}
        prefix = next(name for name in w if name.endswith("in_proj.weight")).removesuffix("in_proj.weight")
        layer = {name.removeprefix(prefix): v for name, v in w.items() if name.startswith(prefix)}
        of = lambda end: next(v for name, v in w.items() if name.endswith(end))
        embeddings = matrix(of("embeddings.weight"), WIDTH)
        first = next(v for name, v in w.items() if "layers.0" in name and name.endswith(("attn_norm.weight", ".0.norm.weight")))
        last = next(v for name, v in w.items() if "layers" not in name and "norm" in name)
        weighted = lambda v, n: [a * b for a, b in zip(rms(v), n)]
        xs = [embeddings[i] for i in ids]
        ys = mamba2(layer, [weighted(x, first) for x in xs], before, rmsnorm)
        head = matrix(of("lm_head.weight"), WIDTH)
        want = sum((times(head, weighted([a + b for a, b in zip(x, y)], last)) for x, y in zip(xs, ys)), [])
        for more in ([], ["--step"]):
            linnet("logits", model, folder / "ids", folder / "out", *more)
            got = floats(read_safetensors(folder / "out")["logits"])
            error = math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))
            assert error < 1e-5, (before, rmsnorm, more, error)
