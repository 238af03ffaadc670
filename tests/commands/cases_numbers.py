"""What is no number, what is no text, and what was asked for last: NaN, eval, generate, inspect."""
import json
import math
import os
import random
import signal
import subprocess
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import harness
from harness import Skip, case, f32, files_below, floats, linnet, read_safetensors, refused, start, write_safetensors

NAN = float("nan")


# ---- operators -----------------------------------------------------------------------------------------------------------------

T, HQ, HV, K, V = 75, 1, 2, 8, 6  # two chunks of 64, the second a short one
MIDDLE = 40
SHAPES = {"q": (HQ, K), "k": (HQ, K), "v": (HV, V), "g": (HV,), "beta": (HV,)}
# operator -> its inputs of a shape [T, ...]
OPERATORS = {"linear_attn": "q k v", "simple_gla": "q k v g", "delta_rule": "q k v beta", "gated_delta_rule": "q k v g beta",
             "mesa": "q k v g beta", "attention": "q k v"}
# Where a NaN (or an infinity) may reach earlier tokens: of its own chunk, in the chunk form (README.md of the cores).
REACHES_BACK = {"linear_attn", "simple_gla", "delta_rule", "gated_delta_rule"}
CHUNK = 64


def inputs_of(op):
    r = random.Random(3)
    tensors = {}
    for name in OPERATORS[op].split():
        shape = (1, T, HV, K) if op == "attention" and name == "q" else (1, T, HQ, V) if op == "attention" and name == "v" else (1, T, *SHAPES[name])
        draw = {"g": lambda: -0.1 * r.random(), "beta": r.random}.get(name, lambda: r.gauss(0, 0.3))
        tensors[name] = ("F32", shape, f32(draw() for _ in range(math.prod(shape))))
    if op == "mesa":
        tensors["lambda"] = ("F32", (HV, K), f32([0.5] * (HV * K)))
    tensors["do"] = ("F32", (1, T, HV, V), f32(r.gauss(0, 1) for _ in range(T * HV * V)))
    return tensors


