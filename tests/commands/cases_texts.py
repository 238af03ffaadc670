"""Texts as people keep them: compressed, and as fields of JSON lines."""
import gzip
import hashlib
import json
import lzma
import struct

from harness import case, linnet, refused

SMALL = ["--layers", 1, "--width", 32, "--heads", 2, "--steps", 2, "--batch", 2, "--length", 32]
TEXT = "".join(f"to be or not to be, that is question {i}\n" for i in range(200)).encode()
UNPACKED_BY = {"gz": "zlib", "xz": "liblzma", "zst": "libzstd"}


def zstd(body):
    """A Zstandard frame of raw blocks (RFC 8878, section 3.1.1), window of 2 MiB."""
    blocks = [body[i:i + 100000] for i in range(0, len(body) or 1, 100000)]
    heads = [struct.pack("<I", len(b) << 3 | (i == len(blocks) - 1))[:3] for i, b in enumerate(blocks)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(h + b for h, b in zip(heads, blocks))


PACK = {"gz": lambda b: gzip.compress(b, mtime=0), "xz": lzma.compress, "zst": zstd}


def packings(folder):
    """The kinds that this build reads; of the others, it says what is not there."""
    found = {}
    for kind, pack in PACK.items():
        probe = folder / f"probe.{kind}"
        probe.write_bytes(pack(TEXT))
        if "was built without" in linnet("train", probe, "--out", folder / "probe", *SMALL, code=None).err:
            refused("train", probe, "--out", folder / "probe", *SMALL, says=[UNPACKED_BY[kind], f"probe.{kind}"])
        else:
            found[kind] = pack
    return found


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def numbers(model, *text):
    shown = json.loads(linnet("eval", model, *text, "--length", 32, "--json").out)
    shown.pop("tokens_per_second")
    return shown


@case("texts compressed by gzip, xz and Zstandard train and evaluate as what they hold, under any name and inside folders")
def packed(folder):
    plain = folder / "plain.txt"
    plain.write_bytes(TEXT)
    linnet("train", plain, "--out", folder / "plain", *SMALL)
    linnet("train", plain, "--out", folder / "plain-bpe", *SMALL, "--train-tokenizer", 280)
    for kind, pack in packings(folder).items():
        texts = folder / kind
        texts.mkdir()
        (texts / "some.name").write_bytes(pack(TEXT[:3000]) + pack(TEXT[3000:]))
        linnet("train", texts, "--out", folder / f"from-{kind}", *SMALL)
        assert sha(folder / f"from-{kind}/model.safetensors") == sha(folder / "plain/model.safetensors"), kind
        linnet("train", texts, "--out", folder / f"from-{kind}-bpe", *SMALL, "--train-tokenizer", 280)
        assert sha(folder / f"from-{kind}-bpe/tokenizer.json") == sha(folder / "plain-bpe/tokenizer.json"), kind
        assert numbers(folder / "plain", texts / "some.name") == numbers(folder / "plain", plain), kind


@case("texts whose packing is damaged, cut off or followed by something else are refused in one message and train nothing")
def damaged(folder):
    plain = folder / "plain.txt"
    plain.write_bytes(TEXT)
    linnet("train", plain, "--out", folder / "m", *SMALL)
    for kind, pack in packings(folder).items():
        whole = pack(TEXT)
        spoilt = bytearray(whole)
        spoilt[6 if kind == "zst" else len(whole) // 2] ^= 6 if kind == "zst" else 0xff  # zst: the first block becomes of the reserved kind
        bad = {"cut": (whole[:len(whole) // 2], "cut off"), "spoilt": (bytes(spoilt), "damaged"), "more": (whole + b"and so on", "damaged"),
               "inside": (pack(PACK["gz"](TEXT)), "gzip"), "binary": (pack(b"a\0b"), "byte 1 is 0"), "empty": (pack(b""), "holds no byte")}
        for name, (body, says) in bad.items():
            file = folder / f"{name}.{kind}"
            file.write_bytes(body)
            refused("train", file, "--out", folder / "out", *SMALL, says=[file.name, says])
            refused("train", plain, "--held-out", file, "--out", folder / "out", *SMALL, says=[file.name, says])
            refused("eval", folder / "m", file, "--length", 32, says=[file.name, says])
            assert not (folder / "out/config.json").exists()


@case("--field reads one field of JSON lines, each line a document, packed or not, for training, held-out text, tokenizers and evaluation")
def fields(folder):
    texts = [f"to be or not to be, that is question {i}\u00e9" for i in range(200)]
    lines = "".join(json.dumps({"id": i, "text": t, "meta": {"body": t}}) + "\n" for i, t in enumerate(texts)).encode()
    data, plain = folder / "data.jsonl", folder / "plain.txt"
    data.write_bytes(lines)
    plain.write_text("".join(t + "\n" for t in texts), encoding="utf-8")
    held = folder / "held.jsonl"
    held.write_text("".join(json.dumps({"text": f"held out {i}"}) + "\n" for i in range(50)))
    linnet("train", plain, "--out", folder / "plain", *SMALL)
    done = linnet("train", data, "--out", folder / "field", *SMALL, "--field", "text")
    assert "note:" not in done.err, done.err
    assert sha(folder / "field/model.safetensors") == sha(folder / "plain/model.safetensors")  # raw bytes: each document with a newline
    linnet("train", data, "--out", folder / "nested", *SMALL, "--field", "meta.body")
    assert sha(folder / "nested/model.safetensors") == sha(folder / "plain/model.safetensors")
    shown = numbers(folder / "plain", data, "--field", "text")
    assert shown == numbers(folder / "plain", plain) and shown["bytes"] == plain.stat().st_size - 1
    linnet("train", data, "--out", folder / "learned", *SMALL, "--field", "text", "--train-tokenizer", 280, "--held-out", held, "--isolate-documents")
    linnet("train", plain, "--out", folder / "plain-bpe", *SMALL, "--train-tokenizer", 280)
    assert sha(folder / "learned/tokenizer.json") == sha(folder / "plain-bpe/tokenizer.json")
    for kind, pack in packings(folder).items():
        (folder / f"data.jsonl.{kind}").write_bytes(pack(lines))
        linnet("train", folder / f"data.jsonl.{kind}", "--out", folder / f"field-{kind}", *SMALL, "--field", "text")
        assert sha(folder / f"field-{kind}/model.safetensors") == sha(folder / "plain/model.safetensors")
        assert "--field text" in linnet("eval", folder / "plain", folder / f"data.jsonl.{kind}", "--length", 32).err
    linnet("train", data, "--out", folder / "field", "--resume", "--field", "text")
    refused("train", data, "--out", folder / "field", "--resume", "--field", "meta.body.none", says=["has no"])
    refused("train", data, "--out", folder / "field", "--resume", says=["not the one this run was started with"])
    refused("train", data, "--out", folder / "no", *SMALL, "--field", "body", says=["line 1", "body", "Its keys: id, text, meta"])
    refused("train", data, plain, "--out", folder / "no", *SMALL, "--field", "text", says=["plain.txt", "line 1", "no JSON"])
    refused("eval", folder / "plain", data, "--length", 32, "--field", "id", says=["line 1", "is 0, expected a text"])
    assert not (folder / "no/config.json").exists()
