"""A model in several files: written by convert and at the end of train, read, and refused by one message that names tensor, file,
what was found and what was expected."""
import json
import math
import random
import shutil
import struct

from cases_models import SMALL, model, text_file, weights
from harness import case, f32, files_below, linnet, read_safetensors, refused, write_safetensors

INDEX = "model.safetensors.index.json"


def in_shards(folder, size="20KB"):
    """The small model in files of 20 kB."""
    said = json.loads(linnet("convert", model(), folder / "m", "--to", "fla", "--shard-size", size, "--json").out)
    assert said["parameters"] == json.loads(linnet("inspect", model(), "--json").out)["parameters"]
    return folder / "m"


def index_of(m):
    return json.loads((m / INDEX).read_text())["weight_map"]


def write_index(m, files, **more):
    (m / INDEX).write_text(json.dumps({"weight_map": files, **more}))


def refused_everywhere(m, says):
    refused("inspect", m, says=says)
    refused("generate", m, "--prompt", "a", "--tokens", "1", says=says)
    refused("eval", m, text_file(), "--max-tokens", "32", says=says)
    refused("convert", m, m.parent / "out", "--to", "linnet", says=says)
    assert not (m.parent / "out").exists()


def changed(path, name, dtype, shape, body):
    write_safetensors(path, {**read_safetensors(path), name: (dtype, shape, body)})


@case("train --shard-size leaves several files and an index, the same tensors, and goes on bit for bit; 0 leaves one file")
def trained(folder):
    whole, cut = read_safetensors(model() / "model.safetensors"), folder / "cut"
    linnet("train", text_file(), "--out", cut, *SMALL, "--shard-size", "20KB")
    files = index_of(cut)
    assert set(files) == set(whole) and len(set(files.values())) > 3 and not (cut / "model.safetensors").exists(), files
    for name in set(files.values()):
        part = read_safetensors(cut / name)
        assert len(part) == 1 or sum(len(t[2]) for t in part.values()) <= 20000, name
        assert part == {n: whole[n] for n, file in files.items() if file == name}
    asked = ["--prompt", "int ", "--tokens", "20", "--greedy"]
    assert linnet("generate", cut, *asked).out == linnet("generate", model(), *asked).out
    shutil.copytree(model(), folder / "one")
    for out in ("cut", "one"):
        linnet("train", text_file(), "--out", folder / out, "--resume", "--steps", "30")
    whole = read_safetensors(folder / "one" / "model.safetensors")
    assert set(index_of(cut)) == set(whole) and not (cut / "model.safetensors").exists()
    assert {n: read_safetensors(cut / f)[n] for n, f in index_of(cut).items()} == whole
    linnet("train", text_file(), "--out", folder / "zero", *SMALL, "--shard-size", "0")
    assert weights(folder / "zero") == weights(model()) and not (folder / "zero" / INDEX).exists()


@case("train --shard-size: a run that is stopped has one file, which stands before what an end left; a folder of shards is no place for a new run")
def stopped(folder):
    cut = folder / "cut"
    linnet("train", text_file(), "--out", cut, *SMALL, "--shard-size", "20KB")
    linnet("train", text_file(), "--out", folder / "more", "--init", cut, "--batch", "2", "--length", "32", "--steps", "2", "--warmup", "1")
    assert (folder / "more" / "model.safetensors").exists()
    m = in_shards(folder)
    before = files_below(m)
    refused("train", text_file(), "--out", m, *SMALL, says=["already holds a model"])
    assert files_below(m) == before
    refused("train", text_file(), "--out", folder / "none", *SMALL, "--shard-size", "5 potatoes", says=["--shard-size", "5 potatoes", "5GB"])
    refused("train", text_file(), "--out", cut, "--resume", "--shard-size", "30KB", says=["30000", "20000"])


