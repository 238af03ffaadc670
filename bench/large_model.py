#!/usr/bin/env python3
"""Load a model of 3 G parameters and write tokens with it: python3 bench/large_model.py LINNET [--layers 35] [--tokens 8] [--scratch FOLDER]

Makes a folder with a Gated DeltaNet of random bf16 weights in files of 2 GB, reads some tokens one by one (linnet logits --step) with weights kept in bf16
and in int8, and says how much memory each took at most beside what its weights come to. Standard library only; the folder goes when it is done."""
import argparse
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARD = 2 * 10 ** 9
PIECE = 1 << 22  # random numbers that are written again and again


def bf16(x):
    word = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.pack("<H", (word + 0x7fff + (word >> 16 & 1)) >> 16)


def shapes(linnet, keys):
    words = [w for k in keys for w in ("--set", k)]
    said = json.loads(subprocess.run([linnet, "inspect", "--mixer", "gated_deltanet", "--json", *words], check=True, capture_output=True).stdout)
    return said["config"], [(p["name"], p["shape"]) for p in said["parameter_table"]]


def write_folder(folder, config, tensors):
    table = [bf16(random.gauss(0, 0.02)) for _ in range(4096)]
    noise = b"".join(random.choices(table, k=PIECE // 2))
    (folder / "config.json").write_text(json.dumps(config))
    files, size = [[]], 0
    for name, shape in tensors:
        count = 1
        for n in shape:
            count *= n
        if size and size + 2 * count > SHARD:
            files, size = files + [[]], 0
        files[-1].append((name, shape, count))
        size += 2 * count
    index = {}
    for i, part in enumerate(files):
        header, at = {}, 0
        for name, shape, count in part:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count]}
            at += 2 * count
        text = json.dumps(header).encode()
        file = f"model-{i + 1:05}-of-{len(files):05}.safetensors"
        with open(folder / file, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for name, _, count in part:
                index[name] = file
                one = bf16(1) * count if "norm" in name else None
                for left in range(2 * count, 0, -PIECE):
                    f.write(one or noise[:min(left, PIECE)])
                    if one:
                        break
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def run(linnet, folder, tokens, flags):
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, tokens], "data_offsets": [0, 8 * tokens]}}).encode()
    ids = folder / "ids.safetensors"
    ids.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{tokens}q", *range(tokens)))
    pid, begin = os.fork(), time.time()
    if pid == 0:
        os.execv(linnet, [linnet, "logits", str(folder), str(ids), str(folder / "logits.out"), "--step", *flags])
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, time.time() - begin


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("linnet")
    p.add_argument("--layers", type=int, default=35)
    p.add_argument("--tokens", type=int, default=8)
    p.add_argument("--scratch")
    a = p.parse_args()
    linnet = os.path.abspath(a.linnet)
    keys = ["hidden_size=2560", f"num_hidden_layers={a.layers}", "vocab_size=50304", "num_heads=8", "head_dim=256"]
    config, tensors = shapes(linnet, keys)
    count = matrices = rows = 0
    for name, shape in tensors:
        n = 1
        for d in shape:
            n *= d
        count += n
        if len(shape) == 2 and name != "model.embeddings.weight":
            matrices, rows = matrices + n, rows + shape[0]
    print(f"{count} parameters, {2 * count / 2**30:.2f} GiB in bf16", flush=True)
    code = 0
    with tempfile.TemporaryDirectory(dir=a.scratch) as name:
        folder = Path(name)
        write_folder(folder, config, tensors)
        for flags in (["--dtype", "bf16", "--weights", "bf16"], ["--weights", "int8"], ["--dtype", "bf16", "--weights", "int8"]):
            kept = 4 * (count - matrices) + (matrices + 4 * rows if "int8" in flags else 2 * matrices)
            done, most, seconds = run(linnet, folder, a.tokens, flags)
            print(f"{' '.join(flags):30} exit {done}, at most {most / 2**30:.2f} GiB; weights {kept / 2**30:.2f} GiB; {seconds:.0f} s", flush=True)
            code |= done
    return code


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