def spoiled(tensors, name, token):
    """The same with every number of one token of one input NaN."""
    dtype, shape, body = tensors[name]
    row = len(body) // T
    return {**tensors, name: (dtype, shape, body[:token * row] + f32([NAN] * (row // 4)) + body[(token + 1) * row:])}


def tokens_with_nan(tensor):
    values = floats(tensor)
    row = len(values) // T
    return {t for t in range(T) if any(math.isnan(x) for x in values[t * row:(t + 1) * row])}


def all_nan(tensor, token):
    values = floats(tensor)
    row = len(values) // T
    return all(math.isnan(x) for x in values[token * row:(token + 1) * row])


def see_nan(folder, op, flags, env=None):
    tensors = inputs_of(op)
    for name in OPERATORS[op].split():
        if name in ("g", "beta"):
            continue  # refused in files; tests/test_finite.c has whole models in which they are NaN too
        for token in (0, MIDDLE):
            write_safetensors(folder / "in.safetensors", spoiled(tensors, name, token))
            linnet("op", op, folder / "in.safetensors", folder / "out.safetensors", "--backward", *flags, env=env)
            out = read_safetensors(folder / "out.safetensors")
            nan, where = tokens_with_nan(out["o"]), f"{op} {flags} {env or ''}: {name} of token {token}"
            expected = {token} if name == "q" else set(range(token, T))
            assert expected <= nan, f"{where}: {sorted(expected - nan)[:3]} are numbers"
            assert all(all_nan(out["o"], t) for t in expected), where
            chunk = "recurrent" not in flags and "f64" not in flags and op in REACHES_BACK
            allowed = set(range(token // CHUNK * CHUNK, T)) if chunk else expected
            assert nan <= allowed, f"{where}: reaches {sorted(nan - allowed)[:3]}"
            if name == "q":
                assert token in tokens_with_nan(out["dk"]) | tokens_with_nan(out["dv"]), f"{where}: gradients are numbers"
            else:
                assert token in tokens_with_nan(out["dq"]), f"{where}: gradients are numbers"


@case("NaN in any input of any operator comes out, forward and backward, in every form")
def op_nan(folder):
    for op in OPERATORS:
        for flags in (["--form", "chunk"], ["--form", "recurrent"], ["--dtype", "f64"]):
            see_nan(folder, op, flags)
    for solver in (0, 1, 2, 3):  # level, jacobi, plain, absolute
        for more in ([], ["--set", "cg_gradient=1"], ["--set", "cg_max_iter=3"]):
            see_nan(folder, "mesa", ["--form", "chunk", "--set", f"cg_solver={solver}", *more])
            see_nan(folder, "mesa", ["--form", "recurrent", "--set", f"cg_solver={solver}", *more])


@case("NaN in any input of any operator comes out of every CPU variant, in bfloat16 too")
def op_nan_variants(folder):
    ran = []
    for variant in ("base", "avx2", "avx512", "amx", "neon"):
        write_safetensors(folder / "in.safetensors", inputs_of("linear_attn"))
        tried = linnet("op", "linear_attn", folder / "in.safetensors", folder / "out.safetensors", code=None, env={"LINNET_CPU": variant})
        if "LINNET_CPU" in tried.err:  # not of this processor, or of no processor of this kind
            continue
        ran.append(variant)
        for op in OPERATORS:
            see_nan(folder, op, ["--form", "chunk"], {"LINNET_CPU": variant})
            see_nan(folder, op, ["--form", "chunk", "--dtype", "bf16"], {"LINNET_CPU": variant})
    assert "base" in ran and (len(ran) > 1 or os.uname().machine not in ("aarch64", "arm64")), ran


# ---- models --------------------------------------------------------------------------------------------------------------------

def small_model(folder, mixer="gated_deltanet", name="m"):
    text = folder / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 60)
    linnet("train", text, "--out", folder / name, "--mixer", mixer, "--layers", 2, "--width", 32, "--heads", 2, "--steps", 1, "--batch", 1, "--length", 32)
    return folder / name, text


def spoil_model(model, tensor, value=NAN):
    tensors = read_safetensors(model / "model.safetensors")
    dtype, shape, body = tensors[tensor]
    tensors[tensor] = (dtype, shape, f32([value]) + body[4:])
    write_safetensors(model / "model.safetensors", tensors, {"format": "pt"})


@case("a model that holds NaN ends generate and eval with one message, whatever is drawn how, and --check-finite says where it is")
def model_nan(folder):
    for mixer in ("gated_deltanet", "mesa_net", "attention"):
        model, text = small_model(folder, mixer, mixer)
        for how in (["--greedy"], ["--top-p", "0.9"], ["--top-k", 5], ["--top-k", 5, "--top-p", "0.5"], []):
            linnet("generate", model, "--tokens", 4, *how)
        spoil_model(model, "model.layers.1.attn.q_proj.weight")
        for how in (["--greedy"], ["--top-p", "0.9"], ["--top-k", 5], ["--top-k", 5, "--top-p", "0.5"], ["--json"], []):
            done = refused("generate", model, "--tokens", 4, *how, says=["token 1", "--check-finite"])
            assert not done.out.strip(), done.out
        refused("eval", model, text, "--length", 32, "--csv", folder / "loss.csv", says=["the loss of token 2 is ", "nan", "--check-finite"])
        assert not (folder / "loss.csv").exists()
        for args in (["generate", model, "--tokens", 4, "--prompt", "to be"], ["eval", model, text, "--length", 32]):
            refused(*args, "--check-finite", says=["layer 1", "linear", "model.layers.1.attn.q_proj.weight", "nan at element 0"])
    model, text = small_model(folder)
    spoil_model(model, "model.norm.weight", math.inf)
    refused("generate", model, "--tokens", 4, "--check-finite", says=["outside the layers", "model.norm.weight", "inf"])


@case("a sound model gives the same with --check-finite, for any number of threads")
def check_finite_same(folder):
    model, text = small_model(folder)
    texts = {linnet("generate", model, "--tokens", 40, *more).out for more in ([], ["--check-finite"], ["--threads", 1], ["--threads", 3])}
    assert len(texts) == 1, texts
    evals = [linnet("eval", model, text, "--length", 32, *more).out.splitlines()[:4] for more in ([], ["--check-finite"])]
    assert evals[0] == evals[1]


@case("generate --tokens 0 writes nothing, or the prompt")
def no_tokens(folder):
    model, _ = small_model(folder)
    assert linnet("generate", model, "--tokens", 0).out == "\n"
    assert linnet("generate", model, "--tokens", 0, "--prompt", "to be", "--echo").out == "to be\n"
    assert json.loads(linnet("generate", model, "--tokens", 0, "--json").out)["tokens"] == 0


@case("eval opens what it will write before it reads anything")
def eval_opens_first(folder):
    model, text = small_model(folder)
    for flag in ("--csv", "--plot"):
        refused("eval", model, folder / "absent.txt", flag, folder / "no" / "loss", says=["no/loss"])
    before = files_below(folder)
    refused("eval", model, folder / "absent.txt", "--csv", folder / "loss.csv", "--plot", folder / "loss.svg", says=["absent.txt"])
    assert files_below(folder) == before


@case("eval prints and writes what it has when it is stopped")
def eval_stopped(folder):
    model, text = small_model(folder)
    (folder / "long.txt").write_bytes(text.read_bytes() * 4000)
    child = start("eval", model, folder / "long.txt", "--length", 32, "--json", "--csv", folder / "loss.csv", "--plot", folder / "loss.svg")
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, (child.returncode, err)
    result = json.loads(out)
    assert 0 < result["tokens"] < 4000 * 2460, result
    assert abs(result["bits_per_byte"] - result["nats_per_token"] / math.log(2)) < 1e-6  # a token is a byte
    assert f"first {result['tokens']} tokens" in err, err
    assert len((folder / "loss.csv").read_text().splitlines()) == 33 and "</svg>" in (folder / "loss.svg").read_text()


@case("eval prints its result where a disk is full, and then says so")
def eval_disk_full(folder):
    model, text = small_model(folder)
    score = ["eval", model, text, "--length", 32, "--json"]
    result = json.loads(linnet(*score).out)
    for flag, file in (("--csv", "loss.csv"), ("--plot", "loss.svg")):
        done = refused(*score, flag, folder / file, file_limit=100, says=[file, "File too large"])
        assert json.loads(done.out)["nats_per_token"] == result["nats_per_token"], done.out
    assert sorted(p.name for p in folder.iterdir()) == ["m", "text.txt"]


@case("eval's memory and its curves are of the text, however long the windows may be")
def eval_length(folder):
    model, text = small_model(folder)
    (folder / "two.txt").write_text("ab")

    def score(length, *more):
        child = subprocess.Popen([harness.LINNET, "eval", model, *more, "--length", str(length), "--json", "--csv", folder / "loss.csv", "--plot",
                                  folder / "loss.svg"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        out = json.loads(child.stdout.read())
        child.stdout.close()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)  # waited for already
        assert child.returncode == 0
        labels = [int(e.text) for e in xml.parse(folder / "loss.svg").getroot().iter() if e.text and e.text.isdigit()]
        return out, len((folder / "loss.csv").read_text().splitlines()) - 1, used.ru_maxrss, max(labels, default=0)

    exact, rows, memory, last = score(1, folder / "two.txt")
    long, long_rows, long_memory, long_last = score(500000, folder / "two.txt")
    assert exact["tokens"] == long["tokens"] == rows == long_rows == 1 and exact["nats_per_token"] == long["nats_per_token"]
    assert long_memory < memory + 100000 and long_last == last, (memory, long_memory, last, long_last)  # KiB; it was 1.7 GB and more
    exact, rows, memory, last = score(99, text, "--max-tokens", "99")
    long, long_rows, long_memory, long_last = score(500000, text, "--max-tokens", "99")
    assert rows == long_rows == 99 and math.isclose(exact["nats_per_token"], long["nats_per_token"], rel_tol=1e-6)
    assert long_memory < memory + 100000 and long_last == last, (memory, long_memory, last, long_last)


# ---- texts ---------------------------------------------------------------------------------------------------------------------

@case("what is no text is refused by train and eval with what to do, alone and inside a folder")
def no_text(folder):
    import bz2
    import io
    import zipfile
    plain = b"to be or not to be, that is the question\n" * 100
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr("a.txt", plain)
    files = {"a.bz2": (bz2.compress(plain), "bzip2 -dk"), "a.lz4": (b"\x04\x22\x4d\x18" + bytes(range(1, 200)), "lz4 -dk"),
             "a.zip": (packed.getvalue(), "unzip"),
             "a.elf": (b"\x7fELF" + bytes(range(1, 200)), "Leave it out"), "a.pdf": (b"%PDF-1.7\n" + plain, "pdftotext"),
             "a.utf16": ("to be".encode("utf-16"), "iconv"), "a.bin": (plain + b"\0" + plain, f"byte {len(plain)} is 0")}
    model, text = small_model(folder)
    for name, (body, says) in files.items():
        mixed = folder / f"folder-{name}"
        mixed.mkdir()
        (mixed / name).write_bytes(body)
        (mixed / "good.txt").write_bytes(plain)
        for texts in (mixed / name, mixed):
            refused("train", texts, "--out", folder / "out", "--steps", 1, says=[name, says])
            refused("eval", model, texts, "--length", 32, says=[name, says])
        refused("train", mixed, "--out", folder / "out", "--steps", 1, "--train-tokenizer", 300, says=[name, says])
        refused("train", text, "--held-out", mixed / name, "--out", folder / "out", "--steps", 1, says=[name, says])
    assert not (folder / "out" / "config.json").exists()
    (folder / "latin1.txt").write_bytes("déjà vu\n".encode("latin-1") * 100)  # any text in one-byte characters is one
    linnet("eval", model, folder / "latin1.txt", "--length", 32)


@case("a held-out text that is in the training text is refused, and JSON lines are noted")
def held_out_apart(folder):
    small = ["--layers", 1, "--width", 32, "--heads", 2, "--steps", 1, "--batch", 1, "--length", 32]
    texts = folder / "texts"
    texts.mkdir()
    for name in "abc":
        (texts / f"{name}.txt").write_text(f"this is the text {name}\n" * 100)
    (folder / "copy.txt").write_bytes((texts / "b.txt").read_bytes())
    (folder / "other.txt").write_text("something else\n" * 100)
    for held in (texts, texts / "b.txt", folder / "copy.txt"):
        refused("train", texts, "--held-out", held, "--out", folder / "out", *small, says=["nothing is held out", held.name])
    assert not (folder / "out" / "config.json").exists()
    done = linnet("train", texts, "--held-out", folder / "other.txt", "--out", folder / "out", *small)
    assert "note:" not in done.err, done.err
    lines = folder / "data.jsonl"
    lines.write_text("".join(json.dumps({"text": f"line {i}", "id": i}) + "\n" for i in range(200)))
    done = linnet("train", lines, "--out", folder / "lines", *small)
    assert "note: " in done.err and "data.jsonl" in done.err and "--field text" in done.err, done.err
    assert "note: " in linnet("eval", folder / "lines", lines, "--length", 32).err
    (folder / "c.txt").write_text("{ int x; }\n{ int y; }\n" * 50)
    assert "note: " not in linnet("eval", folder / "lines", folder / "c.txt", "--length", 32).err


# ---- inspect -------------------------------------------------------------------------------------------------------------------

@case("inspect draws and reads no weights, and says what training takes")
def inspect_outline(folder):
    begin = time.monotonic()
    process = start("inspect", "--preset", "1.3b", "--batch", 2, "--length", 256)
    out = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)  # of this process: other cases' were larger
    process.returncode = os.waitstatus_to_exitcode(status)
    most = used.ru_maxrss * 1024
    assert process.returncode == 0 and time.monotonic() - begin < 20
    assert "training " in out and "with --recompute" in out, out
    model, _ = small_model(folder)
    whole = linnet("inspect", model).out
    (model / "model.safetensors").unlink()
    assert linnet("inspect", model).out == whole
    assert most < 1 << 30, most  # 1.3b has 5 GB of weights
    one, two = (linnet("inspect", model, "--batch", n).out for n in (1, 64))
    assert one != two
    refused("inspect", model, "--batch", 0, says=["--batch"])
    refused("inspect", model, "--batch", 1 << 24, "--length", 1 << 24, says=["batch"])
    lines = {l.split()[0]: l for l in linnet("inspect", model, "--parameters").out.splitlines() if l.startswith("model.")}
    assert "model.layers.1.attn.q_proj.weight" in lines