@case("tensors of 8-bit floats are refused by name, in one file and in shards")
def eight_bits(folder):
    m = in_shards(folder)
    name = next(n for n in index_of(m) if n.endswith("o_proj.weight"))
    path = m / index_of(m)[name]
    _, shape, body = read_safetensors(path)[name]
    for dtype in ("F8_E4M3", "F8_E5M2"):
        changed(path, name, dtype, shape, body[:len(body) // 4])
        refused_everywhere(m, [name, path.name, dtype, "expected F32"])
    whole = folder / "whole"
    shutil.copytree(model(), whole)
    changed(whole / "model.safetensors", name, "F8_E4M3", shape, body[:len(body) // 4])
    refused_everywhere(whole, [name, "model.safetensors", "F8_E4M3", "expected F32"])


@case("a shard that is cut off is refused, wherever: file, bytes found and expected; one that is missing by file and tensor")
def cut_off(folder):
    m = in_shards(folder)
    path = m / sorted(set(index_of(m).values()))[1]
    raw = path.read_bytes()
    size = 8 + struct.unpack("<Q", raw[:8])[0]
    ends = {e["data_offsets"][1]: name for name, e in json.loads(raw[8:size]).items() if name != "__metadata__"}
    for cut in (0, 5):
        path.write_bytes(raw[:cut])
        refused_everywhere(m, [path.name, f"{cut} bytes, expected at least 8"])
    path.write_bytes(raw[:40])
    refused_everywhere(m, [path.name, f"ends at byte {size}", "holds 40"])
    for cut in (size, len(raw) - 1):  # counted from behind the header
        path.write_bytes(raw[:cut])
        done = refused("inspect", m, says=[path.name, f"holds {cut - size}"])
        assert any(name in done.err and f"ends at byte {end}" in done.err for end, name in ends.items()), done.err
        refused_everywhere(m, [path.name, f"holds {cut - size}"])
    path.unlink()
    named = [n for n, f in index_of(m).items() if f == path.name]
    done = refused("inspect", m, says=[path.name, "missing", INDEX])
    assert any(n in done.err for n in named), done.err
    refused_everywhere(m, [path.name, "missing"])


@case("an index that lies is refused: another file's tensor, one that no file has, one that it leaves out, a way out of the folder, no index at all")
def lies(folder):
    m = in_shards(folder)
    files = index_of(m)
    among, alone = ({n for n, f in files.items() if (list(files.values()).count(f) > 1) == several} for several in (True, False))
    name = min(among)
    other = next(f for f in files.values() if f != files[name])
    write_index(m, {**files, name: other})
    refused_everywhere(m, [name, other, "where the index says it lies"])
    write_index(m, {**files, "model.none.weight": other})
    refused_everywhere(m, ["model.none.weight", other])
    write_index(m, {n: f for n, f in files.items() if n != name})
    refused_everywhere(m, [name, files[name], "does not name it"])
    write_index(m, {n: f for n, f in files.items() if n != min(alone)})  # whose file is then nobody's
    refused_everywhere(m, [min(alone), "is missing", INDEX])
    for way in ("../m/" + other, "/etc/passwd", "", ".", 3):
        write_index(m, {**files, name: way})
        refused_everywhere(m, [name, INDEX])
    for text in ("", "[]", "{}", '{"weight_map": 3}', "{" * 5000):
        (m / INDEX).write_text(text)
        refused_everywhere(m, [INDEX])
    write_index(m, files, metadata={"total_size": 7})  # which says nothing about the model
    assert linnet("generate", m, "--prompt", "a", "--tokens", "4", "--greedy").out == \
        linnet("generate", model(), "--prompt", "a", "--tokens", "4", "--greedy").out


@case("in shards a tensor of another shape, of another length, missing or of nobody is refused: tensor, file, found, expected")
def shapes(folder):
    m = in_shards(folder)
    files = index_of(m)
    name = next(n for n in files if n.endswith("q_proj.weight"))
    path = m / files[name]
    good = path.read_bytes()
    dtype, shape, body = read_safetensors(path)[name]
    changed(path, name, dtype, [shape[0] // 2, shape[1]], body[:len(body) // 2])
    refused_everywhere(m, [name, path.name, f"[{shape[0] // 2},{shape[1]}]", f"[{shape[0]},{shape[1]}]"])
    changed(path, name, dtype, [shape[0], shape[1] // 2, 2], body)
    refused_everywhere(m, [name, path.name, f"[{shape[0]},{shape[1] // 2},2]", f"[{shape[0]},{shape[1]}]"])
    size = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8:8 + size])
    header[name]["shape"] = [shape[0] + 1, shape[1]]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + good[8 + size:])
    refused_everywhere(m, [name, path.name])
    write_safetensors(path, {n: t for n, t in read_safetensors(model() / "model.safetensors").items() if files[n] == path.name and n != name})
    write_index(m, {n: f for n, f in files.items() if n != name})
    refused_everywhere(m, [name])
    path.write_bytes(good)
    changed(path, "model.more.weight", "F32", [1], b"\0\0\0\0")
    write_index(m, {**files, "model.more.weight": path.name})
    refused_everywhere(m, ["model.more.weight"])


def olmo_hybrid(folder, width=16, heads=2, key=4, value=16, inner=24):
    """A folder of one layer as Transformers has it, of random numbers."""
    draw = random.Random(5)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "olmo_hybrid", "architectures": ["OlmoHybridForCausalLM"], "vocab_size": 64, "hidden_size": width, "intermediate_size": inner,
        "num_hidden_layers": 1, "layer_types": ["linear_attention"], "num_attention_heads": heads, "linear_num_key_heads": heads,
        "linear_num_value_heads": heads, "linear_key_head_dim": key, "linear_value_head_dim": value, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None}))
    k, v = heads * key, heads * value
    layer = {"attention_layer_norm": [width], "feedforward_layer_norm": [width], "linear_attn.a_proj": [heads, width], "linear_attn.b_proj": [heads, width],
             "linear_attn.q_proj": [k, width], "linear_attn.k_proj": [k, width], "linear_attn.v_proj": [v, width], "linear_attn.g_proj": [v, width],
             "linear_attn.o_norm": [value], "linear_attn.o_proj": [width, v], "linear_attn.q_conv1d": [k, 1, 4], "linear_attn.k_conv1d": [k, 1, 4],
             "linear_attn.v_conv1d": [v, 1, 4], "mlp.down_proj": [width, inner], "mlp.gate_proj": [inner, width], "mlp.up_proj": [inner, width]}
    shapes = {f"model.layers.0.{n}.weight": x for n, x in layer.items()}
    shapes.update({f"model.layers.0.linear_attn.{n}": [heads] for n in ("A_log", "dt_bias")})
    shapes.update({"lm_head.weight": [64, width], "model.embed_tokens.weight": [64, width], "model.norm.weight": [width]})
    tensors = {n: ("F32", x, f32(draw.uniform(-0.5, 0.5) for _ in range(math.prod(x)))) for n, x in sorted(shapes.items())}
    write_safetensors(folder / "model.safetensors", tensors)
    return tensors


@case("convolutions that Transformers cut into equal parts, where keys and values differ in width, are read as the rows that they are, and written apart")
def equal_parts(folder):
    tensors = olmo_hybrid(folder / "whole")
    shutil.copytree(folder / "whole", folder / "cut")
    names = [f"model.layers.0.linear_attn.{x}_conv1d.weight" for x in "qkv"]
    rows = b"".join(tensors[n][2] for n in names)
    third = len(rows) // 3
    for i, n in enumerate(names):
        tensors[n] = ("F32", [third // 16, 1, 4], rows[i * third:(i + 1) * third])
    write_safetensors(folder / "cut/model.safetensors", tensors)
    write_safetensors(folder / "ids.safetensors", {"input_ids": ("I32", [1, 20], struct.pack("<20i", *range(40, 60)))})
    for part in ("whole", "cut"):
        linnet("logits", folder / part, folder / "ids.safetensors", folder / f"{part}.safetensors")
    assert (folder / "whole.safetensors").read_bytes() == (folder / "cut.safetensors").read_bytes()
    linnet("convert", folder / "cut", folder / "back", "--to", "transformers")
    assert read_safetensors(folder / "back/model.safetensors") == read_safetensors(folder / "whole/model.safetensors")
    tensors[names[2]] = ("F32", [third // 16 - 1, 1, 4], tensors[names[2]][2][:-16])
    write_safetensors(folder / "cut/model.safetensors", tensors)
    refused("inspect", folder / "cut", says=["_conv1d.weight", "has shape", "expected"])
