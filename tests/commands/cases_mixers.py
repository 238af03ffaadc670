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
