"""Files that are wrong, disks that are full: one clear message, exit code 2, nothing lost."""
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess

import harness
from cases_models import SMALL, model, resumed_equals, text_file, wait_for_step
from harness import Skip, case, files_below, linnet, read_safetensors, refused, start, write_safetensors


def copy_of_model(folder):
    out = folder / "m"
    shutil.copytree(model(), out)
    return out


def refused_everywhere(m, says=()):
    """By every command that loads a model."""
    refused("inspect", m, says=says)
    refused("generate", m, "--prompt", "a", "--tokens", "1", says=says)


@case("a truncated model.safetensors is refused, wherever it was cut")
def truncated(folder):
    m = copy_of_model(folder)
    raw = (m / "model.safetensors").read_bytes()
    for size in (0, 3, 8, 9, 200, len(raw) // 2, len(raw) - 1):
        (m / "model.safetensors").write_bytes(raw[:size])
        refused("inspect", m, says=["model.safetensors"])
    refused("eval", m, text_file(), says=["model.safetensors"])


@case("a hostile safetensors header is refused: length, JSON, offsets that overlap, leave the file or lie about the size")
def hostile(folder):
    m = copy_of_model(folder)
    path = m / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, body = json.loads(raw[8:8 + size]), raw[8 + size:]
    first, second = [n for n in header if n != "__metadata__"][:2]

    def write(change):
        changed = json.loads(json.dumps(header))
        change(changed)
        text = json.dumps(changed).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)

    for length in (2**64 - 1, 2**63, 10**12, len(raw), 0, 1):
        path.write_bytes(struct.pack("<Q", length) + raw[8:])
        refused("inspect", m)
    for text in (b"[]", b"{", b'{"a": 3}', b"\xff\xfe{}", b"{" * 5000, b'{"a":{"dtype":"F32","shape":[1e3],"data_offsets":[0,4]}}'):
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
        refused("inspect", m)
    write(lambda h: h[first].update(data_offsets=h[second]["data_offsets"]))
    refused("inspect", m)
    write(lambda h: h[first].update(data_offsets=[0, 2**62]))
    refused("inspect", m)
    write(lambda h: h[first].update(data_offsets=[-8, 8]))
    refused("inspect", m)
    write(lambda h: h[first].update(shape=[2**40, 2**40]))
    refused("inspect", m)
    write(lambda h: h[first].update(dtype="F99"))
    refused("inspect", m, says=["F99"])


@case("a missing tensor and a wrong shape are named")
def tensors(folder):
    m = copy_of_model(folder)
    good = read_safetensors(m / "model.safetensors")
    name = next(n for n in good if n.endswith("q_proj.weight"))
    write_safetensors(m / "model.safetensors", {n: t for n, t in good.items() if n != name})
    refused_everywhere(m, says=[name])
    dtype, shape, body = good[name]
    write_safetensors(m / "model.safetensors", {**good, name: (dtype, [shape[0] // 2, shape[1]], body[:len(body) // 2])})
    refused_everywhere(m, says=[name, str(shape[0]), str(shape[0] // 2)])


@case("config.json: not JSON, no model type, an unknown type, sizes of another model, a key that changes the function")
def configuration(folder):
    m = copy_of_model(folder)
    good = json.loads((m / "config.json").read_text())

    def wrong(says, **change):
        (m / "config.json").write_text(json.dumps({k: v for k, v in {**good, **change}.items() if v is not Ellipsis}))
        refused_everywhere(m, says)

    for text in ("", "{", "[1, 2]", '{"model_type": 3}', "\0\0"):
        (m / "config.json").write_text(text)
        refused("inspect", m, says=["config.json"])
    wrong(["model_type"], model_type=...)
    wrong(["perceptron"], model_type="perceptron")
    wrong(["hidden_size"], hidden_size=-4)
    wrong(["hidden_size"], hidden_size="wide")
    wrong([], hidden_size=64)
    wrong([], num_hidden_layers=10**9)
    wrong(["num_heads"], num_heads=0)
    wrong(["use_flux_capacitor"], use_flux_capacitor=True)
    (m / "config.json").unlink()
    refused("inspect", m, says=["config.json"])
    refused("inspect", folder / "nothing-here", says=["nothing-here"])


@case("empty and too short texts, absent and unreadable files are refused by name, and no folder is left behind")
def texts(folder):
    out = folder / "out"
    (folder / "empty.txt").write_text("")
    (folder / "short.txt").write_text("ab")
    (folder / "empty").mkdir()
    refused("train", folder / "empty.txt", "--out", out, *SMALL, says=["empty"])
    refused("train", folder / "empty", "--out", out, *SMALL, says=["empty"])
    refused("train", folder / "short.txt", "--out", out, *SMALL)
    refused("train", folder / "absent.txt", "--out", out, *SMALL, says=["absent.txt"])
    refused("train", "/proc/self/mem", "--out", out, *SMALL, says=["/proc/self/mem"])  # opens, but cannot be read, even by root
    assert not out.exists() or not files_below(out)
    refused("eval", model(), folder / "empty.txt", says=["empty"])
    refused("eval", model(), folder / "absent.txt", says=["absent.txt"])
    refused("generate", model(), "--prompt-file", folder / "absent.txt", says=["prompt", "absent.txt", "No such file"])
    refused("tokenize", "bytes", folder / "absent.txt", says=["input", "absent.txt", "No such file"])
    refused("tokenize", "bytes", folder / "empty", says=["input", f'"{folder}/empty"', "directory"])


@case("held-out text that gives nothing to predict is refused, and of a text too small for the usual share nothing is held out")
def held_out(folder):
    out, one, ten = folder / "out", folder / "one.txt", folder / "ten.txt"
    one.write_text("x")
    ten.write_text("ten bytes.")
    refused("train", text_file(), "--out", out, *SMALL, "--held-out", one, says=["one.txt", "gives 1 token, expected at least 2"])
    refused("eval", model(), one, says=["gives 1 token, expected at least 2"])
    refused("train", text_file(), "--out", out, *SMALL, "--held-out-share", "1e-9", says=["1e-09", "gives 0 tokens"])
    refused("train", ten, "--out", out, *SMALL, "--length", 4, "--held-out-share", "0.15", says=["0.15", "gives 1 token of 10"])
    assert not out.exists()
    for name, share in (("usual", []), ("none", ["--held-out-share", 0]), ("two", ["--held-out-share", 0.2])):
        done = linnet("train", ten, "--out", folder / name, *SMALL, "--length", 4, *share, "--json")
        assert ("eval_loss" in done.out) == (name == "two"), done.out


@case("a file without read permission is refused by name")
def permission(folder):
    if os.geteuid() == 0:
        raise Skip("root may read everything")
    (folder / "secret.txt").write_text("words " * 1000)
    (folder / "secret.txt").chmod(0)
    refused("train", folder / "secret.txt", "--out", folder / "out", *SMALL, says=["secret.txt"])


@case("a tokenizer of another vocabulary is refused, and a broken tokenizer.json is named")
def tokenizer(folder):
    out = folder / "bpe"
    linnet("train", text_file(), "--out", out, *SMALL, "--train-tokenizer", "300")
    refused("eval", model(), text_file(), "--tokenizer", out / "tokenizer.json", says=["300", "256"])
    refused("generate", model(), "--prompt", "a", "--tokenizer", out, says=["300", "256"])
    good = (out / "tokenizer.json").read_text()
    for text in ("", "{", "[]", '{"model": {"type": "WordPiece"}}', good[:len(good) // 2]):
        (out / "tokenizer.json").write_text(text)
        refused("eval", out, text_file(), says=["tokenizer.json"])


@case("a full disk: train, logits and op say so, what was there stays, nothing half-written is left")
def full_disk(folder):
    out = folder / "m"
    p = start("train", text_file(), "--out", out, *SMALL, "--json")
    wait_for_step(p, 7)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    before = files_below(out)
    # no file may grow past 10 kB: as on a full disk, writes fail in the middle
    refused("train", text_file(), "--out", folder / "fresh", *SMALL, file_limit=10000)
    assert not [n for n in files_below(folder / "fresh") if n.endswith((".safetensors", ".tmp"))] if (folder / "fresh").exists() else True
    refused("train", text_file(), "--out", out, *SMALL, "--resume", file_limit=10000)
    after = files_below(out)
    assert {n: b for n, b in after.items() if n != "log.jsonl"} == {n: b for n, b in before.items() if n != "log.jsonl"}, sorted(after)
    resumed_equals(out)
    write_safetensors(folder / "ids.safetensors", {"input_ids": ("I64", (1, 40), struct.pack("<40q", *range(40)))})
    refused("logits", out, folder / "ids.safetensors", folder / "logits.safetensors", file_limit=10000, says=["logits.safetensors"])
    left = {p.name for p in folder.iterdir()}
    assert left <= {"m", "fresh", "ids.safetensors"}, left
    with open("/dev/full", "w") as full:
        done = subprocess.run([harness.LINNET, "mixers"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "No space left" in done.stderr, done.stderr
    for k, more in enumerate(([], ["--json"])):  # the disk that was full at the first step is named after the last
        with open("/dev/full", "w") as full:
            done = subprocess.run([harness.LINNET, "train", text_file(), "--out", folder / f"said{k}", *SMALL, *more], stdout=full, stderr=subprocess.PIPE,
                                  text=True)
        assert done.returncode == 2 and "standard output: No space left" in done.stderr, done.stderr


@case("what is written is nothing that is read: an input, a file of the model or of a folder of texts, the other output; an older output may be")
def outputs_are_no_inputs(folder):
    m = copy_of_model(folder)
    ids, held, texts = folder / "ids.safetensors", folder / "held.txt", folder / "texts" / "in"
    write_safetensors(ids, {"input_ids": ("I64", (1, 40), struct.pack("<40q", *range(40)))})
    held.write_text("To be, or not to be. " * 20)
    texts.mkdir(parents=True)
    (texts / "a.csv").write_text(held.read_text())
    os.link(held, folder / "link.txt")
    os.symlink("m/config.json", folder / "soft.json")
    before = files_below(folder)

    def keeps(*args, says):
        refused(*args, says=["the output", *says], cwd=folder)
        assert files_below(folder) == before, args

    for other in ("ids.safetensors", "./ids.safetensors", "m/../ids.safetensors", ids):
        keeps("op", "gla", "ids.safetensors", other, says=["ids.safetensors", "is the input"])
        keeps("logits", "m", other, "ids.safetensors", says=["ids.safetensors", "is the input"])
    keeps("logits", "m", ids, "m/model.safetensors", says=["m/model.safetensors", "of the model"])
    score = ["eval", "m", "held.txt", "--length", 64]
    for flag in ("--csv", "--plot"):
        keeps(*score, flag, "./held.txt", says=["./held.txt", '"held.txt"'])
        keeps(*score, flag, "link.txt", says=["link.txt", '"held.txt"'])
        for file in ("m/config.json", "soft.json", "m/page.svg", "m/log.jsonl", folder / "m" / "model.safetensors"):
            keeps(*score, flag, file, says=[str(file), 'of the model "m"'])
        keeps("eval", "m", "texts", flag, "texts/in/a.csv", says=["texts/in/a.csv", '"texts", which is read'])
        keeps(*score, "--tokenizer", "soft.json", flag, "soft.json", says=['"soft.json"', "is the input"])
    for one, two in (("new", "./new"), ("m/new", "m/./new"), ("texts/../new", folder / "new")):
        keeps(*score, "--csv", one, "--plot", two, says=[one, str(two), "are one file"])
    keeps("bench", "train", "--config", "m/config.json", "--record", "soft.json", says=["soft.json", "m/config.json"])
    for _ in range(2):  # the second time over older ones
        linnet(*score, "--csv", "m/loss.csv", "--plot", "loss.svg", cwd=folder)
        linnet("logits", "m", ids, "logits.safetensors", cwd=folder)


@case("a model that does not fit is refused with a size that people read, and what takes less")
def no_memory(folder):
    def little():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    words = [harness.LINNET, "train", text_file(), "--out", folder / "m", "--preset", "nano", "--batch", "100000", "--length", "64"]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=little)
    assert done.returncode == 2 and re.search(r"out of memory: \d+(\.\d+)? GiB could not be had\n  A smaller batch", done.stderr), done.stderr
